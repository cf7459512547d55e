/* Operations on a GPU: check, enqueue a kernel on the caller's stream, note what the lane owes. Nothing here
 * waits for the GPU or allocates; the routing is never read by the host.
 *
 * The eager calls of a lane come one behind the other, see device/stream_order.h, and those of a routing that
 * goes from lane to lane. */
#include "prefill/gpu/gpu.h"

#ifdef EPW_CUDA
#include "device/cuda.h"
#include "ep/gpu/check.h"
#include "ep/gpu/sms.h"
#include "ep/input.h"

#include <string.h>

/* ---- enqueuing ---- */

typedef struct enqueuing {
    epw_prefill *p;
    epw_prefill_gpu_place *lane;
    epw_stream_order *order; /* of the lane */
    epw_stream_chain *chain; /* NULL, or what the call has entered */
    struct epw_prefill_gpu_memory *routing;
    epw_stream_call on;
    unsigned long long capture; /* that of this call; 0: it is eager */
    bool ends;                  /* it is the half that is due */
    epw_where where;
} enqueuing;

/* Replays would run one half without the other. */
static epw_status check_halves(const enqueuing *e) {
    unsigned long long first = e->routing->capture;
    if (!e->ends || first == e->capture) return EPW_OK;
    return epw_fail(
        EPW_ERR_STATE, e->where,
        "the half before this one was %s and this one is %s: both go into the same graph, or into "
        "none",
        first != 0 ? "captured" : "not captured",
        e->capture == 0 ? "not"
        : first != 0    ? "captured elsewhere"
                        : "captured");
}

static epw_status find_capture(enqueuing *e) {
    epw_status status = epw_stream_find_capture(&e->on, e->where);
    if (status != EPW_OK || !e->on.captured) return status;
    int error = epw_stream_capture_id(e->on.stream, &e->capture);
    return error == cudaSuccess ? EPW_OK : epw_fail_cuda(error, e->where, "cudaStreamGetCaptureInfo");
}

/* Puts the stream behind the lane's former work, behind the routing's on another lane, and behind the other
 * lane's if no two lanes run at the same time. */
static epw_status follow(enqueuing *e) {
    const struct epw_prefill_gpu_memory *m = e->routing;
    epw_status status = epw_stream_follow(&e->on, e->order, EPW_UNMARKED_FOLLOWED("the lane's"), e->where);
    if (status == EPW_OK && m->lane != e->lane->args.lane)
        status = epw_stream_follow(&e->on, &m->order, EPW_UNMARKED_FOLLOWED("the routing's"), e->where);
    if (status != EPW_OK) return status;
    e->chain = epw_lane_chain(&e->p->peers);
    return epw_stream_chain_enter(e->chain, &e->on, EPW_UNMARKED_FOLLOWED("the other lane's"), e->where);
}

/* Before the launch. deadline_ns: the call's own or 0. After success, enqueue_end must follow. */
static epw_status enqueue_begin(enqueuing *e, uint64_t deadline_ns) {
    epw_status status = epw_cuda_enter(e->p->config.ep.device, e->where);
    if (status != EPW_OK) return status;
    status = find_capture(e);
    if (status == EPW_OK) status = check_halves(e);
    if (status == EPW_OK) status = epw_stream_check_deadline(&e->on, deadline_ns, "buffer's", e->where);
    if (status == EPW_OK && !e->on.captured) status = follow(e);
    if (status != EPW_OK) epw_cuda_leave();
    return status;
}

static uint64_t next_ticket(enqueuing *e) {
    if (e->on.captured) return 0;
    pthread_mutex_lock(&e->p->gpu->lock);
    uint64_t ticket = ++e->p->gpu->tickets;
    pthread_mutex_unlock(&e->p->gpu->lock);
    return ticket;
}

/* After the launch, with what it returned: the kernel runs, whatever happens to the events. */
static epw_status enqueue_end(enqueuing *e, int error, uint64_t ticket) {
    epw_status status = EPW_OK;
    if (error != cudaSuccess) {
        status = epw_fail_cuda(error, e->where, "launch of a kernel of prefill");
    } else {
        epw_stream_mark(&e->on, e->order);
        epw_stream_mark(&e->on, &e->routing->order);
    }
    epw_stream_chain_leave(e->chain, status == EPW_OK ? e->order : NULL);
    epw_cuda_leave();
    if (status != EPW_OK) return status;
    e->routing->capture = e->capture;
    e->routing->in_graph |= e->on.captured;
    if (e->on.captured) return EPW_OK;
    e->routing->ticket = ticket;
    e->routing->lane = e->lane->args.lane;
    return EPW_OK;
}

/* Locks the lane; for the half that is due, or for another operation. */
static epw_status take_lane(epw_prefill *p, epw_routing *r, uint32_t index, const uint32_t *due,
                            const char *op, void *stream, enqueuing *e) {
    epw_prefill_gpu_place *lane = &p->gpu->lanes[index];
    *e = (enqueuing){.p = p,
                     .lane = lane,
                     .order = epw_lane_order(&p->peers, index),
                     .routing = r->gpu,
                     .on = {.stream = stream},
                     .ends = due != NULL,
                     .where = epw_prefill_where(p, op)};
    pthread_mutex_lock(&p->lanes[index].lock);
    epw_status status = EPW_OK;
    if (p->lanes[index].own_word == 0) {
        status = epw_fail(EPW_ERR_STATE, e->where, "no membership yet: call epw_prefill_set_active first");
    } else if (due != NULL && (lane->owed != r || lane->kind != *due)) {
        status = epw_fail(EPW_ERR_STATE, e->where, "no receiving half is due");
    } else if (lane->stranded) {
        status = epw_fail(EPW_ERR_STATE, e->where,
                          "lane %u has half an operation that could not be given up when its routing was "
                          "freed: begin an epoch, or use another lane",
                          index);
    } else if (due == NULL && lane->owed != NULL) {
        status =
            epw_fail(EPW_ERR_STATE, e->where,
                     "lane %u has half an operation under way: end it first, or use another lane", index);
    }
    if (status != EPW_OK) pthread_mutex_unlock(&p->lanes[index].lock);
    return status;
}

static void leave_lane(const enqueuing *e) {
    pthread_mutex_unlock(&e->p->lanes[e->lane->args.lane].lock);
}

static epw_prefill_gpu_call call_of(const enqueuing *e, uint32_t kind, uint32_t parts, uint64_t deadline_ns) {
    const epw_config *c = &e->p->config.ep;
    return (epw_prefill_gpu_call){.lane = e->lane->args,
                                  .routing = e->routing->at,
                                  .report = e->routing->report_at,
                                  .deadline_ns = deadline_ns,
                                  .kind = kind,
                                  .parts = parts,
                                  .counts = __atomic_load_n(&e->p->gpu->counts, __ATOMIC_RELAXED),
                                  .hash = e->routing->hash,
                                  .dtype = kind == EPW_KIND_DISPATCH ? c->dtype : c->combine_dtype};
}

/* After a call that has been enqueued: `rest` of the operation is due. */
static void note(const enqueuing *e, epw_routing *r, uint32_t kind, uint32_t rest) {
    r->lane = e->lane->args.lane;
    r->made = true;
    r->busy = rest != 0;
    r->gpu->parts = rest;
    e->lane->owed = rest != 0 ? r : NULL;
    e->lane->kind = kind;
}

/* ---- checks that the host engine does not need ---- */

static epw_status check_call(epw_where where, uint32_t nonblocking, const epw_outcome *outcome) {
    return epw_gpu_check_call(where, nonblocking, outcome, "epw_prefill_poll");
}

static epw_status check_output(const enqueuing *e, const epw_prefill_output *out) {
    const struct epw_prefill_gpu_memory *m = e->routing;
    const epw_gpu_pointer pointers[] = {
        {"output.scales", out->capacity > 0 ? out->scales : NULL,
         epw_gpu_scale_align(&m->format, m->in.payload)},
        {"output.counts", out->counts, 4},
        {"output.offsets", out->offsets, 4},
        {"output.overflow", out->overflow, 4},
        {"output.source_counts", out->source_counts, 4},
        {"output.source_offsets", out->source_offsets, 4},
        {"output.row_expert", out->row_expert, 4},
        {"output.row_source", out->row_source, 4},
        {"output.row_token", out->row_token, 4},
        {"output.row_position", out->row_position, 4},
        {"output.row_weight", out->row_weight, 4},
        {"output.row_experts", out->row_experts, 4},
        {"output.row_weights", out->row_weights, 4},
        {"output.ranges", out->ranges, 8},
        {"output.expert_totals", out->expert_totals, 8},
        {"output.expert_totals_i32", out->expert_totals_i32, 4},
        {"output.wait_ns", out->wait_ns, 8},
    };
    return EPW_CHECK_ALIGNED(e->where, pointers);
}

/* Of a routing without places nothing is read, and of one without tokens no sums are made. */
static epw_status check_combine(epw_where where, const epw_routing *r, const epw_prefill_combine_input *in) {
    bool reads = r->capacity > 0, adds = r->tokens > 0;
    const epw_gpu_pointer pointers[] = {{"expert_out", reads ? in->expert_out : NULL, 16},
                                        {"row_weights", in->row_weights, 4},
                                        {"topk_weights", in->topk_weights, 4},
                                        {"row_values", in->row_values, 4},
                                        {"bias[0]", adds ? in->bias[0] : NULL, 16},
                                        {"bias[1]", adds ? in->bias[1] : NULL, 16}};
    return EPW_CHECK_ALIGNED(where, pointers);
}

static epw_status check_sums(epw_where where, const epw_routing *r, const epw_prefill_combine_output *out) {
    const epw_gpu_pointer pointers[] = {{"output.out", r->tokens > 0 ? out->out : NULL, 16},
                                        {"output.contributions", out->contributions, 2},
                                        {"output.lacks", out->lacks, 4},
                                        {"output.values", out->values, 4},
                                        {"output.wait_ns", out->wait_ns, 8}};
    return EPW_CHECK_ALIGNED(where, pointers);
}

/* ---- dispatch ---- */

/* Enqueues some parts of the dispatch that the routing's memory describes. Locked. */
static epw_status enqueue_dispatch(enqueuing *e, uint32_t parts, bool gives_up,
                                   const epw_prefill_output *out) {
    const struct epw_prefill_gpu_memory *m = e->routing;
    uint32_t blocks = epw_gpu_blocks_of(m->in.sms, e->p->gpu->blocks);
    epw_status status = out != NULL ? check_output(e, out) : EPW_OK;
    if (status == EPW_OK) status = enqueue_begin(e, m->in.deadline_ns);
    if (status != EPW_OK) return status;
    epw_prefill_dispatch_args args = {.call = call_of(e, EPW_KIND_DISPATCH, parts, m->in.deadline_ns),
                                      .again = m->again,
                                      .in = m->in,
                                      .format = m->format,
                                      .out = {.alignment = 1}};
    args.in.x_stride = epw_input_stride(&e->p->config.ep, &m->in, &m->format);
    if (out != NULL) args.out = *out;
    if (args.out.alignment == 0) args.out.alignment = 1;
    args.call.gives_up = gives_up;
    args.call.ticket = next_ticket(e);
    int error = epw_prefill_gpu_run_dispatch(&args, blocks, e->on.stream);
    return enqueue_end(e, error, args.call.ticket);
}

static void set_output(epw_routing *r, const epw_prefill_output *out) {
    r->layout = out->layout;
    r->alignment = out->layout == EPW_PACKED ? out->alignment : 1;
    r->capacity = out->capacity;
}

epw_status epw_prefill_gpu_dispatch(epw_prefill *p, epw_routing *r, const epw_prefill_gpu_dispatch_call *call,
                                    const epw_outcome *outcome) {
    const epw_dispatch_input *in = call->in;
    epw_where where = epw_prefill_where(p, "dispatch");
    epw_status status = check_call(where, in->nonblocking, outcome);
    if (status == EPW_OK) status = epw_gpu_check_input(where, in, call->format, call->again);
    enqueuing e;
    if (status == EPW_OK) status = take_lane(p, r, call->lane, NULL, "dispatch", in->stream, &e);
    if (status != EPW_OK) return status;
    uint32_t parts = EPW_PREFILL_OPENS | EPW_PREFILL_COUNTS | EPW_PREFILL_SENDS | EPW_PREFILL_RECEIVES;
    uint32_t rest = call->out != NULL ? 0
                    : call->counts    ? EPW_PREFILL_SENDS | EPW_PREFILL_RECEIVES
                                      : EPW_PREFILL_COUNTS | EPW_PREFILL_RECEIVES;
    struct epw_prefill_gpu_memory *m = r->gpu;
    if (call->again) status = epw_routing_check_epoch(r, &p->lanes[call->lane], where);
    if (status != EPW_OK) {
        leave_lane(&e);
        return status;
    }
    m->in = *in;
    m->format = *call->format;
    m->again = call->again;
    m->hash = call->format->hash;
    status = enqueue_dispatch(&e, parts & ~rest, false, call->out);
    if (status == EPW_OK) {
        m->counted = call->out != NULL || call->counts || call->again;
        r->epoch = epw_word_epoch(p->lanes[call->lane].own_word);
        r->weighted = in->topk_weights != NULL || (call->again && r->weighted);
        r->tokens = in->tokens;
        r->topk = in->topk;
        if (call->out != NULL) set_output(r, call->out);
        note(&e, r, EPW_KIND_DISPATCH, rest);
    }
    leave_lane(&e);
    return status;
}

bool epw_prefill_gpu_uses_again(const epw_routing *r) {
    return r->busy && r->gpu->again;
}

epw_status epw_prefill_gpu_receive(epw_prefill *p, epw_routing *r, const epw_prefill_output *out,
                                   const epw_outcome *outcome) {
    uint32_t kind = EPW_KIND_DISPATCH;
    enqueuing e;
    epw_status status = check_call(epw_prefill_where(p, "receive"), out->nonblocking, outcome);
    if (status == EPW_OK) status = take_lane(p, r, r->lane, &kind, "receive", out->stream, &e);
    if (status != EPW_OK) return status;
    status = enqueue_dispatch(&e, r->gpu->parts, false, out);
    if (status == EPW_OK) {
        r->gpu->counted = true;
        set_output(r, out);
        note(&e, r, kind, 0);
    }
    leave_lane(&e);
    return status;
}

/* Whether the GPU has run the routing's last eager call; EPW_PENDING: not yet. */
static epw_status look_at(const epw_prefill *p, const struct epw_prefill_gpu_memory *m, epw_where where) {
    epw_status status = epw_stream_require_marked(&m->order, EPW_UNMARKED_AWAITED("the routing's"), where);
    return status == EPW_OK ? epw_peers_await_event(&p->peers, m->order.event, 0, where) : status;
}

/* As epw_routing_extent, of what kernels have told. */
static uint64_t extent_of(const epw_prefill *p, const uint32_t *told, uint32_t layout, uint32_t alignment) {
    uint32_t ranks = p->layout.ranks;
    uint64_t end = 0;
    if (layout == EPW_RANK_MAJOR) return (uint64_t)ranks * p->config.ep.max_tokens;
    for (uint32_t s = 0; layout == EPW_DENSE && s < ranks; s++) end += told[s];
    for (uint32_t e = 0; epw_by_expert(layout) && e < p->layout.local_experts; e++) {
        uint32_t rows = told[ranks + e];
        if (layout == EPW_PACKED) {
            end += epw_align(rows, alignment);
        } else if (rows > end) {
            end = rows;
        }
    }
    return end;
}

epw_status epw_prefill_gpu_received(epw_prefill *p, epw_routing *r, uint32_t layout, uint32_t alignment,
                                    uint64_t *rows, uint32_t *counts, uint32_t *source_counts) {
    epw_where where = epw_prefill_where(p, "received");
    const struct epw_prefill_gpu_memory *m = r->gpu;
    if (!r->made) return epw_fail(EPW_ERR_STATE, where, "the routing has not been filled by a dispatch");
    if (!m->counted)
        return epw_fail(
            EPW_ERR_STATE, where,
            "on a GPU a sending half counts nothing: call the receiving half first, or begin with "
            "EPW_HALF_COUNTS");
    if (r->busy && m->capture != 0)
        return epw_fail(
            EPW_ERR_STATE, where,
            "the counts were captured: they are known only in replays, so a capacity must be given");
    epw_status status = m->order.enqueued ? look_at(p, m, where) : EPW_OK;
    if (status != EPW_OK) return status;
    *rows = extent_of(p, m->told, layout, alignment);
    if (counts != NULL) memcpy(counts, m->told + p->layout.ranks, p->layout.local_experts * sizeof counts[0]);
    if (source_counts != NULL) memcpy(source_counts, m->told, p->layout.ranks * sizeof source_counts[0]);
    return EPW_OK;
}

/* ---- combine ---- */

/* EPW_OK: the host knows how many rows have come, and this will not change: the dispatch has run, and no
 * graph runs it again. EPW_PENDING: it does not know. */
static epw_status find_counts(const enqueuing *e) {
    const struct epw_prefill_gpu_memory *m = e->routing;
    if (!m->counted || m->in_graph || e->on.captured) return EPW_PENDING;
    return m->order.enqueued ? look_at(e->p, m, e->where) : EPW_OK;
}

/* A sending half writes all its answers before the peers' receiving halves, so the ring must hold them. Where
 * the host does not know how many there are, it must hold as many as there can be. */
static epw_status check_split(enqueuing *e, bool ordered) {
    const epw_prefill *p = e->p;
    uint32_t local = p->layout.local_experts;
    uint64_t each = !ordered ? 1 : p->layout.topk < local ? p->layout.topk : local;
    uint64_t most = each * p->config.ep.max_tokens;
    if (most < p->layout.slots) return EPW_OK;
    epw_status status = epw_cuda_enter(p->config.ep.device, e->where);
    if (status != EPW_OK) return status;
    status = epw_stream_find_capture(&e->on, e->where);
    epw_cuda_leave();
    if (status != EPW_OK) return status;
    status = find_counts(e);
    if (status != EPW_OK && status != EPW_PENDING) return status;
    bool known = status == EPW_OK;
    for (uint32_t s = 0; s < p->layout.ranks; s++) {
        uint64_t answers = known ? each * e->routing->told[s] : most;
        if (answers < p->layout.slots || s == p->config.ep.rank) continue;
        epw_where where = e->where;
        where.peer = (int)s;
        return epw_fail(EPW_ERR_LIMIT, where,
                        "up to %llu answers go to it, a sending half has room for %u in rings of %u: raise "
                        "ring_tokens, or combine in one%s",
                        (unsigned long long)answers, p->layout.slots - 1, p->layout.slots,
                        known
                            ? ""
                            : ", or await the dispatch of a routing that no graph has, so that the number of "
                              "rows is known");
    }
    return EPW_OK;
}

static epw_status enqueue_combine(enqueuing *e, const epw_routing *r, uint32_t parts, bool gives_up,
                                  const epw_prefill_combine_output *out) {
    const struct epw_prefill_gpu_memory *m = e->routing;
    uint32_t blocks = epw_gpu_blocks_of(m->combine.sms, e->p->gpu->blocks);
    epw_status status = out != NULL ? check_sums(e->where, r, out) : EPW_OK;
    if (status == EPW_OK) status = enqueue_begin(e, m->combine.deadline_ns);
    if (status != EPW_OK) return status;
    epw_prefill_combine_args args = {.call = call_of(e, EPW_KIND_COMBINE, parts, m->combine.deadline_ns),
                                     .tokens = r->tokens,
                                     .topk = r->topk,
                                     .layout = r->layout,
                                     .width =
                                         m->combine.width != 0 ? m->combine.width : e->p->config.ep.hidden,
                                     .capacity = r->capacity,
                                     .in = m->combine};
    if (out != NULL) args.out = *out;
    args.call.gives_up = gives_up;
    args.call.ticket = next_ticket(e);
    int error = epw_prefill_gpu_run_combine(&args, blocks, e->on.stream);
    return enqueue_end(e, error, args.call.ticket);
}

epw_status epw_prefill_gpu_combine(epw_prefill *p, epw_routing *r, const epw_prefill_combine_input *in,
                                   uint32_t hash, const epw_prefill_combine_output *out,
                                   const epw_outcome *outcome) {
    epw_where where = epw_prefill_where(p, "combine");
    epw_status status = check_call(where, in->nonblocking, outcome);
    if (status == EPW_OK) status = check_combine(where, r, in);
    enqueuing e;
    if (status == EPW_OK) status = take_lane(p, r, r->lane, NULL, "combine", in->stream, &e);
    if (status != EPW_OK) return status;
    uint32_t parts = EPW_PREFILL_OPENS | EPW_PREFILL_COUNTS | EPW_PREFILL_SENDS | EPW_PREFILL_RECEIVES;
    uint32_t rest = out != NULL ? 0 : EPW_PREFILL_COUNTS | EPW_PREFILL_RECEIVES;
    status = epw_routing_check_epoch(r, &p->lanes[r->lane], where);
    if (status == EPW_OK && out == NULL) status = check_split(&e, in->mode == EPW_COMBINE_ORDERED);
    if (status != EPW_OK) {
        leave_lane(&e);
        return status;
    }
    r->gpu->combine = *in;
    r->gpu->hash = hash;
    status = enqueue_combine(&e, r, parts & ~rest, false, out);
    if (status == EPW_OK) note(&e, r, EPW_KIND_COMBINE, rest);
    leave_lane(&e);
    return status;
}

epw_status epw_prefill_gpu_collect(epw_prefill *p, epw_routing *r, const epw_prefill_combine_output *out,
                                   const epw_outcome *outcome) {
    uint32_t kind = EPW_KIND_COMBINE;
    enqueuing e;
    epw_status status = check_call(epw_prefill_where(p, "collect"), out->nonblocking, outcome);
    if (status == EPW_OK) status = take_lane(p, r, r->lane, &kind, "collect", out->stream, &e);
    if (status != EPW_OK) return status;
    status = enqueue_combine(&e, r, r->gpu->parts, false, out);
    if (status == EPW_OK) note(&e, r, kind, 0);
    leave_lane(&e);
    return status;
}

/* ---- what has become of it ---- */

epw_status epw_prefill_gpu_poll(epw_prefill *p, epw_routing *r, epw_outcome *outcome) {
    epw_where where = epw_prefill_where(p, "poll");
    const struct epw_prefill_gpu_memory *m = r->gpu;
    if (m->capture != 0 || m->ticket == 0 || r->busy)
        return epw_fail(EPW_ERR_STATE, where,
                        r->busy ? "half the operation is still to be called"
                                : "no operation runs, or it was captured: replays have no outcome");
    epw_status status = look_at(p, m, where);
    if (status != EPW_OK || outcome == NULL) return status;
    bool incomplete = m->report->ticket == m->ticket; /* its kernel has ended */
    *outcome = (epw_outcome)EPW_OUTCOME_INIT;
    if (!incomplete) return EPW_OK;
    outcome->degraded = 1;
    outcome->missing = epw_ranks_mask(&m->report->missing);
    outcome->record = m->report->record;
    return EPW_OK;
}

/* Gives the lane back, and waits without it. */
static epw_status await_locked(epw_prefill *p, uint32_t index, uint64_t timeout_ns) {
    epw_where where = epw_prefill_where(p, "await");
    const epw_stream_order *order = epw_lane_order(&p->peers, index);
    epw_status status = order->enqueued
                            ? epw_peers_require_marked(&p->peers, index, where)
                            : epw_fail(EPW_ERR_STATE, where, "no operation runs on lane %u", index);
    pthread_mutex_unlock(&p->lanes[index].lock);
    return status == EPW_OK ? epw_peers_await_event(&p->peers, order->event, timeout_ns, where) : status;
}

epw_status epw_prefill_gpu_await(epw_prefill *p, uint32_t index, uint64_t timeout_ns) {
    pthread_mutex_lock(&p->lanes[index].lock);
    epw_status status = await_locked(p, index, timeout_ns);
    return status == EPW_PENDING ? EPW_OK : status;
}

/* The lane may have gone on to another routing since the awaited call: its event then comes late, so the call
 * is polled from time to time. */
void epw_prefill_gpu_look(epw_awaited *self, uint64_t now) {
    enum { POLLED_EVERY_NS = 200000 };
    epw_prefill *p = self->owner;
    uint32_t index = (uint32_t)self->of;
    if (pthread_mutex_trylock(&p->lanes[index].lock) != 0) {
        epw_awaited_busy(self);
        return;
    }
    bool ended = await_locked(p, index, 0) != EPW_PENDING;
    epw_awaited_by_time(self, ended || now - self->since >= POLLED_EVERY_NS, now);
}

/* The routing's own event, since the lane may have gone on to another routing. */
epw_status epw_prefill_gpu_stream_wait(epw_prefill *p, const epw_routing *r, void *stream) {
    epw_where where = epw_prefill_where(p, "stream_wait");
    const struct epw_prefill_gpu_memory *m = r->gpu;
    epw_stream_call waiting = {.stream = stream};
    if (m->capture == 0 && !m->order.enqueued)
        return epw_fail(EPW_ERR_STATE, where, "no operation of the routing has been enqueued");
    epw_status status = epw_cuda_enter(p->config.ep.device, where);
    if (status != EPW_OK) return status;
    status = epw_stream_wait_for(&waiting, &m->order, m->capture != 0, EPW_UNMARKED_AWAITED("the routing's"),
                                 where);
    epw_cuda_leave();
    return status;
}

/* What is enqueued runs. Of half an operation the other one is a kernel that tells peers so, and discards
 * what they send; it touches no memory but the routing's, which is kept until it has ended. Of a captured
 * half there is nothing to end. */
epw_status epw_prefill_gpu_cancel(epw_prefill *p, epw_routing *r) {
    if (!r->busy) return EPW_OK;
    epw_prefill_gpu_place *lane = &p->gpu->lanes[r->lane];
    uint32_t kind = lane->kind;
    enqueuing e;
    epw_status status = take_lane(p, r, r->lane, &kind, "cancel", p->gpu->stream, &e);
    if (status != EPW_OK) return status;
    if (r->gpu->capture == 0)
        status = kind == EPW_KIND_DISPATCH ? enqueue_dispatch(&e, r->gpu->parts, true, NULL)
                                           : enqueue_combine(&e, r, r->gpu->parts, true, NULL);
    if (status == EPW_OK) {
        note(&e, r, kind, 0);
        if (kind == EPW_KIND_DISPATCH) r->made = epw_routing_is_spared(r->gpu->again, &r->gpu->in);
    }
    leave_lane(&e);
    return status;
}
#else
static epw_status none(const char *op) {
    return epw_fail(EPW_ERR_STATE, (epw_where){op, -1, -1}, "there is no prefill buffer on a GPU");
}

epw_status epw_prefill_gpu_dispatch(epw_prefill *p, epw_routing *r, const epw_prefill_gpu_dispatch_call *call,
                                    const epw_outcome *outcome) {
    (void)p, (void)r, (void)call, (void)outcome;
    return none("dispatch");
}
epw_status epw_prefill_gpu_receive(epw_prefill *p, epw_routing *r, const epw_prefill_output *out,
                                   const epw_outcome *outcome) {
    (void)p, (void)r, (void)out, (void)outcome;
    return none("receive");
}
epw_status epw_prefill_gpu_received(epw_prefill *p, epw_routing *r, uint32_t layout, uint32_t alignment,
                                    uint64_t *rows, uint32_t *counts, uint32_t *source_counts) {
    (void)p, (void)r, (void)layout, (void)alignment, (void)rows, (void)counts, (void)source_counts;
    return none("received");
}
epw_status epw_prefill_gpu_combine(epw_prefill *p, epw_routing *r, const epw_prefill_combine_input *in,
                                   uint32_t hash, const epw_prefill_combine_output *out,
                                   const epw_outcome *outcome) {
    (void)p, (void)r, (void)in, (void)hash, (void)out, (void)outcome;
    return none("combine");
}
epw_status epw_prefill_gpu_collect(epw_prefill *p, epw_routing *r, const epw_prefill_combine_output *out,
                                   const epw_outcome *outcome) {
    (void)p, (void)r, (void)out, (void)outcome;
    return none("collect");
}
epw_status epw_prefill_gpu_poll(epw_prefill *p, epw_routing *r, epw_outcome *outcome) {
    (void)p, (void)r, (void)outcome;
    return none("poll");
}
void epw_prefill_gpu_look(epw_awaited *self, uint64_t now) {
    epw_awaited_by_time(self, true, now);
}
epw_status epw_prefill_gpu_await(epw_prefill *p, uint32_t lane, uint64_t timeout_ns) {
    (void)p, (void)lane, (void)timeout_ns;
    return none("await");
}
epw_status epw_prefill_gpu_stream_wait(epw_prefill *p, const epw_routing *r, void *stream) {
    (void)p, (void)r, (void)stream;
    return none("stream_wait");
}
epw_status epw_prefill_gpu_cancel(epw_prefill *p, epw_routing *r) {
    (void)p, (void)r;
    return none("cancel");
}
bool epw_prefill_gpu_uses_again(const epw_routing *r) {
    (void)r;
    return false;
}
#endif
