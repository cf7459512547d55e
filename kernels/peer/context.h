/* What kernels know of a group, seen by host C and CUDA: one epw_gpu_peers per lane in device memory. It knows neither tokens nor
 * experts. Kernels take its address; everything that may change between the replays of a graph is read from it at run time.
 *
 * Writers: the host, while no kernel of the lane runs (c/peer/gpu.c: creation, connect); the kernels of membership.cu, in stream
 * order; and the lane's own kernels. */
#ifndef EPW_KERNELS_PEER_CONTEXT_H
#define EPW_KERNELS_PEER_CONTEXT_H

#include "kernels/peer/rank_set.h"
#include "kernels/peer/way.h"
#include "peer/words.h"

#define EPW_GPU_RECORDS 256

/* Error records, in mapped host memory. Writer of slot n % EPW_GPU_RECORDS: the kernel that drew number n; it clears
 * `sequence`, writes the record, then stores n + 1. Reader: epw_take_errors, which reads `sequence` on both sides of the
 * record. */
typedef struct epw_gpu_ring {
    struct {
        uint64_t sequence;
        epw_error_record record;
    } slots[EPW_GPU_RECORDS];
    uint64_t unrecorded[EPW_MAX_LANES]; /* notes that no record was made of, ever. Writer: the lane's closing block */
} epw_gpu_ring;

/* What the lanes of a buffer share, in device memory. */
typedef struct epw_gpu_shared {
    epw_rank_set suspects; /* peers given up in this epoch */
    epw_rank_set silent;   /* those of them that were silent for a deadline; set before */
    uint64_t records;      /* numbers drawn for the ring */
    /* Mapped host memory: peers that the group goes on without. Writer: the host, at any time. Reader: long waits. */
    const epw_rank_set *revoked;
    /* Mapped host memory, [EPW_MAX_LANES]: the first two as each lane last saw them; the host reads their union. */
    epw_rank_set *suspects_host, *silent_host;
    epw_gpu_ring *ring; /* mapped host memory */
} epw_gpu_shared;

/* What waits of a lane have heard of a peer, ever: each goes on from there. Writers: threads that wait for it. */
typedef struct epw_gpu_heard {
    uint64_t clock;                  /* when a beacon was new, by globaltimer; set before */
    uint64_t beacons[EPW_MAX_LANES]; /* the last ones */
} epw_gpu_heard;

typedef struct epw_gpu_peers {
    /* Fixed at creation. */
    epw_gpu_shared *shared;
    uint32_t lane, lanes;

    /* The peer table: where offset 0 of a peer's window would be if it held that area alone; 0: the peer cannot be reached. A
     * mapped window is in one piece, so its three entries are the same. */
    uint64_t table[EPW_AREAS][EPW_GPU_PEERS];
    /* Of peers behind queues the table names images, and what is there is posted: who they are, and how. */
    epw_rank_set queued;
    epw_gpu_way *ways;              /* [EPW_GPU_PEERS] */
    uint32_t brings[EPW_GPU_PEERS]; /* a thread brings words from the inbox into the window: see words.cuh */
    const epw_rank_set *broken;     /* mapped host memory: those whose connections are gone. Writer: the NIC */

    /* Membership. */
    uint64_t epoch_word; /* that this rank has posted on the lane, and that members have posted too; 0: no membership yet */
    epw_rank_set active;
    uint64_t deadline_ns;

    uint32_t beacon; /* running number of the lane's beacons */
    uint64_t spoke;  /* when the last kernel that only sends had sent, by globaltimer */
    epw_gpu_heard heard[EPW_GPU_PEERS];

    /* Within a kernel, by atomics of its blocks; zero between kernels. */
    uint32_t recorded;   /* `record` is taken */
    uint32_t lengthened; /* of this call or a peer's that is awaited, as beacons say it */
    epw_rank_set gone;   /* peers given up */
    struct {
        uint64_t began;      /* by globaltimer, of the first block that had to wait long; 0: none yet */
        uint64_t beacons;    /* posted so far */
    } waits[2];              /* for permission; for what peers send */
    epw_error_record record; /* of the first peer lost */
    uint64_t waited[EPW_GPU_PEERS];
} epw_gpu_peers;

#endif
