/* The sizes of epw_comm_plan are what a communicator allocates: its window, the images and the queues of
 * peers behind queues. tests/gpu/replaced_comm.c has the same for GPUs. */
#include "allocated.h"
#include "comms.h"

#include "coll/parts.h"

enum { RANKS = 3, DEEP = 8192 };

static epw_comm_config config_with(uint32_t queue_depth) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.ranks = RANKS;
    config.slot_bytes = 4096;
    config.heap_bytes = 1 << 20;
    config.queue_depth = queue_depth;
    return config;
}

static epw_comm_sizes planned(const epw_comm_config *config) {
    epw_comm_sizes sizes = EPW_COMM_SIZES_INIT;
    CHECK_OK(epw_comm_plan(config, &sizes));
    CHECK(sizes.slots == 8 && sizes.slot_bytes == 4096 && sizes.sms == 0 && sizes.heap_bytes == 1 << 20);
    CHECK(sizes.window_bytes == sizes.control_bytes + sizes.ring_bytes + sizes.heap_bytes);
    CHECK(sizes.ring_bytes >= UINT64_C(2) * RANKS * 8 * 4096 && sizes.inbox_bytes == 0);
    return sizes;
}

static void a_plan_is_what_is_allocated(uint32_t queue_depth) {
    epw_comm_config config = config_with(queue_depth);
    epw_comm_sizes sizes = planned(&config);
    comms c = open_comms(RANKS, config);
    for (uint32_t r = 0; r < RANKS; r++) {
        const epw_peers *peers = &c.of[r]->peers;
        uint64_t images = images_of(peers);
        CHECK(c.of[r]->layout.window_bytes == sizes.window_bytes);
        CHECK_MSG(images == sizes.image_bytes, "%llu of %llu", (unsigned long long)images,
                  (unsigned long long)sizes.image_bytes);
        check_queues_of(peers, sizes.queue_bytes);
        CHECK(sizes.queue_bytes >= UINT64_C(64) * queue_depth * 2 * (RANKS - 1));
    }
    close_comms(&c);
}

static void only_what_is_permitted_is_counted(void) {
    epw_comm_config config = config_with(0);
    epw_comm_sizes all = planned(&config);
    config.paths &= ~(uint32_t)EPW_PATH_QUEUE;
    epw_comm_sizes mapped = planned(&config);
    CHECK(mapped.image_bytes == 0 && mapped.queue_bytes == 0 && mapped.window_bytes == all.window_bytes);
    config = config_with(DEEP);
    config.ranks = 1;
    epw_comm_sizes alone = EPW_COMM_SIZES_INIT;
    CHECK_OK(epw_comm_plan(&config, &alone));
    CHECK(alone.image_bytes == 0 && alone.queue_bytes == 0);
}

static void what_is_wrong_is_named(void) {
    epw_comm_config config = config_with(24);
    epw_comm_sizes sizes = EPW_COMM_SIZES_INIT;
    REFUSED(epw_comm_plan(&config, &sizes), EPW_ERR_LIMIT, "plan", 0, -1, "config.queue_depth is 24");
    REFUSED(epw_comm_plan(NULL, &sizes), EPW_ERR_INVALID, "plan", -1, -1, "config is NULL");
    REFUSED(epw_comm_plan(&config, NULL), EPW_ERR_INVALID, "plan", -1, -1, "sizes is NULL");
    sizes.size--;
    REFUSED(epw_comm_plan(&config, &sizes), EPW_ERR_INVALID, "plan", -1, -1, "use EPW_COMM_SIZES_INIT");
}

int main(void) {
    setenv("EPW_TEST_PATH", "queue", 1);
    setenv("EPW_TEST_NIC", "soft", 1); /* whose queues malloc has given */
    a_plan_is_what_is_allocated(0);
    a_plan_is_what_is_allocated(DEEP);
    only_what_is_permitted_is_counted();
    what_is_wrong_is_named();
    return check_result("comm_sizes");
}
