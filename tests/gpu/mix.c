/* Dispatch and combine on both lanes of a buffer, two communicators, and prefill, at once: five streams of
 * each rank. Each rank enqueues on them in an order of its own, as calls or as graphs. Rows are checked on
 * the device, results of collectives and sums of prefill on the host. Exit code 77, with the reason, if there
 * is no GPU. */
#include "ranks.h"
#include "step.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    LANES = 2,
    COMMS = 2,
    PREFILL = LANES + COMMS,
    ACTORS,
    HOLDERS = 1 + COMMS + 1,
    OPS = 5,
    MESSAGES = EPW_SCATTER + 1,
    NORMS
};
enum { HIDDEN = 128, ROW = HIDDEN / 2 }; /* bf16 of a row that is normalised, and u32 */
#define UNTOUCHED 0xa5a5a5a5u

static uint32_t ranks, processes, rounds = 400, seed = 1, seconds = 300, small;

static const ranks_option named[] = {
    {"--ranks", .number = &ranks},
    {"--processes", .number = &processes, .preset = 1},
    {"--small", .number = &small, .preset = 1},
    {"--rounds", .number = &rounds},
    {"--seed", .number = &seed},
    {"--seconds", .number = &seconds},
    {0},
};

static const char usage[] =
    "mix [--ranks N] [--processes] [--small] [--rounds N] [--seed N] [--seconds N (limit)]";

/* What all ranks of a communicator do, on u32. */
typedef struct operation {
    uint32_t kind, root; /* kind MESSAGES: to the next rank, from the one before; kind NORMS: see row_value */
    uint64_t count;      /* as epw_coll has it; NORMS: u32 of whole rows */
    uint64_t key;        /* of the values */
} operation;

typedef struct comm_state {
    epw_comm *comm;
    epw_fabric *fabric;
    cudaStream_t stream;
    cudaGraphExec_t graph; /* of this round; NULL: it was calls */
    uint32_t *send, *recv; /* on the GPU, [OPS][most()] */
    uint32_t *host;        /* pinned, the same */
    uint16_t *weight;      /* on the GPU, [HIDDEN] */
    operation ops[OPS];
    uint32_t times; /* this round's operations are done so often */
} comm_state;

/* u32 of the largest buffer. */
static uint64_t most(void) {
    return UINT64_C(1) << (small ? 14 : 18);
}

static uint64_t deadline_ns(void) {
    return (small ? 120 : 20) * 1000 * MS;
}

static uint64_t below(uint64_t *state, uint64_t bound) {
    *state = traffic_mix(*state + 1);
    return *state % bound;
}

/* ---- operations ---- */

static int gives_blocks(uint32_t kind) {
    return kind == EPW_REDUCE_SCATTER || kind == EPW_ALL_TO_ALL || kind == EPW_SCATTER;
}
static int takes_blocks(uint32_t kind) {
    return kind == EPW_ALL_GATHER || kind == EPW_ALL_TO_ALL || kind == EPW_GATHER;
}

static void choose(operation *op, uint32_t of, uint64_t *state) {
    uint64_t largest = below(state, 8) == 0 ? most() : below(state, 3) == 0 ? 1024 : most() / 16;
    op->kind = (uint32_t)below(state, NORMS + 1);
    op->root = (uint32_t)below(state, of);
    op->count = below(state, largest / (gives_blocks(op->kind) || takes_blocks(op->kind) ? of : 1) + 1);
    if (op->kind == NORMS) op->count -= op->count % ROW;
    op->key = below(state, UINT64_MAX);
}

/* Bits of bf16: of what all ranks give in a row, in all columns, which is 2 to the power of -8 to 7, or its
 * negative; and of the weight of a column. The norm of such a row is the weights, or their negatives. */
static uint32_t row_value(const operation *op, uint64_t row) {
    uint64_t bits = traffic_mix(op->key + row);
    return (uint32_t)(bits % 2 << 15 | (119 + bits / 2 % 16) << 7);
}
static uint32_t weight_of(uint32_t column) {
    return 0x3f80 + column;
}

/* Two columns of a norm. */
static uint32_t norm_value(const operation *op, uint64_t i) {
    uint32_t column = (uint32_t)(2 * i % HIDDEN), sign = row_value(op, i / ROW) & 0x8000;
    return (weight_of(column + 1) | sign) << 16 | weight_of(column) | sign;
}

static uint32_t value(const operation *op, uint32_t rank, uint64_t i) {
    if (op->kind == NORMS) return row_value(op, i / ROW) * 0x10001;
    return (uint32_t)traffic_mix(op->key + rank) + (uint32_t)i * 0x9e3779b9u;
}

static uint32_t sum(const operation *op, uint32_t of, uint64_t i) {
    uint32_t total = 0;
    for (uint32_t r = 0; r < of; r++) total += value(op, r, i);
    return total;
}

/* Element i of the result on this rank. */
static uint32_t expected(const operation *op, uint32_t rank, uint32_t of, uint64_t i) {
    uint64_t block = op->count > 0 ? i / op->count : 0, at = op->count > 0 ? i % op->count : 0;
    if (op->kind == EPW_BARRIER || i >= op->count * (takes_blocks(op->kind) ? of : 1)) return UNTOUCHED;
    if ((op->kind == EPW_REDUCE || op->kind == EPW_GATHER) && rank != op->root) return UNTOUCHED;
    switch (op->kind) {
    case EPW_BROADCAST:
        return value(op, op->root, i);
    case EPW_ALL_REDUCE:
    case EPW_REDUCE:
        return sum(op, of, i);
    case EPW_ALL_GATHER:
    case EPW_GATHER:
        return value(op, (uint32_t)block, at);
    case EPW_REDUCE_SCATTER:
        return sum(op, of, rank * op->count + i);
    case EPW_SCATTER:
        return value(op, op->root, rank * op->count + i);
    case EPW_ALL_TO_ALL:
        return value(op, (uint32_t)block, rank * op->count + at);
    case NORMS:
        return norm_value(op, i);
    default:
        return value(op, (rank + of - 1) % of, i);
    }
}

/* The calls of this round's operations, and their norms; returns their number. */
static size_t list(const comm_state *c, const rank_links *links, epw_coll calls[2 * OPS],
                   epw_norm norms[OPS]) {
    size_t n = 0;
    for (uint32_t i = 0; i < OPS; i++) {
        const operation *op = &c->ops[i];
        epw_coll coll = EPW_COLL_INIT;
        coll.kind = op->kind;
        coll.type = EPW_TYPE_U32;
        coll.op = EPW_SUM;
        coll.peer = op->root;
        coll.count = op->count;
        coll.send = c->send + i * most();
        coll.recv = c->recv + i * most();
        if (op->kind == MESSAGES) {
            coll.tag = i;
            coll.kind = EPW_SEND;
            coll.peer = (links->rank + 1) % links->ranks;
            calls[n++] = coll;
            coll.kind = EPW_RECV;
            coll.peer = (links->rank + links->ranks - 1) % links->ranks;
        }
        if (op->kind == NORMS) {
            norms[i] = (epw_norm)EPW_NORM_INIT;
            norms[i].epsilon = 0;
            norms[i].hidden = HIDDEN;
            norms[i].rows = op->count / ROW;
            norms[i].weight = c->weight;
            norms[i].out = coll.recv;
            coll.kind = EPW_ALL_REDUCE;
            coll.type = EPW_TYPE_BF16;
            coll.count = 2 * op->count;
            coll.norm = &norms[i];
        }
        calls[n++] = coll;
    }
    return n;
}

/* ---- a communicator ---- */

static void open_comm(comm_state *c, const rank_links *links) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    epw_config path = EPW_CONFIG_INIT;
    path.rank = config.rank = links->rank;
    path.ranks = config.ranks = links->ranks;
    path.device = config.device = ranks_gpu(links);
    config.deadline_ns = deadline_ns();
    config.sms = ranks_sms(links, HOLDERS, 32);
    ranks_path(&path);
    config.fabric = path.fabric;
    config.paths = path.paths;
    *c = (comm_state){.fabric = path.fabric};
    REQUIRE_OK(epw_comm_create(&config, &c->comm));
    epw_mask all = {{(UINT64_C(1) << links->ranks) - 1}};
    ranks_connect_comm(links, c->comm);
    REQUIRE_OK(epw_comm_set_active(c->comm, &all, 1, 0));
    for (uint32_t p = 0; p < links->ranks; p++) ranks_require_path(links, p, epw_comm_path(c->comm, p));
    REQUIRE_CUDA(cudaMalloc((void **)&c->send, OPS * most() * 4));
    REQUIRE_CUDA(cudaMalloc((void **)&c->recv, OPS * most() * 4));
    REQUIRE_CUDA(cudaHostAlloc((void **)&c->host, OPS * most() * 4, cudaHostAllocDefault));
    REQUIRE_CUDA(cudaMalloc((void **)&c->weight, HIDDEN * sizeof *c->weight));
    uint16_t weight[HIDDEN];
    for (uint32_t i = 0; i < HIDDEN; i++) weight[i] = (uint16_t)weight_of(i);
    REQUIRE_CUDA(cudaMemcpy(c->weight, weight, sizeof weight, cudaMemcpyHostToDevice));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
}

static void close_comm(comm_state *c) {
    epw_comm_destroy(c->comm);
    epw_fabric_destroy(c->fabric);
    REQUIRE_CUDA(cudaFree(c->send));
    REQUIRE_CUDA(cudaFree(c->recv));
    REQUIRE_CUDA(cudaFree(c->weight));
    REQUIRE_CUDA(cudaFreeHost(c->host));
    REQUIRE_CUDA(cudaStreamDestroy(c->stream));
}

/* `common` is the same on all ranks, `own` is not. */
static void enqueue(comm_state *c, const rank_links *links, uint64_t common, uint64_t own) {
    epw_coll calls[2 * OPS];
    epw_norm norms[OPS];
    epw_call call = EPW_CALL_INIT;
    call.stream = c->stream;
    c->times = 1 + (uint32_t)below(&common, 2);
    int together = below(&common, 2) == 0;
    for (uint32_t i = 0; i < OPS; i++) {
        choose(&c->ops[i], links->ranks, &common);
        for (uint64_t k = 0; k < most(); k++) c->host[i * most() + k] = value(&c->ops[i], links->rank, k);
    }
    size_t n = list(c, links, calls, norms), captured = own % 2, repeats = captured ? 1 : c->times;
    REQUIRE_CUDA(cudaMemcpyAsync(c->send, c->host, OPS * most() * 4, cudaMemcpyHostToDevice, c->stream));
    REQUIRE_CUDA(cudaMemsetAsync(c->recv, 0xa5, OPS * most() * 4, c->stream));
    if (captured) step_capture(c->stream);
    for (size_t k = 0; k < repeats; k++) {
        for (size_t i = 0, length; i < n; i += length) {
            length = together ? n : calls[i].kind == EPW_SEND ? 2 : 1; /* a rank sends and receives at once */
            REQUIRE_OK(epw_group(c->comm, calls + i, length, &call, NULL));
        }
    }
    c->graph = captured ? step_captured(c->stream) : NULL;
    for (uint32_t k = 0; captured && k < c->times; k++) REQUIRE_CUDA(cudaGraphLaunch(c->graph, c->stream));
    REQUIRE_CUDA(cudaMemcpyAsync(c->host, c->recv, OPS * most() * 4, cudaMemcpyDeviceToHost, c->stream));
}

/* Returns the number of elements that operations have given. */
static uint64_t check(comm_state *c, const rank_links *links, uint32_t number, uint32_t round) {
    uint64_t given = 0;
    await_stream(c->stream, deadline_ns() * 2, "collectives");
    if (c->graph != NULL) REQUIRE_CUDA(cudaGraphExecDestroy(c->graph));
    for (uint32_t k = 0; k < OPS; k++) {
        const operation *op = &c->ops[k];
        for (uint64_t i = 0; i < most(); i++) {
            uint32_t want = expected(op, links->rank, links->ranks, i), got = c->host[k * most() + i];
            given += want != UNTOUCHED;
            REQUIRE(
                got == want,
                "round %u, communicator %u, rank %u: element %llu of operation %u (kind %u, root %u, count "
                "%llu, %s) is %08x instead of %08x",
                round, number, links->rank, (unsigned long long)i, k, op->kind, op->root,
                (unsigned long long)op->count, c->graph != NULL ? "captured" : "called", got, want);
        }
    }
    return given;
}

/* ---- prefill ---- */

enum { TOPK = 2, LONG = 3 /* operations of a round */ };

/* Dispatches each token to two experts, which return it; their halves add up to the token. */
typedef struct prefill_state {
    epw_prefill *prefill;
    epw_routing *routing; /* of calls: a graph keeps its own */
    epw_routing *captured;
    epw_fabric *fabric;
    cudaStream_t stream;
    cudaGraphExec_t graph; /* of this round; NULL: it was calls */
    uint32_t tokens;
    uint16_t *x, *rows, *out; /* on the GPU: tokens, packed rows, and sums of each operation */
    int32_t *ids;
    float *weights;
    uint16_t *host; /* pinned, [LONG][tokens][HIDDEN] */
} prefill_state;

static void open_prefill(prefill_state *p, const rank_links *links) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_config *ep = &config.ep;
    *p = (prefill_state){.tokens = small ? 24 : 1024};
    ep->rank = links->rank;
    ep->ranks = links->ranks;
    ep->device = ranks_gpu(links);
    ep->max_tokens = p->tokens;
    ep->hidden = HIDDEN;
    ep->experts = 4 * links->ranks;
    ep->topk = TOPK;
    ep->sms = ranks_sms(links, HOLDERS, 0);
    ep->deadline_ns = deadline_ns();
    config.ring_tokens = small ? 8 : 64; /* each slot is filled several times in an operation */
    ranks_path(ep);
    p->fabric = ep->fabric;
    REQUIRE_OK(epw_prefill_create(&config, &p->prefill));
    ranks_connect_prefill(links, p->prefill);
    ranks_require_prefill_paths(links, p->prefill);
    REQUIRE_OK(epw_routing_create(p->prefill, &p->routing));
    REQUIRE_OK(epw_routing_create(p->prefill, &p->captured));
    const size_t bytes = (size_t)p->tokens * HIDDEN * sizeof *p->x, entries = (size_t)p->tokens * TOPK;
    REQUIRE_CUDA(cudaMalloc((void **)&p->x, bytes));
    REQUIRE_CUDA(cudaMalloc((void **)&p->rows, bytes * links->ranks * TOPK));
    REQUIRE_CUDA(cudaMalloc((void **)&p->out, bytes * LONG));
    REQUIRE_CUDA(cudaMalloc((void **)&p->ids, entries * sizeof *p->ids));
    REQUIRE_CUDA(cudaMalloc((void **)&p->weights, entries * sizeof *p->weights));
    REQUIRE_CUDA(cudaHostAlloc((void **)&p->host, bytes * LONG, cudaHostAllocDefault));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking));
    float *weights = (float *)p->host;
    for (size_t i = 0; i < entries; i++) weights[i] = 0.5f;
    REQUIRE_CUDA(cudaMemcpy(p->weights, weights, entries * sizeof *weights, cudaMemcpyHostToDevice));
}

static void close_prefill(prefill_state *p) {
    epw_routing_free(p->routing);
    epw_routing_free(p->captured);
    epw_prefill_destroy(p->prefill);
    epw_fabric_destroy(p->fabric);
    REQUIRE_CUDA(cudaFree(p->x));
    REQUIRE_CUDA(cudaFree(p->rows));
    REQUIRE_CUDA(cudaFree(p->out));
    REQUIRE_CUDA(cudaFree(p->ids));
    REQUIRE_CUDA(cudaFree(p->weights));
    REQUIRE_CUDA(cudaFreeHost(p->host));
    REQUIRE_CUDA(cudaStreamDestroy(p->stream));
}

/* A bf16 from 1 to 2, of which a half is exact. */
static uint16_t channel_of(uint64_t key, uint32_t token, uint32_t channel) {
    return (uint16_t)(0x3f80 + ((traffic_mix(key + token) >> channel % 8 * 7 ^ channel) & 0x7f));
}

static void enqueue_prefill(prefill_state *p, const rank_links *links, uint64_t key, bool captured) {
    epw_routing *routing = captured ? p->captured : p->routing;
    int32_t *ids = (int32_t *)(p->host + (size_t)p->tokens * HIDDEN);
    for (uint32_t t = 0; t < p->tokens; t++) {
        const uint32_t experts = 4 * links->ranks, first = (uint32_t)(traffic_mix(key ^ t) % experts);
        for (uint32_t c = 0; c < HIDDEN; c++) p->host[t * HIDDEN + c] = channel_of(key, t, c);
        ids[t * TOPK] = (int32_t)first;
        ids[t * TOPK + 1] = (int32_t)((first + 1 + (key + t) % (experts - 1)) % experts);
    }
    const size_t bytes = (size_t)p->tokens * HIDDEN * sizeof *p->x;
    REQUIRE_CUDA(cudaMemcpyAsync(p->x, p->host, bytes, cudaMemcpyHostToDevice, p->stream));
    REQUIRE_CUDA(
        cudaMemcpyAsync(p->ids, ids, p->tokens * TOPK * sizeof *ids, cudaMemcpyHostToDevice, p->stream));
    REQUIRE_CUDA(cudaMemsetAsync(p->out, 0xa5, bytes * LONG, p->stream));
    if (captured) step_capture(p->stream);
    for (uint32_t i = 0; i < LONG; i++) {
        epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
        epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
        epw_prefill_combine_input answers = EPW_PREFILL_COMBINE_INPUT_INIT;
        epw_prefill_combine_output sums = EPW_PREFILL_COMBINE_OUTPUT_INIT;
        in.tokens = p->tokens;
        in.x = p->x;
        in.topk_idx = p->ids;
        in.topk_weights = p->weights;
        in.topk = TOPK;
        in.lane = (int32_t)((key + i) % LANES);
        out.layout = EPW_PACKED;
        out.alignment = 1;
        out.capacity = (uint64_t)links->ranks * p->tokens * TOPK;
        out.rows = p->rows;
        answers.expert_out = p->rows;
        answers.width = HIDDEN;
        sums.out = p->out + i * bytes / sizeof *p->out;
        in.stream = out.stream = answers.stream = sums.stream = p->stream;
        REQUIRE_OK(epw_prefill_dispatch(p->prefill, routing, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &out, NULL));
        REQUIRE_OK(epw_prefill_combine(p->prefill, routing, &answers, &sums, NULL));
    }
    p->graph = captured ? step_captured(p->stream) : NULL;
    if (captured) REQUIRE_CUDA(cudaGraphLaunch(p->graph, p->stream));
}

static void check_prefill(prefill_state *p, const rank_links *links, uint64_t key, uint32_t round) {
    const size_t bytes = (size_t)p->tokens * HIDDEN * sizeof *p->x;
    await_stream(p->stream, deadline_ns() * 2, "prefill");
    if (p->graph != NULL) REQUIRE_CUDA(cudaGraphExecDestroy(p->graph));
    REQUIRE_CUDA(cudaMemcpy(p->host, p->out, bytes * LONG, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < LONG; i++) {
        for (uint32_t t = 0; t < p->tokens; t++) {
            for (uint32_t c = 0; c < HIDDEN; c++) {
                const uint16_t got = p->host[(i * p->tokens + t) * HIDDEN + c], want = channel_of(key, t, c);
                REQUIRE(got == want,
                        "round %u, rank %u: channel %u of token %u of prefill %u is %04x instead of %04x",
                        round, links->rank, c, t, i, got, want);
            }
        }
    }
}

/* ---- a rank ---- */

static epw_config config_of(const rank_links *links) {
    epw_config config = EPW_CONFIG_INIT;
    config.rank = links->rank;
    config.ranks = links->ranks;
    config.max_tokens = small ? 8 : 32;
    config.hidden = small ? 256 : 512;
    config.experts = 4 * links->ranks;
    config.topk = 4;
    config.lanes = LANES;
    config.ordered = 1;
    config.device = ranks_gpu(links);
    config.sms = ranks_sms(links, HOLDERS, 0);
    config.deadline_ns = deadline_ns();
    return config;
}

static void shuffle(uint32_t order[ACTORS], uint64_t *state) {
    for (uint32_t i = 0; i < ACTORS; i++) order[i] = i;
    for (uint32_t i = ACTORS - 1; i > 0; i--) {
        uint32_t other = (uint32_t)below(state, i + 1), was = order[i];
        order[i] = order[other];
        order[other] = was;
    }
}

/* Of what the rank dispatches by prefill. The lanes that follow from it are the same on all ranks. */
static uint64_t key_of(uint32_t round, const rank_links *links) {
    return (traffic_mix(seed ^ (uint64_t)round << 20 ^ (links->rank + UINT64_C(1)) << 8) & ~UINT64_C(1)) +
           round % 2;
}

static int rank_main(const rank_links *links) {
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    uint64_t began = now_ns(), own = traffic_mix(seed ^ (uint64_t)(links->rank + 1) << 32), elements = 0;
    epw_config config = config_of(links);
    epw_buffer *buffer = NULL;
    step_lane lanes[LANES];
    cudaGraphExec_t steps[LANES];
    comm_state comms[COMMS];
    prefill_state prefill;
    ranks_path(&config);
    REQUIRE_OK(epw_buffer_create(&config, &buffer));
    ranks_connect(links, buffer);
    ranks_require_paths(links, buffer);
    for (uint32_t i = 0; i < LANES; i++) {
        step_open(&lanes[i], buffer, &config, seed, i, i == 0 ? EPW_PAYLOAD_SAME : EPW_PAYLOAD_FP8_F32, i,
                  LANES, 20000);
        steps[i] = step_graph(&lanes[i], STEP_KINDS, 1);
    }
    for (uint32_t i = 0; i < COMMS; i++) open_comm(&comms[i], links);
    open_prefill(&prefill, links);
    ranks_meet(links);
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t order[ACTORS];
        shuffle(order, &own);
        if (round == 0) ranks_begin_alone(links);
        for (uint32_t i = 0; i < ACTORS; i++) {
            uint32_t actor = order[i], comm = actor - LANES;
            uint64_t common = traffic_mix(seed ^ ((uint64_t)round * COMMS + comm + 1) << 8);
            if (actor < LANES) {
                REQUIRE_CUDA(cudaGraphLaunch(steps[actor], lanes[actor].stream));
            } else if (actor == PREFILL) {
                enqueue_prefill(&prefill, links, key_of(round, links), below(&own, 2));
            } else {
                enqueue(&comms[comm], links, common, below(&own, 2));
            }
            if (below(&own, 4) == 0) nanosleep(&(struct timespec){0, (long)below(&own, 300000)}, NULL);
        }
        if (round == 0) ranks_end_alone(links);
        for (uint32_t i = 0; i < COMMS; i++) elements += check(&comms[i], links, i, round);
        check_prefill(&prefill, links, key_of(round, links), round);
        for (uint32_t i = 0; i < LANES; i++) {
            await_stream(lanes[i].stream, deadline_ns() * 2, "steps of a lane");
            if (step_wrong(&lanes[i], "mix")) _exit(1);
        }
    }
    uint64_t rows = 0;
    for (uint32_t i = 0; i < LANES; i++) {
        step_untroubled(&lanes[i]);
        rows += step_state(&lanes[i]).rows;
        REQUIRE_CUDA(cudaGraphExecDestroy(steps[i]));
    }
    rows = ranks_sum(links, rows);
    elements = ranks_sum(links, elements);
    for (uint32_t i = 0; i < COMMS; i++) close_comm(&comms[i]);
    close_prefill(&prefill);
    epw_buffer_destroy(buffer);
    for (uint32_t i = 0; i < LANES; i++) step_close(&lanes[i]);
    epw_fabric_destroy(config.fabric);
    REQUIRE(rows > 0 && elements > 0, "nothing was checked");
    if (links->rank == 0) {
        printf("mix: OK ranks=%u rounds=%u rows=%llu elements=%llu as=%s seconds=%.1f\n", links->ranks,
               rounds, (unsigned long long)rows, (unsigned long long)elements,
               processes ? "processes" : "threads", (double)(now_ns() - began) * 1e-9);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, usage) != 0) return 2;
    ranks_limit("mix", seconds);
    return ranks_main(rank_main, ranks, processes, argv);
}
