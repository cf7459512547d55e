/* Ranks for tests of the interface: connected buffers of this process, a batch of tokens, and a check of
 * everything that an error says. Uses nothing of epwire but epwire.h. */
#ifndef EPW_TESTS_GROUP_H
#define EPW_TESTS_GROUP_H

#include "check.h"
#include "epwire.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS_MAX = 3, TOKENS = 16, HIDDEN = 256, EXPERTS = 12, TOPK = 4, SIDEBAND = 8 };

#define MS UINT64_C(1000000)

static inline epw_config config_of(uint32_t rank, uint32_t ranks) {
    epw_config config = EPW_CONFIG_INIT;
    config.rank = rank;
    config.ranks = ranks;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.sideband_bytes = SIDEBAND;
    config.ordered = config.zero_copy = 1;
    config.threads = 1;
    return config;
}

static inline epw_mask first_ranks(uint32_t ranks) {
    epw_mask mask = {{(UINT64_C(1) << ranks) - 1}};
    return mask;
}

/* The blob that `to` exports to the rank. Returns its length. */
static inline size_t blob_for(uint32_t rank, epw_buffer *to, unsigned char blob[EPW_BLOB_MAX]) {
    size_t length = 0;
    CHECK_OK(epw_buffer_export(to, rank, blob, &length));
    return length;
}

static inline epw_status connect_to(epw_buffer *from, uint32_t rank, epw_buffer *to, uint32_t peer) {
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = blob_for(rank, to, blob);
    return epw_buffer_connect(from, peer, blob, length);
}

/* The same with a deadline of its own. Groups with short deadlines are set up with SETUP_NS, so that a busy
 * machine does not fail a test of something else. */
#define SETUP_NS UINT64_C(20000000000)
static inline epw_status connect_within(epw_buffer *from, uint32_t rank, epw_buffer *to, uint32_t peer,
                                        uint64_t deadline_ns) {
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = blob_for(rank, to, blob);
    return epw_buffer_connect_within(from, peer, blob, length, deadline_ns);
}

typedef struct group {
    uint32_t ranks;
    epw_buffer *of[RANKS_MAX];
    epw_fabric *fabrics[RANKS_MAX];
} group;

/* EPW_TEST_PATH=queue: no rank maps another one's window. EPW_TEST_WIRE=tcp: queues within this host use TCP
 * too; verbs: the first RDMA adapter. EPW_TEST_NIC=strict: strict NICs; fake: a fake adapter for each rank;
 * fakes: two for each rank, between which lanes alternate. */
static inline uint32_t path_of_test(void) {
    const char *name = getenv("EPW_TEST_PATH");
    return name != NULL && strcmp(name, "queue") == 0 ? EPW_PATH_QUEUE : EPW_PATH_THREAD;
}

/* Whether an adapter places words, which wakes nobody: then a thread polls them. */
static inline int words_are_watched(void) {
    const char *wire = getenv("EPW_TEST_WIRE"), *nic = getenv("EPW_TEST_NIC");
    return path_of_test() == EPW_PATH_QUEUE &&
           ((wire != NULL && strcmp(wire, "verbs") == 0) || (nic != NULL && strcmp(nic, "fake") == 0));
}

/* Over a mapped window, what a peer writes is there when its call returns, and must be: then this does
 * nothing. Over a queue it takes time: this waits for the condition, at most 10 s, and the following check
 * decides. */
#define AWAIT(condition)                                                                                     \
    do {                                                                                                     \
        for (int ms_ = 0; ms_ < 10000 && path_of_test() == EPW_PATH_QUEUE && !(condition); ms_++)            \
            nanosleep(&(struct timespec){0, 1000000}, NULL);                                                 \
    } while (0)

/* Sets the configuration to the paths that the test asks for. */
static inline void take_path(epw_config *config, epw_fabric **fabric) {
    *fabric = NULL;
    if (path_of_test() != EPW_PATH_QUEUE) return;
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    options.rank = config->rank;
    const char *wire = getenv("EPW_TEST_WIRE");
    static const unsigned char key[32] = "known to all ranks of the tests";
    if (wire != NULL && strcmp(wire, "verbs") == 0) options.wires = EPW_WIRE_VERBS;
    if (wire != NULL && strcmp(wire, "tcp") == 0) {
        options.wires = EPW_WIRE_TCP;
        options.interfaces = "lo";
        options.key = key;
    }
    const char *nic = getenv("EPW_TEST_NIC");
    if (nic != NULL && strcmp(nic, "strict") == 0) options.nic = EPW_NIC_STRICT;
    if (nic != NULL && strncmp(nic, "fake", 4) == 0) options.nic = EPW_NIC_FAKE;
    if (nic != NULL && strcmp(nic, "fakes") == 0) options.adapter_count = 2;
    CHECK_OK(epw_fabric_create(&options, fabric));
    config->fabric = *fabric;
    config->paths = EPW_PATH_QUEUE;
}

/* A peer has connected this rank again. Over queues that is not enough: a queue serves both directions, and
 * its other end is gone. */
static inline void connect_back(epw_buffer *from, uint32_t rank, epw_buffer *to, uint32_t peer) {
    if (path_of_test() == EPW_PATH_QUEUE) CHECK_OK(connect_within(from, rank, to, peer, SETUP_NS));
}

/* Makes a rank to which nobody is connected yet. */
static inline epw_buffer *make_rank(uint32_t rank, uint32_t ranks, uint64_t deadline_ns,
                                    epw_fabric **fabric) {
    epw_buffer *made = NULL;
    epw_config config = config_of(rank, ranks);
    config.deadline_ns = deadline_ns;
    take_path(&config, fabric);
    CHECK_OK(epw_buffer_create(&config, &made));
    return made;
}

/* Makes a connected group without a membership. */
static inline group make_group(uint32_t ranks, uint64_t deadline_ns) {
    group g = {.ranks = ranks};
    for (uint32_t r = 0; r < ranks; r++) g.of[r] = make_rank(r, ranks, deadline_ns, &g.fabrics[r]);
    for (uint32_t r = 0; r < ranks; r++) {
        for (uint32_t p = 0; p < ranks; p++) {
            CHECK(epw_buffer_path(g.of[r], p) == (p == r ? EPW_PATH_SELF : EPW_PATH_NONE));
            if (p == r) continue;
            CHECK_OK(connect_within(g.of[r], r, g.of[p], p, SETUP_NS));
            CHECK(epw_buffer_path(g.of[r], p) == path_of_test());
        }
    }
    return g;
}

static inline void activate(const group *g, uint32_t epoch) {
    epw_mask all = first_ranks(g->ranks);
    for (uint32_t r = 0; r < g->ranks; r++) CHECK_OK(epw_buffer_set_active(g->of[r], &all, epoch, 0));
}

static inline epw_membership membership_of(const epw_buffer *b) {
    epw_membership membership = EPW_MEMBERSHIP_INIT;
    CHECK_OK(epw_buffer_membership(b, &membership));
    return membership;
}

static inline void destroy(const group *g) {
    for (uint32_t r = 0; r < g->ranks; r++) epw_buffer_destroy(g->of[r]);
    for (uint32_t r = 0; r < g->ranks; r++) epw_fabric_destroy(g->fabrics[r]);
}

/* The call must fail with this status, with operation, rank and peer in the detail, and these words in the
 * text. */
#define REFUSED(call, want, op, rank, peer, words)                                                           \
    refused(__LINE__, (call), (want), (op), (rank), (peer), (words))

static inline void refused(int line, epw_status got, epw_status want, const char *op, int rank, int peer,
                           const char *words) {
    epw_error_detail detail = EPW_ERROR_DETAIL_INIT;
    epw_last_error_detail(&detail);
    CHECK_MSG(got == want, "line %d: %s instead of %s", line, epw_status_name(got), epw_status_name(want));
    CHECK_MSG(strcmp(detail.op, op) == 0, "line %d: op is %s", line, detail.op);
    CHECK_MSG(detail.rank == rank && detail.peer == peer, "line %d: rank %d, peer %d", line, detail.rank,
              detail.peer);
    CHECK_MSG(strstr(detail.text, words) != NULL, "line %d: %s", line, detail.text);
    CHECK_MSG(strncmp(epw_last_error(), op, strlen(op)) == 0 && strstr(epw_last_error(), detail.text) != NULL,
              "line %d: %s", line, epw_last_error());
}

/* Tokens and routing of one rank. Values are multiples of 4 below 32 and weights are 1/4, so every sum is
 * exact. */
typedef struct batch {
    _Alignas(64) uint16_t x[TOKENS * HIDDEN];
    int32_t ids[TOKENS * TOPK];
    float weights[TOKENS * TOPK];
    uint32_t sideband[TOKENS][2];
} batch;

static inline uint16_t bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)(bits >> 16);
}

static inline float from_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline epw_dispatch_input make_batch(batch *made, uint32_t rank) {
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        made->x[i] = bf16((float)((i * 7 + i / HIDDEN + rank) % 8 * 4));
    for (uint32_t i = 0; i < TOKENS * TOPK; i++) {
        uint32_t t = i / TOPK, j = i % TOPK;
        made->ids[i] = t == 0 && j == 2 ? -1 : (int32_t)((rank + t * 5 + j * 3) % EXPERTS);
        made->weights[i] = 0.25f;
        made->sideband[t][0] = rank;
        made->sideband[t][1] = t;
    }
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = TOKENS;
    in.x = made->x;
    in.topk_idx = made->ids;
    in.topk_weights = made->weights;
    in.topk = TOPK;
    in.sideband = made->sideband;
    in.sideband_bytes = SIDEBAND;
    return in;
}

/* Dispatches this thread's batch, rank-major; deadline_ns: 0, or of this operation. */
static inline epw_handle send_batch(epw_buffer *b, uint32_t rank, int32_t lane, uint64_t deadline_ns) {
    static _Thread_local batch made;
    epw_handle handle = 0;
    epw_dispatch_input in = make_batch(&made, rank);
    in.lane = lane;
    in.layout = EPW_RANK_MAJOR;
    in.deadline_ns = deadline_ns;
    CHECK_OK(epw_dispatch(b, &in, NULL, &handle, NULL));
    return handle;
}

/* Here a sending half waits for nobody, nor does receiving what has arrived. */
static inline void dispatch_both(const group *g, batch made[2], epw_handle handles[2]) {
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    for (uint32_t r = 0; r < 2; r++) {
        epw_dispatch_input in = make_batch(&made[r], r);
        in.layout = EPW_RANK_MAJOR;
        CHECK_OK(epw_dispatch(g->of[r], &in, NULL, &handles[r], &outcome));
        if (r == 1) AWAIT(epw_ready(g->of[r], handles[r]) == EPW_OK);
        CHECK(epw_ready(g->of[r], handles[r]) == (r == 0 ? EPW_PENDING : EPW_OK));
    }
    for (uint32_t r = 0; r < 2; r++) {
        AWAIT(epw_ready(g->of[r], handles[r]) == EPW_OK);
        CHECK(epw_ready(g->of[r], handles[r]) == EPW_OK);
        CHECK_OK(epw_dispatch_receive(g->of[r], handles[r], &nothing, &outcome));
        CHECK(!outcome.degraded && outcome.record.cause == EPW_CAUSE_NONE);
    }
}

static inline void consumed_handles_are_refused(epw_buffer *b, int rank, epw_handle handle) {
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_rows_view view = EPW_ROWS_VIEW_INIT;
    epw_dispatch_output rows = EPW_DISPATCH_OUTPUT_INIT;
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
#define USED(op, call) REFUSED((call), EPW_ERR_STATE, (op), rank, -1, "consumed")
    USED("dispatch_receive", epw_dispatch_receive(b, handle, &rows, NULL));
    USED("dispatched_rows", epw_dispatched_rows(b, handle, &view));
    USED("next_combine_buffer", epw_next_combine_buffer(b, handle, &view));
    USED("combine", epw_combine(b, handle, &answer, NULL, NULL));
    USED("combine_receive", epw_combine_receive(b, handle, &result, NULL));
    USED("poll", epw_poll(b, handle, NULL));
    USED("await", epw_await(b, handle, MS));
    USED("ready", epw_ready(b, handle));
    USED("release", epw_release(b, handle));
#undef USED
}

#endif
