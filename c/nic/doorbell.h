/* Which thread rings for a send queue: one at a time, and no thread waits for it. Their shared state is one
 * word, {entries rung for 60 | given up | flush | again | held}, changed only by compare-and-swap.
 *
 * A thread that finds the bell held leaves its request in the word and returns. The holder releases the bell
 * by swapping the word that it last stored: if a request has arrived meanwhile the swap fails, and the holder
 * continues.
 *
 * A thread need not take the bell to ring for its own entries if all before them are rung for: since it never
 * marks its entries, nobody else can. It then only moves the count, even while another thread holds the bell,
 * which finds it moved when it lets go.
 *
 * Once the queue is given up nobody takes the bell any more, and its holder does not ring for anything posted
 * later. */
#ifndef EPW_NIC_DOORBELL_H
#define EPW_NIC_DOORBELL_H

#include "nic/order.h"

enum {
    EPW_BELL_HELD = 1,
    EPW_BELL_AGAIN = 2, /* slots were published while it was held */
    EPW_BELL_FLUSH = 4, /* somebody asks to ring for all that was posted, published yet or not */
    EPW_BELL_GIVEN_UP = 8,
    EPW_BELL_FLAGS = 15,
    EPW_BELL_COUNT_SHIFT = 4
};

/* What the holder knows. */
typedef struct epw_bell {
    uint64_t rung;
    bool flush; /* was asked for, and has not been done */
} epw_bell;

/* Takes the bell. False: another thread holds it, and will serve the request; or the queue is given up.
 *
 * Each swap releases what its thread has published, and acquires what those before it have: a request left in
 * the word and the slots behind it are seen by the holder together. */
EPW_INLINE bool epw_bell_take(uint64_t *word, bool flush, epw_bell *bell) {
    for (;;) { /* terminates: a swap fails only where another one has succeeded */
        uint64_t seen = epw_load_relaxed_64(word), rung = seen >> EPW_BELL_COUNT_SHIFT;
        bool held = (seen & EPW_BELL_HELD) != 0;
        if (seen & EPW_BELL_GIVEN_UP) return false;
        uint64_t request = EPW_BELL_AGAIN | (flush ? EPW_BELL_FLUSH : 0);
        uint64_t wanted = held ? seen | request : rung << EPW_BELL_COUNT_SHIFT | EPW_BELL_HELD;
        if (!epw_compare_swap_64(word, seen, wanted)) continue;
        *bell = (epw_bell){rung, flush || (seen & EPW_BELL_FLUSH) != 0};
        return !held;
    }
}

/* Releases the bell, and records what the holder has done, and its flush if a later holder must still do
 * that. False if there are requests, or another thread has moved the count: the caller keeps the bell, and
 * *bell then has the flush and the new count. If the queue is given up the word stays as it is. */
EPW_INLINE bool epw_bell_let_go(uint64_t *word, uint64_t left_there, epw_bell *bell) {
    uint64_t count = bell->rung << EPW_BELL_COUNT_SHIFT;
    uint64_t seen = left_there << EPW_BELL_COUNT_SHIFT | EPW_BELL_HELD;
    if (epw_compare_swap_64(word, seen, count | (bell->flush ? EPW_BELL_FLUSH : 0))) return true;
    do { /* terminates: a swap fails only where another one has succeeded */
        seen = epw_load_relaxed_64(word);
        if (seen & EPW_BELL_GIVEN_UP) return true;
        if (bell->rung < seen >> EPW_BELL_COUNT_SHIFT) bell->rung = seen >> EPW_BELL_COUNT_SHIFT;
    } while (!epw_compare_swap_64(word, seen, bell->rung << EPW_BELL_COUNT_SHIFT | EPW_BELL_HELD));
    bell->flush |= (seen & EPW_BELL_FLUSH) != 0;
    return false;
}

/* Whether all entries below `index` are rung for, and the queue is not given up. If `index` is that of the
 * caller's entries, nobody but the caller moves the count as long as these are not marked. To be fenced
 * before the caller rings, which then comes after the record and doorbell of whoever rang before. */
EPW_INLINE bool epw_bell_has_reached(const uint64_t *word, uint64_t index) {
    uint64_t seen = epw_load_fenced_later_64(word);
    return seen >> EPW_BELL_COUNT_SHIFT == index && !(seen & EPW_BELL_GIVEN_UP);
}

/* The caller has rung for the entries from `index` to `end` without the bell, and has not marked them: the
 * NIC may have completed them already, and then their slots, with the marks, belong to others. Flags stay
 * as they are: a holder serves the requests when it lets go, and a flush that was left in a free word is
 * served by the next thread that takes the bell. Writer: the caller, its record and doorbell. Reader: whoever
 * holds the bell or takes it. */
EPW_INLINE void epw_bell_pass(uint64_t *word, uint64_t index, uint64_t end) {
    uint64_t flags = 0;
    /* Terminates: a swap fails only where another one has left other flags. */
    while (!epw_compare_swap_64(word, index << EPW_BELL_COUNT_SHIFT | flags,
                                end << EPW_BELL_COUNT_SHIFT | flags))
        flags = epw_load_relaxed_64(word) & EPW_BELL_FLAGS;
}

/* Gives the queue up: from now on nobody rings for posts that this thread begins, or that a thread begins
 * which has acquired something that this one released later. Such a thread finds the queue given up when it
 * takes the bell, or in the word while it holds it. */
EPW_INLINE void epw_bell_give_up(uint64_t *word) {
    uint64_t seen;
    do { /* terminates: a swap fails only where another one has succeeded */
        seen = epw_load_relaxed_64(word);
    } while (!epw_compare_swap_64(word, seen, seen | EPW_BELL_GIVEN_UP));
}

/* Called by the holder, after it has acquired the marks of others. */
EPW_INLINE bool epw_bell_is_given_up(const uint64_t *word) {
    return (epw_load_relaxed_64(word) & EPW_BELL_GIVEN_UP) != 0;
}

#endif
