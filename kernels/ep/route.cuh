// Numbering of rows. Rows to a rank, and rows within an expert's list, are numbered by token: a row's number is how many tokens
// before it have that rank, or that expert. A block counts them in shared memory as it goes from token to token, by itself; the
// last block goes on to the end, and so knows what each peer will place the rows by.
#pragma once

#include "kernels/ep/lane.cuh"
#include "kernels/ep/shape.cuh"

namespace epw {

constexpr uint32_t kNobody = 0xffffffffu;

// An id as it was loaded, not yet looked at: loads go on while nobody needs it.
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

// The id as the caller wrote it; "not routed" of every type is -1.
constexpr int64_t kNone = -1;
__device__ __forceinline__ int64_t raw_value(const Dispatch &a, RawId raw) {
    if (a.in.idx_type == EPW_I64) return int64_t(uint64_t(raw.high) << 32 | raw.low);
    if (a.in.idx_type == EPW_U32 && raw.low != 0xffffffffu) return raw.low;
    return int32_t(raw.low);
}

// The id, or kNobody where it is none.
__device__ __forceinline__ uint32_t valid_id(const Dispatch &a, RawId raw) {
    bool fits = a.in.idx_type != EPW_I64 || raw.high == 0;
    return fits && raw.low < a.experts ? raw.low : kNobody;
}

// An id of each thread, and how it stands among those of its token. By a whole warp.
struct Standing {
    uint32_t id, owner; // kNobody: there is none
    bool repeated;      // an earlier thread has the id,
    bool follows;       // or one of the same owner

    // `before`: the earlier threads of the token.
    __device__ __forceinline__ Standing(const Dispatch &a, RawId raw, uint32_t before) {
        id = valid_id(a, raw);
        owner = id == kNobody ? kNobody : a.per_rank.divide(id);
        repeated = __match_any_sync(0xffffffffu, id) & before;
        follows = __match_any_sync(0xffffffffu, owner) & before;
    }
};

// The token that a block is about to send: entry j is thread j's of each of the first two warps.
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

// How many of the tokens so far have each expert, and each rank: numbers in shared memory. Above them a bit for each team of the
// round whose token has it too, so that a team knows how many of those before its own do.
struct Census {
    static constexpr uint32_t kBits = 18; // a number's
    static_assert(EPW_MAX_TOKENS < 1u << kBits && kBits + kWarps <= 32);

    uint32_t *experts, *ranks;

    __device__ static uint32_t of(uint32_t word, uint32_t team) {
        return (word & ((1u << kBits) - 1)) + __popc(word >> kBits & ((1u << team) - 1));
    }
    // By a warp: what its team's token has.
    __device__ __forceinline__ void join(const Token &token, uint32_t team) const { add(token, 1u << (kBits + team)); }
    // Counts it, when all teams have looked.
    __device__ __forceinline__ void settle(const Token &token, uint32_t team) const { add(token, 1u - (1u << (kBits + team))); }

  private:
    __device__ __forceinline__ void add(const Token &token, uint32_t n) const {
        if (token.expert != kNobody) atomicAdd(&experts[token.expert], n);
        if (token.leads) atomicAdd(&ranks[token.rank], n);
    }
};

// Ids of tokens that are counted: a thread has one of every kThreads, and a token those of neighbours, 2^entry_shift of
// them. Warps count from the last to the first, which have other things to do.
struct Ids {
    static constexpr uint32_t kEarly = 3; // so many of a thread's are on their way before they are needed
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

// Of one id of each thread. By a whole warp.
__device__ __forceinline__ void count_ids(const Dispatch &a, Census census, RawId raw) {
    const uint32_t laneid = threadIdx.x % 32, first = laneid & ~((1u << a.entry_shift) - 1); // of the token's threads
    const Standing s(a, raw, ((1u << laneid) - 1) & ~((1u << first) - 1));
    atomicAdd(&census.experts[s.id == kNobody || s.repeated ? a.experts : s.id],
              1u); // without a branch: the one behind is nobody's
    if (s.owner != kNobody && !s.follows) atomicAdd(&census.ranks[s.owner], 1u);
}

// Counts the tokens in [from, to). Called by the whole block; `ids`: loaded of the same.
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

// The same for who has more of them, by and by: a few ids of each thread are on their way at a time.
struct Tally {
    RawId early[Ids::kEarly];
    uint32_t from = 0, to = 0, n = 0; // tokens; the thread's next id

    __device__ __forceinline__ void begin(const Dispatch &a, uint32_t first, uint32_t end) {
        from = first;
        to = end;
        n = 0;
        load(a);
    }
    __device__ __forceinline__ bool done(const Dispatch &a) const {
        return to <= from || Ids::first_of_warp() + n * kThreads >= (to - from) << a.entry_shift;
    }
    // By whole warps, each for itself.
    __device__ __forceinline__ void go_on(const Dispatch &a, Census census) {
        if (done(a)) return;
        RawId now[Ids::kEarly];
#pragma unroll
        for (uint32_t i = 0; i < Ids::kEarly; i++) now[i] = early[i];
        const uint32_t left = ((to - from) << a.entry_shift) - Ids::first_of_warp() - n * kThreads;
        n += Ids::kEarly;
        if (!done(a)) load(a);
#pragma unroll
        for (uint32_t i = 0; i < Ids::kEarly; i++) {
            if (i * kThreads < left) count_ids(a, census, now[i]);
        }
    }
    __device__ __forceinline__ void finish(const Dispatch &a, Census census) {
#pragma unroll 1
        while (!done(a)) go_on(a, census);
    }

  private:
    __device__ __forceinline__ void load(const Dispatch &a) {
#pragma unroll
        for (uint32_t i = 0; i < Ids::kEarly; i++) early[i] = Ids::load_of(a, from, to, n + i);
    }
};

// The same in little code, a thread to a token, for tokens that are others' to send: nobody waits for their numbers yet.
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

} // namespace epw
