/* Mapped peers and peers behind queues in one group, and a place whose next rank is reached the other way: a
 * mapped rank is replaced by one behind queues, as if on another host, and back. The ranks that stay replay
 * the graphs that they captured before. Ranks are buffers of one thread on one GPU, whose paths permit or
 * exclude mapping each other. Exit code 77, with the reason, if there is no GPU. */
#include "cases.h"
#include "echo.h"

enum { RANKS = 4, STEPS = 4, MOVER = 3, MAPPED = EPW_PATH_SELF | EPW_PATH_THREAD | EPW_PATH_QUEUE };
enum { QUEUED = EPW_PATH_SELF | EPW_PATH_QUEUE };

static epw_config config_of(void) {
    epw_config config = EPW_CONFIG_INIT;
    config.ranks = RANKS;
    config.max_tokens = 32;
    config.hidden = 1024;
    config.experts = 32;
    config.topk = 4;
    config.deadline_ns = 20000 * MS;
    return config;
}

static cudaGraphExec_t graph_of(echo_rank *r) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    REQUIRE_CUDA(cudaSetDevice(r->config.device));
    REQUIRE_CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    echo_dispatch(r, ECHO_BOTH);
    echo_combine(r, ECHO_BOTH);
    REQUIRE_CUDA(cudaStreamEndCapture(r->stream, &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
    return exec;
}

/* Every rank replays its graph; a rank without a graph calls. */
static void step(echo *e, cudaGraphExec_t graphs[RANKS], uint64_t seed, const char *what) {
    const uint64_t all = (1u << RANKS) - 1;
    echo_fill(e, seed);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (graphs[r] != NULL) {
            REQUIRE_CUDA(cudaGraphLaunch(graphs[r], e->rank[r].stream));
        } else {
            echo_dispatch(&e->rank[r], ECHO_BOTH);
            echo_combine(&e->rank[r], ECHO_BOTH);
        }
    }
    echo_settle(e, what);
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t miscounted = echo_miscounted(e, &e->rank[r], all), wrong = echo_wrong(e, &e->rank[r], all);
        REQUIRE(miscounted == 0 && wrong == 0, "%s: rank %u has %u wrong counts and %u wrong tokens", what, r,
                miscounted, wrong);
    }
}

static void require_path(const echo *e, uint32_t from, uint32_t to, uint32_t path) {
    uint32_t found = epw_buffer_path(e->rank[from].buffer, to);
    REQUIRE(found == path, "rank %u reaches rank %u by path %s, not %s", from, to, epw_path_name(found),
            epw_path_name(path));
}

/* Rank 2 is behind queues all the time. */
static void moves(uint32_t gpus) {
    static echo e;
    (void)gpus;
    const epw_config config = config_of();
    const uint32_t paths[RANKS] = {MAPPED, MAPPED, QUEUED, MAPPED};
    cudaGraphExec_t graphs[RANKS] = {NULL};
    echo_open_by(&e, &config, 1, paths);
    for (uint32_t r = 0; r < RANKS; r++) graphs[r] = graph_of(&e.rank[r]);
    for (uint32_t moved = 0, epoch = 3; moved < 4; moved++, epoch += 2) {
        const uint32_t way = moved % 2 == 0 ? EPW_PATH_THREAD : EPW_PATH_QUEUE;
        require_path(&e, 0, 1, EPW_PATH_THREAD);
        for (uint32_t r = 0; r < 2; r++) {
            require_path(&e, r, 2, EPW_PATH_QUEUE);
            require_path(&e, 2, r, EPW_PATH_QUEUE);
            require_path(&e, r, MOVER, way);
            require_path(&e, MOVER, r, way);
        }
        for (uint32_t i = 0; i < STEPS; i++)
            step(&e, graphs, moved * STEPS + i, way == EPW_PATH_QUEUE ? "by queues" : "mapped");
        if (graphs[MOVER] != NULL) REQUIRE_CUDA(cudaGraphExecDestroy(graphs[MOVER]));
        graphs[MOVER] = NULL;
        echo_replace(&e, MOVER, way == EPW_PATH_QUEUE ? MAPPED : QUEUED, epoch);
    }
    for (uint32_t r = 0; r < MOVER; r++) REQUIRE_CUDA(cudaGraphExecDestroy(graphs[r]));
    echo_close(&e);
}

/* The path is the same in both directions even if only one end excludes the other's window. */
static void one_sided(uint32_t gpus) {
    static echo e;
    (void)gpus;
    epw_config config = config_of();
    const uint32_t paths[RANKS] = {MAPPED, QUEUED, MAPPED | EPW_PATH_VMM, QUEUED | EPW_PATH_VMM};
    cudaGraphExec_t none[RANKS] = {NULL};
    echo_open_by(&e, &config, 1, paths);
    require_path(&e, 0, 1, EPW_PATH_QUEUE);
    require_path(&e, 1, 0, EPW_PATH_QUEUE);
    require_path(&e, 0, 2, EPW_PATH_THREAD);
    require_path(&e, 2, 3, EPW_PATH_THREAD); /* in the other direction it is mapped too, by a handle */
    require_path(&e, 3, 2, EPW_PATH_VMM);
    require_path(&e, 0, 3, EPW_PATH_QUEUE);
    require_path(&e, 3, 0, EPW_PATH_QUEUE);
    step(&e, none, 1, "one-sided");
    echo_close(&e);
}

static const gpu_case cases[] = {{"moves", moves, 1, 120}, {"one-sided", one_sided, 1, 60}};

int main(int argc, char **argv) {
    return cases_main("moves", cases, sizeof cases / sizeof cases[0], argc, argv);
}
