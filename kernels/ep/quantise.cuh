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

// Chunk k of those of a thread. Neighbours share a block of channels, a half of it each time, so that loads take whole
// sectors; every other block takes its halves in reverse, so that what 16 threads store at once lies in different banks.
__device__ __forceinline__ uint32_t quantised_chunk(uint32_t thread, uint32_t k) {
    uint32_t first = 2 * (thread & ~(kBlockThreads - 1)) | (thread & (kBlockChunks - 1));
    return first ^ k * kBlockThreads;
}

// Eight values to e4m3.
template <typename T> __device__ __forceinline__ uint2 quantise_eight(uint4 x, float inverse) {
    return {quantise_four<T>(x.x, x.y, inverse), quantise_four<T>(x.z, x.w, inverse)};
}

// What kBlockThreads neighbours quantise their block of channels with. By whole warps.
template <typename T, uint32_t Payload> __device__ __forceinline__ Scale scale_of(const uint4 (&x)[kQuantised]) {
    uint32_t largest = T::larger(T::larger(T::larger(x[0].x, x[0].y), T::larger(x[0].z, x[0].w)),
                                 T::larger(T::larger(x[1].x, x[1].y), T::larger(x[1].z, x[1].w)));
#pragma unroll
    for (uint32_t step = kBlockThreads / 2; step > 0; step /= 2) {
        largest = T::larger(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    float amax = fmaxf(fmaxf(fabsf(T::low(largest)), fabsf(T::high(largest))), 1e-4f); // nor does fmaxf let a NaN through
    return Payload == EPW_PAYLOAD_FP8_F32 ? scale_f32(amax) : scale_power_of_two(amax);
}

// Its bits as they travel.
template <uint32_t Payload> __device__ __forceinline__ uint32_t scale_bits(Scale s) {
    return __float_as_uint(s.scale) >> (Payload == EPW_PAYLOAD_FP8_UE8M0 ? 23 : 0);
}
template <uint32_t Payload> __device__ __forceinline__ void put_scale(unsigned char *scales, uint32_t block, uint32_t bits) {
    if (Payload == EPW_PAYLOAD_FP8_UE8M0) {
        scales[block] = uint8_t(bits);
    } else {
        reinterpret_cast<uint32_t *>(scales)[block] = bits;
    }
}

// This thread's chunks of the staged piece to `payload`, and their block's scale to `scales`. By whole warps: kBlockThreads
// neighbours share a block. Threads that are not `inside` only lend a hand.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void quantise_chunks(const uint4 (&x)[kQuantised], bool inside, unsigned char *payload,
                                                unsigned char *scales) {
    const Scale s = scale_of<T, Payload>(x);
    if (!inside) return;
#pragma unroll
    for (uint32_t k = 0; k < kQuantised; k++) {
        reinterpret_cast<uint2 *>(payload)[quantised_chunk(threadIdx.x, k)] = quantise_eight<T>(x[k], s.inverse);
    }
    if (threadIdx.x % kBlockThreads == 0) put_scale<Payload>(scales, threadIdx.x / kBlockThreads, scale_bits<Payload>(s));
}

// The same in registers, for a warp by itself: neighbours exchange halves, so that each has 16 bytes in a row, which begin at
// eight bytes number quantised_pair() of the warp's.
__device__ __forceinline__ uint32_t quantised_pair() { return quantised_chunk(threadIdx.x % 32, threadIdx.x & 1) & ~1u; }

template <typename T, uint32_t Payload>
__device__ __forceinline__ uint4 quantise_pair(const uint4 (&x)[kQuantised], uint32_t &scale) {
    const Scale s = scale_of<T, Payload>(x);
    scale = scale_bits<Payload>(s);
    const uint2 first = quantise_eight<T>(x[0], s.inverse), second = quantise_eight<T>(x[1], s.inverse);
    const bool odd = threadIdx.x & 1;
    const uint32_t low = __shfl_xor_sync(0xffffffffu, odd ? first.x : second.x, 1);
    const uint32_t high = __shfl_xor_sync(0xffffffffu, odd ? first.y : second.y, 1);
    return odd ? uint4{low, high, second.x, second.y} : uint4{first.x, first.y, low, high};
}

} // namespace epw
