/* The reductions of collectives on the host: rows of one element type folded into one, with the instruction
 * set chosen at run time.
 *
 * Every table gives the same bits for the same input. The rules, for GPU kernels and tests to follow:
 *
 * One row is copied byte for byte, NaNs with their payload. The rest applies to two rows or more.
 *
 * Floats. The fold begins with the first row and takes the others in their order, so -0 + -0 is -0. f16 and
 * bf16 are widened, folded in f32 and rounded once, at the end; f32 is folded in f32 and f64 in f64. Every
 * operation is IEEE, to nearest even, subnormals kept, never fused; values too large become infinity. An
 * average is the sum divided by n, before the one rounding of 16-bit types. A minimum or maximum is NaN if
 * any element is, and -0 is less than +0. A NaN result is the positive quiet NaN (f16 0x7e00, bf16 0x7fc0,
 * f32 0x7fc00000, f64 0x7ff8000000000000), whatever NaNs went in.
 *
 * Integers. Sum and product wrap (two's complement). An average is the exact mathematical sum divided by n,
 * truncated toward zero. */
#ifndef EPW_SUMS_H
#define EPW_SUMS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* One instruction set's reductions, to be called between epw_float_enter and epw_float_leave
 * (base/float_state.h), from any number of threads. */
typedef struct epw_sums {
    const char *isa; /* "base", "avx2", "avx512" */

    /* out[i] = rows[0][i] op rows[1][i] op ... op rows[n-1][i], in this order, for i in [0, count). type is
     * one of EPW_TYPE_*, op one of EPW_SUM to EPW_AVERAGE, n in [1, 1024]; none is checked. Buffers need no
     * alignment; `out` may be exactly one of the rows, and overlaps none otherwise. */
    void (*reduce)(uint32_t type, uint32_t op, const void *const *rows, size_t n, size_t count, void *out);
} epw_sums;

/* The table to use, by the same decision as epw_numerics_choose. */
epw_status epw_sums_choose(epw_where where, const epw_sums **out);

/* All tables that can run here, best first, at most `max`. Returns how many. */
size_t epw_sums_all(const epw_sums *out[], size_t max);

/* Bytes of an element; 0 if there is no such type. */
uint32_t epw_type_bytes(uint32_t type);

/* For error texts: "bf16", "average"; "unknown" if there is no such type or operator. */
const char *epw_type_name(uint32_t type);
const char *epw_op_name(uint32_t op);

#endif
