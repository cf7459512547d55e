// Combine on the GPU: answer the rows that came, collect the answers to one's own, sum them. One block works on one row at a
// time; sums go through registers, rows leave through the bulk copy engine.
#pragma once

#include "../comm/context.h"
#include "../comm/wait.cuh"
#include "../ptx/bulk.cuh"
#include "../ptx/memory.cuh"
#include "launch.h"
#include "number.cuh"

namespace epw {

constexpr uint32_t kCombineThreads = 448;
constexpr uint32_t kCombineStages = 2;

struct CombineShared {
    unsigned char *window[EPW_GPU_MAX_RANKS];
    uint32_t rows[EPW_GPU_MAX_RANKS];
    uint64_t present, deadline_ns;
    unsigned long long gone, partial;
    uint32_t epoch, op, last;
    // The row at work: where its parts lie and what they weigh.
    uint32_t parts[kCombineStages];
    const unsigned char *part[kCombineStages][EPW_MAX_TOPK];
    float weight[kCombineStages][EPW_MAX_TOPK];
};

// Sums 8 values of `n` rows in order, from +0, never fused; rounds.
template <typename T, bool Weighted>
__device__ __forceinline__ uint4 sum_chunk(const unsigned char *const *part, const float *weight, uint32_t n, uint32_t chunk) {
    float sum[8] = {};
    constexpr uint32_t kAhead = 4;
    for (uint32_t base = 0; base < n; base += kAhead) {
        uint4 raw[kAhead];
#pragma unroll
        for (uint32_t i = 0; i < kAhead; i++) {
            if (base + i < n) raw[i] = ptx::load_shared_memory_window(part[base + i] + chunk * 16);
        }
#pragma unroll
        for (uint32_t i = 0; i < kAhead; i++) {
            if (base + i >= n) break;
            float w = Weighted ? weight[base + i] : 1.0f;
            const uint32_t *pairs = &raw[i].x;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float low = T::low(pairs[k]), high = T::high(pairs[k]);
                if (Weighted) {
                    low = __fmul_rn(w, low);
                    high = __fmul_rn(w, high);
                }
                sum[2 * k] = __fadd_rn(sum[2 * k], low);
                sum[2 * k + 1] = __fadd_rn(sum[2 * k + 1], high);
            }
        }
    }
    return {T::pack(sum[0], sum[1]), T::pack(sum[2], sum[3]), T::pack(sum[4], sum[5]), T::pack(sum[6], sum[7])};
}

// Rows are taken source by source in turn, beginning after this rank, so that all links are busy at a time.
__device__ __forceinline__ bool row_of(const CombineShared &s, uint32_t ranks, uint32_t rank, uint32_t n, uint32_t *source,
                                       uint32_t *row) {
    *source = (rank + 1 + n % ranks) % ranks;
    *row = n / ranks;
    return *row < s.rows[*source];
}

template <typename T>
__device__ void answer_rows(const epw_combine_args &a, epw_gpu_context *c, const epw_layout &l, CombineShared &s,
                            unsigned char *staging) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row_bytes = l.row_bytes, chunks = row_bytes / 16;
    uint32_t most = 0, base = c->rank * l.local_experts;
    for (uint32_t r = 0; r < l.ranks; r++) most = max(most, s.rows[r]);
    uint32_t turn = 0;
    for (uint32_t n = blockIdx.x; n < most * l.ranks; n += gridDim.x) {
        uint32_t source, row;
        if (!row_of(s, l.ranks, c->rank, n, &source, &row)) continue;
        uint32_t stage = turn++ % kCombineStages;
        unsigned char *slot = s.window[c->rank] + epw_slot_offset(&l, c->lane, source, row);
        unsigned char *answer = s.window[source] + epw_answer_offset(&l, c->lane, c->rank, row, 0);
        if (warp == 0) {
            uint32_t expert = 0xffffffffu, weight = 0, index = 0;
            if (lane < l.topk) {
                const uint32_t *entry = reinterpret_cast<const uint32_t *>(slot + sizeof(epw_slot_header) + lane * 8);
                expert = ptx::load_relaxed_gpu(entry) - base;
                weight = ptx::load_relaxed_gpu(entry + 1);
                index = ptx::load_relaxed_gpu(reinterpret_cast<const uint32_t *>(slot + epw_indices_offset(&l)) + lane);
            }
            bool ours = expert < l.local_experts;
            uint32_t mask = __ballot_sync(0xffffffffu, ours);
            if (ours) {
                uint32_t at = __popc(mask & ((1u << lane) - 1));
                uint64_t list_row = expert * l.rows + c->first_row[source * l.local_experts + expert] + index;
                s.part[stage][at] = static_cast<const unsigned char *>(a.expert_out) + list_row * row_bytes;
                s.weight[stage][at] = __uint_as_float(weight);
            }
            if (lane == 0) {
                s.parts[stage] = __popc(mask);
                ptx::bulk_wait_read<kCombineStages - 1>(); // what this stage held has been read out
            }
        }
        __syncthreads();
        unsigned char *out = staging + stage * row_bytes;
        uint32_t parts = s.parts[stage];
        for (uint32_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
            reinterpret_cast<uint4 *>(out)[chunk] = sum_chunk<T, true>(s.part[stage], s.weight[stage], parts, chunk);
        }
        ptx::fence_shared_before_bulk();
        __syncthreads();
        if (threadIdx.x == 0) {
            ptx::bulk_store(answer, out, row_bytes);
            ptx::bulk_commit();
        }
    }
}

// Rank-major: rows are answered as they are.
__device__ inline void copy_rows(const epw_combine_args &a, epw_gpu_context *c, const epw_layout &l, CombineShared &s,
                                 unsigned char *staging, uint64_t *loaded) {
    uint32_t most = 0, row_bytes = l.row_bytes;
    for (uint32_t r = 0; r < l.ranks; r++) most = max(most, s.rows[r]);
    if (threadIdx.x != 0) return;
    ptx::fence_global_before_bulk(); // what earlier kernels wrote with ordinary stores, the engine reads now
    uint32_t turn = 0;
    for (uint32_t n = blockIdx.x; n < most * l.ranks; n += gridDim.x) {
        uint32_t source, row;
        if (!row_of(s, l.ranks, c->rank, n, &source, &row)) continue;
        uint32_t stage = turn % kCombineStages;
        const unsigned char *from = s.window[c->rank] + epw_slot_offset(&l, c->lane, source, row) + l.header_bytes;
        if (a.expert_out) {
            from = static_cast<const unsigned char *>(a.expert_out) + (uint64_t(source) * l.max_tokens + row) * row_bytes;
        }
        ptx::bulk_wait_read<kCombineStages - 1>();
        ptx::barrier_expect(&loaded[stage], row_bytes);
        ptx::bulk_load(staging + stage * row_bytes, from, row_bytes, &loaded[stage]);
        while (!ptx::barrier_try_wait(&loaded[stage], turn / kCombineStages & 1)) {}
        ptx::bulk_store(s.window[source] + epw_answer_offset(&l, c->lane, c->rank, row, 0), staging + stage * row_bytes, row_bytes);
        ptx::bulk_commit();
        turn++;
    }
}

template <typename T>
__device__ void sum_tokens(const epw_combine_args &a, epw_gpu_context *c, const epw_layout &l, CombineShared &s) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunks = l.row_bytes / 16;
    uint64_t answered = s.present & ~uint64_t(s.gone | s.partial);
    uint32_t stage = 0;
    for (uint32_t t = blockIdx.x; t < a.tokens; t += gridDim.x, stage ^= 1) {
        if (warp == 0) {
            size_t at = size_t(t) * l.topk + lane;
            int32_t expert = lane < l.topk ? c->ids[at] : -1;
            uint32_t rank = expert >= 0 ? expert / l.local_experts : 0x80000000u + lane;
            bool here = expert >= 0 && (answered >> rank & 1);
            uint32_t same = __match_any_sync(0xffffffffu, rank);
            bool leads = here && (same & ((1u << lane) - 1)) == 0;
            // The place of a rank's row among those summed: how many leading lanes have a lower rank.
            uint32_t place = 0;
            for (uint32_t j = 0; j < 32; j++) {
                uint32_t other = __shfl_sync(0xffffffffu, rank, j);
                bool other_leads = __shfl_sync(0xffffffffu, uint32_t(leads), j);
                place += other_leads && other < rank;
            }
            if (leads) {
                s.part[stage][place] = s.window[c->rank] + epw_answer_offset(&l, c->lane, rank, c->sent_row[at], 0);
            }
            uint32_t n = __popc(__ballot_sync(0xffffffffu, leads));
            uint32_t arrived = __popc(__ballot_sync(0xffffffffu, here));
            uint32_t expected = __popc(__ballot_sync(0xffffffffu, expert >= 0));
            if (lane == 0) {
                s.parts[stage] = n;
                if (a.contributions) reinterpret_cast<uint32_t *>(a.contributions)[t] = arrived | expected << 16;
            }
        }
        __syncthreads();
        unsigned char *out = static_cast<unsigned char *>(a.out) + uint64_t(t) * l.row_bytes;
        uint32_t parts = s.parts[stage];
        for (uint32_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
            ptx::store_16(out + chunk * 16, sum_chunk<T, false>(s.part[stage], nullptr, parts, chunk));
        }
    }
}

template <typename T> __device__ void combine_body(const epw_combine_args &a) {
    extern __shared__ __align__(128) unsigned char staging[];
    __shared__ CombineShared s;
    __shared__ uint64_t loaded[kCombineStages];
    epw_gpu_context *c = a.context;
    const epw_layout &l = a.layout;
    if (threadIdx.x == 96) {
        for (uint32_t i = 0; i < kCombineStages; i++) ptx::barrier_init(&loaded[i], 1);
        ptx::fence_barrier_init();
    }
    ptx::let_next_begin();
    ptx::wait_for_stream();
    if (threadIdx.x < l.ranks) {
        s.window[threadIdx.x] = c->window[threadIdx.x];
        s.rows[threadIdx.x] = !a.release && (c->present >> threadIdx.x & 1) ? c->received[threadIdx.x] : 0;
    }
    if (threadIdx.x == 64) {
        s.epoch = c->epoch;
        s.op = c->op;
        s.present = c->present;
        s.deadline_ns = a.deadline_ns ? a.deadline_ns : c->deadline_ns;
        s.gone = s.partial = 0;
    }
    __syncthreads();

    if (a.halves & EPW_GPU_SEND) {
        if (a.release) {
        } else if (a.output_layout == EPW_RANK_MAJOR) {
            copy_rows(a, c, l, s, staging, loaded);
        } else {
            answer_rows<T>(a, c, l, s, staging);
        }
        if (threadIdx.x == 0) ptx::bulk_wait_all();
        __syncthreads();
        // Writer of the words: the last block here; see dispatch.
        if (threadIdx.x == 0) s.last = ptx::add_acq_rel_gpu(&c->blocks_sent, 1) == gridDim.x - 1;
        __syncthreads();
        if (s.last && threadIdx.x < l.ranks && (s.present >> threadIdx.x & 1)) {
            epw_line *line = line_from(c, s.window[threadIdx.x], c->rank);
            ptx::store_release_sys(&line->combine[c->lane], epw_word(s.epoch, s.op, s.rows[threadIdx.x]));
        }
    }
    if (a.halves & EPW_GPU_RECEIVE) {
        if (threadIdx.x < l.ranks && (s.present >> threadIdx.x & 1)) {
            epw_line *line = line_from(c, s.window[c->rank], threadIdx.x);
            Arrival got = await_word(line, &line->combine[c->lane], s.epoch, s.op, false, false, s.deadline_ns);
            if (got.verdict == EPW_GONE) atomicOr(&s.gone, 1ull << threadIdx.x);
            if (got.verdict == EPW_ARRIVED && got.value != c->sent[threadIdx.x]) atomicOr(&s.partial, 1ull << threadIdx.x);
        }
        __syncthreads();
        sum_tokens<T>(a, c, l, s);
    }

    __syncthreads();
    if (threadIdx.x != 0) return;
    if (s.gone) atomicOr(reinterpret_cast<unsigned long long *>(c->suspects), s.gone);
    if (ptx::add_acq_rel_gpu(&c->blocks_out, 1) != gridDim.x - 1) return;
    c->blocks_sent = 0;
    c->blocks_out = 0;
}

} // namespace epw
