/* A connection of a soft NIC: frames out, frames in. */
#include "nic/soft/parts.h"

#include "base/little_endian.h"
#include "ipc/process.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    /* A turn of one connection ends here, so that others have theirs. */
    READ_TURN_BYTES = 8 << 20,
    SEND_TURN_FRAMES = 4096,
    /* A pair that has more waits for its next turn. */
    PAIR_TURN_FRAMES = 32,
    /* From here on a system call for each costs less than a copy. */
    LONG_FRAME_BYTES = 4096
};

epw_link *epw_link_open(epw_nic *nic, int fd, uint32_t peer) {
    epw_link *link = calloc(1, sizeof *link);
    if (link == NULL) return NULL;
    link->nic = nic;
    link->fd = fd;
    link->peer = peer;
    return link;
}

void epw_link_free(epw_link *link) {
    epw_rings_unmap(&link->rings);
    epw_fd_release(link->fd);
    free(link->copied);
    free(link);
}

/* ---- who has something to say ---- */

void epw_link_has_sender(epw_link *link, epw_pair *pair) {
    if (pair->sends) return;
    pair->sends = true;
    pair->next_sender = NULL;
    if (link->senders == NULL) {
        link->senders = pair;
    } else {
        link->last_sender->next_sender = pair;
    }
    link->last_sender = pair;
}

/* A planned fault of order: the last one first. */
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

static void drop_sender(epw_link *link, const epw_pair *pair) {
    epw_pair *kept = link->senders;
    link->senders = NULL;
    while (kept != NULL) {
        epw_pair *next = kept->next_sender;
        kept->sends = false;
        if (kept != pair) epw_link_has_sender(link, kept);
        kept = next;
    }
}

/* An ACK may wait for what the driver sends next. */
static void has_answer(epw_link *link, epw_pair *pair) {
    uint64_t now = link->nic->now_ns;
    if (pair->owed.due || now == 0) link->urgent = true;
    if (link->acks_by == 0) link->acks_by = now + EPW_NIC_ACK_NS;
    if (pair->answers) return;
    pair->answers = true;
    pair->next_answerer = link->answerers;
    link->answerers = pair;
}

static epw_pair *take_answerer(epw_link *link) {
    epw_pair *pair = link->answerers;
    link->answerers = pair->next_answerer;
    pair->answers = false;
    return pair;
}

static void drop_answerer(epw_link *link, epw_pair *pair) {
    for (epw_pair **at = &link->answerers; *at != NULL;) {
        if (*at == pair) {
            *at = pair->next_answerer;
        } else {
            at = &(*at)->next_answerer;
        }
    }
    pair->answers = false;
}

/* A sender goes on for a while until it hears of it. One answer is enough; where there are very many, their
 * next frames are refused again. */
static void refuse(epw_link *link, const epw_frame *frame, uint8_t syndrome) {
    for (uint32_t i = 0; i < link->refusal_count; i++)
        if (link->refusals[i].pair == frame->from) return;
    if (link->refusal_count == LINK_REFUSALS) return;
    link->refusals[link->refusal_count++] =
        (epw_refusal){.pair = frame->from, .index = frame->index, .syndrome = syndrome};
}

/* ---- out ---- */

static bool has_room(const epw_link *link) {
    uint32_t frames = link->nic->strict == NULL ? 1 : 2; /* a fault may double one */
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
    link->nic->sent.frames++;
    add_bytes(link, head, EPW_FRAME_BYTES + with);
    return head + EPW_FRAME_BYTES;
}

static void add_nak(epw_link *link, uint32_t pair, uint32_t index, uint8_t syndrome) {
    epw_frame frame = {.kind = EPW_FRAME_NAK, .pair = pair, .index = index, .syndrome = syndrome};
    add_frame(link, &frame, 0);
}

/* What a READ asked for, from where it lies, or what a FETCH_ADD found. */
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

/* An ANSWER, and a NAK, is behind the ACK of what was before it. */
static void add_answers(epw_link *link) {
    link->urgent = false;
    link->acks_by = 0;
    while (link->answerers != NULL && has_room(link)) {
        epw_pair *pair = link->answerers;
        if (pair->ack_due) {
            pair->ack_due = false;
            epw_frame frame = {.kind = EPW_FRAME_ACK, .pair = pair->answers_to, .index = pair->ack};
            add_frame(link, &frame, 0);
        } else if (pair->owed.due) {
            pair->owed.due = false;
            add_answer(link, pair);
        } else {
            take_answerer(link);
        }
    }
    while (link->refusal_count > 0 && has_room(link)) {
        const epw_refusal *r = &link->refusals[--link->refusal_count];
        add_nak(link, r->pair, r->index, r->syndrome);
    }
    link->urgent = link->answerers != NULL; /* there was no room for all */
}

/* Inline bytes are copied, as an adapter does; others stay where they are until they are acknowledged. */
static void add_request(epw_link *link, const epw_frame *frame, const epw_fetched *entry,
                        const unsigned char *const *bytes) {
    uint32_t payload = epw_frame_payload(frame);
    unsigned char *behind = add_frame(link, frame, entry->is_inline ? payload : 0);
    if (entry->is_inline) memcpy(behind, entry->inlined, payload);
    for (uint32_t i = 0; !entry->is_inline && payload > 0 && i < entry->local_count; i++)
        add_bytes(link, bytes[i], entry->local[i].bytes);
}

/* At a strict NIC. True if nothing more is to be added of the frame. */
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
        if (epw_pair_has_more(pair)) epw_link_has_sender(link, pair);
    }
}

static void fill(epw_link *link) {
    free(link->copied);
    link->copied = NULL;
    link->out_at = link->out_count = link->heads_used = 0;
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
    return link->senders != NULL || link->answerers != NULL || link->refusal_count > 0;
}

bool epw_link_may_wait(const epw_link *link) {
    bool acks_alone = link->senders == NULL && !link->urgent && link->refusal_count == 0;
    return acks_alone && link->nic->now_ns != 0 && link->nic->now_ns < link->acks_by;
}

/* As sendmsg that does not block. */
static ssize_t send_some(epw_link *link) {
    const struct iovec *from = link->out + link->out_at;
    size_t count = link->out_count - link->out_at;
    if (link->rings.memory != NULL) return epw_ring_write(&link->rings.out, link->fd, from, count);
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)from, .msg_iovlen = count};
    return sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool epw_link_send(epw_link *link) {
    if (link->awaits_rings) return true;
    for (uint32_t frames = 0; frames < SEND_TURN_FRAMES && !link->frozen; frames += LINK_FRAMES) {
        if (link->out_at == link->out_count) fill(link);
        while (link->out_at < link->out_count) {
            ssize_t n = send_some(link);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
                epw_nic_await_room(link, true);
                return true;
            }
            if (n < 0) return false;
            link->nic->sent.bytes += (uint64_t)n;
            sent(link, (size_t)n);
        }
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

/* ---- in ---- */

/* By whom a frame is taken, NULL if it is refused. The first one ties the pair to this connection. */
static epw_pair *receiver(epw_link *link, const epw_frame *frame, uint8_t *syndrome) {
    epw_pair *pair = epw_nic_pair(link->nic, frame->pair);
    *syndrome = EPW_SYNDROME_REMOTE_ACCESS;
    if (pair == NULL || pair->closed) return NULL;
    if (pair->options.peer != EPW_PAIR_ANY_PEER && pair->options.peer != link->peer) return NULL;
    if (pair->from == NULL) {
        pair->from = link;
        pair->answers_to = frame->from;
    }
    if (pair->from != link || pair->answers_to != frame->from) return NULL;
    *syndrome = EPW_SYNDROME_REMOTE_REQUEST;
    if (frame->index - pair->expected < UINT32_C(1) << 31) return pair;
    pair->closed = true; /* it has been taken already: this is no order of a connection's */
    return NULL;
}

/* Where the bytes at `offset` of the pair's region lie, NULL if it may not do that with them. */
static unsigned char *place_of(const epw_link *link, const epw_pair *pair, uint32_t rights) {
    const epw_frame *frame = &link->frame;
    bool other = pair->options.key != EPW_PAIR_ANY_KEY && frame->key != pair->options.key;
    if (other) return NULL;
    const epw_region *region = epw_regions_find(&link->nic->regions, frame->key);
    return region != NULL ? epw_region_at(region, rights, frame->offset, frame->bytes) : NULL;
}

static bool is_aligned(const unsigned char *at, const epw_frame *frame) {
    return frame->bytes == EPW_FRAME_WORD && frame->offset % EPW_FRAME_WORD == 0 &&
           (uintptr_t)at % EPW_FRAME_WORD == 0;
}

/* Whether the pair's region allows what is asked, and where its bytes go. Words wait until they are complete;
 * so do addends. */
static uint8_t admit(epw_link *link, const epw_pair *pair) {
    static const uint32_t rights_of[] = {[EPW_FRAME_WRITE] = EPW_REGION_WRITE,
                                         [EPW_FRAME_READ] = EPW_REGION_READ,
                                         [EPW_FRAME_FETCH_ADD] = EPW_REGION_ATOMIC};
    const epw_frame *frame = &link->frame;
    if (frame->kind == EPW_FRAME_NOP) return EPW_SYNDROME_NONE;
    if (frame->kind != EPW_FRAME_WRITE && pair->owed.due) return EPW_SYNDROME_REMOTE_REQUEST;
    unsigned char *at = place_of(link, pair, rights_of[frame->kind]);
    if (at == NULL) return EPW_SYNDROME_REMOTE_ACCESS;
    if (frame->kind == EPW_FRAME_READ) return EPW_SYNDROME_NONE;
    link->is_word = is_aligned(at, frame);
    if (frame->kind == EPW_FRAME_FETCH_ADD && !link->is_word) return EPW_SYNDROME_REMOTE_REQUEST;
    link->at = link->is_word ? (unsigned char *)&link->word : at;
    return EPW_SYNDROME_NONE;
}

static void begin_request(epw_link *link) {
    const epw_frame *frame = &link->frame;
    uint8_t syndrome;
    link->key = frame->key;
    link->to = receiver(link, frame, &syndrome);
    if (link->to != NULL) {
        syndrome = admit(link, link->to);
        if (syndrome == EPW_SYNDROME_NONE) return;
        link->to->closed = true; /* of what comes behind it nothing is placed */
        link->to = NULL;
        link->at = NULL;
    }
    refuse(link, frame, syndrome);
}

/* A word is written or added to in one step, atomically beside what this process does with it. Writer: the
 * NIC, behind all that the pair has brought. Reader: whoever acquires the word. */
static void place_word(epw_link *link, epw_pair *pair) {
    const epw_frame *frame = &link->frame;
    const epw_region *region = epw_regions_find(&link->nic->regions, frame->key);
    if (region == NULL) return;
    uint64_t *at = (uint64_t *)(region->base + frame->offset), value = link->word;
    if (frame->kind == EPW_FRAME_FETCH_ADD) {
        uint64_t addend = epw_take_little((unsigned char *)&link->word, EPW_FRAME_WORD);
        pair->owed.old = __atomic_fetch_add(at, addend, __ATOMIC_SEQ_CST);
        value = pair->owed.old + addend;
    } else {
        __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
    }
    if (region->arrived != NULL) region->arrived(region->context, frame->offset, value);
}

static void end_request(epw_link *link, epw_pair *pair) {
    const epw_frame *frame = &link->frame;
    if (link->is_word) place_word(link, pair);
    pair->expected = frame->index + 1;
    if (frame->kind == EPW_FRAME_READ || frame->kind == EPW_FRAME_FETCH_ADD) {
        pair->owed.due = true;
        pair->owed.request = *frame;
        has_answer(link, pair);
    }
    if (!frame->wants_ack) return;
    pair->ack = frame->index; /* of all before it too */
    pair->ack_due = true;
    has_answer(link, pair);
}

/* False: there is nothing to be answered. */
static bool begin_answer(epw_link *link) {
    epw_pair *pair = epw_nic_pair(link->nic, link->frame.pair);
    if (pair == NULL || pair->link != link || epw_pair_broken(pair)) return true;
    if (!epw_pair_answer_place(pair, link->frame.index, link->frame.bytes, &link->at)) return false;
    link->key = pair->asked.key;
    if (link->frame.bytes > 0 && link->at == NULL) {
        epw_pair_fail(pair, link->frame.index, EPW_SYNDROME_PROTECTION);
    } else {
        link->to = pair;
    }
    return true;
}

static void end_frame(epw_link *link) {
    epw_pair *pair = link->to;
    link->in_frame = false;
    link->to = NULL;
    link->at = NULL;
    if (pair == NULL) return;
    if (link->frame.kind == EPW_FRAME_ANSWER) {
        epw_pair_answered(pair);
    } else {
        end_request(link, pair);
    }
}

/* False: no NIC says that. */
static bool begin_frame(epw_link *link, const unsigned char *bytes) {
    epw_frame *frame = &link->frame;
    if (!epw_frame_parse(bytes, frame)) return false;
    link->to = NULL;
    link->at = NULL;
    link->is_word = false;
    link->left = epw_frame_payload(frame);
    if (epw_frame_is_request(frame) || frame->kind == EPW_FRAME_ANSWER) {
        if (frame->kind != EPW_FRAME_ANSWER) {
            begin_request(link);
        } else if (!begin_answer(link)) {
            return false;
        }
        link->in_frame = true;
        if (link->left == 0) end_frame(link);
        return true;
    }
    epw_pair *pair = epw_nic_pair(link->nic, frame->pair);
    if (pair == NULL || pair->link != link) return true; /* it has been destroyed meanwhile */
    if (frame->kind == EPW_FRAME_ACK) return epw_pair_complete(pair, frame->index);
    epw_pair_fail(pair, frame->index, frame->syndrome);
    return true;
}

/* Takes in what has been read. */
static bool parse(epw_link *link) {
    for (;;) {
        uint32_t here = link->in_end - link->in_begin;
        const unsigned char *from = link->in + link->in_begin;
        if (!link->in_frame) {
            if (here < EPW_FRAME_BYTES) break;
            link->in_begin += EPW_FRAME_BYTES;
            if (!begin_frame(link, from)) return false;
            continue;
        }
        if (here == 0) break;
        uint32_t take = here < link->left ? here : (uint32_t)link->left;
        if (link->at != NULL) {
            memcpy(link->at, from, take);
            link->at += take;
        }
        link->in_begin += take;
        link->left -= take;
        if (link->left == 0) end_frame(link);
    }
    if (link->in_begin == link->in_end) link->in_begin = link->in_end = 0;
    return true;
}

/* Bytes of a WRITE are read to their place at once, and what is behind them to the buffer: no more than the
 * next header behind a long one, which another long one follows mostly. *drained: there was less than there
 * is room for. */
static ssize_t read_some(epw_link *link, bool *drained) {
    if (link->in_begin > 0) {
        memmove(link->in, link->in + link->in_begin, link->in_end - link->in_begin);
        link->in_end -= link->in_begin;
        link->in_begin = 0;
    }
    bool direct = link->in_frame && link->at != NULL && link->in_end == 0;
    bool is_long = direct && link->frame.bytes >= LONG_FRAME_BYTES;
    struct iovec to[2] = {
        {link->at, (size_t)link->left},
        {link->in + link->in_end, is_long ? EPW_FRAME_BYTES : LINK_IN_BYTES - link->in_end}};
    ssize_t n = direct ? readv(link->fd, to, 2) : readv(link->fd, to + 1, 1);
    if (n <= 0) return n;
    *drained = (size_t)n < to[1].iov_len + (direct ? to[0].iov_len : 0);
    size_t placed = direct && (uint64_t)n > link->left ? (size_t)link->left : direct ? (size_t)n : 0;
    link->in_end += (uint32_t)((size_t)n - placed);
    if (direct) {
        link->at += placed;
        link->left -= placed;
        if (link->left == 0) end_frame(link);
    }
    return n;
}

uint32_t epw_link_wants_bytes(const epw_link *link) {
    return link->in_frame ? 1 : EPW_FRAME_BYTES;
}

/* Bytes go from the ring to their place. A header is copied before it is looked at: the other end can write
 * to the ring at any time. False: no NIC says that. */
bool epw_link_take_bytes(epw_link *link) {
    epw_ring *in = &link->rings.in;
    for (uint64_t turn = 0; turn < READ_TURN_BYTES;) {
        uint64_t here = epw_ring_filled(in), take = EPW_FRAME_BYTES;
        if (here > in->size) return false;
        if (here < epw_link_wants_bytes(link)) return true;
        if (!link->in_frame) {
            unsigned char header[EPW_FRAME_BYTES];
            epw_ring_copy(in, header, sizeof header);
            if (!begin_frame(link, header)) return false;
        } else {
            take = here < link->left ? here : link->left;
            if (link->at != NULL) {
                epw_ring_copy(in, link->at, take);
                link->at += take;
            }
            link->left -= take;
            if (link->left == 0) end_frame(link);
        }
        epw_ring_advance(in, link->fd, take);
        turn += take;
    }
    return true;
}

/* What the other end wrote before it went is in the ring. */
static bool read_rings(epw_link *link) {
    bool there = epw_rings_hear(link->fd);
    return epw_link_take_bytes(link) && there;
}

/* False: it has not passed what can be used. */
static bool take_rings(epw_link *link) {
    int err = epw_rings_take(&link->rings, link->fd);
    if (err == EAGAIN) return true;
    link->awaits_rings = false;
    if (err == 0) epw_link_ringed(link);
    return err == 0 && epw_link_take_bytes(link);
}

bool epw_link_read(epw_link *link) {
    if (link->awaits_rings) return take_rings(link);
    if (link->rings.memory != NULL) return read_rings(link);
    bool drained = false; /* then the system tells if more comes */
    for (uint64_t turn = 0; turn < READ_TURN_BYTES && !drained;) {
        ssize_t n = read_some(link, &drained);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        if (n == 0 || !parse(link)) return false;
        turn += (uint64_t)n;
    }
    return true;
}

/* ---- forgetting ---- */

/* Frames under way point to bytes of pairs: what is left of them is copied. */
static bool copy_out(epw_link *link) {
    size_t bytes = 0;
    for (uint32_t i = link->out_at; i < link->out_count; i++) bytes += link->out[i].iov_len;
    if (bytes == 0) return true;
    unsigned char *copy = malloc(bytes), *at = copy;
    if (copy == NULL) return false;
    for (uint32_t i = link->out_at; i < link->out_count; i++) {
        memcpy(at, link->out[i].iov_base, link->out[i].iov_len);
        at += link->out[i].iov_len;
    }
    free(link->copied);
    link->copied = copy;
    link->out[0] = (struct iovec){.iov_base = copy, .iov_len = bytes};
    link->out_at = 0;
    link->out_count = 1;
    return true;
}

void epw_link_stop(epw_link *link, const epw_pair *pair, bool answers) {
    if (link->to != pair || (link->frame.kind == EPW_FRAME_ANSWER) != answers) return;
    link->to = NULL;
    link->at = NULL;
}

bool epw_link_forget(epw_link *link, epw_pair *pair) {
    drop_sender(link, pair);
    drop_answerer(link, pair);
    epw_link_stop(link, pair, false);
    epw_link_stop(link, pair, true);
    return copy_out(link);
}

bool epw_link_forget_region(epw_link *link, uint32_t key) {
    if (link->in_frame && link->to != NULL && link->key == key) {
        if (link->frame.kind == EPW_FRAME_ANSWER) {
            epw_pair_fail(link->to, link->frame.index, EPW_SYNDROME_PROTECTION);
        } else {
            epw_link_stop(link, link->to, false);
        }
    }
    return copy_out(link);
}
