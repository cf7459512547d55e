/* GPU memory that ranks share. Processes map it by a VMM handle, a file descriptor that names physical memory
 * of a GPU, or, if the driver or config.paths does not permit that, by a CUDA IPC handle. The 64 bytes of an
 * IPC handle travel in a sealed memfd, so that either way mapping a window takes one descriptor from the fd
 * server, and with it a lease.
 *
 * A VMM mapping stays usable after the creator has ended or freed its own mapping: the import holds a
 * reference to the physical memory. For IPC mappings CUDA promises that only while the creator has not freed
 * the memory, so the creator frees it after the last lease has ended; after a creator was killed, such
 * mappings have been seen to stay usable. A forked child cannot use its parent's GPU at all. */
#include "device/cuda.h"
#include "device/device.h"

#ifdef EPW_CUDA

#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/clock.h"
#include "device/cuda_driver.h"

/* Windows are whole multiples of this, so that ranks agree on their size however each allocates. It also
 * keeps an IPC handle from exposing neighbouring allocations in the driver's blocks of the same size. */
#define BLOCK_BYTES (UINT64_C(2) << 20)

#define SMALLER     " (epw_plan_make and epw_prefill_plan itemise the window: make it smaller)"

#define IPC_SEALS   (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

/* ---- which GPU may use which -------------------------------------------------------------------- */

typedef struct gpu_name {
    char text[48]; /* "GPU-" and the UUID, as nvidia-smi -L prints it */
} gpu_name;

static gpu_name name_of(const unsigned char uuid[16]) {
    gpu_name name;
    size_t used = (size_t)snprintf(name.text, sizeof name.text, "GPU");
    for (int i = 0; i < 16; i++) {
        const char *dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        used += (size_t)snprintf(name.text + used, sizeof name.text - used, "%s%02x", dash, uuid[i]);
    }
    return name;
}

static epw_status uuid_of(int32_t ordinal, epw_where where, unsigned char out[16]) {
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    CUdevice device;
    CUuuid uuid;
    CUresult error = driver->device_get(&device, ordinal);
    if (error == CUDA_SUCCESS) error = driver->device_get_uuid(&uuid, device);
    if (error != CUDA_SUCCESS) return epw_fail_cuda((int)error, where, "cuDeviceGetUuid");
    memcpy(out, uuid.bytes, sizeof uuid.bytes);
    return EPW_OK;
}

/* Finds the ordinal in this process of the GPU with that UUID; -1 if CUDA_VISIBLE_DEVICES hides it. */
static epw_status find_gpu(const unsigned char uuid[16], epw_where where, int32_t *out) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaGetDeviceCount");
    *out = -1;
    for (int32_t i = 0; i < count && *out < 0; i++) {
        unsigned char found[16];
        epw_status status = uuid_of(i, where, found);
        if (status != EPW_OK) return status;
        if (!memcmp(found, uuid, sizeof found)) *out = i;
    }
    return EPW_OK;
}

static epw_status unreachable(int32_t ordinal, const epw_origin *origin, epw_where where) {
    unsigned char own[16] = {0};
    (void)uuid_of(ordinal, where, own);
    return epw_fail(EPW_ERR_NO_PATH, where,
                    "GPU %d (%s) cannot access memory of the peer's GPU (%s); choose GPUs that `nvidia-smi "
                    "topo -p2p r` shows as OK",
                    ordinal, name_of(own).text, name_of(origin->gpu).text);
}

/* Asks the driver whether `ordinal` can access the origin's GPU. *owner [out]: the ordinal of that GPU
 * here, or -1 if it is hidden from this process: the driver cannot be asked then, and the mapping itself
 * decides. */
static epw_status check_access(int32_t ordinal, const epw_origin *origin, epw_where where, int32_t *owner) {
    epw_status status = find_gpu(origin->gpu, where, owner);
    if (status != EPW_OK || *owner < 0 || *owner == ordinal) return status;
    int can = 0;
    cudaError_t error = cudaDeviceCanAccessPeer(&can, ordinal, *owner);
    if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaDeviceCanAccessPeer");
    return can ? EPW_OK : unreachable(ordinal, origin, where);
}

/* ---- VMM ---------------------------------------------------------------------------------------- */

/* Whether VMM memory of this GPU can be made accessible to adapters. */
static bool has_rdma(int32_t ordinal) {
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    CUdevice device;
    int has = 0;
    if (driver->device_get(&device, ordinal) != CUDA_SUCCESS) return false;
    CUresult asked = driver->device_get_attribute(
        &has, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
    return asked == CUDA_SUCCESS && has;
}

static CUmemAllocationProp properties_on(int32_t ordinal) {
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
        .allocFlags = {.gpuDirectRDMACapable = has_rdma(ordinal)},
    };
}

static bool has_vmm(int32_t ordinal) {
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    CUdevice device;
    int mapping = 0, descriptors = 0;
    if (driver->device_get(&device, ordinal) != CUDA_SUCCESS) return false;
    (void)driver->device_get_attribute(&mapping, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                       device);
    (void)driver->device_get_attribute(
        &descriptors, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
    return mapping && descriptors;
}

/* Lets `ordinal` read and write a mapped range. Ranks that are threads may share a GPU, and the driver
 * refuses to grant the same access twice. */
static CUresult grant(unsigned char *base, uint64_t bytes, int32_t ordinal) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)base;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    unsigned long long granted = 0;
    pthread_mutex_lock(&lock);
    CUresult error = driver->get_access(&granted, &access.location, address);
    if (error != CUDA_SUCCESS || granted != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        error = driver->set_access(address, bytes, &access, 1);
    pthread_mutex_unlock(&lock);
    return error;
}

static void vmm_unmap(unsigned char *base, uint64_t bytes) {
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    (void)driver->unmap((CUdeviceptr)(uintptr_t)base, bytes);
    (void)driver->address_free((CUdeviceptr)(uintptr_t)base, bytes);
}

/* Maps physical memory at an address that `ordinal` may access. *call [out] names the call that failed. */
static CUresult vmm_map(CUmemGenericAllocationHandle handle, uint64_t bytes, int32_t ordinal,
                        unsigned char **out, const char **call) {
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    CUdeviceptr address = 0;
    *call = "cuMemAddressReserve";
    CUresult error = driver->address_reserve(&address, bytes, 0, 0, 0);
    if (error != CUDA_SUCCESS) return error;
    *call = "cuMemMap";
    error = driver->map(address, bytes, 0, handle, 0); /* fails if the handle has fewer bytes */
    if (error != CUDA_SUCCESS) {
        (void)driver->address_free(address, bytes);
        return error;
    }
    unsigned char *base = (unsigned char *)(uintptr_t)address;
    *call = "cuMemSetAccess";
    error = grant(base, bytes, ordinal);
    if (error != CUDA_SUCCESS) {
        vmm_unmap(base, bytes);
        return error;
    }
    *out = base;
    return CUDA_SUCCESS;
}

static CUresult vmm_export(CUmemGenericAllocationHandle handle, int *fd) {
    CUresult error =
        epw_cuda_driver_get()->export_handle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (error == CUDA_SUCCESS) (void)fcntl(*fd, F_SETFD, FD_CLOEXEC);
    return error;
}

/* CUDA_ERROR_NOT_SUPPORTED and similar errors mean that the driver, a container's rules or a virtual GPU does
 * not permit such handles: the caller may then try another path. */
static CUresult vmm_create(int32_t ordinal, uint64_t bytes, epw_memory *out, const char **call) {
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    CUmemAllocationProp properties = properties_on(ordinal);
    CUmemGenericAllocationHandle handle;
    size_t granularity = 0;
    *call = "cuMemGetAllocationGranularity";
    CUresult error = driver->granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (error != CUDA_SUCCESS) return error;
    if (granularity == 0 || BLOCK_BYTES % granularity) return CUDA_ERROR_NOT_SUPPORTED;
    *call = "cuMemCreate";
    error = driver->create(&handle, bytes, &properties, 0);
    if (error != CUDA_SUCCESS) return error;
    *call = "cuMemExportToShareableHandle";
    error = vmm_export(handle, &out->fd);
    if (error == CUDA_SUCCESS) {
        error = vmm_map(handle, bytes, ordinal, &out->base, call);
        if (error != CUDA_SUCCESS) close(out->fd);
    }
    /* From here on the mapping and the descriptor keep the memory alive. */
    (void)driver->release(handle);
    return error;
}

static epw_status vmm_import(int32_t ordinal, const epw_origin *origin, int fd, uint64_t bytes,
                             epw_where where, unsigned char **out) {
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    CUmemGenericAllocationHandle handle;
    CUresult error =
        driver->import_handle(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (error != CUDA_SUCCESS)
        return epw_fail(
            EPW_ERR_PEER, where,
            "the peer sent no GPU memory that this driver can import (CUDA error %d); use the same "
            "epwire version on all ranks",
            (int)error);
    const char *call = NULL;
    error = vmm_map(handle, bytes, ordinal, out, &call);
    (void)driver->release(handle);
    if (error == CUDA_SUCCESS) return EPW_OK;
    if (error == CUDA_ERROR_INVALID_VALUE && !strcmp(call, "cuMemMap"))
        return epw_fail(EPW_ERR_PEER, where,
                        "the peer sent less GPU memory than a window of %llu bytes; use the same epwire "
                        "version on all ranks",
                        (unsigned long long)bytes);
    if (!strcmp(call, "cuMemSetAccess")) return unreachable(ordinal, origin, where);
    return epw_fail_cuda((int)error, where, call);
}

/* ---- CUDA IPC ----------------------------------------------------------------------------------- */

/* Makes a descriptor of the handle's bytes that nobody can modify. */
static epw_status seal_handle(const cudaIpcMemHandle_t *handle, epw_where where, int *out) {
    int fd = memfd_create("epwire-ipc", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return epw_fail_errno(errno, where, "memfd_create");
    bool written = write(fd, handle, sizeof *handle) == (ssize_t)sizeof *handle;
    if (!written || fcntl(fd, F_ADD_SEALS, IPC_SEALS)) {
        epw_status status = epw_fail_errno(errno, where, "sealing the window's IPC handle");
        close(fd);
        return status;
    }
    *out = fd;
    return EPW_OK;
}

static epw_status ipc_export(void *memory, epw_where where, int *fd) {
    cudaIpcMemHandle_t handle;
    cudaError_t error = cudaIpcGetMemHandle(&handle, memory);
    return error == cudaSuccess ? seal_handle(&handle, where, fd)
                                : epw_fail_cuda(error, where, "cudaIpcGetMemHandle");
}

static epw_status ipc_create(uint64_t bytes, epw_where where, epw_memory *out) {
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error != cudaSuccess)
        return epw_fail_cuda_bytes(error, where, "cudaMalloc of a window", bytes, out->ordinal, SMALLER);
    epw_status status = ipc_export(memory, where, &out->fd);
    if (status != EPW_OK) {
        (void)cudaFree(memory);
        return status;
    }
    out->base = memory;
    return EPW_OK;
}

static epw_status ipc_open(int fd, uint64_t bytes, epw_where where, unsigned char **out) {
    struct stat stat;
    cudaIpcMemHandle_t handle;
    int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &stat) || !S_ISREG(stat.st_mode) || seals < 0 || (seals & IPC_SEALS) != IPC_SEALS ||
        stat.st_size != (off_t)sizeof handle ||
        pread(fd, &handle, sizeof handle, 0) != (ssize_t)sizeof handle)
        return epw_fail(EPW_ERR_PEER, where,
                        "the peer sent no CUDA IPC handle; use the same epwire version on all ranks");
    void *memory = NULL;
    cudaError_t error = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaIpcOpenMemHandle");
    CUdeviceptr base = 0;
    size_t found = 0;
    CUresult ranged = epw_cuda_driver_get()->address_range(&base, &found, (CUdeviceptr)(uintptr_t)memory);
    /* Counts only the bytes after the pointer, which may point into the middle of an allocation. */
    if (ranged == CUDA_SUCCESS) found -= (size_t)((CUdeviceptr)(uintptr_t)memory - base);
    if (ranged == CUDA_SUCCESS && found >= bytes) {
        *out = memory;
        return EPW_OK;
    }
    (void)cudaIpcCloseMemHandle(memory);
    if (ranged != CUDA_SUCCESS) return epw_fail_cuda((int)ranged, where, "cuMemGetAddressRange");
    return epw_fail(EPW_ERR_PEER, where,
                    "the peer sent %zu bytes of GPU memory for a window of %llu; use the same epwire version "
                    "on all ranks",
                    found, (unsigned long long)bytes);
}

/* ---- the caller's memory ------------------------------------------------------------------------ */

#define SHAREABLE "register memory of cudaMalloc or epw_comm_alloc"

static epw_status check_is_on(int32_t ordinal, const void *memory, epw_where where) {
    struct cudaPointerAttributes found;
    cudaError_t error = cudaPointerGetAttributes(&found, memory);
    if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaPointerGetAttributes");
    if (found.type != cudaMemoryTypeDevice)
        return epw_fail(EPW_ERR_INVALID, where, "memory is %s, which peers cannot map: " SHAREABLE,
                        found.type == cudaMemoryTypeManaged ? "managed memory" : "not memory of a GPU");
    if (found.device == ordinal) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, where, "memory is on GPU %d, config.device is %d", found.device,
                    (int)ordinal);
}

/* Finds the allocation that holds all the bytes. */
static epw_status find_allocation(const void *memory, uint64_t bytes, epw_where where, epw_memory *out) {
    CUdeviceptr base = 0, at = (CUdeviceptr)(uintptr_t)memory;
    size_t size = 0;
    CUresult error = epw_cuda_driver_get()->address_range(&base, &size, at);
    if (error != CUDA_SUCCESS) return epw_fail_cuda((int)error, where, "cuMemGetAddressRange");
    if (at - base > size || bytes > size - (at - base))
        return epw_fail(EPW_ERR_INVALID, where,
                        "bytes is %llu: the allocation of %zu bytes has only %llu from `memory` on",
                        (unsigned long long)bytes, size, (unsigned long long)(size - (at - base)));
    out->base = (unsigned char *)(uintptr_t)base;
    out->bytes = size;
    return EPW_OK;
}

/* Memory of cudaMalloc has an IPC handle. Of the rest, only memory that was mapped by VMM functions can have
 * a handle, if its creator has asked for one that is a file descriptor. */
static epw_status export_allocation(epw_where where, epw_memory *out) {
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)out->base;
    CUmemGenericAllocationHandle handle;
    CUmemoryPool pool = NULL;
    int has_handle = 0;
    (void)driver->pointer_get(&has_handle, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at);
    out->origin.path = has_handle ? EPW_PATH_IPC : EPW_PATH_VMM;
    if (has_handle) return ipc_export(out->base, where, &out->fd);
    (void)driver->pointer_get(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at);
    if (pool != NULL)
        return epw_fail(EPW_ERR_INVALID, where,
                        "memory is of a pool (cudaMallocAsync), which peers cannot map: " SHAREABLE);
    CUresult error = driver->retain_handle(&handle, out->base);
    if (error == CUDA_SUCCESS) {
        error = vmm_export(handle, &out->fd);
        (void)driver->release(handle);
    }
    if (error == CUDA_SUCCESS) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, where,
                    "memory has no handle by which peers can map it (CUDA error %d): " SHAREABLE
                    ", or create it by cuMemCreate with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
                    (int)error);
}

/* ---- the device --------------------------------------------------------------------------------- */

static void free_memory(epw_memory *memory) {
    if (memory->borrowed) {
        /* its owner frees it */
    } else if (memory->origin.path == EPW_PATH_VMM) {
        vmm_unmap(memory->base, memory->bytes);
    } else {
        (void)cudaFree(memory->base);
    }
    close(memory->fd);
    memory->base = NULL;
    memory->fd = -1;
}

/* Chooses VMM if config.paths and the driver permit it, else IPC; also VMM if config.paths permits neither,
 * since then at most threads of this process share the memory. Called in a scope of the GPU. */
static epw_status allocate(uint32_t paths, uint64_t bytes, epw_where where, epw_memory *out) {
    uint32_t asked = paths & (EPW_PATH_VMM | EPW_PATH_IPC);
    if (asked != EPW_PATH_IPC && has_vmm(out->ordinal)) {
        const char *call = NULL;
        out->origin.path = EPW_PATH_VMM;
        CUresult error = vmm_create(out->ordinal, bytes, out, &call);
        if (error == CUDA_SUCCESS) return EPW_OK;
        bool refused = error == CUDA_ERROR_NOT_SUPPORTED || error == CUDA_ERROR_NOT_PERMITTED ||
                       error == CUDA_ERROR_INVALID_DEVICE;
        if (!refused || !(asked & EPW_PATH_IPC))
            return epw_fail_cuda_bytes((int)error, where, call, bytes, out->ordinal, SMALLER);
    } else if (asked == EPW_PATH_VMM) {
        return epw_fail(EPW_ERR_NO_PATH, where,
                        "GPU %d has no VMM handles that can be passed between processes, and config.paths "
                        "permits no IPC: permit EPW_PATH_IPC",
                        out->ordinal);
    }
    out->origin.path = EPW_PATH_IPC;
    return ipc_create(bytes, where, out);
}

static epw_status cuda_create(int32_t ordinal, uint32_t paths, uint64_t bytes, epw_where where,
                              epw_memory *out) {
    if (bytes == 0 || bytes > (uint64_t)INT64_MAX - BLOCK_BYTES)
        return epw_fail(EPW_ERR_LIMIT, where, "a window of %llu bytes cannot be allocated",
                        (unsigned long long)bytes);
    epw_cuda_scope scope = {0};
    epw_status status = epw_cuda_open(ordinal, where);
    if (status == EPW_OK) status = epw_cuda_enter_relaxed(ordinal, where, &scope);
    if (status != EPW_OK) return status;
    *out = (epw_memory){.bytes = epw_align(bytes, BLOCK_BYTES), .fd = -1, .ordinal = ordinal};
    status = uuid_of(ordinal, where, out->origin.gpu);
    if (status == EPW_OK) status = allocate(paths, out->bytes, where, out);
    if (status == EPW_OK) {
        status = epw_cuda_zero(out->base, out->bytes, where);
        if (status != EPW_OK) free_memory(out);
    }
    epw_cuda_leave_relaxed(&scope);
    return status;
}

static epw_status cuda_adopt(int32_t ordinal, void *memory, uint64_t bytes, epw_where where,
                             epw_memory *out) {
    epw_cuda_scope scope = {0};
    epw_status status = epw_cuda_enter_relaxed(ordinal, where, &scope);
    if (status != EPW_OK) return status;
    *out = (epw_memory){.fd = -1, .ordinal = ordinal, .borrowed = true};
    status = check_is_on(ordinal, memory, where);
    if (status == EPW_OK) status = find_allocation(memory, bytes, where, out);
    if (status == EPW_OK) status = uuid_of(ordinal, where, out->origin.gpu);
    if (status == EPW_OK) status = export_allocation(where, out);
    epw_cuda_leave_relaxed(&scope);
    return status;
}

static void cuda_destroy(epw_memory *memory) {
    epw_cuda_scope scope = {0};
    if (epw_cuda_enter_relaxed(memory->ordinal, (epw_where){"destroy", -1, -1}, &scope)) return;
    free_memory(memory);
    epw_cuda_leave_relaxed(&scope);
}

static epw_status cuda_map(int32_t ordinal, const epw_origin *origin, int fd, uint64_t bytes,
                           uint64_t until_ns, epw_where where, epw_memory *out) {
    epw_cuda_scope scope = {0};
    int32_t owner;
    if (epw_now_ns() >= until_ns)
        return epw_fail(EPW_ERR_TIMEOUT, where,
                        "no time is left to map the peer's window: raise the deadline");
    epw_status status = epw_cuda_enter_relaxed(ordinal, where, &scope);
    if (status != EPW_OK) return status;
    *out = (epw_memory){.bytes = bytes, .fd = -1, .ordinal = ordinal, .origin = *origin};
    status = check_access(ordinal, origin, where, &owner);
    if (status == EPW_OK)
        status = origin->path == EPW_PATH_VMM ? vmm_import(ordinal, origin, fd, bytes, where, &out->base)
                                              : ipc_open(fd, bytes, where, &out->base);
    epw_cuda_leave_relaxed(&scope);
    return status;
}

static void cuda_unmap(epw_memory *memory) {
    epw_cuda_scope scope = {0};
    if (epw_cuda_enter_relaxed(memory->ordinal, (epw_where){"disconnect", -1, -1}, &scope)) return;
    if (memory->origin.path == EPW_PATH_VMM) {
        vmm_unmap(memory->base, memory->bytes);
    } else {
        (void)cudaIpcCloseMemHandle(memory->base);
    }
    epw_cuda_leave_relaxed(&scope);
    memory->base = NULL;
}

static epw_status cuda_share(const epw_memory *memory, int32_t ordinal, epw_where where) {
    epw_cuda_scope scope = {0};
    int32_t owner;
    if (ordinal == memory->ordinal) return EPW_OK;
    epw_status status = epw_cuda_enter_relaxed(ordinal, where, &scope);
    if (status != EPW_OK) return status;
    status = check_access(ordinal, &memory->origin, where, &owner);
    if (status == EPW_OK && memory->origin.path == EPW_PATH_VMM) {
        CUresult error = grant(memory->base, memory->bytes, ordinal);
        if (error != CUDA_SUCCESS) status = epw_fail_cuda((int)error, where, "cuMemSetAccess");
    } else if (status == EPW_OK) {
        cudaError_t error = cudaDeviceEnablePeerAccess(memory->ordinal, 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled) {
            (void)cudaGetLastError(); /* already as wanted */
        } else if (error != cudaSuccess) {
            status = epw_fail_cuda(error, where, "cudaDeviceEnablePeerAccess");
        }
    }
    epw_cuda_leave_relaxed(&scope);
    return status;
}

#else

static epw_status cuda_create(int32_t ordinal, uint32_t paths, uint64_t bytes, epw_where where,
                              epw_memory *out) {
    (void)paths, (void)bytes, (void)out;
    return epw_cuda_open(ordinal, where);
}

/* Never called, since no memory can be created. */
#define cuda_adopt   NULL
#define cuda_destroy NULL
#define cuda_map     NULL
#define cuda_unmap   NULL
#define cuda_share   NULL

#endif

const epw_device epw_device_cuda = {
    .name = "cuda",
    .create = cuda_create,
    .adopt = cuda_adopt,
    .destroy = cuda_destroy,
    .map = cuda_map,
    .unmap = cuda_unmap,
    .share = cuda_share,
};
