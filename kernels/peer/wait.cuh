// Bounded waits for peers' signal words. The decisions are those of c/peer/rules.h, shared with the host device.
//
// Every block waits on its own, one thread per peer; where a single warp waits, each thread polls several peers in turn. A rank's
// word is posted by the last block of a grid, while its first blocks may already be waiting for peers, or for that same word: so
// all blocks of kernels that wait must be co-resident (c/ep/gpu/sms.h). Blocks may judge differently: one
// block's last look before the deadline may miss the word that another block sees. A block that gives a peer up inserts it in
// peers->gone, and the block that closes the operation, which alone decides what this half of the operation has delivered, leaves
// out every peer found there.
#pragma once

#include "kernels/peer/record.cuh"
#include "kernels/peer/signal.cuh"

namespace epw {

// Makes `peer` a suspect for the rest of the epoch, with this cause, and tells it so, once. The peer may be this rank itself, if
// its blocks did not get SMs for too long: it then continues without its own experts.
__device__ __noinline__ inline void suspect(const Peers &p, uint32_t peer, uint32_t cause) {
    epw_gpu_shared *shared = p.peers->shared;
    if (cause == EPW_CAUSE_TIMEOUT) insert(shared->silent, peer);
    // Writer: this thread. Reader: tell_suspects() of any lane. A reader that sees a suspect also sees whether it was silent.
    __threadfence();
    if (insert(shared->suspects, peer)) return;
#pragma unroll 1
    for (uint32_t lane = 0; lane < p.peers->lanes; lane++) {
        signal_lane(p.peers, peer, p.rank, lane, EPW_WORD_DROPPED, epw_word(p.epoch, 0, 0));
    }
}

// Publishes the current suspects to the host and returns them in `told`. Every block that closes an operation with missing peers
// does this. Called by one thread.
__device__ __noinline__ inline void tell_suspects(const Peers &p, epw_rank_set &told) {
    epw_gpu_shared *shared = p.peers->shared;
#pragma unroll 1
    for (uint32_t i = 0; i < EPW_RANK_WORDS; i++) {
        told.words[i] = ptx::load_acquire_gpu(&shared->suspects.words[i]);
        ptx::store_relaxed_sys(&shared->silent_host[p.lane].words[i], ptx::load_relaxed_gpu(&shared->silent.words[i]));
    }
    // Writer: this thread. Reader: the host, which loads the suspects first and the silent ones after.
    ptx::fence_sys();
#pragma unroll 1
    for (uint32_t i = 0; i < EPW_RANK_WORDS; i++) {
        ptx::store_relaxed_sys(&shared->suspects_host[p.lane].words[i], told.words[i]);
    }
}

// Gives a peer up for the operation: in this block at once, and in the whole kernel when it closes.
__device__ __noinline__ inline void leave_out(Peers &p, uint32_t peer) {
    remove(p.reachable, peer);
    p.gave_up = 1;
    insert(p.peers->gone, peer);
    atomicOr(&p.troubled, 1u);
}

// Tells the active peers that this rank is alive and waits for `named`, and how far deadlines are lengthened. EPW_BEACON_NONE: it
// waits no longer.
__device__ __noinline__ inline void post_beacon(const Peers &p, uint32_t named) {
    epw_gpu_peers *shared = p.peers;
    // epw_rule_lengthened, starting from what the awaited peers say, in a few instructions.
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

// Whether this rank has been silent so long that its peers, which time it from its last word, need a beacon before its caller
// continues.
__device__ __forceinline__ bool was_silent(const Peers &p, uint64_t spoke) {
    return epw_rule_silent(ptx::global_timer_ns() - spoke, p.group_deadline);
}

// Nobody waits any longer, and nothing is remembered of the waits. Called by one thread.
__device__ __forceinline__ void forget_waits(epw_gpu_peers *peers) {
    for (auto &wait : peers->waits) wait.began = wait.beacons = 0;
    peers->recorded = peers->lengthened = 0;
    peers->gone = {};
}

// Ends the operation's waits. If peers were told of a long wait, or have heard nothing from this rank for a while, posts a beacon
// to tell them that it waits no longer. Called by one thread.
__device__ __forceinline__ void end_waits(const Peers &p) {
    epw_gpu_peers *shared = p.peers;
    uint64_t beacons = 0, spoke = p.resumes ? p.spoke : UINT64_MAX; // no later than the beginning of the first wait
    for (const auto &wait : shared->waits) {
        const uint64_t began = ptx::load_relaxed_gpu(&wait.began);
        beacons |= ptx::load_relaxed_gpu(&wait.beacons);
        if (began != 0 && began < spoke) spoke = began;
    }
    if (beacons || (spoke != UINT64_MAX && was_silent(p, spoke))) post_beacon(p, EPW_BEACON_NONE);
    forget_waits(shared);
}

struct Arrival {
    bool arrived;
    uint32_t value; // 0 if it has not arrived
};

// Counts the peers of the operation whose awaited word has not come.
__device__ __noinline__ inline uint32_t count_awaited(const Peers &p, Awaited what) {
    uint32_t count = 0;
#pragma unroll 1
    for (uint32_t peer = 0; peer < p.ranks; peer++) {
        if (has(p.present, peer) && judge(p, what, look(p, what, peer)) != EPW_ARRIVED) count++;
    }
    return count;
}

// A thread's long wait, for the peers first, first + 32 and so on. It is kept in memory because its registers would count towards
// every kernel.
struct LongWait {
    Awaited what;
    uint32_t phase;                         // for the record
    uint32_t first, late;                   // bit i of `late`: peer first + 32 * i is still awaited
    uint32_t turn;                          // the bit of the peer that is looked at
    bool measured;                          // note the time waited, see await
    bool asks;                              // in this round the host's `revoked` and `broken` sets are read,
    uint64_t asked;                         // and this is when they were last read
    uint64_t began;                         // globaltimer when the wait's clock started
    uint64_t entered;                       // globaltimer when this thread entered
    uint64_t spoke;                         // when this rank last wrote to its peers
    uint8_t lengthened[EPW_GPU_PEERS / 32]; // the most by which each peer's beacons have lengthened its deadline

    __device__ __forceinline__ uint32_t peer() const { return first + 32 * turn; }
};

// A beacon of this or an earlier epoch restarts the peer's clock if it is new, even one that says that it waits no longer.
__device__ __forceinline__ void hear(const Peers &p, uint32_t peer, uint32_t lane, uint64_t beacon, uint64_t now) {
    epw_gpu_heard &heard = p.peers->heard[peer];
    if (beacon == ptx::load_acquire_gpu(&heard.beacons[lane])) return;
    atomicMax(reinterpret_cast<unsigned long long *>(&heard.clock), now);
    // Writer: this thread, the clock before the beacon. Reader: other threads that wait for the peer, which then do not take this
    // beacon for a new one.
    __threadfence();
    ptx::store_relaxed_gpu(&heard.beacons[lane], beacon);
}

// Hears all peers, so that what a peer said long ago does not restart its clock when this rank waits for it later.
__device__ __noinline__ inline void hear_all(const Peers &p, uint64_t now) {
#pragma unroll 1
    for (uint32_t i = 0; i < p.ranks * p.peers->lanes; i++) {
        const uint32_t peer = i / p.peers->lanes, lane = i % p.peers->lanes;
        if (peer == p.rank || !has(p.active, peer)) continue;
        const uint64_t beacon = beacon_from(p, peer, lane);
        if (epw_rule_alive(beacon, p.epoch)) hear(p, peer, lane, beacon, now);
    }
}

// Reads the peer's beacons. Returns the time of its last sign of life. `named`: the rank that this rank's own beacon shall name,
// which is the peer itself or the rank that the peer waits for.
__device__ __forceinline__ uint64_t listen(const Peers &p, LongWait &w, uint64_t now, uint32_t &named) {
    const uint32_t peer = w.peer();
    bool silent = true;
    named = 0;
#pragma unroll 1
    for (uint32_t l = 0; l < p.peers->lanes; l++) {
        uint64_t beacon = beacon_from(p, peer, l);
        uint32_t whom, lengthened; // set even if there is no beacon, or one that was withdrawn
        if (!epw_rule_alive(beacon, p.epoch)) continue;
        hear(p, peer, l, beacon, now);
        if (!epw_rule_beacon(beacon, p.epoch, p.ranks, &whom, &lengthened)) continue;
        if (silent || named == p.rank) named = whom;
        silent = false;
        if (lengthened <= w.lengthened[w.turn]) continue;
        // The peer may wait for as long as it says, so this rank does too, and says so in its own beacons to those that wait for
        // it.
        w.lengthened[w.turn] = uint8_t(lengthened);
        atomicMax(&p.peers->lengthened, lengthened);
    }
    if (silent || named == p.rank) named = peer;
    // This rank is alive by definition: its own word comes once all its blocks have got SMs, and its peers are as patient.
    return peer == p.rank ? now : max(w.began, ptx::load_relaxed_gpu(&p.peers->heard[peer].clock));
}

// Polls the word alone, between the full looks.
__device__ __forceinline__ void look_often(const Peers &p, Awaited what, uint32_t peer, uint32_t looks) {
    const WordOf word(p, what, peer);
#pragma unroll 1
    for (uint32_t i = 0; i < looks && !word.is_expected(word.look()); i++) word.bring(p, what, peer);
}

// Whether the group has excluded the peer. A load from host memory.
__device__ __forceinline__ bool is_revoked(const Peers &p, uint32_t peer) {
    return ptx::load_relaxed_sys(&p.peers->shared->revoked->words[peer / 32]) & bit_of(peer);
}

// Whether the connection to the peer is lost. A load from host memory, an acquire: nothing more is placed by that connection
// afterwards.
__device__ __forceinline__ bool is_broken(const Peers &p, uint32_t peer) {
    return has(p.queued, peer) && (ptx::load_acquire_sys(&p.peers->broken->words[peer / 32]) & bit_of(peer));
}

// These loads cross the bus for every thread that waits, so they are not done in every round.
constexpr uint64_t kAskEveryNs = 1000000;

__device__ __forceinline__ uint64_t expiry_of(const Peers &p, const LongWait &w, uint64_t clock) {
    return epw_rule_expiry(w.began, clock, p.deadline, p.group_deadline, w.lengthened[w.turn]);
}

// Whether a beacon of a peer behind a queue has come by `now` that was not copied before, and lengthens the wait.
__device__ __noinline__ inline bool has_come_alive(const Peers &p, LongWait &w, uint64_t now) {
    uint32_t named;
    bring_words(p, w.peer(), w.what.word, true);
    return now < expiry_of(p, w, listen(p, w, now, named));
}

// Between looks at the words: reads and posts beacons, and checks the deadline. Returns why the wait ends, or EPW_CAUSE_NONE if
// it continues.
__device__ __forceinline__ uint32_t go_on_waiting(const Peers &p, LongWait &w) {
    epw_gpu_peers *shared = p.peers;
    const uint32_t peer = w.peer();
    const bool suspected = has_now(shared->shared->suspects, peer); // by the other lane, since this wait began
    if (suspected || w.asks) {
        if (is_revoked(p, peer)) return EPW_CAUSE_SUPERSEDED;
        if (is_broken(p, peer)) return EPW_CAUSE_LINK;
        if (suspected) return EPW_CAUSE_SUSPECTED;
    }
    uint32_t named;
    const uint64_t now = ptx::global_timer_ns(), clock = listen(p, w, now, named);
    // By the group's deadline, because other ranks may not have lengthened theirs.
    uint64_t *beacons = &shared->waits[w.what.permission ? 0 : 1].beacons;
    uint64_t due = epw_rule_beacons_due(now - w.spoke, p.group_deadline), posted = ptx::load_relaxed_gpu(beacons);
    if (due > posted) {
        auto *count = reinterpret_cast<unsigned long long *>(beacons);
        if (atomicCAS(count, posted, due) == posted) {
            post_beacon(p, named);
            hear_all(p, now);
        }
    }
    if (now < expiry_of(p, w, clock)) return EPW_CAUSE_NONE;
    return has(p.queued, peer) && has_come_alive(p, w, now) ? EPW_CAUSE_NONE : EPW_CAUSE_TIMEOUT;
}

// For a thread that has had nothing to do since then, and waits for no peer but for this rank itself, so it posts no beacons by
// waiting: tells peers that this rank is alive, if a beacon is due.
__device__ __noinline__ inline void show_life(Peers &p, uint64_t since) {
    auto &wait = p.peers->waits[1];
    const uint64_t began = atomicCAS(reinterpret_cast<unsigned long long *>(&wait.began), 0ull, since);
    const uint64_t spoke = p.resumes ? p.spoke : began != 0 ? began : since;
    const uint64_t due = epw_rule_beacons_due(ptx::global_timer_ns() - spoke, p.group_deadline),
                   posted = ptx::load_relaxed_gpu(&wait.beacons);
    atomicOr(&p.troubled, 1u); // end_waits() must stop the clock
    if (due > posted && atomicCAS(reinterpret_cast<unsigned long long *>(&wait.beacons), posted, due) == posted)
        post_beacon(p, EPW_BEACON_NONE);
}

__device__ __forceinline__ Arrival arrival(const Peers &p, Awaited what, epw_sight seen) {
    const bool arrived = judge(p, what, seen) == EPW_ARRIVED;
    return {arrived, arrived ? epw_word_value(seen.word) : 0};
}

// One look at one peer: at its word, the DROPPED word, the beacons and the deadline. Returns whether the wait for it is over;
// `how` says how it ended.
__device__ __forceinline__ bool is_over(Peers &p, LongWait &w, Arrival &how) {
    const uint32_t peer = w.peer();
    constexpr uint32_t kLooks = 32; // per round
    const bool queued = has(p.queued, peer);
    look_often(p, w.what, peer, kLooks / __popc(w.late));
    if (queued) bring_words(p, peer, w.what.word, false);
    epw_sight seen = look(p, w.what, peer);
    how = arrival(p, w.what, seen);
    if (how.arrived || has_now(p.peers->gone, peer)) return true; // or another block has given it up
    uint32_t cause = epw_rule_gone(seen, own_epoch_word(p));
    if (cause == EPW_CAUSE_NONE) cause = go_on_waiting(p, w);
    if (cause == EPW_CAUSE_NONE) return false;
    if (queued) { // other threads copy words too, one at a time: look once more, since a word that came before the end counts
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

// Begins a long wait for the peers of `w`.
__device__ __noinline__ inline void begin_long_wait(Peers &p, LongWait &w) {
    atomicOr(&p.troubled, 1u); // end_waits() must stop the clock and perhaps withdraw beacons
    w.entered = ptx::global_timer_ns();
    // The clock starts when the first block of this kernel begins a long wait, so that a block that was scheduled late waits no
    // longer than the others.
    auto *clock = reinterpret_cast<unsigned long long *>(&p.peers->waits[w.what.permission ? 0 : 1].began);
    w.began = atomicCAS(clock, 0ull, w.entered);
    if (w.began == 0) w.began = w.entered;
    // A receive-only kernel may begin long after this rank last wrote to its peers.
    w.spoke = p.resumes ? p.spoke : w.began;
    w.asked = 0;
    w.asks = false;
    w.turn = 0;
    for (uint8_t &lengthened : w.lengthened) lengthened = 0;
}

// Continues the wait until it is over for one more peer, which is then w.peer(). At least one peer must be late.
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

// How often to look before the long wait begins. In steady state one look or a few are enough; a look takes a quarter of a
// microsecond, so this is some tens of microseconds. A long wait costs the kernel a closing block, so only callers that want it
// measured enter it early.
__device__ __forceinline__ uint32_t looks_before_long(bool measured) { return measured ? 64 : 256; }

// Waits for one peer's word. `measured`: the time spent in a long wait is noted for add_waits.
__device__ __forceinline__ Arrival await(Peers &p, Awaited what, uint32_t phase, uint32_t peer, bool measured) {
    // An epoch word must match in full, which only the long wait checks: once in an epoch.
    const uint32_t looks = what.word == EPW_WORD_EPOCH ? 0 : looks_before_long(measured);
    const WordOf word(p, what, peer);
    const uint64_t *words = words_from(p, peer);
    // The word may have been copied long ago, and a DROPPED word may have followed it since.
    if (what.permission && p.lands && has(p.queued, peer)) bring_word(p, peer, EPW_WORD_DROPPED);
#pragma unroll 1
    for (uint32_t i = 0; i < looks; i++) {
        const uint64_t dropped = what.permission ? ptx::load_relaxed_sys(&words[EPW_WORD_DROPPED]) : 0;
        const uint64_t seen = word.look();
        if (!word.is_expected(seen)) {
            word.bring(p, what, peer);
            continue;
        }
        if (what.permission && epw_word_epoch(dropped) >= p.epoch) break; // the peer has dropped this rank
        return {true, epw_word_value(seen)};
    }
    return await_long(p, what, phase, peer, measured);
}

// Adds the times noted by `await` to the caller's sums, [ranks], if it asked for them; lanes and buffers may share these sums.
// Called by the block that closes the operation.
__device__ inline void add_waits(const Peers &p, uint64_t *wait_ns) {
    if (wait_ns == nullptr || threadIdx.x >= p.ranks) return;
    ptx::reduce_relaxed_gpu(&wait_ns[threadIdx.x], p.peers->waited[threadIdx.x]);
    p.peers->waited[threadIdx.x] = 0;
}

} // namespace epw
