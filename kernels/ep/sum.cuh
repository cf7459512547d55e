// Sums of rows. Their parts come through a ring of stages, many loads under way at a time; every thread adds up its own
// channels in registers; the sum takes the last part's stage and leaves from there in bulk.
#pragma once

#include "../ptx/bulk.cuh"
#include "../ptx/memory.cuh"
#include "number.cuh"
#include "stage.cuh"

namespace epw {

constexpr uint32_t kBatch = kThreads / 32; // rows looked up at a time, by a warp each
constexpr uint32_t kChunks = (kPieceBytes / 16 + kThreads - 1) / kThreads; // of 16 bytes, a thread's part of a piece

// A row to be made: where its parts lie, in the order in which they are added, what they weigh, and where the sum goes.
struct Sum {
    uint32_t count;
    unsigned char *to; // nullptr: no row
    const unsigned char *part[EPW_MAX_TOPK];
    float weight[EPW_MAX_TOPK];
};

// A ring and where it stands. Stages are used in turn, so that the phases of their barriers are known.
struct Ring {
    Stages stages;
    unsigned char *memory;
    uint64_t *loaded; // in shared memory, initialised: a barrier for each stage
    uint32_t used;    // stages consumed; of all threads, what follows is thread 0's
    uint32_t filled;  // loads begun
    uint32_t row, piece, part; // what is loaded next

    __device__ Ring(Stages stages, unsigned char *memory, uint64_t *loaded)
        : stages(stages), memory(memory), loaded(loaded), used(0), filled(0), row(0), piece(0), part(0) {}
};

__device__ __forceinline__ uint32_t piece_bytes(uint64_t row_bytes, uint32_t piece) {
    return uint32_t(min(uint64_t(kPieceBytes), row_bytes - uint64_t(piece) * kPieceBytes));
}

// By thread 0: begins loads as far as stages are free.
__device__ inline void fill(Ring &ring, const Sum *sums, uint32_t rows, uint64_t row_bytes) {
    uint32_t pieces = uint32_t((row_bytes + kPieceBytes - 1) / kPieceBytes);
    while (ring.row < rows && ring.filled < ring.used + ring.stages.count) {
        const Sum &sum = sums[ring.row];
        if (ring.part >= sum.count) {
            ring.part = 0;
            if (sum.count == 0 || ++ring.piece == pieces) {
                ring.piece = 0;
                ring.row++;
            }
            continue;
        }
        uint32_t at = ring.filled % ring.stages.count, bytes = piece_bytes(row_bytes, ring.piece);
        if (ring.filled >= ring.stages.count) {
            // The stage has been read by everybody, before a barrier, and by its store if it was a sum's.
            ptx::bulk_wait_read<0>();
            ptx::fence_shared_before_bulk();
        }
        ptx::barrier_expect(&ring.loaded[at], bytes);
        ptx::bulk_load(ring.memory + at * ring.stages.bytes, sum.part[ring.part] + uint64_t(ring.piece) * kPieceBytes, bytes,
                       &ring.loaded[at]);
        ring.filled++;
        ring.part++;
    }
}

// Makes `rows` sums, which all threads see and which are free when it returns. Never fused, from +0; Weighted: each part times
// its weight.
template <typename T, bool Weighted> __device__ void make_sums(Ring &ring, const Sum *sums, uint32_t rows, uint64_t row_bytes) {
    const Stages &stages = ring.stages;
    uint32_t pieces = uint32_t((row_bytes + kPieceBytes - 1) / kPieceBytes);
    if (threadIdx.x == 0) {
        ring.row = ring.piece = ring.part = 0;
        fill(ring, sums, rows, row_bytes);
    }
    for (uint32_t i = 0; i < rows; i++) {
        const Sum &sum = sums[i];
        for (uint32_t piece = 0; piece < pieces && sum.to != nullptr; piece++) {
            uint32_t bytes = piece_bytes(row_bytes, piece);
            unsigned char *to = sum.to + uint64_t(piece) * kPieceBytes, *stage = nullptr;
            float total[kChunks][8] = {};
            for (uint32_t p = 0; p < sum.count; p++) {
                uint32_t at = ring.used % stages.count;
                while (!ptx::barrier_try_wait(&ring.loaded[at], ring.used / stages.count & 1)) {}
                stage = ring.memory + at * stages.bytes;
                float weight = Weighted ? sum.weight[p] : 1.0f;
#pragma unroll
                for (uint32_t k = 0; k < kChunks; k++) {
                    uint32_t offset = (k * kThreads + threadIdx.x) * 16;
                    if (offset >= bytes) break;
                    uint4 raw = *reinterpret_cast<const uint4 *>(stage + offset);
                    const uint32_t *pairs = &raw.x;
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
                ring.used++;
                if (sum.count >= stages.count && p + 1 < sum.count) {
                    // More parts than stages: those that have been read are filled again.
                    __syncthreads();
                    if (threadIdx.x == 0) fill(ring, sums, rows, row_bytes);
                }
            }
#pragma unroll
            for (uint32_t k = 0; k < kChunks; k++) {
                uint32_t offset = (k * kThreads + threadIdx.x) * 16;
                if (offset >= bytes) break;
                const float *t = total[k];
                uint4 packed = {T::pack(t[0], t[1]), T::pack(t[2], t[3]), T::pack(t[4], t[5]), T::pack(t[6], t[7])};
                if (stage != nullptr) *reinterpret_cast<uint4 *>(stage + offset) = packed;
                else *reinterpret_cast<uint4 *>(to + offset) = packed;
            }
            if (stage == nullptr) continue;
            ptx::fence_shared_before_bulk();
            __syncthreads();
            if (threadIdx.x == 0) {
                ptx::bulk_store(to, stage, bytes);
                ptx::bulk_commit();
                fill(ring, sums, rows, row_bytes);
            }
        }
    }
    __syncthreads(); // the sums have been read
}

} // namespace epw
