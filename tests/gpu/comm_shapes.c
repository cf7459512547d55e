/* Collectives on uneven blocks, on blocks with gaps between them and on rows of matrices, on GPUs against the
 * host engine, bit for bit. Seeded cases choose kinds, types, reductions, roots and counts for all ranks, and
 * for each rank where its blocks and rows lie, in which order, at what alignment, and whether it is in place.
 * What is enqueued is calls, one call, or a graph that is replayed with other bytes. EPW_TEST_PATH and
 * EPW_TEST_WIRE (ranks.h) say how the communicators on GPUs reach their peers.
 *
 *     test_comm_shapes [--ranks N] [--processes] [--heap | --register | --rings] [--cases N] [--seed N]
 *                      [--small] [--deadline-ms N] [--seconds N]
 *
 * --heap, --register, --rings: as test_comms has them. --small: blocks of up to 600 KB together, not 8 MiB.
 */
#include "both.h"

#include <stdlib.h>
#include <string.h>

enum { OPS = 3, REPLAYS = 2 };
#define POOL_BYTES (UINT64_C(48) << 20)

static uint32_t ranks, cases = 300, seed = 1, seconds = 120, small;

/* ---- what is called ---- */

/* An operation as all ranks call it. */
typedef struct shape {
    uint32_t kind, type, op, root;
    int uneven;
    uint64_t count, rows;                    /* of even blocks; of each block */
    uint64_t pair[RANKS_LIMIT][RANKS_LIMIT]; /* elements of a row of an uneven block: [from][to] */
    uint64_t in_place;                       /* mask of ranks */
} shape;

/* Where the blocks of a buffer lie, in elements. A lone block: all are the rank's own. */
typedef struct blocks {
    uint64_t counts[RANKS_LIMIT], offsets[RANKS_LIMIT];
    uint64_t pitch, elements; /* from row to row, 0: dense; of the buffer */
    int apart;                /* the offsets are not those of dense blocks */
} blocks;

/* A rank's part in an operation: its buffers, in its pools, at the same places on both sides. In place, both
 * are in recv's pool. */
typedef struct part {
    const shape *s;
    blocks send, recv;
    uint64_t send_at, recv_at, send_bytes, recv_bytes; /* 0 bytes of send: it lies in recv */
    uint64_t own_at;                                   /* of the own block, if that is one buffer's part */
    int in_place, tells_both; /* an exchange in place also tells what send has, which recv has too */
} part;

static int gives_blocks(uint32_t kind) {
    return kind == EPW_REDUCE_SCATTER || kind == EPW_ALL_TO_ALL || kind == EPW_SCATTER;
}
static int takes_blocks(uint32_t kind) {
    return kind == EPW_ALL_GATHER || kind == EPW_ALL_TO_ALL || kind == EPW_GATHER;
}
static int has_root(uint32_t kind) {
    return kind == EPW_GATHER || kind == EPW_SCATTER;
}
static int has_rows(uint32_t kind) {
    return kind == EPW_ALL_GATHER || kind == EPW_REDUCE_SCATTER;
}

static uint64_t some_count(uint64_t *state, uint64_t most) {
    static const uint64_t bounds[] = {3, 40, 3000, UINT64_MAX};
    uint64_t bound = bounds[below(state, 4)];
    return below(state, bound < most ? bound : most);
}

static shape make_shape(uint64_t *state, uint32_t n) {
    static const uint32_t kinds[] = {EPW_ALL_GATHER, EPW_REDUCE_SCATTER, EPW_GATHER, EPW_SCATTER,
                                     EPW_ALL_TO_ALL};
    shape s = {.kind = kinds[below(state, 5)],
               .type = (uint32_t)below(state, 10),
               .op = (uint32_t)below(state, 5),
               .root = (uint32_t)below(state, n),
               .uneven = below(state, 2) == 0,
               .rows = 1};
    uint64_t most = (small ? 600000 : 8 << 20) / sizes[s.type] / n;
    if (has_rows(s.kind) && below(state, 2) == 0) s.rows = 2 + below(state, 9);
    s.count = some_count(state, most / s.rows + 1);
    if (below(state, 3) == 0) s.in_place = below(state, 3) > 0 ? ~UINT64_C(0) : next(state);
    for (uint32_t from = 0; from < n; from++) {
        for (uint32_t to = 0; to < n; to++) s.pair[from][to] = some_count(state, most / s.rows + 1);
    }
    for (uint32_t from = 0; from < n; from++) {
        for (uint32_t to = 0; to < n; to++) { /* all give what the first gives, or one what it takes */
            if (s.kind != EPW_ALL_TO_ALL) s.pair[from][to] = s.pair[0][to];
            if (s.kind == EPW_ALL_TO_ALL && s.in_place != 0 && to < from) s.pair[from][to] = s.pair[to][from];
        }
    }
    return s;
}

static uint64_t count_of(const shape *s, uint32_t from, uint32_t to) {
    return s->uneven ? s->pair[from][to] : s->count;
}

/* ---- where it lies ---- */

/* Puts n blocks one after the other, or their rows beside each other, in an order of this rank's, with gaps;
 * or as dense blocks lie. */
static void lay_out(blocks *b, uint32_t n, uint64_t rows, uint64_t *state) {
    uint32_t order[RANKS_LIMIT];
    uint64_t at = 0;
    b->apart = below(state, 3) > 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t other = b->apart ? (uint32_t)below(state, i + 1) : i;
        order[i] = order[other];
        order[other] = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (b->apart) at += below(state, 3) * below(state, 9);
        b->offsets[order[i]] = at;
        at += b->counts[order[i]];
    }
    b->pitch = rows > 1 && (b->apart || below(state, 2) == 0) ? at + below(state, 9) : 0;
    b->elements = b->pitch > 0 ? rows * b->pitch : rows * at;
}

/* One block, whose rows lie in a matrix, at this pitch, or have one of their own. */
static void lay_out_alone(blocks *b, uint64_t count, uint64_t rows, uint64_t *state) {
    b->pitch = rows > 1 && below(state, 2) == 0 ? count + below(state, 9) : 0;
    b->elements = rows * (b->pitch > 0 ? b->pitch : count);
}

/* The next free place of a pool. */
static uint64_t place(uint64_t *state, uint64_t *used, uint64_t bytes) {
    uint64_t at = *used + GUARD + (below(state, 2) == 0 ? 0 : below(state, 64));
    *used = (at + bytes + GUARD + 255) / 256 * 256;
    REQUIRE(*used <= POOL_BYTES, "pools are too small");
    return at;
}

static uint64_t row_of(const blocks *b, uint32_t n) {
    uint64_t dense = 0;
    for (uint32_t p = 0; p < n; p++) dense += b->counts[p];
    return b->pitch > 0 ? b->pitch : dense;
}

static part take_part(const shape *s, uint32_t rank, uint32_t n, uint64_t *state, uint64_t used[2]) {
    part p = {.s = s, .in_place = (s->in_place >> rank & 1) && (!has_root(s->kind) || s->root == rank)};
    const uint32_t size = sizes[s->type];
    const uint64_t own = count_of(s, rank, rank);
    for (uint32_t q = 0; q < n; q++) {
        p.send.counts[q] = count_of(s, rank, q);
        p.recv.counts[q] = s->kind == EPW_ALL_TO_ALL ? count_of(s, q, rank) : count_of(s, rank, q);
    }
    if (gives_blocks(s->kind)) lay_out(&p.send, n, s->rows, state);
    if (takes_blocks(s->kind)) lay_out(&p.recv, n, s->rows, state);
    if (!gives_blocks(s->kind)) lay_out_alone(&p.send, own, s->rows, state);
    if (!takes_blocks(s->kind)) lay_out_alone(&p.recv, own, s->rows, state);
    if (p.in_place) {
        blocks *whole = takes_blocks(s->kind) ? &p.recv : &p.send;
        blocks *other = takes_blocks(s->kind) ? &p.send : &p.recv;
        p.tells_both = below(state, 2) == 0;
        if (s->kind == EPW_ALL_TO_ALL) *other = *whole;
        if (s->rows > 1) other->pitch = row_of(whole, n);
        p.own_at = s->kind == EPW_ALL_TO_ALL ? 0 : whole->offsets[rank] * size;
        p.recv_bytes = whole->elements * size;
        p.recv_at = place(state, &used[1], p.recv_bytes);
        p.send_at = GUARD;
        return p;
    }
    p.send_bytes = p.send.elements * size;
    p.recv_bytes = p.recv.elements * size;
    p.send_at = place(state, &used[0], p.send_bytes);
    p.recv_at = place(state, &used[1], p.recv_bytes);
    return p;
}

static epw_coll coll_of(const part *p, const side *on, uint32_t rank) {
    const shape *s = p->s;
    epw_coll c = EPW_COLL_INIT;
    unsigned char *recv = on->recv + p->recv_at;
    c.kind = s->kind;
    c.type = s->type;
    c.op = s->op;
    c.peer = s->root;
    c.count = s->uneven ? 0 : s->count;
    c.rows = s->rows;
    c.send = on->send + p->send_at;
    c.recv = recv;
    c.send_pitch = p->send.pitch;
    c.recv_pitch = p->recv.pitch;
    int gives = gives_blocks(s->kind), takes = takes_blocks(s->kind);
    if (p->in_place) {
        c.send = takes ? recv + (gives ? 0 : p->own_at) : recv;
        c.recv = takes ? recv : recv + p->own_at;
        if (gives && takes && !p->tells_both) gives = 0;
    }
    if (s->uneven && gives) c.send_counts = p->send.counts;
    if (s->uneven && takes) c.recv_counts = p->recv.counts;
    if (gives && p->send.apart) c.send_offsets = p->send.offsets;
    if (takes && p->recv.apart) c.recv_offsets = p->recv.offsets;
    if (has_root(s->kind) && s->root != rank) { /* what only the root has */
        if (gives) c.send = NULL;
        if (takes) c.recv = NULL;
    }
    return c;
}

/* ---- cases ---- */

static void fill_part(const rank_state *r, const part *p, uint64_t state) {
    int any = p->s->kind != EPW_REDUCE_SCATTER || state % 2;
    for (int i = 0; i < 2; i++) {
        uint64_t at = i == 0 ? p->send_at : p->recv_at, bytes = i == 0 ? p->send_bytes : p->recv_bytes;
        unsigned char *host = (i == 0 ? r->host.send : r->host.recv) + at;
        memset(host - GUARD, 0xa5, bytes + 2 * GUARD);
        fill(host, bytes, p->s->type, any, state + r->links->rank + (uint64_t)i * 7);
        copy_to_gpu(r, (i == 0 ? r->gpu.send : r->gpu.recv) + at - GUARD, host - GUARD, bytes + 2 * GUARD);
    }
}

static void fill_parts(const rank_state *r, const part *parts, uint32_t count, uint64_t state) {
    for (uint32_t i = 0; i < count; i++) fill_part(r, &parts[i], state + i * 104729);
    await_all(r, "copies");
}

/* Has the host do the same, and compares all bytes of all buffers, those between blocks too. */
static void compare(const rank_state *r, const part *parts, uint32_t count, uint64_t number) {
    for (uint32_t i = 0; i < count; i++) {
        const epw_coll c = coll_of(&parts[i], &r->host, r->links->rank);
        epw_outcome outcome = EPW_OUTCOME_INIT;
        REQUIRE_OK(epw_group(r->host.comm, &c, 1, NULL, &outcome));
        REQUIRE(outcome.degraded == 0, "on the host: missing %llx",
                (unsigned long long)outcome.missing.bits[0]);
    }
    for (uint32_t i = 0; i < count; i++) {
        const part *p = &parts[i];
        const shape *s = p->s;
        char words[240];
        snprintf(words, sizeof words,
                 "case %llu, operation %u: kind %u type %u op %u root %u, %s blocks%s of %llu, %llu rows, "
                 "pitches %llu and "
                 "%llu%s",
                 (unsigned long long)number, i, s->kind, s->type, s->op, s->root,
                 s->uneven ? "uneven" : "even", p->send.apart || p->recv.apart ? " apart" : "",
                 (unsigned long long)s->count, (unsigned long long)s->rows, (unsigned long long)p->send.pitch,
                 (unsigned long long)p->recv.pitch, p->in_place ? ", in place" : "");
        require_same(r, r->host.recv + p->recv_at, r->gpu.recv + p->recv_at, p->recv_bytes, "recv", words);
        if (p->send_bytes > 0)
            require_same(r, r->host.send + p->send_at, r->gpu.send + p->send_at, p->send_bytes, "send",
                         words);
    }
}

/* Some operations in a row: one call each, one call for all, or from a graph. */
static void run_case(const rank_state *r, uint64_t number) {
    const uint32_t rank = r->links->rank, n = r->links->ranks;
    uint64_t state = (seed + number) * 2654435761u, used[2] = {0, 0};
    uint32_t count = 1 + (uint32_t)below(&state, OPS);
    uint64_t how = below(&state, 3), own = next(&state) + rank;
    shape shapes[OPS];
    part parts[OPS];
    epw_coll ops[OPS];
    for (uint32_t i = 0; i < count; i++) {
        shapes[i] = make_shape(&state, n);
        parts[i] = take_part(&shapes[i], rank, n, &own, used);
        ops[i] = coll_of(&parts[i], &r->gpu, rank);
    }
    fill_parts(r, parts, count, number * 7919);
    epw_call call = on_stream(r);
    if (number == 0) ranks_begin_alone(r->links);
    if (how == 0 && number != 0) {
        cudaGraphExec_t exec = capture(r, ops, count);
        for (uint64_t i = 0; i < REPLAYS; i++) {
            if (i > 0) fill_parts(r, parts, count, number * 7919 + 40 + i);
            REQUIRE_CUDA(cudaGraphLaunch(exec, r->stream));
            await_all(r, "a replay");
            compare(r, parts, count, number);
        }
        REQUIRE_CUDA(cudaGraphExecDestroy(exec));
        return;
    }
    if (how == 1) {
        epw_outcome outcome = EPW_OUTCOME_INIT;
        epw_work work = 0;
        call.work = &work;
        REQUIRE_OK(epw_group(r->gpu.comm, ops, count, &call, NULL));
        if (number == 0) ranks_end_alone(r->links);
        REQUIRE_OK(epw_work_wait(r->gpu.comm, work, 60000 * MS, &outcome));
        REQUIRE(outcome.degraded == 0, "case %llu, rank %u: missing %llx, cause %u",
                (unsigned long long)number, rank, (unsigned long long)outcome.missing.bits[0],
                outcome.record.cause);
    } else {
        for (uint32_t i = 0; i < count; i++) REQUIRE_OK(epw_group(r->gpu.comm, &ops[i], 1, &call, NULL));
        if (number == 0) ranks_end_alone(r->links);
        await_all(r, "operations");
    }
    compare(r, parts, count, number);
}

static int rank_main(const rank_links *links) {
    rank_state r;
    open_rank(&r, links);
    for (uint64_t number = 0; number < cases; number++) run_case(&r, number);
    close_rank(&r);
    if (links->rank == 0) printf("comm_shapes: OK ranks=%u cases=%u\n", links->ranks, cases);
    return 0;
}

int main(int argc, char **argv) {
    const ranks_option options[] = {{.name = "--ranks", .number = &ranks},
                                    {.name = "--processes", .number = &both.processes, .preset = 1},
                                    {.name = "--heap", .number = &both.heap, .preset = 1},
                                    {.name = "--register", .number = &both.registers, .preset = 1},
                                    {.name = "--rings", .number = &both.rings, .preset = 1},
                                    {.name = "--cases", .number = &cases},
                                    {.name = "--seed", .number = &seed},
                                    {.name = "--small", .number = &small, .preset = 1},
                                    {.name = "--deadline-ms", .number = &both.deadline_ms},
                                    {.name = "--seconds", .number = &seconds},
                                    {0}};
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(
            argc, argv, options,
            "usage: test_comm_shapes [--ranks N] [--processes] [--heap | --register | --rings] [--cases N] "
            "[--seed N] [--small] [--deadline-ms N] [--seconds N]") != 0)
        return 2;
    ranks_limit("comm_shapes", seconds);
    both.rings |= lends();
    both.pool_bytes = both.gpu_pool_bytes = POOL_BYTES;
    return ranks_main(rank_main, ranks, both.processes, argv);
}
