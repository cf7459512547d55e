/* Shared by the files of the instruction sets: the tables they define, and the portable loops for odd widths
 * and for averages of integers. */
#ifndef EPW_NUMERICS_ISA_H
#define EPW_NUMERICS_ISA_H

#include "numerics/numerics.h"
#include "numerics/sums.h"

extern const epw_numerics epw_numerics_base;
extern const epw_sums epw_sums_base;
#if defined(__x86_64__)
extern const epw_numerics epw_numerics_avx2;
extern const epw_numerics epw_numerics_avx512;
extern const epw_sums epw_sums_avx2;
extern const epw_sums epw_sums_avx512;
#endif

/* epw_numerics.reduce for channels [begin, end), multiples of 8, for which wider vectors do not fit. */
void epw_reduce_columns(uint32_t dtype, const void *const *rows, const float *weights, size_t n, size_t begin,
                        size_t end, void *out);

/* epw_sums.reduce for EPW_AVERAGE of an integer type and two rows or more. */
void epw_average_integers(uint32_t type, const void *const *rows, size_t n, size_t count, void *out);

#endif
