/* Peers behind a queue: ranks whose windows this one does not map. What this rank writes for such a peer lies
 * in an image in its own memory, and is sent by a queue pair for each lane (nic/). What such a peer writes is
 * placed in this rank's window by the NIC, and looks like what mapped peers write.
 *
 *     offer       for a blob: a queue pair of each lane, and a key to what the peer may write here
 *     connect     to what the peer has offered: its numbers, its key, a connection to its NIC
 *     signal      an entry for the bytes of each range, one for the word, one doorbell
 *     disconnect  what has been posted is sent; then the peer writes nothing here any more
 *
 * A queue pair serves one incarnation of the peer. An offer to another incarnation ends the right of the
 * former one to write here: this is the fence that protects a rank's place. */
#ifndef EPW_PEER_REMOTE_H
#define EPW_PEER_REMOTE_H

#include "nic/queue.h"
#include "peer/peers.h"
#include "window/blob.h"

/* How long all farewells that are sent together may take to be placed. What a socket has taken by then is
 * still sent. */
#define EPW_FLUSH_NS UINT64_C(50000000)

/* Writes what `peer` needs to know. Called with the floor locked. The result is empty if there is no fabric,
 * or if paths exclude queues. */
epw_status epw_remote_offer(epw_peers *peers, uint32_t peer, epw_blob_queue *out, epw_where where);

/* A membership of these ranks begins. Called with the floor locked. */
void epw_remotes_serve(epw_peers *peers, const epw_mask *active);

/* Whether the peer is already connected through exactly the queues of this blob, and they work. Called with
 * the floor locked. */
bool epw_remote_is_connected_to(const epw_peers *peers, uint32_t peer, const epw_blob *blob);

/* Called with the peer claimed. Connects what was offered to the peer with what it has offered, and fills in
 * the route's areas. Waits for the peer's NIC: EPW_ERR_PEER if that does not take what this rank would send.
 */
epw_status epw_remote_connect(epw_peers *peers, uint32_t peer, const epw_nonce *whose,
                              const epw_blob_queue *offer, uint64_t deadline_ns, epw_where where,
                              epw_route *route);

/* Called with the peer claimed, when no route leads there any more. */
void epw_remote_disconnect(epw_peers *peers, uint32_t peer);

/* The same, before the owner of window `whose` is connected: if that is the present peer, and nothing has
 * been posted to it yet, it may continue to write by what it was offered. */
void epw_remote_let_go(epw_peers *peers, uint32_t peer, const epw_nonce *whose);

/* ---- for a peer with such a route ---- */

/* Posts a word for `offset` of the peer's window, after these ranges, to the lane's queue. Never waits: if
 * there is no room, because the peer takes nothing, the queue breaks. */
void epw_remote_signal(const epw_peers *peers, uint32_t lane, uint32_t peer, uint64_t offset, uint64_t value,
                       const epw_range *ranges, uint32_t count);

/* The same of a word that the host writes for kernels of the peer; epw_remote_signal writes words for its
 * host, which on a GPU may be elsewhere. */
void epw_remote_tell_kernels(const epw_peers *peers, uint32_t peer, uint64_t offset, uint64_t value);

/* Whether the peer has received everything that was posted from these areas (1 << EPW_AREA_*), so that their
 * image may be written again. */
bool epw_remote_is_flushed(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t areas);

/* Lends memory of the caller, from which rows are posted on a lane: it is a region of the NIC until it is
 * taken back. 0: there is no room for it. first [out]: where the first row lies in the region. */
uint32_t epw_remotes_lend(const epw_peers *peers, uint32_t lane, const void *rows, uint64_t bytes,
                          uint64_t *first);

/* The first member that has not received what was posted on the lane; `ranks` if there is none. Those that
 * have been given up are waited for only for a moment, `waited_ns` being how long it took so far. Called with
 * the lane locked. */
uint32_t epw_remotes_behind(const epw_peers *peers, uint32_t lane, uint64_t waited_ns);

/* Between two looks at that, without the lane's lock, by a thread that has waited since `began`. */
void epw_remotes_pause(const epw_peers *peers, uint64_t began, uint64_t now);

/* Takes it back: nothing reads it once this returns. The connection to a member that has not received what
 * was posted on the lane is ended. */
void epw_remotes_take_back(const epw_peers *peers, uint32_t lane, uint32_t key);

/* Whether nothing is carried any more. What came before that has been placed. */
bool epw_remote_is_broken(const epw_peers *peers, uint32_t lane, uint32_t peer);

/* For printing: why nothing is carried any more, and what to do; "" if the queues work, or if the path to the
 * peer is no queue. Returns `text`, of EPW_TROUBLE_TEXT. */
const char *epw_remote_trouble(epw_peers *peers, uint32_t peer, char *text);

/* See epw_peers_try_trouble. */
const char *epw_remote_try_trouble(epw_peers *peers, uint32_t peer, char *text);

/* Tells the peer not to wait for this rank any longer, if kernels post to the lanes' queues and have
 * finished: after what they have posted, but not later than until_ns (epw_now_ns). */
void epw_remote_say_farewell(epw_peers *peers, uint32_t peer, uint64_t value, uint64_t until_ns);

#ifdef EPW_CUDA
#include "kernels/peer/way.h"
/* What kernels need for posting, [lanes], except marks, which lie on the GPU. */
void epw_remote_ways(const epw_peers *peers, uint32_t peer, epw_gpu_way *out);
#endif

/* Whether any peer is behind a queue. */
bool epw_remotes_any(const epw_peers *peers);

/* Takes in what has arrived, on this thread. Does nothing without a fabric. */
void epw_remotes_poll(const epw_peers *peers);

/* The same for a waiter, see epw_nic_drive. Does nothing if no peer is behind a queue. */
void epw_remotes_drive(const epw_peers *peers, uint64_t now_ns);
void epw_remotes_rest(const epw_peers *peers);

#endif
