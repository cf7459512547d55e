/* See layout.h. */
#include "coll/layout.h"

#include "coll/gpu/gpu.h"

#include "base/bits.h"
#include "nic/fabric.h"
#include "peer/sizes.h"

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
    uint32_t depth = c->queue_depth;
    if (depth != 0 &&
        (depth < EPW_QUEUE_DEPTH_MIN || depth > EPW_QUEUE_DEPTH_MAX || (depth & (depth - 1)) != 0))
        return epw_fail(EPW_ERR_LIMIT, where,
                        "config.queue_depth is %u, must be a power of two in [%u, %u], or 0", depth,
                        EPW_QUEUE_DEPTH_MIN, EPW_QUEUE_DEPTH_MAX);
    return EPW_OK;
}

epw_status epw_coll_plan(const char *op, const epw_comm_config *c, bool queues, epw_coll_layout *l) {
    if (c == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){op, -1, -1}, "config is NULL");
    epw_where where = {op, (int)c->rank, -1};
    epw_status status = check(c, where);
    if (status != EPW_OK) return status;
    if (c->device != EPW_DEVICE_HOST) return epw_coll_gpu_plan(c, queues, where, l);
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

epw_stretch epw_coll_footprint(const epw_coll_layout *l, uint32_t source, uint32_t lane, uint32_t area) {
    if (area == EPW_AREA_ROWS) return (epw_stretch){epw_ring_offset(l, lane, source), l->slots * l->stride};
    uint64_t at = area == EPW_AREA_CONTROL ? epw_mismatch_offset(l, source) : epw_greeting_offset(l, source);
    return (epw_stretch){at, sizeof(epw_mismatch)};
}

uint32_t epw_coll_queue_depth(const epw_comm_config *c, const epw_coll_layout *l) {
    uint32_t asked = c->queue_depth > 0 ? c->queue_depth : epw_fabric_queue_depth(c->fabric);
    return epw_queue_depth(l->entries > 0 ? l->entries : l->slots + 1, asked);
}

uint32_t epw_coll_lanes(const epw_comm_config *c) {
    return c->device == EPW_DEVICE_HOST ? EPW_CHANNELS : 1;
}

static epw_stretch footprint(void *user, uint32_t source, uint32_t lane, uint32_t area) {
    return epw_coll_footprint(user, source, lane, area);
}

/* The memory for peers behind queues, as if all other ranks were such peers. */
static void plan_queues(const epw_comm_config *c, epw_coll_layout *layout, epw_comm_sizes *sizes) {
    epw_remote_shape shape = {.ranks = c->ranks,
                              .lanes = epw_coll_lanes(c),
                              .depth = epw_coll_queue_depth(c, layout),
                              .footprint = footprint,
                              .user = layout};
#ifdef EPW_CUDA
    epw_coll_areas areas;
    if (c->device != EPW_DEVICE_HOST) {
        areas = epw_coll_gpu_areas(c);
        shape.footprint = epw_coll_gpu_footprint;
        shape.user = &areas;
    }
#endif
    sizes->image_bytes = epw_images_bytes(&shape);
    sizes->queue_bytes = epw_rings_bytes(&shape);
    sizes->inbox_bytes = epw_planned_inbox_bytes(&shape, c->device, c->fabric);
}

epw_status epw_comm_plan(const epw_comm_config *c, epw_comm_sizes *sizes) {
    if (sizes == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"plan", -1, -1}, "sizes is NULL");
    if (sizes->size != sizeof *sizes)
        return epw_fail(EPW_ERR_INVALID, (epw_where){"plan", -1, -1},
                        "sizes.size is %u, this library's is %zu: use EPW_COMM_SIZES_INIT", sizes->size,
                        sizeof *sizes);
    bool queues = c != NULL && (c->paths & EPW_PATH_QUEUE);
    epw_coll_layout l;
    epw_status status = epw_coll_plan("plan", c, queues, &l);
    if (status != EPW_OK) return status;
    *sizes = (epw_comm_sizes){.size = sizeof *sizes,
                              .slots = l.slots,
                              .slot_bytes = l.slot_bytes,
                              .sms = l.blocks,
                              .control_bytes = l.rings_offset,
                              .ring_bytes = l.heap_offset - l.rings_offset,
                              .heap_bytes = l.heap_bytes,
                              .window_bytes = l.window_bytes};
    if (queues && c->ranks > 1) plan_queues(c, &l, sizes);
    return EPW_OK;
}
