/* What peers behind queues write to a rank whose window is on a GPU: host memory of the same layout. A host
 * thread of a NIC can store there while kernels wait on all SMs, which no copy to the GPU's memory is sure to
 * do; kernels read it over the bus, each byte once. Mapped peers, and the rank itself, write into the window.
 *
 * Its addresses are reserved when the buffer is created, so that kernels and registered regions may keep
 * them. Memory, and a place among the GPU's addresses, is taken for what a peer may write when it is
 * connected by a queue, and kept to the end: who comes later to the peer's place finds it. */
#ifndef EPW_PEER_INBOX_H
#define EPW_PEER_INBOX_H

#include "peer/peers.h"

/* Called by epw_remote_gpu_open and epw_remote_gpu_close: sets peers->inbox. Close also after an error. */
epw_status epw_inbox_open(epw_peers *peers, int32_t device, epw_where where);
void epw_inbox_close(epw_peers *peers);

/* Makes what the peer may write there resident, and known to this rank's GPU. What has been written there
 * stays. With the floor locked. EPW_ERR_NO_MEMORY if the machine or a cgroup has not so much memory left. */
epw_status epw_inbox_pin(epw_peers *peers, uint32_t peer, epw_where where);

#endif
