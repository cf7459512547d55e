/* See sleep.h, and epw_watch in peers.h.
 *
 * A waiter first spins, if every rank can have a core, or for a moment if those that it waits for run on
 * others; then it yields, because a word that comes within microseconds is not worth two system calls and a
 * wake-up; then it sleeps, in slices that grow with the wait, so that a wait of seconds takes almost no time
 * of a core. Before it sleeps it drives the NIC, if there is one, so that a word from behind a queue need not
 * wake another thread first; while it sleeps the NIC's thread does that. */
#include "peer/sleep.h"

#include "base/barrier.h"
#include "base/clock.h"
#include "base/thread.h"
#include "peer/remote.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A sleeper wakes by itself after at most this time, to look for words that it does not sleep on: an eighth
 * of the wait so far, within these bounds. */
#define SLICE_MIN_NS UINT64_C(2000000)
#define SLICE_MAX_NS UINT64_C(16000000)

/* Waiters spin this long before they yield, if every thread of every rank can have a core. */
#define SPIN_NS UINT64_C(50000)
/* And yield this long before they sleep. */
#define YIELD_NS UINT64_C(300000)
/* The slice for a word that may not be used before this rank's own rows have reached the peer: nobody is
 * woken when they have. */
#define HELD_SLICE_MIN_NS UINT64_C(100000)

void epw_peers_choose_waits(epw_peers *peers, uint32_t threads) {
    peers->spin_ns = (uint64_t)threads * peers->ranks <= epw_thread_cores() ? SPIN_NS : 0;
    peers->yield_ns = YIELD_NS;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "futexes are the low halves of 64-bit words");

/* Not FUTEX_PRIVATE: the word lies in memory that several processes map. */
void epw_futex_wake(_Atomic uint64_t *word) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void epw_futex_wait(_Atomic uint64_t *word, uint64_t value, uint64_t ns) {
    struct timespec timeout = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT, (uint32_t)value, &timeout, NULL, 0);
}

/* ---- cores ---- */

static _Atomic uint32_t *core_in(uint64_t window) {
    return (_Atomic uint32_t *)&((epw_window_header *)(uintptr_t)window)->core;
}

uint32_t epw_core_tell(const epw_peers *peers) {
    if (peers->gpu != NULL) return 0; /* the window is not the host's memory */
    _Atomic uint32_t *told = core_in((uint64_t)(uintptr_t)epw_peers_own(peers));
    uint32_t core = (uint32_t)(sched_getcpu() + 1); /* 0 if the system does not say */
    if (atomic_load_explicit(told, memory_order_relaxed) != core)
        atomic_store_explicit(told, core, memory_order_relaxed);
    return core;
}

bool epw_may_need_core(const epw_peers *peers, uint32_t peer, uint32_t core) {
    const epw_route *route = &peers->routes[peer];
    if (core == 0 || route->path == EPW_PATH_NONE || route->path == EPW_PATH_QUEUE) return true;
    uint32_t its = atomic_load_explicit(core_in(route->lanes[0].control), memory_order_relaxed);
    return its == 0 || its == core;
}

uint64_t epw_spin_ns(const epw_peers *peers, const epw_mask *awaited) {
    if (peers->spin_ns > 0) return peers->spin_ns;
    uint32_t core = epw_core_tell(peers);
    if (epw_mask_empty(awaited)) return 0;
    EPW_MASK_FOR(peer, awaited, peers->ranks) if (epw_may_need_core(peers, peer, core)) return 0;
    return EPW_SPIN_ELSEWHERE_NS;
}

/* ---- the bell ---- */

static _Atomic uint32_t *listeners_in(uint64_t window) {
    return (_Atomic uint32_t *)&((epw_window_header *)(uintptr_t)window)->listeners;
}

static _Atomic uint32_t *bell_in(uint64_t window) {
    return (_Atomic uint32_t *)&((epw_window_header *)(uintptr_t)window)->bell;
}

/* The poster's side: it has stored its word by a sequentially consistent exchange, and loads `listeners`
 * after that. The listener increments `listeners`, reads the bell, and looks at all words again before it
 * sleeps on that value of the bell: either it sees the word, or this function sees it listening and changes
 * the bell. */
void epw_bell_ring(uint64_t window) {
    if (atomic_load_explicit(listeners_in(window), memory_order_seq_cst) == 0) return;
    atomic_fetch_add_explicit(bell_in(window), 1, memory_order_seq_cst);
    syscall(SYS_futex, (uint32_t *)bell_in(window), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void epw_bell_toll(const epw_peers *peers) {
    epw_bell_ring((uint64_t)(uintptr_t)epw_peers_own(peers));
}

uint32_t epw_bell_listen(const epw_peers *peers) {
    uint64_t own = (uint64_t)(uintptr_t)epw_peers_own(peers);
    atomic_fetch_add_explicit(listeners_in(own), 1, memory_order_seq_cst);
    return atomic_load_explicit(bell_in(own), memory_order_seq_cst);
}

void epw_bell_sleep(const epw_peers *peers, uint32_t heard, uint64_t ns) {
    struct timespec timeout = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    uint64_t own = (uint64_t)(uintptr_t)epw_peers_own(peers);
    epw_remotes_rest(peers);
    syscall(SYS_futex, (uint32_t *)bell_in(own), FUTEX_WAIT, heard, &timeout, NULL, 0);
}

void epw_bell_leave(const epw_peers *peers) {
    uint64_t own = (uint64_t)(uintptr_t)epw_peers_own(peers);
    atomic_fetch_sub_explicit(listeners_in(own), 1, memory_order_relaxed);
}

void epw_bell_look(const epw_peers *peers, bool sleeps, epw_awaited *out) {
    out->peers = peers;
    if (!sleeps) return;
    uint64_t own = (uint64_t)(uintptr_t)epw_peers_own(peers);
    out->seen = epw_bell_listen(peers);
    out->word = bell_in(own);
    out->sleepers = listeners_in(own);
}

void epw_watch_clear(epw_watch *watch) {
    atomic_store_explicit(&watch->peer, UINT32_MAX, memory_order_relaxed);
}

void epw_watch_set(epw_watch *watch, uint32_t peer, uint32_t word, const epw_look *seen, uint64_t spin_ns,
                   uint64_t since, uint64_t until) {
    atomic_store_explicit(&watch->word, word, memory_order_relaxed);
    atomic_store_explicit(&watch->held, seen->held, memory_order_relaxed);
    atomic_store_explicit(&watch->spin_ns, spin_ns, memory_order_relaxed);
    atomic_store_explicit(&watch->dropped, seen->sight.dropped, memory_order_relaxed);
    atomic_store_explicit(&watch->epoch, seen->sight.epoch_word, memory_order_relaxed);
    atomic_store_explicit(&watch->value, seen->stored, memory_order_relaxed);
    atomic_store_explicit(&watch->since, since, memory_order_relaxed);
    atomic_store_explicit(&watch->until, until, memory_order_relaxed);
    atomic_store_explicit(&watch->peer, peer, memory_order_release);
}

/* One sleeper's copy of the watch. */
typedef struct sight {
    _Atomic uint64_t *dropped, *epoch, *word;
    uint64_t dropped_seen, epoch_seen, word_seen;
    bool held; /* may have arrived but not count yet */
    uint64_t spin_ns;
} sight;

static bool changed(const sight *s, memory_order order) {
    return atomic_load_explicit(s->word, order) != s->word_seen ||
           atomic_load_explicit(s->dropped, order) != s->dropped_seen ||
           atomic_load_explicit(s->epoch, order) != s->epoch_seen;
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Spins, then yields, and drives the NIC meanwhile, so that what arrives need not wake another thread. True
 * if a word has changed, or the time is over. */
static bool changed_soon(const epw_peers *peers, const sight *s, uint64_t began, uint64_t until) {
    uint64_t now = began;
    while (now < until && now - began < peers->spin_ns + peers->yield_ns) {
        if (changed(s, memory_order_acquire)) return true;
        epw_remotes_drive(peers, now);
        if (changed(s, memory_order_acquire)) return true;
        if (now - began < s->spin_ns) {
            epw_cpu_relax();
        } else {
            sched_yield();
        }
        if (s->held) return true; /* what delays it may have ended */
        now = epw_now_ns();
    }
    return now >= until;
}

/* The futex compares only the low half of one word. Another word that ends the wait, such as a farewell, may
 * come between the look and the sleep, and the epoch words of two epochs may have the same low half: in these
 * cases the sleep ends with its slice.
 *
 * The second look, after the increment of `sleepers`, is the sleeper's side of the ordering in epw_signal; so
 * is the only one in epw_watch_look. */
static void sleep_on(const epw_peers *peers, const sight *s, uint64_t ns) {
    epw_remotes_rest(peers);
    _Atomic uint32_t *sleepers = epw_sleepers_in((uint64_t)(uintptr_t)epw_peers_own(peers));
    atomic_fetch_add_explicit(sleepers, 1, memory_order_seq_cst);
    if (!changed(s, memory_order_seq_cst)) epw_futex_wait(s->word, s->word_seen, ns);
    atomic_fetch_sub_explicit(sleepers, 1, memory_order_relaxed);
}

void epw_watch_wake(const epw_peers *peers, uint32_t lane, epw_watch *watch) {
    uint32_t peer = atomic_load_explicit(&watch->peer, memory_order_acquire);
    if (peer >= peers->ranks) return;
    uint32_t word = atomic_load_explicit(&watch->word, memory_order_relaxed);
    epw_futex_wake((_Atomic uint64_t *)(epw_peers_own(peers) + epw_word_offset(peer, lane, word)));
}

/* Reads the watch. False: there is nothing to wait for. */
static bool read_watch(const epw_peers *peers, uint32_t lane, const epw_watch *watch, sight *s,
                       uint64_t *since, uint64_t *until) {
    uint32_t peer = atomic_load_explicit(&watch->peer, memory_order_acquire);
    if (peer >= peers->ranks) return false;
    unsigned char *words = epw_peers_own(peers) + epw_word_offset(peer, lane, 0);
    uint32_t word = atomic_load_explicit(&watch->word, memory_order_relaxed);
    *s = (sight){.dropped = (_Atomic uint64_t *)words + EPW_WORD_DROPPED,
                 .epoch = (_Atomic uint64_t *)words + EPW_WORD_EPOCH,
                 .word = (_Atomic uint64_t *)words + word,
                 .dropped_seen = atomic_load_explicit(&watch->dropped, memory_order_relaxed),
                 .epoch_seen = atomic_load_explicit(&watch->epoch, memory_order_relaxed),
                 .word_seen = atomic_load_explicit(&watch->value, memory_order_relaxed),
                 .held = atomic_load_explicit(&watch->held, memory_order_relaxed),
                 .spin_ns = atomic_load_explicit(&watch->spin_ns, memory_order_relaxed)};
    *until = atomic_load_explicit(&watch->until, memory_order_relaxed);
    *since = atomic_load_explicit(&watch->since, memory_order_relaxed);
    return true;
}

static uint64_t slice_of(const sight *s, uint64_t since, uint64_t now) {
    uint64_t slice = (now - least(since, now)) / 8, least_ns = s->held ? HELD_SLICE_MIN_NS : SLICE_MIN_NS;
    return slice < least_ns ? least_ns : least(slice, SLICE_MAX_NS);
}

void epw_watch_sleep(const epw_peers *peers, uint32_t lane, epw_watch *watch, uint64_t timeout_ns) {
    sight s;
    uint64_t since, until, now = epw_now_ns();
    if (!read_watch(peers, lane, watch, &s, &since, &until)) return;
    if (timeout_ns < until - least(now, until)) until = now + timeout_ns;
    if (epw_wait_is_young(peers, since, now) && changed_soon(peers, &s, now, until)) return;
    now = epw_now_ns();
    if (until <= now) return;
    sleep_on(peers, &s, least(slice_of(&s, since, now), until - now));
}

void epw_watch_look(const epw_peers *peers, uint32_t lane, const epw_watch *watch, bool sleeps, uint64_t now,
                    epw_awaited *out) {
    sight s;
    uint64_t since, until;
    out->ready = !read_watch(peers, lane, watch, &s, &since, &until);
    if (out->ready) return;
    out->peers = peers;
    out->young = epw_wait_is_young(peers, since, now);
    if (sleeps) {
        out->word = (_Atomic uint32_t *)s.word;
        out->seen = (uint32_t)s.word_seen;
        out->sleepers = epw_sleepers_in((uint64_t)(uintptr_t)epw_peers_own(peers));
        atomic_fetch_add_explicit(out->sleepers, 1, memory_order_seq_cst);
    }
    uint64_t slice = slice_of(&s, since, now), age = now - out->since;
    out->ready = changed(&s, memory_order_seq_cst) || now >= until || age >= slice ||
                 (s.held && out->young); /* what delays it may have ended */
    out->ns = out->ready ? 0 : least(slice - age, until - now);
}
