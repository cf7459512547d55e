/* Declares functions that C and CUDA share, such as layouts and rules: nvcc compiles them for host and
 * device. */
#ifndef EPW_BASE_INLINE_H
#define EPW_BASE_INLINE_H

#if defined(__CUDACC__)
#define EPW_INLINE static __host__ __device__ inline
#else
#define EPW_INLINE static inline
#endif

#endif
