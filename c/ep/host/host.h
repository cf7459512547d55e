/* The host engine: threads that move the bytes. engine.c makes it, drive.c steps lanes, send.c, receive.c and
 * combine.c do the work that a lane's machine decides on, background.c completes what was released. */
#ifndef EPW_EP_HOST_HOST_H
#define EPW_EP_HOST_HOST_H

#include "base/pool.h"
#include "base/total.h"
#include "ep/buffer.h"
#include "numerics/numerics.h"

#include <string.h>

/* Where one entry of a received row lies in the lists of the local experts. */
typedef struct epw_place {
    uint32_t list; /* local expert, or EPW_NO_PLACE: not of this rank */
    uint32_t row;  /* of that list */
    float weight;
} epw_place;
#define EPW_NO_PLACE UINT32_MAX

/* Tokens or rows that a thread takes at a time. */
#define EPW_CHUNK 8u

/* An operation that moves no more than this uses ordinary stores: its rows stay in the caches, where the next
 * reader finds them. For larger ones non-temporal stores are faster, because they do not read a line before
 * they write it. About the L2 cache of one core. */
#define EPW_CACHED_BYTES (UINT64_C(2) << 20)

/* The engine's part of a lane. */
struct epw_host_lane {
    /* The current call, of dispatch or combine. */
    epw_dispatch_output dispatch_output;
    epw_combine_output combine_output;
    bool nonblocking;
    bool shortcut;       /* own rows are taken from input.x, not from the slots */
    bool streams;        /* rows are written with non-temporal stores, see EPW_CACHED_BYTES */
    uint32_t lent;       /* the key by which input.x is lent to the queues; 0: rows for queues are copied */
    uint64_t lent_first; /* where it begins there */

    bool faulted; /* something that has ended since the last report was incomplete */

    _Atomic uint64_t suspicions; /* of epw_peers, as last read by the machine */
    epw_watch watch;

    void *arena; /* the memory of the arrays below */

    /* Where this rank's tokens went. [max_tokens][config.topk] */
    int32_t *ids;
    float *weights;
    uint32_t *sent_row;    /* row at the expert's rank */
    uint32_t *sent_index;  /* number among the rows that go to this expert */
    uint32_t *sent_counts; /* [experts] rows for each */
    uint32_t *sent_tokens; /* [ranks][max_tokens] of the rows of each rank */
    epw_lent_rows lent_rows;

    uint32_t *expert_fill; /* [local_experts] rows so far */
    uint32_t *entries;     /* [ranks] of each source's rows: their experts on this rank */
    uint32_t *first_row;   /* [local_experts] how many of them come before the newest source's */

    /* Received rows, as announced and checked. A source can write to its slots at any time, so these values
     * are never read from there again. */
    uint32_t *row_token; /* [ranks][max_tokens] its index at the source */
    epw_place *places;   /* [ranks][max_tokens][config.topk] */
};

struct epw_host {
    const epw_numerics *numerics;
    epw_pool *pool;
    unsigned char *scratch; /* [threads][scratch_bytes] a quantised row with its scales */
    uint64_t scratch_bytes;
    epw_host_lane lanes[EPW_MAX_LANES];

    /* Completes released operations. */
    pthread_t background;
    pthread_mutex_t background_lock;
    pthread_cond_t background_wake;
    bool background_started, background_needed, background_ending;
};

/* ---- drive.c ---- */

/* Steps the lane's machine as far as possible, with the lane locked: EPW_PENDING while it waits for peers. */
epw_status epw_host_step(epw_buffer *b, epw_lane *lane);

/* The same, but only for what released operations owe: a later operation is left to its caller. */
epw_status epw_host_pay(epw_buffer *b, epw_lane *lane);

/* Runs a lane on which a call has just begun: to the call's end, or one step if it is non-blocking. Called
 * with the lane locked, returns with it unlocked. */
epw_status epw_host_run(epw_buffer *b, epw_lane *lane, epw_outcome *outcome);

/* Lets free lanes tell peers that have been given up meanwhile; see epw_engine.unlocked. */
void epw_host_unlocked(epw_buffer *b);

/* Tells the lane's machine of peers that other lanes have given up. Locked. */
void epw_host_hear(epw_buffer *b, epw_lane *lane);

/* Posts what the lane's machine has to post, and nothing else. Locked. */
void epw_host_post_all(epw_buffer *b, epw_lane *lane);

epw_status epw_host_poll(epw_buffer *b, epw_handle handle, epw_outcome *outcome);
epw_status epw_host_ready(epw_buffer *b, epw_handle handle);
epw_status epw_host_await(epw_buffer *b, epw_handle handle, uint64_t timeout_ns);
epw_status epw_host_tend(epw_buffer *b, epw_handle handle);
void epw_host_look(epw_awaited *self, bool sleeps, uint64_t now);

/* ---- send.c, receive.c, combine.c: the calls, and the work of a decision ---- */

epw_status epw_host_dispatch(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in,
                             const epw_row_format *format, const epw_dispatch_output *out, epw_handle *handle,
                             epw_outcome *outcome);
void epw_host_send(epw_buffer *b, epw_lane *lane);

epw_status epw_host_dispatch_receive(epw_buffer *b, epw_lane *lane, const epw_dispatch_output *out,
                                     epw_outcome *outcome);
/* False: the source's rows are not of the form that was asked for. Called for sources in ascending order. */
bool epw_host_lay_out(epw_buffer *b, epw_lane *lane, uint32_t source);

epw_status epw_host_combine(epw_buffer *b, epw_lane *lane, const epw_combine_input *in,
                            const epw_combine_output *out, epw_outcome *outcome);
epw_status epw_host_combine_receive(epw_buffer *b, epw_lane *lane, const epw_combine_output *out,
                                    epw_outcome *outcome);
void epw_host_answer(epw_buffer *b, epw_lane *lane, uint32_t source);
void epw_host_sum(epw_buffer *b, epw_lane *lane);

/* Writes what a peer must know besides its rows: how many go to each of its experts. Both fill in the ranges
 * that the following word announces, for epw_signal, and return how many there are. */
enum { EPW_RANGES_MAX = 2 };
uint32_t epw_host_announce(epw_buffer *b, const epw_lane *lane, uint32_t peer, epw_range *ranges);
uint32_t epw_host_answer_ranges(const epw_buffer *b, const epw_lane *lane, uint32_t peer, epw_range *ranges);

/* ---- background.c ---- */

epw_status epw_host_release(epw_buffer *b, epw_lane *lane, void *const *stream);
epw_status epw_background_start(epw_buffer *b);
void epw_background_stop(epw_buffer *b);

/* ---- rows ---- */

/* A received row's number in the lane, and its places. */
static inline uint64_t epw_row_at(const epw_buffer *b, uint32_t source, uint32_t row) {
    return (uint64_t)source * b->config.max_tokens + row;
}
static inline epw_place *epw_places(const epw_buffer *b, const epw_lane *lane, uint64_t row_at) {
    return lane->host->places + row_at * b->config.topk;
}

/* Copies a row, or a part of one. `to` is aligned to 16, and `bytes` is a multiple of 16. */
static inline void epw_copy_row(const epw_buffer *b, const epw_lane *lane, void *to, const void *from,
                                size_t bytes) {
    if (lane->host->streams) {
        b->host->numerics->copy_stream(to, from, bytes);
    } else {
        memcpy(to, from, bytes);
    }
}

/* Own bytes of slot `row` from `source`. */
static inline unsigned char *epw_slot_here(const epw_buffer *b, uint32_t lane, uint32_t source,
                                           uint32_t row) {
    return epw_peers_own(&b->peers) + epw_slot_offset(&b->layout, lane, source, row);
}

#endif
