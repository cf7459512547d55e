// Operations by packets: each thread writes its words of the message to all ranks that need them, then polls for the same words
// of the other ranks. This takes one way across the link, without a wait before it: see state.h.
//
// A word is read, sent, received and written by the same thread, so a buffer may be both source and destination.
#pragma once

#include "kernels/coll/bytes.cuh"
#include "kernels/coll/flows.cuh"
#include "kernels/coll/fold.cuh"

namespace epw {

__device__ __forceinline__ uint64_t words_of(uint64_t bytes) { return (bytes + 7) / 8; }

// Where packet i of the source's message lies in its reader's window.
__device__ __forceinline__ uint64_t packet_of(const Collective &c, uint32_t source, uint64_t i) {
    return call_of(c, source) + (EPW_COLL_CALL_PACKETS + i) * EPW_COLL_PACKET;
}

// The words i, i + step and so on of a message, less those from `end` on. In a window, the message's packets come after `before`
// others.
struct WordsAt {
    uint64_t i, step, end, before = 0;

    __device__ __forceinline__ uint64_t at(uint32_t w) const { return i + w * step; }
    __device__ __forceinline__ bool has(uint32_t w) const { return at(w) < end; }
    // Offset of a word's packet from that of the first word.
    __device__ __forceinline__ uint64_t packet(uint32_t w) const { return w * step * EPW_COLL_PACKET; }
    // Whether the first kWords words are all in a message of so many bytes, aligned and whole.
    template <uint32_t kWords> __device__ __forceinline__ bool are_whole(const unsigned char *message, uint64_t bytes) const {
        return is_aligned<uint64_t>(message) && 8 * at(kWords - 1) + 8 <= bytes;
    }
};

// ---- the caller's memory ----

// Words that the message does not have are zero.
template <uint32_t kWords>
__device__ __forceinline__ void load_words(const unsigned char *from, uint64_t bytes, WordsAt words, uint64_t (&data)[kWords]) {
    if (words.are_whole<kWords>(from, bytes)) {
#pragma unroll
        for (uint32_t w = 0; w < kWords; w++) data[w] = *reinterpret_cast<const uint64_t *>(from + 8 * words.at(w));
        return;
    }
#pragma unroll
    for (uint32_t w = 0; w < kWords; w++) {
        const uint64_t at = 8 * words.at(w);
        data[w] = at < bytes ? read<uint64_t>(from + at, bytes - at) : 0;
    }
}

template <uint32_t kWords>
__device__ __forceinline__ void store_words(unsigned char *to, uint64_t bytes, WordsAt words, const uint64_t (&data)[kWords]) {
    if (words.are_whole<kWords>(to, bytes)) {
#pragma unroll
        for (uint32_t w = 0; w < kWords; w++) *reinterpret_cast<uint64_t *>(to + 8 * words.at(w)) = data[w];
        return;
    }
#pragma unroll
    for (uint32_t w = 0; w < kWords; w++) {
        const uint64_t at = 8 * words.at(w);
        if (at < bytes) write<uint64_t>(to + at, data[w], bytes - at);
    }
}

// Brings what the block's threads send first into the cache, while the operation is opened: a line for each thread, so as many
// ranks' blocks as the block has warps.
__device__ __forceinline__ void prefetch_first_words(const epw_coll_args &a) {
    const bool root_sends = a.kind == EPW_BROADCAST || a.kind == EPW_SCATTER;
    if (root_sends && a.rank != a.root) return; // `send` may be anything
    constexpr uint32_t kLine = 128;
    static_assert(kSmallThreads * sizeof(uint64_t) <= 32 * kLine, "a warp brings a word of each thread");
    const uint64_t all = epw_coll_send_bytes(a.kind, a.ranks, a.bytes);
    const uint64_t each = a.shared_out ? part_among(a, a.ranks) : a.bytes;
    const uint64_t at = uint64_t(blockIdx.x) * kSmallThreads * sizeof(uint64_t) + threadIdx.x % 32 * kLine,
                   from = threadIdx.x / 32 * each + at;
    if (at < each && from < all && a.send != nullptr && !exchanges_calls()) ptx::prefetch(a.send + from);
}

// ---- packets ----

// A thread copies what it needs of shared memory to registers first, because for all the compiler knows each packet could change
// it.
template <uint32_t kWords>
__device__ __forceinline__ void put_words(unsigned char *to, WordsAt words, const uint64_t (&data)[kWords], uint64_t tag) {
#pragma unroll
    for (uint32_t w = 0; w < kWords; w++) {
        if (words.has(w)) put_packet(to + words.packet(w), data[w], tag);
    }
}

// Sends words of what this rank gives each peer.
template <uint32_t kWords> __device__ __forceinline__ void send_words(const Collective &c, WordsAt words) {
    const uint64_t tag = c.tag, offset = packet_of(c, c.rank, words.before + words.i);
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) {
        const uint32_t peer = peer_after(c, d);
        const Stretch s = given_to(c, peer);
        if (!takes_part(c, peer) || s.bytes == 0) continue;
        unsigned char *to = at(c, peer, offset);
        uint64_t data[kWords];
        load_words<kWords>(s.at, s.bytes, words, data);
        put_words<kWords>(to, words, data, tag);
    }
}

// Waits for a packet. Returns false if it does not come, or says that the result lacks a rank.
__device__ __noinline__ inline bool await_packet(Collective &c, uint32_t source, uint64_t offset) {
    Packet packet = {};
    const bool came = await_peer(c, source, c.tag, [&] {
        packet = packet_at(c, offset);
        return packet.tag == c.tag || packet.tag == lacking_tag(c);
    });
    if (!came || packet.tag == c.tag) return came;
    if (packet.data < c.ranks) {
        insert(c.lacking, uint32_t(packet.data));
        atomicOr(&c.troubled, 1u);
    }
    return false;
}
__device__ __forceinline__ bool await_packet(Collective &c, uint32_t source, uint64_t offset, Packet &packet) {
    packet = packet_at(c, offset);
    if (packet.tag == c.tag) return true;
    const bool came = await_packet(c, source, offset);
    packet = packet_at(c, offset);
    return came;
}

// Some ranks, by the order in which they are handled: rank first + s, or the rank that is first + s after this one.
template <bool kAfterOwn> struct Ranks {
    uint32_t first;

    __device__ __forceinline__ uint32_t operator()(const Collective &c, uint32_t s) const {
        return kAfterOwn ? peer_after(c, first + s) : first + s;
    }
};

// Waits for the first `count` words of each wanted rank; bit s of `wanted` stands for rank s of `ranks`. Returns those whose
// words have arrived.
template <bool kAfterOwn>
__device__ __noinline__ uint32_t await_words(Collective &c, Ranks<kAfterOwn> ranks, WordsAt words, uint32_t count,
                                             uint32_t wanted) {
#pragma unroll 1
    for (uint32_t left = wanted; left != 0; left &= left - 1) {
        const uint32_t s = __ffs(left) - 1, source = ranks(c, s);
        bool came = true;
#pragma unroll 1
        for (uint32_t w = 0; w < count && words.has(w) && came; w++) {
            came = !c.stopped && await_packet(c, source, packet_of(c, source, words.before + words.at(w)));
        }
        if (!came) wanted &= ~(1u << s);
    }
    return wanted;
}

// Words of several ranks' messages.
template <uint32_t kSources, uint32_t kWords> struct Arriving {
    uint64_t data[kSources][kWords];
    uint32_t wanted; // bit s: the words of rank s are awaited and, in the end, are here

    // Loads the packets as they are now. Returns whether all words have arrived.
    template <bool kAfterOwn> __device__ __forceinline__ bool look(const Collective &c, Ranks<kAfterOwn> ranks, WordsAt words) {
        const uint64_t tag = c.tag;
        bool all = true;
#pragma unroll
        for (uint32_t s = 0; s < kSources; s++) {
            if (!(wanted >> s & 1)) continue;
            const unsigned char *from = c.own + packet_of(c, ranks(c, s), words.before + words.i);
            Packet packets[kWords];
#pragma unroll
            for (uint32_t w = 0; w < kWords; w++) packets[w] = words.has(w) ? packet_at(from + words.packet(w)) : Packet{0, tag};
#pragma unroll
            for (uint32_t w = 0; w < kWords; w++) {
                data[s][w] = packets[w].data;
                all = all && packets[w].tag == tag;
            }
        }
        return all;
    }
    // Waits for the wanted words, or gives their sources up.
    template <bool kAfterOwn> __device__ __forceinline__ void await(Collective &c, Ranks<kAfterOwn> ranks, WordsAt words) {
        constexpr uint32_t kLooks = 32;
#pragma unroll 1
        for (uint32_t i = 0; wanted != 0 && !look(c, ranks, words) && i <= kLooks; i++) {
            if (i == kLooks) wanted = await_words(c, ranks, words, kWords, wanted);
        }
    }
};

template <uint32_t kWords> __device__ __forceinline__ void take_words(Collective &c, WordsAt words) {
    constexpr uint32_t kSources = kWords <= 2 ? 4 / kWords : 1;
#pragma unroll 1
    for (uint32_t first = 1; first < c.ranks && !c.stopped; first += kSources) {
        const Ranks<true> ranks = {first};
        Arriving<kSources, kWords> here = {};
#pragma unroll
        for (uint32_t s = 0; s < kSources; s++) {
            if (first + s >= c.ranks) continue;
            const uint32_t source = ranks(c, s);
            here.wanted |= uint32_t(8 * words.i < taken_from(c, source).bytes && takes_part(c, source)) << s;
        }
        here.await(c, ranks, words);
#pragma unroll
        for (uint32_t s = 0; s < kSources; s++) {
            if (!(here.wanted >> s & 1)) continue;
            const Stretch taken = taken_from(c, ranks(c, s));
            store_words<kWords>(taken.at, taken.bytes, words, here.data[s]);
        }
    }
}

// Folds words of all members, `result` being this rank's. Returns whether there is a result; if not, `result` is unchanged.
// kSums: the operation is a sum.
template <typename T, uint32_t kWords, bool kSums>
__device__ __forceinline__ bool fold_words(Collective &c, WordsAt words, uint64_t (&result)[kWords]) {
    constexpr uint32_t kSources = kWords == 1 ? 4 : 2;
    const uint32_t own = c.rank, op = c.args.op;
    if (c.members == 1) return true;
    Word<T> sum[kWords];
    bool begun = false;
    if (kSums) {
#pragma unroll
        for (uint32_t w = 0; w < kWords; w++) sum[w].begin_sum();
    }
#pragma unroll 1
    for (uint32_t first = 0; first < c.ranks; first += kSources) {
        Arriving<kSources, kWords> here = {};
#pragma unroll
        for (uint32_t s = 0; s < kSources; s++) {
            here.wanted |= uint32_t(first + s < c.ranks && first + s != own && takes_part(c, first + s)) << s;
        }
        here.await(c, Ranks<false>{first}, words);
#pragma unroll
        for (uint32_t s = 0; s < kSources; s++) {
            const bool is_own = first + s == own;
            if (!is_own && !(here.wanted >> s & 1)) continue;
#pragma unroll
            for (uint32_t w = 0; w < kWords; w++) {
                const uint64_t word = is_own ? result[w] : here.data[s][w];
                if (kSums || begun) {
                    sum[w].template fold<kSums>(word, op);
                } else {
                    sum[w].begin(word);
                }
            }
            begun = true;
        }
    }
    if (c.stopped) return false;
#pragma unroll
    for (uint32_t w = 0; w < kWords; w++) result[w] = sum[w].template end<kSums>(op, c.members);
    return true;
}

template <typename T, uint32_t kWords, bool kSums>
__device__ __forceinline__ void fold_and_write_words(Collective &c, const Folding &f, WordsAt words) {
    uint64_t result[kWords];
    load_words<kWords>(f.own, f.bytes, words, result);
    if (fold_words<T, kWords, kSums>(c, words, result)) store_words<kWords>(f.out, f.bytes, words, result);
}

// Each thread moves kMoved words at a time and folds kFolded. The last warp awaits calls when it has sent, since they come before
// the words do.
template <typename T, uint32_t kMoved, uint32_t kFolded>
__device__ __forceinline__ void exchange_words(Collective &c, uint64_t begin, uint64_t step, uint64_t words) {
#pragma unroll 1
    for (uint64_t i = begin; i < words; i += kMoved * step) send_words<kMoved>(c, {i, step, words});
    await_calls_aside(c);
    if constexpr (std::is_void_v<T>) {
        const Folding f = given_to_itself(c);
#pragma unroll 1
        for (uint64_t i = begin; 8 * i < f.bytes; i += kMoved * step) {
            uint64_t data[kMoved];
            load_words<kMoved>(f.own, f.bytes, {i, step, words}, data);
            store_words<kMoved>(f.out, f.bytes, {i, step, words}, data);
        }
#pragma unroll 1
        for (uint64_t i = begin; i < words; i += kMoved * step) take_words<kMoved>(c, {i, step, words});
    } else {
        const Folding f = folded_here(c);
        const uint64_t folded = words_of(f.bytes);
        if (c.args.op == EPW_SUM) {
#pragma unroll 1
            for (uint64_t i = begin; i < folded; i += kFolded * step) {
                fold_and_write_words<T, kFolded, true>(c, f, {i, step, folded});
            }
        } else {
#pragma unroll 1
            for (uint64_t i = begin; i < folded; i += step) fold_and_write_words<T, 1, false>(c, f, {i, step, folded});
        }
    }
}

// Sends words of this rank's part of the result to all who need them, or that there is no result.
template <uint32_t kWords>
__device__ __forceinline__ void send_result(const Collective &c, WordsAt words, const uint64_t (&result)[kWords]) {
    const epw_rank_set lacks = c.active - c.reachable;
    const bool whole = !any(lacks);
    const uint64_t tag = whole ? c.tag : lacking_tag(c), offset = packet_of(c, c.rank, words.before + words.i);
    uint64_t data[kWords];
#pragma unroll
    for (uint32_t w = 0; w < kWords; w++) data[w] = whole ? result[w] : first_of(lacks);
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) {
        const uint32_t peer = peer_after(c, d);
        if (takes_part(c, peer)) put_words<kWords>(at(c, peer, offset), words, data, tag);
    }
}

// An all-reduce that is shared out. The packets of a rank's result come after those of the words that it gives.
template <typename T, uint32_t kMoved, uint32_t kFolded, bool kSums>
__device__ __forceinline__ void exchange_parts(Collective &c, uint64_t begin, uint64_t step, uint64_t words) {
#pragma unroll 1
    for (uint64_t i = begin; i < words; i += kMoved * step) send_words<kMoved>(c, {i, step, words});
    await_calls_aside(c);
    const Folding f = folded_here(c);
    const uint64_t folded = f.bytes != 0 ? words : 0; // as many words as the longest part has: peers await no fewer
#pragma unroll 1
    for (uint64_t i = begin; i < folded; i += kFolded * step) {
        uint64_t result[kFolded];
        load_words<kFolded>(f.own, f.bytes, {i, step, words}, result);
        if (!fold_words<T, kFolded, kSums>(c, {i, step, words}, result)) continue;
        send_result<kFolded>(c, {i, step, words, words}, result);
        store_words<kFolded>(f.out, f.bytes, {i, step, words}, result);
    }
#pragma unroll 1
    for (uint64_t i = begin; i < words; i += kMoved * step) take_words<kMoved>(c, {i, step, words, words});
}

// The threads that share words: few words leave the last warp to the calls.
struct WordThreads {
    const bool few; // one word for each of them, at most
    const uint64_t begin, step;

    __device__ __forceinline__ WordThreads(uint64_t words)
        : few(words <= uint64_t(gridDim.x) * kSmallThreads),
          begin(few && exchanges_calls() ? words : uint64_t(blockIdx.x) * threads() + threadIdx.x), step(gridDim.x * threads()) {}
    __device__ __forceinline__ uint32_t threads() const { return few ? kSmallThreads : kCollThreads; }
};

template <typename T> __device__ __forceinline__ void run_small_parts(Collective &c) {
    tell_calls_aside(c);
    const uint64_t words = words_of(c.part);
    const WordThreads t(words);
    if (c.args.op != EPW_SUM) {
        exchange_parts<T, 1, 1, false>(c, t.begin, t.step, words);
    } else if (t.few) {
        exchange_parts<T, 1, 1, true>(c, t.begin, t.step, words);
    } else {
        exchange_parts<T, 4, 2, true>(c, t.begin, t.step, words);
    }
}

template <typename T> __device__ __forceinline__ void run_small(Collective &c) {
    tell_calls_aside(c);
    const uint64_t words = words_of(c.args.bytes);
    const WordThreads t(words);
    if (t.few) {
        exchange_words<T, 1, 1>(c, t.begin, t.step, words);
    } else {
        exchange_words<T, 4, 2>(c, t.begin, t.step, words);
    }
}

} // namespace epw
