/* RMSNorm of a row after a residual addition, as it follows an all-reduce.
 *
 * The rules, which GPU kernels and tests follow: x = round(sum + residual), which is the new residual;
 * without a residual x is the sum. Squares are added in f32, with every operation rounded. A row is cut into
 * pieces of 128 elements, 32 words of four: the squares of a word are added in order, then the sums of words
 * k and k ^ 1, then of k and k ^ 2, and so on up to k ^ 16. Sum k of 32 then takes pieces k, k + 32 and so on
 * in order, and these sums are added as those of words are. What lies beyond a row is zero. r = 1 /
 * sqrt(squares / hidden + epsilon), each step rounded. y = round((x * r) * weight). An FP8 payload is y
 * quantised as numerics.h defines. Every NaN is the positive quiet one. */
#ifndef EPW_NORM_H
#define EPW_NORM_H

#include "numerics/numerics.h"
#include "numerics/sums.h"

typedef struct epw_norm_row {
    uint32_t dtype, payload, hidden; /* EPW_BF16 or EPW_F16; hidden at most EPW_NORM_HIDDEN_MAX */
    float epsilon;
    const void *sum, *weight; /* [hidden] */
    void *residual;           /* [hidden], in and out, or NULL */
    void *out;                /* [hidden] of the payload */
    void *scales;             /* [hidden / 128] of FP8 */
} epw_norm_row;

/* Called between epw_float_enter and epw_float_leave. */
void epw_norm_row_run(const epw_numerics *numerics, const epw_norm_row *row);

#endif
