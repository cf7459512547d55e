/* An all-reduce followed by residual, norm and quantising, compared with a reference that follows the rules
 * of c/numerics/norm.h word by word. Refused calls, by text. */
#include "comms.h"

#include <math.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 3, ROWS = 5, MOST = ROWS * 16384 };

static uint64_t state = 1;

static uint32_t below(uint32_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % bound;
}

/* Every value of a type: rounding looks numbers up, and computes nothing. */
static float values[2][65536];

static float value_of(uint32_t half, uint16_t bits) {
    uint32_t exponent_bits = half ? 5 : 8, fraction_bits = half ? 10 : 7, bias = half ? 15 : 127;
    uint32_t exponent = bits >> fraction_bits & ((1u << exponent_bits) - 1),
             fraction = bits & ((1u << fraction_bits) - 1);
    double sign = bits >> 15 ? -1.0 : 1.0, one = (double)(1u << fraction_bits);
    if (exponent == (1u << exponent_bits) - 1) return fraction != 0 ? NAN : (float)(sign * HUGE_VAL);
    if (exponent == 0) return (float)(sign * ldexp(fraction / one, 1 - (int)bias));
    return (float)(sign * ldexp(1 + fraction / one, (int)exponent - (int)bias));
}

static uint16_t round_to(uint32_t half, float x) {
    uint16_t infinity = half ? 0x7c00 : 0x7f80, sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x)) return half ? 0x7e00 : 0x7fc0;
    double size = fabs((double)x), last = (double)values[half][infinity - 1];
    double beyond = last + (last - (double)values[half][infinity - 2]) / 2;
    if (size >= beyond) return (uint16_t)(sign | infinity);
    uint32_t low = 0, high = infinity - 1u;
    while (low < high) { /* find the largest value that is not greater */
        uint32_t middle = (low + high + 1) / 2;
        if ((double)values[half][middle] <= size)
            low = middle;
        else
            high = middle - 1;
    }
    if (low == infinity - 1u) return (uint16_t)(sign | low);
    double down = size - (double)values[half][low], up = (double)values[half][low + 1] - size;
    if (up < down || (up == down && low % 2 == 1)) low++;
    return (uint16_t)(sign | low);
}

static float sum_of(const float *parts, uint32_t count) {
    if (count == 1) return parts[0];
    float low = sum_of(parts, count / 2), high = sum_of(parts + count / 2, count / 2);
    return low + high;
}

static void expect_row(uint32_t half, uint32_t hidden, float epsilon, const uint16_t *sum, uint16_t *residual,
                       const uint16_t *weight, uint16_t *y) {
    float pieces[128][32] = {0}, sums[32] = {0};
    for (uint32_t i = 0; i < hidden; i++) {
        uint16_t x = sum[i];
        if (residual != NULL)
            x = residual[i] = round_to(half, values[half][sum[i]] + values[half][residual[i]]);
        y[i] = x;
        volatile float square = values[half][x] * values[half][x];
        pieces[i / 128][i / 4 % 32] += square;
    }
    for (uint32_t p = 0; p < 128; p++) sums[p % 32] += sum_of(pieces[p], 32);
    volatile float mean = sum_of(sums, 32) / (float)hidden, root = sqrtf(mean + epsilon), r = 1.0f / root;
    for (uint32_t i = 0; i < hidden; i++) {
        volatile float scaled = values[half][y[i]] * r;
        y[i] = round_to(half, scaled * values[half][weight[i]]);
    }
}

typedef struct rank_memory {
    uint16_t *send, *recv, *residual, *expected_residual, *out, *expected;
    unsigned char *scales, *expected_scales;
} rank_memory;

typedef struct test {
    comms c;
    uint32_t half, payload, hidden, rows;
    bool residual, in_place, without_sum; /* the rows take the place of the sum */
    uint16_t *weight;
    rank_memory of[RANKS];
} test;

static uint16_t *recv_of(const test *t, const rank_memory *m) {
    return t->in_place ? m->send : m->recv;
}

static epw_norm norm_of(const test *t, const rank_memory *m) {
    epw_norm norm = EPW_NORM_INIT;
    norm.payload = t->payload;
    norm.hidden = t->hidden;
    norm.rows = t->rows;
    norm.residual = t->residual ? m->residual : NULL;
    norm.weight = t->weight;
    norm.out = t->without_sum ? recv_of(t, m) : m->out;
    norm.scales = t->payload != EPW_PAYLOAD_SAME ? m->scales : NULL;
    return norm;
}

static void run_rank(uint32_t rank, void *context) {
    test *t = context;
    rank_memory *m = &t->of[rank];
    uint32_t count = t->rows * t->hidden, type = t->half ? EPW_TYPE_F16 : EPW_TYPE_BF16;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_norm norm = norm_of(t, m);
    memset(m->out, 0x5a, count * sizeof *m->out);
    const uint16_t *sum = recv_of(t, m);
    if (t->without_sum) {
        CHECK_OK(epw_all_reduce(t->c.of[rank], m->send, m->out, count, type, EPW_SUM, NULL, &outcome));
        sum = m->out;
    }
    CHECK_OK(epw_all_reduce_norm(t->c.of[rank], m->send, recv_of(t, m), type, &norm, NULL, &outcome));
    CHECK(outcome.degraded == 0);
    for (uint32_t row = 0; row < t->rows; row++) {
        uint32_t at = row * t->hidden;
        uint16_t *residual = t->residual ? m->expected_residual + at : NULL;
        expect_row(t->half, t->hidden, norm.epsilon, sum + at, residual, t->weight, m->expected + at);
    }
    CHECK(memcmp(m->residual, m->expected_residual, count * sizeof *m->residual) == 0);
    if (t->payload == EPW_PAYLOAD_SAME) {
        CHECK_MSG(memcmp(norm.out, m->expected, count * sizeof *m->expected) == 0, "hidden %u", t->hidden);
        return;
    }
    uint8_t *q = malloc(count);
    CHECK_OK(epw_quantize_fp8(t->payload, t->half ? EPW_F16 : EPW_BF16, t->rows, t->hidden, m->expected, q,
                              m->expected_scales));
    uint32_t each = t->payload == EPW_PAYLOAD_FP8_UE8M0 ? 1 : 4;
    CHECK_MSG(memcmp(m->out, q, count) == 0, "payload %u, hidden %u", t->payload, t->hidden);
    CHECK(memcmp(m->scales, m->expected_scales, count / 128 * each) == 0);
    free(q);
}

/* Numbers of the usual size in layers and, now and then, of the ends of the range. */
static void fill(uint16_t *to, uint32_t half, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        to[i] = (uint16_t)(below(2) << 15 | (half ? 0x3000 + below(0xc00) : 0x3e00 + below(0x200)));
        if (below(20000) == 0) to[i] = (uint16_t)below(65536);
    }
}

static void run(test *t) {
    fill(t->weight, t->half, t->hidden);
    for (uint32_t r = 0; r < RANKS; r++) {
        fill(t->of[r].send, t->half, t->rows * t->hidden);
        fill(t->of[r].residual, t->half, t->rows * t->hidden);
        memcpy(t->of[r].expected_residual, t->of[r].residual, MOST * sizeof *t->of[r].residual);
    }
    on_all(RANKS, run_rank, t);
}

static void *memory(size_t bytes) {
    void *memory = aligned_alloc(64, bytes);
    if (memory == NULL) abort();
    memset(memory, 0, bytes);
    return memory;
}

static void bad_norms_are_refused(test *t) {
    epw_comm *comm = t->c.of[0];
    const rank_memory *m = &t->of[0];
#define REFUSED_NORM(words, status, ...)                                                                     \
    do {                                                                                                     \
        epw_norm norm = norm_of(t, m);                                                                       \
        epw_coll c = EPW_COLL_INIT;                                                                          \
        c.kind = EPW_ALL_REDUCE;                                                                             \
        c.type = EPW_TYPE_BF16;                                                                              \
        c.count = t->rows * t->hidden;                                                                       \
        c.send = m->send;                                                                                    \
        c.recv = m->recv;                                                                                    \
        c.norm = &norm;                                                                                      \
        __VA_ARGS__;                                                                                         \
        CHECK_MSG(epw_group(comm, &c, 1, NULL, NULL) == (status), "%s", words);                              \
        CHECK_MSG(strstr(epw_last_error(), words) != NULL, "%s lacks %s", epw_last_error(), words);          \
    } while (0)
    REFUSED_NORM("norm.size is 4", EPW_ERR_INVALID, norm.size = 4);
    REFUSED_NORM("only all_reduce by EPW_SUM", EPW_ERR_INVALID, c.kind = EPW_ALL_GATHER);
    REFUSED_NORM("only all_reduce by EPW_SUM", EPW_ERR_INVALID, c.op = EPW_MAX);
    REFUSED_NORM("only all_reduce by EPW_SUM", EPW_ERR_INVALID, c.type = EPW_TYPE_F32);
    REFUSED_NORM("norm.payload is 4, must be at most 3", EPW_ERR_INVALID, norm.payload = 4);
    REFUSED_NORM("norm.hidden is 12, must be a multiple of 8 in [8, 16384]", EPW_ERR_LIMIT, norm.hidden = 12);
    REFUSED_NORM("norm.hidden is 16392", EPW_ERR_LIMIT, norm.hidden = 16392);
    REFUSED_NORM("norm.hidden is 8, must be a multiple of 128", EPW_ERR_LIMIT, norm.hidden = 8,
                 norm.payload = EPW_PAYLOAD_FP8_F32);
    REFUSED_NORM("norm.rows is 4", EPW_ERR_INVALID, norm.rows = 4);
    REFUSED_NORM("norm.epsilon is nan", EPW_ERR_INVALID, norm.epsilon = NAN);
    REFUSED_NORM("norm.epsilon is -1", EPW_ERR_INVALID, norm.epsilon = -1);
    REFUSED_NORM("norm.weight or norm.out is NULL", EPW_ERR_INVALID, norm.weight = NULL);
    REFUSED_NORM("norm.weight or norm.out is NULL", EPW_ERR_INVALID, norm.out = NULL);
    REFUSED_NORM("norm.scales must be given with an FP8 payload", EPW_ERR_INVALID, norm.scales = m->scales);
    REFUSED_NORM("norm.scales must be given with an FP8 payload", EPW_ERR_INVALID,
                 norm.payload = EPW_PAYLOAD_FP8_POW2);
    REFUSED_NORM("norm.out of an FP8 payload must be neither send nor recv", EPW_ERR_INVALID,
                 norm.payload = EPW_PAYLOAD_FP8_POW2, norm.scales = m->scales, norm.out = m->recv);
    CHECK(epw_all_reduce_norm(comm, m->send, m->recv, EPW_TYPE_BF16, NULL, NULL, NULL) == EPW_ERR_INVALID);
#undef REFUSED_NORM
}

/* A norm of another version may end before `rows`: its size is looked at first. */
static void a_short_norm_is_not_read(test *t) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    epw_norm *norm = (void *)(pages + page - 8);
    *(uint32_t *)(void *)norm = 8;
    CHECK(epw_all_reduce_norm(t->c.of[0], t->of[0].send, t->of[0].recv, EPW_TYPE_BF16, norm, NULL, NULL) ==
          EPW_ERR_INVALID);
    CHECK_MSG(strstr(epw_last_error(), "norm.size is 8") != NULL, "%s", epw_last_error());
    munmap(pages, 2 * page);
}

int main(void) {
    static const uint32_t widths[] = {8, 128, 2056, 3072, 16384};
    test t = {.weight = memory(16384 * 2)};
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t bits = 0; bits < 65536; bits++) values[half][bits] = value_of(half, (uint16_t)bits);
    for (uint32_t r = 0; r < RANKS; r++) {
        rank_memory *m = &t.of[r];
        uint16_t **all[] = {&m->send, &m->recv, &m->residual, &m->expected_residual, &m->out, &m->expected};
        for (uint32_t i = 0; i < 6; i++) *all[i] = memory(MOST * sizeof **all[i]);
        m->scales = memory(MOST / 32);
        m->expected_scales = memory(MOST / 32);
    }
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.deadline_ns = UINT64_C(20000000000);
    t.c = open_comms(RANKS, config);
    activate_comms(&t.c, 1);
    t.rows = ROWS;
    for (uint32_t i = 0; i < 40; i++) {
        t.half = i % 2;
        t.payload = i / 2 % 4;
        t.hidden = t.payload == EPW_PAYLOAD_SAME ? widths[below(5)] : 128 * (1 + below(128));
        t.residual = below(3) != 0;
        t.in_place = below(3) == 0;
        t.without_sum = t.payload == EPW_PAYLOAD_SAME && below(2) == 0;
        run(&t);
    }
    t.half = t.payload = 0;
    t.hidden = 3072;
    t.residual = true;
    t.in_place = t.without_sum = false;
    bad_norms_are_refused(&t);
    a_short_norm_is_not_read(&t);
    run(&t); /* a refused call has no effect */
    close_comms(&t.c);
    for (uint32_t r = 0; r < RANKS; r++) {
        rank_memory *m = &t.of[r];
        void *all[] = {m->send, m->recv,     m->residual, m->expected_residual,
                       m->out,  m->expected, m->scales,   m->expected_scales};
        for (uint32_t i = 0; i < 8; i++) free(all[i]);
    }
    free(t.weight);
    return check_result("norms");
}
