// Numbering of rows. Rows to a rank, and rows within an expert's list, are numbered by token; a block that sends token t finds
// the numbers of t's rows by looking at the ids of all tokens before it. That is a few loads for the batches of decode, needs
// no table, and lets blocks number their tokens without asking each other.
#pragma once

#include "../comm/lane.cuh"
#include "shape.cuh"

namespace epw {

constexpr uint32_t kPerToken = 4; // threads that look at one token
constexpr uint32_t kColumns = 8; // of ids looked at a time
constexpr uint32_t kIds = kColumns / kPerToken;
constexpr uint32_t kRound = kThreads / kPerToken; // tokens looked at in a round
constexpr uint32_t kEarly = 2; // rounds whose ids are loaded before anybody needs them
constexpr uint32_t kNobody = 0xffffffffu;
constexpr uint32_t kNoFirst = 0x80000000u; // no id less this is a local one

// The token that a block is about to send. Entry j is lane j's of warp 0.
struct __align__(16) Token {
    int32_t expert[EPW_MAX_TOPK]; // -1: none, bad, or a repetition
    uint32_t first[EPW_MAX_TOPK]; // first expert of the rank, if the entry is the first to it; else kNoFirst
    uint32_t row[EPW_MAX_TOPK];   // rows before, to that rank
    uint32_t index[EPW_MAX_TOPK]; // rows before, to that expert
    float weight[EPW_MAX_TOPK];
    uint32_t leader[EPW_MAX_TOPK]; // first entry to the same rank
};

// An id as it was loaded, not yet looked at: loads go on while nobody needs it.
struct RawId {
    uint32_t low, high;
};

__device__ __forceinline__ RawId load_id(const Dispatch &a, uint32_t t, uint32_t j, bool inside) {
    RawId raw = {0xffffffffu, 0xffffffffu};
    if (!inside) return raw;
    size_t at = size_t(t) * a.topk + j;
    if (a.idx_type == EPW_I64) {
        uint2 pair = static_cast<const uint2 *>(a.topk_idx)[at];
        raw = {pair.x, pair.y};
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

// The ids of token t that this thread looks at, of kColumns columns from `column` on.
__device__ __forceinline__ void load_ids(const Dispatch &a, uint32_t t, uint32_t column, bool inside, RawId ids[kIds]) {
#pragma unroll
    for (uint32_t i = 0; i < kIds; i++) {
        uint32_t j = column + i * kPerToken + threadIdx.x % kPerToken;
        ids[i] = load_id(a, t, j, inside && j < a.topk);
    }
}

// Adds to the token's numbers what a warp's round has seen: tokens before it with its experts and its ranks. Entries go eight
// at a time, four bits for each: a warp looks at eight tokens, one to kPerToken threads. `raw`: the ids of the first columns of
// token u, which counts if it is `inside`.
__device__ __forceinline__ void count_round(const Dispatch &a, Token &token, RawId raw[kIds], uint32_t u, bool inside) {
    constexpr uint32_t kGroup = 8;
    uint32_t lane = threadIdx.x % 32, local = a.layout.local_experts;
#pragma unroll 1
    for (uint32_t base = 0; base < a.topk; base += kGroup) {
        uint32_t experts = 0, ranks = 0;
#pragma unroll 1
        for (uint32_t column = 0; column < a.topk; column += kColumns) {
            if (a.topk > kColumns && (column > 0 || base > 0)) load_ids(a, u, column, inside, raw);
#pragma unroll
            for (uint32_t i = 0; i < kIds; i++) {
                uint32_t id = valid_id(a, raw[i]);
                if (!inside || id == kNobody) continue;
#pragma unroll
                for (uint32_t k = 0; k < kGroup; k++) {
                    if (id == uint32_t(token.expert[base + k])) experts |= 1u << (4 * k);
                    if (id - token.first[base + k] < local) ranks |= 1u << (4 * k);
                }
            }
        }
        // A token's threads together, then the warp's tokens together.
        experts |= __shfl_xor_sync(0xffffffffu, experts, 1);
        ranks |= __shfl_xor_sync(0xffffffffu, ranks, 1);
        experts |= __shfl_xor_sync(0xffffffffu, experts, 2);
        ranks |= __shfl_xor_sync(0xffffffffu, ranks, 2);
        bool counts = lane % kPerToken == 0;
        experts = __reduce_add_sync(0xffffffffu, counts ? experts : 0);
        ranks = __reduce_add_sync(0xffffffffu, counts ? ranks : 0);
        if (lane >= kGroup) continue;
        uint32_t index = experts >> (4 * lane) & 15, row = ranks >> (4 * lane) & 15;
        if (index) atomicAdd(&token.index[base + lane], index);
        if (row) atomicAdd(&token.row[base + lane], row);
    }
}

// By warp 0: names the token that the block is about to send. `bad`: the id was out of range or repeated.
__device__ __forceinline__ void name_token(const Dispatch &a, Token &token, RawId raw, float weight, bool *bad) {
    constexpr uint32_t kAtOnce = 8;
    uint32_t lane = threadIdx.x % 32, id = valid_id(a, raw), rank = id == kNobody ? kNobody : a.per_rank.divide(id), leader = lane;
    bool repeated = false;
#pragma unroll 1
    for (uint32_t base = 0; base < a.topk; base += kAtOnce) {
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; i++) {
            uint32_t j = base + i, id_of_j = __shfl_sync(0xffffffffu, id, j), rank_of_j = __shfl_sync(0xffffffffu, rank, j);
            repeated |= j < lane && id_of_j == id;
            if (j < leader && rank_of_j == rank) leader = j; // the lowest: once found, none is lower
        }
    }
    bool valid = id != kNobody && !repeated;
    *bad = !valid && raw_value(a, raw) != kNone;
    token.expert[lane] = valid ? int32_t(id) : -1;
    token.weight[lane] = valid ? weight : 0.0f;
    token.leader[lane] = valid ? leader : lane;
    token.first[lane] = valid && leader == lane ? rank * a.layout.local_experts : kNoFirst;
    token.row[lane] = token.index[lane] = 0;
}

// One count per group of kPerToken lanes where any lane says yes.
__device__ __forceinline__ uint32_t count_tokens(bool yes) {
    uint32_t lanes = __ballot_sync(0xffffffffu, yes);
    lanes |= lanes >> 1;
    lanes |= lanes >> 2;
    return __popc(lanes & 0x11111111u);
}

// All rows to `rank` and to each of its experts, for the rank to place them by. Called by the whole block; `hist` is
// [local_experts] in shared memory, *rows too; both are whole after the caller's next barrier.
__device__ __forceinline__ void count_all(const Dispatch &a, uint32_t rank, uint32_t *hist, uint32_t *rows) {
    uint32_t local = a.layout.local_experts;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < local; e += blockDim.x) hist[e] = 0;
    if (threadIdx.x == 0) *rows = 0;
    __syncthreads();
    for (uint32_t base = 0; base < a.tokens; base += blockDim.x / kPerToken) {
        uint32_t t = base + threadIdx.x / kPerToken;
        bool any = false;
        for (uint32_t j = threadIdx.x % kPerToken; j < a.topk; j += kPerToken) {
            uint32_t id = valid_id(a, load_id(a, t, j, t < a.tokens));
            if (id == kNobody || id - rank * local >= local) continue;
            any = true;
            bool repeated = false;
            for (uint32_t i = 0; i < j; i++) repeated |= valid_id(a, load_id(a, t, i, true)) == id;
            if (!repeated) atomicAdd(&hist[id - rank * local], 1u);
        }
        uint32_t n = count_tokens(any);
        if (threadIdx.x % 32 == 0 && n) atomicAdd(rows, n);
    }
}

} // namespace epw
