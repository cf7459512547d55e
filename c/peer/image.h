/* The images of peers behind queues: this rank's own memory, which holds what it writes for them until it has
 * been sent. One allocation and one key for all peers, made for the first of them. */
#ifndef EPW_PEER_IMAGE_H
#define EPW_PEER_IMAGE_H

#include "peer/peers.h"

/* With the floor locked. */
epw_status epw_image_open(epw_peers *peers, epw_where where);

/* Nothing may be sent from it any more. Does nothing if there is none. */
void epw_image_close(epw_peers *peers);

/* Where a lane's area for a peer lies in the image, and the part of the peer's window to which it
 * corresponds. */
uint64_t epw_image_offset(const epw_peers *peers, uint32_t peer, uint32_t lane, uint32_t area,
                          epw_stretch *stretch);

/* Whether images and queue entries, which kernels write for an adapter, should be in memory of their GPU if
 * possible. */
bool epw_image_wants_far(const epw_peers *peers);

#endif
