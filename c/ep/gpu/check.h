/* Checks of calls that the host's engines do not need, of decode and prefill on GPUs alike. */
#ifndef EPW_EP_GPU_CHECK_H
#define EPW_EP_GPU_CHECK_H

#ifdef EPW_CUDA

#include "base/status.h"

/* A call enqueues: it cannot be asked not to wait, and has no outcome yet; `see` names what gives it later.
 */
epw_status epw_gpu_check_call(epw_where where, uint32_t nonblocking, const epw_outcome *outcome,
                              const char *see);

/* Memory that kernels access. */
typedef struct epw_gpu_pointer {
    const char *name;
    const void *at;
    uint32_t align;
} epw_gpu_pointer;

/* A misaligned access would end the whole CUDA context. NULL is aligned. */
epw_status epw_gpu_check_aligned(epw_where where, const epw_gpu_pointer *pointers, size_t count);

/* The same of an array. */
#define EPW_CHECK_ALIGNED(where, pointers)                                                                   \
    epw_gpu_check_aligned((where), (pointers), sizeof(pointers) / sizeof((pointers)[0]))

epw_status epw_gpu_check_stride(epw_where where, uint64_t x_stride);

#endif

#endif
