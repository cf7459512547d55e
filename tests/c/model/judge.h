/* What a lane does when it looks at a peer: waits, verdicts and what follows from them, beacons and clocks.
 * Follows c/ep/wait.c and the receiving sides of dispatch.c, combine.c and release.c; the decisions are
 * c/peer/rules.h itself. */
#ifndef EPW_TESTS_MODEL_JUDGE_H
#define EPW_TESTS_MODEL_JUDGE_H

#include "state.h"

enum { MAX_MOVES = 192, HALVES = 2 /* of a deadline */, NOBODY = 15 };

typedef struct move {
    state s;            /* the state it leads to */
    const char *text;   /* what happens */
    const char *broken; /* which property it breaks, or NULL */
    uint8_t rank, lane, peer;
} move;

typedef struct moves {
    const model *m;
    unsigned count;
    unsigned progress; /* those that do not depend on a caller's whim and change something */
    move at[MAX_MOVES];
} moves;

static move *add_move(moves *out, const state *s, const char *text, unsigned r, unsigned l, unsigned p) {
    move *made = &out->at[out->count < MAX_MOVES - 1 ? out->count++ : out->count];
    made->s = *s;
    made->text = text;
    made->broken = NULL;
    made->rank = (uint8_t)r;
    made->lane = (uint8_t)l;
    made->peer = (uint8_t)p;
    return made;
}

static void breaks(move *v, const char *what) {
    if (v->broken == NULL) v->broken = what;
}

/* ---- waits ---- */

static void wait_begin(const model *m, lane *at) {
    if (!m->timed) return;
    at->waiting = 1;
    at->elapsed = at->beacons = at->alone = 0;
    memset(at->age, 0, sizeof at->age);
    memset(at->heard, 0, sizeof at->heard);
}

static void wait_end(const model *m, state *s, unsigned r, lane *at) {
    if (at->beacons > 0) {
        at->store_to = peers_of(m, s, r) & (mask)~s->ranks[r].suspects;
        at->storing = at->store_to ? STORE_BEACON : NO_STORE;
        at->store_value = NOBODY;
    }
    at->waiting = at->elapsed = at->beacons = at->alone = 0;
    memset(at->age, 0, sizeof at->age);
    memset(at->heard, 0, sizeof at->heard);
}

/* ---- lanes ---- */

static void free_lane(lane *at) {
    at->stage = FREE;
    at->awaited = at->writing = at->present = at->rows = at->reading = at->missing = 0;
}

static void owe(const model *m, const state *s, unsigned r, lane *at, uint8_t op) {
    at->debt_op = op;
    at->unsent = at->unanswered = peers_of(m, s, r) & (mask)~s->ranks[r].suspects;
    at->paying = 1;
}

/* What the code does without looking at other ranks, once nothing is left to store. */
static void advance(const model *m, state *s, unsigned r, lane *at) {
    while (at->storing == NO_STORE && at->loads == 0) {
        if (at->paying) {
            if (!at->waiting) wait_begin(m, at);
            if (at->unsent | at->unanswered) return;
            wait_end(m, s, r, at);
            if (at->more > 0) {
                at->more--;
                owe(m, s, r, at, at->debt_op + 1);
            } else {
                at->paying = at->debt_op = 0;
            }
        } else if (at->stage == SENDING) {
            if (!at->waiting) wait_begin(m, at);
            if (at->awaited) return;
            wait_end(m, s, r, at);
            at->stage = RECEIVING;
            at->awaited = peers_of(m, s, r) & (mask)~at->missing;
            if (at->awaited) wait_begin(m, at);
        } else if (at->stage == RECEIVING) {
            if (at->awaited == 0 && at->waiting) wait_end(m, s, r, at);
            return;
        } else if (at->stage == ANSWERING) {
            if (at->writing) return;
            at->stage = COLLECTING;
            at->awaited = at->present;
            wait_begin(m, at);
        } else if (at->stage == COLLECTING) {
            if (at->awaited | at->reading) return;
            wait_end(m, s, r, at);
            free_lane(at);
        } else {
            return;
        }
    }
}

static bool lane_busy(const state *s, unsigned r, const lane *at) {
    return at->storing != NO_STORE || at->loads != 0 || s->ranks[r].announcing;
}

/* Has the rank ended all operations of its epoch? It may owe answers still. */
static bool lanes_done(const model *m, const rank *me) {
    for (unsigned l = 0; l < m->lanes; l++) {
        if (me->lanes[l].stage != FREE || me->lanes[l].op < m->ops) return false;
    }
    return true;
}

/* ---- judging ---- */

static void suspect(move *v, const model *m, unsigned r, lane *at, unsigned p, bool expired) {
    state *s = &v->s;
    rank *me = &s->ranks[r];
    if (has(me->suspects, p)) return;
    me->suspects |= bit(p);
    bool silent = p == faulty(m) && m->fault != FAULT_NONE;
    silent |=
        s->ranks[p].epoch > me->epoch && !has(m->members[s->ranks[p].epoch], r); /* and was not to say so */
    bool told = !lanes_done(m, me); /* else no operation is left to name anybody */
    if (m->timed && told && !silent && (expired || r != faulty(m) || m->fault != FAULT_SLEEP)) {
        breaks(v, "a rank is suspected that was neither dead nor stopped");
    }
    if (told && !expired && m->timeouts == TIMEOUTS_NONE && !m->timed && !m->eager) {
        breaks(v, "a rank is suspected without a timeout");
    }
    if (me->epoch == m->epochs && me->epoch > 1)
        breaks(v, "a rank is suspected after the change of membership");
    if (m->mutation == NO_DROPPED) return;
    if (m->lanes == 1) {
        s->lines[r][p].dropped = me->epoch; /* nobody can see the moment between */
    } else {
        at->storing = STORE_DROPPED;
        at->store_to = bit(p);
    }
}

static void lose(move *v, const model *m, unsigned r, lane *at, unsigned p, bool expired) {
    suspect(v, m, r, at, p, expired);
    if (at->paying) {
        at->unsent &= (mask)~bit(p);
        at->unanswered &= (mask)~bit(p);
    } else {
        at->missing |= bit(p);
        at->awaited &= (mask)~bit(p);
    }
}

static uint8_t judged_op(const lane *at) {
    return at->paying ? at->debt_op : at->op;
}

static epw_verdict decide(const model *m, epw_sight seen, awaiting what, uint8_t epoch, uint8_t op) {
    bool first = op == 1;
    uint32_t word_op = epw_word_op(seen.word), value = epw_word_value(seen.word);
    switch (m->mutation) {
    case NO_EPOCH_WORD:
        if (what == PERMISSION && first && epw_word_epoch(seen.epoch_word) < epoch) {
            seen.epoch_word = epw_word(epoch, 0, 0);
        }
        break;
    case NO_PERMISSION:
        if (what == PERMISSION && !first) seen.word = epw_word(epoch, op - 1u, 0);
        break;
    case RELEASE_AT_ONCE:
        break;
    case MATCH_OP_ONLY:
        seen.word = epw_word(epoch, word_op, value);
        break;
    case MATCH_EPOCH_ONLY:
        if (word_op > 0)
            seen.word = epw_word(epw_word_epoch(seen.word), what == PERMISSION ? op - 1u : op, value);
        break;
    case GONE_BEFORE_MATCH:
        if (epw_rule_gone(seen, epoch)) return EPW_GONE;
        break;
    default:
        break;
    }
    if (what == PERMISSION) return epw_rule_may_send(seen, epoch, op, first);
    return epw_rule_arrived(seen, epoch, op);
}

static tag load_word(const state *s, unsigned r, unsigned l, awaiting what, unsigned p) {
    return what == ROWS ? s->lines[p][r].dispatch[l] : s->lines[p][r].combine[l];
}

static bool exact(tag t, uint8_t epoch, uint8_t op) {
    return t.epoch == epoch && t.op == op;
}

/* The peer's word has come: what the lane does next with that peer. */
static void arrived(move *v, const model *m, unsigned r, unsigned l, awaiting what, unsigned p, tag word) {
    state *s = &v->s;
    lane *at = &s->ranks[r].lanes[l];
    uint8_t epoch = s->ranks[r].epoch;
    (void)m;
    if (at->paying) {
        mask *owed = what == PERMISSION ? &at->unsent : &at->unanswered;
        *owed &= (mask)~bit(p);
        at->storing = what == PERMISSION ? STORE_DISPATCH : STORE_COMBINE;
        at->store_to = bit(p);
    } else if (what == PERMISSION) {
        at->writing |= bit(p);
        if (holds_rows(s, p, r, l)) breaks(v, "dispatch slots are written while their owner reads them");
    } else if (what == ROWS) {
        at->awaited &= (mask)~bit(p);
        at->present |= bit(p);
        if (word.value) at->rows |= bit(p);
        if (!exact(word, epoch, at->op)) breaks(v, "rows of another operation are taken for this one's");
        if (writes(s, p, r, l, SENDING)) breaks(v, "dispatch slots are read while they are written");
    } else {
        at->awaited &= (mask)~bit(p);
        if (word.value) at->reading |= bit(p);
        if (!exact(word, epoch, at->op)) breaks(v, "answers of another operation are taken for this one's");
        if (word.value && writes(s, p, r, l, ANSWERING))
            breaks(v, "combine slots are read while they are written");
    }
}

static bool may_expire(const model *m, const state *s, unsigned r) {
    return !m->timed && s->ranks[r].epoch == 1 && s->timeouts > 0;
}

static void expire(move *v, const model *m, unsigned r, lane *at, unsigned p) {
    if (v->s.timeouts != TIMEOUTS_ANY) v->s.timeouts--;
    lose(v, m, r, at, p, true);
}

/* epw_wait_judge after the loads. */
static void judge(moves *out, const state *s, unsigned r, unsigned l, awaiting what, unsigned p,
                  epw_sight seen, tag word) {
    const model *m = out->m;
    const rank *me = &s->ranks[r];
    const lane *at = &me->lanes[l];
    epw_verdict verdict = decide(m, seen, what, me->epoch, judged_op(at));
    if (verdict == EPW_ARRIVED) {
        const char *text = at->paying           ? "may pay what it owes to"
                           : what == PERMISSION ? "has permission and writes the dispatch slots at"
                           : what == ROWS       ? "has the dispatch word of"
                                                : "has the combine word of";
        move *v = add_move(out, s, text, r, l, p);
        v->s.ranks[r].lanes[l].loads = 0;
        arrived(v, m, r, l, what, p, word);
        advance(m, &v->s, r, &v->s.ranks[r].lanes[l]);
        out->progress++;
        return;
    }
    bool gone = verdict == EPW_GONE, lost = gone || has(me->suspects, p);
    if (lost || may_expire(m, s, r)) {
        move *v = add_move(out, s,
                           gone   ? "sees that it is given up by, or left behind by,"
                           : lost ? "gives up, as its other lane did,"
                                  : "waits no longer (timeout) for",
                           r, l, p);
        lane *changed = &v->s.ranks[r].lanes[l];
        changed->loads = 0;
        if (lost) {
            lose(v, m, r, changed, p, false);
        } else {
            expire(v, m, r, changed, p);
        }
        advance(m, &v->s, r, changed);
        out->progress++;
    }
    if (!lost && at->loads > 0) { /* waiting still: the sight is forgotten */
        move *v = add_move(out, s, "sees nothing new of", r, l, p);
        v->s.ranks[r].lanes[l].loads = 0;
        out->progress++;
    }
}

static epw_sight sight_of(const line *from, tag word) {
    return (epw_sight){.dropped = epw_word(from->dropped, 0, 0),
                       .epoch_word = epw_word(from->epoch, 0, 0),
                       .word = word_of(word)};
}

/* The whole sight at once. */
static void look(moves *out, const state *s, unsigned r, unsigned l, awaiting what, unsigned p) {
    tag word = load_word(s, r, l, what, p);
    judge(out, s, r, l, what, p, sight_of(&s->lines[p][r], word), word);
}

/* Load by load. Which load is the n-th: DROPPED, epoch word, awaited word; or, mutated, the awaited word
 * first. */
static void load(moves *out, const state *s, unsigned r, unsigned l, awaiting what, unsigned p) {
    static const char *const texts[] = {"loads the DROPPED word of", "loads the epoch word of",
                                        "loads the word of"};
    static const uint8_t sound[] = {0, 1, 2}, mutated[] = {2, 0, 1};
    const model *m = out->m;
    const lane *at = &s->ranks[r].lanes[l];
    unsigned which = (m->mutation == WORD_BEFORE_GONE ? mutated : sound)[at->loads];
    state t = *s;
    lane *next = &t.ranks[r].lanes[l];
    if (which == 0) next->seen_dropped = s->lines[p][r].dropped;
    if (which == 1) next->seen_epoch = s->lines[p][r].epoch;
    if (which == 2) next->seen_word = load_word(s, r, l, what, p);
    if (at->loads < 2) {
        next->loads = at->loads + 1;
        next->look_for = (uint8_t)what;
        next->look_at = (uint8_t)p;
        add_move(out, &t, texts[which], r, l, p);
        return;
    }
    line seen = {.dropped = next->seen_dropped, .epoch = next->seen_epoch};
    tag word = next->seen_word;
    next->seen_dropped = next->seen_epoch = next->look_for = next->look_at = 0;
    next->seen_word = (tag){0};
    judge(out, &t, r, l, what, p, sight_of(&seen, word), word);
}

/* Would a look now change anything? Only to tell a rank that waits in vain from one that moves. */
static bool look_helps(const model *m, const state *s, unsigned r, unsigned l, awaiting what, unsigned p) {
    const rank *me = &s->ranks[r];
    epw_sight seen = sight_of(&s->lines[p][r], load_word(s, r, l, what, p));
    return has(me->suspects, p) || may_expire(m, s, r) ||
           decide(m, seen, what, me->epoch, judged_op(&me->lanes[l])) != EPW_WAITING;
}

/* ---- time ---- */

static bool beacon_of(const model *m, const state *s, unsigned r, unsigned p, unsigned l, uint32_t *named) {
    tag t = s->lines[p][r].beacon[l];
    uint64_t word = epw_word(t.epoch, t.op, t.value == NOBODY ? EPW_BEACON_NONE : t.value);
    uint32_t lengthened;
    return epw_rule_beacon(word, s->ranks[r].epoch, m->ranks, named, &lengthened);
}

/* The part of epw_wait_judge that concerns the clock: heed_beacons, then expiry. */
static void judge_clock(moves *out, const state *s, unsigned r, unsigned l, awaiting what, unsigned p) {
    const model *m = out->m;
    const lane *at = &s->ranks[r].lanes[l];
    epw_sight seen = sight_of(&s->lines[p][r], load_word(s, r, l, what, p));
    if (has(s->ranks[r].suspects, p) ||
        decide(m, seen, what, s->ranks[r].epoch, judged_op(at)) != EPW_WAITING)
        return;
    uint8_t heard = at->heard[p];
    bool restart = false;
    for (unsigned k = 0; k < m->lanes; k++) {
        uint32_t name;
        if (!beacon_of(m, s, r, p, k, &name)) continue;
        uint8_t word = (uint8_t)(s->lines[p][r].beacon[k].op + 1); /* its running number; 0 is none */
        if (word == heard) continue;
        heard = word;
        restart = true;
    }
    if (restart) {
        move *v = add_move(out, s, "sees the beacon of", r, l, p);
        v->s.ranks[r].lanes[l].heard[p] = heard;
        v->s.ranks[r].lanes[l].age[p] = 0;
        out->progress++;
    } else if (at->age[p] >= HALVES) {
        move *v = add_move(out, s, "has waited for a deadline for", r, l, p);
        lane *changed = &v->s.ranks[r].lanes[l];
        lose(v, m, r, changed, p, true);
        advance(m, &v->s, r, changed);
        out->progress++;
    }
}

static mask pause_awaits(const lane *at) {
    return at->paying ? at->unsent ? at->unsent : at->unanswered : at->awaited;
}

static uint8_t whom_to_name(const model *m, const state *s, unsigned r, mask awaited) {
    uint8_t fallback = NOBODY;
    for (unsigned p = 0; p < m->ranks; p++) {
        if (!has(awaited, p)) continue;
        bool silent = true;
        for (unsigned k = 0; k < m->lanes; k++) {
            uint32_t named;
            if (!beacon_of(m, s, r, p, k, &named)) continue;
            silent = false;
            if (fallback == NOBODY && named != r) fallback = (uint8_t)named;
        }
        if (silent) return (uint8_t)p;
        if (fallback == NOBODY) fallback = (uint8_t)p;
    }
    return fallback;
}

static void beacon(moves *out, const state *s, unsigned r, unsigned l) {
    const model *m = out->m;
    const lane *at = &s->ranks[r].lanes[l];
    uint64_t due = epw_rule_beacons_due(at->elapsed, HALVES);
    if (m->mutation == NO_BEACONS || !at->waiting || due <= at->beacons || pause_awaits(at) == 0) return;
    mask to = peers_of(m, s, r) & (mask)~s->ranks[r].suspects;
    move *v = add_move(out, s, "decides to post a beacon that names", r, l,
                       whom_to_name(m, s, r, pause_awaits(at)));
    lane *changed = &v->s.ranks[r].lanes[l];
    changed->beacons = (uint8_t)due;
    changed->seq = (changed->seq + 1) & 3;
    changed->storing = to ? STORE_BEACON : NO_STORE;
    changed->store_to = to;
    changed->store_value = v->peer;
    out->progress++;
}

/* Half a deadline passes. */
static void tick(moves *out, const state *s) {
    const model *m = out->m;
    move *v = NULL;
    unsigned x = faulty(m);
    for (unsigned r = 0; r < m->ranks; r++) {
        for (unsigned l = 0; l < m->lanes; l++) {
            if (!s->ranks[r].lanes[l].waiting || s->ranks[r].asleep == DEAD) continue;
            if (v == NULL) v = add_move(out, s, "half a deadline passes", MAX_RANKS, 0, 0);
            lane *at = &v->s.ranks[r].lanes[l];
            if (at->elapsed < 15) at->elapsed++;
            for (unsigned p = 0; p < m->ranks && p < MAX_RANKS; p++) { /* the second for GCC 12 */
                if (p != r && at->age[p] < HALVES) at->age[p]++;
            }
            bool alone = s->ranks[x].asleep != AWAKE && (at->awaited | at->unsent | at->unanswered) == bit(x);
            at->alone = alone ? at->alone + 1 : 0;
            if (s->ranks[r].asleep != AWAKE || (r == x && s->naps > 0)) continue;
            if (at->alone > HALVES) breaks(v, "a wait for the faulty rank alone outlasts its deadline");
            if (at->elapsed > 2 * HALVES) breaks(v, "a wait outlasts two deadlines");
        }
    }
    if (v != NULL) out->progress++;
}

#endif
