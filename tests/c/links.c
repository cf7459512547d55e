/* Links between two fabrics of this process, over the loopback interface: dialing, accepting, strangers
 * without the key, and reasons of failures. */
#include "base/clock.h"
#include "check.h"
#include "nic/handshake.h"
#include "nic/interfaces.h"
#include "nic/link.h"
#include "nic/listen.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

static const epw_where here = {"test", -1, -1};

static bool error_has(const char *text) {
    bool found = strstr(epw_last_error(), text) != NULL;
    if (!found) fprintf(stderr, "%s\n", epw_last_error());
    return found;
}

static int open_fds(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) return -1;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* ---- two ends ---- */

static const char *const v4[] = {"127.0.0.1"}, *const v6[] = {"::1"};

static epw_links_options options_of(uint32_t rank) {
    epw_links_options o = {.rank = rank, .wires = EPW_WIRE_TCP, .addresses = v4, .address_count = 1};
    memset(o.key, 0x4b, sizeof o.key);
    memset(o.fabric.bytes, (int)(0x10 + rank), sizeof o.fabric.bytes);
    return o;
}

static epw_links *open_links(const epw_links_options *o) {
    epw_links *links = NULL;
    CHECK_OK(epw_links_open(o, &links));
    return links;
}

/* Dials the listener at `to` as rank `peer`, with its right fabric. */
static epw_status dial(epw_links *from, const epw_links *to, uint32_t peer, uint32_t link,
                       uint64_t within_ns) {
    unsigned char bytes[EPW_ADDRESSES_BYTES];
    uint64_t now = epw_now_ns();
    epw_dial_order o = {.peer = peer, .fabric = options_of(peer).fabric, .link = link, .addresses = bytes};
    o.length = epw_links_addresses(to, bytes);
    o.deadline_ns = now + within_ns;
    return epw_links_dial(from, &o, now);
}

/* Steps both ends, waiting only on their descriptors, until one of them has an event or the time is up. */
typedef struct ends {
    epw_links *links[2];
} ends;

static bool next_event(ends e, uint64_t within_ns, int *end, epw_link_event *event) {
    uint64_t until = epw_now_ns() + within_ns;
    for (;;) {
        uint64_t now = epw_now_ns();
        for (*end = 0; *end < 2; (*end)++)
            if (e.links[*end] && epw_links_poll(e.links[*end], now, event)) return true;
        if (now >= until) return false;
        struct pollfd p[2];
        for (int i = 0; i < 2; i++)
            p[i] = (struct pollfd){.fd = e.links[i] ? epw_links_fd(e.links[i]) : -1, .events = POLLIN};
        poll(p, 2, (int)((until - now) / MS) + 1);
    }
}

static bool exchange(int a, int b) {
    struct pollfd p = {.fd = b, .events = POLLIN};
    char got[5] = {0};
    return send(a, "frame", 5, MSG_NOSIGNAL) == 5 && poll(&p, 1, 1000) == 1 && recv(b, got, 5, 0) == 5 &&
           memcmp(got, "frame", 5) == 0;
}

/* Waits for both events of one link; fds are by end. */
static bool link_up(ends e, uint32_t link, uint64_t within_ns, int fds[2]) {
    fds[0] = fds[1] = -1;
    for (int i = 0; i < 2; i++) {
        int end;
        epw_link_event event;
        if (!next_event(e, within_ns, &end, &event)) return false;
        CHECK_MSG(event.kind == EPW_LINK_UP, "%s", event.reason);
        if (event.kind != EPW_LINK_UP) return false;
        CHECK(event.dialed == (end == 0) && event.link == link && fds[end] == -1);
        CHECK(event.peer == (end == 0 ? 1u : 0u));
        epw_nonce fabric = options_of(event.peer).fabric;
        CHECK(epw_nonce_equal(&event.fabric, &fabric));
        fds[end] = event.fd;
    }
    return true;
}

static void no_more_events(ends e, uint64_t within_ns) {
    int end;
    epw_link_event event;
    CHECK(!next_event(e, within_ns, &end, &event));
}

/* Waits for the only event: the failure of end 0's dial. */
static epw_link_event failure(ends e, uint64_t within_ns) {
    int end = -1;
    epw_link_event event = {.kind = EPW_LINK_UP, .fd = -1};
    CHECK(next_event(e, within_ns, &end, &event));
    CHECK(end == 0 && event.kind == EPW_LINK_FAILED && event.dialed && event.fd == -1 && event.peer == 1);
    return event;
}

static bool says(const epw_link_event *event, const char *text) {
    bool found = strstr(event->reason, text) != NULL;
    if (!found) fprintf(stderr, "%s\n", event->reason);
    return found;
}

static ends open_ends(void) {
    epw_links_options a = options_of(0), b = options_of(1);
    return (ends){{open_links(&a), open_links(&b)}};
}

static void close_ends(ends e) {
    epw_links_close(e.links[0]);
    epw_links_close(e.links[1]);
}

/* ---- links ---- */

static void links_come_up_over(const char *const *addresses) {
    epw_links_options a = options_of(0), b = options_of(1);
    a.addresses = b.addresses = addresses;
    int before = open_fds();
    ends e = {{open_links(&a), open_links(&b)}};
    for (uint32_t link = 0; link < 3; link++) {
        int fds[2], value = 0;
        CHECK_OK(dial(e.links[0], e.links[1], 1, link, 20000 * MS));
        if (!link_up(e, link, 20000 * MS, fds)) continue;
        CHECK(exchange(fds[0], fds[1]) && exchange(fds[1], fds[0]));
        for (int i = 0; i < 2; i++) {
            socklen_t length = sizeof value;
            CHECK(!getsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &value, &length) && value != 0);
            CHECK((fcntl(fds[i], F_GETFD) & FD_CLOEXEC) && (fcntl(fds[i], F_GETFL) & O_NONBLOCK));
            epw_fd_release(fds[i]);
        }
    }
    no_more_events(e, 0);
    close_ends(e);
    CHECK(open_fds() == before);
}

static bool have_ipv6(void) {
    epw_address address;
    int fd = -1;
    if (epw_address_read("::1", here, &address) != EPW_OK) return false;
    if (epw_listen(&address, 0, 0, here, &fd, NULL) != EPW_OK) return false;
    epw_fd_release(fd);
    return true;
}

/* Bytes that follow the handshake are left for the caller; many links at a time. */
static void many_links_come_up_together(void) {
    enum { LINKS = 40 };
    ends e = open_ends();
    int fds[2][LINKS], got = 0;
    memset(fds, -1, sizeof fds);
    for (uint32_t i = 0; i < LINKS; i++) CHECK_OK(dial(e.links[0], e.links[1], 1, i, 20000 * MS));
    while (got < 2 * LINKS) {
        int end;
        epw_link_event event;
        if (!next_event(e, 20000 * MS, &end, &event)) break;
        CHECK_MSG(event.kind == EPW_LINK_UP && event.link < LINKS, "%s", event.reason);
        if (event.kind != EPW_LINK_UP) break;
        CHECK(fds[end][event.link] == -1);
        fds[end][event.link] = event.fd;
        if (end == 0)
            CHECK(send(event.fd, &event.link, sizeof event.link, MSG_NOSIGNAL) == sizeof event.link);
        got++;
    }
    CHECK(got == 2 * LINKS);
    for (uint32_t i = 0; i < LINKS; i++) {
        uint32_t number = UINT32_MAX;
        struct pollfd p = {.fd = fds[1][i], .events = POLLIN};
        CHECK(poll(&p, 1, 1000) == 1 && recv(fds[1][i], &number, sizeof number, 0) == sizeof number &&
              number == i);
        if (fds[0][i] >= 0) epw_fd_release(fds[0][i]);
        if (fds[1][i] >= 0) epw_fd_release(fds[1][i]);
    }
    close_ends(e);
}

/* Links that are being made, and links that nobody has taken. */
static void closing_ends_everything(void) {
    int before = open_fds();
    for (int rounds = 0; rounds < 6; rounds++) {
        ends e = open_ends();
        for (uint32_t i = 0; i < 5; i++) CHECK_OK(dial(e.links[0], e.links[1], 1, i, 20000 * MS));
        for (int i = 0; i < rounds; i++) {
            epw_link_event event;
            for (int end = 0; end < 2; end++)
                if (epw_links_poll(e.links[end], epw_now_ns(), &event)) epw_fd_release(event.fd);
        }
        close_ends(e);
    }
    CHECK(open_fds() == before);
    epw_links_close(NULL);
}

/* A forked child must not keep an end open: the peer would not notice the parent's death. */
static void forked_children_have_no_links(void) {
    ends e = open_ends();
    int fds[2] = {-1, -1}, hold[2];
    CHECK_OK(dial(e.links[0], e.links[1], 1, 4, 20000 * MS));
    CHECK(link_up(e, 4, 20000 * MS, fds) && pipe2(hold, O_CLOEXEC) == 0);
    CHECK_OK(dial(e.links[0], e.links[1], 1, 5, 20000 * MS));
    pid_t child = fork();
    if (child == 0) {
        epw_link_event event;
        bool right = dial(e.links[0], e.links[1], 1, 6, MS) == EPW_ERR_STATE &&
                     !epw_links_poll(e.links[0], epw_now_ns(), &event);
        close_ends(e);
        char byte;
        close(hold[1]);
        right = right && read(hold[0], &byte, 1) == 0;
        _exit(right ? 0 : 1);
    }
    epw_fd_release(fds[0]);
    struct pollfd p = {.fd = fds[1], .events = POLLIN};
    char byte;
    CHECK(poll(&p, 1, 1000) == 1 && recv(fds[1], &byte, 1, 0) == 0);
    epw_fd_release(fds[1]);
    CHECK(link_up(e, 5, 20000 * MS, fds)); /* the parent's own links still work */
    epw_fd_release(fds[0]);
    epw_fd_release(fds[1]);
    close(hold[0]);
    close(hold[1]);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close_ends(e);
}

/* ---- refusals ---- */

static void another_key_is_refused(void) {
    for (int side = 0; side < 2; side++) {
        epw_links_options o[2] = {options_of(0), options_of(1)};
        o[side].key[7] ^= 1;
        ends e = {{open_links(&o[0]), open_links(&o[1])}};
        CHECK_OK(dial(e.links[0], e.links[1], 1, 0, 20000 * MS));
        epw_link_event event = failure(e, 20000 * MS);
        CHECK(event.status == EPW_ERR_PEER && says(&event, "127.0.0.1:") && says(&event, "the same token"));
        no_more_events(e, 20 * MS);
        /* The dialer learns only that the listener has hung up, as a busy one may. */
        CHECK(epw_links_refused(e.links[1]).refused[EPW_AUTH_BAD_PROOF] == 3);
        close_ends(e);
    }
}

static void who_is_not_meant_refuses(void) {
    for (int i = 0; i < 2; i++) {
        epw_links_options a = options_of(0), b = options_of(1);
        if (i == 0)
            b.fabric.bytes[3] ^=
                1; /* since its address was published, the rank has been replaced by another incarnation */
        if (i == 1) b.rank = 2;
        ends e = {{open_links(&a), open_links(&b)}};
        CHECK_OK(dial(e.links[0], e.links[1], 1, 0, 20000 * MS));
        epw_link_event event = failure(e, 20000 * MS);
        CHECK(event.status == EPW_ERR_PEER);
        CHECK(says(&event, i == 0 ? "not this fabric: the listener is another incarnation"
                                  : "wrong rank: the listener is not rank 1"));
        no_more_events(e, 20 * MS);
        epw_links_refusals refused = epw_links_refused(e.links[1]);
        CHECK(refused.refused[i == 0 ? EPW_AUTH_OTHER_FABRIC : EPW_AUTH_WRONG_RANK] == 1);
        close_ends(e);
    }
}

static int connect_raw(const epw_links *to) {
    unsigned char bytes[EPW_ADDRESSES_BYTES];
    epw_addresses addresses;
    struct sockaddr_storage name;
    CHECK_OK(epw_addresses_parse(bytes, epw_links_addresses(to, bytes), here, &addresses));
    socklen_t length = epw_address_to_socket(&addresses.list[0], &name);
    int fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&name, length));
    return fd;
}

static void silent_connections_hold_nothing_up(void) {
    enum { SILENT = 100 };
    ends e = open_ends();
    int silent[SILENT], fds[2];
    for (int i = 0; i < SILENT; i++) silent[i] = connect_raw(e.links[1]);
    uint64_t begin = epw_now_ns();
    CHECK_OK(dial(e.links[0], e.links[1], 1, 0, 20000 * MS));
    CHECK(link_up(e, 0, 20000 * MS, fds) && epw_now_ns() - begin < 4000 * MS);
    epw_links_refusals refused = epw_links_refused(e.links[1]);
    CHECK(refused.crowded_out == SILENT + 1 - EPW_LINKS_STRANGERS && refused.late == 0);
    /* The oldest connections have been closed, the newest have not. */
    struct pollfd first = {.fd = silent[0], .events = POLLIN},
                  last = {.fd = silent[SILENT - 1], .events = POLLIN};
    CHECK(poll(&first, 1, 1000) == 1 && poll(&last, 1, 0) == 0);
    for (int i = 0; i < SILENT; i++) close(silent[i]);
    epw_fd_release(fds[0]);
    epw_fd_release(fds[1]);
    close_ends(e);
}

/* Waits for both events of this many links. */
static void all_come_up(ends e, int count) {
    int end, got = 0;
    for (epw_link_event event; got < 2 * count; got++) {
        if (!next_event(e, 20000 * MS, &end, &event)) break;
        CHECK_MSG(event.kind == EPW_LINK_UP, "%s", event.reason);
        if (event.kind == EPW_LINK_UP) epw_fd_release(event.fd);
    }
    CHECK_MSG(got == 2 * count, "%d events of %d links", got, count);
}

/* More dialers than a listener keeps: none loses its place before it can speak. */
static void dialers_leave_each_other_time(void) {
    enum { DIALERS = 3 * EPW_LINKS_STRANGERS };
    ends e = open_ends();
    for (uint32_t i = 0; i < DIALERS; i++) CHECK_OK(dial(e.links[0], e.links[1], 1, i, 60000 * MS));
    uint64_t now = epw_now_ns();
    epw_link_event event;
    for (int round = 0; round < 50; round++) CHECK(!epw_links_poll(e.links[1], now, &event));
    struct pollfd idle = {.fd = epw_links_fd(e.links[1]), .events = POLLIN};
    CHECK(epw_links_refused(e.links[1]).crowded_out == 0);
    CHECK(poll(&idle, 1, 0) == 0 || epw_now_ns() - now >= EPW_LINKS_GRACE_NS); /* it does not spin */
    all_come_up(e, DIALERS);
    close_ends(e);
}

/* More dialers than a listener keeps, all of them slow: whom it hangs up on dials again. */
static void who_is_crowded_out_comes_again(void) {
    enum { DIALERS = 3 * EPW_LINKS_STRANGERS };
    ends e = open_ends();
    for (uint32_t i = 0; i < DIALERS; i++) CHECK_OK(dial(e.links[0], e.links[1], 1, i, 60000 * MS));
    uint64_t now = epw_now_ns();
    for (epw_link_event event; epw_links_refused(e.links[1]).crowded_out < EPW_LINKS_STRANGERS;) {
        struct pollfd p = {.fd = epw_links_fd(e.links[1]), .events = POLLIN};
        CHECK(poll(&p, 1, 5000) == 1);
        if (p.revents == 0) break;
        CHECK(!epw_links_poll(e.links[1], epw_now_ns(), &event));
    }
    CHECK(epw_now_ns() - now < 4000 * MS);
    all_come_up(e, DIALERS);
    close_ends(e);
}

/* The queue of a listener within the host is full for a while. */
static void who_finds_a_full_queue_comes_again(void) {
    epw_links_options a = options_of(0), b = options_of(1);
    a.wires = b.wires = EPW_WIRE_LOCAL;
    CHECK_OK(epw_nonce_make(here, &a.fabric));
    CHECK_OK(epw_nonce_make(here, &b.fabric));
    epw_address name = epw_address_local(&b.fabric);
    struct sockaddr_storage to;
    socklen_t length = epw_address_to_socket(&name, &to);
    int full = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), filler[2];
    CHECK(!bind(full, (struct sockaddr *)&to, length) && !listen(full, 0));
    for (int i = 0; i < 2; i++) {
        filler[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int err = connect(filler[i], (struct sockaddr *)&to, length) != 0 ? errno : 0;
        CHECK(err == (i == 0 ? 0 : EAGAIN));
    }
    ends e = {{open_links(&a), NULL}};
    epw_dial_order order = {.peer = 1, .fabric = b.fabric, .link = 5};
    order.deadline_ns = epw_now_ns() + 20000 * MS;
    CHECK_OK(epw_links_dial(e.links[0], &order, epw_now_ns()));
    no_more_events(e, 100 * MS);
    close(full);
    e.links[1] = open_links(&b);
    all_come_up(e, 1);
    for (int i = 0; i < 2; i++) close(filler[i]);
    /* To the end of the deadline. */
    epw_links_close(e.links[1]);
    e.links[1] = NULL;
    full = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    filler[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(!bind(full, (struct sockaddr *)&to, length) && !listen(full, 0));
    CHECK(!connect(filler[0], (struct sockaddr *)&to, length));
    order.deadline_ns = epw_now_ns() + 100 * MS;
    CHECK_OK(epw_links_dial(e.links[0], &order, epw_now_ns()));
    epw_link_event event = failure(e, 20000 * MS);
    CHECK(event.status == EPW_ERR_TIMEOUT && says(&event, "temporarily unavailable"));
    close(filler[0]);
    close(full);
    close_ends(e);
}

static void silence_has_its_time(void) {
    epw_links_options o = options_of(1);
    o.handshake_ns = longer * 200 * MS;
    ends e = {{NULL, open_links(&o)}};
    int fd = connect_raw(e.links[1]);
    uint64_t begin = epw_now_ns();
    no_more_events(e, longer * 100 * MS);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK(poll(&p, 1, 0) == 0);
    while (poll(&p, 1, 0) == 0 && epw_now_ns() - begin < longer * 2000 * MS)
        no_more_events(e, longer * 20 * MS);
    uint64_t took = epw_now_ns() - begin;
    CHECK_MSG(took >= longer * 199 * MS && took < longer * 1000 * MS, "after %u ms", (unsigned)(took / MS));
    CHECK(epw_links_refused(e.links[1]).late == 1);
    close(fd);
    close_ends(e);
}

/* Whether end 1 refuses something for this reason, within 10 s. */
static bool is_refused(ends e, epw_auth_reason reason) {
    for (uint64_t begin = epw_now_ns(); epw_now_ns() - begin < 10000 * MS;) {
        no_more_events(e, MS);
        if (epw_links_refused(e.links[1]).refused[reason] > 0) break;
    }
    return epw_links_refused(e.links[1]).refused[reason] == 1;
}

static void garbage_is_refused(void) {
    ends e = open_ends();
    char garbage[4096];
    memset(garbage, 'x', sizeof garbage);
    int fd = connect_raw(e.links[1]);
    CHECK(send(fd, garbage, sizeof garbage, MSG_NOSIGNAL) == sizeof garbage);
    CHECK(is_refused(e, EPW_AUTH_BAD_MAGIC));
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK(poll(&p, 1, 10000) == 1);
    CHECK(recv(fd, garbage, sizeof garbage, 0) <= 0); /* closed without an answer */
    close(fd);
    fd = connect_raw(e.links[1]);
    close(fd);
    CHECK(is_refused(e, EPW_AUTH_CUT_OFF));
    close_ends(e);
}

/* A listener that runs out of descriptors pauses, instead of spinning, and continues when there are some. */
static void a_listener_without_descriptors_goes_on_later(void) {
    ends e = open_ends();
    int fds[2], raw = connect_raw(e.links[1]), probe = dup(raw);
    struct rlimit before, limit;
    getrlimit(RLIMIT_NOFILE, &before);
    limit = before;
    limit.rlim_cur = (rlim_t)probe; /* the next descriptor would have this number */
    close(probe);
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    uint64_t begin = epw_now_ns();
    int rounds = 0;
    for (epw_link_event event; epw_now_ns() - begin < 150 * MS; rounds++) {
        struct pollfd p = {.fd = epw_links_fd(e.links[1]), .events = POLLIN};
        poll(&p, 1, 20);
        CHECK(!epw_links_poll(e.links[1], epw_now_ns(), &event));
    }
    CHECK_MSG(rounds < 60, "%d rounds", rounds);
    /* A dial from here says that descriptors are lacking. */
    CHECK_OK(dial(e.links[0], e.links[1], 1, 0, 20000 * MS));
    epw_link_event event = failure(e, 20000 * MS);
    CHECK(says(&event, "Too many open files"));
    setrlimit(RLIMIT_NOFILE, &before);
    CHECK_OK(dial(e.links[0], e.links[1], 1, 1, 20000 * MS));
    CHECK(link_up(e, 1, 20000 * MS, fds));
    epw_fd_release(fds[0]);
    epw_fd_release(fds[1]);
    close(raw);
    close_ends(e);
}

/* ---- dials that fail, at first or finally ---- */

/* A port on which nobody listens, because it was just closed. */
static uint16_t closed_port(void) {
    epw_address address;
    int fd = -1;
    CHECK_OK(epw_address_read("127.0.0.1", here, &address));
    CHECK_OK(epw_listen(&address, 0, 0, here, &fd, NULL));
    epw_fd_release(fd);
    return address.port;
}

static epw_address loopback(uint16_t port) {
    epw_address address;
    CHECK_OK(epw_address_read("127.0.0.1", here, &address));
    address.port = port;
    return address;
}

static epw_status dial_at(epw_links *from, const epw_addresses *to, uint64_t within_ns) {
    unsigned char bytes[EPW_ADDRESSES_BYTES];
    uint64_t now = epw_now_ns();
    epw_dial_order o = {.peer = 1, .fabric = options_of(1).fabric, .link = 9, .addresses = bytes};
    o.length = epw_addresses_write(to, bytes);
    o.deadline_ns = now + within_ns;
    return epw_links_dial(from, &o, now);
}

static uint16_t port_of(const epw_links *links) {
    unsigned char bytes[EPW_ADDRESSES_BYTES];
    epw_addresses addresses;
    CHECK_OK(epw_addresses_parse(bytes, epw_links_addresses(links, bytes), here, &addresses));
    return addresses.list[0].port;
}

static void a_closed_port_fails_at_once(void) {
    ends e = open_ends();
    epw_addresses to = {.count = 2, .list = {loopback(closed_port()), loopback(closed_port())}};
    uint64_t begin = epw_now_ns();
    CHECK_OK(dial_at(e.links[0], &to, 20000 * MS));
    epw_link_event event = failure(e, 20000 * MS);
    CHECK(epw_now_ns() - begin < 5000 * MS);
    CHECK(event.status == EPW_ERR_PEER && event.link == 9 && says(&event, "Connection refused"));
    char name[EPW_ADDRESS_TEXT];
    for (int i = 0; i < 2; i++) CHECK(says(&event, epw_address_say(&to.list[i], name)));
    close_ends(e);
}

/* By now an address may belong to another host, or to another process. */
static void the_next_address_is_tried(void) {
    ends e = open_ends();
    epw_links_options o = options_of(2);
    epw_links *other = open_links(&o);
    int silent = -1, fds[2];
    epw_address quiet = loopback(0);
    CHECK_OK(epw_listen(&quiet, 0, 0, here, &silent, NULL));
    epw_addresses to = {
        .count = 3,
        .list = {loopback(closed_port()), loopback(port_of(other)), loopback(port_of(e.links[1]))}};
    CHECK_OK(dial_at(e.links[0], &to, 20000 * MS));
    uint64_t begin = epw_now_ns();
    epw_link_event event;
    int end, got = 0;
    while (got < 2 && epw_now_ns() - begin < 15000 * MS) {
        CHECK(!epw_links_poll(other, epw_now_ns(), &event));
        if (!next_event(e, 5 * MS, &end, &event)) continue;
        CHECK_MSG(event.kind == EPW_LINK_UP && event.link == 9, "%s", event.reason);
        if (event.kind == EPW_LINK_UP) epw_fd_release(event.fd);
        got++;
    }
    CHECK(got == 2);

    /* An address that accepts and stays silent uses up only its share of the time. */
    to = (epw_addresses){.count = 2, .list = {quiet, loopback(port_of(e.links[1]))}};
    CHECK_OK(dial_at(e.links[0], &to, longer * 600 * MS));
    CHECK(link_up(e, 9, longer * 600 * MS, fds));
    epw_fd_release(fds[0]);
    epw_fd_release(fds[1]);

    /* Alone, it uses up the deadline. */
    to.count = 1;
    begin = epw_now_ns();
    CHECK_OK(dial_at(e.links[0], &to, longer * 200 * MS));
    event = failure(e, longer * 1000 * MS);
    uint64_t took = epw_now_ns() - begin;
    CHECK_MSG(took >= longer * 199 * MS && took < longer * 700 * MS, "after %u ms", (unsigned)(took / MS));
    CHECK(event.status == EPW_ERR_TIMEOUT && says(&event, "said nothing more") &&
          says(&event, "the deadline"));
    epw_fd_release(silent);
    epw_links_close(other);
    close_ends(e);
}

/* A process that is stopped accepts, and says nothing until it continues. That may be long after the time
 * that strangers have, and no other address has to be tried meanwhile. */
static void a_silent_peer_has_until_the_deadline(void) {
    epw_links_options a = options_of(0), b = options_of(1);
    int end, fds[2];
    a.handshake_ns = 20 * MS;
    ends e = {{open_links(&a), NULL}};
    epw_links *stopped = open_links(&b);
    epw_addresses to = {.count = 2, .list = {loopback(port_of(stopped)), loopback(closed_port())}};
    for (; to.count > 0; to.count--) {
        epw_link_event event;
        CHECK_OK(dial_at(e.links[0], &to, 20000 * MS));
        CHECK(!next_event(e, 200 * MS, &end, &event));
        e.links[1] = stopped;
        CHECK(link_up(e, 9, 20000 * MS, fds));
        epw_fd_release(fds[0]);
        epw_fd_release(fds[1]);
        e.links[1] = NULL;

        uint64_t begin = epw_now_ns();
        CHECK_OK(dial_at(e.links[0], &to, longer * 200 * MS));
        event = failure(e, 20000 * MS);
        CHECK(epw_now_ns() - begin >= longer * 199 * MS);
        CHECK(event.status == EPW_ERR_TIMEOUT && says(&event, "said nothing more"));
    }
    epw_links_close(stopped);
    close_ends(e);
}

/* The first address does not answer at all: the second is tried after a head start, while the first dial
 * continues. */
static void an_address_that_does_not_answer_delays_little(void) {
    ends e = open_ends();
    epw_address full = loopback(0);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), filler[4], fds[2];
    struct sockaddr_storage name;
    socklen_t length = epw_address_to_socket(&full, &name);
    CHECK(!bind(listener, (struct sockaddr *)&name, length) && !listen(listener, 0));
    CHECK(!getsockname(listener, (struct sockaddr *)&name, &length));
    CHECK(epw_address_from_socket((struct sockaddr *)&name, &full));
    for (int i = 0; i < 4; i++) { /* then its queue is full, and it does not answer */
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(filler[i], (struct sockaddr *)&name, length);
    }
    usleep(20000);
    epw_addresses to = {.count = 2, .list = {full, loopback(port_of(e.links[1]))}};
    uint64_t begin = epw_now_ns();
    CHECK_OK(dial_at(e.links[0], &to, 20000 * MS));
    CHECK(link_up(e, 9, 20000 * MS, fds));
    uint64_t took = epw_now_ns() - begin;
    CHECK_MSG(took >= 200 * MS && took < 5000 * MS, "after %u ms", (unsigned)(took / MS));
    to.count = 1;
    CHECK_OK(dial_at(e.links[0], &to, 100 * MS));
    epw_link_event event = failure(e, 20000 * MS);
    CHECK(event.status == EPW_ERR_TIMEOUT && says(&event, "no answer"));
    for (int i = 0; i < 4; i++) close(filler[i]);
    close(listener);
    epw_fd_release(fds[0]);
    epw_fd_release(fds[1]);
    close_ends(e);
}

/* ---- addresses, ports and interfaces ---- */

static void a_taken_range_is_named(void) {
    epw_address address = loopback(0);
    int fd = -1;
    CHECK_OK(epw_listen(&address, 0, 0, here, &fd, NULL));
    epw_links_options o = options_of(0);
    epw_links *links = NULL;
    o.first_port = o.last_port = address.port;
    int before = open_fds();
    CHECK(epw_links_open(&o, &links) == EPW_ERR_SYSTEM && links == NULL && open_fds() == before);
    char range[64];
    snprintf(range, sizeof range, "127.0.0.1: every port of the range %u..%u is taken",
             (unsigned)address.port, (unsigned)address.port);
    CHECK(error_has(range));
    if (address.port < UINT16_MAX - 20) { /* so that the next ports are probably free */
        o.last_port = (uint16_t)(address.port + 20);
        CHECK_OK(epw_links_open(&o, &links));
        CHECK(port_of(links) > o.first_port && port_of(links) <= o.last_port);
        epw_links_close(links);
    }
    epw_fd_release(fd);

    static const struct { uint16_t first, last; } wrong[] = {{0, 5}, {6, 5}, {6, 0}};
    for (int i = 0; i < 3; i++) {
        o.first_port = wrong[i].first;
        o.last_port = wrong[i].last;
        CHECK(epw_links_open(&o, &links) == EPW_ERR_INVALID && error_has("range of ports"));
    }
}

static void wrong_addresses_are_named(void) {
    static const char *const wrong[] = {"localhost",  "10.0.0.1:5",  "0.0.0.0",   "::",      "fe80::1",
                                        "fe80::1%lo", "169.254.1.1", "224.0.0.1", "ff02::1", ""};
    epw_links *links = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        epw_links_options o = options_of(0);
        o.addresses = &wrong[i];
        CHECK(epw_links_open(&o, &links) == EPW_ERR_INVALID && error_has(wrong[i]));
    }
    static const char *const foreign[] = {"192.0.2.1"}; /* an address that nobody has: for documentation */
    epw_links_options o = options_of(0);
    o.addresses = foreign;
    CHECK(epw_links_open(&o, &links) == EPW_ERR_SYSTEM && error_has("192.0.2.1"));
    static const char *const twice[] = {"127.0.0.1", "127.0.0.1"};
    o.addresses = twice;
    o.address_count = 2;
    unsigned char bytes[EPW_ADDRESSES_BYTES];
    CHECK_OK(epw_links_open(&o, &links));
    CHECK(epw_links_addresses(links, bytes) == 1 + 4 + 2);
    epw_links_close(links);
    o.address_count = EPW_ADDRESSES_MAX + 1;
    CHECK(epw_links_open(&o, &links) == EPW_ERR_LIMIT);
    o = options_of(0);
    o.interfaces = "lo";
    CHECK(epw_links_open(&o, &links) == EPW_ERR_INVALID && error_has("one of them"));
    o = options_of(EPW_MAX_RANKS);
    CHECK(epw_links_open(&o, &links) == EPW_ERR_LIMIT);
}

static void address_bytes_are_checked(void) {
    epw_addresses a = {0}, b;
    unsigned char bytes[EPW_ADDRESSES_BYTES + EPW_ADDRESS_BYTES];
    for (uint32_t i = 0; i < EPW_ADDRESSES_MAX; i++) {
        CHECK_OK(epw_address_read(i % 2 ? "fd00::17" : "10.1.2.3", here, &a.list[i]));
        a.list[i].port = (uint16_t)(0x1234 + i);
        a.count = i + 1;
        size_t length = epw_addresses_write(&a, bytes);
        CHECK_OK(epw_addresses_parse(bytes, length, here, &b));
        CHECK(b.count == a.count && memcmp(&b.list[i], &a.list[i], sizeof a.list[i]) == 0);
    }
    char text[EPW_ADDRESS_TEXT];
    CHECK(strcmp(epw_address_say(&b.list[0], text), "10.1.2.3:4660") == 0);
    CHECK(strcmp(epw_address_say(&b.list[1], text), "[fd00::17]:4661") == 0);

    size_t length = epw_addresses_write(&a, bytes);
    size_t whole = 0; /* bytes may end only where an address ends */
    for (size_t cut = 0; cut < length; cut++) {
        bool ends = cut > 0 && cut % (7 + 19) == 0;
        ends |= cut % (7 + 19) == 7;
        whole += ends;
        CHECK_MSG((epw_addresses_parse(bytes, cut, here, &b) == EPW_OK) == ends, "%zu bytes", cut);
    }
    CHECK(whole == EPW_ADDRESSES_MAX - 1);
    memcpy(bytes + length, bytes, 7);
    CHECK(epw_addresses_parse(bytes, length + 7, here, &b) == EPW_ERR_LIMIT);
    bytes[0] = 5;
    CHECK(epw_addresses_parse(bytes, length, here, &b) == EPW_ERR_INVALID && error_has("family 5"));
    bytes[0] = 4;
    bytes[5] = bytes[6] = 0;
    CHECK(epw_addresses_parse(bytes, length, here, &b) == EPW_ERR_INVALID && error_has("no port"));

    epw_links_options o = options_of(0);
    epw_links *links = open_links(&o);
    epw_dial_order order = {.peer = 1, .addresses = bytes, .length = length, .deadline_ns = UINT64_MAX};
    CHECK(epw_links_dial(links, &order, 0) == EPW_ERR_INVALID && error_has("peer 1"));
    order.length = 0;
    CHECK(epw_links_dial(links, &order, 0) == EPW_ERR_INVALID && error_has("no address"));
    order.peer = EPW_MAX_RANKS;
    CHECK(epw_links_dial(links, &order, 0) == EPW_ERR_LIMIT);
    epw_links_close(links);
}

static void filters_choose_interfaces(void) {
    static const struct {
        const char *filter, *name;
        bool wanted;
    } cases[] = {
        {NULL, "eth0", true},
        {"", "eth0", true},
        {"eth", "eth0", true},
        {"eth", "meth0", false},
        {"ib,eth", "eth0", true},
        {"ib, eth", "eth1", true},
        {"=eth0", "eth0", true},
        {"=eth0", "eth01", false},
        {"=eth0", "eth", false},
        {"=eth0,eth1", "eth1", true},
        {"=eth0,eth1", "eth12", false}, /* the "=" applies to all names */
        {"=eth0,=eth1", "eth1", true},
        {"^docker", "docker0", false},
        {"^docker", "eth0", true},
        {"^docker,veth", "veth12", false},
        {"^docker,veth", "eth0", true},
        {"^=docker0", "docker0", false},
        {"^=docker0", "docker01", true},
        {"eth,^eth1", "eth0", true},
        {"eth,^eth1", "eth1", false},
        {",,eth,", "eth0", true},
        {",,eth,", "ib0", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_MSG(epw_interface_wanted(cases[i].filter, cases[i].name) == cases[i].wanted, "\"%s\" and %s",
                  cases[i].filter ? cases[i].filter : "", cases[i].name);
    CHECK(epw_interface_is_named("=lo", "lo") && !epw_interface_is_named("^eth", "lo"));
    CHECK(!epw_interface_is_named("", "lo"));

    epw_addresses found;
    CHECK_OK(epw_interfaces_addresses("=lo", here, &found));
    CHECK(found.count > 0 && (found.list[0].family == 6 || found.list[0].bytes[0] == 127));
    CHECK_OK(epw_interfaces_addresses(NULL, here, &found));
    CHECK(found.count > 0);
    CHECK(epw_interfaces_addresses("=nowhere7", here, &found) == EPW_ERR_INVALID);
    CHECK(error_has("\"=nowhere7\"") && error_has("lo"));
}

/* ---- a made-up host ---- */

static struct ifaddrs *made_up; /* its addresses; NULL: this host's are found */

/* In place of the C library's. */
int getifaddrs(struct ifaddrs **out) {
    if (made_up == NULL) {
        int (*found)(struct ifaddrs **);
        *(void **)&found = dlsym(RTLD_NEXT, "getifaddrs");
        return found(out);
    }
    *out = made_up;
    return 0;
}

void freeifaddrs(struct ifaddrs *list) {
    void (*freed)(struct ifaddrs *);
    *(void **)&freed = dlsym(RTLD_NEXT, "freeifaddrs");
    if (list != made_up) freed(list);
}

/* Three interfaces have one address, as with a bond and its parts, or a virtual router; the loopback
 * interface has it, too. */
static void an_address_of_several_interfaces_is_listed_once(void) {
    static const char *const texts[] = {"127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.1", "127.0.0.1"};
    enum { COUNT = sizeof texts / sizeof texts[0] };
    static char names[COUNT][8];
    struct ifaddrs list[COUNT];
    struct sockaddr_storage addresses[COUNT];
    memset(list, 0, sizeof list);
    for (uint32_t i = 0; i < COUNT; i++) {
        epw_address address;
        CHECK_OK(epw_address_read(texts[i], here, &address));
        epw_address_to_socket(&address, &addresses[i]);
        snprintf(names[i], sizeof names[i], "made%u", i);
        list[i] = (struct ifaddrs){.ifa_next = i + 1 < COUNT ? &list[i + 1] : NULL,
                                   .ifa_name = names[i],
                                   .ifa_flags = IFF_UP | (i + 1 == COUNT ? IFF_LOOPBACK : 0u),
                                   .ifa_addr = (struct sockaddr *)&addresses[i]};
    }
    made_up = list;
    epw_addresses found;
    CHECK_OK(epw_interfaces_addresses("made", here, &found));
    CHECK_MSG(found.count == 2, "%u addresses", found.count);
    CHECK(found.list[0].bytes[3] == 1 && found.list[1].bytes[3] == 2);
    epw_address address = loopback(0);
    int fd = -1;
    CHECK_OK(epw_listen(&address, 0, 0, here, &fd, NULL));
    epw_fd_release(fd);
    epw_links_options o = options_of(0);
    o.address_count = 0;
    o.interfaces = "made";
    o.first_port = o.last_port = address.port;
    epw_links_close(open_links(&o));
    made_up = NULL;
}

/* ---- keys ---- */

static bool has_key(const epw_handshake *h) {
    for (uint32_t i = 0; i < sizeof h->auth.self.key; i++)
        if (h->auth.self.key[i] != 0) return true;
    return false;
}

/* Its memory is freed next. */
static void what_fails_keeps_no_key(void) {
    epw_address address = loopback(0);
    epw_auth_self self = {.rank = 1};
    epw_handshake h;
    int fd = -1;
    memset(self.key, 0x4b, sizeof self.key);
    CHECK_OK(epw_listen(&address, 0, 0, here, &fd, NULL));
    CHECK(epw_handshake_accept(&h, fd, &self) == EAGAIN);
    CHECK(h.fd < 0 && !has_key(&h));
    const epw_auth_peer peer = {.rank = 2};
    CHECK(epw_handshake_dial(&h, &address, &self, &peer) == 0 && has_key(&h));
    epw_fd_release(h.fd);
    h.fd = -1; /* as in a forked child, or after it was handed over */
    epw_handshake_close(&h);
    CHECK(!has_key(&h));
    epw_fd_release(fd);
    struct rlimit limit, none;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    none = (struct rlimit){0, limit.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK(epw_handshake_dial(&h, &address, &self, &peer) == EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(h.fd < 0 && !has_key(&h));
}

/* Like a rank without settings: on all addresses of the machine. */
static void links_come_up_over_what_there_is(void) {
    epw_links_options a = options_of(0), b = options_of(1);
    a.address_count = b.address_count = 0;
    ends e = {{open_links(&a), open_links(&b)}};
    int fds[2];
    CHECK_OK(dial(e.links[0], e.links[1], 1, 3, 20000 * MS));
    if (link_up(e, 3, 20000 * MS, fds)) {
        CHECK(exchange(fds[0], fds[1]));
        epw_fd_release(fds[0]);
        epw_fd_release(fds[1]);
    }
    close_ends(e);
}

/* ---- within the host ---- */

/* A dial that names no address uses the abstract socket of the peer's fabric, with the same proofs. */
static void links_within_the_host(void) {
    epw_links_options a = options_of(0), b = options_of(1);
    a.wires = b.wires = EPW_WIRE_LOCAL;
    CHECK_OK(epw_nonce_make(here, &a.fabric)); /* other tests on this host use the usual names */
    CHECK_OK(epw_nonce_make(here, &b.fabric));
    ends e = {{open_links(&a), open_links(&b)}};
    unsigned char bytes[EPW_ADDRESSES_BYTES];
    CHECK(epw_links_addresses(e.links[1], bytes) == 0);
    epw_dial_order order = {.peer = 1, .fabric = b.fabric, .link = 9};
    order.deadline_ns = epw_now_ns() + 20000 * MS;
    CHECK_OK(epw_links_dial(e.links[0], &order, epw_now_ns()));
    int fds[2] = {-1, -1};
    for (int i = 0; i < 2; i++) {
        int end = -1;
        epw_link_event event = {.kind = EPW_LINK_FAILED};
        CHECK(next_event(e, 20000 * MS, &end, &event));
        CHECK_MSG(event.kind == EPW_LINK_UP && event.link == 9, "%s", event.reason);
        if (end >= 0 && end < 2) fds[end] = event.fd;
    }
    CHECK(exchange(fds[0], fds[1]) && exchange(fds[1], fds[0]));
    epw_fd_release(fds[0]);
    epw_fd_release(fds[1]);
    /* With another key nothing is opened, and under another name nobody listens. */
    epw_links *stranger = NULL;
    epw_links_options c = a;
    CHECK_OK(epw_nonce_make(here, &c.fabric));
    c.key[0] ^= 1;
    CHECK_OK(epw_links_open(&c, &stranger));
    ends f = {{stranger, e.links[1]}};
    order.deadline_ns = epw_now_ns() + 20000 * MS;
    CHECK_OK(epw_links_dial(stranger, &order, epw_now_ns()));
    epw_link_event refused = failure(f, 20000 * MS);
    CHECK(refused.status == EPW_ERR_PEER && says(&refused, "this host"));
    order.fabric.bytes[0] ^= 1;
    CHECK_OK(epw_links_dial(e.links[0], &order, epw_now_ns()));
    epw_link_event nobody = failure(e, 20000 * MS);
    CHECK(nobody.status == EPW_ERR_PEER && says(&nobody, "refused"));
    epw_links_close(stranger);
    close_ends(e);
}

int main(void) {
    CHECK_OK(epw_process_ready(here)); /* before the first descriptor is registered */
    links_come_up_over(v4);
    if (have_ipv6()) {
        links_come_up_over(v6);
    } else {
        printf("ignored: links over IPv6: this host has no ::1\n");
    }
    many_links_come_up_together();
    closing_ends_everything();
    forked_children_have_no_links();
    another_key_is_refused();
    who_is_not_meant_refuses();
    silent_connections_hold_nothing_up();
    dialers_leave_each_other_time();
    who_is_crowded_out_comes_again();
    who_finds_a_full_queue_comes_again();
    KEEP_TIME(silence_has_its_time());
    garbage_is_refused();
    a_listener_without_descriptors_goes_on_later();
    a_closed_port_fails_at_once();
    KEEP_TIME(the_next_address_is_tried());
    KEEP_TIME(a_silent_peer_has_until_the_deadline());
    an_address_that_does_not_answer_delays_little();
    a_taken_range_is_named();
    wrong_addresses_are_named();
    address_bytes_are_checked();
    filters_choose_interfaces();
    an_address_of_several_interfaces_is_listed_once();
    what_fails_keeps_no_key();
    links_come_up_over_what_there_is();
    links_within_the_host();
    return check_result("links");
}
