/* What is asked of libibverbs to carry entries by queue pairs of its own, beside what nic/mlx5/calls.h asks
 * of a device: of the library itself (library.c), or of what stands in for it in tests. Functions return 0 or
 * an errno; what they fill in is theirs only where they return 0. A queue is used by one thread at a time. */
#ifndef EPW_NIC_VERBS_CALLS_H
#define EPW_NIC_VERBS_CALLS_H

#include "nic/mlx5/commands.h"
#include "nic/soft/fetch.h"

/* An entry as the adapter is given it. */
typedef struct epw_verbs_work {
    uint64_t name;  /* what its completion says */
    uint8_t opcode; /* EPW_OPCODE_*; NOP: a WRITE of no bytes */
    bool signalled;
    bool is_inline;
    uint32_t key; /* the peer's, and where in its region */
    uint64_t remote;
    uint32_t count;
    epw_segment local[EPW_FETCH_SEGMENTS]; /* by the adapter's keys */
    const unsigned char *inlined;
    uint32_t inlined_bytes;
    uint64_t addend;
} epw_verbs_work;

typedef struct epw_verbs_done {
    uint64_t name;
    uint8_t syndrome; /* EPW_SYNDROME_* */
    uint32_t vendor;
} epw_verbs_done;

typedef struct epw_verbs_calls {
    /* Where completions announce themselves: *fd is readable once one has come behind `arm`. */
    int (*open_channel)(void *device, void **channel, int *fd);
    int (*close_channel)(void *channel);

    /* A queue that has announced one, by the name that it was opened with; EAGAIN: there is none. */
    int (*announced)(void *channel, uint64_t *name);

    /* A reliable queue pair and its completion queue. `number`: by which the peer names it. */
    int (*open_queue)(void *device, void *pd, void *channel, uint32_t depth, uint64_t name, void **queue,
                      uint32_t *number);

    /* Once this returns 0 nothing that comes by it is placed, and nothing is read that it was to send. An
     * errno: the adapter has not let go of it; it is there as before. */
    int (*close_queue)(void *queue);

    /* From wherever it is: connected, by an address of the peer's that may have to be resolved. */
    int (*connect)(void *queue, const epw_mlx5_path *path);

    /* In this order; *posted: how many have been. */
    int (*post)(void *queue, const epw_verbs_work *works, uint32_t count, uint32_t *posted);

    int (*poll)(void *queue, epw_verbs_done *out, uint32_t most, uint32_t *count);
    int (*arm)(void *queue);
} epw_verbs_calls;

enum { EPW_VERBS_WORKS = 32 /* that are posted at a time */ };

/* Of the library that epw_verbs_library has opened, see nic/mlx5/library.h. */
const epw_verbs_calls *epw_verbs_calls_of_library(void);

#endif
