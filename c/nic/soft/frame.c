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

/* What each kind leaves zero. */
static bool is_sound(const epw_frame *f) {
    bool writes = f->kind == EPW_FRAME_WRITE, asks = writes || f->kind == EPW_FRAME_NOP;
    if (!asks && f->kind != EPW_FRAME_ACK && f->kind != EPW_FRAME_NAK) return false;
    if (!writes && (f->key != 0 || f->offset != 0 || f->bytes != 0)) return false;
    if (!asks && (f->wants_ack || f->from != 0)) return false;
    return f->bytes <= EPW_FRAME_PAYLOAD_MAX && (f->kind == EPW_FRAME_NAK) == (f->syndrome != 0);
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
