/* The GPU engine's own state: engine.c creates it and changes peers and membership, call.c enqueues
 * operations. */
#ifndef EPW_EP_GPU_GPU_H
#define EPW_EP_GPU_GPU_H

#include "ep/buffer.h"
#include "kernels/ep/launch.h"
#include "peer/gpu_engine.h"
#include "peer/records.h"

#include <cuda_runtime_api.h>

/* Pinned host memory that kernels write, or copies of what they have written. */
typedef struct epw_gpu_pinned {
    epw_gpu_report reports[EPW_MAX_LANES];  /* copies of the lanes' */
    epw_gpu_traffic traffic[EPW_MAX_LANES]; /* the same */
    epw_gpu_ring ring;
} epw_gpu_pinned;

typedef struct epw_gpu_lane {
    epw_gpu_peers *peers; /* in device memory, as are the next two */
    epw_gpu_lane_state *state;
    epw_gpu_arrays arrays; /* a kernel that wrote its report to the host's memory would end 1.7 us later */
    bool captured;         /* the lane's last call was captured */
    void *stream;          /* of the handle's last call */
    bool owes_release;     /* a handle was given up while nothing could be enqueued */
} epw_gpu_lane;

struct epw_gpu {
    struct epw_sm_share *share;
    uint32_t blocks;        /* of a dispatch or combine kernel */
    void *memory;           /* device memory that holds `shared` and what the lanes have */
    epw_gpu_shared *shared; /* in device memory */
    epw_gpu_pinned *pinned;
    epw_gpu_lane lanes[EPW_MAX_LANES];

    pthread_mutex_t traffic_lock; /* for what is copied of it */
    bool counts;                  /* kernels count, since somebody has asked for the counts; atomic */
    epw_record_reader errors;     /* of pinned->ring */
};

#define EPW_GPU_UNMARKED EPW_UNMARKED_AWAITED("the lane's")

/* See engine.h. */
epw_status epw_gpu_call_dispatch(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in,
                                 const epw_row_format *format, const epw_dispatch_output *out,
                                 epw_handle *handle, epw_outcome *outcome);
epw_status epw_gpu_call_dispatch_receive(epw_buffer *b, epw_lane *lane, const epw_dispatch_output *out,
                                         epw_outcome *outcome);
epw_status epw_gpu_call_combine(epw_buffer *b, epw_lane *lane, const epw_combine_input *in,
                                const epw_combine_output *out, epw_outcome *outcome);
epw_status epw_gpu_call_combine_receive(epw_buffer *b, epw_lane *lane, const epw_combine_output *out,
                                        epw_outcome *outcome);
epw_status epw_gpu_call_release(epw_buffer *b, epw_lane *lane, void *const *stream);
epw_status epw_gpu_call_report(epw_buffer *b, uint64_t step, bool faulted, void *stream);
epw_status epw_gpu_call_poll(epw_buffer *b, epw_handle handle, epw_outcome *outcome);
epw_status epw_gpu_call_ready(epw_buffer *b, epw_handle handle);
epw_status epw_gpu_call_await(epw_buffer *b, epw_handle handle, uint64_t timeout_ns);
void epw_gpu_call_look(epw_awaited *self, bool sleeps, uint64_t now);
epw_status epw_gpu_call_stream_wait(epw_buffer *b, epw_handle handle, void *stream);
epw_status epw_gpu_call_outcome_read(epw_buffer *b, epw_handle handle, epw_outcome *outcome);
epw_status epw_gpu_call_traffic(const epw_buffer *b, epw_traffic *traffic, epw_peer_traffic *peers);
epw_status epw_gpu_call_take_errors(epw_buffer *b, epw_error_record *records, uint32_t capacity,
                                    uint32_t *count, uint64_t *lost);

#endif
