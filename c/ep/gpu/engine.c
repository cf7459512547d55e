/* The GPU engine: what a buffer has beside its window when kernels move the bytes, and how peers and
 * membership reach the kernels. Operations are in call.c.
 *
 * What kernels know lies in device memory (kernels/peer/context.h, kernels/ep/lane.h). It is changed only in
 * stream order: the host first sees the lanes' enqueued work done, then changes it on a stream of the
 * engine's own and sees that done, so that whatever is enqueued afterwards, on any stream, finds the new
 * state. Replays of graphs are ordered by the caller, as are all of a graph's. */
#ifdef EPW_CUDA
#include "ep/gpu/gpu.h"

#include "base/clock.h"
#include "device/cuda.h"

#include <sched.h>
#include <stddef.h>
#include <stdlib.h>

/* A host thread that waits for the GPU looks all the time for so long, then between sleeps that grow. */
#define LOOK_NS      UINT64_C(20000)
#define SLEEP_MIN_NS 10000L
#define SLEEP_MAX_NS 500000L

/* ---- bounded waits for the GPU ---- */

epw_status epw_gpu_await_event(const epw_buffer *b, cudaEvent_t event, uint64_t timeout_ns, epw_where where) {
    epw_cuda_scope scope;
    epw_status status = epw_cuda_enter_relaxed(b->config.device, where, &scope);
    if (status != EPW_OK) return status;
    uint64_t began = epw_now_ns();
    long sleep_ns = SLEEP_MIN_NS;
    for (;;) {
        cudaError_t error = cudaEventQuery(event);
        if (error != cudaErrorNotReady) {
            status = error == cudaSuccess ? EPW_OK : epw_fail_cuda(error, where, "cudaEventQuery");
            break;
        }
        cudaGetLastError(); /* "not ready" is no error to leave behind for others to find */
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

epw_status epw_gpu_require_marked(const epw_gpu_lane *lane, epw_where where) {
    if (!lane->unmarked) return EPW_OK;
    return epw_fail(EPW_ERR_STATE, where,
                    "CUDA could record no event behind the lane's last call, so nobody can wait for its end: "
                    "make the lane's next call on the same stream");
}

/* Whether the lanes are locked by who waits for them. If not, other threads go on calling, and what they
 * enqueue is waited for too, within the bound. */
typedef enum holding { LOCKED, UNLOCKED } holding;

/* Waits for what the calls have enqueued on all lanes, at most timeout_ns in all. */
static epw_status await_lanes(epw_buffer *b, holding lanes, uint64_t timeout_ns, epw_where where) {
    uint64_t began = epw_now_ns();
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        const epw_gpu_lane *lane = &b->gpu->lanes[i];
        if (lanes == UNLOCKED) pthread_mutex_lock(&b->lanes[i].lock);
        bool enqueued = lane->enqueued;
        epw_status status = epw_gpu_require_marked(lane, where);
        if (lanes == UNLOCKED) pthread_mutex_unlock(&b->lanes[i].lock);
        if (status != EPW_OK) return status;
        if (!enqueued) continue;
        uint64_t waited = epw_now_ns() - began;
        status = epw_gpu_await_event(b, lane->event, waited < timeout_ns ? timeout_ns - waited : 0, where);
        if (status != EPW_OK) return status;
    }
    return EPW_OK;
}

static epw_status require_lanes_idle(epw_buffer *b, holding lanes, epw_where where) {
    epw_status status = await_lanes(b, lanes, b->config.deadline_ns, where);
    if (status != EPW_PENDING) return status;
    return epw_fail(
        EPW_ERR_TIMEOUT, where,
        "what was enqueued before has not run within the deadline of %llu ms: wait for its stream",
        (unsigned long long)(b->config.deadline_ns / 1000000u));
}

static epw_status gpu_quiesce(epw_buffer *b, epw_where where) {
    return require_lanes_idle(b, UNLOCKED, where);
}

epw_status epw_gpu_settle(const epw_buffer *b, uint64_t timeout_ns, epw_where where) {
    epw_status status = epw_cuda_enter(b->config.device, where);
    if (status != EPW_OK) return status;
    cudaError_t error = cudaEventRecord(b->gpu->event, b->gpu->stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "cudaEventRecord");
    epw_cuda_leave();
    return status == EPW_OK ? epw_gpu_await_event(b, b->gpu->event, timeout_ns, where) : status;
}

/* ---- device memory ---- */

typedef struct arena {
    unsigned char *base; /* NULL: only the sum is wanted */
    uint64_t used;
} arena;

static void *take(arena *a, uint64_t bytes) {
    void *at = a->base ? a->base + a->used : NULL;
    a->used += epw_align(bytes, 256);
    return at;
}

/* Everything in device memory beside the window. */
static uint64_t carve(const epw_config *c, void *memory, epw_gpu_shared **shared,
                      epw_gpu_lane lanes[EPW_MAX_LANES]) {
    arena a = {memory, 0};
    uint64_t entries = (uint64_t)c->max_tokens * c->topk;
    *shared = take(&a, sizeof **shared);
    for (uint32_t i = 0; i < c->lanes; i++) {
        epw_gpu_arrays *arrays = &lanes[i].arrays;
        lanes[i].peers = take(&a, sizeof *lanes[i].peers);
        lanes[i].state = take(&a, sizeof *lanes[i].state);
        arrays->first_row = take(&a, c->experts * sizeof *arrays->first_row);
        arrays->ids = take(&a, entries * sizeof *arrays->ids);
        arrays->weights = take(&a, entries * sizeof *arrays->weights);
        arrays->sent_row = take(&a, entries * sizeof *arrays->sent_row);
        arrays->report = take(&a, sizeof *arrays->report);
    }
    return a.used;
}

uint64_t epw_gpu_private_bytes(const epw_config *config) {
    epw_gpu_shared *shared;
    epw_gpu_lane lanes[EPW_MAX_LANES];
    return carve(config, NULL, &shared, lanes);
}

/* The same byte of the pinned memory as the GPU addresses it. */
#define SEEN_BY_GPU(device, field) ((void *)((unsigned char *)(device) + offsetof(epw_gpu_pinned, field)))

static epw_status make_memory(epw_buffer *b, epw_where where) {
    epw_gpu *g = b->gpu;
    int32_t ordinal = b->config.device;
    void *host, *device;
    epw_status status = epw_cuda_host_alloc(ordinal, sizeof *g->pinned, where, &host, &device);
    if (status != EPW_OK) return status;
    g->pinned = host;
    status = epw_cuda_alloc(ordinal, epw_gpu_private_bytes(&b->config), where, &g->memory);
    if (status != EPW_OK) return status;

    carve(&b->config, g->memory, &g->shared, g->lanes);
    epw_gpu_shared shared = {.suspects_host = SEEN_BY_GPU(device, suspects),
                             .ring = SEEN_BY_GPU(device, ring)};
    status = epw_cuda_copy(ordinal, g->stream, g->shared, &shared, sizeof shared, where);
    for (uint32_t i = 0; status == EPW_OK && i < b->config.lanes; i++) {
        epw_gpu_lane *lane = &g->lanes[i];
        epw_gpu_peers peers = {.shared = g->shared, .lane = i, .lanes = b->config.lanes};
        epw_gpu_lane_state state = {.blocks = g->blocks, .ordered = b->config.ordered};
        peers.deadline_ns = b->config.deadline_ns;
        for (uint32_t area = 0; area < EPW_AREAS; area++)
            *epw_gpu_entry(&peers, area, b->config.rank) = (uintptr_t)epw_peers_own(&b->peers);
        status = epw_cuda_copy(ordinal, g->stream, lane->peers, &peers, sizeof peers, where);
        if (status == EPW_OK)
            status = epw_cuda_copy(ordinal, g->stream, lane->state, &state, sizeof state, where);
        /* An address in device memory, for the view of received rows. */
        uintptr_t received = (uintptr_t)lane->state + offsetof(epw_gpu_lane_state, received);
        b->lanes[i].received = (uint32_t *)received;
    }
    return status;
}

/* ---- life ---- */

/* Blocks of a kernel: so many that those of all lanes have an SM each. Two lanes on two streams must never
 * keep each other off the GPU: a peer may wait for one with its other lane. That two blocks fit on one SM is
 * no promise: how much of it is shared memory depends on what else runs there. */
static epw_status choose_blocks(epw_buffer *b, epw_where where) {
    uint32_t sms = 0, wanted = b->config.sms, lanes = b->config.lanes;
    epw_status status = epw_cuda_sms(b->config.device, where, &sms);
    if (status != EPW_OK) return status;
    if (wanted == 0) wanted = sms;
    if (wanted > sms || wanted < lanes) {
        return epw_fail(EPW_ERR_LIMIT, where, "sms is %u, must be in [%u, %u]: lanes, and SMs of the GPU",
                        wanted, lanes, sms);
    }
    /* More than a kernel can have rows would find no work. */
    uint64_t rows = (uint64_t)b->config.ranks * b->config.max_tokens;
    uint32_t blocks = wanted / lanes < EPW_GPU_BLOCKS ? wanted / lanes : EPW_GPU_BLOCKS;
    b->gpu->blocks = blocks < rows ? blocks : (uint32_t)rows;
    return EPW_OK;
}

/* Loads the kernels and makes the events. */
static epw_status make_ready(epw_buffer *b, epw_where where) {
    epw_gpu *g = b->gpu;
    epw_cuda_scope scope;
    epw_status status = epw_cuda_enter_relaxed(b->config.device, where, &scope);
    if (status != EPW_OK) return status;
    int error = epw_gpu_prepare();
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "loading the kernels");
    for (uint32_t i = 0; status == EPW_OK && i <= b->config.lanes; i++) {
        cudaEvent_t *event = i < b->config.lanes ? &g->lanes[i].event : &g->event;
        error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
        if (error != cudaSuccess) status = epw_fail_cuda(error, where, "cudaEventCreateWithFlags");
    }
    epw_cuda_leave_relaxed(&scope);
    return status;
}

static epw_status gpu_open(epw_buffer *b) {
    epw_where where = epw_buffer_where(b, "create");
    epw_gpu *g = calloc(1, sizeof *g);
    if (g == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the GPU's description");
    b->gpu = g;
    pthread_mutex_init(&g->errors_lock, NULL);
    epw_status status = epw_cuda_open(b->config.device, where);
    if (status == EPW_OK) status = make_ready(b, where);
    if (status == EPW_OK) status = choose_blocks(b, where);
    if (status == EPW_OK) status = epw_cuda_stream_create(b->config.device, where, &g->stream);
    return status == EPW_OK ? make_memory(b, where) : status;
}

/* Tells active peers, each in its window, that nobody need wait for this rank any longer. */
static epw_status drop_peers(epw_buffer *b, epw_where where) {
    epw_gpu *g = b->gpu;
    epw_status status = epw_cuda_enter(b->config.device, where);
    if (status != EPW_OK) return status;
    epw_mask suspects = b->engine->suspects(b); /* they have been told */
    g->pinned->farewell = epw_farewell(&b->peers);
    EPW_MASK_FOR(peer, &b->peers.active, b->config.ranks) {
        if (peer == b->config.rank || epw_mask_has(&suspects, peer)) continue;
        for (uint32_t lane = 0; lane < b->config.lanes; lane++) {
            unsigned char *at = epw_farewell_at(&b->peers, lane, peer);
            cudaError_t error = cudaMemcpyAsync(at, &g->pinned->farewell, sizeof g->pinned->farewell,
                                                cudaMemcpyDefault, g->stream);
            if (error != cudaSuccess)
                status = epw_fail_cuda(error, where, "cudaMemcpyAsync to a peer's window");
        }
    }
    epw_cuda_leave();
    return status;
}

/* A kernel waits twice at most, for permission and for rows, each time for EPW_WAIT_DEADLINES_MAX deadlines;
 * and where blocks of it are late, the one that closes it waits as long for them, twice. */
static bool gpu_leave(epw_buffer *b) {
    epw_where where = epw_buffer_where(b, "destroy");
    uint64_t bound = 3 * 2 * EPW_WAIT_DEADLINES_MAX * b->config.deadline_ns;
    if (b->gpu == NULL || b->gpu->pinned == NULL) return true;
    /* Without a membership nothing touches a window but what probes have copied. */
    if (b->peers.epoch == 0) return !b->gpu->probed || epw_gpu_settle(b, bound, where) != EPW_PENDING;
    epw_status status = await_lanes(b, LOCKED, bound, where); /* nobody else calls any more */
    if (status == EPW_ERR_STATE) return false;                /* who knows what still runs */
    if (status == EPW_OK) {
        drop_peers(b, where);
        status = epw_gpu_settle(b, b->config.deadline_ns, where);
    }
    return status != EPW_PENDING; /* a GPU that has failed touches nothing any more */
}

static void gpu_close(epw_buffer *b) {
    epw_gpu *g = b->gpu;
    if (g == NULL) return;
    int32_t ordinal = b->config.device;
    epw_cuda_scope scope;
    if (epw_cuda_enter_relaxed(ordinal, epw_buffer_where(b, "destroy"), &scope) == EPW_OK) {
        if (g->event != NULL) cudaEventDestroy(g->event);
        for (uint32_t i = 0; i < b->config.lanes; i++) {
            if (g->lanes[i].event != NULL) cudaEventDestroy(g->lanes[i].event);
        }
        epw_cuda_leave_relaxed(&scope);
    }
    if (g->stream != NULL) epw_cuda_stream_destroy(ordinal, g->stream);
    if (g->memory != NULL) epw_cuda_free(ordinal, g->memory);
    if (g->pinned != NULL) epw_cuda_host_free(ordinal, g->pinned);
    pthread_mutex_destroy(&g->errors_lock);
    free(g);
    b->gpu = NULL;
}

/* What is CUDA's is left to CUDA, which does not work here. */
static void gpu_abandon(epw_buffer *b) {
    free(b->gpu);
}

/* ---- peers and membership ---- */

/* Writes the peer's window into the peer table of every lane. The peer is not active: kernels that run
 * meanwhile have no use for its entry. */
static epw_status enter_peer(epw_buffer *b, uint32_t peer, unsigned char *window, epw_where where) {
    epw_gpu *g = b->gpu;
    g->pinned->windows[peer] = (uintptr_t)window;
    for (uint32_t i = 0; i < b->config.lanes * EPW_AREAS; i++) {
        uint64_t *entry = epw_gpu_entry(g->lanes[i / EPW_AREAS].peers, i % EPW_AREAS, peer);
        cudaError_t error = cudaMemcpyAsync(entry, &g->pinned->windows[peer], sizeof *entry,
                                            cudaMemcpyHostToDevice, g->stream);
        if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaMemcpyAsync to the peer table");
    }
    return EPW_OK;
}

/* Takes the peer out of the tables, and out of what graphs have begun and not ended. */
static epw_status forget_peer(epw_buffer *b, uint32_t peer, epw_where where) {
    epw_disconnect_args args = {.rank = b->config.rank, .ranks = b->config.ranks, .peer = peer};
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        args.peers[i] = b->gpu->lanes[i].peers;
        args.states[i] = b->gpu->lanes[i].state;
    }
    int error = epw_gpu_disconnect(&args, b->gpu->stream);
    return error == cudaSuccess ? EPW_OK : epw_fail_cuda(error, where, "launch of the disconnect kernel");
}

static epw_status gpu_reach(epw_buffer *b, uint32_t peer, const epw_route *route, epw_where where) {
    unsigned char *window = epw_at(route->lanes[0].control, 0); /* NULL: there is no route */
    epw_status status = window ? EPW_OK : require_lanes_idle(b, LOCKED, where);
    if (status == EPW_OK) status = epw_cuda_enter(b->config.device, where);
    if (status != EPW_OK) return status;
    status = window ? enter_peer(b, peer, window, where) : forget_peer(b, peer, where);
    epw_cuda_leave();
    if (status == EPW_OK) status = epw_gpu_settle(b, b->config.deadline_ns, where);
    if (status != EPW_PENDING) return status;
    return epw_fail(EPW_ERR_TIMEOUT, where, "the GPU has not taken the change within the deadline of %llu ms",
                    (unsigned long long)(b->config.deadline_ns / 1000000u));
}

static epw_status gpu_begin_epoch(epw_buffer *b, const epw_mask *active, uint32_t epoch, epw_where where) {
    epw_gpu *g = b->gpu;
    epw_status status = require_lanes_idle(b, LOCKED, where);
    if (status == EPW_OK) status = epw_cuda_enter(b->config.device, where);
    if (status != EPW_OK) return status;
    epw_membership_args args = {.shared = g->shared,
                                .rank = b->config.rank,
                                .ranks = b->config.ranks,
                                .epoch = epoch,
                                .active = active->bits[0]};
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        args.peers[i] = g->lanes[i].peers;
        args.states[i] = g->lanes[i].state;
    }
    int error = epw_gpu_set_active(&args, g->stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "launch of the membership kernel");
    epw_cuda_leave();
    if (status != EPW_OK) return status;
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        g->lanes[i].owes_release = false; /* the kernel frees the lanes */
        b->lanes[i].machine.op = 0;
    }
    status = epw_gpu_settle(b, b->config.deadline_ns, where);
    if (status == EPW_OK) return EPW_OK;
    /* The kernel may yet run: neither the old membership nor the new one holds. */
    b->peers.epoch = epoch;
    epw_mask_clear(&b->peers.active);
    if (status != EPW_PENDING) return status;
    return epw_fail(
        EPW_ERR_TIMEOUT, where,
        "the GPU has not begun the epoch within the deadline of %llu ms: call again with a larger epoch",
        (unsigned long long)(b->config.deadline_ns / 1000000u));
}

/* Writer of each word: that lane's kernels, into mapped memory; of both: the membership kernel. */
static epw_mask gpu_suspects(const epw_buffer *b) {
    const _Atomic uint64_t *words = (const _Atomic uint64_t *)b->gpu->pinned->suspects;
    epw_mask mask = {{0}};
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        mask.bits[0] |= atomic_load_explicit(&words[i], memory_order_acquire);
    }
    return mask;
}

/* By way of pinned memory, on the engine's own stream: beside kernels that wait on all SMs too, for which a
 * copy engine is enough. */
static epw_status gpu_copy_word(epw_buffer *b, const epw_word_copy *copy, uint64_t timeout_ns,
                                epw_where where) {
    uint64_t *pinned = &b->gpu->pinned->words[copy->use];
    epw_cuda_scope scope;
    epw_status status = epw_cuda_enter_relaxed(b->config.device, where, &scope);
    if (status != EPW_OK) return status;
    if (copy->writes) *pinned = *copy->value;
    b->gpu->probed = true;
    void *to = copy->writes ? (void *)copy->at : pinned;
    const void *from = copy->writes ? (const void *)pinned : copy->at;
    cudaError_t error = cudaMemcpyAsync(to, from, sizeof *pinned, cudaMemcpyDefault, b->gpu->stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "cudaMemcpyAsync of a word");
    epw_cuda_leave_relaxed(&scope);
    if (status == EPW_OK) status = epw_gpu_settle(b, timeout_ns, where);
    if (status == EPW_OK && !copy->writes) *copy->value = *pinned;
    if (status != EPW_PENDING) return status;
    return epw_fail(EPW_ERR_TIMEOUT, where, "this rank's GPU has not copied a word within %llu ms",
                    (unsigned long long)(timeout_ns / 1000000u));
}

const epw_engine epw_engine_gpu = {
    .open = gpu_open,
    .leave = gpu_leave,
    .close = gpu_close,
    .abandon = gpu_abandon,
    .reach = gpu_reach,
    .quiesce = gpu_quiesce,
    .begin_epoch = gpu_begin_epoch,
    .suspects = gpu_suspects,
    .copy_word = gpu_copy_word,
    .dispatch = epw_gpu_call_dispatch,
    .dispatch_receive = epw_gpu_call_dispatch_receive,
    .combine = epw_gpu_call_combine,
    .combine_receive = epw_gpu_call_combine_receive,
    .release = epw_gpu_call_release,
    .poll = epw_gpu_call_poll,
    .ready = epw_gpu_call_ready,
    .await = epw_gpu_call_await,
    .stream_wait = epw_gpu_call_stream_wait,
    .outcome_read = epw_gpu_call_outcome_read,
    .take_errors = epw_gpu_call_take_errors,
};
#else
typedef int epw_no_gpu_engine; /* a file of C has a declaration */
#endif
