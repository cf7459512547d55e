/* What a rank learns about its waits: wait_ns names the rank that is late, and counts nothing else. */
#include "group.h"

#include "ep/buffer.h"
#include "peer/sleep.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * MS + (uint64_t)now.tv_nsec;
}

static void sleep_ns(uint64_t ns) {
    struct timespec time = {(time_t)(ns / (1000 * MS)), (long)(ns % (1000 * MS))};
    nanosleep(&time, NULL);
}

/* Rank 2, for which `handle` waits, is late. Over queues, what the others have sent arrives meanwhile, and is
 * seen by a poll. */
static void be_late(epw_buffer *b, epw_handle handle, uint64_t ns) {
    uint64_t until = now_ns() + ns;
    while (path_of_test() == EPW_PATH_QUEUE && now_ns() < until) {
        CHECK_OK(epw_await(b, handle, MS));
        CHECK(epw_poll(b, handle, NULL) == EPW_PENDING);
    }
    if (path_of_test() != EPW_PATH_QUEUE) sleep_ns(ns);
}

/* The operation has ended or, over queues, soon will have. */
static void ended(epw_buffer *b, epw_handle handle) {
    epw_status status = epw_poll(b, handle, NULL);
    for (int i = 0; path_of_test() == EPW_PATH_QUEUE && status == EPW_PENDING && i < 10000; i++) {
        CHECK_OK(epw_await(b, handle, MS));
        status = epw_poll(b, handle, NULL);
    }
    CHECK_OK(status);
}

/* Rank 2 of 3 sends its rows half a second after rank 0 began to wait, and its answers likewise. */
static void a_late_peer_shows_and_the_others_do_not(void) {
    enum { LATE_MS = 500, AT_LEAST_MS = 450 };
    group g = make_group(3, 10000 * MS);
    activate(&g, 1);
    static batch made[3];
    static _Alignas(64) uint16_t rows[EXPERTS / 3 * 3 * TOKENS * HIDDEN], sums[3][TOKENS * HIDDEN];
    uint32_t counts[EXPERTS / 3];
    uint64_t rows_ns[3] = {0}, answers_ns[3] = {0};
    epw_handle handles[3];
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    out.rows = rows;
    out.counts = counts;
    out.wait_ns = rows_ns;
    out.nonblocking = 1;
    for (uint32_t r = 0; r < 3; r++) {
        epw_dispatch_input in = make_batch(&made[r], r);
        if (r == 2) {
            CHECK(epw_dispatch_receive(g.of[0], handles[0], &out, NULL) == EPW_PENDING);
            be_late(g.of[0], handles[0], LATE_MS * MS);
        }
        CHECK_OK(epw_dispatch(g.of[r], &in, NULL, &handles[r], NULL));
    }
    ended(g.of[0], handles[0]);
    CHECK_MSG(rows_ns[2] >= AT_LEAST_MS * MS, "%llu ns", (unsigned long long)rows_ns[2]);
    CHECK_MSG(rows_ns[0] < rows_ns[2] / 2 && rows_ns[1] < rows_ns[2] / 2, "%llu and %llu ns",
              (unsigned long long)rows_ns[0], (unsigned long long)rows_ns[1]);

    epw_combine_output results[3];
    for (uint32_t r = 0; r < 3; r++) {
        epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
        static _Alignas(64) uint16_t others[sizeof rows / 2];
        nothing.rows = others;
        nothing.counts = counts;
        if (r > 0) CHECK_OK(epw_dispatch_receive(g.of[r], handles[r], &nothing, NULL));
        results[r] = (epw_combine_output)EPW_COMBINE_OUTPUT_INIT;
        results[r].out = sums[r];
    }
    results[0].wait_ns = answers_ns;
    results[0].nonblocking = 1;
    for (uint32_t r = 0; r < 3; r++) {
        epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
        answer.expert_out = rows;
        if (r == 2) {
            CHECK(epw_combine_receive(g.of[0], handles[0], &results[0], NULL) == EPW_PENDING);
            be_late(g.of[0], handles[0], LATE_MS * MS);
        }
        CHECK_OK(epw_combine(g.of[r], handles[r], &answer, NULL, NULL));
    }
    ended(g.of[0], handles[0]);
    CHECK_MSG(answers_ns[2] >= AT_LEAST_MS * MS, "%llu ns", (unsigned long long)answers_ns[2]);
    CHECK_MSG(answers_ns[0] < answers_ns[2] / 2 && answers_ns[1] < answers_ns[2] / 2,
              "%llu and %llu ns of %llu", (unsigned long long)answers_ns[0],
              (unsigned long long)answers_ns[1], (unsigned long long)answers_ns[2]);
    destroy(&g);
}

/* ---- Copying ---- */

enum { MANY = 1024, WIDE = 8192, COPIES = 8 };

typedef struct sender {
    epw_buffer *buffer;
    const epw_dispatch_input *input;
    uint64_t after_ns, sent;
    epw_handle handle;
} sender;

static void *send_later(void *argument) {
    sender *s = argument;
    sleep_ns(s->after_ns);
    CHECK_OK(epw_dispatch(s->buffer, s->input, NULL, &s->handle, NULL));
    s->sent = now_ns();
    return NULL;
}

/* The CPU time of all threads, including the library's own in the background. */
static uint64_t cpu_ns(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000 * MS + (uint64_t)used.tv_nsec;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { COSTLIER = 5 }; /* each waking of a thread under a sanitizer */
#else
enum { COSTLIER = 1 };
#endif

/* A rank that waits long leaves its core to others: after the first 10 ms it uses less than 1 percent of it.
 * A busy machine adds to that CPU time what it does for itself meanwhile, so one wait of several within the
 * bound will do. A wait that never sleeps uses all of its 600 ms, each time. */
static void a_long_wait_takes_next_to_nothing_of_a_core(void) {
    enum { LATE_MS = 600, FIRST_MS = 10, ATTEMPTS = 8 };
    group g = make_group(2, 10000 * MS);
    static batch mine, others;
    epw_dispatch_input own = make_batch(&mine, 0), in = make_batch(&others, 1);
    own.layout = in.layout = EPW_RANK_MAJOR;
    uint64_t used = 0, took = 0;
    bool within = false;
    for (uint32_t attempt = 0; !within && attempt < ATTEMPTS; attempt++) {
        activate(&g, attempt + 1);
        sender s = {.buffer = g.of[1], .input = &in, .after_ns = LATE_MS * MS};
        epw_handle handle;
        CHECK_OK(epw_dispatch(g.of[0], &own, NULL, &handle, NULL));
        epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
        epw_outcome outcome = EPW_OUTCOME_INIT;
        uint64_t began = now_ns(), before = cpu_ns();
        pthread_t thread;
        pthread_create(&thread, NULL, send_later, &s);
        CHECK_OK(epw_dispatch_receive(g.of[0], handle, &nothing, &outcome));
        used = cpu_ns() - before;
        took = now_ns() - began;
        pthread_join(thread, NULL);
        CHECK(!outcome.degraded && took >= LATE_MS * MS);
        within = used < COSTLIER * (FIRST_MS * MS + took / 100);
        printf("a wait of %llu ms took %llu us of a core\n", (unsigned long long)(took / MS),
               (unsigned long long)(used / 1000));
        CHECK_OK(epw_release(g.of[0], handle));
        CHECK_OK(epw_release(g.of[1], s.handle));
    }
    CHECK_MSG(within, "%llu us of %llu ms", (unsigned long long)(used / 1000),
              (unsigned long long)(took / MS));
    destroy(&g);
}

/* Rank 1's single row arrives while rank 0 copies many rows of its own, which it has at once. */
static void who_comes_while_this_rank_copies_kept_nobody_waiting(void) {
    group g = {.ranks = 2};
    epw_config config = config_of(0, 2);
    config.max_tokens = MANY;
    config.hidden = WIDE;
    config.experts = 2 * COPIES;
    config.topk = COPIES;
    config.ordered = config.zero_copy = 0;
    config.deadline_ns = 20000 * MS;
    for (config.rank = 0; config.rank < 2; config.rank++)
        CHECK_OK(epw_buffer_create(&config, &g.of[config.rank]));
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(connect_to(g.of[r], r, g.of[1 - r], 1 - r));

    unsigned char *x = aligned_alloc(64, (size_t)MANY * WIDE * 2);
    unsigned char *rows = aligned_alloc(64, (size_t)COPIES * 2 * MANY * WIDE * 2);
    static int32_t ids[MANY * COPIES];
    uint32_t counts[COPIES];
    memset(x, 0, (size_t)MANY * WIDE * 2);
    for (uint32_t i = 0; i < MANY * COPIES; i++) ids[i] = (int32_t)(i % COPIES); /* all for rank 0 */
    epw_dispatch_input many = EPW_DISPATCH_INPUT_INIT;
    many.tokens = MANY;
    many.x = x;
    many.topk_idx = ids;
    many.topk = COPIES;
    epw_dispatch_input one = many;
    one.tokens = 1;
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    out.rows = rows;
    out.counts = counts;

    /* The first round measures the least time of copying; a later round counts if the row arrived in the
     * first half of that time. */
    uint64_t copying_ns = 0;
    uint32_t rounds = 0, met = 0;
    for (; met == 0 && rounds < 200; rounds++) {
        activate(&g, rounds + 1);
        uint64_t wait_ns[2] = {0};
        out.wait_ns = wait_ns;
        epw_handle handle;
        CHECK_OK(epw_dispatch(g.of[0], &many, NULL, &handle, NULL));
        sender s = {.buffer = g.of[1], .input = &one, .after_ns = copying_ns / 4};
        pthread_t thread;
        if (rounds == 0) send_later(&s);
        uint64_t began = now_ns();
        if (rounds > 0) pthread_create(&thread, NULL, send_later, &s);
        CHECK_OK(epw_dispatch_receive(g.of[0], handle, &out, NULL));
        uint64_t took = now_ns() - began;
        if (rounds > 0) pthread_join(thread, NULL);
        CHECK(counts[0] == MANY + 1 && counts[COPIES - 1] == MANY + 1);
        CHECK(wait_ns[0] < took / 2);
        if (copying_ns == 0 || took < copying_ns) copying_ns = took;
        if (rounds > 0 && s.sent - began < copying_ns / 2) {
            met++;
            CHECK_MSG(wait_ns[1] < copying_ns / 2, "%llu ns of %llu", (unsigned long long)wait_ns[1],
                      (unsigned long long)took);
        }
        CHECK_OK(epw_release(g.of[0], handle));
        CHECK_OK(epw_release(g.of[1], s.handle));
    }
    CHECK_MSG(met > 0, "in %u rounds the row never came while the others were copied", rounds);
    free(x);
    free(rows);
    destroy(&g);
}

/* Where ranks outnumber cores, waits depend on who needs the waiter's core. */
static void ranks_know_where_others_wait(void) {
    group g = make_group(2, 10000 * MS);
    const epw_peers *own = &g.of[0]->peers, *other = &g.of[1]->peers;
    bool queued = path_of_test() == EPW_PATH_QUEUE; /* that host is not looked into */
    cpu_set_t all, one;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    uint32_t core = (uint32_t)sched_getcpu() + 1;
    CHECK(epw_may_need_core(own, 1, core) && epw_may_need_core(own, 1, core + 1)); /* it has not waited yet */
    CHECK(epw_core_tell(other) == core);
    CHECK(epw_may_need_core(own, 1, core) && epw_may_need_core(own, 1, core + 1) == queued);
    CHECK(epw_may_need_core(own, 1, 0)); /* who does not know its own core */
    CHECK(epw_may_need_core(other, 0, core + 1));
    /* Rank 1 waits here, and then on another core. */
    epw_mask none = {{0}}, it = {{2}};
    g.of[0]->peers.spin_ns = 0; /* as where ranks outnumber cores */
    CHECK(epw_spin_ns(own, &none) == 0);
    CHECK(epw_spin_ns(own, &it) == 0);
    ((epw_window_header *)(void *)epw_peers_own(other))->core = core + 1;
    CHECK(epw_spin_ns(own, &it) == (queued ? 0 : EPW_SPIN_ELSEWHERE_NS));
    CHECK(((epw_window_header *)(void *)epw_peers_own(own))->core == core);
    g.of[0]->peers.spin_ns = 1000; /* and where they do not */
    CHECK(epw_spin_ns(own, &it) == 1000);
    CHECK(sched_setaffinity(0, sizeof all, &all) == 0);
    destroy(&g);
}

int main(void) {
    ranks_know_where_others_wait();
    a_late_peer_shows_and_the_others_do_not();
    who_comes_while_this_rank_copies_kept_nobody_waiting();
    a_long_wait_takes_next_to_nothing_of_a_core();
    return check_result("waits");
}
