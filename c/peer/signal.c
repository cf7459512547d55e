/* Signal words: storing them at mapped peers, and loading those that have arrived. */
#include "peer/remote.h"
#include "peer/sleep.h"

#include <string.h>

static _Atomic uint64_t *word_in(uint64_t window, uint32_t source, uint32_t lane, uint32_t word) {
    return (_Atomic uint64_t *)epw_at(window, epw_word_offset(source, lane, word));
}

/* Farewells end waits for any word of the lane. */
static void wake(uint64_t window, uint32_t source, uint32_t lane, uint32_t word) {
    if (word != EPW_WORD_DROPPED && word != EPW_WORD_EPOCH) {
        epw_futex_wake(word_in(window, source, lane, word));
        return;
    }
    epw_futex_wake(word_in(window, source, lane, EPW_WORD_EPOCH));
    for (uint32_t i = 0; i < EPW_USER_WORDS; i++)
        epw_futex_wake(word_in(window, source, lane, EPW_WORD_USER + i));
}

/* A word of this source has been stored in a window: wakes the window's owner. */
static void stored(uint64_t window, uint32_t source, uint32_t lane, uint32_t word) {
    if (word == EPW_WORD_BEACON) return;
    if (atomic_load_explicit(epw_sleepers_in(window), memory_order_seq_cst) > 0)
        wake(window, source, lane, word);
    epw_bell_ring(window);
}

/* Writer: this rank. Reader: the peer's epw_look_at, which acquires. The exchange releases what was written
 * there before, and is sequentially consistent with the load of `sleepers` after it and with the sleeper's
 * increment and second look (epw_watch_sleep): either this side sees the sleeper, or the sleeper the word.
 * Nobody sleeps on a beacon: it matters only when a wait is about to end, and a sleeper looks at it then. */
void epw_signal(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t word, uint64_t value,
                const epw_range *ranges, uint32_t count) {
    if (peers->routes[peer].path == EPW_PATH_QUEUE) {
        epw_remote_signal(peers, lane, peer, epw_word_offset(peers->rank, lane, word), value, ranges, count);
        return;
    }
    uint64_t window = peers->routes[peer].lanes[lane].control;
    atomic_exchange_explicit(word_in(window, peers->rank, lane, word), value, memory_order_seq_cst);
    stored(window, peers->rank, lane, word);
}

/* Writer: the peer, through its queue and this rank's NIC, in the order in which it posted. The same ordering
 * applies: the NIC's exchange comes before this. */
void epw_word_arrived(epw_peers *peers, uint32_t peer, uint64_t offset) {
    const unsigned char *words = peers->lines != NULL ? peers->lines : epw_peers_own(peers);
    uint64_t window = (uint64_t)(uintptr_t)words, at = offset - epw_line_offset(peer);
    if (offset < epw_line_offset(peer) || at >= sizeof(epw_line)) return; /* an 8-byte row is not a word */
    uint32_t number = (uint32_t)(at / sizeof(uint64_t)), lane = number / EPW_LANE_WORDS;
    stored(window, peer, lane, number % EPW_LANE_WORDS);
    if (lane == 0 && number == EPW_WORD_PROBE) epw_peers_probe_asked(peers, peer);
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
    return load(&(source){(uint64_t)(uintptr_t)epw_peers_from(peers, peer), peer}, lane, word);
}

static bool is_broken(const epw_peers *peers, uint32_t lane, uint32_t peer) {
    return epw_is_queued(peers, peer) && epw_remote_is_broken(peers, lane, peer);
}

epw_sight epw_glance_at(const epw_peers *peers, uint32_t lane, uint32_t peer) {
    epw_sight seen = {.broken = is_broken(peers, lane, peer)};
    seen.dropped = epw_word_from(peers, lane, peer, EPW_WORD_DROPPED);
    seen.epoch_word = epw_word_from(peers, lane, peer, EPW_WORD_EPOCH);
    return seen;
}

void epw_look_at(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t word, epw_look *out) {
    source from = {(uint64_t)(uintptr_t)epw_peers_own(peers), peer};
    bool queued = epw_is_queued(peers, peer);
    /* Read before the words, so that what came before the end of the connection is seen. There are two
     * connections, and the end of one may be known before what the other one has brought is taken in. */
    bool broken = is_broken(peers, lane, peer);
    if (broken) epw_remotes_poll(peers);
    epw_look_by(load, &from, peers->lanes, lane, word, out);
    out->sight.broken = broken;
    /* A word that permits this rank to write permits it to write the image, so it does not count before the
     * image has been sent. Behind a broken queue it permits nothing, and what came with it counts. */
    uint32_t areas = peers->user->permits != NULL ? peers->user->permits(word) : UINT32_MAX;
    out->held = queued && !broken && out->sight.word != 0 && !epw_remote_is_flushed(peers, lane, peer, areas);
    if (!out->held) return;
    out->sight.word = 0;
    /* The epoch word itself, as a permission: it also says whether both ranks have begun the same epoch. */
    bool permits = out->sight.epoch_word == epw_epoch_word(peers->epoch, peers->step);
    if (word == EPW_WORD_EPOCH && permits) out->sight.epoch_word = 0;
}
