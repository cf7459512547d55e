/* Shared by witnesses that post: compares entries and doorbells field by field, as compare.h does. */
#ifndef EPW_WITNESS_ENTRIES_H
#define EPW_WITNESS_ENTRIES_H

#include "compare.h"

#include "nic/entry.h"

/* Parts of an entry, in bytes. */
typedef struct part {
    const char *segment, *name;
    int first, bytes;
} part;

#define CTRL                                                                                                 \
    {"ctrl", "opmod", 0, 1}, {"ctrl", "wqe_index", 1, 2}, {"ctrl", "opcode", 3, 1}, {"ctrl", "qpn", 4, 3},   \
        {"ctrl", "ds", 7, 1}, {"ctrl", "signature", 8, 1}, {"ctrl", "dci_stream", 9, 2},                     \
        {"ctrl", "fm_ce_se", 11, 1}, {                                                                       \
        "ctrl", "imm", 12, 4                                                                                 \
    }
#define RADDR                                                                                                \
    {"raddr", "address", 16, 8}, {"raddr", "rkey", 24, 4}, {                                                 \
        "raddr", "reserved", 28, 4                                                                           \
    }
#define DATA(name, at)                                                                                       \
    {name, "byte_count", at, 4}, {name, "lkey", (at) + 4, 4}, {                                              \
        name, "address", (at) + 8, 8                                                                         \
    }

static const part transfer_parts[] = {CTRL, RADDR, DATA("data", 32), {0}};
static const part both_parts[] = {CTRL, RADDR, DATA("data", 32), DATA("second", 48), {0}};
static const part inline_parts[] = {
    CTRL, RADDR, {"inline", "byte_count", 32, 4}, {"inline", "bytes", 36, 8}, {"inline", "padding", 44, 4},
    {0}};
static const part add_parts[] = {
    CTRL, RADDR, {"atomic", "add", 32, 8}, {"atomic", "compare", 40, 8}, DATA("data", 48), {0}};
static const part none_parts[] = {CTRL, RADDR, {0}};

static inline void compare_entry(const char *who, const char *what, const part *parts, const void *theirs,
                                 const void *ours) {
    for (const part *p = parts; p != NULL && p->name != NULL; p++)
        say(who, what, p->segment, p->name, bits_at(theirs, (uint32_t)p->first * 8, (uint32_t)p->bytes * 8),
            bits_at(ours, (uint32_t)p->first * 8, (uint32_t)p->bytes * 8));
}

/* What they have rung with when all entries below `index` may be fetched. */
static inline void compare_ring(const char *who, const uint32_t *record, const uint64_t *doorbell,
                                uint32_t pair, uint64_t index) {
    uint32_t our_record = epw_doorbell_record(index);
    uint64_t ours = epw_doorbell(pair, index);
    say(who, "RING", "record", "send", bits_at(record + 1, 0, 32), bits_at(&our_record, 0, 32));
    say(who, "RING", "doorbell", "first_word", bits_at(doorbell, 0, 32), bits_at(&ours, 0, 32));
    say(who, "RING", "doorbell", "qpn", bits_at(doorbell, 32, 24), bits_at(&ours, 32, 24));
    say(who, "RING", "doorbell", "ds", bits_at(doorbell, 56, 8), bits_at(&ours, 56, 8));
}

#endif
