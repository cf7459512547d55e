/* See input.h. */
#include "ep/input.h"

#include "base/bits.h"

#include <string.h>

/* ---- checks ---- */

epw_status epw_input_check_deadline(epw_where where, const epw_config *config, uint64_t deadline_ns) {
    if (deadline_ns == 0) return EPW_OK;
    if (deadline_ns >= config->deadline_ns && deadline_ns <= EPW_MAX_DEADLINE_NS) return EPW_OK;
    return epw_fail(EPW_ERR_LIMIT, where,
                    "deadline is %llu ns, a call may only lengthen the buffer's %llu, to a day at most",
                    (unsigned long long)deadline_ns, (unsigned long long)config->deadline_ns);
}

epw_status epw_input_check(epw_where where, const epw_config *config, const epw_dispatch_input *in,
                           bool routed, epw_row_format *format) {
    if (in == NULL) return epw_fail(EPW_ERR_INVALID, where, "input is NULL");
    epw_status status = epw_row_format_make(where.op, config, in, format);
    if (status != EPW_OK) return status;
    if (in->tokens > config->max_tokens) {
        return epw_fail(EPW_ERR_LIMIT, where, "tokens is %u, the plan's max_tokens is %u", in->tokens,
                        config->max_tokens);
    }
    if (in->topk < 1 || in->topk > config->topk)
        return epw_fail(EPW_ERR_LIMIT, where, "topk is %u, must be in [1, %u]", in->topk, config->topk);
    if (in->idx_type > EPW_I64)
        return epw_fail(EPW_ERR_INVALID, where, "idx_type is %u, must be EPW_I32, EPW_U32 or EPW_I64",
                        in->idx_type);
    if (in->layout > EPW_RANK_MAJOR)
        return epw_fail(EPW_ERR_INVALID, where, "layout is %u, must be EPW_EXPERT_MAJOR or EPW_RANK_MAJOR",
                        in->layout);
    if (in->lane < -1 || in->lane >= (int32_t)config->lanes)
        return epw_fail(EPW_ERR_LIMIT, where, "lane is %d, the buffer has %u", in->lane, config->lanes);
    status = epw_input_check_deadline(where, config, in->deadline_ns);
    if (status != EPW_OK || in->tokens == 0) return status;
    const char *absent = in->x == NULL                                    ? "x"
                         : routed && in->topk_idx == NULL                 ? "topk_idx"
                         : in->sideband_bytes > 0 && in->sideband == NULL ? "sideband"
                         : in->payload == EPW_PAYLOAD_OPAQUE && in->scale_count > 0 && in->scales == NULL
                             ? "scales"
                             : NULL;
    if (absent != NULL)
        return epw_fail(EPW_ERR_INVALID, where, "%s is NULL with %u tokens", absent, in->tokens);
    uint64_t row = in->payload == EPW_PAYLOAD_OPAQUE ? in->opaque_row_bytes : (uint64_t)config->hidden * 2;
    if (in->x_stride != 0 && in->x_stride < row) {
        return epw_fail(EPW_ERR_INVALID, where, "x_stride is %llu bytes, a row has %llu",
                        (unsigned long long)in->x_stride, (unsigned long long)row);
    }
    return EPW_OK;
}

/* ---- the routing ---- */

/* Entry j of token t as a 64-bit integer; "not routed" is -1 for every type. */
static int64_t read_id(const epw_dispatch_input *in, uint32_t t, uint32_t j) {
    size_t at = (size_t)t * in->topk + j;
    switch (in->idx_type) {
    case EPW_U32: {
        uint32_t id = ((const uint32_t *)in->topk_idx)[at];
        return id == UINT32_MAX ? -1 : (int64_t)id;
    }
    case EPW_I64:
        return ((const int64_t *)in->topk_idx)[at];
    default:
        return ((const int32_t *)in->topk_idx)[at];
    }
}

epw_status epw_input_read_topk(epw_where where, const epw_config *config, const epw_dispatch_input *in,
                               uint32_t t, int32_t *ids, float *weights) {
    for (uint32_t j = 0; j < config->topk; j++) {
        ids[j] = -1;
        weights[j] = 0.0f;
        if (j >= in->topk) continue;
        int64_t id = read_id(in, t, j);
        if (id < -1 || id >= (int64_t)config->experts) {
            return epw_fail(EPW_ERR_INVALID, where, "topk_idx[%u][%u] is %lld, must be in [-1, %u)", t, j,
                            (long long)id, config->experts);
        }
        for (uint32_t i = 0; id >= 0 && i < j; i++) {
            if (ids[i] == id) {
                return epw_fail(EPW_ERR_INVALID, where, "topk_idx[%u][%u] repeats expert %lld of column %u",
                                t, j, (long long)id, i);
            }
        }
        ids[j] = (int32_t)id;
        if (in->topk_weights != NULL) weights[j] = in->topk_weights[(size_t)t * in->topk + j];
    }
    return EPW_OK;
}

/* ---- payloads ---- */

uint64_t epw_input_stride(const epw_config *config, const epw_dispatch_input *in,
                          const epw_row_format *format) {
    bool same = in->payload == EPW_PAYLOAD_SAME || in->payload == EPW_PAYLOAD_OPAQUE;
    if (in->x_stride != 0) return in->x_stride;
    return same ? format->payload_bytes : (uint64_t)config->hidden * 2;
}

const unsigned char *epw_input_payload(const epw_numerics *numerics, const epw_config *config,
                                       const epw_dispatch_input *in, const epw_row_format *format, uint32_t t,
                                       unsigned char *scratch, size_t *bytes) {
    const unsigned char *x = (const unsigned char *)in->x + t * epw_input_stride(config, in, format);
    uint64_t row_bytes = epw_format_bytes(format);
    *bytes = epw_align(row_bytes, 16);
    if (in->payload == EPW_PAYLOAD_SAME) return x;
    unsigned char *scales = scratch + format->payload_bytes;
    if (in->payload == EPW_PAYLOAD_OPAQUE) {
        if (format->scale_count == 0) return x;
        memcpy(scratch, x, format->payload_bytes);
        const unsigned char *from = (const unsigned char *)in->scales + t * in->scale_row_stride;
        for (uint32_t i = 0; i < format->scale_count; i++) {
            memcpy(scales + (size_t)i * format->scale_bytes, from + i * in->scale_col_stride,
                   format->scale_bytes);
        }
    } else {
        numerics->quantize(in->payload, config->dtype, x, config->hidden, scratch, scales);
    }
    /* So that the peer does not see the previous contents. */
    memset(scratch + row_bytes, 0, *bytes - row_bytes);
    return scratch;
}
