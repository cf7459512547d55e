/* See terms.h. */
#include "ep/terms.h"

/* Every field except size, rank, threads, paths, sms and serial_lanes, which may differ between ranks, and
 * device: its ordinal may differ, and windows themselves check whether all are on the host or all on GPUs. */
void epw_terms_of(const epw_config *config, epw_term *terms) {
#define TERM(field)                                                                                          \
    { #field, config->field }
    const epw_term all[] = {
        TERM(version),        TERM(ranks),   TERM(max_tokens), TERM(hidden),        TERM(experts),
        TERM(topk),           TERM(lanes),   TERM(dtype),      TERM(combine_dtype), TERM(opaque_bytes),
        TERM(sideband_bytes), TERM(ordered), TERM(zero_copy),  TERM(deadline_ns),
    };
#undef TERM
    _Static_assert(sizeof(epw_config) == 104, "a new field of epw_config: must it be equal on every rank?");
    _Static_assert(sizeof all / sizeof all[0] == EPW_TERM_COUNT, "callers make room for all of them");
    for (uint32_t i = 0; i < EPW_TERM_COUNT; i++) terms[i] = all[i];
}
