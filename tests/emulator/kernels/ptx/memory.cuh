// The emulated GPU's kernels/ptx/memory.cuh: the same functions, as a processor does them. Loads of words that others change also
// let other threads of the block run.
#pragma once

#include <cuda_runtime.h>
#include <time.h>

namespace epw::ptx {

template <typename T> inline T emulated_load(const T *p) {
    emulated::poll();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

inline void assume_shared(const void *) {}

inline uint64_t load_acquire_sys(const uint64_t *p) { return emulated_load(p); }
inline uint32_t load_acquire_sys(const uint32_t *p) { return emulated_load(p); }
inline void store_release_sys(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
inline void fence_sys() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void store_relaxed_sys(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
inline void store_relaxed_sys(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
inline uint64_t load_relaxed_sys(const uint64_t *p) { return emulated_load(p); }
inline uint32_t load_relaxed_sys(const uint32_t *p) { return emulated_load(p); }

inline uint64_t add_acq_rel_gpu(uint64_t *p, uint64_t v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
inline uint32_t add_acq_rel_gpu(uint32_t *p, uint32_t v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
inline bool compare_swap_acq_rel_gpu(uint64_t *p, uint64_t from, uint64_t to) {
    return __atomic_compare_exchange_n(p, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
inline void store_release_gpu(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
inline void reduce_relaxed_gpu(uint64_t *p, uint64_t v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
inline void reduce_release_gpu(uint64_t *p, uint64_t v) { __atomic_fetch_add(p, v, __ATOMIC_RELEASE); }
inline uint64_t load_acquire_gpu(const uint64_t *p) { return emulated_load(p); }
inline uint32_t load_acquire_gpu(const uint32_t *p) { return emulated_load(p); }
inline uint32_t load_acquire_block(const uint32_t *p) { return emulated_load(p); }
inline void store_release_gpu(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
inline void set_bits_release_block(uint32_t *p, uint32_t bits) { __atomic_fetch_or(p, bits, __ATOMIC_RELEASE); }
inline void add_release_block(uint32_t *p, uint32_t n) { __atomic_fetch_add(p, n, __ATOMIC_RELEASE); }
inline void clear_release_block(uint32_t *p) { __atomic_store_n(p, 0, __ATOMIC_RELEASE); }
inline uint32_t load_relaxed_gpu(const uint32_t *p) { return emulated_load(p); }
inline uint64_t load_relaxed_gpu(const uint64_t *p) { return emulated_load(p); }
inline void store_relaxed_gpu(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
inline uint4 load_relaxed_gpu_once(const void *p) {
    uint4 v;
    memcpy(&v, p, sizeof v);
    return v;
}
inline void store(void *p, uint4 v) { memcpy(p, &v, sizeof v); }

struct Pair {
    uint64_t low, high;
};
// One access of 16 bytes: processors with AVX make it whole.
inline void store_relaxed_sys(void *p, Pair v) {
    asm volatile("movdqu %1, %%xmm0\n\tmovdqa %%xmm0, (%0)" ::"r"(p), "m"(v) : "xmm0", "memory");
}
inline Pair load_pair_relaxed_sys(const void *p) {
    emulated::poll();
    Pair v;
    asm volatile("movdqa (%1), %%xmm0\n\tmovdqu %%xmm0, %0" : "=m"(v) : "r"(p) : "xmm0", "memory");
    return v;
}

// Lines are whole because their last parts, which tell what they are, are stored after the others and loaded before them.
template <uint32_t kMost>
void store_lines(unsigned char *first, uint32_t stride, uint32_t count, uint32_t part, const Pair (&v)[kMost]) {
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < count && turn == (part == 7); i++)
            store_relaxed_sys(first + i * stride + part * sizeof v[i], v[i]);
        __syncwarp();
    }
}
template <uint32_t kMost>
void load_lines(const unsigned char *first, uint32_t stride, uint32_t count, uint32_t part, Pair (&v)[kMost]) {
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < count && turn == (part != 7); i++)
            v[i] = load_pair_relaxed_sys(first + i * stride + part * sizeof v[i]);
        if (turn == 0) __syncwarp();
    }
}

inline uint32_t opaque(uint32_t n) { return n; }

inline uint64_t global_timer_ns() {
    emulated::poll();
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
}

inline void team_barrier(uint32_t id, uint32_t threads) { emulated::barrier(id, threads, false); }
inline bool team_barrier_any(uint32_t id, uint32_t threads, bool says) { return emulated::barrier(id, threads, says); }

// A kernel begins when those before it in the stream have ended.
inline void wait_for_stream() {}
inline void store_streaming(uint64_t *p, uint64_t v) { *p = v; }
inline void prefetch(const void *) {}
inline void prefetch_l2(const void *) {}
inline void let_next_begin() {}

} // namespace epw::ptx
