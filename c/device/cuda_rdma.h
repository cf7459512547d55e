/* GPU memory that RDMA adapters are to reach: by a descriptor of the driver's (dma-buf), or by its address,
 * which a module of the driver (nvidia_peermem) then finds. For builds with CUDA.
 *
 * Unproven until there is an adapter. */
#ifndef EPW_DEVICE_CUDA_RDMA_H
#define EPW_DEVICE_CUDA_RDMA_H

#include "base/status.h"

#ifdef EPW_CUDA

typedef struct epw_rdma_memory {
    void *base;             /* of the allocation */
    unsigned char *address; /* begins a page of the GPU's */
    int dmabuf;             /* of the bytes from there on; -1: the driver gives none */
} epw_rdma_memory;

epw_status epw_cuda_rdma_alloc(int32_t ordinal, uint64_t bytes, epw_where where, epw_rdma_memory *out);

/* Waits for kernels that run, as cudaFree does. No adapter reaches it any more. */
void epw_cuda_rdma_free(int32_t ordinal, epw_rdma_memory *memory);

#endif

#endif
