/* Prefill when a rank fails: it stops in the middle of a dispatch or combine, gives one up, or is killed or
 * stopped as a process, at random points. Every other rank ends in time, its rows are right, the places of a
 * lost source are empty, each sum says whom it lacks, and the next membership is clean. */
#include "prefills.h"

#include "base/bits.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ALL = 4, VICTIM = 2, N = 24, WIDTH = 64, LOCAL = 3, K = 3, CAPACITY = ALL * N * K + LOCAL * 8 };

/* Long enough for a rank that this machine does not run for a while. Over queues connecting takes as long. */
static uint64_t deadline(void) {
    return longer * (path_of_test() == EPW_PATH_QUEUE ? 500 : 150) * MS;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static epw_prefill_config config_for(uint32_t ring) {
    epw_prefill_config c = EPW_PREFILL_CONFIG_INIT;
    c.ring_tokens = ring;
    c.ep.ranks = ALL;
    c.ep.max_tokens = N;
    c.ep.hidden = WIDTH;
    c.ep.experts = ALL * LOCAL;
    c.ep.topk = K;
    c.ep.lanes = 1;
    c.ep.threads = 1;
    c.ep.deadline_ns = deadline();
    return c;
}

/* Sums in the order of the top-k, whose experts lie beside each other: a rank has several answers to a token,
 * of which it may send some and not the others. Otherwise each is on a rank of its own. */
static bool ordered; /* set before threads are started */

/* Then the victim has no tokens of its own, for whose answers the others would wait for room. */
static uint32_t tokens_of(uint32_t rank) {
    return ordered && rank == VICTIM ? 0 : N;
}

static int32_t id_of(uint32_t rank, uint32_t t, uint32_t j) {
    return (int32_t)((rank + t * 5 + j * (ordered ? 1 : 4)) % (ALL * LOCAL));
}

/* ---- what a rank sends, and how it checks what arrives ---- */

typedef struct worker {
    epw_prefill *prefill;
    epw_routing *routing;
    uint32_t rank, polls;
    bool combines; /* the fault is in the combine */
    bool cancels;
    bool complete[2];
    uint64_t took;
    _Alignas(64) uint16_t x[N * WIDTH], rows[CAPACITY * WIDTH], sums[N * WIDTH];
    int32_t ids[N * K], row_source[CAPACITY], row_token[CAPACITY], row_expert[CAPACITY];
    float weights[N * K];
    uint32_t source_counts[ALL], counts[LOCAL], lacks[N];
    uint16_t contributions[N * 2];
} worker;

static uint16_t pattern(uint32_t rank, uint32_t token, uint32_t c) {
    return bf16((float)(1 + (rank * 5 + token + c) % 16));
}

static void fill(worker *w) {
    for (uint32_t t = 0; t < N; t++) {
        for (uint32_t c = 0; c < WIDTH; c++) w->x[t * WIDTH + c] = pattern(w->rank, t, c);
        for (uint32_t j = 0; j < K; j++) {
            w->ids[t * K + j] = id_of(w->rank, t, j);
            w->weights[t * K + j] = 1.0f;
        }
    }
}

static epw_status begin_dispatch(worker *w, bool nonblocking, epw_outcome *outcome) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    in.tokens = tokens_of(w->rank);
    in.x = w->x;
    in.topk_idx = w->ids;
    in.topk_weights = w->weights;
    in.topk = K;
    in.nonblocking = nonblocking;
    out.alignment = 8;
    out.capacity = CAPACITY;
    out.rows = w->rows;
    out.row_source = w->row_source;
    out.row_token = w->row_token;
    out.row_expert = w->row_expert;
    out.counts = w->counts;
    out.source_counts = w->source_counts;
    return epw_prefill_dispatch(w->prefill, w->routing, &in, 0, 0, &out, outcome);
}

static epw_status begin_combine(worker *w, bool nonblocking, epw_outcome *outcome) {
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    in.expert_out = w->rows;
    in.mode = ordered ? EPW_COMBINE_ORDERED : EPW_COMBINE_RANK_REDUCED;
    in.nonblocking = nonblocking;
    out.out = w->sums;
    out.lacks = w->lacks;
    out.contributions = w->contributions;
    return epw_prefill_combine(w->prefill, w->routing, &in, &out, outcome);
}

/* How many tokens of `source` go to `rank`. */
static uint32_t tokens_to(uint32_t source, uint32_t rank) {
    uint32_t tokens = 0;
    for (uint32_t t = 0; t < tokens_of(source); t++) {
        bool any = false;
        for (uint32_t j = 0; j < K; j++) any |= (uint32_t)id_of(source, t, j) / LOCAL == rank;
        tokens += any;
    }
    return tokens;
}

static void check_rows(const worker *w, const epw_outcome *outcome) {
    uint32_t of[ALL] = {0};
    for (uint32_t place = 0; place < CAPACITY; place++) {
        int32_t s = w->row_source[place], t = w->row_token[place];
        CHECK((s < 0) == (t < 0) && (s < 0) == (w->row_expert[place] < 0));
        if (s < 0) continue;
        of[s]++;
        CHECK_MSG(!epw_mask_has(&outcome->missing, (uint32_t)s),
                  "rank %u has rows of rank %d, which is missing", w->rank, s);
        for (uint32_t c = 0; c < WIDTH; c++)
            CHECK(w->rows[place * WIDTH + c] == pattern((uint32_t)s, (uint32_t)t, c));
    }
    for (uint32_t s = 0; s < ALL; s++) {
        bool lost = epw_mask_has(&outcome->missing, s);
        uint32_t want = lost ? 0 : tokens_to(s, w->rank);
        CHECK_MSG(w->source_counts[s] == want || w->source_counts[s] == 0,
                  "rank %u: %u rows of rank %u, not %u", w->rank, w->source_counts[s], s, want);
        if (w->source_counts[s] == 0) CHECK(of[s] == 0);
    }
}

static void check_sums(const worker *w) {
    for (uint32_t t = 0; t < tokens_of(w->rank); t++) {
        uint32_t arrived = 0;
        for (uint32_t j = 0; j < K; j++) arrived += !(w->lacks[t] >> (w->ids[t * K + j] / LOCAL) & 1);
        bool some = ordered && w->contributions[2 * t] > arrived && arrived < K; /* of a rank that it lacks */
        CHECK_MSG(some || w->contributions[2 * t] == arrived, "rank %u, token %u: %u arrived, not %u",
                  w->rank, t, w->contributions[2 * t], arrived);
        for (uint32_t c = 0; c < WIDTH; c++) {
            float want = (float)w->contributions[2 * t] * from_bf16(w->x[t * WIDTH + c]);
            CHECK(from_bf16(w->sums[t * WIDTH + c]) == want);
        }
    }
}

/* Polls so often, then stops for good or gives the operation up. True: the operation has ended before
 * that. */
static bool poll_for(worker *w, epw_status status, epw_outcome *outcome) {
    for (uint32_t i = 0; i < w->polls && status == EPW_PENDING; i++) {
        nanosleep(&(struct timespec){0, 20000}, NULL);
        status = epw_prefill_poll(w->prefill, w->routing, outcome);
    }
    if (status == EPW_PENDING && w->cancels) CHECK_OK(epw_prefill_cancel(w->prefill, w->routing));
    return status == EPW_OK;
}

/* The first round, in which the victim fails: a dispatch, and a combine if the fault is there. */
static void *trouble(void *argument) {
    worker *w = argument;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    uint64_t began = now_ns();
    bool victim = w->rank == VICTIM;
    if (victim && !w->combines) {
        if (poll_for(w, begin_dispatch(w, true, &outcome), &outcome)) check_rows(w, &outcome);
        return NULL;
    }
    CHECK_OK(begin_dispatch(w, false, &outcome));
    check_rows(w, &outcome);
    w->took = now_ns() - began;
    if (!w->combines) return NULL;
    if (victim) {
        if (poll_for(w, begin_combine(w, true, &outcome), &outcome)) check_sums(w);
        return NULL;
    }
    CHECK_OK(begin_combine(w, false, &outcome));
    check_sums(w);
    w->took = now_ns() - began;
    return NULL;
}

/* A round without faults. */
static void *calm(void *argument) {
    worker *w = argument;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(begin_dispatch(w, false, &outcome));
    check_rows(w, &outcome);
    w->complete[0] = !outcome.degraded;
    CHECK_OK(begin_combine(w, false, &outcome));
    check_sums(w);
    w->complete[1] = !outcome.degraded;
    return NULL;
}

static void *trouble_then_calm(void *argument) {
    trouble(argument);
    return calm(argument);
}

/* ---- threads ---- */

static worker workers[ALL];

static void begin_workers(const prefills *g, uint32_t polls, bool combines, bool cancels) {
    memset(workers, 0, sizeof workers);
    for (uint32_t r = 0; r < ALL; r++) {
        workers[r].prefill = g->of[r];
        workers[r].rank = r;
        workers[r].polls = polls;
        workers[r].combines = combines;
        workers[r].cancels = cancels;
        fill(&workers[r]);
        CHECK_OK(epw_routing_create(g->of[r], &workers[r].routing));
    }
}

static void end_workers(const prefills *g) {
    for (uint32_t r = 0; r < ALL; r++) epw_routing_free(workers[r].routing);
    destroy_prefills(g);
}

/* The victim stops after this many polls; the others continue without it, in this epoch and in the next. */
static void a_rank_that_stops_is_given_up(uint32_t ring, uint32_t polls, bool combines) {
    epw_prefill_config config = config_for(ring);
    prefills g = make_prefills(&config);
    begin_workers(&g, polls, combines, false);
    on_all_ranks(ALL, trouble, workers, sizeof workers[0]);
    epw_mask others = first_ranks(ALL);
    others.bits[0] &= ~(UINT64_C(1) << VICTIM);
    pthread_t threads[ALL];
    for (uint32_t r = 0; r < ALL; r++) {
        if (r == VICTIM) continue;
        CHECK_MSG(workers[r].took < 16 * deadline(), "%llu ns", (unsigned long long)workers[r].took);
        CHECK_OK(epw_prefill_set_active(g.of[r], &others, 2, 0));
    }
    for (uint32_t r = 0; r < ALL; r++)
        if (r != VICTIM) CHECK(pthread_create(&threads[r], NULL, calm, &workers[r]) == 0);
    for (uint32_t r = 0; r < ALL; r++) {
        if (r == VICTIM) continue;
        pthread_join(threads[r], NULL);
        CHECK_MSG(workers[r].complete[0] && workers[r].complete[1], "rank %u in the next epoch", r);
    }
    end_workers(&g);
}

/* The victim gives its operation up after this many polls: the next one has all ranks again. */
static void a_rank_that_gives_up_takes_part_again(uint32_t ring, uint32_t polls, bool combines) {
    epw_prefill_config config = config_for(ring);
    config.ep.deadline_ns = 20000 * MS;
    prefills g = make_prefills(&config);
    begin_workers(&g, polls, combines, true);
    on_all_ranks(ALL, trouble_then_calm, workers, sizeof workers[0]);
    for (uint32_t r = 0; r < ALL; r++)
        CHECK_MSG(workers[r].complete[0] && workers[r].complete[1], "ring %u, %u polls: rank %u after that",
                  ring, polls, r);
    end_workers(&g);
}

/* Whether anything was incomplete since the last such question; asked again at once, nothing was. */
static bool had_fault(const worker *w) {
    uint32_t faulted = 2, again = 2;
    CHECK_OK(epw_prefill_take_fault(w->prefill, &faulted));
    CHECK_OK(epw_prefill_take_fault(w->prefill, &again));
    CHECK_MSG(faulted < 2 && again == 0, "faulted is %u, then %u", faulted, again);
    return faulted == 1;
}

/* The others know from the start that the victim does not come, then continue without it. */
static void what_is_incomplete_is_a_fault_once(void) {
    epw_prefill_config config = config_for(8);
    config.ep.deadline_ns = 20000 * MS;
    prefills g = make_prefills(&config);
    epw_mask victim = {{UINT64_C(1) << VICTIM}}, others = first_ranks(ALL);
    others.bits[0] &= ~victim.bits[0];
    begin_workers(&g, 0, false, false);
    for (uint32_t r = 0; r < ALL; r++)
        if (r != VICTIM) CHECK_OK(epw_prefill_revoke(g.of[r], &victim));
    for (uint32_t epoch = 1; epoch <= 2; epoch++) {
        pthread_t threads[ALL];
        for (uint32_t r = 0; r < ALL; r++) {
            if (r == VICTIM) continue;
            if (epoch == 2) CHECK_OK(epw_prefill_set_active(g.of[r], &others, epoch, 0));
            CHECK_MSG(!had_fault(&workers[r]), "rank %u before epoch %u", r, epoch);
        }
        for (uint32_t r = 0; r < ALL; r++)
            if (r != VICTIM) CHECK(pthread_create(&threads[r], NULL, calm, &workers[r]) == 0);
        for (uint32_t r = 0; r < ALL; r++) {
            if (r == VICTIM) continue;
            pthread_join(threads[r], NULL);
            CHECK(workers[r].complete[0] == (epoch == 2) && workers[r].complete[1] == (epoch == 2));
        }
        for (uint32_t r = 0; r < ALL; r++)
            if (r != VICTIM) CHECK_MSG(had_fault(&workers[r]) == (epoch == 1), "rank %u, epoch %u", r, epoch);
    }
    end_workers(&g);
}

/* ---- processes ---- */

/* Shared by the processes: blobs, and the progress of each. */
typedef struct shared {
    unsigned char blobs[ALL][ALL][EPW_BLOB_MAX];
    size_t lengths[ALL][ALL];
    atomic_uint here[5]; /* ranks that have reached each meeting point */
    atomic_uint ended;   /* of the others, without a failed check */
} shared;

/* Returns false if a rank does not come, which has failed. */
static bool await_ranks(shared *s, uint32_t at, uint32_t ranks) {
    uint64_t end = now_ns() + 30000 * MS;
    while (atomic_load(&s->here[at]) < ranks) {
        if (now_ns() > end) return false;
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return true;
}
static void meet(shared *s, uint32_t at, uint32_t ranks) {
    atomic_fetch_add(&s->here[at], 1);
    CHECK_MSG(await_ranks(s, at, ranks), "%u of %u ranks at point %u", atomic_load(&s->here[at]), ranks, at);
}

/* Runs operations until one lacks the victim, then a membership without it. */
static void run_process(shared *s, uint32_t rank, uint32_t ring) {
    static worker w;
    epw_prefill_config config = config_for(ring);
    config.ep.rank = rank;
    config.ep.deadline_ns = 2 * deadline();
    epw_fabric *fabric; /* ends with the process */
    take_path(&config.ep, &fabric);
    CHECK_OK(epw_prefill_create(&config, &w.prefill));
    for (uint32_t p = 0; p < ALL; p++)
        if (p != rank) CHECK_OK(epw_prefill_export(w.prefill, p, s->blobs[rank][p], &s->lengths[rank][p]));
    meet(s, 0, ALL);
    for (uint32_t p = 0; p < ALL; p++)
        if (p != rank) CHECK_OK(epw_prefill_connect(w.prefill, p, s->blobs[p][rank], s->lengths[p][rank]));
    meet(s, 1, ALL);
    epw_mask all = first_ranks(ALL);
    CHECK_OK(epw_prefill_set_active(w.prefill, &all, 1, 0));
    w.rank = rank;
    fill(&w);
    CHECK_OK(epw_routing_create(w.prefill, &w.routing));
    meet(s, 2, ALL);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    /* Ends: the victim is killed or stopped, or an operation is refused. */
    for (bool lost = false; !lost && atomic_load(&checks_failed) == 0;) {
        CHECK_OK(begin_dispatch(&w, false, &outcome));
        check_rows(&w, &outcome);
        lost = outcome.degraded;
        CHECK_OK(begin_combine(&w, false, &outcome));
        check_sums(&w);
        lost |= outcome.degraded;
    }
    all.bits[0] &= ~(UINT64_C(1) << VICTIM);
    meet(s, 3, ALL - 1);
    CHECK_OK(epw_prefill_set_active(w.prefill, &all, 2, 0));
    for (uint32_t i = 0; i < 3; i++) {
        calm(&w);
        CHECK(w.complete[0] && w.complete[1]);
    }
    /* What a process has not sent by queues when it ends, is lost. */
    meet(s, 4, ALL - 1);
    epw_routing_free(w.routing);
    if (atomic_load(&checks_failed) == 0) atomic_fetch_add(&s->ended, 1);
}

static void a_process_that_fails_is_given_up(int trouble_signal, uint32_t ring, uint32_t after_us) {
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[ALL];
    for (uint32_t r = 0; r < ALL; r++) {
        pids[r] = fork();
        if (pids[r] != 0) continue;
        run_process(s, r, ring);
        _exit(0); /* windows that are still read go with the last rank that reads them */
    }
    await_ranks(s, 2, ALL);
    nanosleep(&(struct timespec){0, (long)after_us * 1000}, NULL);
    kill(pids[VICTIM], trouble_signal);
    for (uint32_t r = 0; r < ALL; r++)
        if (r != VICTIM) waitpid(pids[r], NULL, 0);
    kill(pids[VICTIM], SIGKILL);
    waitpid(pids[VICTIM], NULL, 0);
    CHECK_MSG(atomic_load(&s->ended) == ALL - 1,
              "signal %d, ring %u, after %u us: %u ranks continued correctly", trouble_signal, ring, after_us,
              atomic_load(&s->ended));
    munmap(s, sizeof *s);
}

int main(void) {
    what_is_incomplete_is_a_fault_once();
    static const uint32_t rings[] = {1, 2, 8};
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t ring = rings[i % 3], polls = i / 6 * 3 + i % 2;
        KEEP_TIME(a_rank_that_stops_is_given_up(ring, polls, i / 3 % 2));
        a_rank_that_gives_up_takes_part_again(ring, polls, i / 3 % 2);
    }
    /* Over queues each takes seconds, because the deadline is longer. */
    bool queued = path_of_test() == EPW_PATH_QUEUE;
    ordered = true;
    for (uint32_t i = 0; i < 6; i += queued ? 3 : 1)
        KEEP_TIME(a_rank_that_stops_is_given_up(3 + i % 2, i, true));
    ordered = false;
    for (uint32_t i = 0; i < 12; i += queued ? 7 : 1)
        KEEP_TIME(a_process_that_fails_is_given_up(i % 2 ? SIGKILL : SIGSTOP, 1u << i % 4, 500 + i * 777));
    return check_result("prefill_failures");
}
