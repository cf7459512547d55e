/* The rules of rings, as pure functions: which slot a rank may write, which message it may read, what it
 * tells the peer by which word, and what it makes of what it finds there. They read no memory of others and
 * no clock: the engine calls them with what it has loaded, and the explorer in tests with what it imagines.
 *
 * Message number n of a ring goes through these hands, in this order:
 *
 *     written by its source      posted      counts it there
 *     told to the owner          announced   by the word POSTED
 *     seen by the owner          seen
 *     read by the owner          consumed
 *     told to the source         told        by the word TAKEN
 *     seen by the source         taken       and so its slot is free for message n + slots
 *
 * All numbers begin again in each epoch, and so do the words, which carry it. */
#ifndef EPW_COLL_RULES_H
#define EPW_COLL_RULES_H

#include "coll/layout.h"
#include "peer/rules.h"

/* The rings of a channel to and from a peer, by running numbers of messages. */
typedef struct epw_ring {
    uint64_t posted;    /* written for the peer */
    uint64_t announced; /* of these, by the word POSTED */
    uint64_t taken;     /* of these, the peer is done with */
    uint64_t borrowed;  /* the last by which the peer reads the caller's memory */
    uint64_t seen;      /* come from the peer */
    uint64_t consumed;  /* of these, this rank is done with */
    uint64_t told;      /* of these, by the word TAKEN */
    bool all_seen;      /* the peer has said farewell: `seen` grows no more */
    bool all_taken;     /* nor does `taken` */
    bool urgent;        /* the peer waits for that word */
    bool here;          /* message consumed + 1 has been checked: */
    epw_message message;
    uint64_t done; /* bytes of it */
} epw_ring;

/* ---- an epoch ---- */

/* No message of the new epoch has been written, here or there. */
static inline epw_ring epw_ring_restarted(void) {
    return (epw_ring){0};
}

/* Has the peer begun the epoch? Then it reads nothing any more of what lies in its slots, and none of this
 * rank's memory: the slots are this rank's to write. */
static inline bool epw_ring_begun(epw_sight seen, uint64_t own_word) {
    return seen.epoch_word == own_word;
}

/* ---- to the peer ---- */

static inline bool epw_ring_has_room(const epw_ring *ring, uint32_t slots) {
    return ring->posted - ring->taken < slots;
}

/* The slot of message posted + 1 has been filled. `lends`: the peer reads the bytes where they lie. */
static inline void epw_ring_wrote(epw_ring *ring, bool lends) {
    ring->posted++;
    if (lends) ring->borrowed = ring->posted;
}

/* What the word POSTED is to say; 0: nothing new. */
static inline uint64_t epw_ring_to_announce(const epw_ring *ring) {
    return ring->posted > ring->announced ? ring->posted : 0;
}

/* Does the peer still read this rank's memory? */
static inline bool epw_ring_lends(const epw_ring *ring) {
    return ring->taken < ring->borrowed;
}

/* ---- from the peer ---- */

static inline bool epw_ring_may_read(const epw_ring *ring) {
    return ring->consumed < ring->seen;
}

/* This rank is done with the message that it has read. */
static inline void epw_ring_consume(epw_ring *ring) {
    uint32_t carry = ring->message.carry;
    if (carry == EPW_CARRY_PULL || carry == EPW_CARRY_HEAP) ring->urgent = true;
    ring->here = false;
    ring->consumed++;
}

/* What the word TAKEN is to say; 0: nothing, or not yet: a word for half a ring is enough, but who lends
 * memory waits for each. */
static inline uint64_t epw_ring_to_give_back(const epw_ring *ring, uint32_t slots) {
    uint64_t read = ring->consumed - ring->told;
    return read > 0 && (ring->urgent || read >= slots / 2) ? ring->consumed : 0;
}

/* May bytes that were read of the peer's memory be used? It takes all back by a farewell, and those of
 * messages up to a number by the word CANCELLED, which is `seen.word`, before its caller may write there. */
static inline bool epw_ring_still_lent(epw_sight seen, uint64_t own_word, uint64_t number) {
    if (epw_rule_gone(seen, own_word) != EPW_CAUSE_NONE) return false;
    return epw_word_epoch(seen.word) != epw_word_epoch(own_word) || epw_word_step(seen.word) < number;
}

/* ---- words of the peer ---- */

static inline epw_heard epw_ring_hear(uint64_t *count, uint64_t most, uint64_t word, uint32_t epoch) {
    if (epw_word_epoch(word) != epoch || epw_word_step(word) <= *count) return EPW_HEARD_NOTHING;
    if (epw_word_step(word) > most) return EPW_HEARD_NONSENSE;
    *count = epw_word_step(word);
    return EPW_HEARD_MORE;
}

/* `seen.word` is POSTED: no more can have come than there are slots. A farewell is loaded before the word, so
 * behind one the word is the last. */
static inline epw_heard epw_ring_hear_posted(epw_ring *ring, epw_sight seen, uint64_t own_word,
                                             uint32_t slots) {
    ring->all_seen |= epw_rule_gone(seen, own_word) != EPW_CAUSE_NONE;
    return epw_ring_hear(&ring->seen, ring->consumed + slots, seen.word, epw_word_epoch(own_word));
}

/* The same of TAKEN: no more can have been taken than was posted. */
static inline epw_heard epw_ring_hear_taken(epw_ring *ring, epw_sight seen, uint64_t own_word) {
    ring->all_taken |= epw_rule_gone(seen, own_word) != EPW_CAUSE_NONE;
    return epw_ring_hear(&ring->taken, ring->posted, seen.word, epw_word_epoch(own_word));
}

/* May a peer that has said farewell be given up, where these words of its are awaited? Its farewell may have
 * been seen behind another word, or on another channel, and not yet behind these. */
static inline bool epw_ring_ended(const epw_ring *ring, bool awaits_posted, bool awaits_taken) {
    return (!awaits_posted || ring->all_seen) && (!awaits_taken || ring->all_taken);
}

/* ---- what a message is ---- */

typedef enum epw_found {
    EPW_FOUND_OURS,    /* of the collective that runs here */
    EPW_FOUND_ANOTHER, /* of another one, or of the same with other arguments */
    EPW_FOUND_NONSENSE /* nothing of the peer's is believed any more */
} epw_found;

static inline bool epw_descriptor_equal(const epw_descriptor *a, const epw_descriptor *b) {
    return a->kind == b->kind && a->type == b->type && a->op == b->op && a->uneven == b->uneven &&
           a->peer == b->peer && a->count == b->count;
}

static inline bool epw_descriptor_is_call(const epw_descriptor *what) {
    return what->kind <= EPW_SCATTER && what->type <= EPW_TYPE_F64 && what->op <= EPW_AVERAGE;
}

static inline epw_called epw_brief(const epw_descriptor *what) {
    return (epw_called){what->kind, what->type, what->op, what->uneven, what->peer};
}

static inline uint32_t epw_brief_count(const epw_descriptor *what) {
    return (uint32_t)what->count;
}

static inline epw_descriptor epw_descriptor_from(const epw_called *brief, uint32_t count) {
    return (epw_descriptor){.kind = brief->kind,
                            .type = brief->type,
                            .op = brief->op,
                            .uneven = brief->uneven,
                            .peer = brief->peer,
                            .count = count};
}

/* Whether both are the same as far as a brief tells: of uneven blocks each pair has a count of its own. */
static inline bool epw_descriptor_briefly_equal(const epw_descriptor *a, const epw_descriptor *b) {
    return a->kind == b->kind && a->type == b->type && a->op == b->op && a->uneven == b->uneven &&
           a->peer == b->peer && (a->uneven || epw_brief_count(a) == epw_brief_count(b));
}

/* What the message says that its source has called before. */
static inline epw_descriptor epw_message_before(const epw_message *m) {
    return epw_descriptor_from(&m->before, m->before_count);
}

/* ring->message, which lies where message consumed + 1 does. `own` is call number `call` of this rank's, and
 * `before` the one before it: where only roots differ, the messages of a collective may all look right, or
 * not concern this rank, and only those of the next one tell. */
static inline epw_found epw_message_found(const epw_ring *ring, uint32_t call, const epw_descriptor *own,
                                          const epw_descriptor *before) {
    const epw_message *m = &ring->message;
    epw_descriptor its_before = epw_message_before(m);
    if (m->number != ring->consumed + 1 || !epw_descriptor_is_call(&m->what)) return EPW_FOUND_NONSENSE;
    if (m->call != call || !epw_descriptor_equal(&m->what, own)) return EPW_FOUND_ANOTHER;
    return epw_descriptor_briefly_equal(&its_before, before) ? EPW_FOUND_OURS : EPW_FOUND_ANOTHER;
}

/* Call number `call` expects nothing more of the source of ring->message. Does it give something in this call
 * or an earlier one? Then it has called something else: a message of a later call is in its turn. */
static inline bool epw_message_unexpected(const epw_ring *ring, uint32_t call) {
    const epw_message *m = &ring->message;
    return m->number == ring->consumed + 1 && epw_descriptor_is_call(&m->what) && m->call <= call;
}

#endif
