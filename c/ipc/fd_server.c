/* See fd_server.h and fd_message.h. */
#include "ipc/fd_server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/barrier.h"
#include "base/clock.h"
#include "base/thread.h"
#include "ipc/fd_message.h"

#define ACCEPT_PAUSE_NS  100000000u /* after running out of descriptors */
#define HEARD_AT_ONCE    16         /* notices of one holder, before the others' turn */
#define ACCEPTED_AT_ONCE 16

#ifndef SO_PEERPIDFD /* Linux 6.5; the header may be older */
#define SO_PEERPIDFD 77
#endif

typedef struct connection {
    int fd;
    int death;              /* pidfd of a GPU lease's holder: readable once it has ended; else -1 */
    bool rung;              /* the holder of the lease has rung, and the owner has not been told */
    bool goodbye;           /* the holder has said so; it counts once the connection is closed */
    bool deaf;              /* the holder has said what is no notice, or will say no more: not listened to */
    bool closed;            /* by the holder of a GPU lease, without a goodbye: its death is awaited */
    epw_offer *offer;       /* NULL: no lease (yet, or any more) */
    epw_offer *ended;       /* a reference that the ended lease held, to be dropped by the thread */
    uint32_t rank;          /* of the lease */
    uint64_t request_by_ns; /* until then, where there is no lease */
    bool over;              /* to be closed by the thread */
} connection;

/* Guarded by the process lock. Connections are added and closed by the thread alone, so that its indices stay
 * valid while it waits without the lock. */
typedef struct server {
    epw_nonce id;
    uint32_t generation;
    uint32_t uses;
    bool stop;
    int listener;
    int wake;  /* eventfd: something changed for the thread */
    int spare; /* a descriptor to have one left when there is none; -1: it has gone, too */
    uint64_t accept_after_ns;
    connection *connections;
    struct pollfd *polls; /* [2 + capacity]: wake, listener, connections; the thread's own */
    size_t count, capacity;
    pthread_t thread;
} server;

static server *current; /* guarded by the process lock */

/* This process's server, NULL if there is none. A forked child has a copy of its parent's, whose descriptors'
 * numbers may be other files' here. Lock held. */
static server *own_server(void) {
    return current && current->generation == epw_process_generation() ? current : NULL;
}

/* ---- leases ------------------------------------------------------------------------------------- */

static void end_lease(connection *c) {
    epw_lease_end(c->offer, c->rank);
    if (epw_offer_outlives_leases(c->offer)) c->ended = c->offer;
    c->offer = NULL;
    c->over = true;
}

static bool shows(int fd, short event) {
    struct pollfd p = {.fd = fd, .events = event};
    return poll(&p, 1, 0) == 1 && (p.revents & event);
}

/* Takes up to `most` packets of what the holder of a lease has said, so that one who talks without end delays
 * nobody. A connection closed with a reply unread reports ECONNRESET, once, before the rest. */
static void hear(connection *c, int most) {
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
            if (got == 0) return; /* nothing comes behind it, or an empty packet, which is no notice either */
        }
    }
}

/* Ends c's lease if its holder can write no more. POLLHUP means that the other end is closed, not merely that
 * it said something or will say no more. There is an end to what it has said by then. */
static void end_if_left(connection *c) {
    if (!c->closed) {
        if (!shows(c->fd, POLLHUP)) return;
        hear(c, INT_MAX);
        if (c->death < 0 || c->goodbye) {
            end_lease(c);
            return;
        }
        c->closed = true;
    }
    if (shows(c->death, POLLIN)) end_lease(c);
}

static bool any_leased(const server *s) {
    for (size_t i = 0; i < s->count; i++)
        if (s->connections[i].offer || s->connections[i].ended) return true;
    return false;
}

static void reap(server *s) {
    for (size_t i = 0; i < s->count; i++)
        if (s->connections[i].offer) end_if_left(&s->connections[i]);
}

/* A descriptor that becomes readable when the process that made this connection has ended: the kernel says so
 * after it has released the process's files, and with them what it still had on a GPU. (Unless a child,
 * forked without exec, holds copies of the driver's files: kernels end by their own deadlines then.) -1 if
 * there is none.
 *
 * Before Linux 6.5 it is found by the pid, which another pid namespace hides and which may, in principle, be
 * another process's by now. Then the one that asked has ended, and sending it the reply fails. Sets errno. */
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

static bool out_of_descriptors(int err) {
    return err == EMFILE || err == ENFILE;
}

/* Decides a well-formed request. */
static epw_fd_reply decide(server *s, connection *c, const epw_fd_request *request) {
    epw_fd_reply reply = {.magic = EPW_FD_REPLY_MAGIC, .verdict = EPW_FD_UNKNOWN_WINDOW};
    epw_offer *offer = epw_offer_find(&request->window);
    if (!offer) return reply;

    /* The kernel's word for the client's pid is better than the client's, where the pid can be seen from
     * here. */
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    epw_holder client = {.process = request->process, .window = request->holder, .pid = request->pid};
    epw_holder holder = {0};
    if (!getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) && peer.pid > 0)
        client.pid = (uint32_t)peer.pid;

    /* A lease that nobody could see end would keep its rank out for ever: better refused now. */
    if (epw_offer_is_gpu(offer) && (c->death = watch_death(c->fd, peer.pid)) < 0) {
        reply.verdict = out_of_descriptors(errno) ? EPW_FD_NO_DESCRIPTORS : EPW_FD_UNSEEN;
        return reply;
    }

    epw_lease_verdict verdict = epw_lease_take(offer, request->rank, &client, &holder);
    if (verdict == EPW_LEASE_HELD) {
        reap(s);
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

/* ---- one connection ----------------------------------------------------------------------------- */

/* Sends the reply, with the window's memory if it was granted. Never blocks: nothing was sent before it. */
static bool send_reply(int fd, const epw_fd_reply *reply, int memory_fd) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)reply, sizeof *reply};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (memory_fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &memory_fd, sizeof memory_fd);
    }
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *reply;
}

/* Reads and answers the request. Descriptors that a client may have attached are dropped by the kernel, since
 * no place for them is given. */
static void serve(server *s, connection *c) {
    epw_fd_request request;
    ssize_t got = recv(c->fd, &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    epw_fd_reply reply = {.magic = EPW_FD_REPLY_MAGIC, .verdict = EPW_FD_MALFORMED};
    if (got == (ssize_t)sizeof request && request.magic == EPW_FD_REQUEST_MAGIC)
        reply = decide(s, c, &request);
    bool sent = got > 0 && send_reply(c->fd, &reply, c->offer ? epw_offer_memory(c->offer)->fd : -1);
    if (c->offer && !sent) end_lease(c);
    if (!c->offer) c->over = true;
}

static bool same_user(int fd) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) && peer.uid == geteuid();
}

static bool grow(server *s) {
    if (s->count < s->capacity) return true;
    size_t capacity = 2 * s->capacity;
    struct pollfd *polls = realloc(s->polls, (2 + capacity) * sizeof *polls);
    if (polls) s->polls = polls;
    connection *connections = realloc(s->connections, capacity * sizeof *connections);
    if (connections) s->connections = connections;
    if (!polls || !connections) return false;
    s->capacity = capacity;
    return true;
}

static int take_spare(const server *s) {
    int fd = fcntl(s->wake, F_DUPFD_CLOEXEC, 0);
    if (fd < 0 || epw_fd_keep_from_child(fd)) return fd;
    close(fd);
    return -1;
}

static int accept_next(const server *s) {
    return accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

/* Takes a connection with the spare descriptor, only to say that there is no other. */
static bool refuse_one(server *s) {
    static const epw_fd_reply reply = {.magic = EPW_FD_REPLY_MAGIC, .verdict = EPW_FD_NO_DESCRIPTORS};
    if (s->spare < 0) s->spare = take_spare(s);
    if (s->spare < 0) return false;
    epw_fd_close(s->spare);
    int fd = accept_next(s);
    if (fd >= 0) {
        if (same_user(fd)) (void)send_reply(fd, &reply, -1);
        close(fd);
    }
    s->spare = take_spare(s); /* -1 if another thread was faster: tried again next time */
    return fd >= 0;
}

static bool is_pending(const connection *c) {
    return !c->offer && !c->over;
}

/* If as many connections as may be have sent no request, closes the one that has been silent for longest:
 * connections are in the order in which they came. Who has sent one is answered in the next round. */
static void make_room(server *s) {
    size_t pending = 0;
    for (size_t i = 0; i < s->count; i++) pending += is_pending(&s->connections[i]);
    for (size_t i = 0; i < s->count && pending >= EPW_FD_MAX_PENDING; i++) {
        connection *c = &s->connections[i];
        if (!is_pending(c) || shows(c->fd, POLLIN)) continue;
        c->over = true;
        return;
    }
}

/* False if there is no more to accept now. */
static bool accept_one(server *s, uint64_t now) {
    int fd = accept_next(s);
    if (fd < 0) {
        int err = errno;
        if (out_of_descriptors(err) && refuse_one(s)) return true;
        /* Without descriptors or memory the listener stays readable: rest, instead of spinning on it. */
        bool exhausted = out_of_descriptors(err) || err == ENOBUFS || err == ENOMEM;
        if (exhausted) s->accept_after_ns = now + ACCEPT_PAUSE_NS;
        return false;
    }
    if (!same_user(fd) || !grow(s) || !epw_fd_keep_from_child(fd)) {
        close(fd);
        return true;
    }
    make_room(s);
    s->connections[s->count++] =
        (connection){.fd = fd, .death = -1, .request_by_ns = now + EPW_FD_REQUEST_NS};
    return true;
}

/* ---- the thread --------------------------------------------------------------------------------- */

static void close_connection(const connection *c) {
    if (c->death >= 0) epw_fd_close(c->death);
    epw_fd_close(c->fd);
}

static void *drop_offer(void *offer) {
    epw_offer_unref(offer);
    return NULL;
}

/* Drops the references of ended leases. The last one of an offer destroys memory, which may wait for what
 * runs on the GPU: each has a thread, if one is to be had, and the lock is not held. */
static void drop_ended(server *s) {
    for (size_t i = 0; i < s->count; i++) {
        epw_offer *offer = s->connections[i].ended;
        pthread_t thread;
        if (!offer) continue;
        s->connections[i].ended = NULL;
        epw_process_unlock();
        if (epw_thread_start(drop_offer, offer, &thread) == 0) {
            pthread_detach(thread);
        } else {
            epw_offer_unref(offer);
        }
        epw_process_lock();
    }
}

static void close_finished(server *s, uint64_t now) {
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i++) {
        connection *c = &s->connections[i];
        bool over = c->over ? !c->ended : !c->offer && now >= c->request_by_ns;
        if (over) {
            close_connection(c);
        } else {
            s->connections[kept++] = *c;
        }
    }
    s->count = kept;
}

/* Fills s->polls and returns for how long to wait, in poll's milliseconds. */
static int prepare_wait(server *s, uint64_t now) {
    uint64_t until = UINT64_MAX;
    for (size_t i = 0; i < s->count; i++) {
        const connection *c = &s->connections[i];
        /* The end of a lease is seen in any case: POLLHUP is always reported. */
        s->polls[2 + i] =
            (struct pollfd){.fd = c->closed ? c->death : c->fd, .events = c->deaf && !c->closed ? 0 : POLLIN};
        if (!c->offer && c->request_by_ns < until) until = c->request_by_ns;
    }
    bool accepting = now >= s->accept_after_ns;
    if (now < s->accept_after_ns && s->accept_after_ns < until) until = s->accept_after_ns;
    s->polls[0] = (struct pollfd){.fd = s->wake, .events = POLLIN};
    s->polls[1] = (struct pollfd){.fd = accepting ? s->listener : -1, .events = POLLIN};
    return until == UINT64_MAX ? -1 : (int)((until - now) / 1000000u + 1);
}

/* What the holder of a lease has said, and whether it has left. */
static void handle_holder(connection *c) {
    if (!c->closed && !c->deaf) hear(c, HEARD_AT_ONCE);
    if (c->rung) {
        c->rung = false;
        epw_notice_fence(); /* see epw_fd_ring: the ring was taken before the owner looks */
        epw_offer_ring(c->offer, c->rank);
    }
    if (c->offer) end_if_left(c); /* the lock was released: it may have ended meanwhile */
}

static void handle_events(server *s, size_t polled, uint64_t now) {
    eventfd_t ignored;
    if (s->polls[0].revents) eventfd_read(s->wake, &ignored);
    for (size_t i = 0; i < polled; i++) {
        connection *c = &s->connections[i];
        if (c->offer && s->polls[2 + i].revents) handle_holder(c);
    }
    for (size_t i = 0; i < polled; i++) {
        connection *c = &s->connections[i];
        if (is_pending(c) && s->polls[2 + i].revents) serve(s, c);
    }
    for (int i = 0; s->polls[1].revents && i < ACCEPTED_AT_ONCE && accept_one(s, now); i++) continue;
}

/* ---- life --------------------------------------------------------------------------------------- */

/* Lock held. No lease is left: windows have ended theirs, and leases that outlive windows keep the server. */
static void close_server(server *s) {
    for (size_t i = 0; i < s->count; i++) close_connection(&s->connections[i]);
    if (s->listener >= 0) epw_fd_close(s->listener);
    if (s->wake >= 0) epw_fd_close(s->wake);
    if (s->spare >= 0) epw_fd_close(s->spare);
}

static void free_server(server *s) {
    free(s->connections);
    free(s->polls);
    free(s);
}

/* Ends when release says so, or by itself when leases have outlived every window. */
static void *run(void *argument) {
    server *s = argument;
    pthread_setname_np(pthread_self(), "epw-fd-server");
    epw_process_lock();
    while (!s->stop) {
        drop_ended(s);
        uint64_t now = epw_now_ns();
        close_finished(s, now);
        if (s->uses == 0 && !any_leased(s)) break;
        int timeout_ms = prepare_wait(s, now);
        size_t polled = s->count;
        epw_process_unlock();
        int ready = poll(s->polls, (nfds_t)(2 + polled), timeout_ms);
        epw_process_lock();
        if (ready > 0) handle_events(s, polled, epw_now_ns());
    }
    bool alone = !s->stop; /* nobody joins it */
    if (alone) {
        current = NULL;
        close_server(s);
        pthread_detach(pthread_self());
    }
    epw_process_unlock();
    if (alone) free_server(s);
    return NULL;
}

static epw_status open_listener(server *s, epw_where where) {
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake < 0) return epw_fail_errno(errno, where, "eventfd");
    bool kept = epw_fd_keep_from_child(s->wake);
    s->spare = take_spare(s);
    s->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listener < 0) return epw_fail_errno(errno, where, "socket(AF_UNIX)");
    if (!kept || !epw_fd_keep_from_child(s->listener))
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the fd server");
    struct sockaddr_un address;
    socklen_t length = epw_fd_address(&s->id, &address);
    if (bind(s->listener, (struct sockaddr *)&address, length) || listen(s->listener, SOMAXCONN))
        return epw_fail_errno(errno, where, "listening on the abstract socket %s", address.sun_path + 1);
    return EPW_OK;
}

/* Makes and starts a server. Lock held. */
static epw_status start(epw_where where, server **out) {
    enum { FIRST_CAPACITY = 16 };
    server *s = calloc(1, sizeof *s);
    if (!s) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the fd server");
    s->listener = s->wake = s->spare = -1;
    s->generation = epw_process_generation();
    s->capacity = FIRST_CAPACITY;
    s->connections = calloc(FIRST_CAPACITY, sizeof *s->connections);
    s->polls = calloc(2 + FIRST_CAPACITY, sizeof *s->polls);
    epw_status status = EPW_OK;
    if (!s->connections || !s->polls)
        status = epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the fd server");
    if (status == EPW_OK) status = epw_nonce_make(where, &s->id);
    if (status == EPW_OK) status = open_listener(s, where);
    if (status == EPW_OK) {
        int err = epw_thread_start(run, s, &s->thread);
        if (err) status = epw_fail_errno(err, where, "starting the fd server's thread");
    }
    if (status != EPW_OK) {
        close_server(s);
        free_server(s);
        return status;
    }
    *out = s;
    return EPW_OK;
}

epw_status epw_fd_server_acquire(epw_where where, epw_nonce *id) {
    epw_status status = epw_process_ready(where);
    if (status != EPW_OK) return status;
    epw_process_lock();
    if (current && !own_server()) {
        free_server(current);
        current = NULL;
    }
    if (!current) status = start(where, &current);
    if (status == EPW_OK) {
        current->uses++;
        *id = current->id;
    }
    epw_process_unlock();
    return status;
}

void epw_fd_server_release(void) {
    epw_process_lock();
    server *s = current;
    bool last = --s->uses == 0 && !any_leased(s);
    if (last) {
        current = NULL;
        s->stop = true;
        eventfd_write(s->wake, 1);
    }
    epw_process_unlock();
    if (!last) return;
    pthread_join(s->thread, NULL);
    epw_process_lock();
    close_server(s);
    epw_process_unlock();
    free_server(s);
}

void epw_fd_server_forget(const epw_offer *offer) {
    server *s = own_server();
    if (!s || epw_offer_outlives_leases(offer)) return;
    for (size_t i = 0; i < s->count; i++)
        if (s->connections[i].offer == offer) end_lease(&s->connections[i]);
    eventfd_write(s->wake, 1);
}

void epw_fd_server_reap(void) {
    server *s = own_server();
    if (s) reap(s);
}
