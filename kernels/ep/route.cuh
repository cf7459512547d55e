// Numbering of rows. Rows to a rank, and rows within an expert's list, are numbered by token: a row's number is how many tokens
// before it have that rank, or that expert. A block counts them in shared memory as it goes from token to token, by itself; the
// last block goes on to the end, and so knows what each peer will place the rows by.
#pragma once

#include "../comm/lane.cuh"
#include "shape.cuh"

namespace epw {

constexpr uint32_t kColumns = 8; // ids of a token looked at a time
constexpr uint32_t kNobody = 0xffffffffu;

// An id as it was loaded, not yet looked at: loads go on while nobody needs it.
struct RawId {
    uint32_t low = 0xffffffffu, high = 0xffffffffu;
};

__device__ __forceinline__ RawId load_id(const Dispatch &a, uint32_t t, uint32_t j, bool inside) {
    RawId raw;
    if (!inside) return raw;
    size_t at = size_t(t) * a.topk + j;
    if (a.idx_type == EPW_I64) {
        uint2 pair = static_cast<const uint2 *>(a.topk_idx)[at];
        raw.low = pair.x;
        raw.high = pair.y;
    } else {
        raw.low = static_cast<const uint32_t *>(a.topk_idx)[at];
    }
    return raw;
}

// The id as the caller wrote it; "not routed" of every type is -1.
constexpr int64_t kNone = -1;
__device__ __forceinline__ int64_t raw_value(const Dispatch &a, RawId raw) {
    if (a.idx_type == EPW_I64) return int64_t(uint64_t(raw.high) << 32 | raw.low);
    if (a.idx_type == EPW_U32 && raw.low != 0xffffffffu) return raw.low;
    return int32_t(raw.low);
}

// The id, or kNobody where it is none.
__device__ __forceinline__ uint32_t valid_id(const Dispatch &a, RawId raw) {
    bool fits = a.idx_type != EPW_I64 || raw.high == 0;
    return fits && raw.low < a.experts ? raw.low : kNobody;
}

// The token that a block is about to send: entry j is lane j's of warp 0.
struct Token {
    RawId raw;
    float weight = 0.0f;
    uint32_t expert = kNobody; // also where the id is bad, or a repetition
    uint32_t rank = kNobody;   // of the expert
    bool leads = false;        // the first entry to its rank
    bool bad = false;

    __device__ __forceinline__ float kept_weight() const { return expert == kNobody ? 0.0f : weight; }

    // In two steps, for what they do in between.
    __device__ __forceinline__ void load(const Dispatch &a, uint32_t t) {
        uint32_t lane = threadIdx.x % 32;
        bool inside = t < a.tokens && lane < a.topk;
        raw = load_id(a, t, lane, inside);
        if (a.topk_weights && inside) weight = a.topk_weights[size_t(t) * a.topk + lane];
    }
    __device__ __forceinline__ void look(const Dispatch &a) {
        uint32_t id = valid_id(a, raw), owner = id == kNobody ? kNobody : a.per_rank.divide(id);
        uint32_t before = (1u << threadIdx.x % 32) - 1;
        bool repeated = __match_any_sync(0xffffffffu, id) & before, follows = __match_any_sync(0xffffffffu, owner) & before;
        bool valid = id != kNobody && !repeated;
        bad = !valid && raw_value(a, raw) != kNone;
        expert = valid ? id : kNobody;
        rank = valid ? owner : kNobody;
        leads = valid && !follows;
    }
};

// Ids of a token that is counted.
struct Ids {
    RawId id[kColumns];

    __device__ __forceinline__ void load(const Dispatch &a, uint32_t t, uint32_t column, bool inside) {
#pragma unroll
        for (uint32_t i = 0; i < kColumns; i += 4) load_four(a, t, column + i, inside, id + i);
    }

  private:
    static __device__ __forceinline__ void load_four(const Dispatch &a, uint32_t t, uint32_t column, bool inside, RawId *to) {
        if (!a.fours) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) to[i] = load_id(a, t, column + i, inside && column + i < a.topk);
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) to[i] = {};
        if (!inside || column >= a.topk) return;
        size_t at = (size_t(t) * a.topk + column) / 4;
        if (a.idx_type == EPW_I64) {
            const uint4 *from = static_cast<const uint4 *>(a.topk_idx) + 2 * at;
            uint4 low = from[0], high = from[1];
            to[0] = {low.x, low.y}, to[1] = {low.z, low.w}, to[2] = {high.x, high.y}, to[3] = {high.z, high.w};
        } else {
            uint4 four = static_cast<const uint4 *>(a.topk_idx)[at];
            to[0].low = four.x, to[1].low = four.y, to[2].low = four.z, to[3].low = four.w;
        }
    }
};

// How many of the tokens so far have each expert, and each rank: numbers in shared memory.
struct Census {
    uint32_t *experts, *ranks;
};

// The token that this thread counts of those from `from` on, no more than a block has threads. The first warps have other things
// to do, so that the last ones begin.
__device__ __forceinline__ uint32_t counted_by_thread(uint32_t from) {
    static_assert(EPW_GPU_BLOCKS <= kThreads); // from a block's token to its next
    return from + kThreads - 1 - threadIdx.x;
}

// Counts the tokens in [from, to). Called by the whole block; `ids`: the first columns of this thread's, loaded.
__device__ __forceinline__ void count_tokens(const Dispatch &a, Census census, Ids ids, uint32_t from, uint32_t to) {
    const uint32_t lane = threadIdx.x % 32, t = counted_by_thread(from);
    if (t - (31 - lane) >= to) return; // the warp has none
    uint64_t owners = 0;
#pragma unroll 1
    for (uint32_t column = 0; column < a.topk; column += kColumns) {
        if (column > 0) ids.load(a, t, column, t < to);
        uint32_t id[kColumns];
#pragma unroll
        for (uint32_t i = 0; i < kColumns; i++) id[i] = valid_id(a, ids.id[i]);
#pragma unroll 1
        for (uint32_t j = 0; j < column; j++) {
            uint32_t earlier = valid_id(a, load_id(a, t, j, t < to));
#pragma unroll
            for (uint32_t &later : id) later = later == earlier ? kNobody : later;
        }
#pragma unroll
        for (uint32_t i = 0; i < kColumns; i++) {
            bool counts = id[i] != kNobody;
#pragma unroll
            for (uint32_t k = 0; k < i; k++) counts &= id[k] != id[i];
            atomicAdd(&census.experts[counts ? id[i] : a.experts], 1u); // without a branch: the one behind is nobody's
            owners |= (counts ? 1ull : 0ull) << (a.per_rank.divide(id[i]) & 63);
        }
    }
    // The warp's tokens together, four ranks at a time, a byte for each.
#pragma unroll 1
    for (uint32_t first = 0; first < a.layout.ranks; first += 4) {
        uint32_t bits = uint32_t(owners >> first) & 15, bytes = bits * 0x00204081u & 0x01010101u;
        uint32_t count = __reduce_add_sync(0xffffffffu, bytes) >> (8 * (lane & 3)) & 255;
        if (lane < 4 && count) atomicAdd(&census.ranks[first + lane], count);
    }
}

} // namespace epw
