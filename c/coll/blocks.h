/* The positions of the ranks' blocks in the caller's memory. */
#ifndef EPW_COLL_BLOCKS_H
#define EPW_COLL_BLOCKS_H

#include "coll/parts.h"

/* The blocks of all ranks in one direction of a call, in bytes. */
typedef struct blocks {
    const uint64_t *counts, *offsets;
    uint64_t count, element, rows, pitch;
    unsigned char *base;
} blocks;

static inline uint64_t row_bytes_of(const blocks *b, uint32_t rank) {
    return (b->counts != NULL ? b->counts[rank] : b->count) * b->element;
}

static inline uint64_t bytes_of(const blocks *b, uint32_t rank) {
    return b->rows * row_bytes_of(b, rank);
}

/* In matrices with a pitch, blocks lie side by side; otherwise one after the other. */
static inline uint64_t offset_of(const blocks *b, uint32_t rank) {
    if (b->offsets != NULL) return b->offsets[rank] * b->element;
    uint64_t rows = b->rows > 1 || b->pitch != 0 ? 1 : b->rows;
    if (b->counts == NULL) return rank * rows * b->count * b->element;
    uint64_t at = 0;
    for (uint32_t r = 0; r < rank; r++) at += b->counts[r];
    return at * b->element;
}

static inline epw_run run_of(const blocks *b, uint32_t rank) {
    epw_run run = {.base = b->base + offset_of(b, rank)};
    if (b->rows > 1) {
        run.row_bytes = row_bytes_of(b, rank);
        run.pitch = b->pitch;
    }
    return run;
}

/* The default pitch of a matrix that holds the blocks of all ranks. */
static inline uint64_t whole_row(const epw_comm *comm, const blocks *b) {
    uint64_t elements = 0;
    for (uint32_t r = 0; r < comm->layout.ranks; r++) elements += b->counts != NULL ? b->counts[r] : b->count;
    return elements * b->element;
}

/* The blocks of all ranks in send or recv. A call with only one block on that side uses `single` instead. */
static inline blocks blocks_in(const epw_comm *comm, const epw_coll *c, bool in_recv) {
    uint64_t element = epw_type_bytes(c->type), pitch = in_recv ? c->recv_pitch : c->send_pitch;
    /* Those of send in an all-to-all in place may be left out: they are those of recv. */
    bool same = c->kind == EPW_ALL_TO_ALL && c->send == c->recv;
    bool counts_of_recv = in_recv || (same && c->send_counts == NULL),
         offsets_of_recv = in_recv || (same && c->send_offsets == NULL);
    blocks b = {.counts = counts_of_recv ? c->recv_counts : c->send_counts,
                .offsets = offsets_of_recv ? c->recv_offsets : c->send_offsets,
                .count = c->count,
                .element = element,
                .rows = c->rows > 0 ? c->rows : 1,
                .pitch = pitch * element,
                .base = in_recv ? c->recv : (unsigned char *)(uintptr_t)c->send};
    if (b.rows > 1 && b.pitch == 0) b.pitch = whole_row(comm, &b);
    return b;
}

/* The only block of that side, of the size that `like` has for this rank. */
static inline epw_run single(const epw_coll *c, bool in_recv, const blocks *like, uint32_t rank) {
    uint64_t pitch = (in_recv ? c->recv_pitch : c->send_pitch) * like->element;
    epw_run run = {.base = in_recv ? c->recv : (unsigned char *)(uintptr_t)c->send};
    if (like->rows > 1 && pitch != 0 && pitch != row_bytes_of(like, rank)) {
        run.row_bytes = row_bytes_of(like, rank);
        run.pitch = pitch;
    }
    return run;
}

#endif
