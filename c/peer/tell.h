/* What the floor logs (base/log.h): how peers are reached, who is a member, who was given up. */
#ifndef EPW_PEER_TELL_H
#define EPW_PEER_TELL_H

#include "base/bits.h"
#include "base/log.h"
#include "peer/table.h"

/* A membership that a rank has begun, and the previous one. */
typedef struct epw_begun {
    const char *what; /* of a buffer, communicator or prefill buffer */
    uint32_t rank, ranks, epoch;
    uint64_t step;
    const epw_mask *active, *before;
    const epw_route *routes; /* [ranks] */
} epw_begun;

void epw_tell_membership(const epw_begun *begun);

/* where.peer was given up by where.rank, in a membership of `what`. `record`: the last record of an operation
 * there; it is ignored if it is about another peer or an older epoch; NULL if there is none. `silent`: the
 * peer was silent for a deadline; `revoked`: the group or the program has revoked it. `trouble`: what has
 * broken the queues to it (epw_peers_try_trouble), or "". */
void epw_tell_suspect(epw_where where, const char *what, uint32_t epoch, bool silent, bool revoked,
                      const epw_error_record *record, const char *trouble);

/* On a GPU, where kernels give peers up: an operation has ended without some peers. `revoked`: the group or
 * the program has revoked the peer that the record names; `trouble` is that peer's. */
void epw_tell_outcome(const epw_outcome *outcome, bool revoked, const char *trouble);

#endif
