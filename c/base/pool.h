/* A rank's threads: the caller plus `threads - 1` workers that share one job at a time. */
#ifndef EPW_BASE_POOL_H
#define EPW_BASE_POOL_H

#include "epwire.h"

typedef struct epw_pool epw_pool;

/* Processes item `item` of a job on thread `thread` (0 is the caller), with the floating-point unit as
 * numerics are defined (base/float_state.h). */
typedef void (*epw_pool_fn)(void *context, uint32_t item, uint32_t thread);

epw_status epw_pool_create(uint32_t rank, uint32_t threads, epw_pool **out);
void epw_pool_destroy(epw_pool *pool);

/* In a fork's child, where no worker runs: gives the memory back. NULL is allowed. */
void epw_pool_abandon(epw_pool *pool);

/* Runs fn for every item in [0, items), items below 2^31, in any order, on all threads; returns when all
 * items have ended and their stores, streaming ones included, are visible to the caller and to whoever the
 * caller signals next. It waits for items, not for workers: one that the system does not run takes no items
 * and holds nobody up. Callers take turns. */
void epw_pool_run(epw_pool *pool, epw_pool_fn fn, void *context, uint32_t items);

#endif
