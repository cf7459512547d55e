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

template <typename T, typename Pair, uint32_t kEach>
__global__ void __launch_bounds__(kSmallThreads, 1) norm_kernel(const __grid_constant__ epw_coll_norm_args a) {
    __shared__ float of_pieces[2][kNormPieces];
    ptx::wait_for_stream();
    run_norm_alone<T, Pair, kEach>(a, of_pieces);
    ptx::let_next_begin();
}

using NormKernel = void (*)(epw_coll_norm_args);
struct NormKernels {
    NormKernel fused, alone[2]; // the latter by the length of rows
};
template <typename T, typename Pair> constexpr NormKernels norms_of() {
    return {all_reduce_norm_kernel<T, Pair>, {norm_kernel<T, Pair, kFewOfRow>, norm_kernel<T, Pair, kMostOfRow>}};
}
// By type.
static const NormKernels norm_kernels[2] = {norms_of<Bf16Bits, Bf16>(), norms_of<F16Bits, F16>()};

static const NormKernels &norm_kernels_of(const epw_coll_norm_args &args) {
    return norm_kernels[args.common.type == EPW_TYPE_BF16 ? 0 : 1];
}
static uint32_t length_of(const epw_coll_norm_args &args) {
    return args.hidden <= 2 * EPW_FP8_BLOCK * kNormWarps * kFewOfRow ? 0 : 1;
}

} // namespace epw

extern "C" int epw_coll_gpu_prepare_norm(void) {
    cudaError_t error = cudaSuccess;
    for (const epw::NormKernels &k : epw::norm_kernels) {
        if (error == cudaSuccess) error = epw::prepare(k.fused, epw::kCollThreads, 0);
        for (const epw::NormKernel alone : k.alone) {
            if (error == cudaSuccess) error = epw::prepare(alone, epw::kSmallThreads, 0);
        }
    }
    return error;
}

extern "C" int epw_coll_gpu_run_norm(const epw_coll_norm_args *args, uint32_t blocks, void *stream) {
    return epw::launch_in_stream(epw::norm_kernels_of(*args).fused, blocks, epw::kCollThreads, 0,
                                 static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_coll_gpu_run_norm_alone(const epw_coll_norm_args *args, uint32_t blocks, void *stream) {
    const epw::NormKernels &k = epw::norm_kernels_of(*args);
    return epw::launch_in_stream(k.alone[epw::length_of(*args)], blocks, epw::kSmallThreads, 0, static_cast<cudaStream_t>(stream),
                                 *args);
}
