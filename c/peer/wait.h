/* A wait for some peers, as pure functions: clocks that run while peers are silent, and the contents of
 * beacons. The waiter passes what it has seen and the time; the functions say whom to give up, when a beacon
 * is due and whom it names. They access neither the memory of other ranks nor a clock: the explorer in tests
 * runs the same code.
 *
 * A peer that is silent for a deadline is given up. A peer that is itself waiting for a rank says so by a
 * beacon at each half of the group's deadline: it is alive, and its clock starts again. A wait ends in any
 * case, see epw_rule_expiry. */
#ifndef EPW_PEER_WAIT_H
#define EPW_PEER_WAIT_H

#include "peer/rules.h"

/* All that is loaded from one peer in a look, in this order, each load an acquire. */
typedef struct epw_look {
    epw_sight sight;
    uint64_t beacons[EPW_MAX_LANES]; /* for each of its lanes; 0 beyond the last */
    uint64_t stored; /* the awaited word as stored; `sight` has 0 in place of one that does not count yet */
    bool held;
} epw_look;

/* Loads word `word` that the peer has written for `lane`, by an acquire. */
typedef uint64_t (*epw_load)(const void *context, uint32_t lane, uint32_t word);

/* The only place that defines the order of loads in a look, see epw_sight; `word` is the one that is awaited.
 */
static inline void epw_look_by(epw_load load, const void *context, uint32_t lanes, uint32_t lane,
                               uint32_t word, epw_look *out) {
    *out = (epw_look){0};
    out->sight.dropped = load(context, lane, EPW_WORD_DROPPED);
    out->sight.epoch_word = load(context, lane, EPW_WORD_EPOCH);
    out->sight.word = load(context, lane, word);
    out->stored = out->sight.word;
    for (uint32_t l = 0; l < lanes; l++) out->beacons[l] = load(context, l, EPW_WORD_BEACON);
}

/* The clock of one peer in one wait. */
typedef struct epw_clock {
    uint64_t since;                /* when it began to run: at the start of the wait, or at the last sign of
                                      life */
    uint64_t heard[EPW_MAX_LANES]; /* the beacons that last restarted it */
    uint32_t named;                /* the rank that its beacon names; EPW_BEACON_NONE: it is silent */
    uint32_t lengthened;           /* the largest value in its beacons, see epw_beacon_value */
} epw_clock;

/* The state that all peers of a wait share. */
typedef struct epw_wait {
    bool running;
    uint64_t began;
    uint64_t deadline_ns; /* of this call; at least the group's */
} epw_wait;

static inline void epw_wait_begin(epw_wait *wait, uint64_t now, uint64_t deadline_ns) {
    *wait = (epw_wait){.running = true, .began = now, .deadline_ns = deadline_ns};
}

static inline void epw_clock_start(epw_clock *clock, uint64_t now) {
    *clock = (epw_clock){.since = now, .named = EPW_BEACON_NONE};
}

/* Takes in a peer's beacons: each new one restarts its clock, including one that says "I wait no longer". */
static inline void epw_clock_heed(epw_clock *clock, const epw_look *seen, uint32_t lanes, uint32_t epoch,
                                  uint32_t ranks, uint32_t rank, uint64_t now) {
    clock->named = EPW_BEACON_NONE;
    for (uint32_t lane = 0; lane < lanes; lane++) {
        uint64_t beacon = seen->beacons[lane];
        uint32_t named, lengthened;
        if (!epw_rule_alive(beacon, epoch)) continue;
        if (beacon != clock->heard[lane]) clock->since = now;
        clock->heard[lane] = beacon;
        if (!epw_rule_beacon(beacon, epoch, ranks, &named, &lengthened)) continue;
        if (lengthened > clock->lengthened) clock->lengthened = lengthened;
        /* A beacon that names this rank is of no use to others: prefer a lane that waits for another rank. */
        if (clock->named == EPW_BEACON_NONE || clock->named == rank) clock->named = named;
    }
}

/* When the peer's time is over. */
static inline uint64_t epw_clock_expiry(const epw_clock *clock, const epw_wait *wait, uint64_t group_ns) {
    return epw_rule_expiry(wait->began, clock->since, wait->deadline_ns, group_ns, clock->lengthened);
}

/* The value of this rank's beacon. It names an awaited peer: the first that is itself silent. If all of them
 * are waiting too, it names the rank that the first of them names, or that peer itself if it waits for this
 * rank. */
typedef struct epw_naming {
    uint32_t rank; /* this one */
    uint32_t silent, fallback;
    uint32_t lengthened; /* the largest value of this rank and of those it awaits */
} epw_naming;

static inline epw_naming epw_naming_begin(uint32_t rank, uint32_t lengthened) {
    return (epw_naming){rank, EPW_BEACON_NONE, EPW_BEACON_NONE, lengthened};
}

/* An awaited peer; called in ascending order. */
static inline void epw_naming_add(epw_naming *naming, uint32_t peer, const epw_clock *clock) {
    if (clock->lengthened > naming->lengthened) naming->lengthened = clock->lengthened;
    if (clock->named == EPW_BEACON_NONE && naming->silent == EPW_BEACON_NONE) naming->silent = peer;
    if (naming->fallback == EPW_BEACON_NONE)
        naming->fallback = clock->named != naming->rank ? clock->named : peer;
}

static inline uint32_t epw_naming_value(const epw_naming *naming) {
    uint32_t named = naming->silent != EPW_BEACON_NONE ? naming->silent : naming->fallback;
    return epw_beacon_value(named, naming->lengthened);
}

#endif
