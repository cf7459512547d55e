// Where each peer's memory is, and the signal words in this rank's window and in the peers' windows. Code above this folder does
// not know how a peer is reached, and loads signal words only through these functions.
#pragma once

#include "kernels/peer/context.h"
#include "kernels/peer/rank_set.cuh"

#include "peer/rules.h"

namespace epw {

// A lane's peers as a block sees them, in shared memory: read from epw_gpu_peers when a kernel begins, except for the state that
// its blocks share.
struct Peers {
    epw_gpu_peers *peers;
    const unsigned char *own, *inbox; // this rank's window; where peers reached by queues write: an inbox, or the window too
    uint32_t rank, ranks, lane, epoch, op;
    bool resumes;         // the kernel continues an operation that an earlier one began: this rank's silence is counted from then
    bool posts;           // some peers are reached by queues
    bool lands;           // what such peers write is copied from an inbox to the window
    epw_rank_set present; // the peers that take part as the kernel begins: the same for all blocks
    epw_rank_set active, suspects;
    epw_rank_set queued, mapped;       // peers reached by queues (their window is not mapped); peers that take part and are
                                       // mapped
    uint64_t deadline, group_deadline; // of this call; of the group
    uint64_t spoke;                    // if `resumes`: when this rank last wrote to its peers
    // The peer table of the area that this kernel writes besides words: rows or answers. A mapped window holds all areas.
    uint64_t data[EPW_GPU_PEERS];

    epw_rank_set reachable; // the peers that take part, less those that this block has given up
    uint32_t gave_up;       // this block has given up at least one peer
    uint32_t troubled;      // the block has waited long or lost a peer: it takes the slow path at the end of the kernel
};

// Loads a peer's entry of the table, which the caller then stores in its block's Peers.
__device__ __forceinline__ uint64_t entry_of(const epw_gpu_peers *peers, epw_area area, uint32_t peer) {
    return peers->table[area][peer];
}

// For kernels without an operation.
__device__ __forceinline__ bool is_reached(const epw_gpu_peers *peers, uint32_t peer) {
    return peers->table[EPW_AREA_CONTROL][peer] != 0;
}
// Called by EPW_AREAS threads or more.
__device__ __forceinline__ void forget(epw_gpu_peers *peers, uint32_t peer) {
    if (threadIdx.x < EPW_AREAS) peers->table[threadIdx.x][peer] = 0;
}

// The local address at which to write what shall appear at `offset` of the peer's window: at() for rows or answers, control_at()
// for what lies beside the words.
__device__ __forceinline__ unsigned char *at(const Peers &p, uint32_t peer, uint64_t offset) {
    return reinterpret_cast<unsigned char *>(p.data[peer] + offset);
}
__device__ __forceinline__ unsigned char *control_at(const Peers &p, uint32_t peer, uint64_t offset) {
    const bool queued = has(p.queued, peer);
    unsigned char *mapped = at(p, peer, offset); // loaded unconditionally, so that both loads overlap
    return queued ? reinterpret_cast<unsigned char *>(p.peers->table[EPW_AREA_CONTROL][peer] + offset) : mapped;
}

// The base address of what `source` writes here, indexed by window offset: its rows and answers. For its words see words_from().
__device__ __forceinline__ const unsigned char *written_by(const Peers &p, uint32_t source) {
    return has(p.queued, source) ? p.inbox : p.own;
}

// The words of `source` for a lane, in this rank's window. A mapped peer writes them there, and so does a peer behind a queue if
// there is no inbox. To an inbox it writes across the bus, where loads of one address are serialised at two microseconds each. So
// the threads that wait for such a peer copy its words from the inbox to the window, one thread at a time, and every thread reads
// the window.
__device__ __forceinline__ const uint64_t *words_from(const Peers &p, uint32_t source, uint32_t lane) {
    return reinterpret_cast<const uint64_t *>(p.own + epw_word_offset(source, lane, 0));
}
__device__ __forceinline__ const uint64_t *words_from(const Peers &p, uint32_t source) { return words_from(p, source, p.lane); }

// One word that a mapped peer has written for this lane, an acquire of what it wrote before.
__device__ __forceinline__ uint64_t word_from(const Peers &p, uint32_t source, uint32_t word) {
    return ptx::load_acquire_sys(&words_from(p, source)[word]);
}
// The same of a peer behind a queue, where it writes: for a thread that alone reads this word.
__device__ __forceinline__ uint64_t word_from_inbox(const Peers &p, uint32_t source, uint32_t word) {
    return ptx::load_acquire_sys(reinterpret_cast<const uint64_t *>(p.inbox + epw_word_offset(source, p.lane, word)));
}
// A number that a peer has written here beside its words, and may write at any time: read once, and then checked.
__device__ __forceinline__ uint32_t read_once(const void *number) {
    return ptx::load_relaxed_sys(static_cast<const uint32_t *>(number));
}

// A word that is being copied from the inbox to the window.
struct Brought {
    uint64_t *to;
    uint64_t before, now;

    __device__ __forceinline__ Brought(const Peers &p, uint32_t source, uint32_t lane, uint32_t word) {
        const uint64_t offset = epw_word_offset(source, lane, word);
        to = reinterpret_cast<uint64_t *>(const_cast<unsigned char *>(p.own) + offset);
        before = ptx::load_relaxed_gpu(to);
        now = ptx::load_acquire_sys(reinterpret_cast<const uint64_t *>(p.inbox + offset));
    }
    // Writer: this thread, with all that it has acquired from the inbox. Reader: threads that load the word from the window.
    // `before` was loaded before the inbox was, so it is no newer than `now`, and no word of the source ever goes backwards. Nor
    // does it replace a word of a later epoch, which belongs to the next rank in this place, a mapped one.
    __device__ __forceinline__ void put() const {
        if (now != before && epw_word_epoch(now) >= epw_word_epoch(before)) ptx::compare_swap_acq_rel_gpu(to, before, now);
    }
};

__device__ __forceinline__ bool begin_to_bring(const Peers &p, uint32_t source) {
    return atomicExch(&p.peers->brings[source], 1u) == 0;
}
__device__ __forceinline__ void end_bringing(const Peers &p, uint32_t source) { atomicExch(&p.peers->brings[source], 0u); }

// Copies one word of a peer behind a queue from the inbox, if there is one, unless another thread is copying that peer's words.
__device__ __noinline__ inline void bring_word(const Peers &p, uint32_t source, uint32_t word) {
    if (!p.lands || !begin_to_bring(p, source)) return;
    Brought(p, source, p.lane, word).put();
    end_bringing(p, source);
}

// Copies all words that rules.h judges by, and the beacons of all lanes. With `surely` the thread spins until no other thread is
// copying this peer's words, which is bounded because a copying thread waits for nothing. The DROPPED word (the farewell) is
// loaded first and stored last: a thread that sees it also sees everything the peer wrote before it.
__device__ __noinline__ inline void bring_words(const Peers &p, uint32_t source, uint32_t word, bool surely) {
    if (!p.lands) return;
    while (!begin_to_bring(p, source)) {
        if (!surely) return;
    }
    const Brought dropped(p, source, p.lane, EPW_WORD_DROPPED), epoch(p, source, p.lane, EPW_WORD_EPOCH);
    Brought(p, source, p.lane, word).put();
    epoch.put();
    dropped.put();
#pragma unroll 1
    for (uint32_t lane = 0; lane < p.peers->lanes; lane++) Brought(p, source, lane, EPW_WORD_BEACON).put();
    end_bringing(p, source);
}

// This rank's own epoch word in full. Only the first operations of an epoch and long waits need it.
__device__ __forceinline__ uint64_t own_epoch_word(const Peers &p) { return p.peers->epoch_word; }

// What this rank awaits of a peer: one of its words, for a given operation.
struct Awaited {
    uint32_t word;   // the word's number; EPW_WORD_EPOCH: permission to send for the first time in an epoch
    uint32_t op;     // the operation that the word must carry
    bool permission; // the word permits this rank to send its next operation
};

__device__ __forceinline__ uint64_t expected_word(const Peers &p, Awaited what) {
    return what.word == EPW_WORD_EPOCH ? own_epoch_word(p) : epw_word(p.epoch, what.op, 0);
}

// The awaited word alone, for polling: its address and expected value are in registers, so that a thread can judge a value as
// soon as the load returns. Each look acquires what the peer wrote before the word. Not for epoch words, which must match in
// full: see judge().
struct WordOf {
    const uint64_t *at;
    uint64_t expected;

    __device__ __forceinline__ WordOf(const Peers &p, Awaited what, uint32_t source)
        : at(&words_from(p, source)[what.word]), expected(epw_word(p.epoch, what.op, 0)) {}
    __device__ __forceinline__ uint64_t look() const { return ptx::load_acquire_sys(at); }
    // Called between two looks.
    __device__ __forceinline__ void bring(const Peers &p, Awaited what, uint32_t source) const {
        if (p.lands && has(p.queued, source)) bring_word(p, source, what.word);
    }
    __device__ __forceinline__ bool is_expected(uint64_t seen) const { return (seen ^ expected) >> EPW_WORD_VALUE_BITS == 0; }
};

// A look that is possible before the operation is known: at the word, and at the DROPPED word, which is loaded before it.
__device__ __forceinline__ epw_sight first_look(const unsigned char *window, uint32_t source, uint32_t lane, uint32_t word) {
    const uint64_t *words = reinterpret_cast<const uint64_t *>(window + epw_word_offset(source, lane, 0));
    epw_sight seen;
    seen.dropped = ptx::load_relaxed_sys(&words[EPW_WORD_DROPPED]);
    seen.epoch_word = 0;
    seen.word = ptx::load_acquire_sys(&words[word]);
    return seen;
}

// Loads a peer's words in the order that rules.h requires. Each load is an acquire: rows and counts written before a word are
// visible to this thread after it. Writer: the peer's last sending block. Reader: this thread and, through a block barrier or
// bits in shared memory, its block.
__device__ __forceinline__ epw_sight look(const Peers &p, Awaited what, uint32_t source) {
    const uint64_t *words = words_from(p, source);
    epw_sight seen;
    seen.dropped = ptx::load_acquire_sys(&words[EPW_WORD_DROPPED]);
    seen.epoch_word = ptx::load_acquire_sys(&words[EPW_WORD_EPOCH]);
    seen.word = ptx::load_acquire_sys(&words[what.word]);
    return seen;
}

__device__ __forceinline__ epw_verdict judge(const Peers &p, Awaited what, epw_sight seen) {
    if (what.permission) return epw_rule_may_send(seen, own_epoch_word(p), what.op + 1, what.word == EPW_WORD_EPOCH);
    return epw_rule_arrived(seen, own_epoch_word(p), what.op);
}

// The peer's last beacon on a lane.
__device__ __forceinline__ uint64_t beacon_from(const Peers &p, uint32_t source, uint32_t lane) {
    return ptx::load_acquire_sys(&words_from(p, source, lane)[EPW_WORD_BEACON]);
}

} // namespace epw
