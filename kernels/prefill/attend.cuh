// Attendants: one thread of the first block for each peer. It writes and reads openings, tells movers which rows there are, waits
// until they are through, and gives up a peer that is silent; see operation.cuh.
#pragma once

#include "kernels/prefill/relay.cuh"

namespace epw {

// The relay of a peer behind a queue; nullptr: the peer is mapped.
template <bool Queues> struct WithRelay { Relay *relay = nullptr; };
template <> struct WithRelay<false> { static constexpr Relay *relay = nullptr; };

// In shared memory, as Rings. `Queues`: the peer may be behind a queue.
template <bool Queues> struct Attendant : WithRelay<Queues> {
    using WithRelay<Queues>::relay;
    Prefill &o;
    const uint32_t peer;
    const epw_prefill_gpu_call &call;
    epw_prefill_gpu_peer &p;
    const uint32_t rows;          // behind the opening to the peer
    const uint32_t expected;      // rows that its opening must say, kNone: any number
    const uint32_t again;         // no counts in openings
    uint64_t out_first, in_first; // numbers of the openings
    uint64_t end;                 // number behind the last message to the peer
    uint64_t free;                // messages whose slots the peer has given back, in order. Lags behind
    uint64_t come;                // number of the next message from the peer that has not come. Lags behind
    uint32_t in_rows;             // behind its opening
    uint32_t sent, taken;         // rows that movers were through with at the last look
    bool begun;                   // the peer has begun the epoch: it may be written to
    bool opens;                   // the opening to the peer is still to be written
    bool ends;                    // so is the word that no row follows, in place of the rows
    bool sends;                   // movers send the rows,
    bool allowed;                 // and have been told so
    bool takes;                   // something has yet to come
    bool heard;                   // its opening has been read
    bool passed;                  // and its slot given back
    bool taking;                  // movers have been told of its rows
    bool discards;                // its messages are read by nobody

    __device__ __forceinline__ Attendant(Prefill &o, uint32_t peer, uint32_t rows, uint32_t expected, uint32_t again)
        : o(o), peer(peer), call(o.call), p(o.state->peers[peer]), rows(rows), expected(expected), again(again), in_rows(0),
          sent(0), taken(0), allowed(false), heard(false), passed(false), taking(false), discards(false) {
        const epw_prefill_rings rings = p.rings[call.kind];
        opens = o.does(EPW_PREFILL_OPENS);
        begun = !opens;
        ends = o.does(EPW_PREFILL_SENDS) && call.gives_up && rows > 0;
        sends = o.does(EPW_PREFILL_SENDS) && !call.gives_up && rows > 0;
        out_first = o.out_first[peer];
        in_first = o.in_first[peer];
        if (opens) p.out_first = out_first;
        if (o.does(EPW_PREFILL_COUNTS)) {
            p.in_first = in_first;
        } else if (o.does(EPW_PREFILL_RECEIVES)) { // the opening has been taken by the kernel before
            heard = passed = true;
            in_rows = p.in_rows;
            discards = has(o.state->missing, peer); // refused then
        }
        discards |= call.gives_up;
        end = rings.written;
        if (opens || ends || sends) end = out_first + 1 + (sends ? rows : ends ? 1 : 0);
        if (has(o.opened, peer)) { // and movers may send, see Numbering
            opens = false;
            begun = true;
            allowed = sends;
        }
        free = out_first > slots() ? out_first - slots() : 0; // else the messages behind them would not have been written
        come = in_first + (passed ? 1 : 0);
        takes = o.does(EPW_PREFILL_COUNTS) || (o.does(EPW_PREFILL_RECEIVES) && in_rows > 0);
    }

    __device__ __forceinline__ bool is_queued() const { return relay != nullptr; }
    __device__ __forceinline__ uint64_t slots() const { return o.layout().slots; }
    __device__ __forceinline__ bool writes() const { return opens || ends || sends; }
    // Messages whose slots must be given back before all that are to be written have one.
    __device__ __forceinline__ uint64_t needed() const { return writes() && end > slots() ? end - slots() : 0; }
    __device__ __forceinline__ uint32_t phase() const {
        const bool sending = !has_sent();
        if (call.kind == 0) return sending ? EPW_PHASE_DISPATCH_SEND : EPW_PHASE_DISPATCH_RECEIVE;
        return sending ? EPW_PHASE_COMBINE_SEND : EPW_PHASE_COMBINE_RECEIVE;
    }

    // ---- what is sent ----

    __device__ __forceinline__ void write_counts() const {
        constexpr uint32_t kAtOnce = 16; // loads in flight
        const uint32_t local = o.layout().local_experts, *from = call.routing.sent_counts + size_t(peer) * local;
        uint32_t *to = counts_there(o, peer);
#pragma unroll 1
        for (uint32_t e = 0; e < local; e += kAtOnce) {
            uint32_t n[kAtOnce];
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++) n[k] = e + k < local ? from[e + k] : 0;
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++)
                if (e + k < local) to[e + k] = n[k];
        }
    }
    __device__ __noinline__ void write_opening() {
        if (call.kind == 0) write_counts();
        tell_opening<Queues>(o, peer, rows, !again);
        opens = false;
    }

    // In place of the rows.
    __device__ __noinline__ void write_end() {
        const uint64_t number = out_first + 1;
        *reinterpret_cast<uint4 *>(slot_there(o, peer, number)) = {0, call.hash, EPW_MESSAGE_VOID, o.op};
        tell_written<Queues>(o, peer, number);
        ends = false;
    }

    __device__ __forceinline__ void begin() {
        if (is_queued()) bring_word(o, peer, EPW_WORD_EPOCH);
        begun = word_from(o, peer, EPW_WORD_EPOCH) == o.own_word && (!is_queued() || relay->is_clear());
    }

    // Returns whether something has moved.
    __device__ __forceinline__ bool send() {
        if (!writes()) return false;
        if (!begun) begin();
        if (!begun) return false;
        bool moved = false;
        if (sends && !allowed) { // rows have flags of their own, and need not wait for the opening
            open_line(p.send, rows);
            allowed = moved = true;
        }
        if (opens && room_for(o, peer, out_first).is_set(o)) {
            write_opening();
            moved = true;
        }
        if (!opens && ends && room_for(o, peer, out_first + 1).is_set(o)) {
            write_end();
            moved = true;
        }
        return (allowed && follow(p.send, sent)) || moved;
    }
    __device__ __forceinline__ bool has_sent() const { return !opens && !ends && (!sends || sent == rows); }

    // Whether movers have moved on.
    static __device__ __forceinline__ bool follow(const epw_prefill_line &line, uint32_t &seen) {
        const uint32_t before = seen;
        seen = ptx::load_relaxed_gpu(&line.moved);
        return seen != before;
    }

    // ---- what comes ----

    // What comes is none of this rank's operation.
    __device__ __noinline__ void refuse(uint32_t cause) {
        discards = true;
        miss(o, phase(), peer, cause);
    }

    // Reads the opening. Its counts are read by the registrar.
    __device__ __noinline__ void hear_opening() {
        const unsigned char *slot = slot_here<Queues>(o, peer, in_first);
        const epw_row_head head = read_head(slot);
        const bool gives_up = head.kind == EPW_MESSAGE_VOID && head.op == o.op;
        const bool known = head.kind == EPW_MESSAGE_OPENING && head.op == o.op;
        bool good = known && head.format == call.hash;
        const bool unplaced = good && call.kind == 0 && again && !call.routing.complete[peer];
        if (call.kind == 0) {
            good = good && !unplaced && read_once(slot + sizeof head) == (again ? 0u : 1u) && head.token <= call.lane.max_tokens;
            good = good && (expected == kNone || head.token == expected);
        }
        good |= call.gives_up;
        uint32_t cause = gives_up || unplaced ? EPW_CAUSE_PARTIAL : EPW_CAUSE_FORMAT;
        if (good && call.kind != 0 && head.token != expected && !call.gives_up) {
            good = false;
            cause = EPW_CAUSE_PARTIAL;
        }
        in_rows = known ? head.token : 0;
        p.in_rows = in_rows;
        if (!good) {
            refuse(cause);
        } else if (call.kind == 0 && !again && !call.gives_up) {
            call.routing.announced[peer] = in_rows;
        }
        heard = true;
        settle();
    }

    // The registrar need not wait for this peer any longer.
    __device__ __forceinline__ void settle() {
        __threadfence_block(); // Writer: this thread, of `announced`. Reader: the registrar, which acquires
        atomicAdd(&o.settled, 1u);
    }

    __device__ __forceinline__ bool take() {
        if (!takes) return false;
        bool moved = false;
        if (!heard && arrival_of(o, peer, in_first).is_set(o)) {
            hear_opening();
            moved = true;
        }
        const bool counted = call.kind != 0 || again || call.gives_up;
        if (heard && !passed && (counted || ptx::load_acquire_block(&o.counted))) {
            passed = moved = true;
            discards |= has(o.discards, peer);
            tell_read<Queues>(o, peer, in_first);
            come = in_first + 1;
            takes = o.does(EPW_PREFILL_RECEIVES) && in_rows > 0;
        }
        if (passed && takes) moved |= discards ? discard() : follow_rows();
        return moved;
    }

    __device__ __forceinline__ uint64_t in_end() const { return in_first + 1 + in_rows; }

    // Movers take the rows.
    __device__ __forceinline__ bool follow_rows() {
        if (!taking) {
            if (call.kind == 0 && !ptx::load_acquire_block(&o.placed)) return false;
            open_line(p.take, in_rows);
            taking = true;
        }
        const bool moved = follow(p.take, taken);
        // Before the message behind it, which never comes, is waited for.
        const uint32_t ended = ptx::load_acquire_gpu(&p.ended);
        if (ended > 0 && ended < in_rows) {
            in_rows = ended;
            open_line(p.take, in_rows);
        }
        takes = taken < in_rows;
        return moved;
    }

    // This thread does, and moves nothing.
    __device__ __noinline__ bool discard() {
        const uint64_t before = come;
        while (come < in_end() && arrival_of(o, peer, come).is_set(o)) {
            const epw_row_head head = read_head(slot_here<Queues>(o, peer, come));
            if (head.kind == EPW_MESSAGE_VOID && head.op == o.op) in_rows = uint32_t(come - in_first);
            tell_read<Queues>(o, peer, come++);
        }
        takes = come < in_end();
        return come > before;
    }

    // ---- turns ----

    // Returns whether something has moved.
    __device__ __noinline__ bool attend() {
        bool moved = is_queued() && relay->hear();
        moved |= send();
        moved |= take();
        if (is_queued()) moved |= relay->carry(end);
        return moved;
    }

    // Number behind the last message that this kernel takes.
    __device__ __forceinline__ uint64_t taken_end() const {
        return o.does(EPW_PREFILL_RECEIVES) ? in_end() : o.does(EPW_PREFILL_COUNTS) ? in_first + 1 : 0;
    }
    __device__ __forceinline__ bool is_over() const {
        return has_sent() && !takes && (!is_queued() || relay->has_carried(end, taken_end()));
    }
    __device__ __forceinline__ bool sends_impossible_counts() const { return is_queued() && relay->impossible; }

    // Whether the peer itself is to do something next: it has not begun the epoch, has not given slots back, or sends nothing
    // although it has a slot. Looks through flags in order, so it is asked only when nothing moves.
    __device__ __noinline__ bool is_owing() {
        if (is_queued() && (relay->stuck || relay->impossible)) return true;
        while (begun && free < needed() && room_for(o, peer, free + slots()).is_set(o)) free++;
        while (takes && taking && come < in_end() && arrival_of(o, peer, come).is_set(o)) come++;
        if (!has_sent() && (!begun || free < needed())) return true;
        if (!takes) return false;
        return !heard || (passed && (discards || (taking && come < in_end() && has_given_back(o, peer, come))));
    }

    static constexpr uint32_t kLooksAtWords = 16; // one in so many looks is at the words by which peers are given up too

    // Waits until something moves, or the peer owes nothing. Returns false if the peer has been given up.
    __device__ __noinline__ bool await(uint64_t &waited) {
        const uint64_t began = ptx::global_timer_ns();
        const uint64_t word = count_word(o, has_sent() ? come + 1 : free + 1);
        uint32_t looks = 0;
        const bool comes = await_long<Queues>(o, phase(), peer, word, [&](uint32_t) {
            if (is_queued() && looks++ % kLooksAtWords == 0) bring_words(o, peer, EPW_WORD_EPOCH, false);
            if (sends_impossible_counts()) return Come::kYes;
            return attend() || !is_owing() ? Come::kYes : Come::kNotYet;
        });
        waited += ptx::global_timer_ns() - began;
        return comes;
    }

    // Movers continue with no row of the peer but those whose flags are set.
    __device__ __noinline__ void lose() {
        insert(o.lacking, peer);
        if (o.does(EPW_PREFILL_COUNTS) && !heard) settle();
        allowed = false;
        if (taking) open_line(p.take, come - (in_first + 1)); // no row beyond it has arrived, unless just now
    }

    __device__ __forceinline__ void leave_rings() {
        epw_prefill_rings &rings = p.rings[call.kind];
        rings.written = end;
        if (o.does(EPW_PREFILL_RECEIVES) || o.does(EPW_PREFILL_COUNTS)) rings.taken = taken_end();
    }

    // The peer's counts cannot be.
    __device__ __noinline__ void give_up() {
        record_loss(o, phase(), EPW_CAUSE_FORMAT, peer, 0, 0, 0, 1);
        suspect(o, peer, EPW_CAUSE_FORMAT);
        leave_out(o, peer);
    }

    // Whether peers may soon wonder if this rank is alive. `since`: 0: the rest begins.
    __device__ __forceinline__ bool rests_long(uint64_t &since) const {
        const uint64_t now = ptx::global_timer_ns();
        if (since == 0) since = now;
        return now - since >= o.group_deadline / 16;
    }

    // `bytes`: of a row that is sent, or an answer, as it lies in a slot; `opens_with`: of the opening.
    __device__ __forceinline__ void run(uint64_t *wait_ns, uint32_t opens_with, uint32_t bytes) {
        if constexpr (Queues) {
            Relay made(o, peer, out_first, opens_with, bytes);
            if (has(o.queued, peer)) relay = &made;
            run(wait_ns);
        } else {
            run(wait_ns);
        }
    }
    __device__ __forceinline__ void run(uint64_t *wait_ns) {
        constexpr uint32_t kLooks = 256, kLooksPerTime = 16;
        uint32_t idle = 0;
        uint64_t waited = 0, rested = 0; // since when nothing has moved
        bool lost = false;
        while (!is_over() && !lost) { // ends: each turn moves something, or waits for this rank's registrar, or is counted
            if (attend()) {
                idle = 0;
                rested = 0;
            } else if (++idle >= kLooks || (idle % kLooksPerTime == 0 && rests_long(rested))) {
                idle = 0;
                if (is_owing()) {
                    lost = !await(waited);
                    rested = 0;
                } else if (rests_long(rested)) {
                    show_life(o, rested);
                }
            }
            if (!lost && sends_impossible_counts()) {
                give_up();
                lost = true;
            }
        }
        if (lost) lose();
        if (!allowed) open_line(p.send, 0);
        if (!taking) open_line(p.take, 0);
        leave_rings();
        if (waited == 0) return;
        if (o.call.counts) ptx::reduce_relaxed_gpu(&o.state->traffic.wait_ns[peer], waited);
        if (wait_ns != nullptr) ptx::reduce_relaxed_gpu(&wait_ns[peer], waited);
    }
};

} // namespace epw
