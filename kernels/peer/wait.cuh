// Waiting for a peer's signal word, bounded. The decisions are those of c/peer/rules.h, shared with the host device.
//
// Every block waits for itself, one thread to a peer; where only one warp waits, a thread to several, at a time. A rank's word is
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
    if (cause == EPW_CAUSE_TIMEOUT) insert(shared->silent, peer);
    // Writer: this thread. Reader: tell_suspects() of any lane. Of each suspect it is known whether it was silent.
    __threadfence();
    if (insert(shared->suspects, peer)) return;
#pragma unroll 1
    for (uint32_t lane = 0; lane < p.peers->lanes; lane++) {
        signal_lane(p.peers, peer, p.rank, lane, EPW_WORD_DROPPED, epw_word(p.epoch, 0, 0));
    }
}

// Tells the host who is a suspect by now, as does each block that closes an operation which misses somebody; `told`: them. By
// one thread.
__device__ __noinline__ inline void tell_suspects(const Peers &p, epw_rank_set &told) {
    epw_gpu_shared *shared = p.peers->shared;
#pragma unroll 1
    for (uint32_t i = 0; i < EPW_RANK_WORDS; i++) {
        told.words[i] = ptx::load_acquire_gpu(&shared->suspects.words[i]);
        ptx::store_relaxed_sys(&shared->silent_host[p.lane].words[i], ptx::load_relaxed_gpu(&shared->silent.words[i]));
    }
    // Writer: this thread. Reader: the host, which looks at suspects first.
    ptx::fence_sys();
#pragma unroll 1
    for (uint32_t i = 0; i < EPW_RANK_WORDS; i++) {
        ptx::store_relaxed_sys(&shared->suspects_host[p.lane].words[i], told.words[i]);
    }
}

// Gives a peer up for the operation: in this block and, at the end, in the kernel.
__device__ __noinline__ inline void leave_out(Peers &p, uint32_t peer) {
    remove(p.reachable, peer);
    p.gave_up = 1;
    insert(p.peers->gone, peer);
    atomicOr(&p.troubled, 1u);
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
#pragma unroll 1
    for (uint32_t peer = 0; peer < p.ranks; peer++) {
        if (peer == p.rank || !has(p.active, peer) || has_now(shared->shared->suspects, peer)) continue;
        signal(p, peer, EPW_WORD_BEACON, word);
    }
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
    shared->gone = {};
}

struct Arrival {
    bool arrived;
    uint32_t value; // 0 if it has not
};

// How many peers of the operation have not sent what is awaited.
__device__ __noinline__ inline uint32_t count_awaited(const Peers &p, Awaited what) {
    uint32_t count = 0;
#pragma unroll 1
    for (uint32_t peer = 0; peer < p.ranks; peer++) {
        if (has(p.present, peer) && judge(p, what, look(p, what, peer)) != EPW_ARRIVED) count++;
    }
    return count;
}

// A long wait of a thread: for peers first, first + 32 and so on. It is kept in memory: its registers would be those of every
// kernel.
struct LongWait {
    Awaited what;
    uint32_t phase;                         // for the record
    uint32_t first, late;                   // bit i of `late`: peer first + 32 * i is still awaited
    uint32_t turn;                          // the bit of the one that is looked at
    bool measured;                          // see await
    bool asks;                              // the host is asked in this round whether the group goes on without somebody,
    uint64_t asked;                         // and was asked last so long ago
    uint64_t began;                         // by globaltimer
    uint64_t entered;                       // by this thread
    uint64_t spoke;                         // when this rank has last written to its peers
    uint8_t lengthened[EPW_GPU_PEERS / 32]; // the most that each peer's beacons have said

    __device__ __forceinline__ uint32_t peer() const { return first + 32 * turn; }
};

// Listens for beacons. Returns when the peer has last given a sign that it lives; `named`: whom to name, the peer itself or whom
// it waits for.
__device__ __forceinline__ uint64_t listen(const Peers &p, LongWait &w, uint64_t now, uint32_t &named) {
    const uint32_t peer = w.peer();
    epw_gpu_heard &heard = p.peers->heard[peer];
    bool silent = true;
    named = 0;
#pragma unroll 1
    for (uint32_t l = 0; l < p.peers->lanes; l++) {
        uint64_t beacon = beacon_from(p, peer, l);
        uint32_t whom, lengthened; // set also where there is no beacon, or one that was withdrawn
        if (!epw_rule_alive(beacon, p.epoch)) continue;
        // Each new beacon restarts the peer's clock, also one that says "I wait no longer".
        if (beacon != ptx::load_acquire_gpu(&heard.beacons[l])) {
            atomicMax(reinterpret_cast<unsigned long long *>(&heard.clock), now);
            // Writer: this thread, the clock first. Reader: other threads that wait for the peer, to which it is no news then.
            __threadfence();
            ptx::store_relaxed_gpu(&heard.beacons[l], beacon);
        }
        if (!epw_rule_beacon(beacon, p.epoch, p.ranks, &whom, &lengthened)) continue;
        if (silent || named == p.rank) named = whom;
        silent = false;
        if (lengthened <= w.lengthened[w.turn]) continue;
        // It may wait for as long as it says, and this rank with it, which says so to those that wait for this one.
        w.lengthened[w.turn] = uint8_t(lengthened);
        atomicMax(&p.peers->lengthened, lengthened);
    }
    if (silent || named == p.rank) named = peer;
    // This rank itself lives: its word comes once all its blocks have found SMs, and the peers bear with it as long.
    return peer == p.rank ? now : max(w.began, ptx::load_relaxed_gpu(&heard.clock));
}

// At the word alone, between looks at everything.
__device__ __forceinline__ void look_often(const Peers &p, Awaited what, uint32_t peer, uint32_t looks) {
    const WordOf word(p, what, peer);
#pragma unroll 1
    for (uint32_t i = 0; i < looks && !word.is_expected(word.look()); i++) word.bring(p, what, peer);
}

// Whether the group goes on without the peer. A load from the host's memory.
__device__ __forceinline__ bool is_revoked(const Peers &p, uint32_t peer) {
    return ptx::load_relaxed_sys(&p.peers->shared->revoked->words[peer / 32]) & bit_of(peer);
}

// Whether the connection to it is gone. The same. Nothing that came by it is placed after this.
__device__ __forceinline__ bool is_broken(const Peers &p, uint32_t peer) {
    return has(p.queued, peer) && (ptx::load_acquire_sys(&p.peers->broken->words[peer / 32]) & bit_of(peer));
}

// Every thread that waits asks the host, so it does not do so in every round.
constexpr uint64_t kAskEveryNs = 1000000;

// Between looks at the words: beacons out and in, and the deadline. Why the wait ends; EPW_CAUSE_NONE: it goes on.
__device__ __forceinline__ uint32_t go_on_waiting(const Peers &p, LongWait &w) {
    epw_gpu_peers *shared = p.peers;
    const uint32_t peer = w.peer();
    const bool suspected = has_now(shared->shared->suspects, peer); // by the other lane, meanwhile
    if (suspected || w.asks) {
        if (is_revoked(p, peer)) return EPW_CAUSE_SUPERSEDED;
        if (is_broken(p, peer)) return EPW_CAUSE_LINK;
        if (suspected) return EPW_CAUSE_SUSPECTED;
    }
    uint32_t named;
    const uint64_t now = ptx::global_timer_ns(), clock = listen(p, w, now, named);
    // By the group's deadline: the others may not have lengthened theirs.
    uint64_t *beacons = &shared->waits[w.what.permission ? 0 : 1].beacons;
    uint64_t due = epw_rule_beacons_due(now - w.spoke, p.group_deadline), posted = ptx::load_relaxed_gpu(beacons);
    if (due > posted) {
        auto *count = reinterpret_cast<unsigned long long *>(beacons);
        if (atomicCAS(count, posted, due) == posted) post_beacon(p, named);
    }
    uint64_t expiry = epw_rule_expiry(w.began, clock, p.deadline, p.group_deadline, w.lengthened[w.turn]);
    return now < expiry ? EPW_CAUSE_NONE : EPW_CAUSE_TIMEOUT;
}

__device__ __forceinline__ Arrival arrival(const Peers &p, Awaited what, epw_sight seen) {
    const bool arrived = judge(p, what, seen) == EPW_ARRIVED;
    return {arrived, arrived ? epw_word_value(seen.word) : 0};
}

// A look at one peer: at its word, and at farewells, beacons and the deadline. Whether the wait for it is over, and then how.
__device__ __forceinline__ bool is_over(Peers &p, LongWait &w, Arrival &how) {
    const uint32_t peer = w.peer();
    constexpr uint32_t kLooks = 32; // of a round
    const bool queued = has(p.queued, peer);
    look_often(p, w.what, peer, kLooks / __popc(w.late));
    if (queued) bring_words(p, peer, w.what.word, false);
    epw_sight seen = look(p, w.what, peer);
    how = arrival(p, w.what, seen);
    if (how.arrived || has_now(p.peers->gone, peer)) return true; // another block may have given it up
    uint32_t cause = epw_rule_gone(seen, own_epoch_word(p));
    if (cause == EPW_CAUSE_NONE) cause = go_on_waiting(p, w);
    if (cause == EPW_CAUSE_NONE) return false;
    if (queued) { // what came before counts, and other threads bring words one at a time
        bring_words(p, peer, w.what.word, true);
        seen = look(p, w.what, peer);
        how = arrival(p, w.what, seen);
        if (how.arrived) return true;
        const uint32_t gone = epw_rule_gone(seen, own_epoch_word(p));
        if (gone != EPW_CAUSE_NONE) cause = gone;
    }
    record_loss(p, w.phase, cause, peer, expected_word(p, w.what), seen.word, ptx::global_timer_ns() - w.began,
                count_awaited(p, w.what));
    insert(p.peers->gone, peer);
    suspect(p, peer, cause);
    return true;
}

// Begins a long wait for the peers that `w` names.
__device__ __noinline__ inline void begin_long_wait(Peers &p, LongWait &w) {
    atomicOr(&p.troubled, 1u); // there will be a clock to stop, and perhaps beacons to withdraw
    w.entered = ptx::global_timer_ns();
    // The clock began when the first block of this kernel began to wait, so that a block that was scheduled late waits no
    // longer than the others.
    auto *clock = reinterpret_cast<unsigned long long *>(&p.peers->waits[w.what.permission ? 0 : 1].began);
    w.began = atomicCAS(clock, 0ull, w.entered);
    if (w.began == 0) w.began = w.entered;
    // A kernel that only receives may begin long after this rank has last written to its peers.
    w.spoke = p.resumes ? p.spoke : w.began;
    w.asked = 0;
    w.asks = false;
    w.turn = 0;
    for (uint8_t &lengthened : w.lengthened) lengthened = 0;
}

// Goes on with it until it is over for one more peer, which is w.peer(). There is one.
__device__ __noinline__ inline Arrival await_next(Peers &p, LongWait &w) {
    Arrival how;
    do {
        const uint32_t after = w.late & ~((2u << w.turn) - 1);
        if (after == 0) { // a round begins
            const uint64_t now = ptx::global_timer_ns();
            w.asks = now - w.asked >= kAskEveryNs;
            if (w.asks) w.asked = now;
        }
        w.turn = __ffs(after ? after : w.late) - 1;
    } while (!is_over(p, w, how));
    w.late &= ~(1u << w.turn);
    auto *waited = reinterpret_cast<unsigned long long *>(&p.peers->waited[w.peer()]);
    if (w.measured) atomicMax(waited, ptx::global_timer_ns() - w.entered);
    return how;
}

// A long wait for one peer.
__device__ __noinline__ inline Arrival await_long(Peers &p, Awaited what, uint32_t phase, uint32_t peer, bool measured) {
    LongWait w;
    w.what = what;
    w.phase = phase;
    w.first = peer;
    w.late = 1;
    w.measured = measured;
    begin_long_wait(p, w);
    return await_next(p, w);
}

// In the steady state one look is enough, or a few; some tens of microseconds at a quarter of one each. A long wait costs the
// kernel a block that closes the operation, so that only who wants it measured goes there early.
__device__ __forceinline__ uint32_t looks_before_long(bool measured) { return measured ? 64 : 256; }

// Waits for one peer's word. `measured`: the time spent in a long wait is to be noted for add_waits.
__device__ __forceinline__ Arrival await(Peers &p, Awaited what, uint32_t phase, uint32_t peer, bool measured) {
    // An epoch word counts in full, and only the long wait judges it so: once in an epoch.
    const uint32_t looks = what.word == EPW_WORD_EPOCH ? 0 : looks_before_long(measured);
    const WordOf word(p, what, peer);
    const uint64_t *words = words_from(p, peer);
    // The word may have been brought long ago, and a farewell have come behind it since.
    if (what.permission && p.posts && has(p.queued, peer)) bring_word(p, peer, EPW_WORD_DROPPED);
#pragma unroll 1
    for (uint32_t i = 0; i < looks; i++) {
        const uint64_t dropped = what.permission ? ptx::load_relaxed_sys(&words[EPW_WORD_DROPPED]) : 0;
        const uint64_t seen = word.look();
        if (!word.is_expected(seen)) {
            word.bring(p, what, peer);
            continue;
        }
        if (what.permission && epw_word_epoch(dropped) >= p.epoch) break; // it has dropped this rank
        return {true, epw_word_value(seen)};
    }
    return await_long(p, what, phase, peer, measured);
}

// Adds what `await` has noted to the caller's sums, [ranks], where it has asked for them; lanes and buffers may share them. By
// the block that closes the operation.
__device__ inline void add_waits(const Peers &p, uint64_t *wait_ns) {
    if (wait_ns == nullptr || threadIdx.x >= p.ranks) return;
    ptx::reduce_relaxed_gpu(&wait_ns[threadIdx.x], p.peers->waited[threadIdx.x]);
    p.peers->waited[threadIdx.x] = 0;
}

} // namespace epw
