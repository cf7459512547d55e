/* Prefill against a plain reference: random groups, rings of 2 to 16 tokens, every layout, payload and mode,
 * in one call, in halves, counted first, and with a routing that is used again. Each case has a seed; see
 * seeds_of_test() for the variables that choose others. A few cases have more than eight ranks, and one more
 * than a word has bits. */
#include "prefills.h"

#include <stdbool.h>
#include <stdio.h>

/* Ranks of a case by its seed. Those with more ranks have few tokens and experts. */
enum { RANKS_BY_SEED = 4, MANY_CASES = 7, MANY_LEAST = 9, MANY_MOST = 12, MANY_LOCAL = 3, MANY_TOKENS = 10 };
#define MANY_FIRST_SEED UINT64_C(1000000)

enum { TOKENS_MAX = 48, HIDDEN_MAX = 384, TOPK_MAX = 6, EXPERTS_MAX = 24, CASES = 1000 };
enum { BYTES_MAX = HIDDEN_MAX * 2, BAND = 8, LACKS_MAX = (PREFILL_RANKS_MAX + 31) / 32 };
enum { RANGES_MAX = MANY_LOCAL * PREFILL_RANKS_MAX }; /* local experts times ranks */

/* What all ranks of a case have in common. */
typedef struct plan {
    uint64_t seed;
    epw_prefill_config config;
    uint32_t payload, mode, width, topk, local, rounds;
    bool ordered, weighted, sideband, values, combine_weights;
} plan;

/* A rank: what it sends, and what has arrived. */
typedef struct rank {
    const plan *p;
    struct rank *all;
    epw_prefill *prefill;
    uint32_t rank, tokens, layout, alignment, scale_order, zero_padding, bias_count, how;
    uint64_t capacity, wanted;
    uint32_t round;
    _Alignas(64) uint16_t x[TOKENS_MAX * HIDDEN_MAX];
    int32_t ids[TOKENS_MAX * TOPK_MAX];
    float weights[TOKENS_MAX * TOPK_MAX], again_weights[TOKENS_MAX * TOPK_MAX];
    uint8_t band[TOKENS_MAX * BAND];
    unsigned char *rows, *scales, *out_band;
    uint32_t counts[EXPERTS_MAX], offsets[EXPERTS_MAX], overflow[PREFILL_RANKS_MAX],
        source_counts[PREFILL_RANKS_MAX], source_offsets[PREFILL_RANKS_MAX];
    uint64_t ranges[RANGES_MAX], totals[EXPERTS_MAX];
    int32_t totals_i32[EXPERTS_MAX];
    int32_t *row_expert, *row_source, *row_token, *row_position, *row_experts;
    float *row_weight, *row_weights;
    uint16_t *made;
    float *made_values, *made_weights;
    uint16_t bias[2][TOKENS_MAX * HIDDEN_MAX];
    uint16_t sums[TOKENS_MAX * HIDDEN_MAX], contributions[TOKENS_MAX * 2];
    uint32_t lacks[TOKENS_MAX * LACKS_MAX];
    float values[TOKENS_MAX * TOPK_MAX];
    bool overflows;
} rank;

static bool by_expert(uint32_t layout) {
    return layout == EPW_PACKED || layout == EPW_EXPERT_MAJOR;
}

static uint32_t home_of(const plan *p, int32_t expert) {
    return (uint32_t)expert / p->local;
}

/* ---- the reference: places of rows ---- */

/* The place at rank `d` of source s's token t for its entry j; UINT64_MAX: none. */
static uint64_t place_of(const rank *d, uint32_t s, uint32_t t, uint32_t j) {
    const plan *p = d->p;
    int32_t expert = d->all[s].ids[t * p->topk + j];
    uint64_t at = 0, number = 0, before = 0, limit = d->capacity;
    int32_t first = (int32_t)(d->rank * p->local);
    for (uint32_t q = 0; q < p->config.ep.ranks; q++) {
        for (uint32_t u = 0; u < d->all[q].tokens; u++) {
            bool here = false, earlier = q < s || (q == s && u < t);
            for (uint32_t k = 0; k < p->topk; k++) {
                int32_t e = d->all[q].ids[u * p->topk + k];
                if (e < 0 || home_of(p, e) != d->rank) continue;
                here = true;
                if (e == expert && earlier) number++;
            }
            if (here && earlier && (d->layout == EPW_DENSE || q == s)) before++;
        }
    }
    if (!by_expert(d->layout)) {
        at = d->layout == EPW_RANK_MAJOR ? s * (uint64_t)p->config.ep.max_tokens + before : before;
        return at < limit ? at : UINT64_MAX;
    }
    if (d->layout == EPW_EXPERT_MAJOR) {
        if (number >= limit) return UINT64_MAX;
        return (uint64_t)(expert - first) * limit + number;
    }
    for (int32_t e = first; e < expert; e++) {
        uint64_t rows = 0;
        for (uint32_t q = 0; q < p->config.ep.ranks; q++)
            for (uint32_t i = 0; i < d->all[q].tokens * p->topk; i++) rows += d->all[q].ids[i] == e;
        at += (rows + d->alignment - 1) / d->alignment * d->alignment;
    }
    return at + number < limit ? at + number : UINT64_MAX;
}

/* ---- the reference: sums ---- */

static float weight_at(const plan *p, const rank *home, uint32_t t, uint32_t j, uint32_t round) {
    return round > 0 ? home->again_weights[t * p->topk + j] : home->weights[t * p->topk + j];
}

/* Channel c of the output of rank d's experts for a place. */
static float made_at(const rank *d, uint64_t place, uint32_t c) {
    return from_bf16(d->made[place * d->p->width + c]);
}

/* Channel c of the sum of token t of `home`. */
static uint16_t sum_of(const rank *home, uint32_t t, uint32_t c, uint32_t round) {
    const plan *p = home->p;
    float sum = 0.0f;
    for (uint32_t d = 0; d < p->config.ep.ranks; d++) {
        const rank *at = &home->all[d];
        float part = 0.0f;
        bool any = false;
        for (uint32_t j = 0; j < p->topk; j++) {
            int32_t e = home->ids[t * p->topk + j];
            if (p->ordered || e < 0 || home_of(p, e) != d) continue;
            uint64_t place = place_of(at, home->rank, t, j);
            if (place == UINT64_MAX) continue;
            if (!by_expert(at->layout)) {
                if (!any) part = made_at(at, place, c);
            } else {
                float weight = p->combine_weights ? at->made_weights[place] : weight_at(p, home, t, j, round);
                float product = weight * made_at(at, place, c);
                part = part + product;
            }
            any = true;
        }
        if (any) sum = sum + from_bf16(round_bf16(part));
    }
    for (uint32_t j = 0; j < p->topk && p->ordered; j++) {
        int32_t e = home->ids[t * p->topk + j];
        if (e < 0) continue;
        uint64_t place = place_of(&home->all[home_of(p, e)], home->rank, t, j);
        if (place == UINT64_MAX) continue;
        float weight =
            p->combine_weights ? home->again_weights[t * p->topk + j] : weight_at(p, home, t, j, round);
        float product = weight * made_at(&home->all[home_of(p, e)], place, c);
        sum = sum + product;
    }
    for (uint32_t i = 0; i < home->bias_count; i++) sum = sum + from_bf16(home->bias[i][t * p->width + c]);
    return round_bf16(sum);
}

/* ---- a case ---- */

/* `ranks`: how many; 0: as the seed says. */
static plan choose_plan(uint64_t seed, uint32_t ranks) {
    uint64_t s = seed * 77 + 5;
    plan p = {.seed = seed, .config = EPW_PREFILL_CONFIG_INIT};
    static const uint32_t payloads[] = {EPW_PAYLOAD_SAME, EPW_PAYLOAD_SAME, EPW_PAYLOAD_FP8_F32,
                                        EPW_PAYLOAD_FP8_POW2, EPW_PAYLOAD_FP8_UE8M0};
    epw_config *c = &p.config.ep;
    c->ranks = 1 + below(&s, RANKS_BY_SEED);
    if (ranks != 0) c->ranks = ranks;
    p.local = 1 + below(&s, ranks != 0 ? MANY_LOCAL : EXPERTS_MAX / c->ranks);
    c->experts = p.local * c->ranks;
    c->max_tokens = 1 + below(&s, ranks != 0 ? MANY_TOKENS : TOKENS_MAX);
    p.topk = 1 + below(&s, c->experts < TOPK_MAX ? c->experts : TOPK_MAX);
    c->topk = p.topk;
    p.payload = payloads[below(&s, 5)];
    c->hidden = p.payload == EPW_PAYLOAD_SAME ? 8 * (1 + below(&s, 8)) : 128 * (1 + below(&s, 3));
    c->lanes = 1 + below(&s, 2);
    c->sideband_bytes = below(&s, 2) ? BAND : 0;
    c->threads = 1 + below(&s, 2);
    p.config.ring_tokens = 2 + below(&s, 15);
    p.sideband = c->sideband_bytes > 0;
    uint32_t answers = p.topk < p.local ? p.topk : p.local;
    p.ordered = below(&s, 3) == 0 && p.config.ring_tokens >= answers;
    p.weighted = true;
    p.values = below(&s, 2) == 0;
    p.combine_weights = below(&s, 3) == 0;
    p.width = below(&s, 3) == 0 ? 8 * (1 + below(&s, c->hidden / 8)) : c->hidden;
    p.rounds = 1 + below(&s, 2);
    return p;
}

static void *take_bytes(size_t bytes) {
    void *at = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(at, 0xa5, (bytes + 127) / 64 * 64);
    return at;
}

static void choose_rank(const plan *p, rank *all, uint32_t r, epw_prefill *prefill) {
    uint64_t s = p->seed * 1013 + r;
    rank *me = &all[r];
    const epw_config *c = &p->config.ep;
    me->p = p;
    me->all = all;
    me->rank = r;
    me->prefill = prefill;
    me->tokens = below(&s, 4) == 0 ? 0 : below(&s, c->max_tokens + 1);
    static const uint32_t layouts[] = {EPW_PACKED, EPW_PACKED, EPW_DENSE, EPW_EXPERT_MAJOR, EPW_RANK_MAJOR};
    me->layout = layouts[below(&s, p->ordered ? 2 : 5)];
    if (p->ordered && below(&s, 3) == 0) me->layout = EPW_EXPERT_MAJOR;
    me->alignment = me->layout == EPW_PACKED ? 1u << below(&s, 5) : 0;
    me->scale_order = below(&s, 2);
    me->zero_padding = me->layout == EPW_PACKED && below(&s, 2);
    me->bias_count = below(&s, 3);
    me->how = below(&s, 4);
    for (uint32_t i = 0; i < me->tokens * c->hidden; i++) me->x[i] = round_bf16(value_of(p->seed, r, i));
    bool lopsided = below(&s, 4) == 0;
    for (uint32_t t = 0; t < me->tokens; t++) {
        for (uint32_t j = 0; j < p->topk; j++) {
            int32_t id = (int32_t)below(&s, lopsided ? (c->experts + 1) / 2 : c->experts);
            for (uint32_t i = 0; i < j; i++)
                if (me->ids[t * p->topk + i] == id) id = -1;
            if (below(&s, 9) == 0) id = -1;
            me->ids[t * p->topk + j] = id;
            me->weights[t * p->topk + j] = value_of(r, t, j);
            me->again_weights[t * p->topk + j] = value_of(r + 7, t, j);
        }
        for (uint32_t i = 0; i < BAND; i++) me->band[t * BAND + i] = (uint8_t)(r * 31 + t * 7 + i);
    }
    for (uint32_t i = 0; i < 2 * TOKENS_MAX * HIDDEN_MAX; i++)
        me->bias[i / (TOKENS_MAX * HIDDEN_MAX)][i % (TOKENS_MAX * HIDDEN_MAX)] =
            round_bf16(value_of(r, i, 3));
}

/* Chooses the room that a rank has, from the rows of all ranks. */
static void choose_capacity(rank *me) {
    const plan *p = me->p;
    uint64_t s = p->seed * 31 + me->rank, end = 0, most = 0, rows = 0;
    int32_t first = (int32_t)(me->rank * p->local);
    for (int32_t e = first; e < first + (int32_t)p->local; e++) {
        uint64_t of_expert = 0;
        for (uint32_t q = 0; q < p->config.ep.ranks; q++)
            for (uint32_t i = 0; i < me->all[q].tokens * p->topk; i++) of_expert += me->all[q].ids[i] == e;
        if (me->layout == EPW_PACKED) end += (of_expert + me->alignment - 1) / me->alignment * me->alignment;
        if (of_expert > most) most = of_expert;
    }
    for (uint32_t q = 0; q < p->config.ep.ranks; q++)
        for (uint32_t u = 0; u < me->all[q].tokens; u++)
            for (uint32_t k = 0; k < p->topk; k++) {
                int32_t e = me->all[q].ids[u * p->topk + k];
                if (e < 0 || home_of(p, e) != me->rank) continue;
                rows++;
                break;
            }
    me->wanted = me->layout == EPW_PACKED ? end : me->layout == EPW_EXPERT_MAJOR ? most : rows;
    if (me->layout == EPW_RANK_MAJOR) me->wanted = p->config.ep.ranks * p->config.ep.max_tokens;
    me->capacity = me->wanted + below(&s, 5);
    if (me->layout != EPW_RANK_MAJOR && below(&s, 3) == 0 && me->wanted > 1)
        me->capacity = below(&s, (uint32_t)me->wanted);
    me->overflows = false;
    for (uint32_t q = 0; q < p->config.ep.ranks; q++)
        for (uint32_t i = 0; i < me->all[q].tokens * p->topk; i++) {
            int32_t e = me->all[q].ids[i];
            if (e >= 0 && home_of(p, e) == me->rank &&
                place_of(me, q, i / p->topk, i % p->topk) == UINT64_MAX)
                me->overflows = true;
        }
    uint64_t places = me->capacity * (me->layout == EPW_EXPERT_MAJOR ? p->local : 1) + 1;
    uint64_t scales = (p->config.ep.hidden / 128 + 4) * 4;
    me->rows = take_bytes(places * BYTES_MAX);
    me->scales = take_bytes((places + 8 * p->local) * scales);
    me->out_band = take_bytes(places * BAND);
    me->row_expert = take_bytes(places * 4);
    me->row_source = take_bytes(places * 4);
    me->row_token = take_bytes(places * 4);
    me->row_position = take_bytes(places * 4);
    me->row_weight = take_bytes(places * 4);
    me->row_experts = take_bytes(places * 4 * TOPK_MAX);
    me->row_weights = take_bytes(places * 4 * TOPK_MAX);
    me->made = take_bytes(places * BYTES_MAX);
    me->made_values = take_bytes(places * 4 * TOPK_MAX);
    me->made_weights = take_bytes(places * 4);
    for (uint64_t i = 0; i < places * p->width; i++) me->made[i] = round_bf16(value_of(me->rank, i, 99));
    for (uint64_t i = 0; i < places * TOPK_MAX; i++) me->made_values[i] = value_of(me->rank, i, 5);
    for (uint64_t i = 0; i < places; i++) me->made_weights[i] = value_of(me->rank, i, 6);
}

static void free_rank(rank *me) {
    void *all[] = {me->rows,      me->scales,       me->out_band,    me->row_expert,  me->row_source,
                   me->row_token, me->row_position, me->row_weight,  me->row_experts, me->row_weights,
                   me->made,      me->made_values,  me->made_weights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* ---- checking a dispatch ---- */

static void check_scales(const rank *d, const unsigned char *want, uint64_t list, uint64_t row) {
    const plan *p = d->p;
    uint32_t blocks = p->config.ep.hidden / 128,
             k = p->payload == EPW_PAYLOAD_FP8_UE8M0 ? (blocks + 3) / 4 : blocks;
    uint64_t column = (d->capacity * 4 + 15) / 16 * 16;
    uint64_t first = list * (d->scale_order == 1 ? d->capacity * k * 4 : k * column);
    for (uint32_t i = 0; i < k; i++) {
        uint64_t at = first + (d->scale_order == 1 ? (row * k + i) * 4 : i * column + row * 4);
        CHECK_MSG(memcmp(d->scales + at, want + i * 4, 4) == 0, "seed %llu", (unsigned long long)p->seed);
    }
}

static void check_row(const rank *d, uint32_t s, uint32_t t, uint32_t j, uint64_t place) {
    const plan *p = d->p;
    const rank *from = &d->all[s];
    const epw_config *c = &p->config.ep;
    const uint16_t *x = from->x + (size_t)t * c->hidden;
    unsigned char want[BYTES_MAX], scales[64] = {0};
    uint32_t bytes = p->payload == EPW_PAYLOAD_SAME ? c->hidden * 2 : c->hidden;
    if (p->payload == EPW_PAYLOAD_SAME) {
        memcpy(want, x, bytes);
    } else {
        CHECK_OK(epw_quantize_fp8(p->payload, EPW_BF16, 1, c->hidden, x, want, scales));
        uint64_t list = d->layout == EPW_EXPERT_MAJOR ? place / d->capacity : 0;
        check_scales(d, scales, list, place - list * d->capacity);
    }
    CHECK_MSG(memcmp(d->rows + place * bytes, want, bytes) == 0, "seed %llu: rank %u, token %u of %u",
              (unsigned long long)p->seed, d->rank, t, s);
    CHECK(d->row_source[place] == (int32_t)s && d->row_token[place] == (int32_t)t);
    if (p->sideband) CHECK(memcmp(d->out_band + place * BAND, from->band + (size_t)t * BAND, BAND) == 0);
    if (by_expert(d->layout)) {
        CHECK(d->row_expert[place] == from->ids[t * p->topk + j] - (int32_t)(d->rank * p->local));
        CHECK(d->row_position[place] == (int32_t)j);
        CHECK(d->row_weight[place] == weight_at(p, from, t, j, d->round));
        return;
    }
    for (uint32_t i = 0; i < p->topk; i++) {
        int32_t e = from->ids[t * p->topk + i];
        bool ours = e >= 0 && home_of(p, e) == d->rank;
        CHECK(d->row_experts[place * p->topk + i] == (ours ? e - (int32_t)(d->rank * p->local) : -1));
        CHECK(d->row_weights[place * p->topk + i] == (ours ? weight_at(p, from, t, i, d->round) : 0.0f));
    }
}

/* Checks the lists by local expert and source, after this many dispatches. */
static void check_lists(const rank *d, uint32_t dispatches) {
    const plan *p = d->p;
    for (uint32_t e = 0; e < p->local; e++) {
        uint64_t before = 0;
        for (uint32_t s = 0; s < p->config.ep.ranks; s++) {
            uint64_t rows = 0;
            for (uint32_t i = 0; i < d->all[s].tokens * p->topk; i++)
                rows += d->all[s].ids[i] == (int32_t)(d->rank * p->local + e);
            if (by_expert(d->layout)) CHECK(d->ranges[e * p->config.ep.ranks + s] == (before << 32 | rows));
            before += rows;
        }
        CHECK(d->counts[e] == before && d->totals[e] == before * dispatches);
        CHECK(d->totals_i32[e] == (int32_t)(before * dispatches));
    }
}

/* The rows without a place, of each expert or of each source. */
static void check_overflow(const rank *d) {
    const plan *p = d->p;
    uint32_t want[PREFILL_RANKS_MAX] = {0}, lists = by_expert(d->layout) ? p->local : p->config.ep.ranks;
    for (uint32_t s = 0; s < p->config.ep.ranks; s++) {
        uint32_t last = UINT32_MAX; /* the token that was counted last: by source, it is one row */
        for (uint32_t i = 0; i < d->all[s].tokens * p->topk; i++) {
            int32_t e = d->all[s].ids[i];
            uint32_t t = i / p->topk;
            if (e < 0 || home_of(p, e) != d->rank || place_of(d, s, t, i % p->topk) != UINT64_MAX) continue;
            if (by_expert(d->layout)) want[(uint32_t)e - d->rank * p->local]++;
            if (!by_expert(d->layout) && t != last) want[s]++;
            last = t;
        }
    }
    for (uint32_t i = 0; i < lists; i++)
        CHECK_MSG(d->overflow[i] == want[i], "seed %llu: rank %u, layout %u: overflow %u is %u, not %u",
                  (unsigned long long)p->seed, d->rank, d->layout, i, d->overflow[i], want[i]);
}

static void check_dispatch(const rank *d) {
    const plan *p = d->p;
    check_overflow(d);
    uint64_t places = d->capacity * (d->layout == EPW_EXPERT_MAJOR ? p->local : 1), filled = 0, marked = 0;
    uint8_t *used = calloc(places + 1, 1);
    for (uint32_t s = 0; s < p->config.ep.ranks; s++) {
        for (uint32_t i = 0; i < d->all[s].tokens * p->topk; i++) {
            int32_t e = d->all[s].ids[i];
            if (e < 0 || home_of(p, e) != d->rank) continue;
            uint64_t place = place_of(d, s, i / p->topk, i % p->topk);
            if (place == UINT64_MAX) continue;
            filled += !used[place];
            used[place] = 1;
            check_row(d, s, i / p->topk, i % p->topk, place);
        }
    }
    uint32_t bytes = p->payload == EPW_PAYLOAD_SAME ? p->config.ep.hidden * 2 : p->config.ep.hidden;
    for (uint64_t place = 0; place < places; place++) {
        marked += d->row_source[place] >= 0;
        if (used[place]) continue;
        CHECK(d->row_source[place] == -1 && d->row_token[place] == -1);
        if (by_expert(d->layout)) CHECK(d->row_expert[place] == -1 && d->row_weight[place] == 0.0f);
        if (d->zero_padding && place < d->wanted) {
            unsigned char any = 0;
            for (uint32_t i = 0; i < bytes; i++) any |= d->rows[place * bytes + i];
            CHECK_MSG(any == 0, "seed %llu: padding", (unsigned long long)p->seed);
        }
    }
    CHECK(filled == marked);
    free(used);
}

/* ---- what a rank calls ---- */

static void dispatch_round(rank *me, epw_routing *routing, uint32_t round) {
    const plan *p = me->p;
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    bool expert = by_expert(me->layout);
    in.tokens = me->tokens;
    in.x = me->x;
    in.topk_idx = me->ids;
    in.topk = p->topk;
    in.topk_weights = round > 0 ? me->again_weights : me->weights;
    in.payload = p->payload;
    in.sideband = p->sideband ? me->band : NULL;
    in.sideband_bytes = p->sideband ? BAND : 0;
    in.lane = round > 0 ? -1 : (int32_t)(p->seed % p->config.ep.lanes);
    out.layout = me->layout;
    out.alignment = me->alignment;
    out.capacity = me->capacity;
    out.scale_order = me->scale_order;
    out.zero_padding = me->zero_padding;
    out.rows = me->rows;
    out.scales = me->scales;
    out.sideband = p->sideband ? me->out_band : NULL;
    out.counts = me->counts;
    out.source_counts = me->source_counts;
    out.row_source = me->row_source;
    out.row_token = me->row_token;
    out.expert_totals = me->totals;
    out.expert_totals_i32 = me->totals_i32;
    out.ranges = expert ? me->ranges : NULL;
    out.offsets = expert ? me->offsets : NULL;
    out.overflow = me->overflow;
    out.row_expert = expert ? me->row_expert : NULL;
    out.row_position = expert ? me->row_position : NULL;
    out.row_weight = expert ? me->row_weight : NULL;
    out.source_offsets = expert ? NULL : me->source_offsets;
    out.row_experts = expert ? NULL : me->row_experts;
    out.row_weights = expert ? NULL : me->row_weights;
    bool counts = me->how == 1 && round == 0, halves = me->how == 2 && me->tokens < p->config.ring_tokens;
    in.nonblocking = me->how == 3;
    epw_status status =
        epw_prefill_dispatch(me->prefill, routing, &in, round > 0, counts ? EPW_HALF_COUNTS : 0,
                             counts || halves ? NULL : &out, &outcome);
    if (counts) {
        uint64_t rows = 0;
        CHECK_OK(status);
        CHECK_OK(epw_prefill_received(me->prefill, routing, me->layout, me->alignment, &rows, NULL, NULL));
        CHECK_MSG(rows == me->wanted, "seed %llu: %llu rows, not %llu", (unsigned long long)p->seed,
                  (unsigned long long)rows, (unsigned long long)me->wanted);
    }
    if (counts || halves) status = epw_prefill_receive(me->prefill, routing, &out, &outcome);
    while (status == EPW_PENDING) {
        CHECK_OK(epw_prefill_await(me->prefill, epw_routing_lane(routing), 100 * MS));
        status = epw_prefill_poll(me->prefill, routing, &outcome);
    }
    CHECK_MSG(status == EPW_OK, "seed %llu: %s", (unsigned long long)p->seed, epw_last_error());
    CHECK_MSG(outcome.degraded == me->overflows, "seed %llu: rank %u", (unsigned long long)p->seed, me->rank);
    CHECK(outcome.record.cause == (me->overflows ? EPW_CAUSE_OVERFLOW : EPW_CAUSE_NONE));
    me->round = round;
    check_dispatch(me);
    check_lists(me, round + 1);
}

static void combine_round(rank *me, epw_routing *routing, uint32_t round) {
    const plan *p = me->p;
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    bool expert = by_expert(me->layout);
    in.mode = p->ordered ? EPW_COMBINE_ORDERED : EPW_COMBINE_RANK_REDUCED;
    in.width = p->width;
    in.expert_out = me->made;
    in.row_weights = p->combine_weights && !p->ordered && expert ? me->made_weights : NULL;
    in.topk_weights = p->combine_weights && p->ordered ? me->again_weights : NULL;
    in.row_values = p->values ? me->made_values : NULL;
    for (uint32_t i = 0; i < me->bias_count; i++) in.bias[i] = me->bias[i];
    out.out = me->sums;
    out.contributions = me->contributions;
    memset(me->lacks, 0xff, sizeof me->lacks);
    out.lacks = me->lacks;
    out.values = p->values ? me->values : NULL;
    in.nonblocking = me->how == 3;
    epw_status status =
        me->how == 2 ? epw_prefill_combine(me->prefill, routing, &in, NULL, &outcome) : EPW_ERR_LIMIT;
    if (status == EPW_OK) {
        status = epw_prefill_collect(me->prefill, routing, &out, &outcome);
    } else if (status == EPW_ERR_LIMIT) {
        status = epw_prefill_combine(me->prefill, routing, &in, &out, &outcome);
    }
    while (status == EPW_PENDING) {
        CHECK_OK(epw_prefill_await(me->prefill, epw_routing_lane(routing), 100 * MS));
        status = epw_prefill_poll(me->prefill, routing, &outcome);
    }
    CHECK_MSG(status == EPW_OK, "seed %llu: %s", (unsigned long long)p->seed, epw_last_error());
    CHECK(!outcome.degraded);
    const uint32_t words = (p->config.ep.ranks + 31) / 32;
    for (uint32_t t = 0; t < me->tokens; t++) {
        uint32_t expected = 0, arrived = 0;
        for (uint32_t j = 0; j < p->topk; j++) {
            int32_t e = me->ids[t * p->topk + j];
            const rank *at = e >= 0 ? &me->all[home_of(p, e)] : NULL;
            uint64_t place = at != NULL ? place_of(at, me->rank, t, j) : UINT64_MAX;
            expected += at != NULL;
            arrived += place != UINT64_MAX;
            float want = place == UINT64_MAX     ? 0.0f
                         : by_expert(at->layout) ? at->made_values[place]
                                                 : at->made_values[place * p->topk + j];
            if (p->values)
                CHECK_MSG(me->values[t * p->topk + j] == want, "seed %llu", (unsigned long long)p->seed);
        }
        CHECK(me->contributions[2 * t] == arrived && me->contributions[2 * t + 1] == expected);
        for (uint32_t w = 0; w < words; w++) CHECK(me->lacks[t * words + w] == 0);
        for (uint32_t c = 0; c < p->width; c += 1 + p->width / 16)
            CHECK_MSG(me->sums[t * p->width + c] == sum_of(me, t, c, round),
                      "seed %llu: rank %u, token %u, channel %u: %f, not %f", (unsigned long long)p->seed,
                      me->rank, t, c, (double)from_bf16(me->sums[t * p->width + c]),
                      (double)from_bf16(sum_of(me, t, c, round)));
    }
}

static void *run_rank(void *argument) {
    rank *me = argument;
    epw_routing *routing = NULL;
    CHECK_OK(epw_routing_create(me->prefill, &routing));
    for (uint32_t round = 0; round < me->p->rounds; round++) {
        dispatch_round(me, routing, round);
        combine_round(me, routing, round);
        if (round == 0 && me->p->seed % 5 == 0) combine_round(me, routing, round);
    }
    epw_routing_free(routing);
    return NULL;
}

static void run_case(uint64_t seed, uint32_t many) {
    static rank ranks[PREFILL_RANKS_MAX];
    plan p = choose_plan(seed, many);
    prefills g = make_prefills(&p.config);
    memset(ranks, 0, g.ranks * sizeof ranks[0]);
    for (uint32_t r = 0; r < g.ranks; r++) choose_rank(&p, ranks, r, g.of[r]);
    for (uint32_t r = 0; r < g.ranks; r++) choose_capacity(&ranks[r]);
    on_all_ranks(g.ranks, run_rank, ranks, sizeof ranks[0]);
    for (uint32_t r = 0; r < g.ranks; r++) free_rank(&ranks[r]);
    destroy_prefills(&g);
}

int main(void) {
    seeds s = seeds_of_test(CASES);
    for (uint64_t seed = s.first; seed < s.end; seed += s.step) run_case(seed, 0);
    for (uint64_t i = 0; i < MANY_CASES; i += s.step) {
        bool most = i == MANY_CASES - 1 && path_of_test() != EPW_PATH_QUEUE; /* each would connect to each */
        uint32_t ranks = most ? PREFILL_RANKS_MAX : MANY_LEAST + (uint32_t)i % (MANY_MOST - MANY_LEAST + 1);
        run_case(s.first + MANY_FIRST_SEED + i, ranks);
    }
    return check_result("prefill_cases");
}
