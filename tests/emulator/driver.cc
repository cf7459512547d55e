// The emulated GPUs' driver: devices, contexts, and memory that processes share. Addresses of GPUs are those of the process.
#include "devices.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <vector>

namespace emulated {

namespace {

constexpr size_t kPage = 4096, kGranularity = 2 << 20;
constexpr char kAllocation[] = "/memfd:emulated-gpu-memory", kPhysical[] = "/memfd:emulated-gpu-physical";

struct Allocation {
    size_t bytes;
    int fd; // -1: another process's memory
    int device;
    bool pooled = false;
};

std::mutex lock;
std::map<uintptr_t, Allocation> allocations; // by their address
size_t used[64];                             // of each GPU's memory

struct Physical {
    int fd;
    size_t bytes;
};
std::map<uintptr_t, Physical> mappings; // of whole physical memory, by their address

thread_local std::vector<int> contexts;
thread_local int set_device = 0;

int number(const char *name, int preset) {
    const char *text = getenv(name);
    return text != nullptr && atoi(text) > 0 ? atoi(text) : preset;
}

// A file in memory; many of them are open at a time.
int file_of(const char *name, size_t bytes) {
    static std::once_flag once;
    std::call_once(once, [] {
        rlimit most;
        if (getrlimit(RLIMIT_NOFILE, &most) != 0) return;
        most.rlim_cur = most.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &most);
    });
    const int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, off_t(bytes)) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

bool is_named(int fd, const char *name) {
    char path[64], target[128];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(path, target, sizeof target - 1);
    return length > 0 && strncmp(target, name, strlen(name)) == 0;
}

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

struct IpcName {
    uint64_t magic;
    int32_t pid, fd;
    uint64_t bytes, offset;
};
constexpr uint64_t kMagic = 0x656d756c61746564;

} // namespace

bool is_set(const char *name) {
    const char *text = getenv(name);
    return text != nullptr && atoi(text) > 0;
}

int device_count() {
    static const int count = number("EMULATED_GPUS", 2);
    return count < 64 ? count : 64;
}
int sms_per_device() {
    static const int sms = number("EMULATED_GPU_SMS", 8);
    return sms;
}
size_t memory_bytes() { return size_t(8) << 30; }

int current_device() { return contexts.empty() ? set_device : contexts.back(); }
void set_current_device(int device) {
    if (contexts.empty()) {
        set_device = device;
    } else {
        contexts.back() = device;
    }
}
CUresult push(int device) {
    contexts.push_back(device);
    return CUDA_SUCCESS;
}
CUresult pop(int *device) {
    if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = contexts.back();
    contexts.pop_back();
    return CUDA_SUCCESS;
}

size_t free_bytes(int device) {
    const std::lock_guard<std::mutex> guard(lock);
    return memory_bytes() - used[device];
}

CUresult allocate(size_t bytes, int device, void **out) {
    const size_t whole = whole_pages(bytes);
    if (whole == 0 || whole > memory_bytes()) return whole == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    const std::lock_guard<std::mutex> guard(lock);
    if (used[device] + whole > memory_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
    const int fd = file_of(kAllocation + 7, whole);
    if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    void *memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    used[device] += whole;
    allocations[uintptr_t(memory)] = {whole, fd, device, false};
    *out = memory;
    return CUDA_SUCCESS;
}

CUresult release(void *memory) {
    const std::lock_guard<std::mutex> guard(lock);
    const auto found = allocations.find(uintptr_t(memory));
    if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
    munmap(memory, found->second.bytes);
    if (found->second.fd >= 0) {
        used[found->second.device] -= found->second.bytes;
        close(found->second.fd);
    }
    allocations.erase(found);
    return CUDA_SUCCESS;
}

bool find_allocation(const void *address, void **base, size_t *bytes) {
    const std::lock_guard<std::mutex> guard(lock);
    auto found = allocations.upper_bound(uintptr_t(address));
    if (found == allocations.begin()) return false;
    --found;
    if (uintptr_t(address) - found->first >= found->second.bytes) return false;
    *base = reinterpret_cast<void *>(found->first);
    *bytes = found->second.bytes;
    return true;
}

// Whether it lies in the memory of a GPU, also in what is mapped by a handle.
static bool is_of_gpu(const void *address) {
    void *base;
    size_t bytes;
    if (find_allocation(address, &base, &bytes)) return true;
    const std::lock_guard<std::mutex> guard(lock);
    auto found = mappings.upper_bound(uintptr_t(address));
    if (found == mappings.begin()) return false;
    --found;
    return uintptr_t(address) - found->first < found->second.bytes;
}

bool find_device(const void *address, int *device, bool *pooled) {
    void *base;
    size_t bytes;
    if (!find_allocation(address, &base, &bytes)) return false;
    const std::lock_guard<std::mutex> guard(lock);
    *device = allocations[uintptr_t(base)].device;
    *pooled = allocations[uintptr_t(base)].pooled;
    return true;
}

bool is_of_other_gpu(const void *address, int device) {
    void *base;
    size_t bytes;
    if (!find_allocation(address, &base, &bytes)) return false;
    const std::lock_guard<std::mutex> guard(lock);
    const Allocation &at = allocations[uintptr_t(base)];
    return at.fd >= 0 && at.device != device;
}

void put_into_pool(void *memory) {
    const std::lock_guard<std::mutex> guard(lock);
    allocations[uintptr_t(memory)].pooled = true;
}

CUresult name_allocation(const void *memory, CUipcMemHandle *out) {
    void *base;
    size_t bytes;
    if (!find_allocation(memory, &base, &bytes)) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard<std::mutex> guard(lock);
    const IpcName name = {kMagic, getpid(), allocations[uintptr_t(base)].fd, bytes,
                          uint64_t(uintptr_t(memory) - uintptr_t(base))};
    static_assert(sizeof name <= sizeof *out);
    memset(out, 0, sizeof *out);
    memcpy(out, &name, sizeof name);
    return name.fd < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult open_allocation(const CUipcMemHandle *handle, void **out) {
    IpcName name;
    memcpy(&name, handle, sizeof name);
    if (name.magic != kMagic || name.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT; // as a driver does for its own process
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name.pid, name.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
    void *memory = is_named(fd, kAllocation) ? mmap(nullptr, name.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (memory == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard<std::mutex> guard(lock);
    allocations[uintptr_t(memory)] = {name.bytes, -1, 0, false};
    *out = static_cast<unsigned char *>(memory) + name.offset;
    return CUDA_SUCCESS;
}

namespace {

// ---- The functions of libcuda that epwire looks up

CUresult device_get(CUdevice *device, int ordinal) {
    if (ordinal < 0 || ordinal >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice) {
    constexpr auto kMulticast = CUdevice_attribute(132); // in headers from CUDA 12.1 on
    switch (attribute) {
    case kMulticast: // switches join the GPUs, so that lines are whole: see kernels/ptx/memory.cuh
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *value = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
        *value = !is_set("EMULATED_GPU_NO_DMABUF") && !is_set("EMULATED_GPU_UNREACHED");
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = sms_per_device();
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
        *value =
            is_set("EMULATED_GPU_UNORDERED") ? CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE : CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
        return CUDA_SUCCESS;
    default:
        *value = 0;
        return CUDA_SUCCESS;
    }
}

CUresult device_get_uuid(CUuuid *uuid, CUdevice device) {
    memcpy(uuid->bytes, "emulated GPU   ", sizeof uuid->bytes);
    uuid->bytes[15] = char(device);
    return CUDA_SUCCESS;
}

// A context is its device's number plus one, for it may not be null.
CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(uintptr_t(device) + 1); }

CUresult context_retain(CUcontext *out, CUdevice device) {
    *out = context_of(device);
    return CUDA_SUCCESS;
}
CUresult context_push(CUcontext context) { return push(int(reinterpret_cast<uintptr_t>(context) - 1)); }
CUresult context_pop(CUcontext *out) {
    int device = 0;
    const CUresult error = pop(&device);
    if (error == CUDA_SUCCESS) *out = context_of(device);
    return error;
}

CUresult address_reserve(CUdeviceptr *out, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
    void *at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = uintptr_t(at);
    return CUDA_SUCCESS;
}
CUresult address_free(CUdeviceptr at, size_t bytes) {
    return munmap(reinterpret_cast<void *>(at), bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

Physical *physical_of(CUmemGenericAllocationHandle handle) { return reinterpret_cast<Physical *>(handle); }

CUresult create(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *, unsigned long long) {
    if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > memory_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
    const int fd = file_of(kPhysical + 7, bytes);
    if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = reinterpret_cast<CUmemGenericAllocationHandle>(new Physical{fd, bytes});
    return CUDA_SUCCESS;
}
CUresult release_physical(CUmemGenericAllocationHandle handle) {
    close(physical_of(handle)->fd);
    delete physical_of(handle);
    return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long) {
    const Physical *p = physical_of(handle);
    if (offset > p->bytes || bytes > p->bytes - offset) return CUDA_ERROR_INVALID_VALUE;
    void *mapped = mmap(reinterpret_cast<void *>(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, p->fd, off_t(offset));
    if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    const std::lock_guard<std::mutex> guard(lock);
    if (offset == 0) mappings[at] = {fcntl(p->fd, F_DUPFD_CLOEXEC, 0), bytes};
    return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr at, size_t bytes) {
    {
        const std::lock_guard<std::mutex> guard(lock);
        const auto found = mappings.find(at);
        if (found != mappings.end()) close(found->second.fd);
        mappings.erase(at);
    }
    void *gone =
        mmap(reinterpret_cast<void *>(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return gone == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
// Access is not a GPU's own: whoever is granted it first, grants it to the process.
CUresult get_access(unsigned long long *flags, const CUmemLocation *, CUdeviceptr) {
    *flags = 0;
    return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *, size_t) {
    return mprotect(reinterpret_cast<void *>(at), bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult granularity(size_t *out, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) {
    *out = kGranularity;
    return CUDA_SUCCESS;
}
CUresult export_handle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType, unsigned long long) {
    const int fd = fcntl(physical_of(handle)->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
    memcpy(out, &fd, sizeof fd);
    return CUDA_SUCCESS;
}
CUresult import_handle(CUmemGenericAllocationHandle *out, void *descriptor, CUmemAllocationHandleType) {
    struct stat facts;
    const int fd = fcntl(int(reinterpret_cast<intptr_t>(descriptor)), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
    if (!is_named(fd, kPhysical) || fstat(fd, &facts) != 0) {
        close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = reinterpret_cast<CUmemGenericAllocationHandle>(new Physical{fd, size_t(facts.st_size)});
    return CUDA_SUCCESS;
}
CUresult address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr at) {
    void *found;
    if (!find_allocation(reinterpret_cast<void *>(at), &found, bytes)) return CUDA_ERROR_NOT_FOUND;
    *base = uintptr_t(found);
    return CUDA_SUCCESS;
}
// There are no callers with VMM memory of their own.
CUresult retain_handle(CUmemGenericAllocationHandle *, void *) { return CUDA_ERROR_INVALID_VALUE; }
CUresult pointer_get(void *out, CUpointer_attribute attribute, CUdeviceptr at) {
    int device;
    bool pooled;
    if (!find_device(reinterpret_cast<void *>(at), &device, &pooled)) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *static_cast<int *>(out) = !pooled;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *static_cast<uintptr_t *>(out) = pooled;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}
// Of memory that was mapped by a handle, from its beginning.
CUresult range_handle(void *out, CUdeviceptr at, size_t bytes, CUmemRangeHandleType, unsigned long long) {
    const std::lock_guard<std::mutex> guard(lock);
    const auto found = mappings.find(at);
    if (is_set("EMULATED_GPU_NO_DMABUF") || is_set("EMULATED_GPU_UNREACHED") || found == mappings.end() ||
        bytes > found->second.bytes)
        return CUDA_ERROR_NOT_SUPPORTED;
    const int fd = fcntl(found->second.fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
    memcpy(out, &fd, sizeof fd);
    return CUDA_SUCCESS;
}
CUresult pointer_set(const void *, CUpointer_attribute, CUdeviceptr) { return CUDA_SUCCESS; }

struct Function {
    const char *name;
    void *function;
};

} // namespace

void *driver_function(const char *name) {
    static const Function functions[] = {
        {"cuDeviceGet", reinterpret_cast<void *>(device_get)},
        {"cuDeviceGetAttribute", reinterpret_cast<void *>(device_get_attribute)},
        {"cuDeviceGetUuid", reinterpret_cast<void *>(device_get_uuid)},
        {"cuDevicePrimaryCtxRetain", reinterpret_cast<void *>(context_retain)},
        {"cuCtxPushCurrent", reinterpret_cast<void *>(context_push)},
        {"cuCtxPopCurrent", reinterpret_cast<void *>(context_pop)},
        {"cuMemAddressReserve", reinterpret_cast<void *>(address_reserve)},
        {"cuMemAddressFree", reinterpret_cast<void *>(address_free)},
        {"cuMemCreate", reinterpret_cast<void *>(create)},
        {"cuMemRelease", reinterpret_cast<void *>(release_physical)},
        {"cuMemMap", reinterpret_cast<void *>(map)},
        {"cuMemUnmap", reinterpret_cast<void *>(unmap)},
        {"cuMemGetAccess", reinterpret_cast<void *>(get_access)},
        {"cuMemSetAccess", reinterpret_cast<void *>(set_access)},
        {"cuMemGetAllocationGranularity", reinterpret_cast<void *>(granularity)},
        {"cuMemExportToShareableHandle", reinterpret_cast<void *>(export_handle)},
        {"cuMemImportFromShareableHandle", reinterpret_cast<void *>(import_handle)},
        {"cuMemRetainAllocationHandle", reinterpret_cast<void *>(retain_handle)},
        {"cuMemGetAddressRange", reinterpret_cast<void *>(address_range)},
        {"cuMemGetHandleForAddressRange", reinterpret_cast<void *>(range_handle)},
        {"cuPointerGetAttribute", reinterpret_cast<void *>(pointer_get)},
        {"cuPointerSetAttribute", reinterpret_cast<void *>(pointer_set)},
    };
    for (const Function &f : functions) {
        if (strcmp(f.name, name) == 0) return f.function;
    }
    return nullptr;
}

} // namespace emulated

// By this an adapter in software sees whether there is memory at an address, as the kernel does for a real one.
extern "C" ssize_t process_vm_readv(pid_t pid, const iovec *to, unsigned long to_count, const iovec *from,
                                    unsigned long from_count, unsigned long flags) noexcept {
    if (pid == getpid() && from_count > 0 && emulated::is_set("EMULATED_GPU_UNREACHED") && emulated::is_of_gpu(from->iov_base)) {
        errno = EFAULT;
        return -1;
    }
    return syscall(SYS_process_vm_readv, pid, to, to_count, from, from_count, flags);
}
