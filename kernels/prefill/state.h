/* A prefill buffer on a GPU, shared by host C and CUDA: what the kernels of a lane keep in device memory, routings, and the
 * arguments of each kernel. The window, its messages and the use of its slots are those of the host engine (c/prefill/layout.h,
 * rules.h), but each message has flags of its own in place of counts. Everything that may change between replays of a graph
 * (members, suspects, numbers of operations) is in device memory. */
#ifndef EPW_KERNELS_PREFILL_STATE_H
#define EPW_KERNELS_PREFILL_STATE_H

#include "kernels/peer/context.h"
#include "prefill/layout.h"
#include "prefill/rules.h"

/* Of the flags that are set at peers: EPW_FLAGS_WRITTEN and EPW_FLAGS_READ, of both kinds. */
#define EPW_OUTGOING_AREAS 4u

/* In routings, in the place of a row for one of its token's experts. */
#define EPW_PREFILL_ELSEWHERE UINT32_MAX       /* the expert is not this rank's */
#define EPW_PREFILL_NO_PLACE  (UINT32_MAX - 1) /* the place passes the capacity */

/* What a kernel does of an operation. A whole operation is one kernel with all of these; its halves are two. */
enum {
    EPW_PREFILL_OPENS = 1,   /* numbers the rows, and tells each peer how many come. Begins the operation */
    EPW_PREFILL_COUNTS = 2,  /* waits until all peers have told theirs */
    EPW_PREFILL_SENDS = 4,   /* sends the rows, or answers */
    EPW_PREFILL_RECEIVES = 8 /* receives those of the peers. Ends the operation */
};

/* Rows that go to a peer or come from it, in the order of the ring. */
typedef struct epw_prefill_line {
    uint32_t next;   /* the next row that nobody has taken up. Changed by atomic additions of movers */
    uint32_t moved;  /* rows that have been moved. As `next` */
    uint32_t opened; /* 0: it is not known yet which rows there are; else 1 more than there are. It falls if the peer is lost or
                      * gives the operation up. Writer: the peer's attendant, a release. Readers: movers */
} epw_prefill_line;

/* The messages of this epoch on the rings of one kind, as left by the last operation. */
typedef struct epw_prefill_rings {
    uint64_t written, taken; /* to the peer, and from it */
} epw_prefill_rings;

typedef struct epw_prefill_gpu_peer {
    epw_prefill_rings rings[2];   /* [kind] */
    uint64_t out_first, in_first; /* numbers of the operation's openings, to the peer and from it */
    epw_prefill_line send, take;
    uint32_t refused;      /* a mover has found an invalid row */
    uint32_t ended;        /* > 0: a mover has found the end mark in place of row `ended - 1` */
    uint32_t in_rows;      /* rows behind its opening */
    epw_row_ring queue[2]; /* [kind] of a peer behind a queue: what its relay has carried in this epoch, see relay.cuh */
} epw_prefill_gpu_peer;

/* What a lane has moved since creation, by peer. Writer: kernels of the lane, one at a time. Reader: copies to the host, at any
 * time. */
typedef struct epw_prefill_gpu_traffic {
    uint64_t operations; /* that have ended */
    uint64_t rows_sent[EPW_GPU_PEERS], rows_received[EPW_GPU_PEERS], answers_sent[EPW_GPU_PEERS];
    uint64_t bytes_sent[EPW_GPU_PEERS], bytes_received[EPW_GPU_PEERS], wait_ns[EPW_GPU_PEERS];
} epw_prefill_gpu_traffic;

/* A lane between two kernels. What belongs to one kernel is zero outside it. */
typedef struct epw_prefill_gpu_state {
    uint32_t gate, passed; /* see enter() in operation.cuh */
    uint32_t ops[2];       /* [kind] operations begun in this epoch */

    uint64_t unrecorded; /* bad ids that found no room in the ring of records, since creation */

    /* Of the operation, also between its halves. */
    epw_rank_set missing;
    epw_error_record record; /* of the first loss */

    /* Of one kernel. */
    uint64_t met, out;       /* blocks that have come to meetings, and that are out */
    epw_rank_set present;    /* who takes part, if not all active ranks do */
    uint32_t placed;         /* it is known where rows go */
    uint32_t groups;         /* then: scales of rows are grouped */
    uint32_t sums;           /* the next token whose sum nobody has taken up */
    uint32_t bad_ids;        /* the first EPW_GPU_NOTES of them are recorded */
    uint64_t bad_at, bad_id; /* the first of them: token and column, and what it was */
    uint64_t rows, overflow; /* received, and without a place */

    epw_prefill_gpu_peer peers[EPW_GPU_PEERS];

    epw_prefill_gpu_traffic traffic;
} epw_prefill_gpu_state;

/* How an operation ended that was not complete. In mapped host memory; nothing is written for complete ones. */
typedef struct epw_prefill_gpu_report {
    uint64_t ticket; /* of the call; 0: none yet */
    uint32_t degraded;
    epw_rank_set missing;
    epw_error_record record;
} epw_prefill_gpu_report;

/* A routing, in device memory. W = topk of the layout, E = local experts, M = max_tokens. Row i of source s is number s * M + i
 * in the arrays [rows]. */
typedef struct epw_prefill_gpu_routing {
    int32_t *ids;                                 /* [M, W] global experts, -1: none */
    float *weights;                               /* [M, W] */
    uint32_t *sent_row, *sent_entry, *sent_index; /* [M, W] numbers of the row and of the entry at the expert's rank, and of the
                                                   * row among those of the expert; sent_row UINT32_MAX: it was not sent */
    uint32_t *sent_tokens;                        /* by rank, sent_first[r] on: the token of each row */
    uint32_t *sent_first;                         /* [ranks + 1] */
    uint32_t *sent_entries;                       /* [ranks] */
    uint32_t *sent_counts;                        /* [experts] */
    uint32_t *announced, *received;  /* [ranks] rows of each source: as it said; that arrived last, 0 if it was lost */
    uint32_t *complete;              /* [ranks] 1: all announced rows have arrived once, so the routing can be used again */
    uint32_t *counts, *base;         /* [ranks, E] of the announced ones, by expert; number of the first among those of the
                                      * expert */
    uint32_t *row_first;             /* [ranks] number of a source's first row among all */
    uint32_t *expert_rows, *offsets; /* [E] the former: announced; in the end, received */
    uint32_t *row_token;             /* [rows] */
    uint32_t *places;                /* [rows, W] */
    float *row_weights;              /* [rows, W] */
    uint32_t *entries;               /* [ranks, M * W] ordered combine: row * W + column of each entry of a source */
    uint32_t *told;                  /* mapped host memory: announced [ranks], then expert_rows [E], for the host */
} epw_prefill_gpu_routing;

/* What every kernel of a lane is given. */
typedef struct epw_prefill_gpu_lane {
    epw_gpu_peers *peers;
    epw_gpu_shared *shared;
    epw_prefill_gpu_state *state;
    uint32_t *tallies; /* [blocks][experts + 2 * ranks] what each block has counted */
    uint32_t *claims;  /* [(max_tokens + 31) / 32] bit i of word n: a mover has taken up row 32 n + i of this rank itself.
                        * Zero outside kernels */
    uint32_t *grouped; /* [max(local experts, ranks)] rows of each list whose scales are grouped, see scales.cuh */
    unsigned char *window;
    /* For peers behind queues, see relay.cuh. */
    const unsigned char *inbox; /* where they write in place of the window */
    uint64_t *outgoing;         /* [EPW_OUTGOING_AREAS][ranks][slots] flags for them, by area and kind */
    uint32_t queue_room;        /* entries of a queue that messages may take; 0: there are no queues */
    uint32_t *faulted;          /* mapped host memory: some operation was incomplete */
    uint32_t *taken;            /* of all lanes: SMs that kernels have taken, see c/prefill/lane_sms.h; NULL: there is one lane */
    epw_prefill_layout layout;
    uint32_t rank, lane, max_tokens, experts, sms; /* sms: of all lanes */
} epw_prefill_gpu_lane;

/* What is common to dispatches and combines. */
typedef struct epw_prefill_gpu_call {
    epw_prefill_gpu_lane lane;
    epw_prefill_gpu_routing routing;
    epw_prefill_gpu_report *report;
    uint64_t ticket; /* running number of the call */
    uint64_t deadline_ns;
    uint32_t kind, parts, hash, dtype;
    uint32_t counts;   /* 1: what the operation moves is counted in the lane's state */
    uint32_t gives_up; /* 1: the rest of the operation is given up: peers are told, and what they send is discarded */
} epw_prefill_gpu_call;

typedef struct epw_prefill_dispatch_args {
    epw_prefill_gpu_call call;
    uint32_t again;
    epw_dispatch_input in; /* x_stride is never 0 */
    epw_row_format format;
    epw_prefill_output out; /* alignment is never 0; zeros without EPW_PREFILL_RECEIVES */
} epw_prefill_dispatch_args;

typedef struct epw_prefill_combine_args {
    epw_prefill_gpu_call call;
    uint32_t tokens, topk, layout; /* of the dispatch */
    uint32_t width;                /* never 0 */
    uint64_t capacity;
    epw_prefill_combine_input in;
    epw_prefill_combine_output out; /* zeros without EPW_PREFILL_RECEIVES */
} epw_prefill_combine_args;

typedef struct epw_prefill_membership_args {
    epw_prefill_gpu_lane lanes[EPW_MAX_LANES];
    uint32_t lane_count, ranks;
    uint64_t epoch_word;
    epw_rank_set active;
} epw_prefill_membership_args;

typedef struct epw_prefill_part_args {
    epw_gpu_peers *peers[EPW_MAX_LANES];
    uint32_t lane_count, rank, peer;
} epw_prefill_part_args;

#ifdef __cplusplus
extern "C" {
#endif

/* All functions return a cudaError_t, and none waits. Prepares the kernels on the current device, `queues`: those for peers
 * behind queues; not under capture. */
int epw_prefill_gpu_prepare(bool queues);
int epw_prefill_gpu_run_dispatch(const epw_prefill_dispatch_args *args, uint32_t blocks, void *stream);
int epw_prefill_gpu_run_combine(const epw_prefill_combine_args *args, uint32_t blocks, void *stream);

/* Clears suspects, begins the epoch on all lanes and tells every peer that is or was active. */
int epw_prefill_gpu_run_epoch(const epw_prefill_membership_args *args, void *stream);

/* Removes the peer from the tables, and tells it so if it is a member that has not been told. */
int epw_prefill_gpu_run_part(const epw_prefill_part_args *args, void *stream);

#ifdef __cplusplus
}
#endif

#endif
