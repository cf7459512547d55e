// Collectives: one kernel for each way to move bytes and each type that is reduced.
#include "kernels/coll/blocks.cuh"
#include "kernels/coll/bulk.cuh"
#include "kernels/coll/direct.cuh"
#include "kernels/coll/membership.cuh"
#include "kernels/coll/point.cuh"
#include "kernels/coll/small.cuh"
#include "kernels/launch.cuh"

namespace epw {

// T: the type that is reduced; void: bytes are only moved.
template <typename T>
__global__ void __launch_bounds__(kCollThreads, 1) small_collective_kernel(const __grid_constant__ epw_coll_args a) {
    __shared__ Collective c;
    ptx::wait_for_stream();
    prefetch_first_words(a);
    if (open(c, a)) run_small<T>(c);
    close(c);
}

template <typename T>
__global__ void __launch_bounds__(kCollThreads, 1) small_parts_kernel(const __grid_constant__ epw_coll_args a) {
    __shared__ Collective c;
    ptx::wait_for_stream();
    prefetch_first_words(a);
    if (open(c, a)) run_small_parts<T>(c);
    close(c);
}

template <typename T>
__global__ void __launch_bounds__(kCollThreads, 1) large_collective_kernel(const __grid_constant__ epw_coll_args a) {
    __shared__ Collective c;
    __shared__ Rings rings;
    ptx::wait_for_stream();
    if (open(c, a)) run_large<T>(c, rings);
    close(c);
}

template <typename T>
__global__ void __launch_bounds__(kBulkThreads, 1) bulk_collective_kernel(const __grid_constant__ epw_coll_args a) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Collective c;
    __shared__ Rings rings;
    __shared__ BulkTeams teams;
    ptx::wait_for_stream();
    if (open(c, a)) run_bulk<T>(c, rings, *reinterpret_cast<BulkMemory *>(memory), teams);
    close(c);
}

template <typename T>
__global__ void __launch_bounds__(kDirectThreads, 1) direct_collective_kernel(const __grid_constant__ epw_coll_args a) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Collective c;
    __shared__ Rings rings;
    __shared__ Lent lent;
    ptx::wait_for_stream();
    if (open(c, a)) run_direct<T>(c, rings, *reinterpret_cast<DirectMemory *>(memory), lent);
    close(c);
}

template <typename T>
__global__ void __launch_bounds__(kCollThreads, 1) blocks_collective_kernel(const __grid_constant__ epw_coll_blocks_args a) {
    __shared__ Collective c;
    __shared__ Rings rings;
    ptx::wait_for_stream();
    if (open(c, a.common)) run_blocks<T>(c, rings, a);
    close(c);
}

__global__ void __launch_bounds__(kCollThreads, 1) point_kernel(const __grid_constant__ epw_coll_point_args a) {
    __shared__ Collective c;
    ptx::wait_for_stream();
    if (open(c, a.common, EPW_PHASE_POINT)) run_points(c, a);
    close(c);
}

using Kernel = void (*)(epw_coll_args);
struct Kernels {
    Kernel small, parts, large, bulk, direct; // parts: nullptr where nothing is folded
    void (*blocks)(epw_coll_blocks_args);
};
template <typename T> constexpr Kernels of_type() {
    Kernel parts = nullptr;
    if constexpr (!std::is_void_v<T>) parts = small_parts_kernel<T>;
    return {small_collective_kernel<T>, parts, large_collective_kernel<T>, bulk_collective_kernel<T>, direct_collective_kernel<T>,
            blocks_collective_kernel<T>};
}

// By EPW_TYPE_*; the last entry is for bytes that are only moved.
static const Kernels kernels[kTypes + 1] = {
    of_type<int8_t>(),  of_type<uint8_t>(),  of_type<int32_t>(), of_type<uint32_t>(), of_type<int64_t>(), of_type<uint64_t>(),
    of_type<F16Bits>(), of_type<Bf16Bits>(), of_type<float>(),   of_type<double>(),   of_type<void>(),
};

} // namespace epw

extern "C" int epw_coll_gpu_prepare(void) {
    cudaError_t error = cudaSuccess;
    for (const epw::Kernels &k : epw::kernels) {
        if (error == cudaSuccess) error = epw::prepare(k.small, epw::kCollThreads, 0);
        if (error == cudaSuccess && k.parts != nullptr) error = epw::prepare(k.parts, epw::kCollThreads, 0);
        if (error == cudaSuccess) error = epw::prepare(k.large, epw::kCollThreads, 0);
        if (error == cudaSuccess) error = epw::prepare(k.bulk, epw::kBulkThreads, sizeof(epw::BulkMemory));
        if (error == cudaSuccess) error = epw::prepare(k.direct, epw::kDirectThreads, sizeof(epw::DirectMemory));
        if (error == cudaSuccess) error = epw::prepare(k.blocks, epw::kCollThreads, 0);
    }
    if (error == cudaSuccess) error = cudaError_t(epw_coll_gpu_prepare_norm());
    if (error == cudaSuccess) error = epw::prepare(epw::point_kernel, epw::kCollThreads, 0);
    if (error == cudaSuccess) error = epw::prepare(epw::coll_begin_epoch_kernel, EPW_GPU_PEERS, 0);
    if (error == cudaSuccess) error = epw::prepare(epw::coll_part_kernel, EPW_GPU_PEERS, 0);
    return error;
}

static const epw::Kernels &kernels_of(const epw_coll_args &args) { return epw::kernels[epw::kernel_of(args)]; }

extern "C" int epw_coll_gpu_run(const epw_coll_args *args, uint32_t blocks, void *stream) {
    const epw::Kernels &k = kernels_of(*args);
    const auto in = static_cast<cudaStream_t>(stream);
    if (args->pieces == 0)
        return epw::launch_in_stream(args->shared_out ? k.parts : k.small, blocks, epw::kCollThreads, 0, in, *args);
    if (args->lent) return epw::launch_in_stream(k.direct, blocks, epw::kDirectThreads, sizeof(epw::DirectMemory), in, *args);
    if (!args->bulk) return epw::launch_in_stream(k.large, blocks, epw::kCollThreads, 0, in, *args);
    return epw::launch_in_stream(k.bulk, blocks, epw::kBulkThreads, sizeof(epw::BulkMemory), in, *args);
}

extern "C" int epw_coll_gpu_run_blocks(const epw_coll_blocks_args *args, uint32_t blocks, void *stream) {
    const auto kernel = kernels_of(args->common).blocks;
    return epw::launch_in_stream(kernel, blocks, epw::kCollThreads, 0, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_coll_gpu_run_points(const epw_coll_point_args *args, uint32_t blocks, void *stream) {
    return epw::launch_in_stream(epw::point_kernel, blocks, epw::kCollThreads, 0, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_coll_gpu_begin_epoch(const epw_coll_membership_args *args, void *stream) {
    return epw::launch_in_stream(epw::coll_begin_epoch_kernel, 1, EPW_GPU_PEERS, 0, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_coll_gpu_part(const epw_coll_part_args *args, void *stream) {
    return epw::launch_in_stream(epw::coll_part_kernel, 1, EPW_GPU_PEERS, 0, static_cast<cudaStream_t>(stream), *args);
}
