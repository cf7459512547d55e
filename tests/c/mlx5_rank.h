/* A rank on a fake adapter, for tests: the adapter, a window and staging memory, and a queue pair. */
#ifndef EPW_TEST_MLX5_RANK_H
#define EPW_TEST_MLX5_RANK_H

#include "check.h"
#include "nic/fake.h"
#include "nic/mlx5/parts.h"

#include <stdlib.h>
#include <string.h>

enum { RANK = 3, DEPTH = 256, BYTES = 8192 };

static const epw_where where = {"test", RANK, -1};

/* Everything that a rank makes of an adapter. */
typedef struct bench {
    epw_nic *nic;
    epw_fake *fake;
    epw_mlx5 *adapter;
    epw_keys window, image;
    epw_mlx5_pair *pair;
    atomic_uint arrived;
    atomic_bool broken;
    _Alignas(4096) unsigned char memory[BYTES];
} bench;

static inline bench *new_bench(void) {
    bench *b = aligned_alloc(4096, sizeof *b); /* its size is a multiple of its alignment */
    memset(b, 0, sizeof *b);
    return b;
}

static inline void arrived(void *context, uint64_t offset, uint64_t value) {
    bench *b = context;
    (void)offset, (void)value;
    atomic_fetch_add(&b->arrived, 1);
}

static inline void broken(void *context) {
    bench *b = context;
    atomic_store(&b->broken, true);
}

static inline epw_status make_memory(bench *b) {
    epw_region window = {.base = b->memory,
                         .rights = EPW_REGION_WRITE,
                         .count = 2,
                         .stretches = {{64, 64}, {1024, 1000}},
                         .arrived = arrived,
                         .context = b};
    epw_region image = {
        .base = b->memory, .rights = EPW_REGION_READ, .count = 1, .stretches = {{0, sizeof b->memory}}};
    epw_status status = epw_mlx5_register(b->adapter, &window, where, &b->window);
    return status == EPW_OK ? epw_mlx5_register(b->adapter, &image, where, &b->image) : status;
}

static inline epw_status make_pair(bench *b) {
    epw_mlx5_pair_options options = {.depth = DEPTH, .broken = broken, .context = b};
    epw_mlx5_address self = epw_mlx5_address_of(b->adapter);
    epw_status status = epw_mlx5_pair_create(b->adapter, &options, where, &b->pair);
    if (status != EPW_OK) return status;
    return epw_mlx5_pair_connect(b->pair, 0x54321, &self, UINT64_C(10000000000), where);
}

static inline epw_status set_up(bench *b, const epw_fake_options *asked, const epw_mlx5_options *how) {
    epw_fake_options options = *asked;
    options.rank = RANK;
    CHECK_OK(epw_nic_open(where, &b->nic));
    options.nic = b->nic;
    CHECK_OK(epw_fake_open(&options, where, &b->fake));
    epw_status status = epw_mlx5_open(epw_fake_calls(b->fake), how, where, &b->adapter);
    if (status == EPW_OK) status = make_memory(b);
    return status == EPW_OK ? make_pair(b) : status;
}

static inline void take_down(bench *b) {
    epw_mlx5_pair_destroy(b->pair);
    if (b->window.own != 0) epw_mlx5_deregister(b->adapter, b->window.own);
    if (b->image.own != 0) epw_mlx5_deregister(b->adapter, b->image.own);
    epw_mlx5_close(b->adapter);
    epw_fake_left left = epw_fake_count(b->fake);
    CHECK_MSG(left.devices + left.domains + left.uars + left.umems + left.objects + left.regions == 0,
              "%u devices, %u domains, %u registers, %u umems, %u objects, %u regions", left.devices,
              left.domains, left.uars, left.umems, left.objects, left.regions);
    epw_fake_close(b->fake);
    epw_nic_close(b->nic);
    b->adapter = NULL;
}

#endif
