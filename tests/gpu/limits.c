/* Buffers at the limits of what GPUs support, and input that no peer or caller should give: most ranks,
 * experts, entries, channels and tokens; every 16-bit pattern through FP8; the padding that travels after
 * rows; windows overwritten with garbage. Each case is a process of its own; its ranks are buffers of one
 * thread. `--case NAME` runs one. Exit code 77, with the reason, if there is no GPU. */
#include "cases.h"
#include "echo.h"
#include "ep/buffer.h"
#include "ranks.h"

/* Steps in which each token comes back as it was sent. */
static void steps(epw_config config, uint32_t gpus, uint32_t count) {
    static echo e;
    uint64_t all = config.ranks == 64 ? UINT64_MAX : (UINT64_C(1) << config.ranks) - 1;
    config.lanes = 1;
    config.deadline_ns = 20000 * MS;
    echo_open(&e, &config, gpus);
    for (uint32_t step = 0; step < count; step++) {
        echo_fill(&e, step);
        echo_step(&e);
        for (uint32_t r = 0; r < e.ranks; r++) {
            echo_missing(&e.rank[r], 0, "a step");
            REQUIRE(echo_miscounted(&e, &e.rank[r], all) == 0, "step %u: rank %u: %u counts are wrong", step,
                    r, echo_miscounted(&e, &e.rank[r], all));
            REQUIRE(echo_wrong(&e, &e.rank[r], all) == 0, "step %u: rank %u: %u tokens are wrong", step, r,
                    echo_wrong(&e, &e.rank[r], all));
        }
    }
    echo_close(&e);
}

static epw_config config_of(uint32_t ranks, uint32_t tokens, uint32_t hidden, uint32_t experts,
                            uint32_t topk) {
    epw_config config = EPW_CONFIG_INIT;
    config.ranks = ranks;
    config.max_tokens = tokens;
    config.hidden = hidden;
    config.experts = experts;
    config.topk = topk;
    return config;
}

static void ranks_33(uint32_t gpus) {
    steps(config_of(33, 8, 128, 33 * 2, 8), gpus, 3);
}
static void ranks_63(uint32_t gpus) {
    steps(config_of(63, 8, 128, 63, 16), gpus, 3);
}
static void ranks_64(uint32_t gpus) {
    steps(config_of(64, 8, 128, 64 * 2, 32), gpus, 3);
}
static void experts_8192(uint32_t gpus) {
    steps(config_of(1, 16, 64, 8192, 32), gpus, 2);
    steps(config_of(2, 16, 64, 8192, 32), gpus, 2);
}
static void hidden_8(uint32_t gpus) {
    steps(config_of(2, 128, 8, 16, 4), gpus, 3);
}
static void hidden_2_20(uint32_t gpus) {
    steps(config_of(2, 3, 1 << 20, 4, 2), gpus, 2);
}
static void tokens_65536(uint32_t gpus) {
    steps(config_of(2, ranks_by_queue() ? 16254 : 65536, 64, 4, 2), gpus, 2); /* a queue takes no more */
}

/* ---- every 16-bit pattern, as the host quantises it ---- */

enum { PATTERN_TOKENS = 128, PATTERN_HIDDEN = 1024 };

typedef struct quantised {
    unsigned char rows[PATTERN_TOKENS * PATTERN_HIDDEN];
    unsigned char scales[PATTERN_TOKENS * PATTERN_HIDDEN / EPW_FP8_BLOCK * 4];
} quantised;

/* What one rank with one expert receives of its own tokens, token by token. */
static void quantise(int32_t device, uint32_t dtype, uint32_t payload, const uint16_t *x, quantised *got) {
    epw_config config = config_of(1, PATTERN_TOKENS, PATTERN_HIDDEN, 1, 1);
    config.dtype = config.combine_dtype = dtype;
    config.lanes = 1;
    config.device = device;
    config.deadline_ns = 20000 * MS;
    epw_buffer *buffer = NULL;
    REQUIRE_OK(epw_buffer_create(&config, &buffer));
    REQUIRE_OK(epw_buffer_set_active(buffer, &(epw_mask){{1}}, 1, 0));
    static const int32_t ids[PATTERN_TOKENS];
    static uint32_t count;
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    in.tokens = PATTERN_TOKENS;
    in.topk = 1;
    in.payload = payload;
    out.scale_order = 1;
    in.x = x;
    in.topk_idx = ids;
    out.rows = got->rows;
    out.scales = got->scales;
    out.counts = &count;
    memset(got, 0, sizeof *got);
    quantised *there = NULL;
    if (device >= 0) {
        size_t bytes = (size_t)PATTERN_TOKENS * PATTERN_HIDDEN * 2;
        in.x = echo_take(bytes, 0);
        REQUIRE_CUDA(cudaMemcpy((void *)in.x, x, bytes, cudaMemcpyHostToDevice));
        in.topk_idx = echo_take(sizeof ids, 0);
        there = echo_take(sizeof *there, 0);
        out.rows = there->rows;
        out.scales = there->scales;
        out.counts = echo_take(sizeof count, 0);
        REQUIRE_CUDA(cudaDeviceSynchronize());
    }
    epw_handle handle = 0;
    REQUIRE_OK(epw_dispatch(buffer, &in, &out, &handle, NULL));
    if (device >= 0) {
        await_stream(NULL, 20000 * MS, "a dispatch");
        REQUIRE_CUDA(cudaMemcpy(got, there, sizeof *got, cudaMemcpyDeviceToHost));
        REQUIRE_CUDA(cudaMemcpy(&count, out.counts, sizeof count, cudaMemcpyDeviceToHost));
    }
    REQUIRE(count == PATTERN_TOKENS, "%u rows", count);
    REQUIRE_OK(epw_release(buffer, handle));
    if (device >= 0) await_stream(NULL, 20000 * MS, "a release");
    epw_buffer_destroy(buffer);
}

/* Each pattern twice: in order, so that a block holds neighbours of one binade, and shuffled, so that NaN,
 * infinities and subnormal numbers lie beside anything else. */
static void patterns(uint32_t gpus) {
    static _Alignas(64) uint16_t x[PATTERN_TOKENS * PATTERN_HIDDEN];
    static _Alignas(64) quantised host, gpu;
    (void)gpus;
    for (uint32_t shuffled = 0; shuffled < 2; shuffled++) {
        for (uint32_t i = 0; i < PATTERN_TOKENS * PATTERN_HIDDEN; i++)
            x[i] = (uint16_t)(shuffled ? i * 40503u + (i >> 16) * 977u : i);
        for (uint32_t dtype = EPW_BF16; dtype <= EPW_F16; dtype++) {
            for (uint32_t payload = EPW_PAYLOAD_FP8_F32; payload <= EPW_PAYLOAD_FP8_UE8M0; payload++) {
                quantise(EPW_DEVICE_HOST, dtype, payload, x, &host);
                quantise(0, dtype, payload, x, &gpu);
                for (size_t i = 0; i < sizeof host; i++) {
                    size_t row = i / PATTERN_HIDDEN;
                    REQUIRE(((unsigned char *)&host)[i] == ((unsigned char *)&gpu)[i],
                            "type %u payload %u: byte %zu (row %zu) is %02x instead of %02x", dtype, payload,
                            i, row, ((unsigned char *)&gpu)[i], ((unsigned char *)&host)[i]);
                }
            }
        }
    }
}

/* ---- what travels behind a row ---- */

enum { TAIL_TOKENS = 1024, TAIL_SIDEBAND = 20, LEFT_OVER = 0xa5, UNWRITTEN = 0xff };

/* A rank with one expert: row i of its own slots is its token i. */
typedef struct self {
    epw_buffer *buffer;
    epw_dispatch_input in;
    void *scales, *out;
    unsigned char *slots; /* of its only lane, in the window; valid from the first dispatch on */
    size_t slot_bytes, header_bytes;
} self;

static self self_open(uint32_t hidden) {
    self s = {.in = EPW_DISPATCH_INPUT_INIT};
    epw_config config = config_of(1, TAIL_TOKENS, hidden, 1, 1);
    epw_plan plan = EPW_PLAN_INIT;
    config.lanes = 1;
    config.device = 0;
    config.opaque_bytes = 128;
    config.sideband_bytes = TAIL_SIDEBAND;
    config.deadline_ns = 20000 * MS;
    REQUIRE_OK(epw_plan_make(&config, &plan));
    REQUIRE_OK(epw_buffer_create(&config, &s.buffer));
    REQUIRE_OK(epw_buffer_set_active(s.buffer, &(epw_mask){{1}}, 1, 0));
    s.in.layout = EPW_RANK_MAJOR;
    s.in.tokens = TAIL_TOKENS;
    s.in.topk = 1;
    s.in.x = echo_take((size_t)TAIL_TOKENS * hidden * 2, LEFT_OVER);
    s.in.topk_idx = echo_take(TAIL_TOKENS * sizeof(int32_t), 0);
    s.in.sideband = echo_take(TAIL_TOKENS * TAIL_SIDEBAND, LEFT_OVER);
    s.scales = echo_take(TAIL_TOKENS * 12, LEFT_OVER);
    s.out = echo_take((size_t)TAIL_TOKENS * hidden * 2, 0);
    s.slot_bytes = plan.slot_bytes;
    s.header_bytes = plan.slot_header_bytes;
    REQUIRE_CUDA(cudaDeviceSynchronize());
    return s;
}

static void self_close(self *s) {
    const void *memory[] = {s->in.x, s->in.topk_idx, s->in.sideband, s->scales, s->out};
    epw_buffer_destroy(s->buffer);
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) REQUIRE_CUDA(cudaFree((void *)memory[i]));
}

static epw_handle self_dispatch(self *s) {
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    epw_rows_view view = EPW_ROWS_VIEW_INIT;
    epw_handle handle = 0;
    REQUIRE_OK(epw_dispatch(s->buffer, &s->in, &out, &handle, NULL));
    await_stream(NULL, 20000 * MS, "a dispatch");
    REQUIRE_OK(epw_dispatched_rows(s->buffer, handle, &view));
    REQUIRE(view.stride == s->slot_bytes, "the stride of rows is %llu bytes",
            (unsigned long long)view.stride);
    s->slots = (unsigned char *)view.rows - s->header_bytes;
    return handle;
}

/* Leaves data in the kernels' tiles that must not be sent, and fills the slots so that every store to them
 * shows. */
static void self_leave_over(self *s) {
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output combined = EPW_COMBINE_OUTPUT_INIT;
    s->in.payload = EPW_PAYLOAD_SAME;
    s->in.sideband_bytes = TAIL_SIDEBAND;
    epw_handle handle = self_dispatch(s);
    combined.out = s->out;
    REQUIRE_OK(epw_combine(s->buffer, handle, &answer, &combined, NULL));
    await_stream(NULL, 20000 * MS, "a combine");
    REQUIRE_CUDA(cudaMemset(s->slots, UNWRITTEN, TAIL_TOKENS * s->slot_bytes));
    REQUIRE_CUDA(cudaDeviceSynchronize());
}

static void require_zeros(const unsigned char *slot, size_t from, size_t to, const char *behind,
                          const self *s, uint32_t row) {
    for (size_t at = from; at < to; at++) {
        REQUIRE(slot[at] == 0, "payload %u: row %u: byte %zu of the slot, behind the %s, is %02x",
                s->in.payload, row, at, behind, slot[at]);
    }
}

/* For rows of `row_bytes`, scales included. */
static void self_sends_zeros_behind(self *s, size_t row_bytes) {
    const size_t header = 16 + 12 + s->in.sideband_bytes, row = s->header_bytes + row_bytes;
    unsigned char *slots = malloc(TAIL_TOKENS * s->slot_bytes);
    REQUIRE(slots != NULL && row % 16 != 0, "a row ends with a whole unit");
    epw_handle handle = self_dispatch(s);
    REQUIRE_CUDA(cudaMemcpy(slots, s->slots, TAIL_TOKENS * s->slot_bytes, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < TAIL_TOKENS; i++) {
        const unsigned char *slot = slots + i * s->slot_bytes;
        require_zeros(slot, header, s->header_bytes, "header", s, i);
        require_zeros(slot, row, (row + 15) / 16 * 16, "row", s, i);
    }
    REQUIRE_OK(epw_release(s->buffer, handle));
    await_stream(NULL, 20000 * MS, "a release");
    free(slots);
}

/* Rows travel in whole units of 16 bytes, headers in whole lines. The last unit is padded with zeros, never
 * with what other rows or kernels have left in shared memory. For rows of one piece and of several. */
static void tails(uint32_t gpus) {
    (void)gpus;
    for (uint32_t blocks = 5; blocks <= 65; blocks += 60) {
        self s = self_open(blocks * EPW_FP8_BLOCK);
        for (uint32_t payload = EPW_PAYLOAD_FP8_F32; payload <= EPW_PAYLOAD_OPAQUE; payload++) {
            const uint32_t scale_bytes = payload == EPW_PAYLOAD_FP8_UE8M0 ? 1 : 4;
            size_t row_bytes = blocks * (EPW_FP8_BLOCK + scale_bytes);
            self_leave_over(&s);
            s.in.payload = payload;
            s.in.sideband_bytes = 7;
            if (payload == EPW_PAYLOAD_OPAQUE) {
                s.in.scales = s.scales;
                s.in.opaque_row_bytes = 80;
                s.in.scale_count = 3;
                s.in.scale_bytes = s.in.scale_col_stride = 4;
                s.in.scale_row_stride = 12;
                row_bytes = 80 + 12;
            }
            self_sends_zeros_behind(&s, row_bytes);
        }
        self_close(&s);
    }
}

/* ---- windows that hold garbage ---- */

static uint32_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Random words, small ones, values just too large, all bits set, and ONE. */
enum { KINDS = 5, ONE = 4 };

static void put_garbage(unsigned char *at, size_t bytes, uint32_t kind, uint64_t *seed) {
    uint32_t *words = malloc(bytes);
    REQUIRE(words != NULL, "no memory");
    for (size_t i = 0; i < bytes / 4; i++) {
        uint32_t r = next(seed);
        const uint32_t of[KINDS] = {r, r % 64, r % 4 + 126, UINT32_MAX, 1};
        words[i] = of[kind];
    }
    REQUIRE_CUDA(cudaMemcpy(at, words, bytes, cudaMemcpyHostToDevice));
    REQUIRE_CUDA(cudaDeviceSynchronize());
    free(words);
}

/* Two ranks, for cases that write into the window of the first. */
static void open_two(echo *e, epw_plan *plan, uint32_t gpus) {
    epw_config config = config_of(2, 128, 512, 16, 4);
    config.lanes = 1;
    config.zero_copy = 1;
    config.deadline_ns = 1000 * MS;
    echo_open(e, &config, gpus);
    REQUIRE_OK(epw_plan_make(&e->rank[0].config, plan));
}

/* Everything that peers write besides words is overwritten between the halves: counts and slots before rank 0
 * receives, slots and answers before it combines. Nothing outside the outputs is touched (compute-sanitizer
 * checks that), every call ends, rank 1 gets its own rows, and the next step is whole. A source that
 * announces one row for each expert, and has sent more, is refused: the others have no place. */
static void garbage(uint32_t gpus) {
    static echo e;
    enum { ROUNDS = 3 * KINDS };
    uint64_t seed = 1, refused = 0;
    epw_plan plan = EPW_PLAN_INIT;
    open_two(&e, &plan, gpus);
    echo_rank *r = &e.rank[0], *peer = &e.rank[1];
    unsigned char *window = NULL;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t kind = round % KINDS, what = window == NULL ? 0 : 1 + round / KINDS;
        echo_fill(&e, round);
        for (uint32_t i = 0; i < 2; i++) echo_dispatch(&e.rank[i], ECHO_SEND);
        echo_settle(&e, "sending");
        uint64_t lines = 4096 + 2 * 128; /* header and words */
        if (what & 1) put_garbage(window + lines, plan.control_bytes - lines, kind, &seed);
        if (what & 2) put_garbage(window + plan.control_bytes, plan.dispatch_bytes, kind, &seed);
        for (uint32_t i = 0; i < 2; i++) echo_dispatch(&e.rank[i], ECHO_RECEIVE);
        echo_settle(&e, "receiving");
        epw_outcome outcome = EPW_OUTCOME_INIT;
        REQUIRE_OK(epw_outcome_read(r->buffer, r->handle, &outcome));
        refused += outcome.degraded && outcome.record.cause == EPW_CAUSE_FORMAT;
        REQUIRE(what != 0 || !outcome.degraded, "a complete dispatch: missing %llx",
                (unsigned long long)outcome.missing.bits[0]);
        REQUIRE(what != 1 || kind != ONE || outcome.missing.bits[0] & 2,
                "rows beyond their source's count are accepted");
        echo_missing(peer, 0, "a peer whose own window is whole");
        REQUIRE(echo_miscounted(&e, peer, 3) == 0, "%u counts of the peer are wrong",
                echo_miscounted(&e, peer, 3));
        window = epw_peers_own(&r->buffer->peers);
        uint64_t data = plan.dispatch_bytes + plan.combine_bytes;
        if (what != 0) put_garbage(window + plan.control_bytes, data, kind, &seed);
        for (uint32_t i = 0; i < 2; i++) echo_combine(&e.rank[i], ECHO_BOTH);
        echo_settle(&e, "combine");
        REQUIRE_OK(epw_outcome_read(r->buffer, r->handle, &outcome));
        epw_error_record records[16];
        uint32_t count = 16;
        while (count == 16)
            REQUIRE_OK(epw_take_errors(r->buffer, records, sizeof(epw_error_record), 16, &count, NULL));
        echo_fill(&e, 100 + round);
        echo_step(&e);
        for (uint32_t i = 0; i < 2; i++) {
            echo_missing(&e.rank[i], 0, "after garbage");
            REQUIRE(echo_wrong(&e, &e.rank[i], 3) == 0, "%u tokens are wrong after garbage",
                    echo_wrong(&e, &e.rank[i], 3));
        }
    }
    REQUIRE(refused > 0, "no garbage was refused in %d rounds", ROUNDS);
    echo_close(&e);
}

enum { POISON = 0xfefe }; /* a NaN that no token contains */

/* Checks the rows of each list in order: first this rank's own, exact; then the peer's, none of which may be
 * as it was before the call. Returns how many of the peer's are zeros. */
static uint32_t zeros_of_peer(const echo *e, const echo_rank *r) {
    const epw_config *c = &r->config;
    uint32_t local = c->experts / e->ranks, zeros = 0;
    size_t bytes = (size_t)c->hidden * 2, list = (size_t)c->ranks * c->max_tokens * bytes;
    unsigned char *rows = malloc(local * list);
    uint32_t *counts = malloc(local * sizeof *counts);
    REQUIRE(rows != NULL && counts != NULL, "no memory");
    REQUIRE_CUDA(cudaMemcpy(rows, r->rows, local * list, cudaMemcpyDeviceToHost));
    REQUIRE_CUDA(cudaMemcpy(counts, r->counts, local * sizeof *counts, cudaMemcpyDeviceToHost));
    for (uint32_t x = 0; x < local; x++) {
        uint32_t own = 0;
        for (size_t i = 0; i < (size_t)c->max_tokens * c->topk; i++) {
            if ((uint32_t)r->ids[i] != c->rank * local + x) continue;
            REQUIRE(memcmp(rows + x * list + own * bytes, r->tokens + i / c->topk * c->hidden, bytes) == 0,
                    "expert %u: row %u of the rank's own is wrong", x, own);
            own++;
        }
        for (uint32_t i = own; i < counts[x]; i++) {
            const uint16_t *row = (const uint16_t *)(rows + x * list + i * bytes);
            for (uint32_t k = 0; k < c->hidden; k++)
                REQUIRE(row[k] != POISON, "expert %u: channel %u of row %u was never written", x, k, i);
            zeros += row[0] == 0 && memcmp(row, row + 1, bytes - 2) == 0;
        }
    }
    free(rows);
    free(counts);
    return zeros;
}

/* The base of what rank 1 sends to this rank, by offset: its window or, if rank 1 is behind a queue, its
 * inbox, if it has one. */
static unsigned char *from_peer(const echo_rank *r) {
    return epw_peers_from(&r->buffer->peers, 1);
}

/* The word that announces rank 1's rows, if its NIC may still be delivering them when its kernel has ended.
 */
static uint64_t rows_word(const echo_rank *r) {
    uint64_t word = 0;
    const unsigned char *at = from_peer(r) + epw_word_offset(1, 0, EPW_WORD_DISPATCH);
    if (epw_writes_by_queue(&r->buffer->peers, 1))
        REQUIRE_CUDA(cudaMemcpy(&word, at, sizeof word, cudaMemcpyDefault));
    return word;
}
static void await_rows(const echo_rank *r, uint64_t before) {
    uint64_t began = now_ns();
    while (epw_writes_by_queue(&r->buffer->peers, 1) && rows_word(r) == before)
        REQUIRE(now_ns() - began < 1000 * MS, "the rows of rank 1 do not arrive");
}

/* One row of a peer names a token that no rank has. Nothing is moved for it: all counts stay, and so do the
 * rank's own rows. The peer is missing, its malformed row has become zeros, and it is told that none of its
 * rows was answered. */
static void malformed(uint32_t gpus) {
    static echo e;
    epw_plan plan = EPW_PLAN_INIT;
    open_two(&e, &plan, gpus);
    echo_rank *r = &e.rank[0], *peer = &e.rank[1];
    size_t slot = plan.dispatch_bytes / (2 * 128), poisoned = (size_t)16 / 2 * 2 * 128 * 512 * 2;
    unsigned char *sent = NULL; /* round 0 changes nothing */
    for (uint32_t round = 0; round < 6; round++) {
        const uint32_t bad = UINT32_MAX, row = round * 17;
        echo_fill(&e, round);
        uint64_t before = rows_word(r);
        for (uint32_t i = 0; i < 2; i++) echo_dispatch(&e.rank[i], ECHO_SEND);
        echo_settle(&e, "sending");
        await_rows(r, before);
        REQUIRE_CUDA(cudaSetDevice(r->config.device));
        REQUIRE_CUDA(cudaMemset(r->rows, POISON & 0xff, poisoned));
        if (sent != NULL) {
            unsigned char *at = sent + plan.control_bytes + (128 + row) * slot;
            REQUIRE_CUDA(cudaMemcpy(at, &bad, sizeof bad, cudaMemcpyDefault));
        }
        REQUIRE_CUDA(cudaDeviceSynchronize());
        for (uint32_t i = 0; i < 2; i++) echo_dispatch(&e.rank[i], ECHO_RECEIVE);
        echo_settle(&e, "receiving");
        epw_outcome outcome = EPW_OUTCOME_INIT;
        REQUIRE_OK(epw_outcome_read(r->buffer, r->handle, &outcome));
        REQUIRE(outcome.missing.bits[0] == (sent ? 2 : 0) &&
                    outcome.record.cause == (sent ? EPW_CAUSE_FORMAT : EPW_CAUSE_NONE),
                "round %u: missing %llx, cause %u", round, (unsigned long long)outcome.missing.bits[0],
                outcome.record.cause);
        REQUIRE(echo_miscounted(&e, r, 3) == 0, "%u counts are wrong", echo_miscounted(&e, r, 3));
        uint32_t zeros = zeros_of_peer(&e, r);
        REQUIRE((zeros > 0) == (sent != NULL), "round %u: %u rows of zeros", round, zeros);
        sent = from_peer(r);
        for (uint32_t i = 0; i < 2; i++) echo_combine(&e.rank[i], ECHO_BOTH);
        echo_settle(&e, "combine");
        echo_missing(peer, outcome.degraded ? 1 : 0, "who sent a malformed row");
        REQUIRE(echo_wrong(&e, peer, outcome.degraded ? 2 : 3) == 0, "%u tokens of the peer are wrong",
                echo_wrong(&e, peer, outcome.degraded ? 2 : 3));
        REQUIRE(echo_wrong(&e, r, 3) == 0, "%u tokens are wrong", echo_wrong(&e, r, 3));
        echo_fill(&e, 100 + round);
        echo_step(&e);
        for (uint32_t i = 0; i < 2; i++) {
            echo_missing(&e.rank[i], 0, "the next step");
            REQUIRE(echo_wrong(&e, &e.rank[i], 3) == 0, "the next step is wrong");
        }
    }
    echo_close(&e);
}

/* Dispatch of rank-major rows, which combine answers where they are. */
static void send_in_place(echo_rank *r) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    in.layout = EPW_RANK_MAJOR;
    in.tokens = r->config.max_tokens;
    in.x = r->x;
    in.topk_idx = r->topk_idx;
    in.topk = r->config.topk;
    in.stream = out.stream = r->stream;
    REQUIRE_OK(epw_dispatch(r->buffer, &in, &out, &r->handle, NULL));
}

static void answer_in_place(echo_rank *r) {
    epw_combine_input in = EPW_COMBINE_INPUT_INIT;
    epw_combine_output out = EPW_COMBINE_OUTPUT_INIT;
    in.stream = out.stream = r->stream;
    out.out = r->out;
    REQUIRE_OK(epw_combine(r->buffer, r->handle, &in, &out, NULL));
}

enum { EXPONENT = 1 << 7 }; /* of bf16: adding it doubles a value */

/* Tokens that did not come back as often as they have ranks among `answers`: never, once or twice. */
static uint32_t wrong_in_place(const echo_rank *r, uint32_t answers) {
    const epw_config *c = &r->config;
    size_t values = (size_t)c->max_tokens * c->hidden;
    uint16_t *out = malloc(values * sizeof *out);
    uint32_t wrong = 0;
    REQUIRE(out != NULL, "no memory");
    REQUIRE_CUDA(cudaMemcpy(out, r->out, values * sizeof *out, cudaMemcpyDeviceToHost));
    for (uint32_t t = 0; t < c->max_tokens; t++) {
        uint32_t ranks = 0, differs = 0;
        for (uint32_t j = 0; j < c->topk; j++)
            ranks |= 1u << (uint32_t)r->ids[t * c->topk + j] / (c->experts / c->ranks);
        ranks &= answers;
        for (size_t i = (size_t)t * c->hidden; i < (size_t)(t + 1) * c->hidden; i++)
            differs |= out[i] != (ranks == 0 ? 0u : r->tokens[i] + (ranks == 3 ? EXPONENT : 0u));
        wrong += differs;
    }
    free(out);
    return wrong;
}

/* Two ranks whose blocks have many tokens each: see kernels/ep/combine_many.cuh. */
static void open_many(echo *e, uint32_t gpus, uint64_t deadline_ns) {
    epw_config config = config_of(2, 256, 512, 32, 4);
    config.lanes = 1;
    config.sms = 4;
    config.deadline_ns = deadline_ns;
    echo_open(e, &config, gpus);
}

/* Writes the word by which its peer tells the rank how many answers to it have been sent. */
static void put_progress(echo_rank *r, uint32_t op, uint32_t answers) {
    const uint64_t word = epw_word(1, op, answers);
    unsigned char *at =
        epw_peers_own(&r->buffer->peers) + epw_progress_offset(&r->buffer->layout, 0, 1 - r->config.rank);
    REQUIRE_CUDA(cudaMemcpy(at, &word, sizeof word, cudaMemcpyDefault));
    REQUIRE_CUDA(cudaDeviceSynchronize());
}

/* A word by which the peer told its progress in an operation of the same number, long ago, is not taken for
 * one of this operation: the answers of the operation before are still where its own will be. */
static void old_progress(uint32_t gpus) {
    static echo e;
    open_many(&e, gpus, 10000 * MS);
    for (uint32_t op = 1; op <= 4; op++) {
        echo_fill(&e, op);
        for (uint32_t i = 0; op > 1 && i < 2; i++) put_progress(&e.rank[i], op, e.rank[i].config.max_tokens);
        for (uint32_t i = 0; i < 2; i++) send_in_place(&e.rank[i]);
        echo_settle(&e, "a dispatch");
        answer_in_place(&e.rank[op % 2]);
        nanosleep(&(struct timespec){.tv_nsec = 50 * MS}, NULL);
        answer_in_place(&e.rank[(op + 1) % 2]);
        echo_settle(&e, "a combine");
        for (uint32_t i = 0; i < 2; i++) {
            echo_missing(&e.rank[i], 0, "a step");
            REQUIRE(wrong_in_place(&e.rank[i], 3) == 0, "operation %u: %u tokens of rank %u are wrong", op,
                    wrong_in_place(&e.rank[i], 3), i);
        }
    }
    echo_close(&e);
}

/* A peer that is lost after it has told some progress: no sum has any of its answers. */
static void lost_after_progress(uint32_t gpus) {
    static echo e;
    open_many(&e, gpus, 2000 * MS);
    echo_rank *r = &e.rank[0];
    for (uint32_t op = 1; op <= 2; op++) {
        echo_fill(&e, op);
        for (uint32_t i = 0; i < 2; i++) send_in_place(&e.rank[i]);
        echo_settle(&e, "a dispatch");
        if (op == 2) put_progress(r, op, r->config.max_tokens / 2);
        for (uint32_t i = 0; i < 3 - op; i++) answer_in_place(&e.rank[i]);
        echo_settle(&e, "a combine");
        echo_missing(r, op == 1 ? 0 : 2, "a step");
        REQUIRE(wrong_in_place(r, op == 1 ? 3 : 1) == 0, "operation %u: %u tokens are wrong", op,
                wrong_in_place(r, op == 1 ? 3 : 1));
    }
    echo_close(&e);
}

static const gpu_case cases[] = {
    {"ranks_33", ranks_33, 1, 120},
    {"ranks_63", ranks_63, 1, 120},
    {"ranks_64", ranks_64, 1, 120},
    {"experts_8192", experts_8192, 1, 60},
    {"hidden_8", hidden_8, 1, 60},
    {"hidden_2_20", hidden_2_20, 1, 60},
    {"tokens_65536", tokens_65536, 1, 60},
    {"patterns", patterns, 1, 60},
    {"tails", tails, 1, 60},
    {"garbage", garbage, 1, 60},
    {"malformed", malformed, 1, 60},
    {"old_progress", old_progress, 1, 60},
    {"lost_after_progress", lost_after_progress, 1, 60},
};

int main(int argc, char **argv) {
    return cases_main("limits", cases, sizeof cases / sizeof cases[0], argc, argv);
}
