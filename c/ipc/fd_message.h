/* Messages between the fd server and its clients: one request and one reply, each a packet of an AF_UNIX
 * SOCK_SEQPACKET connection. Both ends run on one host under one user, so fields are in the machine's own
 * byte order.
 *
 *     importer                       exporter's server
 *        | -- connect ------------------> |   both check the other's user
 *        | -- epw_fd_request -----------> |   the window's secret, who asks, for which rank
 *        | <-- epw_fd_reply (+ memfd) --- |   granted: the connection is the lease from here on
 *        | -- ring ---------------------> |   any number: there is something for the exporter's host to see
 *        |            ...                 |   the importer unmaps first,
 *        | -- goodbye ------------------> |   says so,
 *        | -- close --------------------> |   then closes
 *
 * When an importer dies, the kernel unmaps its memory and closes its connections, but sends no goodbye. For a
 * window in host memory a closed connection is enough, since a process's memory is released before its files.
 * A GPU continues what a process has enqueued until the driver's own files are released, which may be after
 * the connection: for GPU memory, the lease of a connection that closes without a goodbye lasts until the
 * process has ended. */
#ifndef EPW_IPC_FD_MESSAGE_H
#define EPW_IPC_FD_MESSAGE_H

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "ipc/process.h"

#define EPW_FD_REQUEST_MAGIC 0x51575045u /* "EPWQ" */
#define EPW_FD_REPLY_MAGIC   0x52575045u /* "EPWR" */
#define EPW_FD_RING_MAGIC    0x4e575045u /* "EPWN" */
#define EPW_FD_GOODBYE_MAGIC 0x42575045u /* "EPWB" */

typedef struct epw_fd_request {
    uint32_t magic;
    uint32_t rank; /* the importer's */
    uint32_t pid;  /* as the importer sees itself; for error texts */
    epw_nonce process;
    epw_nonce holder; /* the importer's own window, which with `process` identifies the holder of the lease */
    epw_nonce window; /* the window that is requested */
} epw_fd_request;

/* A notice from the holder of a lease. Ring: something was written to the window. Goodbye: the importer can
 * write no more; it has unmapped, or never mapped, and its GPU work has ended. */
typedef struct epw_fd_notice {
    uint32_t magic; /* EPW_FD_RING_MAGIC or EPW_FD_GOODBYE_MAGIC */
} epw_fd_notice;

enum {
    EPW_FD_GRANTED = 0,
    EPW_FD_UNKNOWN_WINDOW = 1, /* no window has this secret, or it has been destroyed */
    EPW_FD_NO_SUCH_RANK = 2,
    EPW_FD_FENCED = 3, /* another process holds the rank's lease */
    EPW_FD_MALFORMED = 4,
    EPW_FD_UNSEEN = 5,        /* the window is in GPU memory, and the server could not see the importer end */
    EPW_FD_FENCED_WITHIN = 6, /* another window of the importer's own process holds the rank's lease */
    EPW_FD_NO_DESCRIPTORS = 7 /* the server's process has none left; may be sent before the request is read */
};

typedef struct epw_fd_reply {
    uint32_t magic;
    uint32_t verdict;
    uint32_t holder_pid; /* EPW_FD_FENCED: pid of the process that holds the lease */
} epw_fd_reply;

/* The abstract address of the server named `id`. Returns the address length. */
static inline socklen_t epw_fd_address(const epw_nonce *id, struct sockaddr_un *out) {
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    char *name = out->sun_path + 1; /* a leading NUL makes the name abstract: no file, and it vanishes with
                                     * its socket */
    int length = snprintf(name, sizeof out->sun_path - 1, "epwire-");
    for (size_t i = 0; i < sizeof id->bytes; i++) length += snprintf(name + length, 3, "%02x", id->bytes[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

#endif
