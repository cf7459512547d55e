// Collectives by lines: see coll/lines.cuh.
#include "kernels/coll/lines.cuh"
#include "kernels/launch.cuh"

namespace epw {

// T: the type that is reduced; void: bytes are only moved.
template <typename T> __global__ void __launch_bounds__(kCollThreads, 1) lines_kernel(const __grid_constant__ epw_coll_args a) {
    __shared__ Collective c;
    __shared__ LinesMemory memory;
    ptx::wait_for_stream();
    if (open(c, a)) run_lines<T>(c, memory);
    close(c);
}

template <typename T>
__global__ void __launch_bounds__(kCollThreads, 1) lines_of_blocks_kernel(const __grid_constant__ epw_coll_blocks_args a) {
    __shared__ Collective c;
    ptx::wait_for_stream();
    if (open(c, a.common)) run_lines_of_blocks<T>(c, a);
    close(c);
}

struct LineKernels {
    void (*dense)(epw_coll_args);
    void (*blocks)(epw_coll_blocks_args);
};
template <typename T> constexpr LineKernels lines_of_type() { return {lines_kernel<T>, lines_of_blocks_kernel<T>}; }

// By EPW_TYPE_*; the last entry is for bytes that are only moved.
static const LineKernels line_kernels[kTypes + 1] = {
    lines_of_type<int8_t>(),  lines_of_type<uint8_t>(),  lines_of_type<int32_t>(), lines_of_type<uint32_t>(),
    lines_of_type<int64_t>(), lines_of_type<uint64_t>(), lines_of_type<F16Bits>(), lines_of_type<Bf16Bits>(),
    lines_of_type<float>(),   lines_of_type<double>(),   lines_of_type<void>(),
};

static const LineKernels &line_kernels_of(const epw_coll_args &args) { return line_kernels[kernel_of(args)]; }

} // namespace epw

extern "C" int epw_coll_gpu_prepare_lines(void) {
    cudaError_t error = cudaSuccess;
    for (const epw::LineKernels &k : epw::line_kernels) {
        if (error == cudaSuccess) error = epw::prepare(k.dense, epw::kCollThreads, 0);
        if (error == cudaSuccess) error = epw::prepare(k.blocks, epw::kCollThreads, 0);
    }
    return error;
}

extern "C" int epw_coll_gpu_run_lines(const epw_coll_args *args, uint32_t blocks, void *stream) {
    const auto kernel = epw::line_kernels_of(*args).dense;
    return epw::launch_in_stream(kernel, blocks, epw::kCollThreads, 0, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_coll_gpu_run_lines_of_blocks(const epw_coll_blocks_args *args, uint32_t blocks, void *stream) {
    const auto kernel = epw::line_kernels_of(args->common).blocks;
    return epw::launch_in_stream(kernel, blocks, epw::kCollThreads, 0, static_cast<cudaStream_t>(stream), *args);
}
