// Sums of rows, through registers: a thread has its own channels of every part, and loads them some parts ahead of those that
// it adds up, over the ends of rows.
#pragma once

#include "kernels/peer/rank_set.cuh"
#include "kernels/numerics/number.cuh"
#include "kernels/ep/tile.cuh"

namespace epw {

constexpr uint32_t kBatch = kWarps; // rows looked up at a time, by a warp each
constexpr uint32_t kAhead = 4;      // parts on their way to a thread
constexpr uint32_t kChunks = 2;     // of 16 bytes, what a thread has of each

struct __align__(16) Part {
    const unsigned char *from; // nullptr: zeros
    float weight;
    uint16_t last; // of its row
    uint16_t rank; // that it comes from
};

// Rows to be made, in shared memory: their parts, in the order in which they are added, and where they go. Row i's begin at
// number i * EPW_MAX_TOPK; it has one at least.
struct Batch {
    Part parts[kBatch * EPW_MAX_TOPK];
    unsigned char *to[kBatch];
};

__device__ __forceinline__ uint32_t part_after(uint32_t number, bool last) {
    static_assert((EPW_MAX_TOPK & (EPW_MAX_TOPK - 1)) == 0);
    return (last ? number | (EPW_MAX_TOPK - 1) : number) + 1;
}

// By one warp: makes a row of the batch of `count` parts; a thread that `has` one puts it at `place`.
__device__ __forceinline__ void put_row(Batch &batch, uint32_t at, unsigned char *to, uint32_t count, bool has, uint32_t place,
                                        const unsigned char *from, float weight, uint32_t rank) {
    uint32_t laneid = threadIdx.x % 32;
    if (has) batch.parts[at * EPW_MAX_TOPK + place] = {from, weight, place + 1 == count, uint16_t(rank)};
    if (laneid != 0) return;
    if (count == 0) batch.parts[at * EPW_MAX_TOPK] = {nullptr, 0.0f, 1, 0};
    batch.to[at] = to;
}

// What a thread holds of a part.
struct Held {
    uint4 chunk[kChunks];
};

// Weighted: each part times its weight. Never fused.
template <typename T, bool Weighted>
__device__ __forceinline__ void add_part(float (&total)[kChunks][8], const Held &held, float weight) {
#pragma unroll
    for (uint32_t k = 0; k < kChunks; k++) {
        const uint32_t pairs[] = {held.chunk[k].x, held.chunk[k].y, held.chunk[k].z, held.chunk[k].w};
#pragma unroll
        for (uint32_t n = 0; n < 4; n++) {
            float low = T::low(pairs[n]), high = T::high(pairs[n]);
            if (Weighted) {
                low = __fmul_rn(weight, low);
                high = __fmul_rn(weight, high);
            }
            total[k][2 * n] = __fadd_rn(total[k][2 * n], low);
            total[k][2 * n + 1] = __fadd_rn(total[k][2 * n + 1], high);
        }
    }
}

// Makes the batch's `rows` sums, each from +0, with ordinary stores. By the whole block, which sees the batch, though only its
// first kThreads do the work; the batch is free behind the block's next barrier. A part is read once `settled` has its rank,
// put there by a thread that has acquired what the rank has written. Without `settled` the block has acquired it all.
//
// The compiler lays the functions of a kernel behind it, in the order of their mangled names. By this name the sums come first:
// what every combine runs through is one piece of code in the instruction cache, and what is rare lies behind it. With the rare
// functions in between, a combine of a single token takes up to 0.5 us more (H200).
template <typename T, bool Weighted>
__device__ __noinline__ void accumulate(const Batch &batch, uint32_t rows, uint32_t row_bytes, const epw_rank_set *settled) {
    constexpr uint32_t kStep = kThreads * 16; // from a thread's chunk to its next
    Glance known;
    for (uint32_t column = threadIdx.x * 16; threadIdx.x < kThreads && column < row_bytes; column += kChunks * kStep) {
        uint32_t fetched = 0, added = 0; // numbers of parts
        Held held[kAhead];
        auto fetch = [&](Held &h) {
            if (fetched == rows * EPW_MAX_TOPK) return;
            const Part part = batch.parts[fetched];
            fetched = part_after(fetched, part.last);
            if (settled) known.await(*settled, part.rank);
#pragma unroll
            for (uint32_t k = 0; k < kChunks; k++) {
                bool there = part.from != nullptr && column + k * kStep < row_bytes;
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
                add_part<T, Weighted>(total, h, part.weight);
                fetch(h); // comes while the sum goes
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

} // namespace epw
