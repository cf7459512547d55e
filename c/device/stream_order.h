/* The order of eager calls on streams of the caller's: each comes behind the one before it, whatever streams
 * they are on. A call leaves an event behind its work; the next one, if on another stream, lets that wait for
 * the event. Under capture neither is done: an event of outside cannot be waited for inside, and replays are
 * ordered by the caller.
 *
 * Where CUDA does not record the event, the call stands, for its work runs. Calls on the same stream are in
 * order without the event, and the next one records it; whoever else needs it is refused.
 *
 * For builds with CUDA. Functions are called in a scope of the GPU, see cuda.h, and by one thread at a time
 * for each order. */
#ifndef EPW_DEVICE_STREAM_ORDER_H
#define EPW_DEVICE_STREAM_ORDER_H

#ifdef EPW_CUDA

#include "base/status.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

typedef struct epw_stream_order {
    cudaEvent_t event;            /* behind the work of the last eager call */
    unsigned long long stream_id; /* of that call's stream: unlike its handle, never used again */
    bool enqueued;                /* there was such a call: the two above are valid */
    bool unmarked;                /* but for the event: CUDA could not record it behind that call's work */
} epw_stream_order;

/* A call that enqueues work. */
typedef struct epw_stream_call {
    cudaStream_t stream;
    unsigned long long stream_id; /* see epw_stream_follow */
    bool captured;
    bool invalidated; /* the capture is, by a call that it does not allow */
} epw_stream_call;

/* What errors say where the event is needed and not there: to a call on another stream, and to who waits on
 * the host. `whose`: "the", "the lane's" or "the routing's" last call. */
#define EPW_UNMARKED_FOLLOWED(whose)                                                                         \
    "CUDA could record no event behind " whose " last call: make this one on the same stream"
#define EPW_UNMARKED_AWAITED(whose)                                                                          \
    "CUDA could record no event behind " whose " last call, so nobody can wait for its end: make " whose     \
    " next call on the same stream"

/* Sets `captured`, or `invalidated` with EPW_ERR_STATE. */
epw_status epw_stream_find_capture(epw_stream_call *call, epw_where where);

/* EPW_ERR_INVALID where a captured call has a deadline of its own; `whose` deadline replays take. */
epw_status epw_stream_check_deadline(const epw_stream_call *call, uint64_t deadline_ns, const char *whose,
                                     epw_where where);

/* Puts the stream of an eager call behind the calls before. By the stream's id, which it sets: the stream's
 * handle may be another stream's by now, and that of the per-thread default stream is one for all threads.
 * `unmarked`: see epw_stream_require_marked. */
epw_status epw_stream_follow(epw_stream_call *call, const epw_stream_order *order, const char *unmarked,
                             epw_where where);

/* Records the event behind the call's work, unless it is captured. */
void epw_stream_mark(const epw_stream_call *call, epw_stream_order *order);

/* EPW_ERR_STATE with the text `unmarked` where the event is not behind the last call. Needs no scope. */
epw_status epw_stream_require_marked(const epw_stream_order *order, const char *unmarked, epw_where where);

#endif

#endif
