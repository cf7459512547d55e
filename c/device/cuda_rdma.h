/* GPU memory that RDMA adapters access: by a dma-buf descriptor of the driver's or, without one, by its
 * address, which the driver module nvidia_peermem resolves. For builds with CUDA.
 *
 * Not yet tested with an adapter. */
#ifndef EPW_DEVICE_CUDA_RDMA_H
#define EPW_DEVICE_CUDA_RDMA_H

#include "base/status.h"

#ifdef EPW_CUDA

typedef struct epw_rdma_memory {
    void *base;             /* of the allocation */
    unsigned char *address; /* aligned to a GPU page */
    int dmabuf;             /* descriptor of the bytes from `address` on; -1: the driver provides none */
} epw_rdma_memory;

epw_status epw_cuda_rdma_alloc(int32_t ordinal, uint64_t bytes, epw_where where, epw_rdma_memory *out);

/* Waits for running kernels, as cudaFree does. No adapter may access the memory any more. */
void epw_cuda_rdma_free(int32_t ordinal, epw_rdma_memory *memory);

#endif

#endif
