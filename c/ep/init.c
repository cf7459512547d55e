/* The initialisers of the header as functions. Only the macros know the defaults. */
#include "epwire.h"

void epw_config_init(epw_config *config) {
    *config = (epw_config)EPW_CONFIG_INIT;
}

void epw_error_detail_init(epw_error_detail *detail) {
    *detail = (epw_error_detail)EPW_ERROR_DETAIL_INIT;
}

void epw_plan_init(epw_plan *plan) {
    *plan = (epw_plan)EPW_PLAN_INIT;
}

void epw_row_shape_init(epw_row_shape *shape) {
    *shape = (epw_row_shape)EPW_ROW_SHAPE_INIT;
}

void epw_fabric_options_init(epw_fabric_options *options) {
    *options = (epw_fabric_options)EPW_FABRIC_OPTIONS_INIT;
}

void epw_membership_init(epw_membership *membership) {
    *membership = (epw_membership)EPW_MEMBERSHIP_INIT;
}

void epw_traffic_init(epw_traffic *traffic) {
    *traffic = (epw_traffic)EPW_TRAFFIC_INIT;
}

void epw_outcome_init(epw_outcome *outcome) {
    *outcome = (epw_outcome)EPW_OUTCOME_INIT;
}

void epw_dispatch_input_init(epw_dispatch_input *input) {
    *input = (epw_dispatch_input)EPW_DISPATCH_INPUT_INIT;
}

void epw_dispatch_output_init(epw_dispatch_output *output) {
    *output = (epw_dispatch_output)EPW_DISPATCH_OUTPUT_INIT;
}

void epw_combine_input_init(epw_combine_input *input) {
    *input = (epw_combine_input)EPW_COMBINE_INPUT_INIT;
}

void epw_combine_output_init(epw_combine_output *output) {
    *output = (epw_combine_output)EPW_COMBINE_OUTPUT_INIT;
}

void epw_rows_view_init(epw_rows_view *view) {
    *view = (epw_rows_view)EPW_ROWS_VIEW_INIT;
}

void epw_comm_config_init(epw_comm_config *config) {
    *config = (epw_comm_config)EPW_COMM_CONFIG_INIT;
}
void epw_comm_sizes_init(epw_comm_sizes *sizes) {
    *sizes = (epw_comm_sizes)EPW_COMM_SIZES_INIT;
}

void epw_coll_init(epw_coll *coll) {
    *coll = (epw_coll)EPW_COLL_INIT;
}

void epw_norm_init(epw_norm *norm) {
    *norm = (epw_norm)EPW_NORM_INIT;
}

void epw_call_init(epw_call *call) {
    *call = (epw_call)EPW_CALL_INIT;
}

void epw_prefill_config_init(epw_prefill_config *config) {
    *config = (epw_prefill_config)EPW_PREFILL_CONFIG_INIT;
}

void epw_prefill_sizes_init(epw_prefill_sizes *sizes) {
    *sizes = (epw_prefill_sizes)EPW_PREFILL_SIZES_INIT;
}

void epw_prefill_output_init(epw_prefill_output *output) {
    *output = (epw_prefill_output)EPW_PREFILL_OUTPUT_INIT;
}

void epw_prefill_combine_input_init(epw_prefill_combine_input *input) {
    *input = (epw_prefill_combine_input)EPW_PREFILL_COMBINE_INPUT_INIT;
}

void epw_prefill_combine_output_init(epw_prefill_combine_output *output) {
    *output = (epw_prefill_combine_output)EPW_PREFILL_COMBINE_OUTPUT_INIT;
}
