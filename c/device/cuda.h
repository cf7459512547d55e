/* What the core asks of CUDA beside kernels: whether a GPU may be used, its context for the length of a call,
 * private memory. The window's memory is behind epw_device_cuda (device.h).
 *
 * libcuda is opened at run time by the CUDA runtime, which is linked statically: a program so built starts
 * without a driver, and epw_cuda_open says that there is none. In a build without CUDA (EPW_CUDA not defined)
 * epw_cuda_open always fails and nothing else of this file but EPW_NO_CUDA is there.
 *
 * Any thread may call these. No call changes the caller's current device or context, or breaks a stream
 * capture, of this thread or of another. `ordinal` is the CUDA ordinal in this process and must have passed
 * epw_cuda_open. Streams are cudaStream_t, errors cudaError_t, so that files which only pass them on need no
 * CUDA header. */
#ifndef EPW_DEVICE_CUDA_H
#define EPW_DEVICE_CUDA_H

#include "base/status.h"

/* What every entry to the GPU says in a build without CUDA. */
#define EPW_NO_CUDA                                                                                          \
    "this epwire was built without CUDA: build it with cargo feature `cuda`, or CMake option EPW_CUDA=ON"

/* Checks that the GPU exists and can run the kernels (compute capability 9.0 or newer), and makes its primary
 * context ready. May be called again; cheap then. EPW_ERR_NO_PATH: no driver, no such GPU, a GPU too old; the
 * text says which and what is needed. */
epw_status epw_cuda_open(int32_t ordinal, epw_where where);

#ifdef EPW_CUDA

/* How many GPUs this process sees, 1 or more. EPW_ERR_NO_PATH: none, and why. */
epw_status epw_cuda_count(epw_where where, int *count);

/* Makes the GPU's primary context the current one of this thread until epw_cuda_leave, which must follow on
 * the same thread, also in error paths. Scopes nest. Cheap enough for every call: no allocation, no
 * synchronisation; legal while a stream of this thread is captured. */
epw_status epw_cuda_enter(int32_t ordinal, epw_where where);
void epw_cuda_leave(void);

/* The same for calls that a capture in "global" or "thread local" mode would forbid (allocation, event
 * queries, synchronisation of streams that are not captured): these are then allowed on this thread. */
typedef struct epw_cuda_scope {
    int capture_mode; /* the caller's, given back on leaving */
} epw_cuda_scope;
epw_status epw_cuda_enter_relaxed(int32_t ordinal, epw_where where, epw_cuda_scope *scope);
void epw_cuda_leave_relaxed(const epw_cuda_scope *scope);

/* How many SMs the GPU has. */
epw_status epw_cuda_sms(int32_t ordinal, epw_where where, uint32_t *sms);

/* Sets the last-error text for a cudaError_t (or CUresult: the numbers are the same) that `call` returned,
 * and takes it from the runtime's own last error. EPW_ERR_NO_MEMORY where memory was short, else
 * EPW_ERR_SYSTEM. */
epw_status epw_fail_cuda(int error, epw_where where, const char *call);

/* Zeroed device memory, aligned to 256 bytes at least. The zeros are there when this returns. NULL may be
 * freed; freeing waits for the GPU's running work. */
epw_status epw_cuda_alloc(int32_t ordinal, uint64_t bytes, epw_where where, void **out);
void epw_cuda_free(int32_t ordinal, void *memory);

/* Zeroed, pinned host memory, whole pages, that kernels of the GPU reach too: *host and *device name the same
 * bytes. */
epw_status epw_cuda_host_alloc(int32_t ordinal, uint64_t bytes, epw_where where, void **host, void **device);
void epw_cuda_host_free(int32_t ordinal, void *host);

/* EPW_ERR_NO_PATH if the GPU knows host memory by another address, which queues cannot go by. */
epw_status epw_cuda_check_address(int32_t ordinal, const void *host, const void *device, epw_where where);

/* Writes zeros and waits for them, in a relaxed scope of the memory's GPU. */
epw_status epw_cuda_zero(void *memory, uint64_t bytes, epw_where where);

/* A stream of the library's own, which never waits for the legacy default stream nor that for it. */
epw_status epw_cuda_stream_create(int32_t ordinal, epw_where where, void **stream);
void epw_cuda_stream_destroy(int32_t ordinal, void *stream);

/* Copies and returns when the bytes have arrived; `stream` is one of epw_cuda_stream_create. Either side may
 * be host memory of any kind. */
epw_status epw_cuda_copy(int32_t ordinal, void *stream, void *to, const void *from, uint64_t bytes,
                         epw_where where);

#endif

#endif
