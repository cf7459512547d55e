/* The launch of suspects.cu, shared by host C and CUDA: the kernel that writes for the caller's kernels what this rank's kernels
 * know of the group's ranks. Any engine enqueues it. */
#ifndef EPW_KERNELS_PEER_SUSPECTS_H
#define EPW_KERNELS_PEER_SUSPECTS_H

#include "kernels/peer/context.h"

typedef struct epw_suspects_args {
    const epw_gpu_peers *peers; /* of any lane */
    int32_t *out;               /* [ranks], the caller's */
    uint32_t ranks;
} epw_suspects_args;

#ifdef __cplusplus
extern "C" {
#endif

/* Both return a cudaError_t. The first loads the kernel. */
int epw_gpu_prepare_suspects(void);
int epw_gpu_run_suspects(const epw_suspects_args *args, void *stream);

#ifdef __cplusplus
}
#endif

#endif
