/* Remainders without a division, because GPUs have no instruction for that. */
#ifndef EPW_BASE_REMAINDER_H
#define EPW_BASE_REMAINDER_H

#include "base/inline.h"

#include <stdint.h>

__extension__ typedef unsigned __int128 epw_u128;

/* The inverse of a divisor, which must be at least 1. */
EPW_INLINE uint64_t epw_inverse(uint32_t divisor) {
    return UINT64_MAX / divisor;
}

/* number % divisor, by the divisor's inverse: number * divisor is below 2^64. */
EPW_INLINE uint32_t epw_remainder(uint64_t number, uint32_t divisor, uint64_t inverse) {
    /* The inverse is too small by less than 1 + 1 / divisor, so the quotient is at most one too small. */
    uint64_t quotient = (uint64_t)(((epw_u128)number * inverse) >> 64);
    uint32_t rest = (uint32_t)number - (uint32_t)quotient * divisor;
    return rest < divisor ? rest : rest - divisor;
}

#endif
