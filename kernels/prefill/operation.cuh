// A prefill operation from the first instruction of a kernel to the last: who of a block does what, how blocks meet, and the
// lines in which rows wait to be moved.
//
// Warps of a block. *Movers* move rows, each one row at a time through a tile of its own, so that many are in flight on an SM;
// they know no peer's words. In the first block there is also an *attendant* for each peer, one thread, which alone reads and
// writes the words between this rank and that peer (attend.cuh), and a *registrar*, one warp, which finds out where rows go once
// all have been counted (place.cuh).
//
// Attendants tell movers by `limit` how many rows of each line may be moved. A mover takes the next row of a line as a ticket,
// by an atomic addition. If several do so at the same time, some tickets may be beyond the limit. A mover keeps such a ticket
// and goes on with other lines: so a peer that gives no credit holds up neither rows to others nor those that come. When a row
// is through, the mover sets the bit of its slot; the attendant counts the bits in the order of the ring.
//
// Every wait is bounded. Attendants wait for peers as all kernels do (peer/wait.cuh), and give a peer up that is silent. Movers
// and the registrar wait for attendants, and blocks for one another, only once all blocks are known to run, see enter().
#pragma once

#include "kernels/peer/packet.cuh"
#include "kernels/prefill/state.h"

namespace epw {

constexpr uint32_t kMovers = 12;
constexpr uint32_t kRegistrar = kMovers, kFirstAttendant = (kMovers + 1) * 32; // a warp; a thread
constexpr uint32_t kMostPrefillThreads = kFirstAttendant + EPW_GPU_PEERS;

struct Prefill : Peers {
    const epw_prefill_gpu_call *call;
    epw_prefill_gpu_state *state;
    uint64_t meetings;       // blocks that have come to meetings when all of this one are over
    uint64_t own_word;       // of the epoch
    epw_rank_set lacking;    // peers that were given up or refused
    epw_rank_set discards;   // peers whose counts are nonsense
    uint32_t attended;       // peers that take part
    uint32_t settled, ended; // attendants that have the peer's opening, or will not; that have ended
    uint32_t counted;        // 1: the counts in openings have been read
    uint32_t placed;         // 1: rows may be taken

    __device__ __forceinline__ bool does(uint32_t part) const { return call->parts & part; }
    __device__ __forceinline__ const epw_prefill_layout &layout() const { return call->lane.layout; }
};

__device__ __forceinline__ bool is_prefill_peer(const Prefill &o, uint32_t peer) {
    return peer != o.rank && peer < o.ranks && has(o.present, peer);
}

// ---- beginning ----

constexpr uint32_t kClosed = 1u << 31;

// Whether all blocks of the kernel run; the same answer for all of them. If some get no SM for too long, the gate is closed until
// the next epoch, and no operation of the lane does anything. Called by one thread.
__device__ __noinline__ inline bool enter(epw_prefill_gpu_state *s, uint64_t deadline) {
    if (atomicAdd(&s->gate, 1u) & kClosed) return false;
    const uint64_t began = ptx::global_timer_ns(), most = 2 * EPW_WAIT_DEADLINES_MAX * deadline;
    for (;;) { // ends: the others come, or time is over
        const uint32_t now = ptx::load_acquire_gpu(&s->gate);
        if (now & kClosed) return false;
        if (now == gridDim.x) return true;
        if (ptx::global_timer_ns() - began >= most && atomicCAS(&s->gate, now, now | kClosed) == now) return false;
    }
}

// Called by the whole block. Returns false if nothing is to be done.
__device__ __forceinline__ bool open(Prefill &o, const epw_prefill_gpu_call &call) {
    const epw_prefill_gpu_lane &lane = call.lane;
    epw_gpu_peers *peers = lane.peers;
    const epw_area area = call.kind == 0 ? EPW_AREA_ROWS : EPW_AREA_ANSWERS;
    for (uint32_t i = threadIdx.x; i < lane.layout.ranks; i += blockDim.x) o.data[i] = entry_of(peers, area, i);
    if (threadIdx.x < EPW_RANK_WORDS) {
        const uint32_t word = threadIdx.x, active = peers->active.words[word];
        const uint32_t suspects = ptx::load_relaxed_gpu(&lane.shared->suspects.words[word]);
        o.active.words[word] = active;
        o.suspects.words[word] = suspects;
        o.present.words[word] = o.reachable.words[word] = o.mapped.words[word] = active & ~suspects;
        o.queued.words[word] = o.lacking.words[word] = o.discards.words[word] = 0;
    }
    if (threadIdx.x == 0) {
        o.call = &call;
        o.state = lane.state;
        o.peers = peers;
        o.own = lane.window;
        o.inbox = nullptr;
        o.rank = lane.rank;
        o.ranks = lane.layout.ranks;
        o.lane = lane.lane;
        o.own_word = peers->epoch_word;
        o.epoch = epw_word_epoch(o.own_word);
        o.op = lane.state->ops[call.kind] + (call.parts & EPW_PREFILL_OPENS ? 1 : 0);
        o.resumes = o.posts = false;
        o.group_deadline = peers->deadline_ns;
        o.deadline = call.deadline_ns ? call.deadline_ns : peers->deadline_ns;
        o.spoke = 0;
        o.gave_up = 0;
        o.meetings = 0;
        o.settled = o.ended = o.counted = o.placed = 0;
        o.troubled = !enter(o.state, o.deadline);
    }
    __syncthreads();
    if (o.troubled) return false;
    if (threadIdx.x == 0) {
        uint32_t attended = 0;
        for (uint32_t peer = 0; peer < o.ranks; peer++) attended += is_prefill_peer(o, peer);
        o.attended = attended;
    }
    __syncthreads();
    return true;
}

// All blocks wait for one another: what any thread has written before is visible to all afterwards. Called by the whole block.
__device__ __noinline__ inline void meet(Prefill &o) {
    __syncthreads();
    if (threadIdx.x == 0) {
        o.meetings += gridDim.x;
        ptx::add_acq_rel_gpu(&o.state->met, 1);
        while (ptx::load_acquire_gpu(&o.state->met) < o.meetings) { // bounded: all blocks run, see enter()
        }
    }
    __syncthreads();
}

// ---- losses ----

// Notes that the peer's part of the operation is missing. The first loss is recorded. For the first block.
__device__ __noinline__ inline void miss(Prefill &o, uint32_t phase, uint32_t peer, uint32_t cause) {
    insert(o.lacking, peer);
    atomicOr(&o.troubled, 1u);
    record_loss(o, phase, cause, peer, 0, 0, 0, 1);
}

// The same for movers, of a row that is none.
__device__ __noinline__ inline void refuse_row(const Prefill &o, uint32_t phase, uint32_t peer) {
    if (atomicExch(&o.state->peers[peer].refused, 1u) != 0) return;
    record_loss(o, phase, EPW_CAUSE_FORMAT, peer, 0, 0, 0, 1);
}

// The same of the word that the peer has given the operation up, in place of row `row`: its attendant sees to it.
__device__ __forceinline__ void end_rows(const Prefill &o, uint32_t peer, uint32_t row) {
    ptx::store_release_gpu(&o.state->peers[peer].ended, row + 1);
}

// ---- slots ----

__device__ __forceinline__ uint64_t slot_offset(const Prefill &o, uint32_t source, uint64_t number) {
    return o.call->kind == 0 ? epw_row_slot_offset(&o.layout(), o.lane, source, number)
                             : epw_answer_slot_offset(&o.layout(), o.lane, source, number);
}
// In this rank's ring at the peer, and in the peer's ring here.
__device__ __forceinline__ unsigned char *slot_there(const Prefill &o, uint32_t peer, uint64_t number) {
    return at(o, peer, slot_offset(o, o.rank, number));
}
__device__ __forceinline__ const unsigned char *slot_here(const Prefill &o, uint32_t peer, uint64_t number) {
    return o.own + slot_offset(o, peer, number);
}

__device__ __forceinline__ epw_row_head read_head(const unsigned char *slot) {
    return {read_once(slot), read_once(slot + 4), read_once(slot + 8), read_once(slot + 12)};
}

// Sets the bit of the message's slot. Writer: this thread, with what its warp has done before __syncwarp. Reader: the attendant.
__device__ __forceinline__ void mark(const Prefill &o, uint32_t *bits, uint32_t peer, uint64_t number) {
    const uint32_t slot = uint32_t(number % o.layout().slots);
    ptx::set_bits_release_gpu(&bits[peer * o.call->lane.words + slot / 32], bit_of(slot));
}

// Counts the bits that are set from the slot of message `number` on, in the order of the ring, and clears them. Acquires what
// was released with each. Called by the peer's attendant.
__device__ __forceinline__ uint32_t take_marks(const Prefill &o, uint32_t *bits, uint32_t peer, uint64_t number) {
    const uint32_t slots = o.layout().slots;
    uint32_t slot = uint32_t(number % slots), count = 0;
    while (count < slots) {
        uint32_t *word = &bits[peer * o.call->lane.words + slot / 32];
        const uint32_t first = slot % 32, room = min(32 - first, slots - slot);
        const uint32_t clear = ~(ptx::load_acquire_gpu(word) >> first); // from the first on: 0 where the bit is set
        const uint32_t run = min(room, clear == 0 ? 32u : uint32_t(__ffs(clear)) - 1);
        if (run == 0) break;
        atomicAnd(word, ~((run == 32 ? ~0u : (1u << run) - 1) << first));
        count += run;
        if (run < room) break;
        slot = slot + run == slots ? 0 : slot + run;
    }
    return count;
}

// ---- lines ----

constexpr uint32_t kNoTicket = ~0u;

struct Ticket {
    uint32_t line, row; // line kNoTicket: nothing can be moved now
};

// A mover's view of lines: which it looks at first, and tickets that it keeps (shared memory, one for each line).
struct Lines {
    uint32_t *kept;
    uint32_t count, start;

    __device__ __forceinline__ void begin(uint32_t first) {
        start = first % count;
        for (uint32_t i = threadIdx.x % 32; i < count; i += 32) kept[i] = kNoTicket;
        __syncwarp();
    }
    // The next row that can be moved. `find` gives the line of a number. Called by the whole warp. The warp has then acquired
    // what the limit was released with.
    template <typename Find> __device__ __forceinline__ Ticket pick(const Find &find) {
        const uint32_t all = 0xffffffffu, laneid = threadIdx.x % 32;
#pragma unroll 1
        for (uint32_t base = 0; base < count; base += 32) {
            const uint32_t i = base + laneid;
            const uint32_t number = start + i < count ? start + i : start + i - count;
            epw_prefill_line *line = nullptr;
            uint32_t limit = 0, row = kNoTicket;
            if (i < count) {
                line = find(number);
                limit = ptx::load_acquire_gpu(&line->limit);
                row = kept[number];
            }
            const bool waits = row != kNoTicket;
            uint32_t ready = __ballot_sync(all, i < count && (waits ? row : ptx::load_relaxed_gpu(&line->next)) < limit);
            for (; ready != 0; ready &= ready - 1) { // ends: a bit less each time
                const uint32_t chosen = __ffs(ready) - 1;
                bool goes = false;
                if (laneid == chosen) {
                    if (!waits) row = atomicAdd(&line->next, 1u);
                    goes = row < limit;
                    kept[number] = goes ? kNoTicket : row;
                }
                if (!__shfl_sync(all, goes, chosen)) continue;
                const Ticket ticket = {__shfl_sync(all, number, chosen), __shfl_sync(all, row, chosen)};
                start = ticket.line + 1 < count ? ticket.line + 1 : 0;
                __syncwarp();
                return ticket;
            }
        }
        return {kNoTicket, 0};
    }
};

// A mover that has found nothing to do looks again after a while: all movers look at the same few words.
__device__ __forceinline__ void pause() { __nanosleep(250); }

// Whether all attendants have ended. Called by a whole warp.
__device__ __forceinline__ bool has_finished(const Prefill &o) {
    const uint32_t finished = threadIdx.x % 32 == 0 ? ptx::load_acquire_gpu(&o.state->finished) : 0;
    return __shfl_sync(0xffffffffu, finished, 0) != 0;
}

// ---- the end ----

// Waits until all other blocks are out. Called by the whole first block.
__device__ __forceinline__ void await_others_out(const Prefill &o) {
    __syncthreads();
    if (threadIdx.x == 0) {
        while (ptx::load_acquire_gpu(&o.state->out) < gridDim.x - 1) { // bounded: attendants have ended
        }
    }
    __syncthreads();
}
__device__ __forceinline__ void go_out(const Prefill &o) {
    __syncthreads();
    if (threadIdx.x == 0) ptx::add_acq_rel_gpu(&o.state->out, 1);
}

__device__ __noinline__ inline void fill_record(const Prefill &o, epw_error_record &r, uint32_t phase, uint32_t cause,
                                                uint32_t peer) {
    r = {};
    r.phase = phase;
    r.cause = cause;
    r.rank = o.rank;
    r.peer = peer;
    r.lane = o.lane;
    r.epoch = o.epoch;
    r.op = o.op & EPW_OP_MAX;
    r.deadline_ns = o.deadline;
}

// Tells the host how the operation ended, unless it was complete. Called by one thread.
__device__ __noinline__ inline void report(const Prefill &o, bool degraded) {
    epw_prefill_gpu_report *to = o.call->report;
    const epw_prefill_gpu_state *s = o.state;
    if (o.call->gives_up) {
        tell_host(o.call->lane.faulted);
        return;
    }
    if (!degraded || !o.does(EPW_PREFILL_RECEIVES)) return;
    to->degraded = 1;
    to->missing = s->missing;
    to->record = s->record;
    to->ticket = o.call->ticket;
    tell_host(o.call->lane.faulted);
}

// Of a kernel whose blocks did not all get SMs: this rank has lost itself, and with it all others. Called by the whole block.
__device__ __noinline__ inline void close_shut(Prefill &o) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    const uint32_t phase = o.call->kind == 0 ? EPW_PHASE_DISPATCH_SEND : EPW_PHASE_COMBINE_SEND;
    o.state->missing = o.active;
    fill_record(o, o.state->record, phase, EPW_CAUSE_TIMEOUT, o.rank);
    report(o, true);
}

// Peers whose rows movers have found to be none are lacking too. Called by one thread of the first block, when all other blocks
// are out.
__device__ __forceinline__ void gather_refused(Prefill &o) {
    for (uint32_t peer = 0; peer < o.ranks; peer++) {
        if (ptx::load_relaxed_gpu(&o.state->peers[peer].refused)) insert(o.lacking, peer);
    }
}

// Called by one thread of the first block, after that.
__device__ __noinline__ inline void close(Prefill &o) {
    epw_prefill_gpu_state *s = o.state;
    const uint32_t phase = o.call->kind == 0 ? EPW_PHASE_DISPATCH_RECEIVE : EPW_PHASE_COMBINE_RECEIVE;
    const epw_rank_set absent = o.active - o.present;
    const bool recorded = ptx::load_relaxed_gpu(&o.peers->recorded);
    if (o.does(EPW_PREFILL_OPENS)) {
        s->missing = {};
        s->record = {};
        s->ops[o.call->kind] = o.op;
    }
    s->missing = s->missing | absent | o.lacking;
    if (s->record.cause == EPW_CAUSE_NONE && any(absent)) fill_record(o, s->record, phase, EPW_CAUSE_SUSPECTED, first_of(absent));
    if (s->record.cause == EPW_CAUSE_NONE && recorded) s->record = o.peers->record;
    if (s->record.cause == EPW_CAUSE_NONE && s->bad_ids > 0) {
        fill_record(o, s->record, EPW_PHASE_DISPATCH_SEND, EPW_CAUSE_ROUTING, o.rank);
        s->record.expected = s->bad_at;
        s->record.seen = s->bad_id;
    }
    if (s->record.cause == EPW_CAUSE_NONE && s->overflow > 0) {
        fill_record(o, s->record, phase, EPW_CAUSE_OVERFLOW, o.rank);
        s->record.expected = s->rows;
        s->record.seen = s->rows - s->overflow;
    }
    report(o, any(s->missing) || s->record.cause != EPW_CAUSE_NONE || s->overflow > 0);
    if (o.troubled || recorded) {
        end_waits(o);
        epw_rank_set told;
        tell_suspects(o, told);
    }
    for (uint32_t peer = 0; peer < o.ranks; peer++) {
        epw_prefill_gpu_peer &p = s->peers[peer];
        p.send = p.take = {};
        p.gone = p.refused = p.ended = 0;
    }
    s->met = s->out = 0;
    s->placed = s->finished = s->sums = s->bad_ids = 0;
    s->rows = s->overflow = 0;
    s->gate = 0;
}

} // namespace epw
