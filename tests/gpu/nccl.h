/* NCCL, as a reference that is measured beside communicators: loaded at run time from the path of its
 * library. */
#ifndef TESTS_GPU_NCCL_H
#define TESTS_GPU_NCCL_H

#include "ranks.h"

#include "epwire.h"

#include <cuda_runtime.h>

typedef struct nccl nccl;

/* Opens it on the current device. On an error it ends the program and says which. */
nccl *nccl_open(const char *library, const rank_links *links);
void nccl_close(nccl *n);

/* An all-reduce (sum), all-gather, all-to-all, reduce-scatter or broadcast (from rank 0) of bf16, as `c`
 * says. */
void nccl_enqueue(const nccl *n, const epw_coll *c, cudaStream_t stream);

#endif
