// Dispatch kernels and their launch.
#include "ep/dispatch.cuh"

#include "launch.cuh"

namespace epw {

template <typename T, typename Index, uint32_t Payload>
__global__ void __launch_bounds__(kThreads, 1) dispatch_kernel(const __grid_constant__ epw_dispatch_args args) {
    dispatch_body<T, Index, Payload>(args);
}

template <typename T, typename Index, uint32_t Payload>
static cudaError_t launch(const epw_dispatch_args &a, uint32_t blocks, cudaStream_t stream) {
    auto *kernel = dispatch_kernel<T, Index, Payload>;
    uint32_t stage = (a.layout.header_bytes + ((a.payload_bytes + a.scale_count * a.scale_bytes + 15) & ~15u) + 127) & ~127u;
    uint32_t experts = a.layout.local_experts * a.layout.ranks;
    size_t shared = size_t(stage) * kReceiveStages + Route::bytes(experts, a.layout.ranks);
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
    if (error != cudaSuccess) return error;
    return launch_in_stream(kernel, blocks, kThreads, shared, stream, a);
}

template <typename T, typename Index>
static cudaError_t launch_payload(const epw_dispatch_args &a, uint32_t blocks, cudaStream_t stream) {
    switch (a.payload) {
    case EPW_PAYLOAD_SAME: return launch<T, Index, EPW_PAYLOAD_SAME>(a, blocks, stream);
    case EPW_PAYLOAD_FP8_F32: return launch<T, Index, EPW_PAYLOAD_FP8_F32>(a, blocks, stream);
    default: return cudaErrorInvalidValue;
    }
}

} // namespace epw

extern "C" int epw_gpu_dispatch(const epw_dispatch_args *args, uint32_t blocks, void *stream) {
    return epw::launch_payload<epw::Bf16, int32_t>(*args, blocks, static_cast<cudaStream_t>(stream));
}
