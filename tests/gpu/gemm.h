/* c = a * b, [n, n] f32 each in device memory, n a multiple of 64. Enqueues one kernel of (n/64)^2 blocks,
 * which fill every SM; returns a cudaError_t. */
#ifndef EPW_TESTS_GEMM_H
#define EPW_TESTS_GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C"
#endif
    int
    gemm_run(const float *a, const float *b, float *c, uint32_t n, void *stream);

#endif
