/* An mlx5 adapter that this process has opened: which device, port and address it uses, the memory that it
 * may access, and its queue pairs.
 *
 * Nothing here has run on a real adapter yet: see what is unproven, below. */
#ifndef EPW_NIC_MLX5_H
#define EPW_NIC_MLX5_H

#include "base/status.h"
#include "nic/mlx5/calls.h"
#include "nic/mlx5/commands.h"
#include "nic/region.h"
#include "nic/soft.h"

typedef struct epw_mlx5 epw_mlx5;

/* Which of the adapters to open, see nic/choice.h, and how its queue pairs send. */
typedef struct epw_mlx5_options {
    const char *filter;       /* of names and ports; NULL: any */
    const epw_bus_place *gpu; /* the GPU to be near to; NULL: none */
    uint32_t turn;            /* chooses among equally near adapters: this rank's turn */
    const epw_mlx5 *beside;   /* not this adapter, which the rank already has; NULL: none */
    uint32_t service_level;   /* InfiniBand: below 16; Ethernet: the priority, below 8 */
    uint32_t
        traffic_class;  /* Ethernet: below 256. Its upper 6 bits are the DSCP, the lower ones are not sent */
    uint32_t hop_limit; /* Ethernet: below 256; 0: 255 */
} epw_mlx5_options;

/* Opens an adapter, reads its capabilities, and starts a thread that polls words, see epw_mlx5_register.
 *   EPW_ERR_NO_PATH   no adapter can be used, for the reasons in the text
 *   EPW_ERR_INVALID   its link does not have what the options ask for */
epw_status epw_mlx5_open(const epw_mlx5_calls *calls, const epw_mlx5_options *options, epw_where where,
                         epw_mlx5 **out);

/* All pairs must have been destroyed, and all regions deregistered. NULL is allowed. */
void epw_mlx5_close(epw_mlx5 *adapter);

/* What libibverbs needs to make queue pairs on this adapter: the device, its protection domain, and a path
 * from its port, to be completed by a peer's address. */
typedef struct epw_adapter_device {
    void *device, *pd;
    const char *name;
    epw_mlx5_path path;
} epw_adapter_device;
epw_adapter_device epw_mlx5_device(const epw_mlx5 *adapter);

/* Sets the function that is told of the adapter's events; NULL: none. It is called from a thread of the
 * adapter, and must not wait for a queue pair to be destroyed. */
void epw_mlx5_hear(epw_mlx5 *adapter, void (*event)(void *context, const epw_mlx5_event *event),
                   void *context);

/* Whether an event breaks queue pairs of this adapter: all of them, or the one that it names. An event of
 * another port does not, nor does a change of addresses after which the port still has the one that its queue
 * pairs use. */
bool epw_mlx5_concerns(const epw_mlx5 *adapter, const epw_mlx5_event *event);

/* Whether its transport does not promise to place writes in the order of posting. */
bool epw_mlx5_is_unordered(const epw_mlx5 *adapter);

/* For printing: which device, port and address, and what the adapter, or one of its pairs so far, does
 * without. Returns `text`. */
enum { EPW_MLX5_TEXT = 400 };
const char *epw_mlx5_describe(const epw_mlx5 *adapter, char text[EPW_MLX5_TEXT]);

/* For printing: what has happened to the adapter, and a remedy; "" for an event that names one queue pair.
 * Returns `text`. */
const char *epw_mlx5_event_text(const epw_mlx5 *adapter, epw_mlx5_event_kind kind, char text[EPW_MLX5_TEXT]);

/* Logs a warning: at the end of a thing, which the rest names, the adapter has not given it back, for this
 * errno. What does not depend on it is given back all the same. `peer`: -1 if it is not for one. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
void
epw_mlx5_tell_kept(const epw_mlx5 *adapter, int peer, int err, const char *what, ...);

/* The address to which others send, for a blob. */
typedef struct epw_mlx5_address {
    bool ethernet;
    uint8_t mtu;
    uint16_t lid;
    unsigned char gid[16];
} epw_mlx5_address;

enum { EPW_MLX5_ADDRESS_BYTES = 1 + 1 + 2 + 16 };

epw_mlx5_address epw_mlx5_address_of(const epw_mlx5 *adapter);
void epw_mlx5_address_write(const epw_mlx5_address *address, unsigned char bytes[EPW_MLX5_ADDRESS_BYTES]);

/* EPW_ERR_INVALID if the bytes are not an address. */
epw_status epw_mlx5_address_read(const unsigned char bytes[EPW_MLX5_ADDRESS_BYTES], epw_where where,
                                 epw_mlx5_address *out);

/* On an adapter without commands an entry names its own bytes by their offset plus this skew, if the region
 * does not begin on a page: pages of the region are pages of memory. */
#define EPW_MLX5_SKEW(base) ((uintptr_t)(base)&4095)

/* Registers a region. An adapter's keys open everything from the first byte of all stretches to the last.
 * `arrived` is called from a thread that polls the words of the first stretch: every 50 us while something
 * arrives, otherwise ever less often, up to every 500 us. A region that peers write to must begin on a
 * page. */
epw_status epw_mlx5_register(epw_mlx5 *adapter, const epw_region *region, epw_where where, epw_keys *out);

/* Memory of a GPU. The adapter reaches it by a descriptor or, if there is none or the kernel refuses it, by
 * its address. It begins on a page, and outlives what is made of it. */
typedef struct epw_mlx5_far {
    unsigned char *address;
    int dmabuf;     /* of the same bytes; -1: none */
    bool unordered; /* kernels may see what an adapter writes there in another order */
} epw_mlx5_far;

/* Registers a region of GPU memory, whose offsets count from the memory's first byte: one from which this
 * rank's entries send, or one to which peers write. Nobody looks for words in it: `arrived` is not called.
 * EPW_ERR_NO_PATH: the adapter does not reach it, or peers would have to write to memory that is unordered;
 * the text has a remedy. */
epw_status epw_mlx5_register_far(epw_mlx5 *adapter, const epw_mlx5_far *far, const epw_region *region,
                                 epw_where where, epw_keys *out);

/* After this returns, nothing accesses the region any more, unless the log says that the adapter has kept it.
 * `own` is its key. */
void epw_mlx5_deregister(epw_mlx5 *adapter, uint32_t own);

/* ---- queue pairs ---- */

/* A queue pair of an mlx5 adapter, made by commands: its memory, its register, connecting and closing.
 *
 *     create    ring, doorbell record and completion queue in this process's memory, each a umem of its own;
 *               a register, of its own if there is such a kind; CREATE_CQ, CREATE_QP
 *     connect   RST2INIT, INIT2RTR, RTR2RTS
 *     close     RTS2RTS without rights, so that nothing more of the peer is placed
 *     destroy   undoes all of it in reverse order, from any state
 *
 * Unproven without an adapter: that RTS2RTS stops what the peer has in flight; that a completion queue of one
 * entry takes any number of completions on all firmware (UCX relies on it); that the first error stays in it
 * until it is read; that a register of kind BF takes doorbells at one address only; times of retries. */

typedef struct epw_mlx5_pair epw_mlx5_pair;

/* Who posts to a queue, and whether its doorbells reach the adapter. */
typedef enum epw_mlx5_poster {
    EPW_MLX5_HOST,           /* threads of the host, which call epw_mlx5_pair_ring */
    EPW_MLX5_KERNELS,        /* kernels, which write the register */
    EPW_MLX5_KERNELS_UNHEARD /* kernels, which cannot: they write a word, and a thread of the host copies it
                                to the register */
} epw_mlx5_poster;

typedef struct epw_mlx5_pair_options {
    uint32_t peer;  /* the rank of the peer, which may report that its end is over */
    uint32_t depth; /* entries of 64 bytes: a power of two */
    epw_mlx5_poster poster;
    /* Host memory of epw_mlx5_pair_memory_bytes(depth), which begins on a page and outlives the pair; NULL:
     * the pair allocates its own. */
    unsigned char *memory;
    const epw_mlx5_far *ring; /* holds the entries in place of host memory, 64 bytes each; NULL: none */
    /* Called once, when the pair breaks; NULL: nobody. */
    void (*broken)(void *context);
    void *context;
    /* Set if no pair is made, but the kernel still uses the memory that was meant for it, which must then
     * stay as it is; NULL: nobody asks. */
    bool *kept;
} epw_mlx5_pair_options;

/* EPW_ERR_NO_PATH: the adapter does not reach the ring in GPU memory; the text has a remedy. */
epw_status epw_mlx5_pair_create(epw_mlx5 *adapter, const epw_mlx5_pair_options *options, epw_where where,
                                epw_mlx5_pair **out);

uint64_t epw_mlx5_pair_memory_bytes(uint32_t depth);

/* After this returns true, nothing that arrives on the pair is placed, and nothing is read that it had to
 * send. NULL is allowed. False: the kernel still uses its memory, which must stay as it is; the log says
 * why. */
bool epw_mlx5_pair_destroy(epw_mlx5_pair *pair);

uint32_t epw_mlx5_pair_number(const epw_mlx5_pair *pair);

/* Its doorbell is the register, or the word in place of it. */
const epw_pair_memory *epw_mlx5_pair_memory(const epw_mlx5_pair *pair);

/* Whether registers are ordinary memory, as those of an adapter in software. */
bool epw_mlx5_registers_in_memory(const epw_mlx5 *adapter);

/* Whether everything that was rung for has completed, or nothing more will; whether anything was ever rung
 * for. */
bool epw_mlx5_pair_idle(const epw_mlx5_pair *pair);
bool epw_mlx5_pair_has_rung(const epw_mlx5_pair *pair);

/* Connects to pair `remote` of the adapter at this address. If the peer is silent, the pair breaks after 2 to
 * 4 deadlines. Call it again only before the first entry is posted. */
epw_status epw_mlx5_pair_connect(epw_mlx5_pair *pair, uint32_t remote, const epw_mlx5_address *address,
                                 uint64_t deadline_ns, epw_where where);

/* The peer's queue pair; 0: not connected. */
uint32_t epw_mlx5_pair_remote(const epw_mlx5_pair *pair);

/* What rank `peer` reports of its pair `remote` to pair `number` of this adapter. Callable from any thread; a
 * number that is not of a pair for that rank is ignored.
 *   ended      a pair that is connected to it is broken from now on
 *   connected  returns whether the pair takes its entries; if not, because the pair serves another one, it is
 *              broken from now on, see other_end.h
 *   heard      it takes the pair's entries */
void epw_mlx5_peer_ended(epw_mlx5 *adapter, uint32_t peer, uint32_t number, uint32_t remote);
bool epw_mlx5_peer_connected(epw_mlx5 *adapter, uint32_t peer, uint32_t number, uint32_t remote);
void epw_mlx5_peer_heard(epw_mlx5 *adapter, uint32_t peer, uint32_t number, uint32_t remote);

/* Whether the peer's pair has reported that it takes the entries, since this one was connected to it. */
bool epw_mlx5_pair_is_heard(const epw_mlx5_pair *pair);

/* Tells an adapter in software that the doorbell has been rung. */
void epw_mlx5_pair_ring(epw_mlx5_pair *pair);

/* Gives the pair up: everything posted is flushed. */
void epw_mlx5_pair_break(epw_mlx5_pair *pair);

/* Nothing that arrives on the pair is placed any more; it can still send. False: the adapter refuses the
 * command; trying again is allowed. */
bool epw_mlx5_pair_close(epw_mlx5_pair *pair);
bool epw_mlx5_pair_is_closed(const epw_mlx5_pair *pair);

/* True: it sends nothing more, and nothing more completes; after an event or a report of the peer, a thread
 * is about to see to that. */
bool epw_mlx5_pair_broken(const epw_mlx5_pair *pair);

/* For printing: the event of the adapter that has broken the pair, and a remedy; "" if there was none.
 * Returns `text`. */
const char *epw_mlx5_pair_trouble(const epw_mlx5_pair *pair, char text[EPW_MLX5_TEXT]);

#endif
