/* The moves of a rank, after c/coll/flow.c and drive.c: each move loads or stores one word, or begins or ends
 * the access to one slot, so that the moves of others can come in between. */
#ifndef EPW_TESTS_COMM_MODEL_MOVES_H
#define EPW_TESTS_COMM_MODEL_MOVES_H

#include "state.h"

/* Generates the moves of a state: `take` is called with each following state. */
typedef struct walker {
    const model *m;
    void (*take)(struct walker *w, state *next);
    const char *what, *broken; /* the move; the property that it violates */
    unsigned rank, peer;
} walker;

static state *begin_move(walker *w, const state *s, state *next, const char *what, unsigned r, unsigned p) {
    w->what = what;
    w->broken = NULL;
    w->rank = r;
    w->peer = p;
    memcpy(next, s, sizeof *next);
    return next;
}

static void check(walker *w, bool holds, const char *broken) {
    if (!holds && w->broken == NULL) w->broken = broken;
}

static slot *slot_of(const model *m, state *s, unsigned source, unsigned owner, uint64_t number) {
    return &s->pairs[source][owner].slots[(number - 1) % m->slots];
}

static bool present(const peer *p) {
    return p->member && !p->suspected;
}

static bool over(const peer *p) {
    return p->out == 0 && p->in == 0 && !p->tells && p->hand == IDLE && !epw_ring_lends(&p->ring);
}

/* Whether the peer has been told all that it waits for. A step tells it before it decides whether its call is
 * over. */
static bool told(const model *m, const peer *p) {
    return epw_ring_to_announce(&p->ring) == 0 && epw_ring_to_give_back(&p->ring, m->slots) == 0;
}

/* ---- words ---- */

static void look(const model *m, state *s, unsigned r, unsigned q, bool at_posted) {
    rank *me = &s->ranks[r];
    peer *p = &me->of[q];
    const pair *from = &s->pairs[q][r];
    epw_sight seen = sight_of(s, q, r, at_posted ? from->posted : from->taken);
    p->begun |= epw_ring_begun(seen, me->own_word);
    epw_heard heard = at_posted ? epw_ring_hear_posted(&p->ring, seen, me->own_word, m->slots)
                                : epw_ring_hear_taken(&p->ring, seen, me->own_word);
    if (p->gone == EPW_CAUSE_NONE) p->gone = epw_rule_gone(seen, me->own_word);
    if (heard == EPW_HEARD_IMPOSSIBLE) p->gone = EPW_CAUSE_FORMAT;
}

static void lose(state *s, unsigned r, unsigned q) {
    rank *me = &s->ranks[r];
    peer *p = &me->of[q];
    p->suspected = true;
    p->out = p->in = 0;
    p->tells = false;
    p->ring.borrowed = p->ring.taken;
    s->pairs[r][q].dropped = epw_word(epoch_of(me), 0, 0);
}

static bool awaits_taken(const model *m, const peer *p) {
    return (p->out > 0 && (!p->begun || !epw_ring_has_room(&p->ring, m->slots))) || (p->tells && !p->begun) ||
           epw_ring_lends(&p->ring);
}

static void look_moves(walker *w, const state *s, unsigned r, unsigned q) {
    const peer *p = &s->ranks[r].of[q];
    state next;
    if (p->in > 0 || w->m->peeks) {
        begin_move(w, s, &next, "looks at POSTED of", r, q);
        look(w->m, &next, r, q, true);
        check(w, next.ranks[r].of[q].gone != EPW_CAUSE_FORMAT, "a correct peer is judged faulty");
        w->take(w, &next);
    }
    if (awaits_taken(w->m, p)) {
        begin_move(w, s, &next, "looks at TAKEN of", r, q);
        look(w->m, &next, r, q, false);
        check(w, next.ranks[r].of[q].gone != EPW_CAUSE_FORMAT, "a correct peer is judged faulty");
        w->take(w, &next);
    }
}

static void tell_moves(walker *w, const state *s, unsigned r, unsigned q) {
    const rank *me = &s->ranks[r];
    const peer *p = &me->of[q];
    uint64_t posted = epw_ring_to_announce(&p->ring), taken = epw_ring_to_give_back(&p->ring, w->m->slots);
    state next;
    if (posted > 0) {
        begin_move(w, s, &next, "posts POSTED to", r, q);
        next.pairs[r][q].posted = epw_epoch_word(epoch_of(me), posted);
        next.ranks[r].of[q].ring.announced = posted;
        w->take(w, &next);
    }
    if (taken > 0) {
        begin_move(w, s, &next, "posts TAKEN to", r, q);
        next.pairs[r][q].taken = epw_epoch_word(epoch_of(me), taken);
        next.ranks[r].of[q].ring.told = taken;
        next.ranks[r].of[q].ring.urgent = false;
        w->take(w, &next);
    }
}

/* ---- slots ---- */

/* What lies in the slot has been read, or never will be. */
static void check_free(walker *w, const state *s, unsigned r, unsigned q) {
    const rank *owner = &s->ranks[q];
    const peer *its = &owner->of[r];
    uint64_t number = s->ranks[r].of[q].ring.posted + 1;
    bool reads = its->hand == READING && !owner->dead &&
                 (its->ring.consumed) % w->m->slots == (number - 1) % w->m->slots;
    check(w, !reads, "a slot is written while it is read");
    bool same = epoch_of(owner) == epoch_of(&s->ranks[r]) && present(its) && !owner->dead;
    check(w, !same || number <= its->ring.consumed + w->m->slots, "a slot is written before it was read");
    check(w, epoch_of(owner) >= epoch_of(&s->ranks[r]) || owner->dead,
          "a slot of an earlier epoch is written");
}

static void write_moves(walker *w, const state *s, unsigned r, unsigned q) {
    const rank *me = &s->ranks[r];
    const peer *p = &me->of[q];
    state next;
    if (p->hand == IDLE && p->out > 0 && p->begun && p->gone == EPW_CAUSE_NONE &&
        epw_ring_has_room(&p->ring, w->m->slots)) {
        begin_move(w, s, &next, "begins to write for", r, q);
        slot *to = slot_of(w->m, &next, r, q, p->ring.posted + 1);
        check_free(w, s, r, q);
        to->torn = true;
        next.ranks[r].of[q].hand = WRITING;
        w->take(w, &next);
    }
    if (p->hand == IDLE && p->tells && (p->begun || p->gone != EPW_CAUSE_NONE)) {
        begin_move(w, s, &next, "begins to tell that it has nothing for", r, q);
        look(w->m, &next, r, q, false);
        const epw_ring *ring = &next.ranks[r].of[q].ring;
        if (p->gone != EPW_CAUSE_NONE || !epw_ring_has_room_for_nothing(ring, w->m->slots)) {
            next.ranks[r].of[q].tells = false;
        } else {
            slot *to = slot_of(w->m, &next, r, q, p->ring.posted + 1);
            check_free(w, s, r, q);
            to->torn = true;
            next.ranks[r].of[q].hand = WRITING;
        }
        w->take(w, &next);
    }
    if (p->hand == WRITING) {
        begin_move(w, s, &next, "has written for", r, q);
        peer *now = &next.ranks[r].of[q];
        slot *to = slot_of(w->m, &next, r, q, p->ring.posted + 1);
        uint32_t carry = p->tells         ? EPW_CARRY_NOTHING
                         : me->dropped    ? EPW_CARRY_VOID
                         : lends(w->m, r) ? EPW_CARRY_PULL
                                          : EPW_CARRY_INLINE;
        epw_descriptor before = descriptor_of(w->m, s, r, me->calls - 1);
        to->torn = false;
        to->epoch = epoch_of(me);
        to->message = (epw_message){.number = p->ring.posted + 1,
                                    .call = me->calls,
                                    .carry = carry,
                                    .what = descriptor_of(w->m, s, r, me->calls),
                                    .address = w->m->messages - p->out,
                                    .before = epw_brief(&before),
                                    .before_count = epw_brief_count(&before)};
        epw_ring_wrote(&now->ring, carry == EPW_CARRY_PULL);
        now->hand = IDLE;
        now->tells = false;
        if (carry != EPW_CARRY_NOTHING) now->out = carry == EPW_CARRY_VOID ? 0 : now->out - 1;
        w->take(w, &next);
    }
}

/* A rank has found a mismatch, or was told of one: this epoch is over. */
static void end_by_mismatch(const model *m, state *s, unsigned r, bool tells) {
    rank *me = &s->ranks[r];
    me->mismatched = true;
    for (unsigned q = 0; q < m->ranks; q++) {
        peer *p = &me->of[q];
        if (q == r || !present(p)) continue;
        if (tells) s->pairs[r][q].mismatch = epw_epoch_word(epoch_of(me), 1);
        s->pairs[r][q].cancelled = epw_epoch_word(epoch_of(me), EPW_STEP_MAX);
        p->out = p->in = 0;
        p->tells = false;
        p->ring.borrowed = p->ring.taken;
        p->hand = IDLE; /* it acts on one slot at a time, and was about to read */
    }
    me->running = false;
    me->memory++;
}

static void open_message(walker *w, const state *s, unsigned r, unsigned q) {
    const rank *me = &s->ranks[r];
    state next;
    begin_move(w, s, &next, "begins to read of", r, q);
    peer *p = &next.ranks[r].of[q];
    slot *from = slot_of(w->m, &next, q, r, p->ring.consumed + 1);
    epw_descriptor own = descriptor_of(w->m, s, r, me->calls), its = from->message.what;
    epw_descriptor before = descriptor_of(w->m, s, r, me->calls - 1);
    check(w, !from->torn, "a slot is read while it is written");
    memcpy(&p->ring.message, &from->message, sizeof p->ring.message);
    switch (epw_message_found(&p->ring, me->calls, &own, &before)) {
    case EPW_FOUND_LATER:
    case EPW_FOUND_NONSENSE:
        check(w, false, "a correct message is judged faulty");
        break;
    case EPW_FOUND_ANOTHER:
        check(w, w->m->astray, "ranks that make the same call are reported to differ");
        end_by_mismatch(w->m, &next, r, true);
        break;
    case EPW_FOUND_OURS:
        check(w, from->epoch == epoch_of(me), "a message of another epoch is taken in");
        check(w, from->message.call == me->calls, "a message of another call is taken in");
        check(w, epw_descriptor_equal(&own, &its), "a message of another call's arguments is taken in");
        check(w, from->message.carry == EPW_CARRY_VOID || from->message.address == w->m->messages - p->in,
              "a message is taken in out of order");
        p->hand = READING;
        p->lent = s->ranks[q].memory;
        break;
    }
    w->take(w, &next);
}

static void end_message(walker *w, const state *s, unsigned r, unsigned q) {
    const rank *me = &s->ranks[r];
    state next;
    begin_move(w, s, &next, "has read of", r, q);
    peer *p = &next.ranks[r].of[q];
    const slot *from = slot_of(w->m, &next, q, r, p->ring.consumed + 1);
    bool lent = p->ring.message.carry == EPW_CARRY_PULL, last = p->ring.message.carry == EPW_CARRY_VOID;
    check(w, memcmp(&from->message, &p->ring.message, sizeof from->message) == 0 && !from->torn,
          "a slot changes while it is read");
    if (lent) {
        epw_sight seen = sight_of(s, q, r, s->pairs[q][r].cancelled);
        if (p->gone == EPW_CAUSE_NONE) p->gone = epw_rule_gone(seen, me->own_word);
        bool used = epw_ring_still_lent(seen, me->own_word, p->ring.consumed + 1);
        check(w, !used || p->lent == s->ranks[q].memory, "memory is used that its owner has taken back");
    }
    epw_ring_consume(&p->ring);
    p->ring.message = (epw_message){0};
    p->hand = IDLE;
    p->in = last ? 0 : p->in - 1;
    w->take(w, &next);
}

/* The peer's next message says that it has nothing. False: it is of a later call, and stays. */
static bool read_nothing(walker *w, const state *s, unsigned r, unsigned q) {
    const rank *me = &s->ranks[r];
    state next;
    begin_move(w, s, &next, "takes in what it is told by", r, q);
    peer *p = &next.ranks[r].of[q];
    const slot *from = slot_of(w->m, &next, q, r, p->ring.consumed + 1);
    epw_descriptor own = descriptor_of(w->m, s, r, me->calls);
    epw_descriptor before = descriptor_of(w->m, s, r, me->calls - 1);
    check(w, !from->torn, "a slot is read while it is written");
    memcpy(&p->ring.message, &from->message, sizeof p->ring.message);
    epw_found found = epw_nothing_found(&p->ring, me->calls, &own, &before, p->in > 0);
    check(w, found != EPW_FOUND_NONSENSE, "a correct message is judged faulty");
    check(w, found != EPW_FOUND_ANOTHER || w->m->astray,
          "ranks that make the same call are reported to differ");
    check(w, found != EPW_FOUND_OURS || from->epoch == epoch_of(me),
          "a message of another epoch is taken in");
    if (found == EPW_FOUND_LATER) return false;
    if (found == EPW_FOUND_OURS) epw_ring_consume(&p->ring);
    p->ring.message = (epw_message){0};
    if (found == EPW_FOUND_ANOTHER) end_by_mismatch(w->m, &next, r, true);
    w->take(w, &next);
    return true;
}

/* The peer's next message is not expected in this call. */
static void peek(walker *w, const state *s, unsigned r, unsigned q) {
    state next;
    begin_move(w, s, &next, "peeks at what came of", r, q);
    epw_ring *ring = &next.ranks[r].of[q].ring;
    const slot *from = slot_of(w->m, &next, q, r, ring->consumed + 1);
    check(w, !from->torn, "a slot is read while it is written");
    memcpy(&ring->message, &from->message, sizeof ring->message);
    bool unexpected = epw_message_unexpected(ring, s->ranks[r].calls);
    check(w, w->m->astray || !unexpected, "ranks that make the same call are reported to differ");
    ring->message = (epw_message){0};
    if (unexpected) end_by_mismatch(w->m, &next, r, true);
    w->take(w, &next);
}

static void read_moves(walker *w, const state *s, unsigned r, unsigned q) {
    const peer *p = &s->ranks[r].of[q];
    if (p->hand == IDLE && epw_ring_may_read(&p->ring)) {
        const slot *from = &s->pairs[q][r].slots[p->ring.consumed % w->m->slots];
        if (from->message.carry == EPW_CARRY_NOTHING && read_nothing(w, s, r, q)) return;
    }
    if (w->m->peeks && p->hand == IDLE && p->in == 0 && epw_ring_may_read(&p->ring)) peek(w, s, r, q);
    if (p->hand == IDLE && p->in > 0 && epw_ring_may_read(&p->ring)) open_message(w, s, r, q);
    if (p->hand == READING) end_message(w, s, r, q);
}

/* ---- losses ---- */

static void lose_moves(walker *w, const state *s, unsigned r, unsigned q) {
    const rank *me = &s->ranks[r];
    const peer *p = &me->of[q];
    if (p->hand != IDLE || over(p)) return;
    bool owes = awaits_taken(w->m, p) || (p->in > 0 && !epw_ring_may_read(&p->ring));
    bool lost = p->gone != EPW_CAUSE_NONE && (p->out > 0 || owes) &&
                epw_ring_ended(&p->ring, p->in > 0, awaits_taken(w->m, p));
    if (!lost && !(owes && (s->ranks[q].dead || w->m->impatient))) return;
    state next;
    begin_move(w, s, &next, "gives up", r, q);
    bool why = w->m->deaths || w->m->impatient || w->m->drops || w->m->astray;
    check(w, why, "a rank that does its part is given up");
    lose(&next, r, q);
    w->take(w, &next);
}

/* ---- calls and epochs ---- */

static void begin_call(walker *w, const state *s, unsigned r) {
    state next;
    begin_move(w, s, &next, "calls", r, r);
    rank *me = &next.ranks[r];
    me->running = true;
    me->dropped = false;
    me->calls++;
    for (unsigned q = 0; q < w->m->ranks; q++) {
        peer *p = &me->of[q];
        if (q == r || !present(p)) continue;
        p->out = gives(w->m, &next, r, r, q) ? w->m->messages : 0;
        p->in = gives(w->m, &next, r, q, r) ? w->m->messages : 0;
        p->tells = count_of(w->m, &next, r, me->calls) == 0;
    }
    w->take(w, &next);
}

static void end_call(walker *w, const state *s, unsigned r) {
    bool whole = true;
    for (unsigned q = 0; q < w->m->ranks; q++) {
        const peer *p = &s->ranks[r].of[q];
        if (q != r && present(p) && !(over(p) && told(w->m, p))) return;
        whole &= q == r || present(p);
    }
    state next;
    begin_move(w, s, &next, "has done its call", r, r);
    bool led_astray = w->m->astray && w->m->shape == TO_ROOTS && epoch_of(&s->ranks[r]) == 1;
    check(w, !(led_astray && whole && r == 0 && s->ranks[r].calls == 2),
          "a rank succeeds although it has heard from all ranks after one of them called another operation");
    next.ranks[r].running = false;
    next.ranks[r].memory++;
    w->take(w, &next);
}

/* The caller takes its memory back, whatever happens to the call: see epw_comm_take_back. */
static void drop_call(walker *w, const state *s, unsigned r) {
    state next;
    begin_move(w, s, &next, "drops its call", r, r);
    rank *me = &next.ranks[r];
    for (unsigned q = 0; q < w->m->ranks; q++) {
        peer *p = &me->of[q];
        if (p->hand != IDLE) return;
        if (q == r || !present(p) || !epw_ring_lends(&p->ring)) continue;
        next.pairs[r][q].cancelled = epw_epoch_word(epoch_of(me), p->ring.posted);
        p->ring.borrowed = p->ring.taken;
    }
    me->dropped = true;
    me->memory++;
    w->take(w, &next);
}

/* The last call is done: the rank says farewell to one peer after the other. */
static void end_all(walker *w, const state *s, unsigned r) {
    const rank *me = &s->ranks[r];
    state next;
    for (unsigned q = 0; w->m->leaves && q < w->m->ranks; q++) {
        if (q == r || !present(&me->of[q]) || s->pairs[r][q].dropped != 0) continue;
        begin_move(w, s, &next, "says farewell to", r, q);
        next.pairs[r][q].dropped = epw_word(epoch_of(me), 0, 0);
        w->take(w, &next);
        return;
    }
    begin_move(w, s, &next, "has done all", r, r);
    next.ranks[r].finished = true;
    w->take(w, &next);
}

static void begin_epoch(walker *w, const state *s, unsigned r) {
    uint32_t epoch = epoch_of(&s->ranks[r]) + 1;
    state next;
    if (epoch > w->m->epochs) {
        end_all(w, s, r);
        return;
    }
    begin_move(w, s, &next, "begins an epoch", r, r);
    if (next.members[epoch] == 0)
        for (unsigned q = 0; q < w->m->ranks; q++) next.members[epoch] |= !s->ranks[q].dead ? 1u << q : 0;
    rank *me = &next.ranks[r];
    me->own_word = epw_epoch_word(epoch, STEP);
    me->calls = 0;
    me->mismatched = me->dropped = false;
    for (unsigned q = 0; q < w->m->ranks; q++) {
        epw_ring ring = epw_ring_restarted();
        peer *p = &me->of[q];
        memset(p, 0, sizeof *p);
        memcpy(&p->ring, &ring, sizeof ring);
        p->member = next.members[epoch] >> q & 1;
        if (q != r) next.pairs[r][q].epoch_word = me->own_word;
    }
    w->take(w, &next);
}

static void heed_mismatch(walker *w, const state *s, unsigned r) {
    const rank *me = &s->ranks[r];
    for (unsigned q = 0; q < w->m->ranks; q++) {
        if (q == r || !present(&me->of[q]) || epw_word_epoch(s->pairs[q][r].mismatch) != epoch_of(me))
            continue;
        for (unsigned of = 0; of < w->m->ranks; of++)
            if (me->of[of].hand != IDLE) return;
        state next;
        begin_move(w, s, &next, "is told of different calls by", r, q);
        end_by_mismatch(w->m, &next, r, false);
        w->take(w, &next);
        return;
    }
}

static void find_moves_of(walker *w, const state *s, unsigned r) {
    const rank *me = &s->ranks[r];
    if (me->dead || me->finished) return;
    if (w->m->deaths && !s->died) {
        state next;
        begin_move(w, s, &next, "dies", r, r);
        next.died = next.ranks[r].dead = true;
        w->take(w, &next);
    }
    unsigned busy = w->m->ranks; /* a rank has one thread, which finishes its access to a slot first */
    for (unsigned q = 0; q < w->m->ranks; q++)
        if (me->of[q].hand != IDLE) busy = q;
    if (busy < w->m->ranks) {
        write_moves(w, s, r, busy);
        read_moves(w, s, r, busy);
        return;
    }
    if (!me->mismatched && me->own_word != 0) heed_mismatch(w, s, r);
    for (unsigned q = 0; me->running && q < w->m->ranks; q++) {
        if (q == r || !present(&me->of[q])) continue;
        look_moves(w, s, r, q);
        tell_moves(w, s, r, q);
        write_moves(w, s, r, q);
        read_moves(w, s, r, q);
        lose_moves(w, s, r, q);
    }
    if (me->running) {
        end_call(w, s, r);
        if (w->m->drops && r == 0 && !me->dropped && epoch_of(me) == 1) drop_call(w, s, r);
    } else if (!me->mismatched && me->own_word != 0 && me->calls < w->m->calls) {
        begin_call(w, s, r);
    } else {
        begin_epoch(w, s, r);
    }
}

static void find_moves(walker *w, const state *s) {
    for (unsigned r = 0; r < w->m->ranks; r++) find_moves_of(w, s, r);
}

static bool finished(const model *m, const state *s) {
    for (unsigned r = 0; r < m->ranks; r++)
        if (!s->ranks[r].dead && !s->ranks[r].finished) return false;
    return true;
}

#endif
