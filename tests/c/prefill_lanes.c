/* Two lanes of a prefill buffer: an operation that waits on one holds up none on the other, in whatever order
 * ranks begin; and a peer that one lane has given up is given up on the other one, and told there, even if
 * nothing runs on it. */
#include "prefills.h"

#include "base/bits.h"

#include <sched.h>
#include <stdbool.h>

enum { ALL = 4, LANES = 2, N = 6, WIDTH = 64, CAPACITY = ALL * N };

/* Such a wait does not end by itself while the test is patient. */
#define LONG     (UINT64_C(12000) * MS)
#define PATIENCE (LONG / 2)

/* One that is meant to expire. Over queues connecting takes as long. */
static uint64_t deadline(void) {
    return (path_of_test() == EPW_PATH_QUEUE ? 500 : 150) * MS;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static epw_prefill_config config_for(uint32_t ranks, uint32_t ring, uint64_t deadline_ns) {
    epw_prefill_config c = EPW_PREFILL_CONFIG_INIT;
    c.ring_tokens = ring;
    c.ep.ranks = ranks;
    c.ep.max_tokens = N;
    c.ep.hidden = WIDTH;
    c.ep.experts = ranks;
    c.ep.topk = ranks;
    c.ep.lanes = LANES;
    c.ep.threads = 1;
    c.ep.deadline_ns = deadline_ns;
    return c;
}

/* What a rank does on a lane: each of its tokens goes to all ranks, which send it back. */
typedef struct work {
    epw_prefill *prefill;
    epw_routing *routing;
    uint32_t rank, ranks, lane;
    uint64_t deadline_ns, took;
    epw_outcome outcome;
    bool combines, ended;
    _Alignas(64) uint16_t x[N * WIDTH], rows[CAPACITY * WIDTH], sums[N * WIDTH];
    int32_t ids[N * ALL];
    float weights[N * ALL];
} work;

static work works[ALL][LANES];

static float value_in(const work *w, uint32_t i) {
    return (float)(1 + (w->rank * 5 + w->lane * 3 + i / WIDTH + i % WIDTH) % 16);
}

static void prepare(const prefills *g) {
    memset(works, 0, sizeof works);
    for (uint32_t r = 0; r < g->ranks; r++) {
        for (uint32_t l = 0; l < LANES; l++) {
            work *w = &works[r][l];
            *w = (work){
                .prefill = g->of[r], .rank = r, .ranks = g->ranks, .lane = l, .outcome = EPW_OUTCOME_INIT};
            CHECK_OK(epw_routing_create(g->of[r], &w->routing));
            for (uint32_t i = 0; i < N * WIDTH; i++) w->x[i] = round_bf16(value_in(w, i));
            for (uint32_t i = 0; i < N * g->ranks; i++) {
                w->ids[i] = (int32_t)(i % g->ranks);
                w->weights[i] = 1.0f;
            }
        }
    }
}

static void end(const prefills *g) {
    for (uint32_t r = 0; r < g->ranks; r++)
        for (uint32_t l = 0; l < LANES; l++) epw_routing_free(works[r][l].routing);
    destroy_prefills(g);
}

static epw_status dispatch(work *w, bool nonblocking) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    in.tokens = N;
    in.x = w->x;
    in.topk_idx = w->ids;
    in.topk_weights = w->weights;
    in.topk = w->ranks;
    in.lane = (int32_t)w->lane;
    in.nonblocking = nonblocking;
    in.deadline_ns = w->deadline_ns;
    out.alignment = 1;
    out.capacity = CAPACITY;
    out.rows = w->rows;
    return epw_prefill_dispatch(w->prefill, w->routing, &in, 0, 0, &out, &w->outcome);
}

static epw_status combine(work *w, bool nonblocking) {
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    in.expert_out = w->rows;
    in.nonblocking = nonblocking;
    out.out = w->sums;
    return epw_prefill_combine(w->prefill, w->routing, &in, &out, &w->outcome);
}

static void check_whole(const work *w) {
    CHECK_MSG(!w->outcome.degraded, "rank %u, lane %u is not complete", w->rank, w->lane);
    for (uint32_t i = 0; i < N * WIDTH; i++)
        CHECK(w->sums[i] == round_bf16((float)w->ranks * value_in(w, i)));
}

/* ---- in another order on each rank ---- */

/* The lane's call has returned this: begins the next one when it is over. */
static void go_on(work *w, epw_status status) {
    while (status != EPW_PENDING && !w->ended) { /* ends: there are two calls */
        CHECK_MSG(status == EPW_OK && !w->outcome.degraded, "rank %u, lane %u is not complete: %s", w->rank,
                  w->lane, epw_last_error());
        w->ended = w->combines;
        w->combines = true;
        if (!w->ended) status = combine(w, true);
    }
}

/* Even ranks begin on both lanes before they wait, one on lane 0 first, the next on lane 1. Odd ranks wait
 * for all of lane 1 before they begin on lane 0. */
static void *run_rank(void *argument) {
    work *of = argument;
    uint32_t rank = of[0].rank;
    for (uint32_t i = 0; i < LANES && rank % 2 == 1; i++) {
        work *w = &of[LANES - 1 - i];
        CHECK_OK(dispatch(w, false));
        CHECK_OK(combine(w, false));
        check_whole(w);
    }
    if (rank % 2 == 1) return NULL;
    for (uint32_t i = 0; i < LANES; i++) {
        work *w = &of[(rank / 2 + i) % LANES];
        go_on(w, dispatch(w, true));
    }
    while (!of[0].ended || !of[1].ended) { /* ends: waits are bounded */
        for (uint32_t l = 0; l < LANES; l++)
            if (!of[l].ended) go_on(&of[l], epw_prefill_poll(of[l].prefill, of[l].routing, &of[l].outcome));
        sched_yield();
    }
    for (uint32_t l = 0; l < LANES; l++) check_whole(&of[l]);
    return NULL;
}

static void lanes_do_not_wait_for_each_other(uint32_t ranks, uint32_t ring) {
    epw_prefill_config config = config_for(ranks, ring, LONG);
    prefills g = make_prefills(&config);
    prepare(&g);
    on_all_ranks(ranks, run_rank, works, sizeof works[0]);
    end(&g);
}

/* ---- a peer is lost ---- */

static void *run_dispatch(void *argument) {
    work *w = argument;
    uint64_t began = now_ns();
    CHECK_OK(dispatch(w, false));
    w->took = now_ns() - began;
    return NULL;
}

static void check_lost(const work *w, uint32_t peer) {
    CHECK_MSG(epw_mask_has(&w->outcome.missing, peer), "rank %u, lane %u: rank %u is not missing", w->rank,
              w->lane, peer);
    CHECK_MSG(w->took < PATIENCE, "rank %u, lane %u took %llu ms", w->rank, w->lane,
              (unsigned long long)(w->took / MS));
}

/* Rank 0 waits for the other one on both lanes, on lane 1 for long. */
static void a_peer_that_one_lane_gives_up_is_given_up_on_the_other(uint32_t ring) {
    epw_prefill_config config = config_for(2, ring, deadline());
    prefills g = make_prefills(&config);
    prepare(&g);
    works[0][1].deadline_ns = LONG;
    on_all_ranks(LANES, run_dispatch, works[0], sizeof works[0][0]);
    check_lost(&works[0][0], 1);
    check_lost(&works[0][1], 1);
    end(&g);
}

/* Rank 0 gives the other one up on lane 0, and then does nothing more. */
static void a_peer_that_is_given_up_is_told_on_each_lane(uint32_t ring) {
    epw_prefill_config config = config_for(2, ring, deadline());
    prefills g = make_prefills(&config);
    prepare(&g);
    works[1][1].deadline_ns = LONG;
    run_dispatch(&works[0][0]);
    check_lost(&works[0][0], 1);
    run_dispatch(&works[1][1]);
    check_lost(&works[1][1], 0);
    end(&g);
}

static bool failed(void) { /* then the rest would take long */
    return atomic_load(&checks_failed) > 0;
}

int main(void) {
    for (uint32_t ring = 1; ring <= 2; ring++) {
        for (uint32_t i = 0; i < 15 && !failed(); i++) lanes_do_not_wait_for_each_other(2 + i % 3, ring);
        if (!failed()) a_peer_that_one_lane_gives_up_is_given_up_on_the_other(ring);
        if (!failed()) a_peer_that_is_given_up_is_told_on_each_lane(ring);
    }
    return check_result("prefill_lanes");
}
