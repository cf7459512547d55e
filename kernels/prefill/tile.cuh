// Tiles: a row passes through one in pieces, loaded and stored by bulk copies, or quantised on the way. A block has a pool of
// them and more movers than tiles: a mover has one only while its row is in it, not while it looks for rows, or waits until they
// have arrived at the peer.
#pragma once

#include "kernels/numerics/number.cuh"
#include "kernels/prefill/operation.cuh"
#include "kernels/ptx/bulk.cuh"

namespace epw {

// Bulk copies move whole units of 16 bytes.
__host__ __device__ __forceinline__ uint32_t whole_units(uint32_t bytes) { return (bytes + 15) & ~15u; }
__host__ __device__ __forceinline__ uint32_t whole_lines(uint64_t bytes) { return uint32_t((bytes + 127) & ~uint64_t(127)); }

// [head][piece][scales of the piece]. The head is that of a dispatched row; in a combine, the list of rows that are summed.
constexpr uint32_t kRowPiece = 14336; // bytes of a payload, or of the channels that are quantised to half as many
constexpr uint32_t kRowScales = kRowPiece / 2 / EPW_FP8_BLOCK * 4; // whole 16-byte units
// Of a row that is quantised in several pieces, so that the scales of each, of a byte or more, are whole units.
constexpr uint32_t kQuantisedPiece = kRowPiece / 2 / (16 * EPW_FP8_BLOCK) * (16 * EPW_FP8_BLOCK);
constexpr uint32_t kAnswerPiece = 10240; // of a combine

constexpr uint32_t kFeeds = 5; // parts of a tile that are loaded apart from each other, see combine.cuh

// The tiles of a block, in its shared memory.
struct Tiles {
    unsigned char *memory;
    uint32_t *free; // bit i: tile i. Writers: movers, which take and give back
    uint32_t bytes, head;

    static __host__ __device__ __forceinline__ uint32_t bytes_of(uint32_t head, uint32_t kind) {
        return whole_lines(head) + (kind == 0 ? kRowPiece + whole_lines(kRowScales) : kAnswerPiece);
    }
};

// A mover's access to the pool. All functions are called by the whole warp.
struct Tile {
    const Tiles pool;
    uint64_t *loaded;          // [kFeeds] barriers: of a piece the first one
    uint32_t parities, number; // bit i: of barrier i
    unsigned char *head, *piece, *scales;

    __device__ __forceinline__ Tile(const Tiles &pool, uint64_t *loaded)
        : pool(pool), loaded(loaded), parities(0), number(0), head(nullptr), piece(nullptr), scales(nullptr) {}

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
        scales = piece + kRowPiece;
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
        while (!ptx::barrier_try_wait(loaded, parities & 1)) {
        }
        parities ^= 1;
    }
};

// Quantises the piece of `channels`, whole blocks, of type T, where it lies. Called by the whole warp.
//
// Four lanes share a block and its scale: a lane holds 32 channels, in chunks of eight, and takes up its chunks in such an order
// that the lanes of one access use all banks. What is written in a turn lies before what later turns read.
template <typename T>
__device__ __noinline__ void quantise(unsigned char *piece, unsigned char *scales, uint32_t channels, uint32_t payload) {
    constexpr uint32_t kChunks = 4, kShare = EPW_FP8_BLOCK / (8 * kChunks); // of a lane; lanes of a block
    const uint32_t laneid = threadIdx.x % 32, chunks = channels / 8, turn = laneid / 2 + laneid / 8;
#pragma unroll 1
    for (uint32_t first = laneid * kChunks; first - laneid * kChunks < chunks; first += 32 * kChunks) {
        const bool has = first < chunks;
        uint4 x[kChunks];
        uint32_t largest = 0;
#pragma unroll
        for (uint32_t k = 0; k < kChunks; k++) {
            x[k] = has ? reinterpret_cast<const uint4 *>(piece)[first + (turn + k) % kChunks] : uint4{};
            largest = T::larger(largest, T::larger(T::larger(x[k].x, x[k].y), T::larger(x[k].z, x[k].w)));
        }
#pragma unroll
        for (uint32_t step = kShare / 2; step > 0; step /= 2) {
            largest = T::larger(largest, __shfl_xor_sync(0xffffffffu, largest, step));
        }
        __syncwarp(); // all lanes have read
        if (!has) continue;
        const float amax = fmaxf(fmaxf(fabsf(T::low(largest)), fabsf(T::high(largest))), 1e-4f); // fmaxf drops a NaN too
        const Scale s = payload == EPW_PAYLOAD_FP8_F32 ? scale_f32(amax) : scale_power_of_two(amax);
#pragma unroll
        for (uint32_t k = 0; k < kChunks; k++) {
            reinterpret_cast<uint2 *>(piece)[first + (turn + k) % kChunks] = quantise_eight<T>(x[k], s.inverse);
        }
        if (laneid % kShare != 0) continue;
        const uint32_t block = first / (kShare * kChunks);
        if (payload == EPW_PAYLOAD_FP8_UE8M0) {
            scales[block] = __float_as_uint(s.scale) >> 23;
        } else {
            reinterpret_cast<float *>(scales)[block] = s.scale;
        }
    }
}

} // namespace epw
