/* A peer that lies about its rows, or rewrites what it said about them after this rank has checked it:
 * nothing that it writes makes this rank access memory out of bounds. Most useful under AddressSanitizer. */
#include "ep/host/host.h"
#include "group.h"

#include <sched.h>
#include <stdlib.h>

enum { LOCAL = EXPERTS / 2, ROWS = 2 * TOKENS };

/* What rank 0 receives from both ranks, and its answers, in memory of the exact size. */
typedef struct received {
    epw_dispatch_output out;
    uint32_t counts[LOCAL], source_counts[2], source_token[LOCAL * ROWS];
    unsigned char *rows;
} received;

static void make_received(received *r) {
    r->rows = aligned_alloc(64, (size_t)LOCAL * ROWS * HIDDEN * 2);
    memset(r->rows, 0, (size_t)LOCAL * ROWS * HIDDEN * 2);
    r->out = (epw_dispatch_output)EPW_DISPATCH_OUTPUT_INIT;
    r->out.rows = r->rows;
    r->out.counts = r->counts;
    r->out.source_counts = r->source_counts;
    r->out.source_token = r->source_token;
}

/* Returns when rank 1's description of its rows has arrived at rank 0. */
static void send_both(const group *g, batch made[2], epw_handle handles[2]) {
    for (uint32_t r = 0; r < 2; r++) {
        epw_dispatch_input in = make_batch(&made[r], r);
        in.lane = 0;
        CHECK_OK(epw_dispatch(g->of[r], &in, NULL, &handles[r], NULL));
    }
    AWAIT(epw_ready(g->of[0], handles[0]) == EPW_OK);
    CHECK(epw_ready(g->of[0], handles[0]) == EPW_OK);
}

static void store(void *word, uint32_t value) {
    atomic_store_explicit((_Atomic uint32_t *)word, value, memory_order_relaxed);
}
static uint32_t load(const void *word) {
    return atomic_load_explicit((_Atomic uint32_t *)word, memory_order_relaxed);
}

/* The buffer whose window the liar writes. */
static const epw_buffer *deceived;

static unsigned char *at_deceived(uint64_t offset) {
    return epw_peers_own(&deceived->peers) + offset;
}

/* Rank 1's slot `row` in rank 0's window. */
typedef struct slot_words {
    epw_slot_header *head;
    epw_entry *entries;
    uint32_t *indices;
} slot_words;

static slot_words slot_of(const epw_buffer *liar, uint32_t row) {
    unsigned char *slot = at_deceived(epw_slot_offset(&liar->layout, 0, 1, row));
    return (slot_words){(epw_slot_header *)slot, (epw_entry *)(slot + sizeof(epw_slot_header)),
                        (uint32_t *)(slot + epw_indices_offset(&liar->layout))};
}

/* The first entry of a slot, from `j` on, that names an expert of rank 0. */
static uint32_t local_entry(slot_words slot, uint32_t j) {
    while (slot.entries[j].expert < 0 || slot.entries[j].expert >= LOCAL) j++;
    return j;
}

/* ---- Lies ---- */

typedef void lie(const epw_buffer *liar, slot_words slot);

static void another_format(const epw_buffer *liar, slot_words slot) {
    (void)liar;
    slot.head->format ^= 1;
}
static void a_token_beyond_all(const epw_buffer *liar, slot_words slot) {
    (void)liar;
    slot.head->token = TOKENS;
}
static void a_token_again(const epw_buffer *liar, slot_words slot) {
    (void)liar;
    slot.head->token--;
}
static void a_place_after_the_next(const epw_buffer *liar, slot_words slot) {
    (void)liar;
    slot.indices[local_entry(slot, 0)]++;
}
static void a_place_far_away(const epw_buffer *liar, slot_words slot) {
    (void)liar;
    slot.indices[local_entry(slot, 0)] = UINT32_MAX - 5;
}
static void a_count_too_many(const epw_buffer *liar, slot_words slot) {
    (void)slot;
    ((uint32_t *)at_deceived(epw_expert_counts_offset(&liar->layout, 0, 1)))[0]++;
}
/* The indices continue the list, so only the repetition is wrong. Ordered combine would answer more rows than
 * a slot has room for. */
static void an_expert_again(const epw_buffer *liar, slot_words slot) {
    uint32_t j = local_entry(slot, 0);
    uint32_t *counts = (uint32_t *)at_deceived(epw_expert_counts_offset(&liar->layout, 0, 1));
    for (uint32_t k = 0; k < TOPK; k++) {
        if (k == j) continue;
        slot.entries[k] = slot.entries[j];
        slot.indices[k] = slot.indices[j] + (k < j ? k : k - 1) + 1;
        counts[slot.entries[j].expert]++;
    }
}

static void every_lie_is_a_fault_of_format(void) {
    static const struct {
        const char *name;
        lie *tell;
    } lies[] = {{"another format", another_format},     {"a token beyond all", a_token_beyond_all},
                {"a token again", a_token_again},       {"a place after the next", a_place_after_the_next},
                {"a place far away", a_place_far_away}, {"a count too many", a_count_too_many},
                {"an expert again", an_expert_again}};
    group g = make_group(2, 10000 * MS);
    deceived = g.of[0];
    received got;
    make_received(&got);
    for (uint32_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        activate(&g, i + 1);
        static batch made[2];
        epw_handle handles[2];
        send_both(&g, made, handles);
        uint32_t last = g.of[1]->lanes[0].machine.peers[0].sent - 1;
        lies[i].tell(g.of[1], slot_of(g.of[1], last));
        epw_outcome outcome = EPW_OUTCOME_INIT;
        CHECK_OK(epw_dispatch_receive(g.of[0], handles[0], &got.out, &outcome));
        CHECK_MSG(outcome.missing.bits[0] == 2 && outcome.record.cause == EPW_CAUSE_FORMAT, "%s",
                  lies[i].name);
        CHECK_MSG(got.source_counts[0] > 0 && got.source_counts[1] == 0, "%s", lies[i].name);
        for (uint32_t e = 0; e < LOCAL; e++) {
            CHECK_MSG(got.counts[e] == g.of[0]->lanes[0].host->sent_counts[e], "%s: expert %u", lies[i].name,
                      e);
        }
        for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_release(g.of[r], handles[r]));
    }
    free(got.rows);
    destroy(&g);
}

/* Its own answers are correct, but its rows are missing from the operation, which says so to the end. */
static void who_was_refused_stays_missing_in_combine(void) {
    group g = make_group(2, 10000 * MS);
    deceived = g.of[0];
    activate(&g, 1);
    static batch made[2];
    static _Alignas(64) uint16_t sums[TOKENS * HIDDEN];
    received got[2];
    epw_handle handles[2];
    send_both(&g, made, handles);
    another_format(g.of[1], slot_of(g.of[1], 0));
    epw_outcome outcomes[3] = {EPW_OUTCOME_INIT, EPW_OUTCOME_INIT, EPW_OUTCOME_INIT};
    for (uint32_t r = 0; r < 2; r++) { /* the answers that rank 0 awaits have arrived before it waits */
        uint32_t rank = 1 - r;
        epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
        make_received(&got[rank]);
        answer.expert_out = got[rank].rows;
        CHECK_OK(epw_dispatch_receive(g.of[rank], handles[rank], &got[rank].out, &outcomes[0]));
        CHECK_OK(epw_combine(g.of[rank], handles[rank], &answer, NULL, &outcomes[1]));
    }
    static uint16_t contributions[TOKENS][2];
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    result.out = sums;
    result.contributions = contributions[0];
    CHECK_OK(epw_combine_receive(g.of[0], handles[0], &result, &outcomes[2]));
    for (uint32_t half = 0; half < 3; half++) {
        const epw_outcome *o = &outcomes[half];
        CHECK_MSG(o->degraded && o->missing.bits[0] == 2 && o->record.peer == 1, "half %u", half);
        CHECK_MSG(o->record.cause == EPW_CAUSE_FORMAT && o->record.phase == EPW_PHASE_DISPATCH_RECEIVE,
                  "half %u: cause %u in phase %u", half, o->record.cause, o->record.phase);
    }
    for (uint32_t t = 0; t < TOKENS; t++) CHECK(contributions[t][0] == contributions[t][1]);
    CHECK_OK(epw_release(g.of[1], handles[1]));
    for (uint32_t r = 0; r < 2; r++) free(got[r].rows);
    destroy(&g);
}

/* ---- Second thoughts ---- */

/* Everything that rank 1 said about its rows is rewritten between rank 0's dispatch and its combine. */
static void combine_uses_what_dispatch_checked(void) {
    group g = make_group(2, 10000 * MS);
    deceived = g.of[0];
    for (uint32_t mode = EPW_COMBINE_RANK_REDUCED; mode <= EPW_COMBINE_ORDERED; mode++) {
        activate(&g, mode + 1);
        static batch made[2];
        received got[2];
        epw_handle handles[2];
        send_both(&g, made, handles);
        epw_outcome outcome = EPW_OUTCOME_INIT;
        for (uint32_t r = 0; r < 2; r++) {
            make_received(&got[r]);
            CHECK_OK(epw_dispatch_receive(g.of[r], handles[r], &got[r].out, &outcome));
            CHECK(!outcome.degraded);
        }
        for (uint32_t i = 0; i < TOKENS; i++) {
            slot_words slot = slot_of(g.of[1], i);
            slot.head->token = slot.head->format = UINT32_MAX;
            for (uint32_t j = 0; j < TOPK; j++) {
                slot.entries[j] = (epw_entry){(int32_t)(i + j) % LOCAL, 3e38f};
                slot.indices[j] = 0x40000000u + i;
            }
        }
        for (uint32_t r = 0; r < 2; r++) {
            epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
            answer.mode = mode;
            answer.expert_out = got[r].rows;
            CHECK_OK(epw_combine(g.of[r], handles[r], &answer, NULL, NULL));
        }
        for (uint32_t r = 0; r < 2; r++) {
            static _Alignas(64) uint16_t sums[TOKENS * HIDDEN];
            epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
            result.out = sums;
            CHECK_OK(epw_combine_receive(g.of[r], handles[r], &result, &outcome));
            CHECK(!outcome.degraded);
            uint32_t differ = 0;
            for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) {
                float routed = i < HIDDEN ? TOPK - 1 : TOPK;
                differ += sums[i] != bf16(from_bf16(made[r].x[i]) * 0.25f * routed);
            }
            CHECK_MSG(differ == 0, "mode %u, rank %u: %u values", mode, r, differ);
            free(got[r].rows);
        }
    }
    destroy(&g);
}

typedef struct wavering {
    const epw_buffer *liar;
    uint32_t rows;
    atomic_bool began, over;
} wavering;

/* Writes true and false values in turn, about the last row and about the counts; ends with the truth. */
static void *waver(void *argument) {
    wavering *w = argument;
    slot_words slot = slot_of(w->liar, w->rows - 1);
    uint32_t j = local_entry(slot, 0);
    uint32_t *counts = (uint32_t *)at_deceived(epw_expert_counts_offset(&w->liar->layout, 0, 1));
    void *words[] = {&slot.indices[j], &slot.head->token, &slot.entries[j].expert, &counts[0]};
    const uint32_t lies[] = {0x7fffff00u, UINT32_MAX, LOCAL - 1, UINT32_MAX};
    uint32_t truth[4];
    for (int i = 0; i < 4; i++) truth[i] = load(words[i]);
    for (uint32_t turn = 0; !atomic_load_explicit(&w->over, memory_order_relaxed); turn++) {
        if (turn == 64) atomic_store(&w->began, true);
        int i = (int)(turn / 64 % 4);
        store(words[i], lies[i]);
        for (volatile uint32_t pause = 0; pause < turn % 31; pause++) continue;
        store(words[i], truth[i]);
        for (volatile uint32_t pause = 0; pause < turn % 251; pause++) continue;
    }
    return NULL;
}

static void a_peer_that_wavers_leads_nowhere(void) {
    enum { ROUNDS = 1500 };
    group g = make_group(2, 10000 * MS);
    deceived = g.of[0];
    received got;
    make_received(&got);
    uint32_t complete = 0;
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        activate(&g, round);
        static batch made[2];
        epw_handle handles[2];
        send_both(&g, made, handles);
        wavering w = {.liar = g.of[1], .rows = g.of[1]->lanes[0].machine.peers[0].sent};
        pthread_t thread;
        pthread_create(&thread, NULL, waver, &w);
        while (!atomic_load(&w.began)) sched_yield();
        epw_outcome outcome = EPW_OUTCOME_INIT;
        CHECK_OK(epw_dispatch_receive(g.of[0], handles[0], &got.out, &outcome));
        CHECK(!outcome.degraded || outcome.record.cause == EPW_CAUSE_FORMAT);
        complete += !outcome.degraded;
        for (uint32_t e = 0; e < LOCAL; e++) {
            CHECK(got.counts[e] <= ROWS);
            for (uint32_t i = 0; i < got.counts[e] && i < ROWS; i++)
                CHECK(got.source_token[e * ROWS + i] < TOKENS);
        }
        epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
        answer.mode = round % 2 ? EPW_COMBINE_RANK_REDUCED : EPW_COMBINE_ORDERED;
        answer.expert_out = got.rows;
        CHECK_OK(epw_combine(g.of[0], handles[0], &answer, NULL, NULL));
        atomic_store(&w.over, true);
        pthread_join(thread, NULL);
        for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_release(g.of[r], handles[r]));
    }
    CHECK_MSG(complete > 0, "of %u rounds none was complete: what is checked here is the time after", ROUNDS);
    free(got.rows);
    destroy(&g);
}

int main(void) {
    every_lie_is_a_fault_of_format();
    who_was_refused_stays_missing_in_combine();
    combine_uses_what_dispatch_checked();
    a_peer_that_wavers_leads_nowhere();
    return check_result("hostile");
}
