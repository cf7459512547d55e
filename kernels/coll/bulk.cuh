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
// The warps of a block: one thread of the first sends, and one of the second takes. The third tells. The fourth is the foreman of
// the others, which fold; one of its threads also copies what this rank gives itself.
constexpr uint32_t kSender = 0, kTaker = 32, kFirstTeller = 64, kForeman = 96, kFirstFolder = 128;
constexpr uint32_t kFolders = 512, kBulkThreads = kFirstFolder + kFolders;
constexpr uint32_t kFoldsAhead = 4; // pieces that are being folded, or are waiting for that
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

// A piece to fold: where the bytes of each rank are, and where copies of the result go. Writer: the foreman. Readers: the folding
// warps, through the barrier `ready`.
struct FoldPiece {
    const unsigned char *from[kBulkRanks]; // in ascending order of ranks, `sources` of them
    unsigned char *to[kBulkRanks];         // `copies` of them
    unsigned char *out;
    uint32_t sources, copies, bytes; // 0 bytes: there are no more pieces
};

// Shared memory besides BulkMemory, with which threads signal each other.
struct BulkTeams {
    uint64_t moved[kMovers][kStages]; // barriers: a chunk is loaded
    Chunk chunks[kMovers][kStages];
    FoldPiece pieces[kFoldsAhead];
    uint64_t ready[kFoldsAhead], folded[kFoldsAhead]; // barriers: a piece can be folded; it is
    uint64_t due[kDues][kBulkRanks];
    uint32_t movers; // threads and teams that may still make something due
};

__device__ __forceinline__ void init_bulk(BulkTeams &t) {
    if (threadIdx.x != 0) return;
    t.movers = 3; // the sender, the taker, the foreman
    for (uint32_t i = 0; i < kMovers * kStages; i++) ptx::barrier_init(&t.moved[0][0] + i, 1);
    for (uint32_t i = 0; i < kFoldsAhead; i++) {
        ptx::barrier_init(&t.ready[i], 32);
        ptx::barrier_init(&t.folded[i], kFolders);
    }
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
    uint64_t told = *own, *to = nullptr;
    if (peer < c.ranks) {
        const auto which = due < kTaken ? EPW_COLL_WRITTEN : EPW_COLL_TAKEN;
        to = reinterpret_cast<uint64_t *>(at(c, peer, epw_coll_count(&c.args.at, due % kRings, c.rank, blockIdx.x, which)));
    }
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
        // Writer: the threads that have made the counts due. Readers: the peers' await_room and await_piece.
        fence_before_counts();
        if (news && takes_part(c, peer)) put_count(to, count_word(c, count));
        told = count;
    }
}

// Bounded: the loads have been issued, the pieces are being folded, or the foreman, whose waits are bounded, will say so.
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
            ptx::fence_global_before_bulk(); // the slot was granted by generic loads
            unsigned char *to = at(c, peer, slot_of(c, ring, c.rank, r.written[ring][peer]));
            pipe.add_piece(to, given_to(c, peer).at + j * c.args.pieces, bytes, peer, ++r.written[ring][peer]);
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
            pipe.add_piece(taken_from(c, source).at + j * c.args.pieces, from, bytes, source, ++r.read[kWhole][source]);
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
        pipe.add_piece(own.out + j * c.args.pieces, own.own + j * c.args.pieces, bytes, kNobody, 0);
    }
    pipe.drain();
}

// ---- folding ----

// The cells of one source: kCells, `step` bytes apart.
template <uint32_t kCells> struct Cells {
    uint4 v[kCells];

    __device__ __forceinline__ void load(const unsigned char *from, uint32_t step) {
#pragma unroll
        for (uint32_t k = 0; k < kCells; k++) v[k] = ptx::load_relaxed_gpu_once(from + k * step);
    }
    __device__ __forceinline__ void store(unsigned char *to, uint32_t step) const {
#pragma unroll
        for (uint32_t k = 0; k < kCells; k++) ptx::store(to + k * step, v[k]);
    }
    __device__ __forceinline__ uint64_t low(uint32_t k) const { return uint64_t(v[k].y) << 32 | v[k].x; }
    __device__ __forceinline__ uint64_t high(uint32_t k) const { return uint64_t(v[k].w) << 32 | v[k].z; }
};

// Folds the cells of all other sources, two at a time, into those of the first.
template <typename T, bool kSums, uint32_t kCells>
__device__ __forceinline__ void fold_others(const FoldPiece &p, Cells<kCells> &one, uint32_t first, uint32_t step, uint32_t op,
                                            uint32_t members) {
    Word<T> low[kCells], high[kCells];
    Cells<kCells> other;
    auto fold = [&](const Cells<kCells> &cells) {
#pragma unroll
        for (uint32_t k = 0; k < kCells; k++) {
            low[k].template fold<kSums>(cells.low(k), op);
            high[k].template fold<kSums>(cells.high(k), op);
        }
    };
    const uint32_t sources = p.sources;
    other.load(p.from[1] + first, step);
#pragma unroll
    for (uint32_t k = 0; k < kCells; k++) {
        low[k].begin(one.low(k));
        high[k].begin(one.high(k));
    }
    fold(other);
#pragma unroll 1
    for (uint32_t i = 2; i < sources; i += 2) {
        one.load(p.from[i] + first, step);
        if (i + 1 < sources) other.load(p.from[i + 1] + first, step);
        fold(one);
        if (i + 1 < sources) fold(other);
    }
#pragma unroll
    for (uint32_t k = 0; k < kCells; k++) {
        const uint64_t l = low[k].template end<kSums>(op, members), h = high[k].template end<kSums>(op, members);
        one.v[k] = {uint32_t(l), uint32_t(l >> 32), uint32_t(h), uint32_t(h >> 32)};
    }
}

// Folds kCells cells of 16 bytes, `step` bytes apart, from byte `first` on. What one rank alone gives is passed on as it is.
template <typename T, bool kSums, uint32_t kCells>
__device__ __forceinline__ void fold_cells(const FoldPiece &p, uint32_t first, uint32_t step, uint32_t op, uint32_t members) {
    Cells<kCells> one;
    one.load(p.from[0] + first, step);
    if constexpr (!std::is_void_v<T>) {
        if (p.sources > 1) fold_others<T, kSums, kCells>(p, one, first, step, op, members);
    }
    one.store(p.out + first, step);
#pragma unroll 1
    for (uint32_t i = 0; i < p.copies; i++) one.store(p.to[i] + first, step);
}

// Folds the last bytes of a message, fewer than 16. Called by one thread.
template <typename T>
__device__ __noinline__ void fold_tail(const FoldPiece &p, uint32_t first, uint32_t bytes, uint32_t op, uint32_t members) {
    uint4 result = read_slowly<uint4>(p.from[0] + first, bytes);
    if constexpr (!std::is_void_v<T>) {
        if (p.sources > 1) {
            Word<T> low, high;
            low.begin(uint64_t(result.y) << 32 | result.x);
            high.begin(uint64_t(result.w) << 32 | result.z);
#pragma unroll 1
            for (uint32_t i = 1; i < p.sources; i++) {
                const uint4 v = read_slowly<uint4>(p.from[i] + first, bytes);
                low.fold(uint64_t(v.y) << 32 | v.x, op);
                high.fold(uint64_t(v.w) << 32 | v.z, op);
            }
            const uint64_t l = low.end(op, members), h = high.end(op, members);
            result = {uint32_t(l), uint32_t(l >> 32), uint32_t(h), uint32_t(h >> 32)};
        }
    }
    write_slowly<uint4>(p.out + first, result, bytes);
#pragma unroll 1
    for (uint32_t i = 0; i < p.copies; i++) write_slowly<uint4>(p.to[i] + first, result, bytes);
}

template <typename T>
__device__ __forceinline__ void fold_piece_brought(const Collective &c, const FoldPiece &p, uint32_t thread) {
    constexpr uint32_t kCells = AtOnce<T>::kCells, kStep = 16 * kFolders;
    const uint32_t op = c.args.op, members = c.members, whole = p.bytes / 16 * 16;
    uint32_t at = 16 * thread;
    if (std::is_void_v<T> || op == EPW_SUM) {
#pragma unroll 1
        for (; at + (kCells - 1) * kStep < whole; at += kCells * kStep) fold_cells<T, true, kCells>(p, at, kStep, op, members);
#pragma unroll 1
        for (; at < whole; at += kStep) fold_cells<T, true, 1>(p, at, kStep, op, members);
    } else {
#pragma unroll 1
        for (; at < whole; at += kStep) fold_cells<T, false, 1>(p, at, kStep, op, members);
    }
    if (whole < p.bytes && thread == 0) fold_tail<T>(p, whole, p.bytes - whole, op, members);
}

// Folds the pieces that the foreman brings. Called by each folding warp; no warp waits for another.
template <typename T> __device__ __forceinline__ void fold_pieces_brought(const Collective &c, BulkTeams &t) {
    const uint32_t thread = threadIdx.x - kFirstFolder;
#pragma unroll 1
    for (uint32_t n = 0;; n++) {
        const uint32_t s = n % kFoldsAhead;
        await_barrier(&t.ready[s], n / kFoldsAhead & 1);
        const FoldPiece &p = t.pieces[s];
        if (p.bytes == 0) return;
        if (p.sources > 0) fold_piece_brought<T>(c, p, thread);
        ptx::barrier_arrive(&t.folded[s]);
    }
}

// Brings pieces to the folding warps as they arrive, and makes due what has been folded. Run by one warp; lane i looks after
// rank i.
struct Foreman {
    Collective &c;
    Rings &r; // counts pieces that are folded
    BulkTeams &t;
    uint32_t lane, brought = 0, folded = 0; // pieces

    __device__ __forceinline__ bool gives() const { return lane < c.ranks && lane != c.rank && contributes(c, lane); }
    __device__ __forceinline__ bool gets() const { return lane < c.ranks && lane != c.rank && needs_copies(c, lane); }
    // Whether what the rank gives to the next piece has arrived, and there is room for its copy of the result.
    __device__ __forceinline__ uint64_t arrived() const { return r.read[kRaw][lane] + (brought - folded); }
    __device__ __forceinline__ uint64_t copied() const { return r.written[kWhole][lane] + (brought - folded); }
    __device__ __forceinline__ bool has_next() const {
        return (!gives() || has_written(c, kRaw, lane, arrived() + 1)) && (!gets() || has_place(c, kWhole, lane, copied()));
    }
    __device__ __forceinline__ void await_next() const {
        if (gives()) await_written(c, kRaw, lane, arrived() + 1);
        if (gets()) await_place(c, kWhole, lane, copied());
    }
    // Waits until the oldest piece is folded. What then has become due is told by the telling warp.
    __device__ __forceinline__ void end_oldest() {
        await_barrier(&t.folded[folded % kFoldsAhead], folded / kFoldsAhead & 1);
        folded++;
        if (gives()) make_due(t, kTaken + kRaw, lane, ++r.read[kRaw][lane]);
        if (!gets()) return;
        put_note(c, lane, r.written[kWhole][lane]);
        make_due(t, kWritten + kWhole, lane, ++r.written[kWhole][lane]);
    }
    // Waits for the next piece of all ranks. While the warp has to wait, pieces that are folded must become due first, so that no
    // rank waits for data that another waiting rank holds back. Returns false if the operation stops.
    __device__ __forceinline__ bool await_all() {
#pragma unroll 1
        while (!__all_sync(0xffffffffu, has_next())) {
            if (folded < brought) {
                end_oldest();
            } else {
                await_next();
                __syncwarp();
                break;
            }
        }
        return !__any_sync(0xffffffffu, c.stopped);
    }
    __device__ __forceinline__ void bring(const unsigned char *own, unsigned char *out, uint32_t bytes) {
        FoldPiece &p = t.pieces[brought % kFoldsAhead];
        const uint32_t below = (1u << lane) - 1, copies = __ballot_sync(0xffffffffu, gets());
        const uint32_t sources = __ballot_sync(0xffffffffu, gives() || (lane == c.rank && contributes(c, lane)));
        if (sources >> lane & 1) {
            p.from[__popc(sources & below)] = lane == c.rank ? own : c.own + slot_of(c, kRaw, lane, arrived());
        }
        if (copies >> lane & 1) p.to[__popc(copies & below)] = at(c, lane, slot_of(c, kWhole, c.rank, copied()));
        if (lane == 0) {
            p.out = out;
            p.sources = __popc(sources);
            p.copies = __popc(copies);
            p.bytes = bytes;
        }
        ptx::barrier_arrive(&t.ready[brought % kFoldsAhead]);
        brought++;
    }
    __device__ __forceinline__ void run() {
        const Folding f = folded_here(c);
#pragma unroll 1
        for (uint64_t j = blockIdx.x;; j += gridDim.x) {
            const uint64_t offset = j * c.args.pieces;
            const uint32_t bytes = piece_bytes(c, f.bytes, j);
            if (bytes == 0 || !await_all()) break;
            if (brought - folded == kFoldsAhead) end_oldest();
            bring(f.own + offset, f.out + offset, bytes);
        }
#pragma unroll 1
        while (folded < brought) end_oldest();
        bring(nullptr, nullptr, 0);
    }
};

// ---- all of it ----

template <typename T> __device__ __forceinline__ void run_bulk(Collective &c, Rings &r, BulkMemory &m, BulkTeams &t) {
    tell_call(c);
    init_bulk(t);
    load_progress(c, r);
    begin_telling(c, r, t);
    const bool spreads = is_shared_out(c), folds = !std::is_void_v<T> || spreads;
    const uint64_t flow = spreads ? c.part : c.args.bytes;
    const uint64_t rounds_end = (flow + c.args.pieces - 1) / c.args.pieces;
    if (threadIdx.x == kSender) {
        send_by_bulk(c, r, m, t, folds ? kRaw : kWhole, rounds_end);
        end_mover(t);
    } else if (threadIdx.x == kTaker) {
        if (!folds || spreads) take_by_bulk(c, r, m, t, rounds_end);
        end_mover(t);
    } else if (threadIdx.x >= kFirstTeller && threadIdx.x < kForeman) {
        tell_what_is_due(c, t);
    } else if (threadIdx.x >= kForeman && threadIdx.x < kFirstFolder) {
        if (folds) Foreman{c, r, t, threadIdx.x % 32}.run();
        __syncwarp();
        if (threadIdx.x == kForeman) {
            give_itself_by_bulk(c, m, t);
            end_mover(t);
        }
    } else if (folds && threadIdx.x >= kFirstFolder) {
        fold_pieces_brought<T>(c, t);
    }
    store_progress(c, r);
    await_calls(c);
}

} // namespace epw
