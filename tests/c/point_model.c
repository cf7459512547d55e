/* Exploration of the credits of messages: every state of two ranks that send and receive, in one epoch or
 * two. c/coll/credits.h and c/coll/rules.h themselves run; the rest models c/coll/point.c. Checked in every
 * state:
 *  - each credit is somewhere: what a rank may not send yet lies in the ring, is kept, or is being reported;
 *  - no message of a correct peer is judged to be nonsense, so the owner never has to keep more than the
 *    limits;
 *  - the n-th receive of a tag has the n-th send of it, with all of its pieces in order;
 *  - nothing of another epoch is taken in;
 *  - no deadlock: as long as a call is not done, somebody can move, in whatever order the calls are made. For
 *    that, a rank whose own calls are done counts only by its words: it may not be stepped again.
 *
 * How slots are written and read is comm_model's matter: here each access to one is a single move.
 *
 * point_model         all models, in seconds
 * point_model NAME    one of them; prints the path to a violation */
#include "coll/credits.h"
#include "coll/rules.h"

#include "explore.h"

enum { MAX_CALLS = 6, MAX_SLOTS = 2, MAX_EPOCHS = 2, MAX_REPLIES = 4 };

typedef struct call {
    uint8_t kind; /* 0: no more calls */
    uint8_t tag, bytes;
} call;
#define SEND(tag, bytes)                                                                                     \
    { EPW_SEND, tag, bytes }
#define RECV(tag, bytes)                                                                                     \
    { EPW_RECV, tag, bytes }

typedef struct model {
    const char *name;
    unsigned slots, slot_bytes, epochs;
    epw_credit_limits most;
    bool waits;    /* each call of a rank begins when the one before it is done */
    bool lends;    /* what is offered is read from its source's memory */
    bool abandons; /* a rank may begin the next epoch although calls are not done */
    call calls[2][MAX_CALLS];
} model;

static const model models[] = {
    /*      slots, bytes of one, epochs, {messages, bytes} */
    {"late-receives",
     2,
     2,
     1,
     {2, 2},
     .calls = {{SEND(1, 1), SEND(1, 1), SEND(1, 1), SEND(1, 1)},
               {RECV(1, 1), RECV(1, 1), RECV(1, 1), RECV(1, 1)}}},
    {"other-order",
     1,
     1,
     1,
     {2, 1},
     .calls = {{SEND(1, 1), SEND(2, 1), SEND(1, 1)}, {RECV(2, 1), RECV(1, 1), RECV(1, 1)}}},
    {"more-than-a-slot",
     1,
     1,
     1,
     {2, 2},
     .calls = {{SEND(1, 3), SEND(2, 1), SEND(1, 2)}, {RECV(2, 1), RECV(1, 3), RECV(1, 2)}}},
    {"lent",
     1,
     1,
     1,
     {2, 1},
     .lends = true,
     .calls = {{SEND(1, 3), SEND(2, 1), SEND(1, 1)}, {RECV(2, 1), RECV(1, 3), RECV(1, 1)}}},
    {"crossing",
     1,
     1,
     1,
     {1, 1},
     .calls = {{SEND(1, 1), SEND(2, 2), RECV(3, 2), RECV(4, 1)},
               {SEND(3, 2), SEND(4, 1), RECV(1, 1), RECV(2, 2)}}},
    {"crossing-waits",
     2,
     2,
     1,
     {2, 2},
     .waits = true,
     .calls = {{SEND(1, 1), SEND(2, 1), RECV(1, 1), RECV(2, 1)},
               {SEND(1, 1), SEND(2, 1), RECV(1, 1), RECV(2, 1)}}},
    {"ping-pong",
     1,
     1,
     1,
     {1, 1},
     .waits = true,
     .calls = {{SEND(1, 1), RECV(1, 1), SEND(1, 1), RECV(1, 1)},
               {RECV(1, 1), SEND(1, 1), RECV(1, 1), SEND(1, 1)}}},
    {"epochs", 2, 1, 2, {1, 1}, .calls = {{SEND(1, 1), SEND(1, 1)}, {RECV(1, 1), RECV(1, 1)}}},
    {"abandoned",
     1,
     1,
     2,
     {2, 1},
     .abandons = true,
     .calls = {{SEND(1, 1), SEND(1, 2)}, {RECV(1, 1), RECV(1, 2)}}},
};

typedef enum stage { NOT_YET, HERE, OFFERED, ASKED, AWAITED, READ, DONE } stage;

typedef struct message {
    uint64_t number;
    uint32_t epoch, carry, offer;
    uint8_t send, bytes, piece, tag; /* number of the call; all bytes; of these, where this piece begins */
    epw_credit report;
} message;

typedef struct rank {
    bool begun, lost; /* the peer has begun the epoch; it was given up there */
    uint64_t own_word;
    epw_ring ring;
    epw_credits credits;
    uint32_t calls, offers; /* begun, made */
    struct {
        uint8_t stage, bytes, done;
        uint32_t offer;
    } of[MAX_CALLS];
    unsigned kept, replies;
    message arrivals[MAX_CALLS], reply[MAX_REPLIES];
    /* in the window of the other */
    message slots[MAX_SLOTS];
    uint64_t posted, taken;
} rank;

typedef struct state {
    rank ranks[2];
} state;

static const model *now; /* the current one */
static bool optional;    /* the moves of a rank that may never be stepped again */

static void check(bool holds, const char *broken) {
    BREAKS(!holds, broken);
}

static uint32_t epoch_of(const rank *me) {
    return epw_word_epoch(me->own_word);
}

static unsigned calls_of(unsigned r) {
    unsigned n = 0;
    while (n < MAX_CALLS && now->calls[r][n].kind != 0) n++;
    return n;
}

static bool all_done(const rank *me, unsigned r) {
    for (unsigned i = 0; i < calls_of(r); i++)
        if (me->of[i].stage != DONE) return false;
    return true;
}

/* ---- what holds in every state ---- */

static bool carries_call(const message *m) {
    return (m->carry == EPW_CARRY_INLINE && m->offer == 0) || m->carry == EPW_CARRY_OFFER ||
           m->carry == EPW_CARRY_PULL;
}

static void check_credits(const state *s, unsigned r) {
    const rank *from = &s->ranks[r], *to = &s->ranks[1 - r];
    if (from->own_word != to->own_word) return;
    epw_credit all = {to->credits.kept.messages + to->credits.matched.messages,
                      to->credits.kept.bytes + to->credits.matched.bytes};
    for (uint64_t n = to->ring.consumed; n < from->ring.posted; n++) {
        const message *m = &from->slots[n % now->slots];
        if (carries_call(m)) epw_credit_add(&all, m->carry == EPW_CARRY_INLINE ? m->bytes : 0);
    }
    for (uint64_t n = from->ring.consumed; n < to->ring.posted; n++) {
        const message *m = &to->slots[n % now->slots];
        if (m->carry != EPW_CARRY_MATCHED) continue;
        all.messages += m->report.messages;
        all.bytes += m->report.bytes;
    }
    const epw_credit *counted = &from->credits.unmatched;
    check(all.messages == counted->messages && all.bytes == counted->bytes, "credits are lost or made up");
    check(to->kept == to->credits.kept.messages && to->kept <= now->most.messages &&
              to->credits.kept.bytes <= now->most.bytes,
          "more is kept than the limits permit");
}

/* Optional moves are no progress. */
static void take(const state *next, unsigned r, const char *what) {
    bool before = optional;
    if (!optional && memcmp(next, x.at, sizeof *next) != 0) x.changes++;
    for (unsigned q = 0; q < 2; q++) check_credits(next, q);
    move(next, what, r, 0);
    optional = before;
}

/* ---- from the peer ---- */

/* The number of calls of this kind and tag before call i. */
static unsigned turn_of(unsigned r, unsigned i) {
    unsigned turn = 0;
    for (unsigned k = 0; k < i; k++)
        turn +=
            now->calls[r][k].kind == now->calls[r][i].kind && now->calls[r][k].tag == now->calls[r][i].tag;
    return turn;
}

/* The first receive with this tag that has no message; MAX_CALLS: none. */
static unsigned receive_for(const rank *me, unsigned r, uint8_t tag) {
    for (unsigned i = 0; i < me->calls; i++)
        if (now->calls[r][i].kind == EPW_RECV && me->of[i].stage == HERE && now->calls[r][i].tag == tag)
            return i;
    return MAX_CALLS;
}

static void reply_with(rank *me, uint32_t carry, uint32_t offer) {
    check(me->replies < MAX_REPLIES, "a model has too many calls");
    if (me->replies < MAX_REPLIES) me->reply[me->replies++] = (message){.carry = carry, .offer = offer};
}

static void receive(rank *me, unsigned r, unsigned i, const message *m) {
    bool eager = m->carry == EPW_CARRY_INLINE;
    epw_credits_matched(&me->credits, eager ? m->bytes : 0);
    check(m->epoch == epoch_of(me), "a message of another epoch is taken in");
    check(turn_of(r, i) == turn_of(1 - r, m->send) && m->bytes == now->calls[r][i].bytes,
          "a receive has another message");
    me->of[i].bytes = m->bytes;
    me->of[i].stage = eager ? DONE : m->carry == EPW_CARRY_OFFER ? AWAITED : READ;
    if (!eager) me->of[i].offer = m->offer;
    if (!eager) reply_with(me, m->carry == EPW_CARRY_OFFER ? EPW_CARRY_ASK : EPW_CARRY_DONE, m->offer);
}

/* The call with this offer at this stage; MAX_CALLS: none. */
static unsigned with_offer(const rank *me, stage at, uint32_t offer) {
    unsigned i = 0;
    while (i < MAX_CALLS && (me->of[i].stage != at || me->of[i].offer != offer)) i++;
    return i;
}

static bool take_in(rank *me, unsigned r, const message *m) {
    if (carries_call(m)) {
        unsigned i = receive_for(me, r, m->tag);
        if (i < MAX_CALLS) {
            receive(me, r, i, m);
            return true;
        }
        if (!epw_credits_keep(&me->credits, m->carry == EPW_CARRY_INLINE ? m->bytes : 0, now->most))
            return false;
        me->arrivals[me->kept++] = *m;
        return true;
    }
    unsigned i = with_offer(me, m->carry == EPW_CARRY_INLINE ? AWAITED : OFFERED, m->offer);
    switch (m->carry) {
    case EPW_CARRY_MATCHED:
        return epw_credits_returned(&me->credits, m->report.messages, m->report.bytes);
    case EPW_CARRY_ASK:
    case EPW_CARRY_DONE:
        if (i == MAX_CALLS) return false;
        me->of[i].stage = m->carry == EPW_CARRY_ASK ? ASKED : DONE;
        return true;
    default: /* a piece */
        if (i == MAX_CALLS || m->piece != me->of[i].done) return false;
        me->of[i].done = (uint8_t)(m->piece + m->bytes);
        if (me->of[i].done == me->of[i].bytes) me->of[i].stage = DONE;
        return me->of[i].done <= me->of[i].bytes;
    }
}

static void read_moves(const state *s, unsigned r) {
    state next = *s;
    rank *me = &next.ranks[r];
    for (unsigned k = 0; k < me->kept; k++) {
        message m = me->arrivals[k];
        unsigned i = receive_for(me, r, m.tag);
        if (i == MAX_CALLS) continue;
        memmove(&me->arrivals[k], &me->arrivals[k + 1], (me->kept - k - 1) * sizeof m);
        memset(&me->arrivals[--me->kept], 0, sizeof m);
        epw_credits_unkeep(&me->credits, m.carry == EPW_CARRY_INLINE ? m.bytes : 0);
        receive(me, r, i, &m);
        take(&next, r, "matches what it has kept");
        return; /* before anything else is read */
    }
    if (!epw_ring_may_read(&me->ring)) return;
    const message *m = &s->ranks[1 - r].slots[me->ring.consumed % now->slots];
    check(m->number == me->ring.consumed + 1 && take_in(me, r, m), "a correct message is judged faulty");
    epw_ring_consume(&me->ring);
    take(&next, r, "reads a message");
}

/* ---- to the peer ---- */

static unsigned first_at(const rank *me, unsigned r, stage at) {
    unsigned i = 0;
    while (i < MAX_CALLS && (me->of[i].stage != at || now->calls[r][i].kind != EPW_SEND)) i++;
    return i;
}

/* The next message for the peer; false: there is none. */
static bool next_message(rank *me, unsigned r, message *said) {
    if (me->replies > 0) {
        *said = me->reply[0];
        memmove(me->reply, me->reply + 1, (MAX_REPLIES - 1) * sizeof *said);
        memset(&me->reply[--me->replies], 0, sizeof *said);
        unsigned read = said->carry == EPW_CARRY_DONE ? with_offer(me, READ, said->offer) : MAX_CALLS;
        if (read < MAX_CALLS) me->of[read].stage = DONE;
        return true;
    }
    if (epw_credits_to_report(&me->credits)) {
        epw_credit report = epw_credits_report(&me->credits);
        said->carry = EPW_CARRY_MATCHED;
        said->report.messages = report.messages;
        said->report.bytes = report.bytes;
        return true;
    }
    unsigned i = first_at(me, r, ASKED);
    if (i < MAX_CALLS) {
        uint8_t left = (uint8_t)(now->calls[r][i].bytes - me->of[i].done);
        said->carry = EPW_CARRY_INLINE;
        said->offer = me->of[i].offer;
        said->piece = me->of[i].done;
        said->bytes = left < now->slot_bytes ? left : (uint8_t)now->slot_bytes;
        me->of[i].done = (uint8_t)(me->of[i].done + said->bytes);
        if (me->of[i].done == now->calls[r][i].bytes) me->of[i].stage = DONE;
        return true;
    }
    i = first_at(me, r, HERE);
    if (i == MAX_CALLS || !epw_credits_may_send(&me->credits, now->most)) return false;
    said->send = (uint8_t)i;
    said->tag = now->calls[r][i].tag;
    said->bytes = now->calls[r][i].bytes;
    bool eager = epw_credits_are_enough(&me->credits, said->bytes, now->slot_bytes, now->most);
    said->carry = eager ? EPW_CARRY_INLINE : now->lends ? EPW_CARRY_PULL : EPW_CARRY_OFFER;
    if (!eager) said->offer = me->of[i].offer = ++me->offers;
    epw_credits_sent(&me->credits, eager ? said->bytes : 0);
    me->of[i].stage = eager ? DONE : OFFERED;
    return true;
}

static void write_move(const state *s, unsigned r) {
    state next = *s;
    rank *me = &next.ranks[r];
    message said;
    memset(&said, 0, sizeof said);
    if (!me->begun || !epw_ring_has_room(&me->ring, now->slots) || !next_message(me, r, &said)) return;
    said.number = me->ring.posted + 1;
    said.epoch = epoch_of(me);
    memcpy(&me->slots[me->ring.posted % now->slots], &said, sizeof said);
    epw_ring_wrote(&me->ring, false);
    take(&next, r, "writes a message");
}

/* Whether a call of the rank is under way. */
static bool is_stepped(const rank *me) {
    for (unsigned i = 0; i < me->calls; i++)
        if (me->of[i].stage != DONE) return true;
    return false;
}

static void look_moves(const state *s, unsigned r) {
    const rank *peer = &s->ranks[1 - r];
    state next = *s;
    rank *me = &next.ranks[r];
    epw_sight seen = {.epoch_word = peer->own_word, .word = peer->posted};
    me->begun |= epw_ring_begun(seen, me->own_word);
    check(epw_ring_hear_posted(&me->ring, seen, me->own_word, now->slots) != EPW_HEARD_IMPOSSIBLE,
          "a correct peer is judged faulty");
    take(&next, r, "looks at POSTED");
    next = *s;
    seen.word = peer->taken;
    me->begun |= epw_ring_begun(seen, me->own_word);
    check(epw_ring_hear_taken(&me->ring, seen, me->own_word) != EPW_HEARD_IMPOSSIBLE,
          "a correct peer is judged faulty");
    take(&next, r, "looks at TAKEN");
}

static void post_moves(const state *s, unsigned r) {
    state next = *s;
    rank *me = &next.ranks[r];
    uint64_t posted = epw_ring_to_announce(&me->ring), taken = epw_ring_to_give_back(&me->ring, now->slots);
    if (posted > 0) {
        me->posted = epw_epoch_word(epoch_of(me), posted);
        me->ring.announced = posted;
        take(&next, r, "posts POSTED");
    }
    next = *s;
    if (taken > 0) {
        me->taken = epw_epoch_word(epoch_of(me), taken);
        me->ring.told = taken;
        take(&next, r, "posts TAKEN");
    }
}

/* ---- calls and epochs ---- */

static void begin_epoch(const state *s, unsigned r) {
    state next = *s;
    rank *me = &next.ranks[r];
    me->own_word = epw_epoch_word(epoch_of(me) + 1, 7);
    me->begun = me->lost = false;
    epw_ring ring = epw_ring_restarted();
    memcpy(&me->ring, &ring, sizeof ring);
    memset(&me->credits, 0, sizeof me->credits);
    memset(me->of, 0, sizeof me->of);
    memset(me->arrivals, 0, sizeof me->arrivals);
    memset(me->reply, 0, sizeof me->reply);
    me->calls = me->offers = me->kept = me->replies = 0;
    take(&next, r, "begins an epoch");
}

static void call_moves(const state *s, unsigned r) {
    const rank *me = &s->ranks[r];
    state next = *s;
    if (me->calls < calls_of(r) && (!now->waits || me->calls == 0 || me->of[me->calls - 1].stage == DONE)) {
        next.ranks[r].of[next.ranks[r].calls++].stage = HERE;
        take(&next, r, "calls");
    }
    if (epoch_of(me) < now->epochs && (all_done(me, r) || now->abandons)) begin_epoch(s, r);
    /* What the peer has not done before it began the next epoch, it never will. */
    epw_sight seen = {.epoch_word = s->ranks[1 - r].own_word};
    if (epw_rule_gone(seen, me->own_word) == EPW_CAUSE_NONE || all_done(me, r)) return;
    next = *s;
    next.ranks[r].lost = true;
    next.ranks[r].calls = calls_of(r);
    for (unsigned i = 0; i < calls_of(r); i++) next.ranks[r].of[i].stage = DONE;
    take(&next, r, "gives the peer up");
}

static void find_moves(const void *state_) {
    const state *s = state_;
    bool finished = true;
    optional = false;
    for (unsigned r = 0; r < 2; r++) {
        call_moves(s, r);
        if (s->ranks[r].lost) continue;
        post_moves(s, r);
        optional = !is_stepped(&s->ranks[r]);
        look_moves(s, r);
        read_moves(s, r);
        write_move(s, r);
        optional = false;
    }
    for (unsigned r = 0; r < 2; r++)
        finished &= epoch_of(&s->ranks[r]) == now->epochs && all_done(&s->ranks[r], r);
    check(x.changes > 0 || finished, "deadlock: nobody can move and not all is done");
}

static const char *begin(unsigned number, void *state_of) {
    state *first = state_of;
    now = &models[number];
    for (unsigned r = 0; r < 2; r++) first->ranks[r].own_word = epw_epoch_word(1, 7);
    return now->name;
}

int main(int given, char **arguments) {
    static state first;
    return explore_all("point_model", given, arguments, sizeof models / sizeof models[0], begin, &first,
                       sizeof first, find_moves, "rank", NULL);
}
