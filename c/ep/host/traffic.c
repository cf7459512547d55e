/* See traffic.h. */
#include "ep/host/traffic.h"

static uint64_t row_bytes(const epw_lane *lane) {
    const epw_row_format *format = &lane->format;
    return format->payload_bytes + (uint64_t)format->scale_count * format->scale_bytes;
}

void epw_traffic_sent(epw_host_traffic *traffic, const epw_lane *lane, uint32_t word, uint32_t rows,
                      uint64_t answer_bytes) {
    if (word == EPW_WORD_DISPATCH) {
        epw_traffic_add(&traffic->rows_sent, rows);
        epw_traffic_add(&traffic->bytes_sent, rows * row_bytes(lane));
    } else if (word == EPW_WORD_COMBINE) {
        epw_traffic_add(&traffic->rows_answered, rows);
        epw_traffic_add(&traffic->bytes_sent, rows * answer_bytes);
    }
}

void epw_traffic_received(epw_host_traffic *traffic, const epw_lane *lane, uint32_t ranks) {
    uint64_t rows = 0;
    for (uint32_t source = 0; source < ranks; source++) rows += lane->received[source];
    epw_traffic_add(&traffic->rows_received, rows);
    epw_traffic_add(&traffic->bytes_received, rows * row_bytes(lane));
}

void epw_traffic_waited(epw_host_traffic *traffic, const epw_lane *lane, uint32_t ranks) {
    for (uint32_t peer = 0; peer < ranks; peer++) {
        uint64_t waited = lane->machine.peers[peer].waited_ns;
        if (waited > 0) epw_traffic_add(&traffic->wait_ns[peer], waited);
    }
}

void epw_traffic_read(const epw_host_traffic *traffic, epw_traffic *out, uint64_t *wait_ns, uint32_t ranks) {
#define LOAD(count) atomic_load_explicit(&traffic->count, memory_order_relaxed)
    out->rows_sent = LOAD(rows_sent);
    out->rows_received = LOAD(rows_received);
    out->rows_answered = LOAD(rows_answered);
    out->bytes_sent = LOAD(bytes_sent);
    out->bytes_received = LOAD(bytes_received);
    for (uint32_t peer = 0; wait_ns != NULL && peer < ranks; peer++) wait_ns[peer] = LOAD(wait_ns[peer]);
#undef LOAD
}
