/* The states that an exploration has seen, by fingerprint: with n states the probability that one is missed
 * is n * n / 2^65. One set for each program; states are compared by all of their bytes. */
#ifndef EPW_TESTS_SEEN_H
#define EPW_TESTS_SEEN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t *seen;
static uint64_t seen_count, seen_room;

static uint64_t fingerprint(const void *state, size_t bytes) {
    uint64_t print = UINT64_C(0x9e3779b97f4a7c15);
    for (size_t at = 0; at <= bytes; at += 8) {
        uint64_t word = 0;
        memcpy(&word, (const char *)state + at, bytes - at < 8 ? bytes - at : 8);
        print = (print ^ word) * UINT64_C(0xff51afd7ed558ccd);
        print ^= print >> 32;
    }
    return print | 1;
}

static bool put(uint64_t print) {
    uint64_t i = print >> 1 & (seen_room - 1);
    for (; seen[i] != 0; i = (i + 1) & (seen_room - 1))
        if (seen[i] == print) return false;
    seen[i] = print;
    return true;
}

/* True if the state is new. */
static bool visit(const void *state, size_t bytes) {
    if (2 * seen_count >= seen_room) {
        uint64_t *old = seen, room = seen_room;
        seen_room = room ? 4 * room : 1 << 16;
        seen = calloc(seen_room, sizeof *seen);
        if (seen == NULL) abort();
        for (uint64_t i = 0; i < room; i++)
            if (old[i] != 0) put(old[i]);
        free(old);
    }
    bool fresh = put(fingerprint(state, bytes));
    seen_count += fresh;
    return fresh;
}

#endif
