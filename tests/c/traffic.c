/* What a buffer counts of its traffic: rows and bytes according to the routing, and waits. Its peers are
 * reached as make_group says. */
#include "group.h"

#include <pthread.h>
#include <unistd.h>

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

/* And the answers of an ordered combine to them: one for each entry. */
static uint32_t entries_to(const batch *made, uint32_t to) {
    uint32_t entries = 0;
    for (uint32_t i = 0; i < TOKENS * TOPK; i++)
        entries += made->ids[i] >= 0 && (uint32_t)made->ids[i] / (EXPERTS / 2) == to;
    return entries;
}

typedef struct rank {
    epw_buffer *of;
    uint32_t rank, mode, steps;
    batch made;
} rank;

static void *steps(void *argument) {
    rank *self = argument;
    for (uint32_t i = 0; i < self->steps; i++) {
        epw_dispatch_input in = make_batch(&self->made, self->rank);
        static _Alignas(64) _Thread_local uint16_t rows[EXPERTS / 2 * 2 * TOKENS * HIDDEN],
            out[TOKENS * HIDDEN];
        epw_dispatch_output received = EPW_DISPATCH_OUTPUT_INIT;
        uint32_t counts[EXPERTS / 2];
        received.rows = rows;
        received.counts = counts;
        epw_outcome outcome = EPW_OUTCOME_INIT;
        epw_handle handle;
        CHECK_OK(epw_dispatch(self->of, &in, &received, &handle, &outcome));
        epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
        answer.expert_out = rows;
        answer.mode = self->mode;
        epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
        result.out = out;
        CHECK_OK(epw_combine(self->of, handle, &answer, &result, &outcome));
        CHECK(!outcome.degraded);
    }
    return NULL;
}

static void check_counts(const rank ranks[2], uint32_t r, uint32_t (*answers)(const batch *, uint32_t)) {
    const uint64_t row = HIDDEN * 2, n = ranks[r].steps;
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    epw_peer_traffic peers[2];
    CHECK_OK(epw_buffer_traffic(ranks[r].of, &traffic, peers));
    uint64_t sent = 0, received = 0, answered = 0, bytes_sent = 0, bytes_received = 0;
    for (uint32_t p = 0; p < 2; p++) {
        uint64_t to = rows_to(&ranks[r].made, p), from = rows_to(&ranks[p].made, r);
        uint64_t made = answers(&ranks[p].made, r), come = answers(&ranks[r].made, p);
        CHECK_MSG(peers[p].bytes_sent == n * (to + made) * row, "rank %u: %llu bytes to %u", r,
                  (unsigned long long)peers[p].bytes_sent, p);
        CHECK_MSG(peers[p].bytes_received == n * (from + come) * row, "rank %u: %llu bytes from %u", r,
                  (unsigned long long)peers[p].bytes_received, p);
        sent += to, received += from, answered += made;
        bytes_sent += peers[p].bytes_sent, bytes_received += peers[p].bytes_received;
    }
    CHECK(traffic.operations == 2 * n);
    CHECK_MSG(traffic.rows_sent == n * sent && traffic.rows_received == n * received,
              "rank %u: %llu rows sent, %llu received", r, (unsigned long long)traffic.rows_sent,
              (unsigned long long)traffic.rows_received);
    CHECK_MSG(traffic.rows_answered == n * answered, "rank %u: %llu answered of %llu", r,
              (unsigned long long)traffic.rows_answered, (unsigned long long)(n * answered));
    CHECK(traffic.bytes_sent == bytes_sent && traffic.bytes_received == bytes_received);
}

static void rows_and_bytes_are_those_of_the_routing(uint32_t mode) {
    group g = make_group(2, 10000 * MS);
    activate(&g, 1);
    static rank ranks[2];
    pthread_t threads[2];
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r] = (rank){.of = g.of[r], .rank = r, .mode = mode, .steps = 3};
        CHECK(pthread_create(&threads[r], NULL, steps, &ranks[r]) == 0);
    }
    for (uint32_t r = 0; r < 2; r++) pthread_join(threads[r], NULL);
    for (uint32_t r = 0; r < 2; r++)
        check_counts(ranks, r, mode == EPW_COMBINE_ORDERED ? entries_to : rows_to);
    destroy(&g);
}

/* Its peer dispatches a while later. */
static void the_wait_for_a_peer_is_counted(void) {
    enum { LATE_MS = 30 };
    group g = make_group(2, 10000 * MS);
    activate(&g, 1);
    static batch made[2];
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_handle handles[2];
    epw_status ended[2];
    for (uint32_t r = 0; r < 2; r++) {
        epw_dispatch_input in = make_batch(&made[r], r);
        in.layout = EPW_RANK_MAJOR;
        in.nonblocking = 1;
        ended[r] = epw_dispatch(g.of[r], &in, &nothing, &handles[r], &outcome);
        for (uint32_t ms = 0; r == 0 && ms < LATE_MS && ended[0] == EPW_PENDING; ms++) {
            usleep(1000);
            ended[0] = epw_poll(g.of[0], handles[0], &outcome);
        }
    }
    while (ended[0] == EPW_PENDING || ended[1] == EPW_PENDING)
        for (uint32_t r = 0; r < 2; r++)
            if (ended[r] == EPW_PENDING) ended[r] = epw_poll(g.of[r], handles[r], &outcome);
    CHECK(ended[0] == EPW_OK && ended[1] == EPW_OK);
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    epw_peer_traffic peers[2];
    CHECK_OK(epw_buffer_traffic(g.of[0], &traffic, peers));
    CHECK_MSG(peers[1].wait_ns >= LATE_MS * MS / 2 && peers[0].wait_ns < LATE_MS * MS / 2,
              "waited %llu ns for itself, %llu for its peer", (unsigned long long)peers[0].wait_ns,
              (unsigned long long)peers[1].wait_ns);
    destroy(&g);
}

static void wrong_calls_are_refused(void) {
    group g = make_group(1, 100 * MS);
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    CHECK_OK(epw_buffer_traffic(g.of[0], &traffic, NULL));
    CHECK(traffic.operations == 0 && traffic.rows_sent == 0 && traffic.bytes_sent == 0);
    REFUSED(epw_buffer_traffic(NULL, &traffic, NULL), EPW_ERR_INVALID, "traffic", -1, -1, "buffer is NULL");
    REFUSED(epw_buffer_traffic(g.of[0], NULL, NULL), EPW_ERR_INVALID, "traffic", 0, -1, "traffic is NULL");
    traffic.size--;
    REFUSED(epw_buffer_traffic(g.of[0], &traffic, NULL), EPW_ERR_INVALID, "traffic", 0, -1,
            "EPW_TRAFFIC_INIT");
    traffic = (epw_traffic)EPW_TRAFFIC_INIT;
    traffic.peer_size++;
    REFUSED(epw_buffer_traffic(g.of[0], &traffic, NULL), EPW_ERR_INVALID, "traffic", 0, -1, "peer_size");
    destroy(&g);
}

int main(void) {
    rows_and_bytes_are_those_of_the_routing(EPW_COMBINE_RANK_REDUCED);
    rows_and_bytes_are_those_of_the_routing(EPW_COMBINE_ORDERED);
    the_wait_for_a_peer_is_counted();
    wrong_calls_are_refused();
    return check_result("traffic");
}
