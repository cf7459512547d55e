/* What the core needs of CUDA besides kernels: whether a GPU may be used, its context for the length of a
 * call, and private memory. The window's memory is behind epw_device_cuda (device.h).
 *
 * The CUDA runtime, which is linked statically, opens libcuda at run time: a program built this way starts
 * without a driver, and epw_cuda_open reports that there is none. In a build without CUDA (EPW_CUDA not
 * defined) epw_cuda_open always fails, and of the rest of this file only EPW_NO_CUDA exists.
 *
 * Any thread may call these functions. No call changes the caller's current device or context, or breaks a
 * stream capture, of this thread or of another. `ordinal` is the CUDA ordinal in this process and must
 * have passed epw_cuda_open. Streams are cudaStream_t and errors cudaError_t, in types that need no CUDA
 * header. */
#ifndef EPW_DEVICE_CUDA_H
#define EPW_DEVICE_CUDA_H

#include "base/status.h"

#include <stdbool.h>

/* The error text of every GPU function in a build without CUDA. */
#define EPW_NO_CUDA                                                                                          \
    "this epwire was built without CUDA: build it with cargo feature `cuda`, or CMake option EPW_CUDA=ON"

/* Checks that the GPU exists and can run the kernels (compute capability 9.0 or newer), and makes its primary
 * context ready. May be called again, and is then cheap. EPW_ERR_NO_PATH: no driver, no such GPU, or a GPU
 * too old; the text says which, and what is needed. */
epw_status epw_cuda_open(int32_t ordinal, epw_where where);

#ifdef EPW_CUDA

/* The number of GPUs that this process sees, 1 or more. EPW_ERR_NO_PATH: none, with the reason. */
epw_status epw_cuda_count(epw_where where, int *count);

/* Makes the GPU's primary context current on this thread until epw_cuda_leave, which must follow on the same
 * thread, also in error paths. Scopes nest. Cheap enough for every call: no allocation, no synchronisation;
 * legal while a stream of this thread is being captured. */
epw_status epw_cuda_enter(int32_t ordinal, epw_where where);
void epw_cuda_leave(void);

/* The same for calls that a capture in "global" or "thread local" mode would forbid (allocation, event
 * queries, synchronisation of streams that are not captured): inside the scope this thread may make them. */
typedef struct epw_cuda_scope {
    int capture_mode; /* the caller's mode, restored on leaving */
} epw_cuda_scope;
epw_status epw_cuda_enter_relaxed(int32_t ordinal, epw_where where, epw_cuda_scope *scope);
void epw_cuda_leave_relaxed(const epw_cuda_scope *scope);

/* The number of SMs of the GPU. */
epw_status epw_cuda_sms(int32_t ordinal, epw_where where, uint32_t *sms);

/* Whether another GPU that loads 128 aligned bytes sees all or nothing of what this one has stored there by
 * one instruction. True where switches of NVLink join the GPUs of a machine. */
bool epw_cuda_keeps_lines(int32_t ordinal);

/* Sets the last-error text for a cudaError_t (or a CUresult: the numbers are the same) that `call` returned,
 * and clears the runtime's own last error. Returns EPW_ERR_NO_MEMORY if memory was short, else
 * EPW_ERR_SYSTEM. */
epw_status epw_fail_cuda(int error, epw_where where, const char *call);

/* The same of a call that was to have so many bytes. `hint`: what to do if there are not so many. */
epw_status epw_fail_cuda_bytes(int error, epw_where where, const char *call, uint64_t bytes, int32_t ordinal,
                               const char *hint);

/* Allocates device memory, aligned to at least 256 bytes and zeroed by the time of return. NULL may be freed;
 * freeing waits for the GPU's running work. */
epw_status epw_cuda_alloc(int32_t ordinal, uint64_t bytes, epw_where where, void **out);
void epw_cuda_free(int32_t ordinal, void *memory);

/* Allocates zeroed, pinned host memory in whole pages, which kernels of the GPU can access: *host and *device
 * are addresses of the same bytes. */
epw_status epw_cuda_host_alloc(int32_t ordinal, uint64_t bytes, epw_where where, void **host, void **device);
void epw_cuda_host_free(int32_t ordinal, void *host);

/* EPW_ERR_NO_PATH if the GPU sees host memory at a different address, which queues do not support. */
epw_status epw_cuda_check_address(int32_t ordinal, const void *host, const void *device, epw_where where);

/* Zeroes device memory and waits until it is done. Called in a relaxed scope of the memory's GPU. */
epw_status epw_cuda_zero(void *memory, uint64_t bytes, epw_where where);

/* Creates a stream of the library's own, which is not synchronised with the legacy default stream. */
epw_status epw_cuda_stream_create(int32_t ordinal, epw_where where, void **stream);
void epw_cuda_stream_destroy(int32_t ordinal, void *stream);

/* Copies, and returns when the bytes have arrived; `stream` was made by epw_cuda_stream_create. Either side
 * may be any kind of host memory. */
epw_status epw_cuda_copy(int32_t ordinal, void *stream, void *to, const void *from, uint64_t bytes,
                         epw_where where);

#endif

#endif
