/* Averages of integers, for every instruction set: exact sums in integers at least twice as wide, one block
 * of elements at a time. */
#include <string.h>

#include "numerics/isa.h"
#include "epwire.h"

__extension__ typedef __int128 wide;

enum { BLOCK = 256 }; /* elements whose sums stay in the L1 cache: 2 or 4 KiB */

/* Defines NAME for elements of type T, whose sums are of type SUM. */
#define AVERAGES(NAME, T, SUM)                                                                               \
    static void NAME(const void *const *rows, size_t n, size_t count, void *out) {                           \
        for (size_t at = 0; at < count; at += BLOCK) {                                                       \
            const size_t now = count - at < BLOCK ? count - at : BLOCK;                                      \
            SUM sums[BLOCK] = {0};                                                                           \
            T values[BLOCK];                                                                                 \
            for (size_t i = 0; i < n; i++) {                                                                 \
                memcpy(values, (const char *)rows[i] + at * sizeof(T), now * sizeof(T));                     \
                for (size_t c = 0; c < now; c++) sums[c] += values[c];                                       \
            }                                                                                                \
            for (size_t c = 0; c < now; c++) values[c] = (T)(sums[c] / (SUM)n);                              \
            memcpy((char *)out + at * sizeof(T), values, now * sizeof(T));                                   \
        }                                                                                                    \
    }

AVERAGES(average_i8, int8_t, int64_t)
AVERAGES(average_u8, uint8_t, int64_t)
AVERAGES(average_i32, int32_t, int64_t)
AVERAGES(average_u32, uint32_t, int64_t)
AVERAGES(average_i64, int64_t, wide)
AVERAGES(average_u64, uint64_t, wide)

void epw_average_integers(uint32_t type, const void *const *rows, size_t n, size_t count, void *out) {
    switch (type) {
    case EPW_TYPE_I8:
        average_i8(rows, n, count, out);
        break;
    case EPW_TYPE_U8:
        average_u8(rows, n, count, out);
        break;
    case EPW_TYPE_I32:
        average_i32(rows, n, count, out);
        break;
    case EPW_TYPE_U32:
        average_u32(rows, n, count, out);
        break;
    case EPW_TYPE_I64:
        average_i64(rows, n, count, out);
        break;
    default:
        average_u64(rows, n, count, out);
        break;
    }
}
