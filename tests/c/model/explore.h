/* Two ways through a model: every state, breadth first, so that a violation comes with a shortest trace; or
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
    const char *broken; /* NULL: everything holds */
    bool exhausted;     /* false: the limit of states came first */
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

static void print_move(const move *v) {
    if (v->rank == MAX_RANKS) {
        printf("    %s\n", v->text);
        return;
    }
    const rank *me = &v->s.ranks[v->rank];
    const lane *at = &me->lanes[v->lane];
    printf("    rank %u lane %u (epoch %u op %u%s): %s", v->rank, v->lane, me->epoch, at->op,
           at->paying ? ", owing" : "", v->text);
    if (v->peer != v->rank && v->peer < MAX_RANKS) printf(" rank %u", v->peer);
    printf("\n");
}

/* ---- the set of visited states ---- */

/* By 64-bit fingerprints: with n states the odds that one is missed are about n * n / 2^65. */
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

/* True if it is new. */
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

/* How a state was reached. States are numbered as they are found. */
typedef struct origin {
    uint32_t parent;
    uint8_t move;
} __attribute__((packed)) origin;

/* States found and not yet expanded, packed. */
typedef struct queue {
    uint64_t *words;
    unsigned stride;
    uint64_t first, count, capacity; /* in states; a ring */
} queue;

static void enqueue(queue *q, const codec *c) {
    if (q->count == q->capacity) {
        uint64_t capacity = q->capacity ? q->capacity * 2 : 1024;
        q->words = grown(q->words, capacity * q->stride * sizeof q->words[0]);
        /* What had wrapped around follows the end now. */
        memcpy(q->words + q->capacity * q->stride, q->words, q->first * q->stride * sizeof q->words[0]);
        q->capacity = capacity;
    }
    uint64_t at = (q->first + q->count++) & (q->capacity - 1);
    memcpy(q->words + at * q->stride, c->words, q->stride * sizeof q->words[0]);
}

static void print_trace(const model *m, const origin *origins, uint32_t state_number, moves *out) {
    unsigned length = 0;
    for (uint32_t n = state_number; n != 0; n = origins[n].parent) length++;
    uint8_t *path = grown(NULL, length + 1);
    for (uint32_t n = state_number, i = length; n != 0; n = origins[n].parent) path[--i] = origins[n].move;
    state s = initial_state(m);
    for (unsigned i = 0; i < length; i++) {
        find_moves(m, &s, out);
        print_move(&out->at[path[i]]);
        s = out->at[path[i]].s;
    }
    free(path);
}

static findings explore(const model *m, uint64_t limit, bool print) {
    static moves out;
    findings f = {.exhausted = true, .seconds = -now_seconds()};
    symmetry all = find_symmetry(m);
    visited set = {0};
    state s = initial_state(m);
    codec c = pack(m, &all, &s);
    queue q = {.stride = (c.at + 63) / 64};
    origin *origins = grown(NULL, sizeof origins[0]);
    uint64_t room = 1, expanded = 0, level_end = 1;
    origins[0] = (origin){0, 0};
    visit(&set, fingerprint(m, &all, &s));
    enqueue(&q, &c);
    for (; q.count > 0 && f.broken == NULL; expanded++) {
        if (expanded == level_end) {
            level_end = set.count;
            f.depth++;
        }
        if (set.count > limit) {
            f.exhausted = false;
            break;
        }
        s = unpack(m, &all, q.words + q.first * q.stride, q.stride);
        q.first = (q.first + 1) & (q.capacity - 1);
        q.count--;
        find_moves(m, &s, &out);
        f.transitions += out.count;
        if (out.count >= MAX_MOVES - 1) f.broken = "more moves than the model has room for";
        if (out.progress == 0 && !finished(m, &s)) f.broken = deadlock;
        unsigned bad = out.count;
        for (unsigned i = 0; i < out.count && f.broken == NULL; i++) {
            if (out.at[i].broken != NULL) {
                f.broken = out.at[i].broken;
                bad = i;
            } else if (visit(&set, fingerprint(m, &all, &out.at[i].s))) {
                if (set.count > room) {
                    room *= 2;
                    origins = grown(origins, room * sizeof origins[0]);
                }
                origins[set.count - 1] = (origin){(uint32_t)expanded, (uint8_t)i};
                c = pack(m, &all, &out.at[i].s);
                enqueue(&q, &c);
            }
        }
        if (f.broken != NULL && print) {
            printf("  %s: %s\n", m->name, f.broken);
            move last = out.at[bad < out.count ? bad : 0];
            print_trace(m, origins, (uint32_t)expanded, &out);
            if (bad < out.count || f.broken != deadlock) print_move(&last);
        }
    }
    f.states = set.count;
    f.seconds += now_seconds();
    free(set.places);
    free(q.words);
    free(origins);
    return f;
}

/* ---- random walks ---- */

static uint64_t next_random(uint64_t *seed) {
    *seed += UINT64_C(0x9e3779b97f4a7c15);
    return mix(*seed);
}

enum { WALK_STEPS = 200000 };

/* One walk from the initial state to the end of all operations. */
static findings walk(const model *m, uint64_t seed, bool print) {
    static moves out;
    findings f = {.exhausted = true};
    uint64_t random = seed;
    state s = initial_state(m);
    for (; f.broken == NULL && f.transitions < WALK_STEPS; f.transitions++) {
        find_moves(m, &s, &out);
        if (out.progress == 0) {
            if (finished(m, &s)) return f;
            f.broken = deadlock;
        } else {
            const move *v = &out.at[next_random(&random) % out.count];
            if (print) print_move(v);
            f.broken = v->broken;
            s = v->s;
        }
    }
    if (f.broken == NULL) f.broken = "a walk does not end";
    return f;
}

#endif
