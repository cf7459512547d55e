// All-reduce, residual addition and RMSNorm in one call.
#include "kernels/coll/norm.cuh"
#include "kernels/launch.cuh"

namespace epw {

template <typename T, typename Pair, uint32_t kWords>
__global__ void __launch_bounds__(kCollThreads, 1) all_reduce_norm_kernel(const __grid_constant__ epw_coll_norm_args a) {
    __shared__ Collective c;
    __shared__ float of_warps[2][kNormWarps];
    ptx::wait_for_stream();
    if (open(c, a.common)) run_norm<T, Pair, kWords>(c, a, of_warps);
    close(c);
}

template <typename T, typename Pair, uint32_t kWords>
__global__ void __launch_bounds__(kCollThreads, 1) norm_kernel(const __grid_constant__ epw_coll_norm_args a) {
    __shared__ float of_warps[2][kNormWarps];
    ptx::wait_for_stream();
    run_norm_alone<T, Pair, kWords>(a, of_warps);
    ptx::let_next_begin();
}

struct NormKernels {
    void (*fused)(epw_coll_norm_args), (*alone)(epw_coll_norm_args);
};
template <typename T, typename Pair, uint32_t kWords> constexpr NormKernels norms_of() {
    return {all_reduce_norm_kernel<T, Pair, kWords>, norm_kernel<T, Pair, kWords>};
}
// By type, then by the length of rows.
static const NormKernels norm_kernels[2][2] = {
    {norms_of<Bf16Bits, Bf16, kFewNormWords>(), norms_of<Bf16Bits, Bf16, kNormWords>()},
    {norms_of<F16Bits, F16, kFewNormWords>(), norms_of<F16Bits, F16, kNormWords>()},
};

} // namespace epw

extern "C" int epw_coll_gpu_prepare_norm(void) {
    cudaError_t error = cudaSuccess;
    for (const auto &of_type : epw::norm_kernels) {
        for (const epw::NormKernels &k : of_type) {
            if (error == cudaSuccess) error = epw::prepare(k.fused, epw::kCollThreads, 0);
            if (error == cudaSuccess) error = epw::prepare(k.alone, epw::kCollThreads, 0);
        }
    }
    return error;
}

static const epw::NormKernels &norm_kernels_of(const epw_coll_norm_args &args) {
    const bool few = args.hidden <= 4 * epw::kCollThreads * epw::kFewNormWords;
    return epw::norm_kernels[args.common.type == EPW_TYPE_BF16 ? 0 : 1][few ? 0 : 1];
}

extern "C" int epw_coll_gpu_run_norm(const epw_coll_norm_args *args, uint32_t blocks, void *stream) {
    const auto in = static_cast<cudaStream_t>(stream);
    return epw::launch_in_stream(norm_kernels_of(*args).fused, blocks, epw::kCollThreads, 0, in, *args);
}

extern "C" int epw_coll_gpu_run_norm_alone(const epw_coll_norm_args *args, uint32_t blocks, void *stream) {
    const auto in = static_cast<cudaStream_t>(stream);
    return epw::launch_in_stream(norm_kernels_of(*args).alone, blocks, epw::kCollThreads, 0, in, *args);
}
