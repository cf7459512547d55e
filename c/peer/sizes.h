/* What peers behind queues take of a rank's memory beside its window: planned by these rules before anything
 * is allocated, and allocated by them. */
#ifndef EPW_PEER_SIZES_H
#define EPW_PEER_SIZES_H

#include "nic/queue.h"
#include "nic/region.h"

#include <stdint.h>

/* Of a floor, as in epw_peers_options. */
typedef struct epw_remote_shape {
    uint32_t ranks, lanes, depth;
    epw_stretch (*footprint)(void *user, uint32_t source, uint32_t lane, uint32_t area);
    void *user;
} epw_remote_shape;

/* Entries that the operations under way on a lane post to one peer. Beside them a queue has room for words:
 * epochs, farewells, beacons, probes and reports of a time in which the peer takes nothing. */
#define EPW_REMOTE_WORDS       256u
#define EPW_REMOTE_ENTRIES_MAX (EPW_QUEUE_DEPTH_MAX - EPW_REMOTE_WORDS)

/* Of each queue, where operations post so many and a depth of at least `asked`, a power of two or 0, is
 * wanted. */
uint32_t epw_queue_depth(uint32_t entries, uint32_t asked);

/* Of the queues by which lanes post to all other ranks. */
uint64_t epw_rings_bytes(const epw_remote_shape *shape);

/* Of the images of all ranks, whose parts are aligned so. */
#define EPW_IMAGE_ALIGN 64u
uint64_t epw_images_bytes(const epw_remote_shape *shape);

/* Of an inbox with the places of all ranks. Memory is taken for them by so many bytes at a time. */
#define EPW_INBOX_CHUNK_BYTES UINT64_C(65536)
uint64_t epw_inbox_bytes(const epw_remote_shape *shape);

#endif
