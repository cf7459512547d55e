/* See echo.h. */
#include "echo.h"
#include "ranks.h"

#include <stdlib.h>
#include <string.h>

#define BOUND_NS (UINT64_C(60000) * MS)

/* The finaliser of splitmix64. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static float value_of(uint16_t bf16) {
    uint32_t bits = (uint32_t)bf16 << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
/* Exact, since the value has at most 8 significant bits. */
static uint16_t bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

void *echo_take(size_t bytes, int value) {
    void *at = NULL;
    REQUIRE_CUDA(cudaMalloc(&at, bytes));
    REQUIRE_CUDA(cudaMemset(at, value, bytes));
    return at;
}

static size_t row_bytes(const epw_config *c) {
    return (size_t)c->hidden * 2;
}

/* `paths` NULL: as the environment says. */
static void open_buffer(echo_rank *r, const uint32_t *paths) {
    if (paths == NULL) {
        ranks_path(&r->config);
    } else {
        r->config.paths = *paths;
        ranks_fabric(&r->config);
    }
    REQUIRE_OK(epw_buffer_create(&r->config, &r->buffer));
}

static void open_rank(echo_rank *r, const epw_config *config, uint32_t rank, uint32_t gpus,
                      const uint32_t *paths) {
    epw_config *c = &r->config;
    *r = (echo_rank){.config = *config};
    c->rank = rank;
    c->device = (int32_t)(rank % gpus);
    REQUIRE_CUDA(cudaSetDevice(c->device));
    if (c->sms == 0) {
        int sms = 0;
        REQUIRE_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, c->device));
        c->sms = (uint32_t)sms / ((c->ranks + gpus - 1) / gpus);
    }
    epw_plan plan = EPW_PLAN_INIT;
    REQUIRE_OK(epw_plan_make(c, &plan));
    open_buffer(r, paths);
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    r->tokens = malloc(c->max_tokens * row_bytes(c));
    r->ids = malloc((size_t)c->max_tokens * c->topk * sizeof *r->ids);
    REQUIRE(r->tokens != NULL && r->ids != NULL, "no memory");
    r->x = echo_take(c->max_tokens * row_bytes(c), 0);
    r->topk_idx = echo_take((size_t)c->max_tokens * c->topk * 4, 0);
    r->weights = echo_take((size_t)c->max_tokens * c->topk * 4, 0);
    r->rows = echo_take((size_t)plan.local_experts * plan.rows * row_bytes(c), 0);
    r->counts = echo_take((size_t)plan.local_experts * 4, 0);
    r->out = echo_take(c->max_tokens * row_bytes(c), 0);
    size_t entries = (size_t)c->max_tokens * c->topk;
    float *weights = malloc(entries * sizeof *weights);
    REQUIRE(weights != NULL, "no memory");
    for (size_t i = 0; i < entries; i++) weights[i] = 1.0f / (float)c->topk;
    REQUIRE_CUDA(cudaMemcpy(r->weights, weights, entries * sizeof *weights, cudaMemcpyHostToDevice));
    free(weights);
}

static void connect(echo *e, uint32_t from, uint32_t to) {
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = 0;
    REQUIRE_OK(epw_buffer_export(e->rank[from].buffer, to, blob, &length));
    REQUIRE_OK(epw_buffer_connect_within(e->rank[to].buffer, from, blob, length, 10000 * MS));
}

static void activate(echo *e, uint32_t epoch) {
    epw_mask all = {{e->ranks == 64 ? UINT64_MAX : (UINT64_C(1) << e->ranks) - 1}};
    for (uint32_t r = 0; r < e->ranks; r++)
        REQUIRE_OK(epw_buffer_set_active(e->rank[r].buffer, &all, epoch, 0));
}

void echo_open_by(echo *e, const epw_config *config, uint32_t gpus, const uint32_t *paths) {
    *e = (echo){.ranks = config->ranks, .gpus = gpus};
    REQUIRE(e->ranks <= ECHO_RANKS && (config->topk & (config->topk - 1)) == 0, "%u ranks", e->ranks);
    for (uint32_t r = 0; r < e->ranks; r++)
        open_rank(&e->rank[r], config, r, gpus, paths != NULL ? &paths[r] : NULL);
    for (uint32_t from = 0; from < e->ranks; from++) {
        for (uint32_t to = 0; to < e->ranks; to++) {
            if (from != to) connect(e, from, to);
        }
    }
    activate(e, 1);
}

void echo_open(echo *e, const epw_config *config, uint32_t gpus) {
    echo_open_by(e, config, gpus, NULL);
}

void echo_replace(echo *e, uint32_t rank, uint32_t paths, uint32_t epoch) {
    echo_rank *r = &e->rank[rank];
    uint64_t others = ((UINT64_C(1) << e->ranks) - 1) & ~(UINT64_C(1) << rank);
    REQUIRE_CUDA(cudaSetDevice(r->config.device));
    epw_buffer_destroy(r->buffer);
    epw_fabric_destroy(r->config.fabric);
    for (uint32_t p = 0; p < e->ranks; p++) {
        if (p == rank) continue;
        REQUIRE_OK(epw_buffer_set_active(e->rank[p].buffer, &(epw_mask){{others}}, epoch - 1, 0));
        REQUIRE_OK(epw_buffer_disconnect(e->rank[p].buffer, rank));
    }
    open_buffer(r, &paths);
    for (uint32_t p = 0; p < e->ranks; p++) {
        if (p == rank) continue;
        connect(e, p, rank);
        connect(e, rank, p);
    }
    activate(e, epoch);
}

void echo_close(echo *e) {
    for (uint32_t i = 0; i < e->ranks; i++) {
        echo_rank *r = &e->rank[i];
        REQUIRE_CUDA(cudaSetDevice(r->config.device));
        epw_buffer_destroy(r->buffer);
        void *const arrays[] = {r->x, r->topk_idx, r->rows, r->out, r->weights, r->counts};
        for (size_t a = 0; a < sizeof arrays / sizeof arrays[0]; a++) REQUIRE_CUDA(cudaFree(arrays[a]));
        REQUIRE_CUDA(cudaStreamDestroy(r->stream));
        free(r->tokens);
        free(r->ids);
    }
}

/* A token's value has so few significant bits that its multiples by numbers up to topk have at most 8. */
static void fill_rank(echo_rank *r, uint64_t seed) {
    const epw_config *c = &r->config;
    REQUIRE_CUDA(cudaSetDevice(c->device));
    for (size_t t = 0; t < c->max_tokens; t++) {
        uint64_t key = mix(seed ^ mix((t << 6) + c->rank + 1));
        for (size_t i = 0; i < c->hidden; i++) {
            uint64_t h = mix(key + i);
            float value = (float)(1 + h % 7) * (float)(1u << (h >> 8 & 3));
            r->tokens[t * c->hidden + i] = bf16_of(h >> 16 & 1 ? -value : value);
        }
        uint64_t strides = c->experts / c->topk, base = key % c->experts, stride = 1 + (key >> 32) % strides;
        for (size_t j = 0; j < c->topk; j++) {
            r->ids[t * c->topk + j] = (int32_t)((base + j * stride) % c->experts);
        }
    }
    size_t bytes = c->max_tokens * row_bytes(c);
    REQUIRE_CUDA(cudaMemcpy(r->x, r->tokens, bytes, cudaMemcpyHostToDevice));
    REQUIRE_CUDA(
        cudaMemcpy(r->topk_idx, r->ids, (size_t)c->max_tokens * c->topk * 4, cudaMemcpyHostToDevice));
    REQUIRE_CUDA(cudaMemset(r->out, 0xee, bytes));
    REQUIRE_CUDA(cudaMemset(r->counts, 0xee, (size_t)c->experts / c->ranks * 4));
    REQUIRE_CUDA(cudaDeviceSynchronize());
}

void echo_fill(echo *e, uint64_t seed) {
    for (uint32_t r = 0; r < e->ranks; r++) fill_rank(&e->rank[r], seed);
}

void echo_dispatch(echo_rank *r, uint32_t halves) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    in.tokens = r->config.max_tokens;
    in.x = r->x;
    in.topk_idx = r->topk_idx;
    in.topk_weights = r->weights;
    in.topk = r->config.topk;
    in.lane = (int32_t)r->lane;
    in.deadline_ns = r->deadline_ns;
    in.stream = out.stream = r->stream;
    out.rows = r->rows;
    out.counts = r->counts;
    out.expert_totals = r->expert_totals;
    out.wait_ns = r->wait_ns;
    if (halves & ECHO_SEND)
        REQUIRE_OK(epw_dispatch(r->buffer, &in, halves & ECHO_RECEIVE ? &out : NULL, &r->handle, NULL));
    if (halves == ECHO_RECEIVE) REQUIRE_OK(epw_dispatch_receive(r->buffer, r->handle, &out, NULL));
}

void echo_combine(echo_rank *r, uint32_t halves) {
    epw_combine_input in = EPW_COMBINE_INPUT_INIT;
    epw_combine_output out = EPW_COMBINE_OUTPUT_INIT;
    in.expert_out = r->rows;
    in.deadline_ns = r->deadline_ns;
    in.stream = out.stream = r->stream;
    out.out = r->out;
    out.contributions = r->contributions;
    if (halves & ECHO_SEND)
        REQUIRE_OK(epw_combine(r->buffer, r->handle, &in, halves & ECHO_RECEIVE ? &out : NULL, NULL));
    if (halves == ECHO_RECEIVE) REQUIRE_OK(epw_combine_receive(r->buffer, r->handle, &out, NULL));
}

void echo_settle(const echo *e, const char *what) {
    for (uint32_t r = 0; r < e->ranks; r++) await_stream(e->rank[r].stream, BOUND_NS, what);
}

/* The kernels of many ranks share hardware queues, in which a kernel that waits may precede the one that it
 * waits for: so all ranks send before any receives. */
void echo_step(echo *e) {
    for (uint32_t r = 0; r < e->ranks; r++) echo_dispatch(&e->rank[r], ECHO_SEND);
    for (uint32_t r = 0; r < e->ranks; r++) echo_dispatch(&e->rank[r], ECHO_RECEIVE);
    for (uint32_t r = 0; r < e->ranks; r++) echo_combine(&e->rank[r], ECHO_SEND);
    for (uint32_t r = 0; r < e->ranks; r++) echo_combine(&e->rank[r], ECHO_RECEIVE);
    echo_settle(e, "a step");
}

void echo_missing(const echo_rank *r, uint64_t missing, const char *what) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    REQUIRE_OK(epw_outcome_read(r->buffer, r->handle, &outcome));
    REQUIRE(outcome.degraded == (missing != 0) && outcome.missing.bits[0] == missing,
            "%s: rank %u: missing %llx, not %llx; cause %u of rank %u in phase %u", what, r->config.rank,
            (unsigned long long)outcome.missing.bits[0], (unsigned long long)missing, outcome.record.cause,
            outcome.record.peer, outcome.record.phase);
}

uint32_t echo_wrong(const echo *e, const echo_rank *r, uint64_t answers) {
    const epw_config *c = &r->config;
    uint32_t wrong = 0, local = c->experts / e->ranks;
    uint16_t *out = malloc(c->max_tokens * row_bytes(c));
    uint16_t(*told)[2] = malloc(c->max_tokens * sizeof *told); /* contributions arrived, expected */
    REQUIRE(out != NULL && told != NULL, "no memory");
    REQUIRE_CUDA(cudaMemcpy(out, r->out, c->max_tokens * row_bytes(c), cudaMemcpyDeviceToHost));
    if (r->contributions != NULL)
        REQUIRE_CUDA(
            cudaMemcpy(told, r->contributions, c->max_tokens * sizeof *told, cudaMemcpyDeviceToHost));
    for (size_t t = 0; t < c->max_tokens; t++) {
        uint32_t answered = 0;
        for (size_t j = 0; j < c->topk; j++)
            answered += answers >> ((uint32_t)r->ids[t * c->topk + j] / local) & 1;
        int right = r->contributions == NULL || (told[t][0] == answered && told[t][1] == c->topk);
        for (size_t i = t * c->hidden; i < (t + 1) * c->hidden; i++) {
            float expected = value_of(r->tokens[i]) * (float)answered / (float)c->topk;
            right &= answered == 0 ? out[i] == 0 : out[i] == bf16_of(expected);
        }
        wrong += !right;
    }
    free(out);
    free(told);
    return wrong;
}

uint32_t echo_miscounted(const echo *e, const echo_rank *r, uint64_t sources) {
    const epw_config *c = &r->config;
    uint32_t wrong = 0, local = c->experts / e->ranks, *counts = malloc(local * sizeof *counts);
    uint32_t *expected = calloc(local, sizeof *expected);
    REQUIRE(counts != NULL && expected != NULL, "no memory");
    REQUIRE_CUDA(cudaMemcpy(counts, r->counts, local * sizeof *counts, cudaMemcpyDeviceToHost));
    for (uint32_t s = 0; s < e->ranks; s++) {
        for (size_t i = 0; sources >> s & 1 && i < (size_t)c->max_tokens * c->topk; i++) {
            uint32_t expert = (uint32_t)e->rank[s].ids[i];
            if (expert / local == c->rank) expected[expert % local]++;
        }
    }
    for (uint32_t x = 0; x < local; x++) wrong += counts[x] != expected[x];
    free(counts);
    free(expected);
    return wrong;
}
