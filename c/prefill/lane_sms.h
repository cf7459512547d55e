/* How the lanes of a prefill buffer on a GPU share its SMs: pure functions. A kernel takes SMs when it
 * begins, and gives them back when it ends.
 *
 * Kernels of two lanes wait for peers, so both must be resident together, whatever their order is: a lane
 * that has nothing in flight costs the other one the few SMs that are kept for it. If a kernel begins while
 * one of the other lane runs, there are SMs for it, but perhaps few; from then on each lane takes half, until
 * EPW_SMS_WARY kernels in a row have begun alone. */
#ifndef EPW_PREFILL_LANE_SMS_H
#define EPW_PREFILL_LANE_SMS_H

#include "base/inline.h"

#include <stdint.h>

#define EPW_SMS_WARY 16u

/* A word has, for lanes 0 and 1, the SMs that a running kernel has taken, 12 bits each, and then how many
 * kernels have to begin alone before one takes more than half. It is 0 at first. */
#define EPW_SMS_BITS 12
#define EPW_SMS_MASK ((1u << EPW_SMS_BITS) - 1)

typedef struct epw_sms_taken {
    uint32_t word, sms; /* sms is never 0 */
} epw_sms_taken;

/* SMs that are kept for the other lane. The more SMs there are, the less one matters to the time of an
 * operation: so with few of them it is one, of 132 they are 17. */
EPW_INLINE uint32_t epw_sms_kept(uint32_t all) {
    uint32_t kept = all < EPW_SMS_MASK ? all * all / 1024 : all;
    return kept == 0 ? 1 : kept < all / 2 ? kept : all / 2;
}

EPW_INLINE uint32_t epw_sms_held(uint32_t word, uint32_t lane) {
    return word >> lane * EPW_SMS_BITS & EPW_SMS_MASK;
}

/* A kernel of the lane begins, and has `wanted` blocks, of which as many work as there are SMs for. `all`:
 * SMs of both lanes, at least 2. */
EPW_INLINE epw_sms_taken epw_sms_take(uint32_t word, uint32_t lane, uint32_t wanted, uint32_t all) {
    uint32_t other = epw_sms_held(word, 1 - lane), wary = word >> 2 * EPW_SMS_BITS;
    uint32_t most = other > 0 || wary > 0 ? all / 2 : all - epw_sms_kept(all);
    if (most > all - other) most = all - other;
    uint32_t sms = wanted < most ? wanted : most;
    wary = other > 0 ? EPW_SMS_WARY : wary > 0 ? wary - 1 : 0;
    return (epw_sms_taken){.word = wary << 2 * EPW_SMS_BITS | other << (1 - lane) * EPW_SMS_BITS |
                                   sms << lane * EPW_SMS_BITS,
                           .sms = sms};
}

/* The word once the lane has given back what it had: all bits of the word but these. */
EPW_INLINE uint32_t epw_sms_others(uint32_t lane) {
    return ~(EPW_SMS_MASK << lane * EPW_SMS_BITS);
}

#endif
