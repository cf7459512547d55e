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
constexpr uint32_t kRowPiece = 14336;      // bytes of a payload, at most
constexpr uint32_t kQuantisedPiece = 8192; // of the channels that are quantised to half as many, at most
constexpr uint32_t kQuantisedUnit =
    2 * 16 * EPW_FP8_BLOCK;              // of these, those whose scales, of a byte or more, are whole 16-byte units
constexpr uint32_t kAnswerPiece = 10240; // of a combine
static_assert(kQuantisedPiece % kQuantisedUnit == 0);

constexpr uint32_t kFeeds = 5; // parts of a piece that are loaded apart from each other, at most

// What is in a tile of a block, in bytes. Pieces are no larger than rows: then there are more of them.
struct TileShape {
    uint32_t head, piece, scales;

    static __host__ __device__ __forceinline__ TileShape of_rows(uint32_t header, uint32_t payload_bytes, bool quantised) {
        const uint32_t whole = whole_lines(quantised ? 2 * payload_bytes : payload_bytes);
        const uint32_t most = quantised ? kQuantisedPiece : kRowPiece, piece = whole < most ? whole : most;
        return {whole_lines(header), piece, quantised ? whole_lines(piece / 2 / EPW_FP8_BLOCK * 4) : 0};
    }
    static __host__ __device__ __forceinline__ TileShape of_answers(uint32_t addends) {
        return {whole_lines(addends), kAnswerPiece, 0};
    }
    __host__ __device__ __forceinline__ uint32_t bytes() const { return head + piece + scales; }
};

// The tiles of a block, in its shared memory.
struct Tiles {
    unsigned char *memory;
    uint32_t *free; // bit i: tile i. Writers: movers, which take and give back
    TileShape shape;
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
        head = pool.memory + number * pool.shape.bytes();
        piece = head + pool.shape.head;
        scales = piece + pool.shape.piece;
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
    // Loads a piece in parts of that many bytes, kFeeds of them at most; each is waited for.
    __device__ __forceinline__ void load(const unsigned char *from, uint32_t bytes, uint32_t part) const {
        const uint32_t number = threadIdx.x % 32, at = number * part;
        if (at >= bytes) return;
        ptx::barrier_expect(&loaded[number], min(part, bytes - at));
        ptx::bulk_load(piece + at, from + at, min(part, bytes - at), &loaded[number]);
    }
    __device__ __forceinline__ void load(const unsigned char *from, uint32_t bytes) const { load(from, bytes, bytes); }
    __device__ __forceinline__ void await() { await(loaded, parities, 0); }
    static __device__ __forceinline__ void await(uint64_t *loaded, uint32_t &parities, uint32_t part) {
        while (!ptx::barrier_try_wait(&loaded[part], parities >> part & 1)) {
        }
        parities ^= 1u << part;
    }
};

// What a warp quantises in one turn, in bytes, and what is loaded together.
constexpr uint32_t kQuantisedTurn = 2048, kQuantisedPart = 2 * kQuantisedTurn;
static_assert(kQuantisedPiece <= kFeeds * kQuantisedPart);

// Quantises the piece of `channels`, whole blocks, of type T, where it lies, part by part as it is loaded. Returns the parities
// of the barriers. Called by the whole warp.
//
// Four lanes share a block and its scale: a lane holds 32 channels, in chunks of eight, and takes up its chunks in such an order
// that the lanes of one access use all banks. What is written in a turn lies before what later turns read.
template <typename T>
__device__ __noinline__ uint32_t quantise(unsigned char *piece, unsigned char *scales, uint32_t channels, uint32_t payload,
                                          uint64_t *loaded, uint32_t parities) {
    constexpr uint32_t kChunks = kQuantisedTurn / (16 * 32),
                       kShare = EPW_FP8_BLOCK / (8 * kChunks); // of a lane; lanes of a block
    const uint32_t laneid = threadIdx.x % 32, chunks = channels / 8, turn = laneid / 2 + laneid / 8;
#pragma unroll 1
    for (uint32_t first = laneid * kChunks; first - laneid * kChunks < chunks; first += 32 * kChunks) {
        const uint32_t turns = first / (32 * kChunks), of_part = kQuantisedPart / kQuantisedTurn;
        if (turns % of_part == 0) Tile::await(loaded, parities, turns / of_part);
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
    return parities;
}

} // namespace epw
