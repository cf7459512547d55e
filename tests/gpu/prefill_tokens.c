/* A dispatch of 65,536 tokens of each of two ranks, as many as there may be, and its combine, on GPUs,
 * through rings of few slots, by expert and by source; each row and each sum against the plain reference of
 * tests/c/many_tokens.h. The one by source is dispatched by a single block, whose warps have more tokens than
 * they have room for notes of. Ranks are threads of this process.
 *
 * `--tokens N`: fewer, for a GPU that is emulated, where all threads take turns and this takes minutes. From
 * 13,500 on a single block has no room for notes of all.
 * `--ring N`: slots. Exit code 77, with the reason, if there is no GPU. */
#include "ranks.h"
#include "require.h"

#include "../c/many_tokens.h"

static struct {
    uint32_t tokens, ring, seconds;
} options = {.tokens = EPW_MAX_TOKENS, .ring = 256, .seconds = 600};

static void *on_gpu(const void *from, size_t bytes) {
    void *at = NULL;
    REQUIRE_CUDA(cudaMalloc(&at, bytes + 16));
    REQUIRE_CUDA(cudaMemcpy(at, from, bytes, cudaMemcpyHostToDevice));
    return at;
}

typedef struct rank {
    const rank_links *links;
    epw_prefill *prefill;
    cudaStream_t stream;
    epw_dispatch_input in;
    uint16_t *sums, *sums_on_gpu;
} rank;

static void require_whole(const rank *me, epw_routing *routing, const char *what) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    await_stream(me->stream, 300000 * MS, what);
    REQUIRE_OK(epw_prefill_poll(me->prefill, routing, &outcome));
    CHECK_MSG(outcome.degraded == 0, "rank %u, %s: cause %u, peer %u", me->links->rank, what,
              outcome.record.cause, outcome.record.peer);
}

/* `sms`: of the dispatch; 0: all. */
static void there_and_back(const rank *me, uint32_t layout, uint32_t sms) {
    many_rows here = many_make_room(me->links->rank, layout, layout == EPW_PACKED ? 16 : 0), there = here;
    size_t rows = many_bytes_of_rows(&here), numbers = many_bytes_of_numbers(&here);
    there.rows = on_gpu(here.rows, rows);
    void **of_gpu[] = {(void **)&there.row_source, (void **)&there.row_token, (void **)&there.row_position,
                       (void **)&there.row_experts, (void **)&there.row_weights};
    void *of_host[] = {here.row_source, here.row_token, here.row_position, here.row_experts,
                       here.row_weights};
    enum { LISTS = sizeof of_gpu / sizeof of_gpu[0] };
    for (int i = 0; i < LISTS; i++) *of_gpu[i] = on_gpu(of_host[i], numbers);
    epw_dispatch_input in = me->in;
    epw_prefill_output out = many_output(&there);
    epw_routing *routing = NULL;
    in.sms = sms;
    out.stream = me->stream;
    REQUIRE_OK(epw_routing_create(me->prefill, &routing));
    ranks_meet(me->links);
    REQUIRE_OK(epw_prefill_dispatch(me->prefill, routing, &in, EPW_ROUTE_NEW, 0, &out, NULL));
    require_whole(me, routing, "a dispatch");
    REQUIRE_CUDA(cudaMemcpy(here.rows, there.rows, rows, cudaMemcpyDeviceToHost));
    for (int i = 0; i < LISTS; i++)
        REQUIRE_CUDA(cudaMemcpy(of_host[i], *of_gpu[i], numbers, cudaMemcpyDeviceToHost));
    many_check_rows(me->links->rank, &here);
    many_make(&here);

    size_t bytes = (size_t)many_tokens * MANY_HIDDEN * 2;
    epw_prefill_combine_input made = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output to = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    there.made = on_gpu(here.made, rows);
    made.expert_out = there.made;
    to.out = me->sums_on_gpu;
    made.stream = me->stream;
    REQUIRE_CUDA(cudaMemset(me->sums_on_gpu, 0x5a, bytes));
    REQUIRE_CUDA(cudaStreamSynchronize(NULL));
    ranks_meet(me->links);
    REQUIRE_OK(epw_prefill_combine(me->prefill, routing, &made, &to, NULL));
    require_whole(me, routing, "a combine");
    REQUIRE_CUDA(cudaMemcpy(me->sums, me->sums_on_gpu, bytes, cudaMemcpyDeviceToHost));
    many_check_sums(me->links->rank, me->sums);
    epw_routing_free(routing);
    for (int i = 0; i < LISTS; i++) REQUIRE_CUDA(cudaFree(*of_gpu[i]));
    REQUIRE_CUDA(cudaFree(there.rows));
    REQUIRE_CUDA(cudaFree(there.made));
    many_free(&here);
}

static int run_rank(const rank_links *links) {
    size_t values = (size_t)many_tokens * MANY_HIDDEN * 2, entries = (size_t)many_tokens * MANY_TOPK * 4;
    uint16_t *x = malloc(values);
    int32_t *ids = malloc(entries);
    float *weights = malloc(entries);
    many_inputs(links->rank, x, ids, weights);
    rank me = {.links = links, .in = EPW_DISPATCH_INPUT_INIT, .sums = malloc(values)};
    epw_prefill_config config = many_config(options.ring);
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&me.stream, cudaStreamNonBlocking));
    me.sums_on_gpu = on_gpu(x, values);
    me.in.tokens = many_tokens;
    me.in.x = on_gpu(x, values);
    me.in.topk_idx = on_gpu(ids, entries);
    me.in.topk = MANY_TOPK;
    me.in.topk_weights = on_gpu(weights, entries);
    me.in.stream = me.stream;
    config.ep.rank = links->rank;
    config.ep.device = ranks_gpu(links);
    config.ep.sms = ranks_sms(links, 1, 16);
    ranks_path(&config.ep);
    REQUIRE_OK(epw_prefill_create(&config, &me.prefill));
    ranks_connect_prefill(links, me.prefill);
    there_and_back(&me, EPW_PACKED, 0);
    there_and_back(&me, EPW_DENSE, 1);
    ranks_meet(links);
    epw_prefill_destroy(me.prefill);
    epw_fabric_destroy(config.ep.fabric);
    const void *all[] = {me.sums_on_gpu, me.in.x, me.in.topk_idx, me.in.topk_weights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) REQUIRE_CUDA(cudaFree((void *)(uintptr_t)all[i]));
    REQUIRE_CUDA(cudaStreamDestroy(me.stream));
    free(x);
    free(ids);
    free(weights);
    free(me.sums);
    return 0;
}

static const ranks_option named[] = {
    {"--tokens", .number = &options.tokens},
    {"--ring", .number = &options.ring},
    {"--seconds", .number = &options.seconds},
    {0},
};

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, "prefill_tokens [--tokens N] [--ring N] [--seconds N (limit)]") != 0)
        return 2;
    ranks_limit("prefill_tokens", options.seconds);
    many_tokens = options.tokens;
    uint32_t gpus = 0, ranks = MANY_RANKS;
    int ended = ranks_begin(run_rank, 1, &ranks, &gpus, argv);
    if (ended >= 0) return ended;
    uint64_t began = now_ns();
    ranks_run(run_rank, MANY_RANKS, gpus, 0, argv);
    uint64_t failed = atomic_load(&checks_failed);
    printf("prefill_tokens: %s tokens=%u seconds=%.1f checks=%llu failed=%llu\n",
           failed == 0 ? "OK" : "FAILED", many_tokens, (double)(now_ns() - began) * 1e-9,
           (unsigned long long)atomic_load(&checks_made), (unsigned long long)failed);
    return failed != 0;
}
