/* States as bits: packed for storage, and as fingerprints for recognition. States that nobody can tell apart
 * become one: times become ages, beacons become the set of ranks that have heard them, and clocks of peers
 * that are not awaited are dropped. */
#ifndef EPW_TESTS_MODEL_PACK_H
#define EPW_TESTS_MODEL_PACK_H

#include "state.h"

#include <stdlib.h>

enum { PACKED_WORDS = 96 };

/* Reads or writes fields one after the other, so that packing and unpacking are one function. */
typedef struct codec {
    uint64_t words[PACKED_WORDS];
    unsigned at; /* in bits */
    bool unpacking;
} codec;

static inline void field(codec *c, uint64_t *value, unsigned bits) {
    if (c->at % 64 + bits > 64) c->at = (c->at / 64 + 1) * 64;
    uint64_t *word = &c->words[c->at / 64];
    unsigned shift = c->at % 64;
    if (c->unpacking) {
        *value = *word >> shift & ((UINT64_C(1) << bits) - 1);
    } else {
        if (*value >> bits) abort(); /* a field of the model is too narrow */
        *word |= *value << shift;
    }
    c->at += bits;
}

#define FIELD(c, place, bits)                                                                                \
    do {                                                                                                     \
        uint64_t value_ = (uint64_t)(place);                                                                 \
        field(c, &value_, bits);                                                                             \
        (place) = (__typeof__(place))value_;                                                                 \
    } while (0)

/* All words that a lane writes. */
static const uint8_t words[] = {EPW_WORD_EPOCH, EPW_WORD_DROPPED, EPW_WORD_BEACON, EPW_WORD_DISPATCH,
                                EPW_WORD_COMBINE};

/* Operations as distances from the first, so that a number that wraps needs no more bits than another. */
static void op_field(codec *c, const model *m, uint32_t *op) {
    uint32_t distance = (*op - m->start) & 0xffffff;
    FIELD(c, distance, 5);
    *op = (m->start + distance) & 0xffffff;
}

/* The contents of a beacon: the rank that it names, with EPW_BEACON_NONE as 7, and for how long. */
static void beacon_value_field(codec *c, uint32_t *value) {
    uint32_t named = epw_beacon_named(*value), lengthened = epw_beacon_lengthened(*value);
    if (named == EPW_BEACON_NONE) named = 7;
    FIELD(c, named, 3);
    FIELD(c, lengthened, 2);
    *value = epw_beacon_value(named == 7 ? EPW_BEACON_NONE : named, lengthened);
}

/* {epoch, op, value}: a farewell has only the epoch, a beacon's op is its number, and an epoch word's step is
 * as small as a value. */
static void word_field(codec *c, const model *m, uint64_t *word, bool beacon) {
    uint64_t epoch = *word >> 41;
    uint32_t op = (uint32_t)(*word >> 17) & 0xffffff, value = *word & 0x1ffff;
    FIELD(c, epoch, 2);
    op_field(c, m, &op);
    if (beacon) {
        beacon_value_field(c, &value);
    } else {
        FIELD(c, value, 1);
    }
    *word = epoch << 41 | (uint64_t)op << 17 | value;
}

/* A time, in units before NOW; anything before AGES counts as long ago. */
static void time_field(codec *c, uint64_t *when) {
    uint64_t age = *when > NOW ? 0 : (NOW - *when) / UNIT;
    if (age >= AGES) age = AGES - 1;
    FIELD(c, age, 6);
    *when = NOW - age * UNIT;
}

static void deadline_field(codec *c, uint64_t *ns) {
    uint32_t is = *ns == 0 ? 0 : *ns == DEADLINE ? 1 : 2;
    FIELD(c, is, 2);
    *ns = is == 0 ? 0 : is == 1 ? DEADLINE : LONG;
}

static void clock_field(codec *c, const model *m, epw_clock *clock, bool runs, const uint64_t *beacons) {
    if (!runs) {
        *clock = (epw_clock){.named = EPW_BEACON_NONE};
        return;
    }
    time_field(c, &clock->since);
    uint32_t said = epw_beacon_value(clock->named, clock->lengthened);
    beacon_value_field(c, &said);
    clock->named = epw_beacon_named(said);
    clock->lengthened = epw_beacon_lengthened(said);
    for (unsigned l = 0; l < m->lanes; l++) {
        bool heard = clock->heard[l] != 0 && clock->heard[l] == beacons[l];
        FIELD(c, heard, 1);
        clock->heard[l] = heard ? beacons[l] : 0;
    }
}

static void peer_fields(codec *c, const model *m, epw_machine *of, epw_lane_peer *p,
                        const uint64_t *beacons) {
    FIELD(c, p->incarnation, 2);
    FIELD(c, p->member, 1);
    FIELD(c, p->sent, 1);
    FIELD(c, p->received, 1);
    FIELD(c, p->posts, 7);
    FIELD(c, p->part, 5);
    FIELD(c, p->owed, 2);
    FIELD(c, p->suspected, 1);
    FIELD(c, p->revoked, 1);
    FIELD(c, p->told, 1);
    if (!(p->posts & EPW_POST_DROPPED)) p->silent = false; /* nobody asks any more */
    FIELD(c, p->silent, 1);
    clock_field(c, m, &p->clock, of->wait.running && (p->part & EPW_PART_AWAITED), beacons);
    clock_field(c, m, &p->debt_clock, of->paying && p->owed, beacons);
    p->waited_ns = 0;
}

static void wait_field(codec *c, epw_wait *wait, bool runs) {
    if (!runs) {
        *wait = (epw_wait){.running = wait->running};
        return;
    }
    time_field(c, &wait->began);
    deadline_field(c, &wait->deadline_ns);
}

/* Drops what belongs to an operation that has ended. Nobody is awaited any more; if that is wrong, it is
 * kept. */
static void forget_operation(epw_machine *of) {
    of->first = of->receives = false;
    of->next = 0;
    of->deadline_ns = 0;
    for (uint32_t p = 0; p < of->ranks; p++) {
        epw_lane_peer *peer = &of->peers[p];
        peer->part &= EPW_PART_AWAITED | EPW_PART_READY;
        if (!(peer->posts & (EPW_POST_DISPATCH | EPW_POST_COMBINE))) peer->sent = peer->received = 0;
    }
}

static void lane_fields(codec *c, const model *m, state *s, unsigned r, unsigned l) {
    lane *at = &s->ranks[r].lanes[l];
    epw_machine *of = &at->m;
    bind(at);
    of->rank = rank_of(m, r);
    of->ranks = m->ranks;
    of->lanes = m->lanes;
    of->lane = l;
    of->group_ns = DEADLINE;
    of->record = (epw_error_record){0};
    of->copies = false;
    of->waited_till = 0;
    if (!c->unpacking && of->stage == EPW_STAGE_FREE) forget_operation(of);
    FIELD(c, of->epoch, 2);
    FIELD(c, of->step, 1);
    op_field(c, m, &of->op);
    FIELD(c, of->first, 1);
    FIELD(c, of->wrapped, 1);
    FIELD(c, of->beacon, 2);
    FIELD(c, of->beaconed, 1);
    FIELD(c, of->posts, 3);
    FIELD(c, of->post_at, 2);
    FIELD(c, of->stage, 4);
    FIELD(c, of->receives, 1);
    FIELD(c, of->next, 4);
    FIELD(c, of->wait.running, 1);
    FIELD(c, of->paying, 1);
    op_field(c, m, &of->debt_op);
    FIELD(c, of->debt_first, 1);
    FIELD(c, of->debt_more, 3);
    deadline_field(c, &of->debt_more_ns);
    deadline_field(c, &of->deadline_ns);
    if (of->spoke < NOW - 3 * UNIT) of->spoke = NOW - 3 * UNIT; /* a beacon is due after two units */
    time_field(c, &of->spoke);
    wait_field(c, &of->wait, of->wait.running);
    wait_field(c, &of->debt_wait, of->paying);
    bool saying = false;
    for (unsigned p = 0; p < m->ranks; p++) {
        uint64_t beacons[EPW_MAX_LANES];
        for (unsigned k = 0; k < m->lanes; k++) beacons[k] = word_of(s, p, r, k, EPW_WORD_BEACON);
        peer_fields(c, m, of, &at->peers[p], beacons);
        saying |= at->peers[p].posts & EPW_POST_BEACON;
    }
    if (!saying) of->said = 0;
    beacon_value_field(c, &of->said);
    FIELD(c, at->left, 4);
    FIELD(c, at->away, 4);
    FIELD(c, at->alone, 6);
    if (!m->torn) return;
    FIELD(c, at->loads, 3);
    FIELD(c, at->look_at, 2);
    /* Beacons are the last loads of a look, and so never among these. */
    for (unsigned i = 0; i < at->loads; i++) word_field(c, m, &at->loaded[i], false);
    for (unsigned i = at->loads; i < LOADS; i++) at->loaded[i] = 0;
}

/* Numbers beacons: the newest of a lane is 2, what it has posted before is 1. Readers only ask whether a
 * beacon is the one that they have heard, and the next one is another in any case. */
static void number_beacons(const model *m, state *s) {
    for (unsigned r = 0; r < actors(m); r++) {
        unsigned source = rank_of(m, r);
        for (unsigned l = 0; l < m->lanes; l++) {
            lane *at = &s->ranks[r].lanes[l];
            for (unsigned p = 0; p < m->ranks; p++) {
                if (m->replaced && s->ranks[r].routes[p] == 0)
                    continue; /* it belongs to another incarnation */
                unsigned at_whom = reader_of(m, s, r, p);
                uint64_t *word = word_at(s, source, at_whom, l, EPW_WORD_BEACON), old = *word;
                if (old == 0) continue;
                uint32_t number = at->peers[p].posts & EPW_POST_BEACON ? 1 : 2;
                *word = (old & ~(UINT64_C(0xffffff) << 17)) | (uint64_t)number << 17;
                for (unsigned k = 0; k < m->lanes; k++) {
                    epw_lane_peer *reader = &s->ranks[at_whom].lanes[k].peers[source];
                    reader->clock.heard[l] = reader->clock.heard[l] == old ? *word : 0;
                    reader->debt_clock.heard[l] = reader->debt_clock.heard[l] == old ? *word : 0;
                }
            }
            at->m.beacon = 2;
        }
    }
}

/* A word, farewell or epoch word of an earlier epoch than the reader's has the same effect as none:
 * check_old_words in model.c tests this with the real rules. Nor does it matter what lies at a rank that is
 * dead or leaves. */
static void forget_old_words(const model *m, state *s) {
    for (unsigned w = 0; w < m->ranks; w++) {
        for (unsigned r = 0; r < actors(m); r++) {
            bool dead = s->ranks[r].fate == DEAD || s->ranks[r].fate == LEAVING;
            for (unsigned l = 0; l < m->lanes; l++) {
                for (unsigned i = 0; i < sizeof words; i++) {
                    uint64_t *word = word_at(s, w, r, l, words[i]);
                    bool old = words[i] != EPW_WORD_BEACON && *word >> 41 < s->ranks[r].epoch;
                    if (dead || old) *word = 0;
                }
            }
        }
    }
}

static void state_fields(codec *c, const model *m, state *s) {
    if (!c->unpacking) {
        number_beacons(m, s);
        forget_old_words(m, s);
    }
    FIELD(c, s->timeouts, 8);
    FIELD(c, s->revokes, 2);
    for (unsigned w = 0; w < m->ranks; w++) {
        for (unsigned r = 0; r < actors(m); r++) {
            for (unsigned l = 0; l < m->lanes; l++) {
                for (unsigned i = 0; i < sizeof words; i++)
                    word_field(c, m, word_at(s, w, r, l, words[i]), words[i] == EPW_WORD_BEACON);
            }
        }
    }
    for (unsigned r = 0; r < actors(m); r++) {
        rank *me = &s->ranks[r];
        FIELD(c, me->epoch, 2);
        FIELD(c, me->fate, 2);
        FIELD(c, me->stops, 1);
        FIELD(c, me->incarnation, 2);
        FIELD(c, me->suspects, MAX_RANKS);
        FIELD(c, me->revoked, MAX_RANKS);
        for (unsigned p = 0; p < m->ranks; p++) FIELD(c, me->routes[p], 2);
        for (unsigned l = 0; l < m->lanes && me->fate != DEAD; l++) lane_fields(c, m, s, r, l);
    }
}

static codec pack(const model *m, state *s) {
    codec c;
    memset(&c, 0, sizeof c);
    state_fields(&c, m, s);
    return c;
}

static void unpack(const model *m, const uint64_t *words, unsigned count, state *s) {
    codec c;
    memset(s, 0, sizeof *s);
    memset(&c, 0, sizeof c);
    memcpy(c.words, words, count * sizeof words[0]);
    c.unpacking = true;
    state_fields(&c, m, s);
}

static uint64_t mix(uint64_t h) {
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}

static uint64_t fingerprint(const codec *c) {
    uint64_t h = UINT64_C(0x9e3779b97f4a7c15);
    for (unsigned i = 0; i * 64 < c->at; i++) h = mix(h ^ c->words[i]) + h * UINT64_C(0x2545f4914f6cdd1d);
    return mix(h) | 1; /* 0 is an empty place */
}

#endif
