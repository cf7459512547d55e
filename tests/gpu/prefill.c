/* Prefill on the GPU against the host, bit for bit: random groups, rings of 2 to 16 tokens, every layout,
 * payload and mode; in one call, counted first, in halves, as replayed graphs, and with a routing that is
 * used again. Each case comes from one seed, and runs first on host threads, then on kernels. Ranks are
 * threads of this process.
 *
 * Then one rank is delayed, which must delay no other, and the others' outputs name it; two lanes are used at
 * the same time; a dispatch that uses its routing again is given up; and blocks get no SM.
 *
 * With EPW_TEST_PATH, see ranks.h, the ranks on GPUs reach each other by queues.
 *
 * `--ranks N`: the ranks of each case, by default 1 to 4; rank r has GPU r % GPUs. `--first N`, `--cases N`:
 * seeds; in seeds 3, 7, ... of `--first 3 --every 4 --cases 7` each kind of trouble comes once. Exit code 77,
 * with the reason, if there is no GPU. */
#include "hog.h"
#include "ranks.h"
#include "require.h"
#include "step.h"

#include "../c/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_BY_SEED = 4, SCALES_MOST = 12, UNTOUCHED = 0x5a };

static struct {
    uint32_t ranks, first, cases, every, seconds;
} options = {.cases = 60, .every = 1, .seconds = 900};

static uint64_t next_random(uint64_t *state) {
    uint64_t x = (*state += UINT64_C(0x9e3779b97f4a7c15));
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
static uint32_t below(uint64_t *state, uint32_t n) {
    return (uint32_t)(next_random(state) % n);
}

/* ---- cases ---- */

typedef enum how { WHOLE, COUNTED, HALVES, GRAPH, HOWS } how;

/* What the last rank does wrong in the first round. */
typedef enum trouble {
    NO_TROUBLE,
    SILENT,           /* it does not dispatch */
    COUNTS_ALONE,     /* it sends its counts, and stops */
    SENDS_ALONE,      /* it sends its rows, and takes none */
    NO_COMBINE,       /* it does not combine */
    COUNTS_GIVEN_UP,  /* it sends its counts, and gives up */
    SENDS_GIVEN_UP,   /* it sends its rows, and gives up */
    COMBINE_GIVEN_UP, /* it answers, and gives up */
    TROUBLES
} trouble;

/* What all ranks of a case agree on. */
typedef struct plan {
    uint64_t seed;
    epw_prefill_config config;
    uint32_t payload, opaque_row, scale_count, scale_bytes, mode, width, topk, rounds;
    how how;
    trouble trouble;
    uint32_t idx_type;
    bool sideband, values, combine_weights, wild;
    bool bad_ids; /* on the GPU some of the unrouted ids are invalid */
} plan;

/* Of these each kind comes in turn. */
static bool is_of_trouble(uint64_t seed) {
    return seed % 4 == 3;
}

static plan choose_plan(uint64_t seed, uint32_t ranks) {
    uint64_t s = seed * 77 + 5;
    plan p = {.seed = seed, .config = EPW_PREFILL_CONFIG_INIT};
    epw_config *c = &p.config.ep;
    c->ranks = ranks;
    uint32_t local = 1 + below(&s, 24 / ranks);
    if (below(&s, 5) == 0) local = 33 + below(&s, 40); /* more than a warp has lanes */
    c->experts = local * ranks;
    c->max_tokens = 1 + below(&s, 40);
    c->topk = p.topk = 1 + below(&s, c->experts < 9 ? c->experts : 9);
    if (seed % 5 == 2 && c->experts > 16) c->topk = 17 + seed % 16; /* a token has a whole warp */
    if (c->topk > c->experts) c->topk = c->experts;
    if (c->topk > p.topk) p.topk = c->topk;
    if (below(&s, 3) == 0 && p.topk > 1) p.topk--;
    p.payload = below(&s, EPW_PAYLOAD_OPAQUE + 1);
    bool quantised = p.payload != EPW_PAYLOAD_SAME && p.payload != EPW_PAYLOAD_OPAQUE;
    c->hidden = quantised ? 128 * (1 + below(&s, 6)) : 8 * (1 + below(&s, 40));
    if (below(&s, 6) == 0) c->hidden = 128 * (64 + below(&s, 40)); /* several pieces */
    if (p.payload == EPW_PAYLOAD_OPAQUE) {
        p.opaque_row = 16 * (1 + below(&s, 40));
        p.scale_count = below(&s, SCALES_MOST);
        p.scale_bytes = p.scale_count > 0 ? 1u << below(&s, 4) : 0;
        c->opaque_bytes = p.opaque_row + p.scale_count * p.scale_bytes;
    }
    c->lanes = 1 + below(&s, 2);
    c->dtype = below(&s, 2) ? EPW_BF16 : EPW_F16;
    c->combine_dtype = below(&s, 2) ? EPW_BF16 : EPW_F16;
    c->sideband_bytes = below(&s, 2) ? 1 + below(&s, EPW_MAX_SIDEBAND) : 0;
    c->deadline_ns = 60000 * MS;
    p.config.ring_tokens = 2 + below(&s, 15);
    p.how = (seed - seed / 4) % HOWS; /* each in turn, beside the seeds of trouble */
    if (p.how == HALVES) p.config.ring_tokens = 1 + c->max_tokens * (1 + below(&s, 2));
    p.sideband = c->sideband_bytes > 0;
    uint32_t answers = c->topk < local ? c->topk : local;
    p.mode =
        below(&s, 3) == 0 && p.config.ring_tokens >= answers ? EPW_COMBINE_ORDERED : EPW_COMBINE_RANK_REDUCED;
    p.values = below(&s, 2);
    p.combine_weights = below(&s, 3) == 0;
    p.wild = below(&s, 4) == 0;
    p.width = below(&s, 3) == 0 ? 8 * (1 + below(&s, c->hidden / 8)) : c->hidden;
    p.rounds = 1 + below(&s, 2);
    p.idx_type = below(&s, EPW_I64 + 1);
    p.bad_ids = below(&s, 6) == 0;
    if (seed % 20 == 16 && p.how != HALVES) c->max_tokens = 1500; /* each ring wraps around often */
    if (ranks == 1 || !is_of_trouble(seed)) return p;
    p.trouble = 1 + seed / 4 % (TROUBLES - 1);
    if (seed % 8 == 3) { /* movers of a combine take up several tokens */
        c->max_tokens = 400;
        c->hidden = 128;
        p.width = 8 * (1 + seed % 16);
    }
    p.how = WHOLE;
    p.rounds = 1;
    c->deadline_ns = (p.trouble < COUNTS_GIVEN_UP ? 400 * longer : 60000) * times_slower() * MS;
    /* On the host a rank that has given up reads nothing from its rings before its next call. */
    if (p.trouble >= COUNTS_GIVEN_UP) p.config.ring_tokens = 2 + c->max_tokens * answers;
    return p;
}

/* ---- arrays of a rank ---- */

enum {
    X,
    IDS,
    WEIGHTS,
    AGAIN_WEIGHTS,
    BAND,
    GIVEN_SCALES,
    BIAS,
    BIAS_TOO,
    MADE,
    MADE_VALUES,
    MADE_WEIGHTS,
    OUTPUTS,
    ROWS = OUTPUTS,
    SCALES,
    OUT_BAND,
    COUNTS,
    OFFSETS,
    OVERFLOW_,
    SOURCE_COUNTS,
    SOURCE_OFFSETS,
    ROW_EXPERT,
    ROW_SOURCE,
    ROW_TOKEN,
    ROW_POSITION,
    ROW_WEIGHT,
    ROW_EXPERTS,
    ROW_WEIGHTS,
    RANGES,
    TOTALS,
    TOTALS_I32,
    SUMS,
    CONTRIBUTIONS,
    LACKS,
    VALUES,
    ARRAYS
};
static const char *const names[ARRAYS] = {"x",
                                          "ids",
                                          "weights",
                                          "again_weights",
                                          "band",
                                          "given_scales",
                                          "bias[0]",
                                          "bias[1]",
                                          "made",
                                          "made_values",
                                          "made_weights",
                                          "rows",
                                          "scales",
                                          "sideband",
                                          "counts",
                                          "offsets",
                                          "overflow",
                                          "source_counts",
                                          "source_offsets",
                                          "row_expert",
                                          "row_source",
                                          "row_token",
                                          "row_position",
                                          "row_weight",
                                          "row_experts",
                                          "row_weights",
                                          "ranges",
                                          "expert_totals",
                                          "expert_totals_i32",
                                          "sums",
                                          "contributions",
                                          "lacks",
                                          "values"};

/* A rank of a case, once on the host and once on the GPU. */
typedef struct rank {
    const plan *p;
    const rank_links *links;
    uint32_t rank, tokens, layout, alignment, scale_order, zero_padding, bias_count;
    uint64_t capacity;
    bool spoilt; /* the GPU's ids */
    size_t bytes[ARRAYS];
    unsigned char *host[ARRAYS], *device[ARRAYS];
} rank;

static bool by_expert(uint32_t layout) {
    return layout == EPW_PACKED || layout == EPW_EXPERT_MAJOR;
}

static size_t payload_bytes(const plan *p) {
    const epw_config *c = &p->config.ep;
    return p->payload == EPW_PAYLOAD_OPAQUE ? p->opaque_row
           : p->payload == EPW_PAYLOAD_SAME ? c->hidden * 2
                                            : c->hidden;
}

static rank choose_rank(const plan *p, const rank_links *links) {
    uint64_t s = p->seed * 1013 + links->rank;
    rank me = {.p = p, .links = links, .rank = links->rank};
    const epw_config *c = &p->config.ep;
    static const uint32_t layouts[] = {EPW_PACKED, EPW_EXPERT_MAJOR, EPW_PACKED, EPW_DENSE, EPW_RANK_MAJOR};
    me.tokens = below(&s, 5) == 0 ? 0 : below(&s, c->max_tokens + 1);
    me.layout = layouts[below(&s, p->mode == EPW_COMBINE_ORDERED ? 3 : 5)];
    me.alignment = me.layout == EPW_PACKED ? 1 + below(&s, 20) : 0;
    me.scale_order = below(&s, 2);
    me.zero_padding = me.layout == EPW_PACKED && below(&s, 2);
    me.bias_count = below(&s, 3);
    bool sends_half = p->trouble == SENDS_ALONE || p->trouble == SENDS_GIVEN_UP;
    if (sends_half && me.tokens >= p->config.ring_tokens) me.tokens = p->config.ring_tokens - 1;
    return me;
}

static void *take(rank *me, int array, size_t bytes) {
    me->bytes[array] = bytes;
    me->host[array] = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(me->host[array], UNTOUCHED, bytes);
    return me->host[array];
}

/* Wild: any bits, one in four at random those of a number at the edge of bf16 or f16, so that two of them
 * meet. */
static void fill_16(uint64_t *s, uint16_t *at, size_t count, bool wild) {
    static const uint16_t edges[] = {0,      1,      0x7f,   0x80,   0x3ff,  0x400,
                                     0x7bff, 0x7c00, 0x7e00, 0x7f7f, 0x7f80, 0x7fc0};
    for (size_t i = 0; i < count; i++) {
        uint64_t random = next_random(s);
        uint16_t bits = (uint16_t)random, edge = edges[(random >> 18) % (sizeof edges / sizeof *edges)];
        at[i] = !wild ? (bits & 0x8fff) | 0x3000 : random >> 16 & 3 ? bits : edge | (bits & 0x8000);
    }
}
static void fill_floats(uint64_t *s, float *at, size_t count) {
    for (size_t i = 0; i < count; i++) at[i] = ((float)below(s, 8191) - 4095.0f) / 2048.0f;
}

static size_t id_bytes(const plan *p) {
    return p->idx_type == EPW_I64 ? 8 : 4;
}

static void put_ids(const plan *p, const int64_t *ids, size_t count, unsigned char *to) {
    for (size_t i = 0; i < count; i++) memcpy(to + i * id_bytes(p), &ids[i], id_bytes(p)); /* little-endian */
}

/* Makes every second unrouted id invalid: out of range, or a repetition of the previous one. True if there is
 * one. */
static bool spoil_ids(const rank *me, unsigned char *ids) {
    const plan *p = me->p;
    size_t bytes = id_bytes(p), none = 0, bad = 0;
    for (size_t i = 0; p->bad_ids && i < (size_t)me->tokens * p->topk; i++) {
        int64_t id = -1, before = -1,
                worse = none % 4 < 2 ? p->config.ep.experts + (int64_t)none : 0x7ffffff0;
        if (memcmp(ids + i * bytes, &id, bytes) != 0 || none++ % 2 == 0) continue;
        if (i % p->topk > 0) memcpy(&before, ids + (i - 1) * bytes, bytes);
        bool repeats = none % 3 == 0 && before >= 0 && before < p->config.ep.experts;
        memcpy(ids + i * bytes, repeats ? &before : &worse, bytes);
        bad++;
    }
    return bad > 0;
}

static void make_inputs(rank *me) {
    const plan *p = me->p;
    const epw_config *c = &p->config.ep;
    uint64_t s = p->seed * 4099 + me->rank;
    size_t n = me->tokens, entries = n * p->topk;
    size_t row = p->payload == EPW_PAYLOAD_OPAQUE ? p->opaque_row : c->hidden * 2;
    fill_16(&s, take(me, X, n * row), n * row / 2, p->wild);
    fill_floats(&s, take(me, WEIGHTS, entries * 4), entries);
    fill_floats(&s, take(me, AGAIN_WEIGHTS, entries * 4), entries);
    int64_t *ids = calloc(entries + 1, sizeof *ids);
    bool lopsided = below(&s, 4) == 0;
    for (size_t i = 0; i < entries; i++) {
        ids[i] = below(&s, lopsided ? (c->experts + 1) / 2 : c->experts);
        for (size_t k = i / p->topk * p->topk; k < i; k++)
            if (ids[k] == ids[i]) ids[i] = -1;
        if (below(&s, 9) == 0) ids[i] = -1;
    }
    put_ids(p, ids, entries, take(me, IDS, entries * id_bytes(p)));
    free(ids);
    uint8_t *band = take(me, BAND, n * c->sideband_bytes);
    for (size_t i = 0; i < n * c->sideband_bytes; i++) band[i] = (uint8_t)next_random(&s);
    /* By columns, with a gap. */
    uint8_t *scales = take(me, GIVEN_SCALES, (n + 1) * p->scale_bytes * (p->scale_count + 1));
    for (size_t i = 0; i < me->bytes[GIVEN_SCALES]; i++) scales[i] = (uint8_t)next_random(&s);
    for (int i = 0; i < 2; i++) fill_16(&s, take(me, BIAS + i, n * p->width * 2), n * p->width, p->wild);
}

/* The capacity is known. */
static void make_outputs(rank *me) {
    const plan *p = me->p;
    const epw_config *c = &p->config.ep;
    uint64_t s = p->seed * 31 + me->rank;
    uint32_t local = c->experts / c->ranks, ranks = c->ranks;
    size_t places = me->capacity * (me->layout == EPW_EXPERT_MAJOR ? local : 1), n = me->tokens;
    size_t row = payload_bytes(p);
    size_t scales =
        p->payload == EPW_PAYLOAD_OPAQUE ? p->scale_count * p->scale_bytes : c->hidden / 128 * 4 + 16;
    size_t lists = me->layout == EPW_EXPERT_MAJOR ? local : 1;
    fill_16(&s, take(me, MADE, places * p->width * 2), places * p->width, p->wild);
    fill_floats(&s, take(me, MADE_VALUES, places * c->topk * 4), places * c->topk);
    fill_floats(&s, take(me, MADE_WEIGHTS, places * 4), places);
    take(me, ROWS, places * row);
    take(me, SCALES, (places * scales) + lists * (SCALES_MOST + c->hidden / 128 + 4) * 16);
    take(me, OUT_BAND, places * c->sideband_bytes);
    take(me, COUNTS, local * 4);
    take(me, OFFSETS, local * 4);
    take(me, OVERFLOW_, (by_expert(me->layout) ? local : ranks) * 4);
    take(me, SOURCE_COUNTS, ranks * 4);
    take(me, SOURCE_OFFSETS, ranks * 4);
    for (int a = ROW_EXPERT; a <= ROW_WEIGHT; a++) take(me, a, places * 4);
    take(me, ROW_EXPERTS, places * c->topk * 4);
    take(me, ROW_WEIGHTS, places * c->topk * 4);
    take(me, RANGES, (size_t)local * ranks * 8);
    take(me, TOTALS, local * 8);
    take(me, TOTALS_I32, local * 4);
    take(me, SUMS, n * p->width * 2);
    take(me, CONTRIBUTIONS, n * 4);
    take(me, LACKS, n * 4);
    take(me, VALUES, n * p->topk * 4);
}

static void copy_array(rank *me, int a) {
    REQUIRE_CUDA(cudaMalloc((void **)&me->device[a], me->bytes[a] + 16));
    if (a >= OUTPUTS) return;
    unsigned char *from = malloc(me->bytes[a] + 1);
    memcpy(from, me->host[a], me->bytes[a]);
    if (a == IDS) me->spoilt = spoil_ids(me, from);
    REQUIRE_CUDA(cudaMemcpy(me->device[a], from, me->bytes[a], cudaMemcpyHostToDevice));
    free(from);
}

/* The outputs whose size does not depend on the capacity. */
static void copy_inputs(rank *me) {
    for (int a = 0; a < MADE; a++) copy_array(me, a);
}
static void copy_to_device(rank *me) {
    for (int a = me->device[X] != NULL ? MADE : 0; a < ARRAYS; a++) copy_array(me, a);
}

static void clear_device(const rank *me) {
    for (int a = OUTPUTS; a < ARRAYS; a++) REQUIRE_CUDA(cudaMemset(me->device[a], UNTOUCHED, me->bytes[a]));
    REQUIRE_CUDA(cudaStreamSynchronize(NULL));
}

static void free_arrays(rank *me) {
    for (int a = 0; a < ARRAYS; a++) {
        free(me->host[a]);
        REQUIRE_CUDA(cudaFree(me->device[a]));
    }
}

/* Without zero_padding, rows of a lost source may be there or not, and their scales and sideband in any case:
 * takes the host's values in places that belong to no row. */
static void forget_unclaimed(const rank *me, int a, unsigned char *got) {
    const int32_t *sources = (const int32_t *)me->host[ROW_SOURCE];
    size_t places = me->bytes[ROW_SOURCE] / 4, row = payload_bytes(me->p);
    if (me->p->trouble == NO_TROUBLE) return;
    if (a == SCALES || a == OUT_BAND) memcpy(got, me->host[a], me->bytes[a]);
    for (size_t i = 0; a == ROWS && !me->zero_padding && i < places; i++)
        if (sources[i] < 0) memcpy(got + i * row, me->host[a] + i * row, row);
}

static void compare(const rank *me, const char *when, int first, int end) {
    for (int a = first; a < end; a++) {
        unsigned char *got = malloc(me->bytes[a] + 1);
        REQUIRE_CUDA(cudaMemcpy(got, me->device[a], me->bytes[a], cudaMemcpyDeviceToHost));
        forget_unclaimed(me, a, got);
        size_t at = 0;
        while (at < me->bytes[a] && got[at] == me->host[a][at]) at++;
        CHECK_MSG(at == me->bytes[a],
                  "seed %llu, %s, rank %u of %u, layout %u, payload %u, how %u, trouble %u: %s differs at "
                  "byte %zu of %zu",
                  (unsigned long long)me->p->seed, when, me->rank, me->links->ranks, me->layout,
                  me->p->payload, me->p->how, me->p->trouble, names[a], at, me->bytes[a]);
        free(got);
    }
}

/* ---- calls, of either device ---- */

static epw_dispatch_input input_of(const rank *me, unsigned char *const at[ARRAYS], uint32_t round,
                                   cudaStream_t stream) {
    const plan *p = me->p;
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = me->tokens;
    in.x = at[X];
    in.topk_idx = at[IDS];
    in.idx_type = p->idx_type;
    in.topk = p->topk;
    in.topk_weights = (const float *)at[round > 0 ? AGAIN_WEIGHTS : WEIGHTS];
    in.payload = p->payload;
    in.sideband = p->sideband ? at[BAND] : NULL;
    in.sideband_bytes = p->config.ep.sideband_bytes;
    if (p->payload == EPW_PAYLOAD_OPAQUE) {
        in.opaque_row_bytes = p->opaque_row;
        in.scale_count = p->scale_count;
        in.scale_bytes = p->scale_bytes;
        in.scales = p->scale_count > 0 ? at[GIVEN_SCALES] : NULL;
        in.scale_row_stride = p->scale_bytes;
        in.scale_col_stride = (uint64_t)(me->tokens + 1) * p->scale_bytes;
    }
    in.lane = round > 0 ? -1 : (int32_t)(p->seed % p->config.ep.lanes);
    in.stream = stream;
    return in;
}

static epw_prefill_output output_of(const rank *me, unsigned char *const at[ARRAYS], cudaStream_t stream) {
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    bool experts = by_expert(me->layout);
    out.layout = me->layout;
    out.alignment = me->alignment;
    out.scale_order = me->scale_order;
    out.zero_padding = me->zero_padding;
    out.capacity = me->capacity;
    out.rows = at[ROWS];
    out.scales = at[SCALES];
    out.sideband = me->p->sideband ? at[OUT_BAND] : NULL;
    out.counts = (uint32_t *)at[COUNTS];
    out.offsets = experts ? (uint32_t *)at[OFFSETS] : NULL;
    out.overflow = (uint32_t *)at[OVERFLOW_];
    out.source_counts = (uint32_t *)at[SOURCE_COUNTS];
    out.source_offsets = experts ? NULL : (uint32_t *)at[SOURCE_OFFSETS];
    out.row_expert = experts ? (int32_t *)at[ROW_EXPERT] : NULL;
    out.row_source = (int32_t *)at[ROW_SOURCE];
    out.row_token = (int32_t *)at[ROW_TOKEN];
    out.row_position = experts ? (int32_t *)at[ROW_POSITION] : NULL;
    out.row_weight = experts ? (float *)at[ROW_WEIGHT] : NULL;
    out.row_experts = experts ? NULL : (int32_t *)at[ROW_EXPERTS];
    out.row_weights = experts ? NULL : (float *)at[ROW_WEIGHTS];
    out.ranges = experts ? (uint64_t *)at[RANGES] : NULL;
    out.expert_totals = (uint64_t *)at[TOTALS];
    out.expert_totals_i32 = (int32_t *)at[TOTALS_I32];
    out.stream = stream;
    return out;
}

static epw_prefill_combine_input combine_of(const rank *me, unsigned char *const at[ARRAYS],
                                            cudaStream_t stream) {
    const plan *p = me->p;
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    bool ordered = p->mode == EPW_COMBINE_ORDERED;
    in.mode = p->mode;
    in.width = p->width;
    in.expert_out = at[MADE];
    in.row_weights =
        p->combine_weights && !ordered && by_expert(me->layout) ? (float *)at[MADE_WEIGHTS] : NULL;
    in.topk_weights = p->combine_weights && ordered ? (float *)at[AGAIN_WEIGHTS] : NULL;
    in.row_values = p->values ? (float *)at[MADE_VALUES] : NULL;
    for (uint32_t i = 0; i < me->bias_count; i++) in.bias[i] = at[BIAS + i];
    in.stream = stream;
    return in;
}

static epw_prefill_combine_output sums_of(const rank *me, unsigned char *const at[ARRAYS],
                                          cudaStream_t stream) {
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    out.out = at[SUMS];
    out.contributions = (uint16_t *)at[CONTRIBUTIONS];
    out.lacks = (uint32_t *)at[LACKS];
    out.values = me->p->values ? (float *)at[VALUES] : NULL;
    out.stream = stream;
    return out;
}

/* ---- a rank ---- */

/* SMs of a buffer, and of one of its operations: all of the lane's, or some of them. */
static uint32_t sms_of(const plan *p, const rank_links *links) {
    uint32_t sms = ranks_sms(links, 1,
                             p->seed % 8 == 5   ? 80 /* few blocks, or many by the kernels' rule */
                             : p->seed % 8 == 3 ? 1
                                                : 4);
    return sms < p->config.ep.lanes ? p->config.ep.lanes : sms;
}
static uint32_t some_sms(const rank *me, uint32_t choice) {
    return (uint32_t)(me->p->seed + me->rank + choice) %
           (sms_of(me->p, me->links) / me->p->config.ep.lanes + 1);
}

/* Of the buffer of each rank on its GPU; NULL: it has none. */
static epw_fabric *fabrics[RANKS_LIMIT];

static epw_prefill *make(const plan *p, const rank_links *links, int32_t gpu) {
    epw_prefill_config config = p->config;
    epw_prefill *prefill = NULL;
    config.ep.rank = links->rank;
    config.ep.device = gpu;
    if (gpu >= 0) config.ep.sms = sms_of(p, links);
    if (gpu >= 0) ranks_path(&config.ep);
    REQUIRE_OK(epw_prefill_create(&config, &prefill));
    ranks_connect_prefill(links, prefill);
    if (gpu >= 0) ranks_require_prefill_paths(links, prefill);
    if (gpu >= 0) fabrics[links->rank] = config.ep.fabric;
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    REQUIRE_OK(epw_prefill_traffic(prefill, &traffic, NULL)); /* kernels count from now on */
    return prefill;
}

static void destroy_on_gpu(const rank_links *links, epw_prefill *prefill) {
    epw_prefill_destroy(prefill);
    epw_fabric_destroy(fabrics[links->rank]);
    fabrics[links->rank] = NULL;
}

/* The first dispatch counts, and so finds a capacity, which is sufficient or not. */
static void dispatch_on_host(rank *me, epw_prefill *prefill, epw_routing *routing, uint32_t round,
                             epw_outcome *outcome) {
    epw_dispatch_input in = input_of(me, me->host, round, NULL);
    epw_prefill_output out;
    uint64_t s = me->p->seed * 13 + me->rank;
    if (me->host[ROWS] == NULL) {
        REQUIRE_OK(epw_prefill_dispatch(prefill, routing, &in, EPW_ROUTE_NEW, EPW_HALF_COUNTS, NULL, NULL));
        REQUIRE_OK(
            epw_prefill_received(prefill, routing, me->layout, me->alignment, &me->capacity, NULL, NULL));
        bool fits = me->layout == EPW_RANK_MAJOR || below(&s, 3) > 0 || me->capacity < 2;
        me->capacity = fits ? me->capacity + below(&s, 5) : below(&s, (uint32_t)me->capacity);
        make_outputs(me);
        copy_to_device(me);
        out = output_of(me, me->host, NULL);
        REQUIRE_OK(epw_prefill_receive(prefill, routing, &out, outcome));
    } else {
        out = output_of(me, me->host, NULL);
        REQUIRE_OK(epw_prefill_dispatch(prefill, routing, &in, round > 0 ? EPW_ROUTE_AGAIN : EPW_ROUTE_NEW, 0,
                                        &out, outcome));
    }
}

static void combine_on_host(rank *me, epw_prefill *prefill, epw_routing *routing, epw_outcome *outcome) {
    epw_prefill_combine_input in = combine_of(me, me->host, NULL);
    epw_prefill_combine_output out = sums_of(me, me->host, NULL);
    REQUIRE_OK(epw_prefill_combine(prefill, routing, &in, &out, outcome));
}

static void await_counts(const rank *me, epw_prefill *prefill, epw_routing *routing) {
    uint64_t rows = 0;
    epw_status status = EPW_PENDING;
    while (status == EPW_PENDING) {
        REQUIRE_OK(epw_prefill_await(prefill, epw_routing_lane(routing), 1000 * MS));
        status = epw_prefill_received(prefill, routing, me->layout, me->alignment, &rows, NULL, NULL);
    }
    REQUIRE_OK(status);
    CHECK(me->capacity >= rows || me->layout != EPW_RANK_MAJOR);
}

static void dispatch_on_gpu(rank *me, epw_prefill *prefill, epw_routing *routing, uint32_t round,
                            cudaStream_t stream) {
    epw_dispatch_input in = input_of(me, me->device, round, stream);
    epw_prefill_output out = output_of(me, me->device, stream);
    in.sms = some_sms(me, round);
    how how = me->p->how;
    bool counts = how == COUNTED && round == 0, halves = how == HALVES;
    REQUIRE_OK(epw_prefill_dispatch(prefill, routing, &in, round > 0,
                                    counts ? EPW_HALF_COUNTS : EPW_HALF_SENDS, counts || halves ? NULL : &out,
                                    NULL));
    if (counts) await_counts(me, prefill, routing);
    if (counts || halves) REQUIRE_OK(epw_prefill_receive(prefill, routing, &out, NULL));
}

static void combine_on_gpu(rank *me, epw_prefill *prefill, epw_routing *routing, cudaStream_t stream) {
    epw_prefill_combine_input in = combine_of(me, me->device, stream);
    epw_prefill_combine_output out = sums_of(me, me->device, stream);
    in.sms = some_sms(me, 1);
    bool halves = me->p->how == HALVES;
    epw_status status = halves ? epw_prefill_combine(prefill, routing, &in, NULL, NULL) : EPW_ERR_LIMIT;
    if (status == EPW_OK) {
        status = epw_prefill_collect(prefill, routing, &out, NULL);
    } else if (status == EPW_ERR_LIMIT) {
        status = epw_prefill_combine(prefill, routing, &in, &out, NULL);
    }
    REQUIRE_OK(status);
}

static void check_outcome(const rank *me, epw_prefill *prefill, epw_routing *routing, epw_outcome *host,
                          bool counts_ids) {
    epw_outcome gpu = EPW_OUTCOME_INIT;
    epw_status status = EPW_PENDING;
    while (status == EPW_PENDING) {
        REQUIRE_OK(epw_prefill_await(prefill, epw_routing_lane(routing), 1000 * MS));
        status = epw_prefill_poll(prefill, routing, &gpu);
    }
    REQUIRE_OK(status);
    /* The host refuses such ids, so it was given none. */
    bool told = host->record.cause != EPW_CAUSE_NONE;
    if (counts_ids && me->spoilt && !told) {
        host->degraded = 1;
        host->record.cause = EPW_CAUSE_ROUTING;
    }
    bool same = gpu.degraded == host->degraded && gpu.record.cause == host->record.cause &&
                (host->record.cause != EPW_CAUSE_OVERFLOW ||
                 (gpu.record.expected == host->record.expected && gpu.record.seen == host->record.seen)) &&
                memcmp(&gpu.missing, &host->missing, sizeof gpu.missing) == 0;
    CHECK_MSG(same, "seed %llu, rank %u: degraded %u, cause %u, %llu of %llu; host %u, %u, %llu of %llu",
              (unsigned long long)me->p->seed, me->rank, gpu.degraded, gpu.record.cause,
              (unsigned long long)gpu.record.seen, (unsigned long long)gpu.record.expected, host->degraded,
              host->record.cause, (unsigned long long)host->record.seen,
              (unsigned long long)host->record.expected);
}

/* A graph of a dispatch and its combine, replayed. */
static void run_graph(rank *me, epw_prefill *prefill, epw_routing *routing, cudaStream_t stream) {
    step_capture(stream);
    dispatch_on_gpu(me, prefill, routing, 0, stream);
    combine_on_gpu(me, prefill, routing, stream);
    cudaGraphExec_t exec = step_captured(stream);
    for (int replay = 0; replay < 2; replay++) {
        clear_device(me);
        ranks_meet(me->links);
        REQUIRE_CUDA(cudaGraphLaunch(exec, stream));
        await_stream(stream, 120000 * MS, "a replay");
        compare(me, "replayed", ROWS, ARRAYS);
    }
    REQUIRE_CUDA(cudaGraphExecDestroy(exec));
}

/* ---- rounds ---- */

/* A rank's buffers, on the host and on its GPU. */
typedef struct sides {
    epw_prefill *host, *gpu;
    epw_routing *on_host, *on_gpu;
    cudaStream_t stream;
} sides;

static void clear_host(rank *me) {
    for (int a = OUTPUTS; a < ARRAYS; a++) memset(me->host[a], UNTOUCHED, me->bytes[a]);
}

static void run_dispatch(rank *me, const sides *s, uint32_t round) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    dispatch_on_host(me, s->host, s->on_host, round, &outcome);
    clear_device(me);
    ranks_meet(me->links);
    dispatch_on_gpu(me, s->gpu, s->on_gpu, round, s->stream);
    check_outcome(me, s->gpu, s->on_gpu, &outcome, round == 0);
    await_stream(s->stream, 120000 * MS, "a dispatch");
    compare(me, round > 0 ? "again" : "dispatched", ROWS, SUMS);
}

static void run_combine(rank *me, const sides *s, uint32_t round) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    ranks_meet(me->links); /* a rank that did not miss the lost rank is early */
    combine_on_host(me, s->host, s->on_host, &outcome);
    ranks_meet(me->links);
    combine_on_gpu(me, s->gpu, s->on_gpu, s->stream);
    check_outcome(me, s->gpu, s->on_gpu, &outcome, false);
    await_stream(s->stream, 120000 * MS, "a combine");
    compare(me, round > 0 ? "combined again" : "combined", SUMS, ARRAYS);
}

/* What a buffer has moved since it was created. */
typedef struct moved {
    epw_traffic all;
    epw_peer_traffic with[RANKS_LIMIT];
} moved;

static moved moved_by(const epw_prefill *prefill) {
    moved now = {.all = EPW_TRAFFIC_INIT};
    REQUIRE_OK(epw_prefill_traffic(prefill, &now.all, now.with));
    return now;
}

/* The GPU has run each operation `times` as often as the host. Waits differ. */
static void compare_moved(const rank *me, const moved *host, const moved *gpu, uint64_t times) {
    const uint64_t of_host[] = {host->all.operations,    host->all.rows_sent,  host->all.rows_received,
                                host->all.rows_answered, host->all.bytes_sent, host->all.bytes_received};
    const uint64_t of_gpu[] = {gpu->all.operations,    gpu->all.rows_sent,  gpu->all.rows_received,
                               gpu->all.rows_answered, gpu->all.bytes_sent, gpu->all.bytes_received};
    static const char *const names[] = {"operations", "rows sent",  "rows received",
                                        "answers",    "bytes sent", "bytes received"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        CHECK_MSG(of_gpu[i] == times * of_host[i], "case %llu, rank %u: %llu %s, the host %llu, %llu times",
                  (unsigned long long)me->p->seed, me->rank, (unsigned long long)of_gpu[i], names[i],
                  (unsigned long long)of_host[i], (unsigned long long)times);
    for (uint32_t p = 0; p < me->links->ranks; p++)
        CHECK(gpu->with[p].bytes_sent == times * host->with[p].bytes_sent &&
              gpu->with[p].bytes_received == times * host->with[p].bytes_received);
}

/* Graphs repeat the first round, twice. */
static void run_rounds(rank *me, const sides *s) {
    for (uint32_t round = 0; round < me->p->rounds; round++) {
        if (round > 0) clear_host(me);
        run_dispatch(me, s, round);
        run_combine(me, s, round);
        if (round > 0 || me->p->trouble != NO_TROUBLE) continue;
        const moved host = moved_by(s->host), gpu = moved_by(s->gpu);
        compare_moved(me, &host, &gpu, 1);
        if (me->p->how != GRAPH) continue;
        run_graph(me, s->gpu, s->on_gpu, s->stream);
        const moved replayed = moved_by(s->gpu);
        compare_moved(me, &host, &replayed, 3);
    }
}

/* ---- trouble ---- */

/* The part of a dispatch that the faulty rank calls. */
static void dispatch_badly(const rank *me, epw_prefill *prefill, epw_routing *routing,
                           unsigned char *const at[ARRAYS], cudaStream_t stream) {
    trouble trouble = me->p->trouble;
    epw_dispatch_input in = input_of(me, at, 0, stream);
    uint32_t half = trouble == COUNTS_ALONE || trouble == COUNTS_GIVEN_UP ? EPW_HALF_COUNTS : EPW_HALF_SENDS;
    if (trouble == SILENT) return;
    REQUIRE_OK(epw_prefill_dispatch(prefill, routing, &in, EPW_ROUTE_NEW, half, NULL, NULL));
    if (trouble == COUNTS_GIVEN_UP || trouble == SENDS_GIVEN_UP)
        REQUIRE_OK(epw_prefill_cancel(prefill, routing));
}

static void combine_badly(const rank *me, epw_prefill *prefill, epw_routing *routing,
                          unsigned char *const at[ARRAYS], cudaStream_t stream) {
    epw_prefill_combine_input in = combine_of(me, at, stream);
    if (me->p->trouble == NO_COMBINE) return;
    REQUIRE_OK(epw_prefill_combine(prefill, routing, &in, NULL, NULL));
    REQUIRE_OK(epw_prefill_cancel(prefill, routing));
}

/* Begins the epoch without the last rank. */
static void go_on_without(const rank *me, const sides *s) {
    epw_mask rest = {{(UINT64_C(1) << (me->links->ranks - 1)) - 1}};
    REQUIRE_OK(epw_prefill_set_active(s->host, &rest, 2, 1));
    REQUIRE_OK(epw_prefill_set_active(s->gpu, &rest, 2, 1));
}

/* A first round with one faulty rank, then another without. */
static void run_trouble(rank *me, const sides *s) {
    trouble trouble = me->p->trouble;
    bool bad = me->rank == me->links->ranks - 1,
         in_combine = trouble == NO_COMBINE || trouble == COMBINE_GIVEN_UP;
    bool lost = trouble < COUNTS_GIVEN_UP;
    if (bad && !in_combine) {
        dispatch_badly(me, s->host, s->on_host, me->host, NULL);
        copy_inputs(me);
        ranks_meet(me->links);
        dispatch_badly(me, s->gpu, s->on_gpu, me->device, s->stream);
    } else {
        run_dispatch(me, s, 0);
    }
    if (bad && in_combine) {
        ranks_meet(me->links);
        combine_badly(me, s->host, s->on_host, me->host, NULL);
        ranks_meet(me->links);
        combine_badly(me, s->gpu, s->on_gpu, me->device, s->stream);
    } else if (bad && lost) {
        for (int i = 0; i < 2; i++) ranks_meet(me->links); /* as the others combine */
    } else if (in_combine || lost) {
        run_combine(me, s, 0);
    }
    ranks_meet(me->links); /* no rank that still waits is left behind */
    if (bad && lost) {
        for (int i = 0; i < 3; i++) ranks_meet(me->links); /* and as they continue */
        return;
    }
    if (lost) go_on_without(me, s);
    if (me->device[ROWS] != NULL) clear_host(me);
    run_dispatch(me, s, 0);
    run_combine(me, s, 0);
}

static int run_rank(const rank_links *links) {
    plan p = choose_plan(options.first, links->ranks);
    rank me = choose_rank(&p, links);
    sides s = {.host = NULL};
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking));
    make_inputs(&me);
    s.host = make(&p, links, EPW_DEVICE_HOST);
    s.gpu = make(&p, links, ranks_gpu(links));
    REQUIRE_OK(epw_routing_create(s.host, &s.on_host));
    REQUIRE_OK(epw_routing_create(s.gpu, &s.on_gpu));
    if (p.trouble == NO_TROUBLE) {
        run_rounds(&me, &s);
    } else {
        run_trouble(&me, &s);
    }
    ranks_meet(links);
    epw_routing_free(s.on_host);
    epw_routing_free(s.on_gpu);
    ranks_meet(links);
    epw_prefill_destroy(s.host);
    destroy_on_gpu(links, s.gpu);
    free_arrays(&me);
    REQUIRE_CUDA(cudaStreamDestroy(s.stream));
    return 0;
}

/* ---- operations of which each token goes to every rank ---- */

enum { HELD_RANKS = 3, HELD_TOKENS = 40, HELD_ROWS = HELD_RANKS * HELD_TOKENS };

/* One rank: its arrays in one block of memory. */
typedef struct exchange {
    epw_routing *routing;
    cudaStream_t stream;
    unsigned char *memory;
    epw_dispatch_input in;
    epw_prefill_output out;
} exchange;

static exchange make_exchange(epw_prefill *prefill, int32_t lane) {
    enum { ROW = 128, IDS_AT = HELD_TOKENS * ROW, ROWS_AT = IDS_AT + HELD_TOKENS * HELD_RANKS * 4 };
    enum { SOURCES_AT = ROWS_AT + HELD_ROWS * ROW, ALL = SOURCES_AT + HELD_ROWS * 4 };
    exchange x = {.in = EPW_DISPATCH_INPUT_INIT, .out = EPW_PREFILL_OUTPUT_INIT};
    int32_t ids[HELD_TOKENS * HELD_RANKS];
    for (int i = 0; i < HELD_TOKENS * HELD_RANKS; i++) ids[i] = i % HELD_RANKS;
    REQUIRE_OK(epw_routing_create(prefill, &x.routing));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&x.stream, cudaStreamNonBlocking));
    REQUIRE_CUDA(cudaMalloc((void **)&x.memory, ALL));
    REQUIRE_CUDA(cudaMemset(x.memory, UNTOUCHED, ALL));
    REQUIRE_CUDA(cudaMemcpy(x.memory + IDS_AT, ids, sizeof ids, cudaMemcpyHostToDevice));
    x.in.tokens = HELD_TOKENS;
    x.in.x = x.memory;
    x.in.topk_idx = x.memory + IDS_AT;
    x.in.topk = HELD_RANKS;
    x.in.lane = lane;
    x.in.stream = x.out.stream = x.stream;
    x.out.layout = EPW_DENSE;
    x.out.alignment = 0;
    x.out.capacity = HELD_ROWS;
    x.out.rows = x.memory + ROWS_AT;
    x.out.row_source = (int32_t *)(void *)(x.memory + SOURCES_AT);
    return x;
}

/* All rows have arrived. */
static void end_exchange(exchange *x, const rank_links *links) {
    int32_t sources[HELD_ROWS];
    await_stream(x->stream, 120000 * MS, "a dispatch");
    REQUIRE_CUDA(cudaMemcpy(sources, x->out.row_source, sizeof sources, cudaMemcpyDeviceToHost));
    for (int i = 0; i < (int)links->ranks * HELD_TOKENS; i++) CHECK(sources[i] == i / HELD_TOKENS);
    epw_routing_free(x->routing);
    REQUIRE_CUDA(cudaFree(x->memory));
    REQUIRE_CUDA(cudaStreamDestroy(x->stream));
}

/* Waits, while the kernel runs, for the rows of all ranks except the last. */
static void await_rows(const rank_links *links, const exchange *x) {
    int32_t sources[HELD_ROWS];
    uint32_t come = 0;
    uint64_t began = now_ns();
    cudaStream_t beside;
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
    while (come < 2 * HELD_TOKENS && now_ns() - began < 20000 * MS) {
        REQUIRE_CUDA(
            cudaMemcpyAsync(sources, x->out.row_source, sizeof sources, cudaMemcpyDeviceToHost, beside));
        await_stream(beside, 120000 * MS, "a copy");
        come = 0;
        for (int i = 0; i < HELD_ROWS; i++) come += sources[i] == 0 || sources[i] == 1;
    }
    CHECK_MSG(come == 2 * HELD_TOKENS, "rank %u: %u of %d rows", links->rank, come, 2 * HELD_TOKENS);
    REQUIRE_CUDA(cudaStreamDestroy(beside));
}

/* The last rank has sent its counts, and takes no rows for a while: all rows between the others still arrive,
 * through rings of two slots. */
static void run_beside_held(const rank_links *links, epw_prefill *prefill) {
    bool held = links->rank == HELD_RANKS - 1;
    exchange x = make_exchange(prefill, 0);
    ranks_meet(links);
    REQUIRE_OK(epw_prefill_dispatch(prefill, x.routing, &x.in, EPW_ROUTE_NEW, EPW_HALF_COUNTS,
                                    held ? NULL : &x.out, NULL));
    if (!held) await_rows(links, &x);
    ranks_meet(links);
    if (held) REQUIRE_OK(epw_prefill_receive(prefill, x.routing, &x.out, NULL));
    end_exchange(&x, links);
}

/* Two operations in flight, one on each lane and stream; some ranks call them in the opposite order. */
static void run_lanes(const rank_links *links, epw_prefill *prefill) {
    exchange each[2] = {make_exchange(prefill, 0), make_exchange(prefill, 1)};
    ranks_meet(links);
    uint32_t turns = ranks_by_queue() ? 2 : 8; /* rings of two slots are slow by queues */
    for (uint32_t turn = 0; turn < turns; turn++) {
        exchange *x = &each[(turn + links->rank) % 2];
        REQUIRE_OK(epw_prefill_dispatch(prefill, x->routing, &x->in, EPW_ROUTE_NEW, 0, &x->out, NULL));
    }
    for (int i = 0; i < 2; i++) end_exchange(&each[i], links);
}

static int run_held(const rank_links *links) {
    plan p = {.config = EPW_PREFILL_CONFIG_INIT};
    epw_config *c = &p.config.ep;
    c->ranks = c->experts = c->topk = HELD_RANKS;
    c->max_tokens = HELD_TOKENS;
    c->hidden = 64;
    c->deadline_ns = 60000 * MS;
    p.config.ring_tokens = 2;
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    epw_prefill *prefill = make(&p, links, ranks_gpu(links));
    run_beside_held(links, prefill);
    run_lanes(links, prefill);
    ranks_meet(links);
    destroy_on_gpu(links, prefill);
    return 0;
}

/* ---- a routing that was to be used again ---- */

/* Each rank gives up the sending half of a dispatch that uses its routing again. */
static void give_up_using_again(epw_prefill *prefill, const exchange *x) {
    REQUIRE_OK(
        epw_prefill_dispatch(prefill, x->routing, &x->in, EPW_ROUTE_AGAIN, EPW_HALF_SENDS, NULL, NULL));
    REQUIRE_OK(epw_prefill_cancel(prefill, x->routing));
}

/* Without weights the routing is as before, with weights it is empty. */
static int run_given_up(const rank_links *links) {
    plan p = {.config = EPW_PREFILL_CONFIG_INIT};
    epw_config *c = &p.config.ep;
    c->ranks = c->experts = c->topk = HELD_RANKS;
    c->lanes = 1;
    c->max_tokens = HELD_TOKENS;
    c->hidden = 64;
    c->deadline_ns = 60000 * MS;
    p.config.ring_tokens = HELD_TOKENS + 1;
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    epw_prefill *prefill = make(&p, links, ranks_gpu(links));
    exchange x = make_exchange(prefill, 0);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    REQUIRE_OK(epw_prefill_dispatch(prefill, x.routing, &x.in, EPW_ROUTE_NEW, 0, &x.out, NULL));
    give_up_using_again(prefill, &x);
    REQUIRE_CUDA(cudaMemsetAsync(x.out.row_source, UNTOUCHED, HELD_ROWS * 4, x.stream));
    REQUIRE_OK(epw_prefill_dispatch(prefill, x.routing, &x.in, EPW_ROUTE_AGAIN, 0, &x.out, NULL));
    await_stream(x.stream, 120000 * MS, "a dispatch that uses the routing again");
    REQUIRE_OK(epw_prefill_poll(prefill, x.routing, &outcome));
    CHECK_MSG(outcome.degraded == 0, "cause %u, peer %u", outcome.record.cause, outcome.record.peer);
    x.in.topk_weights = (const float *)(const void *)x.memory; /* any numbers */
    give_up_using_again(prefill, &x);
    CHECK(epw_prefill_dispatch(prefill, x.routing, &x.in, EPW_ROUTE_AGAIN, 0, &x.out, NULL) == EPW_ERR_STATE);
    REQUIRE_OK(epw_prefill_dispatch(prefill, x.routing, &x.in, EPW_ROUTE_NEW, 0, &x.out, NULL));
    end_exchange(&x, links);
    ranks_meet(links);
    destroy_on_gpu(links, prefill);
    return 0;
}

/* ---- a rank that is late ---- */

enum { LATE = HELD_RANKS - 1, GIVEN = 1000 };

/* The delay was added to the number of the rank that was late, not half of it to another one's, and nothing
 * to this rank's own and to what lies behind. */
static void check_waits(const rank_links *links, const uint64_t *on_gpu, uint64_t late_ns, const char *what) {
    uint64_t waited[HELD_RANKS + 1];
    REQUIRE_CUDA(cudaMemcpy(waited, on_gpu, sizeof waited, cudaMemcpyDeviceToHost));
    for (uint32_t p = 0; p <= HELD_RANKS; p++) {
        uint64_t added = waited[p] - GIVEN;
        bool was_late = p == LATE && links->rank != LATE, nobody = p == links->rank || p == HELD_RANKS;
        CHECK_MSG(nobody     ? added == 0
                  : was_late ? added >= late_ns * 3 / 4
                             : added < late_ns / 2,
                  "rank %u, %s: %llu ns for %u, the late rank %u came after %llu", links->rank, what,
                  (unsigned long long)added, p, LATE, (unsigned long long)late_ns);
    }
}

static void begin_waits(const rank_links *links, uint64_t *on_gpu, uint64_t late_ns) {
    uint64_t given[HELD_RANKS + 1];
    for (uint32_t p = 0; p <= HELD_RANKS; p++) given[p] = GIVEN;
    REQUIRE_CUDA(cudaMemcpy(on_gpu, given, sizeof given, cudaMemcpyHostToDevice));
    REQUIRE_CUDA(cudaStreamSynchronize(NULL));
    ranks_meet(links);
    if (links->rank == LATE)
        nanosleep(&(struct timespec){(time_t)(late_ns / 1000 / MS), (long)(late_ns % (1000 * MS))}, NULL);
}

/* The outputs of a dispatch and of a combine say who was waited for. */
static int run_waits(const rank_links *links) {
    plan p = {.config = EPW_PREFILL_CONFIG_INIT};
    epw_config *c = &p.config.ep;
    c->ranks = c->experts = c->topk = HELD_RANKS;
    c->lanes = 1;
    c->max_tokens = HELD_TOKENS;
    c->hidden = 64;
    c->deadline_ns = 60000 * MS;
    p.config.ring_tokens = HELD_TOKENS + 1;
    uint64_t late_ns = 200 * longer * times_slower() * MS;
    uint64_t *waited = NULL;
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    REQUIRE_CUDA(cudaMalloc((void **)&waited, (HELD_RANKS + 1) * sizeof *waited));
    epw_prefill *prefill = make(&p, links, ranks_gpu(links));
    exchange x = make_exchange(prefill, 0);
    REQUIRE_OK(epw_prefill_dispatch(prefill, x.routing, &x.in, EPW_ROUTE_NEW, 0, &x.out, NULL));
    await_stream(x.stream, 120000 * MS, "a first dispatch");
    x.out.wait_ns = waited;
    begin_waits(links, waited, late_ns);
    REQUIRE_OK(epw_prefill_dispatch(prefill, x.routing, &x.in, EPW_ROUTE_NEW, 0, &x.out, NULL));
    await_stream(x.stream, 120000 * MS, "a dispatch");
    check_waits(links, waited, late_ns, "dispatch");

    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    in.expert_out = x.out.rows;
    in.stream = out.stream = x.stream;
    out.out = x.memory; /* its tokens, which are no longer needed */
    out.wait_ns = waited;
    begin_waits(links, waited, late_ns);
    REQUIRE_OK(epw_prefill_combine(prefill, x.routing, &in, &out, NULL));
    await_stream(x.stream, 120000 * MS, "a combine");
    check_waits(links, waited, late_ns, "combine");
    end_exchange(&x, links);
    ranks_meet(links);
    destroy_on_gpu(links, prefill);
    REQUIRE_CUDA(cudaFree(waited));
    return 0;
}

/* ---- blocks that get no SM ---- */

static void require_lost_itself(epw_prefill *prefill, exchange *x) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    REQUIRE_OK(epw_prefill_dispatch(prefill, x->routing, &x->in, EPW_ROUTE_NEW, 0, &x->out, NULL));
    await_stream(x->stream, 120000 * MS, "a late dispatch");
    REQUIRE_OK(epw_prefill_poll(prefill, x->routing, &outcome));
    CHECK(outcome.degraded == 1 && outcome.missing.bits[0] == 1);
    CHECK_MSG(outcome.record.cause == EPW_CAUSE_TIMEOUT && outcome.record.peer == 0, "cause %u, peer %u",
              outcome.record.cause, outcome.record.peer);
    epw_error_record record;
    uint32_t taken = 0;
    REQUIRE_OK(epw_prefill_take_errors(prefill, &record, sizeof record, 1, &taken, NULL));
    CHECK(taken == 1 && record.cause == EPW_CAUSE_TIMEOUT && record.peer == 0);
}

/* Other work keeps some blocks of a kernel off the GPU for longer than the kernel waits for them: the rank
 * becomes its own suspect, until the next epoch. */
static int run_late(const rank_links *links) {
    plan p = {.config = EPW_PREFILL_CONFIG_INIT};
    epw_config *c = &p.config.ep;
    c->ranks = c->lanes = 1;
    c->experts = c->topk = HELD_RANKS;
    c->max_tokens = HELD_TOKENS;
    c->hidden = 64;
    c->deadline_ns = 40 * times_slower() * MS;
    int sms = 0;
    cudaStream_t other;
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    REQUIRE_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, ranks_gpu(links)));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    REQUIRE_CUDA(hog_prepare());
    epw_prefill *prefill = make(&p, links, ranks_gpu(links));
    exchange x = make_exchange(prefill, 0);
    REQUIRE_CUDA(hog_sms((uint32_t)sms - 1, 4 * 8 * c->deadline_ns, 0, other));
    nanosleep(&(struct timespec){0, 20 * MS}, NULL); /* it has begun */
    require_lost_itself(prefill, &x);
    await_stream(other, 120000 * MS, "the other work");
    require_lost_itself(prefill, &x); /* there is room again, and nothing has changed */
    epw_mask all = {{1}};
    REQUIRE_OK(epw_prefill_set_active(prefill, &all, 2, 1));
    REQUIRE_OK(epw_prefill_dispatch(prefill, x.routing, &x.in, EPW_ROUTE_NEW, 0, &x.out, NULL));
    end_exchange(&x, links);
    destroy_on_gpu(links, prefill);
    REQUIRE_CUDA(cudaStreamDestroy(other));
    return 0;
}

static const ranks_option named[] = {
    {"--ranks", .number = &options.ranks},     {"--first", .number = &options.first},
    {"--cases", .number = &options.cases},     {"--every", .number = &options.every},
    {"--seconds", .number = &options.seconds}, {0},
};

static const char usage[] =
    "prefill [--ranks N] [--first N] [--cases N] [--every N (seeds from one case to the next)] [--seconds N "
    "(limit)]";

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, usage) != 0) return 2;
    ranks_limit("prefill", options.seconds);
    uint32_t gpus = 0, some = options.ranks;
    int ended = ranks_begin(run_rank, 1, &some, &gpus, argv);
    if (ended >= 0) return ended;
    for (uint32_t i = 0; i < options.cases; i++, options.first += options.every) {
        uint32_t ranks = options.ranks != 0 ? options.ranks : 1 + options.first % RANKS_BY_SEED;
        if (is_of_trouble(options.first)) {
            KEEP_TIME(ranks_run(run_rank, ranks, gpus, 0, argv));
        } else {
            ranks_run(run_rank, ranks, gpus, 0, argv);
        }
    }
    if (options.ranks == 0) ranks_run(run_held, HELD_RANKS, gpus, 0, argv);
    if (options.ranks == 0) ranks_run(run_given_up, HELD_RANKS, gpus, 0, argv);
    if (options.ranks == 0) KEEP_TIME(ranks_run(run_waits, HELD_RANKS, gpus, 0, argv));
    if (options.ranks == 0 && !ranks_by_queue()) ranks_run(run_late, 1, gpus, 0, argv);
    uint64_t failed = atomic_load(&checks_failed);
    printf("prefill: %s cases=%u checks=%llu failed=%llu\n", failed == 0 ? "OK" : "FAILED", options.cases,
           (unsigned long long)atomic_load(&checks_made), (unsigned long long)failed);
    return failed != 0;
}
