/* Exchanges of host memory among the members of a communicator, wherever its operations have theirs. On a GPU
 * the bytes go through staging: device memory and a stream that are the communicator's own, so that no stream
 * of the caller waits for an exchange, and none of the copies here waits for one of the caller's. */
#include "coll/gpu/gpu.h"

#ifdef EPW_CUDA
#include "device/cuda.h"

#include <stdlib.h>

/* ---- staging ---- */

enum { LEAST = 1 << 16 };

static void free_staging(const epw_comm *comm, epw_coll_staging *s) {
    epw_cuda_free(comm->config.device, s->memory);
    epw_cuda_stream_destroy(comm->config.device, s->stream);
    free(s);
}

static epw_status make_staging(const epw_comm *comm, uint64_t bytes, epw_where where,
                               epw_coll_staging **out) {
    epw_coll_staging *s = calloc(1, sizeof *s);
    if (s == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the description of an exchange");
    s->bytes = LEAST;
    /* By doubling, so that what exchanges of growing sizes leave is bounded too. */
    while (s->bytes < bytes) s->bytes *= 2;
    epw_status status = epw_cuda_stream_create(comm->config.device, where, &s->stream);
    if (status == EPW_OK) status = epw_cuda_alloc(comm->config.device, s->bytes, where, &s->memory);
    if (status == EPW_OK) {
        *out = s;
    } else {
        free_staging(comm, s);
    }
    return status;
}

/* After an exchange that has failed a kernel may still be to run, and write there. */
static bool is_idle(const epw_comm *comm, const epw_coll_staging *s) {
    epw_cuda_scope scope;
    if (epw_cuda_enter_relaxed(comm->config.device, epw_comm_where(comm, "exchange"), &scope) != EPW_OK)
        return false;
    bool idle = cudaStreamQuery(s->stream) == cudaSuccess;
    if (!idle) cudaGetLastError(); /* "not ready" must not stay behind as CUDA's last error */
    epw_cuda_leave_relaxed(&scope);
    return idle;
}

/* Kept until the communicator is destroyed, because freeing device memory waits for all work of the GPU. */
static epw_status take_staging(epw_comm *comm, uint64_t bytes, epw_where where, epw_coll_staging **out) {
    pthread_mutex_lock(&comm->lock);
    epw_coll_staging *s = comm->gpu->staging;
    while (s != NULL && (s->taken || s->bytes < bytes || !is_idle(comm, s))) s = s->next;
    if (s != NULL) s->taken = true;
    pthread_mutex_unlock(&comm->lock);
    *out = s;
    if (s != NULL) return EPW_OK;
    epw_status status = make_staging(comm, bytes, where, &s);
    if (status != EPW_OK) return status;
    s->taken = true;
    pthread_mutex_lock(&comm->lock);
    s->next = comm->gpu->staging;
    comm->gpu->staging = s;
    pthread_mutex_unlock(&comm->lock);
    *out = s;
    return EPW_OK;
}

static void return_staging(epw_comm *comm, epw_coll_staging *s) {
    pthread_mutex_lock(&comm->lock);
    s->taken = false;
    pthread_mutex_unlock(&comm->lock);
}

void epw_coll_gpu_close_staging(epw_comm *comm) {
    while (comm->gpu->staging != NULL) {
        epw_coll_staging *s = comm->gpu->staging;
        comm->gpu->staging = s->next;
        free_staging(comm, s);
    }
}

void epw_coll_gpu_abandon_staging(epw_comm *comm) {
    while (comm->gpu->staging != NULL) {
        epw_coll_staging *s = comm->gpu->staging;
        comm->gpu->staging = s->next;
        free(s);
    }
}

/* ---- the exchange ---- */

/* Waits as long as the kernel may wait for peers, and one before it. */
static epw_status await(epw_comm *comm, epw_work work, uint64_t deadline_ns, epw_where where,
                        epw_outcome *outcome) {
    uint64_t most = 2 * EPW_WAIT_DEADLINES_MAX * (deadline_ns > 0 ? deadline_ns : comm->config.deadline_ns);
    epw_status status = epw_work_wait(comm, work, most, outcome);
    if (status != EPW_PENDING) return status;
    (void)epw_work_drop(comm, work);
    return epw_fail(EPW_ERR_TIMEOUT, where,
                    "the GPU has not run the exchange, and what was enqueued before it, within %llu ms: wait "
                    "for the streams of earlier calls",
                    (unsigned long long)(most / 1000000u));
}

/* The stream is empty now, and behind the kernel too, so the copies wait for nothing but themselves. */
static epw_status exchange_by(epw_comm *comm, epw_coll *c, const epw_coll_staging *s, uint64_t deadline_ns,
                              epw_where where, epw_outcome *outcome) {
    uint64_t bytes = comm->layout.ranks * c->count;
    void *memory = c->recv;
    epw_work work = 0;
    epw_call call = EPW_CALL_INIT;
    call.deadline_ns = deadline_ns;
    call.stream = s->stream;
    call.work = &work;
    c->recv = s->memory;
    c->send = s->memory;
    epw_status status = epw_cuda_copy(comm->config.device, s->stream, s->memory, memory, bytes, where);
    if (status == EPW_OK) status = epw_group(comm, c, 1, &call, NULL);
    if (status == EPW_OK) status = await(comm, work, deadline_ns, where, outcome);
    if (status != EPW_OK) return status;
    return epw_cuda_copy(comm->config.device, s->stream, memory, s->memory, bytes, where);
}

static epw_status exchange_on_gpu(epw_comm *comm, epw_coll *c, uint64_t deadline_ns, epw_where where,
                                  epw_outcome *outcome) {
    epw_coll_staging *staging = NULL;
    epw_status status = take_staging(comm, comm->layout.ranks * c->count, where, &staging);
    if (status != EPW_OK) return status;
    status = exchange_by(comm, c, staging, deadline_ns, where, outcome);
    return_staging(comm, staging);
    return status;
}
#else
static epw_status exchange_on_gpu(epw_comm *comm, epw_coll *c, uint64_t deadline_ns, epw_where where,
                                  epw_outcome *outcome) {
    (void)comm, (void)c, (void)deadline_ns, (void)outcome;
    return epw_fail(EPW_ERR_STATE, where, "there is no communicator on a GPU");
}
#endif

epw_status epw_comm_exchange(epw_comm *comm, void *memory, uint64_t bytes, uint64_t deadline_ns,
                             epw_outcome *outcome) {
    if (comm == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"exchange", -1, -1}, "comm is NULL");
    epw_where where = epw_comm_where(comm, "exchange");
    if (memory == NULL) return epw_fail(EPW_ERR_INVALID, where, "memory is NULL");
    if (bytes == 0 || bytes > EPW_EXCHANGE_MAX)
        return epw_fail(EPW_ERR_LIMIT, where, "bytes is %llu, must be in [1, %d]", (unsigned long long)bytes,
                        EPW_EXCHANGE_MAX);
    if (outcome != NULL && outcome->size != sizeof *outcome)
        return epw_fail(EPW_ERR_INVALID, where,
                        "outcome.size is %u, this library's is %zu: use EPW_OUTCOME_INIT", outcome->size,
                        sizeof *outcome);
    epw_coll c = EPW_COLL_INIT;
    c.kind = EPW_ALL_TO_ALL;
    c.type = EPW_TYPE_U8;
    c.count = bytes;
    c.send = memory;
    c.recv = memory;
    if (comm->gpu != NULL) return exchange_on_gpu(comm, &c, deadline_ns, where, outcome);
    epw_call call = EPW_CALL_INIT;
    call.deadline_ns = deadline_ns;
    return epw_group(comm, &c, 1, &call, outcome);
}
