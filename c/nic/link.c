/* See link.h. */
#include "nic/link.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "nic/handshake.h"
#include "nic/interfaces.h"
#include "nic/listen.h"

#define ACCEPTED_AT_ONCE 16
#define ACCEPT_PAUSE_NS  100000000u /* pause after running out of descriptors or memory */
#define EVENTS_AT_ONCE   128
#define NEVER            UINT64_MAX

/* An address whose listener was too busy is tried again after the first pause, which then doubles. */
#define FIRST_PAUSE_NS 20000000u
#define LAST_PAUSE_NS  1000000000u

/* How often a dial presents its proof to listeners that hang up on it: busy ones do, but also those with
 * another key. */
#define PROOFS_MAX 3

/* The kind of an entry of the epoll set: the first member of each structure that has one. */
typedef enum source { TIMER, LISTENER, CONNECTION } source;

typedef struct dial dial;

typedef struct connection {
    source source;
    uint32_t watched;  /* the events for which it is in the epoll set */
    uint64_t until_ns; /* it must be a link by then */
    uint32_t address;  /* the index of its address in the dial */
    dial *dial;        /* NULL: it was accepted */
    struct connection *next;
    epw_handshake hand;
} connection;

typedef struct listener {
    source source;
    int fd;
} listener;

/* SILENT: it used up its share of the time, but may be the only one that leads to the peer. */
typedef enum attempt { UNTRIED, TRYING, SILENT, FAILED } attempt;

/* Connections to several addresses are made at the same time, but only one makes the handshake: two
 * handshakes would leave the peer with a link that this end then closes. */
struct dial {
    dial *next;
    epw_auth_peer peer;
    uint64_t deadline_ns, next_ns; /* when the next address is tried even if another is under way */
    uint64_t pause_ns;             /* the next one */
    uint32_t unheard_proofs;
    epw_addresses to;
    attempt attempts[EPW_ADDRESSES_MAX];
    uint64_t after_ns[EPW_ADDRESSES_MAX]; /* when the pause of an untried address is over; 0: it has none */
    char found[EPW_ADDRESSES_MAX][EPW_HANDSHAKE_TEXT]; /* at the last attempt */
    connection *tries[EPW_ADDRESSES_MAX];
    connection *speaker;
    int fd;
    epw_status status; /* EPW_PENDING while it is under way */
    size_t text_length;
    char text[sizeof((epw_link_event *)0)->reason];
};

struct epw_links {
    epw_auth_self self; /* without a challenge */
    uint64_t handshake_ns;
    uint32_t generation; /* of epw_process_generation: descriptors are open only in that process */
    int epoll, timer;
    source timer_source;
    uint64_t armed_ns;
    epw_addresses addresses;
    listener listeners[EPW_ADDRESSES_MAX + 1];
    uint32_t listener_count;
    uint64_t accept_after_ns;                   /* 0: listeners are in the epoll set */
    connection *strangers[EPW_LINKS_STRANGERS]; /* the oldest first */
    uint32_t stranger_count;
    connection *up; /* accepted links that have not been handed over */
    dial *dials;
    connection *discarded; /* closed, but perhaps named by events that have been fetched already */
    epw_links_refusals refusals;
};

static bool is_foreign(const epw_links *links) {
    return links->generation != epw_process_generation();
}

static uint64_t later(uint64_t now, uint64_t by) {
    return now > NEVER - by ? NEVER : now + by;
}

/* ---- connections ---- */

/* This end of a handshake, with a fresh challenge. */
static epw_status fresh_self(const epw_links *links, epw_auth_self *self) {
    epw_where where = {"links", (int)links->self.rank, -1};
    epw_nonce halves[2];
    _Static_assert(sizeof halves == EPW_AUTH_CHALLENGE_BYTES, "a challenge is two nonces long");
    epw_status status = epw_nonce_make(where, &halves[0]);
    if (status == EPW_OK) status = epw_nonce_make(where, &halves[1]);
    if (status != EPW_OK) return status;
    *self = links->self;
    memcpy(self->challenge, halves, sizeof halves);
    return status;
}

/* Makes the epoll set wait for what the connection waits for. Returns 0 or an errno value. */
static int watch(epw_links *links, connection *c, int operation) {
    uint32_t wanted = epw_handshake_events(&c->hand);
    if (operation == EPOLL_CTL_MOD && wanted == c->watched) return 0;
    struct epoll_event event = {.events = wanted, .data.ptr = c};
    if (epoll_ctl(links->epoll, operation, c->hand.fd, &event)) return errno;
    c->watched = wanted;
    return 0;
}

/* First removes it from the epoll set, because a forked child may keep the socket open for a moment longer.
 */
static void forget(epw_links *links, const connection *c) {
    epoll_ctl(links->epoll, EPOLL_CTL_DEL, c->hand.fd, NULL);
}

static void discard(epw_links *links, connection *c) {
    if (c->hand.fd >= 0) {
        forget(links, c);
        epw_handshake_close(&c->hand);
    }
    c->next = links->discarded;
    links->discarded = c;
}

/* Takes the socket out of a connection that has become a link. */
static int take_socket(epw_links *links, connection *c) {
    int fd = c->hand.fd;
    forget(links, c);
    c->hand.fd = -1;
    return fd;
}

static void free_closed(epw_links *links) {
    while (links->discarded) {
        connection *c = links->discarded;
        links->discarded = c->next;
        free(c);
    }
}

/* ---- strangers ---- */

static void drop_stranger(epw_links *links, uint32_t i) {
    links->stranger_count--;
    if (links->accept_after_ns > 0) links->accept_after_ns = 1; /* there is room again */
    memmove(&links->strangers[i], &links->strangers[i + 1],
            (links->stranger_count - i) * sizeof links->strangers[0]);
}

static void step_stranger(epw_links *links, connection *c) {
    uint32_t i = 0;
    while (i < links->stranger_count && links->strangers[i] != c) i++;
    if (i == links->stranger_count) return; /* it is up, or was discarded since the events were fetched */
    switch (epw_handshake_step(&c->hand)) {
    case EPW_AUTH_MORE:
        if (watch(links, c, EPOLL_CTL_MOD) == 0) return;
        break;
    case EPW_AUTH_DONE:
        drop_stranger(links, i);
        forget(links, c);
        c->next = links->up;
        links->up = c;
        return;
    case EPW_AUTH_REFUSED:
        links->refusals.refused[c->hand.auth.reason]++;
        break;
    }
    drop_stranger(links, i);
    discard(links, c);
}

static void end_late_strangers(epw_links *links, uint64_t now) {
    while (links->stranger_count > 0 && links->strangers[0]->until_ns <= now) {
        links->refusals.late++;
        discard(links, links->strangers[0]);
        drop_stranger(links, 0);
    }
}

/* Returns 0 or an errno value: EAGAIN if there is no other connection. */
static int accept_one(epw_links *links, int fd, uint64_t now) {
    epw_auth_self self;
    connection *c = calloc(1, sizeof *c);
    if (c == NULL || fresh_self(links, &self) != EPW_OK) {
        free(c);
        return ENOMEM;
    }
    int err = epw_handshake_accept(&c->hand, fd, &self);
    explicit_bzero(&self, sizeof self);
    if (err == 0) {
        c->source = CONNECTION;
        c->until_ns = later(now, links->handshake_ns);
        err = watch(links, c, EPOLL_CTL_ADD);
        if (err) epw_handshake_close(&c->hand);
    }
    if (err) {
        free(c);
        return err;
    }
    if (links->stranger_count == EPW_LINKS_STRANGERS) {
        links->refusals.crowded_out++;
        discard(links, links->strangers[0]);
        drop_stranger(links, 0);
    }
    links->strangers[links->stranger_count++] = c;
    return 0;
}

/* Removes listeners from the epoll set, in which they would be readable all the time, or puts them back. */
static void watch_listeners(epw_links *links, bool watched) {
    for (uint32_t i = 0; i < links->listener_count; i++) {
        struct epoll_event event = {.events = watched ? EPOLLIN : 0u, .data.ptr = &links->listeners[i]};
        epoll_ctl(links->epoll, EPOLL_CTL_MOD, links->listeners[i].fd, &event);
    }
}

static bool is_exhaustion(int err) {
    return err == EMFILE || err == ENFILE || err == ENOBUFS || err == ENOMEM || err == ENOSPC;
}

static void pause_accepting(epw_links *links, uint64_t until) {
    links->accept_after_ns = until;
    watch_listeners(links, false);
}

/* When the oldest stranger may be closed for a newer one; 0: there is room beside it. */
static uint64_t full_until(const epw_links *links) {
    if (links->stranger_count < EPW_LINKS_STRANGERS) return 0;
    return later(links->strangers[0]->until_ns - links->handshake_ns, EPW_LINKS_GRACE_NS);
}

static void accept_some(epw_links *links, int fd, uint64_t now) {
    for (int i = 0; i < ACCEPTED_AT_ONCE; i++) {
        if (now < full_until(links)) {
            pause_accepting(links, full_until(links));
            return;
        }
        int err = accept_one(links, fd, now);
        if (err == EAGAIN) return;
        if (!is_exhaustion(err)) continue; /* all other errors of accept concern only one connection */
        pause_accepting(links, later(now, ACCEPT_PAUSE_NS));
        return;
    }
}

/* ---- dialing ---- */

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
note(dial *d, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(d->text + d->text_length, sizeof d->text - d->text_length, fmt, args);
    va_end(args);
    d->text_length += length > 0 ? (size_t)length : 0;
    if (d->text_length >= sizeof d->text) d->text_length = sizeof d->text - 1;
}

static void note_address(dial *d, uint32_t address, const char *text) {
    char name[EPW_ADDRESS_TEXT];
    note(d, "%s%s: %s", d->text_length > 0 ? "; " : "", epw_address_say(&d->to.list[address], name), text);
}

static uint32_t count_attempts(const dial *d, attempt state) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < d->to.count; i++) count += d->attempts[i] == state;
    return count;
}

/* Ends the attempt to connect to an address, which is then in state `to`. */
static void end_attempt(epw_links *links, dial *d, uint32_t i, attempt to) {
    if (d->tries[i] == NULL) return;
    if (d->speaker == d->tries[i]) d->speaker = NULL;
    discard(links, d->tries[i]);
    d->tries[i] = NULL;
    d->attempts[i] = to;
}

/* The reason is what was found at each address; after a deadline also the attempts that are still under way.
 */
static void end_dial(epw_links *links, dial *d, epw_status status) {
    for (uint32_t i = 0; i < d->to.count; i++) {
        if (status == EPW_ERR_TIMEOUT && d->tries[i]) epw_handshake_explain(&d->tries[i]->hand, d->found[i]);
        end_attempt(links, d, i, FAILED);
        if (d->found[i][0] != '\0') note_address(d, i, d->found[i]);
    }
    if (status == EPW_ERR_TIMEOUT) note(d, "%sthe deadline has passed", d->text_length > 0 ? "; " : "");
    d->status = status;
}

static void pause_address(dial *d, uint32_t i, uint64_t now) {
    d->after_ns[i] = later(now, d->pause_ns);
    d->pause_ns = 2 * d->pause_ns < LAST_PAUSE_NS ? 2 * d->pause_ns : LAST_PAUSE_NS;
}

/* Whether the listener may do better later: it made room for others, or has ended, which the next attempt
 * finds. */
static bool is_worth_another(dial *d, const epw_handshake *h) {
    if (h->auth.state != EPW_AUTH_REFUSED || h->auth.reason != EPW_AUTH_CUT_OFF) return false;
    return !epw_auth_has_proven(&h->auth) || ++d->unheard_proofs < PROOFS_MAX;
}

static void try_address(epw_links *links, dial *d, uint32_t i, uint64_t now) {
    epw_auth_self self;
    connection *c = calloc(1, sizeof *c);
    if (c == NULL || fresh_self(links, &self) != EPW_OK) {
        free(c);
        d->attempts[i] = FAILED;
        snprintf(d->found[i], sizeof d->found[i], "%s", c == NULL ? "no memory" : "no random numbers");
        return;
    }
    int err = epw_handshake_dial(&c->hand, &d->to.list[i], &self, &d->peer);
    explicit_bzero(&self, sizeof self);
    if (err == 0) {
        c->source = CONNECTION;
        c->until_ns = d->deadline_ns;
        c->dial = d;
        c->address = i;
        err = watch(links, c, EPOLL_CTL_ADD);
        if (err) epw_handshake_close(&c->hand);
    }
    if (err) {
        c->hand.error = err;
        epw_handshake_explain(&c->hand, d->found[i]);
        free(c);
        if (err == EAGAIN) { /* the queue of a listener within the host is full */
            pause_address(d, i, now);
        } else {
            d->attempts[i] = FAILED;
        }
        return;
    }
    d->tries[i] = c;
    d->attempts[i] = TRYING;
    d->next_ns = later(now, EPW_LINKS_HEAD_START_NS);
}

/* When an untried address is to be tried. */
static uint64_t due_ns(const dial *d, uint32_t i) {
    uint64_t turn = count_attempts(d, TRYING) > 0 ? d->next_ns : 0;
    return turn > d->after_ns[i] ? turn : d->after_ns[i];
}

/* Tries the next addresses when it is time to, and ends the dial when there is none left. */
static void advance(epw_links *links, dial *d, uint64_t now) {
    if (d->status != EPW_PENDING) return;
    if (now >= d->deadline_ns) {
        end_dial(links, d, EPW_ERR_TIMEOUT);
        return;
    }
    for (uint32_t i = 0; i < d->to.count && d->speaker == NULL; i++)
        if (d->attempts[i] == UNTRIED && now >= due_ns(d, i)) try_address(links, d, i, now);
    if (d->speaker != NULL || count_attempts(d, UNTRIED) > 0) return;
    for (uint32_t i = 0; i < d->to.count; i++) {
        if (d->attempts[i] != SILENT) continue;
        d->attempts[i] = UNTRIED;
        d->after_ns[i] = later(now, EPW_LINKS_HEAD_START_NS);
    }
    if (count_attempts(d, FAILED) == d->to.count) end_dial(links, d, EPW_ERR_PEER);
}

static void fail_attempt(epw_links *links, connection *c, uint64_t now) {
    dial *d = c->dial;
    bool again = is_worth_another(d, &c->hand);
    epw_handshake_explain(&c->hand, d->found[c->address]);
    if (again) pause_address(d, c->address, now);
    end_attempt(links, d, c->address, again ? UNTRIED : FAILED);
    d->next_ns = now;
    advance(links, d, now);
}

static void leave_silent(epw_links *links, connection *c) {
    dial *d = c->dial;
    epw_handshake_explain(&c->hand, d->found[c->address]);
    end_attempt(links, d, c->address, SILENT);
}

/* The first connection that is established makes the handshake. The others are closed, and made again if it
 * does not lead to the peer: it has its share of the time that is left, all of it if there are no others. */
static void let_speak(epw_links *links, connection *c, uint64_t now) {
    dial *d = c->dial;
    d->speaker = c;
    for (uint32_t i = 0; i < d->to.count; i++)
        if (d->tries[i] != c) end_attempt(links, d, i, UNTRIED);
    uint64_t left = d->deadline_ns > now ? d->deadline_ns - now : 0;
    uint32_t others = count_attempts(d, UNTRIED);
    uint64_t share = left / (others + 1);
    if (others > 0 && share > links->handshake_ns) share = links->handshake_ns;
    c->until_ns = later(now, share);
}

static void step_dialed(epw_links *links, connection *c, uint64_t now) {
    dial *d = c->dial;
    if (c->hand.fd < 0) return; /* discarded since the events were fetched */
    if (c->hand.connecting) {
        bool connected = epw_handshake_connected(&c->hand);
        if (!connected && !c->hand.error) return;
        if (!connected) {
            fail_attempt(links, c, now);
            return;
        }
        let_speak(links, c, now);
    }
    switch (epw_handshake_step(&c->hand)) {
    case EPW_AUTH_MORE:
        c->hand.error = watch(links, c, EPOLL_CTL_MOD);
        if (c->hand.error) fail_attempt(links, c, now);
        return;
    case EPW_AUTH_DONE:
        d->fd = take_socket(links, c);
        end_dial(links, d, EPW_OK);
        return;
    case EPW_AUTH_REFUSED:
        fail_attempt(links, c, now);
        return;
    }
}

static void carry_on_dials(epw_links *links, uint64_t now) {
    for (dial *d = links->dials; d; d = d->next) {
        if (now < d->deadline_ns && d->speaker && now >= d->speaker->until_ns)
            leave_silent(links, d->speaker);
        advance(links, d, now);
    }
}

epw_status epw_links_dial(epw_links *links, const epw_dial_order *order, uint64_t now_ns) {
    epw_where where = {"link", (int)links->self.rank, (int)order->peer};
    if (order->peer >= EPW_MAX_RANKS) {
        where.peer = -1;
        return epw_fail(EPW_ERR_LIMIT, where, "the peer to dial is %u, ranks are below %d",
                        (unsigned)order->peer, EPW_MAX_RANKS);
    }
    if (is_foreign(links))
        return epw_fail(EPW_ERR_STATE, where, "a forked child has none of its parent's links");
    epw_addresses to = {.count = 1, .list = {epw_address_local(&order->fabric)}};
    epw_status status = EPW_OK;
    if (order->addresses != NULL) status = epw_addresses_parse(order->addresses, order->length, where, &to);
    if (status != EPW_OK) return status;
    dial *d = calloc(1, sizeof *d);
    if (d == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a dial");
    d->peer = (epw_auth_peer){order->peer, order->fabric, order->link};
    d->deadline_ns = order->deadline_ns;
    d->pause_ns = FIRST_PAUSE_NS;
    d->to = to;
    d->fd = -1;
    d->status = EPW_PENDING;
    dial **end = &links->dials;
    while (*end) end = &(*end)->next;
    *end = d;
    advance(links, d, now_ns);
    /* Makes the next call of epw_links_poll due at once: that call then sets the timer. */
    links->armed_ns = 1;
    struct itimerspec at_once = {.it_value = {.tv_nsec = 1}};
    timerfd_settime(links->timer, TFD_TIMER_ABSTIME, &at_once, NULL);
    return EPW_OK;
}

/* ---- polling ---- */

static bool take_accepted(epw_links *links, epw_link_event *event) {
    connection *c = links->up;
    if (c == NULL) return false;
    links->up = c->next;
    const epw_auth_peer *peer = &c->hand.auth.peer;
    *event = (epw_link_event){.kind = EPW_LINK_UP,
                              .fd = c->hand.fd,
                              .peer = peer->rank,
                              .fabric = peer->fabric,
                              .link = peer->link};
    free(c);
    return true;
}

static bool take_dialed(epw_links *links, epw_link_event *event) {
    dial **at = &links->dials;
    while (*at && (*at)->status == EPW_PENDING) at = &(*at)->next;
    dial *d = *at;
    if (d == NULL) return false;
    *at = d->next;
    *event = (epw_link_event){.kind = d->status == EPW_OK ? EPW_LINK_UP : EPW_LINK_FAILED,
                              .dialed = true,
                              .fd = d->fd,
                              .peer = d->peer.rank,
                              .fabric = d->peer.fabric,
                              .link = d->peer.link,
                              .status = d->status};
    if (d->status != EPW_OK) memcpy(event->reason, d->text, sizeof event->reason);
    free(d);
    return true;
}

static bool take_event(epw_links *links, epw_link_event *event) {
    return take_accepted(links, event) || take_dialed(links, event);
}

/* The time at which there is something to do even if no socket is ready. */
static uint64_t next_time(const epw_links *links) {
    uint64_t next = links->up ? 1 : NEVER;
    if (links->stranger_count > 0 && links->strangers[0]->until_ns < next)
        next = links->strangers[0]->until_ns;
    if (links->accept_after_ns > 0 && links->accept_after_ns < next) next = links->accept_after_ns;
    for (const dial *d = links->dials; d; d = d->next) {
        uint64_t at = d->deadline_ns;
        if (d->speaker && d->speaker->until_ns < at) at = d->speaker->until_ns;
        for (uint32_t i = 0; i < d->to.count && !d->speaker; i++)
            if (d->attempts[i] == UNTRIED && due_ns(d, i) < at) at = due_ns(d, i);
        if (d->status != EPW_PENDING) at = 1;
        if (at < next) next = at;
    }
    return next;
}

static void arm_timer(epw_links *links) {
    uint64_t next = next_time(links);
    if (next == 0) next = 1; /* at once; 0 would disarm the timer */
    if (next == links->armed_ns) return;
    links->armed_ns = next;
    struct itimerspec at = {0}; /* disarmed */
    if (next != NEVER) {
        at.it_value.tv_sec = (time_t)(next / 1000000000u);
        at.it_value.tv_nsec = (long)(next % 1000000000u);
    }
    timerfd_settime(links->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* Connections that have sent something are served before new ones, see EPW_LINKS_STRANGERS. */
static void carry_on(epw_links *links, uint64_t now) {
    struct epoll_event events[EVENTS_AT_ONCE];
    int ready = epoll_wait(links->epoll, events, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < ready; i++) {
        if (*(source *)events[i].data.ptr != CONNECTION) continue;
        connection *c = events[i].data.ptr;
        if (c->dial) {
            step_dialed(links, c, now);
        } else {
            step_stranger(links, c);
        }
    }
    for (int i = 0; i < ready; i++) {
        source kind = *(source *)events[i].data.ptr;
        if (kind == LISTENER) accept_some(links, ((listener *)events[i].data.ptr)->fd, now);
        if (kind == TIMER) {
            uint64_t ignored;
            if (read(links->timer, &ignored, sizeof ignored) > 0) links->armed_ns = NEVER;
        }
    }
    end_late_strangers(links, now);
    if (links->accept_after_ns > 0 && now >= links->accept_after_ns) {
        links->accept_after_ns = 0;
        watch_listeners(links, true);
    }
    carry_on_dials(links, now);
    free_closed(links);
}

bool epw_links_poll(epw_links *links, uint64_t now_ns, epw_link_event *event) {
    if (is_foreign(links)) return false;
    bool have = take_event(links, event);
    if (!have) {
        carry_on(links, now_ns);
        have = take_event(links, event);
    }
    arm_timer(links);
    return have;
}

int epw_links_fd(const epw_links *links) {
    return links->epoll;
}

epw_links_refusals epw_links_refused(const epw_links *links) {
    return links->refusals;
}

size_t epw_links_addresses(const epw_links *links, unsigned char bytes[EPW_ADDRESSES_BYTES]) {
    return epw_addresses_write(&links->addresses, bytes);
}

/* ---- opening and closing ---- */

static epw_status check(const epw_links_options *o, epw_where where) {
    if (o->rank >= EPW_MAX_RANKS)
        return epw_fail(EPW_ERR_LIMIT, where, "rank is %u, ranks are below %d", (unsigned)o->rank,
                        EPW_MAX_RANKS);
    if (o->first_port > o->last_port || (o->first_port == 0 && o->last_port != 0))
        return epw_fail(EPW_ERR_INVALID, where,
                        "the range of ports is %u..%u; give first <= last, both above 0, or 0 and 0 for any",
                        (unsigned)o->first_port, (unsigned)o->last_port);
    if (o->address_count > EPW_ADDRESSES_MAX)
        return epw_fail(EPW_ERR_LIMIT, where, "%u addresses to listen on, %d at most",
                        (unsigned)o->address_count, EPW_ADDRESSES_MAX);
    if (o->address_count > 0 && o->interfaces && o->interfaces[0])
        return epw_fail(EPW_ERR_INVALID, where,
                        "both addresses and the interface filter \"%s\" are given; give one of them",
                        o->interfaces);
    return EPW_OK;
}

/* The addresses to listen on, each once. */
static epw_status choose_addresses(const epw_links_options *o, epw_where where, epw_addresses *out) {
    *out = (epw_addresses){0};
    if (!(o->wires & EPW_WIRE_TCP)) return EPW_OK;
    if (o->address_count == 0) return epw_interfaces_addresses(o->interfaces, where, out);
    for (uint32_t i = 0; i < o->address_count; i++) {
        epw_address address;
        epw_status status = epw_address_read(o->addresses[i], where, &address);
        if (status != EPW_OK) return status;
        epw_addresses_add(out, &address);
    }
    return EPW_OK;
}

/* Takes the address of a listener. */
static epw_status watch_listener(epw_links *links, int fd, epw_where where) {
    listener *l = &links->listeners[links->listener_count++];
    *l = (listener){LISTENER, fd};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};
    if (epoll_ctl(links->epoll, EPOLL_CTL_ADD, fd, &event))
        return epw_fail_errno(errno, where, "epoll_ctl of a listener");
    return EPW_OK;
}

static epw_status listen_locally(epw_links *links, epw_where where) {
    epw_address address = epw_address_local(&links->self.fabric);
    int fd;
    epw_status status = epw_listen(&address, 0, 0, where, &fd, NULL);
    return status == EPW_OK ? watch_listener(links, fd, where) : status;
}

/* An interface's address may have gone by now, or an IPv6 address may not be usable yet: it is left out,
 * unless it is the only one. */
static epw_status listen_on(epw_links *links, const epw_links_options *o, const epw_addresses *chosen,
                            epw_where where) {
    for (uint32_t i = 0; i < chosen->count; i++) {
        epw_address address = chosen->list[i];
        bool gone;
        int fd;
        epw_status status = epw_listen(&address, o->first_port, o->last_port, where, &fd, &gone);
        bool needed = o->address_count > 0 || (i + 1 == chosen->count && links->addresses.count == 0);
        if (status != EPW_OK && gone && !needed) continue;
        if (status != EPW_OK) return status;
        links->addresses.list[links->addresses.count++] = address;
        status = watch_listener(links, fd, where);
        if (status != EPW_OK) return status;
    }
    return EPW_OK;
}

/* Registers a new descriptor; -1 if it could not be made or registered, with errno set. Lock held. */
static int keep(int fd) {
    if (fd < 0 || epw_fd_keep_from_child(fd)) return fd;
    close(fd);
    errno = ENOMEM;
    return -1;
}

static epw_status open_epoll(epw_links *links, epw_where where) {
    epw_process_lock();
    links->epoll = keep(epoll_create1(EPOLL_CLOEXEC));
    links->timer = links->epoll < 0 ? -1 : keep(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    int err = errno;
    epw_process_unlock();
    if (links->timer < 0) return epw_fail_errno(err, where, "epoll_create1 and timerfd_create");
    links->timer_source = TIMER;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &links->timer_source};
    if (epoll_ctl(links->epoll, EPOLL_CTL_ADD, links->timer, &event))
        return epw_fail_errno(errno, where, "epoll_ctl of a timer");
    return EPW_OK;
}

epw_status epw_links_open(const epw_links_options *options, epw_links **out) {
    epw_where where = {"links", (int)options->rank, -1};
    epw_addresses chosen;
    epw_status status = check(options, where);
    if (status == EPW_OK) status = epw_process_ready(where);
    if (status == EPW_OK) status = choose_addresses(options, where, &chosen);
    if (status != EPW_OK) return status;
    epw_links *links = calloc(1, sizeof *links);
    if (links == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for links");
    memcpy(links->self.key, options->key, sizeof links->self.key);
    links->self.rank = options->rank;
    links->self.fabric = options->fabric;
    links->handshake_ns = options->handshake_ns ? options->handshake_ns : EPW_LINKS_HANDSHAKE_NS;
    links->generation = epw_process_generation();
    links->epoll = links->timer = -1;
    links->armed_ns = NEVER;
    status = open_epoll(links, where);
    if (status == EPW_OK) status = listen_on(links, options, &chosen, where);
    if (status == EPW_OK && (options->wires & EPW_WIRE_LOCAL)) status = listen_locally(links, where);
    if (status != EPW_OK) {
        epw_links_close(links);
        return status;
    }
    *out = links;
    return EPW_OK;
}

/* In a forked child the numbers of these descriptors are closed, or belong to other files by now. */
static void end_connection(connection *c, bool foreign) {
    if (foreign) c->hand.fd = -1;
    epw_handshake_close(&c->hand);
    free(c);
}

static void close_descriptors(epw_links *links) {
    epw_process_lock();
    for (uint32_t i = 0; i < links->listener_count; i++) epw_fd_close(links->listeners[i].fd);
    if (links->timer >= 0) epw_fd_close(links->timer);
    if (links->epoll >= 0) epw_fd_close(links->epoll);
    epw_process_unlock();
}

void epw_links_close(epw_links *links) {
    if (links == NULL) return;
    bool foreign = is_foreign(links);
    while (links->up) {
        connection *c = links->up;
        links->up = c->next;
        end_connection(c, foreign);
    }
    for (uint32_t i = 0; i < links->stranger_count; i++) end_connection(links->strangers[i], foreign);
    while (links->dials) {
        dial *d = links->dials;
        links->dials = d->next;
        for (uint32_t i = 0; i < d->to.count; i++)
            if (d->tries[i]) end_connection(d->tries[i], foreign);
        epw_handshake ended = {.fd = foreign ? -1 : d->fd};
        epw_handshake_close(&ended);
        free(d);
    }
    free_closed(links);
    if (!foreign) close_descriptors(links);
    explicit_bzero(&links->self, sizeof links->self);
    free(links);
}
