// A lane from the first instruction of a kernel to the last: what an operation reads of its peers and its lane, and the state
// that it leaves for the next kernel.
//
// Each block reads and writes a turn of its own, and blocks do not wait for one another at the end, except blocks in trouble:
// those that gave up or refused a peer, waited long, found a bad id, or began without an active peer. One of these waits until
// all blocks are out, and closes the operation for all of them, alone. All blocks of a kernel are co-resident (c/ep/gpu/sms.h),
// so that wait is short unless other work occupies the SMs. It is bounded: after its deadline the operation is
// closed without the blocks that have not begun, and the closing block delivers everything. It first moves the stage in all
// turns. A block that begins after that finds the lane in the stage of the next kernel, and an out_blocks below `closed`: it adds
// itself to the counters, which the next kernels rely on, and does nothing else. A block that had begun before ends as usual with
// one exception: if it is the last one counted as having sent, it posts no words, because the late blocks have not sent.
//
// Redelivery. Blocks leave without a fence, which would cost a quarter of a microsecond (H200). So their stores are not ordered
// with the stores of the closing block to the same addresses; only blocks in trouble release theirs. A block that has waited long
// is in trouble: where a peer is lost, all blocks are as a rule, and the closing block simply delivers again without that peer.
// The exception is a block that began late, saw the peer's word at once and left without trouble. No order is needed even then,
// because both write the same bytes:
// - A block leaves without trouble only if it has seen the words of all peers that take part. When all blocks are out, the
//   closing block looks once more at the peers that were given up. It sees every word that a block saw before it was counted: the
//   count depends on the load that saw the word, and the word lies in the one L2 cache that both blocks read (the PTX memory
//   model alone would require a release). A peer that has sent is kept, and what those blocks delivered of it is delivered again;
//   a peer that has not sent was seen by no block.
// - A peer refused for its word, its counts or its format is refused by every block that sees its word, since all read the same
//   data: so all of those blocks are in trouble.
// - A malformed row is found only by the block that handles it. Nothing is redelivered for it: see clear_places().
// - Which peers are missing, and why, is written by closing blocks alone. The turns that these leave differ from those of other
//   blocks only if all blocks were in trouble, or in the count of blocks that gave a peer up while sending; a block whose turn
//   lacks that count loads `gone` once more than necessary.
#pragma once

#include "kernels/ep/launch.h"
#include "kernels/peer/wait.cuh"

namespace epw {

// An operation as a block sees it, in shared memory.
struct Operation : Peers {
    epw_gpu_lane_state *state;
    uint32_t blocks; // that kernels of the lane may have; this one may have fewer
    uint32_t stage;  // in which the kernel found the lane
    bool first;      // the first operation of the epoch
    bool wrapped;
    uint64_t sent_before, out_before; // the lane's block counters when the kernel began
    epw_rank_set missing;             // peers missing from the handle so far
    epw_gpu_report *report;

    epw_rank_set refused;   // peers that sent what this rank did not ask for; every block finds the same
    epw_rank_set malformed; // peers with a malformed row: found by this block; in the closing block, by any block
    epw_rank_set lost;      // peers that some block had given up when the last block had sent, or was out
    uint32_t again;         // the closing block delivers everything again; see must_close
    uint32_t unordered;     // and some blocks left without ordering their stores before that; see above
    uint32_t last;          // this block is the last to send, or the closing block

    // In the closing block: peers that were given up, even if they have sent since; peers whose rows or answers do not count; and
    // the arguments of close().
    epw_rank_set given_up, left_out, kept, absent;
};

// What an operation awaits of each peer: permission to send, given by the end of the previous operation or the beginning of the
// epoch; rows; answers.
__device__ __forceinline__ Awaited awaited_permission(const Operation &o) {
    return {o.first ? uint32_t(EPW_WORD_EPOCH) : uint32_t(EPW_WORD_COMBINE), o.first ? 0 : o.op - 1, true};
}
__device__ __forceinline__ Awaited awaited_rows(const Operation &o) { return {EPW_WORD_DISPATCH, o.op, false}; }
__device__ __forceinline__ Awaited awaited_answer(const Operation &o) { return {EPW_WORD_COMBINE, o.op, false}; }

// Rows to be answered are numbered by source, in the order of ranks after this one; this rank is last.
__device__ __forceinline__ uint32_t source_at(uint32_t rank, uint32_t ranks, uint32_t place) {
    uint32_t source = rank + 1 + place;
    return source < ranks ? source : source - ranks;
}

// An operation while it is being loaded: its loads overlap with others until write() needs their values. Each of a few warps
// loads a part. `area`: what the kernel writes to its peers besides words. `next`: the kernel begins an operation; otherwise it
// continues the lane's.
constexpr uint32_t kOpeningThreads = 320;
struct Opening {
    static constexpr uint32_t kTable = 32, kTurn = kTable + EPW_GPU_PEERS; // the first thread that reads each
    static_assert(kTurn + 32 == kOpeningThreads && EPW_RANK_WORDS <= 32);

    epw_gpu_peers *peers;
    epw_gpu_lane_state *state;
    const unsigned char *own, *inbox;
    uint64_t entry; // of the peer table: one thread per peer
    uint32_t rank, ranks, lane, epoch, blocks;
    uint64_t deadline, group_deadline, spoke;
    uint32_t word, active, excluded, suspects, missing, queued, present; // words of sets: one thread per word
    uint32_t stage, op, wrapped;                                         // of the turn
    uint64_t sent, out;
    epw_gpu_report *report;

    __device__ __forceinline__ Opening(const epw_lane_args &a, epw_area area, uint64_t given_deadline)
        : peers(a.peers), state(a.state), own(a.window), inbox(a.inbox), rank(a.rank), ranks(a.layout.ranks), blocks(a.blocks),
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
        // The following are the same for all threads here.
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

    // Writes the operation to shared memory, where it is visible after the caller's next barrier.
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
        o.lands = posts && inbox != own;
        o.gave_up = 0;
        o.peers = peers;
        o.state = state;
        o.report = report;
        o.own = own;
        o.inbox = inbox;
        o.rank = rank;
        o.ranks = ranks;
        o.lane = lane;
        o.blocks = blocks;
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

// Whether the operation was closed without the blocks that had not begun, while this one had. Called by one thread. Writer:
// shut_out().
__device__ __forceinline__ bool is_closed(const Operation &o) {
    return ptx::load_relaxed_gpu(&o.state->turns[blockIdx.x].stage) != o.stage;
}

// Whether this block is the last of the kernel to have sent. All effects of any block's threads before this call happen before
// the last block's effects after it. The last block finds in o.lost the peers that any block has given up so far. Called by the
// whole block.
constexpr uint64_t kGaveUp = 1ull << 48; // in epw_gpu_lane_state.sent_blocks
// By this value blocks of a kernel tell one another how far they have come; all blocks have the same.
__device__ __forceinline__ uint64_t mark_of(const Operation &o) { return (o.sent_before & (kGaveUp - 1)) + 1; }
__device__ __noinline__ inline void take_lost(Operation &o) {
    o.lost = load_now(o.peers->gone);
    if (is_closed(o)) o.last = 0;
}
__device__ __forceinline__ void count_as_sent(Operation &o) {
    uint64_t mine = o.gave_up ? kGaveUp + 1 : 1;
    uint64_t passed = ptx::add_acq_rel_gpu(&o.state->sent_blocks, mine) + mine - o.sent_before;
    o.last = (passed & (kGaveUp - 1)) == gridDim.x;
    if (passed >= kGaveUp) take_lost(o);
}
__device__ __forceinline__ bool last_to_send(Operation &o) {
    __syncthreads();
    if (threadIdx.x == 0) count_as_sent(o);
    __syncthreads();
    return o.last != 0;
}
// The same for a block of which one warp sends, and nothing else: called by this warp.
__device__ __forceinline__ bool warp_last_to_send(Operation &o) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) count_as_sent(o);
    __syncwarp();
    return o.last != 0;
}

// Refuses what a peer has sent: in this block at once, and in the whole kernel when it closes.
__device__ __noinline__ inline void refuse_peer(Operation &o, uint32_t peer) {
    insert(o.refused, peer);
    atomicOr(&o.troubled, 1u);
}

// Notes that a row of the peer is malformed.
__device__ __noinline__ inline void spoil_peer(Operation &o, uint32_t peer) {
    insert(o.malformed, peer);
    atomicOr(&o.troubled, 1u);
}

// Adds value * unit to the sum, without a load that the kernel's end would wait for. `again`: a block may have done so in this
// operation before; what it added is then replaced. If that block left without trouble (see "Redelivery" above) this may not be
// seen, and the operation counts twice.
__device__ __forceinline__ void add_once(const Operation &o, epw_gpu_sum &sum, uint32_t value, uint64_t unit, bool again) {
    uint64_t added = value * unit;
    if (again) {
        const uint64_t last = ptx::load_relaxed_gpu(&sum.last);
        if (epw_word_matches(last, o.epoch, o.op)) added -= epw_word_value(last) * unit;
    }
    ptx::reduce_relaxed_gpu(&sum.sum, added);
    ptx::store_relaxed_gpu(&sum.last, epw_word(o.epoch, o.op, value));
}

// Waits until all blocks are out, for at most as long as the two waits of a kernel may take: for permission, and for rows or
// answers. Beacons tell the peers meanwhile that this rank is alive and waits for itself. Returns whether all blocks are out.
// Called by one thread.
__device__ __noinline__ inline bool await_blocks(const Operation &o) {
    const uint64_t began = ptx::global_timer_ns(), never_silent = UINT64_MAX / 2;
    uint64_t posted = 0;
    while (ptx::load_acquire_gpu(&o.state->out_blocks) != o.out_before) {
        const uint64_t waited = ptx::global_timer_ns() - began;
        // The peers may have heard nothing for half a deadline before this wait.
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

// Not all blocks have sent, so this rank's words never go out. If this rank has not lost itself in a wait already, it does so
// here, and continues without its own experts.
__device__ inline void lose_own(const Operation &o, uint32_t stage) {
    if (has_now(o.peers->gone, o.rank)) return;
    const bool dispatches = stage == EPW_GPU_SENT || stage == EPW_GPU_DISPATCHED;
    record_loss(o, dispatches ? EPW_PHASE_DISPATCH_SEND : EPW_PHASE_COMBINE_SEND, EPW_CAUSE_TIMEOUT, o.rank, 0, 0, 0, 0);
    insert(o.peers->gone, o.rank);
    suspect(o, o.rank, EPW_CAUSE_TIMEOUT);
}

// Closes the operation to blocks that have not begun. Returns whether all blocks had sent. Called by one thread.
__device__ inline bool shut_out(const Operation &o, uint32_t stage) {
    epw_gpu_lane_state *c = o.state;
    // Writer: this thread. Reader: a block that begins, see pass_by(); and a block that has begun, see is_closed(), which it
    // calls if its atomic add, an acquire, shows that kGaveUp was added before.
#pragma unroll 1
    for (uint32_t i = 0; i < c->blocks; i++) c->turns[i].stage = stage;
    __threadfence();
    const uint64_t sent = ptx::add_acq_rel_gpu(&c->sent_blocks, kGaveUp);
    return ((o.sent_before - sent) & (kGaveUp - 1)) == 0;
}

// must_close() for a block in trouble.
__device__ __noinline__ inline bool is_to_close(Operation &o, uint32_t stage, bool sends) {
    epw_gpu_lane_state *c = o.state;
    if (threadIdx.x == 0) {
        // For the turns: absent blocks are counted too, so that no word goes out early when they come.
        o.out_before += gridDim.x;
        if (sends) o.sent_before += gridDim.x;
        o.last = 0;
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
            await_blocks(o); // for the blocks that have begun: their clocks are the kernel's, so they wait no longer than the
                             // first block did
            if (sends && !all_sent) lose_own(o, stage);
        }
        o.given_up = o.lost = load_now(o.peers->gone);
        o.malformed = load_now(c->malformed);
        o.again = absent || any(o.present & (o.lost | o.refused));
        o.unordered = ptx::load_relaxed_gpu(&c->troubled) != gridDim.x;
    }
    __syncthreads();
    return o.last != 0;
}

// The end of a kernel for one of its blocks; the lane moves to `stage`. Returns false if the block is done. Returns true if there
// was trouble and this is the closing block: all others are out, or have not begun and will do nothing. o.lost and o.malformed
// then hold what all blocks have found, and close() clears the shared copies. If o.again, this block must deliver everything
// again, of all peers that are not left out. `sends`: the kernel has a sending half. `wrote`: this block has written what the
// closing block must see, if there is one. Called by the whole block.
__device__ __forceinline__ bool must_close(Operation &o, uint32_t stage, bool sends, bool wrote = false) {
    __syncthreads();
    if (o.troubled) return is_to_close(o, stage, sends); // also set if a peer is lost or refused
    if (threadIdx.x != 0) return false;
    // Reader: the block of the same number in the next kernel, which may have more blocks than this one.
    const uint64_t sent = o.sent_before + (sends ? gridDim.x : 0);
#pragma unroll 1
    for (uint32_t i = blockIdx.x; i < o.blocks; i += gridDim.x) {
        o.state->turns[i] = {stage, o.op, o.wrapped || o.op == 0, 0, sent, o.out_before + gridDim.x, o.present};
    }
    if (blockIdx.x == 0 && o.resumes && was_silent(o, o.spoke)) post_beacon(o, EPW_BEACON_NONE);
    // Reader: the closing block, if there is one. Of a block that wrote nothing for it, it acquires nothing by this.
    if (wrote) {
        ptx::reduce_release_gpu(&o.state->out_blocks, 1);
    } else {
        ptx::reduce_relaxed_gpu(&o.state->out_blocks, 1);
    }
    return false;
}

// Handles peers that some blocks have given up and others may have counted: a peer that has sent what was awaited is kept. Every
// word that has arrived is passed to `take(peer, value)`, because this block may not have seen it. Called by the closing block.
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

// Whether this block belongs to an operation that was closed without it; if so it is counted, and does nothing else. Called by
// one thread. All blocks of earlier kernels are out, so out_blocks is below `closed` only within the block's own kernel.
__device__ inline bool pass_by(epw_gpu_lane_state *c, bool sends) {
    __threadfence(); // orders the earlier load of the stage before these
    if (ptx::load_relaxed_gpu(&c->out_blocks) >= ptx::load_relaxed_gpu(&c->closed)) return false;
    if (sends) ptx::add_acq_rel_gpu(&c->sent_blocks, 1);
    ptx::add_acq_rel_gpu(&c->out_blocks, 1);
    return true;
}

// Ends the block because the lane is not in the stage that the operation needs. Called by the whole block. If this is so for all
// blocks, the lane's state stays as it is, and the first block puts a record.
__device__ __noinline__ inline void refuse(const Operation &o, bool sends, uint32_t phase) {
    if (threadIdx.x != 0 || pass_by(o.state, sends)) return;
    if (blockIdx.x != 0) return;
    o.state->faulted = 1;
    put_note(o, phase, EPW_CAUSE_HELD, 0, o.stage);
}

// The next combine begins with its first answer and its first sum. Called by one thread, when no combine is under way.
__device__ __forceinline__ void begin_answers(epw_gpu_lane_state *c) {
    c->answers_taken = c->sums_taken = 0;
    for (uint32_t part = 0; part < EPW_GPU_PARTS; part++) c->sent_parts[part] = 0;
}

// Sets all turns of the lane. Called by the whole block, when no other block is at work.
__device__ inline void set_turns(epw_gpu_lane_state *c, const epw_gpu_turn &turn) {
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < c->blocks; i += blockDim.x) c->turns[i] = turn;
}

// Closes an operation. Called by the whole closing block, or by a kernel's only block. o.kept: the peers that continue to take
// part; o.absent: the active peers that do not, or did not. All threads of the block see both.
__device__ __noinline__ inline void close(const Operation &o, uint32_t phase, uint32_t stage) {
    epw_gpu_lane_state *c = o.state;
    epw_gpu_peers *peers = o.peers;
    uint64_t sent = o.sent_before & (kGaveUp - 1), gave_up = ptx::load_relaxed_gpu(&c->sent_blocks) & ~(kGaveUp - 1);
    set_turns(c, {stage, o.op, o.wrapped || o.op == 0, 0, gave_up | sent, o.out_before, o.kept});
    if (threadIdx.x != 0) return;
    begin_answers(c);
    epw_gpu_report *report = o.report;
    const epw_rank_set missing = o.absent | o.missing;
    const bool misses = any(missing), missed = any(o.missing); // by now; before the kernel began
    if (misses || peers->recorded) {
        tell_suspects(o, c->excluded);
        if (peers->recorded) {
            put_record(peers->shared, &peers->record); // even if the peer has answered since
        } else if (!missed) {
            // No peer was lost in this kernel: the operation began without these peers.
            const uint32_t first = first_of(missing);
            record_loss(o, phase, is_revoked(o, first) ? EPW_CAUSE_SUPERSEDED : EPW_CAUSE_SUSPECTED, first, 0, 0, 0, 0);
        }
    }
    if (!misses) {
        report->record.cause = EPW_CAUSE_NONE;
    } else if (!missed) {
        report->record = peers->record; // otherwise the handle's first loss stays on record
    }
    c->missing = report->missing = missing;
    if (misses && stage == EPW_GPU_FREE) c->faulted = 1;
    if (c->noted > EPW_GPU_NOTES) {
        c->unrecorded += c->noted - EPW_GPU_NOTES;
        tell_unrecorded(o, c->unrecorded);
    }
    c->troubled = c->noted = 0;
    c->malformed = {};
    end_waits(o);
}

// Closes a send-only kernel. `begins`: it begins the handle, which therefore also misses the peers that do not take part.
__device__ __noinline__ inline void close_sending(Operation &o, uint32_t phase, uint32_t stage, bool begins) {
    if (threadIdx.x == 0) {
        o.kept = o.present;
        o.absent = (begins ? o.active : o.present) - (o.present - o.lost);
    }
    __syncthreads();
    close(o, phase, stage);
}

} // namespace epw
