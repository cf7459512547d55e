// 16-bit and 8-bit floating point, bit for bit as c/ep/numerics.h defines them. Compiled with --fmad=false.
#pragma once

#include <cuda_fp8.h>
#include <cstdint>

namespace epw {

struct Bf16 {
    static __device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
    static __device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
    // high and low halves of a pair; the instruction rounds to nearest even, NaN is made canonical.
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        uint32_t pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        if (low != low) pair = (pair & 0xffff0000u) | 0x7fc0u;
        if (high != high) pair = (pair & 0xffffu) | 0x7fc00000u;
        return pair;
    }
};

struct F16 {
    static __device__ __forceinline__ float low(uint32_t pair) {
        float x;
        asm("{.reg .f16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, l;}" : "=f"(x) : "r"(pair));
        return x;
    }
    static __device__ __forceinline__ float high(uint32_t pair) {
        float x;
        asm("{.reg .f16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, h;}" : "=f"(x) : "r"(pair));
        return x;
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        uint32_t pair;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        if (low != low) pair = (pair & 0xffff0000u) | 0x7e00u;
        if (high != high) pair = (pair & 0xffffu) | 0x7e000000u;
        return pair;
    }
};

// Four values to e4m3, nearest even, saturating. NaN: 0x7f with the sign of x.
__device__ __forceinline__ uint32_t pack_e4m3(const float y[4], const float x[4]) {
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(y[1]), "f"(y[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(y[3]), "f"(y[2]));
    uint32_t q = uint32_t(low) | uint32_t(high) << 16;
    bool any_nan = !(y[0] == y[0] && y[1] == y[1] && y[2] == y[2] && y[3] == y[3]);
    if (any_nan) {
        for (int i = 0; i < 4; i++) {
            if (y[i] == y[i]) continue;
            uint32_t code = 0x7fu | (__float_as_uint(x[i]) >> 31 << 7);
            q = (q & ~(0xffu << (8 * i))) | code << (8 * i);
        }
    }
    return q;
}

struct Scale {
    float scale, inverse;
};

// amax is at least 1e-4 and no NaN.
__device__ __forceinline__ Scale scale_f32(float amax) { return {__fdiv_rn(amax, 448.0f), __fdiv_rn(448.0f, amax)}; }

__device__ __forceinline__ Scale scale_power_of_two(float amax) {
    amax = fminf(amax, 3.402823466e38f);
    uint32_t bits = __float_as_uint(__fdiv_rn(amax, 448.0f));
    uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0);
    return {__uint_as_float(exponent << 23), __uint_as_float((254u - exponent) << 23)};
}

} // namespace epw
