/* Ranks of a communicator as threads of this process, connected and run side by side.
 *
 * EPW_TEST_PATH=queue, EPW_TEST_WIRE and EPW_TEST_NIC have the same meaning as in group.h. */
#ifndef EPW_TESTS_COMMS_H
#define EPW_TESTS_COMMS_H

#include "group.h"

#include "coll/parts.h"

#include <pthread.h>

enum { COMM_RANKS_MAX = 9 };

typedef struct comms {
    uint32_t ranks;
    epw_comm *of[COMM_RANKS_MAX];
    epw_fabric *fabrics[COMM_RANKS_MAX];
} comms;

static inline epw_status connect_comm(epw_comm *from, uint32_t rank, epw_comm *to, uint32_t peer) {
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = 0;
    CHECK_OK(epw_comm_export(to, rank, blob, &length));
    return epw_comm_connect(from, peer, blob, length);
}

static inline epw_mask all_of(uint32_t ranks) {
    epw_mask mask = {{(UINT64_C(1) << ranks) - 1}};
    return mask;
}

/* From now on pieces of this size and larger are read from memory of their callers, whatever is faster here;
 * UINT64_MAX: none are. */
static inline void pull_from(const comms *c, uint64_t bytes) {
    for (uint32_t r = 0; r < c->ranks; r++) c->of[r]->pull_from = bytes;
}

/* `like` has all fields but ranks, rank and paths. */
static inline comms open_comms(uint32_t ranks, epw_comm_config like) {
    comms c = {.ranks = ranks};
    for (uint32_t r = 0; r < ranks; r++) {
        epw_config path = EPW_CONFIG_INIT;
        path.rank = r;
        take_path(&path, &c.fabrics[r]);
        like.rank = r;
        like.ranks = ranks;
        like.paths = path.paths;
        like.fabric = path.fabric;
        CHECK_OK(epw_comm_create(&like, &c.of[r]));
    }
    pull_from(&c, 16 << 10);
    for (uint32_t r = 0; r < ranks; r++)
        for (uint32_t p = 0; p < ranks; p++)
            if (p != r) CHECK_OK(connect_comm(c.of[r], r, c.of[p], p));
    return c;
}

static inline void activate_comms(const comms *c, uint32_t epoch) {
    epw_mask all = all_of(c->ranks);
    for (uint32_t r = 0; r < c->ranks; r++) CHECK_OK(epw_comm_set_active(c->of[r], &all, epoch, 0));
}

/* As if so many messages had gone from each rank to each other in the epoch, which all have begun. */
static inline void pass_messages(const comms *c, uint64_t messages) {
    for (uint32_t r = 0; r < c->ranks; r++)
        for (uint32_t i = 0; i < c->ranks * EPW_CHANNELS; i++) {
            epw_ring *ring = &c->of[r]->of[i / EPW_CHANNELS].rings[i % EPW_CHANNELS];
            ring->posted = ring->announced = ring->taken = ring->borrowed = messages;
            ring->seen = ring->consumed = ring->told = messages;
        }
}

static inline void close_comms(const comms *c) {
    for (uint32_t r = 0; r < c->ranks; r++) epw_comm_destroy(c->of[r]);
    for (uint32_t r = 0; r < c->ranks; r++) epw_fabric_destroy(c->fabrics[r]);
}

/* Runs `body(rank, context)` on one thread for each rank. */
typedef struct comm_thread {
    void (*body)(uint32_t rank, void *context);
    void *context;
    uint32_t rank;
} comm_thread;

static inline void *comm_thread_main(void *argument) {
    const comm_thread *t = argument;
    t->body(t->rank, t->context);
    return NULL;
}

static inline void on_all(uint32_t ranks, void (*body)(uint32_t rank, void *context), void *context) {
    pthread_t threads[COMM_RANKS_MAX];
    comm_thread of[COMM_RANKS_MAX];
    for (uint32_t r = 0; r < ranks; r++) {
        of[r] = (comm_thread){body, context, r};
        if (pthread_create(&threads[r], NULL, comm_thread_main, &of[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
}

#endif
