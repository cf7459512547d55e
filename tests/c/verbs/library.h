/* libibverbs as the library under test finds it: dlopen and dlvsym of this program return the functions of
 * the adapter (adapter.h) for libibverbs.so.1, each in the only version that has its signature, and forward
 * everything else to the C library. */
#ifndef EPW_TESTS_VERBS_LIBRARY_H
#define EPW_TESTS_VERBS_LIBRARY_H

#include "adapter.h"

#include <dlfcn.h>

/* ---- the device ---- */

static epw_abi_device lan_device; /* `transport` may be set before it is opened */

static void **lan_get_device_list(int *count) {
    void **list = NULL;
    pthread_mutex_lock(&lan.lock);
    if ((list = lan_make(LAN_LIST, 2 * sizeof *list)) != NULL) list[0] = &lan_device;
    pthread_mutex_unlock(&lan.lock);
    if (count != NULL) *count = list != NULL;
    return list;
}

static void lan_free_device_list(void **list) {
    free(list);
}

static const char *lan_get_device_name(void *device) {
    return device == &lan_device ? "lan_0" : "";
}

static int lan_post(void *pair, epw_abi_send *first, epw_abi_send **bad);
static int lan_poll(void *queue, int count, epw_abi_completion *out);
static int lan_notify(void *queue, int solicited);

static void *lan_open_device(void *device) {
    int ends[2];
    pthread_mutex_lock(&lan.lock);
    lan_context *made = device == &lan_device ? lan_make(LAN_OPEN, sizeof *made) : NULL;
    if (made != NULL && pipe(ends) != 0) {
        free(made);
        made = NULL;
    }
    if (made != NULL) {
        made->as.functions.poll = lan_poll;
        made->as.functions.notify = lan_notify;
        made->as.functions.post = lan_post;
        made->as.abi.device = device;
        made->as.abi.async_fd = ends[0];
        made->events = ends[1];
        made->next = lan.contexts;
        lan.contexts = made;
    }
    pthread_mutex_unlock(&lan.lock);
    return made;
}

static int lan_close_device(void *context) {
    lan_context *c = context, **at = &lan.contexts;
    pthread_mutex_lock(&lan.lock);
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    pthread_mutex_unlock(&lan.lock);
    close(c->as.abi.async_fd);
    if (c->events >= 0) close(c->events);
    free(c);
    return 0;
}

static int lan_query_port(void *context, uint8_t port, epw_abi_port *out) {
    (void)context;
    pthread_mutex_lock(&lan.lock);
    int err = lan_fails(LAN_PORT) ? lan.failing_errno : port != LAN_PORT_NUMBER ? EINVAL : 0;
    pthread_mutex_unlock(&lan.lock);
    if (err != 0) return err;
    *out = (epw_abi_port){.state = EPW_ABI_PORT_ACTIVE,
                          .max_mtu = 5,
                          .active_mtu = 3,
                          .gid_tbl_len = LAN_GIDS,
                          .link_layer = EPW_ABI_ETHERNET};
    return 0;
}

/* A link-local GID, one of RoCEv1, 10.79.0.1, and an empty entry. */
static int lan_query_gid(void *context, uint32_t port, uint32_t index, epw_abi_gid *out, uint32_t flags,
                         size_t size) {
    (void)context;
    pthread_mutex_lock(&lan.lock);
    int err = lan_fails(LAN_GID) ? lan.failing_errno : 0;
    bool moved = lan.moved;
    pthread_mutex_unlock(&lan.lock);
    if (err == 0 && (port != LAN_PORT_NUMBER || flags != 0 || size != sizeof *out)) err = EINVAL;
    if (err == 0 && (index >= LAN_GIDS || index == LAN_GIDS - 1)) err = ENODATA;
    if (err != 0) return err;
    *out = (epw_abi_gid){.index = index, .port = port, .type = index == 0 ? EPW_MLX5_GID_ROCE_V2 : index};
    static const unsigned char local[16] = {0xfe, 0x80, [15] = 1};
    static const unsigned char routed[16] = {[10] = 0xff, 0xff, 10, 79, 0, 1};
    memcpy(out->bytes, index == 0 ? local : routed, sizeof out->bytes);
    if (moved) out->bytes[15]++;
    return 0;
}

/* Both read from descriptors that the library has made non-blocking; otherwise they would wait for ever. */
static int lan_get_event(void *context, epw_abi_event *out) {
    return read(((lan_context *)context)->as.abi.async_fd, out, sizeof *out) == sizeof *out ? 0 : -1;
}

static void lan_ack_event(epw_abi_event *event) {
    (void)event;
}

/* ---- memory ---- */

static void *lan_alloc_pd(void *context) {
    pthread_mutex_lock(&lan.lock);
    lan_pd *made = lan_make(LAN_DOMAIN, sizeof *made);
    if (made != NULL) made->context = context;
    lan.domains += made != NULL;
    pthread_mutex_unlock(&lan.lock);
    return made;
}

static int lan_dealloc_pd(void *pd) {
    pthread_mutex_lock(&lan.lock);
    bool unused = LAN_RULE(((lan_pd *)pd)->users == 0);
    if (unused) free(pd);
    lan.domains -= unused;
    pthread_mutex_unlock(&lan.lock);
    return unused ? 0 : EBUSY;
}

static epw_abi_mr *lan_reg_mr(void *pd, void *address, size_t bytes, uint64_t first, unsigned access) {
    unsigned far = EPW_MLX5_REMOTE_WRITE | EPW_MLX5_REMOTE_ATOMIC;
    pthread_mutex_lock(&lan.lock);
    bool allowed = LAN_RULE(!(access & far) || (access & EPW_MLX5_LOCAL_WRITE)) &&
                   LAN_RULE((uintptr_t)address % LAN_PAGE == first % LAN_PAGE);
    lan_mr *made = allowed ? lan_make(LAN_REGISTER, sizeof *made) : NULL;
    if (!allowed) errno = EINVAL;
    if (made != NULL) {
        uint32_t key = ++lan.key << 8;
        made->abi = (epw_abi_mr){.pd = pd, .lkey = key, .rkey = key};
        made->address = address;
        made->first = first;
        made->bytes = bytes;
        made->access = access;
        made->pd = pd;
        made->pd->users++;
        made->next = lan.regions;
        lan.regions = made;
    }
    pthread_mutex_unlock(&lan.lock);
    return made != NULL ? &made->abi : NULL;
}

static int lan_dereg_mr(epw_abi_mr *region) {
    lan_mr *m = (lan_mr *)(void *)region, **at = &lan.regions;
    pthread_mutex_lock(&lan.lock);
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    m->pd->users--;
    pthread_mutex_unlock(&lan.lock);
    free(m);
    return 0;
}

/* ---- queues ---- */

static epw_abi_channel *lan_create_channel(void *context) {
    int ends[2];
    pthread_mutex_lock(&lan.lock);
    lan_channel *made = lan_make(LAN_CHANNEL, sizeof *made);
    if (made != NULL && pipe(ends) == 0) {
        made->abi = (epw_abi_channel){.context = context, .fd = ends[0]};
        made->announce = ends[1];
        lan.channels++;
    }
    pthread_mutex_unlock(&lan.lock);
    return made != NULL ? &made->abi : NULL;
}

static int lan_destroy_channel(epw_abi_channel *channel) {
    lan_channel *c = (lan_channel *)(void *)channel;
    pthread_mutex_lock(&lan.lock);
    bool unused = LAN_RULE(c->queues == 0);
    lan.channels -= unused;
    pthread_mutex_unlock(&lan.lock);
    if (!unused) return EBUSY;
    close(c->abi.fd);
    close(c->announce);
    free(c);
    return 0;
}

static int lan_get_cq_event(epw_abi_channel *channel, epw_abi_cq **out, void **name) {
    pthread_mutex_lock(&lan.lock);
    bool fails = lan_fails(LAN_ANNOUNCED);
    pthread_mutex_unlock(&lan.lock);
    lan_cq *cq;
    if (fails || read(channel->fd, &cq, sizeof(lan_cq *)) != sizeof(lan_cq *)) return -1;
    *out = &cq->abi;
    *name = cq->abi.name;
    return 0;
}

static void lan_ack_cq_events(epw_abi_cq *queue, unsigned count) {
    pthread_mutex_lock(&lan.lock);
    ((lan_cq *)(void *)queue)->unacknowledged -= count;
    pthread_mutex_unlock(&lan.lock);
}

static epw_abi_cq *lan_create_cq(void *context, int entries, void *name, epw_abi_channel *channel,
                                 int vector) {
    uint32_t capacity = (uint32_t)entries;
    pthread_mutex_lock(&lan.lock);
    lan_cq *made = entries > 0 && vector == 0 ? lan_make(LAN_CQ, sizeof *made) : NULL;
    if (made != NULL) {
        *made = (lan_cq){.abi = {.context = context, .channel = channel, .name = name},
                         .channel = (lan_channel *)(void *)channel,
                         .capacity = capacity,
                         .completions = calloc(capacity, sizeof *made->completions),
                         .slots = calloc(capacity, sizeof *made->slots)};
        made->channel->queues++;
        lan.queues++;
    }
    pthread_mutex_unlock(&lan.lock);
    return made != NULL ? &made->abi : NULL;
}

/* The real library waits here until its events are acknowledged; events that nobody has fetched are
 * dropped. */
static int lan_destroy_cq(epw_abi_cq *queue) {
    lan_cq *cq = (lan_cq *)(void *)queue;
    lan_cq *announced;
    pthread_mutex_lock(&lan.lock);
    bool unused = LAN_RULE(cq->pairs == 0);
    if (unused) {
        for (uint32_t i = 0; i < cq->channel->queues * 4 && cq->unacknowledged > 0; i++) {
            if (read(cq->channel->abi.fd, &announced, sizeof(lan_cq *)) != sizeof(lan_cq *)) break;
            if (announced == cq) {
                cq->unacknowledged--;
            } else if (write(cq->channel->announce, &announced, sizeof(lan_cq *)) < 0) {
                lan.broken_rules++;
            }
        }
        unused = LAN_RULE(cq->unacknowledged == 0);
    }
    if (unused) cq->channel->queues--;
    lan.queues -= unused;
    pthread_mutex_unlock(&lan.lock);
    if (!unused) return EBUSY;
    free(cq->completions);
    free(cq->slots);
    free(cq);
    return 0;
}

static epw_abi_qp *lan_create_qp(void *pd, epw_abi_qp_init *init) {
    const epw_abi_limits *limits = &init->limits;
    pthread_mutex_lock(&lan.lock);
    bool allowed = init->type == EPW_ABI_RC && limits->sends > 0 && limits->sends <= LAN_SENDS &&
                   limits->send_pieces <= 2 && limits->inline_bytes <= LAN_INLINE && init->srq == NULL;
    lan_qp *made = allowed ? lan_make(LAN_QP, sizeof *made) : NULL;
    if (!allowed) errno = EINVAL;
    if (made != NULL) {
        made->abi = (epw_abi_qp){.pd = pd, .number = ++lan.number};
        made->pd = pd;
        made->cq = init->send_cq;
        made->depth = limits->sends;
        made->pd->users++;
        made->cq->pairs++;
        made->next = lan.pairs;
        lan.pairs = made;
    }
    pthread_mutex_unlock(&lan.lock);
    return made != NULL ? &made->abi : NULL;
}

static int lan_destroy_qp(epw_abi_qp *pair) {
    lan_qp *qp = (lan_qp *)(void *)pair, **at = &lan.pairs;
    pthread_mutex_lock(&lan.lock);
    bool lets_go = !lan.holds_pairs;
    if (lets_go) {
        while (*at != qp) at = &(*at)->next;
        *at = qp->next;
        qp->pd->users--;
        qp->cq->pairs--;
        free(qp);
    }
    pthread_mutex_unlock(&lan.lock);
    return lets_go ? 0 : EBUSY;
}

/* ---- the way up ---- */

static const int lan_masks[] = {
    [EPW_ABI_STATE_RESET] = EPW_ABI_SETS_STATE,
    [EPW_ABI_STATE_INIT] = EPW_ABI_SETS_STATE | EPW_ABI_SETS_PKEY | EPW_ABI_SETS_PORT | EPW_ABI_SETS_ACCESS,
    [EPW_ABI_STATE_RTR] = EPW_ABI_SETS_STATE | EPW_ABI_SETS_PATH | EPW_ABI_SETS_MTU | EPW_ABI_SETS_REMOTE |
                          EPW_ABI_SETS_RECEIVE_PSN | EPW_ABI_SETS_READS_OF_PEER | EPW_ABI_SETS_RECEIVER_TIMER,
    [EPW_ABI_STATE_RTS] = EPW_ABI_SETS_STATE | EPW_ABI_SETS_TIMEOUT | EPW_ABI_SETS_RETRIES |
                          EPW_ABI_SETS_RECEIVER_RETRIES | EPW_ABI_SETS_SEND_PSN | EPW_ABI_SETS_READS};

/* Each state sets the attributes that the specification requires, and keeps the rest. */
static bool lan_take(lan_qp *qp, const epw_abi_qp_attr *attr) {
    static const unsigned char routed[16] = {[10] = 0xff, 0xff, 10, 79, 0, 1};
    epw_abi_qp_attr *own = &qp->attr;
    switch (attr->state) {
    case EPW_ABI_STATE_INIT:
        own->access = attr->access;
        return LAN_RULE(attr->port == LAN_PORT_NUMBER && attr->pkey_index == 0);
    case EPW_ABI_STATE_RTR:
        own->receive_psn = attr->receive_psn;
        own->remote = attr->remote;
        return LAN_RULE(attr->mtu == 3 && attr->receive_psn < 1 << 24) &&
               LAN_RULE(attr->to.is_global && attr->to.sgid_index == LAN_GID_INDEX &&
                        attr->to.hop_limit > 0) &&
               LAN_RULE(attr->to.port == LAN_PORT_NUMBER && memcmp(attr->to.dgid, routed, 16) == 0);
    case EPW_ABI_STATE_RTS:
        own->send_psn = attr->send_psn;
        return LAN_RULE(attr->reads > 0 && attr->timeout > 0 && attr->timeout < 32 && attr->retries < 8);
    default:
        return true;
    }
}

static int lan_modify_qp(epw_abi_qp *pair, epw_abi_qp_attr *attr, int mask) {
    lan_qp *qp = (lan_qp *)(void *)pair;
    pthread_mutex_lock(&lan.lock);
    int err = lan_fails(LAN_MODIFY) ? lan.failing_errno : 0;
    bool reset = attr->state == EPW_ABI_STATE_RESET;
    if (err == 0 && !(LAN_RULE(attr->state >= 0 && attr->state <= EPW_ABI_STATE_RTS) &&
                      LAN_RULE(reset || attr->state == qp->state + 1) &&
                      LAN_RULE(mask == lan_masks[attr->state]) && lan_take(qp, attr)))
        err = EINVAL;
    if (err == 0) qp->state = attr->state;
    if (err == 0 && reset) qp->count = qp->slots_taken = qp->since_completion = 0;
    pthread_cond_signal(&lan.work);
    pthread_mutex_unlock(&lan.lock);
    return err;
}

/* ---- entries ---- */

static int lan_post_one(lan_qp *qp, const epw_abi_send *what) {
    if (lan_fails(LAN_POST)) return lan.failing_errno;
    if (!LAN_RULE(qp->state == EPW_ABI_STATE_RTS || qp->state == EPW_ABI_STATE_ERR)) return EINVAL;
    if (!LAN_RULE(what->count >= 0 && what->count <= 2)) return EINVAL;
    if (!LAN_RULE(qp->slots_taken < qp->depth)) return ENOMEM;
    qp->slots_taken++;
    if (qp->state == EPW_ABI_STATE_ERR) {
        lan_complete(qp, what, 5);
        return 0;
    }
    lan_send *send = &qp->sends[qp->count++];
    *send = (lan_send){.what = *what};
    for (int i = 0; i < what->count; i++) send->pieces[i] = what->pieces[i];
    if ((what->flags & EPW_ABI_INLINE) && LAN_RULE(what->count == 1 && what->pieces->bytes <= LAN_INLINE))
        memcpy(send->inlined, (const void *)(uintptr_t)what->pieces->address, what->pieces->bytes);
    return 0;
}

static int lan_post(void *pair, epw_abi_send *first, epw_abi_send **bad) {
    int err = 0;
    pthread_mutex_lock(&lan.lock);
    while (first != NULL && (err = lan_post_one(pair, first)) == 0) first = first->next;
    if (err != 0) *bad = first;
    pthread_cond_signal(&lan.work);
    pthread_mutex_unlock(&lan.lock);
    return err;
}

/* Both pairs of a queue are the same here. */
static int lan_poll(void *queue, int count, epw_abi_completion *out) {
    lan_cq *cq = queue;
    pthread_mutex_lock(&lan.lock);
    uint32_t taken = cq->count < (uint32_t)count ? cq->count : (uint32_t)count;
    bool fails = lan_fails(LAN_POLL);
    if (fails) taken = 0;
    for (uint32_t i = 0; i < taken; i++) {
        out[i] = cq->completions[i];
        for (lan_qp *qp = lan.pairs; qp != NULL; qp = qp->next)
            if (qp->abi.number == out[i].number) qp->slots_taken -= cq->slots[i];
    }
    cq->count -= taken;
    memmove(cq->completions, cq->completions + taken, cq->count * sizeof *out);
    memmove(cq->slots, cq->slots + taken, cq->count * sizeof *cq->slots);
    pthread_mutex_unlock(&lan.lock);
    return fails ? -1 : (int)taken;
}

static int lan_notify(void *queue, int solicited) {
    pthread_mutex_lock(&lan.lock);
    int err = lan_fails(LAN_NOTIFY) ? lan.failing_errno : 0;
    if (err == 0) ((lan_cq *)queue)->armed = LAN_RULE(!solicited);
    pthread_mutex_unlock(&lan.lock);
    return err;
}

/* Used only by the mlx5 wire. */
static void *lan_create_ah(void *pd, epw_abi_ah_attr *attr) {
    (void)pd, (void)attr;
    return NULL;
}
static int lan_destroy_ah(void *ah) {
    return ah == NULL ? 0 : EINVAL;
}

/* ---- as it is found ---- */

#define LAN_FUNCTION(function) ((void (*)(void))(function))
static const struct {
    const char *name, *version;
    void (*function)(void);
} lan_functions[] = {
    {"ibv_get_device_list", "IBVERBS_1.1", LAN_FUNCTION(lan_get_device_list)},
    {"ibv_free_device_list", "IBVERBS_1.1", LAN_FUNCTION(lan_free_device_list)},
    {"ibv_get_device_name", "IBVERBS_1.1", LAN_FUNCTION(lan_get_device_name)},
    {"ibv_open_device", "IBVERBS_1.1", LAN_FUNCTION(lan_open_device)},
    {"ibv_close_device", "IBVERBS_1.1", LAN_FUNCTION(lan_close_device)},
    {"ibv_query_port", "IBVERBS_1.1", LAN_FUNCTION(lan_query_port)},
    {"_ibv_query_gid_ex", "IBVERBS_1.11", LAN_FUNCTION(lan_query_gid)},
    {"ibv_alloc_pd", "IBVERBS_1.1", LAN_FUNCTION(lan_alloc_pd)},
    {"ibv_dealloc_pd", "IBVERBS_1.1", LAN_FUNCTION(lan_dealloc_pd)},
    {"ibv_reg_mr_iova2", "IBVERBS_1.8", LAN_FUNCTION(lan_reg_mr)},
    {"ibv_dereg_mr", "IBVERBS_1.1", LAN_FUNCTION(lan_dereg_mr)},
    {"ibv_create_ah", "IBVERBS_1.1", LAN_FUNCTION(lan_create_ah)},
    {"ibv_destroy_ah", "IBVERBS_1.1", LAN_FUNCTION(lan_destroy_ah)},
    {"ibv_get_async_event", "IBVERBS_1.1", LAN_FUNCTION(lan_get_event)},
    {"ibv_ack_async_event", "IBVERBS_1.1", LAN_FUNCTION(lan_ack_event)},
    {"ibv_create_comp_channel", "IBVERBS_1.0", LAN_FUNCTION(lan_create_channel)},
    {"ibv_destroy_comp_channel", "IBVERBS_1.0", LAN_FUNCTION(lan_destroy_channel)},
    {"ibv_get_cq_event", "IBVERBS_1.1", LAN_FUNCTION(lan_get_cq_event)},
    {"ibv_ack_cq_events", "IBVERBS_1.1", LAN_FUNCTION(lan_ack_cq_events)},
    {"ibv_create_cq", "IBVERBS_1.1", LAN_FUNCTION(lan_create_cq)},
    {"ibv_destroy_cq", "IBVERBS_1.1", LAN_FUNCTION(lan_destroy_cq)},
    {"ibv_create_qp", "IBVERBS_1.1", LAN_FUNCTION(lan_create_qp)},
    {"ibv_modify_qp", "IBVERBS_1.1", LAN_FUNCTION(lan_modify_qp)},
    {"ibv_destroy_qp", "IBVERBS_1.1", LAN_FUNCTION(lan_destroy_qp)},
};

void *dlopen(const char *name, int flags) {
    void *next = dlsym(RTLD_NEXT, "dlopen");
    void *(*real)(const char *, int);
    memcpy(&real, &next, sizeof real);
    return name != NULL && strcmp(name, "libibverbs.so.1") == 0 ? (void *)&lan_device : real(name, flags);
}

void *dlvsym(void *restrict library, const char *restrict name, const char *restrict version) {
    void *next = dlsym(RTLD_NEXT, "dlvsym"), *found = NULL;
    void *(*real)(void *, const char *, const char *);
    memcpy(&real, &next, sizeof real);
    if (library != &lan_device) return real(library, name, version);
    for (size_t i = 0; i < sizeof lan_functions / sizeof lan_functions[0]; i++)
        if (strcmp(lan_functions[i].name, name) == 0 && strcmp(lan_functions[i].version, version) == 0)
            memcpy(&found, &lan_functions[i].function, sizeof found);
    return found;
}

#endif
