/* An mlx5 adapter in software, for tests: it is asked what libibverbs and libmlx5 are asked, takes commands
 * by their raw bytes, and refuses what firmware refuses; queue pairs that have come all the way up are
 * carried out by a soft NIC (nic/soft.h), by the very rings, doorbell records and registers that the commands
 * have named.
 *
 * What it cannot show: the order of writes on a bus, which kinds of registers a GPU can map, how long an
 * adapter tries, and whether firmware heeds a field that is set. Nor does a queue pair that is not connected
 * yet hold up its peer, whose entries an adapter would try again until it is: here they are placed. */
#ifndef EPW_NIC_FAKE_H
#define EPW_NIC_FAKE_H

#include "nic/mlx5/calls.h"
#include "nic/soft.h"

typedef struct epw_fake epw_fake;

/* What the device, its firmware or its kernel does not have. */
typedef enum epw_fake_lack {
    EPW_FAKE_NO_DEVICE,     /* nothing is listed */
    EPW_FAKE_NO_DEVX,       /* the context is refused */
    EPW_FAKE_NO_PORT,       /* no port is active */
    EPW_FAKE_NO_ROCE_V2,    /* GIDs of RoCEv1 alone */
    EPW_FAKE_NO_ROUTED_GID, /* GIDs that hold on one link alone */
    EPW_FAKE_GIDS_REVERSED, /* its table in another order, with holes */
    EPW_FAKE_NO_OWN_UAR,    /* an old libmlx5 */
    EPW_FAKE_BF_UAR_ALONE,  /* and an old kernel */
    EPW_FAKE_NO_UAR,
    EPW_FAKE_NO_DMABUF,      /* registrations by descriptor: an old kernel */
    EPW_FAKE_NO_CQE_VERSION, /* completions of another format */
    EPW_FAKE_NO_ATOMICS,
    EPW_FAKE_NO_OVERRUN,   /* completion queues that nobody reads */
    EPW_FAKE_SHORT_RINGS,  /* of 64 entries at most */
    EPW_FAKE_NO_NEIGHBOUR, /* nobody answers for a GID */
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
    EPW_FAKE_CALLS
} epw_fake_call;

/* Devices that it has at most, "fake_0" and so on. They share what is failing, and what they lack. */
enum { EPW_FAKE_DEVICES_MAX = 4 };

typedef struct epw_fake_options {
    uint32_t rank;    /* their addresses are made of it */
    uint32_t devices; /* how many there are; 0: one */
    epw_bus_place places[EPW_FAKE_DEVICES_MAX];
    epw_nic *nic; /* carries queue pairs out; NULL: none comes to work */
    bool infiniband;
    uint32_t mtu;   /* as in epw_mlx5_port; 0: 4096 */
    uint64_t lacks; /* 1 << EPW_FAKE_NO_* */
    /* The call of this kind that comes after so many others fails: with an errno, or where that is 0, as the
     * firmware does. */
    epw_fake_call failing;
    uint32_t failing_after;
    int failing_errno;
} epw_fake_options;

epw_status epw_fake_open(const epw_fake_options *options, epw_where where, epw_fake **out);

/* All that was made of it has been given back. NULL is allowed. */
void epw_fake_close(epw_fake *fake);

const epw_mlx5_calls *epw_fake_calls(const epw_fake *fake);

/* Where a queue pair's packets go, in place of cables and switches: those of `number` to this address reach
 * queue pair `remote` by a link of the soft NIC. Before INIT2RTR, or of one that is connected to it. */
typedef struct epw_fake_route {
    unsigned char gid[16]; /* Ethernet */
    uint32_t lid;          /* InfiniBand */
    uint32_t remote;
    uint64_t link;
} epw_fake_route;
void epw_fake_add_route(epw_fake *fake, uint32_t number, const epw_fake_route *route);

/* How many things have been made and not given back, by kind. */
typedef struct epw_fake_left {
    uint32_t devices, domains, uars, umems, objects, regions;
} epw_fake_left;
epw_fake_left epw_fake_count(epw_fake *fake);

/* Calls back as an event of the device would. */
void epw_fake_raise(epw_fake *fake, uint32_t device, const epw_mlx5_event *event);

/* From now on the ports have other addresses. Nobody is told. */
void epw_fake_move(epw_fake *fake);

/* Sees each command before it is carried out, may change it, and is told what was answered; NULL: nobody. */
typedef struct epw_fake_tap {
    void (*command)(void *context, unsigned char *in, size_t in_bytes);
    void (*answer)(void *context, const unsigned char *out, size_t out_bytes);
    void *context;
} epw_fake_tap;
void epw_fake_set_tap(epw_fake *fake, const epw_fake_tap *tap);

#endif
