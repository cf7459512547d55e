/* The input of a dispatch, in decode and in prefill: checks that depend only on the configuration, reading
 * and checking the routing, and a token's payload as it travels. */
#ifndef EPW_EP_INPUT_H
#define EPW_EP_INPUT_H

#include "ep/plan.h"
#include "numerics/numerics.h"

/* Checks `in` against the configuration and makes the row format. `routed`: topk_idx is read. */
epw_status epw_input_check(epw_where where, const epw_config *config, const epw_dispatch_input *in,
                           bool routed, epw_row_format *format);

/* A call's own deadline must be 0, or at least that of the configuration. */
epw_status epw_input_check_deadline(epw_where where, const epw_config *config, uint64_t deadline_ns);

/* Token t's ids and weights, [config.topk] each, padded with -1 and 0. Refuses what is out of range or
 * repeated.
 */
epw_status epw_input_read_topk(epw_where where, const epw_config *config, const epw_dispatch_input *in,
                               uint32_t t, int32_t *ids, float *weights);

/* Bytes from token to token of input.x. */
uint64_t epw_input_stride(const epw_config *config, const epw_dispatch_input *in,
                          const epw_row_format *format);

/* Token t's payload and scales as they travel: in place where they can be copied as they are, else in
 * `scratch`. *bytes is a multiple of 16. */
const unsigned char *epw_input_payload(const epw_numerics *numerics, const epw_config *config,
                                       const epw_dispatch_input *in, const epw_row_format *format, uint32_t t,
                                       unsigned char *scratch, size_t *bytes);

#endif
