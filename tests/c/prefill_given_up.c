/* A rank has given up a prefill operation. What is left of it on that rank and on its peer: the counts of a
 * routing that is used again, the contents of the places of a lost source, which half may follow, which call
 * reports why the operation failed, what a call in another thread returns, and the state of a routing that
 * was to be used again. */
#include "prefills.h"

#include "prefill/parts.h"

enum { N = 24, WIDTH = 8, LOCAL = 3, K = 3, ALIGNMENT = 4, CAPACITY = 3 * N * K, RING = 8, FEW = 4 };

typedef struct end {
    epw_prefill *prefill;
    epw_routing *routing;
    uint32_t tokens, topk;
    bool renews;     /* gives weights to dispatches that use the routing again */
    bool unweighted; /* gives no weights to others */
    epw_status status;
    epw_outcome outcome;
    _Alignas(64) uint16_t x[N * WIDTH], rows[CAPACITY * WIDTH], sums[N * WIDTH];
    int32_t ids[N * K], row_source[CAPACITY];
    float weights[N * K];
    uint32_t source_counts[2], counts[2 * LOCAL];
    uint64_t totals[2 * LOCAL];
} end;

static end ends[2];

/* ---- operations ---- */

static epw_status dispatch(end *e, epw_routing *r, uint32_t route, bool nonblocking) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    in.tokens = e->tokens;
    in.x = e->x;
    in.topk_idx = e->ids;
    in.topk_weights = (route == EPW_ROUTE_AGAIN ? e->renews : !e->unweighted) ? e->weights : NULL;
    in.topk = e->topk;
    in.nonblocking = nonblocking;
    out.alignment = ALIGNMENT;
    out.zero_padding = 1;
    out.capacity = CAPACITY;
    out.rows = e->rows;
    out.row_source = e->row_source;
    out.source_counts = e->source_counts;
    if (e->topk == K) {
        out.counts = e->counts;
        out.expert_totals = e->totals;
    }
    e->outcome = (epw_outcome)EPW_OUTCOME_INIT;
    return epw_prefill_dispatch(e->prefill, r, &in, route, EPW_HALF_SENDS, &out, &e->outcome);
}

static void *dispatch_once(void *argument) {
    end *e = argument;
    e->status = dispatch(e, e->routing, EPW_ROUTE_NEW, false);
    return NULL;
}

static void *use_again(void *argument) {
    end *e = argument;
    CHECK_OK(dispatch(e, e->routing, EPW_ROUTE_AGAIN, false));
    return NULL;
}

static epw_status combine(end *e, uint32_t mode, bool half) {
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    in.expert_out = e->rows;
    in.mode = mode;
    out.out = e->sums;
    e->outcome = (epw_outcome)EPW_OUTCOME_INIT;
    return epw_prefill_combine(e->prefill, e->routing, &in, half ? NULL : &out, &e->outcome);
}

/* Polls until the operation ends, for a few seconds at most. */
static epw_status finish(end *e, epw_status status) {
    for (int i = 0; i < 20000 && status == EPW_PENDING; i++) {
        nanosleep(&(struct timespec){0, 200000}, NULL);
        status = epw_prefill_poll(e->prefill, e->routing, &e->outcome);
    }
    return status;
}

/* ---- two ranks ---- */

static prefills open_two(uint32_t local, uint32_t topk, uint64_t deadline_ns) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    config.ring_tokens = RING;
    config.ep.ranks = 2;
    config.ep.max_tokens = N;
    config.ep.hidden = WIDTH;
    config.ep.experts = 2 * local;
    config.ep.topk = topk;
    config.ep.lanes = 1;
    config.ep.threads = 1;
    config.ep.deadline_ns = deadline_ns;
    prefills g = make_prefills(&config);
    memset(ends, 0, sizeof ends);
    for (uint32_t r = 0; r < 2; r++) {
        end *e = &ends[r];
        e->prefill = g.of[r];
        e->tokens = FEW;
        e->topk = topk;
        for (uint32_t i = 0; i < N * topk; i++) {
            e->ids[i] = (int32_t)((i / topk + i % topk * 2) % (2 * local));
            e->weights[i] = 1.0f;
        }
        CHECK_OK(epw_routing_create(g.of[r], &e->routing));
    }
    return g;
}

static void close_two(const prefills *g) {
    for (uint32_t r = 0; r < 2; r++) epw_routing_free(ends[r].routing);
    destroy_prefills(g);
}

static uint64_t short_deadline(void) {
    return longer * (path_of_test() == EPW_PATH_QUEUE ? 500 : 150) * MS;
}

static void both_dispatch(void) {
    on_all_ranks(2, dispatch_once, ends, sizeof ends[0]);
    for (uint32_t r = 0; r < 2; r++) {
        CHECK_OK(ends[r].status);
        CHECK_MSG(!ends[r].outcome.degraded, "rank %u, cause %u", r, ends[r].outcome.record.cause);
    }
}

/* ---- what a source that was lost leaves behind ---- */

static void a_routing_that_is_used_again_counts_no_lost_source(void) {
    prefills g = open_two(LOCAL, K, short_deadline());
    end *e = &ends[0];
    both_dispatch();
    uint32_t own = e->source_counts[0];
    CHECK(own > 0 && e->source_counts[1] > 0);
    CHECK_OK(combine(e, EPW_COMBINE_RANK_REDUCED, false)); /* which rank 1 does not call */
    CHECK(e->outcome.missing.bits[0] == 2);
    memset(e->totals, 0, sizeof e->totals);
    CHECK_OK(dispatch(e, e->routing, EPW_ROUTE_AGAIN, false));
    CHECK(e->outcome.missing.bits[0] == 2);
    CHECK_MSG(e->source_counts[0] == own && e->source_counts[1] == 0, "%u and %u rows", e->source_counts[0],
              e->source_counts[1]);
    uint64_t places = 0, counted = 0;
    for (uint32_t i = 0; i < CAPACITY; i++) {
        CHECK(e->row_source[i] <= 0);
        places += e->row_source[i] == 0;
    }
    for (uint32_t i = 0; i < LOCAL; i++) counted += e->totals[i];
    CHECK_MSG(counted == places, "%llu rows counted, %llu came", (unsigned long long)counted,
              (unsigned long long)places);
    close_two(&g);
}

/* Rank 1 announces a row for each of N tokens, of which its ring takes only a few, and then stops sending;
 * rank 0 loses it. */
static void lose_one_that_has_announced_more_than_it_sent(const prefills *g) {
    for (uint32_t i = 0; i < N * K; i++) ends[1].ids[i] = (int32_t)(i % K);
    ends[1].tokens = N;
    CHECK(dispatch(&ends[1], ends[1].routing, EPW_ROUTE_NEW, true) == EPW_PENDING);
    const epw_stream *s = &g->of[1]->lanes[0].streams[EPW_KIND_DISPATCH][0];
    for (int i = 0; i < 5000 && s->ring.announced == 0; i++) { /* behind a queue rank 0 begins later */
        nanosleep(&(struct timespec){0, 200000}, NULL);
        CHECK(epw_prefill_poll(g->of[1], ends[1].routing, NULL) == EPW_PENDING);
    }
    CHECK_OK(dispatch(&ends[0], ends[0].routing, EPW_ROUTE_NEW, false));
    CHECK(ends[0].outcome.missing.bits[0] == 2 && ends[0].source_counts[1] == 0);
}

static void all_places_of_a_lost_source_are_zeros(void) {
    enum { UNTOUCHED = 0x5a5a };
    prefills g = open_two(LOCAL, K, short_deadline());
    const end *e = &ends[0];
    uint32_t end_of_last = 0, own = 0;
    memset(ends[0].rows, UNTOUCHED & 0xff, sizeof ends[0].rows);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t i = 0; i < N * WIDTH; i++) ends[r].x[i] = bf16((float)(1 + r));
    lose_one_that_has_announced_more_than_it_sent(&g);
    for (uint32_t i = 0; i < LOCAL; i++) {
        CHECK_MSG(e->counts[i] >= N, "expert %u has %u places", i, e->counts[i]);
        end_of_last += (e->counts[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    CHECK(end_of_last < CAPACITY);
    for (uint32_t i = 0; i < CAPACITY * WIDTH; i++) {
        uint32_t place = i / WIDTH;
        uint16_t want = e->row_source[place] == 0 ? bf16(1) : place < end_of_last ? 0 : UNTOUCHED;
        CHECK_MSG(e->rows[i] == want, "place %u of %u: %#x, not %#x", place, end_of_last, e->rows[i], want);
        own += want == bf16(1);
    }
    CHECK(own > 0);
    close_two(&g);
}

/* More rows are announced than the ring has slots for answers. */
static void a_sending_half_has_no_answers_to_a_lost_source(void) {
    prefills g = open_two(LOCAL, K, short_deadline());
    lose_one_that_has_announced_more_than_it_sent(&g);
    CHECK_OK(combine(&ends[0], EPW_COMBINE_ORDERED, true));
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    out.out = ends[0].sums;
    CHECK_OK(epw_prefill_collect(g.of[0], ends[0].routing, &out, NULL));
    close_two(&g);
}

/* ---- who learns of it ---- */

/* As if there had been no memory for the arriving rows: the failure is reported to the routing whose
 * operation it is, not to another call on the lane, and no epoch begins before. */
static void a_failure_is_told_to_its_caller(void) {
    prefills g = open_two(LOCAL, K, 20000 * MS);
    end *e = &ends[0];
    epw_prefill_lane *lane = &g.of[0]->lanes[0];
    epw_routing *other;
    CHECK_OK(epw_routing_create(g.of[0], &other));
    e->tokens = N; /* more than the ring takes */
    CHECK(dispatch(e, e->routing, EPW_ROUTE_NEW, true) == EPW_PENDING);
    pthread_mutex_lock(&lane->lock);
    lane->status = EPW_ERR_NO_MEMORY;
    epw_prefill_give_up(g.of[0], lane);
    epw_prefill_unlock(g.of[0], lane);
    epw_status its = dispatch(&ends[1], ends[1].routing, EPW_ROUTE_NEW, true);
    epw_status status = dispatch(e, other, EPW_ROUTE_NEW, true);
    REFUSED(status, EPW_ERR_STATE, "dispatch", 0, -1, "an operation under way");
    epw_mask all = first_ranks(2);
    status = epw_prefill_set_active(g.of[0], &all, 2, 0);
    REFUSED(status, EPW_ERR_STATE, "set_active", 0, -1, "lane 0 has an operation under way");
    status = EPW_PENDING;
    for (int i = 0; i < 20000 && (status == EPW_PENDING || its == EPW_PENDING); i++) {
        if (status == EPW_PENDING) status = epw_prefill_poll(g.of[0], e->routing, NULL);
        if (its == EPW_PENDING) its = epw_prefill_poll(g.of[1], ends[1].routing, &ends[1].outcome);
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    CHECK_MSG(status == EPW_ERR_NO_MEMORY, "%s: %s", epw_status_name(status), epw_last_error());
    CHECK_OK(its);
    CHECK(ends[1].outcome.missing.bits[0] == 1 && ends[1].outcome.record.cause == EPW_CAUSE_PARTIAL);
    both_dispatch();
    activate_prefills(&g, 2);
    both_dispatch();
    epw_routing_free(other);
    close_two(&g);
}

/* Rank 1 calls the operation that rank 0 has given up, then both call the next. */
static void *meet_after_that(void *argument) {
    end *e = argument;
    if (e == &ends[1]) {
        CHECK_OK(dispatch(e, e->routing, EPW_ROUTE_NEW, false));
        CHECK(e->outcome.missing.bits[0] == 1 && e->outcome.record.cause == EPW_CAUSE_PARTIAL);
    }
    CHECK_OK(dispatch(e, e->routing, EPW_ROUTE_NEW, false));
    return NULL;
}

static void a_call_whose_operation_is_given_up_ends(void) {
    prefills g = open_two(LOCAL, K, 20000 * MS);
    pthread_t waiter;
    ends[0].tokens = N; /* more than the ring takes */
    CHECK(pthread_create(&waiter, NULL, dispatch_once, &ends[0]) == 0);
    while (epw_prefill_await(g.of[0], 0, 0) != EPW_OK) nanosleep(&(struct timespec){0, 100000}, NULL);
    nanosleep(&(struct timespec){0, 5000000}, NULL);
    CHECK_OK(epw_prefill_cancel(g.of[0], ends[0].routing));
    /* Returns at once, although rank 1, without which the operation cannot end, has called nothing. */
    pthread_join(waiter, NULL);
    CHECK_MSG(ends[0].status == EPW_ERR_STATE, "%s", epw_status_name(ends[0].status));
    on_all_ranks(2, meet_after_that, ends, sizeof ends[0]);
    for (uint32_t r = 0; r < 2; r++) CHECK_MSG(!ends[r].outcome.degraded, "rank %u", r);
    close_two(&g);
}

/* The opening, which is longer than a row here, has been written but not announced. */
static void an_opening_is_whole_although_it_was_given_up(void) {
    enum { MANY = 64, LAST = MANY + 50 };
    prefills g = open_two(MANY, 1, 20000 * MS);
    epw_prefill *p = g.of[0];
    epw_prefill_lane *lane = &p->lanes[0];
    epw_mask all = first_ranks(2);
    for (uint32_t i = 0; i < N; i++) ends[0].ids[i] = LAST;
    CHECK_OK(epw_prefill_set_active(p, &all, 2, 0));
    CHECK(dispatch(&ends[0], ends[0].routing, EPW_ROUTE_NEW, true) == EPW_PENDING);
    CHECK_OK(epw_prefill_set_active(g.of[1], &all, 2, 0));
    epw_look seen = {0};
    for (int ms = 0; ms < 10000 && seen.sight.word != lane->own_word; ms++) {
        epw_look_at(&p->peers, 0, 1, EPW_WORD_EPOCH, &seen);
        if (seen.sight.word != lane->own_word) nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    pthread_mutex_lock(&lane->lock);
    lane->streams[EPW_KIND_DISPATCH][1].writes = true; /* rank 1 has begun the epoch */
    CHECK(epw_prefill_write_openings(p, lane));
    CHECK(lane->streams[EPW_KIND_DISPATCH][1].ring.announced == 0);
    epw_prefill_unlock(p, lane);
    CHECK_OK(epw_prefill_cancel(p, ends[0].routing));
    CHECK_OK(finish(&ends[1], dispatch(&ends[1], ends[1].routing, EPW_ROUTE_NEW, true)));
    CHECK_MSG(ends[1].outcome.missing.bits[0] == 1 && ends[1].outcome.record.cause == EPW_CAUSE_PARTIAL,
              "cause %u", ends[1].outcome.record.cause);
    both_dispatch();
    close_two(&g);
}

/* ---- a routing that was to be used again ---- */

/* Rank 0 gives up a dispatch that uses its routing again. Rank 1 learns of this before it does the same,
 * unless it is behind a queue: then rank 0 tells it with its next call. */
static void give_up_using_again(const prefills *g) {
    for (uint32_t r = 0; r < 2; r++) ends[r].tokens = N; /* more than the ring takes */
    both_dispatch();
    for (uint32_t r = 0; r < 2; r++)
        CHECK(dispatch(&ends[r], ends[r].routing, EPW_ROUTE_AGAIN, true) == EPW_PENDING);
    CHECK_OK(epw_prefill_cancel(g->of[0], ends[0].routing));
    const epw_prefill_peer *other = &g->of[1]->lanes[0].peers[0];
    bool learns = path_of_test() != EPW_PATH_QUEUE;
    for (int i = 0; i < 20000 && learns && !other->missing; i++) {
        nanosleep(&(struct timespec){0, 200000}, NULL);
        CHECK(epw_prefill_poll(g->of[1], ends[1].routing, NULL) == EPW_PENDING);
    }
    CHECK(other->missing == learns);
    CHECK_OK(epw_prefill_cancel(g->of[1], ends[1].routing));
}

/* With the routing's first dispatch, then again with the same routing. */
static void *combine_and_use_again(void *argument) {
    end *e = argument;
    CHECK_OK(combine(e, EPW_COMBINE_RANK_REDUCED, false));
    CHECK_MSG(!e->outcome.degraded, "combined: cause %u", e->outcome.record.cause);
    for (uint32_t i = 0; i < N * WIDTH; i++) CHECK(from_bf16(e->sums[i]) == K * from_bf16(e->x[i]));
    CHECK_OK(dispatch(e, e->routing, EPW_ROUTE_AGAIN, false));
    CHECK_MSG(!e->outcome.degraded, "used again: cause %u", e->outcome.record.cause);
    return NULL;
}

static void a_routing_is_as_before_if_a_dispatch_that_uses_it_again_is_given_up(void) {
    prefills g = open_two(LOCAL, K, 20000 * MS);
    uint32_t came[2][2];
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t i = 0; i < N * WIDTH; i++) ends[r].x[i] = bf16((float)(1 + r * 4 + i % 4));
    give_up_using_again(&g);
    for (uint32_t r = 0; r < 2; r++) memcpy(came[r], ends[r].source_counts, sizeof came[r]);
    on_all_ranks(2, combine_and_use_again, ends, sizeof ends[0]);
    for (uint32_t r = 0; r < 2; r++)
        CHECK(came[r][1 - r] > 0 && memcmp(came[r], ends[r].source_counts, sizeof came[r]) == 0);
    close_two(&g);
}

/* Rank 0 has given up a dispatch that uses its routing again, which rank 1 ends without it. Rank 1 then
 * answers no rows of rank 0, whose places it has emptied. */
static void *combine_what_came(void *argument) {
    end *e = argument;
    if (e == &ends[1]) {
        CHECK_OK(dispatch(e, e->routing, EPW_ROUTE_AGAIN, false));
        CHECK_MSG(e->outcome.missing.bits[0] == 1 && e->outcome.record.cause == EPW_CAUSE_PARTIAL,
                  "used again: cause %u", e->outcome.record.cause);
        CHECK(e->source_counts[0] == 0);
    }
    CHECK_OK(combine(e, EPW_COMBINE_RANK_REDUCED, false));
    uint32_t want = e == &ends[0] ? EPW_CAUSE_PARTIAL : EPW_CAUSE_NONE;
    CHECK_MSG(e->outcome.record.cause == want, "combined: cause %u", e->outcome.record.cause);
    return NULL;
}

static void *use_again_and_combine(void *argument) {
    end *e = argument;
    CHECK_OK(dispatch(e, e->routing, EPW_ROUTE_AGAIN, false));
    CHECK_MSG(!e->outcome.degraded, "used again: cause %u", e->outcome.record.cause);
    CHECK_OK(combine(e, EPW_COMBINE_RANK_REDUCED, false));
    CHECK_MSG(!e->outcome.degraded, "combined: cause %u", e->outcome.record.cause);
    for (uint32_t i = 0; i < N * WIDTH; i++) CHECK(from_bf16(e->sums[i]) == K * from_bf16(e->x[i]));
    return NULL;
}

static void one_rank_alone_gives_up_a_dispatch_that_uses_its_routing_again(void) {
    prefills g = open_two(LOCAL, K, 20000 * MS);
    uint32_t came[2];
    for (uint32_t r = 0; r < 2; r++) {
        ends[r].tokens = N; /* more than the ring takes */
        for (uint32_t i = 0; i < N * WIDTH; i++) ends[r].x[i] = bf16((float)(1 + r * 4 + i % 4));
    }
    both_dispatch();
    memcpy(came, ends[1].source_counts, sizeof came);
    CHECK(came[0] > 0);
    CHECK(dispatch(&ends[0], ends[0].routing, EPW_ROUTE_AGAIN, true) == EPW_PENDING);
    CHECK_OK(epw_prefill_cancel(g.of[0], ends[0].routing));
    on_all_ranks(2, combine_what_came, ends, sizeof ends[0]);
    on_all_ranks(2, use_again_and_combine, ends, sizeof ends[0]);
    CHECK(memcmp(came, ends[1].source_counts, sizeof came) == 0);
    close_two(&g);
}

/* Rank 1 gives weights to a dispatch that uses the routing again, and rank 0 none: each refuses the rows of
 * the other, but has known their places from the first dispatch on. */
static void a_routing_is_used_again_after_rows_of_another_kind(void) {
    prefills g = open_two(LOCAL, K, 20000 * MS);
    for (uint32_t r = 0; r < 2; r++) {
        ends[r].tokens = N;
        for (uint32_t i = 0; i < N * WIDTH; i++) ends[r].x[i] = bf16((float)(1 + r * 4 + i % 4));
    }
    both_dispatch();
    ends[1].renews = true;
    on_all_ranks(2, use_again, ends, sizeof ends[0]);
    for (uint32_t r = 0; r < 2; r++)
        CHECK_MSG(ends[r].outcome.record.cause == EPW_CAUSE_FORMAT, "cause %u", ends[r].outcome.record.cause);
    ends[1].renews = false;
    on_all_ranks(2, use_again_and_combine, ends, sizeof ends[0]);
    close_two(&g);
}

/* The rows of rank 1 have other weights than rank 0 expects in the dispatch that fills the routing. So rank 0
 * knows no places of them, and refuses them whenever the routing is used again. */
static void a_source_that_was_missing_at_first_stays_missing(void) {
    prefills g = open_two(LOCAL, K, 20000 * MS);
    ends[1].unweighted = true;
    on_all_ranks(2, dispatch_once, ends, sizeof ends[0]);
    for (uint32_t r = 0; r < 2; r++) {
        CHECK_OK(ends[r].status);
        CHECK_MSG(ends[r].outcome.record.cause == EPW_CAUSE_FORMAT, "cause %u", ends[r].outcome.record.cause);
    }
    for (int i = 0; i < 2; i++) {
        on_all_ranks(2, use_again, ends, sizeof ends[0]);
        for (uint32_t r = 0; r < 2; r++)
            CHECK_MSG(ends[r].outcome.missing.bits[0] == 2u >> r &&
                          ends[r].outcome.record.cause == EPW_CAUSE_PARTIAL,
                      "cause %u", ends[r].outcome.record.cause);
    }
    close_two(&g);
}

static void a_routing_whose_weights_were_to_be_renewed_is_empty(void) {
    prefills g = open_two(LOCAL, K, 20000 * MS);
    for (uint32_t r = 0; r < 2; r++) ends[r].renews = true;
    give_up_using_again(&g);
    for (uint32_t r = 0; r < 2; r++) {
        epw_status status = combine(&ends[r], EPW_COMBINE_RANK_REDUCED, false);
        REFUSED(status, EPW_ERR_STATE, "combine", (int)r, -1, "has not been filled by a dispatch");
        status = dispatch(&ends[r], ends[r].routing, EPW_ROUTE_AGAIN, false);
        REFUSED(status, EPW_ERR_STATE, "dispatch", (int)r, -1, "has not been filled by a dispatch");
    }
    both_dispatch();
    close_two(&g);
}

int main(void) {
    KEEP_TIME(a_routing_that_is_used_again_counts_no_lost_source());
    KEEP_TIME(all_places_of_a_lost_source_are_zeros());
    KEEP_TIME(a_sending_half_has_no_answers_to_a_lost_source());
    a_failure_is_told_to_its_caller();
    a_call_whose_operation_is_given_up_ends();
    an_opening_is_whole_although_it_was_given_up();
    a_routing_is_as_before_if_a_dispatch_that_uses_it_again_is_given_up();
    one_rank_alone_gives_up_a_dispatch_that_uses_its_routing_again();
    a_routing_is_used_again_after_rows_of_another_kind();
    a_source_that_was_missing_at_first_stays_missing();
    a_routing_whose_weights_were_to_be_renewed_is_empty();
    return check_result("prefill_given_up");
}
