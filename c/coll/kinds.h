/* What kinds of operations are, for the host and for kernels. */
#ifndef EPW_COLL_KINDS_H
#define EPW_COLL_KINDS_H

#include "base/inline.h"
#include "epwire.h"

EPW_INLINE int epw_coll_has_root(uint32_t kind) {
    return kind == EPW_BROADCAST || kind == EPW_REDUCE || kind == EPW_GATHER || kind == EPW_SCATTER;
}

#endif
