/* A group whose ranks are buffers of one thread, with experts that answer with what they were sent. Calls
 * only enqueue, so one thread serves all ranks. The weights of a token add up to one and all numbers are
 * exact, so each token comes back as it was sent, or as the part due to the ranks that took part. Rank r is
 * on GPU r % gpus; the kernels of all ranks of a GPU must be co-resident, see echo_open. */
#ifndef EPW_TESTS_ECHO_H
#define EPW_TESTS_ECHO_H

#include "require.h"

typedef struct echo_rank {
    epw_config config;
    epw_buffer *buffer;
    cudaStream_t stream;
    uint16_t *tokens; /* what is sent, in host memory: [max_tokens, hidden] bf16 */
    int32_t *ids;     /* and its destinations: [max_tokens, topk] */
    unsigned char *x, *topk_idx, *rows, *out;
    float *weights;
    uint32_t *counts;
    uint64_t *expert_totals, *wait_ns; /* NULL: not requested */
    uint16_t *contributions;           /* NULL: not requested; else echo_wrong checks them too */
    uint32_t lane;
    uint64_t deadline_ns; /* of the calls; 0: the buffer's */
    epw_handle handle;
} echo_rank;

enum { ECHO_RANKS = 64 };

typedef struct echo {
    uint32_t ranks, gpus;
    echo_rank rank[ECHO_RANKS];
} echo;

/* Creates buffers and memory according to `config`, with the rank and device of each, connects all to all and
 * begins epoch 1. config->topk must be a power of two. config->sms 0: the SMs of a GPU are divided among its
 * ranks. */
void echo_open(echo *e, const epw_config *config, uint32_t gpus);
void echo_close(echo *e);

/* The same, with a fabric and with these paths for each rank. */
void echo_open_by(echo *e, const epw_config *config, uint32_t gpus, const uint32_t *paths);

/* Destroys the rank's buffer and gives its place to a new one with these paths; the others connect to it, and
 * the epoch begins with all ranks. Nothing may be running. */
void echo_replace(echo *e, uint32_t rank, uint32_t paths, uint32_t epoch);

/* Makes new tokens and routing for every rank, and clears the receive buffers. Nothing may be running. */
void echo_fill(echo *e, uint64_t seed);

/* Enqueues one half of a step of one rank, or both halves at once. */
enum { ECHO_SEND = 1, ECHO_RECEIVE = 2, ECHO_BOTH = 3 };
void echo_dispatch(echo_rank *r, uint32_t halves);
void echo_combine(echo_rank *r, uint32_t halves);

/* A step of every rank, one half after the other; everything enqueued has run when it returns. */
void echo_step(echo *e);

/* Waits for the stream of every rank. */
void echo_settle(const echo *e, const char *what);

/* Ends the program unless exactly these ranks were missing from the rank's operation. */
void echo_missing(const echo_rank *r, uint64_t missing, const char *what);

/* The number of tokens that are wrong if the answers of the ranks `answers` count, or whose contributions are
 * reported wrongly. */
uint32_t echo_wrong(const echo *e, const echo_rank *r, uint64_t answers);

/* The number of local experts whose row count differs from what these ranks have sent. */
uint32_t echo_miscounted(const echo *e, const echo_rank *r, uint64_t sources);

/* Allocates device memory with all bytes set to `value`; ends the program if there is none. */
void *echo_take(size_t bytes, int value);

#endif
