/* A window as offered to the ranks of this host: its memory, its secret, and the holder of each rank's lease.
 *
 * A lease says: this incarnation may still write rank r's part of the window. An incarnation is one window of
 * one process. A mapping cannot be revoked, so the part is granted to another incarnation, even one of the
 * same process, only once the lease has ended; and a lease ends only when its holder has closed its import or
 * is dead. The same window may take its lease again: by asking it says that it has ended its own writes. */
#ifndef EPW_IPC_OFFER_H
#define EPW_IPC_OFFER_H

#include "device/device.h"
#include "ipc/process.h"

typedef struct epw_offer epw_offer;

/* The incarnation that holds a lease. */
typedef struct epw_holder {
    epw_nonce process;
    epw_nonce window; /* nonce of the holder's own window */
    uint32_t pid;     /* for error texts; 0 if the holder's pid namespace hides it */
} epw_holder;

/* Creates zeroed memory of at least `bytes` on `device`, shareable by one of `paths`, with a lease for each
 * of `ranks`, and offers it under a new nonce. The caller holds one reference. Called without the lock. */
epw_status epw_offer_create(int32_t device, uint32_t paths, uint32_t ranks, uint64_t bytes, epw_where where,
                            epw_offer **out);

/* The same of memory that the caller has allocated on a GPU, see epw_device.adopt. */
epw_status epw_offer_adopt(int32_t device, uint32_t ranks, void *memory, uint64_t bytes, epw_where where,
                           epw_offer **out);

/* The device, memory and nonce, valid while a reference is held. */
const epw_device *epw_offer_device(const epw_offer *offer);
const epw_memory *epw_offer_memory(const epw_offer *offer);
const epw_nonce *epw_offer_nonce(const epw_offer *offer);

/* Whether writes of a dying process may continue after its connections have closed, because a GPU makes
 * them. */
bool epw_offer_is_gpu(const epw_offer *offer);

/* Whether destroying the memory would remove it from under the mappings of other processes, so that it must
 * stay while one of them holds a lease. */
bool epw_offer_outlives_leases(const epw_offer *offer);

/* Withdraws the offer: nobody finds it any more. Called with the lock held. */
void epw_offer_withdraw(epw_offer *offer);

/* The offer with that nonce, NULL if there is none. Takes no reference. Called with the lock held, which must
 * stay held while the result is used. */
epw_offer *epw_offer_find(const epw_nonce *nonce);

/* The function that an owner registers to be called when the holder of `rank`'s lease rings. */
typedef void epw_ring_fn(void *context, uint32_t rank);

/* Registers it; NULL: no listener. Returns once no call of the previous function is running, so it must not
 * be called from within one. Called without the lock. */
void epw_offer_on_ring(epw_offer *offer, epw_ring_fn *fn, void *context);

/* Calls it on this thread, with the lock released meanwhile; returns false if the offer has been withdrawn.
 * Called with the lock held. */
bool epw_offer_ring(epw_offer *offer, uint32_t rank);

/* Takes a reference to an offer that was just found. Called with the lock held. */
void epw_offer_ref(epw_offer *offer);

/* Drops a reference; the last one destroys the memory. If the offer was inherited by a fork, only the
 * description is freed. Called without the lock. */
void epw_offer_unref(epw_offer *offer);

typedef enum epw_lease_verdict {
    EPW_LEASE_GRANTED,
    EPW_LEASE_NO_SUCH_RANK,
    EPW_LEASE_HELD
} epw_lease_verdict;

/* Takes rank's lease for `by`. EPW_LEASE_HELD: another incarnation, *holder, has it. Called with the lock
 * held. */
epw_lease_verdict epw_lease_take(epw_offer *offer, uint32_t rank, const epw_holder *by, epw_holder *holder);

/* Undoes one epw_lease_take. Called with the lock held. */
void epw_lease_end(epw_offer *offer, uint32_t rank);

/* Whether an incarnation other than that with this window, *holder, has rank's lease. Called with the lock
 * held. */
bool epw_lease_is_of_another(const epw_offer *offer, uint32_t rank, const epw_nonce *window,
                             epw_holder *holder);

/* Whether some rank's lease is held; *rank [out]: the first of them. Called with the lock held. */
bool epw_lease_is_held(const epw_offer *offer, uint32_t *rank);

#endif
