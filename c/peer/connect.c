/* Connects peers one by one: the table of routes, and the imports on which it rests.
 *
 * Only one thread at a time changes how a peer is reached: it has claimed the peer, under the floor's lock. A
 * peer that is not active takes part in no operation, and only probes use its route: it is connected and
 * disconnected while operations run. A member that was given up is disconnected while no operation is in
 * flight, with the user locked. Steps that may take long (an import that waits for the peer's process, or for
 * a GPU) run without the floor's lock. */
#include "peer/gpu.h"
#include "peer/remote.h"

static void lock(epw_peers *peers) {
    pthread_mutex_lock(&peers->lock);
}

static void unlock(epw_peers *peers) {
    pthread_mutex_unlock(&peers->lock);
}

/* Checks a call that changes how a peer is reached: no rank needs a path to itself. */
static epw_status check_other(const epw_peers *peers, const char *op, uint32_t peer) {
    epw_status status = epw_peers_check(peers, op, peer);
    if (status != EPW_OK || peer != peers->rank) return status;
    return epw_fail(EPW_ERR_INVALID, (epw_where){op, (int)peers->rank, -1},
                    "peer is %u, which is this rank itself: it needs no path", peer);
}

epw_status epw_peers_export(epw_peers *peers, uint32_t peer, void *blob, size_t *length) {
    epw_status status = check_other(peers, "export", peer);
    if (status != EPW_OK) return status;
    if (blob == NULL || length == NULL) {
        return epw_fail(EPW_ERR_INVALID, (epw_where){"export", (int)peers->rank, -1}, "%s is NULL",
                        blob == NULL ? "blob" : "length");
    }
    epw_where where = epw_peers_where(peers, "export", peer);
    epw_blob_queue queue;
    lock(peers);
    status = epw_remote_offer(peers, peer, &queue, where);
    if (status == EPW_OK) status = epw_window_export(peers->window, peer, &queue, blob, length);
    unlock(peers);
    return status;
}

/* ---- claims ---- */

/* Called with the floor locked. A member must have been given up. */
static epw_status check_given_up(const epw_peers *peers, epw_where where) {
    uint32_t peer = (uint32_t)where.peer;
    epw_mask suspects = peers->user->suspects(peers->user_context, NULL);
    if (!epw_mask_has(&peers->active, peer) || epw_mask_has(&suspects, peer)) return EPW_OK;
    return epw_fail(EPW_ERR_STATE, where, "it is active: leave it out of a set_active first");
}

/* Called with the floor locked. Sets or removes a route, for the probe as well. */
static void set_route(epw_peers *peers, uint32_t peer, epw_route route) {
    uint64_t bit = UINT64_C(1) << (peer % 64);
    if (route.path == EPW_PATH_QUEUE) {
        atomic_fetch_or_explicit(&peers->by_queue[peer / 64], bit, memory_order_relaxed);
    } else if (route.path != EPW_PATH_NONE) {
        atomic_fetch_and_explicit(&peers->by_queue[peer / 64], ~bit, memory_order_relaxed);
    }
    pthread_mutex_lock(&peers->ask_lock);
    pthread_mutex_lock(&peers->answer_lock);
    peers->routes[peer] = route;
    pthread_mutex_unlock(&peers->answer_lock);
    pthread_mutex_unlock(&peers->ask_lock);
}

static const epw_route no_route = {.path = EPW_PATH_NONE};

/* From here to drop_claim only this thread changes how the peer is reached. *member: the peer is a member
 * that was given up. If it is not a member its route is removed at once: no membership with it begins before
 * it has a new one. */
static epw_status claim(epw_peers *peers, epw_where where, bool *member) {
    uint32_t peer = (uint32_t)where.peer;
    lock(peers);
    epw_status status = check_given_up(peers, where);
    if (epw_mask_has(&peers->connecting, peer)) {
        status =
            epw_fail(EPW_ERR_STATE, where,
                     "another thread is connecting it: try again once that has ended, within its deadline");
    }
    *member = epw_mask_has(&peers->active, peer);
    if (status == EPW_OK) epw_mask_add(&peers->connecting, peer);
    if (status == EPW_OK && !*member) set_route(peers, peer, no_route);
    unlock(peers);
    return status;
}

static void drop_claim(epw_peers *peers, uint32_t peer) {
    lock(peers);
    epw_mask_drop(&peers->connecting, peer);
    unlock(peers);
}

/* ---- going ---- */

/* Called with the user locked: the window of a member may be unmapped only if no operation, held or still
 * owed, can reach it. */
static epw_status check_changeable(epw_peers *peers, epw_where where) {
    epw_status status = peers->user->check_idle(peers->user_context, where);
    if (status != EPW_OK) return status;
    lock(peers);
    status = check_given_up(peers, where); /* as when it was claimed */
    unlock(peers);
    return status;
}

/* Locks the user once a member's window may be unmapped: what was enqueued has run by then. On failure
 * nothing is locked. */
static epw_status lock_to_part(epw_peers *peers, epw_where where) {
    const epw_peers_user *user = peers->user;
    user->lock(peers->user_context);
    epw_status status = check_changeable(peers, where);
    if (status == EPW_OK && peers->imports[where.peer] != NULL && user->quiesce != NULL) {
        user->unlock(peers->user_context);
        status = user->quiesce(peers->user_context, where);
        if (status != EPW_OK) return status;
        user->lock(peers->user_context);
        status = check_changeable(peers, where);
    }
    if (status != EPW_OK) user->unlock(peers->user_context);
    return status;
}

/* Called with the peer claimed. Tells a member, and removes its route, even if the change was not seen to
 * complete, since it may still complete. */
static epw_status part(epw_peers *peers, epw_where where) {
    epw_status status = lock_to_part(peers, where);
    if (status != EPW_OK || peers->imports[where.peer] == NULL) {
        if (status == EPW_OK) peers->user->unlock(peers->user_context);
        return status;
    }
    status = peers->user->part(peers->user_context, (uint32_t)where.peer, where);
    lock(peers);
    set_route(peers, (uint32_t)where.peer, no_route);
    unlock(peers);
    peers->user->unlock(peers->user_context);
    return status;
}

const unsigned char *epw_peers_mapped(const epw_peers *peers, uint32_t peer) {
    const epw_route *route = &peers->routes[peer];
    if (route->path == EPW_PATH_NONE || route->path == EPW_PATH_QUEUE) return NULL;
    return epw_at(route->lanes[0].rows, 0);
}

void epw_peers_keep_mapped(epw_peers *peers, const epw_mask *which) {
    lock(peers);
    for (uint32_t i = 0; i < EPW_MASK_WORDS; i++) peers->mapped.bits[i] |= which->bits[i];
    unlock(peers);
}

/* Called with the peer claimed, when it has no route any more. */
static void let_go(epw_peers *peers, uint32_t peer) {
    epw_import *import = peers->imports[peer];
    lock(peers);
    bool stays = epw_mask_has(&peers->mapped, peer);
    if (stays) epw_import_keep(import, &peers->kept);
    epw_mask_drop(&peers->mapped, peer);
    unlock(peers);
    if (!stays) epw_import_close(import);
    peers->imports[peer] = NULL;
}

/* Called with the peer claimed. Order: nothing of this rank writes there any more, the farewell is posted,
 * the route is removed, the window is unmapped; epw_import_close then tells the peer that its lease has
 * ended. The route of a rank that is not a member has been removed before: the last membership has told it,
 * and copies of probes that were given up have run by the time the GPU's tables no longer contain it. `next`:
 * what is about to be connected in its place; NULL: nothing. */
static epw_status disconnect(epw_peers *peers, epw_where where, bool member, const epw_blob *next) {
    epw_status status = EPW_OK;
    epw_import *import = peers->imports[where.peer];
    if (member) {
        status = part(peers, where);
    } else if (import != NULL && peers->gpu != NULL) {
        status = epw_peers_enter(peers, (uint32_t)where.peer, &no_route, where);
    }
    if (status != EPW_OK || import == NULL) return status;
    if (next != NULL) {
        epw_remote_let_go(peers, (uint32_t)where.peer, &next->window);
    } else {
        epw_remote_disconnect(peers, (uint32_t)where.peer);
    }
    let_go(peers, (uint32_t)where.peer);
    return EPW_OK;
}

/* ---- coming ---- */

/* Whether the peer, which is not a member, is reached through exactly the queues that the blob names. It may
 * have connected them with this rank's already: connecting them again would break them. */
static bool is_connected_to(epw_peers *peers, uint32_t peer, const epw_blob *blob) {
    lock(peers);
    bool connected = peers->routes[peer].path == EPW_PATH_QUEUE && !epw_mask_has(&peers->active, peer) &&
                     !epw_mask_has(&peers->connecting, peer) && epw_remote_is_connected_to(peers, peer, blob);
    unlock(peers);
    return connected;
}

/* Called with the peer claimed. If it fails, the import is closed, or disconnect() does so. */
static epw_status take_import(epw_peers *peers, epw_where where, epw_import *import, uint64_t deadline_ns,
                              bool member) {
    uint32_t peer = (uint32_t)where.peer;
    uint64_t base = (uint64_t)(uintptr_t)epw_import_base(import);
    epw_route route = {.path = epw_import_path(import)};
    epw_status status = EPW_OK;
    for (uint32_t lane = 0; lane < EPW_MAX_LANES; lane++) route.lanes[lane] = (epw_areas){base, base, base};
    if (route.path == EPW_PATH_QUEUE)
        status = epw_remote_connect(peers, peer, epw_import_window(import), epw_import_queue(import),
                                    deadline_ns, where, &route);
    bool enters = status == EPW_OK && peers->gpu != NULL;
    if (enters) status = epw_peers_enter(peers, peer, &route, where);
    if (status != EPW_OK) {
        /* A GPU whose tables were not seen to change may yet find the window in them, or the queues: then
         * they stay, without a route, until the peer is disconnected. */
        if (enters && epw_peers_enter(peers, peer, &no_route, where) != EPW_OK) {
            peers->imports[peer] = import;
            return status;
        }
        if (route.path == EPW_PATH_QUEUE) epw_remote_disconnect(peers, peer);
        epw_import_close(import); /* nobody sends to this peer, so nothing uses the pointer */
        return status;
    }
    peers->imports[peer] = import;
    if (member) peers->user->lock(peers->user_context);
    lock(peers);
    route.incarnation = ++peers->incarnations;
    set_route(peers, peer, route);
    unlock(peers);
    if (member) peers->user->unlock(peers->user_context);
    return EPW_OK;
}

/* ---- calls ---- */

epw_status epw_peers_connect(epw_peers *peers, uint32_t peer, const void *blob, size_t length,
                             uint64_t deadline_ns) {
    epw_status status = check_other(peers, "connect", peer);
    if (status != EPW_OK) return status;
    epw_where where = epw_peers_where(peers, "connect", peer);
    if (blob == NULL) return epw_fail(EPW_ERR_INVALID, where, "blob is NULL");
    if (deadline_ns == 0) return epw_fail(EPW_ERR_INVALID, where, "deadline is 0 ns, must be at least 1");
    epw_blob read;
    status = epw_window_read_blob(peers->window, peer, blob, length, &read);
    if (status != EPW_OK) return status;
    if (is_connected_to(peers, peer, &read)) return EPW_OK;
    bool member;
    status = claim(peers, where, &member);
    if (status != EPW_OK) return status;
    epw_import *import = NULL;
    status = disconnect(peers, where, member, &read);
    if (status == EPW_OK) status = epw_window_import(peers->window, peer, blob, length, deadline_ns, &import);
    if (status == EPW_OK) status = take_import(peers, where, import, deadline_ns, member);
    drop_claim(peers, peer);
    return status;
}

epw_status epw_peers_disconnect(epw_peers *peers, uint32_t peer) {
    epw_status status = check_other(peers, "disconnect", peer);
    if (status != EPW_OK) return status;
    epw_where where = epw_peers_where(peers, "disconnect", peer);
    bool member;
    status = claim(peers, where, &member);
    if (status != EPW_OK) return status;
    status = disconnect(peers, where, member, NULL);
    drop_claim(peers, peer);
    return status;
}

epw_status epw_peers_connected(epw_peers *peers, epw_where where, epw_nonce *window, uint64_t *incarnation) {
    uint32_t peer = (uint32_t)where.peer;
    epw_status status = check_other(peers, where.op, peer);
    if (status != EPW_OK) return status;
    lock(peers);
    *incarnation = epw_mask_has(&peers->connecting, peer) ? 0 : epw_incarnation_of(peers, peer);
    if (*incarnation != 0) *window = *epw_import_window(peers->imports[peer]);
    unlock(peers);
    if (*incarnation != 0) return EPW_OK;
    return epw_fail(EPW_ERR_STATE, where, "not connected: connect it first");
}

uint32_t epw_peers_path(epw_peers *peers, uint32_t peer) {
    if (peer >= peers->ranks) return EPW_PATH_NONE;
    lock(peers);
    uint32_t path = peers->routes[peer].path;
    unlock(peers);
    return path;
}

uint32_t epw_peers_wire(epw_peers *peers, uint32_t peer) {
    if (peer >= peers->ranks) return 0;
    lock(peers);
    uint32_t wire = peers->routes[peer].wire;
    unlock(peers);
    return wire;
}

const char *epw_peers_trouble(epw_peers *peers, uint32_t peer, char *text) {
    *text = '\0';
    return peer < peers->ranks ? epw_remote_trouble(peers, peer, text) : text;
}

const char *epw_peers_try_trouble(epw_peers *peers, uint32_t peer, char *text) {
    *text = '\0';
    return peer < peers->ranks ? epw_remote_try_trouble(peers, peer, text) : text;
}
