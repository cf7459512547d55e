/* The peer floor: the ranks of a group as all code above it sees them. It has the routes to their windows,
 * signal words, waiting, connecting and membership, and knows neither tokens nor experts.
 *
 *     prepare rows at epw_at(area, offset) ... epw_signal(...) ... wait (peer/wait.h, epw_watch_sleep)
 *
 * Code above it stores words at peers, and loads words, only through it. */
#ifndef EPW_PEER_PEERS_H
#define EPW_PEER_PEERS_H

#include "base/bits.h"
#include "base/status.h"
#include "nic/region.h"
#include "peer/sizes.h"
#include "peer/table.h"
#include "peer/traffic.h"
#include "peer/wait.h"
#include "window/window.h"

#include <pthread.h>
#include <stdatomic.h>

/* A user of the floor: a buffer, a communicator or a prefill buffer. Callbacks for changes of routes and of
 * the membership. */
typedef struct epw_peers_user {
    /* Keeps out everything that uses the routes of members, and lets it in again. */
    void (*lock)(void *user);
    void (*unlock)(void *user);
    /* Called with the user locked. EPW_ERR_STATE, naming the operation, while one is in flight. */
    epw_status (*check_idle)(void *user, epw_where where);
    /* Called without the lock. Waits, within a bound, until what was enqueued before has run. NULL: nothing
     * is ever enqueued. */
    epw_status (*quiesce)(void *user, epw_where where);
    /* Called with the user locked: the window of a member that was given up is about to be unmapped, and no
     * operation is in flight. Says farewell to the peer if it has not been told, while its window is still
     * mapped; on a GPU removes it from the tables, see peer/gpu.h. */
    epw_status (*part)(void *user, uint32_t peer, epw_where where);
    /* Called with the user locked and no operation in flight: begins the epoch that the word names, and posts
     * the word to members and former members. */
    epw_status (*begin_epoch)(void *user, const epw_mask *active, uint64_t epoch_word, epw_where where);
    /* Peers given up in this epoch; *silent (may be NULL): those of them that were silent for a deadline. May
     * be called without locks. */
    epw_mask (*suspects)(void *user, epw_mask *silent);
    /* Which part of a window is the source's to write, on a lane: one of the EPW_AREAS areas. */
    epw_stretch (*footprint)(void *user, uint32_t source, uint32_t lane, uint32_t area);
    /* Which areas the peer's word permits this rank to write, 1 << EPW_AREA_*: for a peer behind a queue, the
     * word counts only once what was posted from these areas has reached the peer. NULL: all of them. */
    uint32_t (*permits)(uint32_t word);
    /* The group continues without these members: waits for them end. Called without the lock; waits for
     * nothing. */
    void (*revoke)(void *user, const epw_mask *members);
} epw_peers_user;

/* Who answers probes: for a window on a GPU, a thread. */
typedef struct epw_answerer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    epw_mask rung;        /* who waits for an answer */
    bool started, ending; /* the thread */
    bool answering; /* without the thread: some other one, which also answers those who ring meanwhile */
} epw_answerer;

typedef struct epw_peers_gpu epw_peers_gpu;
typedef struct epw_remote epw_remote;

typedef struct epw_peers {
    uint32_t rank, ranks, lanes;
    uint32_t permitted; /* EPW_PATH_* bits */
    const epw_peers_user *user;
    void *user_context;
    const char *what; /* the user, for the log: "buffer" */

    epw_window *window;
    /* Guards routes and membership. Held briefly, and while a membership begins; a thread that also locks the
     * user does so first. */
    pthread_mutex_t lock;

    epw_route *routes;     /* [ranks]; changed with the lock held, that of a member with the user locked as
                              well */
    epw_import **imports;  /* [ranks]; an entry belongs to the thread that has claimed the peer */
    epw_mask mapped;       /* peers whose windows stay mapped when they are disconnected */
    epw_import *kept;      /* such windows; changed with the lock held, as is the set */
    epw_mask connecting;   /* claimed by a thread that connects or disconnects it */
    uint64_t incarnations; /* given out so far */

    /* Membership, changed with both locked. */
    uint32_t epoch;
    uint64_t step; /* at which it began */
    epw_mask active;

    /* Host: peers given up in this epoch by any lane; those of them that were silent for a deadline; those
     * that the group continues without; and how often the first or the last set has changed. */
    _Atomic uint64_t suspects[EPW_MASK_WORDS], silent[EPW_MASK_WORDS], revoked[EPW_MASK_WORDS];
    _Atomic uint64_t suspicions;

    uint64_t spin_ns;  /* how long a waiter spins before it yields */
    uint64_t yield_ns; /* and yields before it sleeps */

    /* The probe: one question to a peer at a time, and on a GPU, whose copies have one event, one question
     * at all. Asking and answering delay changes of routes. There are two locks, so that two ranks of a
     * process that ask each other do not wait for each other. */
    pthread_mutex_t probe_lock, ask_lock, answer_lock;
    pthread_cond_t probe_ended;
    epw_mask probed; /* by threads that wait for an answer */
    bool answers;    /* changed with answer_lock held: once it is false, no answer uses a route */
    uint64_t questions;
    epw_answerer answerer;

    /* Peers behind a queue, see peer/remote.h. */
    epw_fabric *fabric;   /* NULL: there are none */
    uint32_t depth;       /* depth of each of their queues, in entries */
    uint64_t deadline_ns; /* by which adapters choose how long they retry */
    epw_remote **remotes; /* [ranks]; of the peers connected by queues */
    epw_remote **offered; /* [ranks]; named in a blob, and not connected yet */
    atomic_uint remote_count;
    unsigned char *image; /* of what they are to have */
    epw_keys image_keys[EPW_ADAPTERS_MAX];
    unsigned char *inbox; /* where they write here, see peer/inbox.h; NULL: they write into the window */
    struct epw_inbox *inbox_memory;
    struct epw_direct *direct; /* on a GPU, if they write into the window: see peer/direct.h */
    unsigned char *lines; /* on a GPU: where they write words for the host, by window offset: the inbox or, if
                             they write into the window, lines of its own */
    _Atomic uint64_t by_queue[EPW_MASK_WORDS]; /* peers whose last connection was by a queue */

    epw_lane_traffic traffic[EPW_MAX_LANES];

    epw_peers_gpu *gpu; /* see peer/gpu.h; NULL where windows are host memory */
} epw_peers;

/* ---- life ---- */

typedef struct epw_peers_options {
    epw_window_options window;
    uint32_t lanes;
    const epw_peers_user *user;
    void *user_context;
    const char *what;     /* the user, for the log: a string literal */
    epw_fabric *fabric;   /* outlives the floor; NULL: none */
    uint32_t depth;       /* of the queue to one peer on a lane, from epw_queue_depth */
    uint64_t deadline_ns; /* the user's; a silent peer's queue is given up within 2 to 4 of these */
} epw_peers_options;

/* Creates the window. Call epw_peers_destroy also after an error. */
epw_status epw_peers_create(epw_peers *peers, const epw_peers_options *options);

/* Unmaps the peers and destroys the window, which no thread of this rank may be using. */
void epw_peers_destroy(epw_peers *peers);

/* Whether it was inherited by a forked child: then windows are not mapped here, and none of its threads runs.
 */
bool epw_peers_inherited(const epw_peers *peers);

/* Whether peers may be reached by queues. */
static inline bool epw_peers_has_queues(const epw_peers *peers) {
    return peers->fabric != NULL && (peers->permitted & EPW_PATH_QUEUE);
}

static inline epw_remote_shape epw_peers_shape(const epw_peers *peers) {
    return (epw_remote_shape){peers->ranks, peers->lanes, peers->depth, peers->user->footprint,
                              peers->user_context};
}

/* Where a member's window is mapped; NULL: it is not, or not any more. With the user locked. */
const unsigned char *epw_peers_mapped(const epw_peers *peers, uint32_t peer);

/* From now on the windows of these peers, which are connected, stay mapped until epw_peers_destroy: graphs
 * have their addresses. */
void epw_peers_keep_mapped(epw_peers *peers, const epw_mask *which);

/* Disconnects those that are: called by epw_peers_destroy. */
void epw_remotes_close(epw_peers *peers);

/* EPW_ERR_INVALID if `peer` is not a rank of the group. */
epw_status epw_peers_check(const epw_peers *peers, const char *op, uint32_t peer);

static inline epw_where epw_peers_where(const epw_peers *peers, const char *op, uint32_t peer) {
    return (epw_where){op, (int)peers->rank, (int)peer};
}

/* This rank's own window. */
static inline unsigned char *epw_peers_own(const epw_peers *peers) {
    return epw_window_base(peers->window);
}

/* The memory into which a NIC writes: the window, or the inbox of a GPU. */
static inline unsigned char *epw_peers_inbox(const epw_peers *peers) {
    return peers->inbox != NULL ? peers->inbox : epw_peers_own(peers);
}

/* Whether the peer writes, or wrote last, by a queue. This stays true when it is disconnected, because its
 * last words are still read. */
static inline bool epw_writes_by_queue(const epw_peers *peers, uint32_t peer) {
    return atomic_load_explicit(&peers->by_queue[peer / 64], memory_order_relaxed) >> (peer % 64) & 1;
}

/* Whether what the peer has written here is in the inbox of a GPU, which is host memory. */
static inline bool epw_is_in_inbox(const epw_peers *peers, uint32_t peer) {
    return peers->inbox != NULL && epw_writes_by_queue(peers, peer);
}

/* The base to which offsets of words are added that the peer writes for the host; NULL: they are in the
 * window of a GPU. */
static inline unsigned char *epw_words_for_host(const epw_peers *peers, uint32_t peer) {
    if (peers->gpu == NULL) return epw_peers_own(peers);
    return epw_writes_by_queue(peers, peer) ? peers->lines : NULL;
}

/* The base to which offsets of what the peer writes here are added: the window or the inbox. */
static inline unsigned char *epw_peers_from(const epw_peers *peers, uint32_t peer) {
    return epw_is_in_inbox(peers, peer) ? peers->inbox : epw_peers_own(peers);
}

/* Where this rank writes, on a lane, what belongs at `offset` of the peer's window. */
static inline unsigned char *epw_rows_at(const epw_peers *peers, uint32_t lane, uint32_t peer,
                                         uint64_t offset) {
    return epw_at(peers->routes[peer].lanes[lane].rows, offset);
}
static inline unsigned char *epw_answers_at(const epw_peers *peers, uint32_t lane, uint32_t peer,
                                            uint64_t offset) {
    return epw_at(peers->routes[peer].lanes[lane].answers, offset);
}
static inline unsigned char *epw_control_at(const epw_peers *peers, uint32_t lane, uint32_t peer,
                                            uint64_t offset) {
    return epw_at(peers->routes[peer].lanes[lane].control, offset);
}

/* The incarnation of a connected peer; 0: it is not connected. */
static inline uint64_t epw_incarnation_of(const epw_peers *peers, uint32_t peer) {
    return peers->routes[peer].incarnation;
}

/* ---- connecting: any thread, one at a time for each peer ---- */

epw_status epw_peers_export(epw_peers *peers, uint32_t peer, void *blob, size_t *length);
epw_status epw_peers_connect(epw_peers *peers, uint32_t peer, const void *blob, size_t length,
                             uint64_t deadline_ns);
epw_status epw_peers_disconnect(epw_peers *peers, uint32_t peer);
uint32_t epw_peers_path(epw_peers *peers, uint32_t peer);
uint32_t epw_peers_wire(epw_peers *peers, uint32_t peer);

/* Which incarnation of a peer is connected, and the nonce of its window. EPW_ERR_STATE: none. */
epw_status epw_peers_connected(epw_peers *peers, epw_where where, epw_nonce *window, uint64_t *incarnation);

const char *epw_peers_trouble(epw_peers *peers, uint32_t peer, char *text); /* see epw_buffer_trouble */
/* The same for the log, where the caller may hold the lock of the peers already: "" while anybody holds it.
 */
const char *epw_peers_try_trouble(epw_peers *peers, uint32_t peer, char *text);

static inline epw_status epw_peers_traffic(const epw_peers *peers, epw_where where, epw_traffic *traffic,
                                           epw_peer_traffic *of) {
    return epw_traffic_read(peers->traffic, peers->lanes, peers->ranks, where, traffic, of);
}

/* ---- membership ---- */

epw_status epw_peers_set_active(epw_peers *peers, const epw_mask *active, uint32_t epoch, uint64_t step);
void epw_peers_membership(epw_peers *peers, epw_membership *membership);

/* The newest epoch that this rank or an active peer has begun. */
epw_status epw_peers_newest_epoch(epw_peers *peers, uint32_t *epoch);

/* Active ranks, this one included, that have begun `epoch` at a step other than `step`. */
epw_status epw_peers_diverged(epw_peers *peers, uint32_t epoch, uint64_t step, epw_mask *ranks);
epw_status epw_peers_revoke(epw_peers *peers, const epw_mask *mask);

/* Host: gives the peer up for all lanes; whoever runs the lanes looks at `suspicions`. `silent`: because it
 * was silent for a deadline. `record`, for the log: that of the operation that gives it up, which may
 * describe another peer. */
void epw_peers_suspect(epw_peers *peers, uint32_t peer, bool silent, const epw_error_record *record);
void epw_peers_suspect_revoked(epw_peers *peers, uint32_t peer);
void epw_peers_clear_suspects(epw_peers *peers);
epw_mask epw_peers_suspects(const epw_peers *peers, epw_mask *silent);

static inline bool epw_peers_suspected(const epw_peers *peers, uint32_t peer) {
    return atomic_load_explicit(&peers->suspects[peer / 64], memory_order_relaxed) >> (peer % 64) & 1;
}
static inline bool epw_peers_revoked(const epw_peers *peers, uint32_t peer) {
    return atomic_load_explicit(&peers->revoked[peer / 64], memory_order_relaxed) >> (peer % 64) & 1;
}

/* ---- words ---- */

/* Rows that a queue takes from memory that has been lent to it (epw_remotes_lend): the first `head_bytes` of
 * each stretch lie where this rank writes for the peer, the others in a row of that memory. */
typedef struct epw_lent_rows {
    uint32_t key;
    uint32_t head_bytes;
    uint64_t first;          /* where row 0 lies */
    uint64_t stride;         /* from row to row */
    const uint32_t *numbers; /* [range.count] of the rows */
} epw_lent_rows;

/* Memory at a peer, by offset in its window: `count` stretches of `bytes`, `stride` apart. */
typedef struct epw_range {
    uint64_t offset;
    uint64_t bytes, stride;
    uint32_t count;
    const epw_lent_rows *lent; /* NULL: all of it lies where this rank writes for the peer */
} epw_range;

/* Stores a word at the peer after these ranges, and wakes its sleepers. What this thread, or one that it has
 * joined, wrote there before is visible to a reader that acquires the word. A mapped peer has the bytes of
 * the ranges already; for a peer behind a queue they name what must be sent. */
void epw_signal(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t word, uint64_t value,
                const epw_range *ranges, uint32_t count);

/* Whether what is written for the peer lies in this rank's memory, and is read again to be sent. */
static inline bool epw_is_queued(const epw_peers *peers, uint32_t peer) {
    return peers->routes[peer].path == EPW_PATH_QUEUE;
}

/* The NIC has stored a word of the peer at `offset` of this rank's window: wakes those who sleep on it. */
void epw_word_arrived(epw_peers *peers, uint32_t peer, uint64_t offset);

/* Loads one word that the peer has written here, by an acquire: from a window in host memory, or from an
 * inbox. */
uint64_t epw_word_from(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t word);

/* Loads what says that the peer has gone, in the order of epw_look_at; the awaited word is 0. Drives no NIC:
 * whoever finds something new looks again. */
epw_sight epw_glance_at(const epw_peers *peers, uint32_t lane, uint32_t peer);

/* Loads the peer's words in the order that epw_look asks for; `word` is the one that is awaited. */
void epw_look_at(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t word, epw_look *out);

/* ---- sleeping ---- */

/* What a sleeper sleeps on: written by whoever steps the lane, read by any thread. Reading a mixture of two
 * writes costs at most one slice of sleep. */
typedef struct epw_watch {
    _Atomic uint32_t peer; /* UINT32_MAX: nothing to sleep on */
    _Atomic uint32_t word;
    atomic_bool held;                       /* it may not be seen yet */
    _Atomic uint64_t dropped, epoch, value; /* as they were seen */
    _Atomic uint64_t spin_ns;               /* before the sleeper yields */
    _Atomic uint64_t since;                 /* when the wait began */
    _Atomic uint64_t until;
} epw_watch;

/* How long waiters spin and yield if each rank has this many threads. */
void epw_peers_choose_waits(epw_peers *peers, uint32_t threads);

/* Notes what was seen of the awaited word, and until when a sleeper may sleep. */
void epw_watch_set(epw_watch *watch, uint32_t peer, uint32_t word, const epw_look *seen, uint64_t spin_ns,
                   uint64_t since, uint64_t until);
void epw_watch_clear(epw_watch *watch);

/* Sleeps until one of these words has changed, or as long as the watch allows, at most timeout_ns. Spins and
 * yields first, while the wait is young. Takes no lock. */
void epw_watch_sleep(const epw_peers *peers, uint32_t lane, epw_watch *watch, uint64_t timeout_ns);

/* Wakes those who sleep in it; a thread that is just about to sleeps for one slice. */
void epw_watch_wake(const epw_peers *peers, uint32_t lane, epw_watch *watch);

/* For a waiter that can continue with a word of any peer: it starts listening to the bell, looks at all words
 * again, sleeps until a word has arrived since then, at most `ns`, and stops listening. Without the second
 * look a word could be missed. */
uint32_t epw_bell_listen(const epw_peers *peers);
void epw_bell_sleep(const epw_peers *peers, uint32_t heard, uint64_t ns);
void epw_bell_leave(const epw_peers *peers);

/* Rings this rank's own bell, by which its threads wake each other. */
void epw_bell_toll(const epw_peers *peers);

/* ---- the probe ---- */

/* Finds out whether the path to the peer works: sends its process a word over that path, beside all
 * operations, and waits for the answer. For this rank itself: whether a word written to its device is read
 * back. EPW_ERR_TIMEOUT: no answer within timeout_ns, in which it also waits for probes of the peer by other
 * threads, and on a GPU for all of theirs. EPW_ERR_PEER: its process has ended. EPW_ERR_STATE: not connected.
 * Any thread. */
epw_status epw_peers_probe(epw_peers *peers, uint32_t peer, uint64_t timeout_ns);

/* A question has arrived by a queue: the thread that received it answers it. */
void epw_peers_probe_asked(epw_peers *peers, uint32_t source);

/* This rank answers probes from the first call until the second has returned. Make the second call also after
 * an error. */
epw_status epw_peers_open_probe(epw_peers *peers);
void epw_peers_close_probe(epw_peers *peers);

#endif
