/* The socket on which a rank is dialed at one of its addresses. */
#ifndef EPW_NIC_LISTEN_H
#define EPW_NIC_LISTEN_H

#include "nic/address.h"

/* Listens at `address` on the first free port of first..last (any port if both are 0), and sets the port in
 * it; a local address has none. The socket does not block, and children do not inherit it (ipc/process.h).
 * Ports that another socket has, even one closed a moment ago, are skipped. EPW_ERR_SYSTEM names the address
 * and the range; *gone, which may be NULL, says whether this host does not have the address. */
epw_status epw_listen(epw_address *address, uint16_t first, uint16_t last, epw_where where, int *fd,
                      bool *gone);

#endif
