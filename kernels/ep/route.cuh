// Numbering of rows. Rows to a rank, and rows within an expert's list, are numbered by token; a block that sends token t finds
// the numbers of t's rows by looking at the ids of all tokens before it. That is a few loads for the batches of decode, needs
// no table, and lets blocks number their tokens without asking each other.
#pragma once

#include "../comm/lane.cuh"
#include "stage.cuh"

namespace epw {

constexpr uint32_t kPerToken = 4; // threads that look at one token
constexpr uint32_t kIds = EPW_MAX_TOPK / kPerToken;
constexpr uint32_t kNobody = 0xffffffffu;

// The token that a block is about to send. Entry j is lane j's of warp 0.
struct Token {
    int32_t expert[EPW_MAX_TOPK]; // -1: none, bad, or a repetition
    uint32_t rank[EPW_MAX_TOPK];  // that the entry leads: the first entry to a rank that takes part; else kNobody
    uint32_t row[EPW_MAX_TOPK];   // rows before, to that rank
    uint32_t index[EPW_MAX_TOPK]; // rows before, to that expert
};

constexpr int64_t kNone = -1;

// An id as the caller wrote it; "not routed" of every type is -1.
__device__ __forceinline__ int64_t raw_id(const epw_dispatch_args &a, uint32_t t, uint32_t j) {
    size_t at = size_t(t) * a.topk + j;
    if (a.idx_type == EPW_I32) return static_cast<const int32_t *>(a.topk_idx)[at];
    if (a.idx_type == EPW_I64) return static_cast<const int64_t *>(a.topk_idx)[at];
    uint32_t id = static_cast<const uint32_t *>(a.topk_idx)[at];
    return id == 0xffffffffu ? kNone : int64_t(id);
}

// The id, or -1 where it is not one.
__device__ __forceinline__ int32_t read_id(const epw_dispatch_args &a, uint32_t t, uint32_t j) {
    int64_t id = raw_id(a, t, j);
    return id >= 0 && id < int64_t(a.layout.local_experts) * a.layout.ranks ? int32_t(id) : -1;
}

// The ids of token t that this thread looks at; -1 beyond the tokens.
__device__ __forceinline__ void read_ids(const epw_dispatch_args &a, uint32_t t, bool inside, int32_t ids[kIds]) {
#pragma unroll
    for (uint32_t i = 0; i < kIds; i++) {
        uint32_t j = i * kPerToken + threadIdx.x % kPerToken;
        ids[i] = inside && j < a.topk ? read_id(a, t, j) : -1;
    }
}

// One count per group of kPerToken lanes where any lane says yes.
__device__ __forceinline__ uint32_t count_tokens(bool yes) {
    uint32_t lanes = __ballot_sync(0xffffffffu, yes);
    lanes |= lanes >> 1;
    lanes |= lanes >> 2;
    return __popc(lanes & 0x11111111u);
}

// Adds to the token's numbers what this round of threads has seen: tokens before it with its experts and its ranks. By whole
// warps.
__device__ __forceinline__ void count_round(const epw_dispatch_args &a, Token &token, const int32_t ids[kIds]) {
    uint32_t lane = threadIdx.x % 32, same_expert = 0, same_rank = 0;
#pragma unroll
    for (uint32_t i = 0; i < kIds; i++) {
        if (i * kPerToken >= a.topk) break;
        if (ids[i] < 0) continue;
        uint32_t rank = uint32_t(ids[i]) / a.layout.local_experts;
        for (uint32_t j = 0; j < a.topk; j++) {
            same_expert |= uint32_t(token.expert[j] == ids[i]) << j;
            same_rank |= uint32_t(token.rank[j] == rank) << j;
        }
    }
    uint32_t index = 0, row = 0;
    for (uint32_t j = 0; j < a.topk; j++) {
        uint32_t experts = count_tokens(same_expert >> j & 1), ranks = count_tokens(same_rank >> j & 1);
        if (lane == j) {
            index = experts;
            row = ranks;
        }
    }
    if (index) atomicAdd(&token.index[lane], index);
    if (row) atomicAdd(&token.row[lane], row);
}

// Entry `lane` of token t, in registers of warp 0.
struct Entry {
    int32_t expert; // -1: none
    float weight;
    uint32_t rank;   // kNobody: it does not take part
    uint32_t leader; // lane of the first entry to the same rank
};

// By warp 0. `bad`: the id was out of range or repeated.
__device__ __forceinline__ Entry make_entry(const epw_dispatch_args &a, int64_t raw, float weight, uint64_t targets, bool *bad) {
    uint32_t lane = threadIdx.x % 32, experts = a.layout.local_experts * a.layout.ranks;
    bool valid = raw >= 0 && raw < experts;
    Entry e = {valid ? int32_t(raw) : -1, weight, kNobody, lane};
    *bad = raw != kNone && !valid;
    uint32_t same = __match_any_sync(0xffffffffu, valid ? uint32_t(raw) : 0x80000000u + lane);
    if (valid && (same & ((1u << lane) - 1)) != 0) {
        e.expert = -1;
        *bad = true;
    }
    if (e.expert < 0) e.weight = 0.0f;
    uint32_t rank = e.expert >= 0 ? uint32_t(e.expert) / a.layout.local_experts : 0;
    if (e.expert >= 0 && (targets >> rank & 1)) e.rank = rank;
    uint32_t peers = __match_any_sync(0xffffffffu, e.rank == kNobody ? 0x80000000u + lane : e.rank);
    e.leader = __ffs(peers) - 1;
    return e;
}

// All rows to `rank` and to each of its experts, for the rank to place them by. Called by the whole block; `hist` is
// [local_experts] in shared memory, *rows too; both are whole after the caller's next barrier.
__device__ inline void count_all(const epw_dispatch_args &a, uint32_t rank, uint32_t *hist, uint32_t *rows) {
    uint32_t local = a.layout.local_experts;
    for (uint32_t e = threadIdx.x; e < local; e += blockDim.x) hist[e] = 0;
    if (threadIdx.x == 0) *rows = 0;
    __syncthreads();
    for (uint32_t base = 0; base < a.tokens; base += blockDim.x / kPerToken) {
        uint32_t t = base + threadIdx.x / kPerToken;
        bool any = false;
        for (uint32_t j = threadIdx.x % kPerToken; j < a.topk; j += kPerToken) {
            int32_t id = t < a.tokens ? read_id(a, t, j) : -1;
            if (id < 0 || uint32_t(id) / local != rank) continue;
            any = true;
            bool repeated = false;
            for (uint32_t i = 0; i < j; i++) repeated |= read_id(a, t, i) == id;
            if (!repeated) atomicAdd(&hist[uint32_t(id) - rank * local], 1u);
        }
        uint32_t n = count_tokens(any);
        if (threadIdx.x % 32 == 0 && n) atomicAdd(rows, n);
    }
}

} // namespace epw
