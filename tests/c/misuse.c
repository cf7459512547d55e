/* What a C program can do wrong, through epwire.h alone: every error that can be provoked without killing a
 * process has the documented status, and names its operation, rank, peer, field and limit. Calls that wait
 * for nobody are made for all ranks by one thread. */
#include "group.h"

#include <stddef.h>
#include <stdlib.h>

/* ---- Configuration ---- */

static void plan_names_field_and_limit(void) {
    const struct {
        size_t offset;
        uint32_t value;
        epw_status status;
        int rank;
        const char *words;
    } wrong[] = {
        {offsetof(epw_config, size), 4, EPW_ERR_INVALID, -1, "EPW_CONFIG_INIT"},
        {offsetof(epw_config, version), 9, EPW_ERR_INVALID, -1, "version is 9"},
        {offsetof(epw_config, ranks), 1025, EPW_ERR_LIMIT, -1, "ranks is 1025, must be in [1, 1024]"},
        {offsetof(epw_config, rank), 2, EPW_ERR_INVALID, -1, "rank is 2, must be below ranks 2"},
        {offsetof(epw_config, max_tokens), 65537, EPW_ERR_LIMIT, 0,
         "max_tokens is 65537, must be in [1, 65536]"},
        {offsetof(epw_config, hidden), 12, EPW_ERR_LIMIT, 0,
         "hidden is 12, must be a positive multiple of 8"},
        {offsetof(epw_config, experts), 7, EPW_ERR_INVALID, 0, "experts is 7, must be a multiple of ranks 2"},
        {offsetof(epw_config, topk), 33, EPW_ERR_LIMIT, 0, "topk is 33, must be in [1, 12]"},
        {offsetof(epw_config, lanes), 3, EPW_ERR_LIMIT, 0, "lanes is 3, must be 1 or 2"},
        {offsetof(epw_config, dtype), 2, EPW_ERR_INVALID, 0, "dtype is 2"},
        {offsetof(epw_config, combine_dtype), 2, EPW_ERR_INVALID, 0, "combine_dtype is 2"},
        {offsetof(epw_config, opaque_bytes), (1u << 30) + 1, EPW_ERR_LIMIT, 0,
         "opaque_bytes is 1073741825, must be at most 1073741824"},
        {offsetof(epw_config, sideband_bytes), 65, EPW_ERR_LIMIT, 0,
         "sideband_bytes is 65, must be at most 64"},
        {offsetof(epw_config, ordered), 2, EPW_ERR_INVALID, 0, "ordered is 2"},
        {offsetof(epw_config, threads), 257, EPW_ERR_LIMIT, 0, "threads is 257, must be at most 256"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        epw_config config = config_of(0, 2);
        memcpy((char *)&config + wrong[i].offset, &wrong[i].value, 4);
        epw_plan plan = EPW_PLAN_INIT;
        epw_buffer *buffer = NULL;
        REFUSED(epw_plan_make(&config, &plan), wrong[i].status, "plan", wrong[i].rank, -1, wrong[i].words);
        REFUSED(epw_buffer_create(&config, &buffer), wrong[i].status, "create", wrong[i].rank, -1,
                wrong[i].words);
        CHECK(buffer == NULL);
    }
    epw_config config = config_of(0, 2);
    epw_plan plan = EPW_PLAN_INIT;
    config.deadline_ns = MS - 1;
    REFUSED(epw_plan_make(&config, &plan), EPW_ERR_LIMIT, "plan", 0, -1, "deadline is 999999 ns");
    config = config_of(0, 1024);
    config.ordered = config.zero_copy = 0;
    config.experts = 1024;
    config.max_tokens = 65536;
    config.opaque_bytes = 1 << 30;
    REFUSED(epw_plan_make(&config, &plan), EPW_ERR_LIMIT, "plan", 0, -1,
            "lower max_tokens 65536, hidden 256, opaque_bytes 1073741824 or lanes 2");
}

/* ---- Calls ---- */

static void null_is_an_error_and_never_a_crash(void) {
    epw_config config = config_of(0, 2);
    epw_plan plan = EPW_PLAN_INIT;
    epw_row_shape shape = EPW_ROW_SHAPE_INIT;
    epw_rows_view view = EPW_ROWS_VIEW_INIT;
    epw_handle handle = 2;
    batch made;
    epw_dispatch_input in = make_batch(&made, 0);
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_mask both = first_ranks(2);
    unsigned char bytes[EPW_BLOB_MAX] = {0};
    size_t length = 0;
    group g = make_group(2, 1000 * MS);
    epw_buffer *b = g.of[0];
    activate(&g, 1);

#define NO(op, rank, peer, call) REFUSED((call), EPW_ERR_INVALID, (op), (rank), (peer), "NULL")
#define NAMED(op, what, call)    REFUSED((call), EPW_ERR_INVALID, (op), 0, -1, what " is NULL")
    epw_last_error_detail(NULL);
    epw_buffer_destroy(NULL);
    CHECK(epw_buffer_path(NULL, 0) == EPW_PATH_NONE);
    CHECK(epw_buffer_wire(NULL, 0) == 0);
    NO("plan", -1, -1, epw_plan_make(NULL, &plan));
    NO("plan", -1, -1, epw_plan_make(&config, NULL));
    NO("row_shape", -1, -1, epw_row_shape_make(NULL, &in, &shape));
    NAMED("row_shape", "input", epw_row_shape_make(&config, NULL, &shape));
    NAMED("row_shape", "shape", epw_row_shape_make(&config, &in, NULL));
    shape.size = 7;
    REFUSED(epw_row_shape_make(&config, &in, &shape), EPW_ERR_INVALID, "row_shape", 0, -1, "shape.size is 7");
    NO("create", -1, -1, epw_buffer_create(NULL, &b));
    NO("create", -1, -1, epw_buffer_create(&config, NULL));
    NO("export", -1, -1, epw_buffer_export(NULL, 1, bytes, &length));
    NAMED("export", "blob", epw_buffer_export(b, 1, NULL, &length));
    NAMED("export", "length", epw_buffer_export(b, 1, bytes, NULL));
    NO("connect", -1, -1, epw_buffer_connect(NULL, 1, bytes, sizeof bytes));
    NO("connect", 0, 1, epw_buffer_connect(b, 1, NULL, 8));
    NO("connect", -1, -1, epw_buffer_connect_within(NULL, 1, bytes, sizeof bytes, 1));
    NO("disconnect", -1, -1, epw_buffer_disconnect(NULL, 1));
    NO("set_active", -1, -1, epw_buffer_set_active(NULL, &both, 2, 0));
    NAMED("set_active", "active", epw_buffer_set_active(b, NULL, 2, 0));
    NO("revoke", -1, -1, epw_buffer_revoke(NULL, &both));
    NAMED("revoke", "peers", epw_buffer_revoke(b, NULL));
    REFUSED(epw_buffer_revoke(b, &both), EPW_ERR_INVALID, "revoke", 0, -1, "this rank itself");
    epw_membership now = EPW_MEMBERSHIP_INIT;
    NO("membership", -1, -1, epw_buffer_membership(NULL, &now));
    NAMED("membership", "membership", epw_buffer_membership(b, NULL));
    now.size = 7;
    REFUSED(epw_buffer_membership(b, &now), EPW_ERR_INVALID, "membership", 0, -1, "membership.size is 7");
    NO("reachable_experts", -1, -1, epw_buffer_reachable_experts(NULL, bytes));
    NAMED("reachable_experts", "reachable", epw_buffer_reachable_experts(b, NULL));
    NO("dispatch", -1, -1, epw_dispatch(NULL, &in, NULL, &handle, NULL));
    NAMED("dispatch", "handle", epw_dispatch(b, &in, NULL, NULL, NULL));
    NO("dispatch", 0, -1, epw_dispatch(b, NULL, NULL, &handle, NULL));
    NO("dispatch_receive", -1, -1, epw_dispatch_receive(NULL, handle, NULL, NULL));
    NO("dispatched_rows", -1, -1, epw_dispatched_rows(NULL, handle, &view));
    NO("next_combine_buffer", -1, -1, epw_next_combine_buffer(NULL, handle, &view));
    NO("combine", -1, -1, epw_combine(NULL, handle, &answer, NULL, NULL));
    NO("combine_receive", -1, -1, epw_combine_receive(NULL, handle, NULL, NULL));
    NO("poll", -1, -1, epw_poll(NULL, handle, NULL));
    NO("await", -1, -1, epw_await(NULL, handle, 0));
    NO("ready", -1, -1, epw_ready(NULL, handle));
    NO("release", -1, -1, epw_release(NULL, handle));
    epw_error_record record;
    uint32_t count;
    NO("take_errors", -1, -1, epw_take_errors(NULL, &record, sizeof(epw_error_record), 1, &count, NULL));
    NAMED("take_errors", "records", epw_take_errors(b, NULL, sizeof(epw_error_record), 1, &count, NULL));
    REFUSED(epw_take_errors(b, &record, sizeof record - 8, 1, &count, NULL), EPW_ERR_INVALID, "take_errors",
            0, -1, "record_size is 56, this library's is 64");
    NAMED("take_errors", "count", epw_take_errors(b, &record, sizeof(epw_error_record), 1, NULL, NULL));
    NO("quantize_fp8", -1, -1, epw_quantize_fp8(EPW_PAYLOAD_FP8_F32, EPW_BF16, 1, 128, NULL, bytes, bytes));
    NO("dequantize_fp8", -1, -1,
       epw_dequantize_fp8(EPW_PAYLOAD_FP8_F32, EPW_BF16, 1, 128, NULL, bytes, bytes));

    /* NULLs in a call that has got as far as a lane. */
    epw_dispatch_output rows = EPW_DISPATCH_OUTPUT_INIT;
    in.x = NULL;
    REFUSED(epw_dispatch(b, &in, NULL, &handle, NULL), EPW_ERR_INVALID, "dispatch", 0, -1, "x is NULL");
    in = make_batch(&made, 0);
    REFUSED(epw_dispatch(b, &in, &rows, &handle, NULL), EPW_ERR_INVALID, "dispatch", 0, -1, "output.rows");
    in.layout = EPW_RANK_MAJOR;
    CHECK_OK(epw_dispatch(b, &in, NULL, &handle, NULL));
    NO("dispatch_receive", 0, -1, epw_dispatch_receive(b, handle, NULL, NULL));
    epw_handle of_peer;
    CHECK_OK(epw_dispatch(g.of[1], &in, NULL, &of_peer, NULL));
    CHECK_OK(epw_dispatch_receive(b, handle, &rows, NULL));
    NAMED("dispatched_rows", "view", epw_dispatched_rows(b, handle, NULL));
    view.size = 7;
    REFUSED(epw_dispatched_rows(b, handle, &view), EPW_ERR_INVALID, "dispatched_rows", 0, -1,
            "view.size is 7");
    NAMED("next_combine_buffer", "view", epw_next_combine_buffer(b, handle, NULL));
    NO("combine", 0, -1, epw_combine(b, handle, NULL, NULL, NULL));
    CHECK_OK(epw_combine(b, handle, &answer, NULL, NULL));
    NO("combine_receive", 0, -1, epw_combine_receive(b, handle, NULL, NULL));
    CHECK_OK(epw_release(b, handle));
    CHECK_OK(epw_release(g.of[1], of_peer));
    destroy(&g);
#undef NAMED
#undef NO
}

static void connect_says_what_is_wrong_with_a_blob(void) {
    group g = make_group(2, 1000 * MS);
    unsigned char blob[EPW_BLOB_MAX], other[EPW_BLOB_MAX];
    size_t length;
    epw_buffer *b = g.of[0], *peer;
    const uint32_t path = epw_buffer_path(b, 1);
    REFUSED(epw_buffer_export(b, 0, blob, &length), EPW_ERR_INVALID, "export", 0, -1, "peer is 0");
    REFUSED(epw_buffer_export(b, 2, blob, &length), EPW_ERR_INVALID, "export", 0, -1, "must be below 2");
    REFUSED(epw_buffer_connect(b, 2, blob, 8), EPW_ERR_INVALID, "connect", 0, -1, "must be below 2");
    CHECK_OK(epw_buffer_export(g.of[1], 0, blob, &length));
    memcpy(other, blob, length);
    other[length / 2] ^= 1;
    REFUSED(epw_buffer_connect(b, 1, other, length), EPW_ERR_INVALID, "connect", 0, 1, "damaged");
    CHECK(path != EPW_PATH_NONE && epw_buffer_path(b, 1) == path); /* a call that is refused has no effect */
    REFUSED(epw_buffer_connect(b, 1, blob, length - 1), EPW_ERR_INVALID, "connect", 0, 1, "bytes");
    REFUSED(epw_buffer_connect(b, 1, "", 0), EPW_ERR_INVALID, "connect", 0, 1, "not a blob");
    REFUSED(epw_buffer_connect_within(b, 1, blob, length, 0), EPW_ERR_INVALID, "connect", 0, 1,
            "deadline is 0 ns");
    REFUSED(epw_buffer_connect(g.of[1], 0, blob, length), EPW_ERR_INVALID, "connect", 1, 0,
            "exported by rank 1");

    epw_config config = config_of(1, 2);
    config.deadline_ns = 1000 * MS;
    config.hidden = 512;
    CHECK_OK(epw_buffer_create(&config, &peer));
    REFUSED(connect_to(b, 0, peer, 1), EPW_ERR_MISMATCH, "connect", 0, 1,
            "hidden is 256 here and 512 at peer 1");
    epw_buffer_destroy(peer);

    config.hidden = HIDDEN;
    config.paths = EPW_PATH_SELF;
    CHECK_OK(epw_buffer_create(&config, &peer));
    REFUSED(connect_to(peer, 1, b, 0), EPW_ERR_NO_PATH, "connect", 1, 0, "excluded by config.paths");
    if (path_of_test() == EPW_PATH_QUEUE) /* a queue serves both directions or none */
        REFUSED(connect_to(b, 0, peer, 1), EPW_ERR_NO_PATH, "connect", 0, 1, "the peer has no fabric");
    else
        CHECK_OK(connect_to(b, 0, peer, 1)); /* each rank chooses its own paths */
    epw_mask both = first_ranks(2);
    REFUSED(epw_buffer_set_active(peer, &both, 1, 0), EPW_ERR_STATE, "set_active", 1, 0, "not connected");
    CHECK_OK(epw_buffer_disconnect(b, 1));
    epw_buffer_destroy(peer);

    epw_fabric *fabric;
    config.paths = EPW_PATH_ALL;
    take_path(&config, &fabric);
    epw_config large = config;
    large.max_tokens = 16255;
    if (fabric != NULL)
        REFUSED(epw_buffer_create(&large, &peer), EPW_ERR_LIMIT, "create", 1, -1,
                "config.max_tokens 16255 is more than a queue takes, 16254");
    large = config;
    large.opaque_bytes = 1 << 30;
    if (fabric != NULL)
        REFUSED(epw_buffer_create(&large, &peer), EPW_ERR_LIMIT, "create", 1, -1,
                "a row of config.opaque_bytes 1073741824 takes ");
    CHECK_OK(epw_buffer_create(&config, &peer));
    CHECK_OK(epw_buffer_export(peer, 0, blob, &length));
    epw_buffer_destroy(peer);
    epw_fabric_destroy(fabric);
    REFUSED(epw_buffer_connect(b, 1, blob, length), EPW_ERR_PEER, "connect", 0, 1,
            path_of_test() == EPW_PATH_QUEUE ? "fabric is gone" : "has been destroyed");
    destroy(&g);
}

static void fabric_options_are_checked(void) {
    epw_fabric *fabric = NULL;
    epw_fabric_options good = EPW_FABRIC_OPTIONS_INIT, o;
    good.rank = 3;
    REFUSED(epw_fabric_create(NULL, &fabric), EPW_ERR_INVALID, "fabric", -1, -1, "options is NULL");
    REFUSED(epw_fabric_create(&good, NULL), EPW_ERR_INVALID, "fabric", -1, -1, "out is NULL");
    char size[96], rank[64];
    snprintf(size, sizeof size, "options.size is 7, this library's is %zu: use EPW_FABRIC_OPTIONS_INIT",
             sizeof good);
    snprintf(rank, sizeof rank, "options.rank is %u, must be below %u", EPW_MAX_RANKS, EPW_MAX_RANKS);
    o = good;
    o.size = 7;
    REFUSED(epw_fabric_create(&o, &fabric), EPW_ERR_INVALID, "fabric", -1, -1, size);
    o = good;
    o.rank = EPW_MAX_RANKS;
    REFUSED(epw_fabric_create(&o, &fabric), EPW_ERR_INVALID, "fabric", -1, -1, rank);
#define FABRIC_REFUSED(text) REFUSED(epw_fabric_create(&o, &fabric), EPW_ERR_INVALID, "fabric", 3, -1, text)
    o = good;
    o.wires = 8;
    FABRIC_REFUSED("options.wires is 0x8, must be some of EPW_WIRE_LOCAL, EPW_WIRE_TCP and EPW_WIRE_VERBS");
    o = good;
    o.wires = EPW_WIRE_VERBS;
    o.nic = EPW_NIC_FAKE;
    FABRIC_REFUSED("options.wires has EPW_WIRE_VERBS, which carries what a software NIC fetches: options.nic "
                   "is 3, must be EPW_NIC_SOFT or EPW_NIC_STRICT");
    o = good;
    o.nic = 9;
    FABRIC_REFUSED("options.nic is 9, must be EPW_NIC_SOFT, EPW_NIC_STRICT, EPW_NIC_FAKE or EPW_NIC_MLX5");
    o = good;
    o.doorbells = 3;
    FABRIC_REFUSED("options.doorbells is 3, must be EPW_DOORBELLS_AUTO, EPW_DOORBELLS_GPU or "
                   "EPW_DOORBELLS_HOST");
    o = good;
    o.ring_bytes = 5000;
    FABRIC_REFUSED("options.ring_bytes is 5000, must be 0 or a power of two from ");
    o = good;
    o.queue_depth = 100;
    FABRIC_REFUSED("options.queue_depth is 100, must be 0 or a power of two from ");
    o = good;
    o.doorbell_batch = UINT32_MAX;
    FABRIC_REFUSED("options.doorbell_batch is 4294967295, must be at most ");
    o = good;
    o.wires = EPW_WIRE_TCP;
    FABRIC_REFUSED("options.key is NULL: connections by TCP need one, the same on all ranks");
#undef FABRIC_REFUSED
    CHECK(fabric == NULL);
}

static void membership_is_guarded(void) {
    group g = make_group(3, 1000 * MS);
    epw_buffer *b = g.of[0];
    batch made;
    epw_dispatch_input in = make_batch(&made, 0);
    epw_handle handle;
    epw_mask mask = first_ranks(3), without = {{6}}, beyond = {{9}};
    uint8_t reachable[EXPERTS];
    epw_membership now = membership_of(b);
    CHECK(now.epoch == 0 && now.step == 0 && now.active.bits[0] == 0 && now.suspects.bits[0] == 0);
    REFUSED(epw_dispatch(b, &in, NULL, &handle, NULL), EPW_ERR_STATE, "dispatch", 0, -1, "no membership yet");
    REFUSED(epw_buffer_set_active(b, &mask, 0, 0), EPW_ERR_INVALID, "set_active", 0, -1,
            "must be in [1, 8388607]");
    REFUSED(epw_buffer_set_active(b, &mask, 8388608, 0), EPW_ERR_INVALID, "set_active", 0, -1,
            "epoch is 8388608");
    REFUSED(epw_buffer_set_active(b, &mask, 1, EPW_STEP_MAX + 1), EPW_ERR_INVALID, "set_active", 0, -1,
            "step is 2199023255552, must be in [0, 2199023255551]");
    REFUSED(epw_buffer_set_active(b, &without, 1, 0), EPW_ERR_INVALID, "set_active", 0, -1,
            "leaves this rank out");
    REFUSED(epw_buffer_set_active(b, &beyond, 1, 0), EPW_ERR_INVALID, "set_active", 0, -1, "rank 3 of 3");
    activate(&g, 5);
    REFUSED(epw_buffer_set_active(b, &mask, 5, 0), EPW_ERR_INVALID, "set_active", 0, -1,
            "must be in [6, 8388607]");
    REFUSED(epw_buffer_disconnect(b, 1), EPW_ERR_STATE, "disconnect", 0, 1, "active");
    REFUSED(connect_to(b, 0, g.of[1], 1), EPW_ERR_STATE, "connect", 0, 1, "active");
    CHECK_OK(epw_dispatch(b, &in, NULL, &handle, NULL));
    REFUSED(epw_buffer_set_active(b, &mask, 6, 0), EPW_ERR_STATE, "set_active", 0, -1,
            "lane 0 is held by operation 1");
    CHECK_OK(epw_release(b, handle));

    mask = first_ranks(2); /* the third rank leaves */
    CHECK_OK(epw_buffer_set_active(b, &mask, 6, 77));
    now = membership_of(b);
    CHECK(now.epoch == 6 && now.step == 77 && memcmp(&now.active, &mask, sizeof mask) == 0);
    CHECK_OK(epw_buffer_reachable_experts(b, reachable));
    for (uint32_t e = 0; e < EXPERTS; e++) CHECK_MSG(reachable[e] == (e < EXPERTS / 3 * 2), "expert %u", e);
    CHECK_OK(epw_buffer_disconnect(b, 2));
    CHECK(epw_buffer_path(b, 2) == EPW_PATH_NONE);
    destroy(&g);
}

static void a_refused_dispatch_is_as_never_made(void) {
    group g = make_group(2, 1000 * MS);
    activate(&g, 1);
    epw_buffer *b = g.of[0];
    batch made;
    epw_handle handle, second, third;
    epw_outcome outcome = EPW_OUTCOME_INIT;
#define WRONG(code, words, ...)                                                                              \
    do {                                                                                                     \
        epw_dispatch_input in = make_batch(&made, 0);                                                        \
        __VA_ARGS__;                                                                                         \
        REFUSED(epw_dispatch(b, &in, NULL, &handle, &outcome), (code), "dispatch", 0, -1, (words));          \
    } while (0)
    WRONG(EPW_ERR_INVALID, "EPW_DISPATCH_INPUT_INIT", in.size = 8);
    WRONG(EPW_ERR_LIMIT, "tokens is 17, the plan's max_tokens is 16", in.tokens = 17);
    WRONG(EPW_ERR_LIMIT, "topk is 5, must be in [1, 4]", in.topk = 5);
    WRONG(EPW_ERR_LIMIT, "sideband_bytes is 9, the plan has room for 8", in.sideband_bytes = 9);
    WRONG(EPW_ERR_LIMIT, "lane is 2, the buffer has 2", in.lane = 2);
    WRONG(EPW_ERR_LIMIT, "may only lengthen", in.deadline_ns = 1);
    WRONG(EPW_ERR_INVALID, "idx_type is 3", in.idx_type = 3);
    WRONG(EPW_ERR_INVALID, "layout is 2", in.layout = 2);
    WRONG(EPW_ERR_INVALID, "payload is 5", in.payload = 5);
    WRONG(EPW_ERR_INVALID, "opaque_row_bytes is 16 and scale_count 0", in.opaque_row_bytes = 16);
    WRONG(EPW_ERR_INVALID, "opaque_row_bytes is 0 and scale_count 2", in.scale_count = 2);
    WRONG(EPW_ERR_INVALID, "scales are given, which only EPW_PAYLOAD_OPAQUE takes", in.scales = &in);
    WRONG(EPW_ERR_INVALID, "scales are given with scale_count 0", in.scales = &in,
          in.payload = EPW_PAYLOAD_OPAQUE);
    WRONG(EPW_ERR_INVALID, "sideband is given with sideband_bytes 0", in.sideband_bytes = 0);
    WRONG(EPW_ERR_INVALID, "x_stride is 16 bytes, a row has 512", in.x_stride = 16);
    WRONG(EPW_ERR_INVALID, "topk_idx[3][1] is 12, must be in [-1, 12)", made.ids[13] = 12);
    WRONG(EPW_ERR_INVALID, "topk_idx[3][1] is -2", made.ids[13] = -2);
    WRONG(EPW_ERR_INVALID, "topk_idx[15][3] repeats expert", made.ids[63] = made.ids[60]);
    WRONG(EPW_ERR_INVALID, "EPW_OUTCOME_INIT", outcome.size = 0);
    outcome.size = sizeof outcome;

    epw_dispatch_input in = make_batch(&made, 0);
    CHECK_OK(epw_dispatch(b, &in, NULL, &handle, &outcome));
    CHECK_OK(epw_dispatch(b, &in, NULL, &second, &outcome));
    CHECK(handle != 0 && second != 0 && handle != second);

    /* An output that this layout does not fill. */
    static _Alignas(64) uint16_t rows[EXPERTS * TOKENS * HIDDEN];
    uint32_t counts[EXPERTS], list[1];
    int32_t ids[1];
    float weights[1];
#define UNFILLED(field, memory)                                                                              \
    do {                                                                                                     \
        epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;                                                  \
        out.rows = rows, out.counts = counts, out.field = (memory);                                          \
        REFUSED(epw_dispatch_receive(b, handle, &out, NULL), EPW_ERR_INVALID, "dispatch_receive", 0, -1,     \
                "output." #field " is given, which only rank-major fills");                                  \
    } while (0)
    UNFILLED(row_experts, ids);
    UNFILLED(row_weights, weights);
    UNFILLED(expert_rows, list);
#undef UNFILLED
    REFUSED(epw_dispatch(b, &in, NULL, &third, &outcome), EPW_ERR_STATE, "dispatch", 0, -1,
            "lane 0 is held by operation 1: combine or release");
    CHECK_OK(epw_release(b, handle));
    CHECK_OK(epw_release(b, second));
    destroy(&g);
#undef WRONG
}

static void sums_of_no_tokens_may_lie_anywhere(void) {
    group g = make_group(1, 1000 * MS);
    activate(&g, 1);
    uint16_t empty[2];
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    epw_handle handle = 0;
    in.topk = 1;
    in.layout = EPW_RANK_MAJOR;
    result.out = (char *)empty + ((uintptr_t)empty % 16 == 0 ? 2 : 0);
    CHECK_OK(epw_dispatch(g.of[0], &in, &out, &handle, NULL));
    CHECK_OK(epw_combine(g.of[0], handle, &answer, &result, NULL));
    destroy(&g);
}

static void a_wrong_combine_leaves_the_handle_usable(void) {
    group g = make_group(2, 1000 * MS);
    activate(&g, 1);
    static batch made[2];
    epw_handle handles[2];
    dispatch_both(&g, made, handles);
    epw_buffer *b = g.of[0];
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    static _Alignas(64) uint16_t combined[TOKENS * HIDDEN];
#define WRONG(code, words)                                                                                   \
    REFUSED(epw_combine(b, handles[0], &answer, &result, NULL), code, "combine", 0, -1, words)
    WRONG(EPW_ERR_INVALID, "output.out is NULL");
    result.out = combined + 1;
    WRONG(EPW_ERR_INVALID, "aligned to 16 bytes");
    result.out = combined;
    answer.mode = EPW_COMBINE_ORDERED;
    WRONG(EPW_ERR_INVALID, "dispatch expert-major");
    answer.mode = 2;
    WRONG(EPW_ERR_INVALID, "mode is 2");
    answer.mode = EPW_COMBINE_RANK_REDUCED;
    answer.topk_weights = made[0].weights;
    WRONG(EPW_ERR_INVALID, "topk_weights are given, which rank-reduced combine does not apply");
    answer.topk_weights = NULL;
    answer.deadline_ns = 1;
    WRONG(EPW_ERR_LIMIT, "may only lengthen");
    answer.deadline_ns = 0;
    answer.size = 0;
    WRONG(EPW_ERR_INVALID, "EPW_COMBINE_INPUT_INIT");
    answer.size = sizeof answer;
#undef WRONG
    REFUSED(epw_combine_receive(b, handles[0], &result, NULL), EPW_ERR_STATE, "combine_receive", 0, -1,
            "combine comes next");
    for (int r = 0; r < 2; r++) CHECK_OK(epw_combine(g.of[r], handles[r], &answer, NULL, NULL));
    for (int r = 0; r < 2; r++) CHECK_OK(epw_combine_receive(g.of[r], handles[r], &result, NULL));
    destroy(&g);
}

/* Another operation holds the lane now: the old handle must not affect it. */
static void a_used_handle_is_not_taken_for_the_next_one(void) {
    static batch made;
    group g = make_group(2, 100 * MS);
    activate(&g, 1);
    epw_handle first, second;
    epw_dispatch_input in = make_batch(&made, 0);
    in.lane = 0;
    CHECK_OK(epw_dispatch(g.of[0], &in, NULL, &first, NULL));
    CHECK_OK(epw_release(g.of[0], first));
    CHECK_OK(epw_buffer_set_active(g.of[0], &(epw_mask){{3}}, 2, 0));
    CHECK_OK(epw_buffer_set_active(g.of[1], &(epw_mask){{3}}, 2, 0));
    CHECK_OK(epw_dispatch(g.of[0], &in, NULL, &second, NULL));
    REFUSED(epw_release(g.of[0], first), EPW_ERR_STATE, "release", 0, -1, "consumed");
    CHECK_OK(epw_release(g.of[0], second));
    destroy(&g);
}

static void quantisers_name_what_is_wrong(void) {
    static uint16_t back[128];
    static uint8_t q[128];
    float scales[1];
    REFUSED(epw_quantize_fp8(EPW_PAYLOAD_SAME, EPW_BF16, 1, 128, back, q, scales), EPW_ERR_INVALID,
            "quantize_fp8", -1, -1, "payload is 0");
    REFUSED(epw_dequantize_fp8(EPW_PAYLOAD_FP8_F32, 2, 1, 128, q, scales, back), EPW_ERR_INVALID,
            "dequantize_fp8", -1, -1, "dtype is 2");
    REFUSED(epw_quantize_fp8(EPW_PAYLOAD_FP8_F32, EPW_F16, 1, 130, back, q, scales), EPW_ERR_INVALID,
            "quantize_fp8", -1, -1, "multiple of 128");
    REFUSED(epw_quantize_fp8(EPW_PAYLOAD_FP8_F32, EPW_F16, UINT64_MAX, 128, back, q, scales), EPW_ERR_LIMIT,
            "quantize_fp8", -1, -1, "fewer rows");
    REFUSED(epw_quantize_fp8(EPW_PAYLOAD_FP8_F32, EPW_F16, 1, 128, back, NULL, scales), EPW_ERR_INVALID,
            "quantize_fp8", -1, -1, "q is NULL");
    REFUSED(epw_dequantize_fp8(EPW_PAYLOAD_FP8_F32, EPW_F16, 1, 128, q, NULL, back), EPW_ERR_INVALID,
            "dequantize_fp8", -1, -1, "scales is NULL");
}

/* Before anybody has needed it: the first choice is kept for the process. */
static void an_unknown_instruction_set_is_refused(void) {
    const char *before = getenv("EPWIRE_ISA");
    char keep[64];
    if (before != NULL) snprintf(keep, sizeof keep, "%s", before);
    setenv("EPWIRE_ISA", "avx9", 1);
    epw_config config = config_of(0, 2);
    epw_buffer *buffer = NULL;
    static uint16_t x[128];
    static uint8_t q[128];
    float scales[1];
    REFUSED(epw_buffer_create(&config, &buffer), EPW_ERR_INVALID, "create", 0, -1,
            "EPWIRE_ISA is \"avx9\", this processor can run");
    CHECK(buffer == NULL && strstr(epw_last_error(), "base: name one of them, or unset it") != NULL);
    REFUSED(epw_quantize_fp8(EPW_PAYLOAD_FP8_F32, EPW_BF16, 1, 128, x, q, scales), EPW_ERR_INVALID,
            "quantize_fp8", -1, -1, "EPWIRE_ISA");
    setenv("EPWIRE_ISA", "", 1); /* counts as unset */
    if (before != NULL) setenv("EPWIRE_ISA", keep, 1);
    CHECK_OK(epw_quantize_fp8(EPW_PAYLOAD_FP8_F32, EPW_BF16, 1, 128, x, q, scales));
}

int main(void) {
    an_unknown_instruction_set_is_refused();
    plan_names_field_and_limit();
    null_is_an_error_and_never_a_crash();
    connect_says_what_is_wrong_with_a_blob();
    fabric_options_are_checked();
    membership_is_guarded();
    a_refused_dispatch_is_as_never_made();
    sums_of_no_tokens_may_lie_anywhere();
    a_wrong_combine_leaves_the_handle_usable();
    a_used_handle_is_not_taken_for_the_next_one();
    quantisers_name_what_is_wrong();
    return check_result("misuse");
}
