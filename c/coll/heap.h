/* The memory of epw_comm_alloc: pieces of the window's heap. The list of all pieces, in ascending order of
 * offsets, is kept outside the window. */
#ifndef EPW_COLL_HEAP_H
#define EPW_COLL_HEAP_H

#include "coll/parts.h"

bool epw_heap_make(epw_comm *comm);
void epw_heap_free(epw_comm *comm);

/* Whether the heap holds all of the caller's memory, and at which offset of the window. */
static inline bool epw_heap_holds(const epw_comm *comm, const void *memory, uint64_t bytes,
                                  uint64_t *offset) {
    const epw_coll_layout *l = &comm->layout;
    uint64_t window = (uint64_t)(uintptr_t)epw_peers_own(&comm->peers), at = (uint64_t)(uintptr_t)memory;
    uint64_t first = window + l->heap_offset;
    *offset = at - window;
    return at >= first && bytes <= l->heap_bytes && at - first <= l->heap_bytes - bytes;
}

#endif
