/* The experts of one rank on a GPU, the counterpart of experts.rs: written to be read and to be right, not to
 * be fast. A thread computes one output by one loop, in f32 and in the order of the host, and nothing is
 * fused, so the same bits come out as there.
 *
 * The example loads them as PTX, which drivers compile for their GPU. experts.ptx is made of this file by
 *   $ nvcc -ptx -arch=compute_90 -std=c++17 --fmad=false experts.cu
 *   $ sed -i '/^\/\//d; /used_bytes_mask/d; s|^\.version .*|.version 8.0|' experts.ptx
 * with the version lowered to that of CUDA 12.0, whose drivers then take it too, and without a hint that is
 * newer. CI runs these lines and compares.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

enum Payload : uint32_t { BF16, F16, FP8 /* e4m3 of bf16, an f32 scale per 128 channels */ };

/* A layer of this rank; cuda.rs has the same. E local experts, R places for rows, H channels, I channels
 * inside. A place is a received row: expert-major every expert has R places of its own and fills the first
 * ones; rank-major all share R, and lists say which are whose. */
struct Layer {
    /* What dispatch delivered. Strides in bytes; that from expert to expert is 0 where they share their
     * places. */
    const uint8_t *rows;
    uint64_t row_stride, rows_expert_stride;
    const uint8_t *scales;
    uint64_t scale_stride, scales_expert_stride;
    const uint32_t *counts;      /* [E] */
    const uint32_t *expert_rows; /* [E, R]; null: the first places */
    /* Weights. */
    const float *gate, *up; /* [E, H, I] */
    const float *down;      /* [E, I, H] */
    /* Between and after. */
    float *inner;      /* [E, R, I], by position in the expert's list */
    uint16_t *outputs; /* [E, R, H], by place */
    /* Rank-major: where rows come from, whose they are, and where their sums go. */
    const uint32_t *source_counts; /* [R / max_tokens] */
    const int32_t *row_experts;    /* [R, K] */
    const float *row_weights;      /* [R, K] */
    uint8_t *answers;
    uint64_t answer_stride;
    uint32_t places, hidden, intermediate, topk, max_tokens;
    Payload payload;
};
static_assert(sizeof(Layer) == 18 * 8 + 6 * 4, "as in cuda.rs");

__device__ float value(uint16_t bits, Payload type) {
    return type == F16 ? __half2float(__ushort_as_half(bits)) : __bfloat162float(__ushort_as_bfloat16(bits));
}

__device__ uint16_t rounded(float value, Payload type) {
    return type == F16 ? __half_as_ushort(__float2half_rn(value))
                       : __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/* Channel c of a received row. FP8 is rounded to bf16 once more, as who dequantises for a bf16 GEMM does. */
__device__ float channel(const Layer &layer, const uint8_t *row, const float *scales, uint32_t c) {
    if (layer.payload != FP8) return value(reinterpret_cast<const uint16_t *>(row)[c], layer.payload);
    const float q = __half2float(__nv_cvt_fp8_to_halfraw(row[c], __NV_E4M3));
    return value(rounded(q * scales[c / 128], FP8), FP8);
}

/* As in silu.rs, step by step. */
__device__ float exponential(float x) {
    x = fminf(fmaxf(x, -87.0f), 88.0f);
    const float n = rintf(x * 1.44269504f);
    const float r = (x - n * (355.0f / 512)) - n * -2.12194440e-4f;
    const float factors[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    float sum = 0.0f;
    for (float factor : factors) sum = sum * r + factor;
    return sum * __int_as_float((static_cast<int>(n) + 127) << 23);
}

__device__ float silu(float x) {
    return x / (1.0f + exponential(-x));
}

/* A block per place (x) and expert (y). */
__device__ uint32_t place_of(const Layer &layer, uint32_t position, uint32_t expert) {
    return layer.expert_rows ? layer.expert_rows[uint64_t{expert} * layer.places + position] : position;
}

/* inner = silu(row * gate) * (row * up) */
extern "C" __global__ void gate_and_up(const __grid_constant__ Layer layer) {
    const uint32_t position = blockIdx.x, expert = blockIdx.y;
    if (position >= layer.counts[expert]) return;
    const uint64_t place = place_of(layer, position, expert),
                   matrix = uint64_t{layer.hidden} * layer.intermediate;
    const uint8_t *row = layer.rows + expert * layer.rows_expert_stride + place * layer.row_stride;
    const float *scales = reinterpret_cast<const float *>(layer.scales + expert * layer.scales_expert_stride +
                                                          place * layer.scale_stride);
    const float *gate = layer.gate + expert * matrix, *up = layer.up + expert * matrix;
    float *inner = layer.inner + (uint64_t{expert} * layer.places + position) * layer.intermediate;
    for (uint32_t i = threadIdx.x; i < layer.intermediate; i += blockDim.x) {
        float g = 0.0f, u = 0.0f;
        for (uint32_t c = 0; c < layer.hidden; ++c) {
            const float x = channel(layer, row, scales, c);
            const uint64_t at = uint64_t{c} * layer.intermediate + i;
            g += x * gate[at];
            u += x * up[at];
        }
        inner[i] = u * silu(g);
    }
}

/* outputs = inner * down, rounded */
extern "C" __global__ void down(const __grid_constant__ Layer layer) {
    const uint32_t position = blockIdx.x, expert = blockIdx.y;
    if (position >= layer.counts[expert]) return;
    const uint64_t first = uint64_t{expert} * layer.places,
                   matrix = uint64_t{layer.hidden} * layer.intermediate;
    const float *inner = layer.inner + (first + position) * layer.intermediate;
    const float *down = layer.down + expert * matrix;
    uint16_t *output = layer.outputs + (first + place_of(layer, position, expert)) * layer.hidden;
    for (uint32_t c = threadIdx.x; c < layer.hidden; c += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < layer.intermediate; ++i)
            sum += inner[i] * down[uint64_t{i} * layer.hidden + c];
        output[c] = rounded(sum, layer.payload);
    }
}

/* Rank-major: a row's answer, the sum of its experts' outputs with its weights in top-k order. All experts
 * have read the rows by now, so an answer may take its row's place. A block per place. */
extern "C" __global__ void reduce(const __grid_constant__ Layer layer) {
    const uint64_t place = blockIdx.x;
    if (place % layer.max_tokens >= layer.source_counts[place / layer.max_tokens]) return;
    const int32_t *experts = layer.row_experts + place * layer.topk;
    const float *weights = layer.row_weights + place * layer.topk;
    uint16_t *answer = reinterpret_cast<uint16_t *>(layer.answers + place * layer.answer_stride);
    for (uint32_t c = threadIdx.x; c < layer.hidden; c += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < layer.topk; ++k) {
            if (experts[k] < 0) continue;
            const uint64_t row = uint64_t(experts[k]) * layer.places + place;
            sum += weights[k] * value(layer.outputs[row * layer.hidden + c], layer.payload);
        }
        answer[c] = rounded(sum, layer.payload);
    }
}
