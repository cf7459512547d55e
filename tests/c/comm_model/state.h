/* The state that the explorer of rings simulates: the windows of a few ranks, and what each rank knows. */
#ifndef EPW_TESTS_COMM_MODEL_STATE_H
#define EPW_TESTS_COMM_MODEL_STATE_H

#include "coll/rules.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MAX_RANKS = 3, MAX_SLOTS = 4, MAX_CALLS = 3, MAX_EPOCHS = 3, STEP = 7 };

/* The flows of a call. */
typedef enum shape {
    ALL,       /* from everyone to everyone */
    FROM_ROOT, /* from rank 0 to the others */
    TO_ROOTS   /* from the others to the last rank in the first call, and to rank 0 in later ones */
} shape;

typedef enum lenders { NOBODY, RANK_0, EVERYBODY } lenders;

typedef struct model {
    const char *name;
    unsigned ranks, slots, calls, epochs;
    unsigned messages; /* in each flow */
    shape shape;
    lenders lends;  /* the ranks whose messages are read from their memory; those of others are read from the
                       slot */
    bool deaths;    /* one rank may die, at any time */
    bool impatient; /* ranks may give each other up although nobody has died */
    bool drops;     /* rank 0 may drop a call that has begun */
    bool leaves;    /* ranks say farewell as soon as they have done everything */
    bool peeks;     /* a waiting rank looks for messages that it does not expect */
    bool astray;    /* the last rank calls something else once, in the first epoch: the last call with another
                       count, or the first one with another root */
    bool empties;   /* there are calls without elements, of which ranks tell each other: the one that only the
                       last rank makes; if there is none, the second call of all */
} model;

typedef struct slot {
    epw_message message;
    uint32_t epoch; /* of its source, when it was written */
    bool torn;      /* it is being written */
} slot;

/* What `source` writes in the window of `owner`. */
typedef struct pair {
    slot slots[MAX_SLOTS];
    uint64_t epoch_word, dropped, posted, taken, cancelled, mismatch;
} pair;

typedef enum hand { IDLE, WRITING, READING } hand;

/* What a rank knows of a peer: as epw_coll_peer. */
typedef struct peer {
    bool member, begun, suspected;
    uint32_t gone;
    epw_ring ring;
    unsigned out, in; /* messages to go and to come, of the call that runs */
    bool tells;       /* nothing goes to the peer, which is to be told so */
    hand hand;        /* the access of this rank to a slot */
    unsigned lent;    /* READING: the contents of the peer's memory when it was read */
} peer;

typedef struct rank {
    bool dead, finished, running, dropped, mismatched;
    uint64_t own_word;
    uint32_t calls;
    unsigned memory; /* contents of the caller's memory; changes with each call */
    peer of[MAX_RANKS];
} rank;

typedef struct state {
    bool died;
    unsigned members[MAX_EPOCHS + 1]; /* masks; decided when the first rank begins the epoch */
    rank ranks[MAX_RANKS];
    pair pairs[MAX_RANKS][MAX_RANKS]; /* [source][owner] */
} state;

static inline uint32_t epoch_of(const rank *me) {
    return epw_word_epoch(me->own_word);
}

/* Whether `r` calls something else than the others. */
static inline bool is_astray(const model *m, const state *s, unsigned r, uint32_t call) {
    uint32_t once = m->shape == TO_ROOTS ? 1 : m->calls;
    return m->astray && r == m->ranks - 1 && call == once && epoch_of(&s->ranks[r]) == 1;
}

/* The root, according to `r`. */
static inline unsigned root_of(const model *m, const state *s, unsigned r, uint32_t call) {
    if (m->shape != TO_ROOTS || call != 1) return 0;
    return m->ranks - (is_astray(m, s, r, call) ? 2 : 1);
}

/* The elements that `r` calls for. */
static inline uint64_t count_of(const model *m, const state *s, unsigned r, uint32_t call) {
    bool another = m->shape != TO_ROOTS && is_astray(m, s, r, call);
    bool none = m->empties && (m->astray ? another : call == 2);
    return none ? 0 : another ? 9 : 8;
}

/* What `r` calls as number `call` of its epoch; nothing before the first call. */
static inline epw_descriptor descriptor_of(const model *m, const state *s, unsigned r, uint32_t call) {
    if (call == 0) return (epw_descriptor){0};
    return (epw_descriptor){.kind = EPW_GATHER,
                            .type = EPW_TYPE_I32,
                            .peer = root_of(m, s, r, call),
                            .count = count_of(m, s, r, call)};
}

static inline epw_sight sight_of(const state *s, unsigned source, unsigned owner, uint64_t word) {
    const pair *p = &s->pairs[source][owner];
    return (epw_sight){.dropped = p->dropped, .epoch_word = p->epoch_word, .word = word};
}

static inline bool lends(const model *m, unsigned r) {
    return m->lends == EVERYBODY || (m->lends == RANK_0 && r == 0);
}

/* Whether the current call of `r` has a flow between two ranks, according to `r`. */
static inline bool gives(const model *m, const state *s, unsigned r, unsigned from, unsigned to) {
    unsigned root = root_of(m, s, r, s->ranks[r].calls);
    return from != to && count_of(m, s, r, s->ranks[r].calls) > 0 &&
           (m->shape == ALL || root == (m->shape == FROM_ROOT ? from : to));
}

#endif
