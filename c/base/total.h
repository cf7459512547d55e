/* The caller's sums, to which several operations add: two lanes may share an array. */
#ifndef EPW_BASE_TOTAL_H
#define EPW_BASE_TOTAL_H

#include <stdatomic.h>
#include <stdint.h>

static inline void epw_add_total(uint64_t *sum, uint64_t value) {
    if (value > 0) atomic_fetch_add_explicit((_Atomic uint64_t *)sum, value, memory_order_relaxed);
}

/* Modulo 2^32. */
static inline void epw_add_total_i32(int32_t *sum, uint32_t value) {
    if (value > 0) atomic_fetch_add_explicit((_Atomic uint32_t *)sum, value, memory_order_relaxed);
}

#endif
