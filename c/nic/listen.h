/* The socket on which a rank is dialed at one of its addresses. */
#ifndef EPW_NIC_LISTEN_H
#define EPW_NIC_LISTEN_H

#include "nic/address.h"

/* Listens at `address` on the first free port of first..last, on any where both are 0, and sets its port; at
 * a local one without. The socket does not block and is kept from children (ipc/process.h). Ports that
 * another socket has, be it one that has only just been closed, are passed over. EPW_ERR_SYSTEM names the
 * address and the range; *gone, which may be NULL, says whether this host does not have the address. */
epw_status epw_listen(epw_address *address, uint16_t first, uint16_t last, epw_where where, int *fd,
                      bool *gone);

#endif
