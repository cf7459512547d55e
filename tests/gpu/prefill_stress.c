/* Long random traffic through prefill, checked on the device: every row, scale, count, offset and combined
 * token of every operation. Buffers of random shapes, one after the other; in each, both lanes at the same
 * time, as calls or as replays of graphs. Operations of all layouts and payloads, whole, in halves or counted
 * first, some with less room than rows. Ranks differ in what each may choose: layout, room, order of scales,
 * SMs, pauses. The host looks at nothing before a buffer ends but the counts of some calls. With
 * EPW_TEST_PATH, see ranks.h, ranks reach each other by queues. Exit code 77, with the reason, if there is no
 * GPU. */
#include "echo.h"
#include "ranks.h"
#include "step.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 2, STEPS = 4, AHEAD = 8, OF_A_BUFFER = 1000 }; /* operations */

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
    ep->opaque_bytes = ep->hidden + ep->hidden / EPW_FP8_BLOCK * 4; /* codes, and their scales */
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
    uint32_t buffer, index, places, most_sms, answers;
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
    m->scales = echo_take((places + 4 * (local + 1)) * (s->hidden / EPW_FP8_BLOCK) * 4, 0);
    m->given_scales = echo_take(tokens * (s->hidden / EPW_FP8_BLOCK) * 4, 0);
    m->numbers = echo_take(tokens * s->topk * 4, 0);
    m->expert_counts = echo_take(s->experts * 4, 0);
    m->overflow = echo_take(local * 4, 0);
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
                            m->row_weights,    m->expert_out, m->out,          m->contributions,
                            m->given_scales,   m->numbers,    m->overflow,     m->expert_counts};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) REQUIRE_CUDA(cudaFree(arrays[i]));
    REQUIRE_CUDA(cudaFreeHost(l->faults));
}

/* ---- steps ---- */

enum { WHOLE, HALVES, COUNTED };

/* Step `index` of a rank's STEPS. */
typedef struct kind {
    uint32_t payload, mode; /* equal on all ranks, as is the next one */
    bool again;
    uint32_t layout, alignment, capacity, scale_order, how;
    bool holds_all;   /* there is room for all rows */
    bool halves;      /* of the combine */
    uint32_t columns; /* opaque: 1: the scales that are given lie by column */
} kind;

static bool by_expert(uint32_t layout) {
    return layout == EPW_PACKED || layout == EPW_EXPERT_MAJOR;
}

/* The capacity of a rank. Rank-major has room for all rows, expert-major as much as the memory has for each
 * expert. */
static void choose_room(const lane *l, kind *k, uint64_t *random) {
    const traffic_shape *s = &l->shape;
    k->capacity = l->places;
    k->holds_all = true;
    if (k->layout == EPW_RANK_MAJOR) return;
    if (k->layout == EPW_EXPERT_MAJOR) {
        k->capacity = l->places / (s->experts / s->ranks);
        k->holds_all = k->capacity >= s->ranks * s->max_tokens;
    }
    if (between(random, 0, 3) != 0) return;
    uint32_t most = k->capacity < s->ranks * s->max_tokens ? k->capacity : s->ranks * s->max_tokens;
    k->capacity = between(random, 1, most);
    k->holds_all = false;
}

/* All ranks sum the last step in the order of the top-k, where the rings have room for that, for which the
 * rows of all must be by expert. */
static kind kind_of(const lane *l, uint32_t rank, uint32_t index) {
    static const uint32_t payloads[] = {EPW_PAYLOAD_SAME, EPW_PAYLOAD_FP8_F32, EPW_PAYLOAD_FP8_UE8M0,
                                        EPW_PAYLOAD_OPAQUE};
    static const uint32_t layouts[] = {EPW_PACKED, EPW_EXPERT_MAJOR, EPW_DENSE, EPW_RANK_MAJOR};
    bool ordered = index == STEPS - 1 && l->answers > 0;
    uint64_t random =
        traffic_mix(options.seed + ((uint64_t)l->buffer << 16 | l->index << 8 | index << 4 | (rank + 1)));
    kind k = {.payload = payloads[(index + l->index + l->buffer) % 4],
              .mode = ordered ? EPW_COMBINE_ORDERED : EPW_COMBINE_RANK_REDUCED,
              .again = index == 1,
              .layout = layouts[between(&random, 0, ordered ? 1 : 3)],
              .scale_order = between(&random, 0, 1),
              .columns = between(&random, 0, 1),
              .how = between(&random, 0, 2)};
    k.alignment = k.layout == EPW_PACKED ? between(&random, 1, 64) : 0;
    if (k.how == HALVES && !l->holds_all) k.how = WHOLE;
    k.halves = l->holds_all && !ordered && between(&random, 0, 1) != 0;
    choose_room(l, &k, &random);
    return k;
}

static traffic_places places_of(const lane *l, uint32_t index, const kind *k) {
    const traffic_shape *s = &l->shape;
    uint64_t count = k->payload == EPW_PAYLOAD_SAME ? 0 : s->hidden / EPW_FP8_BLOCK;
    if (k->payload == EPW_PAYLOAD_FP8_UE8M0) count = (count + 3) / 4;
    uint64_t column = ((uint64_t)k->capacity * 4 + 15) / 16 * 16;
    traffic_places p = {
        .layout = k->layout,
        .payload = k->payload,
        .tokens = s->max_tokens,
        .places = k->capacity,
        .alignment = k->alignment,
        .rows = l->memory.rows,
        .scales = l->memory.scales,
        .expert_out = (unsigned char *)l->memory.expert_out,
        .row_stride = (uint64_t)s->hidden * (k->payload == EPW_PAYLOAD_SAME ? 2 : 1),
        .out_stride = (uint64_t)s->hidden * 2,
        .scale_row_stride = k->scale_order ? count * 4 : 4,
        .scale_block_stride = k->scale_order ? 4 : column,
        .scale_list_stride = k->scale_order ? k->capacity * count * 4 : column * count,
    };
    for (uint32_t r = 0; r < s->ranks; r++) {
        kind its = kind_of(l, r, index);
        p.ends[r] = (traffic_end){.layout = its.layout, .alignment = its.alignment, .capacity = its.capacity};
        if (its.holds_all) p.ends[r].capacity = TRAFFIC_HOLDS_ALL;
        p.cuts |= !its.holds_all;
    }
    return p;
}

/* With opaque rows: x is made as codes, beside scales. */
static traffic_memory memory_of(const lane *l, const kind *k) {
    traffic_memory m = l->memory;
    uint64_t count = l->shape.hidden / EPW_FP8_BLOCK;
    if (k->payload != EPW_PAYLOAD_OPAQUE) m.given_scales = NULL;
    m.given_row_stride = k->columns ? 4 : count * 4;
    m.given_block_stride = k->columns ? l->shape.max_tokens * UINT64_C(4) : 4;
    return m;
}

static epw_dispatch_input input_of(const lane *l, const kind *k, const traffic_memory *m) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = l->shape.max_tokens; /* those beyond the step's are routed nowhere */
    in.x = m->x;
    in.topk_idx = m->ids;
    in.topk_weights = m->weights;
    in.topk = l->shape.topk;
    in.payload = k->payload;
    in.stream = l->stream;
    if (k->payload != EPW_PAYLOAD_OPAQUE) return in;
    in.opaque_row_bytes = l->shape.hidden;
    in.scale_count = l->shape.hidden / EPW_FP8_BLOCK;
    in.scale_bytes = 4;
    in.scales = m->given_scales;
    in.scale_row_stride = m->given_row_stride;
    in.scale_col_stride = m->given_block_stride;
    return in;
}

static epw_prefill_output output_of(const lane *l, const kind *k) {
    const traffic_memory *m = &l->memory;
    bool experts = by_expert(k->layout);
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    out.layout = k->layout;
    out.alignment = k->alignment;
    out.scale_order = k->scale_order;
    out.capacity = k->capacity;
    out.rows = m->rows;
    out.scales = k->payload == EPW_PAYLOAD_SAME ? NULL : m->scales;
    out.counts = m->counts;
    out.overflow = experts ? m->overflow : NULL;
    out.offsets = experts ? m->offsets : NULL;
    out.source_counts = m->source_counts;
    out.source_offsets = experts ? NULL : m->source_offsets;
    out.row_expert = experts ? m->row_expert : NULL;
    out.row_source = m->row_source;
    out.row_token = m->row_token;
    out.row_position = experts ? m->row_position : NULL;
    out.row_weight = experts ? m->row_weight : NULL;
    out.row_experts = experts ? NULL : m->row_experts;
    out.row_weights = experts ? NULL : m->row_weights;
    out.stream = l->stream;
    return out;
}

/* Waits for the counts, and gives the output exactly the room that all rows need. */
static void make_room(const lane *l, kind *k) {
    uint64_t rows, began = now_ns();
    epw_status status;
    while ((status = epw_prefill_received(l->prefill, l->routing, k->layout, k->alignment, &rows, NULL,
                                          NULL)) == EPW_PENDING) {
        REQUIRE(now_ns() - began < 60 * 1000 * MS, "the counts do not come");
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    REQUIRE_OK(status);
    REQUIRE(rows <= l->places, "%llu rows", (unsigned long long)rows);
    if (k->holds_all && (k->layout == EPW_PACKED || k->layout == EPW_DENSE)) k->capacity = (uint32_t)rows;
}

/* waits: the host may wait for the counts. */
static void dispatch(lane *l, kind *k, uint32_t index, uint32_t route, bool waits, uint64_t random) {
    traffic_memory m = memory_of(l, k);
    epw_dispatch_input in = input_of(l, k, &m);
    bool counted = k->how == COUNTED && route == EPW_ROUTE_NEW, whole = k->how != HALVES && !counted;
    in.lane = route == EPW_ROUTE_NEW ? (int32_t)l->index : -1;
    in.sms = (uint32_t)(random % (l->most_sms + 1));
    epw_prefill_output out = output_of(l, k);
    REQUIRE_OK(epw_prefill_dispatch(l->prefill, l->routing, &in, route,
                                    counted ? EPW_HALF_COUNTS : EPW_HALF_SENDS, whole ? &out : NULL, NULL));
    if (counted && waits) make_room(l, k);
    out.capacity = k->capacity;
    if (!whole) REQUIRE_OK(epw_prefill_receive(l->prefill, l->routing, &out, NULL));
    traffic_places places = places_of(l, index, k);
    REQUIRE_CUDA(traffic_answer_placed(&l->shape, &m, &places, l->stream));
}

static void step(lane *l, uint32_t index, bool waits, uint64_t random) {
    kind k = kind_of(l, l->shape.rank, index);
    traffic_memory m = memory_of(l, &k);
    REQUIRE_CUDA(traffic_make(&l->shape, &m, l->stream));
    dispatch(l, &k, index, EPW_ROUTE_NEW, waits, random);
    traffic_places places = places_of(l, index, &k);
    if (k.again) {
        uint64_t lists = k.layout == EPW_EXPERT_MAJOR ? l->shape.experts / l->shape.ranks : 1;
        REQUIRE_CUDA(cudaMemsetAsync(l->memory.rows, 0, lists * k.capacity * places.row_stride, l->stream));
        dispatch(l, &k, index, EPW_ROUTE_AGAIN, false, random >> 8);
    }
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    in.mode = k.mode;
    in.expert_out = l->memory.expert_out;
    in.sms = (uint32_t)((random >> 16) % (l->most_sms + 1));
    in.stream = out.stream = l->stream;
    out.out = l->memory.out;
    out.contributions = l->memory.contributions;
    REQUIRE_OK(epw_prefill_combine(l->prefill, l->routing, &in, k.halves ? NULL : &out, NULL));
    if (k.halves) REQUIRE_OK(epw_prefill_collect(l->prefill, l->routing, &out, NULL));
    if (places.cuts) REQUIRE_CUDA(traffic_number(&l->shape, &m, &places, l->stream));
    REQUIRE_CUDA(traffic_check(&l->shape, &m, &places, l->stream));
}

static void steps(lane *l, bool waits, uint64_t random) {
    for (uint32_t i = 0; i < STEPS; i++) step(l, i, waits, traffic_mix(random + i));
}

/* ---- a buffer ---- */

static void open_lane(lane *l, epw_prefill *prefill, const epw_prefill_config *config, uint32_t buffer,
                      uint32_t index) {
    const epw_config *ep = &config->ep;
    uint32_t local = ep->experts / ep->ranks, answers = local < ep->topk ? local : ep->topk;
    *l = (lane){.shape = step_shape(ep, options.seed), .prefill = prefill, .buffer = buffer, .index = index};
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
    steps(l, false, 0);
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
    for (uint32_t i = 0; i < LANES; i++) open_lane(&lanes[i], prefill, &config, index, i);
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
                /* In the first segment ranks that share a GPU enqueue one after the other. */
                steps(&lanes[i], segment > 0, random);
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
    /* At least two buffers. */
    uint64_t most = options.operations / 2 < OF_A_BUFFER ? options.operations / 2 : OF_A_BUFFER;
    for (uint32_t index = 0; done < options.operations; index++) {
        uint64_t left = options.operations - done, some = left < most ? left : most;
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
