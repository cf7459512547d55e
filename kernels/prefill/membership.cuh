// Changes of a prefill buffer's membership and peers on the GPU, in stream order: no operation of it is running.
#pragma once

#include "kernels/prefill/operation.cuh"

namespace epw {

__global__ void __launch_bounds__(EPW_GPU_PEERS) prefill_epoch_kernel(const __grid_constant__ epw_prefill_membership_args a) {
    ptx::wait_for_stream();
    const uint32_t peer = threadIdx.x;
    epw_gpu_peers *first = a.lanes[0].peers;
    epw_gpu_shared *shared = a.lanes[0].shared;
    // Former members are told too, so that they need not time out to find out.
    const bool told = peer < a.ranks && (has(a.active, peer) || has(first->active, peer)) && is_reached(first, peer);
    __syncthreads();
    if (peer == 0) shared->suspects = shared->silent = {};
    if (peer < EPW_MAX_LANES) shared->suspects_host[peer] = shared->silent_host[peer] = {};
    for (uint32_t i = 0; i < a.lane_count; i++) {
        const epw_prefill_gpu_lane &lane = a.lanes[i];
        epw_prefill_gpu_state *s = lane.state;
        s->peers[peer] = {};
        if (peer != 0) continue;
        lane.peers->epoch_word = a.epoch_word;
        lane.peers->active = a.active;
        s->gate = s->passed = s->ops[0] = s->ops[1] = 0;
        if (lane.taken) *lane.taken = 0;
        s->missing = {};
        s->met = s->out = 0;
        s->placed = s->sums = s->bad_ids = 0;
        s->rows = s->overflow = 0;
    }
    __syncthreads();
    // Writer: this rank, which has finished its reads and writes of the old epoch. Reader: each member's attendant, before it
    // writes, and every wait for this rank that still belongs to an older epoch.
    for (uint32_t i = 0; i < a.lane_count && told; i++)
        signal_lane(first, peer, a.lanes[0].rank, i, EPW_WORD_EPOCH, a.epoch_word);
}

__global__ void __launch_bounds__(EPW_GPU_PEERS) prefill_part_kernel(const __grid_constant__ epw_prefill_part_args a) {
    ptx::wait_for_stream();
    for (uint32_t i = 0; i < a.lane_count; i++) {
        epw_gpu_peers *peers = a.peers[i];
        // No kernel may know yet that the group has excluded the peer: it is told here, after everything that this rank has
        // written to it.
        if (threadIdx.x == 0 && has(peers->active, a.peer) && is_reached(peers, a.peer)) {
            insert(peers->shared->suspects, a.peer);
            signal_lane(peers, a.peer, a.rank, i, EPW_WORD_DROPPED, epw_word(epw_word_epoch(peers->epoch_word), 0, 0));
        }
        __syncthreads();
        forget(peers, a.peer);
    }
}

} // namespace epw
