/* See gpu_suspects.h. */
#include "peer/gpu_suspects.h"

#include "device/cuda.h"

#ifdef EPW_CUDA
#include "kernels/peer/suspects.h"
#include "peer/gpu_engine.h"

/* The order to which an eager kernel on this stream belongs, so that whoever frees what it reads waits for
 * it: that of a lane whose last call is on the stream, or one for all others. The latter makes kernels on
 * different streams wait for each other, but none wait for a lane. */
static epw_stream_order *order_on(const epw_peers *peers, unsigned long long stream_id) {
    for (uint32_t lane = 0; lane < peers->lanes; lane++) {
        epw_stream_order *order = epw_lane_order(peers, lane);
        if (order->enqueued && order->stream_id == stream_id) return order;
    }
    return &peers->gpu->looks;
}

/* In a scope of the GPU, with the lanes locked. */
static epw_status tell_suspects(const epw_peers *peers, int32_t *out, epw_stream_call *on, epw_where where) {
    const epw_suspects_args args = {.peers = peers->gpu->lanes[0], .out = out, .ranks = peers->ranks};
    epw_stream_order *order = NULL;
    epw_status status = epw_stream_find_capture(on, where);
    if (status != EPW_OK) return status;
    if (!on->captured) {
        cudaError_t error = cudaStreamGetId(on->stream, &on->stream_id);
        if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaStreamGetId");
        order = order_on(peers, on->stream_id);
        status = epw_stream_follow(on, order, EPW_UNMARKED_FOLLOWED("the"), where);
        if (status != EPW_OK) return status;
    }
    int error = epw_gpu_run_suspects(&args, on->stream);
    if (error != cudaSuccess) return epw_fail_cuda(error, where, "launch of the kernel that tells suspects");
    if (order != NULL) epw_stream_mark(on, order);
    return EPW_OK;
}
#endif

epw_status epw_peers_enqueue_suspects(epw_peers *peers, int32_t *out, void *stream, epw_where where) {
    if (peers->gpu == NULL)
        return epw_fail(EPW_ERR_STATE, where,
                        "on the host device nothing is enqueued: the suspects are in the membership");
    if (out == NULL) return epw_fail(EPW_ERR_INVALID, where, "suspects is NULL");
    if ((uintptr_t)out % sizeof *out != 0)
        return epw_fail(EPW_ERR_INVALID, where, "suspects must be aligned to %zu bytes", sizeof *out);
#ifdef EPW_CUDA
    epw_stream_call on = {.stream = stream};
    peers->user->lock(peers->user_context);
    epw_status status = epw_cuda_enter(peers->gpu->device, where);
    if (status == EPW_OK) {
        status = tell_suspects(peers, out, &on, where);
        epw_cuda_leave();
    }
    peers->user->unlock(peers->user_context);
    return status;
#else
    (void)stream;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
#endif
}
