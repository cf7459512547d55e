/* The GPU against the host, bit for bit: the same steps through epwire.h, once by host threads and once by
 * kernels, eager and as replayed graphs, in order and out of order. Ranks are threads of this process or,
 * with --processes, processes: first one per GPU for all GPUs (8 at most), then two ranks, then a single one.
 * `--ranks N`: rank r has GPU r % GPUs, and the SMs of a GPU are divided among its ranks, whose kernels wait
 * for each other; `--sms N`: N SMs each. Exit code 77, with the reason, if there is no GPU. */
#include "ranks.h"
#include "require.h"
#include "same_cases.h"
#include "step.h"

#include <pthread.h>
#include <stdlib.h>

#define CUDA_OK(call) CHECK_MSG((call) == cudaSuccess, "%s", cudaGetErrorString(cudaPeekAtLastError()))

enum { UNTOUCHED = 0x5a };

static struct { uint32_t ranks, processes, sms, seconds; } options = {.seconds = 300};

/* ---- a world: where a rank's memory is, and how its calls run ---- */

/* What a step has moved, without waits. */
typedef struct moved {
    epw_traffic all;
    epw_peer_traffic with[RANKS_LIMIT];
} moved;

typedef struct world {
    int32_t gpu; /* -1: the host */
    cudaStream_t streams[2];
    const rank_links *links;
    moved *host; /* [CASES], by the host */
} world;

static moved moved_since(const epw_buffer *b, const moved *before) {
    moved now = {.all = EPW_TRAFFIC_INIT};
    CHECK_OK(epw_buffer_traffic(b, &now.all, now.with));
    if (before == NULL) return now;
    now.all.operations -= before->all.operations;
    now.all.rows_sent -= before->all.rows_sent;
    now.all.rows_received -= before->all.rows_received;
    now.all.rows_answered -= before->all.rows_answered;
    now.all.bytes_sent -= before->all.bytes_sent;
    now.all.bytes_received -= before->all.bytes_received;
    for (uint32_t p = 0; p < RANKS_LIMIT; p++) {
        now.with[p].bytes_sent -= before->with[p].bytes_sent;
        now.with[p].bytes_received -= before->with[p].bytes_received;
        now.with[p].wait_ns = 0;
    }
    return now;
}

static void compare_moved(const world *w, const epw_buffer *b, uint32_t index, const char *how,
                          const moved *before) {
    const moved gpu = moved_since(b, before), *host = &w->host[index];
    CHECK_MSG(memcmp(&gpu, host, sizeof gpu) == 0,
              "%s, %s, rank %u: moved %llu rows out, %llu in, %llu answers, %llu bytes out, %llu in by %llu "
              "operations, the host %llu, %llu, %llu, %llu, %llu, %llu",
              cases[index].name, how, w->links->rank, (unsigned long long)gpu.all.rows_sent,
              (unsigned long long)gpu.all.rows_received, (unsigned long long)gpu.all.rows_answered,
              (unsigned long long)gpu.all.bytes_sent, (unsigned long long)gpu.all.bytes_received,
              (unsigned long long)gpu.all.operations, (unsigned long long)host->all.rows_sent,
              (unsigned long long)host->all.rows_received, (unsigned long long)host->all.rows_answered,
              (unsigned long long)host->all.bytes_sent, (unsigned long long)host->all.bytes_received,
              (unsigned long long)host->all.operations);
}

static memory place(const world *w, const memory *inputs) {
    memory m = *inputs;
    for (int a = 0; a < ARRAYS; a++) {
        if (w->gpu < 0) {
            m.at[a] = aligned_alloc(64, (m.bytes[a] + 63) / 64 * 64);
            if (a < OUTPUTS) memcpy(m.at[a], inputs->at[a], m.bytes[a]);
        } else {
            void *at = NULL;
            CUDA_OK(cudaMalloc(&at, m.bytes[a] + 16));
            m.at[a] = at;
            if (a < OUTPUTS) CUDA_OK(cudaMemcpy(at, inputs->at[a], m.bytes[a], cudaMemcpyHostToDevice));
        }
    }
    return m;
}

static void unplace(const world *w, memory *m) {
    if (w->gpu < 0) free_arrays(m);
    for (int a = 0; w->gpu >= 0 && a < ARRAYS; a++) CUDA_OK(cudaFree(m->at[a]));
}

static void clear_outputs(const world *w, const memory *m) {
    for (int a = OUTPUTS; a < ARRAYS; a++) {
        int value = a == EXPERT_TOTALS ? 0 : UNTOUCHED;
        if (w->gpu < 0) {
            memset(m->at[a], value, m->bytes[a]);
        } else {
            CUDA_OK(cudaMemset(m->at[a], value, m->bytes[a]));
        }
    }
    /* Does not synchronise the device: another rank may be capturing on it. */
    if (w->gpu >= 0) CUDA_OK(cudaStreamSynchronize(NULL));
}

/* Puts expert outputs where a zero-copy combine looks for them. */
static void fill_zero_copy(const world *w, epw_buffer *b, epw_handle handle, const test_case *c,
                           const memory *m, cudaStream_t stream) {
    epw_rows_view view = EPW_ROWS_VIEW_INIT;
    CHECK_OK(epw_next_combine_buffer(b, handle, &view));
    size_t row = shapes[c->shape].hidden * 2, rows = m->bytes[EXPERT_OUT] / row;
    CHECK(c->layout == EPW_RANK_MAJOR || view.stride == row);
    if (w->gpu >= 0) {
        CUDA_OK(cudaMemcpy2DAsync(view.rows, view.stride, m->at[EXPERT_OUT], row, row, rows,
                                  cudaMemcpyDeviceToDevice, stream));
        return;
    }
    for (size_t i = 0; i < rows; i++)
        memcpy((unsigned char *)view.rows + i * view.stride, m->at[EXPERT_OUT] + i * row, row);
}

/* The call's own deadline, which captured calls cannot have. */
static uint64_t deadline_of(const test_case *c, cudaStream_t stream) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (stream != NULL) CUDA_OK(cudaStreamIsCapturing(stream, &capture));
    return c->long_deadline && capture == cudaStreamCaptureStatusNone ? 120 * 1000 * MS : 0;
}

/* SMs of an operation: all of the lane's, or some of them. */
static _Atomic uint32_t lane_sms; /* in the current shape, equal on all ranks; 0: on the host */
static uint32_t sms_of(uint32_t choice) {
    return lane_sms == 0 || choice % 3 == 0 ? 0 : 1 + choice * 5 % lane_sms;
}

/* On a GPU the halves are enqueued on the two streams, which may be the same. */
static epw_handle dispatch(epw_buffer *b, uint32_t index, const memory *m, cudaStream_t first,
                           cudaStream_t second) {
    const test_case *c = &cases[index];
    epw_dispatch_input in = input_of(c, index % 2, m);
    epw_dispatch_output out = output_of(c, m);
    in.stream = first;
    in.sms = sms_of(index);
    out.stream = second;
    in.deadline_ns = deadline_of(c, first);
    epw_handle handle = 0;
    CHECK_OK(epw_dispatch(b, &in, c->split ? NULL : &out, &handle, NULL));
    if (c->split) CHECK_OK(epw_dispatch_receive(b, handle, &out, NULL));
    return handle;
}

static void combine(const world *w, epw_buffer *b, epw_handle handle, uint32_t index, const memory *m,
                    cudaStream_t first, cudaStream_t second) {
    const test_case *c = &cases[index];
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output combined = EPW_COMBINE_OUTPUT_INIT;
    answer.stream = second;
    answer.sms = sms_of(index + w->links->rank);
    combined.stream = first;
    answer.mode = c->mode;
    answer.deadline_ns = deadline_of(c, first);
    if (c->own_weights) answer.topk_weights = (const float *)m->at[OWN_WEIGHTS];
    if (c->waits) combined.wait_ns = (uint64_t *)m->at[WAITS];
    answer.expert_out = c->zero_copy ? NULL : m->at[EXPERT_OUT];
    combined.out = m->at[OUT];
    combined.contributions = (uint16_t *)m->at[CONTRIBUTIONS];
    if (c->zero_copy) {
        answer.stream = first; /* the stream of the copy below */
        fill_zero_copy(w, b, handle, c, m, first);
    }
    CHECK_OK(epw_combine(b, handle, &answer, c->split ? NULL : &combined, NULL));
    if (c->split) CHECK_OK(epw_combine_receive(b, handle, &combined, NULL));
}

static epw_handle step(const world *w, epw_buffer *b, uint32_t index, const memory *m, cudaStream_t first,
                       cudaStream_t second) {
    epw_handle handle = dispatch(b, index, m, first, second);
    combine(w, b, handle, index, m, first, second);
    return handle;
}

/* If a peer is missing, rows beyond the counts may hold anything: copies the host's content of them to
 * `got`. */
static void forget_beyond_counts(const test_case *c, int a, const memory *host, unsigned char *got) {
    int by_rank = c->layout == EPW_RANK_MAJOR && a != EXPERT_ROWS;
    int of_rows = a == ROWS || a == SCALES || a == SIDEBANDS || a == SOURCE_TOKEN || a == EXPERT_ROWS;
    if (!of_rows && a != ROW_EXPERTS && a != ROW_WEIGHTS) return;
    const uint32_t *counts = (const uint32_t *)host->at[by_rank ? SOURCE_COUNTS : COUNTS];
    size_t lists = host->bytes[by_rank ? SOURCE_COUNTS : COUNTS] / 4, bytes = host->bytes[a] / lists;
    size_t rows = host->bytes[EXPERT_ROWS] / host->bytes[COUNTS]; /* rows of an expert's list */
    if (by_rank) rows /= lists;
    for (size_t l = 0; l < lists; l++) {
        size_t begin = l * bytes + counts[l] * (bytes / rows);
        memcpy(got + begin, host->at[a] + begin, (l + 1) * bytes - begin);
    }
}

static void compare(const char *how, uint32_t rank, uint32_t index, const memory *gpu, const memory *host) {
    unsigned char *got = malloc(1 << 24);
    for (int a = OUTPUTS; a < ARRAYS; a++) {
        CHECK(gpu->bytes[a] == host->bytes[a] && host->bytes[a] <= 1 << 24);
        CUDA_OK(cudaMemcpy(got, gpu->at[a], gpu->bytes[a], cudaMemcpyDeviceToHost));
        if (cases[index].stranger) forget_beyond_counts(&cases[index], a, host, got);
        size_t at = 0;
        while (at < host->bytes[a] && got[at] == host->at[a][at]) at++;
        CHECK_MSG(at == host->bytes[a], "%s, %s, rank %u: %s differs at byte %zu of %zu", cases[index].name,
                  how, rank, array_names[a], at, host->bytes[a]);
    }
    free(got);
}

static void finish(const world *w) {
    for (int i = 0; i < 2; i++) CUDA_OK(cudaStreamSynchronize(w->streams[i]));
}

/* Ranks meet before they enqueue kernels that wait for peers. What a rank does between two steps (allocating,
 * freeing, clearing) waits for everything that runs on its GPU, for example for a kernel of another rank that
 * waits for this one. */
static void meet(const world *w) {
    ranks_meet(w->links);
}

/* After a step: no peer is missing, except that a stranger and the others miss each other. */
static void check_outcome(epw_buffer *b, epw_handle handle, const test_case *c, const rank_links *links) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    uint64_t missing = 0;
    if (c->stranger && links->ranks > 1) {
        missing = links->rank == 1 ? ((1ull << links->ranks) - 1) & ~2ull : 2;
    }
    CHECK_OK(epw_outcome_read(b, handle, &outcome));
    CHECK_MSG(outcome.degraded == (missing != 0) && outcome.missing.bits[0] == missing, "%s: %llu missing",
              c->name, (unsigned long long)outcome.missing.bits[0]);
    CHECK_MSG(outcome.record.cause == (missing ? EPW_CAUSE_FORMAT : EPW_CAUSE_NONE), "%s: cause %u", c->name,
              outcome.record.cause);
    CHECK(!missing || (outcome.record.rank == links->rank && outcome.record.peer == (links->rank != 1)));
}

/* Takes the records that a step of strangers has left. */
static void drain_errors(epw_buffer *b, const test_case *c) {
    epw_error_record records[16];
    uint32_t count = 0;
    if (c->stranger) CHECK_OK(epw_take_errors(b, records, sizeof(epw_error_record), 16, &count, NULL));
}

static void run_eager(const world *w, epw_buffer *b, uint32_t rank, uint32_t index, const memory *m,
                      const memory *host) {
    clear_outputs(w, m);
    const moved before = moved_since(b, NULL);
    meet(w);
    ranks_begin_alone(w->links);
    epw_handle handle = step(w, b, index, m, w->streams[0], w->streams[index % 3 == 0]);
    ranks_end_alone(w->links);
    CHECK_OK(epw_await(b, handle, 60 * 1000 * MS));
    check_outcome(b, handle, &cases[index], w->links);
    finish(w);
    compare("eager", rank, index, m, host);
    compare_moved(w, b, index, "eager", &before);
    drain_errors(b, &cases[index]);
}

static void run_graph(const world *w, epw_buffer *b, uint32_t rank, uint32_t index, const memory *m,
                      const memory *host) {
    cudaStream_t stream = w->streams[0];
    step_capture(stream);
    epw_handle handle = step(w, b, index, m, stream, stream);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    REFUSED(epw_outcome_read(b, handle, &outcome), EPW_ERR_STATE, "outcome_read", (int)rank, -1, "captured");
    cudaGraphExec_t exec = step_captured(stream);
    for (int replay = 0; replay < 3; replay++) {
        clear_outputs(w, m);
        const moved before = moved_since(b, NULL);
        meet(w);
        CUDA_OK(cudaGraphLaunch(exec, stream));
        finish(w);
        compare("replayed", rank, index, m, host);
        compare_moved(w, b, index, "replayed", &before);
        drain_errors(b, &cases[index]);
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
}

/* The replay only says that it was refused, once for each half that was called on its own. */
static void replay_is_refused(const world *w, epw_buffer *b, uint32_t rank, uint32_t index, const memory *m,
                              const memory *untouched, cudaGraphExec_t exec, uint32_t phase) {
    epw_error_record records[4];
    uint32_t count = 0, halves = cases[index].split ? 2 : 1;
    clear_outputs(w, m);
    meet(w);
    CUDA_OK(cudaGraphLaunch(exec, w->streams[0]));
    finish(w);
    compare("replayed out of turn", rank, index, m, untouched);
    CHECK_OK(epw_take_errors(b, records, sizeof(epw_error_record), 4, &count, NULL));
    CHECK_MSG(count == halves, "%s: %u records of %u halves", cases[index].name, count, halves);
    for (uint32_t i = 0; i < count && i < halves; i++) {
        CHECK_MSG(records[i].cause == EPW_CAUSE_HELD && records[i].phase == phase + i, "cause %u, phase %u",
                  records[i].cause, records[i].phase);
        CHECK(records[i].rank == rank && records[i].lane == index % 2);
    }
    meet(w);
}

/* A combine on a free lane and a dispatch on a held one, and then both in order. */
static void run_out_of_turn(const world *w, epw_buffer *b, uint32_t rank, uint32_t index,
                            const memory *inputs, const memory *m, const memory *host) {
    const world here = {.gpu = -1};
    cudaStream_t stream = w->streams[0];
    memory untouched = place(&here, inputs);
    clear_outputs(&here, &untouched);
    step_capture(stream);
    epw_handle handle = dispatch(b, index, m, stream, stream);
    cudaGraphExec_t dispatching = step_captured(stream);
    step_capture(stream);
    combine(w, b, handle, index, m, stream, stream);
    cudaGraphExec_t combining = step_captured(stream);

    replay_is_refused(w, b, rank, index, m, &untouched, combining, EPW_PHASE_COMBINE_SEND);
    CUDA_OK(cudaGraphLaunch(dispatching, stream));
    finish(w);
    replay_is_refused(w, b, rank, index, m, &untouched, dispatching, EPW_PHASE_DISPATCH_SEND);
    CUDA_OK(cudaGraphLaunch(combining, stream));
    CUDA_OK(cudaGraphLaunch(dispatching, stream));
    CUDA_OK(cudaGraphLaunch(combining, stream));
    finish(w);
    compare("replayed in turn again", rank, index, m, host);
    CUDA_OK(cudaGraphExecDestroy(dispatching));
    CUDA_OK(cudaGraphExecDestroy(combining));
    free_arrays(&untouched);
}

/* ---- what a GPU refuses, and what it records ---- */

static void refusals(const world *w, epw_buffer *b, const memory *m) {
    const test_case *c = &cases[0];
    epw_dispatch_output out = output_of(c, m);
    epw_handle handle = 0;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_error_record records[4];
    uint32_t count = 9;
    uint64_t lost = 9;
#define WRONG(field, value, words)                                                                           \
    do {                                                                                                     \
        epw_dispatch_input in = input_of(c, 0, m);                                                           \
        in.stream = w->streams[0];                                                                           \
        in.field = (value);                                                                                  \
        REFUSED(epw_dispatch(b, &in, &out, &handle, NULL), EPW_ERR_INVALID, "dispatch", 0, -1, words);       \
    } while (0)
    WRONG(nonblocking, 1, "must be 0 on a GPU");
    WRONG(x, m->at[X] + 2, "x must be aligned to 16 bytes");
    WRONG(x_stride, HIDDEN * 2 + 8, "multiple of 16");
    WRONG(topk_idx, m->at[IDS] + 2, "topk_idx must be aligned to 4 bytes");
#undef WRONG
    epw_dispatch_input in = input_of(c, 0, m);
    in.stream = w->streams[0];
    REFUSED(epw_dispatch(b, &in, &out, &handle, &outcome), EPW_ERR_INVALID, "dispatch", 0, -1,
            "outcome must be NULL");
    REFUSED(epw_poll(b, 1, NULL), EPW_ERR_STATE, "poll", 0, -1, "on a GPU");
    REFUSED(epw_ready(b, 1), EPW_ERR_STATE, "ready", 0, -1, "on a GPU");

    cudaGraph_t graph = NULL;
    step_capture(w->streams[0]);
    in.deadline_ns = 60 * 1000 * MS;
    REFUSED(epw_dispatch(b, &in, &out, &handle, NULL), EPW_ERR_INVALID, "dispatch", 0, -1, "under capture");
    CUDA_OK(cudaStreamEndCapture(w->streams[0], &graph));
    CUDA_OK(cudaGraphDestroy(graph));

    /* A wrong id and a repeated one are recorded and not followed; the release frees the lane. */
    CHECK_OK(epw_take_errors(b, records, sizeof(epw_error_record), 4, &count, &lost));
    CHECK(count == 0 && lost == 0);
    int32_t ids[TOPK] = {EXPERTS, 3, 3, -1};
    CUDA_OK(cudaMemcpy(m->at[IDS], ids, sizeof ids, cudaMemcpyHostToDevice));
    in = input_of(c, 0, m);
    in.stream = w->streams[0];
    in.tokens = 1;
    CHECK_OK(epw_dispatch(b, &in, &out, &handle, NULL));
    epw_mask all = first_ranks(1);
    REFUSED(epw_buffer_set_active(b, &all, 2, 0), EPW_ERR_STATE, "set_active", 0, -1, "is held");
    CHECK_OK(epw_release(b, handle));
    CHECK_OK(epw_await(b, handle, 60 * 1000 * MS));
    CHECK_OK(epw_take_errors(b, records, sizeof(epw_error_record), 4, &count, &lost));
    CHECK_MSG(count == 2 && lost == 0, "%u records", count);
    for (uint32_t i = 0; i < count && i < 2; i++) {
        CHECK(records[i].cause == EPW_CAUSE_ROUTING && records[i].rank == 0);
        CHECK(records[i].expected == 0 ? records[i].seen == EXPERTS
                                       : records[i].expected == 2 && records[i].seen == 3);
    }
    CHECK_OK(epw_buffer_set_active(b, &all, 2, 0));
}

/* Some are recorded, and the others counted. */
static void many_bad_ids(const world *w, epw_buffer *b, const test_case *c, const memory *m) {
    enum { RECORDED = 64 };
    epw_error_record records[2 * RECORDED];
    epw_dispatch_output out = output_of(c, m);
    epw_dispatch_input in = input_of(c, 0, m);
    uint32_t bad = in.tokens * in.topk, count = 0;
    uint64_t lost = 0;
    CHECK_OK(epw_take_errors(b, records, sizeof(epw_error_record), 2 * RECORDED, &count,
                             &lost)); /* left by earlier cases */
    in.stream = w->streams[0];
    CUDA_OK(cudaMemset(m->at[IDS], 0x7f, m->bytes[IDS]));
    for (int round = 0; round < 2; round++) {
        epw_handle handle = 0;
        CHECK_OK(epw_dispatch(b, &in, &out, &handle, NULL));
        CHECK_OK(epw_release(b, handle));
        CHECK_OK(epw_await(b, handle, 60 * 1000 * MS));
        CHECK_OK(epw_take_errors(b, records, sizeof(epw_error_record), 2 * RECORDED, &count, &lost));
        CHECK_MSG(count == RECORDED && lost == bad - RECORDED, "%u recorded, %llu lost", count,
                  (unsigned long long)lost);
        CHECK(records[0].cause == EPW_CAUSE_ROUTING && records[0].seen == 0x7f7f7f7f);
    }
}

/* ---- ranks ---- */

/* On a GPU, compares with the host's results. */
static void run_case(const world *w, epw_buffer *b, const epw_config *config, uint32_t index, memory *host) {
    memory inputs = make_inputs(config, index);
    memory m = place(w, &inputs);
    if (w->gpu < 0) {
        clear_outputs(w, &m);
        const moved before = moved_since(b, NULL);
        step(w, b, index, &m, NULL, NULL);
        w->host[index] = moved_since(b, &before);
        for (uint32_t source = 0; cases[index].stranger && source < config->ranks; source++) {
            int refused = (source == 1) != (config->rank == 1);
            CHECK((((uint32_t *)m.at[SOURCE_COUNTS])[source] == 0) == refused);
        }
        *host = m;
    } else {
        run_eager(w, b, config->rank, index, &m, host);
        run_graph(w, b, config->rank, index, &m, host);
        if (cases[index].out_of_turn) run_out_of_turn(w, b, config->rank, index, &inputs, &m, host);
        run_eager(w, b, config->rank, index, &m, host);
        if (config->ranks == 1 && index == 0) refusals(w, b, &m);
        if (config->ranks == 1 && cases[index].bad_ids) many_bad_ids(w, b, &cases[index], &m);
        unplace(w, &m);
    }
    free_arrays(&inputs);
}

static void run_shape(const world *w, uint32_t shape, memory host[CASES]) {
    epw_config config = config_of_shape(shape, w->links->rank, w->links->ranks, w->gpu);
    if (w->gpu >= 0 && config.sms == 0) config.sms = options.sms ? options.sms : ranks_sms(w->links, 1, 0);
    epw_buffer *b = NULL;
    if (w->gpu >= 0) ranks_path(&config);
    REQUIRE_OK(epw_buffer_create(&config, &b));
    lane_sms = w->gpu >= 0 ? config.sms / config.lanes : 0;
    ranks_connect(w->links, b);
    if (w->gpu >= 0) ranks_require_paths(w->links, b);
    for (uint32_t i = 0; i < CASES; i++) {
        if (cases[i].shape == shape) run_case(w, b, &config, i, &host[i]);
    }
    if (w->gpu >= 0) {
        epw_membership now = EPW_MEMBERSHIP_INIT;
        CHECK_OK(epw_buffer_membership(b, &now));
        CHECK(now.suspects.bits[0] == 0);
    }
    meet(w);
    epw_buffer_destroy(b);
    epw_fabric_destroy(config.fabric);
}

static void run_shapes(const world *w, memory host[CASES]) {
    for (uint32_t shape = 0; shape < SHAPES; shape++) run_shape(w, shape, host);
}

static int report(uint32_t ranks, uint64_t made, uint64_t failed) {
    printf("same: %s ranks=%u as=%s checks=%llu failed=%llu\n", made > 0 && failed == 0 ? "OK" : "FAILED",
           ranks, options.processes ? "processes" : "threads", (unsigned long long)made,
           (unsigned long long)failed);
    return made > 0 && failed == 0 ? 0 : 1;
}

/* Runs each case on the host, then on the GPU. */
static int rank_main(const rank_links *links) {
    memory host[CASES];
    moved moved[CASES];
    world w = {.gpu = -1, .links = links, .host = moved};
    run_shapes(&w, host);
    w.gpu = ranks_gpu(links);
    CUDA_OK(cudaSetDevice(w.gpu));
    for (int i = 0; i < 2; i++) CUDA_OK(cudaStreamCreateWithFlags(&w.streams[i], cudaStreamNonBlocking));
    run_shapes(&w, host);
    for (int i = 0; i < 2; i++) CUDA_OK(cudaStreamDestroy(w.streams[i]));
    for (uint32_t i = 0; i < CASES; i++) free_arrays(&host[i]);
    if (!options.processes) return 0; /* threads share one count */
    uint64_t made = ranks_sum(links, atomic_load(&checks_made));
    uint64_t failed = ranks_sum(links, atomic_load(&checks_failed));
    return links->rank == 0 ? report(links->ranks, made, failed) : failed > 0;
}

static int run_world(uint32_t ranks, uint32_t gpus, char **argv) {
    unsigned made = atomic_load(&checks_made), failed = atomic_load(&checks_failed);
    int result = ranks_run(rank_main, ranks, gpus, options.processes, argv);
    if (options.processes) return result;
    return report(ranks, atomic_load(&checks_made) - made, atomic_load(&checks_failed) - failed);
}

static const ranks_option named[] = {
    {"--ranks", .number = &options.ranks},
    {"--processes", .number = &options.processes, .preset = 1},
    {"--sms", .number = &options.sms},
    {"--seconds", .number = &options.seconds},
    {0},
};

static const char usage[] = "same [--ranks N] [--processes] [--sms N] [--seconds N (limit)]";

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, usage) != 0) return 2;
    ranks_limit("same", options.seconds);
    uint32_t ranks = options.ranks, gpus = 0;
    int ended = ranks_begin(rank_main, 1, &ranks, &gpus, argv);
    if (ended >= 0) return ended;
    int result = run_world(ranks, gpus, argv);
    if (ranks > 2) result |= run_world(2, gpus, argv);
    if (ranks > 1) result |= run_world(1, gpus, argv);
    return result;
}
