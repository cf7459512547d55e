/* Prefill whose ranks are killed or stopped at random moments: while rows are counted, wait for a slot of a
 * ring, travel, or are answered; in calls, between or in halves, in a second dispatch of a routing and its
 * combine of narrower rows, and in replays of a graph. Each rank is a process; the process started by hand
 * tells them what to do, strikes one, and brings in a replacement. Survivors must see that each operation
 * ends within its deadlines and lacks that rank alone, whose rows leave their places to nobody; that rows and
 * tokens of other ranks are complete and exact in every step, and that each sum says whom it lacks; and that
 * what they do is exact without the lost rank, beside it while it continues, and with its replacement. Exit
 * code 77, with the reason, if there is no GPU. */
#include "echo.h"
#include "step.h"
#include "strikes.h"

#include <stdbool.h>

enum { TOPK = 2, LOCAL = 3, HIDDEN = 256, NARROW = 128, RECORDS = 16 };

/* ---- kinds of steps ---- */

enum { WHOLE, COUNTED, HALVES, REPLAYED };

typedef struct kind {
    uint32_t how;
    bool again; /* then other rows go to the same places */
} kind;

enum { KINDS = 6 };
static const kind kinds[KINDS] = {{WHOLE, false}, {COUNTED, false}, {HALVES, false},
                                  {WHOLE, true},  {HALVES, true},   {REPLAYED, true}};
static const char *const names[KINDS + 1] = {"whole", "counted",      "halves",
                                             "again", "again-halves", "replays"};

static uint32_t most_tokens = 64, ring_slots = 4;
static strike_options options = {
    .strikes = 12, .seed = 1, .steps = 60, .after = 8, .within_us = 6000, .seconds = 500};

static const ranks_option named[] = {
    STRIKE_OPTIONS(options), {"--tokens", .number = &most_tokens}, {"--ring", .number = &ring_slots}, {0}};

static const char usage[] = "prefill_failure " STRIKE_USAGE "\n       [--tokens N] [--ring N (slots)]\n"
                            "kinds: whole, counted, halves, again, again-halves, replays";

/* ---- a rank ---- */

/* Memory of the GPU, and as much that is pinned. */
typedef struct array {
    void *gpu, *host;
    size_t bytes;
} array;

/* Of a dispatch and its combine; from ROWS on they are outputs. */
enum {
    X,
    ROWS,
    COUNTS,
    SOURCE_COUNTS,
    ROW_EXPERT,
    ROW_SOURCE,
    ROW_TOKEN,
    SUMS,
    CONTRIBUTIONS,
    LACKS,
    ARRAYS
};
typedef struct pass {
    array at[ARRAYS];
    uint64_t missing[2]; /* in the dispatch, and in the combine */
} pass;

typedef struct member {
    epw_prefill_config config;
    epw_prefill *prefill;
    epw_routing *routing, *captured;
    cudaStream_t stream;
    cudaGraphExec_t graph; /* of both passes, replayed in every epoch and with every peer */
    uint64_t members;
    pass passes[2]; /* the second one uses the routing again */
    array ids, weights[2];
    unsigned char *narrow; /* the first NARROW columns of rows */
    uint64_t capacity;
} member;

/* What all ranks do at the same time. */
typedef struct step {
    uint64_t number, lost; /* ranks that may be lost in it */
    uint32_t kind, tokens, rank;
} step;

static array both(size_t bytes) {
    array a = {.gpu = echo_take(bytes, 0), .bytes = bytes};
    REQUIRE_CUDA(cudaHostAlloc(&a.host, bytes, cudaHostAllocDefault));
    return a;
}

/* Of all entries the same: a sum of both is the token, in the second pass half of it. */
static array weights(float weight) {
    array a = both(most_tokens * TOPK * sizeof weight);
    for (uint32_t i = 0; i < most_tokens * TOPK; i++) ((float *)a.host)[i] = weight;
    REQUIRE_CUDA(cudaMemcpy(a.gpu, a.host, a.bytes, cudaMemcpyHostToDevice));
    return a;
}

static void create(member *m, const rank_links *links) {
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    const size_t n = most_tokens;
    epw_config *ep = &m->config.ep;
    m->config = (epw_prefill_config)EPW_PREFILL_CONFIG_INIT;
    ep->rank = links->rank;
    ep->ranks = links->ranks;
    ep->max_tokens = most_tokens;
    ep->hidden = HIDDEN;
    ep->experts = LOCAL * links->ranks;
    ep->topk = TOPK;
    ep->sms = ranks_sms(links, 1, 8);
    ep->device = ranks_gpu(links);
    ep->deadline_ns = options.deadline_ms * MS;
    m->config.ring_tokens = ring_slots; /* few: a slot is filled many times in an operation */
    ranks_path(ep);
    REQUIRE_OK(epw_prefill_create(&m->config, &m->prefill));
    REQUIRE_OK(epw_routing_create(m->prefill, &m->routing));
    REQUIRE_OK(epw_routing_create(m->prefill, &m->captured));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
    m->capacity = links->ranks * n * TOPK;
    for (uint32_t p = 0; p < 2; p++) {
        const size_t bytes[ARRAYS] = {[X] = n * HIDDEN * 2,           [ROWS] = m->capacity * HIDDEN * 2,
                                      [COUNTS] = LOCAL * 4,           [SOURCE_COUNTS] = links->ranks * 4,
                                      [ROW_EXPERT] = m->capacity * 4, [ROW_SOURCE] = m->capacity * 4,
                                      [ROW_TOKEN] = m->capacity * 4,  [SUMS] = n * HIDDEN * 2,
                                      [CONTRIBUTIONS] = n * 4,        [LACKS] = n * 4};
        for (uint32_t a = 0; a < ARRAYS; a++) m->passes[p].at[a] = both(bytes[a]);
        m->weights[p] = weights(p == 0 ? 0.5f : 0.25f);
    }
    m->ids = both(n * TOPK * 4);
    m->narrow = echo_take(m->capacity * NARROW * 2, 0);
}

/* ---- what goes where ---- */

static uint32_t owner(int32_t id) {
    return (uint32_t)id / LOCAL;
}

/* Two different experts of members, which every rank can work out. */
static void route(const member *m, const step *s, uint32_t source, uint32_t token, int32_t ids[TOPK]) {
    uint64_t random =
        strikes_mix(options.seed * UINT64_C(1000003) + s->number, (uint64_t)source << 32 | token);
    for (uint32_t k = 0; k < TOPK; k++) {
        do {
            random = traffic_mix(random + 1);
            ids[k] = (int32_t)(random % m->config.ep.experts);
        } while (!(m->members & bit(owner(ids[k]))) || (k == 1 && ids[1] == ids[0]));
    }
}

/* A bf16 from 1 to 2 of each channel: halves and quarters of it are exact. */
static uint16_t value(uint64_t row, uint32_t channel) {
    return (uint16_t)(0x3f80 + ((row >> channel % 8 * 7 ^ channel) & 0x7f));
}
static uint64_t row_of(const step *s, uint32_t p, uint32_t source, uint32_t token) {
    return strikes_mix(s->number * 2 + p, (uint64_t)source << 32 | token);
}

static void make_tokens(const member *m, const step *s) {
    int32_t *ids = m->ids.host;
    for (uint32_t t = 0; t < s->tokens; t++) {
        route(m, s, s->rank, t, &ids[t * TOPK]);
        for (uint32_t p = 0; p < 2; p++) {
            uint16_t *x = m->passes[p].at[X].host;
            uint64_t row = row_of(s, p, s->rank, t);
            for (uint32_t c = 0; c < HIDDEN; c++) x[t * HIDDEN + c] = value(row, c);
        }
    }
}

static void up(const member *m, const array *a) {
    REQUIRE_CUDA(cudaMemcpyAsync(a->gpu, a->host, a->bytes, cudaMemcpyHostToDevice, m->stream));
}

/* Outputs say nothing that is true until they are written. */
static void prepare(const member *m, const step *s) {
    make_tokens(m, s);
    up(m, &m->ids);
    for (uint32_t p = 0; p < 2; p++) {
        const array *at = m->passes[p].at;
        up(m, &at[X]);
        for (uint32_t a = X + 1; a < ARRAYS; a++)
            REQUIRE_CUDA(cudaMemsetAsync(at[a].gpu, 0x5a, at[a].bytes, m->stream));
    }
    await_stream(m->stream, 40 * options.deadline_ms * MS, "tokens");
}

/* ---- operations ---- */

static epw_dispatch_input input(const member *m, const step *s, uint32_t p) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = s->tokens;
    in.x = m->passes[p].at[X].gpu;
    in.topk_idx = m->ids.gpu;
    in.topk_weights = m->weights[p].gpu;
    in.topk = TOPK;
    in.lane = p > 0 ? -1 : kinds[s->kind].how == REPLAYED ? 0 : (int32_t)(s->number % m->config.ep.lanes);
    in.stream = m->stream;
    return in;
}

static epw_prefill_output output(const member *m, uint32_t p) {
    const array *at = m->passes[p].at;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    out.layout = EPW_PACKED;
    out.alignment = 1;
    out.capacity = m->capacity;
    out.rows = at[ROWS].gpu;
    out.counts = at[COUNTS].gpu;
    out.source_counts = at[SOURCE_COUNTS].gpu;
    out.row_expert = at[ROW_EXPERT].gpu;
    out.row_source = at[ROW_SOURCE].gpu;
    out.row_token = at[ROW_TOKEN].gpu;
    out.stream = m->stream;
    return out;
}

static epw_prefill_combine_input answers(const member *m, const step *s, uint32_t p) {
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    bool halves = kinds[s->kind].how == HALVES; /* the rings must hold all answers */
    bool ordered = kinds[s->kind].how == REPLAYED ? p == 1 : !halves && (s->number + p) % 3 == 0;
    if (ordered && ring_slots >= TOPK) in.mode = EPW_COMBINE_ORDERED;
    in.expert_out = p == 0 ? m->passes[p].at[ROWS].gpu : m->narrow;
    in.width = p == 0 ? HIDDEN : NARROW;
    in.stream = m->stream;
    return in;
}

static epw_prefill_combine_output sums(const member *m, uint32_t p) {
    const array *at = m->passes[p].at;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    out.out = at[SUMS].gpu;
    out.contributions = at[CONTRIBUTIONS].gpu;
    out.lacks = at[LACKS].gpu;
    out.stream = m->stream;
    return out;
}

/* Waits for the first half of an operation, and a moment longer. */
static void await_half(const member *m, const step *s, const char *what) {
    await_stream(m->stream, 40 * options.deadline_ms * MS, what);
    nanosleep(&(struct timespec){0, (long)(strikes_mix(s->number, s->rank) % 100000)}, NULL);
}

static void dispatch(const member *m, epw_routing *routing, const step *s, uint32_t p) {
    const uint32_t how = kinds[s->kind].how, route = p == 0 ? EPW_ROUTE_NEW : EPW_ROUTE_AGAIN;
    const epw_dispatch_input in = input(m, s, p);
    const epw_prefill_output out = output(m, p);
    const bool counts = how == COUNTED && p == 0, split = counts || how == HALVES;
    REQUIRE_OK(epw_prefill_dispatch(m->prefill, routing, &in, route,
                                    counts ? EPW_HALF_COUNTS : EPW_HALF_SENDS, split ? NULL : &out, NULL));
    if (!split) return;
    await_half(m, s, "the first half of a dispatch");
    uint64_t rows = 0;
    if (counts) REQUIRE_OK(epw_prefill_received(m->prefill, routing, EPW_PACKED, 1, &rows, NULL, NULL));
    REQUIRE(rows <= m->capacity, "%llu rows", (unsigned long long)rows);
    REQUIRE_OK(epw_prefill_receive(m->prefill, routing, &out, NULL));
}

static void combine(const member *m, epw_routing *routing, const step *s, uint32_t p) {
    const bool split = kinds[s->kind].how == HALVES;
    const epw_prefill_combine_input in = answers(m, s, p);
    const epw_prefill_combine_output out = sums(m, p);
    if (p > 0)
        REQUIRE_CUDA(cudaMemcpy2DAsync(m->narrow, NARROW * 2, m->passes[p].at[ROWS].gpu, HIDDEN * 2,
                                       NARROW * 2, m->capacity, cudaMemcpyDeviceToDevice, m->stream));
    REQUIRE_OK(epw_prefill_combine(m->prefill, routing, &in, split ? NULL : &out, NULL));
    if (!split) return;
    await_half(m, s, "the first half of a combine");
    REQUIRE_OK(epw_prefill_collect(m->prefill, routing, &out, NULL));
}

enum { OPERATIONS = 4 }; /* of a replay */

/* Once the rank is a member. */
static void capture(member *m) {
    const step s = {.kind = KINDS - 1, .tokens = most_tokens, .rank = m->config.ep.rank};
    step_capture(m->stream);
    for (uint32_t p = 0; p < OPERATIONS / 2; p++) {
        dispatch(m, m->captured, &s, p);
        combine(m, m->captured, &s, p);
    }
    m->graph = step_captured(m->stream);
}

/* Waits for what was enqueued, and returns the ranks that the operation lacks, which must be among those that
 * may be lost. */
static uint64_t end_operation(const member *m, const step *s, const char *what, uint64_t began,
                              uint64_t *slowest) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    await_stream(m->stream, 40 * options.deadline_ms * MS, what);
    uint64_t took = now_ns() - began;
    if (took > *slowest) *slowest = took;
    REQUIRE_OK(epw_prefill_poll(m->prefill, m->routing, &outcome));
    uint64_t missing = outcome.missing.bits[0];
    REQUIRE((missing & ~s->lost) == 0 && (missing != 0) == outcome.degraded,
            "rank %u, %s, %s: missing %llx, of which %llx may be lost; cause %u, peer %u", s->rank,
            names[s->kind], what, (unsigned long long)missing, (unsigned long long)s->lost,
            outcome.record.cause, outcome.record.peer);
    return missing;
}

static uint64_t suspects(const member *m) {
    epw_membership now = EPW_MEMBERSHIP_INIT;
    REQUIRE_OK(epw_prefill_membership(m->prefill, &now));
    return now.suspects.bits[0];
}

/* ---- what has come ---- */

static uint32_t experts_here(const step *s, const int32_t ids[TOPK]) {
    return (owner(ids[0]) == s->rank) + (owner(ids[1]) == s->rank);
}

/* What the routing of `source` says: its tokens for this rank; adds its rows to those of each expert. */
static uint32_t tokens_here(const member *m, const step *s, uint32_t source, uint32_t rows[LOCAL]) {
    uint32_t tokens = 0;
    for (uint32_t t = 0; t < s->tokens && (m->members & bit(source)); t++) {
        int32_t ids[TOPK];
        route(m, s, source, t, ids);
        tokens += experts_here(s, ids) > 0;
        for (uint32_t k = 0; k < TOPK; k++)
            if (owner(ids[k]) == s->rank) rows[(uint32_t)ids[k] % LOCAL]++;
    }
    return tokens;
}

/* Of every rank that is not missing each token is there, of one that is missing none, or in a replay, which
 * tells only of the end, perhaps all. */
static void check_counts(const member *m, const step *s, uint32_t p) {
    const array *at = m->passes[p].at;
    const uint32_t *counts = at[COUNTS].host, *of_source = at[SOURCE_COUNTS].host;
    const uint64_t missing = m->passes[p].missing[0];
    uint32_t least[LOCAL] = {0}, most[LOCAL] = {0};
    for (uint32_t source = 0; source < m->config.ep.ranks; source++) {
        const bool lost = missing >> source & 1;
        const uint32_t here = tokens_here(m, s, source, lost ? most : least), got = of_source[source];
        const bool may_be = kinds[s->kind].how == REPLAYED && got == here;
        REQUIRE(lost ? got == 0 || may_be : got == here,
                "rank %u, %s, pass %u: %u of %u tokens of rank %u, missing %llx", s->rank, names[s->kind], p,
                got, here, source, (unsigned long long)missing);
    }
    const bool several = (missing & (missing - 1)) != 0; /* some of them may have been counted */
    for (uint32_t e = 0; e < LOCAL; e++)
        REQUIRE(counts[e] == least[e] || counts[e] == least[e] + most[e] ||
                    (several && counts[e] > least[e] && counts[e] < least[e] + most[e]),
                "rank %u, %s, pass %u: %u places of expert %u, not %u or %u more", s->rank, names[s->kind], p,
                counts[e], e, least[e], most[e]);
}

static void check_row(const member *m, const step *s, uint32_t p, uint64_t place, uint32_t expert) {
    const array *at = m->passes[p].at;
    const int32_t source = ((int32_t *)at[ROW_SOURCE].host)[place],
                  token = ((int32_t *)at[ROW_TOKEN].host)[place];
    const uint16_t *row = (uint16_t *)at[ROWS].host + place * HIDDEN;
    const uint64_t want = row_of(s, p, (uint32_t)source, (uint32_t)token);
    int32_t ids[TOPK];
    route(m, s, (uint32_t)source, (uint32_t)token, ids);
    const int32_t id = (int32_t)(s->rank * LOCAL + expert);
    REQUIRE(ids[0] == id || ids[1] == id, "rank %u: token %d of rank %d has no expert %u", s->rank, token,
            source, expert);
    for (uint32_t c = 0; c < HIDDEN; c++)
        REQUIRE(row[c] == value(want, c), "rank %u, %s, pass %u: channel %u of token %d of rank %d is wrong",
                s->rank, names[s->kind], p, c, token, source);
}

/* The places of an expert, in the order of sources and tokens; those of nobody say so in each array. */
static void check_places(const member *m, const step *s, uint32_t p) {
    const array *at = m->passes[p].at;
    const uint32_t *counts = at[COUNTS].host, *of_source = at[SOURCE_COUNTS].host;
    const int32_t *sources = at[ROW_SOURCE].host, *tokens = at[ROW_TOKEN].host,
                  *experts = at[ROW_EXPERT].host;
    uint64_t first = 0;
    uint32_t rows = 0, want = 0;
    for (uint32_t source = 0; source < m->config.ep.ranks; source++) {
        uint32_t its[LOCAL] = {0};
        if (of_source[source] > 0) tokens_here(m, s, source, its);
        for (uint32_t e = 0; e < LOCAL; e++) want += its[e];
    }
    for (uint32_t e = 0; e <= LOCAL; e++) { /* behind the last one nobody has any */
        const uint64_t end = e < LOCAL ? first + counts[e] : m->capacity;
        int64_t before = -1;
        for (uint64_t place = first; place < end; place++) {
            const bool nobodys = sources[place] == -1 && tokens[place] == -1 && experts[place] == -1;
            if (nobodys) continue;
            const int64_t now = (int64_t)sources[place] << 32 | tokens[place];
            REQUIRE(experts[place] == (int32_t)e && e < LOCAL && now > before &&
                        (uint32_t)sources[place] < m->config.ep.ranks && of_source[sources[place]] > 0 &&
                        (uint32_t)tokens[place] < s->tokens,
                    "rank %u, %s, pass %u: place %llu, of expert %u: token %d of rank %d for expert %d",
                    s->rank, names[s->kind], p, (unsigned long long)place, e, tokens[place], sources[place],
                    experts[place]);
            before = now;
            check_row(m, s, p, place, e);
            rows++;
        }
        first = end;
    }
    REQUIRE(rows == want, "rank %u, %s, pass %u: %u rows, not %u", s->rank, names[s->kind], p, rows, want);
}

/* Rows of the second pass take the places of the first one, as far as their sources are still there. */
static void check_same_places(const member *m, const step *s) {
    const array *at = m->passes[0].at, *again = m->passes[1].at;
    const int32_t *sources = at[ROW_SOURCE].host, *tokens = at[ROW_TOKEN].host,
                  *sources_again = again[ROW_SOURCE].host, *tokens_again = again[ROW_TOKEN].host;
    REQUIRE(memcmp(at[COUNTS].host, again[COUNTS].host, at[COUNTS].bytes) == 0, "rank %u, %s: other counts",
            s->rank, names[s->kind]);
    for (uint64_t place = 0; place < m->capacity; place++)
        REQUIRE(sources_again[place] == -1 ||
                    (sources_again[place] == sources[place] && tokens_again[place] == tokens[place]),
                "rank %u, %s: place %llu: token %d of rank %d, then token %d of rank %d", s->rank,
                names[s->kind], (unsigned long long)place, tokens[place], sources[place], tokens_again[place],
                sources_again[place]);
}

/* Each sum lacks ranks that are missing, and says so; it has the others' answers. */
static void check_sums(const member *m, const step *s, uint32_t p) {
    const pass *at = &m->passes[p];
    const uint16_t *got = at->at[SUMS].host, *told = at->at[CONTRIBUTIONS].host;
    const uint32_t *lacks = at->at[LACKS].host, width = p == 0 ? HIDDEN : NARROW;
    const bool ordered = answers(m, s, p).mode == EPW_COMBINE_ORDERED;
    /* Of a rank that the dispatch has lost there are no answers. */
    const uint64_t may = at->missing[1], must = kinds[s->kind].how == REPLAYED ? 0 : at->missing[0];
    for (uint32_t t = 0; t < s->tokens; t++) {
        const int32_t *ids = (int32_t *)m->ids.host + t * TOPK;
        const uint64_t owners = bit(owner(ids[0])) | bit(owner(ids[1]));
        const uint32_t come = told[2 * t],
                       here = !(lacks[t] >> owner(ids[0]) & 1) + !(lacks[t] >> owner(ids[1]) & 1);
        /* In order a rank that is lacking may have given one of two answers. */
        const bool some = ordered && owner(ids[0]) == owner(ids[1]) && here == 0 && come == 1;
        REQUIRE((lacks[t] & ~(may & owners)) == 0 && (must & owners & ~(uint64_t)lacks[t]) == 0,
                "rank %u, %s, pass %u: token %u, of ranks %llx, lacks %x; missing %llx, then %llx", s->rank,
                names[s->kind], p, t, (unsigned long long)owners, lacks[t],
                (unsigned long long)at->missing[0], (unsigned long long)may);
        REQUIRE((come == here || some) && told[2 * t + 1] == TOPK,
                "rank %u, %s, pass %u: token %u has %u of %u answers and lacks %x", s->rank, names[s->kind],
                p, t, come, told[2 * t + 1], lacks[t]);
        const uint64_t row = row_of(s, p, s->rank, t);
        const uint32_t halved = p + (come == 1);
        for (uint32_t c = 0; c < width; c++)
            REQUIRE(got[t * width + c] == (come == 0 ? 0 : value(row, c) - (halved << 7)),
                    "rank %u, %s, pass %u: channel %u of token %u is wrong, of %u answers", s->rank,
                    names[s->kind], p, c, t, come);
    }
}

/* A kernel records the first peer that it loses, no peer is lost twice, and what has left no record is
 * complete. Returns the phases of records, and the ranks named in `peers`. */
static uint32_t take_records(const member *m, const step *s, uint64_t lost_now, uint64_t *peers) {
    epw_error_record records[RECORDS];
    uint32_t taken = 0, phases = 0;
    uint64_t dropped = 0;
    REQUIRE_OK(epw_prefill_take_errors(m->prefill, records, sizeof records[0], RECORDS, &taken, &dropped));
    for (uint32_t i = 0; i < taken; i++) {
        if (!(s->lost & bit(records[i].peer)))
            fprintf(
                stderr,
                "rank %u, %s: cause %u after %llu ms, phase %u, peer %u, lane %u, epoch %u, op %u, expected "
                "%llx, seen %llx\n",
                s->rank, names[s->kind], records[i].cause, (unsigned long long)(records[i].elapsed_ns / MS),
                records[i].phase, records[i].peer, records[i].lane, records[i].epoch, records[i].op,
                (unsigned long long)records[i].expected, (unsigned long long)records[i].seen);
        phases |= 1u << records[i].phase;
        *peers |= bit(records[i].peer);
    }
    if (s->lost & bit(s->rank)) return phases; /* it may lose several ranks, and itself */
    REQUIRE(dropped == 0 && taken <= 1 && *peers == lost_now,
            "rank %u, %s: %u records of ranks %llx, lost %llx", s->rank, names[s->kind], taken,
            (unsigned long long)*peers, (unsigned long long)lost_now);
    return phases;
}

/* ---- steps ---- */

static void run_replay(const member *m, uint64_t *slowest) {
    const uint64_t began = now_ns();
    REQUIRE_CUDA(cudaGraphLaunch(m->graph, m->stream));
    await_stream(m->stream, 40 * options.deadline_ms * MS, "a replay");
    const uint64_t took = (now_ns() - began) / OPERATIONS;
    if (took > *slowest) *slowest = took;
}

static void run_calls(member *m, const step *s, uint64_t *slowest) {
    for (uint32_t p = 0; p <= kinds[s->kind].again; p++) {
        uint64_t began = now_ns();
        dispatch(m, m->routing, s, p);
        m->passes[p].missing[0] =
            end_operation(m, s, p == 0 ? "dispatch" : "second dispatch", began, slowest);
        began = now_ns();
        combine(m, m->routing, s, p);
        m->passes[p].missing[1] = end_operation(m, s, p == 0 ? "combine" : "narrow combine", began, slowest);
    }
}

/* Returns the ranks that some operation lacked. A rank that was stopped may find that its blocks did not
 * begin in time: it lacks itself, and nothing is written. */
static uint64_t run_step(member *m, const step *s, uint64_t *slowest, uint32_t *phases) {
    const uint64_t before = suspects(m);
    const uint32_t end = 1 + kinds[s->kind].again;
    uint64_t missing = 0, recorded = 0;
    prepare(m, s);
    if (kinds[s->kind].how == REPLAYED) {
        run_replay(m, slowest);
    } else {
        run_calls(m, s, slowest);
    }
    const uint64_t now = suspects(m);
    *phases |= take_records(m, s, now & ~before, &recorded);
    for (uint32_t p = 0; p < end; p++) {
        pass *at = &m->passes[p];
        if (kinds[s->kind].how == REPLAYED) at->missing[0] = at->missing[1] = now | recorded;
        missing |= at->missing[0] | at->missing[1];
        for (uint32_t a = X + 1; a < ARRAYS; a++)
            REQUIRE_CUDA(cudaMemcpyAsync(at->at[a].host, at->at[a].gpu, at->at[a].bytes,
                                         cudaMemcpyDeviceToHost, m->stream));
    }
    await_stream(m->stream, 40 * options.deadline_ms * MS, "copies");
    REQUIRE((missing & ~s->lost) == 0, "rank %u, %s: missing %llx, of which %llx may be lost", s->rank,
            names[s->kind], (unsigned long long)missing, (unsigned long long)s->lost);
    for (uint32_t p = 0; p < end && !(missing & bit(s->rank)); p++) {
        check_counts(m, s, p);
        check_places(m, s, p);
        check_sums(m, s, p);
        if (p > 0) check_same_places(m, s);
    }
    return missing;
}

/* The ranks in `mask` may be lost; the answer has those that were, and in `cause` a bit for each phase of a
 * record. */
static void run_steps(member *m, message *in) {
    const uint64_t lost = in->mask;
    const uint32_t most = ring_slots - 1; /* tokens that are sent before any is received */
    in->mask = in->took_ns = 0;
    in->cause = 0;
    for (uint32_t i = 0; i < in->count; i++) {
        step s = {.number = in->iteration + i, .lost = lost, .kind = in->kind, .rank = m->config.ep.rank};
        if (s.kind == ANY_KIND) s.kind = (uint32_t)(strikes_mix(options.seed, s.number) % KINDS);
        s.tokens = kinds[s.kind].how == HALVES && most_tokens > most ? most : most_tokens;
        in->mask |= run_step(m, &s, &in->took_ns, &in->cause);
    }
}

static void obey(member *m, const rank_links *links, message *in) {
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
        if (m->graph == NULL) capture(m);
        break;
    case STEPS:
        run_steps(m, in);
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
    epw_routing_free(m.routing);
    epw_routing_free(m.captured);
    epw_prefill_destroy(m.prefill);
    epw_fabric_destroy(m.config.ep.fabric);
    return 0;
}

/* ---- main ---- */

int main(int argc, char **argv) {
    static strikes w;
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named, usage) != 0) return 2;
    if (ring_slots < 2) {
        fprintf(stderr, "a ring has at least 2 slots\n%s\n", usage);
        return 2;
    }
    int ended = strikes_main(&w, &options, names, member_main, "prefill_failure", argv);
    if (ended != 0 || w.epoch == 0) return ended;
    printf(
        "prefill_failure: OK ranks=%u strikes=%u, %u of them in the middle of steps, noticed in a dispatch "
        "%u and %u times (sent, received), in a combine %u and %u\n",
        w.crew.ranks, options.strikes, w.noticed, w.phases[EPW_PHASE_DISPATCH_SEND],
        w.phases[EPW_PHASE_DISPATCH_RECEIVE], w.phases[EPW_PHASE_COMBINE_SEND],
        w.phases[EPW_PHASE_COMBINE_RECEIVE]);
    return 0;
}
