// Combine of many rank-major rows, which sends and sums at the same time. A warp of a block sends, or two: one thread of each keeps the
// bulk copy engine busy with rows on their way through its tiles. Others sum tokens, a warp to a token, as answers come: rows are
// answered span by span, and the warp that waits for peers says of each span that it is there (see epw_progress_offset). What this rank answers
// itself is read where it lies.
#pragma once

#include "kernels/ep/answer.cuh"
#include "kernels/ep/collect.cuh"

namespace epw {

constexpr uint32_t kCarriers = 2;         // warps of a block that send, at most
constexpr uint32_t kCarrierTiles = 6;     // of each
constexpr uint32_t kCarrierBytes = 8192;  // a tile's
constexpr uint32_t kCarrierLoads = 3;     // pieces on their way to a carrier; the others are on their way from it
constexpr uint32_t kCarrierStores = 4;    // pieces that need not be complete yet
constexpr uint32_t kFlowRows = 16;        // to a block: with fewer it is faster to send, and then to sum by the whole block
static_assert(kCarriers * kCarrierTiles <= kMaxTiles);
static_assert(kCarriers * kCarrierTiles * kCarrierBytes <= Ring::kMost * Ring::kPartBytes);

// Whether all blocks of the kernel do so.
__device__ __forceinline__ bool is_flow(const Combine &a, const SourceOrder &order) {
    return a.may_flow && max(order.remote, a.tokens) >= kFlowRows * gridDim.x;
}

// A carrier's way through the rows of others, span by span, and within a span source by source.
struct Walk {
    const Combine &a;
    const uint32_t *received;
    uint32_t carrier; // of all blocks
    uint32_t span = 0, turn = 0; // turn: of the sources
    uint32_t source, row, end, at = 0; // in the source's span; at: bytes of the row that are behind

    __device__ __forceinline__ Walk(const Combine &a, const uint32_t *received, uint32_t number)
        : a(a), received(received), carrier(number * gridDim.x + blockIdx.x) {
        if (a.lane.layout.ranks == 1) span = EPW_SPANS;
        enter();
        find();
    }
    __device__ __forceinline__ bool there() const { return span < EPW_SPANS; }
    __device__ __forceinline__ uint32_t bytes() const { return min(kCarrierBytes, a.row_size - at); }
    // To the next piece. Whether that is of another span or source.
    __device__ __forceinline__ bool go_on() {
        at += kCarrierBytes;
        if (at < a.row_size) return false;
        at = 0;
        row += gridDim.x * a.carriers;
        const uint32_t span_before = span, turn_before = turn;
        find();
        return span != span_before || turn != turn_before;
    }

  private:
    __device__ __forceinline__ void enter() {
        if (!there()) return;
        const uint32_t others = a.lane.layout.ranks - 1, all = gridDim.x * a.carriers;
        const uint32_t begin = span << a.span_shift;
        // At any time some block sends to each peer.
        source = source_at(a.lane.rank, others + 1, (turn + blockIdx.x) % others);
        end = min(begin + (1u << a.span_shift), received[source]);
        row = begin + (carrier + all - begin % all) % all;
    }
    __device__ __forceinline__ void find() {
#pragma unroll 1
        while (there() && row >= end) {
            if (++turn == a.lane.layout.ranks - 1) {
                turn = 0;
                span++;
            }
            enter();
        }
    }
};

// Rows of one span and source that are complete. Writer of the word: the thread that counts the last of them. It has acquired what
// the others have released; its release at system scope hands that on to the peer, whose acquire of the word sees it all. Reader:
// await_span().
__device__ __noinline__ inline void count_answers(const Combine &a, const Operation &o, const AnswerShared &s, uint32_t source,
                                                  uint32_t span, uint32_t rows) {
    const uint32_t begin = span << a.span_shift, all = min(1u << a.span_shift, s.received[source] - begin);
    uint64_t *count = &a.lane.arrays.answered[source * EPW_SPANS + span];
    if (ptx::add_acq_rel_gpu(count, rows) + rows != all) return;
    ptx::store_relaxed_gpu(count, 0); // for the next operation
    if (!has(o.mapped, source) || has(o.suspects, source) || has(o.missing, source)) return;
    unsigned char *words = control_at(o, source, epw_progress_offset(&a.lane.layout, o.lane, o.rank));
    ptx::store_release_sys(reinterpret_cast<uint64_t *>(words) + span, epw_word(o.epoch, o.op, 0));
}

// By one thread of a carrier: all its rows.
__device__ __noinline__ inline void carry(const Combine &a, const Operation &o, AnswerShared &s, uint32_t number,
                                          unsigned char *tiles) {
    uint64_t *loaded = &s.loaded[number * kCarrierTiles];
    unsigned char *const begin = tiles + number * kCarrierTiles * kCarrierBytes;
    Walk loading(a, s.received, number), storing = loading;
    uint32_t load_tile = 0, tile = 0, parity = 0, stores = 0;
    auto load = [&] {
        if (!loading.there()) return;
        ptx::bulk_wait_read<kCarrierTiles - kCarrierLoads - 1>(); // the tile's last store has read it
        ptx::barrier_expect(&loaded[load_tile], loading.bytes());
        ptx::bulk_load(begin + load_tile * kCarrierBytes, given_row(a, Row(loading.source, loading.row)) + loading.at,
                       loading.bytes(), &loaded[load_tile]);
        load_tile = load_tile + 1 < kCarrierTiles ? load_tile + 1 : 0;
        loading.go_on();
    };
#pragma unroll 1
    for (uint32_t i = 0; i < kCarrierLoads; i++) load();
#pragma unroll 1
    while (storing.there()) {
        load();
        ptx::barrier_wait(&loaded[tile], parity);
        ptx::bulk_store(Row(storing.source, storing.row).to(a, o) + storing.at, begin + tile * kCarrierBytes, storing.bytes());
        ptx::bulk_commit();
        if (++tile == kCarrierTiles) {
            tile = 0;
            parity ^= 1;
        }
        storing.go_on();
        if (++stores <= kCarrierStores) continue;
        ptx::bulk_wait<kCarrierStores>();
        // Writer: this thread, which has seen the pieces complete. Reader: tell_spans().
        ptx::store_release_block(&s.carried[number], stores - kCarrierStores);
    }
    ptx::bulk_wait_all();
    ptx::store_release_block(&s.carried[number], stores);
}

// By one warp, a thread to a carrier: follows the carriers until all their rows are complete.
__device__ __noinline__ inline void tell_spans(const Combine &a, const Operation &o, const AnswerShared &s) {
    const uint32_t number = threadIdx.x % 32;
    if (number < a.carriers) {
        Walk walk(a, s.received, number);
        uint32_t pieces = 0, rows = 0;
#pragma unroll 1
        while (walk.there()) {
            const uint32_t carried = ptx::load_acquire_block(&s.carried[number]);
#pragma unroll 1
            for (; pieces != carried; pieces++) {
                const uint32_t source = walk.source, span = walk.span;
                const bool ends = walk.go_on();
                if (walk.at == 0) rows++;
                if (!ends) continue;
                count_answers(a, o, s, source, span, rows);
                rows = 0;
            }
            __nanosleep(100);
        }
    }
    __syncwarp();
}

// Until the answer to this thread's row is there, or its rank is settled.
__device__ __forceinline__ void await_span(const Combine &a, const Operation &o, const Expected &expected, uint32_t rank,
                                           uint32_t row) {
    const unsigned char *words = o.own + epw_progress_offset(&a.lane.layout, o.lane, rank);
    const uint64_t *word = reinterpret_cast<const uint64_t *>(words) + (row >> a.span_shift);
#pragma unroll 1
    while (!epw_word_matches(ptx::load_relaxed_sys(word), o.epoch, o.op)) {
        if (ptx::load_acquire_block(&expected.settled.words[rank / 32]) & bit_of(rank)) return;
        __nanosleep(500); // many wait for the same words
    }
    (void)ptx::load_acquire_sys(word);
}

// One sum, by a warp: its parts are there.
template <typename T>
__device__ __forceinline__ void add_row(const Part *parts, unsigned char *to, uint32_t row_bytes) {
    constexpr uint32_t kWide = 4, kStep = 32 * 16, kColumns = kWide * kStep, kHeld = 3;
    const uint32_t lane_at = threadIdx.x % 32 * 16;
    uint32_t fetched = 0, added = 0;         // numbers of parts
    uint32_t fetching = lane_at, adding = lane_at; // columns
    Held<kWide> held[kHeld];
    auto fetch = [&](Held<kWide> &h) {
        if (fetching - lane_at >= row_bytes) return;
        const Part part = parts[fetched];
#pragma unroll
        for (uint32_t k = 0; k < kWide; k++) {
            const bool there = part.from != nullptr && fetching + k * kStep < row_bytes;
            h.chunk[k] = there ? ptx::load_relaxed_gpu_once(part.from + fetching + k * kStep) : uint4{};
        }
        fetched = part.last ? 0 : fetched + 1;
        if (part.last) fetching += kColumns;
    };
#pragma unroll
    for (auto &h : held) fetch(h);
    float total[kWide][8] = {};
    while (adding - lane_at < row_bytes) {
#pragma unroll
        for (auto &h : held) {
            const bool last = parts[added].last;
            add_part<T, false>(total, h, 1.0f);
            fetch(h);
            added = last ? 0 : added + 1;
            if (!last) continue;
#pragma unroll
            for (uint32_t k = 0; k < kWide; k++) {
                if (adding + k * kStep < row_bytes) ptx::store(to + adding + k * kStep, pack_eight<T>(total[k]));
#pragma unroll
                for (float &channel : total[k]) channel = 0.0f;
            }
            adding += kColumns;
            if (adding - lane_at >= row_bytes) break;
        }
    }
}

// By a warp, beside the others: sums tokens until the block has none left.
template <typename T>
__device__ __noinline__ void add_tokens(const Combine &a, const Operation &o, const Expected &expected, AnswerShared &s) {
    const uint32_t warp = threadIdx.x / 32, laneid = threadIdx.x % 32;
#pragma unroll 1
    while (true) {
        const uint32_t i = __shfl_sync(0xffffffffu, laneid == 0 ? atomicAdd(&s.taken, 1u) : 0, 0);
        const uint32_t t = blockIdx.x + i * gridDim.x;
        if (t >= a.tokens) return;
        const Found found = find_answers(a, o, o.present, true, t, s.batch, warp);
        if (found.added && found.rank != o.rank) await_span(a, o, expected, found.rank, found.row);
        __syncwarp(); // all parts are there, and known
        add_row<T>(&s.batch.parts[warp * EPW_MAX_TOPK], s.batch.to[warp], a.row_size);
        __syncwarp(); // they have been read
    }
}

// The whole operation. By the whole block.
template <typename T>
__device__ __noinline__ void flow(const Combine &a, Operation &o, Expected &expected, AnswerShared &s, Ring ring) {
    const uint32_t warp = threadIdx.x / 32, laneid = threadIdx.x % 32;
    settle_absent(o, expected);
    if (threadIdx.x < kCarriers) s.carried[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        s.taken = 0;
        o.answered = a.lane.arrays.answered;
    }
    __syncthreads();
    if (warp < a.carriers) {
        if (laneid == 0) carry(a, o, s, warp, ring.memory);
        __syncwarp();
    }
    if (warp < kWarps) {
        add_tokens<T>(a, o, expected, s);
    } else {
        tell_spans(a, o, s);
        // Writer of the words: the last block here, see answer_all. All but this warp go on meanwhile.
        if (laneid == 0) say_sent(o);
        __syncwarp();
        for (uint32_t peer = laneid; o.last && peer < o.ranks; peer += 32) tell_answered(a, o, s, expected.marked, peer);
        await_answers(a, o, expected);
    }
    if (must_close(o, EPW_GPU_FREE, true)) close_collecting<T, false>(a, o, expected, true, s.batch, ring);
}

} // namespace epw
