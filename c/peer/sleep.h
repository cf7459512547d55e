/* Sleeping on words that lie in memory of several processes, and waking who sleeps. */
#ifndef EPW_PEER_SLEEP_H
#define EPW_PEER_SLEEP_H

#include "peer/await.h"
#include "peer/peers.h"

/* Threads of a window's owner that sleep on a word in it. */
static inline _Atomic uint32_t *epw_sleepers_in(uint64_t window) {
    return (_Atomic uint32_t *)&((epw_window_header *)(uintptr_t)window)->sleepers;
}

/* Rings a window's bell, if anybody listens. The posted word is stored before, see epw_signal. */
void epw_bell_ring(uint64_t window);

/* Wakes all who sleep on the word. */
void epw_futex_wake(_Atomic uint64_t *word);

/* What epw_await_any sleeps on, for a look: the bell, or what epw_watch_sleep would. `sleeps` as of the look:
 * before anything is looked at. */
void epw_bell_look(const epw_peers *peers, bool sleeps, epw_awaited *out);
void epw_watch_look(const epw_peers *peers, uint32_t lane, const epw_watch *watch, bool sleeps, uint64_t now,
                    epw_awaited *out);

/* Whether a wait that began then is one of those in which it is worth while to yield. */
static inline bool epw_wait_is_young(const epw_peers *peers, uint64_t since, uint64_t now) {
    return now < since || now - since < peers->spin_ns + peers->yield_ns;
}

/* Sleeps on the word while its low half is that of `value`, at most `ns`. */
void epw_futex_wait(_Atomic uint64_t *word, uint64_t value, uint64_t ns);

#endif
