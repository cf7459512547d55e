/* See numerics.h: the choice of instruction set, and the public quantisers. */
#include "numerics/numerics.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/float_state.h"
#include "base/status.h"
#include "numerics/isa.h"
#include "epwire.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* ---- Choice of instruction set ------------------------------------------------------------------------- */

#if defined(__x86_64__)
/* Asked of the processor directly: __builtin_cpu_supports needs a symbol of the static libgcc, which rustc
 * does not link. Vector state counts only if the operating system saves it (XCR0). */
static void x86_features(bool *avx2, bool *avx512) {
    *avx2 = *avx512 = false;
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_OSXSAVE)) return;
    const bool f16c = ecx & bit_F16C;
    uint32_t xcr0, high;
    __asm__("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return;

    const uint32_t ymm_state = 0x06, zmm_state = 0xe6;
    const uint32_t avx512_bits = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    *avx2 = f16c && (xcr0 & ymm_state) == ymm_state && (ebx & bit_AVX2);
    *avx512 = *avx2 && (xcr0 & zmm_state) == zmm_state && (ebx & avx512_bits) == avx512_bits;
}
#endif

size_t epw_numerics_all(const epw_numerics *out[], size_t max) {
    const epw_numerics *found[3];
    size_t count = 0;
#if defined(__x86_64__)
    bool avx2, avx512;
    x86_features(&avx2, &avx512);
    if (avx512) found[count++] = &epw_numerics_avx512;
    if (avx2) found[count++] = &epw_numerics_avx2;
#endif
    found[count++] = &epw_numerics_base;
    if (count > max) count = max;
    memcpy(out, found, count * sizeof found[0]);
    return count;
}

epw_status epw_numerics_choose(epw_where where, const epw_numerics **out) {
    /* Threads that race here find the same answer, so the last store changes nothing. */
    static const epw_numerics *_Atomic chosen;
    *out = atomic_load_explicit(&chosen, memory_order_acquire);
    if (*out) return EPW_OK;

    const epw_numerics *all[3];
    const size_t count = epw_numerics_all(all, 3);
    const char *wanted = getenv("EPWIRE_ISA");
    if (wanted && wanted[0] == '\0') wanted = NULL; /* empty counts as unset, as for every variable */
    for (size_t i = 0; i < count && !*out; i++)
        if (wanted == NULL || strcmp(all[i]->isa, wanted) == 0) *out = all[i];
    if (!*out)
        return epw_fail(
            EPW_ERR_INVALID, where,
            "EPWIRE_ISA is \"%.32s\", this processor can run %s%s%s%s%s: name one of them, or unset "
            "it for the best",
            wanted, all[0]->isa, count > 1 ? ", " : "", count > 1 ? all[1]->isa : "", count > 2 ? ", " : "",
            count > 2 ? all[2]->isa : "");
    atomic_store_explicit(&chosen, *out, memory_order_release);
    return EPW_OK;
}

/* ---- Public quantisers --------------------------------------------------------------------------------- */

static epw_status check_fp8(const char *op, uint32_t payload, uint32_t dtype, uint64_t rows, uint32_t hidden,
                            bool all_given) {
    const epw_where here = {op, -1, -1};
    if (payload < EPW_PAYLOAD_FP8_F32 || payload > EPW_PAYLOAD_FP8_UE8M0)
        return epw_fail(EPW_ERR_INVALID, here,
                        "payload is %u: give one of EPW_PAYLOAD_FP8_F32, _POW2, _UE8M0", payload);
    if (dtype != EPW_BF16 && dtype != EPW_F16)
        return epw_fail(EPW_ERR_INVALID, here, "dtype is %u: give EPW_BF16 or EPW_F16", dtype);
    if (hidden == 0 || hidden % EPW_FP8_BLOCK != 0)
        return epw_fail(EPW_ERR_INVALID, here,
                        "hidden is %u: FP8 needs a multiple of %u, the channels of one scale", hidden,
                        EPW_FP8_BLOCK);
    if (rows > SIZE_MAX / 2 / hidden)
        return epw_fail(EPW_ERR_LIMIT, here,
                        "%llu rows of %u channels do not fit into memory: give fewer rows",
                        (unsigned long long)rows, hidden);
    if (rows > 0 && !all_given)
        return epw_fail(EPW_ERR_INVALID, here, "x, q or scales is NULL: give memory for %llu rows",
                        (unsigned long long)rows);
    return EPW_OK;
}

static size_t row_scale_bytes(uint32_t payload, uint32_t hidden) {
    return hidden / EPW_FP8_BLOCK * (payload == EPW_PAYLOAD_FP8_UE8M0 ? 1 : sizeof(float));
}

epw_status epw_quantize_fp8(uint32_t payload, uint32_t dtype, uint64_t rows, uint32_t hidden, const void *x,
                            uint8_t *q, void *scales) {
    epw_status status = check_fp8("quantize_fp8", payload, dtype, rows, hidden, x && q && scales);
    if (status != EPW_OK) return status;
    const epw_numerics *numerics;
    status = epw_numerics_choose((epw_where){"quantize_fp8", -1, -1}, &numerics);
    if (status != EPW_OK) return status;
    const size_t scale_stride = row_scale_bytes(payload, hidden);
    const epw_float_state before = epw_float_enter();
    for (size_t r = 0; r < rows; r++)
        numerics->quantize(payload, dtype, (const char *)x + r * hidden * 2, hidden, q + r * hidden,
                           (char *)scales + r * scale_stride);
    epw_float_leave(before);
    return EPW_OK;
}

epw_status epw_dequantize_fp8(uint32_t payload, uint32_t dtype, uint64_t rows, uint32_t hidden,
                              const uint8_t *q, const void *scales, void *x) {
    epw_status status = check_fp8("dequantize_fp8", payload, dtype, rows, hidden, x && q && scales);
    if (status != EPW_OK) return status;
    const epw_numerics *numerics;
    status = epw_numerics_choose((epw_where){"dequantize_fp8", -1, -1}, &numerics);
    if (status != EPW_OK) return status;
    const size_t scale_stride = row_scale_bytes(payload, hidden);
    const epw_float_state before = epw_float_enter();
    for (size_t r = 0; r < rows; r++)
        numerics->dequantize(payload, dtype, q + r * hidden, (const char *)scales + r * scale_stride, hidden,
                             (char *)x + r * hidden * 2);
    epw_float_leave(before);
    return EPW_OK;
}
