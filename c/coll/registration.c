/* The calls for memory of the caller's. On a GPU gpu/registered.c does what they say. On the host peers read
 * any memory without it: there registrations are only numbered, and their blobs say whose they are. */
#include "coll/gpu/gpu.h"
#include "coll/notice.h"

#ifdef EPW_CUDA
#define BY_DEVICE(comm, on_gpu, on_host) ((comm)->gpu != NULL ? (on_gpu) : (on_host))
#else
#define BY_DEVICE(comm, on_gpu, on_host) (on_host)
#endif

/* ---- on the host ---- */

static epw_status add(epw_comm *comm, const void *memory, uint64_t bytes, epw_where where,
                      epw_registration *id) {
    if (memory == NULL || bytes == 0)
        return epw_fail(EPW_ERR_INVALID, where, "memory is %p of %llu bytes, must be at least one byte",
                        memory, (unsigned long long)bytes);
    pthread_mutex_lock(&comm->lock);
    *id = ++comm->registrations;
    pthread_mutex_unlock(&comm->lock);
    return EPW_OK;
}

static epw_status check_number(epw_comm *comm, epw_registration id, epw_where where) {
    pthread_mutex_lock(&comm->lock);
    bool known = id != 0 && id <= comm->registrations;
    pthread_mutex_unlock(&comm->lock);
    if (known) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, where, "registration is %llu, which this communicator does not have",
                    (unsigned long long)id);
}

/* A notice of no memory in particular. */
static epw_status export(epw_comm *comm, epw_registration id, void *blob, size_t *length, epw_where where) {
    epw_status status = check_number(comm, id, where);
    if (status != EPW_OK) return status;
    epw_notice n = {.id = id, .first = 16, .bytes = 1, .owner = *epw_window_nonce(comm->peers.window)};
    epw_notice_write(&n, blob);
    *length = EPW_NOTICE_BYTES;
    return EPW_OK;
}

static epw_status import(epw_comm *comm, const void *blob, size_t length, epw_where where,
                         epw_registration *id) {
    epw_notice n;
    uint64_t incarnation = 0;
    epw_status status = epw_notice_parse(blob, length, 0, UINT64_MAX, where, &n);
    if (status == EPW_OK) status = epw_notice_check_owner(&n, &comm->peers, where, &incarnation);
    if (status == EPW_OK) *id = n.id;
    return status;
}

static epw_status lend(epw_comm *comm, epw_registration id, const epw_mask *ranks, epw_where where) {
    epw_status status = check_number(comm, id, where);
    EPW_MASK_FOR(peer, ranks, EPW_MAX_RANKS) {
        epw_nonce window;
        uint64_t incarnation = 0;
        if (status != EPW_OK || peer == comm->config.rank) continue;
        epw_where to = epw_peers_where(&comm->peers, where.op, peer);
        status = epw_peers_connected(&comm->peers, to, &window, &incarnation);
    }
    return status;
}

/* ---- the calls ---- */

epw_status epw_comm_register(epw_comm *comm, void *memory, uint64_t bytes, epw_registration *registration) {
    epw_status status = epw_comm_check_given(comm, "register", "registration", registration);
    if (status != EPW_OK) return status;
    epw_where where = epw_comm_where(comm, "register");
    return BY_DEVICE(comm, epw_coll_gpu_register(comm, memory, bytes, where, registration),
                     add(comm, memory, bytes, where, registration));
}

epw_status epw_comm_export_registration(epw_comm *comm, epw_registration registration, uint32_t peer,
                                        void *blob, size_t *length) {
    epw_status status = epw_comm_check_given(comm, "export", "blob", blob);
    if (status == EPW_OK) status = epw_comm_check_given(comm, "export", "length", length);
    if (status == EPW_OK) status = epw_peers_check(&comm->peers, "export", peer);
    if (status != EPW_OK) return status;
    epw_where where = epw_peers_where(&comm->peers, "export", peer);
    return BY_DEVICE(comm, epw_coll_gpu_export_registration(comm, registration, blob, length, where),
                     export(comm, registration, blob, length, where));
}

epw_status epw_comm_import_registration(epw_comm *comm, uint32_t peer, const void *blob, size_t length,
                                        epw_registration *registration) {
    epw_status status = epw_comm_check_given(comm, "import", "blob", blob);
    if (status == EPW_OK) status = epw_comm_check_given(comm, "import", "registration", registration);
    if (status == EPW_OK) status = epw_peers_check(&comm->peers, "import", peer);
    if (status != EPW_OK) return status;
    epw_where where = epw_peers_where(&comm->peers, "import", peer);
    return BY_DEVICE(comm, epw_coll_gpu_import_registration(comm, blob, length, where, registration),
                     import(comm, blob, length, where, registration));
}

epw_status epw_comm_lend(epw_comm *comm, epw_registration registration, const epw_mask *ranks) {
    epw_status status = epw_comm_check_given(comm, "lend", "ranks", ranks);
    if (status != EPW_OK) return status;
    epw_where where = epw_comm_where(comm, "lend");
    return BY_DEVICE(comm, epw_coll_gpu_lend_registration(comm, registration, ranks, where),
                     lend(comm, registration, ranks, where));
}

epw_status epw_comm_unmap(epw_comm *comm, uint32_t peer, epw_registration registration) {
    epw_status status = epw_comm_check(comm, "unmap");
    if (status == EPW_OK) status = epw_peers_check(&comm->peers, "unmap", peer);
    if (status != EPW_OK) return status;
    (void)registration; /* on the host nothing is mapped */
    return BY_DEVICE(
        comm,
        epw_coll_gpu_unmap_registration(comm, registration, epw_peers_where(&comm->peers, "unmap", peer)),
        EPW_OK);
}

epw_status epw_comm_deregister(epw_comm *comm, epw_registration registration) {
    epw_status status = epw_comm_check(comm, "deregister");
    if (status != EPW_OK) return status;
    epw_where where = epw_comm_where(comm, "deregister");
    return BY_DEVICE(comm, epw_coll_gpu_deregister(comm, registration, where),
                     check_number(comm, registration, where));
}
