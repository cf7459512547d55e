/* See layout.h. */
#include "coll/layout.h"

#include "coll/gpu/gpu.h"

#include "base/bits.h"

enum {
    SLOTS_DEFAULT = 8,
    SLOTS_MAX = 256,
    SLOT_MIN = 64,
    SLOT_MAX = 1 << 24,
    SLOT_LEAST_CHOSEN = 1 << 10,
    SLOT_MOST_CHOSEN = 1 << 15,
    RINGS_CHOSEN = 1 << 24, /* for all rings together */
    LINE = 64
};
#define HEAP_MAX (UINT64_C(1) << 44)

static uint32_t choose_slot_bytes(uint32_t ranks, uint32_t slots) {
    uint32_t bytes = SLOT_MOST_CHOSEN;
    while (bytes > SLOT_LEAST_CHOSEN && (uint64_t)EPW_CHANNELS * ranks * slots * bytes > RINGS_CHOSEN)
        bytes /= 2;
    return bytes;
}

static epw_status check(const epw_comm_config *c, epw_where where) {
    if (c->size != sizeof *c)
        return epw_fail(EPW_ERR_INVALID, where,
                        "config.size is %u, this library's is %zu: use "
                        "EPW_COMM_CONFIG_INIT",
                        c->size, sizeof *c);
    if (c->version != EPW_COMM_CONFIG_VERSION)
        return epw_fail(EPW_ERR_INVALID, where, "config.version is %u, this library's is %d", c->version,
                        EPW_COMM_CONFIG_VERSION);
    if (c->ranks < 1 || c->ranks > EPW_MAX_RANKS)
        return epw_fail(EPW_ERR_LIMIT, where, "config.ranks is %u, must be in [1, %d]", c->ranks,
                        EPW_MAX_RANKS);
    if (c->rank >= c->ranks)
        return epw_fail(EPW_ERR_INVALID, where, "config.rank is %u, must be below %u", c->rank, c->ranks);
    if (c->slots != 0 && (c->slots < 2 || c->slots > SLOTS_MAX || (c->slots & (c->slots - 1)) != 0))
        return epw_fail(EPW_ERR_LIMIT, where, "config.slots is %u, must be a power of two in [2, %d], or 0",
                        c->slots, SLOTS_MAX);
    if (c->slot_bytes != 0 &&
        (c->slot_bytes < SLOT_MIN || c->slot_bytes > SLOT_MAX || c->slot_bytes % SLOT_MIN != 0))
        return epw_fail(EPW_ERR_LIMIT, where,
                        "config.slot_bytes is %u, must be a multiple of %d in [%d, %d], or 0", c->slot_bytes,
                        SLOT_MIN, SLOT_MIN, SLOT_MAX);
    if (c->heap_bytes > HEAP_MAX)
        return epw_fail(EPW_ERR_LIMIT, where, "config.heap_bytes is %llu, must be at most %llu",
                        (unsigned long long)c->heap_bytes, (unsigned long long)HEAP_MAX);
    if (c->deadline_ns < UINT64_C(1000000) || c->deadline_ns > UINT64_C(86400000000000))
        return epw_fail(EPW_ERR_LIMIT, where,
                        "config.deadline is %llu ns, must be in [1000000, "
                        "86400000000000]: 1 ms to 1 day",
                        (unsigned long long)c->deadline_ns);
    return EPW_OK;
}

epw_status epw_coll_plan(const epw_comm_config *c, bool queues, epw_coll_layout *l) {
    if (c == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"create", -1, -1}, "config is NULL");
    epw_status status = check(c, (epw_where){"create", (int)c->rank, -1});
    if (status != EPW_OK) return status;
    if (c->device != EPW_DEVICE_HOST) return epw_coll_gpu_plan(c, queues, l);
    uint32_t slots = c->slots != 0 ? c->slots : SLOTS_DEFAULT;
    uint32_t slot_bytes = c->slot_bytes != 0 ? c->slot_bytes : choose_slot_bytes(c->ranks, slots);
    *l = (epw_coll_layout){.ranks = c->ranks,
                           .slots = slots,
                           .slot_bytes = slot_bytes,
                           .stride = sizeof(epw_message) + slot_bytes,
                           .control_offset = epw_align(epw_floor_bytes(c->ranks), LINE),
                           .heap_bytes = epw_align(c->heap_bytes, LINE)};
    l->rings_offset = epw_align(epw_greeting_offset(l, c->ranks), LINE);
    l->heap_offset = epw_align(epw_ring_offset(l, EPW_CHANNELS, 0), 4096);
    l->window_bytes = l->heap_offset + l->heap_bytes;
    return EPW_OK;
}
