// An all-reduce by packets and, in the same kernel, what follows it: the residual is added, and each row is normalised and
// optionally quantised, by the rules of c/numerics/norm.h. One block handles a row; its thread t has the words t, t + 512 and so
// on.
#pragma once

#include "kernels/coll/small.cuh"
#include "kernels/numerics/number.cuh"

namespace epw {

constexpr uint32_t kNormWarps = kCollThreads / 32;
constexpr uint32_t kWordsOfScale = EPW_FP8_BLOCK / 4;
static_assert(kCollThreads == 512 && kWordsOfScale == 32, "the order of partial sums; a scale is a warp's");

// Sums the parts of all threads, in the order of the rules; every thread gets the result. Called by the whole block, for two rows
// one after the other with different memory.
__device__ __forceinline__ float sum_of_parts(float part, float (&of_warps)[kNormWarps]) {
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, step));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = part;
    __syncthreads();
    float sum = of_warps[threadIdx.x % kNormWarps];
#pragma unroll
    for (uint32_t step = 1; step < kNormWarps; step *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
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

// Quantises a word to four bytes; the 128 channels of a warp share a scale. Called by whole warps.
template <typename Pair>
__device__ __forceinline__ void write_quantised(const epw_coll_norm_args &a, uint64_t row, uint32_t word, uint64_t y) {
    const uint32_t low = uint32_t(y), high = uint32_t(y >> 32);
    uint32_t largest = Pair::larger(low, high);
#pragma unroll
    for (uint32_t step = 16; step > 0; step /= 2) {
        largest = Pair::larger(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    const float amax = fmaxf(fmaxf(fabsf(Pair::low(largest)), fabsf(Pair::high(largest))), 1e-4f); // fmaxf drops a NaN
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

// kWords: the most words of a row that a thread has.
constexpr uint32_t kFewNormWords = 4, kNormWords = EPW_NORM_HIDDEN_MAX / 4 / kCollThreads;

// What a row needs besides its sum, loaded while the sum arrives: the words of a thread.
template <uint32_t kWords> struct NormRow { uint64_t sum[kWords], residual[kWords], weight[kWords]; };

__device__ __forceinline__ uint32_t norm_word(uint32_t k) { return threadIdx.x + k * kCollThreads; }

template <uint32_t kWords>
__device__ __forceinline__ void begin_row(const epw_coll_norm_args &a, uint64_t row, NormRow<kWords> &r) {
    const uint32_t words = a.hidden / 4;
    const auto *residuals = reinterpret_cast<const uint64_t *>(a.residual) + row * words;
    const auto *weights = reinterpret_cast<const uint64_t *>(a.weight);
#pragma unroll
    for (uint32_t k = 0; k < kWords; k++) {
        const bool inside = norm_word(k) < words;
        r.weight[k] = inside ? weights[norm_word(k)] : 0;
        r.residual[k] = inside && a.residual != nullptr ? residuals[norm_word(k)] : 0;
        r.sum[k] = 0;
    }
}

// Called by the whole block.
template <typename T, typename Pair, uint32_t kWords>
__device__ __forceinline__ void end_row(const epw_coll_norm_args &a, uint64_t row, NormRow<kWords> &r,
                                        float (&of_warps)[kNormWarps]) {
    const uint32_t words = a.hidden / 4;
    float part = 0;
#pragma unroll
    for (uint32_t k = 0; k < kWords; k++) {
        float x[4];
        widen_word<T>(r.sum[k], x);
        if (a.residual != nullptr) {
            float residual[4];
            widen_word<T>(r.residual[k], residual);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) x[i] = __fadd_rn(x[i], residual[i]);
            r.sum[k] = pack_word<T>(x);
            widen_word<T>(r.sum[k], x);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) part = __fadd_rn(part, __fmul_rn(x[i], x[i])); // zeros beyond the row change nothing
    }
    if (a.residual != nullptr) {
        auto *residuals = reinterpret_cast<uint64_t *>(a.residual) + row * words;
#pragma unroll
        for (uint32_t k = 0; k < kWords; k++) {
            if (norm_word(k) < words) residuals[norm_word(k)] = r.sum[k];
        }
    }
    const float mean = __fdiv_rn(sum_of_parts(part, of_warps), float(a.hidden));
    const float root = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, a.epsilon)));
#pragma unroll
    for (uint32_t k = 0; k < kWords; k++) {
        if (norm_word(k) >= words) continue; // uniform over a warp for FP8
        float y[4], weight[4];
        widen_word<T>(r.sum[k], y);
        widen_word<T>(r.weight[k], weight);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) y[i] = __fmul_rn(__fmul_rn(y[i], root), weight[i]);
        const uint64_t packed = pack_word<T>(y);
        if (a.payload == EPW_PAYLOAD_SAME) {
            reinterpret_cast<uint64_t *>(a.out)[row * words + norm_word(k)] = packed;
        } else {
            write_quantised<Pair>(a, row, norm_word(k), packed);
        }
    }
}

// Sums the members' words of a row. Returns false if some are late: then they must be awaited, and the row be begun again. So no
// thread holds a row in registers while it waits long.
template <typename T, uint32_t kWords>
__device__ __forceinline__ bool sum_row(const Collective &c, const Folding &f, WordsAt at, uint64_t (&sums)[kWords]) {
    constexpr uint32_t kLooks = 32;
    load_words<kWords>(f.own, f.bytes, at, sums);
    if (c.members == 1) return true;
    Word<T> sum[kWords];
#pragma unroll
    for (uint32_t w = 0; w < kWords; w++) sum[w].begin_sum();
#pragma unroll 1
    for (uint32_t source = 0; source < c.ranks; source++) {
        Arriving<1, kWords> here = {};
        here.wanted = takes_part(c, source) && source != c.rank;
        bool come = here.wanted == 0;
#pragma unroll 1
        for (uint32_t i = 0; i < kLooks && !come; i++) come = here.look(c, Ranks<false>{source}, at);
        if (!come) return false;
        if (source != c.rank && here.wanted == 0) continue;
#pragma unroll
        for (uint32_t w = 0; w < kWords; w++) sum[w].template fold<true>(source == c.rank ? sums[w] : here.data[0][w], EPW_SUM);
    }
#pragma unroll
    for (uint32_t w = 0; w < kWords; w++) sums[w] = sum[w].template end<true>(EPW_SUM, c.members);
    return true;
}

// Waits for the members' words of a row, or gives members up.
template <uint32_t kWords> __device__ __noinline__ void await_row(Collective &c, WordsAt at) {
#pragma unroll 1
    for (uint32_t source = 0; source < c.ranks; source++) {
        if (takes_part(c, source) && source != c.rank) await_words(c, Ranks<false>{source}, at, kWords, 1);
    }
}

template <typename T, typename Pair, uint32_t kWords>
__device__ __forceinline__ void run_norm(Collective &c, const epw_coll_norm_args &a, float (&of_warps)[2][kNormWarps]) {
    const uint64_t words = a.hidden / 4;
    constexpr uint32_t kAtOnce = 4; // words that are awaited together
    tell_call(c);
#pragma unroll 1
    for (uint64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const uint64_t begin = row * words + threadIdx.x, end = (row + 1) * words;
#pragma unroll 1
        for (uint64_t i = begin; i < end; i += kFewNormWords * kCollThreads) {
            send_words<kFewNormWords>(c, {i, kCollThreads, end});
        }
    }
    const Folding f = folded_here(c);
    auto *sums = reinterpret_cast<uint64_t *>(f.out);
    uint32_t turn = 0;
#pragma unroll 1
    for (uint64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const uint64_t begin = row * words + threadIdx.x, end = (row + 1) * words;
        const auto at = [&](uint32_t k) { return WordsAt{begin + k * kCollThreads, kCollThreads, end}; };
        NormRow<kWords> r;
        bool whole = false;
        for (uint32_t tries = 0; !whole && tries < 2; tries++) { // what was awaited is there
            begin_row(a, row, r);
            whole = true;
#pragma unroll
            for (uint32_t k = 0; k < kWords; k += kAtOnce) {
                uint64_t sum[kAtOnce];
                if (!whole || !at(k).has(0)) continue;
                whole = sum_row<T, kAtOnce>(c, f, at(k), sum);
#pragma unroll
                for (uint32_t w = 0; w < kAtOnce; w++) r.sum[k + w] = at(k).has(w) ? sum[w] : 0;
            }
            if (!whole) {
#pragma unroll 1
                for (uint32_t k = 0; k < kWords; k += kAtOnce) await_row<kAtOnce>(c, at(k));
            }
        }
        if (whole) {
#pragma unroll
            for (uint32_t k = 0; k < kWords; k++) {
                if (at(k).has(0)) sums[at(k).at(0)] = r.sum[k];
            }
        }
        __syncthreads();
        if (c.stopped || any(c.active - c.reachable)) break; // the sum is incomplete
        end_row<T, Pair>(a, row, r, of_warps[turn++ % 2]);
    }
    await_calls(c);
}

// Normalises after a sum by rings.
template <typename T, typename Pair, uint32_t kWords>
__device__ __forceinline__ void run_norm_alone(const epw_coll_norm_args &a, float (&of_warps)[2][kNormWarps]) {
    const epw_coll_args &common = a.common;
    const uint32_t words = a.hidden / 4;
    if (ptx::load_relaxed_gpu(&common.state->halted) || any(load_now(common.shared->suspects) & common.peers->active)) return;
    uint32_t turn = 0;
#pragma unroll 1
    for (uint64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const auto *sums = reinterpret_cast<const uint64_t *>(common.recv) + row * words;
        NormRow<kWords> r;
        begin_row(a, row, r);
#pragma unroll
        for (uint32_t k = 0; k < kWords; k++) {
            if (norm_word(k) < words) r.sum[k] = sums[norm_word(k)];
        }
        end_row<T, Pair>(a, row, r, of_warps[turn++ % 2]);
    }
}

} // namespace epw
