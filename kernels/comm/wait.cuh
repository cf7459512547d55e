// Waiting for a peer's signal word, bounded. The decisions are those of c/ep/rules.h, shared with the host device.
#pragma once

#include "../ptx/memory.cuh"
#include "context.h"

#include "ep/rules.h"

namespace epw {

__device__ __forceinline__ epw_line *line_from(const epw_gpu_context *c, unsigned char *own, uint32_t source) {
    return reinterpret_cast<epw_line *>(own + epw_line_offset(source));
}

// The peer's words in the order that rules.h asks for; each load is an acquire, so that rows and counts written before the
// word are visible to this thread. Writer: the peer's last sending block. Reader: this thread, then, through a block
// barrier, its block.
__device__ __forceinline__ epw_sight look(const epw_line *line, const uint64_t *word) {
    epw_sight seen;
    seen.dropped = ptx::load_acquire_sys(&line->dropped);
    seen.epoch_word = ptx::load_acquire_sys(&line->epoch);
    seen.word = ptx::load_acquire_sys(word);
    return seen;
}

struct Arrival {
    epw_verdict verdict;
    uint32_t value;
};

// Polls one peer until its word of (epoch, op) has come, it is gone, or the deadline has passed (then: EPW_GONE too).
__device__ inline Arrival await_word(const epw_line *line, const uint64_t *word, uint32_t epoch, uint32_t op,
                                     bool permission, bool first, uint64_t deadline_ns) {
    // The fast path reads one word.
    if (!(permission && first)) {
        uint64_t now = ptx::load_acquire_sys(word);
        if (epw_word_matches(now, epoch, permission ? op - 1 : op)) return {EPW_ARRIVED, epw_word_value(now)};
    }
    uint64_t began = ptx::global_timer_ns();
    while (true) {
        epw_sight seen = look(line, word);
        epw_verdict verdict =
            permission ? epw_rule_may_send(seen, epoch, op, first) : epw_rule_arrived(seen, epoch, op);
        if (verdict != EPW_WAITING) return {verdict, epw_word_value(seen.word)};
        if (ptx::global_timer_ns() - began >= deadline_ns) return {EPW_GONE, 0};
    }
}

} // namespace epw
