/* What kernels know of their buffer, seen by host C and CUDA: one epw_gpu_context per lane in device memory. Kernels take its
 * address; everything that may change between the replays of a graph is read from it at run time.
 *
 * Writers: the host, while no kernel of the lane runs (creation, connect); the membership kernel, in stream order; and the
 * lane's own kernels, whose blocks leave their turns to the next one. */
#ifndef EPW_KERNELS_CONTEXT_H
#define EPW_KERNELS_CONTEXT_H

#include "ep/layout.h"

#define EPW_GPU_RECORDS 256
#define EPW_GPU_BLOCKS  256           /* of a kernel, at most */
#define EPW_GPU_NOTES   64            /* of bad ids, by one operation: so few that no two writers are in one slot of the ring */
#define EPW_GPU_SHARE   (114u * 1024) /* of an SM's shared memory, the bytes that a block takes at most */

/* What a lane is doing. Operations that find it otherwise do nothing but leave a record (EPW_CAUSE_HELD). */
enum {
    EPW_GPU_FREE = 0,
    EPW_GPU_SENT = 1,       /* a dispatch has sent */
    EPW_GPU_DISPATCHED = 2, /* and received */
    EPW_GPU_ANSWERED = 3    /* a combine has sent */
};

/* How a lane's last half ended. In device memory; written by its first block, or by the one that closes. */
typedef struct epw_gpu_report {
    uint64_t missing;
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
} epw_gpu_arrays;

/* Error records, in mapped host memory. Writer of slot n % EPW_GPU_RECORDS: the kernel that drew number n; it clears
 * `sequence`, writes the record, then stores n + 1. Reader: epw_take_errors, which reads `sequence` on both sides of the
 * record. */
typedef struct epw_gpu_ring {
    struct {
        uint64_t sequence;
        epw_error_record record;
    } slots[EPW_GPU_RECORDS];
    uint64_t unrecorded[EPW_MAX_LANES]; /* notes beyond EPW_GPU_NOTES, ever. Writer: the lane's closing block */
} epw_gpu_ring;

/* What the lanes of a buffer share, in device memory. */
typedef struct epw_gpu_shared {
    uint64_t suspects; /* peers given up in this epoch */
    uint64_t records;  /* numbers drawn for the ring */
    uint64_t
        *suspects_host; /* mapped host memory, [EPW_MAX_LANES]: the same as each lane last saw it; the host reads their union */
    epw_gpu_ring *ring; /* mapped host memory */
} epw_gpu_shared;

/* Where a lane stands between two kernels, for one of their blocks. Each block reads its own turn and leaves it as the next
 * kernel shall find it, so that no block waits until the others have read theirs: the turns of a lane are all alike. Only where
 * something has gone wrong does one block wait for the others and set all turns right; see lane.cuh. */
typedef struct epw_gpu_turn {
    uint32_t stage;   /* EPW_GPU_* */
    uint32_t op;      /* of the operation in flight, or the last one; 0 after set_active */
    uint32_t wrapped; /* op has passed its 24 bits in this epoch */
    uint32_t reserved;
    uint64_t present;   /* peers that take part in the handle: sent to, and once DISPATCHED received from */
    uint64_t missing;   /* active peers that do not take part in the handle, or whose rows were refused */
    uint64_t sent, out; /* what the counters of the context stood at */
    uint64_t reserved_too[2];
} epw_gpu_turn;

typedef struct epw_gpu_context {
    epw_gpu_turn turns[EPW_GPU_BLOCKS];

    /* Fixed at creation. */
    epw_gpu_shared *shared;
    uint32_t blocks; /* of every dispatch and combine kernel of the lane */
    uint32_t lane, lanes;
    uint32_t ordered; /* config.ordered: combine words carry EPW_ANSWER_ORDERED */

    /* The peer table: each peer's window as mapped on this GPU, NULL where there is none. */
    unsigned char *window[EPW_GPU_MAX_RANKS];

    /* Membership. */
    uint32_t epoch;
    uint64_t active;
    uint64_t deadline_ns;

    /* The lane between kernels. */
    uint32_t beacon;   /* running number of the lane's beacons */
    uint64_t excluded; /* suspects that the lane knew when its last kernel ended: its next dispatch begins without them */
    uint32_t received[EPW_GPU_MAX_RANKS];
    uint32_t ends[EPW_GPU_MAX_RANKS]; /* rows received from the ranks after this one, in turn, up to each; itself comes last */
    uint64_t sent[EPW_GPU_MAX_RANKS]; /* the dispatch words posted */

    /* Blocks that have sent, and that are done, ever: 48 bits, and above them in `sent` those that had given somebody up. */
    uint64_t sent_blocks, out_blocks;
    uint64_t spoke;      /* when the last kernel that only sends had sent, by globaltimer */
    uint64_t unrecorded; /* bad routing ids that found no room in the ring, ever */

    /* Within a kernel, by atomics of its blocks; zero between kernels. */
    uint32_t closing;    /* a block has taken it on itself to close the operation for all */
    uint32_t noted;      /* bad routing ids put on record, and then some */
    uint32_t recorded;   /* `record` is taken */
    uint64_t gone;       /* peers given up */
    uint64_t refused;    /* peers whose rows or answers are not what this rank asked for */
    uint32_t lengthened; /* of this call or a peer's that is awaited, as beacons say it */
    struct {
        uint64_t began;      /* by globaltimer, of the first block that had to wait long; 0: none yet */
        uint64_t beacons;    /* posted so far */
    } waits[2];              /* for permission; for rows or answers */
    epw_error_record record; /* of the first peer lost */
    uint64_t waited[EPW_GPU_MAX_RANKS];
} epw_gpu_context;

#endif
