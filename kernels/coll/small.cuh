// Operations by packets: each thread writes its words of the message to all who are to have them, then looks for the same words
// of the others. One way across the link, with no wait before it: see state.h.
//
// A word is read, sent, received and written by one thread, so a buffer may be both the source and the destination.
#pragma once

#include "kernels/coll/bytes.cuh"
#include "kernels/coll/flows.cuh"
#include "kernels/coll/fold.cuh"

namespace epw {

__device__ __forceinline__ uint64_t words_of(uint64_t bytes) { return (bytes + 7) / 8; }

// Where word i of a message of the source lies in its reader's window.
__device__ __forceinline__ uint64_t packet_of(const Collective &c, uint32_t source, uint64_t i) {
    return call_of(c, source) + (EPW_COLL_CALL_PACKETS + i) * EPW_COLL_PACKET;
}

// Some words, `step` apart: they are read before the first one is sent.
template <uint32_t kWords> __device__ __forceinline__ void send_words(const Collective &c, uint64_t i, uint64_t step) {
#pragma unroll 1
    for (uint32_t d = 1; d < c.ranks; d++) {
        const uint32_t peer = peer_after(c, d);
        const Stretch s = given_to(c, peer);
        if (!takes_part(c, peer)) continue;
        uint64_t words[kWords] = {};
#pragma unroll
        for (uint32_t w = 0; w < kWords; w++) {
            const uint64_t at = 8 * (i + w * step);
            if (at < s.bytes) words[w] = read<uint64_t>(s.at + at, s.bytes - at);
        }
#pragma unroll
        for (uint32_t w = 0; w < kWords; w++) {
            if (8 * (i + w * step) < s.bytes) put_packet(c, peer, packet_of(c, c.rank, i + w * step), words[w], c.tag);
        }
    }
}

// Waits for a packet. False: it does not come.
__device__ __forceinline__ bool await_packet(Collective &c, uint32_t source, uint64_t offset, Packet &packet) {
    if (packet.tag == c.tag) return true;
    return await_peer(c, source, c.tag, [&] {
        packet = packet_at(c, offset);
        return packet.tag == c.tag;
    });
}

// Packets that are on their way to a thread: those of a word from some sources, or of some words, `step` apart, from one.
constexpr uint32_t kAtOnce = 4;

// Looks for packets at a time, as often as those that come soon need; `from(k)` is whose they are, or nobody's. What has not come
// by then await_packet waits for.
template <uint32_t kSources, uint32_t kWords, typename From>
__device__ __forceinline__ void look_for_words(const Collective &c, uint64_t i, uint64_t step, const From &from,
                                               Packet (&packets)[kSources][kWords]) {
    constexpr uint32_t kLooks = 16;
#pragma unroll 1
    for (uint32_t looks = 0; looks < kLooks; looks++) {
#pragma unroll
        for (uint32_t k = 0; k < kSources; k++) {
            const uint32_t source = from(k);
#pragma unroll
            for (uint32_t w = 0; w < kWords; w++) {
                if (source >= c.ranks || packets[k][w].tag == c.tag) continue;
                packets[k][w] = packet_at(c, packet_of(c, source, i + w * step));
            }
        }
        bool all = true;
#pragma unroll
        for (uint32_t k = 0; k < kSources; k++) {
#pragma unroll
            for (uint32_t w = 0; w < kWords; w++) all = all && (from(k) >= c.ranks || packets[k][w].tag == c.tag);
        }
        if (all) return;
    }
}

// The word of a source's message is here, or never.
__device__ __forceinline__ void take_word(Collective &c, uint32_t source, uint64_t i, Packet packet) {
    const Stretch s = taken_from(c, source);
    if (c.stopped) return;
    if (await_packet(c, source, packet_of(c, source, i), packet)) {
        write<uint64_t>(s.at + 8 * i, packet.data, s.bytes - 8 * i);
    }
}

// Nobody: no rank.
constexpr uint32_t kNoSource = ~0u;

template <uint32_t kWords> __device__ __forceinline__ void take_words(Collective &c, uint64_t i, uint64_t step) {
    constexpr uint32_t kSources = kAtOnce / kWords;
#pragma unroll 1
    for (uint32_t first = 1; first < c.ranks; first += kSources) {
        Packet packets[kSources][kWords] = {};
        auto from = [&](uint32_t k) {
            if (first + k >= c.ranks) return kNoSource;
            const uint32_t source = peer_after(c, first + k);
            return takes_part(c, source) && taken_from(c, source).bytes > 8 * (i + (kWords - 1) * step) ? source : kNoSource;
        };
        look_for_words(c, i, step, from, packets);
#pragma unroll
        for (uint32_t k = 0; k < kSources; k++) {
            const uint32_t source = from(k);
#pragma unroll
            for (uint32_t w = 0; w < kWords; w++) {
                if (source != kNoSource) take_word(c, source, i + w * step, packets[k][w]);
            }
        }
    }
}

template <typename T, uint32_t kWords>
__device__ __forceinline__ void fold_words(Collective &c, const Folding &f, uint64_t i, uint64_t step) {
    constexpr uint32_t kSources = kAtOnce / kWords;
    uint64_t own[kWords];
    Word<T> sum[kWords];
    bool begun[kWords] = {};
#pragma unroll
    for (uint32_t w = 0; w < kWords; w++) own[w] = read<uint64_t>(f.own + 8 * (i + w * step), f.bytes - 8 * (i + w * step));
#pragma unroll 1
    for (uint32_t first = 0; first < c.ranks; first += kSources) {
        Packet packets[kSources][kWords] = {};
        auto from = [&](uint32_t k) {
            const uint32_t source = first + k;
            return source < c.ranks && source != c.rank && takes_part(c, source) ? source : kNoSource;
        };
        look_for_words(c, i, step, from, packets);
#pragma unroll
        for (uint32_t k = 0; k < kSources; k++) {
            const uint32_t source = first + k;
            if (source >= c.ranks || !takes_part(c, source) || c.stopped) continue;
#pragma unroll
            for (uint32_t w = 0; w < kWords; w++) {
                if (source == c.rank) {
                    packets[k][w].data = own[w];
                } else if (!await_packet(c, source, packet_of(c, source, i + w * step), packets[k][w])) {
                    continue;
                }
                if (begun[w]) {
                    sum[w].fold(packets[k][w].data, c.args->op);
                } else {
                    sum[w].begin(packets[k][w].data);
                }
                begun[w] = true;
            }
        }
    }
#pragma unroll
    for (uint32_t w = 0; w < kWords; w++) {
        const uint64_t at = 8 * (i + w * step);
        if (!begun[w]) continue;
        write<uint64_t>(f.out + at, c.members == 1 ? own[w] : sum[w].end(c.args->op, c.members), f.bytes - at);
    }
}

template <typename T> __device__ __forceinline__ void run_small(Collective &c) {
    tell_call(c);
    const uint64_t step = gridDim.x * blockDim.x, begin = blockIdx.x * blockDim.x + threadIdx.x;
    const uint64_t words = words_of(c.args->bytes);
    uint64_t sent = begin;
    for (; sent + (kAtOnce - 1) * step < words; sent += kAtOnce * step) send_words<kAtOnce>(c, sent, step);
    for (; sent < words; sent += step) send_words<1>(c, sent, step);
    if constexpr (std::is_void_v<T>) {
        const Folding f = given_to_itself(c);
        for (uint64_t i = begin; 8 * i < f.bytes; i += step) {
            write<uint64_t>(f.out + 8 * i, read<uint64_t>(f.own + 8 * i, f.bytes - 8 * i), f.bytes - 8 * i);
        }
        uint64_t i = begin;
        for (; i + (kAtOnce - 1) * step < words; i += kAtOnce * step) take_words<kAtOnce>(c, i, step);
        for (; i + step < words; i += 2 * step) take_words<2>(c, i, step);
        for (; i < words; i += step) take_words<1>(c, i, step);
    } else {
        const Folding f = folded_here(c);
        const uint64_t folded = words_of(f.bytes);
        uint64_t i = begin;
        for (; i + (kAtOnce - 1) * step < folded; i += kAtOnce * step) fold_words<T, kAtOnce>(c, f, i, step);
        for (; i + step < folded; i += 2 * step) fold_words<T, 2>(c, f, i, step);
        for (; i < folded; i += step) fold_words<T, 1>(c, f, i, step);
    }
    await_calls(c);
}

} // namespace epw
