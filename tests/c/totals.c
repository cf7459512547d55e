/* Sums of the caller to which two lanes add at the same time: expert_totals and wait_ns lose nothing. */
#include "group.h"

#include <pthread.h>

enum { STEPS = 20000 };

static epw_buffer *buffer;
static uint64_t totals[EXPERTS], waits[1];
static pthread_barrier_t both;

static void *step(void *argument) {
    int32_t lane = *(int32_t *)argument;
    static _Thread_local _Alignas(64) uint16_t x[HIDDEN];
    int32_t ids[TOPK];
    for (int i = 0; i < TOPK; i++) ids[i] = i;
    pthread_barrier_wait(&both);
    for (int i = 0; i < STEPS; i++) {
        epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
        epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
        epw_handle handle;
        in.tokens = 1;
        in.x = x;
        in.topk_idx = ids;
        in.topk = TOPK;
        in.lane = lane;
        in.layout = EPW_RANK_MAJOR;
        out.expert_totals = totals;
        out.wait_ns = waits;
        CHECK_OK(epw_dispatch(buffer, &in, &out, &handle, NULL));
        CHECK_OK(epw_release(buffer, handle));
    }
    return NULL;
}

int main(void) {
    epw_config config = config_of(0, 1);
    config.threads = 1;
    CHECK_OK(epw_buffer_create(&config, &buffer));
    epw_mask self = first_ranks(1);
    CHECK_OK(epw_buffer_set_active(buffer, &self, 1, 0));
    pthread_t threads[2];
    int32_t lanes[2] = {0, 1};
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, step, &lanes[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    uint64_t sum = 0;
    for (uint32_t e = 0; e < EXPERTS; e++) sum += totals[e];
    CHECK_MSG(sum == UINT64_C(2) * STEPS * TOPK, "%llu of %llu", (unsigned long long)sum,
              (unsigned long long)STEPS * 2 * TOPK);
    epw_buffer_destroy(buffer);
    return check_result("totals");
}
