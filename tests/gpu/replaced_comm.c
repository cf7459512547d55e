/* Communicators on GPUs whose last rank is replaced by another incarnation behind queues, again and again:
 * the former one has left, is missed in an operation, or still exists when the next one connects. The sums of
 * each membership have the bits of the definition, by calls and by graphs that the ranks that stay captured
 * before. Then ranks whose configurations differ, which are refused with the name of the field; and the
 * plan of what peers behind queues take. Ranks are communicators of one thread. Exit code 77, with the
 * reason, if there is no GPU. */
#include "cases.h"

#include "coll/parts.h"
#include "peer/image.h"
#include "peer/sizes.h"

enum { RANKS = 3, LAST = RANKS - 1, ROUNDS = 3, SMS = 2, SMALL = 1021, LARGE = 100003 };
enum { MAPPED = EPW_PATH_SELF | EPW_PATH_THREAD, QUEUED = EPW_PATH_SELF | EPW_PATH_QUEUE };

#define ALL ((UINT64_C(1) << RANKS) - 1)

typedef struct place {
    epw_comm *comm;
    epw_fabric *fabric;
    int32_t device;
    cudaStream_t stream;
    cudaGraphExec_t graph; /* of a large sum */
    float *send, *recv;    /* on the GPU, LARGE of them */
} place;

static place of[RANKS];
static uint32_t wire, epoch;

/* ---- opening ---- */

static epw_fabric *fabric_of(uint32_t rank, int32_t device, uint32_t depth) {
    static const unsigned char key[32] = "known to all ranks of the tests";
    epw_fabric *fabric = NULL;
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    options.rank = rank;
    options.device = device;
    options.queue_depth = depth;
    options.wires = wire;
    if (wire == EPW_WIRE_TCP) {
        options.interfaces = "lo";
        options.key = key;
    }
    REQUIRE_OK(epw_fabric_create(&options, &fabric));
    return fabric;
}

static epw_comm_config config_of(uint32_t rank, uint32_t ranks, int32_t device) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.rank = rank;
    config.ranks = ranks;
    config.device = device;
    config.sms = SMS;
    config.deadline_ns = 20000 * MS;
    return config;
}

/* How deep queues are is each rank's own affair. */
static void open_comm(uint32_t rank, uint32_t depth) {
    place *p = &of[rank];
    epw_comm_config config = config_of(rank, RANKS, p->device);
    config.fabric = p->fabric = fabric_of(rank, p->device, depth);
    config.paths = QUEUED;
    REQUIRE_OK(epw_comm_create(&config, &p->comm));
}

static void connect(uint32_t from, uint32_t to) {
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = 0;
    REQUIRE_OK(epw_comm_export(of[to].comm, from, blob, &length));
    REQUIRE_OK(epw_comm_connect(of[from].comm, to, blob, length));
    REQUIRE(epw_comm_path(of[from].comm, to) == EPW_PATH_QUEUE, "rank %u reaches rank %u by %s", from, to,
            epw_path_name(epw_comm_path(of[from].comm, to)));
}

static void activate(uint64_t members) {
    epoch++;
    for (uint32_t r = 0; r < RANKS; r++)
        if (members >> r & 1) REQUIRE_OK(epw_comm_set_active(of[r].comm, &(epw_mask){{members}}, epoch, 0));
}

/* ---- sums ---- */

/* Values of which sums in another order would have other bits. */
static float value_of(uint32_t rank, uint32_t i) {
    uint32_t h = (i * 2654435761u ^ rank * 40503u) * 2246822519u;
    return (float)(h >> 8) * (h & 1 ? 1e-3f : 1e3f);
}

static float sum_of(uint64_t members, uint32_t i) {
    float sum = 0;
    int begun = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        if (!(members >> r & 1)) continue;
        sum = begun ? sum + value_of(r, i) : value_of(r, i);
        begun = 1;
    }
    return sum;
}

static epw_call on_stream(const place *p) {
    epw_call call = EPW_CALL_INIT;
    call.stream = p->stream;
    return call;
}

static void require_bits(uint64_t members, uint32_t count, const char *what) {
    static float found[LARGE];
    for (uint32_t r = 0; r < RANKS; r++) {
        if (!(members >> r & 1)) continue;
        REQUIRE_CUDA(cudaMemcpyAsync(found, of[r].recv, count * sizeof found[0], cudaMemcpyDeviceToHost,
                                     of[r].stream));
        await_stream(of[r].stream, 60000 * MS, what);
        for (uint32_t i = 0; i < count; i++) {
            float wanted = sum_of(members, i);
            REQUIRE(memcmp(&found[i], &wanted, sizeof wanted) == 0, "%s: rank %u: sum %u is %a, not %a", what,
                    r, i, (double)found[i], (double)wanted);
        }
    }
}

/* All members of the membership call; those in `missing` do not come, and the others miss exactly them. */
static void sum(uint64_t members, uint64_t missing, uint32_t count, const char *what) {
    epw_work works[RANKS] = {0};
    for (uint32_t r = 0; r < RANKS; r++) {
        if (!((members & ~missing) >> r & 1)) continue;
        epw_call call = on_stream(&of[r]);
        call.work = &works[r];
        REQUIRE_CUDA(cudaSetDevice(of[r].device));
        REQUIRE_OK(
            epw_all_reduce(of[r].comm, of[r].send, of[r].recv, count, EPW_TYPE_F32, EPW_SUM, &call, NULL));
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        epw_outcome outcome = EPW_OUTCOME_INIT;
        if (!((members & ~missing) >> r & 1)) continue;
        REQUIRE_OK(epw_work_wait(of[r].comm, works[r], 60000 * MS, &outcome));
        REQUIRE(outcome.missing.bits[0] == missing, "%s: rank %u misses %llx", what, r,
                (unsigned long long)outcome.missing.bits[0]);
    }
    if (missing == 0) require_bits(members, count, what);
}

static void capture(place *p) {
    epw_call call = on_stream(p);
    cudaGraph_t graph = NULL;
    REQUIRE_CUDA(cudaSetDevice(p->device));
    REQUIRE_CUDA(cudaStreamBeginCapture(p->stream, cudaStreamCaptureModeThreadLocal));
    REQUIRE_OK(epw_all_reduce(p->comm, p->send, p->recv, LARGE, EPW_TYPE_F32, EPW_SUM, &call, NULL));
    REQUIRE_CUDA(cudaStreamEndCapture(p->stream, &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&p->graph, graph, 0));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
}

/* The ranks that stay replay; the last one calls. */
static void replay(const char *what) {
    epw_call call = on_stream(&of[LAST]);
    for (uint32_t r = 0; r < RANKS; r++) {
        REQUIRE_CUDA(cudaSetDevice(of[r].device));
        REQUIRE_CUDA(cudaMemsetAsync(of[r].recv, 0, LARGE * sizeof(float), of[r].stream));
        if (r < LAST) REQUIRE_CUDA(cudaGraphLaunch(of[r].graph, of[r].stream));
    }
    REQUIRE_OK(epw_all_reduce(of[LAST].comm, of[LAST].send, of[LAST].recv, LARGE, EPW_TYPE_F32, EPW_SUM,
                              &call, NULL));
    require_bits(ALL, LARGE, what);
}

static void use(const char *what) {
    sum(ALL, 0, SMALL, what);
    sum(ALL, 0, LARGE, what);
    replay(what);
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t faulted = 1;
        REQUIRE_OK(epw_comm_take_fault(of[r].comm, &faulted));
        REQUIRE(faulted == 0, "%s: rank %u reports a fault", what, r);
    }
}

/* ---- replacing ---- */

enum { HAS_LEFT, IS_MISSED, LINGERS };

static void close_comm(place p) {
    REQUIRE_CUDA(cudaSetDevice(p.device));
    epw_comm_destroy(p.comm);
    epw_fabric_destroy(p.fabric);
}

static void replace(uint32_t round) {
    static const char *const whats[] = {"after one has left", "after one was missed",
                                        "beside one that lingers"};
    uint32_t how = round % 3;
    place former = of[LAST];
    if (how != LINGERS) close_comm(former);
    if (how == IS_MISSED) {
        uint32_t faulted = 0;
        sum(ALL, UINT64_C(1) << LAST, LARGE, "without the last rank");
        for (uint32_t r = 0; r < LAST; r++) REQUIRE_OK(epw_comm_take_fault(of[r].comm, &faulted));
    } else {
        activate(ALL >> 1);
        sum(ALL >> 1, 0, LARGE, "without the last rank");
    }
    open_comm(LAST, round % 2 == 0 ? 4096 : 0);
    for (uint32_t r = 0; r < LAST; r++) { /* either may be first */
        connect(r % 2 == 0 ? r : LAST, r % 2 == 0 ? LAST : r);
        connect(r % 2 == 0 ? LAST : r, r % 2 == 0 ? r : LAST);
    }
    activate(ALL);
    use(whats[how]);
    if (how == LINGERS) {
        close_comm(former);
        use("after the one that lingered");
    }
}

static void open_place(uint32_t rank, uint32_t gpus) {
    static float values[LARGE];
    place *p = &of[rank];
    p->device = (int32_t)(rank % gpus);
    REQUIRE_CUDA(cudaSetDevice(p->device));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking));
    REQUIRE_CUDA(cudaMalloc((void **)&p->send, sizeof values));
    REQUIRE_CUDA(cudaMalloc((void **)&p->recv, sizeof values));
    for (uint32_t i = 0; i < LARGE; i++) values[i] = value_of(rank, i);
    REQUIRE_CUDA(cudaMemcpy(p->send, values, sizeof values, cudaMemcpyHostToDevice));
    open_comm(rank, 0);
}

static void close_place(place p) {
    close_comm(p);
    if (p.graph != NULL) REQUIRE_CUDA(cudaGraphExecDestroy(p.graph));
    REQUIRE_CUDA(cudaStreamDestroy(p.stream));
    REQUIRE_CUDA(cudaFree(p.send));
    REQUIRE_CUDA(cudaFree(p.recv));
}

static void replaced_by(uint32_t by, uint32_t gpus) {
    wire = by;
    for (uint32_t r = 0; r < RANKS; r++) open_place(r, gpus);
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t p = 0; p < RANKS; p++)
            if (p != r) connect(r, p);
    activate(ALL);
    for (uint32_t r = 0; r < LAST; r++) capture(&of[r]);
    use("at first");
    for (uint32_t round = 0; round < ROUNDS; round++) replace(round);
    for (uint32_t r = 0; r < RANKS; r++) close_place(of[r]);
}

static void replaced(uint32_t gpus) {
    replaced_by(EPW_WIRE_LOCAL, gpus);
}

static void replaced_tcp(uint32_t gpus) {
    replaced_by(EPW_WIRE_TCP, gpus);
}

/* ---- configurations that differ ---- */

typedef struct difference {
    const char *text; /* of the error, at rank 0 */
    void (*make)(epw_comm_config *config);
} difference;

static void ranks_3(epw_comm_config *config) {
    config->ranks = 3;
}
static void slots_4(epw_comm_config *config) {
    config->slots = 4;
}
static void slots_of_64(epw_comm_config *config) {
    config->slot_bytes = 64;
}
static void a_heap(epw_comm_config *config) {
    config->heap_bytes = 64;
}
static void another_deadline(epw_comm_config *config) {
    config->deadline_ns /= 2;
}
static void one_sm(epw_comm_config *config) {
    config->sms = 1;
}
static void the_host(epw_comm_config *config) {
    config->device = EPW_DEVICE_HOST;
}
static void the_other_permission(epw_comm_config *config) {
    config->paths ^= EPW_PATH_QUEUE;
}

static const difference differences[] = {
    {"ranks is 2 here and 3 at peer 1", ranks_3},
    {"slots is 8 here and 4 at peer 1", slots_4},
    {"slot_bytes is 32768 here and 64 at peer 1", slots_of_64},
    {"heap_bytes is 0 here and 64 at peer 1", a_heap},
    {"deadline_ns is 20000000000 here and 10000000000 at peer 1", another_deadline},
    {"sms is 2 here and 1 at peer 1", one_sm},
    {"device is a GPU here and the host at peer 1", the_host},
    {"permission of queues, from fabric and paths, is", the_other_permission},
};

static void refuses(epw_comm *from, uint32_t rank, epw_comm *to, const char *text) {
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = 0;
    REQUIRE_OK(epw_comm_export(to, rank, blob, &length));
    epw_status status = epw_comm_connect(from, 1 - rank, blob, length);
    REQUIRE(status == EPW_ERR_MISMATCH, "%s: status %d: %s", text, status, epw_last_error());
    /* Up to the values, of which the peer has the other one. */
    const char *is = strstr(text, " is ");
    char named[64];
    snprintf(named, sizeof named, "%.*s", rank == 0 ? (int)strlen(text) : (int)(is + 4 - text), text);
    REQUIRE(strstr(epw_last_error(), named) != NULL, "%s: %s", named, epw_last_error());
    REQUIRE(epw_comm_path(from, 1 - rank) == EPW_PATH_NONE, "%s: it is connected", text);
}

/* Rank 0 has the configuration as it should be. */
static void differ_by(uint32_t paths) {
    epw_fabric *fabrics[2] = {fabric_of(0, 0, 0), fabric_of(1, 0, 0)};
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++) {
        epw_comm *comms[2] = {NULL, NULL};
        for (uint32_t r = 0; r < 2; r++) {
            epw_comm_config config = config_of(r, 2, 0);
            config.fabric = fabrics[r];
            config.paths = paths;
            if (r == 1) differences[i].make(&config);
            REQUIRE_OK(epw_comm_create(&config, &comms[r]));
        }
        refuses(comms[0], 0, comms[1], differences[i].text);
        refuses(comms[1], 1, comms[0], differences[i].text);
        for (uint32_t r = 0; r < 2; r++) epw_comm_destroy(comms[r]);
    }
    for (uint32_t r = 0; r < 2; r++) epw_fabric_destroy(fabrics[r]);
}

static void differ(uint32_t gpus) {
    (void)gpus;
    wire = EPW_WIRE_LOCAL;
    differ_by(QUEUED);
    differ_by(MAPPED);
}

/* ---- what peers behind queues take ---- */

/* The size of the mapping that begins there, such as that of an inbox, which no other is joined with. */
static uint64_t mapped_at(const void *memory) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    uint64_t found = 0;
    REQUIRE(maps != NULL, "/proc/self/maps");
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long long begin = 0, end = 0;
        if (sscanf(line, "%llx-%llx", &begin, &end) == 2 && begin == (uintptr_t)memory) found = end - begin;
    }
    fclose(maps);
    return found;
}

/* The sizes of epw_comm_plan are those that a communicator has. */
static void sizes_by(uint32_t gpus, uint32_t paths, uint32_t queue_depth) {
    for (uint32_t r = 0; r < 2; r++) {
        epw_comm_config config = config_of(r, 2, (int32_t)(r % gpus));
        epw_comm_sizes planned = EPW_COMM_SIZES_INIT;
        config.paths = paths;
        config.heap_bytes = 4096;
        config.queue_depth = queue_depth;
        REQUIRE_OK(epw_comm_plan(&config, &planned));
        config.fabric = of[r].fabric = fabric_of(r, config.device, 0);
        REQUIRE_OK(epw_comm_create(&config, &of[r].comm));
        const epw_peers *peers = &of[r].comm->peers;
        uint64_t window = of[r].comm->layout.window_bytes, inbox = mapped_at(peers->inbox);
        REQUIRE(planned.window_bytes == window && planned.sms == SMS && planned.heap_bytes == 4096,
                "a window of %llu bytes, not %llu", (unsigned long long)window,
                (unsigned long long)planned.window_bytes);
        REQUIRE(planned.inbox_bytes == inbox, "an inbox of %llu bytes, not %llu", (unsigned long long)inbox,
                (unsigned long long)planned.inbox_bytes);
        epw_remote_shape shape = epw_peers_shape(peers);
        if (paths & EPW_PATH_QUEUE)
            REQUIRE(planned.image_bytes == epw_images_bytes(&shape) && planned.image_bytes > 0 &&
                        planned.queue_bytes == epw_rings_bytes(&shape) && shape.depth >= queue_depth,
                    "images of %llu bytes and queues of %llu", (unsigned long long)planned.image_bytes,
                    (unsigned long long)planned.queue_bytes);
        else
            REQUIRE(planned.image_bytes == 0 && planned.queue_bytes == 0, "there are no queues");
    }
    if (paths & EPW_PATH_QUEUE) {
        connect(0, 1);
        epw_stretch last;
        const epw_peers *peers = &of[0].comm->peers;
        epw_remote_shape shape = epw_peers_shape(peers);
        uint64_t end = epw_image_offset(peers, 1, 0, EPW_AREAS - 1, &last) + last.bytes;
        REQUIRE(end + EPW_IMAGE_ALIGN > epw_images_bytes(&shape) && end <= epw_images_bytes(&shape),
                "images end at %llu", (unsigned long long)end);
    }
    for (uint32_t r = 0; r < 2; r++) close_comm(of[r]);
}

static void sizes(uint32_t gpus) {
    wire = EPW_WIRE_LOCAL;
    sizes_by(gpus, QUEUED, 0);
    sizes_by(gpus, QUEUED, EPW_QUEUE_DEPTH_MAX);
    sizes_by(gpus, MAPPED, 0);
}

static const gpu_case cases[] = {{"replaced", replaced, 1, 120},
                                 {"replaced_tcp", replaced_tcp, 1, 120},
                                 {"differ", differ, 1, 60},
                                 {"sizes", sizes, 1, 60}};

int main(int argc, char **argv) {
    return cases_main("replaced_comm", cases, sizeof cases / sizeof cases[0], argc, argv);
}
