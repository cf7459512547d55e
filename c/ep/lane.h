/* A lane as a pure state machine: the stages of its operation, its waits with their deadlines, its suspects,
 * and the words that it still owes peers for operations that were given up. Its inputs are calls, peers'
 * words as they are seen, the time, and work that is done; its outputs are decisions: post this word, send
 * rows to these peers, lay out that source, sleep. It accesses no window, reads no clock and takes no lock.
 * The host engine (host/drive.c) carries the decisions out, and the explorer in tests runs the same code.
 * Kernels share the rules and the words.
 *
 * One step of its driver:
 *     for every peer that epw_lane_awaits: load its words, epw_lane_see
 *     epw_lane_decide, carry out, epw_lane_did, again, until it says SLEEP or DONE
 *
 * Decisions are addressed to an incarnation of a peer, not just to a rank: the driver checks that the peer is
 * still that incarnation. */
#ifndef EPW_EP_LANE_H
#define EPW_EP_LANE_H

#include "ep/layout.h"
#include "peer/wait.h"

/* What a lane is doing, in this order; on a GPU, what has been enqueued for it. In SENT, DISPATCHED and
 * ANSWERED it is the caller's turn: to receive, to combine, to receive the answers. An unsplit call does not
 * stop at SENT or ANSWERED. */
typedef enum epw_stage {
    EPW_STAGE_FREE,
    EPW_STAGE_SENDING,    /* dispatch: rows are sent as permissions come */
    EPW_STAGE_SENT,       /* idle: dispatch has sent */
    EPW_STAGE_RECEIVING,  /* dispatch: rows come in */
    EPW_STAGE_DISPATCHED, /* idle: dispatch has ended */
    EPW_STAGE_ANSWERING,  /* combine: answers go out */
    EPW_STAGE_ANSWERED,   /* idle: combine has sent */
    EPW_STAGE_COLLECTING, /* combine: answers come in */
    EPW_STAGE_ANY         /* for epw_lane_find: any but FREE */
} epw_stage;

/* A peer's part in the lane's operation, and what an earlier operation that was given up still owes it. */
typedef struct epw_lane_peer {
    uint64_t incarnation; /* the incarnation for which decisions about it are meant; 0: it is not connected */
    bool member;          /* of this epoch */
    epw_clock clock;      /* in the wait of the call */
    epw_clock debt_clock; /* in the wait of the debt */
    uint64_t waited_ns;   /* the time until it settled, in the last wait of a call */
    uint32_t sent;        /* rows of this operation for it, set by the caller */
    uint32_t received;    /* rows of this operation from it; 0 if they were refused */
    uint8_t posts;        /* words to be posted to it: bits EPW_POST_* */
    uint8_t part;         /* in the operation: bits EPW_PART_* */
    uint8_t owed;         /* for operations given up: bits EPW_OWED_* */
    bool suspected;       /* given up in this epoch, by any lane */
    bool revoked;         /* the group continues without it */
    bool silent;          /* given up by this lane because it was silent for a deadline */
    bool told;            /* this lane has posted DROPPED to it, or will */
} epw_lane_peer;

enum {
    EPW_PART_AWAITED = 1,  /* the current wait is not over for it */
    EPW_PART_READY = 2,    /* SENDING: rows may be written for it */
    EPW_PART_PRESENT = 4,  /* its rows have arrived: it is answered, and answers */
    EPW_PART_ANSWERED = 8, /* its answers have arrived and count */
    EPW_PART_MISSING = 16  /* it was given up, or what it sent was refused */
};
enum {
    EPW_OWED_ROWS = 1,  /* a dispatch word with no rows */
    EPW_OWED_ANSWER = 2 /* a combine word with no rows, once its dispatch word has arrived */
};
enum {
    EPW_POST_EPOCH = 1,
    EPW_POST_DISPATCH = 2,
    EPW_POST_COMBINE = 4,
    EPW_POST_DEBT_DISPATCH = 8,
    EPW_POST_DEBT_COMBINE = 16,
    EPW_POST_BEACON = 32,
    EPW_POST_DROPPED = 64
};

typedef struct epw_machine {
    /* Fixed. */
    uint32_t rank, ranks, lanes, lane;
    bool ordered;      /* combine words carry EPW_ANSWER_ORDERED */
    uint64_t group_ns; /* the group's deadline */
    epw_lane_peer *peers;

    /* State of the lane beyond one operation. */
    uint32_t epoch;  /* 0: no membership yet */
    uint64_t step;   /* at which it began */
    uint32_t op;     /* of the operation in flight, or the last one; 0 after the epoch began */
    bool first;      /* op is the lane's first of this epoch */
    bool wrapped;    /* op has passed its 24 bits in this epoch */
    uint64_t spoke;  /* when it last posted a word to its peers */
    uint32_t beacon; /* running number of its beacons */
    bool beaconed;   /* peers have a beacon of this rank that it must withdraw */
    uint32_t posts;  /* peers with words to be posted, and the first to look at for one */
    uint32_t post_at;
    uint32_t said; /* the value of the beacons to be posted */

    /* The operation. */
    epw_stage stage;
    uint64_t deadline_ns;
    bool receives; /* dispatch or combine continues to receive without stopping */
    uint32_t mode; /* EPW_COMBINE_* */
    uint32_t next; /* SENDING: how often rows have been sent. RECEIVING: sources below it are laid out.
                      ANSWERING: how many peers have been answered */
    epw_wait wait;
    bool copies;          /* rows have been laid out in this step */
    uint64_t waited_till; /* until then it did nothing but wait */
    epw_error_record record;

    /* Operations that were given up. */
    bool paying;
    uint32_t debt_op;
    bool debt_first;       /* the oldest was the lane's first operation of the epoch */
    uint32_t debt_more;    /* later operations that were given up and have sent nothing yet */
    uint64_t debt_more_ns; /* the longest of their deadlines */
    epw_wait debt_wait;
} epw_machine;

/* ---- decisions, for the driver to carry out ---- */

typedef enum epw_act {
    EPW_ACT_POST, /* store `value` as word `word` of this lane at `peer`. DROPPED: the peer is now a suspect
                     on all lanes. DISPATCH and COMBINE: after the rows that SEND and ANSWER have written */
    EPW_ACT_SEND, /* write the rows of all peers that are EPW_PART_READY; then epw_lane_did */
    EPW_ACT_LAY_OUT, /* lay out what source `peer` has sent, nothing if its `received` is 0; then
                        epw_lane_did, or epw_lane_refuse if it is not what was asked for */
    EPW_ACT_ANSWER,  /* write the answers to the rows of `peer`; then epw_lane_did */
    EPW_ACT_SUM,     /* sum the answers of all that are EPW_PART_ANSWERED; then epw_lane_did */
    EPW_ACT_SLEEP,   /* nothing can be done before a word changes, or `until` */
    EPW_ACT_DONE     /* nothing is left to do without another call */
} epw_act;

typedef struct epw_decision {
    epw_act act;
    uint32_t peer;
    uint64_t incarnation; /* of that peer */
    uint32_t word;        /* EPW_WORD_* */
    uint64_t value;
    uint64_t until;
    bool silent; /* DROPPED: it was silent for a deadline */
} epw_decision;

/* ---- membership ---- */

void epw_lane_init(epw_machine *m);

/* A membership begins, with no operation in flight: nothing is owed any more, and nobody is suspected.
 * `epoch_word`: posted to all connected ranks, see epw_epoch_word. `incarnations` [ranks]: of all connected
 * ranks, this one included, else 0. `members`: the ranks that belong to it. Others get the epoch word as
 * well: it tells a former member that it is no longer one. */
void epw_lane_begin_epoch(epw_machine *m, uint64_t epoch_word, const uint64_t *incarnations,
                          const epw_mask *members, uint64_t now);

/* Tells all members that this rank waits for one of them, for at most this long; EPW_BEACON_NONE: for none
 * any more. For waits that are not the machine's own. */
void epw_lane_say_waiting(epw_machine *m, uint32_t peer, uint64_t deadline_ns, uint64_t now);

/* Another lane has given the peer up, or the group continues without it. */
void epw_lane_hear_suspect(epw_machine *m, uint32_t peer, bool revoked);

/* This rank is done with the peer for the rest of the epoch: the peer is told so, and is owed nothing any
 * more. */
void epw_lane_part_with(epw_machine *m, uint32_t peer);

/* ---- calls: in the stage that each needs ---- */

/* Decides who takes part in the next operation: before the first step the caller numbers the rows for those
 * that are EPW_PART_AWAITED, and sets their `sent`. */
void epw_lane_begin_dispatch(epw_machine *m, uint64_t deadline_ns, bool receives, uint64_t now);
void epw_lane_begin_receive(epw_machine *m, uint64_t now);
void epw_lane_begin_combine(epw_machine *m, uint64_t deadline_ns, uint32_t mode, bool receives);
void epw_lane_begin_collect(epw_machine *m, uint64_t now);

/* SENT or ANSWERED: begins the wait of the receiving half in advance, and leaves the rest to it. */
void epw_lane_begin_wait(epw_machine *m, uint64_t now);

/* The operation is given up: from now on the words that it owes are posted, and the lane is free. */
void epw_lane_give_up(epw_machine *m, uint64_t now);

/* ---- steps ---- */

/* The driver looks again, after it has slept or was called. */
void epw_lane_begin_step(epw_machine *m);

/* Whether the lane waits for a word of the peer; *word is which. */
bool epw_lane_awaits(const epw_machine *m, uint32_t peer, uint32_t *word);

/* Passes what was seen of a peer for which epw_lane_awaits is true. */
void epw_lane_see(epw_machine *m, uint32_t peer, const epw_look *seen, uint64_t now);

/* What to do next. */
epw_decision epw_lane_decide(epw_machine *m, uint64_t now);

/* The next word to be posted, if there is one: EPW_ACT_POST, else false. epw_lane_decide gives these first; a
 * thread that finds the lane idle may post them between its owner's steps. */
bool epw_lane_post(epw_machine *m, epw_decision *post);

/* SEND, LAY_OUT, ANSWER or SUM has been carried out. */
void epw_lane_did(epw_machine *m, epw_decision done, uint64_t now);

/* LAY_OUT: what the source has sent is not what was asked for. */
void epw_lane_refuse(epw_machine *m, epw_decision done, uint64_t now);

/* ---- what it knows ---- */

/* Whether it is in the middle of a call. */
bool epw_lane_running(const epw_machine *m);

static inline bool epw_lane_has(const epw_machine *m, uint32_t peer, uint8_t part) {
    return (m->peers[peer].part & part) != 0;
}

/* The peers whose part in the operation has this bit. */
epw_mask epw_lane_set(const epw_machine *m, uint8_t part);

#endif
