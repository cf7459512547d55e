/* Declarations shared by the files of remote.h: a peer behind a queue, and the ways to it. */
#ifndef EPW_PEER_REMOTE_PART_H
#define EPW_PEER_REMOTE_PART_H

#include "nic/end.h"
#include "nic/queue.h"
#include "peer/peers.h"
#include "peer/remote_gpu.h"
#include "window/blob.h"

enum {
    /* If kernels post to the lanes' queues, the host has another queue of its own, for words. */
    EPW_HOST_WAY = EPW_MAX_LANES,
    EPW_WAYS
};

/* One lane's way to the peer. */
typedef struct epw_way {
    epw_end end;
    unsigned char *ring;      /* in pinned memory, if kernels post to it; else NULL */
    epw_gpu_entries *entries; /* the entries, if they are on the GPU; else NULL */
    uint64_t *doorbell;       /* the address at which the GPU has mapped an adapter's register; else NULL */
    uint64_t *marks;          /* NULL there */
    epw_queue queue;
    epw_key its; /* keys to what this rank may write in the peer's window, and to its own image, from which it
                    sends */
    epw_key own;
    uint64_t flushed[EPW_AREAS]; /* one past the entry after what was posted last from the area */
    /* The part of the peer's window that this rank writes, and where it lies in the image. */
    epw_stretch stretches[EPW_AREAS];
    uint64_t image[EPW_AREAS];
} epw_way;

struct epw_remote {
    epw_peers *peers;
    uint32_t peer;
    epw_keys keys[EPW_ADAPTERS_MAX]; /* key to what the peer may write in this rank's window */
    epw_keys words;       /* and of the host's way, if words for the host go elsewhere; else zeros */
    uint64_t link;        /* 0: not connected */
    epw_nonce whose;      /* the nonce of the peer's window with which it is connected */
    epw_blob_queue offer; /* and what that window's owner has offered */
    bool served;          /* a membership with the peer has begun */
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
