/* A communicator: creating, connecting to each peer, changing the membership, destroying. */
#include "coll/parts.h"
#include "coll/gpu/gpu.h"
#include "coll/heap.h"
#include "coll/pull.h"
#include "coll/point.h"

#include "base/log.h"
#include "base/thread.h"
#include "device/cuda.h"
#include "ipc/process.h"
#include "nic/fabric.h"
#include "peer/gpu_suspects.h"
#include "peer/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- callbacks of the peer floor ---- */

static void lock(void *user) {
    pthread_mutex_lock(&((epw_comm *)user)->lock);
}

static void unlock(void *user) {
    pthread_mutex_unlock(&((epw_comm *)user)->lock);
}

static epw_status check_idle(void *user, epw_where where) {
    const epw_comm *comm = user;
    for (const epw_job *job = comm->jobs; job != NULL; job = job->next)
        if (job->left > 0)
            return epw_fail(EPW_ERR_STATE, where, "operations are under way: wait for work %llu, or drop it",
                            (unsigned long long)job->id);
    return EPW_OK;
}

static epw_status part(void *user, uint32_t peer, epw_where where) {
    (void)where;
    epw_comm_part(user, peer);
    return EPW_OK;
}

static epw_status begin_epoch(void *user, const epw_mask *active, uint64_t epoch_word, epw_where where) {
    (void)where;
    epw_comm_begin_epoch(user, active, epoch_word);
    return EPW_OK;
}

static epw_mask suspects(void *user, epw_mask *silent) {
    return epw_peers_suspects(&((const epw_comm *)user)->peers, silent);
}

static epw_stretch footprint(void *user, uint32_t source, uint32_t lane, uint32_t area) {
    return epw_coll_footprint(&((const epw_comm *)user)->layout, source, lane, area);
}

/* These words permit a slot to be written again: its message has been taken, and what was posted has been
 * sent. */
static uint32_t permits(uint32_t word) {
    return word == EPW_WORD_TAKEN || word == EPW_WORD_EPOCH ? UINT32_MAX : 0;
}

static void revoke(void *user, const epw_mask *members) {
    epw_comm *comm = user;
    EPW_MASK_FOR(peer, members, comm->layout.ranks) epw_peers_suspect_revoked(&comm->peers, peer);
    epw_bell_toll(&comm->peers);
}

static const epw_peers_user user_of_floor = {
    .lock = lock,
    .unlock = unlock,
    .check_idle = check_idle,
    .part = part,
    .begin_epoch = begin_epoch,
    .footprint = footprint,
    .suspects = suspects,
    .permits = permits,
    .revoke = revoke,
};

/* ---- life ---- */

enum { TERMS = 10 };

static void terms_of(const epw_comm_config *c, const epw_coll_layout *l, epw_term terms[TERMS]) {
    const epw_term all[TERMS] = {{"communicator version", c->version},
                                 {"ranks", c->ranks},
                                 {"permission of queues, from fabric and paths,", l->entries > 0},
                                 {"slots", l->slots},
                                 {"slot_bytes", l->slot_bytes},
                                 {"heap_bytes", l->heap_bytes},
                                 {"copy_engines_from", c->copy_engines_from},
                                 {"deadline_ns", c->deadline_ns},
                                 {"sms", l->blocks},
                                 {"use of lines, from the links between GPUs,", l->keeps_lines}};
    memcpy(terms, all, sizeof all);
}

static epw_status make_host_parts(epw_comm *comm, epw_where where) {
    comm->of = calloc(comm->layout.ranks, sizeof *comm->of);
    comm->rows = calloc(comm->layout.ranks, sizeof *comm->rows);
    if (comm->of == NULL || comm->rows == NULL || !epw_points_make(comm))
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a communicator of %u ranks",
                        comm->layout.ranks);
    epw_nonce nonce;
    epw_status status = epw_nonce_make(where, &nonce);
    memcpy(comm->secret, nonce.bytes, sizeof comm->secret);
    if (status == EPW_OK) status = epw_pull_choose(where, &comm->pull_from);
    if (status == EPW_OK) status = epw_numerics_choose(where, &comm->numerics);
    if (status == EPW_OK) status = epw_sums_choose(where, &comm->sums);
    return status;
}

#ifdef EPW_CUDA
static bool keeps_lines(int32_t device) {
    return epw_cuda_keeps_lines(device);
}

static bool on_gpu(const epw_comm *comm) {
    return comm->config.device != EPW_DEVICE_HOST;
}

static const epw_peers_user *choose_user(const epw_comm *comm) {
    return on_gpu(comm) ? &epw_coll_gpu_user : &user_of_floor;
}

static epw_status make_parts(epw_comm *comm, epw_where where) {
    return on_gpu(comm) ? epw_coll_gpu_open(comm, where) : make_host_parts(comm, where);
}

/* False if the GPU may still write into the windows. Then the process keeps them, and the leases, so that
 * nobody gets memory that is still written. */
static bool leave_gpu(epw_comm *comm, bool inherited) {
    if (inherited) {
        epw_coll_gpu_abandon(comm);
        return true;
    }
    if (!epw_coll_gpu_leave(comm)) return false;
    epw_coll_gpu_close(comm);
    return true;
}

static bool take_gpu_fault(epw_comm *comm) {
    return comm->gpu != NULL && epw_coll_gpu_take_fault(comm);
}

/* Writer: a kernel. */
static uint64_t operations_copied(const epw_comm *comm) {
    return comm->gpu != NULL ? __atomic_load_n(&comm->gpu->pinned->copied, __ATOMIC_RELAXED) : 0;
}

/* After the peer was connected or disconnected, even if that has failed. */
static epw_status forget_former(epw_comm *comm, uint32_t peer, epw_status status) {
    epw_coll_gpu_forget_registered(comm, peer);
    return status;
}
#else
static bool keeps_lines(int32_t device) {
    (void)device;
    return false;
}

static epw_status forget_former(epw_comm *comm, uint32_t peer, epw_status status) {
    (void)comm, (void)peer;
    return status;
}

static bool take_gpu_fault(epw_comm *comm) {
    (void)comm;
    return false;
}

static uint64_t operations_copied(const epw_comm *comm) {
    (void)comm;
    return 0;
}

static const epw_peers_user *choose_user(const epw_comm *comm) {
    (void)comm;
    return &user_of_floor;
}

static epw_status make_parts(epw_comm *comm, epw_where where) {
    return make_host_parts(comm, where);
}

static bool leave_gpu(epw_comm *comm, bool inherited) {
    (void)comm, (void)inherited;
    return true;
}
#endif

static void tell_plan(const epw_comm *comm) {
    const epw_comm_config *c = &comm->config;
    char device[32] = "on the host", pulls[48] = "", heap[EPW_LOG_SIZE], window[EPW_LOG_SIZE];
    if (!epw_log_on(EPW_LOG_PLAN, EPW_LOG_INFO)) return;
    if (c->device != EPW_DEVICE_HOST) snprintf(device, sizeof device, "on GPU %d", c->device);
    if (comm->gpu == NULL && comm->pull_from != UINT64_MAX)
        snprintf(pulls, sizeof pulls, ", pulls from %llu bytes on", (unsigned long long)comm->pull_from);
    epw_log(EPW_LOG_PLAN, EPW_LOG_INFO, (epw_where){"create", (int)c->rank, -1},
            "communicator of %u ranks %s: rings of %u slots of %u bytes%s, heap %s, deadline %.10g ms; "
            "window %s",
            c->ranks, device, comm->layout.slots, comm->layout.slot_bytes, pulls,
            epw_log_size(c->heap_bytes, heap), (double)c->deadline_ns / 1e6,
            epw_log_size(comm->layout.window_bytes, window));
}

epw_status epw_comm_create(const epw_comm_config *config, epw_comm **out) {
    if (out == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"create", -1, -1}, "out is NULL");
    epw_coll_layout layout;
    bool queues = config != NULL && config->fabric != NULL && (config->paths & EPW_PATH_QUEUE);
    epw_status status = epw_coll_plan("create", config, queues, &layout);
    if (status != EPW_OK) return status;
    epw_where where = {"create", (int)config->rank, -1};
    epw_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a communicator");
    comm->config = *config;
    layout.keeps_lines = config->device != EPW_DEVICE_HOST && !queues && keeps_lines(config->device);
    comm->layout = layout;
    comm->queue_end = &comm->queue;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_mutex_init(&comm->heap_lock, NULL);
    epw_term terms[TERMS];
    terms_of(config, &layout, terms);
    epw_peers_options options = {.window = {.rank = config->rank,
                                            .ranks = config->ranks,
                                            .device = config->device,
                                            .paths = config->paths,
                                            .queues = config->fabric != NULL,
                                            .bytes = layout.window_bytes,
                                            .terms = terms,
                                            .term_count = TERMS},
                                 .lanes = epw_coll_lanes(config),
                                 .fabric = config->fabric,
                                 .depth = epw_coll_queue_depth(config, &layout),
                                 .deadline_ns = config->deadline_ns,
                                 .user = choose_user(comm),
                                 .user_context = comm,
                                 .what = "communicator"};
    status = epw_peers_create(&comm->peers, &options);
    epw_peers_choose_waits(&comm->peers, 1);
    if (status == EPW_OK && !epw_heap_make(comm))
        status = epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for the list of the heap's pieces");
    if (status == EPW_OK) status = make_parts(comm, where);
    if (status == EPW_OK) status = epw_peers_open_probe(&comm->peers);
    if (status != EPW_OK) {
        epw_comm_destroy(comm);
        return status;
    }
    tell_plan(comm);
    *out = comm;
    return EPW_OK;
}

static void free_parts(epw_comm *comm) {
    epw_points_free(comm);
    epw_ops_free(comm->queue);
    while (comm->jobs != NULL) {
        epw_job *job = comm->jobs;
        comm->jobs = job->next;
        free(job);
    }
    free(comm->scratch);
    free(comm->rows);
    free(comm->of);
}

static void part_from_all(epw_comm *comm) {
    for (uint32_t peer = 0; comm->of != NULL && peer < comm->layout.ranks; peer++)
        if (peer != comm->config.rank) epw_comm_part(comm, peer);
}

void epw_comm_leave(epw_comm *comm) {
    if (comm->gpu != NULL || epw_peers_inherited(&comm->peers)) return;
    lock(comm);
    part_from_all(comm);
    unlock(comm);
}

bool epw_comm_try_destroy(epw_comm *comm) {
    if (comm == NULL) return true;
    bool inherited = epw_peers_inherited(&comm->peers);
    if (!inherited) {
        epw_peers_close_probe(&comm->peers);
        part_from_all(comm); /* they do not wait for this rank any longer */
    }
    /* If the GPU may still write, the process keeps the communicator: see epw_buffer_destroy. */
    if (!leave_gpu(comm, inherited)) return false;
    epw_peers_destroy(&comm->peers);
    if (comm->of != NULL) free_parts(comm);
    epw_heap_free(comm);
    if (!inherited) {
        pthread_mutex_destroy(&comm->heap_lock);
        pthread_mutex_destroy(&comm->lock);
    }
    free(comm);
    return true;
}

void epw_comm_destroy(epw_comm *comm) {
    (void)epw_comm_try_destroy(comm);
}

/* ---- peers and membership ---- */

epw_status epw_comm_check(const epw_comm *comm, const char *op) {
    if (comm != NULL) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, (epw_where){op, -1, -1}, "comm is NULL");
}

epw_status epw_comm_check_given(const epw_comm *comm, const char *op, const char *name, const void *given) {
    epw_status status = epw_comm_check(comm, op);
    if (status != EPW_OK || given != NULL) return status;
    return epw_fail(EPW_ERR_INVALID, epw_comm_where(comm, op), "%s is NULL", name);
}

epw_status epw_comm_export(epw_comm *comm, uint32_t peer, void *blob, size_t *length) {
    epw_status status = epw_comm_check(comm, "export");
    return status == EPW_OK ? epw_peers_export(&comm->peers, peer, blob, length) : status;
}

epw_status epw_comm_connect(epw_comm *comm, uint32_t peer, const void *blob, size_t length) {
    return epw_comm_connect_within(comm, peer, blob, length, comm != NULL ? comm->config.deadline_ns : 1);
}

epw_status epw_comm_connect_within(epw_comm *comm, uint32_t peer, const void *blob, size_t length,
                                   uint64_t deadline_ns) {
    epw_status status = epw_comm_check(comm, "connect");
    if (status != EPW_OK) return status;
    return forget_former(comm, peer, epw_peers_connect(&comm->peers, peer, blob, length, deadline_ns));
}

epw_status epw_comm_disconnect(epw_comm *comm, uint32_t peer) {
    epw_status status = epw_comm_check(comm, "disconnect");
    if (status != EPW_OK) return status;
    return forget_former(comm, peer, epw_peers_disconnect(&comm->peers, peer));
}

epw_status epw_comm_probe(epw_comm *comm, uint32_t peer, uint64_t timeout_ns) {
    epw_status status = epw_comm_check(comm, "probe");
    return status == EPW_OK ? epw_peers_probe(&comm->peers, peer, timeout_ns) : status;
}

uint32_t epw_comm_path(const epw_comm *comm, uint32_t peer) {
    return comm != NULL ? epw_peers_path(&((epw_comm *)(uintptr_t)comm)->peers, peer) : EPW_PATH_NONE;
}

uint32_t epw_comm_wire(const epw_comm *comm, uint32_t peer) {
    return comm != NULL ? epw_peers_wire(&((epw_comm *)(uintptr_t)comm)->peers, peer) : 0;
}

const char *epw_comm_trouble(const epw_comm *comm, uint32_t peer, char *text) {
    *text = '\0';
    return comm != NULL ? epw_peers_trouble(&((epw_comm *)(uintptr_t)comm)->peers, peer, text) : text;
}

epw_status epw_comm_set_active(epw_comm *comm, const epw_mask *active, uint32_t epoch, uint64_t step) {
    epw_status status = epw_comm_check_given(comm, "set_active", "active", active);
    return status == EPW_OK ? epw_peers_set_active(&comm->peers, active, epoch, step) : status;
}

epw_status epw_comm_revoke(epw_comm *comm, const epw_mask *peers) {
    epw_status status = epw_comm_check_given(comm, "revoke", "peers", peers);
    return status == EPW_OK ? epw_peers_revoke(&comm->peers, peers) : status;
}

epw_status epw_comm_suspects(epw_comm *comm, int32_t *suspects, void *stream) {
    epw_status status = epw_comm_check(comm, "suspects");
    if (status != EPW_OK) return status;
    return epw_peers_enqueue_suspects(&comm->peers, suspects, stream, epw_comm_where(comm, "suspects"));
}

epw_status epw_comm_membership(const epw_comm *comm, epw_membership *membership) {
    epw_status status = epw_comm_check_given(comm, "membership", "membership", membership);
    if (status != EPW_OK) return status;
    if (membership->size != sizeof *membership)
        return epw_fail(EPW_ERR_INVALID, epw_comm_where(comm, "membership"),
                        "membership.size is %u, this library's is %zu: use EPW_MEMBERSHIP_INIT",
                        membership->size, sizeof *membership);
    epw_peers_membership(&((epw_comm *)(uintptr_t)comm)->peers, membership);
    return EPW_OK;
}

epw_status epw_comm_traffic(const epw_comm *comm, epw_traffic *traffic, epw_peer_traffic *peers) {
    epw_status status = epw_comm_check(comm, "traffic");
    if (status == EPW_OK)
        status = epw_peers_traffic(&comm->peers, epw_comm_where(comm, "traffic"), traffic, peers);
    if (status == EPW_OK) traffic->operations_copied = operations_copied(comm);
    return status;
}

epw_status epw_comm_take_fault(epw_comm *comm, uint32_t *faulted) {
    epw_status status = epw_comm_check_given(comm, "take_fault", "faulted", faulted);
    if (status != EPW_OK) return status;
    pthread_mutex_lock(&comm->lock);
    *faulted = comm->faulted || take_gpu_fault(comm);
    comm->faulted = false;
    pthread_mutex_unlock(&comm->lock);
    return EPW_OK;
}

epw_status epw_comm_newest_epoch(epw_comm *comm, uint32_t *epoch) {
    epw_status status = epw_comm_check_given(comm, "newest_epoch", "epoch", epoch);
    return status == EPW_OK ? epw_peers_newest_epoch(&comm->peers, epoch) : status;
}

epw_status epw_comm_diverged(epw_comm *comm, uint32_t epoch, uint64_t step, epw_mask *ranks) {
    epw_status status = epw_comm_check_given(comm, "diverged", "ranks", ranks);
    return status == EPW_OK ? epw_peers_diverged(&comm->peers, epoch, step, ranks) : status;
}
