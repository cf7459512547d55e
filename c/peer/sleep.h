/* Sleeping on words in memory that several processes share, and waking the sleepers. */
#ifndef EPW_PEER_SLEEP_H
#define EPW_PEER_SLEEP_H

#include "peer/peers.h"

/* Threads of a window's owner that sleep on a word in it. */
static inline _Atomic uint32_t *epw_sleepers_in(uint64_t window) {
    return (_Atomic uint32_t *)&((epw_window_header *)(uintptr_t)window)->sleepers;
}

/* Rings a window's bell, if anybody listens. The posted word must have been stored before, see epw_signal. */
void epw_bell_ring(uint64_t window);

/* Wakes all who sleep on the word. */
void epw_futex_wake(_Atomic uint64_t *word);

/* Sleeps on the word while its low half is that of `value`, at most `ns`. */
void epw_futex_wait(_Atomic uint64_t *word, uint64_t value, uint64_t ns);

#endif
