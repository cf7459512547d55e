/* The reductions of collectives against a reference that takes one element at a time and is written to be
 * obvious, and every instruction set against it, so that all agree bit for bit. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/numerics.h"
#include "numerics/sums.h"
#include "epwire.h"

#include "check.h"

enum { TYPES = 10, OPS = 5, MOST_ROWS = 64, MOST_COUNT = 1100, MOST_SKEW = 64 };

__extension__ typedef __int128 exact;

static uint64_t state = 42;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * UINT64_C(0x2545f4914f6cdd1d);
}

/* ---- The reference ------------------------------------------------------------------------------------- */

static bool is_signed(uint32_t type) {
    return type == EPW_TYPE_I8 || type == EPW_TYPE_I32 || type == EPW_TYPE_I64;
}

/* The number of mantissa bits in a code, and the exponent's bias. */
static int mantissa_of(uint32_t type) {
    return type == EPW_TYPE_F16 ? 10 : type == EPW_TYPE_BF16 ? 7 : type == EPW_TYPE_F32 ? 23 : 52;
}

static int bias_of(uint32_t type) {
    return type == EPW_TYPE_F16 ? 15 : type == EPW_TYPE_F64 ? 1023 : 127;
}

static uint64_t infinity_of(uint32_t type) {
    return (uint64_t)(2 * bias_of(type) + 1) << mantissa_of(type);
}

static uint64_t nan_of(uint32_t type) {
    return infinity_of(type) | UINT64_C(1) << (mantissa_of(type) - 1);
}

static uint64_t sign_of(uint32_t type) {
    return UINT64_C(1) << (8 * epw_type_bytes(type) - 1);
}

static double value_of(uint32_t type, uint64_t code) {
    const uint64_t magnitude = code & (sign_of(type) - 1);
    const int mantissa = mantissa_of(type), exponent = (int)(magnitude >> mantissa);
    const uint64_t fraction = magnitude & ((UINT64_C(1) << mantissa) - 1);
    const double sign = code & sign_of(type) ? -1 : 1;
    if (magnitude > infinity_of(type)) return NAN;
    if (magnitude == infinity_of(type)) return sign * INFINITY;
    const uint64_t digits = exponent ? fraction | UINT64_C(1) << mantissa : fraction;
    return sign * ldexp((double)digits, (exponent ? exponent : 1) - bias_of(type) - mantissa);
}

/* The nearest code, ties to even. */
static uint64_t code_of(uint32_t type, double x) {
    if (isnan(x)) return nan_of(type);
    const uint64_t sign = signbit(x) ? sign_of(type) : 0;
    const int mantissa = mantissa_of(type), least = 1 - bias_of(type);
    if (isinf(x)) return sign | infinity_of(type);
    if (x == 0) return sign;
    int exponent;
    (void)frexp(x, &exponent); /* |x| in [2^(exponent-1), 2^exponent) */
    exponent = exponent - 1 < least ? least : exponent - 1;
    const uint64_t digits = (uint64_t)nearbyint(ldexp(fabs(x), mantissa - exponent));
    /* A carry out of the mantissa goes into the exponent, and from the greatest exponent to infinity. */
    const uint64_t code = ((uint64_t)(exponent - least) << mantissa) + digits;
    return sign | (exponent > bias_of(type) || code > infinity_of(type) ? infinity_of(type) : code);
}

static uint64_t reduce_floats(uint32_t type, uint32_t op, const uint64_t *codes, size_t n) {
    if (op == EPW_MIN || op == EPW_MAX) {
        double best = value_of(type, codes[0]);
        for (size_t i = 0; i < n; i++) {
            const double x = value_of(type, codes[i]);
            if (isnan(x)) return nan_of(type);
            const bool less = x < best || (x == best && signbit(x) && !signbit(best));
            const bool more = x > best || (x == best && !signbit(x) && signbit(best));
            if (op == EPW_MIN ? less : more) best = x;
        }
        return code_of(type, best);
    }
    volatile double wide = value_of(type, codes[0]);
    volatile float narrow = (float)wide;
    for (size_t i = 1; i < n; i++) {
        const double x = value_of(type, codes[i]);
        wide = op == EPW_PRODUCT ? wide * x : wide + x;
        narrow = op == EPW_PRODUCT ? narrow * (float)x : narrow + (float)x;
    }
    if (op == EPW_AVERAGE) {
        wide = wide / (double)n;
        narrow = narrow / (float)n;
    }
    return code_of(type, type == EPW_TYPE_F64 ? wide : (double)narrow);
}

static exact integer_of(uint32_t type, uint64_t code) {
    return is_signed(type) && code & sign_of(type) ? (exact)code - ((exact)sign_of(type) << 1) : (exact)code;
}

static uint64_t reduce_integers(uint32_t type, uint32_t op, const uint64_t *codes, size_t n) {
    exact sum = integer_of(type, codes[0]), least = sum, most = sum;
    uint64_t product = codes[0];
    for (size_t i = 1; i < n; i++) {
        const exact x = integer_of(type, codes[i]);
        sum += x;
        product *= codes[i];
        if (x < least) least = x;
        if (x > most) most = x;
    }
    switch (op) {
    case EPW_SUM:
        return (uint64_t)sum;
    case EPW_PRODUCT:
        return product;
    case EPW_MIN:
        return (uint64_t)least;
    case EPW_MAX:
        return (uint64_t)most;
    default:
        return (uint64_t)(sum / (exact)n);
    }
}

static uint64_t read_code(uint32_t type, const void *row, size_t at) {
    const size_t bytes = epw_type_bytes(type);
    uint64_t code = 0;
    for (size_t b = 0; b < bytes && b < sizeof code; b++)
        code |= (uint64_t)((const unsigned char *)row)[at * bytes + b] << 8 * b;
    return code;
}

static void write_code(uint32_t type, void *row, size_t at, uint64_t code) {
    const size_t bytes = epw_type_bytes(type);
    for (size_t b = 0; b < bytes && b < sizeof code; b++)
        ((unsigned char *)row)[at * bytes + b] = (unsigned char)(code >> 8 * b);
}

static void reference(uint32_t type, uint32_t op, const void *const *rows, size_t n, size_t count,
                      void *out) {
    for (size_t c = 0; c < count; c++) {
        uint64_t codes[MOST_ROWS] = {0};
        for (size_t i = 0; i < n; i++) codes[i] = read_code(type, rows[i], c);
        write_code(type, out, c,
                   n == 1                 ? codes[0]
                   : type >= EPW_TYPE_F16 ? reduce_floats(type, op, codes, n)
                                          : reduce_integers(type, op, codes, n));
    }
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

/* Codes to which special rules apply: zeros, the ends of ranges, subnormals, infinities, NaNs with
 * payloads. */
static uint64_t special_code(uint32_t type) {
    const uint64_t sign = sign_of(type);
    if (type < EPW_TYPE_F16) {
        const uint64_t codes[] = {0, 1, sign - 1, sign, sign + 1, 2 * sign - 1};
        return codes[draw() % 6];
    }
    const uint64_t infinity = infinity_of(type), one = code_of(type, 1),
                   normal = UINT64_C(1) << mantissa_of(type);
    const uint64_t codes[] = {
        0, 1, normal - 1, normal, one, one + 1, infinity - 1, infinity, infinity + 1, sign - 1};
    return codes[draw() % 10] | (draw() & 1 ? sign : 0);
}

enum { RAW, NEAR_ONE, SPECIAL, ZEROS, KINDS };

static uint64_t draw_code(uint32_t type, int kind) {
    if (kind == SPECIAL && draw() % 4 == 0) return special_code(type);
    if (kind == ZEROS) return draw() & 1 && type >= EPW_TYPE_F16 ? sign_of(type) : 0;
    if (kind == RAW || type < EPW_TYPE_F16) return draw();
    /* Sums of these are often rounded, and never overflow. */
    return code_of(type, ldexp((double)(int64_t)draw(), -63 + (int)(draw() % 8)));
}

/* Rows that end where their memory ends, `skew` bytes after a multiple of 16. */
typedef struct table {
    void *memory[MOST_ROWS];
    const void *rows[MOST_ROWS];
    size_t n;
} table;

static table make_rows(uint32_t type, int kind, size_t n, size_t count, size_t skew) {
    table t = {.n = n};
    for (size_t i = 0; i < n; i++) {
        const size_t at = (skew + 5 * i) % MOST_SKEW;
        t.memory[i] = malloc(at + count * epw_type_bytes(type) + (at == 0 && count == 0));
        t.rows[i] = (char *)t.memory[i] + at;
        for (size_t c = 0; c < count; c++)
            write_code(type, (char *)t.memory[i] + at, c, draw_code(type, kind));
    }
    return t;
}

static void free_rows(table *t) {
    for (size_t i = 0; i < t->n; i++) free(t->memory[i]);
}

/* ---- The tests ----------------------------------------------------------------------------------------- */

static const epw_sums *all[8];
static size_t tables;

/* Every instruction set, into memory `skew` bytes after the beginning of a cache line, around which nothing
 * may change. */
static void check_case(uint32_t type, uint32_t op, int kind, size_t n, size_t count, size_t skew) {
    static unsigned char want[MOST_COUNT * 8];
    static unsigned char out[MOST_COUNT * 8 + 3 * MOST_SKEW] __attribute__((aligned(64)));
    const size_t bytes = count * epw_type_bytes(type), at = MOST_SKEW + (skew * 3) % MOST_SKEW;
    table t = make_rows(type, kind, n, count, skew);
    reference(type, op, t.rows, n, count, want);
    for (size_t s = 0; s < tables; s++) {
        memset(out, 0xee, sizeof out);
        all[s]->reduce(type, op, t.rows, n, count, out + at);
        size_t wrong = 0, outside = 0;
        while (wrong < bytes && out[at + wrong] == want[wrong]) wrong++;
        for (size_t b = 0; b < at; b++) outside += out[b] != 0xee;
        for (size_t b = at + bytes; b < at + bytes + MOST_SKEW; b++) outside += out[b] != 0xee;
        const size_t c = wrong / epw_type_bytes(type);
        CHECK_MSG(
            wrong == bytes && outside == 0,
            "%s: %s of %zu rows of %zu %s, kind %d, skew %zu: element %zu is %llx, want %llx; %zu bytes "
            "outside changed",
            all[s]->isa, epw_op_name(op), n, count, epw_type_name(type), kind, skew, c,
            wrong == bytes ? 0 : (unsigned long long)read_code(type, out + at, c),
            wrong == bytes ? 0 : (unsigned long long)read_code(type, want, c), outside);
    }
    free_rows(&t);
}

static void agrees_for_every_count_of_rows(uint32_t type, uint32_t op) {
    static const size_t rows[] = {1, 2, 3, 9, 64}, counts[] = {0, 1, 7, 33, 130, 257};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
            for (int kind = 0; kind < KINDS; kind++) check_case(type, op, kind, rows[r], counts[c], c);
    check_case(type, op, NEAR_ONE, 3, MOST_COUNT - 1, 1); /* long enough to be prefetched */
}

static void agrees_at_every_alignment(uint32_t type, uint32_t op) {
    for (size_t skew = 0; skew < MOST_SKEW; skew++) check_case(type, op, (int)(skew % KINDS), 3, 71, skew);
}

static void reduces_in_place_over_each_row(uint32_t type, uint32_t op) {
    enum { COUNT = 301 };
    static unsigned char want[COUNT * 8];
    for (size_t n = 1; n <= 4; n++) {
        for (size_t over = 0; over < n; over++) {
            for (size_t s = 0; s < tables; s++) {
                table t = make_rows(type, NEAR_ONE, n, COUNT, over);
                reference(type, op, t.rows, n, COUNT, want);
                void *out = (char *)t.memory[over] + ((const char *)t.rows[over] - (char *)t.memory[over]);
                all[s]->reduce(type, op, t.rows, n, COUNT, out);
                CHECK_MSG(memcmp(out, want, COUNT * epw_type_bytes(type)) == 0,
                          "%s: %s of %zu %s rows over row %zu", all[s]->isa, epw_op_name(op), n,
                          epw_type_name(type), over);
                free_rows(&t);
            }
        }
    }
}

/* Examples of the rules, with nothing computed. */
static void follows_the_rules_by_example(void) {
    static const struct {
        uint32_t type, op;
        size_t n;
        uint64_t in[3], want;
    } cases[] = {
        {EPW_TYPE_F16, EPW_SUM, 3, {0x6800, 0x3c00, 0x3c00}, 0x6801},  /* 2048 + 1 + 1, rounded once: 2050 */
        {EPW_TYPE_BF16, EPW_SUM, 3, {0x4380, 0x3f80, 0x3f80}, 0x4381}, /* 256 + 1 + 1 */
        {EPW_TYPE_F16, EPW_SUM, 3, {0x7bff, 0x7bff, 0xfbff}, 0x7bff},  /* f32 holds what f16 cannot */
        {EPW_TYPE_F16, EPW_SUM, 2, {0x7bff, 0x7bff, 0}, 0x7c00},
        {EPW_TYPE_F32, EPW_SUM, 2, {0x80000000, 0x80000000, 0}, 0x80000000},
        {EPW_TYPE_F16, EPW_SUM, 2, {0x8000, 0x8000, 0}, 0x8000},
        {EPW_TYPE_F32, EPW_SUM, 2, {0x7f800000, 0xff800000, 0}, 0x7fc00000},
        {EPW_TYPE_F32, EPW_SUM, 2, {0xffc12345, 0x3f800000, 0}, 0x7fc00000},
        {EPW_TYPE_F32, EPW_SUM, 1, {0xff812345, 0, 0}, 0xff812345}, /* one row: its own bytes */
        {EPW_TYPE_F32, EPW_MIN, 2, {0, 0x80000000, 0}, 0x80000000},
        {EPW_TYPE_F32, EPW_MAX, 2, {0x80000000, 0, 0}, 0},
        {EPW_TYPE_F32, EPW_MIN, 2, {0xff800000, 0x7f800001, 0}, 0x7fc00000},
        {EPW_TYPE_F32, EPW_MAX, 2, {0x7f800000, 0xff800001, 0}, 0x7fc00000},
        {EPW_TYPE_F64, EPW_AVERAGE, 2, {1, 0, 0}, 0}, /* half the least subnormal, rounded to even */
        {EPW_TYPE_I8, EPW_SUM, 2, {0x7f, 1, 0}, 0x80},
        {EPW_TYPE_I8, EPW_AVERAGE, 2, {0xff, 0xfe, 0}, 0xff}, /* -3 / 2 is -1 */
        {EPW_TYPE_I8, EPW_AVERAGE, 2, {0x7f, 0x7f, 0}, 0x7f},
        {EPW_TYPE_U8, EPW_MAX, 2, {0x7f, 0x80, 0}, 0x80},
        {EPW_TYPE_I8, EPW_MAX, 2, {0x7f, 0x80, 0}, 0x7f},
        {EPW_TYPE_U64, EPW_AVERAGE, 3, {UINT64_MAX, UINT64_MAX, UINT64_MAX}, UINT64_MAX},
        {EPW_TYPE_I64, EPW_AVERAGE, 2, {(uint64_t)INT64_MIN, (uint64_t)INT64_MIN, 0}, (uint64_t)INT64_MIN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char in[3][8], out[8] = {0};
        for (int r = 0; r < 3; r++) write_code(cases[i].type, in[r], 0, cases[i].in[r]);
        const void *rows[] = {in[0], in[1], in[2]};
        for (size_t s = 0; s < tables; s++) {
            all[s]->reduce(cases[i].type, cases[i].op, rows, cases[i].n, 1, out);
            const uint64_t got = read_code(cases[i].type, out, 0);
            CHECK_MSG(got == cases[i].want, "%s: %s of %s, example %zu: %llx, want %llx", all[s]->isa,
                      epw_op_name(cases[i].op), epw_type_name(cases[i].type), i, (unsigned long long)got,
                      (unsigned long long)cases[i].want);
        }
    }
}

/* 1024 rows of the greatest elements: averages need room for their sum. */
static void averages_1024_rows_exactly(uint32_t type) {
    enum { ROWS = 1024 };
    static const void *rows[ROWS];
    const uint64_t most = is_signed(type) ? sign_of(type) - 1 : 2 * sign_of(type) - 1;
    unsigned char row[8], least[8], out[8];
    write_code(type, row, 0, most);
    write_code(type, least, 0, most - 1);
    for (size_t i = 0; i < ROWS; i++) rows[i] = row;
    for (size_t s = 0; s < tables; s++) {
        rows[ROWS - 1] = row;
        all[s]->reduce(type, EPW_AVERAGE, rows, ROWS, 1, out);
        CHECK_MSG(read_code(type, out, 0) == most, "%s: %s", all[s]->isa, epw_type_name(type));
        rows[ROWS - 1] = least; /* most - 1/1024 */
        all[s]->reduce(type, EPW_AVERAGE, rows, ROWS, 1, out);
        CHECK_MSG(read_code(type, out, 0) == most - 1, "%s: %s", all[s]->isa, epw_type_name(type));
    }
}

static void names_and_chooses(void) {
    static const uint32_t bytes[TYPES] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8};
    for (uint32_t type = 0; type < TYPES; type++) CHECK(epw_type_bytes(type) == bytes[type]);
    CHECK(epw_type_bytes(TYPES) == 0 && epw_type_bytes(UINT32_MAX) == 0);
    CHECK(strcmp(epw_type_name(EPW_TYPE_BF16), "bf16") == 0 && strcmp(epw_type_name(TYPES), "unknown") == 0);
    CHECK(strcmp(epw_op_name(EPW_AVERAGE), "average") == 0 && strcmp(epw_op_name(OPS), "unknown") == 0);
    const epw_where here = {"test", -1, -1};
    const epw_numerics *numerics = NULL;
    const epw_sums *sums = NULL;
    CHECK_OK(epw_numerics_choose(here, &numerics));
    CHECK_OK(epw_sums_choose(here, &sums));
    CHECK(sums != NULL && numerics != NULL && strcmp(sums->isa, numerics->isa) == 0);
    CHECK(epw_sums_all(all, 1) == 1 && epw_sums_all(all, 0) == 0);
}

int main(void) {
    names_and_chooses();
    tables = epw_sums_all(all, 8);
    CHECK(tables >= 1 && strcmp(all[tables - 1]->isa, "base") == 0);
    follows_the_rules_by_example();
    for (uint32_t type = 0; type < TYPES; type++) {
        for (uint32_t op = 0; op < OPS; op++) {
            agrees_for_every_count_of_rows(type, op);
            agrees_at_every_alignment(type, op);
            reduces_in_place_over_each_row(type, op);
        }
        if (type < EPW_TYPE_F16) averages_1024_rows_exactly(type);
    }
    for (size_t s = 0; s < tables; s++) printf("sums: %s\n", all[s]->isa);
    return check_result("sums");
}
