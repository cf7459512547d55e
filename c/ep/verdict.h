/* Verdicts: have all members completed what ended in a step? No rank can tell by its own outcomes, because an
 * operation that is complete here may lack rows elsewhere. These are pure functions, without access to the
 * memory of other ranks or a clock: a test runs histories of many ranks through this code.
 *
 * At the end of a step each rank posts a report (report.h) to all members, itself included. A step is clean
 * once the reports of all members cover it and none calls it faulted. It is faulted as soon as one does. A
 * rank that tells its caller so adds the fault to its own report.
 *
 * When a membership begins, each member hands on its last reports of the two previous memberships, before the
 * epoch word by which it says that it has begun. Pending steps of those memberships are judged by what the
 * continuing members have handed on, once all have begun.
 *
 * Why no two continuing members disagree. A rank's reports call a step faulted either from the first one that
 * covers it, or because the rank has added the fault of another rank, whose reports did so from the first. So
 * if a rank has found the step clean, it has seen the reports of all members, and there was no fault to add.
 * And if a rank has found it faulted by the report of a member that is lost later, it hands that on before
 * anybody judges without that member. A member that has missed a membership in between does not know whose
 * reports count, and does not judge. */
#ifndef EPW_EP_VERDICT_H
#define EPW_EP_VERDICT_H

#include "base/bits.h"
#include "ep/report.h"

/* Memberships before the present one whose steps can be judged. */
#define EPW_PAST_EPOCHS 2u

/* All that is loaded from one member, in this order, each load an acquire. The writer posts `last`,
 * `last_but_one` and the epoch word in that order: a reader that finds this epoch in the first load, and
 * nothing of it or of later ones in the last, has what was handed on when the epoch began. */
typedef struct epw_reports {
    uint64_t report;
    uint64_t epoch_word;
    uint64_t last_but_one, last; /* of the previous memberships, see epw_past */
} epw_reports;

/* A membership that has ended. */
typedef struct epw_past {
    epw_mask members; /* the ranks that have belonged to all memberships since */
    uint64_t first;   /* its first step */
    uint64_t next;    /* 1 more than its last step; `first`: none has ended */
    uint64_t ended;   /* as in epw_verdicts */
    uint64_t last;    /* this rank's last report of it, with faults of others added; 0: there is none */
} epw_past;

typedef struct epw_verdicts {
    uint64_t epoch_word; /* 0: no membership yet */
    epw_mask members;
    uint64_t next; /* the earliest step that may be reported next */
    uint64_t
        ended; /* 1 more than the step of this rank's last report, if some member is lacked since; or 0 */
    /* Faults of others that this rank's callers have been told: a history as of the step of its own last
     * report. */
    uint64_t taken_over;
    epw_past past[EPW_PAST_EPOCHS];
} epw_verdicts;

/* A membership begins. `report`: the last one that this rank has posted. Afterwards `past` holds what is to
 * be handed on. */
void epw_verdicts_begin(epw_verdicts *v, uint64_t report, uint64_t epoch_word, const epw_mask *members);

/* The membership has not begun after all: restores `before`. */
void epw_verdicts_undo(epw_verdicts *v, const epw_verdicts *before);

/* A report of this step, at least `next`, is being posted. */
void epw_verdicts_report(epw_verdicts *v, uint64_t step);

typedef epw_reports (*epw_load_reports)(const void *context, uint32_t peer);

/* EPW_VERDICT_* of a step of an epoch; EPW_VERDICT_UNKNOWN: too long ago, or not a step of that epoch. */
#define EPW_VERDICT_UNKNOWN UINT32_MAX
uint32_t epw_verdicts_of(epw_verdicts *v, uint32_t rank, uint32_t epoch, uint64_t step, epw_load_reports load,
                         const void *context);

#endif
