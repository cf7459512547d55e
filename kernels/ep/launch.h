/* The kernels as C sees them: what each is given beside its peers and its lane, and how it is enqueued. All pointers are device
 * memory unless said otherwise. Functions return a cudaError_t; none waits. */
#ifndef EPW_KERNELS_LAUNCH_H
#define EPW_KERNELS_LAUNCH_H

#include "kernels/ep/lane.h"

#define EPW_GPU_SEND    1u
#define EPW_GPU_RECEIVE 2u

/* The lane, as every kernel of an operation is given it. */
typedef struct epw_lane_args {
    epw_gpu_peers *peers;
    epw_gpu_lane_state *state;
    epw_gpu_shared *shared;
    epw_gpu_arrays arrays;
    unsigned char *window;      /* this rank's own */
    const unsigned char *inbox; /* what peers behind queues write instead, in pinned memory; NULL: there can be none */
    epw_layout layout;
    uint32_t rank;
    uint32_t index; /* of the lane */
} epw_lane_args;

/* A call's own structs come as the caller has filled them in, with the defaults of pointers and strides put in their place.
 * Kernels look at neither `stream` nor `nonblocking`, which are the host's, nor at `lane`, which may leave the choice to the
 * library. */

typedef struct epw_dispatch_args {
    epw_lane_args lane;
    uint32_t halves; /* EPW_GPU_SEND, EPW_GPU_RECEIVE or both */
    uint32_t dtype;
    epw_dispatch_input in;   /* of both halves; x_stride is never 0 */
    epw_row_format format;   /* that follows from it */
    epw_dispatch_output out; /* zeros for a kernel that only sends */
} epw_dispatch_args;

typedef struct epw_combine_args {
    epw_lane_args lane;
    uint32_t halves;
    uint32_t dtype;
    uint32_t output_layout, tokens, topk; /* of the dispatch */
    epw_combine_input in;                 /* of both halves; expert_out is NULL for rank-major rows in place alone */
    epw_combine_output out;               /* zeros for a kernel that only sends */
} epw_combine_args;

typedef struct epw_release_args {
    epw_lane_args lane;
    uint32_t blocks; /* of the lane's kernels */
    uint32_t quiet;  /* the lane may be free */
} epw_release_args;

typedef struct epw_membership_args {
    epw_gpu_peers *peers[EPW_MAX_LANES]; /* NULL beyond the buffer's lanes */
    epw_gpu_lane_state *states[EPW_MAX_LANES];
    epw_gpu_shared *shared;
    uint32_t rank, ranks;
    uint64_t epoch_word;
    epw_rank_set active;
    uint64_t last[2]; /* for EPW_WORD_LAST and EPW_WORD_LAST_BUT_ONE */
} epw_membership_args;

typedef struct epw_checkpoint_args {
    epw_gpu_peers *peers[EPW_MAX_LANES]; /* NULL beyond the buffer's lanes */
    epw_gpu_lane_state *states[EPW_MAX_LANES];
    epw_gpu_shared *shared;
    uint32_t rank, ranks;
    uint32_t faulted; /* whatever the lanes know */
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

/* Makes the kernels ready on the current device: loads them, sets their limits. Called once per buffer, not under capture. */
int epw_gpu_prepare(void);

int epw_gpu_dispatch(const epw_dispatch_args *args, uint32_t blocks, void *stream);
int epw_gpu_combine(const epw_combine_args *args, uint32_t blocks, void *stream);

/* Answers no rows, collects nothing, frees the lane: in any stage. */
int epw_gpu_release(const epw_release_args *args, void *stream);

/* Clears suspects, begins the epoch on every lane and posts the epoch word to every peer that is or was active. */
int epw_gpu_set_active(const epw_membership_args *args, void *stream);

/* Posts the report of a step to every active peer that is no suspect. */
int epw_gpu_checkpoint(const epw_checkpoint_args *args, void *stream);

/* Takes the peer out of the peer tables, and out of operations in flight: those of graphs may be between two replays. */
int epw_gpu_disconnect(const epw_disconnect_args *args, void *stream);

#ifdef __cplusplus
}
#endif

#endif
