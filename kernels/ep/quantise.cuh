// Quantising a row while it passes through registers: e4m3 with one scale per 128 channels, the numbers of c/ep/numerics.h.
#pragma once

#include "launch.h"
#include "number.cuh"

namespace epw {

constexpr uint32_t kBlockChunks = EPW_FP8_BLOCK * 2 / 16; // 16-byte chunks of input that share a scale

__host__ __device__ constexpr bool quantises(uint32_t payload) {
    return payload == EPW_PAYLOAD_FP8_F32 || payload == EPW_PAYLOAD_FP8_POW2 || payload == EPW_PAYLOAD_FP8_UE8M0;
}

// Eight values of a row (chunk `chunk` of the staged piece) to `payload`, and their block's scale to `scales`. By whole warps:
// kBlockChunks neighbouring lanes share a block. Lanes that are not `inside` only lend a hand.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void quantise_chunk(uint4 raw, bool inside, uint32_t chunk, unsigned char *payload,
                                               unsigned char *scales) {
    float x[8];
    const uint32_t *pairs = &raw.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = T::low(pairs[i]);
        x[2 * i + 1] = T::high(pairs[i]);
    }
    float amax = 1e-4f;
#pragma unroll
    for (int i = 0; i < 8; i++) amax = fmaxf(amax, fabsf(x[i])); // a NaN never raises it
#pragma unroll
    for (int step = kBlockChunks / 2; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, step));
    if (!inside) return;
    Scale s = Payload == EPW_PAYLOAD_FP8_F32 ? scale_f32(amax) : scale_power_of_two(amax);
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = __fmul_rn(x[i], s.inverse);
    reinterpret_cast<uint2 *>(payload)[chunk] = {pack_e4m3(y, x), pack_e4m3(y + 4, x + 4)};
    if (chunk % kBlockChunks != 0) return;
    if (Payload == EPW_PAYLOAD_FP8_UE8M0) {
        scales[chunk / kBlockChunks] = __float_as_uint(s.scale) >> 23;
    } else {
        reinterpret_cast<float *>(scales)[chunk / kBlockChunks] = s.scale;
    }
}

} // namespace epw
