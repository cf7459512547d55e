/* Collectives whose ranks are killed or stopped at random moments: in packets, in pieces through rings, in
 * sends and receives, in groups and in replays of a graph. Each rank is a process; the process started by
 * hand tells them what to do, strikes one, and brings in a replacement (strikes.h). Survivors must see that
 * each call ends within its deadlines and lacks that rank alone; that a complete call has the exact result of
 * all members, and an incomplete one what the others have given; that what they send is as it was; and that
 * calls are exact without the lost rank, beside it while it continues, and with its replacement.
 * EPW_TEST_PATH and EPW_TEST_WIRE (ranks.h) say how ranks reach each other. Exit code 77, with the reason, if
 * there is no GPU. */
#include "step.h"
#include "strikes.h"

#include <stdlib.h>

enum { OPS = 6, SMALL = 512 /* u32 of operations in packets */, UNTOUCHED = 0x5a };

/* ---- kinds of steps ---- */

enum { PACKETS, PIECES, MOVES, MESSAGES, GROUP, REPLAYS, KINDS };
static const char *const names[KINDS + 1] = {"packets", "pieces", "moves", "messages", "group", "replays"};

static uint32_t most = 1 << 18; /* u32 of a buffer */
static strike_options options = {
    .strikes = 12, .seed = 1, .steps = 60, .after = 8, .within_us = 6000, .seconds = 500};

static const ranks_option named[] = {STRIKE_OPTIONS(options), {"--most", .number = &most}, {0}};
static const char usage[] = "comm_failure " STRIKE_USAGE "\n       [--most N (u32 of a buffer)]\n"
                            "kinds: packets, pieces, moves, messages, group, replays";

/* What all ranks do at the same time: operations on u32, of which the last one is for all ranks. */
typedef struct operation {
    uint32_t kind, root; /* EPW_SEND: to the next member, and from the one before */
    uint64_t count, key; /* as epw_coll has it; of the values */
} operation;

typedef struct step {
    uint64_t number, lost; /* ranks that may be lost in it */
    uint32_t kind, ops;
    operation op[OPS];
} step;

/* ---- a rank ---- */

typedef struct member {
    const rank_links *links;
    epw_comm *comm;
    epw_fabric *fabric;
    cudaStream_t stream;
    cudaGraphExec_t graph; /* replayed in every epoch and with every peer */
    step replayed;         /* what it does */
    uint64_t members;
    uint32_t *send, *recv, *host; /* [OPS][most]; the last one pinned */
} member;

static void create(member *m, const rank_links *links) {
    m->links = links;
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    epw_config path = EPW_CONFIG_INIT;
    path.rank = config.rank = links->rank;
    path.ranks = config.ranks = links->ranks;
    path.device = config.device = ranks_gpu(links);
    config.deadline_ns = options.deadline_ms * MS;
    config.sms = ranks_sms(links, 1, 8);
    ranks_path(&path);
    config.fabric = m->fabric = path.fabric;
    config.paths = path.paths;
    REQUIRE_OK(epw_comm_create(&config, &m->comm));
    REQUIRE_CUDA(cudaMalloc((void **)&m->send, OPS * most * sizeof *m->send));
    REQUIRE_CUDA(cudaMalloc((void **)&m->recv, OPS * most * sizeof *m->recv));
    REQUIRE_CUDA(cudaHostAlloc((void **)&m->host, OPS * most * sizeof *m->host, cudaHostAllocDefault));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
}

static uint32_t rank_of(const member *m) {
    return m->links->rank;
}
static int is_member(const member *m, uint32_t rank) {
    return (int)(m->members >> rank & 1);
}

/* The member that comes `by` places behind the rank. */
static uint32_t member_behind(const member *m, uint32_t rank, uint32_t by) {
    do rank = (rank + 1) % m->links->ranks;
    while (!is_member(m, rank) || --by > 0);
    return rank;
}
static uint32_t count_members(const member *m) {
    return (uint32_t)__builtin_popcountll(m->members);
}

/* From which the rank receives messages, and to which it sends them: itself, if it is the only one. */
static uint32_t member_before(const member *m) {
    return member_behind(m, rank_of(m), count_members(m) > 1 ? count_members(m) - 1 : 1);
}
static uint32_t member_after(const member *m) {
    return member_behind(m, rank_of(m), 1);
}

/* ---- operations ---- */

static int gives_blocks(uint32_t kind) {
    return kind == EPW_REDUCE_SCATTER || kind == EPW_ALL_TO_ALL || kind == EPW_SCATTER;
}
static int takes_blocks(uint32_t kind) {
    return kind == EPW_ALL_GATHER || kind == EPW_ALL_TO_ALL || kind == EPW_GATHER;
}

static operation choose(const member *m, uint32_t kind, uint64_t largest, uint64_t *random) {
    operation op = {.kind = kind};
    *random = traffic_mix(*random + 1);
    op.key = *random;
    op.root = member_behind(m, 0, 1 + (uint32_t)(*random >> 8) % count_members(m));
    const uint32_t blocks = gives_blocks(kind) || takes_blocks(kind) ? m->links->ranks : 1;
    op.count = 1 + (*random >> 16) % (largest / blocks);
    return op;
}

/* Every kind ends with an operation in which each member waits for every other one. */
static void plan(const member *m, step *s) {
    static const uint32_t all[] = {EPW_ALL_REDUCE, EPW_ALL_GATHER, EPW_REDUCE_SCATTER, EPW_ALL_TO_ALL},
                          any[] = {EPW_BROADCAST, EPW_REDUCE, EPW_GATHER, EPW_SCATTER};
    uint64_t random = strikes_mix(options.seed, s->number);
    const uint32_t chosen = (uint32_t)(random % 4);

    s->ops = 0;
    switch (s->kind) {
    case PACKETS:
        s->op[s->ops++] = choose(m, any[chosen], SMALL, &random);
        s->op[s->ops++] = choose(m, all[chosen], SMALL, &random);
        break;
    case PIECES:
        s->op[s->ops++] = choose(m, chosen < 2 ? EPW_ALL_REDUCE : EPW_REDUCE_SCATTER, most, &random);
        break;
    case MOVES:
        s->op[s->ops++] = choose(m, any[chosen], most, &random);
        s->op[s->ops++] = choose(m, chosen < 2 ? EPW_ALL_GATHER : EPW_ALL_TO_ALL, most, &random);
        break;
    case MESSAGES:
        s->op[s->ops++] = choose(m, EPW_SEND, most, &random);
        s->op[s->ops++] = choose(m, EPW_SEND, SMALL, &random);
        s->op[s->ops++] = choose(m, EPW_BARRIER, 1, &random);
        break;
    default: /* GROUP, REPLAYS */
        s->op[s->ops++] = choose(m, EPW_SEND, SMALL, &random);
        s->op[s->ops++] = choose(m, EPW_ALL_REDUCE, SMALL, &random);
        s->op[s->ops++] = choose(m, EPW_ALL_GATHER, most, &random);
        s->op[s->ops++] = choose(m, EPW_REDUCE_SCATTER, most, &random);
        s->op[s->ops++] = choose(m, EPW_ALL_REDUCE, most, &random);
    }
}

static uint32_t value(const operation *op, uint32_t rank, uint64_t i) {
    return (uint32_t)traffic_mix(op->key + rank) + (uint32_t)i * UINT32_C(0x9e3779b9);
}

static uint32_t *at(uint32_t *buffers, uint32_t op) {
    return buffers + (size_t)op * most;
}

/* The calls of operation i; returns their number. A message is sent and received. */
static size_t calls_of(const member *m, const step *s, uint32_t i, epw_coll calls[2]) {
    const operation *op = &s->op[i];
    epw_coll c = EPW_COLL_INIT;
    c.kind = op->kind;
    c.type = EPW_TYPE_U32;
    c.op = EPW_SUM;
    c.peer = op->root;
    c.count = op->kind == EPW_BARRIER ? 0 : op->count;
    c.send = at(m->send, i);
    c.recv = at(m->recv, i);
    calls[0] = c;
    if (op->kind != EPW_SEND) return 1;
    calls[0].peer = member_after(m);
    calls[0].recv = NULL;
    calls[1] = c;
    calls[1].kind = EPW_RECV;
    calls[1].peer = member_before(m);
    calls[1].send = NULL;
    return 2;
}

static void copy(const member *m, uint32_t *to, const uint32_t *from, size_t count,
                 enum cudaMemcpyKind kind) {
    REQUIRE_CUDA(cudaMemcpyAsync(to, from, count * sizeof *to, kind, m->stream));
}
static void settle(const member *m, const char *what) {
    await_stream(m->stream, 40 * options.deadline_ms * MS, what);
}

/* What the rank gives, and results that say nothing yet. */
static void prepare(const member *m, const step *s) {
    const size_t count = (size_t)s->ops * most;
    for (uint32_t i = 0; i < s->ops; i++)
        for (uint64_t k = 0; k < most; k++) at(m->host, i)[k] = value(&s->op[i], rank_of(m), k);
    copy(m, m->send, m->host, count, cudaMemcpyHostToDevice);
    REQUIRE_CUDA(cudaMemsetAsync(m->recv, UNTOUCHED, count * sizeof *m->recv, m->stream));
    settle(m, "copies");
}

static uint64_t suspects(const member *m) {
    epw_membership now = EPW_MEMBERSHIP_INIT;
    REQUIRE_OK(epw_comm_membership(m->comm, &now));
    return now.suspects.bits[0];
}

static void note_time(uint64_t began, uint64_t *slowest) {
    const uint64_t took = now_ns() - began;
    if (took > *slowest) *slowest = took;
}

/* One call of these operations. Returns the ranks that it lacks, and adds a bit for the phase in which the
 * first was given up. */
static uint64_t call_and_wait(const member *m, const step *s, uint32_t first, uint32_t ops, message *seen) {
    epw_coll calls[2 * OPS];
    epw_work work = 0;
    epw_call call = EPW_CALL_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    size_t count = 0;
    for (uint32_t i = first; i < first + ops; i++) count += calls_of(m, s, i, calls + count);
    call.stream = m->stream;
    call.work = &work;
    const uint64_t began = now_ns();
    REQUIRE_OK(epw_group(m->comm, calls, count, &call, NULL));
    REQUIRE_OK(epw_work_wait(m->comm, work, 40 * options.deadline_ms * MS, &outcome));
    note_time(began, &seen->took_ns);
    const uint64_t missing = outcome.missing.bits[0];
    REQUIRE((missing & ~s->lost) == 0 && (missing != 0) == outcome.degraded,
            "rank %u, %s, operation %u: missing %llx, of which %llx may be lost; cause %u, phase %u, peer %u",
            rank_of(m), names[s->kind], first, (unsigned long long)missing, (unsigned long long)s->lost,
            outcome.record.cause, outcome.record.phase, outcome.record.peer);
    if (outcome.degraded) seen->cause |= 1u << outcome.record.phase;
    return missing;
}

/* A replay tells only by suspects and by its fault whom it lacks. */
static uint64_t replay(const member *m, const step *s, message *seen) {
    uint32_t faulted = 0;
    REQUIRE_OK(epw_comm_take_fault(m->comm, &faulted));
    const uint64_t began = now_ns();
    REQUIRE_CUDA(cudaGraphLaunch(m->graph, m->stream));
    settle(m, "a replay");
    note_time(began, &seen->took_ns);
    REQUIRE_OK(epw_comm_take_fault(m->comm, &faulted));
    const uint64_t gone = suspects(m);
    REQUIRE((gone & ~s->lost) == 0, "rank %u, replay: suspects %llx, of which %llx may be lost", rank_of(m),
            (unsigned long long)gone, (unsigned long long)s->lost);
    REQUIRE(!faulted || gone != 0, "rank %u: a replay was incomplete, but nobody is a suspect", rank_of(m));
    REQUIRE(faulted || (s->lost & bit(rank_of(m))) || gone == 0,
            "rank %u: %llx are suspects, but the replay was complete", rank_of(m), (unsigned long long)gone);
    return faulted ? gone : 0;
}

/* ---- what has come ---- */

/* Whether element i of the result is known, and what it is then. */
static int expected(const member *m, const operation *op, uint64_t missing, uint64_t i, uint32_t *want) {
    const uint32_t me = rank_of(m), block = (uint32_t)(i / op->count);
    const uint64_t in_block = i % op->count;
    const int takes = takes_blocks(op->kind), rooted = op->kind == EPW_REDUCE || op->kind == EPW_GATHER;
    *want = UNTOUCHED * UINT32_C(0x01010101);
    if (op->kind == EPW_BARRIER || i >= op->count * (takes ? m->links->ranks : 1)) return 1;
    if (rooted && me != op->root) return 1;
    if (takes) {
        if (!is_member(m, block)) return 1;
        *want = value(op, block, (op->kind == EPW_ALL_TO_ALL ? me * op->count : 0) + in_block);
        return !(missing >> block & 1);
    }
    switch (op->kind) {
    case EPW_SEND:
        *want = value(op, member_before(m), i);
        return !(missing >> member_before(m) & 1);
    case EPW_SCATTER:
        *want = value(op, op->root, me * op->count + i);
        return !(missing >> op->root & 1);
    case EPW_BROADCAST: /* of which members may pass parts on */
        *want = value(op, op->root, i);
        return missing == 0;
    default:
        *want = 0;
        for (uint32_t r = 0; r < m->links->ranks; r++)
            if (is_member(m, r))
                *want += value(op, r, (op->kind == EPW_REDUCE_SCATTER ? me * op->count : 0) + i);
        return missing == 0;
    }
}

static void check(const member *m, const step *s, const uint64_t missing[OPS]) {
    const size_t count = (size_t)s->ops * most;
    copy(m, m->host, m->recv, count, cudaMemcpyDeviceToHost);
    settle(m, "copies");
    for (uint32_t i = 0; i < s->ops; i++) {
        for (uint64_t k = 0; k < most; k++) {
            uint32_t want = 0, got = at(m->host, i)[k];
            if (!expected(m, &s->op[i], missing[i], k, &want)) continue;
            REQUIRE(got == want,
                    "rank %u of %llx, step %llu, %s: element %llu of operation %u (kind %u, root %u, count "
                    "%llu, missing %llx) is %08x, not %08x",
                    rank_of(m), (unsigned long long)m->members, (unsigned long long)s->number, names[s->kind],
                    (unsigned long long)k, i, s->op[i].kind, s->op[i].root,
                    (unsigned long long)s->op[i].count, (unsigned long long)missing[i], got, want);
        }
    }
    copy(m, m->host, m->send, count, cudaMemcpyDeviceToHost);
    settle(m, "copies");
    for (uint32_t i = 0; i < s->ops; i++)
        for (uint64_t k = 0; k < most; k++)
            REQUIRE(at(m->host, i)[k] == value(&s->op[i], rank_of(m), k),
                    "rank %u, %s: operation %u has changed what it sends", rank_of(m), names[s->kind], i);
}

/* ---- steps ---- */

/* Once the rank is a member of all ranks: messages of a graph are for those who are next to it then. */
static void capture(member *m) {
    step *s = &m->replayed;
    *s = (step){.kind = REPLAYS};
    plan(m, s);
    s->op[0] = s->op[--s->ops]; /* no messages: without the lost rank others are next to it */
    epw_call call = EPW_CALL_INIT;
    call.stream = m->stream;
    step_capture(m->stream);
    for (uint32_t i = 0; i < s->ops; i++) {
        epw_coll c[2];
        REQUIRE_OK(epw_group(m->comm, c, calls_of(m, s, i, c), &call, NULL));
    }
    m->graph = step_captured(m->stream);
}

static void run_step(const member *m, step *s, message *seen) {
    uint64_t missing[OPS] = {0}, all = 0;
    if (s->kind == REPLAYS) {
        s->ops = m->replayed.ops;
        memcpy(s->op, m->replayed.op, sizeof s->op);
    } else {
        plan(m, s);
    }
    prepare(m, s);
    if (s->kind == REPLAYS || s->kind == GROUP) {
        all = s->kind == REPLAYS ? replay(m, s, seen) : call_and_wait(m, s, 0, s->ops, seen);
        for (uint32_t i = 0; i < s->ops; i++) missing[i] = all;
    } else {
        for (uint32_t i = 0; i < s->ops; i++) all |= missing[i] = call_and_wait(m, s, i, 1, seen);
    }
    seen->mask |= all;
    if (!(s->lost & bit(rank_of(m)))) check(m, s, missing); /* else the others may have begun another epoch */
}

static void obey(member *m, const rank_links *links, message *in) {
    epw_mask active = {{in->mask}};
    const uint64_t lost = in->mask;
    switch (in->what) {
    case CREATE:
        create(m, links);
        break;
    case EXPORT:
        REQUIRE_OK(epw_comm_export(m->comm, in->peer, in->blob, &in->length));
        break;
    case CONNECT:
        CONNECT_WITHIN(epw_comm_connect_within, m->comm, in);
        break;
    case DISCONNECT:
        REQUIRE_OK(epw_comm_disconnect(m->comm, in->peer));
        break;
    case ACTIVATE:
        m->members = in->mask;
        REQUIRE_OK(epw_comm_set_active(m->comm, &active, in->epoch, 0));
        if (m->graph == NULL) capture(m);
        break;
    case STEPS:
        in->mask = in->took_ns = 0;
        in->cause = 0;
        for (uint32_t i = 0; i < in->count; i++) {
            step s = {.number = in->iteration + i, .lost = lost, .kind = in->kind};
            if (s.kind == ANY_KIND) s.kind = (uint32_t)(strikes_mix(options.seed, s.number) % KINDS);
            run_step(m, &s, in);
        }
        break;
    default:
        REQUIRE(in->what == QUIT, "message %u", in->what);
    }
}

static int member_main(const rank_links *links) {
    static member m;
    message in;
    strikes_complete(&options, links->ranks, links->gpus);
    do {
        in = told(links);
        obey(&m, links, &in);
        ranks_say(links->to[0], &in, sizeof in);
    } while (in.what != QUIT);
    REQUIRE_CUDA(cudaGraphExecDestroy(m.graph));
    epw_comm_destroy(m.comm);
    epw_fabric_destroy(m.fabric);
    return 0;
}

/* ---- main ---- */

int main(int argc, char **argv) {
    static strikes w;
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, usage) != 0) return 2;
    if (most < SMALL) {
        fprintf(stderr, "--most is at least %u\n%s\n", SMALL, usage);
        return 2;
    }
    int ended = strikes_main(&w, &options, names, member_main, "comm_failure", argv);
    if (ended != 0 || w.epoch == 0) return ended;
    printf("comm_failure: OK ranks=%u strikes=%u, %u of them in the middle of steps, noticed in collectives "
           "%u times, in messages %u\n",
           w.crew.ranks, options.strikes, w.noticed, w.phases[EPW_PHASE_COLLECTIVE],
           w.phases[EPW_PHASE_POINT]);
    return 0;
}
