// Waiting for a peer's signal word, bounded. The decisions are those of c/peer/rules.h, shared with the host device.
//
// Every block waits for itself, one thread to a peer, or to two if there are more than a warp has threads. A rank's word is
// posted by the last block of a grid whose first ones may already wait, for that word too: so all blocks of the kernels that wait
// must find SMs (c/ep/gpu.c, choose_blocks). Blocks may judge differently: one sees the last look before the deadline fail,
// another sees the word. Whoever gives a peer up says so in context->gone, and the block that closes the operation, which alone
// decides what the half has delivered, leaves out everybody named there (lane.cuh).
#pragma once

#include "../ptx/memory.cuh"
#include "context.h"

#include "ep/layout.h"
#include "peer/rules.h"

namespace epw {

// An operation as a block knows it, in shared memory: read from the context at the beginning. The context changes only when
// one of its blocks closes an operation.
struct Operation {
    epw_gpu_context *context;
    unsigned char *own; // this rank's window
    uint32_t rank, ranks, lane, epoch, op;
    uint32_t stage; // that the lane was in
    bool first;     // of the epoch
    bool wrapped;
    uint64_t sent_before, out_before; // the context's counters, when the kernel began
    uint64_t peers;                   // that it begins with: the same for all blocks
    uint64_t active, suspects, deadline;
    uint64_t missing;                         // of the handle, so far
    unsigned char *window[EPW_GPU_MAX_RANKS]; // the peers'
    epw_gpu_report *report;

    unsigned long long gone;    // peers that this block knows to be lost
    unsigned long long refused; // peers whose rows or answers this block has found to be other than asked for
    uint64_t lost;              // peers that any block had given up when the last one had sent, or was out
    uint64_t refused_by_any;    // and that any block had refused when the last one was out; see must_close
    uint32_t troubled;          // the kernel ends with more than the block's own turn; see must_close
    uint32_t absent;            // blocks had not begun when the operation was closed without them; see must_close
    uint32_t last;              // this block is the last to send, or the one that closes
};

// Rows to be answered are numbered by source: those after this rank in turn, itself last.
__device__ __forceinline__ uint32_t source_at(uint32_t rank, uint32_t ranks, uint32_t turn) {
    uint32_t source = rank + 1 + turn;
    return source < ranks ? source : source - ranks;
}

enum class Awaited { permission, rows, answer };

// The lane's words that `source` writes here.
__device__ __forceinline__ const uint64_t *words_from(const Operation &o, uint32_t source) {
    return reinterpret_cast<const uint64_t *>(o.own + epw_word_offset(source, o.lane, 0));
}

// A word of the lane that this rank writes at a peer.
__device__ __forceinline__ uint64_t *word_at(const Operation &o, uint32_t peer, uint32_t word) {
    return reinterpret_cast<uint64_t *>(o.window[peer] + epw_word_offset(o.rank, o.lane, word));
}

// Which word of `source` is awaited, and of which op it must be.
__device__ __forceinline__ const uint64_t *awaited_word(const Operation &o, Awaited what, uint32_t source) {
    const uint64_t *words = words_from(o, source);
    if (what == Awaited::rows) return &words[EPW_WORD_DISPATCH];
    if (what == Awaited::permission && o.first) return &words[EPW_WORD_EPOCH];
    return &words[EPW_WORD_COMBINE];
}

__device__ __forceinline__ uint64_t expected_word(const Operation &o, Awaited what) {
    if (what == Awaited::permission) return epw_word(o.epoch, o.first ? 0 : o.op - 1, 0);
    return epw_word(o.epoch, o.op, 0);
}

__device__ __forceinline__ bool is_expected(const Operation &o, Awaited what, uint64_t word) {
    return (word ^ expected_word(o, what)) >> EPW_WORD_VALUE_BITS == 0;
}

// A peer's words in the order that rules.h asks for. Each load is an acquire: rows and counts written before a word are
// visible to this thread after it. Writer: the peer's last sending block. Reader: this thread and, through a block barrier or
// bits in shared memory (collect.cuh), its block.
__device__ __forceinline__ epw_sight look(const Operation &o, Awaited what, uint32_t source) {
    const uint64_t *words = words_from(o, source);
    epw_sight seen;
    seen.dropped = ptx::load_acquire_sys(&words[EPW_WORD_DROPPED]);
    seen.epoch_word = ptx::load_acquire_sys(&words[EPW_WORD_EPOCH]);
    seen.word = ptx::load_acquire_sys(awaited_word(o, what, source));
    return seen;
}

__device__ __forceinline__ epw_verdict judge(const Operation &o, Awaited what, epw_sight seen) {
    if (what == Awaited::permission) return epw_rule_may_send(seen, o.epoch, o.op, o.first);
    return epw_rule_arrived(seen, o.epoch, o.op);
}

// The first peer lost is recorded. Read by the block that closes the operation. `waiting`: peers still awaited then.
__device__ __noinline__ inline void record_loss(const Operation &o, uint32_t phase, uint32_t cause, uint32_t peer,
                                                uint64_t expected, uint64_t seen, uint64_t elapsed, uint32_t waiting) {
    epw_gpu_context *c = o.context;
    if (atomicExch(&c->recorded, 1u) != 0) return;
    epw_error_record *r = &c->record;
    r->phase = phase;
    r->cause = cause;
    r->rank = o.rank;
    r->peer = peer;
    r->lane = o.lane;
    r->epoch = o.epoch;
    r->op = o.op;
    r->waiting = waiting;
    r->expected = expected;
    r->seen = seen;
    r->elapsed_ns = elapsed;
    r->deadline_ns = o.deadline;
}

// Makes `peer` a suspect for the rest of the epoch and tells it, once. It may be this rank itself, whose blocks have found no SMs
// for too long: it goes on without its own experts then.
__device__ __noinline__ inline void suspect(const Operation &o, uint32_t peer) {
    auto *suspects = reinterpret_cast<unsigned long long *>(&o.context->shared->suspects);
    if (atomicOr(suspects, 1ull << peer) >> peer & 1) return;
#pragma unroll 1
    for (uint32_t lane = 0; lane < o.context->lanes; lane++) {
        unsigned char *word = o.window[peer] + epw_word_offset(o.rank, lane, EPW_WORD_DROPPED);
        ptx::store_release_sys(reinterpret_cast<uint64_t *>(word), epw_word(o.epoch, 0, 0));
    }
}

// Tells the active peers that this rank is alive and waits for `named`, and how long it may; EPW_BEACON_NONE: that it waits no
// longer.
__device__ __noinline__ inline void post_beacon(const Operation &o, uint32_t named) {
    epw_gpu_context *c = o.context;
    // epw_rule_lengthened from what awaited peers say on, in little code.
    uint32_t lengthened = ptx::load_relaxed_gpu(&c->lengthened);
#pragma unroll 1
    while (lengthened < EPW_BEACON_LENGTH_MAX && c->deadline_ns << lengthened < o.deadline) lengthened++;
    uint64_t word = epw_word(o.epoch, atomicAdd(&c->beacon, 1u) + 1, epw_beacon_value(named, lengthened));
    uint64_t peers = o.active & ~ptx::load_relaxed_gpu(&c->shared->suspects) & ~(1ull << o.rank);
#pragma unroll 1
    for (uint32_t p = 0; p < o.ranks; p++) {
        if (peers >> p & 1) ptx::store_release_sys(word_at(o, p, EPW_WORD_BEACON), word);
    }
}

struct Arrival {
    bool arrived;
    uint32_t value;
};

// How many peers of the operation have not sent what is awaited.
__device__ __noinline__ inline uint32_t count_awaited(const Operation &o, Awaited what) {
    uint32_t count = 0;
#pragma unroll 1
    for (uint64_t rest = o.peers; rest != 0; rest &= rest - 1) {
        uint32_t peer = __ffsll(rest) - 1;
        if (judge(o, what, look(o, what, peer)) != EPW_ARRIVED) count++;
    }
    return count;
}

// The long wait: beacons out and in, farewells, and the deadline. `phase` is for the record. `second`: the thread has waited for
// another peer before, and has not heard this one's beacons meanwhile.
__device__ __noinline__ inline Arrival await_long(Operation &o, Awaited what, uint32_t phase, uint32_t peer, bool second) {
    constexpr uint32_t kLooks = 32; // at the word alone, between looks at everything
    epw_gpu_context *c = o.context;
    atomicOr(&o.troubled, 1u); // there will be a clock to stop, and perhaps beacons to withdraw
    auto *wait = &c->waits[what == Awaited::permission ? 0 : 1];
    uint64_t now = ptx::global_timer_ns();
    // The clock began when the first block of this kernel began to wait, so that a block that was scheduled late waits no
    // longer than the others.
    uint64_t began = atomicCAS(reinterpret_cast<unsigned long long *>(&wait->began), 0ull, now);
    if (began == 0) began = now;
    // A kernel that only receives may begin long after this rank has last written to its peers.
    uint64_t spoke = o.stage == EPW_GPU_SENT || o.stage == EPW_GPU_ANSWERED ? c->spoke : began;
    uint64_t clock = second ? now : began, heard[EPW_MAX_LANES] = {};
    uint32_t its_lengthened = 0;
    const uint64_t *word = awaited_word(o, what, peer);
    while (true) {
#pragma unroll 1
        for (uint32_t i = 0; i < kLooks; i++) {
            if (is_expected(o, what, ptx::load_acquire_sys(word))) break;
        }
        epw_sight seen = look(o, what, peer);
        epw_verdict verdict = judge(o, what, seen);
        if (verdict == EPW_ARRIVED) return {true, epw_word_value(seen.word)};
        if (ptx::load_relaxed_gpu(&c->gone) >> peer & 1) return {false, 0}; // another block has given it up
        uint32_t cause = EPW_CAUSE_DROPPED;
        if (verdict == EPW_WAITING && (ptx::load_relaxed_gpu(&c->shared->suspects) >> peer & 1)) {
            cause = EPW_CAUSE_SUSPECTED; // by the other lane, meanwhile
        } else if (verdict == EPW_WAITING) {
            now = ptx::global_timer_ns();
            bool silent = true;
            uint32_t named = 0;
#pragma unroll 1
            for (uint32_t l = 0; l < c->lanes; l++) {
                const unsigned char *place = o.own + epw_word_offset(peer, l, EPW_WORD_BEACON);
                uint64_t beacon = ptx::load_acquire_sys(reinterpret_cast<const uint64_t *>(place));
                uint32_t whom, lengthened; // set also where there is no beacon, or one that was withdrawn
                if (!epw_rule_beacon(beacon, o.epoch, o.ranks, &whom, &lengthened)) continue;
                if (silent || named == o.rank) named = whom;
                silent = false;
                if (beacon == heard[l]) continue;
                heard[l] = beacon; // each new beacon restarts the peer's clock
                clock = now;
                // It may wait for as long as it says, and this rank with it, which says so to those that wait for this one.
                if (lengthened > its_lengthened) atomicMax(&c->lengthened, its_lengthened = lengthened);
            }
            // This rank itself lives: its word comes once all its blocks have found SMs, and the peers bear with it as long.
            if (peer == o.rank) clock = now;
            // By the group's deadline: the others may not have lengthened theirs.
            uint64_t due = epw_rule_beacons_due(now - spoke, c->deadline_ns), posted = ptx::load_relaxed_gpu(&wait->beacons);
            if (due > posted) {
                auto *count = reinterpret_cast<unsigned long long *>(&wait->beacons);
                if (atomicCAS(count, posted, due) == posted) post_beacon(o, silent || named == o.rank ? peer : named);
            }
            if (now < epw_rule_expiry(began, clock, o.deadline, c->deadline_ns, its_lengthened)) continue;
            cause = EPW_CAUSE_TIMEOUT;
        }
        record_loss(o, phase, cause, peer, expected_word(o, what), seen.word, ptx::global_timer_ns() - began,
                    count_awaited(o, what));
        atomicOr(reinterpret_cast<unsigned long long *>(&c->gone), 1ull << peer);
        suspect(o, peer);
        return {false, 0};
    }
}

// In the steady state one look is enough, or a few; some tens of microseconds at a quarter of one each. A long wait costs the
// kernel a block that closes the operation, so that only who wants it measured goes there early.
__device__ __forceinline__ uint32_t looks_before_long(bool measured) { return measured ? 64 : 256; }

// Waits for one peer's word. `measured`: the time spent in a long wait is to be noted in the context. `second`: see await_long.
__device__ __forceinline__ Arrival await(Operation &o, Awaited what, uint32_t phase, uint32_t peer, bool measured, uint32_t looks,
                                         bool second) {
    const uint64_t *word = awaited_word(o, what, peer), *dropped = &words_from(o, peer)[EPW_WORD_DROPPED];
#pragma unroll 1
    for (uint32_t i = 0; i < looks; i++) {
        uint64_t farewell = ptx::load_relaxed_sys(dropped), seen = ptx::load_acquire_sys(word);
        if (!is_expected(o, what, seen)) continue;
        if (what == Awaited::permission && epw_word_epoch(farewell) >= o.epoch) break; // it has dropped this rank
        return {true, epw_word_value(seen)};
    }
    uint64_t began = measured ? ptx::global_timer_ns() : 0;
    Arrival arrival = await_long(o, what, phase, peer, second);
    if (measured) {
        auto *waited = reinterpret_cast<unsigned long long *>(&o.context->waited[peer]);
        atomicMax(waited, ptx::global_timer_ns() - began);
    }
    return arrival;
}
__device__ __forceinline__ Arrival await(Operation &o, Awaited what, uint32_t phase, uint32_t peer, bool measured) {
    return await(o, what, phase, peer, measured, looks_before_long(measured), false);
}

// Adds what `await` has noted to the caller's sums, [ranks], where it has asked for them; lanes and buffers may share them. By
// the block that closes the operation.
__device__ inline void add_waits(const Operation &o, uint64_t *wait_ns) {
    if (wait_ns == nullptr || threadIdx.x >= o.ranks) return;
    ptx::reduce_relaxed_gpu(&wait_ns[threadIdx.x], o.context->waited[threadIdx.x]);
    o.context->waited[threadIdx.x] = 0;
}

} // namespace epw
