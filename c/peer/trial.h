/* A trial of the way to a peer: a user of the floor that has no tokens, only bytes and words. It puts ranges
 * into a peer's window with a word behind them, and waits for those of the peer as operations wait: what the
 * bench measures beside plain sockets, the doctor between each two ranks, and tests count bytes with. Windows
 * are host memory.
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
    uint64_t bytes;       /* of a range at most, a multiple of 8 */
    uint32_t count;       /* ranges of a put at most */
    uint64_t deadline_ns; /* of each call that waits */
    uint32_t paths;       /* by which peers may be reached: EPW_PATH_* bits */
    epw_fabric *fabric;   /* outlives the trial; NULL where paths exclude queues */
} epw_trial_options;

epw_status epw_trial_open(const epw_trial_options *options, epw_trial **out);
void epw_trial_close(epw_trial *trial);

/* As those of a buffer. */
epw_status epw_trial_export(epw_trial *trial, uint32_t peer, void *blob, size_t *length);
epw_status epw_trial_connect(epw_trial *trial, uint32_t peer, const void *blob, size_t length);
uint32_t epw_trial_path(epw_trial *trial, uint32_t peer);
uint32_t epw_trial_wire(epw_trial *trial, uint32_t peer);

/* Puts `count` ranges of `bytes` bytes, each an entry of its own, that begin with the number, and the number
 * as a word behind them: by a queue out of this rank's image, else copied from memory of its own into the
 * peer's window. Waits until what was put before is with the peer behind a queue, whose image is written
 * again; one whose window is mapped must have awaited it. Numbers are not 0, and no two puts in a row to a
 * peer have the same. */
epw_status epw_trial_put(epw_trial *trial, uint32_t peer, uint64_t bytes, uint32_t count, uint64_t number);

/* Waits for the peer's word; EPW_ERR_MISMATCH: the `count` ranges of `bytes` bytes before it do not all begin
 * with the number. */
epw_status epw_trial_await(epw_trial *trial, uint32_t peer, uint64_t bytes, uint32_t count, uint64_t number);

#endif
