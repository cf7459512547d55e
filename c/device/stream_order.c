/* See stream_order.h. */
#include "device/stream_order.h"

#include "epwire.h"

static _Thread_local const char *why_refused; /* why calls are not captured; NULL: they are */

const char *epw_refuse_captures(const char *why) {
    const char *before = why_refused;
    why_refused = why;
    return before;
}

#ifdef EPW_CUDA

#include "device/cuda.h"

int epw_stream_order_make(epw_stream_order *order, bool inside) {
    cudaError_t error = cudaEventCreateWithFlags(&order->event, cudaEventDisableTiming);
    if (error == cudaSuccess && inside)
        error = cudaEventCreateWithFlags(&order->inside, cudaEventDisableTiming);
    return error;
}

void epw_stream_order_free(epw_stream_order *order) {
    if (order->event != NULL) cudaEventDestroy(order->event);
    if (order->inside != NULL) cudaEventDestroy(order->inside);
    order->event = order->inside = NULL;
}

epw_status epw_stream_find_capture(epw_stream_call *call, epw_where where) {
    /* The legacy default stream is never captured, and must not even be queried while another stream is. */
    if (call->stream == NULL || call->stream == cudaStreamLegacy) return EPW_OK;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(call->stream, &capture);
    if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaStreamIsCapturing");
    if (capture == cudaStreamCaptureStatusInvalidated) {
        call->invalidated = true;
        return epw_fail(EPW_ERR_STATE, where,
                        "the stream's capture has been invalidated by an earlier call: end it first");
    }
    call->captured = capture == cudaStreamCaptureStatusActive;
    return call->captured && why_refused != NULL ? epw_fail(EPW_ERR_STATE, where, "%s", why_refused) : EPW_OK;
}

int epw_stream_capture_id(cudaStream_t stream, unsigned long long *id) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
#if CUDART_VERSION >= 13000
    cudaError_t error = cudaStreamGetCaptureInfo(stream, &capture, id, NULL, NULL, NULL, NULL);
#else
    cudaError_t error = cudaStreamGetCaptureInfo(stream, &capture, id);
#endif
    if (capture == cudaStreamCaptureStatusNone) *id = 0;
    bool invalid = error == cudaSuccess && capture == cudaStreamCaptureStatusInvalidated; /* and has no id */
    return invalid ? cudaErrorStreamCaptureInvalidated : error;
}

epw_status epw_stream_check_deadline(const epw_stream_call *call, uint64_t deadline_ns, const char *whose,
                                     epw_where where) {
    if (!call->captured || deadline_ns == 0) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, where,
                    "deadline is %llu ns, must be 0 under capture: replays take the %s",
                    (unsigned long long)deadline_ns, whose);
}

epw_status epw_stream_follow(epw_stream_call *call, const epw_stream_order *order, const char *unmarked,
                             epw_where where) {
    cudaError_t error = cudaStreamGetId(call->stream, &call->stream_id);
    if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaStreamGetId");
    if (!order->enqueued || order->stream_id == call->stream_id) return EPW_OK;
    epw_status status = epw_stream_require_marked(order, unmarked, where);
    if (status != EPW_OK) return status;
    error = cudaStreamWaitEvent(call->stream, order->event, 0);
    return error == cudaSuccess ? EPW_OK : epw_fail_cuda(error, where, "cudaStreamWaitEvent");
}

/* This adds no node to the graph. */
static void mark_inside(const epw_stream_call *call, epw_stream_order *order) {
    order->capture_id = 0;
    unsigned long long id = 0;
    int error = epw_stream_capture_id(call->stream, &id);
    if (error == cudaSuccess) error = cudaEventRecord(order->inside, call->stream);
    if (error == cudaSuccess) {
        order->capture_id = id;
    } else {
        cudaGetLastError();
    }
}

void epw_stream_mark(const epw_stream_call *call, epw_stream_order *order) {
    if (call->captured) {
        if (order->inside != NULL) mark_inside(call, order);
        return;
    }
    order->enqueued = true;
    order->stream_id = call->stream_id;
    order->unmarked = cudaEventRecord(order->event, call->stream) != cudaSuccess;
    if (order->unmarked) cudaGetLastError(); /* must not stay behind as CUDA's last error */
}

epw_status epw_stream_require_marked(const epw_stream_order *order, const char *unmarked, epw_where where) {
    return order->unmarked ? epw_fail(EPW_ERR_STATE, where, "%s", unmarked) : EPW_OK;
}

epw_status epw_stream_chain_enter(epw_stream_chain *chain, epw_stream_call *call, const char *unmarked,
                                  epw_where where) {
    if (chain == NULL) return EPW_OK;
    pthread_mutex_lock(&chain->lock);
    epw_status status = EPW_OK;
    if (chain->last != NULL) status = epw_stream_follow(call, chain->last, unmarked, where);
    if (status != EPW_OK) pthread_mutex_unlock(&chain->lock);
    return status;
}

void epw_stream_chain_leave(epw_stream_chain *chain, const epw_stream_order *order) {
    if (chain == NULL) return;
    if (order != NULL) chain->last = order;
    pthread_mutex_unlock(&chain->lock);
}

static epw_status wait_in_capture(const epw_stream_call *waiting, const epw_stream_order *order,
                                  epw_where where) {
    unsigned long long id = 0;
    if (order->capture_id == 0)
        return epw_fail(EPW_ERR_STATE, where,
                        "CUDA could record no event behind the last call, which was captured");
    if (waiting->stream == NULL || waiting->stream == cudaStreamLegacy)
        return epw_fail(EPW_ERR_STATE, where,
                        "the last call was captured, and the legacy default stream cannot join a capture");
    if (waiting->captured) {
        /* CUDA would invalidate both captures. */
        cudaError_t error = (cudaError_t)epw_stream_capture_id(waiting->stream, &id);
        if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaStreamGetCaptureInfo");
        if (id != order->capture_id)
            return epw_fail(EPW_ERR_STATE, where,
                            "the stream is under another capture than the last call was: order the launches "
                            "of the two graphs");
    }
    cudaError_t error = cudaStreamWaitEvent(waiting->stream, order->inside, 0);
    if (error == cudaSuccess) return EPW_OK;
    /* CUDA 13.0 says that an event of a capture that has ended is an invalid value, others may name the
     * capture. */
    bool of_capture =
        error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
    if (error != cudaErrorInvalidValue && !of_capture)
        return epw_fail_cuda(error, where, "cudaStreamWaitEvent");
    cudaGetLastError();
    return epw_fail(EPW_ERR_STATE, where,
                    "the last call was captured, and its capture has ended: it runs when its graph does, let "
                    "the stream wait for that");
}

epw_status epw_stream_wait_for(epw_stream_call *waiting, const epw_stream_order *order, bool captured,
                               const char *unmarked, epw_where where) {
    epw_status status = epw_stream_find_capture(waiting, where);
    if (status != EPW_OK) return status;
    if (captured) return wait_in_capture(waiting, order, where);
    if (!waiting->captured) return epw_stream_follow(waiting, order, unmarked, where);
    status = epw_stream_require_marked(order, unmarked, where);
    if (status != EPW_OK) return status;
    cudaError_t error = cudaStreamWaitEvent(waiting->stream, order->event, cudaEventWaitExternal);
    return error == cudaSuccess ? EPW_OK : epw_fail_cuda(error, where, "cudaStreamWaitEvent");
}

#endif
