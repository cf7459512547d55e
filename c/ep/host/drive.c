/* Steps a lane: loads what its machine waits for, asks it what to do, and does it. The only place where a
 * machine's decisions meet the peers' windows. */
#include "ep/host/host.h"

#include "base/clock.h"
#include "peer/remote.h"
#include "peer/sleep.h"

/* ---- one step ---- */

/* Rows, or answers, have been written for the peer, which the word announces. */
static void count_sent(epw_buffer *b, const epw_lane *lane, const epw_decision *d) {
    epw_lane_traffic *traffic = &b->peers.traffic[epw_lane_index(b, lane)];
    bool none =
        epw_word_value(d->value) == 0; /* neither does the word of a released operation announce rows */
    if (d->word == EPW_WORD_DISPATCH && !none) {
        uint64_t rows = lane->machine.peers[d->peer].sent;
        epw_count(&traffic->rows_sent, rows);
        epw_count(&traffic->with[d->peer].bytes_sent, rows * epw_format_bytes(&lane->format));
    } else if (d->word == EPW_WORD_COMBINE && !none) {
        bool ordered = lane->machine.mode == EPW_COMBINE_ORDERED;
        uint64_t answers = ordered ? lane->host->entries[d->peer] : lane->received[d->peer];
        epw_count(&traffic->rows_answered, answers);
        epw_count(&traffic->with[d->peer].bytes_sent, answers * b->layout.row_bytes);
    }
}

static void post(epw_buffer *b, epw_lane *lane, const epw_decision *d) {
    /* The machine speaks to the incarnation that was connected when its epoch began. */
    if (epw_incarnation_of(&b->peers, d->peer) != d->incarnation) return;
    epw_range ranges[EPW_RANGES_MAX];
    uint32_t count = 0;
    if (d->word == EPW_WORD_DROPPED) epw_peers_suspect(&b->peers, d->peer, d->silent, &lane->machine.record);
    count_sent(b, lane, d);
    if (d->word == EPW_WORD_DISPATCH && epw_word_value(d->value) > 0)
        count = epw_host_announce(b, lane, d->peer, ranges);
    if (d->word == EPW_WORD_COMBINE && epw_word_value(d->value) > 0)
        count = epw_host_answer_ranges(b, lane, d->peer, ranges);
    epw_signal(&b->peers, epw_lane_index(b, lane), d->peer, d->word, d->value, ranges, count);
}

void epw_host_post_all(epw_buffer *b, epw_lane *lane) {
    epw_decision d;
    while (epw_lane_post(&lane->machine, &d)) post(b, lane, &d);
}

/* Peers that other lanes have given up since the last step. */
void epw_host_hear(epw_buffer *b, epw_lane *lane) {
    uint64_t suspicions = atomic_load_explicit(&b->peers.suspicions, memory_order_seq_cst);
    if (suspicions == atomic_load_explicit(&lane->host->suspicions, memory_order_relaxed)) return;
    atomic_store_explicit(&lane->host->suspicions, suspicions, memory_order_relaxed);
    for (uint32_t peer = 0; peer < b->config.ranks; peer++)
        if (epw_peers_suspected(&b->peers, peer))
            epw_lane_hear_suspect(&lane->machine, peer, epw_peers_revoked(&b->peers, peer));
}

/* What a lane waits for after a look. */
typedef struct awaited {
    uint32_t peer; /* the first that is still awaited; UINT32_MAX: none */
    uint32_t word;
    epw_look seen;
    epw_mask all;
} awaited;

/* Looks at every peer that is awaited. */
static awaited look_round(epw_buffer *b, epw_lane *lane, uint64_t now) {
    epw_machine *m = &lane->machine;
    awaited a = {.peer = UINT32_MAX};
    for (uint32_t peer = 0; peer < b->config.ranks; peer++) {
        uint32_t word, still;
        if (!epw_lane_awaits(m, peer, &word)) continue;
        epw_look seen;
        epw_look_at(&b->peers, epw_lane_index(b, lane), peer, word, &seen);
        epw_lane_see(m, peer, &seen, now);
        if (!epw_lane_awaits(m, peer, &still) || still != word) continue;
        epw_mask_add(&a.all, peer);
        if (a.peer != UINT32_MAX) continue;
        a.peer = peer;
        a.word = word;
        a.seen = seen;
    }
    return a;
}

/* Carries out a decision about rows; returns the time afterwards. */
static uint64_t work(epw_buffer *b, epw_lane *lane, const epw_decision *d) {
    bool good = true;
    epw_mask missing;
    switch (d->act) {
    case EPW_ACT_SEND:
        epw_host_send(b, lane);
        break;
    case EPW_ACT_LAY_OUT:
        good = epw_host_lay_out(b, lane, d->peer);
        break;
    case EPW_ACT_ANSWER:
        epw_host_answer(b, lane, d->peer);
        break;
    default:
        epw_host_sum(b, lane);
        missing = epw_lane_set(&lane->machine, EPW_PART_MISSING);
        lane->host->faulted |= !epw_mask_empty(&missing);
    }
    uint64_t now = epw_now_ns();
    if (good) {
        epw_lane_did(&lane->machine, *d, now);
    } else {
        epw_lane_refuse(&lane->machine, *d, now);
    }
    return now;
}

static epw_status step(epw_buffer *b, epw_lane *lane, bool debts_alone) {
    epw_machine *m = &lane->machine;
    epw_lane_begin_step(m);
    epw_watch_clear(&lane->host->watch);
    uint64_t now = epw_now_ns();
    for (;;) { /* ends: an iteration without work sleeps or returns, and the operation bounds the work */
        if (debts_alone && !m->paying) return EPW_OK;
        epw_host_hear(b, lane);
        awaited on = look_round(b, lane, now);
        bool worked = false;
        for (;;) {
            epw_decision d = epw_lane_decide(m, now);
            if (d.act == EPW_ACT_DONE) return EPW_OK;
            if (d.act == EPW_ACT_SLEEP) {
                if (worked || on.peer == UINT32_MAX) break; /* time has passed: look again first */
                uint64_t since = m->paying ? m->debt_wait.began : m->wait.began;
                uint64_t spin_ns = epw_spin_ns(&b->peers, &on.all);
                epw_watch_set(&lane->host->watch, on.peer, on.word, &on.seen, spin_ns, since, d.until);
                return EPW_PENDING;
            }
            if (d.act == EPW_ACT_POST) {
                post(b, lane, &d);
            } else {
                now = work(b, lane, &d);
                worked = true;
            }
        }
    }
}

epw_status epw_host_step(epw_buffer *b, epw_lane *lane) {
    return step(b, lane, false);
}

epw_status epw_host_pay(epw_buffer *b, epw_lane *lane) {
    return step(b, lane, true);
}

/* ---- lanes that no call uses at the moment ---- */

/* Whether a peer has been given up and the lane has not told it so yet. The load is ordered with the store of
 * `suspicions` and with the lane's lock: a thread that does not get the lock leaves this to its holder, which
 * looks here after it has released the lock. */
static bool untold(const epw_buffer *b, const epw_lane *lane) {
    return atomic_load_explicit(&lane->host->suspicions, memory_order_relaxed) !=
           atomic_load_explicit(&b->peers.suspicions, memory_order_seq_cst);
}

/* A peer that one lane gives up is told on every lane, each time after what that lane has sent: whoever finds
 * a lane free does so here, without waiting. Every unlock of a lane ends here. */
void epw_host_unlocked(epw_buffer *b) {
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        epw_lane *lane = &b->lanes[i];
        while (lane->host != NULL && untold(b, lane) && pthread_mutex_trylock(&lane->lock) == 0) {
            epw_host_hear(b, lane);
            epw_host_post_all(b, lane);
            pthread_mutex_unlock(&lane->lock);
        }
    }
}

/* ---- calls ---- */

static void fill_outcome(const epw_lane *lane, epw_outcome *outcome) {
    if (outcome == NULL) return;
    outcome->missing = epw_lane_set(&lane->machine, EPW_PART_MISSING);
    outcome->degraded = !epw_mask_empty(&outcome->missing);
    outcome->record = lane->machine.record;
}

/* Returns the rows that the call has lent to its caller, once all members have received them: bounded by the
 * call's deadline. The others are told from time to time for whom this rank waits, and at the end that it
 * waits no longer. If the lane is not this call's any more (`own`), nobody is told, and what others post on
 * it is not waited for: so it stays locked. */
static void take_back(epw_buffer *b, epw_lane *lane, uint32_t lent, uint64_t deadline_ns, bool own) {
    epw_machine *m = &lane->machine;
    uint32_t index = epw_lane_index(b, lane), behind;
    uint64_t began = epw_now_ns(), now = began, told = began, quiet = b->config.deadline_ns / 2;
    uint64_t generation = lane->generation;
    bool silent;
    if (lane->host->lent == lent) lane->host->lent = 0; /* nobody else takes it back */
    for (;;) {                                          /* ends when the deadline does */
        behind = epw_remotes_behind(&b->peers, index, now - began);
        if (behind == b->config.ranks || now - began >= deadline_ns) break;
        if (own && now - told >= quiet) {
            epw_lane_say_waiting(m, behind, deadline_ns, now);
            epw_host_post_all(b, lane);
            told = now;
        }
        if (own) epw_lane_unlock(b, lane);
        epw_remotes_pause(&b->peers, began, now);
        if (own) pthread_mutex_lock(&lane->lock);
        own = own && lane->generation == generation;
        now = epw_now_ns();
    }
    epw_remotes_take_back(&b->peers, index, lent);
    silent = now > m->spoke && epw_rule_silent(now - m->spoke, m->group_ns);
    if (!own || !(told > began || silent)) return;
    epw_lane_say_waiting(m, EPW_BEACON_NONE, 0, now);
    epw_host_post_all(b, lane);
}

epw_status epw_host_run(epw_buffer *b, epw_lane *lane, epw_outcome *outcome) {
    uint64_t generation = lane->generation;
    uint32_t lent = lane->host->lent; /* until this call ends, whoever uses the lane by then */
    uint64_t deadline_ns = lane->input.deadline_ns ? lane->input.deadline_ns : b->config.deadline_ns;
    epw_status status = epw_host_step(b, lane);
    while (status == EPW_PENDING && !lane->host->nonblocking) {
        epw_lane_unlock(b, lane);
        epw_watch_sleep(&b->peers, epw_lane_index(b, lane), &lane->host->watch, UINT64_MAX);
        pthread_mutex_lock(&lane->lock);
        if (lane->generation != generation || lane->machine.stage == EPW_STAGE_FREE) {
            status = epw_fail(EPW_ERR_STATE, epw_buffer_where(b, "wait"),
                              "the handle was released by another thread");
        } else {
            status = epw_host_step(b, lane);
        }
    }
    if (status == EPW_OK) fill_outcome(lane, outcome);
    if (lent != 0) take_back(b, lane, lent, deadline_ns, status == EPW_OK);
    epw_lane_unlock(b, lane);
    return status;
}

/* Takes in what peers have sent by queues, in polls as well as in waits: a program that only polls does not
 * depend on the NIC's thread. */
static void take_in(const epw_buffer *b) {
    epw_remotes_drive(&b->peers, epw_now_ns());
}

epw_status epw_host_poll(epw_buffer *b, epw_handle handle, epw_outcome *outcome) {
    take_in(b);
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "poll", handle, EPW_STAGE_ANY, &lane);
    if (status != EPW_OK) return status;
    status = epw_outcome_check(b, "poll", outcome);
    if (status == EPW_OK && !epw_lane_running(&lane->machine)) {
        status = epw_fail(EPW_ERR_STATE, epw_buffer_where(b, "poll"), "no operation runs: %s",
                          epw_stage_text(lane->machine.stage));
    }
    if (status == EPW_OK) status = epw_host_step(b, lane);
    if (status == EPW_OK) fill_outcome(lane, outcome);
    epw_lane_unlock(b, lane);
    return status;
}

/* Whether the sending half is over and the receiving half comes next. */
static bool is_due(const epw_lane *lane) {
    return lane->machine.stage == EPW_STAGE_SENT || lane->machine.stage == EPW_STAGE_ANSWERED;
}

epw_status epw_host_ready(epw_buffer *b, epw_handle handle) {
    take_in(b);
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "ready", handle, EPW_STAGE_ANY, &lane);
    if (status != EPW_OK) return status;
    if (!is_due(lane)) {
        status = epw_fail(EPW_ERR_STATE, epw_buffer_where(b, "ready"), "no receiving half is due: %s",
                          epw_stage_text(lane->machine.stage));
    } else {
        epw_lane_begin_wait(&lane->machine, epw_now_ns());
        status = epw_host_step(b, lane);
    }
    epw_lane_unlock(b, lane);
    return status;
}

epw_status epw_host_await(epw_buffer *b, epw_handle handle, uint64_t timeout_ns) {
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "await", handle, EPW_STAGE_ANY, &lane);
    if (status != EPW_OK) return status;
    if (!epw_lane_running(&lane->machine) && !is_due(lane)) {
        status = epw_fail(EPW_ERR_STATE, epw_buffer_where(b, "await"), "no operation runs: %s",
                          epw_stage_text(lane->machine.stage));
    }
    epw_lane_unlock(b, lane);
    if (status != EPW_OK) return status;
    epw_watch_sleep(&b->peers, epw_lane_index(b, lane), &lane->host->watch, timeout_ns);
    return EPW_OK;
}

epw_status epw_host_tend(epw_buffer *b, epw_handle handle) {
    take_in(b);
    epw_lane *lane = NULL;
    epw_status status = epw_lane_try(b, handle, &lane);
    if (status != EPW_OK) return status;
    status = EPW_ERR_STATE;
    if (is_due(lane)) {
        epw_lane_begin_wait(&lane->machine, epw_now_ns());
        status = epw_host_step(b, lane);
    }
    epw_lane_unlock(b, lane);
    return status;
}

void epw_host_look(epw_awaited *self, bool sleeps, uint64_t now) {
    epw_buffer *b = self->owner;
    epw_lane *lane = NULL;
    epw_status status = epw_lane_try(b, self->of, &lane);
    if (status == EPW_PENDING) {
        epw_awaited_busy(self);
    } else if (status != EPW_OK) {
        self->ready = true;
    } else {
        epw_watch_look(&b->peers, epw_lane_index(b, lane), &lane->host->watch, sleeps, now, self);
        epw_lane_unlock(b, lane);
    }
}
