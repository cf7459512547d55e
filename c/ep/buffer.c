/* The life of a buffer: it is created, connected to its peers one by one, gets its memberships, and is
 * destroyed. */
#include "ep/buffer.h"

#include "base/log.h"
#include "ep/terms.h"
#include "numerics/numerics.h"
#include "peer/copies.h"
#include "peer/gpu_suspects.h"
#include "peer/remote.h"

#include <stdio.h>
#include <stdlib.h>

static const epw_engine *choose_engine(const epw_config *config) {
#ifdef EPW_CUDA
    if (config->device != EPW_DEVICE_HOST) return &epw_engine_gpu;
#endif
    (void)config; /* without CUDA, epw_window_create refuses a GPU */
    return &epw_engine_host;
}

/* ---- callbacks of the peer floor ---- */

static void lock_lanes(void *user) {
    epw_buffer *b = user;
    for (uint32_t i = 0; i < b->config.lanes; i++) pthread_mutex_lock(&b->lanes[i].lock);
}

static void unlock_lanes(void *user) {
    epw_buffer *b = user;
    for (uint32_t i = 0; i < b->config.lanes; i++) pthread_mutex_unlock(&b->lanes[i].lock);
    if (b->engine->unlocked != NULL) b->engine->unlocked(b);
}

static epw_status check_lanes_free(void *user, epw_where where) {
    const epw_buffer *b = user;
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        if (b->lanes[i].machine.stage == EPW_STAGE_FREE) continue;
        return epw_fail(EPW_ERR_STATE, where,
                        "lane %u is held by operation %u: combine or release its handle first", i,
                        b->lanes[i].machine.op);
    }
    return EPW_OK;
}

static epw_status quiesce(void *user, epw_where where) {
    epw_buffer *b = user;
    return b->engine->quiesce != NULL ? b->engine->quiesce(b, where) : EPW_OK;
}

static epw_status part(void *user, uint32_t peer, epw_where where) {
    epw_buffer *b = user;
    return b->engine->part(b, peer, where);
}

static epw_status begin_epoch(void *user, const epw_mask *active, uint64_t epoch_word, epw_where where) {
    epw_buffer *b = user;
    epw_status status = epw_checkpoints_begin_epoch(b, active, epoch_word, where);
    if (status == EPW_OK) atomic_store_explicit(&b->next_lane, 0, memory_order_relaxed);
    return status;
}

static epw_stretch footprint(void *user, uint32_t source, uint32_t lane, uint32_t area) {
    return epw_plan_footprint(&((const epw_buffer *)user)->layout, source, lane, area);
}

/* Rows of the next operation, with their counts, and answers of this one. */
static uint32_t permits(uint32_t word) {
    switch (word) {
    case EPW_WORD_DISPATCH:
        return 1u << EPW_AREA_ANSWERS;
    case EPW_WORD_COMBINE:
        return 1u << EPW_AREA_ROWS | 1u << EPW_AREA_CONTROL;
    default:
        return UINT32_MAX;
    }
}

static epw_mask suspects(void *user, epw_mask *silent) {
    const epw_buffer *b = user;
    return b->engine->suspects(b, silent);
}

static void revoke(void *user, const epw_mask *members) {
    epw_buffer *b = user;
    b->engine->revoke(b, members);
}

static const epw_peers_user user_of_floor = {
    .lock = lock_lanes,
    .unlock = unlock_lanes,
    .check_idle = check_lanes_free,
    .quiesce = quiesce,
    .part = part,
    .begin_epoch = begin_epoch,
    .footprint = footprint,
    .suspects = suspects,
    .permits = permits,
    .revoke = revoke,
};

/* ---- life ---- */

static epw_status check_queues(const epw_config *config, const epw_layout *layout, epw_where where) {
    uint32_t most = (EPW_REMOTE_ENTRIES_MAX - EPW_ENTRIES_BESIDE) / EPW_ENTRIES_OF_A_TOKEN;
    bool queues = config->fabric != NULL && config->paths & EPW_PATH_QUEUE;
    if (!queues) return EPW_OK;
    if (config->max_tokens <= most) return epw_check_queued_slot(where, config, layout->slot_bytes);
    return epw_fail(
        EPW_ERR_LIMIT, where,
        "config.max_tokens %u is more than a queue takes, %u: lower it, or leave EPW_PATH_QUEUE out "
        "of config.paths",
        config->max_tokens, most);
}

static void tell_plan(const epw_buffer *b, const epw_plan *plan) {
    const epw_config *c = &b->config;
    char device[32] = "on the host", window[EPW_LOG_SIZE], private[EPW_LOG_SIZE];
    if (!epw_log_on(EPW_LOG_PLAN, EPW_LOG_INFO)) return;
    if (c->device != EPW_DEVICE_HOST) snprintf(device, sizeof device, "on GPU %d", c->device);
    epw_log(EPW_LOG_PLAN, EPW_LOG_INFO, epw_buffer_where(b, ""),
            "buffer of %u ranks %s: up to %u tokens of hidden %u, top-%u of %u experts, %u lanes, deadline "
            "%.10g ms; window %s, private memory %s",
            c->ranks, device, c->max_tokens, c->hidden, c->topk, c->experts, c->lanes,
            (double)c->deadline_ns / 1e6, epw_log_size(plan->window_bytes, window),
            epw_log_size(plan->private_bytes, private));
}

epw_status epw_buffer_create(const epw_config *config, epw_buffer **out) {
    if (out == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"create", -1, -1}, "out is NULL");
    epw_layout layout;
    epw_plan plan = EPW_PLAN_INIT;
    epw_status status = epw_plan_layout("create", config, &layout, &plan);
    if (status != EPW_OK) return status;
    epw_where where = {"create", (int)config->rank, -1};
    status = check_queues(config, &layout, where);
    if (status != EPW_OK) return status;
    epw_buffer *b = calloc(1, sizeof *b);
    if (b == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a buffer");
    b->engine = choose_engine(config);
    b->config = *config;
    b->layout = layout;
    for (uint32_t i = 0; i < EPW_MAX_LANES; i++) pthread_mutex_init(&b->lanes[i].lock, NULL);
    pthread_mutex_init(&b->verdicts_lock, NULL);

    epw_term terms[EPW_TERM_COUNT];
    epw_terms_of(config, terms);
    epw_peers_options options = {.window = {.rank = config->rank,
                                            .ranks = config->ranks,
                                            .device = config->device,
                                            .paths = config->paths,
                                            .queues = config->fabric != NULL,
                                            .bytes = plan.window_bytes,
                                            .terms = terms,
                                            .term_count = EPW_TERM_COUNT},
                                 .lanes = config->lanes,
                                 .fabric = config->fabric,
                                 .depth = epw_plan_queue_depth(config),
                                 .deadline_ns = config->deadline_ns,
                                 .user = &user_of_floor,
                                 .user_context = b,
                                 .what = "buffer"};
    status = epw_peers_create(&b->peers, &options);
    if (status == EPW_OK) status = b->engine->open(b);
    if (status == EPW_OK) status = epw_peers_open_probe(&b->peers);
    if (status != EPW_OK) {
        epw_buffer_destroy(b);
        return status;
    }
    tell_plan(b, &plan);
    *out = b;
    return EPW_OK;
}

bool epw_buffer_try_destroy(epw_buffer *b) {
    if (b == NULL) return true;
    if (epw_peers_inherited(&b->peers)) {
        /* In a forked child no thread of the buffer runs, no window is mapped, and a lock may be held by a
         * thread that exists only in the parent. All that can be done is to free this process's copy of the
         * memory. */
        b->engine->abandon(b);
        epw_peers_destroy(&b->peers);
        free(b);
        return true;
    }
    epw_peers_close_probe(&b->peers);
    /* If the GPU may still write, the process keeps its windows and leases, so that nobody gets memory that
     * is still written. It keeps the buffer as well, because the fabric's thread still reports to it which
     * words have arrived by queues. */
    if (!b->engine->leave(b)) return false;
    b->engine->close(b);
    epw_peers_destroy(&b->peers);
    pthread_mutex_destroy(&b->verdicts_lock);
    for (uint32_t i = 0; i < EPW_MAX_LANES; i++) pthread_mutex_destroy(&b->lanes[i].lock);
    free(b);
    return true;
}

void epw_buffer_destroy(epw_buffer *b) {
    (void)epw_buffer_try_destroy(b);
}

/* ---- peers and membership ---- */

epw_status epw_buffer_export(epw_buffer *b, uint32_t peer, void *blob, size_t *length) {
    epw_status status = epw_buffer_check(b, "export");
    return status == EPW_OK ? epw_peers_export(&b->peers, peer, blob, length) : status;
}

epw_status epw_buffer_connect(epw_buffer *b, uint32_t peer, const void *blob, size_t length) {
    return epw_buffer_connect_within(b, peer, blob, length, b != NULL ? b->config.deadline_ns : 1);
}

epw_status epw_buffer_connect_within(epw_buffer *b, uint32_t peer, const void *blob, size_t length,
                                     uint64_t deadline_ns) {
    epw_status status = epw_buffer_check(b, "connect");
    return status == EPW_OK ? epw_peers_connect(&b->peers, peer, blob, length, deadline_ns) : status;
}

epw_status epw_buffer_disconnect(epw_buffer *b, uint32_t peer) {
    epw_status status = epw_buffer_check(b, "disconnect");
    return status == EPW_OK ? epw_peers_disconnect(&b->peers, peer) : status;
}

epw_status epw_buffer_probe(epw_buffer *b, uint32_t peer, uint64_t timeout_ns) {
    epw_status status = epw_buffer_check(b, "probe");
    return status == EPW_OK ? epw_peers_probe(&b->peers, peer, timeout_ns) : status;
}

uint32_t epw_buffer_path(const epw_buffer *b, uint32_t peer) {
    return b != NULL ? epw_peers_path(&((epw_buffer *)b)->peers, peer) : EPW_PATH_NONE;
}

uint32_t epw_buffer_wire(const epw_buffer *b, uint32_t peer) {
    return b != NULL ? epw_peers_wire(&((epw_buffer *)b)->peers, peer) : 0;
}

const char *epw_buffer_trouble(const epw_buffer *b, uint32_t peer, char *text) {
    *text = '\0';
    return b != NULL ? epw_peers_trouble(&((epw_buffer *)b)->peers, peer, text) : text;
}

epw_status epw_buffer_time_copies(epw_buffer *b, uint32_t peer, uint64_t timeout_ns, uint64_t *bytes,
                                  uint64_t *ns) {
    return epw_peers_time_copies(&b->peers, peer, timeout_ns, bytes, ns);
}

epw_status epw_buffer_set_active(epw_buffer *b, const epw_mask *active, uint32_t epoch, uint64_t step) {
    epw_status status = epw_buffer_check(b, "set_active");
    if (status != EPW_OK) return status;
    if (active == NULL) return epw_fail(EPW_ERR_INVALID, epw_buffer_where(b, "set_active"), "active is NULL");
    return epw_peers_set_active(&b->peers, active, epoch, step);
}

epw_status epw_buffer_revoke(epw_buffer *b, const epw_mask *peers) {
    epw_status status = epw_buffer_check(b, "revoke");
    if (status != EPW_OK) return status;
    if (peers == NULL) return epw_fail(EPW_ERR_INVALID, epw_buffer_where(b, "revoke"), "peers is NULL");
    return epw_peers_revoke(&b->peers, peers);
}

epw_status epw_buffer_suspects(epw_buffer *b, int32_t *suspects, void *stream) {
    epw_status status = epw_buffer_check(b, "suspects");
    if (status != EPW_OK) return status;
    return epw_peers_enqueue_suspects(&b->peers, suspects, stream, epw_buffer_where(b, "suspects"));
}

epw_status epw_buffer_membership(const epw_buffer *b, epw_membership *membership) {
    epw_status status = epw_buffer_check(b, "membership");
    if (status != EPW_OK) return status;
    epw_where where = epw_buffer_where(b, "membership");
    if (membership == NULL) return epw_fail(EPW_ERR_INVALID, where, "membership is NULL");
    if (membership->size != sizeof *membership) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "membership.size is %u, this library's is %zu: use EPW_MEMBERSHIP_INIT",
                        membership->size, sizeof *membership);
    }
    epw_peers_membership(&((epw_buffer *)b)->peers, membership);
    return EPW_OK;
}

epw_status epw_buffer_newest_epoch(epw_buffer *b, uint32_t *epoch) {
    epw_status status = epw_buffer_check(b, "newest_epoch");
    if (status != EPW_OK) return status;
    if (epoch == NULL) return epw_fail(EPW_ERR_INVALID, epw_buffer_where(b, "newest_epoch"), "epoch is NULL");
    return epw_peers_newest_epoch(&b->peers, epoch);
}

epw_status epw_buffer_diverged(epw_buffer *b, uint32_t epoch, uint64_t step, epw_mask *ranks) {
    epw_status status = epw_buffer_check(b, "diverged");
    if (status != EPW_OK) return status;
    if (ranks == NULL) return epw_fail(EPW_ERR_INVALID, epw_buffer_where(b, "diverged"), "ranks is NULL");
    return epw_peers_diverged(&b->peers, epoch, step, ranks);
}

epw_status epw_buffer_reachable_experts(const epw_buffer *b, uint8_t *reachable) {
    epw_status status = epw_buffer_check(b, "reachable_experts");
    if (status != EPW_OK) return status;
    epw_where where = epw_buffer_where(b, "reachable_experts");
    if (reachable == NULL) return epw_fail(EPW_ERR_INVALID, where, "reachable is NULL");
    epw_membership now = EPW_MEMBERSHIP_INIT;
    epw_peers_membership(&((epw_buffer *)b)->peers, &now);
    for (uint32_t e = 0; e < b->config.experts; e++) {
        uint32_t rank = e / b->layout.local_experts;
        reachable[e] = epw_mask_has(&now.active, rank) && !epw_mask_has(&now.suspects, rank);
    }
    return EPW_OK;
}

epw_status epw_buffer_traffic(const epw_buffer *b, epw_traffic *traffic, epw_peer_traffic *peers) {
    epw_status status = epw_buffer_check(b, "traffic");
    return status == EPW_OK ? b->engine->traffic(b, traffic, peers) : status;
}

const char *epw_path_name(uint32_t path) {
    switch (path) {
    case EPW_PATH_NONE:
        return "none";
    case EPW_PATH_SELF:
        return "self";
    case EPW_PATH_THREAD:
        return "thread";
    case EPW_PATH_SHM:
        return "shared memory";
    case EPW_PATH_VMM:
        return "VMM";
    case EPW_PATH_IPC:
        return "CUDA IPC";
    case EPW_PATH_QUEUE:
        return "queue";
    default:
        return "unknown path";
    }
}
