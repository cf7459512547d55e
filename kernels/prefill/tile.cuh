// Tiles: rows pass through shared memory in pieces. Each mover has a tile of its own, of two halves: a piece is loaded into one
// of them while the piece before it is stored from the other, both by bulk copies. A row that is to be quantised is loaded into
// the second half, from which its lanes take it, and stored from the first one.
#pragma once

#include "kernels/numerics/quantise.cuh"
#include "kernels/prefill/operation.cuh"
#include "kernels/ptx/bulk.cuh"

namespace epw {

// Bulk copies move whole units of 16 bytes.
__host__ __device__ __forceinline__ uint32_t whole_units(uint32_t bytes) { return (bytes + 15) & ~15u; }
__host__ __device__ __forceinline__ uint32_t whole_lines(uint64_t bytes) { return uint32_t((bytes + 127) & ~uint64_t(127)); }

// A tile is [head][half][half], a half is [piece][scales of the piece]. The head is that of a dispatched row; in a combine, the
// list of rows that are summed.
constexpr uint32_t kPiece = 7168; // bytes of a payload
constexpr uint32_t kHalf = kPiece + (kPiece / EPW_FP8_BLOCK * 4 + 127) / 128 * 128;
// Of a row that is quantised in several pieces, so that the scales of each, of a byte or more, are whole units.
constexpr uint32_t kQuantisedPiece = kPiece / (16 * EPW_FP8_BLOCK) * (16 * EPW_FP8_BLOCK);
// Of a row on its way to be quantised: two shares of each lane, and how many such pairs are under way.
constexpr uint32_t kStagedPair = 2048, kStagedPairs = 3;
static_assert(kStagedPairs * kStagedPair <= kHalf);

__host__ __device__ __forceinline__ uint32_t tile_bytes(uint32_t head) { return whole_lines(head) + 2 * kHalf; }

// All functions are called by the whole warp.
struct Tile {
    unsigned char *const head, *const halves;
    uint64_t *const loaded; // [2] barriers, of the halves
    uint32_t parities;      // bit i: of barrier i

    __device__ __forceinline__ Tile(unsigned char *memory, uint32_t head_bytes, uint64_t *loaded)
        : head(memory), halves(memory + whole_lines(head_bytes)), loaded(loaded), parities(0) {}

    __device__ __forceinline__ unsigned char *half(uint32_t i) const { return halves + i * kHalf; }

    // Waits until the stores of all lanes have read the tile, which may then be written in either way.
    __device__ __forceinline__ void reuse() const {
        ptx::bulk_wait_read<0>();
        ptx::fence_shared_before_bulk();
        __syncwarp();
    }
    // What lanes have written into the tile may be stored in bulk by any of them.
    __device__ __forceinline__ void wrote() const {
        ptx::fence_shared_before_bulk();
        __syncwarp();
    }
    // Begins to fill a half with whole units, `more` of them by load_behind(); waits until it is full.
    __device__ __forceinline__ void load(uint32_t i, const unsigned char *from, uint32_t bytes, uint32_t more = 0) const {
        if (threadIdx.x % 32 != 0) return;
        ptx::barrier_expect(&loaded[i], bytes + more);
        ptx::bulk_load(half(i), from, bytes, &loaded[i]);
    }
    __device__ __forceinline__ void load_behind(uint32_t i, uint32_t at, const unsigned char *from, uint32_t bytes) const {
        if (threadIdx.x % 32 == 0) ptx::bulk_load(half(i) + at, from, bytes, &loaded[i]);
    }
    __device__ __forceinline__ void await(uint32_t i) {
        while (!ptx::barrier_try_wait(&loaded[i], parities >> i & 1)) {
        }
        parities ^= 1u << i;
    }
    // Passes `count` pieces through, each loaded while the one before it is stored. load(i, half): begins to load piece i into
    // that half; store(i, from): stores it from there.
    template <typename Load, typename Store>
    __device__ __forceinline__ void stream(uint32_t count, const Load &load, const Store &store) {
#pragma unroll 1
        for (uint32_t i = 0; i <= count; i++) {
            reuse(); // by the piece before the last one
            if (i < count) load(i, i & 1);
            if (i == 0) continue;
            await(~i & 1);
            store(i - 1, half(~i & 1));
        }
    }
};

// A piece of one of several rows, each of which a lane stands for.
struct Piece {
    uint32_t rows; // the lanes of this row and of those behind it
    uint32_t at;   // its first byte

    __device__ __forceinline__ uint32_t lane() const { return __ffs(rows) - 1; }
    // To the next one, of pieces of so many bytes.
    __device__ __forceinline__ void advance(uint32_t piece, uint32_t row_bytes) {
        at += piece;
        if (at < row_bytes) return;
        at = 0;
        rows &= rows - 1;
    }
};

// A piece of a row that is quantised on its way from memory to a tile. What is loaded, two shares of each lane at a time, lies in
// `staged` until the lane reads it. All functions are called by the whole warp.
template <typename T> struct Quantiser {
    static constexpr uint32_t kBetween = 32 * kQuantised * 8; // bytes from a lane's share to its next one, once quantised

    const uint32_t laneid = threadIdx.x % 32;
    const unsigned char *from;   // the lane's next share that is loaded
    unsigned char *const staged; // the lane's chunks
    const uint32_t bytes, pairs; // of the piece, once quantised: whole blocks

    // Begins to load.
    __device__ __forceinline__ Quantiser(const unsigned char *row, uint32_t bytes, unsigned char *staged)
        : from(row + quantised_chunk(laneid, 0) * 16), staged(staged + laneid * 16), bytes(bytes),
          pairs((bytes + 2 * kBetween - 1) / (2 * kBetween)) {
#pragma unroll
        for (uint32_t i = 0; i < kStagedPairs; i++) load<false>(i, i);
    }
    // Bytes of the piece from the lane's share of pair i on; not positive if it has none.
    __device__ __forceinline__ int32_t inside(uint32_t i) const {
        return int32_t(bytes - i * 2 * kBetween) - int32_t(laneid * kQuantised * 8);
    }
    // Whole: the piece is whole pairs.
    template <bool Whole> __device__ __forceinline__ void load(uint32_t i, uint32_t place) {
        if (i < pairs) {
            const int32_t apart = int32_t(quantised_chunk(laneid, 1) * 16) - int32_t(quantised_chunk(laneid, 0) * 16);
            const bool first = Whole || inside(i) > 0, second = Whole || inside(i) > int32_t(kBetween);
            unsigned char *to = staged + place * kStagedPair;
            ptx::copy_16(to, from, first);
            ptx::copy_16(to + 512, from + apart, first);
            ptx::copy_16(to + 1024, from + 2 * kBetween, second);
            ptx::copy_16(to + 1536, from + 2 * kBetween + apart, second);
            from += 4 * kBetween;
        }
        ptx::copies_commit();
    }
    __device__ __forceinline__ void run(unsigned char *piece, unsigned char *scales, uint32_t payload) {
        if (bytes % (2 * kBetween) == 0 && payload == EPW_PAYLOAD_FP8_F32) { // the common case needs fewer instructions
            run<true>(piece, scales, EPW_PAYLOAD_FP8_F32);
        } else {
            run<false>(piece, scales, payload);
        }
    }
    template <bool Whole> __device__ __forceinline__ void run(unsigned char *piece, unsigned char *scales, uint32_t payload) {
        const uint32_t of_scale = scale_bytes(payload), between = kBetween / EPW_FP8_BLOCK * of_scale;
        ShareAt to(piece, scales, laneid, of_scale);
        uint32_t place = 0;
#pragma unroll 1
        for (uint32_t i = 0; i < pairs; i++) {
            ptx::copies_wait<kStagedPairs - 1>();
            uint4 x[2][kQuantised];
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                x[k / 2][k % 2] = *reinterpret_cast<const uint4 *>(staged + place * kStagedPair + k * 512);
            }
            load<Whole>(i + kStagedPairs, place); // arrives while this lane goes on
            ShareAt next = to;
            next.advance(kBetween, between);
            quantise_shares<T, 2>(payload, x, laneid % kBlockThreads == 0,
                                  {Whole || inside(i) > 0, Whole || inside(i) > int32_t(kBetween)}, {to, next});
            to.advance(2 * kBetween, 2 * between);
            place = place + 1 < kStagedPairs ? place + 1 : 0;
        }
    }
};

} // namespace epw
