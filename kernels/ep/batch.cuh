// Numbering of rows a batch at a time, for blocks that have many tokens: the block's tokens follow each other, it counts those
// before them first, and then numbers its own by comparing them with each other. See route.cuh for the other way.
#pragma once

#include "kernels/ep/route.cuh"
#include "kernels/ptx/bulk.cuh"

namespace epw {

// Some entries of a token: it is counted by 2^a.count_shift neighbouring threads.
struct Counted {
    static constexpr uint32_t kEach = 8;
    RawId raw[kEach];
    uint32_t number; // of the thread among those of its token

    __device__ __forceinline__ Counted(const Dispatch &a, uint32_t t, bool inside) {
        number = threadIdx.x & ((1u << a.count_shift) - 1);
#pragma unroll
        for (uint32_t k = 0; k < kEach; k++) {
            raw[k] = load_id(a, t, number * kEach + k, inside && number * kEach + k < a.in.topk);
        }
    }
    // Called by the whole warp.
    __device__ __forceinline__ void add_to(const Dispatch &a, Census census) const {
        uint32_t ids[kEach], owners[kEach], ranks = 0; // of the first 32
        bool repeated[kEach], follows[kEach];          // an earlier entry of the token has the same id, or owner
#pragma unroll
        for (uint32_t k = 0; k < kEach; k++) {
            ids[k] = valid_id(a, raw[k]);
            owners[k] = ids[k] == kNobody ? kNobody : a.per_rank.divide(ids[k]);
            repeated[k] = follows[k] = ids[k] == kNobody;
#pragma unroll
            for (uint32_t before = 0; before < k; before++) {
                repeated[k] = repeated[k] || ids[before] == ids[k];
                follows[k] = follows[k] || owners[before] == owners[k];
            }
        }
#pragma unroll 1
        for (uint32_t d = 1; d < 1u << a.count_shift; d++) { // the entries of the token's threads before this one
#pragma unroll
            for (uint32_t before = 0; before < kEach; before++) {
                const uint32_t id = __shfl_up_sync(0xffffffffu, ids[before], d);
                const uint32_t owner = __shfl_up_sync(0xffffffffu, owners[before], d);
#pragma unroll
                for (uint32_t k = 0; k < kEach; k++) {
                    repeated[k] = repeated[k] || (number >= d && id == ids[k]);
                    follows[k] = follows[k] || (number >= d && owner == owners[k]);
                }
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < kEach; k++) {
            if (!repeated[k]) atomicAdd(&census.experts[ids[k]], 1u);
            if (follows[k]) continue;
            if (owners[k] < 32) {
                ranks |= 1u << owners[k];
            } else {
                atomicAdd(&census.ranks[owners[k]], 1u);
            }
        }
        // All tokens of the warp at once: where there are few ranks, most tokens have each.
        uint32_t tokens = 0;
#pragma unroll 1
        for (uint32_t rank = 0; rank < min(a.lane.layout.ranks, 32u); rank++) {
            const uint32_t with = __popc(__ballot_sync(0xffffffffu, ranks >> rank & 1));
            if (threadIdx.x % 32 == rank) tokens = with;
        }
        if (tokens > 0) atomicAdd(&census.ranks[threadIdx.x % 32], tokens);
    }
};

// Counts the first `to` tokens. Called by the whole block.
__device__ __forceinline__ void count_many(const Dispatch &a, Census census, uint32_t to) {
    const uint32_t each = kThreads >> a.count_shift, first = threadIdx.x >> a.count_shift;
    const uint32_t of_warp = (threadIdx.x & ~31u) >> a.count_shift; // its first one
    Counted now(a, first, first < to);
#pragma unroll 1
    for (uint32_t begin = 0; begin + of_warp < to; begin += each) {
        const uint32_t t = first + begin + each;
        const Counted next(a, t, t < to); // on their way while these are counted
        now.add_to(a, census);
        now = next;
    }
}

// What a batch keeps in shared memory.
struct BatchShared {
    // Of each entry of its tokens: the expert, and << 16 the rank if the entry is the first for it; kNone16: none.
    uint32_t entries[kWarps][EPW_MAX_TOPK];
    uint64_t loaded[kMaxTiles]; // barriers: a tile's row is loaded
    uint64_t numbered;          // barrier: all warps have numbered their token

    static constexpr uint32_t kNone16 = 0xffff; // also kNobody's last 16 bits
    static_assert(EPW_GPU_MAX_EXPERTS < kNone16 && EPW_GPU_MAX_RANKS < kNone16);

    // Of token `number` of the batch. Called by a whole warp.
    __device__ __forceinline__ void put(const Token &token, uint32_t number) {
        entries[number][threadIdx.x % 32] = (token.expert & kNone16) | (token.leads ? token.rank : kNone16) << 16;
    }
};
static_assert(sizeof(BatchShared) <= kBatchMemory);

// The numbers of an entry's row: in the list of its expert, and among those sent to the rank.
struct Numbers {
    uint32_t index = 0, row = 0;

    Numbers() = default;
    // Of the warp's token, number `number` of the batch: all entries of the batch have been put, and the tokens before it
    // counted.
    __device__ __forceinline__ Numbers(const Dispatch &a, Census census, const BatchShared &batch, const Token &token,
                                       uint32_t number) {
        if (token.expert == kNobody) return;
        index = census.experts[token.expert];
        row = census.ranks[token.rank];
#pragma unroll 1
        for (uint32_t before = 0; before < number; before++) {
#pragma unroll 1
            for (uint32_t j = 0; j < a.in.topk; j += 4) {
                const uint4 four = *reinterpret_cast<const uint4 *>(&batch.entries[before][j]);
                const uint32_t each[] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (uint32_t entry : each) {
                    index += (entry & BatchShared::kNone16) == token.expert;
                    row += entry >> 16 == token.rank;
                }
            }
        }
    }
};

} // namespace epw
