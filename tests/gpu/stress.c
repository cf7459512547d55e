/* Long random traffic, checked on the device: every row, count and combined token of every iteration. Ranks
 * differ in what each may choose: layout, halves, calls or replays of graphs, pauses. The host looks at
 * nothing before the end. Exit code 77, with the reason, if there is no GPU. */
#include "ranks.h"
#include "step.h"

#include <stdlib.h>
#include <string.h>

enum { LANES = 2, SEGMENTS_AHEAD = 8 };

static struct {
    uint32_t iterations, seed, ranks, processes, ipc, small;
    uint32_t tokens, hidden, experts_per_rank, topk, sms, pause_us, seconds;
} options = {.iterations = 100000,
             .seed = 1,
             .tokens = 32,
             .hidden = 512,
             .experts_per_rank = 12,
             .topk = 4,
             .pause_us = 50,
             .seconds = 300};

static const ranks_option named[] = {
    {"--ranks", .number = &options.ranks},
    {"--processes", .number = &options.processes, .preset = 1},
    {"--ipc", .number = &options.ipc, .preset = 1},
    {"--small", .number = &options.small, .preset = 1},
    {"--small", .number = &options.iterations, .preset = 64},
    {"--small", .number = &options.tokens, .preset = 8},
    {"--small", .number = &options.hidden, .preset = 256},
    {"--small", .number = &options.experts_per_rank, .preset = 4},
    {"--small", .number = &options.sms, .preset = 4},
    {"--small", .number = &options.seconds, .preset = 1800},
    {"--iterations", .number = &options.iterations},
    {"--seed", .number = &options.seed},
    {"--tokens", .number = &options.tokens},
    {"--hidden", .number = &options.hidden},
    {"--experts-per-rank", .number = &options.experts_per_rank},
    {"--topk", .number = &options.topk},
    {"--sms", .number = &options.sms},
    {"--pause-us", .number = &options.pause_us},
    {"--seconds", .number = &options.seconds},
    {0},
};

static const char usage[] =
    "stress [--iterations N] [--ranks N] [--processes] [--ipc] [--small] [--seed N] [--tokens N] [--hidden "
    "N]\n      "
    " [--experts-per-rank N] [--topk N] [--sms N] [--pause-us N] [--seconds N (limit)]";

static epw_config config_of(const rank_links *links, uint32_t sms) {
    epw_config config = EPW_CONFIG_INIT;
    config.rank = links->rank;
    config.ranks = links->ranks;
    config.max_tokens = options.tokens;
    config.hidden = options.hidden;
    config.experts = options.experts_per_rank * links->ranks;
    config.topk = options.topk;
    config.lanes = LANES;
    config.ordered = 1;
    config.device = ranks_gpu(links);
    if (options.ipc) config.paths = EPW_PATH_SELF | EPW_PATH_THREAD | EPW_PATH_IPC;
    config.sms = sms;
    config.deadline_ns = (options.small ? 120 : 20) * 1000 * MS;
    return config;
}

/* The number of tokens that the device makes in that iteration. */
static uint32_t tokens_of(const step_lane *l, uint64_t iteration) {
    return traffic_tokens(&l->shape, traffic_key(&l->shape, l->shape.rank, iteration));
}

/* Segments of the run; each is STEP_KINDS iterations of every lane. */
static uint64_t segments_of_run(void) {
    return ((uint64_t)options.iterations + LANES * STEP_KINDS - 1) / (LANES * STEP_KINDS);
}

/* STEP_KINDS steps of one lane, as calls or as a replay. */
static void run_segment(step_lane *l, cudaGraphExec_t graph, uint64_t segment, uint64_t random) {
    if (random % 2 == 0) {
        REQUIRE_CUDA(cudaGraphLaunch(graph, l->stream));
        return;
    }
    for (uint32_t i = 0; i < STEP_KINDS; i++) {
        uint64_t iteration = l->lane + LANES * (segment * STEP_KINDS + i);
        /* Either exactly the tokens that exist, or also rows that are routed nowhere. */
        uint32_t tokens = random >> (8 + i) & 1 ? l->shape.max_tokens : tokens_of(l, iteration);
        step_run(l, step_kind_of(l->shape.rank, i), tokens);
    }
}

/* Returns the rows checked. */
static uint64_t finish_lane(step_lane *l, uint64_t iterations) {
    await_stream(l->stream, 60 * 1000 * MS, "the end of a lane");
    traffic_state state = step_state(l);
    if (step_wrong(l, "stress")) _exit(1);
    step_untroubled(l);
    REQUIRE(state.iteration == l->lane + LANES * (iterations - 1), "lane %u ended with iteration %llu",
            l->lane, (unsigned long long)state.iteration);
    if (l->lane != 0) return state.rows; /* the other lanes have no totals: see step_dispatch */
    uint64_t totals = 0, of_expert[EPW_MAX_TOKENS / 8];
    size_t experts = l->shape.experts / l->shape.ranks;
    REQUIRE_CUDA(cudaMemcpy(of_expert, l->memory.expert_totals, experts * 8, cudaMemcpyDeviceToHost));
    for (size_t e = 0; e < experts; e++) totals += of_expert[e];
    REQUIRE(totals == state.totals, "expert_totals add up to %llu instead of %llu",
            (unsigned long long)totals, (unsigned long long)state.totals);
    return state.rows;
}

/* All iterations in a buffer with `sms` SMs. Returns the rows checked on this rank. */
static uint64_t run_buffer(const rank_links *links, uint32_t sms) {
    epw_config config = config_of(links, sms);
    epw_buffer *buffer = NULL;
    ranks_path(&config);
    REQUIRE_OK(epw_buffer_create(&config, &buffer));
    ranks_connect(links, buffer);
    ranks_require_paths(links, buffer);
    step_lane lanes[LANES];
    cudaGraphExec_t graphs[LANES];
    cudaEvent_t done[LANES][SEGMENTS_AHEAD];
    const uint64_t segments = segments_of_run();
    for (uint32_t i = 0; i < LANES; i++) {
        step_open(&lanes[i], buffer, &config, options.seed, i,
                  i == 0 ? EPW_PAYLOAD_SAME : EPW_PAYLOAD_FP8_F32, i, LANES,
                  options.pause_us * UINT64_C(1000));
        graphs[i] = step_graph(&lanes[i], STEP_KINDS, 1);
        for (uint32_t k = 0; k < SEGMENTS_AHEAD; k++)
            REQUIRE_CUDA(cudaEventCreateWithFlags(&done[i][k], cudaEventDisableTiming));
    }
    ranks_meet(links);
    for (uint64_t segment = 0; segment < segments; segment++) {
        if (segment == 0) ranks_begin_alone(links);
        uint64_t random = traffic_mix(options.seed ^ (segment * RANKS_LIMIT + links->rank + 1) << 8);
        for (uint32_t i = 0; i < LANES; i++) {
            cudaEvent_t event = done[i][segment % SEGMENTS_AHEAD];
            if (segment >= SEGMENTS_AHEAD) await_event(event, 60 * 1000 * MS, "a segment");
            run_segment(&lanes[i], graphs[i], segment, random >> (i * 20));
            REQUIRE_CUDA(cudaEventRecord(event, lanes[i].stream));
            if (step_wrong(&lanes[i], "stress")) _exit(1);
        }
        if (segment == 0) ranks_end_alone(links);
        if (random >> 48 & 15 || options.pause_us == 0) continue;
        nanosleep(&(struct timespec){0, (long)(random >> 52) * 200}, NULL); /* up to 0.8 ms */
    }
    uint64_t rows = 0;
    for (uint32_t i = 0; i < LANES; i++) rows += finish_lane(&lanes[i], segments * STEP_KINDS);
    for (uint32_t i = 0; i < LANES; i++) REQUIRE_CUDA(cudaGraphExecDestroy(graphs[i]));
    epw_buffer_destroy(buffer);
    for (uint32_t i = 0; i < LANES; i++) {
        for (uint32_t k = 0; k < SEGMENTS_AHEAD; k++) REQUIRE_CUDA(cudaEventDestroy(done[i][k]));
        step_close(&lanes[i]);
    }
    return rows;
}

/* Once with a block for each token, and once with so few blocks that each sends many tokens; or as `--sms`
 * says. */
static int rank_main(const rank_links *links) {
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    uint64_t began = now_ns(), iterations = segments_of_run() * STEP_KINDS * LANES, rows = 0;
    uint32_t runs = options.sms > 0 ? 1 : 2;
    for (uint32_t run = 0; run < runs; run++) {
        uint32_t few = run == 0 ? 0 : 2 * LANES;
        rows += ranks_sum(links, run_buffer(links, options.sms > 0 ? options.sms : ranks_sms(links, 1, few)));
    }
    if (links->rank == 0) {
        printf("stress: OK ranks=%u iterations=%llu rows=%llu wrong=0 as=%s seconds=%.1f\n", links->ranks,
               (unsigned long long)(iterations * runs), (unsigned long long)rows,
               options.processes ? "processes" : "threads", (double)(now_ns() - began) * 1e-9);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, usage) != 0) return 2;
    ranks_limit("stress", options.seconds);
    return ranks_main(rank_main, options.ranks, options.processes, argv);
}
