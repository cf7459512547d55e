// Operations whose blocks are uneven, or have rows with gaps between them, by packets or by rings: they exchange the same
// messages as operations on dense blocks (small.cuh, large.cuh), but read and write the bytes row by row. By rings, half of a
// block's threads send, and the other half take or fold.
#pragma once

#include "kernels/coll/large.cuh"
#include "kernels/coll/rows.cuh"
#include "kernels/coll/small.cuh"

namespace epw {

// If blocks are uneven, each pair of ranks has sizes of its own, which the call does not contain. Packets carry them first, in
// the places of a message's first words, which are free when the message goes by rings. Nothing moves before the sizes are known
// to match: each rank sends both what it gives and what it expects, so that both ranks learn of a difference; the other ranks
// learn it from these two, see EPW_COLL_NOTICE_RANKS. Each block calls this, as a whole.
__device__ __forceinline__ bool agree_on_sizes(Collective &c, const epw_coll_blocks_args &b) {
    if (!b.uneven) return true;
    for (uint32_t peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) {
        if (peer == c.rank || !takes_part(c, peer)) continue;
        const uint64_t gives = block_bytes(b, b.give[peer]) / b.element, takes = block_bytes(b, b.take[peer]) / b.element;
        if (blockIdx.x == 0) {
            put_packet(c, peer, packet_of(c, c.rank, 0), gives, c.tag);
            put_packet(c, peer, packet_of(c, c.rank, 1), takes, c.tag);
        }
        Packet given = {}, taken = {};
        if (!await_packet(c, peer, packet_of(c, peer, 0), given) || !await_packet(c, peer, packet_of(c, peer, 1), taken))
            continue;
        await_call(c, peer); // of a call that differs other data may lie there
        if (c.stopped || !takes_part(c, peer)) continue;
        if (given.data == takes && taken.data == gives) continue;
        const bool differs = given.data != takes;
        const uint64_t its[2] = {c.args.call[0], differs ? given.data : taken.data};
        const uint64_t own[2] = {its[0], differs ? takes : gives};
        stop_for(c, peer, its, own);
    }
    return !__syncthreads_or(c.stopped);
}

// Copies what this rank gives itself, for operations that only move bytes, from byte `from` on; nothing if it is already in
// place.
template <typename T>
__device__ __forceinline__ void give_itself(const Collective &c, const epw_coll_blocks_args &b, uint64_t from, uint64_t end,
                                            uint64_t thread, uint64_t threads) {
    const Rows own = rows_to(b, c.rank), out = rows_from(b, c.rank);
    if (own.at == out.at) return;
    end = min(end, out.bytes);
    for (uint64_t at = from + sizeof(T) * thread; at < end; at += sizeof(T) * threads) write_rows(out, at, read_rows<T>(own, at));
}

// ---- by packets ----

template <typename T> __device__ __forceinline__ void fold_word(Collective &c, const epw_coll_blocks_args &b, uint64_t i) {
    const Rows own = rows_to(b, c.rank);
    Word<T> sum;
    bool begun = false;
    uint64_t word = 0;
#pragma unroll 1
    for (uint32_t source = 0; source < c.ranks; source++) {
        if (!takes_part(c, source) || c.stopped) continue;
        if (source == c.rank) {
            word = read_rows<uint64_t>(own, 8 * i);
        } else {
            Packet packet = {};
            if (!await_packet(c, source, packet_of(c, source, i), packet)) continue;
            word = packet.data;
        }
        if (begun) {
            sum.fold(word, c.args.op);
        } else {
            sum.begin(word);
        }
        begun = true;
    }
    if (!begun) return;
    write_rows(rows_from(b, c.rank), 8 * i, c.members == 1 ? word : sum.end(c.args.op, c.members));
}

template <typename T> __device__ __forceinline__ void run_small_blocks(Collective &c, const epw_coll_blocks_args &b) {
    const uint64_t step = gridDim.x * blockDim.x, begin = blockIdx.x * blockDim.x + threadIdx.x;
    for (uint64_t i = begin; 8 * i < b.give_bytes; i += step) {
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t peer = peer_after(c, d);
            const Rows given = rows_to(b, peer);
            if (8 * i >= given.bytes || !takes_part(c, peer)) continue;
            put_packet(c, peer, packet_of(c, c.rank, i), read_rows<uint64_t>(given, 8 * i), c.tag);
        }
    }
    if constexpr (std::is_void_v<T>) {
        give_itself<uint64_t>(c, b, 0, b.take_bytes, begin, step);
        for (uint64_t i = begin; 8 * i < b.take_bytes; i += step) {
#pragma unroll 1
            for (uint32_t d = 1; d < c.ranks; d++) {
                const uint32_t source = peer_after(c, d);
                const Rows taken = rows_from(b, source);
                Packet packet = {};
                if (8 * i >= taken.bytes || !takes_part(c, source) || c.stopped) continue;
                if (await_packet(c, source, packet_of(c, source, i), packet)) write_rows(taken, 8 * i, packet.data);
            }
        }
    } else {
        for (uint64_t i = begin; 8 * i < block_bytes(b, b.take[c.rank]); i += step) fold_word<T>(c, b, i);
    }
}

// ---- by rings ----

// Bytes of piece j of a message.
__device__ __forceinline__ uint32_t piece_of_rows(const Collective &c, const Rows &r, uint64_t j) {
    return piece_bytes(c, r.bytes, j);
}

__device__ __forceinline__ uint32_t piece_to(const Collective &c, const epw_coll_blocks_args &b, uint32_t peer, uint64_t j) {
    return peer != c.rank && takes_part(c, peer) ? piece_of_rows(c, rows_to(b, peer), j) : 0;
}
__device__ __forceinline__ uint32_t piece_from(const Collective &c, const epw_coll_blocks_args &b, uint32_t peer, uint64_t j) {
    return peer != c.rank && takes_part(c, peer) ? piece_of_rows(c, rows_from(b, peer), j) : 0;
}

__device__ __forceinline__ void send_blocks(Collective &c, Rings &r, const epw_coll_blocks_args &b, Team team, Ring ring) {
    const uint64_t size = c.args.pieces;
#pragma unroll 1
    for (uint64_t j = blockIdx.x; j * size < b.give_bytes; j += gridDim.x) {
        for (uint32_t peer = team.thread(); peer < c.ranks; peer += team.threads) {
            if (piece_to(c, b, peer, j) > 0) await_room(c, r, ring, peer);
        }
        if (team.meet_any(c.stopped)) return;
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t peer = peer_after(c, d), bytes = piece_to(c, b, peer, j);
            if (bytes == 0) continue;
            const Rows given = rows_to(b, peer);
            unsigned char *to = at(c, peer, slot_of(c, ring, c.rank, r.written[ring][peer]));
            for (uint32_t x = 16 * team.thread(); x < bytes; x += 16 * team.threads) { // a slot holds whole cells
                ptx::store(to + x, read_rows<uint4>(given, j * size + x));
            }
        }
        team.meet();
        for (uint32_t peer = team.thread(); peer < c.ranks; peer += team.threads) {
            if (piece_to(c, b, peer, j) > 0) post_piece(c, r, ring, peer);
        }
        note_sent(r, team);
    }
}

__device__ __forceinline__ void take_blocks(Collective &c, Rings &r, const epw_coll_blocks_args &b, Team team) {
    const uint64_t size = c.args.pieces;
    const bool exchanges = is_exchanged(c);
    uint32_t round = 0;
#pragma unroll 1
    for (uint64_t j = blockIdx.x; j * size < b.take_bytes; j += gridDim.x) {
        round++;
        for (uint32_t source = team.thread(); source < c.ranks; source += team.threads) {
            if (piece_from(c, b, source, j) > 0) await_piece(c, r, kWhole, source);
        }
        if (exchanges && team.thread() == 0) await_sent(c, r, round);
        if (team.meet_any(c.stopped)) return;
        give_itself<uint4>(c, b, j * size, (j + 1) * size, team.thread(), team.threads);
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t source = peer_after(c, d), bytes = piece_from(c, b, source, j);
            if (bytes == 0) continue;
            const unsigned char *from = c.own + slot_of(c, kWhole, source, r.read[kWhole][source]);
            for (uint32_t x = 16 * team.thread(); x < bytes; x += 16 * team.threads) {
                write_rows(rows_from(b, source), j * size + x, *reinterpret_cast<const uint4 *>(from + x));
            }
        }
        team.meet();
        for (uint32_t source = team.thread(); source < c.ranks; source += team.threads) {
            if (piece_from(c, b, source, j) > 0) post_taken(c, r, kWhole, source);
        }
    }
}

// Computes a cell of the result from all members' cells, in ascending order of ranks.
template <typename T>
__device__ __forceinline__ void fold_cell(const Collective &c, const Rings &r, const Rows &own, const Rows &out, uint64_t offset,
                                          uint32_t in_piece) {
    Word<T> low, high;
    bool begun = false;
    uint4 v = {};
#pragma unroll 1
    for (uint32_t source = 0; source < c.ranks; source++) {
        if (!takes_part(c, source)) continue;
        v = source == c.rank
                ? read_rows<uint4>(own, offset)
                : *reinterpret_cast<const uint4 *>(c.own + slot_of(c, kRaw, source, r.read[kRaw][source]) + in_piece);
        const uint64_t l = uint64_t(v.y) << 32 | v.x, h = uint64_t(v.w) << 32 | v.z;
        if (begun) {
            low.fold(l, c.args.op);
            high.fold(h, c.args.op);
        } else {
            low.begin(l);
            high.begin(h);
        }
        begun = true;
    }
    if (!begun) return;
    if (c.members > 1) {
        const uint64_t l = low.end(c.args.op, c.members), h = high.end(c.args.op, c.members);
        v = {uint32_t(l), uint32_t(l >> 32), uint32_t(h), uint32_t(h >> 32)};
    }
    write_rows(out, offset, v);
}

template <typename T>
__device__ __forceinline__ void fold_blocks(Collective &c, Rings &r, const epw_coll_blocks_args &b, Team team) {
    const Rows own = rows_to(b, c.rank), out = rows_from(b, c.rank);
    const uint64_t size = c.args.pieces;
#pragma unroll 1
    for (uint64_t j = blockIdx.x; j * size < out.bytes; j += gridDim.x) {
        const uint32_t bytes = piece_of_rows(c, out, j);
        for (uint32_t peer = team.thread(); peer < c.ranks; peer += team.threads) {
            if (peer != c.rank && takes_part(c, peer)) await_piece(c, r, kRaw, peer);
        }
        if (team.meet_any(c.stopped)) return;
        for (uint32_t x = 16 * team.thread(); x < bytes; x += 16 * team.threads) fold_cell<T>(c, r, own, out, j * size + x, x);
        team.meet();
        for (uint32_t peer = team.thread(); peer < c.ranks; peer += team.threads) {
            if (peer != c.rank && takes_part(c, peer)) post_taken(c, r, kRaw, peer);
        }
    }
}

template <typename T> __device__ __forceinline__ void run_blocks(Collective &c, Rings &r, const epw_coll_blocks_args &b) {
    constexpr uint32_t kHalf = kCollThreads / 2;
    tell_call(c);
    if (c.args.pieces == 0) {
        run_small_blocks<T>(c, b);
        await_calls(c);
        return;
    }
    if (!agree_on_sizes(c, b)) return;
    load_progress(c, r);
    const Team first = {1, 0, kHalf}, second = {2, kHalf, kHalf};
    if (first.has_this()) {
        send_blocks(c, r, b, first, std::is_void_v<T> ? kWhole : kRaw);
    } else if constexpr (std::is_void_v<T>) {
        take_blocks(c, r, b, second);
    } else {
        fold_blocks<T>(c, r, b, second);
    }
    store_progress(c, r);
    await_calls(c);
}

} // namespace epw
