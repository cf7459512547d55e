// Combine kernels and their launch.
#include "ep/combine.cuh"

#include "launch.cuh"

namespace epw {

template <typename T>
__global__ void __launch_bounds__(kCombineThreads, 1) combine_kernel(const __grid_constant__ epw_combine_args args) {
    combine_body<T>(args);
}

template <typename T> static cudaError_t launch(const epw_combine_args &a, uint32_t blocks, cudaStream_t stream) {
    size_t shared = a.layout.row_bytes * kCombineStages;
    cudaError_t error = cudaFuncSetAttribute(combine_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
    if (error != cudaSuccess) return error;
    return launch_in_stream(combine_kernel<T>, blocks, kCombineThreads, shared, stream, a);
}

} // namespace epw

extern "C" int epw_gpu_combine(const epw_combine_args *args, uint32_t blocks, void *stream) {
    auto *on = static_cast<cudaStream_t>(stream);
    return args->dtype == EPW_F16 ? epw::launch<epw::F16>(*args, blocks, on) : epw::launch<epw::Bf16>(*args, blocks, on);
}
