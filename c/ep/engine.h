/* What carries out a buffer's calls: host threads (host/) or kernels on a GPU (gpu/). The public calls check
 * what is the same for both, find the lane, and call a function of this table. */
#ifndef EPW_EP_ENGINE_H
#define EPW_EP_ENGINE_H

#include "ep/layout.h"
#include "ep/verdict.h"
#include "epwire.h"
#include "peer/await.h"
#include "peer/peers.h"

#include <stdbool.h>

typedef struct epw_lane epw_lane;

typedef struct epw_engine {
    /* ---- life: called while no other call runs ---- */

    /* Creates everything except the window, which exists already. After an error close() is called. */
    epw_status (*open)(epw_buffer *b);

    /* Ends this rank's work within a bound, and tells active peers that it leaves. False: work is still under
     * way that may access the windows, so the windows, and what close() would free, must stay. */
    bool (*leave)(epw_buffer *b);

    /* Undoes open(), including one that failed half-way. */
    void (*close)(epw_buffer *b);

    /* Called in a forked child in place of leave() and close(): frees memory of this process. There are no
     * threads to join, windows are not mapped, locks may be held for ever, and the GPU cannot be used. */
    void (*abandon)(epw_buffer *b);

    /* ---- members and membership: with all lanes locked ---- */

    /* See epw_peers_user. NULL: nothing is ever enqueued. Called with no lane locked. */
    epw_status (*quiesce)(epw_buffer *b, epw_where where);

    epw_status (*part)(epw_buffer *b, uint32_t peer, epw_where where);
    /* `last` [EPW_PAST_EPOCHS]: reports to hand on before the epoch word. */
    epw_status (*begin_epoch)(epw_buffer *b, const epw_mask *active, uint64_t epoch_word,
                              const uint64_t *last, epw_where where);
    epw_mask (*suspects)(const epw_buffer *b, epw_mask *silent);

    /* See epw_peers_user. Called with no lane locked. */
    void (*revoke)(epw_buffer *b, const epw_mask *members);

    /* Called when a call has just unlocked a lane, or all of them. NULL: this engine postpones nothing while
     * lanes are locked. */
    void (*unlocked)(epw_buffer *b);

    /* ---- verdicts ---- */

    /* Posts the report of a step, or enqueues that. `faulted`: something was incomplete, whatever the lanes
     * know. Called with all lanes locked. */
    epw_status (*report)(epw_buffer *b, uint64_t step, bool faulted, void *stream);
    /* The last report that this rank has posted. Called with all lanes locked. */
    epw_status (*last_report)(epw_buffer *b, uint64_t *report, epw_where where);
    /* The peer's reports that have arrived here. */
    epw_reports (*reports)(const epw_buffer *b, uint32_t peer);
    /* Copies them to where `reports` finds them. EPW_PENDING if that takes long; *fresh says whether the copy
     * began in this call. NULL: no copy is needed. One call at a time. */
    epw_status (*fetch_reports)(epw_buffer *b, bool *fresh, epw_where where);

    /* ---- operations: called with the lane locked, which they unlock; arguments have passed the checks that
     * do not depend on the engine, and the lane is in the right stage ---- */

    epw_status (*dispatch)(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in,
                           const epw_row_format *format, const epw_dispatch_output *out, epw_handle *handle,
                           epw_outcome *outcome);
    epw_status (*dispatch_receive)(epw_buffer *b, epw_lane *lane, const epw_dispatch_output *out,
                                   epw_outcome *outcome);
    epw_status (*combine)(epw_buffer *b, epw_lane *lane, const epw_combine_input *in,
                          const epw_combine_output *out, epw_outcome *outcome);
    epw_status (*combine_receive)(epw_buffer *b, epw_lane *lane, const epw_combine_output *out,
                                  epw_outcome *outcome);
    /* stream: NULL means the one of the handle's last call. */
    epw_status (*release)(epw_buffer *b, epw_lane *lane, void *const *stream);

    /* ---- as the public calls of these names; the buffer is not NULL ---- */

    epw_status (*poll)(epw_buffer *b, epw_handle handle, epw_outcome *outcome);
    epw_status (*ready)(epw_buffer *b, epw_handle handle);
    epw_status (*await)(epw_buffer *b, epw_handle handle, uint64_t timeout_ns);
    /* epw_buffer_tend. NULL: this engine has no `ready`. */
    epw_status (*tend)(epw_buffer *b, epw_handle handle);
    /* epw_buffer_look. */
    void (*look)(epw_awaited *self, bool sleeps, uint64_t now);
    epw_status (*stream_wait)(epw_buffer *b, epw_handle handle, void *stream);
    epw_status (*outcome_read)(epw_buffer *b, epw_handle handle, epw_outcome *outcome);
    epw_status (*traffic)(const epw_buffer *b, epw_traffic *traffic, epw_peer_traffic *peers);
    epw_status (*take_errors)(epw_buffer *b, epw_error_record *records, uint32_t capacity, uint32_t *count,
                              uint64_t *lost);
} epw_engine;

extern const epw_engine epw_engine_host;

/* Threads that move data for a rank. */
uint32_t epw_host_threads(const epw_config *config);

/* Memory that a buffer takes outside its window, for the plan. */
uint64_t epw_host_private_bytes(const epw_config *config, const epw_layout *layout);
#ifdef EPW_CUDA
extern const epw_engine epw_engine_gpu;
uint64_t epw_gpu_private_bytes(const epw_config *config);
#endif

#endif
