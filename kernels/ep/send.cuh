// The sending half of dispatch. A block takes a token at a time: its row passes through shared memory, quantised on the way,
// and leaves in bulk for each rank that owns one of its experts. While the row loads, the block finds the row's numbers.
#pragma once

#include "../comm/lane.cuh"
#include "../ptx/bulk.cuh"
#include "quantise.cuh"
#include "route.cuh"
#include "stage.cuh"

namespace epw {

constexpr uint32_t kHeld = 2; // 16-byte chunks of a row that a thread holds in registers

struct SendShared {
    Token token;
    uint64_t loaded[2]; // barriers: a stage's row has come
    uint32_t rows;      // of count_all
};

// A token's row in pieces that fit a stage.
struct Pieces {
    uint32_t channel_bytes, piece, count; // bytes of payload in one piece, but for the last

    __device__ Pieces(const epw_dispatch_args &a, bool quantise) {
        channel_bytes = quantise ? 2 : 1; // bytes of input for each byte of payload
        constexpr uint32_t kMost = kHeld * kThreads * 8, kEven = 16 * EPW_FP8_BLOCK; // whose scales are whole 16 bytes
        piece = !quantise ? kPieceBytes : a.payload_bytes <= kMost ? kMost : kMost / kEven * kEven;
        count = (a.payload_bytes + piece - 1) / piece;
    }
    __device__ uint32_t bytes(const epw_dispatch_args &a, uint32_t i) const {
        return min(piece, a.payload_bytes - i * piece);
    }
};

// By warp 0: what goes in front of the row.
__device__ __forceinline__ void put_header(const epw_dispatch_args &a, const Entry &e, uint32_t index, uint32_t t,
                                           unsigned char *stage) {
    const epw_layout &l = a.layout;
    uint32_t lane = threadIdx.x % 32;
    if (lane == 0) *reinterpret_cast<uint4 *>(stage) = {t, a.format, 0, 0};
    if (lane < l.topk) {
        reinterpret_cast<epw_entry *>(stage + sizeof(epw_slot_header))[lane] = {e.expert, e.weight};
        reinterpret_cast<uint32_t *>(stage + epw_indices_offset(&l))[lane] = index;
    }
    const unsigned char *sideband = static_cast<const unsigned char *>(a.sideband) + size_t(t) * a.sideband_bytes;
    for (uint32_t i = lane; i < a.sideband_bytes; i += 32) stage[epw_sideband_offset(&l) + i] = sideband[i];
}

// By warp 0: the lane's memory of where the token went, for combine.
__device__ __forceinline__ void remember(const epw_dispatch_args &a, const Operation &o, const Entry &e, uint32_t row, uint32_t t) {
    uint32_t lane = threadIdx.x % 32;
    if (lane >= a.layout.topk) return;
    size_t at = size_t(t) * a.layout.topk + lane;
    o.ids[at] = e.expert;
    o.weights[at] = e.weight;
    o.sent_row[at] = row;
}

// The caller's scales of an opaque row, as they travel.
__device__ inline void copy_scales(const epw_dispatch_args &a, uint32_t t, unsigned char *to) {
    const unsigned char *from = static_cast<const unsigned char *>(a.scales) + t * a.scale_row_stride;
    for (uint32_t i = threadIdx.x; i < a.scale_count * a.scale_bytes; i += blockDim.x) {
        to[i] = from[i / a.scale_bytes * a.scale_col_stride + i % a.scale_bytes];
    }
}

// Sends the tokens of this block. `table`: [local_experts] of shared memory. The operation is being read when this is called.
template <typename T, uint32_t Payload>
__device__ void send_tokens(const epw_dispatch_args &a, Operation &o, SendShared &s, unsigned char *memory, uint32_t *table) {
    constexpr bool kQuantise = quantises(Payload);
    const epw_layout &l = a.layout;
    epw_gpu_context *c = a.context;
    const unsigned char *x = static_cast<const unsigned char *>(a.x);
    const RowStages stages(l, a.payload_bytes, a.scale_count * a.scale_bytes);
    const Pieces pieces(a, kQuantise);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t scale_bytes = a.scale_count * a.scale_bytes;
    const bool whole = pieces.count == 1 && (kQuantise || scale_bytes <= kScaleRoom); // in one stage
    const uint32_t jobs = blockIdx.x < a.tokens ? ((a.tokens - blockIdx.x - 1) / gridDim.x + 1) * pieces.count : 0;

    // The row, or the piece, of job n is on its way while the block still works on what is before it.
    uint4 held[kHeld];
    auto fetch = [&](uint32_t n) {
        if (n >= jobs) return;
        uint32_t t = blockIdx.x + n / pieces.count * gridDim.x, i = n % pieces.count, bytes = pieces.bytes(a, i);
        const unsigned char *from = x + t * a.x_stride + uint64_t(i) * pieces.piece * pieces.channel_bytes;
        if constexpr (kQuantise) {
#pragma unroll
            for (uint32_t k = 0; k < kHeld; k++) {
                uint32_t chunk = k * kThreads + threadIdx.x;
                held[k] = chunk * 8 < bytes ? ptx::load_once(from + chunk * 16) : uint4{};
            }
        } else if (threadIdx.x == 0) {
            ptx::barrier_expect(&s.loaded[n % 2], bytes);
            ptx::bulk_load(memory + n % 2 * stages.bytes + stages.header, from, bytes, &s.loaded[n % 2]);
        }
    };
    RawId raw = {};
    float weight = 0.0f;
    auto fetch_entry = [&](uint32_t t) { // by warp 0
        bool inside = t < a.tokens && lane < a.topk;
        raw = load_id(a, t, lane, inside);
        if (a.topk_weights && inside) weight = a.topk_weights[size_t(t) * a.topk + lane];
    };
    fetch(0);
    if (warp == 0) fetch_entry(blockIdx.x);
    RawId ids[kIds];
    load_ids(a, threadIdx.x / kPerToken, 0, threadIdx.x / kPerToken < blockIdx.x && jobs > 0, ids);
    // Permission of every peer, looked for by the last warps before anybody knows which word would be the right one.
    const uint32_t peer = threadIdx.x - (kThreads - EPW_GPU_MAX_RANKS);
    uint64_t dropped = 0, permission = 0;
    if (peer < l.ranks) {
        const epw_line *line = reinterpret_cast<const epw_line *>(a.window + epw_line_offset(peer));
        dropped = ptx::load_relaxed_sys(&line->dropped);
        permission = ptx::load_acquire_sys(&line->combine[a.lane]);
    }
    Entry e = {-1, 0.0f, kNobody, lane};
    bool bad = false;
    if (warp == 0) e = name_token(a, s.token, raw, weight, &bad);
    __syncthreads(); // the operation is there, and the first token
    if (o.stage != EPW_GPU_FREE) {
        while (!kQuantise && jobs > 0 && threadIdx.x == 0 && !ptx::barrier_try_wait(&s.loaded[0], 0)) {}
        return;
    }

    if (peer < l.ranks && (o.peers >> peer & 1)) {
        bool early = !o.first && is_expected(o, Awaited::permission, permission) && epw_word_epoch(dropped) < o.epoch;
        if (o.suspects >> peer & 1) {
            leave_out(o, peer);
        } else if (!early && !await(o, Awaited::permission, EPW_PHASE_DISPATCH_SEND, peer, false).arrived) {
            leave_out(o, peer);
        }
    }

    for (uint32_t n = 0; n < jobs; n++) {
        uint32_t t = blockIdx.x + n / pieces.count * gridDim.x, piece = n % pieces.count, bytes = pieces.bytes(a, piece);
        unsigned char *stage = memory + n % 2 * stages.bytes, *payload = stage + stages.header;
        unsigned char *scales = payload + bytes;
        if (bad && atomicAdd(&c->noted, 1u) < EPW_GPU_NOTES) {
            put_note(o, EPW_PHASE_DISPATCH_SEND, EPW_CAUSE_ROUTING, uint64_t(t) << 32 | lane, raw_value(a, raw));
        }
        bad = false;
        if (piece == 0) {
            for (uint32_t base = 0; base < t; base += kThreads / kPerToken) {
                uint32_t u = base + threadIdx.x / kPerToken;
                if (base > 0 || n > 0) load_ids(a, u, 0, u < t, ids);
                if (base + (threadIdx.x & ~31u) / kPerToken < t) count_round(a, s.token, ids, u, u < t);
            }
            __syncthreads(); // the numbers are there
            if (warp == 0) put_header(a, e, s.token.index[lane], t, stage);
        }
        if constexpr (kQuantise) {
#pragma unroll
            for (uint32_t k = 0; k < kHeld; k++) {
                uint32_t chunk = k * kThreads + threadIdx.x;
                if ((chunk & ~31u) * 8 < bytes) quantise_chunk<T, Payload>(held[k], chunk * 8 < bytes, chunk, payload, scales);
            }
        } else {
            if (whole && scale_bytes > 0) copy_scales(a, t, scales);
            if (warp == 0) {
                while (!ptx::barrier_try_wait(&s.loaded[n % 2], n / 2 & 1)) {}
            }
        }
        ptx::fence_shared_before_bulk();
        __syncthreads();
        uint64_t reachable = o.peers & ~uint64_t(o.gone);
        if (warp == 0) {
            uint32_t row = __shfl_sync(0xffffffffu, s.token.row[lane], e.leader);
            if (e.rank != kNobody && e.leader == lane && (reachable >> e.rank & 1)) {
                unsigned char *slot = o.window[e.rank] + epw_slot_offset(&l, o.lane, o.rank, row);
                if (whole) {
                    ptx::bulk_store(slot, stage, stages.header + align_16(bytes + scale_bytes));
                } else {
                    uint64_t at = uint64_t(piece) * pieces.piece;
                    if (piece == 0) ptx::bulk_store(slot, stage, stages.header);
                    ptx::bulk_store(slot + l.header_bytes + at, payload, bytes);
                    if (kQuantise) {
                        uint32_t per_scale = EPW_FP8_BLOCK / a.scale_bytes;
                        ptx::bulk_store(slot + l.header_bytes + a.payload_bytes + at / per_scale, scales,
                                        align_16(bytes / per_scale));
                    }
                }
            }
            ptx::bulk_commit();
            if (piece == 0) remember(a, o, e, row, t);
        }
        if (!kQuantise && !whole && piece == 0 && scale_bytes > 0) {
            // Scales that are not staged go straight to the slots.
            for (uint32_t j = 0; j < a.topk; j++) {
                if (s.token.first[j] == kNoFirst) continue;
                uint32_t rank = s.token.first[j] / l.local_experts;
                if (!(reachable >> rank & 1)) continue;
                unsigned char *slot = o.window[rank] + epw_slot_offset(&l, o.lane, o.rank, s.token.row[j]);
                copy_scales(a, t, slot + l.header_bytes + a.payload_bytes);
            }
        }
        if (n + 1 == jobs) break;
        if (warp == 0) {
            ptx::bulk_wait_read<1>(); // the other stage has been read out, by every lane's stores
            __syncwarp();
            if (piece + 1 == pieces.count) fetch_entry(t + gridDim.x);
        }
        fetch(n + 1);
        __syncthreads(); // all have read the token
        if (warp == 0 && piece + 1 == pieces.count) e = name_token(a, s.token, raw, weight, &bad);
        __syncthreads();
    }

    // What each peer places the rows by, and how many there are: by the last blocks, which have the fewest tokens.
    for (uint32_t r = gridDim.x - 1 - blockIdx.x; r < o.ranks; r += gridDim.x) {
        __syncthreads();
        if (!((o.peers & ~uint64_t(o.gone)) >> r & 1)) continue;
        count_all(a, r, table, &s.rows);
        __syncthreads();
        uint32_t *counts = reinterpret_cast<uint32_t *>(o.window[r] + epw_expert_counts_offset(&l, o.lane, o.rank));
        for (uint32_t i = threadIdx.x; i < l.local_experts; i += blockDim.x) counts[i] = table[i];
        if (threadIdx.x == 0) c->sent[r] = epw_word(o.epoch, o.op, s.rows);
    }

    // Writer of the words: the last block here. Its acquire sees what every block has released, rows and counts included; its
    // release at system scope hands that on to the peer, whose acquire of the word sees it all. What the words are is mostly
    // known while the rows are still under way.
    uint64_t word = threadIdx.x < o.ranks ? ptx::load_relaxed_gpu(&c->sent[threadIdx.x]) : 0;
    if (warp == 0) ptx::bulk_wait_all();
    if (!last_block(o, &c->blocks_sent)) return;
    uint64_t reachable = o.peers & ~ptx::load_relaxed_gpu(&c->gone);
    if (threadIdx.x >= o.ranks || !(reachable >> threadIdx.x & 1)) return;
    if (!epw_word_matches(word, o.epoch, o.op)) word = ptx::load_relaxed_gpu(&c->sent[threadIdx.x]);
    ptx::store_release_sys(&line_at(o, threadIdx.x)->dispatch[o.lane], word);
}

} // namespace epw
