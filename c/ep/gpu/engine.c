/* The GPU engine: what a buffer has beside its window when kernels move the bytes, and how peers and
 * membership reach the kernels. Operations are in call.c.
 *
 * What kernels know lies in device memory (kernels/peer/context.h, kernels/ep/lane.h). It is changed only in
 * stream order: the host first sees the lanes' enqueued work done, then changes it on the peer floor's stream
 * (peer/gpu.h) and sees that done, so that whatever is enqueued afterwards, on any stream, finds the new
 * state. Replays of graphs are ordered by the caller, as are all of a graph's. */
#ifdef EPW_CUDA
#include "ep/gpu/gpu.h"

#include "base/clock.h"
#include "device/cuda.h"
#include "device/sm_ledger.h"
#include "ep/plan.h"
#include "peer/remote_gpu.h"

#include <stddef.h>
#include <stdlib.h>

/* ---- bounded waits for the lanes ---- */

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
        status = epw_peers_await_event(&b->peers, lane->event, waited < timeout_ns ? timeout_ns - waited : 0,
                                       where);
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

/* ---- device memory ---- */

typedef struct arena {
    unsigned char *base; /* NULL: only the sum is wanted */
    uint64_t used;
} arena;

static void *take(arena *a, uint64_t bytes) {
    void *at = a->base != NULL ? a->base + a->used : NULL;
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

static uint64_t arena_bytes(const epw_config *config) {
    epw_gpu_shared *shared;
    epw_gpu_lane lanes[EPW_MAX_LANES];
    return carve(config, NULL, &shared, lanes);
}

uint64_t epw_gpu_private_bytes(const epw_config *config) {
    uint64_t queues = 0;
    if (config->fabric != NULL && (config->paths & EPW_PATH_QUEUE))
        queues = epw_remote_gpu_ways_bytes(config->lanes) +
                 epw_remote_gpu_marks_bytes(config->lanes, config->ranks, epw_plan_queue_depth(config));
    return arena_bytes(config) + queues;
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
    status = epw_cuda_alloc(ordinal, arena_bytes(&b->config), where, &g->memory);
    if (status != EPW_OK) return status;

    carve(&b->config, g->memory, &g->shared, g->lanes);
    epw_peers_gpu_options floor = {
        .device = ordinal, .deadline_ns = b->config.deadline_ns, .shared = g->shared};
    for (uint32_t i = 0; i < b->config.lanes; i++) floor.lanes[i] = g->lanes[i].peers;
    status = epw_peers_open_gpu(&b->peers, &floor, where);
    if (status != EPW_OK) return status;

    void *stream = b->peers.gpu->stream;
    epw_gpu_shared shared = {.suspects_host = SEEN_BY_GPU(device, suspects),
                             .silent_host = SEEN_BY_GPU(device, silent),
                             .revoked = SEEN_BY_GPU(device, revoked),
                             .ring = SEEN_BY_GPU(device, ring)};
    status = epw_cuda_copy(ordinal, stream, g->shared, &shared, sizeof shared, where);
    for (uint32_t i = 0; status == EPW_OK && i < b->config.lanes; i++) {
        epw_gpu_lane *lane = &g->lanes[i];
        epw_gpu_lane_state state = {.blocks = g->blocks, .ordered = b->config.ordered};
        status = epw_cuda_copy(ordinal, stream, lane->state, &state, sizeof state, where);
        /* An address in device memory, for the view of received rows. */
        uintptr_t received = (uintptr_t)lane->state + offsetof(epw_gpu_lane_state, received);
        b->lanes[i].received = (uint32_t *)received;
    }
    return status;
}

/* ---- life ---- */

/* Blocks of a kernel: so many that those of all lanes have an SM each, of this buffer's share. Two lanes on
 * two streams must never keep each other off the GPU: a peer may wait for one with its other lane. */
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
    if (blocks > rows) blocks = (uint32_t)rows;
    epw_sm_request request = {.device = b->config.device,
                              .sms = sms,
                              .least = b->config.sms == 0 ? lanes : blocks * lanes,
                              .most = blocks * lanes,
                              .multiple = lanes,
                              .holder = "buffer",
                              .rank = b->config.rank};
    status = epw_sm_ledger_take(&request, where, &b->gpu->share);
    if (status == EPW_OK) b->gpu->blocks = epw_sm_share_of(b->gpu->share) / lanes;
    return status;
}

/* Loads the kernels and makes the events. */
static epw_status make_ready(epw_buffer *b, epw_where where) {
    epw_gpu *g = b->gpu;
    epw_cuda_scope scope;
    epw_status status = epw_cuda_enter_relaxed(b->config.device, where, &scope);
    if (status != EPW_OK) return status;
    int error = epw_gpu_prepare();
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "loading the kernels");
    for (uint32_t i = 0; status == EPW_OK && i < b->config.lanes; i++) {
        error = cudaEventCreateWithFlags(&g->lanes[i].event, cudaEventDisableTiming);
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
    return status == EPW_OK ? make_memory(b, where) : status;
}

/* Writer of each word: that lane's kernels, into mapped memory; of all: the membership kernel. */
static epw_mask of_all_lanes(const epw_buffer *b, const epw_rank_set sets[EPW_MAX_LANES]) {
    epw_mask all = {{0}};
    for (uint32_t i = 0; i < b->config.lanes; i++) epw_ranks_join(&all, &sets[i]);
    return all;
}

/* A kernel waits twice at most, for permission and for rows, each time for EPW_WAIT_DEADLINES_MAX deadlines;
 * and where blocks of it are late, the one that closes it waits as long for them, twice. */
static bool gpu_leave(epw_buffer *b) {
    epw_where where = epw_buffer_where(b, "destroy");
    uint64_t bound = 3 * 2 * EPW_WAIT_DEADLINES_MAX * b->config.deadline_ns;
    if (b->peers.gpu == NULL) return true;
    /* Without a membership nothing touches a window but what probes have copied. */
    if (b->peers.epoch == 0)
        return !b->peers.gpu->probed || epw_peers_settle(&b->peers, bound, where) != EPW_PENDING;
    epw_status status = await_lanes(b, LOCKED, bound, where); /* nobody else calls any more */
    if (status == EPW_ERR_STATE) return false;                /* work may still be running */
    /* Suspects have been told by kernels, but for those that were revoked and not waited for since. */
    epw_mask told = of_all_lanes(b, b->gpu->pinned->suspects);
    if (status == EPW_OK) status = epw_peers_say_farewell(&b->peers, &told, where);
    return status != EPW_PENDING; /* a GPU that has failed touches nothing any more */
}

static void gpu_close(epw_buffer *b) {
    epw_gpu *g = b->gpu;
    if (g == NULL) return;
    int32_t ordinal = b->config.device;
    epw_cuda_scope scope;
    if (epw_cuda_enter_relaxed(ordinal, epw_buffer_where(b, "destroy"), &scope) == EPW_OK) {
        for (uint32_t i = 0; i < b->config.lanes; i++) {
            if (g->lanes[i].event != NULL) cudaEventDestroy(g->lanes[i].event);
        }
        epw_cuda_leave_relaxed(&scope);
    }
    if (g->memory != NULL) epw_cuda_free(ordinal, g->memory); /* waits for copies that were given up */
    epw_peers_close_gpu(&b->peers);
    if (g->pinned != NULL) epw_cuda_host_free(ordinal, g->pinned);
    epw_sm_ledger_give(g->share); /* no kernel of it runs any more */
    pthread_mutex_destroy(&g->errors_lock);
    free(g);
    b->gpu = NULL;
}

/* CUDA's objects are left to CUDA, which does not work in a fork's child. */
static void gpu_abandon(epw_buffer *b) {
    free(b->gpu);
}

/* ---- peers and membership ---- */

/* Takes the peer out of the tables, and out of what graphs have begun and not ended. Kernels have told it
 * already, as a suspect or as a member that has left. */
static epw_status gpu_part(epw_buffer *b, uint32_t peer, epw_where where) {
    epw_status status = require_lanes_idle(b, LOCKED, where);
    if (status == EPW_OK) status = epw_cuda_enter(b->config.device, where);
    if (status != EPW_OK) return status;
    epw_disconnect_args args = {.rank = b->config.rank, .ranks = b->config.ranks, .peer = peer};
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        args.peers[i] = b->gpu->lanes[i].peers;
        args.states[i] = b->gpu->lanes[i].state;
    }
    int error = epw_gpu_disconnect(&args, b->peers.gpu->stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "launch of the disconnect kernel");
    epw_cuda_leave();
    return status == EPW_OK ? epw_peers_settle_change(&b->peers, where) : status;
}

static epw_status gpu_begin_epoch(epw_buffer *b, const epw_mask *active, uint64_t epoch_word,
                                  const uint64_t *last, epw_where where) {
    epw_gpu *g = b->gpu;
    epw_status status = require_lanes_idle(b, LOCKED, where);
    if (status == EPW_OK) status = epw_cuda_enter(b->config.device, where);
    if (status != EPW_OK) return status;
    epw_membership_args args = {.shared = g->shared,
                                .rank = b->config.rank,
                                .ranks = b->config.ranks,
                                .epoch_word = epoch_word,
                                .active = epw_ranks_of(active),
                                .last = {last[0], last[1]}};
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        args.peers[i] = g->lanes[i].peers;
        args.states[i] = g->lanes[i].state;
    }
    epw_ranks_clear(&g->pinned->revoked); /* no kernel of the old epoch runs */
    int error = epw_gpu_set_active(&args, b->peers.gpu->stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "launch of the membership kernel");
    epw_cuda_leave();
    if (status != EPW_OK) return status;
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        g->lanes[i].owes_release = false; /* the kernel frees the lanes */
        b->lanes[i].machine.op = 0;
    }
    status = epw_peers_settle(&b->peers, b->config.deadline_ns, where);
    if (status == EPW_OK) return EPW_OK;
    /* The kernel may yet run: neither the old membership nor the new one holds. */
    b->peers.epoch = epw_word_epoch(epoch_word);
    b->peers.step = epw_word_step(epoch_word);
    epw_mask_clear(&b->peers.active);
    if (status != EPW_PENDING) return status;
    return epw_fail(EPW_ERR_TIMEOUT, where,
                    "the GPU has not begun the epoch within the deadline of %llu ms: call again, with this "
                    "epoch and step or a larger epoch",
                    (unsigned long long)(b->config.deadline_ns / 1000000u));
}

/* ---- verdicts ---- */

/* No work of the lanes is under way that could post another one. */
static epw_status gpu_last_report(epw_buffer *b, uint64_t *report, epw_where where) {
    epw_status status = require_lanes_idle(b, LOCKED, where);
    if (status != EPW_OK) return status;
    return epw_peers_copy_own_word(&b->peers, EPW_WORD_REPORT, report, where);
}

/* Longer than copies take on a GPU that does not copy otherwise, and short for a thread that serves. */
#define REPORTS_WITHIN_NS UINT64_C(200000)

static epw_status gpu_fetch_reports(epw_buffer *b, bool *fresh, epw_where where) {
    return epw_peers_copy_lines(&b->peers, REPORTS_WITHIN_NS, fresh, where);
}

/* What is loaded after another word comes from a later copy. */
static epw_reports gpu_reports(const epw_buffer *b, uint32_t peer) {
    epw_reports of;
    of.report = epw_copied_word(&b->peers, 0, peer, EPW_WORD_REPORT);
    of.epoch_word = epw_copied_word(&b->peers, 0, peer, EPW_WORD_EPOCH);
    of.last_but_one = epw_copied_word(&b->peers, 1, peer, EPW_WORD_LAST_BUT_ONE);
    of.last = epw_copied_word(&b->peers, 2, peer, EPW_WORD_LAST);
    return of;
}

static epw_mask gpu_suspects(const epw_buffer *b, epw_mask *silent) {
    const epw_gpu_pinned *pinned = b->gpu->pinned;
    epw_mask suspects = of_all_lanes(b, pinned->suspects);
    epw_ranks_join(&suspects, &pinned->revoked);
    if (silent == NULL) return suspects;
    *silent = of_all_lanes(b, pinned->silent);
    for (uint32_t i = 0; i < EPW_MASK_WORDS; i++) silent->bits[i] &= suspects.bits[i];
    return suspects;
}

/* Writer: this thread. Reader: kernels that wait long. Nothing else goes with the bits. */
static void gpu_revoke(epw_buffer *b, const epw_mask *members) {
    EPW_MASK_FOR(peer, members, b->config.ranks) epw_ranks_insert(&b->gpu->pinned->revoked, peer);
}

const epw_engine epw_engine_gpu = {
    .open = gpu_open,
    .leave = gpu_leave,
    .close = gpu_close,
    .abandon = gpu_abandon,
    .quiesce = gpu_quiesce,
    .part = gpu_part,
    .begin_epoch = gpu_begin_epoch,
    .suspects = gpu_suspects,
    .revoke = gpu_revoke,
    .report = epw_gpu_call_report,
    .last_report = gpu_last_report,
    .reports = gpu_reports,
    .fetch_reports = gpu_fetch_reports,
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
