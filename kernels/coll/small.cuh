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

// Where word i of the source's message lies in its reader's window.
__device__ __forceinline__ uint64_t packet_of(const Collective &c, uint32_t source, uint64_t i) {
    return call_of(c, source) + (EPW_COLL_CALL_PACKETS + i) * EPW_COLL_PACKET;
}

// The words i, i + step and so on of a message, kWords of them, less those from `end` on.
struct WordsAt {
    uint64_t i, step, end;

    __device__ __forceinline__ uint64_t at(uint32_t w) const { return i + w * step; }
    __device__ __forceinline__ bool has(uint32_t w) const { return at(w) < end; }
    __device__ __forceinline__ uint64_t packet(uint32_t w) const {
        return w * step * EPW_COLL_PACKET;
    } // offset from the first
      // word's packet
};

// Sends words; all of them are read before the first is sent. A thread copies what it needs of shared memory to registers first,
// because for all the compiler knows each packet could change it.
template <uint32_t kWords> __device__ __forceinline__ void send_words(const Collective &c, WordsAt words) {
    const uint64_t tag = c.tag, offset = packet_of(c, c.rank, words.i);
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) {
        const uint32_t peer = peer_after(c, d);
        const Stretch s = given_to(c, peer);
        if (!takes_part(c, peer) || s.bytes == 0) continue;
        unsigned char *to = at(c, peer, offset);
        uint64_t data[kWords] = {};
#pragma unroll
        for (uint32_t w = 0; w < kWords; w++) {
            if (words.has(w)) data[w] = read<uint64_t>(s.at + 8 * words.at(w), s.bytes - 8 * words.at(w));
        }
#pragma unroll
        for (uint32_t w = 0; w < kWords; w++) {
            if (words.has(w)) put_packet(to + words.packet(w), data[w], tag);
        }
    }
}

// Waits for a packet. Returns false if it does not come.
__device__ __forceinline__ bool await_packet(Collective &c, uint32_t source, uint64_t offset, Packet &packet) {
    if (packet.tag == c.tag) return true;
    Packet late = {}; // in memory, so that the caller's may stay in registers
    const bool came = await_peer(c, source, c.tag, [&] {
        late = packet_at(c, offset);
        return late.tag == c.tag;
    });
    packet = late;
    return came;
}

// Packets in flight per thread: those of one word from several sources, or of several words from one source.
constexpr uint32_t kAtOnce = 4;

// Loads a source's packets as they are now.
template <uint32_t kWords>
__device__ __forceinline__ void look_at_words(const unsigned char *from, WordsAt words, Packet (&packets)[kWords]) {
#pragma unroll
    for (uint32_t w = 0; w < kWords; w++) {
        if (words.has(w)) packets[w] = packet_at(from + words.packet(w));
    }
}

template <uint32_t kWords> __device__ __forceinline__ void take_words(Collective &c, WordsAt words) {
    constexpr uint32_t kSources = kAtOnce / kWords;
    const uint64_t tag = c.tag;
#pragma unroll 1
    for (uint32_t first = 1; first < c.ranks; first += kSources) {
        Packet packets[kSources][kWords] = {};
#pragma unroll
        for (uint32_t k = 0; k < kSources; k++) {
            if (first + k < c.ranks) look_at_words(c.own + packet_of(c, peer_after(c, first + k), words.i), words, packets[k]);
        }
#pragma unroll
        for (uint32_t k = 0; k < kSources; k++) {
            if (first + k >= c.ranks) continue;
            const uint32_t source = peer_after(c, first + k);
            const Stretch s = taken_from(c, source);
            if (s.bytes == 0 || !takes_part(c, source)) continue;
#pragma unroll
            for (uint32_t w = 0; w < kWords; w++) {
                if (!words.has(w) || c.stopped) continue;
                Packet &packet = packets[k][w];
                if (packet.tag != tag && !await_packet(c, source, packet_of(c, source, words.at(w)), packet)) continue;
                write<uint64_t>(s.at + 8 * words.at(w), packet.data, s.bytes - 8 * words.at(w));
            }
        }
    }
}

// Folds words of all members; words without a result stay unchanged. Returns whether there is a result.
template <typename T, uint32_t kWords>
__device__ __forceinline__ bool fold_words(Collective &c, const Folding &f, WordsAt words, uint64_t (&result)[kWords]) {
    constexpr uint32_t kSources = kAtOnce / kWords;
    const uint64_t tag = c.tag;
    const uint32_t own = c.rank, op = c.args.op;
    Word<T> sum[kWords];
    bool begun = false;
#pragma unroll
    for (uint32_t w = 0; w < kWords; w++) {
        if (words.has(w)) result[w] = read<uint64_t>(f.own + 8 * words.at(w), f.bytes - 8 * words.at(w));
    }
#pragma unroll 1
    for (uint32_t first = 0; first < c.ranks; first += kSources) {
        Packet packets[kSources][kWords] = {};
#pragma unroll
        for (uint32_t k = 0; k < kSources; k++) {
            const uint32_t source = first + k;
            if (source < c.ranks && source != own) look_at_words(c.own + packet_of(c, source, words.i), words, packets[k]);
        }
#pragma unroll
        for (uint32_t k = 0; k < kSources; k++) {
            const uint32_t source = first + k;
            if (source >= c.ranks || !takes_part(c, source) || c.stopped) continue;
            bool all = true;
#pragma unroll
            for (uint32_t w = 0; w < kWords; w++) {
                Packet &packet = packets[k][w];
                if (source == own) {
                    packet.data = result[w];
                } else if (words.has(w) && packet.tag != tag) {
                    all = all && await_packet(c, source, packet_of(c, source, words.at(w)), packet);
                }
            }
            if (!all) continue;
#pragma unroll
            for (uint32_t w = 0; w < kWords; w++) {
                if (begun) {
                    sum[w].fold(packets[k][w].data, op);
                } else {
                    sum[w].begin(packets[k][w].data);
                }
            }
            begun = true;
        }
    }
    if (begun && c.members != 1) {
#pragma unroll
        for (uint32_t w = 0; w < kWords; w++) result[w] = sum[w].end(op, c.members);
    }
    return begun;
}

template <typename T, uint32_t kWords>
__device__ __forceinline__ void fold_and_write_words(Collective &c, const Folding &f, WordsAt words) {
    uint64_t result[kWords] = {};
    if (!fold_words<T, kWords>(c, f, words, result)) return;
#pragma unroll
    for (uint32_t w = 0; w < kWords; w++) {
        if (words.has(w)) write<uint64_t>(f.out + 8 * words.at(w), result[w], f.bytes - 8 * words.at(w));
    }
}

template <typename T, uint32_t kWords>
__device__ __forceinline__ void exchange_words(Collective &c, uint64_t begin, uint64_t step, uint64_t words) {
#pragma unroll 1
    for (uint64_t i = begin; i < words; i += kWords * step) send_words<kWords>(c, {i, step, words});
    if constexpr (std::is_void_v<T>) {
        const Folding f = given_to_itself(c);
        for (uint64_t i = begin; 8 * i < f.bytes; i += step) {
            write<uint64_t>(f.out + 8 * i, read<uint64_t>(f.own + 8 * i, f.bytes - 8 * i), f.bytes - 8 * i);
        }
#pragma unroll 1
        for (uint64_t i = begin; i < words; i += kWords * step) take_words<kWords>(c, {i, step, words});
    } else {
        const Folding f = folded_here(c);
        const uint64_t folded = words_of(f.bytes);
#pragma unroll 1
        for (uint64_t i = begin; i < folded; i += kWords * step) fold_and_write_words<T, kWords>(c, f, {i, step, folded});
    }
}

template <typename T> __device__ __forceinline__ void run_small(Collective &c) {
    tell_call(c);
    const uint64_t step = gridDim.x * blockDim.x, begin = blockIdx.x * blockDim.x + threadIdx.x;
    const uint64_t words = words_of(c.args.bytes);
    if (words <= step) { // one word of each source per thread
        exchange_words<T, 1>(c, begin, step, words);
    } else if (words <= 2 * step) {
        exchange_words<T, 2>(c, begin, step, words);
    } else {
        exchange_words<T, kAtOnce>(c, begin, step, words);
    }
    await_calls(c);
}

} // namespace epw
