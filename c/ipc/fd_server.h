/* One thread per process that passes the memory of its windows to other processes of this host, and knows
 * from their open connections which of them still have it mapped. Holders of GPU memory are watched until
 * they have said goodbye or ended, see fd_message.h.
 *
 * It serves only processes of its own user that know a window's secret. A client that is silent, slow or
 * sends garbage costs one descriptor for EPW_FD_REQUEST_NS and delays nobody: when EPW_FD_MAX_PENDING clients
 * have sent nothing, the longest silent one is closed for the next, and pending requests are answered first.
 * If the server is out of descriptors, it tells each client so. */
#ifndef EPW_IPC_FD_SERVER_H
#define EPW_IPC_FD_SERVER_H

#include "ipc/offer.h"

#define EPW_FD_REQUEST_NS  5000000000u /* a connection without a request after this time is closed */
#define EPW_FD_MAX_PENDING 256         /* the most connections without a request */

/* Takes a reference to the process's server, starting it if there is none. id [out] names it, see
 * epw_fd_address. */
epw_status epw_fd_server_acquire(epw_where where, epw_nonce *id);

/* Drops a reference. The last one ends the thread and closes its descriptors before it returns, unless leases
 * of memory that must outlive its window remain: then the thread ends after these. */
void epw_fd_server_release(void);

/* Ends the leases of an offer that is being withdrawn, unless its memory must outlive them: such leases hold
 * references until their holders have left. Called with the lock held. */
void epw_fd_server_forget(const epw_offer *offer);

/* Ends the leases whose holders have left by now. The thread does so by itself, but may not have got to it
 * when a client is about to be refused. Called with the lock held. */
void epw_fd_server_reap(void);

#endif
