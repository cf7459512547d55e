/* Peers behind a queue: ranks whose windows this one does not map. What is to be written there lies in an
 * image of this rank's own memory, and travels by a queue pair of each lane (nic/). What such a peer writes
 * is placed in this rank's window by the NIC, and looks like what others write.
 *
 *     offer       for a blob: a queue pair of each lane, and a key to what the peer may write here
 *     connect     to what the peer has offered: its numbers, its key, a connection to its NIC
 *     signal      an entry for the bytes of each range, one for the word, one doorbell
 *     disconnect  what has been posted is sent; then the peer writes nothing here any more
 *
 * A queue pair serves one incarnation of the peer. An offer to another one ends what the last may write here:
 * that is the fence of a rank's place. */
#ifndef EPW_PEER_REMOTE_H
#define EPW_PEER_REMOTE_H

#include "nic/queue.h"
#include "peer/peers.h"
#include "window/blob.h"

/* Writes what `peer` needs to know, with the floor locked. It says nothing where there is no fabric, or paths
 * exclude queues. */
epw_status epw_remote_offer(epw_peers *peers, uint32_t peer, epw_blob_queue *out, epw_where where);

/* A membership of these begins, with the floor locked. */
void epw_remotes_serve(epw_peers *peers, const epw_mask *active);

/* With the floor locked: whether it is connected with the very queues of this blob already, and well. */
bool epw_remote_is_connected_to(const epw_peers *peers, uint32_t peer, const epw_blob *blob);

/* Claimed. Connects what was offered to the peer with what it has offered, and fills in the route's areas. */
epw_status epw_remote_connect(epw_peers *peers, uint32_t peer, const epw_nonce *whose,
                              const epw_blob_queue *offer, uint64_t deadline_ns, epw_where where,
                              epw_route *route);

/* Claimed, and no route leads there any more. */
void epw_remote_disconnect(epw_peers *peers, uint32_t peer);

/* The same, before the peer whose window this is is connected: if it is the same one, and nothing has been
 * posted to it yet, it may go on writing by what it has been offered. */
void epw_remote_let_go(epw_peers *peers, uint32_t peer, const epw_nonce *whose);

/* ---- of a peer with such a route ---- */

/* Posts a word at `offset` of the peer's window, behind these ranges, on the lane's queue. Never waits: where
 * there is no room, because the peer takes nothing, the queue breaks. */
void epw_remote_signal(const epw_peers *peers, uint32_t lane, uint32_t peer, uint64_t offset, uint64_t value,
                       const epw_range *ranges, uint32_t count);

/* Whether the peer has all that was posted of these areas, 1 << EPW_AREA_*: their image may be written again.
 */
bool epw_remote_is_flushed(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t areas);

/* Memory of the caller's that rows are posted from on a lane, a region of the NIC until it is taken back. 0:
 * there is no room for it. */
uint32_t epw_remotes_lend(const epw_peers *peers, uint32_t lane, const void *rows, uint64_t bytes);

/* Nothing reads it once this returns. Waits until the peers have what was posted on the lane, until then at
 * most; the connection to one that has not taken it ends, and soon if it is a suspect. The lane is locked. */
void epw_remotes_take_back(const epw_peers *peers, uint32_t lane, uint32_t key, uint64_t until_ns);

/* Whether nothing travels any more. What came before that has been placed. */
bool epw_remote_is_broken(const epw_peers *peers, uint32_t lane, uint32_t peer);

/* For print: why nothing travels any more, and what to do; "" if something does, or the path to the peer is
 * no queue. Returns `text`, of EPW_TROUBLE_TEXT. */
const char *epw_remote_trouble(epw_peers *peers, uint32_t peer, char *text);

/* Where kernels post by the lanes' queues, and are done: nobody need wait for this rank any longer. */
void epw_remote_say_farewell(epw_peers *peers, uint32_t peer, uint64_t value);

#ifdef EPW_CUDA
#include "kernels/peer/way.h"
/* What kernels post by, [lanes], but for marks, which lie on the GPU. */
void epw_remote_ways(const epw_peers *peers, uint32_t peer, epw_gpu_way *out);
#endif
/* Whether a peer is behind a queue. */
bool epw_remotes_any(const epw_peers *peers);

/* Takes in what has come, by this thread. Nothing without a fabric. */
void epw_remotes_poll(const epw_peers *peers);

/* The same by a waiter, see epw_nic_drive: nothing where no peer is behind a queue. */
void epw_remotes_drive(const epw_peers *peers, uint64_t now_ns);
void epw_remotes_rest(const epw_peers *peers);

#endif
