/* A dispatch of 65,536 tokens of each rank, as many as there may be, and its combine, through rings of few
 * slots, in each layout; each row and each sum against a plain reference. */
#include "many_tokens.h"
#include "prefills.h"

enum { RING = 64 };

typedef struct rank {
    epw_prefill *of;
    uint32_t rank;
} rank;

static void there_and_back(const rank *me, const epw_dispatch_input *in, uint32_t layout, uint16_t *sums) {
    many_rows r = many_make_room(me->rank, layout, layout == EPW_PACKED ? 16 : 0);
    epw_prefill_output out = many_output(&r);
    epw_prefill_combine_input made = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output to = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_routing *routing = NULL;
    CHECK_OK(epw_routing_create(me->of, &routing));
    CHECK_OK(epw_prefill_dispatch(me->of, routing, in, EPW_ROUTE_NEW, 0, &out, &outcome));
    CHECK(!outcome.degraded);
    many_check_rows(me->rank, &r);
    many_make(&r);
    made.expert_out = r.made;
    to.out = sums;
    memset(sums, 0x5a, (size_t)many_tokens * MANY_HIDDEN * 2);
    CHECK_OK(epw_prefill_combine(me->of, routing, &made, &to, &outcome));
    CHECK(!outcome.degraded);
    many_check_sums(me->rank, sums);
    epw_routing_free(routing);
    many_free(&r);
}

static void *run_rank(void *argument) {
    const rank *me = argument;
    size_t values = (size_t)many_tokens * MANY_HIDDEN, entries = (size_t)many_tokens * MANY_TOPK;
    uint16_t *x = aligned_alloc(64, values * 2), *sums = aligned_alloc(64, values * 2);
    int32_t *ids = malloc(entries * sizeof *ids);
    float *weights = malloc(entries * sizeof *weights);
    many_inputs(me->rank, x, ids, weights);
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = many_tokens;
    in.x = x;
    in.topk_idx = ids;
    in.topk = MANY_TOPK;
    in.topk_weights = weights;
    static const uint32_t layouts[] = {EPW_PACKED, EPW_DENSE, EPW_EXPERT_MAJOR, EPW_RANK_MAJOR};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) there_and_back(me, &in, layouts[i], sums);
    free(x);
    free(sums);
    free(ids);
    free(weights);
    return NULL;
}

/* One more is refused when the buffer is made, and by a call. */
static void more_tokens_are_refused(epw_prefill *prefill) {
    epw_prefill_config config = many_config(RING);
    epw_prefill *none = NULL;
    epw_routing *routing = NULL;
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    config.ep.max_tokens = EPW_MAX_TOKENS + 1;
    CHECK(epw_prefill_create(&config, &none) == EPW_ERR_LIMIT);
    CHECK_OK(epw_routing_create(prefill, &routing));
    in.tokens = EPW_MAX_TOKENS + 1;
    in.x = in.topk_idx = &in; /* not read */
    in.topk = MANY_TOPK;
    CHECK(epw_prefill_dispatch(prefill, routing, &in, EPW_ROUTE_NEW, 0, &out, NULL) == EPW_ERR_LIMIT);
    epw_routing_free(routing);
}

int main(void) {
    epw_prefill_config config = many_config(RING);
    prefills g = make_prefills(&config);
    rank ranks[MANY_RANKS];
    for (uint32_t r = 0; r < MANY_RANKS; r++) ranks[r] = (rank){g.of[r], r};
    on_all_ranks(MANY_RANKS, run_rank, ranks, sizeof ranks[0]);
    more_tokens_are_refused(g.of[0]);
    destroy_prefills(&g);
    return check_result("prefill_many");
}
