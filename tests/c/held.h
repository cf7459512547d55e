/* What a process holds, and a leak would increase: descriptors and threads. */
#ifndef EPW_TESTS_HELD_H
#define EPW_TESTS_HELD_H

#include "check.h"

#include <dirent.h>
#include <stdint.h>
#include <time.h>

static inline uint32_t entries_of(const char *folder) {
    uint32_t count = 0;
    DIR *dir = opendir(folder);
    while (readdir(dir) != NULL) count++;
    closedir(dir);
    return count;
}

typedef struct held {
    uint32_t descriptors, threads;
} held;

/* Measured once everything has been made and given back, because a sanitizer, for example, starts a thread of
 * its own beside the first. */
static held at_first;

/* A joined thread may still be listed for a moment. */
static inline held look(uint32_t threads) {
    held h = {.descriptors = entries_of("/proc/self/fd"), .threads = entries_of("/proc/self/task")};
    for (int i = 0; i < 1000 && h.threads > threads; i++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        h.threads = entries_of("/proc/self/task");
    }
    return h;
}

/* Threads that are ending may still be listed. */
static inline void look_at_first(void) {
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    at_first = look(UINT32_MAX);
}

/* Checks that as much is held as at first. `of` and `which` say after what. */
static inline void nothing_more_is_held(const char *of, uint32_t which) {
    held after = look(at_first.threads);
    CHECK_MSG(at_first.descriptors == after.descriptors && at_first.threads == after.threads,
              "%s %u: %u descriptors were %u, %u threads %u", of, which, after.descriptors,
              at_first.descriptors, after.threads, at_first.threads);
}

#endif
