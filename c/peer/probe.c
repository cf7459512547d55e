/* The probe of a path, see epw_peers_probe. Asker and answerer each write one word over the path to the
 * other:
 *
 *     asker's host                                  peer's host
 *       | -- question number n, in the peer's line --> |
 *       | -- ring ------------------------------------> |  (epw_import_ring: "look at your window")
 *       | <------------ answer n, in the asker's line - |
 *
 * The peer answers from a thread of its library, whether or not its program has called anything. So an answer
 * shows that the path carries words both ways and that the process is scheduled, and no more.
 *
 * The fd server's thread hears the ring; other ranks wait for that thread when they connect. On the host it
 * answers by itself, since that is two memory accesses. On GPUs an answer takes two copies, which may take a
 * while: there the window has its own thread for answers.
 *
 * A rank that probes itself asks nobody: it writes a word into its own window and reads it back. */
#include "peer/gpu.h"
#include "peer/remote.h"
#include "peer/sleep.h"

#include "base/condition.h"
#include "base/readable.h"
#include "base/thread.h"

#include <errno.h>
#include <time.h>

/* The first lane of a line has the question, the second the answer. */
enum { QUESTION = 0, ANSWER = 1 };

/* On GPUs an answer is first polled for after this time, then less and less often; and the peer is rung again
 * so often, because a copy that waits for others may have ended after it has looked. Behind a queue, a
 * host also checks from time to time whether the queue has broken. */
#define LOOK_MIN_NS   UINT64_C(50000)
#define LOOK_MAX_NS   UINT64_C(5000000)
#define RING_AGAIN_NS UINT64_C(20000000)

static uint64_t own(const epw_peers *peers) {
    return (uint64_t)(uintptr_t)epw_peers_own(peers);
}

static _Atomic uint64_t *probe_word(uint64_t window, uint32_t source, uint32_t which) {
    return (_Atomic uint64_t *)epw_at(window, epw_word_offset(source, which, EPW_WORD_PROBE));
}

static epw_status copy(epw_peers *peers, uint32_t use, bool writes, _Atomic uint64_t *word, uint64_t *value,
                       epw_where where) {
    epw_word_copy c = {.use = use, .writes = writes, .at = (unsigned char *)word, .value = value};
    /* A copy that is late still runs. An answer whose copy is late is given up: the asker rings again. */
    return epw_peers_copy_word(peers, &c, EPW_COPY_WITHIN_NS, where);
}

/* Writer: this rank's thread that asks or answers. Reader: the peer's, which acquires. The exchange is
 * ordered with the load of `sleepers`, as in epw_signal. */
static epw_status store(epw_peers *peers, uint32_t which, uint64_t number, epw_where where) {
    if (peers->routes[where.peer].path == EPW_PATH_QUEUE) {
        uint64_t offset = epw_word_offset(peers->rank, which, EPW_WORD_PROBE);
        epw_remote_signal(peers, 0, (uint32_t)where.peer, offset, number, NULL, 0);
        return EPW_OK;
    }
    uint64_t control = peers->routes[where.peer].lanes[0].control;
    _Atomic uint64_t *word = probe_word(control, peers->rank, which);
    if (peers->gpu != NULL)
        return copy(peers, which == QUESTION ? EPW_COPY_ASKED : EPW_COPY_ANSWERED, true, word, &number,
                    where);
    atomic_exchange_explicit(word, number, memory_order_seq_cst);
    if (atomic_load_explicit(epw_sleepers_in(control), memory_order_seq_cst) > 0) epw_futex_wake(word);
    return EPW_OK;
}

static epw_status load(epw_peers *peers, uint32_t which, uint64_t *number, epw_where where) {
    uint32_t source = (uint32_t)where.peer;
    uint64_t from = (uint64_t)(uintptr_t)epw_words_for_host(peers, source);
    if (from == 0)
        return copy(peers, which == QUESTION ? EPW_COPY_READ : EPW_COPY_HEARD, false,
                    probe_word(own(peers), source, which), number, where);
    *number = atomic_load_explicit(probe_word(from, source, which), memory_order_seq_cst);
    return EPW_OK;
}

static void answer(epw_peers *peers, uint32_t source) {
    epw_where where = epw_peers_where(peers, "probe", source);
    uint64_t number;
    pthread_mutex_lock(&peers->answer_lock);
    bool reachable = peers->answers && peers->routes[source].path != EPW_PATH_NONE;
    if (reachable && load(peers, QUESTION, &number, where) == EPW_OK) store(peers, ANSWER, number, where);
    pthread_mutex_unlock(&peers->answer_lock);
}

/* Answers those who have rung so far. With the answerer's lock held, except while it answers. */
static void answer_rung(epw_peers *peers) {
    epw_answerer *a = &peers->answerer;
    epw_mask rung = a->rung;
    epw_mask_clear(&a->rung);
    pthread_mutex_unlock(&a->lock);
    EPW_MASK_FOR(source, &rung, peers->ranks) answer(peers, source);
    pthread_mutex_lock(&a->lock);
}

static void *answerer_main(void *argument) {
    epw_thread_name("epw-answerer");
    epw_peers *peers = argument;
    epw_answerer *a = &peers->answerer;
    pthread_mutex_lock(&a->lock);
    while (!a->ending) {
        if (epw_mask_empty(&a->rung)) {
            pthread_cond_wait(&a->wake, &a->lock);
        } else {
            answer_rung(peers);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* `source` has rung. One thread answers at a time, and the others leave theirs to it. So does that thread
 * itself: by a queue, an answer may find that a connection has ended, and take in what has come before. */
static void on_ring(void *context, uint32_t source) {
    epw_peers *peers = context;
    epw_answerer *a = &peers->answerer;
    if (source >= peers->ranks) return;
    pthread_mutex_lock(&a->lock);
    epw_mask_add(&a->rung, source);
    if (a->started) {
        pthread_cond_signal(&a->wake);
    } else if (!a->answering) {
        a->answering = true;
        while (!epw_mask_empty(&a->rung)) answer_rung(peers); /* ends: each question is asked once */
        a->answering = false;
    }
    pthread_mutex_unlock(&a->lock);
}

void epw_peers_probe_asked(epw_peers *peers, uint32_t source) {
    on_ring(peers, source);
}

/* A question that comes by a queue is answered by the thread that received it, which no call here stops: the
 * lock keeps it away from queues that are about to be destroyed. */
static void set_answers(epw_peers *peers, bool answers) {
    pthread_mutex_lock(&peers->answer_lock);
    peers->answers = answers;
    pthread_mutex_unlock(&peers->answer_lock);
}

epw_status epw_peers_open_probe(epw_peers *peers) {
    if (peers->gpu != NULL) {
        int err = epw_thread_start(answerer_main, peers, &peers->answerer.thread);
        if (err != 0) {
            return epw_fail_errno(err, (epw_where){"create", (int)peers->rank, -1},
                                  "cannot start the thread that answers probes");
        }
        peers->answerer.started = true;
    }
    set_answers(peers, true);
    epw_window_on_ring(peers->window, on_ring, peers);
    return EPW_OK;
}

void epw_peers_close_probe(epw_peers *peers) {
    epw_answerer *a = &peers->answerer;
    if (peers->window != NULL) epw_window_on_ring(peers->window, NULL, NULL);
    set_answers(peers, false);
    if (!a->started) return;
    pthread_mutex_lock(&a->lock);
    a->ending = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    a->started = false;
}

/* What the answer is waited for with. */
typedef struct look {
    uint64_t seen; /* the last answer */
    bool by_queue; /* this is how the peer is reached, unless it has been disconnected meanwhile */
    bool broken;   /* and the queue carries nothing any more */
} look;

/* Waits until the word may have changed, or the queue have broken: on the host it sleeps on the word,
 * otherwise it sleeps for a while. */
static void pause(const epw_peers *peers, uint32_t peer, const look *l, uint64_t waited, uint64_t left) {
    if (peers->gpu == NULL) {
        if (l->by_queue && left > LOOK_MAX_NS) left = LOOK_MAX_NS;
        epw_futex_wait(probe_word(own(peers), peer, ANSWER), l->seen, left);
        return;
    }
    uint64_t ns = waited < LOOK_MIN_NS ? LOOK_MIN_NS : waited < LOOK_MAX_NS ? waited : LOOK_MAX_NS;
    if (ns > left) ns = left;
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)}, NULL);
}

/* By a queue the word itself is noticed. */
static epw_status ring(epw_peers *peers, epw_where where) {
    if (peers->routes[where.peer].path == EPW_PATH_QUEUE) return EPW_OK;
    return epw_import_ring(peers->imports[where.peer], where);
}

/* If the peer has been disconnected meanwhile, it does nothing. */
static void ring_again(epw_peers *peers, epw_where where) {
    pthread_mutex_lock(&peers->ask_lock);
    if (peers->routes[where.peer].path != EPW_PATH_NONE) (void)ring(peers, where);
    pthread_mutex_unlock(&peers->ask_lock);
}

/* The queue first: what came by it has been placed before it breaks, so an answer is not missed. */
static epw_status look_for_answer(epw_peers *peers, look *l, epw_where where) {
    uint32_t peer = (uint32_t)where.peer;
    pthread_mutex_lock(&peers->ask_lock); /* it is not disconnected meanwhile */
    l->by_queue = peers->routes[peer].path == EPW_PATH_QUEUE;
    l->broken = l->by_queue && epw_remote_is_broken(peers, 0, peer);
    pthread_mutex_unlock(&peers->ask_lock);
    return load(peers, ANSWER, &l->seen, where);
}

static epw_status fail_broken(epw_peers *peers, epw_where where) {
    char text[EPW_TROUBLE_TEXT];
    epw_remote_try_trouble(peers, (uint32_t)where.peer, text);
    return epw_fail(EPW_ERR_PEER, where, "its process has ended, or nothing reaches it any more%s%s",
                    *text != '\0' ? ": " : "; connect it again", text);
}

static unsigned long long ms_of(uint64_t ns) {
    return ns / 1000000u;
}

static epw_status await_answer(epw_peers *peers, uint64_t number, uint64_t timeout_ns, uint64_t spent_ns,
                               epw_where where) {
    _Atomic uint32_t *sleepers = epw_sleepers_in(own(peers));
    uint64_t began = epw_now_ns(), waited = 0, rung = 0;
    look l = {0};
    if (peers->gpu == NULL) atomic_fetch_add_explicit(sleepers, 1, memory_order_seq_cst);
    epw_status status = look_for_answer(peers, &l, where);
    while ((status == EPW_OK || status == EPW_ERR_TIMEOUT) && l.seen != number && !l.broken &&
           waited < timeout_ns) {
        if (peers->gpu != NULL && waited - rung >= RING_AGAIN_NS) {
            ring_again(peers, where);
            rung = waited;
        }
        pause(peers, (uint32_t)where.peer, &l, waited, timeout_ns - waited);
        status = look_for_answer(peers, &l, where);
        waited = epw_now_ns() - began;
    }
    if (peers->gpu == NULL) atomic_fetch_sub_explicit(sleepers, 1, memory_order_relaxed);
    if (status != EPW_OK || l.seen == number) return status;
    if (l.broken) return fail_broken(peers, where);
    return epw_fail(
        EPW_ERR_TIMEOUT, where,
        "its process has not answered a probe of the path within %llu ms, after %llu ms of other "
        "threads' probes: it is stopped, or the path is broken; allow it more time, or leave it out "
        "and disconnect it",
        ms_of(timeout_ns), ms_of(spent_ns));
}

/* Accessing host memory that has failed would end this process, so the kernel reads it first. */
static epw_status touch_own(_Atomic uint64_t *word, uint64_t number, uint64_t *seen, epw_where where) {
    if (!epw_word_readable(word, 0)) return epw_fail_errno(EFAULT, where, "this rank's own window is gone");
    atomic_store_explicit(word, number, memory_order_relaxed);
    *seen = atomic_load_explicit(word, memory_order_relaxed);
    return EPW_OK;
}

/* Copies there and back, on the library's stream: this also finds an error that sticks to the GPU's context.
 */
static epw_status copy_own(epw_peers *peers, _Atomic uint64_t *word, uint64_t number, uint64_t *seen,
                           uint64_t timeout_ns, epw_where where) {
    uint64_t began = epw_now_ns();
    epw_word_copy there = {
        .use = EPW_COPY_ASKED, .writes = true, .at = (unsigned char *)word, .value = &number};
    epw_status status = epw_peers_copy_word(peers, &there, timeout_ns, where);
    if (status != EPW_OK) return status;
    uint64_t took = epw_now_ns() - began;
    epw_word_copy back = {.use = EPW_COPY_HEARD, .writes = false, .at = (unsigned char *)word, .value = seen};
    return epw_peers_copy_word(peers, &back, took < timeout_ns ? timeout_ns - took : 0, where);
}

static epw_status probe_own(epw_peers *peers, uint64_t number, uint64_t timeout_ns, epw_where where) {
    _Atomic uint64_t *word = probe_word(own(peers), peers->rank, QUESTION);
    uint64_t seen = 0;
    epw_status status = peers->gpu != NULL ? copy_own(peers, word, number, &seen, timeout_ns, where)
                                           : touch_own(word, number, &seen, where);
    if (status != EPW_OK || seen == number) return status;
    return epw_fail(EPW_ERR_SYSTEM, where, "a word written to this rank's device was read back changed");
}

/* The word first, then the ring: whoever hears that finds the question, unless its copy takes long. */
static epw_status ask(epw_peers *peers, uint64_t number, epw_where where) {
    pthread_mutex_lock(&peers->ask_lock);
    epw_status status;
    if (peers->routes[where.peer].path == EPW_PATH_NONE) {
        status = epw_fail(EPW_ERR_STATE, where, "not connected: connect it first");
    } else {
        status = store(peers, QUESTION, number, where);
        if (status == EPW_OK || status == EPW_ERR_TIMEOUT) status = ring(peers, where);
    }
    pthread_mutex_unlock(&peers->ask_lock);
    return status;
}

/* Whether another thread's probe must end first. */
static bool must_wait(const epw_peers *peers, uint32_t peer) {
    return peers->gpu != NULL ? !epw_mask_empty(&peers->probed) : epw_mask_has(&peers->probed, peer);
}

/* Waits for this probe's turn, and deducts what that takes from the time, of which some must be left then.
 * Returns the question's number; 0: the time is over. */
static uint64_t take_turn(epw_peers *peers, uint32_t peer, uint64_t *timeout_ns) {
    uint64_t began = epw_now_ns(), waited = 0, number = 0;
    struct timespec at = epw_until(began, *timeout_ns);
    int err = 0;
    pthread_mutex_lock(&peers->probe_lock);
    while (must_wait(peers, peer) && err == 0) {
        err = pthread_cond_timedwait(&peers->probe_ended, &peers->probe_lock, &at);
        waited = epw_now_ns() - began;
    }
    if (!must_wait(peers, peer) && (waited == 0 || waited < *timeout_ns)) {
        epw_mask_add(&peers->probed, peer);
        number = ++peers->questions;
    }
    pthread_mutex_unlock(&peers->probe_lock);
    if (number > 0) *timeout_ns -= waited;
    return number;
}

static void end_turn(epw_peers *peers, uint32_t peer) {
    pthread_mutex_lock(&peers->probe_lock);
    epw_mask_drop(&peers->probed, peer);
    pthread_cond_broadcast(&peers->probe_ended);
    pthread_mutex_unlock(&peers->probe_lock);
}

epw_status epw_peers_probe(epw_peers *peers, uint32_t peer, uint64_t timeout_ns) {
    epw_status status = epw_peers_check(peers, "probe", peer);
    if (status != EPW_OK) return status;
    epw_where where = epw_peers_where(peers, "probe", peer);
    uint64_t left_ns = timeout_ns, number = take_turn(peers, peer, &left_ns);
    if (number == 0)
        return epw_fail(EPW_ERR_TIMEOUT, where,
                        "probes by other threads have not ended within %llu ms: allow it more time",
                        ms_of(timeout_ns));
    if (peer == peers->rank) {
        status = probe_own(peers, number, left_ns, where);
    } else {
        status = ask(peers, number, where);
        if (status == EPW_OK) status = await_answer(peers, number, left_ns, timeout_ns - left_ns, where);
    }
    end_turn(peers, peer);
    return status;
}
