/* Kills or stops ranks at random moments of steps that all ranks do at the same time, checks what the others
 * see of it, and brings in replacements. Ranks are processes that a coordinator tells what to do. They obey
 * the messages of coordinator.h and answer STEPS with the ranks that some operation lacked in `mask`, with
 * the longest operation in `took_ns`, and in `cause` with a bit for each phase in which one was given up.
 * STEPS tells them in `mask` which ranks may be lost. */
#ifndef EPW_TESTS_STRIKES_H
#define EPW_TESTS_STRIKES_H

#include "coordinator.h"
#include "traffic.h"

#include <stdio.h>

enum { ANY_KIND = 255 }; /* of steps: each chooses one */

typedef struct strike_options {
    uint32_t ranks, strikes, seed, deadline_ms, steps, after, within_us, seconds;
    const char *kind;
} strike_options;

#define STRIKE_OPTIONS(options)                                                                              \
    {"--ranks", .number = &(options).ranks}, {"--strikes", .number = &(options).strikes},                    \
        {"--seed", .number = &(options).seed}, {"--kind", .text = &(options).kind},                          \
        {"--deadline-ms", .number = &(options).deadline_ms}, {"--steps", .number = &(options).steps},        \
        {"--after", .number = &(options).after}, {"--within-us", .number = &(options).within_us}, {          \
        "--seconds", .number = &(options).seconds                                                            \
    }
#define STRIKE_USAGE                                                                                         \
    "[--ranks N] [--strikes N] [--seed N] [--kind NAME (of the steps in which a rank is struck; by "         \
    "default\n       all in turn)] [--deadline-ms N] [--steps N (in which a rank is struck)] [--within-us "  \
    "N "                                                                                                     \
    "(of their\n       beginning)] [--after N (steps without it)] [--seconds N (limit)]"

/* Processes that share a GPU take turns on it. */
static inline void strikes_complete(strike_options *options, uint32_t ranks, uint32_t gpus) {
    if (options->deadline_ms == 0) options->deadline_ms = ranks > gpus ? 2000 : 200;
}

typedef struct strikes {
    crew crew;
    strike_options *options;
    const char *const *kinds; /* names; the last one is NULL */
    uint32_t kind_count;
    uint64_t random, slowest_ns, lost, lost_by_each, number; /* of the next step */
    uint32_t noticed;                                        /* strikes that fell into the steps */
    uint32_t phases[EPW_PHASE_POINT + 1];                    /* strikes that were noticed in this phase */
    uint32_t epoch;
} strikes;

static inline uint64_t strikes_mix(uint64_t a, uint64_t b) {
    return traffic_mix(a + traffic_mix(b + UINT64_C(0x9e3779b97f4a7c15)));
}

/* ---- telling all ranks of a mask ---- */

/* Takes the answers, and returns the phases in which some rank has been lost. */
static inline uint32_t strikes_hear(strikes *w, uint64_t mask) {
    uint32_t phases = 0;
    w->slowest_ns = w->lost = 0;
    w->lost_by_each = UINT64_MAX;
    for (uint32_t r = 0; r < w->crew.ranks; r++) {
        if (!(mask & bit(r))) continue;
        message in = answer(&w->crew, r);
        if (in.took_ns > w->slowest_ns) w->slowest_ns = in.took_ns;
        if (in.what != STEPS) continue;
        w->lost |= in.mask;
        w->lost_by_each &= in.mask;
        phases |= in.cause;
    }
    return phases;
}

static inline void strikes_tell(strikes *w, uint64_t mask, message out) {
    for (uint32_t r = 0; r < w->crew.ranks; r++) {
        if (mask & bit(r)) tell(&w->crew, r, out);
    }
}

static inline void strikes_do(strikes *w, uint64_t mask, message out) {
    strikes_tell(w, mask, out);
    strikes_hear(w, mask);
}

static inline message strikes_steps(strikes *w, uint32_t count, uint32_t kind, uint64_t lost) {
    message steps = {.what = STEPS, .count = count, .kind = kind, .mask = lost, .iteration = w->number};
    w->number += count;
    return steps;
}

static inline void strikes_step(strikes *w, uint64_t mask, uint32_t count, uint64_t lost) {
    strikes_do(w, mask, strikes_steps(w, count, ANY_KIND, lost));
}

static inline void strikes_activate(strikes *w, uint64_t members) {
    strikes_do(w, members, (message){.what = ACTIVATE, .mask = members, .epoch = ++w->epoch});
}

/* ---- a strike ---- */

static inline void strikes_within(const strikes *w, uint64_t most, const char *what) {
    REQUIRE(w->slowest_ns < most, "an operation %s took %llu ms, with a deadline of %u", what,
            (unsigned long long)(w->slowest_ns / MS), w->options->deadline_ms);
}

/* Strikes `victim` at a random moment of the steps of all, and checks what the others see. */
static inline void strike(strikes *w, uint32_t victim, int with, uint32_t kind) {
    crew *c = &w->crew;
    const strike_options *o = w->options;
    const uint64_t all = bit(c->ranks) - 1, others = all & ~bit(victim), deadline = o->deadline_ms * MS;
    w->random = traffic_mix(w->random + 1);
    message steps = strikes_steps(w, o->steps, kind, bit(victim)), its = steps;
    its.mask = all;
    strikes_tell(w, others, steps);
    tell(c, victim, its);
    nanosleep(&(struct timespec){0, (long)(w->random % (o->within_us * UINT64_C(1000)))}, NULL);
    strike_with(c, victim, with);
    const uint32_t phases = strikes_hear(w, others);
    w->noticed += w->lost != 0;
    for (uint32_t i = 0; i <= EPW_PHASE_POINT; i++) w->phases[i] += phases >> i & 1;
    const uint64_t slack = c->ranks > c->gpus ? 4000 * MS : 200 * MS;
    strikes_within(w, 4 * deadline + slack, "beside a lost rank");
    if (w->lost_by_each == 0) { /* some had ended their steps before */
        strikes_step(w, others, 2, bit(victim));
        strikes_within(w, 4 * deadline + slack, "beside a lost rank");
    }
    REQUIRE(w->lost_by_each == bit(victim) && w->lost == bit(victim), "lost %llx, by each rank %llx, not %u",
            (unsigned long long)w->lost, (unsigned long long)w->lost_by_each, victim);
    /* It is a suspect by now, for which nobody waits. */
    strikes_step(w, others, o->after, bit(victim));
    strikes_within(w, deadline / 2 + slack, "without the lost rank");

    strikes_activate(w, others);
    strikes_step(w, others, o->after, 0);
    if (with == SIGSTOP) { /* it continues as if nothing had happened */
        send_signal(c, victim, SIGCONT);
        strikes_step(w, others, 2 * o->after, 0);
        answer(c, victim);
        end(c, victim, SIGKILL);
    }
    strikes_do(w, others, (message){.what = DISCONNECT, .peer = victim});
    replace(c, victim, 0);
    strikes_activate(w, all);
    strikes_step(w, all, o->after, 0);
}

/* The number of the kind; that of kinds, if there is none of that name. */
static inline uint32_t strikes_kind(const strikes *w, const char *name) {
    uint32_t kind = 0;
    while (kind < w->kind_count && strcmp(name, w->kinds[kind]) != 0) kind++;
    return kind;
}

/* Strike number `i` is of another kind than those before, one of three stops the rank, and all of that goes
 * round. */
static inline void strike_next(strikes *w, uint32_t i) {
    const strike_options *o = w->options;
    const uint32_t turn = (uint32_t)(strikes_mix(o->seed, 0) % w->kind_count);
    const uint32_t kind = o->kind ? strikes_kind(w, o->kind) : (i + i / w->kind_count + turn) % w->kind_count;
    strike(w, (i + i / 12) % w->crew.ranks, (i + i / 3 + turn) % 3 == 2 ? SIGSTOP : SIGKILL, kind);
}

/* The rest of main, after ranks_options: starts the ranks and strikes them; or is one of them, by `body`.
 * Returns the exit code; if it is 0 and the program was started by hand, *w says what has been seen. */
static inline int strikes_main(strikes *w, strike_options *options, const char *const *kinds, rank_body *body,
                               const char *name, char **argv) {
    *w = (strikes){.crew = {.ranks = options->ranks, .argv = argv},
                   .options = options,
                   .kinds = kinds,
                   .random = options->seed};
    while (kinds[w->kind_count] != NULL) w->kind_count++;
    if (options->kind && strikes_kind(w, options->kind) == w->kind_count) {
        fprintf(stderr, "%s: no kind of steps is called %s\n", name, options->kind);
        return 2;
    }
    ranks_limit(name, options->seconds);
    crew *c = &w->crew;
    const int ended = ranks_begin(body, 2, &c->ranks, &c->gpus, argv);
    if (ended >= 0) return ended;
    strikes_complete(options, c->ranks, c->gpus);
    const uint64_t all = bit(c->ranks) - 1;
    start_all(c, 0);
    strikes_activate(w, all);
    strikes_step(w, all, options->after, 0);
    for (uint32_t i = 0; i < options->strikes; i++) strike_next(w, i);
    strikes_do(w, all, (message){.what = QUIT});
    for (uint32_t r = 0; r < c->ranks; r++) end(c, r, 0);
    return 0;
}

#endif
