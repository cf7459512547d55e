/* Sending over a connection of a soft NIC: entries become frames, and frames become system calls. */
#include "nic/soft/parts.h"

#include "base/little_endian.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    /* A turn of one connection ends after this much, so that others have theirs. */
    SEND_TURN_FRAMES = 4096,
    SEND_TURN_BYTES = 8 << 20,
    /* A pair that has more waits for its next turn. */
    PAIR_TURN_FRAMES = 32
};

/* ---- whose turn it is ---- */

/* A planned fault of order: the pair that was added last sends first. */
static void turn_senders_round(epw_link *link) {
    epw_pair *turned = NULL, *pair = link->senders;
    link->last_sender = pair;
    while (pair != NULL) {
        epw_pair *next = pair->next_sender;
        pair->next_sender = turned;
        turned = pair;
        pair = next;
    }
    link->senders = turned;
}

static epw_pair *take_sender(epw_link *link) {
    epw_pair *pair = link->senders;
    link->senders = pair->next_sender;
    pair->sends = false;
    return pair;
}

static epw_pair *take_answerer(epw_link *link) {
    epw_pair *pair = link->answerers;
    link->answerers = pair->next_answerer;
    pair->answers = false;
    return pair;
}

/* ---- frames ---- */

static bool has_room(const epw_link *link) {
    uint32_t frames = link->nic->strict == NULL ? 2 : 3; /* an ACK after it, and a fault may double it */
    return link->out_count + LINK_PIECES * frames <= LINK_PIECES * LINK_FRAMES &&
           link->heads_used + frames * (EPW_FRAME_BYTES + EPW_FETCH_INLINE) <= LINK_HEADS_BYTES;
}

static void add_bytes(epw_link *link, const unsigned char *bytes, size_t length) {
    struct iovec *last = link->out_count > 0 ? &link->out[link->out_count - 1] : NULL;
    if (last != NULL && (unsigned char *)last->iov_base + last->iov_len == bytes) {
        last->iov_len += length;
    } else {
        link->out[link->out_count++] =
            (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    }
}

static unsigned char *add_frame(epw_link *link, const epw_frame *frame, size_t with) {
    unsigned char *head = link->heads + link->heads_used;
    epw_frame_write(frame, head);
    link->heads_used += (uint32_t)(EPW_FRAME_BYTES + with);
    link->last_head = NULL;
    link->nic->sent.frames++;
    add_bytes(link, head, EPW_FRAME_BYTES + with);
    return head + EPW_FRAME_BYTES;
}

static void add_ack(epw_link *link, epw_pair *pair) {
    epw_frame frame = {.kind = EPW_FRAME_ACK, .pair = pair->answers_to, .index = pair->ack};
    pair->ack_due = false;
    add_frame(link, &frame, 0);
}

static void add_nak(epw_link *link, uint32_t pair, uint32_t index, uint8_t syndrome) {
    epw_frame frame = {.kind = EPW_FRAME_NAK, .pair = pair, .index = index, .syndrome = syndrome};
    add_frame(link, &frame, 0);
}

static void add_notices(epw_link *link) {
    uint32_t added = 0;
    while (added < link->notice_count && has_room(link)) add_frame(link, &link->notices[added++], 0);
    link->notice_count -= added;
    memmove(link->notices, link->notices + added, link->notice_count * sizeof link->notices[0]);
}

/* The bytes that a READ asked for, sent from where they lie, or the value that a FETCH_ADD found. */
static void add_answer(epw_link *link, epw_pair *pair) {
    const epw_frame *asked = &pair->owed.request;
    epw_frame frame = {
        .kind = EPW_FRAME_ANSWER, .pair = pair->answers_to, .index = asked->index, .bytes = asked->bytes};
    if (asked->kind == EPW_FRAME_FETCH_ADD) {
        epw_put_little(add_frame(link, &frame, EPW_FRAME_WORD), pair->owed.old, EPW_FRAME_WORD);
        return;
    }
    const epw_region *region = epw_regions_find(&link->nic->regions, asked->key);
    const unsigned char *at =
        region != NULL ? epw_region_at(region, EPW_REGION_READ, asked->offset, asked->bytes) : NULL;
    if (at == NULL) {
        pair->closed = true;
        add_nak(link, pair->answers_to, asked->index, EPW_SYNDROME_REMOTE_ACCESS);
        return;
    }
    add_frame(link, &frame, 0);
    if (asked->bytes > 0) add_bytes(link, at, asked->bytes);
}

/* An ANSWER or a NAK comes after the ACK of earlier entries. */
static void add_answers(epw_link *link) {
    link->urgent = false;
    link->acks_by = 0;
    while (link->answerers != NULL && has_room(link)) {
        epw_pair *pair = link->answerers;
        if (pair->ack_due) {
            add_ack(link, pair);
        } else if (pair->owed.due) {
            pair->owed.due = false;
            add_answer(link, pair);
        } else {
            take_answerer(link);
        }
    }
    add_notices(link);
    link->urgent = link->answerers != NULL; /* there was no room for all */
}

/* Writes its header, or rewrites that of the previous frame if the entry shares it. */
static void add_segments_frame(epw_link *link, const epw_frame *frame) {
    if (link->last_head == NULL || !epw_frame_extend(&link->last, frame)) {
        unsigned char *head = add_frame(link, frame, 0) - EPW_FRAME_BYTES;
        link->last = *frame;
        link->last_head = frame->kind == EPW_FRAME_WRITE ? head : NULL;
        return;
    }
    epw_frame_write(&link->last, link->last_head);
}

/* Inline bytes are copied, as an adapter does; others stay where they are until they are acknowledged. */
static void add_request(epw_link *link, const epw_frame *frame, const epw_fetched *entry,
                        const unsigned char *const *bytes) {
    uint32_t payload = epw_frame_payload(frame);
    if (entry->is_inline) {
        memcpy(add_frame(link, frame, payload), entry->inlined, payload);
        return;
    }
    add_segments_frame(link, frame);
    for (uint32_t i = 0; payload > 0 && i < entry->local_count; i++)
        add_bytes(link, bytes[i], entry->local[i].bytes);
}

/* At a strict NIC. True if nothing more of the frame is to be added. */
static bool meets_fault(epw_link *link, epw_pair *pair, const epw_frame *frame, const epw_fetched *entry,
                        const unsigned char *const *bytes) {
    epw_fault fault = epw_strict_take(pair, frame->index);
    link->frozen = fault.kind == EPW_FAULT_FREEZE;
    link->ends = fault.kind == EPW_FAULT_DROP || fault.kind == EPW_FAULT_TEAR;
    if (fault.kind == EPW_FAULT_DUPLICATE) add_request(link, frame, entry, bytes);
    if (fault.kind == EPW_FAULT_TEAR && fault.bytes > 0) {
        unsigned char *head = link->heads + link->heads_used;
        epw_frame_write(frame, head);
        link->heads_used += fault.bytes;
        add_bytes(link, head, fault.bytes);
    }
    if (fault.kind == EPW_FAULT_FREEZE) epw_nic_freeze(link);
    return link->frozen || link->ends;
}

/* The ACK of what a pair has received travels with what it sends, unless that came over another connection.
 */
static void add_entries(epw_link *link) {
    if (link->nic->strict != NULL && link->nic->strict->fault.kind == EPW_FAULT_REORDER)
        turn_senders_round(link);
    while (link->senders != NULL && has_room(link)) {
        epw_pair *pair = take_sender(link);
        epw_frame frame;
        epw_fetched entry;
        const unsigned char *bytes[EPW_FETCH_SEGMENTS];
        uint32_t turn = 0;
        while (has_room(link) && turn++ < PAIR_TURN_FRAMES && epw_pair_next(pair, &frame, &entry, bytes)) {
            if (link->nic->strict == NULL || !meets_fault(link, pair, &frame, &entry, bytes))
                add_request(link, &frame, &entry, bytes);
            if (link->ends || link->frozen) return;
        }
        if (turn > 1 && pair->ack_due) add_ack(link, pair);
        if (epw_pair_has_more(pair)) epw_link_has_sender(link, pair);
    }
}

static void fill(epw_link *link) {
    epw_link_drop_copied(link);
    link->out_at = link->out_count = link->heads_used = 0;
    link->last_head = NULL;
    add_answers(link);
    add_entries(link);
}

static void sent(epw_link *link, size_t bytes) {
    while (bytes > 0) {
        struct iovec *first = &link->out[link->out_at];
        if (bytes < first->iov_len) {
            first->iov_base = (unsigned char *)first->iov_base + bytes;
            first->iov_len -= bytes;
            return;
        }
        bytes -= first->iov_len;
        link->out_at++;
    }
}

bool epw_link_has_output(const epw_link *link) {
    return link->senders != NULL || link->answerers != NULL || link->notice_count > 0;
}

bool epw_link_may_wait(const epw_link *link) {
    bool acks_alone = link->senders == NULL && !link->urgent && link->notice_count == 0;
    return acks_alone && link->nic->now_ns != 0 && link->nic->now_ns < link->acks_by;
}

/* ---- system calls ---- */

static ssize_t send_pieces(epw_link *link, struct iovec *from, size_t count) {
    if (link->rings.memory != NULL) return epw_ring_write(&link->rings.out, link->fd, from, count);
    struct msghdr message = {.msg_iov = from, .msg_iovlen = count};
    return sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* As sendmsg that does not block, of at most so many bytes. */
static ssize_t send_some(epw_link *link, uint64_t most) {
    struct iovec *from = link->out + link->out_at, *last = from, *end = link->out + link->out_count;
    uint64_t bytes = from->iov_len;
    while (bytes < most && last + 1 < end) bytes += (++last)->iov_len;
    size_t beyond = bytes > most ? bytes - most : 0;
    last->iov_len -= beyond;
    ssize_t n = send_pieces(link, from, (size_t)(last - from) + 1);
    last->iov_len += beyond;
    return n;
}

bool epw_link_send(epw_link *link) {
    if (link->awaits_rings) return true;
    uint64_t left = SEND_TURN_BYTES;
    for (uint32_t frames = 0; frames < SEND_TURN_FRAMES && left > 0 && !link->frozen; frames += LINK_FRAMES) {
        if (link->out_at == link->out_count) fill(link);
        while (link->out_at < link->out_count && left > 0) {
            ssize_t n = send_some(link, left);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
                epw_nic_await_room(link, true);
                return true;
            }
            if (n < 0) return false;
            link->nic->sent.bytes += (uint64_t)n;
            sent(link, (size_t)n);
            left -= (uint64_t)n;
        }
        if (link->out_at < link->out_count) break;
        if (link->ends) return false;
        if (!epw_link_has_output(link)) {
            epw_nic_await_room(link, false);
            return true;
        }
    }
    if (link->frozen) return true;
    epw_nic_await_room(link, true); /* there is room, and there are others */
    return true;
}

/* ---- copies ---- */

static bool lies_in(const void *at, const unsigned char *memory, uint64_t bytes) {
    return (uintptr_t)at - (uintptr_t)memory < bytes;
}

/* Whether the piece has been copied, or never lay anywhere else. */
static bool is_own(const epw_link *link, const struct iovec *piece) {
    if (lies_in(piece->iov_base, link->heads, LINK_HEADS_BYTES)) return true;
    for (const epw_copied *c = link->copied; c != NULL; c = c->next)
        if (lies_in(piece->iov_base, c->at, c->bytes)) return true;
    return false;
}

/* Pieces that lie next to each other are one, also if they are of two regions. */
static bool touches(const epw_region *region, const struct iovec *piece) {
    uintptr_t begin = (uintptr_t)piece->iov_base, end = begin + piece->iov_len;
    for (uint32_t i = 0; i < region->count; i++) {
        const epw_stretch *s = &region->stretches[i];
        uintptr_t at = (uintptr_t)region->base + s->offset;
        if (begin < at + s->bytes && at < end) return true;
    }
    return false;
}

static bool is_to_be_copied(const epw_link *link, const epw_region *region, const struct iovec *piece) {
    return region != NULL ? touches(region, piece) : !is_own(link, piece);
}

bool epw_link_copy_out(epw_link *link, const epw_region *region) {
    uint64_t bytes = 0;
    for (uint32_t i = link->out_at; i < link->out_count; i++)
        if (is_to_be_copied(link, region, &link->out[i])) bytes += link->out[i].iov_len;
    if (bytes == 0) return true;
    epw_copied *copied = malloc(sizeof *copied + bytes);
    if (copied == NULL) return false;
    unsigned char *at = copied->at;
    for (uint32_t i = link->out_at; i < link->out_count; i++) {
        struct iovec *piece = &link->out[i];
        if (!is_to_be_copied(link, region, piece)) continue;
        memcpy(at, piece->iov_base, piece->iov_len);
        piece->iov_base = at;
        at += piece->iov_len;
    }
    copied->bytes = bytes;
    copied->next = link->copied;
    link->copied = copied;
    return true;
}

void epw_link_drop_copied(epw_link *link) {
    while (link->copied != NULL) {
        epw_copied *next = link->copied->next;
        free(link->copied);
        link->copied = next;
    }
}
