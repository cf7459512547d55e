/* Loads and stores of words that two agents share: threads of the host, kernels, a NIC. Plain integers, so
 * that one struct serves C and CUDA. In kernels all are of system scope: the reader may be on the host. */
#ifndef EPW_NIC_ORDER_H
#define EPW_NIC_ORDER_H

#include "base/inline.h"

#include <stdbool.h>
#include <stdint.h>

#if defined(__CUDA_ARCH__)

EPW_INLINE uint64_t epw_load_acquire_64(const uint64_t *at) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}
EPW_INLINE uint32_t epw_load_acquire_32(const uint32_t *at) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
EPW_INLINE void epw_store_release_64(uint64_t *at, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
EPW_INLINE void epw_store_release_32(uint32_t *at, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
/* Ordered with all before and after it. True if *at was `from`. */
EPW_INLINE bool epw_compare_swap_64(uint64_t *at, uint64_t from, uint64_t to) {
    uint64_t was;
    asm volatile("fence.sc.sys; atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(was)
                 : "l"(at), "l"(from), "l"(to)
                 : "memory");
    return was == from;
}
EPW_INLINE uint32_t epw_exchange_32(uint32_t *at, uint32_t value) {
    uint32_t was;
    asm volatile("fence.sc.sys; atom.acq_rel.sys.global.exch.b32 %0, [%1], %2;"
                 : "=r"(was)
                 : "l"(at), "r"(value)
                 : "memory");
    return was;
}
/* A load that is not moved in front of an exchange or a swap of this thread before it. */
EPW_INLINE uint32_t epw_load_ordered_32(const uint32_t *at) {
    asm volatile("fence.sc.sys;" ::: "memory");
    return epw_load_acquire_32(at);
}

#else

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
/* Ordered with all before and after it. True if *at was `from`. */
EPW_INLINE bool epw_compare_swap_64(uint64_t *at, uint64_t from, uint64_t to) {
    return __atomic_compare_exchange_n(at, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
EPW_INLINE uint32_t epw_exchange_32(uint32_t *at, uint32_t value) {
    return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
}
/* A load that is not moved in front of an exchange or a swap of this thread before it. */
EPW_INLINE uint32_t epw_load_ordered_32(const uint32_t *at) {
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}

#endif

#endif
