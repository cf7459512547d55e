/* What a buffer on the host has moved and waited for: epw_buffer_traffic. */
#ifndef EPW_EP_HOST_TRAFFIC_H
#define EPW_EP_HOST_TRAFFIC_H

#include "ep/buffer.h"

#include <stdatomic.h>

/* Writer: whoever runs a lane, with a few additions for each operation and peer. Reader: any thread. Nothing
 * is decided by a count, so all accesses are relaxed. */
typedef struct epw_host_traffic {
    _Atomic uint64_t rows_sent, rows_received, rows_answered, bytes_sent, bytes_received;
    _Atomic uint64_t *wait_ns; /* [ranks] */
} epw_host_traffic;

static inline void epw_traffic_add(_Atomic uint64_t *count, uint64_t more) {
    atomic_fetch_add_explicit(count, more, memory_order_relaxed);
}

/* Rows with their scales, or answers of `answer_bytes` each, have been announced to a peer by a word with
 * their number. */
void epw_traffic_sent(epw_host_traffic *traffic, const epw_lane *lane, uint32_t word, uint32_t rows,
                      uint64_t answer_bytes);

/* A dispatch has been received from `ranks` ranks. */
void epw_traffic_received(epw_host_traffic *traffic, const epw_lane *lane, uint32_t ranks);

/* The last wait of a call has ended for each of them. */
void epw_traffic_waited(epw_host_traffic *traffic, const epw_lane *lane, uint32_t ranks);

/* wait_ns may be NULL. */
void epw_traffic_read(const epw_host_traffic *traffic, epw_traffic *out, uint64_t *wait_ns, uint32_t ranks);

#endif
