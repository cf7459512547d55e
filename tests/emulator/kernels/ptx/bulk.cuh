// The emulated GPU's kernels/ptx/bulk.cuh.
#pragma once

#include "kernels/ptx/memory.cuh"

namespace epw::ptx {

inline void fence_shared_before_bulk() {}
inline void fence_global_before_bulk() {}
inline void barrier_init(uint64_t *barrier, uint32_t arrivals) { emulated::copies_init(barrier, arrivals); }
inline void fence_barrier_init() {}
inline void barrier_expect(uint64_t *barrier, uint32_t bytes) { emulated::copies_arrive(barrier, bytes); }
inline void barrier_arrive(uint64_t *barrier) { emulated::copies_arrive(barrier, 0); }
inline bool barrier_try_wait(uint64_t *barrier, uint32_t parity) { return emulated::copies_have_come(barrier, parity); }
inline void bulk_load(void *shared, const void *global, uint32_t bytes, uint64_t *barrier) {
    emulated::bulk_load(shared, global, bytes, barrier);
}
inline void bulk_store(void *global, const void *shared, uint32_t bytes) { emulated::bulk_store(global, shared, bytes); }
inline void bulk_commit() { emulated::bulk_commit(); }
template <int Left> inline void bulk_wait_read() { emulated::bulk_await(Left, false); }
template <int Left> inline void bulk_wait() { emulated::bulk_await(Left, true); }
inline void bulk_wait_all() { emulated::bulk_await(0, true); }
inline void copy_16(void *shared, const void *global, bool inside) { emulated::copy_16(shared, inside ? global : nullptr); }
inline void copies_commit() { emulated::copies_commit(); }
template <int Left> inline void copies_wait() { emulated::copies_await(Left); }

} // namespace epw::ptx
