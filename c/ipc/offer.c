/* See offer.h. */
#include "ipc/offer.h"

#include <stdatomic.h>
#include <stdlib.h>

/* A rank's lease; free if it was taken 0 times. */
typedef struct lease {
    epw_holder holder;
    uint32_t times; /* one window may hold it more than once, across a renewed handshake */
} lease;

struct epw_offer {
    const epw_device *device;
    epw_memory memory;
    epw_nonce nonce;
    uint32_t generation; /* of the process that created it */
    atomic_uint references;
    /* Guarded by the process lock, as are the leases. */
    epw_offer *next; /* in `offers` */
    bool withdrawn;
    epw_ring_fn *ring; /* NULL: no listener */
    void *ring_context;
    uint32_t ringing; /* calls of it that are running */
    uint32_t ranks;
    lease leases[];
};

static epw_offer *offers;
static uint32_t offers_generation; /* generation of the process that owns the list */

/* The head of this process's list. Offers inherited by a fork are not on it. Called with the lock held. */
static epw_offer **own_offers(void) {
    if (offers_generation != epw_process_generation()) {
        offers = NULL;
        offers_generation = epw_process_generation();
    }
    return &offers;
}

static epw_status make(const epw_device *device, uint32_t ranks, epw_where where, epw_offer **out) {
    epw_offer *offer = calloc(1, sizeof *offer + ranks * sizeof(lease));
    if (offer == NULL)
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the leases of %u ranks", (unsigned)ranks);
    offer->device = device;
    offer->ranks = ranks;
    offer->generation = epw_process_generation();
    atomic_init(&offer->references, 1);
    epw_status status = epw_process_ready(where);
    if (status == EPW_OK) status = epw_nonce_make(where, &offer->nonce);
    if (status != EPW_OK) {
        free(offer);
        return status;
    }
    *out = offer;
    return EPW_OK;
}

/* Adds an offer to the list; `status`: whether it has got its memory. */
static epw_status publish(epw_offer *offer, epw_status status, epw_where where, epw_offer **out) {
    if (status != EPW_OK) {
        free(offer);
        return status;
    }
    epw_process_lock();
    bool kept = epw_fd_keep_from_child(offer->memory.fd);
    if (kept) {
        epw_offer **head = own_offers();
        offer->next = *head;
        *head = offer;
    }
    epw_process_unlock();
    if (!kept) {
        offer->device->destroy(&offer->memory);
        free(offer);
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory to register the window");
    }
    *out = offer;
    return EPW_OK;
}

epw_status epw_offer_create(int32_t ordinal, uint32_t paths, uint32_t ranks, uint64_t bytes, epw_where where,
                            epw_offer **out) {
    const epw_device *device = epw_device_of(ordinal);
    epw_offer *offer = NULL;
    epw_status status = make(device, ranks, where, &offer);
    if (status != EPW_OK) return status;
    return publish(offer, device->create(ordinal, paths, bytes, where, &offer->memory), where, out);
}

epw_status epw_offer_adopt(int32_t ordinal, uint32_t ranks, void *memory, uint64_t bytes, epw_where where,
                           epw_offer **out) {
    const epw_device *device = epw_device_of(ordinal);
    epw_offer *offer = NULL;
    epw_status status = make(device, ranks, where, &offer);
    if (status != EPW_OK) return status;
    return publish(offer, device->adopt(ordinal, memory, bytes, where, &offer->memory), where, out);
}

const epw_device *epw_offer_device(const epw_offer *offer) {
    return offer->device;
}

const epw_memory *epw_offer_memory(const epw_offer *offer) {
    return &offer->memory;
}

const epw_nonce *epw_offer_nonce(const epw_offer *offer) {
    return &offer->nonce;
}

bool epw_offer_is_gpu(const epw_offer *offer) {
    return offer->memory.origin.path != EPW_PATH_SHM;
}

bool epw_offer_outlives_leases(const epw_offer *offer) {
    return offer->memory.origin.path == EPW_PATH_IPC;
}

void epw_offer_withdraw(epw_offer *offer) {
    offer->withdrawn = true;
    for (epw_offer **link = own_offers(); *link; link = &(*link)->next) {
        if (*link != offer) continue;
        *link = offer->next;
        return;
    }
}

epw_offer *epw_offer_find(const epw_nonce *nonce) {
    epw_offer *found = NULL;
    for (epw_offer *offer = *own_offers(); offer; offer = offer->next)
        if (epw_nonce_equal(&offer->nonce, nonce))
            found = offer; /* no early exit: the time must not depend on the secret */
    return found;
}

void epw_offer_on_ring(epw_offer *offer, epw_ring_fn *fn, void *context) {
    epw_process_lock();
    offer->ring = fn;
    offer->ring_context = context;
    while (offer->ringing > 0) epw_process_wait();
    epw_process_unlock();
}

bool epw_offer_ring(epw_offer *offer, uint32_t rank) {
    if (offer->withdrawn) return false;
    epw_ring_fn *ring = offer->ring;
    void *context = offer->ring_context;
    if (ring == NULL) return true;
    offer->ringing++; /* also keeps the offer: its owner waits before it drops its reference */
    epw_process_unlock();
    ring(context, rank);
    epw_process_lock();
    if (--offer->ringing == 0) epw_process_notify();
    return true;
}

void epw_offer_ref(epw_offer *offer) {
    atomic_fetch_add_explicit(&offer->references, 1, memory_order_relaxed);
}

void epw_offer_unref(epw_offer *offer) {
    /* Release orders this owner's accesses before the decrement; acquire makes those of all owners visible to
     * the one that destroys. */
    if (atomic_fetch_sub_explicit(&offer->references, 1, memory_order_acq_rel) != 1) return;
    if (offer->generation == epw_process_generation()) {
        epw_process_lock();
        epw_fd_forget(offer->memory.fd);
        epw_process_unlock();
        offer->device->destroy(&offer->memory);
    } /* otherwise this is a forked child, which inherited neither mapping nor descriptor */
    free(offer);
}

static bool same_holder(const epw_holder *a, const epw_holder *b) {
    return epw_nonce_equal(&a->process, &b->process) && epw_nonce_equal(&a->window, &b->window);
}

epw_lease_verdict epw_lease_take(epw_offer *offer, uint32_t rank, const epw_holder *by, epw_holder *holder) {
    if (rank >= offer->ranks) return EPW_LEASE_NO_SUCH_RANK;
    lease *lease = &offer->leases[rank];
    if (lease->times > 0 && !same_holder(&lease->holder, by)) {
        *holder = lease->holder;
        return EPW_LEASE_HELD;
    }
    lease->holder = *by;
    lease->times++;
    return EPW_LEASE_GRANTED;
}

void epw_lease_end(epw_offer *offer, uint32_t rank) {
    offer->leases[rank].times--;
}

bool epw_lease_is_of_another(const epw_offer *offer, uint32_t rank, const epw_nonce *window,
                             epw_holder *holder) {
    if (rank >= offer->ranks || offer->leases[rank].times == 0) return false;
    *holder = offer->leases[rank].holder;
    return !epw_nonce_equal(&holder->window, window);
}

bool epw_lease_is_held(const epw_offer *offer, uint32_t *rank) {
    for (*rank = 0; *rank < offer->ranks; ++*rank)
        if (offer->leases[*rank].times > 0) return true;
    return false;
}
