/* How functions are declared that C and CUDA share: layout and rules, compiled for both sides where nvcc
 * compiles them. */
#ifndef EPW_BASE_INLINE_H
#define EPW_BASE_INLINE_H

#if defined(__CUDACC__)
#define EPW_INLINE static __host__ __device__ inline
#else
#define EPW_INLINE static inline
#endif

#endif
