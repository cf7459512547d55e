/* The suspects, written into the caller's device memory in stream order, for kernels of the caller. */
#ifndef EPW_PEER_GPU_SUSPECTS_H
#define EPW_PEER_GPU_SUSPECTS_H

#include "peer/peers.h"

/* See epw_buffer_suspects, whose arguments it checks. EPW_ERR_STATE on the host device. Any thread; locks the
 * lanes. */
epw_status epw_peers_enqueue_suspects(epw_peers *peers, int32_t *out, void *stream, epw_where where);

#endif
