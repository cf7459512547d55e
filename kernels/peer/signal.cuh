// Signalling: posting a word to a peer's window after the data written there. For a mapped peer this is a release store, for the
// others a queue entry.
#pragma once

#include "kernels/peer/post.cuh"

namespace epw {

// The address of a word at a mapped peer.
__device__ __forceinline__ uint64_t *word_at(const Peers &p, uint32_t peer, uint32_t word) {
    return reinterpret_cast<uint64_t *>(at(p, peer, epw_word_offset(p.rank, p.lane, word)));
}

// Writer: this thread, which has acquired all other data that the word announces. Reader: the peer, whose acquire of the word
// makes that data visible to it too.
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

// For a peer behind a queue: posts the ranges, then the word. Called by a whole warp; for writer and reader see `post`.
__device__ __forceinline__ void signal_behind(const Peers &p, uint32_t peer, const Range *ranges, uint32_t count, uint32_t word,
                                              uint64_t value) {
    // A quarter of the deadline, so that other peers do not suspect this rank of silence meanwhile.
    post(p.peers, p.lane, peer, ranges, count, epw_word_offset(p.rank, p.lane, word), value, p.group_deadline / 4);
}

// `signal` in two parts, for a caller that waits for something else in between: everything before prepare_signal() is ordered
// before the word.
__device__ __forceinline__ void prepare_signal() { ptx::fence_sys(); }
__device__ __forceinline__ void signal_prepared(const Peers &p, uint32_t peer, uint32_t word, uint64_t value) {
    if (has(p.queued, peer)) {
        post_word(p.peers, p.lane, peer, epw_word_offset(p.rank, p.lane, word), value);
    } else {
        ptx::store_relaxed_sys(word_at(p, peer, word), value);
    }
}

// Signals a peer on any lane, for kernels without an operation.
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
