// Data that travels without a signal word: packets of 8 data bytes and a 64-bit tag, stored in one access. A reader that finds
// the expected tag has the data, so a small message needs neither a fence nor a word. And counts: words of the user's own, in its
// part of the window, that say how much it has written there or has finished reading.
//
// A tag is {epoch 23 | op 41}. At two microseconds an operation, op wraps after 50 days: until then a stale packet is never taken
// for a current one.
#pragma once

#include "kernels/peer/wait.cuh"

namespace epw {

__device__ __forceinline__ uint64_t tag_of(const Peers &p, uint64_t op) { return epw_epoch_word(p.epoch, op & EPW_STEP_MAX); }

// Writer: this thread. Reader: the peer's packet_at(), which loads tag and data in one access.
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

// Orders what this thread has acquired before the packets that it puts next; or packets that it has seen before its next loads.
// Readers and writers: those of the packets.
__device__ __forceinline__ void fence_beside_packets() { ptx::fence_sys(); }

// A count word is {epoch 23 | count 41}; it is valid in its own epoch only. Counts of rows wrap around within days, and are never
// far from those that are awaited.
__device__ __forceinline__ uint64_t count_word(const Peers &p, uint64_t count) { return tag_of(p, count); }
__device__ __forceinline__ bool has_count(const Peers &p, uint64_t word, uint64_t count) {
    return epw_word_epoch(word) == p.epoch && ((word - count) & EPW_STEP_MAX) <= EPW_STEP_MAX / 2;
}
// Writer: this thread, with what it has acquired through a block barrier. Reader: the peer's count_at(), an acquire.
__device__ __forceinline__ void post_count(const Peers &p, uint32_t peer, uint64_t offset, uint64_t word) {
    ptx::store_release_sys(reinterpret_cast<uint64_t *>(at(p, peer, offset)), word);
}
__device__ __forceinline__ uint64_t count_at(const Peers &p, uint64_t offset) {
    return ptx::load_acquire_sys(reinterpret_cast<const uint64_t *>(p.own + offset));
}

// The same where the addresses are known. What glimpse_count() sees is not acquired.
__device__ __forceinline__ void post_count(uint64_t *to, uint64_t word) { ptx::store_release_sys(to, word); }
__device__ __forceinline__ uint64_t count_at(const uint64_t *from) { return ptx::load_acquire_sys(from); }
__device__ __forceinline__ uint64_t glimpse_count(const uint64_t *from) { return ptx::load_relaxed_sys(from); }
// Several counts behind one fence. Writer: this thread, with what it has acquired before the fence. Readers: the peers'
// count_at().
__device__ __forceinline__ void fence_before_counts() { ptx::fence_sys(); }
__device__ __forceinline__ void put_count(uint64_t *to, uint64_t word) { ptx::store_relaxed_sys(to, word); }

enum class Come { kNotYet, kYes, kStop };

// Waits until `come` says that the awaited data of the peer is there, bounded like the wait for a word. Returns false if `come`
// says kStop, or if the peer is given up. kPosts: the peer may be behind a queue, and then what came before its connection was
// lost counts. `come` is called with the number of the look in its round, from 0, so that it can look at something less often
// without counting.
//
// The clock starts here, because the duration of an operation with many such waits grows with its size. But with kAsks, until
// come.has_begun() says that the peer has begun the operation, the clock is that of the operation's first wait, so that several
// ranks that are lost together cost one deadline.
template <bool kPosts = false, bool kAsks = false, typename Look>
__device__ __noinline__ bool await_long(Peers &p, uint32_t phase, uint32_t peer, uint64_t expected, const Look &come) {
    LongWait w;
    w.what = {EPW_WORD_USER, 0, false};
    w.phase = phase;
    w.first = peer;
    w.late = 1;
    w.measured = false;
    begin_long_wait(p, w);
    if constexpr (!kAsks) w.began = w.entered;
    constexpr uint32_t kLooks = 32; // per round
    for (;;) {                      // ends by the rules of rules.h
        if constexpr (kAsks) {
            if (w.began != w.entered && come.has_begun()) w.began = w.entered;
        }
        const uint64_t now = ptx::global_timer_ns();
        w.asks = now - w.asked >= kAskEveryNs;
        if (w.asks) w.asked = now;
        // The DROPPED word is loaded before the data: a thread that sees it also sees everything the peer wrote before it.
        if constexpr (kPosts) {
            if (has(p.queued, peer)) bring_words(p, peer, w.what.word, false);
        }
        const epw_sight seen = look(p, w.what, peer);
        Come how = Come::kNotYet;
#pragma unroll 1
        for (uint32_t i = 0; i < kLooks && how == Come::kNotYet; i++) how = come(i);
        if (how != Come::kNotYet) return how == Come::kYes;
        if (has_now(p.peers->gone, peer)) break; // another thread has given it up
        uint32_t cause = epw_rule_gone(seen, own_epoch_word(p));
        if (cause == EPW_CAUSE_NONE) cause = go_on_waiting(p, w);
        if (cause == EPW_CAUSE_NONE) continue;
        if (kPosts && has(p.queued, peer) && (how = come(0)) != Come::kNotYet) return how == Come::kYes;
        record_loss(p, phase, cause, peer, expected, 0, ptx::global_timer_ns() - w.began, 1);
        suspect(p, peer, cause);
        break;
    }
    leave_out(p, peer);
    return false;
}

} // namespace epw
