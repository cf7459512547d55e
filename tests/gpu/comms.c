/* Collectives on GPUs against the host engine, bit for bit: each rank has a communicator of each kind, and
 * both execute each operation on copies of the same bytes. Kinds, types and reductions, sizes from 0 bytes to
 * 64 MiB, odd counts, any alignment, in place, several in a row, replayed from a graph; uneven blocks and
 * columns of matrices; sums that are normalised. Then a rank calls a different operation, a rank does not
 * come, and the others continue. EPW_TEST_PATH and EPW_TEST_WIRE (ranks.h) say how the communicators on GPUs
 * reach their peers.
 *
 *     test_comms [--ranks N] [--processes] [--heap | --register | --rings] [--copy-engines] [--cases N]
 *                [--seed N] [--small | --norms | --differ] [--deadline-ms N] [--seconds N]
 *     test_comms --time [--ranks N] [--heap | --register] [--copy-engines] [--eager] [--nccl PATH]
 *
 * --heap: the buffers on GPUs are memory of epw_comm_alloc. --register: they are registered. With both,
 * or with --rings, no operation goes by lines. --small is shorter: up to 4 MiB, fewer of all, and all come to
 * each norm. --norms: only what disturbs norms; with --processes, the last rank's process ends in one of them
 * at last. --differ: only calls that differ. --copy-engines, with --heap or --register: copy engines move
 * all-gathers and all-to-alls of any size.
 *
 * --time prints microseconds of each operation, from a CUDA graph of 20 or, with --eager, 20 calls, beside
 * those of NCCL, whose library is at PATH. */
#include "coll/gpu/gpu.h"
#include "both.h"
#include "nccl.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPS = 6, REPLAYS = 3 };
#define POOL_BYTES    (UINT64_C(80) << 20)
#define LARGEST_TIMED (UINT64_C(256) << 20)

static uint32_t ranks, cases = 60, seed = 1, seconds = 120, timed, small, norms, differs, eager;
static const char *nccl_path;

/* Of a buffer. */
static uint64_t largest_bytes(void) {
    return UINT64_C(1) << (small ? 22 : 26);
}

/* ---- what is called ---- */

/* An operation as all ranks call it, and where its buffers lie in a rank's pools. */
typedef struct shape {
    uint32_t kind, type, op, root;
    uint64_t count, send_bytes, recv_bytes; /* offsets of this rank's buffers */
    uint64_t send_at, recv_at;
    uint64_t in_place; /* mask of ranks */
    int aligned;       /* the buffers of all ranks are, to 16 bytes */
} shape;

static int has_blocks_of_send(uint32_t kind) {
    return kind == EPW_REDUCE_SCATTER || kind == EPW_ALL_TO_ALL || kind == EPW_SCATTER;
}
static int has_blocks_of_recv(uint32_t kind) {
    return kind == EPW_ALL_GATHER || kind == EPW_ALL_TO_ALL || kind == EPW_GATHER;
}
static int folds(uint32_t kind) {
    return kind == EPW_ALL_REDUCE || kind == EPW_REDUCE || kind == EPW_REDUCE_SCATTER;
}

/* A random size of the buffer that holds everything of an operation. */
static uint64_t some_bytes(uint64_t *state, uint64_t most) {
    static const uint64_t bounds[] = {1, 64, 4096, 70000, 300000, 2 << 20, 64 << 20};
    uint64_t bound = bounds[below(state, 20) == 0 ? 6 : below(state, 6)];
    return below(state, bound < most ? bound : most);
}

static shape make_shape(uint64_t *state, uint32_t count_of_ranks, uint64_t most) {
    shape s = {.kind = (uint32_t)below(state, EPW_SCATTER + 1),
               .type = (uint32_t)below(state, 10),
               .op = (uint32_t)below(state, 5),
               .root = (uint32_t)below(state, count_of_ranks)};
    uint64_t bytes = some_bytes(state, most);
    int blocks = has_blocks_of_send(s.kind) || has_blocks_of_recv(s.kind);
    s.count = bytes / sizes[s.type] / (blocks ? count_of_ranks : 1);
    if (lends() && s.count > 16 && below(state, 4) > 0) s.count -= s.count % 16;
    if (below(state, 3) == 0) s.in_place = below(state, 3) > 0 ? ~UINT64_C(0) : next(state);
    return s;
}

/* The next free place of a pool, with random alignment. Memory that peers shall read must be aligned on all
 * ranks. */
static uint64_t place(uint64_t *state, uint64_t *used, uint64_t bytes, int aligned) {
    uint64_t odd = aligned || below(state, lends() ? 16 : 2) > 0 ? 0 : below(state, 64);
    uint64_t at = *used + GUARD + odd;
    *used = (at + bytes + GUARD + 255) / 256 * 256;
    return at;
}

static int is_single(const shape *s, uint32_t rank) {
    int everyone = s->kind == EPW_ALL_REDUCE || s->kind == EPW_REDUCE_SCATTER || s->kind == EPW_ALL_GATHER ||
                   s->kind == EPW_ALL_TO_ALL;
    return (s->in_place >> rank & 1) && (everyone || rank == s->root);
}

static void lay_out(shape *s, uint32_t rank, uint32_t count_of_ranks, uint64_t *state, uint64_t used[2]) {
    uint64_t bytes = s->count * sizes[s->type];
    s->send_bytes = bytes * (has_blocks_of_send(s->kind) ? count_of_ranks : 1);
    s->recv_bytes = bytes * (has_blocks_of_recv(s->kind) ? count_of_ranks : 1);
    if (s->kind == EPW_BARRIER) s->send_bytes = s->recv_bytes = 0;
    s->send_at = place(state, &used[0], s->send_bytes, s->aligned);
    s->recv_at =
        place(state, &used[1], s->recv_bytes > s->send_bytes ? s->recv_bytes : s->send_bytes, s->aligned);
    (void)rank;
}

/* In place, everything is in recv's pool: one buffer for both, or a block of it. */
static epw_coll coll_of(const shape *s, uint32_t rank, const side *on) {
    epw_coll c = EPW_COLL_INIT;
    uint64_t own = rank * s->count * sizes[s->type];
    c.kind = s->kind;
    c.type = s->type;
    c.op = s->op;
    c.peer = s->root;
    c.count = s->count;
    c.send = on->send + s->send_at;
    c.recv = on->recv + s->recv_at;
    if (!is_single(s, rank)) return c;
    c.send = c.recv;
    if (s->kind == EPW_ALL_GATHER || s->kind == EPW_GATHER) c.send = on->recv + s->recv_at + own;
    if (s->kind == EPW_REDUCE_SCATTER || s->kind == EPW_SCATTER) c.recv = on->recv + s->recv_at + own;
    return c;
}

/* ---- bytes ---- */

static void fill_rank(const rank_state *r, const shape *s, uint64_t state) {
    int any = !folds(s->kind) || state % 2;
    uint32_t rank = r->links->rank;
    unsigned char *send = r->host.send + s->send_at - GUARD, *recv = r->host.recv + s->recv_at - GUARD;
    uint64_t recv_bytes = s->recv_bytes > s->send_bytes ? s->recv_bytes : s->send_bytes;
    int single = is_single(s, rank);
    memset(send, 0xa5, s->send_bytes + 2 * GUARD);
    memset(recv, 0x5a, recv_bytes + 2 * GUARD);
    if (single) {
        fill(recv + GUARD, recv_bytes, s->type, any, state + rank);
    } else {
        fill(send + GUARD, s->send_bytes, s->type, any, state + rank);
    }
    REQUIRE_CUDA(cudaMemcpyAsync(r->gpu.send + s->send_at - GUARD, send, s->send_bytes + 2 * GUARD,
                                 cudaMemcpyHostToDevice, r->stream));
    REQUIRE_CUDA(cudaMemcpyAsync(r->gpu.recv + s->recv_at - GUARD, recv, recv_bytes + 2 * GUARD,
                                 cudaMemcpyHostToDevice, r->stream));
}

static void compare(const rank_state *r, const shape *s, const char *what, const unsigned char *host,
                    const unsigned char *gpu, uint64_t bytes, uint64_t number) {
    char words[200];
    snprintf(words, sizeof words,
             "case %llu, kind %u type %u op %u root %u count %llu in place %llx, aligned to %llu and %llu",
             (unsigned long long)number, s->kind, s->type, s->op, s->root, (unsigned long long)s->count,
             (unsigned long long)s->in_place, (unsigned long long)s->send_at % 16,
             (unsigned long long)s->recv_at % 16);
    require_same(r, host, gpu, bytes, what, words);
}

/* ---- cases ---- */

/* What both communicators have counted. */
typedef struct counted {
    epw_traffic gpu, host;
    epw_peer_traffic gpu_peers[RANKS_LIMIT], host_peers[RANKS_LIMIT];
} counted;

static counted count_both(const rank_state *r) {
    counted c = {.gpu = EPW_TRAFFIC_INIT, .host = EPW_TRAFFIC_INIT};
    REQUIRE_OK(epw_comm_traffic(r->gpu.comm, &c.gpu, c.gpu_peers));
    REQUIRE_OK(epw_comm_traffic(r->host.comm, &c.host, c.host_peers));
    return c;
}

/* What is enqueued counts as much as what the host has moved; but what is shared out goes by other ways than
 * on the host, and of replays nobody knows. */
static void compare_traffic(const rank_state *r, const counted *was, const shape *shapes, uint32_t count,
                            int captured) {
    counted now = count_both(r);
    int shared = 0;
    for (uint32_t i = 0; i < count; i++) {
        shared |=
            shapes[i].kind == EPW_ALL_REDUCE || (shapes[i].kind == EPW_BROADCAST && r->links->ranks > 2);
    }
    uint64_t gpu = now.gpu.operations - was->gpu.operations;
    REQUIRE(now.host.operations - was->host.operations == count && gpu == (captured ? 0 : count),
            "%llu operations of %u counted", (unsigned long long)gpu, count);
    for (uint32_t p = 0; p < r->links->ranks; p++) {
        uint64_t sent = now.gpu_peers[p].bytes_sent - was->gpu_peers[p].bytes_sent;
        uint64_t received = now.gpu_peers[p].bytes_received - was->gpu_peers[p].bytes_received;
        uint64_t host_sent = now.host_peers[p].bytes_sent - was->host_peers[p].bytes_sent;
        uint64_t host_received = now.host_peers[p].bytes_received - was->host_peers[p].bytes_received;
        if (captured) host_sent = host_received = 0;
        REQUIRE((shared && !captured) || (sent == host_sent && received == host_received),
                "rank %u: %llu bytes to %u, of %llu, and %llu from it, of %llu; kind %u", r->links->rank,
                (unsigned long long)sent, p, (unsigned long long)host_sent, (unsigned long long)received,
                (unsigned long long)host_received, shapes[0].kind);
    }
}

/* What was sent in an operation that is shared out: to each rank the part of the result that it makes, and
 * the part that this rank makes. The root of a broadcast, rank 0 here, makes no part and gets none. */
static void check_shared_out(const rank_state *r, uint32_t kind, uint64_t bytes, const counted *was) {
    uint32_t me = r->links->rank, root = kind == EPW_BROADCAST;
    if (r->links->ranks == 1) return;
    uint64_t sharers = r->links->ranks - root, each = ((bytes + sharers - 1) / sharers + 15) / 16 * 16;
    uint64_t parts[RANKS_LIMIT] = {0};
    for (uint32_t p = root; p < r->links->ranks; p++) {
        uint64_t from = (p - root) * each;
        parts[p] = from >= bytes ? 0 : bytes - from < each ? bytes - from : each;
    }
    counted now = count_both(r);
    for (uint32_t p = 0; p < r->links->ranks; p++) {
        uint64_t sent = now.gpu_peers[p].bytes_sent - was->gpu_peers[p].bytes_sent;
        uint64_t expected = parts[p] + (root && p == 0 ? 0 : parts[me]);
        if (root && me != 0 && p != 0) expected = parts[me];
        if (p != me)
            REQUIRE(sent == expected, "rank %u: %llu bytes to %u, of %llu", me, (unsigned long long)sent, p,
                    (unsigned long long)expected);
    }
}

/* Some operations in a row: one call each, one call for all, or from a graph. */
static void run_case(const rank_state *r, uint64_t number, shape *shapes, uint32_t count, uint64_t *state) {
    uint32_t rank = r->links->rank;
    uint64_t used[2] = {0, 0}, own = number * 1000003u + rank;
    int repeats = 1;
    epw_coll ops[OPS];
    for (uint32_t i = 0; i < count; i++) {
        lay_out(&shapes[i], rank, r->links->ranks, &own, used);
        REQUIRE(used[0] <= POOL_BYTES && used[1] <= POOL_BYTES, "pools are too small");
        fill_rank(r, &shapes[i], number * 7919 + i * 104729);
        ops[i] = coll_of(&shapes[i], rank, &r->gpu);
        if (shapes[i].in_place != 0) repeats = 0; /* repeating it would be a different operation */
    }
    await_all(r, "copies");
    uint64_t how = below(state, 3);
    int captured = how == 0 && number != 0;
    counted was = count_both(r);
    epw_call call = on_stream(r);
    if (number == 0) ranks_begin_alone(r->links);
    if (captured) {
        cudaGraphExec_t exec = capture(r, ops, count);
        for (int i = 0; i < (repeats ? REPLAYS : 1); i++) REQUIRE_CUDA(cudaGraphLaunch(exec, r->stream));
        await_all(r, "replays of a graph");
        REQUIRE_CUDA(cudaGraphExecDestroy(exec));
    } else if (how == 1) {
        epw_work work = 0;
        epw_outcome outcome = EPW_OUTCOME_INIT;
        call.work = &work;
        REQUIRE_OK(epw_group(r->gpu.comm, ops, count, &call, NULL));
        if (number == 0) ranks_end_alone(r->links);
        REQUIRE_OK(epw_work_wait(r->gpu.comm, work, 60000 * MS, &outcome));
        REQUIRE(outcome.degraded == 0, "case %llu: rank %u: missing %llx, cause %u",
                (unsigned long long)number, rank, (unsigned long long)outcome.missing.bits[0],
                outcome.record.cause);
    } else {
        for (uint32_t i = 0; i < count; i++) REQUIRE_OK(epw_group(r->gpu.comm, &ops[i], 1, &call, NULL));
        if (number == 0) ranks_end_alone(r->links);
        await_all(r, "operations");
    }
    for (uint32_t i = 0; i < count; i++) {
        epw_coll c = coll_of(&shapes[i], rank, &r->host);
        epw_outcome outcome = EPW_OUTCOME_INIT;
        REQUIRE_OK(epw_group(r->host.comm, &c, 1, NULL, &outcome));
        REQUIRE(outcome.degraded == 0, "on the host: missing %llx",
                (unsigned long long)outcome.missing.bits[0]);
    }
    compare_traffic(r, &was, shapes, count, captured);
    for (uint32_t i = 0; i < count; i++) {
        const shape *s = &shapes[i];
        uint64_t recv_bytes = s->recv_bytes > s->send_bytes ? s->recv_bytes : s->send_bytes;
        compare(r, s, "recv", r->host.recv + s->recv_at, r->gpu.recv + s->recv_at, recv_bytes, number);
        compare(r, s, "send", r->host.send + s->send_at, r->gpu.send + s->send_at, s->send_bytes, number);
    }
}

/* Whether copy engines move bytes of the pools: not if one process has registered memory of several GPUs. */
static int by_copy_engines(const rank_state *r) {
    return both.copy_engines && (both.heap || both.processes || r->links->gpus == 1);
}

/* Calls of both kinds, until their buffers have been aligned at random in the same way on all ranks. */
static uint64_t run_copied(const rank_state *r, uint64_t number) {
    static const uint32_t kinds[] = {EPW_ALL_GATHER, EPW_ALL_TO_ALL};
    for (uint32_t k = 0; k < 2; k++) {
        uint64_t copied = 0, was = count_both(r).gpu.operations_copied;
        for (uint32_t i = 0; i < 20 && copied == 0; i++) {
            uint64_t state = 5; /* which is not captured */
            shape s = {.kind = kinds[k],
                       .type = EPW_TYPE_F32,
                       .count = largest_bytes() / 4 / r->links->ranks / 4 * 4};
            run_case(r, number++, &s, 1, &state);
            copied = count_both(r).gpu.operations_copied - was;
        }
        REQUIRE(copied == 1, "kind %u: %llu operations by copy engines", kinds[k],
                (unsigned long long)copied);
    }
    return number;
}

static void run_cases(const rank_state *r) {
    uint64_t number = 0;
    /* Each kind once, small and large; each type and reduction. */
    for (uint32_t kind = 0; kind <= EPW_SCATTER; kind++) {
        static const uint64_t counts[] = {0, 1, 1021, 400008, 1 << 20};
        uint64_t state = kind + 1;
        for (uint32_t i = 0; i < sizeof counts / sizeof counts[0] - small; i++) {
            shape s = {
                .kind = kind, .type = i == 4 ? EPW_TYPE_BF16 : EPW_TYPE_F32, .root = kind % r->links->ranks};
            s.count = counts[i];
            run_case(r, number++, &s, 1, &state);
        }
    }
    for (uint32_t type = 0; type < 10; type++) {
        uint64_t state = type + 99, most = small ? 50007 : 1200007;
        shape s[OPS];
        for (uint32_t large = 0; large < 2; large++) {
            for (uint32_t op = 0; op < 5; op++)
                s[op] = (shape){.kind = EPW_ALL_REDUCE, .type = type, .op = op, .count = large ? most : 777};
            run_case(r, number++, s, 5, &state);
        }
    }
    for (uint32_t i = 0; i < cases; i++) {
        uint64_t state = (seed + i) * 2654435761u;
        shape s[OPS];
        uint32_t count = 1 + (uint32_t)below(&state, OPS);
        for (uint32_t k = 0; k < count; k++)
            s[k] = make_shape(&state, r->links->ranks, largest_bytes() / count);
        run_case(r, number++, s, count, &state);
    }
    static const uint32_t shared[] = {EPW_ALL_REDUCE, EPW_BROADCAST};
    if (by_copy_engines(r) && r->links->ranks > 1) number = run_copied(r, number);
    for (uint32_t k = 0; k < 2; k++) {
        shape largest = {.kind = shared[k], .type = EPW_TYPE_BF16, .count = largest_bytes() / 2};
        uint64_t state = 5; /* which is not captured */
        counted was = count_both(r);
        run_case(r, number++, &largest, 1, &state);
        check_shared_out(r, shared[k], largest_bytes(), &was);
    }
    ranks_meet(r->links);
    if (r->links->rank == 0)
        printf("%llu cases of %u ranks: same bits as the host\n", (unsigned long long)number,
               r->links->ranks);
}

/* ---- blocks ---- */

/* Columns of matrices side by side, gathered and reduced: even ones, which every second rank stores densely,
 * and uneven ones, of which some are empty. */
static void run_blocks_of(const rank_state *r, uint32_t kind, uint64_t count, uint64_t rows, int uneven,
                          uint64_t number) {
    enum { GAP = 3 };
    uint32_t rank = r->links->rank, n = r->links->ranks;
    uint64_t counts[64], all = 0, own;
    for (uint32_t p = 0; p < n; p++) all += counts[p] = !uneven ? count : p == 1 ? 0 : count + p;
    own = counts[rank];
    int dense = rank % 2, gathers = kind == EPW_ALL_GATHER;
    uint64_t part = rows * (own + GAP), whole = rows * (all + GAP);
    shape s = {.kind = kind,
               .type = EPW_TYPE_BF16,
               .count = count,
               .send_bytes = 2 * (gathers ? part : whole),
               .recv_bytes = 2 * (gathers ? whole : part),
               .send_at = GUARD + 2 * rank,
               .recv_at = GUARD + 4};
    fill_rank(r, &s, number * 7919);
    await_all(r, "copies");
    epw_coll c[2];
    const side *sides[2] = {&r->gpu, &r->host};
    for (uint32_t i = 0; i < 2; i++) {
        c[i] = coll_of(&s, rank, sides[i]);
        c[i].rows = rows;
        uint64_t own_pitch = dense ? 0 : own + GAP;
        c[i].send_pitch = gathers ? own_pitch : all + GAP;
        c[i].recv_pitch = gathers ? all + GAP : own_pitch;
        if (uneven) *(gathers ? &c[i].recv_counts : &c[i].send_counts) = counts;
    }
    epw_call call = on_stream(r);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    REQUIRE_OK(epw_group(r->gpu.comm, &c[0], 1, &call, NULL));
    await_all(r, "blocks");
    REQUIRE_OK(epw_group(r->host.comm, &c[1], 1, NULL, &outcome));
    REQUIRE(outcome.degraded == 0, "on the host: missing %llx", (unsigned long long)outcome.missing.bits[0]);
    compare(r, &s, "recv", r->host.recv + s.recv_at, r->gpu.recv + s.recv_at, s.recv_bytes, number);
}

/* Blocks with gaps between them, exchanged in one buffer: even ones, and uneven ones, of which some are
 * empty. Some ranks give only what `recv` has. */
static void exchange_blocks_of(const rank_state *r, uint64_t count, int uneven, uint64_t number) {
    enum { GAP = 3 };
    uint32_t rank = r->links->rank, n = r->links->ranks;
    uint64_t counts[64], offsets[64], all = 0;
    for (uint32_t p = 0; p < n; p++) {
        counts[p] = uneven ? (p + rank) % 3 * count + (p + rank) % 2 : count;
        offsets[p] = all;
        all += counts[p] + GAP;
    }
    shape s = {.kind = EPW_ALL_TO_ALL,
               .type = EPW_TYPE_BF16,
               .count = count,
               .send_bytes = 2 * all,
               .recv_bytes = 2 * all,
               .send_at = GUARD,
               .recv_at = GUARD + 2 * rank,
               .in_place = ~UINT64_C(0)};
    const side *sides[2] = {&r->gpu, &r->host};
    epw_coll c[2];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    fill_rank(r, &s, number * 7919);
    await_all(r, "copies");
    for (uint32_t i = 0; i < 2; i++) {
        c[i] = coll_of(&s, rank, sides[i]);
        c[i].recv_offsets = offsets;
        if (uneven) c[i].recv_counts = counts;
        if (rank % 2 == 0) continue;
        c[i].send_offsets = offsets;
        c[i].send_counts = c[i].recv_counts;
    }
    REQUIRE_OK(call_and_wait(r, &c[0], &outcome));
    REQUIRE(outcome.degraded == 0, "exchange: missing %llx", (unsigned long long)outcome.missing.bits[0]);
    REQUIRE_OK(epw_group(r->host.comm, &c[1], 1, NULL, &outcome));
    compare(r, &s, "recv", r->host.recv + s.recv_at, r->gpu.recv + s.recv_at, s.recv_bytes, number);
}

/* One side is empty, and lies where the other does: nothing of that is in place. The first rank gives, all
 * others take. */
static void give_nothing_in_place(const rank_state *r) {
    enum { COUNT = 50000 };
    uint32_t rank = r->links->rank, n = r->links->ranks;
    uint64_t blocks[64], none[64] = {0};
    for (uint32_t p = 0; p < n; p++) blocks[p] = p == 0 ? 0 : COUNT;
    shape s = {.kind = EPW_ALL_TO_ALL,
               .type = EPW_TYPE_U8,
               .send_bytes = COUNT * (uint64_t)n,
               .recv_bytes = COUNT * (uint64_t)n,
               .send_at = GUARD,
               .recv_at = GUARD,
               .in_place = ~UINT64_C(0)};
    uint64_t first[64] = {COUNT};
    const side *sides[2] = {&r->gpu, &r->host};
    epw_outcome outcome = EPW_OUTCOME_INIT;
    fill_rank(r, &s, 78);
    await_all(r, "copies");
    for (uint32_t i = 0; i < 2; i++) {
        epw_coll c = coll_of(&s, rank, sides[i]);
        c.send_counts = rank == 0 ? blocks : none;
        c.recv_counts = rank == 0 ? none : first;
        if (i == 0) {
            REQUIRE_OK(call_and_wait(r, &c, &outcome));
        } else {
            REQUIRE_OK(epw_group(r->host.comm, &c, 1, NULL, &outcome));
        }
        REQUIRE(outcome.degraded == 0, "missing %llx", (unsigned long long)outcome.missing.bits[0]);
    }
    compare(r, &s, "recv", r->host.recv + s.recv_at, r->gpu.recv + s.recv_at, s.recv_bytes, 0);
}

/* The first rank gathers blocks with gaps between them, the others densely. */
static void gather_beside_dense(const rank_state *r) {
    enum { BLOCK = 400000, GAP = 16 };
    uint32_t n = r->links->ranks, gap = r->links->rank == 0 ? GAP : 0;
    uint64_t offsets[64];
    for (uint32_t p = 0; p < n; p++) offsets[p] = p * (BLOCK + (uint64_t)gap);
    shape s = {.kind = EPW_ALL_GATHER,
               .type = EPW_TYPE_F32,
               .count = BLOCK,
               .send_bytes = 4 * BLOCK,
               .recv_bytes = 4 * (BLOCK + (uint64_t)gap) * n,
               .send_at = GUARD,
               .recv_at = GUARD};
    const side *sides[2] = {&r->gpu, &r->host};
    epw_coll c[2];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    fill_rank(r, &s, 77);
    for (uint32_t i = 0; i < 2; i++) {
        c[i] = coll_of(&s, r->links->rank, sides[i]);
        if (gap > 0) c[i].recv_offsets = offsets;
    }
    REQUIRE_OK(call_and_wait(r, &c[0], &outcome));
    REQUIRE(outcome.degraded == 0, "gaps: missing %llx", (unsigned long long)outcome.missing.bits[0]);
    REQUIRE_OK(epw_group(r->host.comm, &c[1], 1, NULL, &outcome));
    compare(r, &s, "recv", r->host.recv + s.recv_at, r->gpu.recv + s.recv_at, s.recv_bytes, 0);
}

/* ---- norms ---- */

/* Rows of bf16 or f16 with values typical of a layer, and now and then an infinity. */
static void fill_values(uint16_t *to, uint64_t count, int half, uint64_t seed_of) {
    uint64_t state = seed_of;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = below(&state, 1 << 16), sign = bits & 0x8000, fraction = bits & 0x3ff;
        to[i] = (uint16_t)(half ? sign | 0x3000 | fraction : sign | 0x3e00 | (fraction & 0x1ff));
        if (below(&state, 50000) == 0) to[i] = half ? 0x7c00 : 0x7f80;
    }
}

/* The memory of a norm in the pool, after what is summed: an allocation would wait for kernels of other
 * ranks.
 */
#define BEHIND (UINT64_C(32) << 20)
typedef struct norm_memory {
    unsigned char *residual, *weight, *out, *scales;
} norm_memory;

static norm_memory norm_memory_of(unsigned char *base, uint64_t count) {
    uint64_t at = (2 * count + 255) / 256 * 256;
    return (norm_memory){base, base + at, base + at + 2 * EPW_NORM_HIDDEN_MAX,
                         base + 2 * at + 2 * EPW_NORM_HIDDEN_MAX};
}

/* How an all_reduce with a norm is called: recv is send, out is recv (of rows as they are), and a graph is
 * replayed with other values. */
enum { IN_PLACE = 1, OVER_SUM = 2, CAPTURED = 4, FORMS = 8 };

typedef struct norm_case {
    uint32_t form, payload, hidden;
    uint64_t rows, number;
    int residual;
} norm_case;

static uint32_t norm_type(const norm_case *n) {
    return n->number % 3 == 2 ? EPW_TYPE_F16 : EPW_TYPE_BF16;
}

/* Of what lies behind what is summed. */
static uint64_t bytes_behind(const norm_case *n) {
    const uint64_t count = n->rows * n->hidden;
    return 4 * count + 1024 + 2 * EPW_NORM_HIDDEN_MAX + count / 32;
}

static void fill_norm(const rank_state *r, const norm_case *n, uint64_t replay) {
    const uint64_t count = n->rows * n->hidden, number = n->number + 1000 * replay;
    const int half = norm_type(n) == EPW_TYPE_F16;
    fill_values((uint16_t *)(void *)r->host.send, count, half, number * 31 + r->links->rank);
    fill_values((uint16_t *)(void *)(r->host.send + BEHIND), bytes_behind(n) / 2, half, number * 77 + 5);
    copy_to_gpu(r, r->gpu.send, r->host.send, BEHIND + bytes_behind(n));
    await_all(r, "copies");
}

/* The recv of the call. */
static unsigned char *sum_on(const norm_case *n, const side *on) {
    return n->form & IN_PLACE ? on->send : on->recv;
}

static epw_norm norm_of(const norm_case *n, const side *on) {
    const norm_memory m = norm_memory_of(on->send + BEHIND, n->rows * n->hidden);
    epw_norm norm = EPW_NORM_INIT;
    norm.payload = n->payload;
    norm.hidden = n->hidden;
    norm.rows = n->rows;
    norm.residual = n->residual ? m.residual : NULL;
    norm.weight = m.weight;
    norm.out = n->form & OVER_SUM ? sum_on(n, on) : m.out;
    norm.scales = n->payload != EPW_PAYLOAD_SAME ? m.scales : NULL;
    return norm;
}

static void call_norm(const rank_state *r, const norm_case *n, const side *on) {
    const epw_norm norm = norm_of(n, on);
    const int gpu = on == &r->gpu;
    epw_call call = on_stream(r);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_work work = 0;
    call.work = &work;
    REQUIRE_OK(epw_all_reduce_norm(on->comm, on->send, sum_on(n, on), norm_type(n), &norm, gpu ? &call : NULL,
                                   gpu ? NULL : &outcome));
    if (gpu) REQUIRE_OK(epw_work_wait(on->comm, work, 60000 * MS, &outcome));
    REQUIRE(outcome.degraded == 0, "norm %llu: missing %llx %s", (unsigned long long)n->number,
            (unsigned long long)outcome.missing.bits[0], gpu ? "on the GPU" : "on the host");
}

static cudaGraphExec_t capture_norm(const rank_state *r, const norm_case *n) {
    const epw_norm norm = norm_of(n, &r->gpu);
    epw_coll c = EPW_COLL_INIT;
    c.kind = EPW_ALL_REDUCE;
    c.type = norm_type(n);
    c.op = EPW_SUM;
    c.count = n->rows * n->hidden;
    c.send = r->gpu.send;
    c.recv = sum_on(n, &r->gpu);
    c.norm = &norm;
    return capture(r, &c, 1);
}

static void compare_norm(const rank_state *r, const norm_case *n) {
    const uint64_t sums = 2 * n->rows * n->hidden, bytes = bytes_behind(n);
    REQUIRE_CUDA(cudaMemcpyAsync(r->copy, sum_on(n, &r->gpu), sums, cudaMemcpyDeviceToHost, r->stream));
    await_all(r, "copies");
    REQUIRE(memcmp(r->copy, sum_on(n, &r->host), sums) == 0, "norm %llu, form %u: the %s differ",
            (unsigned long long)n->number, n->form, n->form & OVER_SUM ? "results" : "sums");
    REQUIRE_CUDA(cudaMemcpyAsync(r->copy, r->gpu.send + BEHIND, bytes, cudaMemcpyDeviceToHost, r->stream));
    await_all(r, "copies");
    for (uint64_t i = 0; i < bytes; i++)
        REQUIRE(
            r->copy[i] == r->host.send[BEHIND + i],
            "norm %llu, form %u: payload %u, %llu rows of %u: byte %llu of %llu is %02x, on the host %02x",
            (unsigned long long)n->number, n->form, n->payload, (unsigned long long)n->rows, n->hidden,
            (unsigned long long)i, (unsigned long long)bytes, r->copy[i], r->host.send[BEHIND + i]);
}

static void run_norm(const rank_state *r, const norm_case *n) {
    cudaGraphExec_t exec = n->form & CAPTURED ? capture_norm(r, n) : NULL;
    for (uint64_t replay = 0; replay < (n->form & CAPTURED ? 2 : 1); replay++) {
        fill_norm(r, n, replay);
        if (exec == NULL) {
            call_norm(r, n, &r->gpu);
        } else {
            REQUIRE_CUDA(cudaGraphLaunch(exec, r->stream));
            await_all(r, "a norm of a graph");
        }
        call_norm(r, n, &r->host);
        compare_norm(r, n);
    }
    if (exec != NULL) REQUIRE_CUDA(cudaGraphExecDestroy(exec));
}

/* By one kernel and by two, of rows as they are and of FP8. Returns the next number. */
static uint64_t run_forms(const rank_state *r, uint64_t number) {
    const norm_case shapes[] = {{.hidden = 1024, .rows = 3, .residual = 1},
                                {.hidden = 1024, .rows = 3, .residual = 1, .payload = EPW_PAYLOAD_FP8_UE8M0},
                                {.hidden = 8, .rows = 500},
                                {.hidden = 7168, .rows = 300, .residual = 1},
                                {.hidden = 2048, .rows = 90, .payload = EPW_PAYLOAD_FP8_F32}};
    for (uint32_t form = 1; form < FORMS; form++) {
        for (uint32_t i = 0; i < (small ? 3 : sizeof shapes / sizeof shapes[0]); i++) {
            norm_case n = shapes[i];
            if (n.payload != EPW_PAYLOAD_SAME && form & OVER_SUM) continue;
            n.form = form;
            n.number = number++;
            run_norm(r, &n);
        }
    }
    return number;
}

static void run_norms(const rank_state *r) {
    static const uint32_t widths[] = {128, 7168, 16384};
    static const uint64_t rows[] = {1, 3, 65, 200};
    uint64_t number = 0;
    for (uint32_t w = 0; w < 3 - small; w++) {
        for (uint32_t i = small; i < 4 - small; i++) {
            for (uint32_t payload = 0; payload <= EPW_PAYLOAD_FP8_UE8M0; payload++, number++)
                run_norm(r, &(norm_case){0, payload, widths[w], rows[i], number, number % 5 != 4});
        }
    }
    run_norm(r, &(norm_case){0, EPW_PAYLOAD_SAME, 8, 1000, number++, 1});
    run_norm(r, &(norm_case){0, EPW_PAYLOAD_SAME, 2056, 7, number++, 0});
    run_norm(r, &(norm_case){0, EPW_PAYLOAD_SAME, 8, 0, number++, 1});
    number = run_forms(r, number);
    ranks_meet(r->links);
    if (r->links->rank == 0) printf("%llu norms: same bits as the host\n", (unsigned long long)number);
}

/* Requires that calls have been found to differ, here too and before any rank was given up, and that the
 * error contains these words. */
static void require_mismatch(const rank_state *r, epw_status status, uint64_t began, const char *what,
                             const char *const words[], uint32_t count) {
    const uint64_t took = now_ns() - began;
    const char *text = epw_last_error();
    epw_membership now = EPW_MEMBERSHIP_INIT;
    REQUIRE(status == EPW_ERR_MISMATCH, "rank %u, %s: status %d after %llu ms", r->links->rank, what, status,
            (unsigned long long)(took / MS));
    for (uint32_t i = 0; i < count; i++)
        REQUIRE(strstr(text, words[i]) != NULL, "rank %u, %s: %s lacks %s", r->links->rank, what, text,
                words[i]);
    REQUIRE(took < deadline(), "rank %u, %s: took %llu ms", r->links->rank, what,
            (unsigned long long)(took / MS));
    REQUIRE_OK(epw_comm_membership(r->gpu.comm, &now));
    REQUIRE(epw_mask_empty(&now.suspects), "rank %u, %s: suspects %llx", r->links->rank, what,
            (unsigned long long)now.suspects.bits[0]);
}

/* How a rank passes another count. */
enum { MISCOUNT_IN_PLACE = 1, MISCOUNT_CAPTURED = 2, MISCOUNT_ALONE = 4, MISCOUNTS = 8 };

/* The first rank passes a different count for the last rank only: all ranks learn of it, from the two. With
 * MISCOUNT_ALONE, the others exchange nothing with these two: they may be done, and learn of it in the next
 * call. */
static void miscount(rank_state *r, uint32_t form) {
    uint32_t n = r->links->ranks, rank = r->links->rank, last = n - 1;
    const int pair = rank == 0 || rank == last, captured = (form & MISCOUNT_CAPTURED) != 0;
    uint64_t to[RANKS_LIMIT], from[RANKS_LIMIT];
    for (uint32_t p = 0; p < n; p++) {
        const int apart = pair != (p == 0 || p == last);
        to[p] = from[p] = form & MISCOUNT_ALONE && apart ? 0 : 40000;
    }
    if (rank == 0) to[last] = 20;
    epw_coll c = EPW_COLL_INIT;
    c.kind = EPW_ALL_TO_ALL;
    c.type = EPW_TYPE_U8;
    c.send = r->gpu.send;
    c.recv = r->gpu.recv;
    c.send_counts = to;
    c.recv_counts = from;
    if (form & MISCOUNT_IN_PLACE) {
        c.send = c.recv;
        c.send_counts = NULL;
        c.recv_counts = to;
    }
    char what[40], ranks_[2][24];
    snprintf(what, sizeof what, "form %u of counts", form);
    snprintf(ranks_[0], sizeof ranks_[0], "on rank 0");
    snprintf(ranks_[1], sizeof ranks_[1], "on rank %u", last);
    const char *const words[] = {"all_to_all of 20 u8 for this pair", "all_to_all of 40000 u8 for this pair",
                                 ranks_[0], ranks_[1]};
    const uint32_t count = sizeof words / sizeof words[0];
    cudaGraphExec_t exec = captured ? capture(r, &c, 1) : NULL;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_coll next = EPW_COLL_INIT;
    next.kind = EPW_BARRIER;
    epw_work work = 0, kept = 0; /* kept: of a barrier behind it, awaited in the next membership */
    epw_call call = on_stream(r);
    ranks_meet(r->links);
    uint64_t began = now_ns();
    if (captured) {
        REQUIRE_CUDA(cudaGraphLaunch(exec, r->stream));
        await_all(r, "a graph of blocks");
    } else {
        call.work = &work;
        REQUIRE_OK(epw_group(r->gpu.comm, &c, 1, &call, NULL));
        call.work = &kept;
        if (epw_group(r->gpu.comm, &next, 1, &call, NULL) != EPW_OK) kept = 0; /* it knows already */
        epw_status status = epw_work_wait(r->gpu.comm, work, 60000 * MS, &outcome);
        if (pair || !(form & MISCOUNT_ALONE) || status != EPW_OK)
            require_mismatch(r, status, began, what, words, count);
        REQUIRE(outcome.degraded == 0, "rank %u, %s: missing %llx", rank, what,
                (unsigned long long)outcome.missing.bits[0]);
    }
    require_mismatch(r, call_and_wait(r, &next, &outcome), began, what, words, count);
    if (captured) { /* once more, and again it does nothing */
        REQUIRE_CUDA(cudaGraphLaunch(exec, r->stream));
        await_all(r, "a graph of blocks");
        REQUIRE_CUDA(cudaGraphExecDestroy(exec));
        require_mismatch(r, call_and_wait(r, &next, &outcome), began, what, words, count);
    }
    uint32_t faulted = 0;
    REQUIRE_OK(epw_comm_take_fault(r->gpu.comm, &faulted));
    REQUIRE(faulted == 1, "rank %u, %s: the fault is not reported", rank, what);
    ranks_meet(r->links);
    activate(r, all_of(r->links));
    if (kept != 0) {
        epw_status status = epw_work_wait(r->gpu.comm, kept, 60000 * MS, &outcome);
        REQUIRE(status == EPW_ERR_MISMATCH, "rank %u, %s: later a barrier has status %d", rank, what, status);
    }
    ranks_meet(r->links);
    REQUIRE_OK(call_and_wait(r, &next, &outcome));
    REQUIRE(outcome.degraded == 0, "missing %llx", (unsigned long long)outcome.missing.bits[0]);
}

static void run_blocks(rank_state *r) {
    static const uint64_t counts[] = {1, 37, 3000, 60001};
    uint64_t number = 0;
    for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (uint32_t uneven = 0; uneven < 2; uneven++) {
            run_blocks_of(r, EPW_ALL_GATHER, counts[i], 7, (int)uneven, number++);
            run_blocks_of(r, EPW_REDUCE_SCATTER, counts[i], 7, (int)uneven, number++);
            run_blocks_of(r, EPW_REDUCE_SCATTER, counts[i], 1, (int)uneven, number++);
            exchange_blocks_of(r, counts[i] * 4, (int)uneven, number++);
        }
    }
    gather_beside_dense(r);
    give_nothing_in_place(r);
    ranks_meet(r->links);
    if (r->links->rank == 0)
        printf("%llu cases of blocks: same bits as the host\n", (unsigned long long)number);
}

/* ---- sends and receives ---- */

enum { ROOM = 5 };

static epw_coll point(uint32_t kind, uint32_t peer, uint32_t tag, unsigned char *at, uint64_t count) {
    epw_coll c = EPW_COLL_INIT;
    c.kind = kind;
    c.type = EPW_TYPE_U8;
    c.peer = peer;
    c.tag = tag;
    c.count = count;
    if (kind == EPW_SEND) {
        c.send = at;
    } else {
        c.recv = at;
    }
    return c;
}

/* Requires that the message of `from` with this tag has arrived, and that nothing was written after it. */
static void require_message(const rank_state *r, uint32_t from, uint32_t tag, uint64_t at, uint64_t bytes) {
    fill(r->host.recv, bytes, EPW_TYPE_U8, 1, from * 977 + tag);
    memset(r->host.recv + bytes, 0x5a, ROOM);
    REQUIRE_CUDA(cudaMemcpyAsync(r->copy, r->gpu.recv + at, bytes + ROOM, cudaMemcpyDeviceToHost, r->stream));
    await_all(r, "copy");
    REQUIRE(memcmp(r->copy, r->host.recv, bytes + ROOM) == 0,
            "rank %u: a message of %llu bytes from %u is wrong", r->links->rank, (unsigned long long)bytes,
            from);
}

static void fill_message(const rank_state *r, uint32_t tag, uint64_t at, uint64_t bytes) {
    fill(r->host.send + at, bytes, EPW_TYPE_U8, 1, r->links->rank * 977 + tag);
    REQUIRE_CUDA(
        cudaMemcpyAsync(r->gpu.send + at, r->host.send + at, bytes, cudaMemcpyHostToDevice, r->stream));
}

/* Sends around the ring in both directions, and to itself, all at once. */
static void cross(const rank_state *r, uint64_t bytes) {
    uint32_t rank = r->links->rank, ranks_ = r->links->ranks, after = (rank + 1) % ranks_,
             before = (rank + ranks_ - 1) % ranks_;
    uint64_t stride = (bytes + ROOM + 255) / 256 * 256 + 3;
    REQUIRE_CUDA(cudaMemsetAsync(r->gpu.recv, 0x5a, 3 * stride, r->stream));
    for (uint32_t tag = 0; tag < 3; tag++) fill_message(r, tag, tag * stride, bytes);
    const epw_coll ops[] = {
        point(EPW_SEND, after, 0, r->gpu.send, bytes),
        point(EPW_SEND, before, 1, r->gpu.send + stride, bytes),
        point(EPW_SEND, rank, 2, r->gpu.send + 2 * stride, bytes),
        point(EPW_RECV, before, 0, r->gpu.recv, bytes + ROOM),
        point(EPW_RECV, after, 1, r->gpu.recv + stride, bytes),
        point(EPW_RECV, rank, 2, r->gpu.recv + 2 * stride, bytes),
    };
    epw_call call = on_stream(r);
    epw_work work = 0;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    call.work = &work;
    REQUIRE_OK(epw_group(r->gpu.comm, ops, sizeof ops / sizeof ops[0], &call, NULL));
    REQUIRE_OK(epw_work_wait(r->gpu.comm, work, 60000 * MS, &outcome));
    REQUIRE(outcome.degraded == 0, "rank %u: missing %llx, cause %u", rank,
            (unsigned long long)outcome.missing.bits[0], outcome.record.cause);
    require_message(r, before, 0, 0, bytes);
    require_message(r, after, 1, stride, bytes);
    require_message(r, rank, 2, 2 * stride, bytes);
}

/* Passes a message from the first rank to the last, one after the other, between collectives. */
static void in_order(const rank_state *r) {
    enum { MESSAGES = 20, BYTES = 3000 };
    uint32_t last = r->links->ranks - 1;
    epw_call call = on_stream(r);
    REQUIRE_CUDA(cudaMemsetAsync(r->gpu.recv, 0x5a, MESSAGES * 4096, r->stream));
    for (uint32_t i = 0; i < MESSAGES; i++) {
        uint64_t bytes = BYTES + i;
        if (r->links->rank == 0) {
            fill_message(r, i, i * 4096, bytes);
            REQUIRE_OK(
                epw_send(r->gpu.comm, r->gpu.send + i * 4096, bytes, EPW_TYPE_U8, last, i, &call, NULL));
        }
        if (i % 5 == 0) REQUIRE_OK(epw_barrier(r->gpu.comm, &call, NULL));
        if (r->links->rank == last)
            REQUIRE_OK(epw_recv(r->gpu.comm, r->gpu.recv + i * 4096, bytes, EPW_TYPE_U8, 0, i, &call, NULL));
    }
    await_all(r, "messages");
    for (uint32_t i = 0; r->links->rank == last && i < MESSAGES; i++)
        require_message(r, 0, i, i * 4096, BYTES + i);
    ranks_meet(r->links);
}

/* The first rank sends with another tag than the last rank asks for: the receiver learns of it, the sender if
 * the message is so large that it waits for the receive, and all ranks in the next collective. */
static void mistag(rank_state *r, uint64_t bytes, int waits) {
    const uint32_t last = r->links->ranks - 1, rank = r->links->rank;
    const epw_coll send = point(EPW_SEND, last, 3, r->gpu.send, bytes),
                   recv = point(EPW_RECV, 0, 4, r->gpu.recv, bytes);
    const char *const words[] = {"with tag 3", "with tag 4"};
    epw_coll next = EPW_COLL_INIT;
    next.kind = EPW_BARRIER;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    const uint64_t began = now_ns();
    if (rank == 0 || rank == last) {
        epw_status status = call_and_wait(r, rank == 0 ? &send : &recv, &outcome);
        if (rank == last || waits) require_mismatch(r, status, began, "a message", words, 2);
    }
    require_mismatch(r, call_and_wait(r, &next, &outcome), began, "after a message", words, 2);
    ranks_meet(r->links);
    activate(r, all_of(r->links));
    ranks_meet(r->links);
}

static void run_points(rank_state *r) {
    static const uint64_t sizes_[] = {0, 1, 1000, 100003, 2000000, 9000011};
    for (uint32_t i = 0; i < sizeof sizes_ / sizeof sizes_[0] - small; i++) cross(r, sizes_[i]);
    ranks_meet(r->links);
    if (r->links->ranks > 1) in_order(r);
    ranks_meet(r->links);
    if (r->links->rank == 0) printf("all messages are as they were sent\n");
}

/* ---- trouble ---- */

/* What is summed: ones of all ranks, as f32, or as bf16 in rows that are normalised. */
typedef struct ones {
    uint64_t count;
    uint32_t hidden; /* elements of a row; 0: there is no norm */
} ones;

/* Bits of bf16: 1, and what nobody has written. */
enum { ONE = 0x3f80, UNTOUCHED = 0x5a5a };

static epw_norm norm_of_ones(const rank_state *r, ones o) {
    norm_memory m = norm_memory_of(r->gpu.send + BEHIND, o.count);
    epw_norm norm = EPW_NORM_INIT;
    norm.hidden = o.hidden;
    norm.rows = o.count / o.hidden;
    norm.residual = m.residual;
    norm.weight = m.weight;
    norm.out = m.out;
    return norm;
}

/* `norm`: of the ones, if they have one. */
static epw_coll sum_of(const rank_state *r, ones o, const epw_norm *norm) {
    epw_coll c = EPW_COLL_INIT;
    c.kind = EPW_ALL_REDUCE;
    c.type = o.hidden > 0 ? EPW_TYPE_BF16 : EPW_TYPE_F32;
    c.op = EPW_SUM;
    c.count = o.count;
    c.send = r->gpu.send;
    c.recv = r->gpu.recv;
    c.norm = norm;
    return c;
}

static void set_bf16(unsigned char *to, uint64_t count, uint16_t bits) {
    for (uint64_t i = 0; i < count; i++) memcpy(to + 2 * i, &bits, 2);
}

/* The bytes of a norm's memory, without scales. */
static uint64_t norm_bytes(const rank_state *r, ones o) {
    return o.hidden > 0 ? (uint64_t)(norm_memory_of(r->copy, o.count).scales - r->copy) : 0;
}

/* Ones to give, and ones as the residual and as the weights. */
static void fill_ones(const rank_state *r, ones o) {
    for (uint64_t i = 0; i < o.count && o.hidden == 0; i++) ((float *)(void *)r->host.send)[i] = 1;
    uint64_t bytes = 4 * o.count;
    if (o.hidden > 0) {
        norm_memory m = norm_memory_of(r->host.send + BEHIND, o.count);
        bytes = BEHIND + norm_bytes(r, o);
        set_bf16(r->host.send, o.count, ONE);
        set_bf16(m.residual, o.count, ONE);
        set_bf16(m.weight, o.hidden, ONE);
        set_bf16(m.out, o.count, UNTOUCHED);
    }
    REQUIRE_CUDA(cudaMemcpyAsync(r->gpu.send, r->host.send, bytes, cudaMemcpyHostToDevice, r->stream));
}

/* Copies the result to r->copy, and a norm's behind it. */
static epw_status sum_of_ones(const rank_state *r, ones o, epw_outcome *outcome) {
    epw_norm norm = EPW_NORM_INIT;
    if (o.hidden > 0) norm = norm_of_ones(r, o);
    epw_coll c = sum_of(r, o, o.hidden > 0 ? &norm : NULL);
    fill_ones(r, o);
    epw_status status = call_and_wait(r, &c, outcome);
    REQUIRE_CUDA(cudaMemcpyAsync(r->copy, r->gpu.recv, 4 * o.count, cudaMemcpyDeviceToHost, r->stream));
    REQUIRE_CUDA(cudaMemcpyAsync(r->copy + BEHIND, r->gpu.send + BEHIND, norm_bytes(r, o),
                                 cudaMemcpyDeviceToHost, r->stream));
    await_all(r, "a sum");
    return status;
}

static void require_bf16(const rank_state *r, const unsigned char *at, uint64_t count, uint16_t bits,
                         const char *what) {
    for (uint64_t i = 0; i < count; i++)
        REQUIRE(memcmp(at + 2 * i, &bits, 2) == 0, "rank %u: element %llu of %s is %02x%02x, not %04x",
                r->links->rank, (unsigned long long)i, what, at[2 * i + 1], at[2 * i], bits);
}

/* Those of a small number. */
static uint16_t bf16_of(uint32_t number) {
    float wide = (float)number;
    uint32_t bits;
    memcpy(&bits, &wide, 4);
    return (uint16_t)(bits >> 16);
}

static void require_sum(const rank_state *r, ones o, uint32_t members) {
    const float *sum = (const float *)(const void *)r->copy;
    for (uint64_t i = 0; i < o.count && o.hidden == 0; i++)
        REQUIRE(sum[i] == (float)members, "rank %u: sum %llu is %g, not %u", r->links->rank,
                (unsigned long long)i, (double)sum[i], members);
    if (o.hidden == 0) return;
    norm_memory m = norm_memory_of(r->copy + BEHIND, o.count);
    require_bf16(r, r->copy, o.count, bf16_of(members), "a sum");
    require_bf16(r, m.residual, o.count, bf16_of(members + 1), "a residual");
    require_bf16(r, m.out, o.count, ONE, "a norm");
}

/* What was to be summed is as it was, and without a sum nothing is normalised. */
static void require_no_sum(const rank_state *r, ones o) {
    uint64_t bytes = (o.hidden > 0 ? 2 : 4) * o.count;
    REQUIRE_CUDA(cudaMemcpyAsync(r->copy, r->gpu.send, bytes, cudaMemcpyDeviceToHost, r->stream));
    await_all(r, "a copy");
    REQUIRE(memcmp(r->copy, r->host.send, bytes) == 0, "rank %u: its input is not as it was", r->links->rank);
    if (o.hidden == 0) return;
    norm_memory m = norm_memory_of(r->copy + BEHIND, o.count);
    require_bf16(r, m.residual, o.count, ONE, "a residual without a sum");
    require_bf16(r, m.out, o.count, UNTOUCHED, "a norm without a sum");
}

/* All ranks begin the next membership, and a sum in it is complete. */
static void continue_together(rank_state *r, ones o) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    ranks_meet(r->links);
    activate(r, all_of(r->links));
    REQUIRE_OK(sum_of_ones(r, o, &outcome));
    REQUIRE(outcome.degraded == 0, "missing %llx", (unsigned long long)outcome.missing.bits[0]);
    require_sum(r, o, r->links->ranks);
    ranks_meet(r->links);
}

/* The last rank makes the other call: all ranks learn what both are, and continue in the next membership with
 * a sum of `after`. */
static void differ(rank_state *r, const epw_coll *usual, const char *usual_words, const epw_coll *other,
                   const char *other_words, ones after) {
    const rank_links *links = r->links;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_status status = call_and_wait(r, links->rank + 1 == links->ranks ? other : usual, &outcome);
    REQUIRE(status == EPW_ERR_MISMATCH, "rank %u, %s: status %d, missing %llx", links->rank, other_words,
            status, (unsigned long long)outcome.missing.bits[0]);
    const char *text = epw_last_error();
    REQUIRE(strstr(text, usual_words) != NULL && strstr(text, other_words) != NULL, "%s lacks %s or %s", text,
            usual_words, other_words);
    status = sum_of_ones(r, after, &outcome);
    REQUIRE(status == EPW_ERR_MISMATCH, "the next call: status %d", status);
    continue_together(r, after);
}

static void differ_in_kind(rank_state *r, uint64_t count) {
    const ones o = {.count = count};
    epw_coll sum = sum_of(r, o, NULL), gather = EPW_COLL_INIT;
    gather.kind = EPW_ALL_GATHER;
    gather.type = EPW_TYPE_U8;
    gather.count = 100;
    gather.send = r->gpu.send;
    gather.recv = r->gpu.recv;
    differ(r, &sum, "all_reduce of", &gather, "all_gather of 100 u8", o);
}

/* The last rank's call has another root, count, type or reduction. Some go another way than those of the
 * others, some are shared out among three. */
static void differ_in_one_thing(rank_state *r) {
    static const struct {
        uint32_t kind, type, op, root;
        uint64_t count;
        const char *words;
    } pairs[][2] = {
        {{EPW_BROADCAST, EPW_TYPE_U8, EPW_SUM, 0, 20000, "broadcast of 20000 u8 of root 0"},
         {EPW_BROADCAST, EPW_TYPE_U8, EPW_SUM, 1, 20000, "broadcast of 20000 u8 of root 1"}},
        {{EPW_BROADCAST, EPW_TYPE_U8, EPW_SUM, 0, 1500000, "broadcast of 1500000 u8 of root 0"},
         {EPW_BROADCAST, EPW_TYPE_U8, EPW_SUM, 1, 1500000, "broadcast of 1500000 u8 of root 1"}},
        {{EPW_GATHER, EPW_TYPE_U8, EPW_SUM, 0, 500000, "gather of 500000 u8 of root 0"},
         {EPW_GATHER, EPW_TYPE_U8, EPW_SUM, 1, 500000, "gather of 500000 u8 of root 1"}},
        {{EPW_REDUCE, EPW_TYPE_F32, EPW_SUM, 0, 5000, "reduce of 5000 f32 (sum) of root 0"},
         {EPW_REDUCE, EPW_TYPE_F32, EPW_SUM, 1, 5000, "reduce of 5000 f32 (sum) of root 1"}},
        {{EPW_ALL_REDUCE, EPW_TYPE_F32, EPW_SUM, 0, 5000, "all_reduce of 5000 f32 (sum)"},
         {EPW_ALL_REDUCE, EPW_TYPE_F32, EPW_SUM, 0, 5001, "all_reduce of 5001 f32 (sum)"}},
        {{EPW_ALL_REDUCE, EPW_TYPE_F32, EPW_SUM, 0, 200000, "all_reduce of 200000 f32 (sum)"},
         {EPW_ALL_REDUCE, EPW_TYPE_F32, EPW_SUM, 0, 5000, "all_reduce of 5000 f32 (sum)"}},
        {{EPW_ALL_GATHER, EPW_TYPE_F32, EPW_SUM, 0, 300000, "all_gather of 300000 f32"},
         {EPW_ALL_GATHER, EPW_TYPE_F32, EPW_SUM, 0, 300001, "all_gather of 300001 f32"}},
        {{EPW_ALL_REDUCE, EPW_TYPE_F32, EPW_SUM, 0, 200000, "all_reduce of 200000 f32 (sum)"},
         {EPW_ALL_REDUCE, EPW_TYPE_I32, EPW_SUM, 0, 200000, "all_reduce of 200000 i32 (sum)"}},
        {{EPW_ALL_TO_ALL, EPW_TYPE_U8, EPW_SUM, 0, 3000, "all_to_all of 3000 u8"},
         {EPW_ALL_TO_ALL, EPW_TYPE_I8, EPW_SUM, 0, 3000, "all_to_all of 3000 i8"}},
        {{EPW_REDUCE_SCATTER, EPW_TYPE_F32, EPW_SUM, 0, 300000, "reduce_scatter of 300000 f32 (sum)"},
         {EPW_REDUCE_SCATTER, EPW_TYPE_F32, EPW_AVERAGE, 0, 300000,
          "reduce_scatter of 300000 f32 (average)"}},
        {{EPW_ALL_REDUCE, EPW_TYPE_F32, EPW_SUM, 0, 5000, "all_reduce of 5000 f32 (sum)"},
         {EPW_ALL_REDUCE, EPW_TYPE_F32, EPW_MAX, 0, 5000, "all_reduce of 5000 f32 (max)"}}};
    for (uint32_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        epw_coll calls[2] = {EPW_COLL_INIT, EPW_COLL_INIT};
        for (uint32_t k = 0; k < 2; k++) {
            calls[k].kind = pairs[i][k].kind;
            calls[k].type = pairs[i][k].type;
            calls[k].op = pairs[i][k].op;
            calls[k].peer = pairs[i][k].root;
            calls[k].count = pairs[i][k].count;
            calls[k].send = r->gpu.send;
            calls[k].recv = r->gpu.recv;
        }
        differ(r, &calls[0], pairs[i][0].words, &calls[1], pairs[i][1].words, (ones){.count = 5000});
    }
}

/* The calls are the same, but counts of blocks or messages differ: see both. */
static void differ_between_two(rank_state *r) {
    for (uint32_t form = 0; form < MISCOUNTS; form++) miscount(r, form);
    mistag(r, 100, 0);
    mistag(r, 9000011, 1);
    cross(r, 70000);
    ranks_meet(r->links);
}

/* The others gather uneven blocks, and await their sizes where the last rank's data arrive, or its sizes. */
static void differ_from_blocks(rank_state *r) {
    uint64_t counts[RANKS_LIMIT];
    for (uint32_t p = 0; p < r->links->ranks; p++) counts[p] = 1000;
    epw_coll gather = EPW_COLL_INIT;
    gather.kind = EPW_ALL_GATHER;
    gather.type = EPW_TYPE_F32;
    gather.count = 1000;
    gather.send = r->gpu.send;
    gather.recv = r->gpu.recv;
    gather.recv_counts = counts;
    epw_coll dense = gather, exchange = gather;
    dense.type = EPW_TYPE_U8;
    dense.recv_counts = NULL;
    exchange.kind = EPW_ALL_TO_ALL;
    exchange.type = EPW_TYPE_I32;
    exchange.send_counts = counts;
    differ(r, &gather, "all_gather", &dense, "all_gather of 1000 u8", (ones){.count = 5000});
    differ(r, &gather, "all_gather", &exchange, "all_to_all", (ones){.count = 5000});
}

static void differ_in_all_ways(rank_state *r) {
    differ_from_blocks(r);
    differ_between_two(r);
    differ_in_kind(r, 5000);
    if (r->links->ranks > 2) differ_in_kind(r, 200000); /* shared out, by packets */
    differ_in_kind(r, 3000000);
    differ_in_one_thing(r);
    if (r->links->rank == 0) printf("calls that differ are named on every rank\n");
}

/* The last rank calls another norm, or none. */
static void differ_in_norms(rank_state *r) {
    const ones o = {.count = 4 * 128, .hidden = 128}, plain = {.count = 4 * 128};
    const epw_norm usual = norm_of_ones(r, o);
    const epw_coll call = sum_of(r, o, &usual);
    const char *words = "all_reduce_norm of 4 rows of 128 bf16, epsilon 1e-06";
    epw_norm other = usual;
    epw_coll its = sum_of(r, o, &other);
    other.hidden = 256;
    other.rows = 2;
    differ(r, &call, words, &its, "2 rows of 256 bf16", o);
    other = usual;
    other.rows = 3;
    its.count = 3 * 128;
    differ(r, &call, words, &its, "3 rows of 128 bf16", o);
    other = usual;
    other.epsilon = 1e-5f;
    its = sum_of(r, o, &other);
    differ(r, &call, words, &its, "epsilon 1e-05", o);
    other = usual;
    other.payload = EPW_PAYLOAD_FP8_F32;
    other.scales = norm_memory_of(r->gpu.send + BEHIND, o.count).scales;
    differ(r, &call, words, &its, "to fp8 with f32 scales", o);
    other = usual;
    its.type = EPW_TYPE_F16;
    differ(r, &call, words, &its, "4 rows of 128 f16", o);
    its.type = EPW_TYPE_BF16;
    its.norm = NULL;
    differ(r, &call, words, &its, "all_reduce of 512 bf16 (sum)", o);
    differ(r, &its, "all_reduce of 512 bf16 (sum)", &call, words, plain);
}

/* Sums ones within a few deadlines; exactly these ranks are missing. `after`: what has come before. */
static epw_outcome sum_without(const rank_state *r, ones o, uint64_t missing, uint64_t deadline_ns,
                               const char *after) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    uint64_t began = now_ns();
    REQUIRE_OK(sum_of_ones(r, o, &outcome));
    uint64_t took = now_ns() - began;
    REQUIRE(outcome.missing.bits[0] == missing, "rank %u%s: missing %llx", r->links->rank, after,
            (unsigned long long)outcome.missing.bits[0]);
    REQUIRE(took < 3 * deadline_ns, "rank %u%s: took %llu ms", r->links->rank, after,
            (unsigned long long)(took / MS));
    return outcome;
}

/* Begins a sum of ones, with a norm behind it or without. */
static epw_work begin_sum(const rank_state *r, ones o, const epw_norm *norm) {
    const epw_coll c = sum_of(r, o, norm);
    epw_work work = 0;
    epw_call call = on_stream(r);
    call.work = &work;
    fill_ones(r, o);
    REQUIRE_OK(epw_group(r->gpu.comm, &c, 1, &call, NULL));
    return work;
}

static void require_told_suspects(const rank_state *r, uint64_t suspects) {
    int32_t *told = NULL;
    size_t bytes = r->links->ranks * sizeof *told;
    REQUIRE_CUDA(cudaHostAlloc((void **)&told, bytes, cudaHostAllocDefault));
    memset(told, 0x55, bytes);
    REQUIRE_OK(epw_comm_suspects(r->gpu.comm, told, r->stream));
    await_stream(r->stream, 10000 * MS, "suspects");
    require_told(told, r->links->ranks, all_of(r->links), suspects, "suspects");
    REQUIRE_CUDA(cudaFreeHost(told));
}

/* The last rank does not come: the others wait for a bounded time, name it, and continue without it. */
static void lose(rank_state *r, ones o, uint64_t deadline_ns) {
    const rank_links *links = r->links;
    uint64_t last = UINT64_C(1) << (links->ranks - 1);
    if (links->rank + 1 < links->ranks) {
        epw_outcome outcome = sum_without(r, o, last, deadline_ns, "");
        REQUIRE(outcome.degraded == 1, "rank %u: not degraded", links->rank);
        require_no_sum(r, o);
        epw_membership now = EPW_MEMBERSHIP_INIT;
        REQUIRE_OK(epw_comm_membership(r->gpu.comm, &now));
        REQUIRE(now.suspects.bits[0] == last, "suspects %llx", (unsigned long long)now.suspects.bits[0]);
        require_told_suspects(r, last);
        uint32_t faulted = 0;
        REQUIRE_OK(epw_comm_take_fault(r->gpu.comm, &faulted));
        REQUIRE(faulted == 1, "the fault is not reported");
    }
    ranks_meet(links); /* the lost rank is not waited for again, but those that come would be */
    if (links->rank + 1 < links->ranks) {
        epw_outcome outcome = EPW_OUTCOME_INIT;
        uint64_t began = now_ns();
        REQUIRE_OK(sum_of_ones(r, o, &outcome));
        uint64_t took = now_ns() - began;
        REQUIRE(outcome.degraded == 1 && took < deadline_ns, "took %llu ms", (unsigned long long)(took / MS));
        require_no_sum(r, o);
    }
    ranks_meet(links);
    if (links->rank + 1 < links->ranks) {
        epw_outcome outcome = EPW_OUTCOME_INIT;
        activate(r, all_of(links) & ~last);
        REQUIRE_OK(sum_of_ones(r, o, &outcome));
        REQUIRE(outcome.degraded == 0, "missing %llx", (unsigned long long)outcome.missing.bits[0]);
        require_sum(r, o, links->ranks - 1);
    } else {
        r->epoch++;
    }
    continue_together(r, o);
}

/* Of a norm in which a rank stops. */
enum { STOPPED_ROWS = 3, STOPPED_HIDDEN = 1024, STOPPED_WORDS = STOPPED_ROWS * STOPPED_HIDDEN / 4 };

/* What a rank's packet is, by kernels/peer/packet.cuh. */
typedef struct packet {
    uint64_t data, tag;
} packet;

/* Waits until all words of the last rank's message have come, in the first operation of the epoch, and takes
 * back those after the first `arrived`, as if it had died before it sent them. */
static void receive_some_words(const rank_state *r, uint64_t words, uint64_t arrived) {
    const epw_comm *comm = r->gpu.comm;
    const uint64_t began = now_ns();
    for (uint64_t parity = 0;; parity ^= 1) {
        uint64_t come = 0;
        packet *seen = (packet *)(void *)r->copy;
        unsigned char *at = epw_peers_own(&comm->peers) +
                            epw_coll_packets(&comm->gpu->window, parity, r->links->ranks - 1) +
                            EPW_COLL_CALL_PACKETS * EPW_COLL_PACKET;
        REQUIRE_CUDA(cudaMemcpyAsync(seen, at, words * sizeof *seen, cudaMemcpyDeviceToHost, r->stream));
        await_all(r, "a look at packets");
        while (come < words && epw_word_epoch(seen[come].tag) == r->epoch) come++;
        REQUIRE(come == words || now_ns() - began < deadline(), "rank %u: %llu of %llu words have come",
                r->links->rank, (unsigned long long)come, (unsigned long long)words);
        if (come < words) continue;
        if (arrived == words) return;
        REQUIRE_CUDA(
            cudaMemsetAsync(at + arrived * sizeof *seen, 0, (words - arrived) * sizeof *seen, r->stream));
        await_all(r, "taking back packets");
        return;
    }
}

/* Rows whose words have not all come are as they were; others are too, or they are right. */
static void require_some_rows(const rank_state *r, ones o, uint64_t arrived) {
    const norm_memory m = norm_memory_of(r->copy + BEHIND, o.count);
    const uint16_t sum = bf16_of(r->links->ranks + 1), one = ONE;
    for (uint64_t row = 0; row < o.count / o.hidden; row++) {
        const unsigned char *residual = m.residual + 2 * row * o.hidden, *out = m.out + 2 * row * o.hidden;
        bool whole = (row + 1) * o.hidden <= 4 * arrived && memcmp(residual, &one, 2) != 0;
        require_bf16(r, residual, o.hidden, whole ? sum : ONE, "a residual after a loss");
        require_bf16(r, out, o.hidden, whole ? ONE : UNTOUCHED, "a norm after a loss");
    }
}

/* The last rank stops in the middle of a norm that one kernel makes, when this many of its words have been
 * sent: after all of them it would only add squares. Pieces of a row whose words have come wait for the
 * squares of those whose words have not, and the rank is lost as soon as these are given up. */
static void stop_amid(rank_state *r, uint64_t arrived) {
    const rank_links *links = r->links;
    const ones o = {STOPPED_ROWS * STOPPED_HIDDEN, STOPPED_HIDDEN};
    const uint64_t last = UINT64_C(1) << (links->ranks - 1);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    activate(r, all_of(links));
    ranks_meet(links);
    if (links->rank + 1 < links->ranks) {
        receive_some_words(r, STOPPED_WORDS, arrived);
        ranks_meet(links);
        const uint64_t missing = arrived < STOPPED_WORDS ? last : 0;
        char words[40];
        snprintf(words, sizeof words, ", %llu words", (unsigned long long)arrived);
        sum_without(r, o, missing, deadline(), words);
        if (missing == 0) require_sum(r, o, links->ranks);
        if (missing != 0) require_some_rows(r, o, arrived);
    } else {
        const epw_norm norm = norm_of_ones(r, o);
        const epw_work work = begin_sum(r, o, &norm);
        ranks_meet(links);
        REQUIRE_OK(epw_work_wait(r->gpu.comm, work, 60000 * MS, &outcome));
    }
    lose(r, o, deadline());
}

/* The process of the last rank ends between its words and the squares of its rows. The others, who have the
 * words, have a sum, and lose the rank in the next operation; then they continue without it. r->links has no
 * place for it any more. */
static void die_amid(rank_state *r) {
    static rank_links others;
    const rank_links *links = r->links;
    const ones o = {STOPPED_ROWS * STOPPED_HIDDEN, STOPPED_HIDDEN};
    const uint32_t last = links->ranks - 1;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    pid_t process = getpid();
    activate(r, all_of(links));
    ranks_meet(links);
    if (links->rank == last) {
        const epw_norm norm = norm_of_ones(r, o);
        const epw_coll c = sum_of(r, o, &norm);
        epw_call call = on_stream(r);
        fill_ones(r, o);
        REQUIRE_OK(epw_group(r->gpu.comm, &c, 1, &call, NULL));
        for (uint32_t p = 0; p < last; p++) ranks_say(links->to[p], &process, sizeof process);
        ranks_meet(links);
        _exit(0); /* while its kernel waits for the words of the others */
    }
    ranks_hear(links->to[last], &process, sizeof process);
    receive_some_words(r, STOPPED_WORDS, STOPPED_WORDS);
    ranks_meet(links);
    for (uint64_t began = now_ns(); kill(process, 0) == 0; usleep(1000))
        REQUIRE(now_ns() - began < 20000 * MS, "rank %u has not ended", last);
    REQUIRE_OK(sum_of_ones(r, o, &outcome));
    REQUIRE(outcome.degraded == 0, "missing %llx", (unsigned long long)outcome.missing.bits[0]);
    require_sum(r, o, links->ranks);
    sum_without(r, o, UINT64_C(1) << last, deadline(), "");
    require_no_sum(r, o);
    others = *links;
    others.ranks--;
    r->links = &others;
    continue_together(r, o);
    if (links->rank == 0)
        printf("a process that ends in the middle of a norm is lost in the next operation\n");
}

static void disturb_norms(rank_state *r) {
    const ones one_kernel = {3 * 128, 128}, two_kernels = {8000, 8};
    const epw_norm norm = norm_of_ones(r, two_kernels);
    const epw_coll normed = sum_of(r, two_kernels, &norm), plain = sum_of(r, two_kernels, NULL);
    differ_in_norms(r);
    differ(r, &normed, "all_reduce_norm of 1000 rows", &plain, "all_reduce of 8000 bf16", two_kernels);
    lose(r, one_kernel, deadline());
    lose(r, two_kernels, deadline());
    static const uint64_t arrived[] = {0, STOPPED_WORDS / 3 + 101, STOPPED_WORDS - 1, STOPPED_WORDS};
    for (uint32_t i = 0; i < sizeof arrived / sizeof arrived[0] && !r->gpu.comm->gpu->queues; i++)
        stop_amid(r, arrived[i]);
    if (r->links->rank == 0) printf("norms that differ are named; without a rank there is none\n");
}

/* Rank 0 gives up the others, which come late, and overwrites what it has lent them. They must not take its
 * bytes for those of the operation. */
static void read_too_late(rank_state *r) {
    const rank_links *links = r->links;
    enum { COUNT = 1 << 19 };
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_work work = 0;
    epw_call call = on_stream(r);
    call.work = &work;
    if (links->rank > 0) ranks_meet(links);
    REQUIRE_OK(epw_scatter(r->gpu.comm, r->gpu.send, r->gpu.recv, COUNT, EPW_TYPE_F32, 0, &call, NULL));
    REQUIRE_OK(epw_work_wait(r->gpu.comm, work, 60000 * MS, &outcome));
    if (links->rank == 0) {
        REQUIRE(outcome.missing.bits[0] == (all_of(links) & ~UINT64_C(1)), "missing %llx",
                (unsigned long long)outcome.missing.bits[0]);
        REQUIRE_CUDA(cudaMemsetAsync(r->gpu.send, 2, links->ranks * (uint64_t)COUNT * 4, r->stream));
        await_all(r, "overwriting what was lent");
        ranks_meet(links);
    } else {
        REQUIRE(outcome.missing.bits[0] & 1, "rank %u has taken bytes that were not lent any more",
                links->rank);
    }
    continue_together(r, (ones){.count = COUNT});
}

/* Rank 0 scatters in place, and so has nothing else to do, and overwrites what it has scattered as soon as
 * its operation has ended: until then the others have read all of it. */
static void overwrite_soon(rank_state *r) {
    const uint64_t bytes = largest_bytes() / r->links->ranks / 64 * 64;
    for (int round = 1; round <= 3; round++) {
        REQUIRE_CUDA(cudaMemsetAsync(r->gpu.send, round, bytes * r->links->ranks,
                                     r->stream)); /* only rank 0's is sent */
        REQUIRE_CUDA(cudaMemsetAsync(r->gpu.recv, 0, bytes, r->stream));
        await_all(r, "filling");
        ranks_meet(r->links);
        epw_call call = on_stream(r);
        unsigned char *recv = r->links->rank == 0 ? r->gpu.send : r->gpu.recv;
        REQUIRE_OK(epw_scatter(r->gpu.comm, r->gpu.send, recv, bytes, EPW_TYPE_U8, 0, &call, NULL));
        REQUIRE_CUDA(cudaMemsetAsync(r->gpu.send, 0xee, bytes * r->links->ranks, r->stream));
        REQUIRE_CUDA(cudaMemcpyAsync(r->copy, r->gpu.recv, bytes, cudaMemcpyDeviceToHost, r->stream));
        await_all(r, "scatter");
        for (uint64_t i = 0; i < bytes && r->links->rank > 0; i++) {
            REQUIRE(r->copy[i] == round, "rank %u has byte %02x at %llu, overwritten after the operation",
                    r->links->rank, r->copy[i], (unsigned long long)i);
        }
        ranks_meet(r->links);
    }
}

/* How many parts of a result the peer's first block has told, as it wrote that here. */
static uint64_t parts_told(const rank_state *r, uint32_t peer) {
    enum { WHOLE = 1 }; /* the ring, as in kernels/coll/large.cuh */
    const epw_comm *comm = r->gpu.comm;
    uint64_t word = 0;
    const unsigned char *own = epw_peers_own(&comm->peers);
    REQUIRE_CUDA(cudaMemcpyAsync(&word,
                                 own + epw_coll_count(&comm->gpu->window, WHOLE, peer, 0, EPW_COLL_WRITTEN),
                                 sizeof word, cudaMemcpyDeviceToHost, r->stream));
    await_all(r, "a look at a count");
    return epw_word_epoch(word) == r->epoch ? epw_word_step(word) : 0;
}

/* All-reduces of two members, of which none, both or one is in place, in turns. Only if none is, each folds
 * all of it, and tells no part to the other. */
static void reduce_in_turns(rank_state *r) {
    enum { MEMBERS = 3 };
    static const uint64_t in_place[] = {0, 3, 0, 1, 2};
    const uint64_t bytes[] = {(1 << 20) + 4104, 3000008, small ? 3 << 20 : (72 << 20) + 8};
    const uint32_t me = r->links->rank;
    if (me >= 2) {
        r->epoch++;
        ranks_meet(r->links);
        return;
    }
    activate(r, MEMBERS);
    for (uint32_t i = 0; i < 30; i++) {
        uint64_t state = 5; /* which is not captured */
        shape s = {.kind = EPW_ALL_REDUCE, .type = (i + i / 5) % 10, .op = i / 2 % 5, .aligned = 1};
        s.in_place = in_place[i % 5];
        s.count = bytes[i % 7 < 6 ? i % 2 : 2] / sizes[s.type];
        uint64_t before = parts_told(r, 1 - me);
        run_case(r, 1000 + i, &s, 1, &state);
        int told = parts_told(r, 1 - me) != before;
        REQUIRE(told == (s.in_place != 0), "rank %u, in place %llx: the other has told %s part", me,
                (unsigned long long)s.in_place, told ? "a" : "no");
    }
    ranks_meet(r->links);
    if (me == 0) printf("sums of two members have the same bits, in place or not\n");
}

/* The last rank ends in the middle of a sum, when it has told its call and what it lends, but has read
 * nothing. The others read what it has lent, and give it up because it never says that it has read theirs. */
static void stop_after_telling(rank_state *r, ones o) {
    enum { PACKETS = EPW_COLL_CALL_PACKETS + 1 };
    const rank_links *links = r->links;
    const uint64_t last = UINT64_C(1) << (links->ranks - 1);
    ranks_meet(links);
    activate(r, all_of(links));
    ranks_meet(links);
    if (links->rank + 1 < links->ranks) {
        const epw_comm *comm = r->gpu.comm;
        const uint64_t began = now_ns(), bytes = PACKETS * sizeof(packet);
        packet told[PACKETS] = {{0, 0}};
        unsigned char *at = epw_peers_own(&comm->peers) +
                            epw_coll_packets(&comm->gpu->window, 1, links->ranks - 1); /* of operation 1 */
        while (epw_word_epoch(told[PACKETS - 1].tag) != r->epoch) {
            REQUIRE(now_ns() - began < deadline(), "rank %u: no call has come", links->rank);
            REQUIRE_CUDA(cudaMemcpyAsync(told, at, bytes, cudaMemcpyDeviceToHost, r->stream));
            await_all(r, "a look at packets");
        }
        ranks_meet(links);
        ranks_meet(links); /* the last rank has ended, and withdrawn what it lent */
        REQUIRE_CUDA(cudaMemcpyAsync(at, told, bytes, cudaMemcpyHostToDevice, r->stream));
        await_all(r, "putting packets back");
        sum_without(r, o, last, deadline(), "");
        require_no_sum(r, o);
    } else {
        const epw_mask others = {{all_of(links) & ~last}};
        epw_outcome outcome = EPW_OUTCOME_INIT;
        const epw_work work = begin_sum(r, o, NULL);
        ranks_meet(links);
        REQUIRE_OK(epw_comm_revoke(r->gpu.comm, &others)); /* which have not come */
        REQUIRE_OK(epw_work_wait(r->gpu.comm, work, 60000 * MS, &outcome));
        REQUIRE(outcome.missing.bits[0] == others.bits[0], "missing %llx",
                (unsigned long long)outcome.missing.bits[0]);
        ranks_meet(links);
    }
    continue_together(r, o);
}

/* ---- times ---- */

enum { GRAPH = 20, ROUNDS = 7 };

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* GRAPH operations: calls or, with `exec`, a graph of them. `n`: by NCCL. */
typedef struct batch {
    const epw_coll *c;
    const nccl *n;
    cudaGraphExec_t exec;
} batch;

static void call_all(const rank_state *r, const batch *b) {
    epw_call call = on_stream(r);
    for (uint32_t i = 0; i < GRAPH; i++) {
        if (b->n != NULL) {
            nccl_enqueue(b->n, b->c, r->stream);
        } else {
            REQUIRE_OK(epw_group(r->gpu.comm, b->c, 1, &call, NULL));
        }
    }
}

static batch batch_of(const rank_state *r, const epw_coll *c, const nccl *n) {
    batch b = {.c = c, .n = n};
    cudaGraph_t graph = NULL;
    if (n != NULL) { /* NCCL connects the ranks in their first call */
        nccl_enqueue(n, c, r->stream);
        await_all(r, "NCCL");
    }
    if (eager) return b;
    REQUIRE_CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    call_all(r, &b);
    REQUIRE_CUDA(cudaStreamEndCapture(r->stream, &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&b.exec, graph, 0));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
    return b;
}

static void free_batch(const batch *b) {
    if (b->exec != NULL) REQUIRE_CUDA(cudaGraphExecDestroy(b->exec));
}

static float time_of_batch(const rank_state *r, const batch *b, cudaEvent_t from, cudaEvent_t to) {
    epw_call call = on_stream(r);
    float ms = 0;
    ranks_meet(r->links);
    REQUIRE_OK(epw_barrier(r->gpu.comm, &call, NULL));
    REQUIRE_CUDA(cudaEventRecord(from, r->stream));
    if (b->exec != NULL) {
        REQUIRE_CUDA(cudaGraphLaunch(b->exec, r->stream));
    } else {
        call_all(r, b);
    }
    REQUIRE_CUDA(cudaEventRecord(to, r->stream));
    await_all(r, "operations");
    REQUIRE_CUDA(cudaEventElapsedTime(&ms, from, to));
    return ms * 1000 / GRAPH;
}

/* Measures microseconds of an operation whose larger buffer has `bytes` bytes, with this communicator and,
 * given `n`, with NCCL, alternately. */
static void time_of(const rank_state *r, const nccl *n, uint32_t kind, uint64_t bytes, float us[2]) {
    int blocks = has_blocks_of_send(kind) || has_blocks_of_recv(kind);
    epw_coll c = EPW_COLL_INIT;
    c.kind = kind;
    c.type = EPW_TYPE_BF16;
    c.count = bytes / 2 / (blocks ? r->links->ranks : 1);
    c.send = r->gpu.send;
    c.recv = r->gpu.recv;
    uint32_t libraries = n != NULL && kind != EPW_BARRIER ? 2 : 1;
    batch batches[2];
    for (uint32_t k = 0; k < libraries; k++) batches[k] = batch_of(r, &c, k == 1 ? n : NULL);
    uint64_t copied = count_both(r).gpu.operations_copied;
    cudaEvent_t from, to;
    REQUIRE_CUDA(cudaEventCreate(&from));
    REQUIRE_CUDA(cudaEventCreate(&to));
    float times[2][ROUNDS];
    for (uint32_t i = 0; i < ROUNDS; i++) {
        for (uint32_t k = 0; k < libraries; k++) times[k][i] = time_of_batch(r, &batches[k], from, to);
    }
    copied = count_both(r).gpu.operations_copied - copied;
    int by_copies =
        by_copy_engines(r) && (both.heap || eager) && (kind == EPW_ALL_GATHER || kind == EPW_ALL_TO_ALL);
    REQUIRE(copied == (by_copies ? ROUNDS * GRAPH : 0), "copy engines have moved %llu operations",
            (unsigned long long)copied);
    for (uint32_t k = 0; k < libraries; k++) {
        qsort(times[k], ROUNDS, sizeof times[k][0], by_value);
        us[k] = times[k][ROUNDS / 2];
        free_batch(&batches[k]);
    }
    REQUIRE_CUDA(cudaEventDestroy(from));
    REQUIRE_CUDA(cudaEventDestroy(to));
}

/* Rows of 7168 bf16: times of a sum alone, and of one with residual, norm and FP8 after it, alternately. */
static void take_norm_times(const rank_state *r) {
    enum { HIDDEN = 7168 };
    cudaEvent_t from, to;
    REQUIRE_CUDA(cudaEventCreate(&from));
    REQUIRE_CUDA(cudaEventCreate(&to));
    unsigned char *memory;
    uint64_t most = 512 * (uint64_t)HIDDEN;
    REQUIRE_CUDA(cudaMalloc((void **)&memory, 8 * most + 4 * EPW_NORM_HIDDEN_MAX));
    for (uint64_t rows = 1; rows <= 512; rows *= 2) {
        norm_memory m = norm_memory_of(memory, rows * HIDDEN);
        epw_norm norm = EPW_NORM_INIT;
        norm.payload = EPW_PAYLOAD_FP8_F32;
        norm.hidden = HIDDEN;
        norm.rows = rows;
        norm.residual = m.residual;
        norm.weight = m.weight;
        norm.out = m.out;
        norm.scales = m.scales;
        epw_coll c = EPW_COLL_INIT;
        c.kind = EPW_ALL_REDUCE;
        c.type = EPW_TYPE_BF16;
        c.count = rows * HIDDEN;
        c.send = r->gpu.send;
        c.recv = r->gpu.recv;
        epw_coll normed = c;
        normed.norm = &norm;
        batch batches[2] = {batch_of(r, &c, NULL), batch_of(r, &normed, NULL)};
        float times[2][ROUNDS];
        for (uint32_t i = 0; i < 2 * ROUNDS; i++)
            times[i % 2][i / 2] = time_of_batch(r, &batches[i % 2], from, to);
        for (uint32_t k = 0; k < 2; k++) {
            qsort(times[k], ROUNDS, sizeof times[k][0], by_value);
            free_batch(&batches[k]);
        }
        if (r->links->rank == 0)
            printf("%4llu rows of %u: all_reduce %7.2f, with residual, norm and FP8 %7.2f\n",
                   (unsigned long long)rows, HIDDEN, (double)times[0][ROUNDS / 2],
                   (double)times[1][ROUNDS / 2]);
    }
    REQUIRE_CUDA(cudaFree(memory));
    REQUIRE_CUDA(cudaEventDestroy(from));
    REQUIRE_CUDA(cudaEventDestroy(to));
}

static void take_times(const rank_state *r) {
    static const uint32_t kinds[] = {EPW_ALL_REDUCE, EPW_ALL_GATHER, EPW_ALL_TO_ALL, EPW_REDUCE_SCATTER,
                                     EPW_BROADCAST};
    int first = r->links->rank == 0;
    nccl *n = nccl_path != NULL ? nccl_open(nccl_path, r->links) : NULL;
    float us[5][2];
    time_of(r, n, EPW_BARRIER, 0, us[0]);
    if (first)
        printf("%u ranks on %u GPUs, us of rank 0, median of %d %s of %d%s%s\nbarrier %.2f\n"
               "%10s %17s %17s %17s %17s %17s\n",
               r->links->ranks, r->links->gpus, ROUNDS, eager ? "rows" : "graphs", GRAPH,
               both.copy_engines ? "; all_gather and all_to_all by copy engines" : "",
               n != NULL ? "; behind each, NCCL's" : "", (double)us[0][0], "bytes", "all_reduce",
               "all_gather", "all_to_all", "reduce_scatter", "broadcast");
    for (uint64_t bytes = 1024; bytes <= LARGEST_TIMED; bytes *= bytes < 1 << 18 ? 4 : 2) {
        for (uint32_t k = 0; k < 5; k++) time_of(r, n, kinds[k], bytes, us[k]);
        if (!first) continue;
        printf("%10llu", (unsigned long long)bytes);
        for (uint32_t k = 0; k < 5; k++) {
            if (n == NULL)
                printf(" %17.2f", (double)us[k][0]);
            else
                printf(" %8.2f %8.2f", (double)us[k][0], (double)us[k][1]);
        }
        printf("\n");
        fflush(stdout);
    }
    nccl_close(n);
    take_norm_times(r);
}

static int rank_main(const rank_links *links) {
    rank_state r;
    open_rank(&r, links);
    if (timed) {
        take_times(&r);
    } else if (norms) {
        disturb_norms(&r);
        if (both.processes && links->ranks > 1 && !lends() && !r.gpu.comm->gpu->queues) die_amid(&r);
    } else if (differs) {
        if (links->ranks > 1) differ_in_all_ways(&r);
    } else {
        run_cases(&r);
        run_blocks(&r);
        run_norms(&r);
        run_points(&r);
        if (links->ranks > 1) {
            differ_in_all_ways(&r);
            lose(&r, (ones){.count = 5000}, deadline());
            if (links->ranks > 2 && !small) lose(&r, (ones){.count = 200000}, deadline());
            lose(&r, (ones){.count = 3000000}, deadline());
            if (links->ranks > 3 && !small) /* the most that goes by lines */
                lose(&r, (ones){.count = 4100000}, deadline());
            if (!small) disturb_norms(&r);
            if (lends()) {
                reduce_in_turns(&r);
                stop_after_telling(&r, (ones){.count = 3000000});
                overwrite_soon(&r);
                read_too_late(&r);
            }
            if (links->rank == 0) printf("a rank that does not come is given up\n");
        }
    }
    close_rank(&r);
    return 0;
}

int main(int argc, char **argv) {
    const ranks_option options[] = {{.name = "--ranks", .number = &ranks},
                                    {.name = "--processes", .number = &both.processes, .preset = 1},
                                    {.name = "--cases", .number = &cases},
                                    {.name = "--seed", .number = &seed},
                                    {.name = "--seconds", .number = &seconds},
                                    {.name = "--heap", .number = &both.heap, .preset = 1},
                                    {.name = "--register", .number = &both.registers, .preset = 1},
                                    {.name = "--rings", .number = &both.rings, .preset = 1},
                                    {.name = "--copy-engines", .number = &both.copy_engines, .preset = 1},
                                    {.name = "--eager", .number = &eager, .preset = 1},
                                    {.name = "--time", .number = &timed, .preset = 1},
                                    {.name = "--small", .number = &small, .preset = 1},
                                    {.name = "--norms", .number = &norms, .preset = 1},
                                    {.name = "--differ", .number = &differs, .preset = 1},
                                    {.name = "--nccl", .text = &nccl_path},
                                    {.name = "--deadline-ms", .number = &both.deadline_ms},
                                    {0}};
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    int bad = ranks_options(
        argc, argv, options,
        "usage: test_comms [--ranks N] [--processes] [--heap | --register | --rings] [--copy-engines] "
        "[--cases N] [--seed N] [--small | --norms | --differ] [--deadline-ms N] [--seconds N] "
        "[--time [--eager] [--nccl PATH]]");
    if (bad) return bad;
    ranks_limit("comms", seconds);
    both.rings |= lends() && !timed; /* as without, but then there are no lines */
    both.pool_bytes = POOL_BYTES;
    both.gpu_pool_bytes = timed ? LARGEST_TIMED : POOL_BYTES;
    return ranks_main(rank_main, ranks, both.processes, argv);
}
