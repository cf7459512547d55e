/* What a prefill buffer counts: rows and bytes according to the routing, of both kinds of payload and
 * combine, in one call and in halves, through rings smaller than the batch; and waits. Its peers are reached
 * as make_prefills says. */
#include "prefills.h"

#include <stdbool.h>
#include <unistd.h>

enum { RANKS = 3, LOCAL = EXPERTS / RANKS, ROUNDS = 2, WIDTH = 64 };

typedef struct rank {
    epw_prefill *of;
    uint32_t rank, mode, payload;
    int halves;
    batch made;
} rank;

static uint32_t entries_to(const batch *made, uint32_t to) {
    uint32_t entries = 0;
    for (uint32_t i = 0; i < TOKENS * TOPK; i++)
        entries += made->ids[i] >= 0 && (uint32_t)made->ids[i] / LOCAL == to;
    return entries;
}

/* Tokens with an expert there. */
static uint32_t rows_to(const batch *made, uint32_t to) {
    uint32_t rows = 0;
    for (uint32_t t = 0; t < TOKENS; t++) {
        int goes = 0;
        for (uint32_t j = 0; j < TOPK; j++) {
            int32_t id = made->ids[t * TOPK + j];
            goes |= id >= 0 && (uint32_t)id / LOCAL == to;
        }
        rows += goes != 0;
    }
    return rows;
}

/* The second dispatch uses the routing again. */
static void *rounds(void *argument) {
    rank *self = argument;
    epw_routing *routing;
    CHECK_OK(epw_routing_create(self->of, &routing));
    epw_dispatch_input in = make_batch(&self->made, self->rank);
    in.payload = self->payload;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t route = round == 0 ? EPW_ROUTE_NEW : EPW_ROUTE_AGAIN;
        epw_outcome outcome = EPW_OUTCOME_INIT;
        epw_prefill_output received = EPW_PREFILL_OUTPUT_INIT;
        received.capacity = RANKS * TOKENS * TOPK;
        if (self->halves) {
            CHECK_OK(epw_prefill_dispatch(self->of, routing, &in, route, EPW_HALF_SENDS, NULL, &outcome));
            CHECK_OK(epw_prefill_receive(self->of, routing, &received, &outcome));
        } else {
            CHECK_OK(
                epw_prefill_dispatch(self->of, routing, &in, route, EPW_HALF_SENDS, &received, &outcome));
        }
        CHECK(!outcome.degraded);
        static _Alignas(64) const uint16_t expert_out[RANKS * TOKENS * TOPK * WIDTH];
        static _Alignas(64) _Thread_local uint16_t out[TOKENS * WIDTH];
        epw_prefill_combine_input answer = EPW_PREFILL_COMBINE_INPUT_INIT;
        answer.expert_out = expert_out;
        answer.mode = self->mode;
        answer.width = WIDTH;
        epw_prefill_combine_output sums = EPW_PREFILL_COMBINE_OUTPUT_INIT;
        sums.out = out;
        if (self->halves) {
            CHECK_OK(epw_prefill_combine(self->of, routing, &answer, NULL, &outcome));
            CHECK_OK(epw_prefill_collect(self->of, routing, &sums, &outcome));
        } else {
            CHECK_OK(epw_prefill_combine(self->of, routing, &answer, &sums, &outcome));
        }
        CHECK(!outcome.degraded);
    }
    epw_routing_free(routing);
    return NULL;
}

static void check_counts(const rank *ranks, uint32_t r) {
    uint64_t row = ranks[r].payload == EPW_PAYLOAD_SAME ? HIDDEN * 2 : HIDDEN + HIDDEN / 128 * 4;
    uint32_t (*answers)(const batch *, uint32_t) =
        ranks[r].mode == EPW_COMBINE_ORDERED ? entries_to : rows_to;
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    epw_peer_traffic peers[RANKS];
    CHECK_OK(epw_prefill_traffic(ranks[r].of, &traffic, peers));
    uint64_t sent = 0, received = 0, answered = 0, bytes_sent = 0, bytes_received = 0;
    for (uint32_t p = 0; p < RANKS; p++) {
        uint64_t to = rows_to(&ranks[r].made, p), from = rows_to(&ranks[p].made, r);
        uint64_t made = answers(&ranks[p].made, r), come = answers(&ranks[r].made, p);
        uint64_t out = ROUNDS * (to * row + made * WIDTH * 2), in = ROUNDS * (from * row + come * WIDTH * 2);
        CHECK_MSG(peers[p].bytes_sent == out && peers[p].bytes_received == in,
                  "rank %u: %llu bytes of %llu to %u, %llu of %llu from it", r,
                  (unsigned long long)peers[p].bytes_sent, (unsigned long long)out, p,
                  (unsigned long long)peers[p].bytes_received, (unsigned long long)in);
        sent += to, received += from, answered += made;
        bytes_sent += out, bytes_received += in;
    }
    CHECK(traffic.operations == 2 * ROUNDS);
    CHECK_MSG(traffic.rows_sent == ROUNDS * sent && traffic.rows_received == ROUNDS * received &&
                  traffic.rows_answered == ROUNDS * answered,
              "rank %u: rows %llu, %llu, %llu", r, (unsigned long long)traffic.rows_sent,
              (unsigned long long)traffic.rows_received, (unsigned long long)traffic.rows_answered);
    CHECK(traffic.bytes_sent == bytes_sent && traffic.bytes_received == bytes_received);
}

static epw_prefill_config config_for(uint32_t ranks, uint32_t ring_tokens) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    config.ep = config_of(0, ranks);
    config.ep.ordered = config.ep.zero_copy = 0;
    config.ep.deadline_ns = 10000 * MS;
    config.ring_tokens = ring_tokens;
    return config;
}

static void rows_and_bytes_are_those_of_the_routing(uint32_t mode, uint32_t payload, int halves) {
    epw_prefill_config config = config_for(RANKS, halves ? TOKENS * TOPK + 1 : TOPK);
    prefills g = make_prefills(&config);
    static rank ranks[RANKS];
    for (uint32_t r = 0; r < RANKS; r++)
        ranks[r] = (rank){.of = g.of[r], .rank = r, .mode = mode, .payload = payload, .halves = halves};
    on_all_ranks(RANKS, rounds, ranks, sizeof ranks[0]);
    for (uint32_t r = 0; r < RANKS; r++) check_counts(ranks, r);
    destroy_prefills(&g);
}

/* Its peer dispatches a while later. */
static void the_wait_for_a_peer_is_counted(void) {
    enum { LATE_MS = 30 };
    epw_prefill_config config = config_for(2, 0);
    prefills g = make_prefills(&config);
    static batch made[2];
    epw_routing *routings[2];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_status ended[2];
    epw_prefill_output received = EPW_PREFILL_OUTPUT_INIT;
    received.capacity = 2 * TOKENS * TOPK;
    for (uint32_t r = 0; r < 2; r++) {
        CHECK_OK(epw_routing_create(g.of[r], &routings[r]));
        epw_dispatch_input in = make_batch(&made[r], r);
        in.nonblocking = 1;
        ended[r] = epw_prefill_dispatch(g.of[r], routings[r], &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &received,
                                        &outcome);
        if (r == 0) usleep(LATE_MS * 1000);
    }
    while (ended[0] == EPW_PENDING || ended[1] == EPW_PENDING)
        for (uint32_t r = 0; r < 2; r++)
            if (ended[r] == EPW_PENDING) ended[r] = epw_prefill_poll(g.of[r], routings[r], &outcome);
    CHECK(ended[0] == EPW_OK && ended[1] == EPW_OK);
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    epw_peer_traffic peers[2];
    CHECK_OK(epw_prefill_traffic(g.of[0], &traffic, peers));
    CHECK(peers[1].wait_ns >= LATE_MS * MS && peers[0].wait_ns == 0);
    for (uint32_t r = 0; r < 2; r++) epw_routing_free(routings[r]);
    destroy_prefills(&g);
}

/* ---- wait_ns of the outputs ---- */

enum { LATE = RANKS - 1, LATE_MS = 40, GIVEN = 1000 };

/* Three ranks on one thread, of which the last begins each operation late. */
typedef struct waits {
    prefills g;
    batch made[RANKS];
    epw_routing *routings[RANKS];
    epw_status ended[RANKS];
    epw_outcome outcomes[RANKS];
    uint64_t waited[RANKS][RANKS + 1];
    _Alignas(64) uint16_t out[RANKS][TOKENS * WIDTH];
} waits;

typedef epw_status begins(waits *w, uint32_t rank);

static epw_status begin_dispatch(waits *w, uint32_t rank) {
    epw_dispatch_input in = make_batch(&w->made[rank], rank);
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    in.nonblocking = 1;
    out.capacity = RANKS * TOKENS * TOPK;
    out.wait_ns = w->waited[rank];
    return epw_prefill_dispatch(w->g.of[rank], w->routings[rank], &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &out,
                                &w->outcomes[rank]);
}

static epw_status begin_combine(waits *w, uint32_t rank) {
    static _Alignas(64) const uint16_t expert_out[RANKS * TOKENS * TOPK * WIDTH];
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    in.expert_out = expert_out;
    in.width = WIDTH;
    in.nonblocking = 1;
    out.out = w->out[rank];
    out.wait_ns = w->waited[rank];
    return epw_prefill_combine(w->g.of[rank], w->routings[rank], &in, &out, &w->outcomes[rank]);
}

/* Continues all operations that have begun. True: one of them has not ended. */
static bool continue_all(waits *w, uint32_t ranks) {
    bool more = false;
    for (uint32_t r = 0; r < ranks; r++) {
        if (w->ended[r] != EPW_PENDING) continue;
        w->ended[r] = epw_prefill_poll(w->g.of[r], w->routings[r], &w->outcomes[r]);
        more |= w->ended[r] == EPW_PENDING;
    }
    return more;
}

static uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * MS + (uint64_t)now.tv_nsec;
}

/* The output adds the whole delay to the late rank's number, not half of it to another one's, and nothing to
 * its own and to what lies behind. */
static void the_output_says_who_was_waited_for(waits *w, begins *begin, bool pauses) {
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t p = 0; p <= RANKS; p++) w->waited[r][p] = GIVEN;
    for (uint32_t r = 0; r < RANKS; r++) w->outcomes[r] = (epw_outcome)EPW_OUTCOME_INIT;
    for (uint32_t r = 0; r < LATE; r++) w->ended[r] = begin(w, r);
    uint32_t turn = 0; /* without pauses the first rank has nearly all of them */
    for (uint64_t began = clock_ns(); clock_ns() - began < longer * LATE_MS * MS;) {
        (void)continue_all(w, pauses || turn++ % 64 == 0 ? LATE : 1);
        if (pauses) usleep(500);
    }
    for (uint32_t r = 0; r < LATE; r++) CHECK(w->ended[r] == EPW_PENDING);
    w->ended[LATE] = begin(w, LATE);
    while (continue_all(w, RANKS)) {
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        CHECK(w->ended[r] == EPW_OK && !w->outcomes[r].degraded);
        for (uint32_t p = 0; p <= RANKS; p++) {
            uint64_t added = w->waited[r][p] - GIVEN;
            bool was_late = p == LATE && r != LATE, nobody = p == r || p == RANKS;
            /* The last rank waits for nobody. Of another one's time most is that of the late rank. */
            uint64_t late = r == LATE ? longer * LATE_MS * MS : w->waited[r][LATE] - GIVEN;
            CHECK_MSG(nobody     ? added == 0
                      : was_late ? added >= longer * LATE_MS * MS * 3 / 4
                                 : added < late / 2,
                      "rank %u: %llu ns for %u", r, (unsigned long long)added, p);
        }
    }
}

static void outputs_say_who_was_waited_for(void) {
    static waits w;
    epw_prefill_config config = config_for(RANKS, TOKENS * TOPK + 1);
    w.g = make_prefills(&config);
    for (uint32_t r = 0; r < RANKS; r++) CHECK_OK(epw_routing_create(w.g.of[r], &w.routings[r]));
    for (int pauses = 0; pauses < 2; pauses++) {
        the_output_says_who_was_waited_for(&w, begin_dispatch, pauses);
        the_output_says_who_was_waited_for(&w, begin_combine, pauses);
    }
    for (uint32_t r = 0; r < RANKS; r++) epw_routing_free(w.routings[r]);
    destroy_prefills(&w.g);
}

static void wrong_calls_are_refused(void) {
    epw_prefill_config config = config_for(1, 0);
    prefills g = make_prefills(&config);
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    CHECK_OK(epw_prefill_traffic(g.of[0], &traffic, NULL));
    CHECK(traffic.operations == 0 && traffic.bytes_sent == 0);
    REFUSED(epw_prefill_traffic(NULL, &traffic, NULL), EPW_ERR_INVALID, "traffic", -1, -1, "prefill is NULL");
    REFUSED(epw_prefill_traffic(g.of[0], NULL, NULL), EPW_ERR_INVALID, "traffic", 0, -1, "traffic is NULL");
    destroy_prefills(&g);
}

int main(void) {
    for (int halves = 0; halves < 2; halves++) {
        rows_and_bytes_are_those_of_the_routing(EPW_COMBINE_RANK_REDUCED, EPW_PAYLOAD_SAME, halves);
        rows_and_bytes_are_those_of_the_routing(EPW_COMBINE_ORDERED, EPW_PAYLOAD_FP8_F32, halves);
    }
    the_wait_for_a_peer_is_counted();
    KEEP_TIME(outputs_say_who_was_waited_for());
    wrong_calls_are_refused();
    return check_result("prefill_traffic");
}
