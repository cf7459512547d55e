// Operations with all that follows from their sizes alone, worked out once by the host: a division costs a GPU thread a hundred
// cycles, and rows wait for it.
#pragma once

#include "kernels/ep/quantise.cuh"
#include "kernels/ep/sum.cuh"
#include "kernels/ep/tile.cuh"

namespace epw {

// n / d for n < 2^30: the reciprocal, rounded up, has 31 bits, and its error times n is less than one.
struct Divisor {
    uint32_t reciprocal, shift;

    explicit Divisor(uint32_t d) : shift(0) {
        while (uint64_t(2) << shift <= d) shift++;
        reciprocal = uint32_t(((uint64_t(1) << (31 + shift)) + d - 1) / d);
    }
    __device__ __forceinline__ uint32_t divide(uint32_t n) const { return __umulhi(n << 1, reciprocal) >> shift; }
};

// Things of one size, one behind the other, in every window alike: slots, or answers.
struct Area {
    uint64_t begin;
    uint32_t bytes; // of one

    __device__ __forceinline__ uint64_t offset(uint32_t n) const { return begin + uint64_t(n) * bytes; }
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

// Fewer blocks than these do not keep NVLink busy with a row each (H100: with 132 they do, with 64 they take half as long again).
constexpr uint32_t kFewBlocks = 112;

// How the sending half of dispatch passes its tokens where a block has several: in rounds, a team of warps to a token. A round's
// tokens are neighbours, and blocks follow one another in it.
struct Rounds {
    uint32_t size, teams; // warps of a team; tokens of a block in a round. No teams: a block takes a token at a time
    uint32_t count;       // of rounds, one at least
    uint32_t last;        // tokens of a block in the last one: all blocks have as many, but for those behind the last token

    // `warps` that have room in shared memory.
    Rounds(uint32_t tokens, uint32_t blocks, uint32_t warps) : size(0), teams(0), count(0), last(0) {
        // More blocks keep the wire busy with a row each; and a row is through sooner by all warps than by some.
        if (blocks >= kFewBlocks || tokens <= 2 * blocks || warps < 4) return;
        const uint32_t most = (tokens + blocks - 1) / blocks;
        teams = 4;
        for (uint32_t more : {7u, 14u}) {
            if (teams < most && teams * blocks < kFlying && more <= warps) teams = more;
        }
        size = warps / teams;
        const uint32_t all = teams * blocks;
        count = (tokens + all - 1) / all;
        last = (tokens - (count - 1) * all + blocks - 1) / blocks;
    }

  private:
    static constexpr uint32_t kFlying = 448; // rows of all blocks at a time
};

struct Dispatch : epw_dispatch_args {
    RowTiles tiles;
    Pieces pieces;
    Desks desks;
    Rounds rounds;
    Divisor per_rank;     // experts
    Divisor sources;      // ranks
    uint32_t experts;     // of all ranks
    uint32_t scales_size; // bytes of a row's scales
    uint32_t whole;       // bytes of a row and its scales, which leave at once; 0: they do not
    uint32_t table_at;    // where the numbers of experts begin, behind what either half has in shared memory
    uint32_t entry_shift; // a row's entries have this power of two of threads: 2^entry_shift >= topk
    uint32_t copies_all;  // received rows are copied; else they stay where they are, and lists say where that is

    Dispatch(const epw_dispatch_args &a, uint32_t blocks)
        : epw_dispatch_args(a), tiles(a.lane.layout, a.format.payload_bytes, a.format.scale_count * a.format.scale_bytes),
          pieces(a.in.payload, a.format.payload_bytes), desks(a.lane.layout, a.format.scale_count * a.format.scale_bytes), rounds(a.in.tokens, blocks, desks.count),
          per_rank(a.lane.layout.local_experts), sources(a.lane.layout.ranks),
          experts(a.lane.layout.local_experts * a.lane.layout.ranks), scales_size(a.format.scale_count * a.format.scale_bytes),
          whole(0), table_at(tiles.bytes * tiles.count), entry_shift(0), copies_all(in.layout == EPW_EXPERT_MAJOR || asks_for_rows()) {
        while (1u << entry_shift < a.lane.layout.topk) entry_shift++;
        if (pieces.count == 1 && (quantises(a.in.payload) || scales_size <= kScaleRoom)) {
            whole = align_16(a.format.payload_bytes + scales_size);
        }
        if (sends_many() && desks.bytes * desks.count > table_at) table_at = desks.bytes * desks.count;
    }

    bool sends_many() const { return (halves & EPW_GPU_SEND) && rounds.teams > 0; }
    // Those that come by queues are copied in any case: from the inbox into the window.
    bool spreads() const { return (halves & EPW_GPU_RECEIVE) && (copies_all || lane.inbox != nullptr); }

  private:
    bool asks_for_rows() const {
        return out.rows || (out.scales && format.scale_count > 0) || (out.sideband && in.sideband_bytes > 0);
    }
};

// What a received row is answered with.
enum class Answers {
    rows, // rank-major: the row that the caller has made of it
    sums, // expert-major: the weighted sum of its experts' outputs
    parts // expert-major, ordered: each of them
};

struct Combine : epw_combine_args {
    AnswerTiles tiles;
    Area slots;       // a source's begin at number source * max_tokens
    Area answers;     // to each slot layout.answers
    Divisor per_rank; // experts
    Divisor blocks;   // of the kernel
    uint32_t row_size;
    uint32_t table_size; // of first rows, in shared memory: only experts' outputs are found by it
    uint32_t ring_parts; // see Ring
    uint32_t may_flow;   // see kernels/ep/flow.cuh
    uint32_t span_shift;
    uint32_t carriers; // warps of a block that send then: two of each keep the wire busy where blocks are few

    Combine(const epw_combine_args &a, uint32_t blocks)
        : epw_combine_args(a),
          tiles(a.lane.layout), slots{epw_slot_offset(&a.lane.layout, a.lane.index, 0, 0), uint32_t(a.lane.layout.slot_bytes)},
          answers{epw_answer_offset(&a.lane.layout, a.lane.index, 0, 0, 0), uint32_t(a.lane.layout.row_bytes)},
          per_rank(a.lane.layout.local_experts), blocks(blocks), row_size(uint32_t(a.lane.layout.row_bytes)),
          table_size(a.output_layout == EPW_EXPERT_MAJOR && (a.halves & EPW_GPU_SEND) ? table_bytes(a.lane.layout) : 0),
          ring_parts(Ring::parts_in(kAnswerMemory - table_size)),
          may_flow(blocks < kFewBlocks && a.halves == (EPW_GPU_SEND | EPW_GPU_RECEIVE) && a.lane.inbox == nullptr &&
                   answers_with() == Answers::rows),
          span_shift(epw_span_shift(&a.lane.layout)), carriers(blocks < 40 ? 2 : 1) {}

    Answers answers_with() const {
        if (output_layout == EPW_RANK_MAJOR) return Answers::rows;
        return in.mode == EPW_COMBINE_ORDERED ? Answers::parts : Answers::sums;
    }
    // Bytes of shared memory: the table; behind it the tiles of answers that pass as they are, and then, or first of all, parts of
    // sums.
    size_t shared_size() const {
        const size_t passing = (halves & EPW_GPU_SEND) && answers_with() != Answers::sums ? size_t(tiles.bytes) * tiles.count : 0;
        const size_t adding = size_t(ring_parts) * Ring::kPartBytes;
        return table_size + (passing > adding ? passing : adding);
    }
};

} // namespace epw
