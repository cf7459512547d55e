// An all-reduce by packets and, in the same kernel, what follows it: the residual is added and each row normalised and, by
// choice, quantised, by the rules of c/numerics/norm.h. A row is one block's, of which thread t has the words t, t + 512 and so
// on.
#pragma once

#include "kernels/coll/small.cuh"
#include "kernels/numerics/number.cuh"

namespace epw {

constexpr uint32_t kNormWords = EPW_NORM_HIDDEN_MAX / 4 / kCollThreads; // of a row that a thread has, at most
constexpr uint32_t kNormWarps = kCollThreads / 32;
constexpr uint32_t kWordsOfScale = EPW_FP8_BLOCK / 4;
static_assert(kCollThreads == 512 && kWordsOfScale == 32, "the order of partial sums; a scale is a warp's");

// Of all threads, in the order of the rules; each has the result. By the whole block.
__device__ __forceinline__ float sum_of_parts(float part, float (&of_warps)[kNormWarps]) {
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, step));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = part;
    __syncthreads();
    float sum = of_warps[threadIdx.x % kNormWarps];
#pragma unroll
    for (uint32_t step = 1; step < kNormWarps; step *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
    __syncthreads(); // they may be written again
    return sum;
}

template <typename T> __device__ __forceinline__ uint64_t pack_word(const float (&x)[4]) {
    uint64_t word = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) word |= uint64_t(narrow<T>(x[i]).bits) << 16 * i;
    return word;
}
template <typename T> __device__ __forceinline__ void widen_word(uint64_t word, float (&x)[4]) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) x[i] = widen(Word<T>::element(word, i));
}

// A word to four bytes, its warp's 128 channels by one scale. By whole warps.
template <typename Pair>
__device__ __forceinline__ void write_quantised(const epw_coll_norm_args &a, uint64_t row, uint32_t word, uint64_t y) {
    const uint32_t low = uint32_t(y), high = uint32_t(y >> 32);
    uint32_t largest = Pair::larger(low, high);
#pragma unroll
    for (uint32_t step = 16; step > 0; step /= 2) {
        largest = Pair::larger(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    const float amax = fmaxf(fmaxf(fabsf(Pair::low(largest)), fabsf(Pair::high(largest))), 1e-4f); // lets no NaN through
    const Scale s = a.payload == EPW_PAYLOAD_FP8_F32 ? scale_f32(amax) : scale_power_of_two(amax);
    reinterpret_cast<uint32_t *>(a.out + row * a.hidden)[word] = quantise_four<Pair>(low, high, s.inverse);
    if (threadIdx.x % 32 != 0) return;
    const uint64_t scale = row * (a.hidden / EPW_FP8_BLOCK) + word / kWordsOfScale;
    if (a.payload == EPW_PAYLOAD_FP8_UE8M0) {
        a.scales[scale] = static_cast<unsigned char>(__float_as_uint(s.scale) >> 23);
    } else {
        reinterpret_cast<float *>(a.scales)[scale] = s.scale;
    }
}

// A row whose sum lies in recv, each word written by the thread that reads it, or by an earlier kernel. By the whole block.
template <typename T, typename Pair>
__device__ __forceinline__ void norm_row(const epw_coll_norm_args &a, uint64_t row, float (&of_warps)[kNormWarps]) {
    const uint32_t words = a.hidden / 4;
    const auto *sums = reinterpret_cast<const uint64_t *>(a.common.recv) + row * words;
    auto *residuals = reinterpret_cast<uint64_t *>(a.residual) + row * words;
    const auto *weights = reinterpret_cast<const uint64_t *>(a.weight);
    uint64_t x[kNormWords] = {}, weight[kNormWords] = {};
    float part = 0;
#pragma unroll
    for (uint32_t k = 0; k < kNormWords; k++) {
        const uint32_t word = threadIdx.x + k * kCollThreads;
        if (word < words) weight[k] = weights[word];
    }
#pragma unroll
    for (uint32_t k = 0; k < kNormWords; k++) {
        const uint32_t word = threadIdx.x + k * kCollThreads;
        if (word >= words) continue;
        float sum[4];
        x[k] = sums[word];
        widen_word<T>(x[k], sum);
        if (a.residual != nullptr) {
            float residual[4];
            widen_word<T>(residuals[word], residual);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) sum[i] = __fadd_rn(sum[i], residual[i]);
            x[k] = pack_word<T>(sum);
            residuals[word] = x[k];
            widen_word<T>(x[k], sum);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) part = __fadd_rn(part, __fmul_rn(sum[i], sum[i]));
    }
    const float mean = __fdiv_rn(sum_of_parts(part, of_warps), float(a.hidden));
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, a.epsilon)));
#pragma unroll
    for (uint32_t k = 0; k < kNormWords; k++) {
        const uint32_t word = threadIdx.x + k * kCollThreads;
        if (word >= words) continue; // of FP8 whole warps
        float y[4], w[4];
        widen_word<T>(x[k], y);
        widen_word<T>(weight[k], w);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) y[i] = __fmul_rn(__fmul_rn(y[i], r), w[i]);
        const uint64_t packed = pack_word<T>(y);
        if (a.payload == EPW_PAYLOAD_SAME) {
            reinterpret_cast<uint64_t *>(a.out)[row * words + word] = packed;
        } else {
            write_quantised<Pair>(a, row, word, packed);
        }
    }
}

template <typename T, typename Pair>
__device__ __forceinline__ void run_norm(Collective &c, const epw_coll_norm_args &a, float (&of_warps)[kNormWarps]) {
    const uint64_t words = a.hidden / 4;
    constexpr uint32_t step = kCollThreads;
    tell_call(c);
#pragma unroll 1
    for (uint64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const uint64_t end = (row + 1) * words;
        uint64_t i = row * words + threadIdx.x;
        for (; i + (kAtOnce - 1) * step < end; i += kAtOnce * step) send_words<kAtOnce>(c, i, step);
        for (; i < end; i += step) send_words<1>(c, i, step);
    }
    const Folding f = folded_here(c);
#pragma unroll 1
    for (uint64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const uint64_t end = (row + 1) * words;
        uint64_t i = row * words + threadIdx.x;
        for (; i + (kAtOnce - 1) * step < end; i += kAtOnce * step) fold_words<T, kAtOnce>(c, f, i, step);
        for (; i + step < end; i += 2 * step) fold_words<T, 2>(c, f, i, step);
        for (; i < end; i += step) fold_words<T, 1>(c, f, i, step);
        __syncthreads();
        if (c.stopped || any(c.active - c.reachable)) break; // there is no result
        norm_row<T, Pair>(a, row, of_warps);
    }
    await_calls(c);
}

// Behind a sum by rings.
template <typename T, typename Pair>
__device__ __forceinline__ void run_norm_alone(const epw_coll_norm_args &a, float (&of_warps)[kNormWarps]) {
    const epw_coll_args &common = a.common;
    if (ptx::load_relaxed_gpu(&common.state->halted) || any(load_now(common.shared->suspects) & common.peers->active)) return;
#pragma unroll 1
    for (uint64_t row = blockIdx.x; row < a.rows; row += gridDim.x) norm_row<T, Pair>(a, row, of_warps);
}

} // namespace epw
