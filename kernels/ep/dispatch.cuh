// Dispatch on the GPU: number the rows, send them, lay out what arrives. One block works on one token at a time.
#pragma once

#include "../comm/context.h"
#include "../comm/wait.cuh"
#include "../ptx/bulk.cuh"
#include "../ptx/memory.cuh"
#include "launch.h"
#include "number.cuh"
#include "route.cuh"

namespace epw {

#ifdef EPW_STAMPS
#define STAMP(i) do { if (threadIdx.x == 0) c->stamps[blockIdx.x][i] = clock64(); } while (0)
#else
#define STAMP(i)
#endif

constexpr uint32_t kThreads = 512;
constexpr uint32_t kReceiveStages = 4;
constexpr uint32_t kChunks = 2; // of 16 bytes, held in registers per thread: rows to 8192 channels are read in one go

struct DispatchShared {
    unsigned char *window[EPW_GPU_MAX_RANKS];
    uint32_t rows[EPW_GPU_MAX_RANKS]; // received from each source
    uint64_t active, targets, deadline_ns;
    unsigned long long gone;
    uint32_t epoch, op, first, last;
    uint64_t loaded[kReceiveStages]; // barriers of bulk loads
    uint32_t parity;                 // of each barrier when receiving begins
};

// ---- sending ----

// Quantises what this thread holds of a row into staging: q behind the header, scales behind q.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void quantise_chunk(uint4 raw, bool inside, uint32_t chunk, unsigned char *payload,
                                               unsigned char *scales) {
    float x[8];
    const uint32_t *pairs = &raw.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = T::low(pairs[i]);
        x[2 * i + 1] = T::high(pairs[i]);
    }
    float amax = 1e-4f;
#pragma unroll
    for (int i = 0; i < 8; i++) amax = fmaxf(amax, fabsf(x[i])); // a NaN never raises it
#pragma unroll
    for (int step = 8; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, step));
    if (!inside) return;
    Scale s = Payload == EPW_PAYLOAD_FP8_F32 ? scale_f32(amax) : scale_power_of_two(amax);
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = __fmul_rn(x[i], s.inverse);
    reinterpret_cast<uint2 *>(payload)[chunk] = {pack_e4m3(y, x), pack_e4m3(y + 4, x + 4)};
    if (chunk % 16 != 0) return;
    if (Payload == EPW_PAYLOAD_FP8_UE8M0) {
        scales[chunk / 16] = __float_as_uint(s.scale) >> 23;
    } else {
        reinterpret_cast<float *>(scales)[chunk / 16] = s.scale;
    }
}

// Where the entries of one token go: in lanes 0 .. topk-1 of a warp.
struct Entry {
    int32_t expert;
    float weight;
    uint32_t rank, row, index;
    bool send, leads; // routed to a target; the first entry of its rank
};

template <typename Index>
__device__ Entry entry_of(const epw_dispatch_args &a, const epw_layout &l, const Route &route, uint64_t targets,
                          uint32_t experts, uint32_t t, uint32_t pass) {
    uint32_t lane = threadIdx.x % 32;
    Entry e = {-1, 0.0f, 0, 0xffffffffu, 0, false, false};
    bool bad = false;
    if (lane < a.topk) e.expert = read_id(static_cast<const Index *>(a.topk_idx), size_t(t) * a.topk + lane, experts, &bad);
    uint32_t same = __match_any_sync(0xffffffffu, e.expert);
    if (e.expert >= 0 && (same & ((1u << lane) - 1)) != 0) e.expert = -1;
    if (e.expert >= 0 && a.topk_weights) e.weight = a.topk_weights[size_t(t) * a.topk + lane];
    e.rank = e.expert >= 0 ? e.expert / l.local_experts : 0xffffffffu;
    e.send = e.expert >= 0 && (targets >> e.rank & 1) != 0;
    uint32_t peers = __match_any_sync(0xffffffffu, e.send ? e.rank : 0x80000000u + lane);
    e.leads = e.send && (peers & ((1u << lane) - 1)) == 0;
    if (e.send) {
        uint32_t at = t - pass;
        e.row = number_of(route.rank_bits + e.rank * kRouteWords, route.rank_base[e.rank], at);
        e.index = number_of(route.expert_bits + e.expert * kRouteWords, route.expert_base[e.expert], at);
    }
    return e;
}

// By one warp: the slot header in staging, and the lane's memory of where the token went.
__device__ inline void put_header(const epw_dispatch_args &a, epw_gpu_context *c, const epw_layout &l, const Entry &e,
                                  uint32_t t, unsigned char *staging) {
    uint32_t lane = threadIdx.x % 32;
    if (lane == 0) *reinterpret_cast<uint4 *>(staging) = {t, a.format, 0, 0};
    if (lane < l.topk) {
        reinterpret_cast<epw_entry *>(staging + sizeof(epw_slot_header))[lane] = {e.expert, e.weight};
        reinterpret_cast<uint32_t *>(staging + epw_indices_offset(&l))[lane] = e.index;
        if (blockIdx.x == t % gridDim.x) {
            size_t at = size_t(t) * l.topk + lane;
            c->ids[at] = e.expert;
            c->weights[at] = e.weight;
            c->sent_row[at] = e.row;
        }
    }
    const unsigned char *sideband = static_cast<const unsigned char *>(a.sideband) + size_t(t) * a.sideband_bytes;
    for (uint32_t i = lane; i < a.sideband_bytes; i += 32) staging[epw_sideband_offset(&l) + i] = sideband[i];
}

template <typename T, typename Index, uint32_t Payload>
__device__ void send_tokens(const epw_dispatch_args &a, epw_gpu_context *c, const epw_layout &l, DispatchShared &s,
                            Route &route, unsigned char *staging) {
    constexpr bool kQuantise = Payload == EPW_PAYLOAD_FP8_F32 || Payload == EPW_PAYLOAD_FP8_POW2 || Payload == EPW_PAYLOAD_FP8_UE8M0;
    const unsigned char *x = static_cast<const unsigned char *>(a.x);
    uint32_t row_chunks = kQuantise ? l.row_bytes / 16 : 0;
    uint32_t experts = l.local_experts * l.ranks, warp = threadIdx.x / 32;
    uint32_t bytes = l.header_bytes + ((a.payload_bytes + a.scale_count * a.scale_bytes + 15) & ~15u);
    unsigned char *payload = staging + l.header_bytes, *scales = payload + a.payload_bytes;
    bool bad = false;
    uint32_t loads = 0;

    // The first row is on its way while the block finds out where it goes.
    uint32_t t = blockIdx.x;
    uint4 held[kChunks];
    auto fetch = [&](uint32_t token) {
        if (token >= a.tokens) return;
        if constexpr (kQuantise) {
#pragma unroll
            for (uint32_t i = 0; i < kChunks; i++) {
                uint32_t chunk = i * kThreads + threadIdx.x;
                if (chunk < row_chunks) held[i] = ptx::load_once(x + token * a.x_stride + chunk * 16);
            }
        } else if (threadIdx.x == 0) {
            ptx::barrier_expect(&s.loaded[0], a.payload_bytes);
            ptx::bulk_load(payload, x + token * a.x_stride, a.payload_bytes, &s.loaded[0]);
        }
    };
    fetch(t);
    STAMP(1);

    for (uint32_t pass = 0; pass == 0 || pass < a.tokens; pass += kRouteTokens) {
        route_pass(route, static_cast<const Index *>(a.topk_idx), a.tokens, a.topk, experts, l.ranks, l.local_experts,
                   s.targets, pass, &bad);
        STAMP(2);
        if (pass == 0) {
            // Permission of every target: in the steady state it is there.
            if (threadIdx.x < l.ranks && (s.targets >> threadIdx.x & 1)) {
                epw_line *line = line_from(c, s.window[c->rank], threadIdx.x);
                Arrival got = await_word(line, &line->combine[c->lane], s.epoch, s.op, true, s.first, s.deadline_ns);
                if (got.verdict == EPW_GONE) atomicOr(&s.gone, 1ull << threadIdx.x);
            }
            __syncthreads();
        }
        STAMP(3);
        uint64_t reachable = s.targets & ~uint64_t(s.gone);
        for (; t < a.tokens && t < pass + kRouteTokens; t += gridDim.x) {
            Entry e;
            if (warp == 0) {
                e = entry_of<Index>(a, l, route, s.targets, experts, t, pass);
                put_header(a, c, l, e, t, staging);
                ptx::fence_shared_before_bulk();
            }
            if constexpr (kQuantise) {
#pragma unroll
                for (uint32_t i = 0; i < kChunks; i++) {
                    uint32_t chunk = i * kThreads + threadIdx.x;
                    if (i * kThreads < row_chunks) {
                        quantise_chunk<T, Payload>(held[i], chunk < row_chunks, chunk, payload, scales);
                    }
                }
                for (uint32_t base = kChunks * kThreads; base < row_chunks; base += kThreads) {
                    uint32_t chunk = base + threadIdx.x;
                    uint4 raw = {};
                    if (chunk < row_chunks) raw = ptx::load_once(x + t * a.x_stride + chunk * 16);
                    quantise_chunk<T, Payload>(raw, chunk < row_chunks, chunk, payload, scales);
                }
                ptx::fence_shared_before_bulk();
            } else if (warp == 0) {
                while (!ptx::barrier_try_wait(&s.loaded[0], loads & 1)) {}
            }
            loads++;
            __syncthreads();
            STAMP(4);
            if (warp == 0) {
                if (e.leads && (reachable >> e.rank & 1)) {
                    unsigned char *slot = s.window[e.rank] + epw_slot_offset(&l, c->lane, c->rank, e.row);
                    ptx::bulk_store(slot, staging, bytes);
                    ptx::bulk_commit();
                }
                if (t + gridDim.x < a.tokens) ptx::bulk_wait_read<0>();
            }
            if (t + gridDim.x < a.tokens) {
                __syncthreads();
                fetch(t + gridDim.x);
            }
        }
        route_advance(route, experts, l.ranks);
        __syncthreads();
    }

    if constexpr (!kQuantise) {
        if (threadIdx.x == 0) s.parity = loads & 1;
    }

    STAMP(5);
    // Expert counts: block r tells peer r.
    for (uint32_t r = blockIdx.x; r < l.ranks; r += gridDim.x) {
        if (!((s.targets & ~uint64_t(s.gone)) >> r & 1)) continue;
        uint32_t *counts = reinterpret_cast<uint32_t *>(s.window[r] + epw_expert_counts_offset(&l, c->lane, c->rank));
        for (uint32_t e = threadIdx.x; e < l.local_experts; e += blockDim.x) {
            counts[e] = route.expert_base[r * l.local_experts + e];
        }
    }
    if (warp == 0) ptx::bulk_wait_all();
    __syncthreads();
    STAMP(6);

    // Writer of the words: the last block here. Its acquire sees what every block has released, rows included; its release
    // at system scope hands that on to the peers.
    if (threadIdx.x == 0) s.last = ptx::add_acq_rel_gpu(&c->blocks_sent, 1) == gridDim.x - 1;
    __syncthreads();
    STAMP(7);
    if (s.last && threadIdx.x < l.ranks && (s.targets & ~uint64_t(s.gone)) >> threadIdx.x & 1) {
        epw_line *line = line_from(c, s.window[threadIdx.x], c->rank);
        c->sent[threadIdx.x] = route.rank_base[threadIdx.x];
        ptx::store_release_sys(&line->dispatch[c->lane], epw_word(s.epoch, s.op, route.rank_base[threadIdx.x]));
    }
}

// ---- receiving ----

// Waits for every target's rows; fills s.rows and the table of first rows, [ranks][local_experts].
__device__ inline void await_rows(const epw_dispatch_args &a, epw_gpu_context *c, const epw_layout &l,
                                  DispatchShared &s, uint32_t *first_row) {
    unsigned char *own = s.window[c->rank];
    if (threadIdx.x < l.ranks) {
        s.rows[threadIdx.x] = 0;
        if (s.targets >> threadIdx.x & ~uint64_t(s.gone) >> threadIdx.x & 1) {
            epw_line *line = line_from(c, own, threadIdx.x);
            Arrival got = await_word(line, &line->dispatch[c->lane], s.epoch, s.op, false, false, s.deadline_ns);
            if (got.verdict == EPW_ARRIVED) s.rows[threadIdx.x] = got.value;
            if (got.verdict == EPW_GONE) atomicOr(&s.gone, 1ull << threadIdx.x);
        }
    }
    __syncthreads();
    STAMP(9);
    for (uint32_t e = threadIdx.x; e < l.local_experts; e += blockDim.x) {
        uint32_t fill = 0, counts_now[8];
#pragma unroll
        for (uint32_t source = 0; source < 8; source++) { // all on their way before the first is needed
            if (source >= l.ranks) break;
            counts_now[source] = ptx::load_relaxed_gpu(
                reinterpret_cast<const uint32_t *>(own + epw_expert_counts_offset(&l, c->lane, source)) + e);
        }
        for (uint32_t source = 0; source < l.ranks; source++) {
            first_row[source * l.local_experts + e] = fill;
            const uint32_t *counts =
                reinterpret_cast<const uint32_t *>(own + epw_expert_counts_offset(&l, c->lane, source));
            uint32_t count = s.rows[source] > 0 ? counts_now[source < 8 ? source : 0] : 0;
            if (source >= 8 && s.rows[source] > 0) count = ptx::load_relaxed_gpu(counts + e);
            if (blockIdx.x == 0) {
                c->first_row[source * l.local_experts + e] = fill;
                if (a.ranges) {
                    a.ranges[(size_t(e) * l.ranks + source) * 2] = fill;
                    a.ranges[(size_t(e) * l.ranks + source) * 2 + 1] = count;
                }
            }
            fill += count;
        }
        if (blockIdx.x == 0 && a.counts) a.counts[e] = fill;
    }
    if (blockIdx.x == 0 && threadIdx.x < l.ranks) {
        c->received[threadIdx.x] = s.rows[threadIdx.x];
        if (a.source_counts) a.source_counts[threadIdx.x] = s.rows[threadIdx.x];
    }
    __syncthreads();
}

// Rank-major: ids, weights and the experts' row lists, one thread to an entry.
__device__ inline void list_rows(const epw_dispatch_args &a, epw_gpu_context *c, const epw_layout &l, DispatchShared &s,
                                 const uint32_t *first_row) {
    uint32_t width = l.topk, stride = gridDim.x * blockDim.x, base = c->rank * l.local_experts;
    for (uint32_t source = 0; source < l.ranks; source++) {
        for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < s.rows[source] * width; i += stride) {
            uint32_t row = i / width, j = i % width;
            const unsigned char *slot = s.window[c->rank] + epw_slot_offset(&l, c->lane, source, row);
            const uint32_t *entry = reinterpret_cast<const uint32_t *>(slot + sizeof(epw_slot_header) + j * sizeof(epw_entry));
            uint32_t expert = ptx::load_relaxed_gpu(entry), weight = ptx::load_relaxed_gpu(entry + 1);
            uint32_t index = ptx::load_relaxed_gpu(reinterpret_cast<const uint32_t *>(slot + epw_indices_offset(&l)) + j);
            uint32_t local = expert - base;
            bool ours = static_cast<int32_t>(expert) >= 0 && local < l.local_experts;
            uint32_t at = source * l.max_tokens + row;
            if (a.row_experts) a.row_experts[size_t(at) * width + j] = ours ? static_cast<int32_t>(local) : -1;
            if (a.row_weights) a.row_weights[size_t(at) * width + j] = ours ? __uint_as_float(weight) : 0.0f;
            if (ours && a.expert_rows) {
                a.expert_rows[local * l.rows + first_row[source * l.local_experts + local] + index] = at;
            }
        }
    }
}

__device__ __forceinline__ void put_scale_column(const epw_dispatch_args &a, const epw_layout &l,
                                                 const unsigned char *scales, uint64_t list, uint64_t row) {
    uint32_t count = a.scale_count, bytes = a.scale_bytes;
    unsigned char *out = static_cast<unsigned char *>(a.out_scales);
    if (a.payload == EPW_PAYLOAD_FP8_UE8M0 && a.scale_order == 0) {
        uint32_t words = (count + 3) / 4;
        for (uint32_t w = threadIdx.x; w < words; w += blockDim.x) {
            uint32_t packed = 0;
            for (uint32_t i = 0; i < 4 && w * 4 + i < count; i++) packed |= uint32_t(scales[w * 4 + i]) << (8 * i);
            reinterpret_cast<uint32_t *>(out)[(list * words + w) * l.rows + row] = packed;
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        size_t at = a.scale_order ? (list * l.rows + row) * count + i : (list * count + i) * l.rows + row;
        if (bytes == 4) {
            reinterpret_cast<uint32_t *>(out)[at] = reinterpret_cast<const uint32_t *>(scales)[i];
        } else {
            for (uint32_t k = 0; k < bytes; k++) out[at * bytes + k] = scales[i * bytes + k];
        }
    }
}

// Expert-major: each row goes from its slot through shared memory to every local expert's list. Stages let the loads of
// the next rows run while one is written.
template <uint32_t Stages>
__device__ void spread_rows(const epw_dispatch_args &a, epw_gpu_context *c, const epw_layout &l, DispatchShared &s,
                            const uint32_t *first_row, unsigned char *staging, uint32_t stage_bytes) {
    uint32_t total = 0, width = l.topk, base = c->rank * l.local_experts, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t bytes = l.header_bytes + ((a.payload_bytes + a.scale_count * a.scale_bytes + 15) & ~15u);
    for (uint32_t r = 0; r < l.ranks; r++) total += s.rows[r];
    auto slot_of = [&](uint32_t i, uint32_t *source, uint32_t *row) -> const unsigned char * {
        uint32_t r = 0;
        while (i >= s.rows[r]) i -= s.rows[r++];
        *source = r;
        *row = i;
        return s.window[c->rank] + epw_slot_offset(&l, c->lane, r, i);
    };
    uint32_t source, row;
    auto fetch = [&](uint32_t n) { // by one thread
        uint32_t i = blockIdx.x + n * gridDim.x;
        if (i >= total) return;
        const unsigned char *slot = slot_of(i, &source, &row);
        ptx::barrier_expect(&s.loaded[n % Stages], bytes);
        ptx::bulk_load(staging + (n % Stages) * stage_bytes, slot, bytes, &s.loaded[n % Stages]);
    };
    if (threadIdx.x == 0) {
        ptx::fence_global_before_bulk();
        for (uint32_t n = 0; n < Stages - 1; n++) fetch(n);
    }
    for (uint32_t n = 0; blockIdx.x + n * gridDim.x < total; n++) {
        if (threadIdx.x == 0) {
            ptx::bulk_wait_read<0>(); // the stage to be filled has been written out
            fetch(n + Stages - 1);
        }
        while (!ptx::barrier_try_wait(&s.loaded[n % Stages], (s.parity >> (n % Stages) ^ (n / Stages)) & 1)) {}
        const unsigned char *stage = staging + (n % Stages) * stage_bytes;
        slot_of(blockIdx.x + n * gridDim.x, &source, &row);
        const epw_entry *entries = reinterpret_cast<const epw_entry *>(stage + sizeof(epw_slot_header));
        const uint32_t *indices = reinterpret_cast<const uint32_t *>(stage + epw_indices_offset(&l));
        for (uint32_t j = 0; j < width; j++) {
            uint32_t local = entries[j].expert - base;
            if (entries[j].expert < 0 || local >= l.local_experts) continue;
            uint64_t at = first_row[source * l.local_experts + local] + indices[j];
            uint64_t list_row = local * l.rows + at;
            if (threadIdx.x == 0) {
                ptx::bulk_store(static_cast<unsigned char *>(a.rows) + list_row * a.payload_bytes, stage + l.header_bytes,
                                a.payload_bytes);
                ptx::bulk_commit();
            }
            if (a.out_scales && a.scale_count) put_scale_column(a, l, stage + l.header_bytes + a.payload_bytes, local, at);
            if (warp == 1 && a.out_sideband) {
                for (uint32_t i = lane; i < a.sideband_bytes; i += 32) {
                    static_cast<unsigned char *>(a.out_sideband)[list_row * a.sideband_bytes + i] = stage[epw_sideband_offset(&l) + i];
                }
            }
            if (threadIdx.x == 32 && a.source_token) a.source_token[list_row] = reinterpret_cast<const epw_slot_header *>(stage)->token;
        }
        __syncthreads(); // all have read the stage
    }
    if (threadIdx.x == 0) ptx::bulk_wait_all();
}

// ---- the kernel's body ----

template <typename T, typename Index, uint32_t Payload>
__device__ void dispatch_body(const epw_dispatch_args &a) {
    extern __shared__ __align__(128) unsigned char dynamic[];
    __shared__ DispatchShared s;
    epw_gpu_context *c = a.context;
    STAMP(0);
    const epw_layout &l = a.layout;
    uint32_t experts = l.local_experts * l.ranks;
    uint32_t stage_bytes = (l.header_bytes + ((a.payload_bytes + a.scale_count * a.scale_bytes + 15) & ~15u) + 127) & ~127u;
    unsigned char *staging = dynamic;
    unsigned char *tables = dynamic + stage_bytes * kReceiveStages;
    Route route(tables, experts, l.ranks);

    if (threadIdx.x == 96) {
        for (uint32_t i = 0; i < kReceiveStages; i++) ptx::barrier_init(&s.loaded[i], 1);
        ptx::fence_barrier_init();
    }
    for (uint32_t i = threadIdx.x; i < experts + l.ranks; i += blockDim.x) route.expert_base[i] = 0;
    ptx::let_next_begin();
    ptx::wait_for_stream();
    if (threadIdx.x < l.ranks) s.window[threadIdx.x] = c->window[threadIdx.x];
    if (threadIdx.x == 64) {
        s.epoch = c->epoch;
        bool sends = a.halves & EPW_GPU_SEND;
        s.op = c->op + (sends ? 1 : 0);
        s.first = sends ? c->op == 0 : 0;
        s.deadline_ns = a.deadline_ns ? a.deadline_ns : c->deadline_ns;
        s.active = c->active;
        s.targets = sends ? c->active & ~*c->suspects : c->present;
        s.gone = 0;
        s.parity = 0;
    }
    __syncthreads();

    if (a.halves & EPW_GPU_SEND) {
        send_tokens<T, Index, Payload>(a, c, l, s, route, staging);
        __syncthreads();
    }
    if (a.halves & EPW_GPU_RECEIVE) {
        uint32_t *first_row = route.expert_bits; // its bits are no longer needed
        STAMP(8);
        await_rows(a, c, l, s, first_row);
        STAMP(10);
        if (a.output_layout == EPW_RANK_MAJOR) {
            list_rows(a, c, l, s, first_row);
        } else {
            spread_rows<kReceiveStages>(a, c, l, s, first_row, staging, stage_bytes);
        }
    }

    __syncthreads();
    STAMP(11);
    if (threadIdx.x != 0) return;
    if (s.gone) atomicOr(reinterpret_cast<unsigned long long *>(c->suspects), s.gone);
    if (ptx::add_acq_rel_gpu(&c->blocks_out, 1) != gridDim.x - 1) return;
    // The last block out leaves the context to the next kernel of the lane.
    c->blocks_sent = 0;
    c->blocks_out = 0;
    c->op = s.op;
    c->present = s.targets & ~*c->suspects;
}

} // namespace epw
