/* Reports: what a rank says at the end of a step about the operations that ended in it. One definition for C
 * and CUDA; what follows from the reports of all members is in verdict.h.
 *
 * A report is a word, {epoch 23 | step 24 | last 1 | history 16}. Bit i of the history says that something
 * that ended in step - i was incomplete. `last` says that it is the writer's last report of the epoch: the
 * writer continues without some member, so no later step can be complete. Earlier steps stay visible, however
 * many follow before the next membership, up to 2^22. */
#ifndef EPW_EP_REPORT_H
#define EPW_EP_REPORT_H

#include "peer/words.h"

/* The number of steps in a report's history. */
#define EPW_REPORT_STEPS ((int32_t)EPW_WORD_VALUE_BITS - 1)
#define EPW_REPORT_LAST  (1u << EPW_REPORT_STEPS)

/* The most steps between two reports of an epoch: reports hold only the lower bits of a step. */
#define EPW_REPORT_STEPS_APART (UINT64_C(1) << (EPW_WORD_OP_BITS - 2))

/* By how many steps the report is ahead of this step. */
EPW_INLINE int32_t epw_report_ahead(uint64_t report, uint64_t step) {
    uint32_t distance = ((uint32_t)(report >> EPW_WORD_VALUE_BITS) - (uint32_t)step) & EPW_OP_MAX;
    return distance <= EPW_OP_MAX / 2 ? (int32_t)distance : (int32_t)distance - (int32_t)EPW_OP_MAX - 1;
}

/* What a rank that has posted no report of an epoch hands on to the next one: it has completed none of its
 * steps. No report of a step that was complete looks so. */
EPW_INLINE uint64_t epw_report_none(uint64_t epoch_word) {
    return epw_word(epw_word_epoch(epoch_word), (uint32_t)epw_word_step(epoch_word) - 1, EPW_WORD_VALUE_MAX);
}

/* A history as seen from a step this much later, or earlier if `steps` is negative. */
EPW_INLINE uint32_t epw_history_after(uint32_t history, int32_t steps) {
    if (steps >= EPW_REPORT_STEPS || -steps >= EPW_REPORT_STEPS) return 0;
    return (steps < 0 ? history >> -steps : history << steps) & (EPW_REPORT_LAST - 1);
}

EPW_INLINE uint32_t epw_report_history(uint64_t report) {
    return epw_word_value(report) & (EPW_REPORT_LAST - 1);
}

/* The report at the end of `step` of `epoch`. `before`: the writer's previous one, of an earlier step, or of
 * an earlier epoch; if that was the last of this epoch, it stays. `faulted`: something that ended since was
 * incomplete; it counts for every step since then. `is_last`: the writer continues without some member. */
EPW_INLINE uint64_t epw_report_next(uint64_t before, uint32_t epoch, uint64_t step, bool faulted,
                                    bool is_last) {
    bool first = epw_word_epoch(before) != epoch;
    if (!first && (epw_word_value(before) & EPW_REPORT_LAST)) return before;
    int32_t passed = first ? EPW_REPORT_STEPS : -epw_report_ahead(before, step);
    uint32_t since = passed > 0 && passed < EPW_REPORT_STEPS ? (1u << passed) - 1 : EPW_REPORT_LAST - 1;
    uint32_t history = epw_history_after(epw_report_history(before), passed) | (faulted ? since : 0);
    return epw_word(epoch, (uint32_t)step, history | (is_last ? EPW_REPORT_LAST : 0));
}

/* What a report says of a step of its epoch. */
typedef enum epw_says {
    EPW_SAYS_NOTHING, /* the step had not ended */
    EPW_SAYS_CLEAN,
    EPW_SAYS_FAULTED,
    EPW_SAYS_NO_MORE /* EPW_REPORT_STEPS other steps have ended since it began */
} epw_says;

EPW_INLINE epw_says epw_report_says(uint64_t report, uint64_t step) {
    int32_t ahead = epw_report_ahead(report, step);
    if (ahead < 0) return epw_word_value(report) & EPW_REPORT_LAST ? EPW_SAYS_FAULTED : EPW_SAYS_NOTHING;
    if (ahead >= EPW_REPORT_STEPS) return EPW_SAYS_NO_MORE;
    return epw_word_value(report) >> ahead & 1 ? EPW_SAYS_FAULTED : EPW_SAYS_CLEAN;
}

#endif
