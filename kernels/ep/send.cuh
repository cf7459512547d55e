// The sending half of dispatch. A block takes a token at a time: its row passes through shared memory, quantised on the way,
// and leaves in bulk for each rank that owns one of its experts. The next row, or piece of one, loads meanwhile.
#pragma once

#include "../comm/lane.cuh"
#include "../ptx/bulk.cuh"
#include "route.cuh"
#include "shape.cuh"

namespace epw {

struct SendShared {
    Token token;
    uint64_t loaded[2]; // barriers: a stage's row has come
    uint32_t rows;      // of count_all
};

// By warp 0: what goes in front of the row.
__device__ __forceinline__ void put_header(const Dispatch &a, const Token &token, uint32_t t, unsigned char *stage) {
    const epw_layout &l = a.layout;
    uint32_t lane = threadIdx.x % 32;
    if (lane == 0) *reinterpret_cast<uint4 *>(stage) = {t, a.format, 0, 0};
    if (lane < l.topk) {
        reinterpret_cast<epw_entry *>(stage + sizeof(epw_slot_header))[lane] = {token.expert[lane], token.weight[lane]};
        reinterpret_cast<uint32_t *>(stage + epw_indices_offset(&l))[lane] = token.index[lane];
    }
    const unsigned char *sideband = static_cast<const unsigned char *>(a.sideband) + size_t(t) * a.sideband_bytes;
#pragma unroll 1
    for (uint32_t i = lane; i < a.sideband_bytes; i += 32) stage[epw_sideband_offset(&l) + i] = sideband[i];
}

// By one warp: the lane's memory of where the token went, for combine.
__device__ __forceinline__ void remember(const Dispatch &a, const Operation &o, const Token &token, uint32_t t) {
    uint32_t lane = threadIdx.x % 32;
    if (lane >= a.layout.topk) return;
    size_t at = size_t(t) * a.layout.topk + lane;
    o.ids[at] = token.expert[lane];
    o.weights[at] = token.weight[lane];
    o.sent_row[at] = token.row[token.leader[lane]];
}

// The caller's scales of an opaque row, as they travel.
__device__ inline void copy_scales(const Dispatch &a, uint32_t t, unsigned char *to) {
    const unsigned char *from = static_cast<const unsigned char *>(a.scales) + t * a.scale_row_stride;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < a.scales_size; i += blockDim.x) {
        to[i] = from[i / a.scale_bytes * a.scale_col_stride + i % a.scale_bytes];
    }
}

// Sends the tokens of this block. `table`: [local_experts] of shared memory. `opening` is on its way when this is called.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void send_tokens(const Dispatch &a, const Opening &opening, Operation &o, SendShared &s, unsigned char *memory,
                                            uint32_t *table) {
    constexpr bool kQuantise = quantises(Payload);
    const epw_layout &l = a.layout;
    epw_gpu_context *c = a.context;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool whole = a.pieces.count == 1 && (kQuantise || a.scales_size <= kScaleRoom); // in one stage

    // A piece of a token's row, and the stage that it passes through: one of two, in turn.
    struct Job {
        uint32_t t, piece, n;
    } job = {blockIdx.x, 0, 0};
    auto bytes_of = [&](const Job &j) { return min(a.pieces.bytes, a.payload_bytes - j.piece * a.pieces.bytes); };
    auto stage_of = [&](const Job &j) { return memory + (j.n & 1) * a.stages.bytes; };
    uint4 held[kQuantised]; // chunks of a piece that is to be quantised
    auto fetch = [&](const Job &j) {
        if (j.t >= a.tokens) return;
        uint32_t bytes = bytes_of(j);
        const unsigned char *from = static_cast<const unsigned char *>(a.x) + j.t * a.x_stride;
        from += uint64_t(j.piece) * a.pieces.bytes * (kQuantise ? 2 : 1);
        if constexpr (kQuantise) {
#pragma unroll
            for (uint32_t k = 0; k < kQuantised; k++) {
                uint32_t chunk = quantised_chunk(k);
                held[k] = chunk * 8 < bytes ? ptx::load_relaxed_gpu_once(from + chunk * 16) : uint4{};
            }
        } else if (threadIdx.x == 0) {
            if (j.n == 0) ptx::fence_global_before_bulk(); // earlier kernels have written the tokens with ordinary stores
            ptx::barrier_expect(&s.loaded[j.n & 1], bytes);
            ptx::bulk_load(stage_of(j) + a.stages.header, from, bytes, &s.loaded[j.n & 1]);
        }
    };
    auto loaded = [&](const Job &j) { return ptx::barrier_try_wait(&s.loaded[j.n & 1], j.n / 2 & 1); };
    // What the block itself puts into the stage: a quantised piece, or scales beside a row that comes in bulk.
    auto put_piece = [&](const Job &j) {
        uint32_t bytes = bytes_of(j);
        unsigned char *payload = stage_of(j) + a.stages.header;
        if constexpr (kQuantise) {
            constexpr uint32_t kEach = kQuantised * 8; // bytes of a thread, in a piece that all of them share
            if (warp * 32 * kEach < bytes) quantise_chunks<T, Payload>(held, threadIdx.x * kEach < bytes, payload, payload + bytes);
        } else if (whole && a.scales_size > 0) {
            copy_scales(a, j.t, payload + bytes);
        }
        ptx::fence_shared_before_bulk();
    };
    RawId raw = {};
    float weight = 0.0f;
    auto fetch_entry = [&](uint32_t t) { // by warp 0
        bool inside = t < a.tokens && lane < a.topk;
        raw = load_id(a, t, lane, inside);
        if (a.topk_weights && inside) weight = a.topk_weights[size_t(t) * a.topk + lane];
    };
    if (warp == 0) fetch_entry(job.t);
    fetch(job);
    RawId ids[kEarly][kIds];
    auto fetch_ids = [&](uint32_t t) { // of the tokens before t
#pragma unroll
        for (uint32_t i = 0; i < kEarly; i++) {
            uint32_t u = i * kRound + threadIdx.x / kPerToken;
            load_ids(a, u, 0, u < t && t < a.tokens, ids[i]);
        }
    };
    fetch_ids(job.t);
    // Permission of every peer, looked for by the last warps before anybody knows which word would be the right one.
    const uint32_t peer = threadIdx.x - (kThreads - EPW_GPU_MAX_RANKS);
    uint64_t dropped = 0, permission = 0;
    if (peer < l.ranks) {
        const epw_line *line = reinterpret_cast<const epw_line *>(a.window + epw_line_offset(peer));
        dropped = ptx::load_relaxed_sys(&line->dropped);
        permission = ptx::load_acquire_sys(&line->combine[a.lane]);
    }
    bool bad = false;
    if (warp == 0) name_token(a, s.token, raw, weight, &bad);
    // The ranks that this block tells their counts: its number from the last block's, and so on.
    const uint32_t counted = gridDim.x - 1 - blockIdx.x;
    if (job.t >= a.tokens && counted < l.ranks) count_all(a, counted, table, &s.rows);
    opening.write(o, true);
    if (job.t < a.tokens) put_piece(job);
    __syncthreads(); // the operation is there, and the first token with its piece
    if (o.stage != EPW_GPU_FREE) {
        while (!kQuantise && job.t < a.tokens && threadIdx.x == 0 && !loaded(job)) {}
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

    while (job.t < a.tokens) {
        Job next = {job.t, job.piece + 1, job.n + 1};
        if (next.piece == a.pieces.count) next = {job.t + gridDim.x, 0, job.n + 1};
        const bool more = next.t < a.tokens;
        const uint32_t t = job.t, piece = job.piece, bytes = bytes_of(job);
        unsigned char *stage = stage_of(job), *payload = stage + a.stages.header;
        if (kQuantise) fetch(next);
        if (bad) {
            atomicOr(&o.troubled, 1u); // there will be a count of notes to clear
            if (atomicAdd(&c->noted, 1u) < EPW_GPU_NOTES) {
                put_note(o, EPW_PHASE_DISPATCH_SEND, EPW_CAUSE_ROUTING, uint64_t(t) << 32 | lane, raw_value(a, raw));
            }
            bad = false;
        }
        if (piece == 0) {
#pragma unroll 1
            for (uint32_t base = 0; base < t; base += kRound) {
                uint32_t u = base + threadIdx.x / kPerToken;
                if (base >= kEarly * kRound) load_ids(a, u, 0, u < t, ids[0]);
                if (base + (threadIdx.x & ~31u) / kPerToken < t) count_round(a, s.token, ids[0], u, u < t);
#pragma unroll
                for (uint32_t i = 0; i + 1 < kEarly; i++) {
                    for (uint32_t k = 0; k < kIds; k++) ids[i][k] = ids[i + 1][k];
                }
            }
            if (a.pieces.count == 1) fetch_ids(next.t);
        }
        __syncthreads(); // the numbers are there
        const uint64_t reachable = o.peers & ~uint64_t(o.gone);
        if (piece == 0) {
            if (warp == 0) {
                put_header(a, s.token, t, stage);
                ptx::fence_shared_before_bulk();
            } else if (warp == kWarps - 1) {
                remember(a, o, s.token, t);
            }
            __syncthreads(); // the header is there
        }
        // Permission was acquired by generic loads; the engine writes now.
        if (lane == 0 && job.n == 0) ptx::fence_global_before_bulk();
        // A warp to an entry: the first one to a rank sends the row there.
#pragma unroll 1
        for (uint32_t j = warp; lane == 0 && j < a.topk; j += kWarps) {
            uint32_t first = s.token.first[j], rank = a.per_rank.divide(first);
            if (first == kNoFirst || !(reachable >> rank & 1)) continue;
            while (!kQuantise && !loaded(job)) {}
            unsigned char *slot = o.window[rank] + epw_slot_offset(&l, a.lane, a.rank, s.token.row[j]);
            if (whole) {
                ptx::bulk_store(slot, stage, a.stages.header + align_16(bytes + a.scales_size));
            } else {
                uint64_t at = uint64_t(piece) * a.pieces.bytes;
                if (piece == 0) ptx::bulk_store(slot, stage, a.stages.header);
                ptx::bulk_store(slot + l.header_bytes + at, payload, bytes);
                if (kQuantise) {
                    uint32_t per_scale = EPW_FP8_BLOCK / a.scale_bytes;
                    ptx::bulk_store(slot + l.header_bytes + a.payload_bytes + at / per_scale, payload + bytes,
                                    align_16(bytes / per_scale));
                }
            }
        }
        ptx::bulk_commit();
        if (!kQuantise && !whole && piece == 0 && a.scales_size > 0) {
            // Scales that are not staged go straight to the slots.
#pragma unroll 1
            for (uint32_t j = 0; j < a.topk; j++) {
                if (s.token.first[j] == kNoFirst) continue;
                uint32_t rank = a.per_rank.divide(s.token.first[j]);
                if (!(reachable >> rank & 1)) continue;
                unsigned char *slot = o.window[rank] + epw_slot_offset(&l, a.lane, a.rank, s.token.row[j]);
                copy_scales(a, t, slot + l.header_bytes + a.payload_bytes);
            }
        }
        // Even a row that goes nowhere must have come, before its stage and barrier are used again or the block ends.
        while (!kQuantise && threadIdx.x == 0 && !loaded(job)) {}
        if (!more) break;
        if (warp == 0 && next.piece == 0) fetch_entry(next.t);
        if (a.pieces.count > 1 && next.piece == 0) fetch_ids(next.t);
        if (lane == 0) ptx::bulk_wait_read<1>(); // the other stage has been read out
        __syncthreads(); // by every warp's stores, and all have read the token
        if (!kQuantise) fetch(next);
        if (warp == 0 && next.piece == 0) name_token(a, s.token, raw, weight, &bad);
        put_piece(next);
        __syncthreads(); // the next token is there with its piece
        job = next;
    }

    // What each peer places the rows by, and how many there are: by the last blocks, which have the fewest tokens. Those without
    // any have counted while they waited.
#pragma unroll 1
    for (uint32_t r = counted; r < l.ranks; r += gridDim.x) {
        __syncthreads();
        if (!((o.peers & ~uint64_t(o.gone)) >> r & 1)) continue;
        if (r != counted || blockIdx.x < a.tokens) count_all(a, r, table, &s.rows);
        __syncthreads();
        uint32_t *counts = reinterpret_cast<uint32_t *>(o.window[r] + epw_expert_counts_offset(&l, o.lane, o.rank));
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < l.local_experts; i += blockDim.x) counts[i] = table[i];
        if (threadIdx.x == 0) ptx::store_relaxed_sys(&c->sent[r], epw_word(o.epoch, o.op, s.rows));
    }

    // Writer of the words: the last block here. It has acquired what every block has released, rows and counts included; its
    // release at system scope hands that on to the peer, whose acquire of the word sees it all. What the words are is mostly
    // known while the rows are still under way.
    uint64_t word = threadIdx.x < o.ranks ? ptx::load_relaxed_gpu(&c->sent[threadIdx.x]) : 0;
    if (lane == 0) ptx::bulk_wait_all();
    if (!last_to_send(o)) return;
    uint64_t reachable = o.peers & ~o.lost;
    if (threadIdx.x >= o.ranks || !(reachable >> threadIdx.x & 1)) return;
    if (!epw_word_matches(word, o.epoch, o.op)) word = ptx::load_relaxed_gpu(&c->sent[threadIdx.x]);
    ptx::store_release_sys(&line_at(o, threadIdx.x)->dispatch[o.lane], word);
}

} // namespace epw
