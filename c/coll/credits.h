/* The credits of messages, as pure functions: how many sends a rank may have with a peer that has not
 * received them, and which of them are copied there. point.c passes what it holds, and the explorer in tests
 * passes what it simulates.
 *
 * A send counts at its source from when it is written until the owner reports, by MATCHED, that it has met a
 * receive; so it counts there while it lies in the ring, while the owner keeps it without a receive, and
 * until the report has come. The owner thus never has more to keep than a source may have under way. All
 * counts restart in each epoch. */
#ifndef EPW_COLL_CREDITS_H
#define EPW_COLL_CREDITS_H

#include <stdbool.h>
#include <stdint.h>

/* Of messages from one rank to another that are unreceived: the most, and the most bytes of those that are
 * sent at once. The same on all ranks. */
typedef struct epw_credit_limits {
    uint32_t messages;
    uint64_t bytes;
} epw_credit_limits;

/* A number of messages, and the bytes of those that were sent at once. */
typedef struct epw_credit {
    uint32_t messages;
    uint64_t bytes;
} epw_credit;

typedef struct epw_credits {
    epw_credit unmatched; /* to the peer: sent, and not known to be received */
    epw_credit kept;      /* from the peer: arrived before their receives */
    epw_credit matched;   /* from the peer: received, and not reported yet */
} epw_credits;

static inline void epw_credit_add(epw_credit *credit, uint64_t eager_bytes) {
    credit->messages++;
    credit->bytes += eager_bytes;
}

/* ---- to the peer ---- */

static inline bool epw_credits_may_send(const epw_credits *c, epw_credit_limits most) {
    return c->unmatched.messages < most.messages;
}

/* Whether a message is sent at once; otherwise it is offered. */
static inline bool epw_credits_are_enough(const epw_credits *c, uint64_t bytes, uint32_t slot_bytes,
                                          epw_credit_limits most) {
    return bytes <= slot_bytes && c->unmatched.bytes + bytes <= most.bytes;
}

/* A message has been written; `eager_bytes` of it at once, 0 for an offer. */
static inline void epw_credits_sent(epw_credits *c, uint64_t eager_bytes) {
    epw_credit_add(&c->unmatched, eager_bytes);
}

/* The peer reports this; false: it has not been sent so much. */
static inline bool epw_credits_returned(epw_credits *c, uint64_t messages, uint64_t bytes) {
    if (messages > c->unmatched.messages || bytes > c->unmatched.bytes) return false;
    c->unmatched.messages -= (uint32_t)messages;
    c->unmatched.bytes -= bytes;
    return true;
}

/* ---- from the peer ---- */

/* Keeps a message without a receive; false: a source that counts correctly would not have sent it. */
static inline bool epw_credits_keep(epw_credits *c, uint64_t eager_bytes, epw_credit_limits most) {
    if (c->kept.messages == most.messages || c->kept.bytes + eager_bytes > most.bytes) return false;
    epw_credit_add(&c->kept, eager_bytes);
    return true;
}

/* A message that was kept has met its receive. */
static inline void epw_credits_unkeep(epw_credits *c, uint64_t eager_bytes) {
    c->kept.messages--;
    c->kept.bytes -= eager_bytes;
}

static inline void epw_credits_matched(epw_credits *c, uint64_t eager_bytes) {
    epw_credit_add(&c->matched, eager_bytes);
}

static inline bool epw_credits_to_report(const epw_credits *c) {
    return c->matched.messages > 0;
}

/* What the next report says; it counts as said. */
static inline epw_credit epw_credits_report(epw_credits *c) {
    epw_credit said = c->matched;
    c->matched = (epw_credit){0};
    return said;
}

#endif
