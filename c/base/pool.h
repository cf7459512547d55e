/* A rank's threads: the caller plus `threads - 1` workers, which share one job at a time. */
#ifndef EPW_BASE_POOL_H
#define EPW_BASE_POOL_H

#include "epwire.h"

typedef struct epw_pool epw_pool;

/* Processes item `item` of a job on thread `thread` (0 is the caller), with the floating-point mode that the
 * numerics require (base/float_state.h). */
typedef void (*epw_pool_fn)(void *context, uint32_t item, uint32_t thread);

epw_status epw_pool_create(uint32_t rank, uint32_t threads, epw_pool **out);
void epw_pool_destroy(epw_pool *pool);

/* In a forked child, where no worker runs: frees the memory. NULL is allowed. */
void epw_pool_abandon(epw_pool *pool);

/* Runs fn for every item in [0, items), items below 2^31, in any order, on all threads. Returns when all
 * items have ended and their stores, streaming ones included, are visible to the caller and to any thread or
 * rank that the caller signals next. It waits for items, not for workers: a worker that the system does not
 * schedule takes no items and delays nobody. Concurrent callers take turns. */
void epw_pool_run(epw_pool *pool, epw_pool_fn fn, void *context, uint32_t items);

#endif
