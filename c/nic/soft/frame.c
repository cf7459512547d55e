/* See frame.h. 0 kind, 1 flags, 2 syndrome, 3 reserved, 4 pair, 8 index, 12 key, 16 offset, 24 bytes,
 * 28 from. */
#include "nic/soft/frame.h"

#include "base/little_endian.h"

#include <string.h>

enum { WANTS_ACK = 1 };

void epw_frame_write(const epw_frame *frame, unsigned char out[EPW_FRAME_BYTES]) {
    memset(out, 0, EPW_FRAME_BYTES);
    out[0] = frame->kind;
    out[1] = frame->wants_ack ? WANTS_ACK : 0;
    out[2] = frame->syndrome;
    epw_put_little(out + 4, frame->pair, 4);
    epw_put_little(out + 8, frame->index, 4);
    epw_put_little(out + 12, frame->key, 4);
    epw_put_little(out + 16, frame->offset, 8);
    epw_put_little(out + 24, frame->bytes, 4);
    epw_put_little(out + 28, frame->from, 4);
}

/* What a kind has; the others leave it zero. */
enum { HAS_PLACE = 1, HAS_BYTES = 2, HAS_FROM = 4, MAY_WANT_ACK = 8, HAS_SYNDROME = 16 };

static const uint8_t parts_of[] = {
    [EPW_FRAME_WRITE] = HAS_PLACE | HAS_BYTES | HAS_FROM | MAY_WANT_ACK,
    [EPW_FRAME_NOP] = HAS_FROM | MAY_WANT_ACK,
    [EPW_FRAME_ACK] = 0,
    [EPW_FRAME_NAK] = HAS_SYNDROME,
    [EPW_FRAME_READ] = HAS_PLACE | HAS_BYTES | HAS_FROM,
    [EPW_FRAME_FETCH_ADD] = HAS_PLACE | HAS_BYTES | HAS_FROM,
    [EPW_FRAME_ANSWER] = HAS_BYTES,
};

static bool is_sound(const epw_frame *f) {
    if (f->kind < EPW_FRAME_WRITE || f->kind > EPW_FRAME_ANSWER) return false;
    uint32_t has = parts_of[f->kind];
    if (!(has & HAS_PLACE) && (f->key != 0 || f->offset != 0)) return false;
    if (!(has & HAS_BYTES) && f->bytes != 0) return false;
    if (!(has & HAS_FROM) && f->from != 0) return false;
    if (!(has & MAY_WANT_ACK) && f->wants_ack) return false;
    if (f->kind == EPW_FRAME_FETCH_ADD && f->bytes != EPW_FRAME_WORD) return false;
    return f->bytes <= EPW_FRAME_PAYLOAD_MAX && ((has & HAS_SYNDROME) != 0) == (f->syndrome != 0);
}

bool epw_frame_is_request(const epw_frame *frame) {
    return (parts_of[frame->kind] & HAS_FROM) != 0;
}

uint32_t epw_frame_payload(const epw_frame *frame) {
    return frame->kind == EPW_FRAME_READ ? 0 : frame->bytes;
}

bool epw_frame_parse(const unsigned char bytes[EPW_FRAME_BYTES], epw_frame *out) {
    if ((bytes[1] & ~WANTS_ACK) != 0 || bytes[3] != 0) return false;
    *out = (epw_frame){.kind = bytes[0],
                       .wants_ack = (bytes[1] & WANTS_ACK) != 0,
                       .syndrome = bytes[2],
                       .pair = (uint32_t)epw_take_little(bytes + 4, 4),
                       .index = (uint32_t)epw_take_little(bytes + 8, 4),
                       .key = (uint32_t)epw_take_little(bytes + 12, 4),
                       .offset = epw_take_little(bytes + 16, 8),
                       .bytes = (uint32_t)epw_take_little(bytes + 24, 4),
                       .from = (uint32_t)epw_take_little(bytes + 28, 4)};
    return is_sound(out);
}
