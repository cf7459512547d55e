/* A communicator as its files see it: rings to and from each peer, the collective that runs, and the calls
 * that wait for their turn.
 *
 * A collective is a program of flows: to each peer and from each peer a stream of bytes, in messages. A flow
 * has one leg, or two: of an all-reduce by owners the input's piece for the peer goes first, then this rank's
 * piece of the result, as it is folded. Messages of a pair come in order, so a flow needs no addresses.
 *
 *     call.c     checks a call, and makes operations of it
 *     program.c  makes flows of an operation: which algorithm it is
 *     rules.h    which slot of a ring may be written or read, and what words say of it: pure
 *     flow.c     moves bytes: writes messages, reads messages, folds
 *     point.c    sends and receives: matching, offers
 *     drive.c    steps all of it: looks at words, waits, gives peers up
 *     mismatch.c says on every rank which operations ranks have called where they differ
 *     comm.c     life, connecting, membership
 *
 * Where windows are GPU memory kernels do the work of program.c to drive.c, and gpu/ enqueues them. */
#ifndef EPW_COLL_PARTS_H
#define EPW_COLL_PARTS_H

#include "base/bits.h"
#include "coll/layout.h"
#include "coll/rules.h"
#include "numerics/numerics.h"
#include "numerics/sums.h"
#include "peer/await.h"
#include "peer/peers.h"

#include <pthread.h>

/* Where bytes lie in the caller's memory: rows of row_bytes, pitch bytes apart; row_bytes 0: all in one. */
typedef struct epw_run {
    unsigned char *base;
    uint64_t row_bytes, pitch;
} epw_run;

/* Byte `offset` of a run; *left: how many follow it without a gap. NULL of one that is nowhere, as a
 * barrier's. */
static inline unsigned char *epw_run_at(const epw_run *run, uint64_t offset, uint64_t *left) {
    *left = UINT64_MAX;
    if (run->base == NULL) return NULL;
    if (run->row_bytes == 0) return run->base + offset;
    *left = run->row_bytes - offset % run->row_bytes;
    return run->base + offset / run->row_bytes * run->pitch + offset % run->row_bytes;
}

typedef struct epw_leg {
    uint64_t bytes, done;
    epw_run at;
    bool folded; /* in: goes into the fold. Out: is the fold's result, as far as that has come */
} epw_leg;

typedef struct epw_flow {
    bool open; /* something is still to go, or to come */
    uint32_t leg;
    epw_leg legs[2];
} epw_flow;

typedef struct epw_coll_peer {
    uint64_t incarnation; /* at the beginning of the epoch; 0: not connected */
    bool member;          /* of the epoch */
    bool begun;           /* it has begun the epoch: this rank may write for it */
    bool suspected;
    bool greeted;  /* its greeting has been tried */
    bool readable; /* this rank can read its process's memory, and */
    bool reads;    /* it can read this one's */
    uint32_t pid;
    uint32_t gone;  /* EPW_CAUSE_*: nothing new will come */
    uint64_t moved; /* when something last came from it, or the wait for it began */
    uint64_t spoke; /* when this rank last posted a word to it */
    epw_clock clock;
    epw_ring rings[EPW_CHANNELS];

    /* Of the collective that runs. */
    epw_flow out, in;
    bool missing;

    struct epw_point *point; /* see point.c */
} epw_coll_peer;

/* The fold of a reduction, at its owner. */
typedef struct epw_fold {
    bool on;
    bool behind_out; /* in place, and all go into the fold: only once the input has been written for others */
    bool lacks;      /* no result: it lacks rank `voids` */
    uint32_t voids;
    uint32_t type, op;
    uint64_t bytes, done;
    epw_run own, out; /* this rank's own input, and the result */
} epw_fold;

/* One call: it has ended when all its operations have. */
typedef struct epw_job {
    epw_work id;
    uint32_t left;     /* operations that have not ended */
    bool waits;        /* its caller does, and so cannot drop it */
    epw_status status; /* EPW_OK, or why one has failed */
    uint64_t limit[2]; /* EPW_ERR_LIMIT: bytes that came, bytes of room */
    uint64_t deadline_ns;
    epw_outcome outcome;
    struct epw_job *next;
} epw_job;

/* An operation that waits for its turn, or runs. */
typedef struct epw_op {
    epw_coll call;                /* its counts and offsets are copies */
    uint64_t *arrays;             /* of these */
    epw_job *job;                 /* NULL: the job has been dropped and is gone */
    epw_run local_from, local_to; /* what this rank gives itself */
    uint64_t local_bytes, local_done;
    epw_norm norm; /* call.norm is this, or NULL */
    uint64_t normed;
    struct epw_op *next;
} epw_op;

struct epw_comm {
    epw_comm_config config;
    epw_coll_layout layout;
    epw_peers peers;
    const epw_numerics *numerics;
    const epw_sums *sums;
    pthread_mutex_t lock; /* of all below; held for a step at a time, never while sleeping */

    epw_coll_peer *of; /* [ranks] */
    uint64_t own_word; /* the epoch that has begun; 0: none */
    uint32_t members;
    uint64_t suspicions;      /* of the floor's, heard */
    unsigned char secret[16]; /* of the greeting */

    /* The wait. */
    uint32_t beacon;
    bool beaconed;
    bool waiting;
    bool held;           /* a word that has come may not be seen before what was posted has been sent */
    uint64_t look_again; /* when the next step is due although nobody rings */
    uint64_t moved;      /* when something last has */
    bool mismatched;     /* ranks have called different operations: nothing goes on in this epoch */
    epw_mismatch mismatch;

    /* The collective that runs is the first of the queue. */
    epw_op *queue, **queue_end;
    bool running;
    uint32_t calls;             /* collectives begun in this epoch */
    epw_descriptor now, before; /* the last of them, and the one before; of uneven blocks without a count */
    bool streams;               /* large: past the caches */
    bool exchanges; /* in place, and each takes the other's place: not before this rank's part has gone */
    epw_fold fold;
    epw_error_record record;       /* of the collective */
    epw_error_record point_record; /* of the member that was lost last */
    const void **rows;             /* [ranks] */
    unsigned char *scratch;        /* [ranks][scratch_bytes] what a fold has read from peers' memory */
    uint64_t scratch_bytes;

    epw_job *jobs;
    epw_work next_work;
    bool faulted; /* something that has ended was incomplete */

    struct epw_coll_gpu *gpu; /* see gpu/gpu.h; NULL: windows are host memory, and what is above is used */

    struct epw_heap_piece *heap; /* free pieces, see heap.c */
    pthread_mutex_t heap_lock;
};

static inline epw_where epw_comm_where(const epw_comm *comm, const char *op) {
    return (epw_where){op, (int)comm->config.rank, -1};
}

#define EPW_COMM_PEERS(p, comm)                                                                              \
    for (epw_coll_peer *p = (comm)->of, *end_##p = p + (comm)->layout.ranks; p < end_##p; p++)

static inline uint32_t epw_coll_rank(const epw_comm *comm, const epw_coll_peer *p) {
    return (uint32_t)(p - comm->of);
}

/* Takes part in operations that begin now. */
static inline bool epw_coll_present(const epw_coll_peer *p) {
    return p->member && !p->suspected;
}

/* ---- call.c ---- */

const char *epw_kind_name(uint32_t kind);
/* What is called, in words: for example "all_reduce of 1024 bf16 (sum)". */
enum { EPW_CALL_TEXT = 96 };
const char *epw_descriptor_text(const epw_descriptor *what, char *text);
epw_descriptor epw_descriptor_of(const epw_coll *call, uint64_t pair_count);

/* ---- program.c ---- */

/* The first of the queue begins: fills the peers' flows, the fold, and what the rank gives itself. False:
 * there is no memory for it. */
bool epw_program_begin(epw_comm *comm, epw_op *op);

/* ---- flow.c ---- */

/* One turn: for each peer what can be written, and a piece of what has come; true if anything has moved. */
bool epw_flows_move(epw_comm *comm, epw_op *op, uint64_t now);

/* Whether the peer's part is over: nothing is to come or to go, and it reads nothing of the caller's. */
bool epw_flow_over(const epw_coll_peer *p);

/* Nothing more is expected of the peer in the collective that runs: tells of a mismatch if it gives something
 * all the same. */
void epw_flow_check_unexpected(epw_comm *comm, const epw_op *op, epw_coll_peer *p, uint64_t now);

/* The peer's part ends as it is; `voids`: whom it lacks. */
void epw_flow_void(epw_comm *comm, epw_coll_peer *p, uint32_t voids);

/* Tells peers of messages that were written for them, and of theirs that were consumed. */
void epw_rings_post(epw_comm *comm, uint64_t now);

/* Reads `bytes` of the peer's memory; false: it cannot be read any more. */
bool epw_pull(const epw_coll_peer *p, void *to, uint64_t address, uint64_t bytes);

/* How these bytes go to the peer: EPW_CARRY_INLINE, or where it reads them: *address. */
uint32_t epw_carry_of(const epw_comm *comm, const epw_coll_peer *p, const void *from, uint64_t bytes,
                      uint64_t *address);

/* Whether what a message says of where its bytes lie can be. */
bool epw_may_borrow(const epw_comm *comm, const epw_coll_peer *p, const epw_message *m);

/* Reads what a message that was given by PULL or HEAP names. False: it has been taken back, or cannot be
 * read. What is in `to` then is anything. */
bool epw_read_borrowed(epw_comm *comm, epw_coll_peer *p, uint32_t carry, void *to, uint64_t address,
                       uint64_t bytes);

/* Where message `number` for the peer is written. */
epw_message *epw_slot_for(epw_comm *comm, epw_coll_peer *p, uint32_t channel, uint64_t number);

/* Copies, and past the caches where that is worth it. */
void epw_coll_copy(const epw_comm *comm, void *to, const void *from, uint64_t bytes);

/* ---- mismatch.c ---- */

/* The peer's next message is not of the collective that runs here, which is `own`: tells all members. */
void epw_comm_mismatch(epw_comm *comm, epw_coll_peer *p, const epw_descriptor *own, uint64_t now);

/* Whether this rank or a peer has found that ranks have called different operations. */
bool epw_comm_heed_mismatch(epw_comm *comm);

epw_status epw_comm_fail_mismatch(const epw_comm *comm, epw_where where);

/* ---- drive.c ---- */

/* Goes on with all that is under way. Locked. True: something has moved; *until: when to look again although
 * nobody rings. */
bool epw_comm_step(epw_comm *comm, uint64_t *until);

/* Whether the peer has begun the epoch on every channel, and has what this rank posted in the one before. */
bool epw_comm_has_begun(epw_comm *comm, const epw_coll_peer *p);

/* One of a job's operations has ended. */
void epw_comm_end_of_job(epw_comm *comm, epw_job *job);

/* What the collective that runs has given peers to read is the caller's again. */
void epw_comm_take_back(epw_comm *comm, uint64_t now);

/* Something is awaited of the peer from now on. */
void epw_comm_wait_begins(epw_coll_peer *p, uint64_t now);

epw_job *epw_comm_find(epw_comm *comm, epw_work work);

/* Of epw_awaited, for a communicator and a work. */
void epw_comm_look(void *comm, uint64_t work, bool sleeps, uint64_t now, epw_awaited *out);

/* A member is given up. */
void epw_comm_lose(epw_comm *comm, epw_coll_peer *p, uint32_t phase, uint32_t cause, uint64_t expected,
                   uint64_t seen, uint64_t now);

/* Why a member lacks that was given up before; cause EPW_CAUSE_NONE: it was not. */
epw_error_record epw_comm_suspected(const epw_comm *comm, const epw_coll_peer *p, uint32_t phase);

/* A membership begins, and what the floor's user has to do when a peer goes. Locked. */
void epw_comm_begin_epoch(epw_comm *comm, const epw_mask *active, uint64_t epoch_word);
void epw_comm_part(epw_comm *comm, uint32_t peer);

/* Waits for the job, which is consumed if it has ended: EPW_PENDING if not. */
epw_status epw_comm_wait(epw_comm *comm, epw_job *job, uint64_t timeout_ns, epw_outcome *outcome);

#endif
