/* The kernels as C sees them: the arguments of each besides its peers and its lane, and its launch function. All pointers are to
 * device memory unless stated otherwise. Functions return a cudaError_t; none waits. */
#ifndef EPW_KERNELS_LAUNCH_H
#define EPW_KERNELS_LAUNCH_H

#include "kernels/ep/lane.h"

#define EPW_GPU_SEND    1u
#define EPW_GPU_RECEIVE 2u

/* The lane, as passed to every kernel of an operation. */
typedef struct epw_lane_args {
    epw_gpu_peers *peers;
    epw_gpu_lane_state *state;
    epw_gpu_shared *shared;
    epw_gpu_arrays arrays;
    unsigned char *window;      /* this rank's own */
    const unsigned char *inbox; /* where peers behind queues write: an inbox in pinned memory, or the window */
    epw_layout layout;
    uint32_t rank;
    uint32_t index;  /* number of the lane */
    uint32_t blocks; /* of its kernels, at most: an operation may have fewer */
    uint32_t counts; /* 1: what the operation moves is counted in state->traffic */
} epw_lane_args;

/* The structs of a call are passed as the caller filled them in, with the defaults of pointers and strides resolved. Kernels
 * ignore `stream` and `nonblocking`, which are for the host, and `lane`, which may leave the choice to the library. */

typedef struct epw_dispatch_args {
    epw_lane_args lane;
    uint32_t halves; /* EPW_GPU_SEND, EPW_GPU_RECEIVE or both */
    uint32_t dtype;
    epw_dispatch_input in;   /* for both halves; x_stride is never 0 */
    epw_row_format format;   /* the row format that follows from `in` */
    epw_dispatch_output out; /* zeros for a send-only kernel */
} epw_dispatch_args;

typedef struct epw_combine_args {
    epw_lane_args lane;
    uint32_t halves;
    uint32_t dtype;
    uint32_t output_layout, tokens, topk; /* of the dispatch */
    epw_combine_input in;                 /* for both halves; expert_out is NULL only for rank-major rows that are combined in
                                           * place */
    epw_combine_output out;               /* zeros for a send-only kernel */
} epw_combine_args;

typedef struct epw_release_args {
    epw_lane_args lane;
    uint32_t quiet; /* it is no error if the lane is free */
} epw_release_args;

typedef struct epw_membership_args {
    epw_gpu_peers *peers[EPW_MAX_LANES]; /* NULL beyond the buffer's lanes */
    epw_gpu_lane_state *states[EPW_MAX_LANES];
    epw_gpu_shared *shared;
    uint32_t rank, ranks;
    uint64_t epoch_word;
    epw_rank_set active;
    uint64_t last[2]; /* values of EPW_WORD_LAST and EPW_WORD_LAST_BUT_ONE */
} epw_membership_args;

typedef struct epw_checkpoint_args {
    epw_gpu_peers *peers[EPW_MAX_LANES]; /* NULL beyond the buffer's lanes */
    epw_gpu_lane_state *states[EPW_MAX_LANES];
    epw_gpu_shared *shared;
    uint32_t rank, ranks;
    uint32_t faulted; /* report the step as faulted, whatever the lanes say */
    uint64_t step;
} epw_checkpoint_args;

typedef struct epw_disconnect_args {
    epw_gpu_peers *peers[EPW_MAX_LANES]; /* NULL beyond the buffer's lanes */
    epw_gpu_lane_state *states[EPW_MAX_LANES];
    uint32_t rank, ranks, peer;
} epw_disconnect_args;

#ifdef __cplusplus
extern "C" {
#endif

/* Prepares the kernels on the current device: loads them and sets their limits. Called once per buffer, not under capture. */
int epw_gpu_prepare(void);

int epw_gpu_dispatch(const epw_dispatch_args *args, uint32_t blocks, void *stream);
int epw_gpu_combine(const epw_combine_args *args, uint32_t blocks, void *stream);

/* Answers no rows, collects nothing and frees the lane, in any stage. */
int epw_gpu_release(const epw_release_args *args, void *stream);

/* Clears suspects, begins the epoch on every lane and posts the epoch word to every peer that is or was active. */
int epw_gpu_set_active(const epw_membership_args *args, void *stream);

/* Posts the report of a step to every active peer that is not a suspect. */
int epw_gpu_checkpoint(const epw_checkpoint_args *args, void *stream);

/* Removes the peer from the peer tables and from operations in flight: those of graphs may be between two replays. */
int epw_gpu_disconnect(const epw_disconnect_args *args, void *stream);

#ifdef __cplusplus
}
#endif

#endif
