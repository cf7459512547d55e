/* See traffic.h. */
#include "peer/traffic.h"

#include <stdlib.h>

bool epw_traffic_make(epw_lane_traffic *lanes, uint32_t count, uint32_t ranks) {
    for (uint32_t i = 0; i < count; i++) {
        lanes[i].with = calloc(ranks, sizeof lanes[i].with[0]);
        if (lanes[i].with == NULL) return false;
    }
    return true;
}

void epw_traffic_free(epw_lane_traffic *lanes, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) free(lanes[i].with);
}

static epw_status check(epw_where where, const epw_traffic *traffic) {
    if (traffic == NULL) return epw_fail(EPW_ERR_INVALID, where, "traffic is NULL");
    if (traffic->size != sizeof *traffic || traffic->peer_size != sizeof(epw_peer_traffic))
        return epw_fail(EPW_ERR_INVALID, where,
                        "traffic.size is %u and traffic.peer_size %u, this library's are %zu and %zu: use "
                        "EPW_TRAFFIC_INIT",
                        traffic->size, traffic->peer_size, sizeof *traffic, sizeof(epw_peer_traffic));
    return EPW_OK;
}

static uint64_t load(const _Atomic uint64_t *count) {
    return atomic_load_explicit(count, memory_order_relaxed);
}

epw_status epw_traffic_read(const epw_lane_traffic *lanes, uint32_t count, uint32_t ranks, epw_where where,
                            epw_traffic *traffic, epw_peer_traffic *peers) {
    epw_status status = check(where, traffic);
    if (status != EPW_OK) return status;
    *traffic = (epw_traffic)EPW_TRAFFIC_INIT;
    for (uint32_t i = 0; i < count; i++) {
        traffic->operations += load(&lanes[i].operations);
        traffic->rows_sent += load(&lanes[i].rows_sent);
        traffic->rows_received += load(&lanes[i].rows_received);
        traffic->rows_answered += load(&lanes[i].rows_answered);
    }
    for (uint32_t p = 0; p < ranks; p++) {
        epw_peer_traffic all = {0};
        for (uint32_t i = 0; i < count; i++) {
            const epw_exchanged *with = &lanes[i].with[p];
            all.bytes_sent += load(&with->bytes_sent);
            all.bytes_received += load(&with->bytes_received);
            all.wait_ns += load(&with->wait_ns);
        }
        traffic->bytes_sent += all.bytes_sent;
        traffic->bytes_received += all.bytes_received;
        if (peers != NULL) peers[p] = all;
    }
    return EPW_OK;
}
