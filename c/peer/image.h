/* The images of peers behind queues: this rank's own memory, where what it writes for them lies until it has
 * travelled. One allocation and one key for all peers, made with the first of them. */
#ifndef EPW_PEER_IMAGE_H
#define EPW_PEER_IMAGE_H

#include "peer/peers.h"

/* With the floor locked. */
epw_status epw_image_open(epw_peers *peers, epw_where where);

/* Nothing is sent of it any more. Does nothing where there is none. */
void epw_image_close(epw_peers *peers);

/* Where a lane's area of a peer lies in the image, and the stretch of the peer's window that it stands for.
 */
uint64_t epw_image_offset(const epw_peers *peers, uint32_t peer, uint32_t lane, uint32_t area,
                          epw_stretch *stretch);

/* Whether what kernels write for an adapter is to be on their GPU, if that can be: images, and entries of
 * queues. */
bool epw_image_wants_far(const epw_peers *peers);

#endif
