/* Signal words: their format, and where the words of a source lie in a peer's window. One definition for C
 * and CUDA.
 *
 * A word is 64 bits, {epoch 23 | op 24 | value 17}, and has one writer; an epoch word has a step in place of
 * the last two. A reader accepts only the exact epoch and op that it expects, so that late or early words are
 * never taken for current ones. Epochs count up from 1, so a zeroed window matches nothing. Operations of a
 * lane count up from 1 in each epoch and wrap, which is safe because every operation writes the word again.
 */
#ifndef EPW_PEER_WORDS_H
#define EPW_PEER_WORDS_H

#include "base/inline.h"
#include "epwire.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#define EPW_WORD_VALUE_BITS 17
#define EPW_WORD_OP_BITS    24
#define EPW_WORD_VALUE_MAX  ((1u << EPW_WORD_VALUE_BITS) - 1)
#define EPW_OP_MAX          ((1u << EPW_WORD_OP_BITS) - 1)
#define EPW_EPOCH_MAX       ((1u << 23) - 1)

static_assert(EPW_STEP_MAX == (UINT64_C(1) << (EPW_WORD_OP_BITS + EPW_WORD_VALUE_BITS)) - 1,
              "a step fills what an epoch word has beside the epoch");

EPW_INLINE uint64_t epw_word(uint32_t epoch, uint32_t op, uint32_t value) {
    return (uint64_t)epoch << (EPW_WORD_OP_BITS + EPW_WORD_VALUE_BITS) |
           (uint64_t)(op & EPW_OP_MAX) << EPW_WORD_VALUE_BITS | value;
}

/* The word by which a rank says that it has begun an epoch, at this step: {epoch 23 | step 41}. */
EPW_INLINE uint64_t epw_epoch_word(uint32_t epoch, uint64_t step) {
    return epw_word(epoch, 0, 0) | step;
}

EPW_INLINE uint32_t epw_word_epoch(uint64_t word) {
    return (uint32_t)(word >> (EPW_WORD_OP_BITS + EPW_WORD_VALUE_BITS));
}
EPW_INLINE uint64_t epw_word_step(uint64_t epoch_word) {
    return epoch_word & EPW_STEP_MAX;
}
/* A count, modulo 2^41, in the epoch of this rank's own word. */
EPW_INLINE uint64_t epw_count_word(uint64_t own_word, uint64_t count) {
    return epw_epoch_word(epw_word_epoch(own_word), count & EPW_STEP_MAX);
}
EPW_INLINE uint32_t epw_word_value(uint64_t word) {
    return (uint32_t)word & EPW_WORD_VALUE_MAX;
}

/* The operation after `op`. */
EPW_INLINE uint32_t epw_next_op(uint32_t op) {
    return (op + 1) & EPW_OP_MAX;
}

/* The value of a beacon: the rank for which its writer waits, and how long that wait may take, namely up to
 * 2^lengthened times as long as a wait by the group's deadline. */
#define EPW_BEACON_RANK_BITS  11
#define EPW_BEACON_LENGTH_MAX ((1u << (EPW_WORD_VALUE_BITS - EPW_BEACON_RANK_BITS)) - 1)

/* The rank in a beacon that says "I wait no longer". */
#define EPW_BEACON_NONE ((1u << EPW_BEACON_RANK_BITS) - 1)

EPW_INLINE uint32_t epw_beacon_value(uint32_t named, uint32_t lengthened) {
    return lengthened << EPW_BEACON_RANK_BITS | named;
}
EPW_INLINE uint32_t epw_beacon_named(uint64_t beacon) {
    return epw_word_value(beacon) & EPW_BEACON_NONE;
}
EPW_INLINE uint32_t epw_beacon_lengthened(uint64_t beacon) {
    return epw_word_value(beacon) >> EPW_BEACON_RANK_BITS;
}

/* The words of one lane: four of the floor, and as many for its user. */
#define EPW_USER_WORDS 4
typedef struct epw_lane_words {
    uint64_t epoch;   /* posted by set_active, see epw_epoch_word */
    uint64_t dropped; /* "I neither send to you nor wait for you in this epoch" */
    uint64_t beacon;  /* "I am alive and wait", see epw_beacon_value; its op is a running number */
    uint64_t probe;   /* lane 0: the number of a question or, in lane 1, of an answer; see peer/probe.c */
    uint64_t user[EPW_USER_WORDS];
} epw_lane_words;

/* What one source writes into a peer's window besides its data: two cache lines of 64 bytes, or one of 128.
 */
typedef struct epw_line {
    epw_lane_words lanes[EPW_MAX_LANES];
} epw_line;

/* Words of a lane by number. */
enum {
    EPW_WORD_EPOCH = 0,
    EPW_WORD_DROPPED = 1,
    EPW_WORD_BEACON = 2,
    EPW_WORD_PROBE = 3,
    EPW_WORD_USER = 4, /* the first of EPW_USER_WORDS */
    EPW_LANE_WORDS = EPW_WORD_USER + EPW_USER_WORDS
};
static_assert(EPW_LANE_WORDS * sizeof(uint64_t) == sizeof(epw_lane_words), "every word has a number");

/* The beginning of every window: what its owner writes and peers read, then a line for each source. */
typedef struct epw_window_header {
    uint32_t sleepers;  /* threads of the owner that sleep on a word: posting then needs a wake-up call */
    uint32_t listeners; /* threads of the owner that listen to the bell */
    uint32_t bell;      /* rung by whoever posts while there are listeners. Only a hint: nothing is decided by
                           it */
    uint32_t pad_bell[29];
    /* 1 more than the number of a core on which the owner has waited; 0: not known. Writer: each thread of
     * the owner that waits, so the last one counts. Reader: waiters of peers on the same host, if ranks
     * outnumber cores. A hint that orders nothing, away from the words that posters read. */
    uint32_t core;
    uint32_t pad_core[31];
} epw_window_header;
static_assert(offsetof(epw_window_header, core) == 128, "processors fetch lines in pairs");

#define EPW_LINES_OFFSET 4096u

EPW_INLINE uint64_t epw_line_offset(uint32_t source) {
    return EPW_LINES_OFFSET + (uint64_t)source * sizeof(epw_line);
}

/* Where the word that `source` writes lies in a peer's window. */
EPW_INLINE uint64_t epw_word_offset(uint32_t source, uint32_t lane, uint32_t word) {
    return epw_line_offset(source) + lane * sizeof(epw_lane_words) + word * sizeof(uint64_t);
}

/* What a rank writes in a peer's window. */
typedef enum epw_area {
    EPW_AREA_CONTROL, /* signal words, and counts that announce rows */
    EPW_AREA_ROWS,    /* rows sent to the peer */
    EPW_AREA_ANSWERS, /* and answers to its rows */
    EPW_AREAS
} epw_area;

/* Bytes before what a user of the floor lays out. */
EPW_INLINE uint64_t epw_floor_bytes(uint32_t ranks) {
    return epw_line_offset(ranks);
}

#endif
