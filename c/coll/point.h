/* Sends and receives: matched by peer and tag, in the order of the calls.
 *
 * A small message goes at once, as long as the peer has unreceived ones of no more than EPW_EAGER_BYTES here.
 * A larger one, or one beyond that, is offered: the peer reads it where it lies once a receive matches it,
 * and says so (DONE); or, where it cannot read this rank's memory, it asks for it (ASK) and the bytes follow
 * in messages. What has come and is not received is kept in order, copies of small messages and offers alike,
 * and no more than EPW_UNRECEIVED_MAX of each peer: senders count, and are told what was matched (MATCHED).
 * So a ring is always read to its end, and no message waits behind another. */
#ifndef EPW_COLL_POINT_H
#define EPW_COLL_POINT_H

#include "coll/parts.h"

#define EPW_EAGER_BYTES    (UINT64_C(256) << 10)
#define EPW_UNRECEIVED_MAX 1024u

/* Adds a send or receive of a job; false: there is no memory. */
bool epw_point_add(epw_comm *comm, const epw_coll *call, epw_job *job, uint64_t now);

/* Goes on with all of them as far as it can; true if anything has moved. */
bool epw_points_move(epw_comm *comm, uint64_t now);

/* When the first send or receive of this rank to itself is to be given up; UINT64_MAX: there is none. */
uint64_t epw_points_expiry(const epw_comm *comm);

/* Whether something is awaited of the peer; whether something is still to be written for it. */
bool epw_point_awaits(const epw_coll_peer *p);
bool epw_point_has_more(const epw_coll_peer *p);

/* Whether a send or receive of a caller's is under way with the peer. */
bool epw_point_owed(const epw_coll_peer *p);

/* The peer has been given up: what was under way with it ends without it. */
void epw_point_lose(epw_comm *comm, epw_coll_peer *p);

/* The job has been dropped: its transfers go on without its memory. */
void epw_points_drop(epw_comm *comm, const epw_job *job);

/* All end, with this status. */
void epw_points_end(epw_comm *comm, epw_status status);

/* A membership begins, or the communicator ends: what was under way is gone. */
void epw_points_forget(epw_comm *comm);
bool epw_points_make(epw_comm *comm);
void epw_points_free(epw_comm *comm);

#endif
