/* Every collective against a plain reference. Seeded cases choose kinds, types, reductions, roots, odd and
 * even counts, buffers of any alignment, in place or not, even and uneven blocks, rows with pitches, 1 to 9
 * ranks as threads, rings with a few small slots or large ones, heap memory or the caller's. Several
 * collectives of one seed run one after the other on the same communicator; some are begun together and
 * waited for later, some are groups of one call, with messages between neighbours among them.
 *
 * See seeds_of_test() for the variables that choose others. */
#include "comms.h"

#include <inttypes.h>
#include <stdbool.h>

enum { CASES = 170, OPS = 12, GUARD = 64, BYTES_MAX = 1 << 20, IN_GROUP = 4, MESSAGES = 2 };

static const uint32_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8};

enum { SMALL_ONES = 1900 };
static unsigned operations, small_ones; /* of all cases; of these, below 64 KiB */

static uint64_t next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t below(uint64_t *state, uint64_t bound) {
    return next(state) % bound;
}

/* One collective, as all ranks call it. */
typedef struct shape {
    uint32_t kind, type, op, root;
    uint64_t count;
    bool in_place, uneven, pitched, gaps;
    uint64_t rows;
    uint64_t counts[COMM_RANKS_MAX];               /* of blocks, by rank */
    uint64_t pair[COMM_RANKS_MAX][COMM_RANKS_MAX]; /* all_to_all: [from][to] */
    uint64_t seed;
} shape;

typedef struct test_case {
    uint64_t seed;
    comms c;
    uint32_t count;
    shape shapes[OPS];
    bool together; /* all are begun before the first is awaited */
    bool grouped;
    uint32_t groups, group[OPS];      /* the collectives of each call: one, unless it is a group */
    uint64_t messages[OPS][MESSAGES]; /* of a group: bytes to the next rank, and to the one behind it */
} test_case;

/* The bytes of element i of what `rank` sends: small numbers, so that float sums are exact in any order. */
static void element(const shape *s, uint32_t rank, uint64_t i, unsigned char *to) {
    uint64_t state = s->seed ^ (rank * 1000003u) ^ (i << 20);
    int64_t v = (int64_t)below(&state, 7) - 3;
    float f = (float)v;
    double d = (double)v;
    int32_t i32 = (int32_t)v;
    uint32_t bits;
    uint16_t h;
    memcpy(&bits, &f, 4);
    switch (s->type) {
    case EPW_TYPE_BF16:
        h = (uint16_t)(bits >> 16);
        memcpy(to, &h, 2);
        break;
    case EPW_TYPE_F16: /* -3 to 3 */
        h = (uint16_t)(v == 0
                           ? 0
                           : (bits >> 16 & 0x8000u) | ((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023));
        memcpy(to, &h, 2);
        break;
    case EPW_TYPE_F32:
        memcpy(to, &f, 4);
        break;
    case EPW_TYPE_F64:
        memcpy(to, &d, 8);
        break;
    case EPW_TYPE_I32:
    case EPW_TYPE_U32:
        memcpy(to, &i32, 4);
        break;
    case EPW_TYPE_I64:
    case EPW_TYPE_U64:
        memcpy(to, &v, 8);
        break;
    default:
        *to = (unsigned char)v;
    }
}

static double value_of(uint32_t type, const unsigned char *from) {
    float f;
    double d;
    int32_t i32;
    uint32_t u32, bits;
    int64_t i64;
    uint64_t u64;
    uint16_t h;
    switch (type) {
    case EPW_TYPE_I8:
        return (signed char)*from;
    case EPW_TYPE_U8:
        return *from;
    case EPW_TYPE_I32:
        memcpy(&i32, from, 4);
        return i32;
    case EPW_TYPE_U32:
        memcpy(&u32, from, 4);
        return u32;
    case EPW_TYPE_I64:
        memcpy(&i64, from, 8);
        return (double)i64;
    case EPW_TYPE_U64:
        memcpy(&u64, from, 8);
        return (double)u64;
    case EPW_TYPE_BF16:
        memcpy(&h, from, 2);
        bits = (uint32_t)h << 16;
        memcpy(&f, &bits, 4);
        return f;
    case EPW_TYPE_F16:
        memcpy(&h, from, 2);
        if ((h & 0x7fff) == 0) return 0;
        bits = (uint32_t)(h & 0x8000) << 16 | (uint32_t)((h >> 10 & 31) + 112) << 23 |
               (uint32_t)(h & 1023) << 13;
        memcpy(&f, &bits, 4);
        return f;
    case EPW_TYPE_F32:
        memcpy(&f, from, 4);
        return f;
    default:
        memcpy(&d, from, 8);
        return d;
    }
}

/* Products of several threes have more bits than a 16-bit float, and are rounded once. */
static bool is_near(double got, double want, uint32_t type) {
    double bits = type == EPW_TYPE_BF16 ? 256 : type == EPW_TYPE_F16 ? 2048 : 16777216;
    double off = got > want ? got - want : want - got;
    return off * bits <= (want < 0 ? -want : want);
}

/* Whether `got` is the fold of element i of all ranks, compared as numbers, as far as those are exact. */
static bool is_folded(const shape *s, uint32_t ranks, uint64_t i, const unsigned char *got) {
    bool is_unsigned = s->type == EPW_TYPE_U8 || s->type == EPW_TYPE_U32 || s->type == EPW_TYPE_U64;
    bool is_float = s->type >= EPW_TYPE_F16;
    int64_t sum = 0, product = 1;
    double least = 0, most = 0;
    unsigned char bytes[8] = {0};
    __extension__ unsigned __int128 whole = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        element(s, r, i, bytes);
        double v = value_of(s->type, bytes);
        uint64_t raw = 0;
        memcpy(&raw, bytes, sizes[s->type]);
        sum += is_unsigned ? (int64_t)raw : (int64_t)v;
        whole += raw;
        product = (int64_t)((uint64_t)product * (is_unsigned ? raw : (uint64_t)(int64_t)v));
        least = r == 0 || v < least ? v : least;
        most = r == 0 || v > most ? v : most;
    }
    uint64_t raw = 0, want;
    memcpy(&raw, got, sizes[s->type]);
    uint64_t ones = sizes[s->type] == 8 ? UINT64_MAX : (UINT64_C(1) << (8 * sizes[s->type])) - 1;
    switch (s->op) {
    case EPW_SUM:
        if (is_float) return value_of(s->type, got) == (double)sum;
        return raw == ((uint64_t)sum & ones);
    case EPW_PRODUCT:
        if (is_float) return is_near(value_of(s->type, got), (double)product, s->type);
        return raw == ((uint64_t)product & ones);
    case EPW_MIN:
        return value_of(s->type, got) == least;
    case EPW_MAX:
        return value_of(s->type, got) == most;
    default:
        if (is_float) {
            float f = (float)sum / (float)ranks, back = (float)value_of(s->type, got);
            double d = (double)sum / ranks;
            if (s->type == EPW_TYPE_F64) return value_of(s->type, got) == d;
            if (s->type == EPW_TYPE_F32) return back == f;
            return back - f < 0.01f && f - back < 0.01f;
        }
        want = is_unsigned ? (uint64_t)(whole / ranks) : (uint64_t)(sum / (int64_t)ranks);
        return raw == (want & ones);
    }
}

/* ---- where things lie ---- */

static uint64_t block_count(const shape *s, uint32_t rank) {
    return s->uneven ? s->counts[rank] : s->count;
}

static uint64_t width_of(const shape *s, uint32_t ranks) {
    uint64_t sum = 0;
    for (uint32_t r = 0; r < ranks; r++) sum += block_count(s, r);
    return sum;
}

/* The number of element (row, column) of rank's block in the buffer of all blocks. */
static uint64_t place(const shape *s, uint32_t rank, uint64_t row, uint64_t column, uint32_t ranks) {
    uint64_t at = 0;
    if (s->pitched) {
        for (uint32_t r = 0; r < rank; r++) at += block_count(s, r);
        return at + row * (width_of(s, ranks) + 3) + column;
    }
    for (uint32_t r = 0; r < rank; r++) at += block_count(s, r) + (s->gaps ? 2 : 0);
    return at + column;
}

static uint64_t all_elements(const shape *s, uint32_t ranks) {
    if (s->pitched) return s->rows * (width_of(s, ranks) + 3);
    return width_of(s, ranks) + (s->gaps ? 2 * ranks : 0) + 1;
}

static uint64_t pair_offset(const shape *s, uint32_t rank, uint32_t peer, bool from) {
    uint64_t at = 0;
    for (uint32_t p = 0; p < peer; p++)
        at += (from ? s->pair[rank][p] : s->pair[p][rank]) + (s->gaps ? 2 : 0);
    return at;
}

typedef struct buffers {
    unsigned char *send, *recv, *memory[2];
    uint64_t bytes;
    bool heap[2];
    uint64_t arrays[4][COMM_RANKS_MAX];
} buffers;

static unsigned char *take(epw_comm *comm, uint64_t bytes, uint64_t *state, bool *heap,
                           unsigned char **memory) {
    uint64_t shift = below(state, 4) == 0 ? below(state, 64) : 0;
    void *at = NULL;
    *heap = below(state, 3) == 0 && epw_comm_alloc(comm, bytes + 2 * GUARD, &at) == EPW_OK;
    if (!*heap) at = malloc(bytes + 2 * GUARD);
    if (at == NULL) abort();
    memset(at, 0xa5, bytes + 2 * GUARD);
    *memory = at;
    return *memory + shift;
}

static void give_back(epw_comm *comm, const buffers *b) {
    for (int i = 0; i < 2; i++) {
        if (b->heap[i]) {
            epw_comm_free(comm, b->memory[i]);
        } else {
            free(b->memory[i]);
        }
    }
}

static bool has_blocks(uint32_t kind, bool send) {
    return kind == EPW_ALL_TO_ALL || (send ? kind == EPW_SCATTER || kind == EPW_REDUCE_SCATTER
                                           : kind == EPW_ALL_GATHER || kind == EPW_GATHER);
}

static bool single_buffer(const shape *s, uint32_t rank) {
    if (!s->in_place) return false;
    return (s->kind != EPW_REDUCE && s->kind != EPW_SCATTER && s->kind != EPW_GATHER &&
            s->kind != EPW_BROADCAST) ||
           rank == s->root;
}

static uint64_t buffer_elements(const shape *s, uint32_t ranks, uint32_t rank, bool send) {
    if (s->kind == EPW_ALL_TO_ALL && s->uneven)
        return send ? pair_offset(s, rank, ranks, true) : pair_offset(s, rank, ranks, false);
    if (has_blocks(s->kind, send)) return all_elements(s, ranks);
    if (has_blocks(s->kind, !send))
        return s->pitched ? s->rows * (block_count(s, rank) + 1) : block_count(s, rank);
    return s->count;
}

/* Fills the rank's send buffer: elements are numbered as in that buffer, in reductions as in the result. */
static void fill(const shape *s, uint32_t ranks, uint32_t rank, buffers *b) {
    uint32_t size = sizes[s->type];
    uint64_t rows = s->pitched ? s->rows : 1;
    unsigned char *to = b->send;
    if (has_blocks(s->kind, true) && !(s->kind == EPW_ALL_TO_ALL && s->uneven)) {
        for (uint32_t r = 0; r < ranks; r++)
            for (uint64_t row = 0; row < rows; row++)
                for (uint64_t c = 0; c < block_count(s, r); c++) {
                    uint64_t at = place(s, r, row, c, ranks);
                    element(s, rank, at, to + at * size);
                }
        return;
    }
    if (has_blocks(s->kind, false) && s->kind != EPW_ALL_TO_ALL) {
        uint64_t own = block_count(s, rank), pitch = s->pitched ? own + 1 : own;
        bool in_place = single_buffer(s, rank);
        if (in_place) to = b->recv + place(s, rank, 0, 0, ranks) * size;
        for (uint64_t row = 0; row < rows; row++)
            for (uint64_t c = 0; c < own; c++)
                element(s, rank, row * own + c,
                        to + (row * (in_place ? width_of(s, ranks) + 3 : pitch) + c) * size);
        return;
    }
    uint64_t count = buffer_elements(s, ranks, rank, true);
    for (uint64_t i = 0; i < count; i++) element(s, rank, i, to + i * size);
}

static bool same(const shape *s, uint32_t rank, uint64_t i, const unsigned char *got) {
    unsigned char want[8];
    element(s, rank, i, want);
    return memcmp(got, want, sizes[s->type]) == 0;
}

/* How many elements of the rank's recv are wrong. */
static uint64_t wrong(const shape *s, uint32_t ranks, uint32_t rank, const buffers *b) {
    uint32_t size = sizes[s->type];
    uint64_t wrong = 0, rows = s->pitched ? s->rows : 1;
    const unsigned char *got = b->recv;
    uint64_t own = block_count(s, rank), pitch = s->pitched ? own + 1 : own;
    switch (s->kind) {
    case EPW_BROADCAST:
        for (uint64_t i = 0; i < s->count; i++) wrong += !same(s, s->root, i, got + i * size);
        break;
    case EPW_REDUCE:
        if (rank != s->root) break; /* fall through */
    case EPW_ALL_REDUCE:
        for (uint64_t i = 0; i < s->count; i++) wrong += !is_folded(s, ranks, i, got + i * size);
        break;
    case EPW_REDUCE_SCATTER:
        if (s->in_place) {
            got += place(s, rank, 0, 0, ranks) * size;
            pitch = s->pitched ? width_of(s, ranks) + 3 : own;
        }
        for (uint64_t row = 0; row < rows; row++)
            for (uint64_t c = 0; c < own; c++)
                wrong += !is_folded(s, ranks, place(s, rank, row, c, ranks), got + (row * pitch + c) * size);
        break;
    case EPW_GATHER:
        if (rank != s->root) break; /* fall through */
    case EPW_ALL_GATHER:
        for (uint32_t r = 0; r < ranks; r++)
            for (uint64_t row = 0; row < rows; row++)
                for (uint64_t c = 0; c < block_count(s, r); c++)
                    wrong +=
                        !same(s, r, row * block_count(s, r) + c, got + place(s, r, row, c, ranks) * size);
        break;
    case EPW_SCATTER:
        if (s->in_place && rank == s->root) got += place(s, rank, 0, 0, ranks) * size;
        for (uint64_t c = 0; c < own; c++)
            wrong += !same(s, s->root, place(s, rank, 0, c, ranks), got + c * size);
        break;
    case EPW_ALL_TO_ALL:
        for (uint32_t p = 0; p < ranks; p++) {
            uint64_t count = s->uneven ? s->pair[p][rank] : s->count;
            uint64_t from = s->uneven ? pair_offset(s, p, rank, true) : place(s, rank, 0, 0, ranks);
            uint64_t to = s->uneven ? pair_offset(s, rank, p, false) : place(s, p, 0, 0, ranks);
            for (uint64_t i = 0; i < count; i++) wrong += !same(s, p, from + i, got + (to + i) * size);
        }
        break;
    default:
        break;
    }
    return wrong;
}

/* ---- calling ---- */

static void offsets_of(const shape *s, uint32_t ranks, uint64_t *counts, uint64_t *offsets) {
    for (uint32_t r = 0; r < ranks; r++) {
        counts[r] = block_count(s, r);
        offsets[r] = place(s, r, 0, 0, ranks);
    }
}

static epw_coll coll_of(const shape *s, uint32_t ranks, uint32_t rank, buffers *b) {
    epw_coll c = EPW_COLL_INIT;
    uint32_t size = sizes[s->type];
    c.kind = s->kind;
    c.type = s->type;
    c.op = s->op;
    c.peer = s->root;
    c.count = s->count;
    c.send = b->send;
    c.recv = b->recv;
    if (s->kind == EPW_ALL_TO_ALL && s->uneven) {
        for (uint32_t p = 0; p < ranks; p++) {
            b->arrays[0][p] = s->pair[rank][p];
            b->arrays[1][p] = s->pair[p][rank];
            b->arrays[2][p] = pair_offset(s, rank, p, true);
            b->arrays[3][p] = pair_offset(s, rank, p, false);
        }
        c.recv_counts = b->arrays[1];
        if (s->gaps) c.recv_offsets = b->arrays[3];
        if (s->in_place && s->seed % 2 == 0) return c; /* those of send are the same */
        c.send_counts = b->arrays[0];
        if (s->gaps) c.send_offsets = b->arrays[2];
        return c;
    }
    bool blocks_sent = has_blocks(s->kind, true), blocks_received = has_blocks(s->kind, false);
    if ((blocks_sent || blocks_received) && (s->uneven || s->gaps)) {
        offsets_of(s, ranks, b->arrays[0], b->arrays[1]);
        if (blocks_sent && s->uneven) c.send_counts = b->arrays[0];
        if (blocks_sent) c.send_offsets = b->arrays[1];
        if (blocks_received && s->uneven) c.recv_counts = b->arrays[0];
        if (blocks_received) c.recv_offsets = b->arrays[1];
    }
    if (s->pitched) {
        uint64_t whole = width_of(s, ranks) + 3, own = block_count(s, rank) + 1;
        c.rows = s->rows;
        c.recv_pitch = s->kind == EPW_ALL_GATHER ? whole : own;
        c.send_pitch = s->kind == EPW_ALL_GATHER ? own : whole;
        if (s->in_place) c.recv_pitch = c.send_pitch = whole;
    }
    if (s->in_place && (s->kind == EPW_ALL_GATHER || (s->kind == EPW_GATHER && rank == s->root)))
        c.send = b->recv + place(s, rank, 0, 0, ranks) * size;
    if (s->in_place && (s->kind == EPW_REDUCE_SCATTER || (s->kind == EPW_SCATTER && rank == s->root)))
        c.recv = b->send + place(s, rank, 0, 0, ranks) * size;
    return c;
}

static void prepare(const test_case *t, uint32_t rank, uint32_t i, buffers *b, uint64_t *state) {
    const shape *s = &t->shapes[i];
    uint64_t send = buffer_elements(s, t->c.ranks, rank, true),
             recv = buffer_elements(s, t->c.ranks, rank, false);
    if (single_buffer(s, rank) && (has_blocks(s->kind, true) || has_blocks(s->kind, false)))
        send = recv = send > recv ? send : recv;
    b->send = take(t->c.of[rank], send * 8, state, &b->heap[0], &b->memory[0]);
    b->recv = take(t->c.of[rank], recv * 8, state, &b->heap[1], &b->memory[1]);
    if (single_buffer(s, rank)) {
        if (has_blocks(s->kind, false) && s->kind != EPW_ALL_TO_ALL) {
            b->send = b->recv;
        } else {
            b->recv = b->send;
        }
    }
    fill(s, t->c.ranks, rank, b);
}

/* ---- groups ---- */

/* The messages of one call: sent[m] to the rank that is m + 1 behind this one, got[m] from the one that is m
 * + 1 before it. */
typedef struct crossing {
    unsigned char *sent[MESSAGES], *got[MESSAGES];
} crossing;

static unsigned char byte_of(const test_case *t, uint32_t rank, uint32_t group, uint32_t m, uint64_t i) {
    return (unsigned char)(t->seed * 31 + rank * 101 + group * 17 + m * 7 + i * 13 + (i >> 8));
}

/* Puts `one` at a place of its own among these, whose order stays the same. */
static void insert(epw_coll *all, uint32_t *count, epw_coll one, uint64_t *state) {
    uint32_t at = (uint32_t)below(state, ++*count);
    memmove(&all[at + 1], &all[at], (*count - 1 - at) * sizeof *all);
    all[at] = one;
}

static void add_messages(const test_case *t, uint32_t rank, uint32_t g, crossing *x, epw_coll *ops,
                         uint32_t *count, uint64_t *state) {
    for (uint32_t m = 0; m < MESSAGES; m++) {
        uint64_t bytes = t->messages[g][m];
        uint32_t ranks = t->c.ranks, step = (m + 1) % ranks;
        x->sent[m] = malloc(bytes + 1);
        x->got[m] = malloc(bytes + 1);
        if (x->sent[m] == NULL || x->got[m] == NULL) abort();
        memset(x->got[m], 0xa5, bytes + 1);
        for (uint64_t i = 0; i < bytes; i++) x->sent[m][i] = byte_of(t, rank, g, m, i);
        epw_coll c = EPW_COLL_INIT;
        c.type = EPW_TYPE_U8;
        c.count = bytes;
        c.tag = m;
        c.kind = EPW_SEND;
        c.peer = (rank + step) % ranks;
        c.send = x->sent[m];
        insert(ops, count, c, state);
        c.kind = EPW_RECV;
        c.peer = (rank + ranks - step) % ranks;
        c.send = NULL;
        c.recv = x->got[m];
        insert(ops, count, c, state);
    }
}

static void check_messages(const test_case *t, uint32_t rank, uint32_t g, const crossing *x) {
    for (uint32_t m = 0; m < MESSAGES; m++) {
        uint32_t ranks = t->c.ranks, from = (rank + ranks - (m + 1) % ranks) % ranks;
        uint64_t bad = x->got[m][t->messages[g][m]] != 0xa5;
        for (uint64_t i = 0; i < t->messages[g][m]; i++) bad += x->got[m][i] != byte_of(t, from, g, m, i);
        CHECK_MSG(bad == 0, "seed %" PRIu64 ", rank %u, call %u: %" PRIu64 " bytes of message %u", t->seed,
                  rank, g, bad, m);
        free(x->sent[m]);
        free(x->got[m]);
    }
}

static void run_case(uint32_t rank, void *context) {
    const test_case *t = context;
    uint64_t state = t->seed + rank;
    buffers b[OPS];
    crossing x[OPS];
    epw_work works[OPS];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    for (uint32_t g = 0, i = 0; g < t->groups; g++) {
        epw_coll ops[IN_GROUP + 2 * MESSAGES];
        uint32_t count = 0;
        for (; count < t->group[g]; i++, count++) {
            prepare(t, rank, i, &b[i], &state);
            ops[count] = coll_of(&t->shapes[i], t->c.ranks, rank, &b[i]);
        }
        if (t->grouped) add_messages(t, rank, g, &x[g], ops, &count, &state);
        epw_call call = EPW_CALL_INIT;
        call.work = &works[g];
        CHECK_OK(epw_group(t->c.of[rank], ops, count, t->together ? &call : NULL, &outcome));
        CHECK_MSG(t->together || outcome.degraded == 0, "seed %" PRIu64, t->seed);
    }
    for (uint32_t g = 0, i = 0; g < t->groups; g++) {
        if (t->together) CHECK_OK(epw_work_wait(t->c.of[rank], works[g], UINT64_MAX, &outcome));
        CHECK_MSG(outcome.degraded == 0, "seed %" PRIu64, t->seed);
        if (t->grouped) check_messages(t, rank, g, &x[g]);
        for (uint32_t last = i + t->group[g]; i < last; i++) {
            const shape *s = &t->shapes[i];
            uint64_t bad = wrong(s, t->c.ranks, rank, &b[i]);
            CHECK_MSG(bad == 0,
                      "seed %" PRIu64 ", rank %u of %u, operation %u, call %u: %" PRIu64
                      " wrong: kind %u type %u op %u root %u count %" PRIu64
                      " in place %d uneven %d pitched %d",
                      t->seed, rank, t->c.ranks, i, g, bad, s->kind, s->type, s->op, s->root, s->count,
                      s->in_place, s->uneven, s->pitched);
            give_back(t->c.of[rank], &b[i]);
        }
    }
}

/* ---- cases ---- */

static uint64_t some_count(uint64_t *state, uint64_t most) {
    switch (below(state, 4)) {
    case 0:
        return below(state, 3);
    case 1:
        return below(state, 40);
    case 2:
        return below(state, most < 3000 ? most : 3000);
    default:
        return below(state, most);
    }
}

static shape make_shape(uint64_t *state, uint32_t ranks) {
    shape s = {.kind = (uint32_t)below(state, EPW_SCATTER + 1), .type = (uint32_t)below(state, 10)};
    s.op = (uint32_t)below(state, 5);
    s.root = (uint32_t)below(state, ranks);
    s.count = some_count(state, BYTES_MAX / 8 / ranks);
    s.seed = next(state);
    s.in_place = below(state, 3) == 0;
    bool blocks = has_blocks(s.kind, true) || has_blocks(s.kind, false);
    s.uneven = blocks && below(state, 3) == 0;
    s.gaps = blocks && s.kind != EPW_ALL_TO_ALL && below(state, 3) == 0;
    s.pitched = (s.kind == EPW_ALL_GATHER || s.kind == EPW_REDUCE_SCATTER) && below(state, 3) == 0;
    s.rows = 1;
    if (s.pitched) {
        s.rows = 2 + below(state, 9);
        s.count = s.count / s.rows + 1;
        s.gaps = false;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        s.counts[r] = some_count(state, s.count + 2);
        for (uint32_t p = 0; p < ranks; p++) s.pair[r][p] = some_count(state, s.count / 2 + 2);
    }
    if (s.uneven && s.kind == EPW_ALL_TO_ALL) {
        s.gaps = s.seed % 3 == 0;
        for (uint32_t r = 0; s.in_place && r < ranks; r++)
            for (uint32_t p = 0; p < r; p++) s.pair[r][p] = s.pair[p][r];
    }
    if (s.uneven && s.pitched)
        for (uint32_t r = 0; r < ranks; r++) s.counts[r]++;
    return s;
}

/* Divides the collectives among calls: one each, or groups. */
static void make_groups(test_case *t, uint64_t *state) {
    t->groups = 0;
    for (uint32_t i = 0; i < t->count; i += t->group[t->groups++]) {
        uint64_t left = t->count - i, most = left < IN_GROUP ? left : IN_GROUP;
        t->group[t->groups] = t->grouped ? 1 + (uint32_t)below(state, most) : 1;
        for (uint32_t m = 0; m < MESSAGES; m++)
            t->messages[t->groups][m] = some_count(state, below(state, 4) == 0 ? BYTES_MAX / 2 : 40000);
    }
}

/* Whether no rank's buffer of this has 64 KiB. */
static bool is_small(const shape *s, uint32_t ranks) {
    uint64_t most = 0;
    for (uint32_t r = 0; r < 2 * ranks; r++) {
        uint64_t elements = buffer_elements(s, ranks, r / 2, r % 2 == 0);
        most = elements > most ? elements : most;
    }
    return most * sizes[s->type] < 64 << 10;
}

static void one_case(uint64_t seed) {
    static const uint32_t slot_bytes[] = {0, 64, 256, 4096, 65536};
    uint64_t state = seed;
    test_case t = {.seed = seed};
    uint32_t ranks =
        (uint32_t)(below(&state, 4) == 0 ? 1 + below(&state, COMM_RANKS_MAX) : 1 + below(&state, 4));
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.slots = 2u << below(&state, 3);
    config.slot_bytes = slot_bytes[below(&state, 5)];
    config.heap_bytes = below(&state, 2) == 0 ? 0 : 4 << 20;
    t.c = open_comms(ranks, config);
    if (seed % 2 == 0) pull_from(&t.c, UINT64_MAX);
    t.together = below(&state, 3) == 0;
    uint64_t grouping = ~seed; /* of its own, so that the cases are those of earlier versions */
    t.grouped = below(&grouping, 2) == 0;
    for (uint32_t epoch = 1; epoch <= 2; epoch++) {
        activate_comms(&t.c, epoch);
        if (seed % 3 == 0) pass_messages(&t.c, EPW_STEP_MAX - seed % 40); /* words wrap around */
        t.count = 1 + (uint32_t)below(&state, OPS);
        for (uint32_t i = 0; i < t.count; i++) {
            t.shapes[i] = make_shape(&state, ranks);
            operations++;
            small_ones += is_small(&t.shapes[i], ranks);
        }
        make_groups(&t, &grouping);
        on_all(ranks, run_case, &t);
    }
    close_comms(&t.c);
}

/* ---- no memory ---- */

enum { FEW = 3, LEFT_OUT_MAX = 100000 };

/* With counts of 0, each kind of each type in one call, and then all kinds in one group with messages. */
static void run_of_nothing(uint32_t rank, void *context) {
    static const uint64_t none[FEW] = {0};
    const comms *c = context;
    epw_coll ops[2 * EPW_SCATTER + 4];
    uint32_t count = 0;
    for (uint32_t kind = EPW_BARRIER; kind <= EPW_RECV; kind++) {
        epw_coll op = EPW_COLL_INIT;
        op.kind = kind;
        op.type = kind >= EPW_SEND ? EPW_TYPE_U8 : kind;
        op.peer = kind == EPW_SEND   ? (rank + 1) % FEW
                  : kind == EPW_RECV ? (rank + FEW - 1) % FEW
                                     : kind % FEW;
        ops[count++] = op;
        if (has_blocks(kind, true)) op.send_counts = none;
        if (has_blocks(kind, false)) op.recv_counts = none;
        if (op.send_counts != NULL || op.recv_counts != NULL) ops[count++] = op;
    }
    epw_outcome outcome = EPW_OUTCOME_INIT;
    for (uint32_t i = 0; i < count; i++) {
        if (ops[i].kind >= EPW_SEND) continue;
        CHECK_OK(epw_group(c->of[rank], &ops[i], 1, NULL, &outcome));
        CHECK_MSG(outcome.degraded == 0, "kind %u", ops[i].kind);
    }
    CHECK_OK(epw_group(c->of[rank], ops, count, NULL, &outcome));
    CHECK(outcome.degraded == 0);
}

/* What a rank need not have: recv of a root that broadcasts, send of the others, and of the one or the other
 * where only the root has one. Of `count` elements, also of those that peers read in memory of the callers.
 */
static void run_without(uint32_t rank, void *context) {
    const comms *c = context;
    static const uint64_t counts[] = {1, 1000, LEFT_OUT_MAX};
    uint32_t *own = calloc(LEFT_OUT_MAX * FEW, sizeof *own), *got = calloc(LEFT_OUT_MAX * FEW, sizeof *got);
    if (own == NULL || got == NULL) abort();
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t root = 0; root < FEW; root++) {
            uint64_t n = counts[i], bad = 0;
            bool is_root = rank == root;
            epw_outcome outcome = EPW_OUTCOME_INIT;
            for (uint64_t e = 0; e < n * FEW; e++) own[e] = (uint32_t)(rank * 1000003u + root * 31 + i + e);
#define SENT(from, e) ((uint32_t)((from)*1000003u + root * 31 + i + (e)))
            CHECK_OK(epw_broadcast(c->of[rank], is_root ? own : NULL, is_root ? NULL : got, n, EPW_TYPE_U32,
                                   root, NULL, &outcome));
            bad += outcome.degraded;
            for (uint64_t e = 0; e < n && !is_root; e++) bad += got[e] != SENT(root, e);
            CHECK_OK(
                epw_scatter(c->of[rank], is_root ? own : NULL, got, n, EPW_TYPE_U32, root, NULL, &outcome));
            bad += outcome.degraded;
            for (uint64_t e = 0; e < n; e++) bad += got[e] != SENT(root, rank * n + e);
            CHECK_OK(
                epw_gather(c->of[rank], own, is_root ? got : NULL, n, EPW_TYPE_U32, root, NULL, &outcome));
            bad += outcome.degraded;
            for (uint64_t e = 0; e < n * FEW && is_root; e++) bad += got[e] != SENT((uint32_t)(e / n), e % n);
            CHECK_OK(epw_reduce(c->of[rank], own, is_root ? got : NULL, n, EPW_TYPE_U32, EPW_SUM, root, NULL,
                                &outcome));
            bad += outcome.degraded;
            for (uint64_t e = 0; e < n && is_root; e++) bad += got[e] != SENT(0, e) + SENT(1, e) + SENT(2, e);
#undef SENT
            CHECK_MSG(bad == 0, "rank %u, root %u, count %" PRIu64 ": %" PRIu64 " wrong", rank, root, n, bad);
        }
    free(own);
    free(got);
}

static void what_is_not_there_is_not_needed(void) {
    comms c = open_comms(FEW, (epw_comm_config)EPW_COMM_CONFIG_INIT);
    activate_comms(&c, 1);
    on_all(FEW, run_of_nothing, &c);
    on_all(FEW, run_without, &c);
    close_comms(&c);
}

/* ---- calls with equal blocks ---- */

/* The calls that no other test makes: the cases below give operations to epw_group. */
static void run_equal_blocks(uint32_t rank, void *context) {
    const comms *c = context;
    static const uint64_t counts[] = {1, 1000, LEFT_OUT_MAX};
    uint32_t *own = calloc(LEFT_OUT_MAX * FEW, sizeof *own), *got = calloc(LEFT_OUT_MAX * FEW, sizeof *got);
    if (own == NULL || got == NULL) abort();
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t n = counts[i], bad = 0;
        epw_outcome outcome = EPW_OUTCOME_INIT;
#define SENT(from, e) ((uint32_t)((from)*1000003u + i + (e)))
        for (uint64_t e = 0; e < n * FEW; e++) own[e] = SENT(rank, e);
        CHECK_OK(epw_reduce_scatter(c->of[rank], own, got, n, EPW_TYPE_U32, EPW_MAX, NULL, &outcome));
        bad += outcome.degraded;
        for (uint64_t e = 0; e < n; e++) bad += got[e] != SENT(FEW - 1, rank * n + e);
        CHECK_OK(epw_all_gather(c->of[rank], own, got, n, EPW_TYPE_U32, NULL, &outcome));
        bad += outcome.degraded;
        for (uint64_t e = 0; e < n * FEW; e++) bad += got[e] != SENT((uint32_t)(e / n), e % n);
        CHECK_OK(epw_all_to_all(c->of[rank], own, got, n, EPW_TYPE_U32, NULL, &outcome));
        bad += outcome.degraded;
        for (uint64_t e = 0; e < n * FEW; e++) bad += got[e] != SENT((uint32_t)(e / n), rank * n + e % n);
#undef SENT
        CHECK_MSG(bad == 0, "rank %u, count %" PRIu64 ": %" PRIu64 " wrong", rank, n, bad);
    }
    free(own);
    free(got);
}

static void calls_with_equal_blocks_have_their_results(void) {
    comms c = open_comms(FEW, (epw_comm_config)EPW_COMM_CONFIG_INIT);
    activate_comms(&c, 1);
    on_all(FEW, run_equal_blocks, &c);
    close_comms(&c);
}

/* ---- memory that is lent ---- */

/* A small sum in place overwrites what another rank may still have to read: it is never lent. */
static void add_in_place(uint32_t rank, void *context) {
    const comms *c = context;
    enum { ELEMENTS = 1000, ADDITIONS = 100 };
    uint32_t sums[ELEMENTS], bad = 0;
    for (uint32_t i = 0; i < ADDITIONS; i++) {
        for (uint32_t e = 0; e < ELEMENTS; e++) sums[e] = rank + i + e;
        epw_outcome outcome = EPW_OUTCOME_INIT;
        CHECK_OK(epw_all_reduce(c->of[rank], sums, sums, ELEMENTS, EPW_TYPE_U32, EPW_SUM, NULL, &outcome));
        bad += outcome.degraded;
        for (uint32_t e = 0; e < ELEMENTS; e++) bad += sums[e] != FEW * (FEW - 1) / 2 + FEW * (i + e);
    }
    CHECK_MSG(bad == 0, "rank %u: %u wrong", rank, bad);
}

static void small_sums_in_place_lend_nothing(void) {
    comms c = open_comms(FEW, (epw_comm_config)EPW_COMM_CONFIG_INIT);
    pull_from(&c, 1);
    activate_comms(&c, 1);
    on_all(FEW, add_in_place, &c);
    close_comms(&c);
}

enum { LENT = 80 << 20 }; /* three messages: see LENT_BYTES in flow.c */

static void broadcast_lent(uint32_t rank, void *context) {
    const comms *c = context;
    void *memory = rank == 0 ? NULL : malloc(LENT);
    if (rank == 0) CHECK_OK(epw_comm_alloc(c->of[0], LENT, &memory));
    if (memory == NULL) abort();
    memset(memory, rank == 0 ? 7 : 0, LENT);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_broadcast(c->of[rank], memory, memory, LENT, EPW_TYPE_U8, 0, NULL, &outcome));
    const unsigned char *got = memory;
    CHECK(!outcome.degraded && got[0] == 7 && memcmp(got, got + 1, LENT - 1) == 0);
    if (rank == 0) {
        const epw_coll_peer *to = &c->of[0]->of[1];
        if (!epw_is_queued(&c->of[0]->peers, 1)) CHECK(to->rings[EPW_CHANNEL_COLLECTIVE].posted == 3);
        epw_comm_free(c->of[0], memory);
    } else {
        free(memory);
    }
}

static void much_is_lent_in_pieces(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.heap_bytes = LENT;
    comms c = open_comms(2, config);
    activate_comms(&c, 1);
    on_all(2, broadcast_lent, &c);
    close_comms(&c);
}

/* ---- running numbers ---- */

static void numbers_of_collectives_wrap_around(void) {
    epw_ring ring = epw_ring_restarted();
    ring.message = (epw_message){.number = 1, .what = {.kind = EPW_BARRIER}};
    ring.message.call = 0;
    CHECK(!epw_message_unexpected(&ring, UINT32_MAX)); /* of the next call */
    ring.message.call = UINT32_MAX;
    CHECK(epw_message_unexpected(&ring, 0)); /* of the one before */
    CHECK(epw_message_unexpected(&ring, UINT32_MAX));
}

int main(void) {
    what_is_not_there_is_not_needed();
    calls_with_equal_blocks_have_their_results();
    small_sums_in_place_lend_nothing();
    much_is_lent_in_pieces();
    numbers_of_collectives_wrap_around();
    seeds s = seeds_of_test(CASES);
    for (uint64_t seed = s.first; seed < s.end; seed += s.step) one_case(seed);
    printf("%u operations, of these %u below 64 KiB\n", operations, small_ones);
    if (s.step == 1 && s.end - s.first == CASES) CHECK_MSG(small_ones >= SMALL_ONES, "only %u", small_ones);
    return check_result("collectives");
}
