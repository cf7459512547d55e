// Adding rows of 16-bit values in registers.
#pragma once

#include "kernels/numerics/number.cuh"

namespace epw {

// Adds a part's chunks. Weighted: each is multiplied by the part's weight. Never fused.
template <typename T, bool Weighted, uint32_t Chunks>
__device__ __forceinline__ void add_part(float (&total)[Chunks][8], const uint4 (&chunk)[Chunks], float weight) {
#pragma unroll
    for (uint32_t k = 0; k < Chunks; k++) {
        const uint32_t pairs[] = {chunk[k].x, chunk[k].y, chunk[k].z, chunk[k].w};
#pragma unroll
        for (uint32_t n = 0; n < 4; n++) {
            float low = T::low(pairs[n]), high = T::high(pairs[n]);
            if (Weighted) {
                low = __fmul_rn(weight, low);
                high = __fmul_rn(weight, high);
            }
            total[k][2 * n] = __fadd_rn(total[k][2 * n], low);
            total[k][2 * n + 1] = __fadd_rn(total[k][2 * n + 1], high);
        }
    }
}

// The sum of two parts without weights, rounded: what add_part() and pack_eight() make of them, in a third of the instructions.
template <typename T> __device__ __forceinline__ uint4 add_two(uint4 a, uint4 b) {
    return {T::add(a.x, b.x), T::add(a.y, b.y), T::add(a.z, b.z), T::add(a.w, b.w)};
}

} // namespace epw
