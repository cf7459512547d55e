/* Communicators on GPUs: engine.c makes what a communicator has beside its window when kernels move the
 * bytes, and changes peers and membership; call.c enqueues operations, and says what has become of them;
 * blocks.c lays out uneven blocks. */
#ifndef EPW_COLL_GPU_GPU_H
#define EPW_COLL_GPU_GPU_H

#include "coll/parts.h"

/* Plans a window in GPU memory; EPW_ERR_NO_PATH in a build without CUDA. The configuration has been checked
 * but for what is the GPU's. */
epw_status epw_coll_gpu_plan(const epw_comm_config *config, epw_coll_layout *out);

#ifdef EPW_CUDA

#include "kernels/coll/state.h"
#include "peer/gpu.h"

#include <cuda_runtime_api.h>

/* Pinned host memory that kernels write, or copies of what they have written. */
typedef struct epw_coll_pinned {
    epw_coll_differing differing;
    uint32_t faulted;
    epw_coll_report report;        /* a copy of the device's */
    epw_rank_set suspects, silent; /* what epw_gpu_shared.suspects_host points to, its silent_host, */
    epw_rank_set revoked;          /* and its revoked */
} epw_coll_pinned;

/* A call that somebody wants to know the end of: of tickets first to last. */
typedef struct epw_coll_work {
    epw_work id;
    uint64_t first, last;
    cudaEvent_t event; /* behind it */
    struct epw_coll_work *next;
} epw_coll_work;

struct epw_coll_gpu {
    struct epw_sm_share *share;
    epw_coll_window window;
    void *memory; /* device memory that holds the next four */
    epw_gpu_shared *shared;
    epw_gpu_peers *peers;
    epw_coll_state *state;
    epw_coll_progress *progress;
    epw_coll_pinned *pinned;
    epw_coll_differing *differing; /* the pinned ones as the GPU addresses them */
    uint32_t *faulted;

    cudaEvent_t event;            /* behind the work of the last eager call */
    unsigned long long stream_id; /* of that call's stream: unlike its handle, never used again */
    bool enqueued;                /* there was such a call: the two above are valid */
    bool unmarked;                /* but for the event: CUDA could not record it behind that call's kernel */
    uint64_t tickets;             /* given to eager operations so far */
    epw_coll_work *works, *spare; /* those that are awaited, and those whose events can be used again */
};

extern const epw_peers_user epw_coll_gpu_user; /* of an epw_comm */

/* After epw_peers_create. epw_coll_gpu_close also after an error. */
epw_status epw_coll_gpu_open(epw_comm *comm, epw_where where);

/* Waits for what has been enqueued, and says farewell. False: the GPU may still write into windows. */
bool epw_coll_gpu_leave(epw_comm *comm);
void epw_coll_gpu_close(epw_comm *comm);

/* What is CUDA's is left to CUDA, which does not work in a process that has forked. */
void epw_coll_gpu_abandon(epw_comm *comm);

/* Whether an operation was incomplete since the last such call. */
bool epw_coll_gpu_take_fault(epw_comm *comm);

/* Where the blocks of a call lie, for the kernel. */
void epw_coll_gpu_lay_out(const epw_comm *comm, const epw_coll *call, epw_coll_blocks_args *args);

/* EPW_ERR_MISMATCH, naming the calls, once kernels have found that ranks call different operations. */
epw_status epw_coll_gpu_check_calls(epw_comm *comm, epw_where where);

#endif

/* See epwire.h; the arguments have been checked but for what is the GPU's. */
epw_status epw_coll_gpu_group(epw_comm *comm, const epw_coll *ops, size_t count, const epw_call *call,
                              epw_outcome *outcome);
epw_status epw_coll_gpu_work_wait(epw_comm *comm, epw_work work, uint64_t timeout_ns, epw_outcome *outcome);
epw_status epw_coll_gpu_work_await(epw_comm *comm, epw_work work, uint64_t timeout_ns);
epw_status epw_coll_gpu_work_drop(epw_comm *comm, epw_work work);

#endif
