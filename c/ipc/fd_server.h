/* One thread per process that hands the memory of its windows to other processes of this host, and knows by
 * their open connections which of them still have it mapped. Holders of a GPU's memory are watched until they
 * have said goodbye or ended, see fd_message.h.
 *
 * It serves only processes of its own user that name a window's secret. A silent, slow or garbage client
 * costs one descriptor for EPW_FD_REQUEST_NS and delays nobody: beyond EPW_FD_MAX_PENDING of them, whoever
 * has said nothing for longest makes room for the next, and requests that are there are answered first.
 * Without a descriptor left the server tells each client so. */
#ifndef EPW_IPC_FD_SERVER_H
#define EPW_IPC_FD_SERVER_H

#include "ipc/offer.h"

#define EPW_FD_REQUEST_NS  5000000000u /* a connection that has not sent its request by then is closed */
#define EPW_FD_MAX_PENDING 256         /* connections without a request */

/* Takes a use of the process's server, starting it if there is none. id [out] names it, see epw_fd_address.
 */
epw_status epw_fd_server_acquire(epw_where where, epw_nonce *id);

/* Drops a use. The last one ends the thread and closes its descriptors before it returns; but where leases
 * remain of memory that outlives them, the thread ends after these. */
void epw_fd_server_release(void);

/* Ends the leases of an offer that is being withdrawn, unless its memory outlives them: then they hold
 * references until their holders have left. Lock held. */
void epw_fd_server_forget(const epw_offer *offer);

/* Ends the leases whose holders have left by now. The thread does so by itself, but may not have come to it
 * yet when somebody is about to be refused. Lock held. */
void epw_fd_server_reap(void);

#endif
