/* Self-checking traffic, shared by host C and CUDA. Everything about a step is a function of (seed, source
 * rank, iteration): the number of tokens, their routing, their channels, the experts' answers. So the
 * receiver recomputes on the device what it should have been sent, and detects a row that is wrong,
 * misplaced, or of another iteration at once.
 *
 * All numbers are exact, whatever the order of sums: channels are e4m3 codes times a power of two, answers
 * are integers below 8, weights are 1 or 2. */
#ifndef EPW_TESTS_TRAFFIC_H
#define EPW_TESTS_TRAFFIC_H

#include "epwire.h"

#include <stdbool.h>

#ifdef __CUDACC__
#define TRAFFIC_FN __host__ __device__ static inline
#else
#define TRAFFIC_FN static inline
#endif

/* The finaliser of splitmix64. */
TRAFFIC_FN uint64_t traffic_mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

typedef struct traffic_shape {
    uint64_t seed;
    uint32_t rank, ranks, max_tokens, hidden, experts, topk; /* topk at most 16 */
} traffic_shape;

TRAFFIC_FN uint64_t traffic_key(const traffic_shape *s, uint32_t source, uint64_t iteration) {
    return traffic_mix(s->seed + traffic_mix(iteration * 64 + source + 1));
}

/* Often the maximum, sometimes 0. */
TRAFFIC_FN uint32_t traffic_tokens(const traffic_shape *s, uint64_t key) {
    uint64_t h = traffic_mix(key ^ 0x746f6b656e73);
    if (h % 16 == 0) return 0;
    return h % 4 == 1 ? s->max_tokens : (uint32_t)((h >> 8) % (s->max_tokens + 1));
}

/* State of one lane of a rank, in device memory. Kernels change it in stream order; the host writes it only
 * while nothing of the lane is running. */
typedef struct traffic_state {
    uint64_t iteration; /* iteration of the step in flight, or of the last one */
    uint64_t stride;    /* increment for the next step */
    uint64_t pause_ns;  /* a quarter of the steps begin with a pause of up to this; 0: none */
    uint64_t sources;   /* ranks whose rows must come; all others' must not */
    uint64_t answers;   /* ranks whose answers must come */
    uint64_t rows;      /* rows checked so far */
    uint64_t totals;    /* sum of the tokens of all local experts so far */
    uint64_t wrong;     /* checks that have failed so far */
} traffic_state;

/* The checks that can fail. traffic_fault_name puts them into words. */
enum {
    TRAFFIC_COUNT = 1,
    TRAFFIC_SOURCE_COUNT,
    TRAFFIC_RANGE,
    TRAFFIC_SOURCE_TOKEN,
    TRAFFIC_ROW_EXPERT,
    TRAFFIC_ROW_WEIGHT,
    TRAFFIC_EXPERT_ROW,
    TRAFFIC_OFFSET,
    TRAFFIC_OVERFLOW,
    TRAFFIC_ROW_SOURCE,
    TRAFFIC_ROW_POSITION,
    TRAFFIC_PAYLOAD,
    TRAFFIC_SCALE,
    TRAFFIC_CONTRIBUTIONS,
    TRAFFIC_COMBINED,
    TRAFFIC_FAULTS
};

/* The first check that failed. In mapped host memory; written at most once, by one thread of a kernel. */
typedef struct traffic_faults {
    uint32_t what; /* TRAFFIC_*; written last, 0: none */
    uint32_t layout, source, token, row, channel;
    int32_t expert; /* local; -1: does not apply */
    uint64_t iteration, expected, found;
} traffic_faults;

/* Device memory of one lane of a rank. M = ranks * max_tokens, E = local experts. */
typedef struct traffic_memory {
    traffic_state *state;
    traffic_faults *faults; /* as the GPU addresses it */
    uint16_t *x;            /* [max_tokens, hidden] bf16 */
    int32_t *ids;           /* [max_tokens, topk] */
    float *weights;
    unsigned char *rows; /* expert-major [E, M, payload], rank-major [M, payload] */
    float *scales;
    uint32_t *counts, *source_counts, *ranges, *source_token;
    int32_t *row_experts;
    float *row_weights;
    uint32_t *expert_rows;
    uint64_t *expert_totals;
    uint16_t *expert_out; /* [E, M, hidden] or [M, hidden] bf16 */
    uint16_t *out;        /* [max_tokens, hidden] bf16 */
    uint16_t *contributions;
    /* Of prefill, whose rows, scales, row_experts, row_weights and expert_out are those of its places. */
    uint32_t *offsets, *source_offsets;
    uint32_t *overflow;
    int32_t *row_expert, *row_source, *row_token, *row_position; /* [places] */
    float *row_weight;
    /* Not NULL: x has rows of e4m3 codes, and their scales are given here, at these strides in bytes. */
    float *given_scales;
    uint64_t given_row_stride, given_block_stride;
    /* [max_tokens, topk] the number of each entry's row among those of its expert or source at its rank, and
     * [experts] how many rows each expert has: what decides which rows have no place. */
    uint32_t *numbers, *expert_counts;
} traffic_memory;

/* Where the rows go that come to a rank. */
typedef struct traffic_end {
    uint32_t layout, alignment;
    uint32_t capacity; /* UINT32_MAX: it holds all */
} traffic_end;

#define TRAFFIC_HOLDS_ALL UINT32_MAX

/* Where received rows lie and where answers go. Strides are in bytes. */
typedef struct traffic_places {
    uint32_t layout;    /* EPW_EXPERT_MAJOR or EPW_RANK_MAJOR; of prefill also EPW_PACKED or EPW_DENSE */
    uint32_t payload;   /* EPW_PAYLOAD_*, opaque: codes with an f32 for each block */
    uint32_t tokens;    /* rows of `out` */
    uint32_t places;    /* of prefill: the capacity; rows beyond it must not be there */
    uint32_t alignment; /* packed */
    bool cuts;          /* of prefill: some rank has not room for all rows, see `ends` */
    traffic_end ends[8];
    const unsigned char *rows;
    const float *scales;
    unsigned char *expert_out; /* may be `rows`: then each row is read before it is overwritten */
    uint64_t row_stride, out_stride;
    uint64_t scale_row_stride, scale_block_stride, scale_list_stride;
} traffic_places;

#ifdef __cplusplus
extern "C" {
#endif

/* Each function enqueues kernels on a cudaStream_t, waits for nothing and returns a cudaError_t. */

/* Loads all kernels: loading one later might wait for kernels that wait for a peer. */
int traffic_prepare(void);

/* Advances to the next iteration, pauses, and makes its tokens. */
int traffic_make(const traffic_shape *shape, const traffic_memory *m, void *stream);

/* Checks everything that a dispatch has delivered, and computes the experts' answers. */
int traffic_answer(const traffic_shape *shape, const traffic_memory *m, const traffic_places *p,
                   void *stream);

/* The same for a dispatch of prefill. */
int traffic_answer_placed(const traffic_shape *shape, const traffic_memory *m, const traffic_places *p,
                          void *stream);

/* Before traffic_check, where p->cuts: numbers the rows that this rank has sent. */
int traffic_number(const traffic_shape *shape, const traffic_memory *m, const traffic_places *p,
                   void *stream);

/* Checks combined tokens. */
int traffic_check(const traffic_shape *shape, const traffic_memory *m, const traffic_places *p, void *stream);

/* Writes the GPU's globaltimer, in nanoseconds. */
int traffic_stamp(uint64_t *to, void *stream);

#ifdef __cplusplus
}
#endif

#endif
