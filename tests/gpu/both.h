/* A rank with a communicator of each kind, which executes the same operations on the host and on its GPU, on
 * copies of the same bytes. EPW_TEST_PATH and EPW_TEST_WIRE (ranks.h) say how the communicators on GPUs reach
 * their peers. */
#ifndef EPW_TESTS_BOTH_H
#define EPW_TESTS_BOTH_H

#include "ranks.h"

#include "require.h"

enum { GUARD = 64 }; /* bytes before and behind each buffer, which nobody writes */

/* How ranks are made. main sets it. */
typedef struct both_options {
    uint32_t heap, registers; /* the pools on GPUs are memory of epw_comm_alloc, or registered */
    uint32_t rings;           /* no operation goes by lines */
    uint32_t copy_engines;    /* config.copy_engines_from */
    uint32_t processes, deadline_ms;
    uint64_t pool_bytes, gpu_pool_bytes;
} both_options;
extern both_options both;

/* Whether peers may read the pools. */
static inline int lends(void) {
    return both.heap || both.registers;
}

/* A pool's registration, and those of the peers' pools. */
typedef struct registered {
    epw_registration own, theirs[RANKS_LIMIT];
} registered;

typedef struct side {
    epw_comm *comm;
    unsigned char *send, *recv; /* both.pool_bytes each, on the GPU both.gpu_pool_bytes */
} side;

typedef struct rank_state {
    const rank_links *links;
    side host, gpu;
    epw_fabric *fabric;  /* of the communicator on the GPU; NULL: it has none */
    unsigned char *copy; /* copy of the GPU's result */
    cudaStream_t stream;
    uint32_t epoch;
    registered pools[2]; /* of gpu.send and gpu.recv, if they are registered */
} rank_state;

/* Connects both communicators and begins the first membership, of all ranks. All ranks close together. */
void open_rank(rank_state *r, const rank_links *links);
void close_rank(rank_state *r);

/* Begins the next membership on both sides. */
void activate(rank_state *r, uint64_t members);
uint64_t all_of(const rank_links *links);

/* Of both communicators. */
uint64_t deadline(void);

epw_call on_stream(const rank_state *r);
void await_all(const rank_state *r, const char *what);
epw_status call_and_wait(const rank_state *r, const epw_coll *c, epw_outcome *outcome);

/* A graph of one call of these operations. */
cudaGraphExec_t capture(const rank_state *r, const epw_coll *ops, size_t count);

/* Fills with any bytes, which as floats include NaNs and infinities, or with floats whose sums and products
 * stay finite. */
void fill(unsigned char *to, uint64_t bytes, uint32_t type, int any, uint64_t state);

/* Copies bytes of a pool from the host to the GPU. */
void copy_to_gpu(const rank_state *r, unsigned char *gpu, const unsigned char *host, uint64_t bytes);

/* Requires that this many bytes, and GUARD before and behind them, are on the GPU what they are on the host.
 * `words`: what was called. */
void require_same(const rank_state *r, const unsigned char *host, const unsigned char *gpu, uint64_t bytes,
                  const char *buffer, const char *words);

/* Bytes of an element, by type. */
static const uint32_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8};

static inline uint64_t next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline uint64_t below(uint64_t *state, uint64_t bound) {
    return next(state) % bound;
}

#endif
