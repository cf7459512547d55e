/* Signal words of mapped peers: storing them there, and loading those that came. */
#include "peer/sleep.h"

static _Atomic uint64_t *word_in(uint64_t window, uint32_t source, uint32_t lane, uint32_t word) {
    return (_Atomic uint64_t *)epw_at(window, epw_word_offset(source, lane, word));
}

/* Farewells end waits for any word of the lane. */
static void wake(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t word) {
    uint64_t control = peers->routes[peer].lanes[lane].control;
    if (word != EPW_WORD_DROPPED && word != EPW_WORD_EPOCH) {
        epw_futex_wake(word_in(control, peers->rank, lane, word));
        return;
    }
    epw_futex_wake(word_in(control, peers->rank, lane, EPW_WORD_EPOCH));
    for (uint32_t i = 0; i < EPW_USER_WORDS; i++)
        epw_futex_wake(word_in(control, peers->rank, lane, EPW_WORD_USER + i));
}

/* Writer: this rank. Reader: the peer's epw_look_at, which acquires. The exchange releases what was written
 * there before, and is sequentially consistent with the load of `sleepers` after it and with the sleeper's
 * increment and second look (epw_watch_sleep): either this side sees the sleeper, or the sleeper the word.
 * Nobody sleeps on a beacon: it matters when a wait is about to end, and a sleeper looks then. */
void epw_signal(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t word, uint64_t value,
                const epw_range *ranges, uint32_t count) {
    (void)ranges, (void)count;
    uint64_t control = peers->routes[peer].lanes[lane].control;
    atomic_exchange_explicit(word_in(control, peers->rank, lane, word), value, memory_order_seq_cst);
    if (word == EPW_WORD_BEACON) return;
    if (atomic_load_explicit(epw_sleepers_in(control), memory_order_seq_cst) > 0)
        wake(peers, lane, peer, word);
}

/* What one peer has written here. */
typedef struct source {
    uint64_t window;
    uint32_t peer;
} source;

/* Writer: the peer's epw_signal. */
static uint64_t load(const void *context, uint32_t lane, uint32_t word) {
    const source *from = context;
    return atomic_load_explicit(word_in(from->window, from->peer, lane, word), memory_order_acquire);
}

uint64_t epw_word_from(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t word) {
    return load(&(source){(uint64_t)(uintptr_t)epw_peers_own(peers), peer}, lane, word);
}

void epw_look_at(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t word, epw_look *out) {
    source from = {(uint64_t)(uintptr_t)epw_peers_own(peers), peer};
    epw_look_by(load, &from, peers->lanes, lane, word, out);
}
