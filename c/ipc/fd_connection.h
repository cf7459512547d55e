/* One connection of the fd server: a client that has not sent its request yet, or the holder of a lease,
 * which rings, says goodbye and leaves. The server (fd_server.c) keeps the connections and waits for them;
 * this file handles what each sends. All functions are called with the process lock held. */
#ifndef EPW_IPC_FD_CONNECTION_H
#define EPW_IPC_FD_CONNECTION_H

#include <errno.h>

#include "ipc/offer.h"

typedef struct epw_connection {
    int fd;
    int death;              /* pidfd of the holder of a GPU lease: readable once it has ended; else -1 */
    bool rung;              /* the holder of the lease has rung, and the owner has not been told yet */
    bool goodbye;           /* the holder has said goodbye, which takes effect once the connection is
                             * closed */
    bool deaf;              /* the holder has sent an invalid notice, or will send no more: nothing more is
                             * read */
    bool closed;            /* closed by the holder of a GPU lease without a goodbye: its death is awaited */
    epw_offer *offer;       /* NULL: no lease (yet, or any more) */
    epw_offer *ended;       /* a reference that the ended lease held, which the thread must drop */
    uint32_t rank;          /* of the lease */
    uint64_t request_by_ns; /* without a lease: when the request is due */
    bool over;              /* the thread must close it */
} epw_connection;

static inline bool epw_out_of_descriptors(int err) {
    return err == EMFILE || err == ENFILE;
}

/* Whether it has sent no request yet. */
static inline bool epw_connection_pending(const epw_connection *c) {
    return !c->offer && !c->over;
}

/* Whether nothing that it sent is waiting to be read. */
bool epw_connection_silent(const epw_connection *c);

/* Whether the other end belongs to this process's user. */
bool epw_connection_same_user(int fd);

/* Reads and answers the request, if it has arrived; `all` are the connections whose leases may have ended. */
void epw_connection_serve(epw_connection *c, epw_connection *all, size_t count);

/* Tells a client that no descriptor is left to serve it. */
void epw_connection_refuse(int fd);

/* Reads what the holder of a lease has sent, and ends the lease if it has left. Releases the lock while the
 * window's owner is told of a ring. */
void epw_connection_hear(epw_connection *c);

/* Ends the lease of this connection, which must have one. */
void epw_connection_end_lease(epw_connection *c);

/* Ends the leases whose holders have left by now. */
void epw_connections_reap(epw_connection *all, size_t count);

/* Closes its descriptors. */
void epw_connection_close(const epw_connection *c);

#endif
