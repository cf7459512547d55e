/* Ranks of prefill as buffers of one thread, each with one expert; tokens may name all of them. */
#ifndef EPW_TESTS_PREFILL_RANKS_H
#define EPW_TESTS_PREFILL_RANKS_H

#include "require.h"

/* Of rank number `rank`, on GPU rank % gpus, with so few SMs that the kernels of all ranks fit on one GPU. */
static inline epw_prefill_config prefill_rank_config(uint32_t rank, uint32_t ranks, uint32_t gpus) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_config *c = &config.ep;
    int sms = 0;
    c->rank = rank;
    c->ranks = c->experts = c->topk = ranks;
    c->lanes = 1;
    c->device = (int32_t)(rank % gpus);
    REQUIRE_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, c->device));
    c->sms = (uint32_t)sms / ranks < 2 ? (uint32_t)sms / ranks : 2;
    return config;
}

/* One direction of what connects two ranks. */
static inline void prefill_rank_join(epw_prefill *from, uint32_t rank, epw_prefill *to, uint32_t its) {
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = 0;
    REQUIRE_OK(epw_prefill_export(from, its, blob, &length));
    REQUIRE_OK(epw_prefill_connect_within(to, rank, blob, length, 10000 * MS));
}

#endif
