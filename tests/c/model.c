/* Exploration of the protocol: every state of small groups of ranks, and random walks through larger ones.
 * c/ep/lane.c, c/peer/wait.h and rules.h themselves run; model/moves.h models their caller after
 * c/ep/host/drive.c. Checked in every state:
 *  - no slot is written while it is read, nor read while it is written, and nothing is written after a
 *    farewell;
 *  - what is read belongs to the operation that reads it;
 *  - no deadlock: as long as something is left to do, somebody can move;
 *  - nobody is given up without a timeout, except a rank that begins an epoch at another step, with which the
 *    others exchange no rows, and a rank that another one was told to continue without;
 *  - if a rank is replaced, its former incarnation, slow but alive, writes no slot and no word that belongs
 *    to the new one, since a lease is granted to only one of them at a time;
 *  - with time: only a rank that died or was stopped is given up, even if callers stay away for almost a
 *    deadline whenever it is their turn; a wait only for that rank ends within a deadline and, if callers are
 *    prompt, any other wait within two; nobody waits for a rank that has said farewell; and no lane sleeps
 *    when it has something to do.
 *
 * tests/faults shows that the explorer finds planted faults, in the library and, a few, in the model of
 * windows and leases.
 *
 * model                       the default models, in about a minute
 * model rules                 the assumptions of the exploration about the rules
 * model NAME                  one model, of those below; the large ones too
 * model NAME [WALKS [SEED]]   a model that is explored by random walks */
#include "model/explore.h"

#include "check.h"

#define ALL(n) ((1 << (n)) - 1)

/* The members: everyone in one epoch; in two; all but the last rank in the second; and all again in the
 * third. */
#define ENDS(n)    .epochs = 1, .members = {0, ALL(n)}
#define STAYS(n)   .epochs = 2, .members = {0, ALL(n), ALL(n)}
#define LEAVES(n)  .epochs = 2, .members = {0, ALL(n), ALL((n)-1)}
#define RETURNS(n) .epochs = 3, .members = {0, ALL(n), ALL((n)-1), ALL(n)}
#define CRASH      .timed = true, .fault = FAULT_CRASH
#define STOP       .timed = true, .fault = FAULT_STOP
#define ANY        .timeouts = TIMEOUTS_ANY
#define REPLACED   .eager = true, .replaced = true
#define GOES       .fault = FAULT_LEAVE
#define ASTRAY     .astray = true

/* Name, ranks, lanes, operations on each lane in each epoch, membership, and options. */
#define MODEL(name_, ranks_, lanes_, ops_, who, ...)                                                         \
    { .name = name_, .ranks = ranks_, .lanes = lanes_, .ops = ops_, who(ranks_), __VA_ARGS__ }

/* clang-format off: a model is a line */
/* Explored by default. */
static const model sound[] = {
    /* Without time: every order, and waits that expire for no reason. */
    MODEL("no-timeout-2", 2, 1, 3, STAYS, .release = true),
    MODEL("no-timeout-3", 3, 1, 1, ENDS, .release = true),
    MODEL("no-timeout-2x2", 2, 2, 1, ENDS, .release = true),
    MODEL("wrap-2", 2, 1, 4, STAYS, .release = true, .start = EPW_OP_MAX - 2),
    MODEL("any-2", 2, 1, 1, RETURNS, .release = true, .eager = true, ANY),
    MODEL("torn-2", 2, 1, 1, STAYS, .torn = true),
    MODEL("any-2-torn", 2, 1, 1, STAYS, .torn = true, .eager = true, ANY),
    MODEL("left-2", 2, 1, 2, LEAVES, GOES, .release = true),
    MODEL("left-2x2", 2, 2, 1, LEAVES, GOES, .release = true),
    MODEL("any-3", 3, 1, 1, ENDS, ANY),
    MODEL("astray-2", 2, 1, 2, STAYS, ASTRAY, .release = true),
    MODEL("astray-3", 3, 1, 1, ENDS, ASTRAY),
    MODEL("astray-2x2", 2, 2, 1, ENDS, ASTRAY),
    MODEL("revoked-2", 2, 1, 2, STAYS, .release = true, .revokes = 2),
    MODEL("revoked-2-torn", 2, 1, 1, STAYS, .torn = true, .revokes = 2),
    MODEL("revoked-3", 3, 1, 1, ENDS, .revokes = 2),
    MODEL("revoked-2x2", 2, 2, 1, ENDS, .revokes = 1),
    MODEL("one-timeout-3", 3, 1, 1, LEAVES, .eager = true, .timeouts = 1),
    MODEL("one-timeout-2x2", 2, 2, 1, ENDS, .timeouts = 1),
    /* A rank that is replaced although it may be alive, for any time. */
    MODEL("dead-2-replaced", 2, 1, 1, RETURNS, REPLACED, .release = true, .fault = FAULT_CRASH, ANY),
    MODEL("left-2-replaced", 2, 1, 1, RETURNS, REPLACED, GOES, .release = true, ANY),
    MODEL("left-2-replaced-ops", 2, 1, 2, RETURNS, REPLACED, GOES, ANY),
    MODEL("left-3-replaced", 3, 1, 1, RETURNS, REPLACED, GOES),
    /* With time. */
    MODEL("crash-3", 3, 1, 2, LEAVES, CRASH, .agreed = true),
    MODEL("crash-3-away", 3, 1, 1, ENDS, CRASH, .away = 3),
    MODEL("crash-3-release", 3, 1, 1, ENDS, CRASH, .release = true),
    MODEL("crash-2x2", 2, 2, 2, LEAVES, CRASH, .agreed = true),
    MODEL("crash-4", 4, 1, 1, ENDS, CRASH),
    MODEL("stop-3", 3, 1, 1, LEAVES, STOP, .agreed = true),
    MODEL("stop-2-release", 2, 1, 2, LEAVES, STOP, .release = true),
    MODEL("crash-3-revoked", 3, 1, 1, ENDS, CRASH, .revokes = 1),
    MODEL("crossed-2x2", 2, 2, 1, ENDS, .timed = true, .crossed = true),
    MODEL("left-out-3", 3, 1, 1, LEAVES, .timed = true, .eager = true),
    MODEL("late-halves-2", 2, 1, 2, ENDS, .timed = true, .split = true, .away = 3),
    MODEL("late-halves-3", 3, 1, 1, ENDS, CRASH, .split = true, .away = 3, .late = 1),
    MODEL("late-halves-3-all", 3, 1, 1, ENDS, CRASH, .split = true, .away = 3),
    MODEL("event-2-release", 2, 1, 2, ENDS, CRASH, .release = true, .split = true, .events = true, .away = 3),
    MODEL("event-3", 3, 1, 1, ENDS, CRASH, .split = true, .events = true, .away = 3, .late = 1),
    MODEL("long-3", 3, 1, 2, ENDS, CRASH, .longs = 1, .away = 1),
    MODEL("debt-2", 2, 1, 2, ENDS, CRASH, .release = true, .longs = 1, .away = 3, .late = 1),
    MODEL("debt-2-short", 2, 1, 2, ENDS, CRASH, .release = true, .longs = 1, .long_once = true),
    MODEL("long-debt-2", 2, 1, 2, ENDS, .timed = true, .release = true, .longs = 1, .away = 6, .late = 2),
};

/* Only by name: they take minutes, or gigabytes. */
static const model large[] = {
    MODEL("no-timeout-3-ops", 3, 1, 2, ENDS, .release = true),
    MODEL("no-timeout-2x2-ops", 2, 2, 2, STAYS, .release = true),
    MODEL("any-2-ops", 2, 1, 2, STAYS, .release = true, .eager = true, ANY),
    MODEL("any-3-release", 3, 1, 1, ENDS, .release = true, .timeouts = 1),
    MODEL("one-timeout-2x2-release", 2, 2, 1, STAYS, .release = true, .timeouts = 1),
    MODEL("crash-3x2", 3, 2, 1, ENDS, CRASH),
    MODEL("crash-2x2-revoked", 2, 2, 1, ENDS, CRASH, .revokes = 1),
    MODEL("event-3-all", 3, 1, 1, ENDS, CRASH, .split = true, .events = true, .away = 3),
    MODEL("debt-3", 3, 1, 2, ENDS, CRASH, .release = true, .longs = 1),
};

/* Explored by random walks. */
static const model walked[] = {
    MODEL("walk-any-4", 4, 2, 3, LEAVES, .release = true, .torn = true, .eager = true, ANY),
    MODEL("walk-crash-4x2", 4, 2, 2, LEAVES, CRASH, .agreed = true),
};
/* clang-format on */

enum { WALKS = 300 };

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

/* The assumption of pack.h forget_old_words: a word, farewell or epoch word of an earlier epoch than the
 * reader's has the same effect as none. Checked before every exploration, for the rules that it uses. */
static void check_old_words(void) {
    static const epw_sight nothing;
    for (uint32_t i = 0; i < 1u << 13; i++) {
        uint32_t epoch = 2 + (i & 1), op = 1 + (i >> 1 & 3), old_op = i >> 3 & 7, value = i >> 6 & 1;
        epw_sight seen = {.dropped = epw_word((i >> 7 & 3) % epoch, 0, 0),
                          .epoch_word = epw_epoch_word((i >> 9 & 3) % epoch, i >> 6 & 1),
                          .word = epw_word((i >> 11) % epoch, old_op, value)};
        uint64_t own = epw_epoch_word(epoch, i & 1);
        for (int first = 0; first < 2; first++) {
            CHECK_MSG(epw_rule_may_send(seen, own, op, first) == epw_rule_may_send(nothing, own, op, first),
                      "an old word permits, %u", i);
        }
        CHECK_MSG(epw_rule_arrived(seen, own, op) == epw_rule_arrived(nothing, own, op),
                  "an old word counts, %u", i);
    }
}

/* A match depends on each bit of epoch and operation, and on no bit of the value; an epoch word matches in
 * all its bits. A farewell withdraws a permission, but not what has arrived. */
static void check_rules(void) {
    enum { EPOCH = 5, OP = 9 };
    const uint64_t own = epw_epoch_word(EPOCH, EPW_STEP_MAX - 3);
    uint64_t exact = epw_word(EPOCH, OP, 3), before = epw_word(EPOCH, OP - 1, 3);
    for (unsigned i = 0; i < 64; i++) {
        uint64_t one = UINT64_C(1) << i;
        epw_sight seen = {.word = exact ^ one}, last = {.word = before ^ one},
                  begun = {.epoch_word = own ^ one};
        epw_verdict want = i < EPW_WORD_VALUE_BITS ? EPW_ARRIVED : EPW_WAITING;
        CHECK_MSG(epw_rule_arrived(seen, own, OP) == want, "bit %u", i);
        CHECK_MSG(epw_rule_may_send(last, own, OP, false) == want, "bit %u", i);
        uint32_t cause = i < 41                              ? EPW_CAUSE_STEP
                         : epw_word_epoch(own ^ one) > EPOCH ? EPW_CAUSE_SUPERSEDED
                                                             : EPW_CAUSE_NONE;
        want = cause != EPW_CAUSE_NONE ? EPW_GONE : EPW_WAITING;
        CHECK_MSG(epw_rule_gone(begun, own) == cause, "bit %u", i);
        CHECK_MSG(epw_rule_may_send(begun, own, 1, true) == want, "bit %u", i);
        CHECK_MSG(epw_rule_arrived(begun, own, OP) == want, "bit %u", i);
    }
    for (uint32_t epoch = 0; epoch < 2 * EPOCH; epoch++) {
        epw_sight farewell = {.dropped = epw_word(epoch, 0, 0)},
                  moved = {.epoch_word = epw_epoch_word(epoch, epw_word_step(own))};
        CHECK(epw_rule_gone(farewell, own) == (epoch >= EPOCH ? EPW_CAUSE_DROPPED : EPW_CAUSE_NONE));
        CHECK(epw_rule_gone(moved, own) == (epoch > EPOCH ? EPW_CAUSE_SUPERSEDED : EPW_CAUSE_NONE));
        farewell.word = before;
        CHECK(epw_rule_may_send(farewell, own, OP, false) == (epoch >= EPOCH ? EPW_GONE : EPW_ARRIVED));
        farewell.word = exact;
        CHECK(epw_rule_arrived(farewell, own, OP) == EPW_ARRIVED);
        CHECK(epw_rule_may_send(moved, own, 1, true) == (epoch > EPOCH    ? EPW_GONE
                                                         : epoch == EPOCH ? EPW_ARRIVED
                                                                          : EPW_WAITING));
        /* If a peer has also dropped this rank, the epoch word says why. */
        epw_sight both = {.dropped = epw_word(EPOCH, 0, 0), .epoch_word = epw_epoch_word(epoch, 0)};
        CHECK(epw_rule_gone(both, own) == (epoch > EPOCH    ? EPW_CAUSE_SUPERSEDED
                                           : epoch == EPOCH ? EPW_CAUSE_STEP
                                                            : EPW_CAUSE_DROPPED));
    }
}

static int run_all(void) {
    check_rules();
    for (size_t i = 0; i < COUNT(sound); i++) check_holds(&sound[i], UINT64_C(30000000));
    for (size_t i = 0; i < COUNT(walked); i++) check_walks(&walked[i], WALKS, 1);
    return check_result("model");
}

int main(int count, char **arguments) {
    check_old_words();
    if (count < 2) return run_all();
    const char *name = arguments[1];
    uint64_t walks = count > 2 ? strtoull(arguments[2], NULL, 10) : WALKS;
    uint64_t seed = count > 3 ? strtoull(arguments[3], NULL, 10) : 1;
    bool found = strcmp(name, "rules") == 0;
    if (found) check_rules();
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
