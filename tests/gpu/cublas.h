/* Matrix products on tensor cores, by cuBLAS on a part of the SMs: the work of a model, beside which prefill
 * is measured. The library is loaded at run time. */
#ifndef TESTS_GPU_CUBLAS_H
#define TESTS_GPU_CUBLAS_H

#include <cuda_runtime.h>
#include <stdint.h>

typedef struct cublas cublas;

/* Products of n x n matrices, bf16 or, with fp8, e4m3, into bf16, on `sms` SMs (0: all) of the current
 * device. Returns NULL if there is no such library; on other errors it ends the program and says which. */
cublas *cublas_open(const char *library, uint32_t n, int fp8, uint32_t sms);
void cublas_close(cublas *c);

/* Enqueues one product. */
void cublas_multiply(const cublas *c, cudaStream_t stream);

#endif
