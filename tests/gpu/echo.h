/* A group whose ranks are buffers of one thread, and experts that answer with what they were sent: calls only
 * enqueue, so one thread serves all ranks. Weights of a token add up to one, and all numbers are exact, so
 * each token comes back as it went, or as the part of it that is due to the ranks that took part. Rank r is
 * on GPU r % gpus; kernels of all ranks of a GPU must find room there, see echo_open. */
#ifndef EPW_TESTS_ECHO_H
#define EPW_TESTS_ECHO_H

#include "require.h"

typedef struct echo_rank {
    epw_config config;
    epw_buffer *buffer;
    cudaStream_t stream;
    uint16_t *tokens; /* what is sent, in host memory: [max_tokens, hidden] bf16 */
    int32_t *ids;     /* and where to: [max_tokens, topk] */
    unsigned char *x, *topk_idx, *rows, *out;
    float *weights;
    uint32_t *counts;
    uint64_t *expert_totals, *wait_ns; /* NULL: not asked for */
    uint16_t *contributions;           /* NULL: not asked for; else echo_wrong looks at them too */
    uint32_t lane;
    uint64_t deadline_ns; /* of the calls; 0: the buffer's */
    epw_handle handle;
} echo_rank;

enum { ECHO_RANKS = 64 };

typedef struct echo {
    uint32_t ranks, gpus;
    echo_rank rank[ECHO_RANKS];
} echo;

/* Makes buffers and memory as `config` says, whose rank and device are those of each, connects all to all and
 * begins epoch 1. config->topk is a power of two. config->sms 0: the SMs of a GPU are divided among its
 * ranks.
 */
void echo_open(echo *e, const epw_config *config, uint32_t gpus);
void echo_close(echo *e);

/* The same with a fabric, and these paths, for each rank. */
void echo_open_by(echo *e, const epw_config *config, uint32_t gpus, const uint32_t *paths);

/* Destroys the rank's buffer and gives its place to a new one of these paths; the others are connected with
 * it, and the epoch begins with all. Nothing runs. */
void echo_replace(echo *e, uint32_t rank, uint32_t paths, uint32_t epoch);

/* New tokens and routing of every rank, and nothing in what is received. Nothing runs. */
void echo_fill(echo *e, uint64_t seed);

/* The halves of a step of one rank, or both at once. */
enum { ECHO_SEND = 1, ECHO_RECEIVE = 2, ECHO_BOTH = 3 };
void echo_dispatch(echo_rank *r, uint32_t halves);
void echo_combine(echo_rank *r, uint32_t halves);

/* A step of every rank, half after half; what is enqueued has run when it returns. */
void echo_step(echo *e);

/* Waits for the stream of every rank. */
void echo_settle(const echo *e, const char *what);

/* Ends the program unless the rank's operation has missed exactly these. */
void echo_missing(const echo_rank *r, uint64_t missing, const char *what);

/* How many tokens have not come back as they should where answers of `answers` count, or say something else
 * of how many contributions have come. */
uint32_t echo_wrong(const echo *e, const echo_rank *r, uint64_t answers);

/* How many local experts have not received as many rows as these ranks have sent. */
uint32_t echo_miscounted(const echo *e, const echo_rank *r, uint64_t sources);

/* Device memory, all bytes of `value`; ends the program if there is none. */
void *echo_take(size_t bytes, int value);

#endif
