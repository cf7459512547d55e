/* The importer's side of the fd server: fetches a window's memory and, with it, the lease. */
#ifndef EPW_IPC_FD_CLIENT_H
#define EPW_IPC_FD_CLIENT_H

#include "ipc/fd_message.h"
#include "ipc/offer.h"

/* A window's memory and the right to map it. */
typedef struct epw_fd_grant {
    int memory_fd; /* close it once the memory is mapped */
    int lease_fd;  /* unmap first, then epw_fd_leave */
} epw_fd_grant;

/* Asks the server `server` for the window and rank that `request` names (magic is filled in). Returns by
 * until_ns (epw_now_ns), even if the server never answers. exporter_pid and deadline_ns (as the caller gave
 * it) are for error texts.
 *   EPW_ERR_TIMEOUT  the exporter does not answer
 *   EPW_ERR_PEER     the exporter is gone, out of descriptors, refused, or belongs to another user
 *   EPW_ERR_FENCED   another incarnation holds the rank's lease; the text names its process
 *   EPW_ERR_SYSTEM   this process is out of descriptors, or a system call failed
 *   EPW_ERR_NO_PATH  the exporter could not see this process end, as GPU memory requires */
epw_status epw_fd_fetch(const epw_nonce *server, const epw_fd_request *request, uint32_t exporter_pid,
                        uint64_t deadline_ns, uint64_t until_ns, epw_where where, epw_fd_grant *out);

/* Tells the exporter's host to look at what this process has written to the window. Does not wait: an earlier
 * ring that is still unread counts for this one too. EPW_ERR_PEER: the exporter has ended or has destroyed
 * the window. Any thread. */
epw_status epw_fd_ring(int lease_fd, uint32_t exporter_pid, epw_where where);

/* Ends a lease: tells the exporter that this process can no longer write, and closes the connection. Does not
 * wait. Called without the lock. */
void epw_fd_leave(int lease_fd);

/* Returns EPW_ERR_FENCED with its text: `holder` has the lease of `rank` that `self` asks for. */
epw_status epw_fenced(epw_where where, uint32_t rank, const epw_holder *self, const epw_holder *holder);

#endif
