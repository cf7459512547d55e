/* A rank that leaves says so: when it is destroyed, disconnects a peer or gives one up on another lane it
 * posts a farewell, and a rank that waits for it knows at once, asleep or not. */
#include "ep/host/host.h"
#include "group.h"

#include "base/clock.h"

#include <pthread.h>
#include <time.h>

enum { LONG_MS = 20000 };

/* Rank 0 waits for rank 1, which then leaves in some way. That must end the wait long before the deadline. */
static void ends_a_wait(void (*goes)(group *g)) {
    group g = make_group(2, LONG_MS * MS);
    activate(&g, 1);
    epw_handle handle = send_batch(g.of[0], 0, 1, 0);
    goes(&g);
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    uint64_t began = epw_now_ns();
    CHECK_OK(epw_dispatch_receive(g.of[0], handle, &nothing, &outcome));
    CHECK_MSG(epw_now_ns() - began < LONG_MS / 2 * MS, "it took the deadline");
    CHECK(outcome.missing.bits[0] == 2 && outcome.record.cause == EPW_CAUSE_DROPPED);
    destroy(&g);
}

static void a_rank_that_leaves(group *g) {
    epw_buffer_destroy(g->of[1]);
    g->of[1] = NULL;
}

/* Gives up a peer as a lane does that waits in vain. The peer is told on the other, idle lane as well. */
static void a_rank_that_gives_its_peer_up_on_another_lane(group *g) {
    epw_peers_suspect(&g->of[1]->peers, 0, true, NULL);
    pthread_mutex_lock(&g->of[1]->lanes[0].lock);
    epw_lane_unlock(g->of[1], &g->of[1]->lanes[0]);
}

static void a_rank_that_disconnects_its_peer(group *g) {
    epw_peers_suspect(&g->of[1]->peers, 0, true, NULL);
    CHECK_OK(epw_buffer_disconnect(g->of[1], 0));
}

/* Disconnects a peer that was given up only after the last look: the disconnect itself tells the peer. */
static void a_rank_that_parts_with_its_peer(group *g) {
    const epw_peers *peers = &g->of[1]->peers;
    peers->user->lock(peers->user_context);
    CHECK_OK(peers->user->part(peers->user_context, 0, epw_peers_where(peers, "disconnect", 0)));
    peers->user->unlock(peers->user_context);
}

/* Nobody calls rank 0's functions again: the background thread pays what its released operation owes. */
static void a_released_operation_is_paid_in_the_background(void) {
    group g = make_group(2, LONG_MS * MS);
    activate(&g, 1);
    CHECK_OK(epw_release(g.of[0], send_batch(g.of[0], 0, 0, 0)));
    epw_handle handle = send_batch(g.of[1], 1, 0, 0);
    epw_dispatch_output received = EPW_DISPATCH_OUTPUT_INIT;
    CHECK_OK(epw_dispatch_receive(g.of[1], handle, &received, NULL));
    static _Alignas(64) uint16_t sums[TOKENS * HIDDEN];
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    result.out = sums;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    uint64_t began = epw_now_ns();
    CHECK_OK(epw_combine(g.of[1], handle, &answer, &result, &outcome));
    CHECK_MSG(epw_now_ns() - began < LONG_MS / 2 * MS, "it took the deadline");
    CHECK(outcome.record.cause == EPW_CAUSE_PARTIAL);
    destroy(&g);
}

static void a_membership_begins_without_suspects(void) {
    group g = make_group(2, LONG_MS * MS);
    activate(&g, 1);
    epw_peers_suspect(&g.of[1]->peers, 0, true, NULL);
    epw_membership now = membership_of(g.of[1]);
    CHECK(now.suspects.bits[0] == 1 && now.silent.bits[0] == 1);
    activate(&g, 2);
    now = membership_of(g.of[1]);
    CHECK(now.suspects.bits[0] == 0 && now.silent.bits[0] == 0);
    destroy(&g);
}

/* ---- A sleeper is woken ---- */

typedef struct sleeper {
    const epw_peers *peers;
    epw_watch watch;
    uint64_t timeout_ns, slept_ns;
} sleeper;

static void *sleep_once(void *argument) {
    sleeper *s = argument;
    uint64_t began = epw_now_ns();
    epw_watch_sleep(s->peers, 0, &s->watch, s->timeout_ns);
    s->slept_ns = epw_now_ns() - began;
    return NULL;
}

/* A rank that has waited for seconds sleeps 16 ms at a time, or as long as it may, and a word wakes it. The
 * shortest of many sleeps shows that. */
static void a_word_wakes_a_sleeper(uint32_t word) {
    group g = make_group(2, LONG_MS * MS);
    uint64_t shortest = UINT64_MAX, briefest = UINT64_MAX;
    uint32_t uncut = 0; /* woken by the previous round's word, which a polling NIC reports late */
    for (uint32_t round = 1; round <= 20; round++) {
        sleeper s = {.peers = &g.of[0]->peers, .timeout_ns = 3 * MS};
        epw_look seen;
        epw_look_at(s.peers, 0, 1, EPW_WORD_DISPATCH, &seen);
        epw_watch_set(&s.watch, 1, EPW_WORD_DISPATCH, &seen, 0, 1, UINT64_MAX);
        sleep_once(&s);
        if (s.slept_ns < briefest) briefest = s.slept_ns;
        uncut += s.slept_ns >= 2 * MS;
        s.timeout_ns = UINT64_MAX;
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, sleep_once, &s) == 0);
        nanosleep(&(struct timespec){0, 3000000}, NULL);
        epw_signal(&g.of[1]->peers, 0, 0, word, epw_word(1, round, 0), NULL, 0);
        pthread_join(thread, NULL);
        if (s.slept_ns < shortest) shortest = s.slept_ns;
    }
    CHECK_MSG(shortest < 12 * MS, "word %u: the shortest of 20 sleeps took %llu us", word,
              (unsigned long long)(shortest / 1000));
    CHECK_MSG(uncut >= 2 && briefest < 12 * MS, "a sleep of 3 ms took %llu us at least, %u of 20 as long",
              (unsigned long long)(briefest / 1000), uncut);
    destroy(&g);
}

int main(void) {
    ends_a_wait(a_rank_that_leaves);
    ends_a_wait(a_rank_that_gives_its_peer_up_on_another_lane);
    ends_a_wait(a_rank_that_disconnects_its_peer);
    ends_a_wait(a_rank_that_parts_with_its_peer);
    a_released_operation_is_paid_in_the_background();
    a_membership_begins_without_suspects();
    KEEP_TIME(a_word_wakes_a_sleeper(EPW_WORD_DISPATCH));
    KEEP_TIME(a_word_wakes_a_sleeper(EPW_WORD_DROPPED));
    KEEP_TIME(a_word_wakes_a_sleeper(EPW_WORD_EPOCH));
    return check_result("farewells");
}
