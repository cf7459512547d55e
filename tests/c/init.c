/* The initial values of structs: the defaults that the header promises, the same by macro and by function. */
#include "check.h"
#include "epwire.h"

#include <stddef.h>
#include <string.h>

/* None of the structs that it is used for has padding, so every byte belongs to a field. tests/c.rs sees that
 * no initialiser of the header is forgotten here. */
#define SAME(type, name, macro)                                                                              \
    do {                                                                                                     \
        type by_macro = macro, by_function;                                                                  \
        memset(&by_function, 0xa5, sizeof by_function);                                                      \
        name(&by_function);                                                                                  \
        CHECK_MSG(memcmp(&by_macro, &by_function, sizeof by_macro) == 0, "%s is not %s", #name, #macro);     \
        CHECK_MSG(by_function.size == sizeof(type), "%s: size is %u", #name, by_function.size);              \
    } while (0)

static void macros_and_functions_agree(void) {
    SAME(epw_error_detail, epw_error_detail_init, EPW_ERROR_DETAIL_INIT);
    SAME(epw_config, epw_config_init, EPW_CONFIG_INIT);
    SAME(epw_plan, epw_plan_init, EPW_PLAN_INIT);
    SAME(epw_comm_sizes, epw_comm_sizes_init, EPW_COMM_SIZES_INIT);
    SAME(epw_row_shape, epw_row_shape_init, EPW_ROW_SHAPE_INIT);
    SAME(epw_membership, epw_membership_init, EPW_MEMBERSHIP_INIT);
    SAME(epw_traffic, epw_traffic_init, EPW_TRAFFIC_INIT);
    SAME(epw_outcome, epw_outcome_init, EPW_OUTCOME_INIT);
    SAME(epw_dispatch_input, epw_dispatch_input_init, EPW_DISPATCH_INPUT_INIT);
    SAME(epw_dispatch_output, epw_dispatch_output_init, EPW_DISPATCH_OUTPUT_INIT);
    SAME(epw_combine_input, epw_combine_input_init, EPW_COMBINE_INPUT_INIT);
    SAME(epw_combine_output, epw_combine_output_init, EPW_COMBINE_OUTPUT_INIT);
    SAME(epw_rows_view, epw_rows_view_init, EPW_ROWS_VIEW_INIT);
    SAME(epw_comm_config, epw_comm_config_init, EPW_COMM_CONFIG_INIT);
    SAME(epw_norm, epw_norm_init, EPW_NORM_INIT);
    SAME(epw_coll, epw_coll_init, EPW_COLL_INIT);
    SAME(epw_call, epw_call_init, EPW_CALL_INIT);
    SAME(epw_prefill_config, epw_prefill_config_init, EPW_PREFILL_CONFIG_INIT);
    SAME(epw_prefill_sizes, epw_prefill_sizes_init, EPW_PREFILL_SIZES_INIT);
    SAME(epw_prefill_output, epw_prefill_output_init, EPW_PREFILL_OUTPUT_INIT);
    SAME(epw_prefill_combine_input, epw_prefill_combine_input_init, EPW_PREFILL_COMBINE_INPUT_INIT);
    SAME(epw_prefill_combine_output, epw_prefill_combine_output_init, EPW_PREFILL_COMBINE_OUTPUT_INIT);

    /* This one has padding, behind last_port and at its end. */
    epw_fabric_options by_macro = EPW_FABRIC_OPTIONS_INIT, by_function;
    const size_t first = offsetof(epw_fabric_options, last_port) + sizeof by_macro.last_port;
    const size_t second = offsetof(epw_fabric_options, interfaces);
    const size_t end = offsetof(epw_fabric_options, order) + sizeof by_macro.order;
    memset(&by_function, 0xa5, sizeof by_function);
    epw_fabric_options_init(&by_function);
    CHECK(memcmp(&by_macro, &by_function, first) == 0);
    CHECK(memcmp((char *)&by_macro + second, (char *)&by_function + second, end - second) == 0);
    CHECK(by_function.size == sizeof by_function);
}

/* Every field that the header does not name is zero: after clearing the named ones only zeros are left. */
static void defaults_are_as_documented(void) {
    static const unsigned char zeros[sizeof(epw_membership)];

    epw_config config = EPW_CONFIG_INIT;
    CHECK(config.version == EPW_CONFIG_VERSION && config.lanes == 2);
    CHECK(config.dtype == EPW_BF16 && config.combine_dtype == EPW_BF16);
    CHECK(config.paths == EPW_PATH_ALL && config.device == EPW_DEVICE_HOST);
    CHECK(config.deadline_ns == UINT64_C(10000000000));
    config.size = config.version = config.lanes = config.paths = 0;
    config.device = 0;
    config.deadline_ns = 0;
    CHECK(memcmp(&config, zeros, sizeof config) == 0);

    epw_dispatch_input input = EPW_DISPATCH_INPUT_INIT;
    CHECK(input.idx_type == EPW_I32 && input.payload == EPW_PAYLOAD_SAME);
    CHECK(input.layout == EPW_EXPERT_MAJOR && input.lane == -1);
    input.size = 0;
    input.lane = 0;
    CHECK(memcmp(&input, zeros, sizeof input) == 0);

    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    CHECK(answer.mode == EPW_COMBINE_RANK_REDUCED);
    answer.size = 0;
    CHECK(memcmp(&answer, zeros, sizeof answer) == 0);

#define ZERO_BUT_FOR_SIZE(type, macro)                                                                       \
    do {                                                                                                     \
        type made = macro;                                                                                   \
        made.size = 0;                                                                                       \
        CHECK(sizeof made <= sizeof zeros && memcmp(&made, zeros, sizeof made) == 0);                        \
    } while (0)
    ZERO_BUT_FOR_SIZE(epw_plan, EPW_PLAN_INIT);
    ZERO_BUT_FOR_SIZE(epw_row_shape, EPW_ROW_SHAPE_INIT);
    ZERO_BUT_FOR_SIZE(epw_membership, EPW_MEMBERSHIP_INIT);
    ZERO_BUT_FOR_SIZE(epw_outcome, EPW_OUTCOME_INIT);
    ZERO_BUT_FOR_SIZE(epw_dispatch_output, EPW_DISPATCH_OUTPUT_INIT);
    ZERO_BUT_FOR_SIZE(epw_combine_output, EPW_COMBINE_OUTPUT_INIT);
    ZERO_BUT_FOR_SIZE(epw_rows_view, EPW_ROWS_VIEW_INIT);
}

int main(void) {
    macros_and_functions_agree();
    defaults_are_as_documented();
    return check_result("init");
}
