/* Two buffers on two streams beside a third stream of matrix products that fill the GPU. Nothing may hang and
 * no row may be wrong; the slowdown of the products is printed. Exit code 77, with the reason, if there is no
 * GPU. */
#include "gemm.h"
#include "ranks.h"
#include "step.h"

#include <stdlib.h>
#include <string.h>

enum { BUFFERS = 2, PRODUCTS_AHEAD = 4, SEGMENTS_AHEAD = 4 };

static struct {
    uint32_t ranks, processes, sms, segments, products, n, tokens, hidden, experts_per_rank, topk, seconds;
} options = {.segments = 100,
             .products = 50,
             .n = 4096,
             .tokens = 128,
             .hidden = 7168,
             .experts_per_rank = 32,
             .topk = 8,
             .seconds = 300};

typedef struct products {
    float *a, *b, *c;
    cudaStream_t stream;
    cudaEvent_t began, ended, done[PRODUCTS_AHEAD];
    uint64_t enqueued;
} products;

static float *matrix(void) {
    void *at = NULL;
    REQUIRE_CUDA(cudaMalloc(&at, (size_t)options.n * options.n * sizeof(float)));
    REQUIRE_CUDA(cudaMemset(at, 0, (size_t)options.n * options.n * sizeof(float)));
    return at;
}

static void open_products(products *p) {
    *p = (products){.a = matrix(), .b = matrix(), .c = matrix()};
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking));
    REQUIRE_CUDA(cudaEventCreate(&p->began));
    REQUIRE_CUDA(cudaEventCreate(&p->ended));
    for (int i = 0; i < PRODUCTS_AHEAD; i++)
        REQUIRE_CUDA(cudaEventCreateWithFlags(&p->done[i], cudaEventDisableTiming));
    for (int i = 0; i < 3; i++) REQUIRE_CUDA(gemm_run(p->a, p->b, p->c, options.n, p->stream));
    await_stream(p->stream, 60 * 1000 * MS, "products alone");
}

static void close_products(products *p) {
    for (int i = 0; i < PRODUCTS_AHEAD; i++) REQUIRE_CUDA(cudaEventDestroy(p->done[i]));
    REQUIRE_CUDA(cudaEventDestroy(p->began));
    REQUIRE_CUDA(cudaEventDestroy(p->ended));
    REQUIRE_CUDA(cudaStreamDestroy(p->stream));
    REQUIRE_CUDA(cudaFree(p->a));
    REQUIRE_CUDA(cudaFree(p->b));
    REQUIRE_CUDA(cudaFree(p->c));
}

/* Keeps enough products enqueued that the GPU never runs out of them. */
static void keep_busy(products *p) {
    for (int i = 0; i < PRODUCTS_AHEAD; i++) {
        cudaEvent_t event = p->done[p->enqueued % PRODUCTS_AHEAD];
        cudaError_t state = p->enqueued < PRODUCTS_AHEAD ? cudaSuccess : cudaEventQuery(event);
        REQUIRE(state == cudaSuccess || state == cudaErrorNotReady, "%s", cudaGetErrorString(state));
        if (state == cudaErrorNotReady) return;
        REQUIRE_CUDA(gemm_run(p->a, p->b, p->c, options.n, p->stream));
        REQUIRE_CUDA(cudaEventRecord(event, p->stream));
        p->enqueued++;
    }
}

static void enqueue_timed(products *p) {
    REQUIRE_CUDA(cudaEventRecord(p->began, p->stream));
    for (uint32_t i = 0; i < options.products; i++)
        REQUIRE_CUDA(gemm_run(p->a, p->b, p->c, options.n, p->stream));
    REQUIRE_CUDA(cudaEventRecord(p->ended, p->stream));
}

/* Milliseconds per product, of those that enqueue_timed has enqueued; they must have run. */
static double timed(const products *p) {
    float ms = 0;
    await_event(p->ended, 120 * 1000 * MS, "products");
    REQUIRE_CUDA(cudaEventElapsedTime(&ms, p->began, p->ended));
    return (double)ms / options.products;
}

static epw_config config_of(const rank_links *links) {
    epw_config config = EPW_CONFIG_INIT;
    config.rank = links->rank;
    config.ranks = links->ranks;
    config.max_tokens = options.tokens;
    config.hidden = options.hidden;
    config.experts = options.experts_per_rank * links->ranks;
    config.topk = options.topk;
    config.lanes = 1;
    config.ordered = 1;
    config.device = ranks_gpu(links);
    config.sms = options.sms > 0 ? options.sms : ranks_sms(links, BUFFERS, 16);
    config.deadline_ns = 60 * 1000 * MS;
    return config;
}

/* STEP_KINDS checked steps per segment in each buffer, with products running all the while. */
static void run_checked(const rank_links *links, step_lane lanes[BUFFERS], products *p) {
    cudaEvent_t done[BUFFERS][SEGMENTS_AHEAD];
    for (int i = 0; i < BUFFERS * SEGMENTS_AHEAD; i++)
        REQUIRE_CUDA(
            cudaEventCreateWithFlags(&done[i / SEGMENTS_AHEAD][i % SEGMENTS_AHEAD], cudaEventDisableTiming));
    for (uint32_t segment = 0; segment < options.segments; segment++) {
        if (segment == 0) ranks_begin_alone(links);
        for (int i = 0; i < BUFFERS; i++) {
            cudaEvent_t event = done[i][segment % SEGMENTS_AHEAD];
            keep_busy(p);
            if (segment >= SEGMENTS_AHEAD) await_event(event, 60 * 1000 * MS, "a segment beside products");
            for (uint32_t k = 0; k < STEP_KINDS; k++)
                step_run(&lanes[i], step_kind_of(links->rank, k), options.tokens);
            REQUIRE_CUDA(cudaEventRecord(event, lanes[i].stream));
            if (step_wrong(&lanes[i], "overlap")) _exit(1);
        }
        if (segment == 0) ranks_end_alone(links);
    }
    for (int i = 0; i < BUFFERS; i++) {
        await_stream(lanes[i].stream, 60 * 1000 * MS, "steps beside products");
        for (int k = 0; k < SEGMENTS_AHEAD; k++) REQUIRE_CUDA(cudaEventDestroy(done[i][k]));
    }
    await_stream(p->stream, 60 * 1000 * MS, "products beside steps");
}

/* Replays only dispatch and combine until all ranks' products are done. Returns the number of steps. */
static uint64_t replay_beside(const rank_links *links, step_lane lanes[BUFFERS],
                              cudaGraphExec_t graphs[BUFFERS], const products *p) {
    uint64_t steps = 0, finished = 0;
    while (finished < links->ranks) {
        for (int i = 0; i < BUFFERS; i++) {
            if (steps > 0) await_event(lanes[i].event, 60 * 1000 * MS, "replays beside products");
            REQUIRE_CUDA(cudaGraphLaunch(graphs[i], lanes[i].stream));
            REQUIRE_CUDA(cudaEventRecord(lanes[i].event, lanes[i].stream));
            REQUIRE_CUDA(cudaGraphLaunch(graphs[i], lanes[i].stream)); /* runs on while the host checks */
            steps += 2 * STEP_KINDS;
        }
        cudaError_t state = cudaEventQuery(p->ended);
        REQUIRE(state == cudaSuccess || state == cudaErrorNotReady, "%s", cudaGetErrorString(state));
        finished = ranks_sum(links, state == cudaSuccess);
    }
    for (int i = 0; i < BUFFERS; i++) await_stream(lanes[i].stream, 60 * 1000 * MS, "replays");
    return steps;
}

static int rank_main(const rank_links *links) {
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    epw_config config = config_of(links);
    ranks_path(&config);
    epw_buffer *buffers[BUFFERS];
    step_lane lanes[BUFFERS];
    cudaGraphExec_t graphs[BUFFERS];
    products p;
    open_products(&p);
    for (int i = 0; i < BUFFERS; i++) {
        REQUIRE_OK(epw_buffer_create(&config, &buffers[i]));
        ranks_connect(links, buffers[i]);
        uint32_t payload = i == 0 ? EPW_PAYLOAD_FP8_F32 : EPW_PAYLOAD_SAME;
        step_open(&lanes[i], buffers[i], &config, 1 + (uint64_t)i, 0, payload, 0, 1, 0);
        graphs[i] = step_graph(&lanes[i], STEP_KINDS, 0);
    }
    enqueue_timed(&p);
    double alone = timed(&p);
    ranks_meet(links);
    run_checked(links, lanes, &p);
    ranks_meet(links);
    enqueue_timed(&p);
    uint64_t began = now_ns(), steps = replay_beside(links, lanes, graphs, &p);
    double step_us = (double)(now_ns() - began) / 1000 / (double)steps, beside = timed(&p);
    uint64_t rows = 0;
    for (int i = 0; i < BUFFERS; i++) {
        if (step_wrong(&lanes[i], "overlap")) _exit(1);
        step_untroubled(&lanes[i]);
        rows += step_state(&lanes[i]).rows;
    }
    rows = ranks_sum(links, rows);
    uint64_t slowest = 0;
    for (uint32_t r = 0; r < links->ranks; r++) {
        uint64_t of_r = ranks_sum(links, r == links->rank ? (uint64_t)(beside / alone * 1000) : 0);
        if (of_r > slowest) slowest = of_r;
    }
    for (int i = 0; i < BUFFERS; i++) {
        REQUIRE_CUDA(cudaGraphExecDestroy(graphs[i]));
        epw_buffer_destroy(buffers[i]);
        step_close(&lanes[i]);
    }
    close_products(&p);
    if (links->rank == 0) {
        printf("overlap: OK ranks=%u buffers=%d sms=%u steps=%u rows=%llu wrong=0 gemm_alone_ms=%.3f "
               "gemm_beside_ms=%.3f slowdown=%.2f slowest_rank=%.2f step_us=%.1f\n",
               links->ranks, BUFFERS, config.sms, options.segments * STEP_KINDS * BUFFERS,
               (unsigned long long)rows, alone, beside, beside / alone, (double)slowest / 1000, step_us);
    }
    return 0;
}

static const ranks_option named[] = {
    {"--ranks", .number = &options.ranks},
    {"--processes", .number = &options.processes, .preset = 1},
    {"--small", .number = &options.sms, .preset = 4},
    {"--small", .number = &options.segments, .preset = 2},
    {"--small", .number = &options.products, .preset = 2},
    {"--small", .number = &options.n, .preset = 256},
    {"--small", .number = &options.tokens, .preset = 8},
    {"--small", .number = &options.hidden, .preset = 256},
    {"--small", .number = &options.experts_per_rank, .preset = 8},
    {"--small", .number = &options.topk, .preset = 4},
    {"--small", .number = &options.seconds, .preset = 1800},
    {"--sms", .number = &options.sms},
    {"--segments", .number = &options.segments},
    {"--products", .number = &options.products},
    {"--n", .number = &options.n},
    {"--tokens", .number = &options.tokens},
    {"--hidden", .number = &options.hidden},
    {"--experts-per-rank", .number = &options.experts_per_rank},
    {"--topk", .number = &options.topk},
    {"--seconds", .number = &options.seconds},
    {0},
};

static const char usage[] =
    "overlap [--ranks N] [--processes] [--small] [--sms N] [--segments N] [--products N] [--n N] [--tokens "
    "N]\n        [--hidden N] [--experts-per-rank N] [--topk N] [--seconds N (limit)]";

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, usage) != 0) return 2;
    ranks_limit("overlap", options.seconds);
    return ranks_main(rank_main, options.ranks, options.processes, argv);
}
