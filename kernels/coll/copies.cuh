// Operations whose bytes are moved by copies of the host's, which copy engines execute: an all-gather or all-to-all on lent
// memory (direct.cuh). The host enqueues three things in a row:
//
//   1. begin_copies(), of one block, tells and awaits calls, and checks that each peer lends what the host will copy;
//   2. a copy from each peer's memory to this rank's, at addresses that the host knows: where the peer's send would be if it had
//      the offset of this rank's;
//   3. end_copies(), which tells the peers that this rank has finished reading, waits until they have, and ends the operation.
//
// The copies run whatever the first kernel has found. They only read peers' memory, which stays mapped as long as they may run,
// and write only to this rank's recv. If a peer's send is elsewhere, or a rank is missing or has told another call, they were in
// vain: the last kernel then does the whole operation as if there had been none.
//
// To peers it is an operation of direct.cuh: each rank decides by itself whether copies or its kernel move what it reads.
#pragma once

#include "kernels/coll/direct.cuh"

namespace epw {

// Values of epw_coll_state.copied.
constexpr uint32_t kCopied = 1, kWaitedLong = 2;

// Whether the copies read what peers lend. The same answer for the whole block.
__device__ __forceinline__ bool copies_read_what_is_lent(const Collective &c, Lent &l, const epw_coll_copies_args &a) {
    for (uint32_t peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) {
        const bool lacks = has(c.active, peer) && !takes_part(c, peer);
        const bool elsewhere = peer != c.rank && takes_part(c, peer) && lent_to_this(c, l, peer) != a.from[peer];
        if (lacks || elsewhere) l.by_all = 0;
    }
    __syncthreads();
    return l.by_all && !c.stopped;
}

// Does not end the operation, whose number the next kernel uses again. Called by the whole block.
__device__ __forceinline__ void begin_copies(Collective &c, Lent &l, const epw_coll_copies_args &a, bool opened) {
    bool moved = false;
    if (opened) {
        init_direct(l);
        settle_lent(c, l);
        tell_call(c);
        learn_what_is_lent(c, l);
        moved = copies_read_what_is_lent(c, l, a);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    // While the copies run this rank waits for nobody: stops the clocks. What it has found of a missing rank stays for the end.
    // If the next kernel moves the bytes it goes on waiting, and stops the clocks at its end.
    const bool waited = c.troubled;
    if (moved && waited) end_waits(c);
    // Readers: are_copied(), go_on_from_copies().
    c.args.state->copied = moved ? kCopied : waited ? kWaitedLong : 0;
}

// Whether copies have moved the operation's bytes. The same answer for the whole grid.
__device__ __forceinline__ bool are_copied(const Collective &c, const epw_coll_copies_args &a) {
    return !a.failed && c.args.state->copied == kCopied;
}

// Of the kernel behind one that has begun the operation, waited long and found nothing to copy: ends its waits too.
__device__ __forceinline__ void go_on_from_copies(Collective &c) {
    if (blockIdx.x == 0 && threadIdx.x == 0 && c.args.state->copied == kWaitedLong) atomicOr(&c.troubled, 1u);
}

// What blocks of direct.cuh tell and await after their last round, by the first block for all of them.
__device__ __forceinline__ void end_copies(Collective &c, const epw_coll_copies_args &a) {
    if (blockIdx.x != 0) return;
    const uint32_t rounds = Share(c.args.bytes).rounds, pairs = gridDim.x * c.ranks;
    // Writer: the copies of this stream, which have read. Readers: heed(), of what peers say after that; and the peers'
    // await_taken().
    fence_before_counts();
    if (threadIdx.x < c.ranks && reads(c, c.rank, threadIdx.x)) heed(c, threadIdx.x);
    __syncthreads();
    auto progress = [&](uint32_t i) { return &c.args.progress[(kRaw * EPW_COLL_BLOCKS + i / c.ranks) * c.ranks + i % c.ranks]; };
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x) {
        const uint32_t block = i / c.ranks, peer = i % c.ranks;
        if (!reads(c, c.rank, peer)) continue;
        const uint64_t count = progress(i)->read += rounds;
        const uint64_t offset = epw_coll_count(&c.args.at, kRaw, c.rank, block, EPW_COLL_TAKEN);
        put_count(reinterpret_cast<uint64_t *>(at(c, peer, offset)), count_word(c, count));
    }
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x) {
        const uint32_t block = i / c.ranks, peer = i % c.ranks;
        if (reads(c, peer, c.rank)) await_taken_by(c, kRaw, peer, block, progress(i)->written += rounds);
    }
    __syncthreads();
    withdraw(c);
    if (threadIdx.x == 0 && !c.stopped) show_host(a.copied, ++c.args.state->operations_copied);
}

} // namespace epw
