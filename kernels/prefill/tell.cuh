// How movers set flags at peers. A flag must follow all accesses to its slot, and the fence for that takes a microsecond or more,
// during which it holds up the other fences of an SM. So one warp of each block, the *teller*, sets the flags of all movers: it
// takes what they have posted meanwhile, and fences once for all of it.
#pragma once

#include "kernels/prefill/operation.cuh"

namespace epw {

// What a mover has posted: up to a flag from each lane. In shared memory.
struct Post {
    uint64_t *flags[32];
    uint64_t words[32];
    uint32_t lanes; // that have a flag; 0: nothing is posted, and the mover may write here
};

// Sets the lane's flag soon, if it has one: `at` is not nullptr. Called by the whole mover, behind its last access to the slots.
// Writer: the mover. Reader: the teller.
__device__ __forceinline__ void post(Post &p, uint64_t *at, uint64_t word) {
    const uint32_t lanes = __ballot_sync(0xffffffffu, at != nullptr), laneid = threadIdx.x % 32;
    if (lanes == 0) return;
    while (ptx::load_acquire_block(&p.lanes) != 0) { // bounded: the teller waits for nobody
    }
    p.flags[laneid] = at;
    p.words[laneid] = word;
    __syncwarp();
    if (laneid == 0) ptx::set_bits_release_block(&p.lanes, lanes);
}

// The message is written, or read: the caller is behind its last access to it. See tell_written() and tell_read().
template <bool Queues>
__device__ __forceinline__ void post_written(const Prefill &o, Post &p, bool has, uint32_t peer, uint64_t number) {
    post(p, has ? flag_there<Queues>(o, EPW_FLAGS_WRITTEN, peer, number) : nullptr, count_word(o, number + 1));
}
template <bool Queues>
__device__ __forceinline__ void post_read(const Prefill &o, Post &p, bool has, uint32_t peer, uint64_t number) {
    if (has) note_read(o, peer, number);
    post(p, has ? flag_there<Queues>(o, EPW_FLAGS_READ, peer, number) : nullptr, count_word(o, number + 1));
}

// Called by the teller, until all movers have ended. Writer: this warp, of the flags, with what it has acquired of the movers.
// Readers: the peers, see Flag, and relays.
__device__ __forceinline__ void tell(const Prefill &o, Post *posts, uint32_t movers) {
    const uint32_t all = 0xffffffffu, laneid = threadIdx.x % 32;
#pragma unroll 1
    for (;;) {                                                          // ends when the movers do
        const bool ended = ptx::load_acquire_block(&o.ended) == movers; // looked at before the last posts
        const bool posted = laneid < movers && ptx::load_acquire_block(&posts[laneid].lanes) != 0;
        const uint32_t some = __ballot_sync(all, posted);
        if (some == 0) {
            if (__all_sync(all, ended)) return;
            __nanosleep(20);
            continue;
        }
        __syncwarp();
        fence_before_counts();
        for (uint32_t left = some; left != 0; left &= left - 1) {
            const Post &p = posts[__ffs(left) - 1];
            if (p.lanes >> laneid & 1) put_count(p.flags[laneid], p.words[laneid]);
        }
        __syncwarp();
        if (posted) ptx::clear_release_block(&posts[laneid].lanes);
    }
}

} // namespace epw
