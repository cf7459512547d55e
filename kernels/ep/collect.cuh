// The receiving half of combine: wait for every peer's answers and sum them, token by token.
#pragma once

#include "../comm/lane.cuh"
#include "sum.cuh"

namespace epw {

// Is the answer whole, and of the mode that this rank expects? The host device's answer_cause.
__device__ __forceinline__ uint32_t answer_cause(const epw_combine_args &a, const epw_gpu_context *c, uint32_t peer, uint32_t value) {
    uint32_t rows = c->ordered ? value & ~EPW_ANSWER_ORDERED : value, sent = epw_word_value(c->sent[peer]);
    if (rows != sent) return rows < sent ? EPW_CAUSE_PARTIAL : EPW_CAUSE_FORMAT;
    bool ordered = c->ordered && (value & EPW_ANSWER_ORDERED);
    return rows == 0 || ordered == (a.mode == EPW_COMBINE_ORDERED) ? EPW_CAUSE_NONE : EPW_CAUSE_FORMAT;
}

// By one warp: where the answers to token t lie, in the order in which they are summed.
__device__ inline void find_answers(const epw_combine_args &a, const Operation &o, uint64_t answered, uint32_t t, Sum &sum) {
    const epw_layout &l = a.layout;
    uint32_t lane = threadIdx.x % 32;
    size_t at = size_t(t) * l.topk + lane;
    int32_t expert = lane < l.topk ? o.ids[at] : -1;
    uint32_t row = lane < l.topk ? o.sent_row[at] : 0, earlier = (1u << lane) - 1;
    uint32_t rank = expert >= 0 ? uint32_t(expert) / l.local_experts : 0x80000000u + lane;
    bool here = expert >= 0 && (answered >> rank & 1);
    uint32_t same = __match_any_sync(0xffffffffu, rank);
    uint32_t mask = __ballot_sync(0xffffffffu, here);
    if (a.mode == EPW_COMBINE_ORDERED) {
        if (here) {
            uint32_t place = __popc(mask & earlier);
            sum.part[place] = a.window + epw_answer_offset(&l, o.lane, rank, row, __popc(same & earlier));
            bool given = a.topk_weights && lane < a.topk;
            sum.weight[place] = given ? a.topk_weights[size_t(t) * a.topk + lane] : o.weights[at];
        }
        if (lane == 0) sum.count = __popc(mask);
    } else {
        bool leads = here && (same & earlier) == 0;
        uint32_t leaders = __ballot_sync(0xffffffffu, leads), place = 0; // ranks below this one's
        for (uint32_t rest = leaders; rest != 0; rest &= rest - 1) {
            place += __shfl_sync(0xffffffffu, rank, __ffs(rest) - 1) < rank;
        }
        if (leads) sum.part[place] = a.window + epw_answer_offset(&l, o.lane, rank, row, 0);
        if (lane == 0) sum.count = __popc(leaders);
    }
    uint32_t expected = __popc(__ballot_sync(0xffffffffu, expert >= 0));
    if (lane != 0) return;
    sum.to = static_cast<unsigned char *>(a.out) + uint64_t(t) * l.row_bytes;
    if (a.contributions) reinterpret_cast<ushort2 *>(a.contributions)[t] = {uint16_t(__popc(mask)), uint16_t(expected)};
}

// Looks up the block's tokens from `first` on, a warp to a token; returns how many there are. Ends with a barrier.
__device__ inline uint32_t find_tokens(const epw_combine_args &a, const Operation &o, uint64_t answered, Sum *sums, uint32_t first,
                                       uint32_t stride) {
    uint32_t warp = threadIdx.x / 32, t = first + warp * stride;
    if (t < a.tokens) find_answers(a, o, answered, t, sums[warp]);
    __syncthreads();
    return first < a.tokens ? min(kBatch, (a.tokens - first - 1) / stride + 1) : 0;
}

// Waits and sums. Where something is amiss, the block that closes the operation decides whose answers count, and sums again
// alone where somebody's do not. What is summed is looked up before the wait, as if everybody would answer.
template <typename T, bool Weighted>
__device__ void collect(const epw_combine_args &a, Operation &o, Sum *sums, uint64_t peers, Ring ring) {
    epw_gpu_context *c = o.context;
    uint32_t found = find_tokens(a, o, peers, sums, blockIdx.x, gridDim.x);
    if (threadIdx.x < o.ranks && ((peers & ~uint64_t(o.gone)) >> threadIdx.x & 1)) {
        Arrival got = await(o, Awaited::answer, EPW_PHASE_COMBINE_RECEIVE, threadIdx.x, a.wait_ns != nullptr);
        if (!got.arrived) {
            leave_out(o, threadIdx.x);
        } else if (answer_cause(a, c, threadIdx.x, got.value) != EPW_CAUSE_NONE) {
            atomicOr(&o.refused, 1ull << threadIdx.x);
        }
    }
    __syncthreads();
    ptx::let_next_begin();
    if (threadIdx.x == 0) {
        // What the words guard was acquired by generic loads; the engine reads it now. And it writes where the block has read.
        ptx::fence_global_before_bulk();
        ptx::fence_shared_before_bulk();
    }
    uint64_t answered = peers & ~uint64_t(o.gone | o.refused);
    bool looked_up = answered == peers;
    auto sum_tokens = [&](uint32_t block, uint32_t blocks) {
        for (uint32_t first = block; first < a.tokens; first += kBatch * blocks) {
            uint32_t rows = looked_up ? found : find_tokens(a, o, answered, sums, first, blocks);
            looked_up = false;
            make_sums<T, Weighted>(ring, sums, rows, a.layout.row_bytes);
        }
        if (threadIdx.x == 0) ptx::bulk_wait_all();
    };
    sum_tokens(blockIdx.x, gridDim.x);
    if (threadIdx.x == 0 && o.refused) atomicOr(reinterpret_cast<unsigned long long *>(&c->refused), o.refused);
    if (!must_close(o, EPW_GPU_FREE, a.halves & EPW_GPU_SEND)) return;
    uint64_t refused = ptx::load_relaxed_gpu(&c->refused);
    answered = peers & ~(ptx::load_relaxed_gpu(&c->gone) | refused);
    if (answered != peers) {
        sum_tokens(0, 1);
        __syncthreads();
    }
    if (a.wait_ns && threadIdx.x < o.ranks) {
        a.wait_ns[threadIdx.x] += c->waited[threadIdx.x];
        c->waited[threadIdx.x] = 0;
    }
    if (refused && threadIdx.x == 0) {
        uint32_t peer = __ffsll(refused) - 1;
        uint64_t seen = ptx::load_relaxed_sys(awaited_word(o, Awaited::answer, peer));
        uint32_t cause = answer_cause(a, c, peer, epw_word_value(seen));
        record_loss(o, EPW_PHASE_COMBINE_RECEIVE, cause, peer, expected_word(o, Awaited::answer), seen, 0);
    }
    close(o, EPW_PHASE_COMBINE_SEND, EPW_GPU_FREE, answered, o.active & ~answered);
}

} // namespace epw
