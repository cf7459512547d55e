// The emulated GPU's kernels/ptx/number.cuh.
#pragma once

#include <cuda_runtime.h>

namespace epw::ptx {

inline float low_f16(uint32_t pair) { return float(emulated_bits<_Float16>(uint16_t(pair))); }
inline float high_f16(uint32_t pair) { return float(emulated_bits<_Float16>(uint16_t(pair >> 16))); }

// `infinite`: the bits of infinity.
inline uint32_t emulated_max_magnitude(uint32_t a, uint32_t b, uint32_t infinite) {
    const uint32_t sign = (a ^ b) & 0x8000, x = a & 0x7fff, y = b & 0x7fff;
    if (x > infinite) return y > infinite ? 0x7fff : sign | y;
    return sign | (y > infinite || x > y ? x : y);
}
inline uint32_t max_magnitudes_bf16(uint32_t a, uint32_t b) {
    return emulated_max_magnitude(a & 0xffff, b & 0xffff, 0x7f80) | emulated_max_magnitude(a >> 16, b >> 16, 0x7f80) << 16;
}
inline uint32_t max_magnitudes_f16(uint32_t a, uint32_t b) {
    return emulated_max_magnitude(a & 0xffff, b & 0xffff, 0x7c00) | emulated_max_magnitude(a >> 16, b >> 16, 0x7c00) << 16;
}

inline uint32_t emulated_bf16(float x) {
    const uint32_t bits = emulated_bits<uint32_t>(x);
    if (x != x) return 0x7fc0;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline uint32_t round_to_bf16(float low, float high) { return emulated_bf16(low) | emulated_bf16(high) << 16; }
inline uint32_t emulated_f16(float x) { return x != x ? 0x7e00 : emulated_bits<uint16_t>(_Float16(x)); }
inline uint32_t round_to_f16(float low, float high) { return emulated_f16(low) | emulated_f16(high) << 16; }

inline float emulated_half(uint32_t bits) { return emulated_bits<float>(bits << 16); }
inline uint32_t add_bf16(uint32_t a, uint32_t b) {
    return round_to_bf16(0.0f + emulated_half(a) + emulated_half(b), 0.0f + emulated_half(a >> 16) + emulated_half(b >> 16));
}
inline uint32_t add_f16(uint32_t a, uint32_t b) {
    return round_to_f16(0.0f + low_f16(a) + low_f16(b), 0.0f + high_f16(a) + high_f16(b));
}

inline uint32_t emulated_e4m3(float x) {
    if (x != x) return 0x7f;
    const uint32_t sign = emulated_bits<uint32_t>(x) >> 24 & 0x80;
    const float size = fabsf(x);
    if (size >= 464) return sign | 0x7e;                                   // rounds to 480 or more
    if (size < 0x1p-6f) return sign | uint32_t(nearbyintf(size * 0x1p9f)); // subnormals are multiples of 2^-9
    const uint32_t bits = emulated_bits<uint32_t>(size);
    return sign | std::min(((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120u << 3), 0x7eu);
}
inline uint32_t round_to_e4m3(float a, float b, float c, float d) {
    return emulated_e4m3(a) | emulated_e4m3(b) << 8 | emulated_e4m3(c) << 16 | emulated_e4m3(d) << 24;
}

inline float reciprocal_approx(float x) {
    if (fabsf(x) < 0x1p-126f) x = copysignf(0, x);
    const float reciprocal = 1 / x;
    return fabsf(reciprocal) < 0x1p-126f ? copysignf(0, reciprocal) : reciprocal;
}

} // namespace epw::ptx
