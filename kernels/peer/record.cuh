// Error records: the record of the first peer that an operation loses, and the ring in mapped host memory from which the host
// takes records.
#pragma once

#include "kernels/peer/words.cuh"

namespace epw {

// Writes `record` to the ring in mapped host memory; see epw_gpu_ring.
__device__ inline void put_record(epw_gpu_shared *shared, const epw_error_record *record) {
    uint64_t n = atomicAdd(reinterpret_cast<unsigned long long *>(&shared->records), 1ull);
    auto *slot = &shared->ring->slots[n % EPW_GPU_RECORDS];
    // Writer: this thread. Reader: epw_records_take on the host, which reads `sequence`, the record, and `sequence` again.
    ptx::store_relaxed_sys(&slot->sequence, 0);
    __threadfence_system();
    slot->record = *record;
    ptx::store_release_sys(&slot->sequence, n + 1);
}

// Puts a record that blames no peer: for a bad routing id, for rows without a place, or for a lane that is not in the stage the
// operation needs.
__device__ __noinline__ inline void put_note(const Peers &p, uint32_t phase, uint32_t cause, uint64_t expected, uint64_t seen) {
    epw_error_record r = {};
    r.phase = phase;
    r.cause = cause;
    r.rank = r.peer = p.rank;
    r.lane = p.lane;
    r.epoch = p.epoch;
    r.op = p.op & EPW_OP_MAX;
    r.expected = expected;
    r.seen = seen;
    r.deadline_ns = p.deadline;
    put_record(p.peers->shared, &r);
}

// Tells the host that what this thread has written to mapped host memory is complete. Reader: the host, by an acquire of `flag`.
__device__ __forceinline__ void tell_host(uint32_t *flag) {
    ptx::fence_sys();
    ptx::store_relaxed_sys(flag, 1);
}

// A count in mapped host memory. Writer: one thread at a time. Reader: the host, at any time.
__device__ __forceinline__ void show_host(uint64_t *count, uint64_t value) { ptx::store_relaxed_sys(count, value); }
// The same, and the host sees it before what this thread writes to mapped host memory next.
__device__ __forceinline__ void show_host_first(uint64_t *count, uint64_t value) {
    ptx::store_relaxed_sys(count, value);
    ptx::fence_sys();
}

// Publishes how many notes of the lane found no room for a record, since creation. Reader: epw_records_take.
__device__ __forceinline__ void tell_unrecorded(const Peers &p, uint64_t count) {
    ptx::store_relaxed_sys(&p.peers->shared->ring->unrecorded[p.lane], count);
}

// Records the loss of a peer, the first one of the operation only. Reader: the block that closes the operation. `waiting`: how
// many peers were still awaited at that moment.
__device__ __noinline__ inline void record_loss(const Peers &p, uint32_t phase, uint32_t cause, uint32_t peer, uint64_t expected,
                                                uint64_t seen, uint64_t elapsed, uint32_t waiting) {
    epw_gpu_peers *shared = p.peers;
    if (atomicExch(&shared->recorded, 1u) != 0) return;
    epw_error_record *r = &shared->record;
    r->phase = phase;
    r->cause = cause;
    r->rank = p.rank;
    r->peer = peer;
    r->lane = p.lane;
    r->epoch = p.epoch;
    r->op = p.op & EPW_OP_MAX;
    r->waiting = waiting;
    r->expected = expected;
    r->seen = seen;
    r->elapsed_ns = elapsed;
    r->deadline_ns = p.deadline;
}

} // namespace epw
