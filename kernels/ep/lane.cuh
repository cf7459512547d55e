// A lane from the first instruction of a kernel to the last: what an operation reads of its peers and its lane, and what it
// leaves behind.
//
// Blocks read and leave a turn each and do not wait for one another at the end. A block that has met trouble (a peer given up or
// refused, a long wait) does: one of those waits until all are out, and closes the operation
// for all, alone. All blocks of a kernel find room on the GPU together (c/ep/gpu/engine.c, choose_blocks), so that wait is short,
// unless work of others takes the SMs. Then it ends with a bound: the operation is closed without the blocks that have not begun,
// and whoever closes it delivers everything. First it moves the stage in all turns. A block that begins after that finds the lane
// in the stage of the next kernel, and a count of blocks that lacks it: it adds itself to the counters, by which the next kernels
// go, and does nothing else. A block that has begun before ends as usual, but for one thing: it may be the last to be counted as
// having sent, and posts no words, since those that come late have not sent.
//
// Redelivery. Blocks leave without a fence, which would cost a quarter of a microsecond (H200), and so without an order between
// what they have stored and what the closing block stores to the same addresses; those in trouble release what they have done.
// Whoever has waited long is in trouble, so that where a peer is lost all blocks are, and the closing block delivers without it.
// A block that began late may yet have seen the peer's word at once, and have left. Then no order is needed, for the bytes are
// the same:
// - A block leaves without trouble only when it has seen the words of all who take part. When everybody is out, the closing block
//   looks once more at those who were given up. What a block has seen before it was counted is seen now: its count depends on the
//   load that saw the word, which lies in the one L2 cache that both read (the memory model of PTX alone would ask for a
//   release). Who has sent is kept, and what those blocks have delivered is delivered again. Who has not was seen by nobody.
// - Who is refused for its word, its counts or its format is refused by all blocks that have its word, which read the same: all
//   are in trouble.
// - A row that is malformed by itself is found by its block alone. Nothing is moved for it: see clear_places().
// - Who is missing, and why, is written by closing blocks alone. The turns that these leave differ from those of the others only
//   where all were in trouble; or by the count of blocks that had given somebody up while sending, and who lacks that looks at
//   `gone` once more than it need.
#pragma once

#include "kernels/ep/launch.h"
#include "kernels/peer/wait.cuh"

namespace epw {

// An operation as a block knows it, in shared memory.
struct Operation : Peers {
    epw_gpu_lane_state *state;
    uint32_t stage; // that the lane was in
    bool first;     // of the epoch
    bool wrapped;
    uint64_t sent_before, out_before; // the lane's counters, when the kernel began
    epw_rank_set missing;             // of the handle, so far
    epw_gpu_report *report;
    uint64_t *answered; // by a combine that counts its answers by spans; else nullptr

    epw_rank_set refused;   // peers that have sent what this rank did not ask for, as every block finds
    epw_rank_set malformed; // and those with a row that is not as it must be: this block's; any, for the block that closes
    epw_rank_set lost;      // peers that any block had given up when the last one had sent, or was out
    uint32_t again;         // the block that closes delivers everything again; see must_close
    uint32_t unordered;     // and some have left without an order to that; see above
    uint32_t last;          // this block is the last to send, or the one that closes
    uint32_t owes;          // this block has undertaken to add something up, see undertake(); any, for the block that closes

    // Of the block that closes: who had been given up, whether they have sent after all or not; whose rows or answers do not
    // count; and what close() is told.
    epw_rank_set given_up, left_out, kept, absent;
};

// What an operation awaits of each peer: permission to send, by the end of the operation before or the beginning of the epoch;
// rows; answers.
__device__ __forceinline__ Awaited awaited_permission(const Operation &o) {
    return {o.first ? uint32_t(EPW_WORD_EPOCH) : uint32_t(EPW_WORD_COMBINE), o.first ? 0 : o.op - 1, true};
}
__device__ __forceinline__ Awaited awaited_rows(const Operation &o) { return {EPW_WORD_DISPATCH, o.op, false}; }
__device__ __forceinline__ Awaited awaited_answer(const Operation &o) { return {EPW_WORD_COMBINE, o.op, false}; }

// Rows to be answered are numbered by source: those after this rank first, itself last.
__device__ __forceinline__ uint32_t source_at(uint32_t rank, uint32_t ranks, uint32_t place) {
    uint32_t source = rank + 1 + place;
    return source < ranks ? source : source - ranks;
}

// What an operation is, on its way from memory: loads that are under way together with others, until write() needs them. Each of
// a few warps reads a part. `area`: what the kernel writes at its peers beside words. `next`: the kernel begins an operation,
// else it goes on with the lane's.
constexpr uint32_t kOpeningThreads = 320;
struct Opening {
    static constexpr uint32_t kTable = 32, kTurn = kTable + EPW_GPU_PEERS; // the first of the threads that read them
    static_assert(kTurn + 32 == kOpeningThreads && EPW_RANK_WORDS <= 32);

    epw_gpu_peers *peers;
    epw_gpu_lane_state *state;
    const unsigned char *own, *inbox;
    uint64_t entry; // of the peer table: a thread to a peer
    uint32_t rank, ranks, lane, epoch;
    uint64_t deadline, group_deadline, spoke;
    uint32_t word, active, excluded, suspects, missing, queued, present; // of each set: a thread to a word
    uint32_t stage, op, wrapped;                                         // the turn's
    uint64_t sent, out;
    epw_gpu_report *report;

    __device__ __forceinline__ Opening(const epw_lane_args &a, epw_area area, uint64_t given_deadline)
        : peers(a.peers), state(a.state), own(a.window), inbox(a.inbox), rank(a.rank), ranks(a.layout.ranks),
          report(a.arrays.report) {
        if (threadIdx.x - kTable < ranks) entry = entry_of(peers, area, threadIdx.x - kTable);
        word = threadIdx.x - kTurn;
        if (word >= EPW_RANK_WORDS) return;
        const epw_gpu_turn &turn = state->turns[blockIdx.x];
        present = turn.present.words[word];
        active = peers->active.words[word];
        excluded = state->excluded.words[word];
        missing = state->missing.words[word];
        suspects = ptx::load_relaxed_gpu(&a.shared->suspects.words[word]);
        queued = peers->queued.words[word];
        // These are the same for all threads here.
        stage = turn.stage;
        op = turn.op;
        wrapped = turn.wrapped;
        sent = turn.sent;
        out = turn.out;
        lane = peers->lane;
        epoch = epw_word_epoch(peers->epoch_word);
        group_deadline = peers->deadline_ns;
        deadline = given_deadline ? given_deadline : group_deadline;
        spoke = peers->spoke;
    }

    // The operation is there after the caller's next barrier.
    __device__ __forceinline__ void write(Operation &o, bool next) const {
        if (threadIdx.x - kTable < ranks) o.data[threadIdx.x - kTable] = entry;
        if (word >= EPW_RANK_WORDS) return;
        const uint32_t takes_part = (next ? active : present) & ~excluded, all = (1u << EPW_RANK_WORDS) - 1;
        o.present.words[word] = takes_part;
        o.active.words[word] = active;
        o.suspects.words[word] = suspects;
        o.queued.words[word] = queued;
        o.missing.words[word] = next ? 0 : missing;
        o.mapped.words[word] = takes_part & ~queued;
        o.reachable.words[word] = takes_part;
        o.lost.words[word] = o.refused.words[word] = o.malformed.words[word] = o.left_out.words[word] = 0;
        const bool troubled = __any_sync(all, takes_part != active || missing != 0), posts = __any_sync(all, queued != 0);
        if (word != 0) return;
        o.troubled = troubled;
        o.posts = posts;
        o.gave_up = o.owes = 0;
        o.peers = peers;
        o.state = state;
        o.report = report;
        o.answered = nullptr;
        o.own = own;
        o.inbox = inbox;
        o.rank = rank;
        o.ranks = ranks;
        o.lane = lane;
        o.epoch = epoch;
        o.op = next ? epw_next_op(op) : op;
        o.stage = stage;
        o.resumes = stage == EPW_GPU_SENT || stage == EPW_GPU_ANSWERED;
        o.wrapped = wrapped;
        o.first = op == 0 && wrapped == 0;
        o.sent_before = sent;
        o.out_before = out;
        o.deadline = deadline;
        o.group_deadline = group_deadline;
        o.spoke = spoke;
    }
};

// The operation has been closed without the blocks that had not begun; this one had. By one thread. Writer: shut_out().
__device__ __forceinline__ bool is_closed(const Operation &o) {
    return ptx::load_relaxed_gpu(&o.state->turns[blockIdx.x].stage) != o.stage;
}

// Whether this block is the last of the kernel's to have sent. Every thread's effects before it, in every block, happen before
// the last block's after it, which finds in o.lost whom any block has given up so far. Called by the whole block.
constexpr uint64_t kGaveUp = 1ull << 48; // in epw_gpu_lane_state.sent_blocks
__device__ __noinline__ inline void take_lost(Operation &o) {
    o.lost = load_now(o.peers->gone);
    if (is_closed(o)) o.last = 0;
}
// The same for what one thread stands for.
__device__ __forceinline__ void say_sent(Operation &o) {
    uint64_t mine = o.gave_up ? kGaveUp + 1 : 1;
    uint64_t passed = ptx::add_acq_rel_gpu(&o.state->sent_blocks, mine) + mine - o.sent_before;
    o.last = (passed & (kGaveUp - 1)) == gridDim.x;
    if (passed >= kGaveUp) take_lost(o);
}
__device__ __forceinline__ bool last_to_send(Operation &o) {
    __syncthreads();
    if (threadIdx.x == 0) say_sent(o);
    __syncthreads();
    return o.last != 0;
}

// Refuses what a peer has sent, for this block and, at the end, for the kernel.
__device__ __noinline__ inline void refuse_peer(Operation &o, uint32_t peer) {
    insert(o.refused, peer);
    atomicOr(&o.troubled, 1u);
}

// A row of the peer is not as it must be.
__device__ __noinline__ inline void spoil_peer(Operation &o, uint32_t peer) {
    insert(o.malformed, peer);
    atomicOr(&o.troubled, 1u);
}

// Waits until all blocks are out, as long as the waits of one kernel may take: for permission, and for rows or answers. Peers
// hear meanwhile that this rank lives and waits for itself. Whether they are out. By one thread.
__device__ __noinline__ inline bool await_blocks(const Operation &o) {
    const uint64_t began = ptx::global_timer_ns(), never_silent = UINT64_MAX / 2;
    uint64_t posted = 0;
    while (ptx::load_acquire_gpu(&o.state->out_blocks) != o.out_before) {
        const uint64_t waited = ptx::global_timer_ns() - began;
        // They may have heard nothing for half a deadline before this wait.
        const uint64_t due = epw_rule_silent(waited, o.group_deadline) + epw_rule_beacons_due(waited, o.group_deadline);
        if (due > posted) {
            posted = due;
            post_beacon(o, o.rank);
            atomicOr(reinterpret_cast<unsigned long long *>(&o.peers->waits[0].beacons), 1ull); // for end_waits()
        }
        uint32_t lengthened = ptx::load_relaxed_gpu(&o.peers->lengthened);
        if (waited >= 2 * epw_rule_expiry(0, never_silent, o.deadline, o.group_deadline, lengthened)) return false;
    }
    return true;
}

// Not all blocks have sent, so this rank's words never go out. Where it does not wait for them itself, it goes on without its own
// experts all the same, as after a wait.
__device__ inline void lose_own(const Operation &o, uint32_t stage) {
    if (has_now(o.peers->gone, o.rank)) return;
    record_loss(o, stage == EPW_GPU_SENT ? EPW_PHASE_DISPATCH_SEND : EPW_PHASE_COMBINE_SEND, EPW_CAUSE_TIMEOUT, o.rank, 0, 0, 0,
                0);
    insert(o.peers->gone, o.rank);
    suspect(o, o.rank, EPW_CAUSE_TIMEOUT);
}

// Closes the operation to blocks that have not begun. Whether all blocks had sent. By one thread.
__device__ inline bool shut_out(const Operation &o, uint32_t stage) {
    epw_gpu_lane_state *c = o.state;
    // Writer: this thread. Reader: a block that begins, see pass_by(), and one that has begun, see is_closed(): it looks there if
    // it is counted after kGaveUp, by an acquire.
#pragma unroll 1
    for (uint32_t i = 0; i < c->blocks; i++) c->turns[i].stage = stage;
    __threadfence();
    const uint64_t sent = ptx::add_acq_rel_gpu(&c->sent_blocks, kGaveUp);
    return ((o.sent_before - sent) & (kGaveUp - 1)) == 0;
}

// Whether this block is the one of the kernel to add something up for the caller. A block that does not get into trouble does it on
// its way out; else it falls to the one that closes, as it does where nobody has undertaken it. By one thread.
__device__ __forceinline__ bool undertake(const Operation &o, uint64_t out_blocks) {
    return atomicMax(reinterpret_cast<unsigned long long *>(&o.state->undertaken), out_blocks) < out_blocks;
}

// What must_close() says to a block in trouble.
__device__ __noinline__ inline bool is_to_close(Operation &o, uint32_t stage, bool sends) {
    epw_gpu_lane_state *c = o.state;
    if (threadIdx.x == 0) {
        // For the turns: blocks that are absent are counted too. When they come, no word goes out early.
        o.out_before += gridDim.x;
        if (sends) o.sent_before += gridDim.x;
        o.last = 0;
        if (o.owes) atomicOr(&c->owed, 1u);
        if (!is_closed(o)) {
#pragma unroll 1
            for (uint32_t peer = 0; peer < o.ranks; peer++) {
                if (has(o.malformed, peer)) insert(c->malformed, peer);
            }
            atomicAdd(&c->troubled, 1u);
            o.last = atomicMax(reinterpret_cast<unsigned long long *>(&c->closed), o.out_before) < o.out_before;
        }
        ptx::add_acq_rel_gpu(&c->out_blocks, 1);
        const bool absent = o.last && !await_blocks(o);
        if (absent) {
            const bool all_sent = shut_out(o, stage);
            await_blocks(o); // those that have begun: they wait no longer than the first has, since the clocks are the kernel's
            if (sends && !all_sent) lose_own(o, stage);
        }
        o.given_up = o.lost = load_now(o.peers->gone);
        o.malformed = load_now(c->malformed);
        o.again = absent || any(o.present & (o.lost | o.refused));
        o.unordered = ptx::load_relaxed_gpu(&c->troubled) != gridDim.x;
        o.owes = ptx::load_relaxed_gpu(&c->owed) != 0;
    }
    __syncthreads();
    return o.last != 0;
}

// The end of a kernel for one of its blocks, which goes on to `stage`. False: the block is done. True: something is amiss, and it
// is this block that closes the operation. All others are out, or have not begun and will do nothing. o.lost and o.malformed are
// what they have found, which close() takes out of what blocks share. Where o.again, this block delivers everything again, of all
// who are not left out. `sends`: the kernel has a sending half.
__device__ __forceinline__ bool must_close(Operation &o, uint32_t stage, bool sends) {
    __syncthreads();
    if (o.troubled) return is_to_close(o, stage, sends); // so it is where somebody is gone or refused
    if (threadIdx.x != 0) return false;
    // Reader: the next kernel's block of the same number.
    const uint64_t sent = o.sent_before + (sends ? gridDim.x : 0);
    o.state->turns[blockIdx.x] = {stage, o.op, o.wrapped || o.op == 0, 0, sent, o.out_before + gridDim.x, o.present};
    if (blockIdx.x == 0 && o.resumes && was_silent(o, o.spoke)) post_beacon(o, EPW_BEACON_NONE);
    // Reader: the block that closes, if there is one. It acquires nothing by this.
    ptx::reduce_relaxed_gpu(&o.state->out_blocks, 1);
    return false;
}

// Peers that some blocks have given up, and others may have counted: who has sent what was awaited stays. All words that have
// come are given to `take(peer, value)`: this block may not know them. By the block that closes the operation.
template <typename Take> __device__ __forceinline__ void keep_arrived(Operation &o, Awaited what, Take take) {
    const uint32_t peer = threadIdx.x;
    if (peer < o.ranks && has(o.present, peer)) {
        const WordOf word(o, what, peer);
        const uint64_t seen = word.look();
        if (word.is_expected(seen)) {
            remove(o.lost, peer);
            take(peer, epw_word_value(seen));
        }
    }
    __syncthreads();
}

// A block of an operation that has been closed without it: it is counted, and does nothing. Whether it is one. By one thread.
// Blocks of former kernels are all out, so that only in its own one the count is behind what the closing block has said.
__device__ inline bool pass_by(epw_gpu_lane_state *c, bool sends) {
    __threadfence(); // the stage was read before
    if (ptx::load_relaxed_gpu(&c->out_blocks) >= ptx::load_relaxed_gpu(&c->closed)) return false;
    if (sends) ptx::add_acq_rel_gpu(&c->sent_blocks, 1);
    ptx::add_acq_rel_gpu(&c->out_blocks, 1);
    return true;
}

// The lane is not in the stage that the operation needs: this block does nothing. Called by the whole block. Where that is so for
// all blocks, the lane's own state stays, and the first says so.
__device__ __noinline__ inline void refuse(const Operation &o, bool sends, uint32_t phase) {
    if (threadIdx.x != 0 || pass_by(o.state, sends)) return;
    if (blockIdx.x != 0) return;
    o.state->faulted = 1;
    put_note(o, phase, EPW_CAUSE_HELD, 0, o.stage);
}

// Sets all turns of the lane. By the whole block, when no other one is at work.
__device__ inline void set_turns(epw_gpu_lane_state *c, const epw_gpu_turn &turn) {
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < c->blocks; i += blockDim.x) c->turns[i] = turn;
}

// Closes an operation: by the whole block that must_close says, or by a kernel's only one. o.kept: who goes on to take part;
// o.absent: active peers that do not, or did not. The block has seen both.
__device__ __noinline__ inline void close(const Operation &o, uint32_t phase, uint32_t stage) {
    epw_gpu_lane_state *c = o.state;
    epw_gpu_peers *peers = o.peers;
    uint64_t sent = o.sent_before & (kGaveUp - 1), gave_up = ptx::load_relaxed_gpu(&c->sent_blocks) & ~(kGaveUp - 1);
    set_turns(c, {stage, o.op, o.wrapped || o.op == 0, 0, gave_up | sent, o.out_before, o.kept});
    if (threadIdx.x != 0) return;
    epw_gpu_report *report = o.report;
    const epw_rank_set missing = o.absent | o.missing;
    const bool misses = any(missing), missed = any(o.missing); // by now; when the kernel began
    if (misses || peers->recorded) {
        tell_suspects(o, c->excluded);
        if (peers->recorded) {
            put_record(peers->shared, &peers->record); // also of a peer that has answered after all
        } else if (!missed) {
            // Nobody was lost now: the operation began without them.
            const uint32_t first = first_of(missing);
            record_loss(o, phase, is_revoked(o, first) ? EPW_CAUSE_SUPERSEDED : EPW_CAUSE_SUSPECTED, first, 0, 0, 0, 0);
        }
    }
    if (!misses) {
        report->record.cause = EPW_CAUSE_NONE;
    } else if (!missed) {
        report->record = peers->record; // else the handle's first loss stays on record
    }
    c->missing = report->missing = missing;
    if (misses && stage == EPW_GPU_FREE) c->faulted = 1;
    if (c->noted > EPW_GPU_NOTES) {
        c->unrecorded += c->noted - EPW_GPU_NOTES;
        tell_unrecorded(o, c->unrecorded);
    }
    if (o.answered) {
        for (uint32_t i = 0; i < o.ranks * EPW_SPANS; i++) o.answered[i] = 0; // blocks that are absent have not counted theirs
    }
    c->troubled = c->noted = c->owed = 0;
    c->malformed = {};
    end_waits(o);
}

// Closes a kernel that only sends. `begins`: the handle, so that it misses those who take no part, too.
__device__ __noinline__ inline void close_sending(Operation &o, uint32_t phase, uint32_t stage, bool begins) {
    if (threadIdx.x == 0) {
        o.kept = o.present;
        o.absent = (begins ? o.active : o.present) - (o.present - o.lost);
    }
    __syncthreads();
    close(o, phase, stage);
}

} // namespace epw
