/* The public calls: their checks, and the operations that they begin. */
#include "prefill/parts.h"

#include "base/clock.h"
#include "peer/remote.h"
#include "peer/sleep.h"
#include "prefill/gpu/gpu.h"

#include <stdlib.h>

#define REQUIRE(ok, code, ...)                                                                               \
    do {                                                                                                     \
        if (!(ok)) return epw_fail((code), where, __VA_ARGS__);                                              \
    } while (0)

/* Operations that move no more than this use ordinary stores, as in ep/host/host.h. */
#define CACHED_BYTES (UINT64_C(2) << 20)

/* ---- checks ---- */

static epw_status check_both(const epw_prefill *p, const epw_routing *r, epw_where *where) {
    if (p == NULL) return epw_fail(EPW_ERR_INVALID, *where, "prefill is NULL");
    where->rank = (int)p->config.ep.rank;
    if (r == NULL) return epw_fail(EPW_ERR_INVALID, *where, "routing is NULL");
    if (r->of != p) return epw_fail(EPW_ERR_INVALID, *where, "the routing is of another prefill buffer");
    return EPW_OK;
}

static epw_status check_outcome(epw_where where, const epw_outcome *outcome) {
    REQUIRE(outcome == NULL || outcome->size == sizeof *outcome, EPW_ERR_INVALID,
            "outcome.size is %u, this library's is %zu: use EPW_OUTCOME_INIT", outcome->size,
            sizeof *outcome);
    return EPW_OK;
}

/* The name of an output that is given although its layout does not fill it; NULL if there is none. */
static const char *foreign(const epw_prefill_output *out) {
    if (epw_by_expert(out->layout)) {
        return out->source_offsets != NULL ? "source_offsets"
               : out->row_experts != NULL  ? "row_experts"
               : out->row_weights != NULL  ? "row_weights"
                                           : NULL;
    }
    return out->offsets != NULL        ? "offsets"
           : out->ranges != NULL       ? "ranges"
           : out->row_expert != NULL   ? "row_expert"
           : out->row_position != NULL ? "row_position"
           : out->row_weight != NULL   ? "row_weight"
                                       : NULL;
}

static epw_status check_layout(epw_where where, uint32_t layout, uint32_t alignment) {
    REQUIRE(layout <= EPW_DENSE, EPW_ERR_INVALID,
            "layout is %u, must be EPW_PACKED, EPW_DENSE, EPW_EXPERT_MAJOR or EPW_RANK_MAJOR", layout);
    if (layout == EPW_PACKED) {
        REQUIRE(alignment >= 1 && alignment <= EPW_MAX_TOKENS, EPW_ERR_LIMIT,
                "alignment is %u, must be in [1, %u] rows", alignment, EPW_MAX_TOKENS);
    } else {
        REQUIRE(alignment <= 1, EPW_ERR_INVALID, "alignment is %u, which only EPW_PACKED takes: leave it 0",
                alignment);
    }
    return EPW_OK;
}

static epw_status check_output(epw_where where, const epw_prefill *p, const epw_routing *r, bool again,
                               const epw_prefill_output *out) {
    REQUIRE(out != NULL, EPW_ERR_INVALID, "output is NULL");
    REQUIRE(out->size == sizeof *out, EPW_ERR_INVALID,
            "output.size is %u, this library's is %zu: use EPW_PREFILL_OUTPUT_INIT", out->size, sizeof *out);
    epw_status status = check_layout(where, out->layout, out->alignment);
    if (status != EPW_OK) return status;
    REQUIRE(out->scale_order <= 1 && out->zero_padding <= 1, EPW_ERR_INVALID,
            "scale_order is %u and zero_padding %u, must be 0 or 1", out->scale_order, out->zero_padding);
    REQUIRE(out->layout == EPW_PACKED || out->zero_padding == 0, EPW_ERR_INVALID,
            "zero_padding is 1, which only EPW_PACKED takes: leave it 0");
    uint64_t lists = out->layout == EPW_EXPERT_MAJOR ? p->layout.local_experts : 1;
    REQUIRE(out->capacity < EPW_NO_PLACE / lists, EPW_ERR_LIMIT, "capacity is %llu rows, must be below %llu",
            (unsigned long long)out->capacity, (unsigned long long)(EPW_NO_PLACE / lists));
    uint64_t all = (uint64_t)p->layout.ranks * p->config.ep.max_tokens;
    REQUIRE(out->layout != EPW_RANK_MAJOR || out->capacity >= all, EPW_ERR_LIMIT,
            "capacity is %llu rows, rank-major needs %llu: ranks * max_tokens",
            (unsigned long long)out->capacity, (unsigned long long)all);
    const char *other = foreign(out);
    REQUIRE(other == NULL, EPW_ERR_INVALID,
            "output.%s is given, which this layout does not fill: leave it out", other);
    REQUIRE(out->capacity == 0 || (uintptr_t)out->rows % 16 == 0, EPW_ERR_INVALID,
            "output.rows must be aligned to 16 bytes");
    uint32_t alignment = out->layout == EPW_PACKED ? out->alignment : 1;
    REQUIRE(!again || (out->layout == r->layout && alignment == r->alignment && out->capacity == r->capacity),
            EPW_ERR_INVALID,
            "layout %u, alignment %u and capacity %llu are not those of the routing, %u, %u and %llu",
            out->layout, alignment, (unsigned long long)out->capacity, r->layout, r->alignment,
            (unsigned long long)r->capacity);
    return EPW_OK;
}

static epw_status check_ids(epw_where where, const epw_config *config, const epw_dispatch_input *in) {
    int32_t ids[EPW_MAX_TOPK];
    float weights[EPW_MAX_TOPK];
    epw_status status = EPW_OK;
    for (uint32_t t = 0; t < in->tokens && status == EPW_OK; t++)
        status = epw_input_read_topk(where, config, in, t, ids, weights);
    return status;
}

/* The routing must have been filled by a dispatch; of which membership, epw_routing_check_epoch asks. */
static epw_status check_made(epw_where where, const epw_routing *r) {
    REQUIRE(r->made && !r->busy, EPW_ERR_STATE, "the routing has %s",
            r->busy ? "an operation under way" : "not been filled by a dispatch");
    return EPW_OK;
}

static epw_status check_again(epw_where where, const epw_routing *r, const epw_dispatch_input *in) {
    epw_status status = check_made(where, r);
    if (status != EPW_OK) return status;
    REQUIRE(in->tokens == r->tokens && in->topk == r->topk, EPW_ERR_INVALID,
            "tokens is %u and topk %u, the routing's are %u and %u", in->tokens, in->topk, r->tokens,
            r->topk);
    REQUIRE(in->lane < 0 || (uint32_t)in->lane == r->lane, EPW_ERR_INVALID,
            "lane is %d, the routing's is %u: leave it -1", in->lane, r->lane);
    return EPW_OK;
}

/* ---- lanes ---- */

/* Locks the lane for a new operation. Completes an operation that was given up there, first. */
static epw_status take_lane(epw_prefill *p, epw_prefill_lane *lane, bool nonblocking, epw_where where) {
    pthread_mutex_lock(&lane->lock);
    if (lane->running && epw_prefill_abandoned(lane)) {
        lane->nonblocking = nonblocking;
        uint64_t now = epw_now_ns();
        /* For so long no call has waited. */
        if (now - lane->retaken > lane->deadline_ns) epw_prefill_begin_wait(p, lane);
        lane->retaken = now;
        (void)epw_prefill_run(p, lane, NULL);
        pthread_mutex_lock(&lane->lock);
    }
    epw_status status = EPW_OK;
    if (lane->own_word == 0) {
        status = epw_fail(EPW_ERR_STATE, where, "no membership yet: call epw_prefill_set_active first");
    } else if (lane->running && epw_prefill_abandoned(lane)) {
        status =
            epw_fail(EPW_ERR_STATE, where,
                     "lane %u has an operation that was given up and that peers have not ended yet: call "
                     "epw_prefill_await and try again, or use another lane",
                     lane->index);
    } else if (lane->running) {
        status =
            epw_fail(EPW_ERR_STATE, where,
                     "lane %u has an operation under way: end it first, or use another lane", lane->index);
    }
    if (status != EPW_OK) epw_prefill_unlock(p, lane);
    return status;
}

/* Whether the receiving half is due. After a sending half epw_prefill_received may wait for counts. */
static bool is_half_due(const epw_prefill_lane *lane) {
    bool rests = lane->goal == EPW_GOAL_NONE || (lane->goal == EPW_GOAL_COUNTS && lane->sends);
    return !lane->receives && rests;
}

/* Locks the lane on which the routing's operation runs, if it is in the state that the call needs. */
static epw_status find_lane(epw_prefill *p, epw_routing *r, uint32_t kind, bool half, epw_where where,
                            epw_prefill_lane **out) {
    epw_prefill_lane *lane = &p->lanes[r->lane];
    pthread_mutex_lock(&lane->lock);
    bool its = lane->running && lane->routing == r;
    bool ready = its && (half ? lane->kind == kind && is_half_due(lane) : lane->goal != EPW_GOAL_NONE);
    *out = lane;
    if (ready) return EPW_OK;
    epw_prefill_unlock(p, lane);
    return epw_fail(EPW_ERR_STATE, where, half ? "no receiving half is due" : "no operation runs");
}

/* ---- dispatch ---- */

static uint32_t mix(uint32_t hash, uint32_t value) {
    return (hash ^ value) * 16777619u;
}

static void set_output(epw_prefill_lane *lane, epw_routing *r, const epw_prefill_output *out) {
    lane->output = *out;
    r->layout = out->layout;
    r->alignment = out->layout == EPW_PACKED ? out->alignment : 1;
    r->capacity = out->capacity;
}

static void renew_weights(epw_routing *r, const epw_prefill *p, const epw_dispatch_input *in) {
    for (uint32_t t = 0; t < in->tokens && in->topk_weights != NULL; t++)
        memcpy(r->weights + (size_t)t * p->layout.topk, in->topk_weights + (size_t)t * in->topk,
               in->topk * sizeof(float));
    r->weighted |= in->topk_weights != NULL;
}

epw_status epw_prefill_dispatch(epw_prefill *p, epw_routing *r, const epw_dispatch_input *in, uint32_t route,
                                uint32_t half, const epw_prefill_output *out, epw_outcome *outcome) {
    epw_where where = {"dispatch", -1, -1};
    epw_status status = check_both(p, r, &where);
    if (status != EPW_OK) return status;
    bool again = route == EPW_ROUTE_AGAIN, counts = half == EPW_HALF_COUNTS;
    REQUIRE(route <= EPW_ROUTE_AGAIN, EPW_ERR_INVALID, "route is %u, must be one of EPW_ROUTE_*", route);
    REQUIRE(half <= EPW_HALF_COUNTS, EPW_ERR_INVALID, "half is %u, must be one of EPW_HALF_*", half);
    epw_row_format format;
    status = epw_input_check(where, &p->config.ep, in, !again, &format);
    if (status != EPW_OK) return status;
    REQUIRE(in->layout == EPW_EXPERT_MAJOR, EPW_ERR_INVALID,
            "input.layout is %u: leave it as it is initialised, output.layout says how rows are laid out",
            in->layout);
    REQUIRE(!r->busy, EPW_ERR_STATE, "the routing has an operation under way");
    REQUIRE(!(again && counts), EPW_ERR_INVALID,
            "half is EPW_HALF_COUNTS, and a routing that is used again has "
            "no counts to wait for");
    if (again) status = check_again(where, r, in);
    if (status == EPW_OK && out != NULL) status = check_output(where, p, r, again, out);
    if (status == EPW_OK) status = check_outcome(where, outcome);
    if (status == EPW_OK && !again && p->gpu == NULL) status = check_ids(where, &p->config.ep, in);
    if (status != EPW_OK) return status;
    REQUIRE(
        out != NULL || counts || in->tokens < p->layout.slots, EPW_ERR_LIMIT,
        "tokens is %u, a sending half has room for %u in rings of %u: raise ring_tokens, or dispatch in one",
        in->tokens, p->layout.slots - 1, p->layout.slots);
    uint32_t index = again ? r->lane : in->lane < 0 ? 0 : (uint32_t)in->lane;
    if (p->gpu != NULL) {
        epw_prefill_gpu_dispatch_call call = {in, &format, out, index, again, counts};
        return epw_prefill_gpu_dispatch(p, r, &call, outcome);
    }
    epw_prefill_lane *lane = &p->lanes[index];
    status = take_lane(p, lane, in->nonblocking != 0, where);
    if (status != EPW_OK) return status;
    status = again ? epw_routing_check_epoch(r, lane, where) : epw_routing_take(r, in->tokens, where);
    if (status != EPW_OK) {
        epw_prefill_unlock(p, lane);
        return status;
    }
    r->made = again;
    r->busy = true;
    r->lane = index;
    r->epoch = epw_word_epoch(lane->own_word);
    if (again) {
        renew_weights(r, p, in);
    } else {
        epw_routing_number(r, lane, in);
    }
    lane->kind = EPW_KIND_DISPATCH;
    lane->routing = r;
    lane->input = *in;
    lane->format = format;
    lane->hash = format.hash;
    lane->again = again;
    lane->nonblocking = in->nonblocking != 0;
    lane->deadline_ns = in->deadline_ns ? in->deadline_ns : p->config.ep.deadline_ns;
    lane->streams_rows = (uint64_t)in->tokens * p->layout.row_bytes > CACHED_BYTES;
    lane->sends = out != NULL || !counts;
    lane->receives = out != NULL;
    lane->placed = false;
    lane->goal = out != NULL ? EPW_GOAL_ALL : counts ? EPW_GOAL_COUNTS : EPW_GOAL_SENT;
    if (out != NULL) set_output(lane, r, out);
    epw_prefill_begin(p, lane);
    return epw_prefill_run(p, lane, outcome);
}

epw_status epw_prefill_receive(epw_prefill *p, epw_routing *r, const epw_prefill_output *out,
                               epw_outcome *outcome) {
    epw_where where = {"receive", -1, -1};
    epw_status status = check_both(p, r, &where);
    if (status != EPW_OK) return status;
    if (p->gpu != NULL) {
        status = check_output(where, p, r, epw_prefill_gpu_uses_again(r), out);
        return status == EPW_OK ? epw_prefill_gpu_receive(p, r, out, outcome) : status;
    }
    epw_prefill_lane *lane;
    status = find_lane(p, r, EPW_KIND_DISPATCH, true, where, &lane);
    if (status != EPW_OK) return status;
    status = check_output(where, p, r, lane->again, out);
    if (status == EPW_OK) status = check_outcome(where, outcome);
    if (status != EPW_OK) {
        epw_prefill_unlock(p, lane);
        return status;
    }
    set_output(lane, r, out);
    lane->nonblocking = out->nonblocking != 0;
    lane->sends = lane->receives = true;
    lane->goal = EPW_GOAL_ALL;
    epw_prefill_begin_wait(p, lane);
    return epw_prefill_run(p, lane, outcome);
}

/* Whether all counts of the lane's dispatch have arrived, or will never. After a sending half nothing else
 * looks for them: the first such look begins a wait, in which silent peers are given up as in any other. */
static bool has_counts(epw_prefill *p, epw_prefill_lane *lane) {
    const epw_stream *streams = lane->streams[EPW_KIND_DISPATCH];
    if (epw_streams_opened(streams, p->layout.ranks)) return true;
    if (!is_half_due(lane)) return false; /* a call or epw_prefill_poll looks */
    if (lane->goal == EPW_GOAL_NONE) {
        lane->goal = EPW_GOAL_COUNTS;
        epw_prefill_begin_wait(p, lane);
    }
    return epw_prefill_step(p, lane) == EPW_OK;
}

epw_status epw_prefill_received(epw_prefill *p, epw_routing *r, uint32_t layout, uint32_t alignment,
                                uint64_t *rows, uint32_t *counts, uint32_t *source_counts) {
    epw_where where = {"received", -1, -1};
    epw_status status = check_both(p, r, &where);
    if (status == EPW_OK) status = check_layout(where, layout, alignment);
    if (status != EPW_OK) return status;
    REQUIRE(rows != NULL, EPW_ERR_INVALID, "rows is NULL");
    if (p->gpu != NULL)
        return epw_prefill_gpu_received(p, r, layout, alignment > 0 ? alignment : 1, rows, counts,
                                        source_counts);
    epw_remotes_drive(&p->peers, epw_now_ns());
    epw_prefill_lane *lane = &p->lanes[r->lane];
    pthread_mutex_lock(&lane->lock);
    bool known =
        r->made || (r->busy && lane->routing == r && lane->kind == EPW_KIND_DISPATCH && has_counts(p, lane));
    status = known ? EPW_OK : r->busy ? EPW_PENDING : EPW_ERR_STATE;
    if (known) {
        uint32_t local = p->layout.local_experts;
        *rows = epw_routing_extent(r, layout, alignment > 0 ? alignment : 1);
        for (uint32_t e = 0; e < local && counts != NULL; e++) {
            counts[e] = 0;
            for (uint32_t s = 0; s < p->layout.ranks; s++) counts[e] += r->counts[(size_t)s * local + e];
        }
        if (source_counts != NULL)
            memcpy(source_counts, r->announced, p->layout.ranks * sizeof source_counts[0]);
    }
    epw_prefill_unlock(p, lane);
    if (status == EPW_ERR_STATE)
        return epw_fail(status, where, "the routing has not been filled by a dispatch");
    return status;
}

/* ---- combine ---- */

static epw_status check_combine(epw_where where, const epw_prefill *p, const epw_routing *r,
                                const epw_prefill_combine_input *in) {
    REQUIRE(in != NULL, EPW_ERR_INVALID, "input is NULL");
    REQUIRE(in->size == sizeof *in, EPW_ERR_INVALID,
            "input.size is %u, this library's is %zu: use EPW_PREFILL_COMBINE_INPUT_INIT", in->size,
            sizeof *in);
    bool ordered = in->mode == EPW_COMBINE_ORDERED, by_expert = epw_by_expert(r->layout);
    REQUIRE(in->mode <= EPW_COMBINE_ORDERED, EPW_ERR_INVALID, "mode is %u, must be one of EPW_COMBINE_*",
            in->mode);
    REQUIRE(!ordered || by_expert, EPW_ERR_INVALID,
            "mode is EPW_COMBINE_ORDERED, and rows by source are reduced over experts already");
    uint32_t local = p->layout.local_experts, answers = p->layout.topk < local ? p->layout.topk : local;
    REQUIRE(!ordered || p->layout.slots >= answers, EPW_ERR_LIMIT,
            "ring_tokens is %u, EPW_COMBINE_ORDERED needs %u: a slot for each of a token's experts on a rank",
            p->layout.slots, answers);
    REQUIRE(in->width % 8 == 0 && in->width <= p->config.ep.hidden, EPW_ERR_LIMIT,
            "width is %u, must be a multiple of 8 and at most hidden %u", in->width, p->config.ep.hidden);
    /* On a GPU it is not known here how many rows came. */
    bool none = r->capacity == 0 || (p->gpu == NULL && r->row_first[p->layout.ranks] == 0);
    REQUIRE(in->expert_out != NULL || none, EPW_ERR_INVALID, "expert_out is NULL");
    REQUIRE(
        in->row_weights == NULL || (by_expert && !ordered), EPW_ERR_INVALID,
        "row_weights are given, which only rank-reduced combine of rows by expert applies: leave them out");
    REQUIRE(
        in->topk_weights == NULL || ordered, EPW_ERR_INVALID,
        "topk_weights are given, which rank-reduced combine does not apply: give row_weights, or weights to "
        "dispatch");
    REQUIRE(
        !by_expert || ordered || r->weighted || in->row_weights != NULL, EPW_ERR_INVALID,
        "rank-reduced combine applies the weights at the expert's rank: give topk_weights to dispatch, or "
        "row_weights");
    REQUIRE(!ordered || r->weighted || in->topk_weights != NULL || r->tokens == 0, EPW_ERR_INVALID,
            "topk_weights is NULL and dispatch had none");
    return epw_input_check_deadline(where, &p->config.ep, in->deadline_ns);
}

static epw_status check_sums(epw_where where, const epw_routing *r, const epw_prefill_combine_output *out) {
    REQUIRE(out != NULL, EPW_ERR_INVALID, "output is NULL");
    REQUIRE(out->size == sizeof *out, EPW_ERR_INVALID,
            "output.size is %u, this library's is %zu: use EPW_PREFILL_COMBINE_OUTPUT_INIT", out->size,
            sizeof *out);
    REQUIRE(out->out != NULL || r->tokens == 0, EPW_ERR_INVALID, "output.out is NULL");
    return EPW_OK;
}

/* A sending half writes all its answers before the peers' receiving halves, so the ring must hold them. */
static epw_status check_split(epw_where where, const epw_prefill *p, const epw_routing *r, bool ordered) {
    for (uint32_t s = 0; s < p->layout.ranks; s++) {
        uint64_t answers = epw_routing_answers(r, s, ordered);
        if (answers < p->layout.slots || s == p->config.ep.rank) continue;
        where.peer = (int)s;
        return epw_fail(
            EPW_ERR_LIMIT, where,
            "%llu answers go to it, a sending half has room for %u in rings of %u: raise ring_tokens, "
            "or combine in one",
            (unsigned long long)answers, p->layout.slots - 1, p->layout.slots);
    }
    return EPW_OK;
}

epw_status epw_prefill_combine(epw_prefill *p, epw_routing *r, const epw_prefill_combine_input *in,
                               const epw_prefill_combine_output *out, epw_outcome *outcome) {
    epw_where where = {"combine", -1, -1};
    epw_status status = check_both(p, r, &where);
    if (status == EPW_OK) status = check_made(where, r);
    if (status == EPW_OK) status = check_combine(where, p, r, in);
    if (status == EPW_OK && out != NULL) status = check_sums(where, r, out);
    if (status == EPW_OK) status = check_outcome(where, outcome);
    bool splits = status == EPW_OK && out == NULL && p->gpu == NULL; /* for GPUs see gpu/call.c */
    if (splits) status = check_split(where, p, r, in->mode == EPW_COMBINE_ORDERED);
    if (status != EPW_OK) return status;
    uint32_t width = in->width != 0 ? in->width : p->config.ep.hidden;
    uint32_t hash = mix(mix(mix(2166136261u, in->mode), width), in->row_values != NULL);
    if (p->gpu != NULL) return epw_prefill_gpu_combine(p, r, in, hash, out, outcome);
    epw_prefill_lane *lane = &p->lanes[r->lane];
    status = take_lane(p, lane, in->nonblocking != 0, where);
    if (status != EPW_OK) return status;
    status = epw_routing_check_epoch(r, lane, where);
    if (status != EPW_OK) {
        epw_prefill_unlock(p, lane);
        return status;
    }
    r->busy = true;
    lane->kind = EPW_KIND_COMBINE;
    lane->routing = r;
    lane->combine = *in;
    lane->hash = hash;
    lane->nonblocking = in->nonblocking != 0;
    lane->deadline_ns = in->deadline_ns ? in->deadline_ns : p->config.ep.deadline_ns;
    lane->streams_rows = (uint64_t)r->tokens * p->layout.row_bytes > CACHED_BYTES;
    lane->sends = lane->placed = true;
    lane->receives = out != NULL;
    lane->goal = out != NULL ? EPW_GOAL_ALL : EPW_GOAL_SENT;
    if (out != NULL) lane->sums = *out;
    epw_prefill_begin(p, lane);
    return epw_prefill_run(p, lane, outcome);
}

epw_status epw_prefill_collect(epw_prefill *p, epw_routing *r, const epw_prefill_combine_output *out,
                               epw_outcome *outcome) {
    epw_where where = {"collect", -1, -1};
    epw_status status = check_both(p, r, &where);
    if (status == EPW_OK) status = check_sums(where, r, out);
    if (status == EPW_OK) status = check_outcome(where, outcome);
    if (status != EPW_OK) return status;
    if (p->gpu != NULL) return epw_prefill_gpu_collect(p, r, out, outcome);
    epw_prefill_lane *lane;
    status = find_lane(p, r, EPW_KIND_COMBINE, true, where, &lane);
    if (status != EPW_OK) return status;
    lane->sums = *out;
    lane->nonblocking = out->nonblocking != 0;
    lane->receives = true;
    lane->goal = EPW_GOAL_ALL;
    epw_prefill_begin_wait(p, lane);
    return epw_prefill_run(p, lane, outcome);
}

/* ---- continuing, waiting ---- */

epw_status epw_prefill_poll(epw_prefill *p, epw_routing *r, epw_outcome *outcome) {
    epw_where where = {"poll", -1, -1};
    epw_status status = check_both(p, r, &where);
    if (status == EPW_OK) status = check_outcome(where, outcome);
    if (status != EPW_OK) return status;
    if (p->gpu != NULL) return epw_prefill_gpu_poll(p, r, outcome);
    epw_remotes_drive(&p->peers, epw_now_ns());
    epw_prefill_lane *lane;
    status = find_lane(p, r, 0, false, where, &lane);
    if (status != EPW_OK) return status;
    status = epw_prefill_step(p, lane);
    if (status == EPW_OK) status = epw_prefill_end(p, lane, outcome);
    epw_prefill_unlock(p, lane);
    return status;
}

static bool is_running(const epw_prefill_lane *lane) {
    return lane->running && lane->goal != EPW_GOAL_NONE;
}

void epw_prefill_look(epw_awaited *self, bool sleeps, uint64_t now) {
    epw_prefill *p = self->owner;
    uint32_t index = (uint32_t)self->of;
    if (p->gpu != NULL) {
        epw_prefill_gpu_look(self, now);
        return;
    }
    epw_prefill_lane *lane = &p->lanes[index];
    epw_bell_look(&p->peers, sleeps, self);
    if (pthread_mutex_trylock(&lane->lock) != 0) {
        epw_awaited_busy(self);
        return;
    }
    self->ns = is_running(lane) ? epw_prefill_rest_ns(p, lane, self->since, now) : 0;
    self->ready = self->ns == 0;
    self->young = epw_wait_is_young(&p->peers, lane->advanced, now);
    epw_prefill_unlock(p, lane);
}

epw_status epw_prefill_tend(epw_prefill *p, uint32_t index) {
    if (p->gpu != NULL || epw_peers_inherited(&p->peers)) return EPW_OK;
    epw_remotes_drive(&p->peers, epw_now_ns());
    epw_prefill_lane *lane = &p->lanes[index];
    if (pthread_mutex_trylock(&lane->lock) != 0) return EPW_PENDING;
    epw_status status = EPW_OK;
    if (lane->running && epw_prefill_abandoned(lane)) {
        lane->tended = true;
        lane->overdue = false;
        status = epw_prefill_step(p, lane);
        lane->tended = false;
        if (status == EPW_OK) (void)epw_prefill_end(p, lane, NULL);
        if (status == EPW_PENDING && lane->overdue) status = EPW_OK; /* the lane's next call goes on */
    }
    epw_prefill_unlock(p, lane);
    return status;
}

epw_status epw_prefill_await(epw_prefill *p, uint32_t index, uint64_t timeout_ns) {
    epw_where where = {"await", -1, -1};
    REQUIRE(p != NULL, EPW_ERR_INVALID, "prefill is NULL");
    where.rank = (int)p->config.ep.rank;
    REQUIRE(index < p->config.ep.lanes, EPW_ERR_LIMIT, "lane is %u, must be below %u", index,
            p->config.ep.lanes);
    if (p->gpu != NULL) return epw_prefill_gpu_await(p, index, timeout_ns);
    epw_prefill_lane *lane = &p->lanes[index];
    pthread_mutex_lock(&lane->lock);
    bool running = is_running(lane);
    epw_prefill_unlock(p, lane);
    REQUIRE(running, EPW_ERR_STATE, "no operation runs on lane %u", index);
    epw_awaited one = {.look = epw_prefill_look, .owner = p, .of = index, .limit_ns = timeout_ns};
    epw_awaited *all[] = {&one};
    epw_await_any(all, 1, NULL, 0);
    return EPW_OK;
}

epw_status epw_prefill_stream_wait(epw_prefill *p, const epw_routing *r, void *stream) {
    epw_where where = {"stream_wait", -1, -1};
    epw_status status = check_both(p, r, &where);
    if (status != EPW_OK) return status;
    if (p->gpu != NULL) return epw_prefill_gpu_stream_wait(p, r, stream);
    return epw_fail(EPW_ERR_STATE, where,
                    "on the host device calls are on no stream: see epw_prefill_await and epw_prefill_poll");
}

epw_status epw_prefill_cancel(epw_prefill *p, epw_routing *r) {
    epw_where where = {"cancel", -1, -1};
    epw_status status = check_both(p, r, &where);
    if (status != EPW_OK) return status;
    REQUIRE(!epw_peers_inherited(&p->peers), EPW_ERR_STATE,
            "the operation is the parent's: a forked child can only free the routing");
    if (p->gpu != NULL) return epw_prefill_gpu_cancel(p, r);
    epw_prefill_lane *lane = &p->lanes[r->lane];
    pthread_mutex_lock(&lane->lock);
    if (lane->running && lane->routing == r) {
        r->busy = false;
        if (lane->kind == EPW_KIND_DISPATCH) r->made = epw_routing_is_spared(lane->again, &lane->input);
        epw_prefill_give_up(p, lane);
        lane->routing = NULL;
        if (epw_prefill_step(p, lane) == EPW_OK) (void)epw_prefill_end(p, lane, NULL);
    }
    epw_prefill_unlock(p, lane);
    return EPW_OK;
}

/* ---- routings ---- */

epw_status epw_routing_create(epw_prefill *p, epw_routing **out) {
    epw_where where = {"routing", -1, -1};
    REQUIRE(p != NULL && out != NULL, EPW_ERR_INVALID, "%s is NULL", p == NULL ? "prefill" : "out");
    where.rank = (int)p->config.ep.rank;
    epw_routing *r = calloc(1, sizeof *r);
    REQUIRE(r != NULL, EPW_ERR_NO_MEMORY, "no memory for a routing");
    r->of = p;
    r->layout = EPW_PACKED;
    epw_status status = p->gpu != NULL ? epw_prefill_gpu_make_routing(p, r, where) : EPW_OK;
    if (status != EPW_OK) {
        free(r);
        return status;
    }
    *out = r;
    return EPW_OK;
}

uint32_t epw_routing_lane(const epw_routing *r) {
    return r != NULL ? r->lane : 0;
}

void epw_routing_free(epw_routing *r) {
    if (r == NULL) return;
    epw_prefill *p = r->of;
    (void)epw_prefill_cancel(p, r);
    epw_prefill_gpu_free_routing(p, r);
    free(r->own);
    free(r->come);
    free(r);
}
