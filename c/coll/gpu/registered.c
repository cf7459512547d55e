/* Memory of epw_comm_register. Its owner makes a window of the allocation that it lies in, which peers
 * import, and chooses offsets for it, behind those of the heap, by which ranks tell each other in an
 * operation where their buffers are. Each rank has a table, in device memory, of where it reaches what other
 * ranks have registered, and of what it may itself lend: see epw_coll_registered in kernels/coll/state.h. */
#include "coll/gpu/gpu.h"

#ifdef EPW_CUDA
#include "coll/notice.h"
#include "device/cuda.h"

#include <string.h>

/* Whether peers read memory at all in this communicator's operations. Elsewhere registrations are numbered
 * and exported as well, but no peer maps them, so they stay out of the table, which has no room for more
 * ranks. */
static bool reads_memory(const epw_comm *comm) {
    return !comm->gpu->queues && comm->layout.ranks <= EPW_COLL_BULK_RANKS;
}

/* ---- the table ---- */

/* Waits until the entry is there. With the lock held. */
static epw_status put(epw_comm *comm, uint32_t rank, uint32_t slot, epw_coll_registered what,
                      epw_where where) {
    struct epw_coll_gpu *g = comm->gpu;
    epw_coll_registered *entry = &g->pinned->registered[rank][slot];
    epw_status status = epw_cuda_enter(comm->config.device, where);
    if (status != EPW_OK) return status;
    *entry = what;
    cudaError_t error = cudaMemcpyAsync(&g->state->registered[rank][slot], entry, sizeof *entry,
                                        cudaMemcpyHostToDevice, comm->peers.gpu->stream);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "cudaMemcpyAsync of a registration");
    epw_cuda_leave();
    return status == EPW_OK ? epw_peers_settle_change(&comm->peers, where) : status;
}

static const epw_coll_registered nothing;

static bool is_mapped_by_all(const epw_comm *comm, const epw_coll_own *own, const epw_mask *members) {
    EPW_MASK_FOR(peer, members, comm->layout.ranks) {
        if (peer != comm->config.rank && own->mapped_by[peer] != epw_incarnation_of(&comm->peers, peer))
            return false;
    }
    return own->id != 0;
}

int epw_coll_gpu_lend(epw_comm *comm, const epw_mask *members) {
    struct epw_coll_gpu *g = comm->gpu;
    uint32_t rank = comm->config.rank;
    if (g->registrations == 0 || !reads_memory(comm)) return cudaSuccess;
    epw_coll_registered *row = g->pinned->registered[rank];
    for (uint32_t i = 0; i < EPW_COLL_REGISTRATIONS; i++)
        row[i] = is_mapped_by_all(comm, &g->own[i], members) ? g->own[i].at : nothing;
    return cudaMemcpyAsync(g->state->registered[rank], row, EPW_COLL_REGISTRATIONS * sizeof *row,
                           cudaMemcpyHostToDevice, comm->peers.gpu->stream);
}

/* ---- this rank's ---- */

static bool holds(const epw_coll_registered *at, uint64_t address, uint64_t bytes) {
    uint64_t offset = address - (uint64_t)(uintptr_t)at->base;
    return offset < at->bytes && bytes <= at->bytes - offset;
}

bool epw_coll_gpu_find_registered(const epw_comm *comm, const void *buffer, uint64_t bytes, bool later,
                                  uint64_t *at) {
    const struct epw_coll_gpu *g = comm->gpu;
    uint64_t address = (uint64_t)(uintptr_t)buffer;
    for (uint32_t i = 0; i < EPW_COLL_REGISTRATIONS && g->registrations > 0; i++) {
        const epw_coll_own *own = &g->own[i];
        bool is_lent = g->pinned->registered[comm->config.rank][i].bytes > 0;
        if (own->id == 0 || !holds(&own->at, address, bytes) || !(is_lent || later)) continue;
        *at = own->at.first + (address - (uint64_t)(uintptr_t)own->at.base);
        return true;
    }
    return false;
}

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
}

/* The memory must be new. */
static epw_status check_memory(const epw_comm *comm, const void *memory, uint64_t bytes, epw_where where) {
    uint64_t at = (uint64_t)(uintptr_t)memory, window = (uint64_t)(uintptr_t)epw_peers_own(&comm->peers);
    if (memory == NULL || at % 16 != 0)
        return epw_fail(EPW_ERR_INVALID, where, "memory is %p, must be a multiple of 16", memory);
    if (bytes == 0 || bytes > EPW_COLL_LENT_MOST)
        return epw_fail(bytes == 0 ? EPW_ERR_INVALID : EPW_ERR_LIMIT, where,
                        "bytes is %llu, must be in [1, %llu]", (unsigned long long)bytes,
                        (unsigned long long)EPW_COLL_LENT_MOST);
    if (at - window < comm->layout.window_bytes)
        return epw_fail(EPW_ERR_INVALID, where,
                        "memory is the communicator's own: what epw_comm_alloc gave need not be registered");
    for (const epw_coll_own *own = comm->gpu->own; own < comm->gpu->own + EPW_COLL_REGISTRATIONS; own++)
        if (own->id != 0 && overlap(at, bytes, (uint64_t)(uintptr_t)own->at.base, own->at.bytes))
            return epw_fail(EPW_ERR_INVALID, where, "memory overlaps that of registration %llu",
                            (unsigned long long)own->id);
    return EPW_OK;
}

/* Moves *first, a multiple of 16, behind all that it would overlap. */
static void pass_others(const epw_coll_own *all, uint64_t *first, uint64_t bytes) {
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < EPW_COLL_REGISTRATIONS; i++) {
            const epw_coll_registered *at = &all[i].at;
            if (all[i].id == 0 || !overlap(*first, bytes, at->first, at->bytes)) continue;
            *first = epw_align(at->first + at->bytes, 16);
            moved = true;
        }
    }
}

/* Finds a free entry, and offsets for it. */
static epw_status find_place(epw_comm *comm, uint64_t bytes, epw_where where, epw_coll_own **out,
                             uint64_t *first) {
    epw_coll_own *all = comm->gpu->own, *empty = all;
    while (empty < all + EPW_COLL_REGISTRATIONS && empty->id != 0) empty++;
    if (empty == all + EPW_COLL_REGISTRATIONS)
        return epw_fail(EPW_ERR_LIMIT, where, "%d ranges are registered, the most: deregister one of them",
                        EPW_REGISTRATIONS_MAX);
    *first = epw_align(comm->layout.heap_bytes, 16) + 16;
    pass_others(all, first, bytes);
    if (*first > EPW_COLL_LENT_MOST || bytes > EPW_COLL_LENT_MOST - *first)
        return epw_fail(EPW_ERR_LIMIT, where,
                        "bytes is %llu: heap_bytes and all that is registered may be %llu together",
                        (unsigned long long)bytes, (unsigned long long)EPW_COLL_LENT_MOST);
    *out = empty;
    return EPW_OK;
}

static epw_status find_own(epw_comm *comm, epw_registration id, epw_where where, epw_coll_own **out) {
    epw_coll_own *own = comm->gpu->own;
    while (own < comm->gpu->own + EPW_COLL_REGISTRATIONS && (id == 0 || own->id != id)) own++;
    *out = own;
    if (own < comm->gpu->own + EPW_COLL_REGISTRATIONS) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, where, "registration is %llu, which this communicator does not have",
                    (unsigned long long)id);
}

static epw_status add(epw_comm *comm, void *memory, uint64_t bytes, epw_where where, epw_registration *id) {
    epw_coll_own *own = NULL;
    uint64_t first = 0, offset = 0;
    epw_window *window = NULL;
    epw_status status = check_memory(comm, memory, bytes, where);
    if (status == EPW_OK) status = find_place(comm, bytes, where, &own, &first);
    if (status == EPW_OK)
        status = epw_window_adopt(comm->peers.window, memory, bytes, where, &offset, &window);
    if (status != EPW_OK) return status;
    *id = ++comm->gpu->registrations;
    *own = (epw_coll_own){.id = *id,
                          .at = {.first = first, .bytes = bytes, .base = memory},
                          .window = window,
                          .offset = offset};
    return EPW_OK;
}

static epw_status export(epw_comm *comm, epw_registration id, unsigned char *blob, size_t *length,
                         epw_where where) {
    epw_coll_own *own = NULL;
    size_t of_window = 0;
    epw_status status = find_own(comm, id, where, &own);
    if (status == EPW_OK)
        status =
            epw_window_export(own->window, (uint32_t)where.peer, NULL, blob + EPW_NOTICE_BYTES, &of_window);
    if (status != EPW_OK) return status;
    epw_notice n = {.id = id,
                    .first = own->at.first,
                    .bytes = own->at.bytes,
                    .offset = own->offset,
                    .slot = (uint32_t)(own - comm->gpu->own),
                    .owner = *epw_window_nonce(comm->peers.window)};
    epw_notice_write(&n, blob);
    *length = EPW_NOTICE_BYTES + of_window;
    return EPW_OK;
}

static epw_status lend(epw_comm *comm, epw_registration id, const epw_mask *ranks, epw_where where) {
    epw_coll_own *own = NULL;
    epw_status status = find_own(comm, id, where, &own);
    uint64_t mapped_by[EPW_COLL_BULK_RANKS] = {0};
    EPW_MASK_FOR(peer, ranks, EPW_MAX_RANKS) {
        epw_nonce window;
        uint64_t incarnation = 0;
        if (status != EPW_OK || peer == comm->config.rank) continue;
        epw_where to = epw_peers_where(&comm->peers, where.op, peer);
        status = epw_peers_connected(&comm->peers, to, &window, &incarnation);
        if (status == EPW_OK && reads_memory(comm)) mapped_by[peer] = incarnation;
    }
    if (status != EPW_OK || !reads_memory(comm)) return status;
    status = epw_peers_require_idle(&comm->peers, EPW_HELD, where);
    if (status == EPW_OK) status = epw_cuda_enter(comm->config.device, where);
    if (status != EPW_OK) return status;
    memcpy(own->mapped_by, mapped_by, sizeof mapped_by);
    int error = epw_coll_gpu_lend(comm, &comm->peers.active);
    if (error != cudaSuccess) status = epw_fail_cuda(error, where, "cudaMemcpyAsync of registrations");
    epw_cuda_leave();
    return status == EPW_OK ? epw_peers_settle_change(&comm->peers, where) : status;
}

/* Peers that have unmapped the memory read it no more, nor can they map it again. */
static epw_status drop(epw_comm *comm, epw_registration id, epw_where where) {
    epw_coll_own *own = NULL;
    uint32_t holder = 0;
    epw_status status = find_own(comm, id, where, &own);
    if (status == EPW_OK) status = epw_peers_require_idle(&comm->peers, EPW_HELD, where);
    if (status != EPW_OK) return status;
    if (!epw_window_retire(own->window, &holder)) {
        where.peer = (int)holder;
        return epw_fail(EPW_ERR_STATE, where,
                        "it still has registration %llu mapped: it must unmap it, or end",
                        (unsigned long long)id);
    }
    if (reads_memory(comm))
        status = put(comm, comm->config.rank, (uint32_t)(own - comm->gpu->own), nothing, where);
    if (status != EPW_OK) return status;
    epw_window_destroy(own->window);
    *own = (epw_coll_own){0};
    return EPW_OK;
}

/* ---- peers' ---- */

static epw_status check_free(const epw_coll_imported *at, const epw_notice *n, epw_where where) {
    if (at->id == 0) return EPW_OK;
    return epw_fail(EPW_ERR_STATE, where,
                    at->id == n->id ? "its registration %llu is mapped already"
                                    : "its registration %llu is still mapped: unmap it first",
                    (unsigned long long)at->id);
}

/* With the lock held. */
static epw_status install(epw_comm *comm, const epw_notice *n, epw_import *import, epw_where where) {
    uint32_t peer = (uint32_t)where.peer;
    epw_coll_imported *at = &comm->gpu->imported[peer][n->slot];
    uint64_t mapped = epw_import_bytes(import), incarnation = 0;
    if (!epw_notice_fits(n, mapped))
        return epw_fail(EPW_ERR_PEER, where, "the peer's allocation has %llu bytes, not %llu from %llu on",
                        (unsigned long long)mapped, (unsigned long long)n->bytes,
                        (unsigned long long)n->offset);
    epw_status status = check_free(at, n, where);
    if (status == EPW_OK) status = epw_notice_check_owner(n, &comm->peers, where, &incarnation);
    if (status == EPW_OK) status = epw_peers_require_idle(&comm->peers, EPW_HELD, where);
    if (status != EPW_OK) return status;
    epw_coll_registered what = {
        .first = n->first, .bytes = n->bytes, .base = epw_import_base(import) + n->offset};
    status = put(comm, peer, n->slot, what, where);
    if (status != EPW_OK) {
        (void)put(comm, peer, n->slot, nothing, where);
        return status;
    }
    *at = (epw_coll_imported){.id = n->id, .import = import, .incarnation = incarnation};
    return EPW_OK;
}

static void lock(epw_comm *comm) {
    pthread_mutex_lock(&comm->lock);
}

static epw_status unlock(epw_comm *comm, epw_status status) {
    pthread_mutex_unlock(&comm->lock);
    return status;
}

/* `blob`: of the window. */
static epw_status map(epw_comm *comm, const epw_notice *n, const unsigned char *blob, size_t length,
                      epw_where where) {
    epw_import *import = NULL;
    lock(comm);
    epw_status status = unlock(comm, check_free(&comm->gpu->imported[where.peer][n->slot], n, where));
    if (status != EPW_OK) return status;
    status = epw_window_import_memory(comm->peers.window, (uint32_t)where.peer, blob, length,
                                      comm->config.deadline_ns, &import);
    if (status != EPW_OK) return status;
    lock(comm);
    status = unlock(comm, install(comm, n, import, where));
    if (status != EPW_OK) epw_import_close(import);
    return status;
}

epw_status epw_coll_gpu_import_registration(epw_comm *comm, const unsigned char *blob, size_t length,
                                            epw_where where, epw_registration *id) {
    epw_notice n;
    uint64_t incarnation = 0;
    epw_status status =
        epw_notice_parse(blob, length, comm->layout.heap_bytes, EPW_COLL_LENT_MOST, where, &n);
    if (status == EPW_OK) status = epw_notice_check_owner(&n, &comm->peers, where, &incarnation);
    if (status == EPW_OK && reads_memory(comm))
        status = map(comm, &n, blob + EPW_NOTICE_BYTES, length - EPW_NOTICE_BYTES, where);
    if (status == EPW_OK) *id = n.id;
    return status;
}

/* With the lock held, when no kernel reads the memory. */
static epw_status unmap(epw_comm *comm, uint32_t peer, uint32_t slot, epw_where where) {
    epw_coll_imported *at = &comm->gpu->imported[peer][slot];
    epw_status status = put(comm, peer, slot, nothing, where);
    if (status != EPW_OK) return status;
    epw_import_close(at->import);
    *at = (epw_coll_imported){0};
    return EPW_OK;
}

static epw_status find_and_unmap(epw_comm *comm, epw_registration id, epw_where where) {
    uint32_t peer = (uint32_t)where.peer, slot = 0;
    if (!reads_memory(comm)) return EPW_OK;
    const epw_coll_imported *all = comm->gpu->imported[peer];
    while (slot < EPW_COLL_REGISTRATIONS && (id == 0 || all[slot].id != id)) slot++;
    if (slot == EPW_COLL_REGISTRATIONS) return EPW_OK;
    epw_status status = epw_peers_require_idle(&comm->peers, EPW_HELD, where);
    return status == EPW_OK ? unmap(comm, peer, slot, where) : status;
}

/* Kernels read nothing of a peer that has just been connected or disconnected. */
void epw_coll_gpu_forget_registered(epw_comm *comm, uint32_t peer) {
    if (comm->gpu == NULL || peer >= comm->layout.ranks || peer >= EPW_COLL_BULK_RANKS) return;
    lock(comm);
    pthread_mutex_lock(&comm->peers.lock);
    uint64_t now = epw_incarnation_of(&comm->peers, peer);
    pthread_mutex_unlock(&comm->peers.lock);
    for (uint32_t slot = 0; slot < EPW_COLL_REGISTRATIONS; slot++) {
        const epw_coll_imported *at = &comm->gpu->imported[peer][slot];
        if (at->id != 0 && at->incarnation != now)
            (void)unmap(comm, peer, slot, epw_peers_where(&comm->peers, "disconnect", peer));
    }
    unlock(comm, EPW_OK);
}

void epw_coll_gpu_close_registered(epw_comm *comm) {
    struct epw_coll_gpu *g = comm->gpu;
    for (uint32_t slot = 0; slot < EPW_COLL_REGISTRATIONS; slot++) {
        for (uint32_t peer = 0; peer < EPW_COLL_BULK_RANKS; peer++)
            epw_import_close(g->imported[peer][slot].import);
        epw_window_destroy(g->own[slot].window);
    }
}

/* ---- the calls ---- */

epw_status epw_coll_gpu_register(epw_comm *comm, void *memory, uint64_t bytes, epw_where where,
                                 epw_registration *id) {
    lock(comm);
    return unlock(comm, add(comm, memory, bytes, where, id));
}

epw_status epw_coll_gpu_export_registration(epw_comm *comm, epw_registration id, void *blob, size_t *length,
                                            epw_where where) {
    lock(comm);
    return unlock(comm, export(comm, id, blob, length, where));
}

epw_status epw_coll_gpu_lend_registration(epw_comm *comm, epw_registration id, const epw_mask *ranks,
                                          epw_where where) {
    lock(comm);
    return unlock(comm, lend(comm, id, ranks, where));
}

epw_status epw_coll_gpu_unmap_registration(epw_comm *comm, epw_registration id, epw_where where) {
    lock(comm);
    return unlock(comm, find_and_unmap(comm, id, where));
}

epw_status epw_coll_gpu_deregister(epw_comm *comm, epw_registration id, epw_where where) {
    lock(comm);
    return unlock(comm, drop(comm, id, where));
}
#endif
