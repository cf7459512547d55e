// Quantising a row while it passes through registers: e4m3 with one scale per 128 channels, numerically as in c/numerics/.
#pragma once

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

// Where a share is written: its chunks, and the scale of its block.
struct ShareAt {
    unsigned char *chunk[kQuantised];
    unsigned char *scale;

    // Share n of a piece.
    __device__ __forceinline__ ShareAt(unsigned char *payload, unsigned char *scales, uint32_t n, uint32_t bytes_of_scale)
        : chunk{payload + quantised_chunk(n, 0) * 8, payload + quantised_chunk(n, 1) * 8},
          scale(scales + n / kBlockThreads * bytes_of_scale) {}
    // To a share that lies so many bytes further on.
    __device__ __forceinline__ void advance(uint32_t in_payload, uint32_t in_scales) {
        for (unsigned char *&at : chunk) at += in_payload;
        scale += in_scales;
    }
};

// Quantises `Count` shares of a thread, of which share number k is written to `to[k]` if the thread is inside[k]; their steps are
// interleaved, because each waits long for the one before it. `first`: the thread writes its blocks' scales. Called by whole
// warps, with neighbouring shares: kBlockThreads neighbours share a block.
template <typename T, uint32_t Count>
__device__ __forceinline__ void quantise_shares(uint32_t payload, const uint4 (&x)[Count][kQuantised], bool first,
                                                const bool (&inside)[Count], const ShareAt (&to)[Count]) {
    uint32_t largest[Count];
#pragma unroll
    for (uint32_t i = 0; i < Count; i++) {
        largest[i] = T::larger(T::larger(T::larger(x[i][0].x, x[i][0].y), T::larger(x[i][0].z, x[i][0].w)),
                               T::larger(T::larger(x[i][1].x, x[i][1].y), T::larger(x[i][1].z, x[i][1].w)));
    }
#pragma unroll
    for (uint32_t step = kBlockThreads / 2; step > 0; step /= 2) {
#pragma unroll
        for (uint32_t i = 0; i < Count; i++) {
            largest[i] = T::larger(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], step));
        }
    }
    Scale s[Count];
    uint2 packed[Count][kQuantised];
#pragma unroll
    for (uint32_t i = 0; i < Count; i++) {
        float amax = fmaxf(fmaxf(fabsf(T::low(largest[i])), fabsf(T::high(largest[i]))), 1e-4f); // fmaxf drops a NaN too
        s[i] = payload == EPW_PAYLOAD_FP8_F32 ? scale_f32(amax) : scale_power_of_two(amax);
#pragma unroll
        for (uint32_t k = 0; k < kQuantised; k++) packed[i][k] = quantise_eight<T>(x[i][k], s[i].inverse);
    }
#pragma unroll
    for (uint32_t i = 0; i < Count; i++) {
        if (!inside[i]) continue;
#pragma unroll
        for (uint32_t k = 0; k < kQuantised; k++) *reinterpret_cast<uint2 *>(to[i].chunk[k]) = packed[i][k];
        if (!first) continue;
        if (payload == EPW_PAYLOAD_FP8_UE8M0) {
            *to[i].scale = __float_as_uint(s[i].scale) >> 23;
        } else {
            *reinterpret_cast<float *>(to[i].scale) = s[i].scale;
        }
    }
}
// Quantises share n of the staged piece into `payload` and `scales`.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void quantise_chunks(const uint4 (&x)[kQuantised], uint32_t n, bool inside, unsigned char *payload,
                                                unsigned char *scales) {
    const uint4(&one)[1][kQuantised] = reinterpret_cast<const uint4(&)[1][kQuantised]>(x);
    quantise_shares<T, 1>(Payload, one, n % kBlockThreads == 0, {inside}, {ShareAt(payload, scales, n, scale_bytes(Payload))});
}

} // namespace epw
