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

    __device__ __forceinline__ Turns(const Combine &a, const AnswerShared &s) {
        static_assert(EPW_GPU_MAX_RANKS == 64);
        uint32_t lane = threadIdx.x % 32, ranks = a.layout.ranks;
        end[0] = lane < ranks ? s.ends[lane] : 0xffffffffu;
        end[1] = lane + 32 < ranks ? s.ends[lane + 32] : 0xffffffffu;
        total = s.ends[ranks - 1];
        remote = ranks > 1 ? s.ends[ranks - 2] : 0;
    }

    // Of row n: its source's turn; n becomes the row's number among those of the source. By the whole warp.
    __device__ __forceinline__ uint32_t find(uint32_t &n) const {
        uint32_t turn = __popc(__ballot_sync(0xffffffffu, end[0] <= n)), more = 0;
        uint32_t begin = __shfl_sync(0xffffffffu, end[0], turn - 1);
        if (turn == 32) more = __popc(__ballot_sync(0xffffffffu, end[1] <= n));
        if (more > 0) begin = __shfl_sync(0xffffffffu, end[1], more - 1);
        if (turn > 0) n -= begin;
        return turn + more;
    }
};

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

// A received row: where it came from, and where its answers go.
struct Row {
    uint32_t source, number; // its slot's in the source's
    unsigned char *to;

    // Of row n of all. By the whole warp.
    __device__ __forceinline__ Row(const Combine &a, const Operation &o, const Turns &turns, uint32_t n) {
        source = source_at(a.rank, a.layout.ranks, turns.find(n));
        number = n;
        to = o.window[source] + a.answers.offset((a.rank * a.layout.max_tokens + n) * a.layout.answers);
    }
    __device__ __forceinline__ uint32_t place(const Combine &a) const { return source * a.layout.max_tokens + number; }
    __device__ __forceinline__ const unsigned char *slot(const Combine &a) const { return a.window + a.slots.offset(place(a)); }
};

// Outputs of the experts that a row went to: a lane that `has` one knows it.
struct Parts {
    const unsigned char *from;
    float weight;
    bool has;
    uint32_t lanes; // that have one

    // By one warp. `first_row`: [ranks][local_experts], of the sources in the experts' lists.
    __device__ __forceinline__ Parts(const Combine &a, const Row &row, const uint32_t *first_row) {
        const epw_layout &l = a.layout;
        const unsigned char *slot = row.slot(a);
        uint32_t lane = threadIdx.x % 32, local = 0xffffffffu, index = 0;
        if (lane < l.topk) {
            const uint64_t *entry = reinterpret_cast<const uint64_t *>(slot + sizeof(epw_slot_header)) + lane;
            uint64_t pair = ptx::load_relaxed_gpu(entry);
            index = ptx::load_relaxed_gpu(reinterpret_cast<const uint32_t *>(slot + epw_indices_offset(&l)) + lane);
            local = uint32_t(pair) - a.rank * l.local_experts;
            weight = __uint_as_float(uint32_t(pair >> 32));
        }
        bool ours = local < l.local_experts;
        uint64_t place = ours ? uint64_t(first_row[row.source * l.local_experts + local]) + index : 0;
        has = ours && place < l.rows;
        from = static_cast<const unsigned char *>(a.expert_out) + (local * l.rows + place) * l.row_bytes;
        lanes = __ballot_sync(0xffffffffu, has);
    }
};

// Sums are made here: those of a batch of rows at a time.
template <typename T>
__device__ __forceinline__ void answer_with_sums(const Combine &a, const Operation &o, AnswerShared &s, const Turns &turns,
                                                 const uint32_t *first_row) {
    const OwnRows rows(a, turns);
    uint32_t warp = threadIdx.x / 32;
    for (uint32_t first = 0; first < rows.count; first += kBatch) {
        if (warp < kBatch && first + warp < rows.count) {
            const Row row(a, o, turns, rows.number(first + warp));
            const Parts parts(a, row, first_row);
            uint32_t place = __popc(parts.lanes & ((1u << threadIdx.x % 32) - 1));
            put_row(s.batch, warp, row.to, __popc(parts.lanes), parts.has, place, parts.from, parts.weight, 0);
        }
        __syncthreads();
        make_sums<T, true>(s.batch, min(rows.count - first, kBatch), a.row_size, nullptr);
    }
}

// Parts pass as they are: those of a row by a warp, or by two in turn where there are warps enough.
__device__ __forceinline__ void answer_with_parts(const Combine &a, const Operation &o, AnswerShared &s, const Turns &turns,
                                                  const uint32_t *first_row, unsigned char *memory) {
    const OwnRows rows(a, turns);
    uint32_t warps = min(a.stages.count, kWarps), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t half = rows.count * 2 <= warps, teams = warps >> half, team = warp >> half, member = warp & half;
    if (team >= teams) return;
    Passage passage = {memory + warp * a.stages.bytes, &s.loaded[warp]};
    for (uint32_t i = team; i < rows.count; i += teams) {
        const Row row(a, o, turns, rows.number(i));
        const Parts parts(a, row, first_row);
        uint32_t turn = 0, count = min(__popc(parts.lanes), a.layout.answers); // however often a row names an expert: its room ends
        for (uint32_t part = 0, left = parts.lanes; part < count; part++, left &= left - 1) {
            uint64_t from = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(parts.from), __ffs(left) - 1);
            unsigned char *to = row.to + uint64_t(part) * a.row_size;
            for (uint32_t at = 0; at < a.row_size; at += kPieceBytes) {
                if (lane == 0 && (turn++ & half) == member) {
                    passage.pass(to + at, reinterpret_cast<const unsigned char *>(from) + at, min(kPieceBytes, a.row_size - at));
                }
            }
        }
    }
    if (lane == 0) ptx::bulk_wait_all();
}

// The caller's rows, or those in place, pass as they are: each by a warp.
__device__ __forceinline__ void answer_with_rows(const Combine &a, const Operation &o, AnswerShared &s, const Turns &turns,
                                                 unsigned char *memory) {
    const OwnRows rows(a, turns);
    uint32_t warps = min(a.stages.count, kWarps), warp = threadIdx.x / 32;
    if (warp >= warps) return;
    Passage passage = {memory + warp * a.stages.bytes, &s.loaded[warp]};
    for (uint32_t i = warp; i < rows.count; i += warps) {
        const Row row(a, o, turns, rows.number(i));
        if (threadIdx.x % 32 != 0) continue;
        const unsigned char *from = row.slot(a) + a.layout.header_bytes;
        if (a.expert_out) from = static_cast<const unsigned char *>(a.expert_out) + uint64_t(row.place(a)) * a.row_size;
        for (uint32_t at = 0; at < a.row_size; at += kPieceBytes) {
            passage.pass(row.to + at, from + at, min(kPieceBytes, a.row_size - at));
        }
    }
    if (threadIdx.x % 32 == 0) ptx::bulk_wait_all();
}

// Answers every row, then posts the words from the kernel's last block. `memory`: the table of first rows, then the stages.
template <typename T, Answers With>
__device__ __forceinline__ void answer_all(const Combine &a, Operation &o, AnswerShared &s, bool marked, unsigned char *memory) {
    const uint32_t *table = reinterpret_cast<const uint32_t *>(memory);
    // Given up by the other lane: gets no word. Its rows are numbered all the same, for not all blocks need know of it.
    if (threadIdx.x < o.ranks && (o.peers & o.suspects) >> threadIdx.x & 1) leave_out(o, threadIdx.x);
    const Turns turns(a, s);
    if constexpr (With == Answers::sums) answer_with_sums<T>(a, o, s, turns, table);
    if constexpr (With == Answers::parts) answer_with_parts(a, o, s, turns, table, memory + a.table_size);
    if constexpr (With == Answers::rows) answer_with_rows(a, o, s, turns, memory);
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
