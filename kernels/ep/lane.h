/* The state of a dispatch and combine lane between kernels, shared by host C and CUDA: one epw_gpu_lane_state per lane in device
 * memory, beside its epw_gpu_peers. Kernels are given its address. */
#ifndef EPW_KERNELS_EP_LANE_H
#define EPW_KERNELS_EP_LANE_H

#include "kernels/peer/context.h"

#include "base/gpu.h"
#include "ep/layout.h"
#include "ep/report.h"

#include <assert.h>
#include <stdalign.h>

static_assert(EPW_GPU_PEERS == EPW_GPU_MAX_RANKS, "what the floor holds of a group, and what a plan may ask for");

#define EPW_GPU_BLOCKS 256 /* the most blocks of a kernel */
#define EPW_GPU_FEW    96  /* kernels with fewer blocks have many tokens for each; with more, they fill the wire by a row each */
#define EPW_GPU_LEADS  (UINT32_C(1) << 31) /* in arrays.index: the token's first entry for its rank */
#define EPW_GPU_PARTS  16                  /* the most parts of the answers after which a combine tells its progress */

/* The stage of a lane. An operation that finds another stage than it needs does nothing but put a record (EPW_CAUSE_HELD). */
enum {
    EPW_GPU_FREE = 0,
    EPW_GPU_SENT = 1,       /* a dispatch has sent */
    EPW_GPU_DISPATCHED = 2, /* and received */
    EPW_GPU_ANSWERED = 3    /* a combine has sent */
};

/* How the lane's last half of an operation ended, in device memory. Written only by closing blocks: as long as nothing is
 * missing, it already says so. */
typedef struct epw_gpu_report {
    epw_rank_set missing;    /* the same as the lane's */
    epw_error_record record; /* cause EPW_CAUSE_NONE: complete */
} epw_gpu_report;

/* Memory of a lane at addresses that never change: kernels are given them. */
typedef struct epw_gpu_arrays {
    /* For each source rank and local expert: where the source's rows begin in the expert's list. [ranks][local_experts] */
    uint32_t *first_row;
    /* What the last block of a dispatch has added to the caller's expert_totals. [local_experts] */
    uint32_t *added;
    /* For this rank's tokens, [max_tokens][config.topk]: valid expert ids (else -1), weights, and row numbers at the experts'
     * ranks. */
    int32_t *ids;
    float *weights;
    uint32_t *sent_row;
    /* For the same tokens, where blocks have many of them: numbers in the experts' lists, with EPW_GPU_LEADS. */
    uint32_t *index;
    /* What each block has counted of its own tokens, by expert and by rank: see kernels/ep/runs.cuh. [EPW_GPU_FEW] */
    uint32_t *counted;
    epw_gpu_report *report;
} epw_gpu_arrays;

/* The state of a lane between two kernels, as one of their blocks sees it. Each block reads its own turn and writes it for the
 * next kernel, so no block waits for the others to have read theirs: all turns of a lane hold the same. Only after trouble does
 * one block wait for the others and set all turns; see lane.cuh. */
typedef struct epw_gpu_turn {
    alignas(16) uint32_t stage; /* EPW_GPU_* */
    uint32_t op;                /* operation in flight, or the last one; 0 after set_active */
    uint32_t wrapped;           /* op has wrapped around its 24 bits in this epoch */
    uint32_t reserved;
    uint64_t sent, out;   /* values of sent_blocks and out_blocks */
    epw_rank_set present; /* peers that take part in the handle: sent to and, once DISPATCHED, received from */
} epw_gpu_turn;

/* A sum to which an operation adds once, though several of its blocks may do so: see add_once in lane.cuh. */
typedef struct epw_gpu_sum {
    alignas(16) uint64_t sum;
    uint64_t last; /* what the last operation has added: its number, as a word, with a value by which the sum's unit was
                    * multiplied */
} epw_gpu_sum;

/* What a lane has moved since creation, by peer. Writer: kernels of the lane, one at a time. Reader: copies to the host, at any
 * time. */
typedef struct epw_gpu_traffic {
    epw_gpu_sum dispatches, combines; /* that have ended */
    epw_gpu_sum rows_received[EPW_GPU_PEERS], bytes_received[EPW_GPU_PEERS], answers_received[EPW_GPU_PEERS];
    uint64_t rows_sent[EPW_GPU_PEERS], bytes_sent[EPW_GPU_PEERS], answers_sent[EPW_GPU_PEERS];
} epw_gpu_traffic;

/* Bytes of what a block counts: 16 bits for each expert and each rank. */
EPW_INLINE uint32_t epw_gpu_counted_bytes(uint32_t experts, uint32_t ranks) {
    return ((experts + ranks) * (uint32_t)sizeof(uint16_t) + 15) & ~15u;
}

typedef struct epw_gpu_lane_state {
    epw_gpu_turn turns[EPW_GPU_BLOCKS];

    /* Fixed at creation. */
    uint32_t blocks;  /* of every dispatch and combine kernel of the lane, at most */
    uint32_t ordered; /* config.ordered: combine words carry EPW_ANSWER_ORDERED */

    /* Written only by closing blocks. A dispatch that finds `missing` set is closed by a block. */
    epw_rank_set excluded; /* suspects known when the lane's last kernel ended: the next kernel leaves them out */
    epw_rank_set missing;  /* active peers that do not take part in the handle, or have sent what they must not */
    uint32_t received[EPW_GPU_PEERS];
    uint32_t ends[EPW_GPU_PEERS]; /* prefix sums of rows received, in the order of sources, see source_at */
    uint64_t sent[EPW_GPU_PEERS]; /* the dispatch words posted */
    /* With config.ordered: how many answers the rows received from each source get in order, and those sent to each peer. */
    uint32_t owed[EPW_GPU_PEERS], due[EPW_GPU_PEERS];

    /* For peers behind queues: the operation whose counts are in this rank's window, or being copied there; see land_head. */
    uint64_t landed[EPW_GPU_PEERS];

    /* Numbers of blocks that have sent, and that are out, since creation: 48 bits. The bits above them in `sent_blocks` count
     * kGaveUp: once for each sending block that gave a peer up, and once for each closing block that shut out blocks which had
     * not begun. */
    uint64_t sent_blocks, out_blocks;
    uint64_t unrecorded; /* bad routing ids that found no room in the ring, since creation */

    /* The value that out_blocks reaches at the end of the last kernel with a block in trouble: the block that raises it first is
     * the closing block. */
    uint64_t closed;
    /* The value that out_blocks reaches at the end of the last kernel for which arrays.added holds. */
    uint64_t added_at;

    /* Writer: a block of a dispatch, when arrays.counted has what it has counted, and when its tokens are numbered: sent_before +
     * 1 of the kernel. Reader: the kernel's other blocks. */
    uint64_t counted[EPW_GPU_FEW], numbered[EPW_GPU_FEW];
    /* For each block, how many of its tokens have been taken to be sent, by it or by others. The block sets it before `numbered`.
     */
    uint32_t taken[EPW_GPU_FEW];

    /* State of one kernel, changed by atomics of its blocks; zero between kernels. */
    uint32_t troubled;      /* blocks in trouble so far */
    uint32_t noted;         /* bad routing ids found; the first EPW_GPU_NOTES of them are recorded */
    epw_rank_set malformed; /* peers with a malformed row, found only by the block that handles the row */

    /* Of a combine with many rank-major rows: see kernels/ep/combine_many.cuh. Changed by atomics of its blocks; zeroed by the
     * dispatch before. */
    uint32_t answers_taken, sums_taken; /* how many are, by any block */
    uint32_t sent_parts[EPW_GPU_PARTS]; /* rows that have been sent of each part of the answers */

    /* Writer: kernels that leave something incomplete. Reader: the next checkpoint, which clears it. */
    uint32_t faulted;
    uint64_t report; /* lane 0: the last report posted, see ep/report.h */

    epw_gpu_traffic traffic;
} epw_gpu_lane_state;

#endif
