/* An mlx5 adapter that this process has opened: which one, by which port and address others reach it, the
 * memory that it may touch, and its queue pairs.
 *
 * Nothing here has met an adapter yet: see what is unproven, below. */
#ifndef EPW_NIC_MLX5_H
#define EPW_NIC_MLX5_H

#include "base/status.h"
#include "nic/mlx5/calls.h"
#include "nic/mlx5/commands.h"
#include "nic/region.h"
#include "nic/soft.h"

typedef struct epw_mlx5 epw_mlx5;

/* Which adapter of those there are, see nic/choice.h, and how its queue pairs send. */
typedef struct epw_mlx5_options {
    const char *filter;       /* of names and ports; NULL: any */
    const epw_bus_place *gpu; /* that it is to be near to; NULL: to none */
    uint32_t turn;            /* of this rank, among equally near ones */
    const epw_mlx5 *beside;   /* not this one, which this rank has already; NULL: there is none */
    uint32_t service_level;   /* InfiniBand: below 16; Ethernet: the priority, below 8 */
    uint32_t traffic_class; /* Ethernet: below 256. Its upper 6 bits are the DSCP, the lower ones not sent */
    uint32_t hop_limit;     /* Ethernet: below 256; 0: 255 */
} epw_mlx5_options;

/* Opens it, looks at what it can do, and starts a thread that looks at words, see epw_mlx5_register.
 *   EPW_ERR_NO_PATH   there is none that can be used, for the reasons in the text
 *   EPW_ERR_INVALID   its link does not have what the options ask for */
epw_status epw_mlx5_open(const epw_mlx5_calls *calls, const epw_mlx5_options *options, epw_where where,
                         epw_mlx5 **out);

/* All pairs have been destroyed, and all regions dropped. NULL is allowed. */
void epw_mlx5_close(epw_mlx5 *adapter);

/* Its place in the list of this host's adapters. */
uint32_t epw_mlx5_listed(const epw_mlx5 *adapter);

/* What others make queue pairs of on it: the device, its protection domain, and a path that leads from its
 * port, to be completed by a peer's address. */
typedef struct epw_adapter_device {
    void *device, *pd;
    const char *name;
    epw_mlx5_path path;
} epw_adapter_device;
epw_adapter_device epw_mlx5_device(const epw_mlx5 *adapter);

/* Its events go there from now on; NULL: nowhere. From a thread of its own, which must not wait for a queue
 * pair's end. */
void epw_mlx5_hear(epw_mlx5 *adapter, void (*event)(void *context, const epw_mlx5_event *event),
                   void *context);

/* Whether an event breaks queue pairs of this adapter: all of them, or the one that it names. Another port's
 * does not, nor does a change of addresses that leaves the port the one that its queue pairs have. */
bool epw_mlx5_concerns(const epw_mlx5 *adapter, const epw_mlx5_event *event);

/* For print: which device, port and address, and what it, or one of its pairs so far, does without. Returns
 * `text`. */
enum { EPW_MLX5_TEXT = 400 };
const char *epw_mlx5_describe(const epw_mlx5 *adapter, char text[EPW_MLX5_TEXT]);

/* For print: what has happened to it, and what to do; "" of an event that names one queue pair. Returns
 * `text`. */
const char *epw_mlx5_event_text(const epw_mlx5 *adapter, epw_mlx5_event_kind kind, char text[EPW_MLX5_TEXT]);

/* Where others send to, for a blob. */
typedef struct epw_mlx5_address {
    bool ethernet;
    uint8_t mtu;
    uint16_t lid;
    unsigned char gid[16];
} epw_mlx5_address;

enum { EPW_MLX5_ADDRESS_BYTES = 1 + 1 + 2 + 16 };

epw_mlx5_address epw_mlx5_address_of(const epw_mlx5 *adapter);
void epw_mlx5_address_write(const epw_mlx5_address *address, unsigned char bytes[EPW_MLX5_ADDRESS_BYTES]);

/* EPW_ERR_INVALID if it is none. */
epw_status epw_mlx5_address_read(const unsigned char bytes[EPW_MLX5_ADDRESS_BYTES], epw_where where,
                                 epw_mlx5_address *out);

/* On an adapter without commands an entry names bytes of its own by their offset and this beside it, where
 * the region does not begin a page: pages of the region are pages of memory. */
#define EPW_MLX5_SKEW(base) ((uintptr_t)(base)&4095)

/* An adapter's keys open all from a region's first byte to its last, stretches or not. Its `arrived` is
 * called from a thread that looks at the words of its first stretch: every 50 us while something comes, else
 * ever less often, up to 500 us. What peers write to begins a page. */
epw_status epw_mlx5_register(epw_mlx5 *adapter, const epw_region *region, epw_where where, epw_keys *out);

/* Memory of a GPU, to which its kernels write. The adapter reaches it by a descriptor, or, if there is none
 * or the kernel does not take it, by the address. It begins a page, and outlives what is made of it. */
typedef struct epw_mlx5_far {
    unsigned char *address;
    int dmabuf; /* of the same bytes; -1: none */
} epw_mlx5_far;

/* So that this rank's entries send from there; offsets count from its first byte. EPW_ERR_NO_PATH: the
 * adapter does not reach it, and what to do. */
epw_status epw_mlx5_register_far(epw_mlx5 *adapter, const epw_mlx5_far *far, uint64_t bytes, epw_where where,
                                 epw_keys *out);

/* Once this returns nothing of the region is touched any more. `own`: its key. */
void epw_mlx5_deregister(epw_mlx5 *adapter, uint32_t own);

/* ---- queue pairs ---- */

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

typedef struct epw_mlx5_pair epw_mlx5_pair;

/* Who posts to a queue, and whose doorbells reach the adapter. */
typedef enum epw_mlx5_poster {
    EPW_MLX5_HOST,           /* threads of the host, who call epw_mlx5_pair_ring */
    EPW_MLX5_KERNELS,        /* kernels, who write the register */
    EPW_MLX5_KERNELS_UNHEARD /* kernels, who cannot: they write a word, and a thread of the host the register
                              */
} epw_mlx5_poster;

typedef struct epw_mlx5_pair_options {
    uint32_t peer;  /* the rank that it is for: who may say that it is over */
    uint32_t depth; /* entries of 64 bytes: a power of two */
    epw_mlx5_poster poster;
    /* Host memory of epw_mlx5_pair_memory_bytes(depth), that begins a page and outlives the pair; NULL: the
     * pair takes its own. */
    unsigned char *memory;
    const epw_mlx5_far *ring; /* in place of that part of the memory, 64 bytes for each entry; NULL: none */
    /* Called once, when it breaks; NULL: nobody. */
    void (*broken)(void *context);
    void *context;
} epw_mlx5_pair_options;

/* EPW_ERR_NO_PATH: it does not reach the ring in the memory of a GPU, and what to do. */
epw_status epw_mlx5_pair_create(epw_mlx5 *adapter, const epw_mlx5_pair_options *options, epw_where where,
                                epw_mlx5_pair **out);

uint64_t epw_mlx5_pair_memory_bytes(uint32_t depth);

/* Once this returns nothing that came by it is placed, and nothing is read of what it was to send. NULL is
 * allowed. False: the kernel has not let go of its memory, which is to stay as it is. */
bool epw_mlx5_pair_destroy(epw_mlx5_pair *pair);

uint32_t epw_mlx5_pair_number(const epw_mlx5_pair *pair);

/* Its doorbell is the register, or the word in its place. */
const epw_pair_memory *epw_mlx5_pair_memory(const epw_mlx5_pair *pair);

/* Whether registers are ordinary memory: of an adapter in software. */
bool epw_mlx5_registers_in_memory(const epw_mlx5 *adapter);

/* Whether everything that was rung for is done, or nothing more will be; whether anything ever was. */
bool epw_mlx5_pair_idle(const epw_mlx5_pair *pair);
bool epw_mlx5_pair_has_rung(const epw_mlx5_pair *pair);

/* To pair `remote` of the adapter at this address, whose silence ends it within 2 to 4 deadlines. Again only
 * before the first entry is posted. */
epw_status epw_mlx5_pair_connect(epw_mlx5_pair *pair, uint32_t remote, const epw_mlx5_address *address,
                                 uint64_t deadline_ns, epw_where where);

/* Of the peer; 0: it is not connected. */
uint32_t epw_mlx5_pair_remote(const epw_mlx5_pair *pair);

/* The peer of rank `peer` says that its pair `remote` is over: whether pair `number` of this adapter's was
 * connected with it, and is broken now. From any thread. */
bool epw_mlx5_peer_ended(epw_mlx5 *adapter, uint32_t peer, uint32_t number, uint32_t remote);

/* The doorbell has been rung: to be said where the adapter is one in software. */
void epw_mlx5_pair_ring(epw_mlx5_pair *pair);

/* Gives it up: what was posted is flushed. */
void epw_mlx5_pair_break(epw_mlx5_pair *pair);

/* Nothing that comes by it is placed any more. It sends on. False: the adapter refuses that; again is
 * allowed. */
bool epw_mlx5_pair_close(epw_mlx5_pair *pair);
bool epw_mlx5_pair_is_closed(const epw_mlx5_pair *pair);

/* Nothing more is sent by it or completes. */
bool epw_mlx5_pair_broken(const epw_mlx5_pair *pair);

/* For print: what has happened to the adapter that has broken it, and what to do; "" if nothing has. Returns
 * `text`. */
const char *epw_mlx5_pair_trouble(const epw_mlx5_pair *pair, char text[EPW_MLX5_TEXT]);

#endif
