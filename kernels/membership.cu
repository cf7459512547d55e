// Small kernels: releasing a handle, beginning a membership, reporting a step and disconnecting a peer.
#include "kernels/ep/lane.cuh"
#include "kernels/launch.cuh"

namespace epw {

// The bound claims more blocks per SM than there are: the compiler then uses 40 registers a thread, and spills none.
constexpr uint32_t kReleaseBound = 5;

// Answers no rows: each peer that takes part is signalled so once its own rows have arrived.
__global__ void __launch_bounds__(kOpeningThreads, kReleaseBound) release_kernel(const __grid_constant__ epw_release_args a) {
    __shared__ Operation o;
    ptx::wait_for_stream();
    uint32_t peer = threadIdx.x;
    const Opening opening(a.lane, EPW_AREA_CONTROL, 0);
    if (peer < a.lane.layout.ranks) prepare_signal(); // while the operation is still being loaded
    opening.write(o, false);
    __syncthreads();
    if (o.stage == EPW_GPU_FREE) {
        if (!a.quiet && peer == 0) put_note(o, EPW_PHASE_COMBINE_SEND, EPW_CAUSE_HELD, 0, o.stage);
        return;
    }
    if (peer == 0) a.lane.state->faulted = 1;
    bool answers = o.stage != EPW_GPU_ANSWERED && peer < o.ranks && has(o.present, peer);
    if (o.stage == EPW_GPU_SENT) {
        if (answers && !await(o, awaited_rows(o), EPW_PHASE_COMBINE_SEND, peer, false).arrived) {
            leave_out(o, peer);
            answers = false;
        }
        if (answers) prepare_signal();
        __syncthreads();
    }
    ptx::let_next_begin();
    // Writer: this thread, after its fence. Reader: the peer's wait for permission to send its next operation, and its combine.
    if (answers) signal_prepared(o, peer, EPW_WORD_COMBINE, epw_word(o.epoch, o.op, 0));
    if (o.troubled) {
        if (peer == 0) {
            o.kept = o.reachable;
            o.absent = o.present - o.reachable;
        }
        __syncthreads();
        close(o, EPW_PHASE_COMBINE_SEND, EPW_GPU_FREE);
    } else {
        for (uint32_t i = threadIdx.x; i < a.lane.blocks; i += kOpeningThreads) a.lane.state->turns[i].stage = EPW_GPU_FREE;
    }
}

__global__ void __launch_bounds__(EPW_GPU_MAX_RANKS) membership_kernel(const __grid_constant__ epw_membership_args a) {
    ptx::wait_for_stream();
    uint32_t peer = threadIdx.x;
    const epw_gpu_peers *peers = a.peers[0];
    // Former members are told too, so that they need not time out to find out.
    const bool told = peer < a.ranks && (has(a.active, peer) || has(peers->active, peer)) && is_reached(peers, peer);
    if (peer < EPW_MAX_LANES && a.states[peer] != nullptr && a.states[peer]->turns[0].stage != EPW_GPU_FREE) {
        a.states[peer]->faulted = 1; // an operation that the lane had begun ends here
    }
    __syncthreads();
    if (peer < EPW_MAX_LANES) {
        if (peer == 0) a.shared->suspects = a.shared->silent = {};
        a.shared->suspects_host[peer] = a.shared->silent_host[peer] = {};
        if (a.peers[peer] != nullptr) {
            a.peers[peer]->epoch_word = a.epoch_word;
            a.peers[peer]->active = a.active;
            forget_waits(a.peers[peer]); // of blocks that ran only after their kernel had been closed
            a.states[peer]->excluded = {};
            a.states[peer]->report = 0; // none yet
        }
    }
    for (epw_gpu_lane_state *s : a.states) {
        if (s != nullptr) set_turns(s, {EPW_GPU_FREE, 0, 0, 0, s->sent_blocks, s->out_blocks, {}});
    }
    __syncthreads();
    // Writer: this rank, which has finished its reads and writes of the old epoch. Reader: each member's wait for permission to
    // send its first operation, and every wait for this rank that still belongs to an older epoch.
    if (told) {
        signal_lane(peers, peer, a.rank, 0, EPW_WORD_LAST, a.last[0]); // before the epoch word: see ep/verdict.h
        signal_lane(peers, peer, a.rank, 0, EPW_WORD_LAST_BUT_ONE, a.last[1]);
        for (uint32_t lane = 0; lane < EPW_MAX_LANES && a.peers[lane] != nullptr; lane++) {
            signal_lane(peers, peer, a.rank, lane, EPW_WORD_EPOCH, a.epoch_word);
        }
    }
}

// Posts the report of a step. The work of the lanes' kernels precedes it in stream order, or by the events that the host puts
// between the streams.
__global__ void __launch_bounds__(EPW_GPU_MAX_RANKS) checkpoint_kernel(const __grid_constant__ epw_checkpoint_args a) {
    __shared__ uint64_t report;
    ptx::wait_for_stream();
    uint32_t peer = threadIdx.x;
    const epw_gpu_peers *peers = a.peers[0];
    if (peer == 0) {
        const bool suspects = any(load_now(a.shared->suspects) & peers->active);
        uint32_t faulted = a.faulted;
        for (uint32_t lane = 0; lane < EPW_MAX_LANES && a.states[lane] != nullptr; lane++) {
            faulted |= atomicExch(&a.states[lane]->faulted, 0u);
        }
        const uint32_t epoch = epw_word_epoch(peers->epoch_word);
        a.states[0]->report = report = epw_report_next(a.states[0]->report, epoch, a.step, faulted != 0, suspects);
    }
    __syncthreads();
    if (peer >= a.ranks || !is_reached(peers, peer)) return;
    // This rank may be its own suspect.
    const bool told = peer == a.rank || (has(peers->active, peer) && !has_now(a.shared->suspects, peer));
    // Writer: this thread. Reader: the copies with which a peer's host judges the step. The word announces no other data.
    if (told) signal_lane(peers, peer, a.rank, 0, EPW_WORD_REPORT, report);
}

// When the other lane gives a peer up and its window is unmapped, a dispatch may have received the peer's rows already, or still
// wait for them, and the rest of its operation may be enqueued later, by a graph. That rest then finds the peer absent, with no
// rows to answer. One block per lane.
__global__ void __launch_bounds__(EPW_GPU_MAX_RANKS) disconnect_kernel(const __grid_constant__ epw_disconnect_args a) {
    ptx::wait_for_stream();
    epw_gpu_lane_state *s = a.states[blockIdx.x];
    for (uint32_t i = threadIdx.x; i < s->blocks; i += EPW_GPU_MAX_RANKS) remove(s->turns[i].present, a.peer);
    // No kernel may know yet that the group has excluded the peer: it becomes a suspect here, and is told after everything that
    // this rank has written to it.
    epw_gpu_peers *peers = a.peers[blockIdx.x];
    if (threadIdx.x == 0 && has(peers->active, a.peer) && is_reached(peers, a.peer)) {
        insert(peers->shared->suspects, a.peer);
        const uint64_t word = epw_word(epw_word_epoch(peers->epoch_word), 0, 0);
        signal_lane(peers, a.peer, a.rank, peers->lane, EPW_WORD_DROPPED, word);
    }
    __syncthreads();
    forget(peers, a.peer);
    if (threadIdx.x != 0) return;
    s->received[a.peer] = 0;
    uint32_t end = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < a.ranks; i++) s->ends[i] = end += s->received[source_at(a.rank, a.ranks, i)];
}

cudaError_t prepare_membership() {
    cudaError_t error = prepare(release_kernel, kOpeningThreads, 0);
    if (error == cudaSuccess) error = prepare(membership_kernel, EPW_GPU_MAX_RANKS, 0);
    if (error == cudaSuccess) error = prepare(checkpoint_kernel, EPW_GPU_MAX_RANKS, 0);
    if (error == cudaSuccess) error = prepare(disconnect_kernel, EPW_GPU_MAX_RANKS, 0);
    return error;
}

} // namespace epw

extern "C" int epw_gpu_release(const epw_release_args *args, void *stream) {
    return epw::launch_in_stream(epw::release_kernel, 1, epw::kOpeningThreads, 0, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_gpu_set_active(const epw_membership_args *args, void *stream) {
    return epw::launch_in_stream(epw::membership_kernel, 1, EPW_GPU_MAX_RANKS, 0, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_gpu_checkpoint(const epw_checkpoint_args *args, void *stream) {
    return epw::launch_in_stream(epw::checkpoint_kernel, 1, EPW_GPU_MAX_RANKS, 0, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_gpu_disconnect(const epw_disconnect_args *args, void *stream) {
    uint32_t lanes = 0;
    while (lanes < EPW_MAX_LANES && args->peers[lanes] != nullptr) lanes++;
    return epw::launch_in_stream(epw::disconnect_kernel, lanes, EPW_GPU_MAX_RANKS, 0, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_gpu_prepare(void) {
    cudaError_t error = epw::prepare_membership();
    if (error == cudaSuccess) error = epw::prepare_dispatch();
    if (error == cudaSuccess) error = epw::prepare_combine();
    return error;
}
