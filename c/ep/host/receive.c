/* The receiving half of a dispatch on the host device: reads what each source says about its rows, checks it,
 * and lays the rows out.
 *
 * A source has this rank's window mapped and, if it malfunctions, may write there at any time. So each number
 * that leads to an address is read once, into the lane, and what was checked there is what dispatch and
 * combine use. Whether to trust payloads, scales and sideband is up to the caller. */
#include "ep/host/host.h"

#include "base/clock.h"

#include <string.h>

/* ---- layout ---- */

typedef struct receive_job {
    epw_buffer *b;
    epw_lane *lane;
    uint32_t source, rows;
} receive_job;

/* Scale b of a row goes to block b of column `row`: f32 [K, M], or four exponents to an i32 [ceil(K/4), M].
 */
static void put_scales(const epw_buffer *b, const epw_lane *lane, const unsigned char *scales,
                       unsigned char *list, uint64_t row) {
    const epw_row_format *format = &lane->format;
    uint32_t count = format->scale_count, bytes = format->scale_bytes;
    uint64_t rows = b->layout.rows;
    if (lane->host->dispatch_output.scale_order == 1) {
        memcpy(list + row * count * bytes, scales, (size_t)count * bytes);
    } else if (lane->input.payload == EPW_PAYLOAD_FP8_UE8M0) {
        for (uint32_t word = 0; word < (count + 3) / 4; word++) {
            unsigned char packed[4] = {0};
            uint32_t n = count - word * 4 < 4 ? count - word * 4 : 4;
            memcpy(packed, scales + word * 4, n);
            memcpy(list + (word * rows + row) * 4, packed, 4);
        }
    } else {
        for (uint32_t i = 0; i < count; i++)
            memcpy(list + (i * rows + row) * bytes, scales + i * bytes, bytes);
    }
}

static uint64_t scale_list_bytes(const epw_buffer *b, const epw_lane *lane) {
    uint64_t row = (uint64_t)lane->format.scale_count * lane->format.scale_bytes;
    if (lane->input.payload == EPW_PAYLOAD_FP8_UE8M0 && lane->host->dispatch_output.scale_order == 0)
        row = epw_align(row, 4);
    return b->layout.rows * row;
}

/* One row to one place: list `list` (a local expert, 0 if rank-major), row `row` of it. `from` is its row
 * number in the lane. */
static void put_row(const receive_job *job, const unsigned char *slot, uint64_t from, uint64_t list,
                    uint64_t row) {
    const epw_buffer *b = job->b;
    const epw_lane *lane = job->lane;
    const epw_dispatch_output *out = &lane->host->dispatch_output;
    const epw_row_format *format = &lane->format;
    uint64_t at = list * b->layout.rows + row;
    uint32_t token = lane->host->row_token[from];
    if (out->rows != NULL) {
        const unsigned char *payload = slot + b->layout.header_bytes;
        if (lane->host->shortcut && job->source == b->config.rank) {
            uint64_t stride = lane->input.x_stride ? lane->input.x_stride : format->payload_bytes;
            payload = (const unsigned char *)lane->input.x + token * stride;
        }
        epw_copy_row(b, lane, (unsigned char *)out->rows + at * format->payload_bytes, payload,
                     format->payload_bytes);
    }
    if (out->scales != NULL && format->scale_count > 0) {
        put_scales(b, lane, slot + b->layout.header_bytes + format->payload_bytes,
                   (unsigned char *)out->scales + list * scale_list_bytes(b, lane), row);
    }
    uint32_t sideband = lane->input.sideband_bytes;
    if (out->sideband != NULL && sideband > 0) {
        memcpy((unsigned char *)out->sideband + at * sideband, slot + epw_sideband_offset(&b->layout),
               sideband);
    }
    if (out->source_token != NULL) out->source_token[at] = token;
}

static void receive_row(const receive_job *job, uint32_t i) {
    const epw_buffer *b = job->b;
    const epw_lane *lane = job->lane;
    const epw_dispatch_output *out = &lane->host->dispatch_output;
    uint32_t width = b->config.topk;
    uint64_t at = epw_row_at(b, job->source, i);
    const unsigned char *slot = epw_slot_here(b, epw_lane_index(b, lane), job->source, i);
    const epw_place *places = epw_places(b, lane, at);
    if (lane->layout == EPW_RANK_MAJOR) put_row(job, slot, at, 0, at);
    for (uint32_t j = 0; j < width; j++) {
        const epw_place *place = &places[j];
        bool ours = place->list != EPW_NO_PLACE;
        if (lane->layout == EPW_EXPERT_MAJOR) {
            if (ours) put_row(job, slot, at, place->list, place->row);
            continue;
        }
        if (out->row_experts != NULL) out->row_experts[at * width + j] = ours ? (int32_t)place->list : -1;
        if (out->row_weights != NULL) out->row_weights[at * width + j] = ours ? place->weight : 0.0f;
        if (ours && out->expert_rows != NULL)
            out->expert_rows[place->list * b->layout.rows + place->row] = (uint32_t)at;
    }
}

static void receive_chunk(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const receive_job *job = context;
    uint32_t end = (item + 1) * EPW_CHUNK < job->rows ? (item + 1) * EPW_CHUNK : job->rows;
    for (uint32_t i = item * EPW_CHUNK; i < end; i++) receive_row(job, i);
}

/* ---- admission ---- */

/* Loads one word that a source has written. Relaxed, because its dispatch word was acquired before. */
static uint32_t read_once(const void *word) {
    return atomic_load_explicit((_Atomic uint32_t *)word, memory_order_relaxed);
}

/* Reads what slot `i` of `source` says, and adds the row to the lists of its experts. False if it is not of
 * the kind that this rank asked for, if its token is not in [*token, tokens), or if an entry repeats or is
 * not at the end of its list: a source numbers its rows by token. */
static bool admit_row(const epw_buffer *b, epw_lane *lane, uint32_t source, uint32_t i, uint32_t *token,
                      uint32_t tokens) {
    uint32_t local = b->layout.local_experts;
    int64_t base = (int64_t)b->config.rank * local;
    const unsigned char *slot = epw_slot_here(b, epw_lane_index(b, lane), source, i);
    const epw_slot_header *head = (const epw_slot_header *)slot;
    const epw_entry *entry = epw_entries(slot);
    const uint32_t *indices = (const uint32_t *)(slot + epw_indices_offset(&b->layout));
    uint64_t at = epw_row_at(b, source, i);
    uint32_t its_token = read_once(&head->token);
    if (read_once(&head->format) != lane->format.hash || its_token < *token || its_token >= tokens)
        return false;
    lane->host->row_token[at] = its_token;
    *token = its_token + 1;
    epw_place *places = epw_places(b, lane, at);
    for (uint32_t j = 0; j < b->config.topk; j++) {
        places[j].list = EPW_NO_PLACE;
        int64_t e = (int32_t)read_once(&entry[j].expert) - base;
        if (e < 0 || e >= local) continue;
        for (uint32_t k = 0; k < j; k++)
            if (places[k].list == e) return false;
        uint32_t weight = read_once(&entry[j].weight), row = lane->host->expert_fill[e]++;
        places[j].list = (uint32_t)e;
        places[j].row = row;
        memcpy(&places[j].weight, &weight, sizeof weight);
        if (read_once(&indices[j]) != row - lane->host->first_row[e]) return false;
    }
    return true;
}

/* All rows of `source`, in the lists from first_row on; they must match the counts that the source announced.
 */
static bool admit(const epw_buffer *b, epw_lane *lane, uint32_t source, uint32_t rows) {
    if (rows > b->config.max_tokens) return false;
    uint32_t token = 0, tokens = source == b->config.rank ? lane->tokens : b->config.max_tokens;
    for (uint32_t i = 0; i < rows; i++)
        if (!admit_row(b, lane, source, i, &token, tokens)) return false;
    const unsigned char *window = epw_peers_own(&b->peers);
    const uint32_t *counts =
        (const uint32_t *)(window + epw_expert_counts_offset(&b->layout, epw_lane_index(b, lane), source));
    for (uint32_t e = 0; e < b->layout.local_experts; e++)
        if (read_once(&counts[e]) != lane->host->expert_fill[e] - lane->host->first_row[e]) return false;
    return true;
}

/* The outputs that concern all sources together. */
static void tell_totals(const epw_buffer *b, const epw_lane *lane) {
    const epw_dispatch_output *out = &lane->host->dispatch_output;
    const uint32_t *fill = lane->host->expert_fill;
    if (out->counts != NULL) memcpy(out->counts, fill, b->layout.local_experts * sizeof fill[0]);
    for (uint32_t e = 0; e < b->layout.local_experts; e++) {
        if (out->expert_totals != NULL) epw_add_total(&out->expert_totals[e], fill[e]);
        if (out->expert_totals_i32 != NULL) epw_add_total_i32(&out->expert_totals_i32[e], fill[e]);
    }
    for (uint32_t peer = 0; out->wait_ns != NULL && peer < b->config.ranks; peer++)
        epw_add_total(&out->wait_ns[peer], lane->machine.peers[peer].waited_ns);
}

/* All rows of the dispatch are here. */
static void count_received(epw_buffer *b, const epw_lane *lane) {
    epw_lane_traffic *traffic = &b->peers.traffic[epw_lane_index(b, lane)];
    uint64_t rows = 0;
    for (uint32_t source = 0; source < b->config.ranks; source++) {
        epw_exchanged *with = &traffic->with[source];
        rows += lane->received[source];
        epw_count(&with->bytes_received, lane->received[source] * epw_format_bytes(&lane->format));
        epw_count(&with->wait_ns, lane->machine.peers[source].waited_ns);
    }
    epw_count(&traffic->rows_received, rows);
    epw_count(&traffic->operations, 1);
}

/* Lays out what `source` has sent (nothing if it is missing). Sources come in ascending order, so that the
 * rows of an expert's list are ordered by source rank. */
bool epw_host_lay_out(epw_buffer *b, epw_lane *lane, uint32_t source) {
    uint32_t local = b->layout.local_experts;
    epw_host_lane *host = lane->host;
    const epw_dispatch_output *out = &host->dispatch_output;
    uint32_t rows = lane->machine.peers[source].received;
    if (source == 0) memset(host->expert_fill, 0, local * sizeof host->expert_fill[0]);
    memcpy(host->first_row, host->expert_fill, local * sizeof host->first_row[0]);
    /* If it has sent no rows, its place still holds what an earlier operation left there. */
    bool good = rows == 0 || admit(b, lane, source, rows);
    if (!good) {
        memcpy(host->expert_fill, host->first_row, local * sizeof host->expert_fill[0]);
        rows = 0;
    }
    lane->received[source] = rows;
    host->entries[source] = 0;
    for (uint32_t e = 0; e < local; e++) {
        size_t pair = (size_t)e * b->config.ranks + source;
        uint32_t first = host->first_row[e], count = host->expert_fill[e] - first;
        host->entries[source] += count;
        if (out->ranges != NULL) memcpy(out->ranges + 2 * pair, (uint32_t[]){first, count}, 8);
        if (out->packed_ranges != NULL) out->packed_ranges[pair] = (uint64_t)first << 32 | count;
    }
    if (out->source_counts != NULL) out->source_counts[source] = rows;
    receive_job job = {b, lane, source, rows};
    epw_pool_run(b->host->pool, receive_chunk, &job, (rows + EPW_CHUNK - 1) / EPW_CHUNK);
    if (source + 1 == b->config.ranks) {
        tell_totals(b, lane);
        count_received(b, lane);
    }
    return good;
}

epw_status epw_host_dispatch_receive(epw_buffer *b, epw_lane *lane, const epw_dispatch_output *out,
                                     epw_outcome *outcome) {
    lane->host->nonblocking = out->nonblocking != 0;
    lane->host->dispatch_output = *out;
    epw_lane_begin_receive(&lane->machine, epw_now_ns());
    return epw_host_run(b, lane, outcome);
}
