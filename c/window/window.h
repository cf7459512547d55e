/* A rank's window, and its imports of the peers' windows. Each has one owner: one thread at a time uses a
 * window or import, except for epw_window_import, which only reads the window, and epw_import_ring; any
 * threads may use different ones. The bytes themselves are governed by the protocol, not by this file.
 *
 * A peer is an incarnation: its rank and its window's nonce. The right to write a rank's part of a window is
 * a lease, which one incarnation holds at a time (ipc/offer.h). A mapping cannot be revoked, so the owner of
 * an import gives it up in this order:
 *   1. it starts nothing more that writes there, and waits for what it has started, on a GPU too;
 *   2. it posts its last words there (DROPPED), while the window is still mapped;
 *   3. it calls epw_import_close, which first unmaps the window and then returns the lease. */
#ifndef EPW_WINDOW_WINDOW_H
#define EPW_WINDOW_WINDOW_H

#include <stdbool.h>

#include "base/status.h"
#include "ipc/process.h"
#include "window/blob.h"
#include "window/options.h"

typedef struct epw_window epw_window;
typedef struct epw_import epw_import;

/* Creates this rank's window: zeroed, resident, page-aligned. The options are copied. EPW_ERR_NO_PATH: the
 * device is a GPU that is not available. */
epw_status epw_window_create(const epw_window_options *options, epw_window **out);

/* Makes a window of memory that the caller has allocated on the GPU of `like`, a window of the same rank from
 * which it takes everything else: peers import it by epw_window_import_memory, and may read it. *offset
 * [out]: where `memory` begins in it, since peers map all of the allocation. EPW_ERR_INVALID: the memory
 * cannot be mapped by peers. */
epw_status epw_window_adopt(epw_window *like, void *memory, uint64_t bytes, epw_where where, uint64_t *offset,
                            epw_window **out);

/* Withdraws a window that nobody has imported any more; called again, does nothing. False: rank *holder [out]
 * still has it, and nothing has changed. */
bool epw_window_retire(epw_window *window, uint32_t *holder);

/* Withdraws the window from peers that have not imported it yet, and frees it. Kernels of this rank that use
 * it must have ended. Peers that have it mapped keep the memory until they close their import. NULL is
 * allowed. */
void epw_window_destroy(epw_window *window);

/* Whether this process inherited the window by a fork: its memory and that of its imports are not mapped
 * here, its threads do not run, and threads that do not exist may hold the caller's locks. All that remains
 * is to destroy it and to close its imports, which touches none of these. NULL is not inherited. */
bool epw_window_inherited(const epw_window *window);

const epw_nonce *epw_window_nonce(const epw_window *window);

/* Host or device memory according to options.device; the same holds for imports. */
unsigned char *epw_window_base(const epw_window *window);

/* Writes the blob for `peer`, another rank of the group: blob [out, EPW_BLOB_MAX bytes], length [out].
 * `queue`: describes the queues that lead to this rank; NULL: none does. May be called any number of
 * times. */
epw_status epw_window_export(epw_window *window, uint32_t peer, const epw_blob_queue *queue, void *blob,
                             size_t *length);

/* Reads what `peer` has exported for own's rank, and checks what can be checked without asking the peer. The
 * errors are among those of epw_window_import. */
epw_status epw_window_read_blob(const epw_window *own, uint32_t peer, const void *blob, size_t length,
                                epw_blob *out);

/* Makes the window that `peer` exported for own's rank usable by this process, and holds its lease until
 * epw_import_close. Returns within deadline_ns, or a few milliseconds later. Two ranks on GPUs between which
 * queues exist either both use queues, or each maps the other's window.
 *   EPW_ERR_INVALID   not a blob, damaged, or another rank's
 *   EPW_ERR_MISMATCH  a term differs, or the size, or one window is on the host and the other on a GPU
 *   EPW_ERR_NO_PATH   neither the same process nor the same host, or options.paths excludes what would do, or
 *                     this rank's GPU cannot access the peer's, or the peer could not see this process end
 *   EPW_ERR_FENCED    another window, of this process or of another one, still has the peer's window imported
 *                     as this rank or, for GPU memory, its process has left without closing that import and
 *                     has not ended yet. The same window may import it again any number of times: by asking
 *                     it says that it has ended its own writes. For a peer behind a queue: another window of
 *                     its rank still has own's window imported
 *   EPW_ERR_TIMEOUT   the peer does not answer, or the window is too large to be mapped in the time
 *   EPW_ERR_PEER      the peer is gone or refused */
epw_status epw_window_import(epw_window *own, uint32_t peer, const void *blob, size_t length,
                             uint64_t deadline_ns, epw_import **out);

/* The same of a window that epw_window_adopt has made, whatever its size. */
epw_status epw_window_import_memory(epw_window *own, uint32_t peer, const void *blob, size_t length,
                                    uint64_t deadline_ns, epw_import **out);

unsigned char *epw_import_base(const epw_import *import);
uint64_t epw_import_bytes(const epw_import *import);

/* EPW_PATH_THREAD: the peer's own mapping, at the peer's own address. EPW_PATH_SHM, EPW_PATH_VMM,
 * EPW_PATH_IPC: a mapping of this process. EPW_PATH_QUEUE: nothing is mapped; epw_import_queue returns what
 * the peer says of its queues. */
uint32_t epw_import_path(const epw_import *import);

/* Whether copy engines, for the GPU `ordinal`, copy from this memory in the order in which the copies were
 * enqueued, whatever their streams are: then a copy that waits for a peer holds up those that the peer waits
 * for. Seen of memory of cudaMalloc that another GPU has in the same process (H200, driver 580), not of VMM
 * memory, and not of memory that other processes have shared by CUDA IPC. */
bool epw_import_orders_copies(const epw_import *import, int32_t ordinal);
const epw_blob_queue *epw_import_queue(const epw_import *import);

/* The nonce of the peer's window. */
const epw_nonce *epw_import_window(const epw_import *import);

/* Tells the process that owns the peer's window that something was written there for its attention. The
 * function that the owner has registered sees what was written before. Does not wait: rings that have not
 * been handled yet count once. Any thread, until epw_import_close. EPW_ERR_PEER: the owner has ended or has
 * destroyed its window; for a window shared by CUDA IPC, whose memory outlives that, only that the owner has
 * ended. */
epw_status epw_import_ring(epw_import *import, epw_where where);

/* From now on calls fn when the importer of rank `rank` rings: on a thread of the library's, or of the
 * importer if it is in this process, with no lock held, and possibly several times at once. fn must return
 * soon, and must neither destroy a window nor call this function. NULL: no listener, as at first. Returns
 * once no call of the previous fn is running; so does epw_window_destroy. */
void epw_window_on_ring(epw_window *window, void (*fn)(void *context, uint32_t rank), void *context);

/* In place of epw_import_close: the window stays mapped, and the lease held, until epw_imports_close. `kept`:
 * a list, empty if it is NULL. */
void epw_import_keep(epw_import *import, epw_import **kept);
void epw_imports_close(epw_import *kept);

/* Unmaps, then ends the lease. The caller's writes, including those of its kernels, must be done. NULL is
 * allowed. */
void epw_import_close(epw_import *import);

#endif
