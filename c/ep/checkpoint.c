/* The public calls for checkpoints and verdicts. The engine posts the reports; verdict.h defines what follows
 * from them. */
#include "ep/buffer.h"

/* ---- checkpoints ---- */

static epw_status check_step(const epw_buffer *b, uint64_t step, epw_where where) {
    if (epw_mask_empty(&b->peers.active)) {
        return epw_fail(EPW_ERR_STATE, where, "no membership has begun: call set_active %s",
                        b->peers.epoch == 0 ? "first" : "again");
    }
    uint64_t least = b->verdicts.next, most = least + EPW_REPORT_STEPS_APART - 1;
    bool is_first = least == b->peers.step; /* of this epoch: there is none from which it could be too far */
    if (is_first || most > EPW_STEP_MAX) most = EPW_STEP_MAX;
    if (step >= least && step <= most) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, where, "step is %llu, must be in [%llu, %llu] in epoch %u",
                    (unsigned long long)step, (unsigned long long)least, (unsigned long long)most,
                    b->peers.epoch);
}

epw_status epw_checkpoint(epw_buffer *b, uint64_t step, void *stream, uint32_t *epoch) {
    epw_status status = epw_buffer_check(b, "checkpoint");
    if (status != EPW_OK) return status;
    epw_where where = epw_buffer_where(b, "checkpoint");
    if (epoch == NULL) return epw_fail(EPW_ERR_INVALID, where, "epoch is NULL");
    b->peers.user->lock(b->peers.user_context);
    pthread_mutex_lock(&b->verdicts_lock);
    status = check_step(b, step, where);
    bool faulted = status == EPW_OK && atomic_exchange_explicit(&b->faulted, false, memory_order_acq_rel);
    if (status == EPW_OK) status = b->engine->report(b, step, faulted, stream);
    if (status != EPW_OK && faulted) atomic_store_explicit(&b->faulted, true, memory_order_release);
    if (status == EPW_OK) {
        epw_verdicts_report(&b->verdicts, step);
        *epoch = b->peers.epoch;
    }
    pthread_mutex_unlock(&b->verdicts_lock);
    b->peers.user->unlock(b->peers.user_context);
    return status;
}

epw_status epw_checkpoint_fault(epw_buffer *b) {
    epw_status status = epw_buffer_check(b, "checkpoint_fault");
    if (status == EPW_OK) atomic_store_explicit(&b->faulted, true, memory_order_release);
    return status;
}

/* ---- verdicts ---- */

static epw_reports load(const void *context, uint32_t peer) {
    const epw_buffer *b = context;
    return b->engine->reports(b, peer);
}

/* Judges by the words that have arrived. On a GPU these are copies; if they are old and leave the verdict
 * open, they are copied again. */
static epw_status judge(epw_buffer *b, uint32_t epoch, uint64_t step, uint32_t *verdict, epw_where where) {
    bool fresh = true;
    *verdict = EPW_VERDICT_PENDING;
    do {
        epw_status status = EPW_OK;
        if (b->engine->fetch_reports != NULL) status = b->engine->fetch_reports(b, &fresh, where);
        if (status != EPW_OK) return status == EPW_PENDING ? EPW_OK : status;
        *verdict = epw_verdicts_of(&b->verdicts, b->config.rank, epoch, step, load, b);
    } while (*verdict == EPW_VERDICT_PENDING && !fresh);
    if (*verdict != EPW_VERDICT_UNKNOWN) return EPW_OK;
    return epw_fail(EPW_ERR_LIMIT, where,
                    "step %llu of epoch %u is not known: ask before %u steps or %u memberships follow",
                    (unsigned long long)step, epoch, (unsigned)EPW_REPORT_STEPS, EPW_PAST_EPOCHS + 1);
}

epw_status epw_checkpoint_verdict(epw_buffer *b, uint32_t epoch, uint64_t step, uint32_t *verdict) {
    epw_status status = epw_buffer_check(b, "verdict");
    if (status != EPW_OK) return status;
    epw_where where = epw_buffer_where(b, "verdict");
    if (verdict == NULL) return epw_fail(EPW_ERR_INVALID, where, "verdict is NULL");
    uint32_t found;
    pthread_mutex_lock(&b->verdicts_lock);
    status = judge(b, epoch, step, &found, where);
    pthread_mutex_unlock(&b->verdicts_lock);
    if (status == EPW_OK) *verdict = found;
    return status;
}

/* ---- memberships ---- */

/* The lock is not held while the epoch begins, which may take a deadline: a caller that asks meanwhile gets
 * the verdict by the earlier memberships. */
epw_status epw_checkpoints_begin_epoch(epw_buffer *b, const epw_mask *active, uint64_t epoch_word,
                                       epw_where where) {
    uint64_t report = 0, last[EPW_PAST_EPOCHS];
    epw_status status = EPW_OK;
    if (b->peers.epoch != 0) status = b->engine->last_report(b, &report, where);
    if (status != EPW_OK) return status;
    pthread_mutex_lock(&b->verdicts_lock);
    epw_verdicts before = b->verdicts;
    epw_verdicts_begin(&b->verdicts, report, epoch_word, active);
    for (uint32_t i = 0; i < EPW_PAST_EPOCHS; i++) last[i] = b->verdicts.past[i].last;
    pthread_mutex_unlock(&b->verdicts_lock);
    status = b->engine->begin_epoch(b, active, epoch_word, last, where);
    /* Otherwise the reports may have been handed on, because a GPU was not seen to begin the epoch. */
    if (status == EPW_OK || b->peers.epoch == epw_word_epoch(epoch_word)) return status;
    pthread_mutex_lock(&b->verdicts_lock);
    epw_verdicts_undo(&b->verdicts, &before);
    pthread_mutex_unlock(&b->verdicts_lock);
    return status;
}
