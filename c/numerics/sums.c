/* See sums.h: the tables, and the types and operators by name. */
#include "numerics/sums.h"

#include "numerics/numerics.h"
#include "epwire.h"

static const struct {
    const char *name;
    uint32_t bytes;
} types[] = {
    [EPW_TYPE_I8] = {"i8", 1},   [EPW_TYPE_U8] = {"u8", 1},     [EPW_TYPE_I32] = {"i32", 4},
    [EPW_TYPE_U32] = {"u32", 4}, [EPW_TYPE_I64] = {"i64", 8},   [EPW_TYPE_U64] = {"u64", 8},
    [EPW_TYPE_F16] = {"f16", 2}, [EPW_TYPE_BF16] = {"bf16", 2}, [EPW_TYPE_F32] = {"f32", 4},
    [EPW_TYPE_F64] = {"f64", 8},
};

static const char *const ops[] = {
    [EPW_SUM] = "sum", [EPW_PRODUCT] = "product", [EPW_MIN] = "min",
    [EPW_MAX] = "max", [EPW_AVERAGE] = "average",
};

epw_status epw_sums_choose(epw_where where, const epw_sums **out) {
    const epw_numerics *numerics = NULL;
    const epw_status status = epw_numerics_choose(where, &numerics);
    *out = status == EPW_OK ? numerics->sums : NULL;
    return status;
}

size_t epw_sums_all(const epw_sums *out[], size_t max) {
    const epw_numerics *all[3];
    const size_t count = epw_numerics_all(all, max < 3 ? max : 3);
    for (size_t i = 0; i < count; i++) out[i] = all[i]->sums;
    return count;
}

uint32_t epw_type_bytes(uint32_t type) {
    return type < sizeof types / sizeof types[0] ? types[type].bytes : 0;
}

const char *epw_type_name(uint32_t type) {
    return type < sizeof types / sizeof types[0] ? types[type].name : "unknown";
}

const char *epw_op_name(uint32_t op) {
    return op < sizeof ops / sizeof ops[0] ? ops[op] : "unknown";
}
