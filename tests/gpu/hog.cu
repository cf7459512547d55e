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

} // namespace

extern "C" int hog_prepare(void) {
    return cudaFuncSetAttribute(hog_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
}

extern "C" int hog_sms(uint32_t blocks, uint64_t ns, uint64_t apart_ns, void *stream) {
    hog_kernel<<<blocks, 32, kShared, static_cast<cudaStream_t>(stream)>>>(ns, apart_ns);
    return cudaGetLastError();
}
