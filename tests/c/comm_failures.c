/* Collectives when ranks do not do their part: one never calls, leaves, is revoked, drops its work, begins
 * the epoch at another step, or calls something else. Every wait ends in time, the outcome names who is
 * missing, and the next epoch is exact. */
#include "comms.h"

#include "base/clock.h"
#include "coll/parts.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

enum { COUNT = 40000, SMALL = 8 };
#define DEADLINE (longer * slower * 200 * MS)
#define SLACK    (longer * slower * 150 * MS) /* for a busy machine */

static uint64_t slower = 1; /* than our machine when idle, measured when the test began */

static comms made(uint32_t ranks) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.deadline_ns = DEADLINE;
    config.heap_bytes = 2 << 20;
    comms c = open_comms(ranks, config);
    activate_comms(&c, 1);
    return c;
}

static epw_mask only(uint32_t rank) {
    epw_mask mask = {{UINT64_C(1) << rank}};
    return mask;
}

static bool lacks(const epw_outcome *outcome, uint32_t rank) {
    return outcome->degraded && (outcome->missing.bits[0] >> rank & 1) != 0;
}

/* ---- sums that are normalised ---- */

static const uint16_t weight[128] = {0};

/* A sum of `rows` rows of bf16. `memory`: 4 bytes for each element, of the residual and of what is
 * normalised.
 */
static epw_norm norm_of(uint64_t rows, uint32_t hidden, unsigned char *memory) {
    epw_norm norm = EPW_NORM_INIT;
    norm.rows = rows;
    norm.hidden = hidden;
    norm.weight = weight;
    norm.residual = memory;
    norm.out = memory + 2 * rows * hidden;
    return norm;
}

static epw_coll coll_of_norm(const epw_norm *norm) {
    epw_coll c = EPW_COLL_INIT;
    c.kind = EPW_ALL_REDUCE;
    c.type = EPW_TYPE_BF16;
    c.op = EPW_SUM;
    c.count = norm->rows * norm->hidden;
    c.norm = norm;
    return c;
}

static unsigned char *untouched(uint64_t bytes) {
    unsigned char *memory = malloc(bytes);
    if (memory == NULL) abort();
    return memset(memory, 0x5a, bytes);
}

static void check_untouched(const unsigned char *memory, uint64_t bytes, const char *what) {
    uint64_t bad = 0;
    for (uint64_t i = 0; i < bytes; i++) bad += memory[i] != 0x5a;
    CHECK_MSG(bad == 0, "%llu bytes of %s were written", (unsigned long long)bad, what);
}

/* ---- what all ranks do in the next epoch ---- */

static void add_up(uint32_t rank, void *context) {
    const comms *c = context;
    int32_t *mine = malloc(COUNT * sizeof *mine), *sums = malloc(COUNT * sizeof *sums);
    if (mine == NULL || sums == NULL) abort();
    for (int32_t i = 0; i < COUNT; i++) mine[i] = i * (int32_t)(rank + 1);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_all_reduce(c->of[rank], mine, sums, COUNT, EPW_TYPE_I32, EPW_SUM, NULL, &outcome));
    CHECK_MSG(!outcome.degraded, "rank %u lacks %llx, cause %u", rank,
              (unsigned long long)outcome.missing.bits[0], outcome.record.cause);
    int32_t factor = (int32_t)(c->ranks * (c->ranks + 1) / 2), bad = 0;
    for (int32_t i = 0; i < COUNT; i++) bad += sums[i] != i * factor;
    CHECK_MSG(bad == 0, "%d wrong sums", bad);
    free(mine);
    free(sums);
}

/* Rows of ones, added to a residual of ones. */
static void add_up_and_normalise(uint32_t rank, void *context) {
    enum { ROWS = 3, HIDDEN = 128, ALL = ROWS * HIDDEN, ONE = 0x3f80 };
    static const uint16_t wholes[] = {0, ONE, 0x4000, 0x4040, 0x4080}; /* 0 to 4 */
    const comms *c = context;
    uint16_t mine[ALL], sums[ALL], both[2 * ALL], weights[HIDDEN];
    const uint16_t *residual = both, *out = both + ALL;
    for (int i = 0; i < ALL; i++) mine[i] = both[i] = weights[i % HIDDEN] = ONE;
    epw_norm norm = norm_of(ROWS, HIDDEN, (unsigned char *)both);
    norm.weight = weights;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_all_reduce_norm(c->of[rank], mine, sums, EPW_TYPE_BF16, &norm, NULL, &outcome));
    CHECK_MSG(!outcome.degraded, "rank %u lacks %llx", rank, (unsigned long long)outcome.missing.bits[0]);
    int bad = 0;
    for (int i = 0; i < ALL; i++)
        bad += sums[i] != wholes[c->ranks] || residual[i] != wholes[c->ranks + 1] || out[i] != ONE;
    CHECK_MSG(bad == 0, "%d wrong elements", bad);
}

static void the_next_epoch_is_exact(const comms *c, uint32_t epoch) {
    activate_comms(c, epoch);
    on_all(c->ranks, add_up, (void *)(uintptr_t)c);
    on_all(c->ranks, add_up_and_normalise, (void *)(uintptr_t)c);
}

/* ---- who never calls ---- */

typedef struct scene {
    comms c;
    uint32_t kind;
    uint64_t count;
    bool normed; /* the sum is normalised, in rows of 8 */
} scene;

/* An operation in which all wait for rank 2; checks the time and who is missing. */
static void lack_rank_2(uint32_t rank, void *context) {
    const scene *s = context;
    if (rank == 2) return;
    int32_t *mine = calloc(3 * s->count, sizeof *mine), *got = malloc(3 * s->count * sizeof *got);
    if (mine == NULL || got == NULL) abort();
    for (uint64_t i = 0; i < s->count; i++) mine[i] = (int32_t)i;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_coll op = EPW_COLL_INIT;
    op.kind = s->kind;
    op.type = EPW_TYPE_I32;
    op.count = s->count;
    unsigned char *of_norm = untouched(4 * s->count);
    epw_norm norm = norm_of(s->count / 8, 8, of_norm);
    if (s->normed) op = coll_of_norm(&norm);
    op.send = mine;
    op.recv = got;
    uint64_t began = epw_now_ns();
    CHECK_OK(epw_group(s->c.of[rank], &op, 1, NULL, &outcome));
    uint64_t took = epw_now_ns() - began;
    CHECK_MSG(took < 2 * DEADLINE + SLACK, "kind %u, rank %u: %llu ms", s->kind, rank,
              (unsigned long long)(took / MS));
    CHECK_MSG(lacks(&outcome, 2) && !lacks(&outcome, 1 - rank), "kind %u, rank %u: missing %llx", s->kind,
              rank, (unsigned long long)outcome.missing.bits[0]);
    CHECK_MSG(outcome.record.cause == EPW_CAUSE_TIMEOUT && outcome.record.peer == 2, "cause %u, peer %u",
              outcome.record.cause, outcome.record.peer);
    int bad = 0;
    for (uint64_t i = 0; i < s->count; i++) bad += mine[i] != (int32_t)i;
    CHECK_MSG(bad == 0, "%d of the input are not as they were", bad);
    check_untouched(of_norm, 4 * s->count, "a norm without a sum");
    /* The next operation does not wait for a deadline again. */
    began = epw_now_ns();
    CHECK_OK(epw_barrier(s->c.of[rank], NULL, &outcome));
    CHECK(epw_now_ns() - began < DEADLINE && lacks(&outcome, 2) && !lacks(&outcome, 1 - rank));
    CHECK_MSG(outcome.record.cause == EPW_CAUSE_SUSPECTED && outcome.record.peer == 2, "cause %u, peer %u",
              outcome.record.cause, outcome.record.peer);
    CHECK_OK(epw_send(s->c.of[rank], mine, 1, EPW_TYPE_I32, 2, 0, NULL, &outcome));
    CHECK_MSG(lacks(&outcome, 2) && outcome.record.cause == EPW_CAUSE_SUSPECTED && outcome.record.peer == 2,
              "cause %u, peer %u", outcome.record.cause, outcome.record.peer);
    if (s->normed) {
        CHECK_OK(epw_group(s->c.of[rank], &op, 1, NULL, &outcome));
        CHECK_MSG(lacks(&outcome, 2) && !lacks(&outcome, 1 - rank), "rank %u: missing %llx", rank,
                  (unsigned long long)outcome.missing.bits[0]);
        check_untouched(of_norm, 4 * s->count, "a norm without a sum, after the loss");
    }
    free(mine);
    free(got);
    free(of_norm);
}

static void a_rank_that_never_calls_is_missing(void) {
    static const uint32_t kinds[] = {EPW_ALL_REDUCE, EPW_ALL_GATHER, EPW_REDUCE_SCATTER, EPW_ALL_TO_ALL,
                                     EPW_ALL_REDUCE};
    for (uint32_t i = 0; i < 10; i++) {
        scene s = {.c = made(3), .kind = kinds[i / 2], .count = i % 2 ? COUNT : SMALL, .normed = i / 2 == 4};
        on_all(3, lack_rank_2, &s);
        the_next_epoch_is_exact(&s.c, 2);
        close_comms(&s.c);
    }
}

/* ---- a rank that has done its part and leaves ---- */

/* Rank 1 gives its part of a reduction and is then silent for longer than a deadline. Rank 2 is as late, but
 * sends beacons: it waits for rank 1 as long as its call allows. */
static void come_late(uint32_t rank, void *context) {
    const comms *c = context;
    int32_t one = 1, sum = 0;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    if (rank == 2) {
        epw_call patient = EPW_CALL_INIT;
        patient.deadline_ns = 4 * DEADLINE;
        CHECK_OK(epw_recv(c->of[2], &one, 1, EPW_TYPE_I32, 1, 0, &patient, &outcome));
        CHECK_MSG(!outcome.degraded, "missing %llx", (unsigned long long)outcome.missing.bits[0]);
    }
    CHECK_OK(epw_reduce(c->of[rank], &one, &sum, 1, EPW_TYPE_I32, EPW_SUM, 0, NULL, &outcome));
    if (rank == 0)
        CHECK_MSG(!outcome.degraded && sum == 3, "missing %llx", (unsigned long long)outcome.missing.bits[0]);
    if (rank == 1) {
        usleep((useconds_t)(3 * DEADLINE / 2000));
        CHECK_OK(epw_send(c->of[1], &one, 1, EPW_TYPE_I32, 2, 0, NULL, &outcome));
    }
}

static void who_has_given_its_part_is_not_suspected(void) {
    comms c = made(3);
    on_all(3, come_late, &c);
    close_comms(&c);
}

/* Rank 1 leaves as soon as its part of the reduction has been written. */
typedef struct leaving {
    comms c;
    pthread_barrier_t gone;
} leaving;

static void leave_early(uint32_t rank, void *context) {
    leaving *l = context;
    int32_t one = 1, sum = 0;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    if (rank == 2) pthread_barrier_wait(&l->gone);
    if (rank == 0) pthread_barrier_wait(&l->gone);
    CHECK_OK(epw_reduce(l->c.of[rank], &one, &sum, 1, EPW_TYPE_I32, EPW_SUM, 0, NULL, &outcome));
    if (rank == 1) {
        epw_comm_destroy(l->c.of[1]);
        l->c.of[1] = NULL;
        pthread_barrier_wait(&l->gone);
    }
    if (rank == 0)
        CHECK_MSG(!outcome.degraded && sum == 3, "missing %llx", (unsigned long long)outcome.missing.bits[0]);
}

static void what_came_before_a_farewell_counts(void) {
    leaving l = {.c = made(3)};
    pthread_barrier_init(&l.gone, NULL, 3);
    on_all(3, leave_early, &l);
    pthread_barrier_destroy(&l.gone);
    close_comms(&l.c);
}

/* Rank 0 waits for two words of rank 1: that it has read what rank 0 lends it, and that its own message has
 * been posted. A signal interrupts rank 0, at times between its looks at the two words, while rank 1 does all
 * that it has to do and leaves. */
enum { HELD_UP_ROUNDS = 300, LENT = 8000 };

static _Atomic bool held_up, has_left;

static void hold_up(int signal_number) {
    (void)signal_number;
    atomic_store(&held_up, true);
    /* Rank 1 leaves by itself, unless the signal arrives before rank 0 has posted its message. */
    const uint64_t until = epw_now_ns() + DEADLINE / 4;
    while (!atomic_load(&has_left) && epw_now_ns() < until) sched_yield();
}

typedef struct parting {
    comms c;
    pthread_t waiter;
    useconds_t pause;
    _Atomic bool waits;
} parting;

static void part_at_once(uint32_t rank, void *context) {
    parting *p = context;
    int32_t given[LENT + 1], got[LENT + 1];
    uint64_t to_rank_1[] = {0, LENT}, to_rank_0[] = {1, 0}, from_1[] = {0, 1}, from_0[] = {LENT, 0};
    for (int32_t i = 0; i <= LENT; i++) given[i] = i + (int32_t)rank;
    epw_coll op = EPW_COLL_INIT;
    op.kind = EPW_ALL_TO_ALL;
    op.type = EPW_TYPE_I32;
    op.send = given;
    op.recv = got;
    op.send_counts = rank == 0 ? to_rank_1 : to_rank_0;
    op.recv_counts = rank == 0 ? from_1 : from_0;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(
        epw_barrier(p->c.of[rank], NULL, &outcome)); /* after it, each rank knows whose memory it can read */
    if (rank == 0) {
        p->waiter = pthread_self();
        atomic_store(&p->waits, true);
        CHECK_OK(epw_group(p->c.of[0], &op, 1, NULL, &outcome));
        CHECK_MSG(!outcome.degraded && got[0] == 1, "missing %llx, cause %u",
                  (unsigned long long)outcome.missing.bits[0], outcome.record.cause);
        return;
    }
    while (!atomic_load(&p->waits)) sched_yield();
    usleep(p->pause);
    pthread_kill(p->waiter, SIGUSR1);
    uint64_t until = epw_now_ns() + 5 * MS; /* under sanitizers signals are delivered late */
    while (!atomic_load(&held_up) && epw_now_ns() < until) sched_yield();
    CHECK_OK(epw_group(p->c.of[1], &op, 1, NULL, &outcome));
    CHECK_MSG(!outcome.degraded && got[LENT - 1] == LENT - 1, "missing %llx",
              (unsigned long long)outcome.missing.bits[0]);
    epw_comm_destroy(p->c.of[1]);
    p->c.of[1] = NULL;
    atomic_store(&has_left, true);
}

static void last_words_count_also_between_two_looks(void) {
    if (path_of_test() == EPW_PATH_QUEUE) {
        printf("ignored: last_words_count_also_between_two_looks: behind queues nothing is lent, and a rank "
               "that is held up sends nothing\n");
        return;
    }
    struct sigaction held = {.sa_handler = hold_up}, before;
    sigaction(SIGUSR1, &held, &before);
    for (useconds_t round = 0; round < HELD_UP_ROUNDS; round++) {
        parting p = {.c = made(2), .pause = 20 + round % 50};
        atomic_store(&held_up, false);
        atomic_store(&has_left, false);
        on_all(2, part_at_once, &p);
        close_comms(&p.c);
    }
    sigaction(SIGUSR1, &before, NULL);
}

/* Channels are told of a farewell one after the other, and behind queues one channel may hear of it before
 * the last message of another has arrived. Rank 0 awaits a message that never comes, beside a reduction that
 * is complete. */
static void reduce_and_part(uint32_t rank, void *context) {
    comms *c = context;
    int32_t one = 1, sum = 0, never = 0;
    epw_work reduced, received;
    epw_call reduces = EPW_CALL_INIT, receives = EPW_CALL_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    reduces.work = &reduced;
    receives.work = &received;
    CHECK_OK(epw_reduce(c->of[rank], &one, &sum, 1, EPW_TYPE_I32, EPW_SUM, 0, &reduces, NULL));
    if (rank == 0) CHECK_OK(epw_recv(c->of[0], &never, 1, EPW_TYPE_I32, 1, 0, &receives, NULL));
    CHECK_OK(epw_work_wait(c->of[rank], reduced, UINT64_MAX, &outcome));
    if (rank == 1) {
        epw_comm_destroy(c->of[1]);
        c->of[1] = NULL;
        return;
    }
    CHECK_MSG(!outcome.degraded && sum == 2, "missing %llx, cause %u",
              (unsigned long long)outcome.missing.bits[0], outcome.record.cause);
    CHECK_OK(epw_work_wait(c->of[0], received, UINT64_MAX, &outcome));
    CHECK(lacks(&outcome, 1));
}

static void a_farewell_ends_each_channel_by_itself(void) {
    for (int round = 0; round < 20; round++) {
        comms c = made(2);
        on_all(2, reduce_and_part, &c);
        close_comms(&c);
    }
}

/* ---- ranks that leave or are revoked while others wait ---- */

typedef struct ending {
    comms c;
    uint32_t how;
    uint64_t count;
    bool normed; /* the sum is normalised */
} ending;

enum { DESTROYS, IS_REVOKED, DROPS, DROPS_LATE };

static void wait_without_rank_1(uint32_t rank, void *context) {
    ending *e = context;
    int32_t *mine = calloc(COUNT, sizeof *mine), *sums = calloc(COUNT, sizeof *sums);
    if (mine == NULL || sums == NULL) abort();
    unsigned char *of_norm = untouched(4 * COUNT);
    epw_norm norm = norm_of(e->count / 8, 8, of_norm);
    epw_coll op = EPW_COLL_INIT;
    op.kind = EPW_ALL_REDUCE;
    op.type = EPW_TYPE_I32;
    op.count = e->count;
    if (e->normed) op = coll_of_norm(&norm);
    op.send = mine;
    op.recv = sums;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    if (rank == 1) {
        epw_work work;
        epw_call call = EPW_CALL_INIT;
        call.work = &work;
        if (e->how >= DROPS) {
            CHECK_OK(epw_group(e->c.of[1], &op, 1, &call, NULL));
            if (e->how == DROPS_LATE) usleep(20000);
            CHECK_OK(epw_work_drop(e->c.of[1], work));
            memset(mine, 0xff, COUNT * sizeof *mine);
            memset(sums, 0x5a, COUNT * sizeof *sums);
            memset(of_norm, 0x5a, 4 * COUNT);
            CHECK_OK(epw_barrier(e->c.of[1], NULL, &outcome));
            CHECK_MSG(!outcome.degraded, "missing %llx", (unsigned long long)outcome.missing.bits[0]);
            int bad = 0;
            for (int i = 0; i < COUNT; i++) bad += sums[i] != 0x5a5a5a5a;
            CHECK_MSG(bad == 0, "%d of a dropped buffer were written", bad);
            check_untouched(of_norm, 4 * COUNT, "a dropped norm");
        } else {
            usleep(20000);
            epw_mask mask = only(1);
            if (e->how == IS_REVOKED) {
                CHECK_OK(epw_comm_revoke(e->c.of[0], &mask));
                CHECK_OK(epw_comm_revoke(e->c.of[2], &mask));
            } else {
                epw_comm_destroy(e->c.of[1]);
                e->c.of[1] = NULL;
            }
        }
        free(mine);
        free(sums);
        free(of_norm);
        return;
    }
    uint64_t began = epw_now_ns();
    CHECK_OK(epw_group(e->c.of[rank], &op, 1, NULL, &outcome));
    if (outcome.degraded) check_untouched(of_norm, 4 * COUNT, "a norm without a sum");
    if (e->how < DROPS) {
        CHECK_MSG(epw_now_ns() - began < DEADLINE, "%llu ms",
                  (unsigned long long)((epw_now_ns() - began) / MS));
        CHECK(lacks(&outcome, 1) && !lacks(&outcome, 2 - rank));
    } else {
        /* Only the work is dropped: a rank that had not received its part by then lacks it, and never gets a
         * wrong sum. */
        int bad = 0;
        for (int i = 0; i < COUNT && !outcome.degraded; i++) bad += sums[i] != 0;
        CHECK_MSG(bad == 0, "%d wrong sums in a complete result", bad);
        CHECK_OK(epw_barrier(e->c.of[rank], NULL, &outcome));
        CHECK_MSG(!outcome.degraded, "rank %u, missing %llx, cause %u", rank,
                  (unsigned long long)outcome.missing.bits[0], outcome.record.cause);
    }
    free(mine);
    free(sums);
    free(of_norm);
}

static void ranks_that_end_early_are_missing_at_once(void) {
    for (uint32_t how = DESTROYS; how <= DROPS_LATE; how++) {
        for (int round = 0; round < 5; round++) {
            /* A small sum has all parts by the time it is dropped. */
            ending e = {
                .c = made(3), .how = how, .count = round == 3 ? SMALL : COUNT, .normed = round % 2 == 1};
            on_all(3, wait_without_rank_1, &e);
            if (how != DESTROYS) the_next_epoch_is_exact(&e.c, 2);
            close_comms(&e.c);
        }
    }
}

/* ---- a receive whose sender is gone, beside other calls ---- */

enum { ROUNDS = 24 }; /* six deadlines */

static void gather_beside_a_receive(uint32_t rank, void *context) {
    const comms *c = context;
    if (rank == 1) return;
    unsigned char never, own = 0, all[3];
    epw_work work = 0;
    epw_call call = EPW_CALL_INIT;
    call.work = &work;
    if (rank == 0) CHECK_OK(epw_recv(c->of[0], &never, 1, EPW_TYPE_U8, 1, 0, &call, NULL));
    epw_status status = EPW_PENDING;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_OK(epw_gather(c->of[rank], &own, all, 1, EPW_TYPE_U8, 2, NULL, NULL));
        usleep((useconds_t)(DEADLINE / 4000));
        if (rank == 0 && status == EPW_PENDING) status = epw_work_poll(c->of[0], work, &outcome);
    }
    if (rank == 0) CHECK_MSG(status == EPW_OK && lacks(&outcome, 1), "%s", epw_status_name(status));
}

static void a_receive_ends_though_other_calls_go_on(void) {
    comms c = made(3);
    on_all(3, gather_beside_a_receive, &c);
    close_comms(&c);
}

/* Rank 0 computes for two deadlines beside a receive, and rank 1 comes a little later than it. */
static void come_back_beside_a_receive(uint32_t rank, void *context) {
    const comms *c = context;
    unsigned char value = 7;
    epw_work work = 0;
    epw_call call = EPW_CALL_INIT;
    call.work = &work;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    if (rank == 0) CHECK_OK(epw_recv(c->of[0], &value, 1, EPW_TYPE_U8, 1, 0, &call, NULL));
    usleep((useconds_t)(2 * DEADLINE / 1000 + (rank == 1 ? DEADLINE / 8000 : 0)));
    CHECK_OK(epw_barrier(c->of[rank], NULL, &outcome));
    CHECK_MSG(!outcome.degraded, "rank %u, cause %u", rank, outcome.record.cause);
    if (rank == 1) CHECK_OK(epw_send(c->of[1], &value, 1, EPW_TYPE_U8, 0, 0, NULL, &outcome));
    if (rank == 0) CHECK_OK(epw_work_wait(c->of[0], work, UINT64_MAX, &outcome));
    CHECK_MSG(!outcome.degraded, "rank %u, cause %u", rank, outcome.record.cause);
}

static void a_rank_that_was_away_gives_nobody_up_at_once(void) {
    comms c = made(2);
    on_all(2, come_back_beside_a_receive, &c);
    close_comms(&c);
}

/* ---- what was dropped is a fault ---- */

static void takes_fault(const comms *c, uint32_t want, const char *what) {
    uint32_t faulted = 2;
    CHECK_OK(epw_comm_take_fault(c->of[0], &faulted));
    CHECK_MSG(faulted == want, "%s: %u", what, faulted);
}

static void join_dropped(uint32_t rank, void *context) {
    const comms *c = context;
    if (rank == 1) CHECK_OK(epw_barrier(c->of[1], NULL, NULL));
    CHECK_OK(epw_barrier(c->of[rank], NULL, NULL));
}

static void a_dropped_work_is_a_fault_once(void) {
    comms c = made(2);
    unsigned char never;
    epw_work work;
    epw_call call = EPW_CALL_INIT;
    call.work = &work;
    CHECK_OK(epw_recv(c.of[0], &never, 1, EPW_TYPE_U8, 1, 0, &call, NULL));
    CHECK_OK(epw_work_drop(c.of[0], work));
    takes_fault(&c, 1, "a receive without its message");
    CHECK_OK(epw_barrier(c.of[0], &call, NULL));
    takes_fault(&c, 0, "a barrier under way");
    CHECK_OK(epw_work_drop(c.of[0], work));
    takes_fault(&c, 1, "a dropped barrier");
    on_all(2, join_dropped, &c);
    takes_fault(&c, 0, "the barrier after it");
    close_comms(&c);
}

/* ---- epochs that begin at different steps ---- */

static void meet_another_step(uint32_t rank, void *context) {
    const comms *c = context;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_barrier(c->of[rank], NULL, &outcome));
    CHECK_MSG(lacks(&outcome, 1 - rank) && outcome.record.cause == EPW_CAUSE_STEP, "cause %u",
              outcome.record.cause);
}

static void members_of_different_steps_do_not_meet(void) {
    comms c = made(2);
    epw_mask all = all_of(2);
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_comm_set_active(c.of[r], &all, 2, r));
    on_all(2, meet_another_step, &c);
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_comm_set_active(c.of[r], &all, 3, 5));
    on_all(2, add_up, &c);
    close_comms(&c);
}

/* ---- sleeping while waiting for something that never comes ---- */

static void await_nobody(uint32_t rank, void *context) {
    const comms *c = context;
    if (rank == 1) return;
    epw_work work;
    epw_call call = EPW_CALL_INIT;
    call.work = &work;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_barrier(c->of[0], &call, NULL));
    uint64_t began = epw_now_ns();
    epw_status status;
    while ((status = epw_work_poll(c->of[0], work, &outcome)) == EPW_PENDING &&
           epw_now_ns() - began < 10 * DEADLINE)
        CHECK_OK(epw_work_await(c->of[0], work, 60000 * MS));
    CHECK_OK(status);
    CHECK_MSG(epw_now_ns() - began < DEADLINE + SLACK, "%llu ms",
              (unsigned long long)((epw_now_ns() - began) / MS));
    CHECK(lacks(&outcome, 1));
}

static void who_awaits_a_work_is_woken_by_its_deadline(void) {
    comms c = made(2);
    on_all(2, await_nobody, &c);
    close_comms(&c);
}

/* ---- who calls something else ---- */

typedef struct quarrel {
    comms c;
    epw_coll of[3]; /* the call of each rank; the buffers are added later */
    const char *words[2];
} quarrel;

static void meet(uint32_t rank, void *context) {
    const quarrel *q = context;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_barrier(q->c.of[rank], NULL, &outcome));
    CHECK(!outcome.degraded);
}

static unsigned char of_quarrels[4 * COUNT]; /* memory of norms that never come about */

static void call_otherwise(uint32_t rank, void *context) {
    const quarrel *q = context;
    static int32_t send[3][3 * COUNT], recv[3][3 * COUNT];
    epw_coll op = q->of[rank];
    bool in_place = op.kind == EPW_ALL_TO_ALL && op.recv_counts != NULL && op.send_counts == NULL;
    op.send = in_place ? recv[rank] : send[rank];
    op.recv = recv[rank];
    epw_status status = epw_group(q->c.of[rank], &op, 1, NULL, NULL);
    if (status == EPW_OK) status = epw_barrier(q->c.of[rank], NULL, NULL);
    CHECK_MSG(status == EPW_ERR_MISMATCH, "%s: %s", q->words[0], epw_status_name(status));
    check_untouched(of_quarrels, sizeof of_quarrels, "a norm whose ranks differ");
    for (int i = 0; i < 2; i++)
        CHECK_MSG(strstr(epw_last_error(), q->words[i]) != NULL, "%s lacks %s", epw_last_error(),
                  q->words[i]);
}

static epw_coll coll_like(uint32_t kind, uint32_t type, uint64_t count, uint32_t op, uint32_t root) {
    epw_coll c = EPW_COLL_INIT;
    c.kind = kind;
    c.type = type;
    c.count = count;
    c.op = op;
    c.peer = root;
    return c;
}

/* With these counts of its blocks; NULL: `count` each. */
static epw_coll uneven(uint32_t kind, const uint64_t *sent, const uint64_t *received) {
    epw_coll c = coll_like(kind, EPW_TYPE_I32, 8, EPW_SUM, 0);
    c.send_counts = sent;
    c.recv_counts = received;
    return c;
}

static void different_calls_are_named_on_every_rank(void) {
    static const uint64_t eights[] = {8, 8, 8}, first[] = {9, 8, 8}, last[] = {8, 8, 9}, none[] = {0, 8, 8},
                          much[] = {COUNT, COUNT, COUNT}, less[] = {COUNT, COUNT - 1, COUNT};
    memset(of_quarrels, 0x5a, sizeof of_quarrels);
    const epw_norm two = norm_of(2, 128, of_quarrels), three = norm_of(3, 128, of_quarrels),
                   four = norm_of(4, 64, of_quarrels), many = norm_of(COUNT / 8, 8, of_quarrels);
    epw_norm wide = two, quantised = two;
    wide.epsilon = 1e-5f;
    quantised.payload = EPW_PAYLOAD_FP8_F32;
    quantised.scales = of_quarrels;
    const epw_coll norm = coll_of_norm(&two);
    epw_coll of_halves = norm;
    of_halves.type = EPW_TYPE_F16;
    const epw_coll sum = coll_like(EPW_ALL_REDUCE, EPW_TYPE_I32, 8, EPW_SUM, 0);
    const struct {
        epw_coll usual, other;
        const char *words[2];
    } cases[] = {
        {sum, coll_like(EPW_ALL_REDUCE, EPW_TYPE_I32, 9, EPW_SUM, 0), {"all_reduce of 8 i32", "of 9 i32"}},
        {sum, coll_like(EPW_ALL_REDUCE, EPW_TYPE_U32, 8, EPW_SUM, 0), {"8 i32 (sum)", "8 u32 (sum)"}},
        {sum, coll_like(EPW_ALL_REDUCE, EPW_TYPE_I32, 8, EPW_MAX, 0), {"(sum)", "(max)"}},
        {sum, coll_like(EPW_ALL_GATHER, EPW_TYPE_I32, 8, 0, 0), {"all_reduce of 8", "all_gather of 8"}},
        {sum, coll_like(EPW_BARRIER, 0, 0, 0, 0), {"all_reduce of 8", "barrier"}},
        {sum, coll_like(EPW_ALL_REDUCE, EPW_TYPE_I32, 0, EPW_SUM, 0), {"all_reduce of 8", "all_reduce of 0"}},
        {coll_like(EPW_ALL_GATHER, EPW_TYPE_I32, COUNT, 0, 0),
         coll_like(EPW_ALL_GATHER, EPW_TYPE_I32, 0, 0, 0),
         {"all_gather of 40000", "all_gather of 0"}},
        {coll_like(EPW_ALL_REDUCE, EPW_TYPE_I32, COUNT, EPW_SUM, 0),
         coll_like(EPW_REDUCE_SCATTER, EPW_TYPE_I32, COUNT, EPW_SUM, 0),
         {"all_reduce of 40000", "reduce_scatter of 40000"}},
        /* If roots differ, some ranks are done, and others wait for something that never comes: a later call
         * shows it. */
        {coll_like(EPW_REDUCE, EPW_TYPE_I32, 8, EPW_SUM, 0),
         coll_like(EPW_REDUCE, EPW_TYPE_I32, 8, EPW_SUM, 1),
         {"reduce of 8 i32 (sum) of root 0", "reduce of 8 i32 (sum) of root 1"}},
        {coll_like(EPW_BROADCAST, EPW_TYPE_I32, 8, 0, 0),
         coll_like(EPW_BROADCAST, EPW_TYPE_I32, 8, 0, 2),
         {"broadcast of 8 i32 of root 0", "broadcast of 8 i32 of root 2"}},
        {coll_like(EPW_GATHER, EPW_TYPE_I32, COUNT, 0, 2),
         coll_like(EPW_GATHER, EPW_TYPE_I32, COUNT, 0, 1),
         {"gather of 40000 i32 of root 2", "gather of 40000 i32 of root 1"}},
        {coll_like(EPW_SCATTER, EPW_TYPE_I32, 8, 0, 1),
         coll_like(EPW_SCATTER, EPW_TYPE_I32, 8, 0, 0),
         {"scatter of 8 i32 of root 1", "scatter of 8 i32 of root 0"}},
        /* Of uneven blocks each pair of ranks compares its own. In all_to_all what one sends is compared with
         * what the other expects of it. */
        {uneven(EPW_ALL_TO_ALL, eights, eights),
         uneven(EPW_ALL_TO_ALL, eights, first),
         {"all_to_all of 8 i32 for this pair", "all_to_all of 9 i32 for this pair"}},
        {uneven(EPW_ALL_TO_ALL, eights, eights),
         uneven(EPW_ALL_TO_ALL, first, eights),
         {"all_to_all of 8 i32 for this pair", "all_to_all of 9 i32 for this pair"}},
        {uneven(EPW_ALL_TO_ALL, eights, eights),
         uneven(EPW_ALL_TO_ALL, none, eights),
         {"all_to_all of 8 i32 for this pair", "rank 2"}}, /* which may be in its barrier */
        {uneven(EPW_ALL_TO_ALL, much, much),
         uneven(EPW_ALL_TO_ALL, less, much),
         {"of 40000 i32 for this pair", "of 39999 i32 for this pair"}},
        /* In place one count is both. */
        {uneven(EPW_ALL_TO_ALL, NULL, eights),
         uneven(EPW_ALL_TO_ALL, NULL, first),
         {"all_to_all of 8 i32 for this pair", "all_to_all of 9 i32"}},
        {uneven(EPW_ALL_TO_ALL, NULL, much),
         uneven(EPW_ALL_TO_ALL, NULL, less),
         {"of 40000 i32 for this pair", "of 39999 i32 for this pair"}},
        {uneven(EPW_ALL_TO_ALL, NULL, eights),
         uneven(EPW_ALL_TO_ALL, NULL, none),
         {"all_to_all of 8 i32 for this pair", "rank 2"}}, /* which may be in its barrier */
        {uneven(EPW_ALL_GATHER, NULL, eights),
         uneven(EPW_ALL_GATHER, NULL, last),
         {"all_gather of 8 i32 for this pair", "all_gather of 9 i32 for this pair"}},
        {uneven(EPW_ALL_GATHER, NULL, eights),
         uneven(EPW_ALL_GATHER, NULL, first),
         {"all_gather of 8 i32 for this pair", "all_gather of 9 i32 for this pair"}},
        {uneven(EPW_ALL_GATHER, NULL, much),
         uneven(EPW_ALL_GATHER, NULL, less),
         {"of 40000 i32 for this pair", "of 39999 i32 for this pair"}},
        {uneven(EPW_REDUCE_SCATTER, eights, NULL),
         uneven(EPW_REDUCE_SCATTER, last, NULL),
         {"reduce_scatter of 8 i32 (sum) for this pair", "reduce_scatter of 9 i32 (sum) for this pair"}},
        {uneven(EPW_GATHER, NULL, eights),
         uneven(EPW_GATHER, NULL, last),
         {"gather of 8 i32 of root 0 for this pair", "gather of 9 i32 of root 0 for this pair"}},
        {uneven(EPW_SCATTER, eights, NULL),
         uneven(EPW_SCATTER, last, NULL),
         {"scatter of 8 i32 of root 0 for this pair", "scatter of 9 i32 of root 0 for this pair"}},
        {norm, coll_of_norm(&three), {"all_reduce_norm of 2 rows of 128 bf16", "of 3 rows of 128 bf16"}},
        {norm, coll_of_norm(&four), {"2 rows of 128 bf16", "4 rows of 64 bf16"}},
        {norm, coll_of_norm(&wide), {"epsilon 1e-06", "epsilon 1e-05"}},
        {norm, coll_of_norm(&quantised), {"epsilon 1e-06 on", "epsilon 1e-06, to fp8 with f32 scales"}},
        {norm, of_halves, {"2 rows of 128 bf16", "2 rows of 128 f16"}},
        {norm,
         coll_like(EPW_ALL_REDUCE, EPW_TYPE_BF16, 256, EPW_SUM, 0),
         {"all_reduce_norm of 2 rows", "all_reduce of 256 bf16 (sum)"}},
        {coll_like(EPW_ALL_REDUCE, EPW_TYPE_BF16, COUNT, EPW_SUM, 0),
         coll_of_norm(&many),
         {"all_reduce of 40000 bf16 (sum)", "all_reduce_norm of 5000 rows of 8 bf16"}},
    };
    /* At once, and again after all have communicated: then ranks know whose memory they can read, and lend
     * large buffers. */
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof cases[0]); i++) {
        quarrel q = {.c = made(3),
                     .of = {cases[i / 2].usual, cases[i / 2].usual, cases[i / 2].other},
                     .words = {cases[i / 2].words[0], cases[i / 2].words[1]}};
        if (i % 2 == 1) on_all(3, meet, &q);
        on_all(3, call_otherwise, &q);
        the_next_epoch_is_exact(&q.c, 2);
        close_comms(&q.c);
    }
}

/* A rank without elements gives nothing and returns at once; those that wait for it, or for it to read, are
 * told by name what it has called. */
typedef struct without {
    comms c;
    uint32_t kind, rank, waiting; /* the one without elements, and a bit for each that waits for it */
    uint64_t count;
    pthread_barrier_t *left;
} without;

static void call_without_elements(uint32_t rank, void *context) {
    const without *w = context;
    static int32_t send[3][3 * COUNT], recv[3][3 * COUNT];
    epw_coll op = coll_like(w->kind, EPW_TYPE_I32, rank == w->rank ? 0 : w->count, EPW_SUM, 0);
    op.send = send[rank];
    op.recv = recv[rank];
    epw_status status = epw_group(w->c.of[rank], &op, 1, NULL, NULL);
    const bool waits = w->waiting >> rank & 1;
    CHECK_MSG(status == EPW_ERR_MISMATCH || (status == EPW_OK && !waits),
              "kind %u, rank %u without elements, %llu with the others: rank %u, status %d, '%s'", w->kind,
              w->rank, (unsigned long long)w->count, rank, status, epw_last_error());
    if (status == EPW_OK) return;
    char words[64];
    const char *name = epw_kind_name(w->kind);
    snprintf(words, sizeof words, "%s of 0 i32", name);
    CHECK_MSG(strstr(epw_last_error(), words) != NULL, "'%s' does not say '%s'", epw_last_error(), words);
    snprintf(words, sizeof words, "%s of %llu i32", name, (unsigned long long)w->count);
    CHECK_MSG(strstr(epw_last_error(), words) != NULL, "'%s' does not say '%s'", epw_last_error(), words);
}

static void a_rank_without_elements_is_named(void) {
    static const struct {
        uint32_t kind, rank;
        uint64_t count;
        uint32_t waiting;
    } cases[] = {
        {EPW_ALL_REDUCE, 2, COUNT, 3}, {EPW_ALL_REDUCE, 0, SMALL, 6}, {EPW_REDUCE_SCATTER, 2, SMALL, 3},
        {EPW_ALL_GATHER, 2, COUNT, 3}, {EPW_ALL_TO_ALL, 2, SMALL, 3}, {EPW_REDUCE, 2, COUNT, 1}, /* root 0 */
        {EPW_GATHER, 2, SMALL, 1},     {EPW_BROADCAST, 0, COUNT, 6},  {EPW_SCATTER, 0, SMALL, 6},
        {EPW_BROADCAST, 2, SMALL, 0}, /* it is told of something that it does not await */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        without w = {made(3), cases[i].kind, cases[i].rank, cases[i].waiting, cases[i].count, NULL};
        on_all(3, call_without_elements, &w);
        the_next_epoch_is_exact(&w.c, 2);
        close_comms(&w.c);
    }
}

/* A root without elements leaves before the others call: they still learn what it has called. */
static void leave_without_elements(uint32_t rank, void *context) {
    const without *w = context;
    static int32_t send[3][COUNT], recv[3][COUNT];
    if (rank != w->rank) pthread_barrier_wait(w->left);
    epw_coll op = coll_like(EPW_REDUCE, EPW_TYPE_I32, rank == w->rank ? 0 : w->count, EPW_SUM, w->rank);
    op.send = send[rank];
    op.recv = recv[rank];
    epw_status status = epw_group(w->c.of[rank], &op, 1, NULL, NULL);
    if (rank == w->rank) {
        CHECK_OK(status);
        epw_comm_destroy(w->c.of[rank]);
        pthread_barrier_wait(w->left);
        pthread_barrier_wait(w->left);
    } else {
        pthread_barrier_wait(w->left);
        CHECK_MSG(status == EPW_ERR_MISMATCH && strstr(epw_last_error(), "reduce of 0 i32") != NULL,
                  "rank %u: status %d, '%s'", rank, status, epw_last_error());
    }
}

static void a_rank_without_elements_that_left_is_named(void) {
    pthread_barrier_t left;
    pthread_barrier_init(&left, NULL, 3);
    without w = {made(3), EPW_REDUCE, 0, 0, COUNT, &left};
    on_all(3, leave_without_elements, &w);
    for (uint32_t r = 1; r < 3; r++) epw_comm_destroy(w.c.of[r]);
    pthread_barrier_destroy(&left);
}

/* Calls in which nobody has an element, more of them than a ring has slots: nobody is held up, and all are in
 * order. */
static void call_nothing_often(uint32_t rank, void *context) {
    const comms *c = context;
    enum { KINDS = EPW_SCATTER + 1, ROUNDS = 5 };
    int32_t mine[3] = {1, 2, 3}, sums[3];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t kind = 0; kind < 8 * KINDS; kind++) {
            epw_coll op = coll_like(kind % KINDS, EPW_TYPE_I32, 0, EPW_SUM, kind % 3);
            op.count = 0;
            epw_outcome outcome = EPW_OUTCOME_INIT;
            CHECK_OK(epw_group(c->of[rank], &op, 1, NULL, &outcome));
            CHECK(!outcome.degraded);
        }
        CHECK_OK(epw_all_reduce(c->of[rank], mine, sums, 3, EPW_TYPE_I32, EPW_SUM, NULL, NULL));
        CHECK(sums[0] == 3 && sums[1] == 6 && sums[2] == 9);
    }
}

static void calls_without_elements_hold_nobody_up(void) {
    comms c = made(3);
    on_all(3, call_nothing_often, &c);
    close_comms(&c);
}

/* Operations that a mismatch has ended are not ended again before their caller asks for them. Rank 1 calls
 * another operation once rank 0 has begun two. */
typedef struct twice {
    comms c;
    pthread_barrier_t begun;
} twice;

static void quarrel_once(uint32_t rank, void *context) {
    twice *t = context;
    epw_comm *comm = t->c.of[rank];
    int32_t mine[9] = {0}, sums[9];
    if (rank == 1) {
        pthread_barrier_wait(&t->begun);
        CHECK(epw_all_reduce(comm, mine, sums, 9, EPW_TYPE_I32, EPW_SUM, NULL, NULL) == EPW_ERR_MISMATCH);
        return;
    }
    epw_work works[2];
    for (uint32_t i = 0; i < 2; i++) {
        epw_call call = EPW_CALL_INIT;
        call.work = &works[i];
        CHECK_OK(epw_all_reduce(comm, mine, sums, 8, EPW_TYPE_I32, EPW_SUM, &call, NULL));
    }
    pthread_barrier_wait(&t->begun);
    CHECK(epw_work_wait(comm, works[0], UINT64_MAX, NULL) == EPW_ERR_MISMATCH);
    uint64_t spoke = comm->of[1].spoke; /* when a word was last posted to rank 1 */
    CHECK(epw_work_wait(comm, works[1], UINT64_MAX, NULL) == EPW_ERR_MISMATCH);
    CHECK(comm->of[1].spoke == spoke);
}

static void a_mismatch_ends_what_is_under_way_once(void) {
    twice t = {.c = made(2)};
    pthread_barrier_init(&t.begun, NULL, 2);
    on_all(2, quarrel_once, &t);
    pthread_barrier_destroy(&t.begun);
    the_next_epoch_is_exact(&t.c, 2);
    close_comms(&t.c);
}

/* ---- a rank without memory ---- */

static _Thread_local bool lacks_memory;

/* Replaces the C library's function, from which only the memory of a fold comes. */
void *aligned_alloc(size_t alignment, size_t bytes) {
    void *memory = NULL;
    return lacks_memory || posix_memalign(&memory, alignment, bytes) != 0 ? NULL : memory;
}

static void reduce_without_memory(uint32_t rank, void *context) {
    const scene *s = context;
    int32_t *mine = calloc(s->count, sizeof *mine), *sums = malloc(s->count * sizeof *sums);
    if (mine == NULL || sums == NULL) abort();
    epw_outcome outcome = EPW_OUTCOME_INIT;
    lacks_memory = rank == 0;
    epw_status status =
        epw_all_reduce(s->c.of[rank], mine, sums, s->count, EPW_TYPE_I32, EPW_SUM, NULL, &outcome);
    lacks_memory = false;
    if (rank == 0) {
        CHECK_MSG(status == EPW_ERR_NO_MEMORY, "%s", epw_last_error());
    } else {
        CHECK_OK(status);
        CHECK_MSG(
            lacks(&outcome, 0) && !lacks(&outcome, 3 - rank) && outcome.record.cause == EPW_CAUSE_PARTIAL,
            "missing %llx, cause %u", (unsigned long long)outcome.missing.bits[0], outcome.record.cause);
    }
    CHECK_OK(epw_barrier(s->c.of[rank], NULL, &outcome));
    CHECK_MSG(!outcome.degraded, "rank %u lacks %llx", rank, (unsigned long long)outcome.missing.bits[0]);
    free(mine);
    free(sums);
}

static void a_rank_without_memory_is_missing(void) {
    static const uint64_t counts[] = {SMALL, COUNT};
    for (uint32_t i = 0; i < 2; i++) {
        scene s = {.c = made(3), .count = counts[i]};
        on_all(3, reduce_without_memory, &s);
        on_all(3, add_up, &s.c);
        close_comms(&s.c);
    }
}

int main(void) {
    static void (*const tests[])(void) = {
        a_rank_that_never_calls_is_missing,      who_has_given_its_part_is_not_suspected,
        what_came_before_a_farewell_counts,      last_words_count_also_between_two_looks,
        a_farewell_ends_each_channel_by_itself,  ranks_that_end_early_are_missing_at_once,
        members_of_different_steps_do_not_meet,  who_awaits_a_work_is_woken_by_its_deadline,
        different_calls_are_named_on_every_rank, a_mismatch_ends_what_is_under_way_once,
        a_rank_without_memory_is_missing,        a_receive_ends_though_other_calls_go_on,
        a_dropped_work_is_a_fault_once,          a_rank_that_was_away_gives_nobody_up_at_once,
        a_rank_without_elements_is_named,        a_rank_without_elements_that_left_is_named,
        calls_without_elements_hold_nobody_up,
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        slower = times_slower() * times_busier();
        KEEP_TIME(tests[i]());
    }
    return check_result("comm_failures");
}
