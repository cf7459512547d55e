/* The additional checks of a strict NIC: see strict.h. */
#include "nic/soft/parts.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa5 };

#define DELAY_NS UINT64_C(5000000) /* of EPW_FAULT_DELAY */

epw_status epw_nic_be_strict(epw_nic *nic, uint64_t seed, uint32_t delay_us, epw_where where) {
    epw_strict *strict = calloc(1, sizeof *strict);
    if (strict == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a strict NIC");
    strict->random = seed;
    strict->delay_us = delay_us;
    epw_nic_lock(nic);
    free(nic->strict);
    nic->strict = strict;
    epw_nic_unlock(nic);
    epw_nic_wake(nic); /* it looks at the clock from now on */
    return EPW_OK;
}

void epw_nic_plan_fault(epw_nic *nic, const epw_fault *fault) {
    epw_nic_lock(nic);
    nic->strict->fault = *fault;
    epw_nic_unlock(nic);
}

bool epw_strict_open_pair(epw_pair *pair) {
    pair->strict = calloc(1, sizeof *pair->strict + 2 * pair->options.depth * sizeof(uint64_t));
    return pair->strict != NULL;
}

static uint32_t next_random(epw_strict *strict) {
    strict->random = strict->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(strict->random >> 33);
}

/* FNV-1a, by whole words where possible: it must detect changes, not forgery. */
static uint64_t hash(const unsigned char *bytes, size_t length) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; length >= 8; bytes += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, bytes, sizeof word);
        h = (h ^ word) * UINT64_C(0x100000001b3);
        h ^= h >> 29;
    }
    for (; length > 0; bytes++, length--) h = (h ^ *bytes) * UINT64_C(0x100000001b3);
    return h;
}

static uint64_t *hashes_of(const epw_pair *pair, uint64_t index) {
    return &pair->strict->hashes[2 * (index & (pair->memory.depth - 1))];
}

/* 0 for an entry that sends nothing from memory. */
static uint64_t hash_of_bytes(const epw_pair *pair, uint64_t index) {
    epw_fetched entry;
    const unsigned char *bytes[EPW_FETCH_SEGMENTS];
    uint64_t all = 0;
    if (epw_pair_fetch(pair, (uint32_t)index, &entry, bytes) != EPW_SYNDROME_NONE) return 0;
    for (uint32_t i = 0; entry.opcode == EPW_OPCODE_WRITE && i < entry.local_count; i++)
        all = 31 * all + hash(bytes[i], entry.local[i].bytes);
    return all;
}

void epw_strict_rung(epw_pair *pair, uint64_t from, uint64_t to) {
    epw_strict *strict = pair->nic->strict;
    for (uint64_t i = from; i < to; i++) {
        hashes_of(pair, i)[0] = hash(epw_pair_entry(pair, (uint32_t)i), EPW_FETCH_BYTES);
        hashes_of(pair, i)[1] = hash_of_bytes(pair, i);
    }
    const epw_fault *fault = &strict->fault;
    uint64_t wait = strict->delay_us > 0 ? UINT64_C(1000) * (next_random(strict) % strict->delay_us) : 0;
    if (fault->kind == EPW_FAULT_DELAY && fault->pair == pair->number) wait += DELAY_NS;
    pair->strict->fetch_at_ns = epw_now_ns() + wait;
}

bool epw_strict_is_unchanged(const epw_pair *pair, uint64_t index) {
    return hash(epw_pair_entry(pair, (uint32_t)index), EPW_FETCH_BYTES) == hashes_of(pair, index)[0];
}

bool epw_strict_done(epw_pair *pair, uint64_t from, uint64_t to, uint64_t *index) {
    for (uint64_t i = from; i < to; i++) {
        *index = i;
        if (hash_of_bytes(pair, i) != hashes_of(pair, i)[1]) return false;
        memset((unsigned char *)(uintptr_t)epw_pair_entry(pair, (uint32_t)i), POISON, EPW_FETCH_BYTES);
    }
    return true;
}

bool epw_strict_may_fetch(const epw_pair *pair) {
    const epw_fault *fault = &pair->nic->strict->fault;
    bool waits = fault->kind != EPW_FAULT_NONE && fault->pair == pair->number &&
                 fault->index == (uint32_t)pair->fetched && pair->completed != pair->fetched;
    return !waits && epw_now_ns() >= pair->strict->fetch_at_ns;
}

bool epw_strict_awaits(const epw_pair *pair, uint32_t index) {
    const epw_fault *fault = &pair->nic->strict->fault;
    return fault->kind != EPW_FAULT_NONE && fault->pair == pair->number && fault->index == index + 1;
}

epw_fault epw_strict_take(epw_pair *pair, uint64_t index) {
    epw_fault *planned = &pair->nic->strict->fault, fault = *planned;
    if (fault.kind == EPW_FAULT_NONE || fault.pair != pair->number || fault.index != (uint32_t)index)
        return (epw_fault){.kind = EPW_FAULT_NONE};
    /* That of an order lasts. */
    if (fault.kind != EPW_FAULT_REORDER) planned->kind = EPW_FAULT_NONE;
    return fault;
}
