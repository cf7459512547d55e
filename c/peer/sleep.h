/* Sleeping on words in memory that several processes share, and waking the sleepers. */
#ifndef EPW_PEER_SLEEP_H
#define EPW_PEER_SLEEP_H

#include "peer/await.h"
#include "peer/peers.h"

/* Threads of a window's owner that sleep on a word in it. */
static inline _Atomic uint32_t *epw_sleepers_in(uint64_t window) {
    return (_Atomic uint32_t *)&((epw_window_header *)(uintptr_t)window)->sleepers;
}

/* Rings a window's bell, if anybody listens. The posted word must have been stored before, see epw_signal. */
void epw_bell_ring(uint64_t window);

/* Parts of a look: they name the word to sleep on, the window's bell or the word of the watch. With `sleeps`
 * they first count this thread among its sleepers, before anything is looked at. */
void epw_bell_look(const epw_peers *peers, bool sleeps, epw_awaited *out);
void epw_watch_look(const epw_peers *peers, uint32_t lane, const epw_watch *watch, bool sleeps, uint64_t now,
                    epw_awaited *out);

/* Tells peers on which core this thread waits. Returns 1 more than its number; 0: not known, or the window is
 * on a GPU. */
uint32_t epw_core_tell(const epw_peers *peers);

/* Whether the peer may need the core, given as epw_core_tell does, before it can do what is awaited: it last
 * waited there, or that is not known, as with peers behind queues. With a lock of the user held, as whoever
 * uses a route. */
bool epw_may_need_core(const epw_peers *peers, uint32_t peer, uint32_t core);

/* Where ranks outnumber cores, how long a waiter spins before it yields if none of those that it waits for
 * may need its core: the word of a peer that runs usually comes sooner than sched_yield returns. */
#define EPW_SPIN_ELSEWHERE_NS UINT64_C(500)

/* How long a thread that waits for these peers spins before it yields. Locks: as above. */
uint64_t epw_spin_ns(const epw_peers *peers, const epw_mask *awaited);

/* Whether a wait that began at `since` is one that yields before it sleeps. */
static inline bool epw_wait_is_young(const epw_peers *peers, uint64_t since, uint64_t now) {
    return now < since || now - since < peers->spin_ns + peers->yield_ns;
}

/* Wakes all who sleep on the word. */
void epw_futex_wake(_Atomic uint64_t *word);

/* Sleeps on the word while its low half is that of `value`, at most `ns`. */
void epw_futex_wait(_Atomic uint64_t *word, uint64_t value, uint64_t ns);

#endif
