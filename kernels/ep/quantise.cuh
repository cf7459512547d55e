// Quantising a row while it passes through registers: e4m3 with one scale per 128 channels, numerically as in c/numerics/.
#pragma once

#include "kernels/ep/launch.h"
#include "kernels/numerics/number.cuh"

namespace epw {

constexpr uint32_t kBlockChunks = EPW_FP8_BLOCK * 2 / 16; // 16-byte chunks of input that share a scale
constexpr uint32_t kQuantised = 2;                        // chunks that a thread handles at once, a share of the row
constexpr uint32_t kBlockThreads = kBlockChunks / kQuantised;

// Bytes of each scale that this file makes.
__host__ __device__ constexpr uint32_t scale_bytes(uint32_t payload) { return payload == EPW_PAYLOAD_FP8_UE8M0 ? 1 : 4; }

// Chunk number k of share n. Neighbouring threads, with neighbouring shares, share a block of channels, reading one half of it at
// a time so that loads cover whole sectors; every other block takes its halves in reverse, so that the chunks which 16 threads
// store at once lie in different banks.
__device__ __forceinline__ uint32_t quantised_chunk(uint32_t n, uint32_t k) {
    uint32_t first = 2 * (n & ~(kBlockThreads - 1)) | (n & (kBlockChunks - 1));
    return first ^ k * kBlockThreads;
}

// Writes share n of the staged piece to `payload`, and the scale of its block to `scales`. Called by whole warps, with
// neighbouring shares: kBlockThreads neighbours share a block. Threads that are not `inside` only take part in the shuffles.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void quantise_chunks(const uint4 (&x)[kQuantised], uint32_t n, bool inside, unsigned char *payload,
                                                unsigned char *scales) {
    uint32_t largest = T::larger(T::larger(T::larger(x[0].x, x[0].y), T::larger(x[0].z, x[0].w)),
                                 T::larger(T::larger(x[1].x, x[1].y), T::larger(x[1].z, x[1].w)));
#pragma unroll
    for (uint32_t step = kBlockThreads / 2; step > 0; step /= 2) {
        largest = T::larger(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    if (!inside) return;
    float amax = fmaxf(fmaxf(fabsf(T::low(largest)), fabsf(T::high(largest))), 1e-4f); // fmaxf drops a NaN too
    Scale s = Payload == EPW_PAYLOAD_FP8_F32 ? scale_f32(amax) : scale_power_of_two(amax);
#pragma unroll
    for (uint32_t k = 0; k < kQuantised; k++) {
        reinterpret_cast<uint2 *>(payload)[quantised_chunk(n, k)] = quantise_eight<T>(x[k], s.inverse);
    }
    if (n % kBlockThreads != 0) return;
    if (Payload == EPW_PAYLOAD_FP8_UE8M0) {
        scales[n / kBlockThreads] = __float_as_uint(s.scale) >> 23;
    } else {
        reinterpret_cast<float *>(scales)[n / kBlockThreads] = s.scale;
    }
}

} // namespace epw
