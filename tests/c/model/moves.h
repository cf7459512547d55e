/* All moves: those of lanes and callers, changes of membership, faults, and time.
 *
 * In models with time, ranks are prompt: a unit of time passes only when no living rank can move by itself.
 * Callers are not prompt: they may stay away for `away` units whenever it is their turn, and stopped ranks
 * for any time. */
#ifndef EPW_TESTS_MODEL_MOVES_H
#define EPW_TESTS_MODEL_MOVES_H

#include "incarnations.h"

/* ---- membership ---- */

static bool may_change(const model *m, const state *s, unsigned r) {
    const rank *me = &s->ranks[r];
    uint8_t epoch = next_epoch(m, r, me->epoch);
    if (epoch == 0) return false;
    bool owing = false;
    for (unsigned l = 0; l < m->lanes; l++) {
        const lane *at = &me->lanes[l];
        if (at->m.stage != EPW_STAGE_FREE || at->loads || at->m.posts) return false;
        owing |= at->m.paying;
    }
    if (m->replaced && epoch == m->epochs) {
        if (rank_of(m, r) == faulty(m) && me->incarnation == 1) return false;
        for (unsigned p = 0; p < m->ranks; p++) {
            if (me->routes[p] != (p == faulty(m) ? 2 : 1)) return false;
        }
    }
    if (me->epoch == 0) return true;
    for (unsigned p = 0; m->agreed && p < m->ranks; p++) {
        const rank *other = &s->ranks[p];
        if (other->fate == AWAKE && other->epoch == me->epoch && !lanes_done(m, other)) return false;
    }
    /* set_active voids debts, which alone degrades an operation that still runs elsewhere. */
    if (m->agreed) return lanes_done(m, me);
    if (!m->eager && (m->timed || m->timeouts == TIMEOUTS_NONE)) return lanes_done(m, me) && !owing;
    return m->eager || me->suspects != 0 || lanes_done(m, me);
}

static void begin_epoch(walker *w, state *s, unsigned r, uint8_t epoch) {
    const model *m = w->m;
    rank *me = &s->ranks[r];
    uint64_t incarnations[MAX_RANKS];
    epw_mask members = {{m->members[epoch]}};
    for (unsigned p = 0; p < m->ranks; p++) incarnations[p] = me->routes[p];
    me->epoch = epoch;
    me->suspects = 0;
    for (unsigned l = 0; l < m->lanes; l++) {
        lane *at = &me->lanes[l];
        bind(at);
        at->m.ranks = m->ranks;
        at->left = m->ops;
        at->away = at->alone = 0;
        epw_lane_begin_epoch(&at->m, epw_epoch_word(epoch, step_of(m, rank_of(m, r), epoch)), incarnations,
                             &members, NOW);
        settle(w, s, r, l);
    }
}

static void membership_moves(walker *w, const state *s, unsigned r) {
    if (!may_change(w->m, s, r)) return;
    state next = *s;
    begin_epoch(w, &next, r, next_epoch(w->m, r, s->ranks[r].epoch));
    emit(w, &next, "calls set_active with the next epoch", r, 0, r);
}

/* At any time a rank may be told that the group continues without another one (epw_peers_revoke). */
static void revocation_moves(walker *w, const state *s) {
    const model *m = w->m;
    for (unsigned r = 0; r < m->ranks && s->revokes > 0; r++) {
        const rank *me = &s->ranks[r];
        for (unsigned p = 0; p < m->ranks; p++) {
            if (me->fate != AWAKE || me->epoch != 1 || p == r || has(me->revoked, p)) continue;
            state next = *s;
            next.revokes--;
            next.ranks[r].suspects |= bit(p);
            next.ranks[r].revoked |= bit(p);
            w->fault = true;
            emit(w, &next, "is told to continue without", r, 0, p);
        }
    }
    w->fault = false;
}

/* ---- faults and time ---- */

static void fault_moves(walker *w, const state *s) {
    const model *m = w->m;
    unsigned x = s->ranks[faulty(m)].incarnation == 1 ? faulty(m) : former(m);
    const rank *it = &s->ranks[x];
    state next = *s;
    rank *to = &next.ranks[x];
    w->fault = true;
    if (m->fault == FAULT_CRASH && it->fate == AWAKE) {
        die(to);
        emit(w, &next, "dies", x, 0, x);
    } else if (m->fault == FAULT_STOP && it->fate == AWAKE && it->stops == 0) {
        to->fate = STOPPED;
        to->stops = 1;
        emit(w, &next, "is stopped", x, 0, x);
    } else if (m->fault == FAULT_STOP && it->fate == STOPPED) {
        to->fate = AWAKE;
        emit(w, &next, "is continued", x, 0, x);
    } else if (m->fault == FAULT_LEAVE && it->fate == AWAKE) {
        leave(m, to);
        emit(w, &next, "has its buffer destroyed", x, 0, x);
    }
    w->fault = false;
}

static void older(uint64_t *when) {
    *when -= *when > NOW - AGES * UNIT ? UNIT : 0;
}

static bool waits_for_faulty_alone(const model *m, const state *s, unsigned r, unsigned l) {
    const lane *at = &s->ranks[r].lanes[l];
    bool alone = false;
    uint32_t word;
    for (unsigned p = 0; p < m->ranks; p++) {
        if (!epw_lane_awaits(&at->m, p, &word)) continue;
        if (p != faulty(m)) return false;
        alone = s->ranks[p].fate != AWAKE;
    }
    return alone;
}

/* A unit of time passes for a lane. */
static void age_lane(walker *w, state *s, unsigned r, unsigned l) {
    const model *m = w->m;
    lane *at = &s->ranks[r].lanes[l];
    bool well = s->ranks[r].fate == AWAKE && s->ranks[r].stops == 0;
    bool waiting = at->m.wait.running || at->m.paying;
    uint64_t bound = at->m.wait.running ? at->m.wait.deadline_ns : at->m.debt_wait.deadline_ns;
    uint64_t began = at->m.wait.running ? at->m.wait.began : at->m.debt_wait.began;
    older(&at->m.spoke);
    older(&at->m.wait.began);
    older(&at->m.debt_wait.began);
    for (unsigned p = 0; p < m->ranks; p++) {
        older(&at->peers[p].clock.since);
        older(&at->peers[p].debt_clock.since);
    }
    at->alone = waiting && waits_for_faulty_alone(m, s, r, l) ? at->alone + 1 : 0;
    uint64_t age = (NOW - began) / UNIT + 1;
    if (at->alone > age) at->alone = (uint8_t)age; /* in an earlier wait */
    bool due = (callers_turn(at) && lanes_turn(m, &s->ranks[r], r, l)) || (l == 0 && may_change(m, s, r));
    if (due && s->ranks[r].fate == AWAKE) at->away++;
    if (!well || !waiting) return;
    if (at->alone * UNIT > bound) breaks(w, "a wait only for the faulty rank takes longer than its deadline");
    if (m->crossed && NOW - began > EPW_WAIT_DEADLINES_MAX * bound)
        breaks(w, "ranks wait for each other forever");
    if (m->away == 0 && m->longs == 0 && !m->crossed && NOW - began >= 2 * bound)
        breaks(w, "a wait takes longer than two deadlines");
    if (NOW - began >= (AGES - 2) * UNIT) breaks(w, "a wait takes longer than the model distinguishes");
}

static bool caller_may_stay(const model *m, const state *s, unsigned r) {
    uint8_t allowed = m->late == 0 || has(m->late, r) ? m->away : 0;
    for (unsigned l = 0; l < m->lanes; l++) {
        const lane *at = &s->ranks[r].lanes[l];
        bool due = (callers_turn(at) && lanes_turn(m, &s->ranks[r], r, l)) || (l == 0 && may_change(m, s, r));
        if (due && at->away >= allowed) return false;
    }
    return true;
}

static bool would_move(const model *m, const state *s, unsigned r, unsigned l) {
    const lane *at = &s->ranks[r].lanes[l];
    if (has_decision(at, NOW)) return true;
    for (unsigned p = 0; p < m->ranks; p++) {
        uint32_t word;
        if (p == r || !epw_lane_awaits(&at->m, p, &word)) continue;
        epw_look seen = look_at(s, r, l, p, word);
        lane copy = *at;
        bind(&copy);
        epw_lane_see(&copy.m, p, &seen, NOW);
        if (!same_peer(at, &copy, p)) return true;
    }
    return false;
}

/* A sleeping lane must have announced that it would be awake by now, if it has something to do although no
 * word has changed. */
static void check_sleepers(walker *w, const state *before, const state *after) {
    for (unsigned r = 0; r < w->m->ranks; r++) {
        for (unsigned l = 0; l < w->m->lanes; l++) {
            if (after->ranks[r].fate != AWAKE || !would_move(w->m, after, r, l)) continue;
            lane copy = before->ranks[r].lanes[l];
            bind(&copy);
            epw_decision d = epw_lane_decide(&copy.m, NOW);
            if (before->ranks[r].fate == AWAKE && (d.act != EPW_ACT_SLEEP || d.until > NOW + UNIT))
                breaks(w, "a lane sleeps past the time of its next action");
        }
    }
}

/* All that is left to do is to wait: but not for a rank that has said that it will not come. */
static void check_farewells(walker *w, const state *s, unsigned r, unsigned l) {
    const lane *at = &s->ranks[r].lanes[l];
    uint32_t word;
    for (unsigned p = 0; p < w->m->ranks; p++) {
        if (!epw_lane_awaits(&at->m, p, &word)) continue;
        if (word_of(s, p, r, l, EPW_WORD_DROPPED) >> 41 >= at->m.epoch ||
            word_of(s, p, r, l, EPW_WORD_EPOCH) >> 41 > at->m.epoch)
            breaks(w, "a lane waits for a rank that is gone and has said so");
        if (is_revoked(&s->ranks[r], p))
            breaks(w, "a lane waits for a rank that it was told to continue without");
    }
}

static void tick(walker *w, const state *s) {
    const model *m = w->m;
    bool somebody = false;
    for (unsigned r = 0; r < m->ranks; r++) {
        const rank *me = &s->ranks[r];
        if (me->fate == DEAD) continue;
        if (me->fate == AWAKE && !caller_may_stay(m, s, r)) return;
        for (unsigned l = 0; l < m->lanes; l++) {
            const lane *at = &me->lanes[l];
            somebody |= at->m.wait.running || at->m.paying || (me->fate == AWAKE && callers_turn(at));
        }
        somebody |= me->fate == AWAKE && may_change(m, s, r);
    }
    if (!somebody) return;
    state next = *s;
    bind_all(&next);
    for (unsigned r = 0; r < m->ranks; r++) {
        for (unsigned l = 0; l < m->lanes && s->ranks[r].fate != DEAD; l++) age_lane(w, &next, r, l);
    }
    for (unsigned r = 0; r < m->ranks; r++) {
        for (unsigned l = 0; l < m->lanes && s->ranks[r].fate == AWAKE; l++) check_farewells(w, s, r, l);
    }
    check_sleepers(w, s, &next);
    emit(w, &next, "a quarter of the deadline passes", MAX_RANKS, 0, 0);
}

/* ---- all ---- */

static void find_moves(walker *w, const state *s) {
    const model *m = w->m;
    w->moves = w->progress = 0;
    w->broken = NULL;
    w->fault = false;
    for (unsigned r = 0; r < actors(m); r++) {
        for (unsigned l = 0; l < m->lanes && s->ranks[r].fate == AWAKE; l++) own_moves(w, s, r, l);
        if (s->ranks[r].fate == LEAVING) leaving_moves(w, s, r);
    }
    bool still = w->progress == 0;
    for (unsigned r = 0; r < actors(m); r++) {
        if (s->ranks[r].fate != AWAKE) continue;
        membership_moves(w, s, r);
        for (unsigned l = 0; l < m->lanes; l++) callers_moves(w, s, r, l);
    }
    if (m->replaced) replacement_moves(w, s);
    if (m->timed && still) tick(w, s);
    if (m->fault != FAULT_NONE) fault_moves(w, s);
    revocation_moves(w, s);
}

/* Whether every living rank has done everything that it had to do. */
static bool finished(const model *m, const state *s) {
    /* The former incarnation, while it exists, keeps the new one out, and with it every rank that needs or
     * awaits the new one. */
    unsigned first = s->ranks[faulty(m)].incarnation == 1 ? faulty(m) : former(m);
    bool whole = m->replaced && s->ranks[first].fate == AWAKE;
    for (unsigned r = 0; r < actors(m); r++) {
        const rank *me = &s->ranks[r];
        if (me->fate == LEAVING) return false;
        if (me->fate != AWAKE || (whole && me->epoch == m->epochs)) continue;
        uint8_t epoch = next_epoch(m, r, me->epoch);
        if ((epoch != 0 && !(whole && epoch == m->epochs)) || !lanes_done(m, me)) return false;
        for (unsigned l = 0; l < m->lanes; l++) {
            if (me->lanes[l].m.paying || me->lanes[l].m.posts || me->lanes[l].loads) return false;
        }
    }
    return true;
}

/* Epoch 1 begins. With time, the ranks have yet to tell each other so; without time, they have done so, and
 * may be in the middle of it. */
static void initial_state(walker *w, state *s) {
    const model *m = w->m;
    memset(s, 0, sizeof *s);
    s->timeouts = m->timeouts;
    s->revokes = m->revokes;
    for (unsigned r = 0; r < m->ranks; r++) {
        begin_rank(m, &s->ranks[r], r, 1);
        for (unsigned p = 0; p < m->ranks; p++) s->ranks[r].routes[p] = 1;
    }
    if (m->replaced) die(&s->ranks[former(m)]);
    for (unsigned r = 0; r < m->ranks; r++) {
        begin_epoch(w, s, r, 1);
        for (unsigned l = 0; l < m->lanes && !m->timed; l++) {
            lane *at = &s->ranks[r].lanes[l];
            epw_decision d;
            while (epw_lane_post(&at->m, &d)) store(w, s, r, l, &d);
            if (m->start == 0) continue;
            at->m.op = m->start;
            for (unsigned p = 0; p < m->ranks; p++) {
                *word_at(s, r, p, l, EPW_WORD_DISPATCH) = epw_word(1, m->start, 1);
                *word_at(s, r, p, l, EPW_WORD_COMBINE) = epw_word(1, m->start, 1);
            }
        }
    }
}

#endif
