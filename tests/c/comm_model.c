/* Exploration of the rules of rings: every state of small groups of ranks that call collectives in several
 * epochs. c/coll/rules.h itself runs; comm_model/moves.h models its callers after c/coll/flow.c and drive.c.
 * Checked in every state:
 *  - no slot is written while it is read, before it has been read, or in an epoch that its owner has not
 *    begun;
 *  - no slot is read while it is written;
 *  - what is consumed is of this epoch, this call and these arguments, in order;
 *  - memory that a peer lends is not used once the loan has ended;
 *  - no message of a correct peer is judged to be nonsense, and without failures nobody is given up;
 *  - a rank that has heard of all ranks since one of them called something else, if only with another root,
 *    has found the mismatch;
 *  - no deadlock: as long as something is left to do, somebody can move. A dead peer can be given up, so
 *    waits without an end would be found here.
 *
 * The words of one source arrive in the order in which they were stored, as in mapped memory. tests/faults
 * shows that the explorer finds planted faults.
 *
 * comm_model         all models, in seconds
 * comm_model NAME    one of them; prints the path to a violation */
#include "comm_model/moves.h"

#include "check.h"
#include "seen.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* clang-format off: a model is a line */
static const model models[] = {
    /*                 ranks, slots, calls, epochs, messages */
    {"two", 2, 1, 3, 2, 2, ALL, .lends = NOBODY},
    {"two-of-2-slots", 2, 2, 3, 2, 2, ALL, .lends = NOBODY},
    {"two-lend", 2, 2, 2, 2, 2, ALL, .lends = EVERYBODY},
    {"two-lend-4-slots", 2, 4, 2, 1, 1, ALL, .lends = EVERYBODY},
    {"three", 3, 1, 1, 1, 1, ALL, .lends = NOBODY},
    {"three-from-root", 3, 1, 2, 2, 1, FROM_ROOT, .lends = NOBODY},
    {"root-runs-ahead", 2, 2, 3, 3, 1, FROM_ROOT, .lends = NOBODY},
    {"one-dies", 2, 1, 2, 2, 2, ALL, .deaths = true},
    {"one-dies-2-slots", 2, 2, 2, 2, 2, ALL, .deaths = true},
    {"one-dies-lending", 2, 2, 2, 2, 1, ALL, .lends = EVERYBODY, .deaths = true},
    {"one-of-three-dies", 3, 1, 1, 2, 1, FROM_ROOT, .deaths = true},
    {"impatient", 2, 1, 2, 3, 1, ALL, .impatient = true},
    {"impatient-2-slots", 2, 2, 1, 2, 2, ALL, .impatient = true},
    {"impatient-lending", 2, 2, 2, 2, 1, ALL, .lends = EVERYBODY, .impatient = true},
    {"leaving", 2, 1, 2, 1, 2, ALL, .leaves = true},
    {"leaving-lent", 2, 2, 1, 1, 2, ALL, .lends = RANK_0, .leaves = true},
    {"leaving-from-root", 3, 1, 2, 1, 1, FROM_ROOT, .leaves = true},
    {"leaving-to-roots", 3, 1, 2, 1, 1, TO_ROOTS, .leaves = true, .peeks = true},
    {"dropped", 2, 1, 2, 2, 2, ALL, .lends = EVERYBODY, .drops = true},
    {"dropped-from-root", 3, 1, 2, 1, 1, FROM_ROOT, .lends = EVERYBODY, .drops = true},
    {"astray", 2, 1, 2, 2, 1, ALL, .astray = true},
    {"astray-lending", 2, 2, 2, 2, 2, ALL, .lends = EVERYBODY, .astray = true},
    {"astray-three", 3, 1, 1, 1, 1, ALL, .astray = true},
    {"astray-from-root", 3, 1, 2, 1, 1, FROM_ROOT, .astray = true},
    {"to-roots", 3, 1, 2, 1, 1, TO_ROOTS, .lends = NOBODY},
    {"to-roots-lending", 3, 1, 2, 1, 1, TO_ROOTS, .lends = EVERYBODY, .peeks = true},
    {"astray-in-root", 3, 1, 2, 1, 1, TO_ROOTS, .astray = true},
    {"astray-in-root-lending", 3, 1, 2, 1, 1, TO_ROOTS, .lends = EVERYBODY, .peeks = true, .astray = true},
};
/* clang-format on */

enum { MODELS = sizeof models / sizeof models[0], DEPTH_MAX = 4096 };
#define STATES_MAX UINT64_C(20000000)

/* ---- depth first: the stack is the path to a state ---- */

typedef struct explorer {
    walker w;
    uint64_t transitions;
    unsigned depth, deepest;
    const state *at; /* the state that is being expanded, and the number of moves from it */
    unsigned changes;
    const char *broken;
    struct {
        const char *what;
        unsigned rank, peer;
    } way[DEPTH_MAX];
} explorer;

static void go(explorer *e, const state *s) {
    if (e->broken != NULL) return;
    if (++e->depth > e->deepest) e->deepest = e->depth;
    e->at = s;
    e->changes = 0;
    find_moves(&e->w, s);
    if (e->changes == 0 && !finished(e->w.m, s) && e->broken == NULL)
        e->broken = "deadlock: nobody can move and not all is done";
    if (e->depth == DEPTH_MAX || seen_count > STATES_MAX) e->broken = "too many states";
    if (e->broken == NULL) e->depth--;
}

static void take(walker *w, state *next) {
    explorer *e = (explorer *)w;
    const state *from = e->at;
    unsigned at = e->depth - 1;
    /* Looking again, and dying, do not count as progress. */
    unsigned changes = e->changes + (next->died == from->died && memcmp(next, from, sizeof *next) != 0);
    e->transitions++;
    if (e->broken == NULL) {
        e->way[at].what = w->what;
        e->way[at].rank = w->rank;
        e->way[at].peer = w->peer;
        e->broken = w->broken;
        if (e->broken == NULL && visit(next, sizeof *next)) go(e, next);
    }
    e->at = from;
    e->changes = changes;
}

static void explore(const model *m, bool tells) {
    static explorer e;
    static state first;
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    e = (explorer){.w = {.m = m, .take = take}};
    memset(&first, 0, sizeof first);
    if (seen != NULL) memset(seen, 0, seen_room * sizeof *seen);
    seen_count = 0;
    visit(&first, sizeof first);
    go(&e, &first);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    printf("%-20s %9llu states %10llu transitions  depth %3u  %5.2f s  %s\n", m->name,
           (unsigned long long)seen_count, (unsigned long long)e.transitions, e.deepest,
           (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) * 1e-9,
           e.broken ? e.broken : "holds");
    fflush(stdout);
    CHECK_MSG(e.broken == NULL, "%s: %s", m->name, e.broken);
    for (unsigned i = 0; tells && e.broken != NULL && i < e.depth; i++)
        printf("    rank %u %s %u\n", e.way[i].rank, e.way[i].what, e.way[i].peer);
}

int main(int count, char **arguments) {
    bool found = count < 2;
    for (unsigned i = 0; i < MODELS; i++) {
        if (count > 1 && strcmp(models[i].name, arguments[1]) != 0) continue;
        found = true;
        explore(&models[i], count > 1);
    }
    CHECK_MSG(found, "no model is called %s", arguments[1]);
    free(seen);
    return check_result("comm_model");
}
