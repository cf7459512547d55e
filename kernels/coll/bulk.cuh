// Operations by rings on memory that is aligned to 16 bytes. They use the same rings, pieces and counts as large.cuh, so a peer
// may run that instead. Here bytes that are only moved pass through shared memory in bulk copies. One thread issues the copies of
// a team, several chunks at a time, so that neither the link nor this GPU's memory idles between rounds. All other warps fold:
// they load the pieces of all ranks and store the result to its destinations themselves.
//
// A piece is due once its chunks are through, and a separate warp then tells the peers: a thread that releases what it has
// written waits until all its writes in flight have landed, and the threads that keep bytes moving must not wait for that. Before
// a thread waits for a peer, it completes all chunks that it has begun, so that no rank waits for data that another waiting rank
// holds back.
#pragma once

#include "kernels/coll/large.cuh"
#include "kernels/ptx/bulk.cuh"

namespace epw {

constexpr uint32_t kBulkRanks = EPW_COLL_BULK_RANKS;
constexpr uint32_t kSender = 0, kTaker = 32, kKeeper = 64, kFirstTeller = 96; // one warp each, of which a single thread works,
                                                                              // except the tellers' warp
constexpr uint32_t kFolders = 384, kFirstFolder = 128, kBulkThreads = kFirstFolder + kFolders;
constexpr uint32_t kMovers = 3;
constexpr uint32_t kChunkBytes = 8192;           // of the chunks that are moved
constexpr uint32_t kStages = 8, kLoadsAhead = 3; // chunks in shared memory; loads issued before the first chunk is stored
constexpr uint32_t kStoresAhead = 4;             // stores in flight before the oldest is awaited
static_assert(kLoadsAhead + kStoresAhead < kStages, "a stage that is loaded has been stored");

// What a peer is told: how many pieces of a ring are written for it, and how many of its pieces are taken.
enum Due : uint32_t { kWritten = 0, kTaken = kRings, kDues = 2 * kRings };
static_assert(kDues * kBulkRanks == 32, "one for each lane of a warp");

// A chunk in flight, and what to do when it is through.
struct Chunk {
    unsigned char *to;
    uint64_t count; // the count that is then due to the peer
    uint32_t bytes; // moved by bulk copies
    uint32_t peer;  // the peer, or kNobody
};
constexpr uint32_t kNobody = ~0u;

struct BulkMemory {
    unsigned char moved[kMovers][kStages][kChunkBytes];
};

// Where each rank's bytes of a piece are that is folded, and where its copy of the result goes. Written by the thread that waits
// for that rank, read by the team of the fold, between two of its barriers.
struct FoldPlaces {
    const unsigned char *from[kBulkRanks]; // nullptr: not part of the result
    unsigned char *to[kBulkRanks];         // nullptr: gets no copy
};

// Shared memory besides BulkMemory, with which threads signal each other.
struct BulkTeams {
    uint64_t moved[kMovers][kStages]; // barriers: a chunk is loaded
    Chunk chunks[kMovers][kStages];
    FoldPlaces places;
    uint64_t due[kDues][kBulkRanks];
    uint32_t movers; // threads and teams that may still make something due
};

__device__ __forceinline__ void init_bulk(BulkTeams &t) {
    if (threadIdx.x != 0) return;
    t.movers = 3; // the sender, the taker, and the keeper or the team of the fold
    for (uint32_t i = 0; i < kMovers * kStages; i++) ptx::barrier_init(&t.moved[0][0] + i, 1);
    ptx::fence_barrier_init();
}

// ---- telling ----

// Writer: this thread, of the data before its count. Reader: the tellers.
__device__ __forceinline__ void make_due(BulkTeams &t, uint32_t due, uint32_t peer, uint64_t count) {
    __threadfence_block();
    *static_cast<volatile uint64_t *>(&t.due[due][peer]) = count;
}
__device__ __forceinline__ void end_mover(BulkTeams &t) {
    __threadfence_block();
    atomicSub(&t.movers, 1u);
}

// Starts with nothing due. Called by the whole block.
__device__ __forceinline__ void begin_telling(const Collective &c, const Rings &r, BulkTeams &t) {
    for (uint32_t i = threadIdx.x; i < kRings * kBulkRanks; i += blockDim.x) {
        const uint32_t ring = i / kBulkRanks, peer = i % kBulkRanks;
        t.due[kWritten + ring][peer] = peer < c.ranks ? r.written[ring][peer] : 0;
        t.due[kTaken + ring][peer] = peer < c.ranks ? r.read[ring][peer] : 0;
    }
    __syncthreads();
}

// Tells peers what is due, until nothing can become due any more. Called by one warp; each lane handles one count of one peer.
__device__ __forceinline__ void tell_what_is_due(Collective &c, BulkTeams &t) {
    const uint32_t lane = threadIdx.x % 32, due = lane / kBulkRanks, peer = lane % kBulkRanks;
    const auto *own = static_cast<const volatile uint64_t *>(&t.due[due][peer]);
    uint64_t told = *own;
#pragma unroll 1
    for (;;) {
        const bool last = *static_cast<volatile uint32_t *>(&t.movers) == 0;
        __threadfence_block(); // orders the load of the count after that of `movers`
        const uint64_t count = *own;
        const bool news = count != told;
        if (!__any_sync(0xffffffffu, news)) {
            if (__all_sync(0xffffffffu, last)) return;
            continue;
        }
        if (news && takes_part(c, peer)) {
            const Ring ring = Ring(due % kRings);
            if (due < kTaken) {
                tell_written(c, ring, peer, count);
            } else {
                tell_taken(c, ring, peer, count);
            }
        }
        told = count;
    }
}

// Bounded: the loads have been issued.
__device__ __forceinline__ void await_barrier(uint64_t *barrier, uint32_t parity) {
    while (!ptx::barrier_try_wait(barrier, parity)) {
    }
}

__device__ __forceinline__ void copy_tail(unsigned char *to, const unsigned char *from, uint32_t bytes) {
#pragma unroll 1
    for (uint32_t i = 0; i < bytes; i++) to[i] = from[i];
}

// ---- moving, by one thread ----

// Polls for about as long as bytes in flight take: until then no thread need stop for a missing count.
template <typename Come> __device__ __forceinline__ bool comes_soon(const Come &come) {
    constexpr uint32_t kLooks = 8;
#pragma unroll 1
    for (uint32_t i = 0; i < kLooks; i++) {
        if (come()) return true;
    }
    return false;
}

// Moves chunks in order: they are begun, stored and ended one after the other. `Tell` makes the count of a chunk due: when the
// chunk is stored or, with kWhenRead, when it has been read from this rank's window.
template <bool kWhenRead, typename Tell> struct Pipe {
    unsigned char (*memory)[kChunkBytes];
    uint64_t *loaded;
    Chunk *chunks;
    const Tell &tell;
    uint32_t begun = 0, stored = 0, ended = 0; // chunks
    uint32_t parities = 0;                     // of the stages' barriers, one bit each

    __device__ __forceinline__ Pipe(unsigned char (*memory)[kChunkBytes], BulkTeams &t, uint32_t team, const Tell &tell)
        : memory(memory), loaded(t.moved[team]), chunks(t.chunks[team]), tell(tell) {}

    __device__ __forceinline__ void say(const Chunk &chunk) const {
        if (chunk.peer != kNobody) tell(chunk.peer, chunk.count);
    }
    // Issues the store of the next chunk.
    __device__ __forceinline__ void store_next() {
        const uint32_t s = stored++ % kStages;
        const Chunk &chunk = chunks[s];
        if (chunk.bytes != 0) {
            await_barrier(&loaded[s], parities >> s & 1);
            parities ^= 1u << s;
            ptx::bulk_store(chunk.to, memory[s], chunk.bytes);
        }
        ptx::bulk_commit();
        if (kWhenRead) say(chunk);
    }
    // Ends chunks, whose stores are through, until `count` have ended.
    __device__ __forceinline__ void end_until(uint32_t count) {
        for (; ended < count; ended++) {
            if (!kWhenRead) say(chunks[ended % kStages]);
        }
    }
    // Stores the next chunk. At most kStoresAhead stores are in flight then, which leaves stages for kLoadsAhead loads.
    __device__ __forceinline__ void pass_next() {
        store_next();
        if (stored - ended <= kStoresAhead) return;
        ptx::bulk_wait<kStoresAhead>();
        end_until(stored - kStoresAhead);
    }
    // Issues the stores of all chunks begun. Chunks that only needed to be read are then finished.
    __device__ __forceinline__ void flush() {
        while (stored < begun) pass_next();
    }
    // Completes all chunks begun.
    __device__ __forceinline__ void drain() {
        flush();
        ptx::bulk_wait_all();
        end_until(stored);
    }
    // Adds a chunk of up to kChunkBytes. What was in its stage before has been stored.
    __device__ __forceinline__ void add(unsigned char *to, const unsigned char *from, uint32_t bytes, uint32_t peer,
                                        uint64_t count) {
        while (begun - stored >= kLoadsAhead) pass_next();
        const uint32_t s = begun++ % kStages, whole = bytes / 16 * 16;
        chunks[s] = {to, count, whole, peer};
        if (whole != 0) {
            ptx::barrier_expect(&loaded[s], whole);
            ptx::bulk_load(memory[s], from, whole, &loaded[s]);
        }
        copy_tail(to + whole, from + whole, bytes - whole);
    }
    // Adds a piece; the count is due with its last chunk.
    __device__ __forceinline__ void add_piece(unsigned char *to, const unsigned char *from, uint32_t bytes, uint32_t peer,
                                              uint64_t count) {
#pragma unroll 1
        for (uint32_t at = 0; at < bytes; at += kChunkBytes) {
            const uint32_t part = min(kChunkBytes, bytes - at);
            add(to + at, from + at, part, at + part == bytes ? peer : kNobody, count);
        }
    }
};

__device__ __forceinline__ void send_by_bulk(Collective &c, Rings &r, BulkMemory &m, BulkTeams &t, Ring ring,
                                             uint64_t rounds_end) {
    auto tell = [&](uint32_t peer, uint64_t count) { make_due(t, kWritten + ring, peer, count); };
    Pipe<false, decltype(tell)> pipe(m.moved[0], t, 0, tell);
#pragma unroll 1
    for (uint64_t j = blockIdx.x; j < rounds_end && !c.stopped; j += gridDim.x) {
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t peer = peer_after(c, d), bytes = given_piece(c, peer, j);
            if (bytes == 0) continue;
            if (!has_room(c, r, ring, peer)) {
                pipe.flush();
                if (!comes_soon([&] { return has_room(c, r, ring, peer); })) pipe.drain();
                await_room(c, r, ring, peer);
                if (c.stopped) break;
                if (!takes_part(c, peer)) continue;
            }
            unsigned char *to = at(c, peer, slot_of(c, ring, c.rank, r.written[ring][peer]));
            pipe.add_piece(to, given_to(c, peer).at + j * c.args->pieces, bytes, peer, ++r.written[ring][peer]);
        }
    }
    pipe.drain();
}

__device__ __forceinline__ void take_by_bulk(Collective &c, Rings &r, BulkMemory &m, BulkTeams &t, uint64_t rounds_end) {
    const bool noted = is_shared_out(c);
    auto tell = [&](uint32_t source, uint64_t count) { make_due(t, kTaken + kWhole, source, count); };
    Pipe<true, decltype(tell)> pipe(m.moved[1], t, 1, tell);
#pragma unroll 1
    for (uint64_t j = blockIdx.x; j < rounds_end && !c.stopped; j += gridDim.x) {
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t source = peer_after(c, d), bytes = taken_piece(c, source, j);
            if (bytes == 0) continue;
            if (!has_piece(c, r, kWhole, source)) {
                pipe.flush();
                await_piece(c, r, kWhole, source);
                if (c.stopped) break;
                if (!takes_part(c, source)) continue;
            }
            if (noted) heed_note(c, r, source);
            ptx::fence_global_before_bulk();
            const unsigned char *from = c.own + slot_of(c, kWhole, source, r.read[kWhole][source]);
            pipe.add_piece(taken_from(c, source).at + j * c.args->pieces, from, bytes, source, ++r.read[kWhole][source]);
        }
    }
    pipe.drain();
}

// Copies what this rank gives itself, for operations that only move bytes.
__device__ __forceinline__ void give_itself_by_bulk(const Collective &c, BulkMemory &m, BulkTeams &t) {
    const Folding own = given_to_itself(c);
    auto tell = [](uint32_t, uint64_t) {};
    Pipe<true, decltype(tell)> pipe(m.moved[2], t, 2, tell);
#pragma unroll 1
    for (uint64_t j = blockIdx.x;; j += gridDim.x) {
        const uint32_t bytes = piece_bytes(c, own.bytes, j);
        if (bytes == 0) break;
        pipe.add_piece(own.out + j * c.args->pieces, own.own + j * c.args->pieces, bytes, kNobody, 0);
    }
    pipe.drain();
}

// ---- folding ----

// Finds the places of the next piece, once it has arrived from this thread's rank and has room there.
__device__ __forceinline__ void find_places(Collective &c, const Rings &r, FoldPlaces &p, const unsigned char *own, uint32_t rank,
                                            bool spreads) {
    p.from[rank] = rank == c.rank ? own : nullptr;
    p.to[rank] = nullptr;
    if (rank == c.rank || !takes_part(c, rank)) return;
    await_piece(c, r, kRaw, rank);
    if (spreads && takes_part(c, rank)) await_room(c, r, kWhole, rank);
    if (!takes_part(c, rank)) return;
    p.from[rank] = c.own + slot_of(c, kRaw, rank, r.read[kRaw][rank]);
    if (spreads) p.to[rank] = at(c, rank, slot_of(c, kWhole, c.rank, r.written[kWhole][rank]));
}

// Folds up to kCells cells of 16 bytes, `step` bytes apart, from byte `first` on. The cells of a rank are loaded while those of
// the rank before are folded.
template <typename T, uint32_t kCells>
__device__ __forceinline__ void fold_placed(const FoldPlaces &p, unsigned char *out, uint32_t first, uint32_t step, uint32_t ranks,
                                            uint32_t op, uint32_t members) {
    auto next_of = [&](uint32_t rank) {
        while (rank < ranks && p.from[rank] == nullptr) rank++;
        return rank;
    };
    auto load = [&](uint4(&v)[kCells], uint32_t rank) {
        const unsigned char *from = p.from[rank] + first;
#pragma unroll
        for (uint32_t k = 0; k < kCells; k++) v[k] = ptx::load_relaxed_gpu_once(from + k * step);
    };
    Word<T> low[kCells], high[kCells];
    uint4 now[kCells], next[kCells];
    auto each = [&](auto &&change) {
#pragma unroll
        for (uint32_t k = 0; k < kCells; k++) {
            change(low[k], uint64_t(now[k].y) << 32 | now[k].x);
            change(high[k], uint64_t(now[k].w) << 32 | now[k].z);
        }
    };
    uint32_t rank = next_of(0), following = next_of(rank + 1);
    load(now, rank);
    if (following < ranks) load(next, following);
    each([](Word<T> &sum, uint64_t word) { sum.begin(word); });
#pragma unroll 1
    for (rank = following; rank < ranks; rank = following) {
#pragma unroll
        for (uint32_t k = 0; k < kCells; k++) now[k] = next[k];
        following = next_of(rank + 1);
        if (following < ranks) load(next, following);
        each([&](Word<T> &sum, uint64_t word) { sum.fold(word, op); });
    }
#pragma unroll
    for (uint32_t k = 0; k < kCells; k++) {
        const uint64_t l = low[k].end(op, members), h = high[k].end(op, members);
        now[k] = {uint32_t(l), uint32_t(l >> 32), uint32_t(h), uint32_t(h >> 32)};
        ptx::store(out + first + k * step, now[k]);
    }
#pragma unroll 1
    for (rank = 0; rank < ranks; rank++) {
        unsigned char *to = p.to[rank];
        if (to == nullptr) continue;
#pragma unroll
        for (uint32_t k = 0; k < kCells; k++) ptx::store(to + first + k * step, now[k]);
    }
}

// Folds the last bytes of a message, fewer than 16. Called by one thread.
template <typename T>
__device__ __noinline__ void fold_tail(const FoldPlaces &p, unsigned char *out, uint32_t first, uint32_t bytes, uint32_t ranks,
                                       uint32_t op, uint32_t members) {
    Word<T> low, high;
    bool begun = false;
#pragma unroll 1
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (p.from[rank] == nullptr) continue;
        const uint4 v = read_slowly<uint4>(p.from[rank] + first, bytes);
        const uint64_t l = uint64_t(v.y) << 32 | v.x, h = uint64_t(v.w) << 32 | v.z;
        if (begun) {
            low.fold(l, op);
            high.fold(h, op);
        } else {
            low.begin(l);
            high.begin(h);
        }
        begun = true;
    }
    const uint64_t l = low.end(op, members), h = high.end(op, members);
    const uint4 sum = {uint32_t(l), uint32_t(l >> 32), uint32_t(h), uint32_t(h >> 32)};
    write_slowly<uint4>(out + first, sum, bytes);
#pragma unroll 1
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (p.to[rank] != nullptr) write_slowly<uint4>(p.to[rank] + first, sum, bytes);
    }
}

template <typename T>
__device__ __forceinline__ void fold_placed_piece(const Collective &c, const FoldPlaces &p, unsigned char *out, uint32_t bytes,
                                                  Team team) {
    constexpr uint32_t kCells = AtOnce<T>::kCells;
    const uint32_t ranks = c.ranks, op = c.args->op, members = c.members, whole = bytes / 16 * 16, step = 16 * team.threads;
    uint32_t at = 16 * team.thread();
#pragma unroll 1
    for (; at + (kCells - 1) * step < whole; at += kCells * step) fold_placed<T, kCells>(p, out, at, step, ranks, op, members);
#pragma unroll 1
    for (; at < whole; at += step) fold_placed<T, 1>(p, out, at, step, ranks, op, members);
    if (whole < bytes && team.thread() == 0) fold_tail<T>(p, out, whole, bytes - whole, ranks, op, members);
}

// Folds the pieces that arrive from all members, with the threads of the team.
template <typename T>
__device__ __forceinline__ void fold_by_team(Collective &c, Rings &r, BulkTeams &t, Team team, bool spreads) {
    const Folding f = folded_here(c);
    const uint32_t rank = team.thread();
#pragma unroll 1
    for (uint64_t j = blockIdx.x;; j += gridDim.x) {
        const uint64_t offset = j * c.args->pieces;
        const uint32_t bytes = piece_bytes(c, f.bytes, j);
        if (bytes == 0) return;
        if (rank < c.ranks) find_places(c, r, t.places, f.own + offset, rank, spreads);
        if (team.meet_any(c.stopped)) return;
        if (c.members > 1) {
            fold_placed_piece<T>(c, t.places, f.out + offset, bytes, team);
        } else if (f.out != f.own) {
            copy(f.out + offset, f.own + offset, bytes, team.thread(), team.threads);
        }
        team.meet();
        if (rank >= c.ranks || rank == c.rank || !takes_part(c, rank)) continue;
        make_due(t, kTaken + kRaw, rank, ++r.read[kRaw][rank]);
        if (!spreads) continue;
        put_note(c, rank, r.written[kWhole][rank]);
        make_due(t, kWritten + kWhole, rank, ++r.written[kWhole][rank]);
    }
}

// ---- all of it ----

template <typename T> __device__ __forceinline__ void run_bulk(Collective &c, Rings &r, BulkMemory &m, BulkTeams &t) {
    constexpr bool kFolds = !std::is_void_v<T>;
    tell_call(c);
    init_bulk(t);
    load_progress(c, r);
    begin_telling(c, r, t);
    const bool spreads = is_shared_out(c);
    const uint64_t flow = spreads ? longest_piece(c) : c.args->bytes;
    const uint64_t rounds_end = (flow + c.args->pieces - 1) / c.args->pieces;
    if (threadIdx.x == kSender) {
        send_by_bulk(c, r, m, t, kFolds ? kRaw : kWhole, rounds_end);
        end_mover(t);
    } else if (threadIdx.x == kTaker) {
        if (!kFolds || spreads) take_by_bulk(c, r, m, t, rounds_end);
        end_mover(t);
    } else if (!kFolds && threadIdx.x == kKeeper) {
        give_itself_by_bulk(c, m, t);
        end_mover(t);
    } else if (threadIdx.x >= kFirstTeller && threadIdx.x < kFirstFolder) {
        tell_what_is_due(c, t);
    } else if (kFolds && threadIdx.x >= kFirstFolder) {
        const Team team = {1, kFirstFolder, kFolders};
        if constexpr (kFolds) fold_by_team<T>(c, r, t, team, spreads);
        team.meet();
        if (team.thread() == 0) end_mover(t);
    }
    store_progress(c, r);
    await_calls(c);
}

} // namespace epw
