/* Conditions whose timed waits use the clock of clock.h. */
#ifndef EPW_BASE_CONDITION_H
#define EPW_BASE_CONDITION_H

#include "base/clock.h"

#include <pthread.h>

static inline void epw_condition_init(pthread_cond_t *condition) {
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &clock);
    pthread_condattr_destroy(&clock);
}

/* The time that is `after_ns` later than `now`, or one that never comes. */
static inline struct timespec epw_until(uint64_t now, uint64_t after_ns) {
    uint64_t until = after_ns < UINT64_MAX / 2 - now ? now + after_ns : UINT64_MAX / 2;
    return (struct timespec){(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
}

#endif
