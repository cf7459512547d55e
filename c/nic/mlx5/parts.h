/* The state of an opened adapter, for the files of this folder. */
#ifndef EPW_NIC_MLX5_PARTS_H
#define EPW_NIC_MLX5_PARTS_H

#include "nic/mlx5.h"
#include "nic/mlx5/commands.h"
#include "nic/other_end.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

typedef struct epw_mlx5_memory epw_mlx5_memory; /* a region */

/* The regions with signal words that a thread polls. */
typedef struct epw_mlx5_watch {
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards the regions and their callbacks */
    pthread_cond_t wake;
    bool ending;
    epw_mlx5_memory *regions;
} epw_mlx5_watch;

/* The thread that attends queue pairs, see attend.c. */
typedef struct epw_mlx5_attendant {
    pthread_t thread;
    bool started;
    sem_t bell;           /* wakes it while it polls nothing; rung by whoever holds any lock */
    atomic_uint waiting;  /* threads that wait for the lock */
    pthread_mutex_t lock; /* guards what follows */
    bool ending;
    uint32_t polled, unheard; /* number of pairs to which kernels post, and for which it rings */
    epw_mlx5_pair *pairs;
} epw_mlx5_attendant;

/* How the adapter reaches GPU memory, when that was last asked. */
typedef enum epw_mlx5_reach {
    EPW_MLX5_REACH_UNASKED,
    EPW_MLX5_REACH_DMABUF,
    EPW_MLX5_REACH_PEERMEM, /* by address */
    EPW_MLX5_REACH_NONE,
    EPW_MLX5_REACH_UNORDERED /* only of memory that peers write */
} epw_mlx5_reach;

/* A doorbell register, in use by a queue pair or spare. */
typedef struct epw_mlx5_spare {
    struct epw_mlx5_spare *next;
    epw_mlx5_uar uar;
} epw_mlx5_spare;

struct epw_mlx5 {
    const epw_mlx5_calls *calls;
    epw_mlx5_options options;
    int rank; /* of its owner, for the log; -1: none */
    epw_mlx5_name name;
    const char *near; /* distance from the GPU; NULL: no GPU was named */

    void *device, *pd;
    uint32_t pd_number, event_queue;
    uint32_t port_number, gid_index;
    epw_mlx5_port port;
    epw_mlx5_gid gid;
    epw_mlx5_caps caps;
    atomic_uint worst_uar; /* epw_mlx5_uar_kind, the worst of its pairs so far */
    atomic_bool rings_for_kernels;
    atomic_uint ring_reach; /* epw_mlx5_reach: rings, */
    atomic_uint peer_reach; /* and memory that peers write */
    atomic_bool no_far_rows;
    atomic_bool told_way; /* that it reaches GPU memory by address has been logged */

    pthread_mutex_t pairs_lock; /* taken while the NIC is locked, if it is in software */
    epw_mlx5_pair *pairs;
    epw_mlx5_spare *spares;
    epw_mlx5_watch watch;
    epw_mlx5_attendant attendant;
};

struct epw_mlx5_pair {
    epw_mlx5 *adapter;
    epw_mlx5_pair *next, *next_attended;
    bool attended;
    uint64_t rung_for; /* the last doorbell that the attendant has copied */
    epw_mlx5_pair_options options;
    epw_pair_memory memory;
    unsigned char *pages; /* of this process, or the caller's: completion, record, ring */
    size_t bytes;
    epw_mlx5_umem ring, record, completion;
    epw_mlx5_spare *spare;
    void *cq, *qp;
    uint32_t cq_number, number;

    pthread_mutex_t lock; /* guards what follows: one command at a time */
    uint32_t state;
    bool stopped;        /* in the state ERR: the adapter has taken the command */
    atomic_uint remote;  /* the peer's queue pair; 0: not connected */
    epw_other_end other; /* guarded by pairs_lock */
    epw_mlx5_address to;
    atomic_bool broken, closed, ended; /* `ended`: by the peer */
    atomic_bool heard;                 /* by the peer */
    atomic_bool stops;                 /* it is broken, and the attendant has yet to stop it */
    bool shut;                         /* the adapter places nothing more that arrives */
    atomic_uint event; /* epw_mlx5_event_kind of the event that has broken it; EPW_MLX5_EVENT_PAIR: none */
};

/* ---- open.c ---- */

/* The reason why a device could not be opened, with a remedy. */
const char *epw_mlx5_why_closed(const epw_mlx5_calls *calls, int err);

/* It reaches GPU memory by its address, after this errno by a descriptor: logs that, once for each adapter.
 */
void epw_mlx5_tell_by_address(epw_mlx5 *adapter, int by_descriptor, epw_where where);

/* ---- ask.c ---- */

/* EPW_OK, or an error that says why the firmware or the kernel has refused the command: `err` is the call's,
 * `out` the answer. */
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

/* The attendant serves the pair until epw_mlx5_leave_alone. */
epw_status epw_mlx5_attend(epw_mlx5_pair *pair, epw_where where);
void epw_mlx5_leave_alone(epw_mlx5_pair *pair);

/* Some pair `stops`. Takes no lock. */
void epw_mlx5_call_attendant(epw_mlx5 *adapter);

/* ---- pair.c ---- */

/* Handles an event of the device. */
void epw_mlx5_heed(void *adapter, const epw_mlx5_event *event);

#endif
