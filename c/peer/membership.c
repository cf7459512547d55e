/* Memberships: which ranks are active, and in which epoch. */
#include "peer/gpu.h"
#include "peer/remote.h"
#include "peer/tell.h"

/* Called with the user and the floor locked. */
static epw_status check_membership(const epw_peers *peers, const epw_mask *active, uint32_t epoch,
                                   uint64_t step) {
    epw_where where = {"set_active", (int)peers->rank, -1};
    /* An epoch that was not seen to begin may be begun again, because nothing can have run in it. */
    bool unfinished = peers->epoch != 0 && epw_mask_empty(&peers->active) && step == peers->step;
    uint32_t least = unfinished ? peers->epoch : peers->epoch + 1;
    if (epoch < least || epoch > EPW_EPOCH_MAX) {
        return epw_fail(EPW_ERR_INVALID, where, "epoch is %u, must be in [%u, %u]", epoch, least,
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
    /* Nothing is locked here, so that a long wait keeps nobody from a lane; the same conditions are checked
     * before and after. */
    if (status == EPW_OK && user->quiesce != NULL) status = user->quiesce(peers->user_context, where);
    if (status != EPW_OK) return status;
    user->lock(peers->user_context);
    pthread_mutex_lock(&peers->lock);
    status = check_membership(peers, active, epoch, step);
    if (status == EPW_OK)
        status = user->begin_epoch(peers->user_context, active, epw_epoch_word(epoch, step), where);
    if (status == EPW_OK) {
        epw_mask before = peers->active;
        peers->active = *active;
        peers->epoch = epoch;
        peers->step = step;
        epw_remotes_serve(peers, active);
        epw_tell_membership(&(epw_begun){.what = peers->what,
                                         .rank = peers->rank,
                                         .ranks = peers->ranks,
                                         .epoch = epoch,
                                         .step = step,
                                         .active = active,
                                         .before = &before,
                                         .routes = peers->routes});
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
                        "the mask names this rank itself: it can only continue without others");
    }
    pthread_mutex_lock(&peers->lock);
    epw_mask members = *mask;
    for (uint32_t i = 0; i < EPW_MASK_WORDS; i++) members.bits[i] &= peers->active.bits[i];
    peers->user->revoke(peers->user_context, &members);
    pthread_mutex_unlock(&peers->lock);
    return EPW_OK;
}

/* The peer's epoch word in this rank's window, that of lane 0: all lanes get it at the same time. `op` is the
 * public call. */
static epw_status load_epoch(const epw_peers *peers, const char *op, uint32_t peer, uint64_t *word) {
    if (peers->gpu != NULL && !epw_is_in_inbox(peers, peer)) {
        unsigned char *at = epw_peers_own(peers) + epw_word_offset(peer, 0, EPW_WORD_EPOCH);
        epw_word_copy copy = {.use = EPW_COPY_EPOCH, .writes = false, .at = at, .value = word};
        return epw_peers_copy_word(peers, &copy, EPW_COPY_WITHIN_NS, epw_peers_where(peers, op, peer));
    }
    /* Writer: the peer, done with its reads and writes of the previous epoch. Reader: whoever continues with
     * it. */
    *word = epw_word_from(peers, 0, peer, EPW_WORD_EPOCH);
    return EPW_OK;
}

epw_status epw_peers_newest_epoch(epw_peers *peers, uint32_t *epoch) {
    epw_status status = EPW_OK;
    pthread_mutex_lock(&peers->lock);
    *epoch = peers->epoch;
    EPW_MASK_FOR(peer, &peers->active, peers->ranks) {
        uint64_t word = 0;
        if (peer != peers->rank && status == EPW_OK) status = load_epoch(peers, "newest_epoch", peer, &word);
        if (epw_word_epoch(word) > *epoch) *epoch = epw_word_epoch(word);
    }
    pthread_mutex_unlock(&peers->lock);
    return status;
}

epw_status epw_peers_diverged(epw_peers *peers, uint32_t epoch, uint64_t step, epw_mask *ranks) {
    epw_where where = {"diverged", (int)peers->rank, -1};
    if (epoch > EPW_EPOCH_MAX || step > EPW_STEP_MAX) {
        return epw_fail(EPW_ERR_INVALID, where, "epoch %u and step %llu must be in [0, %u] and [0, %llu]",
                        epoch, (unsigned long long)step, EPW_EPOCH_MAX, (unsigned long long)EPW_STEP_MAX);
    }
    epw_status status = EPW_OK;
    epw_mask_clear(ranks);
    pthread_mutex_lock(&peers->lock);
    EPW_MASK_FOR(peer, &peers->active, peers->ranks) {
        uint64_t word = epw_epoch_word(peers->epoch, peers->step);
        if (peer != peers->rank && status == EPW_OK) status = load_epoch(peers, where.op, peer, &word);
        if (status == EPW_OK && epw_word_epoch(word) == epoch && epw_word_step(word) != step)
            epw_mask_add(ranks, peer);
    }
    pthread_mutex_unlock(&peers->lock);
    return status;
}
