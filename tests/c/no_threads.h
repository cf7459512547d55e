/* Threads that cannot be started: stacks are asked for that no address space has room for, so that
 * pthread_create says EAGAIN, as at a limit of the user or the container. */
#ifndef EPW_TESTS_NO_THREADS_H
#define EPW_TESTS_NO_THREADS_H

#include "check.h"

#include <pthread.h>
#include <stdbool.h>

static inline void start_no_threads(bool none) {
    static size_t usual;
    pthread_attr_t attr;
    CHECK(pthread_getattr_default_np(&attr) == 0);
    if (usual == 0) CHECK(pthread_attr_getstacksize(&attr, &usual) == 0);
    CHECK(pthread_attr_setstacksize(&attr, none ? (size_t)1 << 60 : usual) == 0);
    CHECK(pthread_setattr_default_np(&attr) == 0);
    pthread_attr_destroy(&attr);
}

#endif
