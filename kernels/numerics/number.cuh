// 16-bit and 8-bit floating point, bit for bit as c/numerics/numerics.h defines them. Compiled with --fmad=false.
#pragma once

#include "kernels/ptx/number.cuh"

#include "epwire.h"

#include <cuda_fp8.h>
#include <cstdint>

namespace epw {

// Whether rows of 16-bit values travel as e4m3 with scales.
__host__ __device__ constexpr bool quantises(uint32_t payload) {
    return payload == EPW_PAYLOAD_FP8_F32 || payload == EPW_PAYLOAD_FP8_POW2 || payload == EPW_PAYLOAD_FP8_UE8M0;
}

struct Bf16 {
    static __device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
    static __device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
    // For each half the larger magnitude, with either sign; NaN only if both are NaN.
    static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return ptx::max_magnitudes_bf16(a, b); }
    // Packs the halves of a pair, rounded to nearest even. Every NaN becomes the same one.
    static __device__ __forceinline__ uint32_t pack(float low, float high) { return ptx::round_to_bf16(low, high); }
    // What pack() makes of +0 + a + b, added in f32. That has more than twice as many bits, so for one addition rounding once or
    // twice is the same.
    static __device__ __forceinline__ uint32_t add(uint32_t a, uint32_t b) { return ptx::add_bf16(a, b); }
};

struct F16 {
    static __device__ __forceinline__ float low(uint32_t pair) { return ptx::low_f16(pair); }
    static __device__ __forceinline__ float high(uint32_t pair) { return ptx::high_f16(pair); }
    static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return ptx::max_magnitudes_f16(a, b); }
    static __device__ __forceinline__ uint32_t pack(float low, float high) { return ptx::round_to_f16(low, high); }
    static __device__ __forceinline__ uint32_t add(uint32_t a, uint32_t b) { return ptx::add_f16(a, b); }
};

// Converts eight values to 16 bits each.
template <typename T> __device__ __forceinline__ uint4 pack_eight(const float (&x)[8]) {
    return {T::pack(x[0], x[1]), T::pack(x[2], x[3]), T::pack(x[4], x[5]), T::pack(x[6], x[7])};
}

// Multiplies four values, two pairs of T, by `inverse` and converts them to e4m3: round to nearest even, saturating; NaN becomes
// 0x7f with the sign of x. The conversion drops the sign of a NaN only; any other product has the sign of x already.
template <typename T> __device__ __forceinline__ uint32_t quantise_four(uint32_t low, uint32_t high, float inverse) {
    uint32_t q = ptx::round_to_e4m3(__fmul_rn(T::low(low), inverse), __fmul_rn(T::high(low), inverse),
                                    __fmul_rn(T::low(high), inverse), __fmul_rn(T::high(high), inverse));
    return q | (__byte_perm(low, high, 0x7531) & 0x80808080u);
}

// Converts eight values to e4m3.
template <typename T> __device__ __forceinline__ uint2 quantise_eight(uint4 x, float inverse) {
    return {quantise_four<T>(x.x, x.y, inverse), quantise_four<T>(x.z, x.w, inverse)};
}

struct Scale {
    float scale, inverse;
};

// Computes amax/448 and 448/amax, correctly rounded; 448/inf is 0. amax is at least 1e-4 and not NaN, and is either a 16-bit
// value or 1e-4.
__device__ __forceinline__ Scale scale_f32(float amax) {
    // 1/448 in two parts, the first rounded down; both are positive, so infinity stays infinite. A quotient by 7 is at least 1/14
    // ulp away from a rounding boundary, and the error of the sum before it is rounded is far smaller.
    constexpr float kHigh = 0x1.249248p-9f, kLow = 0x1.24924ap-33f;
    float scale = __fmaf_rn(amax, kHigh, __fmul_rn(amax, kLow));
    // A quotient by an 11-bit significand is at least 2^-12 ulp away from a rounding boundary, so one correction step is enough
    // even with a reciprocal that is off by a few ulp; 448/1e-4 is far enough away too. Dividing amax by 256 first keeps the
    // reciprocal from being subnormal.
    float less = __fmul_rn(amax, 0x1p-8f), reciprocal = ptx::reciprocal_approx(less);
    float quotient = __fmul_rn(1.75f, reciprocal);
    quotient = __fmaf_rn(__fmaf_rn(-quotient, less, 1.75f), reciprocal, quotient);
    return {scale, fmaxf(quotient, 0.0f)}; // fmaxf turns the NaN that amax = infinity gives into 0
}

// The smallest power of two not below amax/448, and its inverse: since 448 = 1.75 * 2^8, this is the exponent of amax less 8,
// plus one if the fraction is above 0.75. Infinity gives the same result as the largest f32. amax is at least 1e-4 and not NaN.
__device__ __forceinline__ Scale scale_power_of_two(float amax) {
    uint32_t bits = (__float_as_uint(amax) + 0x1fffffu - (8u << 23)) & 0x7f800000u;
    return {__uint_as_float(bits), __uint_as_float((254u << 23) - bits)};
}

} // namespace epw
