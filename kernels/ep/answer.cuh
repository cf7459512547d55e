// The sending half of combine: every row that came is answered, with the weighted sum of its experts' outputs (rank-reduced),
// with each of them (ordered), or with the row that the caller has reduced (rank-major).
#pragma once

#include "../comm/lane.cuh"
#include "sum.cuh"

namespace epw {

struct AnswerShared {
    uint32_t rows[EPW_GPU_MAX_RANKS];
};

// Row n of those that came. Sources take turns, beginning after this rank, so that all links are busy at a time; false: source
// and row are beyond what came.
__device__ __forceinline__ bool row_of(const AnswerShared &s, const Operation &o, uint32_t n, uint32_t *source, uint32_t *row) {
    *source = (o.rank + 1 + n % o.ranks) % o.ranks;
    *row = n / o.ranks;
    return *row < s.rows[*source];
}

// How many values of n there are for row_of.
__device__ __forceinline__ uint32_t row_numbers(const AnswerShared &s, const Operation &o) {
    uint32_t most = 0;
    for (uint32_t r = 0; r < o.ranks; r++) most = max(most, s.rows[r]);
    return most * o.ranks;
}

// By one warp: finds the outputs of this rank's experts for a row.
__device__ inline void find_parts(const epw_combine_args &a, const Operation &o, uint32_t source, uint32_t row, Sum &sum) {
    const epw_layout &l = a.layout;
    uint32_t lane = threadIdx.x % 32;
    const unsigned char *slot = a.window + epw_slot_offset(&l, o.lane, source, row);
    uint32_t local = 0xffffffffu, weight = 0, index = 0;
    if (lane < l.topk) {
        const uint32_t *entry = reinterpret_cast<const uint32_t *>(slot + sizeof(epw_slot_header) + lane * sizeof(epw_entry));
        local = ptx::load_relaxed_gpu(entry) - o.rank * l.local_experts;
        weight = ptx::load_relaxed_gpu(entry + 1);
        index = ptx::load_relaxed_gpu(reinterpret_cast<const uint32_t *>(slot + epw_indices_offset(&l)) + lane);
    }
    bool ours = local < l.local_experts;
    uint64_t place = ours ? uint64_t(o.first_row[source * l.local_experts + local]) + index : 0;
    ours = ours && place < l.rows;
    uint32_t mask = __ballot_sync(0xffffffffu, ours);
    if (ours) {
        uint32_t at = __popc(mask & ((1u << lane) - 1));
        sum.part[at] = static_cast<const unsigned char *>(a.expert_out) + (local * l.rows + place) * l.row_bytes;
        sum.weight[at] = __uint_as_float(weight);
    }
    if (lane == 0) {
        sum.count = __popc(mask);
        sum.to = o.window[source] + epw_answer_offset(&l, o.lane, o.rank, row, 0);
    }
}

// The block's rows, a batch at a time: `first + i * gridDim.x` is number i of it. Looks them up, a warp to a row; returns how
// many there are.
__device__ inline uint32_t find_rows(const epw_combine_args &a, const Operation &o, const AnswerShared &s, Sum *sums,
                                     uint32_t first, uint32_t numbers) {
    uint32_t warp = threadIdx.x / 32, source, row, n = first + warp * gridDim.x;
    if (n < numbers && row_of(s, o, n, &source, &row)) {
        find_parts(a, o, source, row, sums[warp]);
    } else if (threadIdx.x % 32 == 0) {
        sums[warp].count = 0;
        sums[warp].to = nullptr;
    }
    __syncthreads();
    return min(kBatch, (numbers - first - 1) / gridDim.x + 1);
}

// Rows that are answered as they are, whole or one for each expert, pass through the ring untouched, by thread 0 alone.
// `targets`: in shared memory, where each stage's row goes.
__device__ inline void answer_copies(const epw_combine_args &a, const Operation &o, const AnswerShared &s, Sum *sums,
                                     const Ring &ring, unsigned char **targets) {
    const epw_layout &l = a.layout;
    const Stages &stages = ring.stages;
    bool parts = a.output_layout == EPW_EXPERT_MAJOR;
    uint32_t numbers = row_numbers(s, o), loads = 0, stores = 0;
    const uint32_t pieces = uint32_t((l.row_bytes + kPieceBytes - 1) / kPieceBytes);
    auto store = [&]() {
        uint32_t at = stores % stages.count;
        while (!ptx::barrier_try_wait(&ring.loaded[at], stores / stages.count & 1)) {}
        ptx::bulk_store(targets[at], ring.memory + at * stages.bytes, piece_bytes(l.row_bytes, stores % pieces));
        ptx::bulk_commit();
        stores++;
    };
    auto copy = [&](unsigned char *to, const unsigned char *from) {
        for (uint32_t piece = 0; piece < pieces; piece++) {
            uint32_t at = loads % stages.count, bytes = piece_bytes(l.row_bytes, piece);
            if (loads - stores == stages.count - 1) store();
            ptx::bulk_wait_read<1>(); // this stage's store, the last but one, has read it
            ptx::barrier_expect(&ring.loaded[at], bytes);
            ptx::bulk_load(ring.memory + at * stages.bytes, from + uint64_t(piece) * kPieceBytes, bytes, &ring.loaded[at]);
            targets[at] = to + uint64_t(piece) * kPieceBytes;
            loads++;
        }
    };
    for (uint32_t first = blockIdx.x; first < numbers; first += kBatch * gridDim.x) {
        uint32_t rows = parts ? find_rows(a, o, s, sums, first, numbers) : min(kBatch, (numbers - first - 1) / gridDim.x + 1);
        for (uint32_t i = 0; i < rows && threadIdx.x == 0; i++) {
            uint32_t source, row;
            if (!row_of(s, o, first + i * gridDim.x, &source, &row)) continue;
            if (parts) {
                for (uint32_t p = 0; p < sums[i].count; p++) copy(sums[i].to + p * l.row_bytes, sums[i].part[p]);
                continue;
            }
            const unsigned char *from = a.window + epw_slot_offset(&l, o.lane, source, row) + l.header_bytes;
            if (a.expert_out) {
                from = static_cast<const unsigned char *>(a.expert_out) + (uint64_t(source) * l.max_tokens + row) * l.row_bytes;
            }
            copy(o.window[source] + epw_answer_offset(&l, o.lane, o.rank, row, 0), from);
        }
        if (parts) __syncthreads(); // the batch has been read
    }
    while (threadIdx.x == 0 && stores < loads) store();
}

// Answers every row, then posts the words from the kernel's last block.
template <typename T>
__device__ void answer_rows(const epw_combine_args &a, Operation &o, AnswerShared &s, Sum *sums, uint64_t peers, Ring ring,
                            unsigned char **targets) {
    epw_gpu_context *c = a.context;
    if (threadIdx.x < o.ranks) {
        bool here = peers >> threadIdx.x & 1;
        // Given up by the other lane, meanwhile: not answered.
        if (here && (o.suspects >> threadIdx.x & 1)) {
            leave_out(o, threadIdx.x);
            here = false;
        }
        s.rows[threadIdx.x] = here ? c->received[threadIdx.x] : 0;
    }
    __syncthreads();
    // What earlier kernels wrote with ordinary stores, the engine reads now.
    if (threadIdx.x == 0) ptx::fence_global_before_bulk();
    if (a.output_layout == EPW_EXPERT_MAJOR && a.mode == EPW_COMBINE_RANK_REDUCED) {
        uint32_t numbers = row_numbers(s, o);
        for (uint32_t first = blockIdx.x; first < numbers; first += kBatch * gridDim.x) {
            uint32_t rows = find_rows(a, o, s, sums, first, numbers);
            make_sums<T, true>(ring, sums, rows, a.layout.row_bytes);
        }
    } else {
        answer_copies(a, o, s, sums, ring, targets);
    }
    if (threadIdx.x == 0) ptx::bulk_wait_all();
    // Writer of the words: the last block here; see send_tokens. They say that the answers are there and the slots read.
    if (!last_to_send(o)) return;
    uint64_t reachable = peers & ~o.lost;
    if (threadIdx.x < o.ranks && (reachable >> threadIdx.x & 1)) {
        uint32_t value = s.rows[threadIdx.x] | (a.mode == EPW_COMBINE_ORDERED && c->ordered ? EPW_ANSWER_ORDERED : 0);
        ptx::store_release_sys(&line_at(o, threadIdx.x)->combine[o.lane], epw_word(o.epoch, o.op, value));
    }
}

} // namespace epw
