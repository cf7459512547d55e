// Sums of rows, in registers: each thread handles the same channels of every part of a row, and loads parts a few ahead of the
// one that it adds, across row boundaries; where blocks have several rows, into shared memory.
#pragma once

#include "kernels/peer/rank_set.cuh"
#include "kernels/numerics/add.cuh"
#include "kernels/ep/tile.cuh"
#include "kernels/ptx/bulk.cuh"

namespace epw {

constexpr uint32_t kChunks = 2; // 16-byte chunks that a thread holds of each part

struct __align__(16) Part {
    const unsigned char *from;
    float weight;
    uint16_t last; // 1: the last part of its row; or kNoParts
    uint16_t rank; // the rank that it comes from
};
constexpr uint16_t kNoParts = 2; // the row has no parts: its sum is zero, whatever is read here

// Rows to be summed, in shared memory: their parts, in the order in which they are added, and the destinations. The parts of row
// i begin at index i * EPW_MAX_TOPK; a row has at least one. Each warp looks up every kWarps-th row.
template <uint32_t Rows> struct RowsToSum {
    static constexpr uint32_t kRows = Rows;
    Part parts[kRows * EPW_MAX_TOPK];
    unsigned char *to[kRows];
};
using Batch = RowsToSum<kWarps>;

__device__ __forceinline__ uint32_t part_after(uint32_t number, bool last) {
    static_assert((EPW_MAX_TOPK & (EPW_MAX_TOPK - 1)) == 0);
    return (last ? number | (EPW_MAX_TOPK - 1) : number) + 1;
}

// Makes a row of the batch from `count` parts; a thread that `has` a part puts it at `place`. `readable`: memory as long as a
// row. Called by one warp.
template <typename Rows>
__device__ __forceinline__ void put_row(Rows &batch, uint32_t at, unsigned char *to, uint32_t count, bool has, uint32_t place,
                                        const unsigned char *from, float weight, uint32_t rank, const unsigned char *readable) {
    uint32_t laneid = threadIdx.x % 32;
    if (has) batch.parts[at * EPW_MAX_TOPK + place] = {from, weight, place + 1 == count, uint16_t(rank)};
    if (laneid != 0) return;
    if (count == 0) batch.parts[at * EPW_MAX_TOPK] = {readable, 0.0f, kNoParts, 0};
    batch.to[at] = to;
}

// A thread's chunks of a part.
struct Held {
    uint4 chunk[kChunks];
};

// Computes the `rows` sums of a batch, a row by the whole block at a time, each starting from +0, and writes them with ordinary
// stores. Called by the whole block, which sees the batch, though only its first kThreads threads work; the batch may be reused
// after the block's next barrier. A part is read once `settled` holds its rank, inserted by a thread that has acquired what that
// rank has written. Without `settled` the block has acquired everything already.
//
// The compiler lays out the functions of a kernel after it in the order of their mangled names. With this name the sums come
// first, so that the code every combine runs is one stretch of the instruction cache, with the rare code after it. With the rare
// functions in between, a combine of a single token takes up to 0.5 us longer (H200).
template <typename T, bool Weighted>
__device__ __noinline__ void accumulate(const Batch &batch, uint32_t rows, uint32_t row_bytes, const epw_rank_set *settled) {
    constexpr uint32_t kStep = kThreads * 16; // from a thread's chunk to its next
    constexpr uint32_t kAhead = 4;            // parts in flight per thread
    Glance known;
    for (uint32_t column = threadIdx.x * 16; threadIdx.x < kThreads && column < row_bytes; column += kChunks * kStep) {
        uint32_t fetched = 0, added = 0; // indices of parts
        Held held[kAhead];
        auto fetch = [&](Held &h) {
            if (fetched == rows * EPW_MAX_TOPK) return;
            const Part part = batch.parts[fetched];
            fetched = part_after(fetched, part.last);
            if (settled) known.await(*settled, part.rank);
#pragma unroll
            for (uint32_t k = 0; k < kChunks; k++) {
                bool there = part.last != kNoParts && column + k * kStep < row_bytes;
                h.chunk[k] = there ? ptx::load_relaxed_gpu_once(part.from + column + k * kStep) : uint4{};
            }
        };
#pragma unroll
        for (Held &h : held) fetch(h);
        float total[kChunks][8] = {};
        while (added < rows * EPW_MAX_TOPK) {
#pragma unroll
            for (Held &h : held) {
                const Part &part = batch.parts[added];
                bool last = part.last;
                add_part<T, Weighted>(total, h.chunk, part.weight);
                fetch(h); // arrives while the sum continues
                unsigned char *to = batch.to[added / EPW_MAX_TOPK] + column;
                added = part_after(added, last);
                if (!last) continue;
#pragma unroll
                for (uint32_t k = 0; k < kChunks; k++) {
                    if (column + k * kStep < row_bytes) ptx::store(to + k * kStep, pack_eight<T>(total[k]));
#pragma unroll
                    for (float &channel : total[k]) channel = 0.0f;
                }
                if (added == rows * EPW_MAX_TOPK) break;
            }
        }
    }
}

// The same sums, for rows of at least kStretch bytes: each warp has the same stretch of every row, or of every other one if there
// are more warps than stretches in a row. So there are fewer instructions to a byte, and these are what limits few SMs. The last
// stretch ends with the row, and may repeat bytes of the one before it. Parts come by a thread's own copies, which, unlike loads,
// can be awaited one by one.
constexpr uint32_t kWide = 4, kStretch = kWide * 32 * 16; // 16-byte chunks that a thread holds of each part; bytes
constexpr uint32_t kDeep = 3;                             // parts of a warp on their way
struct ManyRows : RowsToSum<2 * kWarps> {
    alignas(128) unsigned char copied[kWarps][kDeep][kStretch];
};

// Waits: parts are not all there, see above. A loop without waits has a fifth fewer instructions.
template <typename T, bool Weighted, bool Waits>
__device__ __noinline__ void accumulate(const ManyRows &batch, unsigned char *copied, uint32_t rows, uint32_t row_bytes,
                                        const epw_rank_set *settled) {
    ptx::assume_shared(&batch);
    ptx::assume_shared(copied);
    const uint32_t stretches = (row_bytes + kStretch - 1) / kStretch, warp = threadIdx.x / 32;
    uint32_t stretch = warp, group = 0, groups = 1;
    for (; stretch >= stretches && stretches * groups < kWarps; stretch -= stretches) group++;
    while ((groups + 1) * stretches <= kWarps) groups++;
    if (threadIdx.x >= kThreads || group >= groups || group >= rows) return;
    unsigned char *const own = copied + warp * (kDeep * kStretch) + threadIdx.x % 32 * 16;
    Glance known;
#pragma unroll 1
    for (; stretch < stretches; stretch += kWarps) {
        const uint32_t begin = min(stretch * kStretch, row_bytes - kStretch) + threadIdx.x % 32 * 16;
        uint32_t row = group, next = group * EPW_MAX_TOPK; // of the part that is copied next; its index
        const auto fetch = [&](uint32_t at) {
            if (row < rows) {
                const uint4 part = reinterpret_cast<const uint4 *>(batch.parts)[next];
                if (Waits) known.await(*settled, part.w >> 16);
                const unsigned char *from = reinterpret_cast<const unsigned char *>(uint64_t(part.y) << 32 | part.x) + begin;
#pragma unroll
                for (uint32_t k = 0; k < kWide; k++) ptx::copy_16(own + at + k * 512, from + k * 512, true);
                const bool ends = (part.w & 0xffff) != 0;
                if (ends) row += groups;
                next = ends ? row * EPW_MAX_TOPK : next + 1;
            }
            ptx::copies_commit();
        };
#pragma unroll 1
        for (uint32_t place = 0; place < kDeep; place++) fetch(place * kStretch);
        float total[kWide][8] = {};
        uint32_t added = group, part = group * EPW_MAX_TOPK, at = 0; // the row that is added, its part, and where that lies
#pragma unroll 1
        while (added < rows) {
            const uint2 now = reinterpret_cast<const uint2 *>(batch.parts)[part * 2 + 1];
            const uint32_t last = now.y & 0xffff;
            ptx::copies_wait<kDeep - 1>();
            uint4 chunk[kWide];
#pragma unroll
            for (uint32_t k = 0; k < kWide; k++) chunk[k] = *reinterpret_cast<const uint4 *>(own + at + k * 512);
            fetch(at); // arrives while the sum continues
            at = at + kStretch < kDeep * kStretch ? at + kStretch : 0;
            add_part<T, Weighted>(total, chunk, __uint_as_float(now.x));
            part++;
            if (!last) continue;
            unsigned char *to = batch.to[added] + begin;
#pragma unroll
            for (uint32_t k = 0; k < kWide; k++) {
                const uint4 sum = pack_eight<T>(total[k]);
                ptx::store(to + k * 512, last == kNoParts ? uint4{} : sum);
#pragma unroll
                for (float &channel : total[k]) channel = 0.0f;
            }
            added += groups;
            part = added * EPW_MAX_TOPK;
        }
    }
}

// Whether all ranks are in the set; acquires what was released with their bits. Called by a whole warp.
__device__ __forceinline__ bool are_settled(const epw_rank_set &settled) {
    uint32_t bits = ~0u;
#pragma unroll
    for (const uint32_t &word : settled.words) bits &= ptx::load_acquire_block(&word);
    return __all_sync(0xffffffffu, bits == ~0u);
}

template <typename T, bool Weighted>
__device__ __forceinline__ void accumulate(ManyRows &batch, uint32_t rows, uint32_t row_bytes, const epw_rank_set *settled) {
    if (settled && !are_settled(*settled)) {
        accumulate<T, Weighted, true>(batch, batch.copied[0][0], rows, row_bytes, settled);
    } else {
        accumulate<T, Weighted, false>(batch, batch.copied[0][0], rows, row_bytes, nullptr);
    }
}

} // namespace epw
