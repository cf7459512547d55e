/* A rank that does not come to an operation on GPUs: barriers, broadcasts, also those whose parts ranks pass
 * on to each other, reduce-scatters, gathers and uneven blocks, with the rank that is lost as root or not.
 * The others wait for a bounded time, name it and only it, and have their input as it was and all that the
 * others gave; then they do without it, and at last with it, with the bits that the host has. Three ranks or
 * more also sum without it what goes by lines among all ranks, though the lines of the others' larger parts
 * do not fit; and operations that have it as root, or are for it, lack it. EPW_TEST_PATH and EPW_TEST_WIRE
 * (ranks.h) say how the communicators on GPUs reach their peers.
 *
 *     test_comm_losses [--ranks N] [--lost N] [--processes] [--heap | --register | --rings]
 *                      [--deadline-ms N] [--seconds N]
 *
 * --lost N: instead, that many ranks do not come to large operations, for which the others wait no longer
 * than for one. --heap, --register, --rings: as test_comms has them. Sums and norms are lost in test_comms.
 */
#include "both.h"

#include <stdlib.h>
#include <string.h>

enum { SMALL = 5000, LARGE = 300000, GAP = 5, FROM = 1024 /* the bytes of a pool before a buffer */ };
#define POOL_BYTES (UINT64_C(24) << 20)

static uint32_t ranks, lost, seconds = 120;

/* f32, in blocks of `count` elements; uneven: rank p's has p fewer, and a gap behind it. */
typedef struct loss {
    const char *name;
    uint32_t kind, count;
    int root_is_lost, uneven;
} loss;

static const loss losses[] = {
    {"a barrier", EPW_BARRIER, 0, 0, 0},
    {"a broadcast", EPW_BROADCAST, SMALL, 0, 0},
    {"a broadcast of the lost rank", EPW_BROADCAST, SMALL, 1, 0},
    {"a large broadcast", EPW_BROADCAST, LARGE, 0, 0},
    {"a large broadcast of the lost rank", EPW_BROADCAST, LARGE, 1, 0},
    {"a reduce_scatter", EPW_REDUCE_SCATTER, SMALL, 0, 0},
    {"a large reduce_scatter", EPW_REDUCE_SCATTER, LARGE, 0, 0},
    {"a gather", EPW_GATHER, SMALL, 0, 0},
    {"a gather of the lost rank", EPW_GATHER, SMALL, 1, 0},
    {"a large gather", EPW_GATHER, LARGE, 0, 0},
    {"a gather of uneven blocks", EPW_GATHER, SMALL, 0, 1},
};

/* ---- a call ---- */

/* Where the blocks lie in the buffer that has all of them. */
typedef struct layout {
    uint64_t counts[RANKS_LIMIT], offsets[RANKS_LIMIT], all;
} layout;

static layout layout_of(const rank_state *r, const loss *l) {
    layout at = {.all = 0};
    for (uint32_t p = 0; p < r->links->ranks; p++) {
        at.offsets[p] = at.all;
        at.counts[p] = l->count - (l->uneven ? p : 0);
        at.all += at.counts[p] + (l->uneven ? GAP : 0);
    }
    return at;
}

static uint64_t send_bytes(const rank_state *r, const loss *l) {
    const layout at = layout_of(r, l);
    return 4 * (l->kind == EPW_REDUCE_SCATTER ? at.all : at.counts[r->links->rank]);
}
static uint64_t recv_bytes(const rank_state *r, const loss *l) {
    const layout at = layout_of(r, l);
    return 4 * (l->kind == EPW_GATHER || l->kind == EPW_ALL_GATHER ? at.all : at.counts[r->links->rank]);
}

static epw_coll call_of(const loss *l, const layout *at, const side *on, uint32_t root) {
    epw_coll c = EPW_COLL_INIT;
    c.kind = l->kind;
    c.type = EPW_TYPE_F32;
    c.op = EPW_SUM;
    c.peer = root;
    c.count = l->count;
    c.send = on->send + FROM;
    c.recv = on->recv + FROM;
    if (!l->uneven) return c;
    c.recv_counts = at->counts;
    c.recv_offsets = at->offsets;
    return c;
}

/* What a rank gives. */
static void fill_for(uint32_t rank, const loss *l, unsigned char *to, uint64_t bytes) {
    fill(to, bytes, EPW_TYPE_F32, 0, l->kind * 7919 + l->count + rank);
}

/* Bytes to give, and 0x5a where nobody has written, on both sides. */
static void fill_both(const rank_state *r, const loss *l) {
    const uint64_t send = send_bytes(r, l), recv = recv_bytes(r, l);
    memset(r->host.send + FROM - GUARD, 0xa5, send + 2 * GUARD);
    memset(r->host.recv + FROM - GUARD, 0x5a, recv + 2 * GUARD);
    fill_for(r->links->rank, l, r->host.send + FROM, send);
    copy_to_gpu(r, r->gpu.send + FROM - GUARD, r->host.send + FROM - GUARD, send + 2 * GUARD);
    copy_to_gpu(r, r->gpu.recv + FROM - GUARD, r->host.recv + FROM - GUARD, recv + 2 * GUARD);
    await_all(r, "copies");
}

static void require_input(const rank_state *r, const loss *l) {
    require_same(r, r->host.send + FROM, r->gpu.send + FROM, send_bytes(r, l), "send", l->name);
}

/* All members are there: both sides do the same. */
static void run_complete(const rank_state *r, const loss *l, uint32_t root) {
    const layout at = layout_of(r, l);
    const epw_coll on_gpu = call_of(l, &at, &r->gpu, root), on_host = call_of(l, &at, &r->host, root);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    fill_both(r, l);
    REQUIRE_OK(call_and_wait(r, &on_gpu, &outcome));
    REQUIRE(outcome.degraded == 0, "rank %u, %s: missing %llx", r->links->rank, l->name,
            (unsigned long long)outcome.missing.bits[0]);
    REQUIRE_OK(epw_group(r->host.comm, &on_host, 1, NULL, &outcome));
    REQUIRE(outcome.degraded == 0, "%s on the host: missing %llx", l->name,
            (unsigned long long)outcome.missing.bits[0]);
    require_same(r, r->host.recv + FROM, r->gpu.recv + FROM, recv_bytes(r, l), "recv", l->name);
    require_input(r, l);
}

/* ---- a loss ---- */

/* What this rank receives without the last one, and which bytes of its recv that is: of a broadcast that may
 * be shared out only what the root itself gives, of a reduction nothing. */
static void take_expected(const rank_state *r, const loss *l, uint32_t root, unsigned char *expected,
                          unsigned char *given) {
    const uint32_t me = r->links->rank, last = r->links->ranks - 1;
    const uint64_t bytes = recv_bytes(r, l);
    memset(expected, 0x5a, bytes);
    memset(given, 0, bytes);
    if (root == last) return;
    if (l->kind == EPW_GATHER && me == root) {
        const layout at = layout_of(r, l);
        memset(given, 1, bytes); /* the gaps too */
        memset(given + 4 * at.offsets[last], 0, 4 * at.counts[last]);
        for (uint32_t p = 0; p < last; p++) fill_for(p, l, expected + 4 * at.offsets[p], 4 * at.counts[p]);
    }
    if (l->kind == EPW_BROADCAST && me != root) {
        uint64_t each = ((bytes + last - 1) / last + 15) / 16 * 16, from = (me - 1) * each;
        fill_for(root, l, expected, bytes);
        if (l->count == SMALL) memset(given, 1, bytes);
        memset(given + from, 1, bytes - from < each ? bytes - from : each);
    }
}

/* What the others gave has come, and nothing else was written behind it or before it. */
static void require_given(const rank_state *r, const loss *l, uint32_t root) {
    const uint64_t bytes = recv_bytes(r, l);
    unsigned char *expected = malloc(bytes + 1), *given = malloc(bytes + 1), *seen = r->copy + GUARD;
    REQUIRE(expected != NULL && given != NULL, "no memory");
    take_expected(r, l, root, expected, given);
    REQUIRE_CUDA(cudaMemcpyAsync(r->copy, r->gpu.recv + FROM - GUARD, bytes + 2 * GUARD,
                                 cudaMemcpyDeviceToHost, r->stream));
    await_all(r, "copy");
    for (uint64_t i = 0; i < GUARD; i++)
        REQUIRE(r->copy[i] == 0x5a && seen[bytes + i] == 0x5a, "rank %u, %s: written beside recv",
                r->links->rank, l->name);
    for (uint64_t i = 0; i < bytes; i++)
        REQUIRE(!given[i] || seen[i] == expected[i], "rank %u, %s: byte %llu of %llu is %02x, not %02x",
                r->links->rank, l->name, (unsigned long long)i, (unsigned long long)bytes, seen[i],
                expected[i]);
    free(expected);
    free(given);
}

/* The last rank does not come. */
static void wait_in_vain(const rank_state *r, const loss *l, uint32_t root) {
    const uint32_t last = r->links->ranks - 1;
    const layout at = layout_of(r, l);
    const epw_coll c = call_of(l, &at, &r->gpu, root);
    for (uint64_t again = 0; again < 2; again++) { /* it is not waited for again */
        ranks_meet(r->links);                      /* but those that come would be */
        epw_outcome outcome = EPW_OUTCOME_INIT;
        fill_both(r, l);
        const uint64_t began = now_ns();
        REQUIRE_OK(call_and_wait(r, &c, &outcome));
        const uint64_t took = now_ns() - began;
        REQUIRE(outcome.degraded == 1 && outcome.missing.bits[0] == UINT64_C(1) << last,
                "rank %u, %s, call %llu: missing %llx, cause %u, peer %u, after %llu ms", r->links->rank,
                l->name, (unsigned long long)again + 1, (unsigned long long)outcome.missing.bits[0],
                outcome.record.cause, outcome.record.peer,
                (unsigned long long)(outcome.record.elapsed_ns / MS));
        REQUIRE(outcome.record.cause != EPW_CAUSE_NONE && outcome.record.peer == last,
                "rank %u, %s: cause %u, peer %u", r->links->rank, l->name, outcome.record.cause,
                outcome.record.peer);
        REQUIRE(took < (again ? 1 : 3) * deadline(), "rank %u, %s, call %llu: took %llu ms", r->links->rank,
                l->name, (unsigned long long)again + 1, (unsigned long long)(took / MS));
        require_given(r, l, root);
        require_input(r, l);
    }
    epw_membership now = EPW_MEMBERSHIP_INIT;
    REQUIRE_OK(epw_comm_membership(r->gpu.comm, &now));
    REQUIRE(now.suspects.bits[0] == UINT64_C(1) << last, "rank %u, %s: suspects %llx", r->links->rank,
            l->name, (unsigned long long)now.suspects.bits[0]);
}

/* The others continue without those that were lost; then all continue together. */
static void continue_without(rank_state *r, const loss *l, uint64_t others) {
    if (others >> r->links->rank & 1) {
        activate(r, others);
        run_complete(r, l, 0);
    } else {
        r->epoch++;
    }
    ranks_meet(r->links);
    activate(r, all_of(r->links));
}

static void lose(rank_state *r, const loss *l) {
    const rank_links *links = r->links;
    const uint32_t last = links->ranks - 1, root = l->root_is_lost ? last : 0;
    const uint64_t others = all_of(links) & ~(UINT64_C(1) << last);
    if (links->rank != last) {
        wait_in_vain(r, l, root);
    } else {
        for (uint32_t again = 0; again < 2; again++) ranks_meet(links);
    }
    ranks_meet(links);
    continue_without(r, l, others);
    run_complete(r, l, root);
    ranks_meet(links);
}

/* The last rank is no member: whatever has it as root or is for it lacks it, on both sides, and moves
 * nothing. */
static void run_for_stranger(rank_state *r, const epw_coll *call, const char *what) {
    const side *const sides[] = {&r->gpu, &r->host};
    const uint32_t last = r->links->ranks - 1;
    for (int i = 0; i < 2; i++) {
        epw_coll c = *call;
        epw_outcome outcome = EPW_OUTCOME_INIT;
        c.peer = last;
        c.send = sides[i]->send + FROM;
        c.recv = sides[i]->recv + FROM;
        REQUIRE_OK(i == 0 ? call_and_wait(r, &c, &outcome) : epw_group(r->host.comm, &c, 1, NULL, &outcome));
        REQUIRE(outcome.degraded == 1 && outcome.missing.bits[0] == UINT64_C(1) << last,
                "rank %u, %s, side %d: missing %llx", r->links->rank, what, i,
                (unsigned long long)outcome.missing.bits[0]);
    }
    require_same(r, r->host.recv + FROM, r->gpu.recv + FROM, call->count * UINT64_C(4), "recv", what);
    REQUIRE(r->host.recv[FROM] == 0x5a, "rank %u, %s: recv has been written", r->links->rank, what);
}

static void run_for_strangers(rank_state *r) {
    const uint32_t kinds[] = {EPW_BROADCAST, EPW_SCATTER, EPW_GATHER, EPW_REDUCE, EPW_RECV, EPW_SEND};
    for (size_t i = 0; i < 2 * sizeof kinds / sizeof kinds[0]; i++) {
        const loss l = {"an operation for a rank that is no member", kinds[i / 2], i % 2 ? LARGE : SMALL, 0,
                        0};
        epw_coll c = EPW_COLL_INIT;
        fill_both(r, &l);
        c.kind = l.kind;
        c.type = EPW_TYPE_F32;
        c.op = EPW_SUM;
        c.count = l.count;
        run_for_stranger(r, &c, l.name);
    }
}

/* Without the last rank. */
static void run_without(rank_state *r) {
    const loss sum = {"a sum whose lines do not fit", EPW_ALL_REDUCE, 4 << 20, 0, 0};
    const rank_links *links = r->links;
    const uint32_t last = links->ranks - 1;
    if (links->rank != last) {
        activate(r, all_of(links) & ~(UINT64_C(1) << last));
        run_complete(r, &sum, 0);
        run_for_strangers(r);
    } else {
        r->epoch++;
    }
    ranks_meet(links);
    activate(r, all_of(links));
    run_complete(r, &losses[1], 0);
    ranks_meet(links);
}

/* ---- several are lost together ---- */

static const loss large[] = {
    {"a large all_reduce", EPW_ALL_REDUCE, LARGE, 0, 0},
    {"a large all_gather", EPW_ALL_GATHER, LARGE, 0, 0},
    {"a large all_gather of uneven blocks", EPW_ALL_GATHER, LARGE, 0, 1},
    {"a large reduce_scatter", EPW_REDUCE_SCATTER, LARGE, 0, 0},
};

static void wait_for_several(const rank_state *r, const loss *l, uint64_t gone) {
    const layout at = layout_of(r, l);
    const epw_coll c = call_of(l, &at, &r->gpu, 0);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    fill_both(r, l);
    const uint64_t began = now_ns();
    REQUIRE_OK(call_and_wait(r, &c, &outcome));
    const uint64_t took = now_ns() - began;
    REQUIRE(outcome.degraded == 1 && outcome.missing.bits[0] == gone, "rank %u, %s: missing %llx, not %llx",
            r->links->rank, l->name, (unsigned long long)outcome.missing.bits[0], (unsigned long long)gone);
    /* Three that were waited for one after the other would cost three; one whose last sign of life was not
     * heard before costs half a deadline more. */
    REQUIRE(took < 5 * deadline() / 2, "rank %u, %s: took %llu ms", r->links->rank, l->name,
            (unsigned long long)(took / MS));
    require_input(r, l);
}

static void lose_several(rank_state *r, const loss *l) {
    const rank_links *links = r->links;
    const uint64_t others = (UINT64_C(1) << (links->ranks - lost)) - 1;
    run_complete(r, l, 0);
    ranks_meet(links);
    if (others >> links->rank & 1) wait_for_several(r, l, all_of(links) & ~others);
    ranks_meet(links);
    continue_without(r, l, others);
}

static int several_main(const rank_links *links) {
    enum { LOSSES = sizeof large / sizeof large[0] };
    rank_state r;
    open_rank(&r, links);
    for (uint32_t i = 0; i < LOSSES; i++) lose_several(&r, &large[i]);
    run_complete(&r, &large[0], 0);
    close_rank(&r);
    if (links->rank == 0) printf("comm_losses: OK ranks=%u lost=%u losses=%d\n", links->ranks, lost, LOSSES);
    return 0;
}

static int rank_main(const rank_links *links) {
    if (lost > 0) return several_main(links);
    enum { LOSSES = sizeof losses / sizeof losses[0] };
    rank_state r;
    open_rank(&r, links);
    const epw_call call = on_stream(&r);
    ranks_begin_alone(links);
    REQUIRE_OK(epw_barrier(r.gpu.comm, &call, NULL));
    ranks_end_alone(links);
    for (uint32_t i = 0; i < LOSSES; i++) run_complete(&r, &losses[i], 0);
    ranks_meet(links);
    for (uint32_t i = 0; i < LOSSES; i++) lose(&r, &losses[i]);
    if (links->ranks > 2) run_without(&r);
    close_rank(&r);
    if (links->rank == 0) printf("comm_losses: OK ranks=%u losses=%d\n", links->ranks, LOSSES);
    return 0;
}

int main(int argc, char **argv) {
    const ranks_option options[] = {{.name = "--ranks", .number = &ranks},
                                    {.name = "--lost", .number = &lost},
                                    {.name = "--processes", .number = &both.processes, .preset = 1},
                                    {.name = "--heap", .number = &both.heap, .preset = 1},
                                    {.name = "--register", .number = &both.registers, .preset = 1},
                                    {.name = "--rings", .number = &both.rings, .preset = 1},
                                    {.name = "--deadline-ms", .number = &both.deadline_ms},
                                    {.name = "--seconds", .number = &seconds},
                                    {0}};
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, options,
                      "usage: test_comm_losses [--ranks N] [--lost N] [--processes] "
                      "[--heap | --register | --rings] [--deadline-ms N] [--seconds N]") != 0)
        return 2;
    ranks_limit("comm_losses", seconds);
    both.rings |= lends();
    both.pool_bytes = both.gpu_pool_bytes = POOL_BYTES;
    uint32_t gpus = 0;
    int ended = ranks_begin(rank_main, 2 + lost, &ranks, &gpus, argv);
    return ended >= 0 ? ended : ranks_run(rank_main, ranks, gpus, both.processes, argv);
}
