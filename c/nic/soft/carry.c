/* See nic/verbs.h: the part of a soft NIC whose entries an adapter carries. Functions are called with the NIC
 * locked unless stated otherwise. */
#include "nic/soft/parts.h"
#include "nic/verbs.h"

#include "base/little_endian.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>

/* Work that has been posted, and is not known to be done. */
typedef struct work {
    uint32_t index; /* of the entry */
    bool done;
} work;

struct epw_carried {
    epw_carried *next; /* of those that events concern */
    epw_pair *pair;
    void *queue; /* NULL: closed */
    uint32_t number;
    bool rises;             /* it is being connected, with the NIC unlocked */
    bool by_adapter;        /* it has been */
    atomic_uint alarm;      /* 1 + epw_mlx5_event_kind: what has happened to the adapter; 0: nothing */
    uint32_t posted, first; /* works so far; and the first of them that is not done */
    work works[];           /* [depth] */
};

struct epw_carrier {
    const epw_verbs_calls *calls;
    epw_mlx5 *adapter;
    epw_adapter_device device;
    void *channel;
    int fd;
    bool unordered;
    epw_pair *senders, *last_sender;
    pthread_mutex_t lock; /* guards the list: the thread that reports events takes this lock and no other */
    epw_carried *pairs;
};

static const epw_verbs_calls *calls_of(const epw_pair *pair) {
    return pair->nic->carrier->calls;
}

bool epw_pair_is_carried(const epw_pair *pair) {
    return pair->carried != NULL && pair->carried->by_adapter;
}

uint32_t epw_pair_carried_number(const epw_pair *pair) {
    return pair->carried != NULL ? pair->carried->number : 0;
}

/* ---- events ---- */

/* Called by the thread that listens to the adapter. Destroying a queue pair waits for that thread, so it
 * takes no lock that is held meanwhile, and leaves the rest to the NIC's thread. */
static void heard(void *context, const epw_mlx5_event *event) {
    epw_nic *nic = context;
    epw_carrier *carrier = nic->carrier;
    bool of_pair = event->kind == EPW_MLX5_EVENT_PAIR;
    if (!epw_mlx5_concerns(carrier->adapter, event)) return;
    pthread_mutex_lock(&carrier->lock);
    for (epw_carried *c = carrier->pairs; c != NULL; c = c->next) {
        if (of_pair && c->number != event->number) continue;
        atomic_store_explicit(&c->alarm, 1 + (unsigned)event->kind, memory_order_relaxed);
        epw_pair_give_up(c->pair);
    }
    pthread_mutex_unlock(&carrier->lock);
    epw_nic_wake(nic);
}

static unsigned alarm_of(const epw_pair *pair) {
    return pair->carried != NULL ? atomic_load_explicit(&pair->carried->alarm, memory_order_relaxed) : 0;
}

bool epw_pair_is_alarmed(const epw_pair *pair) {
    return alarm_of(pair) != 0;
}

const char *epw_pair_carried_trouble(const epw_pair *pair, char text[EPW_MLX5_TEXT]) {
    unsigned alarm = alarm_of(pair);
    *text = '\0';
    if (alarm == 0) return text;
    return epw_mlx5_event_text(pair->nic->carrier->adapter, (epw_mlx5_event_kind)(alarm - 1), text);
}

static void enter(epw_carrier *carrier, epw_carried *carried) {
    pthread_mutex_lock(&carrier->lock);
    carried->next = carrier->pairs;
    carrier->pairs = carried;
    pthread_mutex_unlock(&carrier->lock);
}

void epw_carry_leave(epw_pair *pair) {
    epw_carrier *carrier = pair->nic->carrier;
    if (pair->carried == NULL) return;
    pthread_mutex_lock(&carrier->lock);
    epw_carried **at = &carrier->pairs;
    while (*at != NULL && *at != pair->carried) at = &(*at)->next;
    if (*at != NULL) *at = pair->carried->next;
    pthread_mutex_unlock(&carrier->lock);
}

/* ---- life ---- */

epw_status epw_nic_carry_by(epw_nic *nic, const epw_verbs_calls *calls, epw_mlx5 *adapter, epw_where where) {
    epw_carrier *carrier = calloc(1, sizeof *carrier);
    if (carrier == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for an adapter");
    carrier->calls = calls;
    carrier->adapter = adapter;
    carrier->device = epw_mlx5_device(adapter);
    int err = calls->open_channel(carrier->device.device, &carrier->channel, &carrier->fd);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = EPW_CARRIER_ID};
    if (err == 0 && epoll_ctl(nic->epoll, EPOLL_CTL_ADD, carrier->fd, &event) != 0) {
        err = errno;
        calls->close_channel(carrier->channel);
    }
    if (err != 0) {
        free(carrier);
        return epw_fail_errno(err, where, "%s does not report completions", epw_mlx5_device(adapter).name);
    }
    pthread_mutex_init(&carrier->lock, NULL);
    epw_nic_lock(nic);
    nic->carrier = carrier;
    epw_nic_unlock(nic);
    epw_mlx5_hear(adapter, heard, nic);
    return EPW_OK;
}

void epw_nic_be_unordered(epw_nic *nic) {
    nic->carrier->unordered = true;
}

void epw_carrier_free(epw_carrier *carrier) {
    if (carrier == NULL) return;
    epw_mlx5_hear(carrier->adapter, NULL, NULL);
    carrier->calls->close_channel(carrier->channel);
    pthread_mutex_destroy(&carrier->lock);
    free(carrier);
}

epw_status epw_carry_open(epw_pair *pair, epw_where where) {
    epw_carrier *carrier = pair->nic->carrier;
    if (carrier == NULL) return EPW_OK;
    const epw_adapter_device *d = &carrier->device;
    uint32_t depth = pair->memory.depth;
    epw_carried *carried = calloc(1, sizeof *carried + depth * sizeof carried->works[0]);
    if (carried == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a queue pair of %u", depth);
    carried->pair = pair;
    int err = carrier->calls->open_queue(d->device, d->pd, carrier->channel, depth, pair->number,
                                         &carried->queue, &carried->number);
    if (err != 0) {
        free(carried);
        return epw_fail_errno(err, where,
                              "%s makes no queue pair of %u entries, with %u bytes inline: lower max_tokens, "
                              "or raise the limit of locked memory (ulimit -l)",
                              d->name, depth, EPW_FETCH_INLINE);
    }
    pair->carried = carried;
    enter(carrier, carried);
    return EPW_OK;
}

/* Destroys the adapter's queue pair, which fences what its peer still sends. Returns 0, or why the adapter
 * refuses: then it is tried again when the pair is closed, and when it is destroyed. */
static int stop(epw_pair *pair) {
    epw_carried *carried = pair->carried;
    if (carried == NULL || carried->queue == NULL) return 0;
    int err = carried->rises ? EBUSY : calls_of(pair)->close_queue(carried->queue);
    if (err == 0) carried->queue = NULL;
    return err;
}

bool epw_carry_stop(epw_pair *pair) {
    return stop(pair) == 0;
}

void epw_carry_end(epw_pair *pair) {
    int err = stop(pair);
    if (err == 0) return;
    epw_mlx5_tell_kept(pair->nic->carrier->adapter, (int)pair->options.peer, err, "queue pair %u",
                       pair->carried->number);
    calls_of(pair)->leave_queue(pair->carried->queue);
    pair->carried->queue = NULL;
}

void epw_carry_await(epw_pair *pair) {
    while (pair->carried != NULL && pair->carried->rises) {
        pthread_mutex_unlock(&pair->nic->lock);
        sched_yield();
        pthread_mutex_lock(&pair->nic->lock);
    }
}

epw_status epw_pair_carry(epw_pair *pair, uint64_t link, uint32_t remote, const epw_mlx5_path *path,
                          epw_where where) {
    epw_nic *nic = pair->nic;
    epw_carried *carried = pair->carried;
    epw_nic_lock(nic);
    carried->rises = carried->queue != NULL;
    epw_nic_unlock(nic);
    int err = carried->rises ? calls_of(pair)->connect(carried->queue, path) : ENOTCONN;
    epw_nic_lock(nic);
    carried->rises = false;
    pair->heard = false;
    if (atomic_load_explicit(&pair->broken, memory_order_relaxed)) epw_carry_stop(pair);
    pair->link = epw_nic_link(nic, link);
    pair->remote = remote;
    carried->by_adapter = err == 0;
    if (pair->link == NULL) epw_pair_fail(pair, 0, EPW_SYNDROME_RETRIES);
    if (epw_other_end_is_met(&pair->other, remote)) epw_pair_end_by_peer(pair);
    if (pair->link != NULL && epw_pair_has_more(pair)) epw_link_has_sender(pair->link, pair);
    epw_nic_unlock(nic);
    if (err == 0) return EPW_OK;
    return epw_fail_errno(err, where,
                          "%s has no route to queue pair %u of the peer, whose address ends in %u.%u.%u.%u: "
                          "see that ping reaches it by this adapter's interface",
                          nic->carrier->device.name, path->remote, path->gid[12], path->gid[13],
                          path->gid[14], path->gid[15]);
}

/* ---- sending ---- */

void epw_carry_add(epw_pair *pair) {
    epw_carrier *carrier = pair->nic->carrier;
    pair->nic->unsent = true;
    if (pair->sends) return;
    pair->sends = true;
    pair->next_sender = NULL;
    if (carrier->senders == NULL) {
        carrier->senders = pair;
    } else {
        carrier->last_sender->next_sender = pair;
    }
    carrier->last_sender = pair;
}

void epw_carry_forget(epw_pair *pair) {
    if (!epw_pair_is_carried(pair)) return;
    epw_carrier *carrier = pair->nic->carrier;
    epw_pair *kept = carrier->senders;
    carrier->senders = NULL;
    while (kept != NULL) {
        epw_pair *next = kept->next_sender;
        kept->sends = false;
        if (kept != pair) epw_carry_add(kept);
        kept = next;
    }
}

static bool is_word(const epw_fetched *entry) {
    return entry->opcode == EPW_OPCODE_WRITE && entry->is_inline && entry->bytes == EPW_FRAME_WORD &&
           entry->remote % EPW_FRAME_WORD == 0;
}

/* Whether the next entry must wait for earlier ones. */
static bool holds_back(const epw_pair *pair) {
    epw_fetched entry;
    const unsigned char *bytes[EPW_FETCH_SEGMENTS];
    if (!pair->nic->carrier->unordered || pair->completed == pair->fetched) return false;
    return epw_pair_fetch(pair, (uint32_t)pair->fetched, &entry, bytes) == EPW_SYNDROME_NONE &&
           is_word(&entry);
}

static void describe(epw_pair *pair, const epw_frame *frame, const epw_fetched *entry, epw_verbs_work *out) {
    epw_carried *carried = pair->carried;
    uint32_t name = carried->posted++;
    carried->works[name & (pair->memory.depth - 1)] = (work){.index = frame->index};
    bool waits = entry->opcode == EPW_OPCODE_READ || entry->opcode == EPW_OPCODE_FETCH_ADD;
    *out = (epw_verbs_work){.name = name,
                            .opcode = entry->opcode,
                            .signalled = entry->signalled || waits || pair->nic->carrier->unordered,
                            .is_inline = entry->is_inline,
                            .key = entry->remote_key,
                            .remote = entry->remote,
                            .count = entry->opcode == EPW_OPCODE_NOP ? 0 : entry->local_count,
                            .inlined = entry->inlined,
                            .inlined_bytes = entry->bytes};
    if (entry->opcode == EPW_OPCODE_FETCH_ADD) out->addend = epw_take_little(entry->inlined, EPW_FRAME_WORD);
    for (uint32_t i = 0; i < out->count; i++) {
        const epw_region *region = epw_regions_find(&pair->nic->regions, entry->local[i].key);
        out->local[i] = entry->local[i]; /* the region exists: epw_pair_next has checked */
        out->local[i].key = region->carried_key;
        out->local[i].offset += EPW_MLX5_SKEW(region->base);
    }
}

/* False: there was nothing to post, or it has failed. */
static bool post_some(epw_pair *pair) {
    epw_verbs_work works[EPW_VERBS_WORKS];
    epw_fetched entries[EPW_VERBS_WORKS];
    epw_frame frame;
    const unsigned char *bytes[EPW_FETCH_SEGMENTS];
    uint32_t count = 0, posted;
    while (count < EPW_VERBS_WORKS && epw_pair_has_more(pair) && !holds_back(pair) &&
           epw_pair_next(pair, &frame, &entries[count], bytes)) {
        describe(pair, &frame, &entries[count], &works[count]);
        count++;
    }
    if (count == 0 || pair->carried->queue == NULL) return false;
    if (calls_of(pair)->post(pair->carried->queue, works, count, &posted) == 0) return true;
    uint32_t index = pair->carried->works[works[posted].name & (pair->memory.depth - 1)].index;
    epw_pair_fail(pair, index, EPW_SYNDROME_OPERATION);
    return false;
}

void epw_carry_send(epw_nic *nic) {
    while (nic->carrier != NULL && nic->carrier->senders != NULL) {
        epw_pair *pair = nic->carrier->senders;
        nic->carrier->senders = pair->next_sender;
        pair->sends = false;
        while (post_some(pair)) {
        }
    }
}

/* ---- completions ---- */

/* All entries up to this one are done. */
static void finish(epw_pair *pair, uint32_t index) {
    if (pair->asked.waits && pair->asked.index == index) {
        epw_pair_answered(pair);
    } else if (!epw_pair_complete(pair, index)) {
        epw_pair_fail(pair, index, EPW_SYNDROME_OPERATION);
    }
}

/* With an adapter that keeps order, an entry's completion completes all earlier ones. With others only the
 * works up to the first gap are complete. */
static void settle(epw_pair *pair, const epw_verbs_done *done) {
    epw_carried *carried = pair->carried;
    uint32_t mask = pair->memory.depth - 1, name = (uint32_t)done->name, last = carried->first - 1;
    if (name - carried->first >= carried->posted - carried->first) return; /* the adapter says it twice */
    work *w = &carried->works[name & mask];
    if (done->syndrome != EPW_SYNDROME_NONE) {
        epw_pair_fail_as(pair, w->index, done->syndrome, done->vendor);
        return;
    }
    w->done = true;
    if (pair->nic->carrier->unordered) {
        for (uint32_t n = carried->first; n != carried->posted && carried->works[n & mask].done; n++)
            last = n;
    } else {
        last = name;
    }
    if (last == carried->first - 1) return;
    carried->first = last + 1;
    finish(pair, carried->works[last & mask].index);
}

enum { DONE_AT_ONCE = 16 };

static bool take_from(epw_pair *pair) {
    epw_verbs_done done[DONE_AT_ONCE];
    uint32_t count = 0;
    bool any = false;
    do {
        if (pair->carried->queue == NULL) return any;
        if (calls_of(pair)->poll(pair->carried->queue, done, DONE_AT_ONCE, &count) != 0) {
            epw_pair_fail(pair, (uint32_t)pair->completed, EPW_SYNDROME_ABORTED);
            return true;
        }
        any |= count > 0;
        for (uint32_t i = 0; i < count && !epw_pair_broken(pair); i++) settle(pair, &done[i]);
    } while (count == DONE_AT_ONCE);
    if (any && pair->link != NULL && epw_pair_has_more(pair)) epw_carry_add(pair); /* it was held back */
    return any;
}

bool epw_carry_take(epw_nic *nic) {
    bool any = false;
    for (uint32_t i = 0; nic->carrier != NULL && i < nic->pair_count; i++) {
        epw_pair *pair = nic->pairs[i];
        if (pair != NULL && pair->travels && epw_pair_is_carried(pair)) any |= take_from(pair);
    }
    return any;
}

/* Done before the completions are taken: later ones announce themselves again. */
void epw_carry_heed(epw_nic *nic) {
    const epw_carrier *carrier = nic->carrier;
    uint64_t name;
    while (carrier != NULL && carrier->calls->announced(carrier->channel, &name) == 0) {
        epw_pair *pair = epw_nic_pair(nic, (uint32_t)name);
        if (pair == NULL || pair->carried == NULL || pair->carried->queue == NULL) continue;
        if (carrier->calls->arm(pair->carried->queue) == 0) continue;
        epw_pair_fail(pair, (uint32_t)pair->completed, EPW_SYNDROME_ABORTED); /* nobody would hear of more */
    }
}
