/* Keeps eager calls in order, whatever streams of the caller they are on: the work of each call runs after
 * that of the previous one. A call records an event after its work; the next call, if on another stream,
 * makes that stream wait for the event. Under capture neither happens: the caller orders replays.
 *
 * Other streams can be made to wait for the last call, whichever of the two is under capture. A captured call
 * records an event of its own for that, which is part of the graph and means nothing outside of its capture.
 *
 * If CUDA fails to record the event, the call still succeeds, because its work runs. Calls on the same stream
 * need no event, and the next one records it; calls that do need it are refused.
 *
 * For builds with CUDA. Functions are called in a scope of the GPU, see cuda.h, and by one thread at a time
 * for each order. */
#ifndef EPW_DEVICE_STREAM_ORDER_H
#define EPW_DEVICE_STREAM_ORDER_H

#ifdef EPW_CUDA

#include "base/status.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>

typedef struct epw_stream_order {
    cudaEvent_t event;            /* recorded after the work of the last eager call */
    unsigned long long stream_id; /* of that call's stream: unlike a handle, an id is never reused */
    bool enqueued;                /* there was such a call: the two above are valid */
    bool unmarked;                /* except the event, which CUDA could not record after that call's work */
    /* Of the last captured call. NULL: no stream waits for captured calls. */
    cudaEvent_t inside;
    unsigned long long capture_id; /* in which it was recorded; 0: there was no such call, or CUDA could not
                                      record it */
} epw_stream_order;

/* A call that enqueues work. */
typedef struct epw_stream_call {
    cudaStream_t stream;
    unsigned long long stream_id; /* see epw_stream_follow */
    bool captured;
    bool invalidated; /* its capture was invalidated by a call that captures do not allow */
} epw_stream_call;

/* cudaError_ts. `inside`: streams will wait for captured calls too. Freeing is allowed after an error. */
int epw_stream_order_make(epw_stream_order *order, bool inside);
void epw_stream_order_free(epw_stream_order *order);

/* Keeps eager calls of several orders one behind the other too. */
typedef struct epw_stream_chain {
    pthread_mutex_t lock;
    const epw_stream_order *last; /* that of the last eager call; NULL: there was none */
} epw_stream_chain;

/* Error texts for when the event is needed but missing: for a call on another stream, and for a wait on the
 * host. `whose`: "the", "the lane's" or "the routing's" last call. */
#define EPW_UNMARKED_FOLLOWED(whose)                                                                         \
    "CUDA could record no event behind " whose " last call: make this one on the same stream"
#define EPW_UNMARKED_AWAITED(whose)                                                                          \
    "CUDA could record no event behind " whose " last call, so nobody can wait for its end: make " whose     \
    " next call on the same stream"

/* Sets `captured`, or `invalidated` with EPW_ERR_STATE. EPW_ERR_STATE also as epw_refuse_captures says. */
epw_status epw_stream_find_capture(epw_stream_call *call, epw_where where);

/* A number of the capture that the stream belongs to; 0: none. A cudaError_t, also of one that was
 * invalidated. */
int epw_stream_capture_id(cudaStream_t stream, unsigned long long *id);

/* EPW_ERR_INVALID if a captured call has a deadline of its own; `whose` names the deadline that replays use.
 */
epw_status epw_stream_check_deadline(const epw_stream_call *call, uint64_t deadline_ns, const char *whose,
                                     epw_where where);

/* Makes the stream of an eager call wait for the previous call. Sets and compares stream ids, because a
 * handle may meanwhile belong to another stream, and the handle of the per-thread default stream is the same
 * on all threads. `unmarked`: see epw_stream_require_marked. */
epw_status epw_stream_follow(epw_stream_call *call, const epw_stream_order *order, const char *unmarked,
                             epw_where where);

/* Records the event after the call's work; if the call is captured, the other event. */
void epw_stream_mark(const epw_stream_call *call, epw_stream_order *order);

/* Around the work of an eager call, from after epw_stream_follow to after epw_stream_mark: its stream also
 * waits for the last call of the chain, whatever the order of that one is. No other call of the chain comes
 * between the two. chain NULL: neither does anything. Only after success epw_stream_chain_leave must follow;
 * `order`: that in which the call was marked, NULL if it was not. */
epw_status epw_stream_chain_enter(epw_stream_chain *chain, epw_stream_call *call, const char *unmarked,
                                  epw_where where);
void epw_stream_chain_leave(epw_stream_chain *chain, const epw_stream_order *order);

/* Makes any stream wait for the last call. `captured`: that call was; the stream then joins its capture, or
 * is in it already. If only the stream is under capture, each launch of its graph waits for the calls that
 * are eager and were made before the launch. EPW_ERR_STATE names why it cannot wait. */
epw_status epw_stream_wait_for(epw_stream_call *waiting, const epw_stream_order *order, bool captured,
                               const char *unmarked, epw_where where);

/* EPW_ERR_STATE with the text `unmarked` if the last call has no event. Needs no scope. */
epw_status epw_stream_require_marked(const epw_stream_order *order, const char *unmarked, epw_where where);

#endif

#endif
