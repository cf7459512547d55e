// Where peers' memory is, and the signal words in this rank's window and in theirs. Nothing above this folder knows how a peer is
// reached, or loads a word otherwise.
#pragma once

#include "kernels/peer/context.h"
#include "kernels/peer/rank_set.cuh"

#include "peer/rules.h"

namespace epw {

// A lane's peers as a block knows them, in shared memory: read from epw_gpu_peers at the beginning of a kernel, but for what
// its blocks share.
struct Peers {
    epw_gpu_peers *peers;
    const unsigned char *own, *inbox; // this rank's window; where peers behind queues write instead
    uint32_t rank, ranks, lane, epoch, op;
    bool resumes;         // the kernel goes on with what an earlier one has begun: this rank's silence is counted from there
    bool posts;           // some peers are reached by queues
    epw_rank_set present; // who takes part, as the kernel begins: the same for all blocks
    epw_rank_set active, suspects;
    epw_rank_set queued, mapped;       // peers that no window is mapped of; those who take part and are none of these
    uint64_t deadline, group_deadline; // of this call; of the group
    uint64_t spoke;                    // if it resumes: when this rank has last written to its peers
    // The peer table, of what this kernel writes beside words: rows, or answers. Of a mapped window everything is there.
    uint64_t data[EPW_GPU_PEERS];

    epw_rank_set reachable; // who takes part, but for those that this block has given up
    uint32_t gave_up;       // there are some
    uint32_t troubled;      // the block has waited long, or lost somebody: the kernel does not end as it usually does
};

// A peer's entry of the table, on its way from memory to a block's Peers.
__device__ __forceinline__ uint64_t entry_of(const epw_gpu_peers *peers, epw_area area, uint32_t peer) {
    return peers->table[area][peer];
}

// By a kernel that has no operation.
__device__ __forceinline__ bool is_reached(const epw_gpu_peers *peers, uint32_t peer) {
    return peers->table[EPW_AREA_CONTROL][peer] != 0;
}
// By EPW_AREAS threads or more.
__device__ __forceinline__ void forget(epw_gpu_peers *peers, uint32_t peer) {
    if (threadIdx.x < EPW_AREAS) peers->table[threadIdx.x][peer] = 0;
}

// What is to be at `offset` of the peer's window is written here: rows or answers; and what is beside words.
__device__ __forceinline__ unsigned char *at(const Peers &p, uint32_t peer, uint64_t offset) {
    return reinterpret_cast<unsigned char *>(p.data[peer] + offset);
}
__device__ __forceinline__ unsigned char *control_at(const Peers &p, uint32_t peer, uint64_t offset) {
    const bool queued = has(p.queued, peer);
    unsigned char *mapped = at(p, peer, offset); // on its way, too
    return queued ? reinterpret_cast<unsigned char *>(p.peers->table[EPW_AREA_CONTROL][peer] + offset) : mapped;
}

// In front of what `source` writes here, by offset: its rows and answers. For its words see words_from().
__device__ __forceinline__ const unsigned char *written_by(const Peers &p, uint32_t source) {
    return has(p.queued, source) ? p.inbox : p.own;
}

// A lane's words of `source`, in this rank's window. A mapped peer writes them there. One behind a queue writes to the inbox,
// across the bus, where loads of one address come one after the other, two microseconds each: threads that wait for it bring the
// words from there, one thread at a time, and all look here.
__device__ __forceinline__ const uint64_t *words_from(const Peers &p, uint32_t source, uint32_t lane) {
    return reinterpret_cast<const uint64_t *>(p.own + epw_word_offset(source, lane, 0));
}
__device__ __forceinline__ const uint64_t *words_from(const Peers &p, uint32_t source) { return words_from(p, source, p.lane); }

// A word on its way from the inbox.
struct Brought {
    uint64_t *to;
    uint64_t before, now;

    __device__ __forceinline__ Brought(const Peers &p, uint32_t source, uint32_t lane, uint32_t word) {
        const uint64_t offset = epw_word_offset(source, lane, word);
        to = reinterpret_cast<uint64_t *>(const_cast<unsigned char *>(p.own) + offset);
        before = ptx::load_relaxed_gpu(to);
        now = ptx::load_acquire_sys(reinterpret_cast<const uint64_t *>(p.inbox + offset));
    }
    // Writer: this thread, with all that it has acquired from the inbox. Reader: threads that look at the window. Loaded before
    // the inbox was, `before` is no newer than `now`, so that no word of the source goes back; nor does one take the place of a
    // word of a later epoch, which is the next rank's in this place, and mapped.
    __device__ __forceinline__ void put() const {
        if (now != before && epw_word_epoch(now) >= epw_word_epoch(before)) ptx::compare_swap_acq_rel_gpu(to, before, now);
    }
};

__device__ __forceinline__ bool begin_to_bring(const Peers &p, uint32_t source) {
    return atomicExch(&p.peers->brings[source], 1u) == 0;
}
__device__ __forceinline__ void end_bringing(const Peers &p, uint32_t source) { atomicExch(&p.peers->brings[source], 0u); }

// Brings one word of a peer behind a queue, if no other thread is about to.
__device__ __noinline__ inline void bring_word(const Peers &p, uint32_t source, uint32_t word) {
    if (!begin_to_bring(p, source)) return;
    Brought(p, source, p.lane, word).put();
    end_bringing(p, source);
}

// Brings all that rules.h asks for, and the beacons of all lanes; `surely`: after whoever is about to, who waits for nothing. The
// farewell is loaded first, and put last: whoever sees it sees what came before it.
__device__ __noinline__ inline void bring_words(const Peers &p, uint32_t source, uint32_t word, bool surely) {
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

// This rank's own epoch word in full. Only an epoch's first operations and long waits ask for it.
__device__ __forceinline__ uint64_t own_epoch_word(const Peers &p) { return p.peers->epoch_word; }

// What is awaited of a peer: one of its words, of an operation.
struct Awaited {
    uint32_t word;   // its number; EPW_WORD_EPOCH: permission to send for the first time in an epoch
    uint32_t op;     // that it must be of
    bool permission; // it says that this rank may send its next operation
};

__device__ __forceinline__ uint64_t expected_word(const Peers &p, Awaited what) {
    return what.word == EPW_WORD_EPOCH ? own_epoch_word(p) : epw_word(p.epoch, what.op, 0);
}

// The awaited word alone, to look at again and again: where it lies and what is expected are in registers, so that a thread knows
// what it has seen once the load is back. A look acquires what the peer has written before. Not for epoch words, which count in
// full: see judge().
struct WordOf {
    const uint64_t *at;
    uint64_t expected;

    __device__ __forceinline__ WordOf(const Peers &p, Awaited what, uint32_t source)
        : at(&words_from(p, source)[what.word]), expected(epw_word(p.epoch, what.op, 0)) {}
    __device__ __forceinline__ uint64_t look() const { return ptx::load_acquire_sys(at); }
    // Between two looks.
    __device__ __forceinline__ void bring(const Peers &p, Awaited what, uint32_t source) const {
        if (p.posts && has(p.queued, source)) bring_word(p, source, what.word);
    }
    __device__ __forceinline__ bool is_expected(uint64_t seen) const { return (seen ^ expected) >> EPW_WORD_VALUE_BITS == 0; }
};

// A look that may come before the operation is known: the word, and the farewell that came before.
__device__ __forceinline__ epw_sight first_look(const unsigned char *window, uint32_t source, uint32_t lane, uint32_t word) {
    const uint64_t *words = reinterpret_cast<const uint64_t *>(window + epw_word_offset(source, lane, 0));
    epw_sight seen;
    seen.dropped = ptx::load_relaxed_sys(&words[EPW_WORD_DROPPED]);
    seen.epoch_word = 0;
    seen.word = ptx::load_acquire_sys(&words[word]);
    return seen;
}

// A peer's words in the order that rules.h asks for. Each load is an acquire: rows and counts written before a word are
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
