// How rows pass through shared memory: in pieces, each in a tile that the bulk copy engine fills or empties.
#pragma once

#include "kernels/ep/launch.h"

namespace epw {

constexpr uint32_t kThreads = 448; // a row of 7168 channels is two 16-byte loads per thread
constexpr uint32_t kWarps = kThreads / 32;
constexpr uint32_t kCombineThreads = kThreads + 32; // plus a warp that waits for peers
constexpr uint32_t kPieceBytes = 16384;
constexpr uint32_t kScaleRoom = 1024;
constexpr uint32_t kMaxTiles = 12;

// The most shared memory that a block takes of an SM: half of 228 KiB, less what the kernels declare statically and 1 KiB that
// the system reserves. More gains nothing, and at this size small kernels of others find room beside it.
constexpr uint32_t kBlockMemory = EPW_GPU_SHARE - 8 * 1024;

__host__ __device__ __forceinline__ uint32_t align_16(uint32_t n) { return (n + 15) & ~15u; }
inline uint32_t align_128(uint32_t n) { return (n + 127) & ~127u; }

struct Tiles {
    uint32_t bytes, count; // bytes of one tile; number of tiles

    Tiles(uint32_t tile, uint32_t memory) : bytes(align_128(tile)) {
        uint32_t fit = memory / bytes;
        count = fit < kMaxTiles ? fit : kMaxTiles;
    }
};

// A counter for each expert of all ranks, plus one; it lies after the tiles.
inline uint32_t table_bytes(const epw_layout &l) {
    return align_128((l.local_experts * l.ranks + 1) * uint32_t(sizeof(uint32_t)));
}

// Dispatch: [header][payload][scales].
struct RowTiles : Tiles {
    uint32_t header;

    RowTiles(const epw_layout &l, uint32_t payload_bytes, uint32_t scale_bytes)
        : Tiles(uint32_t(l.header_bytes) + align_16(payload_bytes < kPieceBytes ? payload_bytes : kPieceBytes) +
                    (scale_bytes < kScaleRoom ? scale_bytes : kScaleRoom) + 16,
                kBlockMemory - table_bytes(l)),
          header(uint32_t(l.header_bytes)) {}
};

// Combine: a piece of a 16-bit row. Besides its tiles a block declares 12 KiB.
constexpr uint32_t kAnswerMemory = kBlockMemory - 5 * 1024;

struct AnswerTiles : Tiles {
    explicit AnswerTiles(const epw_layout &l)
        : Tiles(l.row_bytes < kPieceBytes ? uint32_t(l.row_bytes) : kPieceBytes, kAnswerMemory - table_bytes(l)) {}
};

} // namespace epw
