// How rows pass through shared memory: in pieces that fit a stage, [header][payload][scales].
#pragma once

#include "launch.h"

namespace epw {

constexpr uint32_t kThreads = 448;
constexpr uint32_t kStages = 4;
constexpr uint32_t kPieceBytes = 16384; // of payload
constexpr uint32_t kScaleRoom = 1024;

struct Stages {
    uint32_t header, bytes; // of one stage

    __host__ __device__ explicit Stages(const epw_layout &l)
        : header(uint32_t(l.header_bytes)), bytes(header + kPieceBytes + kScaleRoom) {}
};

__host__ __device__ __forceinline__ uint32_t align_16(uint32_t n) { return (n + 15) & ~15u; }

} // namespace epw
