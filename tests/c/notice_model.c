/* Exploration of notices, by which all ranks of a communicator on GPUs learn that the calls of two of them
 * differ: every state of 2 to 4 ranks that exchange uneven blocks, in one epoch or two. A kernel of one block
 * is modelled here after open(), await_peer(), heed_notice(), stop() and tell_end() in
 * kernels/coll/operation.cuh and agree_on_sizes() in kernels/coll/blocks.cuh. A rank has a thread for each
 * peer that it waits for. In some epochs two ranks call an operation with sizes that differ. Checked in every
 * state:
 *  - no deadlock: as long as a rank waits, somebody can move, though those that have stopped say nothing more
 *    than their notice;
 *  - a rank stops only if sizes differ in its epoch, and with the whole notice of one rank: a notice that is
 *    being written, or is of another epoch, is not believed;
 *  - it does not stop in an operation for which the peer that it waits for has sent everything;
 *  - what a rank takes is of its own epoch and operation, and nothing is overwritten before it was taken;
 *  - both ranks that differ stop in that operation, and nobody ends a later one with all its bytes.
 *
 * A *watched* rank acts in the smallest steps that others can tell apart: each word that it writes for a
 * peer, and each load of a look. Other ranks write and look at once. tests/faults shows that the explorer
 * finds planted faults.
 *
 * notice_model         all models, in seconds
 * notice_model NAME    one of them; prints the path to a violation */
#include "explore.h"

#include <stdbool.h>
#include <stdint.h>

enum { RANKS_MAX = 4, EPOCHS_MAX = 2, WORDS = 2, TAG = WORDS, PUTS = WORDS + 2 };

/* Which ranks have bytes for each other. */
typedef enum shape { ALL, RING, PAIRS, NONE } shape;

/* Two ranks whose sizes differ. */
typedef struct differing {
    uint8_t op, first, second; /* op 0: none do */
} differing;

typedef struct model {
    const char *name;
    unsigned ranks, ops, epochs;
    shape shape;
    unsigned watched; /* bit r: rank r */
    differing differ[EPOCHS_MAX];
} model;

/* clang-format off: a model is a line */
static const model models[] = {
    /*            ranks, ops, epochs */
    {"two", 2, 2, 1, ALL, .watched = 3, {{1, 0, 1}}},
    {"two-epochs", 2, 2, 2, ALL, .watched = 3, {{1, 0, 1}, {2, 0, 1}}},
    {"two-agree-later", 2, 2, 2, ALL, .watched = 3, {{2, 0, 1}}},
    {"three", 3, 2, 1, ALL, .watched = 7, {{1, 0, 1}}},
    {"three-one-apart", 3, 3, 1, PAIRS, .watched = 7, {{1, 0, 1}}},
    {"three-late", 3, 3, 1, RING, .watched = 7, {{2, 0, 1}}},
    {"three-epochs", 3, 1, 2, ALL, .watched = 6, {{1, 0, 1}, {1, 1, 2}}},
    {"four-ring", 4, 2, 1, RING, .watched = 12, {{1, 0, 1}}},
    {"four-pairs", 4, 2, 1, PAIRS, .watched = 12, {{1, 0, 1}}},
    {"four-nothing-to-move", 4, 3, 1, NONE, .watched = 6, {{1, 0, 1}}},
    {"four-agree", 4, 2, 1, RING, .watched = 3, {{0}}},
};
/* clang-format on */

typedef struct packet {
    uint8_t epoch, op, data;
} packet;

/* What `source` writes in the window of `owner`. Packets by the parity of the operation. */
typedef struct window {
    packet sizes[2], bytes[2];
    uint8_t epoch;
    uint8_t notice[WORDS + 1]; /* the tag last: its epoch and operation, 0 while it is taken back */
} window;

/* Where a rank is in its kernel. */
typedef enum place {
    RESTS,  /* between kernels */
    GREETS, /* waits for the epoch words: only the first operation */
    SENDS,  /* writes its sizes for rank `next` */
    AGREES, /* waits for the sizes */
    MOVES,  /* writes bytes for rank `next` */
    TAKES,  /* waits for the bytes */
    TELLS   /* it has stopped, and writes its notice: put `next` / ranks for peer `next` % ranks */
} place;

/* The thread that waits for a peer. */
typedef enum sight { LOOKS, HAS_TAG, HEEDS } sight;
typedef struct thread {
    uint8_t sight, tag, word;
    uint8_t read[WORDS];
    bool has; /* what it waits for has come */
} thread;

typedef struct rank {
    uint8_t epoch, op, at, next;
    uint8_t halted;       /* the operation in which it has stopped, in this epoch */
    uint8_t found[WORDS]; /* which ranks, as the notice says */
    thread of[RANKS_MAX];
} rank;

typedef struct state {
    rank ranks[RANKS_MAX];
    window windows[RANKS_MAX][RANKS_MAX]; /* [source][owner] */
} state;

static const model *m;

static bool is_watched(unsigned r) {
    return m->watched >> r & 1;
}

static uint8_t tag_of(unsigned epoch, unsigned op) {
    return (uint8_t)(epoch << 4 | op);
}

/* ---- what ranks call ---- */

static const differing *differing_in(unsigned epoch) {
    return &m->differ[epoch - 1];
}

static bool gives_bytes(unsigned r, unsigned p) {
    switch (m->shape) {
    case ALL:
        return true;
    case RING:
        return (r + 1) % m->ranks == p || (p + 1) % m->ranks == r;
    case PAIRS:
        return (r ^ 1) == p;
    default:
        return false;
    }
}

/* What `r` says of the size of what it exchanges with `p`. */
static uint8_t size_of(const rank *me, unsigned r, unsigned p) {
    const differing *d = differing_in(me->epoch);
    return d->op == me->op && r == d->first && p == d->second ? 2 : 1;
}

/* ---- writing ---- */

static void put_sizes(state *s, unsigned r, unsigned p) {
    const rank *me = &s->ranks[r], *owner = &s->ranks[p];
    packet *to = &s->windows[r][p].sizes[me->op & 1];
    bool waits = owner->epoch == me->epoch && owner->op == to->op && to->epoch == me->epoch && owner->op > 0;
    BREAKS(waits && owner->at == AGREES && !owner->of[r].has && owner->halted == 0, "sizes are overwritten");
    *to = (packet){me->epoch, me->op, size_of(me, r, p)};
}

static void put_bytes(state *s, unsigned r, unsigned p) {
    const rank *me = &s->ranks[r], *owner = &s->ranks[p];
    packet *to = &s->windows[r][p].bytes[me->op & 1];
    bool waits = owner->epoch == me->epoch && owner->op == to->op && to->epoch == me->epoch && owner->op > 0;
    BREAKS(waits && owner->at <= TAKES && owner->at >= SENDS && !(owner->at == TAKES && owner->of[r].has) &&
               owner->halted == 0,
           "bytes are overwritten");
    *to = (packet){me->epoch, me->op, 1};
}

/* Put `number` of a notice: the tag is taken back, then the words, then the tag. */
static void put_notice(state *s, unsigned r, unsigned p, unsigned number) {
    const rank *me = &s->ranks[r];
    uint8_t *to = s->windows[r][p].notice;
    if (number == 0) {
        to[TAG] = 0;
    } else if (number <= WORDS) {
        to[number - 1] = me->found[number - 1];
    } else {
        to[TAG] = tag_of(me->epoch, me->halted);
    }
}

/* ---- stopping ---- */

static void enter(rank *me, place at) {
    me->at = (uint8_t)at;
    me->next = 0;
    memset(me->of, 0, sizeof me->of);
}

/* The words of a notice say which ranks differ, and in which epoch, so that parts of two notices do not pass
 * for one. */
static void stop(rank *me, const uint8_t words[WORDS]) {
    me->halted = me->op;
    memcpy(me->found, words, WORDS);
    enter(me, TELLS);
    const differing *d = differing_in(me->epoch);
    BREAKS(d->op == 0 || d->op > me->op, "a rank stops though no calls differ");
    BREAKS(words[0] != (me->epoch << 4 | d->first) || words[1] != (me->epoch << 4 | d->second),
           "a rank stops with the wrong words");
}

static void stop_for(rank *me, unsigned r, unsigned p) {
    const uint8_t words[WORDS] = {(uint8_t)(me->epoch << 4 | (r < p ? r : p)),
                                  (uint8_t)(me->epoch << 4 | (r < p ? p : r))};
    stop(me, words);
}

/* ---- waiting ---- */

/* What has come from the peer, of what this rank awaits now. */
static const packet *awaited(const state *s, unsigned r, unsigned p) {
    const rank *me = &s->ranks[r];
    const window *w = &s->windows[p][r];
    return me->at == AGREES ? &w->sizes[me->op & 1] : &w->bytes[me->op & 1];
}

static bool has_come(const state *s, unsigned r, unsigned p) {
    const packet *got = awaited(s, r, p);
    return got->epoch == s->ranks[r].epoch && got->op == s->ranks[r].op;
}

/* Thread `p` takes what has come. False: nothing has. */
static bool take(state *s, unsigned r, unsigned p) {
    rank *me = &s->ranks[r];
    if (!has_come(s, r, p)) return false;
    if (me->at == AGREES && awaited(s, r, p)->data != size_of(me, r, p)) {
        stop_for(me, r, p);
    } else {
        me->of[p] = (thread){.has = true};
    }
    return true;
}

/* One load of a thread, or what follows from it. False: nothing changes. */
static bool look(state *s, unsigned r, unsigned p) {
    rank *me = &s->ranks[r];
    thread *t = &me->of[p];
    const uint8_t *notice = s->windows[p][r].notice;
    switch ((sight)t->sight) {
    case LOOKS: /* the tag is loaded before what is awaited */
        t->tag = notice[TAG];
        t->sight = HAS_TAG;
        return true;
    case HAS_TAG:
        if (take(s, r, p)) return true;
        t->sight = t->tag >> 4 == me->epoch ? HEEDS : LOOKS;
        t->word = 0;
        if (t->sight == LOOKS) t->tag = 0;
        return true;
    case HEEDS:
        if (t->word < WORDS) {
            t->read[t->word] = notice[t->word];
            t->word++;
            return true;
        }
        if (notice[TAG] == t->tag) {
            BREAKS((t->tag & 15) > me->op && has_come(s, r, p),
                   "a rank stops although what it awaits was sent");
            const uint8_t words[WORDS] = {t->read[0], t->read[1]};
            stop(me, words);
        } else {
            *t = (thread){0};
        }
        return true;
    }
    return false;
}

/* All of a look. False: nothing has come of it. */
static bool look_at_once(state *s, unsigned r, unsigned p) {
    rank *me = &s->ranks[r];
    uint8_t at = me->at;
    do {
        look(s, r, p);
    } while (me->at == at && me->of[p].sight != LOOKS && !me->of[p].has); /* ends: a look has few loads */
    return me->at != at || me->of[p].has;
}

/* ---- a rank's own steps ---- */

static bool ends_epoch(const rank *me) {
    return me->at == RESTS && (me->op == m->ops || me->halted != 0);
}

/* Ranks meet between two epochs: no kernel of the old one runs. */
static bool may_begin_epoch(const state *s, unsigned r) {
    const rank *me = &s->ranks[r];
    if (me->epoch == m->epochs) return false;
    for (unsigned p = 0; p < m->ranks; p++)
        if (s->ranks[p].epoch < me->epoch ||
            (s->ranks[p].epoch == me->epoch && me->epoch > 0 && !ends_epoch(&s->ranks[p])))
            return false;
    return true;
}

static void begin_epoch(state *s, unsigned r) {
    rank *me = &s->ranks[r];
    *me = (rank){.epoch = (uint8_t)(me->epoch + 1)};
    for (unsigned p = 0; p < m->ranks; p++)
        if (p != r) s->windows[r][p].epoch = me->epoch;
}

static bool has_all(const rank *me, unsigned r) {
    for (unsigned p = 0; p < m->ranks; p++)
        if (p != r && !me->of[p].has && (me->at == AGREES || gives_bytes(p, r))) return false;
    return true;
}

static void end_op(rank *me, unsigned r) {
    const differing *d = differing_in(me->epoch);
    BREAKS(d->op == me->op && (r == d->first || r == d->second), "a rank whose sizes differ does not stop");
    BREAKS(d->op != 0 && d->op < me->op, "an operation after one whose sizes differ is complete");
    enter(me, RESTS);
}

/* Writes for one peer. */
static void write_for(state *s, unsigned r, unsigned p, unsigned number) {
    const rank *me = &s->ranks[r];
    if (p == r) return;
    if (me->at == SENDS) put_sizes(s, r, p);
    if (me->at == MOVES && gives_bytes(r, p)) put_bytes(s, r, p);
    if (me->at == TELLS) put_notice(s, r, p, number);
}

/* The next write, or all of them; afterwards the rank waits, or its kernel is over. */
static void write_some(state *s, unsigned r) {
    rank *me = &s->ranks[r];
    unsigned writes = m->ranks * (me->at == TELLS ? PUTS : 1);
    do {
        write_for(s, r, me->next % m->ranks, me->next / m->ranks);
        me->next++;
    } while (!is_watched(r) && me->next < writes); /* ends: so many */
    if (me->next < writes) return;
    if (me->at == TELLS) {
        enter(me, RESTS);
    } else {
        enter(me, me->at == SENDS ? AGREES : TAKES);
    }
}

static bool all_have_begun(const state *s, unsigned r) {
    for (unsigned p = 0; p < m->ranks; p++)
        if (p != r && s->windows[p][r].epoch != s->ranks[r].epoch) return false;
    return true;
}

/* What the rank does besides looking. False: it waits. */
static bool act(state *s, unsigned r) {
    rank *me = &s->ranks[r];
    switch ((place)me->at) {
    case RESTS:
        if (me->epoch == 0 || ends_epoch(me)) return false;
        me->op++;
        enter(me, me->op == 1 ? GREETS : SENDS);
        return true;
    case GREETS:
        if (!all_have_begun(s, r)) return false;
        enter(me, SENDS);
        return true;
    case AGREES:
    case TAKES:
        if (!has_all(me, r)) return false;
        if (me->at == AGREES) {
            enter(me, MOVES);
        } else {
            end_op(me, r);
        }
        return true;
    default:
        write_some(s, r);
        return true;
    }
}

static bool waits_for(const rank *me, unsigned r, unsigned p) {
    if (p == r || (me->at != AGREES && me->at != TAKES) || me->of[p].has) return false;
    return me->at == AGREES || gives_bytes(p, r);
}

/* ---- what holds in every state, and moves from it ---- */

static bool is_stuck(const state *s) {
    bool finished = true;
    for (unsigned r = 0; r < m->ranks; r++) {
        const rank *me = &s->ranks[r];
        finished &= me->epoch == m->epochs && ends_epoch(me);
        state next = *s;
        if (may_begin_epoch(s, r) || act(&next, r)) return false;
        for (unsigned p = 0; p < m->ranks; p++) {
            next = *s;
            /* The first one may be a look that has begun before the peer wrote something. */
            if (waits_for(me, r, p) && (look_at_once(&next, r, p) || look_at_once(&next, r, p))) return false;
        }
    }
    return !finished;
}

static void find_moves(const void *state_) {
    const state *s = state_;
    BREAKS(is_stuck(s), "deadlock: nobody can move and not all is done");
    for (unsigned r = 0; r < m->ranks && x.broken == NULL; r++) {
        state next = *s;
        if (may_begin_epoch(s, r)) {
            begin_epoch(&next, r);
            move(&next, "begins an epoch", r, 0);
        }
        next = *s;
        if (act(&next, r)) move(&next, "goes on", r, 0);
        for (unsigned p = 0; p < m->ranks; p++) {
            if (!waits_for(&s->ranks[r], r, p)) continue;
            next = *s;
            if (is_watched(r) ? look(&next, r, p) : look_at_once(&next, r, p))
                move(&next, "looks at a peer", r, p);
        }
    }
}

static const char *begin(unsigned number, void *first) {
    (void)first;
    m = &models[number];
    return m->name;
}

int main(int given, char **arguments) {
    static state first;
    return explore_all("notice_model", given, arguments, sizeof models / sizeof models[0], begin, &first,
                       sizeof first, find_moves, "rank", "peer");
}
