/* One connection of the fd server: a client that has yet to send its request, or the holder of a lease, who
 * rings, says goodbye and leaves. The server (fd_server.c) keeps them and waits; here is what each says and
 * what that means. All with the process lock held. */
#ifndef EPW_IPC_FD_CONNECTION_H
#define EPW_IPC_FD_CONNECTION_H

#include <errno.h>

#include "ipc/offer.h"

typedef struct epw_connection {
    int fd;
    int death;    /* pidfd of a GPU lease's holder: readable once it has ended; else -1 */
    bool rung;    /* the holder of the lease has rung, and the owner has not been told */
    bool goodbye; /* the holder has said so; it counts once the connection is closed */
    bool deaf;   /* the holder has sent what is no notice, or will send no more: it is not read any further */
    bool closed; /* by the holder of a GPU lease, without a goodbye: its death is awaited */
    epw_offer *offer;       /* NULL: no lease (yet, or any more) */
    epw_offer *ended;       /* a reference that the ended lease held, to be dropped by the thread */
    uint32_t rank;          /* of the lease */
    uint64_t request_by_ns; /* until then, where there is no lease */
    bool over;              /* to be closed by the thread */
} epw_connection;

static inline bool epw_out_of_descriptors(int err) {
    return err == EMFILE || err == ENFILE;
}

/* Whether it has sent no request yet. */
static inline bool epw_connection_pending(const epw_connection *c) {
    return !c->offer && !c->over;
}

/* Whether nothing that it sent is there to be read. */
bool epw_connection_silent(const epw_connection *c);

/* Whether the other end is of this process's user. */
bool epw_connection_same_user(int fd);

/* Reads and answers the request, if it has come; `all` are the connections whose leases may have ended. */
void epw_connection_serve(epw_connection *c, epw_connection *all, size_t count);

/* Tells a client that there is no descriptor to serve it with. */
void epw_connection_refuse(int fd);

/* Takes what the holder of a lease has said, and ends the lease if it has left. Releases the lock while the
 * window's owner is told of a ring. */
void epw_connection_hear(epw_connection *c);

/* Ends the lease, which it has. */
void epw_connection_end_lease(epw_connection *c);

/* Ends the leases whose holders have left by now. */
void epw_connections_reap(epw_connection *all, size_t count);

/* Closes its descriptors. */
void epw_connection_close(const epw_connection *c);

#endif
