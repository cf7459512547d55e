// Changes of a communicator's membership and peers on the GPU, in stream order: no operation of it is running.
#pragma once

#include "kernels/coll/state.h"
#include "kernels/peer/wait.cuh"

namespace epw {

__global__ void __launch_bounds__(EPW_GPU_PEERS) coll_begin_epoch_kernel(const __grid_constant__ epw_coll_membership_args a) {
    ptx::wait_for_stream();
    const uint32_t peer = threadIdx.x;
    epw_gpu_peers *peers = a.peers;
    // Former members are told too, so that they need not time out to find out.
    const bool told = peer < a.ranks && (has(a.active, peer) || has(peers->active, peer)) && is_reached(peers, peer);
    __syncthreads();
    if (peer == 0) {
        a.shared->suspects = a.shared->silent = {};
        *a.shared->suspects_host = *a.shared->silent_host = {};
        peers->epoch_word = a.epoch_word;
        peers->active = a.active;
        a.state->halted = a.state->notice[EPW_COLL_NOTICE_TAG] = 0;
        a.state->notice_told = 0;
        a.state->missing = {};
        forget_waits(peers); // of blocks that ran only after their kernel had been closed
    }
    // A kernel that was closed without some of its blocks may not have counted them all.
    const uint64_t out = max(a.state->out_blocks, a.state->closed);
    __syncthreads();
    if (peer == 0) a.state->out_blocks = a.state->closed = out;
    for (uint32_t i = peer; i < EPW_COLL_BLOCKS; i += EPW_GPU_PEERS) a.state->turns[i] = {0, out};
    for (uint32_t i = peer; i < a.progress_count; i += EPW_GPU_PEERS) a.progress[i] = {0, 0};
    __syncthreads();
    // Writer: this rank, which has finished its reads and writes of the old epoch. Reader: each member's first operation, before
    // it writes, and every wait for this rank that still belongs to an older epoch.
    if (told) signal_lane(peers, peer, a.rank, 0, EPW_WORD_EPOCH, a.epoch_word);
}

__global__ void __launch_bounds__(EPW_GPU_PEERS) coll_part_kernel(const __grid_constant__ epw_coll_part_args a) {
    ptx::wait_for_stream();
    epw_gpu_peers *peers = a.peers;
    // No kernel may know yet that the group has excluded the peer: it is told here, after everything that this rank has written
    // to it.
    if (threadIdx.x == 0 && has(peers->active, a.peer) && is_reached(peers, a.peer)) {
        insert(peers->shared->suspects, a.peer);
        signal_lane(peers, a.peer, a.rank, 0, EPW_WORD_DROPPED, epw_word(epw_word_epoch(peers->epoch_word), 0, 0));
    }
    __syncthreads();
    forget(peers, a.peer);
}

} // namespace epw
