// Sums of rows: a thread has its own channels of every part, and asks for them some parts ahead of those that it adds up, over the
// ends of rows. On their way they have a place in shared memory, which holds more of them than registers do.
#pragma once

#include "kernels/peer/rank_set.cuh"
#include "kernels/ep/number.cuh"
#include "kernels/ep/tile.cuh"

namespace epw {

constexpr uint32_t kBatch = kWarps; // rows looked up at a time, by a warp each
constexpr uint32_t kChunks = 2;     // of 16 bytes, what a thread has of a part at a time

// Where parts are on their way to threads: in shared memory, so many at a time.
struct Ring {
    static constexpr uint32_t kMost = 7, kLeast = 4; // where there is room; where tables take it
    static constexpr uint32_t kPartBytes = kChunks * kThreads * 16;

    unsigned char *memory;
    uint32_t parts; // one of the two

    static uint32_t parts_in(uint32_t bytes) { return bytes >= kMost * kPartBytes ? kMost : kLeast; }
    __device__ __forceinline__ unsigned char *at(uint32_t part, uint32_t k) const {
        return memory + (part * kChunks + k) * kThreads * 16 + threadIdx.x * 16;
    }
    // Until the part that was asked for first has come, of as many as there is room for.
    __device__ __forceinline__ void await() const {
        if (parts == kMost) {
            ptx::copy_wait<kMost - 1>();
        } else {
            ptx::copy_wait<kLeast - 1>();
        }
    }
};

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
template <uint32_t Chunks> struct Held {
    uint4 chunk[Chunks];
};

// Weighted: each part times its weight. Never fused.
template <typename T, bool Weighted, uint32_t Chunks>
__device__ __forceinline__ void add_part(float (&total)[Chunks][8], const Held<Chunks> &held, float weight) {
#pragma unroll
    for (uint32_t k = 0; k < Chunks; k++) {
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
__device__ __noinline__ void accumulate(const Batch &batch, Ring ring, uint32_t rows, uint32_t row_bytes,
                                        const epw_rank_set *settled) {
    constexpr uint32_t kStep = kThreads * 16; // from a thread's chunk to its next
    Glance known;
#pragma unroll 1
    for (uint32_t column = threadIdx.x * 16; threadIdx.x < kThreads && column < row_bytes; column += kChunks * kStep) {
        uint32_t fetched = 0, added = 0; // numbers of parts
        auto fetch = [&](uint32_t place) {
            if (fetched < rows * EPW_MAX_TOPK) {
                const Part part = batch.parts[fetched];
                fetched = part_after(fetched, part.last);
                if (settled) known.await(*settled, part.rank);
#pragma unroll
                for (uint32_t k = 0; k < kChunks; k++) {
                    const bool there = part.from != nullptr && column + k * kStep < row_bytes;
                    ptx::copy_16(ring.at(place, k), part.from + column + k * kStep, there);
                }
            }
            ptx::copy_commit(); // none on its way counts too
        };
#pragma unroll 1
        for (uint32_t place = 0; place < ring.parts; place++) fetch(place);
        float total[kChunks][8] = {};
#pragma unroll 1
        for (uint32_t place = 0; added < rows * EPW_MAX_TOPK; place = place + 1 < ring.parts ? place + 1 : 0) {
            const Part &part = batch.parts[added];
            const bool last = part.last;
            ring.await();
            Held<kChunks> held;
#pragma unroll
            for (uint32_t k = 0; k < kChunks; k++) held.chunk[k] = *reinterpret_cast<const uint4 *>(ring.at(place, k));
            add_part<T, Weighted>(total, held, part.weight);
            fetch(place); // comes while the sum goes
            unsigned char *to = batch.to[added / EPW_MAX_TOPK] + column;
            added = part_after(added, last);
            if (!last) continue;
#pragma unroll
            for (uint32_t k = 0; k < kChunks; k++) {
                if (column + k * kStep < row_bytes) ptx::store(to + k * kStep, pack_eight<T>(total[k]));
#pragma unroll
                for (float &channel : total[k]) channel = 0.0f;
            }
        }
    }
}

} // namespace epw
