// Reductions, bit for bit those of c/numerics/sums.h: element by element, with ranks in ascending order, starting from the first
// rank's element. 16-bit floats are folded in f32 and rounded once; integers wrap; the average of integers is that of their exact
// sum, rounded towards zero.
#pragma once

#include "epwire.h"
#include "kernels/ptx/number.cuh"

#include <type_traits>

namespace epw {

struct F16Bits {
    uint16_t bits;
};
struct Bf16Bits {
    uint16_t bits;
};

// The type in which elements are folded: wide enough for the exact sum of all ranks' integers.
template <typename T> struct FoldedIn {
    using Type =
        std::conditional_t<std::is_floating_point_v<T>, T,
                           std::conditional_t<sizeof(T) == 1, int32_t, std::conditional_t<sizeof(T) == 4, int64_t, __int128>>>;
};
template <> struct FoldedIn<F16Bits> { using Type = float; };
template <> struct FoldedIn<Bf16Bits> { using Type = float; };

template <typename T> __device__ __forceinline__ typename FoldedIn<T>::Type widen(T x) { return x; }
template <> __device__ __forceinline__ float widen(F16Bits x) { return ptx::low_f16(x.bits); }
template <> __device__ __forceinline__ float widen(Bf16Bits x) { return __uint_as_float(uint32_t(x.bits) << 16); }

// Every NaN becomes the positive quiet NaN.
template <typename T> __device__ __forceinline__ T narrow(typename FoldedIn<T>::Type x) { return static_cast<T>(x); }
template <> __device__ __forceinline__ float narrow<float>(float x) { return x != x ? __uint_as_float(0x7fc00000u) : x; }
template <> __device__ __forceinline__ double narrow<double>(double x) {
    return x != x ? __longlong_as_double(0x7ff8000000000000ll) : x;
}
template <> __device__ __forceinline__ F16Bits narrow<F16Bits>(float x) { return {uint16_t(ptx::round_to_f16(x, 0.0f))}; }
template <> __device__ __forceinline__ Bf16Bits narrow<Bf16Bits>(float x) { return {uint16_t(ptx::round_to_bf16(x, 0.0f))}; }

// Two elements in one word.
template <typename T> constexpr bool is_16_bit_float = std::is_same_v<T, F16Bits> || std::is_same_v<T, Bf16Bits>;
template <typename T> __device__ __forceinline__ uint32_t narrow_pair(float low, float high) {
    return std::is_same_v<T, F16Bits> ? ptx::round_to_f16(low, high) : ptx::round_to_bf16(low, high);
}

template <typename A> __device__ __forceinline__ A add(A a, A b) {
    return a + b; // integers are wide enough
}
template <typename A> __device__ __forceinline__ A multiply(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) {
        return a * b;
    } else if constexpr (sizeof(A) == 4) {
        return A(uint32_t(a) * uint32_t(b));
    } else { // only the lower half of 128 bits is needed
        return A(int64_t(uint64_t(a) * uint64_t(b)));
    }
}

__device__ __forceinline__ bool is_negative(float x) { return __float_as_int(x) < 0; }
__device__ __forceinline__ bool is_negative(double x) { return __double_as_longlong(x) < 0; }

// NaN if either is NaN; -0 is less than +0.
template <typename A> __device__ __forceinline__ bool less(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) {
        return a != a || a < b || (a == b && is_negative(a));
    } else {
        return a < b;
    }
}
template <typename A> __device__ __forceinline__ A least(A a, A b) { return less(a, b) ? a : b; }
template <typename A> __device__ __forceinline__ A most(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) {
        return a != a || a > b || (a == b && !is_negative(a)) ? a : b;
    } else {
        return a > b ? a : b;
    }
}

// The elements of an 8-byte word.
template <typename T> struct Word {
    using A = typename FoldedIn<T>::Type;
    static constexpr uint32_t kCount = 8 / sizeof(T);
    A a[kCount];

    __device__ __forceinline__ static T element(uint64_t word, uint32_t i) {
        using Bits = std::conditional_t<
            sizeof(T) == 1, uint8_t,
            std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
        return __builtin_bit_cast(T, Bits(word >> (8 * sizeof(T) * i)));
    }

    __device__ __forceinline__ void begin(uint64_t word) {
#pragma unroll
        for (uint32_t i = 0; i < kCount; i++) a[i] = widen(element(word, i));
    }

    // The sum of nothing: -0, to which adding any number gives that number.
    __device__ __forceinline__ void begin_sum() {
#pragma unroll
        for (uint32_t i = 0; i < kCount; i++) a[i] = std::is_floating_point_v<A> ? A(-0.0) : A(0);
    }

    // kSums: `op` is EPW_SUM. The code of all operations together does not fit into an SM's instruction cache.
    template <bool kSums = false> __device__ __forceinline__ void fold(uint64_t word, uint32_t op) {
        if (kSums) op = EPW_SUM;
        switch (op) { // uniform over all threads
        case EPW_PRODUCT:
#pragma unroll
            for (uint32_t i = 0; i < kCount; i++) a[i] = multiply(a[i], widen(element(word, i)));
            break;
        case EPW_MIN:
#pragma unroll
            for (uint32_t i = 0; i < kCount; i++) a[i] = least(a[i], widen(element(word, i)));
            break;
        case EPW_MAX:
#pragma unroll
            for (uint32_t i = 0; i < kCount; i++) a[i] = most(a[i], widen(element(word, i)));
            break;
        default:
#pragma unroll
            for (uint32_t i = 0; i < kCount; i++) a[i] = add(a[i], widen(element(word, i)));
        }
    }

    template <bool kSums = false> __device__ __forceinline__ uint64_t end(uint32_t op, uint32_t members) {
        if (!kSums && op == EPW_AVERAGE) {
#pragma unroll
            for (uint32_t i = 0; i < kCount; i++) a[i] = a[i] / A(members);
        }
        if constexpr (is_16_bit_float<T>) return uint64_t(narrow_pair<T>(a[2], a[3])) << 32 | narrow_pair<T>(a[0], a[1]);
        uint64_t word = 0;
#pragma unroll
        for (uint32_t i = 0; i < kCount; i++) {
            const T t = narrow<T>(a[i]);
            uint64_t bits = 0;
            __builtin_memcpy(&bits, &t, sizeof t);
            word |= bits << (8 * sizeof(T) * i);
        }
        return word;
    }
};

} // namespace epw
