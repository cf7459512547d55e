// The sending half of combine: every row that came is answered, with the weighted sum of its experts' outputs (rank-reduced),
// with each of them (ordered), or with the row that the caller has reduced (rank-major).
#pragma once

#include "../comm/lane.cuh"
#include "pass.cuh"
#include "shape.cuh"
#include "sum.cuh"

namespace epw {

struct AnswerShared {
    Batch batch;
    Stop stops[kMaxStages];
    uint32_t received[EPW_GPU_MAX_RANKS]; // rows that came from each source
    uint32_t rows[EPW_GPU_MAX_RANKS];     // of these, those that are answered: all or none
    uint32_t ends[EPW_GPU_MAX_RANKS];     // rows of the sources up to this turn; see source_at
    const uint32_t *first_row;            // in shared memory, [ranks][local_experts]: of the sources in the experts' lists
};

// Sources in the order in which their rows are numbered: those after this rank in turn, itself last.
__device__ __forceinline__ uint32_t source_at(const Operation &o, uint32_t turn) {
    uint32_t source = o.rank + 1 + turn;
    return source < o.ranks ? source : source - o.ranks;
}

// Numbers the rows to be answered. Called by the whole block; ends with a barrier.
__device__ __forceinline__ void number_rows(Operation &o, AnswerShared &s) {
    if (threadIdx.x < o.ranks) {
        // Given up by the other lane: gets no word. Its rows are numbered all the same, for not all blocks need know of it.
        if (o.peers & o.suspects & 1ull << threadIdx.x) leave_out(o, threadIdx.x);
        uint32_t end = 0, rows = 0;
        for (uint32_t turn = 0; turn <= threadIdx.x; turn++) {
            uint32_t source = source_at(o, turn);
            rows = o.peers >> source & 1 ? s.received[source] : 0;
            end += rows;
        }
        s.rows[source_at(o, threadIdx.x)] = rows;
        s.ends[threadIdx.x] = end;
    }
    __syncthreads();
}

// By one warp: what answers row n, as row `at` of the batch.
__device__ inline void find_row(const Combine &a, const Operation &o, AnswerShared &s, uint32_t n, uint32_t at) {
    const epw_layout &l = a.layout;
    uint32_t lane = threadIdx.x % 32;
    uint32_t turn = __popc(__ballot_sync(0xffffffffu, lane < o.ranks && s.ends[lane] <= n));
    if (o.ranks > 32) turn += __popc(__ballot_sync(0xffffffffu, lane + 32 < o.ranks && s.ends[lane + 32] <= n));
    uint32_t source = source_at(o, turn), row = n - (turn > 0 ? s.ends[turn - 1] : 0);
    const unsigned char *slot = a.window + epw_slot_offset(&l, o.lane, source, row);
    const unsigned char *outputs = static_cast<const unsigned char *>(a.expert_out);
    unsigned char *to = o.window[source] + epw_answer_offset(&l, o.lane, o.rank, row, 0);
    if (a.output_layout == EPW_RANK_MAJOR) {
        const unsigned char *from = slot + l.header_bytes;
        if (outputs) from = outputs + (uint64_t(source) * l.max_tokens + row) * l.row_bytes;
        put_row(s.batch, at, to, 1, lane == 0, 0, from, 1.0f);
        return;
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
    uint64_t place = ours ? uint64_t(s.first_row[source * l.local_experts + local]) + index : 0;
    ours = ours && place < l.rows;
    uint32_t mask = __ballot_sync(0xffffffffu, ours), earlier = (1u << lane) - 1;
    put_row(s.batch, at, to, __popc(mask), ours, __popc(mask & earlier), outputs + (local * l.rows + place) * l.row_bytes,
            __uint_as_float(weight));
}

// Fills the batch with this block's rows from number `first` on, every gridDim.x-th; returns how many there are. Ends with a
// barrier. A block's batch spans several sources, its own rank's rows are last, and blocks begin at different ones of the
// others: at any time some block sends to each peer.
__device__ inline uint32_t find_rows(const Combine &a, const Operation &o, AnswerShared &s, uint32_t first) {
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32, mine = first + lane * gridDim.x;
    uint32_t total = s.ends[o.ranks - 1], remote = total - s.rows[o.rank];
    uint32_t rows = __popc(__ballot_sync(0xffffffffu, lane < kBatch && mine < total));
    uint32_t turning = __popc(__ballot_sync(0xffffffffu, lane < kBatch && mine < remote));
    if (row < rows) {
        uint32_t i = row;
        if (i < turning) {
            i += __umulhi(blockIdx.x * 0x9e3779b9u, turning); // below `turning`, and evenly spread over the blocks
            if (i >= turning) i -= turning;
        }
        find_row(a, o, s, first + i * gridDim.x, row);
    }
    __syncthreads();
    return rows;
}

// Answers every row, then posts the words from the kernel's last block. `memory`: the table of first rows, then the stages.
template <typename T>
__device__ __forceinline__ void answer_rows(const Combine &a, Operation &o, AnswerShared &s, bool marked, unsigned char *memory) {
    Passage passage(a.stages, memory + a.table_size, s.stops);
    // What earlier kernels wrote with ordinary stores, the engine reads now.
    if (threadIdx.x == 0 && !a.sums) ptx::fence_global_before_bulk();
    uint32_t *table = reinterpret_cast<uint32_t *>(memory);
    for (uint32_t i = threadIdx.x; i * sizeof(uint32_t) < a.table_size; i += kThreads) table[i] = o.first_row[i];
    if (threadIdx.x == 0) s.first_row = table;
    number_rows(o, s);
    uint32_t total = s.ends[o.ranks - 1];
    for (uint32_t first = blockIdx.x; first < total; first += kBatch * gridDim.x) {
        uint32_t rows = find_rows(a, o, s, first);
        if (a.sums) {
            make_sums<T, true>(s.batch, rows, a.row_size);
        } else {
            if (threadIdx.x == 0) passage.pass(s.batch, rows, a.row_size);
            __syncthreads(); // the batch has been read
        }
    }
    if (threadIdx.x == 0 && !a.sums) passage.finish();
    // Writer of the words: the last block here. It has acquired what every block has released: the sums, which all threads of a
    // block have stored before its barrier, or the rows that thread 0 has seen complete. Its release at system scope hands that
    // on to the peer, whose acquire of the word sees it all. The words also say that the slots have been read.
    if (!last_to_send(o)) return;
    uint64_t reachable = o.peers & ~o.lost;
    if (threadIdx.x < o.ranks && (reachable >> threadIdx.x & 1)) {
        uint32_t value = s.rows[threadIdx.x] | (a.mode == EPW_COMBINE_ORDERED && marked ? EPW_ANSWER_ORDERED : 0);
        ptx::store_release_sys(&line_at(o, threadIdx.x)->combine[o.lane], epw_word(o.epoch, o.op, value));
    }
}

} // namespace epw
