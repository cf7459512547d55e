/* See numerics.h: the choice of instruction set. */
#include "numerics/numerics.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "numerics/isa.h"
#include "epwire.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__x86_64__)
/* Queries the processor directly: __builtin_cpu_supports needs a symbol of the static libgcc, which rustc
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
    /* Threads that race here compute the same answer, so the last store changes nothing. */
    static const epw_numerics *_Atomic chosen;
    *out = atomic_load_explicit(&chosen, memory_order_acquire);
    if (*out != NULL) return EPW_OK;

    const epw_numerics *all[3];
    const size_t count = epw_numerics_all(all, 3);
    const char *wanted = getenv("EPWIRE_ISA");
    if (wanted != NULL && wanted[0] == '\0') wanted = NULL; /* empty counts as unset, as for every variable */
    for (size_t i = 0; i < count && *out == NULL; i++)
        if (wanted == NULL || strcmp(all[i]->isa, wanted) == 0) *out = all[i];
    if (*out == NULL)
        return epw_fail(
            EPW_ERR_INVALID, where,
            "EPWIRE_ISA is \"%.32s\", this processor can run %s%s%s%s%s: name one of them, or unset "
            "it for the best",
            wanted, all[0]->isa, count > 1 ? ", " : "", count > 1 ? all[1]->isa : "", count > 2 ? ", " : "",
            count > 2 ? all[2]->isa : "");
    atomic_store_explicit(&chosen, *out, memory_order_release);
    return EPW_OK;
}
