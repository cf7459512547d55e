/* Programs that only poll, by epw_poll and epw_ready: the polls themselves take in what peers send by queues.
 * Meanwhile the threads of the NICs doze, for longer than this test would wait. Once the program leaves, they
 * take over. */
#include "group.h"

#include "nic/fabric.h"
#include "nic/soft/parts.h"

#include "base/clock.h"

#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 50, LOOKS_MS = 5000 };

static const struct timespec pause_2_ms = {0, 2 * MS};

/* Whether the thread sleeps, and no call that it has not noticed yet is about to wake it. */
static bool dozes(epw_nic *nic) {
    if (!atomic_load(&nic->dozing)) return false;
    nanosleep(&pause_2_ms, NULL);
    return atomic_load(&nic->dozing);
}

/* Once others drive the NIC its thread sleeps, and polling does not wake it. */
static void lull(epw_nic *nic) {
    epw_nic_stretch_sleeps(nic, 1000000);
    for (uint64_t began = epw_now_ns(); epw_now_ns() - began < LOOKS_MS * MS && !dozes(nic);) {
        epw_nic_drive(nic, epw_now_ns());
        epw_nic_wake(nic); /* so that it notices that */
        nanosleep(&pause_2_ms, NULL);
    }
    CHECK(atomic_load(&nic->dozing));
}

typedef epw_status look(epw_buffer *b, epw_handle handle);

static epw_status by_poll(epw_buffer *b, epw_handle handle) {
    return epw_poll(b, handle, NULL);
}

/* Polls both ranks in turn until both have what they wait for. `status`: EPW_OK for a rank that has it
 * already. */
static bool both_get_there(const group *g, const epw_handle handles[2], epw_status status[2], look *at) {
    uint64_t began = epw_now_ns();
    while (epw_now_ns() - began < LOOKS_MS * MS && (status[0] == EPW_PENDING || status[1] == EPW_PENDING)) {
        for (uint32_t r = 0; r < 2; r++)
            if (status[r] == EPW_PENDING) status[r] = at(g->of[r], handles[r]);
    }
    return status[0] == EPW_OK && status[1] == EPW_OK;
}

static void who_looks_waits_for_no_thread(void) {
    group g = make_group(2, 60000 * MS);
    activate(&g, 1);
    for (uint32_t r = 0; r < 2; r++) lull(epw_fabric_nic(g.fabrics[r]));
    static batch made[2];
    epw_dispatch_output rows = EPW_DISPATCH_OUTPUT_INIT;
    static _Alignas(64) uint16_t sums[2][TOKENS * HIDDEN];
    rows.nonblocking = 1;
    bool there = true;
    for (uint32_t round = 0; round < ROUNDS && there; round++) {
        epw_handle handles[2];
        for (uint32_t r = 0; r < 2; r++) {
            epw_dispatch_input in = make_batch(&made[r], r);
            in.layout = EPW_RANK_MAJOR;
            CHECK_OK(epw_dispatch(g.of[r], &in, NULL, &handles[r], NULL));
        }
        epw_status status[2] = {EPW_PENDING, EPW_PENDING};
        there = both_get_there(&g, handles, status, epw_ready);
        CHECK_MSG(there, "rows of round %u", round);
        for (uint32_t r = 0; r < 2 && there; r++) {
            epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
            epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
            result.out = sums[r];
            result.nonblocking = 1;
            CHECK_OK(epw_dispatch_receive(g.of[r], handles[r], &rows, NULL));
            CHECK_OK(epw_combine(g.of[r], handles[r], &answer, NULL, NULL));
            status[r] = epw_combine_receive(g.of[r], handles[r], &result, NULL);
            CHECK(status[r] == EPW_OK || status[r] == EPW_PENDING);
        }
        there = there && both_get_there(&g, handles, status, by_poll);
        CHECK_MSG(there, "answers of round %u", round);
    }
    for (uint32_t r = 0; r < 2; r++) CHECK(atomic_load(&epw_fabric_nic(g.fabrics[r])->dozing));
    for (uint32_t r = 0; r < 2; r++) epw_nic_stretch_sleeps(epw_fabric_nic(g.fabrics[r]), 1);
    destroy(&g);
}

/* How many entries of peers the NIC has placed. */
static uint32_t placed(epw_nic *nic) {
    uint32_t count = 0;
    epw_nic_lock(nic);
    for (uint32_t i = 0; i < nic->pair_count; i++)
        if (nic->pairs[i] != NULL) count += nic->pairs[i]->expected;
    epw_nic_unlock(nic);
    return count;
}

/* Who leaves has driven after the thread counted drives the last time: the thread must not take that for a
 * sign that somebody still drives. */
static void who_leaves_is_replaced(void) {
    group g = make_group(2, 60000 * MS);
    activate(&g, 1);
    epw_nic *nic = epw_fabric_nic(g.fabrics[1]);
    static batch made;
    epw_dispatch_input in = make_batch(&made, 0);
    epw_handle handle;
    in.layout = EPW_RANK_MAJOR;
    lull(nic);
    epw_nic_drive(nic, epw_now_ns());
    epw_nic_rest(nic);
    uint32_t before = placed(nic);
    CHECK_OK(epw_dispatch(g.of[0], &in, NULL, &handle, NULL));
    uint64_t began = epw_now_ns();
    while (epw_now_ns() - began < LOOKS_MS * MS && placed(nic) == before) nanosleep(&pause_2_ms, NULL);
    CHECK_MSG(placed(nic) > before, "the thread dozes although nobody drives");
    epw_nic_stretch_sleeps(nic, 1);
    epw_nic_wake(nic);
    destroy(&g);
}

int main(void) {
    setenv("EPW_TEST_PATH", "queue", 1);
    setenv("EPW_TEST_NIC", "soft", 1); /* a strict NIC's thread ends its delays */
    static const char *const wires[] = {"local", "tcp"};
    for (int i = 0; i < 2; i++) {
        setenv("EPW_TEST_WIRE", wires[i], 1);
        who_looks_waits_for_no_thread();
        who_leaves_is_replaced();
    }
    return check_result("polling");
}
