// See hog.h.
#include "hog.h"

#include "kernels/ptx/memory.cuh"

#include <cuda_runtime.h>

namespace {

// Of an SM's 228 KiB of shared memory: leaves no room for a block of any other kernel that uses some.
constexpr int kShared = 226 * 1024;

__global__ void hog_kernel(uint64_t ns, uint64_t apart_ns) {
    const uint64_t began = epw::ptx::global_timer_ns();
    do {
        __nanosleep(1000);
    } while (epw::ptx::global_timer_ns() - began < ns + blockIdx.x * apart_ns);
}

__global__ void __launch_bounds__(1024, 1)
    copy_kernel(uint4 *to, const uint4 *from, uint64_t count, uint32_t times) {
    constexpr uint32_t kAtOnce = 4;
    const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    for (uint32_t time = 0; time < times; time++) {
        for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += kAtOnce * step) {
            uint4 v[kAtOnce];
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++) v[k] = i + k * step < count ? from[i + k * step] : uint4{};
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++) {
                if (i + k * step < count) to[i + k * step] = v[k];
            }
        }
    }
}

} // namespace

extern "C" int hog_prepare(void) {
    const cudaError_t error =
        cudaFuncSetAttribute(hog_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    return error != cudaSuccess
               ? error
               : cudaFuncSetAttribute(copy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
}

extern "C" int hog_copy(uint32_t blocks, void *to, const void *from, uint64_t bytes, uint32_t times,
                        void *stream) {
    copy_kernel<<<blocks, 1024, kShared, static_cast<cudaStream_t>(stream)>>>(
        static_cast<uint4 *>(to), static_cast<const uint4 *>(from), bytes / 16, times);
    return cudaGetLastError();
}

extern "C" int hog_sms(uint32_t blocks, uint64_t ns, uint64_t apart_ns, void *stream) {
    hog_kernel<<<blocks, 32, kShared, static_cast<cudaStream_t>(stream)>>>(ns, apart_ns);
    return cudaGetLastError();
}
