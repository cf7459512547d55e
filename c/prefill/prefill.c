/* A prefill buffer: creating, connecting to each peer, changing the membership, destroying. */
#include "prefill/parts.h"

#include "base/log.h"
#include "ep/engine.h"
#include "ep/terms.h"
#include "peer/gpu_suspects.h"
#include "peer/records.h"
#include "peer/remote.h"
#include "prefill/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- callbacks of the peer floor ---- */

static void lock(void *user) {
    epw_prefill *p = user;
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) pthread_mutex_lock(&p->lanes[i].lock);
}

static void unlock(void *user) {
    epw_prefill *p = user;
    for (uint32_t i = 1; i < p->config.ep.lanes; i++) pthread_mutex_unlock(&p->lanes[i].lock);
    epw_prefill_unlock(p, &p->lanes[0]);
}

static epw_status check_idle(void *user, epw_where where) {
    const epw_prefill *p = user;
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) {
        if (!p->lanes[i].running || epw_prefill_abandoned(&p->lanes[i])) continue;
        return epw_fail(EPW_ERR_STATE, where,
                        "lane %u has an operation under way: end it, or free its routing, first", i);
    }
    return EPW_OK;
}

static epw_status part(void *user, uint32_t peer, epw_where where) {
    epw_prefill *p = user;
    (void)where;
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) epw_prefill_part(p, &p->lanes[i], peer);
    return EPW_OK;
}

static epw_status begin_epoch(void *user, const epw_mask *active, uint64_t epoch_word, epw_where where) {
    (void)where;
    epw_prefill_begin_epoch(user, active, epoch_word);
    return EPW_OK;
}

static epw_mask suspects(void *user, epw_mask *silent) {
    return epw_peers_suspects(&((const epw_prefill *)user)->peers, silent);
}

static epw_stretch footprint(void *user, uint32_t source, uint32_t lane, uint32_t area) {
    return epw_prefill_footprint(&((const epw_prefill *)user)->layout, source, lane, area);
}

/* These words permit a slot to be written again: its message has been taken, and what was posted has been
 * sent. */
static uint32_t permits(uint32_t word) {
    switch (word) {
    case EPW_WORD_TAKEN:
        return 1u << EPW_AREA_ROWS;
    case EPW_WORD_COLLECTED:
        return 1u << EPW_AREA_ANSWERS;
    case EPW_WORD_EPOCH:
        return UINT32_MAX;
    default:
        return 0;
    }
}

static void revoke(void *user, const epw_mask *members) {
    epw_prefill *p = user;
    EPW_MASK_FOR(peer, members, p->layout.ranks) epw_peers_suspect_revoked(&p->peers, peer);
    epw_bell_toll(&p->peers);
}

static const epw_peers_user user_of_floor = {
    .lock = lock,
    .unlock = unlock,
    .check_idle = check_idle,
    .part = part,
    .begin_epoch = begin_epoch,
    .footprint = footprint,
    .suspects = suspects,
    .permits = permits,
    .revoke = revoke,
};

/* ---- life ---- */

static bool make_lane(epw_prefill *p, uint32_t index) {
    epw_prefill_lane *lane = &p->lanes[index];
    uint32_t ranks = p->layout.ranks;
    lane->index = index;
    lane->look_again = UINT64_MAX;
    lane->peers = calloc(ranks, sizeof *lane->peers);
    lane->turns = calloc(ranks, sizeof *lane->turns);
    lane->collected = calloc(ranks, sizeof *lane->collected);
    lane->until = calloc(ranks, sizeof *lane->until);
    lane->batch = calloc(EPW_ROWS_TURN, sizeof *lane->batch);
    bool ok = lane->peers != NULL && lane->turns != NULL && lane->collected != NULL && lane->until != NULL &&
              lane->batch != NULL;
    for (uint32_t kind = 0; kind < EPW_KINDS; kind++) {
        lane->streams[kind] = calloc(ranks, sizeof *lane->streams[kind]);
        ok &= lane->streams[kind] != NULL;
    }
    return ok;
}

static epw_status make_host_parts(epw_prefill *p, epw_where where) {
    uint32_t threads = epw_host_threads(&p->config.ep);
    epw_peers_choose_waits(&p->peers, threads);
    p->scratch_bytes = epw_align(p->layout.slot_bytes - p->layout.header_bytes, 64);
    p->scratch = aligned_alloc(64, threads * p->scratch_bytes);
    bool ok = p->scratch != NULL;
    for (uint32_t i = 0; ok && i < p->config.ep.lanes; i++) ok = make_lane(p, i);
    if (!ok) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory beside the window");
    epw_status status = epw_numerics_choose(where, &p->numerics);
    if (status == EPW_OK) status = epw_pool_create(p->config.ep.rank, threads, &p->pool);
    return status;
}

#ifdef EPW_CUDA
static bool on_gpu(const epw_prefill *p) {
    return p->config.ep.device != EPW_DEVICE_HOST;
}

static const epw_peers_user *choose_user(const epw_prefill *p) {
    return on_gpu(p) ? &epw_prefill_gpu_user : &user_of_floor;
}

static epw_status make_parts(epw_prefill *p, epw_where where) {
    return on_gpu(p) ? epw_prefill_gpu_open(p, where) : make_host_parts(p, where);
}
#else
static const epw_peers_user *choose_user(const epw_prefill *p) {
    (void)p;
    return &user_of_floor;
}

static epw_status make_parts(epw_prefill *p, epw_where where) {
    return make_host_parts(p, where);
}
#endif

/* A queue must hold what both rings post at a time. */
static epw_status check_queues(const epw_prefill_config *config, const epw_prefill_layout *layout,
                               epw_where where) {
    bool queues = config->ep.fabric != NULL && (config->ep.paths & EPW_PATH_QUEUE);
    uint32_t most = EPW_REMOTE_ENTRIES_MAX / 2 - 8;
    if (!queues) return EPW_OK;
    if (layout->slots <= most) return epw_check_queued_slot(where, &config->ep, layout->slot_bytes);
    return epw_fail(
        EPW_ERR_LIMIT, where,
        "ring_tokens is %u, a queue takes %u: lower it, or leave EPW_PATH_QUEUE out of config.ep.paths",
        layout->slots, most);
}

/* The terms that must be equal on every rank: those of `ep`, and two more. */
enum { TERMS = EPW_TERM_COUNT + 2 };

static void tell_plan(const epw_prefill *p) {
    const epw_config *c = &p->config.ep;
    char device[32] = "on the host", window[EPW_LOG_SIZE];
    if (c->device != EPW_DEVICE_HOST) snprintf(device, sizeof device, "on GPU %d", c->device);
    epw_log(EPW_LOG_PLAN, EPW_LOG_INFO, (epw_where){"create", (int)c->rank, -1},
            "prefill buffer of %u ranks %s: %u tokens of hidden %u, top-%u of %u experts, %u lanes, "
            "rings of %u slots, deadline %.10g ms; window %s",
            c->ranks, device, c->max_tokens, c->hidden, c->topk, c->experts, c->lanes, p->layout.slots,
            (double)c->deadline_ns / 1e6, epw_log_size(p->layout.window_bytes, window));
}

epw_status epw_prefill_create(const epw_prefill_config *config, epw_prefill **out) {
    if (out == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"create", -1, -1}, "out is NULL");
    epw_prefill_layout layout;
    epw_status status = epw_prefill_lay_out("create", config, &layout, NULL);
    if (status != EPW_OK) return status;
    epw_where where = {"create", (int)config->ep.rank, -1};
    status = check_queues(config, &layout, where);
    if (status != EPW_OK) return status;
    epw_prefill *p = calloc(1, sizeof *p);
    if (p == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a prefill buffer");
    p->config = *config;
    p->layout = layout;
    for (uint32_t i = 0; i < EPW_MAX_LANES; i++) pthread_mutex_init(&p->lanes[i].lock, NULL);
    epw_term terms[TERMS];
    epw_terms_of(&config->ep, terms);
    terms[EPW_TERM_COUNT] = (epw_term){"prefill version", EPW_PREFILL_VERSION};
    terms[EPW_TERM_COUNT + 1] = (epw_term){"ring_tokens", layout.slots};
    epw_peers_options options = {.window = {.rank = config->ep.rank,
                                            .ranks = config->ep.ranks,
                                            .device = config->ep.device,
                                            .paths = config->ep.paths,
                                            .queues = config->ep.fabric != NULL,
                                            .bytes = layout.window_bytes,
                                            .terms = terms,
                                            .term_count = TERMS},
                                 .lanes = config->ep.lanes,
                                 .fabric = config->ep.fabric,
                                 .depth = epw_prefill_queue_depth(config, &layout),
                                 .deadline_ns = config->ep.deadline_ns,
                                 .user = choose_user(p),
                                 .user_context = p,
                                 .what = "prefill buffer"};
    status = epw_peers_create(&p->peers, &options);
    if (status == EPW_OK) status = make_parts(p, where);
    if (status == EPW_OK) status = epw_peers_open_probe(&p->peers);
    if (status != EPW_OK) {
        epw_prefill_destroy(p);
        return status;
    }
    tell_plan(p);
    *out = p;
    return EPW_OK;
}

static void free_parts(epw_prefill *p) {
    for (uint32_t i = 0; i < EPW_MAX_LANES; i++) {
        epw_prefill_lane *lane = &p->lanes[i];
        for (uint32_t kind = 0; kind < EPW_KINDS; kind++) free(lane->streams[kind]);
        free(lane->peers);
        free(lane->turns);
        free(lane->collected);
        free(lane->until);
        free(lane->batch);
    }
    free(p->scratch);
    free(p);
}

bool epw_prefill_try_destroy(epw_prefill *p) {
    if (p == NULL) return true;
    if (epw_peers_inherited(&p->peers)) { /* in a forked process, see epw_buffer_destroy */
        epw_pool_abandon(p->pool);
        epw_prefill_gpu_abandon(p);
        epw_peers_destroy(&p->peers);
        free_parts(p);
        return true;
    }
    epw_peers_close_probe(&p->peers);
    if (p->gpu != NULL) {
        /* If the GPU may still write, the process keeps the buffer: see epw_buffer_destroy. */
        if (!epw_prefill_gpu_leave(p)) return false;
        epw_prefill_gpu_close(p);
        epw_peers_destroy(&p->peers);
        for (uint32_t i = 0; i < EPW_MAX_LANES; i++) pthread_mutex_destroy(&p->lanes[i].lock);
        free_parts(p);
        return true;
    }
    /* Tells all peers not to wait for this rank any longer. */
    for (uint32_t i = 0; i < p->config.ep.lanes; i++)
        for (uint32_t peer = 0; p->lanes[i].peers != NULL && peer < p->layout.ranks; peer++)
            if (peer != p->config.ep.rank) epw_prefill_part(p, &p->lanes[i], peer);
    epw_pool_destroy(p->pool);
    epw_peers_destroy(&p->peers);
    for (uint32_t i = 0; i < EPW_MAX_LANES; i++) pthread_mutex_destroy(&p->lanes[i].lock);
    free_parts(p);
    return true;
}

void epw_prefill_destroy(epw_prefill *p) {
    (void)epw_prefill_try_destroy(p);
}

/* ---- peers and membership ---- */

static epw_status check(const epw_prefill *p, const char *op) {
    if (p != NULL) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, (epw_where){op, -1, -1}, "prefill is NULL");
}

static epw_status check_given(const epw_prefill *p, const char *op, const char *name, const void *given) {
    epw_status status = check(p, op);
    if (status != EPW_OK || given != NULL) return status;
    return epw_fail(EPW_ERR_INVALID, epw_prefill_where(p, op), "%s is NULL", name);
}

epw_status epw_prefill_export(epw_prefill *p, uint32_t peer, void *blob, size_t *length) {
    epw_status status = check(p, "export");
    return status == EPW_OK ? epw_peers_export(&p->peers, peer, blob, length) : status;
}

epw_status epw_prefill_connect(epw_prefill *p, uint32_t peer, const void *blob, size_t length) {
    return epw_prefill_connect_within(p, peer, blob, length, p != NULL ? p->config.ep.deadline_ns : 1);
}

epw_status epw_prefill_connect_within(epw_prefill *p, uint32_t peer, const void *blob, size_t length,
                                      uint64_t deadline_ns) {
    epw_status status = check(p, "connect");
    return status == EPW_OK ? epw_peers_connect(&p->peers, peer, blob, length, deadline_ns) : status;
}

epw_status epw_prefill_disconnect(epw_prefill *p, uint32_t peer) {
    epw_status status = check(p, "disconnect");
    return status == EPW_OK ? epw_peers_disconnect(&p->peers, peer) : status;
}

epw_status epw_prefill_probe(epw_prefill *p, uint32_t peer, uint64_t timeout_ns) {
    epw_status status = check(p, "probe");
    return status == EPW_OK ? epw_peers_probe(&p->peers, peer, timeout_ns) : status;
}

uint32_t epw_prefill_path(const epw_prefill *p, uint32_t peer) {
    return p != NULL ? epw_peers_path(&((epw_prefill *)(uintptr_t)p)->peers, peer) : EPW_PATH_NONE;
}

uint32_t epw_prefill_wire(const epw_prefill *p, uint32_t peer) {
    return p != NULL ? epw_peers_wire(&((epw_prefill *)(uintptr_t)p)->peers, peer) : 0;
}

const char *epw_prefill_trouble(const epw_prefill *p, uint32_t peer, char *text) {
    *text = '\0';
    return p != NULL ? epw_peers_trouble(&((epw_prefill *)(uintptr_t)p)->peers, peer, text) : text;
}

epw_status epw_prefill_set_active(epw_prefill *p, const epw_mask *active, uint32_t epoch, uint64_t step) {
    epw_status status = check_given(p, "set_active", "active", active);
    return status == EPW_OK ? epw_peers_set_active(&p->peers, active, epoch, step) : status;
}

epw_status epw_prefill_revoke(epw_prefill *p, const epw_mask *peers) {
    epw_status status = check_given(p, "revoke", "peers", peers);
    return status == EPW_OK ? epw_peers_revoke(&p->peers, peers) : status;
}

epw_status epw_prefill_suspects(epw_prefill *p, int32_t *suspects, void *stream) {
    epw_status status = check(p, "suspects");
    if (status != EPW_OK) return status;
    return epw_peers_enqueue_suspects(&p->peers, suspects, stream, epw_prefill_where(p, "suspects"));
}

epw_status epw_prefill_membership(const epw_prefill *p, epw_membership *membership) {
    epw_status status = check_given(p, "membership", "membership", membership);
    if (status != EPW_OK) return status;
    if (membership->size != sizeof *membership)
        return epw_fail(EPW_ERR_INVALID, epw_prefill_where(p, "membership"),
                        "membership.size is %u, this library's is %zu: use EPW_MEMBERSHIP_INIT",
                        membership->size, sizeof *membership);
    epw_peers_membership(&((epw_prefill *)(uintptr_t)p)->peers, membership);
    return EPW_OK;
}

epw_status epw_prefill_newest_epoch(epw_prefill *p, uint32_t *epoch) {
    epw_status status = check_given(p, "newest_epoch", "epoch", epoch);
    return status == EPW_OK ? epw_peers_newest_epoch(&p->peers, epoch) : status;
}

epw_status epw_prefill_diverged(epw_prefill *p, uint32_t epoch, uint64_t step, epw_mask *ranks) {
    epw_status status = check_given(p, "diverged", "ranks", ranks);
    return status == EPW_OK ? epw_peers_diverged(&p->peers, epoch, step, ranks) : status;
}

epw_status epw_prefill_take_fault(epw_prefill *p, uint32_t *faulted) {
    epw_status status = check_given(p, "take_fault", "faulted", faulted);
    if (status == EPW_OK) {
        *faulted = atomic_exchange_explicit(&p->faulted, false, memory_order_relaxed);
        *faulted |= epw_prefill_gpu_take_fault(p);
    }
    return status;
}

epw_status epw_prefill_take_errors(epw_prefill *p, epw_error_record *records, size_t record_size,
                                   uint32_t capacity, uint32_t *count, uint64_t *lost) {
    epw_status status = check(p, "take_errors");
    if (status == EPW_OK)
        status = epw_records_check(records, record_size, count, epw_prefill_where(p, "take_errors"));
    if (status == EPW_OK) epw_prefill_gpu_take_errors(p, records, capacity, count, lost);
    return status;
}
