/* See gpu_engine.h. */
#ifdef EPW_CUDA
#include "peer/gpu_engine.h"

#include "base/clock.h"

/* ---- bounded waits for the lanes ---- */

epw_status epw_peers_require_marked(const epw_peers *peers, uint32_t lane, epw_where where) {
    return epw_stream_require_marked(epw_lane_order(peers, lane), peers->gpu->unmarked, where);
}

/* Also for kernels that tell suspects. */
static epw_status await_lanes(const epw_peers *peers, epw_holding lanes, uint64_t timeout_ns,
                              epw_where where) {
    uint64_t began = epw_now_ns();
    for (uint32_t lane = 0; lane <= peers->lanes; lane++) {
        const epw_stream_order *order =
            lane < peers->lanes ? epw_lane_order(peers, lane) : &peers->gpu->looks;
        if (lanes == EPW_NOT_HELD) peers->user->lock(peers->user_context);
        bool enqueued = order->enqueued;
        epw_status status = epw_stream_require_marked(order, peers->gpu->unmarked, where);
        if (lanes == EPW_NOT_HELD) peers->user->unlock(peers->user_context);
        if (status != EPW_OK) return status;
        if (!enqueued) continue;
        uint64_t waited = epw_now_ns() - began;
        status =
            epw_peers_await_event(peers, order->event, waited < timeout_ns ? timeout_ns - waited : 0, where);
        if (status != EPW_OK) return status;
    }
    return EPW_OK;
}

epw_status epw_peers_require_idle(const epw_peers *peers, epw_holding lanes, epw_where where) {
    uint64_t deadline_ns = peers->gpu->deadline_ns;
    epw_status status = await_lanes(peers, lanes, deadline_ns, where);
    if (status != EPW_PENDING) return status;
    return epw_fail(
        EPW_ERR_TIMEOUT, where,
        "what was enqueued before has not run within the deadline of %llu ms: wait for its stream",
        (unsigned long long)(deadline_ns / 1000000u));
}

/* ---- members ---- */

/* Writer of each set: the kernels of its lane, into mapped memory; writer of all sets: the membership kernel.
 */
static epw_mask of_all_lanes(const epw_peers *peers, const epw_rank_set sets[EPW_MAX_LANES]) {
    epw_mask all = {{0}};
    for (uint32_t lane = 0; lane < peers->lanes; lane++) epw_ranks_join(&all, &sets[lane]);
    return all;
}

epw_mask epw_peers_gpu_suspects(const epw_peers *peers, epw_mask *silent) {
    const epw_peers_pinned *pinned = peers->gpu->pinned;
    epw_mask suspects = of_all_lanes(peers, pinned->suspects);
    epw_ranks_join(&suspects, &pinned->revoked);
    if (silent == NULL) return suspects;
    *silent = of_all_lanes(peers, pinned->silent);
    for (uint32_t i = 0; i < EPW_MASK_WORDS; i++) silent->bits[i] &= suspects.bits[i];
    return suspects;
}

/* Writer: this thread. Reader: kernels that have waited long. The bits publish nothing else. */
void epw_peers_gpu_revoke(const epw_peers *peers, const epw_mask *members) {
    EPW_MASK_FOR(peer, members, peers->ranks) epw_ranks_insert(&peers->gpu->pinned->revoked, peer);
}

epw_stretch epw_peers_no_footprint(void *user, uint32_t source, uint32_t lane, uint32_t area) {
    (void)user, (void)source, (void)lane, (void)area;
    return (epw_stretch){0, 0};
}

epw_status epw_peers_settle_epoch(epw_peers *peers, uint64_t epoch_word, epw_where where) {
    uint64_t deadline_ns = peers->gpu->deadline_ns;
    epw_status status = epw_peers_settle(peers, deadline_ns, where);
    if (status == EPW_OK) return EPW_OK;
    /* The kernel may still run later: neither the old membership nor the new one is valid. */
    peers->epoch = epw_word_epoch(epoch_word);
    peers->step = epw_word_step(epoch_word);
    epw_mask_clear(&peers->active);
    if (status != EPW_PENDING) return status;
    return epw_fail(EPW_ERR_TIMEOUT, where,
                    "the GPU has not begun the epoch within the deadline of %llu ms: call again, with this "
                    "epoch and step or a larger epoch",
                    (unsigned long long)(deadline_ns / 1000000u));
}

bool epw_peers_leave_gpu(epw_peers *peers, uint64_t timeout_ns) {
    epw_where where = {"destroy", (int)peers->rank, -1};
    uint64_t now = epw_now_ns(), until_ns = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
    if (peers->gpu == NULL) return true;
    /* Without a membership only copies of probes access windows. */
    if (peers->epoch == 0)
        return !peers->gpu->probed || epw_peers_settle(peers, timeout_ns, where) != EPW_PENDING;
    epw_status status = await_lanes(peers, EPW_HELD, timeout_ns, where);
    if (status == EPW_ERR_STATE) return false; /* work may still be running */
    /* Kernels have told suspects, except those that were revoked and not waited for since. */
    epw_mask told = of_all_lanes(peers, peers->gpu->pinned->suspects);
    if (status == EPW_OK) status = epw_peers_say_farewell(peers, &told, until_ns, where);
    return status != EPW_PENDING; /* a GPU that has failed accesses nothing any more */
}
#else
typedef int epw_no_gpu_engines; /* ISO C requires a declaration in every file */
#endif
