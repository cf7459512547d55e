/* GPU memory that RDMA adapters access: by a dma-buf descriptor of the driver's or, without one, by its
 * address, which the driver module nvidia_peermem resolves. For builds with CUDA.
 *
 * Not yet tested with an adapter. */
#ifndef EPW_DEVICE_CUDA_RDMA_H
#define EPW_DEVICE_CUDA_RDMA_H

#include "base/status.h"

#include <stdbool.h>

#ifdef EPW_CUDA

typedef struct epw_rdma_memory {
    void *base;             /* of the allocation; NULL: it is somebody else's */
    unsigned char *address; /* aligned to a GPU page */
    int dmabuf;             /* descriptor of the bytes from `address` on; -1: the driver provides none */
} epw_rdma_memory;

/* The same of memory that exists, until it is closed. */
epw_status epw_cuda_rdma_open(int32_t ordinal, unsigned char *memory, uint64_t bytes, epw_where where,
                              epw_rdma_memory *out);
void epw_cuda_rdma_close(epw_rdma_memory *memory);

/* Whether running kernels see what an adapter writes to the GPU's memory in the order in which it writes. */
bool epw_cuda_rdma_is_ordered(int32_t ordinal);

epw_status epw_cuda_rdma_alloc(int32_t ordinal, uint64_t bytes, epw_where where, epw_rdma_memory *out);

/* Waits for running kernels, as cudaFree does. No adapter may access the memory any more. */
void epw_cuda_rdma_free(int32_t ordinal, epw_rdma_memory *memory);

#endif

#endif
