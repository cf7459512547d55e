// Counts where tokens would go: the tokens for each rank and each expert, and which token goes to which rank. It waits for no
// peer, and touches nothing of a buffer.
//
// Blocks count in shared memory, and then add to the caller's numbers, which are zero before the kernel begins.
#include "kernels/launch.cuh"
#include "kernels/prefill/count.h"
#include "kernels/prefill/ids.cuh"

namespace epw {

constexpr uint32_t kCountWarps = 16, kCountBlocksMost = 16;
constexpr uint32_t kCountTokens = 256; // of a block, before there is another one
constexpr uint32_t kCountMemoryMost = (EPW_GPU_MAX_EXPERTS + EPW_GPU_MAX_RANKS + 1) * sizeof(uint32_t);
static_assert(kCountMemoryMost <= 48 * 1024, "what a kernel may have without asking");

struct Counter {
    const epw_prefill_count_args &a;
    uint32_t *experts, *ranks, *bad_ids; // in shared memory

    __device__ __forceinline__ Counter(const epw_prefill_count_args &a, uint32_t *memory)
        : a(a), experts(memory), ranks(experts + a.experts), bad_ids(ranks + a.ranks) {}

    __device__ __forceinline__ uint32_t size() const { return a.experts + a.ranks + 1; }

    // The id of this lane among those of the tokens from `at` on.
    __device__ __forceinline__ uint64_t id(uint32_t at, uint32_t shift) const {
        const uint32_t t = at + (threadIdx.x % 32 >> shift), j = threadIdx.x % 32 & ((1u << shift) - 1);
        return t < a.in.tokens && j < a.in.topk ? load_id(a.in, t, j) : kNoId;
    }

    // Called by a whole warp.
    __device__ __forceinline__ void count(uint32_t at, uint32_t shift, uint64_t loaded) const {
        const uint32_t laneid = threadIdx.x % 32, step = tokens_at_once(shift);
        const NamedExpert named(raw_id(a.in, loaded), a.experts, a.experts / a.ranks, shift);
        const uint32_t rank = named.rank;
        const bool leads = rank != kNone && named.before == 0;
        if (named.bad) atomicAdd(bad_ids, 1u);
        if (named.id != kNone) atomicAdd(&experts[named.id], 1u);
        if (leads) atomicAdd(&ranks[rank], 1u);
        if (a.in_rank == nullptr) return;
        const uint32_t end = min(at + step, a.in.tokens);
        for (size_t i = size_t(at) * a.ranks + laneid; i < size_t(end) * a.ranks; i += 32) a.in_rank[i] = 0;
        __syncwarp(); // the zeros of a token are there before its ones, which other lanes write
        if (leads) a.in_rank[size_t(at + (laneid >> shift)) * a.ranks + rank] = 1;
    }

    // The share of a warp: each `warps`th step from its own on.
    __device__ __forceinline__ void count_all(uint32_t warp, uint32_t warps) const {
        const uint32_t shift = shift_of(a.in.topk), step = tokens_at_once(shift), tokens = a.in.tokens;
        constexpr uint32_t kAtOnce = 4; // loads in flight
#pragma unroll 1
        for (uint32_t first = warp * step; first < tokens; first += kAtOnce * warps * step) {
            uint64_t loaded[kAtOnce];
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++) loaded[k] = id(first + k * warps * step, shift);
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++) {
                const uint32_t at = first + k * warps * step;
                if (at < tokens) count(at, shift, loaded[k]);
            }
        }
    }

    // Of this block, to what is counted of all.
    __device__ __forceinline__ void add() const {
        for (uint32_t i = threadIdx.x; i < size(); i += blockDim.x) {
            const uint32_t n = experts[i];
            uint32_t *to = a.bad_ids;
            if (i < a.experts) {
                to = a.expert_tokens ? a.expert_tokens + i : nullptr;
            } else if (i < a.experts + a.ranks) {
                to = a.rank_tokens ? a.rank_tokens + (i - a.experts) : nullptr;
            }
            if (n > 0 && to != nullptr) atomicAdd(to, n);
        }
    }
};

__global__ void __launch_bounds__(kCountWarps * 32) prefill_count_kernel(const __grid_constant__ epw_prefill_count_args a) {
    extern __shared__ __align__(16) unsigned char memory[];
    const Counter counter(a, reinterpret_cast<uint32_t *>(memory));
    for (uint32_t i = threadIdx.x; i < counter.size(); i += blockDim.x) counter.experts[i] = 0;
    __syncthreads();
    ptx::wait_for_stream();
    counter.count_all(blockIdx.x * kCountWarps + threadIdx.x / 32, gridDim.x * kCountWarps);
    __syncthreads();
    counter.add();
}

static cudaError_t zero(uint32_t *numbers, uint32_t count, cudaStream_t stream) {
    return numbers ? cudaMemsetAsync(numbers, 0, count * sizeof(uint32_t), stream) : cudaSuccess;
}

} // namespace epw

extern "C" int epw_prefill_gpu_prepare_count(void) {
    return epw::prepare(epw::prefill_count_kernel, epw::kCountWarps * 32, epw::kCountMemoryMost);
}

extern "C" int epw_prefill_gpu_run_count(const epw_prefill_count_args *args, void *stream) {
    using namespace epw;
    const auto on = static_cast<cudaStream_t>(stream);
    const uint32_t wanted = (args->in.tokens + kCountTokens - 1) / kCountTokens;
    const uint32_t blocks = wanted < kCountBlocksMost ? wanted : kCountBlocksMost;
    cudaError_t error = zero(args->rank_tokens, args->ranks, on);
    if (error == cudaSuccess) error = zero(args->expert_tokens, args->experts, on);
    if (error == cudaSuccess) error = zero(args->bad_ids, 1, on);
    if (error != cudaSuccess || blocks == 0) return error;
    const size_t memory = (args->experts + args->ranks + 1) * sizeof(uint32_t);
    return launch_in_stream(prefill_count_kernel, blocks, kCountWarps * 32, memory, on, *args);
}
