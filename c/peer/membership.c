/* Who is active, and in which epoch. */
#include "peer/peers.h"

/* The user locked, and the floor. */
static epw_status check_membership(const epw_peers *peers, const epw_mask *active, uint32_t epoch,
                                   uint64_t step) {
    epw_where where = {"set_active", (int)peers->rank, -1};
    if (epoch <= peers->epoch || epoch > EPW_EPOCH_MAX) {
        return epw_fail(EPW_ERR_INVALID, where, "epoch is %u, must be in [%u, %u]", epoch, peers->epoch + 1,
                        EPW_EPOCH_MAX);
    }
    if (step > EPW_STEP_MAX) {
        return epw_fail(EPW_ERR_INVALID, where, "step is %llu, must be in [0, %llu]",
                        (unsigned long long)step, (unsigned long long)EPW_STEP_MAX);
    }
    if (!epw_mask_has(active, peers->rank)) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "the mask leaves this rank out: only members call set_active");
    }
    for (uint32_t p = 0; p < EPW_MAX_RANKS; p++) {
        if (!epw_mask_has(active, p)) continue;
        if (p >= peers->ranks) {
            return epw_fail(EPW_ERR_INVALID, where, "the mask names rank %u of %u", p, peers->ranks);
        }
        if (peers->routes[p].path == EPW_PATH_NONE) {
            where.peer = (int)p;
            return epw_fail(EPW_ERR_STATE, where, "not connected: connect it first");
        }
    }
    return peers->user->check_idle(peers->user_context, where);
}

epw_status epw_peers_set_active(epw_peers *peers, const epw_mask *active, uint32_t epoch, uint64_t step) {
    const epw_peers_user *user = peers->user;
    epw_where where = {"set_active", (int)peers->rank, -1};
    user->lock(peers->user_context);
    pthread_mutex_lock(&peers->lock);
    epw_status status = check_membership(peers, active, epoch, step);
    pthread_mutex_unlock(&peers->lock);
    user->unlock(peers->user_context);
    /* Without a lock, between two looks at the same conditions: long waits keep nobody from a lane. */
    if (status == EPW_OK && user->quiesce != NULL) status = user->quiesce(peers->user_context, where);
    if (status != EPW_OK) return status;
    user->lock(peers->user_context);
    pthread_mutex_lock(&peers->lock);
    status = check_membership(peers, active, epoch, step);
    if (status == EPW_OK)
        status = user->begin_epoch(peers->user_context, active, epw_epoch_word(epoch, step), where);
    if (status == EPW_OK) {
        peers->active = *active;
        peers->epoch = epoch;
        peers->step = step;
    }
    pthread_mutex_unlock(&peers->lock);
    user->unlock(peers->user_context);
    return status;
}

void epw_peers_membership(epw_peers *peers, epw_membership *membership) {
    pthread_mutex_lock(&peers->lock);
    membership->epoch = peers->epoch;
    membership->step = peers->step;
    membership->active = peers->active;
    membership->suspects = peers->user->suspects(peers->user_context, &membership->silent);
    pthread_mutex_unlock(&peers->lock);
}

epw_status epw_peers_revoke(epw_peers *peers, const epw_mask *mask) {
    if (epw_mask_has(mask, peers->rank)) {
        return epw_fail(EPW_ERR_INVALID, (epw_where){"revoke", (int)peers->rank, -1},
                        "the mask names this rank itself: it can only go on without others");
    }
    pthread_mutex_lock(&peers->lock);
    epw_mask members = *mask;
    for (uint32_t i = 0; i < EPW_MASK_WORDS; i++) members.bits[i] &= peers->active.bits[i];
    peers->user->revoke(peers->user_context, &members);
    pthread_mutex_unlock(&peers->lock);
    return EPW_OK;
}
