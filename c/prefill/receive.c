/* Openings and rows from peers. What a source says about its rows is read once and checked; then the rows are
 * copied to their places, and the slots are returned to the source.
 *
 * A source maps this rank's window, and a faulty one may write there at any time. So each number that leads
 * to an address is read once, into the routing, and both dispatch and combine use the checked copy. Payload,
 * scales and sideband are not checked: the caller must trust them. */
#include "prefill/parts.h"

#include "base/clock.h"

unsigned char *epw_prefill_slot_here(epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer,
                                     uint64_t number) {
    uint64_t offset = lane->kind == EPW_KIND_DISPATCH
                          ? epw_row_slot_offset(&p->layout, lane->index, peer, number)
                          : epw_answer_slot_offset(&p->layout, lane->index, peer, number);
    return epw_peers_own(&p->peers) + offset;
}

/* Reads one word that a source has written. Relaxed, because the word that announced the message has been
 * acquired. */
static uint32_t read_once(const void *word) {
    return atomic_load_explicit((_Atomic uint32_t *)word, memory_order_relaxed);
}

epw_row_head epw_prefill_read_head(const unsigned char *slot) {
    const epw_row_head *head = (const epw_row_head *)(const void *)slot;
    return (epw_row_head){.token = read_once(&head->token),
                          .format = read_once(&head->format),
                          .kind = read_once(&head->kind),
                          .op = read_once(&head->op)};
}

static bool is_me(const epw_prefill *p, uint32_t peer) {
    return peer == p->config.ep.rank;
}

/* ---- openings ---- */

/* Reads how many rows come for each local expert. False: this many rows cannot have these counts. */
static bool read_counts(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer, const unsigned char *slot,
                        uint32_t rows) {
    epw_routing *r = lane->routing;
    uint32_t local = p->layout.local_experts, *to = r->counts + (size_t)peer * local;
    const uint32_t *from =
        (const uint32_t *)(const void *)(slot + sizeof(epw_row_head) + sizeof(epw_opening));
    uint64_t entries = 0;
    bool good = true;
    for (uint32_t e = 0; e < local; e++) {
        to[e] = read_once(&from[e]);
        good &= to[e] <= rows;
        entries += to[e];
    }
    good &= entries >= rows && entries <= (uint64_t)rows * p->layout.topk;
    if (!good) memset(to, 0, local * sizeof to[0]);
    return good;
}

static bool open_rows(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer, const unsigned char *slot,
                      uint32_t rows) {
    epw_routing *r = lane->routing;
    const epw_opening *opening = (const epw_opening *)(const void *)(slot + sizeof(epw_row_head));
    if (read_once(&opening->counted) != !lane->again) return false;
    if (lane->again) return rows == r->announced[peer];
    if (!read_counts(p, lane, peer, slot, rows)) return false;
    r->announced[peer] = rows;
    return true;
}

/* Opens the answers to all rows that were sent to the peer. False: the peer announces another number, because
 * it has not received all of them. */
static bool open_answers(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer, uint32_t rows) {
    const epw_routing *r = lane->routing;
    uint32_t sent = r->sent_first[peer + 1] - r->sent_first[peer];
    lane->collected[peer] = lane->streams[EPW_KIND_COMBINE][peer].ring.taken + 1;
    (void)p;
    return rows == (lane->combine.mode == EPW_COMBINE_ORDERED ? r->sent_entries[peer] : sent);
}

/* The most messages that may follow an opening. */
static uint32_t most_messages(const epw_prefill *p, const epw_prefill_lane *lane) {
    bool ordered = lane->kind == EPW_KIND_COMBINE && lane->combine.mode == EPW_COMBINE_ORDERED;
    return p->config.ep.max_tokens * (ordered ? p->layout.topk : 1);
}

void epw_prefill_open(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer) {
    epw_stream *s = &lane->streams[lane->kind][peer];
    const unsigned char *slot = epw_prefill_slot_here(p, lane, peer, s->ring.taken);
    epw_row_head head = epw_prefill_read_head(slot);
    bool gives_up = head.kind == EPW_MESSAGE_VOID && head.op == lane->ops[lane->kind];
    bool known = head.kind == EPW_MESSAGE_OPENING && head.op == lane->ops[lane->kind] &&
                 head.token <= most_messages(p, lane);
    bool good = known && head.format == lane->hash && !lane->dropped;
    bool dispatch = lane->kind == EPW_KIND_DISPATCH;
    bool unplaced = good && dispatch && lane->again && !lane->routing->complete[peer];
    if (good && dispatch) good = !unplaced && open_rows(p, lane, peer, slot, head.token);
    uint32_t cause = gives_up || unplaced ? EPW_CAUSE_PARTIAL : EPW_CAUSE_FORMAT;
    if (good && !dispatch && !open_answers(p, lane, peer, head.token)) {
        good = false;
        cause = EPW_CAUSE_PARTIAL;
    }
    s->ring.taken++;
    epw_stream_open(s, known ? head.token : 0);
    if (!good && !lane->dropped) {
        lane->peers[peer].refused = true;
        epw_prefill_miss(p, lane, peer, cause, epw_now_ns());
    }
}

/* ---- admission ---- */

/* Sets the places of a row, one for each entry whose expert is on this rank. False if it is not the next row
 * of its source, or if an entry repeats an expert or is not the next one of its expert. */
static bool admit_entries(epw_prefill *p, epw_prefill_lane *lane, uint32_t source, uint32_t row,
                          const unsigned char *slot) {
    epw_routing *r = lane->routing;
    uint32_t local = p->layout.local_experts, width = p->layout.topk, entries = 0;
    int64_t base = (int64_t)p->config.ep.rank * local;
    const epw_entry *entry = epw_entries(slot);
    const uint32_t *indices = (const uint32_t *)(const void *)(slot + sizeof(epw_row_head)) + 2 * width;
    epw_row_place *places = epw_places_of(r, source, row);
    for (uint32_t j = 0; j < width; j++) {
        int64_t e = (int32_t)read_once(&entry[j].expert) - base;
        uint32_t weight = read_once(&entry[j].weight);
        places[j].expert = -1;
        if (e < 0 || e >= local) continue;
        for (uint32_t k = 0; k < j; k++)
            if (places[k].expert == e) return false;
        uint32_t *fill = &r->fill[(size_t)source * local + (uint32_t)e];
        if (read_once(&indices[j]) != *fill || *fill >= r->counts[(size_t)source * local + (uint32_t)e])
            return false;
        places[j].expert = (int32_t)e;
        places[j].number = r->base[(size_t)source * local + (uint32_t)e] + (*fill)++;
        memcpy(&places[j].weight, &weight, sizeof weight);
        entries++;
    }
    uint64_t at = r->row_first[source] + row;
    r->row_entry[at] = row == 0 ? 0 : r->row_entry[at - 1] + r->row_entries;
    r->row_entries = entries;
    return entries > 0;
}

/* A row of a routing that is used again may have new weights. */
static void renew_weights(epw_prefill *p, epw_prefill_lane *lane, uint32_t source, uint32_t row,
                          const unsigned char *slot) {
    const epw_entry *entry = epw_entries(slot);
    epw_row_place *places = epw_places_of(lane->routing, source, row);
    for (uint32_t j = 0; j < p->layout.topk && lane->input.topk_weights != NULL; j++) {
        uint32_t weight = read_once(&entry[j].weight);
        memcpy(&places[j].weight, &weight, sizeof weight);
    }
}

static bool admit_row(epw_prefill *p, epw_prefill_lane *lane, uint32_t source, uint32_t row,
                      const unsigned char *slot) {
    epw_routing *r = lane->routing;
    uint64_t at = r->row_first[source] + row;
    epw_row_head head = epw_prefill_read_head(slot);
    if (head.kind != EPW_MESSAGE_ROW || head.op != lane->ops[EPW_KIND_DISPATCH] || head.format != lane->hash)
        return false;
    if (lane->again) {
        renew_weights(p, lane, source, row, slot);
        return head.token == r->row_token[at];
    }
    if (head.token >= p->config.ep.max_tokens || (row > 0 && head.token <= r->row_token[at - 1]))
        return false;
    r->row_token[at] = head.token;
    return admit_entries(p, lane, source, row, slot);
}

static bool counts_are_full(const epw_prefill *p, const epw_routing *r, uint32_t source) {
    uint32_t local = p->layout.local_experts;
    return memcmp(r->fill + (size_t)source * local, r->counts + (size_t)source * local,
                  local * sizeof r->fill[0]) == 0;
}

/* The rows of the source that were placed before this turn. */
static uint32_t rows_before(const epw_prefill_lane *lane, uint32_t source) {
    const epw_routing *r = lane->routing;
    return (uint32_t)(r->announced[source] - lane->streams[EPW_KIND_DISPATCH][source].to_take);
}

/* Checks the next `count` rows of the source. False: the source must be refused. */
static bool admit(epw_prefill *p, epw_prefill_lane *lane, uint32_t source, uint64_t count) {
    epw_routing *r = lane->routing;
    const epw_stream *s = &lane->streams[EPW_KIND_DISPATCH][source];
    uint32_t first = rows_before(lane, source);
    if (first > 0) {
        const epw_row_place *last = epw_places_of(r, source, first - 1);
        r->row_entries = 0;
        for (uint32_t j = 0; j < p->layout.topk; j++) r->row_entries += last[j].expert >= 0;
    }
    for (uint64_t i = 0; i < count; i++) {
        const unsigned char *slot = epw_prefill_slot_here(p, lane, source, s->ring.taken + i);
        if (epw_prefill_read_head(slot).kind == EPW_MESSAGE_VOID) {
            lane->peers[source].refused = true;
            lane->peers[source].ended = true;
            return false;
        }
        if (!admit_row(p, lane, source, first + (uint32_t)i, slot)) return false;
    }
    return count < s->to_take || lane->again || counts_are_full(p, r, source);
}

/* This rank's own rows need no checks and use no slots. */
static void admit_own(epw_prefill *p, epw_prefill_lane *lane, uint64_t count) {
    epw_routing *r = lane->routing;
    uint32_t rank = p->config.ep.rank, width = p->layout.topk, first = rows_before(lane, rank);
    for (uint32_t row = first; row < first + count; row++) {
        uint32_t t = r->sent_tokens[r->sent_first[rank] + row], entries = 0;
        epw_row_place *places = epw_places_of(r, rank, row);
        uint64_t at = r->row_first[rank] + row;
        r->row_token[at] = t;
        for (uint32_t j = 0; j < width; j++) {
            size_t from = (size_t)t * width + j;
            places[j].expert = -1;
            if (r->ids[from] < 0 || epw_rank_of(p, r->ids[from]) != rank) continue;
            if (entries++ == 0) r->row_entry[at] = r->sent_entry[from];
            places[j].expert = r->ids[from] - (int32_t)(rank * p->layout.local_experts);
            places[j].number = r->base[(size_t)rank * p->layout.local_experts + (uint32_t)places[j].expert] +
                               r->sent_index[from];
            places[j].weight = r->weights[from];
        }
    }
}

/* ---- rows to their places ---- */

/* The shape of a row's scales in the output: `count` elements of `bytes`. */
typedef struct scale_shape {
    uint32_t count, bytes;
} scale_shape;

static scale_shape scales_of(const epw_prefill_lane *lane) {
    const epw_row_format *format = &lane->format;
    if (lane->input.payload == EPW_PAYLOAD_FP8_UE8M0) return (scale_shape){(format->scale_count + 3) / 4, 4};
    return (scale_shape){format->scale_count, format->scale_bytes};
}

/* `list`: the expert's scales, if each expert has its own; `row`: the index in that list. */
static void put_scales(const epw_prefill_lane *lane, const unsigned char *scales, uint64_t list,
                       uint64_t row) {
    const epw_prefill_output *out = &lane->output;
    scale_shape shape = scales_of(lane);
    uint64_t column = epw_align(out->capacity * shape.bytes, 16);
    uint64_t row_bytes = (uint64_t)shape.count * shape.bytes;
    unsigned char *to = (unsigned char *)out->scales;
    uint32_t have = lane->format.scale_count * lane->format.scale_bytes;
    to += list * (out->scale_order == 1 ? out->capacity * row_bytes : shape.count * column);
    for (uint32_t i = 0; i < shape.count; i++) {
        unsigned char element[8] = {0};
        uint32_t n = have - i * shape.bytes < shape.bytes ? have - i * shape.bytes : shape.bytes;
        memcpy(element, scales + (size_t)i * shape.bytes, n);
        if (out->scale_order == 1) {
            memcpy(to + row * row_bytes + (size_t)i * shape.bytes, element, shape.bytes);
        } else {
            memcpy(to + i * column + row * shape.bytes, element, shape.bytes);
        }
    }
}

/* What is copied to a place. */
typedef struct row_sight {
    const unsigned char *payload, *sideband; /* the scales follow the payload */
    uint32_t source, token;
} row_sight;

static void put_row(const epw_prefill *p, const epw_prefill_lane *lane, const row_sight *row, uint32_t place,
                    const epw_row_place *entry, uint32_t position) {
    const epw_prefill_output *out = &lane->output;
    uint32_t bytes = lane->format.payload_bytes, sideband = lane->input.sideband_bytes;
    if (out->rows != NULL) {
        unsigned char *to = (unsigned char *)out->rows + (uint64_t)place * bytes;
        if (lane->streams_rows) {
            p->numerics->copy_stream(to, row->payload, bytes);
        } else {
            memcpy(to, row->payload, bytes);
        }
    }
    if (out->scales != NULL && lane->format.scale_count > 0) {
        uint64_t list = out->layout == EPW_EXPERT_MAJOR ? place / out->capacity : 0;
        put_scales(lane, row->payload + bytes, list, place - list * out->capacity);
    }
    if (out->sideband != NULL && sideband > 0)
        memcpy((unsigned char *)out->sideband + (uint64_t)place * sideband, row->sideband, sideband);
    if (out->row_source != NULL) out->row_source[place] = (int32_t)row->source;
    if (out->row_token != NULL) out->row_token[place] = (int32_t)row->token;
    if (entry == NULL) return;
    if (out->row_expert != NULL) out->row_expert[place] = entry->expert;
    if (out->row_position != NULL) out->row_position[place] = (int32_t)position;
    if (out->row_weight != NULL) out->row_weight[place] = entry->weight;
}

static void put_lists(const epw_prefill *p, const epw_prefill_lane *lane, const epw_row_place *places,
                      uint32_t place) {
    const epw_prefill_output *out = &lane->output;
    for (uint32_t j = 0; j < p->layout.topk; j++) {
        size_t at = (size_t)place * p->layout.topk + j;
        bool ours = places[j].expert >= 0;
        if (out->row_experts != NULL) out->row_experts[at] = places[j].expert;
        if (out->row_weights != NULL) out->row_weights[at] = ours ? places[j].weight : 0.0f;
    }
}

/* Copies row `row` of the source to all its places. */
static void spread(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t row, const row_sight *sight) {
    const epw_routing *r = lane->routing;
    const epw_row_place *places = epw_places_of(r, sight->source, row);
    if (!epw_by_expert(r->layout)) {
        uint32_t place = epw_routing_source_place(r, sight->source, row);
        if (place == EPW_NO_PLACE) return;
        put_row(p, lane, sight, place, NULL, 0);
        put_lists(p, lane, places, place);
        return;
    }
    for (uint32_t j = 0; j < p->layout.topk; j++) {
        uint32_t place = epw_routing_expert_place(r, &places[j]);
        if (place != EPW_NO_PLACE) put_row(p, lane, sight, place, &places[j], j);
    }
}

typedef struct take_job {
    epw_prefill *p;
    epw_prefill_lane *lane;
} take_job;

static void take_row(const take_job *job, uint32_t source, uint32_t i, uint32_t thread) {
    epw_prefill *p = job->p;
    epw_prefill_lane *lane = job->lane;
    const epw_routing *r = lane->routing;
    uint32_t row = rows_before(lane, source) + i;
    row_sight sight = {.source = source, .token = r->row_token[r->row_first[source] + row]};
    if (is_me(p, source)) {
        size_t bytes;
        sight.payload = epw_input_payload(p->numerics, &p->config.ep, &lane->input, &lane->format,
                                          sight.token, p->scratch + thread * p->scratch_bytes, &bytes);
        sight.sideband =
            (const unsigned char *)lane->input.sideband + (size_t)sight.token * lane->input.sideband_bytes;
    } else {
        const epw_row_ring *ring = &lane->streams[EPW_KIND_DISPATCH][source].ring;
        const unsigned char *slot = epw_prefill_slot_here(p, lane, source, ring->taken + i);
        sight.payload = slot + p->layout.header_bytes;
        sight.sideband =
            slot + sizeof(epw_row_head) + p->layout.topk * (sizeof(epw_entry) + sizeof(uint32_t));
    }
    spread(p, lane, row, &sight);
}

/* Items are chunks of rows, lane->until[source] of each source, in ascending order. */
static void take_chunk(void *context, uint32_t item, uint32_t thread) {
    const take_job *job = context;
    uint32_t source = 0;
    for (;; source++) { /* ends: there are as many items as chunks of all sources */
        uint32_t chunks = (uint32_t)((job->lane->until[source] + EPW_ROWS_CHUNK - 1) / EPW_ROWS_CHUNK);
        if (item < chunks) break;
        item -= chunks;
    }
    for (uint32_t i = item * EPW_ROWS_CHUNK; i < (item + 1) * EPW_ROWS_CHUNK; i++)
        if (i < job->lane->until[source]) take_row(job, source, i, thread);
}

/* ---- empty places ---- */

/* Fills elements [first, first + count) of a list of 32-bit elements; NULL: not wanted. */
static void fill_list(void *list, int byte, uint64_t first, uint64_t count) {
    if (list != NULL) memset((unsigned char *)list + first * 4, byte, count * 4);
}

/* Indices become -1, weights 0. */
static void clear_range(const epw_prefill *p, const epw_prefill_output *out, uint64_t first, uint64_t count) {
    uint32_t topk = p->layout.topk;
    fill_list(out->row_expert, 0xff, first, count);
    fill_list(out->row_source, 0xff, first, count);
    fill_list(out->row_token, 0xff, first, count);
    fill_list(out->row_position, 0xff, first, count);
    fill_list(out->row_weight, 0, first, count);
    fill_list(out->row_experts, 0xff, first * topk, count * topk);
    fill_list(out->row_weights, 0, first * topk, count * topk);
}

/* Empties places [first, first + count), except those from `limit` on; also zeroes the rows if that is asked
 * for. */
static void empty(const epw_prefill *p, const epw_prefill_lane *lane, uint64_t first, uint64_t count,
                  uint64_t limit) {
    const epw_prefill_output *out = &lane->output;
    uint64_t bytes = lane->format.payload_bytes;
    if (first >= limit) return;
    if (count > limit - first) count = limit - first;
    clear_range(p, out, first, count);
    if (out->zero_padding && out->rows != NULL)
        memset((unsigned char *)out->rows + first * bytes, 0, count * bytes);
}

/* The padding after an expert's last row. */
static void empty_padding(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t e) {
    const epw_routing *r = lane->routing;
    uint64_t rows = r->expert_rows[e];
    empty(p, lane, r->offsets[e] + rows, epw_align(rows, r->alignment) - rows, r->capacity);
}

/* Makes all places empty, before rows are copied. */
static void clear_places(const epw_prefill *p, const epw_prefill_lane *lane) {
    const epw_prefill_output *out = &lane->output;
    const epw_routing *r = lane->routing;
    uint32_t lists = r->layout == EPW_EXPERT_MAJOR ? p->layout.local_experts : 1;
    clear_range(p, out, 0, lists * r->capacity);
    for (uint32_t e = 0; e < p->layout.local_experts && out->zero_padding; e++) empty_padding(p, lane, e);
}

/* A missing source has no rows here: the places of all rows that it has announced are empty, whether these
 * have arrived or not. */
static void forget(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t source) {
    epw_routing *r = lane->routing;
    uint32_t local = p->layout.local_experts;
    r->received[source] = 0;
    if (!epw_by_expert(r->layout)) {
        empty(p, lane, epw_routing_source_place(r, source, 0), r->announced[source], r->capacity);
        return;
    }
    for (uint32_t e = 0; e < local; e++) {
        uint64_t first = r->offsets[e], list = r->layout == EPW_EXPERT_MAJOR ? first : 0;
        size_t of_source = (size_t)source * local + e;
        empty(p, lane, first + r->base[of_source], r->counts[of_source], list + r->capacity);
    }
}

/* ---- a turn ---- */

/* All openings have arrived, so the places of rows can be decided. */
static void place(epw_prefill *p, epw_prefill_lane *lane) {
    epw_routing *r = lane->routing;
    const epw_prefill_output *out = &lane->output;
    if (!lane->again && !epw_routing_place(r)) {
        lane->status = EPW_ERR_NO_MEMORY;
        epw_prefill_give_up(p, lane);
        return;
    }
    lane->placed = true;
    bool by_expert = epw_by_expert(r->layout);
    for (uint32_t e = 0; e < p->layout.local_experts; e++) {
        if (out->counts != NULL) out->counts[e] = r->expert_rows[e];
        if (out->offsets != NULL) out->offsets[e] = r->offsets[e];
        if (out->overflow != NULL && by_expert) out->overflow[e] = (uint32_t)epw_routing_passing(r, e);
    }
    for (uint32_t s = 0; s < p->layout.ranks; s++) {
        uint64_t first =
            r->layout == EPW_RANK_MAJOR ? (uint64_t)s * p->config.ep.max_tokens : r->row_first[s];
        if (out->source_offsets != NULL) out->source_offsets[s] = (uint32_t)first;
        if (out->overflow != NULL && !by_expert)
            out->overflow[s] = (uint32_t)epw_routing_source_passing(r, s);
    }
    clear_places(p, lane);
}

/* Takes messages out of the ring without using them. */
static void discard(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer, uint64_t count) {
    epw_stream *s = &lane->streams[lane->kind][peer];
    for (uint64_t i = 0; i < count; i++) {
        epw_row_head head = epw_prefill_read_head(epw_prefill_slot_here(p, lane, peer, s->ring.taken));
        epw_stream_took(s, 1);
        if (head.kind == EPW_MESSAGE_VOID) epw_stream_end_taking(s);
        if (!s->takes) return;
    }
}

bool epw_prefill_discard(epw_prefill *p, epw_prefill_lane *lane) {
    bool moved = false;
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        epw_stream *s = &lane->streams[lane->kind][peer];
        uint64_t count = epw_stream_takable(s, true);
        if (!lane->peers[peer].refused || !s->opened || count == 0) continue;
        discard(p, lane, peer, count);
        moved = true;
    }
    return moved;
}

static void refuse(epw_prefill *p, epw_prefill_lane *lane, uint32_t source) {
    epw_prefill_peer *peer = &lane->peers[source];
    peer->refused = true;
    epw_prefill_miss(p, lane, source, peer->ended ? EPW_CAUSE_PARTIAL : EPW_CAUSE_FORMAT, epw_now_ns());
}

bool epw_prefill_take(epw_prefill *p, epw_prefill_lane *lane) {
    epw_stream *streams = lane->streams[EPW_KIND_DISPATCH];
    uint32_t items = 0, ranks = p->layout.ranks;
    bool moved = false;
    if (lane->receives && !lane->placed && epw_streams_opened(streams, ranks)) {
        place(p, lane);
        moved = true;
    }
    if (!lane->placed || lane->dropped) return moved;
    for (uint32_t s = 0; s < ranks; s++) {
        uint64_t count = lane->peers[s].refused || !streams[s].opened ? 0 : lane->turns[s].take;
        if (count > EPW_ROWS_TURN) count = EPW_ROWS_TURN;
        if (is_me(p, s)) {
            admit_own(p, lane, count);
        } else if (count > 0 && !admit(p, lane, s, count)) {
            refuse(p, lane, s);
            count = 0;
            moved = true;
        }
        lane->until[s] = count;
        items += (uint32_t)((count + EPW_ROWS_CHUNK - 1) / EPW_ROWS_CHUNK);
    }
    if (items == 0) return moved;
    take_job job = {p, lane};
    epw_pool_run(p->pool, take_chunk, &job, items);
    for (uint32_t s = 0; s < ranks; s++) {
        if (lane->until[s] == 0) continue;
        epw_stream_took(&streams[s], lane->until[s]);
        if (!streams[s].takes) lane->routing->received[s] = lane->routing->announced[s];
    }
    return true;
}

void epw_prefill_tell(epw_prefill *p, epw_prefill_lane *lane) {
    const epw_prefill_output *out = &lane->output;
    const epw_routing *r = lane->routing;
    uint32_t local = p->layout.local_experts;
    for (uint32_t s = 0; s < p->layout.ranks; s++) {
        if (!lane->again) lane->routing->complete[s] = !lane->peers[s].missing;
        if (lane->peers[s].missing) forget(p, lane, s);
        if (out->source_counts != NULL) out->source_counts[s] = r->received[s];
        if (out->wait_ns != NULL) epw_add_total(&out->wait_ns[s], lane->peers[s].waited_ns);
        for (uint32_t e = 0; e < local; e++) {
            uint32_t rows = r->received[s] > 0 ? r->counts[(size_t)s * local + e] : 0;
            uint64_t first = r->base[(size_t)s * local + e];
            if (out->ranges != NULL) out->ranges[(size_t)e * p->layout.ranks + s] = first << 32 | rows;
            if (out->expert_totals != NULL) epw_add_total(&out->expert_totals[e], rows);
            if (out->expert_totals_i32 != NULL) epw_add_total_i32(&out->expert_totals_i32[e], rows);
        }
    }
}
