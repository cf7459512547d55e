// Answers that are sent unchanged, whole rows or one row for each expert: each is copied through a tile of shared memory by one
// thread of a warp and the bulk copy engine alone.
#pragma once

#include "kernels/ptx/bulk.cuh"
#include "kernels/ep/tile.cuh"

namespace epw {

// A warp's copies through its tile. Used by one thread.
struct Passage {
    unsigned char *tile;
    uint64_t *loaded; // barrier: the load is complete
    uint32_t uses = 0;

    __device__ __forceinline__ void load(const unsigned char *from, uint32_t bytes) {
        ptx::bulk_wait_read<0>(); // the previous store has read the tile
        ptx::barrier_expect(loaded, bytes);
        ptx::bulk_load(tile, from, bytes, loaded);
    }
    __device__ __forceinline__ void await_loaded() {
        while (!ptx::barrier_try_wait(loaded, uses & 1)) {
        }
        uses++;
    }
    // Stores what was loaded.
    __device__ __forceinline__ void store(unsigned char *to, uint32_t bytes) {
        await_loaded();
        ptx::bulk_store(to, tile, bytes);
        ptx::bulk_commit();
    }
};

} // namespace epw
