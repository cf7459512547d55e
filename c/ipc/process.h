/* What makes this process this process: nonces, the identity that peers compare to choose a path, and what a
 * fork must not hand on. */
#ifndef EPW_IPC_PROCESS_H
#define EPW_IPC_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* 128 random bits: the secret of a window, the name of a process. */
typedef struct epw_nonce {
    unsigned char bytes[16];
} epw_nonce;

/* Fills a nonce from the system's random source. */
epw_status epw_nonce_make(epw_where where, epw_nonce *out);

/* Compares in a time that does not depend on the contents. */
bool epw_nonce_equal(const epw_nonce *a, const epw_nonce *b);

/* Two processes share a host as epwire needs it if both the kernel (boot_id) and the network namespace, where
 * abstract sockets live, are the same. */
typedef struct epw_identity {
    epw_nonce boot_id;
    uint64_t network_namespace;
    epw_nonce process; /* a forked child has its own */
    uint32_t pid;
} epw_identity;

epw_status epw_identity_get(epw_where where, epw_identity *out);

/* Prepares for forks; once before anything else of this folder. */
epw_status epw_process_ready(epw_where where);

/* One lock for all of a process's offers, leases and descriptors: they are touched when peers come and go,
 * never by dispatch or combine. Nothing waits while holding it. A fork takes it, so a child finds all of it
 * consistent. */
void epw_process_lock(void);
void epw_process_unlock(void);

/* The exception: releases the lock until epw_process_notify has been called somewhere, or for no reason, and
 * takes it again. For what ends soon. */
void epw_process_wait(void);
void epw_process_notify(void);

/* How many forks lie between this process and the first. What was created under another number belongs to an
 * ancestor: its descriptors and mappings do not exist here. */
uint32_t epw_process_generation(void);

/* A forked child that kept the end of a lease would keep it held after its parent died; one that kept a
 * listener would keep clients waiting for an answer. Descriptors registered here are closed in it. Lock held;
 * best from before the descriptor is made. */

/* Registers `fd`; false if there is no memory. */
bool epw_fd_keep_from_child(int fd);

/* Undoes that: before fd is closed, since its number may then be another file's. */
void epw_fd_forget(int fd);

/* Forgets and closes `fd`. */
void epw_fd_close(int fd);

/* The same, taking the lock. */
void epw_fd_release(int fd);

#endif
