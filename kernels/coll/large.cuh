// Operations by rings: each block moves its share of the pieces through slots of its own in the peers' windows. Its threads are
// teams which go on by themselves: one sends raw pieces; one folds what has come and, of an all-reduce, hands the result on to
// all; one takes pieces that are what they shall be. So links and memory are busy at the same time.
//
// Piece j of every flow is block j % gridDim.x's. A team goes through its pieces in rounds, a piece for all peers together. While
// its workers move the bytes of round k, its first warp tells the peers of round k - 1, which takes a fence, and waits for what
// round k + 1 needs. So a peer hears of a round when the one behind it can begin. No team waits for another in a circle: what a
// round needs is by a ring, of at least four slots, further back than that (c/coll/gpu/engine.c, SLOTS_LEAST).
//
// In place. What a fold writes, it alone has read. A result comes from its owner when that has this rank's raw piece, which lies
// where the result goes. Of an all-to-all the sender says how far it has read.
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
    __device__ __forceinline__ bool controls() const { return thread() < 32; }
    __device__ __forceinline__ uint32_t worker() const { return thread() - 32; }
    __device__ __forceinline__ uint32_t workers() const { return threads - 32; }
    __device__ __forceinline__ bool meet_any(bool says) const { return ptx::team_barrier_any(id, threads, says); }
};

// How far this block was on its rings when the operation began. Each entry is of one team, which sets it forth at the end.
struct Rings {
    uint64_t written[kRings][EPW_GPU_PEERS], read[kRings][EPW_GPU_PEERS];
    uint32_t sent; // rounds whose bytes the sender has read
};

__device__ __forceinline__ epw_coll_progress *progress_of(const Collective &c, uint32_t ring, uint32_t peer) {
    return &c.args->progress[(ring * EPW_COLL_BLOCKS + blockIdx.x) * c.ranks + peer];
}

__device__ __forceinline__ uint64_t slot_of(const Collective &c, Ring ring, uint32_t source, uint64_t number) {
    return epw_coll_slot(&c.args->at, ring, source, blockIdx.x, number);
}

// A piece is as large as said, but for the last one of a flow.
__device__ __forceinline__ uint32_t piece_bytes(const Collective &c, uint64_t flow, uint64_t j) {
    const uint64_t size = c.args->pieces, from = j * size;
    return from < flow ? uint32_t(min(size, flow - from)) : 0;
}

// Rounds of this block in which a flow has a piece.
__device__ __forceinline__ uint64_t rounds_of(const Collective &c, uint64_t flow) {
    const uint64_t pieces = (flow + c.args->pieces - 1) / c.args->pieces;
    return pieces > blockIdx.x ? (pieces - blockIdx.x - 1) / gridDim.x + 1 : 0;
}
__device__ __forceinline__ uint64_t piece_of_round(uint64_t k) { return blockIdx.x + k * gridDim.x; }

// Each of the others, by the first warp of a team.
template <typename Do> __device__ __forceinline__ void for_peers(const Collective &c, Team team, const Do &act) {
#pragma unroll 1
    for (uint32_t peer = team.thread(); peer < c.ranks; peer += 32) {
        if (peer != c.rank && takes_part(c, peer)) act(peer);
    }
}

// The rounds of a team: wait(k) and tell(k) are its first warp's, move(k) is the workers'. Whether it came to the end.
template <typename Wait, typename Move, typename Tell>
__device__ __forceinline__ bool go_through(Collective &c, Team team, uint64_t rounds, const Wait &wait, const Move &move,
                                           const Tell &tell) {
    if (rounds == 0) return true;
    if (team.controls()) wait(0);
    if (team.meet_any(c.stopped)) return false;
#pragma unroll 1
    for (uint64_t k = 0; k < rounds; k++) {
        if (!team.controls()) {
            move(k);
        } else {
            if (k > 0) tell(k - 1);
            if (k + 1 < rounds) wait(k + 1);
        }
        if (team.meet_any(c.stopped)) return false;
    }
    if (team.controls()) tell(rounds - 1);
    return true;
}

// ---- by one thread ----

// Until the piece of round k may be written for the peer.
__device__ __forceinline__ void await_room(Collective &c, const Rings &r, Ring ring, uint32_t peer, uint64_t k) {
    const uint64_t slots = c.args->at.slots, number = r.written[ring][peer] + k;
    if (number < slots) return;
    const uint64_t at = epw_coll_count(&c.args->at, ring, peer, blockIdx.x, EPW_COLL_TAKEN), done = number + 1 - slots;
    await_peer(c, peer, count_word(c, done), [&] { return has_count(c, count_at(c, at), done); });
}

// Until the source's piece of round k is here.
__device__ __forceinline__ void await_piece(Collective &c, const Rings &r, Ring ring, uint32_t source, uint64_t k) {
    const uint64_t at = epw_coll_count(&c.args->at, ring, source, blockIdx.x, EPW_COLL_WRITTEN);
    const uint64_t wanted = r.read[ring][source] + k + 1;
    await_peer(c, source, count_word(c, wanted), [&] { return has_count(c, count_at(c, at), wanted); });
}

// Writer: the team, by its meeting. Reader: the peer's await_piece.
__device__ __forceinline__ void post_piece(const Collective &c, const Rings &r, Ring ring, uint32_t peer, uint64_t k) {
    const uint64_t at = epw_coll_count(&c.args->at, ring, c.rank, blockIdx.x, EPW_COLL_WRITTEN);
    post_count(c, peer, at, count_word(c, r.written[ring][peer] + k + 1));
}

// Writer: the team, by its meeting, done with reading. Reader: the source's await_room.
__device__ __forceinline__ void post_taken(const Collective &c, const Rings &r, Ring ring, uint32_t source, uint64_t k) {
    const uint64_t at = epw_coll_count(&c.args->at, ring, c.rank, blockIdx.x, EPW_COLL_TAKEN);
    post_count(c, source, at, count_word(c, r.read[ring][source] + k + 1));
}

// ---- sending ----

__device__ __forceinline__ void send_pieces(Collective &c, Rings &r, Team team, Ring ring, uint64_t rounds) {
    auto bytes_for = [&](uint32_t peer, uint64_t k) { return piece_bytes(c, given_to(c, peer).bytes, piece_of_round(k)); };
    auto wait = [&](uint64_t k) {
        for_peers(c, team, [&](uint32_t peer) {
            if (bytes_for(peer, k) > 0) await_room(c, r, ring, peer, k);
        });
    };
    auto move = [&](uint64_t k) {
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t peer = peer_after(c, d), bytes = bytes_for(peer, k);
            if (bytes == 0 || !takes_part(c, peer)) continue;
            unsigned char *to = at(c, peer, slot_of(c, ring, c.rank, r.written[ring][peer] + k));
            copy(to, given_to(c, peer).at + piece_of_round(k) * c.args->pieces, bytes, team.worker(), team.workers());
        }
    };
    auto tell = [&](uint64_t k) {
        // Reader: take_pieces, which acquires it: what was read there may be written over.
        if (team.thread() == 0) {
            __threadfence_block();
            atomicAdd(&r.sent, 1u);
        }
        for_peers(c, team, [&](uint32_t peer) {
            if (bytes_for(peer, k) > 0) post_piece(c, r, ring, peer, k);
        });
    };
    if (!go_through(c, team, rounds, wait, move, tell) || !team.controls()) return;
    for_peers(c, team, [&](uint32_t peer) { r.written[ring][peer] += rounds_of(c, given_to(c, peer).bytes); });
}

// ---- folding ----

template <typename T> struct CellsAtOnce {
    static constexpr uint32_t kCells = sizeof(typename FoldedIn<T>::Type) == 16 || sizeof(T) == 1 ? 1 : 4;
};

__device__ __forceinline__ uint32_t part_from(const Collective &c, uint32_t source) {
    while (source < c.ranks && !takes_part(c, source)) source++;
    return source;
}

// The fold of a piece, and where it is.
struct FoldedPiece {
    const unsigned char *own;
    unsigned char *out;
    uint32_t bytes;
    uint64_t round;
    bool spreads;
};

template <uint32_t kCells>
__device__ __forceinline__ void load_cells(const Collective &c, const Rings &r, const FoldedPiece &f, uint32_t source,
                                           uint32_t cell, uint32_t step, uint4 v[kCells]) {
    const unsigned char *from = source == c.rank ? f.own : c.own + slot_of(c, kRaw, source, r.read[kRaw][source] + f.round);
#pragma unroll
    for (uint32_t k = 0; k < kCells; k++) {
        const uint32_t at = 16 * (cell + k * step);
        v[k] = source == c.rank ? read<uint4>(from + at, f.bytes - at) : *reinterpret_cast<const uint4 *>(from + at);
    }
}

// kCells cells of a piece, `step` apart. Those of the next source are on their way while one's are folded.
template <typename T, uint32_t kCells>
__device__ __forceinline__ void fold_cells(const Collective &c, const Rings &r, const FoldedPiece &f, uint32_t cell,
                                           uint32_t step) {
    Word<T> low[kCells], high[kCells];
    uint4 v[kCells], next[kCells] = {};
    uint32_t source = part_from(c, 0);
    if (source >= c.ranks) return;
    load_cells<kCells>(c, r, f, source, cell, step, v);
    bool begun = false;
#pragma unroll 1
    while (source < c.ranks) {
        source = part_from(c, source + 1);
        if (source < c.ranks) load_cells<kCells>(c, r, f, source, cell, step, next);
#pragma unroll
        for (uint32_t k = 0; k < kCells; k++) {
            const uint64_t l = uint64_t(v[k].y) << 32 | v[k].x, h = uint64_t(v[k].w) << 32 | v[k].z;
            if (begun) {
                low[k].fold(l, c.args->op);
                high[k].fold(h, c.args->op);
            } else {
                low[k].begin(l);
                high[k].begin(h);
            }
            v[k] = next[k];
        }
        begun = true;
    }
#pragma unroll
    for (uint32_t k = 0; k < kCells; k++) {
        const uint64_t l = low[k].end(c.args->op, c.members), h = high[k].end(c.args->op, c.members);
        v[k] = {uint32_t(l), uint32_t(l >> 32), uint32_t(h), uint32_t(h >> 32)};
        const uint32_t at = 16 * (cell + k * step);
        write<uint4>(f.out + at, v[k], f.bytes - at);
    }
    if (!f.spreads) return;
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) {
        const uint32_t peer = peer_after(c, d);
        if (!takes_part(c, peer)) continue;
        unsigned char *slot = epw::at(c, peer, slot_of(c, kWhole, c.rank, r.written[kWhole][peer] + f.round));
#pragma unroll
        for (uint32_t k = 0; k < kCells; k++) ptx::store(slot + 16 * (cell + k * step), v[k]);
    }
}

template <typename T>
__device__ __forceinline__ void fold_piece(const Collective &c, const Rings &r, const FoldedPiece &f, Team team) {
    const uint32_t step = team.workers();
    if (c.members == 1) {
        if (f.out != f.own) copy(f.out, f.own, f.bytes, team.worker(), step);
        return;
    }
    constexpr uint32_t kCells = CellsAtOnce<T>::kCells;
    uint32_t cell = team.worker();
#pragma unroll 1
    for (; 16 * (cell + (kCells - 1) * step) + 16 <= f.bytes; cell += kCells * step) fold_cells<T, kCells>(c, r, f, cell, step);
#pragma unroll 1
    for (; 16 * cell < f.bytes; cell += step) fold_cells<T, 1>(c, r, f, cell, step);
}

// Behind a piece of a result: whom it lacks; 0: nobody, else the rank and 1. Who waits for the result learns so that there is
// none.
__device__ __forceinline__ void put_note(const Collective &c, const Rings &r, uint32_t peer, uint64_t k) {
    const epw_rank_set lacks = c.active - c.reachable;
    auto *note = at(c, peer, slot_of(c, kWhole, c.rank, r.written[kWhole][peer] + k) + c.args->at.slot_bytes);
    *reinterpret_cast<uint32_t *>(note) = any(lacks) ? first_of(lacks) + 1 : 0;
}
__device__ __forceinline__ void heed_note(Collective &c, const Rings &r, uint32_t source, uint64_t k) {
    const auto *note = c.own + slot_of(c, kWhole, source, r.read[kWhole][source] + k) + c.args->at.slot_bytes;
    const uint32_t lacks = *reinterpret_cast<const volatile uint32_t *>(note);
    if (lacks == 0 || lacks > c.ranks) return;
    insert(c.lacking, lacks - 1);
    atomicOr(&c.troubled, 1u);
}

template <typename T> __device__ __forceinline__ void fold_pieces(Collective &c, Rings &r, Team team, bool spreads) {
    const Folding f = folded_here(c);
    const uint64_t rounds = rounds_of(c, f.bytes);
    auto wait = [&](uint64_t k) {
        for_peers(c, team, [&](uint32_t peer) {
            await_piece(c, r, kRaw, peer, k);
            if (spreads && takes_part(c, peer)) await_room(c, r, kWhole, peer, k);
        });
    };
    auto move = [&](uint64_t k) {
        const uint64_t at = piece_of_round(k) * c.args->pieces;
        fold_piece<T>(c, r, {f.own + at, f.out + at, piece_bytes(c, f.bytes, piece_of_round(k)), k, spreads}, team);
    };
    auto tell = [&](uint64_t k) {
        for_peers(c, team, [&](uint32_t peer) {
            if (spreads) {
                put_note(c, r, peer, k);
                post_piece(c, r, kWhole, peer, k);
            }
            post_taken(c, r, kRaw, peer, k);
        });
    };
    if (!go_through(c, team, rounds, wait, move, tell) || !team.controls()) return;
    for_peers(c, team, [&](uint32_t peer) {
        r.read[kRaw][peer] += rounds;
        if (spreads) r.written[kWhole][peer] += rounds;
    });
}

// ---- taking ----

__device__ __forceinline__ void take_pieces(Collective &c, Rings &r, Team team, uint64_t rounds) {
    const bool exchanges = c.args->kind == EPW_ALL_TO_ALL && c.args->send == c.args->recv, noted = is_shared_out(c);
    const Folding own = given_to_itself(c);
    auto bytes_from = [&](uint32_t source, uint64_t k) { return piece_bytes(c, taken_from(c, source).bytes, piece_of_round(k)); };
    auto wait = [&](uint64_t k) {
        for_peers(c, team, [&](uint32_t source) {
            if (bytes_from(source, k) == 0) return;
            await_piece(c, r, kWhole, source, k);
            if (noted && takes_part(c, source) && !c.stopped) heed_note(c, r, source, k);
        });
        if (exchanges) { // ends: the sender's waits are bounded
            while (ptx::load_acquire_block(&r.sent) <= k && !*static_cast<volatile uint32_t *>(&c.stopped)) {
            }
        }
    };
    auto move = [&](uint64_t k) {
        const uint64_t j = piece_of_round(k), at = j * c.args->pieces;
        const uint32_t mine = piece_bytes(c, own.bytes, j);
        if (mine > 0) copy(own.out + at, own.own + at, mine, team.worker(), team.workers());
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t source = peer_after(c, d), bytes = bytes_from(source, k);
            if (bytes == 0 || !takes_part(c, source)) continue;
            const unsigned char *from = c.own + slot_of(c, kWhole, source, r.read[kWhole][source] + k);
            copy(taken_from(c, source).at + at, from, bytes, team.worker(), team.workers());
        }
    };
    auto tell = [&](uint64_t k) {
        for_peers(c, team, [&](uint32_t source) {
            if (bytes_from(source, k) > 0) post_taken(c, r, kWhole, source, k);
        });
    };
    if (!go_through(c, team, rounds, wait, move, tell) || !team.controls()) return;
    for_peers(c, team, [&](uint32_t source) { r.read[kWhole][source] += rounds_of(c, taken_from(c, source).bytes); });
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

template <typename T> __device__ __forceinline__ void run_large(Collective &c, Rings &r) {
    tell_call(c);
    load_progress(c, r);
    const bool spreads = is_shared_out(c);
    const uint64_t rounds = rounds_of(c, spreads ? longest_piece(c) : c.args->bytes);
    const Team first = {1, 0, spreads ? 160u : 256u}, second = {2, first.threads, spreads ? 192u : 256u};
    const Team third = {3, first.threads + second.threads, kCollThreads - first.threads - second.threads};
    if (first.has_this()) {
        send_pieces(c, r, first, std::is_void_v<T> ? kWhole : kRaw, rounds);
    } else if (second.has_this()) {
        if constexpr (std::is_void_v<T>) {
            take_pieces(c, r, second, rounds);
        } else {
            fold_pieces<T>(c, r, second, spreads);
        }
    } else if (spreads) {
        take_pieces(c, r, third, rounds);
    }
    store_progress(c, r);
    await_calls(c);
}

} // namespace epw
