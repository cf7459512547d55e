/* The checks of the C tests: a failed one prints where and what, is counted, and lets the test go on. */
#ifndef EPW_TESTS_CHECK_H
#define EPW_TESTS_CHECK_H

#include <stdatomic.h>
#include <stdio.h>

static atomic_uint check_count, check_failures;

#define CHECK(cond)                                                                                          \
    do {                                                                                                     \
        atomic_fetch_add(&check_count, 1);                                                                   \
        if (!(cond)) {                                                                                       \
            atomic_fetch_add(&check_failures, 1);                                                            \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond);                               \
        }                                                                                                    \
    } while (0)

/* Prints the totals and returns main's exit code. */
static inline int check_report(void) {
    unsigned count = atomic_load(&check_count), failures = atomic_load(&check_failures);
    printf("%u checks, %u failed\n", count, failures);
    return failures ? 1 : 0;
}

#endif
