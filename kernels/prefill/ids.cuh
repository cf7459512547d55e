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

// What an id says among those of its token, which has 2^shift lanes. Called by a whole warp. (A match of the lanes' values would
// take as many turns as there are values.)
struct NamedExpert {
    uint32_t id, rank; // kNone: none
    uint32_t before;   // experts of the same rank that the token has named before
    bool bad;          // out of range, or repeats an earlier one of the token

    // `local`: experts of a rank.
    __device__ __forceinline__ NamedExpert(int64_t raw, uint32_t experts, uint32_t local, uint32_t shift) {
        const uint32_t laneid = threadIdx.x % 32, each = 1u << shift, j = laneid & (each - 1);
        const uint32_t none = (0x8000u | laneid) << 16; // like no other lane's
        const bool in_range = raw >= 0 && raw < int64_t(experts);
        static_assert(EPW_GPU_MAX_RANKS <= 0x8000 && EPW_GPU_MAX_EXPERTS <= 0x10000);
        uint32_t own = in_range ? uint32_t(raw) / local << 16 | uint32_t(raw) : none;
        bool repeats;
        do { // once more without those that repeat others, if there are any
            repeats = false;
            before = 0;
#pragma unroll 1
            for (uint32_t back = 1; back < each; back++) {
                const uint32_t other = __shfl_up_sync(0xffffffffu, own, back);
                if (back > j) continue;
                repeats = repeats || other == own;
                before += other >> 16 == own >> 16;
            }
            if (repeats) own = none;
        } while (__any_sync(0xffffffffu, repeats));
        const bool named = own != none;
        bad = raw < -1 || (raw >= 0 && !named);
        id = named ? own & 0xffff : kNone;
        rank = named ? own >> 16 : kNone;
    }
};

} // namespace epw
