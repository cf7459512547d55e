// Instructions on 16-bit and 8-bit floating point that C++ cannot express. A pair keeps its low half in the low 16 bits.
#pragma once

#include <cstdint>

namespace epw::ptx {

__device__ __forceinline__ float low_f16(uint32_t pair) {
    float x;
    asm("{.reg .f16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, l;}" : "=f"(x) : "r"(pair));
    return x;
}
__device__ __forceinline__ float high_f16(uint32_t pair) {
    float x;
    asm("{.reg .f16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, h;}" : "=f"(x) : "r"(pair));
    return x;
}

// For each half the larger magnitude, with the sign of the product of both; NaN only if both are NaN.
__device__ __forceinline__ uint32_t max_magnitudes_bf16(uint32_t a, uint32_t b) {
    uint32_t pair;
    asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}
__device__ __forceinline__ uint32_t max_magnitudes_f16(uint32_t a, uint32_t b) {
    uint32_t pair;
    asm("max.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}

// Rounds to nearest even; every NaN becomes the quiet one, 0x7fc0 or 0x7e00. The conversion makes it 0x7fff, the only result
// that is above that as a signed integer.
__device__ __forceinline__ uint32_t round_to_bf16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\nmin.s16x2 %0, %0, %3;" : "=r"(pair) : "f"(high), "f"(low), "r"(0x7fc07fc0));
    return pair;
}
__device__ __forceinline__ uint32_t round_to_f16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\nmin.s16x2 %0, %0, %3;" : "=r"(pair) : "f"(high), "f"(low), "r"(0x7e007e00));
    return pair;
}

// +0 + a + b of each half, rounded once; the first instruction turns -0 into +0. NaN as above.
__device__ __forceinline__ uint32_t add_bf16(uint32_t a, uint32_t b) {
    uint32_t pair;
    asm("fma.rn.bf16x2 %0, %1, %3, %4;\nfma.rn.bf16x2 %0, %0, %3, %2;\nmin.s16x2 %0, %0, %5;"
        : "=&r"(pair)
        : "r"(a), "r"(b), "r"(0x3f803f80), "r"(0), "r"(0x7fc07fc0));
    return pair;
}
__device__ __forceinline__ uint32_t add_f16(uint32_t a, uint32_t b) {
    uint32_t pair;
    asm("fma.rn.f16x2 %0, %1, %3, %4;\nfma.rn.f16x2 %0, %0, %3, %2;\nmin.s16x2 %0, %0, %5;"
        : "=&r"(pair)
        : "r"(a), "r"(b), "r"(0x3c003c00), "r"(0), "r"(0x7e007e00));
    return pair;
}

// Converts to e4m3, `a` in the lowest byte: round to nearest even, saturating; NaN becomes 0x7f.
__device__ __forceinline__ uint32_t round_to_e4m3(float a, float b, float c, float d) {
    uint32_t q;
    asm("{.reg .b16 l, h;\n"
        "cvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\n"
        "mov.b32 %0, {l, h};}"
        : "=r"(q)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return q;
}

// Approximates 1/x to within a few units in the last place; subnormals are flushed to zero.
__device__ __forceinline__ float reciprocal_approx(float x) {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
    return reciprocal;
}

} // namespace epw::ptx
