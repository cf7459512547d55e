/* A prefill buffer as its files see it: lanes with the rings to and from each peer, the operation that each
 * lane runs, and routings.
 *
 *     rules.h     what may be written, taken and told: pure
 *     plan.c      from a configuration to sizes
 *     prefill.c   life, connecting, membership
 *     call.c      public calls: checks, and operations made of them
 *     routing.c   who sends what to whom, and where it lies
 *     send.c      rows to peers
 *     receive.c   openings and rows from peers, to their places
 *     combine.c   answers to peers, and the sums of those that come
 *     drive.c     steps a lane: looks at words, has messages moved, gives peers up
 *
 * A lane's state is its lock's, which is held for a step at a time and never while sleeping. */
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

/* Tokens or rows that a thread takes at a time, and a lane between two looks at words. */
#define EPW_ROWS_CHUNK 4u
#define EPW_ROWS_TURN  64u

#define EPW_NO_PLACE   UINT32_MAX

/* The two kinds of operations, rings and words. */
enum { EPW_KIND_DISPATCH = 0, EPW_KIND_COMBINE = 1, EPW_KINDS };

/* One routed expert of a received row. */
typedef struct epw_row_place {
    int32_t expert;  /* local, -1: the entry is not of this rank */
    uint32_t number; /* among the rows of that expert */
    float weight;
} epw_row_place;

/* A dispatch of this rank, and what came of it. W = config.topk, E = local experts. */
struct epw_routing {
    epw_prefill *of;
    uint32_t lane, epoch;
    bool made; /* a dispatch has filled it to the end: it can be combined */
    bool busy; /* an operation of it is under way, or its second half is still to come */

    /* What this rank sends. */
    uint32_t tokens, topk;
    bool weighted;
    uint32_t token_room;
    void *own;
    int32_t *ids;           /* [tokens, W], -1: none */
    float *weights;         /* [tokens, W] */
    uint32_t *sent_row;     /* [tokens, W] number of the row at the expert's rank */
    uint32_t *sent_entry;   /* [tokens, W] number of the entry among all of that rank */
    uint32_t *sent_index;   /* [tokens, W] its number among the rows of the expert */
    uint32_t *sent_tokens;  /* by rank, sent_first[r] on: the token of each row */
    uint32_t *sent_first;   /* [ranks + 1] */
    uint32_t *sent_entries; /* [ranks] */
    uint32_t *sent_counts;  /* [experts] */

    /* What it receives. */
    uint32_t layout, alignment;
    uint64_t capacity;
    uint32_t *received;    /* [ranks] rows from each; 0 if it was lost */
    uint32_t *announced;   /* [ranks] as its opening said: these have places */
    uint32_t *counts;      /* [ranks, E] of these rows, by expert */
    uint32_t *fill;        /* [ranks, E] of these, found in rows so far */
    uint32_t *base;        /* [ranks, E] number of a source's first row among those of the expert */
    uint32_t *row_first;   /* [ranks + 1] number of a source's first row among all */
    uint32_t row_entries;  /* of the row that was checked last */
    uint32_t *expert_rows; /* [E] */
    uint32_t *offsets;     /* [E] first place of each expert, packed */
    uint64_t row_room;
    void *come;
    uint32_t *row_token;   /* [rows] index at the source */
    uint32_t *row_entry;   /* [rows] number of its first entry among those of its source */
    epw_row_place *places; /* [rows, W] */
    uint64_t overflow;     /* rows, of experts or of sources, that have no place */
};

/* A peer as a lane sees it. */
typedef struct epw_prefill_peer {
    uint64_t incarnation; /* at the beginning of the epoch; 0: not connected */
    bool member, begun;
    bool suspected, told; /* given up in this epoch; and this lane has told it */
    uint32_t gone;        /* EPW_CAUSE_*: nothing new will come */
    uint64_t moved;       /* when something last came from it, or the wait for it began */
    uint64_t spoke;       /* when this lane last posted a word to it */
    uint64_t waited_ns;   /* of the operation, by whoever owed something */
    epw_clock clock;
    bool missing;       /* from the operation that runs */
    bool opens;         /* its opening is still to be written */
    bool voids;         /* no more than the word that nothing more comes is to be written */
    uint64_t opening;   /* number of the last of these messages */
    bool refused;       /* what it sends is taken out of the ring, and no more */
    uint32_t next;      /* dispatch: row that is written next. Combine: row whose answers are */
    uint32_t forgotten; /* dispatch: of a source that is missing, rows whose places are to be cleared */
    uint64_t checked;   /* combine: answers of the operation that have come and are good */
    bool ended;         /* combine: behind them comes the word that nothing more does */
} epw_prefill_peer;

typedef enum epw_goal {
    EPW_GOAL_NONE,   /* no call waits */
    EPW_GOAL_COUNTS, /* openings have gone and come */
    EPW_GOAL_SENT,   /* all is written */
    EPW_GOAL_ALL     /* and all has come */
} epw_goal;

typedef struct epw_prefill_lane {
    pthread_mutex_t lock;
    uint32_t index;
    epw_prefill_peer *peers;        /* [ranks] */
    epw_stream *streams[EPW_KINDS]; /* [ranks] of each kind */
    epw_turn *turns;                /* [ranks] */
    uint32_t ops[EPW_KINDS];        /* operations begun in this epoch */
    uint64_t own_word;              /* the epoch that has begun; 0: none */
    _Atomic uint64_t suspicions;    /* of the floor's, heard */
    uint32_t beacon;
    bool waiting, beaconed;
    bool held;           /* a word that has come may not be seen before what was posted has been sent */
    uint64_t look_again; /* when the next step is due although nobody rings */
    uint64_t rested;     /* since then nothing could be done; 0: something can */
    bool moved;          /* something has in the last step */

    /* The operation that runs, or of which a half is still to come. */
    bool running;
    bool dropped; /* its routing and all memory of it are gone */
    uint32_t kind;
    epw_goal goal;
    epw_status status; /* EPW_OK, or why it has failed here */
    bool again, nonblocking, streams_rows, sends, receives, placed;
    uint64_t deadline_ns;
    epw_routing *routing;
    uint32_t hash; /* that openings carry, and rows */
    epw_dispatch_input input;
    epw_row_format format;
    epw_prefill_output output;
    epw_prefill_combine_input combine;
    epw_prefill_combine_output sums;
    uint32_t next_token; /* combine: the first whose sum is not made */
    uint64_t *collected; /* [ranks] combine: number of the first answer of the operation */
    uint32_t *batch;     /* [EPW_ROWS_TURN] tokens that are sent in one turn */
    uint64_t *until;     /* [ranks] */
    epw_error_record record;
} epw_prefill_lane;

struct epw_prefill {
    epw_prefill_config config;
    epw_prefill_layout layout;
    epw_peers peers;
    const epw_numerics *numerics;
    epw_pool *pool;
    unsigned char *scratch; /* [threads][scratch_bytes] a payload as it travels */
    uint64_t scratch_bytes;
    atomic_bool faulted;
    epw_prefill_lane lanes[EPW_MAX_LANES];
};

static inline epw_where epw_prefill_where(const epw_prefill *p, const char *op) {
    return (epw_where){op, (int)p->config.ep.rank, -1};
}

static inline bool epw_prefill_present(const epw_prefill_peer *peer) {
    return peer->member && !peer->suspected;
}

/* ---- plan.c ---- */

/* Checks the configuration, fills the layout and, if not NULL, the sizes. */
epw_status epw_prefill_lay_out(const char *op, const epw_prefill_config *config, epw_prefill_layout *layout,
                               epw_prefill_sizes *sizes);
epw_stretch epw_prefill_footprint(const epw_prefill_layout *l, uint32_t source, uint32_t lane, uint32_t area);
uint32_t epw_prefill_queue_depth(const epw_prefill_config *config, const epw_prefill_layout *layout);

/* ---- routing.c ---- */

/* Makes room for the tokens of a dispatch. */
epw_status epw_routing_take(epw_routing *r, uint32_t tokens, epw_where where);

/* Reads the input, whose ids have been checked, and numbers the rows for each rank and expert. */
void epw_routing_number(epw_routing *r, const epw_prefill_lane *lane, const epw_dispatch_input *in);

/* All openings have come: where the rows of each source go. False: there is no memory. */
bool epw_routing_place(epw_routing *r);

/* Rows that the output takes; expert-major: of each expert. Ends at 2^32 - 1. */
uint64_t epw_routing_extent(const epw_routing *r, uint32_t layout, uint32_t alignment);

/* Rows of an expert that have no place. */
uint64_t epw_routing_passing(const epw_routing *r, uint32_t e);

static inline bool epw_by_expert(uint32_t layout) {
    return layout == EPW_EXPERT_MAJOR || layout == EPW_PACKED;
}

/* Where a row lies for one of its experts, or in a layout by source; EPW_NO_PLACE: nowhere. */
uint32_t epw_routing_expert_place(const epw_routing *r, const epw_row_place *place);
uint32_t epw_routing_source_place(const epw_routing *r, uint32_t source, uint32_t row);

static inline uint32_t epw_rank_of(const epw_prefill *p, int32_t expert) {
    return (uint32_t)expert / p->layout.local_experts;
}
static inline epw_row_place *epw_places_of(const epw_routing *r, uint32_t source, uint32_t row) {
    return r->places + ((uint64_t)r->row_first[source] + row) * r->of->layout.topk;
}

/* ---- send.c, receive.c, combine.c: a turn each; true if something has moved ---- */

bool epw_prefill_write_openings(epw_prefill *p, epw_prefill_lane *lane);
bool epw_prefill_send(epw_prefill *p, epw_prefill_lane *lane);
bool epw_prefill_take(epw_prefill *p, epw_prefill_lane *lane);
bool epw_prefill_answer(epw_prefill *p, epw_prefill_lane *lane);
bool epw_prefill_sum(epw_prefill *p, epw_prefill_lane *lane);

/* Takes an opening out of the ring. */
void epw_prefill_open(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer);

/* Takes what refused peers send out of the rings. */
bool epw_prefill_discard(epw_prefill *p, epw_prefill_lane *lane);

/* What lies in a slot, read once. */
epw_row_head epw_prefill_read_head(const unsigned char *slot);

/* The source is missing, and its places are nobody's. Which they are is noted, for this may be any thread;
 * whoever steps the operation clears them. */
void epw_prefill_forget(epw_prefill *p, epw_prefill_lane *lane, uint32_t source);
void epw_prefill_clear_forgotten(epw_prefill *p, epw_prefill_lane *lane);

/* What the caller is told at the end of a dispatch. */
void epw_prefill_tell(epw_prefill *p, epw_prefill_lane *lane);

/* Slots: of this rank's ring at the peer, and of the peer's here. */
unsigned char *epw_prefill_slot_there(epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer,
                                      uint64_t number);
unsigned char *epw_prefill_slot_here(epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer,
                                     uint64_t number);

/* ---- drive.c ---- */

/* Begins the operation of a lane that is filled in, or its receiving half. */
void epw_prefill_begin(epw_prefill *p, epw_prefill_lane *lane);
void epw_prefill_begin_wait(epw_prefill *p, epw_prefill_lane *lane);

/* Steps the lane as far as it goes: EPW_PENDING while it waits for peers. */
epw_status epw_prefill_step(epw_prefill *p, epw_prefill_lane *lane);

/* How long somebody who has seen nothing new may sleep; 0: there is news. */
uint64_t epw_prefill_rest_ns(epw_prefill *p, epw_prefill_lane *lane, uint64_t now);

/* Of epw_awaited, for a prefill buffer and a lane: call.c. */
void epw_prefill_look(void *prefill, uint64_t lane, bool sleeps, uint64_t now, epw_awaited *out);

/* Runs the lane's call to its end, or one step if non-blocking. Called locked, returns unlocked. */
epw_status epw_prefill_run(epw_prefill *p, epw_prefill_lane *lane, epw_outcome *outcome);

/* Fills the outcome of a call whose goal has been reached, and ends it. */
epw_status epw_prefill_end(epw_prefill *p, epw_prefill_lane *lane, epw_outcome *outcome);

/* The only way to unlock a lane: peers that were given up meanwhile are told. */
void epw_prefill_unlock(epw_prefill *p, epw_prefill_lane *lane);

/* The rest of the operation is none of the caller's: peers are told, and what they send is discarded. */
void epw_prefill_give_up(epw_prefill *p, epw_prefill_lane *lane);

/* A member is given up, or what it sends is refused. */
void epw_prefill_miss(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer, uint32_t cause, uint64_t now);

void epw_prefill_begin_epoch(epw_prefill *p, const epw_mask *active, uint64_t epoch_word);
void epw_prefill_part(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer);

#endif
