/* Reports: what a rank says at the end of a step of what has ended in it. One definition for C and CUDA; what
 * follows from the reports of all members is in verdict.h.
 *
 * A report is a word, {epoch 23 | step 24 | history 17}. Bit i of the history says that something which ended
 * in step - i was incomplete. */
#ifndef EPW_EP_REPORT_H
#define EPW_EP_REPORT_H

#include "peer/words.h"

/* Steps that a report tells of. */
#define EPW_REPORT_STEPS EPW_WORD_VALUE_BITS

/* By how many steps the report is ahead of this one, exact for less than 2^23. */
EPW_INLINE int32_t epw_report_ahead(uint64_t report, uint64_t step) {
    uint32_t distance = ((uint32_t)(report >> EPW_WORD_VALUE_BITS) - (uint32_t)step) & EPW_OP_MAX;
    return distance <= EPW_OP_MAX / 2 ? (int32_t)distance : (int32_t)distance - (int32_t)EPW_OP_MAX - 1;
}

/* The report of an epoch before its first step has ended. */
EPW_INLINE uint64_t epw_report_none(uint64_t epoch_word) {
    return epw_word(epw_word_epoch(epoch_word), (uint32_t)epw_word_step(epoch_word) - 1, 0);
}

/* A history as seen from a step so much later, or earlier if `steps` is negative. */
EPW_INLINE uint32_t epw_history_after(uint32_t history, int32_t steps) {
    if (steps >= EPW_REPORT_STEPS || -steps >= EPW_REPORT_STEPS) return 0;
    return steps < 0 ? history >> -steps : history << steps & EPW_WORD_VALUE_MAX;
}

/* The report at the end of `step`, which is later than that of `last`. `faulted`: something that has ended
 * since was incomplete; it counts for every step from there. */
EPW_INLINE uint64_t epw_report_next(uint64_t last, uint64_t step, bool faulted) {
    int32_t passed = -epw_report_ahead(last, step);
    uint32_t since = passed < EPW_REPORT_STEPS ? (1u << passed) - 1 : EPW_WORD_VALUE_MAX;
    uint32_t history = epw_history_after(epw_word_value(last), passed);
    return epw_word(epw_word_epoch(last), (uint32_t)step, history | (faulted ? since : 0));
}

/* What a report says of a step of its epoch. */
typedef enum epw_says {
    EPW_SAYS_NOTHING, /* the step had not ended */
    EPW_SAYS_CLEAN,
    EPW_SAYS_FAULTED,
    EPW_SAYS_NO_MORE /* EPW_REPORT_STEPS others have ended after it */
} epw_says;

EPW_INLINE epw_says epw_report_says(uint64_t report, uint64_t step) {
    int32_t ahead = epw_report_ahead(report, step);
    if (ahead < 0) return EPW_SAYS_NOTHING;
    if (ahead >= EPW_REPORT_STEPS) return EPW_SAYS_NO_MORE;
    return epw_word_value(report) >> ahead & 1 ? EPW_SAYS_FAULTED : EPW_SAYS_CLEAN;
}

#endif
