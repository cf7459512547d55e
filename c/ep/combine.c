/* The public calls of combine: the checks that do not depend on the engine. */
#include "ep/buffer.h"

static epw_status check_input(const epw_buffer *b, const epw_lane *lane, const epw_combine_input *in) {
    epw_where where = epw_buffer_where(b, "combine");
    if (in == NULL) return epw_fail(EPW_ERR_INVALID, where, "input is NULL");
    if (in->size != sizeof *in) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "input.size is %u, this library's is %zu: use EPW_COMBINE_INPUT_INIT", in->size,
                        sizeof *in);
    }
    if (in->mode > EPW_COMBINE_ORDERED)
        return epw_fail(EPW_ERR_INVALID, where,
                        "mode is %u, must be EPW_COMBINE_RANK_REDUCED or EPW_COMBINE_ORDERED", in->mode);
    bool ordered = in->mode == EPW_COMBINE_ORDERED;
    if (ordered && !b->config.ordered) {
        return epw_fail(EPW_ERR_INVALID, where, "ordered combine was not planned: set config.ordered");
    }
    if (ordered && lane->layout != EPW_EXPERT_MAJOR) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "ordered combine needs a row per expert: dispatch expert-major");
    }
    bool weighted_here = lane->input.topk_weights != NULL;
    if (!ordered && lane->layout == EPW_EXPERT_MAJOR && !weighted_here) {
        return epw_fail(
            EPW_ERR_INVALID, where,
            "rank-reduced combine applies the weights at the expert's rank: give topk_weights to dispatch");
    }
    if (ordered && !weighted_here && in->topk_weights == NULL && lane->tokens > 0) {
        return epw_fail(EPW_ERR_INVALID, where, "topk_weights is NULL and dispatch had none");
    }
    if (in->expert_out == NULL && lane->layout == EPW_EXPERT_MAJOR && !b->config.zero_copy) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "expert_out is NULL, and the plan has no zero-copy area: set config.zero_copy");
    }
    if (!ordered && in->topk_weights != NULL) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "topk_weights are given, which rank-reduced combine does not apply: give them to "
                        "dispatch, or use EPW_COMBINE_ORDERED");
    }
    return epw_deadline_check(b, "combine", in->deadline_ns);
}

static epw_status check_output(const epw_buffer *b, const epw_lane *lane, const char *op,
                               const epw_combine_output *out) {
    epw_where where = epw_buffer_where(b, op);
    if (out == NULL) return epw_fail(EPW_ERR_INVALID, where, "output is NULL");
    if (out->size != sizeof *out) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "output.size is %u, this library's is %zu: use EPW_COMBINE_OUTPUT_INIT", out->size,
                        sizeof *out);
    }
    if (out->out == NULL && lane->tokens > 0) return epw_fail(EPW_ERR_INVALID, where, "output.out is NULL");
    if (lane->tokens > 0 && (uintptr_t)out->out % 16 != 0) {
        return epw_fail(EPW_ERR_INVALID, where, "output.out must be aligned to 16 bytes");
    }
    return EPW_OK;
}

epw_status epw_combine(epw_buffer *b, epw_handle handle, const epw_combine_input *in,
                       const epw_combine_output *out, epw_outcome *outcome) {
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "combine", handle, EPW_STAGE_DISPATCHED, &lane);
    if (status != EPW_OK) return status;
    status = check_input(b, lane, in);
    if (status == EPW_OK && out != NULL) status = check_output(b, lane, "combine", out);
    if (status == EPW_OK) status = epw_outcome_check(b, "combine", outcome);
    if (status != EPW_OK) {
        epw_lane_unlock(b, lane);
        return status;
    }
    return b->engine->combine(b, lane, in, out, outcome);
}

epw_status epw_combine_receive(epw_buffer *b, epw_handle handle, const epw_combine_output *out,
                               epw_outcome *outcome) {
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "combine_receive", handle, EPW_STAGE_ANSWERED, &lane);
    if (status != EPW_OK) return status;
    status = check_output(b, lane, "combine_receive", out);
    if (status == EPW_OK) status = epw_outcome_check(b, "combine_receive", outcome);
    if (status != EPW_OK) {
        epw_lane_unlock(b, lane);
        return status;
    }
    return b->engine->combine_receive(b, lane, out, outcome);
}
