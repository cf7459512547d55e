/* An RDMA adapter within this process, which takes the place of libibverbs (library.h). All its contexts are
 * one device, whose queue pairs reach each other by number. It enforces the rules of the kernel and of the
 * specification that the library's documentation names, and counts violations:
 *
 *   - a queue pair accepts attributes only in the state, and with the mask, that the specification requires;
 *   - it is connected only once both ends name each other and agree on the first packet number;
 *   - keys are valid for their bytes, with the rights that were registered, and for nothing else;
 *   - slots of a send queue are free again once a later completion has been polled;
 *   - what is in use cannot be destroyed.
 *
 * A thread executes what was posted, taking queue pairs in random order. On an unordered adapter it takes the
 * entries of a queue pair in random order, too. */
#ifndef EPW_TESTS_VERBS_ADAPTER_H
#define EPW_TESTS_VERBS_ADAPTER_H

#include "nic/mlx5/calls.h"
#include "nic/verbs/abi.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The calls that can fail. */
typedef enum lan_call {
    LAN_NONE,
    LAN_LIST,
    LAN_OPEN,
    LAN_PORT,
    LAN_GID,
    LAN_DOMAIN,
    LAN_REGISTER,
    LAN_CHANNEL,
    LAN_ANNOUNCED,
    LAN_CQ,
    LAN_QP,
    LAN_MODIFY,
    LAN_POST,
    LAN_POLL,
    LAN_NOTIFY,
    LAN_CALLS
} lan_call;

enum {
    LAN_PORT_NUMBER = 1,
    LAN_GIDS = 4,
    LAN_GID_INDEX = 2,
    LAN_SENDS = 512,
    LAN_INLINE = 64,
    LAN_PAGE = 4096
};

/* How often an entry for a queue pair that is not connected yet is tried, 1 ms apart. */
enum { LAN_TRIES = 200 };

typedef struct lan_context {
    union {
        epw_abi_context abi;
        epw_abi_functions functions;
    } as;
    struct lan_context *next;
    int events; /* the end to which events are written */
} lan_context;

typedef struct lan_channel {
    epw_abi_channel abi;
    int announce;
    uint32_t queues;
} lan_channel;

typedef struct lan_pd {
    lan_context *context;
    uint32_t users;
} lan_pd;

typedef struct lan_mr {
    epw_abi_mr abi;
    struct lan_mr *next;
    unsigned char *address;
    uint64_t first, bytes;
    unsigned access;
    lan_pd *pd;
} lan_mr;

typedef struct lan_cq {
    epw_abi_cq abi;
    lan_channel *channel;
    uint32_t pairs, unacknowledged, capacity, count;
    bool armed;
    epw_abi_completion *completions; /* [capacity] */
    uint32_t *slots;                 /* [capacity]: slots of the send queue that each completion frees */
} lan_cq;

typedef struct lan_send {
    epw_abi_send what;
    epw_abi_piece pieces[2];
    unsigned char inlined[LAN_INLINE];
    uint32_t tries;
} lan_send;

typedef struct lan_qp {
    epw_abi_qp abi;
    struct lan_qp *next;
    lan_cq *cq;
    lan_pd *pd;
    int state;
    epw_abi_qp_attr attr;
    uint32_t depth, slots_taken, since_completion;
    lan_send sends[LAN_SENDS]; /* the waiting entries, in the order of posting */
    uint32_t count, forwarded;
} lan_qp;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_t thread;
    bool ending;
    bool unordered;
    bool holds_pairs;            /* queue pairs cannot be destroyed */
    bool moved;                  /* the address of its port has changed */
    int fails_status;            /* the next entry of this context completes with this status; 0: normally */
    const lan_context *fails_in; /* NULL: of whichever context */
    lan_call failing;            /* after a number of calls of this kind, the next one fails */
    uint32_t failing_after, calls;
    int failing_errno;
    lan_context *contexts;
    lan_mr *regions;
    lan_qp *pairs;
    uint32_t key, number;
    uint64_t random;
    uint32_t channels, queues, domains; /* existing ones */
    uint32_t words, words_early;        /* placed; and placed before what was posted before them */
    uint32_t broken_rules;
    uint32_t forwarded; /* number of entries */
} lan = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .number = 16};

#define LAN_RULE(holds)                                                                                      \
    ((holds)                                                                                                 \
         ? true                                                                                              \
         : (lan.broken_rules++, fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #holds), false))

static bool lan_fails(lan_call call) {
    if (lan.failing != call || lan.calls++ != lan.failing_after) return false;
    errno = lan.failing_errno;
    return true;
}

/* NULL with errno, or `bytes` bytes of zeros. */
static void *lan_make(lan_call call, size_t bytes) {
    return lan_fails(call) ? NULL : calloc(1, bytes);
}

static uint32_t lan_chance(uint32_t below) {
    lan.random = lan.random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((lan.random >> 33) % below);
}

/* ---- completions ---- */

static void lan_complete(lan_qp *qp, const epw_abi_send *what, int status) {
    lan_cq *cq = qp->cq;
    qp->since_completion++;
    if (status == 0 && !(what->flags & EPW_ABI_SIGNALLED)) return;
    if (!LAN_RULE(cq->count < cq->capacity)) return;
    cq->completions[cq->count] =
        (epw_abi_completion){.name = what->name, .status = status, .number = qp->abi.number, .vendor = 7};
    cq->slots[cq->count++] = qp->since_completion;
    qp->since_completion = 0;
    if (!cq->armed) return;
    cq->armed = false;
    cq->unacknowledged++;
    if (write(cq->channel->announce, &cq, sizeof(lan_cq *)) != sizeof(lan_cq *)) lan.broken_rules++;
}

/* Breaks the queue pair: everything else that was posted is flushed. */
static void lan_break(lan_qp *qp) {
    qp->state = EPW_ABI_STATE_ERR;
    for (uint32_t i = 0; i < qp->count; i++) lan_complete(qp, &qp->sends[i].what, 5);
    qp->count = 0;
}

/* ---- entries ---- */

static unsigned char *lan_reach(const lan_pd *pd, uint32_t key, uint64_t address, uint64_t bytes,
                                unsigned rights) {
    for (lan_mr *m = lan.regions; m != NULL; m = m->next)
        if (m->abi.lkey == key && m->pd == pd && (m->access & rights) == rights && address >= m->first &&
            bytes <= m->bytes && address - m->first <= m->bytes - bytes)
            return m->address + (address - m->first);
    return NULL;
}

/* The queue pair at the other end; NULL: it does not answer (yet). */
static lan_qp *lan_other_end(const lan_qp *qp) {
    for (lan_qp *at = lan.pairs; at != NULL; at = at->next)
        if (at->abi.number == qp->attr.remote && at->attr.remote == qp->abi.number &&
            (at->state == EPW_ABI_STATE_RTR || at->state == EPW_ABI_STATE_RTS))
            return LAN_RULE(at->attr.receive_psn == qp->attr.send_psn) ? at : NULL;
    return NULL;
}

static void lan_copy(unsigned char *to, const unsigned char *from, size_t bytes) {
    if (bytes == sizeof(uint64_t) && (uintptr_t)to % sizeof(uint64_t) == 0) {
        uint64_t word;
        memcpy(&word, from, sizeof word);
        atomic_store_explicit((_Atomic uint64_t *)(void *)to, word, memory_order_release);
    } else {
        memcpy(to, from, bytes);
    }
}

/* Executes an entry; returns the status of its completion. */
static int lan_carry_out(lan_qp *qp, lan_send *send, lan_qp *peer) {
    const epw_abi_send *what = &send->what;
    unsigned char *pieces[2];
    bool reads = what->opcode == EPW_ABI_SEND_READ, adds = what->opcode == EPW_ABI_SEND_FETCH_ADD;
    uint64_t total = 0, address = adds ? what->remote.atomic.address : what->remote.rdma.address;
    uint32_t key = adds ? what->remote.atomic.key : what->remote.rdma.key;
    static const unsigned rights[] = {[EPW_ABI_SEND_WRITE] = EPW_MLX5_REMOTE_WRITE,
                                      [EPW_ABI_SEND_READ] = EPW_MLX5_REMOTE_READ,
                                      [EPW_ABI_SEND_FETCH_ADD] = EPW_MLX5_REMOTE_ATOMIC};
    for (int i = 0; i < what->count; i++) {
        const epw_abi_piece *p = &send->pieces[i];
        pieces[i] = what->flags & EPW_ABI_INLINE ? send->inlined
                                                 : lan_reach(qp->pd, p->key, p->address, p->bytes,
                                                             reads || adds ? EPW_MLX5_LOCAL_WRITE : 0);
        if (pieces[i] == NULL) return 4;
        total += p->bytes;
    }
    if (total == 0) return 0;
    unsigned char *there = lan_reach(peer->pd, key, address, total, rights[what->opcode]);
    if (there == NULL || !(peer->attr.access & rights[what->opcode])) return 10;
    if (adds) {
        uint64_t old = atomic_fetch_add((_Atomic uint64_t *)(void *)there, what->remote.atomic.add);
        memcpy(pieces[0], &old, sizeof old);
        return 0;
    }
    for (int i = 0; i < what->count; i++) {
        if (reads) {
            lan_copy(pieces[i], there, send->pieces[i].bytes);
        } else {
            lan_copy(there, pieces[i], send->pieces[i].bytes);
        }
        there += send->pieces[i].bytes;
    }
    return 0;
}

static bool lan_is_word(const lan_send *send) {
    return send->what.opcode == EPW_ABI_SEND_WRITE && (send->what.flags & EPW_ABI_INLINE) &&
           send->pieces[0].bytes == sizeof(uint64_t);
}

/* Executes one of its entries; false if it is too early. */
static bool lan_turn(lan_qp *qp) {
    uint32_t at = lan.unordered ? lan_chance(qp->count) : 0;
    lan_send send = qp->sends[at];
    lan_qp *peer = lan_other_end(qp);
    bool here = lan.fails_in == NULL || qp->pd->context == lan.fails_in;
    int status = here ? lan.fails_status : 0;
    if (peer == NULL && status == 0 && qp->sends[at].tries++ < LAN_TRIES) return false;
    if (status != 0) lan.fails_status = 0;
    memmove(&qp->sends[at], &qp->sends[at + 1], (--qp->count - at) * sizeof send);
    if (status == 0) status = peer == NULL ? 12 : lan_carry_out(qp, &send, peer);
    if (status == 0 && lan_is_word(&send)) {
        lan.words++;
        lan.words_early += at > 0;
    }
    lan.forwarded++;
    qp->forwarded++;
    lan_complete(qp, &send.what, status);
    if (status == 10) lan_break(peer);
    if (status != 0) lan_break(qp);
    return true;
}

static void *lan_main(void *argument) {
    (void)argument;
    pthread_mutex_lock(&lan.lock);
    while (!lan.ending) {
        uint32_t busy = 0, early = 0;
        for (lan_qp *qp = lan.pairs; qp != NULL; qp = qp->next) {
            if (qp->state != EPW_ABI_STATE_RTS || qp->count == 0) continue;
            busy++;
            if (lan_chance(2) == 0) early += !lan_turn(qp);
        }
        if (busy == 0) {
            pthread_cond_wait(&lan.work, &lan.lock);
        } else if (early > 0) {
            pthread_mutex_unlock(&lan.lock);
            nanosleep(&(struct timespec){0, 1000000}, NULL);
            pthread_mutex_lock(&lan.lock);
        }
    }
    pthread_mutex_unlock(&lan.lock);
    return NULL;
}

/* ---- as tests see it ---- */

static void lan_begin(void) {
    if (pthread_create(&lan.thread, NULL, lan_main, NULL) != 0) abort();
}

static void lan_end(void) {
    pthread_mutex_lock(&lan.lock);
    lan.ending = true;
    pthread_cond_signal(&lan.work);
    pthread_mutex_unlock(&lan.lock);
    pthread_join(lan.thread, NULL);
}

/* Objects that have been made and not given back. */
static uint32_t lan_left(void) {
    pthread_mutex_lock(&lan.lock);
    uint32_t left = lan.channels + lan.queues + lan.domains;
    for (const lan_context *at = lan.contexts; at != NULL; at = at->next) left++;
    for (const lan_mr *at = lan.regions; at != NULL; at = at->next) left++;
    for (const lan_qp *at = lan.pairs; at != NULL; at = at->next) left++;
    pthread_mutex_unlock(&lan.lock);
    return left;
}

/* Counts the existing queue pairs, and those that have executed an entry. */
static inline void lan_count_pairs(uint32_t *all, uint32_t *warm) {
    *all = *warm = 0;
    pthread_mutex_lock(&lan.lock);
    for (const lan_qp *qp = lan.pairs; qp != NULL; qp = qp->next) {
        *all += 1;
        *warm += qp->forwarded > 0;
    }
    pthread_mutex_unlock(&lan.lock);
}

/* The context that was opened number-th before the last. With the lock held. */
static inline lan_context *lan_context_at(uint32_t number) {
    lan_context *at = lan.contexts;
    for (uint32_t i = 0; i < number; i++) at = at->next;
    return at;
}

/* Makes the next entry of that context complete with this status. */
static inline void lan_fail_entry(uint32_t number, int status) {
    pthread_mutex_lock(&lan.lock);
    lan.fails_status = status;
    lan.fails_in = lan_context_at(number);
    pthread_mutex_unlock(&lan.lock);
}

/* Raises an event of the context; if of a queue pair: of its last one. */
static inline void lan_raise(uint32_t number, int type, int port) {
    pthread_mutex_lock(&lan.lock);
    const lan_context *context = lan_context_at(number);
    epw_abi_event event = {.type = type, .element.port = port};
    lan_qp *qp = lan.pairs;
    while (qp != NULL && qp->pd->context != context) qp = qp->next;
    if (type <= EPW_ABI_QP_ACCESS_ERR && qp != NULL) {
        event.element.object = &qp->abi;
        lan_break(qp);
    }
    if (write(context->events, &event, sizeof event) != sizeof event) lan.broken_rules++;
    pthread_mutex_unlock(&lan.lock);
}

/* The adapter is removed: no event comes any more, and asking for one fails. */
static inline void lan_remove(uint32_t number) {
    pthread_mutex_lock(&lan.lock);
    for (lan_context *context = lan.contexts; context != NULL; context = context->next) {
        if (context != lan_context_at(number)) continue;
        close(context->events);
        context->events = -1;
    }
    pthread_mutex_unlock(&lan.lock);
}

#endif
