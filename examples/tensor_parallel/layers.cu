/* The layers of one rank on a GPU, the counterpart of mlp.rs: written to be read and to be right, not to be
 * fast. A thread computes one output by one loop, in f32 and in the order of the host, and nothing is fused.
 *
 * The example loads them as PTX, which drivers compile for their GPU. layers.ptx is made of this file by
 *   $ nvcc -ptx -arch=compute_90 -std=c++17 --fmad=false layers.cu
 *   $ sed -i '/^\/\//d; /used_bytes_mask/d; s|^\.version .*|.version 8.0|' layers.ptx
 * with the version lowered to that of CUDA 12.0, whose drivers then take it too, and without a hint that is
 * newer. CI runs these lines and compares.
 */
#include <cstdint>

/* y [n, columns] of x [n, inner] and w [inner, columns]; what is below 0 becomes 0, where that is asked for.
 */
extern "C" __global__ void multiply(const float *x, const float *w, float *y, uint32_t inner,
                                    uint32_t columns, uint32_t rectify) {
    const uint32_t column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const float *row = x + uint64_t(blockIdx.y) * inner;
    float sum = 0;
    for (uint32_t i = 0; i < inner; i++) sum += row[i] * w[uint64_t(i) * columns + column];
    y[uint64_t(blockIdx.y) * columns + column] = rectify && sum < 0 ? 0 : sum;
}
