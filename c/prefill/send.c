/* Rows to peers, as many for each peer as its ring has room for. A token that goes to several peers in the
 * same turn is quantised once. */
#include "prefill/parts.h"

unsigned char *epw_prefill_slot_there(epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer,
                                      uint64_t number) {
    uint32_t rank = p->config.ep.rank;
    if (lane->kind == EPW_KIND_DISPATCH)
        return epw_rows_at(&p->peers, lane->index, peer,
                           epw_row_slot_offset(&p->layout, lane->index, rank, number));
    return epw_answers_at(&p->peers, lane->index, peer,
                          epw_answer_slot_offset(&p->layout, lane->index, rank, number));
}

/* ---- openings, and VOID messages ---- */

static epw_row_head head_of(const epw_prefill_lane *lane, uint32_t kind, uint32_t number) {
    return (epw_row_head){.token = number, .format = lane->hash, .kind = kind, .op = lane->ops[lane->kind]};
}

/* Writes the opening, or the VOID message. True if it has. */
static bool write_alone(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer) {
    epw_stream *s = &lane->streams[lane->kind][peer];
    epw_prefill_peer *q = &lane->peers[peer];
    if ((!q->opens && !q->voids) || epw_stream_writable(s, p->layout.slots) == 0) return false;
    unsigned char *slot = epw_prefill_slot_there(p, lane, peer, s->ring.written);
    epw_row_head head = head_of(lane, q->voids ? EPW_MESSAGE_VOID : EPW_MESSAGE_OPENING,
                                q->voids ? 0 : (uint32_t)(s->to_write - 1));
    memcpy(slot, &head, sizeof head);
    if (!q->voids) q->opening = s->ring.written;
    if (!q->voids && lane->kind == EPW_KIND_DISPATCH) {
        const epw_routing *r = lane->routing;
        epw_opening opening = {.counted = !lane->again};
        uint32_t local = p->layout.local_experts;
        memcpy(slot + sizeof head, &opening, sizeof opening);
        memcpy(slot + sizeof head + sizeof opening, r->sent_counts + (size_t)peer * local,
               local * sizeof r->sent_counts[0]);
    }
    q->opens = q->voids = false;
    epw_stream_wrote(s, 1);
    return true;
}

bool epw_prefill_write_openings(epw_prefill *p, epw_prefill_lane *lane) {
    bool moved = false;
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) moved |= write_alone(p, lane, peer);
    return moved;
}

/* ---- rows ---- */

static size_t make_header(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t t,
                          unsigned char *out) {
    const epw_routing *r = lane->routing;
    epw_row_head head = head_of(lane, EPW_MESSAGE_ROW, t);
    uint32_t width = p->layout.topk, sideband = lane->input.sideband_bytes;
    size_t at = sizeof head, first = (size_t)t * width;
    memcpy(out, &head, sizeof head);
    for (uint32_t j = 0; j < width; j++, at += sizeof(epw_entry)) {
        epw_entry entry = {r->ids[first + j], r->weights[first + j]};
        memcpy(out + at, &entry, sizeof entry);
    }
    memcpy(out + at, r->sent_index + first, width * sizeof r->sent_index[0]);
    at += width * sizeof r->sent_index[0];
    if (sideband > 0)
        memcpy(out + at, (const unsigned char *)lane->input.sideband + (size_t)t * sideband, sideband);
    return at + sideband;
}

typedef struct send_job {
    epw_prefill *p;
    epw_prefill_lane *lane;
    uint32_t tokens; /* in the batch */
} send_job;

/* Writes the token's row for each peer whose turn includes it. */
static void send_token(const send_job *job, uint32_t t, uint32_t thread) {
    epw_prefill *p = job->p;
    epw_prefill_lane *lane = job->lane;
    const epw_routing *r = lane->routing;
    uint32_t width = p->layout.topk;
    unsigned char header[sizeof(epw_row_head) + EPW_MAX_TOPK * (sizeof(epw_entry) + 4) + EPW_MAX_SIDEBAND];
    const unsigned char *payload = NULL;
    size_t header_bytes = 0, bytes = 0;
    for (uint32_t j = 0; j < width; j++) {
        uint32_t row = r->sent_row[(size_t)t * width + j];
        if (row == EPW_NO_PLACE) continue;
        uint32_t rank = epw_rank_of(p, r->ids[(size_t)t * width + j]);
        bool again = false;
        for (uint32_t i = 0; i < j && !again; i++)
            again = r->sent_row[(size_t)t * width + i] != EPW_NO_PLACE &&
                    epw_rank_of(p, r->ids[(size_t)t * width + i]) == rank;
        uint32_t next = lane->peers[rank].next;
        if (again || row < next || row >= lane->until[rank]) continue;
        if (payload == NULL) {
            payload = epw_input_payload(p->numerics, &p->config.ep, &lane->input, &lane->format, t,
                                        p->scratch + thread * p->scratch_bytes, &bytes);
            header_bytes = make_header(p, lane, t, header);
        }
        uint64_t number = lane->streams[EPW_KIND_DISPATCH][rank].ring.written + (row - next);
        unsigned char *slot = epw_prefill_slot_there(p, lane, rank, number);
        memcpy(slot, header, header_bytes);
        if (lane->streams_rows) {
            p->numerics->copy_stream(slot + p->layout.header_bytes, payload, bytes);
        } else {
            memcpy(slot + p->layout.header_bytes, payload, bytes);
        }
    }
}

static void send_chunk(void *context, uint32_t item, uint32_t thread) {
    const send_job *job = context;
    uint32_t end = (item + 1) * EPW_ROWS_CHUNK < job->tokens ? (item + 1) * EPW_ROWS_CHUNK : job->tokens;
    for (uint32_t i = item * EPW_ROWS_CHUNK; i < end; i++) send_token(job, job->lane->batch[i], thread);
}

static uint32_t token_of(const epw_routing *r, uint32_t peer, uint64_t row) {
    return r->sent_tokens[r->sent_first[peer] + row];
}

/* Chooses tokens, in order, whose rows have room. lane->until[peer] becomes the row after the peer's last
 * one. */
static uint32_t choose_tokens(const epw_prefill *p, epw_prefill_lane *lane) {
    const epw_routing *r = lane->routing;
    uint32_t count = 0, ranks = p->layout.ranks;
    for (uint32_t peer = 0; peer < ranks; peer++) lane->until[peer] = lane->peers[peer].next;
    while (count < EPW_ROWS_TURN) { /* ends: each iteration adds a token, or finds none */
        uint32_t least = UINT32_MAX;
        for (uint32_t peer = 0; peer < ranks; peer++) {
            uint64_t end = lane->peers[peer].next + lane->turns[peer].write;
            if (lane->until[peer] >= end) continue;
            uint32_t token = token_of(r, peer, lane->until[peer]);
            if (token < least) least = token;
        }
        if (least == UINT32_MAX) break;
        for (uint32_t peer = 0; peer < ranks; peer++) {
            uint64_t end = lane->peers[peer].next + lane->turns[peer].write;
            if (lane->until[peer] < end && token_of(r, peer, lane->until[peer]) == least) lane->until[peer]++;
        }
        lane->batch[count++] = least;
    }
    return count;
}

bool epw_prefill_send(epw_prefill *p, epw_prefill_lane *lane) {
    uint32_t count = choose_tokens(p, lane);
    send_job job = {p, lane, count};
    if (count == 0) return false;
    epw_pool_run(p->pool, send_chunk, &job, (count + EPW_ROWS_CHUNK - 1) / EPW_ROWS_CHUNK);
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        uint64_t rows = lane->until[peer] - lane->peers[peer].next;
        epw_stream_wrote(&lane->streams[EPW_KIND_DISPATCH][peer], rows);
        lane->peers[peer].next = (uint32_t)lane->until[peer];
    }
    return true;
}
