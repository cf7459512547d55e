/* What a C program can do with epwire.h alone: sizes, every way to call a step, outcomes of steps with
 * missing peers, numerics. Errors are in misuse.c. */
#include "group.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* ---- Sizes ---- */

static void plan_and_row_shapes_say_every_size(void) {
    epw_config config = config_of(0, 2);
    config.opaque_bytes = 96;
    epw_plan plan = EPW_PLAN_INIT;
    CHECK_OK(epw_plan_make(&config, &plan));
    CHECK(plan.local_experts == EXPERTS / 2 && plan.rows == 2 * TOKENS);
    CHECK(plan.slot_bytes >= plan.slot_header_bytes + HIDDEN * 2);
    CHECK(plan.zero_copy_bytes == 2 * plan.local_experts * plan.rows * HIDDEN * 2);
    CHECK(plan.ordered_bytes == plan.combine_bytes * (TOPK - 1));
    uint64_t sum = plan.control_bytes + plan.dispatch_bytes + plan.combine_bytes + plan.ordered_bytes +
                   plan.zero_copy_bytes;
    CHECK(plan.window_bytes >= sum && plan.window_bytes < sum + 4096 && plan.private_bytes > 0);

    /* What is sent to peers behind queues: counts, rows and answers of each; the host has no inbox. */
    uint64_t travels = plan.dispatch_bytes + plan.combine_bytes + plan.ordered_bytes;
    CHECK(plan.image_bytes > travels && plan.image_bytes < travels + plan.control_bytes);
    CHECK(plan.ring_bytes > 0 && plan.inbox_bytes == 0);
    uint64_t needed = plan.ring_bytes;
    config.queue_depth = EPW_QUEUE_DEPTH_MIN;
    CHECK_OK(epw_plan_make(&config, &plan));
    CHECK(plan.ring_bytes == needed); /* by operations */
    config.queue_depth = EPW_QUEUE_DEPTH_MAX;
    CHECK_OK(epw_plan_make(&config, &plan));
    CHECK(plan.ring_bytes >= (uint64_t)config.queue_depth * 64 * config.lanes && plan.ring_bytes > needed);
    config.queue_depth--;
    CHECK(epw_plan_make(&config, &plan) == EPW_ERR_INVALID);
    config.queue_depth = 0;
    config.paths = EPW_PATH_ALL & ~(uint32_t)EPW_PATH_QUEUE;
    CHECK_OK(epw_plan_make(&config, &plan));
    CHECK(plan.image_bytes == 0 && plan.ring_bytes == 0);
    config.paths = EPW_PATH_ALL;

    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.topk = TOPK;
    static const uint32_t expected[5][3] = {
        {HIDDEN * 2, 0, 0}, {HIDDEN, 2, 4}, {HIDDEN, 2, 4}, {HIDDEN, 2, 1}, {80, 8, 2}};
    for (in.payload = EPW_PAYLOAD_SAME; in.payload <= EPW_PAYLOAD_OPAQUE; in.payload++) {
        epw_row_shape shape = EPW_ROW_SHAPE_INIT;
        if (in.payload == EPW_PAYLOAD_OPAQUE)
            in.opaque_row_bytes = 80, in.scale_count = 8, in.scale_bytes = 2;
        CHECK_OK(epw_row_shape_make(&config, &in, &shape));
        const uint32_t *want = expected[in.payload];
        CHECK(shape.payload_bytes == want[0] && shape.scale_count == want[1] && shape.scale_bytes == want[2]);
        CHECK(shape.rank_rows_bytes == plan.rows * want[0]);
        CHECK(shape.expert_rows_bytes == shape.rank_rows_bytes * plan.local_experts);
        CHECK(shape.rank_scales_bytes >= plan.rows * want[1] * want[2]);
        CHECK(shape.expert_scales_bytes == shape.rank_scales_bytes * plan.local_experts);
    }
    epw_row_shape shape = EPW_ROW_SHAPE_INIT;
    REFUSED(epw_row_shape_make(&config, &in, &shape), EPW_ERR_INVALID, "row_shape", 0, -1, "payload is 5");
    in.payload = EPW_PAYLOAD_OPAQUE;
    in.scale_count = 9;
    REFUSED(epw_row_shape_make(&config, &in, &shape), EPW_ERR_LIMIT, "row_shape", 0, -1, "opaque_bytes 96");
}

/* ---- A step, in every way to call it ---- */

enum { NONBLOCKING = 1, SPLIT = 2, DIRECT = 4, WAYS = 8 };

/* Runs a call to its end, which must be complete. */
static void finish(epw_buffer *b, epw_handle handle, epw_status status, const epw_dispatch_input *how,
                   epw_outcome *outcome) {
    CHECK(status != EPW_PENDING || how->nonblocking);
    while (status == EPW_PENDING) {
        CHECK_OK(epw_await(b, handle, MS));
        status = epw_poll(b, handle, outcome);
    }
    CHECK_OK(status);
    CHECK_MSG(!outcome->degraded, "peer %u, cause %u", outcome->record.peer, outcome->record.cause);
}

/* Polls until the receiving half need not wait, for at most 20 s. */
static void until_ready(epw_buffer *b, epw_handle handle) {
    epw_status status = EPW_PENDING;
    for (int i = 0; i < 20000 && status == EPW_PENDING; i++) {
        CHECK_OK(epw_await(b, handle, MS));
        status = epw_ready(b, handle);
    }
    CHECK_OK(status);
}

/* The memory of a rank for one step. */
typedef struct received {
    _Alignas(64) uint16_t rows[EXPERTS * RANKS_MAX * TOKENS * HIDDEN],
        answers[EXPERTS * RANKS_MAX * TOKENS * HIDDEN];
    _Alignas(64) uint16_t result[TOKENS * HIDDEN];
    float scales[EXPERTS * RANKS_MAX * TOKENS * HIDDEN / EPW_FP8_BLOCK];
    uint32_t sideband[EXPERTS * RANKS_MAX * TOKENS][2], source_token[EXPERTS * RANKS_MAX * TOKENS];
    uint32_t counts[EXPERTS], source_counts[RANKS_MAX], ranges[EXPERTS * RANKS_MAX][2];
    uint32_t expert_rows[EXPERTS * RANKS_MAX * TOKENS];
    int32_t row_experts[RANKS_MAX * TOKENS][TOPK];
    float row_weights[RANKS_MAX * TOKENS][TOPK];
    uint16_t contributions[TOKENS][2];
    uint64_t totals[EXPERTS], wait_ns[RANKS_MAX];
} received;

typedef struct step {
    epw_buffer *buffer;
    uint32_t rank, ranks;
    uint32_t layout, mode, payload, ways;
    epw_plan plan;
    received *at;
} step;

/* Writes row `row` of list `list`, times `factor`, to where combine reads it. */
static void answer_row(const step *s, const epw_rows_view *area, uint64_t list, uint64_t row, float factor) {
    uint64_t at = list * s->plan.rows + row;
    uint16_t plain[HIDDEN];
    memcpy(plain, s->at->rows + at * HIDDEN, sizeof plain);
    if (s->payload != EPW_PAYLOAD_SAME) {
        CHECK_OK(epw_dequantize_fp8(s->payload, EPW_BF16, 1, HIDDEN, (uint8_t *)s->at->rows + at * HIDDEN,
                                    s->at->scales + at * (HIDDEN / EPW_FP8_BLOCK), plain));
    }
    uint16_t *to = s->ways & DIRECT ? (uint16_t *)((unsigned char *)area->rows + at * area->stride)
                                    : s->at->answers + at * HIDDEN;
    for (uint32_t c = 0; c < HIDDEN; c++) to[c] = bf16(from_bf16(plain[c]) * factor);
}

static void check_expert_major(const step *s, const epw_rows_view *area) {
    const received *r = s->at;
    for (uint32_t e = 0; e < s->plan.local_experts; e++) {
        uint32_t next = 0;
        for (uint32_t source = 0; source < s->ranks; source++) {
            const uint32_t *range = r->ranges[e * s->ranks + source];
            CHECK(range[0] == next);
            next += range[1];
            for (uint32_t row = range[0]; row < next; row++) {
                uint64_t at = e * s->plan.rows + row;
                CHECK(r->sideband[at][0] == source && r->sideband[at][1] == r->source_token[at]);
                CHECK(row == range[0] || r->source_token[at - 1] < r->source_token[at]);
                answer_row(s, area, e, row, 1);
            }
        }
        CHECK(r->counts[e] == next && r->totals[e] >= next);
    }
}

static void check_rank_major(const step *s, const epw_rows_view *area, epw_handle handle) {
    const received *r = s->at;
    epw_rows_view view = EPW_ROWS_VIEW_INIT;
    CHECK_OK(epw_dispatched_rows(s->buffer, handle, &view));
    CHECK(view.stride == s->plan.slot_bytes && (view.scales == NULL) == (s->payload == EPW_PAYLOAD_SAME));
    size_t bytes = s->payload == EPW_PAYLOAD_SAME ? HIDDEN * 2 : HIDDEN;
    uint32_t listed[EXPERTS] = {0};
    for (uint32_t source = 0; source < s->ranks; source++) {
        CHECK(view.source_counts[source] == r->source_counts[source]);
        for (uint32_t i = 0; i < r->source_counts[source]; i++) {
            uint64_t at = source * TOKENS + i;
            CHECK(memcmp((unsigned char *)view.rows + at * view.stride, (unsigned char *)r->rows + at * bytes,
                         bytes) == 0);
            CHECK(r->sideband[at][0] == source && r->sideband[at][1] == r->source_token[at]);
            float factor = 0;
            for (uint32_t j = 0; j < TOPK; j++) {
                int32_t e = r->row_experts[at][j];
                CHECK(e >= -1 && e < (int32_t)s->plan.local_experts);
                CHECK(r->row_weights[at][j] == (e < 0 ? 0.0f : 0.25f));
                if (e >= 0) CHECK(r->expert_rows[(uint32_t)e * s->plan.rows + listed[e]++] == at);
                factor += r->row_weights[at][j];
            }
            answer_row(s, area, 0, at, factor);
        }
    }
    for (uint32_t e = 0; e < s->plan.local_experts; e++) {
        const uint32_t *range = r->ranges[e * s->ranks + s->ranks - 1];
        CHECK(listed[e] == r->counts[e] && range[0] + range[1] == listed[e]);
    }
}

static void run_step(const step *s) {
    epw_buffer *b = s->buffer;
    received *r = s->at;
    batch made;
    epw_handle handle;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    int split = s->ways & SPLIT;
    epw_dispatch_input in = make_batch(&made, s->rank);
    in.layout = s->layout;
    in.payload = s->payload;
    in.nonblocking = s->ways & NONBLOCKING;
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    out.nonblocking = in.nonblocking;
    out.scale_order = 1;
    out.rows = r->rows;
    out.scales = r->scales;
    out.sideband = r->sideband;
    out.counts = r->counts;
    out.source_counts = r->source_counts;
    out.ranges = r->ranges[0];
    out.source_token = r->source_token;
    if (s->layout == EPW_RANK_MAJOR) {
        out.row_experts = r->row_experts[0];
        out.row_weights = r->row_weights[0];
        out.expert_rows = r->expert_rows;
    }
    out.expert_totals = r->totals;
    out.wait_ns = r->wait_ns;
    epw_status status = epw_dispatch(b, &in, split ? NULL : &out, &handle, &outcome);
    finish(b, handle, status, &in, &outcome);
    if (split) {
        until_ready(b, handle);
        finish(b, handle, epw_dispatch_receive(b, handle, &out, &outcome), &in, &outcome);
    }
    REFUSED(epw_ready(b, handle), EPW_ERR_STATE, "ready", (int)s->rank, -1, "combine comes next");
    REFUSED(epw_poll(b, handle, &outcome), EPW_ERR_STATE, "poll", (int)s->rank, -1, "no operation runs");
    REFUSED(epw_await(b, handle, MS), EPW_ERR_STATE, "await", (int)s->rank, -1, "no operation runs");

    epw_rows_view area = EPW_ROWS_VIEW_INIT;
    if (s->ways & DIRECT) CHECK_OK(epw_next_combine_buffer(b, handle, &area));
    if (s->layout == EPW_EXPERT_MAJOR) check_expert_major(s, &area);
    if (s->layout == EPW_RANK_MAJOR) check_rank_major(s, &area, handle);

    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    answer.mode = s->mode;
    answer.expert_out = s->ways & DIRECT ? NULL : r->answers;
    answer.nonblocking = in.nonblocking;
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    result.out = r->result;
    result.nonblocking = in.nonblocking;
    result.contributions = r->contributions[0];
    result.wait_ns = r->wait_ns;
    status = epw_combine(b, handle, &answer, split ? NULL : &result, &outcome);
    finish(b, handle, status, &in, &outcome);
    if (split) {
        until_ready(b, handle);
        finish(b, handle, epw_combine_receive(b, handle, &result, &outcome), &in, &outcome);
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        uint32_t routed = t == 0 ? TOPK - 1 : TOPK, differ = 0;
        CHECK(r->contributions[t][0] == routed && r->contributions[t][1] == routed);
        for (uint32_t i = t * HIDDEN; i < (t + 1) * HIDDEN; i++) {
            differ += r->result[i] != bf16(from_bf16(made.x[i]) * 0.25f * (float)routed);
        }
        CHECK_MSG(differ == 0, "token %u: layout %u, mode %u, payload %u, ways %u", t, s->layout, s->mode,
                  s->payload, s->ways);
    }
    consumed_handles_are_refused(b, (int)s->rank, handle);
}

static void *every_way(void *argument) {
    step s = *(step *)argument;
    CHECK(epw_last_error()[0] == 0); /* each thread has its own last error */
    s.at = aligned_alloc(64, (sizeof *s.at + 63) / 64 * 64);
    memset(s.at, 0, sizeof *s.at);
    const uint32_t payloads[] = {EPW_PAYLOAD_SAME, EPW_PAYLOAD_FP8_POW2};
    for (uint32_t i = 0; i < WAYS * 2 * 3; i++) {
        s.ways = i % WAYS;
        s.payload = payloads[i / WAYS % 2];
        s.layout = i / WAYS / 2 == 2 ? EPW_RANK_MAJOR : EPW_EXPERT_MAJOR;
        s.mode = i / WAYS / 2 == 1 ? EPW_COMBINE_ORDERED : EPW_COMBINE_RANK_REDUCED;
        run_step(&s);
    }
    free(s.at);
    return NULL;
}

static void every_layout_mode_and_way_gives_the_same_sums(void) {
    group g = make_group(RANKS_MAX, 10000 * MS);
    activate(&g, 1);
    pthread_t threads[RANKS_MAX];
    step steps[RANKS_MAX] = {0};
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        epw_config config = config_of(r, RANKS_MAX);
        steps[r] = (step){.buffer = g.of[r], .rank = r, .ranks = RANKS_MAX, .plan = EPW_PLAN_INIT};
        CHECK_OK(epw_plan_make(&config, &steps[r].plan));
        pthread_create(&threads[r], NULL, every_way, &steps[r]);
    }
    for (uint32_t r = 0; r < RANKS_MAX; r++) pthread_join(threads[r], NULL);
    destroy(&g);
}

/* ---- Outcomes ---- */

static void a_released_handle_answers_nothing(void) {
    group g = make_group(2, 1000 * MS);
    activate(&g, 1);
    static batch made[2];
    static _Alignas(64) uint16_t combined[TOKENS * HIDDEN];
    uint16_t contributions[TOKENS][2];
    epw_handle handles[2];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    result.out = combined;
    result.contributions = contributions[0];
    dispatch_both(&g, made, handles);
    CHECK_OK(epw_release(g.of[0], handles[0]));
    consumed_handles_are_refused(g.of[0], 0, handles[0]);
    CHECK_OK(epw_combine(g.of[1], handles[1], &answer, NULL, &outcome));
    AWAIT(epw_ready(g.of[1], handles[1]) == EPW_OK);
    CHECK(epw_ready(g.of[1], handles[1]) == EPW_OK);
    CHECK_OK(epw_combine_receive(g.of[1], handles[1], &result, &outcome));
    CHECK(outcome.degraded && outcome.missing.bits[0] == 1);
    CHECK(outcome.record.phase == EPW_PHASE_COMBINE_RECEIVE && outcome.record.cause == EPW_CAUSE_PARTIAL);
    CHECK(outcome.record.rank == 1 && outcome.record.peer == 0 && outcome.record.op == 1);
    for (uint32_t t = 0; t < TOKENS; t++) {
        uint32_t own = 0, routed = 0;
        for (uint32_t j = 0; j < TOPK; j++) {
            own += made[1].ids[t * TOPK + j] >= EXPERTS / 2;
            routed += made[1].ids[t * TOPK + j] >= 0;
        }
        CHECK(contributions[t][0] == own && contributions[t][1] == routed);
    }
    destroy(&g);
}

typedef struct lonely {
    epw_buffer *buffer;
    epw_outcome outcome;
    epw_handle handle;
    uint64_t took_ns;
} lonely;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * MS + (uint64_t)now.tv_nsec;
}

static void *dispatch_alone(void *argument) {
    lonely *l = argument;
    batch made;
    epw_dispatch_input in = make_batch(&made, 0);
    in.layout = EPW_RANK_MAJOR;
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    uint64_t began = now_ns();
    CHECK_OK(epw_dispatch(l->buffer, &in, &nothing, &l->handle, &l->outcome));
    l->took_ns = now_ns() - began;
    return NULL;
}

static void a_rank_that_never_shows_up_is_named_within_the_deadline(void) {
    const uint64_t deadline_ms = longer * 150, slack_ms = longer * 500; /* sanitizers are slow */
    group g = make_group(2, deadline_ms * MS);
    activate(&g, 3);
    lonely l = {.buffer = g.of[0], .outcome = EPW_OUTCOME_INIT};
    pthread_t thread;
    pthread_create(&thread, NULL, dispatch_alone, &l);
    pthread_join(thread, NULL);
    CHECK_MSG(l.took_ns >= deadline_ms * MS && l.took_ns < (deadline_ms + slack_ms) * MS, "%llu ns",
              (unsigned long long)l.took_ns);
    const epw_error_record *record = &l.outcome.record;
    CHECK(l.outcome.degraded && l.outcome.missing.bits[0] == 2);
    CHECK(record->phase == EPW_PHASE_DISPATCH_RECEIVE && record->cause == EPW_CAUSE_TIMEOUT);
    CHECK(record->rank == 0 && record->peer == 1 && record->lane == 0);
    CHECK(record->epoch == 3 && record->op == 1 && record->waiting == 1);
    CHECK(record->expected != 0 && record->seen != record->expected);
    CHECK(record->deadline_ns == deadline_ms * MS);
    CHECK(record->elapsed_ns >= record->deadline_ns && record->elapsed_ns <= l.took_ns);

    uint8_t reachable[EXPERTS];
    epw_membership now = membership_of(l.buffer);
    CHECK(now.suspects.bits[0] == 2 && now.silent.bits[0] == 2);
    CHECK_OK(epw_buffer_reachable_experts(l.buffer, reachable));
    for (uint32_t e = 0; e < EXPERTS; e++) CHECK(reachable[e] == (e < EXPERTS / 2));

    /* Rank 1 is missing from this handle's combine and from the next operation, which no longer waits for it.
     * Rank 1 learns that when it calls. */
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    static _Alignas(64) uint16_t combined[TOKENS * HIDDEN];
    result.out = combined;
    CHECK_OK(epw_combine(l.buffer, l.handle, &answer, &result, &l.outcome));
    CHECK(l.outcome.degraded && l.outcome.missing.bits[0] == 2);
    dispatch_alone(&l);
    CHECK(l.outcome.missing.bits[0] == 2 && record->cause == EPW_CAUSE_SUSPECTED);
    CHECK(l.took_ns < deadline_ms * MS);
    CHECK_OK(epw_release(l.buffer, l.handle));
    /* The probe's question follows, on the same queue, what rank 1 was told before. */
    if (path_of_test() == EPW_PATH_QUEUE) CHECK_OK(epw_buffer_probe(l.buffer, 1, 10000 * MS));
    lonely late = {.buffer = g.of[1], .outcome = EPW_OUTCOME_INIT};
    dispatch_alone(&late);
    CHECK(late.outcome.missing.bits[0] == 1 && late.outcome.record.cause == EPW_CAUSE_DROPPED);
    now = membership_of(late.buffer);
    CHECK(now.suspects.bits[0] == 1 &&
          now.silent.bits[0] == 0); /* it has been told, and has found nothing itself */
    CHECK_OK(epw_release(late.buffer, late.handle));

    /* A new membership of both starts afresh. A membership without rank 1 lets it be disconnected. */
    activate(&g, 4);
    static batch made[2];
    epw_handle handles[2];
    dispatch_both(&g, made, handles);
    for (int r = 0; r < 2; r++) CHECK_OK(epw_release(g.of[r], handles[r]));
    epw_mask alone = first_ranks(1);
    CHECK_OK(epw_buffer_set_active(l.buffer, &alone, 5, 0));
    CHECK_OK(epw_buffer_disconnect(l.buffer, 1));
    dispatch_alone(&l);
    CHECK(!l.outcome.degraded);
    destroy(&g);
}

/* ---- Numerics, version, names ---- */

static void quantisers_invert_each_other(void) {
    static batch made;
    static uint16_t back[TOKENS * HIDDEN];
    static uint8_t q[TOKENS * HIDDEN];
    float scales[TOKENS * HIDDEN / EPW_FP8_BLOCK];
    make_batch(&made, 1);
    for (uint32_t payload = EPW_PAYLOAD_FP8_POW2; payload <= EPW_PAYLOAD_FP8_UE8M0; payload++) {
        memset(back, 0xff, sizeof back);
        CHECK_OK(epw_quantize_fp8(payload, EPW_BF16, TOKENS, HIDDEN, made.x, q, scales));
        CHECK_OK(epw_dequantize_fp8(payload, EPW_BF16, TOKENS, HIDDEN, q, scales, back));
        CHECK(memcmp(back, made.x, sizeof back) ==
              0); /* few bits and power-of-two scales, so quantising is exact */
    }
}

static void names_and_version(void) {
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", EPW_VERSION_MAJOR, EPW_VERSION_MINOR, EPW_VERSION_PATCH);
    CHECK(strcmp(epw_version(), version) == 0);
    CHECK(strcmp(epw_status_name(EPW_ERR_LIMIT), "EPW_ERR_LIMIT") == 0);
    CHECK(strcmp(epw_status_name(EPW_PENDING), "EPW_PENDING") == 0);
    CHECK(strlen(epw_status_name(EPW_ERR_PEER - 1)) > 0); /* a status that this version does not have */
    CHECK(strcmp(epw_path_name(EPW_PATH_IPC), "CUDA IPC") == 0);
    CHECK(strcmp(epw_path_name(EPW_PATH_VMM | EPW_PATH_IPC), "unknown path") ==
          0); /* only single paths have names */
    epw_error_detail detail = EPW_ERROR_DETAIL_INIT;
    epw_last_error_detail(&detail); /* before anything failed */
    CHECK(detail.op[0] == 0 && detail.text[0] == 0 && detail.rank == -1 && detail.peer == -1);
}

int main(void) {
    names_and_version();
    plan_and_row_shapes_say_every_size();
    every_layout_mode_and_way_gives_the_same_sums();
    a_released_handle_answers_nothing();
    KEEP_TIME(a_rank_that_never_shows_up_is_named_within_the_deadline());
    quantisers_invert_each_other();
    return check_result("api");
}
