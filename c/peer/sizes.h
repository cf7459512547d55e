/* The memory that peers behind queues take from a rank besides its window: both the plan and the allocation
 * use these functions. */
#ifndef EPW_PEER_SIZES_H
#define EPW_PEER_SIZES_H

#include "epwire.h"
#include "nic/queue.h"
#include "nic/region.h"

#include <stdint.h>

/* Properties of a floor, as in epw_peers_options. */
typedef struct epw_remote_shape {
    uint32_t ranks, lanes, depth;
    epw_stretch (*footprint)(void *user, uint32_t source, uint32_t lane, uint32_t area);
    void *user;
} epw_remote_shape;

/* The most entries that the operations of a lane post to one peer. A queue also has room for the words that
 * may be posted while the peer takes nothing: epochs, farewells, beacons, probes and reports. */
#define EPW_REMOTE_WORDS       256u
#define EPW_REMOTE_ENTRIES_MAX (EPW_QUEUE_DEPTH_MAX - EPW_REMOTE_WORDS)

/* The depth of each queue if operations post this many entries and at least `asked` (a power of two, or 0)
 * are wanted. */
uint32_t epw_queue_depth(uint32_t entries, uint32_t asked);

/* Bytes of the queues by which lanes post to all other ranks. */
uint64_t epw_rings_bytes(const epw_remote_shape *shape);

/* Bytes of the images of all ranks, whose parts have this alignment. */
#define EPW_IMAGE_ALIGN 64u
uint64_t epw_images_bytes(const epw_remote_shape *shape);

/* Bytes of an inbox for all ranks. Memory is allocated for them in pieces of this size. */
#define EPW_INBOX_CHUNK_BYTES UINT64_C(65536)
uint64_t epw_inbox_bytes(const epw_remote_shape *shape);

/* The same for a plan: 0 on the host, and with a fabric by which peers always write to the GPU's window. The
 * fabric may be NULL. */
uint64_t epw_planned_inbox_bytes(const epw_remote_shape *shape, int32_t device, const epw_fabric *fabric);

#endif
