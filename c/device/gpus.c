/* See gpus.h. */
#include "device/gpus.h"

#include "device/cuda.h"

#ifdef EPW_CUDA

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "device/cuda_driver.h"
#include "device/device.h"
#include "epwire.h"

static const epw_where looking = {"doctor", -1, -1};

epw_status epw_gpus_count(uint32_t *count) {
    int found = 0;
    epw_status status = epw_cuda_count(looking, &found);
    if (status != EPW_OK) return status;
    *count = found < EPW_GPUS_MAX ? (uint32_t)found : EPW_GPUS_MAX;
    return epw_cuda_driver_load(looking);
}

static uint64_t peers_of(int ordinal, uint32_t count, enum cudaDeviceP2PAttr attribute) {
    uint64_t peers = 0;
    for (int peer = 0; peer < (int)count; peer++) {
        int has = 0;
        if (peer == ordinal) continue;
        if (cudaDeviceGetP2PAttribute(&has, attribute, ordinal, peer) != cudaSuccess)
            (void)cudaGetLastError();
        if (has) peers |= UINT64_C(1) << peer;
    }
    return peers;
}

epw_status epw_gpu_bus(uint32_t ordinal, epw_where where, char out[EPW_GPU_BUS_BYTES]) {
    cudaError_t error = cudaDeviceGetPCIBusId(out, EPW_GPU_BUS_BYTES, (int)ordinal);
    return error == cudaSuccess ? EPW_OK : epw_fail_cuda(error, where, "cudaDeviceGetPCIBusId");
}

epw_status epw_gpu_look(uint32_t ordinal, uint32_t count, epw_gpu_facts *out) {
    struct cudaDeviceProp properties;
    CUdevice device;
    int dma_buf = 0;
    cudaError_t error = cudaGetDeviceProperties(&properties, (int)ordinal);
    if (error != cudaSuccess) return epw_fail_cuda(error, looking, "cudaGetDeviceProperties");
    *out = (epw_gpu_facts){.major = (uint32_t)properties.major,
                           .minor = (uint32_t)properties.minor,
                           .memory_bytes = properties.totalGlobalMem};
    snprintf(out->name, sizeof out->name, "%.95s", properties.name);
    epw_status status = epw_gpu_bus(ordinal, looking, out->bus);
    if (status != EPW_OK) return status;
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    CUresult asked = driver->device_get(&device, (int)ordinal);
    if (asked == CUDA_SUCCESS) /* an old driver does not know this attribute */
        (void)driver->device_get_attribute(&dma_buf, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device);
    out->dma_buf = dma_buf == 1;
    out->access = peers_of((int)ordinal, count, cudaDevP2PAttrAccessSupported);
    out->atomics = peers_of((int)ordinal, count, cudaDevP2PAttrNativeAtomicSupported);
    return EPW_OK;
}

epw_status epw_gpu_try(uint32_t ordinal, uint32_t path) {
    epw_memory memory;
    epw_status status = epw_device_cuda.create((int32_t)ordinal, path, 1, looking, &memory);
    if (status == EPW_OK) epw_device_cuda.destroy(&memory);
    return status;
}

#else

static epw_status without(void) {
    return epw_fail(EPW_ERR_NO_PATH, (epw_where){"doctor", -1, -1}, EPW_NO_CUDA);
}

epw_status epw_gpus_count(uint32_t *count) {
    (void)count;
    return without();
}

epw_status epw_gpu_bus(uint32_t ordinal, epw_where where, char out[EPW_GPU_BUS_BYTES]) {
    (void)ordinal, (void)out;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
}

epw_status epw_gpu_look(uint32_t ordinal, uint32_t count, epw_gpu_facts *out) {
    (void)ordinal, (void)count, (void)out;
    return without();
}

epw_status epw_gpu_try(uint32_t ordinal, uint32_t path) {
    (void)ordinal, (void)path;
    return without();
}

#endif
