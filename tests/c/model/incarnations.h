/* Incarnations of the last rank, one after the other and for a while side by side. The holder of a window's
 * lease (c/ipc/offer.h) may write there. A new incarnation gets the lease when the former one has died, or
 * has posted its last words and unmapped the window (c/window/window.h). A former one that is slow or stopped
 * has done neither. */
#ifndef EPW_TESTS_MODEL_INCARNATIONS_H
#define EPW_TESTS_MODEL_INCARNATIONS_H

#include "lanes.h"

/* A dead rank writes nowhere any more: its leases have ended. */
static void die(rank *it) {
    uint8_t epoch = it->epoch, incarnation = it->incarnation;
    memset(it, 0, sizeof *it);
    it->epoch = epoch;
    it->incarnation = incarnation;
    it->fate = DEAD;
}

/* A rank that knows nobody, and whom nobody knows. */
static void begin_rank(const model *m, rank *me, unsigned r, uint8_t incarnation) {
    memset(me, 0, sizeof *me);
    me->incarnation = incarnation;
    me->routes[r] = incarnation;
    for (unsigned l = 0; l < m->lanes; l++) {
        lane *at = &me->lanes[l];
        bind(at);
        at->m.rank = r;
        at->m.ranks = m->ranks;
        at->m.lanes = m->lanes;
        at->m.lane = l;
        at->m.group_ns = DEADLINE;
        epw_lane_init(&at->m);
    }
}

/* Whether the last rank has died, or somebody has given it up or left it out. */
static bool unwanted(const model *m, const state *s) {
    unsigned x = faulty(m);
    bool is = s->ranks[x].fate == DEAD;
    for (unsigned r = 0; r < x; r++)
        is |= has(s->ranks[r].suspects, x) || !has(m->members[s->ranks[r].epoch], x);
    return is;
}

/* Another process takes its place, or another buffer of the same process, while the former one may live
 * on. */
static void replace(walker *w, const state *s) {
    const model *m = w->m;
    unsigned x = faulty(m), old = former(m);
    state next = *s;
    next.ranks[old] = s->ranks[x];
    for (unsigned l = 0; l < m->lanes; l++) bind(&next.ranks[old].lanes[l]);
    for (unsigned p = 0; p < m->ranks; p++) {
        memcpy(next.words[p][old], s->words[p][x], sizeof next.words[p][old]);
        memset(next.words[p][x], 0, sizeof next.words[p][x]);
    }
    begin_rank(m, &next.ranks[x], x, 2);
    emit(w, &next, "begins as another incarnation", x, 0, x);
}

/* r disconnects the former incarnation and connects the new one, while it has no operation in flight. */
static void reconnect(walker *w, const state *s, unsigned r) {
    const model *m = w->m;
    const rank *me = &s->ranks[r];
    unsigned x = faulty(m);
    bool idle = me->routes[x] != s->ranks[x].incarnation;
    for (unsigned l = 0; l < m->lanes; l++)
        idle &= me->lanes[l].m.stage == EPW_STAGE_FREE && me->lanes[l].m.posts == 0;
    if (!idle || (has(m->members[me->epoch], x) && !has(me->suspects, x))) return;
    state next = *s;
    for (unsigned l = 0; l < m->lanes; l++) {
        lane *at = &next.ranks[r].lanes[l];
        epw_decision d;
        bind(at);
        epw_lane_part_with(&at->m, x);
        while (epw_lane_post(&at->m, &d)) store(w, &next, r, l, &d);
        settle(w, &next, r, l);
    }
    next.ranks[r].routes[x] = s->ranks[x].incarnation;
    emit(w, &next, "connects the new incarnation of", r, 0, x);
}

/* The lease of a window is granted to one incarnation of a rank at a time (c/ipc/offer.h). */
static bool lease_is_free(const rank *old, unsigned r) {
    return old->routes[r] == 0;
}

static void replacement_moves(walker *w, const state *s) {
    const model *m = w->m;
    unsigned x = faulty(m);
    if (s->ranks[x].incarnation == 1) {
        if (unwanted(m, s)) replace(w, s);
        return;
    }
    for (unsigned r = 0; r < x; r++) {
        reconnect(w, s, r);
        if (s->ranks[x].routes[r] != 0 || !lease_is_free(&s->ranks[former(m)], r)) continue;
        state next = *s;
        next.ranks[x].routes[r] = s->ranks[r].incarnation;
        emit(w, &next, "takes its lease of", x, 0, r);
    }
}

/* Its buffer is destroyed, whatever its lanes are doing: they tell every peer (host_leave in
 * c/ep/host/engine.c), and do nothing else any more. */
static void leave(const model *m, rank *me) {
    me->fate = LEAVING;
    for (unsigned l = 0; l < m->lanes; l++) {
        lane *at = &me->lanes[l];
        bind(at);
        for (unsigned p = 0; p < m->ranks; p++) {
            if (p != at->m.rank) epw_lane_part_with(&at->m, p);
        }
        at->m.stage = EPW_STAGE_FREE;
        at->m.paying = at->m.wait.running = false;
    }
}

/* Its words are posted, then it unmaps one window after the other, each of which returns a lease
 * (epw_peers_destroy). */
static void leaving_moves(walker *w, const state *s, unsigned r) {
    const model *m = w->m;
    state next = *s;
    rank *me = &next.ranks[r];
    for (unsigned l = 0; l < m->lanes; l++) {
        lane *at = &me->lanes[l];
        epw_decision d;
        bind(at);
        if (!epw_lane_post(&at->m, &d)) continue;
        store(w, &next, r, l, &d);
        emit(w, &next, text_of(&d), r, l, d.peer);
        return;
    }
    for (unsigned p = 0; p < m->ranks; p++) {
        if (p == rank_of(m, r) || me->routes[p] == 0) continue;
        me->routes[p] = 0;
        emit(w, &next, "gives back its lease of", r, 0, p);
        return;
    }
    die(me);
    emit(w, &next, "is gone", r, 0, r);
}

#endif
