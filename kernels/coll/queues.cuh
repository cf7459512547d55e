// Operations of a communicator whose ranks may reach each other by queues: see queues.h. What each operation consists of is the
// same as by windows (flows.cuh, blocks.cuh), and so are the teams of a block and the order of its pieces (large.cuh). Here the
// bytes for a peer are written at the peer or in its image, and what a peer has written is read from the window or the inbox.
// Each piece is posted by a warp, with the count that announces it.
#pragma once

#include "kernels/coll/blocks.cuh"
#include "kernels/coll/point.cuh"
#include "kernels/coll/queues.h"

namespace epw {

struct QueuedCollective : Collective {
    static constexpr bool kPosts = true;
    epw_coll_areas areas;
    uint64_t *sent;
};

// Called by the whole block, as `open` is.
__device__ __forceinline__ bool open_queued(QueuedCollective &c, const epw_coll_reach &reach, const epw_coll_args &a,
                                            uint32_t phase = EPW_PHASE_COLLECTIVE) {
    if (threadIdx.x == 0) {
        c.areas = reach.areas;
        c.sent = reach.sent;
    }
    return open(c, a, phase, reach.inbox);
}

// ---- words ----

// Tells the peer a word of its window, after what this warp has acquired; behind a queue it is posted after these ranges. Called
// by a whole warp.
__device__ __noinline__ inline void tell(const QueuedCollective &c, uint32_t peer, uint64_t offset, uint64_t word,
                                         const Range *ranges, uint32_t count) {
    if (has(c.queued, peer)) {
        // A quarter of the deadline, so that other peers do not suspect this rank of silence meanwhile.
        post(c.peers, c.lane, peer, ranges, count, offset, word, c.group_deadline / 4);
    } else if (threadIdx.x % 32 == 0) {
        post_count(c, peer, offset, word);
    }
}

// ---- what is on its way ----

__device__ __forceinline__ epw_queue *queue_to(const QueuedCollective &c, uint32_t peer) {
    return &way_to(c.peers, c.lane, peer)->queue;
}
// `ring`: among all of a rank's, see epw_coll_ring_of. `number`: of the piece.
__device__ __forceinline__ uint64_t *sent_of(const QueuedCollective &c, uint32_t peer, uint32_t ring, uint64_t number) {
    const epw_coll_window &w = c.args.at;
    const uint64_t all = uint64_t(peer) * epw_coll_rings_of(&w) + ring;
    return &c.sent[all * w.slots + epw_remainder(number, w.slots, w.slot_inverse)];
}
// The piece has been posted, and so has perhaps more by other blocks. By one thread. Reader: is_sent(), in this team.
__device__ __forceinline__ void note_posted(const QueuedCollective &c, uint32_t peer, uint32_t ring, uint64_t number) {
    if (has(c.queued, peer)) *sent_of(c, peer, ring, number) = epw_load_relaxed_64(&queue_to(c, peer)->reserved);
}
// Whether the last piece that was posted from the slot of piece `number` is sent.
__device__ __forceinline__ bool is_sent(const QueuedCollective &c, uint32_t peer, uint32_t ring, uint64_t number) {
    return !has(c.queued, peer) || epw_queue_is_done(queue_to(c, peer), *sent_of(c, peer, ring, number));
}

// Does not look at the peer's call: every thread of the block must begin the operation before one finds that calls differ.
__device__ __noinline__ inline void await_earlier(QueuedCollective &c, uint32_t peer) {
    if (!has(c.queued, peer)) return;
    epw_queue *q = queue_to(c, peer);
    const uint64_t posted = epw_load_relaxed_64(&q->reserved);
    if (epw_queue_is_done(q, posted)) return;
    await_long<true>(c, c.phase, peer, own_epoch_word(c),
                     [&](uint32_t) { return epw_queue_is_done(q, posted) ? Come::kYes : Come::kNotYet; });
}

// ---- calls ----

__device__ __forceinline__ const uint64_t *call_from(const QueuedCollective &c, uint32_t source) {
    return reinterpret_cast<const uint64_t *>(base_of(c, source) + epw_coll_call_at(&c.areas, c.number, source, 0));
}

// Waits for nothing. Reader: the peer's look_at_call(), or agree_on_sizes(), which acquire the tag.
__device__ __forceinline__ void tell_tagged(const QueuedCollective &c, uint32_t peer, uint32_t first, uint64_t low,
                                            uint64_t high) {
    tell(c, peer, epw_coll_call_at(&c.areas, c.number, c.rank, first), low, nullptr, 0);
    tell(c, peer, epw_coll_call_at(&c.areas, c.number, c.rank, first + 1), high, nullptr, 0);
    tell(c, peer, epw_coll_call_at(&c.areas, c.number, c.rank, first + 2), c.tag, nullptr, 0);
}

__device__ __forceinline__ bool is_told(const QueuedCollective &c, uint32_t peer) {
    return warp_agrees(peer != c.rank && takes_part(c, peer));
}

__device__ __forceinline__ void tell_call(const QueuedCollective &c) {
    if (blockIdx.x != 0) return;
#pragma unroll 1
    for (uint32_t peer = threadIdx.x / 32; peer < c.ranks; peer += blockDim.x / 32) {
        if (is_told(c, peer)) tell_tagged(c, peer, EPW_COLL_CALL_LOW, c.args.call[0], c.args.call[1]);
    }
}

__device__ __forceinline__ Come look_at_call(QueuedCollective &c, uint32_t peer) {
    const uint64_t *line = call_from(c, peer);
    if (count_at(&line[EPW_COLL_CALL_TAG]) != c.tag) return Come::kNotYet;
    const uint64_t its[2] = {glimpse_count(&line[EPW_COLL_CALL_LOW]), glimpse_count(&line[EPW_COLL_CALL_HIGH])};
    if (its[0] == c.args.call[0] && its[1] == c.args.call[1]) return Come::kYes;
    stop_for(c, peer, its, c.args.call);
    return Come::kStop;
}

__device__ __forceinline__ bool has_told_call(const QueuedCollective &c, uint32_t peer) {
    return count_at(&call_from(c, peer)[EPW_COLL_CALL_TAG]) == c.tag;
}

// ---- what an operation consists of ----

template <typename T> __device__ __forceinline__ bool agree(QueuedCollective &, const DenseFlows<T> &) { return true; }

// See agree_on_sizes in blocks.cuh.
template <typename T> __device__ __forceinline__ bool agree(QueuedCollective &c, const BlockFlows<T> &f) {
    const epw_coll_blocks_args &b = f.b;
    if (!b.uneven) return true;
    const auto gives = [&](uint32_t peer) { return block_bytes(b, b.give[peer]) / b.element; };
    const auto takes = [&](uint32_t peer) { return block_bytes(b, b.take[peer]) / b.element; };
#pragma unroll 1
    for (uint32_t peer = threadIdx.x / 32; peer < c.ranks && blockIdx.x == 0; peer += blockDim.x / 32) {
        if (is_told(c, peer)) tell_tagged(c, peer, EPW_COLL_CALL_GIVES, gives(peer), takes(peer));
    }
#pragma unroll 1
    for (uint32_t peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) {
        if (peer == c.rank || !takes_part(c, peer)) continue;
        const uint64_t *line = call_from(c, peer);
        if (!await_peer(c, peer, c.tag, [&] { return count_at(&line[EPW_COLL_CALL_SIZES_TAG]) == c.tag; })) continue;
        await_call(c, peer); // a call that differs may have sizes as well
        if (c.stopped || !takes_part(c, peer)) continue;
        const uint64_t given = glimpse_count(&line[EPW_COLL_CALL_GIVES]), taken = glimpse_count(&line[EPW_COLL_CALL_TAKES]);
        if (given == takes(peer) && taken == gives(peer)) continue;
        const bool differs = given != takes(peer);
        const uint64_t its[2] = {c.args.call[0], differs ? given : taken};
        const uint64_t own[2] = {its[0], differs ? takes(peer) : gives(peer)};
        stop_for(c, peer, its, own);
    }
    return !__syncthreads_or(c.stopped);
}

// Copies what this rank gives itself, a piece from `offset` on.
template <typename Flows>
__device__ __forceinline__ void give_itself_piece(const QueuedCollective &c, const Flows &f, uint64_t offset, Team team) {
    Rows own, out;
    f.itself(c, own, out);
    if (offset >= out.bytes) return;
    const uint64_t end = min(offset + c.args.pieces, out.bytes);
    for (uint64_t x = offset + 16 * team.thread(); x < end; x += 16 * team.threads) write_rows(out, x, read_rows<uint4>(own, x));
}

// ---- pieces ----

__device__ __forceinline__ uint64_t slot_in(const QueuedCollective &c, Ring ring, uint32_t source, uint64_t number) {
    return epw_coll_slot_at(&c.areas, &c.args.at, ring, source, blockIdx.x, number);
}
__device__ __forceinline__ uint64_t count_in(const QueuedCollective &c, Ring ring, uint32_t source, uint32_t which) {
    return epw_coll_count_at(&c.areas, &c.args.at, ring, source, blockIdx.x, which);
}
// The piece that is to be read next, and where the next one is to be written.
__device__ __forceinline__ const unsigned char *piece_here(const QueuedCollective &c, const Rings &r, Ring ring,
                                                           uint32_t source) {
    return base_of(c, source) + slot_in(c, ring, source, r.read[ring][source]);
}
__device__ __forceinline__ unsigned char *piece_there(const QueuedCollective &c, const Rings &r, Ring ring, uint32_t peer) {
    return at(c, peer, slot_in(c, ring, c.rank, r.written[ring][peer]));
}

// By one thread.
__device__ __noinline__ inline void await_room_at(QueuedCollective &c, const Rings &r, Ring ring, uint32_t peer) {
    const uint64_t number = r.written[ring][peer], slots = c.args.at.slots;
    if (number < slots) return;
    const uint64_t at = count_in(c, ring, peer, EPW_COLL_TAKEN), taken = number + 1 - slots;
    const uint32_t own = epw_coll_ring_of(&c.args.at, ring, blockIdx.x);
    await_peer(c, peer, count_word(c, taken), [&] { return has_counted(c, peer, at, taken) && is_sent(c, peer, own, number); });
}
__device__ __noinline__ inline void await_piece_from(QueuedCollective &c, const Rings &r, Ring ring, uint32_t source) {
    const uint64_t at = count_in(c, ring, source, EPW_COLL_WRITTEN), count = r.read[ring][source] + 1;
    await_peer(c, source, count_word(c, count), [&] { return has_counted(c, source, at, count); });
}

// By a whole warp. Writer: the team, through its barrier. Reader: the peer's await_piece_from. A piece with a note travels with
// it.
__device__ __forceinline__ void tell_piece(const QueuedCollective &c, Rings &r, Ring ring, uint32_t peer, uint32_t bytes,
                                           bool noted) {
    const uint64_t number = r.written[ring][peer], to = slot_in(c, ring, c.rank, number), note = to + c.args.at.slot_bytes;
    const Range ranges[] = {{to, at(c, peer, to), bytes, 0, 1}, {note, at(c, peer, note), sizeof(uint4), 0, 1}};
    tell(c, peer, count_in(c, ring, c.rank, EPW_COLL_WRITTEN), count_word(c, number + 1), ranges, noted ? 2 : 1);
    if (threadIdx.x % 32 != 0) return;
    r.written[ring][peer] = number + 1;
    note_posted(c, peer, epw_coll_ring_of(&c.args.at, ring, blockIdx.x), number);
}
// Reader: the source's await_room_at.
__device__ __forceinline__ void tell_read(const QueuedCollective &c, Rings &r, Ring ring, uint32_t source) {
    const uint64_t count = r.read[ring][source] + 1;
    tell(c, source, count_in(c, ring, c.rank, EPW_COLL_TAKEN), count_word(c, count), nullptr, 0);
    if (threadIdx.x % 32 == 0) r.read[ring][source] = count;
}

template <typename Flows>
__device__ __forceinline__ uint32_t bytes_to(const QueuedCollective &c, const Flows &f, uint32_t peer, uint64_t j) {
    return peer != c.rank && takes_part(c, peer) ? piece_bytes(c, f.to(c, peer).bytes, j) : 0;
}
template <typename Flows>
__device__ __forceinline__ uint32_t bytes_from(const QueuedCollective &c, const Flows &f, uint32_t source, uint64_t j) {
    return source != c.rank && takes_part(c, source) ? piece_bytes(c, f.from(c, source).bytes, j) : 0;
}

// ---- teams ----

__device__ __forceinline__ uint32_t warp_of(Team team) { return team.thread() / 32; }
__device__ __forceinline__ uint32_t warps_of(Team team) { return team.threads / 32; }

template <typename Flows>
__device__ __forceinline__ void send_all(QueuedCollective &c, Rings &r, const Flows &f, Team team, Ring ring) {
    const uint64_t size = c.args.pieces;
#pragma unroll 1
    for (uint64_t j = blockIdx.x; j * size < f.sent(c); j += gridDim.x) {
#pragma unroll 1
        for (uint32_t peer = team.thread(); peer < c.ranks; peer += team.threads) {
            if (bytes_to(c, f, peer, j) > 0) await_room_at(c, r, ring, peer);
        }
        if (team.meet_any(c.stopped)) return;
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t peer = peer_after(c, d), bytes = bytes_to(c, f, peer, j);
            if (bytes == 0) continue;
            const Rows given = f.to(c, peer);
            unsigned char *to = piece_there(c, r, ring, peer);
#pragma unroll 1
            for (uint32_t x = 16 * team.thread(); x < bytes; x += 16 * team.threads) { // a slot holds whole cells
                ptx::store(to + x, read_rows<uint4>(given, j * size + x));
            }
        }
        team.meet();
#pragma unroll 1
        for (uint32_t peer = warp_of(team); peer < c.ranks; peer += warps_of(team)) {
            const uint32_t bytes = __shfl_sync(kWholeWarp, bytes_to(c, f, peer, j), 0);
            if (bytes > 0) tell_piece(c, r, ring, peer, bytes, false);
        }
        note_sent(r, team);
        team.meet(); // r.written is known to the team
    }
}

// Computes a cell of the result from the cells of all who contribute, in ascending order of ranks; what only one gives is passed
// on.
template <typename T>
__device__ __forceinline__ void make_cell(const QueuedCollective &c, const Rings &r, const Rows &own, const Rows &out,
                                          uint64_t offset, uint32_t x, bool spreads) {
    uint4 v = {};
    bool begun = false;
    [[maybe_unused]] Word<std::conditional_t<std::is_void_v<T>, uint8_t, T>> low, high;
#pragma unroll 1
    for (uint32_t source = 0; source < c.ranks; source++) {
        if (!contributes(c, source)) continue;
        v = source == c.rank ? read_rows<uint4>(own, offset)
                             : *reinterpret_cast<const uint4 *>(piece_here(c, r, kRaw, source) + x);
        if constexpr (!std::is_void_v<T>) {
            const uint64_t l = uint64_t(v.y) << 32 | v.x, h = uint64_t(v.w) << 32 | v.z;
            if (begun) {
                low.fold(l, c.args.op);
                high.fold(h, c.args.op);
            } else {
                low.begin(l);
                high.begin(h);
            }
        }
        begun = true;
    }
    if (!begun) return;
    if constexpr (!std::is_void_v<T>) {
        if (c.members > 1) {
            const uint64_t l = low.end(c.args.op, c.members), h = high.end(c.args.op, c.members);
            v = {uint32_t(l), uint32_t(l >> 32), uint32_t(h), uint32_t(h >> 32)};
        }
    }
    write_rows(out, offset, v);
    if (!spreads) return;
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) {
        const uint32_t peer = peer_after(c, d);
        if (needs_copies(c, peer)) ptx::store(piece_there(c, r, kWhole, peer) + x, v);
    }
}

// See put_note and heed_note in large.cuh.
__device__ __forceinline__ void note_piece(const QueuedCollective &c, const Rings &r, uint32_t peer) {
    const epw_rank_set lacks = c.active - c.reachable;
    *reinterpret_cast<uint32_t *>(piece_there(c, r, kWhole, peer) + c.args.at.slot_bytes) = any(lacks) ? first_of(lacks) + 1 : 0;
}
__device__ __forceinline__ void heed_note(QueuedCollective &c, const Rings &r, uint32_t source) {
    const uint32_t lacks = read_once(piece_here(c, r, kWhole, source) + c.args.at.slot_bytes);
    if (lacks == 0 || lacks > c.ranks) return;
    insert(c.lacking, lacks - 1);
    atomicOr(&c.troubled, 1u);
}

template <typename T, typename Flows>
__device__ __forceinline__ void fold_all(QueuedCollective &c, Rings &r, const Flows &f, Team team, bool spreads) {
    Rows own, out;
    f.fold(c, own, out);
    const uint64_t size = c.args.pieces;
    const bool after_sending = c.args.kind == EPW_ALL_REDUCE && !spreads; // which may be in place
    uint32_t round = 0;
#pragma unroll 1
    for (uint64_t j = blockIdx.x; j * size < out.bytes; j += gridDim.x) {
        const uint32_t bytes = piece_bytes(c, out.bytes, j);
        round++;
#pragma unroll 1
        for (uint32_t peer = team.thread(); peer < c.ranks; peer += team.threads) {
            if (peer == c.rank) continue;
            if (contributes(c, peer)) await_piece_from(c, r, kRaw, peer);
            if (needs_copies(c, peer)) await_room_at(c, r, kWhole, peer);
        }
        if (after_sending && team.thread() == 0) await_sent(c, r, round);
        if (team.meet_any(c.stopped)) return;
#pragma unroll 1
        for (uint32_t x = 16 * team.thread(); x < bytes; x += 16 * team.threads) {
            make_cell<T>(c, r, own, out, j * size + x, x, spreads);
        }
        team.meet();
#pragma unroll 1
        for (uint32_t peer = warp_of(team); peer < c.ranks; peer += warps_of(team)) {
            if (peer == c.rank) continue;
            if (warp_agrees(contributes(c, peer))) tell_read(c, r, kRaw, peer);
            if (!warp_agrees(needs_copies(c, peer))) continue;
            if (threadIdx.x % 32 == 0) note_piece(c, r, peer);
            __syncwarp();
            tell_piece(c, r, kWhole, peer, bytes, true);
        }
        team.meet();
    }
}

template <typename Flows> __device__ __forceinline__ void take_all(QueuedCollective &c, Rings &r, const Flows &f, Team team) {
    const uint64_t size = c.args.pieces;
    const bool exchanges = is_exchanged(c), noted = is_shared_out(c);
    uint32_t round = 0;
#pragma unroll 1
    for (uint64_t j = blockIdx.x; j * size < f.taken(c); j += gridDim.x) {
        round++;
#pragma unroll 1
        for (uint32_t source = team.thread(); source < c.ranks; source += team.threads) {
            if (bytes_from(c, f, source, j) == 0) continue;
            await_piece_from(c, r, kWhole, source);
            if (noted && takes_part(c, source) && !c.stopped) heed_note(c, r, source);
        }
        if (exchanges && team.thread() == 0) await_sent(c, r, round);
        if (team.meet_any(c.stopped)) return;
        give_itself_piece(c, f, j * size, team);
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t source = peer_after(c, d), bytes = bytes_from(c, f, source, j);
            if (bytes == 0) continue;
            const Rows taken = f.from(c, source);
            const unsigned char *from = piece_here(c, r, kWhole, source);
#pragma unroll 1
            for (uint32_t x = 16 * team.thread(); x < bytes; x += 16 * team.threads) {
                write_rows(taken, j * size + x, *reinterpret_cast<const uint4 *>(from + x));
            }
        }
        team.meet();
#pragma unroll 1
        for (uint32_t source = warp_of(team); source < c.ranks; source += warps_of(team)) {
            if (warp_agrees(bytes_from(c, f, source, j) > 0)) tell_read(c, r, kWhole, source);
        }
        team.meet();
    }
}

// ---- all of it ----

template <typename T, typename Flows> __device__ __forceinline__ void run_queued(QueuedCollective &c, Rings &r, const Flows &f) {
    constexpr uint32_t kQuarter = kCollThreads / 4;
    tell_call(c);
    if (!agree(c, f)) return;
    load_progress(c, r);
    const bool spreads = is_shared_out(c), folds = Flows::kReduces || spreads;
    const Team first = {1, 0, kQuarter}, second = {2, kQuarter, 2 * kQuarter}, third = {3, 3 * kQuarter, kQuarter};
    if (first.has_this()) {
        send_all(c, r, f, first, folds ? kRaw : kWhole);
    } else if (second.has_this() && folds) {
        fold_all<T>(c, r, f, second, spreads);
    } else if (folds ? spreads && third.has_this() : second.has_this()) {
        take_all(c, r, f, folds ? third : second);
    }
    store_progress(c, r);
    await_calls(c);
}

// ---- sends and receives ----

__device__ __forceinline__ uint32_t point_ring(const QueuedCollective &c, const PointTeam &t) {
    return epw_coll_ring_of(&c.args.at, EPW_COLL_POINT_RING, t.channel);
}

__device__ __forceinline__ uint64_t point_slot(const QueuedCollective &c, const PointTeam &t, uint32_t source) {
    return epw_coll_slot_at(&c.areas, &c.args.at, EPW_COLL_POINT_RING, source, t.channel, t.number);
}
__device__ __forceinline__ uint64_t point_count(const QueuedCollective &c, const PointTeam &t, uint32_t source, uint32_t which) {
    return epw_coll_count_at(&c.areas, &c.args.at, EPW_COLL_POINT_RING, source, t.channel, which);
}
__device__ __forceinline__ void tell_point(const QueuedCollective &c, const PointTeam &t, uint32_t which, uint32_t bytes) {
    if (t.thread() >= 32) return;
    const uint64_t slot = point_slot(c, t, c.rank), note = slot + c.args.at.slot_bytes;
    const Range ranges[] = {{slot, at(c, t.peer, slot), bytes, 0, 1}, {note, at(c, t.peer, note), sizeof(epw_coll_note), 0, 1}};
    const bool written = which == EPW_COLL_WRITTEN;
    tell(c, t.peer, point_count(c, t, c.rank, which), count_word(c, t.number + 1), ranges, written ? 2 : 0);
    if (written && t.thread() == 0) note_posted(c, t.peer, point_ring(c, t), t.number);
}
__device__ __forceinline__ bool is_free(const QueuedCollective &c, const PointTeam &t) {
    return is_sent(c, t.peer, point_ring(c, t), t.number);
}

} // namespace epw
