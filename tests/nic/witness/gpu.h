/* Device code of others at a ring of ours: what gpu.c asks of each. Functions run one kernel, and return a
 * cudaError_t. */
#ifndef EPW_WITNESS_GPU_H
#define EPW_WITNESS_GPU_H

#include <stdint.h>

/* Where their queue pair finds its parts, in memory that the GPU and the NIC reach at the same addresses. */
typedef struct gpu_ring {
    void *entries, *record, *doorbell, *completion;
    uint32_t depth, pair;
} gpu_ring;

typedef enum gpu_kind {
    GPU_NOP,
    GPU_WRITE,      /* of `bytes` bytes */
    GPU_WRITE_TWO,  /* the same, of which `second_bytes` lie at `second` */
    GPU_WRITE_WORD, /* of `value`, which the entry carries */
    GPU_READ,
    GPU_FETCH_ADD /* of `value` */
} gpu_kind;

/* Keys are those of the NIC, not swapped. */
typedef struct gpu_operation {
    gpu_kind kind;
    uint32_t remote_key, local_key, bytes, second_bytes;
    uint64_t remote, local, second, value;
} gpu_operation;

/* What their look at a completion says: 0, or an error, and its syndrome, if they look for that. */
typedef struct gpu_completion {
    int status;
    uint32_t syndrome;
} gpu_completion;

typedef struct gpu_peer {
    const char *who;
    uint32_t kinds; /* 1 << GPU_*: what they post */

    /* Their queue pair, in GPU memory, with completions as their collapsed queue has them. */
    int (*open)(const gpu_ring *ring, void **qp);

    /* They post it, ring, and return. */
    int (*post)(void *qp, gpu_operation operation);

    /* They poll until `count` entries are done since the queue was opened; for a few seconds at most. */
    int (*poll)(void *qp, uint64_t count, gpu_completion *out);

    /* `rounds` times they post the operation and a FETCH_ADD of 1 to the word at `counter`, whose old value
     * goes to `old`, and poll for both. *done: how many rounds that were. */
    int (*rounds)(void *qp, gpu_operation operation, uint64_t counter, uint64_t old, uint32_t rounds,
                  uint32_t *done);
} gpu_peer;

#ifdef __cplusplus
extern "C" {
#endif

extern const gpu_peer gpunetio_peer, ibgda_peer;

#ifdef __cplusplus
}
#endif

#endif
