// All-reduce, residual addition and RMSNorm in one call.
#include "kernels/coll/norm.cuh"
#include "kernels/launch.cuh"

namespace epw {

template <typename T, typename Pair>
__global__ void __launch_bounds__(kCollThreads, 1) all_reduce_norm_kernel(const __grid_constant__ epw_coll_norm_args a) {
    __shared__ Collective c;
    ptx::wait_for_stream();
    prefetch_first_words(a.common);
    if (open(c, a.common)) run_norm<T, Pair>(c, a);
    close(c);
}

template <typename T, typename Pair, uint32_t kTeams>
__global__ void __launch_bounds__(kNormThreads, 1) norm_kernel(const __grid_constant__ epw_coll_norm_args a) {
    __shared__ NormSquares squares[kTeams];
    ptx::wait_for_stream();
    run_norm_alone<T, Pair, kTeams>(a, squares);
    ptx::let_next_begin();
}

using NormKernel = void (*)(epw_coll_norm_args);
struct NormKernels {
    NormKernel fused, alone[3]; // the latter with one team, two and four
};
template <typename T, typename Pair> constexpr NormKernels norms_of() {
    return {all_reduce_norm_kernel<T, Pair>, {norm_kernel<T, Pair, 1>, norm_kernel<T, Pair, 2>, norm_kernel<T, Pair, 4>}};
}
// By type.
static const NormKernels norm_kernels[2] = {norms_of<Bf16Bits, Bf16>(), norms_of<F16Bits, F16>()};

static const NormKernels &norm_kernels_of(const epw_coll_norm_args &args) {
    return norm_kernels[args.common.type == EPW_TYPE_BF16 ? 0 : 1];
}
// The binary logarithm of the number of teams of which each has a whole row.
static uint32_t teams_for(uint32_t hidden) {
    constexpr uint32_t kOfBlock = 8 * kNormPairs * kNormThreads; // elements that a block's threads have
    return hidden <= kOfBlock / 4 ? 2 : hidden <= kOfBlock / 2 ? 1 : 0;
}

} // namespace epw

extern "C" int epw_coll_gpu_prepare_norm(void) {
    cudaError_t error = cudaSuccess;
    for (const epw::NormKernels &k : epw::norm_kernels) {
        if (error == cudaSuccess) error = epw::prepare(k.fused, epw::kCollThreads, 0);
        for (const epw::NormKernel alone : k.alone) {
            if (error == cudaSuccess) error = epw::prepare(alone, epw::kNormThreads, 0);
        }
    }
    return error;
}

extern "C" int epw_coll_gpu_run_norm(const epw_coll_norm_args *args, uint32_t blocks, void *stream) {
    return epw::launch_in_stream(epw::norm_kernels_of(*args).fused, blocks, epw::kCollThreads, 0,
                                 static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_coll_gpu_run_norm_alone(const epw_coll_norm_args *args, uint32_t blocks, void *stream) {
    // No more teams than there are rows for.
    const uint32_t teams = epw::teams_for(args->hidden);
    const uint64_t each = (args->rows + blocks - 1) / blocks, begun = each < 1u << teams ? each : 1u << teams;
    return epw::launch_in_stream(epw::norm_kernels_of(*args).alone[teams], blocks, uint32_t(begun) * (epw::kNormThreads >> teams),
                                 0, static_cast<cudaStream_t>(stream), *args);
}
