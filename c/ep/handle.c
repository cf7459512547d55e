/* Handles: each names one dispatch on a lane, until its combine has been received or it is released; and the
 * calls that work on a handle in any stage. */
#include "ep/buffer.h"
#include "ep/input.h"
#include "peer/records.h"

/* Counted over all buffers of the process: no two handles are the same, so that one of another buffer is
 * recognised. */
static _Atomic uint64_t generations;

void epw_lane_take(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in, const epw_row_format *format,
                   epw_handle *handle) {
    uint32_t index = epw_lane_index(b, lane);
    lane->generation = atomic_fetch_add_explicit(&generations, 1, memory_order_relaxed) + 1;
    *handle = lane->generation << 1 | index;
    if (in->lane < 0)
        atomic_store_explicit(&b->next_lane, (index + 1) % b->config.lanes, memory_order_relaxed);
    lane->input = *in;
    lane->format = *format;
    lane->layout = in->layout;
    lane->tokens = in->tokens;
    lane->topk = in->topk;
}

void epw_lane_unlock(epw_buffer *b, epw_lane *lane) {
    pthread_mutex_unlock(&lane->lock);
    if (b->engine->unlocked != NULL) b->engine->unlocked(b);
}

const char *epw_stage_text(epw_stage stage) {
    switch (stage) {
    case EPW_STAGE_SENDING:
        return "its dispatch is still sending";
    case EPW_STAGE_SENT:
        return "its dispatch has not been received";
    case EPW_STAGE_RECEIVING:
        return "its dispatch is still receiving";
    case EPW_STAGE_DISPATCHED:
        return "its dispatch has been received, combine comes next";
    case EPW_STAGE_ANSWERING:
        return "its combine is still sending";
    case EPW_STAGE_ANSWERED:
        return "its combine has sent but not received";
    case EPW_STAGE_COLLECTING:
        return "its combine is still receiving";
    default:
        return "it is free";
    }
}

/* Whether the lane, which is locked, is not that of the handle any more. */
static bool is_gone(const epw_lane *lane, epw_handle handle) {
    return lane->machine.stage == EPW_STAGE_FREE || lane->generation != handle >> 1;
}

epw_status epw_lane_find(epw_buffer *b, const char *op, epw_handle handle, epw_stage stage, epw_lane **out) {
    epw_status status = epw_buffer_check(b, op);
    if (status != EPW_OK) return status;
    uint32_t index = (uint32_t)(handle & 1);
    epw_lane *lane = &b->lanes[index];
    if (index >= b->config.lanes)
        return epw_fail(EPW_ERR_INVALID, epw_buffer_where(b, op), "not a handle of this buffer");
    pthread_mutex_lock(&lane->lock);
    epw_stage now = lane->machine.stage;
    if (is_gone(lane, handle)) {
        status = epw_fail(EPW_ERR_STATE, epw_buffer_where(b, op),
                          "the handle has been consumed, or is not one of this buffer");
    } else if (stage != EPW_STAGE_ANY && now != stage) {
        status = epw_fail(EPW_ERR_STATE, epw_buffer_where(b, op), "not possible with this handle now: %s",
                          epw_stage_text(now));
    }
    if (status != EPW_OK) {
        epw_lane_unlock(b, lane);
        return status;
    }
    *out = lane;
    return EPW_OK;
}

epw_status epw_lane_try(epw_buffer *b, epw_handle handle, epw_lane **out) {
    uint32_t index = (uint32_t)(handle & 1);
    if (index >= b->config.lanes) return EPW_ERR_INVALID;
    epw_lane *lane = &b->lanes[index];
    if (pthread_mutex_trylock(&lane->lock) != 0) return EPW_PENDING;
    if (is_gone(lane, handle)) {
        epw_lane_unlock(b, lane);
        return EPW_ERR_STATE;
    }
    *out = lane;
    return EPW_OK;
}

/* ---- checks that several calls share ---- */

epw_status epw_buffer_check(const epw_buffer *b, const char *op) {
    if (b != NULL) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, (epw_where){op, -1, -1}, "buffer is NULL");
}

epw_status epw_outcome_check(const epw_buffer *b, const char *op, const epw_outcome *outcome) {
    if (outcome == NULL || outcome->size == sizeof *outcome) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, epw_buffer_where(b, op),
                    "outcome.size is %u, this library's is %zu: use EPW_OUTCOME_INIT", outcome->size,
                    sizeof *outcome);
}

epw_status epw_deadline_check(const epw_buffer *b, const char *op, uint64_t deadline_ns) {
    return epw_input_check_deadline(epw_buffer_where(b, op), &b->config, deadline_ns);
}

/* ---- continuing, waiting, giving up ---- */

epw_status epw_poll(epw_buffer *b, epw_handle handle, epw_outcome *outcome) {
    epw_status status = epw_buffer_check(b, "poll");
    return status == EPW_OK ? b->engine->poll(b, handle, outcome) : status;
}

epw_status epw_ready(epw_buffer *b, epw_handle handle) {
    epw_status status = epw_buffer_check(b, "ready");
    return status == EPW_OK ? b->engine->ready(b, handle) : status;
}

epw_status epw_await(epw_buffer *b, epw_handle handle, uint64_t timeout_ns) {
    epw_status status = epw_buffer_check(b, "await");
    return status == EPW_OK ? b->engine->await(b, handle, timeout_ns) : status;
}

void epw_buffer_look(epw_awaited *self, bool sleeps, uint64_t now) {
    epw_buffer *b = self->owner;
    b->engine->look(self, sleeps, now);
}

epw_status epw_buffer_tend(epw_buffer *b, epw_handle handle) {
    return b->engine->tend != NULL ? b->engine->tend(b, handle) : EPW_ERR_STATE;
}

epw_status epw_release(epw_buffer *b, epw_handle handle) {
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "release", handle, EPW_STAGE_ANY, &lane);
    return status == EPW_OK ? b->engine->release(b, lane, NULL) : status;
}

epw_status epw_release_on(epw_buffer *b, epw_handle handle, void *stream) {
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "release", handle, EPW_STAGE_ANY, &lane);
    return status == EPW_OK ? b->engine->release(b, lane, &stream) : status;
}

epw_status epw_stream_wait(epw_buffer *b, epw_handle handle, void *stream) {
    epw_status status = epw_buffer_check(b, "stream_wait");
    return status == EPW_OK ? b->engine->stream_wait(b, handle, stream) : status;
}

epw_status epw_outcome_read(epw_buffer *b, epw_handle handle, epw_outcome *outcome) {
    epw_status status = epw_buffer_check(b, "outcome_read");
    return status == EPW_OK ? b->engine->outcome_read(b, handle, outcome) : status;
}

epw_status epw_take_errors(epw_buffer *b, epw_error_record *records, size_t record_size, uint32_t capacity,
                           uint32_t *count, uint64_t *lost) {
    epw_status status = epw_buffer_check(b, "take_errors");
    if (status == EPW_OK)
        status = epw_records_check(records, record_size, count, epw_buffer_where(b, "take_errors"));
    if (status != EPW_OK) return status;
    return b->engine->take_errors(b, records, capacity, count, lost);
}

/* ---- rows in place ---- */

static epw_status check_view(const epw_buffer *b, const char *op, const epw_rows_view *view) {
    epw_where where = epw_buffer_where(b, op);
    if (view == NULL) return epw_fail(EPW_ERR_INVALID, where, "view is NULL");
    if (view->size == sizeof *view) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, where, "view.size is %u, this library's is %zu: use EPW_ROWS_VIEW_INIT",
                    view->size, sizeof *view);
}

/* The lane's dispatch slots as rows. */
static epw_rows_view slot_rows(const epw_buffer *b, const epw_lane *lane) {
    uint64_t first = epw_slot_offset(&b->layout, epw_lane_index(b, lane), 0, 0);
    unsigned char *rows = epw_peers_own(&b->peers) + first + b->layout.header_bytes;
    return (epw_rows_view){.size = sizeof(epw_rows_view),
                           .stride = b->layout.slot_bytes,
                           .rows = rows,
                           .source_counts = lane->received,
                           .scales = lane->format.scale_count ? rows + lane->format.payload_bytes : NULL};
}

epw_status epw_dispatched_rows(epw_buffer *b, epw_handle handle, epw_rows_view *view) {
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "dispatched_rows", handle, EPW_STAGE_DISPATCHED, &lane);
    if (status != EPW_OK) return status;
    status = check_view(b, "dispatched_rows", view);
    if (status == EPW_OK && lane->layout != EPW_RANK_MAJOR) {
        status = epw_fail(EPW_ERR_STATE, epw_buffer_where(b, "dispatched_rows"),
                          "the dispatch was expert-major: its rows are where output.rows is");
    }
    if (status == EPW_OK) *view = slot_rows(b, lane);
    epw_lane_unlock(b, lane);
    return status;
}

epw_status epw_next_combine_buffer(epw_buffer *b, epw_handle handle, epw_rows_view *view) {
    const char *op = "next_combine_buffer";
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, op, handle, EPW_STAGE_DISPATCHED, &lane);
    if (status != EPW_OK) return status;
    status = check_view(b, op, view);
    if (status == EPW_OK && lane->layout == EPW_RANK_MAJOR) {
        *view = slot_rows(b, lane);
        view->scales = NULL;
    } else if (status == EPW_OK && !b->config.zero_copy) {
        status = epw_fail(EPW_ERR_STATE, epw_buffer_where(b, op),
                          "expert-major needs config.zero_copy in the plan");
    } else if (status == EPW_OK) {
        uint64_t offset = epw_zero_copy_offset(&b->layout, epw_lane_index(b, lane));
        *view = (epw_rows_view){.size = sizeof *view,
                                .stride = b->layout.row_bytes,
                                .rows = epw_peers_own(&b->peers) + offset,
                                .source_counts = lane->received};
    }
    epw_lane_unlock(b, lane);
    return status;
}
