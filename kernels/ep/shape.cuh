// Operations with all that follows from their sizes alone, worked out once by the host: a division costs a GPU thread a hundred
// cycles, and rows wait for it.
#pragma once

#include "quantise.cuh"
#include "stage.cuh"

namespace epw {

// n / d for n * d < 2^32.
struct Divisor {
    uint64_t reciprocal;

    explicit Divisor(uint32_t d) : reciprocal(((1ull << 32) + d - 1) / d) {}
    __device__ __forceinline__ uint32_t divide(uint32_t n) const { return uint32_t(n * reciprocal >> 32); }
};

// What the sending half takes of a row at a time.
struct Pieces {
    uint32_t bytes, count; // of payload in a piece but for the last; of a row

    Pieces(uint32_t payload, uint32_t payload_bytes) {
        constexpr uint32_t kMost = kQuantised * kThreads * 8, kEven = 16 * EPW_FP8_BLOCK; // whose scales are whole 16 bytes
        bytes = !quantises(payload) ? kPieceBytes : payload_bytes <= kMost ? kMost : kMost / kEven * kEven;
        count = (payload_bytes + bytes - 1) / bytes;
    }
};

struct Dispatch : epw_dispatch_args {
    RowStages stages;
    Pieces pieces;
    Divisor per_rank;     // experts
    Divisor sources;      // ranks
    uint32_t experts;     // of all ranks
    uint32_t scales_size; // bytes of a row's scales
    uint32_t entry_shift; // a row's entries have this power of two of lanes: 2^entry_shift >= topk

    explicit Dispatch(const epw_dispatch_args &a)
        : epw_dispatch_args(a), stages(a.layout, a.payload_bytes, a.scale_count * a.scale_bytes),
          pieces(a.payload, a.payload_bytes), per_rank(a.layout.local_experts), sources(a.layout.ranks), experts(a.layout.local_experts * a.layout.ranks),
          scales_size(a.scale_count * a.scale_bytes), entry_shift(0) {
        while (1u << entry_shift < a.layout.topk) entry_shift++;
    }
};

struct Combine : epw_combine_args {
    AnswerStages stages;
    Divisor per_rank; // experts
    uint32_t row_size;
    uint32_t table_size; // of first rows, in shared memory: only experts' outputs are found by it
    bool sums;           // answers are made here; else they are rows that pass as they are, through the stages

    explicit Combine(const epw_combine_args &a)
        : epw_combine_args(a), stages(a.layout), per_rank(a.layout.local_experts), row_size(uint32_t(a.layout.row_bytes)),
          table_size(a.output_layout == EPW_EXPERT_MAJOR && (a.halves & EPW_GPU_SEND) ? table_bytes(a.layout) : 0),
          sums(a.output_layout == EPW_EXPERT_MAJOR && a.mode == EPW_COMBINE_RANK_REDUCED) {}

    bool passes() const { return (halves & EPW_GPU_SEND) && !sums; }
};

} // namespace epw
