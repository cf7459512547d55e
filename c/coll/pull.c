/* See pull.h. */
#include "coll/pull.h"

#include "base/clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

bool epw_pull_from(uint32_t pid, void *to, uint64_t address, uint64_t bytes) {
    while (bytes > 0) { /* ends: each iteration reads something, or returns */
        struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)address, bytes};
        ssize_t got = process_vm_readv((pid_t)pid, &here, 1, &there, 1, 0);
        if (got <= 0) return false;
        to = (char *)to + got;
        address += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return true;
}

/* ---- whether it pays ---- */

enum { SLOT = 32 << 10, SLOTS = 8, LEAST = 32 << 10, MOST = 512 << 10, TRIES = 4 };

/* Two copies, as through a ring: into a slot, and from there. */
static void copy_twice(unsigned char *to, const unsigned char *from, unsigned char *ring, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += SLOT) {
        unsigned char *slot = ring + at % (SLOT * SLOTS);
        uint64_t here = bytes - at < SLOT ? bytes - at : SLOT;
        memcpy(slot, from + at, here);
        atomic_signal_fence(memory_order_seq_cst); /* both copies take place */
        memcpy(to + at, slot, here);
    }
}

/* Nanoseconds of the fastest of some tries, because others may take the core; UINT64_MAX: not permitted. */
static uint64_t fastest(unsigned char *to, const unsigned char *from, unsigned char *ring, uint64_t bytes) {
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t began = epw_now_ns();
        if (ring != NULL) {
            copy_twice(to, from, ring, bytes);
        } else if (!epw_pull_from((uint32_t)getpid(), to, (uint64_t)(uintptr_t)from, bytes)) {
            return UINT64_MAX;
        }
        uint64_t took = epw_now_ns() - began;
        if (took < best) best = took;
    }
    return best;
}

/* The least size from which on a pull is faster for each size that is tried. */
static uint64_t measure(void) {
    unsigned char *memory = malloc(2 * MOST + SLOT * SLOTS);
    uint64_t from = UINT64_MAX;
    if (memory == NULL) return from;
    memset(memory, 1, 2 * MOST + SLOT * SLOTS); /* so that no page is new */
    unsigned char *to = memory + MOST, *ring = to + MOST;
    for (uint64_t bytes = MOST; bytes >= LEAST; bytes /= 4) {
        if (fastest(to, memory, NULL, bytes) >= fastest(to, memory, ring, bytes)) break;
        from = bytes;
    }
    free(memory);
    return from;
}

epw_status epw_pull_wanted(epw_where where, uint64_t *out) {
    const char *text = getenv("EPWIRE_PULL_FROM");
    *out = 0;
    if (text == NULL || text[0] == '\0') return EPW_OK; /* empty counts as unset, as for every variable */
    if (strcmp(text, "never") == 0) {
        *out = UINT64_MAX;
        return EPW_OK;
    }
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || *out == 0)
        return epw_fail(EPW_ERR_INVALID, where,
                        "EPWIRE_PULL_FROM is \"%.32s\": give a number of bytes from 1 to 2^64 - 1, or never",
                        text);
    return EPW_OK;
}

static uint64_t measured(void) {
    /* 0: not measured yet. Threads that race here may find different sizes, of which any will do. */
    static _Atomic uint64_t once;
    uint64_t from = atomic_load_explicit(&once, memory_order_relaxed);
    if (from != 0) return from;
    from = measure();
    atomic_store_explicit(&once, from, memory_order_relaxed);
    return from;
}

epw_status epw_pull_choose(epw_where where, uint64_t *out) {
    epw_status status = epw_pull_wanted(where, out);
    if (status == EPW_OK && *out == 0) *out = measured();
    return status;
}
