// Launching kernels: with programmatic serialization the next kernel of a stream is set up while this one still runs, and
// waits in ptx::wait_for_stream. Works in graphs too.
//
// The dispatch and the combine of a step follow each other through one instruction cache. Together they once took 208 KB of code;
// with 127 KB a pair is 0.7 us faster, and one of a single token 1.3 us (H200). So what is rare is not inlined, loops that are
// not hot are not unrolled, and there is a kernel for each way to deliver rows and to answer them.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ep/launch.h"

namespace epw {

// Loads a kernel, and sees that an SM holds a block of it.
template <typename Args> cudaError_t prepare(void (*kernel)(Args), uint32_t threads, size_t shared) {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
    if (error != cudaSuccess) return error;
    // The same for all kernels: an SM that divides its memory differently must be empty first.
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
    int blocks = 0;
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, int(threads), shared);
    return error == cudaSuccess && blocks == 0 ? cudaErrorLaunchOutOfResources : error;
}

// One file of kernels each.
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
