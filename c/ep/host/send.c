/* The sending half of a dispatch on the host: checks the routing, numbers the rows, and writes them into the
 * slots of the ranks that own the experts. */
#include "ep/host/host.h"

#include "base/clock.h"
#include "ep/input.h"
#include "peer/remote.h"

#include <string.h>

/* ---- routing ---- */

static epw_status read_routing(const epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in) {
    epw_status status = EPW_OK;
    for (uint32_t t = 0; t < in->tokens && status == EPW_OK; t++) {
        size_t first = (size_t)t * b->config.topk;
        status = epw_input_read_topk(epw_buffer_where(b, "dispatch"), &b->config, in, t,
                                     lane->host->ids + first, lane->host->weights + first);
    }
    return status;
}

/* Numbers the rows that go to each participating rank (one per token and distinct rank), and those of each
 * expert, by token. The number of rows decides how they are written, here and by the ranks that answer. */
static void number_rows(epw_buffer *b, epw_lane *lane) {
    uint32_t width = b->config.topk, local = b->layout.local_experts;
    epw_lane_peer *peers = lane->machine.peers;
    uint64_t rows_to_ranks = 0, rows_to_experts = 0;
    memset(lane->host->sent_counts, 0, b->config.experts * sizeof lane->host->sent_counts[0]);
    for (uint32_t t = 0; t < lane->tokens; t++) {
        const int32_t *ids = lane->host->ids + (size_t)t * width;
        uint32_t *rows = lane->host->sent_row + (size_t)t * width;
        for (uint32_t j = 0; j < width; j++) {
            rows[j] = EPW_NO_PLACE;
            if (ids[j] < 0) continue;
            uint32_t rank = (uint32_t)ids[j] / local;
            if (!(peers[rank].part & EPW_PART_AWAITED)) continue;
            lane->host->sent_index[(size_t)t * width + j] = lane->host->sent_counts[ids[j]]++;
            for (uint32_t i = 0; i < j && rows[j] == EPW_NO_PLACE; i++) {
                if (ids[i] >= 0 && (uint32_t)ids[i] / local == rank) rows[j] = rows[i];
            }
            rows_to_experts++;
            if (rows[j] != EPW_NO_PLACE) continue;
            rows[j] = peers[rank].sent++;
            lane->host->sent_tokens[(size_t)rank * b->config.max_tokens + rows[j]] = t;
            rows_to_ranks++;
        }
    }
    uint64_t rows = lane->layout == EPW_EXPERT_MAJOR ? rows_to_experts : rows_to_ranks;
    lane->host->streams = rows * b->layout.row_bytes > EPW_CACHED_BYTES;
}

/* ---- sending ---- */

typedef struct send_job {
    epw_buffer *b;
    epw_lane *lane;
} send_job;

static size_t make_header(const epw_buffer *b, const epw_lane *lane, uint32_t t, unsigned char *out) {
    epw_slot_header head = {.token = t, .format = lane->format.hash};
    memcpy(out, &head, sizeof head);
    size_t at = sizeof head, first = (size_t)t * b->config.topk;
    for (uint32_t j = 0; j < b->config.topk; j++, at += sizeof(epw_entry)) {
        epw_entry entry = {lane->host->ids[first + j], lane->host->weights[first + j]};
        memcpy(out + at, &entry, sizeof entry);
    }
    size_t indices = b->config.topk * sizeof lane->host->sent_index[0];
    memcpy(out + at, lane->host->sent_index + first, indices);
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
    const int32_t *ids = lane->host->ids + (size_t)t * width;
    const uint32_t *rows = lane->host->sent_row + (size_t)t * width;
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
        if (again || !epw_lane_has(&lane->machine, rank, EPW_PART_READY)) continue;
        if (payload == NULL) { /* quantize, or the bytes as they lie */
            payload = epw_input_payload(b->host->numerics, &b->config, &lane->input, &lane->format, t,
                                        b->host->scratch + thread * b->host->scratch_bytes, &bytes);
            header_bytes = make_header(b, lane, t, header);
        }
        uint64_t offset = epw_slot_offset(&b->layout, index, b->config.rank, rows[j]);
        unsigned char *slot = epw_rows_at(&b->peers, index, rank, offset);
        memcpy(slot, header, header_bytes);
        if (rank == b->config.rank && lane->host->shortcut) continue;
        if (lane->host->lent != 0 && epw_is_queued(&b->peers, rank)) continue;
        if (epw_is_queued(&b->peers, rank)) {
            memcpy(slot + b->layout.header_bytes, payload, bytes); /* caches may have it until it is sent */
        } else {
            epw_copy_row(b, lane, slot + b->layout.header_bytes, payload, bytes);
        }
    }
}

static void send_chunk(void *context, uint32_t item, uint32_t thread) {
    const send_job *job = context;
    uint32_t end = (item + 1) * EPW_CHUNK < job->lane->tokens ? (item + 1) * EPW_CHUNK : job->lane->tokens;
    for (uint32_t t = item * EPW_CHUNK; t < end; t++) send_token(job, t, thread);
}

/* ---- what the machine has decided ---- */

void epw_host_send(epw_buffer *b, epw_lane *lane) {
    send_job job = {b, lane};
    epw_pool_run(b->host->pool, send_chunk, &job, (lane->tokens + EPW_CHUNK - 1) / EPW_CHUNK);
}

uint32_t epw_host_announce(epw_buffer *b, const epw_lane *lane, uint32_t peer, epw_range *ranges) {
    uint32_t index = epw_lane_index(b, lane), local = b->layout.local_experts;
    const epw_row_format *format = &lane->format;
    ranges[0] = (epw_range){.offset = epw_expert_counts_offset(&b->layout, index, b->config.rank),
                            .bytes = local * sizeof(uint32_t),
                            .count = 1};
    ranges[1] = (epw_range){.offset = epw_slot_offset(&b->layout, index, b->config.rank, 0),
                            .bytes = b->layout.header_bytes + epw_align(epw_format_bytes(format), 16),
                            .stride = b->layout.slot_bytes,
                            .count = lane->machine.peers[peer].sent};
    epw_lent_rows *lent = &lane->host->lent_rows;
    *lent = (epw_lent_rows){.key = lane->host->lent,
                            .first = lane->host->lent_first,
                            .head_bytes = (uint32_t)b->layout.header_bytes,
                            .stride = epw_input_stride(&b->config, &lane->input, format),
                            .numbers = lane->host->sent_tokens + (size_t)peer * b->config.max_tokens};
    if (lent->key != 0) ranges[1].lent = lent;
    memcpy(epw_control_at(&b->peers, index, peer, ranges[0].offset),
           lane->host->sent_counts + (size_t)peer * local, ranges[0].bytes);
    return 2;
}

/* ---- the call ---- */

/* If many rows travel unchanged they are not copied for the queues, but sent from the caller's memory, by a
 * call that returns only when the peers have them. */
static void lend_rows(epw_buffer *b, epw_lane *lane, const epw_dispatch_output *out) {
    const epw_dispatch_input *in = &lane->input;
    const epw_row_format *format = &lane->format;
    epw_host_lane *host = lane->host;
    bool as_they_lie =
        in->payload == EPW_PAYLOAD_SAME || (in->payload == EPW_PAYLOAD_OPAQUE && format->scale_count == 0);
    bool stays = out != NULL && !host->nonblocking;
    host->lent = 0;
    if (!as_they_lie || !stays || !host->streams || !epw_remotes_any(&b->peers)) return;
    uint64_t bytes = (lane->tokens - 1) * epw_input_stride(&b->config, &lane->input, format) +
                     epw_align(format->payload_bytes, 16);
    host->lent = epw_remotes_lend(&b->peers, epw_lane_index(b, lane), in->x, bytes, &host->lent_first);
}

epw_status epw_host_dispatch(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in,
                             const epw_row_format *format, const epw_dispatch_output *out, epw_handle *handle,
                             epw_outcome *outcome) {
    epw_status status = read_routing(b, lane, in);
    if (status != EPW_OK) {
        epw_lane_unlock(b, lane);
        return status;
    }
    epw_lane_take(b, lane, in, format, handle);
    epw_host_lane *host = lane->host;
    host->shortcut = out != NULL && in->layout == EPW_EXPERT_MAJOR && in->payload == EPW_PAYLOAD_SAME;
    host->nonblocking = in->nonblocking != 0;
    if (out != NULL) host->dispatch_output = *out;
    uint64_t deadline_ns = in->deadline_ns ? in->deadline_ns : b->config.deadline_ns;
    epw_host_hear(b, lane);
    epw_lane_begin_dispatch(&lane->machine, deadline_ns, out != NULL, epw_now_ns());
    number_rows(b, lane);
    lend_rows(b, lane, out);
    return epw_host_run(b, lane, outcome);
}
