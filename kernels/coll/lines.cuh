// Operations by lines: 128 bytes that carry 120 of a message and the operation's tag. The eight threads of a line store it by one
// instruction, and eight others load it by one; a reader that finds the tag has the whole line. As with packets (small.cuh),
// nothing is awaited before lines are written, and nothing is fenced or announced after it. But lines are a fifteenth longer than
// the message, where packets are twice as long.
//
// PTX does not promise that a line is stored and loaded as a whole. NVLink behaves so, and NCCL relies on it too; PCIe does not:
// epw_cuda_keeps_lines says where lines may be used.
//
// A thread has two words of each of its lines: it reads them, sends them, folds them and writes them. So a buffer may be both
// source and destination. Some of its lines are a chunk. While a chunk is on its way the thread sends the next one; it folds a
// chunk after that, and takes results another chunk later.
//
// The threads of a warp do the same all the time, because lines belong to several of them.
#pragma once

#include "kernels/coll/large.cuh"
#include "kernels/coll/rows.cuh"

namespace epw {

constexpr uint32_t kLineWords = EPW_COLL_LINE_DATA / 8;
constexpr uint32_t kLineParts = EPW_COLL_LINE / sizeof(ptx::Pair); // the last part holds a word and the tag
constexpr uint32_t kWarpLines = 32 / kLineParts;

// A message that goes by lines is shorter than 4 GiB.
__device__ __forceinline__ uint32_t lines_of(uint64_t bytes) {
    return (uint32_t(bytes) + EPW_COLL_LINE_DATA - 1) / EPW_COLL_LINE_DATA;
}

__device__ __forceinline__ bool warp_stops(const Collective &c) {
    return __any_sync(kWholeWarp, *static_cast<const volatile uint32_t *>(&c.stopped) != 0);
}

// A thread's lines of a chunk: `first`, first + step and so on.
template <uint32_t kLines> struct Chunk {
    uint32_t first, step;

    __device__ __forceinline__ static uint32_t part() { return threadIdx.x % kLineParts; }
    __device__ __forceinline__ static bool has_tag() { return part() == kLineParts - 1; }
    __device__ __forceinline__ uint32_t line(uint32_t i) const { return first + i * step; }
    // The first of this thread's two words of the line.
    __device__ __forceinline__ uint32_t word(uint32_t i) const { return line(i) * kLineWords + 2 * part(); }
    // How many of the lines are below `end`.
    __device__ __forceinline__ uint32_t count(uint32_t end) const {
        uint32_t count = 0;
#pragma unroll
        for (uint32_t i = 0; i < kLines; i++) count += line(i) < end;
        return count;
    }
    __device__ __forceinline__ Chunk<1> one(uint32_t i) const { return {line(i), step}; }
};

template <uint32_t kLines> using Parts = ptx::Pair[kLines];

// ---- the caller's memory ----

// Words that the message does not have are zero. A stretch has whole words, and is aligned to them.
template <uint32_t kLines>
__device__ __forceinline__ void load_parts(Stretch from, const Chunk<kLines> &chunk, Parts<kLines> &parts) {
    const auto *words = reinterpret_cast<const uint64_t *>(from.at);
    const uint32_t count = uint32_t(from.bytes / 8);
    const bool two = !chunk.has_tag();
#pragma unroll
    for (uint32_t i = 0; i < kLines; i++) {
        const uint32_t word = chunk.word(i);
        parts[i].low = word < count ? words[word] : 0;
        parts[i].high = two && word + 1 < count ? words[word + 1] : 0;
    }
}
// Brings them into the L2 cache. Two threads of a line do it, because it may lie across two lines of the cache.
template <uint32_t kLines> __device__ __forceinline__ void prefetch_parts(Stretch from, const Chunk<kLines> &chunk) {
    if (from.at == nullptr || (chunk.part() != 0 && !chunk.has_tag())) return; // a broadcast folds nothing of its own
#pragma unroll
    for (uint32_t i = 0; i < kLines; i++) {
        const uint64_t at = 8 * uint64_t(chunk.word(i));
        if (at < from.bytes) ptx::prefetch_l2(from.at + at);
    }
}
// Large results would take the place of lines in the cache: those of two operations are kept for as long as the communicator.
template <uint32_t kLines>
__device__ __forceinline__ void store_parts(Stretch to, const Chunk<kLines> &chunk, const Parts<kLines> &parts) {
    auto *words = reinterpret_cast<uint64_t *>(to.at);
    const uint32_t count = uint32_t(to.bytes / 8);
    const bool two = !chunk.has_tag();
#pragma unroll
    for (uint32_t i = 0; i < kLines; i++) {
        const uint32_t word = chunk.word(i);
        if (word < count) ptx::store_streaming(&words[word], parts[i].low);
        if (two && word + 1 < count) ptx::store_streaming(&words[word + 1], parts[i].high);
    }
}

__device__ __forceinline__ uint64_t read_word(const Rows &from, uint64_t word) {
    return 8 * word < from.bytes ? read_rows<uint64_t>(from, 8 * word) : 0;
}
__device__ __forceinline__ void write_word(const Rows &to, uint64_t word, uint64_t v) {
    if (8 * word < to.bytes) write_rows(to, 8 * word, v);
}
__device__ __forceinline__ void load_parts(const Rows &from, const Chunk<1> &chunk, Parts<1> &parts) {
    parts[0] = {read_word(from, chunk.word(0)), chunk.has_tag() ? 0 : read_word(from, chunk.word(0) + 1)};
}
__device__ __forceinline__ void prefetch_parts(const Rows &, const Chunk<1> &) {}
__device__ __forceinline__ void store_parts(const Rows &to, const Chunk<1> &chunk, const Parts<1> &parts) {
    write_word(to, chunk.word(0), parts[0].low);
    if (!chunk.has_tag()) write_word(to, chunk.word(0) + 1, parts[0].high);
}

// What an operation consists of, as in rows.cuh, and where lines are: computed when it is asked for.
template <typename Flows> struct LineFlows : Flows {
    __device__ __forceinline__ explicit LineFlows(const Flows &f) : Flows(f) {}

    __device__ __forceinline__ unsigned char *there(const Collective &c, uint32_t peer) const {
        return at(c, peer, epw_coll_lines(&c.args.at, c.number, c.rank, peer));
    }
    __device__ __forceinline__ const unsigned char *here(const Collective &c, uint32_t source) const {
        return c.own + epw_coll_lines(&c.args.at, c.number, source, c.rank);
    }
};

// The same of dense memory of whole words: computed once for the block, because each step of a chunk begins with it.
struct WordTable {
    struct {
        Stretch to, from;
        unsigned char *there;
        const unsigned char *here;
    } peers[EPW_GPU_PEERS];
    Folding folding, itself;
};
template <typename T> struct WordFlows {
    static constexpr bool kReduces = !std::is_void_v<T>;
    const WordTable &table;

    __device__ __forceinline__ Stretch to(const Collective &, uint32_t peer) const { return table.peers[peer].to; }
    __device__ __forceinline__ Stretch from(const Collective &, uint32_t source) const { return table.peers[source].from; }
    __device__ __forceinline__ unsigned char *there(const Collective &, uint32_t peer) const { return table.peers[peer].there; }
    __device__ __forceinline__ const unsigned char *here(const Collective &, uint32_t source) const {
        return table.peers[source].here;
    }
    __device__ __forceinline__ void itself(const Collective &, Stretch &own, Stretch &out) const {
        split(table.itself, own, out);
    }
    __device__ __forceinline__ void fold(const Collective &, Stretch &own, Stretch &out) const { split(table.folding, own, out); }

  private:
    __device__ __forceinline__ static void split(const Folding &f, Stretch &own, Stretch &out) {
        own = {const_cast<unsigned char *>(f.own), f.bytes};
        out = {f.out, f.bytes};
    }
};
// Called by the whole block.
template <typename T> __device__ __forceinline__ void fill(WordTable &table, const Collective &c) {
    const LineFlows<DenseFlows<T>> f{DenseFlows<T>{}};
    for (uint32_t i = threadIdx.x; i < c.ranks; i += blockDim.x) {
        table.peers[i] = {given_to(c, i), taken_from(c, i), f.there(c, i), f.here(c, i)};
    }
    if (threadIdx.x == blockDim.x - 1) {
        table.folding = folded_here(c);
        table.itself = given_to_itself(c);
    }
    __syncthreads();
}
__device__ __forceinline__ bool has_whole_words(const epw_coll_args &a) {
    return (reinterpret_cast<uintptr_t>(a.send) | reinterpret_cast<uintptr_t>(a.recv) | a.bytes) % 8 == 0;
}

// ---- lines ----

// Stores the chunk's lines below `end`, with this tag. Called by the whole warp. Writer: the threads of a line, by one
// instruction. Reader: the peer's look_at_lines().
template <uint32_t kLines>
__device__ __forceinline__ void put_lines(unsigned char *to, const Chunk<kLines> &chunk, uint32_t end, Parts<kLines> &parts,
                                          uint64_t tag) {
    if (chunk.has_tag()) {
#pragma unroll
        for (uint32_t i = 0; i < kLines; i++) parts[i].high = tag;
    }
    to += chunk.first * EPW_COLL_LINE;
    ptx::store_lines<kLines>(to, chunk.step * EPW_COLL_LINE, chunk.count(end), chunk.part(), parts);
}

// Loads the chunk's lines as they are now. Returns whether all of the warp's have arrived. Called by the whole warp.
template <uint32_t kLines>
__device__ __forceinline__ bool look_at_lines(const unsigned char *from, const Chunk<kLines> &chunk, uint32_t end, uint64_t tag,
                                              Parts<kLines> &parts) {
#pragma unroll
    for (uint32_t i = 0; i < kLines; i++) parts[i] = {0, tag};
    from += chunk.first * EPW_COLL_LINE;
    ptx::load_lines<kLines>(from, chunk.step * EPW_COLL_LINE, chunk.count(end), chunk.part(), parts);
    bool all = true;
#pragma unroll
    for (uint32_t i = 0; i < kLines; i++) all = all && (!chunk.has_tag() || parts[i].high == tag);
    return __all_sync(kWholeWarp, all);
}

// Waits for this thread's line. Returns false if it does not come, or says that the result lacks a rank.
__device__ __noinline__ inline bool await_line(Collective &c, uint32_t source, const uint64_t *line) {
    uint64_t tag = 0;
    const bool came = !c.stopped && await_peer(c, source, c.tag, [&] {
        tag = count_at(&line[kLineWords]);
        return tag == c.tag || tag == lacking_tag(c);
    });
    if (!came || tag == c.tag) return came;
    const uint64_t lacks = glimpse_count(&line[0]);
    insert(c.lacking, lacks < c.ranks ? uint32_t(lacks) : source);
    atomicOr(&c.troubled, 1u);
    return false;
}

// Whether the chunk's lines below `end` come soon: for a thread with many registers in use, which has them wait elsewhere if not.
// Called by the whole warp, which gets one answer.
template <uint32_t kLines>
__device__ __forceinline__ bool come_soon(const Collective &c, const unsigned char *from, const Chunk<kLines> &chunk,
                                          uint32_t end, Parts<kLines> &parts) {
    constexpr uint32_t kLooks = 32;
    const uint64_t tag = c.tag;
    bool come = false;
#pragma unroll 1
    for (uint32_t i = 0; i < kLooks && !come; i++) come = look_at_lines<kLines>(from, chunk, end, tag, parts);
    return come;
}

// Waits for the line, if it is below `end`. Returns whether this thread's has come. Called by the whole warp.
__device__ __forceinline__ bool come(Collective &c, uint32_t source, const unsigned char *from, const Chunk<1> &chunk,
                                     uint32_t end, Parts<1> &parts) {
    if (come_soon<1>(c, from, chunk, end, parts)) return true;
    bool came = true;
    if (chunk.first < end) came = await_line(c, source, reinterpret_cast<const uint64_t *>(from + chunk.first * EPW_COLL_LINE));
    look_at_lines<1>(from, chunk, end, c.tag, parts);
    return came;
}

// ---- steps of a chunk ----

template <uint32_t kLines, typename Flows>
__device__ __forceinline__ void send_chunk(const Collective &c, const Flows &f, const Chunk<kLines> &chunk) {
    const uint64_t tag = c.tag;
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) {
        const uint32_t peer = peer_after(c, d);
        const auto given = f.to(c, peer);
        if (given.bytes == 0 || !warp_agrees(takes_part(c, peer))) continue;
        Parts<kLines> parts;
        load_parts(given, chunk, parts);
        put_lines<kLines>(f.there(c, peer), chunk, lines_of(given.bytes), parts, tag);
    }
}

// Brings what is sent and folded of a later chunk into the L2 cache.
template <uint32_t kLines, typename Flows>
__device__ __forceinline__ void prefetch_chunk(const Collective &c, const Flows &f, const Chunk<kLines> &chunk) {
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) prefetch_parts(f.to(c, peer_after(c, d)), chunk);
    decltype(f.to(c, 0)) own, out;
    f.fold(c, own, out);
    prefetch_parts(own, chunk);
}

template <uint32_t kLines, typename Flows>
__device__ __forceinline__ void give_chunk_itself(const Collective &c, const Flows &f, const Chunk<kLines> &chunk) {
    decltype(f.to(c, 0)) own, out;
    f.itself(c, own, out);
    if (out.bytes == 0) return;
    Parts<kLines> parts;
    load_parts(own, chunk, parts);
    store_parts(out, chunk, parts);
}

// Sends lines of this rank's part of the result to all who need them, or that there is no result.
template <uint32_t kLines, typename Flows>
__device__ __forceinline__ void spread_chunk(const Collective &c, const Flows &f, const Chunk<kLines> &chunk, uint32_t before,
                                             uint32_t end, Parts<kLines> &parts, bool whole) {
    const epw_rank_set lacks = c.active - c.reachable;
    whole = __all_sync(kWholeWarp, whole && !any(lacks));
    const uint64_t tag = whole ? c.tag : lacking_tag(c);
    if (!whole) {
#pragma unroll
        for (uint32_t i = 0; i < kLines; i++) parts[i] = {any(lacks) ? first_of(lacks) : c.ranks, 0};
    }
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) {
        const uint32_t peer = peer_after(c, d);
        if (!warp_agrees(needs_copies(c, peer))) continue;
        put_lines<kLines>(f.there(c, peer) + before * EPW_COLL_LINE, chunk, end, parts, tag);
    }
}

// Folds the lines of a chunk, or, of what one rank gives, passes them on. `before`: lines of a source before those of its result.
// Returns false if lines are late: then nothing has been done. kPatient: waits for them.
template <typename T, uint32_t kLines, bool kSums, bool kPatient = false, typename Flows>
__device__ __forceinline__ bool fold_chunk(Collective &c, const Flows &f, const Chunk<kLines> &chunk, uint32_t before) {
    decltype(f.to(c, 0)) own, out;
    f.fold(c, own, out);
    if (out.bytes == 0) return true;
    const uint32_t end = lines_of(out.bytes);
    [[maybe_unused]] Word<std::conditional_t<std::is_void_v<T>, uint8_t, T>> low[kLines], high[kLines];
    if constexpr (kSums && !std::is_void_v<T>) {
#pragma unroll
        for (uint32_t i = 0; i < kLines; i++) {
            low[i].begin_sum();
            high[i].begin_sum();
        }
    }
    Parts<kLines> parts;
    bool begun = false, whole = true;
#pragma unroll 1
    for (uint32_t source = 0; source < c.ranks; source++) {
        if (!warp_agrees(contributes(c, source))) continue;
        if (source == c.rank) {
            load_parts(own, chunk, parts);
        } else if constexpr (kPatient) {
            whole &= come(c, source, f.here(c, source), chunk, end, parts);
        } else if (!come_soon<kLines>(c, f.here(c, source), chunk, end, parts)) {
            return false;
        }
        if constexpr (!std::is_void_v<T>) {
#pragma unroll
            for (uint32_t i = 0; i < kLines; i++) {
                if (kSums || begun) {
                    low[i].template fold<kSums>(parts[i].low, c.args.op);
                    high[i].template fold<kSums>(parts[i].high, c.args.op);
                } else {
                    low[i].begin(parts[i].low);
                    high[i].begin(parts[i].high);
                }
            }
        }
        begun = true;
    }
    if constexpr (std::is_void_v<T>) whole &= begun; // the root may have been given up before: the others must learn that too
    if ((Flows::kReduces && !begun) || warp_stops(c)) return true;
    if constexpr (!std::is_void_v<T>) {
        if (c.members > 1) {
#pragma unroll
            for (uint32_t i = 0; i < kLines; i++) {
                parts[i].low = low[i].template end<kSums>(c.args.op, c.members);
                parts[i].high = high[i].template end<kSums>(c.args.op, c.members);
            }
        }
    }
    if (whole) store_parts(out, chunk, parts);
    if (is_shared_out(c)) spread_chunk<kLines>(c, f, chunk, before, end, parts, whole);
    return true;
}
template <typename T, uint32_t kLines, typename Flows>
__device__ __noinline__ void fold_patiently(Collective &c, Flows f, Chunk<kLines> chunk, uint32_t before) {
#pragma unroll 1
    for (uint32_t i = 0; i < kLines; i++) fold_chunk<T, 1, false, true>(c, f, chunk.one(i), before);
}

template <uint32_t kLines, typename Flows>
__device__ __noinline__ void take_patiently(Collective &c, Flows f, Chunk<kLines> chunk, uint32_t before, uint32_t source) {
    const auto taken = f.from(c, source);
#pragma unroll 1
    for (uint32_t i = 0; i < kLines; i++) {
        const auto one = chunk.one(i);
        Parts<1> parts;
        const unsigned char *from = f.here(c, source) + before * EPW_COLL_LINE;
        if (come(c, source, from, one, lines_of(taken.bytes), parts)) store_parts(taken, one, parts);
    }
}
template <uint32_t kLines, typename Flows>
__device__ __forceinline__ void take_chunk(Collective &c, const Flows &f, const Chunk<kLines> &chunk, uint32_t before) {
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) {
        const uint32_t source = peer_after(c, d);
        const auto taken = f.from(c, source);
        if (taken.bytes == 0 || !warp_agrees(takes_part(c, source))) continue;
        Parts<kLines> parts;
        const unsigned char *from = f.here(c, source) + before * EPW_COLL_LINE;
        if (come_soon<kLines>(c, from, chunk, lines_of(taken.bytes), parts)) {
            store_parts(taken, chunk, parts);
        } else {
            take_patiently<kLines>(c, f, chunk, before, source);
        }
    }
}

// ---- all of it ----

// Lines that all warps of the grid have at once.
__device__ __forceinline__ uint32_t lines_at_once() { return gridDim.x * (kCollThreads / 32) * kWarpLines; }

// kLines: of a chunk. kSums: the operation is a sum, or folds nothing. Calls are awaited while data are on their way: a warp with
// no lines does it at once, others before they take their first.
template <typename T, uint32_t kLines, bool kSums, typename Flows>
__device__ __noinline__ void exchange_lines(Collective &c, Flows f, uint32_t lines) {
    const uint32_t warp = blockIdx.x * (kCollThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t step = lines_at_once(), begin = warp * kWarpLines;
    const uint32_t chunks = begin < lines ? (lines - begin + kLines * step - 1) / (kLines * step) : 0;
    // Opaque, so that the addresses of all lines of all steps are not kept in registers from chunk to chunk.
    const auto chunk = [&](uint32_t j) {
        return Chunk<kLines>{ptx::opaque(begin + lane / kLineParts + j * kLines * step), step};
    };
    const bool shares = is_shared_out(c), folds = Flows::kReduces || shares, takes = !Flows::kReduces || shares;
    const uint32_t lag = shares ? 2 : 1; // chunks between sending and taking
    const uint32_t before = shares ? lines_of(c.part) : 0;
    if (chunks == 0) await_calls(c);
#pragma unroll 1
    for (uint32_t j = 0; j < chunks + lag && !warp_stops(c); j++) {
        // Among more members the parts of others take long enough, and what is prefetched is in their way.
        if (j + 1 < chunks && (!shares || c.members == 2)) prefetch_chunk<kLines>(c, f, chunk(j + 1));
        if (j < chunks) {
            send_chunk<kLines>(c, f, chunk(j));
            if constexpr (!Flows::kReduces) give_chunk_itself<kLines>(c, f, chunk(j));
        }
        if (folds && j - 1 < chunks && !fold_chunk<T, kLines, kSums>(c, f, chunk(j - 1), before)) {
            fold_patiently<T, kLines>(c, f, chunk(j - 1), before);
        }
        if (j == lag) await_calls(c);
        if (takes && j - lag < chunks) take_chunk<kLines>(c, f, chunk(j - lag), before);
    }
}

// Whatever the operation, and how its bytes lie.
template <typename T, typename Flows> __device__ __noinline__ void exchange_line_by_line(Collective &c, const Flows &f) {
    exchange_lines<T, 1, false>(c, LineFlows<Flows>(f), lines_of(max(f.sent(c), f.taken(c))));
}

// A message of few lines is one chunk. Of others the chunks are many, so that sending, folding and taking overlap.
template <typename T> __device__ __forceinline__ void exchange_whole_words(Collective &c, WordTable &table) {
    const DenseFlows<T> dense;
    const uint32_t lines = lines_of(max(dense.sent(c), dense.taken(c))), at_once = lines_at_once();
    fill<T>(table, c);
    const WordFlows<T> f{table};
    if (lines <= at_once) {
        exchange_lines<T, 1, true>(c, f, lines);
    } else if (lines > 2 * at_once && (lines <= 4 * at_once || (dense.kReduces && lines >= 32 * at_once))) {
        exchange_lines<T, 4, true>(c, f, lines);
    } else {
        exchange_lines<T, 2, true>(c, f, lines);
    }
}

// Whether a message's lines fit into the stretch of their source: those of all ranks do, but the fewer members share a message
// out, the longer are its parts. All members decide alike. Other operations always fit.
__device__ __forceinline__ bool lines_fit(const Collective &c) {
    return !is_shared_out(c) || 2 * lines_of(c.part) <= c.args.at.lines;
}
template <typename T> __device__ __noinline__ void run_rings_instead(Collective &c, Rings &rings) { run_rings<T>(c, rings); }

union LinesMemory {
    WordTable words;
    Rings rings;
};

template <typename T> __device__ __forceinline__ void run_lines(Collective &c, LinesMemory &memory) {
    tell_call(c);
    if (!lines_fit(c)) {
        run_rings_instead<T>(c, memory.rings);
    } else if (has_whole_words(c.args) && (std::is_void_v<T> || c.args.op == EPW_SUM)) {
        exchange_whole_words<T>(c, memory.words);
    } else {
        exchange_line_by_line<T>(c, DenseFlows<T>{});
    }
}

template <typename T> __device__ __forceinline__ void run_lines_of_blocks(Collective &c, const epw_coll_blocks_args &b) {
    tell_call(c);
    exchange_line_by_line<T>(c, BlockFlows<T>{b});
}

} // namespace epw
