/* How many rows arrive, asked after a sending half: this rank may ask before a peer has begun, for as long as
 * it likes, and no peer keeps it waiting for ever. */
#include "prefills.h"

enum { N = 5, WIDTH = 8, RING = N + 1, CAPACITY = 2 * N };

typedef struct end {
    epw_prefill *prefill;
    epw_routing *routing;
    epw_outcome outcome;
    _Alignas(64) uint16_t x[N * WIDTH], rows[CAPACITY * WIDTH];
    int32_t ids[N * 2], row_source[CAPACITY];
    uint32_t source_counts[2];
} end;

static end ends[2];
static prefills both;

/* Two ranks of one expert, to both of which each token goes. */
static void open_two(uint64_t deadline_ns) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    config.ring_tokens = RING;
    config.ep.ranks = config.ep.experts = config.ep.topk = 2;
    config.ep.max_tokens = N;
    config.ep.hidden = WIDTH;
    config.ep.lanes = 1;
    config.ep.threads = 1;
    config.ep.deadline_ns = deadline_ns;
    both = make_prefills(&config);
    memset(ends, 0, sizeof ends);
    for (uint32_t r = 0; r < 2; r++) {
        end *e = &ends[r];
        e->prefill = both.of[r];
        for (uint32_t i = 0; i < N * 2; i++) e->ids[i] = (int32_t)(i % 2);
        for (uint32_t i = 0; i < N * WIDTH; i++) e->x[i] = bf16((float)(1 + r));
        CHECK_OK(epw_routing_create(e->prefill, &e->routing));
    }
}

static void close_two(void) {
    for (uint32_t r = 0; r < 2; r++)
        if (both.of[r] != NULL) epw_routing_free(ends[r].routing);
    destroy_prefills(&both);
}

static uint64_t short_deadline(void) {
    return longer * (path_of_test() == EPW_PATH_QUEUE ? 500 : 150) * MS;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- calls ---- */

static epw_status send_half(end *e) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = N;
    in.x = e->x;
    in.topk_idx = e->ids;
    in.topk = 2;
    return epw_prefill_dispatch(e->prefill, e->routing, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, NULL, NULL);
}

static void *send(void *argument) {
    CHECK_OK(send_half(argument));
    return NULL;
}

/* Sets the rows of each source if they are known. */
static epw_status ask(end *e, uint32_t source_counts[2]) {
    uint64_t rows = 0;
    uint32_t counts[1] = {0};
    epw_status status =
        epw_prefill_received(e->prefill, e->routing, EPW_PACKED, 1, &rows, counts, source_counts);
    if (status == EPW_OK) CHECK(rows == source_counts[0] + source_counts[1] && counts[0] == rows);
    return status;
}

/* Asks until the answer is there, and sleeps in between. */
static void ask_patiently(end *e, uint32_t source_counts[2]) {
    uint64_t began = now_ns();
    epw_status status = ask(e, source_counts);
    while (status == EPW_PENDING && now_ns() - began < 10000 * MS + 2 * short_deadline()) {
        CHECK_OK(epw_prefill_await(e->prefill, 0, 100 * MS));
        status = ask(e, source_counts);
    }
    CHECK_OK(status);
}

static void *receive(void *argument) {
    end *e = argument;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    out.capacity = CAPACITY;
    out.rows = e->rows;
    out.row_source = e->row_source;
    out.source_counts = e->source_counts;
    e->outcome = (epw_outcome)EPW_OUTCOME_INIT;
    CHECK_OK(epw_prefill_receive(e->prefill, e->routing, &out, &e->outcome));
    return NULL;
}

static void require_rows(const end *e, uint32_t from_peer) {
    uint32_t r = (uint32_t)(e - ends), came = 0;
    CHECK(e->source_counts[r] == N && e->source_counts[1 - r] == from_peer);
    for (uint32_t i = 0; i < CAPACITY * WIDTH; i++) {
        int32_t source = e->row_source[i / WIDTH];
        if (source >= 0) CHECK(e->rows[i] == bf16((float)(1 + source)));
        came += i % WIDTH == 0 && source >= 0;
    }
    CHECK_MSG(came == N + from_peer, "%u rows", came);
}

/* ---- cases ---- */

static void a_rank_that_asks_early_is_told_once_its_peer_has_sent(void) {
    uint32_t came[2][2];
    open_two(20000 * MS);
    CHECK_OK(send_half(&ends[0]));
    for (int i = 0; i < 3; i++) CHECK(ask(&ends[0], came[0]) == EPW_PENDING);
    pthread_t peer;
    CHECK(pthread_create(&peer, NULL, send, &ends[1]) == 0);
    ask_patiently(&ends[0], came[0]);
    pthread_join(peer, NULL);
    ask_patiently(&ends[1], came[1]);
    for (uint32_t r = 0; r < 2; r++) CHECK(came[r][0] == N && came[r][1] == N);
    on_all_ranks(2, receive, ends, sizeof ends[0]);
    for (uint32_t r = 0; r < 2; r++) {
        CHECK(!ends[r].outcome.degraded);
        require_rows(&ends[r], N);
    }
    close_two();
}

/* While it still waits for the counts. */
static void the_receiving_half_may_be_called_meanwhile(void) {
    uint32_t came[2];
    open_two(20000 * MS);
    CHECK_OK(send_half(&ends[0]));
    CHECK(ask(&ends[0], came) == EPW_PENDING);
    pthread_t waiter;
    CHECK(pthread_create(&waiter, NULL, receive, &ends[0]) == 0);
    CHECK_OK(send_half(&ends[1]));
    receive(&ends[1]);
    pthread_join(waiter, NULL);
    for (uint32_t r = 0; r < 2; r++) {
        CHECK(!ends[r].outcome.degraded);
        require_rows(&ends[r], N);
    }
    close_two();
}

/* Rank 0 asks for the first time long after it has sent. */
static void a_peer_that_is_silent_has_a_deadline_from_the_first_question_on(void) {
    uint32_t came[2];
    open_two(short_deadline());
    CHECK_OK(send_half(&ends[0]));
    uint64_t pause = 2 * short_deadline();
    nanosleep(&(struct timespec){(time_t)(pause / 1000000000u), (long)(pause % 1000000000u)}, NULL);
    CHECK(ask(&ends[0], came) == EPW_PENDING);
    uint64_t began = now_ns();
    ask_patiently(&ends[0], came);
    CHECK(now_ns() - began > short_deadline() / 2);
    CHECK(came[0] == N && came[1] == 0);
    receive(&ends[0]);
    CHECK(ends[0].outcome.missing.bits[0] == 2 && ends[0].outcome.record.cause == EPW_CAUSE_TIMEOUT);
    require_rows(&ends[0], 0);
    close_two();
}

static void a_peer_that_leaves_is_not_waited_for(void) {
    uint32_t came[2];
    open_two(20000 * MS);
    CHECK_OK(send_half(&ends[0]));
    CHECK(ask(&ends[0], came) == EPW_PENDING);
    epw_routing_free(ends[1].routing);
    epw_prefill_destroy(both.of[1]);
    both.of[1] = NULL;
    ask_patiently(&ends[0], came);
    CHECK(came[0] == N && came[1] == 0);
    receive(&ends[0]);
    CHECK_MSG(ends[0].outcome.missing.bits[0] == 2 && ends[0].outcome.record.cause == EPW_CAUSE_DROPPED,
              "cause %u", ends[0].outcome.record.cause);
    require_rows(&ends[0], 0);
    close_two();
}

int main(void) {
    a_rank_that_asks_early_is_told_once_its_peer_has_sent();
    the_receiving_half_may_be_called_meanwhile();
    KEEP_TIME(a_peer_that_is_silent_has_a_deadline_from_the_first_question_on());
    a_peer_that_leaves_is_not_waited_for();
    return check_result("prefill_received");
}
