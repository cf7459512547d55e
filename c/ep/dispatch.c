/* The public calls of dispatch: the checks that do not depend on the engine. */
#include "ep/buffer.h"
#include "ep/input.h"

static epw_status check_output(const epw_buffer *b, const char *op, uint32_t layout,
                               const epw_dispatch_output *out) {
    epw_where where = epw_buffer_where(b, op);
    if (out == NULL) return epw_fail(EPW_ERR_INVALID, where, "output is NULL");
    if (out->size != sizeof *out) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "output.size is %u, this library's is %zu: use EPW_DISPATCH_OUTPUT_INIT", out->size,
                        sizeof *out);
    }
    if (out->scale_order > 1) {
        return epw_fail(EPW_ERR_INVALID, where, "scale_order is %u, must be 0 or 1", out->scale_order);
    }
    if (layout == EPW_EXPERT_MAJOR && (out->rows == NULL || out->counts == NULL)) {
        return epw_fail(EPW_ERR_INVALID, where, "expert-major needs output.rows and output.counts");
    }
    const char *other = out->row_experts != NULL   ? "row_experts"
                        : out->row_weights != NULL ? "row_weights"
                        : out->expert_rows != NULL ? "expert_rows"
                                                   : NULL;
    if (layout == EPW_EXPERT_MAJOR && other != NULL) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "output.%s is given, which only rank-major fills: leave it out", other);
    }
    if ((uintptr_t)out->rows % 16 != 0) {
        return epw_fail(EPW_ERR_INVALID, where, "output.rows must be aligned to 16 bytes");
    }
    return EPW_OK;
}

epw_status epw_dispatch(epw_buffer *b, const epw_dispatch_input *in, const epw_dispatch_output *out,
                        epw_handle *handle, epw_outcome *outcome) {
    epw_status status = epw_buffer_check(b, "dispatch");
    if (status != EPW_OK) return status;
    epw_where where = epw_buffer_where(b, "dispatch");
    if (handle == NULL) return epw_fail(EPW_ERR_INVALID, where, "handle is NULL");
    epw_row_format format;
    status = epw_input_check(where, &b->config, in, true, &format);
    if (status == EPW_OK && out != NULL) status = check_output(b, "dispatch", in->layout, out);
    if (status == EPW_OK) status = epw_outcome_check(b, "dispatch", outcome);
    if (status != EPW_OK) return status;
    uint32_t index =
        in->lane >= 0 ? (uint32_t)in->lane : atomic_load_explicit(&b->next_lane, memory_order_relaxed);
    epw_lane *lane = &b->lanes[index];
    pthread_mutex_lock(&lane->lock);
    if (!epw_mask_has(&b->peers.active, b->config.rank)) {
        status = epw_fail(EPW_ERR_STATE, where, "no membership yet: call epw_buffer_set_active first");
    } else if (lane->machine.stage != EPW_STAGE_FREE) {
        status = epw_fail(EPW_ERR_STATE, where,
                          "lane %u is held by operation %u: combine or release its handle first (%u lanes)",
                          index, lane->machine.op, b->config.lanes);
    }
    if (status != EPW_OK) {
        epw_lane_unlock(b, lane);
        return status;
    }
    return b->engine->dispatch(b, lane, in, &format, out, handle, outcome);
}

epw_status epw_dispatch_receive(epw_buffer *b, epw_handle handle, const epw_dispatch_output *out,
                                epw_outcome *outcome) {
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "dispatch_receive", handle, EPW_STAGE_SENT, &lane);
    if (status != EPW_OK) return status;
    status = check_output(b, "dispatch_receive", lane->layout, out);
    if (status == EPW_OK) status = epw_outcome_check(b, "dispatch_receive", outcome);
    if (status != EPW_OK) {
        epw_lane_unlock(b, lane);
        return status;
    }
    return b->engine->dispatch_receive(b, lane, out, outcome);
}
