/* A faulty peer of a prefill buffer: its openings, rows and answers are changed at random in this rank's
 * window, and its words announce too much. Whatever it writes, this rank's calls end, nothing is read or
 * written out of bounds (the sanitizers watch), and the next epoch works. */
#include "prefills.h"

#include "base/clock.h"
#include "prefill/parts.h"

enum { N = 12, WIDTH = 64, LOCAL = 3, K = 3, CAPACITY = 2 * N * K, GUARD = 64, ROUNDS = 3000, SLOTS = 64 };

typedef struct end {
    epw_prefill *prefill;
    epw_routing *routing;
    _Alignas(64) uint16_t x[N * WIDTH], rows[(CAPACITY + GUARD) * WIDTH], sums[N * WIDTH];
    int32_t ids[N * K], row_source[CAPACITY + GUARD], row_token[CAPACITY + GUARD];
    float weights[N * K];
    uint32_t source_counts[2];
} end;

static end ends[2];
static uint64_t
    patience_ns; /* the deadline of a dispatch; 0: that of the buffer, in which a faulty peer is lost */

static epw_status dispatch(end *e, bool half, epw_outcome *outcome) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    in.tokens = N;
    in.x = e->x;
    in.topk_idx = e->ids;
    in.topk_weights = e->weights;
    in.topk = K;
    in.deadline_ns = patience_ns;
    out.capacity = CAPACITY;
    out.rows = e->rows;
    out.row_source = e->row_source;
    out.row_token = e->row_token;
    out.source_counts = e->source_counts;
    return epw_prefill_dispatch(e->prefill, e->routing, &in, 0, EPW_HALF_SENDS, half ? NULL : &out, outcome);
}

static epw_status receive(end *e, epw_outcome *outcome) {
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    out.capacity = CAPACITY;
    out.rows = e->rows;
    out.row_source = e->row_source;
    return epw_prefill_receive(e->prefill, e->routing, &out, outcome);
}

static epw_status combine(end *e, bool half, epw_outcome *outcome) {
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    in.expert_out = e->rows;
    out.out = e->sums;
    return epw_prefill_combine(e->prefill, e->routing, &in, half ? NULL : &out, outcome);
}

/* Changes some words of what rank 1 has written here, in a slot's head or after it. */
static void change(uint64_t *s, bool answers) {
    epw_prefill *p = ends[0].prefill;
    const epw_prefill_layout *l = &p->layout;
    for (uint32_t i = 0; i < 1 + below(s, 3); i++) {
        uint32_t slot = below(s, N + 1), head = answers ? sizeof(epw_row_head) : (uint32_t)l->header_bytes;
        uint64_t at = answers ? epw_answer_slot_offset(l, 0, 1, slot) : epw_row_slot_offset(l, 0, 1, slot);
        uint32_t *word = (uint32_t *)(void *)(epw_peers_own(&p->peers) + at) + below(s, head / 4);
        static const uint32_t values[] = {0, 1, 2, 3, UINT32_MAX, 0x7fffffff, 0xffff, 1000};
        *word = below(s, 3) ? values[below(s, 8)] : (uint32_t)next_random(s);
    }
}

static void check_guards(void) {
    for (uint32_t i = CAPACITY; i < CAPACITY + GUARD; i++) CHECK(ends[0].row_source[i] == 12345);
    for (uint32_t i = 0; i < GUARD * WIDTH; i++) CHECK(ends[0].rows[CAPACITY * WIDTH + i] == 0xabcd);
}

/* True if the word announces more than the ring can hold. */
static bool words_ahead(prefills *g, uint64_t *s) {
    uint32_t word = EPW_WORD_USER + below(s, 4);
    uint64_t count = below(s, 2) ? SLOTS + 1 + below(s, 9) : (next_random(s) & EPW_STEP_MAX) | (SLOTS * 2);
    epw_signal(&g->of[1]->peers, 0, 0, word, epw_epoch_word(g->of[0]->peers.epoch, count), NULL, 0);
    return word == EPW_WORD_POSTED;
}

static void one_round(prefills *g, uint64_t seed) {
    uint64_t s = seed;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    bool words = seed % 8 == 0, answers = seed % 2 == 1;
    CHECK_OK(dispatch(&ends[1], true, &outcome));
    if (!answers) change(&s, false);
    bool ahead = words && words_ahead(g, &s);
    CHECK_MSG(dispatch(&ends[0], false, &outcome) == EPW_OK, "seed %llu: %s", (unsigned long long)seed,
              epw_last_error());
    CHECK(outcome.missing.bits[0] == 0 || outcome.missing.bits[0] == 2);
    CHECK(!ahead || outcome.missing.bits[0] == 2);
    CHECK(outcome.missing.bits[0] == 0 || ends[0].source_counts[1] == 0);
    check_guards();
    bool lost = outcome.degraded;
    CHECK_OK(receive(&ends[1], &outcome));
    if (!answers || lost || outcome.degraded) return;
    CHECK_OK(combine(&ends[1], true, &outcome));
    change(&s, true);
    CHECK_MSG(combine(&ends[0], false, &outcome) == EPW_OK, "seed %llu: %s", (unsigned long long)seed,
              epw_last_error());
    check_guards();
}

/* Its messages are not waited for. */
static void more_than_possible(prefills *g) {
    epw_prefill *p = g->of[0];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_routing_create(g->of[r], &ends[r].routing));
    patience_ns = 60000 * MS;
    CHECK_OK(dispatch(&ends[1], true, &outcome));
    uint64_t at = epw_row_slot_offset(&p->layout, 0, 1, 0), began = epw_now_ns();
    ((epw_row_head *)(void *)(epw_peers_own(&p->peers) + at))->token = N + 1;
    CHECK_OK(dispatch(&ends[0], false, &outcome));
    CHECK(epw_now_ns() - began < patience_ns / 2);
    CHECK(outcome.missing.bits[0] == 2 && outcome.record.cause == EPW_CAUSE_FORMAT);
    CHECK_OK(receive(&ends[1], &outcome));
    patience_ns = 0;
    for (uint32_t r = 0; r < 2; r++) epw_routing_free(ends[r].routing);
    activate_prefills(g, ROUNDS + 2);
}

int main(void) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    config.ring_tokens = SLOTS;
    config.ep.ranks = 2;
    config.ep.max_tokens = N;
    config.ep.hidden = WIDTH;
    config.ep.experts = 2 * LOCAL;
    config.ep.topk = K;
    config.ep.lanes = 1;
    config.ep.threads = 1;
    config.ep.deadline_ns = 20 * MS;
    config.ep.paths = EPW_PATH_THREAD;
    prefills g = make_mapped_prefills(&config);
    for (uint32_t r = 0; r < 2; r++) {
        ends[r].prefill = g.of[r];
        for (uint32_t i = 0; i < N * K; i++) {
            ends[r].ids[i] = (int32_t)((r + i / K * 5 + i % K * 2) % (2 * LOCAL));
            ends[r].weights[i] = 1.0f;
        }
        for (uint32_t i = 0; i < GUARD * WIDTH; i++) ends[r].rows[CAPACITY * WIDTH + i] = 0xabcd;
        for (uint32_t i = 0; i < GUARD; i++) ends[r].row_source[CAPACITY + i] = 12345;
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_routing_create(g.of[r], &ends[r].routing));
        if (round % 100 == 99) { /* nothing is left behind */
            epw_outcome outcome = EPW_OUTCOME_INIT;
            patience_ns = 10000 * MS;
            CHECK_OK(dispatch(&ends[1], true, &outcome));
            CHECK_OK(dispatch(&ends[0], false, &outcome));
            patience_ns = 0;
            CHECK(!outcome.degraded);
            CHECK_OK(receive(&ends[1], &outcome));
            CHECK(!outcome.degraded);
        } else {
            one_round(&g, round + 1);
        }
        for (uint32_t r = 0; r < 2; r++) epw_routing_free(ends[r].routing);
        activate_prefills(&g, round + 2);
    }
    more_than_possible(&g);
    destroy_prefills(&g);
    return check_result("prefill_hostile");
}
