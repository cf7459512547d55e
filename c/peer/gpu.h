/* The floor's part for windows on GPUs. Host threads cannot access memory there: they write peer tables and
 * words, and read words, through copies from and to pinned memory.
 *
 * All copies run on one stream of the library's own, as do the user's kernels that change the floor's state
 * on the GPU. So changes happen in the order of the calls, even after a call that has stopped waiting for its
 * own change. Copies need only a copy engine, so they run even while waiting kernels occupy all SMs.
 *
 * In a build without CUDA no rank has this part, and epw_peers_enter and epw_peers_copy_word always fail. */
#ifndef EPW_PEER_GPU_H
#define EPW_PEER_GPU_H

#include "peer/gpu_part.h"
#include "peer/peers.h"

/* Writes the route, or that there is none, into the peer table of every lane, and waits for that within the
 * group's deadline, and so also for everything that was copied for the peer before. The peer is not active,
 * so kernels that run meanwhile do not use its entries. The user removes those of a member, by a kernel
 * (epw_peers_user.part). Any thread, one at a time for each peer. */
epw_status epw_peers_enter(const epw_peers *peers, uint32_t peer, const epw_route *route, epw_where where);

/* A word between host memory and a window. */
typedef struct epw_word_copy {
    uint32_t use; /* EPW_COPY_*: distinguishes copies that run at the same time */
    bool writes;  /* to `at`; else from there */
    unsigned char *at;
    uint64_t *value;
} epw_word_copy;

/* `where` names the peer. EPW_ERR_TIMEOUT if it is not done within timeout_ns; callers that hold locks pass
 * EPW_COPY_WITHIN_NS. Any thread, one at a time for each use. */
#define EPW_COPY_WITHIN_NS UINT64_C(10000000)
epw_status epw_peers_copy_word(const epw_peers *peers, const epw_word_copy *copy, uint64_t timeout_ns,
                               epw_where where);

#ifdef EPW_CUDA

#include <string.h>

typedef struct epw_peers_gpu_options {
    int32_t device;
    uint64_t deadline_ns;
    epw_gpu_shared *shared; /* device memory of the user's, as is the next */
    epw_gpu_peers *lanes[EPW_MAX_LANES];
    epw_gpu_ring *ring;   /* for `shared`, in mapped host memory; NULL: none */
    const char *unmarked; /* a text of device/stream_order.h */
    bool serial;          /* no two lanes run at the same time: config.serial_lanes */
    bool joined;          /* streams may join captures by waiting for a lane's captured call, see there */
} epw_peers_gpu_options;

/* Fills in the kernels' description of the group, with this rank in each lane's table. Call it after
 * epw_peers_create and before epw_peers_open_probe. Call epw_peers_close_gpu also after an error, or without
 * such a call; nothing may run on the stream any more. */
epw_status epw_peers_open_gpu(epw_peers *peers, const epw_peers_gpu_options *options, epw_where where);
void epw_peers_close_gpu(epw_peers *peers);

/* Waits on the host, at most timeout_ns, with short sleeps, for the work after which `event` was last
 * recorded. EPW_PENDING if the time passes first. Any thread. */
epw_status epw_peers_await_event(const epw_peers *peers, cudaEvent_t event, uint64_t timeout_ns,
                                 epw_where where);

/* Reads a word of lane 0 that this rank has posted to itself, within the group's deadline. One at a time. */
epw_status epw_peers_copy_own_word(const epw_peers *peers, uint32_t word, uint64_t *value, epw_where where);

/* Copies everything but rows that mapped peers have written here into `pinned->lines`, several times: no copy
 * is older than the one before it. Waits for the copies as epw_peers_await_event does; after EPW_PENDING the
 * next call continues to wait, and *fresh says whether the copies began in this call. One call at a time. */
epw_status epw_peers_copy_lines(const epw_peers *peers, uint64_t timeout_ns, bool *fresh, epw_where where);

/* A word of lane 0 from one of the copies; if the peer writes to the inbox, the word that is there now, by an
 * acquire. */
static inline uint64_t epw_copied_word(const epw_peers *peers, uint32_t copy, uint32_t peer, uint32_t word) {
    if (epw_is_in_inbox(peers, peer)) return epw_word_from(peers, 0, peer, word);
    const epw_line *line = &peers->gpu->pinned->lines[copy][peer];
    uint64_t value;
    memcpy(&value, (const unsigned char *)line + word * sizeof value, sizeof value);
    return value;
}

/* Waits in the same way for what has been enqueued on the stream. */
epw_status epw_peers_settle(const epw_peers *peers, uint64_t timeout_ns, epw_where where);

/* Copies what kernels of each lane have counted, from[lane] in device memory, to pinned memory: to + lane *
 * bytes. Within the group's deadline: EPW_ERR_TIMEOUT after that. One at a time. */
epw_status epw_peers_copy_counts(const epw_peers *peers, const void *const *from, void *to, uint64_t bytes,
                                 epw_where where);

/* Waits in the same way for a change of the peer tables, within the group's deadline: EPW_ERR_TIMEOUT after
 * that. */
epw_status epw_peers_settle_change(const epw_peers *peers, epw_where where);

/* Tells active peers except those in `told`, each in its window and on every lane, not to wait for this rank
 * any longer. Nothing of this rank may write there any more. Waits in the same way, within the group's
 * deadline; before that, until what kernels have posted to queues is placed, for EPW_FLUSH_NS in all and not
 * later than until_ns (epw_now_ns). */
epw_status epw_peers_say_farewell(epw_peers *peers, const epw_mask *told, uint64_t until_ns, epw_where where);

#endif

#endif
