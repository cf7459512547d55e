/* An mlx5 adapter in software, for tests. It answers the calls of libibverbs and libmlx5, takes commands as
 * raw bytes, and refuses what firmware refuses. A soft NIC (nic/soft.h) executes the queue pairs that have
 * reached RTS, through the rings, doorbell records and registers that the commands have named.
 *
 * What it cannot show: the order of writes on a bus, which kinds of registers a GPU can map, how long an
 * adapter retries, and whether firmware honours a field that is set. It also differs in these cases: an
 * adapter retries entries for a peer whose queue pair is not connected yet, while the fake places them at
 * once; the fake refuses what comes to a queue pair that has stopped, while an adapter is silent; and 2RST
 * does not stop the soft NIC's queue pair, so that it can only be connected again before it has sent
 * anything.
 */
#ifndef EPW_NIC_FAKE_H
#define EPW_NIC_FAKE_H

#include "nic/mlx5/calls.h"
#include "nic/soft.h"

typedef struct epw_fake epw_fake;

/* Something that the device, its firmware or its kernel does not have. */
typedef enum epw_fake_lack {
    EPW_FAKE_NO_DEVICE,     /* no device is listed */
    EPW_FAKE_NO_DEVX,       /* opening the context fails */
    EPW_FAKE_NO_PORT,       /* no port is active */
    EPW_FAKE_NO_ROCE_V2,    /* only GIDs of RoCEv1 */
    EPW_FAKE_NO_ROUTED_GID, /* only link-local GIDs */
    EPW_FAKE_GIDS_REVERSED, /* the GID table has another order, and holes */
    EPW_FAKE_NO_OWN_UAR,    /* an old libmlx5 */
    EPW_FAKE_BF_UAR_ALONE,  /* an old libmlx5 on an old kernel */
    EPW_FAKE_NO_UAR,
    EPW_FAKE_NO_DMABUF,      /* no registration by descriptor: an old kernel */
    EPW_FAKE_NO_CQE_VERSION, /* completions have another format */
    EPW_FAKE_NO_ATOMICS,
    EPW_FAKE_NO_OVERRUN,      /* completion queues cannot ignore overrun */
    EPW_FAKE_SHORT_RINGS,     /* rings have at most 64 entries */
    EPW_FAKE_SHORT_ENTRIES,   /* entries have at most 2^20 bytes */
    EPW_FAKE_NO_NEIGHBOUR,    /* no neighbour answers for a GID */
    EPW_FAKE_NO_LID,          /* InfiniBand without a subnet manager */
    EPW_FAKE_NO_LOOPBACK,     /* no packet reaches the device that sends it */
    EPW_FAKE_NO_DOORBELLS,    /* writes to registers have no effect */
    EPW_FAKE_NO_OWN_PAGE,     /* two registers share a page */
    EPW_FAKE_NO_PAIR_EVENTS,  /* nothing reports the end of a queue pair, as hardware for those made by
                                 commands */
    EPW_FAKE_NO_TIME_FORMAT,  /* timestamps have one format, that of older firmware */
    EPW_FAKE_NO_ORDER_FORCED, /* an administrator alone decides about the order of writes */
    EPW_FAKE_NO_REORDERING,   /* writes are always placed in order, as by older adapters */
    EPW_FAKE_LACKS
} epw_fake_lack;

/* Calls that can be made to fail. */
typedef enum epw_fake_call {
    EPW_FAKE_CALL_NONE,
    EPW_FAKE_CALL_DEVICES,
    EPW_FAKE_CALL_OPEN,
    EPW_FAKE_CALL_PORT,
    EPW_FAKE_CALL_GID,
    EPW_FAKE_CALL_GENERAL,
    EPW_FAKE_CALL_EQ,
    EPW_FAKE_CALL_DOMAIN,
    EPW_FAKE_CALL_UAR,
    EPW_FAKE_CALL_UMEM,
    EPW_FAKE_CALL_CREATE,
    EPW_FAKE_CALL_MODIFY,
    EPW_FAKE_CALL_QUERY,
    EPW_FAKE_CALL_REGISTER,
    EPW_FAKE_CALL_RESOLVE,
    EPW_FAKE_CALL_DESTROY, /* the first of those that give something back: what it names stays as it is */
    EPW_FAKE_CALL_FREE_UMEM,
    EPW_FAKE_CALL_DEREGISTER,
    EPW_FAKE_CALL_FREE_UAR,
    EPW_FAKE_CALL_FREE_DOMAIN,
    EPW_FAKE_CALL_CLOSE,
    EPW_FAKE_CALLS
} epw_fake_call;

/* The most devices that it can have, called "fake_0" and so on. All have the same lacks, and share the
 * failing call. */
enum { EPW_FAKE_DEVICES_MAX = 4 };

typedef struct epw_fake_options {
    uint32_t rank;    /* the devices' addresses are derived from it */
    uint32_t devices; /* their number; 0 means one */
    epw_bus_place places[EPW_FAKE_DEVICES_MAX];
    epw_nic *nic; /* executes the queue pairs; NULL: no queue pair ever works */
    bool infiniband;
    uint32_t mtu;   /* as in epw_mlx5_port; 0: 4096 */
    uint64_t lacks; /* 1 << EPW_FAKE_NO_*, or-ed */
    /* After `failing_after` calls of the kind `failing`, the next one fails: with failing_errno or, where
     * that is 0, with failing_status of the firmware; 0: BAD_PARAM. */
    epw_fake_call failing;
    uint32_t failing_after;
    int failing_errno;
    uint32_t failing_status;
} epw_fake_options;

epw_status epw_fake_open(const epw_fake_options *options, epw_where where, epw_fake **out);

/* What was made of the fake and not given back is freed, as the kernel does when a process ends. NULL is
 * allowed. */
void epw_fake_close(epw_fake *fake);

const epw_mlx5_calls *epw_fake_calls(const epw_fake *fake);

/* Where the packets of queue pair `number` go, in place of cables and switches: those for this address reach
 * queue pair `remote` by a link of the soft NIC. Call it before INIT2RTR, or for a queue pair that INIT2RTR
 * has connected to this address. */
typedef struct epw_fake_route {
    unsigned char gid[16]; /* Ethernet */
    uint32_t lid;          /* InfiniBand */
    uint32_t remote;
    uint64_t link;
} epw_fake_route;
void epw_fake_add_route(epw_fake *fake, uint32_t number, const epw_fake_route *route);

/* How many objects of each kind have been made and not given back. */
typedef struct epw_fake_left {
    uint32_t devices, domains, uars, umems, objects, regions;
} epw_fake_left;
epw_fake_left epw_fake_count(epw_fake *fake);

/* How many queue pairs there are, and how many of them have completed an entry and have not broken. None is
 * made or destroyed meanwhile. */
void epw_fake_count_pairs(epw_fake *fake, uint32_t *all, uint32_t *warm);

/* From now on, after `after` calls of this kind, the next one fails with this errno, which is not 0, or all
 * do if `lasting`; EPW_FAKE_CALL_NONE: none fails any more. The options have no say in it any more. Call it
 * while nothing else uses the fake. */
void epw_fake_fail(epw_fake *fake, epw_fake_call call, uint32_t after, int err, bool lasting);

/* How many calls have failed because of the options or of epw_fake_fail. */
uint32_t epw_fake_failed(epw_fake *fake);

/* Reports an event of the device to its listener. */
void epw_fake_raise(epw_fake *fake, uint32_t device, const epw_mlx5_event *event);

/* Gives all ports other addresses, without an event. */
void epw_fake_move(epw_fake *fake);

/* Sees each command before it is carried out, and may change it; then sees the answer. NULL removes the
 * tap. */
typedef struct epw_fake_tap {
    void (*command)(void *context, unsigned char *in, size_t in_bytes);
    void (*answer)(void *context, const unsigned char *out, size_t out_bytes);
    void *context;
} epw_fake_tap;
void epw_fake_set_tap(epw_fake *fake, const epw_fake_tap *tap);

#endif
