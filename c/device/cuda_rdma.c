/* See cuda_rdma.h. */
#include "device/cuda_rdma.h"

#ifdef EPW_CUDA

#include "base/bits.h"
#include "device/cuda.h"
#include "device/cuda_driver.h"

#include <unistd.h>

enum { PAGE = 65536 };

/* -1 if the driver or the kernel has no dma-buf: the address may still serve. */
static int descriptor_of(CUdeviceptr address, uint64_t bytes) {
    int fd = -1;
    CUresult error =
        epw_cuda_driver_get()->range_handle(&fd, address, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    return error == CUDA_SUCCESS ? fd : -1;
}

epw_status epw_cuda_rdma_alloc(int32_t ordinal, uint64_t bytes, epw_where where, epw_rdma_memory *out) {
    epw_cuda_scope scope = {0};
    *out = (epw_rdma_memory){.dmabuf = -1};
    bytes = epw_align(bytes, PAGE);
    epw_status status = epw_cuda_alloc(ordinal, bytes + PAGE, where, &out->base);
    if (status == EPW_OK) status = epw_cuda_enter_relaxed(ordinal, where, &scope);
    if (status != EPW_OK) {
        epw_cuda_free(ordinal, out->base);
        return status;
    }
    CUdeviceptr address = epw_align((uint64_t)(uintptr_t)out->base, PAGE);
    /* Makes copies to and from the memory complete before their calls return, as an adapter that reads it
     * directly requires. */
    unsigned synchronous = 1;
    (void)epw_cuda_driver_get()->pointer_set(&synchronous, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
    out->address = (unsigned char *)(uintptr_t)address;
    out->dmabuf = descriptor_of(address, bytes);
    epw_cuda_leave_relaxed(&scope);
    return EPW_OK;
}

void epw_cuda_rdma_free(int32_t ordinal, epw_rdma_memory *memory) {
    if (memory->dmabuf >= 0) close(memory->dmabuf);
    epw_cuda_free(ordinal, memory->base);
    *memory = (epw_rdma_memory){.dmabuf = -1};
}

#endif
