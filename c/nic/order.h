/* Loads and stores of words that posters (threads of the host, or of one GPU's kernels) and the NIC share.
 * Plain integers, so that one struct serves C and CUDA.
 *
 * In kernels, words shared only by posters use GPU scope, whose fences do not wait for stores across the bus;
 * words that the NIC writes or reads use system scope. An entry is passed on by its poster, which stores the
 * entry and releases the record to the NIC; or by two threads: the poster releases its mark, and whoever
 * rings acquires the mark and releases the record, and with it the entry. */
#ifndef EPW_NIC_ORDER_H
#define EPW_NIC_ORDER_H

#include "base/inline.h"

#include <stdbool.h>
#include <stdint.h>

#if defined(__CUDA_ARCH__)

/* ---- between posters ---- */

EPW_INLINE uint64_t epw_load_acquire_64(const uint64_t *at) {
    uint64_t value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}
/* Called once before marks: here a fence for all of them, which passes on what the thread has seen, too; on
 * the host each mark releases by itself. */
EPW_INLINE void epw_before_marks(void) {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}
EPW_INLINE void epw_mark(uint64_t *at, uint64_t value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
EPW_INLINE uint64_t epw_load_relaxed_64(const uint64_t *at) {
    uint64_t value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}
/* An acquire together with this thread's next fence, that of epw_store_record for example; until then loads
 * and swaps do not wait for it. On the host it is an acquire by itself. */
EPW_INLINE uint64_t epw_load_fenced_later_64(const uint64_t *at) {
    return epw_load_relaxed_64(at);
}
/* True if *at was `from`. Orders nothing. */
EPW_INLINE bool epw_compare_swap_relaxed_64(uint64_t *at, uint64_t from, uint64_t to) {
    uint64_t was;
    asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(was)
                 : "l"(at), "l"(from), "l"(to)
                 : "memory");
    return was == from;
}
/* True if *at was `from`. Releases what was before it, acquires what is behind it. */
EPW_INLINE bool epw_compare_swap_64(uint64_t *at, uint64_t from, uint64_t to) {
    uint64_t was;
    asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(was)
                 : "l"(at), "l"(from), "l"(to)
                 : "memory");
    return was == from;
}
/* What *at was, which is the larger of the two from now on. */
EPW_INLINE uint64_t epw_max_64(uint64_t *at, uint64_t value) {
    uint64_t was;
    asm volatile("atom.acq_rel.gpu.global.max.u64 %0, [%1], %2;"
                 : "=l"(was)
                 : "l"(at), "l"(value)
                 : "memory");
    return was;
}

/* ---- between a poster and the NIC ---- */

EPW_INLINE uint32_t epw_load_acquire_32(const uint32_t *at) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
EPW_INLINE void epw_store_release_32(uint32_t *at, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
/* A store after all earlier stores, and after what this thread has seen. */
EPW_INLINE void epw_store_record(uint32_t *at, uint32_t value) {
    asm volatile("fence.acq_rel.sys; st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
/* A store to an adapter's register. The two observers: this thread, whose stores to the record and the
 * entries come before it; and the adapter, which reads those once the doorbell has reached it. */
EPW_INLINE void epw_store_doorbell(uint64_t *at, uint64_t value) {
    asm volatile("fence.acq_rel.sys; st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

#else

EPW_INLINE void epw_before_marks(void) {}
EPW_INLINE void epw_mark(uint64_t *at, uint64_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
EPW_INLINE uint64_t epw_load_acquire_64(const uint64_t *at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
EPW_INLINE uint32_t epw_load_acquire_32(const uint32_t *at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
EPW_INLINE void epw_store_release_64(uint64_t *at, uint64_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
EPW_INLINE void epw_store_release_32(uint32_t *at, uint32_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
EPW_INLINE uint64_t epw_load_relaxed_64(const uint64_t *at) {
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}
EPW_INLINE uint64_t epw_load_fenced_later_64(const uint64_t *at) {
    return epw_load_acquire_64(at);
}
EPW_INLINE void epw_store_record(uint32_t *at, uint32_t value) {
    epw_store_release_32(at, value);
}
/* True if *at was `from`. Orders nothing. */
EPW_INLINE bool epw_compare_swap_relaxed_64(uint64_t *at, uint64_t from, uint64_t to) {
    return __atomic_compare_exchange_n(at, &from, to, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
/* True if *at was `from`. Releases what was before it, acquires what is behind it. */
EPW_INLINE bool epw_compare_swap_64(uint64_t *at, uint64_t from, uint64_t to) {
    return __atomic_compare_exchange_n(at, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
/* What *at was, which is the larger of the two from now on. */
EPW_INLINE uint64_t epw_max_64(uint64_t *at, uint64_t value) {
    uint64_t was = epw_load_acquire_64(at);
    while (was < value &&
           !__atomic_compare_exchange_n(at, &was, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
    return was;
}
/* Called between stores to memory and one to a register that may be mapped write-combining, and again after
 * that.
 *
 * The two observers: this thread, and the adapter. x86 does not order ordinary stores and write-combining
 * ones, and neither architecture defines when the latter leave the core: the second call makes them leave
 * now. */
static inline void epw_register_fence(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#elif defined(__aarch64__)
    __asm__ volatile("dsb st" ::: "memory");
#else
    __sync_synchronize();
#endif
}
/* A store to an adapter's register, or to the memory in its place, after all earlier stores of this thread.
 */
EPW_INLINE void epw_store_doorbell(uint64_t *at, uint64_t value) {
    epw_register_fence();
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
    epw_register_fence();
}

#endif

#endif
