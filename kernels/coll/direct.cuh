// Operations on memory of epw_comm_alloc or epw_comm_register, which peers may read: each rank loads what it needs from its
// peers' memory and writes only to its own. So every byte crosses the link once, and no slot is waited for.
//
// With its call each rank tells where its buffers lie. If one of them is elsewhere, all ranks use rings (large.cuh). Each block
// handles a chunk of every flow and waits only for the blocks of the same index on other ranks.
//
// One thread of a block brings: it loads items, several ahead, into shared memory by bulk copies. Fourteen warps fold what has
// arrived, or pass it on, and store the result. A last warp tells the peers, because it waits until the stores before have
// landed. Large operations go in rounds, because peers that wait for a round time it by the deadline. Smaller ones do not: a
// fence waits for all loads in flight, so telling peers of a round while the next one is being loaded takes until it is.
//
// An all-reduce of two members has one step instead of two, unless it is in place: see each_folds_all().
//
// No rank ends the operation before its peers have finished reading, unless it gives them up. Then it withdraws what it has told
// them, before the caller can write to that memory. A reader looks again after its last load, so it never uses bytes that were no
// longer lent.
#pragma once

#include "kernels/coll/bulk.cuh"
#include "kernels/coll/small.cuh"

namespace epw {

constexpr uint32_t kLentFolders = kCollThreads - 64; // so many threads fold
constexpr uint32_t kBringer = kLentFolders, kTeller = kBringer + 32, kDirectThreads = kCollThreads;
constexpr uint32_t kItemStages = 6, kItemBytes = 32 << 10; // of an item: the bytes of all its sources together
constexpr uint64_t kRoundBytes = 2 << 20;                  // of a block's chunk
constexpr uint32_t kStepsAhead = 4;                        // steps that are folded before the oldest is told

// What is loaded at a time.
struct Item {
    FoldPiece piece; // 0 bytes: a step ends
    uint32_t stride; // from one source's bytes to the next one's, in shared memory
    uint32_t last;   // 1: the last step ends
};

struct DirectMemory {
    unsigned char items[kItemStages][kItemBytes];
};

// In shared memory: what each rank lends, and the items on their way.
struct Lent {
    unsigned char *send[kBulkRanks], *recv[kBulkRanks]; // only read
    uint64_t words[kBulkRanks];                         // see epw_coll_lent; 0: nothing
    uint32_t by_all;
    uint32_t registered; // some of it lies in registered memory
    uint32_t ended;      // steps end before the last one, because calls differ
    Item items[kItemStages];
    // Barriers: an item is loaded; it is folded, so its stage is free; all items of a step are folded; peers are told of it.
    uint64_t loaded[kItemStages], folded[kItemStages], made[kStepsAhead], told[kStepsAhead];
};

__device__ __forceinline__ void init_direct(Lent &l) {
    if (threadIdx.x != 0) return;
    l.by_all = 1;
    l.registered = 0;
    l.ended = 0;
    for (uint32_t i = 0; i < kBulkRanks; i++) l.words[i] = 0;
    for (uint32_t i = 0; i < kItemStages; i++) {
        ptx::barrier_init(&l.loaded[i], 1);
        ptx::barrier_init(&l.folded[i], kLentFolders / 32);
        l.items[i].piece.copies = 0;
    }
    for (uint32_t i = 0; i < kStepsAhead; i++) {
        ptx::barrier_init(&l.made[i], kLentFolders / 32);
        ptx::barrier_init(&l.told[i], 1);
    }
    ptx::fence_barrier_init();
}

// ---- what is lent ----

// In place of what a rank has told that it lends: a result of it lacks a rank; or nothing is lent any more, which differs from
// the 0 of a rank that never lent: a block that begins late learns only this.
__device__ __forceinline__ uint64_t lacks(uint32_t rank) { return rank + 1; }
constexpr uint64_t kWithdrawn = EPW_COLL_LENT - 1;

__device__ __forceinline__ uint64_t lent_at(const Collective &c, uint32_t source) { return packet_of(c, source, 0); }

// Takes what the rank lends, so far without what lies in registered memory. A rank that has already told that it lacks another
// one is read no more: what this rank has itself stands for its bytes, and the result is void.
__device__ __forceinline__ void take_lent(const Collective &c, Lent &l, uint32_t rank, uint64_t lent) {
    if (!epw_coll_is_lent(lent)) {
        l.words[rank] = 0;
        l.send[rank] = const_cast<unsigned char *>(c.args.send);
        l.recv[rank] = c.args.recv;
        return;
    }
    const uint64_t send = epw_coll_lent_send(lent), recv = epw_coll_lent_recv(lent);
    const bool sends = epw_coll_is_registered(&c.args.at, send), receives = epw_coll_is_registered(&c.args.at, recv);
    unsigned char *heap = rank == c.rank ? c.args.window + c.args.at.heap_offset : at(c, rank, c.args.at.heap_offset);
    l.words[rank] = lent;
    l.send[rank] = sends ? nullptr : heap + send;
    l.recv[rank] = receives ? nullptr : heap + recv;
    if (sends || receives) l.registered = 1;
}

// Finds what these ranks lend of registered memory: each thread looks at one registration of one rank.
__device__ __forceinline__ void find_registered(const Collective &c, Lent &l, uint32_t begin, uint32_t end) {
    const uint64_t sent = epw_coll_send_bytes(c.args.kind, c.ranks, c.args.bytes), received = c.args.bytes;
#pragma unroll 1
    for (uint32_t i = begin * EPW_COLL_REGISTRATIONS + threadIdx.x; i < end * EPW_COLL_REGISTRATIONS; i += blockDim.x) {
        const uint32_t rank = i / EPW_COLL_REGISTRATIONS;
        const epw_coll_registered r = c.args.state->registered[rank][i % EPW_COLL_REGISTRATIONS];
        const uint64_t send = epw_coll_lent_send(l.words[rank]) - r.first, recv = epw_coll_lent_recv(l.words[rank]) - r.first;
        if (send < r.bytes && sent <= r.bytes - send) l.send[rank] = r.base + send;
        if (recv < r.bytes && received <= r.bytes - recv) l.recv[rank] = r.base + recv;
    }
}

// Lends nothing if this rank lacks a member: whether that one lends is not known here, and others may know that it does not. Nor
// if a buffer is not registered, or not mapped by all members, any more: a graph may have been captured before. By the whole
// block.
__device__ __forceinline__ void check_lent(Collective &c, Lent &l) {
    if (threadIdx.x == 0 && any(c.active - c.reachable)) c.args.lent = 0;
    if (threadIdx.x == 0) take_lent(c, l, c.rank, c.args.lent);
    __syncthreads();
    if (!l.registered) return;
    find_registered(c, l, c.rank, c.rank + 1);
    __syncthreads();
    const bool sends = epw_coll_lent_send(c.args.lent) == 0 || l.send[c.rank] == c.args.send;
    const bool receives = epw_coll_lent_recv(c.args.lent) == 0 || l.recv[c.rank] == c.args.recv;
    __syncthreads();
    if (threadIdx.x == 0 && !(sends && receives)) c.args.lent = 0;
    __syncthreads();
}

// Settles what this rank lends, before it tells: the first block does, once in an operation, which may have two kernels.
// Writer: its first thread. Readers: the other blocks' await_settled(). Called by the whole block.
__device__ __forceinline__ void settle_lent(Collective &c, Lent &l) {
    if (blockIdx.x != 0) return;
    check_lent(c, l);
    if (threadIdx.x == 0) {
        unsigned char *own = c.args.window + lent_at(c, c.rank);
        const Packet told = packet_at(own);
        if (told.tag == c.tag) {
            c.args.lent = told.data;
        } else {
            put_packet(own, c.args.lent, c.tag);
        }
    }
    __syncthreads();
}
// Bounded: the first block waits for no peer before it settles. If it does not begin, this block lends nothing.
__device__ __noinline__ inline Packet await_settled(Collective &c) {
    const uint64_t began = ptx::global_timer_ns(), most = 2 * EPW_WAIT_DEADLINES_MAX * c.deadline;
    do {
        const Packet told = packet_at(c, lent_at(c, c.rank));
        if (told.tag == c.tag) return told;
    } while (!*static_cast<volatile uint32_t *>(&c.stopped) && ptx::global_timer_ns() - began < most);
    insert(c.lacking, c.rank);
    atomicOr(&c.troubled, 1u);
    return {0, c.tag};
}

// Whether the rank has given this one up in this epoch.
__device__ __forceinline__ bool has_dropped(const Collective &c, uint32_t rank) {
    return epw_word_epoch(word_from(c, rank, EPW_WORD_DROPPED)) >= c.epoch;
}

// Waits for the calls of all ranks, and learns what they lend. Called by the whole block.
__device__ __forceinline__ void learn_what_is_lent(Collective &c, Lent &l) {
    __syncthreads();
    for (uint32_t rank = threadIdx.x; rank < c.ranks; rank += blockDim.x) {
        const bool own = rank == c.rank;
        Packet lent = {c.args.lent, c.tag};
        if (!has(c.active, rank)) continue;
        if (own && blockIdx.x != 0) lent = await_settled(c);
        if (!own && !(takes_part(c, rank) && await_peer(c, rank, c.tag, [&] {
                          lent = packet_at(c, lent_at(c, rank));
                          return lent.tag == c.tag && look_at_call(c, rank) == Come::kYes;
                      }))) {
            // If it has begun the operation without this rank, it has told the others that it lends nothing.
            const bool dropped = has_dropped(c, rank);
            lent = packet_at(c, lent_at(c, rank));
            if (lent.tag == c.tag ? lent.data == 0 : dropped) l.by_all = 0;
            continue;
        }
        if (!own && lent.data == kWithdrawn) { // it has given this rank up, and ended the operation
            leave_out(c, rank);
            continue;
        }
        if (lent.data == 0) l.by_all = 0;
        take_lent(c, l, rank, lent.data);
        // Writer: the peer's tell_call(), after what its stream has written before. Reader: this block's loads of that.
        fence_beside_packets();
    }
    __syncthreads();
    if (!l.registered) return;
    find_registered(c, l, 0, c.ranks);
    __syncthreads();
    // No peer lends what this rank has not mapped.
    for (uint32_t rank = threadIdx.x; rank < c.ranks; rank += blockDim.x) {
        if (l.words[rank] != 0 && (l.send[rank] == nullptr || l.recv[rank] == nullptr)) l.by_all = 0;
    }
    __syncthreads();
}

// Whether two members reduce without sharing out: each reads the whole of what the peer sends, and folds it all. The link carries
// as many bytes each way as if each made a half and passed it on, and nobody waits for a half. As the peer reads this rank's send
// until the end, results must not lie there; in place they would, and then the halves are shared out. Both members tell by the
// same words, so they decide alike; one that has given the other up decides for itself, and its result is void.
__device__ __forceinline__ bool each_folds_all(const Collective &c, const Lent &l) {
    if (c.args.kind != EPW_ALL_REDUCE || c.members != 2) return false;
    for (uint32_t rank = 0; rank < c.ranks; rank++) {
        if (!has(c.active, rank)) continue;
        if (l.words[rank] == 0) return false;
        const uint64_t send = epw_coll_lent_send(l.words[rank]), recv = epw_coll_lent_recv(l.words[rank]);
        if (send < recv + c.args.bytes && recv < send + c.args.bytes) return false;
    }
    return true;
}

// Heeds what the peer says now. Called after the last load from its memory, behind a fence.
__device__ __forceinline__ void heed(Collective &c, uint32_t peer) {
    const Packet now = packet_at(c, lent_at(c, peer));
    if (now.tag != c.tag || epw_coll_is_lent(now.data)) return;
    if (now.data == 0 || now.data > lacks(c.ranks - 1)) { // also kWithdrawn
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
        fence_beside_packets();
    }
}

// ---- flows ----

// Whether the reader loads what the source gives.
__device__ __forceinline__ bool reads(const Collective &c, uint32_t reader, uint32_t source) {
    return takes_part(c, reader) && takes_part(c, source) && epw_coll_reads(c.args.kind, c.args.root, reader, source);
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

// ---- the steps of a block ----

// This block's share of each flow: from `from` to `end`, in rounds. The same on all ranks.
struct Share {
    uint64_t from, end;
    uint32_t rounds;

    __device__ __forceinline__ Share(uint64_t flow) {
        const uint64_t each = ((flow + gridDim.x - 1) / gridDim.x + 15) / 16 * 16;
        from = min(flow, blockIdx.x * each);
        end = min(flow, from + each);
        rounds = uint32_t((each + kRoundBytes - 1) / kRoundBytes);
    }
    __device__ __forceinline__ uint64_t begin_of(uint32_t i) const { return min(end, from + i * kRoundBytes); }
};

// Calls make(i) and, of an operation that is shared out, take(i) for each round, in the order of the steps, until one of them
// returns false.
template <typename Make, typename Take>
__device__ __forceinline__ void for_each_step(const Share &share, bool takes, const Make &make, const Take &take) {
#pragma unroll 1
    for (uint32_t i = 0; i <= share.rounds; i++) {
        if (i < share.rounds && !make(i)) return;
        if (takes && i > 0 && !take(i - 1)) return;
    }
}

// ---- bringing, by one thread ----

struct Bringer {
    Collective &c;
    const Rings &r;
    Lent &l;
    DirectMemory &m;
    uint32_t begun = 0, ended = 0; // items; steps

    // Waits until the next stage is free. Bounded: the folding warps wait for nobody else.
    __device__ __forceinline__ Item &next(uint32_t &s) {
        s = begun % kItemStages;
        if (begun >= kItemStages) await_barrier(&l.folded[s], (begun / kItemStages - 1) & 1);
        begun++;
        return l.items[s];
    }
    // Loads what the item's piece has of each source.
    __device__ __forceinline__ void load(Item &item, uint32_t s) {
        const FoldPiece &p = item.piece;
        const uint32_t whole = p.bytes / 16 * 16;
        ptx::barrier_expect(&l.loaded[s], whole * p.sources);
        if (whole == 0) return;
#pragma unroll 1
        for (uint32_t i = 0; i < p.sources; i++) ptx::bulk_load(m.items[s] + i * item.stride, p.from[i], whole, &l.loaded[s]);
    }
    __device__ __forceinline__ void end_step(bool last) {
        uint32_t s;
        if (ended >= kStepsAhead) await_barrier(&l.told[ended % kStepsAhead], (ended / kStepsAhead - 1) & 1);
        ended++;
        Item &item = next(s);
        item.piece.bytes = 0;
        item.last = last;
        ptx::barrier_arrive(&l.loaded[s]);
    }
    // Brings a stretch of one source.
    __device__ __forceinline__ void move(unsigned char *to, const unsigned char *from, uint32_t bytes) {
        uint32_t s;
        Item &item = next(s);
        FoldPiece &p = item.piece;
        p.from[0] = from;
        p.out = to;
        p.sources = 1;
        p.bytes = bytes;
        load(item, s);
    }
    __device__ __forceinline__ void fold(uint64_t from, uint64_t end) {
        const Folding f = folded_here(c);
        uint32_t sources = 0;
        for (uint32_t source = 0; source < c.ranks; source++) sources += contributes(c, source);
        uint32_t stride = kItemBytes;
        while (stride * sources > kItemBytes) stride /= 2;
        end = min(end, f.bytes);
#pragma unroll 1
        for (uint64_t at = from; at < end && sources > 0; at += stride) {
            uint32_t s;
            Item &item = next(s);
            FoldPiece &p = item.piece;
            p.sources = 0;
            for (uint32_t source = 0; source < c.ranks; source++) {
                if (!contributes(c, source)) continue;
                p.from[p.sources++] = (source == c.rank ? f.own : lent_to_this(c, l, source)) + at;
            }
            p.out = f.out + at;
            p.bytes = uint32_t(min(uint64_t(stride), end - at));
            item.stride = stride;
            load(item, s);
        }
    }
    // What ranks give, in turns, also what this rank gives itself.
    __device__ __forceinline__ void take_what_is_given(uint64_t from, uint64_t end) {
        const Folding own = given_to_itself(c);
#pragma unroll 1
        for (uint64_t at = from; at < end; at += kItemBytes) {
            if (at < own.bytes) move(own.out + at, own.own + at, uint32_t(min(uint64_t(kItemBytes), min(end, own.bytes) - at)));
#pragma unroll 1
            for (uint32_t d = 1; d < c.ranks; d++) {
                const uint32_t source = peer_after(c, d);
                const Stretch to = taken_from(c, source);
                if (at >= to.bytes || !reads(c, c.rank, source)) continue;
                const uint32_t bytes = uint32_t(min(uint64_t(kItemBytes), min(end, to.bytes) - at));
                move(to.at + at, lent_to_this(c, l, source) + at, bytes);
            }
        }
    }
    // The parts that other ranks have made, from their results.
    __device__ __forceinline__ void take_parts(uint64_t from, uint64_t end) {
#pragma unroll 1
        for (uint64_t at = from; at < end; at += kItemBytes) {
#pragma unroll 1
            for (uint32_t d = 1; d < c.ranks; d++) {
                const uint32_t maker = peer_after(c, d);
                const Stretch to = taken_from(c, maker);
                if (at >= to.bytes || !needs_copies(c, maker)) continue;
                const uint32_t bytes = uint32_t(min(uint64_t(kItemBytes), min(end, to.bytes) - at));
                move(to.at + at, part_of(c, l.recv[maker], maker).at + at, bytes);
            }
        }
    }
    __device__ __forceinline__ bool await_parts(uint32_t round) {
#pragma unroll 1
        for (uint32_t maker = 0; maker < c.ranks; maker++) {
            if (maker != c.rank && needs_copies(c, maker)) await_written(c, kWhole, maker, r.read[kWhole][maker] + round + 1);
        }
        ptx::fence_global_before_bulk();
        return !c.stopped;
    }

    __device__ __forceinline__ void run(const Share &share, bool folds) {
        const bool takes = needs_copies(c, c.rank);
        ptx::fence_global_before_bulk();
        for_each_step(
            share, takes,
            [&](uint32_t i) {
                if (folds) {
                    fold(share.begin_of(i), share.begin_of(i + 1));
                } else {
                    take_what_is_given(share.begin_of(i), share.begin_of(i + 1));
                }
                end_step(!takes && i + 1 == share.rounds);
                return true;
            },
            [&](uint32_t i) {
                const bool goes_on = await_parts(i);
                if (goes_on) {
                    take_parts(share.begin_of(i), share.begin_of(i + 1));
                } else {
                    *static_cast<volatile uint32_t *>(&l.ended) = 1;
                }
                end_step(!goes_on || i + 1 == share.rounds);
                return goes_on;
            });
    }
};

// ---- folding ----

template <typename T, bool kSums>
__device__ __forceinline__ uint4 fold_sources(const unsigned char *from, uint32_t stride, uint32_t sources, uint32_t op,
                                              uint32_t members) {
    uint4 v = *reinterpret_cast<const uint4 *>(from);
    if constexpr (!std::is_void_v<T>) {
        if (sources == 1) return v;
        Word<T> low, high;
        low.begin(uint64_t(v.y) << 32 | v.x);
        high.begin(uint64_t(v.w) << 32 | v.z);
#pragma unroll 1
        for (uint32_t i = 1; i < sources; i++) {
            v = *reinterpret_cast<const uint4 *>(from + i * stride);
            low.template fold<kSums>(uint64_t(v.y) << 32 | v.x, op);
            high.template fold<kSums>(uint64_t(v.w) << 32 | v.z, op);
        }
        const uint64_t l = low.template end<kSums>(op, members), h = high.template end<kSums>(op, members);
        v = {uint32_t(l), uint32_t(l >> 32), uint32_t(h), uint32_t(h >> 32)};
    }
    return v;
}

template <typename T, bool kSums>
__device__ __forceinline__ void fold_item(const Item &item, const unsigned char *memory, uint32_t op, uint32_t members) {
    const uint32_t whole = item.piece.bytes / 16 * 16, sources = item.piece.sources, stride = item.stride;
    unsigned char *out = item.piece.out;
#pragma unroll 2
    for (uint32_t at = 16 * threadIdx.x; at < whole; at += 16 * kLentFolders) {
        ptx::store(out + at, fold_sources<T, kSums>(memory + at, stride, sources, op, members));
    }
}

// Called by the folding warps. Returns when the last step has ended.
template <typename T> __device__ __forceinline__ void fold_items(const Collective &c, Lent &l, DirectMemory &m) {
    const uint32_t op = c.args.op, members = c.members;
    uint32_t steps = 0;
    bool last = false;
#pragma unroll 1
    for (uint32_t n = 0; !last; n++) {
        const uint32_t s = n % kItemStages;
        const Item &item = l.items[s];
        await_barrier(&l.loaded[s], n / kItemStages & 1);
        const uint32_t bytes = item.piece.bytes;
        if (std::is_void_v<T> || op == EPW_SUM) {
            fold_item<T, true>(item, m.items[s], op, members);
        } else {
            fold_item<T, false>(item, m.items[s], op, members);
        }
        if (bytes % 16 != 0 && threadIdx.x == 0) fold_tail<T>(item.piece, bytes / 16 * 16, bytes % 16, op, members);
        last = bytes == 0 && item.last;
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            if (bytes == 0) ptx::barrier_arrive(&l.made[steps % kStepsAhead]);
            ptx::barrier_arrive(&l.folded[s]);
        }
        steps += bytes == 0;
    }
}

// ---- telling, by one warp, each lane its peer ----

struct Teller {
    Collective &c;
    Rings &r;
    Lent &l;
    uint32_t peer, steps = 0;
    uint64_t taken = 0; // the peer's parts, since the epoch began

    __device__ __forceinline__ void put(Ring ring, uint32_t which, uint64_t count) const {
        const uint64_t offset = epw_coll_count(&c.args.at, ring, c.rank, blockIdx.x, which);
        put_count(reinterpret_cast<uint64_t *>(at(c, peer, offset)), count_word(c, count));
    }
    // Writer: this block's folding warps, through the barrier, and this thread's fence. Readers: the peers' await_written() and
    // await_taken().
    __device__ __forceinline__ void await_step() {
        await_barrier(&l.made[steps % kStepsAhead], steps / kStepsAhead & 1);
        __syncwarp();
        fence_before_counts();
    }
    // `ended` is read first: once a step is told, the bringer may end a later one, which would then be taken for this one.
    __device__ __forceinline__ bool end_step() {
        const bool ended = __any_sync(0xffffffffu, *static_cast<volatile uint32_t *>(&l.ended));
        if (peer == 0) ptx::barrier_arrive(&l.told[steps % kStepsAhead]);
        steps++;
        return !ended;
    }
    __device__ __forceinline__ bool is_peer() const { return peer < c.ranks && peer != c.rank && takes_part(c, peer); }

    __device__ __forceinline__ bool tell_made() {
        await_step();
        if (is_peer() && reads(c, c.rank, peer)) {
            heed(c, peer);
            put(kRaw, EPW_COLL_TAKEN, ++r.read[kRaw][peer]);
        }
        __syncwarp(); // who is missing is known
        if (is_peer() && needs_copies(c, c.rank) && needs_copies(c, peer)) {
            const epw_rank_set missing = c.active - c.reachable;
            if (any(missing)) {
                put_packet(c, peer, lent_at(c, c.rank), lacks(first_of(missing)), c.tag);
                fence_before_counts();
            }
            put(kWhole, EPW_COLL_WRITTEN, ++r.written[kWhole][peer]);
        }
        return end_step();
    }
    __device__ __forceinline__ bool tell_taken() {
        await_step();
        if (is_peer() && needs_copies(c, peer)) {
            heed(c, peer);
            put(kWhole, EPW_COLL_TAKEN, ++taken);
        }
        return end_step();
    }

    __device__ __forceinline__ void run(const Share &share) {
        if (peer < c.ranks) taken = r.read[kWhole][peer];
        for_each_step(
            share, needs_copies(c, c.rank), [&](uint32_t) { return tell_made(); }, [&](uint32_t) { return tell_taken(); });
    }
};

// ---- all of it ----

// Waits until the peer has told that it has read `count` pieces or rounds that this block, or another one, has lent.
__device__ __forceinline__ void await_taken_by(Collective &c, Ring ring, uint32_t peer, uint32_t block, uint64_t count) {
    const uint64_t offset = epw_coll_count(&c.args.at, ring, peer, block, EPW_COLL_TAKEN);
    await_peer(c, peer, count_word(c, count), [&] { return has_count(c, count_at(c, offset), count); });
}
__device__ __forceinline__ void await_taken(Collective &c, Ring ring, uint32_t peer, uint64_t count) {
    await_taken_by(c, ring, peer, blockIdx.x, count);
}

// Waits until the peers have finished reading, or are given up, and notes what they and this rank have read.
__device__ __forceinline__ void await_readers(Collective &c, Rings &r, uint32_t rounds) {
    for (uint32_t peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) {
        if (peer == c.rank) continue;
        if (reads(c, peer, c.rank)) await_taken(c, kRaw, peer, r.written[kRaw][peer] += rounds);
        if (!needs_copies(c, c.rank) || !needs_copies(c, peer)) continue;
        r.read[kWhole][peer] += rounds;
        await_taken(c, kWhole, peer, r.written[kWhole][peer]);
    }
}

template <typename T> __device__ __forceinline__ void run_direct(Collective &c, Rings &r, DirectMemory &m, Lent &l) {
    init_direct(l);
    settle_lent(c, l);
    tell_call(c);
    learn_what_is_lent(c, l);
    if (__syncthreads_or(c.stopped)) return;
    if (!l.by_all) {
        run_rings<T>(c, r);
        return;
    }
    // Readers: all threads, after the barrier of load_progress().
    if (threadIdx.x == kBringer && each_folds_all(c, l)) c.args.shared_out = 0;
    load_progress(c, r);
    const Share share(is_shared_out(c) ? c.part : c.args.bytes);
    if (threadIdx.x == kBringer) {
        Bringer{c, r, l, m}.run(share, !std::is_void_v<T>);
    } else if (threadIdx.x >= kTeller) {
        Teller{c, r, l, threadIdx.x - kTeller}.run(share);
    } else if (threadIdx.x < kLentFolders) {
        fold_items<T>(c, l, m);
    }
    __syncthreads();
    if (!l.ended) await_readers(c, r, share.rounds);
    store_progress(c, r);
    withdraw(c);
}

} // namespace epw
