/* The life of the host engine, and its callbacks for peers and membership. */
#include "ep/host/host.h"

#include "base/clock.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

#define MAX_THREADS_CHOSEN 8u

/* ---- memory ---- */

uint32_t epw_host_threads(const epw_config *config) {
    if (config->threads > 0) return config->threads;
    uint32_t share = epw_thread_cores() / config->ranks;
    return share < 1 ? 1 : share > MAX_THREADS_CHOSEN ? MAX_THREADS_CHOSEN : share;
}

/* Takes `bytes` of the arena: returns an address in it, or only adds up if there is no arena yet. */
static void *take(unsigned char *arena, uint64_t *used, uint64_t bytes) {
    void *at = arena ? arena + *used : NULL;
    *used += epw_align(bytes, 64);
    return at;
}

/* Points the lane's arrays into `arena`, and returns the bytes they take; with arena NULL it only does the
 * latter. */
static uint64_t carve(const epw_config *c, epw_lane *lane, epw_host_lane *host, void *arena) {
    uint64_t used = 0;
    uint64_t entries = (uint64_t)c->max_tokens * c->topk, local = c->experts / c->ranks;
    uint64_t rows = (uint64_t)c->ranks * c->max_tokens;
    lane->machine.peers = take(arena, &used, c->ranks * sizeof(epw_lane_peer));
    lane->received = take(arena, &used, c->ranks * sizeof(uint32_t));
    host->ids = take(arena, &used, entries * sizeof(int32_t));
    host->weights = take(arena, &used, entries * sizeof(float));
    host->sent_row = take(arena, &used, entries * sizeof(uint32_t));
    host->sent_index = take(arena, &used, entries * sizeof(uint32_t));
    host->sent_counts = take(arena, &used, c->experts * sizeof(uint32_t));
    host->sent_tokens = take(arena, &used, rows * sizeof(uint32_t));
    host->first_row = take(arena, &used, local * sizeof(uint32_t));
    host->expert_fill = take(arena, &used, local * sizeof(uint32_t));
    host->entries = take(arena, &used, c->ranks * sizeof(uint32_t));
    host->row_token = take(arena, &used, rows * sizeof(uint32_t));
    host->places = take(arena, &used, rows * c->topk * sizeof(epw_place));
    return used;
}

/* The data area of a slot holds any payload with its scales. */
static uint64_t scratch_bytes(const epw_layout *layout) {
    return epw_align(layout->slot_bytes - layout->header_bytes, 64);
}

uint64_t epw_host_private_bytes(const epw_config *config, const epw_layout *layout) {
    epw_lane lane = {0};
    epw_host_lane host;
    return carve(config, &lane, &host, NULL) * config->lanes +
           epw_host_threads(config) * scratch_bytes(layout);
}

/* ---- life ---- */

static bool make_lane(epw_buffer *b, uint32_t index) {
    epw_lane *lane = &b->lanes[index];
    epw_host_lane *host = lane->host = &b->host->lanes[index];
    host->arena = calloc(1, carve(&b->config, lane, host, NULL));
    if (host->arena == NULL) return false;
    carve(&b->config, lane, host, host->arena);
    lane->machine.rank = b->config.rank;
    lane->machine.ranks = b->config.ranks;
    lane->machine.lanes = b->config.lanes;
    lane->machine.lane = index;
    lane->machine.ordered = b->config.ordered != 0;
    lane->machine.group_ns = b->config.deadline_ns;
    epw_lane_init(&lane->machine);
    epw_watch_clear(&host->watch);
    return true;
}

static epw_status host_open(epw_buffer *b) {
    epw_where where = epw_buffer_where(b, "create");
    uint32_t threads = epw_host_threads(&b->config);
    epw_host *host = b->host = calloc(1, sizeof *host);
    if (host == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the host engine");
    pthread_mutex_init(&host->background_lock, NULL);
    pthread_cond_init(&host->background_wake, NULL);
    epw_peers_choose_waits(&b->peers, threads);
    host->scratch_bytes = scratch_bytes(&b->layout);
    host->scratch = aligned_alloc(64, threads * host->scratch_bytes);
    bool ok = host->scratch != NULL;
    for (uint32_t i = 0; ok && i < b->config.lanes; i++) ok = make_lane(b, i);
    if (!ok) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory beside the window");
    epw_status status = epw_numerics_choose(where, &host->numerics);
    if (status == EPW_OK) status = epw_pool_create(b->config.rank, threads, &host->pool);
    return status == EPW_OK ? epw_background_start(b) : status;
}

/* Tells all peers not to wait for this rank any longer. */
static bool host_leave(epw_buffer *b) {
    if (b->host == NULL) return true;
    epw_background_stop(b);
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        epw_lane *lane = &b->lanes[i];
        if (lane->host == NULL || lane->host->arena == NULL) continue;
        for (uint32_t peer = 0; peer < b->config.ranks; peer++)
            if (peer != b->config.rank) epw_lane_part_with(&lane->machine, peer);
        epw_host_post_all(b, lane);
    }
    return true;
}

static void free_host(epw_buffer *b) {
    epw_host *host = b->host;
    for (uint32_t i = 0; i < EPW_MAX_LANES; i++) free(host->lanes[i].arena);
    free(host->scratch);
    free(host);
    b->host = NULL;
}

static void host_close(epw_buffer *b) {
    if (b->host == NULL) return;
    epw_pool_destroy(b->host->pool);
    pthread_cond_destroy(&b->host->background_wake);
    pthread_mutex_destroy(&b->host->background_lock);
    free_host(b);
}

static void host_abandon(epw_buffer *b) {
    if (b->host == NULL) return;
    epw_pool_abandon(b->host->pool);
    free_host(b);
}

static epw_status host_traffic(const epw_buffer *b, epw_traffic *traffic, epw_peer_traffic *peers) {
    return epw_peers_traffic(&b->peers, epw_buffer_where(b, "traffic"), traffic, peers);
}

/* ---- peers and membership ---- */

/* The peer becomes a suspect: no operation is in flight, and what a released one owes the peer is void. It is
 * told on every lane, after what that lane has sent. */
static epw_status host_part(epw_buffer *b, uint32_t peer, epw_where where) {
    (void)where;
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        epw_lane_part_with(&b->lanes[i].machine, peer);
        epw_host_post_all(b, &b->lanes[i]);
    }
    return EPW_OK;
}

/* The ranks to which words that belong to no lane are posted: members that have not been given up, and this
 * rank itself. */
static bool is_told(const epw_buffer *b, const epw_mask *members, uint32_t peer) {
    return epw_mask_has(members, peer) && epw_incarnation_of(&b->peers, peer) != 0 &&
           !epw_peers_suspected(&b->peers, peer);
}

static epw_status host_begin_epoch(epw_buffer *b, const epw_mask *active, uint64_t epoch_word,
                                   const uint64_t *last, epw_where where) {
    uint64_t *incarnations = calloc(b->config.ranks, sizeof *incarnations);
    if (incarnations == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a membership");
    for (uint32_t peer = 0; peer < b->config.ranks; peer++)
        incarnations[peer] = epw_incarnation_of(&b->peers, peer);
    epw_peers_clear_suspects(&b->peers);
    uint64_t suspicions = atomic_load_explicit(&b->peers.suspicions, memory_order_relaxed);
    /* Must come before this rank's epoch word, see verdict.h. */
    for (uint32_t peer = 0; peer < b->config.ranks; peer++) {
        if (!is_told(b, active, peer)) continue;
        epw_signal(&b->peers, 0, peer, EPW_WORD_LAST, last[0], NULL, 0);
        epw_signal(&b->peers, 0, peer, EPW_WORD_LAST_BUT_ONE, last[1], NULL, 0);
    }
    /* Writer: this rank, done with its reads and writes of the old epoch. Reader: each member, which waits
     * for permission to send its first operation; and each rank that is no longer a member. */
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        epw_lane *lane = &b->lanes[i];
        atomic_store_explicit(&lane->host->suspicions, suspicions, memory_order_relaxed);
        epw_lane_begin_epoch(&lane->machine, epoch_word, incarnations, active, epw_now_ns());
        epw_host_post_all(b, lane);
    }
    free(incarnations);
    return EPW_OK;
}

static epw_mask host_suspects(const epw_buffer *b, epw_mask *silent) {
    return epw_peers_suspects(&b->peers, silent);
}

static void host_revoke(epw_buffer *b, const epw_mask *members) {
    EPW_MASK_FOR(peer, members, b->config.ranks) epw_peers_suspect_revoked(&b->peers, peer);
    epw_host_unlocked(b); /* free lanes tell them; the others do so at their next step */
    for (uint32_t i = 0; i < b->config.lanes; i++) epw_watch_wake(&b->peers, i, &b->lanes[i].host->watch);
}

/* ---- verdicts ---- */

static epw_status host_last_report(epw_buffer *b, uint64_t *report, epw_where where) {
    (void)where;
    *report = epw_word_from(&b->peers, 0, b->config.rank, EPW_WORD_REPORT);
    return EPW_OK;
}

static epw_status host_report(epw_buffer *b, uint64_t step, bool faulted, void *stream) {
    (void)stream;
    uint64_t last = epw_word_from(&b->peers, 0, b->config.rank, EPW_WORD_REPORT);
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        faulted |= b->lanes[i].host->faulted;
        b->lanes[i].host->faulted = false;
    }
    epw_mask suspects = epw_peers_suspects(&b->peers, NULL);
    uint64_t report = epw_report_next(last, b->peers.epoch, step, faulted, !epw_mask_empty(&suspects));
    for (uint32_t peer = 0; peer < b->config.ranks; peer++) {
        if (is_told(b, &b->peers.active, peer))
            epw_signal(&b->peers, 0, peer, EPW_WORD_REPORT, report, NULL, 0);
    }
    return EPW_OK;
}

static epw_reports host_reports(const epw_buffer *b, uint32_t peer) {
    epw_reports of;
    of.report = epw_word_from(&b->peers, 0, peer, EPW_WORD_REPORT);
    of.epoch_word = epw_word_from(&b->peers, 0, peer, EPW_WORD_EPOCH);
    of.last_but_one = epw_word_from(&b->peers, 0, peer, EPW_WORD_LAST_BUT_ONE);
    of.last = epw_word_from(&b->peers, 0, peer, EPW_WORD_LAST);
    return of;
}

/* ---- calls that only a GPU has ---- */

static epw_status host_stream_wait(epw_buffer *b, epw_handle handle, void *stream) {
    (void)handle;
    (void)stream;
    return epw_fail(EPW_ERR_STATE, epw_buffer_where(b, "stream_wait"),
                    "on the host device calls are on no stream: see epw_await and epw_poll");
}

static epw_status host_outcome_read(epw_buffer *b, epw_handle handle, epw_outcome *outcome) {
    (void)handle;
    (void)outcome;
    return epw_fail(EPW_ERR_STATE, epw_buffer_where(b, "outcome_read"),
                    "on the host device the calls themselves fill the outcome");
}

static epw_status host_take_errors(epw_buffer *b, epw_error_record *records, uint32_t capacity,
                                   uint32_t *count, uint64_t *lost) {
    (void)b;
    (void)records;
    (void)capacity;
    *count = 0;
    if (lost != NULL) *lost = 0;
    return EPW_OK;
}

const epw_engine epw_engine_host = {
    .open = host_open,
    .leave = host_leave,
    .close = host_close,
    .abandon = host_abandon,
    .part = host_part,
    .begin_epoch = host_begin_epoch,
    .suspects = host_suspects,
    .revoke = host_revoke,
    .report = host_report,
    .last_report = host_last_report,
    .reports = host_reports,
    .unlocked = epw_host_unlocked,
    .dispatch = epw_host_dispatch,
    .dispatch_receive = epw_host_dispatch_receive,
    .combine = epw_host_combine,
    .combine_receive = epw_host_combine_receive,
    .release = epw_host_release,
    .poll = epw_host_poll,
    .ready = epw_host_ready,
    .await = epw_host_await,
    .tend = epw_host_tend,
    .look = epw_host_look,
    .stream_wait = host_stream_wait,
    .outcome_read = host_outcome_read,
    .traffic = host_traffic,
    .take_errors = host_take_errors,
};
