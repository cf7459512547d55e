/* A communicator on a GPU, shared by host C and CUDA: the byte map of its window, what kernels keep in device memory between two
 * operations, and the arguments of each kernel. Everything that may change between replays of a graph (members, suspects, running
 * numbers) is in device memory. */
#ifndef EPW_KERNELS_COLL_STATE_H
#define EPW_KERNELS_COLL_STATE_H

#include "base/remainder.h"
#include "kernels/peer/context.h"

#define EPW_COLL_BLOCKS     64  /* the most blocks of a kernel */
#define EPW_COLL_RINGS      3   /* pieces to be folded; pieces that are only moved; pieces of sends */
#define EPW_COLL_TEAMS      4   /* teams of a block that sends and receives */
#define EPW_COLL_POINTS     48  /* the most sends and receives of a kernel */
#define EPW_COLL_BULK_RANKS 8   /* the most ranks whose pieces are folded by bulk copies */
#define EPW_COLL_REPORTS    256 /* reports kept of the last operations that missed a rank */

/* The window.
 *
 *   0         the floor's header and signal words
 *   packets   [parity][source] the call in two packets, then the packets of a message; operation n uses parity n % 2. At the
 *             rank itself: squares of a norm, see norm.cuh, or what it lends, see direct.cuh
 *   lines     [parity][source but the owner] the lines of a message, as packets
 *   counts    [ring][source][block] two words of 64 bytes each: pieces that the source has written here, and pieces of this
 *             rank's that the source has finished reading
 *   notices   [source] a line in which the source tells of calls that differ
 *   rings     [ring][source][block][slot] a piece, followed by a line for its note
 *   heap      memory of epw_comm_alloc, written only by the owner, read by peers
 *
 * In the last ring, [channel] takes the place of [block]; there may be fewer channels than blocks.
 *
 * Packets and lines are written without waiting for permission. Those of operation n overwrite those of n - 2, which is safe: a
 * rank begins n once its n - 1 has ended, so it has received every member's call of n - 1; and a member sends that call once its
 * n - 2 has ended, when it has read all packets and lines of n - 2. Whatever else an operation does, each rank sends its call to
 * every other rank in it. So only the first operation of an epoch waits before it writes: for each member's epoch word, which
 * says the same.
 *
 * Piece n of a ring, counted from 0 in each epoch, lies in slot n % slots. The source may write it when the owner's count of
 * pieces read is above n - slots, and the owner may read it when the source's count of pieces written is above n. */
typedef struct epw_coll_window {
    uint32_t ranks, blocks, slots, slot_bytes;
    uint32_t channels;     /* channels that carry the messages to one peer */
    uint32_t packet_bytes; /* the most bytes of a message that packets carry */
    uint32_t lines;        /* that each source writes here in an operation, at most; 0: none go by lines */
    uint64_t slot_inverse; /* of `slots`, see base/remainder.h */
    uint64_t packets_offset, packets_stride, lines_offset, counts_offset, rings_offset;
    uint64_t notices_offset, notices_stride; /* with queues too */
    uint64_t heap_offset, heap_bytes;
    uint64_t bytes;
} epw_coll_window;

EPW_INLINE uint64_t epw_coll_packets(const epw_coll_window *w, uint64_t op, uint32_t source) {
    return w->packets_offset + ((op & 1) * w->ranks + source) * w->packets_stride;
}
#define EPW_COLL_PACKET       16u /* bytes of one packet */
#define EPW_COLL_CALL_PACKETS 2u  /* packets before a message */

/* Where a source's lines begin in another rank's window. The place does not depend on who is a member: a rank that was excluded
 * and is late writes where no other's lines are. Tags are in the same place of every line, whatever the operation, so no byte of
 * a message is taken for one. */
#define EPW_COLL_LINE      128u
#define EPW_COLL_LINE_DATA 120u /* bytes of a message in a line; the others are the tag */
EPW_INLINE uint64_t epw_coll_lines(const epw_coll_window *w, uint64_t op, uint32_t source, uint32_t owner) {
    const uint64_t stretch = (op & 1) * (w->ranks - 1) + source - (source > owner);
    return w->lines_offset + stretch * w->lines * EPW_COLL_LINE;
}

#define EPW_COLL_POINT_RING (EPW_COLL_RINGS - 1u)

/* The index of a source's ring to a block, among all rings. */
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
/* The words of a notice, in which a rank that stops tells its peers which calls differ, once in an epoch. Calls come from every
 * rank to every other, but the sizes of an uneven block, or a message, are known to two ranks only. Both stop, and whoever waits
 * for one of them reads its notice, stops, and tells its own peers the same: so a wait for a rank that has stopped needs to look
 * at the notice of that rank only. The tag is that of the operation, {epoch 23 | op 41}. A notice holds for the rest of its
 * epoch: a rank for which that operation was complete reads it in a later one. */
enum {
    EPW_COLL_NOTICE_RANKS, /* the two ranks, the first one in the lower half */
    EPW_COLL_NOTICE_FIRST, /* their calls, each an epw_descriptor in two words */
    EPW_COLL_NOTICE_SECOND = EPW_COLL_NOTICE_FIRST + 2,
    EPW_COLL_NOTICE_TAG = EPW_COLL_NOTICE_SECOND + 2,
    EPW_COLL_NOTICE_WORDS
};
#define EPW_COLL_NOTICE_STRIDE 64u
EPW_INLINE uint64_t epw_coll_notice(const epw_coll_window *w, uint32_t source, uint32_t word) {
    return w->notices_offset + source * w->notices_stride + word * sizeof(uint64_t);
}

#define EPW_COLL_NOTE_BYTES 128u
EPW_INLINE uint64_t epw_coll_slot(const epw_coll_window *w, uint32_t ring, uint32_t source, uint32_t block, uint64_t number) {
    return w->rings_offset +
           (epw_coll_channel(w, ring, source, block) * w->slots + epw_remainder(number, w->slots, w->slot_inverse)) *
               ((uint64_t)w->slot_bytes + EPW_COLL_NOTE_BYTES);
}

/* What a rank lends its peers in an operation, in one word: that they may read its memory directly, and where send and recv
 * begin, at multiples of 16 bytes below 32 GiB: offsets in its heap or, above heap_bytes, in memory that it has registered. A
 * buffer that nobody reads is at 0. */
#define EPW_COLL_LENT      (UINT64_C(1) << 63)
#define EPW_COLL_LENT_MOST (UINT64_C(1) << 35)
EPW_INLINE uint64_t epw_coll_lent(uint64_t send, uint64_t recv) { return EPW_COLL_LENT | recv / 16 << 31 | send / 16; }
EPW_INLINE int epw_coll_is_lent(uint64_t lent) { return (lent & EPW_COLL_LENT) != 0; }
EPW_INLINE uint64_t epw_coll_lent_send(uint64_t lent) { return (lent & 0x7fffffff) * 16; }
EPW_INLINE uint64_t epw_coll_lent_recv(uint64_t lent) { return (lent >> 31 & 0x7fffffff) * 16; }

/* Memory that a rank has registered, as this rank reaches it: at offsets from `first` on, which are multiples of 16. An entry of
 * this rank's own is empty as long as a member has not mapped the memory. Only the host writes entries, while no kernel runs. */
#define EPW_COLL_REGISTRATIONS EPW_REGISTRATIONS_MAX
typedef struct epw_coll_registered {
    uint64_t first, bytes; /* bytes 0: empty */
    unsigned char *base;
} epw_coll_registered;
EPW_INLINE int epw_coll_is_registered(const epw_coll_window *w, uint64_t offset) { return offset > w->heap_bytes; }

EPW_INLINE int epw_coll_has_root(uint32_t kind) {
    return kind == EPW_BROADCAST || kind == EPW_REDUCE || kind == EPW_GATHER || kind == EPW_SCATTER;
}

/* Whether the reader reads what the source sends, in an operation on lent memory. */
EPW_INLINE int epw_coll_reads(uint32_t kind, uint32_t root, uint32_t reader, uint32_t source) {
    if (reader == source) return 0;
    switch (kind) {
    case EPW_REDUCE:
    case EPW_GATHER:
        return reader == root;
    case EPW_SCATTER:
        return source == root;
    default:
        return 1;
    }
}

/* Bytes that a rank sends in all, if it sends. `bytes`: of the message, or of a block. */
EPW_INLINE uint64_t epw_coll_send_bytes(uint32_t kind, uint32_t ranks, uint64_t bytes) {
    return kind == EPW_REDUCE_SCATTER || kind == EPW_ALL_TO_ALL || kind == EPW_SCATTER ? ranks * bytes : bytes;
}

/* The state of a communicator between two kernels, as one of their blocks sees it. Each block reads its turn and writes it for
 * the next kernel; all turns hold the same. */
typedef struct epw_coll_turn {
    uint64_t op;  /* the last operation in this epoch */
    uint64_t out; /* value of out_blocks */
} epw_coll_turn;

/* Pieces that a block has written to a peer's ring and has read from the peer's, in this epoch. */
typedef struct epw_coll_progress {
    uint64_t written, read;
} epw_coll_progress;

/* Two ranks' calls that differ. */
typedef struct epw_coll_differing {
    uint64_t notice[EPW_COLL_NOTICE_WORDS];
    uint32_t found; /* set last */
} epw_coll_differing;

/* How an operation ended in which a rank was missing. In mapped host memory; nothing is written for complete operations. */
typedef struct epw_coll_report {
    uint64_t ticket;  /* ticket of the call, set first; 0: none yet */
    uint32_t differs; /* calls differed in its membership */
    epw_rank_set missing;
    epw_error_record record;
} epw_coll_report;

typedef struct epw_coll_state {
    epw_coll_turn turns[EPW_COLL_BLOCKS];
    uint64_t out_blocks;        /* blocks that have ended, since creation */
    uint64_t closed;            /* the value of out_blocks at the end of the last kernel that is closed by a
                                 * block */
    epw_rank_set missing;       /* ranks that any block of the operation misses; empty between kernels */
    uint32_t copied;            /* whether copies move the bytes of the operation that has begun, see copies.cuh */
    uint64_t operations_copied; /* how often they did, since creation */
    uint64_t halted; /* calls differ: epw_coll_halt of that operation, after which none continues in this epoch; else 0 */
    uint64_t notice[EPW_COLL_NOTICE_WORDS]; /* which calls; the tag is 0 as long as the other words are not known */
    uint32_t notice_told;                   /* 1: peers have been told, in this epoch */
    epw_coll_registered registered[EPW_COLL_BULK_RANKS][EPW_COLL_REGISTRATIONS];
} epw_coll_state;

/* Never 0, which means that no calls differ: sends and receives come before the epoch's first operation too. */
EPW_INLINE uint64_t epw_coll_halt(uint64_t op) { return op + 1; }

/* One operation. Sizes are bytes. */
typedef struct epw_coll_args {
    epw_gpu_peers *peers;
    epw_gpu_shared *shared;
    epw_coll_state *state;
    epw_coll_progress *progress;   /* [ring][block][rank] */
    epw_coll_differing *differing; /* mapped host memory */
    uint32_t *faulted;             /* mapped host memory: some operation was incomplete */
    epw_coll_report *reports;      /* [EPW_COLL_REPORTS] by ticket */
    unsigned char *window;
    epw_coll_window at;
    uint32_t rank, ranks;
    uint32_t kind, type, op, root; /* as in epw_coll */
    uint32_t pieces;               /* > 0: by rings, in pieces of this many bytes, whole 16-byte cells, or by lines where they
                                    * fit; 0: by packets */
    uint32_t bulk;                 /* 1: by rings and bulk copies */
    uint32_t shared_out;           /* 1: in two steps, see flows.cuh, unless lent memory spares them; the same on all ranks */
    uint64_t ticket;               /* running number of eager calls; 0: captured */
    uint64_t deadline_ns;          /* 0: the group's */
    uint64_t call[2];
    uint32_t tells_lent; /* 1: in place of a message's first packet, ranks tell what they lend; the same on all ranks */
    uint64_t lent;       /* see epw_coll_lent; 0: nothing */
    const unsigned char *send;
    unsigned char *recv;
    uint64_t bytes; /* of the whole message, or of each block */
} epw_coll_args;

/* An operation by copies: what the host copies from each rank. */
typedef struct epw_coll_copies_args {
    epw_coll_args common;
    const unsigned char *from[EPW_COLL_BULK_RANKS];
    uint64_t *copied; /* mapped host memory: operations_copied */
    uint32_t failed;  /* 1: the host could not copy */
} epw_coll_copies_args;

/* An all-reduce and the normalisation after it: see epw_norm. */
typedef struct epw_coll_norm_args {
    epw_coll_args common;
    uint64_t rows;
    uint32_t hidden, payload;
    float epsilon;
    const unsigned char *weight;
    unsigned char *residual, *out, *scales;
} epw_coll_norm_args;

/* A block of the caller's memory: rows of row_bytes each. */
typedef struct epw_coll_block {
    unsigned char *at;
    uint64_t row_bytes;
} epw_coll_block;

/* An operation whose blocks are uneven, or have rows with gaps between them. On the wire it equals one with dense blocks: each
 * rank lays out its memory as it likes. The kernel parameters, 4 KiB at most, limit the number of ranks. */
#define EPW_COLL_BLOCK_RANKS 96
typedef struct epw_coll_blocks_args {
    epw_coll_args common; /* send, recv and bytes are unused */
    uint64_t rows, give_pitch, take_pitch;
    uint64_t give_bytes, take_bytes;           /* of the longest block */
    uint32_t element;                          /* bytes of one element */
    uint32_t uneven;                           /* each pair of ranks has sizes of its own, and the operation goes by rings */
    epw_coll_block give[EPW_COLL_BLOCK_RANKS]; /* to each rank, including itself */
    epw_coll_block take[EPW_COLL_BLOCK_RANKS]; /* from each rank; for a reduction the destination of the result, the same in all
                                                * entries */
} epw_coll_blocks_args;

/* A send or a receive. Sends to one peer are ordered, and so are receives from one. */
typedef struct epw_coll_point {
    unsigned char *at;
    uint64_t bytes; /* receive: size of the buffer */
    uint64_t call[2];
    uint32_t peer, sends;
} epw_coll_point;

/* The note behind each piece of a message: the sender's call, and the bytes of the whole message. */
typedef struct epw_coll_note {
    uint64_t call[2], bytes;
} epw_coll_note;

/* Sends and receives that progress together, grouped into lanes by direction and peer. */
typedef struct epw_coll_point_args {
    epw_coll_args common; /* fields that only collectives use are unused */
    uint32_t lanes;
    uint32_t first[EPW_COLL_POINTS + 1]; /* index of each lane's first point, and one past the last */
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

/* All functions return a cudaError_t, and none waits. Prepares the kernels on the current device; not under capture. */
int epw_coll_gpu_prepare(void);
int epw_coll_gpu_prepare_norm(void);

int epw_coll_gpu_run(const epw_coll_args *args, uint32_t blocks, void *stream);
int epw_coll_gpu_run_blocks(const epw_coll_blocks_args *args, uint32_t blocks, void *stream);
/* By packets, in one kernel, with a warp for each piece of 128 elements; and what follows the sum of at least one row. */
int epw_coll_gpu_run_norm(const epw_coll_norm_args *args, uint32_t blocks, void *stream);
int epw_coll_gpu_run_norm_alone(const epw_coll_norm_args *args, uint32_t blocks, void *stream);
/* By lines. */
int epw_coll_gpu_prepare_lines(void);
int epw_coll_gpu_run_lines(const epw_coll_args *args, uint32_t blocks, void *stream);
int epw_coll_gpu_run_lines_of_blocks(const epw_coll_blocks_args *args, uint32_t blocks, void *stream);
/* By copies: what comes before them, and after them with as many blocks as kernels that read lent memory have. */
int epw_coll_gpu_prepare_copies(void);
int epw_coll_gpu_begin_copies(const epw_coll_copies_args *args, void *stream);
int epw_coll_gpu_end_copies(const epw_coll_copies_args *args, uint32_t blocks, void *stream);
int epw_coll_gpu_run_points(const epw_coll_point_args *args, uint32_t blocks, void *stream);

/* Clears suspects, begins the epoch and tells every peer that is or was active. */
int epw_coll_gpu_begin_epoch(const epw_coll_membership_args *args, void *stream);

/* Removes the peer from the table, and tells it so if it is a member that has not been told. */
int epw_coll_gpu_part(const epw_coll_part_args *args, void *stream);

#ifdef __cplusplus
}
#endif

#endif
