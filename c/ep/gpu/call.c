/* Operations on a GPU: each is checked, its kernel is enqueued on the caller's stream, and the lane's stage
 * is noted. Nothing here waits for the GPU or allocates, and the host never reads the routing. The lane's
 * stage on the host follows the calls; kernels keep their own state (kernels/ep/lane.h), which replays of
 * graphs change too.
 *
 * The eager calls of a lane run one after the other, see device/stream_order.h; epw_stream_wait makes any
 * stream wait for the lane's last one. */
#ifdef EPW_CUDA
#include "ep/gpu/check.h"
#include "ep/gpu/gpu.h"
#include "ep/gpu/sms.h"

#include "peer/tell.h"

#include "base/clock.h"
#include "device/cuda.h"

/* ---- enqueuing ---- */

typedef struct enqueuing {
    epw_buffer *b;
    epw_gpu_lane *lane;
    epw_stream_order *order; /* of the lane */
    epw_stream_chain *chain; /* NULL, or what the call has entered */
    epw_stream_call on;
    epw_where where;
} enqueuing;

/* Makes the stream wait for the lane's earlier work. */
static epw_status follow_lane(enqueuing *e) {
    return epw_stream_follow(&e->on, e->order, EPW_GPU_UNMARKED, e->where);
}

/* The same, and in a buffer with serial lanes for the other lane's. */
static epw_status follow_earlier(enqueuing *e) {
    if (e->on.captured) return EPW_OK;
    epw_status status = follow_lane(e);
    if (status != EPW_OK) return status;
    e->chain = epw_lane_chain(&e->b->peers);
    return epw_stream_chain_enter(e->chain, &e->on, EPW_GPU_UNMARKED, e->where);
}

/* Called before the launch. deadline_ns: the call's own, or 0. After success enqueue_end must follow. */
static epw_status enqueue_begin(enqueuing *e, uint64_t deadline_ns) {
    epw_status status = epw_cuda_enter(e->b->config.device, e->where);
    if (status != EPW_OK) return status;
    status = epw_stream_find_capture(&e->on, e->where);
    if (status == EPW_OK) status = epw_stream_check_deadline(&e->on, deadline_ns, "buffer's", e->where);
    if (status == EPW_OK) status = follow_earlier(e);
    if (status != EPW_OK) epw_cuda_leave();
    return status;
}

/* Called after the launch, with the launch's result. */
static epw_status enqueue_end(enqueuing *e, int error, const char *kernel) {
    epw_status status = EPW_OK;
    if (error != cudaSuccess) {
        status = epw_fail_cuda(error, e->where, kernel);
    } else {
        epw_stream_mark(&e->on, e->order);
    }
    epw_stream_chain_leave(e->chain, status == EPW_OK ? e->order : NULL);
    epw_cuda_leave();
    if (status != EPW_OK) return status;
    e->lane->captured = e->on.captured;
    e->lane->stream = e->on.stream;
    return EPW_OK;
}

static enqueuing enqueuing_of(epw_buffer *b, const epw_lane *lane, const char *op, void *stream) {
    uint32_t index = epw_lane_index(b, lane);
    return (enqueuing){.b = b,
                       .lane = &b->gpu->lanes[index],
                       .order = epw_lane_order(&b->peers, index),
                       .on = {.stream = stream},
                       .where = epw_buffer_where(b, op)};
}

static epw_lane_args lane_args(const enqueuing *e) {
    const epw_buffer *b = e->b;
    return (epw_lane_args){.peers = e->lane->peers,
                           .state = e->lane->state,
                           .shared = b->gpu->shared,
                           .arrays = e->lane->arrays,
                           .window = epw_peers_own(&b->peers),
                           .inbox = epw_peers_inbox(&b->peers),
                           .layout = b->layout,
                           .rank = b->config.rank,
                           .index = (uint32_t)(e->lane - b->gpu->lanes),
                           .blocks = b->gpu->blocks,
                           .counts = __atomic_load_n(&b->gpu->counts, __ATOMIC_RELAXED)};
}

/* ---- checks that the host engine does not need ---- */

static epw_status check_call(const enqueuing *e, uint32_t nonblocking, const epw_outcome *outcome) {
    return epw_gpu_check_call(e->where, nonblocking, outcome, "epw_outcome_read");
}

static epw_status check_output(const epw_buffer *b, const char *op, const epw_row_format *format,
                               uint32_t payload, const epw_dispatch_output *out) {
    const epw_gpu_pointer pointers[] = {
        {"output.scales", out->scales, epw_gpu_scale_align(format, payload)},
        {"output.counts", out->counts, 4},
        {"output.source_counts", out->source_counts, 4},
        {"output.ranges", out->ranges, 4},
        {"output.packed_ranges", out->packed_ranges, 8},
        {"output.source_token", out->source_token, 4},
        {"output.row_experts", out->row_experts, 4},
        {"output.row_weights", out->row_weights, 4},
        {"output.expert_rows", out->expert_rows, 4},
        {"output.expert_totals", out->expert_totals, 8},
        {"output.expert_totals_i32", out->expert_totals_i32, 4},
        {"output.wait_ns", out->wait_ns, 8},
    };
    return EPW_CHECK_ALIGNED(epw_buffer_where(b, op), pointers);
}

static epw_status check_combined(const epw_buffer *b, const char *op, const epw_combine_output *out) {
    const epw_gpu_pointer pointers[] = {
        {"output.contributions", out->contributions, 4}, /* [n, 2] is written in pairs */
        {"output.wait_ns", out->wait_ns, 8},
    };
    return EPW_CHECK_ALIGNED(epw_buffer_where(b, op), pointers);
}

/* ---- dispatch ---- */

/* quiet: the lane may be free, which is then not an error. */
static int launch_release(const enqueuing *e, bool quiet) {
    epw_release_args args = {.lane = lane_args(e), .quiet = quiet};
    return epw_gpu_release(&args, e->on.stream);
}

/* First releases an earlier handle that could not be released at the time. That release is finished even if
 * the call then fails; but under capture it is not known whether it will run. */
static int launch_owed_release(const enqueuing *e) {
    if (!e->lane->owes_release) return cudaSuccess;
    int error = launch_release(e, true);
    if (error != cudaSuccess || e->on.captured) return error;
    e->lane->owes_release = false;
    epw_stream_mark(&e->on, e->order);
    return cudaSuccess;
}

/* Enqueues `halves` of the dispatch of `in`; `out` is NULL for the sending half alone. */
static epw_status enqueue_dispatch(enqueuing *e, epw_lane *lane, uint32_t halves,
                                   const epw_dispatch_input *in, const epw_row_format *format,
                                   const epw_dispatch_output *out) {
    epw_buffer *b = e->b;
    uint32_t blocks = epw_gpu_blocks_of(in->sms, b->gpu->blocks);
    epw_status status = EPW_OK;
    if (out != NULL) status = check_output(b, e->where.op, format, in->payload, out);
    if (status == EPW_OK) status = enqueue_begin(e, in->deadline_ns);
    if (status != EPW_OK) return status;
    epw_dispatch_args args = {
        .lane = lane_args(e), .halves = halves, .dtype = b->config.dtype, .in = *in, .format = *format};
    if (in->x_stride == 0) {
        bool opaque = in->payload == EPW_PAYLOAD_OPAQUE;
        args.in.x_stride = opaque ? format->payload_bytes : b->layout.row_bytes;
    }
    if (out != NULL) args.out = *out;
    int error =
        halves & EPW_GPU_SEND ? launch_owed_release(e) : cudaSuccess; /* before this operation begins */
    if (error == cudaSuccess) error = epw_gpu_dispatch(&args, blocks, e->on.stream);
    status = enqueue_end(e, error, "launch of the dispatch kernel");
    if (status != EPW_OK) return status;
    lane->machine.stage = out != NULL ? EPW_STAGE_DISPATCHED : EPW_STAGE_SENT;
    return EPW_OK;
}

static epw_status dispatch(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in,
                           const epw_row_format *format, const epw_dispatch_output *out, epw_handle *handle,
                           epw_outcome *outcome) {
    enqueuing e = enqueuing_of(b, lane, "dispatch", in->stream);
    uint32_t halves = out != NULL ? EPW_GPU_SEND | EPW_GPU_RECEIVE : EPW_GPU_SEND;
    epw_status status = check_call(&e, in->nonblocking, outcome);
    if (status == EPW_OK) status = epw_gpu_check_input(epw_buffer_where(b, "dispatch"), in, format, false);
    if (status == EPW_OK) status = enqueue_dispatch(&e, lane, halves, in, format, out);
    if (status == EPW_OK) {
        lane->machine.op = epw_next_op(lane->machine.op);
        epw_lane_take(b, lane, in, format, handle);
    }
    return status;
}

epw_status epw_gpu_call_dispatch(epw_buffer *b, epw_lane *lane, const epw_dispatch_input *in,
                                 const epw_row_format *format, const epw_dispatch_output *out,
                                 epw_handle *handle, epw_outcome *outcome) {
    epw_status status = dispatch(b, lane, in, format, out, handle, outcome);
    epw_lane_unlock(b, lane);
    return status;
}

/* With the deadline of the sending half, as on the host. */
static epw_status dispatch_receive(epw_buffer *b, epw_lane *lane, const epw_dispatch_output *out,
                                   epw_outcome *outcome) {
    enqueuing e = enqueuing_of(b, lane, "dispatch_receive", out->stream);
    epw_status status = check_call(&e, out->nonblocking, outcome);
    if (status != EPW_OK) return status;
    return enqueue_dispatch(&e, lane, EPW_GPU_RECEIVE, &lane->input, &lane->format, out);
}

epw_status epw_gpu_call_dispatch_receive(epw_buffer *b, epw_lane *lane, const epw_dispatch_output *out,
                                         epw_outcome *outcome) {
    epw_status status = dispatch_receive(b, lane, out, outcome);
    epw_lane_unlock(b, lane);
    return status;
}

/* ---- combine and release ---- */

/* Enqueues `halves` of the combine of `in`; `out` is NULL for the sending half alone. */
static epw_status enqueue_combine(enqueuing *e, epw_lane *lane, uint32_t halves, const epw_combine_input *in,
                                  const epw_combine_output *out) {
    epw_buffer *b = e->b;
    uint32_t blocks = epw_gpu_blocks_of(in->sms, b->gpu->blocks);
    epw_status status = EPW_OK;
    if (out != NULL) status = check_combined(b, e->where.op, out);
    if (status == EPW_OK) status = enqueue_begin(e, in->deadline_ns);
    if (status != EPW_OK) return status;
    epw_combine_args args = {.lane = lane_args(e),
                             .halves = halves,
                             .dtype = b->config.combine_dtype,
                             .output_layout = lane->layout,
                             .tokens = lane->tokens,
                             .topk = lane->topk,
                             .in = *in};
    if (in->expert_out == NULL && lane->layout == EPW_EXPERT_MAJOR)
        args.in.expert_out = args.lane.window + epw_zero_copy_offset(&b->layout, args.lane.index);
    if (out != NULL) args.out = *out;
    status = enqueue_end(e, epw_gpu_combine(&args, blocks, e->on.stream), "launch of the combine kernel");
    if (status != EPW_OK) return status;
    lane->machine.stage = out != NULL ? EPW_STAGE_FREE : EPW_STAGE_ANSWERED;
    return EPW_OK;
}

static epw_status combine(epw_buffer *b, epw_lane *lane, const epw_combine_input *in,
                          const epw_combine_output *out, epw_outcome *outcome) {
    enqueuing e = enqueuing_of(b, lane, "combine", in->stream);
    const epw_gpu_pointer pointers[] = {{"expert_out", in->expert_out, 16},
                                        {"topk_weights", in->topk_weights, 4}};
    uint32_t halves = out != NULL ? EPW_GPU_SEND | EPW_GPU_RECEIVE : EPW_GPU_SEND;
    epw_status status = check_call(&e, in->nonblocking, outcome);
    if (status == EPW_OK) status = EPW_CHECK_ALIGNED(e.where, pointers);
    if (status == EPW_OK) status = enqueue_combine(&e, lane, halves, in, out);
    if (status == EPW_OK) lane->combine_input = *in;
    return status;
}

epw_status epw_gpu_call_combine(epw_buffer *b, epw_lane *lane, const epw_combine_input *in,
                                const epw_combine_output *out, epw_outcome *outcome) {
    epw_status status = combine(b, lane, in, out, outcome);
    epw_lane_unlock(b, lane);
    return status;
}

static epw_status combine_receive(epw_buffer *b, epw_lane *lane, const epw_combine_output *out,
                                  epw_outcome *outcome) {
    enqueuing e = enqueuing_of(b, lane, "combine_receive", out->stream);
    epw_status status = check_call(&e, out->nonblocking, outcome);
    if (status != EPW_OK) return status;
    return enqueue_combine(&e, lane, EPW_GPU_RECEIVE, &lane->combine_input, out);
}

epw_status epw_gpu_call_combine_receive(epw_buffer *b, epw_lane *lane, const epw_combine_output *out,
                                        epw_outcome *outcome) {
    epw_status status = combine_receive(b, lane, out, outcome);
    epw_lane_unlock(b, lane);
    return status;
}

static epw_status release(epw_buffer *b, epw_lane *lane, void *const *stream) {
    enqueuing e = enqueuing_of(b, lane, "release", NULL);
    e.on.stream = stream != NULL ? *stream : e.lane->stream;
    epw_status status = enqueue_begin(&e, 0);
    if (status == EPW_OK) status = enqueue_end(&e, launch_release(&e, false), "launch of the release kernel");
    /* Whoever names no stream need not try again: the lane's next call enqueues it, unless an epoch begins.
     */
    if (status != EPW_OK && (stream == NULL || e.on.invalidated)) {
        e.lane->owes_release = true;
        status = EPW_OK;
    }
    if (status == EPW_OK) lane->machine.stage = EPW_STAGE_FREE;
    return status;
}

epw_status epw_gpu_call_release(epw_buffer *b, epw_lane *lane, void *const *stream) {
    epw_status status = release(b, lane, stream);
    epw_lane_unlock(b, lane);
    return status;
}

/* ---- checkpoints ---- */

/* Makes the stream wait for all lanes, and for releases that are still due. If the last call of a lane was
 * captured, only the replays know which handle the lane holds. It may be in use, so an owed release waits for
 * the lane's next dispatch. */
static epw_status follow_lanes(epw_buffer *b, enqueuing lanes[EPW_MAX_LANES]) {
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        epw_status status = follow_lane(&lanes[i]);
        if (status != EPW_OK) return status;
        if (lanes[i].lane->captured) continue;
        int error = launch_owed_release(&lanes[i]);
        if (error != cudaSuccess) return epw_fail_cuda(error, lanes[i].where, "launch of the release kernel");
    }
    return EPW_OK;
}

static epw_status launch_checkpoint(epw_buffer *b, uint64_t step, bool faulted,
                                    enqueuing lanes[EPW_MAX_LANES]) {
    epw_checkpoint_args args = {.shared = b->gpu->shared,
                                .rank = b->config.rank,
                                .ranks = b->config.ranks,
                                .faulted = faulted,
                                .step = step};
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        args.peers[i] = lanes[i].lane->peers;
        args.states[i] = lanes[i].lane->state;
    }
    int error = epw_gpu_checkpoint(&args, lanes[0].on.stream);
    if (error != cudaSuccess) return epw_fail_cuda(error, lanes[0].where, "launch of the checkpoint kernel");
    for (uint32_t i = 0; i < b->config.lanes; i++) /* the next calls of the lanes run after it */
        epw_stream_mark(&lanes[i].on, lanes[i].order);
    return EPW_OK;
}

/* It has no deadline, and belongs to no handle. */
epw_status epw_gpu_call_report(epw_buffer *b, uint64_t step, bool faulted, void *stream) {
    enqueuing lanes[EPW_MAX_LANES];
    for (uint32_t i = 0; i < b->config.lanes; i++)
        lanes[i] = enqueuing_of(b, &b->lanes[i], "checkpoint", stream);
    epw_where where = lanes[0].where;
    epw_status status = epw_cuda_enter(b->config.device, where);
    if (status != EPW_OK) return status;
    status = epw_stream_find_capture(&lanes[0].on, where);
    if (status == EPW_OK && lanes[0].on.captured) {
        status = epw_fail(EPW_ERR_STATE, where,
                          "the stream is under capture, where the step would be the same for all replays: "
                          "enqueue the checkpoint behind the graph");
    }
    if (status == EPW_OK) status = follow_lanes(b, lanes);
    if (status == EPW_OK) status = launch_checkpoint(b, step, faulted, lanes);
    epw_cuda_leave();
    return status;
}

/* ---- outcomes ---- */

epw_status epw_gpu_call_poll(epw_buffer *b, epw_handle handle, epw_outcome *outcome) {
    (void)handle;
    (void)outcome;
    return epw_fail(EPW_ERR_STATE, epw_buffer_where(b, "poll"),
                    "on a GPU there are no non-blocking operations: see epw_outcome_read and epw_await");
}

epw_status epw_gpu_call_ready(epw_buffer *b, epw_handle handle) {
    (void)handle;
    return epw_fail(EPW_ERR_STATE, epw_buffer_where(b, "ready"),
                    "on a GPU the host does not see what has arrived: enqueue the receiving half");
}

/* Whether to wait for a lane that another thread has locked; if not, it is EPW_PENDING. */
typedef enum patience { WAITS, TRIES } patience;

/* Finds and locks the lane that `handle`, held or consumed, was the last to use. */
static epw_status find_last(epw_buffer *b, const char *op, epw_handle handle, patience patience,
                            epw_lane **out) {
    uint32_t index = (uint32_t)(handle & 1);
    if (index >= b->config.lanes || handle >> 1 == 0)
        return epw_fail(EPW_ERR_INVALID, epw_buffer_where(b, op), "not a handle of this buffer");
    epw_lane *lane = &b->lanes[index];
    if (patience == TRIES && pthread_mutex_trylock(&lane->lock) != 0) return EPW_PENDING;
    if (patience == WAITS) pthread_mutex_lock(&lane->lock);
    if (lane->generation != handle >> 1) {
        epw_lane_unlock(b, lane);
        return epw_fail(EPW_ERR_STATE, epw_buffer_where(b, op),
                        "the lane has moved on to another dispatch, or the handle is not one of this buffer");
    }
    *out = lane;
    return EPW_OK;
}

/* The same, if its last call was eager and has an event to wait for. */
static epw_status find_last_eager(epw_buffer *b, const char *op, epw_handle handle, patience patience,
                                  epw_lane **out) {
    epw_lane *lane = NULL;
    epw_where where = epw_buffer_where(b, op);
    epw_status status = find_last(b, op, handle, patience, &lane);
    if (status != EPW_OK) return status;
    uint32_t index = epw_lane_index(b, lane);
    if (b->gpu->lanes[index].captured) {
        status =
            epw_fail(EPW_ERR_STATE, where,
                     "the handle's last call was captured: it runs when its graph does, see epw_take_errors");
    } else {
        status = epw_peers_require_marked(&b->peers, index, where);
    }
    if (status != EPW_OK) {
        epw_lane_unlock(b, lane);
        return status;
    }
    *out = lane;
    return EPW_OK;
}

/* Waits without the lock: the events of lanes exist as long as the buffer. */
static epw_status await_last(epw_buffer *b, epw_lane *locked, uint64_t timeout_ns) {
    uint32_t index = epw_lane_index(b, locked);
    epw_lane_unlock(b, locked);
    return epw_peers_await_event(&b->peers, epw_lane_order(&b->peers, index)->event, timeout_ns,
                                 epw_buffer_where(b, "await"));
}

epw_status epw_gpu_call_await(epw_buffer *b, epw_handle handle, uint64_t timeout_ns) {
    epw_lane *lane = NULL;
    epw_status status = find_last_eager(b, "await", handle, WAITS, &lane);
    return status == EPW_OK ? await_last(b, lane, timeout_ns) : status;
}

void epw_gpu_call_look(epw_awaited *self, bool sleeps, uint64_t now) {
    epw_buffer *b = self->owner;
    epw_lane *lane = NULL;
    (void)sleeps; /* nobody wakes those who wait for a GPU */
    epw_status status = find_last_eager(b, "await", self->of, TRIES, &lane);
    if (status == EPW_PENDING) {
        epw_awaited_busy(self);
        return;
    }
    if (status == EPW_OK) status = await_last(b, lane, 0);
    epw_awaited_by_time(self, status != EPW_PENDING, now);
}

epw_status epw_gpu_call_stream_wait(epw_buffer *b, epw_handle handle, void *stream) {
    epw_lane *lane = NULL;
    epw_status status = find_last(b, "stream_wait", handle, WAITS, &lane);
    if (status != EPW_OK) return status;
    enqueuing e = enqueuing_of(b, lane, "stream_wait", stream);
    status = epw_cuda_enter(b->config.device, e.where);
    if (status == EPW_OK) {
        status = epw_stream_wait_for(&e.on, e.order, e.lane->captured, EPW_GPU_UNMARKED, e.where);
        epw_cuda_leave();
    }
    epw_lane_unlock(b, lane);
    return status;
}

/* Copies the lane's report to the host. Its writer is a block of the half's kernel; no call of the lane runs
 * now, only replays may, which the caller orders. */
static epw_status fetch_report(epw_buffer *b, uint32_t index, epw_where where) {
    epw_gpu *g = b->gpu;
    epw_status status = epw_cuda_enter(b->config.device, where);
    if (status != EPW_OK) return status;
    cudaError_t error = cudaMemcpyAsync(&g->pinned->reports[index], g->lanes[index].arrays.report,
                                        sizeof(epw_gpu_report), cudaMemcpyDeviceToHost, b->peers.gpu->stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "cudaMemcpyAsync of the outcome");
    epw_cuda_leave();
    if (status == EPW_OK) status = epw_peers_settle(&b->peers, b->config.deadline_ns, where);
    if (status != EPW_PENDING) return status;
    return epw_fail(EPW_ERR_TIMEOUT, where,
                    "the GPU has not copied the outcome within the deadline of %llu ms",
                    (unsigned long long)(b->config.deadline_ns / 1000000u));
}

epw_status epw_gpu_call_outcome_read(epw_buffer *b, epw_handle handle, epw_outcome *outcome) {
    epw_where where = epw_buffer_where(b, "outcome_read");
    if (outcome == NULL) return epw_fail(EPW_ERR_INVALID, where, "outcome is NULL");
    epw_status status = epw_outcome_check(b, "outcome_read", outcome);
    epw_lane *lane = NULL;
    if (status == EPW_OK) status = find_last_eager(b, "outcome_read", handle, WAITS, &lane);
    if (status != EPW_OK) return status;
    uint32_t index = epw_lane_index(b, lane);
    status = epw_peers_await_event(&b->peers, epw_lane_order(&b->peers, index)->event, 0, where);
    if (status == EPW_OK) status = fetch_report(b, index, where);
    if (status == EPW_OK) {
        const epw_gpu_report *report = &b->gpu->pinned->reports[index];
        outcome->missing = epw_ranks_mask(&report->missing);
        outcome->degraded = !epw_mask_empty(&outcome->missing);
        outcome->record = report->record;
        char trouble[EPW_TROUBLE_TEXT] = "";
        if (outcome->degraded) epw_peers_try_trouble(&b->peers, report->record.peer, trouble);
        epw_tell_outcome(outcome, epw_ranks_have(&b->peers.gpu->pinned->revoked, report->record.peer),
                         trouble);
    }
    epw_lane_unlock(b, lane);
    return status;
}

static void add_traffic(const epw_buffer *b, const epw_gpu_traffic *lane, epw_traffic *traffic,
                        epw_peer_traffic *peers) {
    traffic->operations += lane->dispatches.sum + lane->combines.sum;
    for (uint32_t p = 0; p < b->config.ranks; p++) {
        uint64_t sent = lane->bytes_sent[p] + lane->answers_sent[p] * b->layout.row_bytes;
        uint64_t received = lane->bytes_received[p].sum + lane->answers_received[p].sum * b->layout.row_bytes;
        traffic->rows_sent += lane->rows_sent[p];
        traffic->rows_received += lane->rows_received[p].sum;
        traffic->rows_answered += lane->answers_sent[p];
        traffic->bytes_sent += sent;
        traffic->bytes_received += received;
        if (peers == NULL) continue;
        peers[p].bytes_sent += sent;
        peers[p].bytes_received += received;
    }
}

/* epw_peers_traffic has checked the sizes, and found nothing: what kernels count is only on the GPU. */
epw_status epw_gpu_call_traffic(const epw_buffer *b, epw_traffic *traffic, epw_peer_traffic *peers) {
    epw_where where = epw_buffer_where(b, "traffic");
    epw_gpu *g = b->gpu;
    epw_status status = epw_peers_traffic(&b->peers, where, traffic, peers);
    if (status != EPW_OK) return status;
    __atomic_store_n(&g->counts, true, __ATOMIC_RELAXED);
    const void *from[EPW_MAX_LANES];
    for (uint32_t i = 0; i < b->config.lanes; i++) from[i] = &g->lanes[i].state->traffic;
    pthread_mutex_lock(&g->traffic_lock);
    status = epw_peers_copy_counts(&b->peers, from, g->pinned->traffic, sizeof g->pinned->traffic[0], where);
    for (uint32_t i = 0; status == EPW_OK && i < b->config.lanes; i++)
        add_traffic(b, &g->pinned->traffic[i], traffic, peers);
    pthread_mutex_unlock(&g->traffic_lock);
    return status;
}

epw_status epw_gpu_call_take_errors(epw_buffer *b, epw_error_record *records, uint32_t capacity,
                                    uint32_t *count, uint64_t *lost) {
    epw_records_take(&b->gpu->errors, &b->gpu->pinned->ring, records, capacity, count, lost);
    return EPW_OK;
}
#else
typedef int epw_no_gpu_calls; /* ISO C requires a declaration in every file */
#endif
