/* The bytes that one rank exports for one peer: who it is, where its window can be fetched, and the terms
 * that both must share. Little-endian, with a checksum against damage in transit. */
#ifndef EPW_WINDOW_BLOB_H
#define EPW_WINDOW_BLOB_H

#include "device/device.h"
#include "ipc/process.h"
#include "window/options.h"

#define EPW_BLOB_FORMAT 5

/* What the peer floor says of the queues that lead to a rank, see peer/remote.h; not interpreted here. */
#define EPW_BLOB_QUEUE_MAX 320
typedef struct epw_blob_queue {
    uint32_t length; /* 0: no queue leads there */
    unsigned char bytes[EPW_BLOB_QUEUE_MAX];
} epw_blob_queue;

typedef struct epw_blob {
    uint32_t rank, ranks; /* the exporter's */
    uint32_t peer;        /* the rank for which it was exported */
    uint32_t serves;      /* 1: other processes may fetch the window from `server` */
    uint32_t paths;       /* EPW_PATH_* bits that the exporter permits */
    epw_identity host;    /* the exporter's kernel, network namespace and process */
    epw_nonce window;     /* the secret that its fd server demands */
    epw_nonce server;     /* the fd server's name, see epw_fd_address */
    uint64_t window_bytes;
    epw_origin origin; /* where the window's memory is, and how another process maps it */
    epw_blob_queue queue;
    uint64_t term_names; /* a hash of all names, in order */
    uint32_t term_count;
    uint64_t terms[EPW_TERMS_MAX]; /* the terms' values */
} epw_blob;

/* Puts the terms of a window's options into a blob. */
void epw_blob_set_terms(epw_blob *blob, const epw_term *terms, uint32_t count);

/* The checksum of bytes that are carried around. */
uint64_t epw_blob_sum(const void *bytes, size_t length);

/* Writes the blob and returns its length, EPW_BLOB_MAX at most. */
size_t epw_blob_write(const epw_blob *blob, unsigned char *bytes);

/* Parses `length` bytes of any content. On success the ranks are in range and differ, the window is not
 * empty, its path is one of SHM, VMM and IPC, and there are at most EPW_TERMS_MAX terms; all other values are
 * unchecked. EPW_ERR_INVALID: not a blob, cut or damaged; EPW_ERR_MISMATCH: of another version. */
epw_status epw_blob_parse(const void *bytes, size_t length, epw_where where, epw_blob *out);

/* EPW_ERR_MISMATCH, naming with both values the first item that must be equal and is not: the terms, in their
 * order, then the ranks, then whether windows are on the host or on GPUs. */
epw_status epw_blob_check(const epw_blob *blob, const epw_window_options *own, epw_where where);

#endif
