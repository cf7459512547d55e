/* Where tokens would go, counted on the GPU and by the host's call, bit for bit: random groups and ids of
 * every type, invalid ones among them, each output alone or with others; eagerly, and as a graph that is
 * replayed with other ids. One rank is enough: nothing is sent.
 *
 * `--first N`, `--cases N`: seeds. Exit code 77, with the reason, if there is no GPU. */
#include "ranks.h"
#include "require.h"
#include "step.h"

#include "../c/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { RANK_TOKENS, EXPERT_TOKENS, IN_RANK, BAD_IDS, OUTPUTS, UNTOUCHED = 0x5a, BEHIND = 64 };

static struct { uint32_t first, cases, seconds; } options = {.cases = 60, .seconds = 300};
static const char *const names[OUTPUTS] = {"rank_tokens", "expert_tokens", "in_rank", "bad_ids"};

static uint64_t next_random(uint64_t *state) {
    uint64_t x = (*state += UINT64_C(0x9e3779b97f4a7c15));
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
static uint32_t below(uint64_t *state, uint32_t n) {
    return (uint32_t)(next_random(state) % n);
}

typedef struct count_case {
    uint64_t seed;
    epw_prefill_config config;
    uint32_t tokens, topk, idx_type;
    bool wanted[OUTPUTS], good;       /* good: no id is invalid */
    size_t bytes[OUTPUTS], ids_bytes; /* without what lies behind each output */
    unsigned char *given, *valid;     /* the ids, and without those that the host refuses */
    unsigned char *host[OUTPUTS], *device[OUTPUTS], *ids;
} count_case;

static size_t id_bytes(const count_case *c) {
    return c->idx_type == EPW_I64 ? 8 : 4;
}

static count_case choose(uint64_t seed) {
    uint64_t s = seed * 131 + 7;
    count_case c = {.seed = seed, .config = EPW_PREFILL_CONFIG_INIT};
    epw_config *ep = &c.config.ep;
    static const uint32_t many[] = {1, 2, 3, 4, 8, 33, 64, 256};
    ep->ranks = many[below(&s, 8)];
    ep->experts = ep->ranks * (1 + below(&s, 8192 / ep->ranks < 40 ? 8192 / ep->ranks : 40));
    if (seed % 20 == 11) ep->experts = 8192 / ep->ranks * ep->ranks;
    ep->topk = 1 + below(&s, ep->experts < EPW_MAX_TOPK ? ep->experts : EPW_MAX_TOPK);
    c.topk = 1 + below(&s, ep->topk);
    c.tokens = below(&s, 8) == 0 ? 0 : below(&s, 3) == 0 ? 1 + below(&s, 20) : 1 + below(&s, 1200);
    if (seed % 20 == 3) c.tokens = 20000; /* more than all warps take up at once */
    ep->max_tokens = c.tokens + 1;
    ep->hidden = 8;
    c.config.ring_tokens = 2;
    c.idx_type = below(&s, EPW_I64 + 1);
    for (int i = 0; i < OUTPUTS; i++) c.wanted[i] = below(&s, 4) > 0;
    c.good = below(&s, 3) == 0;
    c.bytes[RANK_TOKENS] = ep->ranks * sizeof(uint32_t);
    c.bytes[EXPERT_TOKENS] = ep->experts * sizeof(uint32_t);
    c.bytes[IN_RANK] = (size_t)c.tokens * ep->ranks;
    c.bytes[BAD_IDS] = sizeof(uint32_t);
    c.ids_bytes = (size_t)c.tokens * c.topk * id_bytes(&c);
    return c;
}

/* An id out of range, that the type can hold. */
static int64_t wrong_id(const count_case *c, uint64_t *s) {
    int64_t experts = c->config.ep.experts;
    switch (below(s, 4)) {
    case 0:
        return experts;
    case 1:
        return c->idx_type == EPW_U32 ? INT64_C(0xfffffffe) : -2;
    case 2:
        return c->idx_type == EPW_I64 ? (INT64_C(1) << 32) + below(s, (uint32_t)experts) : 0x7fffffff;
    default:
        return c->idx_type == EPW_I64 ? INT64_MIN : c->idx_type == EPW_I32 ? INT32_MIN : INT64_C(0x80000000);
    }
}

/* Chooses ids, and notes how many of them are invalid. */
static void choose_ids(count_case *c, uint64_t round) {
    uint64_t s = c->seed * 4099 + round;
    uint32_t bad = 0, experts = c->config.ep.experts;
    bool lopsided = below(&s, 3) == 0;
    for (uint32_t t = 0; t < c->tokens; t++) {
        int64_t of_token[EPW_MAX_TOPK];
        for (uint32_t j = 0; j < c->topk; j++) {
            int64_t id = below(&s, lopsided ? (experts + 2) / 3 : experts);
            if (below(&s, 9) == 0) id = -1;
            bool wrong = !c->good && below(&s, 30) == 0;
            if (wrong) id = wrong_id(c, &s);
            int64_t valid = id;
            for (uint32_t i = 0; i < j && !wrong; i++)
                if (id >= 0 && of_token[i] == id) wrong = true;
            if (wrong && c->good) id = -1; /* rather than a repetition */
            if (wrong) valid = -1;
            if (wrong && !c->good) bad++;
            of_token[j] = valid;
            size_t at = ((size_t)t * c->topk + j) * id_bytes(c);
            memcpy(c->given + at, &id, id_bytes(c)); /* little-endian */
            memcpy(c->valid + at, &valid, id_bytes(c));
        }
    }
    memcpy(c->host[BAD_IDS], &bad, sizeof bad);
}

static void count_on_host(const count_case *c) {
    REQUIRE_OK(epw_prefill_count(&c->config, c->valid, c->idx_type, c->tokens, c->topk,
                                 (uint32_t *)(void *)c->host[RANK_TOKENS],
                                 (uint32_t *)(void *)c->host[EXPERT_TOKENS], c->host[IN_RANK]));
}

static epw_status enqueue(const count_case *c, epw_prefill *prefill, cudaStream_t stream) {
    void *to[OUTPUTS];
    for (int i = 0; i < OUTPUTS; i++) to[i] = c->wanted[i] ? c->device[i] : NULL;
    return epw_prefill_enqueue_count(prefill, c->ids, c->idx_type, c->tokens, c->topk, to[RANK_TOKENS],
                                     to[EXPERT_TOKENS], to[IN_RANK], to[BAD_IDS], stream);
}

/* Other ids, of which the GPU is to find what the host does. */
static void begin_round(count_case *c, uint64_t round) {
    choose_ids(c, round);
    count_on_host(c);
    REQUIRE_CUDA(cudaMemcpy(c->ids, c->given, c->ids_bytes, cudaMemcpyHostToDevice));
    for (int i = 0; i < OUTPUTS; i++) REQUIRE_CUDA(cudaMemset(c->device[i], UNTOUCHED, c->bytes[i] + BEHIND));
    REQUIRE_CUDA(cudaStreamSynchronize(NULL));
}

static void compare(const count_case *c, const char *how) {
    for (int i = 0; i < OUTPUTS; i++) {
        size_t all = c->bytes[i] + BEHIND, at = 0;
        unsigned char *got = malloc(all);
        REQUIRE_CUDA(cudaMemcpy(got, c->device[i], all, cudaMemcpyDeviceToHost));
        while (at < all && got[at] == (c->wanted[i] && at < c->bytes[i] ? c->host[i][at] : UNTOUCHED)) at++;
        CHECK_MSG(at == all,
                  "seed %llu, %s, %u tokens, top-%u, %u experts of %u ranks: %s differs at byte "
                  "%zu of %zu",
                  (unsigned long long)c->seed, how, c->tokens, c->topk, c->config.ep.experts,
                  c->config.ep.ranks, names[i], at, c->bytes[i]);
        free(got);
    }
}

static void run_case(uint64_t seed, int32_t gpu, cudaStream_t stream) {
    count_case c = choose(seed);
    epw_prefill *prefill = NULL;
    REQUIRE_CUDA(cudaMalloc((void **)&c.ids, c.ids_bytes + 1));
    c.given = malloc(c.ids_bytes + 1);
    c.valid = malloc(c.ids_bytes + 1);
    for (int i = 0; i < OUTPUTS; i++) {
        c.host[i] = malloc(c.bytes[i] + 1);
        REQUIRE_CUDA(cudaMalloc((void **)&c.device[i], c.bytes[i] + BEHIND));
    }
    epw_prefill_config on_gpu = c.config;
    on_gpu.ep.device = gpu;
    on_gpu.ep.sms = on_gpu.ep.lanes;
    REQUIRE_OK(epw_prefill_create(&on_gpu, &prefill));
    begin_round(&c, 0);
    REQUIRE_OK(enqueue(&c, prefill, stream));
    await_stream(stream, 120000 * MS, "a count");
    compare(&c, "eager");
    step_capture(stream);
    REQUIRE_OK(enqueue(&c, prefill, stream));
    cudaGraphExec_t exec = step_captured(stream);
    for (uint64_t replay = 1; replay < 3; replay++) {
        begin_round(&c, replay);
        REQUIRE_CUDA(cudaGraphLaunch(exec, stream));
        await_stream(stream, 120000 * MS, "a replay");
        compare(&c, "replayed");
    }
    REQUIRE_CUDA(cudaGraphExecDestroy(exec));
    epw_prefill_destroy(prefill);
    for (int i = 0; i < OUTPUTS; i++) {
        free(c.host[i]);
        REQUIRE_CUDA(cudaFree(c.device[i]));
    }
    free(c.given);
    free(c.valid);
    REQUIRE_CUDA(cudaFree(c.ids));
}

/* Nothing is enqueued then. */
static void run_refused(int32_t gpu, cudaStream_t stream) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_prefill *on_gpu = NULL, *on_host = NULL;
    uint32_t *memory = NULL;
    config.ep.ranks = 1;
    config.ep.experts = config.ep.topk = 4;
    config.ep.hidden = 8;
    config.ep.max_tokens = 16;
    config.ring_tokens = 2;
    REQUIRE_OK(epw_prefill_create(&config, &on_host));
    config.ep.device = gpu;
    config.ep.sms = config.ep.lanes;
    REQUIRE_OK(epw_prefill_create(&config, &on_gpu));
    REQUIRE_CUDA(cudaMalloc((void **)&memory, 4096));
    void *odd = (char *)memory + 2, *four = memory + 1;
    CHECK(epw_prefill_enqueue_count(NULL, memory, 0, 16, 4, memory, 0, 0, 0, stream) == EPW_ERR_INVALID);
    CHECK(epw_prefill_enqueue_count(on_host, memory, 0, 16, 4, memory, 0, 0, 0, stream) == EPW_ERR_STATE);
    CHECK(epw_prefill_enqueue_count(on_gpu, NULL, 0, 16, 4, memory, 0, 0, 0, stream) == EPW_ERR_INVALID);
    CHECK(strstr(epw_last_error(), "topk_idx is NULL") != NULL);
    CHECK(epw_prefill_enqueue_count(on_gpu, memory, 3, 16, 4, memory, 0, 0, 0, stream) == EPW_ERR_INVALID);
    CHECK(epw_prefill_enqueue_count(on_gpu, memory, 0, 17, 4, memory, 0, 0, 0, stream) == EPW_ERR_LIMIT);
    CHECK(epw_prefill_enqueue_count(on_gpu, memory, 0, 16, 5, memory, 0, 0, 0, stream) == EPW_ERR_LIMIT);
    CHECK(epw_prefill_enqueue_count(on_gpu, four, EPW_I64, 16, 4, memory, 0, 0, 0, stream) ==
          EPW_ERR_INVALID);
    CHECK(epw_prefill_enqueue_count(on_gpu, memory, 0, 16, 4, odd, 0, 0, 0, stream) == EPW_ERR_INVALID);
    CHECK(strstr(epw_last_error(), "rank_tokens must be aligned to 4 bytes") != NULL);
    epw_prefill_destroy(on_gpu);
    epw_prefill_destroy(on_host);
    REQUIRE_CUDA(cudaFree(memory));
}

static int run_rank(const rank_links *links) {
    cudaStream_t stream;
    int32_t gpu = ranks_gpu(links);
    REQUIRE_CUDA(cudaSetDevice(gpu));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (uint32_t seed = options.first; seed < options.first + options.cases; seed++)
        run_case(seed, gpu, stream);
    run_refused(gpu, stream);
    REQUIRE_CUDA(cudaStreamDestroy(stream));
    return 0;
}

static const ranks_option named[] = {
    {"--first", .number = &options.first},
    {"--cases", .number = &options.cases},
    {"--seconds", .number = &options.seconds},
    {0},
};

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, "prefill_counts [--first N] [--cases N] [--seconds N (limit)]") != 0)
        return 2;
    ranks_limit("prefill_counts", options.seconds);
    uint32_t gpus = 0, one = 1;
    int ended = ranks_begin(run_rank, 1, &one, &gpus, argv);
    if (ended >= 0) return ended;
    ranks_run(run_rank, 1, gpus, 0, argv);
    uint64_t failed = atomic_load(&checks_failed);
    printf("prefill_counts: %s cases=%u checks=%llu failed=%llu\n", failed == 0 ? "OK" : "FAILED",
           options.cases, (unsigned long long)atomic_load(&checks_made), (unsigned long long)failed);
    return failed != 0;
}
