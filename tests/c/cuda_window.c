/* Who may use a GPU's window, and where each process finds it, without a GPU: the source is compiled here
 * with a driver in place of CUDA whose physical memory is a memfd and whose addresses are those of this
 * process. tests/gpu tests the real driver. */
#include "needs_cuda.h"

#ifdef EPW_CUDA

#include "check.h"
#include "device/cuda.h"
#include "device/cuda_driver.h"

#include <cuda_runtime_api.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the driver ---- */

enum { GPUS = 2, BYTES = 4 << 20 };

static struct fake {
    int depth;      /* scopes entered and not left */
    int accessible; /* GPUs can access each other's memory */
    int asked;      /* number of such queries */
    int reserved;   /* reserved ranges of addresses */
    int mapped;     /* of these, the ones with memory */
    int granted[GPUS];
    int refuses_adapters; /* adapters cannot use VMM memory */
    /* The memory of the caller's: */
    CUdeviceptr base;
    CUmemGenericAllocationHandle handle; /* 0: it has none */
    enum cudaMemoryType kind;
    int device, pooled;
} fake;

static CUresult fake_device_get(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}
static CUresult fake_device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    *value =
        attribute != CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED || !fake.refuses_adapters;
    return CUDA_SUCCESS;
}
static CUresult fake_device_get_uuid(CUuuid *uuid, CUdevice device) {
    memset(uuid->bytes, 1 + device, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}
static CUresult fake_granularity(size_t *bytes, const CUmemAllocationProp *properties,
                                 CUmemAllocationGranularity_flags flags) {
    (void)properties, (void)flags;
    *bytes = 2 << 20;
    return CUDA_SUCCESS;
}
static CUresult fake_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *properties, unsigned long long flags) {
    int fd = memfd_create("physical", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && flags == 0);
    CHECK(properties->location.id >= 0 && properties->location.id < GPUS);
    CHECK(properties->allocFlags.gpuDirectRDMACapable == !fake.refuses_adapters);
    *handle = (CUmemGenericAllocationHandle)fd;
    return CUDA_SUCCESS;
}
static CUresult fake_release(CUmemGenericAllocationHandle handle) {
    return close((int)handle) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult fake_export(void *fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                            unsigned long long flags) {
    CHECK(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && flags == 0);
    *(int *)fd = dup((int)handle);
    return CUDA_SUCCESS;
}
static CUresult fake_import(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type) {
    CHECK(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    int own = dup((int)(uintptr_t)fd);
    *handle = (CUmemGenericAllocationHandle)own;
    return own >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult fake_reserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
    (void)alignment, (void)wanted, (void)flags;
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED);
    fake.reserved++;
    *at = (CUdeviceptr)(uintptr_t)base;
    return CUDA_SUCCESS;
}
static CUresult fake_address_free(CUdeviceptr at, size_t bytes) {
    fake.reserved--;
    return munmap((void *)(uintptr_t)at, bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult fake_map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
    struct stat stat;
    (void)flags;
    if (fstat((int)handle, &stat) || offset != 0 || stat.st_size < (off_t)bytes)
        return CUDA_ERROR_INVALID_VALUE;
    void *base = (void *)(uintptr_t)at;
    CHECK(mmap(base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, 0) == base);
    fake.mapped++;
    return CUDA_SUCCESS;
}
/* The access that each GPU has been granted, by a mapping's first byte; 0: unused. */
static CUdeviceptr grants[GPUS][16];

static CUdeviceptr *find_grant(int gpu, CUdeviceptr at) {
    for (size_t i = 0; i < sizeof grants[0] / sizeof grants[0][0]; i++) {
        if (grants[gpu][i] == at) return &grants[gpu][i];
    }
    return NULL;
}
static CUresult fake_unmap(CUdeviceptr at, size_t bytes) {
    for (int gpu = 0; gpu < GPUS; gpu++) {
        CUdeviceptr *grant = find_grant(gpu, at);
        if (grant != NULL) *grant = 0;
    }
    fake.mapped--;
    return mprotect((void *)(uintptr_t)at, bytes, PROT_NONE) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult fake_get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr at) {
    *flags = find_grant(location->id, at) != NULL ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
    return CUDA_SUCCESS;
}
static CUresult fake_set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    CHECK(count == 1 && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (find_grant(access->location.id, at) != NULL)
        return CUDA_ERROR_ALREADY_MAPPED; /* as real drivers do */
    CUdeviceptr *grant = find_grant(access->location.id, 0);
    CHECK(grant != NULL);
    *grant = at;
    fake.granted[access->location.id]++;
    return mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS
                                                                               : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr at) {
    CHECK(at >= fake.base && at < fake.base + BYTES);
    *base = fake.base;
    *bytes = BYTES;
    return CUDA_SUCCESS;
}
static CUresult fake_retain(CUmemGenericAllocationHandle *handle, void *at) {
    CHECK((CUdeviceptr)(uintptr_t)at == fake.base);
    *handle = (CUmemGenericAllocationHandle)dup((int)fake.handle);
    return fake.handle != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult fake_pointer_get(void *out, CUpointer_attribute attribute, CUdeviceptr at) {
    CHECK(at == fake.base);
    if (attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) *(CUmemoryPool *)out = fake.pooled ? out : NULL;
    return CUDA_SUCCESS; /* and it has no CUDA IPC handle */
}

static const epw_cuda_driver *fake_driver(void) {
    static const epw_cuda_driver driver = {
        .device_get = fake_device_get,
        .device_get_attribute = fake_device_get_attribute,
        .device_get_uuid = fake_device_get_uuid,
        .address_reserve = fake_reserve,
        .address_free = fake_address_free,
        .create = fake_create,
        .release = fake_release,
        .map = fake_map,
        .unmap = fake_unmap,
        .get_access = fake_get_access,
        .set_access = fake_set_access,
        .granularity = fake_granularity,
        .export_handle = fake_export,
        .import_handle = fake_import,
        .retain_handle = fake_retain,
        .address_range = fake_address_range,
        .pointer_get = fake_pointer_get,
    };
    CHECK(fake.depth == 1);
    return &driver;
}

/* ---- the runtime, and the functions of c/device/cuda.c ---- */

static cudaError_t fake_device_count(int *count) {
    *count = GPUS;
    return cudaSuccess;
}
static cudaError_t fake_can_access(int *can, int from, int to) {
    CHECK(from != to); /* a GPU has no peer access to itself */
    fake.asked++;
    *can = fake.accessible;
    return cudaSuccess;
}
static cudaError_t fake_pointer_attributes(struct cudaPointerAttributes *out, const void *memory) {
    (void)memory;
    *out = (struct cudaPointerAttributes){.type = fake.kind, .device = fake.device};
    return cudaSuccess;
}
static epw_status fake_open(int32_t ordinal, epw_where where) {
    (void)where;
    CHECK(ordinal >= 0 && ordinal < GPUS);
    return EPW_OK;
}
static epw_status fake_enter_relaxed(int32_t ordinal, epw_where where, epw_cuda_scope *scope) {
    scope->capture_mode = 7;
    fake.depth++;
    return fake_open(ordinal, where);
}
static void fake_leave_relaxed(const epw_cuda_scope *scope) {
    CHECK(scope->capture_mode == 7);
    fake.depth--;
}
static epw_status fake_zero(void *memory, uint64_t bytes, epw_where where) {
    memset(memory, 0, bytes);
    (void)where;
    return EPW_OK;
}

#define cudaGetDeviceCount       fake_device_count
#define cudaDeviceCanAccessPeer  fake_can_access
#define cudaPointerGetAttributes fake_pointer_attributes
#define epw_cuda_driver_get      fake_driver
#define epw_cuda_open            fake_open
#define epw_cuda_enter_relaxed   fake_enter_relaxed
#define epw_cuda_leave_relaxed   fake_leave_relaxed
#define epw_cuda_zero            fake_zero
#define epw_device_cuda          tested_device /* the library has its own */
#include "../../c/device/cuda_window.c"

/* ---- tests ---- */

static const epw_where here = {"connect", 1, 0};

/* A window of GPU 0. */
static epw_memory make_window(int accessible) {
    fake = (struct fake){.accessible = accessible};
    epw_memory window;
    CHECK_OK(tested_device.create(0, EPW_PATH_VMM | EPW_PATH_IPC, BYTES - 1, here, &window));
    CHECK(window.bytes == BYTES && window.origin.path == EPW_PATH_VMM && window.ordinal == 0);
    CHECK(fake.granted[0] == 1 && fake.granted[1] == 0 && fake.mapped == 1);
    window.base[BYTES - 1] = 7;
    return window;
}

static void destroy(epw_memory *window) {
    tested_device.destroy(window);
    CHECK(fake.mapped == 0 && fake.reserved == 0 && fake.depth == 0);
}

static void ranks_of_a_process_share_a_gpu_at_one_address(void) {
    epw_memory window = make_window(0);
    CHECK_OK(tested_device.share(&window, 0, here));
    CHECK(fake.asked == 0 && fake.granted[0] == 1 && fake.mapped == 1);
    CHECK(window.base[BYTES - 1] == 7);
    destroy(&window);
}

static void processes_on_a_gpu_map_the_same_memory(void) {
    epw_memory window = make_window(0), import;
    CHECK_OK(tested_device.map(0, &window.origin, window.fd, window.bytes, UINT64_MAX, here, &import));
    CHECK(fake.asked == 0 && fake.granted[0] == 2 && fake.granted[1] == 0);
    CHECK(import.base != window.base && import.base[BYTES - 1] == 7 && import.fd == -1);
    import.base[0] = 9;
    CHECK(window.base[0] == 9);
    tested_device.unmap(&import);
    CHECK(fake.mapped == 1 && window.base[0] == 9);
    destroy(&window);
}

static void another_gpu_is_let_in_where_it_can_reach_the_window(void) {
    epw_memory window = make_window(1), import;
    CHECK_OK(tested_device.share(&window, 1, here));
    CHECK_OK(tested_device.share(&window, 1, here)); /* with another rank on that GPU */
    CHECK(fake.asked == 2 && fake.granted[1] == 1 && fake.mapped == 1);
    CHECK_OK(tested_device.map(1, &window.origin, window.fd, window.bytes, UINT64_MAX, here, &import));
    CHECK(fake.asked == 3 && fake.granted[1] == 2 && import.ordinal == 1);
    tested_device.unmap(&import);
    destroy(&window);
}

static void another_gpu_that_can_not_reach_it_is_named(void) {
    epw_memory window = make_window(0), import;
    CHECK(tested_device.share(&window, 1, here) == EPW_ERR_NO_PATH);
    CHECK(strstr(epw_last_error(), "GPU 1 (GPU-02020202-") && strstr(epw_last_error(), "(GPU-01010101-"));
    CHECK(tested_device.map(1, &window.origin, window.fd, window.bytes, UINT64_MAX, here, &import) ==
          EPW_ERR_NO_PATH);
    CHECK(fake.granted[1] == 0 && fake.mapped == 1);
    destroy(&window);
}

static void memory_that_is_too_short_is_refused(void) {
    epw_memory window = make_window(1), import;
    CHECK(tested_device.map(0, &window.origin, window.fd, 2 * BYTES, UINT64_MAX, here, &import) ==
          EPW_ERR_PEER);
    CHECK(strstr(epw_last_error(), "less GPU memory than a window of 8388608 bytes"));
    CHECK(fake.mapped == 1 && fake.reserved == 1);
    destroy(&window);
}

static void nothing_is_mapped_once_it_is_too_late(void) {
    epw_memory window = make_window(1), import;
    CHECK(tested_device.map(0, &window.origin, window.fd, window.bytes, 1, here, &import) == EPW_ERR_TIMEOUT);
    CHECK(fake.mapped == 1 && fake.reserved == 1 && fake.depth == 0);
    destroy(&window);
}

/* The memory of a window stands for memory that the caller has mapped. */
static epw_memory make_memory(void) {
    epw_memory memory = make_window(1);
    fake.base = (CUdeviceptr)(uintptr_t)memory.base;
    fake.handle = (CUmemGenericAllocationHandle)memory.fd;
    fake.kind = cudaMemoryTypeDevice;
    return memory;
}

static void memory_of_the_caller_is_mapped_and_not_freed(void) {
    epw_memory memory = make_memory(), adopted, import;
    CHECK_OK(tested_device.adopt(0, memory.base + 4096, BYTES / 2, here, &adopted));
    CHECK(adopted.base == memory.base && adopted.bytes == BYTES && adopted.origin.path == EPW_PATH_VMM);
    CHECK(!memcmp(&adopted.origin, &memory.origin, sizeof memory.origin));
    CHECK_OK(tested_device.map(1, &adopted.origin, adopted.fd, adopted.bytes, UINT64_MAX, here, &import));
    CHECK(import.base[BYTES - 1] == 7);
    tested_device.unmap(&import);
    tested_device.destroy(&adopted);
    CHECK(fake.mapped == 1 && memory.base[BYTES - 1] == 7);
    destroy(&memory);
}

static void require_refused(const epw_memory *memory, uint64_t bytes, const char *text) {
    epw_memory adopted;
    CHECK(tested_device.adopt(0, memory->base, bytes, here, &adopted) == EPW_ERR_INVALID);
    CHECK_MSG(strstr(epw_last_error(), text) != NULL, "%s", epw_last_error());
    CHECK(fake.depth == 0);
}

static void memory_that_peers_cannot_map_is_refused(void) {
    epw_memory memory = make_memory();
    require_refused(&memory, BYTES + 1, "bytes is 4194305");
    fake.kind = cudaMemoryTypeManaged;
    require_refused(&memory, BYTES, "memory is managed memory");
    fake.kind = cudaMemoryTypeHost;
    require_refused(&memory, BYTES, "memory is not memory of a GPU");
    fake.kind = cudaMemoryTypeDevice;
    fake.device = 1;
    require_refused(&memory, BYTES, "memory is on GPU 1, config.device is 0");
    fake.device = 0;
    fake.pooled = 1;
    require_refused(&memory, BYTES, "memory is of a pool");
    fake.pooled = 0;
    fake.handle = 0;
    require_refused(&memory, BYTES, "memory has no handle");
    destroy(&memory);
}

int main(void) {
    ranks_of_a_process_share_a_gpu_at_one_address();
    processes_on_a_gpu_map_the_same_memory();
    another_gpu_is_let_in_where_it_can_reach_the_window();
    another_gpu_that_can_not_reach_it_is_named();
    memory_that_is_too_short_is_refused();
    nothing_is_mapped_once_it_is_too_late();
    memory_of_the_caller_is_mapped_and_not_freed();
    memory_that_peers_cannot_map_is_refused();
    return check_result("cuda_window");
}
#endif
