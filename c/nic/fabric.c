/* See fabric.h.
 *
 *     dialer                                  listener
 *       | -- connect -------------------------> |   both check the other's user
 *       | -- hello: names of both, ranks -----> |
 *       | <-- welcome, or why not ------------- |
 *       | == frames, both ways ================ |
 *
 * Who wants a connection takes one that stands, whoever has dialed it; two that dial each other at a time
 * have two. */
#include "nic/fabric.h"

#include "base/clock.h"
#include "base/little_endian.h"
#include "base/thread.h"
#include "ipc/fd_message.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define HELLO_MAGIC UINT32_C(0x48575045) /* "EPWH" */

/* A dialer has said hello when it is accepted, or is no dialer. */
#define HELLO_WITHIN_NS UINT64_C(1000000000)

typedef struct hello {
    uint32_t magic;
    uint32_t rank, wanted; /* the dialer's, and the listener's */
    uint32_t reserved;
    epw_nonce from, to; /* names of both fabrics */
} hello;

enum { WELCOME = 1, NO_SUCH_RANK = 2 };

/* A connection that stands, or stood. */
typedef struct known {
    epw_nonce name;
    uint32_t peer;
    uint64_t link;
} known;

struct epw_fabric {
    uint32_t rank;
    uint32_t generation; /* of the process that made it */
    epw_nic *nic;
    epw_nonce name;
    epw_identity self;
    int listener, wake;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* of what is known */
    known *links;
    uint32_t link_count, link_capacity;
};

epw_nic *epw_fabric_nic(const epw_fabric *fabric) {
    return fabric->nic;
}

bool epw_fabric_inherited(const epw_fabric *fabric) {
    return fabric->generation != epw_process_generation();
}

/* ---- addresses ---- */

epw_fabric_address epw_fabric_address_of(const epw_fabric *fabric) {
    return (epw_fabric_address){.boot_id = fabric->self.boot_id,
                                .network_namespace = fabric->self.network_namespace,
                                .name = fabric->name};
}

void epw_fabric_address_write(const epw_fabric_address *address, unsigned char *bytes) {
    memcpy(bytes, address->boot_id.bytes, 16);
    epw_put_little(bytes + 16, address->network_namespace, 8);
    memcpy(bytes + 24, address->name.bytes, 16);
}

void epw_fabric_address_read(const unsigned char *bytes, epw_fabric_address *out) {
    memcpy(out->boot_id.bytes, bytes, 16);
    out->network_namespace = epw_take_little(bytes + 16, 8);
    memcpy(out->name.bytes, bytes + 24, 16);
}

bool epw_fabric_reaches(const epw_fabric *fabric, const epw_fabric_address *address) {
    return epw_nonce_equal(&fabric->self.boot_id, &address->boot_id) &&
           fabric->self.network_namespace == address->network_namespace;
}

/* ---- what is known: locked ---- */

static bool find(epw_fabric *fabric, uint32_t peer, const epw_nonce *name, uint64_t *link) {
    for (uint32_t i = 0; i < fabric->link_count;) {
        known *k = &fabric->links[i];
        if (!epw_nic_link_alive(fabric->nic, k->link)) {
            *k = fabric->links[--fabric->link_count];
            continue;
        }
        if (k->peer == peer && epw_nonce_equal(&k->name, name)) {
            *link = k->link;
            return true;
        }
        i++;
    }
    return false;
}

/* Takes the connection; owns fd from here on. */
static epw_status enter(epw_fabric *fabric, int fd, uint32_t peer, const epw_nonce *name, epw_where where,
                        uint64_t *link) {
    if (fabric->link_count == fabric->link_capacity) {
        uint32_t capacity = fabric->link_capacity == 0 ? 16 : 2 * fabric->link_capacity;
        known *links = realloc(fabric->links, capacity * sizeof *links);
        if (links == NULL) {
            close(fd);
            return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a connection");
        }
        fabric->links = links;
        fabric->link_capacity = capacity;
    }
    epw_status status = epw_nic_add_link(fabric->nic, fd, peer, where, link);
    if (status == EPW_OK) fabric->links[fabric->link_count++] = (known){*name, peer, *link};
    return status;
}

/* ---- one connection ---- */

static bool is_of_this_user(int fd) {
    struct ucred other;
    socklen_t length = sizeof other;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 && other.uid == geteuid();
}

/* All of it, by `until`; else 0 if the time is over or the other end is gone. */
static bool transfer(int fd, bool sends, void *bytes, size_t length, uint64_t until, bool *late) {
    unsigned char *at = bytes;
    *late = false;
    while (length > 0) {
        ssize_t n =
            sends ? send(fd, at, length, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, length, MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            length -= (size_t)n;
            continue;
        }
        if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return false;
        uint64_t now = epw_now_ns();
        *late = now >= until;
        if (*late) return false;
        struct pollfd wait = {.fd = fd, .events = sends ? POLLOUT : POLLIN};
        uint64_t ms = (until - now) / 1000000 + 1;
        poll(&wait, 1, ms < 1000 ? (int)ms : 1000);
    }
    return true;
}

static void greet(epw_fabric *fabric, int fd) {
    hello h;
    bool late;
    epw_where where = {"connect", (int)fabric->rank, -1};
    bool came =
        is_of_this_user(fd) && transfer(fd, false, &h, sizeof h, epw_now_ns() + HELLO_WITHIN_NS, &late);
    if (!came || h.magic != HELLO_MAGIC || !epw_nonce_equal(&h.to, &fabric->name)) {
        close(fd);
        return;
    }
    unsigned char answer = h.wanted == fabric->rank ? WELCOME : NO_SUCH_RANK;
    /* An empty buffer takes one byte. */
    if (!transfer(fd, true, &answer, 1, epw_now_ns(), &late) || answer != WELCOME) {
        close(fd);
        return;
    }
    uint64_t link;
    pthread_mutex_lock(&fabric->lock);
    enter(fabric, fd, h.rank, &h.from, where, &link);
    pthread_mutex_unlock(&fabric->lock);
}

static void *listen_main(void *argument) {
    epw_fabric *fabric = argument;
    struct pollfd polls[2] = {{.fd = fabric->listener, .events = POLLIN},
                              {.fd = fabric->wake, .events = POLLIN}};
    for (;;) {
        poll(polls, 2, -1);
        if (polls[1].revents != 0) return NULL;
        int fd = accept4(fabric->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            greet(fabric, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            poll(&polls[1], 1, 10); /* rest, instead of spinning on what stays readable */
        }
    }
}

static epw_status dial(epw_fabric *fabric, uint32_t peer, const epw_fabric_address *address, uint64_t until,
                       uint64_t deadline_ns, epw_where where, int *out) {
    struct sockaddr_un to;
    socklen_t length = epw_fd_address(&address->name, &to);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return epw_fail_errno(errno, where, "socket(AF_UNIX)");
    int err = 0;
    while (connect(fd, (struct sockaddr *)&to, length) != 0) {
        err = errno;
        bool busy = err == EAGAIN || err == EINTR;
        if (!busy || epw_now_ns() >= until) break;
        poll(NULL, 0, 1);
        err = 0;
    }
    hello h = {.magic = HELLO_MAGIC,
               .rank = fabric->rank,
               .wanted = peer,
               .from = fabric->name,
               .to = address->name};
    unsigned char answer = 0;
    bool late = err == EAGAIN;
    bool good = err == 0 && is_of_this_user(fd) && transfer(fd, true, &h, sizeof h, until, &late) &&
                transfer(fd, false, &answer, 1, until, &late);
    if (good && answer == WELCOME) {
        *out = fd;
        return EPW_OK;
    }
    close(fd);
    if (good) return epw_fail(EPW_ERR_PEER, where, "the fabric found there is not that of rank %u", peer);
    if (late)
        return epw_fail(EPW_ERR_TIMEOUT, where, "the peer's fabric has not answered within %llu ms",
                        (unsigned long long)(deadline_ns / 1000000u));
    return epw_fail(EPW_ERR_PEER, where,
                    "the peer's fabric is gone: its process has ended or has destroyed it");
}

epw_status epw_fabric_link(epw_fabric *fabric, uint32_t peer, const epw_fabric_address *address,
                           uint64_t deadline_ns, epw_where where, uint64_t *link) {
    uint64_t now = epw_now_ns(), until = deadline_ns < UINT64_MAX - now ? now + deadline_ns : UINT64_MAX;
    pthread_mutex_lock(&fabric->lock);
    bool found = find(fabric, peer, &address->name, link);
    pthread_mutex_unlock(&fabric->lock);
    if (found) return EPW_OK;
    int fd = -1;
    epw_status status = dial(fabric, peer, address, until, deadline_ns, where, &fd);
    if (status != EPW_OK) return status;
    pthread_mutex_lock(&fabric->lock);
    status = enter(fabric, fd, peer, &address->name, where, link);
    pthread_mutex_unlock(&fabric->lock);
    return status;
}

/* ---- life ---- */

static epw_status open_listener(epw_fabric *fabric, epw_where where) {
    fabric->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    fabric->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fabric->listener < 0 || fabric->wake < 0) return epw_fail_errno(errno, where, "socket(AF_UNIX)");
    struct sockaddr_un address;
    socklen_t length = epw_fd_address(&fabric->name, &address);
    if (bind(fabric->listener, (struct sockaddr *)&address, length) || listen(fabric->listener, SOMAXCONN))
        return epw_fail_errno(errno, where, "listening on the abstract socket %s", address.sun_path + 1);
    int err = epw_thread_start(listen_main, fabric, &fabric->thread);
    if (err != 0) return epw_fail_errno(err, where, "cannot start the thread that accepts connections");
    fabric->started = true;
    return EPW_OK;
}

epw_status epw_fabric_create(const epw_fabric_options *options, epw_fabric **out) {
    epw_where where = {"fabric", -1, -1};
    if (out == NULL || options == NULL)
        return epw_fail(EPW_ERR_INVALID, where, "%s is NULL", out == NULL ? "out" : "options");
    if (options->size != sizeof *options)
        return epw_fail(EPW_ERR_INVALID, where,
                        "options.size is %u, this library's is %zu: use EPW_FABRIC_OPTIONS_INIT",
                        options->size, sizeof *options);
    if (options->rank >= EPW_MAX_RANKS)
        return epw_fail(EPW_ERR_INVALID, where, "options.rank is %u, must be below %u", options->rank,
                        EPW_MAX_RANKS);
    where.rank = (int)options->rank;
    epw_fabric *fabric = calloc(1, sizeof *fabric);
    if (fabric == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a fabric");
    fabric->rank = options->rank;
    fabric->listener = fabric->wake = -1;
    pthread_mutex_init(&fabric->lock, NULL);
    epw_status status = epw_process_ready(where);
    fabric->generation = epw_process_generation();
    if (status == EPW_OK) status = epw_identity_get(where, &fabric->self);
    if (status == EPW_OK) status = epw_nonce_make(where, &fabric->name);
    if (status == EPW_OK) status = epw_nic_open(where, &fabric->nic);
    if (status == EPW_OK) status = open_listener(fabric, where);
    if (status != EPW_OK) {
        epw_fabric_destroy(fabric);
        return status;
    }
    *out = fabric;
    return EPW_OK;
}

void epw_fabric_destroy(epw_fabric *fabric) {
    if (fabric == NULL || epw_fabric_inherited(fabric)) return;
    if (fabric->started) {
        uint64_t one = 1;
        while (write(fabric->wake, &one, sizeof one) < 0 && errno == EINTR) {
        }
        pthread_join(fabric->thread, NULL);
    }
    if (fabric->listener >= 0) close(fabric->listener);
    if (fabric->wake >= 0) close(fabric->wake);
    epw_nic_close(fabric->nic);
    pthread_mutex_destroy(&fabric->lock);
    free(fabric->links);
    free(fabric);
}
