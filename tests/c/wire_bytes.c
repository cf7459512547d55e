/* What is sent between ranks behind queues: the header, payload and scales of each row, and nothing else. */
#include "group.h"

#include "ep/buffer.h"
#include "nic/fabric.h"
#include "nic/soft/frame.h"

#include <time.h>

static epw_nic_traffic sent_by(const group *g, uint32_t rank) {
    return epw_nic_sent(epw_fabric_nic(g->fabrics[rank]));
}

/* Waits until so many frames have been sent, and then nothing for a while, because ACKs come late. */
static epw_nic_traffic settled(const group *g, uint32_t rank, uint64_t frames) {
    epw_nic_traffic was = sent_by(g, rank), is = was;
    for (int quiet = 0, turns = 0; quiet < 50 && turns < 10000; turns++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        is = sent_by(g, rank);
        quiet = is.bytes == was.bytes && is.frames >= frames ? quiet + 1 : 0;
        was = is;
    }
    return is;
}

/* The rows of the batch for rank 1. */
static uint64_t rows_to_peer(const batch *made) {
    uint64_t rows = 0;
    for (uint32_t t = 0; t < TOKENS; t++) {
        bool goes = false;
        for (uint32_t j = 0; j < TOPK; j++) goes |= made->ids[t * TOPK + j] >= EXPERTS / 2;
        rows += goes;
    }
    return rows;
}

/* Bytes of a row beside its payload and scales: 16 of its own, 12 for each expert, and the sideband, rounded
 * up to a multiple of 128. */
enum { HEADER = (16 + 12 * TOPK + SIDEBAND + 127) / 128 * 128, WORD = 8 };

/* For all rows, the counts and the word; and for the ACK of the peer's word. */
enum { FRAMES = 4 };

/* `data`: the bytes of a row's payload and scales. */
static void dispatch_travels_as(uint32_t payload, uint64_t data) {
    group g = make_group(2, 5000 * MS);
    activate(&g, 1);
    settled(&g, 1, 0);
    epw_nic_traffic before = settled(&g, 0, 0);
    batch made[2];
    epw_handle handles[2];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    for (uint32_t r = 0; r < 2; r++) {
        epw_dispatch_input in = make_batch(&made[r], r);
        in.layout = EPW_RANK_MAJOR;
        in.payload = payload;
        for (uint32_t i = 0; r == 0 && i < TOKENS * TOPK; i++) /* every third token stays on this rank */
            if (i / TOPK % 3 == 0) made[0].ids[i] = (int32_t)(i % TOPK);
        CHECK_OK(epw_dispatch(g.of[r], &in, NULL, &handles[r], &outcome));
    }
    for (uint32_t r = 0; r < 2; r++) {
        CHECK_OK(epw_dispatch_receive(g.of[r], handles[r], &nothing, &outcome));
        CHECK(!outcome.degraded);
    }
    epw_nic_traffic after = settled(&g, 0, before.frames + FRAMES);
    uint64_t rows = rows_to_peer(&made[0]), frames = after.frames - before.frames;
    uint64_t bytes = after.bytes - before.bytes - frames * EPW_FRAME_BYTES;
    uint64_t counts = EXPERTS / 2 * sizeof(uint32_t);
    CHECK(rows > 0 && rows < TOKENS);
    CHECK_MSG(bytes == rows * (HEADER + data) + counts + WORD, "%llu rows took %llu bytes",
              (unsigned long long)rows, (unsigned long long)bytes);
    CHECK_MSG(frames == FRAMES, "%llu frames, not %d", (unsigned long long)frames, FRAMES);
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_release(g.of[r], handles[r]));
    destroy(&g);
}

/* The counts have as many bytes as the only row, so that both travel in one frame, whose places lie in two
 * areas of the peer's window. */
static void counts_may_be_as_long_as_a_row(void) {
    enum { EXPERTS_HERE = 2 * (HEADER + 2 * HIDDEN) / sizeof(uint32_t) };
    group g = {.ranks = 2};
    for (uint32_t r = 0; r < 2; r++) {
        epw_config config = config_of(r, 2);
        config.experts = EXPERTS_HERE;
        config.zero_copy = 0;
        config.deadline_ns = 20000 * MS;
        take_path(&config, &g.fabrics[r]);
        CHECK_OK(epw_buffer_create(&config, &g.of[r]));
    }
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(connect_within(g.of[r], r, g.of[1 - r], 1 - r, SETUP_NS));
    activate(&g, 1);
    settled(&g, 1, 0);
    epw_nic_traffic before = settled(&g, 0, 0);
    batch made[2];
    epw_handle handles[2];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    for (uint32_t r = 0; r < 2; r++) {
        epw_dispatch_input in = make_batch(&made[r], r);
        in.layout = EPW_RANK_MAJOR;
        in.tokens = 1;
        for (int32_t j = 0; j < TOPK; j++) made[r].ids[j] = r == 0 ? EXPERTS_HERE - 1 - j : j;
        CHECK_OK(epw_dispatch(g.of[r], &in, NULL, &handles[r], &outcome));
    }
    static uint16_t rows[2][2 * TOKENS * HIDDEN];
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t counts[EXPERTS_HERE / 2], sources[2];
        epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
        out.rows = rows[r];
        out.counts = counts;
        out.source_counts = sources;
        CHECK_OK(epw_dispatch_receive(g.of[r], handles[r], &out, &outcome));
        CHECK_MSG(!outcome.degraded, "rank %u misses a peer, cause %u", r, outcome.record.cause);
        CHECK(sources[1 - r] == 1 && sources[r] == 0);
        CHECK(memcmp(rows[r] + (1 - r) * TOKENS * HIDDEN, made[1 - r].x, 2 * HIDDEN) == 0);
    }
    epw_nic_traffic after = settled(&g, 0, before.frames + FRAMES - 1);
    CHECK(after.frames - before.frames == FRAMES - 1);
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_release(g.of[r], handles[r]));
    destroy(&g);
}

int main(void) {
    setenv("EPW_TEST_PATH", "queue", 1);
    dispatch_travels_as(EPW_PAYLOAD_SAME, HIDDEN * 2);
    /* A scale of 4 bytes for 128 channels, and rows in multiples of 16 bytes. */
    dispatch_travels_as(EPW_PAYLOAD_FP8_F32, (HIDDEN + HIDDEN / 128 * 4 + 15) / 16 * 16);
    counts_may_be_as_long_as_a_row();
    return check_result("wire_bytes");
}
