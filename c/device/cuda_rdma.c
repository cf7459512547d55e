/* See cuda_rdma.h. */
#include "device/cuda_rdma.h"

#ifdef EPW_CUDA

#include "base/bits.h"
#include "device/cuda.h"
#include "device/cuda_driver.h"

#include <fcntl.h>
#include <unistd.h>

enum { PAGE = 65536 };

/* -1 if the driver or the kernel has no dma-buf: the address may still serve. */
static int descriptor_of(CUdeviceptr address, uint64_t bytes) {
    int fd = -1;
    CUresult error =
        epw_cuda_driver_get()->range_handle(&fd, address, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (error != CUDA_SUCCESS) return -1;
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

epw_status epw_cuda_rdma_open(int32_t ordinal, unsigned char *memory, uint64_t bytes, epw_where where,
                              epw_rdma_memory *out) {
    epw_cuda_scope scope = {0};
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)memory;
    epw_status status = epw_cuda_enter_relaxed(ordinal, where, &scope);
    if (status != EPW_OK) return status;
    /* Makes copies to and from the memory complete before their calls return, as an adapter that accesses it
     * directly requires. */
    unsigned synchronous = 1;
    (void)epw_cuda_driver_get()->pointer_set(&synchronous, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
    *out = (epw_rdma_memory){.address = memory, .dmabuf = descriptor_of(address, bytes)};
    epw_cuda_leave_relaxed(&scope);
    return EPW_OK;
}

void epw_cuda_rdma_close(epw_rdma_memory *memory) {
    if (memory->dmabuf >= 0) close(memory->dmabuf);
    memory->dmabuf = -1;
}

epw_status epw_cuda_rdma_alloc(int32_t ordinal, uint64_t bytes, epw_where where, epw_rdma_memory *out) {
    void *base;
    bytes = epw_align(bytes, PAGE);
    epw_status status = epw_cuda_alloc(ordinal, bytes + PAGE, where, &base);
    if (status != EPW_OK) return status;
    unsigned char *first = base;
    status = epw_cuda_rdma_open(ordinal, first + (PAGE - (uintptr_t)base % PAGE) % PAGE, bytes, where, out);
    if (status != EPW_OK) {
        epw_cuda_free(ordinal, base);
        return status;
    }
    out->base = base;
    return EPW_OK;
}

void epw_cuda_rdma_free(int32_t ordinal, epw_rdma_memory *memory) {
    epw_cuda_rdma_close(memory);
    epw_cuda_free(ordinal, memory->base);
    *memory = (epw_rdma_memory){.dmabuf = -1};
}

bool epw_cuda_rdma_is_ordered(int32_t ordinal) {
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    CUdevice device;
    int order = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
    return driver->device_get(&device, ordinal) == CUDA_SUCCESS &&
           driver->device_get_attribute(&order, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
                                        device) == CUDA_SUCCESS &&
           order >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
}

#endif
