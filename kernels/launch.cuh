// Launching kernels. With programmatic serialization the next kernel of a stream is launched while this one still runs, and waits
// in ptx::wait_for_stream. This works in graphs too.
//
// The dispatch and the combine of a step share one instruction cache. Together they once were 208 KB of code; at 127 KB a pair is
// 0.7 us faster, and a pair for a single token 1.3 us (H200). Hence rare code is not inlined, loops off the hot path are not
// unrolled, and there is one kernel for each way to deliver rows and to answer them.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ep/launch.h"

namespace epw {

// Loads a kernel, and checks that an SM can hold a block of it.
template <typename Args> cudaError_t prepare(void (*kernel)(Args), uint32_t threads, size_t shared) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
    if (error != cudaSuccess) return error;
    // The carve-out is the same for all kernels: an SM changes it only when it is empty.
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
    int blocks = 0;
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, int(threads), shared);
    return error == cudaSuccess && blocks == 0 ? cudaErrorLaunchOutOfResources : error;
}

// One for each file of kernels.
cudaError_t prepare_dispatch();
cudaError_t prepare_combine();
cudaError_t prepare_membership();

template <typename Args>
cudaError_t launch_in_stream(void (*kernel)(Args), uint32_t blocks, uint32_t threads, size_t shared, cudaStream_t stream,
                             const Args &args) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, args);
}

} // namespace epw
