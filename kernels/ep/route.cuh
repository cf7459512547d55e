// Numbering of rows. The rows sent to a rank, and those within an expert's list, are numbered by token: a row's number is how
// many earlier tokens have that rank, or that expert. Each block counts them on its own, in shared memory, as it goes from token
// to token; the last block counts to the end, and so knows the totals by which each peer places the rows.
#pragma once

#include "kernels/ep/lane.cuh"
#include "kernels/ep/shape.cuh"

namespace epw {

constexpr uint32_t kNobody = 0xffffffffu;

// An id as loaded, not yet examined, so that the load can stay in flight until its value is needed.
struct RawId {
    uint32_t low = 0xffffffffu, high = 0xffffffffu;
};

__device__ __forceinline__ RawId load_id(const Dispatch &a, uint32_t t, uint32_t j, bool inside) {
    RawId raw;
    if (!inside) return raw;
    size_t at = size_t(t) * a.in.topk + j;
    if (a.in.idx_type == EPW_I64) {
        uint2 pair = static_cast<const uint2 *>(a.in.topk_idx)[at];
        raw.low = pair.x;
        raw.high = pair.y;
    } else {
        raw.low = static_cast<const uint32_t *>(a.in.topk_idx)[at];
    }
    return raw;
}

// The id as the caller wrote it; in every type -1 means "not routed".
constexpr int64_t kNone = -1;
__device__ __forceinline__ int64_t raw_value(const Dispatch &a, RawId raw) {
    if (a.in.idx_type == EPW_I64) return int64_t(uint64_t(raw.high) << 32 | raw.low);
    if (a.in.idx_type == EPW_U32 && raw.low != 0xffffffffu) return raw.low;
    return int32_t(raw.low);
}

// The id, or kNobody if it is not valid.
__device__ __forceinline__ uint32_t valid_id(const Dispatch &a, RawId raw) {
    bool fits = a.in.idx_type != EPW_I64 || raw.high == 0;
    return fits && raw.low < a.experts ? raw.low : kNobody;
}

// One id per thread, and its relation to the other ids of the same token. Used by a whole warp.
struct Standing {
    uint32_t id, owner; // kNobody: no valid id
    bool repeated;      // an earlier thread of the token has the same id,
    bool follows;       // or an id of the same owner

    // `before`: the earlier threads of the token, as a mask.
    __device__ __forceinline__ Standing(const Dispatch &a, RawId raw, uint32_t before) {
        id = valid_id(a, raw);
        owner = id == kNobody ? kNobody : a.per_rank.divide(id);
        repeated = __match_any_sync(0xffffffffu, id) & before;
        follows = __match_any_sync(0xffffffffu, owner) & before;
    }
};

// The token that a block is about to send: in each of the first two warps, thread j holds entry j.
struct Token {
    RawId raw;
    float weight = 0.0f;
    uint32_t expert = kNobody; // also kNobody if the id is bad, or a repetition
    uint32_t rank = kNobody;   // rank of the expert
    bool leads = false;        // the first entry for its rank
    bool bad = false;

    __device__ __forceinline__ float kept_weight() const { return expert == kNobody ? 0.0f : weight; }

    // In two steps, so that the caller can work while the loads are in flight.
    __device__ __forceinline__ void load(const Dispatch &a, uint32_t t) {
        uint32_t laneid = threadIdx.x % 32;
        bool inside = t < a.in.tokens && laneid < a.in.topk;
        raw = load_id(a, t, laneid, inside);
        if (a.in.topk_weights && inside) weight = a.in.topk_weights[size_t(t) * a.in.topk + laneid];
    }
    __device__ __forceinline__ void look(const Dispatch &a) {
        const Standing s(a, raw, (1u << threadIdx.x % 32) - 1);
        bool valid = s.id != kNobody && !s.repeated;
        bad = !valid && raw_value(a, raw) != kNone;
        expert = valid ? s.id : kNobody;
        rank = valid ? s.owner : kNobody;
        leads = valid && !s.follows;
    }
};

// How many of the tokens so far have each expert, and each rank: counters in shared memory.
struct Census {
    uint32_t *experts, *ranks;

    // Called by the whole block.
    __device__ __forceinline__ void clear(const Dispatch &a) const {
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < a.experts; i += kThreads) experts[i] = 0;
        if (threadIdx.x < a.lane.layout.ranks) ranks[threadIdx.x] = 0;
    }
    __device__ __forceinline__ void add_expert(uint32_t expert) const { atomicAdd(&experts[expert], 1u); }
    __device__ __forceinline__ void add_rank(uint32_t rank, uint32_t n) const { atomicAdd(&ranks[rank], n); }
};

// Ids of tokens to be counted: each thread has one of every kThreads, and the ids of a token are 2^entry_shift neighbours. Ids
// are assigned from the last warp to the first, because the first warps have other work.
struct Ids {
    static constexpr uint32_t kEarly = 3; // ids of a thread that are loaded before they are needed
    RawId early[kEarly];

    __device__ __forceinline__ void load(const Dispatch &a, uint32_t from, uint32_t to) {
#pragma unroll
        for (uint32_t i = 0; i < kEarly; i++) early[i] = load_of(a, from, to, i);
    }
    // The thread's id number i of the tokens in [from, to).
    static __device__ __forceinline__ RawId load_of(const Dispatch &a, uint32_t from, uint32_t to, uint32_t i) {
        uint32_t n = first_of_warp() + threadIdx.x % 32 + i * kThreads, t = from + (n >> a.entry_shift);
        uint32_t j = n & ((1u << a.entry_shift) - 1);
        return load_id(a, t, j, t < to && j < a.in.topk);
    }
    static __device__ __forceinline__ uint32_t first_of_warp() { return (kWarps - 1 - threadIdx.x / 32) * 32; }
};

// Counts one id of each thread. Called by a whole warp.
__device__ __forceinline__ void count_ids(const Dispatch &a, Census census, RawId raw) {
    const uint32_t laneid = threadIdx.x % 32, first = laneid & ~((1u << a.entry_shift) - 1); // first thread of the token
    const Standing s(a, raw, ((1u << laneid) - 1) & ~((1u << first) - 1));
    atomicAdd(&census.experts[s.id == kNobody || s.repeated ? a.experts : s.id],
              1u); // without a branch: the extra counter collects invalid ids
    if (s.owner != kNobody && !s.follows) atomicAdd(&census.ranks[s.owner], 1u);
}

// Counts the tokens in [from, to). Called by the whole block; `ids` was loaded for the same tokens.
__device__ __forceinline__ void count_tokens(const Dispatch &a, Census census, const Ids &ids, uint32_t from, uint32_t to) {
    if (from >= to) return;
    const uint32_t first = Ids::first_of_warp(), end = (to - from) << a.entry_shift;
#pragma unroll
    for (uint32_t i = 0; i < Ids::kEarly; i++) {
        if (first + i * kThreads < end) count_ids(a, census, ids.early[i]);
    }
#pragma unroll 1
    for (uint32_t i = Ids::kEarly; first + i * kThreads < end; i++) count_ids(a, census, Ids::load_of(a, from, to, i));
}

// The same in little code, one thread per token, for tokens that other blocks send: no row waits for these numbers.
__device__ __forceinline__ void count_at_leisure(const Dispatch &a, Census census, uint32_t from, uint32_t to) {
#pragma unroll 1
    for (uint32_t t = from + threadIdx.x; t < to; t += kThreads) {
#pragma unroll 1
        for (uint32_t j = 0; j < a.in.topk; j++) {
            uint32_t id = valid_id(a, load_id(a, t, j, true)), owner = a.per_rank.divide(id);
            if (id == kNobody) continue;
            bool repeated = false, follows = false;
#pragma unroll 1
            for (uint32_t k = 0; k < j; k++) {
                uint32_t earlier = valid_id(a, load_id(a, t, k, true));
                repeated |= earlier == id;
                follows |= earlier != kNobody && a.per_rank.divide(earlier) == owner;
            }
            if (!repeated) atomicAdd(&census.experts[id], 1u);
            if (!follows) atomicAdd(&census.ranks[owner], 1u);
        }
    }
}

// Counts a token that is in registers. Called by a whole warp.
__device__ __forceinline__ void count_token(Census census, const Token &token) {
    if (token.expert != kNobody) census.add_expert(token.expert);
    if (token.leads) census.add_rank(token.rank, 1);
}

} // namespace epw
