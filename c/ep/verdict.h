/* Verdicts, as pure functions: have all members completed what ended in a step? No rank can tell by its own
 * outcomes: an operation that is complete here may lack rows elsewhere. No memory of other ranks, no clock: a
 * test plays histories of many ranks through this code.
 *
 * At the end of a step each rank posts a report (report.h) to all members, itself included. A step is clean
 * once the reports of all members cover it and none calls it faulted. It is faulted as soon as one does. A
 * rank that tells its caller so takes the fault over into its own report.
 *
 * When a membership begins, each member hands on its last reports of the two before it, ahead of the epoch
 * word by which it says that it has begun. Steps of those that were pending are judged by the members that
 * have gone on from there, by what they have handed on, once all have begun.
 *
 * Why no two of those that go on disagree. A report calls a step faulted from the first that covers it, or
 * because its writer has taken that over, from one that did so from the first. So a rank that has found the
 * step clean has seen the reports of all members, and there was nobody from whom to take a fault over. And a
 * rank that has found it faulted, by the report of a member that is lost later, hands that on before anybody
 * judges without that member. A member that has missed a membership in between does not know who counts, and
 * does not judge. */
#ifndef EPW_EP_VERDICT_H
#define EPW_EP_VERDICT_H

#include "base/bits.h"
#include "ep/report.h"

/* Memberships before the present one whose steps can be judged. */
#define EPW_PAST_EPOCHS 2u

/* All that is loaded of one member, in this order, each load an acquire. Its writer posts `last`,
 * `last_but_one` and the epoch word in that order: who finds this epoch in the first, and nothing of it or of
 * later ones in the last, has what was handed on when it began. */
typedef struct epw_reports {
    uint64_t report;
    uint64_t epoch_word;
    uint64_t last_but_one, last; /* of the memberships before this one, see epw_past */
} epw_reports;

/* A membership that has ended. */
typedef struct epw_past {
    epw_mask members; /* that have belonged to all memberships since */
    uint64_t first;   /* its first step */
    uint64_t last;    /* this rank's last report of it, with what it has taken over; 0: there is none */
} epw_past;

typedef struct epw_verdicts {
    uint64_t epoch_word; /* 0: no membership yet */
    epw_mask members;
    uint64_t next; /* the least step that may be reported */
    /* Faults of others that this rank's callers have been told: a history, of the step of its own last
     * report. */
    uint64_t taken_over;
    epw_past past[EPW_PAST_EPOCHS];
} epw_verdicts;

/* A membership begins. `report`: the last that this rank has posted. What it hands on is in `past` then. */
void epw_verdicts_begin(epw_verdicts *v, uint64_t report, uint64_t epoch_word, const epw_mask *members);

/* It has not begun after all: `before` is what there was. */
void epw_verdicts_undo(epw_verdicts *v, const epw_verdicts *before);

/* A report of this step, at least `next`, is being posted. */
void epw_verdicts_report(epw_verdicts *v, uint64_t step);

typedef epw_reports (*epw_load_reports)(const void *context, uint32_t peer);

/* EPW_VERDICT_* of a step of an epoch; EPW_VERDICT_UNKNOWN: too long ago, or no step of that epoch. */
#define EPW_VERDICT_UNKNOWN UINT32_MAX
uint32_t epw_verdicts_of(epw_verdicts *v, uint32_t rank, uint32_t epoch, uint64_t step, epw_load_reports load,
                         const void *context);

#endif
