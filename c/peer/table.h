/* The host's peer table: how each peer's window is reached. Kernels have their own, see
 * kernels/peer/context.h.
 *
 * For each peer and lane it has the addresses of three areas, as integers to which offsets in the window are
 * added: what this rank may write at `offset` lies at area + offset. For a mapped peer all three have the
 * same base. */
#ifndef EPW_PEER_TABLE_H
#define EPW_PEER_TABLE_H

#include "base/inline.h"
#include "epwire.h"

typedef struct epw_areas {
    uint64_t control; /* words, and what is announced besides rows */
    uint64_t rows;    /* of dispatch */
    uint64_t answers; /* of combine */
} epw_areas;

typedef struct epw_route {
    uint32_t path;        /* EPW_PATH_* */
    uint32_t wire;        /* EPW_WIRE_*, of EPW_PATH_QUEUE */
    uint64_t incarnation; /* running number of the import: no two windows of a peer have the same. 0: none */
    epw_areas lanes[EPW_MAX_LANES];
} epw_route;

/* Where this rank writes what belongs at `offset` of the peer's window. */
EPW_INLINE unsigned char *epw_at(uint64_t area, uint64_t offset) {
    return (unsigned char *)(uintptr_t)(area + offset);
}

#endif
