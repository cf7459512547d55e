/* Combine: its checks, and how the host carries it out: answer the rows that came, collect the answers to
 * one's own, sum them. */
#include "ep/internal.h"

#include "base/clock.h"
#include "base/status.h"

#define CHUNK 8u

/* ---- answering ---- */

typedef struct answer_job {
    epw_buffer *b;
    epw_lane *lane;
    uint32_t source, rows;
    const unsigned char *expert_out; /* NULL: rank-major rows in place */
    uint64_t stride;                 /* of expert_out */
} answer_job;

static void answer_row(const answer_job *job, uint32_t i) {
    epw_buffer *b = job->b;
    const epw_lane *lane = job->lane;
    const epw_numerics *numerics = b->numerics;
    uint32_t index = epw_lane_index(b, lane), rank = b->config.rank;
    uint64_t at = epw_row_at(b, job->source, i);
    unsigned char *answer = b->routes[job->source].window + epw_answer_offset(&b->layout, index, rank, i, 0);
    if (lane->layout == EPW_RANK_MAJOR) {
        const unsigned char *row = epw_slot_here(b, index, job->source, i) + b->layout.header_bytes;
        if (job->expert_out != NULL) row = job->expert_out + at * job->stride;
        numerics->copy_stream(answer, row, b->layout.row_bytes);
        return;
    }
    const epw_place *places = epw_places(b, lane, at);
    const void *rows[EPW_MAX_TOPK];
    float weights[EPW_MAX_TOPK];
    uint32_t n = 0;
    for (uint32_t j = 0; j < b->config.topk; j++) {
        if (places[j].list == EPW_NO_PLACE) continue;
        rows[n] = job->expert_out + (places[j].list * b->layout.rows + places[j].row) * job->stride;
        weights[n++] = places[j].weight;
    }
    if (lane->mode == EPW_COMBINE_RANK_REDUCED) {
        numerics->reduce(b->config.combine_dtype, rows, weights, n, b->config.hidden, answer, 1);
        return;
    }
    for (uint32_t a = 0; a < n; a++) {
        numerics->copy_stream(answer + a * b->layout.row_bytes, rows[a], b->layout.row_bytes);
    }
}

static void answer_chunk(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const answer_job *job = context;
    uint32_t end = (item + 1) * CHUNK < job->rows ? (item + 1) * CHUNK : job->rows;
    for (uint32_t i = item * CHUNK; i < end; i++) answer_row(job, i);
}

static void answer_source(epw_buffer *b, epw_lane *lane, uint32_t source, const epw_combine_input *in) {
    uint32_t index = epw_lane_index(b, lane);
    answer_job job = {b, lane, source, lane->received[source], in->expert_out, b->layout.row_bytes};
    if (lane->layout == EPW_EXPERT_MAJOR && job.expert_out == NULL) {
        job.expert_out = b->routes[b->config.rank].window + epw_zero_copy_offset(&b->layout, index);
    }
    epw_pool_run(b->pool, answer_chunk, &job, (job.rows + CHUNK - 1) / CHUNK);
    uint32_t mode = lane->mode == EPW_COMBINE_ORDERED ? EPW_ANSWER_ORDERED : 0;
    epw_post(b, source, &epw_line_at(b, source)->lanes[index].user[1],
             epw_word(b->epoch, lane->op, job.rows | mode));
}

/* Every present source gets its answer and word, beginning after this rank so that not all write to one at a
 * time. */
static void answer_all(epw_buffer *b, epw_lane *lane, const epw_combine_input *in) {
    uint32_t ranks = b->config.ranks;
    uint64_t now = epw_now_ns();
    for (uint32_t i = 1; i <= ranks; i++) {
        uint32_t source = (b->config.rank + i) % ranks;
        if (!epw_mask_has(&lane->present, source)) continue;
        if (epw_suspected(b, source)) {
            epw_mask_drop(&lane->present, source);
            epw_lane_lose(b, lane, EPW_PHASE_COMBINE_SEND, EPW_CAUSE_SUSPECTED, source, now);
        } else {
            answer_source(b, lane, source, in);
        }
    }
}

/* ---- collecting ---- */

typedef struct sum_job {
    epw_buffer *b;
    epw_lane *lane;
} sum_job;

/* The answers to token t that have come, in the order in which they are summed. */
static uint32_t gather(const sum_job *job, uint32_t t, const void **rows, float *weights) {
    const epw_buffer *b = job->b;
    const epw_lane *lane = job->lane;
    uint32_t index = epw_lane_index(b, lane), width = b->config.topk, local = b->layout.local_experts;
    const int32_t *ids = lane->ids + (size_t)t * width;
    const uint32_t *sent_row = lane->sent_row + (size_t)t * width;
    const unsigned char *window = b->routes[b->config.rank].window;
    uint32_t from[EPW_MAX_TOPK], n = 0;
    for (uint32_t j = 0; j < width; j++) {
        if (ids[j] < 0) continue;
        uint32_t rank = (uint32_t)ids[j] / local, before = 0;
        if (!epw_mask_has(&lane->answered, rank)) continue;
        for (uint32_t i = 0; i < j; i++) before += ids[i] >= 0 && (uint32_t)ids[i] / local == rank;
        if (lane->mode == EPW_COMBINE_ORDERED) {
            rows[n] = window + epw_answer_offset(&b->layout, index, rank, sent_row[j], before);
            weights[n++] = lane->weights[(size_t)t * width + j];
            continue;
        }
        if (before > 0) continue;
        uint32_t at = n++; /* by ascending rank */
        for (; at > 0 && from[at - 1] > rank; at--) {
            from[at] = from[at - 1];
            rows[at] = rows[at - 1];
        }
        from[at] = rank;
        rows[at] = window + epw_answer_offset(&b->layout, index, rank, sent_row[j], 0);
    }
    return n;
}

static void sum_chunk(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const sum_job *job = context;
    const epw_buffer *b = job->b;
    const epw_lane *lane = job->lane;
    const epw_combine_output *out = &lane->combine_output;
    uint32_t end = (item + 1) * CHUNK < lane->tokens ? (item + 1) * CHUNK : lane->tokens;
    for (uint32_t t = item * CHUNK; t < end; t++) {
        const void *rows[EPW_MAX_TOPK];
        float weights[EPW_MAX_TOPK];
        uint32_t n = gather(job, t, rows, weights);
        unsigned char *to = (unsigned char *)out->out + t * b->layout.row_bytes;
        const float *by = lane->mode == EPW_COMBINE_ORDERED ? weights : NULL;
        b->numerics->reduce(b->config.combine_dtype, rows, by, n, b->config.hidden, to, 1);
        if (out->contributions == NULL) continue;
        uint16_t arrived = 0, expected = 0;
        for (uint32_t j = 0; j < b->config.topk; j++) {
            int32_t id = lane->ids[(size_t)t * b->config.topk + j];
            expected += id >= 0;
            arrived += id >= 0 && epw_mask_has(&lane->answered, (uint32_t)id / b->layout.local_experts);
        }
        out->contributions[2 * t] = arrived;
        out->contributions[2 * t + 1] = expected;
    }
}

/* Is the answer whole, and of the mode that this rank expects? */
static uint32_t answer_cause(const epw_lane *lane, uint32_t peer, uint32_t value) {
    uint32_t rows = lane->mode_bit ? value & ~EPW_ANSWER_ORDERED : value;
    if (rows != lane->sent[peer]) return rows < lane->sent[peer] ? EPW_CAUSE_PARTIAL : EPW_CAUSE_FORMAT;
    bool ordered = lane->mode_bit && (value & EPW_ANSWER_ORDERED);
    return rows == 0 || ordered == (lane->mode == EPW_COMBINE_ORDERED) ? EPW_CAUSE_NONE : EPW_CAUSE_FORMAT;
}

epw_status epw_combine_receive_step(epw_buffer *b, epw_lane *lane) {
    uint64_t now = epw_now_ns();
    uint64_t *wait_ns = lane->combine_output.wait_ns;
    EPW_MASK_FOR(peer, &lane->awaited, b->config.ranks) {
        uint32_t value, cause = EPW_CAUSE_NONE;
        epw_verdict verdict = epw_wait_judge(b, lane, EPW_AWAIT_ANSWER, lane->op, peer, now, &value, &cause);
        if (verdict == EPW_WAITING) continue;
        if (verdict == EPW_ARRIVED) cause = answer_cause(lane, peer, value);
        if (cause == EPW_CAUSE_NONE) epw_mask_add(&lane->answered, peer);
        if (cause != EPW_CAUSE_NONE) epw_lane_lose(b, lane, EPW_PHASE_COMBINE_RECEIVE, cause, peer, now);
        epw_mask_drop(&lane->awaited, peer);
        if (wait_ns != NULL) wait_ns[peer] += now - lane->wait.started;
    }
    if (!epw_mask_empty(&lane->awaited)) {
        epw_wait_pause(b, lane, EPW_AWAIT_ANSWER, lane->op, &lane->awaited, now);
        return EPW_PENDING;
    }
    sum_job job = {b, lane};
    epw_pool_run(b->pool, sum_chunk, &job, (lane->tokens + CHUNK - 1) / CHUNK);
    return EPW_OK;
}

/* ---- calls ---- */

static epw_status check_input(const epw_buffer *b, const epw_lane *lane, const epw_combine_input *in) {
    epw_where where = epw_at(b, "combine");
    if (in == NULL) return epw_fail(EPW_ERR_INVALID, where, "input is NULL");
    if (in->size != sizeof *in) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "input.size is %u, this library's is %zu: use EPW_COMBINE_INPUT_INIT", in->size,
                        sizeof *in);
    }
    if (in->mode > EPW_COMBINE_ORDERED) return epw_fail(EPW_ERR_INVALID, where, "mode is %u", in->mode);
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
    if (in->deadline_ns != 0 &&
        (in->deadline_ns < b->config.deadline_ns || in->deadline_ns > EPW_MAX_DEADLINE_NS)) {
        return epw_fail(EPW_ERR_LIMIT, where,
                        "deadline_ns is %llu, a call may only lengthen the buffer's %llu, to a day at most",
                        (unsigned long long)in->deadline_ns, (unsigned long long)b->config.deadline_ns);
    }
    return EPW_OK;
}

static epw_status check_output(const epw_buffer *b, const epw_lane *lane, const char *op,
                               const epw_combine_output *out) {
    epw_where where = epw_at(b, op);
    if (out == NULL) return epw_fail(EPW_ERR_INVALID, where, "output is NULL");
    if (out->size != sizeof *out) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "output.size is %u, this library's is %zu: use EPW_COMBINE_OUTPUT_INIT", out->size,
                        sizeof *out);
    }
    if (out->out == NULL && lane->tokens > 0) return epw_fail(EPW_ERR_INVALID, where, "output.out is NULL");
    if ((uintptr_t)out->out % 16 != 0) {
        return epw_fail(EPW_ERR_INVALID, where, "output.out must be aligned to 16 bytes");
    }
    return EPW_OK;
}

static void begin_collecting(epw_lane *lane, const epw_combine_output *out) {
    lane->combine_output = *out;
    lane->awaited = lane->present;
    lane->stage = EPW_STAGE_COLLECTING;
}

epw_status epw_host_combine(epw_buffer *b, epw_lane *lane, const epw_combine_input *in,
                            const epw_combine_output *out, epw_outcome *outcome) {
    lane->mode = in->mode;
    lane->mode_bit = b->config.ordered != 0;
    lane->nonblocking = in->nonblocking != 0;
    lane->deadline_ns = in->deadline_ns ? in->deadline_ns : b->config.deadline_ns;
    if (in->mode == EPW_COMBINE_ORDERED && in->topk_weights != NULL) {
        for (uint32_t t = 0; t < lane->tokens; t++) {
            memcpy(lane->weights + (size_t)t * b->config.topk, in->topk_weights + (size_t)t * lane->topk,
                   lane->topk * sizeof(float));
        }
    }
    answer_all(b, lane, in);
    lane->stage = EPW_STAGE_ANSWERED;
    if (out != NULL) begin_collecting(lane, out);
    return epw_lane_run(b, lane, outcome);
}

epw_status epw_host_combine_receive(epw_buffer *b, epw_lane *lane, const epw_combine_output *out,
                                    epw_outcome *outcome) {
    lane->nonblocking = out->nonblocking != 0;
    begin_collecting(lane, out);
    return epw_lane_run(b, lane, outcome);
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
        pthread_mutex_unlock(&lane->lock);
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
        pthread_mutex_unlock(&lane->lock);
        return status;
    }
    return b->engine->combine_receive(b, lane, out, outcome);
}
