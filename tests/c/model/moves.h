/* Every move that a state allows, as fine as the memory operations that matter: the store of one word, the
 * look at one peer (or each of its three loads), the span in which a peer's slots are written, the span in
 * which slots are read. Follows c/ep/wait.c, dispatch.c, combine.c, release.c and buffer.c; the decisions are
 * c/peer/rules.h itself.
 *
 * More is allowed than the code does, never less: peers are looked at and posted to in any order, and a rank
 * may stop between any two moves for as long as it likes (in models without time). */
#ifndef EPW_TESTS_MODEL_MOVES_H
#define EPW_TESTS_MODEL_MOVES_H

#include "judge.h"

/* ---- stores ---- */

static void store_word(moves *out, const state *s, unsigned r, unsigned l, unsigned p) {
    static const char *const texts[] = {"", "posts its DROPPED word to",
                                        "posts a dispatch word without rows to",
                                        "posts a combine word without rows to", "posts its beacon word to"};
    const lane *at = &s->ranks[r].lanes[l];
    move *v = add_move(out, s, texts[at->storing], r, l, p);
    lane *changed = &v->s.ranks[r].lanes[l];
    line *to = &v->s.lines[r][p];
    uint8_t epoch = s->ranks[r].epoch;
    if (at->storing == STORE_DROPPED) to->dropped = epoch;
    if (at->storing == STORE_DISPATCH) to->dispatch[l] = (tag){epoch, at->debt_op, 0};
    if (at->storing == STORE_COMBINE) to->combine[l] = (tag){epoch, at->debt_op, 0};
    if (at->storing == STORE_BEACON) to->beacon[l] = (tag){epoch, at->seq, at->store_value};
    changed->store_to &= (mask)~bit(p);
    if (changed->store_to == 0) changed->storing = changed->store_value = NO_STORE;
    advance(out->m, &v->s, r, changed);
    out->progress++;
}

/* ---- what a lane can do ---- */

static void call_dispatch(moves *out, const state *s, unsigned r, unsigned l) {
    const model *m = out->m;
    move *v = add_move(out, s, "calls dispatch", r, l, r);
    lane *at = &v->s.ranks[r].lanes[l];
    mask suspects = s->ranks[r].suspects, peers = peers_of(m, s, r);
    at->op++;
    at->stage = SENDING;
    at->missing = peers & suspects;
    at->awaited = peers & (mask)~suspects;
    advance(m, &v->s, r, at);
    out->progress++;
}

static void call_combine(moves *out, const state *s, unsigned r, unsigned l) {
    const model *m = out->m;
    move *v = add_move(out, s, "calls combine and writes the combine slots at its sources", r, l, r);
    lane *at = &v->s.ranks[r].lanes[l];
    mask suspects = s->ranks[r].suspects;
    at->stage = ANSWERING;
    at->missing |= at->present & suspects;
    at->present &= (mask)~suspects;
    at->writing = at->present;
    for (unsigned p = 0; p < m->ranks; p++) {
        if (!has(at->writing & at->rows, p)) continue;
        if (reads_answer(s, p, r, l)) breaks(v, "combine slots are written while their owner reads them");
    }
    advance(m, &v->s, r, at);
    out->progress++;
}

static void call_release(moves *out, const state *s, unsigned r, unsigned l) {
    const model *m = out->m;
    move *v = add_move(out, s, "calls release", r, l, r);
    lane *at = &v->s.ranks[r].lanes[l];
    uint8_t before = at->stage;
    mask awaited = at->awaited, missing = at->missing, present = at->present;
    free_lane(at);
    if (at->paying) {
        at->more++;
    } else {
        bool owes = before != COLLECTING && m->mutation != NO_DEBT;
        if (owes) {
            owe(m, &v->s, r, at, at->op);
            at->unanswered &= (mask)~missing | present;
            at->unsent = before == SENDING ? awaited : 0;
        }
        if (at->waiting && (before == COLLECTING || m->mutation == NO_DEBT)) wait_end(m, &v->s, r, at);
        for (unsigned p = 0; at->waiting && p < MAX_RANKS; p++) {
            if (!has(awaited, p)) at->age[p] = at->heard[p] = 0;
        }
    }
    advance(m, &v->s, r, at);
}

static void answer(moves *out, const state *s, unsigned r, unsigned l, unsigned p) {
    const model *m = out->m;
    const lane *at = &s->ranks[r].lanes[l];
    move *v = add_move(out, s, "posts its combine word to", r, l, p);
    v->s.lines[r][p].combine[l] = (tag){s->ranks[r].epoch, at->op, has(at->rows, p)};
    v->s.ranks[r].lanes[l].writing &= (mask)~bit(p);
    advance(m, &v->s, r, &v->s.ranks[r].lanes[l]);
    out->progress++;
    if (!has(s->ranks[r].suspects, p)) return;
    v = add_move(out, s, "leaves out, as its other lane gave it up,", r, l, p);
    lane *changed = &v->s.ranks[r].lanes[l];
    changed->writing &= (mask)~bit(p);
    changed->present &= (mask)~bit(p);
    changed->missing |= bit(p);
    advance(m, &v->s, r, changed);
}

static void send(moves *out, const state *s, unsigned r, unsigned l, unsigned p) {
    const lane *at = &s->ranks[r].lanes[l];
    move *v = add_move(out, s, "posts its dispatch word to", r, l, p);
    lane *changed = &v->s.ranks[r].lanes[l];
    v->s.lines[r][p].dispatch[l] = (tag){s->ranks[r].epoch, at->op, 1};
    changed->writing &= (mask)~bit(p);
    changed->awaited &= (mask)~bit(p);
    advance(out->m, &v->s, r, changed);
    out->progress++;
}

static void await(moves *out, const state *s, unsigned r, unsigned l, awaiting what, mask peers) {
    const model *m = out->m;
    for (unsigned p = 0; p < m->ranks; p++) {
        if (!has(peers, p)) continue;
        if (m->mutation == RELEASE_AT_ONCE && s->ranks[r].lanes[l].paying && what == ROWS) {
            move *v = add_move(out, s, "answers unasked", r, l, p);
            arrived(v, m, r, l, what, p, (tag){0});
            out->progress++;
        } else if (m->torn) {
            load(out, s, r, l, what, p);
            out->progress += look_helps(m, s, r, l, what, p);
        } else {
            look(out, s, r, l, what, p);
            if (m->timed) judge_clock(out, s, r, l, what, p);
        }
    }
}

static void lane_moves(moves *out, const state *s, unsigned r, unsigned l) {
    const model *m = out->m;
    const lane *at = &s->ranks[r].lanes[l];
    if (at->loads > 0) {
        load(out, s, r, l, (awaiting)at->look_for, at->look_at);
        out->progress++;
        return;
    }
    if (at->storing != NO_STORE) {
        for (unsigned p = 0; p < m->ranks; p++) {
            if (has(at->store_to, p)) store_word(out, s, r, l, p);
        }
        return;
    }
    if (m->timed) beacon(out, s, r, l);
    bool callers_turn =
        at->stage == RECEIVING || at->stage == COLLECTING || (at->stage == SENDING && !at->writing);
    if (m->release && callers_turn && !(at->stage == COLLECTING && !at->awaited)) call_release(out, s, r, l);
    if (at->stage == FREE && at->op < m->ops) call_dispatch(out, s, r, l);
    if (at->paying) {
        await(out, s, r, l, PERMISSION, at->unsent);
        await(out, s, r, l, ROWS, at->unanswered);
        return;
    }
    if (at->stage == SENDING) {
        await(out, s, r, l, PERMISSION, at->awaited & (mask)~at->writing);
        for (unsigned p = 0; p < m->ranks; p++) {
            if (has(at->writing, p)) send(out, s, r, l, p);
        }
    } else if (at->stage == RECEIVING && at->awaited) {
        await(out, s, r, l, ROWS, at->awaited);
    } else if (at->stage == RECEIVING) {
        call_combine(out, s, r, l);
    } else if (at->stage == ANSWERING) {
        for (unsigned p = 0; p < m->ranks; p++) {
            if (has(at->writing, p)) answer(out, s, r, l, p);
        }
    } else if (at->stage == COLLECTING && at->awaited) {
        await(out, s, r, l, ANSWER, at->awaited);
    } else if (at->stage == COLLECTING) {
        move *v = add_move(out, s, "has summed the answers", r, l, r);
        v->s.ranks[r].lanes[l].reading = 0;
        advance(m, &v->s, r, &v->s.ranks[r].lanes[l]);
        out->progress++;
    }
}

/* ---- membership ---- */

static uint8_t next_epoch(const model *m, unsigned r, uint8_t epoch) {
    for (uint8_t e = epoch + 1; e <= m->epochs; e++) {
        if (has(m->members[e], r)) return e;
    }
    return 0;
}

static bool may_change(const model *m, const state *s, unsigned r) {
    const rank *me = &s->ranks[r];
    if (next_epoch(m, r, me->epoch) == 0) return false;
    bool owing = false;
    for (unsigned l = 0; l < m->lanes; l++) {
        const lane *at = &me->lanes[l];
        if (at->stage != FREE || lane_busy(s, r, at)) return false;
        owing |= at->paying;
    }
    for (unsigned p = 0; m->agreed && p < m->ranks; p++) {
        const rank *other = &s->ranks[p];
        if (other->asleep == AWAKE && other->epoch == me->epoch && !lanes_done(m, other)) return false;
    }
    /* set_active voids debt: alone, that degrades an operation that still runs elsewhere. */
    if (m->agreed) return lanes_done(m, me);
    if (m->timed || m->timeouts == TIMEOUTS_NONE) return lanes_done(m, me) && !owing;
    return m->eager || me->suspects != 0 || lanes_done(m, me);
}

static void membership_moves(moves *out, const state *s, unsigned r) {
    const model *m = out->m;
    if (may_change(m, s, r)) {
        move *v = add_move(out, s, "calls set_active with the next epoch", r, 0, r);
        rank *me = &v->s.ranks[r];
        me->epoch = next_epoch(m, r, me->epoch);
        me->suspects = 0;
        memset(me->lanes, 0, sizeof me->lanes);
        me->announcing = peers_of(m, &v->s, r);
        out->progress++;
    }
    for (unsigned p = 0; p < m->ranks; p++) {
        if (!has(s->ranks[r].announcing, p)) continue;
        move *v = add_move(out, s, "posts its epoch word to", r, 0, p);
        v->s.lines[r][p].epoch = s->ranks[r].epoch;
        v->s.ranks[r].announcing &= (mask)~bit(p);
        out->progress++;
    }
}

/* ---- what can be forgotten ---- */

/* Will r look at p's words again in its present epoch? */
static bool looks_again(const model *m, const state *s, unsigned r, unsigned p) {
    const rank *me = &s->ranks[r];
    if (!has(m->members[me->epoch], p)) return false;
    for (unsigned l = 0; l < m->lanes; l++) {
        const lane *at = &me->lanes[l];
        if (at->loads && at->look_at == p) return true;
        if (at->op < m->ops && !has(me->suspects, p)) return true;
        if (at->more > 0 && !has(me->suspects, p)) return true;
        if (has(at->awaited | at->unsent | at->unanswered | at->present, p)) return true;
        if (at->stage == SENDING && !has(at->missing, p)) return true;
    }
    return false;
}

static void forget_tag(tag *t, uint8_t up_to_epoch) {
    if (t->epoch <= up_to_epoch) *t = (tag){0};
}

/* Makes states equal that nobody can tell apart. A word of an epoch that its reader has left, or in which it
 * will not look at the writer again, has the effect of no word (check_old_words in model.c tries this with
 * the rules); its writer does not read it, and writes it again whole. A rank that has ended the operations of
 * its epoch needs its suspects no more: nothing but operations looks at them. */
static void forget(const model *m, state *s) {
    if (m->mutation != SOUND) return;
    for (unsigned r = 0; r < m->ranks; r++) {
        rank *me = &s->ranks[r];
        bool done = lanes_done(m, me);
        for (unsigned l = 0; l < m->lanes; l++)
            done &= !me->lanes[l].paying && me->lanes[l].storing == NO_STORE;
        if (done) me->suspects = 0;
        for (unsigned p = 0; p < m->ranks; p++) {
            line *from = &s->lines[p][r];
            uint8_t epoch = looks_again(m, s, r, p) ? me->epoch - 1 : me->epoch;
            if (me->asleep == DEAD) epoch = MAX_EPOCHS;
            if (from->epoch <= epoch) from->epoch = 0;
            if (from->dropped <= epoch) from->dropped = 0;
            for (unsigned l = 0; l < m->lanes; l++) {
                forget_tag(&from->dispatch[l], epoch);
                forget_tag(&from->combine[l], epoch);
                if (me->asleep == DEAD || from->beacon[l].value == NOBODY) from->beacon[l] = (tag){0};
            }
        }
    }
}

/* ---- all ---- */

static void fault_moves(moves *out, const state *s) {
    const model *m = out->m;
    unsigned x = faulty(m);
    uint8_t now = s->ranks[x].asleep;
    if (m->fault == FAULT_CRASH && now == AWAKE) {
        move *v = add_move(out, s, "dies", x, 0, x);
        uint8_t epoch = s->ranks[x].epoch;
        memset(&v->s.ranks[x], 0, sizeof v->s.ranks[x]);
        v->s.ranks[x].epoch = epoch;
        v->s.ranks[x].asleep = DEAD;
    } else if (m->fault == FAULT_SLEEP && now == AWAKE && s->naps == 0) {
        move *v = add_move(out, s, "is stopped", x, 0, x);
        v->s.ranks[x].asleep = ASLEEP;
        v->s.naps = 1;
    } else if (m->fault == FAULT_SLEEP && now == ASLEEP) {
        move *v = add_move(out, s, "is continued", x, 0, x);
        v->s.ranks[x].asleep = AWAKE;
    }
}

static void find_moves(const model *m, const state *s, moves *out) {
    out->m = m;
    out->count = out->progress = 0;
    for (unsigned r = 0; r < m->ranks; r++) {
        if (s->ranks[r].asleep != AWAKE) continue;
        membership_moves(out, s, r);
        for (unsigned l = 0; l < m->lanes && !s->ranks[r].announcing; l++) lane_moves(out, s, r, l);
    }
    if (m->timed && out->progress == 0) tick(out, s);
    if (m->fault != FAULT_NONE) fault_moves(out, s);
    for (unsigned i = 0; i < out->count; i++) forget(m, &out->at[i].s);
}

/* Has every living rank done all that it was to do? */
static bool finished(const model *m, const state *s) {
    for (unsigned r = 0; r < m->ranks; r++) {
        const rank *me = &s->ranks[r];
        if (me->asleep != AWAKE) continue;
        if (next_epoch(m, r, me->epoch) != 0 || me->announcing || !lanes_done(m, me)) return false;
        for (unsigned l = 0; l < m->lanes; l++) {
            if (me->lanes[l].paying || lane_busy(s, r, &me->lanes[l])) return false;
        }
    }
    return true;
}

/* With time, the ranks have still to tell each other of epoch 1; without, they have done so. */
static state initial_state(const model *m) {
    state s;
    memset(&s, 0, sizeof s);
    s.timeouts = m->timeouts;
    for (unsigned r = 0; r < m->ranks; r++) {
        s.ranks[r].epoch = 1;
        if (m->timed) s.ranks[r].announcing = peers_of(m, &s, r);
        for (unsigned p = 0; p < m->ranks; p++) {
            if (p != r) s.lines[r][p].epoch = m->timed ? 0 : 1;
        }
    }
    return s;
}

#endif
