/* Peers behind queues that write to this rank's window on a GPU, as GPUDirect RDMA does: by adapters, without
 * an inbox (inbox.h). Only words for the host, which no kernel reads, go to host memory: to lines of their
 * own, for which peers have a key of their own. */
#ifndef EPW_PEER_DIRECT_H
#define EPW_PEER_DIRECT_H

#include "nic/mlx5.h"
#include "peer/peers.h"

struct epw_direct {
    epw_mlx5_far window;
    uint64_t lines_bytes;
};

/* Whether that is asked for, and only adapters carry what peers send. */
bool epw_direct_is_wanted(const epw_peers *peers);

/* Called by epw_remote_gpu_open and epw_remote_gpu_close: registers the window once to see that each adapter
 * can write there, and sets peers->direct and peers->lines. Call the second also after an error.
 * EPW_ERR_NO_PATH: an adapter cannot; the text has a remedy. */
epw_status epw_direct_open(epw_peers *peers, int32_t device, epw_where where);
void epw_direct_close(epw_peers *peers);

#endif
