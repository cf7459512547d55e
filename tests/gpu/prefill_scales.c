/* Scales of prefill by columns, which are stored one by one, against the same ones by rows, which are stored
 * in bulk where they can be: every layout, several payloads, alignments and capacities; in one
 * call, in halves, with a routing that is used again; with a rank that gives the operation up after it has
 * told its counts, with a row that is refused, and with rows that come twice while others do not come at all.
 * After each of these comes an operation that is whole. Ranks are threads of this process.
 *
 * `--ranks N`: 3 if not given; rank r has GPU r % GPUs. `--first N`, `--cases N`. Exit code 77, with the
 * reason, if there is no GPU. */
#include "ranks.h"
#include "require.h"
#include "traffic.h"

#include "../c/check.h"
#include "prefill/parts.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 70, TOPK = 2, LOCAL = 2, RANKS = 3, RANKS_MOST = 4, OPAQUE_ROW = 512, UNTOUCHED = 0x5a };

static struct {
    uint32_t ranks, first, cases, seconds;
} options = {.ranks = RANKS, .cases = 49, .seconds = 600};

/* What happens in the operation. */
typedef enum event {
    WHOLE,
    HALVES,
    COUNTED,  /* counts go first */
    AGAIN,    /* its routing is that of the operation before */
    GIVEN_UP, /* the last rank tells its counts, and gives up */
    REFUSED,  /* a row of the last rank to the first one is none */
    TWICE,    /* of its rows every second one has the place of another */
    ASTRAY,   /* the routing is used again, and its rows name other experts than before */
    EVENTS
} event;

typedef struct plan {
    uint32_t number, layout, payload, count, scale_bytes, elements, alignment;
    uint64_t capacity;
    event event;
    bool has_rows;
} plan;

static plan choose(uint32_t number, uint32_t ranks) {
    static const uint32_t layouts[] = {EPW_PACKED, EPW_EXPERT_MAJOR, EPW_DENSE, EPW_RANK_MAJOR};
    static const uint32_t payloads[] = {EPW_PAYLOAD_FP8_F32, EPW_PAYLOAD_FP8_UE8M0, EPW_PAYLOAD_OPAQUE};
    static const uint32_t counts[] = {56, 17, 80, 4, 33}, alignments[] = {1, 16, 128, 13};
    uint32_t turn = number / 4;
    plan p = {.number = number,
              .layout = layouts[number % 4],
              .payload = payloads[turn % 3],
              .count = counts[number % 5],
              .event = turn % EVENTS,
              .has_rows = number % 7 != 6};
    if (number == 48) { /* more scales than a kernel can divide among columns */
        p.payload = EPW_PAYLOAD_OPAQUE;
        p.count = 4500;
    }
    bool packed = p.payload == EPW_PAYLOAD_FP8_UE8M0;
    p.scale_bytes = packed ? 1 : 4;
    p.elements = packed ? (p.count + 3) / 4 : p.count;
    p.alignment = p.layout == EPW_PACKED ? alignments[(turn + number) % 4] : 0;
    uint64_t rows = (uint64_t)ranks * TOKENS;
    p.capacity = p.layout == EPW_PACKED ? rows * TOPK + LOCAL * p.alignment : rows;
    if (turn % 3 == 1 && p.layout != EPW_RANK_MAJOR) p.capacity = p.layout == EPW_EXPERT_MAJOR ? 55 : 101;
    return p;
}

static uint32_t below(uint64_t *state, uint32_t n) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(traffic_mix(*state) % n);
}

/* Those of rank `rank`. */
static void make_ids(const plan *p, uint32_t rank, uint32_t ranks, int32_t ids[TOKENS * TOPK]) {
    uint64_t s = p->number * 131 + rank;
    for (uint32_t t = 0; t < TOKENS; t++) {
        ids[t * TOPK] = (int32_t)below(&s, ranks * LOCAL);
        ids[t * TOPK + 1] =
            (ids[t * TOPK] + 1 + (int32_t)below(&s, ranks * LOCAL - 1)) % (int32_t)(ranks * LOCAL);
    }
}

/* ---- a rank ---- */

typedef struct rank {
    const plan *p;
    const rank_links *links;
    epw_prefill *prefill;
    epw_routing *routing;
    cudaStream_t stream;
    size_t places, lists, scale_bytes; /* of the output */
    unsigned char *x, *ids, *given, *rows, *scales, *sources;
} rank;

static unsigned char *take(size_t bytes) {
    void *at = NULL;
    REQUIRE_CUDA(cudaMalloc(&at, bytes));
    return at;
}
static unsigned char *take_random(size_t bytes, uint64_t seed) {
    unsigned char *on_host = malloc(bytes), *at = take(bytes);
    for (size_t i = 0; i < bytes; i++) on_host[i] = (unsigned char)(below(&seed, 64) + 16); /* finite */
    REQUIRE_CUDA(cudaMemcpy(at, on_host, bytes, cudaMemcpyHostToDevice));
    free(on_host);
    return at;
}

static void open_rank(rank *me) {
    const plan *p = me->p;
    uint32_t ranks = me->links->ranks, number = me->links->rank;
    bool opaque = p->payload == EPW_PAYLOAD_OPAQUE;
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_config *c = &config.ep;
    c->rank = number;
    c->ranks = ranks;
    c->experts = ranks * LOCAL;
    c->topk = TOPK;
    c->max_tokens = TOKENS;
    c->hidden = opaque ? 128 : p->count * 128;
    if (opaque) c->opaque_bytes = OPAQUE_ROW + p->count * 4;
    c->lanes = 1;
    c->deadline_ns = 60000 * MS;
    c->device = ranks_gpu(me->links);
    c->sms = ranks_sms(me->links, 1, 4);
    config.ring_tokens = p->event == WHOLE ? 9 : TOKENS + 1;
    REQUIRE_OK(epw_prefill_create(&config, &me->prefill));
    ranks_connect_prefill(me->links, me->prefill);
    REQUIRE_OK(epw_routing_create(me->prefill, &me->routing));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&me->stream, cudaStreamNonBlocking));
    me->lists = p->layout == EPW_EXPERT_MAJOR ? LOCAL : 1;
    me->places = me->lists * p->capacity;
    me->scale_bytes = me->lists * p->elements * ((p->capacity * 4 + 15) / 16 * 16);
    int32_t ids[TOKENS * TOPK];
    make_ids(p, number, ranks, ids);
    me->ids = take(sizeof ids);
    REQUIRE_CUDA(cudaMemcpy(me->ids, ids, sizeof ids, cudaMemcpyHostToDevice));
    size_t row = opaque ? OPAQUE_ROW : c->hidden * 2;
    me->x = take_random(TOKENS * row, number);
    me->given = take_random((size_t)(TOKENS + 1) * p->count * 4, number + 9);
    me->rows = take(me->places * (opaque ? OPAQUE_ROW : c->hidden));
    me->scales = take(me->scale_bytes);
    me->sources = take(me->places * 4);
    REQUIRE_CUDA(cudaStreamSynchronize(NULL));
}

static void close_rank(rank *me) {
    ranks_meet(me->links);
    epw_routing_free(me->routing);
    ranks_meet(me->links);
    epw_prefill_destroy(me->prefill);
    unsigned char *const all[] = {me->x, me->ids, me->given, me->rows, me->scales, me->sources};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) REQUIRE_CUDA(cudaFree(all[i]));
    REQUIRE_CUDA(cudaStreamDestroy(me->stream));
}

/* ---- rows that are wrong ---- */

static uint32_t owner(int32_t id) {
    return (uint32_t)id / LOCAL;
}

/* The slots of the last rank's rows at this one, the first, in the second operation. Each has a head, the
 * entries, and for each of those its row's number among those of the expert. */
static void spoil(const rank *me) {
    const epw_prefill_layout *l = &me->prefill->layout;
    const uint32_t last = me->links->ranks - 1;
    int32_t ids[TOKENS * TOPK];
    uint32_t rows = 0;
    make_ids(me->p, last, me->links->ranks, ids);
    for (uint32_t t = 0; t < TOKENS; t++) rows += owner(ids[t * TOPK]) == 0 || owner(ids[t * TOPK + 1]) == 0;
    for (uint32_t row = 0; row < rows; row++) {
        const uint64_t number = 1 + rows + 1 + row; /* behind the first operation and an opening */
        unsigned char *slot = epw_peers_own(&me->prefill->peers) + epw_row_slot_offset(l, 0, last, number);
        unsigned char *entries = slot + sizeof(epw_row_head);
        struct {
            epw_entry entries[TOPK];
            uint32_t index[TOPK];
        } has;
        epw_row_head head;
        REQUIRE_CUDA(cudaMemcpy(&head, slot, sizeof head, cudaMemcpyDefault));
        REQUIRE(head.kind == EPW_MESSAGE_ROW && head.op == 2, "row %u is no row of the second operation",
                row);
        if (me->p->event == REFUSED && row == rows / 2) head.token = UINT32_MAX;
        REQUIRE_CUDA(cudaMemcpy(slot, &head, sizeof head, cudaMemcpyDefault));
        REQUIRE_CUDA(cudaMemcpy(&has, entries, sizeof has, cudaMemcpyDefault));
        for (uint32_t k = 0; k < TOPK; k++) {
            if (me->p->event == TWICE) has.index[k] /= 2;
            if (me->p->event == ASTRAY) has.entries[k].expert ^= 1; /* of the two of a rank */
        }
        REQUIRE_CUDA(cudaMemcpy(entries, &has, sizeof has, cudaMemcpyDefault));
    }
    REQUIRE_CUDA(cudaStreamSynchronize(NULL));
}

/* ---- operations ---- */

typedef struct seen {
    unsigned char *scales;
    int32_t *sources;
} seen;

static seen dispatch(rank *me, uint32_t scale_order, event event) {
    const plan *p = me->p;
    const bool last = me->links->rank == me->links->ranks - 1;
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    in.tokens = TOKENS;
    in.x = me->x;
    in.topk_idx = me->ids;
    in.topk = TOPK;
    in.payload = p->payload;
    if (p->payload == EPW_PAYLOAD_OPAQUE) { /* every second rank has them by columns */
        const bool by_column = me->links->rank % 2 == 1;
        in.opaque_row_bytes = OPAQUE_ROW;
        in.scale_count = p->count;
        in.scale_bytes = 4;
        in.scales = me->given;
        in.scale_row_stride = by_column ? 4 : p->count * 4;
        in.scale_col_stride = by_column ? (TOKENS + 1) * 4 : 4;
    }
    in.stream = out.stream = me->stream;
    out.layout = p->layout;
    out.alignment = p->alignment;
    out.scale_order = scale_order;
    out.capacity = p->capacity;
    out.rows = p->has_rows ? me->rows : NULL;
    out.scales = me->scales;
    out.row_source = (int32_t *)(void *)me->sources;
    REQUIRE_CUDA(cudaMemsetAsync(me->scales, UNTOUCHED, me->scale_bytes, me->stream));
    REQUIRE_CUDA(cudaMemsetAsync(me->sources, UNTOUCHED, me->places * 4, me->stream));
    const bool again = event == AGAIN || event == ASTRAY;
    const bool gives_up = event == GIVEN_UP && last, spoils = event >= REFUSED;
    const bool halves = gives_up || spoils || event == HALVES || event == COUNTED;
    const uint32_t half = gives_up || event == COUNTED ? EPW_HALF_COUNTS : EPW_HALF_SENDS;
    REQUIRE_OK(epw_prefill_dispatch(me->prefill, me->routing, &in, again ? EPW_ROUTE_AGAIN : EPW_ROUTE_NEW,
                                    half, halves ? NULL : &out, NULL));
    if (spoils) {
        await_stream(me->stream, 60000 * MS, "a sending half");
        ranks_meet(me->links);
        if (me->links->rank == 0) spoil(me);
        ranks_meet(me->links);
    }
    if (gives_up) {
        REQUIRE_OK(epw_prefill_cancel(me->prefill, me->routing));
    } else if (halves) {
        REQUIRE_OK(epw_prefill_receive(me->prefill, me->routing, &out, NULL));
    }
    await_stream(me->stream, 60000 * MS, "a dispatch");
    ranks_meet(me->links);
    seen s = {malloc(me->scale_bytes), malloc(me->places * 4)};
    REQUIRE_CUDA(cudaMemcpy(s.scales, me->scales, me->scale_bytes, cudaMemcpyDeviceToHost));
    REQUIRE_CUDA(cudaMemcpy(s.sources, me->sources, me->places * 4, cudaMemcpyDeviceToHost));
    return s;
}

/* Element i of a place. */
static uint32_t by_row(const rank *me, const seen *s, size_t place, uint32_t i) {
    uint32_t value;
    memcpy(&value, s->scales + (place * me->p->elements + i) * 4, 4);
    return value;
}
static uint32_t by_column(const rank *me, const seen *s, size_t place, uint32_t i) {
    const size_t column = (me->p->capacity * 4 + 15) / 16 * 16, list = place / me->p->capacity;
    uint32_t value;
    memcpy(&value, s->scales + (list * me->p->elements + i) * column + place % me->p->capacity * 4, 4);
    return value;
}

/* Rows of the last rank are not looked at if it has `lost` them. */
static void compare(const rank *me, const char *when, const seen *rows, const seen *columns, event event) {
    const int32_t last = (int32_t)me->links->ranks - 1;
    const bool first = me->links->rank == 0, last_one = me->links->rank == (uint32_t)last;
    const bool lost = event == GIVEN_UP || (event == REFUSED && first),
               odd = lost || (event >= TWICE && first);
    if (event == GIVEN_UP && last_one) return;
    uint32_t wrong = 0;
    size_t compared = 0;
    for (size_t place = 0; place < me->places; place++) {
        const int32_t source = rows->sources[place];
        if (!odd || source != last) wrong += columns->sources[place] != source;
        if (lost && source == last) wrong += columns->sources[place] != -1;
        if (odd && source == last) continue;
        for (uint32_t i = 0; i < me->p->elements; i++) {
            const uint32_t untouched = UINT32_C(0x01010101) * UNTOUCHED,
                           found = by_column(me, columns, place, i);
            wrong += found != (source < 0 ? untouched : by_row(me, rows, place, i));
        }
        compared += source >= 0;
    }
    CHECK_MSG(wrong == 0 && compared > 20,
              "case %u, rank %u, %s, layout %u, payload %u, event %d: %u are wrong, %zu right", me->p->number,
              me->links->rank, when, me->p->layout, me->p->payload, (int)event, wrong, compared);
}

static void forget(seen *s) {
    free(s->scales);
    free(s->sources);
}

static int run_rank(const rank_links *links) {
    plan p = choose(options.first, links->ranks);
    rank me = {.p = &p, .links = links};
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    open_rank(&me);
    seen rows = dispatch(&me, 1, WHOLE);
    seen columns = dispatch(&me, 0, p.event);
    compare(&me, "at once", &rows, &columns, p.event);
    seen next = dispatch(&me, 0, WHOLE);
    compare(&me, "afterwards", &rows, &next, WHOLE);
    forget(&rows);
    forget(&columns);
    forget(&next);
    close_rank(&me);
    return 0;
}

static const ranks_option named[] = {
    {"--ranks", .number = &options.ranks},
    {"--first", .number = &options.first},
    {"--cases", .number = &options.cases},
    {"--seconds", .number = &options.seconds},
    {0},
};

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--count-gpus") == 0) return gpus_main();
    if (ranks_options(argc, argv, named,
                      "prefill_scales [--ranks N] [--first N] [--cases N] [--seconds N (limit)]"))
        return 2;
    ranks_limit("prefill_scales", options.seconds);
    uint32_t gpus = 0, end = options.first + options.cases;
    REQUIRE(options.ranks >= 2 && options.ranks <= RANKS_MOST, "2 to %d ranks", RANKS_MOST);
    int ended = ranks_begin(run_rank, 1, &options.ranks, &gpus, argv);
    if (ended >= 0) return ended;
    for (; options.first < end; options.first++) ranks_run(run_rank, options.ranks, gpus, 0, argv);
    uint64_t failed = atomic_load(&checks_failed);
    printf("prefill_scales: %s cases=%u checks=%llu failed=%llu\n", failed == 0 ? "OK" : "FAILED",
           options.cases, (unsigned long long)atomic_load(&checks_made), (unsigned long long)failed);
    return failed != 0;
}
