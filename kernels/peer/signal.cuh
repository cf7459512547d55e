// Signalling: a word in a peer's window behind what was written there before. For a mapped peer a release store, for the others
// an entry of a queue.
#pragma once

#include "kernels/peer/post.cuh"

namespace epw {

// Of a mapped peer.
__device__ __forceinline__ uint64_t *word_at(const Peers &p, uint32_t peer, uint32_t word) {
    return reinterpret_cast<uint64_t *>(at(p, peer, epw_word_offset(p.rank, p.lane, word)));
}

// Writer: this thread. It has acquired whatever else the word is to stand for, and hands that on: who acquires the word sees it.
__device__ __forceinline__ void signal_mapped(const Peers &p, uint32_t peer, uint32_t word, uint64_t value) {
    ptx::store_release_sys(word_at(p, peer, word), value);
}

__device__ __forceinline__ void signal(const Peers &p, uint32_t peer, uint32_t word, uint64_t value) {
    if (has(p.queued, peer)) {
        post_word(p.peers, p.lane, peer, epw_word_offset(p.rank, p.lane, word), value);
    } else {
        signal_mapped(p, peer, word, value);
    }
}

// Of a peer behind a queue: the ranges, then the word. By a whole warp; writer and reader as of `post`.
__device__ __forceinline__ void signal_behind(const Peers &p, uint32_t peer, const Range *ranges, uint32_t count, uint32_t word,
                                              uint64_t value) {
    // A quarter: others do not take this rank for silent meanwhile.
    post(p.peers, p.lane, peer, ranges, count, epw_word_offset(p.rank, p.lane, word), value, p.group_deadline / 4);
}

// The same as `signal` in two parts, for who has something else to wait for in between: what was before the first part is before
// the word.
__device__ __forceinline__ void prepare_signal() { ptx::fence_sys(); }
__device__ __forceinline__ void signal_prepared(const Peers &p, uint32_t peer, uint32_t word, uint64_t value) {
    if (has(p.queued, peer)) {
        post_word(p.peers, p.lane, peer, epw_word_offset(p.rank, p.lane, word), value);
    } else {
        ptx::store_relaxed_sys(word_at(p, peer, word), value);
    }
}

// Of any lane, by a kernel that has no operation.
__device__ __forceinline__ void signal_lane(const epw_gpu_peers *peers, uint32_t peer, uint32_t rank, uint32_t lane,
                                            uint32_t word, uint64_t value) {
    const uint64_t offset = epw_word_offset(rank, lane, word);
    if (has(peers->queued, peer)) {
        post_word(peers, lane, peer, offset, value);
    } else {
        ptx::store_release_sys(reinterpret_cast<uint64_t *>(peers->table[EPW_AREA_CONTROL][peer] + offset), value);
    }
}

} // namespace epw
