// The ranks that this rank has given up, written for the caller's kernels; see peer/suspects.h.
#include "kernels/launch.cuh"
#include "kernels/peer/suspects.cuh"
#include "kernels/peer/suspects.h"

namespace epw {

// A thread for each rank. What earlier kernels of the stream have found is there; those of other lanes may be running.
__global__ void __launch_bounds__(EPW_GPU_PEERS) suspects_kernel(const __grid_constant__ epw_suspects_args a) {
    ptx::wait_for_stream();
    if (threadIdx.x < a.ranks) a.out[threadIdx.x] = standing_of(a.peers, threadIdx.x);
}

} // namespace epw

extern "C" int epw_gpu_prepare_suspects(void) { return epw::prepare(epw::suspects_kernel, EPW_GPU_PEERS, 0); }

extern "C" int epw_gpu_run_suspects(const epw_suspects_args *args, void *stream) {
    return epw::launch_in_stream(epw::suspects_kernel, 1, EPW_GPU_PEERS, 0, static_cast<cudaStream_t>(stream), *args);
}
