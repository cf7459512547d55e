/* The SMs of each GPU that this process has promised to kernels that wait for peers. Such kernels must be
 * co-resident, otherwise a kernel that waits could keep off the GPU another kernel for which a peer waits,
 * until the deadline. Every buffer and communicator on a GPU takes its share when it is created and returns
 * it when it is destroyed; one that would not fit is refused.
 *
 * A block counts as one SM, although two of them may fit on one: how an SM divides its registers and shared
 * memory depends on what else runs there, so that cannot be relied on. Work of other processes on the GPU is
 * not counted. Nothing here calls CUDA. */
#ifndef EPW_DEVICE_SM_LEDGER_H
#define EPW_DEVICE_SM_LEDGER_H

#include "base/status.h"

typedef struct epw_sm_share epw_sm_share;

typedef struct epw_sm_request {
    int32_t device;
    uint32_t sms; /* SMs of the GPU */
    uint32_t least, most;
    uint32_t multiple;  /* the share is a multiple of this, and so are least and most */
    const char *holder; /* "buffer" or "communicator", for error texts of later requests; not copied */
    uint32_t rank;
} epw_sm_request;

/* Takes as many SMs as are free, from `least` to `most`. EPW_ERR_LIMIT: fewer are free; the text names the
 * holders of the others. Any thread. */
epw_status epw_sm_ledger_take(const epw_sm_request *request, epw_where where, epw_sm_share **out);

/* Returns a share. NULL: does nothing. */
void epw_sm_ledger_give(epw_sm_share *share);

uint32_t epw_sm_share_of(const epw_sm_share *share);

#endif
