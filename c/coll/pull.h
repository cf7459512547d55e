/* Reading the caller's memory of a peer on the same host, by process_vm_readv: one copy, by the kernel, in
 * place of two through a ring. On some machines two are faster at every size, so this is measured. */
#ifndef EPW_COLL_PULL_H
#define EPW_COLL_PULL_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads from a process's memory. False: it is not permitted, or there is no such memory. */
bool epw_pull_from(uint32_t pid, void *to, uint64_t address, uint64_t bytes);

/* What the environment variable EPWIRE_PULL_FROM says: 0 if nothing, UINT64_MAX for "never". EPW_ERR_INVALID,
 * with `where`: something else than that or a number. */
epw_status epw_pull_wanted(epw_where where, uint64_t *out);

/* From how many bytes on a piece is read so, UINT64_MAX: none is. That is what the variable says, otherwise
 * what the process measures once, in about a millisecond. */
epw_status epw_pull_choose(epw_where where, uint64_t *out);

#endif
