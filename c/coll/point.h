/* Sends and receives: matched by peer and tag, in the order of the calls.
 *
 * A small message is sent at once, as long as no more than EPW_EAGER_BYTES from this rank are unreceived at
 * the peer. A message that is larger, or beyond that limit, is offered. Once a receive matches, the peer
 * reads it from this rank's memory and answers DONE, or, if it cannot or should not read that memory, it
 * answers ASK and the bytes follow in messages. Messages that have arrived before their receives are kept in
 * order, copies of small ones as well as offers, at most EPW_UNRECEIVED_MAX from each peer: senders count
 * them, and are told which were matched (MATCHED). So a ring is always read to its end, and no message blocks
 * another. */
#ifndef EPW_COLL_POINT_H
#define EPW_COLL_POINT_H

#include "coll/parts.h"

#define EPW_EAGER_BYTES    (UINT64_C(256) << 10)
#define EPW_UNRECEIVED_MAX 1024u

/* Adds a send or receive of a job; false: no memory. */
bool epw_point_add(epw_comm *comm, const epw_coll *call, epw_job *job, uint64_t now);

/* Advances all of them as far as possible; true if anything has moved. */
bool epw_points_move(epw_comm *comm, uint64_t now);

/* When the first send or receive of this rank to itself must be given up; UINT64_MAX: there is none. */
uint64_t epw_points_expiry(const epw_comm *comm);

/* Whether something is awaited from the peer; whether something is still to be written for it. */
bool epw_point_awaits(const epw_coll_peer *p);
bool epw_point_has_more(const epw_coll_peer *p);

/* Whether a send or receive with the peer is under way that needs something of the peer. */
bool epw_point_owed(const epw_coll_peer *p);

/* The peer has been given up: ends all transfers with it. */
void epw_point_lose(epw_comm *comm, epw_coll_peer *p);

/* The job has been dropped: its transfers continue without the caller's memory. */
void epw_points_drop(epw_comm *comm, const epw_job *job);

/* Ends all transfers with this status. */
void epw_points_end(epw_comm *comm, epw_status status);

/* Frees all transfers, when a membership begins or the communicator is destroyed. */
void epw_points_forget(epw_comm *comm);
/* epw_points_free may be called after epw_points_make has failed. */
bool epw_points_make(epw_comm *comm);
void epw_points_free(epw_comm *comm);

#endif
