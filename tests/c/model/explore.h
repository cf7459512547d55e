/* Two ways to explore a model: every state, breadth first, so that a violation has a shortest trace; or
 * seeded random walks. */
#ifndef EPW_TESTS_MODEL_EXPLORE_H
#define EPW_TESTS_MODEL_EXPLORE_H

#include "moves.h"
#include "pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char deadlock[] = "deadlock: nobody can move and not all is done";

typedef struct findings {
    uint64_t states, transitions;
    unsigned depth;
    const char *broken; /* NULL: no violation */
    bool exhausted;     /* false: the limit of states was reached */
    double seconds;
} findings;

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *grown(void *memory, size_t bytes) {
    void *more = realloc(memory, bytes);
    if (more == NULL) {
        fprintf(stderr, "model: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return more;
}

static void print_move(const walker *w, const state *next) {
    if (w->rank == MAX_RANKS) {
        printf("    %s\n", w->text);
        return;
    }
    const rank *me = &next->ranks[w->rank];
    const epw_machine *of = &me->lanes[w->lane].m;
    printf("    %srank %u lane %u (epoch %u op %u stage %d%s): %s", w->rank == former(w->m) ? "former " : "",
           rank_of(w->m, w->rank), w->lane, me->epoch, of->op, (int)of->stage, of->paying ? ", owing" : "",
           w->text);
    if (rank_of(w->m, w->peer) != rank_of(w->m, w->rank)) printf(" rank %u", w->peer);
    printf("\n");
}

/* ---- the set of visited states ---- */

/* By 64-bit fingerprints: with n states the probability that one is missed is about n * n / 2^65. */
typedef struct visited {
    uint64_t *places;
    uint64_t count, capacity; /* a power of two */
} visited;

static bool put_place(visited *set, uint64_t print) {
    uint64_t i = print >> 7 & (set->capacity - 1);
    for (; set->places[i] != 0; i = (i + 1) & (set->capacity - 1)) {
        if (set->places[i] == print) return false;
    }
    set->places[i] = print;
    return true;
}

/* True if the state is new. */
static bool visit(visited *set, uint64_t print) {
    if (set->count * 4 >= set->capacity * 3) {
        visited larger = {NULL, 0, set->capacity ? set->capacity * 2 : 1 << 16};
        larger.places = grown(NULL, larger.capacity * sizeof larger.places[0]);
        memset(larger.places, 0, larger.capacity * sizeof larger.places[0]);
        for (uint64_t i = 0; i < set->capacity; i++) {
            if (set->places[i] != 0) put_place(&larger, set->places[i]);
        }
        free(set->places);
        larger.count = set->count;
        *set = larger;
    }
    bool new_one = put_place(set, print);
    set->count += new_one;
    return new_one;
}

/* ---- breadth first ---- */

/* How a state was reached. States are numbered in the order in which they are found. */
typedef struct origin {
    uint32_t parent;
    uint8_t move;
} __attribute__((packed)) origin;

/* States that were found and have yet to be expanded, packed. */
typedef struct queue {
    uint64_t *words;
    unsigned stride;
    uint64_t first, count, capacity; /* in states; a ring */
} queue;

static void enqueue(queue *q, const codec *c) {
    if (q->count == q->capacity) {
        uint64_t capacity = q->capacity ? q->capacity * 2 : 1024;
        q->words = grown(q->words, capacity * q->stride * sizeof q->words[0]);
        /* What was wrapped around comes after the end now. */
        memcpy(q->words + q->capacity * q->stride, q->words, q->first * q->stride * sizeof q->words[0]);
        q->capacity = capacity;
    }
    uint64_t at = (q->first + q->count++) & (q->capacity - 1);
    memcpy(q->words + at * q->stride, c->words, q->stride * sizeof q->words[0]);
}

/* A walk along moves with known numbers. */
typedef struct chosen {
    walker w;
    unsigned number;
    bool print;
    state next;
    const char *broken;
} chosen;

enum { EVERY = 255 };

static void choose(walker *w, state *next) {
    chosen *c = (chosen *)w;
    if (c->number == EVERY) {
        printf("  it can only stay as it is:\n");
        print_move(w, next);
    }
    if (w->moves != c->number) return;
    c->next = *next;
    c->broken = w->broken;
    if (c->print) print_move(w, next);
}

/* As in the exploration, every state goes through the codec. */
static void normalise(const model *m, state *s) {
    codec c = pack(m, s);
    unpack(m, c.words, (c.at + 63) / 64, s);
}

static void print_trace(const model *m, const origin *origins, uint32_t number, unsigned last) {
    unsigned length = 0;
    for (uint32_t n = number; n != 0; n = origins[n].parent) length++;
    uint8_t *path = grown(NULL, length + 1);
    for (uint32_t n = number, i = length; n != 0; n = origins[n].parent) path[--i] = origins[n].move;
    path[length] = (uint8_t)last;
    chosen c = {.w = {.visit = choose, .m = m}, .print = true};
    state s;
    initial_state(&c.w, &s);
    for (unsigned i = 0; i <= length; i++) {
        normalise(m, &s);
        c.number = path[i];
        find_moves(&c.w, &s);
        s = c.next;
    }
    free(path);
}

typedef struct explorer {
    walker w;
    findings f;
    visited set;
    queue q;
    origin *origins;
    uint64_t room, expanded, from; /* `from`: fingerprint of the state that is being expanded */
    unsigned bad, changes;
} explorer;

static void find(walker *w, state *next) {
    explorer *e = (explorer *)w;
    e->f.transitions++;
    if (e->f.broken != NULL) return;
    if (w->broken != NULL) {
        e->f.broken = w->broken;
        e->bad = w->moves;
        return;
    }
    codec c = pack(w->m, next);
    uint64_t print = fingerprint(&c);
    e->changes += print != e->from && !w->fault;
    if (!visit(&e->set, print)) return;
    if (e->set.count > e->room) {
        e->room *= 2;
        e->origins = grown(e->origins, e->room * sizeof e->origins[0]);
    }
    e->origins[e->set.count - 1] = (origin){(uint32_t)e->expanded, (uint8_t)w->moves};
    enqueue(&e->q, &c);
}

static findings explore(const model *m, uint64_t limit, bool print) {
    explorer e = {.w = {.visit = find, .m = m}, .room = 1};
    findings *f = &e.f;
    f->exhausted = true;
    f->seconds = -now_seconds();
    state s;
    initial_state(&e.w, &s);
    codec c = pack(m, &s);
    e.q.stride = PACKED_WORDS;
    e.origins = grown(NULL, sizeof e.origins[0]);
    e.origins[0] = (origin){0, 0};
    visit(&e.set, fingerprint(&c));
    enqueue(&e.q, &c);
    uint64_t level_end = 1;
    for (; e.q.count > 0 && f->broken == NULL; e.expanded++) {
        if (e.expanded == level_end) {
            level_end = e.set.count;
            f->depth++;
        }
        if (e.set.count > limit) {
            f->exhausted = false;
            break;
        }
        const uint64_t *packed = e.q.words + e.q.first * e.q.stride;
        unpack(m, packed, e.q.stride, &s);
        e.q.first = (e.q.first + 1) & (e.q.capacity - 1);
        e.q.count--;
        codec again = pack(m, &s);
        e.from = fingerprint(&again);
        e.changes = 0;
        find_moves(&e.w, &s);
        if (f->broken == NULL && e.changes == 0 && !finished(m, &s)) {
            f->broken = deadlock;
            e.bad = EVERY;
        }
        if (f->broken != NULL && print) {
            printf("  %s: %s\n", m->name, f->broken);
            print_trace(m, e.origins, (uint32_t)e.expanded, e.bad);
        }
    }
    f->states = e.set.count;
    f->seconds += now_seconds();
    free(e.set.places);
    free(e.q.words);
    free(e.origins);
    return *f;
}

/* ---- random walks ---- */

static uint64_t next_random(uint64_t *seed) {
    *seed += UINT64_C(0x9e3779b97f4a7c15);
    return mix(*seed);
}

enum { WALK_STEPS = 200000 };

static void ignore(walker *w, state *next) {
    (void)w, (void)next;
}

/* One walk from the initial state to the end of all operations. */
static findings walk(const model *m, uint64_t seed, bool print) {
    findings f = {.exhausted = true};
    chosen c = {.w = {.visit = choose, .m = m}, .print = print};
    walker count = {.visit = ignore, .m = m};
    uint64_t random = seed;
    state s;
    initial_state(&c.w, &s);
    for (; f.broken == NULL && f.transitions < WALK_STEPS; f.transitions++) {
        normalise(m, &s);
        find_moves(&count, &s);
        if (count.progress == 0) {
            if (finished(m, &s)) return f;
            f.broken = deadlock;
        } else {
            c.number = (unsigned)(next_random(&random) % count.moves);
            find_moves(&c.w, &s);
            f.broken = c.broken;
            s = c.next;
        }
    }
    if (f.broken == NULL) f.broken = "a walk does not end";
    return f;
}

#endif
