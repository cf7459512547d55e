// The sending half of combine: every row that came is answered, with the weighted sum of its experts' outputs (rank-reduced),
// with each of them (ordered), or with the row that the caller has reduced (rank-major).
#pragma once

#include "../comm/lane.cuh"
#include "pass.cuh"
#include "shape.cuh"
#include "sum.cuh"

namespace epw {

struct __align__(16) AnswerShared {
    Batch batch;
    uint64_t loaded[kMaxStages];          // barriers of the stages
    uint32_t received[EPW_GPU_MAX_RANKS]; // rows that came from each source: they are all answered, or none
    uint32_t ends[EPW_GPU_MAX_RANKS];     // the same, added up by turns
};

// The turns as every warp knows them for itself: lane i turns i and i + 32.
struct Turns {
    uint32_t end[2]; // rows of the sources up to the turn
    uint32_t total, remote;

    __device__ __forceinline__ Turns(const Operation &o, const AnswerShared &s) {
        static_assert(EPW_GPU_MAX_RANKS == 64);
        uint32_t lane = threadIdx.x % 32;
        end[0] = lane < o.ranks ? s.ends[lane] : 0xffffffffu;
        end[1] = lane + 32 < o.ranks ? s.ends[lane + 32] : 0xffffffffu;
        total = s.ends[o.ranks - 1];
        remote = o.ranks > 1 ? s.ends[o.ranks - 2] : 0;
    }

    // Of row n: its source's turn; n becomes the row's number among those of the source. By the whole warp.
    __device__ __forceinline__ uint32_t find(uint32_t &n) const {
        uint32_t turn = 0, begin = 0;
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t passed = __popc(__ballot_sync(0xffffffffu, end[half] <= n));
            if (passed == 0) break;
            begin = __shfl_sync(0xffffffffu, end[half], passed - 1);
            turn += passed;
        }
        n -= begin;
        return turn;
    }
};

// What answers a row: a lane that `has` a part knows it.
struct Answer {
    unsigned char *to;
    uint32_t parts; // those of a row lie one behind the other
    const unsigned char *from;
    float weight;
    bool has;
};

// By one warp: what answers row n. `first_row`: [ranks][local_experts], of the sources in the experts' lists.
__device__ __forceinline__ Answer find_answer(const Combine &a, const Operation &o, const Turns &turns, const uint32_t *first_row,
                                              uint32_t n) {
    const epw_layout &l = a.layout;
    uint32_t lane = threadIdx.x % 32, row = n, source = source_at(o, turns.find(row));
    const unsigned char *slot = a.window + a.slots.offset(source * l.max_tokens + row);
    const unsigned char *outputs = static_cast<const unsigned char *>(a.expert_out);
    unsigned char *to = o.window[source] + a.answers.offset((a.rank * l.max_tokens + row) * l.answers);
    if (a.output_layout == EPW_RANK_MAJOR) {
        const unsigned char *from = slot + l.header_bytes;
        if (outputs) from = outputs + (uint64_t(source) * l.max_tokens + row) * l.row_bytes;
        return {to, 1, from, 1.0f, lane == 0};
    }
    uint32_t local = 0xffffffffu, weight = 0, index = 0;
    if (lane < l.topk) {
        const uint64_t *entry = reinterpret_cast<const uint64_t *>(slot + sizeof(epw_slot_header)) + lane;
        uint64_t pair = ptx::load_relaxed_gpu(entry);
        index = ptx::load_relaxed_gpu(reinterpret_cast<const uint32_t *>(slot + epw_indices_offset(&l)) + lane);
        local = uint32_t(pair) - o.rank * l.local_experts;
        weight = uint32_t(pair >> 32);
    }
    bool ours = local < l.local_experts;
    uint64_t place = ours ? uint64_t(first_row[source * l.local_experts + local]) + index : 0;
    ours = ours && place < l.rows;
    uint32_t parts = __popc(__ballot_sync(0xffffffffu, ours));
    return {to, parts, outputs + (local * l.rows + place) * l.row_bytes, __uint_as_float(weight), ours};
}

// The rows that a block answers: every gridDim.x-th.
struct OwnRows {
    uint32_t count, remote, shift; // of these, those of other ranks, which are the first; the one that the block begins with

    __device__ __forceinline__ OwnRows(const Combine &a, const Turns &turns) {
        count = up_to(a, turns.total);
        remote = up_to(a, turns.remote);
        shift = __umulhi(blockIdx.x * 0x9e3779b9u, remote); // below it, and evenly spread over the blocks
    }
    // Row i of the block's. Its rows span several sources, its own rank's are last, and blocks begin at different ones of the
    // others: at any time some block sends to each peer.
    __device__ __forceinline__ uint32_t number(uint32_t i) const {
        if (i < remote) i = i + shift < remote ? i + shift : i + shift - remote;
        return blockIdx.x + i * gridDim.x;
    }

  private:
    static __device__ __forceinline__ uint32_t up_to(const Combine &a, uint32_t rows) {
        return rows > blockIdx.x ? a.blocks.divide(rows - 1 - blockIdx.x) + 1 : 0;
    }
};

// Rows whose parts are added up here: a batch of them at a time.
template <typename T>
__device__ __forceinline__ void answer_with_sums(const Combine &a, const Operation &o, AnswerShared &s, const Turns &turns,
                                                 const uint32_t *first_row) {
    const OwnRows rows(a, turns);
    uint32_t warp = threadIdx.x / 32;
    for (uint32_t first = 0; first < rows.count; first += kBatch) {
        if (warp < kBatch && first + warp < rows.count) {
            Answer answer = find_answer(a, o, turns, first_row, rows.number(first + warp));
            uint32_t place = __popc(__ballot_sync(0xffffffffu, answer.has) & ((1u << threadIdx.x % 32) - 1));
            put_row(s.batch, warp, answer.to, answer.parts, answer.has, place, answer.from, answer.weight, 0);
        }
        __syncthreads();
        make_sums<T, true>(s.batch, min(rows.count - first, kBatch), a.row_size, nullptr);
    }
}

// Rows that pass as they are: each by a warp, or by two that take its parts in turn where there are warps enough.
__device__ __forceinline__ void answer_with_rows(const Combine &a, const Operation &o, AnswerShared &s, const Turns &turns,
                                                 const uint32_t *first_row, unsigned char *memory) {
    const OwnRows rows(a, turns);
    uint32_t warps = min(a.stages.count, kWarps), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t half = rows.count * 2 <= warps, teams = warps >> half, team = warp >> half, member = warp & half;
    if (team >= teams) return;
    Passage passage = {memory + warp * a.stages.bytes, &s.loaded[warp]};
    for (uint32_t i = team; i < rows.count; i += teams) {
        Answer answer = find_answer(a, o, turns, first_row, rows.number(i));
        uint32_t left = __ballot_sync(0xffffffffu, answer.has);
        uint32_t turn = 0, parts = min(answer.parts, a.layout.answers); // however often a row names an expert: its room ends
        for (uint32_t part = 0; part < parts; part++, left &= left - 1) {
            uint64_t from = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(answer.from), __ffs(left) - 1);
            unsigned char *to = answer.to + uint64_t(part) * a.row_size;
            for (uint32_t at = 0; at < a.row_size; at += kPieceBytes) {
                if (lane == 0 && (turn++ & half) == member) {
                    passage.pass(to + at, reinterpret_cast<const unsigned char *>(from) + at, min(kPieceBytes, a.row_size - at));
                }
            }
        }
    }
    if (lane == 0) ptx::bulk_wait_all();
}

// Answers every row, then posts the words from the kernel's last block. `memory`: the table of first rows, then the stages.
template <typename T>
__device__ __forceinline__ void answer_rows(const Combine &a, Operation &o, AnswerShared &s, bool marked, unsigned char *memory) {
    uint32_t *table = reinterpret_cast<uint32_t *>(memory);
    const uint32_t lists = a.table_size > 0 ? a.layout.local_experts * o.ranks : 0;
    for (uint32_t i = threadIdx.x; i < lists; i += blockDim.x) table[i] = o.first_row[i];
    // Given up by the other lane: gets no word. Its rows are numbered all the same, for not all blocks need know of it.
    if (threadIdx.x < o.ranks && (o.peers & o.suspects) >> threadIdx.x & 1) leave_out(o, threadIdx.x);
    const Turns turns(o, s);
    if (lists > 0) __syncthreads();
    if (a.sums) answer_with_sums<T>(a, o, s, turns, table);
    else answer_with_rows(a, o, s, turns, table, memory + a.table_size);
    // Writer of the words: the last block here. It has acquired what every block has released: the sums, which all threads of a
    // block have stored before its barrier, or the rows that a thread of each warp has seen complete. Its release at system scope
    // hands that on to the peer, whose acquire of the word sees it all. The words also say that the slots have been read.
    if (!last_to_send(o)) return;
    uint64_t reachable = o.peers & ~o.lost;
    if (threadIdx.x < o.ranks && (reachable >> threadIdx.x & 1)) {
        uint32_t value = s.received[threadIdx.x] | (a.mode == EPW_COMBINE_ORDERED && marked ? EPW_ANSWER_ORDERED : 0);
        ptx::store_release_sys(&line_at(o, threadIdx.x)->combine[o.lane], epw_word(o.epoch, o.op, value));
    }
}

} // namespace epw
