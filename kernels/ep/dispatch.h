/* What a dispatch kernel is given, beside its context. All pointers are device memory. */
#ifndef EPW_KERNELS_DISPATCH_H
#define EPW_KERNELS_DISPATCH_H

#include "../comm/context.h"

#define EPW_GPU_SEND    1u
#define EPW_GPU_RECEIVE 2u

typedef struct epw_dispatch_args {
    epw_gpu_context *context;
    epw_layout layout; /* of the window */
    uint32_t halves;   /* EPW_GPU_SEND, EPW_GPU_RECEIVE or both */

    /* Input, as in epw_dispatch_input. */
    const void *x;
    uint64_t x_stride;
    const void *topk_idx;
    const float *topk_weights;
    const void *sideband;
    const void *scales;
    uint64_t scale_row_stride, scale_col_stride;
    uint32_t tokens, topk, dtype, idx_type, payload;
    uint32_t payload_bytes, scale_count, scale_bytes, sideband_bytes, format;
    uint32_t output_layout; /* EPW_EXPERT_MAJOR or EPW_RANK_MAJOR */
    uint64_t deadline_ns;   /* 0: the context's */

    /* Output, as in epw_dispatch_output. */
    uint32_t scale_order;
    void *rows, *out_scales, *out_sideband;
    uint32_t *counts, *source_counts, *ranges, *source_token;
    int32_t *row_experts;
    float *row_weights;
    uint32_t *expert_rows;
} epw_dispatch_args;

typedef struct epw_combine_args {
    epw_gpu_context *context;
    epw_layout layout;
    uint32_t halves;
    uint32_t mode, dtype, output_layout, tokens, hidden;
    uint64_t deadline_ns;
    uint32_t release;       /* 1: answer nothing, collect nothing */
    const void *expert_out; /* NULL: rank-major rows in place */
    void *out;
    uint16_t *contributions;
} epw_combine_args;

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueue on `stream`. blocks: how many thread blocks (SMs) to use. Return a cudaError_t. */
int epw_gpu_dispatch(const epw_dispatch_args *args, uint32_t blocks, void *stream);
int epw_gpu_combine(const epw_combine_args *args, uint32_t blocks, void *stream);

#ifdef __cplusplus
}
#endif

#endif
