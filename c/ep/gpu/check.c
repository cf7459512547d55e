/* See check.h. */
#ifdef EPW_CUDA
#include "ep/gpu/check.h"

epw_status epw_gpu_check_call(epw_where where, uint32_t nonblocking, const epw_outcome *outcome,
                              const char *see) {
    if (nonblocking != 0)
        return epw_fail(EPW_ERR_INVALID, where,
                        "nonblocking is %u, must be 0 on a GPU: calls enqueue and never wait", nonblocking);
    if (outcome != NULL)
        return epw_fail(EPW_ERR_INVALID, where, "outcome must be NULL on a GPU: it is not known yet; see %s",
                        see);
    return EPW_OK;
}

epw_status epw_gpu_check_aligned(epw_where where, const epw_gpu_pointer *pointers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const epw_gpu_pointer *p = &pointers[i];
        if ((uintptr_t)p->at % p->align == 0) continue;
        return epw_fail(EPW_ERR_INVALID, where, "%s must be aligned to %u bytes", p->name, p->align);
    }
    return EPW_OK;
}

epw_status epw_gpu_check_stride(epw_where where, uint64_t x_stride) {
    if (x_stride % 16 == 0) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, where, "x_stride is %llu bytes, must be a multiple of 16",
                    (unsigned long long)x_stride);
}
#else
typedef int epw_no_gpu_checks; /* ISO C requires a declaration in every file */
#endif
