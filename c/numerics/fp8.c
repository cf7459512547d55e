/* The public quantisers: convert rows to FP8 and back with the loops of numerics.h. */
#include "base/float_state.h"
#include "base/status.h"
#include "numerics/numerics.h"
#include "epwire.h"

/* Checks the arguments of either direction, and selects the loops. */
static epw_status prepare(const char *op, uint32_t payload, uint32_t dtype, uint64_t rows, uint32_t hidden,
                          const void *x, const void *q, const void *scales, const epw_numerics **numerics) {
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
    const char *absent = x == NULL ? "x" : q == NULL ? "q" : scales == NULL ? "scales" : NULL;
    if (rows > 0 && absent != NULL)
        return epw_fail(EPW_ERR_INVALID, here, "%s is NULL: give memory for %llu rows", absent,
                        (unsigned long long)rows);
    return epw_numerics_choose(here, numerics);
}

static size_t row_scale_bytes(uint32_t payload, uint32_t hidden) {
    return hidden / EPW_FP8_BLOCK * (payload == EPW_PAYLOAD_FP8_UE8M0 ? 1 : sizeof(float));
}

epw_status epw_quantize_fp8(uint32_t payload, uint32_t dtype, uint64_t rows, uint32_t hidden, const void *x,
                            uint8_t *q, void *scales) {
    const epw_numerics *numerics;
    epw_status status = prepare("quantize_fp8", payload, dtype, rows, hidden, x, q, scales, &numerics);
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
    const epw_numerics *numerics;
    epw_status status = prepare("dequantize_fp8", payload, dtype, rows, hidden, x, q, scales, &numerics);
    if (status != EPW_OK) return status;
    const size_t scale_stride = row_scale_bytes(payload, hidden);
    const epw_float_state before = epw_float_enter();
    for (size_t r = 0; r < rows; r++)
        numerics->dequantize(payload, dtype, q + r * hidden, (const char *)scales + r * scale_stride, hidden,
                             (char *)x + r * hidden * 2);
    epw_float_leave(before);
    return EPW_OK;
}
