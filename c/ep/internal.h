/* The state of a buffer, shared by the files of this folder. */
#ifndef EPW_EP_INTERNAL_H
#define EPW_EP_INTERNAL_H

#include "base/bits.h"
#include "base/pool.h"
#include "base/status.h"
#include "ep/engine.h"
#include "ep/layout.h"
#include "ep/plan.h"
#include "numerics/numerics.h"
#include "peer/rules.h"
#include "epwire.h"
#include "window/window.h"

#include <pthread.h>
#include <stdatomic.h>

/* How a peer's window is reached. Senders look nowhere else. */
typedef struct epw_route {
    uint32_t path;         /* EPW_PATH_* */
    unsigned char *window; /* its first byte as mapped here */
} epw_route;

/* What a lane is doing, in this order; on a GPU, what has been enqueued for it. While SENT, DISPATCHED or
 * ANSWERED it is the caller's turn: to receive, to combine, to receive the answers; an unsplit call goes
 * through without stopping at SENT or ANSWERED. */
typedef enum epw_stage {
    EPW_STAGE_FREE,
    EPW_STAGE_SENDING,    /* dispatch: rows go out as permissions come */
    EPW_STAGE_SENT,       /* idle: dispatch has sent */
    EPW_STAGE_RECEIVING,  /* dispatch: rows come in */
    EPW_STAGE_DISPATCHED, /* idle: dispatch has ended */
    EPW_STAGE_ANSWERED,   /* idle: combine has sent */
    EPW_STAGE_COLLECTING, /* combine: answers come in */
    EPW_STAGE_ANY         /* for epw_lane_find: any but FREE */
} epw_stage;

/* One wait of a lane for a set of peers. */
typedef struct epw_wait {
    uint64_t started;
    uint64_t deadline_ns;
    uint64_t beacons; /* posted so far; if any, withdrawn at the end */
    uint64_t *clock;  /* [ranks] when each peer's time began to run */
    uint64_t *heard;  /* [ranks][EPW_MAX_LANES] the beacon word that last restarted a clock */
} epw_wait;

/* What a released operation still owes its peers, paid in the background or by the lane's next operation. */
typedef struct epw_debt {
    uint32_t op;
    bool first;          /* it was the lane's first operation of the epoch */
    uint32_t more;       /* operations released after it that have sent nothing yet */
    epw_mask unsent;     /* peers that have not had this rank's dispatch word */
    epw_mask unanswered; /* peers that are owed a combine word once their dispatch word has come */
} epw_debt;

/* Where one entry of a received row lies in the lists of the local experts. */
typedef struct epw_place {
    uint32_t list; /* local expert, or EPW_NO_PLACE: not of this rank */
    uint32_t row;  /* of that list */
    float weight;
} epw_place;
#define EPW_NO_PLACE UINT32_MAX

struct epw_lane {
    pthread_mutex_t lock; /* held for one step or call at a time, never while sleeping */
    epw_stage stage;
    uint64_t generation; /* of the handle that holds the lane */
    uint32_t op;     /* of that handle, or of the last one; 0 after set_active. On a GPU that of the calls:
                        replays of graphs are not counted */
    bool first;      /* op is the lane's first of this epoch */
    bool wrapped;    /* op has passed its 32 bits in this epoch */
    bool paying;     /* debt is not empty */
    bool waiting;    /* `wait` runs */
    uint32_t beacon; /* running number of the lane's beacons, so that each is a new word */
    epw_wait wait;
    epw_debt debt;

    /* The operation as called. */
    epw_dispatch_input input;
    epw_dispatch_output dispatch_output;
    epw_combine_output combine_output;
    uint64_t deadline_ns;
    bool nonblocking;
    bool receive_too; /* receive when sending has ended */
    uint32_t mode;    /* EPW_COMBINE_* */
    bool mode_bit;    /* combine words carry EPW_ANSWER_ORDERED */
    epw_row_format format;
    bool shortcut; /* own rows are taken from input.x, not from the slots */
    uint32_t layout;
    uint32_t tokens, topk;
    epw_combine_input combine_input; /* on a GPU */

    void *arena; /* the memory of the arrays below */

    /* Own tokens: where they went. [max_tokens][config.topk] */
    int32_t *ids;
    float *weights;
    uint32_t *sent_row;    /* row at the expert's rank */
    uint32_t *sent_index;  /* number among the rows that go to this expert */
    uint32_t *sent;        /* [ranks] rows for each */
    uint32_t *sent_counts; /* [experts] rows for each */

    /* Peers in this operation. */
    epw_mask awaited;  /* the running stage still waits for them */
    epw_mask present;  /* their rows were received */
    epw_mask missing;  /* given up */
    epw_mask answered; /* their answers were received */
    epw_error_record record;
    uint32_t next_source;  /* sources below it have been laid out */
    uint32_t *received;    /* [ranks] rows from each; on a GPU in its memory */
    uint32_t *expert_fill; /* [local_experts] rows so far */
    uint32_t *first_row;   /* [local_experts] how many of them come before the newest source's */

    /* Received rows, as each was announced and found good. A source can write to its slots at any time: these
     * are never read from there again. */
    uint32_t *row_token; /* [ranks][max_tokens] its index at the source */
    epw_place *places;   /* [ranks][max_tokens][config.topk] */

    /* Where a sleeper sleeps: written at the end of a step, read by epw_await on any thread. */
    _Atomic(_Atomic uint64_t *) watched;
    _Atomic uint64_t watched_value;
    _Atomic uint64_t watch_until;
};

typedef struct epw_gpu epw_gpu;

struct epw_buffer {
    const epw_engine *engine;
    epw_gpu *gpu; /* of epw_engine_gpu; the fields marked "host" are unused there */
    epw_config config;
    epw_layout layout;
    epw_window *window;
    epw_import **imports; /* [ranks] */
    epw_route *routes;    /* [ranks] the peer table */
    epw_mask connecting;  /* changed with all lanes locked, as the two above */
    const epw_numerics *numerics;
    epw_pool *pool;         /* host */
    unsigned char *scratch; /* host: [threads][scratch_bytes] a quantised row with its scales */
    uint64_t scratch_bytes;
    uint64_t spin_ns; /* host: how long a waiter spins before it sleeps */

    /* Membership: changed by set_active with all lanes locked; suspects also by waits. */
    uint32_t epoch;
    epw_mask active;
    _Atomic uint64_t suspects[EPW_MASK_WORDS]; /* host */

    _Atomic uint64_t generation; /* of the newest handle */
    _Atomic uint32_t next_lane;  /* of dispatches that leave the choice to the library */
    epw_lane lanes[EPW_MAX_LANES];

    /* Host: pays debts. */
    pthread_t janitor;
    pthread_mutex_t janitor_lock;
    pthread_cond_t janitor_wake;
    bool janitor_started, janitor_needed, janitor_ending;
};

static inline epw_where epw_at(const epw_buffer *b, const char *op) {
    return (epw_where){op, (int)b->config.rank, -1};
}

static inline uint64_t epw_suspects_word(const epw_buffer *b, uint32_t word) {
    return atomic_load_explicit(&b->suspects[word], memory_order_relaxed);
}
static inline bool epw_suspected(const epw_buffer *b, uint32_t peer) {
    return epw_suspects_word(b, peer / 64) >> (peer % 64) & 1;
}

/* wait.c
 * ----------------------------------------------------------------------------------------------------------
 */

/* The words that `source` writes here, and those that this rank writes at `peer`. */
epw_line *epw_line_from(const epw_buffer *b, uint32_t source);
epw_line *epw_line_at(const epw_buffer *b, uint32_t peer);

/* Stores a word at `peer` and wakes its sleepers. Everything written there before, by any thread that has
 * joined, is visible to a reader that acquires the word. */
void epw_post(const epw_buffer *b, uint32_t peer, uint64_t *word, uint64_t value);

/* The same for words that end waits for other words: wakes sleepers on any word of the line. */
void epw_post_notice(const epw_buffer *b, uint32_t peer, uint64_t *word, uint64_t value);

typedef enum epw_awaiting {
    EPW_AWAIT_EPOCH,      /* permission for the first operation of an epoch */
    EPW_AWAIT_PERMISSION, /* permission for a later one: the answer to the one before */
    EPW_AWAIT_ROWS,
    EPW_AWAIT_ANSWER
} epw_awaiting;

void epw_wait_begin(epw_buffer *b, epw_lane *lane, uint64_t deadline_ns);
void epw_wait_end(epw_buffer *b, epw_lane *lane);

/* Goes on waiting for something else: peers that were `awaited` keep their clocks, those of the others begin
 * anew. A rank that waited for a dead one and goes on to wait for it must not take longer than its peers
 * allow it. */
void epw_wait_keep(epw_buffer *b, epw_lane *lane, const epw_mask *awaited);

/* Which word permits the lane to send. */
static inline epw_awaiting epw_await_permission(bool first) {
    return first ? EPW_AWAIT_EPOCH : EPW_AWAIT_PERMISSION;
}

/* Judges `peer` now. EPW_ARRIVED: *value is the word's value. EPW_GONE: the peer has been made a suspect,
 * *cause says why; the caller drops it from its sets. */
epw_verdict epw_wait_judge(epw_buffer *b, epw_lane *lane, epw_awaiting what, uint32_t op, uint32_t peer,
                           uint64_t now, uint32_t *value, uint32_t *cause);

/* Posts a beacon if one is due, and notes on which word and until when a sleeper may sleep. */
void epw_wait_pause(epw_buffer *b, epw_lane *lane, epw_awaiting what, uint32_t op, const epw_mask *awaited,
                    uint64_t now);

/* Would a wait for these peers be over at once? Gives nobody up; if not, notes what a sleeper may sleep on.
 */
bool epw_wait_over(epw_buffer *b, epw_lane *lane, epw_awaiting what, uint32_t op, const epw_mask *awaited);

/* Sleeps as the last epw_wait_pause allows, at most timeout_ns. Takes no lock. */
void epw_wait_sleep(epw_buffer *b, epw_lane *lane, uint64_t timeout_ns);

/* Makes `peer` a suspect for the rest of the epoch and tells it. */
void epw_suspect(epw_buffer *b, uint32_t peer);

/* Records the first failure of an operation and puts the peer among the missing. */
void epw_lane_lose(epw_buffer *b, epw_lane *lane, uint32_t phase, uint32_t cause, uint32_t peer,
                   uint64_t now);

/* dispatch.c, receive.c, combine.c, release.c: one step of a stage, EPW_PENDING while peers are awaited
 * ------------------------ */

epw_status epw_dispatch_send_step(epw_buffer *b, epw_lane *lane);
epw_status epw_dispatch_receive_step(epw_buffer *b, epw_lane *lane);
void epw_dispatch_begin_receiving(epw_buffer *b, epw_lane *lane, const epw_dispatch_output *output);
epw_status epw_combine_receive_step(epw_buffer *b, epw_lane *lane);
epw_status epw_debt_step(epw_buffer *b, epw_lane *lane);

/* The host engine's operations, see engine.h. */
epw_status epw_host_dispatch(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in,
                             const epw_row_format *format, const epw_dispatch_output *out, epw_handle *handle,
                             epw_outcome *outcome);
epw_status epw_host_dispatch_receive(epw_buffer *b, epw_lane *lane, const epw_dispatch_output *out,
                                     epw_outcome *outcome);
epw_status epw_host_combine(epw_buffer *b, epw_lane *lane, const epw_combine_input *in,
                            const epw_combine_output *out, epw_outcome *outcome);
epw_status epw_host_combine_receive(epw_buffer *b, epw_lane *lane, const epw_combine_output *out,
                                    epw_outcome *outcome);
epw_status epw_host_release(epw_buffer *b, epw_lane *lane, void *const *stream);
epw_status epw_host_poll(epw_buffer *b, epw_handle handle, epw_outcome *outcome);
epw_status epw_host_ready(epw_buffer *b, epw_handle handle);
epw_status epw_host_await(epw_buffer *b, epw_handle handle, uint64_t timeout_ns);

/* Turns what an unfinished operation owes into debt and frees the lane. */
void epw_lane_abandon(epw_buffer *b, epw_lane *lane);
epw_status epw_janitor_start(epw_buffer *b);
void epw_janitor_stop(epw_buffer *b);

/* lane.c
 * ----------------------------------------------------------------------------------------------------------
 */

/* Points the lane's arrays into `arena` and returns the bytes they take; with arena NULL only that. */
uint64_t epw_lane_carve(const epw_config *config, epw_lane *lane, void *arena);

/* Runs a lane whose stage has just been set: to its end, or one step if non-blocking. Called with the lane
 * locked, returns with it unlocked. */
epw_status epw_lane_run(epw_buffer *b, epw_lane *lane, epw_outcome *outcome);

/* The lane becomes that of a new handle, with the call as it was made. */
void epw_lane_take(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in, const epw_row_format *format,
                   epw_handle *handle);

/* Finds and locks the lane of a live handle in a stage (or EPW_STAGE_ANY). */
epw_status epw_lane_find(epw_buffer *b, const char *op, epw_handle handle, epw_stage stage, epw_lane **out);

epw_status epw_outcome_check(const epw_buffer *b, const char *op, const epw_outcome *outcome);

static inline uint32_t epw_lane_index(const epw_buffer *b, const epw_lane *lane) {
    return (uint32_t)(lane - b->lanes);
}

/* A received row's number in the lane, and its places. */
static inline uint64_t epw_row_at(const epw_buffer *b, uint32_t source, uint32_t row) {
    return (uint64_t)source * b->config.max_tokens + row;
}
static inline epw_place *epw_places(const epw_buffer *b, const epw_lane *lane, uint64_t row_at) {
    return lane->places + row_at * b->config.topk;
}

static inline const epw_entry *epw_entries(const unsigned char *slot) {
    return (const epw_entry *)(slot + sizeof(epw_slot_header));
}

/* Own bytes of slot `row` from `source`; a peer's slot for this rank's `row`. */
static inline unsigned char *epw_slot_here(const epw_buffer *b, uint32_t lane, uint32_t source,
                                           uint32_t row) {
    return b->routes[b->config.rank].window + epw_slot_offset(&b->layout, lane, source, row);
}
static inline unsigned char *epw_slot_at(const epw_buffer *b, uint32_t lane, uint32_t peer, uint32_t row) {
    return b->routes[peer].window + epw_slot_offset(&b->layout, lane, b->config.rank, row);
}

#endif
