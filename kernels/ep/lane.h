/* A lane of dispatch and combine as its kernels leave it for the next ones, seen by host C and CUDA: one epw_gpu_lane_state per
 * lane in device memory, beside its epw_gpu_peers. Kernels take its address. */
#ifndef EPW_KERNELS_EP_LANE_H
#define EPW_KERNELS_EP_LANE_H

#include "kernels/peer/context.h"

#include "base/gpu.h"
#include "ep/layout.h"
#include "ep/report.h"

#include <assert.h>
#include <stdalign.h>

static_assert(EPW_GPU_PEERS == EPW_GPU_MAX_RANKS, "what the floor holds of a group, and what a plan may ask for");

#define EPW_GPU_BLOCKS 256 /* of a kernel, at most */
#define EPW_GPU_NOTES  64  /* of bad ids, by one operation: so few that no two writers are in one slot of the ring */

/* What a lane is doing. Operations that find it otherwise do nothing but leave a record (EPW_CAUSE_HELD). */
enum {
    EPW_GPU_FREE = 0,
    EPW_GPU_SENT = 1,       /* a dispatch has sent */
    EPW_GPU_DISPATCHED = 2, /* and received */
    EPW_GPU_ANSWERED = 3    /* a combine has sent */
};

/* How a lane's last half ended. In device memory; written by a block that closes, and by no other: where all goes well it says so
 * already. */
typedef struct epw_gpu_report {
    epw_rank_set missing;    /* as of the lane */
    epw_error_record record; /* cause EPW_CAUSE_NONE: complete */
} epw_gpu_report;

/* Memory of a lane whose addresses never change: kernels are given them. */
typedef struct epw_gpu_arrays {
    /* Per source rank and local expert: where its rows begin in the expert's list. [ranks][local_experts] */
    uint32_t *first_row;
    /* Own tokens, [max_tokens][config.topk]: valid expert ids (else -1), weights, and rows at the experts' ranks. */
    int32_t *ids;
    float *weights;
    uint32_t *sent_row;
    epw_gpu_report *report;
    /* Answers of the combine in flight that have arrived at each rank, by spans; zero between kernels.
     * [ranks][EPW_SPANS] */
    uint64_t *answered;
} epw_gpu_arrays;

/* Where a lane stands between two kernels, for one of their blocks. Each block reads its own turn and leaves it as the next
 * kernel shall find it, so that no block waits until the others have read theirs: the turns of a lane are all alike. Only where
 * something has gone wrong does one block wait for the others and set all turns right; see lane.cuh. */
typedef struct epw_gpu_turn {
    alignas(16) uint32_t stage; /* EPW_GPU_* */
    uint32_t op;                /* of the operation in flight, or the last one; 0 after set_active */
    uint32_t wrapped;           /* op has passed its 24 bits in this epoch */
    uint32_t reserved;
    uint64_t sent, out;   /* what the lane's counters of blocks stood at */
    epw_rank_set present; /* peers that take part in the handle: sent to, and once DISPATCHED received from */
} epw_gpu_turn;

typedef struct epw_gpu_lane_state {
    epw_gpu_turn turns[EPW_GPU_BLOCKS];

    /* Fixed at creation. */
    uint32_t blocks;  /* of every dispatch and combine kernel of the lane */
    uint32_t ordered; /* config.ordered: combine words carry EPW_ANSWER_ORDERED */

    /* Written by blocks that close, and by no others: a dispatch that finds `missing` set is closed. */
    epw_rank_set excluded; /* suspects that the lane knew when its last kernel ended: the next goes on without them */
    epw_rank_set missing;  /* active peers that do not take part in the handle, or have sent what they must not */
    uint32_t received[EPW_GPU_PEERS];
    uint32_t ends[EPW_GPU_PEERS]; /* rows received up to each place in the order of sources, see source_at */
    uint64_t sent[EPW_GPU_PEERS]; /* the dispatch words posted */

    /* Of peers behind queues: the operation whose counts are in this rank's window by now, or on their way; see land_head. */
    uint64_t landed[EPW_GPU_PEERS];

    /* Blocks that have sent, and that are done, ever: 48 bits. Above them in `sent` how often somebody was given up: peers by a
     * block that sends, or blocks that had not begun by one that closes. */
    uint64_t sent_blocks, out_blocks;
    uint64_t unrecorded; /* bad routing ids that found no room in the ring, ever */

    /* What out_blocks comes to by the end of the last kernel that had a block in trouble: the first that says so here is the one
     * that closes. */
    uint64_t closed;

    /* The same of the last kernel whose expert_totals somebody has undertaken to add: the first that says so. */
    uint64_t undertaken;

    /* Within a kernel, by atomics of its blocks; zero between kernels. */
    uint32_t owed;          /* the block that has undertaken it is in trouble: it falls to the one that closes */
    uint32_t troubled;      /* blocks in trouble, so far */
    uint32_t noted;         /* bad routing ids found; the first EPW_GPU_NOTES of them are put on record */
    epw_rank_set malformed; /* peers of which a single row is not as it must be, which its block alone finds */

    /* Writer: kernels that leave something incomplete. Reader: the next checkpoint, which clears it. */
    uint32_t faulted;
    uint64_t report; /* lane 0: the last one posted, see ep/report.h */
} epw_gpu_lane_state;

#endif
