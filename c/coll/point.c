/* See point.h. */
#include "coll/point.h"

#include "base/clock.h"
#include "coll/credits.h"

#include <stdlib.h>
#include <string.h>

enum {
    READ_BYTES = 1 << 20, /* read from a peer's memory in one turn */
    TELL_BYTES = 32 << 20 /* after so many the peer is told, which shows it that the read goes on */
};

static const epw_credit_limits limits = {EPW_UNRECEIVED_MAX, EPW_EAGER_BYTES};

/* A send or a receive. */
typedef struct transfer {
    epw_coll call;
    epw_job *job;   /* NULL: it was dropped */
    uint64_t bytes; /* of the message; for a receive that is not matched yet, the room */
    uint64_t done;  /* of these, sent or received so far */
    uint32_t offer; /* number of the offer, 0: none */
    uint32_t carry; /* for a message in the peer's memory: PULL or HEAP; `address` is where */
    uint64_t address;
    uint64_t told;     /* of these bytes, those that the peer has been told were read */
    epw_status status; /* another than EPW_OK: it has failed, and continues for the peer's sake */
    uint64_t until;    /* for a send or receive to this rank itself: when it is given up */
    struct transfer *next;
} transfer;

/* A message that has arrived before its receive. */
typedef struct arrival {
    epw_descriptor what;
    uint32_t carry, offer;
    uint64_t bytes, address;
    struct arrival *next;
    unsigned char copy[];
} arrival;

typedef struct list {
    transfer *first, *last;
} list;

typedef struct epw_point {
    list sends;    /* not announced yet */
    list offered;  /* the peer reads it, or will ask for it */
    list asked;    /* asked for, and written as slots become free */
    list receives; /* not matched yet */
    list matched;  /* matched with an offer, to be asked for once a slot is free */
    list awaited;  /* asked for; its bytes are arriving */
    list reading;  /* matched with a message that this rank reads from the peer's memory, a piece in each turn
                    */
    list read;     /* has been read there. Its call ends when the answer DONE is written: the peer waits for
                      that, and this rank may not step again for long */
    arrival *arrivals, *last_arrival;
    uint32_t offers; /* offers made */
    epw_credits credits;
} epw_point;

/* At the end. */
static void append(list *l, transfer *t) {
    t->next = NULL;
    *(l->first != NULL ? &l->last->next : &l->first) = t;
    l->last = t;
}

/* Removes the transfer after `before`, or the first one if that is NULL. */
static transfer *take_after(list *l, transfer *before) {
    transfer **at = before != NULL ? &before->next : &l->first, *t = *at;
    *at = t->next;
    if (l->last == t) l->last = before;
    return t;
}

static transfer *take_first(list *l) {
    return take_after(l, NULL);
}

static void unlink_from(list *l, const transfer *t) {
    transfer *before = NULL;
    for (transfer *at = l->first; at != t; at = at->next) before = at;
    (void)take_after(l, before);
}

static transfer *with_offer(const list *l, uint64_t offer) {
    transfer *t = l->first;
    while (t != NULL && t->offer != offer) t = t->next;
    return t;
}

/* ---- ends ---- */

/* What a transfer that has ended has moved. */
static void count(epw_comm *comm, const transfer *t, bool ended) {
    epw_lane_traffic *traffic = comm->peers.traffic;
    epw_exchanged *with = &traffic->with[t->call.peer];
    epw_count(t->call.kind == EPW_SEND ? &with->bytes_sent : &with->bytes_received, t->done);
    if (ended) epw_count(&traffic->operations, 1);
}

static void end(transfer *t, epw_comm *comm, epw_status status) {
    if (t->status != EPW_OK) status = t->status;
    count(comm, t, t->job != NULL && status == EPW_OK);
    comm->faulted |= t->job != NULL && (status != EPW_OK || t->job->outcome.degraded);
    if (t->job != NULL) {
        if (t->job->status == EPW_OK) t->job->status = status;
        epw_comm_end_of_job(comm, t->job);
    }
    free(t);
}

static void note_without(const transfer *t, uint32_t peer, const epw_error_record *record) {
    if (t->job == NULL) return;
    epw_mask_add(&t->job->outcome.missing, peer);
    t->job->outcome.degraded = 1;
    if (t->job->outcome.record.cause == EPW_CAUSE_NONE) t->job->outcome.record = *record;
}

static void end_without(transfer *t, epw_comm *comm, uint32_t peer, const epw_error_record *record) {
    note_without(t, peer, record);
    end(t, comm, EPW_OK);
}

/* Notes that the peer has given the transfer up. */
static void note_partial(const transfer *t, const epw_comm *comm, const epw_coll_peer *p) {
    epw_error_record partial = {.phase = EPW_PHASE_POINT,
                                .cause = EPW_CAUSE_PARTIAL,
                                .rank = comm->config.rank,
                                .peer = epw_coll_rank(comm, p),
                                .lane = EPW_CHANNEL_POINT,
                                .epoch = epw_word_epoch(comm->own_word)};
    note_without(t, epw_coll_rank(comm, p), &partial);
}

static void end_partial(transfer *t, epw_comm *comm, const epw_coll_peer *p) {
    note_partial(t, comm, p);
    end(t, comm, EPW_OK);
}

static list *list_of(epw_point *point, uint32_t number) {
    list *const lists[] = {&point->sends,   &point->offered, &point->asked,   &point->receives,
                           &point->matched, &point->awaited, &point->reading, &point->read};
    return lists[number];
}
enum { LISTS = 8 };

void epw_point_lose(epw_comm *comm, epw_coll_peer *p) {
    while (p->point->read.first != NULL)
        end(take_first(&p->point->read), comm, EPW_OK); /* they lack nothing */
    for (uint32_t i = 0; i < LISTS; i++) {
        list *l = list_of(p->point, i);
        while (l->first != NULL)
            end_without(take_first(l), comm, epw_coll_rank(comm, p), &comm->point_record);
    }
}

void epw_points_end(epw_comm *comm, epw_status status) {
    EPW_COMM_PEERS(p, comm) {
        for (uint32_t i = 0; i < LISTS; i++) {
            list *l = list_of(p->point, i);
            while (l->first != NULL) end(take_first(l), comm, status);
        }
    }
}

static void forget(epw_point *point) {
    for (uint32_t i = 0; i < LISTS; i++)
        while (list_of(point, i)->first != NULL) free(take_first(list_of(point, i)));
    while (point->arrivals != NULL) {
        arrival *a = point->arrivals;
        point->arrivals = a->next;
        free(a);
    }
    *point = (epw_point){0};
}

void epw_points_forget(epw_comm *comm) {
    EPW_COMM_PEERS(p, comm) forget(p->point);
}

bool epw_points_make(epw_comm *comm) {
    EPW_COMM_PEERS(p, comm) {
        p->point = calloc(1, sizeof *p->point);
        if (p->point == NULL) return false;
    }
    return true;
}

void epw_points_free(epw_comm *comm) {
    EPW_COMM_PEERS(p, comm) {
        if (p->point != NULL) forget(p->point);
        free(p->point);
        p->point = NULL;
    }
}

void epw_points_drop(epw_comm *comm, const epw_job *job) {
    EPW_COMM_PEERS(p, comm) {
        for (uint32_t i = 0; i < LISTS; i++)
            for (transfer *t = list_of(p->point, i)->first; t != NULL; t = t->next)
                if (t->job == job) t->job = NULL;
        /* A receive that is not matched is removed, as if it had not been called. */
        transfer *before = NULL, *next;
        for (transfer *t = p->point->receives.first; t != NULL; t = next) {
            next = t->next;
            if (t->job == NULL) {
                free(take_after(&p->point->receives, before));
            } else {
                before = t;
            }
        }
    }
}

/* ---- beginning ---- */

bool epw_point_add(epw_comm *comm, const epw_coll *call, epw_job *job, uint64_t now) {
    epw_coll_peer *p = &comm->of[call->peer];
    transfer *t = calloc(1, sizeof *t);
    if (t == NULL) return false;
    uint64_t deadline = job->deadline_ns > 0 ? job->deadline_ns : comm->config.deadline_ns;
    *t = (transfer){.call = *call,
                    .job = job,
                    .bytes = call->count * epw_type_bytes(call->type),
                    .until = now + deadline};
    if (!epw_coll_present(p)) {
        epw_error_record lost = epw_comm_suspected(comm, p, EPW_PHASE_POINT);
        end_without(t, comm, call->peer, &lost);
        return true;
    }
    if (!epw_point_owed(p) && epw_flow_over(p)) epw_comm_wait_begins(p, now);
    append(call->kind == EPW_SEND ? &p->point->sends : &p->point->receives, t);
    comm->pointing = true;
    return true;
}

/* Whether nothing is under way, and the peer has been told of all that it has sent. */
static bool is_idle(epw_point *point) {
    for (uint32_t i = 0; i < LISTS; i++)
        if (list_of(point, i)->first != NULL) return false;
    return !epw_credits_to_report(&point->credits);
}

bool epw_point_awaits(const epw_coll_peer *p) {
    const epw_point *point = p->point;
    return point->offered.first != NULL || point->receives.first != NULL || point->awaited.first != NULL ||
           (point->sends.first != NULL && p->rings[EPW_CHANNEL_POINT].posted > 0);
}

/* Whether the list has a transfer that was not dropped: the peer need not receive a send that was dropped, or
 * make room for the answer to a receive that was. */
static bool any_wanted(const list *l) {
    const transfer *t = l->first;
    while (t != NULL && t->job == NULL) t = t->next;
    return t != NULL;
}

bool epw_point_owed(const epw_coll_peer *p) {
    const epw_point *point = p->point;
    return any_wanted(&point->sends) || any_wanted(&point->offered) || point->asked.first != NULL ||
           point->receives.first != NULL || point->matched.first != NULL || point->awaited.first != NULL ||
           any_wanted(&point->read);
}

/* Whether the peer is to be told how much of its memory has been read. */
static bool has_read_more(const epw_point *point) {
    const transfer *t = point->reading.first;
    return t != NULL && t->done >= t->told + TELL_BYTES;
}

bool epw_point_has_more(const epw_coll_peer *p) {
    const epw_point *point = p->point;
    return point->sends.first != NULL || point->asked.first != NULL || point->matched.first != NULL ||
           point->read.first != NULL || has_read_more(point) || epw_credits_to_report(&point->credits);
}

/* ---- to peers ---- */

/* Writes a message with this header, followed by its bytes of `from` if it is inline. */
static void write(epw_comm *comm, epw_coll_peer *p, const epw_message *said, const unsigned char *from) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_POINT];
    epw_message *slot = epw_slot_for(comm, p, EPW_CHANNEL_POINT, ring->posted + 1);
    if (from != NULL && said->carry == EPW_CARRY_INLINE) memcpy(slot + 1, from, said->bytes);
    *slot = *said;
    slot->number = ring->posted + 1;
    epw_ring_wrote(ring, false);
}

static const unsigned char *bytes_to_send(const transfer *t) {
    return (const unsigned char *)t->call.send + t->done;
}

static epw_descriptor what(const transfer *t) {
    return epw_descriptor_of(&t->call, 0);
}

/* Writes an answer to an offer, or a report of what was received. */
static bool write_answer(epw_comm *comm, epw_coll_peer *p) {
    epw_point *point = p->point;
    if (point->matched.first != NULL) {
        transfer *t = take_first(&point->matched);
        write(comm, p, &(epw_message){.carry = EPW_CARRY_ASK, .address = t->offer}, NULL);
        append(&point->awaited, t);
        return true;
    }
    if (point->read.first != NULL) {
        transfer *t = take_first(&point->read);
        write(comm, p, &(epw_message){.carry = EPW_CARRY_DONE, .address = t->offer, .bytes = t->bytes}, NULL);
        end(t, comm, EPW_OK);
        return true;
    }
    if (has_read_more(point)) {
        transfer *reading = point->reading.first;
        reading->told = reading->done;
        write(comm, p,
              &(epw_message){.carry = EPW_CARRY_DONE, .address = reading->offer, .bytes = reading->done},
              NULL);
        return true;
    }
    if (!epw_credits_to_report(&point->credits)) return false;
    epw_credit said = epw_credits_report(&point->credits);
    write(comm, p, &(epw_message){.carry = EPW_CARRY_MATCHED, .bytes = said.bytes, .address = said.messages},
          NULL);
    return true;
}

/* Writes the next piece of a message that the peer has asked for. */
static bool write_asked(epw_comm *comm, epw_coll_peer *p) {
    transfer *t = p->point->asked.first;
    if (t == NULL) return false;
    uint64_t bytes = t->bytes - t->done;
    if (bytes > comm->layout.slot_bytes) bytes = comm->layout.slot_bytes;
    bool dropped = t->job == NULL;
    epw_message said = {.call = t->offer,
                        .carry = dropped ? EPW_CARRY_VOID : EPW_CARRY_INLINE,
                        .what = what(t),
                        .bytes = dropped ? 0 : bytes,
                        .address = t->done};
    write(comm, p, &said, dropped ? NULL : bytes_to_send(t));
    t->done += said.bytes;
    if (dropped || t->done == t->bytes) end(take_first(&p->point->asked), comm, EPW_OK);
    return true;
}

static bool write_send(epw_comm *comm, epw_coll_peer *p) {
    epw_point *point = p->point;
    transfer *t = point->sends.first;
    if (t == NULL || !epw_credits_may_send(&point->credits, limits)) return false;
    /* A send that was dropped is offered too, so that its receive matches it, and learns that nothing comes.
     */
    bool dropped = t->job == NULL;
    bool eager =
        !dropped && epw_credits_are_enough(&point->credits, t->bytes, comm->layout.slot_bytes, limits);
    epw_message said = {.carry = EPW_CARRY_INLINE, .what = what(t), .bytes = t->bytes};
    if (!eager) {
        /* The peer may read the caller's memory only if the call cannot be dropped. */
        if (!dropped && t->job->waits)
            said.carry = epw_carry_of(comm, p, t->call.send, t->bytes, &said.address);
        if (said.carry == EPW_CARRY_INLINE) said.carry = EPW_CARRY_OFFER;
        if (++point->offers == 0) point->offers = 1; /* 0 is no offer */
        said.call = t->offer = point->offers;
    }
    write(comm, p, &said, bytes_to_send(t));
    epw_credits_sent(&point->credits, eager ? t->bytes : 0);
    take_first(&point->sends);
    if (eager) {
        t->done = t->bytes;
        end(t, comm, EPW_OK);
    } else {
        append(&point->offered, t);
    }
    return true;
}

/* ---- from peers ---- */

/* For the error of a receive that has no room for the message. */
static void note_length(transfer *t, const epw_descriptor *sent) {
    t->status = EPW_ERR_LIMIT;
    if (t->job == NULL || t->job->status != EPW_OK) return;
    t->job->status = t->status;
    t->job->longer = *sent;
    t->job->room = t->call.count;
    t->job->sender = t->call.peer;
}

/* If the message is longer than the receive that it matches, the message is consumed and the receive
 * fails. */
static bool too_long(epw_comm *comm, transfer *t, const epw_descriptor *sent) {
    if (sent->count <= t->call.count) return false;
    note_length(t, sent);
    end(t, comm, EPW_ERR_LIMIT);
    return true;
}

/* Gives the message to a receive that has been taken out of the list. */
static void receive(epw_comm *comm, epw_coll_peer *p, transfer *t, const arrival *a,
                    const unsigned char *bytes) {
    epw_point *point = p->point;
    bool eager = a->carry == EPW_CARRY_INLINE, long_one = a->what.count > t->call.count;
    epw_credits_matched(&point->credits, eager ? a->bytes : 0);
    if (eager) {
        if (too_long(comm, t, &a->what)) return;
        if (a->bytes > 0) memcpy(t->call.recv, bytes, a->bytes);
        t->done = a->bytes;
        end(t, comm, EPW_OK);
        return;
    }
    t->offer = a->offer;
    t->carry = a->carry;
    t->address = a->address;
    t->bytes = a->bytes;
    if (long_one) note_length(t, &a->what);
    if (a->carry == EPW_CARRY_OFFER) {
        /* A message that is too long is asked for all the same, and discarded. */
        if (long_one) t->call.recv = NULL;
        append(&point->matched, t);
    } else {
        append(long_one ? &point->read : &point->reading, t);
    }
}

/* Reads only the next piece from the peer's memory, so that threads that step this communicator, and peers
 * that wait for a sign of life, need not wait for the whole message. */
static bool read_lent(epw_comm *comm, epw_coll_peer *p) {
    transfer *t = p->point->reading.first;
    if (t == NULL) return false;
    uint64_t bytes = t->bytes - t->done;
    if (bytes > READ_BYTES) bytes = READ_BYTES;
    bool wanted = t->job != NULL;
    bool given = !wanted || epw_read_borrowed(comm, p, t->carry, (unsigned char *)t->call.recv + t->done,
                                              t->address + t->done, bytes);
    if (wanted && given) t->done += bytes;
    if (wanted && given && t->done < t->bytes) return true;
    if (!given) note_partial(t, comm, p);
    append(&p->point->read, take_first(&p->point->reading));
    return true;
}

/* Takes the first receive with the message's tag out of the list. If it is of another type, all ranks are
 * told, and the epoch is over: receive and message stay, and nothing else may be matched, since it would be
 * out of order. */
static transfer *matching_receive(epw_comm *comm, epw_coll_peer *p, const epw_descriptor *sent) {
    transfer *t = p->point->receives.first;
    while (t != NULL && t->call.tag != sent->peer) t = t->next;
    if (t == NULL) return NULL;
    if (t->call.type != sent->type) {
        epw_descriptor own = what(t);
        own.kind = EPW_RECV;
        epw_comm_mismatched_message(comm, p, &own, sent, epw_now_ns());
        return NULL;
    }
    unlink_from(&p->point->receives, t);
    return t;
}

static bool keep(epw_point *point, const arrival *a, const unsigned char *bytes) {
    uint64_t copied = a->carry == EPW_CARRY_INLINE ? a->bytes : 0;
    if (!epw_credits_keep(&point->credits, copied, limits)) return false;
    arrival *kept = malloc(sizeof *kept + copied);
    if (kept == NULL) {
        epw_credits_unkeep(&point->credits, copied);
        return false;
    }
    *kept = *a;
    kept->next = NULL;
    if (copied > 0) memcpy(kept->copy, bytes, copied);
    *(point->arrivals != NULL ? &point->last_arrival->next : &point->arrivals) = kept;
    point->last_arrival = kept;
    return true;
}

static bool arrived(epw_comm *comm, epw_coll_peer *p, const epw_message *m, const unsigned char *bytes) {
    arrival a = {
        .what = m->what, .carry = m->carry, .offer = m->call, .bytes = m->bytes, .address = m->address};
    if (m->what.count > m->bytes || m->what.count * epw_type_bytes(m->what.type) != m->bytes) return false;
    transfer *t = matching_receive(comm, p, &a.what);
    if (t == NULL) return keep(p->point, &a, bytes);
    receive(comm, p, t, &a, bytes);
    return true;
}

/* Takes a piece of a message that was asked for. */
static bool piece_came(epw_comm *comm, epw_coll_peer *p, const epw_message *m, const unsigned char *bytes) {
    transfer *t = with_offer(&p->point->awaited, m->call);
    if (t == NULL || m->address != t->done || m->bytes > t->bytes - t->done) return false;
    if (m->carry == EPW_CARRY_VOID) {
        unlink_from(&p->point->awaited, t);
        end_partial(t, comm, p);
        return true;
    }
    if (t->job != NULL && t->call.recv != NULL)
        memcpy((unsigned char *)t->call.recv + t->done, bytes, m->bytes);
    t->done += m->bytes;
    if (t->done == t->bytes) {
        unlink_from(&p->point->awaited, t);
        end(t, comm, EPW_OK);
    }
    return true;
}

static bool asked_for(epw_coll_peer *p, const epw_message *m) {
    transfer *t = with_offer(&p->point->offered, m->address);
    if (t == NULL) return false;
    unlink_from(&p->point->offered, t);
    append(&p->point->asked, t);
    return true;
}

static bool read_there(epw_comm *comm, epw_coll_peer *p, const epw_message *m) {
    transfer *t = with_offer(&p->point->offered, m->address);
    if (t == NULL || m->bytes > t->bytes) return false;
    if (m->bytes < t->bytes) return true; /* it goes on */
    unlink_from(&p->point->offered, t);
    t->done = t->bytes;
    end(t, comm, EPW_OK);
    return true;
}

static bool is_send(const epw_comm *comm, const epw_message *m) {
    return m->what.kind == EPW_SEND && m->what.peer <= EPW_TAG_MAX &&
           (m->carry != EPW_CARRY_INLINE || m->bytes <= comm->layout.slot_bytes);
}

/* Handles one message; false: a correct peer would not have sent it. */
static bool take_in(epw_comm *comm, epw_coll_peer *p, const epw_message *m, const unsigned char *bytes) {
    switch (m->carry) {
    case EPW_CARRY_INLINE:
        if (!is_send(comm, m)) return false;
        return m->call == 0 ? arrived(comm, p, m, bytes) : piece_came(comm, p, m, bytes);
    case EPW_CARRY_PULL:
    case EPW_CARRY_HEAP:
    case EPW_CARRY_OFFER:
        return is_send(comm, m) && epw_may_borrow(comm, p, m) && arrived(comm, p, m, bytes);
    case EPW_CARRY_VOID:
        return piece_came(comm, p, m, bytes);
    case EPW_CARRY_ASK:
        return asked_for(p, m);
    case EPW_CARRY_DONE:
        return read_there(comm, p, m);
    case EPW_CARRY_MATCHED:
        return epw_credits_returned(&p->point->credits, m->address, m->bytes);
    default:
        return false;
    }
}

static bool read_ring(epw_comm *comm, epw_coll_peer *p) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_POINT];
    if (!epw_ring_may_read(ring)) return false;
    const unsigned char *slot =
        epw_peers_from(&comm->peers, epw_coll_rank(comm, p)) +
        epw_message_offset(&comm->layout, EPW_CHANNEL_POINT, epw_coll_rank(comm, p), ring->consumed + 1);
    epw_message m; /* a copy, since the source can write there at any time */
    memcpy(&m, slot, sizeof m);
    if (m.number != ring->consumed + 1 || !take_in(comm, p, &m, slot + sizeof m)) {
        if (p->gone == EPW_CAUSE_NONE) p->gone = EPW_CAUSE_FORMAT;
        ring->seen = ring->consumed;
        return false;
    }
    epw_ring_consume(ring);
    return true;
}

/* Matches receives that were called after their message had arrived. */
static bool match_arrivals(epw_comm *comm, epw_coll_peer *p) {
    bool moved = false;
    arrival *before = NULL, *next;
    for (arrival *a = p->point->arrivals; a != NULL && p->point->receives.first != NULL && !comm->mismatched;
         a = next) {
        next = a->next;
        transfer *t = matching_receive(comm, p, &a->what);
        if (t == NULL) {
            before = a;
            continue;
        }
        *(before != NULL ? &before->next : &p->point->arrivals) = next;
        if (p->point->last_arrival == a) p->point->last_arrival = before;
        epw_credits_unkeep(&p->point->credits, a->carry == EPW_CARRY_INLINE ? a->bytes : 0);
        receive(comm, p, t, a, a->copy);
        free(a);
        moved = true;
    }
    return moved;
}

/* ---- to this rank itself ---- */

static bool give_myself(epw_comm *comm, epw_coll_peer *p) {
    epw_point *point = p->point;
    transfer *before = NULL;
    for (transfer *t = point->sends.first; t != NULL && !comm->mismatched; before = t, t = t->next) {
        epw_descriptor sent = what(t);
        transfer *r = matching_receive(comm, p, &sent);
        if (r == NULL) continue;
        (void)take_after(&point->sends, before);
        if (too_long(comm, r, &sent)) {
            /* it has ended */
        } else if (t->job == NULL) {
            end_partial(r, comm, p);
        } else {
            if (t->bytes > 0) memmove(r->call.recv, t->call.send, t->bytes);
            r->done = t->done = t->bytes;
            end(r, comm, EPW_OK);
        }
        end(t, comm, EPW_OK);
        return true;
    }
    return false;
}

/* Gives up a transfer whose time is over. Looks at the whole list: a later call may have a shorter time. */
static bool give_up_on_myself(epw_comm *comm, epw_coll_peer *p, uint64_t now) {
    list *const lists[] = {&p->point->sends, &p->point->receives};
    for (uint32_t i = 0; i < 2; i++) {
        for (transfer *t = lists[i]->first; t != NULL; t = t->next) {
            if (t->until > now) continue;
            unlink_from(lists[i], t);
            end(t, comm, EPW_ERR_TIMEOUT);
            return true;
        }
    }
    return false;
}

uint64_t epw_points_expiry(const epw_comm *comm) {
    const epw_point *own = comm->of[comm->config.rank].point;
    uint64_t first = UINT64_MAX;
    if (!comm->pointing) return first;
    for (const transfer *t = own->sends.first; t != NULL; t = t->next)
        if (t->until < first) first = t->until;
    for (const transfer *t = own->receives.first; t != NULL; t = t->next)
        if (t->until < first) first = t->until;
    return first;
}

/* ---- all of it ---- */

bool epw_points_move(epw_comm *comm, uint64_t now) {
    bool moved = false, idle = true;
    if (!comm->pointing) return false;
    EPW_COMM_PEERS(p, comm) {
        if (!epw_coll_present(p) || comm->mismatched) continue;
        if (epw_coll_is_me(comm, p)) {
            while (give_myself(comm, p) || give_up_on_myself(comm, p, now)) moved = true;
            continue;
        }
        /* Messages that arrived earlier are matched first. */
        moved |= match_arrivals(comm, p);
        while (!comm->mismatched && read_ring(comm, p)) moved = true;
        moved |= read_lent(comm, p);
        bool more = true;
        while (more && p->begun && p->gone == EPW_CAUSE_NONE &&
               epw_ring_has_room(&p->rings[EPW_CHANNEL_POINT], comm->layout.slots)) {
            more = write_answer(comm, p) || write_asked(comm, p) || write_send(comm, p);
            moved |= more;
        }
    }
    EPW_COMM_PEERS(p, comm) if (epw_coll_present(p)) idle &= is_idle(p->point);
    comm->pointing = !idle;
    if (moved) epw_rings_post(comm, now);
    return moved;
}
