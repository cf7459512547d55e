/* Which SMs of each GPU this process has promised to kernels that wait for peers. Such kernels must find room
 * on the GPU together, else one that waits keeps another one off it that a peer waits for, until the
 * deadline. Every buffer and communicator on a GPU takes its share when it is created, and gives it back when
 * it is destroyed; what would not fit is refused.
 *
 * A block counts as an SM, though two of them may find room on one: how the GPU divides an SM's registers and
 * shared memory depends on what else runs there, so that is no promise. What other processes run on the GPU
 * is not known here. Nothing here calls CUDA. */
#ifndef EPW_DEVICE_SM_LEDGER_H
#define EPW_DEVICE_SM_LEDGER_H

#include "base/status.h"

typedef struct epw_sm_share epw_sm_share;

typedef struct epw_sm_request {
    int32_t device;
    uint32_t sms; /* that the GPU has */
    uint32_t least, most;
    uint32_t multiple;  /* the share is a multiple of this, as least and most are */
    const char *holder; /* "buffer" or "communicator", for the errors of those that come later; not copied */
    uint32_t rank;
} epw_sm_request;

/* As many as are free, from `least` to `most`. EPW_ERR_LIMIT: fewer are free, with who holds the others. Any
 * thread. */
epw_status epw_sm_ledger_take(const epw_sm_request *request, epw_where where, epw_sm_share **out);

/* NULL: does nothing. */
void epw_sm_ledger_give(epw_sm_share *share);

uint32_t epw_sm_share_of(const epw_sm_share *share);

#endif
