/* See cuda.h. */
#include "device/cuda.h"

#ifdef EPW_CUDA

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/gpu.h"
#include "device/cuda_driver.h"

#define MAX_GPUS  64 /* the most GPU ordinals of a process */
#define MIN_MAJOR 9  /* compute capability of the oldest GPU that the kernels are written for */
#define PAGE      UINT64_C(4096)

/* Primary contexts, NULL until opened. They stay retained until the process ends, as the CUDA runtime keeps
 * them: releasing one could destroy it while the program uses it. Written with the lock held. */
static _Atomic(CUcontext) contexts[MAX_GPUS];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

/* ---- errors ------------------------------------------------------------------------------------- */

epw_status epw_fail_cuda(int error, epw_where where, const char *call) {
    (void)cudaGetLastError(); /* a program that reads the runtime's last error must not find one of ours */
    cudaError_t known = (cudaError_t)error;
    epw_status code = known == cudaErrorMemoryAllocation ? EPW_ERR_NO_MEMORY : EPW_ERR_SYSTEM;
    return epw_fail(code, where, "%s: %s: %s (CUDA error %d)", call, cudaGetErrorName(known),
                    cudaGetErrorString(known), error);
}

epw_status epw_fail_cuda_bytes(int error, epw_where where, const char *call, uint64_t bytes, int32_t ordinal,
                               const char *hint) {
    char text[256];
    snprintf(text, sizeof text, "%s of %llu bytes for GPU %d%s", call, (unsigned long long)bytes,
             (int)ordinal, error == cudaErrorMemoryAllocation ? hint : "");
    return epw_fail_cuda(error, where, text);
}

/* Why cudaGetDeviceCount found nothing. */
static epw_status no_gpu(cudaError_t error, epw_where where) {
    (void)cudaGetLastError();
    int has = 0;
    if (error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary) {
        if (cudaDriverGetVersion(&has) == cudaSuccess && has > 0)
            return epw_fail(
                EPW_ERR_NO_PATH, where,
                "the NVIDIA driver knows CUDA up to %d.%d, this build needs %d.%d: install a newer "
                "driver, or build epwire with an older CUDA toolkit",
                has / 1000, has % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
        (void)cudaGetLastError();
        return epw_fail(EPW_ERR_NO_PATH, where,
                        "no NVIDIA driver: libcuda.so.1 cannot be found; install the driver, start the "
                        "container with its GPUs, or use EPW_DEVICE_HOST (-1)");
    }
    if (error == cudaErrorNoDevice)
        return epw_fail(
            EPW_ERR_NO_PATH, where,
            "the NVIDIA driver shows no GPU: see nvidia-smi and CUDA_VISIBLE_DEVICES (%s), or use "
            "EPW_DEVICE_HOST (-1)",
            getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "not set");
    return epw_fail_cuda(error, where, "cudaGetDeviceCount");
}

/* ---- opening ------------------------------------------------------------------------------------ */

epw_status epw_cuda_count(epw_where where, int *count) {
    cudaError_t error = cudaGetDeviceCount(count);
    return error == cudaSuccess ? EPW_OK : no_gpu(error, where);
}

static epw_status check_gpu(int32_t ordinal, epw_where where) {
    int count = 0, major = 0, minor = 0, shared = 0;
    epw_status status = epw_cuda_count(where, &count);
    if (status != EPW_OK) return status;
    if (ordinal >= count || ordinal >= MAX_GPUS)
        return epw_fail(EPW_ERR_NO_PATH, where,
                        "device is %d, but this process sees GPUs 0 to %d; CUDA_VISIBLE_DEVICES (%s) decides "
                        "which",
                        ordinal, (count < MAX_GPUS ? count : MAX_GPUS) - 1,
                        getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "not set");
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
    if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaDeviceGetAttribute");
    if (major < MIN_MAJOR)
        return epw_fail(EPW_ERR_NO_PATH, where,
                        "GPU %d has compute capability %d.%d, the kernels need %d.0 (Hopper) or newer",
                        ordinal, major, minor, MIN_MAJOR);
    if (shared >= (int)EPW_GPU_SM_MEMORY) return EPW_OK;
    return epw_fail(
        EPW_ERR_NO_PATH, where,
        "GPU %d (compute capability %d.%d) has %d bytes of shared memory for a block, the kernels "
        "need %u",
        ordinal, major, minor, shared, EPW_GPU_SM_MEMORY);
}

/* Called with the lock held. */
static epw_status open_context(int32_t ordinal, epw_where where) {
    if (atomic_load_explicit(&contexts[ordinal], memory_order_relaxed)) return EPW_OK;
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    CUdevice device;
    CUcontext context;
    CUresult error = driver->device_get(&device, ordinal);
    if (error != CUDA_SUCCESS) return epw_fail_cuda((int)error, where, "cuDeviceGet");
    error = driver->context_retain(&context, device);
    if (error != CUDA_SUCCESS) return epw_fail_cuda((int)error, where, "cuDevicePrimaryCtxRetain");
    /* release: a thread that acquires the context also sees the driver's functions */
    atomic_store_explicit(&contexts[ordinal], context, memory_order_release);
    return EPW_OK;
}

static CUcontext context_of(int32_t ordinal) {
    if (ordinal < 0 || ordinal >= MAX_GPUS) return NULL;
    return atomic_load_explicit(&contexts[ordinal], memory_order_acquire);
}

epw_status epw_cuda_open(int32_t ordinal, epw_where where) {
    if (ordinal < 0)
        return epw_fail(EPW_ERR_INVALID, where, "device is %d, must be the ordinal of a GPU, from 0",
                        ordinal);
    if (context_of(ordinal)) return EPW_OK;
    /* Creating a context allocates, which is legal beside a capture only in relaxed capture mode on this
     * thread. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    epw_status status = check_gpu(ordinal, where);
    if (status == EPW_OK) status = epw_cuda_driver_load(where);
    if (status != EPW_OK) return status;
    pthread_mutex_lock(&opening);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    status = open_context(ordinal, where);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    pthread_mutex_unlock(&opening);
    return status;
}

epw_status epw_cuda_sms(int32_t ordinal, epw_where where, uint32_t *sms) {
    int count = 0;
    cudaError_t error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal);
    if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaDeviceGetAttribute");
    *sms = (uint32_t)count;
    return EPW_OK;
}

enum {
    MULTICAST_SUPPORTED = 132 /* CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, in headers from CUDA 12.1 on */
};

/* The driver does not tell how GPUs are joined, but only switches of NVLink support multicast. */
bool epw_cuda_keeps_lines(int32_t ordinal) {
    const epw_cuda_driver *driver = epw_cuda_driver_get();
    CUdevice device;
    int switched = 0;
    if (epw_cuda_open(ordinal, (epw_where){"create", -1, -1}) != EPW_OK) return false;
    if (driver->device_get(&device, ordinal) != CUDA_SUCCESS) return false;
    CUresult asked = driver->device_get_attribute(&switched, (CUdevice_attribute)MULTICAST_SUPPORTED, device);
    return asked == CUDA_SUCCESS && switched;
}

/* ---- scopes ------------------------------------------------------------------------------------- */

/* Uses the driver's context stack instead of cudaSetDevice: restoring the caller's device with cudaSetDevice
 * would create a context of hundreds of megabytes there if the caller had none. */
epw_status epw_cuda_enter(int32_t ordinal, epw_where where) {
    CUcontext context = context_of(ordinal);
    if (context == NULL) return epw_fail(EPW_ERR_STATE, where, "GPU %d has not been opened", ordinal);
    CUresult error = epw_cuda_driver_get()->context_push(context);
    return error == CUDA_SUCCESS ? EPW_OK : epw_fail_cuda((int)error, where, "cuCtxPushCurrent");
}

void epw_cuda_leave(void) {
    CUcontext popped;
    (void)epw_cuda_driver_get()->context_pop(&popped);
}

epw_status epw_cuda_enter_relaxed(int32_t ordinal, epw_where where, epw_cuda_scope *scope) {
    epw_status status = epw_cuda_enter(ordinal, where);
    if (status != EPW_OK) return status;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
    if (error != cudaSuccess) {
        epw_cuda_leave();
        return epw_fail_cuda(error, where, "cudaThreadExchangeStreamCaptureMode");
    }
    scope->capture_mode = (int)mode;
    return EPW_OK;
}

void epw_cuda_leave_relaxed(const epw_cuda_scope *scope) {
    enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)scope->capture_mode;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    epw_cuda_leave();
}

/* ---- memory and streams ------------------------------------------------------------------------- */

epw_status epw_cuda_zero(void *memory, uint64_t bytes, epw_where where) {
    /* Not the default stream: that would wait for the program's work, and would fail while the program
     * captures it. */
    cudaStream_t stream;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaStreamCreateWithFlags");
    error = cudaMemsetAsync(memory, 0, bytes, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
    return error == cudaSuccess ? EPW_OK : epw_fail_cuda(error, where, "zeroing device memory");
}

epw_status epw_cuda_alloc(int32_t ordinal, uint64_t bytes, epw_where where, void **out) {
    epw_cuda_scope scope = {0};
    epw_status status = epw_cuda_enter_relaxed(ordinal, where, &scope);
    if (status != EPW_OK) return status;
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error != cudaSuccess) {
        status = epw_fail_cuda_bytes(error, where, "cudaMalloc", bytes, ordinal, "");
    } else {
        status = epw_cuda_zero(memory, bytes, where);
        if (status != EPW_OK) (void)cudaFree(memory);
    }
    epw_cuda_leave_relaxed(&scope);
    if (status == EPW_OK) *out = memory;
    return status;
}

/* The scope of calls that cannot report errors. */
static const epw_where releasing = {"destroy", -1, -1};

void epw_cuda_free(int32_t ordinal, void *memory) {
    epw_cuda_scope scope = {0};
    if (memory == NULL || epw_cuda_enter_relaxed(ordinal, releasing, &scope)) return;
    if (cudaFree(memory) != cudaSuccess) (void)cudaGetLastError();
    epw_cuda_leave_relaxed(&scope);
}

static epw_status pin(int32_t ordinal, void *memory, uint64_t bytes, epw_where where, void **device) {
    cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (error != cudaSuccess)
        return epw_fail_cuda_bytes(error, where, "cudaHostRegister", bytes, ordinal, "");
    error = cudaHostGetDevicePointer(device, memory, 0);
    if (error == cudaSuccess) return EPW_OK;
    (void)cudaHostUnregister(memory);
    return epw_fail_cuda(error, where, "cudaHostGetDevicePointer");
}

epw_status epw_cuda_host_alloc(int32_t ordinal, uint64_t bytes, epw_where where, void **host, void **device) {
    epw_cuda_scope scope = {0};
    epw_status status = epw_cuda_enter_relaxed(ordinal, where, &scope);
    if (status != EPW_OK) return status;
    /* Our own allocation, because small allocations of CUDA's do not begin at a page boundary. */
    bytes = epw_align(bytes, PAGE);
    void *memory = aligned_alloc(PAGE, bytes);
    if (memory == NULL) {
        status = epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for %llu bytes to be pinned",
                          (unsigned long long)bytes);
    } else {
        memset(memory, 0, bytes);
        status = pin(ordinal, memory, bytes, where, device);
        if (status != EPW_OK) free(memory);
    }
    epw_cuda_leave_relaxed(&scope);
    if (status == EPW_OK) *host = memory;
    return status;
}

epw_status epw_cuda_check_address(int32_t ordinal, const void *host, const void *device, epw_where where) {
    if (host == device) return EPW_OK;
    return epw_fail(EPW_ERR_NO_PATH, where,
                    "GPU %d does not share the addresses of host memory, which queues need", (int)ordinal);
}

void epw_cuda_host_free(int32_t ordinal, void *host) {
    epw_cuda_scope scope = {0};
    if (host == NULL || epw_cuda_enter_relaxed(ordinal, releasing, &scope)) return;
    if (cudaHostUnregister(host) == cudaSuccess) {
        free(host);
    } else {
        (void)cudaGetLastError(); /* still pinned, so it must not be reused: leaked */
    }
    epw_cuda_leave_relaxed(&scope);
}

epw_status epw_cuda_stream_create(int32_t ordinal, epw_where where, void **stream) {
    epw_cuda_scope scope = {0};
    epw_status status = epw_cuda_enter_relaxed(ordinal, where, &scope);
    if (status != EPW_OK) return status;
    cudaStream_t created;
    cudaError_t error = cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking);
    if (error == cudaSuccess) {
        *stream = created;
    } else {
        status = epw_fail_cuda(error, where, "cudaStreamCreateWithFlags");
    }
    epw_cuda_leave_relaxed(&scope);
    return status;
}

void epw_cuda_stream_destroy(int32_t ordinal, void *stream) {
    epw_cuda_scope scope = {0};
    if (stream == NULL || epw_cuda_enter_relaxed(ordinal, releasing, &scope)) return;
    if (cudaStreamDestroy(stream) != cudaSuccess) (void)cudaGetLastError();
    epw_cuda_leave_relaxed(&scope);
}

epw_status epw_cuda_copy(int32_t ordinal, void *stream, void *to, const void *from, uint64_t bytes,
                         epw_where where) {
    epw_cuda_scope scope = {0};
    epw_status status = epw_cuda_enter_relaxed(ordinal, where, &scope);
    if (status != EPW_OK) return status;
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "cudaMemcpyAsync");
    epw_cuda_leave_relaxed(&scope);
    return status;
}

#else

epw_status epw_cuda_open(int32_t ordinal, epw_where where) {
    return epw_fail(EPW_ERR_NO_PATH, where, "device is %d: " EPW_NO_CUDA, ordinal);
}

#endif
