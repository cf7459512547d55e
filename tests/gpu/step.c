/* See step.h. */
#include "step.h"

#include "echo.h"

#include <string.h>

static const char *const fault_names[TRAFFIC_FAULTS] = {
    [TRAFFIC_COUNT] = "counts",
    [TRAFFIC_SOURCE_COUNT] = "source_counts",
    [TRAFFIC_RANGE] = "ranges",
    [TRAFFIC_SOURCE_TOKEN] = "source_token",
    [TRAFFIC_ROW_EXPERT] = "row_experts",
    [TRAFFIC_ROW_WEIGHT] = "row_weights",
    [TRAFFIC_EXPERT_ROW] = "expert_rows",
    [TRAFFIC_OFFSET] = "offset",
    [TRAFFIC_OVERFLOW] = "overflow",
    [TRAFFIC_ROW_SOURCE] = "row_source",
    [TRAFFIC_ROW_POSITION] = "row_position",
    [TRAFFIC_PAYLOAD] = "payload",
    [TRAFFIC_SCALE] = "scale",
    [TRAFFIC_CONTRIBUTIONS] = "contributions",
    [TRAFFIC_COMBINED] = "combined token",
};

step_kind step_kind_of(uint32_t rank, uint32_t index) {
    step_kind kind = {.layout = (index + rank) % 2 ? EPW_RANK_MAJOR : EPW_EXPERT_MAJOR,
                      .mode = EPW_COMBINE_RANK_REDUCED,
                      .scale_order = index / 2 % 2,
                      .split = index % 4 == 2};
    kind.in_place = kind.layout == EPW_RANK_MAJOR && index >= 4;
    if (index == 5) kind = (step_kind){.layout = EPW_EXPERT_MAJOR, .mode = EPW_COMBINE_ORDERED};
    return kind;
}

traffic_shape step_shape(const epw_config *config, uint64_t seed) {
    return (traffic_shape){.seed = seed,
                           .rank = config->rank,
                           .ranks = config->ranks,
                           .max_tokens = config->max_tokens,
                           .hidden = config->hidden,
                           .experts = config->experts,
                           .topk = config->topk};
}

void step_open(step_lane *l, epw_buffer *buffer, const epw_config *config, uint64_t seed, uint32_t lane,
               uint32_t payload, uint64_t iteration, uint64_t stride, uint64_t pause_ns) {
    *l = (step_lane){.shape = step_shape(config, seed), .buffer = buffer, .lane = lane, .payload = payload};
    epw_plan plan = EPW_PLAN_INIT;
    l->row = (epw_row_shape)EPW_ROW_SHAPE_INIT;
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.payload = payload;
    in.topk = config->topk;
    REQUIRE_OK(epw_plan_make(config, &plan));
    REQUIRE_OK(epw_row_shape_make(config, &in, &l->row));
    size_t experts = plan.local_experts, rows = plan.rows, tokens = config->max_tokens;
    traffic_memory *m = &l->memory;
    m->x = echo_take(tokens * config->hidden * 2, 0);
    m->ids = echo_take(tokens * config->topk * 4, 0);
    m->weights = echo_take(tokens * config->topk * 4, 0);
    m->rows = echo_take(l->row.expert_rows_bytes, 0);
    m->scales = echo_take(l->row.expert_scales_bytes + 16, 0);
    m->counts = echo_take(experts * 4, 0);
    m->source_counts = echo_take(config->ranks * 4, 0);
    m->ranges = echo_take(experts * config->ranks * 8, 0);
    m->source_token = echo_take(experts * rows * 4, 0);
    m->row_experts = echo_take(rows * config->topk * 4, 0);
    m->row_weights = echo_take(rows * config->topk * 4, 0);
    m->expert_rows = echo_take(experts * rows * 4, 0);
    m->expert_totals = echo_take(experts * 8, 0);
    m->expert_out = echo_take(experts * rows * config->hidden * 2, 0);
    m->out = echo_take(tokens * config->hidden * 2, 0);
    m->contributions = echo_take(tokens * 4, 0);
    m->state = echo_take(sizeof *m->state, 0);
    uint64_t all = (UINT64_C(1) << config->ranks) - 1;
    traffic_state state = {iteration - stride, stride, pause_ns, all, all, 0, 0, 0};
    REQUIRE_CUDA(cudaMemcpy(m->state, &state, sizeof state, cudaMemcpyHostToDevice));
    void *host = NULL, *device = NULL;
    REQUIRE_CUDA(cudaHostAlloc(&host, sizeof *l->faults, cudaHostAllocMapped));
    REQUIRE_CUDA(cudaHostGetDevicePointer(&device, host, 0));
    memset(host, 0, sizeof *l->faults);
    l->faults = host;
    m->faults = device;
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
    REQUIRE_CUDA(cudaEventCreateWithFlags(&l->event, cudaEventDisableTiming));
    REQUIRE_CUDA(traffic_prepare());
    REQUIRE_CUDA(cudaStreamSynchronize(NULL)); /* not the device: another rank may be capturing on it */
}

void step_close(step_lane *l) {
    traffic_memory *m = &l->memory;
    void *const arrays[] = {m->x,
                            m->ids,
                            m->weights,
                            m->rows,
                            m->scales,
                            m->counts,
                            m->source_counts,
                            m->ranges,
                            m->source_token,
                            m->row_experts,
                            m->row_weights,
                            m->expert_rows,
                            m->expert_totals,
                            m->expert_out,
                            m->out,
                            m->contributions,
                            m->state};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) REQUIRE_CUDA(cudaFree(arrays[i]));
    REQUIRE_CUDA(cudaFreeHost(l->faults));
    REQUIRE_CUDA(cudaEventDestroy(l->event));
    REQUIRE_CUDA(cudaStreamDestroy(l->stream));
}

void step_set_members(step_lane *l, uint64_t sources, uint64_t answers) {
    uint64_t both[2] = {sources, answers};
    REQUIRE_CUDA(cudaMemcpy(&l->memory.state->sources, both, sizeof both, cudaMemcpyHostToDevice));
}

void step_make(step_lane *l) {
    REQUIRE_CUDA(traffic_make(&l->shape, &l->memory, l->stream));
}

epw_handle step_dispatch(step_lane *l, step_kind kind, uint32_t tokens) {
    const traffic_memory *m = &l->memory;
    int rank_major = kind.layout == EPW_RANK_MAJOR, copied = !kind.in_place;
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = tokens;
    in.x = m->x;
    in.topk_idx = m->ids;
    in.topk_weights = m->weights;
    in.topk = l->shape.topk;
    in.payload = l->payload;
    in.layout = kind.layout;
    in.lane = (int32_t)l->lane;
    in.stream = l->stream;
    in.deadline_ns = l->deadline_ns;
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    out.scale_order = kind.scale_order;
    out.rows = copied ? m->rows : NULL;
    out.scales = copied && l->row.scale_count > 0 ? m->scales : NULL;
    out.counts = m->counts;
    out.source_counts = m->source_counts;
    out.ranges = m->ranges;
    out.source_token = m->source_token;
    out.row_experts = rank_major ? m->row_experts : NULL;
    out.row_weights = rank_major ? m->row_weights : NULL;
    out.expert_rows = rank_major ? m->expert_rows : NULL;
    /* The last block of a kernel that has something to add up ends differently. */
    out.expert_totals = l->lane == 0 ? m->expert_totals : NULL;
    out.wait_ns = l->wait_ns;
    out.stream = l->stream;
    epw_handle handle = 0;
    REQUIRE_OK(epw_dispatch(l->buffer, &in, kind.split ? NULL : &out, &handle, NULL));
    if (kind.split) REQUIRE_OK(epw_dispatch_receive(l->buffer, handle, &out, NULL));
    return handle;
}

static traffic_places places_of(const step_lane *l, step_kind kind, uint32_t tokens) {
    uint64_t rows = (uint64_t)l->shape.ranks * l->shape.max_tokens, count = l->row.scale_count;
    return (traffic_places){
        .layout = kind.layout,
        .payload = l->payload,
        .tokens = tokens,
        .rows = l->memory.rows,
        .scales = l->memory.scales,
        .expert_out = (unsigned char *)l->memory.expert_out,
        .row_stride = l->row.payload_bytes,
        .out_stride = (uint64_t)l->shape.hidden * 2,
        .scale_row_stride = kind.scale_order ? count * 4 : 4,
        .scale_block_stride = kind.scale_order ? 4 : rows * 4,
        .scale_list_stride = rows * count * 4,
    };
}

void step_answer(step_lane *l, step_kind kind, uint32_t tokens, epw_handle handle) {
    traffic_places p = places_of(l, kind, tokens);
    if (kind.in_place) {
        epw_rows_view view = EPW_ROWS_VIEW_INIT, answers = EPW_ROWS_VIEW_INIT;
        REQUIRE_OK(epw_dispatched_rows(l->buffer, handle, &view));
        REQUIRE_OK(epw_next_combine_buffer(l->buffer, handle, &answers));
        p.rows = view.rows;
        p.scales = view.scales;
        p.expert_out = answers.rows;
        p.row_stride = p.scale_row_stride = view.stride;
        p.scale_block_stride = 4;
        p.out_stride = answers.stride;
    }
    REQUIRE_CUDA(traffic_answer(&l->shape, &l->memory, &p, l->stream));
}

void step_combine(step_lane *l, step_kind kind, epw_handle handle) {
    epw_combine_input in = EPW_COMBINE_INPUT_INIT;
    epw_combine_output out = EPW_COMBINE_OUTPUT_INIT;
    in.mode = kind.mode;
    in.expert_out = kind.in_place ? NULL : l->memory.expert_out;
    in.stream = out.stream = l->stream;
    in.deadline_ns = l->deadline_ns;
    out.wait_ns = l->wait_ns;
    out.out = l->memory.out;
    out.contributions = l->memory.contributions;
    REQUIRE_OK(epw_combine(l->buffer, handle, &in, kind.split ? NULL : &out, NULL));
    if (kind.split) REQUIRE_OK(epw_combine_receive(l->buffer, handle, &out, NULL));
}

void step_check(step_lane *l, step_kind kind, uint32_t tokens) {
    traffic_places p = places_of(l, kind, tokens);
    REQUIRE_CUDA(traffic_check(&l->shape, &l->memory, &p, l->stream));
}

void step_run(step_lane *l, step_kind kind, uint32_t tokens) {
    step_make(l);
    epw_handle handle = step_dispatch(l, kind, tokens);
    step_answer(l, kind, tokens, handle);
    step_combine(l, kind, handle);
    step_check(l, kind, tokens);
}

void step_capture(cudaStream_t stream) {
    REQUIRE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

cudaGraphExec_t step_captured(cudaStream_t stream) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    REQUIRE_CUDA(cudaStreamEndCapture(stream, &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    REQUIRE_CUDA(cudaGraphUpload(exec, stream));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
    await_stream(stream, 60 * 1000 * MS, "upload of a graph");
    return exec;
}

cudaGraphExec_t step_graph(step_lane *l, uint32_t count, int checked) {
    uint32_t tokens = l->shape.max_tokens;
    step_capture(l->stream);
    for (uint32_t i = 0; i < count; i++) {
        step_kind kind = step_kind_of(l->shape.rank, i % STEP_KINDS);
        if (checked) {
            step_run(l, kind, tokens);
        } else {
            step_combine(l, kind, step_dispatch(l, kind, tokens));
        }
    }
    return step_captured(l->stream);
}

traffic_state step_state(const step_lane *l) {
    traffic_state state;
    REQUIRE_CUDA(cudaMemcpy(&state, l->memory.state, sizeof state, cudaMemcpyDeviceToHost));
    return state;
}

int step_faulty(const traffic_faults *f, const char *name, uint32_t rank, uint32_t lane) {
    /* Writer: a kernel, which writes `what` last. */
    uint32_t what = __atomic_load_n(&f->what, __ATOMIC_ACQUIRE);
    static const char *const layouts[] = {[EPW_EXPERT_MAJOR] = "expert-major",
                                          [EPW_RANK_MAJOR] = "rank-major",
                                          [EPW_PACKED] = "packed",
                                          [EPW_DENSE] = "dense"};
    if (what == 0) return 0;
    printf("%s: wrong %s on rank %u lane %u: iteration=%llu layout=%s source=%u token=%u row=%u expert=%d "
           "channel=%u expected=%016llx found=%016llx\n",
           name, what < TRAFFIC_FAULTS ? fault_names[what] : "fault", rank, lane,
           (unsigned long long)f->iteration, layouts[f->layout % 4], f->source, f->token, f->row, f->expert,
           f->channel, (unsigned long long)f->expected, (unsigned long long)f->found);
    fflush(stdout);
    return 1;
}

int step_wrong(const step_lane *l, const char *name) {
    return step_faulty(l->faults, name, l->shape.rank, l->lane);
}

void step_untroubled(const step_lane *l) {
    epw_error_record record;
    epw_membership now = EPW_MEMBERSHIP_INIT;
    uint32_t count = 0;
    REQUIRE_OK(epw_take_errors(l->buffer, &record, sizeof(epw_error_record), 1, &count, NULL));
    REQUIRE(count == 0, "rank %u lane %u op %u: peer %u lost in phase %u by cause %u after %llu us",
            l->shape.rank, record.lane, record.op, record.peer, record.phase, record.cause,
            (unsigned long long)(record.elapsed_ns / 1000));
    REQUIRE_OK(epw_buffer_membership(l->buffer, &now));
    REQUIRE(now.suspects.bits[0] == 0, "rank %u suspects %llx", l->shape.rank,
            (unsigned long long)now.suspects.bits[0]);
}
