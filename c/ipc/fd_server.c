/* See fd_server.h and fd_message.h. */
#include "ipc/fd_server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "ipc/fd_connection.h"
#include "ipc/fd_message.h"

#define ACCEPT_PAUSE_NS  100000000u /* pause after running out of descriptors */
#define ACCEPTED_AT_ONCE 16

/* Guarded by the process lock. Only the thread adds and closes connections, so that its indices stay valid
 * while it waits without the lock. */
typedef struct server {
    epw_nonce id;
    uint32_t generation;
    uint32_t uses;
    bool stop;
    int listener;
    int wake;  /* eventfd: something changed for the thread */
    int spare; /* a descriptor kept in reserve for when none is left; -1: it is gone too */
    uint64_t accept_after_ns;
    epw_connection *connections;
    struct pollfd *polls; /* [2 + capacity]: wake, listener, connections; used by the thread only */
    size_t count, capacity;
    pthread_t thread;
} server;

static server *current; /* guarded by the process lock */

/* This process's server, NULL if there is none. A forked child has a copy of its parent's, whose descriptor
 * numbers may refer to other files here. Called with the lock held. */
static server *own_server(void) {
    return current && current->generation == epw_process_generation() ? current : NULL;
}

/* ---- accepting ---- */

static bool grow(server *s) {
    if (s->count < s->capacity) return true;
    size_t capacity = 2 * s->capacity;
    struct pollfd *polls = realloc(s->polls, (2 + capacity) * sizeof *polls);
    if (polls != NULL) s->polls = polls;
    epw_connection *connections = realloc(s->connections, capacity * sizeof *connections);
    if (connections != NULL) s->connections = connections;
    if (polls == NULL || connections == NULL) return false;
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

/* Accepts a connection with the spare descriptor, only to say that there is no other. */
static bool refuse_one(server *s) {
    if (s->spare < 0) s->spare = take_spare(s);
    if (s->spare < 0) return false;
    epw_fd_close(s->spare);
    int fd = accept_next(s);
    if (fd >= 0) {
        if (epw_connection_same_user(fd)) epw_connection_refuse(fd);
        close(fd);
    }
    s->spare = take_spare(s); /* -1 if another thread was faster: retried next time */
    return fd >= 0;
}

/* If the maximum number of connections have sent no request, closes the one that has been silent longest:
 * connections are in order of arrival. One that has sent its request is answered in the next round. */
static void make_room(server *s) {
    size_t pending = 0;
    for (size_t i = 0; i < s->count; i++) pending += epw_connection_pending(&s->connections[i]);
    for (size_t i = 0; i < s->count && pending >= EPW_FD_MAX_PENDING; i++) {
        epw_connection *c = &s->connections[i];
        if (!epw_connection_pending(c) || !epw_connection_silent(c)) continue;
        c->over = true;
        return;
    }
}

/* Accepts one connection; false if there is none to accept now. */
static bool accept_one(server *s, uint64_t now) {
    int fd = accept_next(s);
    if (fd < 0) {
        int err = errno;
        if (epw_out_of_descriptors(err) && refuse_one(s)) return true;
        /* Without descriptors or memory the listener stays readable: pause instead of spinning on it. */
        bool exhausted = epw_out_of_descriptors(err) || err == ENOBUFS || err == ENOMEM;
        if (exhausted) s->accept_after_ns = now + ACCEPT_PAUSE_NS;
        return false;
    }
    if (!epw_connection_same_user(fd) || !grow(s) || !epw_fd_keep_from_child(fd)) {
        close(fd);
        return true;
    }
    make_room(s);
    s->connections[s->count++] =
        (epw_connection){.fd = fd, .death = -1, .request_by_ns = now + EPW_FD_REQUEST_NS};
    return true;
}

/* ---- the thread ---- */

static bool any_leased(const server *s) {
    for (size_t i = 0; i < s->count; i++)
        if (s->connections[i].offer || s->connections[i].ended) return true;
    return false;
}

static void *drop_offer(void *offer) {
    epw_offer_unref(offer);
    return NULL;
}

/* Drops the references of ended leases. The last reference of an offer destroys memory, which may wait for
 * running GPU work: so each drop runs on a thread of its own, if one can be started, without the lock. */
static void drop_ended(server *s) {
    for (size_t i = 0; i < s->count; i++) {
        epw_offer *offer = s->connections[i].ended;
        pthread_t thread;
        if (offer == NULL) continue;
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
        epw_connection *c = &s->connections[i];
        bool over = c->over ? !c->ended : c->offer == NULL && now >= c->request_by_ns;
        if (over) {
            epw_connection_close(c);
        } else {
            s->connections[kept++] = *c;
        }
    }
    s->count = kept;
}

/* Fills s->polls and returns the timeout for poll, in milliseconds. */
static int prepare_wait(server *s, uint64_t now) {
    uint64_t until = UINT64_MAX;
    for (size_t i = 0; i < s->count; i++) {
        const epw_connection *c = &s->connections[i];
        /* The end of a lease is always seen, because POLLHUP is always reported. */
        s->polls[2 + i] =
            (struct pollfd){.fd = c->closed ? c->death : c->fd, .events = c->deaf && !c->closed ? 0 : POLLIN};
        if (c->offer == NULL && c->request_by_ns < until) until = c->request_by_ns;
    }
    bool accepting = now >= s->accept_after_ns;
    if (now < s->accept_after_ns && s->accept_after_ns < until) until = s->accept_after_ns;
    s->polls[0] = (struct pollfd){.fd = s->wake, .events = POLLIN};
    s->polls[1] = (struct pollfd){.fd = accepting ? s->listener : -1, .events = POLLIN};
    return until == UINT64_MAX ? -1 : (int)((until - now) / 1000000u + 1);
}

static void handle_events(server *s, size_t polled, uint64_t now) {
    eventfd_t ignored;
    if (s->polls[0].revents) eventfd_read(s->wake, &ignored);
    for (size_t i = 0; i < polled; i++) {
        epw_connection *c = &s->connections[i];
        if (c->offer && s->polls[2 + i].revents) epw_connection_hear(c);
    }
    for (size_t i = 0; i < polled; i++) {
        epw_connection *c = &s->connections[i];
        if (epw_connection_pending(c) && s->polls[2 + i].revents)
            epw_connection_serve(c, s->connections, s->count);
    }
    for (int i = 0; s->polls[1].revents && i < ACCEPTED_AT_ONCE && accept_one(s, now); i++) continue;
}

/* ---- life ---- */

/* Called with the lock held. No lease is left: windows have ended theirs, and leases that outlive their
 * window keep the server running. */
static void close_server(server *s) {
    for (size_t i = 0; i < s->count; i++) epw_connection_close(&s->connections[i]);
    if (s->listener >= 0) epw_fd_close(s->listener);
    if (s->wake >= 0) epw_fd_close(s->wake);
    if (s->spare >= 0) epw_fd_close(s->spare);
}

static void free_server(server *s) {
    free(s->connections);
    free(s->polls);
    free(s);
}

/* Ends when epw_fd_server_release says so, or by itself after the last lease if leases have outlived every
 * window. */
static void *run(void *argument) {
    server *s = argument;
    epw_thread_name("epw-fd-server");
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
    bool alone = !s->stop; /* no thread joins it */
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

/* Creates and starts a server. Called with the lock held. */
static epw_status start(epw_where where, server **out) {
    enum { FIRST_CAPACITY = 16 };
    server *s = calloc(1, sizeof *s);
    if (s == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the fd server");
    s->listener = s->wake = s->spare = -1;
    s->generation = epw_process_generation();
    s->capacity = FIRST_CAPACITY;
    s->connections = calloc(FIRST_CAPACITY, sizeof *s->connections);
    s->polls = calloc(2 + FIRST_CAPACITY, sizeof *s->polls);
    epw_status status = EPW_OK;
    if (s->connections == NULL || s->polls == NULL)
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
    if (current == NULL) status = start(where, &current);
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
    if (s == NULL || epw_offer_outlives_leases(offer)) return;
    for (size_t i = 0; i < s->count; i++)
        if (s->connections[i].offer == offer) epw_connection_end_lease(&s->connections[i]);
    eventfd_write(s->wake, 1);
}

void epw_fd_server_reap(void) {
    server *s = own_server();
    if (s != NULL) epw_connections_reap(s->connections, s->count);
}
