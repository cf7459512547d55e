// Sets of ranks in kernels. On the fast path a thread only tests its own peer's bit in a set in shared or global memory; whole
// sets are computed only after a loss, by one thread. For their memory order see rank_set.h.
#pragma once

#include "kernels/peer/rank_set.h"
#include "kernels/ptx/memory.cuh"

namespace epw {

__device__ __forceinline__ uint32_t bit_of(uint32_t rank) { return 1u << (rank & 31); }

// For a set that no other thread changes meanwhile, or a block's own set between two barriers.
__device__ __forceinline__ bool has(const epw_rank_set &set, uint32_t rank) { return epw_ranks_have(&set, rank); }

// For a set in device memory that other blocks change.
__device__ __forceinline__ bool has_now(const epw_rank_set &set, uint32_t rank) {
    return ptx::load_relaxed_gpu(&set.words[rank / 32]) & bit_of(rank);
}

// Loads a whole such set, word by word.
__device__ __forceinline__ epw_rank_set load_now(const epw_rank_set &set) {
    epw_rank_set now;
#pragma unroll
    for (uint32_t i = 0; i < EPW_RANK_WORDS; i++) now.words[i] = ptx::load_relaxed_gpu(&set.words[i]);
    return now;
}

// Inserts a rank into a set in shared or device memory, atomically but without ordering. Returns whether the rank was there
// already.
__device__ __forceinline__ bool insert(epw_rank_set &set, uint32_t rank) {
    return atomicOr(&set.words[rank / 32], bit_of(rank)) & bit_of(rank);
}
__device__ __forceinline__ void remove(epw_rank_set &set, uint32_t rank) { atomicAnd(&set.words[rank / 32], ~bit_of(rank)); }

// The same with release at block scope, for a set in shared memory with which threads tell their block what they have acquired.
__device__ __forceinline__ void insert_release_block(epw_rank_set &set, uint32_t rank) {
    ptx::set_bits_release_block(&set.words[rank / 32], bit_of(rank));
}

// A reader's cached view of such a set: the word that it loaded last.
struct Glance {
    uint32_t word = 0, bits = 0;

    // Waits until the rank is in the set, and acquires what was released with its bit. Consecutive ranks of the same word cost
    // one load at most.
    __device__ __forceinline__ void await(const epw_rank_set &set, uint32_t rank) {
        while (rank / 32 != word || !(bits & bit_of(rank))) {
            word = rank / 32;
            bits = ptx::load_acquire_block(&set.words[word]);
        }
    }
};

__device__ __forceinline__ bool any(const epw_rank_set &set) {
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t word : set.words) bits |= word;
    return bits != 0;
}

// The lowest rank of a non-empty set.
__device__ __forceinline__ uint32_t first_of(const epw_rank_set &set) {
    uint32_t first = EPW_GPU_PEERS;
#pragma unroll
    for (uint32_t i = EPW_RANK_WORDS; i-- > 0;) {
        if (set.words[i] != 0) first = i * 32 + __ffs(set.words[i]) - 1;
    }
    return first;
}

__device__ __forceinline__ epw_rank_set operator|(const epw_rank_set &a, const epw_rank_set &b) {
    epw_rank_set both;
#pragma unroll
    for (uint32_t i = 0; i < EPW_RANK_WORDS; i++) both.words[i] = a.words[i] | b.words[i];
    return both;
}
__device__ __forceinline__ epw_rank_set operator&(const epw_rank_set &a, const epw_rank_set &b) {
    epw_rank_set common;
#pragma unroll
    for (uint32_t i = 0; i < EPW_RANK_WORDS; i++) common.words[i] = a.words[i] & b.words[i];
    return common;
}
// The ranks of `a` that are not in `b`.
__device__ __forceinline__ epw_rank_set operator-(const epw_rank_set &a, const epw_rank_set &b) {
    epw_rank_set rest;
#pragma unroll
    for (uint32_t i = 0; i < EPW_RANK_WORDS; i++) rest.words[i] = a.words[i] & ~b.words[i];
    return rest;
}

} // namespace epw
