/* The memory of epw_comm_alloc: pieces of the window's heap. The list of all pieces, in ascending order of
 * offsets, is kept outside the window. */
#ifndef EPW_COLL_HEAP_H
#define EPW_COLL_HEAP_H

#include "coll/parts.h"

bool epw_heap_make(epw_comm *comm);
void epw_heap_free(epw_comm *comm);

#endif
