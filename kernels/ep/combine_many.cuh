// Combine of many rank-major rows in one call: in each block one warp sends answers, while the others sum tokens as their answers
// arrive, each warp a token of its own. Sending takes the wire and summing takes memory, so that both together take little more
// than the longer of them. Rows are answered in the order of their numbers, which is that of their tokens, and peers are told
// from time to time how far this rank has come: see epw_progress_offset().
#pragma once

#include "kernels/ep/answer.cuh"
#include "kernels/ep/collect.cuh"
#include "kernels/peer/beside.cuh"

namespace epw {

// Numbers that the blocks of a kernel share out among them, in ascending order. Used by a whole warp.
struct Tickets {
    uint32_t *taken;
    uint32_t ticket = 0; // of thread 0: the number that was asked for; may be on its way

    __device__ __forceinline__ void ask() {
        if (threadIdx.x % 32 == 0) ticket = atomicAdd(taken, 1u);
    }
    // The number that was asked for.
    __device__ __forceinline__ uint32_t take() const { return __shfl_sync(0xffffffffu, ticket, 0); }
};

// The answers that a block sends, of a sequence in which the rows of all peers alternate, so that some block is sending to each
// of them at any time. A block takes some rows at a time: see send_many.cuh for why blocks do not get equal shares. The rows pass
// through the tiles in pieces. Used by one warp.
struct Stream {
    static constexpr uint32_t kStores = kStoresOfMany;
    static constexpr uint32_t kMostRows = 8, kMostPieces = 20; // that are taken at a time
    static constexpr uint32_t kPartTakes = 2;                  // by each block in a part, at least
    // Pieces, beside those taken together, whose stores need not be complete: few blocks need many on their way to fill the wire.
    static constexpr uint32_t kFewBlocks = 24, kOpenOfFew = 8, kOpen = 2;
    static constexpr uint32_t kCopies = sizeof(AnswerShared::copies) / sizeof(Copy);
    static_assert(kCopies >= 2 * kMostPieces + kMaxTiles + kOpenOfFew); // those found, and those not known to be complete

    const Combine &a;
    const Operation &o;
    AnswerShared &s;
    unsigned char *const tiles;
    const uint32_t peers, pieces;     // other ranks; of a row
    uint32_t total;                   // rows of the sequence, as if all peers had sent as many as the one that has sent most
    uint32_t each, part;              // rows that are taken at a time; those of a part, which is of whole takes
    uint32_t phases = 0;              // bit i: of the barrier of tile i
    uint32_t sent_part = 0, sent = 0; // rows of a part that are complete, not yet noted

    __device__ __forceinline__ Stream(const Combine &a, const Operation &o, AnswerShared &s, unsigned char *tiles)
        : a(a), o(o), s(s), tiles(tiles), peers(o.ranks - 1), pieces((a.row_size + kPieceBytes - 1) / kPieceBytes), total(0) {
#pragma unroll 1
        for (uint32_t rank = 0; rank < o.ranks; rank++) total = max(total, rank == o.rank ? 0 : s.received[rank]);
        total *= peers;
        each = min(max(total / (16 * gridDim.x), 1u), min(kMostRows, kMostPieces / pieces));
        part = max((total + EPW_GPU_PARTS - 1) / EPW_GPU_PARTS, kPartTakes * each * gridDim.x);
        part = (part + each * peers - 1) / (each * peers) * (each * peers); // of as many rows of each peer
    }
    // Sends until there is nothing left.
    __device__ __forceinline__ void run();

  private:
    // Finds the copies of `each` rows from row n of the sequence on; they are the block's pieces from number i on.
    __device__ __forceinline__ void find(uint32_t n, uint32_t i) const {
#pragma unroll 1
        for (uint32_t k = threadIdx.x % 32; k < each * pieces; k += 32) {
            const uint32_t from_first = k / pieces, at_row = n + from_first, row = at_row / peers;
            const uint32_t source = source_at(o.rank, o.ranks, at_row - row * peers),
                           offset = (k - from_first * pieces) * kPieceBytes;
            const uint32_t max_tokens = a.lane.layout.max_tokens, answer = (o.rank * max_tokens + row) * a.lane.layout.answers;
            Copy &copy = s.copies[(i + k) % kCopies];
            copy.from = a.given_row(source * max_tokens + row) + offset;
            copy.to = at(o, source, a.answers.offset(answer)) + offset;
            copy.bytes = row < s.received[source] ? min(kPieceBytes, a.row_size - offset) : 0;
            copy.row = at_row;
        }
        __syncwarp();
    }
    __device__ __forceinline__ void load(const Copy &copy, uint32_t tile) const {
        if (copy.bytes == 0) return;
        ptx::barrier_expect(&s.loaded[tile], copy.bytes);
        ptx::bulk_load(tiles + tile * a.tiles.bytes, copy.from, copy.bytes, &s.loaded[tile]);
    }
    __device__ __forceinline__ void store(const Copy &copy, uint32_t tile) {
        if (copy.bytes > 0) {
            while (!ptx::barrier_try_wait(&s.loaded[tile], phases >> tile & 1)) {
            }
            phases ^= 1u << tile;
            ptx::bulk_store(copy.to, tiles + tile * a.tiles.bytes, copy.bytes);
        }
        ptx::bulk_commit();
    }
    // Notes that `each` rows from row n on are complete.
    __device__ __forceinline__ void complete(uint32_t n) {
        if (n / part != sent_part) {
            note();
            sent_part = n / part;
        }
        sent += each;
    }
    // Counts the rows that are complete, and tells the peers how far all parts are if theirs is by this; the last part is told by
    // the combine word. Parts need not become complete in their order. Writer: this warp, which has acquired what the warps of
    // the other blocks have released: their complete stores. Reader: the peers' warps that sum.
    __device__ __forceinline__ void note() {
        const uint32_t laneid = threadIdx.x % 32;
        const bool tells = sent > 0 && (sent_part + 1) * part < total;
        uint32_t last = 0;
        if (tells && laneid == 0) last = ptx::add_acq_rel_gpu(&o.state->sent_parts[sent_part], sent) + sent == part;
        sent = 0;
        if (!__shfl_sync(0xffffffffu, last, 0)) return;
        const bool whole = laneid < EPW_GPU_PARTS && ptx::load_acquire_gpu(&o.state->sent_parts[laneid]) == part;
        const uint32_t first = __ffs(~__ballot_sync(0xffffffffu, whole)) - 1; // that is not complete
        __syncwarp();                                                         // any thread posts what the others have acquired
        if (first <= sent_part || laneid >= o.ranks || laneid == o.rank) return;
        if (!has(o.mapped, laneid) || has(o.suspects, laneid) || has(o.missing, laneid)) return;
        tell_mapped(o, laneid, epw_progress_offset(&a.lane.layout, o.lane, o.rank),
                    epw_word(o.epoch, o.op, first * part / peers));
    }
};

__device__ __forceinline__ void Stream::run() {
    const bool leads = threadIdx.x % 32 == 0;
    const bool few = gridDim.x <= kFewBlocks;
    const uint32_t ahead = a.tiles.count - kStores, taken = each * pieces; // pieces that are taken at a time
    uint32_t count = ~0u;                                                  // the block's pieces, once that is known
    uint32_t found = 0, completed = 0, into = 0, from = 0;                 // pieces; tiles
    Tickets tickets = {&o.state->answers_taken};
    tickets.ask();
#pragma unroll 1
    for (uint32_t i = 0; count == ~0u || i < count + ahead; i++) {
        if (i == found && count == ~0u) {
            const uint32_t n = tickets.take() * each;
            if (n >= total) {
                count = i;
            } else {
                tickets.ask();
                find(n, i);
                found += taken;
            }
        }
        if (i < count && leads) {
            ptx::bulk_wait_read<kStores - 1>(); // the store from this tile
            load(s.copies[i % kCopies], into);
        }
        if (++into == a.tiles.count) into = 0;
        if (i < ahead || i - ahead >= count) continue;
        if (leads) store(s.copies[(i - ahead) % kCopies], from);
        if (++from == a.tiles.count) from = 0;
        if (i - ahead + 1 < completed + taken + (few ? kOpenOfFew : kOpen)) continue;
        if (leads && few) ptx::bulk_wait<kOpenOfFew>();
        if (leads && !few) ptx::bulk_wait<kOpen>();
        complete(s.copies[completed % kCopies].row);
        completed += taken;
    }
    if (leads) ptx::bulk_wait_all();
#pragma unroll 1
    for (; completed < count; completed += taken) complete(s.copies[completed % kCopies].row);
    note();
}

// How far the peers have come with their answers, as a warp knows it: each thread of one rank.
struct Arrived {
    uint32_t rows = 0; // answers of the rank that have arrived

    // Waits until the thread's answer, row `row` of `rank`, has arrived, if it `waits` for one, or never will. Called by a whole
    // warp. Bounded: all peers are settled at last.
    __device__ __forceinline__ void await(const Combine &a, const Operation &o, const Expected &expected, bool waits,
                                          uint32_t rank, uint32_t row) {
        const uint32_t own = threadIdx.x % 32;
        while (true) {
            const uint32_t there = __shfl_sync(0xffffffffu, rows, rank & 31);
            if (!__any_sync(0xffffffffu, waits && row >= there)) return;
            if (own < o.ranks) look(a, o, expected, own);
            __syncwarp(); // what one thread has acquired, all may read
        }
    }

  private:
    __device__ __forceinline__ void look(const Combine &a, const Operation &o, const Expected &expected, uint32_t rank) {
        if (ptx::load_acquire_block(&expected.settled.words[0]) & bit_of(rank)) {
            rows = ~0u;
            return;
        }
        const uint64_t progress = told(o, epw_progress_offset(&a.lane.layout, o.lane, rank));
        if (epw_word_matches(progress, o.epoch, o.op)) rows = epw_word_value(progress);
    }
};

// Sums bytes [begin, end) of `count` parts, that of place i held by thread i, and stores the sum. Called by a whole warp.
template <typename T>
__device__ __noinline__ void sum_parts(const unsigned char *from, uint32_t count, unsigned char *to, uint32_t begin,
                                       uint32_t end) {
    constexpr uint32_t kDeep = 3, kWide = 4;    // parts of which a thread holds chunks, and chunks of each
    constexpr uint32_t kStep = kWide * 32 * 16; // bytes of a warp's chunks
    const uint32_t column = threadIdx.x % 32 * 16;
    uint4 held[kDeep][kWide];
    float total[kWide][8] = {};
    uint32_t fetched = begin, added = begin, part = 0, place = 0; // bytes up to there, and the part of the next ones
    auto fetch = [&](uint4(&to)[kWide]) {
        if (fetched >= end) return;
        const auto *row =
            reinterpret_cast<const unsigned char *>(__shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(from), int(part)));
#pragma unroll
        for (uint32_t k = 0; k < kWide; k++) {
            const uint32_t at = fetched + k * 512 + column;
            to[k] = at < end ? ptx::load_relaxed_gpu_once(row + at) : uint4{};
        }
        if (++part == count) part = 0, fetched += kStep;
    };
#pragma unroll
    for (auto &h : held) fetch(h);
    while (added < end) {
#pragma unroll
        for (auto &h : held) {
            add_part<T, false>(total, h, 1.0f);
            fetch(h); // arrives while the sum continues
            if (++place < count) continue;
            place = 0;
#pragma unroll
            for (uint32_t k = 0; k < kWide; k++) {
                const uint32_t at = added + k * 512 + column;
                if (at < end) ptx::store(to + at, pack_eight<T>(total[k]));
#pragma unroll
                for (float &channel : total[k]) channel = 0.0f;
            }
            added += kStep;
            if (added >= end) break;
        }
    }
}

// Writes zeros where no rank has answered. Called by a whole warp.
__device__ __noinline__ inline void clear_sum(unsigned char *to, uint32_t begin, uint32_t end) {
#pragma unroll 1
    for (uint32_t at = begin + threadIdx.x % 32 * 16; at < end; at += 512) ptx::store(to + at, uint4{});
}

// Sums tokens, each by 2^a.share_shift warps, which need not be of one block. Called by a whole warp, of the first kWarps.
template <typename T> __device__ __forceinline__ void sum_tokens(const Combine &a, const Operation &o, const Expected &expected) {
    Arrived arrived;
    const uint32_t shares = 1u << a.share_shift, share = ((a.row_size + 511) / 512 + shares - 1) / shares * 512; // bytes
    Tickets tickets = {&o.state->sums_taken};
    tickets.ask();
    uint32_t n = tickets.take(); // of all tokens' shares
    if (n >> a.share_shift >= a.tokens) return;
    tickets.ask();
    TokenEntry entry(a, n >> a.share_shift);
#pragma unroll 1
    while (true) {
        const uint32_t t = n >> a.share_shift, begin = (n & (shares - 1)) * share, end = min(begin + share, a.row_size);
        const TokenAnswers answers(a, o, o.present, t, entry);
        const uint32_t row = entry.row;
        n = tickets.take();
        const bool more = n >> a.share_shift < a.tokens;
        if (more) {
            tickets.ask();
            entry = TokenEntry(a, n >> a.share_shift); // on its way while this one is summed
        }
        const unsigned char *from = nullptr;
#pragma unroll 1
        for (uint32_t i = 0; i < answers.count; i++) { // thread i gets part i
            const uint32_t holder = __ffs(__ballot_sync(0xffffffffu, answers.has && answers.place == i)) - 1;
            const uint64_t part = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(answers.from), int(holder));
            if (threadIdx.x % 32 == i) from = reinterpret_cast<const unsigned char *>(part);
        }
        arrived.await(a, o, expected, answers.has && answers.rank != o.rank, answers.rank, row);
        if (answers.count > 0) {
            sum_parts<T>(from, answers.count, sum_of(a, t), begin, end);
        } else {
            clear_sum(sum_of(a, t), begin, end);
        }
        if (!more) return;
    }
}

// Called by the whole block. All peers are mapped.
template <typename T>
__device__ __forceinline__ void combine_many(const Combine &a, Operation &o, AnswerShared &s, Expected &expected,
                                             unsigned char *memory) {
    settle_absent(o, expected);
    __syncthreads();
    if (threadIdx.x < kThreads) {
        sum_tokens<T>(a, o, expected);
    } else {
        Stream(a, o, s, memory).run();
        // Writer of the words: the last block, as in answer_all().
        if (warp_last_to_send(o) && threadIdx.x % 32 < o.ranks) tell_answers(a, o, s, threadIdx.x % 32, expected.marked);
        await_answers(a, o, expected);
        if (a.lane.counts && blockIdx.x == 0) count_collected(a, o, expected, o.present, threadIdx.x % 32, 32, false);
    }
    if (must_close(o, EPW_GPU_FREE, true)) close_collecting<T, false>(a, o, expected, s.batch);
}

} // namespace epw
