// Collectives, sends and receives of communicators whose ranks may reach each other by queues: one kernel for each type that is
// reduced, on dense memory and on blocks.
#include "kernels/coll/queues.cuh"
#include "kernels/launch.cuh"

namespace epw {

// T: the type that is reduced; void: bytes are only moved.
template <typename T>
__global__ void __launch_bounds__(kCollThreads, 1) queued_kernel(const __grid_constant__ epw_coll_queue_args a) {
    __shared__ QueuedCollective c;
    __shared__ Rings rings;
    ptx::wait_for_stream();
    if (open_queued(c, a.reach, a.common)) run_queued<T>(c, rings, DenseFlows<T>{});
    close(c);
}

template <typename T>
__global__ void __launch_bounds__(kCollThreads, 1) queued_blocks_kernel(const __grid_constant__ epw_coll_queue_blocks_args a) {
    __shared__ QueuedCollective c;
    __shared__ Rings rings;
    ptx::wait_for_stream();
    if (open_queued(c, a.reach, a.blocks.common)) run_queued<T>(c, rings, BlockFlows<T>{a.blocks});
    close(c);
}

__global__ void __launch_bounds__(kCollThreads, 1) queued_point_kernel(const __grid_constant__ epw_coll_queue_point_args a) {
    __shared__ QueuedCollective c;
    ptx::wait_for_stream();
    if (open_queued(c, a.reach, a.points.common, EPW_PHASE_POINT)) run_points(c, a.points);
    close(c);
}

struct QueuedKernels {
    void (*dense)(epw_coll_queue_args);
    void (*blocks)(epw_coll_queue_blocks_args);
};
template <typename T> constexpr QueuedKernels queued_of_type() { return {queued_kernel<T>, queued_blocks_kernel<T>}; }

// By EPW_TYPE_*; the last entry is for bytes that are only moved.
static const QueuedKernels queued_kernels[kTypes + 1] = {
    queued_of_type<int8_t>(),  queued_of_type<uint8_t>(),  queued_of_type<int32_t>(), queued_of_type<uint32_t>(),
    queued_of_type<int64_t>(), queued_of_type<uint64_t>(), queued_of_type<F16Bits>(), queued_of_type<Bf16Bits>(),
    queued_of_type<float>(),   queued_of_type<double>(),   queued_of_type<void>(),
};

static const QueuedKernels &queued_kernels_of(const epw_coll_args &args) { return queued_kernels[kernel_of(args)]; }

} // namespace epw

extern "C" int epw_coll_gpu_prepare_queues(void) {
    cudaError_t error = epw::prepare(epw::queued_point_kernel, epw::kCollThreads, 0);
    for (const epw::QueuedKernels &k : epw::queued_kernels) {
        if (error == cudaSuccess) error = epw::prepare(k.dense, epw::kCollThreads, 0);
        if (error == cudaSuccess) error = epw::prepare(k.blocks, epw::kCollThreads, 0);
    }
    return error;
}

extern "C" int epw_coll_gpu_run_queue(const epw_coll_queue_args *args, uint32_t blocks, void *stream) {
    const auto kernel = epw::queued_kernels_of(args->common).dense;
    return epw::launch_in_stream(kernel, blocks, epw::kCollThreads, 0, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_coll_gpu_run_queue_blocks(const epw_coll_queue_blocks_args *args, uint32_t blocks, void *stream) {
    const auto kernel = epw::queued_kernels_of(args->blocks.common).blocks;
    return epw::launch_in_stream(kernel, blocks, epw::kCollThreads, 0, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_coll_gpu_run_queue_points(const epw_coll_queue_point_args *args, uint32_t blocks, void *stream) {
    return epw::launch_in_stream(epw::queued_point_kernel, blocks, epw::kCollThreads, 0, static_cast<cudaStream_t>(stream),
                                 *args);
}
