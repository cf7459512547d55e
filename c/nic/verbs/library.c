/* See calls.h: the table that calls libibverbs, which nic/mlx5/library.h has opened. */
#include "nic/mlx5/library.h"
#include "nic/verbs/abi.h"
#include "nic/verbs/calls.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- functions ---- */

static struct {
    epw_abi_channel *(*create_channel)(void *context);
    int (*destroy_channel)(epw_abi_channel *channel);
    int (*get_cq_event)(epw_abi_channel *channel, epw_abi_cq **cq, void **name);
    void (*ack_cq_events)(epw_abi_cq *cq, unsigned count);
    epw_abi_cq *(*create_cq)(void *context, int entries, void *name, epw_abi_channel *channel, int vector);
    int (*destroy_cq)(epw_abi_cq *cq);
    epw_abi_qp *(*create_qp)(void *pd, epw_abi_qp_init *init);
    int (*modify_qp)(epw_abi_qp *qp, epw_abi_qp_attr *attr, int mask);
    int (*destroy_qp)(epw_abi_qp *qp);
} f;

static const struct {
    const char *name, *version;
    void *place;
} functions[] = {
    {"ibv_create_comp_channel", "IBVERBS_1.0", &f.create_channel},
    {"ibv_destroy_comp_channel", "IBVERBS_1.0", &f.destroy_channel},
    {"ibv_get_cq_event", "IBVERBS_1.1", &f.get_cq_event},
    {"ibv_ack_cq_events", "IBVERBS_1.1", &f.ack_cq_events},
    {"ibv_create_cq", "IBVERBS_1.1", &f.create_cq},
    {"ibv_destroy_cq", "IBVERBS_1.1", &f.destroy_cq},
    {"ibv_create_qp", "IBVERBS_1.1", &f.create_qp},
    {"ibv_modify_qp", "IBVERBS_1.1", &f.modify_qp},
    {"ibv_destroy_qp", "IBVERBS_1.1", &f.destroy_qp},
};

static bool complete;

static void load(void) {
    complete = true;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *function = epw_verbs_function(functions[i].name, functions[i].version);
        memcpy(functions[i].place, &function, sizeof function);
        complete &= function != NULL;
    }
}

/* The library sets errno on most failures, but not on all. */
static int why(void) {
    return errno != 0 ? errno : EIO;
}

/* ---- notifications of completions ---- */

static int open_channel(void *device, void **channel, int *fd) {
    if (!complete) return ENOSYS;
    errno = 0;
    epw_abi_channel *made = f.create_channel(epw_verbs_context(device));
    if (made == NULL) return why();
    int flags = fcntl(made->fd, F_GETFL);
    if (flags < 0 || fcntl(made->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        int err = errno;
        f.destroy_channel(made);
        return err;
    }
    *channel = made;
    *fd = made->fd;
    return 0;
}

static int close_channel(void *channel) {
    return f.destroy_channel(channel);
}

/* Acknowledges the notification at once: destroying a completion queue waits for all acknowledgements. */
static int announced(void *channel, uint64_t *name) {
    epw_abi_cq *cq;
    void *of;
    errno = 0;
    if (f.get_cq_event(channel, &cq, &of) != 0) return why();
    f.ack_cq_events(cq, 1);
    *name = (uint64_t)(uintptr_t)of;
    return 0;
}

/* ---- queues ---- */

typedef struct queue {
    const epw_abi_functions *call; /* from its context */
    epw_abi_cq *cq;
    epw_abi_qp *qp;
} queue;

static const epw_abi_functions *functions_of(void *device) {
    return (const epw_abi_functions *)(const void *)epw_verbs_context(device);
}

static int close_queue(void *opened) {
    queue *q = opened;
    int err = q->qp != NULL ? f.destroy_qp(q->qp) : 0;
    if (err != 0) return err;
    if (q->cq != NULL) f.destroy_cq(q->cq); /* without its queue pair it gets no more completions */
    free(q);
    return 0;
}

static void leave_queue(void *opened) {
    free(opened);
}

static int make_parts(queue *q, void *device, void *pd, void *channel, uint32_t depth, uint64_t name) {
    errno = 0;
    q->call = functions_of(device);
    void *named = (void *)(uintptr_t)name;
    q->cq = f.create_cq(epw_verbs_context(device), (int)depth, named, channel, 0);
    if (q->cq == NULL) return why();
    epw_abi_qp_init init = {.send_cq = q->cq,
                            .receive_cq = q->cq,
                            .type = EPW_ABI_RC,
                            .limits = {.sends = depth,
                                       .receives = 1,
                                       .send_pieces = EPW_FETCH_SEGMENTS,
                                       .receive_pieces = 1,
                                       .inline_bytes = EPW_FETCH_INLINE}};
    q->qp = f.create_qp(pd, &init);
    return q->qp != NULL ? q->call->notify(q->cq, 0) : why();
}

static int open_queue(void *device, void *pd, void *channel, uint32_t depth, uint64_t name, void **out,
                      uint32_t *number) {
    queue *q = calloc(1, sizeof *q);
    if (q == NULL) return ENOMEM;
    int err = make_parts(q, device, pd, channel, depth, name);
    if (err != 0) {
        close_queue(q);
        return err;
    }
    *out = q;
    *number = q->qp->number;
    return 0;
}

/* ---- connecting ---- */

static int modify(const queue *q, epw_abi_qp_attr *attr, int state, int mask) {
    attr->state = state;
    errno = 0;
    int err = f.modify_qp(q->qp, attr, mask | EPW_ABI_SETS_STATE);
    return err > 0 ? err : (err < 0 ? why() : 0);
}

static epw_abi_ah_attr address_of(const epw_mlx5_path *path) {
    epw_abi_ah_attr to = {.dlid = (uint16_t)path->lid,
                          .sl = (uint8_t)path->service_level,
                          .is_global = path->ethernet,
                          .port = (uint8_t)path->port};
    if (!path->ethernet) return to;
    memcpy(to.dgid, path->gid, sizeof to.dgid);
    to.sgid_index = (uint8_t)path->gid_index;
    to.hop_limit = (uint8_t)path->hop_limit;
    to.traffic_class = (uint8_t)path->traffic_class;
    return to;
}

static int connect(void *opened, const epw_mlx5_path *path) {
    const queue *q = opened;
    epw_abi_qp_attr reset = {0};
    epw_abi_qp_attr init = {.access = EPW_MLX5_LOCAL_WRITE | EPW_MLX5_REMOTE_WRITE | EPW_MLX5_REMOTE_READ |
                                      EPW_MLX5_REMOTE_ATOMIC,
                            .port = (uint8_t)path->port};
    epw_abi_qp_attr receives = {.mtu = (int)path->mtu,
                                .receive_psn = epw_mlx5_first_psn(path->remote),
                                .remote = path->remote,
                                .to = address_of(path),
                                .reads_of_peer = (uint8_t)(1 << path->log_reads),
                                .receiver_timer = 12}; /* 0.64 ms; unused, since nothing is received */
    epw_abi_qp_attr sends = {.send_psn = epw_mlx5_first_psn(q->qp->number),
                             .reads = (uint8_t)(1 << path->log_reads),
                             .timeout = (uint8_t)path->timeout,
                             .retries = (uint8_t)path->retries,
                             .receiver_retries = 7};
    int err = modify(q, &reset, EPW_ABI_STATE_RESET, 0);
    if (err == 0)
        err =
            modify(q, &init, EPW_ABI_STATE_INIT, EPW_ABI_SETS_PKEY | EPW_ABI_SETS_PORT | EPW_ABI_SETS_ACCESS);
    if (err == 0)
        err = modify(q, &receives, EPW_ABI_STATE_RTR,
                     EPW_ABI_SETS_PATH | EPW_ABI_SETS_MTU | EPW_ABI_SETS_REMOTE | EPW_ABI_SETS_RECEIVE_PSN |
                         EPW_ABI_SETS_READS_OF_PEER | EPW_ABI_SETS_RECEIVER_TIMER);
    if (err == 0)
        err = modify(q, &sends, EPW_ABI_STATE_RTS,
                     EPW_ABI_SETS_TIMEOUT | EPW_ABI_SETS_RETRIES | EPW_ABI_SETS_RECEIVER_RETRIES |
                         EPW_ABI_SETS_SEND_PSN | EPW_ABI_SETS_READS);
    return err;
}

/* ---- entries ---- */

static void write_send(const epw_verbs_work *work, epw_abi_send *send,
                       epw_abi_piece pieces[EPW_FETCH_SEGMENTS]) {
    *send = (epw_abi_send){.name = work->name,
                           .pieces = pieces,
                           .count = (int)work->count,
                           .opcode = EPW_ABI_SEND_WRITE,
                           .flags = work->signalled ? EPW_ABI_SIGNALLED : 0};
    send->remote.rdma.address = work->remote;
    send->remote.rdma.key = work->key;
    for (uint32_t i = 0; i < work->count; i++)
        pieces[i] = (epw_abi_piece){work->local[i].offset, work->local[i].bytes, work->local[i].key};
    if (work->is_inline && work->opcode != EPW_OPCODE_FETCH_ADD) { /* its result comes to a piece */
        send->flags |= EPW_ABI_INLINE;
        send->count = 1;
        pieces[0] = (epw_abi_piece){(uint64_t)(uintptr_t)work->inlined, work->inlined_bytes, 0};
    }
    if (work->opcode == EPW_OPCODE_READ) send->opcode = EPW_ABI_SEND_READ;
    if (work->opcode == EPW_OPCODE_FETCH_ADD) {
        send->opcode = EPW_ABI_SEND_FETCH_ADD;
        send->remote.atomic.add = work->addend;
        send->remote.atomic.swap = 0;
        send->remote.atomic.key = work->key;
    }
}

static int post(void *opened, const epw_verbs_work *works, uint32_t count, uint32_t *posted) {
    const queue *q = opened;
    epw_abi_send sends[EPW_VERBS_WORKS], *bad = NULL;
    epw_abi_piece pieces[EPW_VERBS_WORKS][EPW_FETCH_SEGMENTS];
    if (count > EPW_VERBS_WORKS) count = EPW_VERBS_WORKS;
    *posted = count;
    if (count == 0) return 0;
    for (uint32_t i = 0; i < count; i++) {
        write_send(&works[i], &sends[i], pieces[i]);
        if (i > 0) sends[i - 1].next = &sends[i];
    }
    errno = 0;
    int err = q->call->post(q->qp, sends, &bad);
    /* If no bad work request is named, the call itself has failed, and none was posted. */
    if (err != 0) *posted = bad != NULL ? (uint32_t)(bad - sends) : 0;
    return err < 0 ? why() : err;
}

static uint8_t syndrome_of(int status) {
    static const uint8_t syndromes[] = {[0] = EPW_SYNDROME_NONE,
                                        [1] = EPW_SYNDROME_LENGTH,
                                        [2] = EPW_SYNDROME_OPERATION,
                                        [4] = EPW_SYNDROME_PROTECTION,
                                        [5] = EPW_SYNDROME_FLUSHED,
                                        [8] = EPW_SYNDROME_PROTECTION,
                                        [9] = EPW_SYNDROME_REMOTE_REQUEST,
                                        [10] = EPW_SYNDROME_REMOTE_ACCESS,
                                        [11] = EPW_SYNDROME_REMOTE_OPERATION,
                                        [12] = EPW_SYNDROME_RETRIES,
                                        [13] = EPW_SYNDROME_RECEIVER,
                                        [16] = EPW_SYNDROME_ABORTED};
    bool known = status >= 0 && status < (int)sizeof syndromes && (status == 0 || syndromes[status] != 0);
    return known ? syndromes[status] : EPW_SYNDROME_ABORTED;
}

static int poll(void *opened, epw_verbs_done *out, uint32_t most, uint32_t *count) {
    const queue *q = opened;
    epw_abi_completion completions[16];
    int n = q->call->poll(q->cq, most < 16 ? (int)most : 16, completions);
    *count = n > 0 ? (uint32_t)n : 0;
    for (uint32_t i = 0; i < *count; i++)
        out[i] = (epw_verbs_done){.name = completions[i].name,
                                  .syndrome = syndrome_of(completions[i].status),
                                  .vendor = completions[i].vendor};
    return n < 0 ? EIO : 0;
}

static int arm(void *opened) {
    const queue *q = opened;
    return q->call->notify(q->cq, 0);
}

const epw_verbs_calls *epw_verbs_calls_of_library(void) {
    static const epw_verbs_calls calls = {.open_channel = open_channel,
                                          .close_channel = close_channel,
                                          .announced = announced,
                                          .open_queue = open_queue,
                                          .close_queue = close_queue,
                                          .leave_queue = leave_queue,
                                          .connect = connect,
                                          .post = post,
                                          .poll = poll,
                                          .arm = arm};
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return &calls;
}
