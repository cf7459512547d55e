/* The inner loops against an oracle that is written to be obvious, and every instruction set against the
 * oracle, so that all agree bit for bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/barrier.h"
#include "numerics/numerics.h"
#include "epwire.h"

#include "check.h"

enum { CODES = 65536, ROW = 1024 };

/* ---- The oracle ---------------------------------------------------------------------------------------- */

/* A format by its parameters; the value of a code follows from the definition of binary floating point. */
typedef struct format {
    int exponent_bits, mantissa_bits, bias;
    int infinities; /* the highest exponent is infinity and NaN; otherwise only its highest mantissa is NaN */
    float values[CODES];
} format;

static format BF16 = {8, 7, 127, 1, {0}}, F16 = {5, 10, 15, 1, {0}}, E4M3 = {4, 3, 7, 0, {0}};

static double define(const format *f, uint32_t code) {
    const uint32_t top = (1u << f->exponent_bits) - 1, mask = (1u << f->mantissa_bits) - 1;
    const uint32_t exponent = code >> f->mantissa_bits & top, mantissa = code & mask;
    const double sign = code >> (f->exponent_bits + f->mantissa_bits) ? -1 : 1;
    if (f->infinities && exponent == top) return mantissa ? copysign(NAN, sign) : sign * INFINITY;
    if (!f->infinities && exponent == top && mantissa == mask) return copysign(NAN, sign);
    const double fraction = (double)mantissa / (mask + 1);
    return sign * (exponent ? ldexp(1 + fraction, (int)exponent - f->bias) : ldexp(fraction, 1 - f->bias));
}

static void tabulate(format *f) {
    for (uint32_t code = 0; code < 2u << (f->exponent_bits + f->mantissa_bits); code++)
        f->values[code] = (float)define(f, code);
}

/* The code nearest to |x| (not NaN), ties to the even code, found by bisection: codes ascend with their
 * values. After the largest finite value the next code stands for the next power of two, as if the exponent
 * continued. */
static uint32_t nearest(const format *f, double x) {
    const uint32_t largest = (((1u << f->exponent_bits) - 1) << f->mantissa_bits) - 1;
    const uint32_t last = f->infinities ? largest : largest + (1u << f->mantissa_bits) - 1;
    const double a = fabs(x);
    if (a >= f->values[last]) {
        if (!f->infinities) return last;
        const double end = ldexp(1, (1 << f->exponent_bits) - 1 - f->bias);
        return a - f->values[last] < end - a ? last : last + 1;
    }
    uint32_t low = 0, high = last; /* value(low) <= a < value(high) */
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (f->values[middle] <= a)
            low = middle;
        else
            high = middle;
    }
    const double below = a - f->values[low], over = f->values[high] - a;
    return below < over ? low : over < below ? high : low % 2 == 0 ? low : high;
}

static const format *format_of(uint32_t dtype) {
    return dtype == EPW_BF16 ? &BF16 : &F16;
}

static float widen(uint32_t dtype, uint16_t code) {
    return format_of(dtype)->values[code];
}

static uint16_t narrow(uint32_t dtype, float x) {
    if (isnan(x)) return dtype == EPW_BF16 ? 0x7fc0 : 0x7e00;
    return (uint16_t)(nearest(format_of(dtype), x) | (signbit(x) ? 0x8000u : 0));
}

static uint8_t to_e4m3(float x, float scaled) {
    const uint32_t code = isnan(scaled) ? 0x7f : nearest(&E4M3, scaled);
    return (uint8_t)(code | (signbit(x) ? 0x80u : 0));
}

/* One block of 128 channels. The products are stored so that no compiler keeps more precision. */
static void quantize_oracle(uint32_t payload, const float *x, uint8_t *q, float *scale) {
    float amax = 1e-4f;
    for (int c = 0; c < EPW_FP8_BLOCK; c++)
        if (fabsf(x[c]) > amax) amax = fabsf(x[c]);
    float inv;
    if (payload == EPW_PAYLOAD_FP8_F32) {
        *scale = amax / 448;
        inv = 448 / amax;
    } else {
        const double least = (isinf(amax) ? 0x1.fffffep127 : amax) / 448.0;
        int exponent = -127;
        while (ldexp(1, exponent) < least) exponent++;
        *scale = (float)ldexp(1, exponent);
        inv = (float)ldexp(1, -exponent);
    }
    for (int c = 0; c < EPW_FP8_BLOCK; c++) {
        volatile float scaled = x[c] * inv;
        q[c] = to_e4m3(x[c], scaled);
    }
}

static void reduce_oracle(uint32_t dtype, uint16_t *const *rows, const float *weights, size_t n,
                          uint32_t hidden, uint16_t *out) {
    for (uint32_t c = 0; c < hidden; c++) {
        volatile float sum = 0, term;
        for (size_t i = 0; i < n; i++) {
            term = widen(dtype, rows[i][c]);
            if (weights) term = term * weights[i];
            sum = sum + term;
        }
        out[c] = narrow(dtype, sum);
    }
}

/* ---- Inputs -------------------------------------------------------------------------------------------- */

static uint64_t seed = 0x9e3779b97f4a7c15u;

static uint32_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* A 16-bit code of a value near 1, or any code: subnormals, infinities and NaNs included. */
static uint16_t draw_code(uint32_t dtype, int any) {
    if (any) return (uint16_t)draw();
    return narrow(dtype, ((int32_t)draw() / 2147483648.0f) * 4);
}

/* ---- Behaviours ---------------------------------------------------------------------------------------- */

/* dequantise computes round(code * scale); code 0x38 is 1, so it rounds any f32 that the test chooses. */
static void narrows_every_value_and_every_tie(const epw_numerics *isa, uint32_t dtype) {
    uint8_t ones[EPW_FP8_BLOCK];
    memset(ones, 0x38, sizeof ones);
    for (uint32_t code = 0; code < CODES; code++) {
        const float x = widen(dtype, (uint16_t)code), next = widen(dtype, (uint16_t)(code + 1));
        const float tie = (x + next) / 2;
        const float cases[] = {x, tie, nextafterf(tie, 0), nextafterf(tie, INFINITY),
                               nextafterf(tie, -INFINITY)};
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            uint16_t got[EPW_FP8_BLOCK];
            isa->dequantize(EPW_PAYLOAD_FP8_F32, dtype, ones, &cases[i], EPW_FP8_BLOCK, got);
            const uint16_t want = narrow(dtype, cases[i]);
            for (int c = 0; c < EPW_FP8_BLOCK; c += 31)
                CHECK_MSG(got[c] == want, "%s: dtype %u: %a gives %04x, want %04x", isa->isa, dtype,
                          (double)cases[i], got[c], want);
        }
    }
    for (int i = 0; i < 200000; i++) {
        const float x = from_bits(draw());
        uint16_t got[EPW_FP8_BLOCK];
        isa->dequantize(EPW_PAYLOAD_FP8_F32, dtype, ones, &x, EPW_FP8_BLOCK, got);
        CHECK_MSG(got[i % EPW_FP8_BLOCK] == narrow(dtype, x), "%s: dtype %u: %a gives %04x", isa->isa, dtype,
                  (double)x, got[i % EPW_FP8_BLOCK]);
    }
}

/* The rounding of a product shows exactly what the code was widened to. */
static void widens_every_code(const epw_numerics *isa, uint32_t dtype) {
    static uint16_t codes[CODES], got[CODES], want[CODES];
    for (uint32_t c = 0; c < CODES; c++) codes[c] = (uint16_t)c;
    uint16_t *rows[] = {codes};
    for (int i = 0; i < 12; i++) {
        const float weight = i == 0 ? 1 : ldexpf(1 + (float)draw() / 4294967296.0f, i * 3 - 18);
        isa->reduce(dtype, (const void *const *)rows, &weight, 1, CODES, got, 0);
        reduce_oracle(dtype, rows, &weight, 1, CODES, want);
        for (uint32_t c = 0; c < CODES; c++)
            CHECK_MSG(got[c] == want[c], "%s: dtype %u: code %04x times %a gives %04x, want %04x", isa->isa,
                      dtype, c, (double)weight, got[c], want[c]);
    }
}

static void sums_in_order_for_every_width(const epw_numerics *isa, uint32_t dtype) {
    enum { MOST = 1024 };
    static uint16_t storage[24][ROW + 1], got[ROW + 16] __attribute__((aligned(64))), want[ROW];
    static uint16_t *rows[MOST];
    static float weights[MOST];
    static const size_t counts[] = {0, 1, 2, 3, 4, 7, 8, 24, MOST};
    for (uint32_t hidden = 8; hidden <= 264; hidden += 8) {
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            const size_t n = counts[k];
            if (n == MOST && hidden % 88 != 0) continue;
            for (size_t i = 0; i < n; i++) {
                /* Odd addresses too: rows need no alignment. */
                rows[i] = storage[i % 24] + i % 2;
                weights[i] = (float)draw() / 4294967296.0f;
            }
            for (size_t i = 0; i < 24 && i < n; i++)
                for (uint32_t c = 0; c < hidden; c++) rows[i][c] = draw_code(dtype, (hidden + k) % 3 == 0);
            for (int variant = 0; variant < 4; variant++) {
                const float *w = variant & 1 ? weights : NULL;
                uint16_t *out =
                    got + (variant & 2 ? 0 : 8); /* aligned to 64 and streamed, or aligned to 16 */
                memset(got, 0xa5, sizeof got);
                isa->reduce(dtype, (const void *const *)rows, w, n, hidden, out, variant >> 1);
                epw_stream_fence();
                reduce_oracle(dtype, rows, w, n, hidden, want);
                for (uint32_t c = 0; c < hidden; c++)
                    CHECK_MSG(out[c] == want[c],
                              "%s: dtype %u hidden %u n %zu variant %d channel %u: %04x, want %04x", isa->isa,
                              dtype, hidden, n, variant, c, out[c], want[c]);
                CHECK_MSG(out[hidden] == 0xa5a5 && (out == got || out[-1] == 0xa5a5),
                          "%s: hidden %u: wrote outside the row", isa->isa, hidden);
            }
        }
    }
}

static void keeps_the_order_and_fuses_nothing(const epw_numerics *isa) {
    uint16_t a[8], b[8], c[8], out[8];
    for (int i = 0; i < 8; i++) {
        a[i] = narrow(EPW_BF16, 0x1p30f);
        b[i] = narrow(EPW_BF16, 1);
        c[i] = narrow(EPW_BF16, -0x1p30f);
    }
    const void *lost[] = {a, b, c}, *kept[] = {a, c, b};
    isa->reduce(EPW_BF16, lost, NULL, 3, 8, out, 0);
    CHECK_MSG(out[0] == 0, "%s: (2^30 + 1) - 2^30 gives %04x", isa->isa, out[0]);
    isa->reduce(EPW_BF16, kept, NULL, 3, 8, out, 0);
    CHECK_MSG(out[0] == 0x3f80, "%s: (2^30 - 2^30) + 1 gives %04x", isa->isa, out[0]);

    /* (1 + 2^-7) * w needs 25 bits: if the product is rounded before the sum, the terms cancel; if fused,
     * they leave a remainder. */
    const float w = from_bits(0x3f800001), product = (1 + 0x1p-7f) * w;
    static uint16_t one[64], minus[64], wide[64];
    for (int i = 0; i < 64; i++) {
        one[i] = narrow(EPW_BF16, 1 + 0x1p-7f);
        minus[i] = narrow(EPW_BF16, -1);
    }
    const void *rows[] = {minus, one};
    const float weights[] = {product, w};
    isa->reduce(EPW_BF16, rows, weights, 2, 64, wide, 0);
    for (int i = 0; i < 64; i++)
        CHECK_MSG(wide[i] == 0, "%s: fused multiply-add: channel %d is %04x", isa->isa, i, wide[i]);

    const uint16_t minus_zero[8] = {0x8000};
    const void *zero[] = {minus_zero};
    isa->reduce(EPW_BF16, zero, NULL, 1, 8, out, 0);
    CHECK_MSG(out[0] == 0, "%s: +0 + -0 gives %04x", isa->isa, out[0]);
}

/* A sum may overwrite one of its rows. */
static void sums_in_place(const epw_numerics *isa) {
    uint16_t a[200] __attribute__((aligned(64))), b[200] __attribute__((aligned(64))), want[200];
    for (int stream = 0; stream < 2; stream++) {
        for (int c = 0; c < 200; c++) {
            a[c] = draw_code(EPW_F16, 0);
            b[c] = draw_code(EPW_F16, 0);
        }
        uint16_t *rows[] = {a, b};
        reduce_oracle(EPW_F16, rows, NULL, 2, 200, want);
        isa->reduce(EPW_F16, (const void *const *)rows, NULL, 2, 200, b, stream);
        epw_stream_fence();
        CHECK_MSG(memcmp(b, want, sizeof want) == 0, "%s: sum over its own row differs", isa->isa);
    }
}

static float scale_at(uint32_t payload, const void *scales, uint32_t block) {
    return payload == EPW_PAYLOAD_FP8_UE8M0 ? ldexpf(1, ((const uint8_t *)scales)[block] - 127)
                                            : ((const float *)scales)[block];
}

static void check_quantised(const epw_numerics *isa, uint32_t payload, uint32_t dtype, const uint16_t *x,
                            uint32_t hidden) {
    uint8_t q[ROW + 1], want[EPW_FP8_BLOCK];
    float scales[ROW / EPW_FP8_BLOCK + 1], scale, wide[EPW_FP8_BLOCK];
    memset(q, 0x5a, sizeof q);
    memset(scales, 0x5a, sizeof scales);
    isa->quantize(payload, dtype, x, hidden, q, scales);
    for (uint32_t block = 0; block < hidden / EPW_FP8_BLOCK; block++) {
        for (uint32_t c = 0; c < EPW_FP8_BLOCK; c++) wide[c] = widen(dtype, x[block * EPW_FP8_BLOCK + c]);
        quantize_oracle(payload, wide, want, &scale);
        const float got = scale_at(payload, scales, block);
        CHECK_MSG(bits_of(got) == bits_of(scale), "%s: payload %u dtype %u: scale %a, want %a", isa->isa,
                  payload, dtype, (double)got, (double)scale);
        for (uint32_t c = 0; c < EPW_FP8_BLOCK; c++)
            CHECK_MSG(q[block * EPW_FP8_BLOCK + c] == want[c],
                      "%s: payload %u dtype %u channel %u: %a at scale %a gives %02x, want %02x", isa->isa,
                      payload, dtype, c, (double)wide[c], (double)scale, q[block * EPW_FP8_BLOCK + c],
                      want[c]);
    }
    const size_t used = hidden / EPW_FP8_BLOCK * (payload == EPW_PAYLOAD_FP8_UE8M0 ? 1 : sizeof(float));
    CHECK_MSG(q[hidden] == 0x5a && ((uint8_t *)scales)[used] == 0x5a, "%s: payload %u: wrote too much",
              isa->isa, payload);

    uint16_t back[ROW + 1];
    back[hidden] = 0xa5a5;
    isa->dequantize(payload, dtype, q, scales, hidden, back);
    for (uint32_t c = 0; c < hidden; c++) {
        volatile float product = E4M3.values[q[c]] * scale_at(payload, scales, c / EPW_FP8_BLOCK);
        CHECK_MSG(back[c] == narrow(dtype, product),
                  "%s: payload %u dtype %u: %02x at channel %u gives %04x, want %04x", isa->isa, payload,
                  dtype, q[c], c, back[c], narrow(dtype, product));
    }
    CHECK_MSG(back[hidden] == 0xa5a5, "%s: dequantise wrote too much", isa->isa);
}

static void quantises_like_the_oracle(const epw_numerics *isa, uint32_t payload, uint32_t dtype) {
    static uint16_t x[ROW];
    /* All values of amax: every code is the greatest of some block, so that every exponent and every power of
     * two occurs. */
    for (uint32_t code = 0; code < 0x8000; code += dtype == EPW_BF16 ? 5 : 3) {
        for (uint32_t c = 0; c < EPW_FP8_BLOCK; c++) {
            const float part = widen(dtype, (uint16_t)code) * ((int32_t)draw() / 2147483648.0f);
            x[c] = isfinite(part) ? narrow(dtype, part) : 0;
        }
        x[draw() % EPW_FP8_BLOCK] = (uint16_t)(code | (draw() & 0x8000));
        check_quantised(isa, payload, dtype, x, EPW_FP8_BLOCK);
    }
    /* First any codes, then ordinary ones, over whole rows. */
    for (int i = 0; i < 200; i++) {
        const uint32_t hidden = EPW_FP8_BLOCK * (1 + draw() % (ROW / EPW_FP8_BLOCK));
        for (uint32_t c = 0; c < hidden; c++) x[c] = draw_code(dtype, i % 2);
        check_quantised(isa, payload, dtype, x, hidden);
    }
}

/* With amax 448 the scale is 1, and quantising is only a conversion. */
static void rounds_to_e4m3(const epw_numerics *isa, uint32_t dtype) {
    uint16_t x[EPW_FP8_BLOCK];
    for (uint32_t first = 0; first < CODES; first += EPW_FP8_BLOCK - 1) {
        x[0] = narrow(dtype, 448);
        for (uint32_t c = 1; c < EPW_FP8_BLOCK; c++) {
            const uint32_t code = (first + c - 1) % CODES;
            const float value = widen(dtype, (uint16_t)code);
            x[c] = fabsf(value) > 448 ? 0 : (uint16_t)code;
        }
        check_quantised(isa, EPW_PAYLOAD_FP8_F32, dtype, x, EPW_FP8_BLOCK);
    }
    /* The middle between each two neighbours, which both types represent exactly. */
    for (uint32_t code = 0; code < 0x7e; code++) {
        const double tie = ((double)E4M3.values[code] + E4M3.values[code + 1]) / 2;
        for (uint32_t c = 0; c < EPW_FP8_BLOCK; c++) x[c] = narrow(dtype, (float)(c % 2 ? tie : -tie));
        x[7] = narrow(dtype, 448);
        uint8_t q[EPW_FP8_BLOCK];
        float scale;
        isa->quantize(EPW_PAYLOAD_FP8_F32, dtype, x, EPW_FP8_BLOCK, q, &scale);
        const uint32_t even = code % 2 ? code + 1 : code;
        CHECK_MSG(scale == 1 && q[1] == even && q[0] == (even | 0x80),
                  "%s: tie above %02x gives %02x and %02x", isa->isa, code, q[1], q[0]);
    }
}

/* Every code with f32 and exponent scales, extreme ones included. */
static void dequantises_every_code(const epw_numerics *isa, uint32_t dtype) {
    uint8_t q[256];
    for (int c = 0; c < 256; c++) q[c] = (uint8_t)c;
    for (uint32_t exponent = 0; exponent < 256; exponent++) {
        const uint8_t bytes[] = {(uint8_t)exponent, (uint8_t)exponent};
        const float one = exponent == 255 ? NAN : ldexpf(1, (int)exponent - 127);
        const float ones[] = {one, one};
        const float inexact[] = {one * 1.2345f, one * -1.9f};
        const struct {
            uint32_t payload;
            const void *given;
            const float *meant;
        } cases[] = {{EPW_PAYLOAD_FP8_UE8M0, bytes, ones},
                     {EPW_PAYLOAD_FP8_POW2, ones, ones},
                     {EPW_PAYLOAD_FP8_F32, inexact, inexact}};
        for (int i = 0; i < 3; i++) {
            uint16_t got[256];
            isa->dequantize(cases[i].payload, dtype, q, cases[i].given, 256, got);
            for (int c = 0; c < 256; c++) {
                volatile float product = E4M3.values[c] * cases[i].meant[c / 128];
                CHECK_MSG(got[c] == narrow(dtype, product),
                          "%s: payload %u dtype %u: %02x * %a gives %04x, want %04x", isa->isa,
                          cases[i].payload, dtype, c, (double)cases[i].meant[c / 128], got[c],
                          narrow(dtype, product));
            }
        }
    }
}

static void special_blocks_have_the_documented_codes(const epw_numerics *isa) {
    uint16_t x[EPW_FP8_BLOCK] = {0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x3f80, 0x8000}; /* inf -inf nan -nan 1 -0 */
    uint8_t q[EPW_FP8_BLOCK];
    float scale;
    isa->quantize(EPW_PAYLOAD_FP8_F32, EPW_BF16, x, EPW_FP8_BLOCK, q, &scale);
    CHECK_MSG(isinf(scale) && q[0] == 0x7f && q[1] == 0xff && q[2] == 0x7f && q[3] == 0xff && q[4] == 0 &&
                  q[5] == 0x80,
              "%s: f32 scale %a: %02x %02x %02x %02x %02x %02x", isa->isa, (double)scale, q[0], q[1], q[2],
              q[3], q[4], q[5]);
    uint8_t exponent = 0;
    isa->quantize(EPW_PAYLOAD_FP8_UE8M0, EPW_BF16, x, EPW_FP8_BLOCK, q, &exponent);
    CHECK_MSG(exponent == 247 && q[0] == 0x7e && q[1] == 0xfe && q[2] == 0x7f && q[3] == 0xff && q[4] == 0,
              "%s: exponent %u: %02x %02x %02x %02x %02x", isa->isa, exponent, q[0], q[1], q[2], q[3], q[4]);
    uint16_t back[EPW_FP8_BLOCK];
    isa->dequantize(EPW_PAYLOAD_FP8_UE8M0, EPW_BF16, q, &exponent, EPW_FP8_BLOCK, back);
    CHECK_MSG(back[0] == 0x7f80 && back[1] == 0xff80 && back[2] == 0x7fc0,
              "%s: infinity comes back as %04x %04x, NaN %04x", isa->isa, back[0], back[1], back[2]);
    /* Only NaN and zeros: amax stays at its minimum. */
    memset(x, 0, sizeof x);
    x[9] = 0x7fc0;
    isa->quantize(EPW_PAYLOAD_FP8_F32, EPW_BF16, x, EPW_FP8_BLOCK, q, &scale);
    CHECK_MSG(scale == 1e-4f / 448 && q[9] == 0x7f && q[8] == 0, "%s: NaN raised amax: scale %a", isa->isa,
              (double)scale);
}

static void copies_exactly_the_bytes_asked_for(const epw_numerics *isa) {
    enum { MOST = 16384 };
    static unsigned char from[MOST + 256], to[MOST + 256] __attribute__((aligned(64)));
    for (size_t i = 0; i < sizeof from; i++) from[i] = (unsigned char)draw();
    for (size_t bytes = 0; bytes <= MOST; bytes += bytes < 1024 ? 16 : 3344) {
        for (size_t at = 16; at <= 80; at += 16) {
            for (size_t skew = 0; skew < 64; skew += 7) {
                memset(to, 0xee, sizeof to);
                isa->copy_stream(to + at, from + skew, bytes);
                epw_stream_fence();
                int outside = 0;
                for (size_t i = 0; i < sizeof to; i++)
                    outside += (i < at || i >= at + bytes) && to[i] != 0xee;
                CHECK_MSG(memcmp(to + at, from + skew, bytes) == 0 && outside == 0,
                          "%s: copy of %zu bytes to offset %zu from skew %zu, %d bytes outside changed",
                          isa->isa, bytes, at, skew, outside);
            }
        }
    }
}

static void chooses_what_the_environment_names(void) {
    const epw_numerics *all[8];
    const size_t count = epw_numerics_all(all, 8);
    const char *wanted = getenv("EPWIRE_ISA"); /* one that this machine can run, if any */
    const epw_numerics *expected = all[0];
    for (size_t i = 0; wanted && i < count; i++)
        if (strcmp(wanted, all[i]->isa) == 0) expected = all[i];
    const epw_numerics *chosen = NULL;
    CHECK_OK(epw_numerics_choose((epw_where){"test", -1, -1}, &chosen));
    CHECK_MSG(chosen == expected, "%s is not chosen", expected->isa);
    CHECK_MSG(strcmp(all[count - 1]->isa, "base") == 0, "the last resort is %s", all[count - 1]->isa);
    CHECK_MSG(epw_numerics_all(all, 1) == 1 && epw_numerics_all(all, 0) == 0, "max is not honoured");
}

static void public_quantisers_check_and_agree(void) {
    enum { ROWS = 3, HIDDEN = 384 };
    static uint16_t x[ROWS * HIDDEN], back[ROWS * HIDDEN], row_back[HIDDEN];
    static uint8_t q[ROWS * HIDDEN], row_q[HIDDEN];
    float scales[ROWS * 3], row_scales[3];
    for (int c = 0; c < ROWS * HIDDEN; c++) x[c] = draw_code(EPW_BF16, 0);
    for (uint32_t payload = EPW_PAYLOAD_FP8_F32; payload <= EPW_PAYLOAD_FP8_UE8M0; payload++) {
        const size_t stride = payload == EPW_PAYLOAD_FP8_UE8M0 ? 3 : 12;
        CHECK_MSG(epw_quantize_fp8(payload, EPW_BF16, ROWS, HIDDEN, x, q, scales) == EPW_OK, "%s",
                  epw_last_error());
        CHECK_MSG(epw_dequantize_fp8(payload, EPW_BF16, ROWS, HIDDEN, q, scales, back) == EPW_OK, "%s",
                  epw_last_error());
        for (size_t r = 0; r < ROWS; r++) {
            const epw_numerics *isa = NULL;
            CHECK_OK(epw_numerics_choose((epw_where){"test", -1, -1}, &isa));
            isa->quantize(payload, EPW_BF16, x + r * HIDDEN, HIDDEN, row_q, row_scales);
            isa->dequantize(payload, EPW_BF16, row_q, row_scales, HIDDEN, row_back);
            CHECK_MSG(memcmp(row_q, q + r * HIDDEN, HIDDEN) == 0 &&
                          memcmp(row_scales, (char *)scales + r * stride, stride) == 0 &&
                          memcmp(row_back, back + r * HIDDEN, HIDDEN * 2) == 0,
                      "payload %u row %zu differs", payload, r);
        }
    }
    const uint32_t f32 = EPW_PAYLOAD_FP8_F32;
    const struct {
        epw_status got, want;
        const char *text;
    } cases[] = {
        {epw_quantize_fp8(f32, EPW_BF16, 0, HIDDEN, NULL, NULL, NULL), EPW_OK, "no rows need no memory"},
        {epw_quantize_fp8(EPW_PAYLOAD_SAME, EPW_BF16, 1, HIDDEN, x, q, scales), EPW_ERR_INVALID, "payload"},
        {epw_quantize_fp8(EPW_PAYLOAD_OPAQUE, EPW_BF16, 1, HIDDEN, x, q, scales), EPW_ERR_INVALID, "opaque"},
        {epw_quantize_fp8(f32, 2, 1, HIDDEN, x, q, scales), EPW_ERR_INVALID, "dtype"},
        {epw_quantize_fp8(f32, EPW_BF16, 1, 0, x, q, scales), EPW_ERR_INVALID, "hidden 0"},
        {epw_quantize_fp8(f32, EPW_BF16, 1, 136, x, q, scales), EPW_ERR_INVALID, "hidden 136"},
        {epw_quantize_fp8(f32, EPW_BF16, UINT64_MAX / 512, HIDDEN, x, q, scales), EPW_ERR_LIMIT, "rows"},
        {epw_quantize_fp8(f32, EPW_BF16, 1, HIDDEN, NULL, q, scales), EPW_ERR_INVALID, "x"},
        {epw_quantize_fp8(f32, EPW_BF16, 1, HIDDEN, x, NULL, scales), EPW_ERR_INVALID, "q"},
        {epw_dequantize_fp8(f32, EPW_BF16, 1, HIDDEN, q, NULL, back), EPW_ERR_INVALID, "scales"},
        {epw_dequantize_fp8(f32, EPW_BF16, 1, 64, q, scales, back), EPW_ERR_INVALID, "hidden 64"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_MSG(cases[i].got == cases[i].want, "%s: status %d, want %d", cases[i].text, cases[i].got,
                  cases[i].want);
    (void)epw_dequantize_fp8(f32, EPW_BF16, 1, 64, q, scales, back);
    CHECK_MSG(strstr(epw_last_error(), "dequantize_fp8") && strstr(epw_last_error(), "hidden is 64"),
              "error text: %s", epw_last_error());
}

int main(void) {
    tabulate(&BF16);
    tabulate(&F16);
    tabulate(&E4M3);
    const epw_numerics *all[8];
    const size_t count = epw_numerics_all(all, 8);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t dtype = EPW_BF16; dtype <= EPW_F16; dtype++) {
            narrows_every_value_and_every_tie(all[i], dtype);
            widens_every_code(all[i], dtype);
            sums_in_order_for_every_width(all[i], dtype);
            rounds_to_e4m3(all[i], dtype);
            dequantises_every_code(all[i], dtype);
            for (uint32_t payload = EPW_PAYLOAD_FP8_F32; payload <= EPW_PAYLOAD_FP8_UE8M0; payload++)
                quantises_like_the_oracle(all[i], payload, dtype);
        }
        keeps_the_order_and_fuses_nothing(all[i]);
        sums_in_place(all[i]);
        special_blocks_have_the_documented_codes(all[i]);
        copies_exactly_the_bytes_asked_for(all[i]);
        printf("numerics: %s\n", all[i]->isa);
    }
    chooses_what_the_environment_names();
    public_quantisers_check_and_agree();
    return check_result("numerics");
}
