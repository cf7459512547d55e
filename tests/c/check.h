/* The whole test framework of the C tests: a check that prints and counts, and an exit code. Safe to use from
 * threads. */
#ifndef EPW_TESTS_CHECK_H
#define EPW_TESTS_CHECK_H

#include <stdatomic.h>
#include <stdio.h>

static atomic_uint checks_failed;

/* CHECK(condition, "what was seen: %d", x): prints the first 20 failures and counts all. True if it held. */
#define CHECK(condition, ...)                                                                                \
    ((condition) ? 1 : (check_failed(__FILE__, __LINE__, #condition, __VA_ARGS__), 0))

#define check_failed(file, line, text, ...)                                                                  \
    (atomic_fetch_add(&checks_failed, 1) < 20 ? (void)(fprintf(stderr, "%s:%d: %s: ", file, line, text),     \
                                                       fprintf(stderr, __VA_ARGS__), fputc('\n', stderr))    \
                                              : (void)0)

/* The exit code of main(): says how it went. */
static inline int check_result(const char *name) {
    const unsigned failed = atomic_load(&checks_failed);
    if (failed == 0)
        printf("%s: ok\n", name);
    else
        fprintf(stderr, "%s: %u checks failed\n", name, failed);
    return failed == 0 ? 0 : 1;
}

#endif
