/* Where peers behind queues write to a rank whose window is on a GPU, unless adapters reach it (direct.h):
 * host memory with the same layout. A host thread of a NIC can store there while waiting kernels occupy all
 * SMs, when a copy to the GPU's memory might not run; kernels read it over the bus, each byte once. Mapped
 * peers, and the rank itself, write into the window.
 *
 * Its addresses are reserved when the buffer is created, so that kernels and registered regions may keep
 * them. The memory for what a peer may write is allocated, and mapped on the GPU, when the peer is connected
 * by a queue, and kept to the end: later incarnations of the peer use the same memory. */
#ifndef EPW_PEER_INBOX_H
#define EPW_PEER_INBOX_H

#include "peer/peers.h"

/* Called by epw_remote_gpu_open and epw_remote_gpu_close: sets peers->inbox and peers->lines. Call the
 * second also after an error. */
epw_status epw_inbox_open(epw_peers *peers, int32_t device, epw_where where);
void epw_inbox_close(epw_peers *peers);

/* Makes the memory that the peer may write resident, and maps it on this rank's GPU. What has been written
 * there stays. Called with the floor locked. EPW_ERR_NO_MEMORY if the machine or a cgroup does not have that
 * much memory left. */
epw_status epw_inbox_pin(epw_peers *peers, uint32_t peer, epw_where where);

#endif
