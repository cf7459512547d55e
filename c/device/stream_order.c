/* See stream_order.h. */
#include "device/stream_order.h"

#ifdef EPW_CUDA

#include "device/cuda.h"

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
    return EPW_OK;
}

int epw_stream_capture_id(cudaStream_t stream, unsigned long long *id) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
#if CUDART_VERSION >= 13000
    cudaError_t error = cudaStreamGetCaptureInfo(stream, &capture, id, NULL, NULL, NULL, NULL);
#else
    cudaError_t error = cudaStreamGetCaptureInfo(stream, &capture, id);
#endif
    if (capture == cudaStreamCaptureStatusNone) *id = 0;
    return error;
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

void epw_stream_mark(const epw_stream_call *call, epw_stream_order *order) {
    if (call->captured) return;
    order->enqueued = true;
    order->stream_id = call->stream_id;
    order->unmarked = cudaEventRecord(order->event, call->stream) != cudaSuccess;
    if (order->unmarked) cudaGetLastError(); /* must not stay behind as CUDA's last error */
}

epw_status epw_stream_require_marked(const epw_stream_order *order, const char *unmarked, epw_where where) {
    return order->unmarked ? epw_fail(EPW_ERR_STATE, where, "%s", unmarked) : EPW_OK;
}

#else
typedef int epw_no_stream_order; /* ISO C requires a declaration in every file */
#endif
