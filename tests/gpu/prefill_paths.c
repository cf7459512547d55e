/* Prefill with mapped peers and peers behind queues in one group: a rank that is replaced by one that is
 * reached the other way, while the ranks that stay replay the graphs that they captured before; a rank that
 * comes back after it was given up; a connection that is lost; counts that no peer can send; and streams
 * that wait for operations, in graphs too. Each case is
 * a process of its own; its ranks are buffers of one thread. `--case NAME` runs one. Exit code 77, with the
 * reason, if there is no GPU. */
#include "cases.h"
#include "nic/fabric.h"
#include "peer/remote_part.h"
#include "prefill/parts.h"
#include "prefill_ranks.h"
#include "ranks.h"
#include "step.h"

#include <stdbool.h>
#include <stddef.h>

enum { RANKS = 3, TOKENS = 24, HIDDEN = 64, ROWS = RANKS * TOKENS, MOVER = 2, ALL = (1 << RANKS) - 1 };
enum { MAPPED = EPW_PATH_SELF | EPW_PATH_THREAD | EPW_PATH_QUEUE, QUEUED = EPW_PATH_SELF | EPW_PATH_QUEUE };

/* What lies on a rank's GPU. Every token goes to every rank, whose expert returns it. */
typedef struct memory {
    uint16_t x[TOKENS * HIDDEN], rows[ROWS * HIDDEN], sums[TOKENS * HIDDEN];
    int32_t ids[TOKENS * RANKS], sources[ROWS];
    float weights[TOKENS * RANKS];
} memory;

typedef struct member {
    epw_config config;
    epw_prefill *prefill;
    epw_routing *routing;
    cudaStream_t stream;
    memory *on_gpu;
    cudaGraphExec_t graph; /* of a dispatch and its combine; NULL: they are called */
} member;

static member members[RANKS];
static uint64_t deadline_ns = 20000 * MS;

/* ---- life ---- */

/* 16 significant bits of a float with few of them. */
static uint16_t bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float token_of(uint32_t rank, uint32_t token) {
    return (float)(1 + (rank * TOKENS + token) % 63);
}

static void fill(const member *m) {
    static memory at;
    memset(&at, 0xee, sizeof at);
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) at.x[i] = bf16_of(token_of(m->config.rank, i / HIDDEN));
    for (uint32_t i = 0; i < TOKENS * RANKS; i++) {
        at.ids[i] = i % RANKS;
        at.weights[i] = 1.0f;
    }
    REQUIRE_CUDA(cudaMemcpy(m->on_gpu, &at, sizeof at, cudaMemcpyHostToDevice));
}

static void open_member(uint32_t rank, uint32_t gpus, uint32_t paths) {
    member *m = &members[rank];
    epw_prefill_config config = prefill_rank_config(rank, RANKS, gpus);
    epw_config *c = &config.ep;
    c->max_tokens = TOKENS;
    c->hidden = HIDDEN;
    c->deadline_ns = deadline_ns;
    c->paths = paths;
    config.ring_tokens = 5;
    REQUIRE_CUDA(cudaSetDevice(c->device));
    ranks_fabric(c);
    REQUIRE_OK(epw_prefill_create(&config, &m->prefill));
    REQUIRE_OK(epw_routing_create(m->prefill, &m->routing));
    m->config = *c;
    if (m->on_gpu != NULL) return; /* it replaces another one */
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
    REQUIRE_CUDA(cudaMalloc((void **)&m->on_gpu, sizeof *m->on_gpu));
}

static void close_member(member *m) {
    REQUIRE_CUDA(cudaSetDevice(m->config.device));
    if (m->graph != NULL) REQUIRE_CUDA(cudaGraphExecDestroy(m->graph));
    m->graph = NULL;
    epw_routing_free(m->routing);
    epw_prefill_destroy(m->prefill);
    epw_fabric_destroy(m->config.fabric);
}

static void join(uint32_t from, uint32_t to) {
    prefill_rank_join(members[from].prefill, from, members[to].prefill, to);
}

static void activate(uint64_t mask, uint32_t epoch) {
    for (uint32_t r = 0; r < RANKS; r++)
        if (mask >> r & 1)
            REQUIRE_OK(epw_prefill_set_active(members[r].prefill, &(epw_mask){{mask}}, epoch, 0));
}

static void open_all(uint32_t gpus, const uint32_t paths[RANKS]) {
    for (uint32_t r = 0; r < RANKS; r++) open_member(r, gpus, paths[r]);
    for (uint32_t from = 0; from < RANKS; from++)
        for (uint32_t to = 0; to < RANKS; to++)
            if (from != to) join(from, to);
    activate(ALL, 1);
}

static void close_all(void) {
    for (uint32_t r = 0; r < RANKS; r++) close_member(&members[r]);
}

/* ---- operations ---- */

static void dispatch(const member *m) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    in.tokens = TOKENS;
    in.x = m->on_gpu->x;
    in.topk_idx = m->on_gpu->ids;
    in.topk = RANKS;
    in.topk_weights = m->on_gpu->weights;
    in.lane = 0;
    in.stream = out.stream = m->stream;
    out.layout = EPW_DENSE;
    out.alignment = 0;
    out.capacity = ROWS;
    out.rows = m->on_gpu->rows;
    out.row_source = m->on_gpu->sources;
    REQUIRE_CUDA(cudaSetDevice(m->config.device));
    REQUIRE_OK(epw_prefill_dispatch(m->prefill, m->routing, &in, EPW_ROUTE_NEW, 0, &out, NULL));
}

static void combine(const member *m) {
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    in.expert_out = m->on_gpu->rows;
    in.stream = out.stream = m->stream;
    out.out = m->on_gpu->sums;
    REQUIRE_CUDA(cudaSetDevice(m->config.device));
    REQUIRE_OK(epw_prefill_combine(m->prefill, m->routing, &in, &out, NULL));
}

static void capture(member *m) {
    REQUIRE_CUDA(cudaSetDevice(m->config.device));
    step_capture(m->stream);
    dispatch(m);
    combine(m);
    m->graph = step_captured(m->stream);
}

/* Rows of all ranks have come, in order, and the sums are those of all ranks. */
static void check(const member *m, const char *what) {
    static memory at;
    REQUIRE_CUDA(cudaMemcpy(&at, m->on_gpu, sizeof at, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < ROWS * HIDDEN; i++) {
        uint32_t source = i / HIDDEN / TOKENS, token = i / HIDDEN % TOKENS;
        REQUIRE(at.sources[i / HIDDEN] == (int32_t)source && at.rows[i] == bf16_of(token_of(source, token)),
                "%s: rank %u: row %u is wrong", what, m->config.rank, i / HIDDEN);
    }
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        REQUIRE(at.sums[i] == bf16_of(RANKS * token_of(m->config.rank, i / HIDDEN)),
                "%s: rank %u: the sum of token %u is wrong", what, m->config.rank, i / HIDDEN);
}

/* A dispatch and a combine of all ranks. */
static void step(const char *what) {
    for (uint32_t r = 0; r < RANKS; r++) fill(&members[r]);
    for (uint32_t r = 0; r < RANKS; r++) {
        const member *m = &members[r];
        REQUIRE_CUDA(cudaSetDevice(m->config.device));
        if (m->graph != NULL) {
            REQUIRE_CUDA(cudaGraphLaunch(m->graph, m->stream));
        } else {
            dispatch(m);
            combine(m);
        }
    }
    for (uint32_t r = 0; r < RANKS; r++) await_stream(members[r].stream, 60000 * MS, what);
    for (uint32_t r = 0; r < RANKS; r++) check(&members[r], what);
}

/* Ranks 0 and 1 dispatch, and the last one does not: the others give it up, for this cause. */
static void require_lost(uint32_t cause, const char *what) {
    static int32_t *told[MOVER]; /* of the suspects */
    for (uint32_t r = 0; r < MOVER; r++) {
        dispatch(&members[r]);
        if (told[r] == NULL)
            REQUIRE_CUDA(cudaHostAlloc((void **)&told[r], RANKS * sizeof *told[r], cudaHostAllocPortable));
        memset(told[r], 0x55, RANKS * sizeof *told[r]);
        REQUIRE_OK(epw_prefill_suspects(members[r].prefill, told[r], members[r].stream));
    }
    for (uint32_t r = 0; r < MOVER; r++) {
        epw_outcome outcome = EPW_OUTCOME_INIT;
        await_stream(members[r].stream, 60000 * MS, what);
        REQUIRE_OK(epw_prefill_poll(members[r].prefill, members[r].routing, &outcome));
        REQUIRE(outcome.missing.bits[0] == 1u << MOVER && outcome.record.peer == MOVER,
                "%s: rank %u: missing %llx, peer %u", what, r, (unsigned long long)outcome.missing.bits[0],
                outcome.record.peer);
        REQUIRE(outcome.record.cause == cause, "%s: rank %u: cause %u", what, r, outcome.record.cause);
        require_told(told[r], RANKS, ALL, 1u << MOVER, what);
    }
}

static void require_path(uint32_t from, uint32_t to, uint32_t path) {
    uint32_t found = epw_prefill_path(members[from].prefill, to);
    REQUIRE(found == path, "rank %u reaches rank %u by path %s, not %s", from, to, epw_path_name(found),
            epw_path_name(path));
}

/* ---- another stream ---- */

/* What a second stream copies behind a dispatch and behind its combine, in pinned memory. */
typedef struct watcher {
    cudaStream_t stream;
    cudaGraphExec_t graph; /* of its own, which copies the sums */
    memory *seen;
} watcher;

static void copy_seen(const member *m, const watcher *w, size_t offset, size_t bytes) {
    REQUIRE_CUDA(cudaMemcpyAsync((unsigned char *)w->seen + offset, (unsigned char *)m->on_gpu + offset,
                                 bytes, cudaMemcpyDeviceToHost, w->stream));
}

static void wait_for(const member *m, const watcher *w) {
    REQUIRE_OK(epw_prefill_stream_wait(m->prefill, m->routing, w->stream));
}

/* The second stream joins the capture, and leaves it before it ends. */
static void capture_watched(member *m, const watcher *w) {
    cudaEvent_t joined = NULL;
    REQUIRE_CUDA(cudaSetDevice(m->config.device));
    REQUIRE_CUDA(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    step_capture(m->stream);
    dispatch(m);
    wait_for(m, w);
    copy_seen(m, w, offsetof(memory, rows), sizeof w->seen->rows);
    combine(m);
    wait_for(m, w);
    copy_seen(m, w, offsetof(memory, sums), sizeof w->seen->sums);
    REQUIRE_CUDA(cudaEventRecord(joined, w->stream));
    REQUIRE_CUDA(cudaStreamWaitEvent(m->stream, joined, 0));
    m->graph = step_captured(m->stream);
    REQUIRE_CUDA(cudaEventDestroy(joined));
    epw_status status = epw_prefill_stream_wait(m->prefill, m->routing, w->stream);
    REQUIRE(status == EPW_ERR_STATE && strstr(epw_last_error(), "capture has ended") != NULL, "%s: %s",
            epw_status_name(status), epw_last_error());
}

/* Without graphs. */
static void call_all(void) {
    for (uint32_t r = 0; r < RANKS; r++) {
        dispatch(&members[r]);
        combine(&members[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) await_stream(members[r].stream, 60000 * MS, "operations");
}

static void require_seen(const member *m, const watcher *w, bool rows, const char *what) {
    static memory at;
    REQUIRE_CUDA(cudaMemcpy(&at, m->on_gpu, sizeof at, cudaMemcpyDeviceToHost));
    REQUIRE(!rows || memcmp(w->seen->rows, at.rows, sizeof at.rows) == 0, "%s: rank %u: rows too early", what,
            m->config.rank);
    REQUIRE(memcmp(w->seen->sums, at.sums, sizeof at.sums) == 0, "%s: rank %u: sums too early", what,
            m->config.rank);
}

/* ---- cases ---- */

/* Streams that copy what operations write, in the operations' graph and in graphs of their own. Each rank's
 * work is there before that of the next rank, so it waits. */
static void watched(uint32_t gpus) {
    enum { ROUNDS = 20 };
    const uint32_t paths[RANKS] = {MAPPED, MAPPED, MAPPED};
    watcher w[RANKS] = {{0}};
    open_all(gpus, paths);
    for (uint32_t r = 0; r < RANKS; r++) {
        REQUIRE_CUDA(cudaSetDevice(members[r].config.device));
        REQUIRE_CUDA(cudaStreamCreateWithFlags(&w[r].stream, cudaStreamNonBlocking));
        REQUIRE_CUDA(cudaHostAlloc((void **)&w[r].seen, sizeof *w[r].seen, cudaHostAllocDefault));
        capture_watched(&members[r], &w[r]);
    }
    for (int i = 0; i < ROUNDS; i++) {
        step("a watched graph");
        for (uint32_t r = 0; r < RANKS; r++) require_seen(&members[r], &w[r], true, "a watched graph");
    }
    call_all();
    for (uint32_t r = 0; r < RANKS; r++) {
        REQUIRE_CUDA(cudaSetDevice(members[r].config.device));
        step_capture(w[r].stream);
        wait_for(&members[r], &w[r]);
        copy_seen(&members[r], &w[r], offsetof(memory, sums), sizeof w[r].seen->sums);
        w[r].graph = step_captured(w[r].stream);
    }
    for (int i = 0; i < ROUNDS; i++) {
        for (uint32_t r = 0; r < RANKS; r++) fill(&members[r]);
        for (uint32_t r = 0; r < RANKS; r++) {
            dispatch(&members[r]);
            combine(&members[r]);
            REQUIRE_CUDA(cudaGraphLaunch(w[r].graph, w[r].stream));
        }
        for (uint32_t r = 0; r < RANKS; r++) await_stream(w[r].stream, 60000 * MS, "a watching graph");
        for (uint32_t r = 0; r < RANKS; r++) require_seen(&members[r], &w[r], false, "a watching graph");
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        REQUIRE_CUDA(cudaSetDevice(members[r].config.device));
        REQUIRE_CUDA(cudaGraphExecDestroy(w[r].graph));
        REQUIRE_CUDA(cudaStreamDestroy(w[r].stream));
        REQUIRE_CUDA(cudaFreeHost(w[r].seen));
    }
    close_all();
}

/* Ranks 0 and 1 map each other all the time. */
static void moves(uint32_t gpus) {
    const uint32_t paths[RANKS] = {MAPPED, MAPPED, MAPPED};
    open_all(gpus, paths);
    for (uint32_t r = 0; r < RANKS; r++) capture(&members[r]);
    for (uint32_t moved = 0, epoch = 3; moved < 4; moved++, epoch += 2) {
        uint32_t way = moved % 2 == 0 ? EPW_PATH_THREAD : EPW_PATH_QUEUE;
        require_path(0, 1, EPW_PATH_THREAD);
        for (uint32_t r = 0; r < MOVER; r++) {
            require_path(r, MOVER, way);
            require_path(MOVER, r, way);
        }
        for (uint32_t i = 0; i < 2; i++) step(way == EPW_PATH_QUEUE ? "by queues" : "mapped");
        close_member(&members[MOVER]);
        activate(ALL & ~(1 << MOVER), epoch - 1);
        for (uint32_t r = 0; r < MOVER; r++) REQUIRE_OK(epw_prefill_disconnect(members[r].prefill, MOVER));
        open_member(MOVER, gpus, way == EPW_PATH_QUEUE ? MAPPED : QUEUED);
        for (uint32_t r = 0; r < MOVER; r++) {
            join(r, MOVER);
            join(MOVER, r);
        }
        activate(ALL, epoch);
    }
    close_all();
}

/* A rank is silent for longer than the deadline, and takes part again in the next epoch. */
static void comes_back(uint32_t gpus) {
    const uint32_t paths[RANKS] = {MAPPED, MAPPED, QUEUED};
    deadline_ns = 2000 * MS;
    open_all(gpus, paths);
    for (uint32_t turn = 0; turn < 3; turn++) {
        step("before");
        require_lost(EPW_CAUSE_TIMEOUT, "a silent rank");
        activate(ALL, turn + 2);
    }
    step("after");
    close_all();
}

static void link_lost(uint32_t gpus) {
    const uint32_t paths[RANKS] = {MAPPED, MAPPED, QUEUED};
    open_all(gpus, paths);
    step("before");
    const epw_peers *peers = &members[MOVER].prefill->peers;
    uint64_t began = now_ns();
    for (uint32_t r = 0; r < MOVER; r++)
        epw_nic_end_link(epw_fabric_nic(peers->fabric), peers->remotes[r]->link);
    require_lost(EPW_CAUSE_LINK, "a lost connection");
    REQUIRE(now_ns() - began < deadline_ns / 2, "the loss was found by waiting");
    close_all();
}

/* More messages than the ring has slots; more slots given back than messages were sent. */
static void nonsense(uint32_t gpus) {
    const uint32_t paths[RANKS] = {MAPPED, MAPPED, QUEUED}, words[] = {EPW_WORD_POSTED, EPW_WORD_TAKEN};
    open_all(gpus, paths);
    for (uint32_t i = 0; i < 2; i++) {
        step("before");
        for (uint32_t r = 0; r < MOVER; r++) {
            unsigned char *from = epw_peers_from(&members[r].prefill->peers, MOVER);
            uint64_t word = epw_epoch_word(i + 1, 1000);
            memcpy(from + epw_word_offset(MOVER, 0, words[i]), &word, sizeof word);
        }
        uint64_t began = now_ns();
        require_lost(EPW_CAUSE_FORMAT, i == 0 ? "too many messages" : "too many credits");
        REQUIRE(now_ns() - began < deadline_ns / 2, "nonsense was found by waiting");
        activate(ALL, i + 2);
    }
    step("after");
    close_all();
}

static const gpu_case cases[] = {{"moves", moves, 1, 120},
                                 {"watched", watched, 1, 60},
                                 {"comes_back", comes_back, 1, 120},
                                 {"link_lost", link_lost, 1, 60},
                                 {"nonsense", nonsense, 1, 60}};

int main(int argc, char **argv) {
    return cases_main("prefill_paths", cases, sizeof cases / sizeof cases[0], argc, argv);
}
