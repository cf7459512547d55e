/* The host engine: what a buffer has beside its window when host threads move the bytes, and its part of a
 * membership. Operations are in dispatch.c, combine.c and release.c, waiting is in wait.c. */
#include "ep/internal.h"

#include "base/status.h"

#include <sched.h>
#include <stdlib.h>

#define MAX_THREADS_CHOSEN 8u
/* Waiters spin this long before they sleep where every thread of every rank can have a core. */
#define SPIN_NS UINT64_C(50000)

/* ---- life ---- */

static uint32_t cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return (uint32_t)CPU_COUNT(&set);
}

static uint32_t choose_threads(const epw_config *config) {
    if (config->threads > 0) return config->threads;
    uint32_t share = cores() / config->ranks;
    return share < 1 ? 1 : share > MAX_THREADS_CHOSEN ? MAX_THREADS_CHOSEN : share;
}

static epw_status host_open(epw_buffer *b) {
    uint32_t threads = choose_threads(&b->config);
    b->spin_ns = (uint64_t)threads * b->config.ranks <= cores() ? SPIN_NS : 0;
    /* Its slot's data area holds any payload with its scales. */
    b->scratch_bytes = epw_align(b->layout.slot_bytes - b->layout.header_bytes, 64);
    b->scratch = aligned_alloc(64, threads * b->scratch_bytes);
    bool ok = b->scratch != NULL;
    for (uint32_t i = 0; ok && i < b->config.lanes; i++) {
        epw_lane *lane = &b->lanes[i];
        lane->arena = calloc(1, epw_lane_carve(&b->config, lane, NULL));
        epw_lane_carve(&b->config, lane, lane->arena);
        ok = lane->arena != NULL;
    }
    if (!ok) return epw_fail(EPW_ERR_NO_MEMORY, epw_at(b, "create"), "no memory beside the window");
    epw_status status = epw_pool_create(b->config.rank, threads, &b->pool);
    return status == EPW_OK ? epw_janitor_start(b) : status;
}

static bool host_leave(epw_buffer *b) {
    epw_janitor_stop(b);
    /* Nobody need wait for this rank any longer. */
    EPW_MASK_FOR(peer, &b->active, b->config.ranks) {
        if (peer != b->config.rank) epw_suspect(b, peer);
    }
    return true;
}

static void host_close(epw_buffer *b) {
    epw_pool_destroy(b->pool);
    for (uint32_t i = 0; i < EPW_MAX_LANES; i++) free(b->lanes[i].arena);
    free(b->scratch);
}

/* ---- peers and membership ---- */

/* Senders look into the peer table. What a released operation still owes a peer whose window goes is void. */
static epw_status host_reach(epw_buffer *b, uint32_t peer, unsigned char *window) {
    if (window != NULL) return EPW_OK;
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        epw_mask_drop(&b->lanes[i].debt.unsent, peer);
        epw_mask_drop(&b->lanes[i].debt.unanswered, peer);
    }
    return EPW_OK;
}

static epw_status host_set_active(epw_buffer *b, const epw_mask *active, uint32_t epoch) {
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        epw_lane *lane = &b->lanes[i];
        if (lane->waiting)
            epw_wait_end(b, lane); /* debt of the old epoch is void: its words match nothing now */
        lane->paying = false;
        lane->debt.more = 0;
    }
    for (int i = 0; i < EPW_MASK_WORDS; i++) atomic_store_explicit(&b->suspects[i], 0, memory_order_relaxed);
    /* Writer: this rank, done with its reads and writes of the old epoch. Reader: each member's wait for
     * permission to send its first operation. */
    EPW_MASK_FOR(peer, active, b->config.ranks) {
        for (uint32_t lane = 0; lane < b->config.lanes; lane++)
            epw_post_notice(b, peer, &epw_line_at(b, peer)->lanes[lane].epoch, epw_word(epoch, 0, 0));
    }
    return EPW_OK;
}

static epw_mask host_suspects(const epw_buffer *b) {
    epw_mask mask;
    for (uint32_t i = 0; i < EPW_MASK_WORDS; i++) mask.bits[i] = epw_suspects_word(b, i);
    return mask;
}

/* ---- what only a GPU has ---- */

static epw_status host_stream_wait(epw_buffer *b, epw_handle handle, void *stream) {
    (void)handle;
    (void)stream;
    return epw_fail(EPW_ERR_STATE, epw_at(b, "stream_wait"),
                    "on the host device calls are on no stream: see epw_await and epw_poll");
}

static epw_status host_outcome_read(epw_buffer *b, epw_handle handle, epw_outcome *outcome) {
    (void)handle;
    (void)outcome;
    return epw_fail(EPW_ERR_STATE, epw_at(b, "outcome_read"),
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
    .reach = host_reach,
    .set_active = host_set_active,
    .suspects = host_suspects,
    .dispatch = epw_host_dispatch,
    .dispatch_receive = epw_host_dispatch_receive,
    .combine = epw_host_combine,
    .combine_receive = epw_host_combine_receive,
    .release = epw_host_release,
    .poll = epw_host_poll,
    .ready = epw_host_ready,
    .await = epw_host_await,
    .stream_wait = host_stream_wait,
    .outcome_read = host_outcome_read,
    .take_errors = host_take_errors,
};
