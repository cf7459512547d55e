/* Signal words: posting, judging peers, beacons, sleeping. The decisions are rules.h's; this file loads what
 * they need and carries out what follows. */
#include "ep/internal.h"

#include "base/barrier.h"
#include "base/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A sleeper wakes at least this often to look at words it does not sleep on. */
#define SLEEP_SLICE_NS UINT64_C(2000000)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "futexes below are the low halves of 64-bit words");

static _Atomic uint64_t *atomic_word(uint64_t *word) {
    return (_Atomic uint64_t *)word;
}

epw_line *epw_line_from(const epw_buffer *b, uint32_t source) {
    return (epw_line *)(b->routes[b->config.rank].window + epw_line_offset(source));
}

epw_line *epw_line_at(const epw_buffer *b, uint32_t peer) {
    return (epw_line *)(b->routes[peer].window + epw_line_offset(b->config.rank));
}

static _Atomic uint32_t *sleepers_at(const epw_buffer *b, uint32_t peer) {
    return (_Atomic uint32_t *)&((epw_window_header *)b->routes[peer].window)->sleepers;
}

/* Not FUTEX_PRIVATE: the word lies in memory that several processes map. */
static void futex_wake(uint64_t *word) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void futex_wait(_Atomic uint64_t *word, uint32_t low_half, uint64_t ns) {
    struct timespec timeout = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT, low_half, &timeout, NULL, 0);
}

/* Writer: this rank. Reader: the peer's judge (epw_wait_judge). Release: rows written before are visible to
 * who acquires the word. The exchange is sequentially consistent with the load of `sleepers` after it and
 * with the sleeper's increment and re-check (epw_wait_sleep): either this side sees the sleeper, or the
 * sleeper sees the word. */
static bool store_word(const epw_buffer *b, uint32_t peer, uint64_t *word, uint64_t value) {
    atomic_exchange_explicit(atomic_word(word), value, memory_order_seq_cst);
    return atomic_load_explicit(sleepers_at(b, peer), memory_order_seq_cst) > 0;
}

void epw_post(const epw_buffer *b, uint32_t peer, uint64_t *word, uint64_t value) {
    if (store_word(b, peer, word, value)) futex_wake(word);
}

void epw_post_notice(const epw_buffer *b, uint32_t peer, uint64_t *word, uint64_t value) {
    if (!store_word(b, peer, word, value)) return;
    epw_line *line = epw_line_at(b, peer);
    for (int lane = 0; lane < EPW_MAX_LANES; lane++) {
        futex_wake(&line->lanes[lane].epoch);
        for (int word = 0; word < EPW_USER_WORDS; word++) futex_wake(&line->lanes[lane].user[word]);
    }
}

/* The word that would end the wait. */
static uint64_t *awaited_word(const epw_buffer *b, const epw_lane *lane, epw_awaiting what, uint32_t peer) {
    uint64_t *words = (uint64_t *)&epw_line_from(b, peer)->lanes[epw_lane_index(b, lane)];
    switch (what) {
    case EPW_AWAIT_EPOCH:
        return &words[EPW_WORD_EPOCH];
    case EPW_AWAIT_ROWS:
        return &words[EPW_WORD_DISPATCH];
    default:
        return &words[EPW_WORD_COMBINE];
    }
}

static epw_verdict judge_words(const epw_buffer *b, epw_sight seen, epw_awaiting what, uint32_t op) {
    if (what == EPW_AWAIT_EPOCH || what == EPW_AWAIT_PERMISSION) {
        return epw_rule_may_send(seen, b->epoch, op, what == EPW_AWAIT_EPOCH);
    }
    return epw_rule_arrived(seen, b->epoch, op);
}

/* Order of loads: see epw_sight. Writer of all three: the peer. */
static epw_sight look(const epw_buffer *b, const epw_lane *lane, uint32_t peer, uint64_t *word) {
    epw_lane_words *line = &epw_line_from(b, peer)->lanes[epw_lane_index(b, lane)];
    epw_sight seen;
    seen.dropped = atomic_load_explicit(atomic_word(&line->dropped), memory_order_acquire);
    seen.epoch_word = atomic_load_explicit(atomic_word(&line->epoch), memory_order_acquire);
    seen.word = atomic_load_explicit(atomic_word(word), memory_order_acquire);
    return seen;
}

void epw_wait_begin(epw_buffer *b, epw_lane *lane, uint64_t deadline_ns) {
    epw_wait *wait = &lane->wait;
    wait->started = epw_now_ns();
    wait->deadline_ns = deadline_ns;
    wait->beacons = 0;
    for (uint32_t r = 0; r < b->config.ranks; r++) wait->clock[r] = wait->started;
    memset(wait->heard, 0, (size_t)b->config.ranks * EPW_MAX_LANES * sizeof wait->heard[0]);
    lane->waiting = true;
}

static void post_beacon(epw_buffer *b, epw_lane *lane, uint32_t value) {
    uint32_t index = epw_lane_index(b, lane);
    lane->beacon++;
    EPW_MASK_FOR(peer, &b->active, b->config.ranks) {
        if (peer == b->config.rank || epw_suspected(b, peer)) continue;
        epw_post_notice(b, peer, &epw_line_at(b, peer)->lanes[index].beacon,
                        epw_word(b->epoch, lane->beacon, value));
    }
}

void epw_wait_keep(epw_buffer *b, epw_lane *lane, const epw_mask *awaited) {
    uint64_t now = epw_now_ns();
    for (uint32_t peer = 0; peer < b->config.ranks; peer++) {
        if (epw_mask_has(awaited, peer)) continue;
        lane->wait.clock[peer] = now;
        memset(lane->wait.heard + (size_t)peer * EPW_MAX_LANES, 0,
               EPW_MAX_LANES * sizeof lane->wait.heard[0]);
    }
}

void epw_wait_end(epw_buffer *b, epw_lane *lane) {
    if (lane->wait.beacons > 0) post_beacon(b, lane, EPW_BEACON_NONE);
    lane->wait.beacons = 0;
    lane->waiting = false;
    atomic_store_explicit(&lane->watched, NULL, memory_order_relaxed);
}

static uint64_t beacon_word(const epw_buffer *b, uint32_t peer, uint32_t lane) {
    return atomic_load_explicit(atomic_word(&epw_line_from(b, peer)->lanes[lane].beacon),
                                memory_order_acquire);
}

/* A peer seen waiting is alive: each new beacon of it restarts its clock. */
static void heed_beacons(epw_buffer *b, epw_wait *wait, uint32_t peer, uint64_t now) {
    for (uint32_t lane = 0; lane < b->config.lanes; lane++) {
        uint64_t word = beacon_word(b, peer, lane),
                 *heard = &wait->heard[(size_t)peer * EPW_MAX_LANES + lane];
        uint32_t named, lengthened;
        if (word == *heard || !epw_rule_beacon(word, b->epoch, b->config.ranks, &named, &lengthened))
            continue;
        *heard = word;
        wait->clock[peer] = now;
    }
}

/* When the time of a peer is over. */
static uint64_t expiry(const epw_wait *wait, uint32_t peer) {
    uint64_t last = wait->started + EPW_WAIT_DEADLINES_MAX * wait->deadline_ns;
    uint64_t own = wait->clock[peer] + wait->deadline_ns;
    return own < last ? own : last;
}

epw_verdict epw_wait_judge(epw_buffer *b, epw_lane *lane, epw_awaiting what, uint32_t op, uint32_t peer,
                           uint64_t now, uint32_t *value, uint32_t *cause) {
    epw_sight seen = look(b, lane, peer, awaited_word(b, lane, what, peer));
    epw_verdict verdict = judge_words(b, seen, what, op);
    *value = epw_word_value(seen.word);
    if (verdict == EPW_ARRIVED) return EPW_ARRIVED;
    if (verdict == EPW_GONE) {
        *cause = EPW_CAUSE_DROPPED;
    } else if (epw_suspected(b, peer)) {
        *cause = EPW_CAUSE_SUSPECTED; /* by the other lane, meanwhile */
    } else {
        heed_beacons(b, &lane->wait, peer, now);
        if (now < expiry(&lane->wait, peer)) return EPW_WAITING;
        *cause = EPW_CAUSE_TIMEOUT;
    }
    epw_suspect(b, peer);
    return EPW_GONE;
}

/* Whom to name: an awaited peer that is silent itself; if all of them wait too, whom the first of them names.
 */
static uint32_t whom_to_name(const epw_buffer *b, const epw_mask *awaited) {
    uint32_t fallback = EPW_BEACON_NONE;
    EPW_MASK_FOR(peer, awaited, b->config.ranks) {
        bool silent = true;
        for (uint32_t lane = 0; lane < b->config.lanes; lane++) {
            uint32_t named, lengthened;
            if (!epw_rule_beacon(beacon_word(b, peer, lane), b->epoch, b->config.ranks, &named, &lengthened))
                continue;
            silent = false;
            if (fallback == EPW_BEACON_NONE && named != b->config.rank) fallback = named;
        }
        if (silent) return peer;
        if (fallback == EPW_BEACON_NONE) fallback = peer;
    }
    return fallback;
}

/* Lets sleepers sleep on the word that would end the wait for `peer`, until a time. What has come since the
 * step looked must not be slept on. Writer: whoever steps the lane. Reader: epw_wait_sleep on any thread; a
 * torn triple costs one slice at most. */
static void watch(const epw_buffer *b, epw_lane *lane, epw_awaiting what, uint32_t op, uint32_t peer,
                  uint64_t until) {
    uint64_t *word = awaited_word(b, lane, what, peer);
    epw_sight seen = look(b, lane, peer, word);
    if (judge_words(b, seen, what, op) != EPW_WAITING) until = 0;
    atomic_store_explicit(&lane->watched_value, seen.word, memory_order_relaxed);
    atomic_store_explicit(&lane->watch_until, until, memory_order_relaxed);
    atomic_store_explicit(&lane->watched, atomic_word(word), memory_order_release);
}

void epw_wait_pause(epw_buffer *b, epw_lane *lane, epw_awaiting what, uint32_t op, const epw_mask *awaited,
                    uint64_t now) {
    epw_wait *wait = &lane->wait;
    /* By the group's deadline: the others may not have lengthened theirs. */
    uint64_t due = epw_rule_beacons_due(now - wait->started, b->config.deadline_ns);
    if (due > wait->beacons) {
        wait->beacons = due;
        post_beacon(b, lane, whom_to_name(b, awaited));
    }
    uint64_t until = wait->started + (wait->beacons + 1) * (b->config.deadline_ns / 2);
    uint32_t first = b->config.ranks;
    EPW_MASK_FOR(peer, awaited, b->config.ranks) {
        if (first == b->config.ranks) first = peer;
        uint64_t end = expiry(wait, peer);
        if (end < until) until = end;
    }
    if (first < b->config.ranks) watch(b, lane, what, op, first, until);
}

bool epw_wait_over(epw_buffer *b, epw_lane *lane, epw_awaiting what, uint32_t op, const epw_mask *awaited) {
    EPW_MASK_FOR(peer, awaited, b->config.ranks) {
        epw_sight seen = look(b, lane, peer, awaited_word(b, lane, what, peer));
        if (judge_words(b, seen, what, op) != EPW_WAITING || epw_suspected(b, peer)) continue;
        watch(b, lane, what, op, peer, UINT64_MAX);
        return false;
    }
    return true;
}

void epw_wait_sleep(epw_buffer *b, epw_lane *lane, uint64_t timeout_ns) {
    _Atomic uint64_t *word = atomic_load_explicit(&lane->watched, memory_order_acquire);
    if (word == NULL) return;
    uint64_t seen = atomic_load_explicit(&lane->watched_value, memory_order_relaxed);
    uint64_t until = atomic_load_explicit(&lane->watch_until, memory_order_relaxed);
    uint64_t began = epw_now_ns(), now = began;
    while (now < until && now - began < b->spin_ns) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return;
        epw_cpu_relax();
        now = epw_now_ns();
    }
    if (until <= now) return;
    uint64_t ns = until - now;
    if (ns > SLEEP_SLICE_NS) ns = SLEEP_SLICE_NS;
    if (ns > timeout_ns) ns = timeout_ns;
    _Atomic uint32_t *sleepers = sleepers_at(b, b->config.rank);
    atomic_fetch_add_explicit(sleepers, 1, memory_order_seq_cst);
    if (atomic_load_explicit(word, memory_order_seq_cst) == seen) futex_wait(word, (uint32_t)seen, ns);
    atomic_fetch_sub_explicit(sleepers, 1, memory_order_relaxed);
}

void epw_suspect(epw_buffer *b, uint32_t peer) {
    uint64_t bit = UINT64_C(1) << (peer % 64);
    uint64_t before = atomic_fetch_or_explicit(&b->suspects[peer / 64], bit, memory_order_relaxed);
    if (before & bit) return;
    for (uint32_t lane = 0; lane < b->config.lanes; lane++)
        epw_post_notice(b, peer, &epw_line_at(b, peer)->lanes[lane].dropped, epw_word(b->epoch, 0, 0));
}

void epw_lane_lose(epw_buffer *b, epw_lane *lane, uint32_t phase, uint32_t cause, uint32_t peer,
                   uint64_t now) {
    epw_mask_add(&lane->missing, peer);
    if (lane->record.cause != EPW_CAUSE_NONE) return;
    epw_awaiting what = phase == EPW_PHASE_DISPATCH_SEND      ? epw_await_permission(lane->first)
                        : phase == EPW_PHASE_DISPATCH_RECEIVE ? EPW_AWAIT_ROWS
                                                              : EPW_AWAIT_ANSWER;
    uint64_t *word = awaited_word(b, lane, what, peer);
    uint32_t op = what == EPW_AWAIT_EPOCH ? 0 : what == EPW_AWAIT_PERMISSION ? lane->op - 1 : lane->op;
    lane->record = (epw_error_record){
        .phase = phase,
        .cause = cause,
        .rank = b->config.rank,
        .peer = peer,
        .lane = epw_lane_index(b, lane),
        .epoch = b->epoch,
        .op = lane->op,
        .waiting = epw_mask_count(&lane->awaited),
        .expected = epw_word(b->epoch, op, 0),
        .seen = atomic_load_explicit(atomic_word(word), memory_order_relaxed),
        .elapsed_ns = lane->waiting ? now - lane->wait.started : 0,
        .deadline_ns = lane->deadline_ns,
    };
}
