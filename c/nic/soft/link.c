/* A connection of a soft NIC: frames out, frames in. */
#include "nic/soft/parts.h"

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
    PAIR_TURN_FRAMES = 32
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

static void has_ack(epw_link *link, epw_pair *pair, uint32_t index) {
    pair->ack = index; /* of all before it too */
    if (pair->acks) return;
    pair->acks = true;
    pair->next_acker = link->ackers;
    link->ackers = pair;
}

static void drop_acker(epw_link *link, const epw_pair *pair) {
    for (epw_pair **at = &link->ackers; *at != NULL;) {
        if (*at == pair) {
            *at = pair->next_acker;
        } else {
            at = &(*at)->next_acker;
        }
    }
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
    return link->out_count + 2 <= 2 * LINK_FRAMES &&
           link->heads_used + EPW_FRAME_BYTES + EPW_FETCH_INLINE <= LINK_HEADS_BYTES;
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
    add_bytes(link, head, EPW_FRAME_BYTES + with);
    return head + EPW_FRAME_BYTES;
}

static void add_answers(epw_link *link) {
    while (link->refusal_count > 0 && has_room(link)) {
        const epw_refusal *r = &link->refusals[--link->refusal_count];
        epw_frame frame = {
            .kind = EPW_FRAME_NAK, .pair = r->pair, .index = r->index, .syndrome = r->syndrome};
        add_frame(link, &frame, 0);
    }
    while (link->ackers != NULL && has_room(link)) {
        epw_pair *pair = link->ackers;
        link->ackers = pair->next_acker;
        pair->acks = false;
        epw_frame frame = {.kind = EPW_FRAME_ACK, .pair = pair->answers_to, .index = pair->ack};
        add_frame(link, &frame, 0);
    }
}

/* Inline bytes are copied, as an adapter does; others stay where they are until they are acknowledged. */
static void add_entries(epw_link *link) {
    while (link->senders != NULL && has_room(link)) {
        epw_pair *pair = take_sender(link);
        epw_frame frame;
        epw_fetched entry;
        const unsigned char *bytes;
        uint32_t turn = 0;
        while (has_room(link) && turn++ < PAIR_TURN_FRAMES && epw_pair_next(pair, &frame, &entry, &bytes)) {
            if (entry.is_inline) {
                memcpy(add_frame(link, &frame, entry.bytes), bytes, entry.bytes);
            } else {
                add_frame(link, &frame, 0);
                if (entry.bytes > 0) add_bytes(link, bytes, entry.bytes);
            }
        }
        if (pair->fetched != pair->target && !atomic_load_explicit(&pair->broken, memory_order_relaxed))
            epw_link_has_sender(link, pair);
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

bool epw_link_send(epw_link *link) {
    for (uint32_t frames = 0; frames < SEND_TURN_FRAMES; frames += LINK_FRAMES) {
        if (link->out_at == link->out_count) fill(link);
        while (link->out_at < link->out_count) {
            struct msghdr message = {.msg_iov = link->out + link->out_at,
                                     .msg_iovlen = link->out_count - link->out_at};
            ssize_t n = sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
                epw_nic_await_room(link, true);
                return true;
            }
            if (n < 0) return false;
            sent(link, (size_t)n);
        }
        if (link->senders == NULL && link->ackers == NULL && link->refusal_count == 0) {
            epw_nic_await_room(link, false);
            return true;
        }
    }
    epw_nic_await_room(link, true); /* there is room, and there are others */
    return true;
}

/* ---- in ---- */

/* By whom a frame is taken, NULL if it is refused. The first one ties the pair to this connection. */
static epw_pair *receiver(epw_link *link, const epw_frame *frame, uint8_t *syndrome) {
    epw_pair *pair = epw_nic_pair(link->nic, frame->pair);
    *syndrome = EPW_SYNDROME_REMOTE_ACCESS;
    if (pair == NULL || pair->closed || pair->options.peer != link->peer) return NULL;
    if (pair->from == NULL) {
        pair->from = link;
        pair->answers_to = frame->from;
    }
    if (pair->from != link || pair->answers_to != frame->from) return NULL;
    *syndrome = EPW_SYNDROME_REMOTE_REQUEST;
    if (frame->index - pair->expected >= UINT32_C(1) << 31) return NULL; /* it has been taken already */
    return pair;
}

/* Where the bytes of a WRITE go; NULL if it may not. */
static unsigned char *place_of(epw_link *link, const epw_pair *pair, const epw_frame *frame) {
    if (frame->key != pair->options.key) return NULL;
    const epw_region *region = epw_regions_find(&link->nic->regions, frame->key);
    if (region == NULL) return NULL;
    unsigned char *at = epw_region_at(region, EPW_REGION_WRITE, frame->offset, frame->bytes);
    link->is_word = at != NULL && region->place != NULL && frame->bytes == sizeof link->word &&
                    frame->offset % sizeof link->word == 0;
    return link->is_word ? (unsigned char *)&link->word : at;
}

static void begin_write(epw_link *link) {
    const epw_frame *frame = &link->frame;
    uint8_t syndrome;
    link->to = receiver(link, frame, &syndrome);
    link->left = frame->bytes;
    link->is_word = false;
    link->at = NULL;
    if (link->to != NULL && frame->kind == EPW_FRAME_WRITE) {
        link->at = place_of(link, link->to, frame);
        if (link->at == NULL) {
            syndrome = EPW_SYNDROME_REMOTE_ACCESS;
            link->to->closed = true; /* of what comes behind it nothing is placed */
            link->to = NULL;
        }
    }
    if (link->to == NULL) refuse(link, frame, syndrome);
}

static void end_write(epw_link *link) {
    epw_pair *pair = link->to;
    link->in_frame = false;
    if (pair == NULL) return;
    if (link->is_word) {
        const epw_region *region = epw_regions_find(&link->nic->regions, link->frame.key);
        if (region != NULL) region->place(region->context, link->frame.offset, link->word);
    }
    pair->expected = link->frame.index + 1;
    if (link->frame.wants_ack) has_ack(link, pair, link->frame.index);
}

/* An answer, or the beginning of a WRITE. False: no NIC says that. */
static bool begin_frame(epw_link *link, const unsigned char *bytes) {
    epw_frame *frame = &link->frame;
    if (!epw_frame_parse(bytes, frame)) return false;
    if (frame->kind == EPW_FRAME_WRITE || frame->kind == EPW_FRAME_NOP) {
        begin_write(link);
        link->in_frame = true;
        if (link->left == 0) end_write(link);
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
        if (link->left == 0) end_write(link);
    }
    if (link->in_begin == link->in_end) link->in_begin = link->in_end = 0;
    return true;
}

/* Bytes of a long WRITE are read to their place at once, and what is behind them to the buffer. */
static ssize_t read_some(epw_link *link) {
    if (link->in_begin > 0) {
        memmove(link->in, link->in + link->in_begin, link->in_end - link->in_begin);
        link->in_end -= link->in_begin;
        link->in_begin = 0;
    }
    bool direct = link->in_frame && link->at != NULL && link->in_end == 0;
    struct iovec to[2] = {{link->at, (size_t)link->left},
                          {link->in + link->in_end, LINK_IN_BYTES - link->in_end}};
    ssize_t n = direct ? readv(link->fd, to, 2) : readv(link->fd, to + 1, 1);
    if (n <= 0) return n;
    size_t placed = direct && (uint64_t)n > link->left ? (size_t)link->left : direct ? (size_t)n : 0;
    link->in_end += (uint32_t)((size_t)n - placed);
    if (direct) {
        link->at += placed;
        link->left -= placed;
        if (link->left == 0) end_write(link);
    }
    return n;
}

bool epw_link_read(epw_link *link) {
    for (uint64_t turn = 0; turn < READ_TURN_BYTES;) {
        ssize_t n = read_some(link);
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

void epw_link_stop(epw_link *link, const epw_pair *pair) {
    if (link->to != pair) return;
    link->to = NULL;
    link->at = NULL;
}

bool epw_link_forget(epw_link *link, epw_pair *pair) {
    drop_sender(link, pair);
    drop_acker(link, pair);
    epw_link_stop(link, pair);
    return copy_out(link);
}

void epw_link_forget_region(epw_link *link, uint32_t key) {
    if (!link->in_frame || link->frame.key != key) return;
    link->to = NULL;
    link->at = NULL;
}
