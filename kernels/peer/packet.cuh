// What travels without a word behind it: packets of 8 data bytes and a tag of 64 bits, stored as one. A reader that finds the tag
// it expects has the data, so a small message needs neither a fence nor a word. And counts: words of a user's own in its part of
// the window, of what it has written there before or is done with.
//
// A tag is {epoch 23 | op 41}. So many operations of two microseconds take 50 days: a packet that lies where nothing was written
// since is never taken for one of now.
#pragma once

#include "kernels/peer/wait.cuh"

namespace epw {

__device__ __forceinline__ uint64_t tag_of(const Peers &p, uint64_t op) { return epw_epoch_word(p.epoch, op & EPW_STEP_MAX); }

// Writer: this thread. Reader: who finds the tag, in the same load as the data.
__device__ __forceinline__ void put_packet(unsigned char *to, uint64_t data, uint64_t tag) {
    ptx::store_relaxed_sys(to, ptx::Pair{data, tag});
}
__device__ __forceinline__ void put_packet(const Peers &p, uint32_t peer, uint64_t offset, uint64_t data, uint64_t tag) {
    put_packet(at(p, peer, offset), data, tag);
}

struct Packet {
    uint64_t data, tag;
};
__device__ __forceinline__ Packet packet_at(const unsigned char *from) {
    const ptx::Pair pair = ptx::load_pair_relaxed_sys(from);
    return {pair.low, pair.high};
}
__device__ __forceinline__ Packet packet_at(const Peers &p, uint64_t offset) { return packet_at(p.own + offset); }

// A count is {epoch 23 | count 41} of its epoch alone.
__device__ __forceinline__ uint64_t count_word(const Peers &p, uint64_t count) { return tag_of(p, count); }
__device__ __forceinline__ bool has_count(const Peers &p, uint64_t word, uint64_t count) {
    return epw_word_epoch(word) == p.epoch && epw_word_step(word) >= count;
}
// Writer: this thread, with what it has acquired by a barrier. Reader: the peer's count_at, an acquire.
__device__ __forceinline__ void post_count(const Peers &p, uint32_t peer, uint64_t offset, uint64_t word) {
    ptx::store_release_sys(reinterpret_cast<uint64_t *>(at(p, peer, offset)), word);
}
__device__ __forceinline__ uint64_t count_at(const Peers &p, uint64_t offset) {
    return ptx::load_acquire_sys(reinterpret_cast<const uint64_t *>(p.own + offset));
}

enum class Come { kNotYet, kYes, kStop };

// Waits, bounded as for a word, until `come` says that what is awaited of the peer is there; where it says kStop, or the peer is
// given up: false. Its time runs from here, since an operation with many such waits is as long as it is large.
template <typename Look>
__device__ __noinline__ bool await_long(Peers &p, uint32_t phase, uint32_t peer, uint64_t expected, const Look &come) {
    LongWait w;
    w.what = {EPW_WORD_USER, 0, false};
    w.phase = phase;
    w.first = peer;
    w.late = 1;
    w.measured = false;
    begin_long_wait(p, w);
    w.began = w.entered;
    constexpr uint32_t kLooks = 32; // of a round
    for (;;) {                      // ends: by rules.h
        const uint64_t now = ptx::global_timer_ns();
        w.asks = now - w.asked >= kAskEveryNs;
        if (w.asks) w.asked = now;
        // The farewell first: whoever sees it sees what came before it.
        const epw_sight seen = look(p, w.what, peer);
        Come how = Come::kNotYet;
#pragma unroll 1
        for (uint32_t i = 0; i < kLooks && how == Come::kNotYet; i++) how = come();
        if (how != Come::kNotYet) return how == Come::kYes;
        if (has_now(p.peers->gone, peer)) break; // by another thread
        uint32_t cause = epw_rule_gone(seen, own_epoch_word(p));
        if (cause == EPW_CAUSE_NONE) cause = go_on_waiting(p, w);
        if (cause == EPW_CAUSE_NONE) continue;
        record_loss(p, phase, cause, peer, expected, 0, ptx::global_timer_ns() - w.began, 1);
        suspect(p, peer, cause);
        break;
    }
    leave_out(p, peer);
    return false;
}

} // namespace epw
