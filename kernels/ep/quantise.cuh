// Quantising a row while it passes through registers: e4m3 with one scale per 128 channels, numbers of c/numerics/.
#pragma once

#include "kernels/ep/launch.h"
#include "kernels/ep/number.cuh"

namespace epw {

constexpr uint32_t kBlockChunks = EPW_FP8_BLOCK * 2 / 16; // 16-byte chunks of input that share a scale
constexpr uint32_t kQuantised = 2;                        // of these a thread works on at once
constexpr uint32_t kBlockThreads = kBlockChunks / kQuantised;

__host__ __device__ constexpr bool quantises(uint32_t payload) {
    return payload == EPW_PAYLOAD_FP8_F32 || payload == EPW_PAYLOAD_FP8_POW2 || payload == EPW_PAYLOAD_FP8_UE8M0;
}

// Of each scale that this file makes.
__host__ __device__ constexpr uint32_t scale_bytes(uint32_t payload) { return payload == EPW_PAYLOAD_FP8_UE8M0 ? 1 : 4; }

// Which of a warp's 64 chunks a thread has. kBlockThreads neighbours share a block of channels, a half of it each time, so that
// loads take whole sectors.
__device__ __forceinline__ uint32_t quantised_chunk(uint32_t k) {
    const uint32_t laneid = threadIdx.x % 32;
    return (2 * (laneid & ~(kBlockThreads - 1)) | (laneid & (kBlockChunks - 1))) ^ k * kBlockThreads;
}
// Which eight bytes out of those 64, an even number, come first in what quantise_chunks returns.
__device__ __forceinline__ uint32_t quantised_pair() { return quantised_chunk(threadIdx.x & 1) & ~1u; }

// Eight values to e4m3.
template <typename T> __device__ __forceinline__ uint2 quantise_eight(uint4 x, float inverse) {
    return {quantise_four<T>(x.x, x.y, inverse), quantise_four<T>(x.z, x.w, inverse)};
}

// This thread's two chunks to e4m3, and their block's scale as its bits travel. By a whole warp, whose neighbours exchange halves
// so that each has 16 bytes in a row.
template <typename T, uint32_t Payload>
__device__ __forceinline__ uint4 quantise_chunks(const uint4 (&x)[kQuantised], uint32_t &scale) {
    constexpr uint32_t all = 0xffffffffu;
    uint32_t largest = T::larger(T::larger(T::larger(x[0].x, x[0].y), T::larger(x[0].z, x[0].w)),
                                 T::larger(T::larger(x[1].x, x[1].y), T::larger(x[1].z, x[1].w)));
#pragma unroll
    for (uint32_t step = kBlockThreads / 2; step > 0; step /= 2) {
        largest = T::larger(largest, __shfl_xor_sync(all, largest, step));
    }
    float amax = fmaxf(fmaxf(fabsf(T::low(largest)), fabsf(T::high(largest))), 1e-4f); // nor does fmaxf let a NaN through
    const Scale s = Payload == EPW_PAYLOAD_FP8_F32 ? scale_f32(amax) : scale_power_of_two(amax);
    scale = __float_as_uint(s.scale) >> (Payload == EPW_PAYLOAD_FP8_UE8M0 ? 23 : 0);
    const uint2 first = quantise_eight<T>(x[0], s.inverse), second = quantise_eight<T>(x[1], s.inverse);
    const bool odd = threadIdx.x & 1;
    const uint32_t low = __shfl_xor_sync(all, odd ? first.x : second.x, 1);
    const uint32_t high = __shfl_xor_sync(all, odd ? first.y : second.y, 1);
    return odd ? uint4{low, high, second.x, second.y} : uint4{first.x, first.y, low, high};
}

} // namespace epw
