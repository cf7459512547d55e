/* RMSNorm on the host, the same code for every instruction set: it is bound by memory that was just
 * summed. */
#include "numerics/norm.h"

#include "epwire.h"

#include <stdbool.h>
#include <string.h>

enum { WORD = 4, LANES = 32, AT_ONCE = 256, PIECE = WORD * LANES };

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float widen_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
    if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) { /* a multiple of 2^-24, exact in f32 */
        float x = (float)fraction * 0x1p-24f;
        return sign != 0 ? -x : x;
    }
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

/* Rounds to nearest even; x must not be NaN. */
static uint16_t narrow_f16(float x) {
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size >= 0x47800000u) return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u) { /* below 2^-14: the addition rounds, because the last place of the sum is
                               * 2^-24 */
        uint32_t places = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
        return (uint16_t)(sign | places);
    }
    uint32_t rounded = size + 0xfffu + (size >> 13 & 1u);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

static uint16_t narrow_bf16(float x) {
    uint32_t bits = bits_of(x);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static void widen(uint32_t dtype, const void *row, uint32_t from, uint32_t count, float *out) {
    uint16_t raw[AT_ONCE];
    memcpy(raw, (const char *)row + 2 * (size_t)from, 2 * (size_t)count);
    if (dtype == EPW_BF16) {
        for (uint32_t i = 0; i < count; i++) out[i] = float_of((uint32_t)raw[i] << 16);
    } else {
        for (uint32_t i = 0; i < count; i++) out[i] = widen_f16(raw[i]);
    }
}

static void narrow(uint32_t dtype, const float *x, uint32_t count, uint16_t *out) {
    for (uint32_t i = 0; i < count; i++) {
        bool nan = x[i] != x[i];
        if (dtype == EPW_BF16) {
            out[i] = nan ? 0x7fc0 : narrow_bf16(x[i]);
        } else {
            out[i] = nan ? 0x7e00 : narrow_f16(x[i]);
        }
    }
}

/* A correctly rounded square root, like the hardware instruction, which C reaches only through libm; nothing
 * here depends on libm. */
static float square_root(float x) {
    uint32_t bits = bits_of(x);
    if (bits == 0 || bits >= 0x7f800000u) return bits <= 0x7f800000u ? x : float_of(0x7fc00000u);
    if (bits < 0x00800000u) return square_root(x * 0x1p24f) * 0x1p-12f;
    /* x is n * 2^(exponent - 50 - odd) with an even exponent: the root has 26 bits, two more than are
     * kept. */
    int32_t exponent = (int32_t)(bits >> 23) - 127, odd = exponent & 1;
    uint64_t n = (uint64_t)((bits & 0x7fffffu) | 0x800000u) << (27 + odd), root = 0;
    for (uint64_t bit = UINT64_C(1) << 25; bit != 0; bit >>= 1) {
        if ((root | bit) * (root | bit) <= n) root |= bit;
    }
    uint64_t kept = root >> 2, rest = root & 3;
    if (rest == 3 || (rest == 2 && (root * root != n || kept % 2 == 1))) kept++;
    return (float)kept * float_of((uint32_t)((exponent - 50 - odd) / 2 + 2 + 127) << 23);
}

static float sum_of_lanes(float *parts) {
    for (uint32_t step = 1; step < LANES; step *= 2) {
        for (uint32_t k = 0; k < LANES; k += 2 * step) parts[k] += parts[k + step];
    }
    return parts[0];
}

static float sum_of_squares(uint32_t dtype, const void *row, uint32_t hidden) {
    float sums[LANES] = {0};
    for (uint32_t at = 0; at < hidden; at += PIECE) {
        uint32_t count = hidden - at < PIECE ? hidden - at : PIECE;
        float parts[LANES] = {0}, x[PIECE];
        widen(dtype, row, at, count, x);
        for (uint32_t i = 0; i < count; i++) {
            float square = x[i] * x[i];
            parts[i / WORD] += square;
        }
        sums[at / PIECE % LANES] += sum_of_lanes(parts);
    }
    return sum_of_lanes(sums);
}

void epw_norm_row_run(const epw_numerics *numerics, const epw_norm_row *row) {
    uint32_t hidden = row->hidden, dtype = row->dtype;
    const void *x = row->sum;
    if (row->residual != NULL) {
        const void *both[] = {row->sum, row->residual};
        uint32_t type = dtype == EPW_BF16 ? EPW_TYPE_BF16 : EPW_TYPE_F16;
        numerics->sums->reduce(type, EPW_SUM, both, 2, hidden, row->residual);
        x = row->residual;
    }
    float r = 1.0f / square_root(sum_of_squares(dtype, x, hidden) / (float)hidden + row->epsilon);
    uint16_t y[EPW_NORM_HIDDEN_MAX];
    bool quantised = row->payload != EPW_PAYLOAD_SAME;
    for (uint32_t at = 0; at < hidden; at += AT_ONCE) {
        float values[AT_ONCE], weights[AT_ONCE];
        uint32_t count = hidden - at < AT_ONCE ? hidden - at : AT_ONCE;
        widen(dtype, x, at, count, values);
        widen(dtype, row->weight, at, count, weights);
        for (uint32_t i = 0; i < count; i++) values[i] = values[i] * r * weights[i];
        narrow(dtype, values, count, y + at);
    }
    if (quantised) {
        numerics->quantize(row->payload, dtype, y, hidden, row->out, row->scales);
    } else {
        memcpy(row->out, y, 2 * (size_t)hidden);
    }
}
