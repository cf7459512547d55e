/* Ranks that are late, release operations, give up and are given up, as threads of this process:
 * ThreadSanitizer sees debts, the background thread and suspects here. Also peers that are disconnected while
 * something is owed to them. */
#include "ep/host/host.h"
#include "group.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { DEADLINE_MS = 30, CLEAN_MS = 60000 };

static void sleep_ns(uint64_t ns) {
    struct timespec time = {(time_t)(ns / (1000 * MS)), (long)(ns % (1000 * MS))};
    nanosleep(&time, NULL);
}

/* Gives up a peer as a lane does that waits in vain. */
static void give_up(epw_buffer *b, uint32_t peer) {
    epw_peers_suspect(&b->peers, peer, true, NULL);
    pthread_mutex_lock(&b->lanes[0].lock);
    epw_lane_unlock(b, &b->lanes[0]);
}

/* The beacon that lane 0 of `b` posts in the peer's window. */
static _Atomic uint64_t *beacon_at(const epw_buffer *b, const epw_buffer *peer) {
    uint64_t window = (uint64_t)(uintptr_t)epw_peers_own(&peer->peers);
    return (_Atomic uint64_t *)epw_at(window, epw_word_offset(b->config.rank, 0, EPW_WORD_BEACON));
}

/* ---- Disconnecting ---- */

/* Rank 0 has released an operation; rank 1's rows of it have arrived and are not answered yet; then rank 1 is
 * given up for another reason. */
static void nothing_is_paid_to_a_peer_that_is_disconnected(void) {
    group g = make_group(2, 10000 * MS);
    activate(&g, 1);
    epw_background_stop(g.of[0]); /* so this rank's debts are paid by its next operation */
    CHECK_OK(epw_release(g.of[0], send_batch(g.of[0], 0, 0, 0)));
    const epw_machine *m = &g.of[0]->lanes[0].machine;
    CHECK(m->paying && m->peers[1].owed == EPW_OWED_ANSWER);
    REFUSED(epw_buffer_disconnect(g.of[0], 1), EPW_ERR_STATE, "disconnect", 0, 1, "active");
    epw_handle late = send_batch(g.of[1], 1, 0, 0);
    give_up(g.of[0], 1);
    CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
    CHECK(epw_buffer_path(g.of[0], 1) == EPW_PATH_NONE);
    CHECK(m->peers[1].owed == 0);

    epw_handle alone = send_batch(g.of[0], 0, 0, 0);
    CHECK(!m->paying);
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_dispatch_receive(g.of[0], alone, &nothing, &outcome));
    CHECK(outcome.missing.bits[0] == 2 && outcome.record.cause == EPW_CAUSE_SUSPECTED);
    CHECK_OK(epw_release(g.of[0], alone));

    /* Rank 1 has been told, and gets no answer. */
    CHECK_OK(epw_dispatch_receive(g.of[1], late, &nothing, &outcome));
    static _Alignas(64) uint16_t sums[TOKENS * HIDDEN];
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    result.out = sums;
    CHECK_OK(epw_combine(g.of[1], late, &answer, &result, &outcome));
    CHECK(outcome.missing.bits[0] == 1 && outcome.record.cause == EPW_CAUSE_DROPPED);
    destroy(&g);
}

/* The same with the background thread, at any time: rank 1's rows, its suspicion and its end come at once. */
static void the_background_pays_nothing_to_a_peer_that_is_disconnected(void) {
    for (int round = 0; round < 40; round++) {
        group g = make_group(2, 10000 * MS);
        activate(&g, 1);
        CHECK_OK(epw_release(g.of[0], send_batch(g.of[0], 0, 0, 0)));
        sleep_ns((uint64_t)round % 4 * 100000);
        epw_handle late = send_batch(g.of[1], 1, 0, 0);
        give_up(g.of[0], 1);
        CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
        CHECK_OK(epw_release(g.of[0], send_batch(g.of[0], 0, 0, 0)));
        CHECK_OK(epw_release(g.of[1], late));
        destroy(&g);
    }
}

/* ---- Trouble ---- */

enum { RANKS = 3, EPOCHS = 10, OPS = 6 };

static group world;
static pthread_barrier_t all_here;
static bool came_back[2];         /* rank 2 with these ranks; barriers pass it on */
static atomic_uint with_suspects; /* epochs that ended for a rank with suspects */
static atomic_uint reconnected;   /* how often rank 2 returned to a rank */

typedef enum trouble {
    NONE,
    LATE,               /* a whole deadline */
    RELEASES_SENT,      /* between dispatch's halves */
    RELEASES_RECEIVED,  /* between dispatch and combine */
    RELEASES_ANSWERED,  /* between combine's halves */
    RELEASES_IN_BETWEEN /* while an operation runs */
} trouble;

/* Polls an operation until it has ended, and sleeps as epw_await allows. */
static epw_status finish(epw_buffer *b, epw_handle handle, epw_status status, epw_outcome *outcome) {
    while (status == EPW_PENDING) {
        CHECK_OK(epw_await(b, handle, MS));
        status = epw_poll(b, handle, outcome);
    }
    return status;
}

static void check_missing(uint32_t rank, const epw_outcome *outcome) {
    CHECK(outcome->degraded == (outcome->missing.bits[0] != 0));
    CHECK_MSG((outcome->missing.bits[0] & ~(uint64_t)7) == 0 && !epw_mask_has(&outcome->missing, rank),
              "%llx", (unsigned long long)outcome->missing.bits[0]);
}

/* Every wait is bounded: nothing takes longer than the deadlines that beacons may add up to, plus an
 * allowance for sanitizers and for other programs on the machine. */
static void check_time(uint64_t began, uint64_t deadline_ns) {
    CHECK(epw_now_ns() - began < 3 * EPW_WAIT_DEADLINES_MAX * deadline_ns + 5000 * MS);
}

static void step(uint32_t rank, trouble what, uint64_t deadline_ns, epw_outcome *outcome) {
    epw_buffer *b = world.of[rank];
    batch made;
    static _Thread_local _Alignas(64) uint16_t sums[TOKENS * HIDDEN];
    if (what == LATE) sleep_ns((DEADLINE_MS + 10) * MS);
    uint64_t began = epw_now_ns();
    epw_handle handle;
    epw_dispatch_input in = make_batch(&made, rank);
    in.layout = EPW_RANK_MAJOR;
    in.deadline_ns = deadline_ns;
    in.nonblocking = 1;
    epw_status status = epw_dispatch(b, &in, NULL, &handle, outcome);
    if (what == RELEASES_IN_BETWEEN) {
        CHECK(status == EPW_OK || status == EPW_PENDING);
        CHECK_OK(epw_release(b, handle));
        return;
    }
    CHECK_OK(finish(b, handle, status, outcome));
    if (what == RELEASES_SENT) {
        CHECK_OK(epw_release(b, handle));
        return;
    }
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    CHECK_OK(epw_dispatch_receive(b, handle, &nothing, outcome));
    check_missing(rank, outcome);
    if (what == RELEASES_RECEIVED) {
        CHECK_OK(epw_release(b, handle));
        return;
    }
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    answer.deadline_ns = deadline_ns;
    CHECK_OK(epw_combine(b, handle, &answer, NULL, outcome));
    if (what == RELEASES_ANSWERED) {
        CHECK_OK(epw_release(b, handle));
        return;
    }
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    result.out = sums;
    result.nonblocking = 1;
    CHECK_OK(finish(b, handle, epw_combine_receive(b, handle, &result, outcome), outcome));
    check_missing(rank, outcome);
    check_time(began, deadline_ns);
}

/* A rank that has lengthened its own deadline posts beacons as early as other ranks, because these may wait
 * for it with the group's deadline. */
static void beacons_keep_to_the_groups_deadline(void) {
    const uint64_t group_ns = longer * 200 * MS;
    group g = make_group(2, group_ns);
    activate(&g, 1);
    static batch made;
    epw_handle handle;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    epw_dispatch_input in = make_batch(&made, 0);
    in.layout = EPW_RANK_MAJOR;
    in.deadline_ns = 20 * group_ns;
    in.nonblocking = 1;
    uint64_t began = epw_now_ns();
    epw_status status = epw_dispatch(g.of[0], &in, &nothing, &handle, &outcome);
    _Atomic uint64_t *beacon = beacon_at(g.of[0], g.of[1]);
    /* After it has sent, slowly, its beacon says that it waits for nobody. */
    const uint64_t none = epw_beacon_value(EPW_BEACON_NONE, 0);
    while ((atomic_load(beacon) == 0 || epw_word_value(atomic_load(beacon)) == none) &&
           epw_now_ns() - began < in.deadline_ns) {
        CHECK(status == EPW_PENDING);
        CHECK_OK(epw_await(g.of[0], handle, MS));
        status = epw_poll(g.of[0], handle, &outcome);
    }
    uint64_t took = epw_now_ns() - began;
    CHECK_MSG(took > group_ns / 2 && took < 8 * group_ns, "the first beacon after %llu ms",
              (unsigned long long)(took / MS));
    epw_handle other = send_batch(g.of[1], 1, 0, 0);
    CHECK_OK(finish(g.of[0], handle, status, &outcome));
    CHECK(!outcome.degraded);
    CHECK_OK(epw_release(g.of[0], handle));
    CHECK_OK(epw_release(g.of[1], other));
    destroy(&g);
}

static uint32_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Epochs of operations with troubles. Whatever they were, the first operation of the next epoch is
 * complete. */
static void *troubled(void *argument) {
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    epw_mask all = first_ranks(RANKS);
    uint64_t seed = 77 + rank;
    for (uint32_t epoch = 1; epoch <= EPOCHS; epoch++) {
        pthread_barrier_wait(&all_here);
        /* After each epoch with late ranks, rank 2 returns to those that suspect it. */
        bool returns = epoch > 1 && epoch % 2 == 1;
        if (returns && rank != 2) {
            epw_status status = epw_buffer_disconnect(world.of[rank], 2);
            CHECK(status == EPW_OK || status == EPW_ERR_STATE); /* depends on whether it was suspected */
            came_back[rank] = status == EPW_OK;
            if (came_back[rank]) {
                CHECK_OK(connect_within(world.of[rank], rank, world.of[2], 2, SETUP_NS));
                atomic_fetch_add(&reconnected, 1);
            }
        }
        pthread_barrier_wait(&all_here);
        for (uint32_t r = 0; r < 2 && returns && rank == 2; r++) {
            if (!came_back[r]) continue;
            CHECK_OK(epw_buffer_revoke(world.of[2],
                                       &(epw_mask){{UINT64_C(1) << r}})); /* a member must be revoked first */
            connect_back(world.of[2], 2, world.of[r], r);
        }
        pthread_barrier_wait(&all_here);
        CHECK_OK(epw_buffer_set_active(world.of[rank], &all, epoch, 0));
        epw_outcome outcome = EPW_OUTCOME_INIT;
        for (int lane = 0; lane < 2; lane++) {
            step(rank, NONE, CLEAN_MS * MS, &outcome);
            CHECK_MSG(!outcome.degraded, "epoch %u, rank %u misses %u: cause %u", epoch, rank,
                      outcome.record.peer, outcome.record.cause);
        }
        /* In odd epochs nobody is late; operations are only released. */
        for (int op = 0; op < OPS; op++) {
            trouble what = next(&seed) % 6;
            step(rank, what == LATE && epoch % 2 ? NONE : what, DEADLINE_MS * MS, &outcome);
        }
        if (membership_of(world.of[rank]).suspects.bits[0] != 0) atomic_fetch_add(&with_suspects, 1);
    }
    return NULL;
}

static atomic_bool over;

/* Queries that another thread of a program may make at any time. */
static void *look_on(void *argument) {
    (void)argument;
    uint32_t reachable = 0;
    while (!atomic_load(&over)) {
        for (uint32_t r = 0; r < RANKS; r++) {
            uint8_t experts[EXPERTS];
            epw_membership now = membership_of(world.of[r]);
            CHECK(!epw_mask_has(&now.suspects, r) && (now.silent.bits[0] & ~now.suspects.bits[0]) == 0);
            CHECK_OK(epw_buffer_reachable_experts(world.of[r], experts));
            for (uint32_t e = 0; e < EXPERTS; e++) reachable += experts[e];
            uint32_t path = epw_buffer_path(world.of[r], 2);
            CHECK(path == (r == 2 ? EPW_PATH_SELF : path_of_test()) || path == EPW_PATH_NONE);
        }
        sleep_ns(MS);
    }
    CHECK(reachable > 0);
    return NULL;
}

static void an_epoch_of_trouble_leaves_none_to_the_next(void) {
    world = make_group(RANKS, DEADLINE_MS * MS);
    pthread_barrier_init(&all_here, NULL, RANKS);
    pthread_t threads[RANKS], onlooker;
    pthread_create(&onlooker, NULL, look_on, NULL);
    for (uintptr_t r = 0; r < RANKS; r++) pthread_create(&threads[r], NULL, troubled, (void *)r);
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    atomic_store(&over, true);
    pthread_join(onlooker, NULL);
    pthread_barrier_destroy(&all_here);
    CHECK_MSG(with_suspects > 0 && with_suspects < RANKS * EPOCHS, "%u", with_suspects);
    CHECK_MSG(reconnected > 0, "rank 2 was never disconnected");
    destroy(&world);
}

int main(void) {
    nothing_is_paid_to_a_peer_that_is_disconnected();
    the_background_pays_nothing_to_a_peer_that_is_disconnected();
    KEEP_TIME(beacons_keep_to_the_groups_deadline());
    an_epoch_of_trouble_leaves_none_to_the_next();
    return check_result("failures");
}
