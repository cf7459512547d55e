/* The fabric of a process: its NIC, its connections to the NICs of other ranks, and the thread that accepts
 * them. All buffers of a rank share it. Connections go by way of sockets of this host: nothing else leads to
 * a peer yet. */
#ifndef EPW_NIC_FABRIC_H
#define EPW_NIC_FABRIC_H

#include "ipc/process.h"
#include "nic/soft.h"

/* What leads to a fabric, for a blob. A secret: who knows it can connect, if it is of the same user. */
typedef struct epw_fabric_address {
    epw_nonce boot_id;
    uint64_t network_namespace;
    epw_nonce name;
} epw_fabric_address;
#define EPW_FABRIC_ADDRESS_BYTES 40u

epw_fabric_address epw_fabric_address_of(const epw_fabric *fabric);
void epw_fabric_address_write(const epw_fabric_address *address, unsigned char *bytes);
void epw_fabric_address_read(const unsigned char *bytes, epw_fabric_address *out);

/* Whether a fabric of that address can be reached at all. */
bool epw_fabric_reaches(const epw_fabric *fabric, const epw_fabric_address *address);

/* A connection to the fabric of `peer`, one that stands or a new one; *link is what pairs are connected by.
 *   EPW_ERR_TIMEOUT   it does not answer within deadline_ns
 *   EPW_ERR_PEER      it has ended, or refuses this rank */
epw_status epw_fabric_link(epw_fabric *fabric, uint32_t peer, const epw_fabric_address *address,
                           uint64_t deadline_ns, epw_where where, uint64_t *link);

epw_nic *epw_fabric_nic(const epw_fabric *fabric);

/* Whether a fork has handed it on to this process, where its thread and its connections are not. */
bool epw_fabric_inherited(const epw_fabric *fabric);

#endif
