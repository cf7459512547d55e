/* What all engines on GPUs share, whatever their kernels move: bounded waits for the calls of the lanes, the
 * ranks that were given up or revoked, the end of a change of the membership, and leaving. For builds with
 * CUDA. */
#ifndef EPW_PEER_GPU_ENGINE_H
#define EPW_PEER_GPU_ENGINE_H

#ifdef EPW_CUDA

#include "peer/gpu.h"

/* The order of a lane's eager calls. Changed with the lane locked. */
static inline epw_stream_order *epw_lane_order(const epw_peers *peers, uint32_t lane) {
    return &peers->gpu->orders[lane];
}

/* What puts an eager call behind those of the other lane too; NULL if lanes may run at the same time. */
static inline epw_stream_chain *epw_lane_chain(epw_peers *peers) {
    return peers->gpu->serial ? &peers->gpu->chain : NULL;
}

/* EPW_ERR_STATE if nobody can wait for the lane's last call, see device/stream_order.h. */
epw_status epw_peers_require_marked(const epw_peers *peers, uint32_t lane, epw_where where);

/* Whether the waiting thread holds the locks of the lanes. If not, other threads may enqueue more, which is
 * waited for as well, within the bound. */
typedef enum epw_holding { EPW_HELD, EPW_NOT_HELD } epw_holding;

/* Waits for what calls have enqueued on all lanes, within the group's deadline: EPW_ERR_TIMEOUT after that.
 */
epw_status epw_peers_require_idle(const epw_peers *peers, epw_holding lanes, epw_where where);

/* As in epw_peers_user. */
epw_mask epw_peers_gpu_suspects(const epw_peers *peers, epw_mask *silent);
void epw_peers_gpu_revoke(const epw_peers *peers, const epw_mask *members);

/* The same, for engines that reach no peer by queues. */
epw_stretch epw_peers_no_footprint(void *user, uint32_t source, uint32_t lane, uint32_t area);

/* Waits for the kernel that begins the epoch, within the group's deadline. If its end is not seen by then,
 * there is no membership. */
epw_status epw_peers_settle_epoch(epw_peers *peers, uint64_t epoch_word, epw_where where);

/* Called when no other thread calls any more: waits for what was enqueued, at most timeout_ns, and says
 * farewell. False: the GPU may still write into windows. */
bool epw_peers_leave_gpu(epw_peers *peers, uint64_t timeout_ns);

#endif

#endif
