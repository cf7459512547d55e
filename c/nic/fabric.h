/* The fabric of a process: its NIC, its connections to the NICs of other ranks, and the thread that makes and
 * accepts them. All buffers of a rank share it. The wire of a connection is what carries it: rings in memory
 * of this host, or TCP. */
#ifndef EPW_NIC_FABRIC_H
#define EPW_NIC_FABRIC_H

#include "nic/address.h"
#include "nic/fake.h"
#include "nic/mlx5.h"
#include "nic/soft.h"

/* The address of a fabric, for a blob. It is a secret: a process that knows it, and belongs to the same user
 * or has the key, can connect. */
typedef struct epw_fabric_address {
    epw_nonce boot_id;
    uint64_t network_namespace;
    epw_nonce name;
    uint8_t wires; /* EPW_WIRE_*: those that it listens for */
    uint8_t tcp_length;
    unsigned char tcp[EPW_ADDRESSES_BYTES]; /* see epw_links_addresses */
} epw_fabric_address;

enum { EPW_FABRIC_ADDRESS_BYTES = 16 + 8 + 16 + 1 + 1 + EPW_ADDRESSES_BYTES };

epw_fabric_address epw_fabric_address_of(const epw_fabric *fabric);
void epw_fabric_address_write(const epw_fabric_address *address, unsigned char *bytes);
void epw_fabric_address_read(const unsigned char *bytes, epw_fabric_address *out);

/* The wire that leads to the fabric with this address: within one host if both permit that, else by adapters
 * if both have the verbs wire, else by TCP. 0: none. */
uint32_t epw_fabric_wire(const epw_fabric *fabric, const epw_fabric_address *address);

/* A new connection to the fabric of `peer`. (An old one may still be waiting after a network outage, for as
 * long again as the outage lasted.) *link is what pairs are connected by; it belongs to the caller, which
 * ends it with them.
 *   EPW_ERR_NO_PATH   no wire leads there
 *   EPW_ERR_TIMEOUT   it does not answer within deadline_ns
 *   EPW_ERR_PEER      it has ended, or refuses this rank */
epw_status epw_fabric_link(epw_fabric *fabric, uint32_t peer, const epw_fabric_address *address,
                           uint64_t deadline_ns, epw_where where, uint64_t *link);

/* As long as somebody holds it epw_fabric_destroy does nothing: what a GPU may still write to stays with the
 * process, and so does the thread that reports to it. NULL is allowed. */
void epw_fabric_hold(epw_fabric *fabric);
void epw_fabric_let_go(epw_fabric *fabric);

epw_nic *epw_fabric_nic(const epw_fabric *fabric);

/* The rank that it was created for. */
uint32_t epw_fabric_rank(const epw_fabric *fabric);

/* The adapter of this number on which queue pairs are created; NULL: the soft NIC. The connections to other
 * fabrics stay in use, because their ends show which peers have ended. */
epw_mlx5 *epw_fabric_adapter(const epw_fabric *fabric, uint32_t number);

/* The number of places with queue pairs: its adapters, or the soft NIC. */
uint32_t epw_fabric_places(const epw_fabric *fabric);

/* Which of them has a lane's queue pairs, and the keys that their entries name. */
static inline uint32_t epw_fabric_place(const epw_fabric *fabric, uint32_t lane) {
    return lane % EPW_ADAPTERS_MAX % epw_fabric_places(fabric);
}

/* How fabrics name an adapter's queue pair to each other: its number has 24 bits, and two adapters may give
 * out the same one. */
static inline uint32_t epw_fabric_pair_name(uint32_t lane, uint32_t number) {
    return lane << 24 | number;
}

/* The adapter of the verbs wire, which carries what the soft NIC fetches; NULL: there is no such wire. */
epw_mlx5 *epw_fabric_carrier(const epw_fabric *fabric);

/* Whether an adapter accesses registered memory, which must then be resident; and whether nothing else
 * does. */
bool epw_fabric_pins(const epw_fabric *fabric);
bool epw_fabric_is_of_adapters(const epw_fabric *fabric);

/* The fake adapter, if it is one; else NULL. */
epw_fake *epw_fabric_fake(const epw_fabric *fabric);

/* EPW_DOORBELLS_* and EPW_RINGS_*, as its options say. Without a fabric, EPW_RINGS_HOST. */
uint32_t epw_fabric_doorbells(const epw_fabric *fabric);
uint32_t epw_fabric_rings(const epw_fabric *fabric);

/* What does not go as EPW_RINGS_AUTO or EPW_DOORBELLS_AUTO would have it. */
typedef enum epw_fallback {
    EPW_FALLBACK_RINGS,    /* queues that kernels post to are in host memory */
    EPW_FALLBACK_ROWS,     /* rows that kernels send are */
    EPW_FALLBACK_ARRIVALS, /* what peers send goes there */
    EPW_FALLBACK_DOORBELLS /* a thread of the host rings */
} epw_fallback;

/* Logs it as a warning, once for each fabric; this thread's last error is the reason. */
void epw_fabric_fall_back(epw_fabric *fabric, epw_fallback what);

/* The least depth of queues; 0: not specified, or no fabric. After how many entries of a signal its poster
 * rings. */
uint32_t epw_fabric_queue_depth(const epw_fabric *fabric);
uint32_t epw_fabric_doorbell_batch(const epw_fabric *fabric);

/* The description of a fabric's NIC: its kind, and the addresses of adapters, by lane. */
enum { EPW_FABRIC_NIC_BYTES = 1 + EPW_ADAPTERS_MAX * EPW_MLX5_ADDRESS_BYTES };
void epw_fabric_nic_write(const epw_fabric *fabric, unsigned char bytes[EPW_FABRIC_NIC_BYTES]);

/* EPW_ERR_NO_PATH if queues of this fabric cannot lead to a NIC of that kind. */
epw_status epw_fabric_nic_check(const epw_fabric *fabric, const unsigned char bytes[EPW_FABRIC_NIC_BYTES],
                                epw_where where);

/* The address of the adapter that has a lane's queue pairs; EPW_ERR_INVALID if the bytes are not an address.
 */
epw_status epw_fabric_nic_read(const unsigned char bytes[EPW_FABRIC_NIC_BYTES], uint32_t lane,
                               epw_where where, epw_mlx5_address *out);

/* Whether this is a forked child that inherited it, without its threads and connections. */
bool epw_fabric_inherited(const epw_fabric *fabric);

#endif
