/* Rounding and sets of ranks. */
#ifndef EPW_BASE_BITS_H
#define EPW_BASE_BITS_H

#include "epwire.h"

#include <stdbool.h>
#include <string.h>

#define EPW_MASK_WORDS (EPW_MAX_RANKS / 64)

static inline uint64_t epw_align(uint64_t value, uint64_t to) {
    return (value + to - 1) / to * to;
}

static inline bool epw_mask_has(const epw_mask *mask, uint32_t rank) {
    return mask->bits[rank / 64] >> (rank % 64) & 1;
}
static inline void epw_mask_add(epw_mask *mask, uint32_t rank) {
    mask->bits[rank / 64] |= UINT64_C(1) << (rank % 64);
}
static inline void epw_mask_drop(epw_mask *mask, uint32_t rank) {
    mask->bits[rank / 64] &= ~(UINT64_C(1) << (rank % 64));
}
static inline void epw_mask_clear(epw_mask *mask) {
    memset(mask, 0, sizeof *mask);
}
static inline bool epw_mask_empty(const epw_mask *mask) {
    uint64_t any = 0;
    for (int i = 0; i < EPW_MASK_WORDS; i++) any |= mask->bits[i];
    return any == 0;
}

/* Runs the following statement for every rank of the set, in ascending order. The statement may remove `rank`
 * from the set. */
#define EPW_MASK_FOR(rank, mask, ranks)                                                                      \
    for (uint32_t rank = 0; rank < (ranks); rank++)                                                          \
        if (epw_mask_has((mask), rank))

#endif
