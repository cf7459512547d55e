/* Giving a handle up. Peers must not be left waiting for a combine that will not come, so a released
 * operation turns into debt: a dispatch word without rows for peers not yet sent to, and a combine word
 * without rows for each peer once its dispatch word has come. Debt is paid at once where it can be, else by
 * the buffer's janitor thread or by the lane's next operation, whichever looks first; each payment is bounded
 * by the deadline like any wait. */
#include "ep/internal.h"

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

static void owe(epw_buffer *b, epw_lane *lane, uint32_t op, bool first) {
    epw_debt *debt = &lane->debt;
    debt->op = op;
    debt->first = first;
    debt->unanswered = b->active;
    EPW_MASK_FOR(peer, &b->active, b->config.ranks) {
        if (epw_suspected(b, peer)) epw_mask_drop(&debt->unanswered, peer);
    }
    debt->unsent = debt->unanswered;
}

void epw_lane_abandon(epw_buffer *b, epw_lane *lane) {
    epw_stage stage = lane->stage;
    lane->stage = EPW_STAGE_FREE;
    if (lane->paying) {
        /* The operation waited for an older debt to be paid: it has sent nothing to anybody. */
        lane->debt.more++;
        return;
    }
    if (stage == EPW_STAGE_ANSWERED || stage == EPW_STAGE_COLLECTING) {
        if (lane->waiting) epw_wait_end(b, lane);
        return;
    }
    if (lane->waiting) epw_wait_keep(b, lane, &lane->awaited);
    owe(b, lane, lane->op, lane->first);
    for (int i = 0; i < EPW_MASK_WORDS; i++) {
        lane->debt.unanswered.bits[i] &= ~lane->missing.bits[i] | lane->present.bits[i];
        lane->debt.unsent.bits[i] = stage == EPW_STAGE_SENDING ? lane->awaited.bits[i] : 0;
    }
    lane->paying = true;
}

static void pay_dispatch(epw_buffer *b, epw_lane *lane, uint64_t now) {
    epw_debt *debt = &lane->debt;
    EPW_MASK_FOR(peer, &debt->unsent, b->config.ranks) {
        uint32_t value, cause;
        epw_awaiting what = epw_await_permission(debt->first);
        epw_verdict verdict = epw_wait_judge(b, lane, what, debt->op, peer, now, &value, &cause);
        if (verdict == EPW_WAITING) continue;
        epw_mask_drop(&debt->unsent, peer);
        if (verdict == EPW_GONE) {
            epw_mask_drop(&debt->unanswered, peer);
        } else {
            epw_post(b, peer, &epw_line_at(b, peer)->lanes[epw_lane_index(b, lane)].user[0],
                     epw_word(b->epoch, debt->op, 0));
        }
    }
}

static void pay_combine(epw_buffer *b, epw_lane *lane, uint64_t now) {
    epw_debt *debt = &lane->debt;
    EPW_MASK_FOR(peer, &debt->unanswered, b->config.ranks) {
        uint32_t value, cause;
        epw_verdict verdict = epw_wait_judge(b, lane, EPW_AWAIT_ROWS, debt->op, peer, now, &value, &cause);
        if (verdict == EPW_WAITING) continue;
        epw_mask_drop(&debt->unanswered, peer);
        if (verdict == EPW_GONE) {
            epw_mask_drop(&debt->unsent, peer);
        } else {
            epw_post(b, peer, &epw_line_at(b, peer)->lanes[epw_lane_index(b, lane)].user[1],
                     epw_word(b->epoch, debt->op, 0));
        }
    }
}

/* Goes on with the debt of one operation. */
static epw_status pay(epw_buffer *b, epw_lane *lane) {
    epw_debt *debt = &lane->debt;
    if (!lane->waiting) epw_wait_begin(b, lane, b->config.deadline_ns);
    uint64_t now = epw_now_ns();
    pay_dispatch(b, lane, now);
    pay_combine(b, lane, now);
    bool all_sent = epw_mask_empty(&debt->unsent);
    if (!all_sent || !epw_mask_empty(&debt->unanswered)) {
        epw_awaiting what = all_sent ? EPW_AWAIT_ROWS : epw_await_permission(debt->first);
        epw_wait_pause(b, lane, what, debt->op, all_sent ? &debt->unanswered : &debt->unsent, now);
        return EPW_PENDING;
    }
    epw_wait_end(b, lane);
    return EPW_OK;
}

epw_status epw_debt_step(epw_buffer *b, epw_lane *lane) {
    while (pay(b, lane) == EPW_OK) {
        if (lane->debt.more == 0) {
            lane->paying = false;
            return EPW_OK;
        }
        lane->debt.more--;
        owe(b, lane, lane->debt.op + 1, false);
    }
    return EPW_PENDING;
}

epw_status epw_host_release(epw_buffer *b, epw_lane *lane, void *const *stream) {
    (void)stream;
    epw_lane_abandon(b, lane);
    if (lane->paying) epw_debt_step(b, lane);
    bool paying = lane->paying;
    pthread_mutex_unlock(&lane->lock);
    if (paying) {
        pthread_mutex_lock(&b->janitor_lock);
        b->janitor_needed = true;
        pthread_cond_signal(&b->janitor_wake);
        pthread_mutex_unlock(&b->janitor_lock);
    }
    return EPW_OK;
}

epw_status epw_release(epw_buffer *b, epw_handle handle) {
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "release", handle, EPW_STAGE_ANY, &lane);
    return status == EPW_OK ? b->engine->release(b, lane, NULL) : status;
}

epw_status epw_release_on(epw_buffer *b, epw_handle handle, void *stream) {
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "release", handle, EPW_STAGE_ANY, &lane);
    return status == EPW_OK ? b->engine->release(b, lane, &stream) : status;
}

/* ---- the janitor ---- */

/* Steps every lane's debt once; returns a lane that still has some. */
static epw_lane *step_debts(epw_buffer *b) {
    epw_lane *owing = NULL;
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        epw_lane *lane = &b->lanes[i];
        pthread_mutex_lock(&lane->lock);
        if (lane->paying && epw_debt_step(b, lane) == EPW_PENDING) owing = lane;
        pthread_mutex_unlock(&lane->lock);
    }
    return owing;
}

static void *janitor_main(void *argument) {
    epw_buffer *b = argument;
    pthread_mutex_lock(&b->janitor_lock);
    while (!b->janitor_ending) {
        if (!b->janitor_needed) {
            pthread_cond_wait(&b->janitor_wake, &b->janitor_lock);
            continue;
        }
        b->janitor_needed = false;
        pthread_mutex_unlock(&b->janitor_lock);
        epw_lane *owing = step_debts(b);
        if (owing != NULL) epw_wait_sleep(b, owing, UINT64_MAX);
        pthread_mutex_lock(&b->janitor_lock);
        b->janitor_needed |= owing != NULL;
    }
    pthread_mutex_unlock(&b->janitor_lock);
    return NULL;
}

epw_status epw_janitor_start(epw_buffer *b) {
    int err = epw_thread_start(janitor_main, b, &b->janitor);
    if (err != 0)
        return epw_fail_errno(err, epw_at(b, "create"), "can not start the thread that completes releases");
    b->janitor_started = true;
    return EPW_OK;
}

void epw_janitor_stop(epw_buffer *b) {
    if (!b->janitor_started) return;
    pthread_mutex_lock(&b->janitor_lock);
    b->janitor_ending = true;
    pthread_cond_signal(&b->janitor_wake);
    pthread_mutex_unlock(&b->janitor_lock);
    pthread_join(b->janitor, NULL);
}
