/* Communicators of more ranks than bulk copies fold, on GPUs against the host engine, bit for bit: each kind,
 * of few bytes and of many, called and replayed from a graph; and a message from each rank to each. What is
 * too much for a GPU is refused: the error names the field and the limit, and the next operation is whole.
 * EPW_TEST_PATH and EPW_TEST_WIRE (ranks.h) say how the communicators on GPUs reach their peers.
 *
 *     test_wide_comms [--ranks N] [--rings] [--deadline-ms N] [--seconds N]
 *
 * Ranks are threads of this process, 12 if --ranks does not say otherwise. --rings: no operation goes by
 * lines. */
#include "coll/gpu/gpu.h"
#include "both.h"

#include <string.h>

enum { REPLAYS = 2 };
#define POOL_BYTES (UINT64_C(16) << 20)
#define SEND_AT    (GUARD + UINT64_C(16))
#define RECV_AT    (GUARD + UINT64_C(48))

static uint32_t ranks = 12, seconds = 120;

/* ---- operations ---- */

static int has_blocks_of_send(uint32_t kind) {
    return kind == EPW_REDUCE_SCATTER || kind == EPW_ALL_TO_ALL || kind == EPW_SCATTER;
}
static int has_blocks_of_recv(uint32_t kind) {
    return kind == EPW_ALL_GATHER || kind == EPW_ALL_TO_ALL || kind == EPW_GATHER;
}

/* As all ranks call it, with the bytes that a rank has on either side. */
typedef struct shape {
    uint32_t kind, type, op, root;
    int in_place;
    uint64_t count, send_bytes, recv_bytes;
} shape;

/* The larger buffer has about so many bytes. Types, reductions and roots change from one to the next. */
static shape make_shape(uint32_t kind, uint64_t bytes, uint32_t n, uint64_t number) {
    shape s = {.kind = kind,
               .type = (uint32_t)(number * 7 % 10),
               .op = (uint32_t)(number * 3 % 5),
               .root = (uint32_t)(n - 1 - number % n),
               .in_place = kind == EPW_ALL_REDUCE && number % 3 == 1};
    s.count = bytes / sizes[s.type] / (has_blocks_of_send(kind) || has_blocks_of_recv(kind) ? n : 1);
    if (kind == EPW_BARRIER) return s;
    s.send_bytes = s.count * sizes[s.type] * (has_blocks_of_send(kind) ? n : 1);
    s.recv_bytes = s.count * sizes[s.type] * (has_blocks_of_recv(kind) ? n : 1);
    return s;
}

static epw_coll coll_of(const shape *s, const side *on) {
    epw_coll c = EPW_COLL_INIT;
    c.kind = s->kind;
    c.type = s->type;
    c.op = s->op;
    c.peer = s->root;
    c.count = s->count;
    c.recv = on->recv + RECV_AT;
    c.send = s->in_place ? c.recv : on->send + SEND_AT;
    return c;
}

static void fill_pools(const rank_state *r, const shape *s, uint64_t state) {
    const int any = s->op == EPW_MIN || s->op == EPW_MAX; /* sums of NaNs may have any sign */
    const uint64_t own = state * 64 + r->links->rank;
    unsigned char *send = r->host.send + SEND_AT, *recv = r->host.recv + RECV_AT;
    memset(send - GUARD, 0xa5, s->send_bytes + 2 * GUARD);
    memset(recv - GUARD, 0x5a, s->recv_bytes + 2 * GUARD);
    if (s->in_place) {
        fill(recv, s->recv_bytes, s->type, any, own);
    } else {
        fill(send, s->send_bytes, s->type, any, own);
    }
    copy_to_gpu(r, r->gpu.send + SEND_AT - GUARD, send - GUARD, s->send_bytes + 2 * GUARD);
    copy_to_gpu(r, r->gpu.recv + RECV_AT - GUARD, recv - GUARD, s->recv_bytes + 2 * GUARD);
    await_all(r, "copies");
}

static void compare_with_host(const rank_state *r, const shape *s, uint64_t number) {
    const epw_coll c = coll_of(s, &r->host);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    char words[120];
    REQUIRE_OK(epw_group(r->host.comm, &c, 1, NULL, &outcome));
    REQUIRE(outcome.degraded == 0, "on the host: missing %llx", (unsigned long long)outcome.missing.bits[0]);
    snprintf(words, sizeof words, "case %llu, kind %u type %u op %u root %u count %llu%s",
             (unsigned long long)number, s->kind, s->type, s->op, s->root, (unsigned long long)s->count,
             s->in_place ? " in place" : "");
    require_same(r, r->host.recv + RECV_AT, r->gpu.recv + RECV_AT, s->recv_bytes, "recv", words);
    require_same(r, r->host.send + SEND_AT, r->gpu.send + SEND_AT, s->send_bytes, "send", words);
}

static void run_called(const rank_state *r, const shape *s, uint64_t number) {
    const epw_coll c = coll_of(s, &r->gpu);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    fill_pools(r, s, number);
    REQUIRE_OK(call_and_wait(r, &c, &outcome));
    REQUIRE(outcome.degraded == 0, "case %llu, rank %u: missing %llx, cause %u", (unsigned long long)number,
            r->links->rank, (unsigned long long)outcome.missing.bits[0], outcome.record.cause);
    compare_with_host(r, s, number);
}

static void run_replayed(const rank_state *r, const shape *s, uint64_t number) {
    const epw_coll c = coll_of(s, &r->gpu);
    cudaGraphExec_t exec = capture(r, &c, 1);
    for (uint64_t i = 0; i < REPLAYS; i++) {
        fill_pools(r, s, number + 1000 * (i + 1));
        REQUIRE_CUDA(cudaGraphLaunch(exec, r->stream));
        await_all(r, "a replay");
        compare_with_host(r, s, number);
    }
    REQUIRE_CUDA(cudaGraphExecDestroy(exec));
}

/* Bytes that a rank sends to all its peers together, in an all-reduce that is not shared out: packets carry
 * the first, lines or packets the next two, of which the second is shared out. Of the last a broadcast goes
 * in pieces. */
static void run_operations(const rank_state *r) {
    static const uint64_t volumes[] = {0, 3000, 500000, 1500000, 6000000};
    const uint32_t n = r->links->ranks;
    uint64_t number = 0;
    epw_call call = on_stream(r);
    ranks_begin_alone(r->links);
    REQUIRE_OK(epw_barrier(r->gpu.comm, &call, NULL));
    ranks_end_alone(r->links);
    await_all(r, "the first operation");
    for (uint32_t i = 0; i < sizeof volumes / sizeof volumes[0]; i++) {
        for (uint32_t kind = EPW_BARRIER; kind <= EPW_SCATTER; kind++, number++) {
            const uint64_t bytes = volumes[i] / n;
            const shape s = make_shape(kind, bytes, n, number);
            if (number % 4 == 3) {
                run_replayed(r, &s, number);
            } else {
                run_called(r, &s, number);
            }
        }
    }
    ranks_meet(r->links);
    if (r->links->rank == 0)
        printf("%llu cases of %u ranks: same bits as the host\n", (unsigned long long)number, n);
}

/* ---- messages ---- */

enum { MESSAGE = 3001, STRIDE = 4096 };

static epw_coll message(uint32_t kind, uint32_t peer, unsigned char *at) {
    epw_coll c = EPW_COLL_INIT;
    c.kind = kind;
    c.type = EPW_TYPE_U8;
    c.peer = peer;
    c.count = MESSAGE;
    if (kind == EPW_SEND) {
        c.send = at;
    } else {
        c.recv = at;
    }
    return c;
}

static void send_and_receive(const rank_state *r, const epw_coll *ops, size_t count) {
    epw_call call = on_stream(r);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_work work = 0;
    call.work = &work;
    REQUIRE_OK(epw_group(r->gpu.comm, ops, count, &call, NULL));
    REQUIRE_OK(epw_work_wait(r->gpu.comm, work, 60000 * MS, &outcome));
    REQUIRE(outcome.degraded == 0, "rank %u: missing %llx, cause %u", r->links->rank,
            (unsigned long long)outcome.missing.bits[0], outcome.record.cause);
}

/* What a rank sends to a peer. */
static void fill_message(unsigned char *to, uint32_t from, uint32_t peer) {
    fill(to, MESSAGE, EPW_TYPE_U8, 1, from * 1009 + peer);
}

/* To each peer at once, if the communicator has the blocks for that; then, or else, to one after the other. A
 * group that needs more blocks than it has sends nothing. */
static void exchange_messages(const rank_state *r) {
    const uint32_t me = r->links->rank, n = r->links->ranks, peers = n - 1;
    const epw_coll_window *w = &r->gpu.comm->gpu->window;
    const uint32_t blocks = (2 * peers * w->channels + EPW_COLL_TEAMS - 1) / EPW_COLL_TEAMS;
    epw_coll ops[2 * RANKS_LIMIT];
    for (uint32_t d = 1; d < n; d++) {
        const uint32_t to = (me + d) % n, from = (me + n - d) % n;
        fill_message(r->host.send + GUARD + to * STRIDE, me, to);
        ops[2 * d - 2] = message(EPW_SEND, to, r->gpu.send + GUARD + to * STRIDE);
        ops[2 * d - 1] = message(EPW_RECV, from, r->gpu.recv + GUARD + from * STRIDE);
    }
    copy_to_gpu(r, r->gpu.send, r->host.send, GUARD + n * STRIDE);
    for (int together = 1; together >= 0; together--) {
        REQUIRE_CUDA(cudaMemsetAsync(r->gpu.recv, 0x5a, 2 * GUARD + n * STRIDE, r->stream));
        await_all(r, "copies");
        if (together && blocks > w->blocks) {
            char words[120];
            epw_call call = on_stream(r);
            snprintf(words, sizeof words, "from %u peers: config.sms is %u, must be at least %u", 2 * peers,
                     w->blocks, blocks);
            REQUIRE(epw_group(r->gpu.comm, ops, 2 * peers, &call, NULL) == EPW_ERR_LIMIT &&
                        strstr(epw_last_error(), words) != NULL,
                    "'%s' does not say '%s'", epw_last_error(), words);
            continue;
        }
        if (together) send_and_receive(r, ops, 2 * peers);
        for (uint32_t d = 1; d < n && !together; d++) send_and_receive(r, &ops[2 * d - 2], 2);
        for (uint32_t p = 0; p < n; p++) {
            unsigned char *at = r->host.recv + GUARD + p * STRIDE;
            memset(at - GUARD, 0x5a, MESSAGE + 2 * GUARD);
            if (p != me) fill_message(at, p, me);
            require_same(r, at, r->gpu.recv + GUARD + p * STRIDE, p != me ? MESSAGE : 0, "recv", "messages");
        }
    }
    ranks_meet(r->links);
    if (me == 0)
        printf("each rank has the messages of %u peers%s\n", peers,
               blocks > w->blocks ? "; a group for all needs more blocks" : "");
}

/* ---- what is too much ---- */

static void require_refused(epw_status status, const char *words) {
    REQUIRE(status == EPW_ERR_LIMIT && strstr(epw_last_error(), words) != NULL, "%s: '%s' does not say '%s'",
            epw_status_name(status), epw_last_error(), words);
}

static void too_many_messages(const rank_state *r) {
    epw_coll ops[EPW_COLL_POINTS + 1];
    epw_call call = on_stream(r);
    for (uint32_t i = 0; i <= EPW_COLL_POINTS; i++)
        ops[i] = message(i % 2 ? EPW_SEND : EPW_RECV, r->links->rank, r->gpu.send);
    require_refused(epw_group(r->gpu.comm, ops, EPW_COLL_POINTS + 1, &call, NULL),
                    "a group has 49 sends and receives, at most 48 on a GPU");
}

/* Of communicators that nobody else has. Blocks of one size without gaps have no such limit. */
static void uneven_blocks_of_many_ranks(int32_t gpu) {
    uint64_t counts[EPW_COLL_BLOCK_RANKS + 1] = {0};
    epw_coll c = EPW_COLL_INIT;
    void *memory = NULL;
    REQUIRE_CUDA(cudaMalloc(&memory, 256));
    c.kind = EPW_ALL_GATHER;
    c.type = EPW_TYPE_U8;
    c.send = c.recv = memory;
    for (uint32_t n = EPW_COLL_BLOCK_RANKS; n <= EPW_COLL_BLOCK_RANKS + 1; n++) {
        epw_comm_config config = EPW_COMM_CONFIG_INIT;
        epw_comm *alone = NULL;
        config.ranks = n;
        config.device = gpu;
        config.sms = 1;
        config.slot_bytes = 4096;
        REQUIRE_OK(epw_comm_create(&config, &alone));
        for (int uneven = 0; uneven < 2; uneven++) {
            c.recv_counts = uneven ? counts : NULL;
            const epw_status status = epw_group(alone, &c, 1, NULL, NULL);
            if (uneven && n > EPW_COLL_BLOCK_RANKS) {
                require_refused(status, "config.ranks is 97, must be at most 96 on a GPU");
            } else { /* what comes next is missing */
                REQUIRE(status == EPW_ERR_STATE, "%s: %s", epw_status_name(status), epw_last_error());
            }
        }
        epw_comm_destroy(alone);
    }
    REQUIRE_CUDA(cudaFree(memory));
}

static void refuse_config(const epw_comm_config *config, const char *words) {
    epw_comm_sizes planned = EPW_COMM_SIZES_INIT;
    epw_comm *none = NULL;
    require_refused(epw_comm_plan(config, &planned), words);
    require_refused(epw_comm_create(config, &none), words);
    REQUIRE(none == NULL, "a communicator that was refused");
}

static void configs_beyond_the_limits(int32_t gpu) {
    epw_comm_sizes planned = EPW_COMM_SIZES_INIT;
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.device = gpu;
    config.ranks = EPW_GPU_PEERS;
    REQUIRE_OK(epw_comm_plan(&config, &planned));
    config.ranks = EPW_GPU_PEERS + 1;
    refuse_config(&config, "config.ranks is 257, must be at most 256 on GPUs");
    config.ranks = 1;
    config.sms = EPW_COLL_BLOCKS;
    REQUIRE_OK(epw_comm_plan(&config, &planned));
    config.sms = EPW_COLL_BLOCKS + 1;
    refuse_config(&config, "config.sms is 65, must be in [1, 64], or 0");
}

static void refuse_messages(const rank_state *r) {
    too_many_messages(r);
    const shape s = make_shape(EPW_ALL_REDUCE, 2000, r->links->ranks, 0);
    run_called(r, &s, 0);
    ranks_meet(r->links);
    if (r->links->rank == 0) printf("what is too much is refused\n");
}

static int rank_main(const rank_links *links) {
    rank_state r;
    if (links->rank == 0) { /* while nobody else has SMs */
        REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
        uneven_blocks_of_many_ranks(ranks_gpu(links));
        configs_beyond_the_limits(ranks_gpu(links));
    }
    ranks_meet(links);
    open_rank(&r, links);
    run_operations(&r);
    exchange_messages(&r);
    refuse_messages(&r);
    close_rank(&r);
    return 0;
}

int main(int argc, char **argv) {
    const ranks_option options[] = {{.name = "--ranks", .number = &ranks},
                                    {.name = "--rings", .number = &both.rings, .preset = 1},
                                    {.name = "--deadline-ms", .number = &both.deadline_ms},
                                    {.name = "--seconds", .number = &seconds},
                                    {0}};
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, options,
                      "usage: test_wide_comms [--ranks N] [--rings] [--deadline-ms N] [--seconds N]") != 0)
        return 2;
    ranks_limit("wide_comms", seconds);
    both.pool_bytes = both.gpu_pool_bytes = POOL_BYTES;
    return ranks_main(rank_main, ranks, 0, argv);
}
