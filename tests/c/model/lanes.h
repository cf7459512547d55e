/* The moves of lanes and their callers. A lane moves as the host engine drives it (c/ep/host/drive.c): it
 * looks at a peer, or executes what its machine decides, up to the next store that others can see. Between
 * any two moves of a lane all others may move. What nobody else can see is done at once: laying out rows,
 * preparing answers, a rank's words to itself. */
#ifndef EPW_TESTS_MODEL_LANES_H
#define EPW_TESTS_MODEL_LANES_H

#include "state.h"

/* Is called with each move, and may change `next`. */
typedef struct walker walker;
struct walker {
    void (*visit)(walker *w, state *next);
    const model *m;
    /* Of the move: its rank, lane and peer, what happens, and the property that it violates. */
    unsigned rank, lane, peer;
    const char *text, *broken;
    bool fault;
    unsigned moves;    /* so far */
    unsigned progress; /* of these, the ones that are not faults */
};

static void breaks(walker *w, const char *what) {
    if (w->broken == NULL) w->broken = what;
}

/* ---- properties ---- */

static void check_slots(walker *w, const state *s) {
    const model *m = w->m;
    for (unsigned r = 0; r < actors(m); r++) {
        for (unsigned p = 0; p < m->ranks; p++) {
            unsigned me = rank_of(m, r), reader = reader_of(m, s, r, p);
            for (unsigned l = 0; l < m->lanes; l++) {
                if (p == me || s->ranks[r].fate == DEAD || s->ranks[reader].fate == DEAD) continue;
                bool rows = writes_rows(s, r, p, l), answers = writes_answers(m, s, r, p, l);
                if (rows && reads_rows(m, s, reader, me, l)) breaks(w, "rows are read and written");
                if (answers && reads_answers(s, reader, me, l)) breaks(w, "answers are read and written");
                if (r == me) continue;
                if ((rows && writes_rows(s, me, p, l)) || (answers && writes_answers(m, s, me, p, l)))
                    breaks(w, "two incarnations write the same slots");
            }
        }
    }
}

static uint8_t next_epoch(const model *m, unsigned r, uint8_t epoch) {
    if (epoch == 0) return m->epochs; /* a new incarnation */
    for (uint8_t e = epoch + 1; e <= m->epochs; e++) {
        if (has(m->members[e], rank_of(m, r))) return e;
    }
    return 0;
}

/* r gives up p because of what it has seen of p, or has not seen for too long. */
static void check_suspicion(walker *w, const state *s, unsigned r, unsigned l, unsigned p,
                            const epw_look *seen, const epw_lane_peer *after) {
    const model *m = w->m;
    const rank *me = &s->ranks[r], *it = &s->ranks[actor_of(m, s, p, me->lanes[l].peers[p].incarnation)];
    bool unwell = p == faulty(m) && (it->fate != AWAKE || it->stops > 0);
    unwell |= me->stops > 0;
    bool told = (seen->sight.dropped >> 41) >= me->epoch || (seen->sight.epoch_word >> 41) > me->epoch ||
                ((seen->sight.epoch_word >> 41) == me->epoch && at_odds(m, rank_of(m, r), p, me->epoch));
    if (after->silent == told) breaks(w, "a rank that has sent something counts as silent, or the reverse");
    if (at_odds(m, rank_of(m, r), p, me->epoch)) return;
    bool revoked = has(it->revoked, rank_of(m, r)) || has(me->revoked, p);
    if (me->epoch == 1 && revoked && told) return; /* one continues without the other, and has said so */
    bool expired = (seen->sight.dropped >> 41) < me->epoch && (seen->sight.epoch_word >> 41) <= me->epoch;
    bool moved = it->epoch > me->epoch &&
                 (!has(m->members[it->epoch], rank_of(m, r)) || lanes_done(m, me) || m->eager);
    if (me->epoch == m->epochs && me->epoch > 1 && !m->timed && !unwell)
        breaks(w, "a rank is given up after the change of membership");
    if (unwell || (moved && !expired)) return;
    if (m->crossed) return; /* callers that wait for each other are told so, see age_lane */
    if (m->timed) breaks(w, "a rank that was neither dead nor stopped is given up");
    if (!m->timed && m->timeouts == TIMEOUTS_NONE) breaks(w, "a rank is given up without a timeout");
}

/* What has arrived from p is of the operation that awaits it. */
static void check_arrival(walker *w, const state *s, unsigned r, unsigned l, unsigned p, const lane *before,
                          const lane *after, const epw_look *seen) {
    uint8_t came = after->peers[p].part & (uint8_t)~before->peers[p].part;
    if (!(came & (EPW_PART_PRESENT | EPW_PART_ANSWERED))) return;
    if (at_odds(w->m, rank_of(w->m, r), p, s->ranks[r].epoch))
        breaks(w, "a word of another step is taken for this one's");
    if (about(seen->sight.word) != about_op(&s->ranks[r].lanes[l].m))
        breaks(w, "a word of another operation is taken for this one's");
}

/* ---- executing decisions, as drive.c does ---- */

static void store(walker *w, state *s, unsigned r, unsigned l, const epw_decision *d) {
    rank *me = &s->ranks[r];
    if (me->routes[d->peer] != d->incarnation) return;
    if (d->word == EPW_WORD_DROPPED) me->suspects |= bit(d->peer);
    unsigned source = rank_of(w->m, r), reader = reader_of(w->m, s, r, d->peer);
    if (s->ranks[reader].fate == DEAD) return; /* nobody reads there */
    uint64_t *word = word_at(s, source, reader, l, d->word);
    if (word_of(s, source, reader, l, EPW_WORD_DROPPED) >> 41 >= d->value >> 41 &&
        d->word != EPW_WORD_DROPPED)
        breaks(w, "a word is written after the farewell");
    if (about(*word) == about(d->value) && d->word >= EPW_WORD_USER)
        breaks(w, "a word is written twice for one operation");
    if (*word >> 41 > d->value >> 41) breaks(w, "a former incarnation writes over a word of the new one");
    *word = d->value;
}

/* Writes rows or answers for the peer, without reading its words. */
static void write_slots(walker *w, const state *s, unsigned r, unsigned l, unsigned p) {
    unsigned source = rank_of(w->m, r), reader = reader_of(w->m, s, r, p);
    if (p == source || s->ranks[reader].fate == DEAD) return;
    if (word_of(s, source, reader, l, EPW_WORD_DROPPED) >> 41 >= s->ranks[r].epoch)
        breaks(w, "slots are written after the farewell");
    if (at_odds(w->m, source, p, s->ranks[r].epoch)) breaks(w, "slots of a rank at another step are written");
}

/* True if others can see what was done. */
static bool carry_out(walker *w, state *s, unsigned r, unsigned l, const epw_decision *d) {
    lane *at = &s->ranks[r].lanes[l];
    switch (d->act) {
    case EPW_ACT_POST:
        store(w, s, r, l, d);
        return d->peer != at->m.rank;
    case EPW_ACT_SEND:
        for (unsigned p = 0; p < w->m->ranks; p++) {
            if (at->peers[p].part & EPW_PART_READY) write_slots(w, s, r, l, p);
        }
        break;
    case EPW_ACT_ANSWER:
        write_slots(w, s, r, l, d->peer);
        break;
    default:
        break;
    }
    epw_lane_did(&at->m, *d, NOW);
    return d->act == EPW_ACT_SUM;
}

static uint64_t load_word(const void *context, uint32_t l, uint32_t word) {
    const epw_lane_words *of = context;
    return ((const uint64_t *)&of[l])[word];
}

static epw_look look_at(const state *s, unsigned r, unsigned l, unsigned p, uint32_t word) {
    epw_look seen;
    epw_look_by(load_word, s->words[p][r], s->ranks[r].lanes[l].m.lanes, l, word, &seen);
    return seen;
}

static bool same_clock(const epw_clock *a, const epw_clock *b, unsigned lanes) {
    bool same = a->since == b->since && a->named == b->named && a->lengthened == b->lengthened;
    for (unsigned l = 0; l < lanes; l++) same &= a->heard[l] == b->heard[l];
    return same;
}

/* Whether two machines know the same of a peer, except for clocks that do not run. */
static bool same_peer(const lane *one, const lane *other, unsigned p) {
    const epw_lane_peer *a = &one->peers[p], *b = &other->peers[p];
    bool running = one->m.wait.running && (a->part & EPW_PART_AWAITED), owed = one->m.paying && a->owed;
    return a->part == b->part && a->owed == b->owed && a->posts == b->posts && a->suspected == b->suspected &&
           a->received == b->received && (!running || same_clock(&a->clock, &b->clock, one->m.lanes)) &&
           (!owed || same_clock(&a->debt_clock, &b->debt_clock, one->m.lanes));
}

/* Reads the lane's own words to itself. What it has to tell itself comes first. */
static bool see_itself(walker *w, state *s, unsigned r, unsigned l) {
    lane *at = &s->ranks[r].lanes[l];
    unsigned self = at->m.rank;
    uint32_t word;
    if (at->peers[self].posts != 0 || !epw_lane_awaits(&at->m, self, &word)) return false;
    epw_look seen = look_at(s, r, l, self, word);
    lane before = *at;
    epw_lane_see(&at->m, self, &seen, NOW);
    if (at->peers[self].suspected) breaks(w, "a rank gives itself up");
    return !same_peer(&before, at, self);
}

/* Does what others cannot see, until the next step is one that they can see. */
static void settle(walker *w, state *s, unsigned r, unsigned l) {
    lane *at = &s->ranks[r].lanes[l];
    bind(at);
    for (;;) {
        see_itself(w, s, r, l);
        lane copy = *at;
        epw_decision d = epw_lane_decide(&at->m, NOW);
        if (d.act == EPW_ACT_DONE || d.act == EPW_ACT_SLEEP) {
            if (!see_itself(w, s, r, l)) return;
        } else if (d.act == EPW_ACT_LAY_OUT || (d.act == EPW_ACT_POST && d.peer == at->m.rank)) {
            carry_out(w, s, r, l, &d);
        } else {
            *at = copy;
            bind(at);
            return;
        }
    }
}

/* A lane sees at once a word that it awaits and that has arrived. This leaves out no behaviour: the word
 * stays as it is until this lane has answered, nobody else sees the look, and nothing that the peer does
 * later can undo the arrival, because a match is judged first. This does not hold for the permission to send,
 * which a farewell withdraws. */
static void see_arrivals(walker *w, state *s) {
    const model *m = w->m;
    for (unsigned r = 0; r < actors(m) && !m->torn; r++) {
        for (unsigned l = 0; l < m->lanes && s->ranks[r].fate == AWAKE; l++) {
            lane *at = &s->ranks[r].lanes[l];
            bind(at);
            if (at->m.paying || at->m.stage == EPW_STAGE_SENDING) continue;
            bool seen_some = false;
            for (unsigned p = 0; p < m->ranks; p++) {
                uint32_t word;
                if (!epw_lane_awaits(&at->m, p, &word)) continue;
                epw_look seen = look_at(s, r, l, p, word);
                lane before = *at;
                epw_lane_see(&at->m, p, &seen, NOW);
                if (at->peers[p].part & (EPW_PART_PRESENT | EPW_PART_ANSWERED) & ~before.peers[p].part) {
                    check_arrival(w, s, r, l, p, &before, at, &seen);
                    seen_some = true;
                } else {
                    *at = before;
                    bind(at);
                }
            }
            if (seen_some) settle(w, s, r, l);
        }
    }
}

/* ---- emitting ---- */

static void emit(walker *w, state *next, const char *text, unsigned r, unsigned l, unsigned p) {
    w->rank = r;
    w->lane = l;
    w->peer = p;
    w->text = text;
    see_arrivals(w, next);
    check_slots(w, next);
    w->progress += !w->fault;
    w->visit(w, next);
    w->moves++;
    w->broken = NULL;
    w->fault = false;
}

/* A move of a lane that has been applied to `next`. */
static void lane_moved(walker *w, state *next, const char *text, unsigned r, unsigned l, unsigned p) {
    settle(w, next, r, l);
    emit(w, next, text, r, l, p);
}

/* ---- a lane's own moves ---- */

static const char *text_of(const epw_decision *d) {
    static const char *const words[] = {"posts its epoch word to",    "posts DROPPED to",
                                        "posts a beacon to",          "",
                                        "posts its dispatch word to", "posts its combine word to"};
    return d->act == EPW_ACT_POST ? words[d->word] : "has summed the answers";
}

static bool has_decision(const lane *at, uint64_t now) {
    lane copy = *at;
    bind(&copy);
    epw_act act = epw_lane_decide(&copy.m, now).act;
    return act != EPW_ACT_SLEEP && act != EPW_ACT_DONE;
}

/* Executes decisions up to the first action that others can see. */
static void decide(walker *w, const state *s, unsigned r, unsigned l, uint64_t now) {
    state next = *s;
    lane *at = &next.ranks[r].lanes[l];
    bind(at);
    for (;;) {
        epw_decision d = epw_lane_decide(&at->m, now);
        if (d.act == EPW_ACT_SLEEP || d.act == EPW_ACT_DONE) {
            lane_moved(w, &next, "continues", r, l, r);
            return;
        }
        if (!carry_out(w, &next, r, l, &d)) continue;
        lane_moved(w, &next, text_of(&d), r, l, d.act == EPW_ACT_POST ? d.peer : r);
        return;
    }
}

/* The machine takes in what it has seen, if that makes a difference. */
static bool see(walker *w, const state *s, unsigned r, unsigned l, unsigned p, const epw_look *seen,
                bool late) {
    const lane *before = &s->ranks[r].lanes[l];
    lane after = *before;
    bind(&after);
    after.loads = 0;
    epw_lane_see(&after.m, p, seen, late ? LATE : NOW);
    if (same_peer(before, &after, p)) return false;
    bool given_up = after.peers[p].suspected && !before->peers[p].suspected;
    if (late && !given_up) return false; /* it would be seen in time as well */
    state next = *s;
    next.ranks[r].lanes[l] = after;
    if (given_up) check_suspicion(w, s, r, l, p, seen, &after.peers[p]);
    check_arrival(w, s, r, l, p, before, &after, seen);
    if (late && w->m->timeouts != TIMEOUTS_ANY) next.timeouts--;
    lane_moved(w, &next, late ? "has waited long enough for" : "looks at", r, l, p);
    return true;
}

static bool may_expire(const model *m, const state *s, unsigned r) {
    return !m->timed && s->timeouts > 0 && (s->ranks[r].epoch < m->epochs || m->epochs == 1);
}

static void look(walker *w, const state *s, unsigned r, unsigned l, unsigned p, uint32_t word) {
    epw_look seen = look_at(s, r, l, p, word);
    see(w, s, r, l, p, &seen, false);
    if (may_expire(w->m, s, r)) see(w, s, r, l, p, &seen, true);
}

/* The state of a torn look, which goes through epw_look_by once for each load: the values that it has loaded,
 * and what is there now. */
typedef struct torn {
    const lane *at;
    const epw_lane_words *words;
    unsigned *count; /* of loads so far */
    uint64_t *now;   /* the value of the load that is due */
} torn;

static uint64_t load_torn(const void *context, uint32_t l, uint32_t word) {
    const torn *t = context;
    unsigned i = (*t->count)++;
    if (i < t->at->loads) return t->at->loaded[i];
    uint64_t value = load_word(t->words, l, word);
    if (i == t->at->loads) *t->now = value;
    return value;
}

static void load_next(walker *w, const state *s, unsigned r, unsigned l, unsigned p, uint32_t word) {
    const lane *at = &s->ranks[r].lanes[l];
    unsigned count = 0;
    uint64_t value = 0;
    torn t = {at, s->words[p][r], &count, &value};
    epw_look seen;
    epw_look_by(load_torn, &t, w->m->lanes, l, word, &seen);
    state next = *s;
    lane *to = &next.ranks[r].lanes[l];
    if (at->loads + 1u + w->m->lanes < count) { /* beacons are loaded together with the last of the others */
        to->loaded[to->loads++] = value;
        to->look_at = (uint8_t)p;
        emit(w, &next, "loads a word of", r, l, p);
        return;
    }
    bool helps = see(w, s, r, l, p, &seen, false);
    if (may_expire(w->m, s, r)) see(w, s, r, l, p, &seen, true);
    if (helps) return;
    to->loads = to->look_at = 0;
    emit(w, &next, "sees nothing new of", r, l, p);
}

static bool is_revoked(const rank *me, unsigned p) {
    return me->epoch == 1 && has(me->revoked, p);
}

static void hear(walker *w, const state *s, unsigned r, unsigned l) {
    const rank *me = &s->ranks[r];
    bool news = false;
    for (unsigned p = 0; p < w->m->ranks; p++) {
        const epw_lane_peer *peer = &me->lanes[l].peers[p];
        news |=
            has(me->suspects, p) && peer->member && (!peer->suspected || peer->revoked != is_revoked(me, p));
    }
    if (!news) return;
    state next = *s;
    lane *at = &next.ranks[r].lanes[l];
    bind(at);
    for (unsigned p = 0; p < w->m->ranks; p++) {
        if (has(me->suspects, p)) epw_lane_hear_suspect(&at->m, p, is_revoked(me, p));
    }
    lane_moved(w, &next, "hears of a suspect of another lane", r, l, r);
}

static void own_moves(walker *w, const state *s, unsigned r, unsigned l) {
    const model *m = w->m;
    const lane *at = &s->ranks[r].lanes[l];
    uint32_t word;
    if (at->loads > 0) {
        epw_lane_awaits(&at->m, at->look_at, &word);
        load_next(w, s, r, l, at->look_at, word);
        return;
    }
    hear(w, s, r, l);
    bool decided = has_decision(at, NOW);
    if (decided) decide(w, s, r, l, NOW);
    if (!decided && m->timeouts && at->m.stage == EPW_STAGE_SENDING && has_decision(at, NOW + UNIT))
        decide(w, s, r, l, NOW + UNIT);
    for (unsigned p = 0; p < m->ranks; p++) {
        if (p == at->m.rank || !epw_lane_awaits(&at->m, p, &word)) continue;
        if (m->torn) {
            load_next(w, s, r, l, p, word);
        } else {
            look(w, s, r, l, p, word);
        }
    }
}

/* ---- its caller ---- */

static bool callers_turn(const lane *at) {
    epw_stage stage = at->m.stage;
    return (stage == EPW_STAGE_FREE && at->left > 0) || stage == EPW_STAGE_SENT ||
           stage == EPW_STAGE_DISPATCHED || stage == EPW_STAGE_ANSWERED;
}

/* Whether it is this lane's turn, in crossed models. */
static bool lanes_turn(const model *m, const rank *me, unsigned r, unsigned l) {
    if (!m->crossed) return true;
    for (unsigned k = 0; k < m->lanes; k++) {
        bool before = r == 0 ? k < l : k > l;
        if (before && (me->lanes[k].left > 0 || me->lanes[k].m.stage != EPW_STAGE_FREE)) return false;
    }
    return true;
}

static void call(walker *w, const state *s, unsigned r, unsigned l, const char *text) {
    const model *m = w->m;
    state next = *s;
    rank *me = &next.ranks[r];
    lane *at = &me->lanes[l];
    unsigned begun = m->ops - at->left + (at->m.stage == EPW_STAGE_FREE);
    bool longer = has(m->longs, r) && (!m->long_once || begun == 1);
    uint64_t deadline = longer ? LONG : DEADLINE;
    bind(at);
    at->away = 0;
    switch (at->m.stage) {
    case EPW_STAGE_FREE:
        for (unsigned p = 0; p < m->ranks; p++) {
            if (has(me->suspects, p)) epw_lane_hear_suspect(&at->m, p, is_revoked(me, p));
        }
        epw_lane_begin_dispatch(&at->m, deadline, !m->split, NOW);
        for (unsigned p = 0; p < m->ranks; p++) at->peers[p].sent = epw_lane_has(&at->m, p, EPW_PART_AWAITED);
        at->left--;
        break;
    case EPW_STAGE_SENT:
        epw_lane_begin_receive(&at->m, NOW);
        break;
    case EPW_STAGE_DISPATCHED:
        epw_lane_begin_combine(&at->m, deadline, EPW_COMBINE_RANK_REDUCED, !m->split);
        break;
    default:
        epw_lane_begin_collect(&at->m, NOW);
    }
    lane_moved(w, &next, text, r, l, r);
}

static void callers_moves(walker *w, const state *s, unsigned r, unsigned l) {
    static const char *const texts[] = {[EPW_STAGE_FREE] = "dispatches",
                                        [EPW_STAGE_SENT] = "receives",
                                        [EPW_STAGE_DISPATCHED] = "combines",
                                        [EPW_STAGE_ANSWERED] = "receives the answers"};
    const model *m = w->m;
    const lane *at = &s->ranks[r].lanes[l];
    epw_stage stage = at->m.stage;
    if (at->loads > 0 || at->m.posts > 0) return;
    if (callers_turn(at) && lanes_turn(m, &s->ranks[r], r, l)) call(w, s, r, l, texts[stage]);
    if (m->events && !at->m.wait.running && (stage == EPW_STAGE_SENT || stage == EPW_STAGE_ANSWERED)) {
        state next = *s;
        lane *to = &next.ranks[r].lanes[l];
        bind(to);
        epw_lane_begin_wait(&to->m, NOW);
        lane_moved(w, &next, "awaits an event", r, l, r);
    }
    if (m->release && stage != EPW_STAGE_FREE && !has_decision(at, NOW)) {
        state next = *s;
        lane *to = &next.ranks[r].lanes[l];
        bind(to);
        to->away = 0;
        epw_lane_give_up(&to->m, NOW);
        lane_moved(w, &next, "releases the operation", r, l, r);
    }
}

#endif
