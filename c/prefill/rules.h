/* The rules of prefill's rings as pure functions: how many rows a rank may write for a peer, how many of a
 * peer's rows it may take, and which words it posts when. They read neither the memory of other ranks nor a
 * clock: the engine passes what it has loaded, and the explorer in tests (tests/c/prefill_model.c) passes
 * what it simulates.
 *
 * From one rank to another there are two rings on each lane, one for the rows of dispatches and one for the
 * answers of combines. A ring has `slots` slots, and message n, counted from 0 in each epoch, lies in slot
 * n % slots. It goes through these stages:
 *
 *     written by its source       written     is counted there
 *     announced to the owner      announced   by the word POSTED (ANSWERED)
 *     seen by the owner           seen
 *     taken out by the owner      taken
 *     returned to the source      returned    by the word TAKEN (COLLECTED): the credit
 *     seen by the source          free        so its slot may be written again
 *
 * An operation is an opening, which says how many rows follow, and these rows. The openings of a dispatch
 * carry the counts that decide the places of rows: rows are taken once all openings have arrived, but
 * openings and rows are written without waiting for that. */
#ifndef EPW_PREFILL_RULES_H
#define EPW_PREFILL_RULES_H

#include "peer/rules.h"

/* One kind of ring to a peer, and the same kind from it. */
typedef struct epw_row_ring {
    uint64_t written, announced, free; /* to the peer; `free`: messages whose slots were returned */
    uint64_t seen, taken, returned;    /* from the peer */
} epw_row_ring;

/* The part of a peer in the current operation: what is sent to it, and what comes from it. */
typedef struct epw_stream {
    epw_row_ring ring;
    bool writes;       /* the peer has begun the epoch and takes part, so messages may be written for it */
    uint64_t to_write; /* messages of the operation that have yet to be written */
    bool takes;        /* something has yet to come from it */
    bool opened;       /* its opening has been taken */
    uint64_t to_take;  /* rows after the opening that have yet to be taken */
} epw_stream;

/* What may be done for one peer before words are read again. */
typedef struct epw_turn {
    uint64_t write; /* messages that may be written now */
    uint64_t take;  /* messages that may be taken now */
} epw_turn;

/* ---- the operation ---- */

EPW_INLINE void epw_stream_begin(epw_stream *s, bool takes_part, uint64_t messages) {
    s->to_write = takes_part ? messages : 0;
    s->takes = takes_part;
    s->opened = false;
    s->to_take = 0;
}

/* An opening has been taken, which announces this many rows. */
EPW_INLINE void epw_stream_open(epw_stream *s, uint64_t rows) {
    s->opened = true;
    s->to_take = rows;
    s->takes = rows > 0;
}

/* Nothing more comes from the peer; and, in the second function, nothing more goes to it. */
EPW_INLINE void epw_stream_end_taking(epw_stream *s) {
    s->to_take = 0;
    s->takes = false;
}
EPW_INLINE void epw_stream_end(epw_stream *s) {
    s->to_write = 0;
    epw_stream_end_taking(s);
}

/* Whether every awaited opening has arrived. */
EPW_INLINE bool epw_streams_opened(const epw_stream *streams, uint32_t ranks) {
    for (uint32_t peer = 0; peer < ranks; peer++)
        if (streams[peer].takes && !streams[peer].opened) return false;
    return true;
}

/* ---- moving ---- */

EPW_INLINE uint64_t epw_ring_room(const epw_row_ring *ring, uint64_t slots) {
    return slots - (ring->written - ring->free);
}

EPW_INLINE uint64_t epw_stream_writable(const epw_stream *s, uint64_t slots) {
    uint64_t room = s->writes ? epw_ring_room(&s->ring, slots) : 0;
    return s->to_write < room ? s->to_write : room;
}

/* `placed`: the places of rows are known, because all openings have arrived. */
EPW_INLINE uint64_t epw_stream_takable(const epw_stream *s, bool placed) {
    uint64_t here = s->ring.seen - s->ring.taken;
    if (!s->takes || here == 0) return 0;
    if (!s->opened) return 1;
    if (!placed) return 0;
    return here < s->to_take ? here : s->to_take;
}

/* What may be done for each peer now. Peers are independent: one without a free slot, or one that sends
 * nothing, delays neither the rows for others nor the rows from others. */
EPW_INLINE void epw_streams_turn(const epw_stream *streams, uint32_t ranks, uint64_t slots, bool placed,
                                 epw_turn *turns) {
    for (uint32_t peer = 0; peer < ranks; peer++) {
        turns[peer].write = epw_stream_writable(&streams[peer], slots);
        turns[peer].take = epw_stream_takable(&streams[peer], placed);
    }
}

EPW_INLINE void epw_stream_wrote(epw_stream *s, uint64_t messages) {
    s->ring.written += messages;
    s->to_write -= messages;
}

EPW_INLINE void epw_stream_took(epw_stream *s, uint64_t rows) {
    s->ring.taken += rows;
    s->to_take -= rows;
    if (s->to_take == 0) s->takes = false;
}

/* ---- words: their lower 41 bits are a count, modulo 2^41 ---- */

/* Whether to announce what was written for the peer, and whether to return credits: if they are a quarter of
 * the ring, or if there is nothing else to do (`rests`). */
EPW_INLINE bool epw_ring_announces(const epw_row_ring *ring, uint64_t slots, bool rests) {
    uint64_t news = ring->written - ring->announced;
    return news > 0 && (rests || news >= slots / 4);
}
EPW_INLINE bool epw_ring_returns(const epw_row_ring *ring, uint64_t slots, bool rests) {
    uint64_t news = ring->taken - ring->returned;
    return news > 0 && (rests || news >= slots / 4);
}

/* Updates *count, at most to `most`, by a word of this epoch. */
EPW_INLINE epw_heard epw_count_hear(uint64_t *count, uint64_t most, uint64_t word, uint64_t own_word) {
    if (epw_word_epoch(word) != epw_word_epoch(own_word)) return EPW_HEARD_NOTHING;
    uint64_t more = (epw_word_step(word) - *count) & EPW_STEP_MAX;
    if (more == 0) return EPW_HEARD_NOTHING;
    if (more > most - *count) return EPW_HEARD_IMPOSSIBLE;
    *count += more;
    return EPW_HEARD_MORE;
}

EPW_INLINE epw_heard epw_ring_hear_posted(epw_row_ring *ring, uint64_t slots, uint64_t word,
                                          uint64_t own_word) {
    return epw_count_hear(&ring->seen, ring->taken + slots, word, own_word);
}
EPW_INLINE epw_heard epw_ring_hear_taken(epw_row_ring *ring, uint64_t word, uint64_t own_word) {
    return epw_count_hear(&ring->free, ring->written, word, own_word);
}

#endif
