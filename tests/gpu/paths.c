/* The ways in which ranks can reach each other and a program can enqueue: by CUDA IPC only, by VMM handles
 * only, by neither, from a rank that leaves, on GPUs that each process numbers or sees differently; on
 * default streams that change within a step, with another stream after the lane's, in graphs that share a
 * handle. What arrives is checked row by row. Each case runs in processes of its own, one per GPU, which this
 * program starts. Exit code 77, with the reason, if there are fewer than two GPUs. */
#include "ranks.h"
#include "step.h"

#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = 32,
    HIDDEN = 512,
    EXPERTS_PER_RANK = 8,
    TOPK = 4,
    ROUNDS = 25,
    REPLAYS = 50,
    COPIED_KINDS = 4, /* the first kinds of STEP_KINDS: not in place, so that outputs can be inspected
                       * later */
    STREAMS = 3
};

/* Which GPU a rank uses: the one of ranks_gpu, the same counted from the end, or the only one that its
 * process sees. */
typedef enum gpu_place { IN_ORDER, REVERSED, HIDDEN_BUT_ONE } gpu_place;

typedef struct test_case {
    const char *name;
    void (*run)(const rank_links *links, const struct test_case *c);
    uint32_t paths; /* config.paths */
    uint32_t taken; /* EPW_PATH_* by which a peer may then be reached */
    gpu_place place;
} test_case;

static struct {
    uint32_t ranks, seconds;
    const char *only; /* name of a case */
} options = {.seconds = 300};

/* ---- a rank ---- */

typedef struct member {
    epw_config config;
    epw_buffer *buffer;
    step_lane lane;
} member;

/* Makes the `number`th GPU the only one that this process sees, as its ordinal 0. Called before CUDA is
 * used. */
static void see_only(uint32_t number) {
    char one[64];
    const char *seen = getenv("CUDA_VISIBLE_DEVICES");
    snprintf(one, sizeof one, "%u", number);
    for (uint32_t i = 0; seen != NULL && i < number; i++) {
        seen = strchr(seen, ',');
        REQUIRE(seen != NULL, "CUDA_VISIBLE_DEVICES has no item %u", number);
        seen++;
    }
    if (seen != NULL) snprintf(one, sizeof one, "%.*s", (int)strcspn(seen, ","), seen);
    setenv("CUDA_VISIBLE_DEVICES", one, 1);
}

static int32_t device_of(const rank_links *links, gpu_place place) {
    if (place == IN_ORDER) return ranks_gpu(links);
    if (place == REVERSED) return (int32_t)(links->ranks - 1 - links->rank);
    see_only(links->rank);
    int count = 0;
    REQUIRE_CUDA(cudaGetDeviceCount(&count));
    REQUIRE(count == 1, "%d GPUs are visible, not one", count);
    return 0;
}

static epw_config config_of(const rank_links *links, uint32_t paths, int32_t device) {
    epw_config config = EPW_CONFIG_INIT;
    config.rank = links->rank;
    config.ranks = links->ranks;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.experts = EXPERTS_PER_RANK * links->ranks;
    config.topk = TOPK;
    config.lanes = 1;
    config.ordered = 1;
    config.paths = paths;
    config.device = device;
    config.deadline_ns = 20 * 1000 * MS;
    return config;
}

static void open_member(member *m, const rank_links *links, const test_case *c) {
    int32_t device = device_of(links, c->place);
    REQUIRE_CUDA(cudaSetDevice(device));
    m->config = config_of(links, c->paths, device);
    REQUIRE_OK(epw_buffer_create(&m->config, &m->buffer));
    ranks_connect(links, m->buffer);
    for (uint32_t p = 0; p < links->ranks; p++) {
        uint32_t path = epw_buffer_path(m->buffer, p);
        REQUIRE(path & (p == links->rank ? EPW_PATH_SELF : c->taken), "rank %u reaches rank %u by path %s",
                links->rank, p, epw_path_name(path));
    }
    /* Now and then a rank is 0.2 ms late, which reveals any call that does not wait for it. */
    step_open(&m->lane, m->buffer, &m->config, 1, 0, EPW_PAYLOAD_FP8_F32, 0, 1, 200000);
    ranks_meet(links);
}

/* Requires that everything enqueued has run and was right. */
static void exact(const member *m, const char *what) {
    await_stream(m->lane.stream, 60 * 1000 * MS, what);
    if (step_wrong(&m->lane, "paths")) _exit(1);
}

static void close_member(member *m, const rank_links *links) {
    exact(m, "the end");
    step_untroubled(&m->lane);
    REQUIRE(ranks_sum(links, step_state(&m->lane).rows) > 0, "nothing was checked");
    epw_buffer_destroy(m->buffer);
    step_close(&m->lane);
}

static size_t out_bytes(void) {
    return (size_t)TOKENS * HIDDEN * 2;
}

/* Overwrites the outputs, so that only newly written data can pass a check. */
static void spoil_outputs(const member *m) {
    const traffic_memory *at = &m->lane.memory;
    cudaStream_t stream = m->lane.stream;
    REQUIRE_CUDA(cudaMemsetAsync(at->rows, 0xff, m->lane.row.expert_rows_bytes, stream));
    REQUIRE_CUDA(cudaMemsetAsync(at->counts, 0xff, EXPERTS_PER_RANK * sizeof *at->counts, stream));
    REQUIRE_CUDA(cudaMemsetAsync(at->out, 0xff, out_bytes(), stream));
    REQUIRE_CUDA(cudaMemsetAsync(at->contributions, 0xff, TOKENS * 4, stream));
}

/* ---- paths ---- */

/* Steps of all kinds, as calls and as a replayed graph. */
static void run_steps(const rank_links *links, const test_case *c) {
    member m;
    open_member(&m, links, c);
    cudaGraphExec_t graph = step_graph(&m.lane, STEP_KINDS, 1);
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t k = 0; k < STEP_KINDS; k++) step_run(&m.lane, step_kind_of(links->rank, k), TOKENS);
        REQUIRE_CUDA(cudaGraphLaunch(graph, m.lane.stream));
        exact(&m, "steps");
    }
    close_member(&m, links);
    REQUIRE_CUDA(cudaGraphExecDestroy(graph));
}

/* Rank 0 destroys its buffer, and with it the window, while the others still write to it: rows, and the word
 * that they have given it up. */
static void leave_early(const rank_links *links, const test_case *c) {
    member m;
    open_member(&m, links, c);
    uint64_t others = ((UINT64_C(1) << links->ranks) - 1) & ~UINT64_C(1);
    for (uint32_t k = 0; k < STEP_KINDS; k++) step_run(&m.lane, step_kind_of(links->rank, k), TOKENS);
    exact(&m, "steps before one leaves");
    ranks_meet(links);
    if (links->rank == 0) epw_buffer_destroy(m.buffer);
    ranks_meet(links);
    if (links->rank != 0) {
        epw_error_record record;
        uint32_t count = 0;
        step_set_members(&m.lane, others, others);
        for (uint32_t k = 0; k < STEP_KINDS; k++) step_run(&m.lane, step_kind_of(links->rank, k), TOKENS);
        exact(&m, "steps after one has left");
        REQUIRE_OK(epw_take_errors(m.buffer, &record, sizeof(epw_error_record), 1, &count, NULL));
        REQUIRE(count == 1 && record.peer == 0 && record.cause == EPW_CAUSE_DROPPED, "peer %u, cause %u",
                record.peer, record.cause);
        REQUIRE_OK(epw_buffer_disconnect(m.buffer, 0));
        epw_buffer_destroy(m.buffer);
    }
    step_close(&m.lane);
}

/* No rank connects to any other: `words` is the expected reason why no path will do. */
static void refuse_peer(const rank_links *links, uint32_t paths, const char *words) {
    uint32_t peer = links->rank ^ 1;
    unsigned char blob[EPW_BLOB_MAX];
    epw_config config = config_of(links, paths, ranks_gpu(links));
    epw_buffer *buffer = NULL;
    epw_error_detail detail = EPW_ERROR_DETAIL_INIT;
    REQUIRE_OK(epw_buffer_create(&config, &buffer));
    if (peer < links->ranks) {
        size_t length = 0;
        REQUIRE_OK(epw_buffer_export(buffer, peer, blob, &length));
        ranks_say(links->to[peer], blob, length);
        length = ranks_hear(links->to[peer], blob, sizeof blob);
        epw_status status = epw_buffer_connect(buffer, peer, blob, length);
        REQUIRE(status == EPW_ERR_NO_PATH, "connect: %s: %s", epw_status_name(status), epw_last_error());
        epw_last_error_detail(&detail);
        REQUIRE(detail.rank == (int32_t)links->rank && detail.peer == (int32_t)peer, "rank %d peer %d",
                (int)detail.rank, (int)detail.peer);
        REQUIRE(strstr(epw_last_error(), words) != NULL, "wanted \"%s\" in: %s", words, epw_last_error());
        REQUIRE(epw_buffer_path(buffer, peer) == EPW_PATH_NONE, "a refused peer has a path");
    }
    ranks_meet(links);
    epw_buffer_destroy(buffer);
}

static void find_no_path(const rank_links *links, const test_case *c) {
    refuse_peer(links, c->paths, "vmm: excluded by config.paths; ipc: excluded by config.paths");
    if (links->rank % 2 == 0) {
        refuse_peer(links, EPW_PATH_VMM,
                    "vmm: the peer's window has an IPC handle; ipc: excluded by config.paths");
    } else {
        refuse_peer(links, EPW_PATH_IPC,
                    "vmm: excluded by config.paths; ipc: the peer's window has a VMM handle");
    }
}

/* ---- streams ---- */

/* A step as a program does it, then the same step on each pair of streams, without the program ordering them:
 * neither inputs nor answers change. */
static void change_streams(const rank_links *links, const test_case *c) {
    member m;
    open_member(&m, links, c);
    step_lane *l = &m.lane;
    cudaStream_t streams[STREAMS] = {NULL, cudaStreamPerThread, l->stream}; /* ends on the lane's own
                                                                             * stream */
    for (uint32_t round = 0; round < ROUNDS; round++) {
        step_kind kind = step_kind_of(links->rank, round % COPIED_KINDS);
        epw_handle handle = 0;
        l->stream = streams[round % STREAMS];
        step_run(l, kind, TOKENS);
        spoil_outputs(&m);
        exact(&m, "a step on one stream");
        for (uint32_t i = 0; i < STREAMS * STREAMS; i++) {
            /* Ranks are late in turn: the others' dispatches wait, with a combine on another stream after
             * them. */
            if (i % links->ranks == links->rank) nanosleep(&(struct timespec){0, 200000}, NULL);
            l->stream = streams[i % STREAMS];
            handle = step_dispatch(l, kind, TOKENS);
            l->stream = streams[i / STREAMS];
            step_combine(l, kind, handle);
        }
        step_answer(l, kind, TOKENS, handle); /* the same answers again: this checks what was dispatched */
        step_check(l, kind, TOKENS);
        exact(&m, "steps on changing streams");
    }
    close_member(&m, links);
}

/* What a second stream copies of a step, in pinned memory: otherwise the host would wait in the copy. */
typedef struct copies {
    void *rows, *out, *scratch;
    cudaStream_t stream;
} copies;

static copies make_copies(const member *m) {
    copies at = {0};
    size_t rows_bytes = m->lane.row.expert_rows_bytes;
    REQUIRE_CUDA(cudaHostAlloc(&at.rows, rows_bytes, cudaHostAllocDefault));
    REQUIRE_CUDA(cudaHostAlloc(&at.out, out_bytes(), cudaHostAllocDefault));
    REQUIRE_CUDA(cudaHostAlloc(&at.scratch, rows_bytes + out_bytes(), cudaHostAllocDefault));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&at.stream, cudaStreamNonBlocking));
    return at;
}

static void free_copies(const copies *at) {
    REQUIRE_CUDA(cudaStreamDestroy(at->stream));
    REQUIRE_CUDA(cudaFreeHost(at->rows));
    REQUIRE_CUDA(cudaFreeHost(at->out));
    REQUIRE_CUDA(cudaFreeHost(at->scratch));
}

static void copy(const copies *at, void *to, const void *from, size_t bytes) {
    REQUIRE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, at->stream));
}

/* As the host finds it after waiting for that other stream only. */
static void copy_behind(const member *m, epw_handle handle, const copies *at, void *to, const void *from,
                        size_t bytes) {
    REQUIRE_OK(epw_stream_wait(m->buffer, handle, at->stream));
    copy(at, to, from, bytes);
    REQUIRE_CUDA(cudaStreamSynchronize(at->stream));
}

/* Requires that `copied` equals what lies at `from`, which has been checked. */
static void same(const void *copied, const void *from, void *scratch, size_t bytes, const char *name) {
    REQUIRE_CUDA(cudaMemcpy(scratch, from, bytes, cudaMemcpyDeviceToHost));
    REQUIRE(memcmp(copied, scratch, bytes) == 0, "the copy of %s began too early", name);
}

static void wait_on_another_stream(const rank_links *links, const test_case *c) {
    member m;
    open_member(&m, links, c);
    step_lane *l = &m.lane;
    copies at = make_copies(&m);
    for (uint32_t round = 0; round < 4 * ROUNDS; round++) {
        step_kind kind = step_kind_of(links->rank, round % COPIED_KINDS);
        spoil_outputs(&m);
        step_make(l);
        epw_handle handle = step_dispatch(l, kind, TOKENS);
        copy_behind(&m, handle, &at, at.rows, l->memory.rows, l->row.expert_rows_bytes);
        step_answer(l, kind, TOKENS, handle);
        step_combine(l, kind, handle);
        copy_behind(&m, handle, &at, at.out, l->memory.out, out_bytes());
        step_check(l, kind, TOKENS);
        exact(&m, "a step with another stream behind it");
        same(at.rows, l->memory.rows, at.scratch, l->row.expert_rows_bytes, "rows");
        same(at.out, l->memory.out, at.scratch, out_bytes(), "out");
    }
    close_member(&m, links);
    free_copies(&at);
}

/* ---- graphs ---- */

static void refuse_wait(const member *m, epw_handle handle, cudaStream_t stream, const char *words) {
    epw_status status = epw_stream_wait(m->buffer, handle, stream);
    REQUIRE(status == EPW_ERR_STATE, "%s: %s", epw_status_name(status), epw_last_error());
    REQUIRE(strstr(epw_last_error(), words) != NULL, "wanted \"%s\" in: %s", words, epw_last_error());
}

/* A step whose rows and sums a second stream copies, once each is there. */
static cudaGraphExec_t capture_copied_step(member *m, step_kind kind, const copies *at, epw_handle *handle) {
    step_lane *l = &m->lane;
    cudaEvent_t joined = NULL;
    REQUIRE_CUDA(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    step_capture(l->stream);
    step_make(l);
    *handle = step_dispatch(l, kind, TOKENS);
    REQUIRE_OK(epw_stream_wait(m->buffer, *handle, at->stream));
    copy(at, at->rows, l->memory.rows, l->row.expert_rows_bytes);
    step_answer(l, kind, TOKENS, *handle);
    step_combine(l, kind, *handle);
    REQUIRE_OK(epw_stream_wait(m->buffer, *handle, at->stream));
    copy(at, at->out, l->memory.out, out_bytes());
    REQUIRE_CUDA(cudaEventRecord(joined, at->stream));
    REQUIRE_CUDA(cudaStreamWaitEvent(l->stream, joined, 0));
    step_check(l, kind, TOKENS);
    cudaGraphExec_t graph = step_captured(l->stream);
    REQUIRE_CUDA(cudaEventDestroy(joined));
    return graph;
}

/* A stream joins the capture of a dispatch and its combine by waiting for them. */
static void join_a_capture(const rank_links *links, const test_case *c) {
    member m;
    open_member(&m, links, c);
    step_lane *l = &m.lane;
    copies at = make_copies(&m);
    for (uint32_t k = 0; k < COPIED_KINDS; k++) {
        epw_handle handle = 0;
        cudaGraphExec_t graph = capture_copied_step(&m, step_kind_of(links->rank, k), &at, &handle);
        refuse_wait(&m, handle, at.stream, "its capture has ended");
        refuse_wait(&m, handle, NULL, "legacy default stream");
        step_capture(at.stream);
        refuse_wait(&m, handle, at.stream, "under another capture");
        copy(&at, at.out, l->memory.out, out_bytes());
        REQUIRE_CUDA(cudaGraphExecDestroy(step_captured(at.stream))); /* which is still good */
        for (int i = 0; i < REPLAYS; i++) {
            spoil_outputs(&m);
            REQUIRE_CUDA(cudaGraphLaunch(graph, l->stream));
            exact(&m, "a graph with a second stream");
            same(at.rows, l->memory.rows, at.scratch, l->row.expert_rows_bytes, "rows");
            same(at.out, l->memory.out, at.scratch, out_bytes(), "out");
        }
        REQUIRE_CUDA(cudaGraphExecDestroy(graph));
    }
    close_member(&m, links);
    free_copies(&at);
}

/* A graph of another stream waits for the calls that were made before it is launched. */
static void wait_from_a_graph(const rank_links *links, const test_case *c) {
    member m;
    open_member(&m, links, c);
    step_lane *l = &m.lane;
    copies at = make_copies(&m);
    cudaGraphExec_t graph = NULL;
    for (uint32_t round = 0; round < 4 * ROUNDS; round++) {
        step_kind kind = step_kind_of(links->rank, round % COPIED_KINDS);
        spoil_outputs(&m);
        step_make(l);
        epw_handle handle = step_dispatch(l, kind, TOKENS);
        step_answer(l, kind, TOKENS, handle);
        step_combine(l, kind, handle);
        if (graph == NULL) {
            step_capture(at.stream);
            REQUIRE_OK(epw_stream_wait(m.buffer, handle, at.stream));
            copy(&at, at.out, l->memory.out, out_bytes());
            graph = step_captured(at.stream);
        }
        REQUIRE_CUDA(cudaGraphLaunch(graph, at.stream));
        await_stream(at.stream, 60 * 1000 * MS, "a graph behind a step");
        step_check(l, kind, TOKENS);
        exact(&m, "a step with a graph behind it");
        same(at.out, l->memory.out, at.scratch, out_bytes(), "out");
    }
    REQUIRE_CUDA(cudaGraphExecDestroy(graph));
    close_member(&m, links);
    free_copies(&at);
}

/* With different tokens than before. */
static void replay_in_turn(member *m, step_kind kind, epw_handle handle, cudaGraphExec_t dispatching,
                           cudaGraphExec_t combining) {
    step_lane *l = &m->lane;
    step_make(l);
    REQUIRE_CUDA(cudaGraphLaunch(dispatching, l->stream));
    step_answer(l, kind, TOKENS, handle);
    REQUIRE_CUDA(cudaGraphLaunch(combining, l->stream));
    step_check(l, kind, TOKENS);
    exact(m, "a step by two graphs");
}

/* A combine on a free lane writes nothing and says so, once for each half that was called on its own. */
static void replay_out_of_turn(const member *m, step_kind kind, cudaGraphExec_t combining) {
    static unsigned char out[TOKENS * HIDDEN * 2];
    epw_error_record records[4];
    uint32_t count = 0, halves = kind.split ? 2 : 1;
    spoil_outputs(m);
    REQUIRE_CUDA(cudaGraphLaunch(combining, m->lane.stream));
    exact(m, "a combine out of turn");
    REQUIRE_OK(epw_take_errors(m->buffer, records, sizeof(epw_error_record), 4, &count, NULL));
    REQUIRE(count == halves, "%u records of %u halves", count, halves);
    for (uint32_t i = 0; i < count; i++) {
        REQUIRE(records[i].cause == EPW_CAUSE_HELD && records[i].phase == EPW_PHASE_COMBINE_SEND + i &&
                    records[i].rank == m->config.rank && records[i].lane == 0,
                "record %u: cause %u phase %u rank %u lane %u", i, records[i].cause, records[i].phase,
                records[i].rank, records[i].lane);
    }
    REQUIRE_CUDA(cudaMemcpy(out, m->lane.memory.out, sizeof out, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < sizeof out; i++) REQUIRE(out[i] == 0xff, "byte %zu of out was written", i);
}

static void share_a_handle(const rank_links *links, const test_case *c) {
    member m;
    open_member(&m, links, c);
    step_lane *l = &m.lane;
    for (uint32_t k = 0; k < COPIED_KINDS; k++) {
        step_kind kind = step_kind_of(links->rank, k);
        step_capture(l->stream);
        epw_handle handle = step_dispatch(l, kind, TOKENS);
        cudaGraphExec_t dispatching = step_captured(l->stream);
        step_capture(l->stream);
        step_combine(l, kind, handle);
        cudaGraphExec_t combining = step_captured(l->stream);
        for (int i = 0; i < REPLAYS; i++) replay_in_turn(&m, kind, handle, dispatching, combining);
        if (links->rank % 2 == 0) replay_out_of_turn(&m, kind, combining); /* the others continue meanwhile */
        for (int i = 0; i < 2; i++) replay_in_turn(&m, kind, handle, dispatching, combining);
        REQUIRE_CUDA(cudaGraphExecDestroy(dispatching));
        REQUIRE_CUDA(cudaGraphExecDestroy(combining));
    }
    close_member(&m, links);
}

/* ---- main ---- */

#define MAPPED (EPW_PATH_VMM | EPW_PATH_IPC)

static const test_case cases[] = {
    {"ipc", run_steps, EPW_PATH_SELF | EPW_PATH_IPC, EPW_PATH_IPC, IN_ORDER},
    {"vmm", run_steps, EPW_PATH_SELF | EPW_PATH_VMM, EPW_PATH_VMM, IN_ORDER},
    {"ipc-leaving", leave_early, EPW_PATH_SELF | EPW_PATH_IPC, EPW_PATH_IPC, IN_ORDER},
    {"vmm-leaving", leave_early, EPW_PATH_SELF | EPW_PATH_VMM, EPW_PATH_VMM, IN_ORDER},
    {"no-path", find_no_path, EPW_PATH_SELF | EPW_PATH_THREAD, EPW_PATH_NONE, IN_ORDER},
    {"reversed-gpus", run_steps, EPW_PATH_ALL, MAPPED, REVERSED},
    {"one-visible-gpu", run_steps, EPW_PATH_ALL, MAPPED, HIDDEN_BUT_ONE},
    {"default-streams", change_streams, EPW_PATH_ALL, MAPPED, IN_ORDER},
    {"stream-wait", wait_on_another_stream, EPW_PATH_ALL, MAPPED, IN_ORDER},
    {"stream-wait-captured", join_a_capture, EPW_PATH_ALL, MAPPED, IN_ORDER},
    {"stream-wait-graph", wait_from_a_graph, EPW_PATH_ALL, MAPPED, IN_ORDER},
    {"two-graphs", share_a_handle, EPW_PATH_ALL, MAPPED, IN_ORDER},
};

enum { CASES = sizeof cases / sizeof cases[0] };

static int is_wanted(const test_case *c) {
    return options.only == NULL || strcmp(options.only, c->name) == 0;
}

/* The process of a rank runs one case. */
static int rank_main(const rank_links *links) {
    for (uint32_t i = 0; i < CASES; i++) {
        if (is_wanted(&cases[i])) cases[i].run(links, &cases[i]);
    }
    return 0;
}

static const ranks_option named[] = {
    {"--ranks", .number = &options.ranks},
    {"--case", .text = &options.only},
    {"--seconds", .number = &options.seconds},
    {0},
};

static const char usage[] = "paths [--ranks N] [--case NAME] [--seconds N (limit)]";

static int run_case(const test_case *c, uint32_t ranks, uint32_t gpus, char *program) {
    char name[32], seconds[16];
    snprintf(name, sizeof name, "%s", c->name);
    snprintf(seconds, sizeof seconds, "%u", options.seconds);
    char *arguments[] = {program, "--case", name, "--seconds", seconds, NULL};
    uint64_t began = now_ns();
    int failed = ranks_run(rank_main, ranks, gpus, 1, arguments);
    printf("paths: %s %s ranks=%u seconds=%.1f\n", failed ? "FAILED" : "OK", c->name, ranks,
           (double)(now_ns() - began) * 1e-9);
    fflush(stdout);
    return failed;
}

int main(int argc, char **argv) {
    uint32_t gpus = 0;
    int failed = 0, known = 0;
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, usage) != 0) return 2;
    ranks_limit("paths", options.seconds);
    uint32_t ranks = options.ranks;
    int ended = ranks_begin(rank_main, 2, &ranks, &gpus, argv);
    if (ended >= 0) return ended;
    REQUIRE(ranks <= gpus, "%u ranks on %u GPUs: one to a GPU here", ranks, gpus);
    for (uint32_t i = 0; i < CASES; i++) {
        if (!is_wanted(&cases[i])) continue;
        failed |= run_case(&cases[i], ranks, gpus, argv[0]);
        known = 1;
    }
    REQUIRE(known, "case %s is unknown", options.only);
    return failed;
}
