// Operations on memory of epw_comm_alloc, which peers may read: each rank loads what it needs from its peers' memory and writes
// only to its own. So every byte crosses the link once, and no slot is waited for.
//
// With its call each rank tells where its buffers lie. If one of them is elsewhere, all ranks use rings (large.cuh). Each block
// handles a chunk of every flow and waits only for the blocks of the same index on other ranks.
//
// No rank ends the operation before its peers have finished reading, unless it gives them up. Then it withdraws what it has told
// them, before the caller can write to that memory. A reader looks again after its last load, so it never uses bytes that were no
// longer lent.
#pragma once

#include "kernels/coll/bulk.cuh"
#include "kernels/coll/small.cuh"

namespace epw {

constexpr uint32_t kDirectThreads = kFolders;
constexpr uint64_t kRoundBytes = 4 << 20; // of a block's chunk; peers that wait for a round time it by the deadline

__device__ constexpr Team kAll = {0, 0, kDirectThreads};

// In shared memory: what each rank lends, and the piece that is being folded.
struct Lent {
    unsigned char *send[kBulkRanks], *recv[kBulkRanks]; // only read
    uint32_t by_all;
    FoldPiece piece;
};

// ---- what is lent ----

__device__ __forceinline__ uint64_t lent_at(const Collective &c, uint32_t source) { return packet_of(c, source, 0); }

// Waits for the calls of all ranks, and learns what they lend. Called by the whole block.
__device__ __forceinline__ void learn_what_is_lent(Collective &c, Lent &l) {
    if (threadIdx.x == 0) l.by_all = 1;
    __syncthreads();
    for (uint32_t rank = threadIdx.x; rank < c.ranks; rank += blockDim.x) {
        const bool own = rank == c.rank;
        Packet lent = {c.args.lent, c.tag};
        if (!takes_part(c, rank)) continue;
        if (!own && !await_peer(c, rank, c.tag, [&] {
                lent = packet_at(c, lent_at(c, rank));
                return lent.tag == c.tag && look_at_call(c, rank) == Come::kYes;
            })) {
            continue;
        }
        if (lent.data == 0) l.by_all = 0;
        unsigned char *heap = own ? c.args.window + c.args.at.heap_offset : at(c, rank, c.args.at.heap_offset);
        l.send[rank] = heap + epw_coll_lent_send(lent.data);
        l.recv[rank] = heap + epw_coll_lent_recv(lent.data);
    }
    // Writer: the peers' tell_call(), after what the stream has written before. Reader: this block, which loads that.
    ptx::fence_sys();
    __syncthreads();
}

// In place of what a rank has told that it lends: a result of it lacks a rank; or nothing is lent any more.
__device__ __forceinline__ uint64_t lacks(uint32_t rank) { return rank + 1; }
constexpr uint64_t kWithdrawn = 0;

// Heeds what the peer says now. Called after the last load from its memory, behind a fence.
__device__ __forceinline__ void heed(Collective &c, uint32_t peer) {
    const Packet now = packet_at(c, lent_at(c, peer));
    if (now.tag != c.tag || epw_coll_is_lent(now.data)) return;
    if (now.data == kWithdrawn || now.data > lacks(c.ranks - 1)) {
        leave_out(c, peer);
    } else {
        insert(c.lacking, uint32_t(now.data - 1));
        atomicOr(&c.troubled, 1u);
    }
}

// Writer: this thread, before the kernel ends. Reader: the peer's heed(): bytes that it has loaded later are void.
__device__ __forceinline__ void withdraw(const Collective &c) {
    for (uint32_t peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) {
        if (peer == c.rank || !has(c.present, peer) || (takes_part(c, peer) && !c.stopped)) continue;
        put_packet(c, peer, lent_at(c, c.rank), kWithdrawn, c.tag);
        ptx::fence_sys();
    }
}

// ---- flows ----

// Whether the reader loads what the source gives.
__device__ __forceinline__ bool reads(const Collective &c, uint32_t reader, uint32_t source) {
    if (reader == source || !takes_part(c, reader) || !takes_part(c, source)) return false;
    switch (c.args.kind) {
    case EPW_REDUCE:
    case EPW_GATHER:
        return reader == c.args.root;
    case EPW_BROADCAST:
    case EPW_SCATTER:
        return source == c.args.root;
    default:
        return true;
    }
}

// What the source gives to this rank.
__device__ __forceinline__ const unsigned char *lent_to_this(const Collective &c, const Lent &l, uint32_t source) {
    unsigned char *from = l.send[source];
    switch (c.args.kind) {
    case EPW_REDUCE_SCATTER:
    case EPW_ALL_TO_ALL:
    case EPW_SCATTER:
        return from + c.rank * c.args.bytes;
    default:
        return is_shared_out(c) ? part_of(c, from, c.rank).at : from;
    }
}

// Copies from a peer's memory.
__device__ __forceinline__ void pull(unsigned char *to, const unsigned char *from, uint64_t bytes, Team team) {
    constexpr uint32_t kCells = 8;
    const uint32_t step = 16 * team.threads;
    const uint64_t whole = bytes / 16 * 16;
    uint64_t at = 16 * team.thread();
#pragma unroll 1
    for (; at + (kCells - 1) * step < whole; at += kCells * step) {
        Cells<kCells> v;
        v.load(from + at, step);
        v.store(to + at, step);
    }
#pragma unroll 1
    for (; at < whole; at += step) {
        Cells<1> v;
        v.load(from + at, step);
        v.store(to + at, step);
    }
    if (whole < bytes && team.thread() == 0) {
        const uint32_t rest = uint32_t(bytes - whole);
        write_slowly<uint4>(to + whole, read_slowly<uint4>(from + whole, rest), rest);
    }
}

// Folds a part of what this rank makes of all ranks' bytes.
template <typename T> __device__ __forceinline__ void fold_lent(const Collective &c, Lent &l, uint64_t from, uint64_t end) {
    const Folding f = folded_here(c);
    end = min(end, f.bytes);
    if (from >= end) return;
    if (threadIdx.x == 0) {
        FoldPiece &p = l.piece;
        p.sources = p.copies = 0;
        for (uint32_t source = 0; source < c.ranks; source++) {
            if (!contributes(c, source)) continue;
            p.from[p.sources++] = (source == c.rank ? f.own : lent_to_this(c, l, source)) + from;
        }
        p.out = f.out + from;
        p.bytes = uint32_t(end - from);
    }
    __syncthreads();
    if (l.piece.sources > 0) fold_piece_brought<T>(c, l.piece, threadIdx.x);
}

__device__ __forceinline__ void give_itself(const Collective &c, uint64_t from, uint64_t end, Team team) {
    const Folding own = given_to_itself(c);
    end = min(end, own.bytes);
    if (from < end) copy(own.out + from, own.own + from, end - from, team.thread(), team.threads);
}

// Takes what all ranks give, also what this rank gives itself.
__device__ __forceinline__ void take_lent(const Collective &c, const Lent &l, uint64_t from, uint64_t end) {
    constexpr uint32_t kPullers = kDirectThreads / 4 * 3;
    const Team pullers = {1, 0, kPullers}, others = {2, kPullers, kDirectThreads - kPullers};
    if (others.has_this()) {
        give_itself(c, from, end, others);
        return;
    }
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) {
        const uint32_t source = peer_after(c, d);
        if (!reads(c, c.rank, source)) continue;
        const Stretch to = taken_from(c, source);
        if (from < to.bytes) pull(to.at + from, lent_to_this(c, l, source) + from, min(end, to.bytes) - from, pullers);
    }
}

// Takes the parts that other ranks have made from their results.
__device__ __forceinline__ void take_parts(const Collective &c, const Lent &l, uint64_t from, uint64_t end) {
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) {
        const uint32_t maker = peer_after(c, d);
        if (!takes_part(c, maker)) continue;
        const Stretch to = taken_from(c, maker);
        if (from < to.bytes) pull(to.at + from, part_of(c, l.recv[maker], maker).at + from, min(end, to.bytes) - from, kAll);
    }
}

// ---- all of it ----

__device__ __forceinline__ uint64_t *count_of(const Collective &c, uint32_t peer, Ring ring, uint32_t which) {
    return reinterpret_cast<uint64_t *>(at(c, peer, epw_coll_count(&c.args.at, ring, c.rank, blockIdx.x, which)));
}

// This block has made its chunk of the part, and reads no more of what was given for it.
__device__ __forceinline__ void tell_made(Collective &c, Rings &r, uint32_t peer) {
    fence_before_counts();
    const bool read = reads(c, c.rank, peer);
    if (read) heed(c, peer);
    if (read) put_count(count_of(c, peer, kRaw, EPW_COLL_TAKEN), count_word(c, ++r.read[kRaw][peer]));
}
__device__ __forceinline__ void tell_part(Collective &c, Rings &r, uint32_t peer) {
    const epw_rank_set missing = c.active - c.reachable;
    if (any(missing)) {
        put_packet(c, peer, lent_at(c, c.rank), lacks(first_of(missing)), c.tag);
        fence_before_counts();
    }
    put_count(count_of(c, peer, kWhole, EPW_COLL_WRITTEN), count_word(c, ++r.written[kWhole][peer]));
}

__device__ __forceinline__ void await_taken(Collective &c, Ring ring, uint32_t peer, uint64_t count) {
    const uint64_t offset = epw_coll_count(&c.args.at, ring, peer, blockIdx.x, EPW_COLL_TAKEN);
    await_peer(c, peer, count_word(c, count), [&] { return has_count(c, count_at(c, offset), count); });
}

// Returns false if the operation has been stopped.
template <typename T> __device__ __forceinline__ bool run_round(Collective &c, Rings &r, Lent &l, uint64_t from, uint64_t end) {
    const bool shared = is_shared_out(c);
    if (!std::is_void_v<T> || shared) {
        fold_lent<T>(c, l, from, end);
    } else {
        take_lent(c, l, from, end);
    }
    __syncthreads();
    for (uint32_t peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) {
        if (peer != c.rank && takes_part(c, peer)) tell_made(c, r, peer);
    }
    if (needs_copies(c, c.rank)) {
        __syncthreads(); // who is missing is known
        for (uint32_t peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) {
            if (peer != c.rank && needs_copies(c, peer)) tell_part(c, r, peer);
        }
        for (uint32_t maker = threadIdx.x; maker < c.ranks; maker += blockDim.x) {
            if (maker != c.rank && needs_copies(c, maker)) await_piece(c, r, kWhole, maker);
        }
        __syncthreads();
        if (c.stopped) return false;
        take_parts(c, l, from, end);
        __syncthreads();
        for (uint32_t maker = threadIdx.x; maker < c.ranks; maker += blockDim.x) {
            if (maker == c.rank || !needs_copies(c, maker)) continue;
            fence_before_counts();
            heed(c, maker);
            put_count(count_of(c, maker, kWhole, EPW_COLL_TAKEN), count_word(c, ++r.read[kWhole][maker]));
        }
    }
    for (uint32_t peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) {
        if (reads(c, peer, c.rank)) r.written[kRaw][peer]++;
    }
    __syncthreads();
    return true;
}

// The peers have finished reading, or are given up.
__device__ __forceinline__ void await_readers(Collective &c, const Rings &r) {
    for (uint32_t peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) {
        if (reads(c, peer, c.rank)) await_taken(c, kRaw, peer, r.written[kRaw][peer]);
        if (peer != c.rank && needs_copies(c, c.rank) && needs_copies(c, peer)) {
            await_taken(c, kWhole, peer, r.written[kWhole][peer]);
        }
    }
}

template <typename T> __device__ __forceinline__ void run_direct(Collective &c, Rings &r, Lent &l) {
    tell_call(c);
    learn_what_is_lent(c, l);
    if (c.stopped) return;
    if (!l.by_all) {
        run_rings<T>(c, r);
        return;
    }
    load_progress(c, r);
    const bool shared = is_shared_out(c);
    const uint64_t flow = shared ? c.part : c.args.bytes;
    const uint64_t each = ((flow + gridDim.x - 1) / gridDim.x + 15) / 16 * 16;
    const uint64_t from = min(flow, blockIdx.x * each), end = min(flow, from + each);
    bool goes_on = true;
#pragma unroll 1
    for (uint64_t at = 0; at < each && goes_on; at += kRoundBytes) {
        goes_on = run_round<T>(c, r, l, min(end, from + at), min(end, from + at + kRoundBytes));
    }
    if (shared) { // what a root gives itself is more than a part
        const uint64_t all = given_to_itself(c).bytes, share = ((all + gridDim.x - 1) / gridDim.x + 15) / 16 * 16;
        give_itself(c, min(all, blockIdx.x * share), min(all, (blockIdx.x + 1) * share), kAll);
    }
    if (goes_on) await_readers(c, r);
    store_progress(c, r);
    withdraw(c);
}

} // namespace epw
