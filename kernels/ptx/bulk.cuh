// Bulk copies (cp.async.bulk, the async proxy) and the mbarriers that signal when their loads are complete; and asynchronous
// copies of a thread's own (cp.async, the generic proxy).
#pragma once

#include "kernels/ptx/memory.cuh"

namespace epw::ptx {

// Orders this thread's generic-proxy writes to shared memory before a bulk copy that reads them.
__device__ __forceinline__ void fence_shared_before_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Orders a generic-proxy acquire of a flag before bulk copies that read or write the memory which the flag guards. Issued by the
// thread that acquired, or by the thread that copies, once it has synchronised with the one that acquired.
__device__ __forceinline__ void fence_global_before_bulk() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

__device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the async proxy.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ bool barrier_try_wait(uint64_t *barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return done != 0;
}

// Copies global to shared memory. `bytes` is a multiple of 16, and both addresses are aligned to 16. Completion is counted on
// `barrier`.
__device__ __forceinline__ void bulk_load(void *shared, const void *global, uint32_t bytes, uint64_t *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// Copies shared to global memory (this rank's window or a peer's), in this thread's current bulk group.
__device__ __forceinline__ void bulk_store(void *global, const void *shared, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most `Left` of this thread's bulk groups still read shared memory; what the others read may be overwritten.
template <int Left> __device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Left) : "memory");
}

// Waits until at most `Left` of this thread's bulk groups are incomplete.
template <int Left> __device__ __forceinline__ void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Left) : "memory");
}

// Waits until all of this thread's bulk stores are complete: their bytes are visible to this thread, and to any thread that
// acquires what this thread releases afterwards.
__device__ __forceinline__ void bulk_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Copies 16 bytes of global memory to shared memory for this thread alone, or writes zeros if it is not `inside`; both addresses
// are aligned to 16. A load into registers is waited for together with all that were issued after it, in loops at least, since
// the compiler has few counters to tell them apart; these copies complete in the order of their groups.
__device__ __forceinline__ void copy_16(void *shared, const void *global, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(inside ? 16 : 0)
                 : "memory");
}

// Ends this thread's current group of such copies.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `Left` of this thread's groups are incomplete; it may read what the others have copied.
template <int Left> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

} // namespace epw::ptx
