/* See gpu.h. What kernels know lies in device memory (kernels/prefill/state.h). It is changed only in stream
 * order: the host first sees the enqueued work done, then changes it on the peer floor's stream (peer/gpu.h)
 * and sees that done. Replays of graphs are ordered by the caller. */
#include "prefill/gpu/gpu.h"

#include "device/cuda.h"
#include "ep/layout.h"
#include "ep/plan.h"

#ifdef EPW_CUDA
#include "ep/gpu/sms.h"
#include "kernels/prefill/count.h"
#include "peer/remote_gpu.h"
#include "peer/sizes.h"
#include "prefill/lane_sms.h"

#include <stddef.h>
#include <stdlib.h>

epw_status epw_prefill_gpu_check(epw_where where, const epw_prefill_config *config) {
    const epw_config *c = &config->ep;
    if (c->ranks > EPW_GPU_MAX_RANKS)
        return epw_fail(EPW_ERR_LIMIT, where, "ranks is %u, must be at most %d on GPUs", c->ranks,
                        EPW_GPU_MAX_RANKS);
    if (c->experts > EPW_GPU_MAX_EXPERTS)
        return epw_fail(EPW_ERR_LIMIT, where, "experts is %u, must be at most %d on GPUs", c->experts,
                        EPW_GPU_MAX_EXPERTS);
    return EPW_OK;
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

static uint32_t *take_numbers(arena *a, uint64_t count) {
    return take(a, count * sizeof(uint32_t));
}

static bool has_queues(const epw_config *c) {
    return c->fabric != NULL && (c->paths & EPW_PATH_QUEUE);
}

static void carve_lane(epw_prefill_gpu_lane *lane, const epw_config *c, const epw_prefill_layout *l,
                       uint32_t blocks, arena *a) {
    uint64_t experts = (uint64_t)l->ranks * l->local_experts;
    lane->peers = take(a, sizeof *lane->peers);
    lane->state = take(a, sizeof *lane->state);
    lane->tallies = take_numbers(a, blocks * (experts + 2 * (uint64_t)l->ranks));
    lane->claims = take_numbers(a, (c->max_tokens + 31) / 32);
    lane->grouped = take_numbers(a, l->local_experts > l->ranks ? l->local_experts : l->ranks);
    if (has_queues(c))
        lane->outgoing = take(a, EPW_OUTGOING_AREAS * (uint64_t)l->ranks * l->slots * sizeof *lane->outgoing);
}

/* Everything in device memory beside the window and routings. */
static uint64_t carve(const epw_config *c, const epw_prefill_layout *l, uint32_t blocks, void *memory,
                      epw_gpu_shared **shared, epw_prefill_gpu_place places[EPW_MAX_LANES]) {
    arena a = {memory, 0};
    *shared = take(&a, sizeof **shared);
    uint32_t *taken = epw_gpu_concurrent_lanes(c) > 1 ? take_numbers(&a, 1) : NULL;
    for (uint32_t i = 0; i < c->lanes; i++) {
        carve_lane(&places[i].args, c, l, blocks, &a);
        places[i].args.taken = taken;
    }
    return a.used;
}

static uint64_t carve_routing(const epw_config *c, const epw_prefill_layout *l, void *memory,
                              epw_prefill_gpu_routing *r) {
    arena a = {memory, 0};
    uint64_t entries = (uint64_t)c->max_tokens * l->topk, ranks = l->ranks, local = l->local_experts;
    uint64_t rows = ranks * c->max_tokens;
    r->ids = take(&a, entries * sizeof *r->ids);
    r->weights = take(&a, entries * sizeof *r->weights);
    r->sent_row = take_numbers(&a, entries);
    r->sent_entry = take_numbers(&a, entries);
    r->sent_index = take_numbers(&a, entries);
    r->sent_tokens = take_numbers(&a, c->max_tokens * (l->topk < ranks ? l->topk : ranks));
    r->sent_first = take_numbers(&a, ranks + 1);
    r->sent_entries = take_numbers(&a, ranks);
    r->sent_counts = take_numbers(&a, ranks * local);
    r->announced = take_numbers(&a, ranks);
    r->received = take_numbers(&a, ranks);
    r->complete = take_numbers(&a, ranks);
    r->counts = take_numbers(&a, ranks * local);
    r->base = take_numbers(&a, ranks * local);
    r->row_first = take_numbers(&a, ranks);
    r->expert_rows = take_numbers(&a, local);
    r->offsets = take_numbers(&a, local);
    r->row_token = take_numbers(&a, rows);
    r->places = take_numbers(&a, rows * l->topk);
    r->row_weights = take(&a, rows * l->topk * sizeof *r->row_weights);
    r->entries = take_numbers(&a, rows * l->topk);
    return a.used;
}

/* The most blocks of a kernel, if all lanes have this many SMs. */
static uint32_t blocks_of(const epw_config *c, uint32_t sms) {
    return epw_gpu_concurrent_lanes(c) > 1 ? sms - epw_sms_kept(sms) : sms;
}

void epw_prefill_gpu_plan(const epw_prefill_config *config, const epw_prefill_layout *l,
                          epw_prefill_sizes *sizes) {
    const epw_config *c = &config->ep;
    epw_prefill_gpu_routing r;
    epw_prefill_gpu_place places[EPW_MAX_LANES];
    epw_gpu_shared *shared;
    sizes->routing_bytes = carve_routing(c, l, NULL, &r); /* with room for all rows that may come */
    sizes->routing_row_bytes = 0;
    uint32_t blocks = blocks_of(c, c->sms != 0 ? c->sms : EPW_MAX_SMS); /* each has its counts */
    sizes->private_bytes = carve(c, l, blocks, NULL, &shared, places);
    if (has_queues(c))
        sizes->private_bytes +=
            epw_remote_gpu_ways_bytes(c->lanes) +
            epw_remote_gpu_marks_bytes(c->lanes, c->ranks, epw_prefill_queue_depth(config, l));
}

/* ---- life ---- */

static void fill_lane(epw_prefill *p, uint32_t index, uint32_t *faulted) {
    epw_prefill_gpu_lane *lane = &p->gpu->lanes[index].args;
    lane->shared = p->gpu->shared;
    lane->window = epw_peers_own(&p->peers);
    lane->inbox = epw_peers_inbox(&p->peers);
    if (epw_peers_has_queues(&p->peers)) lane->queue_room = p->peers.depth - EPW_REMOTE_WORDS;
    lane->faulted = faulted;
    lane->layout = p->layout;
    lane->rank = p->config.ep.rank;
    lane->lane = index;
    lane->max_tokens = p->config.ep.max_tokens;
    lane->experts = p->config.ep.experts;
    lane->sms = epw_sm_share_of(p->gpu->share);
}

static epw_status make_memory(epw_prefill *p, epw_where where) {
    struct epw_prefill_gpu *g = p->gpu;
    int32_t ordinal = p->config.ep.device;
    uint32_t lanes = p->config.ep.lanes;
    void *host, *device;
    epw_status status = epw_cuda_host_alloc(ordinal, sizeof *g->pinned, where, &host, &device);
    if (status != EPW_OK) return status;
    g->pinned = host;
    uint64_t bytes = carve(&p->config.ep, &p->layout, g->blocks, NULL, &g->shared, g->lanes);
    status = epw_cuda_alloc(ordinal, bytes, where, &g->memory);
    if (status != EPW_OK) return status;
    carve(&p->config.ep, &p->layout, g->blocks, g->memory, &g->shared, g->lanes);
    epw_peers_gpu_options floor = {.device = ordinal,
                                   .deadline_ns = p->config.ep.deadline_ns,
                                   .shared = g->shared,
                                   .ring =
                                       (void *)((unsigned char *)device + offsetof(epw_prefill_pinned, ring)),
                                   .unmarked = EPW_UNMARKED_AWAITED("the lane's"),
                                   .serial = p->config.ep.serial_lanes};
    uint32_t *faulted = (void *)((unsigned char *)device +
                                 offsetof(epw_prefill_pinned, faulted)); /* as the GPU addresses it */
    for (uint32_t i = 0; i < lanes; i++) floor.lanes[i] = g->lanes[i].args.peers;
    status = epw_peers_open_gpu(&p->peers, &floor, where);
    for (uint32_t i = 0; i < lanes; i++) fill_lane(p, i, faulted);
    return status;
}

static epw_status take_sms(epw_prefill *p, epw_where where) {
    uint32_t of_lane;
    epw_status status =
        epw_gpu_take_sms(&p->config.ep, UINT32_MAX, "prefill buffer", where, &p->gpu->share, &of_lane);
    if (status != EPW_OK) return status;
    p->gpu->blocks = blocks_of(&p->config.ep, epw_sm_share_of(p->gpu->share));
    return EPW_OK;
}

static epw_status load_kernels(epw_prefill *p, epw_where where) {
    epw_cuda_scope scope;
    epw_status status = epw_cuda_enter_relaxed(p->config.ep.device, where, &scope);
    if (status != EPW_OK) return status;
    int error = epw_prefill_gpu_prepare(has_queues(&p->config.ep));
    if (error == cudaSuccess) error = epw_prefill_gpu_prepare_count();
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "loading the kernels of prefill");
    epw_cuda_leave_relaxed(&scope);
    return status;
}

epw_status epw_prefill_gpu_open(epw_prefill *p, epw_where where) {
    struct epw_prefill_gpu *g = calloc(1, sizeof *g);
    if (g == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the GPU's description");
    p->gpu = g;
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->traffic_lock, NULL);
    epw_records_open(&g->errors);
    epw_status status = epw_cuda_open(p->config.ep.device, where);
    if (status == EPW_OK) status = take_sms(p, where);
    if (status == EPW_OK) status = load_kernels(p, where);
    if (status == EPW_OK) status = epw_cuda_stream_create(p->config.ep.device, where, &g->stream);
    return status == EPW_OK ? make_memory(p, where) : status;
}

bool epw_prefill_gpu_leave(epw_prefill *p) {
    return epw_peers_leave_gpu(&p->peers, 4 * EPW_WAIT_DEADLINES_MAX * p->config.ep.deadline_ns);
}

void epw_prefill_gpu_close(epw_prefill *p) {
    struct epw_prefill_gpu *g = p->gpu;
    if (g == NULL) return;
    int32_t ordinal = p->config.ep.device;
    epw_prefill_gpu_sweep(p, true);
    if (g->memory != NULL) epw_cuda_free(ordinal, g->memory); /* waits for copies that were given up */
    epw_peers_close_gpu(&p->peers);
    if (g->stream != NULL) epw_cuda_stream_destroy(ordinal, g->stream);
    if (g->pinned != NULL) epw_cuda_host_free(ordinal, g->pinned);
    epw_sm_ledger_give(g->share); /* no kernel of it runs any more */
    epw_records_close(&g->errors);
    pthread_mutex_destroy(&g->traffic_lock);
    pthread_mutex_destroy(&g->lock);
    free(g);
    p->gpu = NULL;
}

void epw_prefill_gpu_abandon(epw_prefill *p) {
    free(p->gpu);
    p->gpu = NULL;
}

/* Writer of 1: a kernel, of 0: this. */
static void add_traffic(const epw_prefill *p, const epw_prefill_gpu_traffic *lane, epw_traffic *traffic,
                        epw_peer_traffic *peers) {
    traffic->operations += lane->operations;
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        traffic->rows_sent += lane->rows_sent[peer];
        traffic->rows_received += lane->rows_received[peer];
        traffic->rows_answered += lane->answers_sent[peer];
        traffic->bytes_sent += lane->bytes_sent[peer];
        traffic->bytes_received += lane->bytes_received[peer];
        if (peers == NULL) continue;
        peers[peer].bytes_sent += lane->bytes_sent[peer];
        peers[peer].bytes_received += lane->bytes_received[peer];
        peers[peer].wait_ns += lane->wait_ns[peer];
    }
}

epw_status epw_prefill_gpu_count(const epw_prefill *p, epw_traffic *traffic, epw_peer_traffic *peers) {
    epw_where where = epw_prefill_where(p, "traffic");
    struct epw_prefill_gpu *g = p->gpu;
    __atomic_store_n(&g->counts, true, __ATOMIC_RELAXED);
    const void *from[EPW_MAX_LANES];
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) from[i] = &g->lanes[i].args.state->traffic;
    pthread_mutex_lock(&g->traffic_lock);
    epw_status status =
        epw_peers_copy_counts(&p->peers, from, g->pinned->traffic, sizeof g->pinned->traffic[0], where);
    for (uint32_t i = 0; status == EPW_OK && i < p->config.ep.lanes; i++)
        add_traffic(p, &g->pinned->traffic[i], traffic, peers);
    pthread_mutex_unlock(&g->traffic_lock);
    return status;
}

bool epw_prefill_gpu_take_fault(epw_prefill *p) {
    return p->gpu != NULL && __atomic_exchange_n(&p->gpu->pinned->faulted, 0, __ATOMIC_ACQ_REL) != 0;
}

void epw_prefill_gpu_take_errors(epw_prefill *p, epw_error_record *records, uint32_t capacity,
                                 uint32_t *count, uint64_t *lost) {
    if (p->gpu != NULL) {
        epw_records_take(&p->gpu->errors, &p->gpu->pinned->ring, records, capacity, count, lost);
        return;
    }
    *count = 0;
    if (lost != NULL) *lost = 0;
}

/* ---- routings ---- */

static void free_memory(const epw_prefill *p, struct epw_prefill_gpu_memory *m) {
    int32_t ordinal = p->config.ep.device;
    epw_cuda_scope scope;
    if (m->order.event != NULL &&
        epw_cuda_enter_relaxed(ordinal, epw_prefill_where(p, "routing"), &scope) == EPW_OK) {
        epw_stream_order_free(&m->order);
        epw_cuda_leave_relaxed(&scope);
    }
    if (m->memory != NULL) epw_cuda_free(ordinal, m->memory);
    if (m->pinned != NULL) epw_cuda_host_free(ordinal, m->pinned);
    free(m);
}

static epw_status fill_memory(const epw_prefill *p, struct epw_prefill_gpu_memory *m, epw_where where) {
    const epw_config *c = &p->config.ep;
    const epw_prefill_layout *l = &p->layout;
    uint64_t told = epw_align(sizeof *m->report, 64);
    void *device;
    epw_status status = epw_cuda_alloc(c->device, carve_routing(c, l, NULL, &m->at), where, &m->memory);
    if (status != EPW_OK) return status;
    carve_routing(c, l, m->memory, &m->at);
    status = epw_cuda_host_alloc(c->device, told + (l->ranks + l->local_experts) * sizeof(uint32_t), where,
                                 &m->pinned, &device);
    if (status != EPW_OK) return status;
    m->report = m->pinned;
    m->report_at = device;
    m->told = (uint32_t *)(void *)((unsigned char *)m->pinned + told);
    m->at.told = (uint32_t *)(void *)((unsigned char *)device + told);
    epw_cuda_scope scope;
    status = epw_cuda_enter_relaxed(c->device, where, &scope);
    if (status != EPW_OK) return status;
    cudaError_t error = (cudaError_t)epw_stream_order_make(&m->order, true);
    epw_cuda_leave_relaxed(&scope);
    return error == cudaSuccess ? EPW_OK : epw_fail_cuda(error, where, "cudaEventCreateWithFlags");
}

epw_status epw_prefill_gpu_make_routing(epw_prefill *p, epw_routing *r, epw_where where) {
    struct epw_prefill_gpu_memory *m = calloc(1, sizeof *m);
    if (m == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a routing");
    epw_prefill_gpu_sweep(p, false);
    epw_status status = fill_memory(p, m, where);
    if (status != EPW_OK) {
        free_memory(p, m);
        return status;
    }
    r->gpu = m;
    return EPW_OK;
}

/* If the half that is due could not be given up, nobody can end it any more. */
static void leave_half(epw_prefill *p, const epw_routing *r) {
    epw_prefill_gpu_place *lane = &p->gpu->lanes[r->lane];
    pthread_mutex_lock(&p->lanes[r->lane].lock);
    if (lane->owed == r) {
        lane->owed = NULL;
        lane->stranded = true;
    }
    pthread_mutex_unlock(&p->lanes[r->lane].lock);
}

/* Its kernels may still run: the memory is freed by whoever finds it unused. */
void epw_prefill_gpu_free_routing(epw_prefill *p, epw_routing *r) {
    struct epw_prefill_gpu_memory *m = r->gpu;
    r->gpu = NULL;
    if (m == NULL) return;
    if (epw_peers_inherited(&p->peers)) { /* in a forked process, see epw_buffer_destroy */
        free(m);
        return;
    }
    leave_half(p, r);
    pthread_mutex_lock(&p->gpu->lock);
    m->next = p->gpu->abandoned;
    p->gpu->abandoned = m;
    pthread_mutex_unlock(&p->gpu->lock);
}

/* Whether nothing uses the memory any more. A graph may be replayed as long as the buffer is there, and of
 * work without an event nobody sees the end. */
static bool is_unused(const epw_prefill *p, const struct epw_prefill_gpu_memory *m) {
    if (m->in_graph || m->order.unmarked) return false;
    if (!m->order.enqueued) return true;
    return epw_peers_await_event(&p->peers, m->order.event, 0, epw_prefill_where(p, "routing")) == EPW_OK;
}

/* Without the lock while CUDA frees, which may wait for the GPU. */
void epw_prefill_gpu_sweep(epw_prefill *p, bool all) {
    struct epw_prefill_gpu *g = p->gpu;
    struct epw_prefill_gpu_memory *unused = NULL;
    pthread_mutex_lock(&g->lock);
    struct epw_prefill_gpu_memory **at = &g->abandoned;
    while (*at != NULL) { /* ends: each turn takes an entry out, or passes it */
        struct epw_prefill_gpu_memory *m = *at;
        if (all || is_unused(p, m)) {
            *at = m->next;
            m->next = unused;
            unused = m;
        } else {
            at = &m->next;
        }
    }
    pthread_mutex_unlock(&g->lock);
    while (unused != NULL) { /* ends: each turn frees an entry */
        struct epw_prefill_gpu_memory *m = unused;
        unused = m->next;
        free_memory(p, m);
    }
}

/* ---- what the peer floor asks of it ---- */

static void lock(void *user) {
    epw_prefill *p = user;
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) pthread_mutex_lock(&p->lanes[i].lock);
}

static void unlock(void *user) {
    epw_prefill *p = user;
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) pthread_mutex_unlock(&p->lanes[i].lock);
}

static epw_status check_idle(void *user, epw_where where) {
    const epw_prefill *p = user;
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) {
        if (p->gpu->lanes[i].owed == NULL) continue;
        return epw_fail(EPW_ERR_STATE, where,
                        "lane %u has half an operation under way: call the other, or free its routing, first",
                        i);
    }
    return EPW_OK; /* what runs is waited for */
}

/* Without the lock: other threads may continue calling, and begin_epoch waits again. */
static epw_status quiesce(void *user, epw_where where) {
    return epw_peers_require_idle(&((const epw_prefill *)user)->peers, EPW_NOT_HELD, where);
}

static epw_status part(void *user, uint32_t peer, epw_where where) {
    epw_prefill *p = user;
    epw_status status = epw_peers_require_idle(&p->peers, EPW_HELD, where);
    if (status == EPW_OK) status = epw_cuda_enter(p->config.ep.device, where);
    if (status != EPW_OK) return status;
    epw_prefill_part_args args = {.lane_count = p->config.ep.lanes, .rank = p->config.ep.rank, .peer = peer};
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) args.peers[i] = p->gpu->lanes[i].args.peers;
    int error = epw_prefill_gpu_run_part(&args, p->peers.gpu->stream);
    if (error != cudaSuccess)
        status = epw_fail_cuda(error, where, "launch of the kernel that parts with a peer");
    epw_cuda_leave();
    return status == EPW_OK ? epw_peers_settle_change(&p->peers, where) : status;
}

static epw_status begin_epoch(void *user, const epw_mask *active, uint64_t epoch_word, epw_where where) {
    epw_prefill *p = user;
    struct epw_prefill_gpu *g = p->gpu;
    epw_status status = epw_peers_require_idle(&p->peers, EPW_HELD, where);
    if (status == EPW_OK) status = epw_cuda_enter(p->config.ep.device, where);
    if (status != EPW_OK) return status;
    epw_prefill_membership_args args = {.lane_count = p->config.ep.lanes,
                                        .ranks = p->layout.ranks,
                                        .epoch_word = epoch_word,
                                        .active = epw_ranks_of(active)};
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) args.lanes[i] = g->lanes[i].args;
    int error = epw_prefill_gpu_run_epoch(&args, p->peers.gpu->stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "launch of the membership kernel");
    epw_cuda_leave();
    if (status != EPW_OK) return status;
    /* No kernel of the old epoch runs any more, and none of the new one does yet. */
    epw_ranks_clear(&p->peers.gpu->pinned->revoked);
    status = epw_peers_settle_epoch(&p->peers, epoch_word, where);
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) {
        p->lanes[i].own_word = status == EPW_OK ? epoch_word : 0;
        g->lanes[i].stranded = false;
    }
    return status;
}

static epw_stretch footprint(void *user, uint32_t source, uint32_t lane, uint32_t area) {
    return epw_prefill_footprint(&((const epw_prefill *)user)->layout, source, lane, area);
}

static epw_mask suspects(void *user, epw_mask *silent) {
    return epw_peers_gpu_suspects(&((const epw_prefill *)user)->peers, silent);
}

static void revoke(void *user, const epw_mask *members) {
    epw_peers_gpu_revoke(&((const epw_prefill *)user)->peers, members);
}

const epw_peers_user epw_prefill_gpu_user = {
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
epw_status epw_prefill_gpu_check(epw_where where, const epw_prefill_config *config) {
    (void)config;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
}

void epw_prefill_gpu_plan(const epw_prefill_config *config, const epw_prefill_layout *layout,
                          epw_prefill_sizes *sizes) {
    (void)config, (void)layout, (void)sizes;
}

epw_status epw_prefill_gpu_make_routing(epw_prefill *p, epw_routing *r, epw_where where) {
    (void)p, (void)r;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
}

void epw_prefill_gpu_free_routing(epw_prefill *p, epw_routing *r) {
    (void)p, (void)r;
}

bool epw_prefill_gpu_leave(epw_prefill *p) {
    (void)p;
    return true;
}

void epw_prefill_gpu_close(epw_prefill *p) {
    (void)p;
}

void epw_prefill_gpu_abandon(epw_prefill *p) {
    (void)p;
}

epw_status epw_prefill_gpu_count(const epw_prefill *p, epw_traffic *traffic, epw_peer_traffic *peers) {
    (void)traffic, (void)peers;
    return epw_fail(EPW_ERR_NO_PATH, epw_prefill_where(p, "traffic"), EPW_NO_CUDA);
}

bool epw_prefill_gpu_take_fault(epw_prefill *p) {
    (void)p;
    return false;
}

void epw_prefill_gpu_take_errors(epw_prefill *p, epw_error_record *records, uint32_t capacity,
                                 uint32_t *count, uint64_t *lost) {
    (void)p, (void)records, (void)capacity;
    *count = 0;
    if (lost != NULL) *lost = 0;
}
#endif
