/* From a configuration to sizes and offsets. Allocates nothing, and reads nothing else, except the number of
 * cores if the library chooses the number of threads. */
#ifndef EPW_EP_PLAN_H
#define EPW_EP_PLAN_H

#include "base/status.h"
#include "ep/layout.h"
#include "nic/region.h"
#include "peer/rules.h"
#include "epwire.h"

/* SMs of a buffer on a GPU. */
#define EPW_MAX_SMS 1024u

/* Checks the fields of a configuration against the limits of the library. */
epw_status epw_config_check(epw_where where, const epw_config *config);

/* Checks `config`, fills the layout and, if not NULL, the plan. `where` names the operation in errors. */
epw_status epw_plan_layout(const char *op, const epw_config *config, epw_layout *layout, epw_plan *plan);

/* EPW_ERR_LIMIT if an entry of a queue cannot carry a slot of this size. */
epw_status epw_check_queued_slot(epw_where where, const epw_config *config, uint64_t slot_bytes);

/* Which part of a window is the source's to write, on a lane: one of the EPW_AREAS areas. */
epw_stretch epw_plan_footprint(const epw_layout *layout, uint32_t source, uint32_t lane, uint32_t area);

/* The most entries that operations post to the queue of one peer: rows of a dispatch and of its combine,
 * counts, and words. */
enum { EPW_ENTRIES_OF_A_TOKEN = 2, EPW_ENTRIES_BESIDE = 4 };

/* Entries of each queue: enough for those, and at least as many as the configuration or the fabric asks for.
 */
uint32_t epw_plan_queue_depth(const epw_config *config);

/* Checks the fields of `input` that decide the format against the plan. */
epw_status epw_row_format_make(const char *op, const epw_config *config, const epw_dispatch_input *input,
                               epw_row_format *format);

#endif
