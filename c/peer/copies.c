/* See copies.h. */
#include "peer/copies.h"

#include "peer/gpu.h"

static epw_status not_mapped(epw_where where) {
    return epw_fail(EPW_ERR_STATE, where, "no window on a GPU is mapped here");
}

#ifdef EPW_CUDA

#include "base/bits.h"
#include "device/cuda.h"

enum { COPIES = 8 };

/* The first copy is not timed: it may have to map pages. */
static cudaError_t enqueue(epw_peers_gpu *g, void *to, const void *from, uint64_t bytes, cudaEvent_t began,
                           cudaEvent_t ended) {
    cudaError_t error = cudaSuccess;
    for (int i = 0; i <= COPIES && error == cudaSuccess; i++) {
        if (i == 1) error = cudaEventRecord(began, g->stream);
        if (error == cudaSuccess)
            error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, g->stream);
    }
    return error == cudaSuccess ? cudaEventRecord(ended, g->stream) : error;
}

static epw_status time_copies(epw_peers *peers, void *to, const void *from, uint64_t bytes,
                              uint64_t timeout_ns, epw_where where, uint64_t *ns) {
    cudaEvent_t began = NULL, ended = NULL;
    float ms = 0;
    cudaError_t error = cudaEventCreate(&began);
    if (error == cudaSuccess) error = cudaEventCreate(&ended);
    if (error == cudaSuccess) error = enqueue(peers->gpu, to, from, bytes, began, ended);
    epw_status status = error == cudaSuccess ? epw_peers_settle(peers, timeout_ns, where)
                                             : epw_fail_cuda(error, where, "copies to a peer");
    if (status == EPW_PENDING)
        status = epw_fail(EPW_ERR_TIMEOUT, where, "copies of %llu bytes have not ended within %llu ms",
                          (unsigned long long)bytes, (unsigned long long)(timeout_ns / 1000000u));
    if (status == EPW_OK) {
        error = cudaEventElapsedTime(&ms, began, ended);
        if (error != cudaSuccess) status = epw_fail_cuda(error, where, "cudaEventElapsedTime");
    }
    if (began != NULL) (void)cudaEventDestroy(began);
    if (ended != NULL) (void)cudaEventDestroy(ended);
    *ns = (uint64_t)(ms * 1e6f);
    return status;
}

epw_status epw_peers_time_copies(epw_peers *peers, uint32_t peer, uint64_t timeout_ns, uint64_t *bytes,
                                 uint64_t *ns) {
    epw_status status = epw_peers_check(peers, "copy", peer);
    if (status != EPW_OK) return status;
    epw_where where = epw_peers_where(peers, "copy", peer);
    uint32_t path = epw_peers_path(peers, peer);
    if (peers->gpu == NULL || peer == peers->rank || path == EPW_PATH_NONE || path == EPW_PATH_QUEUE)
        return not_mapped(where);
    epw_stretch part = peers->user->footprint(peers->user_context, peers->rank, 0, EPW_AREA_ROWS);
    epw_cuda_scope scope;
    status = epw_cuda_enter_relaxed(peers->gpu->device, where, &scope);
    if (status != EPW_OK) return status;
    status = time_copies(peers, epw_rows_at(peers, 0, peer, part.offset), epw_peers_own(peers) + part.offset,
                         part.bytes, timeout_ns, where, ns);
    epw_cuda_leave_relaxed(&scope);
    *bytes = COPIES * part.bytes;
    return status;
}

#else

epw_status epw_peers_time_copies(epw_peers *peers, uint32_t peer, uint64_t timeout_ns, uint64_t *bytes,
                                 uint64_t *ns) {
    (void)timeout_ns, (void)bytes, (void)ns;
    return not_mapped(epw_peers_where(peers, "copy", peer));
}

#endif
