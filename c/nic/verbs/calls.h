/* The calls of libibverbs that carry entries by queue pairs which the library makes, as one table: the
 * library itself (library.c), or a substitute in tests. nic/mlx5/calls.h has the calls for the device.
 * Functions return 0 or an errno, and fill in their results only if they return 0. One thread at a time uses
 * a queue. */
#ifndef EPW_NIC_VERBS_CALLS_H
#define EPW_NIC_VERBS_CALLS_H

#include "nic/mlx5/commands.h"
#include "nic/soft/fetch.h"

/* An entry in the form in which the adapter takes it. */
typedef struct epw_verbs_work {
    uint64_t name;  /* returned by its completion */
    uint8_t opcode; /* EPW_OPCODE_*; a NOP becomes a WRITE of 0 bytes */
    bool signalled;
    bool is_inline;
    uint32_t key; /* the peer's region; `remote` is the address in it */
    uint64_t remote;
    uint32_t count;
    epw_segment local[EPW_FETCH_SEGMENTS]; /* with the adapter's own keys */
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
    /* Makes a channel for the notifications of completions: *fd becomes readable once a completion has
     * arrived after `arm`. */
    int (*open_channel)(void *device, void **channel, int *fd);
    int (*close_channel)(void *channel);

    /* The name, given to open_queue, of a queue that has a notification; EAGAIN: there is none. */
    int (*announced)(void *channel, uint64_t *name);

    /* Makes a reliable queue pair and its completion queue. `number` is the one by which the peer addresses
     * it. */
    int (*open_queue)(void *device, void *pd, void *channel, uint32_t depth, uint64_t name, void **queue,
                      uint32_t *number);

    /* After 0 is returned, the adapter places nothing that arrives on the queue, and reads nothing that it
     * had to send. After an errno the adapter may still use the queue, which remains as it was. */
    int (*close_queue)(void *queue);

    /* Frees what this process knows of a queue that it could not close, and leaves it to the adapter. */
    void (*leave_queue)(void *queue);

    /* Connects the queue, in whatever state it is. May have to resolve the peer's address. */
    int (*connect)(void *queue, const epw_mlx5_path *path);

    /* Posts the works in this order; *posted: how many were posted. */
    int (*post)(void *queue, const epw_verbs_work *works, uint32_t count, uint32_t *posted);

    int (*poll)(void *queue, epw_verbs_done *out, uint32_t most, uint32_t *count);
    int (*arm)(void *queue);
} epw_verbs_calls;

enum { EPW_VERBS_WORKS = 32 /* the most that are posted at a time */ };

/* The calls of the library that epw_verbs_library has opened, see nic/mlx5/library.h. */
const epw_verbs_calls *epw_verbs_calls_of_library(void);

#endif
