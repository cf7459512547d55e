/* The layout of a communicator's window, and of the messages in it. Offsets depend only on the configuration,
 * and are the same on every rank.
 *
 *   0            the floor's header and signal words
 *   control      [source] a greeting when a membership begins, and a mismatch if there is one
 *   rings        [channel][source][slot] {epw_message | slot_bytes}, written only by that source
 *   heap         memory of epw_comm_alloc, written only by the owner, read by peers that map the window
 *
 * Message n, counted from 1 in each epoch, lies in slot (n - 1) % slots. Only its source writes the slot
 * until the word POSTED is at least n; after that only the owner reads it until the word TAKEN, at the
 * source, is at least n. */
#ifndef EPW_COLL_LAYOUT_H
#define EPW_COLL_LAYOUT_H

#include "base/status.h"
#include "nic/region.h"
#include "peer/words.h"

/* Lanes of the floor. */
enum {
    EPW_CHANNEL_COLLECTIVE = 0, /* collectives, in the order of the calls */
    EPW_CHANNEL_POINT = 1,      /* sends and receives */
    EPW_CHANNELS
};

/* The words of a channel. Their lower 41 bits are a count, in the place of an epoch word's step. */
enum {
    EPW_WORD_POSTED = EPW_WORD_USER,       /* messages of this epoch written for the peer */
    EPW_WORD_TAKEN = EPW_WORD_USER + 1,    /* messages of the peer that this rank has finished with */
    EPW_WORD_MAY_PULL = EPW_WORD_USER + 2, /* channel 0, count 1: this rank can read the peer's memory */
    EPW_WORD_MISMATCH = EPW_WORD_USER + 3, /* channel 0, count 1: see epw_mismatch */
    EPW_WORD_CANCELLED = EPW_WORD_USER + 2 /* channel 1: the peer must not read this rank's memory for
                                              messages of channel 0 up to this one any more */
};

/* The arguments of a call that travel with every message, for comparison. */
typedef struct epw_descriptor {
    uint8_t kind; /* EPW_BARRIER to EPW_RECV, or EPW_ALL_REDUCE_NORM */
    uint8_t type;
    uint8_t op;     /* of a norm, its payload */
    uint8_t uneven; /* count is specific to this pair of ranks */
    uint32_t peer;  /* the root; for a send or receive, the tag; of a norm, the bits of epsilon */
    uint64_t count; /* elements, see epw_coll; of a norm, rows and hidden: see epw_norm_count */
} epw_descriptor;

/* An all-reduce that is normalised: to peers it is another operation than one that is not. */
enum { EPW_ALL_REDUCE_NORM = EPW_RECV + 1 };
/* Rows have at least 8 elements, so there are at most 2^44 of them, see BYTES_MAX in call.c. */
enum { EPW_NORM_HIDDEN_BITS = 15 };
static_assert(EPW_NORM_HIDDEN_MAX < 1u << EPW_NORM_HIDDEN_BITS, "hidden fits below the rows");
static inline uint64_t epw_norm_count(const epw_norm *norm) {
    return norm->rows << EPW_NORM_HIDDEN_BITS | norm->hidden;
}

/* A descriptor without its count. */
typedef struct epw_called {
    uint8_t kind, type, op, uneven;
    uint32_t peer;
} epw_called;

/* How the bytes of a message travel. */
enum {
    EPW_CARRY_INLINE = 1,  /* after the header */
    EPW_CARRY_PULL = 2,    /* read from `address` in the source's process */
    EPW_CARRY_HEAP = 3,    /* read from offset `address` of the source's window */
    EPW_CARRY_VOID = 4,    /* they do not: the source lacks rank `voids`, hence the rest of the flow */
    EPW_CARRY_OFFER = 5,   /* point: `bytes` bytes can be asked for */
    EPW_CARRY_ASK = 6,     /* point: asks for the bytes of offer `address` */
    EPW_CARRY_DONE = 7,    /* point: of offer `address` so many `bytes` have been read; all: it ends */
    EPW_CARRY_MATCHED = 8, /* point: `address` messages, of `bytes` bytes in all, have been received and are
                             no longer kept here */
    EPW_CARRY_NOTHING = 9  /* none: the source has nothing for this rank, and says what it calls */
};

typedef struct epw_message {
    uint64_t number;
    uint32_t call; /* number of the collective; for a send, of the offer */
    uint32_t carry;
    epw_descriptor what;
    uint32_t voids;
    uint32_t before_count; /* of the previous collective, which is compared as well; only 32 bits */
    uint64_t bytes;
    uint64_t address;
    epw_called before;
} epw_message;
static_assert(sizeof(epw_message) == 64, "a message begins with a cache line of its own");

/* Written before the epoch word: a secret, and its address in the source's process. A rank that can read the
 * secret there can read the source's memory. */
typedef struct epw_greeting {
    unsigned char secret[16];
    uint64_t address;
    uint32_t pid;
    uint32_t reserved[9];
} epw_greeting;
static_assert(sizeof(epw_greeting) == 64, "a cache line");

/* A mismatch that a rank has found, written before the word MISMATCH: the two calls, and the ranks that made
 * them. */
typedef struct epw_mismatch {
    uint32_t rank[2];
    uint32_t number[2]; /* of the collective, in this epoch */
    epw_descriptor call[2];
    uint32_t reserved[4];
} epw_mismatch;
static_assert(sizeof(epw_mismatch) == 64, "a cache line");

typedef struct epw_coll_layout {
    uint32_t ranks, slots, slot_bytes;
    uint64_t stride; /* bytes from slot to slot */
    uint64_t control_offset, rings_offset, heap_offset, heap_bytes;
    uint64_t window_bytes;
    /* On GPUs: blocks of a kernel; and entries that operations post to a queue, 0 without queues. Windows
     * there follow kernels/coll/state.h, or with queues kernels/coll/queues.h. */
    uint32_t blocks, entries;
    bool keeps_lines; /* on GPUs: see epw_cuda_keeps_lines */
} epw_coll_layout;

/* `queues`: peers may be reached by queues. EPW_ERR_INVALID and EPW_ERR_LIMIT name the field of the
 * configuration and its limit. */
epw_status epw_coll_plan(const char *op, const epw_comm_config *config, bool queues, epw_coll_layout *out);

/* The lanes of the peer floor, each with a queue to each peer, and the depth of the queues. */
uint32_t epw_coll_lanes(const epw_comm_config *config);
uint32_t epw_coll_queue_depth(const epw_comm_config *config, const epw_coll_layout *layout);

/* On the host: what a source writes. The two halves of what it writes before its words are areas of their
 * own, one for each channel, since each channel has its own queue. */
epw_stretch epw_coll_footprint(const epw_coll_layout *l, uint32_t source, uint32_t lane, uint32_t area);

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
