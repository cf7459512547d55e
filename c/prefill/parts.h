/* Declarations for the files of a prefill buffer: lanes with the rings to and from each peer, the operation
 * that each lane runs, and routings.
 *
 *     rules.h     pure functions: what may be written, taken and announced
 *     plan.c      from a configuration to sizes
 *     prefill.c   creating, connecting, membership
 *     call.c      public calls: their checks, and the operations that they begin
 *     routing.c   which row goes to which rank, and its place there
 *     send.c      rows to peers
 *     receive.c   openings and rows from peers, to their places
 *     combine.c   answers to peers, and the sums of answers that arrive
 *     drive.c     steps a lane: reads words, moves messages, gives up peers
 *     traffic.c   counts what an operation has moved
 *     gpu/        the same parts on a GPU, where kernels move the rows
 *
 * A lane's lock guards its state. It is held for a step at a time, and never while sleeping. */
#ifndef EPW_PREFILL_PARTS_H
#define EPW_PREFILL_PARTS_H

#include "base/bits.h"
#include "base/pool.h"
#include "base/total.h"
#include "ep/input.h"
#include "numerics/numerics.h"
#include "peer/await.h"
#include "peer/peers.h"
#include "prefill/layout.h"
#include "prefill/rules.h"

#include <pthread.h>

/* The tokens or rows of one item of work, and the most that a lane handles between two looks at words. */
#define EPW_ROWS_CHUNK 4u
#define EPW_ROWS_TURN  64u

#define EPW_NO_PLACE   UINT32_MAX

/* The kinds of operations, each with its own rings and words. */
enum { EPW_KIND_DISPATCH = 0, EPW_KIND_COMBINE = 1, EPW_KINDS };

/* One routed expert of a received row. */
typedef struct epw_row_place {
    int32_t expert;  /* index on this rank, -1: the expert is on another rank */
    uint32_t number; /* index among the rows of that expert */
    float weight;
} epw_row_place;

/* A dispatch of this rank, and its result. W = config.topk, E = local experts. */
struct epw_routing {
    epw_prefill *of;
    uint32_t lane, epoch;
    bool made; /* a dispatch has filled it completely, so it can be combined */
    bool busy; /* one of its operations runs, or has a second half to come */

    /* The rows that this rank sends. */
    uint32_t tokens, topk;
    bool weighted;
    uint32_t token_room;
    void *own;
    int32_t *ids;           /* [tokens, W], -1: none */
    float *weights;         /* [tokens, W] */
    uint32_t *sent_row;     /* [tokens, W] index of the row among those for the expert's rank */
    uint32_t *sent_entry;   /* [tokens, W] index of the entry among all for that rank */
    uint32_t *sent_index;   /* [tokens, W] index among the rows for the expert */
    uint32_t *sent_tokens;  /* from sent_first[r] on, for rank r: the token of each row */
    uint32_t *sent_first;   /* [ranks + 1] */
    uint32_t *sent_entries; /* [ranks] */
    uint32_t *sent_counts;  /* [experts] */

    /* The rows that it receives. */
    uint32_t layout, alignment;
    uint64_t capacity;
    uint32_t *received;    /* [ranks] rows from each source in the last dispatch; 0 if it was lost */
    uint32_t *announced;   /* [ranks] rows according to the opening, which have places */
    uint32_t *complete;    /* [ranks] 1: all of these have arrived once, so the routing can be used again */
    uint32_t *counts;      /* [ranks, E] of the announced rows, by expert */
    uint32_t *fill;        /* [ranks, E] of these, found in rows so far */
    uint32_t *base;        /* [ranks, E] index of a source's first row among those of the expert */
    uint32_t *row_first;   /* [ranks + 1] index of a source's first row among all */
    uint32_t row_entries;  /* entries of the row that was checked last */
    uint32_t *expert_rows; /* [E] */
    uint32_t *offsets;     /* [E] first place of each expert, packed */
    uint64_t row_room;
    void *come;
    uint32_t *row_token;   /* [rows] index of the token at the source */
    uint32_t *row_entry;   /* [rows] index of its first entry among those of its source */
    epw_row_place *places; /* [rows, W] */
    uint64_t overflow;     /* rows, of experts or of sources, without a place */

    struct epw_prefill_gpu_memory *gpu; /* on a GPU: all of that except the numbers, which are those of the
                                           call */
};

/* The state of a peer on a lane. */
typedef struct epw_prefill_peer {
    uint64_t incarnation; /* when the epoch began; 0: not connected */
    bool member, begun;
    bool suspected, told; /* given up in this epoch; and told so by this lane */
    uint32_t gone;        /* EPW_CAUSE_*: nothing more will come from it */
    uint64_t moved;       /* when something last arrived from it, or the wait for it began */
    uint64_t spoke;       /* when this lane last posted a word to it */
    uint64_t waited_ns;   /* in this operation, while the peer had to act */
    epw_clock clock;
    bool missing;     /* from the current operation */
    bool opens;       /* its opening has yet to be written */
    bool voids;       /* only a VOID message has yet to be written */
    uint64_t opening; /* number of its opening, once that is written */
    bool refused;     /* what it sends is taken out of the ring and discarded */
    uint32_t next;    /* dispatch: the row to be written next. Combine: the row whose answers are */
    uint64_t checked; /* combine: answers of the operation that have arrived and were found correct */
    bool ended;       /* combine: after them comes a VOID message */
} epw_prefill_peer;

typedef enum epw_goal {
    EPW_GOAL_NONE,   /* no call waits */
    EPW_GOAL_COUNTS, /* openings have been written and have arrived */
    EPW_GOAL_SENT,   /* everything has been written */
    EPW_GOAL_ALL     /* and everything has arrived */
} epw_goal;

typedef struct epw_prefill_lane {
    pthread_mutex_t lock;
    uint32_t index;
    epw_prefill_peer *peers;        /* [ranks] */
    epw_stream *streams[EPW_KINDS]; /* [ranks] of each kind */
    epw_turn *turns;                /* [ranks] */
    uint32_t ops[EPW_KINDS];        /* operations begun in this epoch, of each kind */
    uint64_t own_word;              /* the current epoch; 0: none */
    _Atomic uint64_t suspicions;    /* the floor's count of suspicions, as last read */
    uint32_t beacon;
    bool waiting, beaconed;
    bool held;           /* a word has arrived that may not be used before what was posted has been sent */
    uint64_t look_again; /* when the next step is due even if nobody rings */
    uint64_t rested;     /* since when nothing could be done; 0: something can */
    bool moved;          /* something has moved in the last step */
    uint64_t advanced;   /* when a step last moved something, or the wait began */

    /* The current operation, or the one that has a half to come. */
    uint64_t call; /* number of the last call that was begun on the lane */
    bool running;
    bool dropped;     /* given up: its routing and the caller's memory must not be used */
    uint64_t retaken; /* when a later call of the lane has last waited for its end; 0: none has */
    bool tended;      /* being stepped by epw_prefill_tend */
    bool overdue;     /* some peer has not come for a deadline meanwhile */
    uint32_t kind;
    epw_goal goal;
    epw_status status; /* EPW_OK, or why it has failed on this rank */
    bool again, nonblocking, streams_rows, sends, receives, placed;
    uint64_t deadline_ns;
    epw_routing *routing;
    uint32_t hash; /* carried by openings and rows */
    epw_dispatch_input input;
    epw_row_format format;
    epw_prefill_output output;
    epw_prefill_combine_input combine;
    epw_prefill_combine_output sums;
    uint32_t next_token; /* combine: the first token without a sum */
    uint64_t *collected; /* [ranks] combine: number of the first answer of the operation */
    uint32_t *batch;     /* [EPW_ROWS_TURN] tokens of one turn */
    uint64_t *until;     /* [ranks] */
    epw_error_record record;
} epw_prefill_lane;

struct epw_prefill {
    epw_prefill_config config;
    epw_prefill_layout layout;
    epw_peers peers;
    const epw_numerics *numerics;
    epw_pool *pool;
    unsigned char *scratch; /* [threads][scratch_bytes] a payload in the format in which it is sent */
    uint64_t scratch_bytes;
    atomic_bool faulted;
    struct epw_prefill_gpu *gpu; /* see gpu/gpu.h; NULL: host threads move the rows */
    epw_prefill_lane lanes[EPW_MAX_LANES];
};

static inline epw_where epw_prefill_where(const epw_prefill *p, const char *op) {
    return (epw_where){op, (int)p->config.ep.rank, -1};
}

/* The channels of the lane's combine, and the bytes of one answer. */
static inline uint32_t epw_prefill_width(const epw_prefill *p, const epw_prefill_lane *lane) {
    return lane->combine.width != 0 ? lane->combine.width : p->config.ep.hidden;
}
static inline uint64_t epw_prefill_answer_bytes(const epw_prefill *p, const epw_prefill_lane *lane) {
    return (uint64_t)epw_prefill_width(p, lane) * 2;
}

static inline bool epw_prefill_present(const epw_prefill_peer *peer) {
    return peer->member && !peer->suspected;
}

/* Whether its caller has given the lane's operation up. An operation that has failed still has a caller,
 * which must learn why. */
static inline bool epw_prefill_abandoned(const epw_prefill_lane *lane) {
    return lane->dropped && lane->routing == NULL;
}

/* ---- plan.c ---- */

/* Checks the configuration, fills in the layout and, if not NULL, the sizes. */
epw_status epw_prefill_lay_out(const char *op, const epw_prefill_config *config, epw_prefill_layout *layout,
                               epw_prefill_sizes *sizes);
epw_stretch epw_prefill_footprint(const epw_prefill_layout *l, uint32_t source, uint32_t lane, uint32_t area);
uint32_t epw_prefill_queue_depth(const epw_prefill_config *config, const epw_prefill_layout *layout);

/* ---- routing.c ---- */

/* What a routing takes for so many tokens of this rank, beside the rows that it receives. */
uint64_t epw_routing_own_bytes(const epw_prefill_layout *l, uint64_t tokens);

/* Makes room for a dispatch of this many tokens. */
epw_status epw_routing_take(epw_routing *r, uint32_t tokens, epw_where where);

/* Whether it was filled by a dispatch of the current membership. With a lane of the buffer locked, so that no
 * epoch begins meanwhile. */
epw_status epw_routing_check_epoch(const epw_routing *r, const epw_prefill_lane *locked, epw_where where);

/* Reads the input, whose ids must have been checked, and numbers the rows for each rank and expert. */
void epw_routing_number(epw_routing *r, const epw_prefill_lane *lane, const epw_dispatch_input *in);

/* Decides the places of each source's rows, once all openings have arrived. False: no memory. */
bool epw_routing_place(epw_routing *r);

/* The rows that the output needs; in expert-major, per expert. At most 2^32 - 1. */
uint64_t epw_routing_extent(const epw_routing *r, uint32_t layout, uint32_t alignment);

/* The rows of an expert, or in a layout by source of a source, that have no place. */
uint64_t epw_routing_passing(const epw_routing *r, uint32_t e);
uint64_t epw_routing_source_passing(const epw_routing *r, uint32_t source);

/* Whether a dispatch that is given up has left its routing unchanged: it uses the routing again and was given
 * no weights. Otherwise some weights have already been replaced. */
static inline bool epw_routing_is_spared(bool again, const epw_dispatch_input *in) {
    return again && in->topk_weights == NULL;
}

static inline bool epw_by_expert(uint32_t layout) {
    return layout == EPW_EXPERT_MAJOR || layout == EPW_PACKED;
}

/* The place of a row for one of its experts, or in a layout by source; EPW_NO_PLACE: none. */
uint32_t epw_routing_expert_place(const epw_routing *r, const epw_row_place *place);
uint32_t epw_routing_source_place(const epw_routing *r, uint32_t source, uint32_t row);

/* The answers of a combine to the rows of the source; none if it was lost. */
uint64_t epw_routing_answers(const epw_routing *r, uint32_t source, bool ordered);

static inline uint32_t epw_rank_of(const epw_prefill *p, int32_t expert) {
    return (uint32_t)expert / p->layout.local_experts;
}
static inline epw_row_place *epw_places_of(const epw_routing *r, uint32_t source, uint32_t row) {
    return r->places + ((uint64_t)r->row_first[source] + row) * r->of->layout.topk;
}

/* ---- send.c, receive.c, combine.c: one turn each; true if something has moved ---- */

bool epw_prefill_write_openings(epw_prefill *p, epw_prefill_lane *lane);
bool epw_prefill_send(epw_prefill *p, epw_prefill_lane *lane);
bool epw_prefill_take(epw_prefill *p, epw_prefill_lane *lane);
bool epw_prefill_answer(epw_prefill *p, epw_prefill_lane *lane);
bool epw_prefill_sum(epw_prefill *p, epw_prefill_lane *lane);

/* Whether the sum of the next token lacks an answer of the peer. */
bool epw_prefill_lacks_answer(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer);

/* Takes an opening out of the ring. */
void epw_prefill_open(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer);

/* Takes the messages of refused peers out of the rings. */
bool epw_prefill_discard(epw_prefill *p, epw_prefill_lane *lane);

/* The head of the message in a slot, each word read once. */
epw_row_head epw_prefill_read_head(const unsigned char *slot);

/* Writes the results of a dispatch that the caller gets at its end, and empties the places of sources that
 * are missing from it. */
void epw_prefill_tell(epw_prefill *p, epw_prefill_lane *lane);

/* The slot of a message: of this rank's ring at the peer; of the peer's ring here. */
unsigned char *epw_prefill_slot_there(epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer,
                                      uint64_t number);
unsigned char *epw_prefill_slot_here(epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer,
                                     uint64_t number);

/* ---- traffic.c ---- */

/* The operation has ended, and has not been given up. Its peers may have been. */
void epw_prefill_count_moved(epw_prefill *p, const epw_prefill_lane *lane);

/* ---- drive.c ---- */

/* Begins the lane's operation, whose fields have been set, or its receiving half. */
void epw_prefill_begin(epw_prefill *p, epw_prefill_lane *lane);
void epw_prefill_begin_wait(epw_prefill *p, epw_prefill_lane *lane);

/* Steps the lane as far as possible: EPW_PENDING while it waits for peers. */
epw_status epw_prefill_step(epw_prefill *p, epw_prefill_lane *lane);

/* How long a thread that has found nothing new may sleep; 0: there is something new. `polled`: when it last
 * stepped the lane. */
uint64_t epw_prefill_rest_ns(epw_prefill *p, epw_prefill_lane *lane, uint64_t polled, uint64_t now);

/* epw_prefill_destroy, as epw_buffer_try_destroy. */
bool epw_prefill_try_destroy(epw_prefill *p);

/* The look of epw_awaited at a lane of a prefill buffer: call.c. */
void epw_prefill_look(epw_awaited *self, bool sleeps, uint64_t now);

/* Steps an operation that was given up on this lane, for peers that are still in it: EPW_PENDING until it has
 * ended or no peer has come for a deadline, and if another thread has the lane locked. It gives nobody up,
 * because peers that do not come may have given the operation up as well: if they stay away from the lane's
 * next one too, that finds it out. Waits for no lock: call.c. */
epw_status epw_prefill_tend(epw_prefill *p, uint32_t index);

/* Runs the lane's call to its end, or for one step if non-blocking. Called locked, returns unlocked. */
epw_status epw_prefill_run(epw_prefill *p, epw_prefill_lane *lane, epw_outcome *outcome);

/* Fills in the outcome of a call whose goal has been reached, and ends it. */
epw_status epw_prefill_end(epw_prefill *p, epw_prefill_lane *lane, epw_outcome *outcome);

/* The only way to unlock a lane: also tells peers that were given up meanwhile. */
void epw_prefill_unlock(epw_prefill *p, epw_prefill_lane *lane);

/* The caller gives the operation up: peers are told, and what they send is discarded. */
void epw_prefill_give_up(epw_prefill *p, epw_prefill_lane *lane);

/* A member is given up, or its messages are refused. */
void epw_prefill_miss(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer, uint32_t cause, uint64_t now);

void epw_prefill_begin_epoch(epw_prefill *p, const epw_mask *active, uint64_t epoch_word);
void epw_prefill_part(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer);

#endif
