// Operations by rings on memory that is aligned to 16 bytes. They use the same rings, pieces and counts as large.cuh, so a peer
// may run that instead. Here bytes pass through shared memory in bulk copies. One thread issues the copies of a team, several
// chunks at a time, so that neither the link nor this GPU's memory idles between rounds. For a reduction one thread loads the
// chunks of all sources, eight warps fold them, and the same thread stores the result to its destinations.
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
constexpr uint32_t kSender = 0, kTaker = 32, kBringer = 64, kFirstTeller = 96; // one warp each, of which a single thread works,
                                                                               // except the tellers' warp
constexpr uint32_t kFolders = 256, kFirstFolder = 128, kBulkThreads = kFirstFolder + kFolders;
constexpr uint32_t kChunkBytes = 8192;                  // chunks that are only moved
constexpr uint32_t kStages = 8, kLoadsAhead = 3;        // chunks in shared memory; loads issued before the first chunk is stored
constexpr uint32_t kStoresAhead = 4;                    // stores in flight before the oldest is awaited
constexpr uint32_t kFoldStages = 5, kFoldBytes = 16384; // bytes of one stage, for all sources
constexpr uint32_t kFoldLoadsAhead = 3, kFoldStoresAhead = 1;
static_assert(kLoadsAhead + kStoresAhead < kStages, "a stage that is loaded has been stored");
static_assert(kFoldLoadsAhead + kFoldStoresAhead < kFoldStages, "the same");

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
    unsigned char moved[2][kStages][kChunkBytes];
    unsigned char folded[kFoldStages][kFoldBytes];
};

// Shared memory besides BulkMemory, with which threads signal each other.
struct BulkTeams {
    uint64_t moved[3][kStages];                       // barriers: a chunk is loaded
    uint64_t brought[kFoldStages], done[kFoldStages]; // barriers of a stage of the fold: the chunks of all sources are loaded;
                                                      // the stage is folded
    Chunk chunks[3][kStages];
    uint32_t bytes[kFoldStages], sources[kFoldStages]; // of a stage of the fold; 0 bytes: the previous stage was the last
    uint64_t due[kDues][kBulkRanks];
    uint32_t movers; // threads that may still make something due
};

__device__ __forceinline__ void init_bulk(BulkTeams &t) {
    if (threadIdx.x != 0) return;
    t.movers = 3;
    for (uint32_t i = 0; i < 3 * kStages; i++) ptx::barrier_init(&t.moved[0][0] + i, 1);
    for (uint32_t i = 0; i < kFoldStages; i++) {
        ptx::barrier_init(&t.brought[i], 1);
        ptx::barrier_init(&t.done[i], kFolders / 32);
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

// Bounded: the loads have been issued, or the folding threads have their data.
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

// The order of a pipe's chunks: they are begun, stored and ended one after the other. Of `Of`, store_next() issues the stores of
// the next chunk, and end_until(count) ends chunks whose stores are through, until `count` have ended.
template <typename Of, uint32_t kLoads, uint32_t kStores> struct PipeOrder {
    uint32_t begun = 0, stored = 0, ended = 0; // chunks

    __device__ __forceinline__ Of &of() { return static_cast<Of &>(*this); }
    // Stores the next chunk. At most kStores stores are in flight then, which leaves stages for kLoads loads.
    __device__ __forceinline__ void pass_next() {
        of().store_next();
        if (stored - ended <= kStores) return;
        ptx::bulk_wait<kStores>();
        of().end_until(stored - kStores);
    }
    // Issues the stores of all chunks begun. Chunks that only needed to be read are then finished.
    __device__ __forceinline__ void flush() {
        while (stored < begun) pass_next();
    }
    // Completes all chunks begun.
    __device__ __forceinline__ void drain() {
        flush();
        ptx::bulk_wait_all();
        of().end_until(stored);
    }
    // Returns the number of a chunk, which the caller loads. What was in its stage before has been stored.
    __device__ __forceinline__ uint32_t begin() {
        while (begun - stored >= kLoads) pass_next();
        return begun++;
    }
};

// Moves chunks in order. `Tell` makes the count of a chunk due: when the chunk is stored or, with kWhenRead, when it has been
// read from this rank's window.
template <bool kWhenRead, typename Tell> struct Pipe : PipeOrder<Pipe<kWhenRead, Tell>, kLoadsAhead, kStoresAhead> {
    using Order = PipeOrder<Pipe<kWhenRead, Tell>, kLoadsAhead, kStoresAhead>;
    using Order::stored, Order::ended, Order::begin;
    unsigned char (*memory)[kChunkBytes];
    uint64_t *loaded;
    Chunk *chunks;
    const Tell &tell;
    uint32_t parities = 0; // of the stages' barriers, one bit each

    __device__ __forceinline__ Pipe(unsigned char (*memory)[kChunkBytes], BulkTeams &t, uint32_t team, const Tell &tell)
        : memory(memory), loaded(t.moved[team]), chunks(t.chunks[team]), tell(tell) {}

    __device__ __forceinline__ void say(const Chunk &chunk) const {
        if (chunk.peer != kNobody) tell(chunk.peer, chunk.count);
    }
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
    __device__ __forceinline__ void end_until(uint32_t count) {
        for (; ended < count; ended++) {
            if (!kWhenRead) say(chunks[ended % kStages]);
        }
    }
    // Adds a chunk of up to kChunkBytes.
    __device__ __forceinline__ void add(unsigned char *to, const unsigned char *from, uint32_t bytes, uint32_t peer,
                                        uint64_t count) {
        const uint32_t s = begin() % kStages, whole = bytes / 16 * 16;
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

// Copies what this rank gives itself, for operations that only move bytes. Nothing is folded then, so the memory of the fold is
// free.
__device__ __forceinline__ void give_itself_by_bulk(const Collective &c, BulkMemory &m, BulkTeams &t) {
    static_assert(sizeof m.folded >= kStages * kChunkBytes, "the stages of a pipe");
    const Folding own = given_to_itself(c);
    auto tell = [](uint32_t, uint64_t) {};
    Pipe<true, decltype(tell)> pipe(reinterpret_cast<unsigned char(*)[kChunkBytes]>(m.folded), t, 2, tell);
#pragma unroll 1
    for (uint64_t j = blockIdx.x;; j += gridDim.x) {
        const uint32_t bytes = piece_bytes(c, own.bytes, j);
        if (bytes == 0) break;
        pipe.add_piece(own.out + j * c.args->pieces, own.own + j * c.args->pieces, bytes, kNobody, 0);
    }
    pipe.drain();
}

// ---- folding ----

// A chunk of all sources in the pipeline of the fold.
struct FoldChunk {
    uint64_t offset; // offset in the data folded here
    uint32_t piece;  // its piece's number among those that this block folds in this operation
    uint32_t within; // offset within the piece
    uint32_t last;   // 1: the last chunk of the piece
};

// Loads chunks for the folding warps, and stores their results. Run by one thread. The ring counters advance when the last chunk
// of a piece is loaded; what is due is counted by pieces, because chunks of several pieces are in flight.
struct FoldPipe : PipeOrder<FoldPipe, kFoldLoadsAhead, kFoldStoresAhead> {
    Collective &c;
    Rings &r;
    BulkMemory &m;
    BulkTeams &t;
    const Folding f;
    const bool spreads;
    const uint32_t chunk; // bytes, of each source
    uint32_t pieces = 0;  // pieces whose chunks have all been loaded
    FoldChunk chunks[kFoldStages];

    __device__ __forceinline__ unsigned char *at_stage(uint32_t s, uint32_t source) { return m.folded[s] + source * chunk; }
    // The number of a chunk's piece in a ring, whose counter was `now` after the last piece was loaded.
    __device__ __forceinline__ uint64_t number_of(const FoldChunk &chunk, uint64_t now) const {
        return now - (pieces - chunk.piece);
    }

    // Stores the oldest chunk's result to its destinations, including the tail that is no multiple of 16 bytes.
    __device__ __forceinline__ void store_next() {
        const uint32_t s = stored % kFoldStages, bytes = t.bytes[s], whole = bytes / 16 * 16;
        await_barrier(&t.done[s], stored / kFoldStages & 1);
        stored++;
        const FoldChunk &now = chunks[s];
        const unsigned char *result = at_stage(s, c.rank);
        unsigned char *out = f.out + now.offset;
        if (whole != 0) ptx::bulk_store(out, result, whole);
        copy_tail(out + whole, result + whole, bytes - whole);
#pragma unroll 1
        for (uint32_t d = 1; d < c.ranks; d++) {
            const uint32_t peer = peer_after(c, d);
            if (!takes_part(c, peer)) continue;
            // All chunks of the piece have been read, since they were folded.
            if (now.last) make_due(t, kTaken + kRaw, peer, number_of(now, r.read[kRaw][peer]) + 1);
            if (!spreads) continue;
            const uint64_t number = number_of(now, r.written[kWhole][peer]);
            unsigned char *to = epw::at(c, peer, slot_of(c, kWhole, c.rank, number) + now.within);
            if (whole != 0) ptx::bulk_store(to, result, whole);
            copy_tail(to + whole, result + whole, bytes - whole);
            if (now.last) put_note(c, peer, number);
        }
        ptx::bulk_commit();
    }
    // Makes stored results due.
    __device__ __forceinline__ void end_until(uint32_t count) {
        for (; ended < count; ended++) {
            const FoldChunk &now = chunks[ended % kFoldStages];
            if (!now.last || !spreads) continue;
#pragma unroll 1
            for (uint32_t d = 1; d < c.ranks; d++) {
                const uint32_t peer = peer_after(c, d);
                if (takes_part(c, peer)) make_due(t, kWritten + kWhole, peer, number_of(now, r.written[kWhole][peer]) + 1);
            }
        }
    }
    __device__ __forceinline__ void await_all() {
#pragma unroll 1
        for (uint32_t peer = 0; peer < c.ranks && !c.stopped; peer++) {
            if (peer == c.rank || !takes_part(c, peer)) continue;
            if (!has_piece(c, r, kRaw, peer)) {
                flush();
                if (!comes_soon([&] { return has_piece(c, r, kRaw, peer); })) drain();
                await_piece(c, r, kRaw, peer);
            }
            if (!spreads || !takes_part(c, peer) || c.stopped || has_room(c, r, kWhole, peer)) continue;
            flush();
            if (!comes_soon([&] { return has_room(c, r, kWhole, peer); })) drain();
            await_room(c, r, kWhole, peer);
        }
    }
    // Loads a chunk of the piece at `offset`, of all sources, from byte `within` on.
    __device__ __forceinline__ void bring(uint64_t offset, uint32_t within, uint32_t bytes, bool last) {
        const uint32_t s = begin() % kFoldStages, whole = bytes / 16 * 16;
        chunks[s] = {offset + within, pieces, within, last};
        uint32_t sources = 0;
#pragma unroll 1
        for (uint32_t source = 0; source < c.ranks; source++) {
            if (takes_part(c, source)) sources |= 1u << source;
        }
        t.bytes[s] = bytes;
        t.sources[s] = sources;
        auto from = [&](uint32_t source) {
            return source == c.rank ? f.own + offset + within : c.own + slot_of(c, kRaw, source, r.read[kRaw][source]) + within;
        };
        // Reader: the folding warps, which wait for the barrier at which this thread arrives below.
#pragma unroll 1
        for (uint32_t source = 0; source < c.ranks; source++) {
            if (sources >> source & 1) copy_tail(at_stage(s, source) + whole, from(source) + whole, bytes - whole);
        }
        ptx::barrier_expect(&t.brought[s], __popc(sources) * whole);
        ptx::fence_global_before_bulk();
#pragma unroll 1
        for (uint32_t source = 0; source < c.ranks; source++) {
            if (whole != 0 && sources >> source & 1) ptx::bulk_load(at_stage(s, source), from(source), whole, &t.brought[s]);
        }
        if (!last) return;
        pieces++;
#pragma unroll 1
        for (uint32_t peer = 0; peer < c.ranks; peer++) {
            if (peer == c.rank || !takes_part(c, peer)) continue;
            r.read[kRaw][peer]++;
            if (spreads) r.written[kWhole][peer]++;
        }
    }
    __device__ __forceinline__ void end() {
        drain();
        const uint32_t s = begun % kFoldStages;
        t.bytes[s] = 0;
        ptx::barrier_expect(&t.brought[s], 0);
    }
};

// Bytes of one source's share of a stage: whole cells.
__device__ __forceinline__ uint32_t fold_chunk(const Collective &c) {
    uint32_t shares = 2;
    while (shares < c.ranks) shares *= 2;
    return kFoldBytes / shares;
}

__device__ __forceinline__ void bring_to_fold(Collective &c, Rings &r, BulkMemory &m, BulkTeams &t) {
    FoldPipe pipe = {{}, c, r, m, t, folded_here(c), is_shared_out(c), fold_chunk(c)};
#pragma unroll 1
    for (uint64_t j = blockIdx.x;; j += gridDim.x) {
        const uint32_t bytes = piece_bytes(c, pipe.f.bytes, j);
        if (bytes == 0) break;
        pipe.await_all();
        if (c.stopped) break;
#pragma unroll 1
        for (uint32_t at = 0; at < bytes; at += pipe.chunk) {
            const uint32_t part = min(pipe.chunk, bytes - at);
            pipe.bring(j * c.args->pieces, at, part, at + part == bytes);
        }
    }
    pipe.end();
}

template <typename T> __device__ __forceinline__ void fold_brought(const Collective &c, BulkMemory &m, BulkTeams &t) {
    const uint32_t chunk = fold_chunk(c);
#pragma unroll 1
    for (uint32_t n = 0;; n++) {
        const uint32_t s = n % kFoldStages;
        await_barrier(&t.brought[s], n / kFoldStages & 1);
        const uint32_t bytes = t.bytes[s], sources = t.sources[s];
        if (bytes == 0) return;
#pragma unroll 1
        for (uint32_t at = 16 * (threadIdx.x - kFirstFolder); at < bytes && c.members > 1; at += 16 * kFolders) {
            Word<T> low, high;
            bool begun = false;
#pragma unroll 1
            for (uint32_t left = sources; left != 0; left &= left - 1) {
                const uint32_t source = __ffs(left) - 1;
                const uint4 v = *reinterpret_cast<const uint4 *>(m.folded[s] + source * chunk + at);
                const uint64_t l = uint64_t(v.y) << 32 | v.x, h = uint64_t(v.w) << 32 | v.z;
                if (begun) {
                    low.fold(l, c.args->op);
                    high.fold(h, c.args->op);
                } else {
                    low.begin(l);
                    high.begin(h);
                }
                begun = true;
            }
            const uint64_t l = low.end(c.args->op, c.members), h = high.end(c.args->op, c.members);
            *reinterpret_cast<uint4 *>(m.folded[s] + c.rank * chunk + at) = {uint32_t(l), uint32_t(l >> 32), uint32_t(h),
                                                                             uint32_t(h >> 32)};
        }
        // Reader: the thread that waits for the barrier, and its bulk stores.
        ptx::fence_shared_before_bulk();
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::barrier_arrive(&t.done[s]);
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
    } else if (threadIdx.x == kBringer) {
        if (kFolds) {
            bring_to_fold(c, r, m, t);
        } else {
            give_itself_by_bulk(c, m, t);
        }
        end_mover(t);
    } else if (threadIdx.x >= kFirstTeller && threadIdx.x < kFirstFolder) {
        tell_what_is_due(c, t);
    } else if (kFolds && threadIdx.x >= kFirstFolder) {
        if constexpr (kFolds) fold_brought<T>(c, m, t);
    }
    store_progress(c, r);
    await_calls(c);
}

} // namespace epw
