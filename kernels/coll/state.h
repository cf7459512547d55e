/* A communicator on a GPU, seen by host C and CUDA: the byte map of its window, what kernels keep in device memory between two
 * operations, and what each is given. Everything that may change between the replays of a graph (members, suspects, running
 * numbers) is in device memory. */
#ifndef EPW_KERNELS_COLL_STATE_H
#define EPW_KERNELS_COLL_STATE_H

#include "kernels/peer/context.h"

#define EPW_COLL_BLOCKS     64  /* of a kernel, at most */
#define EPW_COLL_RINGS      3   /* pieces to be folded; pieces to be moved; those of sends */
#define EPW_COLL_TEAMS      4   /* of a block that sends and receives */
#define EPW_COLL_POINTS     48  /* sends and receives of a kernel, at most */
#define EPW_COLL_BULK_RANKS 8   /* whose pieces are folded by bulk copies, at most */
#define EPW_COLL_REPORTS    256 /* of the last operations that lacked somebody */

/* The window.
 *
 *   0         the floor's header and signal words
 *   packets   [parity][source] the call in two packets, and as many of a message: those of operation n lie in parity n % 2
 *   counts    [ring][source][block] two words of 64 bytes each: pieces written here by the source, and pieces of this rank's
 *             that it is done with
 *   rings     [ring][source][block][slot] a piece, and a line behind it: its note
 *
 * Of the last ring [block] is [channel], of which there may be fewer.
 *
 * Packets are written without permission. Those of operation n take the place of those of n - 2. A rank begins n when its n - 1
 * has ended, for which it has had every member's call of n - 1; and a member sends that when its n - 2 has ended, all of whose
 * packets it has read then. In every operation each rank sends its call to every other, whatever else it does: so the operation
 * of an epoch that is not the first needs no wait before it writes. For the first the member's epoch word says the same.
 *
 * Piece n of a ring, from 0 in each epoch, lies in slot n % slots. It is the source's to write when the owner's count of those
 * that it is done with is above n - slots, and the owner's to read when the source's count is above n. */
typedef struct epw_coll_window {
    uint32_t ranks, blocks, slots, slot_bytes;
    uint32_t channels;     /* by which a message to one peer goes */
    uint32_t packet_bytes; /* of a message, that packets carry, at most */
    uint64_t packets_offset, packets_stride, counts_offset, rings_offset;
    uint64_t bytes;
} epw_coll_window;

EPW_INLINE uint64_t epw_coll_packets(const epw_coll_window *w, uint64_t op, uint32_t source) {
    return w->packets_offset + ((op & 1) * w->ranks + source) * w->packets_stride;
}
#define EPW_COLL_PACKET       16u /* bytes of one */
#define EPW_COLL_CALL_PACKETS 2u  /* in front of a message */

#define EPW_COLL_POINT_RING   (EPW_COLL_RINGS - 1u)

/* Of a ring from a source to a block, among all of them. */
EPW_INLINE uint64_t epw_coll_channel(const epw_coll_window *w, uint32_t ring, uint32_t source, uint32_t block) {
    uint32_t each = ring == EPW_COLL_POINT_RING ? w->channels : w->blocks;
    return (uint64_t)ring * w->ranks * w->blocks + (uint64_t)source * each + block;
}
EPW_INLINE uint64_t epw_coll_channels(const epw_coll_window *w) { return epw_coll_channel(w, EPW_COLL_POINT_RING, w->ranks, 0); }

#define EPW_COLL_COUNT_STRIDE 64u
enum { EPW_COLL_WRITTEN = 0, EPW_COLL_TAKEN = 1 };
EPW_INLINE uint64_t epw_coll_count(const epw_coll_window *w, uint32_t ring, uint32_t source, uint32_t block, uint32_t which) {
    return w->counts_offset + (epw_coll_channel(w, ring, source, block) * 2 + which) * EPW_COLL_COUNT_STRIDE;
}
#define EPW_COLL_NOTE_BYTES 128u
EPW_INLINE uint64_t epw_coll_slot(const epw_coll_window *w, uint32_t ring, uint32_t source, uint32_t block, uint64_t number) {
    return w->rings_offset + (epw_coll_channel(w, ring, source, block) * w->slots + number % w->slots) *
                                 ((uint64_t)w->slot_bytes + EPW_COLL_NOTE_BYTES);
}

/* Where a communicator stands between two kernels, for one of their blocks, which reads its turn and leaves it for the next one:
 * all are alike. */
typedef struct epw_coll_turn {
    uint64_t op;  /* the last one in this epoch */
    uint64_t out; /* what the counter of blocks stood at */
} epw_coll_turn;

/* Pieces that a block has written to a peer's ring and read from one, in this epoch. */
typedef struct epw_coll_progress {
    uint64_t written, read;
} epw_coll_progress;

/* Calls of two ranks that differ; a call is an epw_descriptor. */
typedef struct epw_coll_differing {
    uint32_t peer, found; /* found: set last */
    uint64_t its[2], own[2];
    uint64_t op;
} epw_coll_differing;

/* How an operation ended that lacked somebody. Of others nothing is written. */
typedef struct epw_coll_report {
    uint64_t ticket; /* of the call; 0: none yet */
    epw_rank_set missing;
    epw_error_record record;
} epw_coll_report;

typedef struct epw_coll_state {
    epw_coll_turn turns[EPW_COLL_BLOCKS];
    uint64_t out_blocks;                       /* that have ended, ever */
    uint64_t closed;                           /* where that counter stands when the kernel has ended that a block closes */
    epw_rank_set missing;                      /* whom any block of the operation lacks; empty between kernels */
    uint32_t halted;                           /* calls differ: nothing goes on in this epoch */
    epw_coll_report reports[EPW_COLL_REPORTS]; /* by ticket */
} epw_coll_state;

/* One operation. Sizes are bytes. */
typedef struct epw_coll_args {
    epw_gpu_peers *peers;
    epw_gpu_shared *shared;
    epw_coll_state *state;
    epw_coll_progress *progress;   /* [ring][block][rank] */
    epw_coll_differing *differing; /* mapped host memory */
    uint32_t *faulted;             /* the same: some operation was incomplete */
    unsigned char *window;
    epw_coll_window at;
    uint32_t rank, ranks;
    uint32_t kind, type, op, root; /* as in epw_coll */
    uint32_t pieces;               /* by rings, in pieces of so many bytes, whole cells of 16; 0: by packets */
    uint32_t bulk;                 /* 1: by rings and bulk copies */
    uint64_t ticket;               /* running number of eager calls; 0: captured */
    uint64_t deadline_ns;          /* 0: the group's */
    uint64_t call[2];
    const unsigned char *send;
    unsigned char *recv;
    uint64_t bytes; /* of all, or of each block */
} epw_coll_args;

/* An all-reduce and what follows it: see epw_norm. */
typedef struct epw_coll_norm_args {
    epw_coll_args common;
    uint64_t rows;
    uint32_t hidden, payload;
    float epsilon;
    const unsigned char *weight;
    unsigned char *residual, *out, *scales;
} epw_coll_norm_args;

/* A block of the caller's memory: rows of so many bytes. */
typedef struct epw_coll_block {
    unsigned char *at;
    uint64_t row_bytes;
} epw_coll_block;

/* An operation whose blocks are uneven, or rows with gaps between them. On the wire it is the same as one of dense blocks: ranks
 * lay out their memory as they like. The kernel's parameters, which are 4 KiB at most, bound the ranks. */
#define EPW_COLL_BLOCK_RANKS 96
typedef struct epw_coll_blocks_args {
    epw_coll_args common; /* but for send, recv and bytes */
    uint64_t rows, give_pitch, take_pitch;
    uint64_t give_bytes, take_bytes;           /* of the longest */
    uint32_t element;                          /* bytes of one */
    uint32_t uneven;                           /* each pair of ranks has sizes of its own, and goes by rings */
    epw_coll_block give[EPW_COLL_BLOCK_RANKS]; /* to each rank, also to itself */
    epw_coll_block take[EPW_COLL_BLOCK_RANKS]; /* from each; of a reduction where the result goes, the same for all */
} epw_coll_blocks_args;

/* A send or a receive. Those to one peer are in order, and so are those from one. */
typedef struct epw_coll_point {
    unsigned char *at;
    uint64_t bytes; /* receive: of room */
    uint64_t call[2];
    uint32_t peer, sends;
} epw_coll_point;

/* What a piece of a message has behind it: the call of who sends, and all of its bytes. */
typedef struct epw_coll_note {
    uint64_t call[2], bytes;
} epw_coll_note;

/* Sends and receives that progress together: by direction and peer. */
typedef struct epw_coll_point_args {
    epw_coll_args common; /* but for what is a collective's */
    uint32_t lanes;
    uint32_t first[EPW_COLL_POINTS + 1]; /* of each lane, and behind the last one */
    epw_coll_point points[EPW_COLL_POINTS];
} epw_coll_point_args;

typedef struct epw_coll_membership_args {
    epw_gpu_peers *peers;
    epw_gpu_shared *shared;
    epw_coll_state *state;
    epw_coll_progress *progress;
    uint32_t progress_count;
    uint32_t rank, ranks;
    uint64_t epoch_word;
    epw_rank_set active;
} epw_coll_membership_args;

typedef struct epw_coll_part_args {
    epw_gpu_peers *peers;
    uint32_t rank, peer;
} epw_coll_part_args;

#ifdef __cplusplus
extern "C" {
#endif

/* All return a cudaError_t, and none waits. Makes the kernels ready on the current device: not under capture. */
int epw_coll_gpu_prepare(void);
int epw_coll_gpu_prepare_norm(void);

int epw_coll_gpu_run(const epw_coll_args *args, uint32_t blocks, void *stream);
int epw_coll_gpu_run_blocks(const epw_coll_blocks_args *args, uint32_t blocks, void *stream);
/* blocks: of the sum's kernel; by rings a second one follows it. */
int epw_coll_gpu_run_norm(const epw_coll_norm_args *args, uint32_t blocks, void *stream);
int epw_coll_gpu_run_points(const epw_coll_point_args *args, uint32_t blocks, void *stream);

/* Clears suspects, begins the epoch and tells every peer that is or was active. */
int epw_coll_gpu_begin_epoch(const epw_coll_membership_args *args, void *stream);

/* Takes the peer out of the table; tells it, if it is a member that nobody has told. */
int epw_coll_gpu_part(const epw_coll_part_args *args, void *stream);

#ifdef __cplusplus
}
#endif

#endif
