/* Depth-first exploration of all states of a model, beside seen.h. The program says how many bytes a state
 * has, finds the moves from one, and calls move() with each next state; the way to a violation is kept. The
 * stack is the path to a state. */
#ifndef EPW_TESTS_EXPLORE_H
#define EPW_TESTS_EXPLORE_H

#include "check.h"
#include "seen.h"

#include <stdio.h>
#include <time.h>

enum { EXPLORE_DEPTH_MAX = 8192 };
#define EXPLORE_STATES_MAX UINT64_C(20000000)

static struct exploration {
    size_t bytes;
    void (*find)(const void *state);
    const char *broken; /* what does not hold, once that is found */
    bool over;          /* and the way to it is known */
    const void *at;     /* the state that is being expanded */
    unsigned changes;   /* moves from it that count as progress: for the program */
    uint64_t transitions;
    unsigned depth, deepest;
    struct {
        const char *what;
        unsigned who, which;
    } way[EXPLORE_DEPTH_MAX];
} x;

#define BREAKS(condition, what)                                                                              \
    do {                                                                                                     \
        if ((condition) && x.broken == NULL) x.broken = (what);                                              \
    } while (0)

static void explore_from(const void *state) {
    const void *before = x.at;
    unsigned changes = x.changes;
    if (++x.depth > x.deepest) x.deepest = x.depth;
    x.at = state;
    x.changes = 0;
    if (x.depth == EXPLORE_DEPTH_MAX || seen_count > EXPLORE_STATES_MAX) x.broken = "too many states";
    if (x.broken == NULL) x.find(state);
    x.at = before;
    x.changes = changes;
    if (x.broken == NULL) {
        x.depth--;
    } else if (!x.over) { /* no move from this state, but the state itself breaks it */
        x.way[x.depth - 1].what = NULL;
        x.over = true;
    }
}

/* From the state that is being expanded to the next one; number `which` of `who` does what. */
static void move(const void *next, const char *what, unsigned who, unsigned which) {
    if (x.over) return;
    x.transitions++;
    x.way[x.depth - 1].what = what;
    x.way[x.depth - 1].who = who;
    x.way[x.depth - 1].which = which;
    if (x.broken == NULL && visit(next, x.bytes)) explore_from(next);
    x.over = x.broken != NULL;
}

/* All states from the first one on. `tells`: prints the way to a violation, in which `who` and `which` number
 * wholes and parts; NULL: neither is said. */
static void explore(const char *name, const void *first, size_t bytes, void (*find)(const void *), bool tells,
                    const char *whole, const char *part) {
    double began = seconds_of(CLOCK_MONOTONIC);
    memset(&x, 0, sizeof x);
    x.bytes = bytes;
    x.find = find;
    if (seen != NULL) memset(seen, 0, seen_room * sizeof *seen);
    seen_count = 0;
    visit(first, bytes);
    explore_from(first);
    printf("%-22s %9llu states %10llu transitions  depth %4u  %5.2f s  %s\n", name,
           (unsigned long long)seen_count, (unsigned long long)x.transitions, x.deepest,
           seconds_of(CLOCK_MONOTONIC) - began, x.broken ? x.broken : "holds");
    fflush(stdout);
    CHECK_MSG(x.broken == NULL, "%s: %s", name, x.broken);
    for (unsigned i = 0; tells && x.broken != NULL && i < x.depth && x.way[i].what != NULL; i++) {
        printf("    ");
        if (whole != NULL) printf("%s %u", whole, x.way[i].who);
        if (part != NULL) printf(", %s %u", part, x.way[i].which);
        printf("%s%s\n", whole != NULL ? ": " : "", x.way[i].what);
    }
}

/* Explores each of `count` models, or the one that an argument names, whose way to a violation is printed.
 * `begin` makes model `number` the current one, writes its first state over zeros and returns its name. */
static int explore_all(const char *program, int given, char **arguments, unsigned count,
                       const char *(*begin)(unsigned number, void *first), void *first, size_t bytes,
                       void (*find)(const void *), const char *whole, const char *part) {
    bool tells = given > 1, found = !tells;
    for (unsigned i = 0; i < count; i++) {
        memset(first, 0, bytes);
        const char *name = begin(i, first);
        if (tells && strcmp(name, arguments[1]) != 0) continue;
        found = true;
        explore(name, first, bytes, find, tells, whole, part);
    }
    CHECK_MSG(found, "no model is called %s", arguments[1]);
    free(seen);
    return check_result(program);
}

#endif
