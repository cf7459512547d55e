// Waiting for a peer's signal word, bounded. The decisions are those of c/peer/rules.h, shared with the host device.
//
// Every block waits for itself, one thread to a peer, or to two if there are more than a warp has threads. A rank's word is
// posted by the last block of a grid whose first ones may already wait, for that word too: so all blocks of the kernels that wait
// must find SMs (c/ep/gpu/engine.c, choose_blocks). Blocks may judge differently: one sees the last look before the deadline
// fail, another sees the word. Whoever gives a peer up says so in peers->gone, and the block that closes the operation, which
// alone decides what the half has delivered, leaves out everybody named there.
#pragma once

#include "kernels/peer/record.cuh"
#include "kernels/peer/signal.cuh"

namespace epw {

// Makes `peer` a suspect for the rest of the epoch, for this cause, and tells it, once. It may be this rank itself, whose blocks
// have found no SMs for too long: it goes on without its own experts then.
__device__ __noinline__ inline void suspect(const Peers &p, uint32_t peer, uint32_t cause) {
    epw_gpu_shared *shared = p.peers->shared;
    if (cause == EPW_CAUSE_TIMEOUT) atomicOr(reinterpret_cast<unsigned long long *>(&shared->silent), 1ull << peer);
    // Writer: this thread. Reader: tell_suspects() of any lane. Of each suspect it is known whether it was silent.
    __threadfence();
    if (atomicOr(reinterpret_cast<unsigned long long *>(&shared->suspects), 1ull << peer) >> peer & 1) return;
#pragma unroll 1
    for (uint32_t lane = 0; lane < p.peers->lanes; lane++) {
        signal_lane(p.peers, peer, p.rank, lane, EPW_WORD_DROPPED, epw_word(p.epoch, 0, 0));
    }
}

// Tells the host who is a suspect by now, as does each block that closes an operation which misses somebody. By one thread.
__device__ __forceinline__ uint64_t tell_suspects(const Peers &p) {
    epw_gpu_shared *shared = p.peers->shared;
    const uint64_t suspects = ptx::load_acquire_gpu(&shared->suspects);
    // Writer: this thread. Reader: the host, which looks at suspects first.
    ptx::store_relaxed_sys(&shared->silent_host[p.lane], ptx::load_relaxed_gpu(&shared->silent));
    ptx::store_release_sys(&shared->suspects_host[p.lane], suspects);
    return suspects;
}

// Gives a peer up for the operation: in this block and, at the end, in the kernel.
__device__ __noinline__ inline void leave_out(Peers &p, uint32_t peer) {
    atomicOr(&p.gone, 1ull << peer);
    atomicOr(reinterpret_cast<unsigned long long *>(&p.peers->gone), 1ull << peer);
}

// Tells the active peers that this rank is alive and waits for `named`, and how long it may; EPW_BEACON_NONE: that it waits no
// longer.
__device__ __noinline__ inline void post_beacon(const Peers &p, uint32_t named) {
    epw_gpu_peers *shared = p.peers;
    // epw_rule_lengthened from what awaited peers say on, in little code.
    uint32_t lengthened = ptx::load_relaxed_gpu(&shared->lengthened);
#pragma unroll 1
    while (lengthened < EPW_BEACON_LENGTH_MAX && p.group_deadline << lengthened < p.deadline) lengthened++;
    uint64_t word = epw_word(p.epoch, atomicAdd(&shared->beacon, 1u) + 1, epw_beacon_value(named, lengthened));
    uint64_t told = p.active & ~ptx::load_relaxed_gpu(&shared->shared->suspects) & ~(1ull << p.rank);
#pragma unroll 1
    for (; told != 0; told &= told - 1) signal(p, __ffsll(told) - 1, EPW_WORD_BEACON, word);
}

// Whether peers that count from this rank's last word must hear that it lives before its caller goes on.
__device__ __forceinline__ bool was_silent(const Peers &p, uint64_t spoke) {
    return epw_rule_silent(ptx::global_timer_ns() - spoke, p.group_deadline);
}

// Peers that heard of a long wait hear of its end; so do they if they have heard nothing for a while. By one thread.
__device__ __forceinline__ void end_waits(const Peers &p) {
    epw_gpu_peers *shared = p.peers;
    uint64_t beacons = 0, spoke = p.resumes ? p.spoke : UINT64_MAX; // at the latest: when the first wait began
    for (const auto &wait : shared->waits) {
        const uint64_t began = ptx::load_relaxed_gpu(&wait.began);
        beacons |= ptx::load_relaxed_gpu(&wait.beacons);
        if (began != 0 && began < spoke) spoke = began;
    }
    if (beacons || (spoke != UINT64_MAX && was_silent(p, spoke))) post_beacon(p, EPW_BEACON_NONE);
    for (auto &wait : shared->waits) wait.began = wait.beacons = 0;
    shared->recorded = shared->lengthened = 0;
    shared->gone = 0;
}

struct Arrival {
    bool arrived;
    uint32_t value;
};

// How many peers of the operation have not sent what is awaited.
__device__ __noinline__ inline uint32_t count_awaited(const Peers &p, Awaited what) {
    uint32_t count = 0;
#pragma unroll 1
    for (uint64_t rest = p.present; rest != 0; rest &= rest - 1) {
        uint32_t peer = __ffsll(rest) - 1;
        if (judge(p, what, look(p, what, peer)) != EPW_ARRIVED) count++;
    }
    return count;
}

// What a waiter has heard of one peer.
struct Heard {
    uint64_t beacons[EPW_MAX_LANES];
    uint64_t clock;      // the last sign that it lives, by globaltimer
    uint32_t named;      // whom to name: the peer itself, or whom it waits for
    uint32_t lengthened; // the most that its beacons have said
};

// A long wait. It is kept in memory: its registers would be those of every kernel.
struct LongWait {
    Awaited what;
    uint32_t phase, peer; // the phase is for the record
    uint64_t began;       // by globaltimer
    uint64_t spoke;       // when this rank has last written to its peers
    uint64_t asked;       // when the host was last asked whether the group goes on without the peer
    Heard heard;
};

// Listens for beacons.
__device__ __forceinline__ void listen(const Peers &p, uint32_t peer, uint64_t now, Heard &heard) {
    bool silent = true;
    uint32_t named = 0;
#pragma unroll 1
    for (uint32_t l = 0; l < p.peers->lanes; l++) {
        uint64_t beacon = beacon_from(p, peer, l);
        uint32_t whom, lengthened; // set also where there is no beacon, or one that was withdrawn
        if (!epw_rule_alive(beacon, p.epoch)) continue;
        // Each new beacon restarts the peer's clock, also one that says "I wait no longer".
        if (beacon != heard.beacons[l]) heard.clock = now;
        heard.beacons[l] = beacon;
        if (!epw_rule_beacon(beacon, p.epoch, p.ranks, &whom, &lengthened)) continue;
        if (silent || named == p.rank) named = whom;
        silent = false;
        if (lengthened <= heard.lengthened) continue;
        // It may wait for as long as it says, and this rank with it, which says so to those that wait for this one.
        heard.lengthened = lengthened;
        atomicMax(&p.peers->lengthened, lengthened);
    }
    heard.named = silent || named == p.rank ? peer : named;
    // This rank itself lives: its word comes once all its blocks have found SMs, and the peers bear with it as long.
    if (peer == p.rank) heard.clock = now;
}

// At the word alone, between looks at everything.
__device__ __forceinline__ void look_often(const Peers &p, Awaited what, uint32_t peer) {
    constexpr uint32_t kLooks = 32;
    const WordOf word(p, what, peer);
#pragma unroll 1
    for (uint32_t i = 0; i < kLooks && !word.is_expected(word.look()); i++) {
    }
}

// Whether the group goes on without the peer. A load from the host's memory.
__device__ __forceinline__ bool is_revoked(const Peers &p, uint32_t peer) {
    return ptx::load_relaxed_sys(p.peers->shared->revoked) >> peer & 1;
}

// Whether the connection to it is gone. The same. Nothing that came by it is placed after this.
__device__ __forceinline__ bool is_broken(const Peers &p, uint32_t peer) {
    return (p.queued >> peer & 1) && ptx::load_acquire_sys(p.peers->broken) >> peer & 1;
}

// Every thread that waits asks the host, so it does not do so at every look.
constexpr uint64_t kAskEveryNs = 1000000;

// Between looks at the words: beacons out and in, and the deadline. Why the wait ends; EPW_CAUSE_NONE: it goes on.
__device__ __noinline__ inline uint32_t go_on_waiting(const Peers &p, LongWait &w) {
    epw_gpu_peers *shared = p.peers;
    const bool suspected = ptx::load_relaxed_gpu(&shared->shared->suspects) >> w.peer & 1; // by the other lane, meanwhile
    uint64_t now = ptx::global_timer_ns();
    if (suspected || now - w.asked >= kAskEveryNs) {
        if (is_revoked(p, w.peer)) return EPW_CAUSE_SUPERSEDED;
        if (is_broken(p, w.peer)) return EPW_CAUSE_LINK;
        if (suspected) return EPW_CAUSE_SUSPECTED;
        w.asked = now;
    }
    listen(p, w.peer, now, w.heard);
    // By the group's deadline: the others may not have lengthened theirs.
    uint64_t *beacons = &shared->waits[w.what.permission ? 0 : 1].beacons;
    uint64_t due = epw_rule_beacons_due(now - w.spoke, p.group_deadline), posted = ptx::load_relaxed_gpu(beacons);
    if (due > posted) {
        auto *count = reinterpret_cast<unsigned long long *>(beacons);
        if (atomicCAS(count, posted, due) == posted) post_beacon(p, w.heard.named);
    }
    uint64_t expiry = epw_rule_expiry(w.began, w.heard.clock, p.deadline, p.group_deadline, w.heard.lengthened);
    return now < expiry ? EPW_CAUSE_NONE : EPW_CAUSE_TIMEOUT;
}

// The long wait: beacons, farewells, and the deadline. `phase` is for the record. `second`: the thread has waited for another
// peer before, and has not heard this one's beacons meanwhile.
__device__ __noinline__ inline Arrival await_long(Peers &p, Awaited what, uint32_t phase, uint32_t peer, bool second) {
    atomicOr(&p.troubled, 1u); // there will be a clock to stop, and perhaps beacons to withdraw
    uint64_t now = ptx::global_timer_ns();
    // The clock began when the first block of this kernel began to wait, so that a block that was scheduled late waits no
    // longer than the others.
    auto *clock = reinterpret_cast<unsigned long long *>(&p.peers->waits[what.permission ? 0 : 1].began);
    uint64_t began = atomicCAS(clock, 0ull, now);
    if (began == 0) began = now;
    // A kernel that only receives may begin long after this rank has last written to its peers.
    uint64_t spoke = p.resumes ? p.spoke : began;
    LongWait w = {what, phase, peer, began, spoke, 0, {{}, second ? now : began, peer, 0}};
    while (true) {
        look_often(p, w.what, w.peer);
        epw_sight seen = look(p, w.what, w.peer);
        if (judge(p, w.what, seen) == EPW_ARRIVED) return {true, epw_word_value(seen.word)};
        if (ptx::load_relaxed_gpu(&p.peers->gone) >> w.peer & 1) return {false, 0}; // another block has given it up
        uint32_t cause = epw_rule_gone(seen, own_epoch_word(p));
        if (cause == EPW_CAUSE_NONE) cause = go_on_waiting(p, w);
        if (cause == EPW_CAUSE_NONE) continue;
        if (cause == EPW_CAUSE_LINK) { // what has come before counts
            seen = look(p, w.what, w.peer);
            if (judge(p, w.what, seen) == EPW_ARRIVED) return {true, epw_word_value(seen.word)};
        }
        record_loss(p, w.phase, cause, w.peer, expected_word(p, w.what), seen.word, ptx::global_timer_ns() - w.began,
                    count_awaited(p, w.what));
        atomicOr(reinterpret_cast<unsigned long long *>(&p.peers->gone), 1ull << w.peer);
        suspect(p, w.peer, cause);
        return {false, 0};
    }
}

// In the steady state one look is enough, or a few; some tens of microseconds at a quarter of one each. A long wait costs the
// kernel a block that closes the operation, so that only who wants it measured goes there early.
__device__ __forceinline__ uint32_t looks_before_long(bool measured) { return measured ? 64 : 256; }

// Waits for one peer's word. `measured`: the time spent in a long wait is to be noted for add_waits. `second`: see await_long.
__device__ __forceinline__ Arrival await(Peers &p, Awaited what, uint32_t phase, uint32_t peer, bool measured, uint32_t looks,
                                         bool second) {
    // An epoch word counts in full, and only the long wait judges it so: once in an epoch.
    if (what.word == EPW_WORD_EPOCH) looks = 0;
    const WordOf word(p, what, peer);
    const uint64_t *words = words_from(p, peer);
#pragma unroll 1
    for (uint32_t i = 0; i < looks; i++) {
        const uint64_t dropped = what.permission ? ptx::load_relaxed_sys(&words[EPW_WORD_DROPPED]) : 0;
        const uint64_t seen = word.look();
        if (!word.is_expected(seen)) continue;
        if (what.permission && epw_word_epoch(dropped) >= p.epoch) break; // it has dropped this rank
        return {true, epw_word_value(seen)};
    }
    uint64_t began = measured ? ptx::global_timer_ns() : 0;
    Arrival arrival = await_long(p, what, phase, peer, second);
    if (measured) {
        auto *waited = reinterpret_cast<unsigned long long *>(&p.peers->waited[peer]);
        atomicMax(waited, ptx::global_timer_ns() - began);
    }
    return arrival;
}
__device__ __forceinline__ Arrival await(Peers &p, Awaited what, uint32_t phase, uint32_t peer, bool measured) {
    return await(p, what, phase, peer, measured, looks_before_long(measured), false);
}

// Adds what `await` has noted to the caller's sums, [ranks], where it has asked for them; lanes and buffers may share them. By
// the block that closes the operation.
__device__ inline void add_waits(const Peers &p, uint64_t *wait_ns) {
    if (wait_ns == nullptr || threadIdx.x >= p.ranks) return;
    ptx::reduce_relaxed_gpu(&wait_ns[threadIdx.x], p.peers->waited[threadIdx.x]);
    p.peers->waited[threadIdx.x] = 0;
}

} // namespace epw
