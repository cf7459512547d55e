// Where peers' memory is, and the signal words in this rank's window and in theirs. Nothing above this folder knows how a peer is
// reached, or loads a word otherwise.
#pragma once

#include "kernels/peer/context.h"
#include "kernels/ptx/memory.cuh"

#include "peer/rules.h"

namespace epw {

// A lane's peers as a block knows them, in shared memory: read from epw_gpu_peers at the beginning of a kernel, but for what
// its blocks share.
struct Peers {
    epw_gpu_peers *peers;
    const unsigned char *own, *inbox; // this rank's window; where peers behind queues write instead
    uint32_t rank, ranks, lane, epoch, op;
    bool resumes;     // the kernel goes on with what an earlier one has begun: this rank's silence is counted from there
    uint64_t present; // who takes part, as the kernel begins: the same for all blocks
    uint64_t active, suspects;
    uint64_t deadline, group_deadline; // of this call; of the group
    uint64_t spoke;                    // if it resumes: when this rank has last written to its peers
    uint64_t queued;                   // peers that no window is mapped of
    // The peer table: of words, and of what this kernel writes beside them, rows or answers.
    uint64_t control[EPW_GPU_PEERS], data[EPW_GPU_PEERS];

    unsigned long long gone; // peers that this block knows to be lost
    uint32_t troubled;       // the block has waited long, or lost somebody: the kernel does not end as it usually does
};

// A peer's entries of the table, on their way from memory to a block's Peers. By one thread for each peer.
struct Entries {
    uint64_t control, data;

    __device__ __forceinline__ void load(const epw_gpu_peers *peers, epw_area area, uint32_t peer) {
        control = peers->table[EPW_AREA_CONTROL][peer];
        data = peers->table[area][peer];
    }
    __device__ __forceinline__ void write(Peers &p, uint32_t peer) const {
        p.control[peer] = control;
        p.data[peer] = data;
    }
};

// By a kernel that has no operation.
__device__ __forceinline__ bool is_reached(const epw_gpu_peers *peers, uint32_t peer) {
    return peers->table[EPW_AREA_CONTROL][peer] != 0;
}
// By EPW_AREAS threads or more.
__device__ __forceinline__ void forget(epw_gpu_peers *peers, uint32_t peer) {
    if (threadIdx.x < EPW_AREAS) peers->table[threadIdx.x][peer] = 0;
}

// What is to be at `offset` of the peer's window is written here.
__device__ __forceinline__ unsigned char *at(const uint64_t (&area)[EPW_GPU_PEERS], uint32_t peer, uint64_t offset) {
    return reinterpret_cast<unsigned char *>(area[peer] + offset);
}

// In front of what `source` writes here, by offset.
__device__ __forceinline__ const unsigned char *written_by(const Peers &p, uint32_t source) {
    return p.queued >> source & 1 ? p.inbox : p.own;
}

// A lane's words that `source` writes here.
__device__ __forceinline__ const uint64_t *words_from(const Peers &p, uint32_t source, uint32_t lane) {
    return reinterpret_cast<const uint64_t *>(written_by(p, source) + epw_word_offset(source, lane, 0));
}
__device__ __forceinline__ const uint64_t *words_from(const Peers &p, uint32_t source) { return words_from(p, source, p.lane); }

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
    __device__ __forceinline__ bool is_expected(uint64_t seen) const { return (seen ^ expected) >> EPW_WORD_VALUE_BITS == 0; }
};

// A look that may come before the operation is known: the word, and the farewell that came before. `window`: where the source
// writes, this rank's own or the inbox.
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
