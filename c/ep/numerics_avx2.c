/* The inner loops for AVX2. The target is chosen here, so that every file of the core is compiled with the
 * same flags. */
#include "ep/numerics_isa.h"

#if defined(__x86_64__)

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define VECTOR_BYTES          32
#define STREAM_VECTOR(dst, v) _mm256_stream_si256((__m256i *)(void *)(dst), (__m256i)(v))
#define NUMERICS              epw_numerics_avx2
#define ISA_NAME              "avx2"
#include "ep/numerics_body.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
