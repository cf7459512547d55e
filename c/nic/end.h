/* This rank's end of a queue pair, for either NIC that a fabric may have: a soft one, or an adapter. And the
 * memory that the NIC may access. */
#ifndef EPW_NIC_END_H
#define EPW_NIC_END_H

#include "nic/fabric.h"
#include "nic/mlx5.h"
#include "nic/queue.h"

#include <stdatomic.h>

/* One of the two, or none. An adapter does not notice that a peer has ended until something is sent to it;
 * the connection to the peer's fabric shows it at once, and is therefore closed when a queue pair breaks. */
typedef struct epw_end {
    epw_pair *soft;
    epw_mlx5_pair *adapter;
    epw_nic *_Atomic nic;  /* of that connection; NULL: not connected */
    _Atomic uint64_t link; /* valid once `nic` is set */
    uint32_t lane;
    bool kept; /* the kernel has kept the memory of one that was to be here, or was */
} epw_end;

/* Who posts to it. */
typedef enum epw_poster {
    EPW_POSTER_HOST,           /* threads of this process, which call epw_end_ring */
    EPW_POSTER_KERNELS,        /* kernels, through memory that they can access */
    EPW_POSTER_KERNELS_UNHEARD /* kernels whose stores do not reach an adapter's register, see
                                  epw_mlx5_poster */
} epw_poster;

typedef struct epw_end_options {
    uint32_t peer, key; /* see epw_pair_options */
    uint32_t lane;
    uint32_t depth;
    epw_poster poster;
    /* Memory of epw_end_memory_bytes, which begins on a page and outlives the pair; NULL: the NIC allocates
     * its own. */
    unsigned char *memory;
    const epw_mlx5_far *ring; /* the ring of an adapter's queue, in the memory of a GPU; NULL: none */
    void (*broken)(void *context);
    void *context;
} epw_end_options;

uint64_t epw_end_memory_bytes(const epw_fabric *fabric, uint32_t depth);

epw_status epw_end_create(epw_fabric *fabric, const epw_end_options *options, epw_where where, epw_end *out);

/* Once this returns nothing that came by it is placed any more, and nothing is read that it had to send. Does
 * nothing if there is none. False: its memory must not be used again, whether this call has found that, an
 * earlier one, or an epw_end_create that has failed. */
bool epw_end_destroy(epw_end *end);

/* The number by which the peer names it, and the one for the verbs wire; 0: there is none. */
uint32_t epw_end_number(const epw_end *end);
uint32_t epw_end_carried_number(const epw_end *end);
const epw_pair_memory *epw_end_memory(const epw_end *end);

/* Where it leads. */
typedef struct epw_end_peer {
    uint32_t wire;    /* EPW_WIRE_* */
    uint64_t link;    /* from this fabric to the peer's */
    uint32_t number;  /* of the peer's end: see epw_end_number */
    uint32_t carried; /* and, by the verbs wire, see epw_end_carried_number */
    uint32_t lane;
    const unsigned char *nic; /* the description of the peer's NIC, see epw_fabric_nic_write */
    uint64_t deadline_ns;     /* an adapter gives up a silent peer within 2 to 4 of these */
} epw_end_peer;

/* Call it again only before the first entry is posted. Meanwhile any thread may ask whether it is broken. */
epw_status epw_end_connect(epw_fabric *fabric, epw_end *end, const epw_end_peer *peer, epw_where where);

/* Whether the peer's end takes what this one sends. If it does not, this one breaks. */
bool epw_end_is_heard(const epw_end *end);

/* The doorbell has been rung. */
void epw_end_ring(const epw_end *end);

/* Whether its doorbell has ever been rung; whether all entries that it was rung for are done, or nothing more
 * will be. */
bool epw_end_has_rung(const epw_end *end);
bool epw_end_idle(const epw_end *end);

/* See epw_pair_break and so on, in soft.h. */
void epw_end_break(const epw_end *end);
bool epw_end_close(const epw_end *end);
bool epw_end_is_closed(const epw_end *end);
bool epw_end_broken(const epw_end *end);

/* Whether an adapter carries its entries, not a software NIC's connection. */
bool epw_end_is_of_adapter(const epw_end *end);

/* Whether an entry of its queue has failed by itself, and why; known even if later flushed entries hide it in
 * the completion queue of a soft NIC. */
bool epw_end_failed(const epw_end *end, epw_queue *queue, epw_queue_fault *fault);

/* For printing: what has broken it, and what to do, as far as the NIC reports it; "" if it is not broken or
 * the reason is not known. Returns `text`. */
const char *epw_end_trouble(const epw_end *end, char text[EPW_MLX5_TEXT]);

/* ---- memory ---- */

/* For queue pairs at this place. */
epw_status epw_end_register(epw_fabric *fabric, uint32_t place, const epw_region *region, epw_where where,
                            epw_keys *out);

/* Once this returns they access nothing of the region any more. `own`: its key; 0: no region. */
void epw_end_deregister(epw_fabric *fabric, uint32_t place, uint32_t own);

/* The same for all places; words that arrive, at whichever place, are reported through the first. */
epw_status epw_end_register_all(epw_fabric *fabric, const epw_region *region, epw_where where,
                                epw_keys out[EPW_ADAPTERS_MAX]);
/* GPU memory, for adapters or the verbs wire's, see epw_mlx5_register_far. A soft NIC cannot access it: what
 * it does not hand to an adapter is refused. */
epw_status epw_end_register_far(epw_fabric *fabric, const epw_mlx5_far *far, const epw_region *region,
                                epw_where where, epw_keys out[EPW_ADAPTERS_MAX]);
void epw_end_deregister_all(epw_fabric *fabric, const epw_keys keys[EPW_ADAPTERS_MAX]);

#endif
