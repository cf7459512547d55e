// Attendants: one thread of the first block for each peer. It alone reads and writes the words between this rank and the peer,
// by the rules of c/prefill/rules.h, and tells movers what they may do; see operation.cuh.
#pragma once

#include "kernels/prefill/operation.cuh"

namespace epw {

struct Attendant {
    Prefill &o;
    const uint32_t peer;
    const epw_prefill_gpu_call &call;
    epw_prefill_gpu_peer &p;
    epw_stream s;
    uint64_t out_first, in_first; // numbers of the openings
    uint32_t rows, in_rows;       // behind them
    uint32_t expected;            // rows that its opening must say, kNoTicket: any number
    uint32_t again;               // no counts in openings
    bool opens;                   // the opening to the peer is still to be written
    bool heard;                   // its opening has been read
    bool passed;                  // and is out of the ring
    bool discards;                // what it sends is taken out of the ring, and no more
    bool shortened;               // the peer has given the operation up
    bool nonsense;                // of a word

    __device__ __forceinline__ Attendant(Prefill &o, uint32_t peer, uint32_t rows, uint32_t expected, uint32_t again)
        : o(o), peer(peer), call(*o.call), p(o.state->peers[peer]), rows(rows), in_rows(0), expected(expected), again(again),
          heard(false), passed(false), discards(false), shortened(false), nonsense(false) {
        s.ring = p.rings[call.kind];
        s.writes = false;
        opens = o.does(EPW_PREFILL_OPENS);
        if (opens) p.out_first = s.ring.written;
        if (o.does(EPW_PREFILL_COUNTS)) {
            p.in_first = s.ring.taken;
        } else if (o.does(EPW_PREFILL_RECEIVES)) { // the opening has been taken by the kernel before
            heard = passed = true;
            in_rows = p.in_rows;
            discards = has(o.state->missing, peer); // refused then
        }
        discards |= call.gives_up;
        out_first = p.out_first;
        in_first = p.in_first;
        const uint64_t sends = o.does(EPW_PREFILL_SENDS) ? (call.gives_up ? min(rows, 1u) : rows) : 0;
        epw_stream_begin(&s, true, (opens ? 1 : 0) + sends);
        s.takes = o.does(EPW_PREFILL_COUNTS) || (o.does(EPW_PREFILL_RECEIVES) && in_rows > 0);
        s.opened = passed;
        s.to_take = o.does(EPW_PREFILL_RECEIVES) ? in_rows : 0;
    }

    __device__ __forceinline__ uint64_t slots() const { return o.layout().slots; }
    __device__ __forceinline__ uint32_t posted_word() const { return call.kind == 0 ? EPW_WORD_POSTED : EPW_WORD_ANSWERED; }
    __device__ __forceinline__ uint32_t taken_word() const { return call.kind == 0 ? EPW_WORD_TAKEN : EPW_WORD_COLLECTED; }
    __device__ __forceinline__ uint32_t phase() const {
        const bool sends = s.to_write > 0;
        if (call.kind == 0) return sends ? EPW_PHASE_DISPATCH_SEND : EPW_PHASE_DISPATCH_RECEIVE;
        return sends ? EPW_PHASE_COMBINE_SEND : EPW_PHASE_COMBINE_RECEIVE;
    }

    // ---- what the peer says ----

    // Each load is an acquire: of the messages that POSTED counts, and of the peer's reads of those that TAKEN counts.
    __device__ __forceinline__ void look_at_words() {
        epw_heard heard_posted = EPW_HEARD_NOTHING, heard_taken = EPW_HEARD_NOTHING;
        if (s.takes) heard_posted = epw_ring_hear_posted(&s.ring, slots(), word_from(o, peer, posted_word()), o.own_word);
        if (s.to_write > 0) heard_taken = epw_ring_hear_taken(&s.ring, word_from(o, peer, taken_word()), o.own_word);
        nonsense |= heard_posted == EPW_HEARD_NONSENSE || heard_taken == EPW_HEARD_NONSENSE;
        if (!s.writes && s.to_write > 0) s.writes = word_from(o, peer, EPW_WORD_EPOCH) == o.own_word;
    }

    // What comes is none of this rank's operation.
    __device__ __noinline__ void refuse(uint32_t cause) {
        discards = true;
        ptx::store_release_gpu(&p.gone, 1u);
        miss(o, phase(), peer, cause);
    }

    // Reads the opening. Its counts are read by the registrar.
    __device__ __noinline__ void hear_opening() {
        const unsigned char *slot = slot_here(o, peer, in_first);
        const epw_row_head head = read_head(slot);
        const bool gives_up = head.kind == EPW_MESSAGE_VOID && head.op == o.op;
        const bool known = head.kind == EPW_MESSAGE_OPENING && head.op == o.op;
        bool good = known && head.format == call.hash;
        if (call.kind == 0) {
            good = good && read_once(slot + sizeof head) == (again ? 0u : 1u) && head.token <= call.lane.max_tokens;
            good = good && (expected == kNoTicket || head.token == expected);
        }
        good |= call.gives_up;
        uint32_t cause = gives_up ? EPW_CAUSE_PARTIAL : EPW_CAUSE_FORMAT;
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

    // ---- what this rank says ----

    __device__ __noinline__ void write_opening() {
        unsigned char *slot = slot_there(o, peer, out_first);
        *reinterpret_cast<uint4 *>(slot) = {rows, call.hash, EPW_MESSAGE_OPENING, o.op};
        if (call.kind == 0) {
            const uint32_t local = o.layout().local_experts;
            auto *to = reinterpret_cast<uint32_t *>(slot + sizeof(epw_row_head) + sizeof(epw_opening));
            *reinterpret_cast<uint4 *>(slot + sizeof(epw_row_head)) = {again ? 0u : 1u, 0, 0, 0};
            for (uint32_t e = 0; e < local; e++) to[e] = call.routing.sent_counts[peer * local + e];
        }
        opens = false;
        wrote(1);
    }

    // In place of the rows that are still to be sent.
    __device__ __forceinline__ bool write_end() {
        if (epw_ring_room(&s.ring, slots()) == 0) return false;
        *reinterpret_cast<uint4 *>(slot_there(o, peer, s.ring.written)) = {0, call.hash, EPW_MESSAGE_VOID, o.op};
        wrote(1);
        return true;
    }

    // Writer: this thread, of openings, and of what it has acquired from movers with the bits. Reader: the peer, which acquires
    // the word before it reads the messages.
    __device__ __forceinline__ void wrote(uint32_t messages) {
        epw_stream_wrote(&s, messages);
        signal(o, peer, posted_word(), epw_count_word(o.own_word, s.ring.written));
        s.ring.announced = s.ring.written;
    }
    // Writer: this thread, with the movers' reads, which it has acquired with the bits. Reader: the peer, before it writes those
    // slots again.
    __device__ __forceinline__ void return_credit() {
        signal(o, peer, taken_word(), epw_count_word(o.own_word, s.ring.taken));
        s.ring.returned = s.ring.taken;
    }

    static __device__ __forceinline__ void allow(epw_prefill_line &line, uint64_t limit) {
        if (uint32_t(limit) != line.limit) ptx::store_release_gpu(&line.limit, uint32_t(limit));
    }

    // ---- turns ----

    __device__ __forceinline__ bool write() {
        if (s.to_write == 0 || !s.writes) return false;
        if (opens) {
            if (epw_ring_room(&s.ring, slots()) == 0) return false;
            write_opening();
            return true;
        }
        if (!o.does(EPW_PREFILL_SENDS)) return false;
        if (call.gives_up) return write_end();
        allow(p.send, min(uint64_t(rows), s.ring.free + slots() - (out_first + 1)));
        const uint32_t through = take_marks(o, call.lane.done, peer, s.ring.written);
        if (through > 0) wrote(through);
        return through > 0;
    }

    __device__ __forceinline__ bool take() {
        if (!s.takes) return false;
        bool moved = false;
        if (!heard && s.ring.seen > in_first) {
            hear_opening();
            moved = true;
        }
        if (heard && !passed && (call.kind != 0 || again || call.gives_up || ptx::load_acquire_block(&o.counted))) {
            passed = moved = true;
            discards |= has(o.discards, peer);
            s.ring.taken++;
            epw_stream_open(&s, in_rows);
            if (!o.does(EPW_PREFILL_RECEIVES)) epw_stream_end_taking(&s);
        }
        if (passed && s.takes) moved |= take_rows();
        if (s.ring.taken != s.ring.returned) return_credit();
        return moved;
    }

    __device__ __forceinline__ bool take_rows() {
        if (discards) return discard();
        if (call.kind == 0 && !ptx::load_acquire_block(&o.placed)) return false;
        allow(p.take, min(uint64_t(in_rows), s.ring.seen - (in_first + 1)));
        const uint32_t through = take_marks(o, call.lane.taken, peer, s.ring.taken);
        const uint32_t ended = ptx::load_acquire_gpu(&p.ended); // written before the bit of its slot
        if (ended > 0 && !shortened) shorten(ended);
        if (through > 0) epw_stream_took(&s, through);
        return through > 0;
    }

    // The last of so many messages says that none follows.
    __device__ __noinline__ void shorten(uint32_t messages) {
        shortened = true;
        s.to_take -= in_rows - messages;
        in_rows = messages;
        ptx::store_release_gpu(&p.gone, 1u);
        miss(o, phase(), peer, EPW_CAUSE_PARTIAL);
    }

    __device__ __noinline__ bool discard() {
        uint64_t here = min(s.to_take, s.ring.seen - s.ring.taken);
        for (uint64_t i = 0; i < here; i++) {
            const epw_row_head head = read_head(slot_here(o, peer, s.ring.taken + i));
            if (head.kind != EPW_MESSAGE_VOID || head.op != o.op) continue;
            here = s.to_take = i + 1;
        }
        if (here > 0) epw_stream_took(&s, here);
        return here > 0;
    }

    // Returns whether something has moved.
    __device__ __noinline__ bool attend() {
        look_at_words();
        const bool wrote = write();
        return take() || wrote;
    }

    __device__ __forceinline__ bool is_over() const { return s.to_write == 0 && !s.takes && s.ring.taken == s.ring.returned; }

    // Whether the peer itself is to do something next: it has not begun the epoch, has no slot free for this rank, or sends
    // nothing.
    __device__ __forceinline__ bool is_owing() const {
        const bool room = s.writes && epw_ring_room(&s.ring, slots()) > 0;
        return (s.to_write > 0 && !room) || (s.takes && s.ring.seen == s.ring.taken);
    }

    // Waits until something moves, or the peer owes nothing. Returns false if the peer has been given up.
    __device__ __noinline__ bool await(uint64_t &waited) {
        const bool receives = s.to_write == 0;
        const uint64_t began = ptx::global_timer_ns();
        const uint64_t word = epw_count_word(o.own_word, receives ? s.ring.taken + 1 : s.ring.free + 1);
        const bool comes =
            await_long(o, phase(), peer, word, [&] { return attend() || nonsense || !is_owing() ? Come::kYes : Come::kNotYet; });
        waited += ptx::global_timer_ns() - began;
        return comes;
    }

    // Nothing of the peer is believed any more.
    __device__ __noinline__ void lose() {
        record_loss(o, phase(), EPW_CAUSE_DROPPED, peer, 0, 0, 0, 1);
        suspect(o, peer, EPW_CAUSE_DROPPED);
        leave_out(o, peer);
    }

    __device__ __forceinline__ void run(uint64_t *wait_ns) {
        constexpr uint32_t kLooks = 256;
        uint32_t idle = 0;
        uint64_t waited = 0;
        bool lost = false;
        while (!is_over() && !lost) { // ends: each turn moves something, or waits for this rank's movers, or is counted
            if (attend()) {
                idle = 0;
            } else if (nonsense) {
                lose();
                lost = true;
            } else if (is_owing() && ++idle >= kLooks) {
                lost = !await(waited);
                idle = 0;
            }
        }
        if (lost) insert(o.lacking, peer);
        if (lost && o.does(EPW_PREFILL_COUNTS) && !heard) settle();
        p.rings[call.kind] = s.ring;
        // Writer: this thread, `take.limit` before it. Reader: movers that make sums.
        if (lost) ptx::store_release_gpu(&p.gone, 1u);
        if (wait_ns != nullptr && waited > 0) ptx::reduce_relaxed_gpu(&wait_ns[peer], waited);
        __threadfence();
        atomicAdd(&o.ended, 1u);
    }
};

} // namespace epw
