/* The probe of a path, see epw_peers_probe. Asker and answerer each write one word, the peer's way:
 *
 *     asker's host                                  peer's host
 *       | -- question number n, in the peer's line --> |
 *       | -- ring ------------------------------------> |  (epw_import_ring: "look at your window")
 *       | <------------ answer n, in the asker's line - |
 *
 * The peer answers from a thread of its library, whether or not its program has called anything. So an answer
 * says that the path carries words both ways and that the process is scheduled; no more. */
#include "peer/sleep.h"

#include "base/clock.h"

/* Of a line's two lanes the first has the question, the second the answer. */
enum { QUESTION = 0, ANSWER = 1 };

static _Atomic uint64_t *probe_word(uint64_t window, uint32_t source, uint32_t which) {
    return (_Atomic uint64_t *)epw_at(window, epw_word_offset(source, which, EPW_WORD_PROBE));
}

/* Writer: this rank's thread that rang or answers. Reader: the peer's, which acquires. The exchange is
 * ordered with the load of `sleepers`, as in epw_signal. */
static void store(const epw_peers *peers, uint32_t peer, uint32_t which, uint64_t number) {
    uint64_t control = peers->routes[peer].lanes[0].control;
    _Atomic uint64_t *word = probe_word(control, peers->rank, which);
    atomic_exchange_explicit(word, number, memory_order_seq_cst);
    if (atomic_load_explicit(epw_sleepers_in(control), memory_order_seq_cst) > 0) epw_futex_wake(word);
}

static uint64_t own(const epw_peers *peers) {
    return (uint64_t)(uintptr_t)epw_peers_own(peers);
}

/* `source` has rung. Nobody waits here. */
static void answer(void *context, uint32_t source) {
    epw_peers *peers = context;
    if (source >= peers->ranks) return;
    uint64_t number = atomic_load_explicit(probe_word(own(peers), source, QUESTION), memory_order_acquire);
    pthread_mutex_lock(&peers->answer_lock);
    if (peers->routes[source].path != EPW_PATH_NONE) store(peers, source, ANSWER, number);
    pthread_mutex_unlock(&peers->answer_lock);
}

void epw_peers_open_probe(epw_peers *peers) {
    epw_window_on_ring(peers->window, answer, peers);
}

static epw_status await_answer(const epw_peers *peers, uint64_t number, uint64_t timeout_ns,
                               epw_where where) {
    _Atomic uint64_t *word = probe_word(own(peers), (uint32_t)where.peer, ANSWER);
    _Atomic uint32_t *sleepers = epw_sleepers_in(own(peers));
    uint64_t began = epw_now_ns(), waited = 0;
    atomic_fetch_add_explicit(sleepers, 1, memory_order_seq_cst);
    uint64_t seen = atomic_load_explicit(word, memory_order_seq_cst);
    while (seen != number && waited < timeout_ns) {
        epw_futex_wait(word, seen, timeout_ns - waited);
        seen = atomic_load_explicit(word, memory_order_seq_cst);
        waited = epw_now_ns() - began;
    }
    atomic_fetch_sub_explicit(sleepers, 1, memory_order_relaxed);
    if (seen == number) return EPW_OK;
    return epw_fail(EPW_ERR_TIMEOUT, where,
                    "its process has not answered a probe of the path within %llu ms: it is stopped, or the "
                    "path is broken",
                    (unsigned long long)(timeout_ns / 1000000u));
}

epw_status epw_peers_probe(epw_peers *peers, uint32_t peer, uint64_t timeout_ns) {
    epw_where where = epw_peers_where(peers, "probe", peer);
    if (peer >= peers->ranks) {
        return epw_fail(EPW_ERR_INVALID, (epw_where){"probe", (int)peers->rank, -1},
                        "peer is %u, must be below %u", peer, peers->ranks);
    }
    if (peer == peers->rank) return EPW_OK;
    pthread_mutex_lock(&peers->probe_lock);
    pthread_mutex_lock(&peers->ask_lock);
    bool connected = peers->routes[peer].path != EPW_PATH_NONE;
    uint64_t number = ++peers->questions;
    if (connected) store(peers, peer, QUESTION, number);
    epw_status status = connected ? epw_import_ring(peers->imports[peer], where)
                                  : epw_fail(EPW_ERR_STATE, where, "not connected: connect it first");
    pthread_mutex_unlock(&peers->ask_lock);
    if (status == EPW_OK) status = await_answer(peers, number, timeout_ns, where);
    pthread_mutex_unlock(&peers->probe_lock);
    return status;
}
