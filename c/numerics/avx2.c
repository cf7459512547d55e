/* The inner loops for AVX2 with F16C. The target is selected here, so that every file of the core is compiled
 * with the same flags. */
#include "numerics/isa.h"

#if defined(__x86_64__)

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#define VECTOR_BYTES          32
#define STREAM_VECTOR(dst, v) _mm256_stream_si256((__m256i *)(void *)(dst), (__m256i)(v))
#define PICK_ABOVE(x, bound, a, b)                                                                           \
    ((vu)_mm256_blendv_epi8((__m256i)(b), (__m256i)(a), _mm256_cmpgt_epi32((__m256i)(x), (__m256i)(bound))))
#define PICK_NAN(x, a, b)                                                                                    \
    ((vu)_mm256_blendv_epi8((__m256i)(b), (__m256i)(a), (__m256i)_mm256_cmp_ps((x), (x), _CMP_UNORD_Q)))
#define MIN_32(a, b) ((vu)_mm256_min_epi32((__m256i)(a), (__m256i)(b)))
#define MAX_16(a, b) ((vs)_mm256_max_epi16((__m256i)(a), (__m256i)(b)))
#define WIDEN_F16(h) ((vf)_mm256_cvtph_ps((__m128i)(h)))
#define NARROW_F16(a, b)                                                                                     \
    ((vu)_mm256_set_m128i(_mm256_cvtps_ph((b), TO_NEAREST), _mm256_cvtps_ph((a), TO_NEAREST)))
#define TO_NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define NUMERICS   epw_numerics_avx2
#define SUMS       epw_sums_avx2
#define ISA_NAME   "avx2"
#include "numerics/body.inc"
#include "numerics/sums.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
