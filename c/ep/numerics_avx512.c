/* The inner loops for AVX-512. The target is chosen here, so that every file of the core is compiled with the
 * same flags. */
#include "ep/numerics_isa.h"

#if defined(__x86_64__)

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))),                  \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif

#define VECTOR_BYTES          64
#define STREAM_VECTOR(dst, v) _mm512_stream_si512((__m512i *)(void *)(dst), (__m512i)(v))
#define NUMERICS              epw_numerics_avx512
#define ISA_NAME              "avx512"
#include "ep/numerics_body.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
