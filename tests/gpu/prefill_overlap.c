/* Prefill on a few SMs beside matrix products on the others: how long both take together, for how long the
 * longer one takes alone. Pairs of dispatch and combine, about as long as the products, in a graph; the
 * products are enqueued before them, or behind them. The same with plain copies of the GPU's memory by as
 * many SMs in place of the pairs: what memory, caches and clocks cost whoever uses them. With --limit it
 * fails where the ratio of pairs is larger. Exit code 77, with the reason, if there is no GPU or no cuBLAS.
 */
#include "cublas.h"
#include "echo.h"
#include "hog.h"
#include "ranks.h"
#include "step.h"

#include <stdlib.h>
#include <string.h>

enum { REPEATS = 11, PRODUCTS = 2 };
#define COPIED_BYTES (UINT64_C(64) << 20)

static struct {
    uint32_t ranks, processes, sms, n, tokens, hidden, experts, topk, seconds;
    const char *library, *limit;
    double most; /* the limit; 0: none */
} options = {.sms = 24,
             .n = 8192,
             .tokens = 4096,
             .hidden = 7168,
             .experts = 256,
             .topk = 8,
             .seconds = 300,
             .library = "libcublasLt.so.13"};

static const ranks_option named[] = {
    {"--ranks", .number = &options.ranks},
    {"--processes", .number = &options.processes, .preset = 1},
    {"--sms", .number = &options.sms},
    {"--n", .number = &options.n},
    {"--tokens", .number = &options.tokens},
    {"--hidden", .number = &options.hidden},
    {"--experts", .number = &options.experts},
    {"--topk", .number = &options.topk},
    {"--seconds", .number = &options.seconds},
    {"--cublas", .text = &options.library},
    {"--limit", .text = &options.limit}, /* read into `most` */
    {0},
};

static const char usage[] =
    "prefill_overlap [--ranks N] [--processes] [--sms N (of prefill)] [--n N (of a product)] [--tokens N]\n"
    "       [--hidden N] [--experts N] [--topk N] [--seconds N (limit)] [--cublas PATH]\n"
    "       [--limit RATIO (of the time of both together to that of the longer one alone)]";

/* ---- pairs of dispatch and combine ---- */

typedef struct pairs {
    epw_prefill *prefill;
    epw_routing *routing;
    epw_dispatch_input in;
    epw_prefill_output out;
    epw_prefill_combine_input made;
    epw_prefill_combine_output sums;
    cudaStream_t stream;
    unsigned char *copied; /* for plain copies: bytes to copy, and behind them room for the copy */
    uint32_t copies;
} pairs;

/* Each token chooses `topk` different experts, all equally likely. */
static int32_t *choose_experts(uint32_t rank) {
    size_t count = (size_t)options.tokens * options.topk;
    int32_t *ids = malloc(count * sizeof *ids), *at = echo_take(count * sizeof *ids, 0);
    uint64_t random = rank + 1;
    REQUIRE(ids != NULL, "no memory");
    for (size_t i = 0; i < count;) {
        random = traffic_mix(random + UINT64_C(0x9e3779b97f4a7c15));
        ids[i] = (int32_t)(random % options.experts);
        size_t k = i / options.topk * options.topk;
        while (k < i && ids[k] != ids[i]) k++;
        i += k == i;
    }
    REQUIRE_CUDA(cudaMemcpy(at, ids, count * sizeof *ids, cudaMemcpyHostToDevice));
    free(ids);
    return at;
}

static void open_pairs(pairs *p, const rank_links *links, uint32_t payload, uint32_t layout) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    config.ep.rank = links->rank;
    config.ep.ranks = links->ranks;
    config.ep.max_tokens = options.tokens;
    config.ep.hidden = options.hidden;
    config.ep.experts = options.experts;
    config.ep.topk = options.topk;
    config.ep.lanes = 1;
    config.ep.device = ranks_gpu(links);
    config.ep.sms = options.sms;
    config.ep.deadline_ns = 60 * 1000 * MS;
    *p = (pairs){.in = EPW_DISPATCH_INPUT_INIT,
                 .out = EPW_PREFILL_OUTPUT_INIT,
                 .made = EPW_PREFILL_COMBINE_INPUT_INIT,
                 .sums = EPW_PREFILL_COMBINE_OUTPUT_INIT};
    REQUIRE_OK(epw_prefill_create(&config, &p->prefill));
    ranks_connect_prefill(links, p->prefill);
    REQUIRE_OK(epw_routing_create(p->prefill, &p->routing));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking));
    size_t row = (size_t)options.hidden * 2, rows = (size_t)links->ranks * options.tokens;
    if (layout == EPW_PACKED) rows = rows * options.topk + options.experts;
    p->in.tokens = options.tokens;
    p->in.topk = options.topk;
    p->in.payload = payload;
    p->in.x = echo_take(options.tokens * row, 0);
    p->in.topk_idx = choose_experts(links->rank);
    p->in.topk_weights = echo_take((size_t)options.tokens * options.topk * 4, 0);
    p->out.layout = layout;
    p->out.alignment = layout == EPW_PACKED;
    p->out.capacity = rows;
    p->out.rows = echo_take(rows * row, 0);
    p->out.scales =
        payload == EPW_PAYLOAD_SAME ? NULL : echo_take((rows + 4) * options.hidden / EPW_FP8_BLOCK * 4, 0);
    p->made.expert_out = echo_take(rows * row, 0);
    p->sums.out = echo_take(options.tokens * row, 0);
    p->copied = echo_take(2 * COPIED_BYTES, 0);
    p->copies = 1;
    p->in.stream = p->out.stream = p->made.stream = p->sums.stream = p->stream;
}

static void close_pairs(const rank_links *links, pairs *p) {
    const void *const memory[] = {p->in.x,       p->in.topk_idx,     p->in.topk_weights, p->out.rows,
                                  p->out.scales, p->made.expert_out, p->sums.out,        p->copied};
    ranks_meet(links);
    epw_routing_free(p->routing);
    epw_prefill_destroy(p->prefill);
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) REQUIRE_CUDA(cudaFree((void *)memory[i]));
    REQUIRE_CUDA(cudaStreamDestroy(p->stream));
}

static cudaGraphExec_t graph_of(pairs *p, uint32_t count) {
    step_capture(p->stream);
    for (uint32_t i = 0; i < count; i++) {
        REQUIRE_OK(epw_prefill_dispatch(p->prefill, p->routing, &p->in, EPW_ROUTE_NEW, 0, &p->out, NULL));
        REQUIRE_OK(epw_prefill_combine(p->prefill, p->routing, &p->made, &p->sums, NULL));
    }
    return step_captured(p->stream);
}

/* ---- times ---- */

typedef struct clocks {
    cudaStream_t first, products;
    cudaEvent_t began, ended, of_pairs, of_products;
} clocks;

typedef enum what { PAIRS, COPIES, PRODUCTS_ALONE, PRODUCTS_FIRST, PAIRS_FIRST, BESIDE_COPIES } what;

/* Microseconds from the moment at which all of it may begin until this has ended. */
typedef struct times {
    double all, pairs, products; /* pairs: or copies */
} times;

static void enqueue_products(const clocks *c, const cublas *gemm) {
    for (int i = 0; i < PRODUCTS; i++) cublas_multiply(gemm, c->products);
}

static double us_between(cudaEvent_t from, cudaEvent_t to) {
    float ms = 0;
    REQUIRE_CUDA(cudaEventElapsedTime(&ms, from, to));
    return (double)ms * 1000;
}

static times once(const rank_links *links, const clocks *c, pairs *p, cudaGraphExec_t graph,
                  const cublas *gemm, what what) {
    ranks_meet(links);
    REQUIRE_CUDA(hog_sms(1, 400 * 1000, 0, c->first)); /* until all is enqueued */
    REQUIRE_CUDA(cudaEventRecord(c->began, c->first));
    REQUIRE_CUDA(cudaStreamWaitEvent(p->stream, c->began, 0));
    REQUIRE_CUDA(cudaStreamWaitEvent(c->products, c->began, 0));
    if (what == PRODUCTS_ALONE || what == PRODUCTS_FIRST) enqueue_products(c, gemm);
    if (what == PAIRS || what == PRODUCTS_FIRST || what == PAIRS_FIRST)
        REQUIRE_CUDA(cudaGraphLaunch(graph, p->stream));
    if (what == COPIES || what == BESIDE_COPIES)
        REQUIRE_CUDA(
            hog_copy(options.sms, p->copied + COPIED_BYTES, p->copied, COPIED_BYTES, p->copies, p->stream));
    if (what == PAIRS_FIRST || what == BESIDE_COPIES) enqueue_products(c, gemm);
    REQUIRE_CUDA(cudaEventRecord(c->of_pairs, p->stream));
    REQUIRE_CUDA(cudaEventRecord(c->of_products, c->products));
    REQUIRE_CUDA(cudaStreamWaitEvent(c->first, c->of_pairs, 0));
    REQUIRE_CUDA(cudaStreamWaitEvent(c->first, c->of_products, 0));
    REQUIRE_CUDA(cudaEventRecord(c->ended, c->first));
    await_event(c->ended, 60 * 1000 * MS, "pairs and products");
    return (times){us_between(c->began, c->ended), us_between(c->began, c->of_pairs),
                   us_between(c->began, c->of_products)};
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median, on the rank where it is the largest. All ranks call it. */
static double slowest_median(const rank_links *links, double us[REPEATS]) {
    double slowest = 0;
    qsort(us, REPEATS, sizeof us[0], ascending);
    for (uint32_t r = 0; r < links->ranks; r++) {
        double of_r =
            (double)ranks_sum(links, r == links->rank ? (uint64_t)(us[REPEATS / 2] * 100) : 0) / 100;
        if (of_r > slowest) slowest = of_r;
    }
    return slowest;
}

static times measure(const rank_links *links, const clocks *c, pairs *p, cudaGraphExec_t graph,
                     const cublas *gemm, what what) {
    double all[REPEATS], of_pairs[REPEATS], of_products[REPEATS];
    for (int i = -1; i < REPEATS; i++) {
        times some = once(links, c, p, graph, gemm, what);
        if (i < 0) continue;
        all[i] = some.all;
        of_pairs[i] = some.pairs;
        of_products[i] = some.products;
    }
    return (times){slowest_median(links, all), slowest_median(links, of_pairs),
                   slowest_median(links, of_products)};
}

/* All ranks have the same numbers. */
static void require_within_limit(const char *order, double ratio) {
    REQUIRE(options.most == 0 || ratio <= options.most, "%s: a ratio of %.3f is above the limit of %s", order,
            ratio, options.limit);
}

static double longer_of(double a, double b) {
    return a > b ? a : b;
}

/* How many of something that takes `each_us` take about as long as this; at least one. */
static uint32_t as_long_as(double us, double each_us) {
    uint32_t count = (uint32_t)(us / each_us + 0.5);
    return count > 0 ? count : 1;
}

static void print_times(const char *order, const times *t, double longer) {
    printf("    %s: both_us=%.0f ratio=%.2f, until the products end: %.0f, the others: %.0f\n", order, t->all,
           t->all / longer, t->products, t->pairs);
}

/* Returns whether there are products to measure beside. */
static int run_case(const rank_links *links, const clocks *c, int fp8, uint32_t layout) {
    int sms = 0;
    pairs p;
    REQUIRE_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, ranks_gpu(links)));
    cublas *gemm = cublas_open(options.library, options.n, fp8, (uint32_t)sms - options.sms);
    if (gemm == NULL) return 0;
    open_pairs(&p, links, fp8 ? EPW_PAYLOAD_FP8_F32 : EPW_PAYLOAD_SAME, layout);
    cudaGraphExec_t graph = graph_of(&p, 1);
    double products = measure(links, c, &p, graph, gemm, PRODUCTS_ALONE).all;
    uint32_t count = as_long_as(products, measure(links, c, &p, graph, gemm, PAIRS).all);
    REQUIRE_CUDA(cudaGraphExecDestroy(graph));
    graph = graph_of(&p, count);
    p.copies = as_long_as(products, measure(links, c, &p, graph, gemm, COPIES).all);
    double pairs_us = measure(links, c, &p, graph, gemm, PAIRS).all, longer = longer_of(pairs_us, products);
    times before = measure(links, c, &p, graph, gemm, PRODUCTS_FIRST);
    times behind = measure(links, c, &p, graph, gemm, PAIRS_FIRST);
    double copies_us = measure(links, c, &p, graph, gemm, COPIES).all;
    times copies = measure(links, c, &p, graph, gemm, BESIDE_COPIES);
    if (links->rank == 0) {
        printf("prefill_overlap: %s, %s rows, %u pairs on %u SMs: alone_us=%.0f products_us=%.0f\n",
               fp8 ? "FP8" : "BF16", layout == EPW_PACKED ? "packed" : "dense", count, options.sms, pairs_us,
               products);
        print_times("products first", &before, longer);
        print_times("pairs first", &behind, longer);
        printf("    %u plain copies of %.0f MiB: alone_us=%.0f\n", p.copies, (double)COPIED_BYTES / 0x1p20,
               copies_us);
        print_times("copies first", &copies, longer_of(copies_us, products));
    }
    require_within_limit("products first", before.all / longer);
    require_within_limit("pairs first", behind.all / longer);
    REQUIRE_CUDA(cudaGraphExecDestroy(graph));
    cublas_close(gemm);
    close_pairs(links, &p);
    return 1;
}

static int rank_main(const rank_links *links) {
    clocks c;
    int measured = 1;
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    REQUIRE_CUDA(hog_prepare());
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&c.first, cudaStreamNonBlocking));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&c.products, cudaStreamNonBlocking));
    cudaEvent_t *const events[] = {&c.began, &c.ended, &c.of_pairs, &c.of_products};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) REQUIRE_CUDA(cudaEventCreate(events[i]));
    for (int i = 0; measured && i < 4; i++)
        measured = run_case(links, &c, i % 2, i < 2 ? EPW_DENSE : EPW_PACKED);
    if (links->rank == 0 && measured) printf("prefill_overlap: OK ranks=%u\n", links->ranks);
    if (links->rank == 0 && !measured) printf("prefill_overlap: skipped, no library %s\n", options.library);
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) REQUIRE_CUDA(cudaEventDestroy(*events[i]));
    REQUIRE_CUDA(cudaStreamDestroy(c.first));
    REQUIRE_CUDA(cudaStreamDestroy(c.products));
    return measured ? 0 : EXIT_SKIPPED;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, usage) != 0) return 2;
    if (options.limit != NULL) {
        char *end;
        options.most = strtod(options.limit, &end);
        if (*end != '\0' || end == options.limit || !(options.most >= 1)) {
            fprintf(stderr, "--limit is %s, must be a ratio of at least 1\n", options.limit);
            return 2;
        }
    }
    ranks_limit("prefill_overlap", options.seconds);
    return ranks_main(rank_main, options.ranks, options.processes, argv);
}
