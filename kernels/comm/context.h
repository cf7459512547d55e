/* What a kernel knows of its buffer: one struct in device memory per lane, seen by host C and CUDA. Kernels take its address;
 * everything that may change between graph replays is read from it at run time. */
#ifndef EPW_KERNELS_CONTEXT_H
#define EPW_KERNELS_CONTEXT_H

#include "ep/layout.h"

#define EPW_GPU_MAX_RANKS 64

typedef struct epw_gpu_context {
    /* Fixed at creation. */
    epw_layout layout;
    uint32_t rank, ranks, lane;
    uint32_t hidden, experts, topk;

    /* The peer table: each peer's window as mapped on this GPU, NULL where there is none. */
    unsigned char *window[EPW_GPU_MAX_RANKS];

    /* Membership, set in stream order. */
    uint32_t epoch;
    uint64_t active;
    uint64_t deadline_ns;
    uint64_t *suspects; /* shared by the lanes */

    /* The lane. Advanced by the last block of a kernel. */
    uint32_t op;    /* of the operation in flight, or the last one; 0 after set_active */
    uint32_t first; /* that operation is the epoch's first */
    uint32_t held;  /* a dispatch has begun and neither combine nor release has ended */
    uint64_t present, missing;
    uint32_t received[EPW_GPU_MAX_RANKS];
    uint32_t sent[EPW_GPU_MAX_RANKS];

    /* Blocks of the running kernel that have passed a point; zero between kernels. */
    uint32_t blocks_sent, blocks_out;

    /* Per source rank and local expert: where its rows begin in the expert's list. [ranks][local_experts] */
    uint32_t *first_row;
    /* Own tokens: row at the expert's rank. [max_tokens][topk] */
    uint32_t *sent_row;
    int32_t *ids;
    float *weights;
#ifdef EPW_STAMPS
    long long stamps[132][16];
#endif
} epw_gpu_context;

#endif
