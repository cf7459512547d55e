/* The state of the floor's part for windows on GPUs, see gpu.h, and of its peers behind queues, see
 * remote_gpu.h. For builds with CUDA. */
#ifndef EPW_PEER_GPU_PART_H
#define EPW_PEER_GPU_PART_H

/* The uses of copied words, which may run at the same time: see epw_peers_copy_word. */
enum {
    EPW_COPY_ASKED, /* the probe, see peer/probe.c */
    EPW_COPY_HEARD,
    EPW_COPY_READ,
    EPW_COPY_ANSWERED,
    EPW_COPY_EPOCH, /* of epw_peers_newest_epoch */
    EPW_COPY_OWN,   /* of epw_peers_copy_own_word */
    EPW_WORD_COPIES
};

#ifdef EPW_CUDA

#include "device/stream_order.h"
#include "kernels/peer/context.h"
#include "kernels/peer/way.h"
#include "peer/peers.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#define EPW_LINE_COPIES 3u

/* Sources of copies (except words that are read), and what kernels write or read. A copy that runs after its
 * caller has stopped waiting for it still reads correct values. */
typedef struct epw_peers_pinned {
    uint64_t tables[EPW_MAX_LANES][EPW_AREAS][EPW_GPU_PEERS];
    uint64_t farewell;                              /* for each peer's window, when this rank leaves */
    uint64_t words[EPW_WORD_COPIES][EPW_GPU_PEERS]; /* of epw_peers_copy_word, by use and peer */
    epw_line lines[EPW_LINE_COPIES][EPW_GPU_PEERS]; /* of epw_peers_copy_lines */
    epw_rank_set suspects[EPW_MAX_LANES];           /* epw_gpu_shared.suspects_host points here, */
    epw_rank_set silent[EPW_MAX_LANES];             /* its silent_host, */
    epw_rank_set revoked;                           /* and its revoked */
    /* Peers behind queues: the set of them, the ways to them, and the set of those whose connections are
     * gone; kernels read these words. */
    epw_rank_set queued;
    epw_gpu_way ways[EPW_MAX_LANES][EPW_GPU_PEERS];
    epw_rank_set broken;
} epw_peers_pinned;

/* A doorbell register of an adapter, and where kernels write it. */
typedef struct epw_gpu_register {
    uint64_t *host, *device;
} epw_gpu_register;

struct epw_peers_gpu {
    int32_t device;
    uint64_t deadline_ns;                   /* the group's */
    epw_gpu_peers *lanes[EPW_MAX_LANES];    /* in device memory */
    epw_stream_order orders[EPW_MAX_LANES]; /* see epw_lane_order */
    bool serial;                            /* the next is in use: see epw_lane_chain */
    epw_stream_chain chain;
    epw_stream_order
        looks; /* of kernels that tell suspects and belong to none of these, see gpu_suspects.c */
    const char *unmarked;
    void *stream;
    cudaEvent_t event; /* of epw_peers_settle */
    cudaEvent_t
        copied[EPW_WORD_COPIES]; /* for epw_peers_copy_word: it does not wait for what others enqueue later */
    cudaEvent_t lines_copied;
    bool lines_under_way; /* epw_peers_copy_lines has not seen the end of its copies */
    epw_peers_pinned *pinned;
    atomic_bool probed; /* words have been copied */

    /* For peers behind queues; NULL if there can be none. */
    epw_gpu_way *ways;  /* [lanes][EPW_GPU_PEERS], in device memory */
    uint64_t *marks;    /* and of each [epw_queue_depth] */
    uint64_t *no_marks; /* zeros, pinned: with these marks begin */
    pthread_mutex_t rings_lock;
    unsigned char *rings;                  /* that nobody uses, see remote_gpu.c */
    struct epw_gpu_entries *spare_entries; /* the same of those on the GPU */
    struct epw_gpu_entries *image;         /* of peers behind queues, if it is on the GPU */
    epw_gpu_register *registers;
    uint32_t register_count;
};

#endif

#endif
