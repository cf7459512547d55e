/* Dispatch: its checks, and how the host sends: check the routing, send rows as permissions come. receive.c
 * has the other half. */
#include "ep/internal.h"

#include "base/clock.h"
#include "base/status.h"

/* Tokens or rows that a thread takes at a time. */
#define CHUNK 8u

/* How long sending waits for the permissions of all peers, so that it reads each token once, before it begins
 * with those that it has. */
#define SEND_GRACE_NS UINT64_C(1000000)

/* ---- routing ---- */

/* Entry j of token t as a wide integer; "not routed" of every type is -1. */
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

/* Copies ids and weights into the lane, padded to config.topk with -1, and refuses what is out of range or
 * repeated. */
static epw_status read_routing(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in) {
    epw_where where = epw_at(b, "dispatch");
    uint32_t width = b->config.topk;
    for (uint32_t t = 0; t < in->tokens; t++) {
        int32_t *ids = lane->ids + (size_t)t * width;
        float *weights = lane->weights + (size_t)t * width;
        for (uint32_t j = 0; j < width; j++) {
            ids[j] = -1;
            weights[j] = 0.0f;
            if (j >= in->topk) continue;
            int64_t id = read_id(in, t, j);
            if (id < -1 || id >= (int64_t)b->config.experts) {
                return epw_fail(EPW_ERR_INVALID, where, "topk_idx[%u][%u] is %lld, must be in [-1, %u)", t, j,
                                (long long)id, b->config.experts);
            }
            for (uint32_t i = 0; id >= 0 && i < j; i++) {
                if (ids[i] == id) {
                    return epw_fail(EPW_ERR_INVALID, where,
                                    "topk_idx[%u][%u] repeats expert %lld of column %u", t, j, (long long)id,
                                    i);
                }
            }
            ids[j] = (int32_t)id;
            if (in->topk_weights != NULL) weights[j] = in->topk_weights[(size_t)t * in->topk + j];
        }
    }
    return EPW_OK;
}

/* Numbers the rows that go to each rank of `targets`, one per distinct rank, and within each expert: by
 * token. */
static void number_rows(epw_buffer *b, epw_lane *lane, const epw_mask *targets) {
    uint32_t width = b->config.topk, local = b->layout.local_experts;
    memset(lane->sent, 0, b->config.ranks * sizeof lane->sent[0]);
    memset(lane->sent_counts, 0, b->config.experts * sizeof lane->sent_counts[0]);
    for (uint32_t t = 0; t < lane->tokens; t++) {
        const int32_t *ids = lane->ids + (size_t)t * width;
        uint32_t *rows = lane->sent_row + (size_t)t * width;
        for (uint32_t j = 0; j < width; j++) {
            rows[j] = EPW_NO_PLACE;
            if (ids[j] < 0) continue;
            uint32_t rank = (uint32_t)ids[j] / local;
            if (!epw_mask_has(targets, rank)) continue;
            lane->sent_index[(size_t)t * width + j] = lane->sent_counts[ids[j]]++;
            for (uint32_t i = 0; i < j && rows[j] == EPW_NO_PLACE; i++) {
                if (ids[i] >= 0 && (uint32_t)ids[i] / local == rank) rows[j] = rows[i];
            }
            if (rows[j] == EPW_NO_PLACE) rows[j] = lane->sent[rank]++;
        }
    }
}

/* ---- sending ---- */

typedef struct send_job {
    epw_buffer *b;
    epw_lane *lane;
    epw_mask ready; /* the peers served by this pass */
} send_job;

/* The token's payload and scales as they travel: in place where they can be copied as they are, else in
 * `scratch`. */
static const unsigned char *make_payload(const send_job *job, uint32_t t, unsigned char *scratch,
                                         size_t *bytes) {
    const epw_buffer *b = job->b;
    const epw_dispatch_input *in = &job->lane->input;
    const epw_row_format *format = &job->lane->format;
    uint64_t stride = in->x_stride ? in->x_stride : format->payload_bytes;
    if (in->payload != EPW_PAYLOAD_SAME && in->payload != EPW_PAYLOAD_OPAQUE && in->x_stride == 0) {
        stride = b->layout.row_bytes;
    }
    const unsigned char *x = (const unsigned char *)in->x + t * stride;
    *bytes = epw_align(format->payload_bytes + (uint64_t)format->scale_count * format->scale_bytes, 16);
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
        b->numerics->quantize(in->payload, b->config.dtype, x, b->config.hidden, scratch, scales);
    }
    return scratch;
}

static size_t make_header(const epw_buffer *b, const epw_lane *lane, uint32_t t, unsigned char *out) {
    epw_slot_header head = {.token = t, .format = lane->format.hash};
    memcpy(out, &head, sizeof head);
    size_t at = sizeof head, first = (size_t)t * b->config.topk;
    for (uint32_t j = 0; j < b->config.topk; j++, at += sizeof(epw_entry)) {
        epw_entry entry = {lane->ids[first + j], lane->weights[first + j]};
        memcpy(out + at, &entry, sizeof entry);
    }
    size_t indices = b->config.topk * sizeof lane->sent_index[0];
    memcpy(out + at, lane->sent_index + first, indices);
    at += indices;
    uint32_t sideband = lane->input.sideband_bytes;
    if (sideband > 0)
        memcpy(out + at, (const unsigned char *)lane->input.sideband + (size_t)t * sideband, sideband);
    return at + sideband;
}

static void send_token(const send_job *job, uint32_t t, uint32_t thread) {
    epw_buffer *b = job->b;
    epw_lane *lane = job->lane;
    uint32_t width = b->config.topk, index = epw_lane_index(b, lane);
    const int32_t *ids = lane->ids + (size_t)t * width;
    const uint32_t *rows = lane->sent_row + (size_t)t * width;
    unsigned char header[sizeof(epw_slot_header) + EPW_MAX_TOPK * (sizeof(epw_entry) + 4) + EPW_MAX_SIDEBAND];
    const unsigned char *payload = NULL;
    size_t header_bytes = 0, bytes = 0;
    for (uint32_t j = 0; j < width; j++) {
        if (rows[j] == EPW_NO_PLACE) continue;
        uint32_t rank = (uint32_t)ids[j] / b->layout.local_experts;
        bool again = false;
        for (uint32_t i = 0; i < j && !again; i++) {
            again = rows[i] != EPW_NO_PLACE && (uint32_t)ids[i] / b->layout.local_experts == rank;
        }
        if (again || !epw_mask_has(&job->ready, rank)) continue;
        if (payload == NULL) {
            payload = make_payload(job, t, b->scratch + thread * b->scratch_bytes, &bytes);
            header_bytes = make_header(b, lane, t, header);
        }
        unsigned char *slot = epw_slot_at(b, index, rank, rows[j]);
        memcpy(slot, header, header_bytes);
        if (rank == b->config.rank && lane->shortcut) continue;
        b->numerics->copy_stream(slot + b->layout.header_bytes, payload, bytes);
    }
}

static void send_chunk(void *context, uint32_t item, uint32_t thread) {
    const send_job *job = context;
    uint32_t end = (item + 1) * CHUNK < job->lane->tokens ? (item + 1) * CHUNK : job->lane->tokens;
    for (uint32_t t = item * CHUNK; t < end; t++) send_token(job, t, thread);
}

epw_status epw_dispatch_send_step(epw_buffer *b, epw_lane *lane) {
    uint64_t now = epw_now_ns();
    epw_awaiting what = epw_await_permission(lane->first);
    send_job job = {.b = b, .lane = lane};
    EPW_MASK_FOR(peer, &lane->awaited, b->config.ranks) {
        uint32_t value, cause;
        switch (epw_wait_judge(b, lane, what, lane->op, peer, now, &value, &cause)) {
        case EPW_ARRIVED:
            epw_mask_add(&job.ready, peer);
            break;
        case EPW_GONE:
            epw_lane_lose(b, lane, EPW_PHASE_DISPATCH_SEND, cause, peer, now);
            epw_mask_drop(&lane->awaited, peer);
            break;
        case EPW_WAITING:
            break;
        }
    }
    bool all = epw_mask_count(&job.ready) == epw_mask_count(&lane->awaited);
    if (!epw_mask_empty(&job.ready) && (all || now - lane->wait.started >= SEND_GRACE_NS)) {
        epw_pool_run(b->pool, send_chunk, &job, (lane->tokens + CHUNK - 1) / CHUNK);
        EPW_MASK_FOR(peer, &job.ready, b->config.ranks) {
            uint32_t index = epw_lane_index(b, lane), local = b->layout.local_experts;
            memcpy(b->routes[peer].window + epw_expert_counts_offset(&b->layout, index, b->config.rank),
                   lane->sent_counts + (size_t)peer * local, local * sizeof lane->sent_counts[0]);
            uint64_t *word = &epw_line_at(b, peer)->lanes[index].user[0];
            epw_post(b, peer, word, epw_word(b->epoch, lane->op, lane->sent[peer]));
            epw_mask_drop(&lane->awaited, peer);
        }
    }
    if (epw_mask_empty(&lane->awaited)) return EPW_OK;
    epw_wait_pause(b, lane, what, lane->op, &lane->awaited, now);
    return EPW_PENDING;
}

/* ---- calls ---- */

static epw_status check_input(const epw_buffer *b, const epw_dispatch_input *in, epw_row_format *format) {
    epw_where where = epw_at(b, "dispatch");
    if (in == NULL) return epw_fail(EPW_ERR_INVALID, where, "input is NULL");
    epw_status status = epw_row_format_make("dispatch", &b->config, in, format);
    if (status != EPW_OK) return status;
    if (in->tokens > b->config.max_tokens) {
        return epw_fail(EPW_ERR_LIMIT, where, "tokens is %u, the plan's max_tokens is %u", in->tokens,
                        b->config.max_tokens);
    }
    if (in->topk < 1 || in->topk > b->config.topk) {
        return epw_fail(EPW_ERR_LIMIT, where, "topk is %u, must be in [1, %u]", in->topk, b->config.topk);
    }
    if (in->idx_type > EPW_I64) return epw_fail(EPW_ERR_INVALID, where, "idx_type is %u", in->idx_type);
    if (in->layout > EPW_RANK_MAJOR) return epw_fail(EPW_ERR_INVALID, where, "layout is %u", in->layout);
    if (in->lane < -1 || in->lane >= (int32_t)b->config.lanes) {
        return epw_fail(EPW_ERR_LIMIT, where, "lane is %d, must be -1 or below %u", in->lane,
                        b->config.lanes);
    }
    if (in->deadline_ns != 0 &&
        (in->deadline_ns < b->config.deadline_ns || in->deadline_ns > EPW_MAX_DEADLINE_NS)) {
        return epw_fail(EPW_ERR_LIMIT, where,
                        "deadline_ns is %llu, a call may only lengthen the buffer's %llu, to a day at most",
                        (unsigned long long)in->deadline_ns, (unsigned long long)b->config.deadline_ns);
    }
    if (in->tokens == 0) return EPW_OK;
    const char *absent = in->x == NULL                                    ? "x"
                         : in->topk_idx == NULL                           ? "topk_idx"
                         : in->sideband_bytes > 0 && in->sideband == NULL ? "sideband"
                         : in->payload == EPW_PAYLOAD_OPAQUE && in->scale_count > 0 && in->scales == NULL
                             ? "scales"
                             : NULL;
    if (absent != NULL)
        return epw_fail(EPW_ERR_INVALID, where, "%s is NULL with %u tokens", absent, in->tokens);
    uint64_t row = in->payload == EPW_PAYLOAD_OPAQUE ? in->opaque_row_bytes : b->layout.row_bytes;
    if (in->x_stride != 0 && in->x_stride < row) {
        return epw_fail(EPW_ERR_INVALID, where, "x_stride is %llu bytes, a row has %llu",
                        (unsigned long long)in->x_stride, (unsigned long long)row);
    }
    return EPW_OK;
}

static epw_status check_output(const epw_buffer *b, const char *op, uint32_t layout,
                               const epw_dispatch_output *out) {
    epw_where where = epw_at(b, op);
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

/* Peers given up by earlier operations of this epoch take no part: they are missing from the start. */
static void choose_targets(epw_buffer *b, epw_lane *lane) {
    lane->awaited = b->active;
    uint64_t now = epw_now_ns();
    EPW_MASK_FOR(peer, &b->active, b->config.ranks) {
        if (!epw_suspected(b, peer)) continue;
        epw_mask_drop(&lane->awaited, peer);
        epw_lane_lose(b, lane, EPW_PHASE_DISPATCH_SEND, EPW_CAUSE_SUSPECTED, peer, now);
    }
}

epw_status epw_host_dispatch(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in,
                             const epw_row_format *format, const epw_dispatch_output *out, epw_handle *handle,
                             epw_outcome *outcome) {
    epw_status status = read_routing(b, lane, in);
    if (status != EPW_OK) {
        pthread_mutex_unlock(&lane->lock);
        return status;
    }
    epw_lane_take(b, lane, in, format, handle);
    lane->shortcut = out != NULL && in->layout == EPW_EXPERT_MAJOR && in->payload == EPW_PAYLOAD_SAME;
    lane->receive_too = out != NULL;
    lane->nonblocking = in->nonblocking != 0;
    if (out != NULL) lane->dispatch_output = *out;
    lane->record = (epw_error_record){0};
    epw_mask_clear(&lane->present);
    epw_mask_clear(&lane->answered);
    epw_mask_clear(&lane->missing);
    choose_targets(b, lane);
    number_rows(b, lane, &lane->awaited);
    lane->stage = EPW_STAGE_SENDING;
    return epw_lane_run(b, lane, outcome);
}

epw_status epw_host_dispatch_receive(epw_buffer *b, epw_lane *lane, const epw_dispatch_output *out,
                                     epw_outcome *outcome) {
    lane->nonblocking = out->nonblocking != 0;
    epw_dispatch_begin_receiving(b, lane, out);
    return epw_lane_run(b, lane, outcome);
}

epw_status epw_dispatch(epw_buffer *b, const epw_dispatch_input *in, const epw_dispatch_output *out,
                        epw_handle *handle, epw_outcome *outcome) {
    if (b == NULL || handle == NULL) {
        return epw_fail(EPW_ERR_INVALID, (epw_where){"dispatch", -1, -1}, "buffer or handle is NULL");
    }
    epw_where where = epw_at(b, "dispatch");
    epw_row_format format;
    epw_status status = check_input(b, in, &format);
    if (status == EPW_OK && out != NULL) status = check_output(b, "dispatch", in->layout, out);
    if (status == EPW_OK) status = epw_outcome_check(b, "dispatch", outcome);
    if (status != EPW_OK) return status;
    uint32_t index =
        in->lane >= 0 ? (uint32_t)in->lane : atomic_load_explicit(&b->next_lane, memory_order_relaxed);
    epw_lane *lane = &b->lanes[index];
    pthread_mutex_lock(&lane->lock);
    if (!epw_mask_has(&b->active, b->config.rank)) {
        status = epw_fail(EPW_ERR_STATE, where, "no membership yet: call epw_buffer_set_active first");
    } else if (lane->stage != EPW_STAGE_FREE) {
        status = epw_fail(EPW_ERR_STATE, where,
                          "lane %u is held by operation %u: combine or release its handle first (%u lanes)",
                          index, lane->op, b->config.lanes);
    }
    if (status != EPW_OK) {
        pthread_mutex_unlock(&lane->lock);
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
        pthread_mutex_unlock(&lane->lock);
        return status;
    }
    return b->engine->dispatch_receive(b, lane, out, outcome);
}
