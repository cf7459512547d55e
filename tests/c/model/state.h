/* What the model knows of a group of ranks: the words that each has written at each, and what each rank keeps
 * to itself. Small enough to be explored by the million. */
#ifndef EPW_TESTS_MODEL_STATE_H
#define EPW_TESTS_MODEL_STATE_H

#include "peer/rules.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MAX_RANKS = 5, MAX_LANES = 2, MAX_EPOCHS = 3 };

typedef uint8_t mask; /* a bit per rank */

/* A signal word as the model stores it. It becomes a real one before a rule sees it. */
typedef struct tag {
    uint8_t epoch, op, value;
} tag;

/* Words that one rank writes at another: epw_line. */
typedef struct line {
    tag dispatch[MAX_LANES], combine[MAX_LANES];
    tag beacon[MAX_LANES]; /* epoch 0: none */
    uint8_t epoch, dropped;
} line;

/* The idle stages of the code are not here: SENT is RECEIVING before the first look, DISPATCHED is RECEIVING
 * with nobody awaited, ANSWERED is COLLECTING before the first look. In each of them the code offers the same
 * choices: go on, or release. */
typedef enum stage { FREE, SENDING, RECEIVING, ANSWERING, COLLECTING } stage;

typedef enum awaiting { PERMISSION, ROWS, ANSWER } awaiting;

typedef enum store { NO_STORE, STORE_DROPPED, STORE_DISPATCH, STORE_COMBINE, STORE_BEACON } store;

typedef struct lane {
    uint8_t stage, op;
    mask awaited; /* the stage still waits for them */
    mask writing; /* SENDING: their dispatch slots; ANSWERING: their combine slots. From the decision to the
                     word */
    mask present; /* their dispatch words have come */
    mask rows;    /* and said that there are rows */
    mask reading; /* COLLECTING: their answers are being read */
    mask missing;

    uint8_t paying, debt_op, more; /* epw_debt */
    mask unsent, unanswered;

    /* Decided but not yet stored: one kind of word, to each of some peers. The lane does nothing else
     * meanwhile. */
    uint8_t storing, store_value;
    mask store_to;

    /* A sight of which some loads have been made, in models with torn sights. */
    uint8_t loads, look_for, look_at;
    uint8_t seen_dropped, seen_epoch;
    tag seen_word;

    /* epw_wait, in models with time. Unit: half a deadline. */
    uint8_t waiting, elapsed, beacons, seq;
    uint8_t alone; /* how long it has waited for nobody but the dead rank */
    uint8_t age[MAX_RANKS];
    uint8_t heard[MAX_RANKS]; /* running number of the beacon that last restarted a clock, plus one */
} lane;

typedef struct rank {
    uint8_t epoch;
    uint8_t asleep; /* AWAKE, ASLEEP or DEAD */
    mask suspects;
    mask announcing; /* peers that set_active has still to post the epoch word to */
    lane lanes[MAX_LANES];
} rank;

enum { AWAKE, ASLEEP, DEAD };

typedef struct state {
    rank ranks[MAX_RANKS];
    line lines[MAX_RANKS][MAX_RANKS]; /* [writer][reader] */
    uint8_t timeouts;                 /* that may still happen, if they are counted */
    uint8_t naps;                     /* the faulty rank has fallen asleep so often */
} state;

/* Ways to break the protocol, to see that the explorer sees it. */
typedef enum mutation {
    SOUND,
    NO_EPOCH_WORD,     /* the first operation of an epoch is sent without the peer's epoch word */
    NO_PERMISSION,     /* a later one is sent without the answer to the one before */
    NO_DROPPED,        /* a suspect is not told */
    NO_DEBT,           /* a released operation owes nothing */
    RELEASE_AT_ONCE,   /* a released operation is answered before its dispatch word has come */
    MATCH_OP_ONLY,     /* a word of another epoch is accepted */
    MATCH_EPOCH_ONLY,  /* a word of another operation is accepted */
    GONE_BEFORE_MATCH, /* DROPPED and the epoch word are judged before the match */
    WORD_BEFORE_GONE,  /* the awaited word is loaded before DROPPED and the epoch word */
    NO_BEACONS         /* a waiter does not say that it waits */
} mutation;

enum { TIMEOUTS_NONE = 0, TIMEOUTS_ANY = 255 };

typedef enum fault { FAULT_NONE, FAULT_CRASH, FAULT_SLEEP } fault;

/* One model. */
typedef struct model {
    const char *name;
    uint8_t ranks, lanes;
    uint8_t ops; /* in each epoch, on each lane */
    uint8_t epochs;
    mask members[MAX_EPOCHS + 1]; /* [epoch] */
    bool release;                 /* callers may release whenever the lane is theirs */
    bool torn;                    /* the loads of a sight are steps of their own */
    bool eager;                   /* a rank may change epochs between any two operations */
    bool agreed;                  /* nobody changes epochs before all who live have ended their operations */
    /* Without `timed`: how many waits may expire in epoch 1, at any time for no reason. */
    uint8_t timeouts;
    /* Time passes, in halves of a deadline, when no rank can move; waits expire as beacons and clocks say.
     * `fault` befalls the last rank at any step, and nobody but that rank may be suspected. */
    bool timed;
    fault fault;
    mutation mutation;
} model;

static inline uint64_t word_of(tag t) {
    return epw_word(t.epoch, t.op, t.value);
}
static inline bool has(mask m, unsigned r) {
    return m >> r & 1;
}
static inline mask bit(unsigned r) {
    return (mask)(1u << r);
}
static inline unsigned faulty(const model *m) {
    return m->ranks - 1u;
}

/* Members of the rank's epoch but itself. A rank's dealings with itself are left out: it posts each word to
 * itself before it looks for it, so it never waits for itself. */
static inline mask peers_of(const model *m, const state *s, unsigned r) {
    return (mask)(m->members[s->ranks[r].epoch] & ~bit(r));
}

/* Does `owner` read (or, rank-major, write) what `source` has sent it? From the look at the dispatch word to
 * the combine word. */
static inline bool holds_rows(const state *s, unsigned owner, unsigned source, unsigned l) {
    const lane *at = &s->ranks[owner].lanes[l];
    if (at->stage == RECEIVING) return has(at->present & at->rows, source);
    return at->stage == ANSWERING && has(at->writing & at->rows, source);
}

static inline bool reads_answer(const state *s, unsigned owner, unsigned source, unsigned l) {
    const lane *at = &s->ranks[owner].lanes[l];
    return at->stage == COLLECTING && has(at->reading, source);
}

static inline bool writes(const state *s, unsigned source, unsigned owner, unsigned l, stage doing) {
    const lane *at = &s->ranks[source].lanes[l];
    return at->stage == doing && has(at->writing, owner) && (doing == SENDING || has(at->rows, owner));
}

#endif
