/* See fd_connection.h and fd_message.h. */
#include "ipc/fd_connection.h"

#include <limits.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/barrier.h"
#include "ipc/fd_message.h"
#include "ipc/fd_pass.h"

#define HEARD_AT_ONCE 16 /* notices read from one holder before it is the others' turn */

#ifndef SO_PEERPIDFD /* Linux 6.5; the headers may be older */
#define SO_PEERPIDFD 77
#endif

/* ---- leases ---- */

void epw_connection_end_lease(epw_connection *c) {
    epw_lease_end(c->offer, c->rank);
    if (epw_offer_outlives_leases(c->offer)) c->ended = c->offer;
    c->offer = NULL;
    c->over = true;
}

static bool shows(int fd, short event) {
    struct pollfd p = {.fd = fd, .events = event};
    return poll(&p, 1, 0) == 1 && (p.revents & event);
}

/* Reads up to `most` packets from the holder of a lease, so that a holder that sends without end delays
 * nobody. A connection closed with a reply unread reports ECONNRESET, once, before the rest. */
static void hear(epw_connection *c, int most) {
    for (int i = 0; i < most; i++) {
        epw_fd_notice notice;
        ssize_t got = recv(c->fd, &notice, sizeof notice, MSG_DONTWAIT | MSG_TRUNC);
        if (got < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
        if (got < 0) return;
        bool whole = got == (ssize_t)sizeof notice;
        if (whole && notice.magic == EPW_FD_RING_MAGIC) {
            c->rung = true;
        } else if (whole && notice.magic == EPW_FD_GOODBYE_MAGIC) {
            c->goodbye = true;
        } else {
            c->deaf = true;
            if (got == 0)
                return; /* either nothing follows, or it was an empty packet, which is no notice
                         * either */
        }
    }
}

/* Ends c's lease if its holder can no longer write. POLLHUP means that the other end is closed, not merely
 * that it sent something or will send no more. Then what is left to read is finite. */
static void end_if_left(epw_connection *c) {
    if (!c->closed) {
        if (!shows(c->fd, POLLHUP)) return;
        hear(c, INT_MAX);
        if (c->death < 0 || c->goodbye) {
            epw_connection_end_lease(c);
            return;
        }
        c->closed = true;
    }
    if (shows(c->death, POLLIN)) epw_connection_end_lease(c);
}

void epw_connection_hear(epw_connection *c) {
    if (!c->closed && !c->deaf) hear(c, HEARD_AT_ONCE);
    if (c->rung) {
        c->rung = false;
        epw_notice_fence(); /* pairs with epw_fd_ring: the ring is taken before the owner looks */
        epw_offer_ring(c->offer, c->rank);
    }
    if (c->offer != NULL) end_if_left(c); /* the lease may have ended while the lock was released */
}

void epw_connections_reap(epw_connection *all, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (all[i].offer) end_if_left(&all[i]);
}

/* ---- requests ---- */

/* Returns a descriptor that becomes readable when the process that made this connection has ended: the kernel
 * signals it after it has released the process's files, and with them its work on a GPU. (Exception: a child
 * forked without exec holds copies of the driver's files; kernels then end by their own deadlines.) -1 if
 * there is none.
 *
 * Before Linux 6.5 the process is found by its pid, which another pid namespace hides and which may, in
 * principle, belong to another process by now. In that case the one that asked has ended, and sending it the
 * reply fails. Sets errno. */
static int watch_death(int fd, pid_t pid) {
    int death = -1;
    socklen_t length = sizeof death;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &death, &length))
        death = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    if (death < 0 || epw_fd_keep_from_child(death)) return death;
    close(death);
    errno = ENOMEM;
    return -1;
}

/* Decides a well-formed request. */
static epw_fd_reply decide(epw_connection *c, epw_connection *all, size_t count,
                           const epw_fd_request *request) {
    epw_fd_reply reply = {.magic = EPW_FD_REPLY_MAGIC, .verdict = EPW_FD_UNKNOWN_WINDOW};
    epw_offer *offer = epw_offer_find(&request->window);
    if (offer == NULL) return reply;

    /* The pid that the kernel reports is more reliable than the client's own, if it is visible from here. */
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    epw_holder client = {.process = request->process, .window = request->holder, .pid = request->pid};
    epw_holder holder = {0};
    if (!getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) && peer.pid > 0)
        client.pid = (uint32_t)peer.pid;

    /* A lease whose end nobody could see would block its rank for ever: refuse it now. */
    if (epw_offer_is_gpu(offer) && (c->death = watch_death(c->fd, peer.pid)) < 0) {
        reply.verdict = epw_out_of_descriptors(errno) ? EPW_FD_NO_DESCRIPTORS : EPW_FD_UNSEEN;
        return reply;
    }

    epw_lease_verdict verdict = epw_lease_take(offer, request->rank, &client, &holder);
    if (verdict == EPW_LEASE_HELD) {
        epw_connections_reap(all, count);
        verdict = epw_lease_take(offer, request->rank, &client, &holder);
    }
    switch (verdict) {
    case EPW_LEASE_NO_SUCH_RANK:
        reply.verdict = EPW_FD_NO_SUCH_RANK;
        return reply;
    case EPW_LEASE_HELD:
        reply.verdict =
            epw_nonce_equal(&client.process, &holder.process) ? EPW_FD_FENCED_WITHIN : EPW_FD_FENCED;
        reply.holder_pid = holder.pid;
        return reply;
    case EPW_LEASE_GRANTED:
        break;
    }
    if (epw_offer_outlives_leases(offer)) epw_offer_ref(offer);
    c->offer = offer;
    c->rank = request->rank;
    reply.verdict = EPW_FD_GRANTED;
    return reply;
}

/* Sends the reply, with the window's memory if it was granted. Never blocks, because nothing was sent before
 * it. */
static bool send_reply(int fd, const epw_fd_reply *reply, int memory_fd) {
    return epw_fd_pass(fd, reply, sizeof *reply, memory_fd, MSG_DONTWAIT) == (ssize_t)sizeof *reply;
}

/* Reads and answers the request. The kernel drops descriptors that a client may have attached, since recv
 * provides no room for them. */
void epw_connection_serve(epw_connection *c, epw_connection *all, size_t count) {
    epw_fd_request request;
    ssize_t got = recv(c->fd, &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    epw_fd_reply reply = {.magic = EPW_FD_REPLY_MAGIC, .verdict = EPW_FD_MALFORMED};
    if (got == (ssize_t)sizeof request && request.magic == EPW_FD_REQUEST_MAGIC)
        reply = decide(c, all, count, &request);
    bool sent = got > 0 && send_reply(c->fd, &reply, c->offer != NULL ? epw_offer_memory(c->offer)->fd : -1);
    if (c->offer && !sent) epw_connection_end_lease(c);
    if (c->offer == NULL) c->over = true;
}

void epw_connection_refuse(int fd) {
    static const epw_fd_reply reply = {.magic = EPW_FD_REPLY_MAGIC, .verdict = EPW_FD_NO_DESCRIPTORS};
    (void)send_reply(fd, &reply, -1);
}

bool epw_connection_same_user(int fd) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) && peer.uid == geteuid();
}

bool epw_connection_silent(const epw_connection *c) {
    return !shows(c->fd, POLLIN);
}

void epw_connection_close(const epw_connection *c) {
    if (c->death >= 0) epw_fd_close(c->death);
    epw_fd_close(c->fd);
}
