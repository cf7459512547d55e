/* Prefill where kernels move the rows (kernels/prefill/). engine.c makes what a buffer and a routing have
 * beside the window, and changes peers and membership; call.c enqueues operations, and says what has become
 * of them; count.c counts.
 *
 * The window, its messages and the use of its slots are those of the host engine, but each message has flags
 * of its own in place of counts, except over queues (prefill/layout.h). Calls enqueue, and never wait. What
 * comes is known on the device alone: of the routing's numbers the host has those that its calls say. */
#ifndef EPW_PREFILL_GPU_GPU_H
#define EPW_PREFILL_GPU_GPU_H

#include "prefill/parts.h"

/* Refuses a configuration that a GPU cannot carry out; EPW_ERR_NO_PATH in a build without CUDA. */
epw_status epw_prefill_gpu_check(epw_where where, const epw_prefill_config *config);

/* What differs in the sizes. */
void epw_prefill_gpu_plan(const epw_prefill_config *config, const epw_prefill_layout *layout,
                          epw_prefill_sizes *sizes);

typedef struct epw_prefill_gpu_dispatch_call {
    const epw_dispatch_input *in;
    const epw_row_format *format;
    const epw_prefill_output *out; /* NULL: the sending half, or the counts */
    uint32_t lane;
    bool again, counts;
} epw_prefill_gpu_dispatch_call;

/* See epwire.h; the arguments have been checked but for what is the GPU's. */
epw_status epw_prefill_gpu_dispatch(epw_prefill *p, epw_routing *r, const epw_prefill_gpu_dispatch_call *call,
                                    const epw_outcome *outcome);
epw_status epw_prefill_gpu_receive(epw_prefill *p, epw_routing *r, const epw_prefill_output *out,
                                   const epw_outcome *outcome);
epw_status epw_prefill_gpu_received(epw_prefill *p, epw_routing *r, uint32_t layout, uint32_t alignment,
                                    uint64_t *rows, uint32_t *counts, uint32_t *source_counts);
epw_status epw_prefill_gpu_combine(epw_prefill *p, epw_routing *r, const epw_prefill_combine_input *in,
                                   uint32_t hash, const epw_prefill_combine_output *out,
                                   const epw_outcome *outcome);
epw_status epw_prefill_gpu_collect(epw_prefill *p, epw_routing *r, const epw_prefill_combine_output *out,
                                   const epw_outcome *outcome);
epw_status epw_prefill_gpu_poll(epw_prefill *p, epw_routing *r, epw_outcome *outcome);
epw_status epw_prefill_gpu_await(epw_prefill *p, uint32_t lane, uint64_t timeout_ns);
void epw_prefill_gpu_look(epw_awaited *self, uint64_t now); /* of a lane, see peer/await.h */
epw_status epw_prefill_gpu_stream_wait(epw_prefill *p, const epw_routing *r, void *stream);
epw_status epw_prefill_gpu_cancel(epw_prefill *p, epw_routing *r);

/* Where a count goes; each may be NULL. See epw_prefill_enqueue_count. */
typedef struct epw_prefill_counts {
    uint32_t *rank_tokens, *expert_tokens;
    uint8_t *in_rank;
    uint32_t *bad_ids;
} epw_prefill_counts;

/* See epwire.h; the ids' arguments have been checked but for what is the GPU's. */
epw_status epw_prefill_gpu_enqueue_count(const epw_prefill *p, const epw_dispatch_input *in,
                                         const epw_prefill_counts *out, epw_where where);

/* Whether the half that is due is of a dispatch that uses its routing again. */
bool epw_prefill_gpu_uses_again(const epw_routing *r);

epw_status epw_prefill_gpu_make_routing(epw_prefill *p, epw_routing *r, epw_where where);
void epw_prefill_gpu_free_routing(epw_prefill *p, epw_routing *r);

/* Waits for what has been enqueued, and says farewell. False: the GPU may still write into windows. */
bool epw_prefill_gpu_leave(epw_prefill *p);
void epw_prefill_gpu_close(epw_prefill *p);

/* What is CUDA's is left to CUDA, which does not work in a process that has forked. */
void epw_prefill_gpu_abandon(epw_prefill *p);

/* See epw_prefill_traffic. */
epw_status epw_prefill_gpu_count(const epw_prefill *p, epw_traffic *traffic, epw_peer_traffic *peers);

/* Whether an operation was incomplete since the last such call. */
bool epw_prefill_gpu_take_fault(epw_prefill *p);

/* See epw_prefill_take_errors; a buffer on the host has no records. */
void epw_prefill_gpu_take_errors(epw_prefill *p, epw_error_record *records, uint32_t capacity,
                                 uint32_t *count, uint64_t *lost);

#ifdef EPW_CUDA

#include "kernels/prefill/state.h"
#include "peer/gpu_engine.h"
#include "peer/records.h"

#include <cuda_runtime_api.h>

/* Pinned host memory that kernels write, and a copy of what they have counted. */
typedef struct epw_prefill_pinned {
    epw_prefill_gpu_traffic traffic[EPW_MAX_LANES];
    epw_gpu_ring ring;
    uint32_t faulted;
} epw_prefill_pinned;

typedef struct epw_prefill_gpu_place {
    epw_prefill_gpu_lane args;
    epw_routing *owed; /* of which a half is still to come; NULL: none */
    uint32_t kind;     /* of that */
    bool
        stranded; /* the routing of such a half is gone, and it could not be given up; until the next epoch */
} epw_prefill_gpu_place;

struct epw_prefill_gpu {
    struct epw_sm_share *share;
    uint32_t blocks; /* of a kernel, at most: see prefill/lane_sms.h */
    void *memory;    /* device memory that holds `shared` and what the lanes have */
    epw_gpu_shared *shared;
    epw_prefill_pinned *pinned;
    epw_prefill_gpu_place lanes[EPW_MAX_LANES];
    void *stream;                             /* of kernels that give halves up */
    uint64_t tickets;                         /* given to calls so far */
    struct epw_prefill_gpu_memory *abandoned; /* of routings that are gone, and that kernels may still use */
    pthread_mutex_t lock;                     /* of the last two */
    pthread_mutex_t traffic_lock;             /* of pinned->traffic */
    epw_record_reader errors;                 /* of pinned->ring */
    bool counts; /* kernels count, since somebody has asked for the counts; atomic */
};

/* A routing. */
struct epw_prefill_gpu_memory {
    epw_prefill_gpu_routing at;
    void *memory, *pinned;
    epw_prefill_gpu_report *report, *report_at; /* pinned, and as the GPU addresses it */
    uint32_t *told;                             /* pinned */
    epw_stream_order order;                     /* of its eager calls, whatever their lanes */
    uint64_t ticket;                            /* of the last of these; 0: none yet */
    uint32_t lane;                              /* of that */
    unsigned long long capture;                 /* that of its last call; 0: this was eager */
    bool in_graph;                              /* some call was captured: a graph has these addresses */
    bool counted;                               /* a call has told the counts */
    /* Of the half that is due. */
    uint32_t parts, hash;
    bool again;
    epw_dispatch_input in;
    epw_row_format format;
    epw_prefill_combine_input combine;
    struct epw_prefill_gpu_memory *next; /* abandoned */
};

extern const epw_peers_user epw_prefill_gpu_user; /* of an epw_prefill */

/* After epw_peers_create. epw_prefill_gpu_close also after an error. */
epw_status epw_prefill_gpu_open(epw_prefill *p, epw_where where);

/* Frees routings that are gone and that nothing uses; `all`: no kernel runs any more, and none will. */
void epw_prefill_gpu_sweep(epw_prefill *p, bool all);

#endif

#endif
