/* Receiving over a connection of a soft NIC: bytes become frames, which are checked, placed and answered. */
#include "nic/soft/parts.h"

#include "base/little_endian.h"

#include <errno.h>
#include <string.h>

enum {
    /* A turn of one connection ends after this much, so that others have theirs. */
    READ_TURN_BYTES = 8 << 20,
    /* From this size of an entry on, reading it directly to its place costs less than a copy. */
    LONG_ENTRY_BYTES = 4096,
    READ_PIECES = 32 /* at a time */
};

/* ---- requests ---- */

/* Whether the pair may receive from the rank at the other end. */
static bool is_of(const epw_link *link, const epw_pair *pair) {
    return pair->options.peer == EPW_PAIR_ANY_PEER || pair->options.peer == link->peer;
}

/* Ties the pair to this connection and to the pair at its other end, if it is not yet tied to another. One
 * that has taken no request yet may still be tied to a later connection. One that has may not: the peer has
 * replaced its end, and the end of its former connection is yet to arrive. */
static bool tie(epw_link *link, epw_pair *pair, uint32_t sender) {
    if (pair->from == link) return pair->answers_to == sender;
    bool replaces = pair->from != NULL && pair->from->peer == link->peer && pair->from->id < link->id;
    if (pair->from != NULL && !replaces) return false;
    if (replaces && pair->taken) {
        epw_pair_leave_replaced(pair);
        return false;
    }
    if (replaces) {
        epw_link_drop_answerer(pair->from, pair);
        pair->ack_due = false;
    }
    pair->from = link;
    pair->answers_to = sender;
    return true;
}

/* The pair of a frame, tied to this connection; NULL: the frame is refused. */
static epw_pair *tied(epw_link *link) {
    epw_pair *pair = epw_nic_pair(link->nic, link->frame.pair);
    if (pair == NULL || pair->closed || !is_of(link, pair)) return NULL;
    return tie(link, pair, link->frame.from) ? pair : NULL;
}

/* The pair that takes a request, NULL if it is refused. */
static epw_pair *receiver(epw_link *link, const epw_frame *frame, uint8_t *syndrome) {
    epw_pair *pair = tied(link);
    *syndrome = EPW_SYNDROME_REMOTE_ACCESS;
    if (pair == NULL) return NULL;
    pair->taken = true;
    *syndrome = EPW_SYNDROME_REMOTE_REQUEST;
    if (frame->index - pair->expected < UINT32_C(1) << 31) return pair;
    pair->closed = true; /* this index has been taken already, which no connection's order permits */
    return NULL;
}

/* The address of the bytes at `offset` of the pair's region, NULL if the pair may not access them in this
 * way. Entries of one size may follow each other in places of two stretches, and share a frame: counts, and
 * the first of the rows. */
static unsigned char *place_of(const epw_link *link, const epw_pair *pair, uint32_t rights) {
    const epw_frame *frame = &link->frame;
    if (pair->options.key != EPW_PAIR_ANY_KEY && frame->key != pair->options.key) return NULL;
    const epw_region *region = epw_regions_find(&link->nic->regions, frame->key);
    if (region == NULL || region->domain != pair->options.domain) return NULL;
    return epw_region_rows_at(region, rights, frame->offset, frame->bytes, frame->stride,
                              UINT64_C(1) + frame->more);
}

static bool is_aligned(const unsigned char *at, const epw_frame *frame) {
    return frame->bytes == EPW_FRAME_WORD && frame->offset % EPW_FRAME_WORD == 0 &&
           (uintptr_t)at % EPW_FRAME_WORD == 0;
}

/* Whether the pair's region permits the request, and where its bytes go. Words and addends wait until they
 * are complete. */
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
        link->to->closed = true; /* nothing that comes after it is placed */
        link->to = NULL;
        link->at = NULL;
    }
    epw_link_refuse(link, frame, syndrome);
}

/* A word is written or added to in one step, atomically with respect to this process's own accesses. Writer:
 * the NIC, after everything that the pair has brought. Reader: whoever acquires the word. */
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
    pair->expected = frame->index + frame->more + 1;
    if (frame->kind == EPW_FRAME_READ || frame->kind == EPW_FRAME_FETCH_ADD) {
        pair->owed.due = true;
        pair->owed.request = *frame;
        epw_link_has_answer(link, pair);
    }
    if (!frame->wants_ack) return;
    pair->ack = frame->index + frame->more; /* of all before it too */
    pair->ack_due = true;
    epw_link_has_answer(link, pair);
}

/* Whether the pair takes what pair `from` of the peer will send; if not, an adapter's ends: what that has
 * brought is not seen here, see other_end.h. */
static bool accepts(epw_pair *pair, uint32_t from) {
    if (epw_pair_broken(pair)) return false;
    uint32_t remote = epw_pair_is_carried(pair) ? pair->remote : 0;
    if (epw_other_end_connects(&pair->other, remote, from)) return true;
    epw_pair_end_by_peer(pair);
    return false;
}

static void hear_connected(epw_link *link) {
    const epw_frame *frame = &link->frame;
    const epw_nic_owner *owner = &link->nic->owner;
    if (owner->connected != NULL) {
        bool takes = owner->connected(owner->context, link->peer, frame->pair, frame->from);
        epw_link_tell(link, takes ? EPW_FRAME_HEARD : EPW_FRAME_ENDED, frame->from, frame->pair);
        return;
    }
    epw_pair *pair = tied(link);
    if (pair == NULL || !accepts(pair, frame->from)) {
        epw_link_refuse(link, frame, EPW_SYNDROME_REMOTE_ACCESS);
        return;
    }
    epw_link_tell(link, EPW_FRAME_HEARD, frame->from, pair->number);
}

/* ---- answers, and frames of both kinds ---- */

/* False: no answer is awaited. */
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

/* The other end of a pair of this NIC, or of an adapter's, has ended. Only the rank with which it is
 * connected may say so. */
static void hear_end(const epw_link *link) {
    const epw_frame *frame = &link->frame;
    const epw_nic_owner *owner = &link->nic->owner;
    if (owner->ended != NULL) {
        owner->ended(owner->context, link->peer, frame->pair, frame->from);
        return;
    }
    epw_pair *pair = epw_nic_pair(link->nic, frame->pair);
    if (pair == NULL || !is_of(link, pair) || !epw_pair_is_carried(pair)) return;
    if (epw_other_end_ends(&pair->other, pair->remote, frame->from)) epw_pair_end_by_peer(pair);
}

/* The other end takes what is sent. */
static void hear_heard(const epw_link *link) {
    const epw_frame *frame = &link->frame;
    const epw_nic_owner *owner = &link->nic->owner;
    if (owner->heard != NULL) {
        owner->heard(owner->context, link->peer, frame->pair, frame->from);
        return;
    }
    epw_pair *pair = epw_nic_pair(link->nic, frame->pair);
    if (pair != NULL && pair->link == link && pair->remote == frame->from) pair->heard = true;
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
    link->row_left = frame->bytes;
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
    if (epw_frame_is_of_pairs(frame)) {
        if (frame->kind == EPW_FRAME_ENDED) hear_end(link);
        if (frame->kind == EPW_FRAME_CONNECTED) hear_connected(link);
        if (frame->kind == EPW_FRAME_HEARD) hear_heard(link);
        return true;
    }
    epw_pair *pair = epw_nic_pair(link->nic, frame->pair);
    bool is_ack = frame->kind == EPW_FRAME_ACK; /* which comes with what the peer sends, by its connection */
    if (pair == NULL || (is_ack ? !is_of(link, pair) || pair->link == NULL : pair->link != link))
        return true; /* it has been destroyed meanwhile */
    if (is_ack) return epw_pair_complete(pair, frame->index);
    epw_pair_fail(pair, frame->index, frame->syndrome);
    return true;
}

/* This many of the entry's bytes have been placed, or skipped. */
static void pass(epw_link *link, uint64_t bytes) {
    link->left -= bytes;
    link->row_left -= bytes;
    if (link->at != NULL) link->at += bytes;
    if (link->left == 0) {
        end_frame(link);
    } else if (link->row_left == 0) {
        link->row_left = link->frame.bytes;
        if (link->at != NULL) link->at += link->frame.stride - link->frame.bytes;
    }
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
        uint32_t take = here < link->row_left ? here : (uint32_t)link->row_left;
        if (link->at != NULL) memcpy(link->at, from, take);
        link->in_begin += take;
        pass(link, take);
    }
    if (link->in_begin == link->in_end) link->in_begin = link->in_end = 0;
    return true;
}

/* ---- from the socket, and from rings ---- */

/* Where the bytes of the frame go: as many of its long entries as there is room for. Returns the number of
 * pieces. */
static uint32_t places(const epw_link *link, struct iovec to[READ_PIECES]) {
    const epw_frame *frame = &link->frame;
    unsigned char *at = link->at + link->row_left;
    uint32_t count = 0;
    to[count++] = (struct iovec){link->at, (size_t)link->row_left};
    if (frame->bytes < LONG_ENTRY_BYTES) return count;
    for (uint64_t rest = link->left - link->row_left; rest > 0 && count < READ_PIECES; rest -= frame->bytes) {
        at += frame->stride - frame->bytes;
        to[count++] = (struct iovec){at, frame->bytes};
        at += frame->bytes;
    }
    return count;
}

/* Bytes of a WRITE are read directly to their places, and what follows them to the buffer: after long ones no
 * more than the next header, because more long ones usually follow. *drained: less has arrived than there is
 * room for. */
static ssize_t read_some(epw_link *link, bool *drained) {
    if (link->in_begin > 0) {
        memmove(link->in, link->in + link->in_begin, link->in_end - link->in_begin);
        link->in_end -= link->in_begin;
        link->in_begin = 0;
    }
    bool direct = link->in_frame && link->at != NULL && link->in_end == 0;
    bool is_long = direct && link->frame.bytes >= LONG_ENTRY_BYTES;
    struct iovec to[READ_PIECES + 1];
    uint32_t count = direct ? places(link, to) : 0;
    uint64_t placed = 0;
    for (uint32_t i = 0; i < count; i++) placed += to[i].iov_len;
    size_t behind = is_long ? EPW_FRAME_BYTES : LINK_IN_BYTES - link->in_end;
    if (direct && placed < link->left) behind = 0;
    to[count++] = (struct iovec){link->in + link->in_end, behind};
    ssize_t n = readv(link->fd, to, (int)count);
    if (n <= 0) return n;
    *drained = (uint64_t)n < placed + behind;
    uint64_t left = (uint64_t)n;
    for (uint64_t piece; left > 0 && placed > 0; left -= piece, placed -= piece) {
        piece = left < link->row_left ? left : link->row_left;
        pass(link, piece);
    }
    link->in_end += (uint32_t)left;
    return n;
}

uint32_t epw_link_wants_bytes(const epw_link *link) {
    return link->in_frame ? 1 : EPW_FRAME_BYTES;
}

/* Bytes are copied from the ring to their place. A header is copied before it is checked, because the other
 * end can write to the ring at any time. False: no NIC sends that. */
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
            take = here < link->row_left ? here : link->row_left;
            if (link->at != NULL) epw_ring_copy(in, link->at, take);
            pass(link, take);
        }
        epw_ring_advance(in, link->fd, take);
        turn += take;
    }
    return true;
}

bool epw_link_take_rest(epw_link *link) {
    const epw_ring *in = &link->rings.in;
    uint64_t before, filled = epw_ring_filled(in);
    const uint64_t end = in->at + (filled < in->size ? filled : in->size);
    do {
        before = in->at;
        if (!epw_link_take_bytes(link)) return false;
    } while (in->at != before && in->at < end);
    return true;
}

/* What the other end wrote before it ended is in the ring, and is taken when the link is lost. */
static bool read_rings(epw_link *link) {
    bool there = epw_rings_hear(link->fd);
    return epw_link_take_bytes(link) && there;
}

/* False: it has passed nothing usable. */
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
