/* Declarations for the files of a communicator: the rings of each peer, the current collective, and the calls
 * that wait for their turn.
 *
 * A collective is a program of flows: a stream of bytes, in messages, to each peer and from each peer. A flow
 * has one or two legs: in an all-reduce by owners, first the peer's piece of the input, then this rank's
 * piece of the result as it is folded. Messages between two ranks arrive in order, so flows need no
 * addresses.
 *
 *     call.c     checks a call, and makes its operations
 *     program.c  chooses the algorithm, and makes the flows of an operation
 *     rules.h    pure functions: which slots of a ring may be written or read, and what words mean
 *     flow.c     moves bytes: writes messages, reads messages, folds
 *     point.c    sends and receives: matching, offers
 *     drive.c    steps all of it: reads words, waits, gives up peers
 *     mismatch.c reports different calls on every rank
 *     comm.c     creating, connecting, membership
 *     exchange.c host memory that ranks exchange, also by a communicator on a GPU
 *     registration.c memory of the caller's that is registered
 *     subset.c   communicators of some of the ranks
 *
 * If windows are GPU memory, kernels do the work of program.c to drive.c, and gpu/ enqueues them. */
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

/* The position of bytes in the caller's memory: rows of row_bytes, pitch bytes apart; row_bytes 0:
 * contiguous. */
typedef struct epw_run {
    unsigned char *base;
    uint64_t row_bytes, pitch;
} epw_run;

/* The address of byte `offset` of a run; *left: the contiguous bytes from there. NULL for a run without
 * memory, such as a barrier's. */
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
    bool folded; /* in: input of the fold. Out: its result, as far as folded */
} epw_leg;

typedef struct epw_flow {
    bool open;    /* bytes are still to be written, or to be read */
    bool nothing; /* a part of it has no bytes */
    uint32_t leg;
    epw_leg legs[2];
} epw_flow;

typedef struct epw_coll_peer {
    uint64_t incarnation; /* when the epoch began; 0: not connected */
    bool member;          /* member of this epoch */
    bool begun;           /* it has begun the epoch, so this rank may write for it */
    bool suspected;
    bool greeted;  /* its greeting has been read */
    bool readable; /* this rank can read its process's memory */
    bool reads;    /* it can read this rank's */
    uint32_t pid;
    uint32_t gone;  /* EPW_CAUSE_*: nothing more will come from it */
    uint64_t moved; /* when something last arrived from it, or the wait for it began */
    uint64_t spoke; /* when this rank last posted a word to it */
    epw_clock clock;
    epw_ring rings[EPW_CHANNELS];

    /* Of the current collective. */
    epw_flow out, in;
    bool tells; /* nothing goes to the peer, so that it is to be told by EPW_CARRY_NOTHING what this rank
                   calls */
    bool missing;

    struct epw_point *point; /* see point.c */
} epw_coll_peer;

/* The fold of a reduction, at the rank that owns the result. */
typedef struct epw_fold {
    bool on;
    bool behind_out; /* in place, and all input is folded here: fold only after the input was written for the
                        others */
    bool lacks;      /* no result, because rank `voids` is missing */
    uint32_t voids;
    uint32_t type, op;
    uint64_t bytes, done;
    epw_run own, out; /* this rank's own input, and the result */
} epw_fold;

/* One call: it ends when all its operations have ended. */
typedef struct epw_job {
    epw_work id;
    uint32_t left;         /* operations that have not ended */
    bool waits;            /* its caller waits, and so cannot drop it */
    epw_status status;     /* EPW_OK, or the first failure */
    epw_descriptor longer; /* EPW_ERR_LIMIT: the message, the rank that sent it, and the elements of `recv` */
    uint32_t sender;
    uint64_t room;
    uint64_t deadline_ns;
    epw_outcome outcome;
    struct epw_job *next;
} epw_job;

/* An operation that waits for its turn, or is the current one. */
typedef struct epw_op {
    epw_coll call;                /* its counts and offsets are copies */
    uint64_t *arrays;             /* the memory of these copies */
    epw_job *job;                 /* NULL: the job was dropped and freed */
    epw_run local_from, local_to; /* what this rank gives itself */
    uint64_t local_bytes, local_done;
    epw_norm norm; /* call.norm points here, or is NULL */
    uint64_t normed;
    struct epw_op *next;
} epw_op;

struct epw_comm {
    epw_comm_config config;
    epw_coll_layout layout;
    epw_peers peers;
    const epw_numerics *numerics;
    const epw_sums *sums;
    pthread_mutex_t lock; /* guards everything below; held for a step at a time, never while sleeping */

    epw_coll_peer *of; /* [ranks] */
    uint64_t own_word; /* the current epoch; 0: none */
    uint32_t members;
    uint64_t suspicions;      /* the floor's count of suspicions, as last read */
    unsigned char secret[16]; /* of the greeting */
    uint64_t pull_from;       /* peers read pieces from this size on by process_vm_readv */

    /* The state of the wait. */
    uint32_t beacon;
    bool beaconed;
    bool waiting;
    uint64_t rested;     /* since when nothing could be done although peers are awaited; 0: something can */
    bool held;           /* a word has arrived that may not be used before what was posted has been sent */
    uint64_t look_again; /* when the next step is due even if nobody rings */
    uint64_t moved;      /* when a step last moved something */
    uint64_t stepped;    /* when the last step ended */
    bool mismatched;     /* ranks have called different operations: this epoch is over */
    epw_mismatch mismatch;

    /* The first of the queue is the current collective, if `running`. */
    epw_op *queue, **queue_end;
    bool running;
    uint32_t calls; /* collectives begun in this epoch */
    epw_descriptor now,
        before;     /* the last of them, and the one before it; without a count if blocks are uneven */
    bool streams;   /* larger than the caches: use streaming stores */
    bool exchanges; /* in place, and blocks are exchanged: a peer's block is written only after this rank's
                       has been sent */
    epw_fold fold;
    bool pointing;                 /* a send or receive is under way, or a peer is still to be told of one */
    epw_error_record record;       /* of the collective */
    epw_error_record point_record; /* of the member that was given up last */
    const void **rows;             /* [ranks] */
    unsigned char *scratch;        /* [ranks][scratch_bytes] input of the fold, read from peers' memory */
    uint64_t scratch_bytes;

    epw_job *jobs;
    epw_work next_work;
    bool faulted;                   /* an operation that has ended was incomplete, or was dropped */
    epw_registration registrations; /* made so far; on a GPU gpu counts them */

    struct epw_coll_gpu
        *gpu; /* see gpu/gpu.h; NULL: windows are host memory, and the fields above are used */

    struct epw_heap_piece *heap; /* the pieces, see heap.c */
    pthread_mutex_t heap_lock;
};

static inline epw_where epw_comm_where(const epw_comm *comm, const char *op) {
    return (epw_where){op, (int)comm->config.rank, -1};
}

/* EPW_ERR_INVALID for NULL: of the communicator, and of an argument with this name too. */
epw_status epw_comm_check(const epw_comm *comm, const char *op);
epw_status epw_comm_check_given(const epw_comm *comm, const char *op, const char *name, const void *given);

#define EPW_COMM_PEERS(p, comm)                                                                              \
    for (epw_coll_peer *p = (comm)->of, *end_##p = p + (comm)->layout.ranks; p < end_##p; p++)

static inline uint32_t epw_coll_rank(const epw_comm *comm, const epw_coll_peer *p) {
    return (uint32_t)(p - comm->of);
}

static inline bool epw_coll_is_me(const epw_comm *comm, const epw_coll_peer *p) {
    return p == &comm->of[comm->config.rank];
}

/* Whether the peer takes part in operations that begin now: it is a member, and has not been given up. */
static inline bool epw_coll_present(const epw_coll_peer *p) {
    return p->member && !p->suspected;
}

/* The other ranks that do. */
#define EPW_COMM_OTHERS(p, comm) EPW_COMM_PEERS(p, comm) if (epw_coll_present(p) && !epw_coll_is_me(comm, p))

/* ---- call.c ---- */

const char *epw_kind_name(uint32_t kind);

static inline bool epw_comm_has_root(uint32_t kind) {
    return kind == EPW_BROADCAST || kind == EPW_REDUCE || kind == EPW_GATHER || kind == EPW_SCATTER;
}

/* A call in words, for example "all_reduce of 1024 bf16 (sum)". */
enum { EPW_CALL_TEXT = 128 };
const char *epw_descriptor_text(const epw_descriptor *what, char *text);
epw_descriptor epw_descriptor_of(const epw_coll *call, uint64_t pair_count);

/* Frees this operation and those after it. */
void epw_ops_free(epw_op *first);

/* ---- program.c ---- */

/* Begins the first of the queue: sets the flows, the fold, and what this rank gives itself. False: no memory
 * for what the fold reads. */
bool epw_program_begin(epw_comm *comm, epw_op *op);

/* ---- flow.c ---- */

/* One turn: writes what can be written for each peer, and reads a piece of what has arrived. True if anything
 * has moved. */
bool epw_flows_move(epw_comm *comm, epw_op *op, uint64_t now);

/* Whether the peer's part is over: nothing is to be written or read, and it reads nothing of the caller's
 * memory. */
bool epw_flow_over(const epw_coll_peer *p);

/* If nothing more is expected of the peer in the current collective, reports a mismatch if it has sent
 * something all the same, or says that it calls something else. */
void epw_flow_check_unexpected(epw_comm *comm, const epw_op *op, epw_coll_peer *p, uint64_t now);

/* Ends what comes from the peer; `voids` is the rank that is missing. */
void epw_flow_void(epw_comm *comm, epw_coll_peer *p, uint32_t voids);

/* Tells peers which messages were written for them, and which of theirs were consumed. */
void epw_rings_post(epw_comm *comm, uint64_t now);

/* Reads `bytes` of the peer's memory; false: it can no longer be read. */
bool epw_pull(const epw_coll_peer *p, void *to, uint64_t address, uint64_t bytes);

/* How these bytes go to the peer: EPW_CARRY_INLINE, or by a read from *address. */
uint32_t epw_carry_of(const epw_comm *comm, const epw_coll_peer *p, const void *from, uint64_t bytes,
                      uint64_t *address);

/* Whether the bytes can lie where the message says. */
bool epw_may_borrow(const epw_comm *comm, const epw_coll_peer *p, const epw_message *m);

/* Reads the bytes that a message by PULL or HEAP names. False: the loan has ended, or the read failed, and
 * `to` is undefined. */
bool epw_read_borrowed(epw_comm *comm, epw_coll_peer *p, uint32_t carry, void *to, uint64_t address,
                       uint64_t bytes);

/* The slot of message `number` for the peer. */
epw_message *epw_slot_for(epw_comm *comm, epw_coll_peer *p, uint32_t channel, uint64_t number);

/* Copies, by streaming stores if that pays. */
void epw_coll_copy(const epw_comm *comm, void *to, const void *from, uint64_t bytes);

/* ---- mismatch.c ---- */

/* The peer's next message is not of the current collective, `own`: tells all members. */
void epw_comm_mismatch(epw_comm *comm, epw_coll_peer *p, const epw_descriptor *own, uint64_t now);

/* The peer's message has the tag of this receive, `own`, and another type: tells all members. */
void epw_comm_mismatched_message(epw_comm *comm, epw_coll_peer *from, const epw_descriptor *own,
                                 const epw_descriptor *sent, uint64_t now);

/* Whether this rank or a peer has found a mismatch. */
bool epw_comm_heed_mismatch(epw_comm *comm);

epw_status epw_comm_fail_mismatch(const epw_comm *comm, epw_where where);

/* ---- drive.c ---- */

/* Advances all operations, with the lock held. True: something has moved. *time: the time, at the begin and
 * at the end of the step; *until: when to look again even if nobody rings. */
bool epw_comm_step(epw_comm *comm, uint64_t *time, uint64_t *until);

/* Whether the peer has begun the epoch on every channel, and has received what this rank posted in the
 * previous one. */
bool epw_comm_has_begun(epw_comm *comm, const epw_coll_peer *p);

/* One of a job's operations has ended. */
void epw_comm_end_of_job(epw_comm *comm, epw_job *job);

/* Ends the loans of the current collective: the caller may write its memory again. */
void epw_comm_take_back(epw_comm *comm, uint64_t now);

/* From now on something is awaited from the peer. */
void epw_comm_wait_begins(epw_coll_peer *p, uint64_t now);

epw_job *epw_comm_find(epw_comm *comm, epw_work work);

/* The look of epw_awaited at a work of a communicator. */
void epw_comm_look(epw_awaited *self, bool sleeps, uint64_t now);

/* Gives up a member. */
void epw_comm_lose(epw_comm *comm, epw_coll_peer *p, uint32_t phase, uint32_t cause, uint64_t expected,
                   uint64_t seen, uint64_t now);

/* The reason why a member that was given up earlier is missing; cause EPW_CAUSE_NONE: it was not. */
epw_error_record epw_comm_suspected(const epw_comm *comm, const epw_coll_peer *p, uint32_t phase);

/* Begins a membership; tells the peer that this rank gives it up. With the lock held. */
void epw_comm_begin_epoch(epw_comm *comm, const epw_mask *active, uint64_t epoch_word);
void epw_comm_part(epw_comm *comm, uint32_t peer);

/* Tells all peers not to wait for this rank any longer, as epw_comm_destroy does, which may come much later:
 * its owner makes no more calls, and keeps memory of the window. On a GPU, where kernels may still run, it
 * does nothing. */
void epw_comm_leave(epw_comm *comm);

/* epw_comm_destroy, as epw_buffer_try_destroy. */
bool epw_comm_try_destroy(epw_comm *comm);

/* Waits for the job, from `began`, which is now, and frees it if it has ended; otherwise EPW_PENDING. */
epw_status epw_comm_wait(epw_comm *comm, epw_job *job, uint64_t began, uint64_t timeout_ns,
                         epw_outcome *outcome);

#endif
