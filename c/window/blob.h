/* The bytes that one rank exports for one peer: who it is, where its window is to be had, and the
 * configuration that both must share. Little-endian, of a fixed length, with a checksum against damage on the
 * way. */
#ifndef EPW_WINDOW_BLOB_H
#define EPW_WINDOW_BLOB_H

#include "device/device.h"
#include "ipc/process.h"

#define EPW_BLOB_FORMAT 2
#define EPW_BLOB_BYTES  256

typedef struct epw_blob {
    epw_identity host; /* the exporter's kernel, network namespace and process */
    epw_nonce window;  /* the secret that its fd server asks for */
    epw_nonce server;  /* the fd server's name, see epw_fd_address */
    uint64_t window_bytes;
    epw_origin origin; /* where the window's memory is, and how another process maps it */
    uint32_t peer;     /* the rank it was exported for */
    uint32_t serves;   /* 1: other processes may fetch the window from `server` */
    epw_config config; /* the exporter's; size, threads, paths, device and sms do not travel and are 0 */
} epw_blob;

/* Writes EPW_BLOB_BYTES bytes. */
void epw_blob_write(const epw_blob *blob, unsigned char *bytes);

/* Reads `length` bytes of any content. On success the ranks are in range and differ, the window is not empty
 * and its path is one of SHM, VMM and IPC; all other values are as they came. EPW_ERR_INVALID: not a blob,
 * cut or damaged; EPW_ERR_MISMATCH: of another version. */
epw_status epw_blob_parse(const void *bytes, size_t length, epw_where where, epw_blob *out);

/* EPW_ERR_MISMATCH, naming the first field that must be equal and is not, with both values. Of `device` only
 * the kind must be. */
epw_status epw_blob_check_config(const epw_blob *blob, const epw_config *own, epw_where where);

#endif
