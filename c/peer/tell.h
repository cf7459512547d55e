/* What the floor says in the log (base/log.h): how peers are reached, who is a member, who was given up. */
#ifndef EPW_PEER_TELL_H
#define EPW_PEER_TELL_H

#include "base/bits.h"
#include "base/log.h"
#include "peer/table.h"

/* A membership of a rank that has begun, and the one before. */
typedef struct epw_begun {
    const char *what; /* of a buffer, communicator or prefill buffer */
    uint32_t rank, ranks, epoch;
    uint64_t step;
    const epw_mask *active, *before;
    const epw_route *routes; /* [ranks] */
} epw_begun;

void epw_tell_membership(const epw_begun *begun);

/* where.peer was given up by where.rank, in a membership of `what`. `record`: the last of an operation there,
 * which may be of another peer or of an older epoch, and says nothing then; NULL where there is none.
 * `silent`: for a deadline; `revoked`: by the group, or by the program. */
void epw_tell_suspect(epw_where where, const char *what, uint32_t epoch, bool silent, bool revoked,
                      const epw_error_record *record);

/* Of a GPU, where kernels give up: an operation that has ended without some peers. */
void epw_tell_outcome(const epw_outcome *outcome);

#endif
