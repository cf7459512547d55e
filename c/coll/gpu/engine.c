/* See gpu.h. The state of kernels is in device memory (kernels/coll/state.h), and changes only in stream
 * order: the host first waits for the enqueued work, then changes the state on the peer floor's stream
 * (peer/gpu.h), and waits for that. The caller orders replays of graphs. */
#include "coll/gpu/gpu.h"

#include "device/cuda.h"

#ifdef EPW_CUDA
#include "device/sm_ledger.h"

#include <stddef.h>
#include <stdlib.h>

/* ---- the plan ---- */

enum {
    LINE = 64,
    BLOCKS_DEFAULT = 32,
    QUEUE_BLOCKS_DEFAULT = 8, /* more do not make a NIC faster */
    SLOTS_DEFAULT = 8,
    CHANNELS_MOST = 8, /* for sends from one rank to another */
    SLOT_LEAST_CHOSEN = 1 << 10,
    SLOT_MOST_CHOSEN = 1 << 15,
    RINGS_CHOSEN = 1 << 26,   /* for all rings together */
    PACKETS_CHOSEN = 1 << 22, /* for the packets of all ranks together */
    PACKETS_LEAST = 1 << 10,
    PACKETS_MOST = 1 << 20,
    LINES_CHOSEN = 28 << 20 /* for the lines of all peers together: 16 MiB of an all-reduce on 2 to 4 GPUs */
};

static uint32_t blocks_of(const epw_comm_config *c, bool queues) {
    return c->sms != 0 ? c->sms : queues ? QUEUE_BLOCKS_DEFAULT : BLOCKS_DEFAULT;
}

/* So many that this rank can send to all ranks and receive from all at the same time, with one team for
 * each. */
static uint32_t channels_of(const epw_coll_window *w) {
    uint32_t most = w->blocks * EPW_COLL_TEAMS / (2 * w->ranks);
    return most < 1 ? 1 : most < CHANNELS_MOST ? most : CHANNELS_MOST;
}

/* Without the offsets of what lies in it. */
static epw_coll_window shape_of(const epw_comm_config *c, bool queues) {
    epw_coll_window w = {.ranks = c->ranks,
                         .blocks = blocks_of(c, queues),
                         .slots = c->slots,
                         .slot_bytes = c->slot_bytes,
                         .heap_bytes = epw_align(c->heap_bytes, LINE)};
    if (w.slots == 0) w.slots = SLOTS_DEFAULT;
    w.slot_inverse = epw_inverse(w.slots);
    w.channels = channels_of(&w);
    uint64_t slots = epw_coll_channels(&w) * w.slots;
    if (w.slot_bytes == 0) {
        w.slot_bytes = SLOT_MOST_CHOSEN;
        while (w.slot_bytes > SLOT_LEAST_CHOSEN && slots * w.slot_bytes > RINGS_CHOSEN) w.slot_bytes /= 2;
    }
    return w;
}

static epw_coll_window window_of(const epw_comm_config *c) {
    epw_coll_window w = shape_of(c, false);
    uint64_t slots = epw_coll_channels(&w) * w.slots;
    w.packet_bytes = PACKETS_MOST;
    while (w.packet_bytes > PACKETS_LEAST && (uint64_t)w.packet_bytes * w.ranks > PACKETS_CHOSEN)
        w.packet_bytes /= 2;
    w.packets_offset = epw_align(epw_floor_bytes(w.ranks), 4096);
    w.packets_stride = epw_align((EPW_COLL_CALL_PACKETS + w.packet_bytes / 8) * EPW_COLL_PACKET, 128);
    w.lines_offset = w.packets_offset + 2 * w.ranks * w.packets_stride;
    bool chosen = c->slots == 0 && c->slot_bytes == 0 && w.ranks > 1;
    w.lines = chosen ? LINES_CHOSEN / EPW_COLL_LINE / (w.ranks - 1) : 0;
    w.counts_offset = w.lines_offset + UINT64_C(2) * (w.ranks - 1) * w.lines * EPW_COLL_LINE;
    w.notices_offset = w.counts_offset + epw_coll_channels(&w) * 2 * EPW_COLL_COUNT_STRIDE;
    w.notices_stride = EPW_COLL_NOTICE_STRIDE;
    w.rings_offset = epw_align(w.notices_offset + w.ranks * w.notices_stride, 4096);
    w.heap_offset = epw_align(w.rings_offset + slots * (w.slot_bytes + (uint64_t)EPW_COLL_NOTE_BYTES), 4096);
    w.bytes = w.heap_offset + w.heap_bytes;
    return w;
}

/* With queues. */
static epw_coll_areas areas_of(const epw_coll_window *w) {
    uint64_t slot = w->slot_bytes + (uint64_t)EPW_COLL_NOTE_BYTES;
    uint64_t counts = epw_coll_rings_of(w) * UINT64_C(2) * EPW_COLL_COUNT_STRIDE;
    epw_coll_areas a = {.control_offset = epw_align(epw_floor_bytes(w->ranks), 4096),
                        .control_stride = EPW_COLL_COUNTS_AFTER + counts,
                        .pieces_stride =
                            (uint64_t)epw_coll_ring_of(w, EPW_COLL_POINT_RING, 0) * w->slots * slot,
                        .points_stride = (uint64_t)w->channels * w->slots * slot};
    a.pieces_offset = epw_align(a.control_offset + w->ranks * a.control_stride, 4096);
    a.points_offset = a.pieces_offset + w->ranks * a.pieces_stride;
    a.bytes = a.points_offset + w->ranks * a.points_stride;
    return a;
}

/* The window's offsets are those of the areas, except that of the notices. */
static epw_coll_window window_with_queues(const epw_comm_config *c, epw_coll_areas *areas) {
    epw_coll_window w = shape_of(c, true);
    *areas = areas_of(&w);
    w.notices_offset = areas->control_offset + EPW_COLL_NOTICE_AFTER;
    w.notices_stride = areas->control_stride;
    return w;
}

epw_coll_areas epw_coll_gpu_areas(const epw_comm_config *c) {
    epw_coll_window w = shape_of(c, true);
    return areas_of(&w);
}

epw_stretch epw_coll_gpu_footprint(void *user, uint32_t source, uint32_t lane, uint32_t area) {
    const epw_coll_areas *a = user;
    (void)lane; /* there is one */
    switch (area) {
    case EPW_AREA_CONTROL:
        return (epw_stretch){a->control_offset + source * a->control_stride, a->control_stride};
    case EPW_AREA_ROWS:
        return (epw_stretch){a->pieces_offset + source * a->pieces_stride, a->pieces_stride};
    default:
        return (epw_stretch){a->points_offset + source * a->points_stride, a->points_stride};
    }
}

/* What operations have in flight to one peer, at most: in each slot a piece, its note and its count, and the
 * counts that answer the peer's; and the call; and a notice, whose tag is written twice. */
static uint64_t queue_entries(const epw_coll_window *w) {
    return (uint64_t)epw_coll_rings_of(w) * w->slots * 4 + EPW_COLL_CALL_WORDS + EPW_COLL_NOTICE_WORDS + 1;
}

epw_status epw_coll_gpu_plan(const epw_comm_config *c, bool queues, epw_where where, epw_coll_layout *out) {
    if (c->device < 0)
        return epw_fail(EPW_ERR_INVALID, where,
                        "config.device is %d, must be EPW_DEVICE_HOST or a CUDA ordinal", c->device);
    if (c->ranks > EPW_GPU_PEERS)
        return epw_fail(EPW_ERR_LIMIT, where, "config.ranks is %u, must be at most %d on GPUs", c->ranks,
                        EPW_GPU_PEERS);
    if (c->sms > EPW_COLL_BLOCKS)
        return epw_fail(EPW_ERR_LIMIT, where, "config.sms is %u, must be in [1, %d], or 0", c->sms,
                        EPW_COLL_BLOCKS);
    epw_coll_window w = queues ? shape_of(c, true) : window_of(c);
    uint64_t entries = queues ? queue_entries(&w) : 0, rings = w.rings_offset, heap = w.heap_offset;
    if (queues) {
        epw_coll_areas areas = areas_of(&w);
        rings = areas.pieces_offset;
        heap = epw_align(areas.bytes, 4096);
    }
    *out = (epw_coll_layout){.ranks = c->ranks,
                             .slots = w.slots,
                             .slot_bytes = w.slot_bytes,
                             .blocks = w.blocks,
                             .rings_offset = rings,
                             .heap_offset = heap,
                             .heap_bytes = w.heap_bytes,
                             .entries = entries < EPW_REMOTE_ENTRIES_MAX ? (uint32_t)entries
                                                                         : EPW_REMOTE_ENTRIES_MAX,
                             .window_bytes = heap + w.heap_bytes};
    return EPW_OK;
}

/* ---- life ---- */

/* Divides the device memory that is not in the window. */
static uint64_t carve(struct epw_coll_gpu *g, unsigned char *memory) {
    uint32_t ranks = g->window.ranks;
    uint64_t at = 0;
    g->shared = (epw_gpu_shared *)(void *)(memory + at);
    at += epw_align(sizeof *g->shared, 256);
    g->peers = (epw_gpu_peers *)(void *)(memory + at);
    at += epw_align(sizeof *g->peers, 256);
    g->state = (epw_coll_state *)(void *)(memory + at);
    at += epw_align(sizeof *g->state, 256);
    g->progress = (epw_coll_progress *)(void *)(memory + at);
    at += (uint64_t)EPW_COLL_RINGS * EPW_COLL_BLOCKS * ranks * sizeof *g->progress;
    g->sent = (uint64_t *)(void *)(memory + at);
    return at + (g->queues ? epw_coll_sent_bytes(&g->window) : 0);
}

/* The GPU's address of a field of the pinned memory. */
#define SEEN_BY_GPU(device, field) ((void *)((unsigned char *)(device) + offsetof(epw_coll_pinned, field)))

static epw_status make_memory(epw_comm *comm, epw_where where) {
    struct epw_coll_gpu *g = comm->gpu;
    int32_t ordinal = comm->config.device;
    void *host, *device;
    epw_status status = epw_cuda_host_alloc(ordinal, sizeof *g->pinned, where, &host, &device);
    if (status != EPW_OK) return status;
    g->pinned = host;
    g->differing = SEEN_BY_GPU(device, differing);
    g->faulted = SEEN_BY_GPU(device, faulted);
    g->reports = SEEN_BY_GPU(device, reports);
    g->copied = SEEN_BY_GPU(device, copied);
    status = epw_cuda_alloc(ordinal, carve(g, NULL), where, &g->memory);
    if (status != EPW_OK) return status;
    carve(g, g->memory);
    epw_peers_gpu_options floor = {.device = ordinal,
                                   .deadline_ns = comm->config.deadline_ns,
                                   .shared = g->shared,
                                   .lanes = {g->peers},
                                   .unmarked = EPW_UNMARKED_AWAITED("the")};
    return epw_peers_open_gpu(&comm->peers, &floor, where);
}

static epw_status load_kernels(epw_comm *comm, epw_where where) {
    epw_cuda_scope scope;
    epw_status status = epw_cuda_enter_relaxed(comm->config.device, where, &scope);
    if (status != EPW_OK) return status;
    int error = comm->gpu->queues ? epw_coll_gpu_prepare_queues() : epw_coll_gpu_prepare();
    if (error == cudaSuccess && comm->gpu->lines) error = epw_coll_gpu_prepare_lines();
    if (error == cudaSuccess && comm->gpu->copies_from > 0)
        error = epw_coll_gpu_open_copies(&comm->gpu->copying);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "loading the kernels of collectives");
    epw_cuda_leave_relaxed(&scope);
    return status;
}

/* The number of blocks is equal on every rank: the window's layout depends on it. */
static epw_status take_sms(epw_comm *comm, epw_where where) {
    uint32_t sms = 0, blocks = comm->gpu->window.blocks;
    epw_status status = epw_cuda_sms(comm->config.device, where, &sms);
    if (status != EPW_OK) return status;
    if (blocks > sms)
        return epw_fail(EPW_ERR_LIMIT, where, "config.sms is %u, the GPU has %u SMs", blocks, sms);
    epw_sm_request request = {.device = comm->config.device,
                              .sms = sms,
                              .least = blocks,
                              .most = blocks,
                              .multiple = 1,
                              .holder = "communicator",
                              .rank = comm->config.rank};
    return epw_sm_ledger_take(&request, where, &comm->gpu->share);
}

epw_status epw_coll_gpu_open(epw_comm *comm, epw_where where) {
    struct epw_coll_gpu *g = calloc(1, sizeof *g);
    if (g == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the GPU's description");
    comm->gpu = g;
    g->queues = comm->layout.entries > 0;
    g->window = g->queues ? window_with_queues(&comm->config, &g->areas) : window_of(&comm->config);
    bool reads = !g->queues && g->window.ranks > 1 && g->window.ranks <= EPW_COLL_BULK_RANKS;
    g->copies_from = reads ? comm->config.copy_engines_from : 0;
    epw_status status = epw_cuda_open(comm->config.device, where);
    g->lines = g->window.lines > 0 && comm->layout.keeps_lines;
    if (status == EPW_OK) status = take_sms(comm, where);
    if (status == EPW_OK) status = load_kernels(comm, where);
    return status == EPW_OK ? make_memory(comm, where) : status;
}

bool epw_coll_gpu_leave(epw_comm *comm) {
    return epw_peers_leave_gpu(&comm->peers, 4 * EPW_WAIT_DEADLINES_MAX * comm->config.deadline_ns);
}

static void free_works(epw_coll_work *work, bool usable) {
    while (work != NULL) {
        epw_coll_work *next = work->next;
        if (usable) cudaEventDestroy(work->event);
        free(work);
        work = next;
    }
}

void epw_coll_gpu_close(epw_comm *comm) {
    struct epw_coll_gpu *g = comm->gpu;
    if (g == NULL) return;
    int32_t ordinal = comm->config.device;
    epw_cuda_scope scope;
    epw_coll_gpu_close_registered(comm);
    epw_coll_gpu_close_staging(comm);
    if (epw_cuda_enter_relaxed(ordinal, epw_comm_where(comm, "destroy"), &scope) == EPW_OK) {
        free_works(g->works, true);
        free_works(g->spare, true);
        epw_coll_gpu_close_copies(&g->copying);
        epw_cuda_leave_relaxed(&scope);
    }
    if (g->memory != NULL) epw_cuda_free(ordinal, g->memory); /* waits for copies that were given up */
    epw_peers_close_gpu(&comm->peers);
    if (g->pinned != NULL) epw_cuda_host_free(ordinal, g->pinned);
    epw_sm_ledger_give(g->share); /* none of its kernels runs any more */
    free(g);
    comm->gpu = NULL;
}

void epw_coll_gpu_abandon(epw_comm *comm) {
    if (comm->gpu == NULL) return;
    free_works(comm->gpu->works, false);
    free_works(comm->gpu->spare, false);
    epw_coll_gpu_close_registered(comm); /* frees descriptions: nothing is mapped in a child */
    epw_coll_gpu_abandon_staging(comm);
    free(comm->gpu);
    comm->gpu = NULL;
}

/* ---- callbacks of the peer floor ---- */

static void lock(void *user) {
    pthread_mutex_lock(&((epw_comm *)user)->lock);
}

static void unlock(void *user) {
    pthread_mutex_unlock(&((epw_comm *)user)->lock);
}

static epw_status check_idle(void *user, epw_where where) {
    (void)user, (void)where; /* work that runs is waited for later */
    return EPW_OK;
}

/* Called without the lock: other threads may enqueue more meanwhile, and begin_epoch waits again. */
static epw_status quiesce(void *user, epw_where where) {
    return epw_peers_require_idle(&((const epw_comm *)user)->peers, EPW_NOT_HELD, where);
}

static epw_status part(void *user, uint32_t peer, epw_where where) {
    epw_comm *comm = user;
    epw_status status = epw_peers_require_idle(&comm->peers, EPW_HELD, where);
    if (status == EPW_OK) status = epw_cuda_enter(comm->config.device, where);
    if (status != EPW_OK) return status;
    epw_coll_part_args args = {.peers = comm->gpu->peers, .rank = comm->config.rank, .peer = peer};
    int error = epw_coll_gpu_part(&args, comm->peers.gpu->stream);
    if (error != cudaSuccess)
        status = epw_fail_cuda(error, where, "launch of the kernel that disconnects a peer");
    epw_cuda_leave();
    return status == EPW_OK ? epw_peers_settle_change(&comm->peers, where) : status;
}

static epw_status begin_epoch(void *user, const epw_mask *active, uint64_t epoch_word, epw_where where) {
    epw_comm *comm = user;
    struct epw_coll_gpu *g = comm->gpu;
    epw_status status = epw_peers_require_idle(&comm->peers, EPW_HELD, where);
    if (status == EPW_OK) status = epw_cuda_enter(comm->config.device, where);
    if (status != EPW_OK) return status;
    epw_coll_membership_args args = {.peers = g->peers,
                                     .shared = g->shared,
                                     .state = g->state,
                                     .progress = g->progress,
                                     .progress_count = EPW_COLL_RINGS * EPW_COLL_BLOCKS * comm->layout.ranks,
                                     .rank = comm->config.rank,
                                     .ranks = comm->layout.ranks,
                                     .epoch_word = epoch_word,
                                     .active = epw_ranks_of(active)};
    int error = epw_coll_gpu_lend(comm, active);
    if (error == cudaSuccess) error = epw_coll_gpu_begin_epoch(&args, comm->peers.gpu->stream);
    if (error != cudaSuccess) {
        status = epw_fail_cuda(error, where, "launch of the membership kernel");
        /* The old epoch goes on, once nothing reads the list of the new one any more. */
        if (epw_peers_settle_change(&comm->peers, where) == EPW_OK)
            (void)epw_coll_gpu_lend(comm, &comm->peers.active);
    }
    epw_cuda_leave();
    if (status != EPW_OK) return status;
    /* No kernel of the old epoch runs any more, and none of the new one does yet. */
    epw_ranks_clear(&comm->peers.gpu->pinned->revoked);
    g->pinned->differing = (epw_coll_differing){0};
    status = epw_peers_settle_epoch(&comm->peers, epoch_word, where);
    comm->own_word = status == EPW_OK ? epoch_word : 0;
    return status;
}

static epw_mask suspects(void *user, epw_mask *silent) {
    return epw_peers_gpu_suspects(&((const epw_comm *)user)->peers, silent);
}

/* Without queues nothing asks. */
static epw_stretch footprint(void *user, uint32_t source, uint32_t lane, uint32_t area) {
    return epw_coll_gpu_footprint(&((const epw_comm *)user)->gpu->areas, source, lane, area);
}

static void revoke(void *user, const epw_mask *members) {
    epw_peers_gpu_revoke(&((const epw_comm *)user)->peers, members);
}

const epw_peers_user epw_coll_gpu_user = {
    .lock = lock,
    .unlock = unlock,
    .check_idle = check_idle,
    .quiesce = quiesce,
    .part = part,
    .begin_epoch = begin_epoch,
    .footprint = footprint,
    .suspects = suspects,
    .revoke = revoke,
};
#else
epw_status epw_coll_gpu_plan(const epw_comm_config *c, bool queues, epw_where where, epw_coll_layout *out) {
    (void)c, (void)queues, (void)out;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
}
#endif
