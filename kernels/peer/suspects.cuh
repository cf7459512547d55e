// What this rank's kernels and its host know of a rank of the group.
#pragma once

#include "kernels/peer/context.h"
#include "kernels/peer/rank_set.cuh"

namespace epw {

// 0: it takes part. 1: it was given up, by a kernel or by the host, which revokes at any time. -1: it is no member. Each bit
// stands for itself and announces nothing.
__device__ inline int32_t standing_of(const epw_gpu_peers *peers, uint32_t rank) {
    const epw_gpu_shared *shared = peers->shared;
    const bool revoked = ptx::load_relaxed_sys(&shared->revoked->words[rank / 32]) & bit_of(rank);
    const bool member = has(peers->active, rank);
    return member ? revoked || has_now(shared->suspects, rank) : -1;
}

} // namespace epw
