/* As many tokens as a rank of a prefill buffer may send, in two ranks, and a plain reference that knows each
 * row of each layout, and each sum. Numbers are such that sums are exact in bf16, whatever their order; the
 * first channels of a token say which one it is. */
#ifndef EPW_TESTS_MANY_TOKENS_H
#define EPW_TESTS_MANY_TOKENS_H

#include "check.h"
#include "epwire.h"

#include <stdlib.h>
#include <string.h>

enum {
    MANY_RANKS = 2,
    MANY_HIDDEN = 16,
    MANY_TOPK = 3,
    MANY_LOCAL = 5,
    MANY_EXPERTS = MANY_RANKS * MANY_LOCAL
};

static uint32_t many_tokens = EPW_MAX_TOKENS; /* of each rank */

static inline uint32_t many_mix(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t x = a * 0x9e3779b1u ^ b * 0x85ebca6bu ^ c * 0xc2b2ae35u;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return x ^ x >> 15;
}

/* The expert of entry j; -1: none. Each token goes to the first rank. */
static inline int32_t many_id(uint32_t source, uint32_t t, uint32_t j) {
    uint32_t number = many_mix(source, t, 50 + j);
    if (j == 0) return (int32_t)(number % MANY_LOCAL);
    int32_t id = number % 11 == 0 ? -1 : (int32_t)(number / 11 % MANY_EXPERTS);
    for (uint32_t i = 0; i < j; i++)
        if (many_id(source, t, i) == id) return -1;
    return id;
}
static inline float many_weight(uint32_t source, uint32_t t, uint32_t j) {
    return many_mix(source, t, 80 + j) % 2 != 0 ? 0.5f : 1.0f;
}
/* Below 32: times the sum of three weights, halves up to 3, it has no more than 8 bits. */
static inline float many_value(uint32_t source, uint32_t t, uint32_t c) {
    if (c < 4) return (float)(t >> 5 * c & 31);
    return c == 4 ? (float)source : (float)(many_mix(source, t, c) % 21);
}
static inline uint16_t many_bf16(float x) { /* which has it exactly */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0xffff) != 0) CHECK((bits & 0xffff) == 0);
    return (uint16_t)(bits >> 16);
}

static inline void many_inputs(uint32_t source, uint16_t *x, int32_t *ids, float *weights) {
    for (uint32_t t = 0; t < many_tokens; t++) {
        for (uint32_t c = 0; c < MANY_HIDDEN; c++)
            x[(size_t)t * MANY_HIDDEN + c] = many_bf16(many_value(source, t, c));
        for (uint32_t j = 0; j < MANY_TOPK; j++) {
            ids[(size_t)t * MANY_TOPK + j] = many_id(source, t, j);
            weights[(size_t)t * MANY_TOPK + j] = many_weight(source, t, j);
        }
    }
}

/* What a rank receives, and what it makes of that. Arrays that the layout does not fill are there too. */
typedef struct many_rows {
    uint32_t layout, alignment, places;
    uint64_t capacity;
    uint16_t *rows, *made; /* [places, MANY_HIDDEN] */
    int32_t *row_source, *row_token, *row_position;
    int32_t *row_experts; /* by source [places, MANY_TOPK], else [places]: row_expert */
    float *row_weights;   /* likewise */
} many_rows;

/* The sizes of the arrays in bytes. */
static inline size_t many_bytes_of_rows(const many_rows *r) {
    return (size_t)r->places * MANY_HIDDEN * 2;
}
static inline size_t many_bytes_of_numbers(const many_rows *r) {
    return (size_t)r->places * MANY_TOPK * 4;
}

static inline int many_by_expert(uint32_t layout) {
    return layout == EPW_PACKED || layout == EPW_EXPERT_MAJOR;
}

/* The rows of each of the rank's experts. */
static inline void many_count(uint32_t rank, uint32_t counts[MANY_LOCAL]) {
    memset(counts, 0, MANY_LOCAL * sizeof counts[0]);
    for (uint32_t s = 0; s < MANY_RANKS; s++)
        for (uint32_t t = 0; t < many_tokens; t++)
            for (uint32_t j = 0; j < MANY_TOPK; j++) {
                int32_t e = many_id(s, t, j) - (int32_t)(rank * MANY_LOCAL);
                if (e >= 0 && e < MANY_LOCAL) counts[e]++;
            }
}

/* Room for all rows, and some more. */
static inline many_rows many_make_room(uint32_t rank, uint32_t layout, uint32_t alignment) {
    many_rows r = {.layout = layout, .alignment = alignment, .capacity = MANY_RANKS * many_tokens};
    uint32_t counts[MANY_LOCAL];
    many_count(rank, counts);
    if (layout == EPW_DENSE) r.capacity += 3;
    if (many_by_expert(layout)) r.capacity = 3;
    for (uint32_t e = 0; many_by_expert(layout) && e < MANY_LOCAL; e++) {
        uint32_t padded = counts[e] + alignment; /* at most */
        if (layout == EPW_PACKED) r.capacity += padded;
        if (layout == EPW_EXPERT_MAJOR && counts[e] > r.capacity) r.capacity = counts[e];
    }
    r.places = (uint32_t)r.capacity * (layout == EPW_EXPERT_MAJOR ? MANY_LOCAL : 1);
    r.rows = aligned_alloc(64, (many_bytes_of_rows(&r) + 63) / 64 * 64);
    r.made = aligned_alloc(64, (many_bytes_of_rows(&r) + 63) / 64 * 64);
    int32_t **numbers[] = {&r.row_source, &r.row_token, &r.row_position, &r.row_experts};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        memset(*numbers[i] = malloc(many_bytes_of_numbers(&r)), 0x5a, many_bytes_of_numbers(&r));
    r.row_weights = calloc(1, many_bytes_of_numbers(&r));
    return r;
}

static inline void many_free(many_rows *r) {
    void *all[] = {r->rows,         r->made,        r->row_source, r->row_token,
                   r->row_position, r->row_experts, r->row_weights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* The row at the place is that of the token; j: of which entry, in layouts by expert. */
static inline int many_is_row(uint32_t rank, const many_rows *r, uint64_t place, uint32_t s, uint32_t t,
                              uint32_t j) {
    int32_t first = (int32_t)(rank * MANY_LOCAL);
    int good = place < r->places && r->row_source[place] == (int32_t)s && r->row_token[place] == (int32_t)t;
    for (uint32_t c = 0; good && c < MANY_HIDDEN; c++)
        good = r->rows[place * MANY_HIDDEN + c] == many_bf16(many_value(s, t, c));
    if (good && many_by_expert(r->layout))
        return r->row_experts[place] == many_id(s, t, j) - first && r->row_position[place] == (int32_t)j &&
               r->row_weights[place] == many_weight(s, t, j);
    for (uint32_t i = 0; good && i < MANY_TOPK; i++) {
        int32_t e = many_id(s, t, i) - first, here = e >= 0 && e < MANY_LOCAL;
        good = r->row_experts[place * MANY_TOPK + i] == (here ? e : -1) &&
               r->row_weights[place * MANY_TOPK + i] == (here ? many_weight(s, t, i) : 0.0f);
    }
    return good;
}

/* Looks at each row in its place, which follows from counting; nothing is in the others. */
static inline void many_check_rows(uint32_t rank, const many_rows *r) {
    uint32_t counts[MANY_LOCAL], wrong = 0;
    uint64_t next[MANY_LOCAL], of_source = 0, rows = 0, end = 0;
    many_count(rank, counts);
    for (uint32_t e = 0; e < MANY_LOCAL; e++) {
        next[e] = r->layout == EPW_EXPERT_MAJOR ? e * r->capacity : end;
        if (r->layout == EPW_PACKED) end += (counts[e] + r->alignment - 1) / r->alignment * r->alignment;
    }
    for (uint32_t s = 0; s < MANY_RANKS; s++) {
        if (r->layout == EPW_RANK_MAJOR) of_source = (uint64_t)s * many_tokens;
        for (uint32_t t = 0; t < many_tokens; t++) {
            int here = 0;
            for (uint32_t j = 0; j < MANY_TOPK; j++) {
                int32_t e = many_id(s, t, j) - (int32_t)(rank * MANY_LOCAL);
                if (e < 0 || e >= MANY_LOCAL) continue;
                here = 1;
                if (!many_by_expert(r->layout)) continue;
                wrong += !many_is_row(rank, r, next[e]++, s, t, j);
                rows++;
            }
            if (!here || many_by_expert(r->layout)) continue;
            wrong += !many_is_row(rank, r, of_source++, s, t, 0);
            rows++;
        }
    }
    for (uint64_t place = 0; place < r->places; place++) rows -= r->row_source[place] >= 0;
    CHECK_MSG(wrong == 0 && rows == 0, "rank %u, layout %u: %u rows are wrong, and %lld have no place", rank,
              r->layout, wrong, (long long)rows);
}

/* What experts make of the rows: themselves, with the weights where that is due. */
static inline void many_make(many_rows *r) {
    for (uint64_t place = 0; place < r->places; place++) {
        float weight = many_by_expert(r->layout) ? 1.0f : 0.0f;
        for (uint32_t j = 0; j < MANY_TOPK && !many_by_expert(r->layout); j++)
            weight += r->row_weights[place * MANY_TOPK + j];
        for (uint32_t c = 0; c < MANY_HIDDEN; c++) {
            uint32_t bits = (uint32_t)r->rows[place * MANY_HIDDEN + c] << 16;
            float x;
            memcpy(&x, &bits, 4);
            r->made[place * MANY_HIDDEN + c] = r->row_source[place] >= 0 ? many_bf16(weight * x) : 0;
        }
    }
}

/* So each token comes back times the sum of its weights. */
static inline void many_check_sums(uint32_t rank, const uint16_t *sums) {
    uint32_t wrong = 0;
    for (uint32_t t = 0; t < many_tokens; t++) {
        float weight = 0.0f;
        for (uint32_t j = 0; j < MANY_TOPK; j++)
            if (many_id(rank, t, j) >= 0) weight += many_weight(rank, t, j);
        int good = 1;
        for (uint32_t c = 0; c < MANY_HIDDEN; c++)
            good &= sums[(size_t)t * MANY_HIDDEN + c] == many_bf16(weight * many_value(rank, t, c));
        wrong += !good;
    }
    CHECK_MSG(wrong == 0, "rank %u: %u sums of %u are wrong", rank, wrong, many_tokens);
}

static inline epw_prefill_output many_output(const many_rows *r) {
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    int experts = many_by_expert(r->layout);
    out.layout = r->layout;
    out.alignment = r->alignment;
    out.capacity = r->capacity;
    out.rows = r->rows;
    out.row_source = r->row_source;
    out.row_token = r->row_token;
    out.row_position = experts ? r->row_position : NULL;
    out.row_expert = experts ? r->row_experts : NULL;
    out.row_weight = experts ? r->row_weights : NULL;
    out.row_experts = experts ? NULL : r->row_experts;
    out.row_weights = experts ? NULL : r->row_weights;
    return out;
}

static inline epw_prefill_config many_config(uint32_t ring_tokens) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    config.ep.ranks = MANY_RANKS;
    config.ep.experts = MANY_EXPERTS;
    config.ep.topk = MANY_TOPK;
    config.ep.hidden = MANY_HIDDEN;
    config.ep.max_tokens = many_tokens;
    config.ep.lanes = 1;
    config.ep.threads = 1;
    config.ep.deadline_ns = UINT64_C(60000000000);
    config.ring_tokens = ring_tokens;
    return config;
}

#endif
