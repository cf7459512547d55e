/* A software NIC: it drains send queues as an adapter would, and carries their entries over connections to
 * the NICs of other ranks, for ranks that share no memory and have no adapter.
 *
 *     this rank                                          the peer
 *     ring -> fetch, check, frame -> connection -> check key and bounds -> place -> ACK -> completion
 *
 * One thread sleeps on the connections. Threads that ring or wait do not depend on it: epw_pair_ring carries
 * out its own entries, and epw_nic_poll takes in what has arrived, each on the calling thread unless another
 * one is doing so. One lock guards everything; nothing blocks while it is held.
 *
 * While other threads drive the NIC, its own thread dozes, so that nothing that arrives wakes two threads; it
 * listens again when they rest, or one doze after the last of them was here. An ACK that a driver must send
 * is delayed until its queue pair or its connection sends something else with which it can travel: for at
 * most EPW_NIC_ACK_NS while somebody drives, otherwise for one doze.
 *
 * Within a host bytes travel through rings in memory (soft/ring.h), which drivers read without a system call.
 *
 * Entries of one queue pair are executed in order, and a word is placed after everything before it. */
#ifndef EPW_NIC_SOFT_H
#define EPW_NIC_SOFT_H

#include "base/status.h"
#include "nic/region.h"

#include <stdatomic.h>

typedef struct epw_nic epw_nic;
typedef struct epw_pair epw_pair;

/* Starts the thread. */
epw_status epw_nic_open(epw_where where, epw_nic **out);

/* Ends the thread and closes all connections. All pairs must have been destroyed. NULL is allowed. */
void epw_nic_close(epw_nic *nic);

/* Takes in what has arrived, and sends what is waiting, as far as neither blocks. Any thread. */
void epw_nic_poll(epw_nic *nic);

/* Notices connections that have ended by now, and answers what others have brought. Unlike epw_nic_poll it
 * waits for a thread that is at work. */
void epw_nic_look(epw_nic *nic);

#define EPW_NIC_ACK_NS  20000
#define EPW_NIC_DOZE_NS 250000

/* The same for a waiter, at this time of base/clock.h: it calls this repeatedly, and epw_nic_rest before it
 * sleeps. Also for a thread that looks without waiting, and may look again. */
void epw_nic_drive(epw_nic *nic, uint64_t now_ns);
void epw_nic_rest(epw_nic *nic);

/* For tests that show what does not depend on the thread: its dozes, and its pauses between two looks at
 * doorbells that it must poll (`polled` below), last this many times as long. */
void epw_nic_stretch_sleeps(epw_nic *nic, uint32_t times);

/* What it has sent so far over all connections: bytes that the sockets took, and how many of them were frame
 * headers, EPW_FRAME_BYTES each. */
typedef struct epw_nic_traffic {
    uint64_t bytes, frames;
} epw_nic_traffic;
epw_nic_traffic epw_nic_sent(epw_nic *nic);

/* ---- connections ---- */

/* Adds a connection to the NIC of rank `peer`, which has been authenticated; owns `fd` from now on, also
 * after an error. *link is what pairs are connected by. */
epw_status epw_nic_add_link(epw_nic *nic, int fd, uint32_t peer, epw_where where, uint64_t *link);

/* The same, with rings in memory of this host, see soft/ring.h. `bytes`: if this end provides them, the size
 * of the larger one, a power of two from EPW_RING_BYTES_MIN to EPW_RING_BYTES_MAX; 0: the other end provides
 * them. */
epw_status epw_nic_add_ring_link(epw_nic *nic, int fd, uint32_t peer, uint32_t bytes, epw_where where,
                                 uint64_t *link);

/* Whether it still carries. */
bool epw_nic_link_alive(epw_nic *nic, uint64_t link);

/* Closes it, and so its other end too. Does nothing if it is gone. */
void epw_nic_end_link(epw_nic *nic, uint64_t link);

/* Reports over the connection that pair `from` of this rank has ended, to which pair `pair` of the peer was
 * connected (both pairs of adapters), and closes the connection. Does nothing if it is gone. */
void epw_nic_end_pair(epw_nic *nic, uint64_t link, uint32_t pair, uint32_t from);

/* Reports over the connection that pair `from` of this rank is connected to pair `pair` of the peer (both
 * pairs of adapters), before it posts. The peer answers that it is heard, or that the peer's pair has ended.
 * Does nothing if the connection is gone. */
void epw_nic_announce_pair(epw_nic *nic, uint64_t link, uint32_t pair, uint32_t from);

/* Who has the adapters' pairs, and is told of such reports, with the NIC locked: that rank `peer` has said of
 * its pair `from`, to pair `pair` of this rank, that it has ended, that it is connected, or that it takes
 * what `pair` sends. `connected` returns whether `pair` takes what `from` will send. While there is an owner,
 * no other pair is told anything. */
typedef struct epw_nic_owner {
    void (*ended)(void *context, uint32_t peer, uint32_t pair, uint32_t from);
    bool (*connected)(void *context, uint32_t peer, uint32_t pair, uint32_t from);
    void (*heard)(void *context, uint32_t peer, uint32_t pair, uint32_t from);
    void *context;
} epw_nic_owner;
void epw_nic_set_owner(epw_nic *nic, const epw_nic_owner *owner);

/* ---- regions: see region.h ---- */

uint32_t epw_nic_register(epw_nic *nic, const epw_region *region);

/* Keys of a region: see region.h; 0: none. */
uint32_t epw_nic_carried_key(epw_nic *nic, uint32_t key);

/* Once this returns nothing of the region is accessed any more. */
void epw_nic_deregister(epw_nic *nic, uint32_t key);

/* ---- queue pairs ---- */

/* The memory that posters and the NIC share for a send queue: entries of 64 bytes, the doorbell record, the
 * doorbell, and a completion queue of one entry. */
typedef struct epw_pair_memory {
    unsigned char *entries;
    uint32_t depth;
    uint32_t *record; /* two words; the second belongs to the send queue */
    uint64_t *doorbell;
    unsigned char *completion;
} epw_pair_memory;

/* The peer whose frames a pair takes, and the region that they name. */
#define EPW_PAIR_ANY_PEER UINT32_MAX
#define EPW_PAIR_ANY_KEY  0u

typedef struct epw_pair_options {
    uint32_t peer;   /* whose frames it takes */
    uint32_t key;    /* key of the region that the peer may write through this pair */
    uint32_t domain; /* domain of the regions that it may use */
    uint32_t depth;  /* of the send queue in entries of 64 bytes: a power of two */
    /* Memory of epw_pair_memory_bytes(depth), aligned to 64, which outlives the pair; NULL: the NIC allocates
     * its own. */
    unsigned char *memory;
    /* In place of that: where each part lies, prepared by its owner. */
    const epw_pair_memory *parts;
    /* Kernels of a GPU ring, which can wake nobody: the NIC's thread polls the doorbell. */
    bool polled;
    /* Called once, when the pair breaks, after everything that came by it has been placed. Called with the
     * NIC locked; NULL: none. */
    void (*broken)(void *context);
    void *context;
} epw_pair_options;

/* Lays out the memory of a pair in one allocation: zeroed, with the completion entry filled with ones. */
uint64_t epw_pair_memory_bytes(uint32_t depth);

/* From now on the peer may write through it. */
epw_status epw_pair_create(epw_nic *nic, const epw_pair_options *options, epw_where where, epw_pair **out);

/* Once this returns nothing that came by it is placed any more, and nothing is read that it had to send. NULL
 * is allowed. */
void epw_pair_destroy(epw_pair *pair);

/* Never 0, and below 2^24. The next 255 pairs in the same slot have other numbers. */
uint32_t epw_pair_number(const epw_pair *pair);
const epw_pair_memory *epw_pair_memory_of(const epw_pair *pair);

/* From now on its entries go to pair `remote` of the link's other end. Call it again only before the first
 * entry is posted. */
void epw_pair_connect(epw_pair *pair, uint64_t link, uint32_t remote);

/* Tells that pair so before the first entry is posted. If it takes nothing from this one, for instance
 * because it has taken entries of a former connection whose end its NIC has not noticed yet, both break; else
 * this one is heard. A pair that an adapter carries refuses whatever comes after its first connection. */
void epw_pair_announce(epw_pair *pair);
bool epw_pair_is_heard(epw_pair *pair);

/* The doorbell has been rung. */
void epw_pair_ring(epw_pair *pair);

/* Makes it `polled`, see its options. */
void epw_pair_poll(epw_pair *pair);

/* How many entries it has been rung for. */
uint64_t epw_pair_rung_for(epw_pair *pair);

/* Whether everything that was rung for is done, or nothing more will be done. */
bool epw_pair_idle(epw_pair *pair);

/* Gives it up, as if its connection were gone; takes effect soon. May be called from `place`. */
void epw_pair_break(epw_pair *pair);

/* Once this returns nothing that comes by it is placed any more; it can still send. False: an adapter that
 * carries it refuses; trying again is allowed. */
bool epw_pair_close(epw_pair *pair);

/* Whether nothing that comes by it is placed any more: it has been closed, or the connection over which its
 * first frame came is gone. */
bool epw_pair_is_closed(epw_pair *pair);

/* Why it is broken, even if later flushed entries hide this in its completion queue; all 0: it is not broken.
 */
typedef struct epw_pair_cause {
    uint8_t syndrome, vendor;
    uint32_t index; /* of the entry */
} epw_pair_cause;
epw_pair_cause epw_pair_cause_of(epw_pair *pair);

/* Whether nothing more is sent by it or completes: its connection is gone, or an entry was refused. Writer:
 * the thread that finds this, after everything that was placed before. */
bool epw_pair_broken(const epw_pair *pair);

#endif
