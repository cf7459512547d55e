/* Who rings for a send queue: one thread at a time, and none waits for it. All that they have to agree about
 * is one word, {entries rung for 60 | given up | flush | again | held}, changed by compare-and-swap alone.
 *
 * A thread that finds the bell held leaves its request in the word and returns. The holder lets go by
 * swapping the very word that it has left there: if a request has come meanwhile that fails, and it goes
 * round again.
 *
 * Once it is given up nobody takes it any more. Who holds it then rings for nothing that was posted later. */
#ifndef EPW_NIC_DOORBELL_H
#define EPW_NIC_DOORBELL_H

#include "nic/order.h"

enum {
    EPW_BELL_HELD = 1,
    EPW_BELL_AGAIN = 2, /* slots were published while it was held */
    EPW_BELL_FLUSH = 4, /* somebody wants to be rung for all that was posted, published by now or not */
    EPW_BELL_GIVEN_UP = 8,
    EPW_BELL_COUNT_SHIFT = 4
};

/* What the holder knows. */
typedef struct epw_bell {
    uint64_t rung;
    bool flush; /* was asked for, and has not been done */
} epw_bell;

/* Takes the bell. False: another thread holds it, and will see to it; or it is given up.
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

/* Lets go, with what the holder has done, and with its flush if that is still to be done by a later one.
 * False if there are requests: it holds the bell on, and has them. One that is given up it leaves as it is.
 */
EPW_INLINE bool epw_bell_let_go(uint64_t *word, uint64_t left_there, epw_bell *bell) {
    uint64_t count = bell->rung << EPW_BELL_COUNT_SHIFT;
    uint64_t seen = left_there << EPW_BELL_COUNT_SHIFT | EPW_BELL_HELD;
    if (epw_compare_swap_64(word, seen, count | (bell->flush ? EPW_BELL_FLUSH : 0))) return true;
    do {
        seen = epw_load_relaxed_64(word);
        if (seen & EPW_BELL_GIVEN_UP) return true;
    } while (!epw_compare_swap_64(word, seen, count | EPW_BELL_HELD));
    bell->flush |= (seen & EPW_BELL_FLUSH) != 0;
    return false;
}

/* Nobody rings from here on for what this thread, or who acquires something that it releases later, posts:
 * such a one finds the bell given up when it takes it, or in the word while it holds it. */
EPW_INLINE void epw_bell_give_up(uint64_t *word) {
    uint64_t seen;
    do { /* terminates: a swap fails only where another one has succeeded */
        seen = epw_load_relaxed_64(word);
    } while (!epw_compare_swap_64(word, seen, seen | EPW_BELL_GIVEN_UP));
}

/* For who holds it, behind the marks that it has acquired of others. */
EPW_INLINE bool epw_bell_is_given_up(const uint64_t *word) {
    return (epw_load_relaxed_64(word) & EPW_BELL_GIVEN_UP) != 0;
}

#endif
