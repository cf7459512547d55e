// A prefill operation from the first instruction of a kernel to the last: who of a block does what, how blocks meet, and the
// lines in which rows wait to be moved.
//
// Warps of a block. *Movers* move rows, each a few at a time, through a tile of its own (tile.cuh); they are as many as have
// tiles, some prefer to send and others to take, and they never access a peer's words. A *teller* sets the flags of what they
// have moved (tell.cuh). In the first block there is also an *attendant* for each peer, one thread, which alone reads and writes
// the words between this rank and that peer (attend.cuh), and a *registrar*, one warp, which finds out where rows go once all
// have been counted (place.cuh).
//
// Attendants tell movers which rows there are. A mover takes the next few rows of a line as a ticket, by an atomic addition, and
// looks at the flags of their slots until the first of them may be moved: until the peer has given the slot back, or has written
// the row. It keeps the ticket meanwhile and continues with other lines: so a peer that gives no slot back holds up neither rows
// to other peers nor rows that arrive. Once rows have been moved, the mover sets the flags of their slots at the peer. Rows of
// this rank itself are in no line: movers that find nothing else look for some that nobody has claimed yet (move.cuh).
//
// Peers behind queues write to the inbox, and what is written for them lies in images. Kernels that may have such peers are
// instances of their own (`Queues`), in which the attendant of each of them also carries flags over the queue (relay.cuh).
//
// Every wait is bounded. Attendants wait for peers as all kernels do (peer/wait.cuh), and give a peer up that is silent. Movers
// and the registrar wait for attendants, and blocks for one another, only once all blocks that work are known to run, see
// enter().
#pragma once

#include "kernels/peer/packet.cuh"
#include "kernels/prefill/state.h"
#include "prefill/gate.h"
#include "prefill/lane_sms.h"

namespace epw {

// The most movers of a block, and the warps beside them: the teller, the registrar and a warp of attendants. Where more warps
// have attendants, movers are fewer. So many tiles fill an SM's memory; and up to 13 movers of a combine have 128 registers each.
constexpr uint32_t kRowMovers = 14, kAnswerMovers = 13, kLeastMovers = 8; // of a dispatch, of a combine
constexpr uint32_t kEnoughMovers = 1536; // of all blocks: more of them only look at the same words
constexpr uint32_t kMeeting = 1;         // a barrier's number
constexpr uint32_t kSenders = 512;       // movers of all blocks that prefer to send rows of a dispatch
constexpr uint32_t kManyBlocks = 32;     // with this many or more, the first one moves no rows
__host__ __device__ constexpr uint32_t most_movers(uint32_t kind) { return kind == 0 ? kRowMovers : kAnswerMovers; }
__host__ __device__ constexpr uint32_t most_threads(uint32_t kind) { return (most_movers(kind) + 3) * 32; }

constexpr uint32_t kNone = ~0u;

// Where the rings of the operation's kind and lane lie, and their flags: as c/prefill/layout.h has it. In shared memory, since
// an acquire empties the L1 cache, from which anything else would be loaded.
struct Rings {
    uint64_t at, bytes, slot_bytes; // in a window: of the first peer's ring; of each; of a slot
    uint64_t flags[3];              // in a window: of the first peer's flags; by area: written, read, noted
    uint64_t slot_inverse;
    uint32_t slots;

    __device__ __forceinline__ Rings(const epw_prefill_layout &l, uint32_t kind, uint32_t lane)
        : at(kind == 0 ? epw_row_slot_offset(&l, lane, 0, 0) : epw_answer_slot_offset(&l, lane, 0, 0)),
          bytes((kind == 0 ? l.slot_bytes : l.answer_bytes) * l.slots),
          slot_bytes(kind == 0 ? l.slot_bytes : l.answer_bytes), flags{epw_flag_offset(&l, lane, EPW_FLAGS_WRITTEN + kind, 0, 0),
                                                                       epw_flag_offset(&l, lane, EPW_FLAGS_READ + kind, 0, 0),
                                                                       epw_flag_offset(&l, lane, EPW_FLAGS_NOTED + kind, 0, 0)},
          slot_inverse(l.slot_inverse), slots(l.slots) {}
    Rings() = default;

    __device__ __forceinline__ uint32_t slot_of(uint64_t number) const { return epw_remainder(number, slots, slot_inverse); }
    __device__ __forceinline__ uint64_t slot(uint32_t source, uint64_t number) const {
        return at + source * bytes + slot_of(number) * slot_bytes;
    }
    __device__ __forceinline__ uint64_t flag(uint32_t area, uint32_t peer, uint64_t number) const {
        return flags[area / 2] + (uint64_t(peer) * slots + slot_of(number)) * sizeof(uint64_t);
    }
};

struct Prefill : Peers {
    epw_prefill_gpu_call call; // from here it comes fast, see Rings
    epw_prefill_gpu_state *state;
    uint32_t block, blocks; // of those that work: the number of this one, and how many they are
    uint32_t mover, movers; // of those of all blocks: the number of this block's first one, and how many they are
    uint32_t batch;         // the most rows of a mover's ticket
    unsigned char *window;  // of this rank
    Rings rings;
    uint64_t *out_first, *in_first; // [ranks] numbers of the openings to the peers and from them; shared memory
    uint64_t meetings;              // arrivals at meetings once all meetings of this operation are over
    uint64_t own_word;              // of the epoch
    epw_rank_set lacking;           // peers that were given up or refused
    epw_rank_set discards;          // peers whose counts cannot be
    epw_rank_set opened;            // peers to which this rank's opening was written with the numbering, see Numbering
    uint32_t attended;              // peers that take part
    uint32_t settled;               // attendants that have the peer's opening, or will not
    uint32_t ended;                 // movers of this block that have ended
    uint32_t counted;               // 1: the counts in openings have been read
    uint32_t placed;                // 1: rows may be taken

    __device__ __forceinline__ bool does(uint32_t part) const { return call.parts & part; }
    __device__ __forceinline__ const epw_prefill_layout &layout() const { return call.lane.layout; }
};

__device__ __forceinline__ bool is_prefill_peer(const Prefill &o, uint32_t peer) {
    return peer != o.rank && peer < o.ranks && has(o.present, peer);
}

// Says that the line has so many rows. Writer: this thread, with what it knows of them. Readers: movers.
__device__ __forceinline__ void open_line(epw_prefill_line &line, uint64_t rows) {
    ptx::store_release_gpu(&line.opened, uint32_t(rows) + 1);
}

// ---- beginning ----

__device__ __forceinline__ void give_sms_back(const epw_prefill_gpu_lane &lane) {
    if (lane.taken) atomicAnd(lane.taken, epw_sms_others(lane.lane));
}

// Takes SMs for this kernel, as many as there are for its lane.
__device__ __forceinline__ uint32_t take_sms(const epw_prefill_gpu_lane &lane) {
    if (!lane.taken) return gridDim.x;
    for (uint32_t word = ptx::load_relaxed_gpu(lane.taken);;) { // ends: each time the other lane has begun or ended a kernel
        const epw_sms_taken taken = epw_sms_take(word, lane.lane, gridDim.x, lane.sms);
        const uint32_t seen = atomicCAS(lane.taken, word, taken.word);
        if (seen == word) return taken.sms;
        word = seen;
    }
}

// Opens the gate for the next kernel, once as many blocks as the grid has are through. close() counts all that have worked, each
// of the others counts itself.
__device__ __forceinline__ void pass_gate(epw_prefill_gpu_state *s, uint32_t blocks) {
    if (blocks != gridDim.x && atomicAdd(&s->passed, blocks) + blocks != gridDim.x) return;
    s->passed = 0;
    s->gate = 0;
}

// Numbers the blocks: the grid's first one, then the others in the order in which they come. As many as there are SMs for work,
// and wait for one another here; the rest has nothing to do. If too few get an SM for too long, the gate is closed until the next
// epoch, and no operation of the lane does anything: returns false then, in all blocks that wait or come later. Called by one
// thread.
__device__ __noinline__ inline bool enter(Prefill &o, const epw_prefill_gpu_lane &lane) {
    epw_prefill_gpu_state *s = o.state;
    const bool absent = any(o.active - o.present);
    if (blockIdx.x == 0 && absent) {
        // Writer: this thread, through its atomic below. Reader: the other blocks, once the gate lets them pass.
        s->present = o.present;
        __threadfence();
    }
    uint32_t now =
        blockIdx.x == 0 ? atomicOr(&s->gate, EPW_GATE_FIRST | (absent ? EPW_GATE_ABSENT : 0)) : atomicAdd(&s->gate, 1u);
    o.block = epw_gate_number(now, blockIdx.x == 0);
    if (now == 0) {
        const uint32_t sms = take_sms(lane);
        if (atomicAdd(&s->gate, epw_gate_opening(sms)) & EPW_GATE_CLOSED) give_sms_back(lane);
    }
    const uint64_t began = ptx::global_timer_ns(), most = 2 * EPW_WAIT_DEADLINES_MAX * o.deadline;
    for (;;) { // ends: the others come, or time is over
        now = ptx::load_acquire_gpu(&s->gate);
        if (now & EPW_GATE_CLOSED) return false;
        o.blocks = epw_gate_blocks(now);
        if (epw_gate_passes(now, o.block)) break;
        if (ptx::global_timer_ns() - began < most || atomicCAS(&s->gate, now, now | EPW_GATE_CLOSED) != now) continue;
        if (o.blocks > 0) give_sms_back(lane);
        return false;
    }
    if (o.block >= o.blocks) {
        pass_gate(s, 1);
    } else if (blockIdx.x != 0) { // which may have seen other suspects
        o.present = o.reachable = now & EPW_GATE_ABSENT ? load_now(s->present) : o.active;
        o.mapped = o.present - o.queued;
    }
    return true;
}

// Few movers take several rows at a time, which share what a ticket costs; many take one, so that all have some of a ring.
constexpr uint32_t kBatch = 4;
__device__ __forceinline__ uint32_t batch_of(const epw_prefill_layout &l, uint32_t tokens, uint32_t movers) {
    return min(max(min(tokens, l.slots) / movers, 1u), kBatch);
}

// Where there are many blocks the first one only attends to peers: its movers would slow that down.
__device__ __forceinline__ uint32_t attending_blocks(const Prefill &o) { return o.blocks < kManyBlocks ? 0 : 1; }

// Called by the whole block. Returns false if this block has nothing to do. `firsts`: shared memory for two numbers of each rank;
// `movers`: of a block.
template <bool Queues>
__device__ __forceinline__ bool open(Prefill &o, const epw_prefill_gpu_call &call, uint64_t *firsts, uint32_t movers,
                                     uint32_t tokens) {
    const epw_prefill_gpu_lane &lane = call.lane;
    epw_gpu_peers *peers = lane.peers;
    const epw_area area = call.kind == 0 ? EPW_AREA_ROWS : EPW_AREA_ANSWERS;
    const uint32_t ranks = lane.layout.ranks;
    for (uint32_t i = threadIdx.x; i < ranks; i += blockDim.x) {
        const epw_prefill_gpu_peer &p = lane.state->peers[i];
        o.data[i] = entry_of(peers, area, i);
        firsts[i] = call.parts & EPW_PREFILL_OPENS ? p.rings[call.kind].written : p.out_first;
        firsts[ranks + i] = call.parts & EPW_PREFILL_COUNTS ? p.rings[call.kind].taken : p.in_first;
    }
    static_assert(sizeof call % 8 == 0 && alignof(epw_prefill_gpu_call) == 8, "the call is copied by words");
    for (uint32_t i = threadIdx.x; i < sizeof call / 8; i += blockDim.x) {
        reinterpret_cast<uint64_t *>(&o.call)[i] = reinterpret_cast<const uint64_t *>(&call)[i];
    }
    if (threadIdx.x < EPW_RANK_WORDS) {
        const uint32_t word = threadIdx.x, active = peers->active.words[word];
        const uint32_t suspects = ptx::load_relaxed_gpu(&lane.shared->suspects.words[word]);
        o.active.words[word] = active;
        o.suspects.words[word] = suspects;
        const uint32_t queued = Queues ? peers->queued.words[word] : 0;
        o.present.words[word] = o.reachable.words[word] = active & ~suspects;
        o.queued.words[word] = queued;
        o.mapped.words[word] = active & ~suspects & ~queued;
        o.lacking.words[word] = o.discards.words[word] = o.opened.words[word] = 0;
    }
    if (threadIdx.x == 0) {
        o.state = lane.state;
        o.out_first = firsts;
        o.in_first = firsts + ranks;
        o.window = lane.window;
        o.rings = Rings(lane.layout, call.kind, lane.lane);
        o.peers = peers;
        o.own = lane.window;
        o.inbox = lane.inbox;
        o.rank = lane.rank;
        o.ranks = ranks;
        o.lane = lane.lane;
        o.own_word = peers->epoch_word;
        o.epoch = epw_word_epoch(o.own_word);
        o.op = lane.state->ops[call.kind] + (call.parts & EPW_PREFILL_OPENS ? 1 : 0);
        o.resumes = false;
        o.posts = Queues;
        o.lands = Queues && lane.inbox != lane.window;
        o.group_deadline = peers->deadline_ns;
        o.deadline = call.deadline_ns ? call.deadline_ns : peers->deadline_ns;
        o.spoke = 0;
        o.gave_up = 0;
        o.meetings = 0;
        o.settled = o.ended = o.counted = o.placed = 0;
    }
    __syncthreads(); // what is read above is written only when all blocks have begun
    if (threadIdx.x == 0) o.troubled = !enter(o, lane);
    __syncthreads();
    if (o.troubled || o.block >= o.blocks) return false;
    if (threadIdx.x == 0) {
        uint32_t attended = 0;
        for (uint32_t peer = 0; peer < o.ranks; peer++) attended += is_prefill_peer(o, peer);
        o.attended = attended;
        o.mover = (o.block - attending_blocks(o)) * movers; // of a block whose movers move
        o.movers = (o.blocks - attending_blocks(o)) * movers;
        o.batch = batch_of(lane.layout, tokens, o.movers);
    }
    if (blockIdx.x == 0) { // whose view of the peers is the one that counts
        for (uint32_t peer = threadIdx.x; peer < o.ranks; peer += blockDim.x) {
            if (peer == o.rank || is_prefill_peer(o, peer)) continue;
            open_line(o.state->peers[peer].send, 0);
            open_line(o.state->peers[peer].take, 0);
        }
    }
    __syncthreads();
    return true;
}

// All blocks that work wait for one another: what any thread has written before is visible to all afterwards. Called by the first
// `threads` threads of each block, whole warps.
__device__ __noinline__ inline void meet(Prefill &o, uint32_t threads) {
    ptx::team_barrier(kMeeting, threads);
    if (threadIdx.x == 0) {
        o.meetings += o.blocks;
        ptx::add_acq_rel_gpu(&o.state->met, 1);
        while (ptx::load_acquire_gpu(&o.state->met) < o.meetings) { // bounded: they all run, see enter()
        }
    }
    ptx::team_barrier(kMeeting, threads);
}
__device__ __forceinline__ void meet(Prefill &o) { meet(o, blockDim.x); }

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

// The same of the word that the peer has given the operation up, in place of row `row`: its attendant ends the line.
__device__ __noinline__ inline void end_rows(const Prefill &o, uint32_t phase, uint32_t peer, uint32_t row) {
    record_loss(o, phase, EPW_CAUSE_PARTIAL, peer, 0, 0, 0, 1);
    ptx::store_release_gpu(&o.state->peers[peer].ended, row + 1);
}

// ---- slots ----

// In this rank's ring at the peer, and in the peer's ring here.
__device__ __forceinline__ unsigned char *slot_there(const Prefill &o, uint32_t peer, uint64_t number) {
    return at(o, peer, o.rings.slot(o.rank, number));
}
template <bool Queues>
__device__ __forceinline__ const unsigned char *slot_here(const Prefill &o, uint32_t peer, uint64_t number) {
    return (Queues ? written_by(o, peer) : o.own) + o.rings.slot(peer, number);
}

__device__ __forceinline__ epw_row_head read_head(const unsigned char *slot) {
    return {read_once(slot), read_once(slot + 4), read_once(slot + 8), read_once(slot + 12)};
}

// ---- flags ----

__device__ __forceinline__ const uint64_t *flag_here(const Prefill &o, uint32_t area, uint32_t peer, uint64_t number) {
    return reinterpret_cast<const uint64_t *>(o.own + o.rings.flag(area, peer, number));
}

// The flag for which a message waits, and from which count on it waits no longer: a later message of the slot says so too.
struct Flag {
    const uint64_t *at; // nullptr: it need not wait
    uint64_t count;

    __device__ __forceinline__ bool is_set(const Prefill &o) const { return !at || has_count(o, count_at(at), count); }
    // Not an acquire.
    __device__ __forceinline__ bool seems_set(const Prefill &o) const { return !at || has_count(o, glimpse_count(at), count); }
};
// Message `number` of the peer has arrived.
__device__ __forceinline__ Flag arrival_of(const Prefill &o, uint32_t peer, uint64_t number) {
    return {flag_here(o, EPW_FLAGS_WRITTEN, peer, number), number + 1};
}
// Message `number` to the peer may be written.
__device__ __forceinline__ Flag room_for(const Prefill &o, uint32_t peer, uint64_t number) {
    const uint32_t slots = o.rings.slots;
    if (number < slots) return {nullptr, 0};
    return {flag_here(o, EPW_FLAGS_READ, peer, number - slots), number - slots + 1};
}

// Whether this rank has given back the slot in which message `number` of the peer comes. Not an acquire.
__device__ __forceinline__ bool has_given_back(const Prefill &o, uint32_t peer, uint64_t number) {
    const uint32_t slots = o.rings.slots;
    if (number < slots) return true;
    return has_count(o, ptx::load_relaxed_gpu(flag_here(o, EPW_FLAGS_NOTED, peer, number - slots)), number - slots + 1);
}

// The flag of a message to a peer behind a queue, or from it: set here for its relay.
__device__ __forceinline__ uint64_t *flag_to_relay(const Prefill &o, uint32_t area, uint32_t peer, uint64_t number) {
    const uint64_t list = (uint64_t(area) + o.call.kind) * o.ranks + peer;
    return o.call.lane.outgoing + list * o.rings.slots + o.rings.slot_of(number);
}
template <bool Queues>
__device__ __forceinline__ uint64_t *flag_there(const Prefill &o, uint32_t area, uint32_t peer, uint64_t number) {
    if (Queues && has(o.queued, peer)) return flag_to_relay(o, area, peer, number);
    return reinterpret_cast<uint64_t *>(at(o, peer, o.rings.flag(area, o.rank, number)));
}
// For this rank itself: the message has been read, and its slot is given back.
__device__ __forceinline__ void note_read(const Prefill &o, uint32_t peer, uint64_t number) {
    uint64_t *flag = reinterpret_cast<uint64_t *>(o.window + o.rings.flag(EPW_FLAGS_NOTED, peer, number));
    ptx::store_relaxed_gpu(flag, count_word(o, number + 1));
}
// Counts rows that are through.
__device__ __forceinline__ void count_moved(epw_prefill_line &line, uint32_t rows) { atomicAdd(&line.moved, rows); }

// Writer: this thread, of a message that it, or its warp before __syncwarp, has written. Reader: the peer's arrival_of().
template <bool Queues> __device__ __forceinline__ void tell_written(const Prefill &o, uint32_t peer, uint64_t number) {
    post_count(flag_there<Queues>(o, EPW_FLAGS_WRITTEN, peer, number), count_word(o, number + 1));
}
// Writer: this thread, after it, or its warp before __syncwarp, has read the message. Reader: the peer's room_for().
template <bool Queues> __device__ __forceinline__ void tell_read(const Prefill &o, uint32_t peer, uint64_t number) {
    note_read(o, peer, number);
    post_count(flag_there<Queues>(o, EPW_FLAGS_READ, peer, number), count_word(o, number + 1));
}

// ---- openings ----

// Whether the opening to the peer can be written: the peer has begun the epoch, and given its slot back.
__device__ __forceinline__ bool may_open(const Prefill &o, uint32_t peer) {
    const uint64_t number = o.out_first[peer];
    return word_from(o, peer, EPW_WORD_EPOCH) == o.own_word && room_for(o, peer, number).is_set(o);
}
// Of a dispatch: where the peer reads how many rows come for each of its experts.
__device__ __forceinline__ uint32_t *counts_there(const Prefill &o, uint32_t peer) {
    unsigned char *slot = slot_there(o, peer, o.out_first[peer]);
    return reinterpret_cast<uint32_t *>(slot + sizeof(epw_row_head) + sizeof(epw_opening));
}
// Writer: this thread, of what it, or its block before a barrier, has written. Reader: the peer's attendant.
template <bool Queues>
__device__ __forceinline__ void tell_opening(const Prefill &o, uint32_t peer, uint32_t rows, bool counted) {
    const uint64_t number = o.out_first[peer];
    unsigned char *slot = slot_there(o, peer, number);
    *reinterpret_cast<uint4 *>(slot) = {rows, o.call.hash, EPW_MESSAGE_OPENING, o.op};
    if (o.call.kind == 0) *reinterpret_cast<uint4 *>(slot + sizeof(epw_row_head)) = {counted ? 1u : 0u, 0, 0, 0};
    tell_written<Queues>(o, peer, number);
}

// A warp handles several tokens at a time, each in 2^shift lanes: at least one for each of its entries.
__device__ __forceinline__ uint32_t shift_of(uint32_t topk) {
    uint32_t shift = 0;
    while (1u << shift < topk) shift++;
    return shift;
}
__device__ __forceinline__ uint32_t tokens_at_once(uint32_t shift) { return 32u >> shift; }
// The lanes of this one's token.
__device__ __forceinline__ uint32_t lanes_of_token(uint32_t shift) {
    const uint32_t each = 1u << shift;
    return (each == 32 ? ~0u : (1u << each) - 1) << (threadIdx.x % 32 & ~(each - 1));
}

// ---- lines ----

// What a mover does.
struct Sending {
    bool sends; // rows to peers, or answers,
    bool first; // and prefers that to what else it does
};

// The number of this mover among those of all blocks. Looked up where it is needed: registers are scarce.
__device__ __forceinline__ uint32_t mover(const Prefill &o) { return o.mover + threadIdx.x / 32; }

// Rows of one line that a mover moves one behind the other.
struct Ticket {
    uint32_t line, row, rows; // rows 0: nothing can be moved now
};

// In `kept`: the line was not opened yet; it has no more rows for this mover. A ticket of no rows: none is held, and in place of
// a row it says how many rows nobody had taken up when this mover took its last one.
constexpr uint32_t kNoLine = ~0u, kEnded = ~0u - 1;

// A mover's view of lines: which it looks at first, and tickets that it keeps (shared memory, one for each line).
struct Lines {
    static constexpr uint32_t kTicket = 8;
    static_assert(kBatch < kTicket);
    const Prefill &o;
    uint32_t *kept; // row * kTicket + rows
    uint32_t count;
    uint32_t start = 0;

    // Lines that `used` does not name have no rows.
    template <typename Used> __device__ __forceinline__ void begin(uint32_t first, const Used &used) {
        start = first % count;
        for (uint32_t i = threadIdx.x % 32; i < count; i += 32) kept[i] = used(i) ? kNoLine : kEnded;
        __syncwarp();
    }
    static __device__ __forceinline__ uint32_t ticket_of(uint32_t row, uint32_t rows) { return row * kTicket + rows; }
    static __device__ __forceinline__ bool holds(uint32_t ticket) { return ticket < kEnded && ticket % kTicket != 0; }
    // Takes a ticket if none is held. Returns whether its first row can be moved; `opened`: as the line has it.
    template <typename Wait>
    __device__ __forceinline__ bool look(uint32_t number, uint32_t &ticket, uint32_t &opened, epw_prefill_line &line,
                                         const Wait &wait) const {
        if (ticket == kNoLine) {
            opened = ptx::load_acquire_gpu(&line.opened); // acquires what the attendant has read of the peer
            if (opened == 0) return false;
            ticket = ticket_of(opened - 1, 0);
        } else {
            opened = ptx::load_relaxed_gpu(&line.opened);
        }
        if (ticket % kTicket == 0) {
            // When few are left, each mover takes fewer, so that all end at the same time.
            const uint32_t rows = min(max(ticket / kTicket / o.movers, 1u), o.batch);
            ticket = ticket_of(atomicAdd(&line.next, rows), rows);
        }
        const uint32_t row = ticket / kTicket, end = opened - 1;
        const bool ready = wait(number, row).seems_set(o);
        ticket = row < end ? ticket_of(row, min(ticket % kTicket, end - row)) : kEnded;
        return ready && ticket != kEnded;
    }

    // The next rows that can be moved. `find` gives the line of a number, `wait` the flag for which a row of it waits. What the
    // flags say is acquired. First come lines that the mover `prefers`, and tickets that it holds, then other lines: no ticket is
    // taken of a line while others come first. Called by the whole warp.
    template <typename Find, typename Wait, typename Prefers>
    __device__ __forceinline__ Ticket pick(const Find &find, const Wait &wait, const Prefers &prefers) {
        const uint32_t all = 0xffffffffu, laneid = threadIdx.x % 32;
        bool left = true; // there are lines that have not been looked at
#pragma unroll 1
        for (uint32_t turn = 0; left; turn++) {
            left = false;
#pragma unroll 1
            for (uint32_t base = 0; base < count; base += 32) {
                const uint32_t i = base + laneid;
                const uint32_t number = start + i < count ? start + i : start + i - count;
                uint32_t ticket = i < count ? kept[number] : kEnded, opened = 0;
                const bool early = holds(ticket) || prefers(number);
                const bool comes = early == (turn == 0), later = ticket != kEnded && !early && turn == 0;
                bool ready = false;
                if (ticket != kEnded && comes) {
                    ready = look(number, ticket, opened, find(number), wait);
                    kept[number] = ticket;
                }
                left = left || __any_sync(all, later);
                const uint32_t some = __ballot_sync(all, ready);
                if (some == 0) continue;
                const uint32_t chosen = __ffs(some) - 1, line = __shfl_sync(all, number, chosen);
                const uint32_t first = __shfl_sync(all, ticket / kTicket, chosen);
                const uint32_t held = __shfl_sync(all, ticket % kTicket, chosen);
                // Those from the first one on whose flags are set.
                const bool set = laneid < held && wait(line, first + laneid).is_set(o); // acquires
                const uint32_t rows = __ffs(~__ballot_sync(all, set)) - 1;
                if (laneid == chosen) {
                    const uint32_t next = first + rows;
                    kept[number] = rows < held ? ticket_of(next, held - rows) : ticket_of(opened - 1 - next, 0);
                }
                start = line + 1 < count ? line + 1 : 0;
                __syncwarp();
                return {line, first, rows};
            }
        }
        __syncwarp();
        return {0, 0, 0};
    }
    // Whether no line has any more rows. Called by the whole warp.
    __device__ __forceinline__ bool have_ended() const {
        bool ended = true;
        for (uint32_t i = threadIdx.x % 32; i < count; i += 32) ended &= kept[i] == kEnded;
        return __all_sync(0xffffffffu, ended);
    }
};

// A mover that has found nothing to do looks again after a while: all movers look at the same few words.
__device__ __forceinline__ void pause() { __nanosleep(100); }

} // namespace epw
