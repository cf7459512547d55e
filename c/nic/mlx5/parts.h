/* The parts of an opened adapter, for the files of this folder. */
#ifndef EPW_NIC_MLX5_PARTS_H
#define EPW_NIC_MLX5_PARTS_H

#include "nic/mlx5.h"
#include "nic/mlx5/commands.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct epw_mlx5_memory epw_mlx5_memory; /* a region */

/* Words that a thread looks at. */
typedef struct epw_mlx5_watch {
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of the regions, and of what they are told */
    pthread_cond_t wake;
    bool ending;
    epw_mlx5_memory *regions;
} epw_mlx5_watch;

/* Queues that kernels post to, see attend.c. */
typedef struct epw_mlx5_attendant {
    pthread_t thread;
    bool started;
    atomic_uint waiting;  /* for the lock */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    bool ending;
    uint32_t unheard; /* of the pairs, those that it rings for */
    epw_mlx5_pair *pairs;
} epw_mlx5_attendant;

/* Rings in the memory of a GPU: how it was reached by the last pair that asked for it. */
typedef enum epw_mlx5_reach {
    EPW_MLX5_REACH_UNASKED,
    EPW_MLX5_REACH_DMABUF,
    EPW_MLX5_REACH_PEERMEM, /* by its address */
    EPW_MLX5_REACH_NONE
} epw_mlx5_reach;

/* A doorbell register that a pair has, or none. */
typedef struct epw_mlx5_spare {
    struct epw_mlx5_spare *next;
    epw_mlx5_uar uar;
} epw_mlx5_spare;

struct epw_mlx5 {
    const epw_mlx5_calls *calls;
    epw_mlx5_options options;
    epw_mlx5_name name;
    uint32_t listed;  /* its place in the list */
    const char *near; /* how far from the GPU; NULL: it was asked to be near to none */

    void *device, *pd;
    uint32_t pd_number, event_queue;
    uint32_t port_number, gid_index;
    epw_mlx5_port port;
    epw_mlx5_gid gid;
    epw_mlx5_caps caps;
    atomic_uint worst_uar; /* epw_mlx5_uar_kind, of its pairs so far */
    atomic_bool rings_for_kernels;
    atomic_uint ring_reach; /* epw_mlx5_reach */
    atomic_bool no_far_rows;

    pthread_mutex_t pairs_lock; /* taken with the NIC locked, where it is one in software */
    epw_mlx5_pair *pairs;
    epw_mlx5_spare *spares;
    epw_mlx5_watch watch;
    epw_mlx5_attendant attendant;
};

struct epw_mlx5_pair {
    epw_mlx5 *adapter;
    epw_mlx5_pair *next, *next_attended;
    bool attended;
    uint64_t rung_for; /* where the attendant rings: the last doorbell that it has seen */
    epw_mlx5_pair_options options;
    epw_pair_memory memory;
    unsigned char *pages; /* of this process, or the caller's: completion, record, ring */
    size_t bytes;
    epw_mlx5_umem ring, record, completion;
    epw_mlx5_spare *spare;
    void *cq, *qp;
    uint32_t cq_number, number;

    pthread_mutex_t lock; /* of what follows: one command at a time */
    uint32_t state;
    atomic_uint remote;   /* of the peer; 0: it is not connected */
    uint32_t early_ended; /* of the peer, over before this one is connected with it; with pairs_lock held */
    epw_mlx5_address to;
    atomic_bool broken, closed, ended; /* by the peer */
    bool shut;                         /* the adapter places nothing that comes by it */
    atomic_uint
        event; /* epw_mlx5_event_kind: that of the adapter which has broken it; EPW_MLX5_EVENT_PAIR: none */
};

/* ---- open.c ---- */

/* Why a device has not been opened, with what to do. */
const char *epw_mlx5_why_closed(const epw_mlx5_calls *calls, int err);

/* ---- ask.c ---- */

/* EPW_OK, or why the firmware or the kernel has refused: `err` of the call, and what it has answered. */
epw_status epw_mlx5_judge(const epw_mlx5 *adapter, uint32_t opcode, int err, const unsigned char *out,
                          epw_where where);

/* ---- watch.c ---- */

epw_status epw_mlx5_start_watch(epw_mlx5 *adapter, epw_where where);
void epw_mlx5_end_watch(epw_mlx5 *adapter);

/* ---- registers.c ---- */

epw_status epw_mlx5_take_register(epw_mlx5 *adapter, epw_where where, epw_mlx5_spare **out);
void epw_mlx5_give_register(epw_mlx5 *adapter, epw_mlx5_spare *spare); /* NULL is allowed */
void epw_mlx5_free_registers(epw_mlx5 *adapter);

/* ---- attend.c ---- */

void epw_mlx5_attendant_init(epw_mlx5_attendant *attendant);
void epw_mlx5_attendant_end(epw_mlx5_attendant *attendant);

/* From here on until it is left alone. */
epw_status epw_mlx5_attend(epw_mlx5_pair *pair, epw_where where);
void epw_mlx5_leave_alone(epw_mlx5_pair *pair);

/* ---- pair.c ---- */

/* An event of the device. */
void epw_mlx5_heed(void *adapter, const epw_mlx5_event *event);

#endif
