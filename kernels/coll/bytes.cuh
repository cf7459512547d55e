// Access to the caller's memory, whatever its alignment, in cells of 16 and words of 8 bytes.
#pragma once

#include "kernels/ptx/memory.cuh"

namespace epw {

// Handles `bytes` bytes, at most sizeof(T); the other bytes of a value that is read are zero.
template <typename T> __device__ __noinline__ inline T read_slowly(const unsigned char *from, uint32_t bytes) {
    T v = {};
    auto *to = reinterpret_cast<unsigned char *>(&v);
#pragma unroll
    for (uint32_t i = 0; i < sizeof(T); i++) {
        if (i < bytes) to[i] = from[i];
    }
    return v;
}
template <typename T> __device__ __noinline__ inline void write_slowly(unsigned char *to, T v, uint32_t bytes) {
    const auto *from = reinterpret_cast<const unsigned char *>(&v);
#pragma unroll
    for (uint32_t i = 0; i < sizeof(T); i++) {
        if (i < bytes) to[i] = from[i];
    }
}

template <typename T> __device__ __forceinline__ bool is_aligned(const void *p) {
    return reinterpret_cast<uintptr_t>(p) % sizeof(T) == 0;
}

template <typename T> __device__ __forceinline__ T read(const unsigned char *from, uint64_t bytes) {
    if (bytes >= sizeof(T) && is_aligned<T>(from)) return *reinterpret_cast<const T *>(from);
    return read_slowly<T>(from, bytes < sizeof(T) ? uint32_t(bytes) : uint32_t(sizeof(T)));
}
template <typename T> __device__ __forceinline__ void write(unsigned char *to, T v, uint64_t bytes) {
    if (bytes >= sizeof(T) && is_aligned<T>(to)) {
        *reinterpret_cast<T *>(to) = v;
    } else {
        write_slowly<T>(to, v, bytes < sizeof(T) ? uint32_t(bytes) : uint32_t(sizeof(T)));
    }
}

template <typename T>
__device__ __forceinline__ void copy_as(unsigned char *to, const unsigned char *from, uint64_t count, uint32_t thread,
                                        uint32_t threads) {
    constexpr uint32_t kLoads = 8; // loads in flight
    auto *t = reinterpret_cast<T *>(to);
    const auto *f = reinterpret_cast<const T *>(from);
    uint64_t i = thread;
#pragma unroll 1
    for (; i + (kLoads - 1) * threads < count; i += kLoads * threads) {
        T v[kLoads];
#pragma unroll
        for (uint32_t k = 0; k < kLoads; k++) v[k] = f[i + k * threads];
#pragma unroll
        for (uint32_t k = 0; k < kLoads; k++) t[i + k * threads] = v[k];
    }
#pragma unroll 1
    for (; i < count; i += threads) t[i] = f[i];
}

// Copies `bytes` bytes with `threads` threads, of which this is number `thread`. The two ranges do not overlap.
__device__ inline void copy(unsigned char *to, const unsigned char *from, uint64_t bytes, uint32_t thread, uint32_t threads) {
    const uint64_t odd = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
    uint64_t done = 0;
    if (odd % 16 == 0) {
        done = bytes / 16 * 16;
        copy_as<uint4>(to, from, done / 16, thread, threads);
    } else if (odd % 4 == 0) {
        done = bytes / 4 * 4;
        copy_as<uint32_t>(to, from, done / 4, thread, threads);
    } else if (odd % 2 == 0) {
        done = bytes / 2 * 2;
        copy_as<uint16_t>(to, from, done / 2, thread, threads);
    }
    copy_as<unsigned char>(to + done, from + done, bytes - done, thread, threads);
}

} // namespace epw
