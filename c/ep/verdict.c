/* See verdict.h. */
#include "ep/verdict.h"

/* The report, with the faults of another report of the same epoch added for the steps that it covers. */
static uint64_t with_faults_of(uint64_t report, uint64_t other) {
    int32_t later = epw_report_ahead(report, other >> EPW_WORD_VALUE_BITS);
    return report | epw_history_after(epw_report_history(other), later);
}

static uint64_t with_fault(uint64_t report, uint64_t step) {
    return with_faults_of(report, epw_word(0, (uint32_t)step, 1));
}

/* The step of a report, whose lower bits it has: the latest one below `next`. */
static uint64_t step_of(uint64_t report, uint64_t next) {
    return next - 1 - ((next - 1 - (report >> EPW_WORD_VALUE_BITS)) & EPW_OP_MAX);
}

/* See epw_verdicts.ended, which is known once, by a report of this rank. */
static uint64_t end_of(const epw_verdicts *v, uint64_t report) {
    if (v->ended != 0 || !(epw_word_value(report) & EPW_REPORT_LAST)) return v->ended;
    return step_of(report, v->next) + 1;
}

static void keep_members(epw_mask *mask, const epw_mask *members) {
    for (uint32_t i = 0; i < EPW_MASK_WORDS; i++) mask->bits[i] &= members->bits[i];
}

void epw_verdicts_begin(epw_verdicts *v, uint64_t report, uint64_t epoch_word, const epw_mask *members) {
    bool again = v->epoch_word == epoch_word && epoch_word != 0; /* it was not seen to begin */
    for (uint32_t i = EPW_PAST_EPOCHS - 1; i > 0 && !again; i--) v->past[i] = v->past[i - 1];
    if (!again) {
        v->past[0] = (epw_past){
            .members = v->members, .first = epw_word_step(v->epoch_word), .next = v->next, .ended = v->ended};
    }
    if (v->epoch_word != 0 && !again) {
        bool of_it = epw_word_epoch(report) == epw_word_epoch(v->epoch_word);
        if (of_it) v->past[0].ended = end_of(v, report);
        v->past[0].last = with_faults_of(of_it ? report : epw_report_none(v->epoch_word), v->taken_over);
    }
    for (uint32_t i = 0; i < EPW_PAST_EPOCHS; i++) keep_members(&v->past[i].members, members);
    v->epoch_word = epoch_word;
    v->members = *members;
    v->next = epw_word_step(epoch_word);
    v->ended = 0;
    v->taken_over = epw_word(epw_word_epoch(epoch_word), (uint32_t)v->next - 1, 0);
}

void epw_verdicts_undo(epw_verdicts *v, const epw_verdicts *before) {
    epw_verdicts meanwhile = *v;
    *v = *before;
    if (meanwhile.past[0].last != epw_report_none(v->epoch_word))
        v->taken_over = with_faults_of(v->taken_over, meanwhile.past[0].last);
    for (uint32_t i = 1; i < EPW_PAST_EPOCHS; i++) v->past[i - 1].last = meanwhile.past[i].last;
}

void epw_verdicts_report(epw_verdicts *v, uint64_t step) {
    v->next = step + 1;
}

/* What the reports of all members say together. */
typedef struct tally {
    bool pending, faulted, unknown;
} tally;

static void count(tally *t, epw_says says) {
    t->pending |= says == EPW_SAYS_NOTHING;
    t->faulted |= says == EPW_SAYS_FAULTED;
    t->unknown |= says == EPW_SAYS_NO_MORE;
}

/* What the report of a member of the present epoch says. */
static epw_says says_of(const epw_verdicts *v, uint64_t report, uint64_t step) {
    bool of_it = epw_word_epoch(report) == epw_word_epoch(v->epoch_word);
    return of_it ? epw_report_says(report, step) : EPW_SAYS_NOTHING;
}

/* Not before this rank's own report exists, because faults of others are added to that. */
static uint32_t of_present(epw_verdicts *v, uint32_t rank, uint64_t step, epw_load_reports load,
                           const void *context) {
    uint64_t own = load(context, rank).report;
    if (v->ended == 0 && says_of(v, own, step) == EPW_SAYS_NOTHING) return EPW_VERDICT_PENDING;
    v->ended = end_of(v, own);
    /* The report stays as it is, and the lower bits of later steps will pass its own. */
    if (v->ended != 0 && step >= v->ended) return EPW_VERDICT_FAULTED;
    v->taken_over = with_faults_of(own & ~(uint64_t)EPW_WORD_VALUE_MAX, v->taken_over);
    tally t = {0};
    count(&t, epw_report_says(with_faults_of(own, v->taken_over), step));
    EPW_MASK_FOR(peer, &v->members, EPW_MAX_RANKS) {
        count(&t, says_of(v, load(context, peer).report, step));
    }
    if (t.faulted) v->taken_over = with_fault(v->taken_over, step);
    if (t.faulted) return EPW_VERDICT_FAULTED;
    if (t.unknown) return EPW_VERDICT_UNKNOWN;
    return t.pending ? EPW_VERDICT_PENDING : EPW_VERDICT_CLEAN;
}

/* What a report of a past membership says about one of its steps. A step that had not ended when the
 * membership did was not completed. A rank that was not a member, because it has been replaced, or that never
 * began that epoch, has no report of it, and needs none: nobody has completed a step with it. A rank that
 * began a membership in between that this rank did not begin knows better who has continued. */
static void count_past(tally *t, const epw_verdicts *v, const epw_past *past, uint64_t last, uint64_t step) {
    uint32_t of = epw_word_epoch(last), epoch = epw_word_epoch(past->last);
    bool none = last == epw_report_none(epw_epoch_word(epoch, past->first));
    epw_says says = none ? EPW_SAYS_NOTHING : epw_report_says(last, step);
    if (of == epoch) count(t, says == EPW_SAYS_NOTHING ? EPW_SAYS_FAULTED : says);
    t->unknown |= of > epoch && of != epw_word_epoch(v->past[0].last);
}

/* Not before all members have begun the present epoch, because only then is it known whose reports count. */
static uint32_t of_past(const epw_verdicts *v, epw_past *past, uint32_t rank, uint64_t step,
                        epw_load_reports load, const void *context) {
    tally t = {0};
    if (past->ended != 0 && step >= past->ended) return EPW_VERDICT_FAULTED;
    count_past(&t, v, past, past->last, step);
    if (t.faulted) return EPW_VERDICT_FAULTED;
    EPW_MASK_FOR(peer, &past->members, EPW_MAX_RANKS) {
        if (peer == rank) continue;
        epw_reports of = load(context, peer);
        t.pending |= of.epoch_word != v->epoch_word;
        t.pending |= epw_word_epoch(of.last) >= epw_word_epoch(v->epoch_word); /* it begins another one */
        count_past(&t, v, past, of.last, step);
        count_past(&t, v, past, of.last_but_one, step);
    }
    if (t.pending) return EPW_VERDICT_PENDING;
    if (t.unknown) return EPW_VERDICT_UNKNOWN;
    if (t.faulted) past->last = with_fault(past->last, step);
    return t.faulted ? EPW_VERDICT_FAULTED : EPW_VERDICT_CLEAN;
}

/* Reports have only the lower bits of steps, and would take so old a one for one to come. */
static bool is_forgotten(uint64_t step, uint64_t next) {
    return next > EPW_REPORT_STEPS_APART && step < next - EPW_REPORT_STEPS_APART;
}

uint32_t epw_verdicts_of(epw_verdicts *v, uint32_t rank, uint32_t epoch, uint64_t step, epw_load_reports load,
                         const void *context) {
    if (epoch == 0) return EPW_VERDICT_UNKNOWN;
    if (epoch == epw_word_epoch(v->epoch_word)) {
        if (step < epw_word_step(v->epoch_word)) return EPW_VERDICT_UNKNOWN;
        if (is_forgotten(step, v->next)) return EPW_VERDICT_UNKNOWN;
        return step < v->next ? of_present(v, rank, step, load, context) : EPW_VERDICT_PENDING;
    }
    for (uint32_t i = 0; i < EPW_PAST_EPOCHS; i++) {
        epw_past *past = &v->past[i];
        if (epoch == epw_word_epoch(past->last) && step >= past->first && !is_forgotten(step, past->next))
            return of_past(v, past, rank, step, load, context);
    }
    return EPW_VERDICT_UNKNOWN;
}
