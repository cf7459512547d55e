// Sends and receives: one team of threads for each channel of each peer and direction, so that messages which cross do not wait
// for each other. A message goes in pieces over all channels to its peer: piece j over channel j % channels, and at least one
// piece over each. Behind each piece is the sender's call, from which the receiver knows how many pieces there are, and that this
// is the message it asks for.
#pragma once

#include "kernels/coll/bytes.cuh"
#include "kernels/coll/operation.cuh"

namespace epw {

struct PointTeam {
    static constexpr uint32_t kThreads = kCollThreads / EPW_COLL_TEAMS;
    uint32_t channel, peer;
    uint64_t number; // pieces so far, in this epoch

    __device__ __forceinline__ uint32_t thread() const { return threadIdx.x % kThreads; }
    __device__ __forceinline__ bool meet_any(bool says) const {
        return ptx::team_barrier_any(1 + threadIdx.x / kThreads, kThreads, says);
    }
    // Whether the team can continue. The barrier also makes what its first thread has found known to the whole team.
    __device__ __forceinline__ bool goes_on(const Collective &c) const { return !meet_any(!takes_part(c, peer) || c.stopped); }
};

__device__ __forceinline__ uint64_t point_slot(const Collective &c, const PointTeam &t, uint32_t source) {
    return epw_coll_slot(&c.args.at, EPW_COLL_POINT_RING, source, t.channel, t.number);
}
__device__ __forceinline__ uint64_t point_count(const Collective &c, const PointTeam &t, uint32_t source, uint32_t which) {
    return epw_coll_count(&c.args.at, EPW_COLL_POINT_RING, source, t.channel, which);
}

// Tells the peer that a piece of `bytes` bytes is written for it, or that a piece of its is read. Writer: the team, through its
// barrier. Reader: the peer's await_point or await_point_room.
__device__ __forceinline__ void tell_point(const Collective &c, const PointTeam &t, uint32_t which, uint32_t) {
    if (t.thread() == 0) post_count(c, t.peer, point_count(c, t, c.rank, which), count_word(c, t.number + 1));
}

// Whether the slot of the next piece, which the peer has read, may be overwritten.
__device__ __forceinline__ bool is_free(const Collective &, const PointTeam &) { return true; }

// Waits until one more piece may be written for the peer: the first pieces of an epoch may once the peer has begun the epoch.
template <typename C> __device__ __forceinline__ void await_point_room(C &c, const PointTeam &t) {
    const uint64_t slots = c.args.at.slots;
    if (!takes_part(c, t.peer)) return;
    if (t.number == 0) {
        if (!await(c, {EPW_WORD_EPOCH, 0, true}, EPW_PHASE_POINT, t.peer, false).arrived) {
            leave_out(c, t.peer);
        } else {
            await_earlier(c, t.peer);
        }
    } else if (t.number >= slots) {
        const uint64_t at = point_count(c, t, t.peer, EPW_COLL_TAKEN), done = t.number + 1 - slots;
        await_peer(c, t.peer, count_word(c, done), [&] { return has_counted(c, t.peer, at, done) && is_free(c, t); });
    }
}

template <typename C> __device__ __forceinline__ void await_point(C &c, const PointTeam &t) {
    if (!takes_part(c, t.peer)) return;
    const uint64_t at = point_count(c, t, t.peer, EPW_COLL_WRITTEN), wanted = t.number + 1;
    await_peer(c, t.peer, count_word(c, wanted), [&] { return has_counted(c, t.peer, at, wanted); });
}

// Bytes of piece j; pieces are as large as slots.
__device__ __forceinline__ uint64_t point_bytes(const Collective &c, uint64_t all, uint64_t j) {
    const uint64_t size = c.args.at.slot_bytes, from = j * size;
    return from < all ? min(size, all - from) : 0;
}

// Returns whether the team continues with its lane.
template <typename C> __device__ __forceinline__ bool send_message(C &c, PointTeam &t, const epw_coll_point &m) {
    const uint64_t size = c.args.at.slot_bytes;
#pragma unroll 1
    for (uint64_t j = t.channel; j == t.channel || j * size < m.bytes; j += c.args.at.channels) {
        if (t.thread() == 0) await_point_room(c, t);
        if (!t.goes_on(c)) return false;
        unsigned char *slot = at(c, t.peer, point_slot(c, t, c.rank));
        const uint64_t bytes = point_bytes(c, m.bytes, j);
        copy(slot, m.at + j * size, bytes, t.thread(), t.kThreads);
        if (t.thread() == 0) *reinterpret_cast<epw_coll_note *>(slot + size) = {{m.call[0], m.call[1]}, m.bytes};
        t.meet_any(false);
        tell_point(c, t, EPW_COLL_WRITTEN, uint32_t(bytes));
        t.number++;
    }
    return true;
}

// Two calls match if their epw_descriptors are equal except for the count in the second half: the receiver's is the size of its
// buffer.
__device__ __forceinline__ bool is_asked_for(const epw_coll_note &note, const epw_coll_point &m) {
    return note.call[0] == m.call[0] && note.bytes <= m.bytes;
}

template <typename C> __device__ __forceinline__ bool receive_message(C &c, PointTeam &t, const epw_coll_point &m) {
    const uint64_t size = c.args.at.slot_bytes;
    uint64_t bytes = 0;
#pragma unroll 1
    for (uint64_t j = t.channel; j == t.channel || j * size < bytes; j += c.args.at.channels) {
        if (t.thread() == 0) await_point(c, t);
        if (!t.goes_on(c)) return false;
        const unsigned char *slot = base_of(c, t.peer) + point_slot(c, t, t.peer);
        const epw_coll_note note = *reinterpret_cast<const epw_coll_note *>(slot + size);
        if (!is_asked_for(note, m)) {
            if (t.thread() == 0) stop_for(c, t.peer, note.call, m.call);
            return false;
        }
        bytes = note.bytes;
        copy(m.at + j * size, slot, point_bytes(c, bytes, j), t.thread(), t.kThreads);
        t.meet_any(false);
        tell_point(c, t, EPW_COLL_TAKEN, 0);
        t.number++;
    }
    return true;
}

template <typename C> __device__ __forceinline__ void run_points(C &c, const epw_coll_point_args &a) {
    const uint32_t channels = a.common.at.channels, team = blockIdx.x * EPW_COLL_TEAMS + threadIdx.x / PointTeam::kThreads;
    const uint32_t lane = team / channels;
    if (lane >= a.lanes) return;
    const epw_coll_point &first = a.points[a.first[lane]];
    PointTeam t = {team % channels, first.peer, 0};
    const bool sends = first.sends != 0;
    epw_coll_progress *progress = &a.common.progress[(EPW_COLL_POINT_RING * EPW_COLL_BLOCKS + t.channel) * c.ranks + t.peer];
    uint64_t *number = sends ? &progress->written : &progress->read;
    t.number = *number;
#pragma unroll 1
    for (uint32_t i = a.first[lane]; i < a.first[lane + 1]; i++) {
        if (!(sends ? send_message(c, t, a.points[i]) : receive_message(c, t, a.points[i]))) break;
    }
    t.meet_any(false); // all threads have read *number
    if (t.thread() != 0) return;
    *number = t.number;
    if (takes_part(c, t.peer)) return;
    insert(c.lacking, t.peer); // given up, or no member
    atomicOr(&c.troubled, 1u);
}

} // namespace epw
