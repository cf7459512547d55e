// The bulk copy engine (async proxy) and the barriers that tell of its loads.
#pragma once

#include "kernels/ptx/memory.cuh"

namespace epw::ptx {

// Between generic-proxy writes of shared memory by this thread and a bulk copy that reads it.
__device__ __forceinline__ void fence_shared_before_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Between a generic-proxy acquire of a flag and bulk copies that read or write what it guards: by the thread that has acquired,
// or by one that copies, behind it.
__device__ __forceinline__ void fence_global_before_bulk() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

__device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the async proxy.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Releases what this thread has done to the threads of the block that wait.
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

__device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity) {
    while (!barrier_try_wait(barrier, parity)) {
    }
}

// Global to shared; bytes a multiple of 16, both ends aligned to 16. Completion counts on `barrier`.
__device__ __forceinline__ void bulk_load(void *shared, const void *global, uint32_t bytes, uint64_t *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// Shared to global (own or a peer's window), in this thread's current group.
__device__ __forceinline__ void bulk_store(void *global, const void *shared, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most `Left` of this thread's groups still read shared memory: it may be written again.
template <int Left> __device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Left) : "memory");
}

// Until all but at most `Left` of this thread's groups, the last ones, are complete.
template <int Left> __device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Left) : "memory"); }

// Until all of this thread's bulk stores are complete: their bytes are visible to this thread, and to whoever it releases to.
__device__ __forceinline__ void bulk_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

} // namespace epw::ptx
