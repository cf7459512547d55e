/* Verdicts of steps: reports as words; two thousand histories, or as many as the argument says, of ranks that
 * fault, die and are replaced, through the pure functions; and the calls of the interface. */
#include "ep/verdict.h"
#include "group.h"

#include <stdlib.h>

/* ---- reports ---- */

/* `report`: of an earlier step of the epoch. */
static uint64_t after(uint64_t report, uint64_t step, bool faulted, bool is_last) {
    return epw_report_next(report, epw_word_epoch(report), step, faulted, is_last);
}
static uint64_t next(uint64_t report, uint64_t step, bool faulted) {
    return after(report, step, faulted, false);
}
/* The first of an epoch. */
static uint64_t first_of(uint32_t epoch, uint64_t step, bool faulted) {
    return epw_report_next(0, epoch, step, faulted, false);
}

static void reports_tell_of_their_steps(void) {
    uint64_t report = first_of(7, 100, false);
    CHECK(epw_word_epoch(report) == 7 && epw_report_says(report, 99) == EPW_SAYS_CLEAN);
    CHECK(epw_report_says(report, 100) == EPW_SAYS_CLEAN);
    CHECK(epw_report_says(report, 101) == EPW_SAYS_NOTHING);
    report = next(report, 101, true);
    report = next(report, 104, true); /* of 102 and 103 as well */
    report = next(report, 105, false);
    for (uint64_t step = 100; step <= 105; step++)
        CHECK(epw_report_says(report, step) == (step % 5 == 0 ? EPW_SAYS_CLEAN : EPW_SAYS_FAULTED));
    report = next(report, 116, false);
    CHECK(epw_report_says(report, 101) == EPW_SAYS_FAULTED);
    CHECK(epw_report_says(report, 100) == EPW_SAYS_NO_MORE);
    report = next(report, 1000, false);
    CHECK(epw_word_value(report) == 0 && epw_report_says(report, 999) == EPW_SAYS_CLEAN);
    report = next(report, 2000, true);
    CHECK(epw_report_says(report, 1985) == EPW_SAYS_FAULTED && epw_word_epoch(report) == 7);
}

/* A member was given up: the last report before that stays visible. */
static void the_last_report_of_an_epoch_stays(void) {
    uint64_t report = first_of(7, 3, false);
    report = after(report, 4, false, true);
    for (uint64_t step = 5; step < 100; step++) report = after(report, step, step % 2 == 0, true);
    CHECK(epw_report_says(report, 3) == EPW_SAYS_CLEAN && epw_report_says(report, 4) == EPW_SAYS_CLEAN);
    CHECK(epw_report_says(report, 5) == EPW_SAYS_FAULTED && epw_report_says(report, 99) == EPW_SAYS_FAULTED);
}

static void steps_may_pass_their_24_bits(void) {
    const uint64_t first = (UINT64_C(3) << 24) - 2;
    uint64_t report = first_of(1, first, false);
    for (uint64_t step = first; step < first + 5; step++) {
        if (step > first) {
            CHECK(epw_report_says(report, step) == EPW_SAYS_NOTHING);
            report = next(report, step, step == first + 1);
        }
        CHECK(epw_report_says(report, step) == (step == first + 1 ? EPW_SAYS_FAULTED : EPW_SAYS_CLEAN));
        CHECK(epw_report_says(report, first) == EPW_SAYS_CLEAN);
    }
    CHECK(epw_report_says(report, first + 1) == EPW_SAYS_FAULTED);
}

/* A fault before the first report counts for all steps until then, however far on that is. */
static void a_fault_counts_from_the_first_step(void) {
    static const uint64_t steps[] = {0, 3, 40, (UINT64_C(1) << 24) - 1, (UINT64_C(1) << 24) + 3};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const uint64_t report = first_of(1, steps[i], true);
        for (uint64_t back = 0; back <= steps[i] && back < (uint64_t)EPW_REPORT_STEPS; back++)
            CHECK(epw_report_says(report, steps[i] - back) == EPW_SAYS_FAULTED);
    }
    CHECK(first_of(1, (UINT64_C(1) << 24) - 1, false) != epw_report_none(epw_epoch_word(1, 0)));
}

/* ---- histories ---- */

enum { MEMBERS = 4, EPOCHS = 8, STEPS = 200, POSTS = 32 };

typedef struct post {
    uint32_t peer, word;
    uint64_t value;
} post;

/* What an incarnation of a rank has found or done in a step of an epoch. */
typedef struct done {
    bool begun, ended, faulted;
    uint32_t verdict;
} done;

typedef struct member {
    bool alive;
    uint32_t since; /* the first epoch of which this incarnation may be a member */
    epw_verdicts v;
    uint64_t step;               /* the next step to begin or to end */
    bool in_step, suspects;      /* suspects: it continues without some member */
    uint64_t window[MEMBERS][4]; /* by source: EPOCH, REPORT, LAST, LAST_BUT_ONE */
    post posts[POSTS];           /* that have yet to reach their peers, in order */
    uint32_t posted, to_post;
    done done[EPOCHS][STEPS];
} member;

typedef struct world {
    uint64_t random;
    member of[MEMBERS];
    uint32_t epochs; /* epochs decided so far; epoch e is at [e] */
    epw_mask members[EPOCHS];
    uint64_t first[EPOCHS];
} world;

enum { W_EPOCH, W_REPORT, W_LAST, W_LAST_BUT_ONE };

static uint32_t pick(world *w, uint32_t n) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (uint32_t)(w->random >> 33) % n;
}

static uint32_t epoch_of(const member *m) {
    return epw_word_epoch(m->v.epoch_word);
}

static void add(member *m, uint32_t peer, uint32_t word, uint64_t value) {
    m->posts[m->to_post++] = (post){peer, word, value};
}

static epw_reports load(const void *context, uint32_t peer) {
    const member *m = context;
    const uint64_t *of = m->window[peer];
    return (epw_reports){of[W_REPORT], of[W_EPOCH], of[W_LAST_BUT_ONE], of[W_LAST]};
}

static void begin_epoch(world *w, uint32_t rank, uint32_t epoch) {
    member *m = &w->of[rank];
    m->in_step = m->suspects = false;
    epw_verdicts_begin(&m->v, m->window[rank][W_REPORT], epw_epoch_word(epoch, w->first[epoch]),
                       &w->members[epoch]);
    m->step = w->first[epoch];
    EPW_MASK_FOR(peer, &w->members[epoch], MEMBERS) {
        add(m, peer, W_LAST, m->v.past[0].last);
        add(m, peer, W_LAST_BUT_ONE, m->v.past[1].last);
        add(m, peer, W_EPOCH, m->v.epoch_word);
    }
}

/* Whether every member has begun the step, so that it may be complete for a member that ends it. */
static bool all_take_part(const world *w, uint32_t epoch, uint64_t step) {
    bool all = true;
    EPW_MASK_FOR(peer, &w->members[epoch], MEMBERS) all &= w->of[peer].done[epoch][step].begun;
    return all;
}

static void go_on(world *w, uint32_t rank) {
    member *m = &w->of[rank];
    uint32_t epoch = epoch_of(m);
    if (m->posted < m->to_post) {
        const post *p = &m->posts[m->posted++];
        w->of[p->peer].window[rank][p->word] = p->value;
        if (m->posted == m->to_post) m->posted = m->to_post = 0;
        return;
    }
    uint32_t newest = w->epochs;
    if (epoch < newest && epw_mask_has(&w->members[newest], rank) && m->since <= newest) {
        /* Some are so slow that they skip an epoch; nobody begins one before its step. */
        if (!m->in_step || pick(w, 2)) begin_epoch(w, rank, pick(w, 8) || epoch == 0 ? newest : epoch + 1);
        return;
    }
    if (epoch == 0 || epoch < newest || m->step >= STEPS) return;
    done *d = &m->done[epoch][m->step];
    if (!m->in_step) {
        m->in_step = d->begun = true;
        return;
    }
    bool whole = all_take_part(w, epoch, m->step);
    if (!whole && !m->suspects && pick(w, 4)) return; /* it waits, and sometimes gives up */
    m->in_step = false;
    d->ended = true;
    d->faulted = !whole || m->suspects || pick(w, 20) == 0;
    m->suspects |= !whole && pick(w, 4);
    epw_verdicts_report(&m->v, m->step);
    uint64_t report = epw_report_next(m->window[rank][W_REPORT], epoch, m->step, d->faulted, m->suspects);
    m->window[rank][W_REPORT] = report;
    EPW_MASK_FOR(peer, &w->members[epoch], MEMBERS) if (peer != rank) add(m, peer, W_REPORT, report);
    m->step++;
}

static void ask(world *w, uint32_t rank, uint32_t epoch, uint64_t step) {
    member *m = &w->of[rank];
    done *d = &m->done[epoch][step];
    if (!d->ended || d->verdict == EPW_VERDICT_UNKNOWN) return;
    uint32_t found = epw_verdicts_of(&m->v, rank, epoch, step, load, m);
    bool was = d->verdict == EPW_VERDICT_CLEAN || d->verdict == EPW_VERDICT_FAULTED;
    if (was && found != EPW_VERDICT_UNKNOWN && found != EPW_VERDICT_PENDING)
        CHECK_MSG(found == d->verdict, "rank %u changes its mind on step %llu", rank,
                  (unsigned long long)step);
    if (!was) d->verdict = found;
}

/* Starts a new incarnation of a rank that has died. */
static void replace(world *w, uint32_t rank) {
    w->of[rank] = (member){.alive = true, .since = w->epochs + 1};
    for (uint32_t peer = 0; peer < MEMBERS; peer++) /* its window is a new one on every side */
        memset(w->of[peer].window[rank], 0, sizeof w->of[peer].window[rank]);
}

static void change(world *w) {
    uint32_t epoch = ++w->epochs;
    uint64_t first = 0;
    w->members[epoch] = (epw_mask){{0}};
    for (uint32_t rank = 0; rank < MEMBERS; rank++) {
        member *m = &w->of[rank];
        if (!m->alive && pick(w, 2)) replace(w, rank), m->since = epoch;
        if (m->step + m->in_step > first) first = m->step + m->in_step;
        if (m->alive && (pick(w, 10) || epoch == 1)) epw_mask_add(&w->members[epoch], rank);
    }
    w->first[epoch] = first;
}

static void ask_of_all(world *w) {
    for (uint32_t rank = 0; rank < MEMBERS; rank++) {
        if (!w->of[rank].alive) continue;
        for (uint32_t epoch = 1; epoch <= w->epochs; epoch++)
            for (uint64_t step = 0; step < STEPS; step++) ask(w, rank, epoch, step);
    }
}

/* The ranks that have been members of every epoch from this one to the last. */
static epw_mask survivors(const world *w, uint32_t epoch) {
    epw_mask all = w->members[epoch];
    for (uint32_t e = epoch; e <= w->epochs; e++) all.bits[0] &= w->members[e].bits[0];
    EPW_MASK_FOR(rank, &all, MEMBERS)
    if (!w->of[rank].alive || w->of[rank].since > epoch) epw_mask_drop(&all, rank);
    return all;
}

/* Statistics of the histories, to check that every kind of verdict occurs. */
static uint32_t clean, faulted, carried, pending;

static void check_step(const world *w, uint32_t epoch, uint64_t step) {
    epw_mask of = survivors(w, epoch);
    uint32_t verdict = EPW_VERDICT_PENDING;
    bool complete = true, all_ended = true;
    EPW_MASK_FOR(rank, &of, MEMBERS) {
        const done *d = &w->of[rank].done[epoch][step];
        complete &= d->ended && !d->faulted;
        all_ended &= d->ended;
        if (d->verdict != EPW_VERDICT_CLEAN && d->verdict != EPW_VERDICT_FAULTED) continue;
        CHECK_MSG(verdict == EPW_VERDICT_PENDING || verdict == d->verdict,
                  "survivors disagree on step %llu of epoch %u", (unsigned long long)step, epoch);
        verdict = d->verdict;
    }
    CHECK(verdict != EPW_VERDICT_CLEAN || complete);
    clean += verdict == EPW_VERDICT_CLEAN;
    faulted += verdict == EPW_VERDICT_FAULTED;
    carried += verdict == EPW_VERDICT_FAULTED && complete && all_ended; /* by a rank that is lost */
    if (epoch + EPW_PAST_EPOCHS < w->epochs) return;
    /* Only the last step may be pending, if some member has not ended it. */
    EPW_MASK_FOR(rank, &of, MEMBERS) {
        const done *d = &w->of[rank].done[epoch][step];
        if (!d->ended || d->verdict != EPW_VERDICT_PENDING) continue;
        pending++;
        CHECK_MSG(epoch == w->epochs, "rank %u never learns of step %llu", rank, (unsigned long long)step);
    }
}

static void a_history(uint64_t seed) {
    static world w;
    w = (world){.random = seed * UINT64_C(0x9e3779b97f4a7c15) | 1};
    for (uint32_t rank = 0; rank < MEMBERS; rank++) w.of[rank] = (member){.alive = true, .since = 1};
    change(&w);
    for (uint32_t i = 0; i < 600; i++) {
        member *m = &w.of[pick(&w, MEMBERS)];
        uint32_t rank = (uint32_t)(m - w.of);
        if (pick(&w, 150) == 0) m->alive = false;
        if (pick(&w, 80) == 0 && w.epochs + 2 < EPOCHS) change(&w);
        if (m->alive) go_on(&w, rank);
        if (pick(&w, 3) == 0 && m->alive && m->step > 0)
            ask(&w, rank, 1 + pick(&w, w.epochs),
                m->step - 1 - pick(&w, (uint32_t)(m->step < 6 ? m->step : 6)));
    }
    /* All living ranks begin a last membership, and end steps in it until their words have arrived. */
    change(&w);
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t rank = pick(&w, MEMBERS);
        if (w.of[rank].alive && epw_mask_has(&w.members[w.epochs], rank)) go_on(&w, rank);
        if (i % 40 == 0) ask_of_all(&w);
    }
    ask_of_all(&w);
    for (uint32_t epoch = 1; epoch <= w.epochs; epoch++)
        for (uint64_t step = 0; step < STEPS; step++) check_step(&w, epoch, step);
}

static void no_two_survivors_disagree(uint64_t histories) {
    for (uint64_t seed = 1; seed <= histories; seed++) a_history(seed);
    printf("verdicts: %u clean, %u faulted (%u by ranks that are lost), %u open at the end\n", clean, faulted,
           carried, pending);
    CHECK(clean > histories && faulted > histories && carried > histories / 10);
}

static epw_reports given(const void *context, uint32_t peer) {
    (void)peer;
    return *(const epw_reports *)context;
}

/* Its last words are of this epoch already, but its epoch word is not of the next one yet: what it handed on
 * to this epoch is lost, and will come again with the next. */
static void who_begins_the_next_epoch_is_waited_for(void) {
    epw_verdicts v = {0};
    const epw_mask both = {{3}};
    epw_verdicts_begin(&v, 0, epw_epoch_word(1, 0), &both);
    epw_verdicts_report(&v, 0);
    uint64_t whole = first_of(1, 0, false);
    epw_verdicts_begin(&v, whole, epw_epoch_word(2, 1), &both);
    epw_reports of = {.epoch_word = v.epoch_word, .last = epw_report_none(v.epoch_word)};
    CHECK(epw_verdicts_of(&v, 0, 1, 0, given, &of) == EPW_VERDICT_PENDING);
    of.last = whole;
    CHECK(epw_verdicts_of(&v, 0, 1, 0, given, &of) == EPW_VERDICT_CLEAN);
}

/* ---- calls ---- */

static uint32_t verdict_of(epw_buffer *b, uint32_t epoch, uint64_t step) {
    uint32_t verdict = UINT32_MAX;
    CHECK_OK(epw_checkpoint_verdict(b, epoch, step, &verdict));
    return verdict;
}

static void check_verdicts(const group *g, uint32_t ranks, uint32_t epoch, uint64_t step, uint32_t verdict) {
    for (uint32_t r = 0; r < ranks; r++) {
        AWAIT(verdict_of(g->of[r], epoch, step) == verdict);
        CHECK_MSG(verdict_of(g->of[r], epoch, step) == verdict, "rank %u, step %llu: %u", r,
                  (unsigned long long)step, verdict_of(g->of[r], epoch, step));
    }
}

static void end_step(const group *g, uint32_t rank, uint64_t step) {
    uint32_t epoch = 0;
    CHECK_OK(epw_checkpoint(g->of[rank], step, NULL, &epoch));
    CHECK(epoch == membership_of(g->of[rank]).epoch);
}

static void operate(const group *g) {
    static batch made[2];
    static uint16_t out[TOKENS * HIDDEN];
    epw_handle handles[2];
    dispatch_both(g, made, handles);
    epw_combine_output output = EPW_COMBINE_OUTPUT_INIT;
    output.out = out;
    for (uint32_t r = 0; r < 2; r++) {
        epw_combine_input in = EPW_COMBINE_INPUT_INIT;
        CHECK_OK(epw_combine(g->of[r], handles[r], &in, NULL, NULL));
    }
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_combine_receive(g->of[r], handles[r], &output, NULL));
}

static void begin(const group *g, uint32_t rank, uint64_t members, uint32_t epoch, uint64_t step) {
    CHECK_OK(epw_buffer_set_active(g->of[rank], &(epw_mask){{members}}, epoch, step));
}

static void a_released_handle_faults_its_step_alone(void) {
    group g = make_group(2, 20000 * MS);
    for (uint32_t r = 0; r < 2; r++) begin(&g, r, 3, 1, 5);
    operate(&g);
    end_step(&g, 0, 5);
    check_verdicts(&g, 2, 1, 5, EPW_VERDICT_PENDING);
    end_step(&g, 1, 5);
    check_verdicts(&g, 2, 1, 5, EPW_VERDICT_CLEAN);

    static batch made[2];
    epw_handle handles[2];
    dispatch_both(&g, made, handles);
    CHECK_OK(epw_release(g.of[1], handles[1]));
    end_step(&g, 1, 6);
    check_verdicts(&g, 1, 1, 6, EPW_VERDICT_PENDING); /* rank 0 has not ended it */
    CHECK(verdict_of(g.of[1], 1, 6) == EPW_VERDICT_FAULTED);
    CHECK_OK(epw_release(g.of[0], handles[0]));
    end_step(&g, 0, 6);
    operate(&g);
    for (uint32_t r = 0; r < 2; r++) end_step(&g, r, 7);
    check_verdicts(&g, 2, 1, 5, EPW_VERDICT_CLEAN);
    check_verdicts(&g, 2, 1, 6, EPW_VERDICT_FAULTED);
    check_verdicts(&g, 2, 1, 7, EPW_VERDICT_CLEAN);
    destroy(&g);
}

/* A fault of the program outside the buffer counts as reported, for one step, on whichever rank it
 * happens. */
static void a_fault_of_the_program_is_one_of_the_step(void) {
    group g = make_group(2, 20000 * MS);
    for (uint32_t r = 0; r < 2; r++) begin(&g, r, 3, 1, 0);
    CHECK_OK(epw_checkpoint_fault(g.of[1]));
    uint32_t epoch;
    REFUSED(epw_checkpoint(g.of[1], EPW_STEP_MAX + UINT64_C(1), NULL, &epoch), EPW_ERR_INVALID, "checkpoint",
            1, -1, "must be in");
    for (uint64_t step = 0; step < 2; step++) {
        for (uint32_t r = 0; r < 2; r++) end_step(&g, r, step);
        check_verdicts(&g, 2, 1, step, step == 0 ? EPW_VERDICT_FAULTED : EPW_VERDICT_CLEAN);
    }
    destroy(&g);
}

/* Rank 2 is lost before it has ended the step: the others judge it by what they have completed. */
static void a_lost_rank_leaves_the_step_to_the_others(void) {
    group g = make_group(3, 20000 * MS);
    for (uint32_t r = 0; r < 3; r++) begin(&g, r, 7, 1, 0);
    for (uint32_t r = 0; r < 3; r++) end_step(&g, r, 0);
    for (uint32_t r = 0; r < 2; r++) end_step(&g, r, 1);
    check_verdicts(&g, 2, 1, 0, EPW_VERDICT_CLEAN);
    check_verdicts(&g, 2, 1, 1, EPW_VERDICT_PENDING);
    begin(&g, 0, 3, 2, 2);
    check_verdicts(&g, 1, 1, 1, EPW_VERDICT_PENDING);
    begin(&g, 1, 3, 2, 2);
    check_verdicts(&g, 2, 1, 1, EPW_VERDICT_CLEAN);
    check_verdicts(&g, 2, 1, 0, EPW_VERDICT_CLEAN);
    for (uint32_t r = 0; r < 2; r++) begin(&g, r, 3, 3, 2);
    check_verdicts(&g, 2, 1, 1, EPW_VERDICT_CLEAN);
    for (uint32_t r = 0; r < 2; r++) begin(&g, r, 3, 4, 2);
    uint32_t verdict = 9;
    REFUSED(epw_checkpoint_verdict(g.of[0], 1, 1, &verdict), EPW_ERR_LIMIT, "verdict", 0, -1,
            "step 1 of epoch 1 is not known");
    CHECK(verdict == 9);
    destroy(&g);
}

static void a_rank_that_has_not_ended_a_step_faults_it(void) {
    group g = make_group(2, 20000 * MS);
    for (uint32_t r = 0; r < 2; r++) begin(&g, r, 3, 1, 0);
    end_step(&g, 0, 0);
    for (uint32_t r = 0; r < 2; r++) begin(&g, r, 3, 2, 1);
    check_verdicts(&g, 1, 1, 0, EPW_VERDICT_FAULTED);
    destroy(&g);
}

/* What ended after the last checkpoint counts for the next one, even of another membership. */
static void a_fault_outlives_the_membership(void) {
    static batch made[2];
    group g = make_group(2, 20000 * MS);
    epw_handle handles[2];
    for (uint32_t r = 0; r < 2; r++) begin(&g, r, 3, 1, 0);
    for (uint32_t r = 0; r < 2; r++) end_step(&g, r, 0);
    dispatch_both(&g, made, handles);
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_release(g.of[r], handles[r]));
    for (uint32_t r = 0; r < 2; r++) begin(&g, r, 3, 2, 2);
    for (uint64_t step = 2; step < 4; step++)
        for (uint32_t r = 0; r < 2; r++) end_step(&g, r, step);
    check_verdicts(&g, 2, 1, 0, EPW_VERDICT_CLEAN);
    check_verdicts(&g, 2, 2, 2, EPW_VERDICT_FAULTED);
    check_verdicts(&g, 2, 2, 3, EPW_VERDICT_CLEAN);
    destroy(&g);
}

/* A buffer that is made late joins a membership that began long ago. */
static void the_first_step_may_be_any(void) {
    static const uint64_t late[] = {UINT64_C(1) << 22,  UINT64_C(1) << 23,       (UINT64_C(1) << 23) + 9,
                                    UINT64_C(3) << 23,  (UINT64_C(1) << 24) - 1, UINT64_C(1) << 24,
                                    UINT64_C(99) << 24, (UINT64_C(1) << 24) + 4, EPW_STEP_MAX - 2};
    for (size_t i = 0; i < sizeof late / sizeof late[0]; i++) {
        group g = make_group(2, 20000 * MS);
        for (uint32_t r = 0; r < 2; r++) begin(&g, r, 3, 1, 5);
        end_step(&g, 0, late[i]);
        CHECK(verdict_of(g.of[0], 1, late[i]) == EPW_VERDICT_PENDING);
        CHECK_OK(epw_checkpoint_fault(g.of[1]));
        end_step(&g, 1, late[i]);
        check_verdicts(&g, 2, 1, late[i], EPW_VERDICT_FAULTED);
        for (uint32_t r = 0; r < 2; r++) end_step(&g, r, late[i] + 1);
        check_verdicts(&g, 2, 1, late[i], EPW_VERDICT_FAULTED);
        check_verdicts(&g, 2, 1, late[i] + 1, EPW_VERDICT_CLEAN);
        destroy(&g);
    }
}

/* A member that has reported nothing, and a first report that is so far on that its bits look like an earlier
 * step's: also when the next membership asks. */
static void a_late_first_step_of_a_past_membership(void) {
    static const uint64_t late[] = {9, (UINT64_C(1) << 23) + 9, (UINT64_C(1) << 24) - 5, UINT64_C(1) << 24,
                                    (UINT64_C(1) << 24) + 4};
    const epw_mask both = {{3}};
    for (size_t i = 0; i < sizeof late / sizeof late[0]; i++) {
        const uint64_t first = epw_epoch_word(1, 5), next = epw_epoch_word(2, late[i] + 6);
        epw_verdicts v = {0};
        epw_verdicts_begin(&v, 0, first, &both);
        uint64_t report = first_of(1, late[i], false);
        epw_verdicts_report(&v, late[i]);
        epw_verdicts_begin(&v, report, next, &both);
        const epw_reports none = {.last = epw_report_none(first), .epoch_word = next},
                          whole = {.last = report, .epoch_word = next};
        uint32_t verdict = epw_verdicts_of(&v, 0, 1, late[i], given, &whole);
        CHECK_MSG(verdict == EPW_VERDICT_CLEAN, "step %llu: %u", (unsigned long long)late[i], verdict);
        verdict = epw_verdicts_of(&v, 0, 1, late[i], given, &none);
        CHECK_MSG(verdict == EPW_VERDICT_FAULTED, "step %llu: %u", (unsigned long long)late[i], verdict);
    }
}

/* As the history of a rank that continues without another one, for as long as it may take. */
static epw_reports of_one(const void *context, uint32_t rank) {
    (void)rank;
    return (epw_reports){.report = *(const uint64_t *)context};
}

static void a_membership_that_did_not_begin_leaves_no_faults(void) {
    const epw_mask both = {{3}};
    const uint64_t late = (UINT64_C(1) << 24) + 6, report = first_of(1, late, false);
    epw_verdicts v = {0};
    epw_verdicts_begin(&v, 0, epw_epoch_word(1, 5), &both);
    const epw_verdicts before = v;
    epw_verdicts_begin(&v, 0, epw_epoch_word(2, 6), &both);
    epw_verdicts_undo(&v, &before);
    epw_verdicts_report(&v, late);
    for (uint64_t back = 0; back < 10; back++)
        CHECK(epw_verdicts_of(&v, 0, 1, late - back, of_one, &report) == EPW_VERDICT_CLEAN);
}

static void nothing_is_clean_after_a_loss(void) {
    const epw_mask both = {{3}};
    const uint64_t first = epw_epoch_word(1, 0);
    epw_verdicts v = {0};
    uint64_t report = 0;
    epw_verdicts_begin(&v, 0, first, &both);
    for (uint64_t step = 0, next = 0; step < UINT64_C(1) << 26; step = next) {
        report = epw_report_next(report, 1, step, false, step >= 20);
        epw_verdicts_report(&v, step);
        uint32_t verdict = epw_verdicts_of(&v, 0, 1, step, of_one, &report);
        CHECK_MSG(verdict == (step <= 20 ? EPW_VERDICT_CLEAN : EPW_VERDICT_FAULTED), "step %llu: %u",
                  (unsigned long long)step, verdict);
        uint64_t in_cycle = (step + 64) & EPW_OP_MAX; /* steps near a multiple of 2^24 one by one */
        next = in_cycle < 128 || step < 128 ? step + 1 : step + 60000;
        if (in_cycle >= 128 && ((next + 64) & EPW_OP_MAX) < in_cycle)
            next = (next + 64) / (EPW_OP_MAX + 1) * (EPW_OP_MAX + 1) - 64;
    }
}

/* Steps far apart: reports hold only their lower bits. */
static void an_old_step_is_forgotten(void) {
    group g = make_group(2, 20000 * MS);
    epw_buffer *b = g.of[0];
    uint32_t verdict = 9;
    begin(&g, 0, 3, 1, 5);
    for (uint64_t i = 0; i < 8; i++) {
        end_step(&g, 0, 5 + i * (EPW_REPORT_STEPS_APART - 1));
        if (i > 0)
            REFUSED(epw_checkpoint_verdict(b, 1, 5, &verdict), EPW_ERR_LIMIT, "verdict", 0, -1,
                    "step 5 of epoch 1");
    }
    begin(&g, 0, 3, 2, UINT64_C(1) << 26);
    REFUSED(epw_checkpoint_verdict(b, 1, 5, &verdict), EPW_ERR_LIMIT, "verdict", 0, -1, "step 5 of epoch 1");
    destroy(&g);
}

static void bad_arguments_are_named(void) {
    group g = make_group(2, 20000 * MS);
    epw_buffer *b = g.of[0];
    uint32_t epoch = 9, verdict = 9;
    REFUSED(epw_checkpoint(b, 0, NULL, &epoch), EPW_ERR_STATE, "checkpoint", 0, -1, "set_active");
    REFUSED(epw_checkpoint_verdict(b, 0, 0, &verdict), EPW_ERR_LIMIT, "verdict", 0, -1, "epoch 0");
    begin(&g, 0, 3, 1, 5);
    REFUSED(epw_checkpoint(b, 4, NULL, &epoch), EPW_ERR_INVALID, "checkpoint", 0, -1, "must be in [5, ");
    REFUSED(epw_checkpoint(b, UINT64_C(1) << 41, NULL, &epoch), EPW_ERR_INVALID, "checkpoint", 0, -1,
            "must be in [5, 2199023255551] in epoch 1");
    REFUSED(epw_checkpoint(b, 5, NULL, NULL), EPW_ERR_INVALID, "checkpoint", 0, -1, "epoch is NULL");
    REFUSED(epw_checkpoint(NULL, 5, NULL, &epoch), EPW_ERR_INVALID, "checkpoint", -1, -1, "buffer is NULL");
    CHECK(epoch == 9);
    end_step(&g, 0, 5);
    REFUSED(epw_checkpoint(b, UINT64_C(1) << 22 | 6, NULL, &epoch), EPW_ERR_INVALID, "checkpoint", 0, -1,
            "must be in [6, 4194309] in epoch 1");
    REFUSED(epw_checkpoint(b, 5, NULL, &epoch), EPW_ERR_INVALID, "checkpoint", 0, -1, "must be in [6, ");
    REFUSED(epw_checkpoint_verdict(b, 1, 4, &verdict), EPW_ERR_LIMIT, "verdict", 0, -1, "step 4 of epoch 1");
    REFUSED(epw_checkpoint_verdict(b, 2, 5, &verdict), EPW_ERR_LIMIT, "verdict", 0, -1, "epoch 2");
    REFUSED(epw_checkpoint_verdict(b, 1, 5, NULL), EPW_ERR_INVALID, "verdict", 0, -1, "verdict is NULL");
    end_step(&g, 0, 21);
    REFUSED(epw_checkpoint_verdict(b, 1, 5, &verdict), EPW_ERR_LIMIT, "verdict", 0, -1,
            "before 16 steps or 3");
    CHECK(verdict == 9 && verdict_of(b, 1, 22) == EPW_VERDICT_PENDING);
    destroy(&g);
}

int main(int argc, char **argv) {
    reports_tell_of_their_steps();
    the_last_report_of_an_epoch_stays();
    steps_may_pass_their_24_bits();
    a_fault_counts_from_the_first_step();
    no_two_survivors_disagree(argc > 1 ? strtoull(argv[1], NULL, 10) : 2000);
    who_begins_the_next_epoch_is_waited_for();
    a_released_handle_faults_its_step_alone();
    a_fault_of_the_program_is_one_of_the_step();
    a_lost_rank_leaves_the_step_to_the_others();
    a_rank_that_has_not_ended_a_step_faults_it();
    a_fault_outlives_the_membership();
    the_first_step_may_be_any();
    a_late_first_step_of_a_past_membership();
    nothing_is_clean_after_a_loss();
    a_membership_that_did_not_begin_leaves_no_faults();
    an_old_step_is_forgotten();
    bad_arguments_are_named();
    return check_result("verdicts");
}
