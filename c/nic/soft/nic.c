/* See soft.h: the thread, the lock, and the connections. */
#include "nic/soft/parts.h"

#include "base/barrier.h"
#include "base/clock.h"
#include "base/thread.h"
#include "ipc/process.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { EVENTS = 64, SLOT_BITS = 16, LINKS_MAX = 1 << SLOT_BITS };

/* The id of the event that wakes the thread; no link has it. */
#define WAKE_ID UINT64_C(0)

/* Whether another thread has rung meanwhile and found the lock taken. The two observers: the thread that has
 * pushed onto `rung` and then failed to take the lock; and the one that has released the lock and then looks
 * here. Without a fence on both sides each could miss what the other has done. */
static bool rung_again(epw_nic *nic) {
    epw_notice_fence();
    return atomic_load_explicit(&nic->rung, memory_order_seq_cst) != NULL;
}

void epw_nic_lock(epw_nic *nic) {
    atomic_fetch_add_explicit(&nic->lockers, 1, memory_order_relaxed);
    pthread_mutex_lock(&nic->lock);
    atomic_fetch_sub_explicit(&nic->lockers, 1, memory_order_relaxed);
}

/* The NIC's thread, which polls without a pause, lets threads that wait for the lock go first, because a
 * mutex goes to whichever thread is awake. Each of them holds it only briefly. */
static void lock_last(epw_nic *nic) {
    while (atomic_load_explicit(&nic->lockers, memory_order_relaxed) > 0) sched_yield();
    pthread_mutex_lock(&nic->lock);
}

/* ---- connections: locked ---- */

epw_link *epw_nic_link(const epw_nic *nic, uint64_t id) {
    uint32_t slot = (uint32_t)id & (LINKS_MAX - 1);
    epw_link *link = slot < nic->link_count ? nic->links[slot] : NULL;
    return link != NULL && link->id == id ? link : NULL;
}

/* With rings drivers look by themselves, and the thread is woken once there is room. If there is room
 * already, the turn was over or the room has just appeared: the thread continues with it. */
static void await_ring_room(epw_link *link, bool awaits) {
    link->awaits_room = awaits && epw_ring_await_room(&link->rings.out);
    link->nic->goes_on |= awaits && !link->awaits_room;
}

void epw_nic_await_room(epw_link *link, bool awaits) {
    if (link->rings.memory != NULL) {
        await_ring_room(link, awaits);
        return;
    }
    if (link->awaits_room == awaits) return;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | (awaits ? (uint32_t)EPOLLOUT : 0),
                                .data.u64 = link->id};
    if (epoll_ctl(link->nic->epoll, EPOLL_CTL_MOD, link->fd, &event) != 0) return;
    link->awaits_room = awaits;
    link->nic->held_links += awaits ? 1 : UINT32_MAX;
}

void epw_nic_freeze(epw_link *link) {
    epoll_ctl(link->nic->epoll, EPOLL_CTL_DEL, link->fd, NULL);
}

void epw_nic_drop_link(epw_nic *nic, epw_link *link) {
    nic->links[link->id & (LINKS_MAX - 1)] = NULL;
    nic->open_links--;
    if (link->rings.memory != NULL) {
        nic->ring_links--;
    } else if (link->awaits_room) {
        nic->held_links--;
    }
    for (uint32_t i = 0; i < nic->pair_count; i++)
        if (nic->pairs[i] != NULL) epw_pair_lose(nic->pairs[i], link);
    epw_nic_freeze(link); /* a forked child may keep the socket open, and so in the epoll set */
    epw_link_free(link);
}

/* The connection has failed, and with it the pairs that send over it. What its peer had sent before is placed
 * first, also what has arrived over other connections: the words of a process that has ended may still lie in
 * one connection when the end of another is noticed. No more is read than sockets and rings hold. */
static void lose_link(epw_nic *nic, epw_link *link) {
    uint32_t peer = link->peer;
    for (uint32_t i = 0; i < nic->link_count; i++) {
        epw_link *other = nic->links[i];
        if (other == NULL || other->peer != peer || other->frozen) continue;
        other->over = !(other->rings.memory != NULL ? epw_link_take_rest(other) : epw_link_read(other));
    }
    epw_nic_drop_link(nic, link);
    for (uint32_t i = 0; i < nic->link_count; i++) {
        epw_link *other = nic->links[i];
        if (other != NULL && other->peer == peer && other->over) epw_nic_drop_link(nic, other);
    }
}

static bool grow(epw_nic *nic) {
    uint32_t count = nic->link_count == 0 ? 16 : 2 * nic->link_count;
    if (count > LINKS_MAX) return false;
    epw_link **links = realloc(nic->links, count * sizeof(epw_link *));
    if (links == NULL) return false;
    for (uint32_t i = nic->link_count; i < count; i++) links[i] = NULL;
    nic->links = links;
    nic->link_count = count;
    return true;
}

static epw_status enter(epw_nic *nic, epw_link *link, epw_where where) {
    uint32_t slot = 0;
    while (slot < nic->link_count && nic->links[slot] != NULL) slot++;
    if (slot == nic->link_count && !grow(nic))
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for another connection beside %u", slot);
    link->id = (uint64_t)++nic->link_serial << SLOT_BITS | slot;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = link->id};
    if (epoll_ctl(nic->epoll, EPOLL_CTL_ADD, link->fd, &event) != 0)
        return epw_fail_errno(errno, where, "cannot watch a connection");
    nic->links[slot] = link;
    nic->open_links++;
    if (link->rings.memory != NULL) epw_link_ringed(link);
    return EPW_OK;
}

void epw_link_ringed(epw_link *link) {
    link->nic->ring_links++;
    epw_ring_await_bytes(&link->rings.in, EPW_FRAME_BYTES);
}

/* What the bytes go by. */
typedef struct way {
    bool rings;
    uint32_t offered; /* bytes; 0: the other end makes them */
} way;

static epw_status add_link(epw_nic *nic, int fd, uint32_t peer, way by, epw_where where, uint64_t *out) {
    epw_link *link = epw_link_open(nic, fd, peer);
    if (link == NULL) {
        epw_fd_release(fd);
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a connection");
    }
    int err = by.rings && by.offered > 0 ? epw_rings_offer(&link->rings, fd, by.offered) : 0;
    if (err != 0) {
        epw_link_free(link);
        if (err == EPIPE || err == ECONNRESET)
            return epw_fail(EPW_ERR_PEER, where, "the peer has closed the connection");
        return epw_fail_errno(err, where, "cannot make the rings of a connection of %u bytes", by.offered);
    }
    link->awaits_rings = by.rings && by.offered == 0;
    epw_nic_lock(nic);
    epw_status status = enter(nic, link, where);
    if (status == EPW_OK) *out = link->id;
    epw_nic_unlock(nic);
    if (status != EPW_OK) epw_link_free(link);
    return status;
}

epw_status epw_nic_add_link(epw_nic *nic, int fd, uint32_t peer, epw_where where, uint64_t *link) {
    return add_link(nic, fd, peer, (way){0}, where, link);
}

epw_status epw_nic_add_ring_link(epw_nic *nic, int fd, uint32_t peer, uint32_t bytes, epw_where where,
                                 uint64_t *link) {
    return add_link(nic, fd, peer, (way){true, bytes}, where, link);
}

bool epw_nic_link_alive(epw_nic *nic, uint64_t id) {
    epw_nic_lock(nic);
    bool alive = epw_nic_link(nic, id) != NULL;
    epw_nic_unlock(nic);
    return alive;
}

void epw_nic_end_link(epw_nic *nic, uint64_t id) {
    epw_nic_lock(nic);
    epw_link *link = epw_nic_link(nic, id);
    if (link != NULL) epw_nic_drop_link(nic, link);
    epw_nic_unlock(nic);
}

void epw_nic_end_pair(epw_nic *nic, uint64_t id, uint32_t pair, uint32_t from) {
    epw_nic_lock(nic);
    epw_link *link = epw_nic_link(nic, id);
    if (link != NULL) {
        epw_link_tell(link, EPW_FRAME_ENDED, pair, from);
        epw_link_send(link);
        epw_nic_drop_link(nic, link);
    }
    epw_nic_unlock(nic);
}

void epw_nic_announce_pair(epw_nic *nic, uint64_t id, uint32_t pair, uint32_t from) {
    epw_nic_lock(nic);
    epw_link *link = epw_nic_link(nic, id);
    if (link != NULL) epw_link_tell(link, EPW_FRAME_CONNECTED, pair, from);
    epw_nic_unlock(nic);
}

void epw_nic_set_owner(epw_nic *nic, const epw_nic_owner *owner) {
    epw_nic_lock(nic);
    nic->owner = *owner;
    epw_nic_unlock(nic);
}

epw_nic_traffic epw_nic_sent(epw_nic *nic) {
    epw_nic_lock(nic);
    epw_nic_traffic sent = nic->sent;
    epw_nic_unlock(nic);
    return sent;
}

/* ---- work: locked ---- */

/* Wake-ups for a thread that listens to rings are left for it, because it would sleep on without them. */
static void take_in(epw_nic *nic, const struct epoll_event *events, int count, bool is_thread) {
    for (int i = 0; i < count; i++) {
        if (events[i].data.u64 == EPW_CARRIER_ID) epw_carry_heed(nic);
        epw_link *link = epw_nic_link(nic, events[i].data.u64);
        if (link == NULL || link->frozen) continue; /* the wake-up event, or a connection that is gone */
        bool ends = (events[i].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0;
        if (ends || (events[i].events & EPOLLIN)) {
            bool called = link->rings.memory != NULL && !ends && !is_thread;
            if (!called && !epw_link_read(link)) {
                lose_link(nic, link);
                continue;
            }
        }
        if (events[i].events & EPOLLOUT) epw_nic_await_room(link, false);
    }
}

/* Takes in what rings have brought. Returns whether they have brought anything. */
static bool take_from_rings(epw_nic *nic) {
    bool brought = false;
    for (uint32_t i = 0; nic->ring_links > 0 && i < nic->link_count; i++) {
        epw_link *link = nic->links[i];
        if (link == NULL || link->frozen || link->rings.memory == NULL) continue;
        if (epw_ring_filled(&link->rings.in) < epw_link_wants_bytes(link)) continue;
        brought = true;
        if (!epw_link_take_bytes(link)) lose_link(nic, link);
    }
    return brought;
}

/* The thread is about to listen only to the system, or to take a nap: whoever writes to a ring must wake it.
 * False: something has arrived already. */
static bool listen_to_rings(const epw_nic *nic) {
    bool silent = true;
    for (uint32_t i = 0; nic->ring_links > 0 && i < nic->link_count; i++) {
        epw_link *link = nic->links[i];
        if (link == NULL || link->frozen || link->rings.memory == NULL) continue;
        silent &= epw_ring_await_bytes(&link->rings.in, epw_link_wants_bytes(link));
    }
    return silent;
}

/* With rings: checks again whether there is room, and asks for another wake-up if not, since this one may
 * have been for room that is taken by now. */
static bool is_held(epw_link *link) {
    if (link->awaits_room && link->rings.memory != NULL)
        link->awaits_room = !epw_ring_has_room(&link->rings.out) && epw_ring_await_room(&link->rings.out);
    return link->awaits_room || link->awaits_rings;
}

/* At a strict NIC: pairs whose fetches were delayed, or waited for earlier entries. */
static void resume(const epw_nic *nic) {
    for (uint32_t i = 0; i < nic->pair_count; i++) {
        epw_pair *pair = nic->pairs[i];
        if (pair != NULL && pair->link != NULL && epw_pair_has_more(pair))
            epw_link_has_sender(pair->link, pair);
    }
}

/* Sends what links have to send, either those with entries or those without, except links that wait for room.
 * True if an ACK is waiting. */
static bool send_those(epw_nic *nic, bool with_entries) {
    bool waits = false;
    for (uint32_t i = 0; i < nic->link_count; i++) {
        epw_link *link = nic->links[i];
        if (link == NULL || (link->senders != NULL) != with_entries || is_held(link)) continue;
        if (link->out_at == link->out_count) {
            if (!epw_link_has_output(link)) continue;
            if (epw_link_may_wait(link)) {
                waits = true;
                continue;
            }
        }
        if (!epw_link_send(link)) lose_link(nic, link);
    }
    return waits;
}

/* Entries first: they take ACKs with them. */
static bool send_all(epw_nic *nic) {
    nic->goes_on = nic->unsent = false;
    epw_nic_heed_rung(nic);
    if (nic->strict != NULL) resume(nic);
    epw_carry_send(nic);
    bool waits = send_those(nic, true);
    return send_those(nic, false) || waits;
}

/* Work is left for the thread: makes sure that it dozes, and so comes soon, or that it listens. Called with
 * the lock held. A thread that is found dozing takes the lock after this. */
static void hand_over(epw_nic *nic, bool ack_waits) {
    bool dozing = atomic_load_explicit(&nic->dozing, memory_order_acquire);
    bool needed = ack_waits ? !dozing : nic->held_links > 0 && dozing;
    needed |= nic->goes_on;
    if (needed && !nic->called) epw_nic_wake(nic);
    nic->called |= needed;
}

void epw_nic_unlock(epw_nic *nic) {
    if (nic->unsent) hand_over(nic, send_all(nic));
    pthread_mutex_unlock(&nic->lock);
    if (rung_again(nic)) epw_nic_poll(nic);
}

/* If all bytes come through rings, sockets only show which ends are gone: drivers look at them this often,
 * and so does the thread when it polls. */
#define LOOK_NS 20000

static bool is_rings_alone(const epw_nic *nic) {
    return nic->ring_links == nic->open_links;
}

static void take_in_all(epw_nic *nic, struct epoll_event *events) {
    take_from_rings(nic);
    epw_carry_take(nic);
    if (is_rings_alone(nic) && nic->now_ns != 0 && nic->now_ns - nic->looked_ns < LOOK_NS) return;
    nic->looked_ns = nic->now_ns;
    take_in(nic, events, epoll_wait(nic->epoll, events, EVENTS, 0), false);
    epw_carry_take(nic);
}

/* Whether the event that wakes the thread is among those that have arrived. */
static bool is_called(const struct epoll_event *events, int count) {
    bool called = false;
    for (int i = 0; i < count; i++) called |= events[i].data.u64 == WAKE_ID;
    return called;
}

/* now_ns: 0, or the time of a caller that drives. */
static void poll_as(epw_nic *nic, bool takes, uint64_t now_ns) {
    struct epoll_event events[EVENTS];
    do {
        epw_notice_fence();
        if (pthread_mutex_trylock(&nic->lock) != 0) return;
        nic->now_ns = now_ns;
        if (takes) take_in_all(nic, events);
        bool ack_waits = send_all(nic);
        hand_over(nic, ack_waits);
        nic->now_ns = 0;
        pthread_mutex_unlock(&nic->lock);
    } while (rung_again(nic));
}

void epw_nic_stretch_sleeps(epw_nic *nic, uint32_t times) {
    atomic_store_explicit(&nic->stretch, times, memory_order_relaxed);
}

static void await_readable(const epw_nic *nic, int fd, uint64_t ns) {
    ns *= atomic_load_explicit(&nic->stretch, memory_order_relaxed);
    struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    ppoll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, &time, NULL);
}

/* For doorbells that kernels ring, which wakes nobody: after something has arrived or was rung for, the
 * thread polls for a while without a pause; then it naps between looks, ten times as long if nothing has
 * happened for a second. Anything that arrives over a connection ends a nap. */
#define POLL_NS     UINT64_C(10000000)
#define IDLE_NS     UINT64_C(1000000000)
#define NAP_NS      50000
#define IDLE_NAP_NS 500000

static void nap(const epw_nic *nic, uint64_t idle_ns) {
    await_readable(nic, nic->epoll, idle_ns < IDLE_NS ? NAP_NS : IDLE_NAP_NS);
}

void epw_nic_poll(epw_nic *nic) {
    poll_as(nic, true, 0);
}

/* Polls each connection separately: an epoll_wait that does not wait may miss what the thread's own call is
 * collecting at this moment. One that the peer has closed is read to its end, which comes after the last
 * bytes. */
static void look_at(epw_nic *nic, uint32_t slot) {
    bool ends = true;
    while (ends && nic->links[slot] != NULL && !nic->links[slot]->frozen) {
        struct pollfd at = {.fd = nic->links[slot]->fd, .events = POLLIN | POLLRDHUP};
        if (poll(&at, 1, 0) != 1) return;
        ends = (at.revents & ~POLLIN) != 0;
        uint32_t events = (at.revents & POLLIN ? EPOLLIN : 0u) | (ends ? EPOLLHUP : 0u);
        take_in(nic, &(struct epoll_event){.events = events, .data.u64 = nic->links[slot]->id}, 1, false);
    }
}

void epw_nic_look(epw_nic *nic) {
    epw_nic_lock(nic);
    for (uint32_t i = 0; i < nic->link_count; i++) look_at(nic, i);
    epw_carry_take(nic);
    epw_nic_unlock(nic);
}

void epw_nic_carry(epw_nic *nic) {
    poll_as(nic, false, 0);
}

void epw_nic_drive(epw_nic *nic, uint64_t now_ns) {
    atomic_fetch_add_explicit(&nic->drives, 1, memory_order_relaxed);
    poll_as(nic, true, now_ns);
}

/* A driver leaves. The two observers: the driver, and the thread that is about to doze. Both use sequentially
 * consistent accesses, so either the driver sees the thread dozing, or the thread sees that the driver has
 * left. */
void epw_nic_rest(epw_nic *nic) {
    atomic_store_explicit(&nic->left, atomic_load_explicit(&nic->drives, memory_order_relaxed),
                          memory_order_relaxed);
    atomic_fetch_add_explicit(&nic->rests, 1, memory_order_seq_cst);
    if (atomic_exchange_explicit(&nic->dozing, false, memory_order_seq_cst)) epw_nic_wake(nic);
}

/* Whether somebody has driven since the thread counted `drives`, and has not left since. */
static bool is_driven(const epw_nic *nic, uint32_t drives) {
    uint32_t now = atomic_load_explicit(&nic->drives, memory_order_relaxed);
    return now != drives && now != atomic_load_explicit(&nic->left, memory_order_relaxed);
}

/* The thread's doze: until somebody wakes it, or its time is over. `rests`: its value before the thread
 * looked for drivers. */
static void doze(epw_nic *nic, uint32_t rests) {
    atomic_store_explicit(&nic->dozing, true, memory_order_seq_cst);
    if (atomic_load_explicit(&nic->rests, memory_order_seq_cst) == rests)
        await_readable(nic, nic->wake, EPW_NIC_DOZE_NS);
    atomic_store_explicit(&nic->dozing, false, memory_order_seq_cst);
}

static void *nic_main(void *argument) {
    epw_thread_name("epw-nic");
    epw_nic *nic = argument;
    struct epoll_event events[EVENTS];
    bool polls = false;
    uint64_t busy_ns = 0; /* when polling: the last time at which there was something to do */
    uint64_t now_ns = 0, idle_ns = 0, looked_ns = 0;
    bool looks = true;
    int looks_after_ms = -1;
    uint32_t drives = 0;
    bool held = false, listens = false; /* a call ends its sleep */
    for (bool ending = false; !ending;) {
        int count = 0;
        bool dozed = false;
        uint32_t rests = atomic_load_explicit(&nic->rests, memory_order_seq_cst);
        if (polls) {
            if (listens) nap(nic, idle_ns);
            looks |= listens || now_ns - looked_ns >= LOOK_NS;
            if (looks) count = epoll_wait(nic->epoll, events, EVENTS, 0);
            if (looks) looked_ns = now_ns;
        } else if (is_driven(nic, drives) && !held) {
            drives = atomic_load_explicit(&nic->drives, memory_order_relaxed);
            doze(nic, rests);
            dozed = true;
        } else if (listens) {
            count = epoll_wait(nic->epoll, events, EVENTS, looks_after_ms);
        }
        bool called = dozed || is_called(events, count);
        if (!polls && !dozed && listens) {
            /* What has arrived is left to a driver, if there is one. */
            if (is_driven(nic, drives) && !held) count = 0;
        }
        lock_last(nic);
        looks_after_ms = nic->strict != NULL ? 1 : -1; /* it has delays to end */
        polls = nic->polled > 0;
        bool busy = epw_nic_heed_polled(nic) || count > 0;
        take_in(nic, events, count, true);
        busy |= take_from_rings(nic);
        busy |= epw_carry_take(nic);
        send_all(nic);
        held = nic->held_links > 0;
        if (polls) {
            now_ns = epw_now_ns();
            if (busy) busy_ns = now_ns;
            idle_ns = now_ns - busy_ns;
        }
        looks = !is_rings_alone(nic);
        bool may_sleep = polls ? idle_ns >= POLL_NS : held || !is_driven(nic, drives);
        listens = may_sleep && !nic->goes_on && listen_to_rings(nic);
        ending = nic->ending;
        if (called && !ending) {
            nic->called = false;
            eventfd_read(nic->wake, &(eventfd_t){0}); /* only this thread: the wake-up is for it */
        }
        pthread_mutex_unlock(&nic->lock);
        if (rung_again(nic)) epw_nic_poll(nic);
    }
    return NULL;
}

/* ---- regions ---- */

uint32_t epw_nic_register(epw_nic *nic, const epw_region *region) {
    epw_nic_lock(nic);
    uint32_t key = epw_regions_add(&nic->regions, region);
    epw_nic_unlock(nic);
    return key;
}

uint32_t epw_nic_carried_key(epw_nic *nic, uint32_t key) {
    epw_nic_lock(nic);
    const epw_region *region = epw_regions_find(&nic->regions, key);
    uint32_t carried = region != NULL ? region->carried_key : 0;
    epw_nic_unlock(nic);
    return carried;
}

void epw_nic_deregister(epw_nic *nic, uint32_t key) {
    epw_nic_lock(nic);
    const epw_region *found = epw_regions_find(&nic->regions, key);
    if (found != NULL) {
        const epw_region region = *found;
        epw_regions_drop(&nic->regions, key);
        for (uint32_t i = 0; i < nic->link_count; i++) {
            epw_link *link = nic->links[i];
            if (link != NULL && !epw_link_forget_region(link, key, &region)) epw_nic_drop_link(nic, link);
        }
    }
    epw_nic_unlock(nic);
}

/* ---- life ---- */

static epw_status start(epw_nic *nic, epw_where where) {
    nic->epoll = epoll_create1(EPOLL_CLOEXEC);
    nic->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = WAKE_ID};
    if (nic->epoll < 0 || nic->wake < 0 || epoll_ctl(nic->epoll, EPOLL_CTL_ADD, nic->wake, &event) != 0)
        return epw_fail_errno(errno, where, "cannot watch connections");
    int err = epw_thread_start(nic_main, nic, &nic->thread);
    if (err != 0) return epw_fail_errno(err, where, "cannot start the thread of the software NIC");
    nic->started = true;
    return EPW_OK;
}

epw_status epw_nic_open(epw_where where, epw_nic **out) {
    epw_nic *nic = calloc(1, sizeof *nic);
    if (nic == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a software NIC");
    pthread_mutex_init(&nic->lock, NULL);
    nic->epoll = nic->wake = -1;
    nic->stretch = 1;
    epw_status status = start(nic, where);
    if (status != EPW_OK) {
        epw_nic_close(nic);
        return status;
    }
    *out = nic;
    return EPW_OK;
}

void epw_nic_wake(epw_nic *nic) {
    uint64_t one = 1;
    while (write(nic->wake, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

void epw_nic_close(epw_nic *nic) {
    if (nic == NULL) return;
    if (nic->started) {
        epw_nic_lock(nic);
        nic->ending = true;
        pthread_mutex_unlock(&nic->lock);
        epw_nic_wake(nic);
        pthread_join(nic->thread, NULL);
    }
    for (uint32_t i = 0; i < nic->link_count; i++)
        if (nic->links[i] != NULL) epw_link_free(nic->links[i]);
    epw_carrier_free(nic->carrier);
    if (nic->epoll >= 0) close(nic->epoll);
    if (nic->wake >= 0) close(nic->wake);
    epw_regions_free(&nic->regions);
    free(nic->strict);
    free(nic->links);
    free(nic->pairs);
    free(nic->serials);
    pthread_mutex_destroy(&nic->lock);
    free(nic);
}
