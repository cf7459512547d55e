/* What can disturb operations on GPUs besides the loss of a rank: other work that keeps blocks off the SMs,
 * sums that lanes share, a peer that leaves between two graphs, peers that wait for others, more buffers than
 * SMs are enough for. Each case is a process of its own; its ranks are buffers of one thread. `--case NAME`
 * runs one. Exit code 77, with the reason, if there is no GPU. */
#include "cases.h"
#include "echo.h"
#include "hog.h"
#include "ranks.h"
#include "step.h"

#include <stdbool.h>

static void sleep_ms(uint32_t ms) {
    nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL);
}

static epw_config config_of(uint32_t ranks, uint64_t deadline_ns) {
    epw_config config = EPW_CONFIG_INIT;
    config.ranks = ranks;
    config.max_tokens = 128;
    config.hidden = 512;
    config.experts = 16 * ranks;
    config.topk = 4;
    config.lanes = 1;
    config.deadline_ns = deadline_ns;
    return config;
}

/* A complete step of one rank. Returns its duration. */
static uint64_t whole_step(echo *e, echo_rank *r, const char *what) {
    uint64_t all = (UINT64_C(1) << e->ranks) - 1, began = now_ns();
    echo_step(e);
    uint64_t took = now_ns() - began;
    echo_missing(r, 0, what);
    REQUIRE(echo_wrong(e, r, all) == 0 && echo_miscounted(e, r, all) == 0,
            "%s: %u tokens are wrong, %u counts", what, echo_wrong(e, r, all), echo_miscounted(e, r, all));
    return took;
}

/* ---- suspects told to kernels ---- */

/* In pinned memory. */
typedef struct telling {
    int32_t *by_call, *by_graph;
    cudaGraphExec_t graph;
    cudaStream_t stream; /* of the graph */
} telling;

static void tell(const echo_rank *r, const telling *t, bool by_call) {
    REQUIRE_CUDA(cudaSetDevice(r->config.device));
    REQUIRE_OK(
        epw_buffer_suspects(r->buffer, by_call ? t->by_call : t->by_graph, by_call ? r->stream : t->stream));
}

static telling make_telling(const echo_rank *r) {
    telling t = {0};
    REQUIRE_CUDA(cudaSetDevice(r->config.device));
    REQUIRE_CUDA(cudaHostAlloc((void **)&t.by_call, ECHO_RANKS * sizeof *t.by_call, cudaHostAllocDefault));
    REQUIRE_CUDA(cudaHostAlloc((void **)&t.by_graph, ECHO_RANKS * sizeof *t.by_graph, cudaHostAllocDefault));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking));
    step_capture(t.stream);
    tell(r, &t, false);
    t.graph = step_captured(t.stream);
    return t;
}

static void launch_telling(const echo_rank *r, const telling *t, const char *what) {
    REQUIRE_CUDA(cudaSetDevice(r->config.device));
    REQUIRE_CUDA(cudaGraphLaunch(t->graph, t->stream));
    await_stream(t->stream, 10000 * MS, what);
}

static void free_telling(const telling *t) {
    REQUIRE_CUDA(cudaGraphExecDestroy(t->graph));
    REQUIRE_CUDA(cudaStreamDestroy(t->stream));
    REQUIRE_CUDA(cudaFreeHost(t->by_call));
    REQUIRE_CUDA(cudaFreeHost(t->by_graph));
}

/* ---- blocks that begin late ---- */

enum { LATE_DEADLINE_MS = 2 };

/* Occupies all SMs of the rank's GPU except one for `ns` from now on, then releases one after the other. */
static void hold_sms_apart(const echo_rank *r, uint64_t ns, uint64_t apart_ns, cudaStream_t stream) {
    int sms = 0;
    REQUIRE_CUDA(cudaSetDevice(r->config.device));
    REQUIRE_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, r->config.device));
    REQUIRE_CUDA(hog_sms((uint32_t)sms - 1, ns, apart_ns, stream));
    sleep_ms(3);
}

/* The same, but releases all at once. */
static void hold_sms(const echo_rank *r, uint32_t ms, cudaStream_t stream) {
    hold_sms_apart(r, ms * MS, 0, stream);
}

static cudaStream_t hog_stream(const echo_rank *r) {
    cudaStream_t stream = NULL;
    REQUIRE_CUDA(cudaSetDevice(r->config.device));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    REQUIRE_CUDA(hog_prepare());
    return stream;
}

/* The receiving half of a dispatch has one SM, and a peer whose rows come late, but within the deadline: a
 * block that has waited long waits for the others at its end. In the first round that wait ends while they
 * are still absent; in the second they come just after it has ended. */
static void late_receive(uint32_t gpus) {
    static echo e;
    const uint32_t deadline_ms = 5, bound_ms = 2 * EPW_WAIT_DEADLINES_MAX * deadline_ms,
                   held_ms[] = {6 * bound_ms, bound_ms + 6};
    epw_config config = config_of(2, deadline_ms * MS);
    echo_open(&e, &config, gpus);
    echo_rank *r = &e.rank[0], *peer = &e.rank[1];
    for (uint32_t i = 0; i < 2; i++) {
        REQUIRE_CUDA(cudaSetDevice(e.rank[i].config.device));
        e.rank[i].expert_totals = echo_take(config.experts * 8, 0);
    }
    cudaStream_t hogs = hog_stream(r);
    echo_fill(&e, 1);
    whole_step(&e, r, "before");
    for (uint32_t i = 0; i < 2; i++) {
        echo_fill(&e, 2 + i);
        echo_dispatch(r, ECHO_SEND);
        echo_settle(&e, "sending");
        hold_sms(r, held_ms[i], hogs);
        uint64_t began = now_ns();
        echo_dispatch(r, ECHO_RECEIVE);
        sleep_ms(1);
        echo_dispatch(peer, ECHO_BOTH);
        echo_settle(&e, "receiving");
        uint64_t took = now_ns() - began;
        REQUIRE(took > bound_ms * MS, "no block was late: receiving took %llu us",
                (unsigned long long)(took / 1000));
        for (uint32_t k = 0; k < 2; k++) echo_missing(&e.rank[k], 0, "late blocks");
        REQUIRE_CUDA(cudaStreamSynchronize(hogs)); /* a combine with both halves needs the SMs */
        for (uint32_t k = 0; k < 2; k++) echo_combine(&e.rank[k], ECHO_BOTH);
        echo_settle(&e, "combine");
        REQUIRE(echo_wrong(&e, r, 3) == 0, "%u tokens are wrong without late blocks", echo_wrong(&e, r, 3));
        REQUIRE(echo_miscounted(&e, r, 3) == 0, "%u counts are wrong without late blocks",
                echo_miscounted(&e, r, 3));
        for (uint32_t step = 0; step < 3; step++) {
            echo_fill(&e, 10 + step);
            took = whole_step(&e, r, "after late blocks");
            REQUIRE(took < bound_ms * MS / 2, "a step after late blocks takes %llu us",
                    (unsigned long long)(took / 1000));
        }
        /* One in which a block waits for the others again. */
        echo_fill(&e, 20);
        echo_dispatch(r, ECHO_SEND);
        echo_settle(&e, "sending");
        began = now_ns();
        echo_dispatch(r, ECHO_RECEIVE);
        sleep_ms(1);
        echo_dispatch(peer, ECHO_BOTH);
        for (uint32_t k = 0; k < 2; k++) echo_combine(&e.rank[k], ECHO_BOTH);
        echo_settle(&e, "a step with late rows");
        took = now_ns() - began;
        echo_missing(r, 0, "late rows");
        REQUIRE(took < bound_ms * MS / 2, "a step with late rows takes %llu us",
                (unsigned long long)(took / 1000));
    }
    uint64_t totals[64], sum = 0, expected = UINT64_C(11) * 2 * config.max_tokens * config.topk;
    for (uint32_t i = 0; i < 2; i++) {
        REQUIRE_CUDA(
            cudaMemcpy(totals, e.rank[i].expert_totals, config.experts / 2 * 8, cudaMemcpyDeviceToHost));
        for (uint32_t x = 0; x < config.experts / 2; x++) sum += totals[x];
    }
    REQUIRE(sum == expected, "expert_totals add up to %llu instead of %llu in 11 steps",
            (unsigned long long)sum, (unsigned long long)expected);
    echo_close(&e);
}

/* The receiving half of a combine has one SM, and a peer that answers late, but within the deadline. */
static void late_combine(uint32_t gpus) {
    static echo e;
    const uint64_t deadline = 5 * MS;
    epw_config config = config_of(2, deadline);
    echo_open(&e, &config, gpus);
    echo_rank *r = &e.rank[0], *peer = &e.rank[1];
    cudaStream_t hogs = hog_stream(r);
    echo_fill(&e, 1);
    whole_step(&e, r, "before");
    echo_fill(&e, 2);
    for (uint32_t i = 0; i < 2; i++) echo_dispatch(&e.rank[i], ECHO_SEND);
    for (uint32_t i = 0; i < 2; i++) echo_dispatch(&e.rank[i], ECHO_RECEIVE);
    echo_combine(r, ECHO_SEND);
    echo_settle(&e, "dispatch");
    hold_sms(r, 150, hogs);
    uint64_t began = now_ns();
    echo_combine(r, ECHO_RECEIVE);
    sleep_ms(1);
    echo_combine(peer, ECHO_BOTH);
    echo_settle(&e, "combine");
    uint64_t took = now_ns() - began;
    REQUIRE(took > 8 * deadline, "no block was late: combine took %llu us",
            (unsigned long long)(took / 1000));
    echo_missing(r, 0, "late blocks");
    REQUIRE(echo_wrong(&e, r, 3) == 0, "%u tokens are wrong without late blocks", echo_wrong(&e, r, 3));
    for (uint32_t step = 0; step < 3; step++) {
        echo_fill(&e, 10 + step);
        took = whole_step(&e, r, "after late blocks");
        REQUIRE(took < 4 * deadline, "a step after late blocks takes %llu us",
                (unsigned long long)(took / 1000));
    }
    echo_close(&e);
}

/* A dispatch with both halves has one SM: this rank's own word comes too late for itself, and it continues
 * without its experts, at its usual speed, until the next epoch. */
static void late_dispatch(uint32_t gpus) {
    static echo e;
    const uint64_t deadline = 5 * MS;
    (void)gpus;
    epw_config config = config_of(1, deadline);
    echo_open(&e, &config, 1);
    echo_rank *r = &e.rank[0];
    cudaStream_t hogs = hog_stream(r);
    echo_fill(&e, 1);
    whole_step(&e, r, "before");
    hold_sms(r, 150, hogs);
    echo_dispatch(r, ECHO_BOTH);
    echo_settle(&e, "dispatch");
    echo_missing(r, 1, "late blocks");
    echo_combine(r, ECHO_BOTH);
    echo_settle(&e, "combine");
    REQUIRE(echo_wrong(&e, r, 0) == 0, "%u tokens are not zeros", echo_wrong(&e, r, 0));
    for (uint32_t step = 0; step < 3; step++) {
        uint64_t began = now_ns();
        echo_step(&e);
        uint64_t took = now_ns() - began;
        echo_missing(r, 1, "after late blocks");
        REQUIRE(took < 4 * deadline, "a step after late blocks takes %llu us",
                (unsigned long long)(took / 1000));
    }
    epw_mask self = {{1}};
    REQUIRE_OK(epw_buffer_set_active(r->buffer, &self, 2, 0));
    echo_fill(&e, 2);
    whole_step(&e, r, "the next epoch");
    echo_close(&e);
}

/* The sending half of a dispatch or a combine has one SM until about the time at which the block that waits
 * for the others closes without them. Blocks that begin just before that send, those that begin just after it
 * do not: the peer then has either all rows and the word, or no word, and this rank knows which. The block
 * waits for the others to record a bad id, or because rank 2, which does nothing at all, is missing. */
static void send_late(uint32_t gpus, void (*half)(echo_rank *, uint32_t)) {
    static echo e;
    enum { ROUNDS = 200 };
    const uint64_t apart = 10000, absent = 4;
    const int combines = half == echo_combine;
    epw_config config = config_of(3, LATE_DEADLINE_MS * MS);
    config.max_tokens = 512;
    config.hidden = 2048; /* a block takes longer to send its 64 tokens than eight blocks begin apart */
    config.experts = 12;
    config.sms = 8;
    echo_open(&e, &config, gpus);
    echo_rank *r = &e.rank[0], *peer = &e.rank[1];
    const int32_t bad = (int32_t)config.experts;
    cudaStream_t hogs = hog_stream(r);
    uint32_t whole = 0;
    uint64_t held = (2 * EPW_WAIT_DEADLINES_MAX * LATE_DEADLINE_MS + 3) * MS;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const epw_mask members = {{combines ? 7 : 3}};
        for (uint32_t i = 0; i < (combines ? 3 : 2); i++)
            REQUIRE_OK(epw_buffer_set_active(e.rank[i].buffer, &members, 2 + round, 0));
        echo_fill(&e, round);
        r->ids[0] = bad;
        REQUIRE_CUDA(cudaSetDevice(r->config.device));
        REQUIRE_CUDA(cudaMemcpy(r->topk_idx, &bad, sizeof bad, cudaMemcpyHostToDevice));
        /* In the combine case the rows must not be late: queues take longer for them. */
        for (uint32_t i = 0; i < 2 && ranks_by_queue(); i++) e.rank[i].deadline_ns = 20 * MS;
        for (uint32_t halves = ECHO_SEND; combines && halves <= ECHO_RECEIVE; halves++)
            for (uint32_t i = 0; i < 2; i++) echo_dispatch(&e.rank[i], halves);
        for (uint32_t i = 0; i < 2; i++) e.rank[i].deadline_ns = 0;
        echo_settle(&e, "dispatch");
        half(peer, ECHO_SEND);
        echo_settle(&e, "the peer's sending");
        hold_sms_apart(r, held, apart, hogs);
        half(r, ECHO_SEND);
        echo_settle(&e, "sending");
        epw_outcome sent = EPW_OUTCOME_INIT, received = EPW_OUTCOME_INIT;
        REQUIRE_OK(epw_outcome_read(r->buffer, r->handle, &sent));
        for (uint32_t i = 0; i < 2; i++) half(&e.rank[i], ECHO_RECEIVE);
        echo_settle(&e, "receiving");
        REQUIRE_OK(epw_outcome_read(peer->buffer, peer->handle, &received));
        const uint64_t lost = sent.missing.bits[0] & ~absent;
        REQUIRE(lost == (received.missing.bits[0] & ~absent),
                "round %u: rank 0 lost %llx while sending, its peer %llx while receiving", round,
                (unsigned long long)sent.missing.bits[0], (unsigned long long)received.missing.bits[0]);
        /* In the dispatch case the answers must not be late, not even through queues. */
        for (uint32_t i = 0; !combines && i < 2; i++) {
            e.rank[i].deadline_ns = 500 * MS;
            echo_combine(&e.rank[i], ECHO_BOTH);
            e.rank[i].deadline_ns = 0;
        }
        echo_settle(&e, "combine");
        if (lost == 0) {
            uint32_t wrong = echo_wrong(&e, r, 3) + echo_wrong(&e, peer, 3);
            REQUIRE(wrong == 0, "round %u: %u tokens are wrong although the word had arrived", round, wrong);
        }
        whole += lost == 0;
        held += lost ? -apart : apart;
    }
    REQUIRE(whole > 0 && whole < ROUNDS, "%u of %u rounds were complete", whole, ROUNDS);
    printf("of %u rounds: %u whole; held for %llu us\n", ROUNDS, whole, (unsigned long long)(held / 1000));
    echo_close(&e);
}
static void late_send(uint32_t gpus) {
    send_late(gpus, echo_dispatch);
}
static void late_answers(uint32_t gpus) {
    send_late(gpus, echo_combine);
}

/* A block, to which the peer's rows come late, waits three deadlines for other blocks of its receiving half;
 * the peer hears of it, and waits as long. */
static void late_beacons(uint32_t gpus) {
    static echo e;
    const uint32_t deadline_ms = 50;
    epw_config config = config_of(2, deadline_ms * MS);
    echo_open(&e, &config, gpus);
    echo_rank *r = &e.rank[0], *peer = &e.rank[1];
    cudaStream_t hogs = hog_stream(r);
    echo_fill(&e, 1);
    whole_step(&e, r, "before");
    echo_fill(&e, 2);
    echo_dispatch(r, ECHO_SEND);
    echo_settle(&e, "sending");
    hold_sms(r, 3 * deadline_ms, hogs);
    echo_dispatch(r, ECHO_RECEIVE);
    echo_combine(r, ECHO_BOTH);
    sleep_ms(2);
    echo_dispatch(peer, ECHO_BOTH);
    echo_combine(peer, ECHO_BOTH);
    echo_settle(&e, "a step");
    for (uint32_t i = 0; i < 2; i++) {
        echo_missing(&e.rank[i], 0, "late blocks");
        REQUIRE(echo_wrong(&e, &e.rank[i], 3) == 0, "rank %u: %u tokens are wrong", i,
                echo_wrong(&e, &e.rank[i], 3));
    }
    echo_close(&e);
}

/* ---- sums that two lanes add to at the same time ---- */

/* The same rank on another lane, with a stream and outputs of its own. */
static echo_rank on_lane(const echo_rank *r, uint32_t lane) {
    const epw_config *c = &r->config;
    echo_rank other = *r;
    other.lane = lane;
    REQUIRE_CUDA(cudaSetDevice(c->device));
    other.rows = echo_take((size_t)c->experts * c->max_tokens * c->hidden * 2, 0);
    other.out = echo_take((size_t)c->max_tokens * c->hidden * 2, 0);
    other.counts = echo_take(c->experts / c->ranks * 4, 0);
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&other.stream, cudaStreamNonBlocking));
    return other;
}

/* Makes everything that is enqueued on both lanes from here on begin at the same time, when one SM is
 * released. */
static void begin_together(const echo_rank lanes[2], cudaStream_t hogs, cudaEvent_t free_again,
                           uint64_t held) {
    REQUIRE_CUDA(cudaSetDevice(lanes[0].config.device));
    REQUIRE_CUDA(hog_sms(1, held, 0, hogs));
    REQUIRE_CUDA(cudaEventRecord(free_again, hogs));
    for (uint32_t l = 0; l < 2; l++) REQUIRE_CUDA(cudaStreamWaitEvent(lanes[l].stream, free_again, 0));
}

/* Both lanes add at the end of each dispatch, concurrently all the time, since their steps are enqueued
 * before the first of them runs. */
static void shared_totals(uint32_t gpus) {
    static echo e;
    static echo_rank lanes[2];
    enum { ROUNDS = 60, STEPS = 60 };
    (void)gpus;
    epw_config config = config_of(1, 1000 * MS);
    config.max_tokens = 16;
    config.lanes = 2;
    config.sms = 8; /* the kernels of both lanes fit on the GPU, beside what holds them back */
    echo_open(&e, &config, 1);
    e.rank[0].expert_totals = echo_take(config.experts * 8, 0);
    echo_fill(&e, 1);
    for (uint32_t l = 0; l < 2; l++) lanes[l] = on_lane(&e.rank[0], l);
    cudaStream_t hogs = hog_stream(&e.rank[0]);
    cudaEvent_t free_again;
    REQUIRE_CUDA(cudaEventCreateWithFlags(&free_again, cudaEventDisableTiming));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        begin_together(lanes, hogs, free_again, 5 * MS);
        for (uint32_t i = 0; i < STEPS; i++) {
            for (uint32_t l = 0; l < 2; l++) echo_dispatch(&lanes[l], ECHO_BOTH);
            for (uint32_t l = 0; l < 2; l++) echo_combine(&lanes[l], ECHO_BOTH);
        }
        for (uint32_t l = 0; l < 2; l++) await_stream(lanes[l].stream, 60000 * MS, "steps");
    }
    uint64_t totals[64], sum = 0;
    REQUIRE_CUDA(cudaMemcpy(totals, e.rank[0].expert_totals, config.experts * 8, cudaMemcpyDeviceToHost));
    for (uint32_t x = 0; x < config.experts; x++) sum += totals[x];
    uint64_t expected = UINT64_C(2) * ROUNDS * STEPS * config.max_tokens * config.topk;
    REQUIRE(sum == expected, "expert_totals add up to %llu instead of %llu", (unsigned long long)sum,
            (unsigned long long)expected);
    echo_close(&e);
}

/* Rank 0 waits on both lanes while something holds back what rank 1 sends on them: both waits end at the same
 * time, each took at least as long as that, and their sum includes both. */
static void shared_waits(uint32_t gpus) {
    static echo e;
    static echo_rank lanes[2][2];
    enum { STEPS = 200 };
    const uint64_t held = 5 * MS;
    epw_config config = config_of(2, 1000 * MS);
    config.max_tokens = 16;
    config.lanes = 2;
    config.sms = 8; /* the kernels of all lanes fit on the GPU, beside what holds rank 1 back */
    echo_open(&e, &config, gpus);
    REQUIRE_CUDA(cudaSetDevice(e.rank[0].config.device));
    uint64_t *waits = e.rank[0].wait_ns = echo_take(config.ranks * sizeof *waits, 0);
    echo_fill(&e, 1);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t l = 0; l < 2; l++) lanes[r][l] = on_lane(&e.rank[r], l);
    cudaStream_t hogs = hog_stream(&e.rank[1]);
    cudaEvent_t free_again;
    REQUIRE_CUDA(cudaEventCreateWithFlags(&free_again, cudaEventDisableTiming));
    for (uint32_t i = 0; i < STEPS; i++) {
        for (uint32_t l = 0; l < 2; l++) echo_dispatch(&lanes[0][l], ECHO_BOTH);
        nanosleep(&(struct timespec){0, 100000}, NULL); /* by now they wait */
        begin_together(lanes[1], hogs, free_again, held);
        for (uint32_t l = 0; l < 2; l++) echo_dispatch(&lanes[1][l], ECHO_BOTH);
        for (uint32_t r = 0; r < 2; r++)
            for (uint32_t l = 0; l < 2; l++) echo_combine(&lanes[r][l], ECHO_BOTH);
        for (uint32_t r = 0; r < 2; r++)
            for (uint32_t l = 0; l < 2; l++) await_stream(lanes[r][l].stream, 1000 * MS, "a step");
    }
    uint64_t sums[2], least = UINT64_C(2) * STEPS * held;
    REQUIRE_CUDA(cudaMemcpy(sums, waits, sizeof sums, cudaMemcpyDeviceToHost));
    REQUIRE(sums[1] >= least, "wait_ns adds up to %llu us instead of %llu us or more",
            (unsigned long long)(sums[1] / 1000), (unsigned long long)(least / 1000));
    printf("waits of %llu us, expected at least %llu us\n", (unsigned long long)(sums[1] / 1000),
           (unsigned long long)(least / 1000));
    echo_close(&e);
}

/* ---- lanes that take turns ---- */

static void require_complete(const echo *e, echo_rank lanes[2][2], const char *what) {
    for (uint32_t r = 0; r < 2; r++) {
        for (uint32_t l = 0; l < 2; l++) {
            await_stream(lanes[r][l].stream, 10000 * MS, what);
            uint32_t wrong = echo_wrong(e, &lanes[r][l], 3);
            REQUIRE(wrong == 0, "%s, rank %u, lane %u: %u tokens are wrong", what, r, l, wrong);
            REQUIRE_CUDA(cudaMemset(lanes[r][l].out, 0xff,
                                    (size_t)e->rank[r].config.max_tokens * e->rank[r].config.hidden * 2));
        }
    }
}

/* Dispatches on both lanes of both ranks, then combines. */
static void step_both_lanes(echo_rank lanes[2][2]) {
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t l = 0; l < 2; l++) echo_dispatch(&lanes[r][l], ECHO_BOTH);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t l = 0; l < 2; l++) echo_combine(&lanes[r][l], ECHO_BOTH);
}

/* Two lanes have one SM, which they may only share in turn. A call on a free stream waits for the other
 * lane's, whose stream is held up; in a graph the stream alone keeps the lanes apart. */
static void serial_lanes(uint32_t gpus) {
    static echo e;
    static echo_rank lanes[2][2];
    epw_config config = config_of(2, 5000 * MS);
    config.max_tokens = 16;
    config.lanes = 2;
    config.sms = 1;
    config.device = 0;
    epw_buffer *none = NULL;
    epw_status status = epw_buffer_create(&config, &none);
    REQUIRE(status == EPW_ERR_LIMIT && strstr(epw_last_error(), "sms is 1") != NULL,
            "one SM for two lanes at once: status %d, '%s'", status, epw_last_error());
    config.serial_lanes = 1;
    echo_open(&e, &config, gpus);
    echo_fill(&e, 1);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t l = 0; l < 2; l++) lanes[r][l] = on_lane(&e.rank[r], l);
    cudaStream_t hogs = hog_stream(&e.rank[0]);
    cudaEvent_t free_again;
    REQUIRE_CUDA(cudaEventCreateWithFlags(&free_again, cudaEventDisableTiming));
    for (uint32_t held = 0; held < 2; held++) { /* the lane whose stream is held up comes first */
        REQUIRE_CUDA(hog_sms(1, 200 * MS, 0, hogs));
        REQUIRE_CUDA(cudaEventRecord(free_again, hogs));
        REQUIRE_CUDA(cudaStreamWaitEvent(lanes[0][held].stream, free_again, 0));
        for (uint32_t r = 0; r < 2; r++) {
            echo_dispatch(&lanes[r][held], ECHO_BOTH);
            echo_dispatch(&lanes[r][1 - held], ECHO_SEND);
        }
        REQUIRE_CUDA(cudaSetDevice(lanes[0][0].config.device));
        await_stream(lanes[0][1 - held].stream, 10000 * MS, "a lane behind the other one");
        REQUIRE(cudaEventQuery(free_again) == cudaSuccess, "lane %u did not wait for lane %u", 1 - held,
                held);
        for (uint32_t r = 0; r < 2; r++) {
            echo_dispatch(&lanes[r][1 - held], ECHO_RECEIVE);
            for (uint32_t l = 0; l < 2; l++) echo_combine(&lanes[r][l], ECHO_BOTH);
        }
        require_complete(&e, lanes, "calls");
    }
    for (uint32_t i = 0; i < 20; i++) step_both_lanes(lanes);
    require_complete(&e, lanes, "steps on two streams");

    cudaGraphExec_t graphs[2];
    for (uint32_t r = 0; r < 2; r++) {
        REQUIRE_CUDA(cudaSetDevice(lanes[r][0].config.device));
        step_capture(lanes[r][0].stream);
        cudaStream_t own = lanes[r][1].stream;
        lanes[r][1].stream = lanes[r][0].stream;
        for (uint32_t l = 0; l < 2; l++) echo_dispatch(&lanes[r][l], ECHO_BOTH);
        for (uint32_t l = 0; l < 2; l++) echo_combine(&lanes[r][l], ECHO_BOTH);
        lanes[r][1].stream = own;
        graphs[r] = step_captured(lanes[r][0].stream);
    }
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t r = 0; r < 2; r++) {
            REQUIRE_CUDA(cudaSetDevice(lanes[r][0].config.device));
            REQUIRE_CUDA(cudaGraphLaunch(graphs[r], lanes[r][0].stream));
        }
        require_complete(&e, lanes, "replays");
    }
    for (uint32_t r = 0; r < 2; r++) REQUIRE_CUDA(cudaGraphExecDestroy(graphs[r]));
    echo_close(&e);
}

/* ---- a peer that goes between two graphs of one operation ---- */

static cudaGraphExec_t graph_of(echo_rank *r, void (*half)(echo_rank *r, uint32_t halves)) {
    REQUIRE_CUDA(cudaSetDevice(r->config.device));
    step_capture(r->stream);
    half(r, ECHO_BOTH);
    return step_captured(r->stream);
}

/* Ends the program unless rank 0 has one new record: lane 1 has lost the peer. What is replayed later begins
 * without the peer, loses no peer, and shows it only in `contributions`. */
static void require_one_loss(const echo_rank *r, const char *what) {
    epw_error_record records[4];
    uint32_t count = 0;
    uint64_t lost = 0;
    REQUIRE_OK(epw_take_errors(r->buffer, records, sizeof(epw_error_record), 4, &count, &lost));
    REQUIRE(count == 1 && lost == 0, "%s: %u records and %llu lost ones instead of one record", what, count,
            (unsigned long long)lost);
    const epw_error_record *of = &records[0];
    REQUIRE(of->phase == EPW_PHASE_DISPATCH_RECEIVE && of->cause == EPW_CAUSE_TIMEOUT && of->rank == 0 &&
                of->peer == 1 && of->lane == 1 && of->epoch == 1 && of->op == 1,
            "%s: rank %u lane %u epoch %u op %u lost rank %u in phase %u, cause %u", what, of->rank, of->lane,
            of->epoch, of->op, of->peer, of->phase, of->cause);
}

/* What the graphs of lane 0 do for a peer that lane 1 gives up in between, and whose window is then unmapped:
 * the combine finds no window to answer to. */
static void disconnected(uint32_t gpus) {
    static echo e;
    epw_config config = config_of(2, 100 * MS);
    config.lanes = 2;
    echo_open(&e, &config, gpus);
    echo_rank *r = &e.rank[0];
    REQUIRE_CUDA(cudaSetDevice(r->config.device));
    r->contributions = echo_take(config.max_tokens * 2 * sizeof *r->contributions, 0xee);
    cudaGraphExec_t dispatches[2], combines[2];
    for (uint32_t i = 0; i < 2; i++) {
        dispatches[i] = graph_of(&e.rank[i], echo_dispatch);
        combines[i] = graph_of(&e.rank[i], echo_combine);
    }
    for (uint32_t step = 0; step < 2; step++) {
        echo_fill(&e, step);
        for (uint32_t i = 0; i < 2; i++) REQUIRE_CUDA(cudaGraphLaunch(dispatches[i], e.rank[i].stream));
        echo_settle(&e, "dispatch");
        REQUIRE(echo_miscounted(&e, r, 3) == 0, "%u counts are wrong", echo_miscounted(&e, r, 3));
        if (step == 1) break;
        for (uint32_t i = 0; i < 2; i++) REQUIRE_CUDA(cudaGraphLaunch(combines[i], e.rank[i].stream));
        echo_settle(&e, "combine");
        REQUIRE(echo_wrong(&e, r, 3) == 0, "%u tokens are wrong", echo_wrong(&e, r, 3));
    }
    echo_rank other = *r;
    other.lane = 1;
    REQUIRE_CUDA(cudaSetDevice(r->config.device));
    other.rows = echo_take((size_t)config.experts * config.max_tokens * config.hidden * 2, 0);
    echo_dispatch(&other, ECHO_BOTH);
    echo_settle(&e, "a dispatch that loses the peer");
    echo_missing(&other, 2, "the other lane");
    echo_combine(&other, ECHO_BOTH);
    echo_settle(&e, "its combine");
    REQUIRE_OK(epw_buffer_disconnect(r->buffer, 1));
    REQUIRE_CUDA(cudaMemset(r->out, 0xee, (size_t)config.max_tokens * config.hidden * 2));
    REQUIRE_CUDA(cudaMemset(r->contributions, 0xee, config.max_tokens * 2 * sizeof *r->contributions));
    REQUIRE_CUDA(cudaDeviceSynchronize());
    REQUIRE_CUDA(cudaGraphLaunch(combines[0], r->stream));
    echo_settle(&e, "a combine without the peer");
    require_one_loss(r, "after a combine without the peer");
    REQUIRE(echo_wrong(&e, r, 1) == 0, "%u tokens are wrong without the peer", echo_wrong(&e, r, 1));
    epw_mask self = {{1}};
    REQUIRE_OK(epw_buffer_set_active(r->buffer, &self, 2, 0));
    REQUIRE_CUDA(cudaGraphLaunch(dispatches[0], r->stream));
    REQUIRE_CUDA(cudaGraphLaunch(combines[0], r->stream));
    echo_settle(&e, "the next epoch");
    REQUIRE(echo_wrong(&e, r, 1) == 0, "%u tokens are wrong in the next epoch", echo_wrong(&e, r, 1));
    echo_close(&e);
}

/* ---- words that come at the deadline ---- */

/* How often rank 1 was not given up, was given up and lost, and was given up although what it has sent is
 * there. */
typedef struct ends {
    uint32_t whole, lost, kept;
} ends;

/* The rows of all local experts, by the last dispatch and by all of them. */
static uint64_t rows_counted(const echo_rank *r) {
    uint32_t counts[64], local = r->config.experts / r->config.ranks;
    uint64_t sum = 0;
    REQUIRE_CUDA(cudaMemcpy(counts, r->counts, local * sizeof *counts, cudaMemcpyDeviceToHost));
    for (uint32_t x = 0; x < local; x++) sum += counts[x];
    return sum;
}
static uint64_t rows_added(const echo_rank *r) {
    uint64_t totals[64], sum = 0;
    uint32_t local = r->config.experts / r->config.ranks;
    REQUIRE_CUDA(cudaMemcpy(totals, r->expert_totals, local * sizeof *totals, cudaMemcpyDeviceToHost));
    for (uint32_t x = 0; x < local; x++) sum += totals[x];
    return sum;
}

static uint32_t take_records(const echo_rank *r) {
    epw_error_record records[64];
    uint32_t count = 0;
    uint64_t lost = 0;
    REQUIRE_OK(epw_take_errors(r->buffer, records, sizeof(epw_error_record), 64, &count, &lost));
    return count;
}

/* Rank 1 sends, in a dispatch or in a combine as `half` says, `delay` after rank 0 has begun to wait; the
 * delay changes from round to round so that rank 0 gives it up in about half of them. `held_ms`: for so long
 * rank 0's blocks have only one SM. Whatever the blocks see, they deliver the same: all that rank 1 has sent,
 * or nothing. */
static ends receive_at_deadline(uint32_t gpus, void (*half)(echo_rank *, uint32_t), uint32_t held_ms) {
    static echo e;
    enum { ROUNDS = 400 };
    const uint64_t deadline = LATE_DEADLINE_MS * MS, step = 2000;
    const int combines = half == echo_combine;
    epw_config config = config_of(2, deadline);
    echo_open(&e, &config, gpus);
    echo_rank *r = &e.rank[0], *peer = &e.rank[1];
    cudaStream_t hogs = hog_stream(r);
    r->expert_totals = echo_take(config.experts * 8, 0);
    REQUIRE_CUDA(cudaSetDevice(peer->config.device));
    REQUIRE_CUDA(hog_prepare());
    uint64_t delay = deadline, rows = 0;
    ends count = {0};
    for (uint32_t round = 0; round < ROUNDS; round++) {
        echo_fill(&e, round);
        for (uint32_t halves = ECHO_SEND; combines && halves <= ECHO_RECEIVE; halves++)
            for (uint32_t i = 0; i < 2; i++) echo_dispatch(&e.rank[i], halves);
        half(r, ECHO_SEND);
        echo_settle(&e, "sending");
        take_records(r);
        if (held_ms > 0) hold_sms(r, held_ms, hogs);
        REQUIRE_CUDA(cudaSetDevice(peer->config.device));
        REQUIRE_CUDA(hog_sms(1, delay, 0, peer->stream));
        half(peer, ECHO_SEND);
        half(r, ECHO_RECEIVE);
        echo_settle(&e, "receiving");
        epw_outcome outcome = EPW_OUTCOME_INIT;
        REQUIRE_OK(epw_outcome_read(r->buffer, r->handle, &outcome));
        int given_up = take_records(r) > 0;
        int whole = combines ? echo_wrong(&e, r, 3) == 0 : echo_miscounted(&e, r, 3) == 0;
        int own = combines ? echo_wrong(&e, r, 1) == 0 : echo_miscounted(&e, r, 1) == 0;
        REQUIRE(whole != own, "round %u: only a part of what rank 1 sent arrived", round);
        REQUIRE(given_up || whole, "round %u: rank 1 is missing and was never given up", round);
        /* A peer that is given up and sends after all may not have been sent to, so it is missing; but a peer
         * that answers has answered. */
        uint64_t missing = own || (given_up && !combines) ? 2 : 0;
        REQUIRE(outcome.missing.bits[0] == missing, "round %u: missing %llx instead of %llx", round,
                (unsigned long long)outcome.missing.bits[0], (unsigned long long)missing);
        rows += rows_counted(r);
        REQUIRE(rows_added(r) == rows, "round %u: expert_totals add up to %llu instead of %llu", round,
                (unsigned long long)rows_added(r), (unsigned long long)rows);
        count.whole += !given_up;
        count.lost += own != 0;
        count.kept += given_up && whole;
        delay += given_up ? -step : step;
        half(peer, ECHO_RECEIVE);
        for (uint32_t i = 0; !combines && i < 2; i++) echo_combine(&e.rank[i], ECHO_BOTH);
        echo_settle(&e, "combine");
        uint64_t answers = missing ? 1 : 3;
        REQUIRE(echo_wrong(&e, r, answers) == 0, "round %u: %u tokens are wrong; %llx have answered", round,
                echo_wrong(&e, r, answers), (unsigned long long)answers);
        for (uint32_t i = 0; i < 2; i++)
            REQUIRE_OK(epw_buffer_set_active(e.rank[i].buffer, &(epw_mask){{3}}, 2 + round, 0));
    }
    REQUIRE_CUDA(cudaSetDevice(r->config.device));
    REQUIRE_CUDA(cudaStreamDestroy(hogs));
    echo_close(&e);
    printf("of %u rounds: %u whole, %u lost, %u given up although all had arrived; delay %llu us\n", ROUNDS,
           count.whole, count.lost, count.kept, (unsigned long long)(delay / 1000));
    return count;
}

/* All blocks wait to the end. */
static void all_wait(uint32_t gpus, void (*half)(echo_rank *, uint32_t)) {
    ends count = receive_at_deadline(gpus, half, 0);
    REQUIRE(count.whole > 0 && count.lost > 0, "%u rounds were whole, in %u a peer was lost", count.whole,
            count.lost);
}
static void rows_at_the_deadline(uint32_t gpus) {
    all_wait(gpus, echo_dispatch);
}
static void answers_at_the_deadline(uint32_t gpus) {
    all_wait(gpus, echo_combine);
}

/* One block gives rank 1 up, and the others begin when the word is there: they have delivered what it
 * says. */
static void one_waits(uint32_t gpus, void (*half)(echo_rank *, uint32_t)) {
    ends count = receive_at_deadline(gpus, half, 3 + 3 * LATE_DEADLINE_MS);
    REQUIRE(count.kept > 0, "no late block found a word that was given up: %u rounds complete, %u lost",
            count.whole, count.lost);
}
static void rows_after_all(uint32_t gpus) {
    one_waits(gpus, echo_dispatch);
}
static void answers_after_all(uint32_t gpus) {
    one_waits(gpus, echo_combine);
}

/* ---- who is alive, and who is told ---- */

/* Three ranks: 0 and 2 know only 1, so what 0 waits for depends on 2 through 1 alone. */
static void open_chain(echo *e, uint64_t deadline_ns, uint32_t gpus) {
    static const uint64_t members[] = {3, 7, 6};
    epw_config config = config_of(3, deadline_ns);
    echo_open(e, &config, gpus);
    echo_fill(e, 1);
    echo_step(e); /* all kernels have run once, on all streams */
    for (uint32_t r = 0; r < 3; r++) {
        epw_mask mask = {{members[r]}};
        REQUIRE_OK(epw_buffer_set_active(e->rank[r].buffer, &mask, 2, 0));
    }
    echo_fill(e, 2);
}

/* Rank 1 waits for rank 2 with a deadline of its own call, longer than the group's deadlines allow. Rank 0
 * waits for rank 1, which says so in its beacons. */
static void lengthened(uint32_t gpus) {
    static echo e;
    open_chain(&e, 100 * MS, gpus);
    for (uint32_t r = 0; r < 3; r++) echo_dispatch(&e.rank[r], ECHO_BOTH);
    echo_settle(&e, "dispatch");
    e.rank[1].deadline_ns = 1600 * MS;
    for (uint32_t r = 0; r < 2; r++) echo_combine(&e.rank[r], ECHO_BOTH);
    uint64_t began = now_ns();
    echo_dispatch(&e.rank[0], ECHO_BOTH);
    sleep_ms(1000);
    REQUIRE(cudaStreamQuery(e.rank[0].stream) == cudaErrorNotReady, "rank 0 gave up rank 1 after %llu ms",
            (unsigned long long)((now_ns() - began) / MS));
    echo_combine(&e.rank[2], ECHO_BOTH);
    for (uint32_t r = 1; r < 3; r++) echo_dispatch(&e.rank[r], ECHO_BOTH);
    echo_settle(&e, "the late ranks");
    echo_missing(&e.rank[0], 0, "a peer with a longer deadline");
    echo_missing(&e.rank[1], 0, "a longer deadline");
    echo_close(&e);
}

/* Rank 1 computes for 0.8 deadlines between its halves, then waits for rank 2. Rank 0 hears of it at once. */
static void first_beacon(uint32_t gpus) {
    static echo e;
    const uint32_t deadline_ms = 500;
    open_chain(&e, deadline_ms * MS, gpus);
    echo_dispatch(&e.rank[1], ECHO_SEND);
    echo_dispatch(&e.rank[0], ECHO_BOTH);
    echo_combine(&e.rank[0], ECHO_BOTH);
    sleep_ms(deadline_ms * 8 / 10);
    echo_dispatch(&e.rank[1], ECHO_RECEIVE);
    echo_combine(&e.rank[1], ECHO_BOTH);
    sleep_ms(deadline_ms * 6 / 10);
    echo_dispatch(&e.rank[2], ECHO_BOTH);
    echo_combine(&e.rank[2], ECHO_BOTH);
    echo_settle(&e, "a step");
    echo_missing(&e.rank[0], 0, "a peer that begins to wait late");
    echo_missing(&e.rank[1], 0, "a receiving half that begins late");
    echo_close(&e);
}

/* Rank 1 computes for 0.8 deadlines after each call, and rank 0 waits for its answers all the time: it hears
 * that rank 1 is alive when a receiving half ends that began late, and when a wait for rank 2 ends that was
 * too short for a beacon. */
static void silent(uint32_t gpus) {
    static echo e;
    const uint32_t deadline_ms = 500;
    open_chain(&e, deadline_ms * MS, gpus);
    for (uint32_t late = 0; late < 2; late++) {
        echo_dispatch(&e.rank[1], late ? ECHO_SEND : ECHO_BOTH);
        echo_dispatch(&e.rank[0], ECHO_BOTH);
        echo_combine(&e.rank[0], ECHO_BOTH);
        if (!late) sleep_ms(deadline_ms * 4 / 10);
        echo_dispatch(&e.rank[2], ECHO_BOTH);
        echo_combine(&e.rank[2], ECHO_BOTH);
        if (late) sleep_ms(deadline_ms * 8 / 10);
        if (late) echo_dispatch(&e.rank[1], ECHO_RECEIVE);
        sleep_ms(deadline_ms * 8 / 10);
        echo_combine(&e.rank[1], ECHO_BOTH);
        echo_settle(&e, "a step");
        for (uint32_t r = 0; r < 3; r++)
            echo_missing(&e.rank[r], 0, late ? "a late receiving half" : "a wait without beacons");
    }
    echo_close(&e);
}

/* A rank that its peers leave out learns of it from their next epoch, not by a deadline. */
static void left_out(uint32_t gpus) {
    static echo e;
    const uint64_t deadline = 2000 * MS;
    epw_config config = config_of(3, deadline);
    echo_open(&e, &config, gpus);
    echo_fill(&e, 1);
    whole_step(&e, &e.rank[2], "before");
    for (uint32_t r = 0; r < 2; r++)
        REQUIRE_OK(epw_buffer_set_active(e.rank[r].buffer, &(epw_mask){{3}}, 2, 0));
    epw_outcome outcome = EPW_OUTCOME_INIT;
    uint64_t began = now_ns();
    echo_dispatch(&e.rank[2], ECHO_BOTH);
    echo_settle(&e, "a dispatch of a former member");
    REQUIRE(now_ns() - began < deadline / 2, "a former member waits for %llu ms",
            (unsigned long long)((now_ns() - began) / MS));
    REQUIRE_OK(epw_outcome_read(e.rank[2].buffer, e.rank[2].handle, &outcome));
    REQUIRE(outcome.missing.bits[0] == 3 && outcome.record.cause == EPW_CAUSE_SUPERSEDED,
            "missing %llx, cause %u", (unsigned long long)outcome.missing.bits[0], outcome.record.cause);
    REQUIRE_SUSPECTS(e.rank[2].buffer, 3, 0); /* from both of which it has heard */
    echo_close(&e);
}

/* The ranks begin the epoch at different steps, and learn of it at once, whichever looks first, even if the
 * steps differ only in their lowest bit. With the same step they work together. */
static void another_step(uint32_t gpus) {
    static echo e;
    static const uint64_t steps[][2] = {{7, 6}, {0, UINT64_C(1) << 40}, {EPW_STEP_MAX, EPW_STEP_MAX}};
    const uint64_t deadline = 2000 * MS;
    epw_config config = config_of(2, deadline);
    echo_open(&e, &config, gpus);
    for (uint32_t i = 0; i < 3; i++) {
        int alike = steps[i][0] == steps[i][1];
        echo_fill(&e, i);
        for (uint32_t r = 0; r < 2; r++)
            REQUIRE_OK(epw_buffer_set_active(e.rank[r].buffer, &(epw_mask){{3}}, 2 + i, steps[i][r]));
        uint64_t began = now_ns();
        for (uint32_t r = 0; r < 2; r++) echo_dispatch(&e.rank[r], ECHO_BOTH);
        echo_settle(&e, "a dispatch of ranks at two steps");
        REQUIRE(now_ns() - began < deadline / 2, "they wait for %llu ms",
                (unsigned long long)((now_ns() - began) / MS));
        for (uint32_t r = 0; r < 2; r++) {
            epw_outcome outcome = EPW_OUTCOME_INIT;
            echo_rank *of = &e.rank[r];
            REQUIRE_OK(epw_outcome_read(of->buffer, of->handle, &outcome));
            echo_missing(of, alike ? 0 : r == 0 ? 2 : 1, "another step");
            REQUIRE(outcome.record.cause == (alike ? EPW_CAUSE_NONE : EPW_CAUSE_STEP), "rank %u: cause %u", r,
                    outcome.record.cause);
            REQUIRE_SUSPECTS(of->buffer, outcome.missing.bits[0], 0);
            epw_mask others;
            REQUIRE_OK(epw_buffer_diverged(of->buffer, 2 + i, steps[i][0], &others));
            REQUIRE(others.bits[0] == (alike ? 0 : 2), "rank %u considers %llx diverged from rank 0", r,
                    (unsigned long long)others.bits[0]);
            uint64_t sources = alike ? 3 : UINT64_C(1) << r;
            REQUIRE(echo_miscounted(&e, of, sources) == 0, "rank %u has rows of a rank at another step", r);
        }
        for (uint32_t r = 0; r < 2; r++) echo_combine(&e.rank[r], ECHO_BOTH);
        echo_settle(&e, "a combine of ranks at two steps");
    }
    echo_close(&e);
}

/* Rank 0 waits for rank 2, which never comes, until it is told that the group continues without it; rank 1's
 * rows count. Later operations of both lanes continue without rank 2, and it is told. */
static void revoked(uint32_t gpus) {
    static echo e;
    const uint64_t deadline = 10000 * MS;
    epw_config config = config_of(3, deadline);
    config.lanes = 2;
    echo_open(&e, &config, gpus);
    echo_fill(&e, 1);
    whole_step(&e, &e.rank[2], "before");
    echo_fill(&e, 2);
    telling t = make_telling(&e.rank[0]);
    for (uint32_t r = 0; r < 2; r++) echo_dispatch(&e.rank[r], ECHO_BOTH);
    tell(&e.rank[0], &t, true);
    launch_telling(&e.rank[0], &t, "a graph on another stream");
    require_told(t.by_graph, 3, 7, 0, "a graph before anybody is revoked");
    sleep_ms(200);
    for (uint32_t r = 0; r < 2; r++)
        REQUIRE(cudaStreamQuery(e.rank[r].stream) == cudaErrorNotReady, "rank %u does not wait", r);
    uint64_t began = now_ns();
    for (uint32_t r = 0; r < 2; r++) {
        REQUIRE_OK(epw_buffer_revoke(e.rank[r].buffer, &(epw_mask){{4}}));
        REQUIRE_SUSPECTS(e.rank[r].buffer, 4, 0);
    }
    echo_settle(&e, "a dispatch without a revoked rank");
    REQUIRE(now_ns() - began < 100 * MS, "it took %llu ms", (unsigned long long)((now_ns() - began) / MS));
    require_told(t.by_call, 3, 7, 4, "behind the dispatch");
    launch_telling(&e.rank[0], &t, "a graph after it");
    require_told(t.by_graph, 3, 7, 4, "a graph after it");
    for (uint32_t half = 0; half < 3; half++) {
        for (uint32_t r = 0; r < 2; r++) {
            epw_outcome outcome = EPW_OUTCOME_INIT;
            echo_missing(&e.rank[r], 4, "a revoked rank");
            REQUIRE_OK(epw_outcome_read(e.rank[r].buffer, e.rank[r].handle, &outcome));
            REQUIRE(outcome.record.cause == EPW_CAUSE_SUPERSEDED, "cause %u", outcome.record.cause);
            REQUIRE_SUSPECTS(e.rank[r].buffer, 4, 0);
            if (half == 0) REQUIRE(echo_miscounted(&e, &e.rank[r], 3) == 0, "rows are missing");
            if (half % 2 == 0) echo_combine(&e.rank[r], ECHO_BOTH);
            if (half % 2 == 1) e.rank[r].lane = 1 - e.rank[r].lane;
            if (half % 2 == 1) echo_dispatch(&e.rank[r], ECHO_BOTH);
        }
        echo_settle(&e, "a half without a revoked rank");
    }
    began = now_ns();
    echo_dispatch(&e.rank[2], ECHO_BOTH);
    echo_settle(&e, "a dispatch of a revoked rank");
    REQUIRE(now_ns() - began < deadline / 2, "a revoked rank is not told");
    echo_missing(&e.rank[2], 3, "a rank that the others have dropped");
    for (uint32_t r = 0; r < 2; r++)
        REQUIRE_OK(epw_buffer_set_active(e.rank[r].buffer, &(epw_mask){{3}}, 2, 0));
    launch_telling(&e.rank[0], &t, "a graph without the rank");
    require_told(t.by_graph, 3, 3, 0, "a graph without the rank");
    REQUIRE_OK(epw_buffer_revoke(e.rank[0].buffer, &(epw_mask){{2}})); /* which no wait has found yet */
    launch_telling(&e.rank[0], &t, "a graph after another one is revoked");
    require_told(t.by_graph, 3, 3, 2, "a graph after another one is revoked");
    free_telling(&t);
    echo_close(&e);
}

/* Rank 2, which is not a member, leaves and comes back while rank 0 waits for rank 1 on its SMs; then it is
 * admitted. */
static void comes(uint32_t gpus) {
    static echo e;
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = 0;
    epw_config config = config_of(3, 10000 * MS);
    echo_open(&e, &config, gpus);
    echo_fill(&e, 1);
    whole_step(&e, &e.rank[2], "before");
    for (uint32_t r = 0; r < 2; r++)
        REQUIRE_OK(epw_buffer_set_active(e.rank[r].buffer, &(epw_mask){{3}}, 2, 0));
    REQUIRE_OK(epw_buffer_set_active(e.rank[2].buffer, &(epw_mask){{4}}, 2, 0));
    echo_dispatch(&e.rank[0], ECHO_BOTH);
    sleep_ms(20);
    epw_buffer *here = e.rank[0].buffer;
    uint64_t began = now_ns();
    for (uint32_t i = 0; i < 3; i++) {
        REQUIRE_OK(epw_buffer_disconnect(here, 2));
        REQUIRE_OK(epw_buffer_export(e.rank[2].buffer, 0, blob, &length));
        REQUIRE_OK(epw_buffer_connect(here, 2, blob, length));
        if (epw_buffer_path(here, 2) == EPW_PATH_QUEUE) { /* a queue has two ends, and both are new */
            REQUIRE_OK(epw_buffer_export(here, 2, blob, &length));
            REQUIRE_OK(epw_buffer_connect(e.rank[2].buffer, 0, blob, length));
        }
        REQUIRE_OK(epw_buffer_probe(here, 2, 1000 * MS));
    }
    uint64_t took = now_ns() - began;
    REQUIRE(cudaStreamQuery(e.rank[0].stream) == cudaErrorNotReady, "rank 0 did not wait");
    REQUIRE(took < 1000 * MS, "it took %llu ms", (unsigned long long)(took / MS));
    echo_dispatch(&e.rank[1], ECHO_BOTH);
    for (uint32_t r = 0; r < 2; r++) echo_combine(&e.rank[r], ECHO_BOTH);
    echo_settle(&e, "a step during which a rank connected");
    for (uint32_t r = 0; r < 2; r++) {
        echo_missing(&e.rank[r], 0, "a step during which a rank connected");
        REQUIRE(echo_wrong(&e, &e.rank[r], 3) == 0, "%u tokens are wrong", echo_wrong(&e, &e.rank[r], 3));
    }
    for (uint32_t r = 0; r < 3; r++)
        REQUIRE_OK(epw_buffer_set_active(e.rank[r].buffer, &(epw_mask){{7}}, 3, 0));
    echo_fill(&e, 2);
    whole_step(&e, &e.rank[0], "a step with the new rank");
    printf("a rank connects and disconnects three times beside a waiting kernel: %llu us\n",
           (unsigned long long)(took / 1000));
    echo_close(&e);
}

/* The words of a probe go through pinned memory and the copy engines, so they pass kernels that wait. */
static void probed(uint32_t gpus) {
    static echo e;
    epw_config config = config_of(2, 2000 * MS);
    echo_open(&e, &config, gpus);
    epw_buffer *first = e.rank[0].buffer, *second = e.rank[1].buffer;
    for (uint32_t i = 0; i < 3; i++) {
        REQUIRE_OK(epw_buffer_probe(first, 1, 1000 * MS));
        REQUIRE_OK(epw_buffer_probe(second, 0, 1000 * MS));
        REQUIRE_OK(epw_buffer_probe(first, 0, 1000 * MS)); /* its own device */
    }
    echo_fill(&e, 1);
    echo_dispatch(&e.rank[0], ECHO_BOTH); /* waits for rank 1 on its SMs */
    sleep_ms(20);
    uint64_t began = now_ns();
    REQUIRE_OK(epw_buffer_probe(first, 1, 1000 * MS));
    REQUIRE_OK(epw_buffer_probe(second, 0, 1000 * MS));
    REQUIRE_OK(epw_buffer_probe(first, 0, 1000 * MS));
    uint64_t took = now_ns() - began;
    REQUIRE(cudaStreamQuery(e.rank[0].stream) == cudaErrorNotReady, "rank 0 did not wait");
    echo_dispatch(&e.rank[1], ECHO_BOTH);
    for (uint32_t i = 0; i < 2; i++) echo_combine(&e.rank[i], ECHO_BOTH);
    echo_settle(&e, "a step");
    REQUIRE(echo_wrong(&e, &e.rank[0], 3) == 0, "%u tokens are wrong", echo_wrong(&e, &e.rank[0], 3));
    REQUIRE(took < 100 * MS, "three probes took %llu us", (unsigned long long)(took / 1000));
    printf("three probes beside a waiting kernel: %llu us\n", (unsigned long long)(took / 1000));
    echo_close(&e);
}

/* ---- verdicts ---- */

/* Ends a step of these ranks, and ends the program unless all of them get this verdict on it. */
static void step_is(echo *e, uint32_t ranks, uint64_t step, uint32_t verdict, const char *what) {
    uint32_t epoch = 0, found = EPW_VERDICT_PENDING;
    for (uint32_t r = 0; r < ranks; r++)
        REQUIRE_OK(epw_checkpoint(e->rank[r].buffer, step, e->rank[r].stream, &epoch));
    for (uint32_t r = 0; r < ranks; r++) {
        uint64_t began = now_ns();
        do {
            REQUIRE_OK(epw_checkpoint_verdict(e->rank[r].buffer, epoch, step, &found));
        } while (found == EPW_VERDICT_PENDING && now_ns() - began < 2000 * MS);
        REQUIRE(found == verdict, "%s: the verdict of rank %u is %u, not %u", what, r, found, verdict);
    }
}

static void launch(const echo_rank *r, cudaGraphExec_t graph) {
    REQUIRE_CUDA(cudaGraphLaunch(graph, r->stream));
}

/* A rank by itself: verdicts that no peer could give it. */
static void verdicts(uint32_t gpus) {
    static echo e;
    epw_config config = config_of(1, 100 * MS);
    config.lanes = 2;
    echo_open(&e, &config, gpus);
    echo_rank *r = &e.rank[0];
    cudaGraphExec_t dispatches = graph_of(r, echo_dispatch), combines = graph_of(r, echo_combine);
    echo_fill(&e, 1);
    launch(r, dispatches);
    launch(r, combines);
    step_is(&e, 1, 1, EPW_VERDICT_CLEAN, "replays");
    launch(r, dispatches);
    launch(r, dispatches);
    launch(r, combines);
    step_is(&e, 1, 2, EPW_VERDICT_FAULTED, "a replay out of turn");
    echo_step(&e);
    step_is(&e, 1, 3, EPW_VERDICT_CLEAN, "a call");
    r->lane = 1;
    echo_dispatch(r, ECHO_BOTH);
    REQUIRE_OK(epw_release(r->buffer, r->handle));
    r->lane = 0;
    step_is(&e, 1, 4, EPW_VERDICT_FAULTED, "a release on the other lane");
    launch(r, dispatches);
    launch(r, combines);
    step_is(&e, 1, 5, EPW_VERDICT_CLEAN, "replays after that");
    echo_close(&e);

    /* Of two ranks the second does nothing: the first continues without it, and knows so by itself. */
    config = config_of(2, 100 * MS);
    echo_open(&e, &config, gpus);
    echo_fill(&e, 2);
    echo_step(&e);
    step_is(&e, 2, 1, EPW_VERDICT_CLEAN, "a step of two");
    echo_dispatch(r, ECHO_BOTH);
    echo_combine(r, ECHO_BOTH);
    echo_settle(&e, "a step without the other rank");
    step_is(&e, 1, 2, EPW_VERDICT_FAULTED, "a step without the other rank");
    echo_close(&e);
}

/* ---- SMs ---- */

enum { BUFFER, PREFILL_BUFFER, COMMUNICATOR, HOLDERS };

/* What has SMs of GPU 0. */
typedef struct holder {
    epw_buffer *buffer;
    epw_prefill *prefill;
    epw_comm *comm;
} holder;

static const char *const holder_names[HOLDERS] = {"buffer", "prefill buffer", "communicator"};

/* The status of making one of this kind, with that many SMs. */
static epw_status make_holder(holder *h, uint32_t kind, uint32_t rank, uint32_t sms) {
    epw_config config = config_of(HOLDERS, 1000 * MS);
    config.rank = rank;
    config.device = 0;
    config.sms = sms;
    *h = (holder){NULL};
    if (kind == BUFFER) return epw_buffer_create(&config, &h->buffer);
    if (kind == PREFILL_BUFFER) {
        epw_prefill_config prefill = EPW_PREFILL_CONFIG_INIT;
        prefill.ep = config;
        return epw_prefill_create(&prefill, &h->prefill);
    }
    epw_comm_config comm = EPW_COMM_CONFIG_INIT;
    comm.rank = rank;
    comm.ranks = HOLDERS;
    comm.device = 0;
    comm.sms = sms;
    return epw_comm_create(&comm, &h->comm);
}

static void free_holder(holder *h) {
    if (h->buffer != NULL) epw_buffer_destroy(h->buffer);
    if (h->prefill != NULL) epw_prefill_destroy(h->prefill);
    if (h->comm != NULL) epw_comm_destroy(h->comm);
    *h = (holder){NULL};
}

/* No kind takes more SMs than the GPU has, or fewer than one for each lane. */
static void sms_that_no_gpu_has(uint32_t all) {
    for (uint32_t kind = 0; kind < HOLDERS; kind++) {
        holder none;
        char words[96];
        epw_status status = make_holder(&none, kind, 0, all + 1);
        snprintf(words, sizeof words, "sms is %u, ", all + 1);
        REQUIRE(status == EPW_ERR_LIMIT && strstr(epw_last_error(), words) != NULL, "%s, status %d: %s",
                holder_names[kind], status, epw_last_error());
        snprintf(words, sizeof words, kind == COMMUNICATOR ? "%u SMs" : ", %u]", all);
        REQUIRE(strstr(epw_last_error(), words) != NULL || (kind == COMMUNICATOR && all >= 64),
                "'%s' does not say '%s'", epw_last_error(), words);
    }
    epw_config config = config_of(1, 1000 * MS);
    epw_buffer *buffer = NULL;
    config.device = 0;
    config.lanes = 2;
    config.sms = 1;
    epw_status status = epw_buffer_create(&config, &buffer);
    REQUIRE(status == EPW_ERR_LIMIT && strstr(epw_last_error(), "sms is 1, must be in [2, ") != NULL,
            "status %d: %s", status, epw_last_error());
    REQUIRE(buffer == NULL, "a buffer that was refused");
}

/* One of each kind have all SMs. Another one of any kind is refused, and told who has them; when one of them
 * is gone, another one fits that takes as many. */
static void overbooked(uint32_t gpus) {
    (void)gpus;
    int all = 0;
    holder held[HOLDERS], more;
    REQUIRE_CUDA(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, 0));
    sms_that_no_gpu_has((uint32_t)all);
    const uint32_t sms[HOLDERS] = {2, (uint32_t)all - 5, 3};
    for (uint32_t i = 0; i < HOLDERS; i++) REQUIRE_OK(make_holder(&held[i], i, i, sms[i]));
    for (uint32_t kind = 0; kind < HOLDERS; kind++) {
        epw_status status = make_holder(&more, kind, 0, 1);
        REQUIRE(status == EPW_ERR_LIMIT, "one more %s: status %d", holder_names[kind], status);
        for (uint32_t i = 0; i < HOLDERS; i++) {
            char words[96];
            snprintf(words, sizeof words, "the %s of rank %u has %u", holder_names[i], i, sms[i]);
            REQUIRE(strstr(epw_last_error(), words) != NULL, "'%s' does not say '%s'", epw_last_error(),
                    words);
        }
    }
    for (uint32_t i = 0; i < HOLDERS; i++) {
        free_holder(&held[i]);
        epw_status status = make_holder(&more, PREFILL_BUFFER, i, sms[i] + 1);
        REQUIRE(status == EPW_ERR_LIMIT, "more SMs than are free: status %d", status);
        REQUIRE_OK(make_holder(&more, PREFILL_BUFFER, i, sms[i]));
        free_holder(&more);
        REQUIRE_OK(make_holder(&held[i], i, i, sms[i]));
    }
    for (uint32_t i = 0; i < HOLDERS; i++) free_holder(&held[i]);
}

static const gpu_case cases[] = {
    {"late_receive", late_receive, 2, 60},
    {"late_combine", late_combine, 2, 60},
    {"late_dispatch", late_dispatch, 1, 60},
    {"late_send", late_send, 1, 60},
    {"late_answers", late_answers, 1, 60},
    {"late_beacons", late_beacons, 2, 60},
    {"shared_totals", shared_totals, 1, 60},
    {"shared_waits", shared_waits, 1, 60},
    {"serial_lanes", serial_lanes, 1, 60},
    {"disconnected", disconnected, 1, 60},
    {"rows_at_the_deadline", rows_at_the_deadline, 2, 60},
    {"answers_at_the_deadline", answers_at_the_deadline, 2, 60},
    {"rows_after_all", rows_after_all, 2, 60},
    {"answers_after_all", answers_after_all, 2, 60},
    {"lengthened", lengthened, 1, 60},
    {"first_beacon", first_beacon, 1, 60},
    {"silent", silent, 1, 60},
    {"left_out", left_out, 1, 60},
    {"another_step", another_step, 1, 60},
    {"revoked", revoked, 1, 60},
    {"comes", comes, 1, 60},
    {"probed", probed, 1, 60},
    {"verdicts", verdicts, 1, 60},
    {"overbooked", overbooked, 1, 60},
};

int main(int argc, char **argv) {
    return cases_main("trouble", cases, sizeof cases / sizeof cases[0], argc, argv);
}
