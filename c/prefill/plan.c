/* From a configuration to the sizes and the layout of a prefill window. */
#include "prefill/parts.h"

#include "ep/engine.h"
#include "nic/fabric.h"
#include "peer/sizes.h"
#include "prefill/gpu/gpu.h"

#define PAGE               4096u
#define LINE               64u
#define HEADER_ALIGN       128u
#define MAX_WINDOW_BYTES   (UINT64_C(1) << 46)
#define CHOSEN_BYTES       (UINT64_C(256) << 20)
#define LEAST_CHOSEN_SLOTS 16u

#define REQUIRE(ok, code, ...)                                                                               \
    do {                                                                                                     \
        if (!(ok)) return epw_fail((code), where, __VA_ARGS__);                                              \
    } while (0)

static epw_status check(epw_where where, const epw_prefill_config *c) {
    REQUIRE(c != NULL, EPW_ERR_INVALID, "config is NULL");
    REQUIRE(c->size == sizeof *c, EPW_ERR_INVALID,
            "config.size is %u, this library's is %zu: use EPW_PREFILL_CONFIG_INIT", c->size, sizeof *c);
    epw_status status = epw_config_check(where, &c->ep);
    if (status != EPW_OK) return status;
    where.rank = (int)c->ep.rank;
    REQUIRE(c->ring_tokens <= EPW_MAX_TOKENS + 1, EPW_ERR_LIMIT,
            "ring_tokens is %u, must be in [1, %u], or 0 for the library's choice", c->ring_tokens,
            EPW_MAX_TOKENS + 1);
    REQUIRE(c->ep.ordered == 0 && c->ep.zero_copy == 0, EPW_ERR_INVALID,
            "ordered is %u and zero_copy %u, must be 0: prefill needs neither", c->ep.ordered,
            c->ep.zero_copy);
    return c->ep.device == EPW_DEVICE_HOST ? EPW_OK : epw_prefill_gpu_check(where, c);
}

/* The bytes of all rings with this many slots. */
static uint64_t ring_bytes(const epw_prefill_layout *l, const epw_config *c, uint64_t slots) {
    return (uint64_t)c->lanes * c->ranks * slots * (l->slot_bytes + l->answer_bytes);
}

static uint32_t choose_slots(const epw_prefill_layout *l, const epw_config *c) {
    uint32_t slots = c->device >= 0 ? EPW_PREFILL_RING_TOKENS_GPU : EPW_PREFILL_RING_TOKENS;
    if (c->max_tokens + 1 < slots) slots = c->max_tokens + 1;
    while (slots > LEAST_CHOSEN_SLOTS && ring_bytes(l, c, slots) > CHOSEN_BYTES)
        slots = slots / 2 > LEAST_CHOSEN_SLOTS ? slots / 2 : LEAST_CHOSEN_SLOTS;
    return slots;
}

epw_stretch epw_prefill_footprint(const epw_prefill_layout *l, uint32_t source, uint32_t lane,
                                  uint32_t area) {
    switch (area) {
    case EPW_AREA_CONTROL:
        return (epw_stretch){l->control + ((uint64_t)lane * l->ranks + source) * EPW_CONTROL_BYTES,
                             EPW_CONTROL_BYTES};
    case EPW_AREA_ROWS:
        return (epw_stretch){epw_row_slot_offset(l, lane, source, 0), l->slots * l->slot_bytes};
    default:
        return (epw_stretch){epw_answer_slot_offset(l, lane, source, 0), l->slots * l->answer_bytes};
    }
}

/* The most entries in a peer's queue: both rings, and these for words. */
enum { ENTRIES_BESIDE = 16 };

uint32_t epw_prefill_queue_depth(const epw_prefill_config *config, const epw_prefill_layout *layout) {
    const epw_config *c = &config->ep;
    uint32_t asked = c->queue_depth > 0 ? c->queue_depth : epw_fabric_queue_depth(c->fabric);
    return epw_queue_depth(2 * layout->slots + ENTRIES_BESIDE, asked);
}

static epw_stretch footprint(void *user, uint32_t source, uint32_t lane, uint32_t area) {
    return epw_prefill_footprint(user, source, lane, area);
}

static void plan_queues(const epw_prefill_config *config, const epw_prefill_layout *layout,
                        epw_prefill_sizes *sizes) {
    epw_remote_shape shape = {.ranks = config->ep.ranks,
                              .lanes = config->ep.lanes,
                              .depth = epw_prefill_queue_depth(config, layout),
                              .footprint = footprint,
                              .user = (void *)(uintptr_t)layout};
    if (!(config->ep.paths & EPW_PATH_QUEUE) || config->ep.ranks == 1) return;
    sizes->image_bytes = epw_images_bytes(&shape);
    sizes->ring_bytes = epw_rings_bytes(&shape);
    sizes->inbox_bytes = epw_planned_inbox_bytes(&shape, config->ep.device, config->ep.fabric);
}

static uint64_t scratch_bytes(const epw_prefill_layout *l) {
    return epw_align(l->slot_bytes - l->header_bytes, LINE);
}

static uint64_t private_bytes(const epw_config *c, const epw_prefill_layout *l) {
    uint64_t of_a_peer =
        sizeof(epw_prefill_peer) + EPW_KINDS * sizeof(epw_stream) + sizeof(epw_turn) + 2 * sizeof(uint64_t);
    return c->lanes * (c->ranks * of_a_peer + EPW_ROWS_TURN * sizeof(uint32_t)) +
           epw_host_threads(c) * scratch_bytes(l);
}

epw_status epw_prefill_lay_out(const char *op, const epw_prefill_config *config, epw_prefill_layout *l,
                               epw_prefill_sizes *sizes) {
    epw_where where = {op, -1, -1};
    epw_status status = check(where, config);
    if (status != EPW_OK) return status;
    const epw_config *c = &config->ep;
    where.rank = (int)c->rank;
    uint32_t local = c->experts / c->ranks, entries = c->topk * (sizeof(epw_entry) + sizeof(uint32_t));
    uint64_t row = (uint64_t)c->hidden * 2, data = row > c->opaque_bytes ? row : c->opaque_bytes;
    uint64_t opening = sizeof(epw_row_head) + sizeof(epw_opening) + local * sizeof(uint32_t);
    *l = (epw_prefill_layout){.ranks = c->ranks, .topk = c->topk, .local_experts = local, .row_bytes = row};
    l->header_bytes = epw_align(sizeof(epw_slot_header) + entries + c->sideband_bytes, HEADER_ALIGN);
    l->slot_bytes = epw_align(l->header_bytes + data, LINE);
    if (l->slot_bytes < opening) l->slot_bytes = epw_align(opening, LINE);
    l->answer_head = epw_align(sizeof(epw_row_head) + c->topk * sizeof(float), LINE);
    l->answer_bytes = epw_align(l->answer_head + row, LINE);
    l->slots = config->ring_tokens != 0 ? config->ring_tokens : choose_slots(l, c);
    l->slot_inverse = epw_inverse(l->slots);
    l->control = epw_floor_bytes(c->ranks);
    l->flags = l->control + (uint64_t)c->lanes * c->ranks * EPW_CONTROL_BYTES;
    l->rows = epw_align(l->flags + (c->device >= 0 ? epw_flags_bytes(l, c->lanes) : 0), PAGE);
    uint64_t rings = (uint64_t)c->lanes * c->ranks * l->slots;
    l->answers = l->rows + rings * l->slot_bytes;
    uint64_t end = l->answers + rings * l->answer_bytes;
    if (end > MAX_WINDOW_BYTES) {
        return epw_fail(EPW_ERR_LIMIT, where,
                        "the window would take %.1f TiB, more than 64: lower ring_tokens %u, hidden %u, "
                        "opaque_bytes %u or lanes %u",
                        (double)end / (double)(UINT64_C(1) << 40), l->slots, c->hidden, c->opaque_bytes,
                        c->lanes);
    }
    l->window_bytes = epw_align(end, PAGE);
    if (sizes == NULL) return EPW_OK;
    if (sizes->size != sizeof *sizes) {
        return epw_fail(EPW_ERR_INVALID, where,
                        "sizes.size is %u, this library's is %zu: use EPW_PREFILL_SIZES_INIT", sizes->size,
                        sizeof *sizes);
    }
    uint32_t answers = c->topk < local ? c->topk : local;
    *sizes = (epw_prefill_sizes){
        .size = sizeof *sizes,
        .local_experts = local,
        .ring_tokens = l->slots,
        .split_tokens = l->slots - 1 < c->max_tokens ? l->slots - 1 : c->max_tokens,
        .split_tokens_ordered =
            (l->slots - 1) / answers < c->max_tokens ? (l->slots - 1) / answers : c->max_tokens,
        .slot_bytes = l->slot_bytes,
        .answer_bytes = l->answer_bytes,
        .control_bytes = l->rows,
        .dispatch_bytes = rings * l->slot_bytes,
        .combine_bytes = rings * l->answer_bytes,
        .window_bytes = l->window_bytes,
        .private_bytes = private_bytes(c, l),
        .routing_bytes = epw_routing_own_bytes(l, c->max_tokens),
        .routing_row_bytes = 2 * sizeof(uint32_t) + c->topk * sizeof(epw_row_place),
    };
    plan_queues(config, l, sizes);
    if (c->device != EPW_DEVICE_HOST) epw_prefill_gpu_plan(config, l, sizes);
    return EPW_OK;
}

epw_status epw_prefill_plan(const epw_prefill_config *config, epw_prefill_sizes *sizes) {
    if (sizes == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"plan", -1, -1}, "sizes is NULL");
    epw_prefill_layout layout;
    return epw_prefill_lay_out("plan", config, &layout, sizes);
}
