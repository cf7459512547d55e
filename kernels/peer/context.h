/* What kernels know of a group, shared by host C and CUDA: one epw_gpu_peers per lane in device memory. It knows neither tokens
 * nor experts. Kernels are given its address, and read from it at run time everything that may change between replays of a graph.
 *
 * Writers: the host, at creation, and at connect what belongs to a rank that is no member, of which kernels that run meanwhile
 * read nothing (c/peer/gpu.c); the kernels of membership.cu, in stream order; and the lane's own kernels. */
#ifndef EPW_KERNELS_PEER_CONTEXT_H
#define EPW_KERNELS_PEER_CONTEXT_H

#include "kernels/peer/rank_set.h"
#include "kernels/peer/way.h"
#include "peer/words.h"

#define EPW_GPU_RECORDS 256
#define EPW_GPU_NOTES   64 /* bad ids recorded by one operation: few enough that no two writers share a slot of the ring */

/* Error records, in mapped host memory. Writer of slot n % EPW_GPU_RECORDS: the kernel that drew number n; it clears
 * `sequence`, writes the record, then stores n + 1. Reader: epw_records_take, which reads `sequence` on both sides of the
 * record. */
typedef struct epw_gpu_ring {
    struct {
        uint64_t sequence;
        epw_error_record record;
    } slots[EPW_GPU_RECORDS];
    uint64_t unrecorded[EPW_MAX_LANES]; /* notes without a record, since creation. Writer: the lane's closing block */
} epw_gpu_ring;

/* State that the lanes of a buffer share, in device memory. */
typedef struct epw_gpu_shared {
    epw_rank_set suspects; /* peers given up in this epoch */
    epw_rank_set silent;   /* the suspects that were silent for a whole deadline; inserted here before they are inserted in
                            * `suspects` */
    uint64_t records;      /* record numbers drawn for the ring so far */
    /* Mapped host memory: peers that the group has excluded. Writer: the host, at any time. Reader: long waits. */
    const epw_rank_set *revoked;
    /* Mapped host memory, [EPW_MAX_LANES]: copies of `suspects` and `silent` as each lane last saw them; the host reads their
     * union. */
    epw_rank_set *suspects_host, *silent_host;
    epw_gpu_ring *ring; /* mapped host memory */
} epw_gpu_shared;

/* What a lane's waits have heard of a peer since creation; each wait continues from there. Writers: threads that wait for the
 * peer. */
typedef struct epw_gpu_heard {
    uint64_t clock;                  /* globaltimer when the last new beacon was seen; stored before `beacons` */
    uint64_t beacons[EPW_MAX_LANES]; /* the last beacon seen on each lane */
} epw_gpu_heard;

typedef struct epw_gpu_peers {
    /* Fixed at creation. */
    epw_gpu_shared *shared;
    uint32_t lane, lanes;

    /* The peer table: for each area, the address at which offset 0 of the peer's window would be; 0: the peer cannot be reached.
     * A mapped window is one range of memory, so its three entries are the same. */
    uint64_t table[EPW_AREAS][EPW_GPU_PEERS];
    /* Peers behind queues: for them the table names images, and what is written there must be posted to a queue. */
    epw_rank_set queued;
    epw_gpu_way *ways;              /* [EPW_GPU_PEERS] */
    uint32_t brings[EPW_GPU_PEERS]; /* lock: a thread is copying this peer's words from the inbox to the window, see words.cuh */
    const epw_rank_set *broken;     /* mapped host memory: peers whose connection is lost. Writer: the NIC */

    /* Membership. */
    uint64_t epoch_word; /* the epoch word that this rank, like every member, has posted on the lane; 0: no membership yet */
    epw_rank_set active;
    uint64_t deadline_ns;

    uint32_t beacon; /* running number of the lane's beacons */
    uint64_t spoke;  /* globaltimer when the last send-only kernel had sent */
    epw_gpu_heard heard[EPW_GPU_PEERS];

    /* State of one kernel, changed by atomics of its blocks; zero between kernels. */
    uint32_t recorded;   /* `record` is taken */
    uint32_t lengthened; /* by how much this call's deadline or that of an awaited peer is lengthened, as encoded in beacons */
    epw_rank_set gone;   /* peers given up */
    struct {
        uint64_t began;      /* globaltimer when the first block began a long wait; 0: none has */
        uint64_t beacons;    /* beacons posted so far */
    } waits[2];              /* [0] for permission, [1] for what peers send */
    epw_error_record record; /* of the first peer lost */
    uint64_t waited[EPW_GPU_PEERS];
} epw_gpu_peers;

#endif
