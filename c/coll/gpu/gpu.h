/* Communicators on GPUs: engine.c makes the state that a communicator has beside its window when kernels move
 * the bytes, and changes peers and membership; call.c enqueues operations, and reports their outcome;
 * blocks.c lays out uneven blocks; copies.c has what copy engines move; traffic.c counts what calls move;
 * registered.c has the memory of epw_comm_register, this rank's and the peers'. */
#ifndef EPW_COLL_GPU_GPU_H
#define EPW_COLL_GPU_GPU_H

#include "coll/parts.h"

/* Plans a window in GPU memory; EPW_ERR_NO_PATH in a build without CUDA. All fields of the configuration that
 * do not concern the GPU have been checked. `queues`: peers may be reached by queues. */
epw_status epw_coll_gpu_plan(const epw_comm_config *config, bool queues, epw_where where,
                             epw_coll_layout *out);

#ifdef EPW_CUDA

#include "device/stream_order.h"
#include "kernels/coll/queues.h"
#include "peer/gpu_engine.h"

#include <cuda_runtime_api.h>

/* With queues, of a configuration that has been checked: the window's areas, and what a source writes.
 * `user`: these areas. */
epw_coll_areas epw_coll_gpu_areas(const epw_comm_config *config);
epw_stretch epw_coll_gpu_footprint(void *user, uint32_t source, uint32_t lane, uint32_t area);

/* Pinned host memory, written by kernels. */
typedef struct epw_coll_pinned {
    epw_coll_differing differing;
    uint32_t faulted;
    uint64_t copied; /* see epw_coll_copies_args */
    epw_coll_report reports[EPW_COLL_REPORTS];
    /* The source of copies to the device's. */
    epw_coll_registered registered[EPW_COLL_BULK_RANKS][EPW_COLL_REGISTRATIONS];
} epw_coll_pinned;

/* Memory that this rank has registered. */
typedef struct epw_coll_own {
    epw_registration id; /* 0: free */
    epw_coll_registered at;
    epw_window *window;                      /* of its allocation, which peers import */
    uint64_t offset;                         /* where it begins there */
    uint64_t mapped_by[EPW_COLL_BULK_RANKS]; /* the incarnations of peers that have mapped it; 0: none has */
} epw_coll_own;

/* Memory that a peer has registered, and this rank has mapped. */
typedef struct epw_coll_imported {
    epw_registration id; /* 0: free */
    epw_import *import;
    uint64_t incarnation; /* of the peer */
} epw_coll_imported;

/* Where copies run besides the caller's stream, and events of its waiting for them. */
enum { EPW_COLL_COPY_STREAMS = 3 };
typedef struct epw_coll_copying {
    cudaStream_t streams[EPW_COLL_COPY_STREAMS];
    cudaEvent_t begun, ended[EPW_COLL_COPY_STREAMS];
} epw_coll_copying;

/* What an exchange of host memory goes through, see exchange.c. */
typedef struct epw_coll_staging {
    bool taken; /* by an exchange */
    uint64_t bytes;
    void *memory; /* of the GPU, */
    void *stream; /* and where the exchange runs */
    struct epw_coll_staging *next;
} epw_coll_staging;

/* A call whose end the caller waits for: tickets first to last. */
typedef struct epw_coll_work {
    epw_work id;
    uint64_t first, last;
    cudaEvent_t event; /* recorded after its kernels */
    struct epw_coll_work *next;
} epw_coll_work;

struct epw_coll_gpu {
    struct epw_sm_share *share;
    epw_coll_window window;
    bool queues; /* peers may be reached by queues: the window and the kernels are those of
                    kernels/coll/queues.h */
    epw_coll_areas areas;
    bool lines;           /* operations may go by lines */
    uint64_t copies_from; /* bytes of recv from which on operations may go by copies; 0: none */
    void *memory;         /* device memory that holds the next five */
    epw_gpu_shared *shared;
    epw_gpu_peers *peers;
    epw_coll_state *state;
    epw_coll_progress *progress;
    uint64_t *sent; /* of epw_coll_reach; nothing without queues */
    epw_coll_pinned *pinned;
    epw_coll_differing *differing; /* the GPU's address of the pinned one; so are the next three */
    uint32_t *faulted;
    epw_coll_report *reports;
    uint64_t *copied;
    epw_coll_copying copying; /* if copies_from */

    epw_registration registrations; /* made so far */
    epw_coll_own own[EPW_COLL_REGISTRATIONS];
    epw_coll_imported imported[EPW_COLL_BULK_RANKS][EPW_COLL_REGISTRATIONS];

    uint64_t tickets;             /* given to eager operations so far */
    epw_coll_work *works, *spare; /* those that are awaited, and those whose events can be reused */
    epw_coll_staging *staging;    /* all that was made */
};

extern const epw_peers_user epw_coll_gpu_user; /* the user is an epw_comm */

/* Call after epw_peers_create. Call epw_coll_gpu_close even after an error. */
epw_status epw_coll_gpu_open(epw_comm *comm, epw_where where);

/* Waits for what has been enqueued, and says farewell. False: the GPU may still write into windows. */
bool epw_coll_gpu_leave(epw_comm *comm);
void epw_coll_gpu_close(epw_comm *comm);

/* Leaves CUDA's objects alone, because CUDA does not work in a forked process. */
void epw_coll_gpu_abandon(epw_comm *comm);

/* Whether an operation was incomplete since the last call. */
bool epw_coll_gpu_take_fault(epw_comm *comm);

/* Fills in where the blocks of a call lie, for the kernel. */
void epw_coll_gpu_lay_out(const epw_comm *comm, const epw_coll *call, epw_coll_blocks_args *args);

/* Counts what a call that is enqueued moves. `shares`: it is shared out, see kernels/coll/flows.cuh.
 * With the lock held. */
void epw_coll_gpu_count(epw_comm *comm, const epw_coll *call, bool shares);

/* Whether a buffer lies in registered memory that is lent now or, with `later`, may be lent later; and at
 * which offset of those that ranks tell each other. With the lock held. */
bool epw_coll_gpu_find_registered(const epw_comm *comm, const void *buffer, uint64_t bytes, bool later,
                                  uint64_t *at);

/* Whether an operation of this kind goes by copies where all ranks can lend their sends. `bytes`: of a block.
 * The same on all ranks. */
bool epw_coll_gpu_wants_copies(const struct epw_coll_gpu *g, uint32_t kind, uint64_t bytes);

/* Prepares copies, in a scope of the GPU; a cudaError_t. Close it even after an error. */
int epw_coll_gpu_open_copies(epw_coll_copying *copying);
void epw_coll_gpu_close_copies(epw_coll_copying *copying);

/* Whether copies move the bytes of this operation, which is dense and otherwise complete; and from where.
 * With the lock held. */
bool epw_coll_gpu_find_copies(const epw_comm *comm, const epw_coll_args *args, epw_coll_copies_args *out);

/* Enqueues such an operation; a cudaError_t. `blocks`: that it would have without copies. With the lock held,
 * in a scope of the GPU. */
int epw_coll_gpu_run_copies(epw_comm *comm, epw_coll_copies_args *args, uint32_t blocks,
                            const epw_stream_call *on);

/* Enqueues, on the floor's stream, which registered memory is lent to these members: what all of them have
 * mapped. With the lock held, in a scope of the GPU, and no kernel running. A cudaError_t. */
int epw_coll_gpu_lend(epw_comm *comm, const epw_mask *members);

/* The calls of these names in epwire.h, without the lock, for `where.peer` if for a peer. Arguments are not
 * NULL, and ranks exist. */
epw_status epw_coll_gpu_register(epw_comm *comm, void *memory, uint64_t bytes, epw_where where,
                                 epw_registration *id);
epw_status epw_coll_gpu_export_registration(epw_comm *comm, epw_registration id, void *blob, size_t *length,
                                            epw_where where);
epw_status epw_coll_gpu_import_registration(epw_comm *comm, const unsigned char *blob, size_t length,
                                            epw_where where, epw_registration *id);
epw_status epw_coll_gpu_lend_registration(epw_comm *comm, epw_registration id, const epw_mask *ranks,
                                          epw_where where);
epw_status epw_coll_gpu_unmap_registration(epw_comm *comm, epw_registration id, epw_where where);
epw_status epw_coll_gpu_deregister(epw_comm *comm, epw_registration id, epw_where where);

/* Unmaps what former incarnations of the peer have registered. Without the lock. */
void epw_coll_gpu_forget_registered(epw_comm *comm, uint32_t peer);

/* Lets go of all registered memory. Nothing uses it any more. */
void epw_coll_gpu_close_registered(epw_comm *comm);

/* Frees what exchanges went through: its GPU memory too, or in a forked process only the descriptions. */
void epw_coll_gpu_close_staging(epw_comm *comm);
void epw_coll_gpu_abandon_staging(epw_comm *comm);

/* EPW_ERR_MISMATCH, naming the calls, if kernels have found that ranks called different operations. */
epw_status epw_coll_gpu_check_calls(epw_comm *comm, epw_where where);

#endif

/* See epwire.h; all arguments that do not concern the GPU have been checked. */
epw_status epw_coll_gpu_group(epw_comm *comm, const epw_coll *ops, size_t count, const epw_call *call,
                              epw_outcome *outcome);
epw_status epw_coll_gpu_work_wait(epw_comm *comm, epw_work work, uint64_t timeout_ns, epw_outcome *outcome);
epw_status epw_coll_gpu_work_await(epw_comm *comm, epw_work work, uint64_t timeout_ns);
void epw_coll_gpu_look(epw_awaited *self, uint64_t now); /* of a work, see peer/await.h */
epw_status epw_coll_gpu_work_drop(epw_comm *comm, epw_work work);

#endif
