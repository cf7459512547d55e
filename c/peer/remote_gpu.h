/* The GPU's side of peers behind queues: rings and images in pinned memory, or for adapters in GPU memory
 * (EPW_RINGS_GPU), which kernels write and the NIC reads; and for each lane and peer a way in device memory,
 * by which kernels post.
 *
 * Pinned memory is freed only at the end, because freeing it would wait for running kernels. Rings of peers
 * that have left are reused for new ones. In a build without CUDA there is no GPU's side. */
#ifndef EPW_PEER_REMOTE_GPU_H
#define EPW_PEER_REMOTE_GPU_H

#include "nic/mlx5.h"
#include "peer/peers.h"

/* Zeroed pinned memory, at the same address for this process and its GPU. */
epw_status epw_remote_gpu_image(epw_peers *peers, uint64_t bytes, epw_where where, unsigned char **out);

/* The same in GPU memory, for adapters, with its description in `far`. Only one of the two is called. */
epw_status epw_remote_gpu_far_image(epw_peers *peers, uint64_t bytes, epw_where where, epw_mlx5_far *far);
void epw_remote_gpu_free_image(epw_peers *peers, unsigned char *image);

/* A ring for the memory of a queue pair; all have the same size. Called with the floor locked. */
epw_status epw_remote_gpu_take_ring(epw_peers *peers, uint64_t bytes, epw_where where, unsigned char **out);
void epw_remote_gpu_give_ring(epw_peers *peers, unsigned char *ring);

/* The entries of a ring in GPU memory; all have the same size. Called with the floor locked. */
typedef struct epw_gpu_entries epw_gpu_entries;
epw_status epw_remote_gpu_take_entries(epw_peers *peers, uint64_t bytes, epw_where where,
                                       epw_gpu_entries **out);
void epw_remote_gpu_give_entries(epw_peers *peers, epw_gpu_entries *ring);
const epw_mlx5_far *epw_remote_gpu_entries(const epw_gpu_entries *ring);

/* The address at which kernels write an adapter's register: mapped until the buffer is destroyed, for
 * whichever queue pair uses it. See device/cuda_registers.h. */
epw_status epw_remote_gpu_map_register(epw_peers *peers, uint64_t *reg, bool in_memory, epw_where where,
                                       uint64_t **out);

/* A connection to the peer is gone, so waits of kernels for it end. Writer: the NIC. Reader: go_on_waiting().
 */
void epw_remote_gpu_broken(epw_peers *peers, uint32_t peer, bool broken);

#ifdef EPW_CUDA

#include "peer/gpu_part.h"

/* Device memory for the ways, and for the state of their queues outside the rings. */
uint64_t epw_remote_gpu_ways_bytes(uint32_t lanes);
uint64_t epw_remote_gpu_marks_bytes(uint32_t lanes, uint32_t ranks, uint32_t depth);

/* Called by epw_peers_open_gpu and epw_peers_close_gpu. */
epw_status epw_remote_gpu_open(epw_peers *peers, epw_where where);
void epw_remote_gpu_close(epw_peers *peers);

/* Called in a scope of the GPU, as a part of epw_peers_enter: tells kernels how to post to the peer, by
 * `ways`[lanes]; NULL: it is not reached by queues. Their marks are filled in here. */
epw_status epw_remote_gpu_enter(const epw_peers *peers, uint32_t peer, const epw_gpu_way *ways,
                                epw_where where);

#endif

#endif
