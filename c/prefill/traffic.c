/* Counts what an operation has moved, when it ends: rows and answers, to and from this rank itself too. */
#include "prefill/gpu/gpu.h"

static bool is_me(const epw_prefill *p, uint32_t peer) {
    return peer == p->config.ep.rank;
}

static void count_rows(epw_prefill *p, const epw_prefill_lane *lane) {
    epw_lane_traffic *traffic = &p->peers.traffic[lane->index];
    const epw_routing *r = lane->routing;
    uint64_t bytes = epw_format_bytes(&lane->format);
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        uint64_t own = r->sent_first[peer + 1] - r->sent_first[peer], come = r->received[peer];
        uint64_t sent = is_me(p, peer) ? own : lane->peers[peer].next;
        epw_count(&traffic->rows_sent, sent);
        epw_count(&traffic->rows_received, come);
        epw_count(&traffic->with[peer].bytes_sent, sent * bytes);
        epw_count(&traffic->with[peer].bytes_received, come * bytes);
    }
}

/* The answers that have been written for the peer, behind the opening. */
static uint64_t answers_to(const epw_prefill_lane *lane, uint32_t peer) {
    uint64_t opening = lane->peers[peer].opening;
    return opening == UINT64_MAX ? 0 : lane->streams[EPW_KIND_COMBINE][peer].ring.written - (opening + 1);
}

static void count_answers(epw_prefill *p, const epw_prefill_lane *lane) {
    epw_lane_traffic *traffic = &p->peers.traffic[lane->index];
    uint64_t bytes = epw_prefill_answer_bytes(p, lane);
    bool ordered = lane->combine.mode == EPW_COMBINE_ORDERED;
    uint64_t own = epw_routing_answers(lane->routing, p->config.ep.rank, ordered);
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        uint64_t sent = is_me(p, peer) ? own : answers_to(lane, peer);
        uint64_t come = is_me(p, peer) ? own : lane->peers[peer].checked;
        epw_count(&traffic->rows_answered, sent);
        epw_count(&traffic->with[peer].bytes_sent, sent * bytes);
        epw_count(&traffic->with[peer].bytes_received, come * bytes);
    }
}

void epw_prefill_count_moved(epw_prefill *p, const epw_prefill_lane *lane) {
    epw_lane_traffic *traffic = &p->peers.traffic[lane->index];
    if (lane->kind == EPW_KIND_DISPATCH) {
        count_rows(p, lane);
    } else {
        count_answers(p, lane);
    }
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++)
        epw_count(&traffic->with[peer].wait_ns, lane->peers[peer].waited_ns);
    epw_count(&traffic->operations, 1);
}

epw_status epw_prefill_traffic(const epw_prefill *p, epw_traffic *traffic, epw_peer_traffic *peers) {
    if (p == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"traffic", -1, -1}, "prefill is NULL");
    epw_where where = epw_prefill_where(p, "traffic");
    epw_status status =
        epw_peers_traffic(&p->peers, where, traffic, peers); /* nothing on a GPU: kernels count */
    return status == EPW_OK && p->gpu != NULL ? epw_prefill_gpu_count(p, traffic, peers) : status;
}
