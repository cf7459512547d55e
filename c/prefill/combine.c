/* Answers to peers, and the sums of the answers that arrive. Answers arrive in the order in which the rows
 * were sent, so sums are made in the order of tokens: the answers of the first token without a sum are at the
 * front of the rings. */
#include "prefill/parts.h"

#include "base/clock.h"

static bool is_ordered(const epw_prefill_lane *lane) {
    return lane->combine.mode == EPW_COMBINE_ORDERED;
}

/* ---- answering ---- */

/* Row `place` of the experts' output. */
static const unsigned char *made_at(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t place) {
    return (const unsigned char *)lane->combine.expert_out + place * epw_prefill_answer_bytes(p, lane);
}

static float weight_of(const epw_prefill_lane *lane, const epw_row_place *entry, uint32_t place) {
    return lane->combine.row_weights != NULL ? lane->combine.row_weights[place] : entry->weight;
}

/* The value that is carried back for entry j of a row at `place`. */
static float value_of(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t place, uint32_t j) {
    const float *values = lane->combine.row_values;
    if (values == NULL) return 0.0f;
    return epw_by_expert(lane->routing->layout) ? values[place] : values[(size_t)place * p->layout.topk + j];
}

/* The answer to a row: one sum over this rank's experts, or their rows one by one. */
typedef struct answer {
    uint32_t mask; /* of the token's top-k: the entries whose contributions it has */
    float values[EPW_MAX_TOPK];
    const void *rows[EPW_MAX_TOPK];
    float weights[EPW_MAX_TOPK];
    uint32_t positions[EPW_MAX_TOPK];
    uint32_t count;
} answer;

static void find_answer(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t source, uint32_t row,
                        answer *a) {
    const epw_routing *r = lane->routing;
    const epw_row_place *places = epw_places_of(r, source, row);
    uint32_t whole = epw_by_expert(r->layout) ? EPW_NO_PLACE : epw_routing_source_place(r, source, row);
    a->mask = a->count = 0;
    for (uint32_t j = 0; j < p->layout.topk; j++) {
        a->values[j] = 0.0f;
        if (places[j].expert < 0) continue;
        uint32_t place = epw_by_expert(r->layout) ? epw_routing_expert_place(r, &places[j]) : whole;
        if (place == EPW_NO_PLACE) continue;
        a->mask |= 1u << j;
        a->values[j] = value_of(p, lane, place, j);
        if (!epw_by_expert(r->layout) && a->count > 0) continue;
        a->rows[a->count] = made_at(p, lane, place);
        a->positions[a->count] = j;
        a->weights[a->count++] = epw_by_expert(r->layout) ? weight_of(lane, &places[j], place) : 1.0f;
    }
}

/* Copies an unchanged row into a slot. */
static void copy_row(const epw_prefill *p, const epw_prefill_lane *lane, void *to, const void *row) {
    if (lane->streams_rows) {
        p->numerics->copy_stream(to, row, epw_prefill_answer_bytes(p, lane));
    } else {
        memcpy(to, row, epw_prefill_answer_bytes(p, lane));
    }
}

/* Reduces the answer to one row, in a slot, or in memory that is read again at once. */
static void reduce_answer(const epw_prefill *p, const epw_prefill_lane *lane, const answer *a, void *to,
                          bool streams) {
    uint32_t dtype = p->config.ep.combine_dtype, width = epw_prefill_width(p, lane);
    p->numerics->reduce(dtype, a->rows, a->weights, a->count, width, to, streams);
}

static void write_answer(epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer, uint64_t number,
                         const answer *a, uint32_t mask, const void *row) {
    unsigned char *slot = epw_prefill_slot_there(p, lane, peer, number);
    epw_row_head head = {mask, lane->hash, EPW_MESSAGE_ROW, lane->ops[EPW_KIND_COMBINE]};
    memcpy(slot, &head, sizeof head);
    memcpy(slot + sizeof head, a->values, p->layout.topk * sizeof a->values[0]);
    if (mask == 0) return;
    bool as_it_is = !epw_by_expert(lane->routing->layout) && a->count == 1;
    if (row != NULL || as_it_is) {
        copy_row(p, lane, slot + p->layout.answer_head, row != NULL ? row : a->rows[0]);
    } else {
        reduce_answer(p, lane, a, slot + p->layout.answer_head, lane->streams_rows);
    }
}

typedef struct answer_job {
    epw_prefill *p;
    epw_prefill_lane *lane;
} answer_job;

/* How many answers of the operation have been written for the peer. */
static uint64_t answers_before(const epw_prefill_lane *lane, uint32_t peer) {
    const epw_stream *s = &lane->streams[EPW_KIND_COMBINE][peer];
    return s->ring.written - (lane->peers[peer].opening + 1);
}

/* The number of the first answer to a row, counted from the first of the operation. */
static uint64_t first_answer(const epw_prefill_lane *lane, uint32_t peer, uint32_t row) {
    const epw_routing *r = lane->routing;
    return is_ordered(lane) ? r->row_entry[r->row_first[peer] + row] : row;
}

static void answer_row(const answer_job *job, uint32_t peer, uint32_t row) {
    epw_prefill *p = job->p;
    epw_prefill_lane *lane = job->lane;
    const epw_row_place *places = epw_places_of(lane->routing, peer, row);
    uint64_t before = answers_before(lane, peer), at = first_answer(lane, peer, row), zero = before;
    uint64_t number = lane->streams[EPW_KIND_COMBINE][peer].ring.written;
    answer a;
    find_answer(p, lane, peer, row, &a);
    if (!is_ordered(lane)) {
        write_answer(p, lane, peer, number + (at - zero), &a, a.mask, NULL);
        return;
    }
    uint32_t next = 0;
    for (uint32_t j = 0; j < p->layout.topk; j++) {
        if (places[j].expert < 0) continue;
        bool has = next < a.count && a.positions[next] == j;
        /* Other answers of this row may have been written in the previous turn, or must wait for the next
         * one. */
        if (at >= before && at < before + lane->turns[peer].write)
            write_answer(p, lane, peer, number + (at - zero), &a, has ? 1u << j : 0,
                         has ? a.rows[next] : NULL);
        next += has;
        at++;
    }
}

/* Items are chunks of rows, from lane->peers[peer].next to lane->until[peer]. */
static void answer_chunk(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const answer_job *job = context;
    uint32_t peer = 0;
    for (;; peer++) { /* ends: there are as many items as chunks of all peers */
        uint64_t rows = job->lane->until[peer] - job->lane->peers[peer].next;
        uint32_t chunks = (uint32_t)((rows + EPW_ROWS_CHUNK - 1) / EPW_ROWS_CHUNK);
        if (item < chunks) break;
        item -= chunks;
    }
    uint32_t first = job->lane->peers[peer].next + item * EPW_ROWS_CHUNK;
    for (uint32_t row = first; row < first + EPW_ROWS_CHUNK && row < job->lane->until[peer]; row++)
        answer_row(job, peer, row);
}

bool epw_prefill_answer(epw_prefill *p, epw_prefill_lane *lane) {
    const epw_routing *r = lane->routing;
    uint32_t items = 0;
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        epw_prefill_peer *q = &lane->peers[peer];
        uint64_t row = q->next, end = 0;
        if (lane->turns[peer].write > EPW_ROWS_TURN) lane->turns[peer].write = EPW_ROWS_TURN;
        if (lane->turns[peer].write > 0) end = answers_before(lane, peer) + lane->turns[peer].write;
        while (end > 0 && row < r->received[peer] && first_answer(lane, peer, (uint32_t)row) < end) row++;
        lane->until[peer] = row;
        items += (uint32_t)((row - q->next + EPW_ROWS_CHUNK - 1) / EPW_ROWS_CHUNK);
    }
    if (items == 0) return false;
    answer_job job = {p, lane};
    epw_pool_run(p->pool, answer_chunk, &job, items);
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        epw_prefill_peer *q = &lane->peers[peer];
        if (lane->until[peer] == q->next) continue;
        epw_stream_wrote(&lane->streams[EPW_KIND_COMBINE][peer], lane->turns[peer].write);
        /* If the last row has answers left, the next turn continues with it. */
        uint32_t last = (uint32_t)lane->until[peer] - 1;
        uint64_t behind = lane->until[peer] < r->received[peer]
                              ? first_answer(lane, peer, last + 1)
                              : answers_before(lane, peer) + lane->streams[EPW_KIND_COMBINE][peer].to_write;
        q->next = behind > answers_before(lane, peer) ? last : last + 1;
    }
    return true;
}

/* ---- checking what comes ---- */

/* Checks the heads of answers that have arrived since the last call. */
static bool check_answers(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer) {
    epw_stream *s = &lane->streams[EPW_KIND_COMBINE][peer];
    epw_prefill_peer *q = &lane->peers[peer];
    uint64_t before = q->checked;
    if (!s->opened || !s->takes || q->refused || q->ended) return false;
    uint64_t total = s->ring.taken - lane->collected[peer] + s->to_take;
    while (q->checked < total && lane->collected[peer] + q->checked < s->ring.seen) {
        uint64_t number = lane->collected[peer] + q->checked;
        epw_row_head head = epw_prefill_read_head(epw_prefill_slot_here(p, lane, peer, number));
        bool good = head.op == lane->ops[EPW_KIND_COMBINE] && head.format == lane->hash;
        if (good && head.kind == EPW_MESSAGE_VOID) {
            q->ended = true;
            s->to_take = number - s->ring.taken + 1;
            epw_prefill_miss(p, lane, peer, EPW_CAUSE_PARTIAL, epw_now_ns());
            return true;
        }
        if (!good || head.kind != EPW_MESSAGE_ROW) {
            q->refused = true;
            epw_prefill_miss(p, lane, peer, EPW_CAUSE_FORMAT, epw_now_ns());
            return true;
        }
        q->checked++;
    }
    return q->checked > before;
}

/* ---- sums ---- */

/* The number of the answer, among those of its rank, that has an entry of a token. */
static uint64_t answer_of(const epw_prefill_lane *lane, size_t entry) {
    const epw_routing *r = lane->routing;
    return is_ordered(lane) ? r->sent_entry[entry] : r->sent_row[entry];
}

static bool is_me(const epw_prefill *p, uint32_t rank) {
    return rank == p->config.ep.rank;
}

/* Whether entry j of the token was sent to a rank whose answer has arrived. A rank that has sent what it must
 * not may overwrite its answers. */
static bool has_answer(const epw_prefill *p, const epw_prefill_lane *lane, size_t entry, uint32_t rank) {
    const epw_routing *r = lane->routing;
    if (r->sent_row[entry] == EPW_NO_PLACE) return false;
    if (is_me(p, rank)) return r->received[rank] > 0;
    return !lane->peers[rank].refused && answer_of(lane, entry) < lane->peers[rank].checked;
}

/* Whether the sum of token t can be made: all its answers have arrived, or will never come. */
static bool is_complete(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t t) {
    const epw_routing *r = lane->routing;
    for (uint32_t j = 0; j < p->layout.topk; j++) {
        size_t entry = (size_t)t * p->layout.topk + j;
        if (r->ids[entry] < 0 || r->sent_row[entry] == EPW_NO_PLACE) continue;
        uint32_t rank = epw_rank_of(p, r->ids[entry]);
        if (is_me(p, rank) || has_answer(p, lane, entry, rank)) continue;
        if (epw_prefill_present(&lane->peers[rank]) && !lane->peers[rank].missing) return false;
    }
    return true;
}

bool epw_prefill_lacks_answer(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer) {
    const epw_routing *r = lane->routing;
    uint32_t t = lane->next_token;
    if (lane->kind != EPW_KIND_COMBINE || lane->dropped || !lane->receives || r == NULL || t >= r->tokens)
        return false;
    for (uint32_t j = 0; j < p->layout.topk; j++) {
        size_t entry = (size_t)t * p->layout.topk + j;
        if (r->ids[entry] < 0 || epw_rank_of(p, r->ids[entry]) != peer) continue;
        if (r->sent_row[entry] != EPW_NO_PLACE && !has_answer(p, lane, entry, peer)) return true;
    }
    return false;
}

typedef struct sum_job {
    epw_prefill *p;
    epw_prefill_lane *lane;
    uint32_t first, end; /* tokens */
} sum_job;

/* The rows of one sum, in the order of addition. */
typedef struct sum {
    const void *rows[EPW_MAX_TOPK + 2];
    float weights[EPW_MAX_TOPK + 2];
    uint32_t from[EPW_MAX_TOPK];
    uint32_t count, arrived, expected;
} sum;

/* Adds a row: rank-reduced answers in ascending order of ranks; ordered ones as they come, with their
 * weights. */
static void add_row(sum *s, const void *row, float weight, uint32_t rank, bool by_rank) {
    uint32_t at = s->count++;
    for (; by_rank && at > 0 && s->from[at - 1] > rank; at--) {
        s->rows[at] = s->rows[at - 1];
        s->from[at] = s->from[at - 1];
    }
    s->rows[at] = row;
    s->from[at] = rank;
    if (!by_rank) s->weights[at] = weight;
}

static float home_weight(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t t, uint32_t j) {
    const epw_routing *r = lane->routing;
    if (lane->combine.topk_weights != NULL) return lane->combine.topk_weights[(size_t)t * r->topk + j];
    return r->weights[(size_t)t * p->layout.topk + j];
}

/* Adds this rank's own answer to its token, which goes through no slot. */
static void add_own(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t t, size_t entry, uint32_t j,
                    unsigned char *scratch, sum *s, float *values) {
    const epw_routing *r = lane->routing;
    uint32_t rank = p->config.ep.rank;
    answer a;
    find_answer(p, lane, rank, r->sent_row[entry], &a);
    for (uint32_t i = 0; i < p->layout.topk; i++)
        if (values != NULL && i < r->topk && (a.mask >> i & 1)) values[i] = a.values[i];
    if (is_ordered(lane)) {
        for (uint32_t i = 0; i < a.count; i++) {
            if (a.positions[i] != j) continue;
            s->arrived++;
            add_row(s, a.rows[i], home_weight(p, lane, t, j), rank, false);
        }
        return;
    }
    s->arrived += (uint32_t)__builtin_popcount(a.mask);
    if (a.mask == 0) return;
    bool in_place = !epw_by_expert(r->layout);
    if (!in_place) reduce_answer(p, lane, &a, scratch, false);
    add_row(s, in_place ? a.rows[0] : scratch, 1.0f, rank, true);
}

static void add_answer(epw_prefill *p, const epw_prefill_lane *lane, uint32_t t, size_t entry, uint32_t j,
                       uint32_t rank, sum *s, float *values) {
    const epw_routing *r = lane->routing;
    const unsigned char *slot =
        epw_prefill_slot_here(p, lane, rank, lane->collected[rank] + answer_of(lane, entry));
    uint32_t mask = ((const epw_row_head *)(const void *)slot)->token;
    for (uint32_t i = 0; i < r->topk && values != NULL; i++)
        if (mask >> i & 1) memcpy(&values[i], slot + sizeof(epw_row_head) + i * sizeof(float), sizeof(float));
    if (mask == 0) return;
    s->arrived += is_ordered(lane) ? 1 : (uint32_t)__builtin_popcount(mask);
    add_row(s, slot + p->layout.answer_head, is_ordered(lane) ? home_weight(p, lane, t, j) : 1.0f, rank,
            !is_ordered(lane));
}

static void sum_token(const sum_job *job, uint32_t t, uint32_t thread) {
    epw_prefill *p = job->p;
    const epw_prefill_lane *lane = job->lane;
    const epw_prefill_combine_output *out = &lane->sums;
    const epw_routing *r = lane->routing;
    uint32_t width = p->layout.topk, words = (p->layout.ranks + 31) / 32;
    uint32_t *lacks = out->lacks != NULL ? out->lacks + (size_t)t * words : NULL;
    float *values = out->values != NULL ? out->values + (size_t)t * r->topk : NULL;
    sum s = {.count = 0};
    if (lacks != NULL) memset(lacks, 0, words * sizeof lacks[0]);
    if (values != NULL) memset(values, 0, r->topk * sizeof values[0]);
    for (uint32_t j = 0; j < width; j++) {
        size_t entry = (size_t)t * width + j, before = (size_t)t * width;
        if (r->ids[entry] < 0) continue;
        uint32_t rank = epw_rank_of(p, r->ids[entry]);
        s.expected++;
        if (!has_answer(p, lane, entry, rank)) {
            if (lacks != NULL) lacks[rank / 32] |= 1u << (rank % 32);
            continue;
        }
        bool again = false;
        for (; before < entry && !is_ordered(lane); before++)
            again |= r->ids[before] >= 0 && epw_rank_of(p, r->ids[before]) == rank;
        if (again) continue;
        if (is_me(p, rank)) {
            add_own(p, lane, t, entry, j, p->scratch + thread * p->scratch_bytes, &s, values);
        } else {
            add_answer(p, lane, t, entry, j, rank, &s, values);
        }
    }
    uint64_t row = epw_prefill_answer_bytes(p, lane);
    for (uint32_t i = 0; i < 2; i++) {
        if (lane->combine.bias[i] == NULL) continue;
        s.weights[s.count] = 1.0f;
        s.rows[s.count++] = (const unsigned char *)lane->combine.bias[i] + t * row;
    }
    p->numerics->reduce(p->config.ep.combine_dtype, s.rows, is_ordered(lane) ? s.weights : NULL, s.count,
                        epw_prefill_width(p, lane), (unsigned char *)out->out + t * row, lane->streams_rows);
    if (out->contributions == NULL) return;
    out->contributions[2 * (size_t)t] = (uint16_t)s.arrived;
    out->contributions[2 * (size_t)t + 1] = (uint16_t)s.expected;
}

static void sum_chunk(void *context, uint32_t item, uint32_t thread) {
    const sum_job *job = context;
    uint32_t first = job->first + item * EPW_ROWS_CHUNK;
    for (uint32_t t = first; t < first + EPW_ROWS_CHUNK && t < job->end; t++) sum_token(job, t, thread);
}

/* Returns the slots of the answers of tokens below `end`, which have been read, to their writers. */
static void take_answers(epw_prefill *p, epw_prefill_lane *lane, uint32_t first, uint32_t end) {
    const epw_routing *r = lane->routing;
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        const epw_stream *s = &lane->streams[EPW_KIND_COMBINE][peer];
        lane->until[peer] = s->ring.taken - lane->collected[peer];
    }
    for (size_t entry = (size_t)first * p->layout.topk; entry < (size_t)end * p->layout.topk; entry++) {
        if (r->ids[entry] < 0 || r->sent_row[entry] == EPW_NO_PLACE) continue;
        uint32_t rank = epw_rank_of(p, r->ids[entry]);
        uint64_t behind = answer_of(lane, entry) + 1;
        if (behind > lane->until[rank]) lane->until[rank] = behind;
    }
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        epw_stream *s = &lane->streams[EPW_KIND_COMBINE][peer];
        if (is_me(p, peer) || !s->takes || lane->peers[peer].refused) continue;
        uint64_t good =
            lane->until[peer] < lane->peers[peer].checked ? lane->until[peer] : lane->peers[peer].checked;
        uint64_t before = s->ring.taken - lane->collected[peer];
        if (good > before) epw_stream_took(s, good - before);
    }
}

/* Takes the VOID message of a peer that has given the operation up, once all its answers before that are
 * taken. */
static bool take_ends(epw_prefill *p, epw_prefill_lane *lane) {
    bool moved = false;
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        epw_stream *s = &lane->streams[EPW_KIND_COMBINE][peer];
        if (!lane->peers[peer].ended || !s->takes || s->to_take != 1) continue;
        epw_stream_took(s, 1);
        moved = true;
    }
    return moved;
}

bool epw_prefill_sum(epw_prefill *p, epw_prefill_lane *lane) {
    bool moved = false;
    if (!lane->receives) return false;
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) moved |= check_answers(p, lane, peer);
    uint32_t first = lane->next_token, end = first;
    while (end < lane->routing->tokens && end - first < EPW_ROWS_TURN && is_complete(p, lane, end)) end++;
    if (end > first) {
        sum_job job = {p, lane, first, end};
        epw_pool_run(p->pool, sum_chunk, &job, (end - first + EPW_ROWS_CHUNK - 1) / EPW_ROWS_CHUNK);
        take_answers(p, lane, first, end);
        lane->next_token = end;
        moved = true;
    }
    return take_ends(p, lane) || moved;
}
