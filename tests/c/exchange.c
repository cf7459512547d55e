/* A MoE step across ranks that are threads of this process, through epwire.h alone: dispatch, identity
 * experts, combine. With mapped windows; with queues between all ranks, by sockets of the host and by TCP;
 * with queues to one rank; and with strict NICs, which notice wrong uses of queues by the peer floor.
 * ThreadSanitizer and AddressSanitizer see the protocol's memory accesses in this test. */
#include "check.h"
#include "epwire.h"
#include "nic/fabric.h"
#include "nic/soft/strict.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, TOKENS = 24, HIDDEN = 256, EXPERTS = 16, TOPK = 4, STEPS = 20 };

static unsigned char blobs[RANKS][RANKS][EPW_BLOB_MAX];
static size_t lengths[RANKS][RANKS];
static pthread_barrier_t barrier;
static uint32_t first_queued; /* ranks from this one on are behind queues */
static bool strict;           /* NICs are strict, see nic/soft/strict.h */
static uint32_t wires;        /* the wires that carry queues */
static uint32_t depth, batch; /* of queues, as requested; 0: chosen by the library */
static const unsigned char key[32] = "known to all ranks of this test";

static uint16_t bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)(bits >> 16);
}

static uint32_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Small integers, whose sums are exact in bf16 in any order. */
static void make_tokens(uint64_t *seed, uint32_t n, uint16_t *x, int32_t *ids, float *weights) {
    for (uint32_t i = 0; i < n * HIDDEN; i++) x[i] = bf16((float)(next(seed) % 8));
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t j = 0; j < TOPK; j++) {
            int32_t id;
            int again;
            do {
                id = (int32_t)(next(seed) % EXPERTS);
                again = 0;
                for (uint32_t i = 0; i < j; i++) again |= ids[t * TOPK + i] == id;
            } while (again);
            ids[t * TOPK + j] = id;
            weights[t * TOPK + j] = 0.25f;
        }
    }
}

static void step(epw_buffer *buffer, const epw_plan *plan, uint64_t *seed, uint32_t layout, int split) {
    uint16_t x[TOKENS * HIDDEN];
    int32_t ids[TOKENS * TOPK];
    float weights[TOKENS * TOPK];
    uint32_t n = next(seed) % (TOKENS + 1);
    make_tokens(seed, n, x, ids, weights);

    uint64_t rows = plan->rows, lists = layout == EPW_EXPERT_MAJOR ? plan->local_experts : 1;
    uint16_t *received = aligned_alloc(64, lists * rows * HIDDEN * 2);
    uint16_t *result = aligned_alloc(64, TOKENS * HIDDEN * 2);
    uint32_t counts[EXPERTS], sources[RANKS];
    uint16_t contributions[TOKENS][2];

    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = n;
    in.x = x;
    in.topk_idx = ids;
    in.topk_weights = weights;
    in.topk = TOPK;
    in.layout = layout;
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    out.rows = received;
    out.counts = counts;
    out.source_counts = sources;
    float *row_weights = calloc(rows * TOPK, sizeof(float));
    out.row_weights = layout == EPW_RANK_MAJOR ? row_weights : NULL;

    epw_handle handle;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_dispatch(buffer, &in, split ? NULL : &out, &handle, &outcome));
    if (split) CHECK_OK(epw_dispatch_receive(buffer, handle, &out, &outcome));
    CHECK_MSG(!outcome.degraded, "rank missing: %u", outcome.record.peer);

    if (layout ==
        EPW_RANK_MAJOR) { /* reduce over the local experts: here, multiply by the sum of the weights */
        for (uint32_t s = 0; s < RANKS; s++) {
            for (uint64_t i = s * TOKENS; i < s * TOKENS + sources[s]; i++) {
                float w = 0;
                for (int j = 0; j < TOPK; j++) w += row_weights[i * TOPK + j];
                for (int c = 0; c < HIDDEN; c++) {
                    uint32_t bits = (uint32_t)received[i * HIDDEN + c] << 16;
                    float v;
                    memcpy(&v, &bits, 4);
                    received[i * HIDDEN + c] = bf16(v * w);
                }
            }
        }
    }
    epw_combine_input combine = EPW_COMBINE_INPUT_INIT;
    combine.expert_out = received;
    epw_combine_output combined = EPW_COMBINE_OUTPUT_INIT;
    combined.out = result;
    combined.contributions = contributions[0];
    CHECK_OK(epw_combine(buffer, handle, &combine, split ? NULL : &combined, &outcome));
    if (split) CHECK_OK(epw_combine_receive(buffer, handle, &combined, &outcome));
    CHECK_MSG(!outcome.degraded, "rank missing: %u", outcome.record.peer);
    CHECK_MSG(memcmp(result, x, n * HIDDEN * 2) == 0, "%u tokens, layout %u", n, layout);
    for (uint32_t t = 0; t < n; t++) {
        CHECK_MSG(contributions[t][0] == TOPK && contributions[t][1] == TOPK, "token %u: %u", t,
                  contributions[t][0]);
    }
    free(received);
    free(result);
    free(row_weights);
}

static void *rank_main(void *argument) {
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    epw_config config = EPW_CONFIG_INIT;
    config.rank = rank;
    config.ranks = RANKS;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.threads = rank == 0 ? 2 : 1;
    epw_fabric *fabric = NULL;
    if (first_queued < RANKS) {
        epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
        options.rank = rank;
        options.wires = wires;
        options.interfaces = "=lo";
        options.key = key;
        options.queue_depth = depth;
        options.doorbell_batch = batch;
        CHECK_OK(epw_fabric_create(&options, &fabric));
        epw_where where = {"exchange", (int)rank, -1};
        if (strict) CHECK_OK(epw_nic_be_strict(epw_fabric_nic(fabric), rank, 200, where));
        config.fabric = fabric;
    }
    if (rank >= first_queued) config.paths = EPW_PATH_QUEUE;
    epw_plan plan = EPW_PLAN_INIT;
    CHECK_OK(epw_plan_make(&config, &plan));
    CHECK(plan.ring_bytes >= (uint64_t)depth * 64 * (RANKS - 1) * config.lanes || rank < first_queued);
    epw_buffer *buffer = NULL;
    CHECK_OK(epw_buffer_create(&config, &buffer));
    for (uint32_t p = 0; p < RANKS; p++) {
        if (p != rank) CHECK_OK(epw_buffer_export(buffer, p, blobs[rank][p], &lengths[rank][p]));
    }
    pthread_barrier_wait(&barrier);
    epw_mask all = {{0}};
    for (uint32_t p = 0; p < RANKS; p++) {
        all.bits[0] |= UINT64_C(1) << p;
        if (p == rank) continue;
        CHECK_OK(epw_buffer_connect(buffer, p, blobs[p][rank], lengths[p][rank]));
        bool queued = rank >= first_queued; /* whether what this rank writes goes by queues */
        uint32_t path = epw_buffer_path(buffer, p);
        uint32_t by = wires & EPW_WIRE_LOCAL ? EPW_WIRE_LOCAL : EPW_WIRE_TCP;
        CHECK(epw_buffer_wire(buffer, p) == (queued ? by : 0));
        CHECK_MSG(path == (queued ? EPW_PATH_QUEUE : EPW_PATH_THREAD), "%u", path);
    }
    CHECK_OK(epw_buffer_set_active(buffer, &all, 1, 0));
    uint64_t seed = 1000 + rank;
    for (int i = 0; i < STEPS; i++) step(buffer, &plan, &seed, i & 1, i & 2);
    pthread_barrier_wait(&barrier);
    epw_buffer_destroy(buffer);
    pthread_barrier_wait(&barrier);
    epw_fabric_destroy(fabric);
    return NULL;
}

static void run(uint32_t from, uint32_t by) {
    pthread_t threads[RANKS];
    first_queued = from;
    wires = by;
    for (uintptr_t r = 0; r < RANKS; r++) pthread_create(&threads[r], NULL, rank_main, (void *)r);
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
}

int main(void) {
    pthread_barrier_init(&barrier, NULL, RANKS);
    run(RANKS, EPW_WIRE_LOCAL);
    run(0, EPW_WIRE_LOCAL);
    run(0, EPW_WIRE_TCP);
    run(RANKS - 1, EPW_WIRE_LOCAL | EPW_WIRE_TCP);
    /* The shallowest queues that operations can use, and the deepest; doorbells after every entry, and in
     * batches. */
    static const struct { uint32_t depth, batch; } settings[] = {{16, 1}, {32768, 32}, {0, 32768}};
    for (int i = 0; i < 3; i++) {
        depth = settings[i].depth, batch = settings[i].batch;
        run(0, i == 1 ? EPW_WIRE_TCP : EPW_WIRE_LOCAL);
    }
    strict = true;
    depth = 0, batch = 1;
    run(0, EPW_WIRE_LOCAL);
    batch = 0;
    run(0, EPW_WIRE_LOCAL);
    return check_result("exchange");
}
