/* Checks that only calls on GPUs need, both of decode and of prefill. */
#ifndef EPW_EP_GPU_CHECK_H
#define EPW_EP_GPU_CHECK_H

#ifdef EPW_CUDA

#include "base/status.h"
#include "ep/layout.h"

/* A call only enqueues: `nonblocking` and `outcome` have no meaning for it. `see` names the function that
 * gives the outcome later. */
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

/* The alignment of a dispatch's scales. UE8M0 scales travel as bytes, but column-major output packs four into
 * an i32. */
uint32_t epw_gpu_scale_align(const epw_row_format *format, uint32_t payload);

/* The alignment of what a dispatch reads; `routed`: by an earlier routing, so no ids. */
epw_status epw_gpu_check_input(epw_where where, const epw_dispatch_input *in, const epw_row_format *format,
                               bool routed);

#endif

#endif
