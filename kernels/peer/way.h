/* The queue by which kernels of a lane reach a peer that no window is mapped of, seen by host C and CUDA: in
 * device memory but for the ring, which is pinned host memory, where the software NIC fetches it. */
#ifndef EPW_KERNELS_PEER_WAY_H
#define EPW_KERNELS_PEER_WAY_H

#include "nic/queue.h"

/* Writer of all but what moves in the queue: the host, at connect, when no kernel of the lane uses it. */
typedef struct epw_gpu_way {
    epw_queue queue;
    epw_key its;    /* of what this rank may write in the peer's window, by offset */
    epw_key own;    /* of this rank's images, by offset */
    uint64_t image; /* where offset 0 of those is in memory */
} epw_gpu_way;

#endif
