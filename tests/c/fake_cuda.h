/* CUDA without a GPU, for tests of what an engine enqueues, orders, waits for and refuses: what the engine's
 * sources call is replaced by records of the calls. Device memory is host memory, so that tests can see what
 * the engine writes there. Include this, behind needs_cuda.h, before those sources; a test replaces the
 * launches of its kernels itself, by fake_launch. */
#ifndef EPW_TESTS_FAKE_CUDA_H
#define EPW_TESTS_FAKE_CUDA_H

#include "check.h"

#include "device/cuda.h"
#include "kernels/peer/suspects.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct fake {
    int depth;       /* scopes entered and not left */
    int done;        /* enqueued work has run */
    int captured;    /* streams are under the capture of this number, */
    int invalidated; /* or were, until a forbidden call */
    int failing;     /* result of a launch, */
    int unawaited;   /* of a wait for an event, */
    int recording;   /* and the result of recording an event, */
    int spared;      /* after this many that succeed */
    int hangs;       /* nothing runs any more after the membership kernel, */
    int stalls;      /* or after a copy */
    int launches, waits, frees;
    pthread_mutex_t *unlocked; /* while memory is freed; NULL: any */
    int records;               /* of events, outside of captures */
    void *stream;              /* of the last launch */
    void *waiting;             /* the stream that last waited, */
    cudaEvent_t waited;        /* the event that it waited for, */
    unsigned flags;            /* and how */
    uint32_t blocks;
    uint64_t allocated; /* bytes of device memory, in all */
} fake = {.done = 1};

static cudaError_t fake_event_query(cudaEvent_t event) {
    CHECK(event != NULL && fake.depth > 0);
    return fake.done ? cudaSuccess : cudaErrorNotReady;
}
static cudaError_t fake_get_last_error(void) {
    return cudaSuccess;
}
static cudaError_t fake_event_record(cudaEvent_t event, cudaStream_t stream) {
    (void)stream;
    CHECK(event != NULL && fake.depth == 1);
    if (fake.recording && fake.spared-- <= 0) return (cudaError_t)fake.recording;
    if (!fake.captured) fake.records++;
    return cudaSuccess;
}
static cudaError_t fake_event_create(cudaEvent_t *event, unsigned flags) {
    CHECK(flags == cudaEventDisableTiming);
    *event = malloc(1);
    return cudaSuccess;
}
static cudaError_t fake_event_destroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}
static cudaError_t fake_is_capturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    CHECK_MSG(stream != NULL && stream != cudaStreamLegacy, "%s", "the legacy stream must not be asked");
    *status = fake.invalidated ? cudaStreamCaptureStatusInvalidated
              : fake.captured  ? cudaStreamCaptureStatusActive
                               : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
static cudaError_t fake_capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id) {
    *id = (unsigned long long)fake.captured;
    return fake_is_capturing(stream, status);
}
static cudaError_t fake_stream_id(cudaStream_t stream, unsigned long long *id) {
    *id = (uintptr_t)stream;
    return cudaSuccess;
}
static cudaError_t fake_wait_event(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    CHECK(event != NULL && fake.depth == 1);
    if (fake.unawaited) return (cudaError_t)fake.unawaited;
    fake.waits++;
    fake.waiting = stream;
    fake.waited = event;
    fake.flags = flags;
    return cudaSuccess;
}
static cudaError_t fake_memcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                               cudaStream_t stream) {
    (void)kind;
    CHECK(stream != NULL && fake.depth == 1);
    memcpy(to, from, bytes);
    if (fake.stalls) fake.done = 0;
    return cudaSuccess;
}

static epw_status fake_open(int32_t ordinal, epw_where where) {
    (void)ordinal;
    (void)where;
    return EPW_OK;
}
static epw_status fake_enter(int32_t ordinal, epw_where where) {
    (void)ordinal;
    (void)where;
    fake.depth++;
    return EPW_OK;
}
static void fake_leave(void) {
    fake.depth--;
}
static epw_status fake_enter_relaxed(int32_t ordinal, epw_where where, epw_cuda_scope *scope) {
    scope->capture_mode = 7;
    return fake_enter(ordinal, where);
}
static void fake_leave_relaxed(const epw_cuda_scope *scope) {
    CHECK(scope->capture_mode == 7);
    fake_leave();
}
static uint32_t gpu_sms = 40;
static epw_status fake_sms(int32_t ordinal, epw_where where, uint32_t *sms) {
    *sms = gpu_sms;
    return fake_open(ordinal, where);
}
static epw_status fake_fail(int error, epw_where where, const char *call) {
    return epw_fail(EPW_ERR_SYSTEM, where, "%s: CUDA error %d", call, error);
}
static epw_status fake_alloc(int32_t ordinal, uint64_t bytes, epw_where where, void **out) {
    *out = calloc(1, bytes);
    fake.allocated += bytes;
    return fake_open(ordinal, where);
}
static epw_status fake_host_alloc(int32_t ordinal, uint64_t bytes, epw_where where, void **host,
                                  void **device) {
    *host = *device = calloc(1, bytes);
    return fake_open(ordinal, where);
}
static void fake_free(int32_t ordinal, void *memory) {
    (void)ordinal;
    fake.frees++;
    if (fake.unlocked != NULL) {
        CHECK(pthread_mutex_trylock(fake.unlocked) == 0);
        pthread_mutex_unlock(fake.unlocked);
    }
    free(memory);
}
static epw_status fake_stream_create(int32_t ordinal, epw_where where, void **stream) {
    *stream = malloc(1);
    return fake_open(ordinal, where);
}
static epw_status fake_copy(int32_t ordinal, void *stream, void *to, const void *from, uint64_t bytes,
                            epw_where where) {
    CHECK(stream != NULL);
    memcpy(to, from, bytes);
    return fake_open(ordinal, where);
}

static int fake_launch(uint32_t blocks, void *stream) {
    CHECK(fake.depth == 1);
    if (fake.failing) return fake.failing;
    fake.launches++;
    fake.blocks = blocks;
    fake.stream = stream;
    return 0;
}

static const epw_gpu_peers *told_suspects_of; /* by the last kernel */
static int fake_prepare_suspects(void) {
    CHECK(fake.depth == 1);
    return 0;
}
static int fake_run_suspects(const epw_suspects_args *args, void *stream) {
    CHECK(args->out != NULL && args->ranks > 0);
    told_suspects_of = args->peers;
    return fake_launch(1, stream);
}

#define cudaEventQuery           fake_event_query
#define cudaGetLastError         fake_get_last_error
#define cudaEventRecord          fake_event_record
#define cudaEventCreateWithFlags fake_event_create
#define cudaEventDestroy         fake_event_destroy
#define cudaStreamIsCapturing    fake_is_capturing
#define cudaStreamGetId          fake_stream_id
#define cudaStreamWaitEvent      fake_wait_event
#define cudaMemcpyAsync          fake_memcpy
#define epw_cuda_open            fake_open
#define epw_cuda_enter           fake_enter
#define epw_cuda_leave           fake_leave
#define epw_cuda_enter_relaxed   fake_enter_relaxed
#define epw_cuda_leave_relaxed   fake_leave_relaxed
#define epw_cuda_sms             fake_sms
#define epw_fail_cuda            fake_fail
#define epw_cuda_alloc           fake_alloc
#define epw_cuda_free            fake_free
#define epw_cuda_host_alloc      fake_host_alloc
#define epw_cuda_host_free       fake_free
#define epw_cuda_stream_create   fake_stream_create
#define epw_cuda_stream_destroy  fake_free
#define epw_cuda_copy            fake_copy

#define epw_gpu_prepare_suspects fake_prepare_suspects
#define epw_gpu_run_suspects     fake_run_suspects
#undef cudaStreamGetCaptureInfo
#define cudaStreamGetCaptureInfo(stream, status, id, ...) fake_capture_info(stream, status, id)

/* The peer floor's part, the order of streams and the choice of SMs are not renamed: the linker finds these
 * first, so the library's connect uses them too. */
#include "../../c/device/stream_order.c"
#include "../../c/peer/gpu.c"
#include "../../c/peer/gpu_suspects.c"
#include "../../c/ep/gpu/sms.c"

#endif
