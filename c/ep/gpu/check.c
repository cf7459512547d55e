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

uint32_t epw_gpu_scale_align(const epw_row_format *format, uint32_t payload) {
    if (payload == EPW_PAYLOAD_FP8_UE8M0) return 4;
    return format->scale_bytes > 0 ? format->scale_bytes : 1;
}

epw_status epw_gpu_check_input(epw_where where, const epw_dispatch_input *in, const epw_row_format *format,
                               bool routed) {
    bool scaled = in->payload == EPW_PAYLOAD_OPAQUE && format->scale_count > 0;
    uint32_t scale = epw_gpu_scale_align(format, in->payload);
    const epw_gpu_pointer pointers[] = {
        {"x", in->x, 16},
        {"topk_idx", routed ? NULL : in->topk_idx, in->idx_type == EPW_I64 ? 8 : 4},
        {"topk_weights", in->topk_weights, 4},
        {"scales", scaled ? in->scales : NULL, scale}};
    if (in->tokens == 0) return EPW_OK; /* nothing is read */
    epw_status status = EPW_CHECK_ALIGNED(where, pointers);
    if (status != EPW_OK) return status;
    if (in->x_stride % 16 != 0)
        return epw_fail(EPW_ERR_INVALID, where, "x_stride is %llu bytes, must be a multiple of 16",
                        (unsigned long long)in->x_stride);
    if (!scaled || (in->scale_row_stride % scale == 0 && in->scale_col_stride % scale == 0)) return EPW_OK;
    return epw_fail(
        EPW_ERR_INVALID, where,
        "scale_row_stride is %llu and scale_col_stride %llu bytes, must be multiples of scale_bytes %u",
        (unsigned long long)in->scale_row_stride, (unsigned long long)in->scale_col_stride, scale);
}
#else
typedef int epw_no_gpu_checks; /* ISO C requires a declaration in every file */
#endif
