/* A window as the ranks of this host may import it: its memory, its secret, and who holds which rank's lease.
 *
 * A lease says "this incarnation may still write rank r's part of the window". An incarnation is one window
 * of one process. A mapping cannot be revoked, so the part is given to another incarnation, be it of the same
 * process, only once the lease has ended; and a lease ends only when its holder has let go of its import or
 * is dead. The same window may take its lease again: it has ended its own writes, and says so by asking. */
#ifndef EPW_IPC_OFFER_H
#define EPW_IPC_OFFER_H

#include "device/device.h"
#include "ipc/process.h"

typedef struct epw_offer epw_offer;

/* The incarnation that holds a lease. */
typedef struct epw_holder {
    epw_nonce process;
    epw_nonce window; /* of the rank's own window */
    uint32_t pid;     /* for error texts; 0 where the holder's namespace hides it */
} epw_holder;

/* Creates zeroed memory of at least `bytes` on `device`, shareable by one of `paths`, with a lease for each
 * of `ranks`, and offers it under a new nonce. The caller holds one reference. Lock not held. */
epw_status epw_offer_create(int32_t device, uint32_t paths, uint32_t ranks, uint64_t bytes, epw_where where,
                            epw_offer **out);

/* The memory and whose it is, valid while a reference is held. */
const epw_device *epw_offer_device(const epw_offer *offer);
const epw_memory *epw_offer_memory(const epw_offer *offer);
const epw_nonce *epw_offer_nonce(const epw_offer *offer);

/* Whether writes of a dying process may go on after its connections have closed: a GPU makes them. */
bool epw_offer_is_gpu(const epw_offer *offer);

/* Whether the memory, once destroyed, is gone from under the mappings of other processes: it has to stay
 * while one of them holds a lease. */
bool epw_offer_outlives_leases(const epw_offer *offer);

/* Lets nobody find the offer any more. Lock held. */
void epw_offer_withdraw(epw_offer *offer);

/* The offer of that nonce, NULL if there is none. No reference is taken. Lock held, also while the result is
 * used. */
epw_offer *epw_offer_find(const epw_nonce *nonce);

/* What the owner of an offer has called when the holder of `rank`'s lease rings. */
typedef void epw_ring_fn(void *context, uint32_t rank);

/* Sets it; NULL: nobody listens. Returns once a former one runs nowhere, so not from within one. Lock not
 * held. */
void epw_offer_on_ring(epw_offer *offer, epw_ring_fn *fn, void *context);

/* Calls it on this thread, with the lock released meanwhile; false if the offer has been withdrawn. Lock
 * held. */
bool epw_offer_ring(epw_offer *offer, uint32_t rank);

/* Takes a reference on an offer that was just found. Lock held. */
void epw_offer_ref(epw_offer *offer);

/* Drops a reference; the last one destroys the memory. Of what a fork has handed on, it frees only the
 * description. Lock not held. */
void epw_offer_unref(epw_offer *offer);

typedef enum epw_lease_verdict {
    EPW_LEASE_GRANTED,
    EPW_LEASE_NO_SUCH_RANK,
    EPW_LEASE_HELD
} epw_lease_verdict;

/* Takes rank's lease for `by`. EPW_LEASE_HELD: another incarnation has it, *holder says which. Lock held. */
epw_lease_verdict epw_lease_take(epw_offer *offer, uint32_t rank, const epw_holder *by, epw_holder *holder);

/* Ends one taking of rank's lease. Lock held. */
void epw_lease_end(epw_offer *offer, uint32_t rank);

#endif
