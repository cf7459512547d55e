// The ids of tokens: what they say, and how the entries of a token stand to each other.
#pragma once

#include "kernels/prefill/operation.cuh"

namespace epw {

// An id as it lies in memory: nothing is computed with it before it is needed, so that several are loaded at the same time.
constexpr uint64_t kNoId = ~uint64_t(0);
__device__ __forceinline__ uint64_t load_id(const epw_dispatch_input &in, uint32_t t, uint32_t j) {
    const size_t at = size_t(t) * in.topk + j;
    if (in.idx_type == EPW_I64) return static_cast<const uint64_t *>(in.topk_idx)[at];
    return static_cast<const uint32_t *>(in.topk_idx)[at];
}
__device__ __forceinline__ int64_t raw_id(const epw_dispatch_input &in, uint64_t loaded) {
    if (in.idx_type == EPW_I64 || loaded == kNoId) return int64_t(loaded);
    const int32_t id = int32_t(loaded);
    return in.idx_type == EPW_I32 || id == -1 ? id : int64_t(uint32_t(id));
}

// The lanes with the same value as this one; a lane without one is alone.
__device__ __forceinline__ uint32_t same_as(bool has, uint32_t value) {
    return __match_any_sync(0xffffffffu, has ? value : 0x80000000u | threadIdx.x % 32);
}
__device__ __forceinline__ uint32_t lanes_before() { return (1u << threadIdx.x % 32) - 1; }

// What an id says among those of its token, which have the lanes `segment`. Called by a whole warp.
struct NamedExpert {
    uint32_t id; // kNone: none
    bool bad;    // out of range, or repeats an earlier one of the token

    __device__ __forceinline__ NamedExpert(int64_t raw, uint32_t experts, uint32_t segment) {
        const bool in_range = raw >= 0 && raw < int64_t(experts);
        const bool repeats = same_as(in_range, uint32_t(raw)) & segment & lanes_before();
        bad = raw < -1 || (raw >= 0 && !in_range) || (in_range && repeats);
        id = in_range && !repeats ? uint32_t(raw) : kNone;
    }
};
// Whether the lane's entry is the token's first for that rank; kNone: it is for none. Called by a whole warp.
__device__ __forceinline__ bool leads_to(uint32_t rank, uint32_t segment) {
    const bool follows = same_as(rank != kNone, rank) & segment & lanes_before();
    return rank != kNone && !follows;
}

} // namespace epw
