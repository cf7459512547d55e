/* The byte map of a communicator's window, and the messages in it. Offsets follow from the configuration
 * alone and are the same on every rank.
 *
 *   0            the floor's header and signal words
 *   control      [source] what a source says of itself when a membership begins, and of a mismatch
 *   rings        [channel][source][slot] {epw_message | slot_bytes}, written by that source alone
 *   heap         memory of epw_comm_alloc, written by the owner alone, read by peers that map the window
 *
 * Message number n, from 1 in each epoch, lies in slot (n - 1) % slots. It is its source's to write until the
 * word POSTED says n or more, then its owner's until the word TAKEN, at the source, says n or more. */
#ifndef EPW_COLL_LAYOUT_H
#define EPW_COLL_LAYOUT_H

#include "base/status.h"
#include "peer/words.h"

/* Lanes of the floor. */
enum {
    EPW_CHANNEL_COLLECTIVE = 0, /* collectives, in the order of the calls */
    EPW_CHANNEL_POINT = 1,      /* sends and receives */
    EPW_CHANNELS
};

/* Words of a channel. Their lower 41 bits are a count, as the step of an epoch word. */
enum {
    EPW_WORD_POSTED = EPW_WORD_USER,       /* messages written for the peer in this epoch */
    EPW_WORD_TAKEN = EPW_WORD_USER + 1,    /* messages of the peer's that this rank is done with */
    EPW_WORD_MAY_PULL = EPW_WORD_USER + 2, /* channel 0, count 1: this rank can read the peer's memory */
    EPW_WORD_MISMATCH = EPW_WORD_USER + 3, /* channel 0, count 1: see epw_mismatch */
    EPW_WORD_CANCELLED = EPW_WORD_USER + 2 /* channel 1: messages of channel 0 up to this one are not to be
                                              read from this rank's memory any more */
};

/* What is called, as it travels with every message and is compared. */
typedef struct epw_descriptor {
    uint8_t kind; /* EPW_BARRIER to EPW_RECV */
    uint8_t type, op;
    uint8_t uneven; /* count is of this pair of ranks alone */
    uint32_t peer;  /* the root, or of a send or receive the tag */
    uint64_t count; /* elements, see epw_coll */
} epw_descriptor;

/* A descriptor without its count. */
typedef struct epw_called {
    uint8_t kind, type, op, uneven;
    uint32_t peer;
} epw_called;

/* How the bytes of a message come. */
enum {
    EPW_CARRY_INLINE = 1, /* behind the header */
    EPW_CARRY_PULL = 2,   /* from `address` in the source's process */
    EPW_CARRY_HEAP = 3,   /* from offset `address` of the source's window */
    EPW_CARRY_VOID = 4,   /* not at all: the source lacks rank `voids`, and so all that was to come */
    EPW_CARRY_OFFER = 5,  /* point: so many bytes wait to be asked for */
    EPW_CARRY_ASK = 6,    /* point: the bytes of offer `address` are asked for */
    EPW_CARRY_DONE = 7,   /* point: offer `address` has been read */
    EPW_CARRY_MATCHED = 8 /* point: `bytes` bytes in `address` messages lie here unreceived no more */
};

typedef struct epw_message {
    uint64_t number;
    uint32_t call; /* running number of the collective; of a send, of the offer */
    uint32_t carry;
    epw_descriptor what;
    uint32_t voids;
    uint32_t before_count; /* of the collective before, which is compared as well; cut to 32 bits */
    uint64_t bytes;
    uint64_t address;
    epw_called before;
} epw_message;
static_assert(sizeof(epw_message) == 64, "a message begins with a cache line of its own");

/* What a source says of itself before its epoch word: a secret that its process has at `address`. Who finds
 * it there can read the source's memory. */
typedef struct epw_greeting {
    unsigned char secret[16];
    uint64_t address;
    uint32_t pid;
    uint32_t reserved[9];
} epw_greeting;
static_assert(sizeof(epw_greeting) == 64, "a cache line");

/* What a rank says of a mismatch, before its word: what it has found, and who calls it. */
typedef struct epw_mismatch {
    uint32_t rank[2];
    uint32_t number[2]; /* of the collective, in this epoch */
    epw_descriptor call[2];
    uint32_t reserved[4];
} epw_mismatch;
static_assert(sizeof(epw_mismatch) == 64, "a cache line");

typedef struct epw_coll_layout {
    uint32_t ranks, slots, slot_bytes;
    uint64_t stride; /* from slot to slot */
    uint64_t control_offset, rings_offset, heap_offset, heap_bytes;
    uint64_t window_bytes;
    uint32_t blocks; /* of a kernel, on GPUs: their windows are laid out by kernels/coll/state.h */
} epw_coll_layout;
static_assert(sizeof(epw_coll_layout) == 72, "src/sys/mod.rs has the same");

/* EPW_ERR_INVALID or EPW_ERR_LIMIT name the field of the configuration and its bound. */
epw_status epw_coll_plan(const epw_comm_config *config, epw_coll_layout *out);

static inline uint64_t epw_greeting_offset(const epw_coll_layout *l, uint32_t source) {
    return l->control_offset + (uint64_t)source * (sizeof(epw_greeting) + sizeof(epw_mismatch));
}
static inline uint64_t epw_mismatch_offset(const epw_coll_layout *l, uint32_t source) {
    return epw_greeting_offset(l, source) + sizeof(epw_greeting);
}
static inline uint64_t epw_ring_offset(const epw_coll_layout *l, uint32_t channel, uint32_t source) {
    return l->rings_offset + ((uint64_t)channel * l->ranks + source) * l->slots * l->stride;
}
static inline uint64_t epw_message_offset(const epw_coll_layout *l, uint32_t channel, uint32_t source,
                                          uint64_t number) {
    return epw_ring_offset(l, channel, source) + (number - 1) % l->slots * l->stride;
}

#endif
