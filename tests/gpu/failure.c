/* Ranks that are killed or stopped in the middle of operations. Each rank is a process with a GPU; the
 * process started by hand tells them what to do, kills or stops one, and brings in a replacement. What
 * survivors must see: a wait for the lost rank alone ends with the deadline, or at once if its connection is
 * gone, with the error record filled and the context usable; the other lane and 100 operations more, in a
 * graph, pay no second deadline; what they receive afterwards is exact, without the lost rank, beside it
 * while it is evicted and continues, and with its replacement, whose peers replay the graphs that they
 * captured before. Exit code 77, with the reason, if there is no GPU, or only one and --ranks does not ask
 * for more. */
#include "coordinator.h"
#include "step.h"

enum { GRAPH_STEPS = 50 /* steps of two operations each */ };

static struct {
    uint32_t ranks, deadline_ms, seconds, slack_us, kills;
    uint32_t tokens, hidden, experts_per_rank, topk, sms;
} options = {.seconds = 500, .tokens = 32, .hidden = 1024, .experts_per_rank = 12, .topk = 4};

/* How long a silent rank may be waited for, and how much longer that may take. Processes that share a GPU
 * take turns on it: a kernel that waits keeps the one that it waits for off the GPU until its time slice is
 * over, which costs some milliseconds in each operation and at the end of each deadline. Both limits are then
 * much larger. */
static void complete_options(uint32_t ranks, uint32_t gpus) {
    int shared = ranks > gpus;
    if (options.deadline_ms == 0) options.deadline_ms = shared ? 2000 : 200;
    if (options.slack_us == 0) options.slack_us = shared ? 200000 : 1000;
}

/* ---- what is said ---- */

/* CREATE begins with step `iteration`; all answers have the last step, and how long the operation in question
 * took on the GPU. STEPS are exact. */
enum {
    REPLAY = MORE, /* replay the graph; `peer` may be lost */
    LOSE_DISPATCH, /* a step whose dispatch loses `peer`, by `cause` */
    LOSE_COMBINE,  /* a step whose combine loses `peer`, by `cause` */
    HALF,          /* enqueue a dispatch, wait for nothing */
    REST,          /* its combine, for a rank that may have been evicted meanwhile */
    EVICTED        /* a step of a rank that has been evicted */
};

/* ---- a rank ---- */

typedef struct member {
    epw_config config;
    epw_buffer *buffer;
    step_lane lane, other;
    cudaGraphExec_t graph;
    uint64_t *stamps; /* [2], device memory */
    uint64_t *waits;  /* [ranks], device memory */
    int32_t *told;    /* [ranks], pinned: the suspects */
    uint32_t cause;   /* cause of the next loss: silence until `bound`, or at once a lost connection */
    uint64_t bound;   /* limit of the wait for the lost rank */
    uint64_t mask;
    epw_handle handle; /* of HALF */
} member;

static const step_kind plain = {.layout = EPW_EXPERT_MAJOR, .mode = EPW_COMBINE_RANK_REDUCED};

static uint64_t deadline(void) {
    return options.deadline_ms * MS;
}

/* Each wait ends within four deadlines, and a step has four waits. */
static void settle(const member *m, const char *what) {
    await_stream(m->lane.stream, 20 * deadline(), what);
}

static uint64_t elapsed_ns(const member *m) {
    uint64_t stamps[2];
    REQUIRE_CUDA(cudaMemcpy(stamps, m->stamps, sizeof stamps, cudaMemcpyDeviceToHost));
    return stamps[1] - stamps[0];
}

static void stamp(const member *m, int which) {
    REQUIRE_CUDA(traffic_stamp(&m->stamps[which], m->lane.stream));
}

static void exact(const member *m) {
    if (step_wrong(&m->lane, "failure") || step_wrong(&m->other, "failure")) _exit(1);
}

/* Whether a wait of `ns` can be the one for the lost rank. */
static int is_in_time(const member *m, uint64_t ns) {
    uint64_t least = m->cause == EPW_CAUSE_TIMEOUT ? m->bound : 0;
    return ns >= least && ns <= least + options.slack_us * 1000;
}

/* Takes all records. The first must be as given, unless that is NULL; the others must be of operations that
 * began without the peer. */
static void take_records(const member *m, uint32_t peer, uint32_t phase) {
    static epw_error_record records[512];
    uint32_t count = 0;
    uint64_t lost = 0;
    REQUIRE_OK(epw_take_errors(m->buffer, records, sizeof(epw_error_record), 512, &count, &lost));
    REQUIRE(lost == 0, "%llu records overwritten", (unsigned long long)lost);
    for (uint32_t i = 0; i < count; i++) {
        const epw_error_record *r = &records[i];
        uint32_t cause = i == 0 && phase != 0 ? m->cause : EPW_CAUSE_SUSPECTED;
        REQUIRE(r->peer == peer && r->cause == cause && r->rank == m->config.rank,
                "record %u of rank %u: peer %u phase %u cause %u", i, r->rank, r->peer, r->phase, r->cause);
        if (i > 0 || phase == 0) continue;
        /* Other peers may still be awaited when a connection is lost. */
        REQUIRE(r->waiting == 1 || (r->waiting > 1 && m->cause == EPW_CAUSE_LINK), "record: %u peers awaited",
                r->waiting);
        REQUIRE(r->phase == phase && r->deadline_ns == m->bound && is_in_time(m, r->elapsed_ns),
                "record: phase %u elapsed %llu ns deadline %llu ns", r->phase,
                (unsigned long long)r->elapsed_ns, (unsigned long long)r->deadline_ns);
    }
    REQUIRE(phase == 0 || count > 0, "no error record of the loss of rank %u", peer);
}

/* Enqueued before the host knows. */
static void tell_suspects(const member *m) {
    memset(m->told, 0x55, m->config.ranks * sizeof *m->told);
    REQUIRE_OK(epw_buffer_suspects(m->buffer, m->told, m->lane.stream));
}

static void lost_in_time(const member *m, uint32_t peer, uint32_t phase, const char *op) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    uint64_t took = elapsed_ns(m);
    REQUIRE_OK(epw_outcome_read(m->buffer, m->handle, &outcome));
    REQUIRE(outcome.degraded && outcome.missing.bits[0] == bit(peer), "%s: missing %llx", op,
            (unsigned long long)outcome.missing.bits[0]);
    REQUIRE(outcome.record.cause == m->cause && outcome.record.phase == phase && outcome.record.peer == peer,
            "%s: cause %u phase %u peer %u", op, outcome.record.cause, outcome.record.phase,
            outcome.record.peer);
    REQUIRE_SUSPECTS(m->buffer, bit(peer), m->cause == EPW_CAUSE_TIMEOUT ? bit(peer) : 0);
    require_told(m->told, m->config.ranks, m->mask, bit(peer), op);
    REQUIRE(is_in_time(m, took), "%s: took %llu us with a deadline of %llu us", op,
            (unsigned long long)(took / 1000), (unsigned long long)(m->bound / 1000));
    uint64_t waits[RANKS_LIMIT];
    REQUIRE_CUDA(cudaMemcpy(waits, m->waits, m->config.ranks * sizeof *waits, cudaMemcpyDeviceToHost));
    for (uint32_t r = 0; r < m->config.ranks; r++) {
        REQUIRE(r == peer ? is_in_time(m, waits[r]) && waits[r] <= took : waits[r] < m->bound / 2,
                "%s: waited %llu us for rank %u", op, (unsigned long long)(waits[r] / 1000), r);
    }
}

/* Makes the next call measure its waits, with a deadline of `times` the buffer's. */
static void measure(member *m, uint32_t times) {
    m->bound = times * deadline();
    m->lane.deadline_ns = times > 1 ? m->bound : 0;
    m->lane.wait_ns = m->waits;
    REQUIRE_CUDA(cudaMemsetAsync(m->waits, 0, m->config.ranks * sizeof *m->waits, m->lane.stream));
}
static void measure_no_more(member *m) {
    m->lane.deadline_ns = 0;
    m->lane.wait_ns = NULL;
}

/* A step of the other lane, which learns of the loss from the first. */
static void other_lane(member *m, uint32_t peer) {
    step_lane *l = &m->other;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    step_set_members(l, m->mask & ~bit(peer), m->mask & ~bit(peer));
    step_make(l);
    REQUIRE_CUDA(traffic_stamp(&m->stamps[0], l->stream));
    epw_handle handle = step_dispatch(l, plain, options.tokens);
    step_answer(l, plain, options.tokens, handle);
    step_combine(l, plain, handle);
    REQUIRE_CUDA(traffic_stamp(&m->stamps[1], l->stream));
    step_check(l, plain, options.tokens);
    await_stream(l->stream, 20 * deadline(), "a step of the other lane");
    REQUIRE_OK(epw_outcome_read(m->buffer, handle, &outcome));
    REQUIRE(outcome.degraded && outcome.missing.bits[0] == bit(peer) &&
                outcome.record.cause == EPW_CAUSE_SUSPECTED,
            "the other lane: missing %llx, cause %u", (unsigned long long)outcome.missing.bits[0],
            outcome.record.cause);
    REQUIRE(elapsed_ns(m) < deadline() / 2, "a step of the other lane took %llu us",
            (unsigned long long)(elapsed_ns(m) / 1000));
}

static void lose_dispatch(member *m, uint32_t peer) {
    step_lane *l = &m->lane;
    step_set_members(l, m->mask & ~bit(peer), m->mask & ~bit(peer));
    step_make(l);
    measure(m, 1);
    stamp(m, 0);
    m->handle = step_dispatch(l, plain, options.tokens);
    stamp(m, 1);
    measure_no_more(m);
    tell_suspects(m);
    settle(m, "a dispatch that loses a rank");
    lost_in_time(m, peer, EPW_PHASE_DISPATCH_RECEIVE, "dispatch");
    step_answer(l, plain, options.tokens, m->handle);
    step_combine(l, plain, m->handle);
    step_check(l, plain, options.tokens);
    settle(m, "the combine after it");
    take_records(m, peer, EPW_PHASE_DISPATCH_RECEIVE);
}

static void lose_combine(member *m, uint32_t peer) {
    step_lane *l = &m->lane;
    step_set_members(l, m->mask, m->mask & ~bit(peer));
    step_make(l);
    m->handle = step_dispatch(l, plain, options.tokens);
    step_answer(l, plain, options.tokens, m->handle);
    measure(m, 2);
    stamp(m, 0);
    step_combine(l, plain, m->handle);
    stamp(m, 1);
    measure_no_more(m);
    tell_suspects(m);
    step_check(l, plain, options.tokens);
    settle(m, "a combine that loses a rank");
    lost_in_time(m, peer, EPW_PHASE_COMBINE_RECEIVE, "combine");
    take_records(m, peer, EPW_PHASE_COMBINE_RECEIVE);
    step_set_members(l, m->mask & ~bit(peer), m->mask & ~bit(peer));
}

static void evicted(member *m) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    step_make(&m->lane);
    stamp(m, 0);
    m->handle = step_dispatch(&m->lane, plain, options.tokens);
    stamp(m, 1);
    settle(m, "a dispatch of an evicted rank");
    REQUIRE_OK(epw_outcome_read(m->buffer, m->handle, &outcome));
    REQUIRE(outcome.degraded && outcome.record.cause == EPW_CAUSE_SUPERSEDED, "an evicted rank sees cause %u",
            outcome.record.cause);
    REQUIRE_SUSPECTS(m->buffer, m->mask & ~bit(m->config.rank), 0);
    REQUIRE(elapsed_ns(m) < deadline(), "an evicted rank waits for %llu us",
            (unsigned long long)(elapsed_ns(m) / 1000));
    step_combine(&m->lane, plain, m->handle);
    settle(m, "a combine of an evicted rank");
}

static void create(member *m, const rank_links *links, uint64_t iteration) {
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    m->config = (epw_config)EPW_CONFIG_INIT;
    m->config.rank = links->rank;
    m->config.ranks = links->ranks;
    m->config.max_tokens = options.tokens;
    m->config.hidden = options.hidden;
    m->config.experts = options.experts_per_rank * links->ranks;
    m->config.topk = options.topk;
    m->config.ordered = 1;
    m->config.sms = options.sms > 0 ? options.sms : ranks_sms(links, 1, 0);
    m->config.device = ranks_gpu(links);
    m->config.deadline_ns = deadline();
    ranks_path(&m->config);
    REQUIRE_OK(epw_buffer_create(&m->config, &m->buffer));
    step_open(&m->lane, m->buffer, &m->config, 1, 0, EPW_PAYLOAD_FP8_F32, iteration, 1, 0);
    step_open(&m->other, m->buffer, &m->config, 2, 1, EPW_PAYLOAD_SAME, 0, 1, 0);
    void *stamps = NULL;
    REQUIRE_CUDA(cudaMalloc(&stamps, 2 * sizeof *m->stamps));
    m->stamps = stamps;
    void *waits = NULL;
    REQUIRE_CUDA(cudaMalloc(&waits, links->ranks * sizeof *m->waits));
    m->waits = waits;
    void *told = NULL;
    REQUIRE_CUDA(cudaHostAlloc(&told, links->ranks * sizeof *m->told, cudaHostAllocDefault));
    m->told = told;
}

static void activate(member *m, uint64_t mask, uint32_t epoch) {
    epw_mask active = {{mask}};
    m->mask = mask;
    REQUIRE_OK(epw_buffer_set_active(m->buffer, &active, epoch, 0));
    step_set_members(&m->lane, mask, mask);
    if (m->graph == NULL) m->graph = step_graph(&m->lane, GRAPH_STEPS, 1);
}

static void obey(member *m, const rank_links *links, message *in) {
    switch (in->what) {
    case CREATE:
        create(m, links, in->iteration);
        break;
    case EXPORT:
        REQUIRE_OK(epw_buffer_export(m->buffer, in->peer, in->blob, &in->length));
        break;
    case CONNECT:
        CONNECT_WITHIN(epw_buffer_connect_within, m->buffer, in);
        break;
    case DISCONNECT:
        REQUIRE_OK(epw_buffer_disconnect(m->buffer, in->peer));
        break;
    case ACTIVATE:
        activate(m, in->mask, in->epoch);
        break;
    case STEPS:
        for (uint32_t i = 0; i < in->count; i++) {
            step_run(&m->lane, step_kind_of(links->rank, i % STEP_KINDS), options.tokens);
            if (i % 32 == 31) settle(m, "steps");
        }
        settle(m, "steps");
        exact(m);
        take_records(m, EPW_MAX_RANKS, 0); /* no peer was lost */
        break;
    case REPLAY:
        stamp(m, 0);
        REQUIRE_CUDA(cudaGraphLaunch(m->graph, m->lane.stream));
        stamp(m, 1);
        settle(m, "a graph");
        exact(m);
        take_records(m, in->peer, 0);
        break;
    case LOSE_DISPATCH:
        m->cause = in->cause;
        lose_dispatch(m, in->peer);
        break;
    case LOSE_COMBINE:
        m->cause = in->cause;
        lose_combine(m, in->peer);
        break;
    case HALF:
        step_make(&m->lane);
        m->handle = step_dispatch(&m->lane, plain, options.tokens);
        return; /* its kernel waits: it can answer nothing more */
    case REST:
        step_combine(&m->lane, plain, m->handle);
        settle(m, "the combine of an evicted rank");
        break;
    case EVICTED:
        evicted(m);
        break;
    default:
        REQUIRE(in->what == QUIT, "message %u", in->what);
        return;
    }
    exact(m);
    in->iteration = step_state(&m->lane).iteration;
    in->took_ns = in->what == CREATE ? 0 : elapsed_ns(m);
    if (in->what != LOSE_DISPATCH && in->what != LOSE_COMBINE) return;
    other_lane(m, in->peer);
    exact(m);
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
    epw_buffer_destroy(m.buffer);
    step_close(&m.lane);
    step_close(&m.other);
    return 0;
}

/* ---- who tells them ---- */

typedef struct world {
    crew crew;
    uint32_t victim;
    uint64_t iteration; /* the last step that all survivors have completed */
    uint64_t slowest_ns;
} world;

/* Tells all ranks of `mask` at once. */
static void all_do(world *w, uint64_t mask, message out) {
    w->slowest_ns = 0;
    for (uint32_t r = 0; r < w->crew.ranks; r++) {
        if (mask & bit(r)) tell(&w->crew, r, out);
    }
    for (uint32_t r = 0; r < w->crew.ranks; r++) {
        if (!(mask & bit(r))) continue;
        message in = answer(&w->crew, r);
        if (in.took_ns > w->slowest_ns) w->slowest_ns = in.took_ns;
        if (out.what != EXPORT && out.what != QUIT) w->iteration = in.iteration;
    }
}

typedef struct scenario {
    const char *name;
    int signal;  /* SIGKILL or SIGSTOP */
    int waiting; /* its kernel waits on the GPU for the others' rows; otherwise it is between steps */
} scenario;

static const scenario scenarios[] = {
    {"killed between steps", SIGKILL, 0},
    {"killed while its kernel waits", SIGKILL, 1},
    {"stopped between steps", SIGSTOP, 0},
    {"stopped in the middle of a step", SIGSTOP, 1},
};

static void strike(world *w, const scenario *s) {
    if (s->waiting) {
        ask(&w->crew, w->victim, (message){.what = HALF});
        nanosleep(&(struct timespec){0, 20 * 1000000}, NULL); /* the deadline is far away */
    }
    strike_with(&w->crew, w->victim, s->signal);
}

/* It continues as if nothing had happened, beside steps of the others. */
static void resume(world *w, const scenario *s, uint64_t survivors) {
    send_signal(&w->crew, w->victim, SIGCONT);
    tell(&w->crew, w->victim, (message){.what = s->waiting ? REST : EVICTED});
    all_do(w, survivors, (message){.what = STEPS, .count = 200});
    answer(&w->crew, w->victim);
    all_do(w, survivors, (message){.what = STEPS, .count = 8});
    end(&w->crew, w->victim, SIGKILL);
}

static void run(world *w, const scenario *s) {
    crew *c = &w->crew;
    uint64_t all = bit(c->ranks) - 1, survivors = all & ~bit(w->victim);
    w->iteration = UINT64_MAX; /* the next step is 0 */
    start_all(c, w->iteration + 1);
    all_do(w, all, (message){.what = ACTIVATE, .mask = all, .epoch = 1});
    all_do(w, all, (message){.what = STEPS, .count = 8});
    all_do(w, all, (message){.what = REPLAY, .peer = EPW_MAX_RANKS});
    uint64_t usual_ns = w->slowest_ns;

    strike(w, s);
    /* The operating system closes the connections of a process that dies. */
    uint32_t cause = s->signal == SIGKILL && ranks_by_queue() ? EPW_CAUSE_LINK : EPW_CAUSE_TIMEOUT;
    all_do(w, survivors,
           (message){.what = s->waiting ? LOSE_COMBINE : LOSE_DISPATCH, .peer = w->victim, .cause = cause});
    uint64_t loss_ns = w->slowest_ns;
    all_do(w, survivors, (message){.what = REPLAY, .peer = w->victim});
    uint64_t replay_ns = w->slowest_ns;
    REQUIRE(replay_ns < usual_ns + deadline() / 2,
            "%s: a graph without the lost rank takes %llu us, %llu before", s->name,
            (unsigned long long)(replay_ns / 1000), (unsigned long long)(usual_ns / 1000));
    all_do(w, survivors, (message){.what = ACTIVATE, .mask = survivors, .epoch = 2});
    all_do(w, survivors, (message){.what = STEPS, .count = 8});
    if (s->signal == SIGSTOP) resume(w, s, survivors);

    all_do(w, survivors, (message){.what = DISCONNECT, .peer = w->victim});
    replace(c, w->victim, w->iteration + 1);
    all_do(w, all, (message){.what = ACTIVATE, .mask = all, .epoch = 3});
    all_do(w, all, (message){.what = STEPS, .count = 8});
    all_do(w, all, (message){.what = REPLAY, .peer = EPW_MAX_RANKS});
    all_do(w, all, (message){.what = QUIT});
    for (uint32_t r = 0; r < c->ranks; r++) end(c, r, 0);
    printf("failure: OK %s: ranks=%u lost=%u deadline_us=%u loss_us=%llu graph_us=%llu without=%llu\n",
           s->name, c->ranks, w->victim, options.deadline_ms * 1000 * (s->waiting ? 2 : 1),
           (unsigned long long)(loss_ns / 1000), (unsigned long long)(usual_ns / 1000),
           (unsigned long long)(replay_ns / 1000));
    fflush(stdout);
}

/* ---- main ---- */

static const ranks_option named[] = {
    {"--ranks", .number = &options.ranks},
    {"--large", .number = &options.tokens, .preset = 128},
    {"--large", .number = &options.hidden, .preset = 7168},
    {"--large", .number = &options.experts_per_rank, .preset = 64},
    {"--large", .number = &options.topk, .preset = 8},
    {"--small", .number = &options.tokens, .preset = 8},
    {"--small", .number = &options.hidden, .preset = 256},
    {"--small", .number = &options.experts_per_rank, .preset = 4},
    {"--small", .number = &options.sms, .preset = 4},
    {"--small", .number = &options.deadline_ms, .preset = 10000},
    {"--small", .number = &options.slack_us, .preset = 1000000},
    {"--small", .number = &options.seconds, .preset = 3000},
    {"--kills", .number = &options.kills, .preset = 1},
    {"--deadline-ms", .number = &options.deadline_ms},
    {"--slack-us", .number = &options.slack_us},
    {"--sms", .number = &options.sms},
    {"--seconds", .number = &options.seconds},
    {0},
};

static const char usage[] = "failure [--ranks N] [--deadline-ms N] [--slack-us N] [--sms N] [--seconds N "
                            "(limit)] [--small | --large] [--kills (none is stopped)]";

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, usage) != 0) return 2;
    ranks_limit("failure", options.seconds);
    world w = {.crew = {.ranks = options.ranks, .argv = argv}};
    crew *c = &w.crew;
    int ended = ranks_begin(member_main, 2, &c->ranks, &c->gpus, argv);
    if (ended >= 0) return ended;
    complete_options(c->ranks, c->gpus);
    uint32_t count = 0;
    for (uint32_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        if (options.kills && scenarios[i].signal != SIGKILL) continue;
        w.victim = i % c->ranks;
        run(&w, &scenarios[i]);
        count++;
    }
    printf("failure: OK ranks=%u scenarios=%u\n", c->ranks, count);
    return 0;
}
