/* Exploration of the rules of prefill's rings and credits: every state of small groups of ranks that dispatch
 * and combine through rings of 1 and 2 slots. c/prefill/rules.h itself runs; its caller is modelled here
 * after c/prefill/drive.c. Lanes share no ring and no word, so one lane is explored; what they do share is
 * prefill_lanes_model's matter, and what blocks of kernels share prefill_blocks_model's. Checked in every
 * state:
 *  - no slot is written before its owner has taken what lies there, or has begun the epoch;
 *  - what is taken is the message of this epoch, this operation and this number;
 *  - rows are taken only once all openings have arrived, and answers only in the order of tokens;
 *  - no message of a correct peer is judged to be nonsense;
 *  - no deadlock: as long as something is left to do, somebody can move. A rank that waits for the credit of
 *    one peer, and thereby delays others, is found this way.
 *
 * Ranks act in steps of one peer and one message, or in turns, in which a rank does at once all that it can
 * do, as the engine does. A rank that starts late, or is slow, is one whose steps come last. tests/faults
 * shows that the explorer finds planted faults.
 *
 * prefill_model         all models, in seconds
 * prefill_model NAME    one of them; prints the path to a violation */
#include "prefill/rules.h"

#include "explore.h"

enum { RANKS_MAX = 4, SLOTS_MAX = 2 };

/* Where tokens go. */
typedef enum shape {
    TO_ALL, /* each token to all other ranks */
    ROUND   /* token t of rank r to rank r + 1 + t, so that ranks wait for each other in a circle */
} shape;

typedef struct model {
    const char *name;
    unsigned ranks, slots, tokens, ops, epochs;
    shape shape;
    bool turns;    /* otherwise steps */
    bool deaths;   /* one rank may die, at any time */
    bool combines; /* begins with a combine */
} model;

/* clang-format off: a model is a line */
static const model models[] = {
    /*                  ranks, slots, tokens, ops, epochs */
    {"two", 2, 1, 2, 4, 1, TO_ALL, false, .deaths = false},
    {"two-of-2-slots", 2, 2, 3, 3, 1, TO_ALL, false, .deaths = false},
    {"two-epochs", 2, 1, 1, 2, 2, TO_ALL, false, .deaths = false},
    {"two-epochs-2-slots", 2, 2, 1, 2, 2, TO_ALL, false, .deaths = false},
    {"one-of-two-dies", 2, 1, 2, 2, 2, TO_ALL, false, .deaths = true},
    {"three-in-turns", 3, 1, 2, 4, 2, TO_ALL, true, .deaths = false},
    {"three-2-slots", 3, 2, 3, 2, 1, TO_ALL, true, .deaths = false},
    {"one-of-three-dies", 3, 1, 2, 2, 2, TO_ALL, true, .deaths = true},
    {"three-round", 3, 1, 4, 2, 1, ROUND, true, .deaths = false},
    {"four-in-turns", 4, 1, 1, 1, 1, TO_ALL, true, .deaths = false},
    {"four-2-slots", 4, 2, 1, 1, 1, TO_ALL, true, .deaths = false},
    {"four-round", 4, 1, 5, 1, 1, ROUND, true, .deaths = false},
    {"four-combine", 4, 1, 1, 1, 1, TO_ALL, true, false, .combines = true},
    {"four-combine-round", 4, 2, 3, 1, 1, ROUND, true, false, .combines = true},
};
/* clang-format on */

enum { DISPATCH = 0, COMBINE = 1, STEP = 5 };

/* A message in a slot. */
typedef struct message {
    uint8_t epoch, op, index, rows; /* index 0: the opening, which announces this many rows */
} message;

/* What `source` writes in the window of `owner`. */
typedef struct pair {
    message slots[2][SLOTS_MAX];
    uint64_t epoch_word, posted[2], taken[2];
} pair;

typedef struct peer {
    epw_stream streams[2];
    bool gone;       /* given up */
    uint8_t taken;   /* rows of the operation */
    uint8_t written; /* messages of the operation */
} peer;

typedef struct rank {
    bool dead, finished, running;
    uint64_t own_word;
    uint8_t op;    /* operations begun in this epoch */
    uint8_t token; /* combine: the first token without a sum */
    peer of[RANKS_MAX];
} rank;

typedef struct state {
    bool died;
    rank ranks[RANKS_MAX];
    pair pairs[RANKS_MAX][RANKS_MAX]; /* [source][owner] */
} state;

/* ---- what a rank does ---- */

static const model *m; /* the current one */

static unsigned epoch_of(const rank *me) {
    return epw_word_epoch(me->own_word);
}

static unsigned kind_of(const rank *me) {
    return me->op % 2 == 1 ? DISPATCH : COMBINE;
}

static bool goes_to(unsigned from, unsigned token, unsigned to) {
    return from != to && (m->shape == TO_ALL || (from + 1 + token) % m->ranks == to);
}

static unsigned tokens_to(unsigned from, unsigned to) {
    unsigned tokens = 0;
    for (unsigned t = 0; t < m->tokens; t++) tokens += goes_to(from, t, to);
    return tokens;
}

/* The rows that `from` sends `to` in an operation of this kind. */
static unsigned rows_of(unsigned kind, unsigned from, unsigned to) {
    return kind == DISPATCH ? tokens_to(from, to) : tokens_to(to, from);
}

static bool is_member(const state *s, unsigned epoch, unsigned r) {
    return epoch == 1 || !s->ranks[r].dead; /* nobody dies in the second epoch */
}

static void begin_epoch(state *s, unsigned r) {
    rank *me = &s->ranks[r];
    unsigned epoch = epoch_of(me) + 1;
    memset(me, 0, sizeof *me);
    me->own_word = epw_epoch_word(epoch, STEP);
    me->op = m->combines;
    for (unsigned p = 0; p < m->ranks; p++) {
        me->of[p].gone = !is_member(s, epoch, p);
        s->pairs[r][p].epoch_word = me->own_word;
    }
}

static void begin_op(state *s, unsigned r) {
    rank *me = &s->ranks[r];
    (void)s;
    me->op++;
    me->running = true;
    me->token = 0;
    for (unsigned p = 0; p < m->ranks; p++) {
        peer *q = &me->of[p];
        bool part = p != r && !q->gone;
        q->taken = q->written = 0;
        epw_stream_begin(&q->streams[kind_of(me)], part, 1 + rows_of(kind_of(me), r, p));
    }
}

static void look(state *s, unsigned r, unsigned p) {
    rank *me = &s->ranks[r];
    const pair *its = &s->pairs[p][r];
    epw_stream *stream = &me->of[p].streams[kind_of(me)];
    if (p == r || me->of[p].gone) return;
    epw_heard posted = epw_ring_hear_posted(&stream->ring, m->slots, its->posted[kind_of(me)], me->own_word);
    epw_heard taken = epw_ring_hear_taken(&stream->ring, its->taken[kind_of(me)], me->own_word);
    BREAKS(posted == EPW_HEARD_IMPOSSIBLE || taken == EPW_HEARD_IMPOSSIBLE,
           "a correct peer is judged faulty");
    for (unsigned kind = 0; kind < 2; kind++)
        me->of[p].streams[kind].writes = its->epoch_word == me->own_word;
}

static void write_one(state *s, unsigned r, unsigned p) {
    rank *me = &s->ranks[r];
    const rank *owner = &s->ranks[p];
    unsigned kind = kind_of(me);
    peer *q = &me->of[p];
    epw_stream *stream = &q->streams[kind];
    uint64_t number = stream->ring.written;
    const epw_row_ring *its = &owner->of[r].streams[kind].ring;
    BREAKS(!owner->dead && epoch_of(owner) != epoch_of(me),
           "a slot is written before its owner has begun the epoch");
    BREAKS(!owner->dead && number >= its->taken + m->slots, "a slot is written before it was read");
    s->pairs[r][p].slots[kind][number % m->slots] =
        (message){(uint8_t)epoch_of(me), me->op, q->written, (uint8_t)rows_of(kind, r, p)};
    q->written++;
    epw_stream_wrote(stream, 1);
}

/* Takes the next message out of the ring. */
static message take_one(state *s, unsigned r, unsigned p) {
    rank *me = &s->ranks[r];
    unsigned kind = kind_of(me);
    epw_stream *stream = &me->of[p].streams[kind];
    message said = s->pairs[p][r].slots[kind][stream->ring.taken % m->slots];
    unsigned index = stream->opened ? me->of[p].taken + 1u : 0;
    BREAKS(said.epoch != epoch_of(me) || said.op != me->op || said.index != index,
           "a message is taken that is not the next one");
    return said;
}

static bool all_opened(const rank *me) {
    epw_stream streams[RANKS_MAX];
    for (unsigned p = 0; p < m->ranks; p++) streams[p] = me->of[p].streams[kind_of(me)];
    return epw_streams_opened(streams, m->ranks);
}

static void turns_of(const rank *me, epw_turn turns[RANKS_MAX]) {
    epw_stream streams[RANKS_MAX];
    for (unsigned p = 0; p < m->ranks; p++) streams[p] = me->of[p].streams[kind_of(me)];
    memset(turns, 0, RANKS_MAX * sizeof turns[0]);
    /* As in drive.c: answers are at the front of the rings, even if openings are missing. */
    epw_streams_turn(streams, m->ranks, m->slots, kind_of(me) == COMBINE || all_opened(me), turns);
}

/* Whether all answers to the next token have arrived, or never will. */
static bool token_is_here(const rank *me, unsigned r, const epw_turn *turns) {
    for (unsigned p = 0; p < m->ranks; p++) {
        const epw_stream *stream = &me->of[p].streams[COMBINE];
        if (!goes_to(r, me->token, p) || me->of[p].gone) continue;
        if (!stream->opened || turns[p].take == 0) return false;
    }
    return true;
}

static void take_row(state *s, unsigned r, unsigned p) {
    rank *me = &s->ranks[r];
    (void)take_one(s, r, p);
    BREAKS(kind_of(me) == DISPATCH && !all_opened(me), "rows are taken before all openings have arrived");
    me->of[p].taken++;
    epw_stream_took(&me->of[p].streams[kind_of(me)], 1);
}

/* Opens, takes rows, or sums a token; in steps, only for this peer. */
static bool take(state *s, unsigned r, unsigned p) {
    rank *me = &s->ranks[r];
    epw_stream *stream = &me->of[p].streams[kind_of(me)];
    epw_turn turns[RANKS_MAX];
    if (stream->takes && !stream->opened && stream->ring.seen > stream->ring.taken) {
        message opening = take_one(s, r, p);
        stream->ring.taken++;
        epw_stream_open(stream, opening.rows);
        return true;
    }
    turns_of(me, turns);
    if (kind_of(me) == DISPATCH) {
        if (!stream->opened || turns[p].take == 0) return false;
        take_row(s, r, p);
        return true;
    }
    if (p != r || me->token == m->tokens || !token_is_here(me, r, turns)) return false;
    for (unsigned q = 0; q < m->ranks; q++)
        if (goes_to(r, me->token, q) && !me->of[q].gone) take_row(s, r, q);
    me->token++;
    return true;
}

static bool write(state *s, unsigned r, unsigned p) {
    epw_turn turns[RANKS_MAX];
    turns_of(&s->ranks[r], turns);
    if (turns[p].write == 0) return false;
    write_one(s, r, p);
    return true;
}

static bool tell(state *s, unsigned r, unsigned p, bool rests) {
    rank *me = &s->ranks[r];
    unsigned kind = kind_of(me);
    epw_row_ring *ring = &me->of[p].streams[kind].ring;
    bool told = false;
    if (me->of[p].gone || p == r) return false;
    if (epw_ring_announces(ring, m->slots, rests)) {
        s->pairs[r][p].posted[kind] = epw_count_word(me->own_word, ring->written);
        ring->announced = ring->written;
        told = true;
    }
    if (epw_ring_returns(ring, m->slots, rests)) {
        s->pairs[r][p].taken[kind] = epw_count_word(me->own_word, ring->taken);
        ring->returned = ring->taken;
        told = true;
    }
    return told;
}

static bool is_over(const rank *me, unsigned r) {
    for (unsigned p = 0; p < m->ranks; p++) {
        const epw_stream *stream = &me->of[p].streams[kind_of(me)];
        if (p != r && (stream->to_write > 0 || stream->takes)) return false;
    }
    return kind_of(me) == DISPATCH || me->token == m->tokens;
}

/* Whether the rank could write or take something with what it has seen. */
static bool is_busy(const state *s, unsigned r) {
    state copy = *s;
    const char *broken = x.broken;
    bool busy = false;
    for (unsigned p = 0; p < m->ranks && !busy; p++) busy = write(&copy, r, p) || take(&copy, r, p);
    x.broken = broken;
    return busy;
}

/* The rank begins or ends an operation or epoch, if that is due. */
static bool go_on(state *s, unsigned r) {
    rank *me = &s->ranks[r];
    if (me->own_word == 0) {
        begin_epoch(s, r);
        return true;
    }
    if (!me->running && me->op < m->ops + m->combines) {
        begin_op(s, r);
        return true;
    }
    if (!me->running && epoch_of(me) < m->epochs) {
        begin_epoch(s, r);
        return true;
    }
    if (!me->running) me->finished = true;
    return false;
}

/* All that the rank can do now, as in a turn of the engine. */
static void turn(state *s, unsigned r) {
    rank *me = &s->ranks[r];
    bool moved = false;
    if (!me->running) {
        go_on(s, r);
        return;
    }
    for (unsigned p = 0; p < m->ranks; p++) look(s, r, p);
    for (unsigned p = 0; p < m->ranks; p++)
        while (write(s, r, p)) moved = true;
    for (unsigned p = 0; p < m->ranks; p++)
        while (take(s, r, p)) moved = true;
    bool over = is_over(me, r);
    for (unsigned p = 0; p < m->ranks; p++) tell(s, r, p, over || !moved);
    if (over) me->running = false;
}

/* ---- exploring ---- */

static bool finished(const state *s) {
    for (unsigned r = 0; r < m->ranks; r++)
        if (!s->ranks[r].dead && !s->ranks[r].finished) return false;
    return true;
}

/* Whether the state has changed; then it is explored. */
static bool take_move(const state *from, const state *next, const char *what, unsigned r, unsigned p) {
    if (memcmp(from, next, sizeof *next) == 0) return false;
    move(next, what, r, p);
    return true;
}

static bool steps(const state *s, unsigned r) {
    const rank *me = &s->ranks[r];
    bool any = false;
    state next = *s;
    if (!me->running) {
        go_on(&next, r);
        return take_move(s, &next, "goes on", r, r);
    }
    for (unsigned p = 0; p < m->ranks; p++) {
        next = *s;
        look(&next, r, p);
        any |= take_move(s, &next, "looks", r, p);
        next = *s;
        if (write(&next, r, p)) any |= take_move(s, &next, "writes", r, p);
        next = *s;
        if (take(&next, r, p)) any |= take_move(s, &next, "takes", r, p);
        next = *s;
        if (tell(&next, r, p, is_over(me, r) || !is_busy(s, r))) any |= take_move(s, &next, "tells", r, p);
    }
    if (any || !is_over(me, r)) return any;
    next = *s;
    next.ranks[r].running = false;
    return take_move(s, &next, "ends the operation", r, r);
}

/* Each other rank gives up a dead rank that it waits for. */
static bool give_up(const state *s, unsigned r) {
    bool any = false;
    for (unsigned p = 0; p < m->ranks; p++) {
        if (!s->ranks[p].dead || s->ranks[r].of[p].gone || !s->ranks[r].running) continue;
        state next = *s;
        peer *q = &next.ranks[r].of[p];
        q->gone = true;
        for (unsigned kind = 0; kind < 2; kind++) epw_stream_end(&q->streams[kind]);
        any |= take_move(s, &next, "gives up", r, p);
    }
    return any;
}

static void find_moves(const void *state_) {
    const state *s = state_;
    bool any = false;
    for (unsigned r = 0; r < m->ranks && x.broken == NULL; r++) {
        if (s->ranks[r].dead) continue;
        state next = *s;
        if (m->turns) {
            turn(&next, r);
            any |= take_move(s, &next, "takes a turn", r, r);
        } else {
            any |= steps(s, r);
        }
        any |= give_up(s, r);
        if (!m->deaths || s->died || epoch_of(&s->ranks[r]) != 1) continue;
        next = *s;
        next.died = next.ranks[r].dead = true;
        /* Only in an epoch in which all ranks still are: later ones begin without it. */
        bool early = true;
        for (unsigned p = 0; p < m->ranks; p++) early &= epoch_of(&s->ranks[p]) <= 1;
        if (early) take_move(s, &next, "dies", r, r);
    }
    BREAKS(!any && !finished(s), "deadlock: nobody can move and not all is done");
}

static const char *begin(unsigned number, void *first) {
    (void)first;
    m = &models[number];
    return m->name;
}

int main(int given, char **arguments) {
    static state first;
    return explore_all("prefill_model", given, arguments, sizeof models / sizeof models[0], begin, &first,
                       sizeof first, find_moves, "rank", "peer");
}
