/* All-gathers and all-to-alls whose bytes copy engines move: in memory of the communicator and in registered
 * memory, by calls and from graphs; operations that begin by copies and need a kernel after all, because what
 * is sent lies elsewhere on a rank, a copy could not be enqueued, or a graph is older than a rank; calls that
 * differ; and ranks that are lost before, or between, the two kernels. Ranks are communicators of one thread.
 * test_comms --copy-engines has more operations, and ranks that are processes. Exit code 77, with the reason,
 * if there is no GPU. */
#include "cases.h"

#include "base/bits.h"
#include "kernels/coll/state.h"

enum { RANKS = 3, LAST = RANKS - 1, BLOCK = 1 << 16, COUNT = RANKS * BLOCK }; /* elements: f32 */
enum { SEND = 0, RECV = 1, BUFFERS = 2 };
#define BYTES (COUNT * UINT64_C(4)) /* of a buffer */

typedef struct rank {
    epw_comm *comm;
    cudaStream_t stream;
    int device;
    unsigned char *buffers[BUFFERS];
    epw_registration own;
    epw_work work;
} rank;

static rank all[RANKS];
static float values[COUNT];
static unsigned char received[RANKS][BYTES];
static uint32_t epoch, gpu_count;
static int registers;
static uint64_t deadline_ms = 20000, from_bytes = 1;
static const epw_mask everyone = {{(1u << RANKS) - 1}}, others = {{(1u << LAST) - 1}};

/* ---- what is between the library and CUDA, by --wrap ---- */

static int holds_end, refuses_copies, slow;
static epw_coll_copies_args held;
static uint32_t held_blocks;

int __real_epw_coll_gpu_end_copies(const epw_coll_copies_args *args, uint32_t blocks, void *stream);
int __wrap_epw_coll_gpu_end_copies(const epw_coll_copies_args *args, uint32_t blocks, void *stream);
int __wrap_epw_coll_gpu_end_copies(const epw_coll_copies_args *args, uint32_t blocks, void *stream) {
    if (!holds_end) return __real_epw_coll_gpu_end_copies(args, blocks, stream);
    held = *args;
    held_blocks = blocks;
    return cudaSuccess;
}

static void pause_stream(void *unused) {
    (void)unused;
    nanosleep(&(struct timespec){.tv_nsec = 30 * MS}, NULL);
}

cudaError_t __real_cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                   cudaStream_t stream);
cudaError_t __wrap_cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                   cudaStream_t stream);
cudaError_t __wrap_cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                   cudaStream_t stream) {
    if (refuses_copies && kind == cudaMemcpyDeviceToDevice && --refuses_copies == 0)
        return cudaErrorInvalidValue;
    /* Of the copies of an operation, each is slower than the one before. */
    static uint32_t made;
    for (uint32_t i = 0; slow && kind == cudaMemcpyDeviceToDevice && i <= made % RANKS; i++)
        REQUIRE_CUDA(cudaLaunchHostFunc(stream, pause_stream, NULL));
    made += slow && kind == cudaMemcpyDeviceToDevice;
    return __real_cudaMemcpyAsync(to, from, bytes, kind, stream);
}

/* ---- ranks ---- */

static void open_rank(uint32_t r) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.rank = r;
    config.ranks = RANKS;
    config.device = all[r].device = (int)(r % gpu_count);
    config.sms = 2;
    config.heap_bytes = registers ? 0 : BUFFERS * BYTES + 4096;
    config.copy_engines_from = from_bytes;
    config.paths = EPW_PATH_ALL & ~(uint32_t)EPW_PATH_QUEUE;
    config.deadline_ns = deadline_ms * MS;
    REQUIRE_OK(epw_comm_create(&config, &all[r].comm));
    REQUIRE_CUDA(cudaSetDevice(all[r].device));
    for (uint32_t b = 0; b < BUFFERS && !registers; b++)
        REQUIRE_OK(epw_comm_alloc(all[r].comm, BYTES + 1024, (void **)&all[r].buffers[b]));
    if (registers && all[r].buffers[SEND] == NULL) {
        REQUIRE_CUDA(cudaMalloc((void **)&all[r].buffers[SEND], BUFFERS * BYTES));
        all[r].buffers[RECV] = all[r].buffers[SEND] + BYTES;
    }
    if (all[r].stream == NULL) REQUIRE_CUDA(cudaStreamCreateWithFlags(&all[r].stream, cudaStreamNonBlocking));
}

static void connect(uint32_t from, uint32_t to) {
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = 0;
    REQUIRE_OK(epw_comm_export(all[from].comm, to, blob, &length));
    REQUIRE_OK(epw_comm_connect(all[to].comm, from, blob, length));
}

static void activate(const epw_mask *members) {
    epoch++;
    EPW_MASK_FOR(r, members, RANKS) REQUIRE_OK(epw_comm_set_active(all[r].comm, members, epoch, 0));
}

static void lend(uint32_t owner) {
    unsigned char blob[EPW_REGISTRATION_BLOB_MAX];
    size_t length = 0;
    epw_registration id = 0;
    REQUIRE_OK(epw_comm_register(all[owner].comm, all[owner].buffers[SEND], BYTES, &all[owner].own));
    for (uint32_t peer = 0; peer < RANKS; peer++) {
        if (peer == owner) continue;
        REQUIRE_OK(epw_comm_export_registration(all[owner].comm, all[owner].own, peer, blob, &length));
        REQUIRE_OK(epw_comm_import_registration(all[peer].comm, owner, blob, length, &id));
    }
    REQUIRE_OK(epw_comm_lend(all[owner].comm, all[owner].own, &everyone));
}

static void open_all(uint32_t gpus) {
    gpu_count = gpus;
    for (uint32_t r = 0; r < RANKS; r++) open_rank(r);
    for (uint32_t i = 0; i < RANKS * RANKS; i++)
        if (i / RANKS != i % RANKS) connect(i / RANKS, i % RANKS);
    activate(&everyone);
    for (uint32_t r = 0; r < RANKS && registers; r++) lend(r);
}

static void close_all(void) {
    for (uint32_t r = 0; r < RANKS; r++) epw_comm_destroy(all[r].comm);
}

/* ---- operations ---- */

/* What the rank sends. */
static float value_of(uint32_t r, uint32_t i, uint32_t seed) {
    return (float)((r + 1) * 100000 + (i * 7 + seed) % 9973);
}

static void fill_rank(uint32_t r, uint32_t seed) {
    for (uint32_t i = 0; i < COUNT; i++) values[i] = value_of(r, i, seed);
    REQUIRE_CUDA(cudaSetDevice(all[r].device)); /* another one need not reach it */
    REQUIRE_CUDA(cudaMemcpy(all[r].buffers[SEND], values, BYTES, cudaMemcpyHostToDevice));
    REQUIRE_CUDA(cudaMemset(all[r].buffers[RECV], 0xff, BYTES));
    REQUIRE_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
}

static void fill(uint32_t seed) {
    for (uint32_t r = 0; r < RANKS; r++) fill_rank(r, seed);
}

static uint64_t copied(uint32_t r) {
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    REQUIRE_OK(epw_comm_traffic(all[r].comm, &traffic, NULL));
    return traffic.operations_copied;
}

/* `kind`: EPW_ALL_GATHER, of the first block, or EPW_ALL_TO_ALL. `send`, `work`: NULL: the usual ones. */
static void enqueue_from(uint32_t r, uint32_t kind, const unsigned char *send, epw_work *work) {
    epw_call call = EPW_CALL_INIT;
    epw_coll c = EPW_COLL_INIT;
    call.stream = all[r].stream;
    call.work = work;
    c.kind = kind;
    c.type = EPW_TYPE_F32;
    c.count = BLOCK;
    c.send = send != NULL ? send : all[r].buffers[SEND];
    c.recv = all[r].buffers[RECV];
    REQUIRE_CUDA(cudaSetDevice(all[r].device));
    REQUIRE_OK(epw_group(all[r].comm, &c, 1, &call, NULL));
}

static void enqueue(uint32_t r, uint32_t kind) {
    enqueue_from(r, kind, NULL, NULL);
}

static void await_all(const epw_mask *members, const char *what) {
    EPW_MASK_FOR(r, members, RANKS) await_stream(all[r].stream, 60000 * MS, what);
}

/* The blocks that the rank has received of these members. */
static void check_rank(uint32_t r, const epw_mask *members, uint32_t kind, uint32_t seed, const char *what) {
    REQUIRE_CUDA(cudaMemcpy(values, all[r].buffers[RECV], BYTES, cudaMemcpyDeviceToHost));
    EPW_MASK_FOR(p, members, RANKS) {
        for (uint32_t i = 0; i < BLOCK; i++) {
            float wanted = value_of(p, kind == EPW_ALL_TO_ALL ? r * BLOCK + i : i, seed);
            REQUIRE(values[p * BLOCK + i] == wanted, "%s: rank %u has %.0f of %u at %u, not %.0f", what, r,
                    (double)values[p * BLOCK + i], p, i, (double)wanted);
        }
    }
}

static void check(const epw_mask *members, uint32_t kind, uint32_t seed, const char *what) {
    await_all(members, what);
    EPW_MASK_FOR(r, members, RANKS) check_rank(r, members, kind, seed, what);
}

static uint64_t counted[RANKS];

static void count(const epw_mask *members) {
    EPW_MASK_FOR(r, members, RANKS) counted[r] = copied(r);
}

/* So many operations since count() were by copies, on each of the members. */
static void require_copied(const epw_mask *members, uint64_t operations, const char *what) {
    EPW_MASK_FOR(r, members, RANKS) {
        uint64_t now = copied(r) - counted[r];
        REQUIRE(now == operations, "%s: rank %u: %llu operations by copies, not %llu", what, r,
                (unsigned long long)now, (unsigned long long)operations);
    }
    count(members);
}

/* How many of two operations on registered memory are by copies: of other GPUs' memory in the same process
 * the copies would hold each other up, see epw_import_orders_copies. */
static uint64_t registered_copies(void) {
    return gpu_count == 1 ? 2 : 0;
}

/* One of each kind; `by_copies`: how many of the two are. */
static void both_kinds(const epw_mask *members, uint64_t by_copies, const char *what) {
    static const uint32_t kinds[] = {EPW_ALL_GATHER, EPW_ALL_TO_ALL};
    static uint32_t seed;
    count(members);
    for (uint32_t k = 0; k < 2; k++) {
        fill(++seed);
        EPW_MASK_FOR(r, members, RANKS) enqueue(r, kinds[k]);
        check(members, kinds[k], seed, what);
    }
    require_copied(members, by_copies, what);
}

static epw_outcome outcome_of(uint32_t r, epw_work work) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    REQUIRE_OK(epw_work_wait(all[r].comm, work, 60000 * MS, &outcome));
    return outcome;
}

/* ---- cases ---- */

static void calls(uint64_t by_copies) {
    both_kinds(&everyone, by_copies, "calls");
    /* In place, and several in a row, of which the second sends what the first has received. */
    count(&everyone);
    for (uint32_t r = 0; r < RANKS; r++) {
        fill_rank(r, 3);
        REQUIRE_CUDA(cudaSetDevice(all[r].device));
        REQUIRE_CUDA(cudaMemcpy(all[r].buffers[SEND], all[r].buffers[RECV], BYTES, cudaMemcpyDeviceToDevice));
        for (uint32_t i = 0; i < COUNT; i++) values[i] = value_of(r, i, 3);
        unsigned char *own = all[r].buffers[SEND] + r * BLOCK * UINT64_C(4);
        REQUIRE_CUDA(cudaMemcpy(own, values, BYTES / RANKS, cudaMemcpyHostToDevice));
        REQUIRE_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        epw_call call = EPW_CALL_INIT;
        call.stream = all[r].stream;
        unsigned char *send = all[r].buffers[SEND];
        REQUIRE_CUDA(cudaSetDevice(all[r].device));
        REQUIRE_OK(epw_all_gather(all[r].comm, send + r * BLOCK * UINT64_C(4), send, BLOCK, EPW_TYPE_F32,
                                  &call, NULL));
        enqueue(r, EPW_ALL_TO_ALL);
    }
    await_all(&everyone, "in place");
    for (uint32_t r = 0; r < RANKS; r++) {
        REQUIRE_CUDA(cudaMemcpy(values, all[r].buffers[RECV], BYTES, cudaMemcpyDeviceToHost));
        for (uint32_t i = 0; i < COUNT; i++) /* everyone has sent what rank r had */
            REQUIRE(values[i] == value_of(r, i % BLOCK, 3), "in place: rank %u: element %u is %.0f", r, i,
                    (double)values[i]);
    }
    require_copied(&everyone, by_copies, "in place");
}

static void heap(uint32_t gpus) {
    open_all(gpus);
    calls(2);
    activate(&others);
    both_kinds(&others, 2, "two members");
    close_all();
}

static void registered(uint32_t gpus) {
    registers = 1;
    open_all(gpus);
    calls(registered_copies());
    REQUIRE_OK(epw_comm_lend(all[1].comm, all[1].own, &others));
    both_kinds(&everyone, 0, "not lent to all");
    close_all();
}

/* Operations that copies cannot do have the same result by kernels. */
static void elsewhere(uint32_t gpus) {
    open_all(gpus);
    unsigned char *usual = all[1].buffers[SEND];
    all[1].buffers[SEND] += 1024;
    both_kinds(&everyone, 0, "at another offset");
    REQUIRE_CUDA(cudaSetDevice(all[1].device));
    REQUIRE_CUDA(cudaMalloc((void **)&all[1].buffers[SEND], BYTES));
    both_kinds(&everyone, 0, "not in the heap");
    all[1].buffers[SEND] = usual;
    both_kinds(&everyone, 2, "where it was");
    close_all();
    from_bytes = BYTES + 1;
    open_all(gpus);
    both_kinds(&everyone, 0, "too small");
    close_all();
}

/* Copies begin when the peers have written what they send, and the operation ends after the last one. */
static void order(uint32_t gpus) {
    open_all(gpus);
    both_kinds(&everyone, 2, "before");
    count(&everyone);
    slow = 1;
    for (uint32_t round = 1; round <= 3; round++) {
        for (uint32_t r = 0; r < RANKS; r++) {
            cudaStream_t stream = all[r].stream;
            REQUIRE_CUDA(cudaSetDevice(all[r].device));
            for (uint32_t i = 0; i < (r + round) % RANKS; i++)
                REQUIRE_CUDA(cudaLaunchHostFunc(stream, pause_stream, NULL));
            REQUIRE_CUDA(cudaMemsetAsync(all[r].buffers[SEND], (int)(16 * round + r), BYTES, stream));
            enqueue(r, EPW_ALL_TO_ALL);
        }
        for (uint32_t r = 0; r < RANKS; r++) {
            REQUIRE_CUDA(cudaSetDevice(all[r].device));
            REQUIRE_CUDA(__real_cudaMemcpyAsync(received[r], all[r].buffers[RECV], BYTES,
                                                cudaMemcpyDeviceToHost, all[r].stream));
        }
        await_all(&everyone, "slow copies");
        for (uint32_t i = 0; i < RANKS * BYTES; i++)
            REQUIRE(received[i / BYTES][i % BYTES] == 16 * round + i % BYTES / (BYTES / RANKS),
                    "rank %u has %02x at %u", i / (uint32_t)BYTES, received[i / BYTES][i % BYTES],
                    i % (uint32_t)BYTES);
    }
    slow = 0;
    require_copied(&everyone, 3, "slow");
    close_all();
}

/* A rank that cannot enqueue a copy ends the operation by its kernel, the others by copies. */
static void refused(uint32_t gpus) {
    open_all(gpus);
    for (int copy = 1; copy <= RANKS; copy++) {
        fill(4);
        count(&everyone);
        refuses_copies = copy;
        for (uint32_t r = 0; r < RANKS; r++) enqueue(r, EPW_ALL_TO_ALL);
        check(&everyone, EPW_ALL_TO_ALL, 4, "refused");
        REQUIRE(cudaGetLastError() == cudaSuccess, "an error stays behind");
        require_copied(&(epw_mask){{everyone.bits[0] & ~UINT64_C(1)}}, 1, "refused by rank 0");
        require_copied(&(epw_mask){{1}}, 0, "refused");
    }
    close_all();
}

static cudaGraphExec_t graph_of(uint32_t r, uint32_t kind) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    REQUIRE_CUDA(cudaSetDevice(all[r].device));
    REQUIRE_CUDA(cudaStreamBeginCapture(all[r].stream, cudaStreamCaptureModeThreadLocal));
    enqueue(r, kind);
    enqueue(r, kind);
    REQUIRE_CUDA(cudaStreamEndCapture(all[r].stream, &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
    return exec;
}

static void replay(const epw_mask *members, cudaGraphExec_t graphs[RANKS], uint64_t by_copies, uint32_t seed,
                   const char *what) {
    fill(seed);
    count(members);
    EPW_MASK_FOR(r, members, RANKS) REQUIRE_CUDA(cudaGraphLaunch(graphs[r], all[r].stream));
    check(members, EPW_ALL_TO_ALL, seed, what);
    require_copied(members, by_copies, what);
}

/* The last rank is replaced. Graphs that are older still read its window, and find that they must not. */
static void graphs(uint32_t gpus) {
    cudaGraphExec_t graphs[RANKS];
    open_all(gpus);
    for (uint32_t r = 0; r < RANKS; r++) graphs[r] = graph_of(r, EPW_ALL_TO_ALL);
    for (uint32_t i = 0; i < 3; i++) replay(&everyone, graphs, 2, i, "replayed");
    activate(&others);
    epw_comm_destroy(all[LAST].comm);
    replay(&others, graphs, 2, 4, "replayed without the last rank");
    for (uint32_t r = 0; r < LAST; r++) REQUIRE_OK(epw_comm_disconnect(all[r].comm, LAST));
    replay(&others, graphs, 2, 5, "replayed after the last rank was disconnected");
    open_rank(LAST);
    for (uint32_t r = 0; r < LAST; r++) {
        connect(r, LAST);
        connect(LAST, r);
    }
    activate(&everyone);
    graphs[LAST] = graph_of(LAST, EPW_ALL_TO_ALL);
    fill(6);
    count(&everyone);
    for (uint32_t r = 0; r < RANKS; r++) REQUIRE_CUDA(cudaGraphLaunch(graphs[r], all[r].stream));
    check(&everyone, EPW_ALL_TO_ALL, 6, "replayed beside a newcomer");
    require_copied(&others, 0, "older than a rank");
    require_copied(&(epw_mask){{1u << LAST}}, 2, "of the newcomer");
    for (uint32_t r = 0; r < LAST; r++) {
        REQUIRE_CUDA(cudaGraphExecDestroy(graphs[r]));
        graphs[r] = graph_of(r, EPW_ALL_TO_ALL);
    }
    replay(&everyone, graphs, 2, 7, "captured again");
    close_all();
}

/* A capture that has not ended keeps the communicator's streams; calls and other captures do without. */
static void captures(uint32_t gpus) {
    cudaStream_t streams[RANKS][2];
    cudaGraphExec_t execs[RANKS][2];
    cudaGraph_t graph = NULL;
    open_all(gpus);
    for (uint32_t r = 0; r < RANKS; r++) {
        streams[r][0] = all[r].stream;
        REQUIRE_CUDA(cudaSetDevice(all[r].device));
        REQUIRE_CUDA(cudaStreamCreateWithFlags(&streams[r][1], cudaStreamNonBlocking));
        for (uint32_t i = 0; i < 2; i++) {
            all[r].stream = streams[r][i];
            REQUIRE_CUDA(cudaStreamBeginCapture(all[r].stream, cudaStreamCaptureModeRelaxed));
            enqueue(r, EPW_ALL_TO_ALL);
        }
        REQUIRE_CUDA(cudaStreamCreateWithFlags(&all[r].stream, cudaStreamNonBlocking));
    }
    both_kinds(&everyone, 2, "beside captures");
    for (uint32_t r = 0; r < RANKS; r++) {
        for (uint32_t i = 0; i < 2; i++) {
            REQUIRE_CUDA(cudaStreamEndCapture(streams[r][i], &graph));
            REQUIRE_CUDA(cudaGraphInstantiate(&execs[r][i], graph, 0));
            REQUIRE_CUDA(cudaGraphDestroy(graph));
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        cudaGraphExec_t graphs[RANKS];
        for (uint32_t r = 0; r < RANKS; r++) graphs[r] = execs[r][i];
        replay(&everyone, graphs, 1, 8 + i, "captured beside another");
    }
    both_kinds(&everyone, 2, "after captures");
    close_all();
}

/* Of registered memory graphs have no copies, because peers may unmap it. */
static void graphs_of_registered(uint32_t gpus) {
    cudaGraphExec_t graphs[RANKS];
    registers = 1;
    open_all(gpus);
    for (uint32_t r = 0; r < RANKS; r++) graphs[r] = graph_of(r, EPW_ALL_TO_ALL);
    replay(&everyone, graphs, 0, 1, "replayed");
    for (uint32_t r = 1; r < RANKS; r++) REQUIRE_OK(epw_comm_unmap(all[r].comm, 0, all[0].own));
    REQUIRE_OK(epw_comm_deregister(all[0].comm, all[0].own));
    replay(&everyone, graphs, 0, 2, "not registered any more");
    close_all();
}

/* The last rank gathers where the others exchange. */
static void differing(uint32_t gpus) {
    open_all(gpus);
    fill(1);
    count(&everyone);
    for (uint32_t r = 0; r < RANKS; r++)
        enqueue_from(r, r < LAST ? EPW_ALL_TO_ALL : EPW_ALL_GATHER, NULL, &all[r].work);
    for (uint32_t r = 0; r < RANKS; r++) {
        epw_outcome outcome = EPW_OUTCOME_INIT;
        epw_status status = epw_work_wait(all[r].comm, all[r].work, 60000 * MS, &outcome);
        REQUIRE(status == EPW_ERR_MISMATCH && strstr(epw_last_error(), "all_to_all of 65536 f32") != NULL &&
                    strstr(epw_last_error(), "all_gather of 65536 f32") != NULL,
                "rank %u: %s: %s", r, epw_status_name(status), epw_last_error());
    }
    require_copied(&everyone, 0, "differing");
    activate(&everyone);
    both_kinds(&everyone, 2, "after that");
    close_all();
}

/* Both others lack the last rank, in a bounded time, and have each other's blocks. */
static void require_lost(const char *what) {
    uint64_t began = now_ns();
    for (uint32_t r = 0; r < LAST; r++) {
        epw_outcome outcome = outcome_of(r, all[r].work);
        REQUIRE(outcome.missing.bits[0] == 1u << LAST && outcome.record.cause == EPW_CAUSE_TIMEOUT &&
                    outcome.record.peer == LAST,
                "%s: rank %u: missing %llx, cause %u", what, r, (unsigned long long)outcome.missing.bits[0],
                outcome.record.cause);
    }
    uint64_t took = (now_ns() - began) / MS;
    REQUIRE(took < 3 * deadline_ms, "%s took %llu ms", what, (unsigned long long)took);
    check(&others, EPW_ALL_TO_ALL, 1, what);
}

static void lost_before(uint32_t gpus) {
    deadline_ms = 2000;
    open_all(gpus);
    fill(1);
    count(&others);
    for (uint32_t r = 0; r < LAST; r++) enqueue_from(r, EPW_ALL_TO_ALL, NULL, &all[r].work);
    require_lost("lost before the first kernel");
    require_copied(&others, 0, "lost before");
    activate(&others);
    both_kinds(&others, 2, "without it");
    activate(&everyone);
    both_kinds(&everyone, 2, "with it again");
    close_all();
}

static void enqueue_and_hold(uint32_t r) {
    holds_end = 1;
    enqueue_from(r, EPW_ALL_TO_ALL, NULL, &all[r].work);
    holds_end = 0;
}

static void lost_between(uint32_t gpus) {
    deadline_ms = 2000;
    open_all(gpus);
    fill(1);
    for (uint32_t r = 0; r < LAST; r++) enqueue_from(r, EPW_ALL_TO_ALL, NULL, &all[r].work);
    enqueue_and_hold(LAST);
    require_lost("lost between the kernels");
    for (uint32_t r = 0; r < LAST; r++) check_rank(r, &everyone, EPW_ALL_TO_ALL, 1, "what it had lent");
    activate(&others);
    both_kinds(&others, 2, "without it");
    close_all();
}

/* The others give the last rank up while it copies, and overwrite what they have lent it: it must not take
 * that for theirs. */
static void copied_too_late(uint32_t gpus) {
    deadline_ms = 2000;
    open_all(gpus);
    both_kinds(&everyone, 2, "before"); /* an epoch's first operation would look whether it was dropped */
    fill(1);
    for (uint32_t r = 0; r < LAST; r++) enqueue_from(r, EPW_ALL_TO_ALL, NULL, &all[r].work);
    enqueue_and_hold(LAST);
    require_lost("slow between the kernels");
    for (uint32_t r = 0; r < LAST; r++) fill_rank(r, 2);
    REQUIRE_CUDA(cudaSetDevice(all[LAST].device));
    REQUIRE_CUDA(__real_epw_coll_gpu_end_copies(&held, held_blocks, all[LAST].stream));
    await_all(&everyone, "the last kernel");
    epw_outcome outcome = outcome_of(LAST, all[LAST].work);
    REQUIRE(outcome.missing.bits[0] == others.bits[0], "missing %llx",
            (unsigned long long)outcome.missing.bits[0]);
    activate(&everyone);
    both_kinds(&everyone, 2, "with it again");
    close_all();
}

/* What is lent may be overwritten once the operation has ended: until then the last rank has copied it. */
static void overwritten_soon(uint32_t gpus) {
    open_all(gpus);
    fill(1);
    enqueue_and_hold(LAST);
    for (uint32_t r = 0; r < LAST; r++) {
        enqueue(r, EPW_ALL_TO_ALL);
        REQUIRE_CUDA(cudaMemsetAsync(all[r].buffers[SEND], 0xee, BYTES, all[r].stream));
    }
    await_all(&(epw_mask){{1u << LAST}}, "copies");
    for (uint32_t i = 0; i < 20; i++) {
        for (uint32_t r = 0; r < LAST; r++)
            REQUIRE(cudaStreamQuery(all[r].stream) == cudaErrorNotReady, "rank %u does not wait for readers",
                    r);
        nanosleep(&(struct timespec){.tv_nsec = 10 * MS}, NULL);
    }
    REQUIRE_CUDA(cudaSetDevice(all[LAST].device));
    REQUIRE_CUDA(__real_epw_coll_gpu_end_copies(&held, held_blocks, all[LAST].stream));
    check(&everyone, EPW_ALL_TO_ALL, 1, "overwritten soon");
    close_all();
}

static void terms(uint32_t gpus) {
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = 0;
    gpu_count = gpus;
    open_rank(0);
    from_bytes = 2;
    open_rank(1);
    REQUIRE_OK(epw_comm_export(all[0].comm, 1, blob, &length));
    epw_status status = epw_comm_connect(all[1].comm, 0, blob, length);
    REQUIRE(status == EPW_ERR_MISMATCH && strstr(epw_last_error(), "copy_engines_from") != NULL, "%s: %s",
            epw_status_name(status), epw_last_error());
    epw_comm_destroy(all[0].comm);
    epw_comm_destroy(all[1].comm);
}

int main(int argc, char **argv) {
    static const gpu_case cases[] = {
        {"heap", heap, 1, 120},
        {"registered", registered, 1, 120},
        {"elsewhere", elsewhere, 1, 120},
        {"order", order, 1, 120},
        {"refused", refused, 1, 120},
        {"graphs", graphs, 1, 120},
        {"captures", captures, 1, 120},
        {"graphs_of_registered", graphs_of_registered, 1, 120},
        {"differing", differing, 1, 120},
        {"lost_before", lost_before, 1, 120},
        {"lost_between", lost_between, 1, 120},
        {"copied_too_late", copied_too_late, 1, 120},
        {"overwritten_soon", overwritten_soon, 1, 120},
        {"terms", terms, 1, 60},
    };
    return cases_main("copies", cases, sizeof cases / sizeof cases[0], argc, argv);
}
