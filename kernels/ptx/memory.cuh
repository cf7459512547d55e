// Loads, stores, atomics and fences, named after their scope and memory order. All inline PTX of the kernels lives in this
// folder, except that of queues, which the host shares (c/nic/order.h). No load uses ld.global.nc: while a kernel runs, peers
// write the windows, and the preceding kernels of its stream may still write its inputs.
#pragma once

#include <cstdint>

namespace epw::ptx {

__device__ __forceinline__ uint32_t shared_address(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Tells the compiler that `p` points to shared memory, which it cannot see in a function that is not inlined.
__device__ __forceinline__ void assume_shared(const void *p) { __builtin_assume(__isShared(p)); }

__device__ __forceinline__ uint64_t load_acquire_sys(const uint64_t *p) {
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ uint32_t load_acquire_sys(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void store_release_sys(uint64_t *p, uint64_t v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Orders everything before it before the relaxed stores that follow: fence and store together are a release.
__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ __forceinline__ void store_relaxed_sys(uint64_t *p, uint64_t v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys(uint32_t *p, uint32_t v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ uint64_t load_relaxed_sys(const uint64_t *p) {
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint32_t load_relaxed_sys(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// Atomic add at GPU scope, acquire and release; returns the previous value.
__device__ __forceinline__ uint64_t add_acq_rel_gpu(uint64_t *p, uint64_t v) {
    uint64_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(p), "l"(v) : "memory");
    return before;
}

__device__ __forceinline__ uint32_t add_acq_rel_gpu(uint32_t *p, uint32_t v) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
    return before;
}

// Atomic compare-and-swap at GPU scope, acquire and release. Returns whether *p was `from`.
__device__ __forceinline__ bool compare_swap_acq_rel_gpu(uint64_t *p, uint64_t from, uint64_t to) {
    uint64_t was;
    asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;" : "=l"(was) : "l"(p), "l"(from), "l"(to) : "memory");
    return was == from;
}
__device__ __forceinline__ void store_release_gpu(uint64_t *p, uint64_t v) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Atomic add at GPU scope without ordering.
__device__ __forceinline__ void reduce_relaxed_gpu(uint64_t *p, uint64_t v) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// The same, a release.
__device__ __forceinline__ void reduce_release_gpu(uint64_t *p, uint64_t v) {
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ uint64_t load_acquire_gpu(const uint64_t *p) {
    uint64_t v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint32_t load_acquire_gpu(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// Bits in shared memory with which threads of a block tell the other threads what has happened.
__device__ __forceinline__ uint32_t load_acquire_block(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(v) : "r"(shared_address(p)) : "memory");
    return v;
}
__device__ __forceinline__ void set_bits_release_block(uint32_t *p, uint32_t bits) {
    asm volatile("red.release.cta.shared::cta.or.b32 [%0], %1;" ::"r"(shared_address(p)), "r"(bits) : "memory");
}

// The same for counts, and for words that are taken back.
__device__ __forceinline__ void add_release_block(uint32_t *p, uint32_t n) {
    asm volatile("red.release.cta.shared::cta.add.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(n) : "memory");
}
__device__ __forceinline__ void clear_release_block(uint32_t *p) {
    asm volatile("st.release.cta.shared::cta.u32 [%0], 0;" ::"r"(shared_address(p)) : "memory");
}

// Tells threads of other blocks, by a word in global memory, what has happened.
__device__ __forceinline__ void store_release_gpu(uint32_t *p, uint32_t v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// These loads bypass L1: they see what other blocks or peers write while this kernel runs.
__device__ __forceinline__ uint32_t load_relaxed_gpu(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint64_t load_relaxed_gpu(const uint64_t *p) {
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_relaxed_gpu(uint64_t *p, uint64_t v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// Loads 16 bytes that are read only once, without allocating them in L1.
__device__ __forceinline__ uint4 load_relaxed_gpu_once(const void *p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
// Stores to global memory, own or a peer's. The address space is explicit because the compiler cannot infer it for a pointer that
// was read from shared memory.
__device__ __forceinline__ void store(void *p, uint4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Two words as one 16-byte access to a 16-byte aligned address: a load returns both words of the same store. Before CUDA 12.3 PTX
// had no b128 type for this; the v2.u64 form compiles to the same instruction.
struct Pair {
    uint64_t low, high;
};
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 3)
__device__ __forceinline__ void store_relaxed_sys(void *p, Pair v) {
    asm volatile("{.reg .b128 v;\nmov.b128 v, {%1, %2};\nst.relaxed.sys.global.b128 [%0], v;}" ::"l"(p), "l"(v.low), "l"(v.high)
                 : "memory");
}
__device__ __forceinline__ Pair load_pair_relaxed_sys(const void *p) {
    Pair v;
    asm volatile("{.reg .b128 v;\nld.relaxed.sys.global.b128 v, [%2];\nmov.b128 {%0, %1}, v;}"
                 : "=l"(v.low), "=l"(v.high)
                 : "l"(p)
                 : "memory");
    return v;
}
#else
__device__ __forceinline__ void store_relaxed_sys(void *p, Pair v) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v.low), "l"(v.high) : "memory");
}
__device__ __forceinline__ Pair load_pair_relaxed_sys(const void *p) {
    Pair v;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.low), "=l"(v.high) : "l"(p) : "memory");
    return v;
}
#endif

// Part `part`, 16 bytes, of `count` lines of 128 bytes, `stride` apart and aligned. The threads of a warp call this together. The
// eight threads of a line, which are neighbours, access it by one instruction: it is stored or loaded as a whole.
template <uint32_t kMost>
__device__ __forceinline__ void store_lines(unsigned char *first, uint32_t stride, uint32_t count, uint32_t part,
                                            const Pair (&v)[kMost]) {
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < kMost; i++) {
        if (i < count) store_relaxed_sys(first + i * stride + part * sizeof v[i], v[i]);
    }
}
template <uint32_t kMost>
__device__ __forceinline__ void load_lines(const unsigned char *first, uint32_t stride, uint32_t count, uint32_t part,
                                           Pair (&v)[kMost]) {
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < kMost; i++) {
        if (i < count) v[i] = load_pair_relaxed_sys(first + i * stride + part * sizeof v[i]);
    }
}

// The same number, of which the compiler knows nothing.
__device__ __forceinline__ uint32_t opaque(uint32_t n) {
    asm volatile("" : "+r"(n));
    return n;
}

__device__ __forceinline__ uint64_t global_timer_ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// A barrier for `threads` threads of the block, whole warps; `id` is in [1, 15].
__device__ __forceinline__ void team_barrier(uint32_t id, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same barrier; returns whether `says` is true for any of these threads.
__device__ __forceinline__ bool team_barrier_any(uint32_t id, uint32_t threads, bool says) {
    uint32_t any;
    asm volatile("{.reg .pred p, q;\nsetp.ne.u32 p, %3, 0;\nbar.red.or.pred q, %1, %2, p;\nselp.u32 %0, 1, 0, q;}"
                 : "=r"(any)
                 : "r"(id), "r"(threads), "r"(uint32_t(says))
                 : "memory");
    return any != 0;
}

// Waits until the preceding kernels of the stream have ended and their writes are visible, to bulk copies too. Returns at once in
// a kernel that was launched without programmatic serialization.
__device__ __forceinline__ void wait_for_stream() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the next kernel of the stream be launched beside this one, once every block has called it. A block calls it only after its
// last wait for a peer: blocks launched early occupy SMs, and those of the other lane's kernels, which a peer may be waiting for,
// must still find room.
__device__ __forceinline__ void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Of what is stored here the L2 cache keeps other lines in preference.
__device__ __forceinline__ void store_streaming(uint64_t *p, uint64_t v) {
    asm volatile("st.global.cs.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Brings the line into the L1 cache, until the next acquire at most; or into the L2 cache.
__device__ __forceinline__ void prefetch(const void *p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p)); }
__device__ __forceinline__ void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

} // namespace epw::ptx
