/* Connecting peers, one by one: the table of routes and the imports behind it.
 *
 * Only one thread at a time changes how a peer is reached. What may take long, an import that waits for the
 * peer's process, happens with nothing locked; other calls find a peer that is not connected meanwhile. */
#include "peer/gpu.h"

static void lock(epw_peers *peers) {
    peers->user->lock(peers->user_context);
}

static void unlock(epw_peers *peers) {
    peers->user->unlock(peers->user_context);
}

/* Of a call that changes how a peer is reached: no rank needs a path to itself. */
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
    lock(peers);
    status = epw_window_export(peers->window, peer, blob, length);
    unlock(peers);
    return status;
}

/* Locked. A route that goes or comes, as the probe sees it too. */
static void set_route(epw_peers *peers, uint32_t peer, epw_route route) {
    pthread_mutex_lock(&peers->ask_lock);
    pthread_mutex_lock(&peers->answer_lock);
    peers->routes[peer] = route;
    pthread_mutex_unlock(&peers->answer_lock);
    pthread_mutex_unlock(&peers->ask_lock);
}

/* Locked. Order: nothing of this rank writes there any more, the farewell is posted, the route goes, the
 * window is unmapped; epw_import_close then tells the peer that its lease has ended. */
static epw_status disconnect(epw_peers *peers, uint32_t peer, epw_where where) {
    if (peers->imports[peer] == NULL) return EPW_OK;
    static const epw_route none = {.path = EPW_PATH_NONE};
    epw_status status = peers->user->part(peers->user_context, peer, where);
    set_route(peers, peer, none); /* also where that could not be seen done: it may be */
    if (status != EPW_OK) return status;
    epw_import_close(peers->imports[peer]);
    peers->imports[peer] = NULL;
    return EPW_OK;
}

/* Locked. Closes the import if the GPU does not learn of it. */
static epw_status take_import(epw_peers *peers, uint32_t peer, epw_import *import, epw_where where) {
    uint64_t base = (uint64_t)(uintptr_t)epw_import_base(import);
    epw_route route = {.path = epw_import_path(import), .incarnation = ++peers->incarnations};
    for (uint32_t lane = 0; lane < EPW_MAX_LANES; lane++) route.lanes[lane] = (epw_areas){base, base, base};
    epw_status status = peers->gpu != NULL ? epw_peers_enter(peers, peer, &route, where) : EPW_OK;
    if (status != EPW_OK) {
        epw_import_close(import); /* its peer is not active: nothing follows the pointer */
        return status;
    }
    peers->imports[peer] = import;
    set_route(peers, peer, route);
    return EPW_OK;
}

/* Locked: the peer's window may go only if no operation, held or still owed, can reach it. */
static epw_status check_changeable(const epw_peers *peers, epw_where where) {
    uint32_t peer = (uint32_t)where.peer;
    if (epw_mask_has(&peers->connecting, peer)) {
        return epw_fail(
            EPW_ERR_STATE, where,
            "another thread is connecting it: try again once that has ended, within its deadline");
    }
    epw_status status = peers->user->check_idle(peers->user_context, where);
    epw_mask suspects = peers->user->suspects(peers->user_context, NULL);
    if (status != EPW_OK || !epw_mask_has(&peers->active, peer) || epw_mask_has(&suspects, peer))
        return status;
    return epw_fail(EPW_ERR_STATE, where, "it is active: leave it out of a set_active first");
}

/* Locks, when how the peer is reached may change. A window that is mapped goes: what has been enqueued has
 * run by then. On failure nothing is locked. */
static epw_status lock_to_change(epw_peers *peers, epw_where where) {
    lock(peers);
    epw_status status = check_changeable(peers, where);
    if (status == EPW_OK && peers->imports[where.peer] != NULL && peers->user->quiesce != NULL) {
        unlock(peers);
        status = peers->user->quiesce(peers->user_context, where);
        if (status != EPW_OK) return status;
        lock(peers);
        status = check_changeable(peers, where);
    }
    if (status != EPW_OK) unlock(peers);
    return status;
}

epw_status epw_peers_connect(epw_peers *peers, uint32_t peer, const void *blob, size_t length,
                             uint64_t deadline_ns) {
    epw_status status = check_other(peers, "connect", peer);
    if (status != EPW_OK) return status;
    epw_where where = epw_peers_where(peers, "connect", peer);
    if (blob == NULL) return epw_fail(EPW_ERR_INVALID, where, "blob is NULL");
    if (deadline_ns == 0) return epw_fail(EPW_ERR_INVALID, where, "deadline_ns is 0, must be at least 1");
    status = lock_to_change(peers, where);
    if (status != EPW_OK) return status;
    status = disconnect(peers, peer, where);
    if (status == EPW_OK) epw_mask_add(&peers->connecting, peer);
    unlock(peers);
    if (status != EPW_OK) return status;

    epw_import *import = NULL;
    status = epw_window_import(peers->window, peer, blob, length, deadline_ns, &import);

    lock(peers);
    epw_mask_drop(&peers->connecting, peer);
    if (status == EPW_OK) status = take_import(peers, peer, import, where);
    unlock(peers);
    return status;
}

epw_status epw_peers_disconnect(epw_peers *peers, uint32_t peer) {
    epw_status status = check_other(peers, "disconnect", peer);
    if (status != EPW_OK) return status;
    epw_where where = epw_peers_where(peers, "disconnect", peer);
    status = lock_to_change(peers, where);
    if (status != EPW_OK) return status;
    status = disconnect(peers, peer, where);
    unlock(peers);
    return status;
}

uint32_t epw_peers_path(epw_peers *peers, uint32_t peer) {
    if (peer >= peers->ranks) return EPW_PATH_NONE;
    lock(peers);
    uint32_t path = peers->routes[peer].path;
    unlock(peers);
    return path;
}
