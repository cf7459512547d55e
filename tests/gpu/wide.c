/* Groups of more than 64 ranks: a GPU against the host, bit for bit, with the same members in the same
 * places. All members are buffers of one thread, which enqueues or polls for each in turn. Some fall silent
 * in a dispatch or in a combine, three of them peers of the same waiting thread; one is revoked; then follow
 * a membership without them and one with all. Each case is a process of its own; `--case NAME` runs one. Exit
 * code 77, with the reason, if there is no GPU. With EPW_TEST_PATH, see ranks.h, there are only a few members
 * in places far apart, because each has a NIC of its own. */
#include "cases.h"
#include "ranks.h"

#include <stdbool.h>

enum { TOKENS = 4, HIDDEN = 128, LOCAL = 2, TOPK = 8, PLACES = 256 };

enum { GRIDS = 128 }; /* the most kernels on a GPU at a time */

#define DEADLINE_NS (1000 * MS)
#define BOUND_NS    (60000 * MS)

/* ---- a group ---- */

typedef struct member {
    epw_buffer *buffer;
    epw_fabric *fabric; /* NULL: it needs none */
    cudaStream_t stream;
    epw_handle handle;
    epw_status status; /* status of its operation on the host */
    epw_outcome outcome;
    /* In the kind of memory that the buffer uses. */
    uint16_t *x, *rows, *out, *contributions;
    int32_t *ids;
    float *weights;
    uint32_t *counts, *source_counts;
} member;

typedef struct group {
    uint32_t ranks; /* places, */
    epw_mask members;
    int32_t device;
    bool together; /* the kernels of all members are co-resident, and may wait for each other */
    epw_mask active;
    uint32_t epoch;
    uint64_t step;
    unsigned char *log; /* a log of the results */
    size_t logged, room;
    member of[PLACES];
} group;

static bool has(const epw_mask *mask, uint32_t rank) {
    return mask->bits[rank / 64] >> (rank % 64) & 1;
}
static epw_mask without(epw_mask mask, const epw_mask *others) {
    for (uint32_t i = 0; i < EPW_MAX_RANKS / 64; i++) mask.bits[i] &= ~others->bits[i];
    return mask;
}
static epw_mask mask_of(const uint32_t *ranks, size_t count) {
    epw_mask mask = {{0}};
    for (size_t i = 0; i < count; i++) mask.bits[ranks[i] / 64] |= UINT64_C(1) << (ranks[i] % 64);
    return mask;
}
static bool same(const epw_mask *a, const epw_mask *b) {
    return memcmp(a, b, sizeof *a) == 0;
}
#define EACH(rank, mask)                                                                                     \
    for (uint32_t rank = 0; rank < PLACES; rank++)                                                           \
        if (has((mask), rank))

static void *take(const group *g, size_t bytes) {
    void *at = NULL;
    if (g->device >= 0) {
        REQUIRE_CUDA(cudaMalloc(&at, bytes));
    } else {
        at = malloc(bytes);
        REQUIRE(at != NULL, "no memory");
    }
    return at;
}
static void give(const group *g, void *at) {
    if (g->device >= 0) {
        REQUIRE_CUDA(cudaFree(at));
    } else {
        free(at);
    }
}
static void copy(const group *g, void *to, const void *from, size_t bytes) {
    if (g->device >= 0) {
        REQUIRE_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
    } else {
        memcpy(to, from, bytes);
    }
}

static size_t rows_bytes(const group *g) {
    return (size_t)g->ranks * TOKENS * HIDDEN * 2; /* bytes of an expert's list */
}

static void open_member(group *g, uint32_t rank) {
    member *m = &g->of[rank];
    epw_config config = EPW_CONFIG_INIT;
    config.rank = rank;
    config.ranks = g->ranks;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.experts = g->ranks * LOCAL;
    config.topk = TOPK;
    config.lanes = 1;
    config.device = g->device;
    config.deadline_ns = DEADLINE_NS;
    if (g->device >= 0) config.sms = 1;
    if (g->device < 0) config.threads = 1;
    if (g->device >= 0) ranks_path(&config);
    m->fabric = config.fabric;
    REQUIRE_OK(epw_buffer_create(&config, &m->buffer));
    if (g->device >= 0) REQUIRE_CUDA(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
    m->x = take(g, TOKENS * HIDDEN * 2);
    m->ids = take(g, TOKENS * TOPK * 4);
    m->weights = take(g, TOKENS * TOPK * 4);
    m->rows = take(g, LOCAL * rows_bytes(g));
    m->counts = take(g, LOCAL * 4);
    m->source_counts = take(g, g->ranks * 4);
    m->out = take(g, TOKENS * HIDDEN * 2);
    m->contributions = take(g, TOKENS * 4);
}

static void begin(group *g, epw_mask active) {
    g->active = active;
    g->epoch++;
    EACH(rank, &active)
    REQUIRE_OK(epw_buffer_set_active(g->of[rank].buffer, &active, g->epoch, g->step));
}

static void open_group(group *g, uint32_t ranks, epw_mask members, int32_t device) {
    int sms = 0;
    uint32_t count = 0;
    *g = (group){.ranks = ranks, .members = members, .device = device, .room = 1 << 26};
    g->log = malloc(g->room);
    REQUIRE(g->log != NULL, "no memory");
    EACH(rank, &members) {
        open_member(g, rank);
        count++;
    }
    if (device >= 0) REQUIRE_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    g->together = device < 0 || count <= ((uint32_t)sms < GRIDS ? (uint32_t)sms : GRIDS);
    EACH(from, &members) EACH(to, &members) {
        unsigned char blob[EPW_BLOB_MAX];
        size_t length = 0;
        if (from == to) continue;
        REQUIRE_OK(epw_buffer_export(g->of[from].buffer, to, blob, &length));
        REQUIRE_OK(epw_buffer_connect_within(g->of[to].buffer, from, blob, length, 10000 * MS));
    }
    begin(g, members);
}

static void close_group(group *g) {
    EACH(rank, &g->members) {
        member *m = &g->of[rank];
        void *const arrays[] = {m->x,      m->ids,           m->weights, m->rows,
                                m->counts, m->source_counts, m->out,     m->contributions};
        epw_buffer_destroy(m->buffer);
        epw_fabric_destroy(m->fabric);
        if (g->device >= 0) REQUIRE_CUDA(cudaStreamDestroy(m->stream));
        for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) give(g, arrays[i]);
    }
    free(g->log);
}

/* ---- a step ---- */

/* The finaliser of splitmix64. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Numbers whose sum depends on the order of addition. Tokens go to experts of active ranks; some go to an
 * expert of a place without a member, if there is one. */
static void fill(group *g, uint32_t rank) {
    member *m = &g->of[rank];
    uint16_t x[TOKENS * HIDDEN];
    int32_t ids[TOKENS * TOPK], experts[PLACES * LOCAL], nobody = -1;
    float weights[TOKENS * TOPK];
    uint32_t count = 0;
    for (uint32_t r = 0; r < g->ranks; r++) {
        if (!has(&g->active, r)) nobody = (int32_t)(r * LOCAL);
        for (uint32_t i = 0; has(&g->active, r) && i < LOCAL; i++)
            experts[count++] = (int32_t)(r * LOCAL + i);
    }
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) {
        uint64_t h = mix(mix(g->step << 20 | rank << 10) + i);
        x[i] = (uint16_t)((h & 0x8000) | (120 + h % 11) << 7 | (h >> 20 & 0x7f));
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        uint64_t h = mix(mix(g->step << 20 | rank << 10) - t - 1), stride = 1 + h % (count / TOPK);
        for (uint32_t j = 0; j < TOPK; j++) {
            ids[t * TOPK + j] = experts[(h / 1024 + j * stride) % count];
            weights[t * TOPK + j] = (float)(1 + (mix(h + j) & 1023)) / 777.0f;
        }
        if (t == 1) ids[t * TOPK + 3] = nobody;
    }
    copy(g, m->x, x, sizeof x);
    copy(g, m->ids, ids, sizeof ids);
    copy(g, m->weights, weights, sizeof weights);
}

/* Waits until everything begun has ended. */
static void settle(group *g, const epw_mask *who, const char *what) {
    uint64_t began = now_ns();
    if (g->device >= 0) {
        EACH(rank, who) await_stream(g->of[rank].stream, BOUND_NS, what);
        return;
    }
    for (bool more = true; more;) {
        more = false;
        EACH(rank, who) {
            member *m = &g->of[rank];
            if (m->status != EPW_PENDING) continue;
            m->status = epw_poll(m->buffer, m->handle, &m->outcome);
            REQUIRE(m->status == EPW_OK || m->status == EPW_PENDING, "%s: %s", what, epw_last_error());
            more |= m->status == EPW_PENDING;
        }
        REQUIRE(now_ns() - began < BOUND_NS, "%s hangs on the host", what);
    }
}

/* Checks the outcome of the half that has ended: which members it misses, and why. */
static void check_missing(group *g, uint32_t rank, const epw_mask *missing, const char *what) {
    member *m = &g->of[rank];
    if (g->device >= 0) {
        m->outcome = (epw_outcome)EPW_OUTCOME_INIT;
        REQUIRE_OK(epw_outcome_read(m->buffer, m->handle, &m->outcome));
    }
    bool right = same(&m->outcome.missing, missing);
    for (uint32_t i = 0; !right && i < PLACES / 64; i++)
        fprintf(stderr, "ranks from %u: %llx instead of %llx\n", i * 64,
                (unsigned long long)m->outcome.missing.bits[i], (unsigned long long)missing->bits[i]);
    REQUIRE(right, "%s: rank %u: other ranks are missing than expected; cause %u of rank %u", what, rank,
            m->outcome.record.cause, m->outcome.record.peer);
}

static void dispatch(group *g, const epw_mask *who) {
    epw_dispatch_output outputs[PLACES];
    EACH(rank, who) {
        member *m = &g->of[rank];
        epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
        epw_dispatch_output *out = &outputs[rank];
        fill(g, rank);
        *out = (epw_dispatch_output)EPW_DISPATCH_OUTPUT_INIT;
        m->outcome = (epw_outcome)EPW_OUTCOME_INIT;
        in.tokens = TOKENS;
        in.topk = TOPK;
        in.x = m->x;
        in.topk_idx = m->ids;
        in.topk_weights = m->weights;
        in.stream = out->stream = m->stream;
        in.nonblocking = g->device < 0;
        out->rows = m->rows;
        out->counts = m->counts;
        out->source_counts = m->source_counts;
        if (g->device < 0) {
            m->status = epw_dispatch(m->buffer, &in, out, &m->handle, &m->outcome);
        } else {
            m->status = epw_dispatch(m->buffer, &in, NULL, &m->handle, NULL);
        }
        REQUIRE(m->status == EPW_OK || m->status == EPW_PENDING, "dispatch: %s", epw_last_error());
    }
    if (g->device >= 0 && !g->together) settle(g, who, "sending");
    EACH(rank, who) {
        if (g->device < 0) break;
        REQUIRE_OK(epw_dispatch_receive(g->of[rank].buffer, g->of[rank].handle, &outputs[rank], NULL));
    }
    settle(g, who, "a dispatch");
}

/* Experts answer with what they were sent. */
static void combine(group *g, const epw_mask *who) {
    epw_combine_output outputs[PLACES];
    EACH(rank, who) {
        member *m = &g->of[rank];
        epw_combine_input in = EPW_COMBINE_INPUT_INIT;
        epw_combine_output *out = &outputs[rank];
        *out = (epw_combine_output)EPW_COMBINE_OUTPUT_INIT;
        m->outcome = (epw_outcome)EPW_OUTCOME_INIT;
        in.expert_out = m->rows;
        in.stream = out->stream = m->stream;
        in.nonblocking = g->device < 0;
        out->out = m->out;
        out->contributions = m->contributions;
        if (g->device < 0) {
            m->status = epw_combine(m->buffer, m->handle, &in, out, &m->outcome);
        } else {
            m->status = epw_combine(m->buffer, m->handle, &in, NULL, NULL);
        }
        REQUIRE(m->status == EPW_OK || m->status == EPW_PENDING, "combine: %s", epw_last_error());
    }
    if (g->device >= 0 && !g->together) settle(g, who, "answering");
    EACH(rank, who) {
        if (g->device < 0) break;
        REQUIRE_OK(epw_combine_receive(g->of[rank].buffer, g->of[rank].handle, &outputs[rank], NULL));
    }
    settle(g, who, "a combine");
}

static void note(group *g, const void *from, size_t bytes) {
    REQUIRE(g->logged + bytes <= g->room, "the log is full");
    copy(g, g->log + g->logged, from, bytes);
    g->logged += bytes;
}

static void note_received(group *g, uint32_t rank) {
    member *m = &g->of[rank];
    uint32_t counts[LOCAL];
    copy(g, counts, m->counts, sizeof counts);
    note(g, m->counts, sizeof counts);
    note(g, m->source_counts, g->ranks * 4);
    for (uint32_t e = 0; e < LOCAL; e++)
        note(g, (unsigned char *)m->rows + e * rows_bytes(g), (size_t)counts[e] * HIDDEN * 2);
}

static void check_verdict(group *g, uint32_t verdict) {
    uint32_t epoch = 0, found = 0;
    EACH(rank, &g->active)
    REQUIRE_OK(epw_checkpoint(g->of[rank].buffer, g->step, g->of[rank].stream, &epoch));
    EACH(rank, &g->active) {
        uint64_t began = now_ns();
        do {
            REQUIRE_OK(epw_checkpoint_verdict(g->of[rank].buffer, epoch, g->step, &found));
            REQUIRE(now_ns() - began < BOUND_NS, "rank %u: no verdict", rank);
        } while (found == EPW_VERDICT_PENDING);
        REQUIRE(found == verdict, "rank %u: step %llu: verdict %u", rank, (unsigned long long)g->step, found);
    }
}

/* A step of `dispatching`, of which `combining` continue to the end; the others release their handle
 * afterwards. The other active members have fallen silent, or are known to be lost. */
static void step(group *g, const epw_mask *dispatching, const epw_mask *combining) {
    epw_mask absent = without(g->active, dispatching), unanswered = without(g->active, combining);
    epw_mask given_up = without(*dispatching, combining);
    uint64_t began = now_ns();
    g->step++;
    dispatch(g, dispatching);
    EACH(rank, dispatching) check_missing(g, rank, &absent, "dispatch");
    EACH(rank, combining) note_received(g, rank);
    combine(g, combining);
    REQUIRE(!g->together || now_ns() - began < DEADLINE_NS * 3 / 2, "a step took %llu ms",
            (unsigned long long)((now_ns() - began) / MS));
    EACH(rank, combining) {
        check_missing(g, rank, &unanswered, "combine");
        note(g, g->of[rank].out, TOKENS * HIDDEN * 2);
        note(g, g->of[rank].contributions, TOKENS * 4);
    }
    EACH(rank, &given_up) {
        REQUIRE_OK(epw_release(g->of[rank].buffer, g->of[rank].handle));
        if (g->device >= 0) await_stream(g->of[rank].stream, BOUND_NS, "a release");
    }
}

static void check_suspects(group *g, const epw_mask *who, const epw_mask *suspects, const epw_mask *silent) {
    EACH(rank, who) {
        epw_membership now = EPW_MEMBERSHIP_INIT;
        REQUIRE_OK(epw_buffer_membership(g->of[rank].buffer, &now));
        REQUIRE(same(&now.suspects, suspects) && same(&now.silent, silent),
                "rank %u: other suspects than expected", rank);
    }
}

/* ---- cases ---- */

/* `silent` fall silent together; the group continues without `revoked`. */
static void run(group *g, const epw_mask *silent, const epw_mask *revoked) {
    const epw_mask all = g->members, none = {{0}}, rest = without(all, silent),
                   others = without(all, revoked);
    for (uint32_t i = 0; i < 3; i++) step(g, &all, &all);
    check_verdict(g, EPW_VERDICT_CLEAN);

    step(g, &all, &rest);
    check_suspects(g, &rest, silent, silent);
    step(g, &rest, &rest); /* at once */
    begin(g, rest);
    check_suspects(g, &rest, &none, &none);
    step(g, &rest, &rest);
    check_verdict(g, EPW_VERDICT_FAULTED); /* includes the faults of the previous steps */
    step(g, &rest, &rest);
    check_verdict(g, EPW_VERDICT_CLEAN);

    begin(g, all);
    step(g, &all, &all);
    step(g, &rest, &rest);
    check_suspects(g, &rest, silent, silent);

    begin(g, all);
    step(g, &all, &all);
    EACH(rank, &others) REQUIRE_OK(epw_buffer_revoke(g->of[rank].buffer, revoked));
    uint64_t began = now_ns();
    step(g, &others, &others);
    REQUIRE(now_ns() - began < DEADLINE_NS / 2, "a revoked rank was waited for");
    check_suspects(g, &others, revoked, &none);

    begin(g, all);
    step(g, &all, &all);
    check_verdict(g, EPW_VERDICT_FAULTED);
    step(g, &all, &all);
    check_verdict(g, EPW_VERDICT_CLEAN);
}

static void compare(uint32_t ranks, epw_mask members, epw_mask silent, epw_mask revoked) {
    static group host, gpu;
    open_group(&host, ranks, members, EPW_DEVICE_HOST);
    run(&host, &silent, &revoked);
    open_group(&gpu, ranks, members, 0);
    run(&gpu, &silent, &revoked);
    size_t at = 0;
    REQUIRE(host.logged == gpu.logged, "%zu bytes instead of %zu", gpu.logged, host.logged);
    while (at < host.logged && host.log[at] == gpu.log[at]) at++;
    REQUIRE(at == host.logged, "the GPU differs from the host at byte %zu of %zu", at, host.logged);
    close_group(&gpu);
    close_group(&host);
}

static epw_mask first_ranks(uint32_t count) {
    epw_mask mask = {{0}};
    for (uint32_t r = 0; r < count; r++) mask.bits[r / 64] |= UINT64_C(1) << (r % 64);
    return mask;
}

#define RANKS(...)                                                                                           \
    mask_of((const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static void ranks_72(uint32_t gpus) {
    (void)gpus;
    compare(72, first_ranks(72), RANKS(5, 37, 69), RANKS(70));
}
static void ranks_128(uint32_t gpus) {
    (void)gpus;
    compare(128, first_ranks(128), RANKS(0, 32, 64, 96, 127), RANKS(65));
}
/* A place without a member has no experts. */
static void spread(uint32_t gpus) {
    (void)gpus;
    compare(256, RANKS(0, 31, 32, 63, 64, 130, 162, 194, 254, 255), RANKS(130, 162, 194), RANKS(255));
}
/* As many members as have an SM of a GPU each. */
static void ranks_130(uint32_t gpus) {
    (void)gpus;
    compare(256, first_ranks(130), RANKS(63, 64, 66, 98, 129), RANKS(120));
}

static const gpu_case cases[] = {
    {"spread", spread, 1, 60},
    {"ranks_72", ranks_72, 1, 120},
    {"ranks_128", ranks_128, 1, 180},
    {"ranks_130", ranks_130, 1, 300},
};

int main(int argc, char **argv) {
    size_t count = getenv("EPW_TEST_PATH") != NULL ? 1 : sizeof cases / sizeof cases[0];
    return cases_main("wide", cases, count, argc, argv);
}
