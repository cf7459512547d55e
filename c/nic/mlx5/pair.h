/* A queue pair of an mlx5 adapter, made by commands: its memory, its register, its way up and down.
 *
 *     create    ring, doorbell record and completion queue in this process's memory, each a umem of its own;
 *               a register, of its own if there is such a kind; CREATE_CQ, CREATE_QP
 *     connect   RST2INIT, INIT2RTR, RTR2RTS
 *     close     RTS2RTS without rights, and so nothing of the peer is placed any more
 *     destroy   all of it the other way round, from wherever it has come to
 *
 * Unproven until there is an adapter: that RTS2RTS stops what the peer has under way; that a completion queue
 * of one entry takes any number of completions on all firmware (UCX relies on it); that the first error stays
 * in it until it is read; that a register of kind BF takes doorbells at one place alone; times of retries. */
#ifndef EPW_NIC_MLX5_PAIR_H
#define EPW_NIC_MLX5_PAIR_H

#include "nic/mlx5/device.h"
#include "nic/soft.h"

typedef struct epw_mlx5_pair epw_mlx5_pair;

typedef struct epw_mlx5_pair_options {
    uint32_t depth; /* entries of 64 bytes: a power of two */
    /* Called once, when it breaks; NULL: nobody. */
    void (*broken)(void *context);
    void *context;
} epw_mlx5_pair_options;

epw_status epw_mlx5_pair_create(epw_mlx5 *adapter, const epw_mlx5_pair_options *options, epw_where where,
                                epw_mlx5_pair **out);

/* Once this returns nothing that came by it is placed, and nothing is read of what it was to send. NULL is
 * allowed. */
void epw_mlx5_pair_destroy(epw_mlx5_pair *pair);

uint32_t epw_mlx5_pair_number(const epw_mlx5_pair *pair);
const epw_pair_memory *epw_mlx5_pair_memory(const epw_mlx5_pair *pair);

/* To pair `remote` of the adapter at this address, whose silence ends it within 2 to 4 deadlines. Again only
 * before the first entry is posted. */
epw_status epw_mlx5_pair_connect(epw_mlx5_pair *pair, uint32_t remote, const epw_mlx5_address *address,
                                 uint64_t deadline_ns, epw_where where);

/* The doorbell has been rung: to be said where the adapter is one in software. */
void epw_mlx5_pair_ring(epw_mlx5_pair *pair);

/* Gives it up: what was posted is flushed. */
void epw_mlx5_pair_break(epw_mlx5_pair *pair);

/* Nothing that comes by it is placed any more. It sends on. */
void epw_mlx5_pair_close(epw_mlx5_pair *pair);
bool epw_mlx5_pair_is_closed(const epw_mlx5_pair *pair);

/* Nothing more is sent by it or completes. */
bool epw_mlx5_pair_broken(const epw_mlx5_pair *pair);

#endif
