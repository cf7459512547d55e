/* Memory of the caller's that a communicator on GPUs registers: what is refused, damaged blobs, memory that
 * is lent to some ranks only, graphs that are older than a registration, a rank that is replaced, and
 * communicators whose peers read no memory: with queues, or of many ranks. In each case sums and gathered
 * blocks are right, whether peers read the memory or ranks use rings. Ranks are communicators of one thread.
 * test_comms --register has the operations, and ranks that are processes. Exit code 77, with the reason, if
 * there is no GPU. */
#include "cases.h"

#include "base/bits.h"

enum { RANKS = 3, MANY = 9, BLOCK = 3 << 17, COUNT = RANKS * BLOCK }; /* elements: f32 */
enum { SEND = 0, RECV = 1, BUFFERS = 2, AHEAD = 4096 };
#define BYTES (COUNT * UINT64_C(4)) /* of a buffer; a block is more than goes by packets */

typedef struct rank {
    epw_comm *comm;
    epw_fabric *fabric; /* NULL: peers map each other */
    cudaStream_t stream;
    int device;
    unsigned char *memory, *buffers[BUFFERS]; /* buffers lie in one allocation, behind AHEAD bytes */
    epw_registration own[BUFFERS], theirs[BUFFERS][RANKS];
} rank;

static rank all[RANKS];
static float values[COUNT];
static uint32_t epoch;
static const epw_mask everyone = {{(1u << RANKS) - 1}};

/* ---- ranks ---- */

static void open_rank(uint32_t r, uint32_t gpus) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.rank = r;
    config.ranks = RANKS;
    config.device = all[r].device = (int)(r % gpus);
    config.sms = 2;
    config.slots = 8; /* no lines: operations read the memory, or go through the rings */
    config.heap_bytes = 4096;
    config.paths = EPW_PATH_ALL & ~(uint32_t)EPW_PATH_QUEUE;
    config.fabric = all[r].fabric;
    if (config.fabric != NULL) config.paths = EPW_PATH_SELF | EPW_PATH_QUEUE;
    config.deadline_ns = 20000 * MS;
    REQUIRE_OK(epw_comm_create(&config, &all[r].comm));
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

static void open_all(uint32_t gpus) {
    for (uint32_t r = 0; r < RANKS; r++) {
        open_rank(r, gpus);
        REQUIRE_CUDA(cudaSetDevice(all[r].device));
        REQUIRE_CUDA(cudaStreamCreateWithFlags(&all[r].stream, cudaStreamNonBlocking));
        REQUIRE_CUDA(cudaMalloc((void **)&all[r].memory, AHEAD + BUFFERS * BYTES));
        for (uint32_t b = 0; b < BUFFERS; b++) all[r].buffers[b] = all[r].memory + AHEAD + b * BYTES;
    }
    for (uint32_t i = 0; i < RANKS * RANKS; i++)
        if (i / RANKS != i % RANKS) connect(i / RANKS, i % RANKS);
    activate(&everyone);
}

static void close_all(void) {
    for (uint32_t r = 0; r < RANKS; r++) epw_comm_destroy(all[r].comm);
    for (uint32_t r = 0; r < RANKS; r++) REQUIRE_CUDA(cudaFree(all[r].memory));
}

/* ---- registrations ---- */

static void import(uint32_t owner, uint32_t peer, uint32_t b) {
    unsigned char blob[EPW_REGISTRATION_BLOB_MAX];
    size_t length = 0;
    REQUIRE_OK(epw_comm_export_registration(all[owner].comm, all[owner].own[b], peer, blob, &length));
    REQUIRE_OK(
        epw_comm_import_registration(all[peer].comm, owner, blob, length, &all[peer].theirs[b][owner]));
    REQUIRE(all[peer].theirs[b][owner] == all[owner].own[b], "the number is another one");
}

static void lend(uint32_t owner, uint32_t b, uint64_t ranks) {
    REQUIRE_OK(epw_comm_lend(all[owner].comm, all[owner].own[b], &(epw_mask){{ranks}}));
}

/* Registers a rank's buffers, and lets all peers map them. */
static void register_buffers(uint32_t r) {
    for (uint32_t b = 0; b < BUFFERS; b++) {
        REQUIRE_OK(epw_comm_register(all[r].comm, all[r].buffers[b], BYTES, &all[r].own[b]));
        for (uint32_t peer = 0; peer < RANKS; peer++)
            if (peer != r) import(r, peer, b);
        lend(r, b, everyone.bits[0]);
    }
}

static void deregister(uint32_t r, uint32_t b) {
    for (uint32_t peer = 0; peer < RANKS; peer++)
        if (peer != r) REQUIRE_OK(epw_comm_unmap(all[peer].comm, r, all[r].own[b]));
    REQUIRE_OK(epw_comm_deregister(all[r].comm, all[r].own[b]));
}

static void open_registered(uint32_t gpus) {
    open_all(gpus);
    for (uint32_t r = 0; r < RANKS; r++) register_buffers(r);
}

/* ---- operations ---- */

/* What the rank sends: whole numbers, so that sums are exact. */
static float value_of(uint32_t r, uint32_t i, uint32_t seed) {
    return (float)((r + 1) * 100 + (i * 7 + seed) % 97);
}

static void fill(uint32_t seed) {
    for (uint32_t r = 0; r < RANKS; r++) {
        for (uint32_t i = 0; i < COUNT; i++) values[i] = value_of(r, i, seed);
        REQUIRE_CUDA(cudaMemcpy(all[r].buffers[SEND], values, BYTES, cudaMemcpyHostToDevice));
        REQUIRE_CUDA(cudaSetDevice(all[r].device)); /* another one need not reach it */
        REQUIRE_CUDA(cudaMemset(all[r].buffers[RECV], 0xff, BYTES));
    }
}

static void await_all(const epw_mask *members, const char *what) {
    EPW_MASK_FOR(r, members, RANKS) await_stream(all[r].stream, 60000 * MS, what);
}

static void check_sums(const epw_mask *members, uint32_t seed, const char *what) {
    await_all(members, what);
    EPW_MASK_FOR(r, members, RANKS) {
        REQUIRE_CUDA(cudaMemcpy(values, all[r].buffers[RECV], BYTES, cudaMemcpyDeviceToHost));
        for (uint32_t i = 0; i < COUNT; i++) {
            float sum = 0;
            EPW_MASK_FOR(p, members, RANKS) sum += value_of(p, i, seed);
            REQUIRE(values[i] == sum, "%s: rank %u: sum %u is %g, not %g", what, r, i, (double)values[i],
                    (double)sum);
        }
    }
}

static void enqueue_sum(uint32_t r) {
    epw_call call = EPW_CALL_INIT;
    call.stream = all[r].stream;
    REQUIRE_CUDA(cudaSetDevice(all[r].device));
    REQUIRE_OK(epw_all_reduce(all[r].comm, all[r].buffers[SEND], all[r].buffers[RECV], COUNT, EPW_TYPE_F32,
                              EPW_SUM, &call, NULL));
}

static void sum(const epw_mask *members, const char *what) {
    static uint32_t seed;
    fill(++seed);
    EPW_MASK_FOR(r, members, RANKS) enqueue_sum(r);
    check_sums(members, seed, what);
}

/* From the second block of each rank's buffer, so that it does not begin where the registered memory does. */
static void gather(const char *what) {
    fill(5);
    for (uint32_t r = 0; r < RANKS; r++) {
        epw_call call = EPW_CALL_INIT;
        call.stream = all[r].stream;
        REQUIRE_CUDA(cudaSetDevice(all[r].device));
        REQUIRE_OK(epw_all_gather(all[r].comm, all[r].buffers[SEND] + BLOCK * UINT64_C(4),
                                  all[r].buffers[RECV], BLOCK, EPW_TYPE_F32, &call, NULL));
    }
    await_all(&everyone, what);
    for (uint32_t r = 0; r < RANKS; r++) {
        REQUIRE_CUDA(cudaMemcpy(values, all[r].buffers[RECV], BYTES, cudaMemcpyDeviceToHost));
        for (uint32_t i = 0; i < COUNT; i++)
            REQUIRE(values[i] == value_of(i / BLOCK, BLOCK + i % BLOCK, 5), "%s: rank %u: element %u is %g",
                    what, r, i, (double)values[i]);
    }
}

/* ---- cases ---- */

#define REQUIRE_REFUSED(call, status_, words)                                                                \
    do {                                                                                                     \
        epw_status found_ = (call);                                                                          \
        REQUIRE(found_ == (status_) && strstr(epw_last_error(), words) != NULL, "%s: %s: %s", #call,         \
                epw_status_name(found_), epw_last_error());                                                  \
    } while (0)

static void refused_memory(void) {
    epw_comm *comm = all[0].comm;
    unsigned char *memory = all[0].buffers[SEND];
    void *other = NULL;
    epw_registration id = 0;
    REQUIRE_REFUSED(epw_comm_register(comm, NULL, BYTES, &id), EPW_ERR_INVALID, "memory is");
    REQUIRE_REFUSED(epw_comm_register(comm, memory + 4, 64, &id), EPW_ERR_INVALID, "multiple of 16");
    REQUIRE_REFUSED(epw_comm_register(comm, memory, 0, &id), EPW_ERR_INVALID, "bytes is 0");
    REQUIRE_REFUSED(epw_comm_register(comm, memory, UINT64_MAX, &id), EPW_ERR_LIMIT, "bytes is");
    REQUIRE_REFUSED(epw_comm_register(comm, all[0].buffers[RECV], BYTES + (4 << 20), &id), EPW_ERR_INVALID,
                    "the allocation of");
    REQUIRE_REFUSED(epw_comm_register(comm, values, 64, &id), EPW_ERR_INVALID, "not memory of a GPU");
    REQUIRE_CUDA(cudaSetDevice(all[0].device));
    REQUIRE_CUDA(cudaMallocAsync(&other, 1 << 20, all[0].stream));
    REQUIRE_REFUSED(epw_comm_register(comm, other, 1 << 20, &id), EPW_ERR_INVALID, "memory is of a pool");
    REQUIRE_CUDA(cudaFreeAsync(other, all[0].stream));
    REQUIRE_OK(epw_comm_alloc(comm, 64, &other));
    REQUIRE_REFUSED(epw_comm_register(comm, other, 64, &id), EPW_ERR_INVALID, "need not be registered");
    epw_comm_free(comm, other);
    if (all[1].device != all[0].device)
        REQUIRE_REFUSED(epw_comm_register(comm, all[1].buffers[SEND], BYTES, &id), EPW_ERR_INVALID,
                        "memory is on GPU 1, config.device is 0");
}

static void refused_many(void) {
    epw_comm *comm = all[0].comm;
    epw_registration ids[EPW_REGISTRATIONS_MAX], id = 0;
    for (uint32_t i = 0; i < EPW_REGISTRATIONS_MAX; i++)
        REQUIRE_OK(epw_comm_register(comm, all[0].buffers[SEND] + i * 1024, 512, &ids[i]));
    REQUIRE_REFUSED(epw_comm_register(comm, all[0].buffers[SEND] + 496, 32, &id), EPW_ERR_INVALID,
                    "overlaps that of registration 1");
    REQUIRE_REFUSED(epw_comm_register(comm, all[0].buffers[RECV], BYTES, &id), EPW_ERR_LIMIT,
                    "32 ranges are registered");
    for (uint32_t i = 0; i < EPW_REGISTRATIONS_MAX; i++) REQUIRE_OK(epw_comm_deregister(comm, ids[i]));
    REQUIRE_REFUSED(epw_comm_deregister(comm, ids[0]), EPW_ERR_INVALID, "does not have");
}

static void refused(uint32_t gpus) {
    unsigned char blob[EPW_REGISTRATION_BLOB_MAX];
    size_t length = 0;
    epw_registration id = 0;
    open_all(gpus);
    refused_memory();
    refused_many();
    REQUIRE_OK(epw_comm_register(all[0].comm, all[0].buffers[SEND], BYTES, &all[0].own[SEND]));
    REQUIRE_REFUSED(epw_comm_register(all[0].comm, all[0].buffers[SEND], BYTES, &id), EPW_ERR_INVALID,
                    "overlaps");
    id = all[0].own[SEND];
    REQUIRE_REFUSED(epw_comm_export_registration(all[0].comm, id + 1, 1, blob, &length), EPW_ERR_INVALID,
                    "does not have");
    REQUIRE_REFUSED(epw_comm_export_registration(all[0].comm, id, RANKS, blob, &length), EPW_ERR_INVALID,
                    "peer is");
    REQUIRE_REFUSED(epw_comm_lend(all[0].comm, id, &(epw_mask){{1u << RANKS}}), EPW_ERR_INVALID, "peer is");
    import(0, 1, SEND);
    REQUIRE_OK(epw_comm_export_registration(all[0].comm, id, 1, blob, &length));
    REQUIRE_REFUSED(epw_comm_import_registration(all[1].comm, 0, blob, length, &id), EPW_ERR_STATE,
                    "mapped already");
    REQUIRE_REFUSED(epw_comm_import_registration(all[2].comm, 0, blob, length, &id), EPW_ERR_INVALID,
                    "exported for rank 1");
    REQUIRE_REFUSED(epw_comm_import_registration(all[1].comm, 2, blob, length, &id), EPW_ERR_STATE,
                    "another incarnation");
    id = all[0].own[SEND];
    REQUIRE_REFUSED(epw_comm_deregister(all[0].comm, id), EPW_ERR_STATE, "peer 1: it still has");
    REQUIRE_OK(epw_comm_unmap(all[1].comm, 0, id));
    REQUIRE_OK(epw_comm_unmap(all[1].comm, 0, id));
    REQUIRE_OK(epw_comm_deregister(all[0].comm, id));
    REQUIRE_REFUSED(epw_comm_import_registration(all[1].comm, 0, blob, length, &id), EPW_ERR_PEER,
                    "destroyed");
    epw_comm *host = NULL;
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.ranks = 2;
    REQUIRE_OK(epw_comm_create(&config, &host));
    REQUIRE_OK(epw_comm_register(host, values, 64, &id));
    REQUIRE_OK(epw_comm_deregister(host, id));
    epw_comm_destroy(host);
    close_all();
}

/* FNV-1a, as in window/blob.c. */
static void correct(unsigned char *blob) {
    enum { SUMMED = 60 };
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < SUMMED; i++) hash = (hash ^ blob[i]) * UINT64_C(0x100000001b3);
    memcpy(blob + SUMMED, &hash, sizeof hash);
}

/* Every byte of a blob matters, and values that cannot be are refused. */
static void damaged(uint32_t gpus) {
    unsigned char right[EPW_REGISTRATION_BLOB_MAX], blob[EPW_REGISTRATION_BLOB_MAX];
    size_t length = 0, other = 0;
    epw_registration id = 0;
    open_all(gpus);
    epw_comm *from = all[0].comm, *to = all[1].comm;
    REQUIRE_OK(epw_comm_register(from, all[0].buffers[SEND], BYTES, &all[0].own[SEND]));
    REQUIRE_OK(epw_comm_export_registration(from, all[0].own[SEND], 1, right, &length));
    for (size_t i = 0; i < length; i++) {
        memcpy(blob, right, length);
        blob[i] ^= (unsigned char)(1u << i % 8);
        REQUIRE(epw_comm_import_registration(to, 0, blob, length, &id) < 0, "byte %zu does not matter", i);
        REQUIRE(epw_comm_import_registration(to, 0, right, i, &id) < 0, "%zu bytes suffice", i);
    }
    static const struct {
        size_t at;
        uint64_t value;
    } wrong[] = {{8, 0},
                 {16, 0},
                 {16, 1 << 20 | 8},
                 {16, UINT64_MAX - 15},
                 {24, 0},
                 {24, UINT64_MAX},
                 {24, BYTES * 64},
                 {32, UINT64_MAX},
                 {32, UINT64_C(1) << 30},
                 {40, EPW_REGISTRATIONS_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        memcpy(blob, right, length);
        memcpy(blob + wrong[i].at, &wrong[i].value, wrong[i].at == 40 ? 4 : 8);
        correct(blob);
        REQUIRE(epw_comm_import_registration(to, 0, blob, length, &id) < 0, "value %zu is taken", i);
    }
    REQUIRE_OK(epw_comm_export(from, 1, blob, &other));
    REQUIRE_REFUSED(epw_comm_import_registration(to, 0, blob, other, &id), EPW_ERR_INVALID, "not a blob");
    memcpy(blob, right, length);
    correct(blob);
    REQUIRE_OK(epw_comm_import_registration(to, 0, blob, length, &id));
    close_all();
}

/* Rings where not all members have mapped everything; the memory itself where they have. */
static void lent(uint32_t gpus) {
    open_registered(gpus);
    sum(&everyone, "registered");
    gather("registered");
    lend(1, RECV, 1 << 0);
    sum(&everyone, "not lent to rank 2");
    lend(1, RECV, everyone.bits[0]);
    sum(&everyone, "lent again");
    deregister(0, SEND);
    sum(&everyone, "not registered by rank 0");
    epw_mask two = {{3}};
    activate(&two);
    sum(&two, "two members");
    activate(&everyone);
    close_all();
}

static cudaGraphExec_t graph_of(uint32_t r) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    REQUIRE_CUDA(cudaSetDevice(all[r].device));
    REQUIRE_CUDA(cudaStreamBeginCapture(all[r].stream, cudaStreamCaptureModeThreadLocal));
    enqueue_sum(r);
    REQUIRE_CUDA(cudaStreamEndCapture(all[r].stream, &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
    return exec;
}

static void replay(cudaGraphExec_t graphs[RANKS], uint32_t seed, const char *what) {
    fill(seed);
    for (uint32_t r = 0; r < RANKS; r++) REQUIRE_CUDA(cudaGraphLaunch(graphs[r], all[r].stream));
    check_sums(&everyone, seed, what);
}

/* A graph's buffers stay where they are, but other memory takes the place of what was registered. */
static void graphs(uint32_t gpus) {
    cudaGraphExec_t graphs[RANKS];
    unsigned char *other = NULL;
    epw_registration id = 0;
    open_registered(gpus);
    for (uint32_t r = 0; r < RANKS; r++) graphs[r] = graph_of(r);
    replay(graphs, 1, "replayed");
    lend(0, SEND, 0);
    replay(graphs, 2, "not lent any more");
    lend(0, SEND, everyone.bits[0]);
    replay(graphs, 3, "lent again");
    deregister(2, SEND);
    replay(graphs, 4, "not registered any more");
    REQUIRE_CUDA(cudaSetDevice(all[2].device));
    REQUIRE_CUDA(cudaMalloc((void **)&other, BYTES));
    REQUIRE_CUDA(cudaMemset(other, 0, BYTES));
    id = all[2].own[SEND];
    REQUIRE_OK(epw_comm_register(all[2].comm, other, BYTES, &all[2].own[SEND]));
    REQUIRE(all[2].own[SEND] > id, "a number was given out twice");
    for (uint32_t peer = 0; peer < 2; peer++) import(2, peer, SEND);
    lend(2, SEND, everyone.bits[0]);
    replay(graphs, 5, "other memory in its place");
    for (uint32_t r = 0; r < RANKS; r++) REQUIRE_CUDA(cudaGraphExecDestroy(graphs[r]));
    close_all();
    REQUIRE_CUDA(cudaFree(other));
}

/* The last rank is replaced: nothing of it stays mapped, and it gets nothing until all is exported to it. */
static void replaced(uint32_t gpus) {
    enum { LAST = RANKS - 1 };
    epw_mask others = {{(1u << LAST) - 1}};
    cudaGraphExec_t graphs[RANKS];
    open_registered(gpus);
    sum(&everyone, "registered");
    for (uint32_t r = 0; r < LAST; r++) graphs[r] = graph_of(r);
    activate(&others);
    epw_comm_destroy(all[LAST].comm);
    sum(&others, "without the last rank");
    open_rank(LAST, gpus);
    for (uint32_t r = 0; r < LAST; r++) {
        connect(r, LAST);
        connect(LAST, r);
    }
    activate(&everyone);
    sum(&everyone, "a newcomer has registered nothing");
    REQUIRE_OK(epw_comm_register(all[LAST].comm, all[LAST].buffers[SEND], BYTES, &all[LAST].own[SEND]));
    REQUIRE_OK(epw_comm_register(all[LAST].comm, all[LAST].buffers[RECV], BYTES, &all[LAST].own[RECV]));
    graphs[LAST] = graph_of(LAST);
    for (uint32_t b = 0; b < BUFFERS; b++)
        for (uint32_t r = 0; r < LAST; r++) import(LAST, r, b);
    for (uint32_t b = 0; b < BUFFERS; b++) lend(LAST, b, everyone.bits[0]);
    sum(&everyone, "the newcomer has mapped nothing");
    replay(graphs, 7, "replayed beside a newcomer");
    for (uint32_t b = 0; b < BUFFERS; b++) {
        for (uint32_t r = 0; r < LAST; r++) {
            import(r, LAST, b);
            lend(r, b, everyone.bits[0]);
        }
    }
    sum(&everyone, "all is mapped again");
    replay(graphs, 8, "replayed with the newcomer");
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t b = 0; b < BUFFERS; b++) deregister(r, b);
    for (uint32_t r = 0; r < RANKS; r++) REQUIRE_CUDA(cudaGraphExecDestroy(graphs[r]));
    close_all();
}

/* Peers behind queues. */
static void queues(uint32_t gpus) {
    for (uint32_t r = 0; r < RANKS; r++) {
        epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
        options.rank = r;
        options.device = (int)(r % gpus);
        REQUIRE_OK(epw_fabric_create(&options, &all[r].fabric));
    }
    open_all(gpus);
    refused_memory();
    for (uint32_t r = 0; r < RANKS; r++) register_buffers(r);
    sum(&everyone, "registered beside queues");
    gather("registered beside queues");
    activate(&(epw_mask){{3}});
    sum(&(epw_mask){{3}}, "two members");
    activate(&everyone);
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t b = 0; b < BUFFERS; b++) deregister(r, b);
    sum(&everyone, "deregistered");
    close_all();
    for (uint32_t r = 0; r < RANKS; r++) {
        epw_fabric_destroy(all[r].fabric);
        all[r].fabric = NULL;
    }
}

/* More ranks than the tables of kernels have places: the last rank's memory has none there. */
static void many(uint32_t gpus) {
    enum { LAST = MANY - 1, BESIDE = 1 << 16 };
    epw_comm *comms[MANY];
    float *memory[MANY];
    cudaStream_t streams[MANY];
    epw_registration own[MANY], theirs;
    unsigned char blob[EPW_REGISTRATION_BLOB_MAX];
    size_t length = 0;
    epw_mask members = {{(1u << MANY) - 1}};
    for (uint32_t r = 0; r < MANY; r++) {
        epw_comm_config config = EPW_COMM_CONFIG_INIT;
        config.rank = r;
        config.ranks = MANY;
        config.device = (int)(r % gpus);
        config.sms = 1;
        config.slot_bytes = 1024;
        config.paths = EPW_PATH_ALL & ~(uint32_t)EPW_PATH_QUEUE;
        config.deadline_ns = 20000 * MS;
        REQUIRE_OK(epw_comm_create(&config, &comms[r]));
        REQUIRE_CUDA(cudaSetDevice(config.device));
        REQUIRE_CUDA(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
        REQUIRE_CUDA(cudaMalloc((void **)&memory[r], BESIDE * sizeof(float)));
        for (uint32_t i = 0; i < BESIDE; i++) values[i] = value_of(r, i, 1);
        REQUIRE_CUDA(cudaMemcpy(memory[r], values, BESIDE * sizeof(float), cudaMemcpyHostToDevice));
    }
    for (uint32_t i = 0; i < MANY * MANY; i++) {
        uint32_t from = i / MANY, to = i % MANY;
        if (from == to) continue;
        REQUIRE_OK(epw_comm_export(comms[from], to, blob, &length));
        REQUIRE_OK(epw_comm_connect(comms[to], from, blob, length));
    }
    for (uint32_t r = 0; r < MANY; r++)
        REQUIRE_OK(epw_comm_register(comms[r], memory[r], BESIDE * sizeof(float), &own[r]));
    for (uint32_t r = 0; r < MANY; r++) REQUIRE_OK(epw_comm_set_active(comms[r], &members, 1, 0));
    for (uint32_t r = 0; r < MANY; r++) {
        uint32_t peer = (r + 1) % MANY;
        REQUIRE_OK(epw_comm_export_registration(comms[r], own[r], peer, blob, &length));
        REQUIRE_OK(epw_comm_import_registration(comms[peer], r, blob, length, &theirs));
        REQUIRE(theirs == own[r], "the number is another one");
        REQUIRE_OK(epw_comm_lend(comms[r], own[r], &members));
    }
    for (uint32_t r = 0; r < MANY; r++) {
        epw_call call = EPW_CALL_INIT;
        call.stream = streams[r];
        REQUIRE_CUDA(cudaSetDevice((int)(r % gpus)));
        REQUIRE_OK(
            epw_all_reduce(comms[r], memory[r], memory[r], BESIDE, EPW_TYPE_F32, EPW_SUM, &call, NULL));
    }
    for (uint32_t r = 0; r < MANY; r++) await_stream(streams[r], 60000 * MS, "a sum of many ranks");
    for (uint32_t r = 0; r < MANY; r += LAST) {
        REQUIRE_CUDA(cudaMemcpy(values, memory[r], BESIDE * sizeof(float), cudaMemcpyDeviceToHost));
        for (uint32_t i = 0; i < BESIDE; i++) {
            float sum = 0;
            for (uint32_t p = 0; p < MANY; p++) sum += value_of(p, i, 1);
            REQUIRE(values[i] == sum, "rank %u: sum %u is %g", r, i, (double)values[i]);
        }
    }
    for (uint32_t r = 0; r < MANY; r++) {
        REQUIRE_OK(epw_comm_unmap(comms[(r + 1) % MANY], r, own[r]));
        REQUIRE_OK(epw_comm_deregister(comms[r], own[r]));
    }
    for (uint32_t r = 0; r < MANY; r++) epw_comm_destroy(comms[r]);
    for (uint32_t r = 0; r < MANY; r++) REQUIRE_CUDA(cudaFree(memory[r]));
}

static const gpu_case cases[] = {{"refused", refused, 1, 60},   {"damaged", damaged, 1, 60},
                                 {"lent", lent, 1, 60},         {"graphs", graphs, 1, 60},
                                 {"replaced", replaced, 1, 60}, {"queues", queues, 1, 60},
                                 {"many", many, 1, 60}};

int main(int argc, char **argv) {
    return cases_main("registered", cases, sizeof cases / sizeof cases[0], argc, argv);
}
