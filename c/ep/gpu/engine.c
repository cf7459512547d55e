/* The GPU engine: what a buffer has besides its window when kernels move the bytes, and how kernels learn of
 * peers and memberships. Operations are in call.c.
 *
 * The state of kernels is in device memory (kernels/peer/context.h, kernels/ep/lane.h), and changes only in
 * stream order: the host first waits for the lanes' enqueued work, then changes the state on the peer floor's
 * stream (peer/gpu.h), and waits for that, so that whatever is enqueued afterwards, on any stream, finds the
 * new state. The caller orders replays of graphs. */
#ifdef EPW_CUDA
#include "ep/gpu/gpu.h"

#include "device/cuda.h"
#include "ep/gpu/sms.h"
#include "ep/plan.h"
#include "peer/gpu_engine.h"
#include "peer/remote_gpu.h"

#include <stddef.h>
#include <stdlib.h>

static epw_status gpu_quiesce(epw_buffer *b, epw_where where) {
    return epw_peers_require_idle(&b->peers, EPW_NOT_HELD, where);
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

/* Divides the device memory outside the window. */
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
        arrays->added = take(&a, c->experts / c->ranks * sizeof *arrays->added);
        arrays->ids = take(&a, entries * sizeof *arrays->ids);
        arrays->weights = take(&a, entries * sizeof *arrays->weights);
        arrays->sent_row = take(&a, entries * sizeof *arrays->sent_row);
        arrays->index = take(&a, entries * sizeof *arrays->index);
        arrays->counted = take(&a, EPW_GPU_FEW * (uint64_t)epw_gpu_counted_bytes(c->experts, c->ranks));
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
        .device = ordinal,
        .deadline_ns = b->config.deadline_ns,
        .shared = g->shared,
        .ring = (void *)((unsigned char *)device + offsetof(epw_gpu_pinned, ring)),
        .unmarked = EPW_GPU_UNMARKED,
        .serial = b->config.serial_lanes,
        .joined = true,
    };
    for (uint32_t i = 0; i < b->config.lanes; i++) floor.lanes[i] = g->lanes[i].peers;
    status = epw_peers_open_gpu(&b->peers, &floor, where);

    for (uint32_t i = 0; status == EPW_OK && i < b->config.lanes; i++) {
        epw_gpu_lane *lane = &g->lanes[i];
        epw_gpu_lane_state state = {.blocks = g->blocks, .ordered = b->config.ordered};
        status = epw_cuda_copy(ordinal, b->peers.gpu->stream, lane->state, &state, sizeof state, where);
        /* An address in device memory, for the view of received rows. */
        uintptr_t received = (uintptr_t)lane->state + offsetof(epw_gpu_lane_state, received);
        b->lanes[i].received = (uint32_t *)received;
    }
    return status;
}

/* ---- life ---- */

static epw_status choose_blocks(epw_buffer *b, epw_where where) {
    /* More blocks than a kernel has rows would find no work. */
    uint64_t rows = (uint64_t)b->config.ranks * b->config.max_tokens;
    uint64_t most = rows < EPW_GPU_BLOCKS ? rows : EPW_GPU_BLOCKS;
    return epw_gpu_take_sms(&b->config, most, "buffer", where, &b->gpu->share, &b->gpu->blocks);
}

static epw_status load_kernels(epw_buffer *b, epw_where where) {
    epw_cuda_scope scope;
    epw_status status = epw_cuda_enter_relaxed(b->config.device, where, &scope);
    if (status != EPW_OK) return status;
    int error = epw_gpu_prepare();
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "loading the kernels");
    epw_cuda_leave_relaxed(&scope);
    return status;
}

static epw_status gpu_open(epw_buffer *b) {
    epw_where where = epw_buffer_where(b, "create");
    epw_gpu *g = calloc(1, sizeof *g);
    if (g == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the GPU's description");
    b->gpu = g;
    pthread_mutex_init(&g->traffic_lock, NULL);
    epw_records_open(&g->errors);
    epw_status status = epw_cuda_open(b->config.device, where);
    if (status == EPW_OK) status = load_kernels(b, where);
    if (status == EPW_OK) status = choose_blocks(b, where);
    return status == EPW_OK ? make_memory(b, where) : status;
}

/* A kernel waits at most twice, for permission and for rows, each time for at most EPW_WAIT_DEADLINES_MAX
 * deadlines; if some of its blocks are late, the closing block waits for them as long again, twice. */
static bool gpu_leave(epw_buffer *b) {
    return epw_peers_leave_gpu(&b->peers, 3 * 2 * EPW_WAIT_DEADLINES_MAX * b->config.deadline_ns);
}

static void gpu_close(epw_buffer *b) {
    epw_gpu *g = b->gpu;
    if (g == NULL) return;
    int32_t ordinal = b->config.device;
    if (g->memory != NULL) epw_cuda_free(ordinal, g->memory); /* waits for copies that were given up */
    epw_peers_close_gpu(&b->peers);
    if (g->pinned != NULL) epw_cuda_host_free(ordinal, g->pinned);
    epw_sm_ledger_give(g->share); /* none of its kernels runs any more */
    epw_records_close(&g->errors);
    pthread_mutex_destroy(&g->traffic_lock);
    free(g);
    b->gpu = NULL;
}

/* Leaves CUDA's objects alone, because CUDA does not work in a forked child. */
static void gpu_abandon(epw_buffer *b) {
    free(b->gpu);
}

/* ---- peers and membership ---- */

/* Removes the peer from the tables, and from operations that graphs have begun and not ended. Kernels have
 * told it already, either as a suspect or as a member that has left. */
static epw_status gpu_part(epw_buffer *b, uint32_t peer, epw_where where) {
    epw_status status = epw_peers_require_idle(&b->peers, EPW_HELD, where);
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
    epw_status status = epw_peers_require_idle(&b->peers, EPW_HELD, where);
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
    int error = epw_gpu_set_active(&args, b->peers.gpu->stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "launch of the membership kernel");
    epw_cuda_leave();
    if (status != EPW_OK) return status;
    /* No kernel of the old epoch runs any more, and none of the new one does yet. */
    epw_ranks_clear(&b->peers.gpu->pinned->revoked);
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        g->lanes[i].owes_release = false; /* the kernel frees the lanes */
        b->lanes[i].machine.op = 0;
    }
    return epw_peers_settle_epoch(&b->peers, epoch_word, where);
}

/* ---- verdicts ---- */

/* No work of the lanes that could post another report is under way. */
static epw_status gpu_last_report(epw_buffer *b, uint64_t *report, epw_where where) {
    epw_status status = epw_peers_require_idle(&b->peers, EPW_HELD, where);
    if (status != EPW_OK) return status;
    return epw_peers_copy_own_word(&b->peers, EPW_WORD_REPORT, report, where);
}

/* Longer than copies take on a GPU whose copy engines are idle, but short for a thread that serves requests.
 */
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
    return epw_peers_gpu_suspects(&b->peers, silent);
}

static void gpu_revoke(epw_buffer *b, const epw_mask *members) {
    epw_peers_gpu_revoke(&b->peers, members);
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
    .look = epw_gpu_call_look,
    .stream_wait = epw_gpu_call_stream_wait,
    .outcome_read = epw_gpu_call_outcome_read,
    .traffic = epw_gpu_call_traffic,
    .take_errors = epw_gpu_call_take_errors,
};
#else
typedef int epw_no_gpu_engine; /* a file of C has a declaration */
#endif
