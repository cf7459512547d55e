// The kernels of traffic.h.
#include "traffic.h"

#include "kernels/ptx/memory.cuh"

#include <cuda_runtime.h>

namespace {

using epw::ptx::global_timer_ns;

constexpr uint32_t kThreads = 256, kWarps = kThreads / 32;
constexpr uint32_t kChunk = 8; // channels that a thread handles at once: 16 bytes of bf16

// ---- the generator

struct Token {
    uint64_t key, base, stride, dropped;
};

__device__ Token token_of(const traffic_shape &s, uint64_t source_key, uint32_t t) {
    Token token;
    token.key = traffic_mix(source_key + (t + 1) * 0x9e3779b97f4a7c15ull);
    uint64_t h = traffic_mix(token.key ^ 0x726f757465);
    // Sometimes all of a source's tokens go to the first rank's experts.
    bool skewed = traffic_mix(source_key ^ 0x736b6577) % 4 == 0;
    uint32_t among = skewed ? s.experts / s.ranks : s.experts, strides = among / s.topk;
    token.base = (h >> 8) % among;
    token.stride = 1 + (h >> 40) % (strides > 0 ? strides : 1);
    token.dropped = traffic_mix(token.key ^ 0x64726f70);
    if (h % 16 == 0) token.dropped = 0; // the whole token
    return token;
}

// Distinct within a token: (topk - 1) * stride is less than the number of experts.
__device__ int32_t expert_of(const traffic_shape &s, const Token &token, uint32_t j) {
    if ((token.dropped >> (4 * j) & 7) == 0) return -1;
    return int32_t((token.base + j * token.stride) % s.experts);
}

__device__ float weight_of(const Token &token, uint32_t j) {
    return 1.0f + float(traffic_mix(token.key ^ 0x77) >> j & 1);
}

// Eight e4m3 codes, all normal numbers; the first of an FP8 block is 448, the largest, so that the block's
// scale is exact.
__device__ uint64_t codes_of(const Token &token, uint32_t chunk) {
    uint64_t h = traffic_mix(token.key + (chunk + 1) * 0xd1342543de82ef95ull), codes = 0;
    for (uint32_t i = 0; i < kChunk; i++) {
        uint64_t code = h >> (8 * i) & 0xff;
        if ((code & 0x78) == 0) code |= 0x08;
        if ((code & 0x7f) == 0x7f) code -= 1;
        codes |= code << (8 * i);
    }
    if (chunk % (EPW_FP8_BLOCK / kChunk) == 0) codes = (codes & ~0xffull) | 0x7e;
    return codes;
}

// The exponent of the block's scale, -3 to 3.
__device__ int32_t exponent_of(const Token &token, uint32_t chunk) {
    uint32_t block = chunk / (EPW_FP8_BLOCK / kChunk);
    return int32_t(traffic_mix(token.key ^ (block + 1) * 0xa0761d6478bd642full) % 7) - 3;
}

__device__ float scale_of(int32_t exponent) {
    return __uint_as_float(uint32_t(127 + exponent) << 23);
}

__device__ uint4 channels_of(const Token &token, uint32_t chunk) {
    uint64_t codes = codes_of(token, chunk);
    int32_t exponent = exponent_of(token, chunk);
    uint32_t pairs[4] = {0, 0, 0, 0};
    for (uint32_t i = 0; i < kChunk; i++) {
        uint32_t code = codes >> (8 * i) & 0xff;
        uint32_t bf16 =
            (code >> 7) << 15 | uint32_t(int32_t(code >> 3 & 15) - 7 + 127 + exponent) << 7 | (code & 7) << 4;
        pairs[i / 2] |= bf16 << (i % 2 * 16);
    }
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

// Adds `weight` times the answer of expert `e`.
__device__ void add_answer(float sums[kChunk], const Token &token, int32_t e, uint32_t chunk, float weight) {
    uint64_t h = traffic_mix(token.key ^ uint64_t(e + 1) << 32 ^ (chunk + 1) * 0xe7037ed1a0b428dbull);
    for (uint32_t i = 0; i < kChunk; i++) sums[i] += weight * float(h >> (8 * i) & 7);
}

// Small integers, exact.
__device__ uint4 to_bf16(const float v[kChunk]) {
    uint32_t pairs[4];
    for (uint32_t i = 0; i < 4; i++)
        pairs[i] = __float_as_uint(v[2 * i]) >> 16 | (__float_as_uint(v[2 * i + 1]) & 0xffff0000u);
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

// ---- faults

struct Where {
    uint32_t what, layout, source, token, row, channel;
    int32_t expert;
};

__device__ void report(const traffic_memory &m, const Where &w, uint64_t expected, uint64_t found) {
    if (atomicAdd(reinterpret_cast<unsigned long long *>(&m.state->wrong), 1ull) != 0) return;
    traffic_faults *f = m.faults;
    f->layout = w.layout;
    f->source = w.source;
    f->token = w.token;
    f->row = w.row;
    f->channel = w.channel;
    f->expert = w.expert;
    f->iteration = m.state->iteration;
    f->expected = expected;
    f->found = found;
    __threadfence_system(); // Reader: the host, which loads `what` first.
    *reinterpret_cast<volatile uint32_t *>(&f->what) = w.what;
}

__device__ void expect(const traffic_memory &m, const Where &w, uint64_t expected, uint64_t found) {
    if (expected != found) report(m, w, expected, found);
}

__device__ void expect_chunk(const traffic_memory &m, const Where &w, uint4 expected, uint4 found) {
    if (expected.x == found.x && expected.y == found.y && expected.z == found.z && expected.w == found.w)
        return;
    bool low = expected.x != found.x || expected.y != found.y;
    report(m, w, low ? uint64_t(expected.y) << 32 | expected.x : uint64_t(expected.w) << 32 | expected.z,
           low ? uint64_t(found.y) << 32 | found.x : uint64_t(found.w) << 32 | found.z);
}

// ---- kernels

__global__ void next_kernel(const traffic_shape s, const traffic_memory m) {
    traffic_state *state = m.state;
    state->iteration += state->stride;
    uint64_t h = traffic_mix(traffic_key(&s, s.rank, state->iteration) ^ 0x7061757365);
    if (state->pause_ns == 0 || h % 4 != 0) return;
    uint64_t until = global_timer_ns() + (h >> 8) % state->pause_ns;
    while (global_timer_ns() < until) __nanosleep(500);
}

// One warp per token. Tokens beyond the step's are routed nowhere.
__global__ void make_kernel(const traffic_shape s, const traffic_memory m) {
    uint64_t key = traffic_key(&s, s.rank, m.state->iteration);
    uint32_t tokens = traffic_tokens(&s, key), lane = threadIdx.x % 32;
    for (uint32_t t = blockIdx.x * kWarps + threadIdx.x / 32; t < s.max_tokens; t += gridDim.x * kWarps) {
        Token token = token_of(s, key, t);
        if (lane < s.topk) {
            m.ids[t * s.topk + lane] = t < tokens ? expert_of(s, token, lane) : -1;
            m.weights[t * s.topk + lane] = weight_of(token, lane);
        }
        if (m.given_scales) {
            auto *row = reinterpret_cast<uint64_t *>(m.x) + size_t(t) * s.hidden / kChunk;
            auto *scales = reinterpret_cast<unsigned char *>(m.given_scales) + t * m.given_row_stride;
            for (uint32_t chunk = lane; chunk < s.hidden / kChunk; chunk += 32) {
                row[chunk] = codes_of(token, chunk);
                uint32_t block = chunk / (EPW_FP8_BLOCK / kChunk);
                *reinterpret_cast<float *>(scales + block * m.given_block_stride) =
                    scale_of(exponent_of(token, chunk));
            }
            continue;
        }
        auto *row = reinterpret_cast<uint4 *>(m.x + size_t(t) * s.hidden);
        for (uint32_t chunk = lane; chunk < s.hidden / kChunk; chunk += 32)
            row[chunk] = channels_of(token, chunk);
    }
}

// The tokens of a list, in the order in which they must lie there.
struct List {
    uint32_t count;
    uint32_t begin[64], length[64]; // range of each source within the list
    uint32_t rank_rows[64];         // rows of each source for any expert
};

struct Entry {
    uint32_t source, token, row; // row: in rank-major layout
};

// Blocks with the same x share a list: each has kWarps entries, then leaves as many to each of the others. It
// keeps only its own ones, so that its shared memory suffices for any number of tokens.
__device__ bool is_ours(uint32_t i) {
    return i / kWarps % gridDim.y == blockIdx.y;
}
__device__ uint32_t place_of(uint32_t i) {
    return i / (kWarps * gridDim.y) * kWarps + i % kWarps;
}

// Walks the tokens routed to `expert` or, if that is -1, those of source `only` that are routed to any expert
// of this rank. Called by one warp.
__device__ void walk(const traffic_shape &s, uint64_t iteration, uint64_t sources, int32_t expert,
                     uint32_t only, List &list, Entry *entries) {
    uint32_t lane = threadIdx.x % 32, below = (1u << lane) - 1, local = s.experts / s.ranks, count = 0;
    for (uint32_t source = 0; source < s.ranks; source++) {
        uint64_t key = traffic_key(&s, source, iteration);
        uint32_t tokens = sources >> source & 1 ? traffic_tokens(&s, key) : 0, begin = count, rows = 0;
        for (uint32_t first = 0; first < tokens; first += 32) {
            uint32_t t = first + lane;
            bool here = false, listed = false;
            if (t < tokens) {
                Token token = token_of(s, key, t);
                for (uint32_t j = 0; j < s.topk; j++) {
                    int32_t e = expert_of(s, token, j);
                    here = here || (e >= 0 && uint32_t(e) / local == s.rank);
                    listed = listed || (e >= 0 && e == expert);
                }
            }
            if (expert < 0) listed = here && source == only;
            uint32_t all_here = __ballot_sync(~0u, here), all_listed = __ballot_sync(~0u, listed);
            uint32_t row = source * s.max_tokens + rows + __popc(all_here & below);
            uint32_t i = count + __popc(all_listed & below);
            if (listed && is_ours(i)) entries[place_of(i)] = {source, t, row};
            rows += __popc(all_here);
            count += __popc(all_listed);
        }
        if (lane == 0) {
            list.begin[source] = begin;
            list.length[source] = count - begin;
            list.rank_rows[source] = rows;
        }
    }
    if (lane == 0) list.count = count;
}

// Checks a row as it arrived, then writes the answer over it or elsewhere: that of local expert w.expert, or
// the weighted sum of those of all of the token's experts here, if that is -1. Called by one warp.
__device__ void check_row(const traffic_shape &s, const traffic_memory &m, const traffic_places &p, Where w,
                          const Token &token, uint32_t list, uint32_t row) {
    uint32_t lane = threadIdx.x % 32, local = s.experts / s.ranks;
    uint32_t lists = list * (p.places > 0 ? p.places : s.ranks * s.max_tokens);
    const unsigned char *from = p.rows + uint64_t(lists + row) * p.row_stride;
    const auto *scales = reinterpret_cast<const unsigned char *>(p.scales) + list * p.scale_list_stride +
                         row * p.scale_row_stride;
    for (uint32_t chunk = lane; chunk < s.hidden / kChunk; chunk += 32) {
        w.channel = chunk * kChunk;
        w.what = TRAFFIC_PAYLOAD;
        if (p.payload == EPW_PAYLOAD_SAME) {
            expect_chunk(m, w, channels_of(token, chunk), reinterpret_cast<const uint4 *>(from)[chunk]);
            continue;
        }
        expect(m, w, codes_of(token, chunk), reinterpret_cast<const uint64_t *>(from)[chunk]);
        if (chunk % (EPW_FP8_BLOCK / kChunk) != 0) continue;
        w.what = TRAFFIC_SCALE;
        uint32_t block = chunk / (EPW_FP8_BLOCK / kChunk);
        if (p.payload == EPW_PAYLOAD_FP8_UE8M0) {
            if (block % 4 != 0) continue;
            uint32_t word = 0;
            for (uint32_t i = 0; i < 4 && block + i < s.hidden / EPW_FP8_BLOCK; i++)
                word |= uint32_t(127 + exponent_of(token, (block + i) * (EPW_FP8_BLOCK / kChunk))) << 8 * i;
            expect(m, w, word,
                   *reinterpret_cast<const uint32_t *>(scales + block / 4 * p.scale_block_stride));
            continue;
        }
        uint32_t found = *reinterpret_cast<const uint32_t *>(scales + block * p.scale_block_stride);
        expect(m, w, __float_as_uint(scale_of(exponent_of(token, chunk))), found);
    }
    __syncwarp(); // the row may lie where the answer goes
    auto *to = reinterpret_cast<uint4 *>(p.expert_out + uint64_t(lists + row) * p.out_stride);
    for (uint32_t chunk = lane; chunk < s.hidden / kChunk; chunk += 32) {
        float sums[kChunk] = {};
        if (w.expert >= 0) {
            add_answer(sums, token, int32_t(s.rank * local) + w.expert, chunk, 1.0f);
        } else {
            for (uint32_t j = 0; j < s.topk; j++) {
                int32_t e = expert_of(s, token, j);
                if (e >= 0 && uint32_t(e) / local == s.rank)
                    add_answer(sums, token, e, chunk, weight_of(token, j));
            }
        }
        to[chunk] = to_bf16(sums);
    }
}

// Rank-major: checks the ids and weights of a row's experts. Called by one warp.
__device__ void check_entries(const traffic_shape &s, const traffic_memory &m, Where w, const Token &token) {
    uint32_t j = threadIdx.x % 32, local = s.experts / s.ranks;
    if (j >= s.topk) return;
    int32_t e = expert_of(s, token, j);
    bool mine = e >= 0 && uint32_t(e) / local == s.rank;
    w.channel = j;
    w.what = TRAFFIC_ROW_EXPERT;
    expect(m, w, uint32_t(mine ? e % int32_t(local) : -1), uint32_t(m.row_experts[w.row * s.topk + j]));
    w.what = TRAFFIC_ROW_WEIGHT;
    expect(m, w, mine ? __float_as_uint(weight_of(token, j)) : 0,
           __float_as_uint(m.row_weights[w.row * s.topk + j]));
}

// Blocks of index x check local expert x's list and source x's rows; blocks with the same x share the rows.
__global__ void answer_kernel(const traffic_shape s, const traffic_memory m, const traffic_places p) {
    extern __shared__ Entry entries[];
    __shared__ List list;
    uint64_t iteration = m.state->iteration, sources = m.state->sources;
    uint32_t local = s.experts / s.ranks, x = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool first_block = blockIdx.y == 0;
    Where w = {0, p.layout, 0, 0, 0, 0, -1};

    if (x < local) {
        if (warp == 0) walk(s, iteration, sources, int32_t(s.rank * local + x), 0, list, entries);
        __syncthreads();
        w.expert = int32_t(x);
        if (first_block && threadIdx.x == 0) {
            w.what = TRAFFIC_COUNT;
            expect(m, w, list.count, m.counts[x]);
            w.what = TRAFFIC_RANGE;
            for (w.source = 0; w.source < s.ranks; w.source++) {
                const uint32_t *range = m.ranges + (x * s.ranks + w.source) * 2;
                expect(m, w, list.length[w.source], range[1]);
                if (list.length[w.source] > 0) expect(m, w, list.begin[w.source], range[0]);
            }
            atomicAdd(reinterpret_cast<unsigned long long *>(&m.state->totals), list.count);
            if (p.layout == EPW_EXPERT_MAJOR)
                atomicAdd(reinterpret_cast<unsigned long long *>(&m.state->rows), list.count);
        }
        for (uint32_t i = blockIdx.y * kWarps + warp; i < list.count; i += gridDim.y * kWarps) {
            Entry entry = entries[place_of(i)];
            w.source = entry.source;
            w.token = entry.token;
            w.row = i;
            if (p.layout == EPW_RANK_MAJOR) {
                w.what = TRAFFIC_EXPERT_ROW;
                if (lane == 0) expect(m, w, entry.row, m.expert_rows[x * s.ranks * s.max_tokens + i]);
                continue;
            }
            w.what = TRAFFIC_SOURCE_TOKEN;
            if (lane == 0) expect(m, w, entry.token, m.source_token[x * s.ranks * s.max_tokens + i]);
            check_row(s, m, p, w, token_of(s, traffic_key(&s, entry.source, iteration), entry.token), x, i);
        }
        __syncthreads();
    }
    if (x >= s.ranks) return;
    if (warp == 0) walk(s, iteration, sources, -1, x, list, entries);
    __syncthreads();
    w = {TRAFFIC_SOURCE_COUNT, p.layout, x, 0, 0, 0, -1};
    if (first_block && threadIdx.x == 0) {
        expect(m, w, list.rank_rows[x], m.source_counts[x]);
        if (p.layout == EPW_RANK_MAJOR)
            atomicAdd(reinterpret_cast<unsigned long long *>(&m.state->rows), list.count);
    }
    if (p.layout == EPW_EXPERT_MAJOR) return;
    for (uint32_t i = blockIdx.y * kWarps + warp; i < list.count; i += gridDim.y * kWarps) {
        Entry entry = entries[place_of(i)];
        Token token = token_of(s, traffic_key(&s, x, iteration), entry.token);
        w.token = entry.token;
        w.row = entry.row;
        w.what = TRAFFIC_SOURCE_TOKEN;
        if (lane == 0) expect(m, w, w.token, m.source_token[w.row]);
        check_entries(s, m, w, token);
        check_row(s, m, p, w, token, 0, w.row);
    }
}

// ---- rows as prefill places them

// Which of a token's top-k `expert` is, counted over all ranks.
__device__ uint32_t position_of(const traffic_shape &s, const Token &token, int32_t expert) {
    uint32_t j = 0;
    while (j < s.topk && expert_of(s, token, j) != expert) j++;
    return j;
}

// The places of [begin, end) are nobody's. Called by a block.
__device__ void check_empty(const traffic_memory &m, Where w, uint32_t begin, uint32_t end) {
    for (w.row = begin + threadIdx.x; w.row < end; w.row += kThreads) {
        w.what = TRAFFIC_ROW_SOURCE;
        expect(m, w, ~0u, uint32_t(m.row_source[w.row]));
        w.what = TRAFFIC_SOURCE_TOKEN;
        expect(m, w, ~0u, uint32_t(m.row_token[w.row]));
    }
}

// Checks whose the row at place w.row is. Called by one thread.
__device__ void check_owner(const traffic_memory &m, Where w) {
    w.what = TRAFFIC_ROW_SOURCE;
    expect(m, w, w.source, uint32_t(m.row_source[w.row]));
    w.what = TRAFFIC_SOURCE_TOKEN;
    expect(m, w, w.token, uint32_t(m.row_token[w.row]));
}

// Of `count` rows from place `begin` on, those that have a place.
__device__ uint32_t placed_of(const traffic_places &p, uint32_t begin, uint32_t count) {
    if (begin >= p.places) return 0;
    return count < p.places - begin ? count : p.places - begin;
}

// The rows of local expert x, from its offset on, and the places up to the next expert's offset, or the last.
__device__ void check_packed(const traffic_shape &s, const traffic_memory &m, const traffic_places &p,
                             const List &list, const Entry *entries, uint32_t x) {
    uint32_t local = s.experts / s.ranks, begin = m.offsets[x], count = list.count;
    int32_t expert = int32_t(s.rank * local + x);
    Where w = {TRAFFIC_OFFSET, p.layout, 0, 0, 0, 0, int32_t(x)};
    bool first_block = blockIdx.y == 0;
    bool packed = p.layout == EPW_PACKED;
    uint32_t next = (x + 1) * p.places;
    if (packed) next = begin + (count + p.alignment - 1) / p.alignment * p.alignment;
    uint32_t placed = placed_of(p, packed ? begin : 0, count), own = packed ? 0 : x;
    if (first_block && threadIdx.x == 0) {
        if (x == 0) expect(m, w, 0, begin);
        if (x + 1 < local) expect(m, w, next, m.offsets[x + 1]);
        w.what = TRAFFIC_OVERFLOW;
        expect(m, w, count - placed, m.overflow[x]);
    }
    if (packed && (x + 1 == local || next > p.places)) next = p.places;
    if (first_block && begin + placed < next) check_empty(m, w, begin + placed, next);
    for (uint32_t i = blockIdx.y * kWarps + threadIdx.x / 32; i < placed; i += gridDim.y * kWarps) {
        w.source = entries[place_of(i)].source;
        w.token = entries[place_of(i)].token;
        w.row = begin + i;
        Token token = token_of(s, traffic_key(&s, w.source, m.state->iteration), w.token);
        if (threadIdx.x % 32 == 0) {
            uint32_t j = position_of(s, token, expert);
            check_owner(m, w);
            w.what = TRAFFIC_ROW_EXPERT;
            expect(m, w, x, uint32_t(m.row_expert[w.row]));
            w.what = TRAFFIC_ROW_POSITION;
            expect(m, w, j, uint32_t(m.row_position[w.row]));
            w.what = TRAFFIC_ROW_WEIGHT;
            expect(m, w, __float_as_uint(weight_of(token, j)), __float_as_uint(m.row_weight[w.row]));
        }
        check_row(s, m, p, w, token, own, packed ? w.row : i);
    }
}

// The rows of source x, behind those of the sources before, or rank-major at its place; and the places behind
// them, if no other source's are there.
__device__ void check_dense(const traffic_shape &s, const traffic_memory &m, const traffic_places &p,
                            const List &list, const Entry *entries, uint32_t x) {
    uint32_t begin = 0;
    bool dense = p.layout == EPW_DENSE, last = x + 1 == s.ranks;
    for (uint32_t source = 0; dense && source < x; source++) begin += list.rank_rows[source];
    if (!dense) begin = x * s.max_tokens;
    uint32_t placed = placed_of(p, begin, list.count), end = last    ? p.places
                                                             : dense ? 0
                                                                     : begin + s.max_tokens;
    Where w = {TRAFFIC_OFFSET, p.layout, x, 0, 0, 0, -1};
    bool first_block = blockIdx.y == 0;
    if (first_block && threadIdx.x == 0) expect(m, w, begin, m.source_offsets[x]);
    if (first_block && begin + placed < end) check_empty(m, w, begin + placed, end);
    for (uint32_t i = blockIdx.y * kWarps + threadIdx.x / 32; i < placed; i += gridDim.y * kWarps) {
        w.token = entries[place_of(i)].token;
        w.row = begin + i;
        Token token = token_of(s, traffic_key(&s, x, m.state->iteration), w.token);
        if (threadIdx.x % 32 == 0) check_owner(m, w);
        check_entries(s, m, w, token);
        check_row(s, m, p, w, token, 0, w.row);
    }
}

// Blocks of index x check local expert x's count and, of a dispatch by expert, its rows; of one by source
// those of source x.
__global__ void placed_kernel(const traffic_shape s, const traffic_memory m, const traffic_places p) {
    extern __shared__ Entry entries[];
    __shared__ List list;
    uint64_t iteration = m.state->iteration, sources = m.state->sources;
    uint32_t local = s.experts / s.ranks, x = blockIdx.x;
    bool by_expert = p.layout == EPW_PACKED || p.layout == EPW_EXPERT_MAJOR,
         tells = blockIdx.y == 0 && threadIdx.x == 0;
    if (x < local) {
        if (threadIdx.x < 32) walk(s, iteration, sources, int32_t(s.rank * local + x), 0, list, entries);
        __syncthreads();
        if (tells) expect(m, {TRAFFIC_COUNT, p.layout, 0, 0, 0, 0, int32_t(x)}, list.count, m.counts[x]);
        if (tells && by_expert) atomicAdd(reinterpret_cast<unsigned long long *>(&m.state->rows), list.count);
        if (by_expert) check_packed(s, m, p, list, entries, x);
        __syncthreads();
    }
    if (x >= s.ranks || by_expert) return;
    if (threadIdx.x < 32) walk(s, iteration, sources, -1, x, list, entries);
    __syncthreads();
    if (tells) {
        expect(m, {TRAFFIC_SOURCE_COUNT, p.layout, x, 0, 0, 0, -1}, list.count, m.source_counts[x]);
        atomicAdd(reinterpret_cast<unsigned long long *>(&m.state->rows), list.count);
    }
    check_dense(s, m, p, list, entries, x);
}

// A block of one warp for each expert, then one for each rank, of which those do nothing whose rank has its
// rows by source, or by expert: the number of each of this rank's entries among the rows there, and how many
// rows each expert has.
__global__ void number_kernel(const traffic_shape s, const traffic_memory m, const traffic_places p) {
    uint64_t iteration = m.state->iteration;
    uint32_t local = s.experts / s.ranks, x = blockIdx.x, lane = threadIdx.x, below = (1u << lane) - 1,
             count = 0;
    bool of_expert = x < s.experts;
    uint32_t rank = of_expert ? x / local : x - s.experts, layout = p.ends[rank].layout;
    if (of_expert != (layout == EPW_PACKED || layout == EPW_EXPERT_MAJOR)) return;
    for (uint32_t source = 0; source < s.ranks; source++) {
        uint64_t key = traffic_key(&s, source, iteration);
        uint32_t tokens = traffic_tokens(&s, key);
        for (uint32_t first = 0; first < tokens; first += 32) {
            uint32_t t = first + lane, entries = 0; // bit j: entry j is one of these
            Token token = token_of(s, key, t);
            for (uint32_t j = 0; j < s.topk && t < tokens; j++) {
                int32_t e = expert_of(s, token, j);
                if (e >= 0 && (of_expert ? uint32_t(e) == x : uint32_t(e) / local == rank))
                    entries |= 1u << j;
            }
            uint32_t all = __ballot_sync(~0u, entries != 0), number = count + __popc(all & below);
            for (uint32_t j = 0; j < s.topk && source == s.rank; j++)
                if (entries >> j & 1) m.numbers[t * s.topk + j] = number;
            count += __popc(all);
        }
    }
    if (of_expert && lane == 0) m.expert_counts[x] = count;
}

// Whether entry j of token t, for expert e, has a place at its rank.
__device__ bool has_place(const traffic_shape &s, const traffic_memory &m, const traffic_places &p,
                          uint32_t t, uint32_t j, uint32_t e) {
    uint32_t local = s.experts / s.ranks;
    const traffic_end &end = p.ends[e / local];
    if (!p.cuts || end.capacity == TRAFFIC_HOLDS_ALL) return true;
    uint64_t place = m.numbers[t * s.topk + j];
    for (uint32_t before = e / local * local; end.layout == EPW_PACKED && before < e; before++)
        place += (m.expert_counts[before] + end.alignment - 1) / end.alignment * end.alignment;
    return place < end.capacity;
}

// One warp per token.
__global__ void check_kernel(const traffic_shape s, const traffic_memory m, const traffic_places p) {
    uint64_t iteration = m.state->iteration, key = traffic_key(&s, s.rank, iteration),
             answers = m.state->answers;
    uint32_t tokens = traffic_tokens(&s, key), lane = threadIdx.x % 32, local = s.experts / s.ranks;
    for (uint32_t t = blockIdx.x * kWarps + threadIdx.x / 32; t < p.tokens; t += gridDim.x * kWarps) {
        Token token = token_of(s, key, t);
        Where w = {TRAFFIC_CONTRIBUTIONS, p.layout, s.rank, t, t, 0, -1};
        uint32_t arrived = 0, wanted = 0;
        for (uint32_t j = 0; j < s.topk && t < tokens; j++) {
            int32_t e = expert_of(s, token, j);
            wanted += e >= 0;
            arrived +=
                e >= 0 && (answers >> (uint32_t(e) / local) & 1) && has_place(s, m, p, t, j, uint32_t(e));
        }
        if (lane == 0)
            expect(m, w, arrived | wanted << 16, reinterpret_cast<const uint32_t *>(m.contributions)[t]);
        w.what = TRAFFIC_COMBINED;
        for (uint32_t chunk = lane; chunk < s.hidden / kChunk; chunk += 32) {
            float sums[kChunk] = {};
            for (uint32_t j = 0; j < s.topk && t < tokens; j++) {
                int32_t e = expert_of(s, token, j);
                if (e >= 0 && (answers >> (uint32_t(e) / local) & 1) && has_place(s, m, p, t, j, uint32_t(e)))
                    add_answer(sums, token, e, chunk, weight_of(token, j));
            }
            w.channel = chunk * kChunk;
            expect_chunk(m, w, to_bf16(sums),
                         reinterpret_cast<const uint4 *>(m.out + size_t(t) * s.hidden)[chunk]);
        }
    }
}

__global__ void stamp_kernel(uint64_t *to) {
    *to = global_timer_ns();
}

uint32_t blocks_for(uint32_t tokens) {
    return tokens == 0 ? 1 : (tokens + kWarps - 1) / kWarps;
}

} // namespace

extern "C" int traffic_prepare(void) {
    cudaFuncAttributes ignored;
    const void *kernels[] = {
        reinterpret_cast<const void *>(next_kernel),   reinterpret_cast<const void *>(make_kernel),
        reinterpret_cast<const void *>(answer_kernel), reinterpret_cast<const void *>(placed_kernel),
        reinterpret_cast<const void *>(check_kernel),  reinterpret_cast<const void *>(number_kernel),
        reinterpret_cast<const void *>(stamp_kernel)};
    for (const void *kernel : kernels) {
        cudaError_t error = cudaFuncGetAttributes(&ignored, kernel);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

extern "C" int traffic_make(const traffic_shape *shape, const traffic_memory *m, void *stream) {
    auto *in = static_cast<cudaStream_t>(stream);
    next_kernel<<<1, 1, 0, in>>>(*shape, *m);
    make_kernel<<<blocks_for(shape->max_tokens), kThreads, 0, in>>>(*shape, *m);
    return cudaGetLastError();
}

namespace {

// A block of index x for each local expert and each source, several that share one's rows if there may be
// many.
int answer(void (*kernel)(traffic_shape, traffic_memory, traffic_places), const traffic_shape *shape,
           const traffic_memory *m, const traffic_places *p, void *stream) {
    uint32_t local = shape->experts / shape->ranks, rows = shape->ranks * shape->max_tokens;
    dim3 grid(local > shape->ranks ? local : shape->ranks, (rows + 511) / 512);
    uint32_t each = kWarps * grid.y, entries = (rows + each - 1) / each * kWarps; // of a block
    kernel<<<grid, kThreads, entries * sizeof(Entry), static_cast<cudaStream_t>(stream)>>>(*shape, *m, *p);
    return cudaGetLastError();
}

} // namespace

extern "C" int traffic_answer(const traffic_shape *shape, const traffic_memory *m, const traffic_places *p,
                              void *stream) {
    return answer(answer_kernel, shape, m, p, stream);
}

extern "C" int traffic_answer_placed(const traffic_shape *shape, const traffic_memory *m,
                                     const traffic_places *p, void *stream) {
    return answer(placed_kernel, shape, m, p, stream);
}

extern "C" int traffic_number(const traffic_shape *shape, const traffic_memory *m, const traffic_places *p,
                              void *stream) {
    number_kernel<<<shape->experts + shape->ranks, 32, 0, static_cast<cudaStream_t>(stream)>>>(*shape, *m,
                                                                                               *p);
    return cudaGetLastError();
}

extern "C" int traffic_check(const traffic_shape *shape, const traffic_memory *m, const traffic_places *p,
                             void *stream) {
    check_kernel<<<blocks_for(p->tokens), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*shape, *m, *p);
    return cudaGetLastError();
}

extern "C" int traffic_stamp(uint64_t *to, void *stream) {
    stamp_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(to);
    return cudaGetLastError();
}
