/* What a thread that awaits a prefill operation notices, and for what it is not woken again and again. */
#include "prefills.h"

#include "peer/remote_part.h"
#include "prefill/parts.h"

#include "base/clock.h"

enum { LONG_MS = 20000 };
#define LONG_NS (LONG_MS * MS)

/* Ranks without tokens: an operation is the openings alone. */
typedef struct trio {
    prefills g;
    epw_routing *routings[3];
} trio;

static epw_status begin_prefill(trio *t, uint32_t rank) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    static _Alignas(64) uint16_t row[3][8];
    in.topk = 1;
    in.nonblocking = 1;
    out.rows = row[rank];
    return epw_prefill_dispatch(t->g.of[rank], t->routings[rank], &in, EPW_ROUTE_NEW, 0, &out, &outcome);
}

/* Ranks 0 and 1 have begun an operation, and rank 0 awaits rank 2. */
static void open_trio(trio *t) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    config.ring_tokens = 4;
    config.ep.ranks = config.ep.experts = 3;
    config.ep.topk = config.ep.max_tokens = config.ep.lanes = config.ep.threads = 1;
    config.ep.hidden = 8;
    config.ep.deadline_ns = LONG_NS;
    t->g = make_prefills(&config);
    for (uint32_t r = 0; r < 3; r++) CHECK_OK(epw_routing_create(t->g.of[r], &t->routings[r]));
    CHECK(begin_prefill(t, 1) == EPW_PENDING && begin_prefill(t, 0) == EPW_PENDING);
}

static void close_trio(trio *t) {
    for (uint32_t r = 0; r < 3; r++) epw_routing_free(t->routings[r]);
    destroy_prefills(&t->g);
}

/* Awaits rank 0's operation, at most so long. True: there is something new. */
static bool is_woken(const trio *t, uint64_t ns) {
    uint64_t began = epw_now_ns();
    CHECK_OK(epw_prefill_await(t->g.of[0], 0, ns));
    return epw_now_ns() - began < ns;
}

/* Takes in what has come for ranks 0 and 1, until there is nothing new for rank 0 any more. */
static void settle_prefill(trio *t) {
    const epw_prefill_lane *lane = &t->g.of[0]->lanes[0];
    bool woken = true;
    for (uint64_t began = epw_now_ns(); epw_now_ns() - began < LONG_NS / 4;) {
        woken = is_woken(t, 20 * MS);
        if (!woken && lane->peers[2].begun && !lane->streams[lane->kind][1].takes) return;
        for (uint32_t r = 0; r < 2; r++)
            CHECK(epw_prefill_poll(t->g.of[r], t->routings[r], NULL) == EPW_PENDING);
    }
    CHECK_MSG(false, "%s", woken ? "it stays ready" : "rank 1 or 2 has not come");
}

/* Rank 0 waits until its operation ends, and must learn this of rank 2. */
static void lacks_rank_2(trio *t, uint32_t cause) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_status status = EPW_PENDING;
    for (uint64_t began = epw_now_ns(); status == EPW_PENDING && epw_now_ns() - began < LONG_NS / 4;) {
        CHECK_MSG(is_woken(t, LONG_NS / 4), "nothing wakes it");
        status = epw_prefill_poll(t->g.of[0], t->routings[0], &outcome);
    }
    CHECK_MSG(status == EPW_OK && outcome.missing.bits[0] == 4 && outcome.record.cause == cause,
              "%s, missing %llx, cause %u", epw_status_name(status),
              (unsigned long long)outcome.missing.bits[0], outcome.record.cause);
}

static void who_is_done_and_who_moves_on(void) {
    trio t;
    open_trio(&t);
    settle_prefill(&t);
    /* Rank 1, whose part is over, leaves rank 0 behind. */
    epw_mask gone = {{1}};
    const epw_peers *own = &t.g.of[0]->peers;
    CHECK_OK(epw_prefill_revoke(t.g.of[1], &gone));
    CHECK(epw_prefill_poll(t.g.of[1], t.routings[1], NULL) == EPW_PENDING);
    AWAIT(epw_word_from(own, 0, 1, EPW_WORD_DROPPED) != 0);
    CHECK(epw_word_from(own, 0, 1, EPW_WORD_DROPPED) != 0);
    settle_prefill(&t);
    /* Rank 2 has moved on. */
    epw_mask all = first_ranks(3);
    CHECK_OK(epw_prefill_set_active(t.g.of[2], &all, 2, 0));
    lacks_rank_2(&t, EPW_CAUSE_SUPERSEDED);
    close_trio(&t);
}

/* The NIC tells when a queue carries nothing any more, and nobody rings. */
static void a_queue_that_breaks(void) {
    trio t;
    open_trio(&t);
    settle_prefill(&t);
    epw_end_break(&epw_way_to(&t.g.of[0]->peers, 0, 2)->end);
    lacks_rank_2(&t, EPW_CAUSE_LINK);
    close_trio(&t);
}

/* Rank 2 has begun the epoch, but what this rank has posted has not been sent: nothing may be written yet. */
static void words_that_do_not_count_yet(void) {
    trio t;
    open_trio(&t);
    epw_prefill *p = t.g.of[0];
    epw_prefill_lane *lane = &p->lanes[0];
    settle_prefill(&t);
    lane->peers[2].begun = false;
    epw_way *way = epw_way_to(&p->peers, 0, 2);
    uint64_t flushed = way->flushed[EPW_AREA_ROWS], looks = 0;
    way->flushed[EPW_AREA_ROWS] = UINT64_MAX / 2;
    uint64_t began = epw_now_ns();
    for (; epw_now_ns() - began < 50 * MS; looks++) {
        CHECK(epw_prefill_poll(p, t.routings[0], NULL) == EPW_PENDING && lane->held);
        (void)is_woken(&t, LONG_NS / 4);
    }
    /* The first 350 us are young. */
    CHECK_MSG(looks < 2000, "%llu looks in 50 ms", (unsigned long long)looks);
    way->flushed[EPW_AREA_ROWS] = flushed;
    settle_prefill(&t);
    close_trio(&t);
}

int main(void) {
    who_is_done_and_who_moves_on();
    setenv("EPW_TEST_PATH", "queue", 1);
    who_is_done_and_who_moves_on();
    a_queue_that_breaks();
    words_that_do_not_count_yet();
    return check_result("prefill_awaits");
}
