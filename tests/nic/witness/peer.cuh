// The kernels of gpu.h, for a peer P: its queue pair is a P::Pair; P::post posts to it and returns how many
// entries were posted by then; P::poll waits until so many are done.
#pragma once

#include "gpu.h"

namespace {

// Both take keys as entries have them.
__host__ __device__ uint32_t big_endian(uint32_t value) {
    return value >> 24 | (value >> 8 & 0xff00) | (value << 8 & 0xff0000) | value << 24;
}

template <typename P> __global__ void post_kernel(typename P::Pair *pair, gpu_operation operation) {
    P::post(pair, operation);
}

template <typename P>
__global__ void poll_kernel(typename P::Pair *pair, uint64_t count, gpu_completion *out) {
    *out = P::poll(pair, count);
}

template <typename P>
__global__ void rounds_kernel(typename P::Pair *pair, gpu_operation operation, gpu_operation add,
                              uint32_t rounds, uint32_t *done) {
    for (*done = 0; *done < rounds; ++*done) {
        const uint64_t first = P::post(pair, operation), second = P::post(pair, add);
        if (P::poll(pair, first).status != 0 || P::poll(pair, second).status != 0) return;
    }
}

// Runs a kernel that stores one value, and fetches this.
template <typename T, typename Launch> int fetch(T *out, Launch launch) {
    T *there;
    cudaError_t error = cudaMalloc(&there, sizeof *there);
    if (error != cudaSuccess) return error;
    launch(there);
    error = cudaMemcpy(out, there, sizeof *there, cudaMemcpyDeviceToHost);
    cudaFree(there);
    return error;
}

template <typename P> int post(void *pair, gpu_operation operation) {
    post_kernel<P><<<1, 1>>>(static_cast<typename P::Pair *>(pair), operation);
    return cudaDeviceSynchronize();
}

template <typename P> int poll(void *pair, uint64_t count, gpu_completion *out) {
    return fetch(out, [&](gpu_completion *there) {
        poll_kernel<P><<<1, 1>>>(static_cast<typename P::Pair *>(pair), count, there);
    });
}

template <typename P>
int rounds(void *pair, gpu_operation operation, uint64_t counter, uint64_t old, uint32_t count,
           uint32_t *done) {
    gpu_operation add = operation;
    add.kind = GPU_FETCH_ADD, add.remote = counter, add.local = old, add.value = 1;
    return fetch(done, [&](uint32_t *there) {
        rounds_kernel<P><<<1, 1>>>(static_cast<typename P::Pair *>(pair), operation, add, count, there);
    });
}

} // namespace
