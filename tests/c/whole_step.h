/* Two ranks that reach each other by queues, and whole steps of a layer between them, with every result
 * checked. */
#ifndef EPW_TESTS_WHOLE_STEP_H
#define EPW_TESTS_WHOLE_STEP_H

#include "group.h"

#include <stdbool.h>

enum { LISTS = EXPERTS / 2, ROWS = 2 * TOKENS };

/* Two connected ranks without a membership, with fabrics of these options; those that are not made are NULL
 * if a call has failed. */
static inline bool meet_two_by(const epw_fabric_options *by, uint64_t deadline_ns, group *g) {
    *g = (group){.ranks = 2};
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = 0;
    bool well = true;
    for (uint32_t r = 0; r < 2 && well; r++) {
        epw_config config = config_of(r, 2);
        epw_fabric_options options = *by;
        options.rank = r;
        well = epw_fabric_create(&options, &g->fabrics[r]) == EPW_OK;
        config.fabric = g->fabrics[r];
        config.paths = EPW_PATH_QUEUE;
        config.deadline_ns = deadline_ns;
        well = well && epw_buffer_create(&config, &g->of[r]) == EPW_OK;
    }
    for (uint32_t r = 0; r < 2 && well; r++)
        well = epw_buffer_export(g->of[1 - r], r, blob, &length) == EPW_OK &&
               epw_buffer_connect(g->of[r], 1 - r, blob, length) == EPW_OK;
    return well;
}

/* They begin epoch 1. */
static inline bool begin_two(const group *g) {
    epw_mask both = first_ranks(2);
    bool well = true;
    for (uint32_t r = 0; r < 2 && well; r++) well = epw_buffer_set_active(g->of[r], &both, 1, 0) == EPW_OK;
    return well;
}

/* Checks the result of each token: a quarter of its value for each expert that it has. */
static inline bool is_combined(const batch *made, const uint16_t *result) {
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) {
        uint32_t experts = 0, t = i / HIDDEN;
        for (uint32_t j = 0; j < TOPK; j++) experts += made->ids[t * TOPK + j] >= 0;
        if (from_bf16(result[i]) != from_bf16(made->x[i]) * 0.25f * (float)experts) return false;
    }
    return true;
}

/* Both ranks' halves of one step, in this thread, since sending waits for nobody. Whether it was complete and
 * right. */
static inline bool step(const group *g) {
    static batch made[2];
    static _Alignas(64) uint16_t rows[2][LISTS * ROWS * HIDDEN], result[2][TOKENS * HIDDEN];
    epw_handle handles[2];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    bool whole = true;
    for (uint32_t r = 0; r < 2; r++) {
        epw_dispatch_input in = make_batch(&made[r], r);
        in.layout = EPW_EXPERT_MAJOR;
        CHECK_OK(epw_dispatch(g->of[r], &in, NULL, &handles[r], &outcome));
    }
    for (uint32_t r = 0; r < 2; r++) {
        epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
        uint32_t counts[LISTS];
        out.rows = rows[r];
        out.counts = counts;
        CHECK_OK(epw_dispatch_receive(g->of[r], handles[r], &out, &outcome));
        whole &= !outcome.degraded;
    }
    for (uint32_t r = 0; r < 2; r++) {
        epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
        answer.expert_out = rows[r];
        CHECK_OK(epw_combine(g->of[r], handles[r], &answer, NULL, &outcome));
    }
    for (uint32_t r = 0; r < 2; r++) {
        epw_combine_output combined = EPW_COMBINE_OUTPUT_INIT;
        combined.out = result[r];
        CHECK_OK(epw_combine_receive(g->of[r], handles[r], &combined, &outcome));
        whole &= !outcome.degraded && is_combined(&made[r], result[r]);
    }
    return whole;
}

/* A rank's half of a dispatch, whose other half does not come. */
static inline epw_outcome dispatch_alone(const group *g, uint32_t rank) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    epw_handle handle = send_batch(g->of[rank], rank, -1, 0);
    CHECK_OK(epw_dispatch_receive(g->of[rank], handle, &nothing, &outcome));
    return outcome;
}

#endif
