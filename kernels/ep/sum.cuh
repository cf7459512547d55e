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
    static_assert(kChunks == 2);
    Glance known;
    unsigned char *const begin = ring.memory + threadIdx.x * 16, *const end = begin + ring.parts * Ring::kPartBytes;
#pragma unroll 1
    for (uint32_t column = threadIdx.x * 16; threadIdx.x < kThreads && column < row_bytes; column += kChunks * kStep) {
        const bool both = column + kStep < row_bytes;
        const uint32_t parts = rows * EPW_MAX_TOPK;
        uint32_t fetched = 0, added = 0; // numbers of parts
        auto fetch = [&](unsigned char *place) {
            if (fetched < parts) {
                const Part part = batch.parts[fetched];
                fetched = part_after(fetched, part.last);
                if (settled) known.await(*settled, part.rank);
                ptx::copy_16(place, part.from + column, part.from != nullptr);
                ptx::copy_16(place + kStep, part.from + column + kStep, part.from != nullptr && both);
            }
            ptx::copy_commit(); // none on its way counts too
        };
#pragma unroll 1
        for (unsigned char *place = begin; place != end; place += Ring::kPartBytes) fetch(place);
        float total[kChunks][8] = {};
        unsigned char *place = begin;
#pragma unroll 1
        while (added < parts) {
            const float weight = batch.parts[added].weight;
            const bool last = batch.parts[added].last;
            ring.await();
            const Held<kChunks> held = {*reinterpret_cast<const uint4 *>(place), *reinterpret_cast<const uint4 *>(place + kStep)};
            add_part<T, Weighted>(total, held, weight);
            fetch(place); // comes while the sum goes
            place += Ring::kPartBytes;
            if (place == end) place = begin;
            if (last) {
                unsigned char *to = batch.to[added / EPW_MAX_TOPK] + column;
                ptx::store(to, pack_eight<T>(total[0]));
                if (both) ptx::store(to + kStep, pack_eight<T>(total[1]));
#pragma unroll
                for (uint32_t k = 0; k < kChunks; k++) {
#pragma unroll
                    for (float &channel : total[k]) channel = 0.0f;
                }
            }
            added = part_after(added, last);
        }
    }
}

} // namespace epw
