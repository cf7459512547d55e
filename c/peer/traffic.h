/* What a rank has exchanged with its peers, for epw_buffer_traffic, epw_prefill_traffic and epw_comm_traffic.
 * Whoever moves the bytes counts them here, by a few additions for each operation and peer. */
#ifndef EPW_PEER_TRAFFIC_H
#define EPW_PEER_TRAFFIC_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>

/* With one peer. */
typedef struct epw_exchanged {
    _Atomic uint64_t bytes_sent, bytes_received, wait_ns;
} epw_exchanged;

/* On one lane. Writer: whoever holds the lane's lock. Reader: any thread. Nothing is decided by a count, so
 * all accesses are relaxed. */
typedef struct epw_lane_traffic {
    _Atomic uint64_t operations, rows_sent, rows_received, rows_answered;
    epw_exchanged *with; /* [ranks] */
} epw_lane_traffic;

static inline void epw_count(_Atomic uint64_t *count, uint64_t more) {
    uint64_t before = atomic_load_explicit(count, memory_order_relaxed); /* this thread is the only writer */
    atomic_store_explicit(count, before + more, memory_order_relaxed);
}

/* False: no memory. */
bool epw_traffic_make(epw_lane_traffic *lanes, uint32_t count, uint32_t ranks);
void epw_traffic_free(epw_lane_traffic *lanes, uint32_t count);

/* Adds up what the lanes have counted. See epw_buffer_traffic. */
epw_status epw_traffic_read(const epw_lane_traffic *lanes, uint32_t count, uint32_t ranks, epw_where where,
                            epw_traffic *traffic, epw_peer_traffic *peers);

#endif
