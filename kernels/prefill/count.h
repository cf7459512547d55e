/* The kernel that counts where tokens would go: its arguments, shared by host C and CUDA. */
#ifndef EPW_KERNELS_PREFILL_COUNT_H
#define EPW_KERNELS_PREFILL_COUNT_H

#include "epwire.h"

typedef struct epw_prefill_count_args {
    epw_dispatch_input in; /* of which the ids are read */
    /* Where the counts go; NULL: not wanted. */
    uint32_t *rank_tokens;   /* [ranks] */
    uint32_t *expert_tokens; /* [experts] */
    uint8_t *in_rank;        /* [tokens, ranks] */
    uint32_t *bad_ids;       /* [1] */
    uint32_t ranks, experts;
} epw_prefill_count_args;

#ifdef __cplusplus
extern "C" {
#endif

/* Both return a cudaError_t. Prepares the kernel on the current device; not under capture. */
int epw_prefill_gpu_prepare_count(void);
/* Zeroes the numbers, and enqueues the kernel. */
int epw_prefill_gpu_run_count(const epw_prefill_count_args *args, void *stream);

#ifdef __cplusplus
}
#endif

#endif
