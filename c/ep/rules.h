/* The protocol's decisions as pure functions: no memory of other ranks, no clock, no side effect. The host
 * device calls them with what it has loaded; the model explorer in tests calls the same functions with what
 * it imagines.
 *
 * A signal word is 64 bits, {epoch 15 | op 32 | value 17}, and has one writer. A reader accepts the exact
 * epoch and op it expects and nothing else, so that late or early words are never taken for current ones.
 * Epochs run upward from 1, so a zeroed window matches nothing. */
#ifndef EPW_EP_RULES_H
#define EPW_EP_RULES_H

#include "base/inline.h"

#include <stdbool.h>
#include <stdint.h>

#define EPW_WORD_VALUE_BITS 17
#define EPW_WORD_OP_BITS    32
#define EPW_WORD_VALUE_MAX  ((1u << EPW_WORD_VALUE_BITS) - 1)
#define EPW_EPOCH_MAX       32767u

/* A beacon with this value says "I wait no longer". */
#define EPW_BEACON_NONE EPW_WORD_VALUE_MAX

/* Set in the value of a combine word whose rows are one per expert: ranks that disagree on the mode are found
 * out. Plans for ordered combine have at most EPW_ORDERED_MAX_TOKENS tokens, so that the row count stays
 * below. */
#define EPW_ANSWER_ORDERED     (1u << 16)
#define EPW_ORDERED_MAX_TOKENS 65535u

EPW_INLINE uint64_t epw_word(uint32_t epoch, uint32_t op, uint32_t value) {
    return (uint64_t)epoch << (EPW_WORD_OP_BITS + EPW_WORD_VALUE_BITS) | (uint64_t)op << EPW_WORD_VALUE_BITS |
           value;
}
EPW_INLINE uint32_t epw_word_epoch(uint64_t word) {
    return (uint32_t)(word >> (EPW_WORD_OP_BITS + EPW_WORD_VALUE_BITS));
}
EPW_INLINE uint32_t epw_word_op(uint64_t word) {
    return (uint32_t)(word >> EPW_WORD_VALUE_BITS);
}
EPW_INLINE uint32_t epw_word_value(uint64_t word) {
    return (uint32_t)word & EPW_WORD_VALUE_MAX;
}

/* What a waiter has seen of one peer. The loads happen in this order, each an acquire: a peer writes `word`
 * before `dropped` or `epoch_word` tell that it is done with this rank, so a waiter that sees the farewell
 * sees the word too. */
typedef struct epw_sight {
    uint64_t dropped;    /* the peer's DROPPED word */
    uint64_t epoch_word; /* the peer's epoch word */
    uint64_t word;       /* the awaited word */
} epw_sight;

typedef enum epw_verdict {
    EPW_WAITING, /* neither here nor gone */
    EPW_ARRIVED, /* exactly what was awaited */
    EPW_GONE     /* it will not come in this epoch: the peer dropped this rank or has moved on */
} epw_verdict;

EPW_INLINE bool epw_word_matches(uint64_t word, uint32_t epoch, uint32_t op) {
    return word >> EPW_WORD_VALUE_BITS == epw_word(epoch, op, 0) >> EPW_WORD_VALUE_BITS;
}

/* Is the peer gone for whoever lives in `epoch`? */
EPW_INLINE bool epw_rule_gone(epw_sight seen, uint32_t epoch) {
    return epw_word_epoch(seen.dropped) >= epoch || epw_word_epoch(seen.epoch_word) > epoch;
}

/* Has the peer's dispatch or combine word of (epoch, op) arrived? The match comes first: a peer that has
 * ended its operation may have moved on. */
EPW_INLINE epw_verdict epw_rule_arrived(epw_sight seen, uint32_t epoch, uint32_t op) {
    if (epw_word_matches(seen.word, epoch, op)) return EPW_ARRIVED;
    return epw_rule_gone(seen, epoch) ? EPW_GONE : EPW_WAITING;
}

/* May this rank write the peer's dispatch slots of a lane for (epoch, op)? `seen.word` is the peer's combine
 * word of that lane: with op - 1 it says that the peer has read what lay there. For the first operation of an
 * epoch the peer's epoch word says so for all lanes. */
EPW_INLINE epw_verdict epw_rule_may_send(epw_sight seen, uint32_t epoch, uint32_t op, bool first) {
    bool permitted =
        first ? epw_word_epoch(seen.epoch_word) == epoch : epw_word_matches(seen.word, epoch, op - 1);
    if (permitted && epw_word_epoch(seen.dropped) < epoch) return EPW_ARRIVED;
    return epw_rule_gone(seen, epoch) ? EPW_GONE : EPW_WAITING;
}

/* Is the peer seen waiting for someone (so: alive)? Then *named is whom it waits for. A peer that this rank
 * has left behind in an older epoch may still wait there, and is alive. */
EPW_INLINE bool epw_rule_beacon(uint64_t beacon, uint32_t epoch, uint32_t ranks, uint32_t *named) {
    *named = epw_word_value(beacon);
    return epw_word_epoch(beacon) - 1 < epoch && *named < ranks;
}

/* How many beacons a wait of this age has posted: one at each half of the deadline. */
EPW_INLINE uint64_t epw_rule_beacons_due(uint64_t elapsed_ns, uint64_t deadline_ns) {
    return elapsed_ns / (deadline_ns / 2);
}

#endif
