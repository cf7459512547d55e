/* The byte map of a window, one definition for C and CUDA. Offsets follow from the plan alone and are the
 * same on every rank and lane, so captured graphs and remote addresses stay valid.
 *
 *   0                 header          written by the owner
 *   4096              line[source]    128 bytes of signal words, written by that source alone
 *   expert_counts     [lane][source]  rows for each local expert, and a progress word, written by that source
 *                                     alone
 *   control_bytes     dispatch        [lane][source][token] slots of slot_bytes
 *   + dispatch_bytes  combine         [lane][answerer][token][answer] rows of hidden 16-bit values +
 *   combine_bytes
 *   + ordered_bytes   zero-copy       [lane][local expert][row] rows of hidden 16-bit values, owner only
 *
 * Who may access a slot. Dispatch slot: its source, until it posts the dispatch word; then the owner of the
 * window, until it posts the combine word. Combine slot: its answerer, from the source's dispatch word until
 * it posts its own combine word; then the source, which owns the window, until it posts the next dispatch
 * word. */
#ifndef EPW_EP_LAYOUT_H
#define EPW_EP_LAYOUT_H

#include "base/inline.h"
#include "epwire.h"
#include "peer/words.h"

/* The most ranks of a group on GPUs: a block has a thread that waits for each rank, and tables of them. */
#define EPW_GPU_MAX_RANKS 256

/* The most experts of a group on GPUs: kernels keep a number for each in shared memory, beside their tiles.
 */
#define EPW_GPU_MAX_EXPERTS 8192

/* The words of a lane that dispatch and combine post. */
enum {
    EPW_WORD_DISPATCH = EPW_WORD_USER,   /* value: rows sent */
    EPW_WORD_COMBINE = EPW_WORD_USER + 1 /* value: rows answered (| EPW_ANSWER_ORDERED) */
};

/* The words of verdict.h, which belong to no lane: posted over lane 0, in order with its words. The last of
 * them lies where lane 1 would have its own. */
enum {
    EPW_WORD_REPORT = EPW_WORD_USER + 2,
    EPW_WORD_LAST = EPW_WORD_USER + 3,                         /* of the membership before */
    EPW_WORD_LAST_BUT_ONE = EPW_LANE_WORDS + EPW_WORD_USER + 3 /* of the one before that */
};

/* Set in the value of a combine word if there is a row per expert, so that ranks that disagree on the mode
 * are noticed. Plans for ordered combine have at most EPW_ORDERED_MAX_TOKENS tokens, so that the row count
 * stays below. */
#define EPW_ANSWER_ORDERED     (1u << 16)
#define EPW_ORDERED_MAX_TOKENS 65535u

/* One routed expert of a row. */
typedef struct epw_entry {
    int32_t expert; /* physical id, -1: none */
    float weight;
} epw_entry;

/* Precedes every dispatched row: this struct, then topk entries (config.topk), then as many indices (u32):
 * the row's number among those that this source sends to that expert, then the sideband bytes. With the
 * expert counts of all sources a receiver knows every row's place in every expert's list without looking at
 * any other row. In all 16 + (8 + 4)*topk + sideband bytes, rounded up to 128: an entry takes 8, its index 4.
 */
typedef struct epw_slot_header {
    uint32_t token;  /* its index at the source */
    uint32_t format; /* hash of payload, sizes, sideband and the presence of weights: both ends must agree */
    uint32_t reserved[2];
} epw_slot_header;

/* The format of the rows of one dispatch: the row shape, and its sizes in a slot. */
typedef struct epw_row_format {
    uint32_t payload_bytes;
    uint32_t scale_count;
    uint32_t scale_bytes; /* of one scale as it travels */
    uint32_t hash;        /* both ends must agree on it */
} epw_row_format;

/* A row with its scales. */
EPW_INLINE uint64_t epw_format_bytes(const epw_row_format *format) {
    return format->payload_bytes + (uint64_t)format->scale_count * format->scale_bytes;
}

/* Everything that determines where a byte lies. */
typedef struct epw_layout {
    uint32_t ranks, max_tokens, topk, local_experts, answers;
    uint64_t rows;         /* ranks * max_tokens */
    uint64_t slot_bytes;   /* one dispatch slot */
    uint64_t header_bytes; /* its part before the payload */
    uint64_t row_bytes;    /* hidden 16-bit values */
    uint64_t count_bytes;  /* expert counts and progress word of one source, whole cache lines */
    /* First byte of each area, and bytes of it per lane. */
    uint64_t expert_counts, expert_counts_lane;
    uint64_t dispatch, dispatch_lane;
    uint64_t combine, combine_lane;
    uint64_t zero_copy, zero_copy_lane;
} epw_layout;

/* Where the indices and the sideband of a slot begin. */
EPW_INLINE uint64_t epw_indices_offset(const epw_layout *l) {
    return sizeof(epw_slot_header) + l->topk * sizeof(epw_entry);
}
/* The entries of a slot. */
EPW_INLINE const epw_entry *epw_entries(const unsigned char *slot) {
    return (const epw_entry *)(slot + sizeof(epw_slot_header));
}
EPW_INLINE uint64_t epw_sideband_offset(const epw_layout *l) {
    return epw_indices_offset(l) + l->topk * sizeof(uint32_t);
}

/* Rows that `source` sends to each local expert of the owner: u32 [local_experts]. */
EPW_INLINE uint64_t epw_expert_counts_offset(const epw_layout *l, uint32_t lane, uint32_t source) {
    return l->expert_counts + lane * l->expert_counts_lane + source * l->count_bytes;
}

/* The progress word of `answerer`: while it answers many rows it tells how many of this rank's it has
 * answered so far, the first ones, so that these are summed while others are on their way. Only a hint:
 * whether answers count is decided by the combine word alone, and where peers tell no progress, or answer a
 * few rows only, all answers are awaited by that. A dispatch clears the words of its lane before it permits
 * anybody to answer, so that none of them is taken for that of a later operation with the same number. */
EPW_INLINE uint64_t epw_progress_offset(const epw_layout *l, uint32_t lane, uint32_t answerer) {
    return epw_expert_counts_offset(l, lane, answerer) + l->count_bytes - sizeof(uint64_t);
}

/* Dispatch slot of `row` from `source`. */
EPW_INLINE uint64_t epw_slot_offset(const epw_layout *l, uint32_t lane, uint32_t source, uint32_t row) {
    return l->dispatch + lane * l->dispatch_lane + ((uint64_t)source * l->max_tokens + row) * l->slot_bytes;
}

/* Answer number `answer` (0 if rank-reduced) of `answerer` to the row that it was sent as `row`. */
EPW_INLINE uint64_t epw_answer_offset(const epw_layout *l, uint32_t lane, uint32_t answerer, uint32_t row,
                                      uint32_t answer) {
    uint64_t index = ((uint64_t)answerer * l->max_tokens + row) * l->answers + answer;
    return l->combine + lane * l->combine_lane + index * l->row_bytes;
}

/* Zero-copy area of a lane. */
EPW_INLINE uint64_t epw_zero_copy_offset(const epw_layout *l, uint32_t lane) {
    return l->zero_copy + lane * l->zero_copy_lane;
}

#endif
