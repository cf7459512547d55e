/* Prefill whose ranks are killed or stopped at random moments: while rows are counted, wait for a slot of a
 * ring, travel, or are answered. Each rank is a process; the process started by hand tells them what to do,
 * strikes one, and brings in a replacement. Survivors must see that each operation ends within its deadlines
 * and lacks that rank alone, that tokens for other ranks are complete and exact in every step, and that what
 * they do is exact without the lost rank, beside it while it continues, and with its replacement. Exit code
 * 77, with the reason, if there is no GPU. */
#include "coordinator.h"
#include "echo.h"
#include "traffic.h"

#include <stdbool.h>

enum { TOPK = 2, LOCAL = 3, HIDDEN = 256, STEPS_BEFORE = 4 };

static struct {
    uint32_t ranks, strikes, seed, tokens, deadline_ms, steps, within_us, seconds;
} options = {.strikes = 12, .seed = 1, .tokens = 64, .steps = 60, .within_us = 6000, .seconds = 500};

static const ranks_option named[] = {
    {"--ranks", .number = &options.ranks},
    {"--strikes", .number = &options.strikes},
    {"--seed", .number = &options.seed},
    {"--tokens", .number = &options.tokens},
    {"--deadline-ms", .number = &options.deadline_ms},
    {"--steps", .number = &options.steps},
    {"--within-us", .number = &options.within_us},
    {"--seconds", .number = &options.seconds},
    {0},
};

static const char usage[] =
    "prefill_failure [--ranks N] [--strikes N] [--seed N] [--tokens N] [--deadline-ms N] [--steps N (in "
    "which a rank is\n       struck)] [--within-us N (of their beginning)] [--seconds N (limit)]";

/* Processes that share a GPU take turns on it. */
static void complete_options(uint32_t ranks, uint32_t gpus) {
    if (options.deadline_ms == 0) options.deadline_ms = ranks > gpus ? 2000 : 200;
}

/* ---- a rank ---- */

typedef struct member {
    epw_prefill_config config;
    epw_prefill *prefill;
    epw_routing *routing;
    cudaStream_t stream;
    uint64_t members, random;
    uint16_t *x, *out, *contributions; /* pinned, as the GPU's */
    int32_t *ids;
    unsigned char *x_gpu, *ids_gpu, *rows, *out_gpu, *contributions_gpu;
    float *weights;
    uint64_t capacity;
} member;

static void *pinned(size_t bytes) {
    void *host = NULL;
    REQUIRE_CUDA(cudaHostAlloc(&host, bytes, cudaHostAllocDefault));
    return host;
}

static void create(member *m, const rank_links *links) {
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    const uint32_t n = options.tokens;
    epw_config *ep = &m->config.ep;
    m->config = (epw_prefill_config)EPW_PREFILL_CONFIG_INIT;
    ep->rank = links->rank;
    ep->ranks = links->ranks;
    ep->max_tokens = n;
    ep->hidden = HIDDEN;
    ep->experts = LOCAL * links->ranks;
    ep->topk = TOPK;
    ep->sms = ranks_sms(links, 1, 8);
    ep->device = ranks_gpu(links);
    ep->deadline_ns = options.deadline_ms * MS;
    m->config.ring_tokens = 4; /* each slot is given back and filled again many times in an operation */
    ranks_path(ep);
    REQUIRE_OK(epw_prefill_create(&m->config, &m->prefill));
    REQUIRE_OK(epw_routing_create(m->prefill, &m->routing));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
    m->random = options.seed * UINT64_C(1000003) + links->rank;
    m->capacity = (uint64_t)links->ranks * n * TOPK;
    m->x = pinned(n * HIDDEN * 2);
    m->out = pinned(n * HIDDEN * 2);
    m->contributions = pinned(n * 4);
    m->ids = pinned(n * TOPK * 4);
    m->x_gpu = echo_take(n * HIDDEN * 2, 0);
    m->out_gpu = echo_take(n * HIDDEN * 2, 0);
    m->contributions_gpu = echo_take(n * 4, 0);
    m->ids_gpu = echo_take(n * TOPK * 4, 0);
    m->rows = echo_take(m->capacity * HIDDEN * 2, 0);
    m->weights = echo_take(n * TOPK * 4, 0);
    float *halves = pinned(n * TOPK * 4);
    for (uint32_t i = 0; i < n * TOPK; i++) halves[i] = 0.5f;
    REQUIRE_CUDA(cudaMemcpy(m->weights, halves, n * TOPK * 4, cudaMemcpyHostToDevice));
    REQUIRE_CUDA(cudaFreeHost(halves));
}

static uint64_t next(member *m) {
    return m->random = traffic_mix(m->random + 1);
}

static uint32_t owner(int32_t id) {
    return (uint32_t)id / LOCAL;
}

/* Small integers, which stay exact as halves; two different experts of members for each token. */
static void make_tokens(member *m) {
    for (uint32_t t = 0; t < options.tokens; t++) {
        for (uint32_t i = 0; i < HIDDEN; i++)
            m->x[t * HIDDEN + i] = (uint16_t)(0x3f80 + (next(m) & 0x7f)); /* bf16 from 1 to 2 */
        for (uint32_t k = 0; k < TOPK; k++) {
            int32_t id;
            do {
                id = (int32_t)(next(m) % m->config.ep.experts);
            } while (!(m->members & bit(owner(id))) || (k == 1 && id == m->ids[t * TOPK]));
            m->ids[t * TOPK + k] = id;
        }
    }
}

/* Waits for what was enqueued, and returns the ranks that the operation lacks, which must be among `lost`. */
static uint64_t end_operation(member *m, const char *what, uint64_t lost, uint64_t began, uint64_t *slowest) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    await_stream(m->stream, 40 * options.deadline_ms * MS, what);
    uint64_t took = now_ns() - began;
    if (took > *slowest) *slowest = took;
    REQUIRE_OK(epw_prefill_poll(m->prefill, m->routing, &outcome));
    uint64_t missing = outcome.missing.bits[0];
    REQUIRE((missing & ~lost) == 0, "rank %u, %s: missing %llx, of which %llx may be lost; cause %u, peer %u",
            m->config.ep.rank, what, (unsigned long long)missing, (unsigned long long)lost,
            outcome.record.cause, outcome.record.peer);
    return missing;
}

/* Tokens whose experts' ranks are there must be complete, complete ones exact. A rank that was stopped may
 * find that its blocks did not begin in time: it lacks itself, and nothing is written. */
static void check(const member *m, uint64_t missing) {
    if (missing & bit(m->config.ep.rank)) return;
    for (uint32_t t = 0; t < options.tokens; t++) {
        const int32_t *ids = &m->ids[t * TOPK];
        bool whole = m->contributions[2 * t] == m->contributions[2 * t + 1];
        bool there = !(missing & (bit(owner(ids[0])) | bit(owner(ids[1]))));
        REQUIRE(m->contributions[2 * t + 1] == TOPK, "rank %u: token %u expects %u answers",
                m->config.ep.rank, t, m->contributions[2 * t + 1]);
        REQUIRE(whole || !there,
                "rank %u: token %u has %u answers, though of ranks %u and %u none is missing",
                m->config.ep.rank, t, m->contributions[2 * t], owner(ids[0]), owner(ids[1]));
        REQUIRE(!whole || memcmp(&m->out[t * HIDDEN], &m->x[t * HIDDEN], HIDDEN * 2) == 0,
                "rank %u: token %u is complete and wrong", m->config.ep.rank, t);
    }
}

/* Returns the ranks that dispatch or combine lacked. */
static uint64_t step(member *m, uint64_t lost, uint64_t *slowest) {
    const uint32_t n = options.tokens;
    make_tokens(m);
    REQUIRE_CUDA(cudaMemcpyAsync(m->x_gpu, m->x, n * HIDDEN * 2, cudaMemcpyHostToDevice, m->stream));
    REQUIRE_CUDA(cudaMemcpyAsync(m->ids_gpu, m->ids, n * TOPK * 4, cudaMemcpyHostToDevice, m->stream));
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = n;
    in.x = m->x_gpu;
    in.topk_idx = m->ids_gpu;
    in.topk_weights = m->weights;
    in.topk = TOPK;
    in.stream = m->stream;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    out.layout = EPW_PACKED;
    out.alignment = 1;
    out.capacity = m->capacity;
    out.rows = m->rows;
    out.stream = m->stream;
    uint64_t began = now_ns();
    REQUIRE_OK(epw_prefill_dispatch(m->prefill, m->routing, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &out, NULL));
    uint64_t missing = end_operation(m, "dispatch", lost, began, slowest);
    epw_prefill_combine_input answers = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output sums = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    answers.expert_out = m->rows;
    sums.out = m->out_gpu;
    sums.contributions = (uint16_t *)m->contributions_gpu;
    answers.stream = sums.stream = m->stream;
    began = now_ns();
    REQUIRE_OK(epw_prefill_combine(m->prefill, m->routing, &answers, &sums, NULL));
    missing |= end_operation(m, "combine", lost, began, slowest);
    REQUIRE_CUDA(cudaMemcpyAsync(m->out, m->out_gpu, n * HIDDEN * 2, cudaMemcpyDeviceToHost, m->stream));
    REQUIRE_CUDA(
        cudaMemcpyAsync(m->contributions, m->contributions_gpu, n * 4, cudaMemcpyDeviceToHost, m->stream));
    await_stream(m->stream, 40 * options.deadline_ms * MS, "copies");
    check(m, missing);
    return missing;
}

static void obey(member *m, const rank_links *links, message *in) {
    uint64_t lost = in->mask, slowest = 0;
    epw_mask active = {{in->mask}};
    switch (in->what) {
    case CREATE:
        create(m, links);
        break;
    case EXPORT:
        REQUIRE_OK(epw_prefill_export(m->prefill, in->peer, in->blob, &in->length));
        break;
    case CONNECT:
        CONNECT_WITHIN(epw_prefill_connect_within, m->prefill, in);
        break;
    case DISCONNECT:
        REQUIRE_OK(epw_prefill_disconnect(m->prefill, in->peer));
        break;
    case ACTIVATE:
        m->members = in->mask;
        REQUIRE_OK(epw_prefill_set_active(m->prefill, &active, in->epoch, 0));
        break;
    case STEPS: /* the ranks in `mask` may be lost in them; answers with those that were */
        in->mask = 0;
        for (uint32_t i = 0; i < in->count; i++) in->mask |= step(m, lost, &slowest);
        in->took_ns = slowest;
        break;
    default:
        REQUIRE(in->what == QUIT, "message %u", in->what);
    }
}

static int member_main(const rank_links *links) {
    static member m;
    message in;
    complete_options(links->ranks, links->gpus);
    do {
        in = told(links);
        obey(&m, links, &in);
        ranks_say(links->to[0], &in, sizeof in);
    } while (in.what != QUIT);
    epw_routing_free(m.routing);
    epw_prefill_destroy(m.prefill);
    epw_fabric_destroy(m.config.ep.fabric);
    return 0;
}

/* ---- who tells them ---- */

typedef struct world {
    crew crew;
    uint64_t random, slowest_ns, lost;
    uint32_t noticed; /* strikes that fell into the steps */
} world;

static void tell_all(world *w, uint64_t mask, message out) {
    for (uint32_t r = 0; r < w->crew.ranks; r++) {
        if (mask & bit(r)) tell(&w->crew, r, out);
    }
}

static void hear_all(world *w, uint64_t mask) {
    w->slowest_ns = w->lost = 0;
    for (uint32_t r = 0; r < w->crew.ranks; r++) {
        if (!(mask & bit(r))) continue;
        message in = answer(&w->crew, r);
        if (in.took_ns > w->slowest_ns) w->slowest_ns = in.took_ns;
        if (in.what == STEPS) w->lost |= in.mask;
    }
}

static void all_do(world *w, uint64_t mask, message out) {
    tell_all(w, mask, out);
    hear_all(w, mask);
}

/* Strikes `victim` at a random moment of the steps of all, and checks what the others see. */
static void strike(world *w, uint32_t victim, int with, uint32_t *epoch) {
    crew *c = &w->crew;
    const uint64_t all = bit(c->ranks) - 1, others = all & ~bit(victim), deadline = options.deadline_ms * MS;
    w->random = traffic_mix(w->random + 1);
    message steps = {.what = STEPS, .count = options.steps, .mask = bit(victim)};
    message its = {.what = STEPS, .count = options.steps, .mask = all};
    tell_all(w, others, steps);
    tell(c, victim, its);
    nanosleep(&(struct timespec){0, (long)(w->random % (options.within_us * UINT64_C(1000)))}, NULL);
    strike_with(c, victim, with);
    hear_all(w, others);
    w->noticed += w->lost != 0;
    const uint64_t slack = c->ranks > c->gpus ? 4000 * MS : 200 * MS;
    REQUIRE(w->slowest_ns < 4 * deadline + slack, "an operation took %llu ms, with a deadline of %u",
            (unsigned long long)(w->slowest_ns / MS), options.deadline_ms);
    if (w->lost == 0) all_do(w, others, (message){.what = STEPS, .count = 2, .mask = bit(victim)});
    REQUIRE(w->lost == bit(victim), "lost %llx instead of rank %u", (unsigned long long)w->lost, victim);
    /* It is a suspect by now, for which nobody waits. */
    all_do(w, others, (message){.what = STEPS, .count = 8, .mask = bit(victim)});
    REQUIRE(w->slowest_ns < deadline / 2 + slack, "an operation without the lost rank took %llu ms",
            (unsigned long long)(w->slowest_ns / MS));

    all_do(w, others, (message){.what = ACTIVATE, .mask = others, .epoch = ++*epoch});
    all_do(w, others, (message){.what = STEPS, .count = 8});
    if (with == SIGSTOP) { /* it continues as if nothing had happened */
        send_signal(c, victim, SIGCONT);
        all_do(w, others, (message){.what = STEPS, .count = 20});
        answer(c, victim);
        end(c, victim, SIGKILL);
    }
    all_do(w, others, (message){.what = DISCONNECT, .peer = victim});
    replace(c, victim, 0);
    all_do(w, all, (message){.what = ACTIVATE, .mask = all, .epoch = ++*epoch});
    all_do(w, all, (message){.what = STEPS, .count = STEPS_BEFORE});
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, usage) != 0) return 2;
    ranks_limit("prefill_failure", options.seconds);
    world w = {.crew = {.ranks = options.ranks, .argv = argv}, .random = options.seed};
    crew *c = &w.crew;
    int ended = ranks_begin(member_main, 2, &c->ranks, &c->gpus, argv);
    if (ended >= 0) return ended;
    complete_options(c->ranks, c->gpus);
    uint32_t epoch = 1;
    uint64_t all = bit(c->ranks) - 1;
    start_all(c, 0);
    all_do(&w, all, (message){.what = ACTIVATE, .mask = all, .epoch = epoch});
    all_do(&w, all, (message){.what = STEPS, .count = STEPS_BEFORE});
    for (uint32_t i = 0; i < options.strikes; i++)
        strike(&w, i % c->ranks, i % 3 == 2 ? SIGSTOP : SIGKILL, &epoch);
    all_do(&w, all, (message){.what = QUIT});
    for (uint32_t r = 0; r < c->ranks; r++) end(c, r, 0);
    printf("prefill_failure: OK ranks=%u strikes=%u, %u of them in the middle of steps\n", c->ranks,
           options.strikes, w.noticed);
    return 0;
}
