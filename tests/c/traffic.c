/* What a buffer counts of its traffic: rows and bytes according to the routing, for whole operations and
 * halves. */
#include "group.h"

/* The rows of a batch for `to`: tokens with an expert there. */
static uint32_t rows_to(const batch *made, uint32_t to) {
    uint32_t rows = 0;
    for (uint32_t t = 0; t < TOKENS; t++) {
        int goes = 0;
        for (uint32_t j = 0; j < TOPK; j++) {
            int32_t id = made->ids[t * TOPK + j];
            goes |= id >= 0 && (uint32_t)id / (EXPERTS / 2) == to;
        }
        rows += goes != 0;
    }
    return rows;
}

static void rows_and_bytes_are_those_of_the_routing(void) {
    group g = make_group(2, 10000 * MS);
    activate(&g, 1);
    static batch made[2];
    epw_handle handles[2];
    dispatch_both(&g, made, handles);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    static _Alignas(64) uint16_t out[TOKENS * HIDDEN];
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    result.out = out;
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_combine(g.of[r], handles[r], &answer, NULL, &outcome));
    for (uint32_t r = 0; r < 2; r++) {
        CHECK_OK(epw_combine_receive(g.of[r], handles[r], &result, &outcome));
        CHECK(!outcome.degraded);
    }
    const uint64_t row = HIDDEN * 2;
    for (uint32_t r = 0; r < 2; r++) {
        epw_traffic traffic = EPW_TRAFFIC_INIT;
        uint64_t wait_ns[2];
        CHECK_OK(epw_buffer_traffic(g.of[r], &traffic, wait_ns));
        uint64_t sent = rows_to(&made[r], 0) + rows_to(&made[r], 1);
        uint64_t received = rows_to(&made[0], r) + rows_to(&made[1], r);
        CHECK_MSG(traffic.rows_sent == sent, "rank %u: sent %llu of %llu", r,
                  (unsigned long long)traffic.rows_sent, (unsigned long long)sent);
        CHECK_MSG(traffic.rows_received == received && traffic.rows_answered == received,
                  "rank %u: received %llu and answered %llu of %llu", r,
                  (unsigned long long)traffic.rows_received, (unsigned long long)traffic.rows_answered,
                  (unsigned long long)received);
        CHECK(traffic.bytes_received == received * row);
        CHECK(traffic.bytes_sent == (sent + received) * row);
        CHECK(wait_ns[r] < 10000 * MS);
    }
    destroy(&g);
}

static void wrong_calls_are_refused(void) {
    group g = make_group(1, 100 * MS);
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    CHECK_OK(epw_buffer_traffic(g.of[0], &traffic, NULL));
    CHECK(traffic.rows_sent == 0 && traffic.bytes_sent == 0);
    REFUSED(epw_buffer_traffic(NULL, &traffic, NULL), EPW_ERR_INVALID, "traffic", -1, -1, "buffer is NULL");
    REFUSED(epw_buffer_traffic(g.of[0], NULL, NULL), EPW_ERR_INVALID, "traffic", 0, -1, "traffic is NULL");
    traffic.size--;
    REFUSED(epw_buffer_traffic(g.of[0], &traffic, NULL), EPW_ERR_INVALID, "traffic", 0, -1,
            "EPW_TRAFFIC_INIT");
    destroy(&g);
}

int main(void) {
    rows_and_bytes_are_those_of_the_routing();
    wrong_calls_are_refused();
    return check_result("traffic");
}
