/* A small group of ranks as the explorer sees it: the machines of their lanes (c/ep/lane.c itself), the words
 * that each rank has written at each other one, and what their callers have yet to do. */
#ifndef EPW_TESTS_MODEL_STATE_H
#define EPW_TESTS_MODEL_STATE_H

#include "ep/lane.h"

#include <string.h>

enum { MAX_RANKS = 4, MAX_EPOCHS = 3 };

typedef uint8_t mask; /* one bit for each rank */

/* Time. It stands still at NOW; when a unit passes, all noted times move into the past. A unit is the time
 * for which sending waits for the last permissions, and a deadline is four units. */
#define UNIT     UINT64_C(1000000)
#define DEADLINE (4 * UNIT)
#define LONG     (8 * DEADLINE) /* a call that lengthens it */
#define AGES     64             /* units back that are distinguished */
#define NOW      (1000 * UNIT)
#define LATE     (NOW + 100 * LONG) /* any wait has expired by then */

/* The loads of a look: farewell, epoch word, awaited word, beacons of all lanes. */
enum { LOADS = 3 + EPW_MAX_LANES };

typedef struct lane {
    epw_machine m; /* its peers are those below */
    epw_lane_peer peers[MAX_RANKS];
    uint8_t left;  /* operations that its caller has yet to begin in this epoch */
    uint8_t away;  /* units for which it has been the caller's turn */
    uint8_t alone; /* units for which it has waited only for the faulty rank */
    /* A look that is partly done, in models with torn looks. */
    uint8_t loads, look_at;
    uint64_t loaded[LOADS];
} lane;

typedef enum fate {
    AWAKE,
    STOPPED,
    LEAVING, /* its buffer is being destroyed: it says farewell, then returns its leases one by one */
    DEAD
} fate;

typedef struct rank {
    uint8_t epoch;
    uint8_t fate;
    uint8_t stops;             /* how often it has been stopped */
    uint8_t incarnation;       /* 2: it has replaced another one */
    mask suspects;             /* in epw_peers: given up by any lane */
    mask revoked;              /* ranks that it was told to continue without, in the first epoch */
    uint8_t routes[MAX_RANKS]; /* incarnation of each peer to which this one is connected, holding its lease
                                  of that one's window; 0: not connected */
    lane lanes[EPW_MAX_LANES];
} rank;

typedef struct state {
    uint8_t timeouts;      /* that may still happen, if they are limited */
    uint8_t revokes;       /* the same for revocations */
    rank ranks[MAX_RANKS]; /* after the last one, the former incarnation of a rank that was replaced */
    epw_lane_words words[MAX_RANKS][MAX_RANKS][EPW_MAX_LANES]; /* [rank of the writer][reader][lane] */
} state;

enum { TIMEOUTS_NONE = 0, TIMEOUTS_ANY = 255 };

typedef enum fault { FAULT_NONE, FAULT_CRASH, FAULT_STOP, FAULT_LEAVE } fault;

/* One model. */
typedef struct model {
    const char *name;
    uint8_t ranks, lanes;
    uint8_t ops; /* in each epoch, on each lane */
    uint8_t epochs;
    mask members[MAX_EPOCHS + 1]; /* [epoch] */
    uint32_t start;               /* the operation number with which epoch 1 begins */
    bool split;                   /* calls are made in halves */
    bool events;                  /* and the wait of a receiving half may begin before it */
    bool release;                 /* callers may release at any time */
    bool torn;                    /* the loads of a look are separate moves */
    bool eager;                   /* a rank may change epochs between any two operations */
    bool agreed;   /* nobody changes epochs before all living ranks have ended their operations */
    bool astray;   /* the last rank begins its first epoch at another step than the others */
    bool replaced; /* the last rank returns as another incarnation, in the last epoch */
    /* Without `timed`: how many waits may expire, at any time and for no reason. */
    uint8_t timeouts;
    uint8_t revokes; /* how often, in the first epoch, a rank is told to continue without another one */
    bool timed;      /* time passes, see moves.h */
    uint8_t away;    /* units that a caller may stay away when it is its turn */
    mask late;       /* the ranks whose callers may stay away; 0: all */
    bool crossed;    /* one lane at a time: rank 0 begins with the first lane, the others with the last */
    mask longs;      /* ranks whose calls have a longer deadline */
    bool long_once;  /* only in their first operation */
    fault fault;     /* happens to the last rank, at any time */
} model;

static inline bool has(mask m, unsigned r) {
    return m >> r & 1;
}
static inline mask bit(unsigned r) {
    return (mask)(1u << r);
}
static inline unsigned faulty(const model *m) {
    return m->ranks - 1u;
}

/* The step at which a rank begins an epoch: one bit of it is enough. */
static inline uint64_t step_of(const model *m, unsigned r, uint8_t epoch) {
    return (epoch + (m->astray && epoch == 1 && r == faulty(m))) & 1;
}

/* Whether two ranks can never agree on their common epoch. */
static inline bool at_odds(const model *m, unsigned r, unsigned p, uint8_t epoch) {
    return step_of(m, r, epoch) != step_of(m, p, epoch);
}

/* ---- incarnations ---- */

/* The former incarnation of the last rank, which may live on after it was replaced. It has a window of its
 * own, but what it writes at its peers lies where the new one's does. Such models have fewer than MAX_RANKS
 * ranks. */
static inline unsigned former(const model *m) {
    return m->ranks;
}
static inline unsigned actors(const model *m) {
    return m->ranks + m->replaced;
}
static inline unsigned rank_of(const model *m, unsigned r) {
    return r == former(m) ? faulty(m) : r;
}
/* Which rank of the model is this incarnation of a peer. */
static inline unsigned actor_of(const model *m, const state *s, unsigned peer, uint64_t incarnation) {
    return incarnation == 1 && s->ranks[peer].incarnation == 2 ? former(m) : peer;
}
/* The rank in whose window r writes what is for the peer. */
static inline unsigned reader_of(const model *m, const state *s, unsigned r, unsigned peer) {
    return peer == rank_of(m, r) ? r : actor_of(m, s, peer, s->ranks[r].routes[peer]);
}

static inline uint64_t *word_at(state *s, unsigned writer, unsigned reader, unsigned l, unsigned word) {
    return &((uint64_t *)&s->words[writer][reader][l])[word];
}
static inline uint64_t word_of(const state *s, unsigned writer, unsigned reader, unsigned l, unsigned word) {
    return ((const uint64_t *)&s->words[writer][reader][l])[word];
}

/* Machines point to their peers: after a copy the pointers must be set again. */
static inline void bind(lane *at) {
    at->m.peers = at->peers;
}

static inline void bind_all(state *s) {
    for (unsigned r = 0; r < MAX_RANKS; r++)
        for (unsigned l = 0; l < EPW_MAX_LANES; l++) bind(&s->ranks[r].lanes[l]);
}

/* Whether the rank has begun and ended all operations of its epoch. It may still owe answers. */
static inline bool lanes_done(const model *m, const rank *me) {
    for (unsigned l = 0; l < m->lanes; l++) {
        if (me->lanes[l].m.stage != EPW_STAGE_FREE || me->lanes[l].left > 0) return false;
    }
    return true;
}

/* ---- who accesses what, and when ---- */

/* {epoch, op} of a word, computed without the code under test. */
static inline uint64_t about(uint64_t word) {
    return word >> 17;
}
static inline uint64_t about_op(const epw_machine *m) {
    return (uint64_t)m->epoch << 24 | (m->op & 0xffffff);
}

static inline bool answered(const model *m, const state *s, unsigned r, unsigned p, unsigned l) {
    uint64_t word = word_of(s, rank_of(m, r), reader_of(m, s, r, p), l, EPW_WORD_COMBINE);
    return about(word) == about_op(&s->ranks[r].lanes[l].m);
}

/* r may be writing rows for p, from its look at the permission to the dispatch word. */
static inline bool writes_rows(const state *s, unsigned r, unsigned p, unsigned l) {
    const lane *at = &s->ranks[r].lanes[l];
    const epw_lane_peer *to = &at->peers[p];
    if (to->sent == 0) return false;
    return (at->m.stage == EPW_STAGE_SENDING && (to->part & EPW_PART_READY)) ||
           (to->posts & EPW_POST_DISPATCH);
}

/* r may be reading what p has sent, from its look at the dispatch word to the combine word, or until p is
 * given up. */
static inline bool reads_rows(const model *m, const state *s, unsigned r, unsigned p, unsigned l) {
    const lane *at = &s->ranks[r].lanes[l];
    const epw_lane_peer *from = &at->peers[p];
    bool holds = at->m.stage >= EPW_STAGE_SENT && at->m.stage <= EPW_STAGE_ANSWERING;
    return holds && (from->part & EPW_PART_PRESENT) && from->received > 0 && !answered(m, s, r, p, l);
}

/* r may be writing answers for p, from its look at the dispatch word, which permits it, to its own combine
 * word. */
static inline bool writes_answers(const model *m, const state *s, unsigned r, unsigned p, unsigned l) {
    const lane *at = &s->ranks[r].lanes[l];
    const epw_lane_peer *to = &at->peers[p];
    if (to->received == 0) return false;
    return (at->m.stage == EPW_STAGE_ANSWERING && (to->part & EPW_PART_PRESENT) && !to->suspected &&
            !answered(m, s, r, p, l)) ||
           (to->posts & EPW_POST_COMBINE);
}

static inline bool reads_answers(const state *s, unsigned r, unsigned p, unsigned l) {
    const lane *at = &s->ranks[r].lanes[l];
    return (at->m.stage == EPW_STAGE_ANSWERED || at->m.stage == EPW_STAGE_COLLECTING) &&
           (at->peers[p].part & EPW_PART_ANSWERED) && at->peers[p].sent > 0;
}

#endif
