/* The inner loops of the host device: copying, quantising and summing rows, with the instruction set chosen
 * at run time.
 *
 * Every table gives the same bits for the same input. The rules, for GPU kernels and tests to follow:
 *
 * Arithmetic is IEEE f32, to nearest even, subnormals kept, never fused. Sums start from +0. Rounding to bf16
 * and f16 is to nearest even; values too large become infinity. A NaN result is the positive quiet NaN (bf16
 * 0x7fc0, f16 0x7e00) whatever NaNs went in, because processors and compilers differ in which operand's
 * payload survives an addition.
 *
 * FP8 is e4m3: no infinities, NaN 0x7f and 0xff, largest 448. Per 128 channels, amax starts at 1e-4 and is
 * raised by every greater |x|; a NaN never raises it. With f32 scales, scale = amax/448 and inv = 448/amax.
 * With power-of-two scales, scale is amax/448 rounded up to a power of two and inv its exact inverse; an
 * infinite amax counts as the largest f32, so scale is within 2^[-22, 120]. UE8M0 stores the exponent + 127.
 *
 * q = e4m3(x*inv), to nearest even, saturating. Where x*inv is NaN, q is 0x7f with the sign of x: for a NaN x
 * and, with f32 scales, for an infinite one (inf*0). With power-of-two scales an infinite x gives +-448,
 * which dequantises to infinity.
 *
 * Dequantising gives q*scale rounded to the type. A UE8M0 byte b is 2^(b-127), 255 is NaN. */
#ifndef EPW_NUMERICS_H
#define EPW_NUMERICS_H

#include "base/status.h"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0)
#error "the rules for NaN and infinities need a build without -ffast-math and -ffinite-math-only"
#endif

#include <stddef.h>
#include <stdint.h>

/* One instruction set's loops. Call them between epw_float_enter and epw_float_leave (base/float_state.h), as
 * the pool does for its items. No entry takes locks, allocates or checks its arguments; all are safe to call
 * from any number of threads. No memory may overlap except that `reduce` may write `out` over a whole row of
 * `rows`. No alignment is needed unless stated. */
typedef struct epw_numerics {
    const char *isa; /* "base", "avx2", "avx512" */

    /* Copies with non-temporal stores: for bytes that this core will not read again. dst is aligned to 16 and
     * bytes a multiple of 16. Not fenced: epw_stream_fence() must come before the word that publishes the
     * bytes. */
    void (*copy_stream)(void *dst, const void *src, size_t bytes);

    /* One row x [hidden] of `dtype` (EPW_BF16, EPW_F16) to q [hidden] and scales [hidden/128], f32 or, for
     * EPW_PAYLOAD_FP8_UE8M0, bytes. hidden is a multiple of 128, payload one of EPW_PAYLOAD_FP8_*. */
    void (*quantize)(uint32_t payload, uint32_t dtype, const void *x, uint32_t hidden, uint8_t *q,
                     void *scales);

    /* The inverse: q [hidden] and scales [hidden/128] to x [hidden] of `dtype`. */
    void (*dequantize)(uint32_t payload, uint32_t dtype, const uint8_t *q, const void *scales,
                       uint32_t hidden, void *x);

    /* out[c] = round(sum of weights[i] * rows[i][c]), i = 0 .. n-1 in this order; weights NULL: the sum of
     * rows[i][c]. rows and out are [hidden] of `dtype`, hidden a multiple of 8. n = 0 gives zeros. stream:
     * writes out with non-temporal stores if it is aligned to 64, to be fenced as copy_stream. */
    void (*reduce)(uint32_t dtype, const void *const *rows, const float *weights, size_t n, uint32_t hidden,
                   void *out, int stream);

    const struct epw_sums *sums; /* the reductions of collectives with the same instructions: sums.h */
} epw_numerics;

/* The table to use: the best that this processor and operating system can run, or the one that the
 * environment variable EPWIRE_ISA names. EPW_ERR_INVALID, with `where`, if that names no table or one that
 * cannot run here. Decided once per process, at the first success. */
epw_status epw_numerics_choose(epw_where where, const epw_numerics **out);

/* All tables that can run here, best first, at most `max`. Returns how many. */
size_t epw_numerics_all(const epw_numerics *out[], size_t max);

#endif
