/* What the instruction sets' files share: the tables they define, and the portable loop that finishes odd
 * widths. */
#ifndef EPW_NUMERICS_ISA_H
#define EPW_NUMERICS_ISA_H

#include "numerics/numerics.h"

extern const epw_numerics epw_numerics_base;
#if defined(__x86_64__)
extern const epw_numerics epw_numerics_avx2;
extern const epw_numerics epw_numerics_avx512;
#endif

/* epw_numerics.reduce for channels [begin, end), multiples of 8, where wider vectors do not fit. */
void epw_reduce_columns(uint32_t dtype, const void *const *rows, const float *weights, size_t n, size_t begin,
                        size_t end, void *out);

#endif
