/* stub */
#ifndef EPW_SUMS_H
#define EPW_SUMS_H
#include "base/status.h"
#include <stddef.h>
typedef struct epw_sums { const char *isa; void (*reduce)(uint32_t type, uint32_t op, const void *const *rows, size_t n, size_t count, void *out); } epw_sums;
epw_status epw_sums_choose(epw_where where, const epw_sums **out);
uint32_t epw_type_bytes(uint32_t type);
const char *epw_type_name(uint32_t type);
const char *epw_op_name(uint32_t op);
#endif
