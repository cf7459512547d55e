// The end of an operation: all blocks are out, and the first one tells the caller, counts, and leaves the lane to the next
// kernel.
//
// Nothing else happens meanwhile, so what can be known before the other blocks are out is found out before, and the rest is
// loaded all at once: a load takes as long as all that is done with it.
#pragma once

#include "kernels/prefill/operation.cuh"

namespace epw {

// Waits until all other blocks are out. Called by the whole first block.
__device__ __forceinline__ void await_others_out(const Prefill &o) {
    if (threadIdx.x == 0) {
        while (ptx::load_acquire_gpu(&o.state->out) < o.blocks - 1) { // bounded: attendants have ended
        }
    }
    __syncthreads();
}
__device__ __forceinline__ void go_out(const Prefill &o) {
    __syncthreads();
    if (threadIdx.x == 0) ptx::add_acq_rel_gpu(&o.state->out, 1);
}

__device__ __noinline__ inline void fill_record(const Prefill &o, epw_error_record &r, uint32_t phase, uint32_t cause,
                                                uint32_t peer) {
    r = {};
    r.phase = phase;
    r.cause = cause;
    r.rank = o.rank;
    r.peer = peer;
    r.lane = o.lane;
    r.epoch = o.epoch;
    r.op = o.op & EPW_OP_MAX;
    r.deadline_ns = o.deadline;
}

// What movers have left behind. Loaded by the whole first block, when all other blocks are out.
struct AtEnd {
    // Of rank number threadIdx.x.
    bool refused = false; // a row of it is none, or its rows have ended early
    uint32_t sent = 0;    // rows to it that are through
    uint32_t come = 0;    // rows that it has sent; of a lost peer, as far as they had arrived
    // Of the operation, in thread 0.
    bool recorded = false;
    uint32_t bad_ids = 0;
    uint64_t rows = 0, overflow = 0;

    __device__ __forceinline__ explicit AtEnd(const Prefill &o) {
        static_assert(EPW_GPU_PEERS <= (kLeastMovers + 3) * 32, "a block has a thread for each rank");
        if (threadIdx.x < o.ranks) {
            const epw_prefill_gpu_peer &p = o.state->peers[threadIdx.x];
            const uint32_t invalid = ptx::load_relaxed_gpu(&p.refused), ended = ptx::load_relaxed_gpu(&p.ended);
            const uint32_t sends = ptx::load_relaxed_gpu(&p.send.opened), takes = ptx::load_relaxed_gpu(&p.take.opened);
            const uint32_t moved = ptx::load_relaxed_gpu(&p.send.moved);
            refused = (invalid | ended) != 0;
            sent = sends == 0 ? 0 : min(moved, sends - 1);
            come = takes == 0 ? 0 : takes - 1;
        }
        if (threadIdx.x == 0) {
            recorded = ptx::load_relaxed_gpu(&o.peers->recorded) != 0;
            bad_ids = ptx::load_relaxed_gpu(&o.state->bad_ids);
            rows = ptx::load_relaxed_gpu(&o.state->rows);
            overflow = ptx::load_relaxed_gpu(&o.state->overflow);
        }
    }
};

// Adds what the kernel has moved to and from the peer to the lane's sums. `bytes`: of a row, or an answer. Called by one thread
// for each rank, of the first block, when all other blocks are out. The last kernel of the operation counts it.
__device__ __forceinline__ void count_traffic(const Prefill &o, uint32_t peer, uint64_t sent, uint64_t received, uint64_t bytes) {
    epw_prefill_gpu_traffic &t = o.state->traffic;
    if (o.call.kind == 0) {
        ptx::reduce_relaxed_gpu(&t.rows_sent[peer], sent);
        ptx::reduce_relaxed_gpu(&t.rows_received[peer], received);
    } else {
        ptx::reduce_relaxed_gpu(&t.answers_sent[peer], sent);
    }
    ptx::reduce_relaxed_gpu(&t.bytes_sent[peer], sent * bytes);
    ptx::reduce_relaxed_gpu(&t.bytes_received[peer], received * bytes);
    if (peer == o.rank && o.does(EPW_PREFILL_RECEIVES)) ptx::reduce_relaxed_gpu(&t.operations, 1);
}

// Tells the host how the operation ended, unless it was complete. Called by one thread.
__device__ __noinline__ inline void report(const Prefill &o, bool degraded) {
    epw_prefill_gpu_report *to = o.call.report;
    const epw_prefill_gpu_state *s = o.state;
    if (o.call.gives_up) {
        tell_host(o.call.lane.faulted);
        return;
    }
    if (!degraded || !o.does(EPW_PREFILL_RECEIVES)) return;
    to->degraded = 1;
    to->missing = s->missing;
    to->record = s->record;
    to->ticket = o.call.ticket;
    tell_host(o.call.lane.faulted);
}

// Of a block that does not work. If too few of the kernel got SMs, this rank counts itself and all peers as lost. Called by the
// whole block.
__device__ __noinline__ inline void close_shut(Prefill &o) {
    if (!o.troubled || blockIdx.x != 0 || threadIdx.x != 0) return;
    const uint32_t phase = o.call.kind == 0 ? EPW_PHASE_DISPATCH_SEND : EPW_PHASE_COMBINE_SEND;
    o.state->missing = o.active;
    fill_record(o, o.state->record, phase, EPW_CAUSE_TIMEOUT, o.rank);
    put_record(o.peers->shared, &o.state->record);
    report(o, true);
}

// Returns whether this kernel is the whole operation, and nothing is amiss. Peers that movers have refused lack from now on.
// Called by the whole first block.
__device__ __forceinline__ bool is_whole(Prefill &o, const AtEnd &end) {
    const uint32_t peer = threadIdx.x;
    if (end.refused) insert(o.lacking, peer);
    bool amiss = end.refused || end.recorded || end.bad_ids > 0 || end.overflow > 0;
    if (peer < o.ranks) amiss |= has(o.active, peer) && (!has(o.present, peer) || has(o.lacking, peer));
    if (peer == 0) amiss |= o.troubled || o.call.gives_up || !o.does(EPW_PREFILL_OPENS);
    return !__syncthreads_or(amiss);
}

// What belongs to one kernel is zero afterwards. Called by the whole first block, which has loaded it.
__device__ __forceinline__ void clear_peers(const Prefill &o) {
    if (threadIdx.x >= o.ranks) return;
    epw_prefill_gpu_peer &p = o.state->peers[threadIdx.x];
    p.send = p.take = {};
    p.refused = p.ended = 0;
}
__device__ __forceinline__ void leave(const Prefill &o) {
    epw_prefill_gpu_state *s = o.state;
    s->met = s->out = 0;
    s->placed = s->sums = s->bad_ids = 0;
    s->rows = s->overflow = 0;
    give_sms_back(o.call.lane);
    pass_gate(s, o.blocks);
}

// Of an operation that may lack something, or half of one.
__device__ __noinline__ inline void close_amiss(Prefill &o, const AtEnd end) {
    epw_prefill_gpu_state *s = o.state;
    const uint32_t phase = o.call.kind == 0 ? EPW_PHASE_DISPATCH_RECEIVE : EPW_PHASE_COMBINE_RECEIVE;
    const epw_rank_set absent = o.active - o.present;
    const bool opens = o.does(EPW_PREFILL_OPENS);
    const bool recorded = end.recorded;
    const uint32_t bad_ids = end.bad_ids;
    const uint64_t overflow = end.overflow, rows = end.rows;
    epw_rank_set missing = absent | o.lacking;
    bool named = false, misrouted = false; // a record says what else has gone wrong; only that ids were bad
    if (opens) {
        s->record = {};
        s->ops[o.call.kind] = o.op;
    } else {
        missing = missing | s->missing;
        misrouted = s->record.cause == EPW_CAUSE_ROUTING;
        named = !misrouted && s->record.cause != EPW_CAUSE_NONE;
    }
    s->missing = missing;
    if (!named && any(absent)) {
        fill_record(o, s->record, phase, EPW_CAUSE_SUSPECTED, first_of(absent));
    } else if (!named && recorded) {
        s->record = o.peers->record;
    } else if (!named && overflow > 0) {
        fill_record(o, s->record, phase, EPW_CAUSE_OVERFLOW, o.rank);
        s->record.expected = rows;
        s->record.seen = rows - overflow;
    } else if (!named && bad_ids > 0) { // last: each of these ids has a note of its own
        fill_record(o, s->record, EPW_PHASE_DISPATCH_SEND, EPW_CAUSE_ROUTING, o.rank);
        s->record.expected = s->bad_at;
        s->record.seen = s->bad_id;
    }
    if (recorded) put_record(o.peers->shared, &o.peers->record);
    if (overflow > 0) put_note(o, phase, EPW_CAUSE_OVERFLOW, rows, rows - overflow);
    if (bad_ids > EPW_GPU_NOTES) {
        s->unrecorded += bad_ids - EPW_GPU_NOTES;
        tell_unrecorded(o, s->unrecorded);
    }
    report(o, any(missing) || named || misrouted || recorded || bad_ids > 0 || overflow > 0);
    if (o.troubled || recorded) {
        end_waits(o);
        epw_rank_set told;
        tell_suspects(o, told);
    }
}

// Called by one thread of the first block, after all that. Code that has not run before takes longer to load than to run, so the
// common case has little of it.
__device__ __forceinline__ void close(Prefill &o, const AtEnd &end, bool whole) {
    epw_prefill_gpu_state *s = o.state;
    if (whole) {
        s->record.cause = EPW_CAUSE_NONE;
        s->ops[o.call.kind] = o.op;
        s->missing = {};
    } else {
        close_amiss(o, end);
    }
    leave(o);
}

} // namespace epw
