/* The layout of a prefill window. Offsets depend only on the configuration, and are the same on every rank,
 * so captured graphs and remote addresses stay valid.
 *
 *   0            the floor's header and signal words
 *   control      [lane][source] 64 bytes, not used yet
 *   flags        on GPUs: [lane][area][peer][slot] a word, see EPW_FLAGS_WRITTEN
 *   rows         [lane][source][slot]   rows of dispatches, written only by that source
 *   answers      [lane][answerer][slot] answers of combines, written only by that answerer
 *
 * rules.h says who may use a slot at which time. Every message begins with an epw_row_head. */
#ifndef EPW_PREFILL_LAYOUT_H
#define EPW_PREFILL_LAYOUT_H

#include "base/remainder.h"
#include "ep/layout.h"

/* Ranks with another version, whose windows or messages differ, do not connect. */
#define EPW_PREFILL_VERSION 2u

/* The words of a lane, see rules.h: how many messages of dispatches and of combines were written and taken in
 * this epoch. */
enum {
    EPW_WORD_POSTED = EPW_WORD_USER,
    EPW_WORD_TAKEN = EPW_WORD_USER + 1,
    EPW_WORD_ANSWERED = EPW_WORD_USER + 2,
    EPW_WORD_COLLECTED = EPW_WORD_USER + 3
};

/* Kinds of messages. */
enum {
    EPW_MESSAGE_OPENING = 1, /* how many rows follow; in a dispatch, also for which experts */
    EPW_MESSAGE_ROW = 2,
    EPW_MESSAGE_VOID = 3 /* its source has given the operation up, and sends no more of its rows */
};

/* The head of every message, as large as an epw_slot_header. */
typedef struct epw_row_head {
    uint32_t token;  /* in a dispatched row: its index at the source. In an answer: bit j is set if the answer
                        has the contribution of the token's expert j. In an opening: the number of rows */
    uint32_t format; /* hash of the format on which both ends must agree */
    uint32_t kind;   /* EPW_MESSAGE_* */
    uint32_t op;     /* number of the operation on this ring, from 1 in each epoch */
} epw_row_head;
static_assert(sizeof(epw_row_head) == sizeof(epw_slot_header), "a row has the head of a decode row's size");

/* The opening of a dispatch is a head, this struct and, if `counted`, u32 [local_experts]: the rows for each
 * expert of the owner. Otherwise the routing of an earlier dispatch is used again. */
typedef struct epw_opening {
    uint32_t counted;
    uint32_t reserved[3];
} epw_opening;

typedef struct epw_prefill_layout {
    uint32_t ranks, topk, local_experts, slots;
    uint64_t slot_inverse; /* of `slots` */
    uint64_t header_bytes; /* of a dispatch slot, as epw_layout */
    uint64_t row_bytes;    /* hidden values of 16 bits */
    uint64_t slot_bytes;   /* of dispatch */
    uint64_t answer_head;  /* in an answer: its head, and topk f32 that are carried back */
    uint64_t answer_bytes; /* slot of combine */
    uint64_t control, flags, rows, answers;
    uint64_t window_bytes;
} epw_prefill_layout;

#define EPW_CONTROL_BYTES 64u

/* On GPUs each message has flags of its own in place of the words above: a kernel moves many messages at
 * once, which end in any order. Over queues the words travel all the same, and each rank's kernels set these
 * flags themselves (kernels/prefill/relay.cuh). A flag is the epoch and the number of
 * messages up to this one, see epw_count_word. Areas, each with one more for the other kind of operation: */
enum {
    EPW_FLAGS_WRITTEN = 0, /* in the window of the ring's owner: the source has written the message */
    EPW_FLAGS_READ =
        2, /* in the window of the source: the owner has read it, so its slot may be written again */
    EPW_FLAGS_NOTED = 4, /* in the window of the owner, which notes there for itself that it has read the
                            message */
    EPW_FLAG_AREAS = 6
};

EPW_INLINE uint64_t epw_flags_bytes(const epw_prefill_layout *l, uint32_t lanes) {
    return (uint64_t)lanes * EPW_FLAG_AREAS * l->ranks * l->slots * sizeof(uint64_t);
}
/* The slot of message `number`, which is below 2^47. */
EPW_INLINE uint32_t epw_ring_slot(const epw_prefill_layout *l, uint64_t number) {
    return epw_remainder(number, l->slots, l->slot_inverse);
}

EPW_INLINE uint64_t epw_flag_offset(const epw_prefill_layout *l, uint32_t lane, uint32_t area, uint32_t peer,
                                    uint64_t number) {
    uint64_t list = ((uint64_t)lane * EPW_FLAG_AREAS + area) * l->ranks + peer;
    return l->flags + (list * l->slots + epw_ring_slot(l, number)) * sizeof(uint64_t);
}

EPW_INLINE uint64_t epw_row_slot_offset(const epw_prefill_layout *l, uint32_t lane, uint32_t source,
                                        uint64_t number) {
    uint64_t ring = ((uint64_t)lane * l->ranks + source) * l->slots;
    return l->rows + (ring + epw_ring_slot(l, number)) * l->slot_bytes;
}
EPW_INLINE uint64_t epw_answer_slot_offset(const epw_prefill_layout *l, uint32_t lane, uint32_t answerer,
                                           uint64_t number) {
    uint64_t ring = ((uint64_t)lane * l->ranks + answerer) * l->slots;
    return l->answers + (ring + epw_ring_slot(l, number)) * l->answer_bytes;
}

#endif
