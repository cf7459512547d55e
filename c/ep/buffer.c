/* A buffer: made, connected peer by peer, given a membership, taken down. */
#include "ep/internal.h"
#include "ep/terms.h"

#include "base/status.h"

#include <stdlib.h>

static const epw_engine *choose_engine(const epw_config *config) {
#ifdef EPW_CUDA
    if (config->device != EPW_DEVICE_HOST) return &epw_engine_gpu;
#endif
    (void)config; /* without CUDA, epw_window_create refuses a GPU */
    return &epw_engine_host;
}

static epw_status make_window(epw_buffer *b, uint64_t bytes) {
    epw_term terms[EPW_TERM_COUNT];
    epw_terms_of(&b->config, terms);
    epw_window_options options = {.rank = b->config.rank,
                                  .ranks = b->config.ranks,
                                  .device = b->config.device,
                                  .paths = b->config.paths,
                                  .bytes = bytes,
                                  .terms = terms,
                                  .term_count = EPW_TERM_COUNT};
    return epw_window_create(&options, &b->window);
}

epw_status epw_buffer_create(const epw_config *config, epw_buffer **out) {
    if (out == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"create", -1, -1}, "out is NULL");
    epw_layout layout;
    epw_plan plan = EPW_PLAN_INIT;
    epw_status status = epw_plan_layout("create", config, &layout, &plan);
    if (status != EPW_OK) return status;
    const epw_numerics *numerics;
    status = epw_numerics_choose((epw_where){"create", (int)config->rank, -1}, &numerics);
    if (status != EPW_OK) return status;
    epw_buffer *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return epw_fail(EPW_ERR_NO_MEMORY, (epw_where){"create", (int)config->rank, -1},
                        "no memory for a buffer");
    }
    b->engine = choose_engine(config);
    b->config = *config;
    b->layout = layout;
    b->numerics = numerics;
    pthread_mutex_init(&b->janitor_lock, NULL);
    pthread_cond_init(&b->janitor_wake, NULL);
    for (uint32_t i = 0; i < EPW_MAX_LANES; i++) pthread_mutex_init(&b->lanes[i].lock, NULL);
    b->imports = calloc(config->ranks, sizeof b->imports[0]);
    b->routes = calloc(config->ranks, sizeof b->routes[0]);
    if (b->imports == NULL || b->routes == NULL) {
        status = epw_fail(EPW_ERR_NO_MEMORY, epw_at(b, "create"), "no memory for the peer table");
    }
    if (status == EPW_OK) status = make_window(b, plan.window_bytes);
    if (status == EPW_OK) {
        b->routes[config->rank] = (epw_route){EPW_PATH_SELF, epw_window_base(b->window)};
        status = b->engine->open(b);
    }
    if (status != EPW_OK) {
        epw_buffer_destroy(b);
        return status;
    }
    *out = b;
    return EPW_OK;
}

void epw_buffer_destroy(epw_buffer *b) {
    if (b == NULL) return;
    if (b->engine->leave(b)) {
        b->engine->close(b);
        for (uint32_t p = 0; b->imports != NULL && p < b->config.ranks; p++) epw_import_close(b->imports[p]);
        epw_window_destroy(b->window);
    } /* else the process keeps them and their leases: nobody is given memory that is still written */
    for (uint32_t i = 0; i < EPW_MAX_LANES; i++) pthread_mutex_destroy(&b->lanes[i].lock);
    pthread_cond_destroy(&b->janitor_wake);
    pthread_mutex_destroy(&b->janitor_lock);
    free(b->imports);
    free(b->routes);
    free(b);
}

/* ---- peers ---- */

static epw_status check_peer(const epw_buffer *b, const char *op, uint32_t peer) {
    if (b == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){op, -1, -1}, "buffer is NULL");
    if (peer >= b->config.ranks || peer == b->config.rank) {
        return epw_fail(EPW_ERR_INVALID, epw_at(b, op), "peer is %u, must be another rank below %u", peer,
                        b->config.ranks);
    }
    return EPW_OK;
}

static void lock_lanes(epw_buffer *b) {
    for (uint32_t i = 0; i < b->config.lanes; i++) pthread_mutex_lock(&b->lanes[i].lock);
}

static void unlock_lanes(epw_buffer *b) {
    for (uint32_t i = 0; i < b->config.lanes; i++) pthread_mutex_unlock(&b->lanes[i].lock);
}

/* Without a lock, between two looks at the same conditions: long waits keep nobody from his lane. */
static epw_status quiesce(epw_buffer *b, epw_where where) {
    return b->engine->quiesce != NULL ? b->engine->quiesce(b, where) : EPW_OK;
}

/* With all lanes locked. */
static epw_status check_lanes_free(const epw_buffer *b, epw_where where) {
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        if (b->lanes[i].stage == EPW_STAGE_FREE) continue;
        return epw_fail(EPW_ERR_STATE, where,
                        "lane %u is held by operation %u: combine or release its handle first", i,
                        b->lanes[i].op);
    }
    return EPW_OK;
}

epw_status epw_buffer_export(epw_buffer *b, uint32_t peer, void *blob, size_t *length) {
    epw_status status = check_peer(b, "export", peer);
    if (status != EPW_OK) return status;
    if (blob == NULL || length == NULL) {
        return epw_fail(EPW_ERR_INVALID, epw_at(b, "export"), "blob or length is NULL");
    }
    lock_lanes(b);
    status = epw_window_export(b->window, peer, blob, length);
    unlock_lanes(b);
    return status;
}

/* With all lanes locked. */
static epw_status disconnect(epw_buffer *b, uint32_t peer) {
    if (b->imports[peer] == NULL) return EPW_OK;
    epw_status status = b->engine->reach(b, peer, NULL);
    /* Also where the engine could not see it done: it may be. */
    b->routes[peer] = (epw_route){EPW_PATH_NONE, NULL};
    if (status != EPW_OK) return status;
    epw_import_close(b->imports[peer]);
    b->imports[peer] = NULL;
    return EPW_OK;
}

/* With all lanes locked. Closes the import if the engine can not use it. */
static epw_status take_import(epw_buffer *b, uint32_t peer, epw_import *import) {
    epw_status status = b->engine->reach(b, peer, epw_import_base(import));
    if (status != EPW_OK) {
        epw_import_close(import); /* its peer is not active: nothing follows the pointer */
        return status;
    }
    b->imports[peer] = import;
    b->routes[peer] = (epw_route){epw_import_path(import), epw_import_base(import)};
    return EPW_OK;
}

/* With all lanes locked: the peer's window may go only if no operation, held or still owed, can reach it. */
static epw_status check_unused(const epw_buffer *b, epw_where where, uint32_t peer) {
    epw_status status = check_lanes_free(b, where);
    epw_mask suspects = b->engine->suspects(b);
    if (status != EPW_OK || !epw_mask_has(&b->active, peer) || epw_mask_has(&suspects, peer)) return status;
    return epw_fail(EPW_ERR_STATE, where, "it is active: leave it out of a set_active first");
}

/* With all lanes locked: only one thread at a time changes how a peer is reached. */
static epw_status check_not_connecting(const epw_buffer *b, epw_where where) {
    if (!epw_mask_has(&b->connecting, (uint32_t)where.peer)) return EPW_OK;
    return epw_fail(EPW_ERR_STATE, where,
                    "another thread is connecting it: try again once that has ended, within its deadline");
}

/* With all lanes locked. */
static epw_status check_changeable(const epw_buffer *b, epw_where where) {
    epw_status status = check_not_connecting(b, where);
    return status == EPW_OK ? check_unused(b, where, (uint32_t)where.peer) : status;
}

/* Locks all lanes when how the peer is reached may change. A window that is mapped goes: what has been
 * enqueued has run by then. On failure nothing is locked. */
static epw_status lock_to_change(epw_buffer *b, epw_where where) {
    lock_lanes(b);
    epw_status status = check_changeable(b, where);
    if (status == EPW_OK && b->imports[where.peer] != NULL) {
        unlock_lanes(b);
        status = quiesce(b, where);
        if (status != EPW_OK) return status;
        lock_lanes(b);
        status = check_changeable(b, where);
    }
    if (status != EPW_OK) unlock_lanes(b);
    return status;
}

epw_status epw_buffer_connect(epw_buffer *b, uint32_t peer, const void *blob, size_t length) {
    return epw_buffer_connect_within(b, peer, blob, length, b != NULL ? b->config.deadline_ns : 1);
}

epw_status epw_buffer_connect_within(epw_buffer *b, uint32_t peer, const void *blob, size_t length,
                                     uint64_t deadline_ns) {
    epw_status status = check_peer(b, "connect", peer);
    if (status != EPW_OK) return status;
    epw_where where = {"connect", (int)b->config.rank, (int)peer};
    if (blob == NULL) return epw_fail(EPW_ERR_INVALID, where, "blob is NULL");
    if (deadline_ns == 0) return epw_fail(EPW_ERR_INVALID, where, "deadline_ns is 0, must be at least 1");
    status = lock_to_change(b, where);
    if (status != EPW_OK) return status;
    status = disconnect(b, peer);
    if (status == EPW_OK) epw_mask_add(&b->connecting, peer);
    unlock_lanes(b);
    if (status != EPW_OK) return status;

    /* The peer may be slow to answer, and this rank's other calls take the locks meanwhile. They find a peer
     * that is not connected, which can not become active; what begins on a lane has no part in it. */
    epw_import *import = NULL;
    status = epw_window_import(b->window, peer, blob, length, deadline_ns, &import);

    lock_lanes(b);
    epw_mask_drop(&b->connecting, peer);
    if (status == EPW_OK) status = take_import(b, peer, import);
    unlock_lanes(b);
    return status;
}

epw_status epw_buffer_disconnect(epw_buffer *b, uint32_t peer) {
    epw_status status = check_peer(b, "disconnect", peer);
    if (status != EPW_OK) return status;
    epw_where where = {"disconnect", (int)b->config.rank, (int)peer};
    status = lock_to_change(b, where);
    if (status != EPW_OK) return status;
    status = disconnect(b, peer);
    unlock_lanes(b);
    return status;
}

uint32_t epw_buffer_path(const epw_buffer *b, uint32_t peer) {
    if (b == NULL || peer >= b->config.ranks) return EPW_PATH_NONE;
    lock_lanes((epw_buffer *)b);
    uint32_t path = b->routes[peer].path;
    unlock_lanes((epw_buffer *)b);
    return path;
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
    default:
        return "unknown path";
    }
}

/* ---- membership ---- */

static epw_status check_membership(const epw_buffer *b, const epw_mask *active, uint32_t epoch) {
    epw_where where = epw_at(b, "set_active");
    if (epoch <= b->epoch || epoch > EPW_EPOCH_MAX) {
        return epw_fail(EPW_ERR_INVALID, where, "epoch is %u, must be in [%u, %u]", epoch, b->epoch + 1,
                        EPW_EPOCH_MAX);
    }
    if (!epw_mask_has(active, b->config.rank)) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "the mask leaves this rank out: only members call set_active");
    }
    for (uint32_t p = 0; p < EPW_MAX_RANKS; p++) {
        if (!epw_mask_has(active, p)) continue;
        if (p >= b->config.ranks) {
            return epw_fail(EPW_ERR_INVALID, where, "the mask names rank %u of %u", p, b->config.ranks);
        }
        if (b->routes[p].path == EPW_PATH_NONE) {
            where.peer = (int)p;
            return epw_fail(EPW_ERR_STATE, where, "not connected: connect it first");
        }
    }
    return check_lanes_free(b, where);
}

epw_status epw_buffer_set_active(epw_buffer *b, const epw_mask *active, uint32_t epoch) {
    if (b == NULL || active == NULL) {
        return epw_fail(EPW_ERR_INVALID, (epw_where){"set_active", -1, -1}, "buffer or active is NULL");
    }
    lock_lanes(b);
    epw_status status = check_membership(b, active, epoch);
    unlock_lanes(b);
    if (status == EPW_OK) status = quiesce(b, epw_at(b, "set_active"));
    if (status != EPW_OK) return status;
    lock_lanes(b);
    status = check_membership(b, active, epoch);
    if (status == EPW_OK) status = b->engine->set_active(b, active, epoch);
    if (status == EPW_OK) {
        for (uint32_t i = 0; i < b->config.lanes; i++) {
            b->lanes[i].op = 0;
            b->lanes[i].wrapped = false;
        }
        b->active = *active;
        b->epoch = epoch;
        atomic_store_explicit(&b->next_lane, 0, memory_order_relaxed);
    }
    unlock_lanes(b);
    return status;
}

epw_status epw_buffer_membership(const epw_buffer *b, epw_mask *active, epw_mask *suspects, uint32_t *epoch) {
    if (b == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"membership", -1, -1}, "buffer is NULL");
    lock_lanes((epw_buffer *)b);
    if (active != NULL) *active = b->active;
    if (suspects != NULL) *suspects = b->engine->suspects(b);
    if (epoch != NULL) *epoch = b->epoch;
    unlock_lanes((epw_buffer *)b);
    return EPW_OK;
}

epw_status epw_buffer_reachable_experts(const epw_buffer *b, uint8_t *reachable) {
    epw_where where = {"reachable_experts", -1, -1};
    if (b == NULL || reachable == NULL)
        return epw_fail(EPW_ERR_INVALID, where, "buffer or reachable is NULL");
    epw_mask active, suspects;
    epw_status status = epw_buffer_membership(b, &active, &suspects, NULL);
    for (uint32_t e = 0; status == EPW_OK && e < b->config.experts; e++) {
        uint32_t rank = e / b->layout.local_experts;
        reachable[e] = epw_mask_has(&active, rank) && !epw_mask_has(&suspects, rank);
    }
    return status;
}
