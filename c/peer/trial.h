/* A trial of the path to a peer: a user of the floor without tokens, only with bytes and words. It puts
 * ranges into a peer's window, followed by a word, and waits for those of the peer as operations wait. The
 * bench compares it with plain sockets, the doctor measures each pair of ranks with it, and tests count its
 * bytes. Windows are host memory.
 *
 *     open -> export, connect ... put(peer, n) ... await(peer, n) ... -> close
 *
 * One thread uses a trial. */
#ifndef EPW_PEER_TRIAL_H
#define EPW_PEER_TRIAL_H

#include "base/status.h"
#include "epwire.h"

typedef struct epw_trial epw_trial;

typedef struct epw_trial_options {
    uint32_t rank, ranks;
    uint64_t bytes;       /* the most bytes of a range, a multiple of 8 */
    uint32_t count;       /* ranges of a put at most */
    uint64_t deadline_ns; /* of each call that waits */
    uint32_t paths;       /* by which peers may be reached: EPW_PATH_* bits */
    epw_fabric *fabric;   /* outlives the trial; NULL if paths exclude queues */
} epw_trial_options;

epw_status epw_trial_open(const epw_trial_options *options, epw_trial **out);
void epw_trial_close(epw_trial *trial);

/* As those of a buffer. */
epw_status epw_trial_export(epw_trial *trial, uint32_t peer, void *blob, size_t *length);
epw_status epw_trial_connect(epw_trial *trial, uint32_t peer, const void *blob, size_t length);
uint32_t epw_trial_path(epw_trial *trial, uint32_t peer);
uint32_t epw_trial_wire(epw_trial *trial, uint32_t peer);

/* Puts `count` ranges of `bytes` bytes that begin with the number, followed by the number as a word. For a
 * peer behind a queue each range is an entry, sent from this rank's image; otherwise ranges are copied from
 * this rank's memory into the peer's window. For a peer behind a queue it first waits until the peer has what
 * was put before, since the image is written again; a mapped peer must have awaited that. Numbers are not 0,
 * and two successive puts to a peer have different ones. */
epw_status epw_trial_put(epw_trial *trial, uint32_t peer, uint64_t bytes, uint32_t count, uint64_t number);

/* Waits for the peer's word; EPW_ERR_MISMATCH: the `count` ranges of `bytes` bytes before it do not all begin
 * with the number. */
epw_status epw_trial_await(epw_trial *trial, uint32_t peer, uint64_t bytes, uint32_t count, uint64_t number);

#endif
