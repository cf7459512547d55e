/* Connected prefill buffers of several ranks of this process, and the arithmetic of their reference. */
#ifndef EPW_TESTS_PREFILLS_H
#define EPW_TESTS_PREFILLS_H

#include "group.h"

#include <pthread.h>

enum { PREFILL_RANKS_MAX = 36 };

typedef struct prefills {
    uint32_t ranks;
    epw_prefill *of[PREFILL_RANKS_MAX];
    epw_fabric *fabrics[PREFILL_RANKS_MAX];
} prefills;

static inline void connect_prefills(epw_prefill *from, uint32_t rank, epw_prefill *to, uint32_t peer) {
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = 0;
    CHECK_OK(epw_prefill_export(to, rank, blob, &length));
    CHECK_OK(epw_prefill_connect(from, peer, blob, length));
}

static inline void activate_prefills(const prefills *g, uint32_t epoch) {
    epw_mask all = first_ranks(g->ranks);
    for (uint32_t r = 0; r < g->ranks; r++) CHECK_OK(epw_prefill_set_active(g->of[r], &all, epoch, 0));
}

static inline prefills connect_all_prefills(prefills g) {
    for (uint32_t r = 0; r < g.ranks; r++)
        for (uint32_t p = 0; p < g.ranks; p++)
            if (p != r) connect_prefills(g.of[r], r, g.of[p], p);
    activate_prefills(&g, 1);
    return g;
}

/* `config` is that of each rank except for the rank itself, and the path, which is chosen as by
 * make_group. */
static inline prefills make_prefills(const epw_prefill_config *config) {
    prefills g = {.ranks = config->ep.ranks};
    for (uint32_t r = 0; r < g.ranks; r++) {
        epw_prefill_config own = *config;
        own.ep.rank = r;
        take_path(&own.ep, &g.fabrics[r]);
        CHECK_OK(epw_prefill_create(&own, &g.of[r]));
    }
    return connect_all_prefills(g);
}

/* The same with ranks that map each other's windows, whatever path the tests use. */
static inline prefills make_mapped_prefills(const epw_prefill_config *config) {
    prefills g = {.ranks = config->ep.ranks};
    for (uint32_t r = 0; r < g.ranks; r++) {
        epw_prefill_config own = *config;
        own.ep.rank = r;
        CHECK_OK(epw_prefill_create(&own, &g.of[r]));
    }
    return connect_all_prefills(g);
}

static inline void destroy_prefills(const prefills *g) {
    for (uint32_t r = 0; r < g->ranks; r++) epw_prefill_destroy(g->of[r]);
    for (uint32_t r = 0; r < g->ranks; r++) epw_fabric_destroy(g->fabrics[r]);
}

/* Runs `body` on a thread for each rank; `each` is an array of their arguments. */
static inline void on_all_ranks(uint32_t ranks, void *(*body)(void *), void *each, size_t stride) {
    pthread_t threads[PREFILL_RANKS_MAX];
    for (uint32_t r = 0; r < ranks; r++)
        CHECK(pthread_create(&threads[r], NULL, body, (char *)each + r * stride) == 0);
    for (uint32_t r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
}

/* Rounds to nearest even; x must not be NaN. */
static inline uint16_t round_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline uint64_t next_random(uint64_t *state) {
    uint64_t x = (*state += UINT64_C(0x9e3779b97f4a7c15));
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
static inline uint32_t below(uint64_t *state, uint32_t n) {
    return (uint32_t)(next_random(state) % n);
}

/* A value in (-4, 4) that these numbers determine. */
static inline float value_of(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t state = a * 0x10001 + b * 0x301 + c * 7 + 1;
    return ((float)(next_random(&state) % 8191) - 4095.0f) / 1024.0f;
}

#endif
