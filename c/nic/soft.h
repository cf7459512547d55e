/* A NIC in software: drains send queues as an adapter would, and carries what they say over connections to
 * the NICs of other ranks; the way for ranks that share no memory and have no adapter.
 *
 *     this rank                                          the peer
 *     ring -> fetch, check, frame -> connection -> check key and bounds -> place -> ACK -> completion
 *
 * One thread sleeps on the connections. Who rings or waits does not depend on it: epw_pair_ring carries its
 * own entries out, and epw_nic_poll takes in what has come, each by the calling thread unless another one is
 * at it. One lock guards it all; nothing blocks while it is held.
 *
 * While others drive, the thread dozes, so that nothing that comes wakes two; it listens again when they
 * rest, or a doze after the last of them was here. An ACK that a driver owes waits for what its
 * queue pair or its connection sends next, which it travels with, for EPW_NIC_ACK_NS at most while somebody
 * drives, else for a doze.
 *
 * Within a host bytes go by rings in memory (soft/ring.h), which drivers look at without a system call.
 *
 * Of one queue pair entries are executed in order, and a word is placed behind all before it. */
#ifndef EPW_NIC_SOFT_H
#define EPW_NIC_SOFT_H

#include "base/status.h"
#include "nic/region.h"

#include <stdatomic.h>

typedef struct epw_nic epw_nic;
typedef struct epw_pair epw_pair;

/* Starts the thread. */
epw_status epw_nic_open(epw_where where, epw_nic **out);

/* Ends the thread and closes all connections. All pairs have been destroyed. NULL is allowed. */
void epw_nic_close(epw_nic *nic);

/* Takes in what has come, and sends what waits, as far as neither blocks. Any thread. */
void epw_nic_poll(epw_nic *nic);

/* Sees which connections have ended by now. Unlike epw_nic_poll it waits for whoever is at work. */
void epw_nic_look(epw_nic *nic);

#define EPW_NIC_ACK_NS  20000
#define EPW_NIC_DOZE_NS 250000

/* The same, by a waiter at this time of base/clock.h, who calls it again and again, and epw_nic_rest before
 * it sleeps; or by somebody who looks without waiting, and may look again. */
void epw_nic_drive(epw_nic *nic, uint64_t now_ns);
void epw_nic_rest(epw_nic *nic);

/* For tests, which show so what does not wait for the thread: its dozes, and its naps between two looks at
 * doorbells that nobody tells of (`polled` below), last this many times as long. */
void epw_nic_stretch_sleeps(epw_nic *nic, uint32_t times);

/* What it has sent so far over all connections: bytes as the sockets took them, and of these the frames' own,
 * EPW_FRAME_BYTES to each. */
typedef struct epw_nic_traffic {
    uint64_t bytes, frames;
} epw_nic_traffic;
epw_nic_traffic epw_nic_sent(epw_nic *nic);

/* ---- connections ---- */

/* A connection to the NIC of rank `peer`, which has shown that it is that; owns `fd` from now on, also after
 * an error. *link is what pairs are connected by. */
epw_status epw_nic_add_link(epw_nic *nic, int fd, uint32_t peer, epw_where where, uint64_t *link);

/* The same, by rings in memory of this host, see soft/ring.h: `bytes` of the larger one where this end offers
 * them, a power of two from EPW_RING_BYTES_MIN to EPW_RING_BYTES_MAX; 0: the other end does. */
epw_status epw_nic_add_ring_link(epw_nic *nic, int fd, uint32_t peer, uint32_t bytes, epw_where where,
                                 uint64_t *link);

/* Whether it still carries. */
bool epw_nic_link_alive(epw_nic *nic, uint64_t link);

/* Closes it, here and so at its other end. Does nothing if it is gone. */
void epw_nic_end_link(epw_nic *nic, uint64_t link);

/* Says by the connection that pair `from` of this rank is over, to which pair `pair` of the peer was
 * connected, both of adapters, and closes it. Does nothing if it is gone. */
void epw_nic_end_pair(epw_nic *nic, uint64_t link, uint32_t pair, uint32_t from);

/* Called when a peer has said so, with the NIC locked: whether pair `pair` of this rank is an adapter's that
 * is connected with pair `from` of the peer. NULL: nobody. */
typedef bool epw_nic_ended(void *context, uint32_t peer, uint32_t pair, uint32_t from);
void epw_nic_hear_ended(epw_nic *nic, epw_nic_ended *ended, void *context);

/* ---- regions: see region.h ---- */

uint32_t epw_nic_register(epw_nic *nic, const epw_region *region);

/* Of a region: see region.h; 0: none, or no region. */
uint32_t epw_nic_carried_key(epw_nic *nic, uint32_t key);

/* Once this returns nothing of the region is touched any more. */
void epw_nic_deregister(epw_nic *nic, uint32_t key);

/* ---- queue pairs ---- */

/* What both ends of a send queue share: 64 bytes to an entry, the doorbell record, the doorbell, and a
 * completion queue of one entry. */
typedef struct epw_pair_memory {
    unsigned char *entries;
    uint32_t depth;
    uint32_t *record; /* two words; the second is of the send queue */
    uint64_t *doorbell;
    unsigned char *completion;
} epw_pair_memory;

/* Whose frames a pair takes, and which region they name, where that is not one. */
#define EPW_PAIR_ANY_PEER UINT32_MAX
#define EPW_PAIR_ANY_KEY  0u

typedef struct epw_pair_options {
    uint32_t peer;   /* whose frames it takes */
    uint32_t key;    /* of the region that the peer may write by this pair */
    uint32_t domain; /* of the regions that it may use */
    uint32_t depth;  /* of the send queue in entries of 64 bytes: a power of two */
    /* Of epw_pair_memory_bytes(depth) and aligned to 64, which outlives the pair; NULL: memory of the NIC's.
     */
    unsigned char *memory;
    /* In place of that: where each part lies, as its owner has made it ready. */
    const epw_pair_memory *parts;
    /* Kernels of a GPU ring, who can wake nobody: the NIC's thread looks at the doorbell by itself. */
    bool polled;
    /* Called once, when the pair breaks: after all that came by it has been placed. With the NIC locked;
     * NULL: nobody. */
    void (*broken)(void *context);
    void *context;
} epw_pair_options;

/* Of a pair's memory without parts: all in one allocation. Zeroed, the completion filled with ones. */
uint64_t epw_pair_memory_bytes(uint32_t depth);

/* From here on the peer may write by it. */
epw_status epw_pair_create(epw_nic *nic, const epw_pair_options *options, epw_where where, epw_pair **out);

/* Once this returns nothing that came by it is placed any more, and nothing is read of what it was to send.
 * NULL is allowed. */
void epw_pair_destroy(epw_pair *pair);

/* Never 0, below 2^24, and fresh: the next 255 pairs in its place have other numbers. */
uint32_t epw_pair_number(const epw_pair *pair);
const epw_pair_memory *epw_pair_memory_of(const epw_pair *pair);

/* Its entries go to pair `remote` of the link's other end from now on. Again only before the first is posted.
 */
void epw_pair_connect(epw_pair *pair, uint64_t link, uint32_t remote);

/* The doorbell has been rung. */
void epw_pair_ring(epw_pair *pair);

/* Makes it `polled`, see its options. */
void epw_pair_poll(epw_pair *pair);

/* How many entries it has been rung for. */
uint64_t epw_pair_rung_for(epw_pair *pair);

/* Whether everything that was rung for is done, or nothing more will be. */
bool epw_pair_idle(epw_pair *pair);

/* Gives it up, as if its connection were gone: soon, and also within `place`. */
void epw_pair_break(epw_pair *pair);

/* Once this returns nothing that comes by it is placed any more. It sends on. False: an adapter that carries
 * it does not let go of it; again is allowed. */
bool epw_pair_close(epw_pair *pair);

/* Whether nothing that comes by it is placed any more: it has been closed, or the connection of whoever has
 * sent by it first is gone. */
bool epw_pair_is_closed(epw_pair *pair);

/* Why it is broken, which what was flushed since may hide in its completion queue; all 0: it is not. */
typedef struct epw_pair_cause {
    uint8_t syndrome, vendor;
    uint32_t index; /* of the entry */
} epw_pair_cause;
epw_pair_cause epw_pair_cause_of(epw_pair *pair);

/* Nothing more is sent by it or completes: its connection is gone, or an entry was refused. Writer: whoever
 * finds that, behind all that was placed before. */
bool epw_pair_broken(const epw_pair *pair);

#endif
