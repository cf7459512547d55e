/* The steps in which same.c compares the GPU with the host: their table, and their memory. */
#ifndef EPW_TESTS_SAME_CASES_H
#define EPW_TESTS_SAME_CASES_H

#include "../c/group.h"

#include <stdlib.h>

enum { OPAQUE = 128, OPAQUE_SCALES_MAX = 300 };

/* What a buffer is planned for, and used up to. */
enum { PLAIN, FEW_BLOCKS, HALF, TOPK_9, TOPK_32, RAGGED, WIDE, WIDE_RAGGED, WIDER, WIDEST, SHAPES };
typedef struct shape {
    uint32_t dtype, combine_dtype, tokens, hidden, experts, topk; /* experts: at least three times topk */
    uint32_t sms;                                                 /* 0: all */
} shape;
static const shape shapes[SHAPES] = {
    [PLAIN] = {EPW_BF16, EPW_BF16, TOKENS, HIDDEN, EXPERTS, TOPK, 0},
    [FEW_BLOCKS] = {EPW_BF16, EPW_BF16, 150, HIDDEN, EXPERTS, TOPK, 2 * EPW_MAX_LANES},
    [HALF] = {EPW_F16, EPW_F16, TOKENS, HIDDEN, EXPERTS, TOPK, 0},
    [TOPK_9] = {EPW_F16, EPW_BF16, TOKENS, HIDDEN, 32, 9, 0},
    [TOPK_32] = {EPW_BF16, EPW_F16, TOKENS, HIDDEN, 96, 32, 0},
    [RAGGED] = {EPW_BF16, EPW_BF16, TOKENS, 1000, EXPERTS, TOPK, 0},
    [WIDE] = {EPW_BF16, EPW_BF16, 8, 8192, EXPERTS, TOPK, 0},
    [WIDE_RAGGED] = {EPW_BF16, EPW_BF16, 8, 8200, EXPERTS, TOPK, 0},
    [WIDER] = {EPW_BF16, EPW_BF16, 4, 16384, EXPERTS, TOPK, 0},
    [WIDEST] = {EPW_F16, EPW_F16, 4, 16384 + EPW_FP8_BLOCK, EXPERTS, TOPK, 0},
};

typedef struct test_case {
    const char *name;
    uint32_t shape, payload, layout, mode, scale_order, idx_type;
    uint32_t scales;      /* scales of an opaque row, */
    uint32_t scale_bytes; /* of 4 bytes unless set here, */
    int scales_by_row;    /* [token][scale], not [scale][token] */
    uint32_t columns;     /* ids per token, fewer than the plan's topk */
    uint32_t apart;       /* bytes between the rows of x */
    int split;            /* separate receive calls */
    int zero_copy;        /* expert outputs lie in epw_next_combine_buffer */
    int own_weights;      /* combine is given weights of its own, instead of those of dispatch */
    int waits;            /* waits are measured */
    int long_deadline;    /* outside captures */
    int repeats;          /* the GPU gets repeated ids where the host gets "none" */
    int stranger;         /* rank 1 sends fp8 pow2, whatever the others send: they refuse each other's rows */
    int bad_ids;          /* also a step with bad ids only, in a world of one rank */
    int out_of_turn;      /* also replay halves when the lane is not ready for them */
} test_case;

/* Fields not given are 0: plain shape, 16-bit rows, expert-major, rank-reduced, i32 ids. */
#define SHAPE(s)   .shape = (s)
#define PAYLOAD(p) .payload = EPW_PAYLOAD_##p
#define RANK_MAJOR .layout = EPW_RANK_MAJOR
#define ORDERED    .mode = EPW_COMBINE_ORDERED
#define ROW_SCALES .scale_order = 1
#define OWN        .own_weights = 1
static const test_case cases[] = {
    {"same, expert-major", .out_of_turn = 1},
    {"same, expert-major, ordered", ORDERED},
    {"same, expert-major, zero-copy", .zero_copy = 1},
    {"same, rank-major, split", RANK_MAJOR, .split = 1, .out_of_turn = 1},
    {"same, rank-major, zero-copy", RANK_MAJOR, .zero_copy = 1},
    {"same, u32 ids", .idx_type = EPW_U32},
    {"same, rank-major, i64 ids", RANK_MAJOR, .idx_type = EPW_I64},
    {"fp8, expert-major", PAYLOAD(FP8_F32)},
    {"fp8, expert-major, row scales, split", PAYLOAD(FP8_F32), ORDERED, ROW_SCALES, .split = 1},
    {"fp8, rank-major", PAYLOAD(FP8_F32), RANK_MAJOR, .out_of_turn = 1},
    {"fp8, a stranger", PAYLOAD(FP8_F32), ROW_SCALES, .stranger = 1},
    {"fp8, rank-major, a stranger", PAYLOAD(FP8_F32), RANK_MAJOR, ROW_SCALES, .stranger = 1},
    {"fp8 pow2, expert-major", PAYLOAD(FP8_POW2)},
    {"fp8 ue8m0, expert-major", PAYLOAD(FP8_UE8M0)},
    {"fp8 ue8m0, rank-major, row scales", PAYLOAD(FP8_UE8M0), RANK_MAJOR, ROW_SCALES},
    {"opaque, expert-major", PAYLOAD(OPAQUE), .scales = 3},
    {"opaque, rank-major, split", PAYLOAD(OPAQUE), RANK_MAJOR, ROW_SCALES, .scales = 3, .split = 1},
    {"opaque, scales of 1 byte", PAYLOAD(OPAQUE), .scales = 5, .scale_bytes = 1},
    {"opaque, rank-major, scales of 1 byte", PAYLOAD(OPAQUE), RANK_MAJOR, .scales = 7, .scale_bytes = 1,
     .scales_by_row = 1},
    {"opaque, scales of 2 bytes", PAYLOAD(OPAQUE), ROW_SCALES, .scales = 9, .scale_bytes = 2,
     .scales_by_row = 1},
    {"opaque, rank-major, scales of 8 bytes", PAYLOAD(OPAQUE), RANK_MAJOR, .scales = 3, .scale_bytes = 8},
    {"opaque, scales of 8 bytes", PAYLOAD(OPAQUE), .scales = 150, .scale_bytes = 8, .scales_by_row = 1,
     .apart = 32},
    {"repeated ids", .repeats = 1},
    {"repeated ids, rank-major, i64 ids", RANK_MAJOR, .repeats = 1, .idx_type = EPW_I64},
    {"opaque, many scales", PAYLOAD(OPAQUE), .scales = OPAQUE_SCALES_MAX},
    {"opaque, rank-major, many scales", PAYLOAD(OPAQUE), RANK_MAJOR, ROW_SCALES, .scales = OPAQUE_SCALES_MAX},

    {"rows apart, one column", .apart = 48, .columns = 1},
    {"fp8, rank-major, rows apart", PAYLOAD(FP8_F32), RANK_MAJOR, .apart = 16, .columns = 3},
    {"ordered, own weights", ORDERED, OWN, .long_deadline = 1},
    {"ordered, own weights, two columns, split", ORDERED, OWN, .columns = 2, .split = 1, .waits = 1},
    {"waits, long deadline", .waits = 1, .long_deadline = 1},
    {"fp8, rank-major, waits, split", PAYLOAD(FP8_F32), RANK_MAJOR, .waits = 1, .split = 1},

    {"few blocks", SHAPE(FEW_BLOCKS), ORDERED, .idx_type = EPW_I64},
    {"few blocks, fp8, rank-major", SHAPE(FEW_BLOCKS), PAYLOAD(FP8_F32), RANK_MAJOR, .bad_ids = 1},
    {"few blocks, fp8, ordered, a stranger", SHAPE(FEW_BLOCKS), PAYLOAD(FP8_F32), ORDERED, ROW_SCALES,
     .stranger = 1, .split = 1},
    {"few blocks, repeated ids, ordered", SHAPE(FEW_BLOCKS), ORDERED, .repeats = 1},
    {"few blocks, opaque, many scales", SHAPE(FEW_BLOCKS), PAYLOAD(OPAQUE), .scales = OPAQUE_SCALES_MAX},

    {"f16", SHAPE(HALF)},
    {"f16, ordered", SHAPE(HALF), ORDERED},
    {"f16, rank-major, split", SHAPE(HALF), RANK_MAJOR, .split = 1},
    {"f16 to fp8", SHAPE(HALF), PAYLOAD(FP8_F32), ORDERED},
    {"f16 to fp8 pow2, rank-major", SHAPE(HALF), PAYLOAD(FP8_POW2), RANK_MAJOR},
    {"f16 to fp8 ue8m0", SHAPE(HALF), PAYLOAD(FP8_UE8M0)},

    {"top-9, f16, bf16 outputs", SHAPE(TOPK_9)},
    {"top-9, fp8 ue8m0, ordered, u32 ids", SHAPE(TOPK_9), PAYLOAD(FP8_UE8M0), ORDERED, .idx_type = EPW_U32},
    {"top-9, rank-major", SHAPE(TOPK_9), RANK_MAJOR},
    {"top-9, 8 columns, ordered, own weights", SHAPE(TOPK_9), ORDERED, OWN, .columns = 8, .waits = 1},
    {"top-9, 5 columns, rank-major, i64 ids", SHAPE(TOPK_9), RANK_MAJOR, .columns = 5, .idx_type = EPW_I64},
    {"top-32, f16 outputs", SHAPE(TOPK_32)},
    {"top-32, fp8, ordered, i64 ids", SHAPE(TOPK_32), PAYLOAD(FP8_F32), ORDERED, .idx_type = EPW_I64},
    {"top-32, rank-major", SHAPE(TOPK_32), RANK_MAJOR},
    {"top-32, repeated ids, fp8", SHAPE(TOPK_32), PAYLOAD(FP8_F32), .repeats = 1},
    {"top-32, 12 columns, rows apart, own weights", SHAPE(TOPK_32), ORDERED, OWN, .columns = 12, .apart = 64},

    {"hidden 1000", SHAPE(RAGGED)},
    {"hidden 1000, ordered", SHAPE(RAGGED), ORDERED},
    {"hidden 1000, rank-major", SHAPE(RAGGED), RANK_MAJOR},
    {"hidden 8192, ordered", SHAPE(WIDE), ORDERED},
    {"hidden 8192, fp8", SHAPE(WIDE), PAYLOAD(FP8_F32)},
    {"hidden 8192, fp8 ue8m0, rank-major", SHAPE(WIDE), PAYLOAD(FP8_UE8M0), RANK_MAJOR},
    {"hidden 8200", SHAPE(WIDE_RAGGED)},
    {"hidden 8200, ordered, split", SHAPE(WIDE_RAGGED), ORDERED, .split = 1},
    {"hidden 8200, rank-major, zero-copy", SHAPE(WIDE_RAGGED), RANK_MAJOR, .zero_copy = 1},
    {"hidden 16384, ordered", SHAPE(WIDER), ORDERED},
    {"hidden 16384, rank-major", SHAPE(WIDER), RANK_MAJOR},
    {"hidden 16384, fp8 pow2", SHAPE(WIDER), PAYLOAD(FP8_POW2)},
    {"hidden 16384, rows apart", SHAPE(WIDER), .apart = 16, .columns = 2},
    {"hidden 16512, f16", SHAPE(WIDEST)},
    {"hidden 16512, f16 to fp8, rows apart", SHAPE(WIDEST), PAYLOAD(FP8_F32), .apart = 80},
    {"hidden 16512, f16 to fp8, rank-major", SHAPE(WIDEST), PAYLOAD(FP8_F32), RANK_MAJOR},
    {"hidden 16512, f16 to fp8 ue8m0, ordered", SHAPE(WIDEST), PAYLOAD(FP8_UE8M0), ORDERED},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* The memory of one step of one rank: inputs first, then outputs. */
enum {
    X,
    IDS,
    WEIGHTS,
    TAGS,
    IN_SCALES,
    OWN_WEIGHTS,
    EXPERT_OUT, /* read */
    WAITS,      /* added to, with a different sum each time */
    OUTPUTS,
    ROWS = OUTPUTS,
    SCALES,
    SIDEBANDS,
    COUNTS,
    SOURCE_COUNTS,
    RANGES,
    SOURCE_TOKEN,
    ROW_EXPERTS,
    ROW_WEIGHTS,
    EXPERT_ROWS,
    EXPERT_TOTALS,
    PACKED_RANGES,
    EXPERT_TOTALS_I32,
    OUT,
    CONTRIBUTIONS, /* written */
    ARRAYS
};
static const char *const array_names[ARRAYS] = {"x",
                                                "ids",
                                                "weights",
                                                "sideband in",
                                                "scales in",
                                                "own weights",
                                                "expert_out",
                                                "wait_ns",
                                                "rows",
                                                "scales",
                                                "sideband",
                                                "counts",
                                                "source_counts",
                                                "ranges",
                                                "source_token",
                                                "row_experts",
                                                "row_weights",
                                                "expert_rows",
                                                "expert_totals",
                                                "packed_ranges",
                                                "expert_totals_i32",
                                                "out",
                                                "contributions"};

typedef struct memory {
    unsigned char *at[ARRAYS];
    size_t bytes[ARRAYS];
    int stranger; /* 1: the memory of the rank that sends another format */
} memory;

static uint32_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Both signs, at least 16 binades (for f16 including the one below the normal numbers), all mantissas: sums
 * in another order would differ. */
static uint16_t any_value(uint32_t dtype, uint64_t *seed) {
    uint32_t r = next(seed);
    if (dtype == EPW_F16) return (uint16_t)((r & 1) << 15 | (r >> 1) % 20 << 10 | (r >> 8 & 1023));
    return (uint16_t)((r & 1) << 15 | (119 + (r >> 1) % 16) << 7 | (r >> 8 & 127));
}

/* An earlier id of the same token, before its entry j, which is number i of all; -1: there is none. */
static int64_t earlier_id(uint32_t idx_type, const unsigned char *ids, size_t i, size_t j) {
    for (size_t back = 1; back <= j; back++) {
        int64_t id = idx_type == EPW_I64 ? ((const int64_t *)(const void *)ids)[i - back]
                                         : ((const int32_t *)(const void *)ids)[i - back];
        if (id >= 0) return id;
    }
    return -1;
}

static void put_id(uint32_t idx_type, unsigned char *ids, size_t i, int64_t id) {
    int32_t narrow = (int32_t)id; /* as u32, -1 is the maximum */
    if (idx_type == EPW_I64) {
        memcpy(ids + i * 8, &id, 8);
    } else {
        memcpy(ids + i * 4, &narrow, 4);
    }
}

static epw_config config_of_shape(uint32_t shape_index, uint32_t rank, uint32_t ranks, int32_t device) {
    const shape *s = &shapes[shape_index];
    epw_config config = config_of(rank, ranks);
    config.dtype = s->dtype;
    config.combine_dtype = s->combine_dtype;
    config.max_tokens = s->tokens;
    config.hidden = s->hidden;
    config.experts = (s->experts + ranks - 1) / ranks * ranks;
    config.topk = s->topk;
    config.sms = s->sms;
    config.opaque_bytes = OPAQUE + OPAQUE_SCALES_MAX * 4;
    config.device = device;
    return config;
}

static uint32_t columns_of(const test_case *c) {
    return c->columns ? c->columns : shapes[c->shape].topk;
}

/* Bytes of a row of x. */
static size_t row_of(const test_case *c) {
    return c->payload == EPW_PAYLOAD_OPAQUE ? OPAQUE : shapes[c->shape].hidden * 2;
}

static epw_dispatch_input input_of(const test_case *c, uint32_t lane, const memory *m) {
    const shape *s = &shapes[c->shape];
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = s->tokens;
    in.x = m->at[X];
    if (c->apart) in.x_stride = row_of(c) + c->apart;
    in.topk_idx = m->at[IDS];
    in.idx_type = c->idx_type;
    in.topk_weights = (const float *)m->at[WEIGHTS];
    in.topk = columns_of(c);
    in.sideband = m->at[TAGS];
    in.sideband_bytes = SIDEBAND;
    in.payload = m->stranger ? EPW_PAYLOAD_FP8_POW2 : c->payload;
    in.layout = c->layout;
    in.lane = (int32_t)lane;
    if (c->payload == EPW_PAYLOAD_OPAQUE) {
        in.opaque_row_bytes = OPAQUE;
        in.scales = m->at[IN_SCALES];
        in.scale_count = c->scales;
        in.scale_bytes = c->scale_bytes ? c->scale_bytes : 4;
        in.scale_row_stride = in.scale_bytes * (c->scales_by_row ? c->scales : 1);
        in.scale_col_stride = in.scale_bytes * (c->scales_by_row ? 1 : s->tokens);
    }
    return in;
}

static epw_dispatch_output output_of(const test_case *c, const memory *m) {
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    out.scale_order = c->scale_order;
    out.rows = m->at[ROWS];
    out.scales = m->at[SCALES];
    out.sideband = m->at[SIDEBANDS];
    out.counts = (uint32_t *)m->at[COUNTS];
    out.source_counts = (uint32_t *)m->at[SOURCE_COUNTS];
    out.source_token = (uint32_t *)m->at[SOURCE_TOKEN];
    out.expert_totals = (uint64_t *)m->at[EXPERT_TOTALS];
    out.expert_totals_i32 = (int32_t *)m->at[EXPERT_TOTALS_I32];
    if (c->waits) out.wait_ns = (uint64_t *)m->at[WAITS];
    if (c->layout == EPW_EXPERT_MAJOR) {
        out.ranges = (uint32_t *)m->at[RANGES];
        out.packed_ranges = (uint64_t *)m->at[PACKED_RANGES];
    } else {
        out.row_experts = (int32_t *)m->at[ROW_EXPERTS];
        out.row_weights = (float *)m->at[ROW_WEIGHTS];
        out.expert_rows = (uint32_t *)m->at[EXPERT_ROWS];
    }
    return out;
}

/* The inputs of the step, the same in every world, and the sizes of its outputs. */
static memory make_inputs(const epw_config *config, uint32_t index) {
    const test_case *c = &cases[index];
    memory m = {.stranger = c->stranger && config->rank == 1};
    epw_plan plan = EPW_PLAN_INIT;
    epw_row_shape row = EPW_ROW_SHAPE_INIT;
    CHECK_OK(epw_plan_make(config, &plan));
    epw_dispatch_input probe = input_of(c, 0, &m);
    CHECK_OK(epw_row_shape_make(config, &probe, &row));
    size_t experts = plan.local_experts, rows = plan.rows, tokens = config->max_tokens, topk = config->topk;
    size_t lists = c->layout == EPW_EXPERT_MAJOR ? experts : 1, row_bytes = config->hidden * 2;
    const size_t bytes[ARRAYS] = {
        [X] = tokens * (row_bytes + c->apart),
        [IDS] = tokens * topk * (c->idx_type == EPW_I64 ? 8 : 4),
        [WEIGHTS] = tokens * topk * 4,
        [TAGS] = tokens * SIDEBAND,
        [IN_SCALES] = tokens * OPAQUE_SCALES_MAX * 4,
        [OWN_WEIGHTS] = tokens * topk * 4,
        [WAITS] = config->ranks * 8,
        [EXPERT_OUT] = lists * rows * row_bytes,
        [ROWS] = lists * rows * row.payload_bytes,
        [SCALES] = lists == 1 ? row.rank_scales_bytes : row.expert_scales_bytes,
        [SIDEBANDS] = lists * rows * SIDEBAND,
        [COUNTS] = experts * 4,
        [SOURCE_COUNTS] = config->ranks * 4,
        [RANGES] = experts * config->ranks * 8,
        [SOURCE_TOKEN] = lists * rows * 4,
        [ROW_EXPERTS] = rows * topk * 4,
        [ROW_WEIGHTS] = rows * topk * 4,
        [EXPERT_ROWS] = experts * rows * 4,
        [EXPERT_TOTALS] = experts * 8,
        [PACKED_RANGES] = experts * config->ranks * 8,
        [EXPERT_TOTALS_I32] = experts * 4,
        [OUT] = tokens * row_bytes,
        [CONTRIBUTIONS] = tokens * 4,
    };
    memcpy(m.bytes, bytes, sizeof bytes);
    for (int a = 0; a < OUTPUTS; a++) m.at[a] = aligned_alloc(64, (m.bytes[a] + 63) / 64 * 64);
    uint64_t seed = index * 100u + config->rank;
    for (size_t i = 0; i < bytes[X] / 2; i++) ((uint16_t *)m.at[X])[i] = any_value(config->dtype, &seed);
    for (size_t i = 0; i < bytes[EXPERT_OUT] / 2; i++)
        ((uint16_t *)m.at[EXPERT_OUT])[i] = any_value(config->combine_dtype, &seed);
    for (size_t i = 0; i < bytes[TAGS]; i++) m.at[TAGS][i] = (unsigned char)next(&seed);
    for (size_t i = 0; i < bytes[IN_SCALES] / 4; i++) ((uint32_t *)m.at[IN_SCALES])[i] = next(&seed);
    memset(m.at[WAITS], 0, bytes[WAITS]);
    for (size_t i = 0; i < tokens * topk; i++) {
        size_t t = i / columns_of(c), j = i % columns_of(c); /* beyond the last token if there are fewer */
        ((float *)m.at[WEIGHTS])[i] = (float)(next(&seed) % 1000) / 997.0f;
        ((float *)m.at[OWN_WEIGHTS])[i] = (float)(next(&seed) % 1000) / 991.0f;
        /* distinct within a token */
        int64_t id = (int64_t)((t * 5 + config->rank + next(&seed) % 3 + j * 3) % config->experts);
        int nowhere = t % 5 == 1 || t % 64 > 40;
        if (next(&seed) % (c->repeats ? 3 : 8) == 0 || nowhere) id = -1;
        if (c->repeats && id < 0 && config->device >= 0) id = earlier_id(c->idx_type, m.at[IDS], i, j);
        put_id(c->idx_type, m.at[IDS], i, id);
    }
    return m;
}

static void free_arrays(memory *m) {
    for (int a = 0; a < ARRAYS; a++) free(m->at[a]);
}

#endif
