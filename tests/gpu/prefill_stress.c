/* Long random traffic through prefill, checked on the device: every row, count, offset and combined token of
 * every operation. Buffers of random shapes, one after the other; in each, both lanes at the same time, as
 * calls or as replays of graphs. Ranks differ in what each may choose: layout, SMs, pauses. The host looks
 * at nothing before a buffer ends. With EPW_TEST_PATH, see ranks.h, ranks reach each other by queues. Exit
 * code 77, with the reason, if there is no GPU. */
#include "echo.h"
#include "ranks.h"
#include "step.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 2, STEPS = 4, AHEAD = 8, OF_A_BUFFER = 2000 }; /* operations */

/* Operations of a lane's STEPS steps: a dispatch and a combine each, and in one of them a second dispatch. */
enum { OPERATIONS = 2 * STEPS + 1 };

static struct {
    uint32_t operations, seed, ranks, processes, ipc, sms, tokens, pause_us, seconds;
} options = {.operations = 50000, .seed = 1, .tokens = 256, .pause_us = 50, .seconds = 300};

static const ranks_option named[] = {
    {"--operations", .number = &options.operations},
    {"--seed", .number = &options.seed},
    {"--ranks", .number = &options.ranks},
    {"--processes", .number = &options.processes, .preset = 1},
    {"--ipc", .number = &options.ipc, .preset = 1},
    {"--sms", .number = &options.sms},
    {"--tokens", .number = &options.tokens},
    {"--pause-us", .number = &options.pause_us},
    {"--seconds", .number = &options.seconds},
    {0},
};

static const char usage[] =
    "prefill_stress [--operations N] [--seed N] [--ranks N] [--processes] "
    "[--ipc]\n       [--sms N (of a buffer)] [--tokens N (at most)] [--pause-us N] [--seconds N "
    "(limit)]";

/* ---- shapes ---- */

static uint32_t between(uint64_t *random, uint32_t least, uint32_t most) {
    *random = traffic_mix(*random + UINT64_C(0x9e3779b97f4a7c15));
    return least + (uint32_t)(*random % (most - least + 1));
}

/* Of all ranks' buffers number `index`. */
static epw_prefill_config config_of(const rank_links *links, uint32_t index) {
    uint64_t random = traffic_mix(options.seed + index);
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_config *ep = &config.ep;
    ep->rank = links->rank;
    ep->ranks = links->ranks;
    ep->experts = links->ranks * between(&random, 1, 24);
    ep->topk = between(&random, 1, ep->experts < 8 ? ep->experts : 8);
    ep->max_tokens = between(&random, options.tokens < 8 ? options.tokens : 8, options.tokens);
    ep->hidden = EPW_FP8_BLOCK * between(&random, 1, 8);
    if (index % 8 == 7) ep->hidden = 7168;
    ep->lanes = LANES;
    ep->device = ranks_gpu(links);
    if (options.ipc) ep->paths = EPW_PATH_SELF | EPW_PATH_THREAD | EPW_PATH_IPC;
    ep->deadline_ns = 60 * 1000 * MS;
    /* Few blocks, each of which does everything, and as many as there are. */
    uint32_t few = index % 2 == 0 ? LANES * between(&random, 1, 12) : 0;
    ep->sms = options.sms > 0 ? options.sms : ranks_sms(links, 1, few);
    /* Rings that are gone through often, and rings that hold an operation. */
    config.ring_tokens = index % 4 == 3 ? ep->max_tokens + 1 : between(&random, 2, 40);
    return config;
}

/* ---- a lane ---- */

typedef struct lane {
    traffic_shape shape;
    traffic_memory memory;
    traffic_faults *faults; /* as the host addresses them */
    epw_prefill *prefill;
    epw_routing *routing;
    uint32_t index, payload, places, most_sms, answers;
    bool holds_all; /* the rings do: halves */
    cudaStream_t stream;
    cudaGraphExec_t graph;
    cudaEvent_t done[AHEAD];
} lane;

static void take_memory(lane *l) {
    traffic_memory *m = &l->memory;
    const traffic_shape *s = &l->shape;
    size_t tokens = s->max_tokens, local = s->experts / s->ranks, places = l->places;
    void *host = NULL;
    m->state = echo_take(sizeof *m->state, 0);
    m->x = echo_take(tokens * s->hidden * 2, 0);
    m->ids = echo_take(tokens * s->topk * 4, 0);
    m->weights = echo_take(tokens * s->topk * 4, 0);
    m->rows = echo_take(places * s->hidden * 2, 0);
    m->scales = echo_take((places + 4) * (s->hidden / EPW_FP8_BLOCK) * 4, 0);
    m->counts = echo_take(local * 4, 0);
    m->offsets = echo_take(local * 4, 0);
    m->source_counts = echo_take(s->ranks * 4, 0);
    m->source_offsets = echo_take(s->ranks * 4, 0);
    m->row_expert = echo_take(places * 4, 0);
    m->row_source = echo_take(places * 4, 0);
    m->row_token = echo_take(places * 4, 0);
    m->row_position = echo_take(places * 4, 0);
    m->row_weight = echo_take(places * 4, 0);
    m->row_experts = echo_take(places * s->topk * 4, 0);
    m->row_weights = echo_take(places * s->topk * 4, 0);
    m->expert_out = echo_take(places * s->hidden * 2, 0);
    m->out = echo_take(tokens * s->hidden * 2, 0);
    m->contributions = echo_take(tokens * 4, 0);
    REQUIRE_CUDA(cudaHostAlloc(&host, sizeof *l->faults, cudaHostAllocMapped));
    memset(host, 0, sizeof *l->faults);
    l->faults = host;
    void *device = NULL;
    REQUIRE_CUDA(cudaHostGetDevicePointer(&device, host, 0));
    m->faults = device;
}

static void free_memory(lane *l) {
    const traffic_memory *m = &l->memory;
    void *const arrays[] = {m->state,          m->x,          m->ids,          m->weights,
                            m->rows,           m->scales,     m->counts,       m->offsets,
                            m->source_counts,  m->row_expert, m->row_source,   m->row_token,
                            m->source_offsets, m->row_weight, m->row_position, m->row_experts,
                            m->row_weights,    m->expert_out, m->out,          m->contributions};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) REQUIRE_CUDA(cudaFree(arrays[i]));
    REQUIRE_CUDA(cudaFreeHost(l->faults));
}

/* ---- steps ---- */

/* Step `index` of a rank's STEPS. All ranks sum the last in the order of the top-k, where the rings have room
 * for that, for which the rows of all must be packed. */
typedef struct kind {
    uint32_t layout, mode, alignment, scale_order;
    bool halves, again;
} kind;

static kind kind_of(const lane *l, uint32_t index) {
    bool ordered = index == STEPS - 1 && l->answers > 0;
    kind k = {.layout = ordered || (index + l->shape.rank) % 2 == 0 ? EPW_PACKED : EPW_DENSE,
              .mode = ordered ? EPW_COMBINE_ORDERED : EPW_COMBINE_RANK_REDUCED,
              .scale_order = index / 2,
              .halves = l->holds_all && index % 2 == 1,
              .again = index == 1};
    k.alignment = k.layout == EPW_PACKED ? 1 + 7 * (index + l->shape.rank) : 0;
    return k;
}

static traffic_places places_of(const lane *l, const kind *k) {
    uint64_t count = l->payload == EPW_PAYLOAD_SAME ? 0 : l->shape.hidden / EPW_FP8_BLOCK;
    uint64_t column = ((uint64_t)l->places * 4 + 15) / 16 * 16;
    return (traffic_places){
        .layout = k->layout,
        .payload = l->payload,
        .tokens = l->shape.max_tokens,
        .places = l->places,
        .alignment = k->alignment,
        .rows = l->memory.rows,
        .scales = l->memory.scales,
        .expert_out = (unsigned char *)l->memory.expert_out,
        .row_stride = (uint64_t)l->shape.hidden * (l->payload == EPW_PAYLOAD_SAME ? 2 : 1),
        .out_stride = (uint64_t)l->shape.hidden * 2,
        .scale_row_stride = k->scale_order ? count * 4 : 4,
        .scale_block_stride = k->scale_order ? 4 : column,
    };
}

static void dispatch(lane *l, const kind *k, uint32_t route, uint64_t random) {
    const traffic_memory *m = &l->memory;
    bool packed = k->layout == EPW_PACKED;
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = l->shape.max_tokens; /* those beyond the step's are routed nowhere */
    in.x = m->x;
    in.topk_idx = m->ids;
    in.topk_weights = m->weights;
    in.topk = l->shape.topk;
    in.payload = l->payload;
    in.lane = route == EPW_ROUTE_NEW ? (int32_t)l->index : -1;
    in.sms = (uint32_t)(random % (l->most_sms + 1));
    in.stream = l->stream;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    out.layout = k->layout;
    out.alignment = k->alignment;
    out.scale_order = k->scale_order;
    out.capacity = l->places;
    out.rows = m->rows;
    out.scales = l->payload == EPW_PAYLOAD_SAME ? NULL : m->scales;
    out.counts = m->counts;
    out.offsets = packed ? m->offsets : NULL;
    out.source_counts = m->source_counts;
    out.source_offsets = packed ? NULL : m->source_offsets;
    out.row_expert = packed ? m->row_expert : NULL;
    out.row_source = m->row_source;
    out.row_token = m->row_token;
    out.row_position = packed ? m->row_position : NULL;
    out.row_weight = packed ? m->row_weight : NULL;
    out.row_experts = packed ? NULL : m->row_experts;
    out.row_weights = packed ? NULL : m->row_weights;
    out.stream = l->stream;
    REQUIRE_OK(epw_prefill_dispatch(l->prefill, l->routing, &in, route, EPW_HALF_SENDS,
                                    k->halves ? NULL : &out, NULL));
    if (k->halves) REQUIRE_OK(epw_prefill_receive(l->prefill, l->routing, &out, NULL));
    traffic_places places = places_of(l, k);
    REQUIRE_CUDA(traffic_answer_placed(&l->shape, m, &places, l->stream));
}

static void step(lane *l, uint32_t index, uint64_t random) {
    kind k = kind_of(l, index);
    traffic_places places = places_of(l, &k);
    REQUIRE_CUDA(traffic_make(&l->shape, &l->memory, l->stream));
    dispatch(l, &k, EPW_ROUTE_NEW, random);
    if (k.again) {
        REQUIRE_CUDA(cudaMemsetAsync(l->memory.rows, 0, l->places * places.row_stride, l->stream));
        dispatch(l, &k, EPW_ROUTE_AGAIN, random >> 8);
    }
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    in.mode = k.mode;
    in.expert_out = l->memory.expert_out;
    in.sms = (uint32_t)((random >> 16) % (l->most_sms + 1));
    in.stream = out.stream = l->stream;
    out.out = l->memory.out;
    out.contributions = l->memory.contributions;
    bool halves =
        k.halves && k.layout == EPW_DENSE; /* of packed rows the rings need room for each expert's */
    REQUIRE_OK(epw_prefill_combine(l->prefill, l->routing, &in, halves ? NULL : &out, NULL));
    if (halves) REQUIRE_OK(epw_prefill_collect(l->prefill, l->routing, &out, NULL));
    REQUIRE_CUDA(traffic_check(&l->shape, &l->memory, &places, l->stream));
}

static void steps(lane *l, uint64_t random) {
    for (uint32_t i = 0; i < STEPS; i++) step(l, i, traffic_mix(random + i));
}

/* ---- a buffer ---- */

static void open_lane(lane *l, epw_prefill *prefill, const epw_prefill_config *config, uint32_t index) {
    const epw_config *ep = &config->ep;
    uint32_t local = ep->experts / ep->ranks, answers = local < ep->topk ? local : ep->topk;
    *l = (lane){.shape = step_shape(ep, options.seed), .prefill = prefill, .index = index};
    l->payload = index == 0 ? EPW_PAYLOAD_SAME : EPW_PAYLOAD_FP8_F32;
    l->places = ep->ranks * ep->max_tokens * answers + local * 64;
    l->most_sms = ep->sms / ep->lanes;
    l->answers = config->ring_tokens >= answers ? answers : 0;
    l->holds_all = config->ring_tokens > ep->max_tokens;
    take_memory(l);
    uint64_t all = (UINT64_C(1) << ep->ranks) - 1;
    traffic_state state = {
        index - (uint64_t)LANES, LANES, options.pause_us * UINT64_C(1000), all, all, 0, 0, 0};
    REQUIRE_CUDA(cudaMemcpy(l->memory.state, &state, sizeof state, cudaMemcpyHostToDevice));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
    for (uint32_t i = 0; i < AHEAD; i++)
        REQUIRE_CUDA(cudaEventCreateWithFlags(&l->done[i], cudaEventDisableTiming));
    REQUIRE_CUDA(traffic_prepare());
    REQUIRE_CUDA(cudaStreamSynchronize(NULL)); /* not the device: another rank may be capturing on it */
    REQUIRE_OK(epw_routing_create(prefill, &l->routing));
    step_capture(l->stream);
    steps(l, 0);
    l->graph = step_captured(l->stream);
}

/* Returns the rows checked. */
static uint64_t close_lane(lane *l, uint64_t segments) {
    traffic_state state;
    await_stream(l->stream, 60 * 1000 * MS, "the end of a lane");
    if (step_faulty(l->faults, "prefill_stress", l->shape.rank, l->index)) _exit(1);
    REQUIRE_CUDA(cudaMemcpy(&state, l->memory.state, sizeof state, cudaMemcpyDeviceToHost));
    REQUIRE(state.iteration == l->index + LANES * (segments * STEPS - 1), "lane %u ended with iteration %llu",
            l->index, (unsigned long long)state.iteration);
    REQUIRE_CUDA(cudaGraphExecDestroy(l->graph));
    for (uint32_t i = 0; i < AHEAD; i++) REQUIRE_CUDA(cudaEventDestroy(l->done[i]));
    epw_routing_free(l->routing);
    return state.rows;
}

static void require_untroubled(const epw_prefill *prefill, uint32_t rank) {
    epw_membership now = EPW_MEMBERSHIP_INIT;
    REQUIRE_OK(epw_prefill_membership(prefill, &now));
    REQUIRE(now.suspects.bits[0] == 0, "rank %u suspects %llx", rank,
            (unsigned long long)now.suspects.bits[0]);
}

static uint64_t run_buffer(const rank_links *links, uint32_t index, uint64_t segments) {
    epw_prefill_config config = config_of(links, index);
    epw_prefill *prefill = NULL;
    lane lanes[LANES];
    uint64_t rows = 0;
    ranks_path(&config.ep);
    REQUIRE_OK(epw_prefill_create(&config, &prefill));
    ranks_connect_prefill(links, prefill);
    ranks_require_prefill_paths(links, prefill);
    for (uint32_t i = 0; i < LANES; i++) open_lane(&lanes[i], prefill, &config, i);
    ranks_meet(links);
    for (uint64_t segment = 0; segment < segments; segment++) {
        if (segment == 0) ranks_begin_alone(links);
        uint64_t key = (uint64_t)(options.seed + index) << 40 | segment * RANKS_LIMIT | links->rank;
        for (uint32_t i = 0; i < LANES; i++) {
            uint64_t random = traffic_mix(key ^ (uint64_t)(i + 1) << 32);
            cudaEvent_t done = lanes[i].done[segment % AHEAD];
            if (segment >= AHEAD) await_event(done, 60 * 1000 * MS, "a segment");
            if (random % 2 == 0) {
                REQUIRE_CUDA(cudaGraphLaunch(lanes[i].graph, lanes[i].stream));
            } else {
                steps(&lanes[i], random);
            }
            REQUIRE_CUDA(cudaEventRecord(done, lanes[i].stream));
            if (step_faulty(lanes[i].faults, "prefill_stress", links->rank, i)) _exit(1);
        }
        if (segment == 0) ranks_end_alone(links);
        uint64_t random = traffic_mix(key);
        if (random >> 48 & 15 || options.pause_us == 0) continue;
        nanosleep(&(struct timespec){0, (long)(random >> 52) * 200}, NULL); /* up to 0.8 ms */
    }
    for (uint32_t i = 0; i < LANES; i++) rows += close_lane(&lanes[i], segments);
    require_untroubled(prefill, links->rank);
    ranks_meet(links);
    epw_prefill_destroy(prefill);
    epw_fabric_destroy(config.ep.fabric);
    for (uint32_t i = 0; i < LANES; i++) {
        REQUIRE_CUDA(cudaStreamDestroy(lanes[i].stream));
        free_memory(&lanes[i]);
    }
    return rows;
}

static int rank_main(const rank_links *links) {
    enum { SEGMENT = LANES * OPERATIONS };
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    uint64_t began = now_ns(), rows = 0, done = 0;
    for (uint32_t index = 0; done < options.operations; index++) {
        uint64_t left = options.operations - done, some = left < OF_A_BUFFER ? left : OF_A_BUFFER;
        uint64_t segments = (some + SEGMENT - 1) / SEGMENT;
        rows += ranks_sum(links, run_buffer(links, index, segments));
        done += segments * SEGMENT;
    }
    if (links->rank == 0)
        printf("prefill_stress: OK ranks=%u operations=%llu rows=%llu wrong=0 as=%s seconds=%.1f\n",
               links->ranks, (unsigned long long)done, (unsigned long long)rows,
               options.processes ? "processes" : "threads", (double)(now_ns() - began) * 1e-9);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, usage) != 0) return 2;
    ranks_limit("prefill_stress", options.seconds);
    return ranks_main(rank_main, options.ranks, options.processes, argv);
}
