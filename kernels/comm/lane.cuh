// A lane from the first instruction of a kernel to the last: what an operation reads of the context, and what its last block
// leaves behind.
#pragma once

#include "../ptx/memory.cuh"
#include "context.h"
#include "wait.cuh"

namespace epw {

// Reads the operation. `next`: it begins one, else it goes on with the lane's. By every thread of the block; the operation is
// there after the caller's next barrier. Its loads, and any before it, are on their way together.
__device__ __forceinline__ void begin(epw_gpu_context *c, const epw_gpu_shared *shared, unsigned char *own, uint32_t rank, uint32_t ranks, bool next,
                                      uint64_t deadline, Operation &o) {
    if (threadIdx.x < ranks) o.window[threadIdx.x] = c->window[threadIdx.x];
    if (threadIdx.x == 32) {
        o.ids = c->ids;
        o.weights = c->weights;
        o.sent_row = c->sent_row;
        o.first_row = c->first_row;
    }
    if (threadIdx.x != 0) return;
    uint32_t op = c->op;
    o.context = c;
    o.own = own;
    o.rank = rank;
    o.ranks = ranks;
    o.lane = c->lane;
    o.epoch = c->epoch;
    o.op = op + (next ? 1 : 0);
    o.stage = c->stage;
    o.first = op == 0 && c->wrapped == 0;
    o.active = c->active;
    o.peers = next ? o.active & ~c->excluded : c->present;
    o.suspects = ptx::load_relaxed_gpu(&shared->suspects);
    o.deadline = deadline ? deadline : c->deadline_ns;
    o.gone = o.refused = 0;
    o.last = 0;
}

// Whether this block is the last of the kernel's to pass this point. Every thread's effects before it happen before the last
// block's after it. Called by the whole block.
__device__ __forceinline__ bool last_block(Operation &o, uint32_t *count) {
    __syncthreads();
    if (threadIdx.x == 0) {
        o.last = ptx::add_release_gpu(count, 1) == gridDim.x - 1;
        if (o.last) ptx::fence_gpu();
    }
    __syncthreads();
    return o.last != 0;
}

// Leaves a peer out of this operation, for this block and, at the end, for the kernel.
__device__ inline void leave_out(Operation &o, uint32_t peer) {
    atomicOr(&o.gone, 1ull << peer);
    atomicOr(reinterpret_cast<unsigned long long *>(&o.context->gone), 1ull << peer);
}

// Writes `record` to the ring in mapped host memory. See epw_gpu_ring.
__device__ inline void put_record(epw_gpu_shared *shared, const epw_error_record *record) {
    uint64_t n = atomicAdd(reinterpret_cast<unsigned long long *>(&shared->records), 1ull);
    auto *slot = &shared->ring->slots[n % EPW_GPU_RECORDS];
    // Writer: this thread. Reader: epw_take_errors on the host, which reads `sequence`, the record, and `sequence` again.
    ptx::store_relaxed_sys(&slot->sequence, 0);
    __threadfence_system();
    slot->record = *record;
    ptx::store_release_sys(&slot->sequence, n + 1);
}

// A record that blames no peer: a routing id, or a lane in another state than the operation needs.
__device__ inline void put_note(const Operation &o, uint32_t phase, uint32_t cause, uint64_t expected, uint64_t seen) {
    epw_error_record r = {};
    r.phase = phase;
    r.cause = cause;
    r.rank = r.peer = o.rank;
    r.lane = o.lane;
    r.epoch = o.epoch;
    r.op = o.op;
    r.expected = expected;
    r.seen = seen;
    r.deadline_ns = o.deadline;
    put_record(o.context->shared, &r);
}

// The lane is not in the stage that the operation needs: it does nothing. Called by the whole grid. The lane's own state stays,
// so only the first block says so.
__device__ inline void refuse(const Operation &o, uint32_t phase) {
    if (blockIdx.x == 0 && threadIdx.x == 0) put_note(o, phase, EPW_CAUSE_HELD, 0, o.stage);
}

// Whether the kernel has posted any.
__device__ __forceinline__ uint64_t beacons_posted(const epw_gpu_context *c) {
    return ptx::load_relaxed_gpu(&c->waits[0].beacons) | ptx::load_relaxed_gpu(&c->waits[1].beacons);
}

// Called by one thread of the last block out, when it has decided who takes part. `missing`: active peers that do not.
// `beacons`: beacons_posted.
__device__ inline void leave(const Operation &o, uint32_t phase, uint32_t stage, uint64_t present, uint64_t missing,
                             uint64_t beacons) {
    epw_gpu_context *c = o.context;
    epw_gpu_report *report = c->report;
    if (beacons != 0) post_beacon(o, EPW_BEACON_NONE);
    if (missing == 0) {
        report->record.cause = EPW_CAUSE_NONE;
    } else {
        uint64_t suspects = ptx::load_relaxed_gpu(&c->shared->suspects);
        if (!c->recorded) {
            // Nobody was lost now: the operation began without them.
            record_loss(o, phase, EPW_CAUSE_SUSPECTED, __ffsll(missing) - 1, 0, 0, 0);
        } else {
            put_record(c->shared, &c->record);
        }
        report->record = c->record;
        c->shared->suspects_host[o.lane] = suspects;
        c->excluded = suspects;
    }
    report->missing = missing;
    c->blocks_sent = c->blocks_out = 0;
    c->recorded = c->noted = 0;
    c->gone = c->refused = 0;
    for (auto &wait : c->waits) wait.began = wait.beacons = 0;
    c->op = o.op;
    if (o.op == 0) c->wrapped = 1;
    c->present = present;
    c->stage = stage;
}

} // namespace epw
