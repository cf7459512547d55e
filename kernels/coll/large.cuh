// Operations by rings: each block moves its share of the pieces through slots of its own in the peers' windows. Its threads form
// teams that run independently: one sends raw pieces; one folds what has arrived and, in an all-reduce, passes the result on to
// all members; one takes pieces that are final. So links and memory are busy at the same time.
//
// Piece j of every flow belongs to block j % gridDim.x. A team handles its pieces in order, each for all peers together: it
// waits, moves the bytes, then tells the peers.
//
// In-place operations. Memory that a fold writes has been read by that fold only. A result arrives from its owner after the owner
// has received this rank's raw piece, which was read from where the result goes. In an all-to-all the sending team tells the
// taking team how far it has read.
#pragma once

#include "kernels/coll/bytes.cuh"
#include "kernels/coll/flows.cuh"
#include "kernels/coll/fold.cuh"

namespace epw {

enum Ring : uint32_t { kRaw = 0, kWhole = 1, kRings };

struct Team {
    uint32_t id, first, threads;

    __device__ __forceinline__ bool has_this() const { return threadIdx.x - first < threads; }
    __device__ __forceinline__ uint32_t thread() const { return threadIdx.x - first; }
    __device__ __forceinline__ void meet() const { ptx::team_barrier(id, threads); }
    __device__ __forceinline__ bool meet_any(bool says) const { return ptx::team_barrier_any(id, threads, says); }
};

// This block's progress on its rings. Each entry belongs to one team, whose thread for that peer writes it, between two team
// barriers.
struct Rings {
    uint64_t written[kRings][EPW_GPU_PEERS], read[kRings][EPW_GPU_PEERS];
    uint32_t sent; // rounds that the sending team has finished
};

__device__ __forceinline__ epw_coll_progress *progress_of(const Collective &c, uint32_t ring, uint32_t peer) {
    return &c.args.progress[(ring * EPW_COLL_BLOCKS + blockIdx.x) * c.ranks + peer];
}

__device__ __forceinline__ uint64_t slot_of(const Collective &c, Ring ring, uint32_t source, uint64_t number) {
    return epw_coll_slot(&c.args.at, ring, source, blockIdx.x, number);
}

// A piece has the full size, except the last one of a flow.
__device__ __forceinline__ uint32_t piece_bytes(const Collective &c, uint64_t flow, uint64_t j) {
    const uint64_t size = c.args.pieces, from = j * size;
    return from < flow ? uint32_t(min(size, flow - from)) : 0;
}

// ---- by one thread ----

// Whether the peer has taken so many pieces that piece `number` may be written for it, and the wait for that.
__device__ __forceinline__ bool has_place(const Collective &c, Ring ring, uint32_t peer, uint64_t number) {
    const uint64_t slots = c.args.at.slots;
    if (number < slots) return true;
    return has_count(c, count_at(c, epw_coll_count(&c.args.at, ring, peer, blockIdx.x, EPW_COLL_TAKEN)), number + 1 - slots);
}
__device__ __forceinline__ void await_place(Collective &c, Ring ring, uint32_t peer, uint64_t number) {
    if (number < c.args.at.slots) return;
    const uint64_t taken = number + 1 - c.args.at.slots;
    await_peer(c, peer, count_word(c, taken), [&] { return has_place(c, ring, peer, number); });
}
__device__ __forceinline__ bool has_room(const Collective &c, const Rings &r, Ring ring, uint32_t peer) {
    return has_place(c, ring, peer, r.written[ring][peer]);
}
__device__ __forceinline__ void await_room(Collective &c, const Rings &r, Ring ring, uint32_t peer) {
    await_place(c, ring, peer, r.written[ring][peer]);
}

// Whether the source has written `count` pieces, and the wait for that.
__device__ __forceinline__ bool has_written(const Collective &c, Ring ring, uint32_t source, uint64_t count) {
    return has_count(c, count_at(c, epw_coll_count(&c.args.at, ring, source, blockIdx.x, EPW_COLL_WRITTEN)), count);
}
__device__ __forceinline__ void await_written(Collective &c, Ring ring, uint32_t source, uint64_t count) {
    await_peer(c, source, count_word(c, count), [&] { return has_written(c, ring, source, count); });
}
__device__ __forceinline__ bool has_piece(const Collective &c, const Rings &r, Ring ring, uint32_t source) {
    return has_written(c, ring, source, r.read[ring][source] + 1);
}
__device__ __forceinline__ void await_piece(Collective &c, const Rings &r, Ring ring, uint32_t source) {
    await_written(c, ring, source, r.read[ring][source] + 1);
}

// Writer: the team, through its barrier, or this thread. Reader: the peer's await_piece.
__device__ __forceinline__ void tell_written(const Collective &c, Ring ring, uint32_t peer, uint64_t count) {
    post_count(c, peer, epw_coll_count(&c.args.at, ring, c.rank, blockIdx.x, EPW_COLL_WRITTEN), count_word(c, count));
}
__device__ __forceinline__ void post_piece(const Collective &c, Rings &r, Ring ring, uint32_t peer) {
    tell_written(c, ring, peer, ++r.written[ring][peer]);
}

// Writer: the team, through its barrier, or this thread, which has finished reading. Reader: the source's await_room.
__device__ __forceinline__ void tell_taken(const Collective &c, Ring ring, uint32_t source, uint64_t count) {
    post_count(c, source, epw_coll_count(&c.args.at, ring, c.rank, blockIdx.x, EPW_COLL_TAKEN), count_word(c, count));
}
__device__ __forceinline__ void post_taken(const Collective &c, Rings &r, Ring ring, uint32_t source) {
    tell_taken(c, ring, source, ++r.read[ring][source]);
}

// ---- in place ----

// An all-to-all in place: what a round writes must have been sent.
__device__ __forceinline__ bool is_exchanged(const Collective &c) {
    return c.args.kind == EPW_ALL_TO_ALL && c.args.send == c.args.recv;
}
// Writer: the first thread of the sending team, after each round. Reader: await_sent(), which acquires it: the memory that this
// round has read may be overwritten.
__device__ __forceinline__ void note_sent(Rings &r, Team team) {
    if (team.thread() != 0) return;
    __threadfence_block();
    atomicAdd(&r.sent, 1u);
}
// By one thread. Bounded, because the sending team's waits are.
__device__ __forceinline__ void await_sent(const Collective &c, const Rings &r, uint32_t round) {
    while (ptx::load_acquire_block(&r.sent) < round && !*static_cast<const volatile uint32_t *>(&c.stopped)) {
    }
}

// ---- sending ----

__device__ __forceinline__ uint32_t given_piece(const Collective &c, uint32_t peer, uint64_t j) {
    return peer != c.rank && takes_part(c, peer) ? piece_bytes(c, given_to(c, peer).bytes, j) : 0;
}

__device__ __forceinline__ void send_pieces(Collective &c, Rings &r, Team team, Ring ring, uint64_t rounds_end) {
#pragma unroll 1
    for (uint64_t j = blockIdx.x; j < rounds_end; j += gridDim.x) {
        for (uint32_t peer = team.thread(); peer < c.ranks; peer += team.threads) {
            if (given_piece(c, peer, j) > 0) await_room(c, r, ring, peer);
        }
        if (team.meet_any(c.stopped)) return;
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t peer = peer_after(c, d), bytes = given_piece(c, peer, j);
            if (bytes == 0) continue;
            unsigned char *to = at(c, peer, slot_of(c, ring, c.rank, r.written[ring][peer]));
            copy(to, given_to(c, peer).at + j * c.args.pieces, bytes, team.thread(), team.threads);
        }
        team.meet();
        for (uint32_t peer = team.thread(); peer < c.ranks; peer += team.threads) {
            if (given_piece(c, peer, j) > 0) post_piece(c, r, ring, peer);
        }
        note_sent(r, team);
    }
}

// ---- folding ----

template <typename T> struct AtOnce {
    static constexpr uint32_t kCells = sizeof(typename FoldedIn<T>::Type) == 16 || sizeof(T) == 1 ? 1 : 4;
};
template <> struct AtOnce<void> { static constexpr uint32_t kCells = 4; };

// Folds kCells cells of a piece, `threads` apart: whole cells, or the bytes that there are.
template <typename T, uint32_t kCells>
__device__ __forceinline__ void fold_cells(const Collective &c, const Rings &r, const Folding &f, uint64_t offset, uint32_t bytes,
                                           uint32_t cell, uint32_t threads, bool spreads) {
    Word<T> low[kCells], high[kCells];
    bool begun = false;
#pragma unroll 1
    for (uint32_t source = 0; source < c.ranks; source++) {
        if (!contributes(c, source)) continue;
        const bool own = source == c.rank;
        const unsigned char *from = own ? f.own + offset : c.own + slot_of(c, kRaw, source, r.read[kRaw][source]);
        uint4 v[kCells];
#pragma unroll
        for (uint32_t k = 0; k < kCells; k++) {
            const uint32_t at = 16 * (cell + k * threads);
            v[k] = own ? read<uint4>(from + at, bytes - at) : *reinterpret_cast<const uint4 *>(from + at);
        }
#pragma unroll
        for (uint32_t k = 0; k < kCells; k++) {
            const uint64_t l = uint64_t(v[k].y) << 32 | v[k].x, h = uint64_t(v[k].w) << 32 | v[k].z;
            if (begun) {
                low[k].fold(l, c.args.op);
                high[k].fold(h, c.args.op);
            } else {
                low[k].begin(l);
                high[k].begin(h);
            }
        }
        begun = true;
    }
    if (!begun) return;
#pragma unroll
    for (uint32_t k = 0; k < kCells; k++) {
        const uint32_t at = 16 * (cell + k * threads);
        const uint64_t l = low[k].end(c.args.op, c.members), h = high[k].end(c.args.op, c.members);
        const uint4 sum = {uint32_t(l), uint32_t(l >> 32), uint32_t(h), uint32_t(h >> 32)};
        write<uint4>(f.out + offset + at, sum, bytes - at);
        if (!spreads) continue;
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t peer = peer_after(c, d);
            if (!needs_copies(c, peer)) continue;
            ptx::store(epw::at(c, peer, slot_of(c, kWhole, c.rank, r.written[kWhole][peer]) + at), sum);
        }
    }
}

// What one rank gives is passed on as it is.
__device__ __forceinline__ void pass_piece_on(const Collective &c, const Rings &r, const Folding &f, uint64_t offset,
                                              uint32_t bytes, Team team, uint32_t source) {
    const unsigned char *from = source == c.rank ? f.own + offset : c.own + slot_of(c, kRaw, source, r.read[kRaw][source]);
    if (f.out + offset != from) copy(f.out + offset, from, bytes, team.thread(), team.threads);
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) {
        const uint32_t peer = peer_after(c, d);
        if (!needs_copies(c, peer)) continue;
        copy(at(c, peer, slot_of(c, kWhole, c.rank, r.written[kWhole][peer])), from, bytes, team.thread(), team.threads);
    }
}

template <typename T>
__device__ __forceinline__ void fold_piece(const Collective &c, const Rings &r, const Folding &f, uint64_t offset, uint32_t bytes,
                                           Team team, bool spreads) {
    uint32_t contributors = 0, source = 0;
    for (uint32_t rank = 0; rank < c.ranks; rank++) {
        if (!contributes(c, rank)) continue;
        contributors++;
        source = rank;
    }
    if (contributors <= 1) {
        if (contributors == 1) pass_piece_on(c, r, f, offset, bytes, team, source);
        return;
    }
    if constexpr (!std::is_void_v<T>) {
        constexpr uint32_t kCells = AtOnce<T>::kCells;
        uint32_t cell = team.thread();
#pragma unroll 1
        for (; 16 * (cell + (kCells - 1) * team.threads) + 16 <= bytes; cell += kCells * team.threads) {
            fold_cells<T, kCells>(c, r, f, offset, bytes, cell, team.threads, spreads);
        }
#pragma unroll 1
        for (; 16 * cell < bytes; cell += team.threads) {
            fold_cells<T, 1>(c, r, f, offset, bytes, cell, team.threads, spreads);
        }
    }
}

// The note behind a piece of a result: 0, or 1 plus a rank that the result lacks. A rank that waits for the result so learns that
// there is none.
__device__ __forceinline__ void put_note(const Collective &c, uint32_t peer, uint64_t number) {
    const epw_rank_set lacks = c.active - c.reachable;
    auto *note = at(c, peer, slot_of(c, kWhole, c.rank, number) + c.args.at.slot_bytes);
    *reinterpret_cast<uint32_t *>(note) = any(lacks) ? first_of(lacks) + 1 : 0;
}
__device__ __forceinline__ void heed_note(Collective &c, const Rings &r, uint32_t source) {
    const auto *note = c.own + slot_of(c, kWhole, source, r.read[kWhole][source]) + c.args.at.slot_bytes;
    const uint32_t lacks = *reinterpret_cast<const volatile uint32_t *>(note);
    if (lacks == 0 || lacks > c.ranks) return;
    insert(c.lacking, lacks - 1);
    atomicOr(&c.troubled, 1u);
}

template <typename T> __device__ __forceinline__ void fold_pieces(Collective &c, Rings &r, Team team, bool spreads) {
    const Folding f = folded_here(c);
#pragma unroll 1
    for (uint64_t j = blockIdx.x;; j += gridDim.x) {
        const uint32_t bytes = piece_bytes(c, f.bytes, j);
        if (bytes == 0) return;
        for (uint32_t peer = team.thread(); peer < c.ranks; peer += team.threads) {
            if (peer == c.rank) continue;
            if (contributes(c, peer)) await_piece(c, r, kRaw, peer);
            if (needs_copies(c, peer)) await_room(c, r, kWhole, peer);
        }
        if (team.meet_any(c.stopped)) return;
        fold_piece<T>(c, r, f, j * c.args.pieces, bytes, team, spreads);
        team.meet();
        for (uint32_t peer = team.thread(); peer < c.ranks; peer += team.threads) {
            if (peer == c.rank) continue;
            if (contributes(c, peer)) post_taken(c, r, kRaw, peer);
            if (!needs_copies(c, peer)) continue;
            put_note(c, peer, r.written[kWhole][peer]);
            post_piece(c, r, kWhole, peer);
        }
    }
}

// ---- taking ----

__device__ __forceinline__ uint32_t taken_piece(const Collective &c, uint32_t source, uint64_t j) {
    return source != c.rank && takes_part(c, source) ? piece_bytes(c, taken_from(c, source).bytes, j) : 0;
}

__device__ __forceinline__ void take_pieces(Collective &c, Rings &r, Team team, uint64_t rounds_end) {
    const bool exchanges = is_exchanged(c), noted = is_shared_out(c);
    const Folding own = given_to_itself(c); // of a broadcast that is shared out: more than the parts that are taken
    const uint64_t own_end = (own.bytes + c.args.pieces - 1) / c.args.pieces;
    uint32_t round = 0;
#pragma unroll 1
    for (uint64_t j = blockIdx.x; j < max(rounds_end, own_end); j += gridDim.x) {
        round++;
        for (uint32_t source = team.thread(); source < c.ranks; source += team.threads) {
            if (taken_piece(c, source, j) == 0) continue;
            await_piece(c, r, kWhole, source);
            if (noted && takes_part(c, source) && !c.stopped) heed_note(c, r, source);
        }
        if (exchanges && team.thread() == 0) await_sent(c, r, round);
        if (team.meet_any(c.stopped)) return;
        const uint32_t mine = piece_bytes(c, own.bytes, j);
        if (mine > 0) {
            copy(own.out + j * c.args.pieces, own.own + j * c.args.pieces, mine, team.thread(), team.threads);
        }
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t source = peer_after(c, d), bytes = taken_piece(c, source, j);
            if (bytes == 0) continue;
            const unsigned char *from = c.own + slot_of(c, kWhole, source, r.read[kWhole][source]);
            copy(taken_from(c, source).at + j * c.args.pieces, from, bytes, team.thread(), team.threads);
        }
        team.meet();
        for (uint32_t source = team.thread(); source < c.ranks; source += team.threads) {
            if (taken_piece(c, source, j) > 0) post_taken(c, r, kWhole, source);
        }
    }
}

// ---- all of it ----

__device__ __forceinline__ void load_progress(const Collective &c, Rings &r) {
    for (uint32_t i = threadIdx.x; i < kRings * c.ranks; i += blockDim.x) {
        const epw_coll_progress now = *progress_of(c, i / c.ranks, i % c.ranks);
        r.written[i / c.ranks][i % c.ranks] = now.written;
        r.read[i / c.ranks][i % c.ranks] = now.read;
    }
    if (threadIdx.x == 0) r.sent = 0;
    __syncthreads();
}
__device__ __forceinline__ void store_progress(const Collective &c, const Rings &r) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < kRings * c.ranks; i += blockDim.x) {
        *progress_of(c, i / c.ranks, i % c.ranks) = {r.written[i / c.ranks][i % c.ranks], r.read[i / c.ranks][i % c.ranks]};
    }
}

template <typename T> __device__ __forceinline__ void run_rings(Collective &c, Rings &r) {
    constexpr uint32_t kQuarter = kCollThreads / 4;
    load_progress(c, r);
    const bool spreads = is_shared_out(c), folds = !std::is_void_v<T> || spreads;
    const uint64_t flow = spreads ? c.part : c.args.bytes;
    const uint64_t rounds_end = (flow + c.args.pieces - 1) / c.args.pieces;
    const Team first = {1, 0, spreads ? kQuarter : 2 * kQuarter};
    const Team second = {2, first.threads, 2 * kQuarter}, third = {3, 3 * kQuarter, kQuarter};
    if (first.has_this()) {
        send_pieces(c, r, first, folds ? kRaw : kWhole, rounds_end);
    } else if (second.has_this()) {
        if (folds) {
            fold_pieces<T>(c, r, second, spreads);
        } else {
            take_pieces(c, r, second, rounds_end);
        }
    } else if (spreads) {
        take_pieces(c, r, third, rounds_end);
    }
    store_progress(c, r);
    await_calls(c);
}

template <typename T> __device__ __forceinline__ void run_large(Collective &c, Rings &r) {
    tell_call(c);
    run_rings<T>(c, r);
}

} // namespace epw
