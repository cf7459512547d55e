/* Measures how fast a rank's GPU copies into a peer's window: for the doctor, which does so before there is a
 * membership. Not part of the interface. */
#ifndef EPW_PEER_COPIES_H
#define EPW_PEER_COPIES_H

#include "peer/peers.h"

/* Copies this rank's own part of its window over that in the peer's window several times, and gives the time
 * that all copies took and their bytes. Nothing else reads or writes there, because the peer is connected but
 * not active. Waits at most timeout_ns. EPW_ERR_STATE: the peer's window is not mapped, or not on a GPU. */
epw_status epw_peers_time_copies(epw_peers *peers, uint32_t peer, uint64_t timeout_ns, uint64_t *bytes,
                                 uint64_t *ns);

#endif
