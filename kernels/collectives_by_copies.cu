// Collectives by copies: see coll/copies.cuh.
#include "kernels/coll/copies.cuh"
#include "kernels/launch.cuh"

namespace epw {

__global__ void __launch_bounds__(kCollThreads, 1) begin_copies_kernel(const __grid_constant__ epw_coll_copies_args a) {
    __shared__ Collective c;
    __shared__ Lent lent;
    ptx::wait_for_stream();
    begin_copies(c, lent, a, open(c, a.common));
}

__global__ void __launch_bounds__(kDirectThreads, 1) end_copies_kernel(const __grid_constant__ epw_coll_copies_args a) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Collective c;
    __shared__ Rings rings;
    __shared__ Lent lent;
    if (open(c, a.common)) {
        if (are_copied(c, a)) {
            end_copies(c, a);
        } else {
            go_on_from_copies(c);
            run_direct<void>(c, rings, *reinterpret_cast<DirectMemory *>(memory), lent);
        }
    }
    close(c);
}

} // namespace epw

extern "C" int epw_coll_gpu_prepare_copies(void) {
    cudaError_t error = epw::prepare(epw::begin_copies_kernel, epw::kCollThreads, 0);
    return error != cudaSuccess ? error : epw::prepare(epw::end_copies_kernel, epw::kDirectThreads, sizeof(epw::DirectMemory));
}

extern "C" int epw_coll_gpu_begin_copies(const epw_coll_copies_args *args, void *stream) {
    return epw::launch_in_stream(epw::begin_copies_kernel, 1, epw::kCollThreads, 0, static_cast<cudaStream_t>(stream), *args);
}

// After copies, so nothing of the launch can be done before them.
extern "C" int epw_coll_gpu_end_copies(const epw_coll_copies_args *args, uint32_t blocks, void *stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = epw::kDirectThreads;
    config.dynamicSmemBytes = sizeof(epw::DirectMemory);
    config.stream = static_cast<cudaStream_t>(stream);
    return cudaLaunchKernelEx(&config, epw::end_copies_kernel, *args);
}
