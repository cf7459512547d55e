/* Cases that the random tests of prefill leave out: rows that the caller has quantised, with scales of every
 * size, given and received in every order; f16; two lanes at the same time; ids of every type; and counting
 * without sending. */
#include "prefills.h"

#include <stdbool.h>

enum { ALL = 4, N = 30, WIDTH = 256, LOCAL = 3, K = 3, ROWS = ALL * N * K, OPAQUE = 112, LANES = 2 };

static epw_prefill_config config_for(uint32_t dtype) {
    epw_prefill_config c = EPW_PREFILL_CONFIG_INIT;
    c.ring_tokens = 5;
    c.ep.ranks = ALL;
    c.ep.max_tokens = N;
    c.ep.hidden = WIDTH;
    c.ep.experts = ALL * LOCAL;
    c.ep.topk = K;
    c.ep.lanes = LANES;
    c.ep.threads = 1;
    c.ep.dtype = c.ep.combine_dtype = dtype;
    c.ep.opaque_bytes = OPAQUE + 64;
    return c;
}

static int32_t expert_of(uint32_t rank, uint32_t t, uint32_t j) {
    if ((rank + t + j) % 6 == 0) return -1;
    return (int32_t)((rank * 2 + t * 5 + j * 4) % (ALL * LOCAL));
}

/* f16 of a multiple of 1/2. */
static uint16_t half_of(uint32_t halves) {
    if (halves == 0) return 0;
    uint32_t exponent = 0;
    while (halves >> (exponent + 1) > 0) exponent++;
    return (uint16_t)(((exponent + 14) << 10) | ((halves << (10 - exponent)) & 0x3ff));
}

/* The arrangement of the scales of opaque rows, as given and as received. */
typedef struct scaling {
    uint32_t count, bytes;
    bool given_by_column;
    uint32_t order; /* as in epw_prefill_output */
} scaling;

typedef struct worker {
    epw_prefill *prefill;
    uint32_t rank, lane, layout, dtype;
    const scaling *scaling; /* NULL: 16-bit rows */
    _Alignas(64) uint16_t x[N * WIDTH], made[ROWS * WIDTH], sums[N * WIDTH];
    _Alignas(16) uint8_t bytes[N * OPAQUE], scales[N * 64];
    _Alignas(64) uint8_t rows[ROWS * WIDTH * 2], out_scales[ROWS * 64 + 1024];
    int64_t ids[N * K];
    float weights[N * K];
    int32_t row_source[ROWS], row_token[ROWS], row_expert[ROWS], row_position[ROWS];
} worker;

static uint8_t scale_byte(uint32_t rank, uint32_t t, uint32_t i) {
    return (uint8_t)(rank * 59 + t * 17 + i * 3 + 1);
}

static void fill(worker *w) {
    for (uint32_t i = 0; i < N * WIDTH; i++) {
        uint32_t value = (w->rank * 3 + w->lane * 5 + i / WIDTH + i % WIDTH) % 16;
        w->x[i] = w->dtype == EPW_F16 ? half_of(2 * value) : bf16((float)value);
    }
    for (uint32_t i = 0; i < N * OPAQUE; i++) w->bytes[i] = (uint8_t)(w->rank * 31 + w->lane + i * 7);
    for (uint32_t i = 0; i < N * K; i++) {
        w->ids[i] = expert_of(w->rank, i / K, i % K);
        w->weights[i] = 0.5f;
    }
    const scaling *s = w->scaling;
    uint32_t row = s != NULL ? s->count * s->bytes : 0;
    for (uint32_t t = 0; t < N && s != NULL; t++)
        for (uint32_t i = 0; i < row; i++) {
            size_t at = s->given_by_column ? ((size_t)(i / s->bytes) * N + t) * s->bytes + i % s->bytes
                                           : (size_t)t * row + i;
            w->scales[at] = scale_byte(w->rank, t, i);
        }
}

static void check_scales(const worker *w, uint32_t place, uint64_t capacity) {
    const scaling *s = w->scaling;
    uint64_t column = (capacity * s->bytes + 15) / 16 * 16;
    for (uint32_t i = 0; i < s->count * s->bytes; i++) {
        uint64_t scale = i / s->bytes, byte = i % s->bytes;
        uint64_t at = s->order == 1 ? ((uint64_t)place * s->count + scale) * s->bytes + byte
                                    : scale * column + (uint64_t)place * s->bytes + byte;
        CHECK(w->out_scales[at] ==
              scale_byte((uint32_t)w->row_source[place], (uint32_t)w->row_token[place], i));
    }
}

/* Every row that is marked has the bytes of its token, and there are as many rows as were sent. */
static void check_rows(const worker *w, const worker *all) {
    uint32_t expected = 0, found = 0, bytes = w->scaling != NULL ? OPAQUE : WIDTH * 2;
    for (uint32_t i = 0; i < ALL * N * K; i++) {
        int32_t e = expert_of(i / (N * K), i / K % N, i % K);
        expected += e >= 0 && (uint32_t)e / LOCAL == w->rank;
    }
    for (uint32_t place = 0; place < ROWS; place++) {
        if (w->row_source[place] < 0) continue;
        uint32_t s = (uint32_t)w->row_source[place], t = (uint32_t)w->row_token[place];
        const worker *from = &all[s * LANES + w->lane];
        const void *want = w->scaling != NULL ? (const void *)(from->bytes + (size_t)t * OPAQUE)
                                              : (const void *)(from->x + (size_t)t * WIDTH);
        found++;
        CHECK(w->row_expert[place] + (int32_t)(w->rank * LOCAL) ==
              expert_of(s, t, (uint32_t)w->row_position[place]));
        CHECK(memcmp(w->rows + (size_t)place * bytes, want, bytes) == 0);
        if (w->scaling != NULL) check_scales(w, place, ROWS);
    }
    CHECK_MSG(found == expected, "rank %u: %u rows, not %u", w->rank, found, expected);
}

/* Experts return their input: with weights of 1/2 the sum is half of it for each expert. */
static void check_sums(const worker *w) {
    for (uint32_t t = 0; t < N; t++) {
        uint32_t experts = 0;
        for (uint32_t j = 0; j < K; j++) experts += expert_of(w->rank, t, j) >= 0;
        for (uint32_t c = 0; c < WIDTH; c++) {
            uint32_t value = (w->rank * 3 + w->lane * 5 + t + c) % 16;
            uint16_t want =
                w->dtype == EPW_F16 ? half_of(experts * value) : bf16((float)(experts * value) / 2);
            CHECK_MSG(w->sums[t * WIDTH + c] == want, "rank %u, token %u, channel %u: %x, not %x", w->rank, t,
                      c, w->sums[t * WIDTH + c], want);
        }
    }
}

static void combine(worker *w, epw_routing *routing) {
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    in.expert_out = w->rows;
    out.out = w->sums;
    CHECK_OK(epw_prefill_combine(w->prefill, routing, &in, &out, &outcome));
    CHECK(!outcome.degraded);
    check_sums(w);
}

static void *run_worker(void *argument) {
    worker *w = argument;
    epw_routing *routing = NULL;
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_routing_create(w->prefill, &routing));
    in.tokens = N;
    in.x = w->x;
    in.topk_idx = w->ids;
    in.idx_type = EPW_I64;
    in.topk = K;
    in.topk_weights = w->weights;
    in.lane = (int32_t)w->lane;
    if (w->scaling != NULL) {
        const scaling *s = w->scaling;
        in.payload = EPW_PAYLOAD_OPAQUE;
        in.x = w->bytes;
        in.opaque_row_bytes = OPAQUE;
        in.scale_count = s->count;
        in.scale_bytes = s->bytes;
        in.scales = s->count > 0 ? w->scales : NULL;
        in.scale_row_stride = s->given_by_column ? s->bytes : (uint64_t)s->count * s->bytes;
        in.scale_col_stride = s->given_by_column ? (uint64_t)N * s->bytes : s->bytes;
        out.scale_order = s->order;
        out.scales = s->count > 0 ? w->out_scales : NULL;
    }
    out.layout = w->layout;
    out.capacity = ROWS;
    out.rows = w->rows;
    out.row_source = w->row_source;
    out.row_token = w->row_token;
    out.row_expert = w->row_expert;
    out.row_position = w->row_position;
    CHECK_OK(epw_prefill_dispatch(w->prefill, routing, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &out, &outcome));
    CHECK(!outcome.degraded);
    if (w->scaling == NULL) combine(w, routing);
    epw_routing_free(routing);
    return NULL;
}

/* Runs on this many lanes at the same time, with a thread for each lane of each rank. */
static void run_on(const prefills *g, uint32_t lanes, uint32_t dtype, const scaling *scaling) {
    static worker workers[ALL * LANES];
    pthread_t threads[ALL * LANES];
    memset(workers, 0, sizeof workers);
    for (uint32_t i = 0; i < ALL * LANES; i++) {
        worker *w = &workers[i];
        w->rank = i / LANES;
        w->lane = i % LANES;
        w->prefill = g->of[w->rank];
        w->layout = EPW_PACKED;
        w->dtype = dtype;
        w->scaling = scaling;
        fill(w);
    }
    for (uint32_t i = 0; i < ALL * LANES; i++)
        if (i % LANES < lanes) CHECK(pthread_create(&threads[i], NULL, run_worker, &workers[i]) == 0);
    for (uint32_t i = 0; i < ALL * LANES; i++)
        if (i % LANES < lanes) pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < ALL * LANES; i++)
        if (i % LANES < lanes) check_rows(&workers[i], workers);
}

/* f32 scales, four UE8M0 exponents in an int32, single exponents, pairs, and rows without scales. */
static void opaque_rows_keep_their_bytes_and_scales(void) {
    static const uint32_t shapes[][2] = {{7, 4}, {2, 4}, {7, 1}, {5, 2}, {3, 8}, {0, 0}};
    epw_prefill_config config = config_for(EPW_BF16);
    prefills g = make_prefills(&config);
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (uint32_t how = 0; how < 4; how++) {
            scaling s = {shapes[i][0], shapes[i][1], how & 1, how >> 1};
            run_on(&g, 1, EPW_BF16, &s);
        }
    destroy_prefills(&g);
}

static void both_lanes_run_at_a_time(void) {
    static const uint32_t dtypes[] = {EPW_BF16, EPW_F16};
    for (uint32_t i = 0; i < 2; i++) {
        epw_prefill_config config = config_for(dtypes[i]);
        prefills g = make_prefills(&config);
        for (uint32_t turn = 0; turn < 8; turn++) run_on(&g, LANES, dtypes[i], NULL);
        destroy_prefills(&g);
    }
}

/* ---- counting ---- */

static void count_as(uint32_t idx_type, const void *ids) {
    epw_prefill_config config = config_for(EPW_BF16);
    uint32_t rank_tokens[ALL], expert_tokens[ALL * LOCAL];
    uint8_t in_rank[N * ALL], want_in[N * ALL] = {0};
    uint32_t want_ranks[ALL] = {0}, want_experts[ALL * LOCAL] = {0};
    for (uint32_t i = 0; i < N * K; i++) {
        int32_t e = expert_of(1, i / K, i % K);
        if (e < 0) continue;
        uint8_t *in = &want_in[i / K * ALL + (uint32_t)e / LOCAL];
        want_experts[e]++;
        want_ranks[(uint32_t)e / LOCAL] += !*in;
        *in = 1;
    }
    CHECK_OK(epw_prefill_count(&config, ids, idx_type, N, K, rank_tokens, expert_tokens, in_rank));
    CHECK(memcmp(rank_tokens, want_ranks, sizeof want_ranks) == 0);
    CHECK(memcmp(expert_tokens, want_experts, sizeof want_experts) == 0);
    CHECK(memcmp(in_rank, want_in, sizeof want_in) == 0);
    CHECK_OK(epw_prefill_count(&config, ids, idx_type, N, K, NULL, NULL, NULL));
    CHECK_OK(epw_prefill_count(&config, NULL, idx_type, 0, K, rank_tokens, NULL, in_rank));
    CHECK(rank_tokens[0] == 0 && rank_tokens[ALL - 1] == 0);
}

static void counting_sends_nothing_and_takes_ids_of_every_type(void) {
    int32_t narrow[N * K];
    uint32_t bare[N * K];
    int64_t wide[N * K];
    for (uint32_t i = 0; i < N * K; i++) {
        wide[i] = narrow[i] = expert_of(1, i / K, i % K);
        bare[i] = (uint32_t)narrow[i];
    }
    count_as(EPW_I32, narrow);
    count_as(EPW_U32, bare);
    count_as(EPW_I64, wide);
    epw_prefill_config config = config_for(EPW_BF16);
    uint32_t before = 77;
    narrow[N * K - 1] = ALL * LOCAL;
    CHECK(epw_prefill_count(&config, narrow, EPW_I32, N, K, &before, NULL, NULL) == EPW_ERR_INVALID);
    CHECK_MSG(strstr(epw_last_error(), "topk_idx[29][2] is 12") != NULL, "%s", epw_last_error());
    CHECK(before == 77);
    CHECK(epw_prefill_count(&config, narrow, 3, N, K, NULL, NULL, NULL) == EPW_ERR_INVALID);
    CHECK(epw_prefill_count(&config, narrow, EPW_I32, N + 1, K, NULL, NULL, NULL) == EPW_ERR_LIMIT);
    CHECK(epw_prefill_count(&config, narrow, EPW_I32, N, K + 1, NULL, NULL, NULL) == EPW_ERR_LIMIT);
    CHECK(epw_prefill_count(NULL, narrow, EPW_I32, N, K, NULL, NULL, NULL) == EPW_ERR_INVALID);
}

int main(void) {
    opaque_rows_keep_their_bytes_and_scales();
    both_lanes_run_at_a_time();
    counting_sends_nothing_and_takes_ids_of_every_type();
    return check_result("prefill_payloads");
}
