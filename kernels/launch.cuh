// Launching with programmatic serialization: the next kernel of a stream is set up while this one still runs, and waits in
// ptx::wait_for_stream. Works in graphs too.
#pragma once

#include <cuda_runtime.h>

namespace epw {

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
