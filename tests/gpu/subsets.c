/* Communicators of some of the ranks of one on GPUs, which meet by exchanges of that one: disjoint ones at
 * the same time, ranks in none, subsets of subsets and on the host, between calls that are enqueued before
 * and behind, and beside a capture. Then masks that overlap, ranks that cannot make their part or have no
 * memory for it, that call something else, do not come, or come too late. EPW_TEST_PATH and EPW_TEST_WIRE
 * (ranks.h) say how the ranks reach each other.
 *
 *     test_subsets [--ranks N] [--processes] [--seconds N]
 */
#include "ranks.h"

#include "base/status.h"
#include "require.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { COUNT = 5000, WORDS = 96, COMMS = 4 }; /* COMMS: the most that a rank has at the same time */

static uint32_t ranks, processes, seconds = 200;

typedef struct place {
    const rank_links *links;
    epw_comm *comm;
    epw_fabric *fabric; /* NULL: no queues */
    cudaStream_t stream;
    uint32_t *send, *recv; /* on the GPU, COUNT each */
    uint32_t epoch;
} place;

/* What a call of a rank is to give. */
typedef struct expected {
    epw_status status;
    const char *words; /* of the error */
} expected;

static uint64_t all_of(uint32_t count) {
    return (UINT64_C(1) << count) - 1;
}

static uint32_t last_of(const place *p) {
    return p->links->ranks - 1;
}

static void activate(place *p) {
    epw_mask all = {{all_of(p->links->ranks)}};
    ranks_meet(p->links);
    REQUIRE_OK(epw_comm_set_active(p->comm, &all, ++p->epoch, 0));
    ranks_meet(p->links);
}

/* `paths` and `fabric` of a rank, as the environment says. */
static void reach(const place *p, epw_comm_config *config, uint32_t rank, uint32_t of) {
    epw_config path = EPW_CONFIG_INIT;
    path.rank = rank;
    path.ranks = of;
    path.device = ranks_gpu(p->links);
    ranks_path(&path);
    config->paths = path.paths;
    config->fabric = path.fabric;
}

static epw_comm_config config_of(const place *p, uint64_t deadline_ns) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.rank = p->links->rank;
    config.ranks = p->links->ranks;
    config.device = ranks_gpu(p->links);
    config.sms = ranks_sms(p->links, COMMS, 2);
    config.deadline_ns = deadline_ns;
    return config;
}

static place open_place(const rank_links *links, uint64_t deadline_ns) {
    place p = {.links = links};
    epw_comm_config config = config_of(&p, deadline_ns);
    reach(&p, &config, links->rank, links->ranks);
    p.fabric = config.fabric;
    REQUIRE_CUDA(cudaSetDevice(config.device));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&p.stream, cudaStreamNonBlocking));
    REQUIRE_CUDA(cudaMalloc((void **)&p.send, COUNT * sizeof *p.send));
    REQUIRE_CUDA(cudaMalloc((void **)&p.recv, COUNT * sizeof *p.recv));
    REQUIRE_OK(epw_comm_create(&config, &p.comm));
    ranks_connect_comm(links, p.comm);
    for (uint32_t r = 0; r < links->ranks; r++) ranks_require_path(links, r, epw_comm_path(p.comm, r));
    activate(&p);
    return p;
}

static void close_place(place *p) {
    ranks_meet(p->links);
    epw_comm_destroy(p->comm);
    epw_fabric_destroy(p->fabric);
    REQUIRE_CUDA(cudaFree(p->send));
    REQUIRE_CUDA(cudaFree(p->recv));
    REQUIRE_CUDA(cudaStreamDestroy(p->stream));
}

/* ---- sums ---- */

static void fill(const place *p) {
    static _Thread_local uint32_t values[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) values[i] = (p->links->rank + 1) * 1000 + i;
    REQUIRE_CUDA(cudaMemcpyAsync(p->send, values, sizeof values, cudaMemcpyHostToDevice, p->stream));
    REQUIRE_CUDA(cudaMemsetAsync(p->recv, 0xff, sizeof values, p->stream));
    await_stream(p->stream, 60000 * MS, "filling");
}

static void enqueue_sum(const place *p, epw_comm *comm, cudaStream_t stream) {
    epw_call call = EPW_CALL_INIT;
    call.stream = stream;
    REQUIRE_OK(epw_all_reduce(comm, p->send, p->recv, COUNT, EPW_TYPE_U32, EPW_SUM, &call, NULL));
}

/* The sum is awaited before the copy, because a copy to pageable memory that waits for a kernel holds up
 * those of other ranks of the process. */
static void require_sum(const place *p, uint64_t mask, const char *what) {
    static _Thread_local uint32_t values[COUNT];
    await_stream(p->stream, 60000 * MS, what);
    REQUIRE_CUDA(cudaMemcpyAsync(values, p->recv, sizeof values, cudaMemcpyDeviceToHost, p->stream));
    await_stream(p->stream, 60000 * MS, what);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t wanted = 0;
        for (uint32_t r = 0; r < p->links->ranks; r++) wanted += mask >> r & 1 ? (r + 1) * 1000 + i : 0;
        REQUIRE(values[i] == wanted, "%s: rank %u: sum %u is %u, not %u", what, p->links->rank, i, values[i],
                wanted);
    }
}

static void use(const place *p, epw_comm *comm, uint64_t mask, const char *what) {
    fill(p);
    enqueue_sum(p, comm, p->stream);
    require_sum(p, mask, what);
}

/* ---- subsets ---- */

/* A subset, and the fabric that its queues need. */
typedef struct part {
    epw_comm *comm;
    epw_fabric *fabric;
} part;

/* `config`: NULL: the parent's, with a fabric of its own where there are queues. */
static part take(const place *p, epw_comm *of, uint64_t bits, const epw_comm_config *config, expected e,
                 const char *what) {
    const epw_mask mask = {{bits}};
    uint32_t me = p->links->rank, index = (uint32_t)__builtin_popcountll(bits & (all_of(me + 1) >> 1));
    epw_comm_config own = config != NULL ? *config : config_of(p, 10000 * MS);
    part made = {.comm = of};
    if (p->fabric != NULL) {
        reach(p, &own, index, (uint32_t)__builtin_popcountll(bits));
        made.fabric = own.fabric;
        config = &own;
    }
    epw_status status = epw_comm_subset(of, &mask, config, &made.comm);
    REQUIRE(status == e.status, "%s: rank %u: status %d, not %d: %s", what, me, status, e.status,
            epw_last_error());
    int within = status == EPW_OK && (bits >> me & 1);
    REQUIRE((made.comm != NULL) == within, "%s: rank %u: it is %p", what, me, (void *)made.comm);
    if (status != EPW_OK)
        REQUIRE(strstr(epw_last_error(), e.words) != NULL, "%s: %s lacks %s", what, epw_last_error(),
                e.words);
    return made;
}

/* All ranks at once: freeing memory waits for all kernels of the GPU, also those of ranks that have gone on.
 */
static void give(const place *p, const part *made) {
    ranks_meet(p->links);
    epw_comm_destroy(made->comm);
    epw_fabric_destroy(made->fabric);
    ranks_meet(p->links);
}

static const expected well = {EPW_OK, ""};

/* Each rank passes a mask of its own. */
static void split(const place *p, uint64_t mask, const epw_comm_config *config, expected e,
                  const char *what) {
    part made = take(p, p->comm, mask, config, e, what);
    ranks_meet(p->links); /* as for give: a call that fails frees what was made */
    if (made.comm != NULL) {
        epw_membership now = EPW_MEMBERSHIP_INIT;
        REQUIRE_OK(epw_comm_membership(made.comm, &now));
        REQUIRE(now.epoch == p->epoch && now.step == 0, "%s: epoch %u", what, now.epoch);
        use(p, made.comm, mask, what);
    }
    use(p, p->comm, all_of(p->links->ranks), what); /* which goes on; and all are done with the subset */
    give(p, &made);
}

static void divide(const place *p) {
    uint32_t me = p->links->rank, last = last_of(p);
    uint64_t all = all_of(p->links->ranks), even = 0x55 & all;
    split(p, all, NULL, well, "all");
    split(p, me % 2 == 0 ? even : all & ~even, NULL, well, "even and odd");
    split(p, UINT64_C(1) << me, NULL, well, "each alone");
    split(p, me == last ? 0 : all >> 1, NULL, well, "all but the last");
    split(p, UINT64_C(1) << last, NULL, well, "the last alone");
}

/* The ranks of a subset divide again, each other rank without it; and a subset on the host, whose ranks then
 * make one on GPUs. */
static void nest(const place *p) {
    uint32_t me = p->links->rank;
    uint64_t all = all_of(p->links->ranks);
    epw_comm_config config = config_of(p, 10000 * MS);
    config.device = EPW_DEVICE_HOST;
    config.sms = 0;
    part first = take(p, p->comm, all, NULL, well, "a first one");
    part second = take(p, first.comm, UINT64_C(1) << me, NULL, well, "one of the first");
    use(p, second.comm, UINT64_C(1) << me, "one of the first");
    part host = take(p, first.comm, all, &config, well, "one on the host");
    uint32_t own = me + 1, sum = 0;
    REQUIRE_OK(epw_all_reduce(host.comm, &own, &sum, 1, EPW_TYPE_U32, EPW_SUM, NULL, NULL));
    REQUIRE(sum == p->links->ranks * (p->links->ranks + 1) / 2, "the host's sum is %u", sum);
    config = config_of(p, 10000 * MS);
    part again = take(p, host.comm, all, &config, well, "one of the host's");
    use(p, again.comm, all, "one of the host's");
    give(p, &again);
    give(p, &host);
    give(p, &second);
    give(p, &first);
}

/* ---- beside the caller's work ---- */

static void pause_stream(void *until) {
    while (!atomic_load((atomic_int *)until)) nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* What waits on a stream is released after a while, by this thread. */
typedef struct holding {
    atomic_int released;
    uint32_t after_ms;
    pthread_t thread;
} holding;

static void *release(void *of) {
    holding *h = of;
    nanosleep(&(struct timespec){h->after_ms / 1000, h->after_ms % 1000 * 1000000}, NULL);
    atomic_store(&h->released, 1);
    return NULL;
}

static void hold(const place *p, holding *h, uint32_t ms) {
    *h = (holding){.after_ms = ms};
    REQUIRE_CUDA(cudaLaunchHostFunc(p->stream, pause_stream, &h->released));
    REQUIRE(pthread_create(&h->thread, NULL, release, h) == 0, "a thread");
}

/* A sum that is enqueued before runs first, though its stream stands still at one rank; one that is enqueued
 * behind, on another stream, runs after it. */
static void keep_order(const place *p) {
    const uint64_t all = all_of(p->links->ranks);
    cudaStream_t other;
    holding h;
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    fill(p);
    if (p->links->rank == 0) hold(p, &h, 300);
    enqueue_sum(p, p->comm, p->stream);
    part made = take(p, p->comm, all, NULL, well, "behind a sum");
    REQUIRE_CUDA(cudaStreamQuery(p->stream)); /* it has run */
    require_sum(p, all, "before a subset");
    fill(p);
    enqueue_sum(p, p->comm, other);
    await_stream(other, 60000 * MS, "behind a subset");
    require_sum(p, all, "behind a subset");
    if (p->links->rank == 0) pthread_join(h.thread, NULL);
    give(p, &made);
    REQUIRE_CUDA(cudaStreamDestroy(other));
}

/* A stream of the caller's is under capture, whose mode forbids this thread much; the communicator's call is
 * in that graph. */
static void capture_meanwhile(const place *p) {
    const uint64_t all = all_of(p->links->ranks);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    use(p, p->comm, all, "before a capture");
    REQUIRE_CUDA(cudaStreamBeginCapture(p->stream, cudaStreamCaptureModeThreadLocal));
    enqueue_sum(p, p->comm, p->stream);
    part made = take(p, p->comm, all, NULL, well, "beside a capture");
    REQUIRE_CUDA(cudaStreamEndCapture(p->stream, &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        fill(p);
        REQUIRE_CUDA(cudaGraphLaunch(exec, p->stream));
        require_sum(p, all, "a replay");
        use(p, made.comm, all, "made beside a capture");
    }
    give(p, &made);
    REQUIRE_CUDA(cudaGraphExecDestroy(exec));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
}

/* ---- exchanges ---- */

static unsigned char byte_of(uint32_t from, uint32_t to, uint64_t i) {
    return (unsigned char)(31 * from + 7 * to + i);
}

static void exchange(const place *p, uint64_t bytes, uint64_t deadline_ns) {
    static _Thread_local unsigned char memory[RANKS_LIMIT * EPW_EXCHANGE_MAX];
    uint32_t me = p->links->rank, count = p->links->ranks;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    for (uint64_t i = 0; i < count * bytes; i++) memory[i] = byte_of(me, (uint32_t)(i / bytes), i % bytes);
    REQUIRE_OK(epw_comm_exchange(p->comm, memory, bytes, deadline_ns, bytes % 2 ? &outcome : NULL));
    REQUIRE(!outcome.degraded, "degraded");
    for (uint64_t i = 0; i < count * bytes; i++)
        REQUIRE(memory[i] == byte_of((uint32_t)(i / bytes), me, i % bytes), "%llu bytes: byte %llu",
                (unsigned long long)bytes, (unsigned long long)i);
}

static void refuse(const place *p) {
    unsigned char memory[RANKS_LIMIT];
    epw_outcome outcome = {.size = 3};
    const struct {
        epw_status status, wanted;
    } calls[] = {{epw_comm_exchange(p->comm, NULL, 1, 0, NULL), EPW_ERR_INVALID},
                 {epw_comm_exchange(p->comm, memory, 0, 0, NULL), EPW_ERR_LIMIT},
                 {epw_comm_exchange(p->comm, memory, EPW_EXCHANGE_MAX + 1, 0, NULL), EPW_ERR_LIMIT},
                 {epw_comm_exchange(p->comm, memory, 1, 0, &outcome), EPW_ERR_INVALID}};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        REQUIRE(calls[i].status == calls[i].wanted, "call %zu: status %d", i, calls[i].status);
}

static void exchange_all(const place *p) {
    static const uint64_t sizes[] = {1, 16, 1031, 4096, 65535, EPW_EXCHANGE_MAX, 3};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) exchange(p, sizes[i], 0);
    refuse(p);
}

/* The last rank comes after the deadline of the communicator, and not after that of the exchange. */
static void exchange_patiently(const rank_links *links) {
    enum { DEADLINE = 2000 };
    place p = open_place(links, DEADLINE * MS);
    if (links->rank == last_of(&p)) nanosleep(&(struct timespec){2 * DEADLINE / 1000, 0}, NULL);
    exchange(&p, 1031, 30000 * MS);
    close_place(&p);
}

/* ---- failures ---- */

/* With two ranks both masks contain the last one. */
static void overlap(const place *p) {
    uint32_t me = p->links->rank, last = last_of(p);
    uint64_t all = all_of(p->links->ranks), high = UINT64_C(1) << last;
    char words[WORDS];
    snprintf(words, sizeof words, "peer %u: its mask begins with %llx, this rank's with %llx",
             me == last ? 0 : last, (unsigned long long)(me == last ? all : high),
             (unsigned long long)(me == last ? high : all));
    split(p, me == last ? high : all, NULL, (expected){EPW_ERR_MISMATCH, words}, "overlapping masks");
}

static void cannot_make(const place *p) {
    uint32_t me = p->links->rank, last = last_of(p);
    epw_comm_config wrong = config_of(p, 10000 * MS);
    char words[WORDS];
    wrong.slots = 3;
    snprintf(words, sizeof words, "peer %u: it could not make", last);
    if (me == last) {
        split(p, all_of(p->links->ranks), &wrong, (expected){EPW_ERR_LIMIT, "config.slots is 3"}, "slots");
    } else {
        split(p, all_of(p->links->ranks), NULL, (expected){EPW_ERR_PEER, words}, "slots of a peer");
    }
}

/* ---- failures that end a membership ---- */

/* The last rank does something instead, or gets something else. The next membership has it again. */
static void without_last(place *p, part (*instead)(const place *p), expected others, const char *what) {
    const uint64_t all = all_of(p->links->ranks);
    int last = p->links->rank == last_of(p);
    part made = last ? instead(p) : take(p, p->comm, all, NULL, others, what);
    give(p, &made);
    activate(p);
    use(p, p->comm, all, what);
    split(p, all, NULL, well, what);
}

static part not_come(const place *p) {
    (void)p;
    return (part){NULL, NULL};
}

static part call_a_sum(const place *p) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_work work = 0;
    epw_call call = EPW_CALL_INIT;
    call.stream = p->stream;
    call.work = &work;
    REQUIRE_OK(epw_all_reduce(p->comm, p->send, p->recv, COUNT, EPW_TYPE_U32, EPW_SUM, &call, NULL));
    epw_status status = epw_work_wait(p->comm, work, 60000 * MS, &outcome);
    REQUIRE(status == EPW_ERR_MISMATCH, "status %d: %s", status, epw_last_error());
    REQUIRE(strstr(epw_last_error(), "all_to_all of ") != NULL && strstr(epw_last_error(), "all_reduce of "),
            "%s", epw_last_error());
    return (part){NULL, NULL};
}

/* The next allocation of this thread of so many bytes fails: that of the memory of exchanges. */
static _Thread_local uint64_t failing;
epw_status __real_epw_cuda_alloc(int32_t ordinal, uint64_t bytes, epw_where where, void **out);
epw_status __wrap_epw_cuda_alloc(int32_t ordinal, uint64_t bytes, epw_where where, void **out);
epw_status __wrap_epw_cuda_alloc(int32_t ordinal, uint64_t bytes, epw_where where, void **out) {
    if (bytes != failing) return __real_epw_cuda_alloc(ordinal, bytes, where, out);
    failing = 0;
    return epw_fail(EPW_ERR_NO_MEMORY, where, "the test gives no memory");
}

static part have_no_memory(const place *p) {
    failing = 65536;
    part made = take(p, p->comm, all_of(p->links->ranks), NULL,
                     (expected){EPW_ERR_NO_MEMORY, "the test gives no memory"}, "no memory");
    REQUIRE(failing == 0, "memory was given");
    return made;
}

/* A rank whose stream stands still for longer than anybody waits. */
static void come_late(const rank_links *links, expected others) {
    enum { DEADLINE = 2000 };
    place p = open_place(links, DEADLINE * MS);
    int late = links->rank == last_of(&p);
    holding h;
    fill(&p);
    if (late) hold(&p, &h, 2 * EPW_WAIT_DEADLINES_MAX * DEADLINE + 1000);
    enqueue_sum(&p, p.comm, p.stream);
    part made = take(&p, p.comm, all_of(links->ranks), NULL,
                     late ? (expected){EPW_ERR_TIMEOUT, "the GPU has not run"} : others,
                     "a stream that stands still");
    give(&p, &made);
    await_stream(p.stream, 60000 * MS, "what stood still");
    if (late) pthread_join(h.thread, NULL);
    close_place(&p);
}

static void lose_last(const rank_links *links) {
    char missing[WORDS];
    snprintf(missing, sizeof missing, "peer %u: it is missing", links->ranks - 1);
    place p = open_place(links, 3000 * MS); /* where nothing was exchanged yet */
    without_last(&p, have_no_memory, (expected){EPW_ERR_PEER, missing}, "a rank without memory");
    without_last(&p, not_come, (expected){EPW_ERR_PEER, missing}, "a rank that does not come");
    without_last(&p, call_a_sum, (expected){EPW_ERR_MISMATCH, "all_reduce of 5000 u32 (sum)"},
                 "a rank that calls a sum");
    close_place(&p);
    come_late(links, (expected){EPW_ERR_PEER, missing});
}

static int rank_main(const rank_links *links) {
    place p = open_place(links, 10000 * MS);
    exchange_all(&p);
    divide(&p);
    nest(&p);
    keep_order(&p);
    capture_meanwhile(&p);
    if (links->ranks > 1) {
        overlap(&p);
        cannot_make(&p);
    }
    close_place(&p);
    exchange_patiently(links);
    /* A rank that fails frees its memory, while the kernels of the others wait for it: in a context that it
     * shares with them that holds up their calls. */
    int apart = processes || links->gpus >= links->ranks;
    if (links->ranks > 1 && apart) lose_last(links);
    if (links->rank == 0)
        printf("subsets of %u ranks on %u GPUs%s\n", links->ranks, links->gpus,
               apart ? "" : "; no rank was lost, which needs --processes or a GPU for each");
    return 0;
}

int main(int argc, char **argv) {
    const ranks_option options[] = {{.name = "--ranks", .number = &ranks},
                                    {.name = "--processes", .number = &processes, .preset = 1},
                                    {.name = "--seconds", .number = &seconds},
                                    {0}};
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    int bad =
        ranks_options(argc, argv, options, "usage: test_subsets [--ranks N] [--processes] [--seconds N]");
    if (bad) return bad;
    ranks_limit("subsets", seconds);
    return ranks_main(rank_main, ranks, processes, argv);
}
