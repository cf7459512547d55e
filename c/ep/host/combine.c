/* Combine on the host: answers the rows that arrived, and sums the answers to this rank's own rows. */
#include "ep/host/host.h"

#include "base/clock.h"

#include <string.h>

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
    const epw_numerics *numerics = b->host->numerics;
    uint32_t index = epw_lane_index(b, lane), rank = b->config.rank;
    uint64_t at = epw_row_at(b, job->source, i);
    uint64_t offset = epw_answer_offset(&b->layout, index, rank, i, 0);
    unsigned char *answer = epw_answers_at(&b->peers, index, job->source, offset);
    if (lane->layout == EPW_RANK_MAJOR) {
        const unsigned char *row = epw_slot_here(b, index, job->source, i) + b->layout.header_bytes;
        if (job->expert_out != NULL) row = job->expert_out + at * job->stride;
        epw_copy_row(b, lane, answer, row, b->layout.row_bytes);
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
    if (lane->machine.mode == EPW_COMBINE_RANK_REDUCED) {
        numerics->reduce(b->config.combine_dtype, rows, weights, n, b->config.hidden, answer,
                         lane->host->streams);
        return;
    }
    for (uint32_t a = 0; a < n; a++) {
        epw_copy_row(b, lane, answer + a * b->layout.row_bytes, rows[a], b->layout.row_bytes);
    }
}

static void answer_chunk(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const answer_job *job = context;
    uint32_t end = (item + 1) * EPW_CHUNK < job->rows ? (item + 1) * EPW_CHUNK : job->rows;
    for (uint32_t i = item * EPW_CHUNK; i < end; i++) answer_row(job, i);
}

void epw_host_answer(epw_buffer *b, epw_lane *lane, uint32_t source) {
    const unsigned char *expert_out = lane->combine_input.expert_out;
    if (lane->layout == EPW_EXPERT_MAJOR && expert_out == NULL)
        expert_out = epw_peers_own(&b->peers) + epw_zero_copy_offset(&b->layout, epw_lane_index(b, lane));
    answer_job job = {b, lane, source, lane->received[source], expert_out, b->layout.row_bytes};
    epw_pool_run(b->host->pool, answer_chunk, &job, (job.rows + EPW_CHUNK - 1) / EPW_CHUNK);
}

uint32_t epw_host_answer_ranges(const epw_buffer *b, const epw_lane *lane, uint32_t peer, epw_range *ranges) {
    uint64_t row = b->layout.row_bytes, answers = b->layout.answers;
    bool ordered = lane->machine.mode == EPW_COMBINE_ORDERED;
    ranges[0] =
        (epw_range){.offset = epw_answer_offset(&b->layout, epw_lane_index(b, lane), b->config.rank, 0, 0),
                    .bytes = ordered ? row * answers : row,
                    .stride = row * answers,
                    .count = lane->received[peer]};
    return 1;
}

/* ---- collecting ---- */

typedef struct sum_job {
    epw_buffer *b;
    epw_lane *lane;
} sum_job;

/* The answers to token t that have arrived, in the order in which they are summed. */
static uint32_t gather(const sum_job *job, uint32_t t, const void **rows, float *weights) {
    const epw_buffer *b = job->b;
    const epw_lane *lane = job->lane;
    uint32_t index = epw_lane_index(b, lane), width = b->config.topk, local = b->layout.local_experts;
    const int32_t *ids = lane->host->ids + (size_t)t * width;
    const uint32_t *sent_row = lane->host->sent_row + (size_t)t * width;
    const unsigned char *window = epw_peers_own(&b->peers);
    uint32_t from[EPW_MAX_TOPK], n = 0;
    for (uint32_t j = 0; j < width; j++) {
        if (ids[j] < 0) continue;
        uint32_t rank = (uint32_t)ids[j] / local, before = 0;
        if (!epw_lane_has(&lane->machine, rank, EPW_PART_ANSWERED)) continue;
        for (uint32_t i = 0; i < j; i++) before += ids[i] >= 0 && (uint32_t)ids[i] / local == rank;
        if (lane->machine.mode == EPW_COMBINE_ORDERED) {
            rows[n] = window + epw_answer_offset(&b->layout, index, rank, sent_row[j], before);
            weights[n++] = lane->host->weights[(size_t)t * width + j];
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
    const epw_combine_output *out = &lane->host->combine_output;
    uint32_t end = (item + 1) * EPW_CHUNK < lane->tokens ? (item + 1) * EPW_CHUNK : lane->tokens;
    for (uint32_t t = item * EPW_CHUNK; t < end; t++) {
        const void *rows[EPW_MAX_TOPK];
        float weights[EPW_MAX_TOPK];
        uint32_t n = gather(job, t, rows, weights);
        unsigned char *to = (unsigned char *)out->out + t * b->layout.row_bytes;
        const float *by = lane->machine.mode == EPW_COMBINE_ORDERED ? weights : NULL;
        b->host->numerics->reduce(b->config.combine_dtype, rows, by, n, b->config.hidden, to,
                                  lane->host->streams);
        if (out->contributions == NULL) continue;
        uint16_t arrived = 0, expected = 0;
        for (uint32_t j = 0; j < b->config.topk; j++) {
            int32_t id = lane->host->ids[(size_t)t * b->config.topk + j];
            expected += id >= 0;
            arrived += id >= 0 && epw_lane_has(&lane->machine, (uint32_t)id / b->layout.local_experts,
                                               EPW_PART_ANSWERED);
        }
        out->contributions[2 * t] = arrived;
        out->contributions[2 * t + 1] = expected;
    }
}

/* The answers that rank `peer` owes for the rows that were sent there. */
static uint64_t answers_of(const epw_buffer *b, const epw_lane *lane, uint32_t peer) {
    if (lane->machine.mode != EPW_COMBINE_ORDERED) return lane->machine.peers[peer].sent;
    uint64_t answers = 0, local = b->layout.local_experts;
    for (uint32_t e = 0; e < local; e++) answers += lane->host->sent_counts[peer * local + e];
    return answers;
}

/* All answers of the combine are here. */
static void count_collected(epw_buffer *b, const epw_lane *lane) {
    epw_lane_traffic *traffic = &b->peers.traffic[epw_lane_index(b, lane)];
    for (uint32_t peer = 0; peer < b->config.ranks; peer++) {
        epw_exchanged *with = &traffic->with[peer];
        epw_count(&with->wait_ns, lane->machine.peers[peer].waited_ns);
        if (epw_lane_has(&lane->machine, peer, EPW_PART_ANSWERED))
            epw_count(&with->bytes_received, answers_of(b, lane, peer) * b->layout.row_bytes);
    }
    epw_count(&traffic->operations, 1);
}

void epw_host_sum(epw_buffer *b, epw_lane *lane) {
    uint64_t *wait_ns = lane->host->combine_output.wait_ns;
    for (uint32_t peer = 0; wait_ns != NULL && peer < b->config.ranks; peer++)
        epw_add_total(&wait_ns[peer], lane->machine.peers[peer].waited_ns);
    count_collected(b, lane);
    sum_job job = {b, lane};
    epw_pool_run(b->host->pool, sum_chunk, &job, (lane->tokens + EPW_CHUNK - 1) / EPW_CHUNK);
}

/* ---- calls ---- */

epw_status epw_host_combine(epw_buffer *b, epw_lane *lane, const epw_combine_input *in,
                            const epw_combine_output *out, epw_outcome *outcome) {
    uint64_t deadline_ns = in->deadline_ns ? in->deadline_ns : b->config.deadline_ns;
    lane->combine_input = *in;
    lane->host->nonblocking = in->nonblocking != 0;
    if (out != NULL) lane->host->combine_output = *out;
    if (in->mode == EPW_COMBINE_ORDERED && in->topk_weights != NULL) {
        for (uint32_t t = 0; t < lane->tokens; t++) {
            memcpy(lane->host->weights + (size_t)t * b->config.topk,
                   in->topk_weights + (size_t)t * lane->topk, lane->topk * sizeof(float));
        }
    }
    epw_lane_begin_combine(&lane->machine, deadline_ns, in->mode, out != NULL);
    return epw_host_run(b, lane, outcome);
}

epw_status epw_host_combine_receive(epw_buffer *b, epw_lane *lane, const epw_combine_output *out,
                                    epw_outcome *outcome) {
    lane->host->nonblocking = out->nonblocking != 0;
    lane->host->combine_output = *out;
    epw_lane_begin_collect(&lane->machine, epw_now_ns());
    return epw_host_run(b, lane, outcome);
}
