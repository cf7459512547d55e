/* A lane: its memory, its stages, and the calls that work on any of them. */
#include "ep/internal.h"

#include "base/status.h"

/* ---- memory ---- */

/* Takes `bytes` of the arena: an address in it, or only the sum where there is no arena yet. */
static void *take(unsigned char *arena, uint64_t *used, uint64_t bytes) {
    void *at = arena ? arena + *used : NULL;
    *used += epw_align(bytes, 64);
    return at;
}

uint64_t epw_lane_carve(const epw_config *c, epw_lane *lane, void *arena) {
    uint64_t used = 0;
    uint64_t entries = (uint64_t)c->max_tokens * c->topk, local = c->experts / c->ranks;
    uint64_t rows = (uint64_t)c->ranks * c->max_tokens;
    lane->ids = take(arena, &used, entries * sizeof(int32_t));
    lane->weights = take(arena, &used, entries * sizeof(float));
    lane->sent_row = take(arena, &used, entries * sizeof(uint32_t));
    lane->sent_index = take(arena, &used, entries * sizeof(uint32_t));
    lane->sent_counts = take(arena, &used, c->experts * sizeof(uint32_t));
    lane->sent = take(arena, &used, c->ranks * sizeof(uint32_t));
    lane->received = take(arena, &used, c->ranks * sizeof(uint32_t));
    lane->first_row = take(arena, &used, local * sizeof(uint32_t));
    lane->expert_fill = take(arena, &used, local * sizeof(uint32_t));
    lane->row_token = take(arena, &used, rows * sizeof(uint32_t));
    lane->places = take(arena, &used, rows * c->topk * sizeof(epw_place));
    lane->wait.clock = take(arena, &used, c->ranks * sizeof(uint64_t));
    lane->wait.heard = take(arena, &used, (uint64_t)c->ranks * EPW_MAX_LANES * sizeof(uint64_t));
    return used;
}

/* ---- stages ---- */

static epw_status step(epw_buffer *b, epw_lane *lane) {
    epw_status status = EPW_OK;
    if (lane->paying) status = epw_debt_step(b, lane);
    if (status != EPW_OK) return status;
    if (lane->stage == EPW_STAGE_SENDING) {
        if (!lane->waiting) epw_wait_begin(b, lane, lane->deadline_ns);
        status = epw_dispatch_send_step(b, lane);
        if (status != EPW_OK) return status;
        epw_wait_end(b, lane);
        lane->stage = EPW_STAGE_SENT;
        if (lane->receive_too) epw_dispatch_begin_receiving(b, lane, &lane->dispatch_output);
    }
    if (lane->stage == EPW_STAGE_RECEIVING) {
        if (!lane->waiting) epw_wait_begin(b, lane, lane->deadline_ns);
        status = epw_dispatch_receive_step(b, lane);
        if (status != EPW_OK) return status;
        epw_wait_end(b, lane);
        lane->stage = EPW_STAGE_DISPATCHED;
    }
    if (lane->stage == EPW_STAGE_COLLECTING) {
        if (!lane->waiting) epw_wait_begin(b, lane, lane->deadline_ns);
        status = epw_combine_receive_step(b, lane);
        if (status != EPW_OK) return status;
        epw_wait_end(b, lane);
        lane->stage = EPW_STAGE_FREE;
    }
    return EPW_OK;
}

static void fill_outcome(const epw_lane *lane, epw_outcome *outcome) {
    if (outcome == NULL) return;
    outcome->missing = lane->missing;
    outcome->degraded = !epw_mask_empty(&lane->missing);
    outcome->record = lane->record;
}

epw_status epw_lane_run(epw_buffer *b, epw_lane *lane, epw_outcome *outcome) {
    uint64_t generation = lane->generation;
    epw_status status = step(b, lane);
    while (status == EPW_PENDING && !lane->nonblocking) {
        pthread_mutex_unlock(&lane->lock);
        epw_wait_sleep(b, lane, UINT64_MAX);
        pthread_mutex_lock(&lane->lock);
        if (lane->generation != generation || lane->stage == EPW_STAGE_FREE) {
            status = epw_fail(EPW_ERR_STATE, epw_at(b, "wait"), "the handle was released by another thread");
        } else {
            status = step(b, lane);
        }
    }
    if (status == EPW_OK) fill_outcome(lane, outcome);
    pthread_mutex_unlock(&lane->lock);
    return status;
}

epw_status epw_outcome_check(const epw_buffer *b, const char *op, const epw_outcome *outcome) {
    if (outcome == NULL || outcome->size == sizeof *outcome) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, epw_at(b, op),
                    "outcome.size is %u, this library's is %zu: use EPW_OUTCOME_INIT", outcome->size,
                    sizeof *outcome);
}

void epw_lane_take(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in, const epw_row_format *format,
                   epw_handle *handle) {
    uint32_t index = epw_lane_index(b, lane);
    lane->first = lane->op == 0 && !lane->wrapped;
    lane->op = epw_next_op(lane->op);
    if (lane->op == 0) lane->wrapped = true;
    lane->generation = atomic_fetch_add_explicit(&b->generation, 1, memory_order_relaxed) + 1;
    *handle = lane->generation << 1 | index;
    if (in->lane < 0)
        atomic_store_explicit(&b->next_lane, (index + 1) % b->config.lanes, memory_order_relaxed);
    lane->input = *in;
    lane->format = *format;
    lane->layout = in->layout;
    lane->tokens = in->tokens;
    lane->topk = in->topk;
    lane->deadline_ns = in->deadline_ns ? in->deadline_ns : b->config.deadline_ns;
}

/* ---- calls on any stage ---- */

static const char *stage_text(epw_stage stage) {
    switch (stage) {
    case EPW_STAGE_SENDING:
        return "its dispatch is still sending";
    case EPW_STAGE_SENT:
        return "its dispatch has not been received";
    case EPW_STAGE_RECEIVING:
        return "its dispatch is still receiving";
    case EPW_STAGE_DISPATCHED:
        return "its dispatch has been received, combine comes next";
    case EPW_STAGE_ANSWERED:
        return "its combine has sent but not received";
    case EPW_STAGE_COLLECTING:
        return "its combine is still receiving";
    default:
        return "it is free";
    }
}

epw_status epw_lane_find(epw_buffer *b, const char *op, epw_handle handle, epw_stage stage, epw_lane **out) {
    if (b == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){op, -1, -1}, "buffer is NULL");
    uint32_t index = (uint32_t)(handle & 1);
    epw_lane *lane = &b->lanes[index];
    if (index >= b->config.lanes)
        return epw_fail(EPW_ERR_INVALID, epw_at(b, op), "not a handle of this buffer");
    pthread_mutex_lock(&lane->lock);
    epw_status status = EPW_OK;
    if (lane->stage == EPW_STAGE_FREE || lane->generation != handle >> 1) {
        status = epw_fail(EPW_ERR_STATE, epw_at(b, op),
                          "the handle has been consumed, or is not one of this buffer");
    } else if (stage != EPW_STAGE_ANY && lane->stage != stage) {
        status = epw_fail(EPW_ERR_STATE, epw_at(b, op), "not possible with this handle now: %s",
                          stage_text(lane->stage));
    }
    if (status != EPW_OK) {
        pthread_mutex_unlock(&lane->lock);
        return status;
    }
    *out = lane;
    return EPW_OK;
}

static bool running(epw_stage stage) {
    return stage == EPW_STAGE_SENDING || stage == EPW_STAGE_RECEIVING || stage == EPW_STAGE_COLLECTING;
}

epw_status epw_host_poll(epw_buffer *b, epw_handle handle, epw_outcome *outcome) {
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "poll", handle, EPW_STAGE_ANY, &lane);
    if (status != EPW_OK) return status;
    status = epw_outcome_check(b, "poll", outcome);
    if (status == EPW_OK && !running(lane->stage)) {
        status = epw_fail(EPW_ERR_STATE, epw_at(b, "poll"), "no operation runs: %s", stage_text(lane->stage));
    }
    if (status == EPW_OK) status = step(b, lane);
    if (status == EPW_OK) fill_outcome(lane, outcome);
    pthread_mutex_unlock(&lane->lock);
    return status;
}

/* What an idle lane's receiving half will wait for. */
static bool next_wait(const epw_buffer *b, const epw_lane *lane, epw_awaiting *what, epw_mask *awaited) {
    if (lane->stage == EPW_STAGE_ANSWERED) {
        *what = EPW_AWAIT_ANSWER;
        *awaited = lane->present;
        return true;
    }
    *what = EPW_AWAIT_ROWS;
    *awaited = b->active;
    epw_mask_remove(awaited, &lane->missing);
    return lane->stage == EPW_STAGE_SENT;
}

epw_status epw_host_ready(epw_buffer *b, epw_handle handle) {
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "ready", handle, EPW_STAGE_ANY, &lane);
    if (status != EPW_OK) return status;
    epw_awaiting what;
    epw_mask awaited;
    if (!next_wait(b, lane, &what, &awaited)) {
        status = epw_fail(EPW_ERR_STATE, epw_at(b, "ready"), "no receiving half is due: %s",
                          stage_text(lane->stage));
    } else if (!epw_wait_over(b, lane, what, lane->op, &awaited)) {
        status = EPW_PENDING;
    }
    pthread_mutex_unlock(&lane->lock);
    return status;
}

epw_status epw_host_await(epw_buffer *b, epw_handle handle, uint64_t timeout_ns) {
    epw_lane *lane = NULL;
    epw_status status = epw_lane_find(b, "await", handle, EPW_STAGE_ANY, &lane);
    if (status != EPW_OK) return status;
    pthread_mutex_unlock(&lane->lock);
    epw_wait_sleep(b, lane, timeout_ns);
    return EPW_OK;
}

static epw_status check_buffer(const epw_buffer *b, const char *op) {
    if (b != NULL) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, (epw_where){op, -1, -1}, "buffer is NULL");
}

epw_status epw_poll(epw_buffer *b, epw_handle handle, epw_outcome *outcome) {
    epw_status status = check_buffer(b, "poll");
    return status == EPW_OK ? b->engine->poll(b, handle, outcome) : status;
}

epw_status epw_ready(epw_buffer *b, epw_handle handle) {
    epw_status status = check_buffer(b, "ready");
    return status == EPW_OK ? b->engine->ready(b, handle) : status;
}

epw_status epw_await(epw_buffer *b, epw_handle handle, uint64_t timeout_ns) {
    epw_status status = check_buffer(b, "await");
    return status == EPW_OK ? b->engine->await(b, handle, timeout_ns) : status;
}

static epw_status check_view(const epw_buffer *b, const char *op, const epw_rows_view *view) {
    if (view != NULL && view->size == sizeof *view) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, epw_at(b, op),
                    "view is NULL or its size is not %zu: use EPW_ROWS_VIEW_INIT", sizeof *view);
}

/* The lane's dispatch slots as rows. */
static epw_rows_view slot_rows(const epw_buffer *b, const epw_lane *lane) {
    unsigned char *rows = epw_slot_here(b, epw_lane_index(b, lane), 0, 0) + b->layout.header_bytes;
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
        status = epw_fail(EPW_ERR_STATE, epw_at(b, "dispatched_rows"), "the dispatch was expert-major");
    }
    if (status == EPW_OK) *view = slot_rows(b, lane);
    pthread_mutex_unlock(&lane->lock);
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
        status = epw_fail(EPW_ERR_STATE, epw_at(b, op), "expert-major needs config.zero_copy in the plan");
    } else if (status == EPW_OK) {
        uint64_t offset = epw_zero_copy_offset(&b->layout, epw_lane_index(b, lane));
        *view = (epw_rows_view){.size = sizeof *view,
                                .stride = b->layout.row_bytes,
                                .rows = b->routes[b->config.rank].window + offset,
                                .source_counts = lane->received};
    }
    pthread_mutex_unlock(&lane->lock);
    return status;
}

epw_status epw_stream_wait(epw_buffer *b, epw_handle handle, void *stream) {
    epw_status status = check_buffer(b, "stream_wait");
    return status == EPW_OK ? b->engine->stream_wait(b, handle, stream) : status;
}

epw_status epw_outcome_read(epw_buffer *b, epw_handle handle, epw_outcome *outcome) {
    epw_status status = check_buffer(b, "outcome_read");
    return status == EPW_OK ? b->engine->outcome_read(b, handle, outcome) : status;
}

epw_status epw_take_errors(epw_buffer *b, epw_error_record *records, uint32_t capacity, uint32_t *count,
                           uint64_t *lost) {
    if (b == NULL || records == NULL || count == NULL) {
        return epw_fail(EPW_ERR_INVALID, (epw_where){"take_errors", -1, -1},
                        "buffer, records or count is NULL");
    }
    return b->engine->take_errors(b, records, capacity, count, lost);
}
