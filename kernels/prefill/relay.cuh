// Relays: what the attendant of a peer behind a queue does besides. Movers and attendants write messages for such a peer into its
// image, and read what it has written from the inbox; they set and read flags as for a mapped peer, but all of these are in this
// rank's memory. The relay acts for the peer: it posts messages whose flags are set, in their order, with a count of them, and a
// count of those whose slots it gives back; and it sets the flags of messages, and of slots, that the peer's counts name. These
// counts are the words of rules.h, as between hosts.
//
// A relay never waits. What the queue has no room for is posted later.
#pragma once

#include "kernels/prefill/operation.cuh"

namespace epw {

struct Relay {
    const Prefill &o;
    const uint32_t peer;
    epw_row_ring &ring;
    epw_gpu_way &way;
    const uint64_t opening;    // its number
    const uint32_t opens_with; // bytes of the opening
    const uint32_t bytes;      // of the messages behind it
    uint64_t clear;            // entries of the queue before this one are done: then the image holds nothing of an older epoch
    uint64_t credit;           // messages whose slots the peer has given back, as heard; `ring.free`: as told to movers,
    uint64_t sent;             // once entries before this one are done, so that the NIC needs the slots' images no longer
    bool impossible;           // the peer has sent counts that cannot be
    bool stuck;                // the queue has no room, or lags behind

    __device__ __forceinline__ Relay(const Prefill &o, uint32_t peer, uint64_t opening, uint32_t opens_with, uint32_t bytes)
        : o(o), peer(peer), ring(o.state->peers[peer].queue[o.call.kind]), way(*way_to(o.peers, o.lane, peer)), opening(opening),
          opens_with(opens_with), bytes(bytes), clear(0), credit(ring.free), sent(0), impossible(false), stuck(false) {
        if (ring.written == 0) clear = epw_load_relaxed_64(&way.queue.reserved);
    }

    __device__ __forceinline__ uint64_t slots() const { return o.rings.slots; }
    __device__ __forceinline__ bool is_clear() const { return epw_queue_is_done(&way.queue, clear); }

    // ---- from the peer ----

    // Of this kind of ring; `word`: EPW_WORD_POSTED or EPW_WORD_TAKEN.
    __device__ __forceinline__ uint32_t word_of(uint32_t word) const {
        return word + o.call.kind * (EPW_WORD_ANSWERED - EPW_WORD_POSTED);
    }
    // A count of the peer, an acquire of what it has written before.
    __device__ __forceinline__ uint64_t count_from(uint32_t word) const { return word_from_inbox(o, peer, word_of(word)); }
    // Sets the flags of messages [from, end). Writer: this thread, with what it has acquired by the peer's count. Readers: movers
    // and attendants.
    __device__ __forceinline__ void show(uint32_t area, uint64_t from, uint64_t end) const {
        fence_before_counts();
#pragma unroll 1
        for (; from < end; from++) put_count(const_cast<uint64_t *>(flag_here(o, area, peer, from)), count_word(o, from + 1));
    }

    // Returns whether there is news.
    __device__ __noinline__ bool hear() {
        const uint64_t before = ring.seen, free = ring.free;
        const epw_heard posted = epw_ring_hear_posted(&ring, slots(), count_from(EPW_WORD_POSTED), o.own_word);
        if (posted == EPW_HEARD_MORE) show(EPW_FLAGS_WRITTEN, before, ring.seen);
        epw_heard taken = EPW_HEARD_NOTHING;
        if (credit == free) {
            taken = epw_count_hear(&credit, ring.announced, count_from(EPW_WORD_TAKEN), o.own_word);
            sent = epw_load_relaxed_64(&way.queue.reserved);
        }
        impossible |= posted == EPW_HEARD_IMPOSSIBLE || taken == EPW_HEARD_IMPOSSIBLE;
        if (credit != free && epw_queue_is_done(&way.queue, sent)) {
            show(EPW_FLAGS_READ, free, credit);
            ring.free = credit;
        }
        return posted == EPW_HEARD_MORE || ring.free != free;
    }

    // ---- to the peer ----

    // Behind the last of the messages from `from` on whose flags are set. Not an acquire: post() is.
    __device__ __forceinline__ uint64_t set_from(uint32_t area, uint64_t from, uint64_t end) const {
        constexpr uint32_t kAtOnce = 8; // loads in flight
        bool set = true;
#pragma unroll 1
        while (set && from < end) {
            uint64_t flags[kAtOnce];
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++)
                flags[k] = from + k < end ? glimpse_count(flag_to_relay(o, area, peer, from + k)) : 0;
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++) {
                set = set && has_count(o, flags[k], from + 1);
                from += set;
            }
        }
        return from;
    }

    // Posts messages [from, end), then a count of this rank's. Returns false if there is no room now. Writers: those who have set
    // the messages' flags, and have written or read the slots before.
    __device__ __forceinline__ bool post(uint64_t from, uint64_t end, uint32_t word, uint64_t count) {
        const auto message = [&](uint32_t i) -> Range {
            const uint64_t number = from + i;
            const uint32_t all = number == opening ? opens_with : bytes;
            return {o.rings.slot(o.rank, number), slot_there(o, peer, number), all, all, 1};
        };
        return try_post(o, peer, uint32_t(end - from), message, word_of(word), count_word(o, count), o.call.lane.queue_room);
    }

    // Messages up to `end` are to be sent. Returns whether something has moved. Posts what has gathered: a quarter of the ring,
    // or all when there is no more.
    __device__ __noinline__ bool carry(uint64_t end) {
        const uint64_t written = set_from(EPW_FLAGS_WRITTEN, ring.written, end);
        const uint64_t taken = set_from(EPW_FLAGS_READ, ring.taken, ring.seen);
        const bool sends = written != ring.written, takes = taken != ring.taken;
        ring.written = written;
        ring.taken = taken;
        bool posted = false, refused = false;
        if (epw_ring_announces(&ring, slots(), !sends)) {
            const bool done = post(ring.announced, written, EPW_WORD_POSTED, written);
            if (done) ring.announced = written;
            posted |= done;
            refused |= !done;
        }
        if (epw_ring_returns(&ring, slots(), !takes)) {
            const bool done = post(0, 0, EPW_WORD_TAKEN, taken);
            if (done) ring.returned = taken;
            posted |= done;
            refused |= !done;
        }
        stuck = refused || credit != ring.free;
        return sends || takes || posted;
    }

    // Whether all messages up to these are sent, and given back.
    __device__ __forceinline__ bool has_carried(uint64_t end, uint64_t come) const {
        return ring.announced == end && ring.returned == ring.taken && ring.taken >= come;
    }
};

} // namespace epw
