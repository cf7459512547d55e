/* What a blob of epw_comm_export_registration says before the blob of the memory's window. Little-endian,
 * with a checksum of its own. */
#ifndef EPW_COLL_NOTICE_H
#define EPW_COLL_NOTICE_H

#include "base/status.h"
#include "ipc/process.h"
#include "peer/peers.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct epw_notice {
    epw_registration id;
    uint64_t first; /* the memory's place among the offsets by which ranks tell each other of their buffers */
    uint64_t bytes;
    uint64_t offset; /* where it begins in its window */
    uint32_t slot;   /* its place in the owner's table */
    epw_nonce owner; /* of the window of the owner's communicator */
} epw_notice;

enum { EPW_NOTICE_BYTES = 4 + 4 + 4 * 8 + 4 + 16 + 8 };

/* Writes EPW_NOTICE_BYTES. */
void epw_notice_write(const epw_notice *notice, unsigned char *bytes);

/* Parses `length` bytes of any content; more may follow the notice. On success there are an id, a slot below
 * EPW_REGISTRATIONS_MAX, and bytes, at least one; `first` is a multiple of 16 above `least`, and the memory
 * ends at `most` or before. `offset` and `owner` are unchecked. EPW_ERR_INVALID: not such a blob, cut or
 * damaged; EPW_ERR_MISMATCH: of another version. */
epw_status epw_notice_parse(const void *bytes, size_t length, uint64_t least, uint64_t most, epw_where where,
                            epw_notice *out);

/* Whether the memory lies within a window of this size. */
bool epw_notice_fits(const epw_notice *notice, uint64_t window_bytes);

/* The window of the peer that is connected, `where.peer`, must be the one that the notice was made with.
 * incarnation [out]: the peer's. EPW_ERR_STATE: it is another one, or none is connected. */
epw_status epw_notice_check_owner(const epw_notice *notice, epw_peers *peers, epw_where where,
                                  uint64_t *incarnation);

#endif
