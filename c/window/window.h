/* A rank's window, and its imports of the peers' windows. One owner each: a window or import is used by one
 * thread at a time; different ones by any threads. The bytes themselves obey the protocol, not this file. */
#ifndef EPW_WINDOW_WINDOW_H
#define EPW_WINDOW_WINDOW_H

#include "base/status.h"

typedef struct epw_window epw_window;
typedef struct epw_import epw_import;

/* Creates this rank's window of at least `bytes` bytes on config.device: zeroed, resident, page-aligned.
 * config has passed epw_plan_make and is copied. EPW_ERR_NO_PATH: the device is a GPU that is not to be had.
 */
epw_status epw_window_create(const epw_config *config, uint64_t bytes, epw_window **out);

/* Takes the window from the peers that have yet to import it, and frees it. Kernels of this rank that use it
 * have ended. Those that have it mapped keep
 * the memory until they close their import. NULL is allowed. */
void epw_window_destroy(epw_window *window);

/* Host or device memory, as config.device says; so are imports. */
unsigned char *epw_window_base(const epw_window *window);

/* Writes the blob for `peer`: blob [out, EPW_BLOB_MAX bytes], length [out]. May be called any number of
 * times. */
epw_status epw_window_export(epw_window *window, uint32_t peer, void *blob, size_t *length);

/* Makes the window that `peer` exported for own's rank usable by this process, and holds its lease until
 * epw_import_close. Returns within deadline_ns.
 *   EPW_ERR_INVALID   not a blob, damaged, or another rank's
 *   EPW_ERR_MISMATCH  a field of the configuration differs
 *   EPW_ERR_NO_PATH   neither the same process nor the same host, or config.paths excludes what would do, or
 *                     this rank's GPU can not access the peer's, or the peer could not see this process end
 *   EPW_ERR_FENCED    another process still has the window mapped as this rank, or, where it is a GPU's, has
 *                     left without closing its import and has not ended yet
 *   EPW_ERR_TIMEOUT   the peer does not answer
 *   EPW_ERR_PEER      the peer is gone or refused */
epw_status epw_window_import(epw_window *own, uint32_t peer, const void *blob, size_t length,
                             uint64_t deadline_ns, epw_import **out);

unsigned char *epw_import_base(const epw_import *import);

/* EPW_PATH_THREAD: the peer's own mapping, at the peer's own address. EPW_PATH_SHM, EPW_PATH_VMM,
 * EPW_PATH_IPC: a mapping of this process. */
uint32_t epw_import_path(const epw_import *import);

/* Unmaps, then ends the lease. The caller's writes, those of its kernels too, must be done. NULL is allowed.
 */
void epw_import_close(epw_import *import);

#endif
