/* Which row goes to which rank, and its place there: the memory of a routing, the numbers of its rows, and
 * the places. */
#include "prefill/parts.h"

#include <stdlib.h>

#define LINE 64u

/* ---- memory ---- */

/* Takes `count` numbers from the arena. Without an arena it returns NULL, and only adds up the size. */
static uint32_t *take(unsigned char *arena, uint64_t *used, uint64_t count) {
    uint32_t *at = arena != NULL ? (uint32_t *)(void *)(arena + *used) : NULL;
    *used += epw_align(count * sizeof(uint32_t), LINE);
    return at;
}

static uint64_t carve_own(epw_routing *r, const epw_prefill_layout *l, uint64_t tokens,
                          unsigned char *arena) {
    uint64_t used = 0, entries = tokens * l->topk, ranks = l->ranks, local = l->local_experts;
    r->ids = (int32_t *)take(arena, &used, entries);
    r->weights = (float *)(void *)take(arena, &used, entries);
    r->sent_row = take(arena, &used, entries);
    r->sent_entry = take(arena, &used, entries);
    r->sent_index = take(arena, &used, entries);
    r->sent_tokens = take(arena, &used, tokens * (l->topk < ranks ? l->topk : ranks));
    r->sent_first = take(arena, &used, ranks + 1);
    r->sent_entries = take(arena, &used, ranks);
    r->sent_counts = take(arena, &used, ranks * local);
    r->received = take(arena, &used, ranks);
    r->announced = take(arena, &used, ranks);
    r->complete = take(arena, &used, ranks);
    r->counts = take(arena, &used, ranks * local);
    r->fill = take(arena, &used, ranks * local);
    r->base = take(arena, &used, ranks * local);
    r->row_first = take(arena, &used, ranks + 1);
    r->expert_rows = take(arena, &used, local);
    r->offsets = take(arena, &used, local);
    return used;
}

static uint64_t carve_come(epw_routing *r, uint64_t rows, unsigned char *arena) {
    uint64_t used = 0, numbers = sizeof(epw_row_place) / sizeof(uint32_t);
    r->row_token = take(arena, &used, rows);
    r->row_entry = take(arena, &used, rows);
    r->places = (epw_row_place *)(void *)take(arena, &used, rows * r->of->layout.topk * numbers);
    return used;
}

epw_status epw_routing_check_epoch(const epw_routing *r, const epw_prefill_lane *locked, epw_where where) {
    uint32_t now = epw_word_epoch(locked->own_word);
    if (r->epoch == now) return EPW_OK;
    return epw_fail(EPW_ERR_STATE, where,
                    "the routing is of epoch %u, the membership now is epoch %u: dispatch again", r->epoch,
                    now);
}

uint64_t epw_routing_own_bytes(const epw_prefill_layout *l, uint64_t tokens) {
    epw_routing sized;
    return carve_own(&sized, l, tokens, NULL);
}

epw_status epw_routing_take(epw_routing *r, uint32_t tokens, epw_where where) {
    if (r->own != NULL && tokens <= r->token_room) return EPW_OK;
    void *arena = calloc(1, epw_routing_own_bytes(&r->of->layout, tokens));
    if (arena == NULL)
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the routing of %u tokens", tokens);
    free(r->own);
    r->own = arena;
    r->token_room = tokens;
    carve_own(r, &r->of->layout, tokens, arena);
    r->made = false; /* the former contents are gone */
    return EPW_OK;
}

static bool take_rows(epw_routing *r, uint64_t rows) {
    if (r->come != NULL && rows <= r->row_room) return true;
    epw_routing sized = {.of = r->of};
    void *arena = malloc(carve_come(&sized, rows, NULL) + LINE);
    if (arena == NULL) return false;
    free(r->come);
    r->come = arena;
    r->row_room = rows;
    carve_come(r, rows, arena);
    return true;
}

/* ---- rows that are sent ---- */

void epw_routing_number(epw_routing *r, const epw_prefill_lane *lane, const epw_dispatch_input *in) {
    const epw_prefill *p = r->of;
    const epw_config *c = &p->config.ep;
    uint32_t width = c->topk, ranks = c->ranks;
    uint32_t *rows = r->received; /* [ranks], until rows arrive */
    r->tokens = in->tokens;
    r->topk = in->topk;
    r->weighted = in->topk_weights != NULL;
    memset(r->sent_counts, 0, c->experts * sizeof r->sent_counts[0]);
    memset(r->sent_entries, 0, ranks * sizeof r->sent_entries[0]);
    memset(rows, 0, ranks * sizeof rows[0]);
    for (uint32_t t = 0; t < in->tokens; t++) {
        int32_t *ids = r->ids + (size_t)t * width;
        uint32_t *row = r->sent_row + (size_t)t * width;
        /* Cannot fail: the ids have been checked. */
        (void)epw_input_read_topk(epw_prefill_where(p, "dispatch"), c, in, t, ids,
                                  r->weights + (size_t)t * width);
        for (uint32_t j = 0; j < width; j++) {
            row[j] = EPW_NO_PLACE;
            if (ids[j] < 0) continue;
            uint32_t rank = epw_rank_of(p, ids[j]);
            if (!epw_prefill_present(&lane->peers[rank])) continue;
            r->sent_index[(size_t)t * width + j] = r->sent_counts[ids[j]]++;
            r->sent_entry[(size_t)t * width + j] = r->sent_entries[rank]++;
            for (uint32_t i = 0; i < j && row[j] == EPW_NO_PLACE; i++)
                if (ids[i] >= 0 && epw_rank_of(p, ids[i]) == rank) row[j] = row[i];
            if (row[j] == EPW_NO_PLACE) row[j] = rows[rank]++;
        }
    }
    r->sent_first[0] = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) r->sent_first[rank + 1] = r->sent_first[rank] + rows[rank];
    for (size_t i = 0; i < (size_t)in->tokens * width; i++) {
        if (r->sent_row[i] == EPW_NO_PLACE) continue;
        uint32_t rank = epw_rank_of(p, r->ids[i]);
        r->sent_tokens[r->sent_first[rank] + r->sent_row[i]] = (uint32_t)(i / width);
    }
    memset(r->received, 0, ranks * sizeof r->received[0]);
    memset(r->announced, 0, ranks * sizeof r->announced[0]);
    memset(r->complete, 0, ranks * sizeof r->complete[0]);
    memset(r->counts, 0, c->experts * sizeof r->counts[0]);
}

/* ---- places of rows that come ---- */

static uint64_t source_end(const epw_routing *r, uint32_t layout) {
    const epw_prefill *p = r->of;
    if (layout == EPW_RANK_MAJOR) return (uint64_t)p->layout.ranks * p->config.ep.max_tokens;
    uint64_t rows = 0;
    for (uint32_t s = 0; s < p->layout.ranks; s++) rows += r->announced[s];
    return rows;
}

uint64_t epw_routing_extent(const epw_routing *r, uint32_t layout, uint32_t alignment) {
    const epw_prefill_layout *l = &r->of->layout;
    if (!epw_by_expert(layout)) return source_end(r, layout);
    uint64_t end = 0;
    for (uint32_t e = 0; e < l->local_experts; e++) {
        uint64_t rows = 0;
        for (uint32_t s = 0; s < l->ranks; s++) rows += r->counts[s * l->local_experts + e];
        if (layout == EPW_PACKED) {
            end += epw_align(rows, alignment);
        } else if (rows > end) {
            end = rows;
        }
    }
    return end;
}

/* How many of `rows` rows from place `offset` on are beyond the capacity. */
static uint64_t passing(const epw_routing *r, uint64_t offset, uint64_t rows) {
    if (r->layout == EPW_EXPERT_MAJOR) offset = 0;
    if (offset >= r->capacity) return rows;
    return offset + rows > r->capacity ? offset + rows - r->capacity : 0;
}

uint64_t epw_routing_passing(const epw_routing *r, uint32_t e) {
    return passing(r, r->offsets[e], r->expert_rows[e]);
}

uint64_t epw_routing_source_passing(const epw_routing *r, uint32_t source) {
    /* Rank-major has a place for every row. */
    return r->layout == EPW_RANK_MAJOR ? 0 : passing(r, r->row_first[source], r->announced[source]);
}

bool epw_routing_place(epw_routing *r) {
    const epw_prefill_layout *l = &r->of->layout;
    uint32_t local = l->local_experts;
    uint64_t end = 0;
    r->overflow = 0;
    r->row_first[0] = 0;
    for (uint32_t s = 0; s < l->ranks; s++) r->row_first[s + 1] = r->row_first[s] + r->announced[s];
    memset(r->fill, 0, (size_t)l->ranks * local * sizeof r->fill[0]);
    for (uint32_t e = 0; e < local; e++) {
        uint32_t rows = 0;
        for (uint32_t s = 0; s < l->ranks; s++) {
            r->base[s * local + e] = rows;
            rows += r->counts[s * local + e];
        }
        r->expert_rows[e] = rows;
        uint64_t offset = r->layout == EPW_EXPERT_MAJOR ? e * r->capacity : end;
        r->offsets[e] = offset < EPW_NO_PLACE ? (uint32_t)offset : EPW_NO_PLACE;
        if (epw_by_expert(r->layout)) r->overflow += epw_routing_passing(r, e);
        end += r->layout == EPW_PACKED ? epw_align(rows, r->alignment) : 0;
    }
    if (!epw_by_expert(r->layout)) r->overflow = passing(r, 0, source_end(r, r->layout));
    return take_rows(r, r->row_first[l->ranks]);
}

uint32_t epw_routing_expert_place(const epw_routing *r, const epw_row_place *place) {
    if (place->expert < 0) return EPW_NO_PLACE;
    uint64_t offset = r->offsets[place->expert], at = offset + place->number;
    uint64_t end = r->layout == EPW_EXPERT_MAJOR ? offset + r->capacity : r->capacity;
    return at < end ? (uint32_t)at : EPW_NO_PLACE;
}

uint32_t epw_routing_source_place(const epw_routing *r, uint32_t source, uint32_t row) {
    uint64_t first =
        r->layout == EPW_RANK_MAJOR ? (uint64_t)source * r->of->config.ep.max_tokens : r->row_first[source];
    return first + row < r->capacity ? (uint32_t)(first + row) : EPW_NO_PLACE;
}

uint64_t epw_routing_answers(const epw_routing *r, uint32_t source, bool ordered) {
    uint32_t local = r->of->layout.local_experts;
    if (!ordered || r->received[source] == 0) return r->received[source];
    uint64_t entries = 0;
    for (uint32_t e = 0; e < local; e++) entries += r->counts[(size_t)source * local + e];
    return entries;
}
