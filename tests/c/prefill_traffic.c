/* What a prefill buffer counts: rows and bytes according to the routing, of both kinds of payload and
 * combine, in one call and in halves, through rings smaller than the batch; and waits. Its peers are reached
 * as make_prefills says. */
#include "prefills.h"

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
    wrong_calls_are_refused();
    return check_result("prefill_traffic");
}
