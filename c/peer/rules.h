/* The protocol's decisions about words as pure functions, without access to the memory of other ranks or a
 * clock, and without side effects. The host and the kernels call them with what they have loaded, the
 * explorer in tests with what it simulates. */
#ifndef EPW_PEER_RULES_H
#define EPW_PEER_RULES_H

#include "peer/words.h"

/* A day, so that sums of deadlines and clocks cannot wrap. */
#define EPW_MAX_DEADLINE_NS UINT64_C(86400000000000)

/* What a waiter has seen of one peer: the words of one lane. The loads happen in this order, each an acquire:
 * a peer writes `word` before `dropped` or `epoch_word` say that it is done with this rank, so a waiter that
 * sees the farewell sees the word too. */
typedef struct epw_sight {
    uint64_t dropped;    /* the peer's DROPPED word */
    uint64_t epoch_word; /* the peer's epoch word */
    uint64_t word;       /* the awaited word */
#if !defined(__CUDACC__) /* kernels judge that themselves */
    bool broken;         /* the peer is behind a queue that carries nothing any more; read first */
#endif
} epw_sight;

EPW_INLINE bool epw_sight_broken(epw_sight seen) {
#if defined(__CUDACC__)
    (void)seen;
    return false;
#else
    return seen.broken;
#endif
}

typedef enum epw_verdict {
    EPW_WAITING, /* neither here nor gone */
    EPW_ARRIVED, /* exactly what was awaited */
    EPW_GONE     /* it will not come in this epoch, see epw_rule_gone */
} epw_verdict;

EPW_INLINE bool epw_word_matches(uint64_t word, uint32_t epoch, uint32_t op) {
    return word >> EPW_WORD_VALUE_BITS == epw_word(epoch, op, 0) >> EPW_WORD_VALUE_BITS;
}

/* Why the peer is gone for a rank whose own epoch word is `own`; EPW_CAUSE_NONE: it is not gone. The peer's
 * epoch word, which concerns all, is judged before its DROPPED word, which concerns this rank: so if two
 * ranks have begun an epoch at different steps, each learns the reason, even if the other has dropped it
 * because of that. */
EPW_INLINE uint32_t epw_rule_gone(epw_sight seen, uint64_t own) {
    uint32_t epoch = epw_word_epoch(own), its = epw_word_epoch(seen.epoch_word);
    if (its > epoch) return EPW_CAUSE_SUPERSEDED;
    if (its == epoch && seen.epoch_word != own) return EPW_CAUSE_STEP;
    if (epw_word_epoch(seen.dropped) >= epoch) return EPW_CAUSE_DROPPED;
    return epw_sight_broken(seen) ? EPW_CAUSE_LINK : EPW_CAUSE_NONE;
}

/* Whether the peer's word of operation `op` of this rank's epoch has arrived. The match is checked first,
 * because a peer that has ended its operation may have moved on. */
EPW_INLINE epw_verdict epw_rule_arrived(epw_sight seen, uint64_t own, uint32_t op) {
    if (epw_word_matches(seen.word, epw_word_epoch(own), op)) return EPW_ARRIVED;
    return epw_rule_gone(seen, own) != EPW_CAUSE_NONE ? EPW_GONE : EPW_WAITING;
}

/* Whether this rank may write the peer's memory for operation `op` of a lane. `seen.word` is the word by
 * which the peer says that it is done with an operation: with op - 1 it says that the peer has read what lay
 * there. For the first operation of an epoch the peer's epoch word says so, if it equals this rank's own:
 * both have begun the epoch at the same step. */
EPW_INLINE epw_verdict epw_rule_may_send(epw_sight seen, uint64_t own, uint32_t op, bool first) {
    uint32_t epoch = epw_word_epoch(own);
    bool permitted = first ? seen.epoch_word == own : epw_word_matches(seen.word, epoch, op - 1);
    if (permitted && epw_word_epoch(seen.dropped) < epoch && !epw_sight_broken(seen)) return EPW_ARRIVED;
    return epw_rule_gone(seen, own) != EPW_CAUSE_NONE ? EPW_GONE : EPW_WAITING;
}

/* Whether the beacon is a sign of life: any beacon of this epoch is, or of an older one, in which its writer
 * may still be. */
EPW_INLINE bool epw_rule_alive(uint64_t beacon, uint32_t epoch) {
    return epw_word_epoch(beacon) - 1 < epoch;
}

/* Whether the peer says that it waits for a rank. Then *named is that rank, and *lengthened says how long the
 * wait may take. */
EPW_INLINE bool epw_rule_beacon(uint64_t beacon, uint32_t epoch, uint32_t ranks, uint32_t *named,
                                uint32_t *lengthened) {
    *named = epw_beacon_named(beacon);
    *lengthened = epw_beacon_lengthened(beacon);
    return epw_rule_alive(beacon, epoch) && *named < ranks;
}

/* How many beacons a wait has posted by now: one at each half of the deadline since its rank last wrote to
 * its peers, which may be before the wait began. */
EPW_INLINE uint64_t epw_rule_beacons_due(uint64_t silent_ns, uint64_t deadline_ns) {
    return silent_ns / (deadline_ns / 2);
}

/* Whether a rank has been silent for so long when its wait ends that it must post "I wait no longer". Its
 * peers may count from its last word, and from now on its caller has nearly a whole deadline before the next
 * call. */
EPW_INLINE bool epw_rule_silent(uint64_t silent_ns, uint64_t deadline_ns) {
    return silent_ns >= deadline_ns / 16;
}

/* How a beacon expresses this call's deadline if it is longer than the group's: as the least power of two
 * that covers it. */
EPW_INLINE uint32_t epw_rule_lengthened(uint64_t call_ns, uint64_t group_ns) {
    uint32_t doublings = 0;
    while (doublings < EPW_BEACON_LENGTH_MAX && group_ns < call_ns) {
        group_ns *= 2;
        doublings++;
    }
    return doublings;
}

/* When the time of a peer is over: a deadline after `clock`, its last sign of life; and in any case
 * EPW_WAIT_DEADLINES_MAX deadlines after the wait began, or as many as the peer's own wait may take. */
EPW_INLINE uint64_t epw_rule_expiry(uint64_t began, uint64_t clock, uint64_t deadline_ns, uint64_t group_ns,
                                    uint32_t lengthened) {
    uint64_t its =
        group_ns < EPW_MAX_DEADLINE_NS >> lengthened ? group_ns << lengthened : EPW_MAX_DEADLINE_NS;
    uint64_t last = began + EPW_WAIT_DEADLINES_MAX * (its > deadline_ns ? its : deadline_ns);
    uint64_t own = clock + deadline_ns;
    return own < last ? own : last;
}

/* ---- counts ---- */

/* What a rank concludes from a word that holds a count, as those of rings do. */
typedef enum epw_heard {
    EPW_HEARD_NOTHING,
    EPW_HEARD_MORE,
    EPW_HEARD_IMPOSSIBLE /* more than there can be */
} epw_heard;

#endif
