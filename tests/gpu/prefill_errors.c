/* Records of what goes wrong in prefill, as replays of graphs leave them, which have no outcome, and calls:
 * bad ids, rows without a place, a rank that has stopped; what the first half of a dispatch finds, of which
 * the outcome tells after the second one; combines that cannot be split; routings that are used again after
 * a source was missing, or another one by each rank; and rings whose counts wrap around. Each case is a
 * process of its own; its ranks are buffers of one thread. `--case NAME` runs one. Exit code 77, with the
 * reason, if there is no GPU. */
#include "cases.h"
#include "prefill_ranks.h"
#include "ranks.h"
#include "step.h"

#include "prefill/gpu/gpu.h"

#include <stdbool.h>
#include <string.h>

enum { RANKS = 2, TOKENS = 40, HIDDEN = 64, ROWS = RANKS * TOKENS, FEW = ROWS - 8, REPLAYS = 3 };
enum { ENTRIES = TOKENS * RANKS, BAD = 7, BAD_ID = RANKS + 30, RECORDS = 300, NOTES = 64, RING = 256 };

typedef struct member {
    epw_config config;
    epw_prefill *prefill;
    epw_routing *routing;
    cudaStream_t stream;
    unsigned char *x, *rows;
    int32_t *ids;
    float *weights;
    uint32_t *came;             /* rows of each source */
    cudaGraphExec_t whole, few; /* a dispatch with room for all rows; with room for FEW */
} member;

static member members[RANKS];
static uint32_t ring = TOKENS + 1; /* enough for halves */
static epw_error_record records[RECORDS];

/* ---- life ---- */

static void open_member(uint32_t rank, uint32_t gpus) {
    member *m = &members[rank];
    epw_prefill_config config = prefill_rank_config(rank, RANKS, gpus);
    epw_config *c = &config.ep;
    c->max_tokens = TOKENS;
    c->hidden = HIDDEN;
    c->deadline_ns = 2000 * MS;
    config.ring_tokens = ring;
    REQUIRE_CUDA(cudaSetDevice(c->device));
    ranks_path(c);
    REQUIRE_OK(epw_prefill_create(&config, &m->prefill));
    REQUIRE_OK(epw_routing_create(m->prefill, &m->routing));
    m->config = *c;
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
    REQUIRE_CUDA(cudaMalloc((void **)&m->x, TOKENS * HIDDEN * 2));
    REQUIRE_CUDA(cudaMalloc((void **)&m->rows, ROWS * HIDDEN * 2));
    REQUIRE_CUDA(cudaMalloc((void **)&m->ids, ENTRIES * sizeof *m->ids));
    REQUIRE_CUDA(cudaMalloc((void **)&m->weights, ENTRIES * sizeof *m->weights));
    REQUIRE_CUDA(cudaMemset(m->weights, 0, ENTRIES * sizeof *m->weights));
    REQUIRE_CUDA(cudaMalloc((void **)&m->came, RANKS * sizeof *m->came));
}

static void activate(uint32_t epoch) {
    for (uint32_t r = 0; r < RANKS; r++)
        REQUIRE_OK(epw_prefill_set_active(members[r].prefill, &(epw_mask){{(1 << RANKS) - 1}}, epoch, 0));
}

static void open_all(uint32_t gpus) {
    for (uint32_t r = 0; r < RANKS; r++) open_member(r, gpus);
    for (uint32_t r = 0; r < RANKS; r++)
        prefill_rank_join(members[r].prefill, r, members[1 - r].prefill, 1 - r);
    activate(1);
}

static void close_all(void) {
    for (uint32_t r = 0; r < RANKS; r++) {
        const member *m = &members[r];
        REQUIRE_CUDA(cudaSetDevice(m->config.device));
        if (m->whole != NULL) REQUIRE_CUDA(cudaGraphExecDestroy(m->whole));
        if (m->few != NULL) REQUIRE_CUDA(cudaGraphExecDestroy(m->few));
        epw_routing_free(m->routing);
        epw_prefill_destroy(m->prefill);
        epw_fabric_destroy(m->config.fabric);
    }
}

/* ---- operations ---- */

/* Each of the first `tokens` tokens goes to every rank, in its first entry to rank `first`, but entries from
 * BAD on are bad, `bad` of them on rank 0. */
static void route_from(uint32_t first, uint32_t tokens, uint32_t bad) {
    for (uint32_t r = 0; r < RANKS; r++) {
        int32_t ids[ENTRIES];
        for (uint32_t i = 0; i < ENTRIES; i++)
            ids[i] = i < tokens * RANKS ? (int32_t)((i + first) % RANKS) : -1;
        for (uint32_t i = BAD; r == 0 && i < BAD + bad; i++) ids[i] = BAD_ID + (int32_t)i;
        REQUIRE_CUDA(cudaSetDevice(members[r].config.device));
        REQUIRE_CUDA(cudaMemcpy(members[r].ids, ids, sizeof ids, cudaMemcpyHostToDevice));
    }
}

static void route(uint32_t tokens, uint32_t bad) {
    route_from(0, tokens, bad);
}

static epw_prefill_output output(const member *m, uint64_t capacity) {
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    out.layout = EPW_DENSE;
    out.alignment = 0;
    out.capacity = capacity;
    out.rows = m->rows;
    out.source_counts = m->came;
    out.stream = m->stream;
    return out;
}

static epw_dispatch_input input(const member *m) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = TOKENS;
    in.x = m->x;
    in.topk_idx = m->ids;
    in.topk = RANKS;
    in.lane = 0;
    in.stream = m->stream;
    return in;
}

/* Rows that have weights are of another format. */
static void dispatch_as(const member *m, uint32_t route, bool weighted, uint64_t capacity) {
    epw_dispatch_input in = input(m);
    epw_prefill_output out = output(m, capacity);
    if (weighted) in.topk_weights = m->weights;
    REQUIRE_CUDA(cudaSetDevice(m->config.device));
    REQUIRE_OK(epw_prefill_dispatch(m->prefill, m->routing, &in, route, EPW_HALF_SENDS, &out, NULL));
}

static void dispatch(const member *m, uint64_t capacity) {
    dispatch_as(m, EPW_ROUTE_NEW, false, capacity);
}

/* The first half of a dispatch, EPW_HALF_*. */
static void begin(const member *m, uint32_t half, bool weighted) {
    epw_dispatch_input in = input(m);
    if (weighted) in.topk_weights = m->weights;
    REQUIRE_CUDA(cudaSetDevice(m->config.device));
    REQUIRE_OK(epw_prefill_dispatch(m->prefill, m->routing, &in, EPW_ROUTE_NEW, half, NULL, NULL));
}

/* The second one. */
static void receive(const member *m, uint64_t capacity) {
    epw_prefill_output out = output(m, capacity);
    REQUIRE_CUDA(cudaSetDevice(m->config.device));
    REQUIRE_OK(epw_prefill_receive(m->prefill, m->routing, &out, NULL));
}

static void capture(member *m) {
    REQUIRE_CUDA(cudaSetDevice(m->config.device));
    step_capture(m->stream);
    dispatch(m, ROWS);
    m->whole = step_captured(m->stream);
    step_capture(m->stream);
    dispatch(m, FEW);
    m->few = step_captured(m->stream);
}

static void await_all(const char *what) {
    for (uint32_t r = 0; r < RANKS; r++) await_stream(members[r].stream, 60000 * MS, what);
}

/* By the first `ranks` ranks. */
static void replay(uint32_t ranks, bool few, uint32_t times, const char *what) {
    for (uint32_t i = 0; i < times; i++) {
        for (uint32_t r = 0; r < ranks; r++) {
            const member *m = &members[r];
            REQUIRE_CUDA(cudaSetDevice(m->config.device));
            REQUIRE_CUDA(cudaGraphLaunch(few ? m->few : m->whole, m->stream));
        }
        await_all(what);
    }
}

/* ---- records ---- */

static void require_taken(uint32_t rank, uint32_t count, uint64_t lost, const char *what) {
    uint32_t taken = 0;
    uint64_t dropped = 99;
    REQUIRE_OK(epw_prefill_take_errors(members[rank].prefill, records, sizeof(epw_error_record), RECORDS,
                                       &taken, &dropped));
    REQUIRE(taken == count && dropped == lost, "%s: rank %u: %u records, %llu lost; first cause %u, peer %u",
            what, rank, taken, (unsigned long long)dropped, records[0].cause, records[0].peer);
}

static void require_none(const char *what) {
    for (uint32_t r = 0; r < RANKS; r++) require_taken(r, 0, 0, what);
}

/* Of a record of the rank: all of it, but for the words of a wait. */
static void require_record(const epw_error_record *r, epw_error_record want, const char *what) {
    REQUIRE(r->cause == want.cause && r->phase == want.phase && r->rank == want.rank && r->peer == want.peer,
            "%s: cause %u, phase %u, rank %u, peer %u", what, r->cause, r->phase, r->rank, r->peer);
    REQUIRE(r->lane == 0 && r->epoch == want.epoch && r->op == want.op && r->deadline_ns == 2000 * MS,
            "%s: lane %u, epoch %u, op %u, deadline %llu", what, r->lane, r->epoch, r->op,
            (unsigned long long)r->deadline_ns);
    REQUIRE(want.cause == EPW_CAUSE_TIMEOUT || (r->expected == want.expected && r->seen == want.seen),
            "%s: expected %llx, seen %llx", what, (unsigned long long)r->expected,
            (unsigned long long)r->seen);
}

/* Of the bad id at an entry of rank 0. */
static epw_error_record bad_id(uint32_t entry, uint32_t epoch, uint32_t op) {
    return (epw_error_record){.cause = EPW_CAUSE_ROUTING,
                              .phase = EPW_PHASE_DISPATCH_SEND,
                              .epoch = epoch,
                              .op = op,
                              .expected = (uint64_t)(entry / RANKS) << 32 | entry % RANKS,
                              .seen = BAD_ID + entry};
}

static epw_error_record overflow(uint32_t rank, uint32_t op) {
    return (epw_error_record){.cause = EPW_CAUSE_OVERFLOW,
                              .phase = EPW_PHASE_DISPATCH_RECEIVE,
                              .rank = rank,
                              .peer = rank,
                              .epoch = 1,
                              .op = op,
                              .expected = ROWS,
                              .seen = FEW};
}

/* ---- cases ---- */

static void replays(uint32_t gpus) {
    uint32_t op = 0;
    open_all(gpus);
    for (uint32_t r = 0; r < RANKS; r++) capture(&members[r]);
    route(TOKENS, 0);
    replay(RANKS, false, 2, "complete replays");
    require_none("complete replays");
    op += 2;

    route(TOKENS, 1);
    replay(RANKS, false, REPLAYS, "a bad id");
    require_taken(0, REPLAYS, 0, "a bad id");
    require_taken(1, 0, 0, "a bad id of the other rank");
    for (uint32_t i = 0; i < REPLAYS; i++) require_record(&records[i], bad_id(BAD, 1, ++op), "a bad id");
    route(TOKENS, 0);
    replay(RANKS, false, 1, "good ids again");
    require_none("good ids again");
    op++;

    replay(RANKS, true, REPLAYS, "overflow");
    for (uint32_t r = 0; r < RANKS; r++) {
        require_taken(r, REPLAYS, 0, "overflow");
        for (uint32_t i = 0; i < REPLAYS; i++)
            require_record(&records[i], overflow(r, op + 1 + i), "overflow");
    }
    op += REPLAYS;
    route(FEW / RANKS, 0);
    replay(RANKS, true, 1, "room for fewer");
    require_none("room for fewer");
    op++;

    replay(1, false, REPLAYS, "a rank that has stopped"); /* only the first of them waits */
    require_taken(0, 1, 0, "a rank that has stopped");
    require_record(&records[0],
                   (epw_error_record){.cause = EPW_CAUSE_TIMEOUT,
                                      .phase = EPW_PHASE_DISPATCH_RECEIVE,
                                      .peer = 1,
                                      .epoch = 1,
                                      .op = op + 1},
                   "a rank that has stopped");
    require_taken(1, 0, 0, "the one that has");

    activate(2);
    replay(RANKS, false, 1, "the next epoch");
    require_none("the next epoch");
    route(TOKENS, 1);
    replay(RANKS, false, 1, "a bad id of the next epoch");
    require_taken(0, 1, 0, "a bad id of the next epoch");
    require_record(&records[0], bad_id(BAD, 2, 2), "a bad id of the next epoch");
    close_all();
}

/* More bad ids than an operation records, and more records than the ring has room for. */
static void many(uint32_t gpus) {
    enum { TOO_MANY = NOTES + 6, OPERATIONS = 5 };
    open_all(gpus);
    route(TOKENS, TOO_MANY);
    for (uint32_t i = 0; i <= OPERATIONS; i++) {
        for (uint32_t r = 0; r < RANKS; r++) dispatch(&members[r], ROWS);
        await_all("many bad ids");
        if (i > 0) continue;
        bool seen[ENTRIES] = {false};
        require_taken(0, NOTES, TOO_MANY - NOTES, "many bad ids");
        for (uint32_t k = 0; k < NOTES; k++) { /* in any order */
            uint64_t entry = records[k].seen - BAD_ID;
            REQUIRE(entry >= BAD && entry < BAD + TOO_MANY && !seen[entry], "entry %llu",
                    (unsigned long long)entry);
            seen[entry] = true;
            require_record(&records[k], bad_id((uint32_t)entry, 1, 1), "many bad ids");
        }
    }
    require_taken(0, RING, OPERATIONS * TOO_MANY - RING, "a full ring");
    for (uint32_t k = 0; k < RING; k++)
        REQUIRE(records[k].op == 2 + (OPERATIONS * NOTES - RING + k) / NOTES, "record %u is of operation %u",
                k, records[k].op);
    require_none("a ring that was emptied");
    close_all();
}

/* How the rank's last dispatch has ended: complete, or for this reason. */
static void require_complete(uint32_t rank, const char *what) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    REQUIRE_OK(epw_prefill_poll(members[rank].prefill, members[rank].routing, &outcome));
    REQUIRE(!outcome.degraded, "%s: rank %u: cause %u, peer %u", what, rank, outcome.record.cause,
            outcome.record.peer);
}

static void require_outcome(uint32_t rank, uint64_t missing, epw_error_record want, const char *what) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    REQUIRE_OK(epw_prefill_poll(members[rank].prefill, members[rank].routing, &outcome));
    REQUIRE(outcome.degraded && outcome.missing.bits[0] == missing, "%s: rank %u: degraded %u, missing %llx",
            what, rank, outcome.degraded, (unsigned long long)outcome.missing.bits[0]);
    require_record(&outcome.record, want, what);
}

/* Only of the sources in the mask. */
static void require_came(uint32_t rank, uint64_t sources, const char *what) {
    uint32_t came[RANKS];
    REQUIRE_CUDA(cudaMemcpy(came, members[rank].came, sizeof came, cudaMemcpyDeviceToHost));
    for (uint32_t s = 0; s < RANKS; s++)
        REQUIRE(came[s] == (sources >> s & 1 ? TOKENS : 0), "%s: rank %u: %u rows of rank %u", what, rank,
                came[s], s);
}

/* A bad id of rank 0. Each half records what it finds; the outcome tells first of rows without a place. */
static void bad_in_half(uint32_t half, uint64_t capacity, uint32_t op) {
    route(TOKENS, 1);
    for (uint32_t r = 0; r < RANKS; r++) begin(&members[r], half, false);
    await_all("first halves");
    require_taken(0, 1, 0, "a first half");
    require_record(&records[0], bad_id(BAD, 1, op), "a first half");
    for (uint32_t r = 0; r < RANKS; r++) receive(&members[r], capacity);
    await_all("second halves");
    for (uint32_t r = 0; r < RANKS; r++) {
        epw_error_record over = overflow(r, op);
        over.expected -= r == BAD % RANKS; /* the token does not go there */
        bool overflows = over.expected > capacity;
        require_taken(r, overflows, 0, "a second half");
        if (overflows) require_record(&records[0], over, "a second half");
        if (overflows) {
            require_outcome(r, 0, over, "a second half without room");
        } else if (r == 0) {
            require_outcome(r, 0, bad_id(BAD, 1, op), "a bad id of a first half");
        } else {
            require_complete(r, "the rank without a bad id");
        }
    }
    require_none("after halves");
}

/* Rank 1 sends rows of another format, which counts alone tell, and does so in the next dispatch no longer.
 */
static void formats_in_half(uint32_t half, uint32_t op) {
    route(TOKENS, 0);
    for (uint32_t r = 0; r < RANKS; r++) begin(&members[r], half, r == 1);
    await_all("first halves of two formats");
    for (uint32_t r = 0; r < RANKS; r++) receive(&members[r], ROWS);
    await_all("second halves of two formats");
    for (uint32_t r = 0; r < RANKS; r++) {
        epw_error_record want = {.cause = EPW_CAUSE_FORMAT,
                                 .phase = EPW_PHASE_DISPATCH_RECEIVE,
                                 .rank = r,
                                 .peer = 1 - r,
                                 .epoch = 1,
                                 .op = op};
        require_taken(r, 1, 0, "another format");
        require_record(&records[0], want, "another format");
        require_outcome(r, 1 << (1 - r), want, "another format");
        require_came(r, 1 << r, "another format");
    }
    for (uint32_t r = 0; r < RANKS; r++) begin(&members[r], half, false);
    for (uint32_t r = 0; r < RANKS; r++) receive(&members[r], ROWS);
    await_all("halves of one format");
    for (uint32_t r = 0; r < RANKS; r++) {
        require_complete(r, "one format");
        require_came(r, 3, "one format");
    }
    require_none("one format");
}

/* Rank 1 stops. The half that has found it is the one that records it. */
static void silent_in_half(uint32_t op) {
    epw_error_record want = {
        .cause = EPW_CAUSE_TIMEOUT, .phase = EPW_PHASE_DISPATCH_RECEIVE, .peer = 1, .epoch = 1, .op = op};
    begin(&members[0], EPW_HALF_COUNTS, false);
    await_all("a first half without a peer");
    require_taken(0, 1, 0, "a first half without a peer");
    require_record(&records[0], want, "a first half without a peer");
    receive(&members[0], ROWS);
    await_all("a second half without a peer");
    require_none("a second half without a peer");
    require_outcome(0, 2, want, "a second half without a peer");
    require_came(0, 1, "a second half without a peer");
}

/* Calls have records as well as outcomes. */
static void halves(uint32_t gpus) {
    static const uint32_t firsts[] = {EPW_HALF_SENDS, EPW_HALF_COUNTS};
    uint32_t op = 0;
    open_all(gpus);
    for (uint32_t i = 0; i < 2; i++) {
        bad_in_half(firsts[i], FEW, ++op);
        bad_in_half(firsts[i], ROWS, ++op);
        formats_in_half(firsts[i], ++op);
        op++;
    }
    silent_in_half(++op);
    close_all();
}

/* A token's values, of which the sum of two is exact. */
static uint16_t value(uint32_t t) {
    return (uint16_t)(0x3f80 + 8 * (t % 8));
}

/* `out` NULL: the first half of it. */
static epw_status combine(const member *m, const epw_prefill_combine_output *out) {
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    in.expert_out = m->rows;
    in.stream = m->stream;
    REQUIRE_CUDA(cudaSetDevice(m->config.device));
    return epw_prefill_combine(m->prefill, m->routing, &in, out, NULL);
}

static epw_status begin_combine(const member *m) {
    return combine(m, NULL);
}

static void collect(const member *m) {
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    out.out = m->x;
    out.stream = m->stream;
    REQUIRE_CUDA(cudaSetDevice(m->config.device));
    REQUIRE_OK(epw_prefill_collect(m->prefill, m->routing, &out, NULL));
}

static void require_limit(const member *m, const char *words) {
    REQUIRE(begin_combine(m) == EPW_ERR_LIMIT && strstr(epw_last_error(), words) != NULL, "%s",
            epw_last_error());
}

/* Sums of the first `tokens` tokens, each of which came back from every rank; of the others, zeros. */
static void require_sums(const member *m, uint32_t tokens) {
    static uint16_t sums[TOKENS * HIDDEN];
    REQUIRE_CUDA(cudaMemcpy(sums, m->x, sizeof sums, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) {
        uint32_t t = i / HIDDEN,
                 want = t < tokens ? value(t) + 0x80u : 0; /* twice the value: the next exponent */
        REQUIRE(sums[i] == want, "token %u: %x, not %x", t, sums[i], want);
    }
}

static void give_values(const member *m) {
    static uint16_t x[TOKENS * HIDDEN];
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) x[i] = value(i / HIDDEN);
    REQUIRE_CUDA(cudaSetDevice(m->config.device));
    REQUIRE_CUDA(cudaMemcpy(m->x, x, sizeof x, cudaMemcpyHostToDevice));
}

/* A combine of a buffer whose rings do not hold all answers that can be is split if they hold those that
 * there are, once the host knows their number. */
static void split(uint32_t gpus) {
    enum { HELD = 8 };
    ring = HELD + 1;
    open_all(gpus);
    for (uint32_t tokens = HELD; tokens <= HELD + 1; tokens++) {
        route(tokens, 0);
        for (uint32_t r = 0; r < RANKS; r++) {
            give_values(&members[r]);
            dispatch(&members[r], ROWS);
        }
        await_all("dispatches");
        for (uint32_t r = 0; r < RANKS; r++) {
            member *m = &members[r];
            step_capture(m->stream); /* replays may come behind a dispatch of more rows */
            require_limit(m, "up to 40 answers go to it");
            require_limit(m, "await the dispatch");
            REQUIRE_CUDA(cudaGraphExecDestroy(step_captured(m->stream)));
            if (tokens > HELD) {
                require_limit(m, r == 0 ? "peer 1: up to 9 answers" : "peer 0: up to 9 answers");
            } else {
                REQUIRE_OK(begin_combine(m));
            }
        }
        for (uint32_t r = 0; r < RANKS && tokens == HELD; r++) collect(&members[r]);
        await_all("sums");
        for (uint32_t r = 0; r < RANKS && tokens == HELD; r++) require_sums(&members[r], tokens);
    }
    close_all();
}

/* A dispatch of both ranks, `weighted`: with weights of rank 1 alone. Each refuses the rows of the other. */
static void refuse_each_other(uint32_t route, bool weighted, uint32_t cause) {
    for (uint32_t r = 0; r < RANKS; r++) dispatch_as(&members[r], route, weighted && r == 1, ROWS);
    await_all("rows that are refused");
    for (uint32_t r = 0; r < RANKS; r++) {
        epw_outcome outcome = EPW_OUTCOME_INIT;
        REQUIRE_OK(epw_prefill_poll(members[r].prefill, members[r].routing, &outcome));
        REQUIRE(outcome.missing.bits[0] == 1u << (1 - r) && outcome.record.cause == cause,
                "rank %u refuses: missing %llx, cause %u", r, (unsigned long long)outcome.missing.bits[0],
                outcome.record.cause);
        require_came(r, 1 << r, "rows that are refused");
    }
}

/* A routing is used again after a dispatch from which a source was missing: with all rows, if that dispatch
 * used the routing again too; and without those of the source, if the dispatch was to fill the routing. */
static void again(uint32_t gpus) {
    open_all(gpus);
    route(TOKENS, 0);
    for (uint32_t r = 0; r < RANKS; r++) dispatch(&members[r], ROWS);
    refuse_each_other(EPW_ROUTE_AGAIN, true, EPW_CAUSE_FORMAT);
    for (uint32_t r = 0; r < RANKS; r++) {
        give_values(&members[r]);
        dispatch_as(&members[r], EPW_ROUTE_AGAIN, false, ROWS);
    }
    await_all("a routing used again");
    for (uint32_t r = 0; r < RANKS; r++) {
        require_complete(r, "a routing used again");
        require_came(r, 3, "a routing used again");
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
        out.out = members[r].x;
        REQUIRE_OK(combine(&members[r], &out));
    }
    await_all("sums");
    for (uint32_t r = 0; r < RANKS; r++) {
        require_complete(r, "sums");
        require_sums(&members[r], TOKENS);
    }
    refuse_each_other(EPW_ROUTE_NEW, true, EPW_CAUSE_FORMAT);
    refuse_each_other(EPW_ROUTE_AGAIN, false, EPW_CAUSE_PARTIAL);
    refuse_each_other(EPW_ROUTE_AGAIN, false, EPW_CAUSE_PARTIAL);
    close_all();
}

/* Two routings with the same tokens but other entries, of which each rank uses another one again. */
static void mixed(uint32_t gpus) {
    epw_routing *others[RANKS];
    open_all(gpus);
    for (uint32_t first = 0; first < RANKS; first++) {
        route_from(first, TOKENS, 0);
        for (uint32_t r = 0; r < RANKS; r++) {
            if (first == 1) {
                others[r] = members[r].routing;
                REQUIRE_OK(epw_routing_create(members[r].prefill, &members[r].routing));
            }
            dispatch(&members[r], ROWS);
        }
        await_all("a routing");
    }
    epw_routing *second = members[0].routing;
    members[0].routing = others[0];
    refuse_each_other(EPW_ROUTE_AGAIN, false, EPW_CAUSE_FORMAT);
    epw_routing_free(second);
    epw_routing_free(others[1]);
    close_all();
}

/* As if so many messages of the epoch had been written and read on every ring of the rank. */
static void pass_messages(uint32_t rank, uint32_t epoch, uint64_t messages) {
    const epw_prefill *p = members[rank].prefill;
    const epw_prefill_layout *l = &p->layout;
    epw_prefill_gpu_state *state = p->gpu->lanes[0].args.state;
    for (uint32_t i = 0; i < 2 * RANKS; i++) {
        uint32_t peer = i / 2, kind = i % 2;
        epw_prefill_rings passed = {messages, messages};
        REQUIRE_CUDA(cudaMemcpy(&state->peers[peer].rings[kind], &passed, sizeof passed, cudaMemcpyDefault));
        for (uint64_t number = messages - l->slots; number < messages; number++) {
            uint64_t word = epw_count_word(epw_epoch_word(epoch, 0), number + 1);
            const uint32_t areas[] = {EPW_FLAGS_WRITTEN, EPW_FLAGS_READ, EPW_FLAGS_NOTED};
            for (uint32_t a = 0; a < 3; a++)
                REQUIRE_CUDA(cudaMemcpy(epw_peers_own(&p->peers) +
                                            epw_flag_offset(l, 0, areas[a] + kind, peer, number),
                                        &word, sizeof word, cudaMemcpyDefault));
        }
    }
    REQUIRE_CUDA(cudaStreamSynchronize(NULL));
}

/* Counts of messages have 41 bits, which last for a day of large operations. The wrap falls on every third
 * message of an operation once. */
static void wraps(uint32_t gpus) {
    ring = 7;
    open_all(gpus);
    route(TOKENS, 0);
    for (uint32_t before = 0; before <= TOKENS + 2; before += 3) {
        uint32_t epoch = before + 2;
        activate(epoch);
        for (uint32_t r = 0; r < RANKS; r++) pass_messages(r, epoch, EPW_STEP_MAX + 1 - before);
        for (uint32_t operation = 0; operation < 2; operation++) {
            for (uint32_t r = 0; r < RANKS; r++) dispatch(&members[r], ROWS);
            await_all("messages that wrap around");
            for (uint32_t r = 0; r < RANKS; r++) {
                require_complete(r, "a dispatch whose messages wrap around");
                require_came(r, 3, "a dispatch whose messages wrap around");
            }
            for (uint32_t r = 0; r < RANKS; r++) {
                epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
                out.out = members[r].x;
                REQUIRE_OK(combine(&members[r], &out));
            }
            await_all("answers that wrap around");
            for (uint32_t r = 0; r < RANKS; r++) require_complete(r, "a combine whose answers wrap around");
        }
    }
    close_all();
}

static const gpu_case cases[] = {
    {"replays", replays, 1, 120}, {"many", many, 1, 60},   {"halves", halves, 1, 60}, {"split", split, 1, 60},
    {"again", again, 1, 60},      {"mixed", mixed, 1, 60}, {"wraps", wraps, 1, 60}};

int main(int argc, char **argv) {
    return cases_main("prefill_errors", cases, sizeof cases / sizeof cases[0], argc, argv);
}
