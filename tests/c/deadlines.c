/* Who is given up, and when: deadlines of calls, of released operations and of awaited events, and ranks that
 * are left out. Ranks are threads of this process; a dead rank is a buffer whose functions nobody calls. */
#include "ep/host/host.h"
#include "group.h"

#include "base/clock.h"

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define GROUP_MS (longer * 200)

static void sleep_ms(uint64_t ms) {
    struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000 * MS)};
    nanosleep(&time, NULL);
}

static uint64_t ms_since(uint64_t began) {
    return (epw_now_ns() - began) / MS;
}

/* The end of a thread's call. */
typedef struct ended {
    epw_buffer *buffer;
    uint32_t rank;
    epw_handle handle;
    uint64_t deadline_ms; /* of its dispatch; 0: the group's */
    uint64_t after_ms;    /* it receives this long after it has sent */
    bool event;           /* it awaits the event before it receives */
    uint64_t took_ms;     /* from its first wait on */
    epw_outcome outcome;
} ended;

/* Waits as an async executor would. */
static void await_event(epw_buffer *b, epw_handle handle) {
    epw_status status;
    while ((status = epw_ready(b, handle)) == EPW_PENDING) CHECK_OK(epw_await(b, handle, GROUP_MS * MS / 4));
    CHECK_OK(status);
}

static void *send_and_receive(void *argument) {
    ended *e = argument;
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    e->outcome = (epw_outcome)EPW_OUTCOME_INIT;
    e->handle = send_batch(e->buffer, e->rank, 0, e->deadline_ms * MS);
    sleep_ms(e->after_ms);
    uint64_t began = epw_now_ns();
    if (e->event) await_event(e->buffer, e->handle);
    CHECK_OK(epw_dispatch_receive(e->buffer, e->handle, &nothing, &e->outcome));
    e->took_ms = ms_since(began);
    static _Thread_local _Alignas(64) uint16_t sums[TOKENS * HIDDEN];
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    result.out = sums;
    answer.deadline_ns = e->deadline_ms * MS;
    CHECK_OK(epw_combine(e->buffer, e->handle, &answer, &result, &e->outcome));
    return NULL;
}

static void run(ended *ranks, uint32_t count) {
    pthread_t threads[RANKS_MAX];
    for (uint32_t r = 0; r < count; r++) pthread_create(&threads[r], NULL, send_and_receive, &ranks[r]);
    for (uint32_t r = 0; r < count; r++) pthread_join(threads[r], NULL);
}

/* No living rank was given up: only rank `dead` is missing. */
static void only_missing(const ended *ranks, uint32_t count, uint32_t dead) {
    for (uint32_t r = 0; r < count; r++) {
        CHECK_MSG(ranks[r].outcome.missing.bits[0] == UINT64_C(1) << dead, "rank %u misses %llx", r,
                  (unsigned long long)ranks[r].outcome.missing.bits[0]);
    }
}

/* ---- operations that were released ---- */

static void a_long_deadline_of_a_released_operation_holds_up_nothing(void) {
    group g = make_group(2, GROUP_MS * MS);
    activate(&g, 1);
    CHECK_OK(epw_release(g.of[0], send_batch(g.of[0], 0, 0, 50 * GROUP_MS * MS)));
    /* Rank 1 never answers: the next operation waits for it with its own deadline. */
    uint64_t began = epw_now_ns();
    epw_handle next = send_batch(g.of[0], 0, 0, 0);
    uint64_t took = ms_since(began);
    CHECK_MSG(took >= GROUP_MS && took < 3 * GROUP_MS, "%llu ms", (unsigned long long)took);
    epw_membership now = membership_of(g.of[0]);
    CHECK(now.suspects.bits[0] == 2 && now.silent.bits[0] == 2);
    CHECK_OK(epw_release(g.of[0], next));
    destroy(&g);
}

static void a_debt_keeps_the_long_deadline_of_its_operation(void) {
    group g = make_group(2, GROUP_MS * MS);
    activate(&g, 1);
    CHECK_OK(epw_release(g.of[0], send_batch(g.of[0], 0, 0, 50 * GROUP_MS * MS)));
    sleep_ms(3 * GROUP_MS); /* late, but within the operation's deadline */
    epw_handle late = send_batch(g.of[1], 1, 0, 0);
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_dispatch_receive(g.of[1], late, &nothing, &outcome));
    CHECK(!outcome.degraded);
    CHECK(membership_of(g.of[0]).suspects.bits[0] == 0);
    CHECK_OK(epw_release(g.of[1], late));
    destroy(&g);
}

/* ---- a deadline that only one rank lengthens ---- */

static void who_waits_longer_than_others_is_not_given_up(void) {
    group g = make_group(3, GROUP_MS * MS);
    activate(&g, 1);
    /* Rank 2 is dead. Rank 0 waits for it for 8 deadlines, and rank 1 waits for rank 0. */
    ended ranks[] = {{.buffer = g.of[0], .rank = 0, .deadline_ms = 8 * GROUP_MS},
                     {.buffer = g.of[1], .rank = 1}};
    run(ranks, 2);
    only_missing(ranks, 2, 2);
    CHECK_MSG(ranks[0].took_ms >= 8 * GROUP_MS, "%llu ms", (unsigned long long)ranks[0].took_ms);
    CHECK_MSG(ranks[1].took_ms < 3 * GROUP_MS, "%llu ms", (unsigned long long)ranks[1].took_ms);
    destroy(&g);
}

/* ---- halves and events with a dead rank ---- */

/* Rank 2 sends its rows only to rank 0, then dies. Rank 0 waits for rank 1's answer from the beginning, while
 * rank 1 begins to receive almost a deadline later, and only then begins to wait for rank 2. */
static void a_half_may_begin_almost_a_deadline_later(void) {
    group g = make_group(3, GROUP_MS * MS);
    activate(&g, 1);
    uint64_t offset = epw_word_offset(2, 0, EPW_WORD_DISPATCH);
    epw_handle dying = send_batch(g.of[2], 2, 0, 0);
    _Atomic uint64_t *word = (_Atomic uint64_t *)(epw_peers_own(&g.of[1]->peers) + offset);
    atomic_store(word, 0); /* as if rank 2 had not posted it */
    ended ranks[] = {{.buffer = g.of[0], .rank = 0},
                     {.buffer = g.of[1], .rank = 1, .after_ms = GROUP_MS * 3 / 4}};
    run(ranks, 2);
    only_missing(ranks, 2, 2);
    CHECK_OK(epw_release(g.of[2], dying));
    destroy(&g);
}

static void awaiting_an_event_beside_a_dead_rank_accuses_nobody_else(void) {
    group g = make_group(3, GROUP_MS * MS);
    activate(&g, 1);
    ended ranks[] = {{.buffer = g.of[0], .rank = 0, .event = true}, {.buffer = g.of[1], .rank = 1}};
    run(ranks, 2);
    only_missing(ranks, 2, 2);
    for (uint32_t r = 0; r < 2; r++) {
        CHECK_MSG(ranks[r].took_ms >= GROUP_MS * 9 / 10 && ranks[r].took_ms < GROUP_MS * 8 / 5,
                  "rank %u took %llu ms", r, (unsigned long long)ranks[r].took_ms);
    }
    destroy(&g);
}

/* ---- ranks that are left out ---- */

static void a_rank_left_out_is_told_at_once(void) {
    group g = make_group(3, 20 * GROUP_MS * MS);
    activate(&g, 1);
    epw_mask two = first_ranks(2);
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_buffer_set_active(g.of[r], &two, 2, 0));
    uint64_t began = epw_now_ns();
    epw_handle handle = send_batch(g.of[2], 2, 0, 0);
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_dispatch_receive(g.of[2], handle, &nothing, &outcome));
    CHECK_MSG(ms_since(began) < 5 * GROUP_MS, "%llu ms", (unsigned long long)ms_since(began));
    CHECK(outcome.missing.bits[0] == 3 && outcome.record.cause == EPW_CAUSE_SUPERSEDED);
    CHECK_OK(epw_release(g.of[2], handle));
    destroy(&g);
}

/* Both lanes of a peer are told, each by its own word. */
static void a_peer_that_is_given_up_is_told_on_every_lane(void) {
    group g = make_group(2, GROUP_MS * MS);
    activate(&g, 1);
    epw_handle handle = send_batch(g.of[0], 0, 0, 0);
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    CHECK_OK(epw_dispatch_receive(g.of[0], handle, &nothing, NULL));
    for (uint32_t lane = 0; lane < 2; lane++) {
        epw_look seen;
        AWAIT(epw_word_from(&g.of[1]->peers, lane, 0, EPW_WORD_DROPPED) != 0);
        epw_look_at(&g.of[1]->peers, lane, 0, EPW_WORD_DISPATCH, &seen);
        CHECK_MSG(seen.sight.dropped == epw_word(1, 0, 0), "lane %u", lane);
    }
    CHECK_OK(epw_release(g.of[0], handle));
    destroy(&g);
}

/* ---- handles and the operation number ---- */

static void a_handle_of_another_buffer_is_refused(void) {
    group g = make_group(2, GROUP_MS * MS), other = make_group(2, GROUP_MS * MS);
    activate(&g, 1);
    activate(&other, 1);
    epw_handle mine = send_batch(g.of[0], 0, 0, 0), theirs = send_batch(other.of[0], 0, 0, 0);
    CHECK(mine != theirs);
    REFUSED(epw_release(g.of[0], theirs), EPW_ERR_STATE, "release", 0, -1, "not one of this buffer");
    CHECK_OK(epw_release(g.of[0], mine));
    CHECK_OK(epw_release(other.of[0], theirs));
    destroy(&g);
    destroy(&other);
}

static void operations_go_on_over_the_wrap_of_their_number(void) {
    group g = make_group(2, 50 * GROUP_MS * MS);
    activate(&g, 1);
    batch made[2];
    epw_handle handles[2];
    dispatch_both(&g, made, handles); /* the words carry the epoch */
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_release(g.of[r], handles[r]));
    for (uint32_t r = 0; r < 2; r++) {
        /* As after 2^24 - 3 operations, each of which has answered the one before. */
        g.of[r]->lanes[0].machine.op = EPW_OP_MAX - 2;
        for (uint32_t p = 0; p < 2; p++)
            epw_signal(&g.of[r]->peers, 0, p, EPW_WORD_COMBINE, epw_word(1, EPW_OP_MAX - 2, 0), NULL, 0);
    }
    for (int i = 0; i < 6; i++) {
        for (uint32_t r = 0; r < 2; r++) {
            epw_dispatch_input in = make_batch(&made[r], r);
            in.layout = EPW_RANK_MAJOR;
            in.lane = 0;
            CHECK_OK(epw_dispatch(g.of[r], &in, NULL, &handles[r], NULL));
            CHECK(!g.of[r]->lanes[0].machine.first);
        }
        for (uint32_t r = 0; r < 2; r++) {
            epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
            epw_outcome outcome = EPW_OUTCOME_INIT;
            CHECK_OK(epw_dispatch_receive(g.of[r], handles[r], &nothing, &outcome));
            CHECK(!outcome.degraded);
            CHECK_OK(epw_release(g.of[r], handles[r]));
        }
    }
    CHECK(g.of[0]->lanes[0].machine.op == 3);
    destroy(&g);
}

/* ---- the probe ---- */

static void a_probe_is_answered_while_no_call_is_made(void) {
    group g = make_group(3, GROUP_MS * MS);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(epw_buffer_probe(g.of[0], 1, 5000 * MS));
        CHECK_OK(epw_buffer_probe(g.of[1], 0, 5000 * MS));
    }
    REFUSED(epw_buffer_probe(g.of[0], 3, MS), EPW_ERR_INVALID, "probe", 0, -1, "must be below 3");
    CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
    REFUSED(epw_buffer_probe(g.of[0], 1, MS), EPW_ERR_STATE, "probe", 0, 1, "not connected");
    /* Rank 1 still reaches rank 0, but rank 0 cannot answer it. A queue serves both directions. */
    if (path_of_test() == EPW_PATH_QUEUE)
        REFUSED(epw_buffer_probe(g.of[1], 0, 5000 * MS), EPW_ERR_PEER, "probe", 1, 0, "nothing reaches it");
    else
        REFUSED(epw_buffer_probe(g.of[1], 0, 50 * MS), EPW_ERR_TIMEOUT, "probe", 1, 0, "within 50 ms");
    CHECK_OK(epw_buffer_probe(g.of[1], 2, 5000 * MS));
    destroy(&g);
}

/* The rank's window becomes unreadable while nobody uses it, as a page with a memory error does. */
static void a_rank_probes_its_own_device(void) {
    group g = make_group(2, GROUP_MS * MS);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t offset = epw_word_offset(0, 0, EPW_WORD_PROBE);
    unsigned char *lost = epw_peers_own(&g.of[0]->peers) + offset / page * page;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(epw_buffer_probe(g.of[0], 0, MS));
        CHECK(mprotect(lost, page, PROT_NONE) == 0);
        REFUSED(epw_buffer_probe(g.of[0], 0, MS), EPW_ERR_SYSTEM, "probe", 0, 0, "own window is gone");
        CHECK(mprotect(lost, page, PROT_READ | PROT_WRITE) == 0);
    }
    CHECK_OK(epw_buffer_probe(g.of[0], 1, 5000 * MS));
    destroy(&g);
}

typedef struct prober {
    epw_buffer *of;
    uint32_t peer, times;
    uint64_t timeout_ns;
    epw_status status; /* of the last */
} prober;

static void *probe(void *argument) {
    prober *p = argument;
    for (uint32_t i = 0; i < p->times; i++) p->status = epw_buffer_probe(p->of, p->peer, p->timeout_ns);
    return NULL;
}

static bool is_probing(const group *g, uint32_t rank, uint32_t peer) {
    epw_peers *peers = &g->of[rank]->peers;
    pthread_mutex_lock(&peers->probe_lock);
    bool probing = epw_mask_has(&peers->probed, peer);
    pthread_mutex_unlock(&peers->probe_lock);
    return probing;
}

/* Rank 1 answers no probe until the end of the first, for which others wait, each within its own time. */
static void probes_of_a_peer_take_turns(void) {
    enum { FIRST_MS = 1000, SHORT_MS = 50, LONG_MS = 20000, TIMES = 50, THREADS = 6 };
    group g = make_group(3, GROUP_MS * MS);
    epw_peers_close_probe(&g.of[1]->peers);
    prober first = {.of = g.of[0], .peer = 1, .times = 1, .timeout_ns = longer * FIRST_MS * MS};
    pthread_t thread, threads[THREADS];
    CHECK(pthread_create(&thread, NULL, probe, &first) == 0);
    for (uint32_t i = 0; i < longer * FIRST_MS && !is_probing(&g, 0, 1); i++)
        nanosleep(&(struct timespec){0, MS}, NULL);
    uint64_t began = epw_now_ns();
    REFUSED(epw_buffer_probe(g.of[0], 1, SHORT_MS * MS), EPW_ERR_TIMEOUT, "probe", 0, 1,
            "probes by other threads have not ended within 50 ms");
    CHECK(epw_now_ns() - began >= SHORT_MS * MS);
    CHECK_OK(epw_buffer_probe(g.of[0], 2, LONG_MS * MS)); /* another peer's */
    CHECK_OK(epw_buffer_probe(g.of[0], 0, LONG_MS * MS));
    CHECK_MSG(is_probing(&g, 0, 1), "they have waited for the first");
    CHECK_OK(epw_peers_open_probe(&g.of[1]->peers));
    CHECK_OK(epw_buffer_probe(g.of[0], 1, LONG_MS * MS));
    pthread_join(thread, NULL);
    CHECK_MSG(first.status == EPW_ERR_TIMEOUT, "%s", epw_status_name(first.status));

    prober many[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        many[i] = (prober){.of = g.of[0], .peer = i % 3, .times = TIMES, .timeout_ns = LONG_MS * MS};
        CHECK(pthread_create(&threads[i], NULL, probe, &many[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_OK(many[i].status);
    }
    CHECK(epw_mask_empty(&g.of[0]->peers.probed));
    destroy(&g);
}

int main(void) {
    KEEP_TIME(a_long_deadline_of_a_released_operation_holds_up_nothing());
    KEEP_TIME(a_debt_keeps_the_long_deadline_of_its_operation());
    KEEP_TIME(who_waits_longer_than_others_is_not_given_up());
    KEEP_TIME(a_half_may_begin_almost_a_deadline_later());
    KEEP_TIME(awaiting_an_event_beside_a_dead_rank_accuses_nobody_else());
    KEEP_TIME(a_rank_left_out_is_told_at_once());
    KEEP_TIME(a_peer_that_is_given_up_is_told_on_every_lane());
    a_handle_of_another_buffer_is_refused();
    operations_go_on_over_the_wrap_of_their_number();
    a_probe_is_answered_while_no_call_is_made();
    KEEP_TIME(probes_of_a_peer_take_turns());
    if (words_are_watched()) { /* the page may fail between the thread's two looks; watched_words.c covers
                                  that */
        printf("NOT CHECKED: a rank's own window that is gone, because a thread looks at words in it\n");
    } else {
        a_rank_probes_its_own_device();
    }
    return check_result("deadlines");
}
