/* See fd_client.h. */
#include "ipc/fd_client.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/barrier.h"
#include "base/clock.h"
#include "ipc/fd_pass.h"

/* One fetch: its connection and its time limits. */
typedef struct fetch {
    int fd;
    uint32_t exporter_pid;
    uint64_t deadline_ns; /* as the caller gave it */
    uint64_t until_ns;
    epw_where where;
} fetch;

static epw_status timed_out(const fetch *f, const char *what) {
    return epw_fail(
        EPW_ERR_TIMEOUT, f->where,
        "process %u did not %s within %llu ms: it is stopped or overloaded; resume it, or raise the deadline",
        (unsigned)f->exporter_pid, what, (unsigned long long)(f->deadline_ns / 1000000u));
}

static epw_status gone_from(uint32_t exporter_pid, epw_where where) {
    return epw_fail(
        EPW_ERR_PEER, where,
        "process %u no longer serves this window: it has ended, or destroyed its buffer; connect with a "
        "blob of its present buffer",
        (unsigned)exporter_pid);
}

static epw_status gone(const fetch *f) {
    return gone_from(f->exporter_pid, f->where);
}

/* Limits the next blocking call on the socket to the time left; returns false if none is left. */
static bool bound_next_call(const fetch *f) {
    uint64_t now = epw_now_ns();
    if (now >= f->until_ns) return false;
    uint64_t left_us = (f->until_ns - now) / 1000u + 1; /* 0 would mean no limit */
    struct timeval limit = {.tv_sec = (time_t)(left_us / 1000000u),
                            .tv_usec = (suseconds_t)(left_us % 1000000u)};
    return !setsockopt(f->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) &&
           !setsockopt(f->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

static epw_status connect_server(const fetch *f, const epw_nonce *server) {
    struct sockaddr_un address;
    socklen_t length = epw_fd_address(server, &address);
    while (bound_next_call(f)) {
        if (!connect(f->fd, (struct sockaddr *)&address, length)) return EPW_OK;
        if (errno == EAGAIN || errno == EINTR) continue; /* the listen queue is full, or a signal came */
        return errno == ECONNREFUSED ? gone(f)
                                     : epw_fail_errno(errno, f->where, "connecting to the fd server");
    }
    return timed_out(f, "accept a connection");
}

/* Anyone may take an abstract name once its owner has ended: check the server's user before sending it the
 * window's secret. */
static epw_status check_user(const fetch *f) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(f->fd, SOL_SOCKET, SO_PEERCRED, &peer, &length))
        return epw_fail_errno(errno, f->where, "SO_PEERCRED");
    if (peer.uid == geteuid()) return EPW_OK;
    return epw_fail(EPW_ERR_PEER, f->where,
                    "process %u belongs to user %u, this one to user %u; run all ranks of a "
                    "host as one user",
                    (unsigned)f->exporter_pid, (unsigned)peer.uid, (unsigned)geteuid());
}

static epw_status send_request(const fetch *f, epw_fd_request request) {
    request.magic = EPW_FD_REQUEST_MAGIC;
    while (bound_next_call(f)) {
        if (send(f->fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request) return EPW_OK;
        if (errno == EAGAIN || errno == EINTR) continue;
        if (errno == EPIPE || errno == ECONNRESET)
            return EPW_OK; /* closed: the server may have sent the
                            * reason */
        return epw_fail_errno(errno, f->where, "asking the fd server");
    }
    return timed_out(f, "take a request");
}

/* The error if the kernel has dropped the descriptor of a granted reply. */
static epw_status no_descriptor(const fetch *f) {
    return epw_fail(EPW_ERR_SYSTEM, f->where,
                    "this process is out of file descriptors: none is left for the peer's window; raise "
                    "ulimit -n");
}

/* Receives the reply. A server that closes without having read the request resets the connection, which is
 * reported once, before the reply. */
static epw_status receive_reply(const fetch *f, epw_fd_reply *reply, int *memory_fd) {
    bool reset = false;
    while (bound_next_call(f)) {
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec part = {reply, sizeof *reply};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        ssize_t got = recvmsg(f->fd, &message, MSG_CMSG_CLOEXEC);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got < 0 && errno == ECONNRESET) {
            if (reset) return gone(f);
            reset = true;
            continue;
        }
        if (got < 0) return epw_fail_errno(errno, f->where, "reading the fd server's answer");
        *memory_fd = epw_fd_taken(&message); /* an empty packet may carry a descriptor too */
        bool whole = got == (ssize_t)sizeof *reply && !(message.msg_flags & MSG_TRUNC) &&
                     reply->magic == EPW_FD_REPLY_MAGIC;
        bool granted = whole && reply->verdict == EPW_FD_GRANTED;
        if (whole && (*memory_fd >= 0) == granted) return EPW_OK;
        if (granted && (message.msg_flags & MSG_CTRUNC)) return no_descriptor(f);
        if (*memory_fd >= 0) close(*memory_fd);
        if (got == 0) return gone(f);
        return epw_fail(EPW_ERR_PEER, f->where,
                        "process %u gave no answer of an epwire fd server; use the same epwire "
                        "version on all ranks",
                        (unsigned)f->exporter_pid);
    }
    return timed_out(f, "answer");
}

static epw_status fenced_by_process(epw_where where, uint32_t rank, uint32_t pid) {
    return epw_fail(EPW_ERR_FENCED, where,
                    "process %u still has the peer's window mapped as rank %u and might write there; end "
                    "that process, or "
                    "let it destroy or disconnect its buffer, then connect again",
                    (unsigned)pid, (unsigned)rank);
}

static epw_status fenced_by_window(epw_where where, uint32_t rank) {
    return epw_fail(
        EPW_ERR_FENCED, where,
        "another buffer of this process still has the peer's window mapped as rank %u and might write there; "
        "destroy that buffer, or disconnect it from the peer, then connect again",
        (unsigned)rank);
}

static epw_status refusal(const fetch *f, const epw_fd_request *request, const epw_fd_reply *reply) {
    switch (reply->verdict) {
    case EPW_FD_UNKNOWN_WINDOW:
        return gone(f);
    case EPW_FD_FENCED:
        return fenced_by_process(f->where, request->rank, reply->holder_pid);
    case EPW_FD_FENCED_WITHIN:
        return fenced_by_window(f->where, request->rank);
    case EPW_FD_NO_SUCH_RANK:
        return epw_fail(EPW_ERR_PEER, f->where, "the peer's window has no place for rank %u",
                        (unsigned)request->rank);
    case EPW_FD_NO_DESCRIPTORS:
        return epw_fail(
            EPW_ERR_PEER, f->where,
            "process %u is out of file descriptors and cannot hand out its window; raise ulimit -n "
            "there",
            (unsigned)f->exporter_pid);
    case EPW_FD_UNSEEN:
        return epw_fail(EPW_ERR_NO_PATH, f->where,
                        "process %u cannot watch this one (%u), and must see it end before it gives its GPU "
                        "memory to a replacement: run both in one pid namespace, or on Linux 6.5 or newer",
                        (unsigned)f->exporter_pid, (unsigned)request->pid);
    default:
        return epw_fail(EPW_ERR_PEER, f->where,
                        "the fd server of process %u refused the request (code %u); use the "
                        "same epwire version on all ranks",
                        (unsigned)f->exporter_pid, (unsigned)reply->verdict);
    }
}

epw_status epw_fenced(epw_where where, uint32_t rank, const epw_holder *self, const epw_holder *holder) {
    return epw_nonce_equal(&self->process, &holder->process) ? fenced_by_window(where, rank)
                                                             : fenced_by_process(where, rank, holder->pid);
}

epw_status epw_fd_fetch(const epw_nonce *server, const epw_fd_request *request, uint32_t exporter_pid,
                        uint64_t deadline_ns, uint64_t until_ns, epw_where where, epw_fd_grant *out) {
    fetch f = {
        .exporter_pid = exporter_pid, .deadline_ns = deadline_ns, .until_ns = until_ns, .where = where};
    epw_process_lock();
    f.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int err = errno;
    bool kept = f.fd >= 0 && epw_fd_keep_from_child(f.fd);
    epw_process_unlock();
    if (f.fd < 0) return epw_fail_errno(err, where, "socket(AF_UNIX)");

    epw_fd_reply reply = {0};
    epw_status status =
        kept ? EPW_OK : epw_fail(EPW_ERR_NO_MEMORY, where, "no memory to register a connection");
    if (status == EPW_OK) status = connect_server(&f, server);
    if (status == EPW_OK) status = check_user(&f);
    if (status == EPW_OK) status = send_request(&f, *request);
    if (status == EPW_OK) status = receive_reply(&f, &reply, &out->memory_fd);
    if (status == EPW_OK && reply.verdict != EPW_FD_GRANTED) status = refusal(&f, request, &reply);
    if (status != EPW_OK) {
        epw_fd_leave(f.fd); /* the server may have granted the lease too late */
        return status;
    }
    out->lease_fd = f.fd;
    return EPW_OK;
}

epw_status epw_fd_ring(int lease_fd, uint32_t exporter_pid, epw_where where) {
    static const epw_fd_notice ring = {EPW_FD_RING_MAGIC};
    int unread = 0;
    /* Sends a ring only if none is unread, so that there is always room for the goodbye. Reader: hear() in
     * fd_connection.c, which takes a ring from the socket first and then makes the owner look: it will see
     * this caller's writes. */
    epw_notice_fence();
    if (!ioctl(lease_fd, SIOCOUTQ, &unread) && unread > 0) return EPW_OK;
    for (;;) {
        if (send(lease_fd, &ring, sizeof ring, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 || errno == EAGAIN)
            return EPW_OK;
        if (errno == EINTR) continue;
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return gone_from(exporter_pid, where);
        return epw_fail_errno(errno, where, "ringing process %u", (unsigned)exporter_pid);
    }
}

void epw_fd_leave(int lease_fd) {
    /* If the goodbye cannot be sent, the lease ends later, with this process. */
    static const epw_fd_notice goodbye = {EPW_FD_GOODBYE_MAGIC};
    (void)send(lease_fd, &goodbye, sizeof goodbye, MSG_DONTWAIT | MSG_NOSIGNAL);
    epw_fd_release(lease_fd);
}
