/* From a configuration to sizes and offsets. Allocates nothing, and reads nothing else but, where the number
 * of threads is left to the library, how many cores there are. */
#ifndef EPW_EP_PLAN_H
#define EPW_EP_PLAN_H

#include "ep/layout.h"
#include "peer/rules.h"
#include "epwire.h"

/* Checks `config`, fills the layout and, if not NULL, the plan. `where` names the operation in errors. */
epw_status epw_plan_layout(const char *op, const epw_config *config, epw_layout *layout, epw_plan *plan);

/* Checks the fields of `input` that decide the format against the plan. */
epw_status epw_row_format_make(const char *op, const epw_config *config, const epw_dispatch_input *input,
                               epw_row_format *format);

#endif
