/* See trial.h. In a window each source has {control | answers | rows}, of which only the rows are used:
 * ranges lie there with a gap between them, so that no two are sent as one entry. */
#include "peer/trial.h"

#include "base/clock.h"
#include "nic/fabric.h"
#include "peer/remote.h"
#include "peer/sleep.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 64, WORD = EPW_WORD_USER };

struct epw_trial {
    epw_trial_options options;
    epw_peers peers;
    epw_watch watch;
    unsigned char *source; /* [bytes], what is copied into windows that are mapped */
};

/* ---- as a user of the floor: it has no operations, and so nothing to lock ---- */

static uint64_t stride_of(uint64_t bytes) {
    return epw_align(bytes, LINE) + LINE;
}

static uint64_t rows_bytes(const epw_trial_options *o) {
    return o->count * stride_of(o->bytes);
}

static uint64_t part_offset(const epw_trial_options *o, uint32_t source) {
    return epw_align(epw_floor_bytes(o->ranks), LINE) + source * (2 * LINE + rows_bytes(o));
}

static epw_stretch footprint(void *user, uint32_t source, uint32_t lane, uint32_t area) {
    const epw_trial_options *o = &((const epw_trial *)user)->options;
    uint64_t at = part_offset(o, source);
    (void)lane; /* it has one */
    if (area == EPW_AREA_ROWS) return (epw_stretch){at + (uint64_t)2 * LINE, rows_bytes(o)};
    return (epw_stretch){at + (area == EPW_AREA_CONTROL ? 0 : LINE), LINE};
}

static void nothing(void *user) {
    (void)user;
}

static epw_status check_idle(void *user, epw_where where) {
    (void)user;
    (void)where;
    return EPW_OK;
}

static epw_status part(void *user, uint32_t peer, epw_where where) {
    (void)user;
    (void)peer;
    (void)where;
    return EPW_OK;
}

static epw_status begin_epoch(void *user, const epw_mask *active, uint64_t epoch_word, epw_where where) {
    (void)user;
    (void)active;
    (void)epoch_word;
    return epw_fail(EPW_ERR_STATE, where, "a trial has no membership");
}

static epw_mask suspects(void *user, epw_mask *silent) {
    epw_mask none = {{0}};
    (void)user;
    if (silent != NULL) *silent = none;
    return none;
}

static void revoke(void *user, const epw_mask *members) {
    (void)user;
    (void)members;
}

static const epw_peers_user user_of_floor = {
    .lock = nothing,
    .unlock = nothing,
    .check_idle = check_idle,
    .part = part,
    .begin_epoch = begin_epoch,
    .footprint = footprint,
    .suspects = suspects,
    .revoke = revoke,
};

/* ---- life ---- */

epw_status epw_trial_open(const epw_trial_options *o, epw_trial **out) {
    epw_where where = {"trial", (int)o->rank, -1};
    bool queues = o->paths & EPW_PATH_QUEUE;
    if (queues != (o->fabric != NULL) || o->bytes == 0 || o->bytes % 8 != 0 || o->count == 0)
        return epw_fail(
            EPW_ERR_INVALID, where,
            "a trial wants a fabric where paths permit queues, and ranges of a multiple of 8 bytes");
    epw_trial *trial = calloc(1, sizeof *trial);
    unsigned char *source = calloc(1, o->bytes);
    if (trial == NULL || source == NULL) {
        free(trial);
        free(source);
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a trial");
    }
    trial->options = *o;
    trial->source = source;
    epw_term terms[] = {{"trial bytes", o->bytes}, {"trial count", o->count}};
    epw_peers_options options = {.window = {.rank = o->rank,
                                            .ranks = o->ranks,
                                            .device = EPW_DEVICE_HOST,
                                            .paths = o->paths,
                                            .queues = queues,
                                            .bytes = part_offset(o, o->ranks),
                                            .terms = terms,
                                            .term_count = sizeof terms / sizeof terms[0]},
                                 .lanes = 1,
                                 .fabric = o->fabric,
                                 .depth = epw_queue_depth(o->count + 1, epw_fabric_queue_depth(o->fabric)),
                                 .deadline_ns = o->deadline_ns,
                                 .user = &user_of_floor,
                                 .user_context = trial,
                                 .what = "trial"};
    epw_status status = epw_peers_create(&trial->peers, &options);
    if (status != EPW_OK) {
        epw_trial_close(trial);
        return status;
    }
    epw_peers_choose_waits(&trial->peers, 1);
    epw_watch_clear(&trial->watch);
    *out = trial;
    return EPW_OK;
}

void epw_trial_close(epw_trial *trial) {
    if (trial == NULL) return;
    epw_peers_destroy(&trial->peers);
    free(trial->source);
    free(trial);
}

epw_status epw_trial_export(epw_trial *trial, uint32_t peer, void *blob, size_t *length) {
    return epw_peers_export(&trial->peers, peer, blob, length);
}

epw_status epw_trial_connect(epw_trial *trial, uint32_t peer, const void *blob, size_t length) {
    return epw_peers_connect(&trial->peers, peer, blob, length, trial->options.deadline_ns);
}

uint32_t epw_trial_path(epw_trial *trial, uint32_t peer) {
    return epw_peers_path(&trial->peers, peer);
}

uint32_t epw_trial_wire(epw_trial *trial, uint32_t peer) {
    return epw_peers_wire(&trial->peers, peer);
}

/* ---- puts ---- */

static bool by_queue(const epw_trial *trial, uint32_t peer) {
    return trial->peers.routes[peer].path == EPW_PATH_QUEUE;
}

static epw_status check(const epw_trial *trial, epw_where where, uint64_t bytes, uint32_t count) {
    const epw_trial_options *o = &trial->options;
    uint32_t peer = (uint32_t)where.peer;
    if (peer >= o->ranks || trial->peers.routes[peer].path == EPW_PATH_NONE || peer == o->rank)
        return epw_fail(EPW_ERR_STATE, where, "not connected: connect it first");
    if (bytes > o->bytes || count > o->count || bytes < 8)
        return epw_fail(EPW_ERR_LIMIT, where, "%u ranges of %llu bytes, of at most %u of %llu", count,
                        (unsigned long long)bytes, o->count, (unsigned long long)o->bytes);
    return EPW_OK;
}

/* Waits until the peer has everything that was put before. */
static epw_status await_flushed(epw_trial *trial, epw_where where) {
    uint64_t began = epw_now_ns();
    while (!epw_remote_is_flushed(&trial->peers, 0, (uint32_t)where.peer, UINT32_MAX)) {
        if (epw_remote_is_broken(&trial->peers, 0, (uint32_t)where.peer))
            return epw_fail(EPW_ERR_PEER, where, "its queue is broken");
        uint64_t now = epw_now_ns();
        if (now - began > trial->options.deadline_ns)
            return epw_fail(EPW_ERR_TIMEOUT, where, "what was put before has not been placed");
        epw_remotes_drive(&trial->peers, now);
        sched_yield();
    }
    return EPW_OK;
}

epw_status epw_trial_put(epw_trial *trial, uint32_t peer, uint64_t bytes, uint32_t count, uint64_t number) {
    epw_where where = epw_peers_where(&trial->peers, "put", peer);
    epw_status status = check(trial, where, bytes, count);
    if (status == EPW_OK && by_queue(trial, peer)) status = await_flushed(trial, where);
    if (status != EPW_OK) return status;
    uint64_t offset = footprint(trial, trial->options.rank, 0, EPW_AREA_ROWS).offset;
    epw_range range = {.offset = offset, .bytes = bytes, .stride = stride_of(bytes), .count = count};
    memcpy(trial->source, &number, sizeof number);
    uint64_t written = by_queue(trial, peer) ? sizeof number : bytes; /* the NIC sends the others */
    for (uint32_t i = 0; i < count; i++)
        memcpy(epw_rows_at(&trial->peers, 0, peer, offset + i * range.stride), trial->source, written);
    epw_signal(&trial->peers, 0, peer, WORD, number, &range, 1);
    return EPW_OK;
}

/* Reader of what the peer has put, after its word, which epw_look_at has acquired. */
static epw_status check_ranges(const epw_trial *trial, epw_where where, uint64_t bytes, uint32_t count,
                               uint64_t number) {
    const unsigned char *own = epw_peers_own(&trial->peers);
    uint64_t offset = footprint((void *)(uintptr_t)trial, (uint32_t)where.peer, 0, EPW_AREA_ROWS).offset;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t seen;
        memcpy(&seen, own + offset + i * stride_of(bytes), sizeof seen);
        if (seen != number)
            return epw_fail(EPW_ERR_MISMATCH, where, "range %u begins with %llu, not with %llu", i,
                            (unsigned long long)seen, (unsigned long long)number);
    }
    return EPW_OK;
}

epw_status epw_trial_await(epw_trial *trial, uint32_t peer, uint64_t bytes, uint32_t count, uint64_t number) {
    epw_where where = epw_peers_where(&trial->peers, "await", peer);
    epw_status status = check(trial, where, bytes, count);
    if (status != EPW_OK) return status;
    uint64_t began = epw_now_ns(), until = began + trial->options.deadline_ns;
    for (;;) { /* ends: with the time */
        epw_look seen;
        epw_look_at(&trial->peers, 0, peer, WORD, &seen);
        if (seen.sight.word == number) return check_ranges(trial, where, bytes, count, number);
        if (seen.sight.broken) return epw_fail(EPW_ERR_PEER, where, "its queue is broken");
        if (epw_now_ns() >= until)
            return epw_fail(EPW_ERR_TIMEOUT, where, "no word of number %llu has arrived",
                            (unsigned long long)number);
        epw_watch_set(&trial->watch, peer, WORD, &seen, trial->peers.spin_ns, began, until);
        epw_watch_sleep(&trial->peers, 0, &trial->watch, UINT64_MAX);
    }
}
