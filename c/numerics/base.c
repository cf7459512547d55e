/* The inner loops in 16-byte vectors, which every supported processor has (SSE2, NEON) and which compilers
 * emulate elsewhere. */
#if defined(__x86_64__)
#include <emmintrin.h>
#define STREAM_VECTOR(dst, v) _mm_stream_si128((__m128i *)(void *)(dst), (__m128i)(v))
#else
#define STREAM_VECTOR(dst, v) memcpy((dst), &(v), sizeof(v))
#endif

#define VECTOR_BYTES 16
#define NUMERICS     epw_numerics_base
#define SUMS         epw_sums_base
#define ISA_NAME     "base"
#include "numerics/body.inc"
#include "numerics/sums.inc"

void epw_reduce_columns(uint32_t dtype, const void *const *rows, const float *weights, size_t n, size_t begin,
                        size_t end, void *out) {
    reduce_any(dtype, rows, weights, n, begin * 2, end * 2, out, false);
}
