/* Monotonic time in nanoseconds: the only clock of the core. */
#ifndef EPW_BASE_CLOCK_H
#define EPW_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t epw_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
