// What nvcc knows by itself, for kernels that g++ compiles for the emulated GPU. The runtime's interface for C is the toolkit's.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "grid.h"

#undef __host__
#undef __device__
#undef __global__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __CUDACC__
#define __host__
#define __device__
#define __global__
#define __shared__ thread_local
#define __constant__
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

namespace emulated {

// Takes over `body`, and runs it in the stream. Blocks of a kernel get 48 KiB of dynamic shared memory, or what was permitted for
// it.
cudaError_t enqueue(const void *kernel, const Body *body, dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
void permit_shared(const void *kernel, size_t bytes);

template <typename... Args> const void *address_of(void (*kernel)(Args...)) { return reinterpret_cast<const void *>(kernel); }

template <typename... Args> struct Call final : Body {
    void (*kernel)(Args...);
    std::tuple<std::decay_t<Args>...> arguments;
    Call(void (*k)(Args...), const std::decay_t<Args> &...a) : kernel(k), arguments(a...) {}
    void run() const override { std::apply(kernel, arguments); }
};

// What kernel<<<grid, block, shared, stream>>> becomes.
template <typename... Args> struct Launcher {
    void (*kernel)(Args...);
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    void operator()(const std::decay_t<Args> &...arguments) const {
        enqueue(address_of(kernel), new Call<Args...>(kernel, arguments...), grid, block, shared, stream);
    }
};
template <typename... Args>
Launcher<Args...> launcher(void (*kernel)(Args...), dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr) {
    return {kernel, grid, block, shared, stream};
}

template <typename T> inline T exchange_one(uint32_t mask, T value, uint32_t from) {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    const uint64_t *all = exchange(mask, bits);
    if (!(mask >> from & 1)) from = lane();
    memcpy(&value, &all[from], sizeof value);
    return value;
}

} // namespace emulated

template <typename Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(Args), const Args &arguments) {
    return emulated::enqueue(emulated::address_of(kernel), new emulated::Call<Args>(kernel, arguments), c->gridDim, c->blockDim,
                             c->dynamicSmemBytes, c->stream);
}
template <typename... Args> cudaError_t cudaFuncSetAttribute(void (*kernel)(Args...), cudaFuncAttribute which, int value) {
    if (which == cudaFuncAttributeMaxDynamicSharedMemorySize)
        emulated::permit_shared(emulated::address_of(kernel), size_t(value));
    return cudaSuccess;
}
template <typename... Args>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*)(Args...), int, size_t) {
    *blocks = 1;
    return cudaSuccess;
}

// ---- Barriers, fences and warps

inline void __syncthreads() { emulated::barrier(0, 0, false); }
inline int __syncthreads_or(int says) { return emulated::barrier(0, 0, says != 0); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { emulated::pause(); }

inline void __syncwarp(uint32_t mask = 0xffffffffu) { emulated::exchange(mask, 0); }
inline uint32_t __ballot_sync(uint32_t mask, int says) {
    const uint64_t *all = emulated::exchange(mask, says != 0);
    uint32_t ballot = 0;
    for (uint32_t i = 0; i < 32; i++) ballot |= (mask >> i & 1) && all[i] ? 1u << i : 0;
    return ballot;
}
inline int __any_sync(uint32_t mask, int says) { return __ballot_sync(mask, says) != 0; }
inline int __all_sync(uint32_t mask, int says) { return __ballot_sync(mask, says) == mask; }
template <typename T> uint32_t __match_any_sync(uint32_t mask, T value) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    const uint64_t *all = emulated::exchange(mask, bits);
    uint32_t same = 0;
    for (uint32_t i = 0; i < 32; i++) same |= (mask >> i & 1) && all[i] == bits ? 1u << i : 0;
    return same;
}
template <typename T> T __shfl_sync(uint32_t mask, T value, int from, int width = 32) {
    const auto first = emulated::lane() & ~uint32_t(width - 1);
    return emulated::exchange_one(mask, value, first + (uint32_t(from) & uint32_t(width - 1)));
}
template <typename T> T __shfl_xor_sync(uint32_t mask, T value, int with) {
    return emulated::exchange_one(mask, value, emulated::lane() ^ uint32_t(with));
}
template <typename T> T __shfl_up_sync(uint32_t mask, T value, unsigned by) {
    const uint32_t me = emulated::lane();
    return emulated::exchange_one(mask, value, me >= by ? me - by : me);
}
template <typename T> T __shfl_down_sync(uint32_t mask, T value, unsigned by) {
    const uint32_t me = emulated::lane();
    return emulated::exchange_one(mask, value, me + by < 32 ? me + by : me);
}

// ---- Atomics

template <typename T, typename V> T atomicAdd(T *p, V v) { return __atomic_fetch_add(p, T(v), __ATOMIC_SEQ_CST); }
template <typename T, typename V> T atomicSub(T *p, V v) { return __atomic_fetch_sub(p, T(v), __ATOMIC_SEQ_CST); }
template <typename T, typename V> T atomicOr(T *p, V v) { return __atomic_fetch_or(p, T(v), __ATOMIC_SEQ_CST); }
template <typename T, typename V> T atomicAnd(T *p, V v) { return __atomic_fetch_and(p, T(v), __ATOMIC_SEQ_CST); }
// A thread may repeat these two until another one of its block has done something, so they let others run.
template <typename T, typename V> T atomicExch(T *p, V v) {
    emulated::poll();
    return __atomic_exchange_n(p, T(v), __ATOMIC_SEQ_CST);
}
template <typename T, typename V, typename W> T atomicCAS(T *p, V from, W to) {
    emulated::poll();
    T was = T(from);
    __atomic_compare_exchange_n(p, &was, T(to), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return was;
}
template <typename T, typename V> T atomicMax(T *p, V v) {
    T was = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (was < T(v) && !__atomic_compare_exchange_n(p, &was, T(v), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return was;
}
template <typename T, typename V> T atomicMin(T *p, V v) {
    T was = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (was > T(v) && !__atomic_compare_exchange_n(p, &was, T(v), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return was;
}

// ---- Arithmetic. Compiled without contraction, so that each operation is rounded by itself.

inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __popcll(uint64_t x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(uint32_t(x)); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t(uint64_t(a) * b >> 32); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = uint64_t(b) << 32 | a;
    uint32_t out = 0;
    for (uint32_t i = 0; i < 4; i++) out |= uint32_t(bytes >> (selector >> (4 * i) & 7) * 8 & 0xff) << 8 * i;
    return out;
}
template <typename To, typename From> inline To emulated_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline float __uint_as_float(uint32_t x) { return emulated_bits<float>(x); }
inline float __int_as_float(int32_t x) { return emulated_bits<float>(x); }
inline uint32_t __float_as_uint(float x) { return emulated_bits<uint32_t>(x); }
inline int32_t __float_as_int(float x) { return emulated_bits<int32_t>(x); }
inline double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
inline long long __double_as_longlong(double x) { return emulated_bits<long long>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

template <typename A, typename B> constexpr std::common_type_t<A, B> max(A a, B b) {
    return std::common_type_t<A, B>(a) < std::common_type_t<A, B>(b) ? std::common_type_t<A, B>(b) : std::common_type_t<A, B>(a);
}
template <typename A, typename B> constexpr std::common_type_t<A, B> min(A a, B b) {
    return std::common_type_t<A, B>(b) < std::common_type_t<A, B>(a) ? std::common_type_t<A, B>(b) : std::common_type_t<A, B>(a);
}
