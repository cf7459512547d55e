/* See plan.h. The limits of the library are checked here and nowhere else. */
#include "ep/plan.h"

#include "base/bits.h"
#include "base/status.h"
#include "ep/engine.h"
#include "nic/entry.h"
#include "nic/fabric.h"
#include "peer/sizes.h"

#define PAGE             4096u
#define HEADER_ALIGN     128u
#define SLOT_ALIGN       64u
#define MAX_EXPERTS      (1u << 20)
#define MAX_WINDOW_BYTES (UINT64_C(1) << 46)
#define MIN_DEADLINE_NS  UINT64_C(1000000)
#define MAX_HIDDEN       (1u << 24)
#define MAX_OPAQUE_BYTES (1u << 30) /* sizes within a row have 32 bits, in kernels too */

/* Saturates at the largest value instead of wrapping around. */
static uint64_t mul(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}
static uint64_t add(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

#define REQUIRE(ok, code, ...)                                                                               \
    do {                                                                                                     \
        if (!(ok)) return epw_fail((code), where, __VA_ARGS__);                                              \
    } while (0)

epw_status epw_config_check(epw_where where, const epw_config *c) {
    REQUIRE(c != NULL, EPW_ERR_INVALID, "config is NULL");
    REQUIRE(c->size == sizeof *c, EPW_ERR_INVALID,
            "config.size is %u, this library's is %zu: use EPW_CONFIG_INIT", c->size, sizeof *c);
    REQUIRE(c->version == EPW_CONFIG_VERSION, EPW_ERR_INVALID, "config.version is %u, this library knows %u",
            c->version, EPW_CONFIG_VERSION);
    REQUIRE(c->ranks >= 1 && c->ranks <= EPW_MAX_RANKS, EPW_ERR_LIMIT, "ranks is %u, must be in [1, %u]",
            c->ranks, EPW_MAX_RANKS);
    REQUIRE(c->rank < c->ranks, EPW_ERR_INVALID, "rank is %u, must be below ranks %u", c->rank, c->ranks);
    where.rank = (int)c->rank;
    REQUIRE(c->max_tokens >= 1 && c->max_tokens <= EPW_MAX_TOKENS, EPW_ERR_LIMIT,
            "max_tokens is %u, must be in [1, %u]", c->max_tokens, EPW_MAX_TOKENS);
    REQUIRE(c->hidden >= 8 && c->hidden % 8 == 0 && c->hidden <= MAX_HIDDEN, EPW_ERR_LIMIT,
            "hidden is %u, must be a positive multiple of 8 (rows of 16 bytes), at most %u", c->hidden,
            MAX_HIDDEN);
    REQUIRE(c->experts >= 1 && c->experts <= MAX_EXPERTS, EPW_ERR_LIMIT, "experts is %u, must be in [1, %u]",
            c->experts, MAX_EXPERTS);
    REQUIRE(c->experts % c->ranks == 0, EPW_ERR_INVALID,
            "experts is %u, must be a multiple of ranks %u: add physical replicas to fill up", c->experts,
            c->ranks);
    uint32_t topk_max = c->experts < EPW_MAX_TOPK ? c->experts : EPW_MAX_TOPK;
    REQUIRE(c->topk >= 1 && c->topk <= topk_max, EPW_ERR_LIMIT, "topk is %u, must be in [1, %u]", c->topk,
            topk_max);
    REQUIRE(c->lanes >= 1 && c->lanes <= EPW_MAX_LANES, EPW_ERR_LIMIT, "lanes is %u, must be 1 or 2",
            c->lanes);
    REQUIRE(c->dtype <= EPW_F16, EPW_ERR_INVALID, "dtype is %u, must be EPW_BF16 or EPW_F16", c->dtype);
    REQUIRE(c->combine_dtype <= EPW_F16, EPW_ERR_INVALID, "combine_dtype is %u, must be EPW_BF16 or EPW_F16",
            c->combine_dtype);
    REQUIRE(c->opaque_bytes <= MAX_OPAQUE_BYTES, EPW_ERR_LIMIT, "opaque_bytes is %u, must be at most %u",
            c->opaque_bytes, MAX_OPAQUE_BYTES);
    REQUIRE(c->sideband_bytes <= EPW_MAX_SIDEBAND, EPW_ERR_LIMIT, "sideband_bytes is %u, must be at most %u",
            c->sideband_bytes, EPW_MAX_SIDEBAND);
    REQUIRE(c->ordered <= 1 && c->zero_copy <= 1, EPW_ERR_INVALID,
            "ordered is %u and zero_copy %u, must be 0 or 1", c->ordered, c->zero_copy);
    REQUIRE(!c->ordered || c->max_tokens <= EPW_ORDERED_MAX_TOKENS, EPW_ERR_LIMIT,
            "max_tokens is %u, must be at most %u with ordered combine", c->max_tokens,
            EPW_ORDERED_MAX_TOKENS);
    REQUIRE(c->threads <= 256, EPW_ERR_LIMIT, "threads is %u, must be at most 256", c->threads);
    REQUIRE(c->device >= EPW_DEVICE_HOST, EPW_ERR_INVALID,
            "device is %d, must be EPW_DEVICE_HOST (-1) or the ordinal of a GPU, from 0", c->device);
    REQUIRE(c->device == EPW_DEVICE_HOST || c->ranks <= EPW_GPU_MAX_RANKS, EPW_ERR_LIMIT,
            "ranks is %u, must be at most %u on GPUs", c->ranks, EPW_GPU_MAX_RANKS);
    REQUIRE(c->device == EPW_DEVICE_HOST || c->experts <= EPW_GPU_MAX_EXPERTS, EPW_ERR_LIMIT,
            "experts is %u, must be at most %u on GPUs", c->experts, EPW_GPU_MAX_EXPERTS);
    REQUIRE(c->sms <= EPW_MAX_SMS, EPW_ERR_LIMIT, "sms is %u, must be at most %u", c->sms, EPW_MAX_SMS);
    REQUIRE(c->serial_lanes <= 1, EPW_ERR_INVALID, "serial_lanes is %u, must be 0 or 1", c->serial_lanes);
    REQUIRE(c->reserved == 0, EPW_ERR_INVALID, "reserved is %u, must be 0", c->reserved);
    uint32_t depth = c->queue_depth;
    REQUIRE(depth == 0 ||
                (depth >= EPW_QUEUE_DEPTH_MIN && depth <= EPW_QUEUE_DEPTH_MAX && (depth & (depth - 1)) == 0),
            EPW_ERR_INVALID, "queue_depth is %u, must be 0 or a power of two from %u to %u", depth,
            EPW_QUEUE_DEPTH_MIN, EPW_QUEUE_DEPTH_MAX);
    REQUIRE(c->deadline_ns >= MIN_DEADLINE_NS && c->deadline_ns <= EPW_MAX_DEADLINE_NS, EPW_ERR_LIMIT,
            "deadline is %llu ns, must be in [%llu, %llu] (1 ms to 1 day)",
            (unsigned long long)c->deadline_ns, (unsigned long long)MIN_DEADLINE_NS,
            (unsigned long long)EPW_MAX_DEADLINE_NS);
    return EPW_OK;
}

epw_status epw_check_queued_slot(epw_where where, const epw_config *c, uint64_t slot_bytes) {
    REQUIRE(
        slot_bytes <= EPW_ENTRY_BYTES_MAX, EPW_ERR_LIMIT,
        "a row of config.opaque_bytes %u takes %llu bytes with what travels beside it, and a queue carries "
        "at most %llu at a time: lower it, or leave EPW_PATH_QUEUE out of config.paths",
        c->opaque_bytes, (unsigned long long)slot_bytes, (unsigned long long)EPW_ENTRY_BYTES_MAX);
    return EPW_OK;
}

epw_stretch epw_plan_footprint(const epw_layout *l, uint32_t source, uint32_t lane, uint32_t area) {
    uint64_t answers = (uint64_t)l->max_tokens * l->answers * l->row_bytes;
    switch (area) {
    case EPW_AREA_CONTROL:
        return (epw_stretch){epw_expert_counts_offset(l, lane, source), l->count_bytes};
    case EPW_AREA_ROWS:
        return (epw_stretch){epw_slot_offset(l, lane, source, 0), l->max_tokens * l->slot_bytes};
    default:
        return (epw_stretch){epw_answer_offset(l, lane, source, 0, 0), answers};
    }
}

uint32_t epw_plan_queue_depth(const epw_config *config) {
    uint32_t asked = config->queue_depth > 0 ? config->queue_depth : epw_fabric_queue_depth(config->fabric);
    return epw_queue_depth(EPW_ENTRIES_OF_A_TOKEN * config->max_tokens + EPW_ENTRIES_BESIDE, asked);
}

static epw_stretch footprint(void *user, uint32_t source, uint32_t lane, uint32_t area) {
    return epw_plan_footprint(user, source, lane, area);
}

static uint64_t private_bytes(const epw_config *config, const epw_layout *layout) {
#ifdef EPW_CUDA
    if (config->device != EPW_DEVICE_HOST) return epw_gpu_private_bytes(config);
#endif
    return epw_host_private_bytes(config, layout);
}

/* The memory for peers behind queues, as if all other ranks were such peers. */
static void plan_queues(const epw_config *config, const epw_layout *layout, epw_plan *plan) {
    epw_remote_shape shape = {.ranks = config->ranks,
                              .lanes = config->lanes,
                              .depth = epw_plan_queue_depth(config),
                              .footprint = footprint,
                              .user = (void *)(uintptr_t)layout};
    if (!(config->paths & EPW_PATH_QUEUE) || config->ranks == 1) return;
    plan->image_bytes = epw_images_bytes(&shape);
    plan->ring_bytes = epw_rings_bytes(&shape);
    plan->inbox_bytes = epw_planned_inbox_bytes(&shape, config->device, config->fabric);
}

epw_status epw_plan_layout(const char *op, const epw_config *config, epw_layout *layout, epw_plan *plan) {
    epw_where where = {op, -1, -1};
    epw_status status = epw_config_check(where, config);
    if (status != EPW_OK) return status;
    where.rank = (int)config->rank;

    uint32_t local = config->experts / config->ranks;
    uint64_t rows = (uint64_t)config->ranks * config->max_tokens;
    uint64_t row_bytes = (uint64_t)config->hidden * 2;
    uint64_t header = sizeof(epw_slot_header) + config->topk * (sizeof(epw_entry) + sizeof(uint32_t));
    header = epw_align(header + config->sideband_bytes, HEADER_ALIGN);
    uint64_t data = row_bytes > config->opaque_bytes ? row_bytes : config->opaque_bytes;
    uint64_t slot = epw_align(header + data, SLOT_ALIGN);
    uint32_t most_answers = config->topk < local ? config->topk : local;

    uint64_t expert_counts = epw_floor_bytes(config->ranks);
    uint64_t count_bytes = epw_align(local * sizeof(uint32_t) + sizeof(uint64_t), SLOT_ALIGN);
    uint64_t expert_counts_lane = config->ranks * count_bytes;
    uint64_t control = epw_align(expert_counts + expert_counts_lane * config->lanes, PAGE);
    uint64_t dispatch = mul(mul(rows, slot), config->lanes);
    uint64_t combine = mul(mul(rows, row_bytes), config->lanes);
    uint64_t ordered = config->ordered ? mul(combine, most_answers - 1) : 0;
    uint64_t zero_copy = config->zero_copy ? mul(combine, local) : 0;
    uint64_t total = add(add(control, dispatch), add(add(combine, ordered), zero_copy));
    if (total > MAX_WINDOW_BYTES) {
        return epw_fail(EPW_ERR_LIMIT, where,
                        "the window would take %.1f TiB, more than 64: lower max_tokens %u, hidden %u, "
                        "opaque_bytes %u or lanes %u",
                        (double)total / (double)(UINT64_C(1) << 40), config->max_tokens, config->hidden,
                        config->opaque_bytes, config->lanes);
    }

    *layout = (epw_layout){
        .ranks = config->ranks,
        .max_tokens = config->max_tokens,
        .topk = config->topk,
        .local_experts = local,
        .answers = config->ordered ? most_answers : 1,
        .rows = rows,
        .slot_bytes = slot,
        .header_bytes = header,
        .row_bytes = row_bytes,
        .count_bytes = count_bytes,
        .expert_counts = expert_counts,
        .expert_counts_lane = expert_counts_lane,
        .dispatch = control,
        .combine = control + dispatch,
        .zero_copy = control + dispatch + combine + ordered,
        .dispatch_lane = dispatch / config->lanes,
        .combine_lane = (combine + ordered) / config->lanes,
        .zero_copy_lane = zero_copy / config->lanes,
    };
    if (plan == NULL) return EPW_OK;
    if (plan->size != sizeof *plan) {
        return epw_fail(EPW_ERR_INVALID, where, "plan.size is %u, this library's is %zu: use EPW_PLAN_INIT",
                        plan->size, sizeof *plan);
    }
    *plan = (epw_plan){
        .size = sizeof *plan,
        .local_experts = local,
        .rows = rows,
        .slot_bytes = slot,
        .slot_header_bytes = header,
        .control_bytes = control,
        .dispatch_bytes = dispatch,
        .combine_bytes = combine,
        .ordered_bytes = ordered,
        .zero_copy_bytes = zero_copy,
        .window_bytes = epw_align(total, PAGE),
        .private_bytes = private_bytes(config, layout),
    };
    plan_queues(config, layout, plan);
    return EPW_OK;
}

epw_status epw_plan_make(const epw_config *config, epw_plan *plan) {
    if (plan == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"plan", -1, -1}, "plan is NULL");
    epw_layout layout = {0};
    return epw_plan_layout("plan", config, &layout, plan);
}

/* FNV-1a over the fields that both ends must agree on. */
static uint32_t hash_fields(const uint32_t *fields, size_t n) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < n; i++) {
        for (int byte = 0; byte < 4; byte++) hash = (hash ^ (fields[i] >> (8 * byte) & 0xff)) * 16777619u;
    }
    return hash;
}

epw_status epw_row_format_make(const char *op, const epw_config *config, const epw_dispatch_input *input,
                               epw_row_format *format) {
    epw_where where = {op, (int)config->rank, -1};
    REQUIRE(input->size == sizeof *input, EPW_ERR_INVALID,
            "input.size is %u, this library's is %zu: use EPW_DISPATCH_INPUT_INIT", input->size,
            sizeof *input);
    REQUIRE(input->payload <= EPW_PAYLOAD_OPAQUE, EPW_ERR_INVALID,
            "payload is %u, must be one of EPW_PAYLOAD_*", input->payload);
    REQUIRE(input->sideband_bytes <= config->sideband_bytes, EPW_ERR_LIMIT,
            "sideband_bytes is %u, the plan has room for %u", input->sideband_bytes, config->sideband_bytes);
    if (input->payload != EPW_PAYLOAD_OPAQUE) {
        REQUIRE(
            input->opaque_row_bytes == 0 && input->scale_count == 0, EPW_ERR_INVALID,
            "opaque_row_bytes is %u and scale_count %u, which only EPW_PAYLOAD_OPAQUE takes: leave them 0",
            input->opaque_row_bytes, input->scale_count);
        REQUIRE(input->scales == NULL, EPW_ERR_INVALID,
                "scales are given, which only EPW_PAYLOAD_OPAQUE takes: leave them out");
    }
    REQUIRE(input->scales == NULL || input->scale_count > 0, EPW_ERR_INVALID,
            "scales are given with scale_count 0: leave them out");
    REQUIRE(input->sideband == NULL || input->sideband_bytes > 0, EPW_ERR_INVALID,
            "sideband is given with sideband_bytes 0: leave it out");
    *format = (epw_row_format){0};
    switch (input->payload) {
    case EPW_PAYLOAD_SAME:
        format->payload_bytes = config->hidden * 2;
        break;
    case EPW_PAYLOAD_OPAQUE: {
        uint64_t bytes = (uint64_t)input->opaque_row_bytes + mul(input->scale_count, input->scale_bytes);
        uint32_t s = input->scale_bytes;
        REQUIRE(input->opaque_row_bytes > 0 && input->opaque_row_bytes % 16 == 0, EPW_ERR_INVALID,
                "opaque_row_bytes is %u, must be a positive multiple of 16", input->opaque_row_bytes);
        REQUIRE(input->scale_count == 0 || s == 1 || s == 2 || s == 4 || s == 8, EPW_ERR_INVALID,
                "scale_bytes is %u, must be 1, 2, 4 or 8", s);
        REQUIRE(bytes <= config->opaque_bytes, EPW_ERR_LIMIT,
                "an opaque row of %llu bytes with its scales exceeds the plan's opaque_bytes %u",
                (unsigned long long)bytes, config->opaque_bytes);
        format->payload_bytes = input->opaque_row_bytes;
        format->scale_count = input->scale_count;
        format->scale_bytes = input->scale_count ? s : 0;
        break;
    }
    default:
        REQUIRE(config->hidden % EPW_FP8_BLOCK == 0, EPW_ERR_LIMIT,
                "hidden is %u, FP8 needs a multiple of %u", config->hidden, EPW_FP8_BLOCK);
        format->payload_bytes = config->hidden;
        format->scale_count = config->hidden / EPW_FP8_BLOCK;
        format->scale_bytes = input->payload == EPW_PAYLOAD_FP8_UE8M0 ? 1 : 4;
    }
    uint32_t fields[] = {input->payload,      format->payload_bytes, format->scale_count,
                         format->scale_bytes, input->sideband_bytes, input->topk_weights != NULL};
    format->hash = hash_fields(fields, sizeof fields / sizeof fields[0]);
    return EPW_OK;
}

epw_status epw_row_shape_make(const epw_config *config, const epw_dispatch_input *input,
                              epw_row_shape *shape) {
    epw_layout layout = {0};
    epw_status status = epw_plan_layout("row_shape", config, &layout, NULL);
    if (status != EPW_OK) return status;
    epw_where where = {"row_shape", (int)config->rank, -1};
    REQUIRE(input != NULL, EPW_ERR_INVALID, "input is NULL");
    REQUIRE(shape != NULL, EPW_ERR_INVALID, "shape is NULL");
    REQUIRE(shape->size == sizeof *shape, EPW_ERR_INVALID,
            "shape.size is %u, this library's is %zu: use EPW_ROW_SHAPE_INIT", shape->size, sizeof *shape);
    epw_row_format format;
    status = epw_row_format_make("row_shape", config, input, &format);
    if (status != EPW_OK) return status;
    uint64_t scales = (uint64_t)format.scale_count * format.scale_bytes;
    /* UE8M0 scales are delivered packed, four to an i32, when column-major: the larger of the two orders. */
    if (input->payload == EPW_PAYLOAD_FP8_UE8M0) scales = epw_align(scales, 4);
    *shape = (epw_row_shape){
        .size = sizeof *shape,
        .payload_bytes = format.payload_bytes,
        .scale_count = format.scale_count,
        .scale_bytes = format.scale_bytes,
        .expert_rows_bytes = mul(mul(layout.local_experts, layout.rows), format.payload_bytes),
        .expert_scales_bytes = mul(mul(layout.local_experts, layout.rows), scales),
        .rank_rows_bytes = mul(layout.rows, format.payload_bytes),
        .rank_scales_bytes = mul(layout.rows, scales),
    };
    return EPW_OK;
}
