/* The identity of this process: nonces, what peers compare to choose a path, and what a forked child must not
 * inherit. */
#ifndef EPW_IPC_PROCESS_H
#define EPW_IPC_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* 128 random bits: the secret of a window, or the name of a process. */
typedef struct epw_nonce {
    unsigned char bytes[16];
} epw_nonce;

/* Fills a nonce from the system's random source. */
epw_status epw_nonce_make(epw_where where, epw_nonce *out);

/* Compares in a time that does not depend on the contents. */
bool epw_nonce_equal(const epw_nonce *a, const epw_nonce *b);

/* Two processes share a host, as epwire needs it, if they share the kernel (boot_id) and the network
 * namespace, in which abstract sockets live. */
typedef struct epw_identity {
    epw_nonce boot_id;
    uint64_t network_namespace;
    epw_nonce process; /* a forked child gets its own */
    uint32_t pid;
} epw_identity;

epw_status epw_identity_get(epw_where where, epw_identity *out);

/* Registers the fork handlers; called before anything else of this folder. */
epw_status epw_process_ready(epw_where where);

/* One lock for all offers, leases and descriptors of a process, which are touched when peers come and go,
 * never by dispatch or combine. Nothing waits while holding it. A fork takes it, so that a child finds this
 * state consistent. */
void epw_process_lock(void);
void epw_process_unlock(void);

/* The exception: releases the lock until epw_process_notify is called, or spuriously, and takes it again.
 * Only for events that come soon. */
void epw_process_wait(void);
void epw_process_notify(void);

/* The number of forks between this process and the first one. What was created under another number belongs
 * to an ancestor: its descriptors and mappings do not exist here. */
uint32_t epw_process_generation(void);

/* Descriptors that a forked child must not keep: with the end of a lease it would keep the lease held
 * after its parent died, with a listener it would keep clients waiting for an answer. Descriptors
 * registered here are closed in the child. Called with the lock held, which should be taken before the
 * descriptor is created. */

/* Registers `fd`; false if there is no memory. */
bool epw_fd_keep_from_child(int fd);

/* Undoes that. Called before fd is closed, since its number may then belong to another file. */
void epw_fd_forget(int fd);

/* Forgets and closes `fd`. */
void epw_fd_close(int fd);

/* The same, taking the lock itself. */
void epw_fd_release(int fd);

#endif
