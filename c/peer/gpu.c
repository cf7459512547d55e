/* See gpu.h. */
#include "peer/gpu.h"

#include "device/cuda.h"
#include "peer/remote.h"
#include "peer/remote_gpu.h"

#ifdef EPW_CUDA
#include "base/clock.h"
#include "kernels/peer/suspects.h"

#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A host thread that waits for the GPU polls without a pause for this long, then sleeps between polls, for
 * longer and longer times. */
#define LOOK_NS      UINT64_C(20000)
#define SLEEP_MIN_NS 10000L
#define SLEEP_MAX_NS 500000L

/* ---- bounded waits for the GPU ---- */

epw_status epw_peers_await_event(const epw_peers *peers, cudaEvent_t event, uint64_t timeout_ns,
                                 epw_where where) {
    epw_cuda_scope scope;
    epw_status status = epw_cuda_enter_relaxed(peers->gpu->device, where, &scope);
    if (status != EPW_OK) return status;
    uint64_t began = epw_now_ns();
    long sleep_ns = SLEEP_MIN_NS;
    for (;;) {
        cudaError_t error = cudaEventQuery(event);
        if (error != cudaErrorNotReady) {
            status = error == cudaSuccess ? EPW_OK : epw_fail_cuda(error, where, "cudaEventQuery");
            break;
        }
        cudaGetLastError(); /* "not ready" must not stay behind as CUDA's last error */
        uint64_t waited = epw_now_ns() - began;
        if (waited >= timeout_ns) {
            status = EPW_PENDING;
            break;
        }
        if (waited < LOOK_NS) {
            sched_yield();
            continue;
        }
        uint64_t left = timeout_ns - waited;
        struct timespec sleep = {0, left < (uint64_t)sleep_ns ? (long)left : sleep_ns};
        nanosleep(&sleep, NULL);
        if (sleep_ns < SLEEP_MAX_NS) sleep_ns *= 2;
    }
    epw_cuda_leave_relaxed(&scope);
    return status;
}

static epw_status settle(const epw_peers *peers, cudaEvent_t event, uint64_t timeout_ns, epw_where where) {
    const epw_peers_gpu *g = peers->gpu;
    epw_status status = epw_cuda_enter(g->device, where);
    if (status != EPW_OK) return status;
    cudaError_t error = cudaEventRecord(event, g->stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "cudaEventRecord");
    epw_cuda_leave();
    return status == EPW_OK ? epw_peers_await_event(peers, event, timeout_ns, where) : status;
}

epw_status epw_peers_settle(const epw_peers *peers, uint64_t timeout_ns, epw_where where) {
    return settle(peers, peers->gpu->event, timeout_ns, where);
}

epw_status epw_peers_copy_counts(const epw_peers *peers, const void *const *from, void *to, uint64_t bytes,
                                 epw_where where) {
    const epw_peers_gpu *g = peers->gpu;
    epw_status status = epw_cuda_enter(g->device, where);
    if (status != EPW_OK) return status;
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; error == cudaSuccess && i < peers->lanes; i++)
        error = cudaMemcpyAsync((unsigned char *)to + i * bytes, from[i], bytes, cudaMemcpyDeviceToHost,
                                g->stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "cudaMemcpyAsync of the traffic");
    epw_cuda_leave();
    if (status == EPW_OK) status = epw_peers_settle(peers, g->deadline_ns, where);
    if (status != EPW_PENDING) return status;
    return epw_fail(EPW_ERR_TIMEOUT, where,
                    "the GPU has not copied the traffic within the deadline of %llu ms",
                    (unsigned long long)(g->deadline_ns / 1000000u));
}

epw_status epw_peers_settle_change(const epw_peers *peers, epw_where where) {
    uint64_t deadline_ns = peers->gpu->deadline_ns;
    epw_status status = epw_peers_settle(peers, deadline_ns, where);
    if (status != EPW_PENDING) return status;
    return epw_fail(EPW_ERR_TIMEOUT, where, "the GPU has not taken the change within the deadline of %llu ms",
                    (unsigned long long)(deadline_ns / 1000000u));
}

/* ---- life ---- */

/* A peer's entries in the table of a lane. */
static void fill(uint64_t table[EPW_AREAS][EPW_GPU_PEERS], uint32_t peer, const epw_areas *areas) {
    table[EPW_AREA_CONTROL][peer] = areas->control;
    table[EPW_AREA_ROWS][peer] = areas->rows;
    table[EPW_AREA_ANSWERS][peer] = areas->answers;
}

static epw_status make_events(epw_peers_gpu *g, uint32_t lanes, bool inside, epw_where where) {
    epw_cuda_scope scope;
    epw_status status = epw_cuda_enter_relaxed(g->device, where, &scope);
    if (status != EPW_OK) return status;
    cudaError_t error = cudaEventCreateWithFlags(&g->event, cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&g->lines_copied, cudaEventDisableTiming);
    for (uint32_t use = 0; error == cudaSuccess && use < EPW_WORD_COPIES; use++)
        error = cudaEventCreateWithFlags(&g->copied[use], cudaEventDisableTiming);
    for (uint32_t lane = 0; error == cudaSuccess && lane < lanes; lane++)
        error = (cudaError_t)epw_stream_order_make(&g->orders[lane], inside);
    if (error == cudaSuccess) error = (cudaError_t)epw_stream_order_make(&g->looks, false);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "cudaEventCreateWithFlags");
    epw_cuda_leave_relaxed(&scope);
    return status;
}

/* The GPU's address of a byte of the pinned memory. */
#define SEEN_BY_GPU(device, field) ((void *)((unsigned char *)(device) + offsetof(epw_peers_pinned, field)))

static epw_status make_pinned(epw_peers_gpu *g, const epw_peers_gpu_options *options, epw_where where) {
    void *host, *device;
    epw_status status = epw_cuda_host_alloc(g->device, sizeof *g->pinned, where, &host, &device);
    if (status != EPW_OK) return status;
    g->pinned = host;
    epw_gpu_shared shared = {.suspects_host = SEEN_BY_GPU(device, suspects),
                             .silent_host = SEEN_BY_GPU(device, silent),
                             .revoked = SEEN_BY_GPU(device, revoked),
                             .ring = options->ring};
    return epw_cuda_copy(g->device, g->stream, options->shared, &shared, sizeof shared, where);
}

static epw_status load_kernel(const epw_peers_gpu *g, epw_where where) {
    epw_cuda_scope scope;
    epw_status status = epw_cuda_enter_relaxed(g->device, where, &scope);
    if (status != EPW_OK) return status;
    int error = epw_gpu_prepare_suspects();
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "loading the kernel that tells suspects");
    epw_cuda_leave_relaxed(&scope);
    return status;
}

epw_status epw_peers_open_gpu(epw_peers *peers, const epw_peers_gpu_options *options, epw_where where) {
    epw_peers_gpu *g = calloc(1, sizeof *g);
    if (g == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the peers' part on the GPU");
    peers->gpu = g;
    g->device = options->device;
    g->deadline_ns = options->deadline_ns;
    g->unmarked = options->unmarked;
    g->serial = options->serial;
    pthread_mutex_init(&g->chain.lock, NULL);
    memcpy(g->lanes, options->lanes, sizeof g->lanes);
    epw_status status = load_kernel(g, where);
    if (status == EPW_OK) status = epw_cuda_stream_create(g->device, where, &g->stream);
    if (status == EPW_OK) status = make_events(g, peers->lanes, options->joined, where);
    if (status == EPW_OK) status = make_pinned(g, options, where);
    if (status == EPW_OK) status = epw_remote_gpu_open(peers, where);
    for (uint32_t lane = 0; status == EPW_OK && lane < peers->lanes; lane++) {
        epw_gpu_peers made = {.shared = options->shared,
                              .lane = lane,
                              .lanes = peers->lanes,
                              .ways = g->ways != NULL ? g->ways + (size_t)lane * EPW_GPU_PEERS : NULL,
                              .broken = &g->pinned->broken,
                              .deadline_ns = g->deadline_ns};
        fill(made.table, peers->rank, &peers->routes[peers->rank].lanes[lane]);
        status = epw_cuda_copy(g->device, g->stream, g->lanes[lane], &made, sizeof made, where);
    }
    return status;
}

void epw_peers_close_gpu(epw_peers *peers) {
    epw_peers_gpu *g = peers->gpu;
    if (g == NULL) return;
    epw_where where = {"destroy", (int)peers->rank, -1};
    epw_cuda_scope scope;
    if (g->event != NULL && epw_cuda_enter_relaxed(g->device, where, &scope) == EPW_OK) {
        cudaEventDestroy(g->event);
        if (g->lines_copied != NULL) cudaEventDestroy(g->lines_copied);
        for (uint32_t use = 0; use < EPW_WORD_COPIES; use++) {
            if (g->copied[use] != NULL) cudaEventDestroy(g->copied[use]);
        }
        for (uint32_t lane = 0; lane < peers->lanes; lane++) epw_stream_order_free(&g->orders[lane]);
        epw_stream_order_free(&g->looks);
        epw_cuda_leave_relaxed(&scope);
    }
    epw_remote_gpu_close(peers);
    if (g->stream != NULL) epw_cuda_stream_destroy(g->device, g->stream);
    if (g->pinned != NULL) epw_cuda_host_free(g->device, g->pinned);
    pthread_mutex_destroy(&g->chain.lock);
    free(g);
    peers->gpu = NULL;
}

/* ---- copies ---- */

/* Called within a scope of the GPU. `call` names in an error what was copied. */
static epw_status enqueue(const epw_peers_gpu *g, void *to, const void *from, epw_where where,
                          const char *call) {
    cudaError_t error = cudaMemcpyAsync(to, from, sizeof(uint64_t), cudaMemcpyDefault, g->stream);
    return error == cudaSuccess ? EPW_OK : epw_fail_cuda(error, where, call);
}

epw_status epw_peers_enter(const epw_peers *peers, uint32_t peer, const epw_route *route, epw_where where) {
    epw_peers_gpu *g = peers->gpu;
    epw_status status = epw_cuda_enter(g->device, where);
    if (status != EPW_OK) return status;
    epw_gpu_way ways[EPW_MAX_LANES];
    bool queued = route->path == EPW_PATH_QUEUE;
    if (queued) epw_remote_ways(peers, peer, ways);
    status = epw_remote_gpu_enter(peers, peer, queued ? ways : NULL, where);
    for (uint32_t lane = 0; status == EPW_OK && lane < peers->lanes; lane++) {
        fill(g->pinned->tables[lane], peer, &route->lanes[lane]);
        for (uint32_t area = 0; status == EPW_OK && area < EPW_AREAS; area++) {
            status = enqueue(g, &g->lanes[lane]->table[area][peer], &g->pinned->tables[lane][area][peer],
                             where, "cudaMemcpyAsync to the peer table");
        }
    }
    epw_cuda_leave();
    return status == EPW_OK ? epw_peers_settle_change(peers, where) : status;
}

/* Writer: this rank's copies, after the host has seen the end of the kernels that wrote there. Reader: any
 * wait for this rank, which acquires. */
epw_status epw_peers_say_farewell(epw_peers *peers, const epw_mask *told, uint64_t until_ns,
                                  epw_where where) {
    epw_peers_gpu *g = peers->gpu;
    uint64_t flushed_by = epw_now_ns() + EPW_FLUSH_NS; /* to all peers together */
    if (flushed_by > until_ns) flushed_by = until_ns;
    epw_status status = epw_cuda_enter(g->device, where);
    if (status != EPW_OK) return status;
    g->pinned->farewell = epw_word(peers->epoch, 0, 0);
    EPW_MASK_FOR(peer, &peers->active, peers->ranks) {
        if (peer == peers->rank || epw_mask_has(told, peer)) continue;
        if (peers->routes[peer].path == EPW_PATH_NONE) continue; /* was told when it was disconnected */
        if (peers->routes[peer].path == EPW_PATH_QUEUE) {
            epw_remote_say_farewell(peers, peer, g->pinned->farewell, flushed_by);
            continue;
        }
        for (uint32_t lane = 0; lane < peers->lanes; lane++) {
            uint64_t offset = epw_word_offset(peers->rank, lane, EPW_WORD_DROPPED);
            epw_status copied = enqueue(g, epw_control_at(peers, lane, peer, offset), &g->pinned->farewell,
                                        where, "cudaMemcpyAsync to a peer's window");
            if (copied != EPW_OK) status = copied; /* the others are told anyway */
        }
    }
    epw_cuda_leave();
    epw_status settled = epw_peers_settle(peers, g->deadline_ns, where);
    return settled == EPW_OK ? status : settled;
}

epw_status epw_peers_copy_word(const epw_peers *peers, const epw_word_copy *copy, uint64_t timeout_ns,
                               epw_where where) {
    epw_peers_gpu *g = peers->gpu;
    uint64_t *pinned = &g->pinned->words[copy->use][where.peer];
    epw_cuda_scope scope;
    epw_status status = epw_cuda_enter_relaxed(g->device, where, &scope);
    if (status != EPW_OK) return status;
    if (copy->writes) *pinned = *copy->value;
    g->probed = true;
    void *to = copy->writes ? (void *)copy->at : pinned;
    const void *from = copy->writes ? (const void *)pinned : copy->at;
    status = enqueue(g, to, from, where, "cudaMemcpyAsync of a word");
    epw_cuda_leave_relaxed(&scope);
    if (status == EPW_OK) status = settle(peers, g->copied[copy->use], timeout_ns, where);
    if (status == EPW_OK && !copy->writes) *copy->value = *pinned;
    if (status != EPW_PENDING) return status;
    return epw_fail(EPW_ERR_TIMEOUT, where, "this rank's GPU has not copied a word within %llu ms",
                    (unsigned long long)(timeout_ns / 1000000u));
}
epw_status epw_peers_copy_own_word(const epw_peers *peers, uint32_t word, uint64_t *value, epw_where where) {
    unsigned char *at = epw_peers_own(peers) + epw_word_offset(peers->rank, 0, word);
    epw_word_copy copy = {.use = EPW_COPY_OWN, .at = at, .value = value};
    where.peer = (int)peers->rank;
    return epw_peers_copy_word(peers, &copy, peers->gpu->deadline_ns, where);
}

static epw_status begin_copy_of_lines(const epw_peers *peers, epw_where where) {
    epw_peers_gpu *g = peers->gpu;
    epw_cuda_scope scope;
    epw_status status = epw_cuda_enter_relaxed(g->device, where, &scope);
    if (status != EPW_OK) return status;
    g->probed = true;
    cudaError_t error = cudaSuccess;
    for (uint32_t copy = 0; error == cudaSuccess && copy < EPW_LINE_COPIES; copy++) {
        error = cudaMemcpyAsync(g->pinned->lines[copy], epw_peers_own(peers) + EPW_LINES_OFFSET,
                                peers->ranks * sizeof(epw_line), cudaMemcpyDefault, g->stream);
    }
    if (error == cudaSuccess) error = cudaEventRecord(g->lines_copied, g->stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "cudaMemcpyAsync of signal words");
    epw_cuda_leave_relaxed(&scope);
    return status;
}

epw_status epw_peers_copy_lines(const epw_peers *peers, uint64_t timeout_ns, bool *fresh, epw_where where) {
    epw_peers_gpu *g = peers->gpu;
    epw_status status = EPW_OK;
    *fresh = !g->lines_under_way;
    if (*fresh) status = begin_copy_of_lines(peers, where);
    if (status == EPW_OK) status = epw_peers_await_event(peers, g->lines_copied, timeout_ns, where);
    g->lines_under_way = status == EPW_PENDING;
    return status;
}
#else
epw_status epw_peers_enter(const epw_peers *peers, uint32_t peer, const epw_route *route, epw_where where) {
    (void)peers, (void)peer, (void)route;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
}

epw_status epw_peers_copy_word(const epw_peers *peers, const epw_word_copy *copy, uint64_t timeout_ns,
                               epw_where where) {
    (void)peers, (void)copy, (void)timeout_ns;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
}
#endif
