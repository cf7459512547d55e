// A mover's tile: a row passes through it in pieces, loaded and stored by bulk copies, or quantised on the way.
#pragma once

#include "kernels/numerics/number.cuh"
#include "kernels/prefill/operation.cuh"
#include "kernels/ptx/bulk.cuh"

namespace epw {

// Bulk copies move whole units of 16 bytes.
__host__ __device__ __forceinline__ uint32_t whole_units(uint32_t bytes) { return (bytes + 15) & ~15u; }

// [head][piece][scales of the piece]. The head is that of a dispatched row, or of an answer.
constexpr uint32_t kRowPiece = 8192; // bytes of a payload; the scales of one fill whole 16-byte units
constexpr uint32_t kRowScales = kRowPiece / EPW_FP8_BLOCK * 4;

__host__ __device__ __forceinline__ uint32_t tile_bytes(const epw_prefill_layout &l, uint32_t kind) {
    const uint64_t head = kind == 0 ? l.header_bytes : l.answer_head;
    return uint32_t((head + 127) / 128 * 128) + kRowPiece + kRowScales;
}

struct Tile {
    unsigned char *head, *piece, *scales;
    uint64_t *loaded; // barrier: a piece is loaded
    uint32_t uses;

    __device__ __forceinline__ Tile(unsigned char *memory, uint32_t head_bytes, uint64_t *loaded)
        : head(memory), piece(memory + head_bytes), scales(piece + kRowPiece), loaded(loaded), uses(0) {}

    // The following are called by the whole warp.

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
    // Loads a piece, and waits for it.
    __device__ __forceinline__ void load(const unsigned char *from, uint32_t bytes) {
        if (threadIdx.x % 32 == 0) {
            ptx::barrier_expect(loaded, bytes);
            ptx::bulk_load(piece, from, bytes, loaded);
        }
        while (!ptx::barrier_try_wait(loaded, uses & 1)) {
        }
        uses++;
    }
    // Quantises a piece of `channels`, whole blocks, of type T.
    template <typename T>
    __device__ __forceinline__ void quantise(const unsigned char *from, uint32_t channels, uint32_t payload);
};

// Lanes hold eight channels of 16 bytes each, so 16 lanes share a block and its scale.
template <typename T>
__device__ __forceinline__ void Tile::quantise(const unsigned char *from, uint32_t channels, uint32_t payload) {
    constexpr uint32_t kHeld = 4, kOfBlock = EPW_FP8_BLOCK / 8;
    const uint32_t laneid = threadIdx.x % 32, chunks = channels / 8;
#pragma unroll 1
    for (uint32_t first = 0; first < chunks; first += 32 * kHeld) {
        uint4 x[kHeld];
#pragma unroll
        for (uint32_t k = 0; k < kHeld; k++) {
            const uint32_t chunk = first + 32 * k + laneid;
            x[k] = chunk < chunks ? ptx::load_relaxed_gpu_once(from + chunk * 16) : uint4{};
        }
#pragma unroll
        for (uint32_t k = 0; k < kHeld; k++) {
            const uint32_t chunk = first + 32 * k + laneid;
            uint32_t largest = T::larger(T::larger(x[k].x, x[k].y), T::larger(x[k].z, x[k].w));
#pragma unroll
            for (uint32_t step = kOfBlock / 2; step > 0; step /= 2) {
                largest = T::larger(largest, __shfl_xor_sync(0xffffffffu, largest, step));
            }
            if (chunk >= chunks) continue;
            const float amax = fmaxf(fmaxf(fabsf(T::low(largest)), fabsf(T::high(largest))), 1e-4f); // fmaxf drops a NaN too
            const Scale s = payload == EPW_PAYLOAD_FP8_F32 ? scale_f32(amax) : scale_power_of_two(amax);
            reinterpret_cast<uint2 *>(piece)[chunk] = quantise_eight<T>(x[k], s.inverse);
            if (chunk % kOfBlock != 0) continue;
            if (payload == EPW_PAYLOAD_FP8_UE8M0) {
                scales[chunk / kOfBlock] = __float_as_uint(s.scale) >> 23;
            } else {
                reinterpret_cast<float *>(scales)[chunk / kOfBlock] = s.scale;
            }
        }
    }
}

} // namespace epw
