/* The protocol explored: every state of small groups of ranks, random walks through larger ones, and the
 * proof that the explorer finds a protocol that is broken on purpose. The decisions are c/peer/rules.h, as
 * the host device calls them; what carries them out is modelled in model/moves.h. Checked in every state:
 *  - no slot is written while it is read, nor read while it is written;
 *  - what is read is of the operation that reads it;
 *  - no deadlock: as long as something is left to do, somebody can move;
 *  - nobody is suspected without a timeout;
 *  - with clocks, beacons and one rank that dies or is stopped at any step: nobody else is suspected, a wait
 * for that rank alone ends within a deadline, any other within two;
 *  - after the change of membership nobody is suspected.
 *
 * model                       the default models, in about a minute
 * model NAME                  one model, of those below; the large ones too
 * model NAME [WALKS [SEED]]   one that is walked through */
#include "model/explore.h"

#include "check.h"

#define ALL(n) ((1 << (n)) - 1)

/* Who is a member: everyone in one epoch; in two; all but the last in the second; and all again in the third.
 */
#define ENDS(n)    .epochs = 1, .members = {0, ALL(n)}
#define STAYS(n)   .epochs = 2, .members = {0, ALL(n), ALL(n)}
#define LEAVES(n)  .epochs = 2, .members = {0, ALL(n), ALL((n)-1)}
#define RETURNS(n) .epochs = 3, .members = {0, ALL(n), ALL((n)-1), ALL(n)}
#define CRASH      .timed = true, .fault = FAULT_CRASH
#define SLEEP      .timed = true, .fault = FAULT_SLEEP

/* Name, ranks, lanes, operations on each lane in each epoch, membership, and what else it allows. */
#define MODEL(name_, ranks_, lanes_, ops_, who, ...)                                                         \
    { .name = name_, .ranks = ranks_, .lanes = lanes_, .ops = ops_, who(ranks_), __VA_ARGS__ }

/* clang-format off: a model is a line */
/* Explored by default. */
static const model sound[] = {
    MODEL("no-timeout-3", 3, 1, 2, STAYS, .release = true),
    MODEL("no-timeout-2x2", 2, 2, 2, STAYS, .release = true),
    MODEL("any-3", 3, 1, 1, STAYS, .release = true, .timeouts = TIMEOUTS_ANY),
    MODEL("any-3-leaves", 3, 1, 1, LEAVES, .release = true, .eager = true, .timeouts = TIMEOUTS_ANY),
    MODEL("any-3-returns", 3, 1, 1, RETURNS, .release = true, .eager = true, .timeouts = TIMEOUTS_ANY),
    MODEL("any-2x2", 2, 2, 1, STAYS, .release = true, .eager = true, .timeouts = TIMEOUTS_ANY),
    MODEL("any-2-torn", 2, 1, 3, STAYS, .release = true, .torn = true, .eager = true,
          .timeouts = TIMEOUTS_ANY),
    MODEL("one-timeout-3", 3, 1, 1, STAYS, .release = true, .timeouts = 1),
    MODEL("one-timeout-2x2", 2, 2, 1, STAYS, .release = true, .timeouts = 1),
    MODEL("crash-3", 3, 1, 2, LEAVES, CRASH, .agreed = true),
    MODEL("crash-3-alone", 3, 1, 2, LEAVES, CRASH),
    MODEL("crash-3-release", 3, 1, 1, LEAVES, .release = true, .agreed = true, CRASH),
    MODEL("crash-2x2", 2, 2, 2, LEAVES, CRASH, .agreed = true),
    MODEL("crash-2x2-release", 2, 2, 2, LEAVES, .release = true, .agreed = true, CRASH),
    MODEL("crash-4", 4, 1, 1, LEAVES, CRASH, .agreed = true),
    MODEL("sleep-3", 3, 1, 2, LEAVES, SLEEP, .agreed = true),
};

/* By name only: minutes, or gigabytes. */
static const model large[] = {
    MODEL("no-timeout-3-torn", 3, 1, 1, STAYS, .release = true, .torn = true),
    MODEL("any-3-torn", 3, 1, 1, STAYS, .torn = true, .timeouts = TIMEOUTS_ANY),
    MODEL("any-3-ops", 3, 1, 2, STAYS, .timeouts = TIMEOUTS_ANY),
    MODEL("any-2x2-torn", 2, 2, 1, STAYS, .release = true, .torn = true, .eager = true,
          .timeouts = TIMEOUTS_ANY),
    MODEL("any-2x2-ops", 2, 2, 2, STAYS, .release = true, .timeouts = TIMEOUTS_ANY),
    MODEL("crash-3x2", 3, 2, 1, LEAVES, CRASH, .agreed = true),
    MODEL("crash-3-release-ops", 3, 1, 2, LEAVES, .release = true, .agreed = true, CRASH),
};

/* Walked through. */
static const model walked[] = {
    MODEL("walk-any-4", 4, 2, 4, LEAVES, .release = true, .torn = true, .eager = true,
          .timeouts = TIMEOUTS_ANY),
    MODEL("walk-any-5", 5, 2, 3, RETURNS, .release = true, .torn = true, .eager = true,
          .timeouts = TIMEOUTS_ANY),
    MODEL("walk-no-timeout-5", 5, 2, 4, STAYS, .release = true, .torn = true),
    MODEL("walk-crash-4x2", 4, 2, 3, LEAVES, CRASH, .agreed = true),
    MODEL("walk-crash-5", 5, 1, 4, LEAVES, CRASH, .agreed = true),
};

/* Each must be found out. */
static const model broken[] = {
    MODEL("no epoch word", 2, 1, 1, STAYS, .release = true, .mutation = NO_EPOCH_WORD),
    MODEL("no permission", 2, 1, 2, STAYS, .release = true, .mutation = NO_PERMISSION),
    MODEL("no DROPPED word", 2, 1, 1, ENDS, .timeouts = 1, .mutation = NO_DROPPED),
    MODEL("release owes nothing", 2, 1, 2, STAYS, .release = true, .mutation = NO_DEBT),
    MODEL("release answers at once", 2, 1, 3, STAYS, .release = true, .mutation = RELEASE_AT_ONCE),
    MODEL("any epoch matches", 2, 1, 2, STAYS, .release = true, .timeouts = TIMEOUTS_ANY,
          .mutation = MATCH_OP_ONLY),
    MODEL("any op matches", 2, 1, 2, STAYS, .release = true, .mutation = MATCH_EPOCH_ONLY),
    MODEL("gone before match", 2, 1, 1, STAYS, .release = true, .mutation = GONE_BEFORE_MATCH),
    MODEL("word loaded before DROPPED", 2, 1, 1, STAYS, .torn = true, .mutation = WORD_BEFORE_GONE),
    MODEL("no beacons", 3, 1, 1, LEAVES, CRASH, .agreed = true, .mutation = NO_BEACONS),
};
/* clang-format on */

enum { WALKS = 1000 };

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static void report(const model *m, const findings *f) {
    printf("%-28s %10llu states %11llu transitions  depth %3u  %5.1f s  %s\n", m->name,
           (unsigned long long)f->states, (unsigned long long)f->transitions, f->depth, f->seconds,
           f->broken      ? f->broken
           : f->exhausted ? "holds"
                          : "not exhausted");
    fflush(stdout);
}

static void check_holds(const model *m, uint64_t limit) {
    findings f = explore(m, limit, true);
    report(m, &f);
    CHECK_MSG(f.broken == NULL && f.exhausted, "%s: %s", m->name,
              f.broken ? f.broken : "more states than the limit");
}

static void check_walks(const model *m, uint64_t count, uint64_t seed) {
    findings sum = {.exhausted = true, .seconds = -now_seconds()};
    for (uint64_t i = 0; i < count && sum.broken == NULL; i++) {
        findings f = walk(m, seed + i, false);
        sum.transitions += f.transitions;
        sum.broken = f.broken;
        CHECK_MSG(f.broken == NULL, "%s, seed %llu: %s", m->name, (unsigned long long)(seed + i), f.broken);
        if (f.broken != NULL) walk(m, seed + i, true);
    }
    sum.seconds += now_seconds();
    printf("%-28s %10llu walks  %11llu transitions  seeds from %llu  %5.1f s  %s\n", m->name,
           (unsigned long long)count, (unsigned long long)sum.transitions, (unsigned long long)seed,
           sum.seconds, sum.broken ? sum.broken : "holds");
    fflush(stdout);
}

static void check_found_out(const model *m) {
    findings f = explore(m, UINT64_C(3000000), false);
    printf("broken: %-28s %8llu states  %s\n", m->name, (unsigned long long)f.states,
           f.broken ? f.broken : "NOT FOUND OUT");
    fflush(stdout);
    CHECK_MSG(f.broken != NULL, "%s is not found out", m->name);
}

/* What moves.h forget() relies on: a word, DROPPED word or epoch word of an epoch before the reader's has the
 * effect of none. */
static void check_old_words(void) {
    static const epw_sight nothing;
    for (uint32_t i = 0; i < 1u << 12; i++) {
        uint32_t epoch = 2 + (i & 1), op = 1 + (i >> 1 & 3), old_op = i >> 3 & 7, value = i >> 6 & 1;
        epw_sight seen = {.dropped = epw_word((i >> 7 & 3) % epoch, 0, 0),
                          .epoch_word = epw_word((i >> 9 & 3) % epoch, 0, 0),
                          .word = epw_word((i >> 11) % epoch, old_op, value)};
        for (int first = 0; first < 2; first++) {
            CHECK_MSG(epw_rule_may_send(seen, epoch, op, first) ==
                          epw_rule_may_send(nothing, epoch, op, first),
                      "an old word permits, %u", i);
        }
        CHECK_MSG(epw_rule_arrived(seen, epoch, op) == epw_rule_arrived(nothing, epoch, op),
                  "an old word counts, %u", i);
    }
}

static int run_all(void) {
    check_old_words();
    for (size_t i = 0; i < COUNT(sound); i++) check_holds(&sound[i], UINT64_C(30000000));
    for (size_t i = 0; i < COUNT(walked); i++) check_walks(&walked[i], WALKS, 1);
    for (size_t i = 0; i < COUNT(broken); i++) check_found_out(&broken[i]);
    return check_result("model");
}

int main(int count, char **arguments) {
    if (count < 2) return run_all();
    const char *name = arguments[1];
    uint64_t walks = count > 2 ? strtoull(arguments[2], NULL, 10) : WALKS;
    uint64_t seed = count > 3 ? strtoull(arguments[3], NULL, 10) : 1;
    bool found = false;
    for (size_t i = 0; i < COUNT(sound) + COUNT(large); i++) {
        const model *m = i < COUNT(sound) ? &sound[i] : &large[i - COUNT(sound)];
        if (strcmp(m->name, name) != 0) continue;
        found = true;
        check_holds(m, UINT64_C(1) << 31);
    }
    for (size_t i = 0; i < COUNT(walked); i++) {
        if (strcmp(walked[i].name, name) != 0) continue;
        found = true;
        check_walks(&walked[i], walks, seed);
    }
    CHECK_MSG(found, "no model is called %s", name);
    return check_result("model");
}
