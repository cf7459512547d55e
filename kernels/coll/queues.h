/* A communicator on GPUs whose ranks may reach each other by queues, shared by host C and CUDA: the byte map of its window, and
 * the arguments of its kernels. Everything else is as in state.h.
 *
 * All operations go in pieces through rings, whatever their size, and all pairs of ranks follow the same rules, also those that
 * map each other: so nothing needs to be agreed on but whether queues are permitted, which is one of the terms of the window. */
#ifndef EPW_KERNELS_COLL_QUEUES_H
#define EPW_KERNELS_COLL_QUEUES_H

#include "kernels/coll/state.h"

/* The window. A source behind a queue may write three stretches of it, so what it writes lies together.
 *
 *   0         the floor's header and signal words
 *   control   [source] a line for its call of operation n, by n % 2, one for its notice, then its counts: [ring][block], of the
 *             last ring [channel]
 *   pieces    [source][ring][block][slot] a piece, followed by a line for its note; the rings of collectives
 *   points    [source][channel][slot] the same of sends
 *
 * Calls, notices and counts are single words, posted by value. Pieces are written to the image of a peer behind a queue, and
 * posted with the count that announces them. A slot of the image is free again once the peer has taken the piece and the NIC has
 * reported that it is sent; those of an earlier epoch, once the peer has begun this one and all that was posted before is sent.
 */
typedef struct epw_coll_areas {
    uint64_t control_offset, control_stride, pieces_offset, pieces_stride, points_offset, points_stride;
    uint64_t bytes; /* of the window */
} epw_coll_areas;

/* The words of a call's line. Each tag comes after the words before it. */
enum {
    EPW_COLL_CALL_LOW,
    EPW_COLL_CALL_HIGH,
    EPW_COLL_CALL_TAG,
    EPW_COLL_CALL_GIVES, /* of blocks that are uneven: elements for the reader, elements expected from it */
    EPW_COLL_CALL_TAKES,
    EPW_COLL_CALL_SIZES_TAG,
    EPW_COLL_CALL_WORDS
};
#define EPW_COLL_CALL_STRIDE  64u
#define EPW_COLL_NOTICE_AFTER (2 * EPW_COLL_CALL_STRIDE)
#define EPW_COLL_COUNTS_AFTER (EPW_COLL_NOTICE_AFTER + EPW_COLL_NOTICE_STRIDE)

EPW_INLINE uint64_t epw_coll_call_at(const epw_coll_areas *a, uint64_t op, uint32_t source, uint32_t word) {
    return a->control_offset + source * a->control_stride + (op & 1) * EPW_COLL_CALL_STRIDE + word * sizeof(uint64_t);
}

/* The number of a ring of a source among all its rings. */
EPW_INLINE uint32_t epw_coll_ring_of(const epw_coll_window *w, uint32_t ring, uint32_t block) { return ring * w->blocks + block; }
EPW_INLINE uint32_t epw_coll_rings_of(const epw_coll_window *w) { return epw_coll_ring_of(w, EPW_COLL_POINT_RING, w->channels); }

EPW_INLINE uint64_t epw_coll_count_at(const epw_coll_areas *a, const epw_coll_window *w, uint32_t ring, uint32_t source,
                                      uint32_t block, uint32_t which) {
    const uint32_t number = epw_coll_ring_of(w, ring, block) * 2 + which;
    return a->control_offset + source * a->control_stride + EPW_COLL_COUNTS_AFTER + (uint64_t)number * EPW_COLL_COUNT_STRIDE;
}

EPW_INLINE uint64_t epw_coll_slot_at(const epw_coll_areas *a, const epw_coll_window *w, uint32_t ring, uint32_t source,
                                     uint32_t block, uint64_t number) {
    const bool point = ring == EPW_COLL_POINT_RING;
    const uint64_t of_source =
        point ? a->points_offset + source * a->points_stride : a->pieces_offset + source * a->pieces_stride;
    const uint64_t before = point ? block : epw_coll_ring_of(w, ring, block);
    return of_source + (before * w->slots + epw_remainder(number, w->slots, w->slot_inverse)) *
                           ((uint64_t)w->slot_bytes + EPW_COLL_NOTE_BYTES);
}

/* What the kernels need besides. */
typedef struct epw_coll_reach {
    epw_coll_areas areas;
    const unsigned char *inbox; /* where peers behind queues write */
    uint64_t *sent;             /* [rank][ring of it][slot] the queue's index behind the last piece posted from there */
} epw_coll_reach;

/* The bytes of `sent`. */
EPW_INLINE uint64_t epw_coll_sent_bytes(const epw_coll_window *w) {
    return (uint64_t)w->ranks * epw_coll_rings_of(w) * w->slots * sizeof(uint64_t);
}

/* One operation. `pieces` of the common arguments is never 0. */
typedef struct epw_coll_queue_args {
    epw_coll_reach reach;
    epw_coll_args common;
} epw_coll_queue_args;

typedef struct epw_coll_queue_blocks_args {
    epw_coll_reach reach;
    epw_coll_blocks_args blocks;
} epw_coll_queue_blocks_args;

typedef struct epw_coll_queue_point_args {
    epw_coll_reach reach;
    epw_coll_point_args points;
} epw_coll_queue_point_args;

#ifdef __cplusplus
extern "C" {
#endif

/* As in state.h. */
int epw_coll_gpu_prepare_queues(void);
int epw_coll_gpu_run_queue(const epw_coll_queue_args *args, uint32_t blocks, void *stream);
int epw_coll_gpu_run_queue_blocks(const epw_coll_queue_blocks_args *args, uint32_t blocks, void *stream);
int epw_coll_gpu_run_queue_points(const epw_coll_queue_point_args *args, uint32_t blocks, void *stream);

#ifdef __cplusplus
}
#endif

#endif
