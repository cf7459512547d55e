/* See mlx5.h: queue pairs. */
#include "nic/mlx5/parts.h"

#include "base/bits.h"
#include "base/log.h"
#include "nic/completion.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    PAGE = 4096,
    WORD_OFFSET =
        64, /* offset in the record's page: the doorbell of kernels that do not reach the register */
    COMPLETION_RECORD_OFFSET = 128, /* and the completion queue's own record; the queue pair's is at 0 */
    LOG_READS = 4,                  /* in flight at a time; every adapter allows that many */
    COMPLETION_LOG = 0              /* one entry, which each completion overwrites */
};

static uint32_t log_of(uint32_t depth) {
    uint32_t log = 0;
    while (UINT32_C(1) << log < depth) log++;
    return log;
}

/* ---- memory and registers ---- */

uint64_t epw_mlx5_pair_memory_bytes(uint32_t depth) {
    return 2 * PAGE + epw_align((uint64_t)depth * EPW_ENTRY_BYTES, PAGE);
}

static epw_status take_memory(epw_mlx5_pair *pair, epw_where where) {
    pair->bytes = epw_mlx5_pair_memory_bytes(pair->options.depth);
    if (pair->options.memory != NULL) {
        if ((uintptr_t)pair->options.memory % PAGE != 0)
            return epw_fail(EPW_ERR_INVALID, where, "memory of a queue pair does not begin on a page");
        pair->pages = pair->options.memory;
        memset(pair->pages, 0, pair->bytes);
        return EPW_OK;
    }
    void *at = mmap(NULL, pair->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a queue pair of %u entries",
                        pair->options.depth);
    /* The adapter continues to use these pages, so a forked child must not share them. */
    madvise(at, pair->bytes, MADV_DONTFORK);
    pair->pages = at;
    return EPW_OK;
}

static epw_status reach(epw_mlx5_pair *pair, unsigned char *address, size_t bytes, epw_mlx5_umem *out,
                        epw_where where) {
    epw_mlx5 *a = pair->adapter;
    int err = a->calls->umem(a->device, address, bytes, -1, out);
    if (err == 0) return EPW_OK;
    out->handle = NULL;
    return epw_fail_errno(err, where, "%s does not take %zu bytes of this process for a queue%s",
                          a->name.text, bytes,
                          err == ENOMEM ? ": raise the limit of locked memory (ulimit -l)" : "");
}

/* Registers a ring that is in GPU memory. */
static epw_status reach_ring(epw_mlx5_pair *pair, epw_where where) {
    epw_mlx5 *a = pair->adapter;
    const epw_mlx5_far *ring = pair->options.ring;
    size_t bytes = pair->bytes - (size_t)2 * PAGE;
    int by_descriptor = EOPNOTSUPP, by_address = 0;
    epw_mlx5_reach reach = EPW_MLX5_REACH_DMABUF;
    if (ring->dmabuf >= 0) by_descriptor = a->calls->umem(a->device, NULL, bytes, ring->dmabuf, &pair->ring);
    if (by_descriptor != 0) {
        reach = EPW_MLX5_REACH_PEERMEM;
        by_address = a->calls->umem(a->device, ring->address, bytes, -1, &pair->ring);
    }
    if (by_address != 0) {
        reach = EPW_MLX5_REACH_NONE;
        pair->ring.handle = NULL;
    }
    atomic_store_explicit(&a->ring_reach, reach, memory_order_relaxed);
    if (reach == EPW_MLX5_REACH_PEERMEM) epw_mlx5_tell_by_address(a, by_descriptor, where);
    if (reach != EPW_MLX5_REACH_NONE) return EPW_OK;
    return epw_fail(
        EPW_ERR_NO_PATH, where,
        "%s reaches no ring in GPU memory, neither by dma-buf (errno %d), which needs Linux 6.0 and "
        "the open GPU kernel modules, nor by nvidia_peermem (errno %d), which modprobe loads; "
        "EPWIRE_RINGS=host does without",
        a->name.text, by_descriptor, by_address);
}

/* Each part is a umem of its own: an offset within a umem would depend on a page size that the kernel
 * chooses. */
static epw_status reach_all(epw_mlx5_pair *pair, epw_where where) {
    epw_status status = reach(pair, pair->pages, PAGE, &pair->completion, where);
    if (status == EPW_OK) status = reach(pair, pair->pages + PAGE, PAGE, &pair->record, where);
    if (status != EPW_OK) return status;
    if (pair->options.ring != NULL) return reach_ring(pair, where);
    return reach(pair, pair->pages + (size_t)2 * PAGE, pair->bytes - (size_t)2 * PAGE, &pair->ring, where);
}

/* ---- commands ---- */

static epw_status create_object(epw_mlx5_pair *pair, uint32_t opcode, const epw_mlx5_in in, void **object,
                                uint32_t *number, epw_where where) {
    epw_mlx5 *a = pair->adapter;
    unsigned char out[EPW_MLX5_OUT_BYTES] = {0};
    int err = a->calls->create(a->device, in, EPW_MLX5_IN_BYTES, out, sizeof out, object);
    if (err != 0) *object = NULL;
    *number = epw_mlx5_number(out);
    return epw_mlx5_judge(a, opcode, err, out, where);
}

static epw_status create_objects(epw_mlx5_pair *pair, epw_where where) {
    epw_mlx5 *a = pair->adapter;
    epw_mlx5_in in;
    epw_mlx5_cq cq = {.umem = pair->completion.id,
                      .record_umem = pair->record.id,
                      .record = COMPLETION_RECORD_OFFSET,
                      .uar = pair->spare->uar.page,
                      .eq = a->event_queue,
                      .log_entries = COMPLETION_LOG};
    epw_mlx5_build_create_cq(in, &cq);
    epw_status status = create_object(pair, EPW_MLX5_CREATE_CQ, in, &pair->cq, &pair->cq_number, where);
    if (status != EPW_OK) return status;
    epw_mlx5_qp qp = {.umem = pair->ring.id,
                      .record_umem = pair->record.id,
                      .uar = pair->spare->uar.page,
                      .pd = a->pd_number,
                      .cq = pair->cq_number,
                      .log_entries = log_of(pair->options.depth),
                      .default_time = a->caps.chooses_time};
    epw_mlx5_build_create_qp(in, &qp);
    return create_object(pair, EPW_MLX5_CREATE_QP, in, &pair->qp, &pair->number, where);
}

/* With the pair's lock held. */
static epw_status modify(epw_mlx5_pair *pair, uint32_t opcode, const void *in, size_t bytes,
                         epw_where where) {
    unsigned char out[EPW_MLX5_OUT_BYTES] = {0};
    int err = pair->adapter->calls->modify(pair->qp, in, bytes, out, sizeof out);
    return epw_mlx5_judge(pair->adapter, opcode, err, out, where);
}

static epw_status modify_short(epw_mlx5_pair *pair, uint32_t opcode, epw_where where) {
    unsigned char in[EPW_MLX5_SHORT_BYTES];
    epw_mlx5_build_short(in, opcode, pair->number);
    return modify(pair, opcode, in, sizeof in, where);
}

/* ---- events ---- */

/* `stops`: the adapter still sends from it, and places what arrives, until the attendant has stopped it. */
static void tell_broken(epw_mlx5_pair *pair, bool stops) {
    if (atomic_exchange_explicit(&pair->broken, true, memory_order_acq_rel)) return;
    if (stops) {
        atomic_store_explicit(&pair->stops, true, memory_order_release);
        epw_mlx5_call_attendant(pair->adapter);
    }
    if (pair->options.broken != NULL) pair->options.broken(pair->options.context);
}

void epw_mlx5_heed(void *adapter, const epw_mlx5_event *event) {
    epw_mlx5 *a = adapter;
    bool all = event->kind != EPW_MLX5_EVENT_PAIR;
    /* A queue pair with an event of its own has stopped, and an adapter that has failed takes no commands. */
    bool stops = all && event->kind != EPW_MLX5_EVENT_FATAL;
    if (!epw_mlx5_concerns(a, event)) return;
    pthread_mutex_lock(&a->pairs_lock);
    /* Where one breaks, another thread may give up the others: by then each of them knows why. */
    for (epw_mlx5_pair *pair = a->pairs; all && pair != NULL; pair = pair->next)
        atomic_store_explicit(&pair->event, event->kind, memory_order_relaxed);
    for (epw_mlx5_pair *pair = a->pairs; pair != NULL; pair = pair->next)
        if (all || pair->number == event->number) tell_broken(pair, stops);
    pthread_mutex_unlock(&a->pairs_lock);
}

uint32_t epw_mlx5_pair_remote(const epw_mlx5_pair *pair) {
    return atomic_load_explicit(&pair->remote, memory_order_acquire);
}

/* With pairs_lock held. */
static void end_by_peer(epw_mlx5_pair *pair) {
    if (atomic_load_explicit(&pair->broken, memory_order_acquire)) return;
    atomic_store_explicit(&pair->ended, true, memory_order_relaxed);
    tell_broken(pair, true);
}

/* With pairs_lock held. NULL: there is none. Reports do not take a pair's lock, which is held during commands
 * to the adapter. */
static epw_mlx5_pair *pair_for(const epw_mlx5 *a, uint32_t peer, uint32_t number) {
    epw_mlx5_pair *pair = a->pairs;
    while (pair != NULL && (pair->number != number || pair->options.peer != peer)) pair = pair->next;
    return pair;
}

/* A peer may have connected its queue pair with this one, and ended it, before this rank connects: then its
 * number is kept until this rank does. */
void epw_mlx5_peer_ended(epw_mlx5 *a, uint32_t peer, uint32_t number, uint32_t remote) {
    pthread_mutex_lock(&a->pairs_lock);
    epw_mlx5_pair *pair = pair_for(a, peer, number);
    if (pair != NULL && epw_other_end_ends(&pair->other, epw_mlx5_pair_remote(pair), remote))
        end_by_peer(pair);
    pthread_mutex_unlock(&a->pairs_lock);
}

bool epw_mlx5_peer_connected(epw_mlx5 *a, uint32_t peer, uint32_t number, uint32_t remote) {
    bool takes = false;
    pthread_mutex_lock(&a->pairs_lock);
    epw_mlx5_pair *pair = pair_for(a, peer, number);
    if (pair != NULL && !epw_mlx5_pair_is_closed(pair)) {
        takes = epw_other_end_connects(&pair->other, epw_mlx5_pair_remote(pair), remote);
        if (!takes) end_by_peer(pair);
    }
    pthread_mutex_unlock(&a->pairs_lock);
    return takes;
}

void epw_mlx5_peer_heard(epw_mlx5 *a, uint32_t peer, uint32_t number, uint32_t remote) {
    pthread_mutex_lock(&a->pairs_lock);
    epw_mlx5_pair *pair = pair_for(a, peer, number);
    if (pair != NULL && epw_mlx5_pair_remote(pair) == remote)
        atomic_store_explicit(&pair->heard, true, memory_order_release);
    pthread_mutex_unlock(&a->pairs_lock);
}

bool epw_mlx5_pair_is_heard(const epw_mlx5_pair *pair) {
    return atomic_load_explicit(&pair->heard, memory_order_acquire);
}

/* This rank has connected; `again`: as before. Either the thread that reports an end has seen `remote`, or
 * this function sees the number that the thread has kept. */
static void meet(epw_mlx5_pair *pair, uint32_t remote, bool again) {
    pthread_mutex_lock(&pair->adapter->pairs_lock);
    atomic_store_explicit(&pair->remote, remote, memory_order_release);
    if (!again) atomic_store_explicit(&pair->heard, false, memory_order_relaxed);
    if (epw_other_end_is_met(&pair->other, remote)) end_by_peer(pair);
    pthread_mutex_unlock(&pair->adapter->pairs_lock);
}

const char *epw_mlx5_pair_trouble(const epw_mlx5_pair *pair, char text[EPW_MLX5_TEXT]) {
    if (atomic_load_explicit(&pair->ended, memory_order_relaxed)) {
        snprintf(text, EPW_MLX5_TEXT, "the peer has ended its queue pair: see there why; connect it again");
        return text;
    }
    unsigned kind = atomic_load_explicit(&pair->event, memory_order_relaxed);
    return epw_mlx5_event_text(pair->adapter, (epw_mlx5_event_kind)kind, text);
}

static void enter(epw_mlx5_pair *pair) {
    epw_mlx5 *a = pair->adapter;
    pthread_mutex_lock(&a->pairs_lock);
    pair->next = a->pairs;
    a->pairs = pair;
    pthread_mutex_unlock(&a->pairs_lock);
}

static void leave(epw_mlx5_pair *pair) {
    epw_mlx5 *a = pair->adapter;
    pthread_mutex_lock(&a->pairs_lock);
    epw_mlx5_pair **at = &a->pairs;
    while (*at != NULL && *at != pair) at = &(*at)->next;
    if (*at != NULL) *at = pair->next;
    pthread_mutex_unlock(&a->pairs_lock);
}

/* ---- life ---- */

epw_status epw_mlx5_pair_create(epw_mlx5 *adapter, const epw_mlx5_pair_options *options, epw_where where,
                                epw_mlx5_pair **out) {
    if (log_of(options->depth) > adapter->caps.log_qp_entries)
        return epw_fail(EPW_ERR_LIMIT, where,
                        "%s has rings of %u entries at most, %u are needed: lower max_tokens",
                        adapter->name.text, 1u << adapter->caps.log_qp_entries, options->depth);
    epw_mlx5_pair *pair = calloc(1, sizeof *pair);
    if (pair == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a queue pair");
    pair->adapter = adapter;
    pair->options = *options;
    pthread_mutex_init(&pair->lock, NULL);
    epw_status status = take_memory(pair, where);
    if (status == EPW_OK) {
        memset(pair->pages, 0xff, PAGE); /* before CREATE_CQ: no completion looks like this */
        status = reach_all(pair, where);
    }
    if (status == EPW_OK) status = epw_mlx5_take_register(adapter, where, &pair->spare);
    if (status == EPW_OK) status = create_objects(pair, where);
    if (status == EPW_OK) {
        bool unheard = options->poster == EPW_MLX5_KERNELS_UNHEARD;
        pair->memory = (epw_pair_memory){
            .entries = options->ring != NULL ? options->ring->address : pair->pages + (size_t)2 * PAGE,
            .depth = options->depth,
            .record = (uint32_t *)(void *)(pair->pages + PAGE),
            .doorbell =
                unheard ? (uint64_t *)(void *)(pair->pages + PAGE + WORD_OFFSET) : pair->spare->uar.reg,
            .completion = pair->pages};
        status = epw_mlx5_attend(pair, where);
        if (unheard) atomic_store_explicit(&adapter->rings_for_kernels, true, memory_order_relaxed);
    }
    if (status != EPW_OK) {
        bool gone = epw_mlx5_pair_destroy(pair);
        if (!gone && options->kept != NULL) *options->kept = true;
        return status;
    }
    if (options->poster == EPW_MLX5_KERNELS && adapter->calls->notice != NULL)
        adapter->calls->notice(pair->qp);
    enter(pair);
    *out = pair;
    return EPW_OK;
}

static bool end_object(const epw_mlx5_pair *pair, void *object, const char *what) {
    int err = object != NULL ? pair->adapter->calls->destroy(object) : 0;
    if (err != 0)
        epw_mlx5_tell_kept(pair->adapter, (int)pair->options.peer, err, "%s %u", what, pair->number);
    return err == 0;
}

static bool end_umem(const epw_mlx5_pair *pair, const epw_mlx5_umem *umem) {
    int err = umem->handle != NULL ? pair->adapter->calls->free_umem(umem->handle) : 0;
    if (err != 0)
        epw_mlx5_tell_kept(pair->adapter, (int)pair->options.peer, err, "memory %u of queue pair %u",
                           umem->id, pair->number);
    return err == 0;
}

/* Frees in reverse order. What the adapter keeps, it may still use, and what that needs stays too: all of a
 * queue pair, and the register, the record and the entry of a completion queue. The rest is freed. */
static bool give_back(epw_mlx5_pair *pair) {
    if (!end_object(pair, pair->qp, "queue pair")) return false;
    bool ended = end_object(pair, pair->cq, "the completion queue of queue pair");
    bool gone = ended;
    if (ended) {
        epw_mlx5_give_register(pair->adapter, pair->spare);
        pair->spare = NULL;
    }
    gone &= end_umem(pair, &pair->ring);
    if (ended) gone &= end_umem(pair, &pair->record);
    if (ended) gone &= end_umem(pair, &pair->completion);
    return gone;
}

bool epw_mlx5_pair_destroy(epw_mlx5_pair *pair) {
    if (pair == NULL) return true;
    epw_mlx5_leave_alone(pair);
    leave(pair);
    bool gone = give_back(pair), own = pair->pages != NULL && pair->options.memory == NULL;
    if (gone && own) munmap(pair->pages, pair->bytes);
    pthread_mutex_destroy(&pair->lock);
    free(pair->spare); /* its register stays with what uses it */
    free(pair);
    return gone;
}

uint32_t epw_mlx5_pair_number(const epw_mlx5_pair *pair) {
    return pair->number;
}

const epw_pair_memory *epw_mlx5_pair_memory(const epw_mlx5_pair *pair) {
    return &pair->memory;
}

bool epw_mlx5_registers_in_memory(const epw_mlx5 *adapter) {
    return adapter->calls->registers_in_memory;
}

/* Entries that were rung for, modulo 2^16: a queue never has more than half of that in flight. Writer of the
 * record: whoever rings. Writer of the completion: the adapter. */
static uint16_t rung_for(const epw_mlx5_pair *pair) {
    return (uint16_t)epw_swap_32(epw_load_acquire_32(pair->memory.record + 1));
}

static uint32_t last_completion(const epw_mlx5_pair *pair) {
    return epw_swap_32(epw_load_acquire_32((const uint32_t *)(const void *)pair->memory.completion + 15));
}

bool epw_mlx5_pair_idle(const epw_mlx5_pair *pair) {
    uint32_t last = last_completion(pair);
    uint16_t done = epw_completion_opcode(last) == EPW_COMPLETION_OK
                        ? (uint16_t)(epw_completion_index(last) + 1)
                        : 0; /* no completion yet */
    return epw_mlx5_pair_broken(pair) || done == rung_for(pair);
}

bool epw_mlx5_pair_has_rung(const epw_mlx5_pair *pair) {
    return rung_for(pair) != 0 || epw_completion_opcode(last_completion(pair)) == EPW_COMPLETION_OK;
}

/* ---- connecting and closing ---- */

static epw_status resolve(const epw_mlx5 *a, epw_mlx5_path *path, epw_where where) {
    if (!path->ethernet) return EPW_OK;
    int err = a->calls->resolve(a->pd, path->port, path->gid_index, path->gid, path->mac);
    if (err == 0) return EPW_OK;
    return epw_fail_errno(
        err, where,
        "%s finds no way to the peer's address, which ends in %u.%u.%u.%u: see that ping reaches it by "
        "this adapter's interface",
        a->name.text, path->gid[12], path->gid[13], path->gid[14], path->gid[15]);
}

static epw_mlx5_path path_to(const epw_mlx5_pair *pair, uint32_t remote, const epw_mlx5_address *to,
                             uint64_t deadline_ns) {
    const epw_mlx5 *a = pair->adapter;
    epw_mlx5_path path = {.ethernet = a->port.ethernet,
                          .port = a->port_number,
                          .remote = remote,
                          .mtu = to->mtu < a->port.mtu ? to->mtu : a->port.mtu,
                          .lid = to->lid,
                          .gid_index = a->gid_index,
                          .udp_port = epw_mlx5_udp_port(pair->number, remote),
                          .hop_limit = a->options.hop_limit,
                          .traffic_class = a->options.traffic_class,
                          .service_level = a->options.service_level,
                          .atomics = a->caps.atomic,
                          .in_order = a->caps.reorders && a->caps.keeps_order,
                          .log_reads = LOG_READS};
    memcpy(path.gid, to->gid, sizeof path.gid);
    epw_mlx5_choose_retries(deadline_ns, &path);
    return path;
}

/* With the lock held. */
static epw_status go_up(epw_mlx5_pair *pair, const epw_mlx5_path *path, epw_where where) {
    epw_mlx5_in in;
    epw_status status = EPW_OK;
    pair->shut = false;
    if (pair->state != EPW_MLX5_STATE_RST) status = modify_short(pair, EPW_MLX5_2RST, where);
    if (status != EPW_OK) return status;
    pair->state = EPW_MLX5_STATE_RST;
    epw_mlx5_build_rst2init(in, pair->number, path);
    status = modify(pair, EPW_MLX5_RST2INIT, in, sizeof in, where);
    if (status != EPW_OK) return status;
    pair->state = EPW_MLX5_STATE_INIT;
    epw_mlx5_build_init2rtr(in, pair->number, path);
    status = modify(pair, EPW_MLX5_INIT2RTR, in, sizeof in, where);
    if (status != EPW_OK) return status;
    pair->state = EPW_MLX5_STATE_RTR;
    epw_mlx5_build_rtr2rts(in, pair->number, path);
    status = modify(pair, EPW_MLX5_RTR2RTS, in, sizeof in, where);
    if (status == EPW_OK) pair->state = EPW_MLX5_STATE_RTS;
    return status;
}

epw_status epw_mlx5_pair_connect(epw_mlx5_pair *pair, uint32_t remote, const epw_mlx5_address *address,
                                 uint64_t deadline_ns, epw_where where) {
    const epw_mlx5 *a = pair->adapter;
    if (address->ethernet != a->port.ethernet)
        return epw_fail(EPW_ERR_NO_PATH, where, "the peer's adapter is on %s, this rank's, %s, on %s",
                        address->ethernet ? "Ethernet" : "InfiniBand", a->name.text,
                        a->port.ethernet ? "Ethernet" : "InfiniBand");
    epw_mlx5_path path = path_to(pair, remote, address, deadline_ns);
    epw_status status = resolve(a, &path, where);
    if (status != EPW_OK) return status;
    pthread_mutex_lock(&pair->lock);
    bool there = pair->state == EPW_MLX5_STATE_RTS && epw_mlx5_pair_remote(pair) == remote &&
                 memcmp(&pair->to, address, sizeof pair->to) == 0;
    if (!there) status = go_up(pair, &path, where);
    if (status == EPW_OK) pair->to = *address;
    pthread_mutex_unlock(&pair->lock);
    if (status == EPW_OK) meet(pair, remote, there);
    return status;
}

void epw_mlx5_pair_ring(epw_mlx5_pair *pair) {
    if (pair->adapter->calls->rung != NULL) pair->adapter->calls->rung(pair->qp);
}

static epw_where nowhere(const char *op) {
    return (epw_where){op, -1, -1};
}

/* The last error says why the pair has not stopped. */
static void tell_unstopped(const epw_mlx5_pair *pair) {
    epw_error_detail detail = EPW_ERROR_DETAIL_INIT;
    epw_last_error_detail(&detail);
    epw_log(EPW_LOG_NIC, EPW_LOG_WARN, (epw_where){"", pair->adapter->rank, (int)pair->options.peer},
            "queue pair %u has not stopped: %s", pair->number, detail.text);
}

/* With the pair's lock held. Whether it has stopped; one that was never connected has nothing to stop, and
 * not all firmware takes 2ERR for it. Of several tries the first one that fails is logged. */
static bool stop(epw_mlx5_pair *pair, const char *op) {
    if (pair->state == EPW_MLX5_STATE_RST) return true;
    if (pair->state == EPW_MLX5_STATE_ERR && pair->stopped) return true;
    pair->stopped = modify_short(pair, EPW_MLX5_2ERR, nowhere(op)) == EPW_OK;
    if (!pair->stopped && pair->state != EPW_MLX5_STATE_ERR) tell_unstopped(pair);
    pair->state = EPW_MLX5_STATE_ERR;
    return pair->stopped;
}

void epw_mlx5_pair_break(epw_mlx5_pair *pair) {
    pthread_mutex_lock(&pair->lock);
    stop(pair, "break");
    pthread_mutex_unlock(&pair->lock);
    tell_broken(pair, false);
}

/* Breaks a queue pair that is not in RTS, or whose command fails. */
bool epw_mlx5_pair_close(epw_mlx5_pair *pair) {
    epw_mlx5_in in;
    pthread_mutex_lock(&pair->lock);
    epw_mlx5_build_refuse(in, pair->number);
    bool up = pair->state == EPW_MLX5_STATE_RTS;
    if (up && !pair->shut)
        pair->shut = modify(pair, EPW_MLX5_RTS2RTS, in, sizeof in, nowhere("close")) == EPW_OK;
    if (!pair->shut) pair->shut = stop(pair, "close");
    bool shut = pair->shut;
    atomic_store_explicit(&pair->closed, true, memory_order_release);
    pthread_mutex_unlock(&pair->lock);
    return shut;
}

bool epw_mlx5_pair_is_closed(const epw_mlx5_pair *pair) {
    return atomic_load_explicit(&pair->closed, memory_order_acquire) || epw_mlx5_pair_broken(pair);
}

/* Writer of the completion: the adapter, which writes this word last. Reader: any thread. */
bool epw_mlx5_pair_broken(const epw_mlx5_pair *pair) {
    return atomic_load_explicit(&pair->broken, memory_order_acquire) ||
           epw_completion_opcode(last_completion(pair)) == EPW_COMPLETION_ERROR;
}
