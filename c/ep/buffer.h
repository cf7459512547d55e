/* A buffer and its lanes, as both engines see them. */
#ifndef EPW_EP_BUFFER_H
#define EPW_EP_BUFFER_H

#include "base/status.h"
#include "ep/engine.h"
#include "ep/lane.h"
#include "ep/layout.h"
#include "ep/plan.h"
#include "peer/peers.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct epw_gpu epw_gpu;
typedef struct epw_host epw_host;
typedef struct epw_host_lane epw_host_lane;

struct epw_lane {
    pthread_mutex_t lock; /* held for one step or call at a time, never while sleeping */
    epw_machine
        machine; /* on a GPU only `stage` is used, and `op`, which counts calls but not replays of graphs */
    uint64_t generation; /* of the handle that holds the lane */
    epw_host_lane *host; /* of epw_engine_host */

    /* The operation as called. */
    epw_dispatch_input input;
    epw_combine_input combine_input;
    epw_row_format format;
    uint32_t layout;
    uint32_t tokens, topk;
    uint32_t *received; /* [ranks] rows from each; on a GPU in its memory */
};

struct epw_buffer {
    const epw_engine *engine;
    epw_config config;
    epw_layout layout;
    epw_peers peers;
    epw_host *host;             /* of epw_engine_host */
    epw_gpu *gpu;               /* of epw_engine_gpu */
    _Atomic uint32_t next_lane; /* the lane of the next dispatch that leaves the choice to the library */
    epw_lane lanes[EPW_MAX_LANES];

    atomic_bool faulted; /* the current step counts as faulted because of what the program did outside the
                            buffer */

    pthread_mutex_t verdicts_lock; /* the innermost */
    epw_verdicts verdicts;
};

static inline epw_where epw_buffer_where(const epw_buffer *b, const char *op) {
    return (epw_where){op, (int)b->config.rank, -1};
}

static inline uint32_t epw_lane_index(const epw_buffer *b, const epw_lane *lane) {
    return (uint32_t)(lane - b->lanes);
}

/* Not part of the interface: epw_buffer_destroy, for an owner of what kernels use. False if the process keeps
 * the buffer, because the GPU may still run its kernels. */
bool epw_buffer_try_destroy(epw_buffer *b);

/* Not part of the interface: for the doctor, see peer/copies.h. */
epw_status epw_buffer_time_copies(epw_buffer *b, uint32_t peer, uint64_t timeout_ns, uint64_t *bytes,
                                  uint64_t *ns);

/* ---- handles: handle.c ---- */

/* Gives the lane to a new handle, with the call as it was made. */
void epw_lane_take(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in, const epw_row_format *format,
                   epw_handle *handle);

/* Finds and locks the lane of a live handle in a stage (or EPW_STAGE_ANY). */
epw_status epw_lane_find(epw_buffer *b, const char *op, epw_handle handle, epw_stage stage, epw_lane **out);

/* The same in any stage if no other thread has the lane locked, else EPW_PENDING. Sets no last error. */
epw_status epw_lane_try(epw_buffer *b, epw_handle handle, epw_lane **out);

/* Unlocks a lane that epw_lane_find or a call has locked. The only way to unlock a lane. */
void epw_lane_unlock(epw_buffer *b, epw_lane *lane);

/* The look of epw_awaited at a handle of a buffer. */
void epw_buffer_look(epw_awaited *self, bool sleeps, uint64_t now);

/* epw_ready for a thread that may not wait for a lock: EPW_PENDING also if another thread has the lane
 * locked. Sets no last error. */
epw_status epw_buffer_tend(epw_buffer *b, epw_handle handle);

/* Begins the epoch, and hands on what is needed to judge steps of earlier memberships: checkpoint.c. */
epw_status epw_checkpoints_begin_epoch(epw_buffer *b, const epw_mask *active, uint64_t epoch_word,
                                       epw_where where);

/* What the lane is doing, in words. */
const char *epw_stage_text(epw_stage stage);

/* EPW_ERR_INVALID if it is NULL. */
epw_status epw_buffer_check(const epw_buffer *b, const char *op);

epw_status epw_outcome_check(const epw_buffer *b, const char *op, const epw_outcome *outcome);

/* A call's own deadline must be the buffer's or longer. */
epw_status epw_deadline_check(const epw_buffer *b, const char *op, uint64_t deadline_ns);

#endif
