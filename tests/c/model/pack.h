/* States as bits: packed to be kept, and as fingerprints to be recognised. Ranks that play the same part are
 * interchangeable (every move treats all peers alike), so states that differ only in their numbers are one.
 */
#ifndef EPW_TESTS_MODEL_PACK_H
#define EPW_TESTS_MODEL_PACK_H

#include "state.h"

enum { PACKED_WORDS = 24, MAX_ORDERS = 6 };

/* One way to number the ranks. */
typedef struct order {
    uint8_t from[MAX_RANKS]; /* [new number] old number */
    uint8_t to[16];          /* [old number] new number; what is no rank stays */
    uint8_t masks[1 << MAX_RANKS];
} order;

/* The numberings that keep every rank's part. */
typedef struct symmetry {
    unsigned count;
    order orders[MAX_ORDERS]; /* the first changes nothing */
} symmetry;

/* Reads or writes fields one after another, so that packing and unpacking are one function. */
typedef struct codec {
    uint64_t words[PACKED_WORDS];
    unsigned at; /* bits */
    bool unpacking;
    const order *by;
} codec;

static inline void field(codec *c, uint8_t *value, unsigned bits) {
    if (c->at % 64 + bits > 64) c->at = (c->at / 64 + 1) * 64;
    uint64_t *word = &c->words[c->at / 64];
    unsigned shift = c->at % 64;
    if (c->unpacking) {
        *value = (uint8_t)(*word >> shift & ((1u << bits) - 1));
    } else {
        *word |= (uint64_t)*value << shift;
    }
    c->at += bits;
}

static inline void mask_field(codec *c, const model *m, mask *value) {
    mask mapped = c->by->masks[*value];
    field(c, &mapped, m->ranks);
    if (c->unpacking) *value = mapped;
}

/* A rank's number, or a number above all ranks. */
static inline void rank_field(codec *c, uint8_t *value) {
    uint8_t mapped = c->by->to[*value];
    field(c, &mapped, 4);
    if (c->unpacking) *value = mapped;
}

static inline void tag_field(codec *c, const model *m, tag *t) {
    field(c, &t->epoch, 2);
    field(c, &t->op, m->ops < 4 ? 2 : 4);
    field(c, &t->value, 1);
}

static void lane_fields(codec *c, const model *m, lane *at) {
    unsigned op_bits = m->ops < 4 ? 2 : 4;
    field(c, &at->stage, 3);
    field(c, &at->op, op_bits);
    mask_field(c, m, &at->awaited);
    mask_field(c, m, &at->writing);
    mask_field(c, m, &at->present);
    mask_field(c, m, &at->rows);
    mask_field(c, m, &at->reading);
    mask_field(c, m, &at->missing);
    if (m->release) {
        field(c, &at->paying, 1);
        field(c, &at->debt_op, op_bits);
        field(c, &at->more, op_bits);
        mask_field(c, m, &at->unsent);
        mask_field(c, m, &at->unanswered);
    }
    field(c, &at->storing, 3);
    mask_field(c, m, &at->store_to);
    if (m->torn) {
        field(c, &at->loads, 2);
        field(c, &at->look_for, 2);
        rank_field(c, &at->look_at);
        field(c, &at->seen_dropped, 2);
        field(c, &at->seen_epoch, 2);
        tag_field(c, m, &at->seen_word);
    }
    if (m->timed) {
        rank_field(c, &at->store_value);
        field(c, &at->waiting, 1);
        field(c, &at->seq, 2);
        field(c, &at->elapsed, 4);
        field(c, &at->beacons, 4);
        field(c, &at->alone, 2);
        for (unsigned i = 0; i < m->ranks; i++) {
            field(c, &at->age[c->by->from[i]], 2);
            field(c, &at->heard[c->by->from[i]], 3);
        }
    }
}

static void state_fields(codec *c, const model *m, state *s) {
    for (unsigned i = 0; i < m->ranks; i++) {
        unsigned r = c->by->from[i];
        rank *me = &s->ranks[r];
        field(c, &me->epoch, 2);
        if (m->fault != FAULT_NONE) field(c, &me->asleep, 2);
        mask_field(c, m, &me->suspects);
        mask_field(c, m, &me->announcing);
        for (unsigned l = 0; l < m->lanes; l++) lane_fields(c, m, &me->lanes[l]);
        for (unsigned j = 0; j < m->ranks; j++) {
            if (i == j) continue;
            line *to = &s->lines[r][c->by->from[j]];
            field(c, &to->epoch, 2);
            field(c, &to->dropped, 2);
            for (unsigned l = 0; l < m->lanes; l++) {
                tag_field(c, m, &to->dispatch[l]);
                tag_field(c, m, &to->combine[l]);
                if (!m->timed) continue;
                field(c, &to->beacon[l].epoch, 2);
                field(c, &to->beacon[l].op, 2);
                rank_field(c, &to->beacon[l].value);
            }
        }
    }
    field(c, &s->timeouts, 8);
    if (m->fault == FAULT_SLEEP) field(c, &s->naps, 1);
}

/* ---- symmetry ---- */

static void add_order(symmetry *all, const model *m, const uint8_t *from) {
    order *made = &all->orders[all->count++];
    memset(made, 0, sizeof *made);
    for (unsigned i = 0; i < sizeof made->to; i++) made->to[i] = (uint8_t)i;
    for (unsigned i = 0; i < m->ranks; i++) {
        made->from[i] = from[i];
        made->to[from[i]] = (uint8_t)i;
    }
    for (unsigned set = 0; set < 1u << m->ranks; set++) {
        for (unsigned i = 0; i < m->ranks; i++) {
            if (has((mask)set, from[i])) made->masks[set] |= bit(i);
        }
    }
}

static bool same_part(const model *m, unsigned a, unsigned b) {
    bool same = m->fault == FAULT_NONE || (a != faulty(m) && b != faulty(m)) || a == b;
    for (unsigned e = 1; e <= m->epochs; e++) same &= has(m->members[e], a) == has(m->members[e], b);
    return same;
}

static symmetry find_symmetry(const model *m) {
    static const uint8_t orders[MAX_ORDERS][MAX_RANKS] = {{0, 1, 2, 3, 4}, {1, 0, 2, 3, 4}, {0, 2, 1, 3, 4},
                                                          {2, 1, 0, 3, 4}, {1, 2, 0, 3, 4}, {2, 0, 1, 3, 4}};
    symmetry all = {0};
    for (unsigned k = 0; k < MAX_ORDERS; k++) {
        bool keeps = true;
        for (unsigned i = 0; i < 3; i++) {
            unsigned j = orders[k][i];
            keeps &= i == j || (i < m->ranks && j < m->ranks && same_part(m, i, j));
        }
        if (keeps) add_order(&all, m, orders[k]);
    }
    return all;
}

/* ---- packing ---- */

static codec pack(const model *m, const symmetry *all, const state *s) {
    codec c;
    memset(&c, 0, sizeof c);
    c.by = &all->orders[0];
    state_fields(&c, m, (state *)s);
    return c;
}

static state unpack(const model *m, const symmetry *all, const uint64_t *words, unsigned count) {
    state s;
    codec c;
    memset(&s, 0, sizeof s);
    memset(&c, 0, sizeof c);
    memcpy(c.words, words, count * sizeof words[0]);
    c.by = &all->orders[0];
    c.unpacking = true;
    state_fields(&c, m, &s);
    return s;
}

static uint64_t mix(uint64_t h) {
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}

static uint64_t fingerprint_by(const model *m, const order *by, const state *s) {
    codec c;
    memset(&c, 0, sizeof c);
    c.by = by;
    state_fields(&c, m, (state *)s);
    uint64_t h = UINT64_C(0x9e3779b97f4a7c15);
    for (unsigned i = 0; i * 64 < c.at; i++) h = mix(h ^ c.words[i]) + h * UINT64_C(0x2545f4914f6cdd1d);
    return mix(h) | 1; /* 0 is an empty place */
}

/* Of a rank, what does not depend on how ranks are numbered. */
static uint16_t rank_key(const model *m, const state *s, unsigned r) {
    const rank *me = &s->ranks[r];
    uint32_t key = me->epoch * 4u + (uint32_t)__builtin_popcount(me->suspects);
    for (unsigned l = 0; l < m->lanes; l++) {
        const lane *at = &me->lanes[l];
        key = key * 31 + at->stage + 8u * at->op;
        key = key * 31 + (uint32_t)__builtin_popcount(at->awaited) +
              4u * (uint32_t)__builtin_popcount(at->writing);
        key = key * 31 + (uint32_t)__builtin_popcount(at->unsent) +
              4u * (uint32_t)__builtin_popcount(at->unanswered);
        key = key * 31 + (uint32_t)__builtin_popcount(at->present) + 4u * at->storing;
        key = key * 31 + at->loads + 4u * at->elapsed;
    }
    for (unsigned p = 0; p < m->ranks; p++) key += s->lines[r][p].epoch * 7u + s->lines[r][p].dropped * 613u;
    return (uint16_t)(key ^ key >> 16);
}

/* The least fingerprint over the numberings that sort the ranks' keys: the same for all states that differ
 * only in numbering. Mostly one numbering does. */
static uint64_t fingerprint(const model *m, const symmetry *all, const state *s) {
    uint64_t keys[MAX_RANKS] = {0}, sums[MAX_ORDERS], least_sum = UINT64_MAX, least = UINT64_MAX;
    if (all->count == 1) return fingerprint_by(m, &all->orders[0], s);
    for (unsigned r = 0; r < m->ranks; r++) keys[r] = rank_key(m, s, r);
    for (unsigned k = 0; k < all->count; k++) {
        const uint8_t *from = all->orders[k].from;
        sums[k] = keys[from[0]] << 32 | keys[from[1]] << 16 | (m->ranks > 2 ? keys[from[2]] : 0);
        if (sums[k] < least_sum) least_sum = sums[k];
    }
    for (unsigned k = 0; k < all->count; k++) {
        if (sums[k] != least_sum) continue;
        uint64_t h = fingerprint_by(m, &all->orders[k], s);
        if (h < least) least = h;
    }
    return least;
}

#endif
