/* Memberships when ranks do not agree on them: ranks that begin an epoch at different steps, ranks that the
 * others have left behind, and what a rank knows of peers that it continues without. */
#include "ep/host/host.h"
#include "group.h"

#include "base/clock.h"

#include <pthread.h>
#include <time.h>

/* No wait in these tests may end by its deadline. */
enum { LONG_MS = 20000 };

static void sleep_ms(uint64_t ms) {
    nanosleep(&(struct timespec){(time_t)(ms / 1000), (long)(ms % 1000 * MS)}, NULL);
}

static void begin(const group *g, uint32_t rank, uint64_t members, uint32_t epoch, uint64_t step) {
    CHECK_OK(epw_buffer_set_active(g->of[rank], &(epw_mask){{members}}, epoch, step));
}

/* A dispatch in a thread of its own, and its result. */
typedef struct call {
    pthread_t thread;
    epw_buffer *buffer;
    uint32_t rank;
    int32_t lane;
    epw_handle handle;
    epw_outcome outcome;
    uint32_t counts[RANKS_MAX]; /* rows of each source */
    uint64_t ended;
} call;

static void *dispatch(void *argument) {
    static _Thread_local batch made;
    call *c = argument;
    epw_dispatch_input in = make_batch(&made, c->rank);
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    in.layout = EPW_RANK_MAJOR;
    in.lane = c->lane;
    out.source_counts = c->counts;
    CHECK_OK(epw_dispatch(c->buffer, &in, &out, &c->handle, &c->outcome));
    c->ended = epw_now_ns();
    return NULL;
}

static call call_of(const group *g, uint32_t rank, int32_t lane) {
    return (call){.buffer = g->of[rank], .rank = rank, .lane = lane, .outcome = EPW_OUTCOME_INIT};
}

static void start(call *c) {
    CHECK(pthread_create(&c->thread, NULL, dispatch, c) == 0);
}

/* The call has ended without these ranks, for this cause, and has the rows of the others of `ranks`. */
static void check_ended(call *c, uint32_t ranks, uint64_t missing, uint32_t cause) {
    CHECK(pthread_join(c->thread, NULL) == 0);
    CHECK_MSG(c->outcome.missing.bits[0] == missing && c->outcome.record.cause == cause,
              "rank %u misses %llx: cause %u", c->rank, (unsigned long long)c->outcome.missing.bits[0],
              c->outcome.record.cause);
    for (uint32_t p = 0; p < ranks; p++) {
        CHECK_MSG((c->counts[p] > 0) == !(missing >> p & 1), "rank %u has %u rows of %u", c->rank,
                  c->counts[p], p);
    }
    CHECK_OK(epw_release(c->buffer, c->handle));
}

static void all_dispatch(const group *g, call calls[RANKS_MAX]) {
    for (uint32_t r = 0; r < g->ranks; r++) {
        calls[r] = call_of(g, r, 0);
        start(&calls[r]);
    }
}

/* ---- steps ---- */

static uint64_t diverged_from(epw_buffer *b, uint32_t epoch, uint64_t step) {
    epw_mask ranks;
    CHECK_OK(epw_buffer_diverged(b, epoch, step, &ranks));
    return ranks.bits[0];
}

/* Ranks 0 and 1 begin the epoch at one step, rank 2 at another: each finds out, whichever looks first, that
 * it must continue without the other. */
static void who_begins_at_another_step_stays_alone(uint64_t step, uint64_t other) {
    group g = make_group(3, LONG_MS * MS);
    call calls[RANKS_MAX];
    for (uint32_t r = 0; r < 3; r++) begin(&g, r, 7, 1, r == 2 ? other : step);
    uint64_t began = epw_now_ns();
    all_dispatch(&g, calls);
    for (uint32_t r = 0; r < 3; r++) check_ended(&calls[r], 3, r == 2 ? 3 : 4, EPW_CAUSE_STEP);
    CHECK_MSG(epw_now_ns() - began < LONG_MS / 2 * MS, "it took the deadline");
    for (uint32_t r = 0; r < 3; r++) {
        epw_membership now = membership_of(g.of[r]);
        CHECK(now.suspects.bits[0] == (r == 2 ? 3 : 4) && now.silent.bits[0] == 0);
        CHECK(now.epoch == 1 && now.step == (r == 2 ? other : step) && now.active.bits[0] == 7);
    }
    CHECK(calls[0].outcome.record.expected == epw_epoch_word(1, step));
    CHECK(calls[0].outcome.record.seen == epw_epoch_word(1, other));
    for (uint32_t r = 0; r < 3; r++) {
        CHECK(diverged_from(g.of[r], 1, step) == 4 && diverged_from(g.of[r], 1, other) == 3);
        CHECK_MSG(diverged_from(g.of[r], 2, step) == 0, "nobody has begun that epoch");
    }
    epw_mask ranks;
    REFUSED(epw_buffer_diverged(g.of[0], 1, EPW_STEP_MAX + 1, &ranks), EPW_ERR_INVALID, "diverged", 0, -1,
            "must be in");

    for (uint32_t r = 0; r < 3; r++) begin(&g, r, 7, 2, EPW_STEP_MAX);
    all_dispatch(&g, calls);
    for (uint32_t r = 0; r < 3; r++) check_ended(&calls[r], 3, 0, EPW_CAUSE_NONE);
    destroy(&g);
}

/* Rank 0 looks first and drops rank 1, which still learns the reason. */
static void both_sides_learn_of_the_step(void) {
    group g = make_group(2, LONG_MS * MS);
    begin(&g, 0, 3, 1, 8);
    begin(&g, 1, 3, 1, 9);
    for (uint32_t r = 0; r < 2; r++) {
        call c = call_of(&g, r, 0);
        start(&c);
        check_ended(&c, 2, r == 0 ? 2 : 1, EPW_CAUSE_STEP);
    }
    destroy(&g);
}

/* ---- ranks that are left behind ---- */

/* Rank 2 waits for the others, which begin an epoch with it or without it. */
static void who_falls_behind_is_told(uint64_t members) {
    group g = make_group(3, LONG_MS * MS);
    activate(&g, 1);
    call behind = call_of(&g, 2, 0);
    start(&behind);
    sleep_ms(30);
    uint64_t began = epw_now_ns();
    for (uint32_t r = 0; r < 2; r++) begin(&g, r, members, 2, 100);
    check_ended(&behind, 3, 3, EPW_CAUSE_SUPERSEDED);
    CHECK_MSG(behind.ended - began < LONG_MS / 2 * MS, "it took the deadline");
    CHECK(membership_of(g.of[2]).suspects.bits[0] == 3 && membership_of(g.of[2]).silent.bits[0] == 0);
    destroy(&g);
}

/* ---- who was silent ---- */

/* Rank 2 never calls, and rank 0 has dropped rank 1: both continue without two ranks, with evidence against
 * one. */
static void only_who_timed_out_was_silent(void) {
    group g = make_group(3, longer * 150 * MS);
    call calls[RANKS_MAX];
    activate(&g, 1);
    epw_peers_suspect(&g.of[0]->peers, 1, false, NULL);
    for (uint32_t r = 0; r < 2; r++) {
        calls[r] = call_of(&g, r, 0);
        start(&calls[r]);
    }
    check_ended(&calls[0], 3, 6, EPW_CAUSE_SUSPECTED);
    check_ended(&calls[1], 3, 5, EPW_CAUSE_DROPPED);
    for (uint32_t r = 0; r < 2; r++) {
        epw_membership now = membership_of(g.of[r]);
        CHECK_MSG(now.suspects.bits[0] == (r == 0 ? 6 : 5) && now.silent.bits[0] == 4,
                  "rank %u: suspects %llx, silent %llx", r, (unsigned long long)now.suspects.bits[0],
                  (unsigned long long)now.silent.bits[0]);
    }
    activate(&g, 2);
    for (uint32_t r = 0; r < 2; r++) {
        epw_peers_suspect(&g.of[r]->peers, 2, false, NULL);
        CHECK(membership_of(g.of[r]).suspects.bits[0] == 4 && membership_of(g.of[r]).silent.bits[0] == 0);
    }
    destroy(&g);
}

/* ---- revocation ---- */

/* Rank 0 waits for the others on both lanes. One rank never calls; the rows of the other one still count. */
static void a_revoked_rank_is_waited_for_no_longer(void) {
    group g = make_group(3, LONG_MS * MS);
    activate(&g, 1);
    call here = call_of(&g, 0, 0), there = call_of(&g, 1, 0), idle = call_of(&g, 1, 1);
    start(&here);
    sleep_ms(500); /* by now its sleeps have reached their full length */
    CHECK_OK(epw_buffer_revoke(g.of[0], &(epw_mask){{4 | 8}}));
    CHECK(membership_of(g.of[0]).suspects.bits[0] == 4 && membership_of(g.of[0]).silent.bits[0] == 0);
    sleep_ms(50);
    start(&there);
    sleep_ms(50);
    uint64_t revoked = epw_now_ns();
    CHECK_OK(epw_buffer_revoke(g.of[1], &(epw_mask){{4}}));
    check_ended(&here, 3, 4, EPW_CAUSE_SUPERSEDED);
    check_ended(&there, 3, 4, EPW_CAUSE_SUPERSEDED);
    CHECK_MSG(there.ended - revoked < LONG_MS / 2 * MS, "it took %llu ms",
              (unsigned long long)((there.ended - revoked) / MS));

    /* It is told on every lane, and later operations continue without it as well. */
    for (uint32_t lane = 0; lane < 2; lane++) {
        epw_look seen;
        AWAIT(epw_word_from(&g.of[2]->peers, lane, 0, EPW_WORD_DROPPED) != 0);
        epw_look_at(&g.of[2]->peers, lane, 0, EPW_WORD_DISPATCH, &seen);
        CHECK_MSG(seen.sight.dropped == epw_word(1, 0, 0), "lane %u", lane);
    }
    here.lane = 1;
    start(&here);
    start(&idle);
    check_ended(&here, 3, 4, EPW_CAUSE_SUPERSEDED);
    check_ended(&idle, 3, 4, EPW_CAUSE_SUPERSEDED);

    /* This lasts until the next membership. */
    call calls[RANKS_MAX];
    activate(&g, 2);
    all_dispatch(&g, calls);
    for (uint32_t r = 0; r < 3; r++) check_ended(&calls[r], 3, 0, EPW_CAUSE_NONE);
    destroy(&g);
}

/* A rank that was a suspect before is missing for this cause from then on, too. */
static void who_was_silent_stays_so(void) {
    group g = make_group(2, LONG_MS * MS);
    activate(&g, 1);
    epw_peers_suspect(&g.of[0]->peers, 1, true, NULL);
    call alone = call_of(&g, 0, 0);
    start(&alone);
    check_ended(&alone, 2, 2, EPW_CAUSE_SUSPECTED);
    CHECK_OK(epw_buffer_revoke(g.of[0], &(epw_mask){{2}}));
    CHECK(membership_of(g.of[0]).silent.bits[0] == 2);
    start(&alone);
    check_ended(&alone, 2, 2, EPW_CAUSE_SUPERSEDED);

    activate(&g, 2);
    epw_peers_suspect(&g.of[0]->peers, 1, true, NULL);
    start(&alone);
    check_ended(&alone, 2, 2, EPW_CAUSE_SUSPECTED); /* in this epoch it was not revoked */
    destroy(&g);
}

/* ---- connecting beside operations ---- */

static bool is_receiving(epw_buffer *b, uint32_t lane) {
    pthread_mutex_lock(&b->lanes[lane].lock);
    bool receiving = b->lanes[lane].machine.stage == EPW_STAGE_RECEIVING;
    pthread_mutex_unlock(&b->lanes[lane].lock);
    return receiving;
}

/* Rank 0 waits for rank 1 on both lanes while rank 2, which is not a member, is probed, disconnected and
 * connected; then it is admitted. */
static void a_rank_comes_beside_operations(void) {
    group g = make_group(3, LONG_MS * MS);
    call here[2], there[2], calls[RANKS_MAX];
    for (uint32_t r = 0; r < 2; r++) begin(&g, r, 3, 1, 0);
    for (int32_t lane = 0; lane < 2; lane++) {
        here[lane] = call_of(&g, 0, lane);
        here[lane].outcome.missing.bits[0] = UINT64_MAX; /* until the call ends */
        start(&here[lane]);
    }
    for (uint32_t lane = 0; lane < 2; lane++)
        for (int ms = 0; ms < 10000 && !is_receiving(g.of[0], lane); ms++) sleep_ms(1);
    uint64_t began = epw_now_ns();
    for (uint32_t round = 0; round < 3; round++) {
        CHECK_OK(epw_buffer_probe(g.of[0], 2, LONG_MS * MS));
        CHECK_OK(epw_buffer_disconnect(g.of[0], 2));
        CHECK(epw_buffer_path(g.of[0], 2) == EPW_PATH_NONE);
        REFUSED(epw_buffer_probe(g.of[0], 2, MS), EPW_ERR_STATE, "probe", 0, 2, "not connected");
        CHECK_OK(connect_to(g.of[0], 0, g.of[2], 2));
        connect_back(g.of[2], 2, g.of[0], 0);
        CHECK_OK(connect_to(g.of[0], 0, g.of[2], 2)); /* disconnects and connects */
        CHECK(epw_buffer_path(g.of[0], 2) == path_of_test());
    }
    CHECK_MSG(epw_now_ns() - began < LONG_MS / 2 * MS, "it waited for operations");
    REFUSED(epw_buffer_disconnect(g.of[0], 1), EPW_ERR_STATE, "disconnect", 0, 1, "active");
    for (uint32_t lane = 0; lane < 2; lane++)
        CHECK_MSG(is_receiving(g.of[0], lane), "lane %u does not wait", lane);
    for (int32_t lane = 0; lane < 2; lane++) {
        there[lane] = call_of(&g, 1, lane);
        start(&there[lane]);
    }
    for (uint32_t lane = 0; lane < 2; lane++) {
        check_ended(&here[lane], 2, 0, EPW_CAUSE_NONE);
        check_ended(&there[lane], 2, 0, EPW_CAUSE_NONE);
    }

    for (uint32_t r = 0; r < 3; r++) begin(&g, r, 7, 2, 9);
    all_dispatch(&g, calls);
    for (uint32_t r = 0; r < 3; r++) check_ended(&calls[r], 3, 0, EPW_CAUSE_NONE);
    destroy(&g);
}

/* A step of a lane may take long, copying rows: connecting a peer does not wait for that either. */
static void a_rank_comes_beside_a_lane_at_work(void) {
    group g = make_group(2, LONG_MS * MS);
    begin(&g, 0, 1, 1, 0);
    for (uint32_t lane = 0; lane < 2; lane++) pthread_mutex_lock(&g.of[0]->lanes[lane].lock);
    CHECK_OK(connect_to(g.of[0], 0, g.of[1], 1));
    CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
    CHECK(membership_of(g.of[0]).epoch == 1);
    CHECK_OK(epw_buffer_revoke(g.of[0], &(epw_mask){{2}}));
    for (uint32_t lane = 0; lane < 2; lane++) pthread_mutex_unlock(&g.of[0]->lanes[lane].lock);
    destroy(&g);
}

static group busy;

/* Connects one peer of rank 0 again and again, and leaves it connected. */
static void *come_and_go(void *argument) {
    uint32_t peer = (uint32_t)(uintptr_t)argument;
    for (uint32_t round = 0; round < 50; round++) {
        CHECK_OK(epw_buffer_disconnect(busy.of[0], peer));
        CHECK_OK(connect_to(busy.of[0], 0, busy.of[peer], peer));
    }
    return NULL;
}

/* Two threads at the same time, while a third one dispatches and begins memberships. */
static void two_ranks_come_at_a_time(void) {
    busy = make_group(3, LONG_MS * MS);
    begin(&busy, 0, 1, 1, 0);
    pthread_t threads[2];
    for (uintptr_t p = 1; p < 3; p++)
        CHECK(pthread_create(&threads[p - 1], NULL, come_and_go, (void *)p) == 0);
    for (uint32_t epoch = 2; epoch < 50; epoch++) {
        call alone = call_of(&busy, 0, (int32_t)(epoch % 2));
        start(&alone);
        check_ended(&alone, 1, 0, EPW_CAUSE_NONE);
        begin(&busy, 0, 1, epoch, 0);
    }
    for (uint32_t i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (uint32_t p = 1; p < 3; p++) connect_back(busy.of[p], p, busy.of[0], 0);
    for (uint32_t r = 0; r < 3; r++) begin(&busy, r, 7, 50, 0);
    call calls[RANKS_MAX];
    all_dispatch(&busy, calls);
    for (uint32_t r = 0; r < 3; r++) check_ended(&calls[r], 3, 0, EPW_CAUSE_NONE);
    destroy(&busy);
}

int main(void) {
    who_begins_at_another_step_stays_alone(5, 6);
    who_begins_at_another_step_stays_alone(EPW_STEP_MAX, EPW_STEP_MAX >> 1);
    who_begins_at_another_step_stays_alone(0, UINT64_C(1) << 32);
    both_sides_learn_of_the_step();
    who_falls_behind_is_told(3);
    who_falls_behind_is_told(7);
    KEEP_TIME(only_who_timed_out_was_silent());
    a_revoked_rank_is_waited_for_no_longer();
    who_was_silent_stays_so();
    a_rank_comes_beside_operations();
    a_rank_comes_beside_a_lane_at_work();
    two_ranks_come_at_a_time();
    return check_result("membership");
}
