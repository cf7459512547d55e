// How a communicator's membership and peers change on the GPU, in stream order: no operation of it runs.
#pragma once

#include "kernels/coll/state.h"
#include "kernels/peer/signal.cuh"

namespace epw {

__global__ void __launch_bounds__(EPW_GPU_PEERS) coll_begin_epoch_kernel(const __grid_constant__ epw_coll_membership_args a) {
    ptx::wait_for_stream();
    const uint32_t peer = threadIdx.x;
    epw_gpu_peers *peers = a.peers;
    // Former members too: they need not wait for this rank to find out.
    const bool told = peer < a.ranks && (has(a.active, peer) || has(peers->active, peer)) && is_reached(peers, peer);
    __syncthreads();
    if (peer == 0) {
        a.shared->suspects = a.shared->silent = {};
        *a.shared->suspects_host = *a.shared->silent_host = {};
        peers->epoch_word = a.epoch_word;
        peers->active = a.active;
        a.state->halted = 0;
        a.state->missing = {};
    }
    // A kernel that was given up may not have counted all of its blocks.
    const uint64_t out = max(a.state->out_blocks, a.state->closed);
    __syncthreads();
    if (peer == 0) a.state->out_blocks = a.state->closed = out;
    for (uint32_t i = peer; i < EPW_COLL_BLOCKS; i += EPW_GPU_PEERS) a.state->turns[i] = {0, out};
    for (uint32_t i = peer; i < a.progress_count; i += EPW_GPU_PEERS) a.progress[i] = {0, 0};
    __syncthreads();
    // Writer: this rank, done with its reads and writes of the old epoch. Reader: each member's first operation, before it
    // writes, and any wait for this rank in an older epoch.
    if (told) signal_lane(peers, peer, a.rank, 0, EPW_WORD_EPOCH, a.epoch_word);
}

__global__ void __launch_bounds__(EPW_GPU_PEERS) coll_part_kernel(const __grid_constant__ epw_coll_part_args a) {
    ptx::wait_for_stream();
    epw_gpu_peers *peers = a.peers;
    // Of a member that was revoked no kernel may know yet: it is told behind all that this rank has written there.
    if (threadIdx.x == 0 && has(peers->active, a.peer) && is_reached(peers, a.peer)) {
        insert(peers->shared->suspects, a.peer);
        signal_lane(peers, a.peer, a.rank, 0, EPW_WORD_DROPPED, epw_word(epw_word_epoch(peers->epoch_word), 0, 0));
    }
    __syncthreads();
    forget(peers, a.peer);
}

} // namespace epw
