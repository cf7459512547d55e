// Tiles: a row passes through one in pieces, loaded by bulk copies, or quantised on the way from memory, and stored by bulk copies. A block has a pool of
// them and more movers than tiles: a mover has one only while its row is in it, not while it looks for rows, or waits until they
// have arrived at the peer.
#pragma once

#include "kernels/numerics/quantise.cuh"
#include "kernels/prefill/operation.cuh"
#include "kernels/ptx/bulk.cuh"

namespace epw {

// Bulk copies move whole units of 16 bytes.
__host__ __device__ __forceinline__ uint32_t whole_units(uint32_t bytes) { return (bytes + 15) & ~15u; }
__host__ __device__ __forceinline__ uint32_t whole_lines(uint64_t bytes) { return uint32_t((bytes + 127) & ~uint64_t(127)); }

// [head][piece][scales of the piece][what is to be quantised]. The head is that of a dispatched row; in a combine, the list of rows that are summed.
constexpr uint32_t kRowPiece = 14336, kQuantisedRow = 7168; // bytes of a payload; of one that this rank quantises
constexpr uint32_t kRowScales = kQuantisedRow / EPW_FP8_BLOCK * 4; // whole 16-byte units
// Of a row that is quantised in several pieces, so that the scales of each, of a byte or more, are whole units.
constexpr uint32_t kQuantisedPiece = kQuantisedRow / (16 * EPW_FP8_BLOCK) * (16 * EPW_FP8_BLOCK);
// Of a row on its way to be quantised: two shares of each lane, and how many such pairs are under way.
constexpr uint32_t kStagedPair = 2048, kStagedPairs = 3;
constexpr uint32_t kAnswerPiece = 14336; // of a combine

// The tiles of a block, in its shared memory.
struct Tiles {
    unsigned char *memory;
    uint32_t *free; // bit i: tile i. Writers: movers, which take and give back
    uint32_t bytes, head, piece;

    static __host__ __device__ __forceinline__ uint32_t piece_of(uint32_t kind, bool quantised) {
        return kind != 0 ? kAnswerPiece : quantised ? kQuantisedRow : kRowPiece;
    }
    static __host__ __device__ __forceinline__ uint32_t bytes_of(uint32_t head, uint32_t kind, bool quantised) {
        return whole_lines(head) + piece_of(kind, quantised) + (quantised ? whole_lines(kRowScales) + kStagedPairs * kStagedPair : 0);
    }
};

// A mover's access to the pool. All functions are called by the whole warp.
struct Tile {
    const Tiles pool;
    uint64_t *loaded; // a barrier
    uint32_t parity, number;
    unsigned char *head, *piece, *scales, *staged;

    __device__ __forceinline__ Tile(const Tiles &pool, uint64_t *loaded)
        : pool(pool), loaded(loaded), parity(0), number(0), head(nullptr), piece(nullptr), scales(nullptr),
          staged(nullptr) {}

    // Waits for a tile. Writer of what lies in it: its last user, before give_back().
    __device__ __forceinline__ void get() {
        uint32_t bit = 0;
        while (threadIdx.x % 32 == 0 && bit == 0) { // bounded: who has a tile waits for nobody
            const uint32_t free = ptx::load_acquire_block(pool.free), first = free & (0u - free);
            bit = first & ptx::clear_bits_acquire_block(pool.free, first);
            if (bit == 0) __nanosleep(20);
        }
        number = __ffs(__shfl_sync(0xffffffffu, bit, 0)) - 1;
        __syncwarp(); // the other lanes come after the acquire
        head = pool.memory + number * pool.bytes;
        piece = head + whole_lines(pool.head);
        scales = piece + pool.piece;
        staged = scales + whole_lines(kRowScales);
    }
    // Its stores read it before, and what lanes have done in it comes before the bulk copies of its next user.
    __device__ __forceinline__ void give_back() {
        reuse();
        if (threadIdx.x % 32 == 0) ptx::set_bits_release_block(pool.free, 1u << number);
    }

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
    // Loads a piece, which is waited for.
    __device__ __forceinline__ void load(const unsigned char *from, uint32_t bytes) const {
        if (threadIdx.x % 32 != 0) return;
        ptx::barrier_expect(loaded, bytes);
        ptx::bulk_load(piece, from, bytes, loaded);
    }
    __device__ __forceinline__ void await() {
        while (!ptx::barrier_try_wait(loaded, parity)) {
        }
        parity ^= 1;
    }
};

// Quantises a piece of a row, of so many bytes when it is quantised, whole blocks, on its way from memory into the tile. What is
// loaded, two shares of each lane at a time, lies in `staged` until the lane reads it. Called by the whole warp.
template <typename T>
__device__ __forceinline__ void quantise(const unsigned char *from, unsigned char *piece, unsigned char *scales,
                                         unsigned char *staged, uint32_t bytes, uint32_t payload) {
    constexpr uint32_t kBetween = 32 * kQuantised * 8; // bytes from a lane's share to its next one
    const uint32_t laneid = threadIdx.x % 32, pairs = (bytes + 2 * kBetween - 1) / (2 * kBetween);
    const uint32_t of_scale = scale_bytes(payload), scales_between = kBetween / EPW_FP8_BLOCK * of_scale;
    const int32_t apart = int32_t(quantised_chunk(laneid, 1) * 16) - int32_t(quantised_chunk(laneid, 0) * 16);
    from += quantised_chunk(laneid, 0) * 16;
    staged += laneid * 16;
    int32_t left = int32_t(bytes) - int32_t(laneid * kQuantised * 8); // from the lane's next share on; not positive if it has none
    const auto load = [&](uint32_t pair, unsigned char *to) {
        if (pair < pairs) {
            const int32_t inside = int32_t(bytes - pair * 2 * kBetween) - int32_t(laneid * kQuantised * 8);
            ptx::copy_16(to, from, inside > 0);
            ptx::copy_16(to + 512, from + apart, inside > 0);
            ptx::copy_16(to + 1024, from + 2 * kBetween, inside > int32_t(kBetween));
            ptx::copy_16(to + 1536, from + 2 * kBetween + apart, inside > int32_t(kBetween));
        }
        ptx::copies_commit();
        from += 4 * kBetween;
    };
#pragma unroll
    for (uint32_t i = 0; i < kStagedPairs; i++) load(i, staged + i * kStagedPair);
    ShareAt to(piece, scales, laneid, of_scale);
    uint32_t number = 0; // of the pair's place
#pragma unroll 1
    for (uint32_t i = 0; i < pairs; i++) {
        ptx::copies_wait<kStagedPairs - 1>();
        unsigned char *at = staged + number * kStagedPair;
        uint4 x[2][kQuantised];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) x[k / 2][k % 2] = *reinterpret_cast<const uint4 *>(at + k * 512);
        load(i + kStagedPairs, at); // arrives while this lane goes on
        ShareAt next = to;
        next.advance(kBetween, scales_between);
        quantise_shares<T, 2>(payload, x, laneid % kBlockThreads == 0, {left > 0, left > int32_t(kBetween)}, {to, next});
        to.advance(2 * kBetween, 2 * scales_between);
        left -= 2 * kBetween;
        number = number + 1 < kStagedPairs ? number + 1 : 0;
    }
}

} // namespace epw
