/* How blocks of a prefill kernel on a GPU begin: pure functions. A block runs only once it has an SM, late
 * and in any order, and blocks wait for one another only once all that work are known to run. So each passes
 * a gate, a word of its lane that is 0 between kernels. Callers: enter() in kernels/prefill/operation.cuh,
 * and the explorer tests/c/prefill_gate_model.c.
 *
 * The word says how many blocks have come besides the grid's first one, how many of all work, 0 until the
 * first to come has taken SMs for them (lane_sms.h), whether the grid's first block has come, whether active
 * ranks are absent from the operation by that block's view, which counts, and whether the gate is closed:
 * because too few got an SM for too long, until the next epoch. */
#ifndef EPW_PREFILL_GATE_H
#define EPW_PREFILL_GATE_H

#include "base/inline.h"

#include <stdbool.h>
#include <stdint.h>

#define EPW_GATE_BITS   12
#define EPW_GATE_MASK   ((1u << EPW_GATE_BITS) - 1)
#define EPW_GATE_ABSENT (1u << 29) /* the grid's first block says with FIRST that there are some */
#define EPW_GATE_FIRST  (1u << 30) /* is set by the grid's first block; each other adds 1 */
#define EPW_GATE_CLOSED (1u << 31)

/* The number of a block, by the word as it was before it came: 0 is the grid's first one, the others have
 * theirs in the order in which they come. */
EPW_INLINE uint32_t epw_gate_number(uint32_t before, bool first) {
    return first ? 0 : (before & EPW_GATE_MASK) + 1;
}

/* What the first to come adds once it has taken SMs. */
EPW_INLINE uint32_t epw_gate_opening(uint32_t sms) {
    return sms << EPW_GATE_BITS;
}

/* How many blocks work; 0: it is not known yet. */
EPW_INLINE uint32_t epw_gate_blocks(uint32_t word) {
    return word >> EPW_GATE_BITS & EPW_GATE_MASK;
}

/* Whether a block of this number need not wait here any longer, of a gate that is not closed: there is
 * nothing for it to do, or all blocks that work have come. */
EPW_INLINE bool epw_gate_passes(uint32_t word, uint32_t number) {
    uint32_t blocks = epw_gate_blocks(word);
    if (blocks > 0 && number >= blocks) return true;
    return blocks > 0 && word & EPW_GATE_FIRST && (word & EPW_GATE_MASK) + 1 >= blocks;
}

#endif
