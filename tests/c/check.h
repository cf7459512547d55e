/* The whole framework of the C tests: checks that print the place and the reason, are counted, and let the
 * test continue. Callable from all threads. */
#ifndef EPW_TESTS_CHECK_H
#define EPW_TESTS_CHECK_H

#include "epwire.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static atomic_uint checks_made, checks_failed;

/* The first 20 failures of a run are printed. */
#define CHECK(condition) CHECK_MSG(condition, "%s", "failed")
#define CHECK_OK(call)   CHECK_MSG((call) == EPW_OK, "%s", epw_last_error())
#define CHECK_MSG(condition, ...)                                                                            \
    (check_that((condition) ? 1 : 0)                                                                         \
         ? (void)0                                                                                           \
         : (void)(fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition),                            \
                  fprintf(stderr, __VA_ARGS__), fputc('\n', stderr)))

/* Counts a failed check; true if nothing is to be printed. */
static inline int check_that(int held) {
    atomic_fetch_add(&checks_made, 1);
    return held || atomic_fetch_add(&checks_failed, 1) >= 20;
}

/* EPW_TEST_SLOWER: by what factor this machine, for example an emulated one, is slower than ours. Tests
 * multiply their deadlines by it. 1 if not set. */
static inline unsigned times_slower(void) {
    const char *times = getenv("EPW_TEST_SLOWER");
    unsigned long found = times != NULL ? strtoul(times, NULL, 10) : 1;
    return found >= 1 && found <= 100 ? (unsigned)found : 1;
}

/* A deadline that is meant to expire is short, and a busy machine may stop a thread for longer: then checks
 * fail although the library is right. KEEP_TIME runs a test whose times are multiples of `longer`, and as
 * long as it fails once more with times 5 and 25 times as long, in which such a stop matters less. Only the
 * last attempt counts; what is wrong, fails in each. */
static uint64_t longer = 1;

#define KEEP_TIME(test)                                                                                      \
    do {                                                                                                     \
        const unsigned failed_before = atomic_load(&checks_failed);                                          \
        do {                                                                                                 \
            test;                                                                                            \
        } while (try_longer(failed_before));                                                                 \
    } while (0)

static inline int try_longer(unsigned failed_before) {
    if (atomic_load(&checks_failed) == failed_before || longer == 25) {
        longer = 1;
        return 0;
    }
    longer *= 5;
    fprintf(stderr, "once more, with times %u times as long\n", (unsigned)longer);
    atomic_store(&checks_failed, failed_before);
    return 1;
}

static inline double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* By what factor deadlines must be longer while other programs leave a computing thread less than half a
 * core: 1 to 8, as in tests/chaos. Measures for some milliseconds. */
static inline unsigned times_busier(void) {
    double began = seconds_of(CLOCK_MONOTONIC), computed = seconds_of(CLOCK_THREAD_CPUTIME_ID), sample = 0;
    while (sample < 0.02) sample = seconds_of(CLOCK_THREAD_CPUTIME_ID) - computed;
    double stretch = (seconds_of(CLOCK_MONOTONIC) - began) / sample / 2;
    return stretch <= 1 ? 1 : stretch >= 8 ? 8 : (unsigned)(stretch + 1);
}

/* The seeds of a test whose cases are left to chance, `for (uint64_t seed = s.first; seed < s.end; seed +=
 * s.step)`: `cases` of them, from 1. EPW_TEST_CASES and EPW_TEST_SEED set how many and the first;
 * EPW_TEST_STEP=3 leaves only each third of them. */
typedef struct seeds {
    uint64_t first, end, step;
} seeds;

static inline uint64_t number_from(const char *variable, uint64_t otherwise) {
    const char *text = getenv(variable);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static inline seeds seeds_of_test(uint64_t cases) {
    uint64_t first = number_from("EPW_TEST_SEED", 1), step = number_from("EPW_TEST_STEP", 1);
    return (seeds){first, first + number_from("EPW_TEST_CASES", cases), step > 0 ? step : 1};
}

/* The exit code of main(); prints the result. */
static inline int check_result(const char *name) {
    unsigned made = atomic_load(&checks_made), failed = atomic_load(&checks_failed);
    printf("%s: %u checks, %u failed\n", name, made, failed);
    return made > 0 && failed == 0 ? 0 : 1;
}

#endif
