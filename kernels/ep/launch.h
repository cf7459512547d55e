/* The kernels as C sees them: what each is given beside its peers and its lane, and how it is enqueued. All pointers are device
 * memory unless said otherwise. Functions return a cudaError_t; none waits. */
#ifndef EPW_KERNELS_LAUNCH_H
#define EPW_KERNELS_LAUNCH_H

#include "kernels/ep/lane.h"

#define EPW_GPU_SEND    1u
#define EPW_GPU_RECEIVE 2u

typedef struct epw_dispatch_args {
    epw_gpu_peers *peers;
    epw_gpu_lane_state *state;
    epw_gpu_shared *shared;
    epw_gpu_arrays arrays;
    unsigned char *window; /* this rank's own */
    epw_layout layout;
    uint32_t rank, lane;
    uint32_t halves; /* EPW_GPU_SEND, EPW_GPU_RECEIVE or both */

    /* What is sent, as in epw_dispatch_input and its row format. The receiving half reads the format too. */
    const void *x;
    uint64_t x_stride; /* never 0 */
    const void *topk_idx;
    const float *topk_weights;
    const void *sideband;
    const void *scales;
    uint64_t scale_row_stride, scale_col_stride;
    uint32_t tokens, topk, dtype, idx_type, payload;
    uint32_t payload_bytes, scale_count, scale_bytes, sideband_bytes, format;
    uint64_t deadline_ns; /* 0: the buffer's */

    /* What is received, as in epw_dispatch_output. */
    uint32_t output_layout; /* EPW_EXPERT_MAJOR or EPW_RANK_MAJOR */
    uint32_t scale_order;
    void *rows, *out_scales, *out_sideband;
    uint32_t *counts, *source_counts, *ranges, *source_token;
    int32_t *row_experts;
    float *row_weights;
    uint32_t *expert_rows;
    uint64_t *expert_totals, *wait_ns;
} epw_dispatch_args;

typedef struct epw_combine_args {
    epw_gpu_peers *peers;
    epw_gpu_lane_state *state;
    epw_gpu_shared *shared;
    epw_gpu_arrays arrays;
    unsigned char *window;
    epw_layout layout;
    uint32_t rank, lane;
    uint32_t halves;
    uint32_t mode, dtype, output_layout, tokens;
    uint64_t deadline_ns;
    const void *expert_out;    /* NULL: rank-major rows in place */
    const float *topk_weights; /* ordered: [tokens][topk], NULL: those of dispatch */
    uint32_t topk;             /* of topk_weights */
    void *out;
    uint16_t *contributions;
    uint64_t *wait_ns;
} epw_combine_args;

typedef struct epw_release_args {
    epw_gpu_peers *peers;
    epw_gpu_lane_state *state;
    epw_gpu_shared *shared;
    epw_gpu_arrays arrays;
    unsigned char *window;
    uint32_t rank, ranks;
    uint32_t blocks; /* of the lane's kernels */
    uint32_t quiet;  /* the lane may be free */
} epw_release_args;

typedef struct epw_membership_args {
    epw_gpu_peers *peers[EPW_MAX_LANES]; /* NULL beyond the buffer's lanes */
    epw_gpu_lane_state *states[EPW_MAX_LANES];
    epw_gpu_shared *shared;
    uint32_t rank, ranks, epoch;
    uint64_t active;
} epw_membership_args;

typedef struct epw_disconnect_args {
    epw_gpu_peers *peers[EPW_MAX_LANES]; /* NULL beyond the buffer's lanes */
    epw_gpu_lane_state *states[EPW_MAX_LANES];
    uint32_t rank, ranks, peer;
} epw_disconnect_args;

#ifdef __cplusplus
extern "C" {
#endif

/* Makes the kernels ready on the current device: loads them, sets their limits. Called once per buffer, not under capture. */
int epw_gpu_prepare(void);

int epw_gpu_dispatch(const epw_dispatch_args *args, uint32_t blocks, void *stream);
int epw_gpu_combine(const epw_combine_args *args, uint32_t blocks, void *stream);

/* Answers no rows, collects nothing, frees the lane: in any stage. */
int epw_gpu_release(const epw_release_args *args, void *stream);

/* Clears suspects, begins the epoch on every lane and posts the epoch word to every peer that is or was active. */
int epw_gpu_set_active(const epw_membership_args *args, void *stream);

/* Takes the peer out of the peer tables, and out of operations in flight: those of graphs may be between two replays. */
int epw_gpu_disconnect(const epw_disconnect_args *args, void *stream);

#ifdef __cplusplus
}
#endif

#endif
