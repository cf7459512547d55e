/* The rules of rings, as pure functions: which slot a rank may write, which message it may read, which word
 * it posts when, and what it concludes from what it reads. They read neither the memory of other ranks nor a
 * clock: the engine passes what it has loaded, and the explorer in tests passes what it simulates.
 *
 * Message n of a ring goes through these stages, in this order:
 *
 *     written by its source      posted      is counted there
 *     announced to the owner     announced   by the word POSTED
 *     seen by the owner          seen
 *     read by the owner          consumed
 *     returned to the source     told        by the word TAKEN
 *     seen by the source         taken       so its slot is free for message n + slots
 *
 * All counts restart in each epoch, and so do the words, which carry the epoch and the lower 41 bits of a
 * count. */
#ifndef EPW_COLL_RULES_H
#define EPW_COLL_RULES_H

#include "coll/layout.h"
#include "peer/rules.h"

/* The rings of one channel to and from a peer, as counts of messages. */
typedef struct epw_ring {
    uint64_t posted;    /* written for the peer */
    uint64_t announced; /* of these, announced by the word POSTED */
    uint64_t taken;     /* of these, the peer has finished with */
    uint64_t borrowed;  /* the last message by which the peer reads the caller's memory */
    uint64_t seen;      /* arrived from the peer */
    uint64_t consumed;  /* of these, this rank has finished with */
    uint64_t told;      /* of these, reported by the word TAKEN */
    bool all_seen;      /* the peer has said farewell: `seen` is final */
    bool all_taken;     /* and so is `taken` */
    bool urgent;        /* the peer waits for the word TAKEN */
    bool here;          /* message consumed + 1 has been checked and is in `message` */
    epw_message message;
    uint64_t done; /* bytes of it that were read */
} epw_ring;

/* ---- an epoch ---- */

/* The rings of a new epoch, in which nothing has been written yet. */
static inline epw_ring epw_ring_restarted(void) {
    return (epw_ring){0};
}

/* Whether the peer has begun the epoch. From then on it reads neither old messages in its slots nor this
 * rank's memory, so this rank may write the slots. */
static inline bool epw_ring_begun(epw_sight seen, uint64_t own_word) {
    return seen.epoch_word == own_word;
}

/* ---- to the peer ---- */

static inline bool epw_ring_has_room(const epw_ring *ring, uint32_t slots) {
    return ring->posted - ring->taken < slots;
}

/* The same for a message that says that there is nothing. The owner may leave such messages unread for many
 * calls, so they leave a slot to others. If there is no room, the owner is not told: nobody waits for that.
 */
static inline bool epw_ring_has_room_for_nothing(const epw_ring *ring, uint32_t slots) {
    return ring->posted - ring->taken + 1 < slots;
}

/* Message posted + 1 has been written. `lends`: the peer reads its bytes from this rank's memory. */
static inline void epw_ring_wrote(epw_ring *ring, bool lends) {
    ring->posted++;
    if (lends) ring->borrowed = ring->posted;
}

/* The count for the word POSTED; 0: nothing new. */
static inline uint64_t epw_ring_to_announce(const epw_ring *ring) {
    return ring->posted > ring->announced ? ring->posted : 0;
}

/* Whether the peer may still be reading this rank's memory. */
static inline bool epw_ring_lends(const epw_ring *ring) {
    return ring->taken < ring->borrowed;
}

/* ---- from the peer ---- */

static inline bool epw_ring_may_read(const epw_ring *ring) {
    return ring->consumed < ring->seen;
}

/* This rank has finished with the message. */
static inline void epw_ring_consume(epw_ring *ring) {
    uint32_t carry = ring->message.carry;
    if (carry == EPW_CARRY_PULL || carry == EPW_CARRY_HEAP) ring->urgent = true;
    ring->here = false;
    ring->consumed++;
}

/* The count for the word TAKEN; 0: nothing to report yet. A word is posted for half a ring; but a peer that
 * lends memory waits for every message. */
static inline uint64_t epw_ring_to_give_back(const epw_ring *ring, uint32_t slots) {
    uint64_t read = ring->consumed - ring->told;
    return read > 0 && (ring->urgent || read >= slots / 2) ? ring->consumed : 0;
}

/* Whether bytes that were read from the peer's memory may be used. The peer ends all loans by a farewell, and
 * those of messages up to a number by the word CANCELLED, which is `seen.word`, before its caller may write
 * there. */
#define EPW_NO_MESSAGE UINT64_MAX /* of a send, whose loan only the end of all loans takes back */
static inline bool epw_ring_still_lent(epw_sight seen, uint64_t own_word, uint64_t number) {
    const uint64_t most = UINT64_C(1) << 20; /* by which a count passes that of a message in its ring */
    if (epw_rule_gone(seen, own_word) != EPW_CAUSE_NONE) return false;
    if (epw_word_epoch(seen.word) != epw_word_epoch(own_word)) return true;
    uint64_t count = epw_word_step(seen.word);
    return count != EPW_STEP_MAX && (number == EPW_NO_MESSAGE || ((count - number) & EPW_STEP_MAX) >= most);
}

/* ---- words of the peer ---- */

/* By how many messages the word is ahead of the count; 0: it is not. */
static inline uint64_t epw_ring_ahead(uint64_t word, uint64_t count, uint32_t epoch) {
    uint64_t more = (epw_word_step(word) - count) & EPW_STEP_MAX;
    return epw_word_epoch(word) == epoch && more <= EPW_STEP_MAX / 2 ? more : 0;
}

static inline epw_heard epw_ring_hear(uint64_t *count, uint64_t most, uint64_t word, uint32_t epoch) {
    uint64_t more = epw_ring_ahead(word, *count, epoch);
    if (more == 0) return EPW_HEARD_NOTHING;
    if (more > most - *count) return EPW_HEARD_IMPOSSIBLE;
    *count += more;
    return EPW_HEARD_MORE;
}

/* `seen.word` is POSTED: no more messages can have arrived than there are slots. A farewell is loaded before
 * the word, so after a farewell the word is final. */
static inline epw_heard epw_ring_hear_posted(epw_ring *ring, epw_sight seen, uint64_t own_word,
                                             uint32_t slots) {
    ring->all_seen |= epw_rule_gone(seen, own_word) != EPW_CAUSE_NONE;
    return epw_ring_hear(&ring->seen, ring->consumed + slots, seen.word, epw_word_epoch(own_word));
}

/* The same for TAKEN: no more messages can have been taken than were posted. */
static inline epw_heard epw_ring_hear_taken(epw_ring *ring, epw_sight seen, uint64_t own_word) {
    ring->all_taken |= epw_rule_gone(seen, own_word) != EPW_CAUSE_NONE;
    return epw_ring_hear(&ring->taken, ring->posted, seen.word, epw_word_epoch(own_word));
}

/* Whether a peer that has said farewell may be given up while these words of it are awaited. Its farewell may
 * have been seen with another word, or on another channel, before these words were read. */
static inline bool epw_ring_ended(const epw_ring *ring, bool awaits_posted, bool awaits_taken) {
    return (!awaits_posted || ring->all_seen) && (!awaits_taken || ring->all_taken);
}

/* ---- what a message is ---- */

typedef enum epw_found {
    EPW_FOUND_OURS,    /* of the current collective */
    EPW_FOUND_ANOTHER, /* of another one, or of this one with other arguments */
    EPW_FOUND_LATER,   /* of a later one: only messages without bytes may come so early */
    EPW_FOUND_NONSENSE /* the peer is not trusted any more */
} epw_found;

static inline bool epw_descriptor_equal(const epw_descriptor *a, const epw_descriptor *b) {
    return a->kind == b->kind && a->type == b->type && a->op == b->op && a->uneven == b->uneven &&
           a->peer == b->peer && a->count == b->count;
}

static inline bool epw_descriptor_is_call(const epw_descriptor *what) {
    bool known = what->kind <= EPW_SCATTER || what->kind == EPW_ALL_REDUCE_NORM;
    return known && what->type <= EPW_TYPE_F64 && what->op <= EPW_AVERAGE;
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

/* Whether both are equal as far as a brief tells: with uneven blocks the count differs for each pair of
 * ranks. */
static inline bool epw_descriptor_briefly_equal(const epw_descriptor *a, const epw_descriptor *b) {
    return a->kind == b->kind && a->type == b->type && a->op == b->op && a->uneven == b->uneven &&
           a->peer == b->peer && (a->uneven || epw_brief_count(a) == epw_brief_count(b));
}

/* The call that the source of the message made before. */
static inline epw_descriptor epw_message_before(const epw_message *m) {
    return epw_descriptor_from(&m->before, m->before_count);
}

/* Judges ring->message, a copy of message consumed + 1. `own` is this rank's call, of number `call`, and
 * `before` the one before it. The previous call is compared too: if only roots differ, the messages of a
 * collective may all look right, or not concern this rank, and only those of the next one show it. */
static inline epw_found epw_message_found(const epw_ring *ring, uint32_t call, const epw_descriptor *own,
                                          const epw_descriptor *before) {
    const epw_message *m = &ring->message;
    epw_descriptor its_before = epw_message_before(m);
    if (m->number != ring->consumed + 1 || !epw_descriptor_is_call(&m->what)) return EPW_FOUND_NONSENSE;
    if (m->call != call || !epw_descriptor_equal(&m->what, own)) return EPW_FOUND_ANOTHER;
    return epw_descriptor_briefly_equal(&its_before, before) ? EPW_FOUND_OURS : EPW_FOUND_ANOTHER;
}

/* Judges ring->message, which says that its source has nothing for this rank. `own` is what this rank calls
 * as number `call`, with the elements that it expects; `expects`: there still are some. EPW_FOUND_OURS: there
 * is no more to it, and it is consumed, whichever call it is of. EPW_FOUND_LATER: it stays, until this rank
 * has called as much. */
static inline epw_found epw_nothing_found(const epw_ring *ring, uint32_t call, const epw_descriptor *own,
                                          const epw_descriptor *before, bool expects) {
    const epw_message *m = &ring->message;
    int32_t ahead = (int32_t)(m->call - call); /* numbers wrap around */
    epw_descriptor its_before = epw_message_before(m);
    if (m->number != ring->consumed + 1 || !epw_descriptor_is_call(&m->what)) return EPW_FOUND_NONSENSE;
    if (ahead > 1) return EPW_FOUND_LATER;
    if (ahead == 1)
        return epw_descriptor_briefly_equal(&its_before, own) ? EPW_FOUND_LATER : EPW_FOUND_ANOTHER;
    if (ahead == -1)
        return epw_descriptor_briefly_equal(&m->what, before) ? EPW_FOUND_OURS : EPW_FOUND_ANOTHER;
    if (ahead < -1) return EPW_FOUND_OURS;
    if (!epw_descriptor_equal(&m->what, own)) return EPW_FOUND_ANOTHER;
    if (!epw_descriptor_briefly_equal(&its_before, before)) return EPW_FOUND_ANOTHER;
    return expects ? EPW_FOUND_NONSENSE : EPW_FOUND_OURS;
}

/* Whether the source of ring->message has called something else: call number `call` expects nothing more from
 * it, and it has sent a message of this call or an earlier one. A message of a later call is in order. */
static inline bool epw_message_unexpected(const epw_ring *ring, uint32_t call) {
    const epw_message *m = &ring->message;
    bool later = (int32_t)(m->call - call) > 0; /* numbers wrap around */
    return m->number == ring->consumed + 1 && epw_descriptor_is_call(&m->what) && !later;
}

#endif
