// The header in C++ before 20, which has no designated initialisers: the functions take the macros' place.
#include "epwire.h"

int main() {
    epw_config config;
    epw_plan plan;
    epw_row_shape shape;
    epw_outcome outcome;
    epw_dispatch_input input;
    epw_dispatch_output received;
    epw_combine_input answer;
    epw_combine_output combined;
    epw_rows_view view;
    epw_config_init(&config);
    epw_plan_init(&plan);
    epw_row_shape_init(&shape);
    epw_outcome_init(&outcome);
    epw_dispatch_input_init(&input);
    epw_dispatch_output_init(&received);
    epw_combine_input_init(&answer);
    epw_combine_output_init(&combined);
    epw_rows_view_init(&view);

    config.ranks = 8, config.max_tokens = 128, config.hidden = 7168, config.experts = 256, config.topk = 8;
    input.payload = EPW_PAYLOAD_FP8_F32;
    bool made =
        epw_plan_make(&config, &plan) == EPW_OK && epw_row_shape_make(&config, &input, &shape) == EPW_OK;
    return made && shape.payload_bytes == config.hidden ? 0 : 1;
}
