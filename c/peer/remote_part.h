/* What the files of remote.h share: a peer behind a queue, and the ways to it. */
#ifndef EPW_PEER_REMOTE_PART_H
#define EPW_PEER_REMOTE_PART_H

#include "nic/end.h"
#include "nic/queue.h"
#include "peer/peers.h"
#include "peer/remote_gpu.h"
#include "window/blob.h"

enum {
    /* Where kernels post by the lanes' queues, the host has one of its own beside them, for words. */
    EPW_HOST_WAY = EPW_MAX_LANES,
    EPW_WAYS
};

/* How long farewells may take to be placed, all that are sent at a time. What a socket has taken by then
 * still travels. */
#define EPW_FLUSH_NS UINT64_C(50000000)

/* One lane's way to the peer. */
typedef struct epw_way {
    epw_end end;
    unsigned char *ring;      /* that kernels post to, in pinned memory; else NULL */
    epw_gpu_entries *entries; /* of which the entries are on the GPU; else NULL */
    uint64_t *doorbell;       /* where their GPU has mapped an adapter's register; else NULL */
    uint32_t *marks;          /* NULL there */
    epw_queue queue;
    epw_key its; /* what this rank may write in the peer's window, and what is sent from its own image */
    epw_key own;
    uint64_t flushed[EPW_AREAS]; /* one past the entry behind what was posted last of the area */
    /* What this rank writes in the peer's window, and where that lies in the image. */
    epw_stretch stretches[EPW_AREAS];
    uint64_t image[EPW_AREAS];
} epw_way;

struct epw_remote {
    epw_peers *peers;
    uint32_t peer;
    epw_keys keys[EPW_ADAPTERS_MAX]; /* to what the peer may write in this rank's window */
    uint64_t link;                   /* 0: not connected */
    epw_nonce whose;                 /* with whom it is connected: the peer's window */
    epw_blob_queue offer;            /* and with what that has offered */
    bool served;                     /* a membership with it has begun */
    epw_way ways[EPW_WAYS];
};

static inline bool epw_has_way(const epw_peers *peers, uint32_t number) {
    return number < peers->lanes || (number == EPW_HOST_WAY && peers->gpu != NULL);
}

/* By which the host posts. */
static inline epw_way *epw_way_to(const epw_peers *peers, uint32_t lane, uint32_t peer) {
    return &peers->remotes[peer]->ways[peers->gpu != NULL ? EPW_HOST_WAY : lane];
}

#endif
