// Numbering of rows. Every block works out for itself where its tokens' rows go: rows to a rank, and rows within an expert,
// are numbered by token. Bitmaps over 256 tokens at a time, one bit per token, make a number a population count.
#pragma once

#include "../comm/context.h"

#include <cstdint>

namespace epw {

constexpr uint32_t kRouteTokens = 256; // tokens per pass
constexpr uint32_t kRouteWords = kRouteTokens / 32;

// Shared memory of a route, carved behind the static part.
struct Route {
    uint32_t *expert_bits; // [experts][kRouteWords]
    uint32_t *expert_base; // [experts] rows of earlier passes
    uint32_t *rank_bits;   // [ranks][kRouteWords]
    uint32_t *rank_base;   // [ranks]

    static __host__ __device__ size_t bytes(uint32_t experts, uint32_t ranks) {
        return (size_t(experts) + ranks) * (kRouteWords + 1) * sizeof(uint32_t);
    }
    __device__ Route(void *memory, uint32_t experts, uint32_t ranks) {
        expert_bits = static_cast<uint32_t *>(memory);
        rank_bits = expert_bits + experts * kRouteWords;
        expert_base = rank_bits + ranks * kRouteWords;
        rank_base = expert_base + experts;
    }
};

// An id of any index type; "not routed" is -1, what is out of range is `bad`.
template <typename Index> __device__ __forceinline__ int32_t read_id(const Index *ids, size_t at, uint32_t experts, bool *bad) {
    Index raw = ids[at];
    if (raw == static_cast<Index>(-1)) return -1;
    bool inside = raw >= 0 && static_cast<uint64_t>(raw) < experts;
    *bad |= !inside;
    return inside ? static_cast<int32_t>(raw) : -1;
}

// Fills the bitmaps for tokens [first, first + 256). Called by the whole block; ends with a barrier.
template <typename Index>
__device__ void route_pass(Route &route, const Index *ids, uint32_t tokens, uint32_t topk, uint32_t experts,
                           uint32_t ranks, uint32_t local_experts, uint64_t targets, uint32_t first, bool *bad) {
    uint32_t words = (experts + ranks) * kRouteWords;
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) route.expert_bits[i] = 0;
    __syncthreads();
    for (uint32_t group = threadIdx.x / 32; group < kRouteWords; group += blockDim.x / 32) {
        uint32_t lane = threadIdx.x % 32, t = first + group * 32 + lane;
        if (first + group * 32 >= tokens) break;
        uint64_t to = 0;
        if (t < tokens) {
            for (uint32_t j = 0; j < topk; j++) {
                int32_t id = read_id(ids, size_t(t) * topk + j, experts, bad);
                if (id < 0) continue;
                uint32_t rank = id / local_experts;
                uint32_t before = atomicOr(&route.expert_bits[id * kRouteWords + group], 1u << lane);
                *bad |= (before >> lane & 1u) != 0; // repeated within the token: counts once
                to |= (targets >> rank & 1u) << rank;
            }
        }
        for (uint32_t r = 0; r < ranks; r++) {
            uint32_t word = __ballot_sync(0xffffffffu, to >> r & 1u);
            if (lane == 0) route.rank_bits[r * kRouteWords + group] = word;
        }
    }
    __syncthreads();
}

// The number of token `t` of the pass among those whose bit is set.
__device__ __forceinline__ uint32_t number_of(const uint32_t *bits, uint32_t base, uint32_t t) {
    uint32_t n = base;
    for (uint32_t w = 0; w < t / 32; w++) n += __popc(bits[w]);
    return n + __popc(bits[t / 32] & ((1u << (t % 32)) - 1));
}

// Adds the pass to the bases. Called by the whole block; needs a barrier before and after.
__device__ __forceinline__ void route_advance(Route &route, uint32_t experts, uint32_t ranks) {
    for (uint32_t i = threadIdx.x; i < experts + ranks; i += blockDim.x) {
        uint32_t *bits = i < experts ? route.expert_bits + i * kRouteWords : route.rank_bits + (i - experts) * kRouteWords;
        uint32_t *base = i < experts ? route.expert_base + i : route.rank_base + (i - experts);
        for (uint32_t w = 0; w < kRouteWords; w++) *base += __popc(bits[w]);
    }
}

} // namespace epw
