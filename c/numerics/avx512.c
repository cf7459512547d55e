/* The inner loops for AVX-512. The target is selected here, so that every file of the core is compiled with
 * the same flags. */
#include "numerics/isa.h"

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
#define PICK_ABOVE(x, bound, a, b)                                                                           \
    ((vu)_mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask((__m512i)(x), (__m512i)(bound)), (__m512i)(b),      \
                                 (__m512i)(a)))
#define PICK_NAN(x, a, b)                                                                                    \
    ((vu)_mm512_mask_blend_epi32(_mm512_cmp_ps_mask((x), (x), _CMP_UNORD_Q), (__m512i)(b), (__m512i)(a)))
#define MIN_32(a, b) ((vu)_mm512_min_epi32((__m512i)(a), (__m512i)(b)))
#define MAX_16(a, b) ((vs)_mm512_max_epi16((__m512i)(a), (__m512i)(b)))
#define WIDEN_F16(h) ((vf)_mm512_cvtph_ps((__m256i)(h)))
#define NARROW_F16(a, b)                                                                                     \
    ((vu)_mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph((a), TO_NEAREST)),                        \
                            _mm512_cvtps_ph((b), TO_NEAREST), 1))
#define TO_NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define NUMERICS   epw_numerics_avx512
#define SUMS       epw_sums_avx512
#define ISA_NAME   "avx512"
#include "numerics/body.inc"
#include "numerics/sums.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
