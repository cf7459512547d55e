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
 *    has found the mismatch, and one that waits for a rank that has nothing for it finds that too;
 *  - no deadlock: as long as something is left to do, somebody can move. A dead peer can be given up, so
 *    waits without an end would be found here.
 *
 * The words of one source arrive in the order in which they were stored, as in mapped memory. tests/faults
 * shows that the explorer finds planted faults.
 *
 * comm_model         all models, in seconds
 * comm_model NAME    one of them; prints the path to a violation */
#include "comm_model/moves.h"

#include "explore.h"

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
    {"nothing-1-slot", 2, 1, 3, 2, 1, ALL, .lends = NOBODY, .empties = true},
    {"nothing", 2, 3, 3, 2, 1, ALL, .lends = NOBODY, .empties = true},
    {"nothing-peeks", 2, 3, 3, 2, 1, ALL, .lends = EVERYBODY, .peeks = true, .empties = true},
    {"nothing-of-three", 3, 2, 2, 1, 1, FROM_ROOT, .lends = NOBODY, .empties = true},
    {"nothing-leaving", 2, 3, 3, 1, 1, ALL, .peeks = true, .leaves = true, .empties = true},
    {"nothing-one-dies", 2, 2, 2, 2, 1, ALL, .peeks = true, .deaths = true, .empties = true},
    {"astray-with-nothing", 2, 3, 2, 1, 1, ALL, .astray = true, .empties = true},
    {"astray-with-nothing-lending", 2, 4, 2, 1, 2, ALL, .lends = EVERYBODY, .peeks = true, .astray = true,
     .empties = true},
    {"astray-with-nothing-of-three", 3, 2, 1, 1, 1, ALL, .astray = true, .empties = true},
};
/* clang-format on */

static walker walking;

/* Looking again, and dying, do not count as progress. */
static void take(walker *w, state *next) {
    const state *from = x.at;
    x.changes += next->died == from->died && memcmp(next, from, sizeof *next) != 0;
    BREAKS(w->broken != NULL, w->broken);
    move(next, w->what, w->rank, w->peer);
}

static void find_in(const void *state_) {
    const state *s = state_;
    find_moves(&walking, s);
    BREAKS(x.changes == 0 && !finished(walking.m, s), "deadlock: nobody can move and not all is done");
}

static const char *begin(unsigned number, void *first) {
    (void)first;
    walking = (walker){.m = &models[number], .take = take};
    return models[number].name;
}

int main(int given, char **arguments) {
    static state first;
    return explore_all("comm_model", given, arguments, sizeof models / sizeof models[0], begin, &first,
                       sizeof first, find_in, "rank", "peer");
}
