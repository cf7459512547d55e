// The arguments of an operation together with everything that follows from its sizes alone, computed once by the host: a division
// costs a GPU thread a hundred cycles, during which rows would wait.
#pragma once

#include "kernels/numerics/quantise.cuh"
#include "kernels/ep/sum.cuh"
#include "kernels/ep/tile.cuh"

namespace epw {

// Computes n / d for n < 2^30: the reciprocal, rounded up, has 31 bits, and its error times n is less than one.
struct Divisor {
    uint32_t reciprocal, shift;

    explicit Divisor(uint32_t d) : shift(0) {
        while (uint64_t(2) << shift <= d) shift++;
        reciprocal = uint32_t(((uint64_t(1) << (31 + shift)) + d - 1) / d);
    }
    __device__ __forceinline__ uint32_t divide(uint32_t n) const { return __umulhi(n << 1, reciprocal) >> shift; }
};

// An array of equal elements, slots or answers, at the same offset of every window.
struct Area {
    uint64_t begin;
    uint32_t bytes; // of one element

    __device__ __forceinline__ uint64_t offset(uint32_t n) const { return begin + uint64_t(n) * bytes; }
};

// The pieces in which the sending half processes a row.
struct Pieces {
    uint32_t bytes, count; // payload bytes of every piece but a row's last; pieces of a row

    Pieces(uint32_t payload, uint32_t payload_bytes) {
        constexpr uint32_t kMost = kQuantised * kThreads * 8, kEven = 16 * EPW_FP8_BLOCK; // multiples whose scales fill whole
                                                                                          // 16-byte units
        bytes = !quantises(payload) ? kPieceBytes : payload_bytes <= kMost ? kMost : kMost / kEven * kEven;
        count = (payload_bytes + bytes - 1) / bytes;
    }
};

// So many tokens a block counts by itself in the time that it takes to be told by others.
constexpr uint32_t kCounted = kThreads;

struct Dispatch : epw_dispatch_args {
    RowTiles tiles;
    Pieces pieces;
    Divisor per_rank;     // experts
    Divisor sources;      // ranks
    uint32_t experts;     // of all ranks
    uint32_t scales_size; // bytes of a row's scales
    uint32_t whole;       // bytes of a row and its scales that are sent in one store; 0: they are not
    uint32_t entry_shift; // a row's entries are handled by 2^entry_shift threads, the smallest power of two >= topk
    uint32_t few;         // the most tokens of a block, if it has several whose rows pass at once: see send_few.cuh; else 0
    uint32_t many;        // the blocks have many tokens each: see send_many.cuh, and for the following, runs.cuh
    uint32_t runs;        // of a block's tokens: each is numbered by a warp
    uint32_t run_size;    // bytes of a run's counters
    uint32_t count_shift; // a token is counted by 2^count_shift threads
    uint32_t each, more;  // tokens of a block; how many blocks, the first ones, have one more
    uint32_t copies_all;  // received rows are copied; else they stay where they are and the output lists point to them

    Dispatch(const epw_dispatch_args &a, uint32_t blocks)
        : epw_dispatch_args(a), tiles(a.lane.layout, a.format.payload_bytes, a.format.scale_count * a.format.scale_bytes),
          pieces(a.in.payload, a.format.payload_bytes), per_rank(a.lane.layout.local_experts), sources(a.lane.layout.ranks),
          experts(a.lane.layout.local_experts * a.lane.layout.ranks), scales_size(a.format.scale_count * a.format.scale_bytes),
          whole(0), entry_shift(0), many(0), few(0), runs(0), run_size(epw_gpu_counted_bytes(experts, lane.layout.ranks)),
          count_shift(0), each(in.tokens / blocks), more(in.tokens % blocks),
          copies_all(in.layout == EPW_EXPERT_MAJOR || asks_for_rows()) {
        const uint32_t most = each + (more > 0), memory = tiles.bytes * tiles.count;
        runs = min(kWarps, memory / run_size);
        many = blocks < EPW_GPU_FEW && in.tokens > 2 * blocks && each < 0xffff && runs > 0;
        while (1u << entry_shift < a.lane.layout.topk) entry_shift++;
        count_shift = entry_shift > 3 ? entry_shift - 3 : 0; // each thread has eight entries
        if (pieces.count == 1 && (quantises(a.in.payload) || scales_size <= kScaleRoom)) {
            whole = align_16(a.format.payload_bytes + scales_size);
        }
        const bool fits = most <= min(kWarps, tiles.count) && most * tiles.bytes + kWarps * 32 * sizeof(uint32_t) <= memory;
        if (whole > 0 && fits && in.tokens > blocks) few = most;
    }

    size_t shared_size() const { return size_t(tiles.bytes) * tiles.count + table_bytes(lane.layout); }

    bool sends_few() const { return (halves & EPW_GPU_SEND) && few > 0; }
    // Rows that come to an inbox are copied in any case: into the window.
    bool spreads() const { return (halves & EPW_GPU_RECEIVE) && (copies_all || lane.inbox != lane.window); }

  private:
    bool asks_for_rows() const {
        return out.rows || (out.scales && format.scale_count > 0) || (out.sideband && in.sideband_bytes > 0);
    }
};

// What answers a received row.
enum class Answers {
    rows, // rank-major: the row that the caller has computed from it
    sums, // expert-major: the weighted sum of its experts' outputs
    parts // expert-major, ordered: the output of each of its experts
};

// In combine_many.cuh: the most ranks, one for each thread of a warp; and tiles from which is stored while others are loaded;
// pieces of a row.
constexpr uint32_t kAnswerersOfMany = 32, kStoresOfMany = 4, kPiecesOfMany = 4;

struct Combine : epw_combine_args {
    AnswerTiles tiles;
    Area slots;       // the slots of a source begin at element source * max_tokens
    Area answers;     // layout.answers elements for each slot
    Divisor per_rank; // experts
    Divisor blocks;   // blocks of the kernel
    uint32_t row_size;
    uint32_t many;        // the blocks have many tokens each: see combine_many.cuh; or, for sums, several rows each
    uint32_t share_shift; // there a token is summed by 2^share_shift warps: more than one, so that the last tokens take less time
    uint32_t own_stays;   // rows of this rank's own tokens are summed where the caller has put them: no answer is copied for them
    uint32_t table_size;  // bytes of the table of first rows in shared memory, needed only to find experts' outputs

    Combine(const epw_combine_args &a, uint32_t blocks)
        : epw_combine_args(a),
          tiles(a.lane.layout), slots{epw_slot_offset(&a.lane.layout, a.lane.index, 0, 0), uint32_t(a.lane.layout.slot_bytes)},
          answers{epw_answer_offset(&a.lane.layout, a.lane.index, 0, 0, 0), uint32_t(a.lane.layout.row_bytes)},
          per_rank(a.lane.layout.local_experts), blocks(blocks), row_size(uint32_t(a.lane.layout.row_bytes)), many(0),
          share_shift(0), own_stays(answers_with() == Answers::rows && halves == (EPW_GPU_SEND | EPW_GPU_RECEIVE)),
          table_size(a.output_layout == EPW_EXPERT_MAJOR && (a.halves & EPW_GPU_SEND) ? table_bytes(a.lane.layout) : 0) {
        const uint32_t each = tokens / blocks;
        many = own_stays && lane.layout.ranks > 1 && lane.layout.ranks <= kAnswerersOfMany && tiles.count > kStoresOfMany &&
               row_size <= kPiecesOfMany * kPieceBytes && each >= (blocks > 32 ? 24 : 48);
        if (answers_with() == Answers::sums) {
            // Beside a table of more than some 700 experts there is no room for that.
            many = tokens > blocks && row_size >= kStretch && table_size + sizeof(ManyRows) <= kAnswerMemory;
        }
        share_shift = each >= 128 ? 0 : 2;
    }

    Answers answers_with() const {
        if (output_layout == EPW_RANK_MAJOR) return Answers::rows;
        return in.mode == EPW_COMBINE_ORDERED ? Answers::parts : Answers::sums;
    }
    // Whether a row may have several answers: then dispatch has counted them, in `owed` and `due` of the lane.
    __device__ __forceinline__ bool counts_answers() const { return in.mode == EPW_COMBINE_ORDERED && lane.layout.answers > 1; }
    // The row that the caller gives for the received row at `place`: of the caller's array, or the one in place.
    __device__ __forceinline__ const unsigned char *given_row(uint32_t place) const {
        if (in.expert_out) return static_cast<const unsigned char *>(in.expert_out) + uint64_t(place) * row_size;
        return lane.window + slots.offset(place) + lane.layout.header_bytes;
    }
    // Bytes of shared memory: the table, and tiles for answers that are copied unchanged.
    size_t shared_size() const {
        if (answers_with() == Answers::sums) return table_size + (many ? sizeof(ManyRows) : 0);
        return table_size + (halves & EPW_GPU_SEND ? size_t(tiles.bytes) * tiles.count : 0);
    }
};

} // namespace epw
