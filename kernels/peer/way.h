/* The queue through which a lane's kernels reach a peer whose window is not mapped, shared by host C and CUDA. It lies in device
 * memory, except for the ring of entries: that is in pinned host memory, where the software NIC fetches it, or on the GPU if an
 * adapter does (EPWIRE_RINGS). */
#ifndef EPW_KERNELS_PEER_WAY_H
#define EPW_KERNELS_PEER_WAY_H

#include "nic/queue.h"

/* The host writes everything except the queue's moving indices, at connect, when no kernel of the lane uses it. */
typedef struct epw_gpu_way {
    epw_queue queue;
    epw_key its;    /* key to what this rank may write in the peer's window, addressed by window offset */
    epw_key own;    /* key to this rank's images, addressed by offset */
    uint64_t image; /* address at which offset 0 of the images would be */
} epw_gpu_way;

#endif
