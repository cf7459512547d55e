/* A Mixture-of-Experts layer over two processes, in plain C.
 *
 * Each process is a rank that owns half of the experts and some tokens of its own. dispatch takes every token
 * to the ranks of its top-k experts, the experts run, and combine brings the weighted sums home. Blobs travel
 * through a socketpair here; MPI, files or anything else that carries bytes and is trusted would do as well.
 *
 *   cc -ffp-contract=off two_processes.c $(pkg-config --cflags --libs epwire) && ./a.out
 *
 * Prints one line and exits with 0 if both ranks' results equal a scalar reference bit for bit (hence
 * -ffp-contract=off: epwire fuses no multiplication with an addition either). */
#include <epwire.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, TOKENS = 48, HIDDEN = 512, EXPERTS = 8, TOPK = 3, LAYERS = 3 };

/* Every failing call leaves a text that names operation, rank, peer and remedy. */
#define TRY(call) ((call) == EPW_OK ? (void)0 : give_up(epw_last_error()))

static void give_up(const char *why) {
    fprintf(stderr, "two_processes: %s\n", why);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == NULL) give_up("no memory");
    return memory;
}

/* ---- The layer: tokens, routing, experts ---- */

static float from_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To the nearest, ties to even. */
static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A number in [0, 1) that depends on its arguments only. */
static float noise(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t h = (a * 0x9e3779b1u + b) * 0x85ebca77u + c * 0xc2b2ae3du;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    return (float)((h ^ h >> 13) >> 8) / 16777216.0f;
}

/* Expert e's network: a factor of 1, 1/2 or 1/4, all of them exact in bf16. */
static uint16_t expert(uint32_t e, uint16_t x) {
    return to_bf16(from_bf16(x) / (float)(1u << e % 3));
}

/* Three different experts for each token, and weights that add up to about 1. */
static void route(uint32_t rank, uint32_t layer, int32_t *ids, float *weights) {
    for (uint32_t t = 0; t < TOKENS; t++) {
        uint32_t first = (uint32_t)(noise(rank, layer, t) * EXPERTS);
        float share = noise(rank + RANKS, layer, t) / 2;
        for (uint32_t j = 0; j < TOPK; j++) {
            ids[t * TOPK + j] = (int32_t)((first + j * 3) % EXPERTS);
            weights[t * TOPK + j] = j == 0 ? share : (1.0f - share) / (TOPK - 1);
        }
    }
}

/* What epwire must return, from its definition: each rank sums weight * row over its experts in top-k order
 * and rounds to bf16; the ranks' rows are added in ascending order and rounded. */
static uint16_t reference(uint16_t x, const int32_t *ids, const float *weights) {
    float sum = 0;
    for (int32_t rank = 0; rank < RANKS; rank++) {
        float of_rank = 0;
        for (uint32_t j = 0; j < TOPK; j++) {
            if (ids[j] / (EXPERTS / RANKS) != rank) continue;
            of_rank += weights[j] * from_bf16(expert((uint32_t)ids[j], x));
        }
        sum += from_bf16(to_bf16(of_rank));
    }
    return to_bf16(sum);
}

/* ---- One rank ---- */

/* Peers that fail do not make a call fail: its outcome tells whose rows are missing and why. A server would
 * continue without them; this program expects nobody to. */
static void expect_complete(const char *operation, const epw_outcome *outcome) {
    if (!outcome->degraded) return;
    fprintf(stderr, "two_processes: %s: peer %u missing in phase %u, cause %u, after %.3f s\n", operation,
            outcome->record.peer, outcome->record.phase, outcome->record.cause,
            (double)outcome->record.elapsed_ns / 1e9);
    exit(1);
}

/* A buffer that is connected to the other rank through `wire`, with both ranks active. */
static epw_buffer *join(const epw_config *config, int wire) {
    epw_buffer *buffer;
    unsigned char mine[EPW_BLOB_MAX], theirs[EPW_BLOB_MAX];
    size_t length;
    uint32_t peer = 1 - config->rank;
    TRY(epw_buffer_create(config, &buffer));
    TRY(epw_buffer_export(buffer, peer, mine, &length));
    if (send(wire, mine, length, MSG_NOSIGNAL) != (ssize_t)length) give_up("cannot send the blob");
    ssize_t received = recv(wire, theirs, sizeof theirs, 0);
    if (received <= 0) give_up("the other process has sent no blob");
    TRY(epw_buffer_connect(buffer, peer, theirs, (size_t)received));

    epw_mask both = {{3}}; /* bit r: rank r */
    TRY(epw_buffer_set_active(buffer, &both, 1, 0));
    return buffer;
}

/* x [TOKENS, HIDDEN] through this rank's part of the layer, into y. `rows` holds what the experts read and
 * write: [local experts, plan.rows, HIDDEN]. */
static void layer(epw_buffer *buffer, const epw_config *config, const epw_plan *plan, const uint16_t *x,
                  const int32_t *ids, const float *weights, uint16_t *rows, uint16_t *y) {
    uint32_t counts[EXPERTS / RANKS];
    epw_handle handle;
    epw_outcome outcome = EPW_OUTCOME_INIT;

    epw_dispatch_input send = EPW_DISPATCH_INPUT_INIT;
    send.tokens = TOKENS;
    send.x = x;
    send.topk_idx = ids;
    send.topk_weights = weights;
    send.topk = TOPK;
    send.layout = EPW_EXPERT_MAJOR;
    epw_dispatch_output receive = EPW_DISPATCH_OUTPUT_INIT;
    receive.rows = rows;
    receive.counts = counts;
    TRY(epw_dispatch(buffer, &send, &receive, &handle, &outcome));
    expect_complete("dispatch", &outcome);

    /* Local expert e's rows are the first counts[e] of its list. */
    for (uint32_t e = 0; e < plan->local_experts; e++) {
        uint16_t *list = rows + e * plan->rows * HIDDEN;
        uint32_t id = config->rank * plan->local_experts + e;
        for (size_t i = 0; i < (size_t)counts[e] * HIDDEN; i++) list[i] = expert(id, list[i]);
    }

    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    answer.expert_out = rows;
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    result.out = y;
    TRY(epw_combine(buffer, handle, &answer, &result, &outcome)); /* the handle is used up now */
    expect_complete("combine", &outcome);
}

static void run_rank(uint32_t rank, int wire) {
    epw_config config = EPW_CONFIG_INIT;
    config.rank = rank;
    config.ranks = RANKS;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.experts = EXPERTS;
    config.topk = TOPK;
    epw_plan plan = EPW_PLAN_INIT; /* all sizes, before anything is allocated */
    TRY(epw_plan_make(&config, &plan));
    epw_buffer *buffer = join(&config, wire);

    int32_t ids[TOKENS * TOPK];
    float weights[TOKENS * TOPK];
    const size_t values = TOKENS * HIDDEN;
    uint16_t *x = allocate(values * 2), *y = allocate(values * 2);
    uint16_t *rows = allocate(plan.local_experts * plan.rows * HIDDEN * 2);
    for (uint32_t i = 0; i < values; i++) x[i] = to_bf16(noise(rank, LAYERS, i) * 2 - 1);
    for (uint32_t l = 0; l < LAYERS; l++) {
        route(rank, l, ids, weights);
        layer(buffer, &config, &plan, x, ids, weights, rows, y);
        for (size_t i = 0; i < values; i++) {
            size_t first = i / HIDDEN * TOPK; /* entry of its token */
            if (y[i] != reference(x[i], ids + first, weights + first))
                give_up("the result differs from the reference");
        }
        memcpy(x, y, values * 2); /* the next layer's input */
    }
    free(rows);
    free(x);
    free(y);
    epw_buffer_destroy(buffer);
}

int main(void) {
    /* Packets keep their boundaries: one blob is one packet. */
    int wires[RANKS];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, wires) != 0) give_up("no socketpair");
    pid_t child = fork(); /* before any call of epwire: a buffer stays with the process that made it */
    if (child < 0) give_up("cannot fork");
    uint32_t rank = child == 0 ? 1 : 0;
    close(wires[1 - rank]); /* so that a dead peer is seen as an end of the stream */
    run_rank(rank, wires[rank]);
    if (rank == 1) return 0;

    int status;
    if (waitpid(child, &status, 0) != child || status != 0) give_up("rank 1 failed");
    printf("two_processes: OK ranks=%d tokens=%d layers=%d\n", RANKS, TOKENS, LAYERS);
    if (fflush(stdout)) give_up("cannot write to standard output");
    return 0;
}
