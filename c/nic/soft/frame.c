/* See frame.h. 0 kind, 1 flags, 2 syndrome, 3 reserved, 4 pair, 8 index, 12 key, 16 offset, 24 bytes,
 * 28 from, 32 stride, 36 more. */
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
    epw_put_little(out + 32, frame->stride, 4);
    epw_put_little(out + 36, frame->more, 4);
}

/* The fields that a kind has; others are zero. */
enum { HAS_PLACE = 1, HAS_BYTES = 2, HAS_FROM = 4, MAY_WANT_ACK = 8, HAS_SYNDROME = 16 };

static const uint8_t parts_of[] = {
    [EPW_FRAME_WRITE] = HAS_PLACE | HAS_BYTES | HAS_FROM | MAY_WANT_ACK,
    [EPW_FRAME_NOP] = HAS_FROM | MAY_WANT_ACK,
    [EPW_FRAME_ACK] = 0,
    [EPW_FRAME_NAK] = HAS_SYNDROME,
    [EPW_FRAME_READ] = HAS_PLACE | HAS_BYTES | HAS_FROM,
    [EPW_FRAME_FETCH_ADD] = HAS_PLACE | HAS_BYTES | HAS_FROM,
    [EPW_FRAME_ANSWER] = HAS_BYTES,
    [EPW_FRAME_ENDED] = HAS_FROM,
    [EPW_FRAME_CONNECTED] = HAS_FROM,
    [EPW_FRAME_HEARD] = HAS_FROM,
};

static uint64_t payload(const epw_frame *f) {
    return ((uint64_t)f->more + 1) * f->bytes;
}

/* A word has a frame of its own, because it is placed in one step. */
static bool has_sound_rows(const epw_frame *f) {
    if (f->more == 0) return f->stride == 0;
    return f->kind == EPW_FRAME_WRITE && f->bytes > EPW_FRAME_WORD && f->stride >= f->bytes;
}

bool epw_frame_is_of_pairs(const epw_frame *frame) {
    return frame->kind == EPW_FRAME_ENDED || frame->kind == EPW_FRAME_CONNECTED ||
           frame->kind == EPW_FRAME_HEARD;
}

static bool is_sound(const epw_frame *f) {
    if (f->kind < EPW_FRAME_WRITE || f->kind > EPW_FRAME_HEARD) return false;
    uint32_t has = parts_of[f->kind];
    if (!(has & HAS_PLACE) && (f->key != 0 || f->offset != 0)) return false;
    if (!(has & HAS_BYTES) && f->bytes != 0) return false;
    if (!(has & HAS_FROM) && f->from != 0) return false;
    if (epw_frame_is_of_pairs(f) && f->index != 0) return false;
    if (!(has & MAY_WANT_ACK) && f->wants_ack) return false;
    if (f->kind == EPW_FRAME_FETCH_ADD && f->bytes != EPW_FRAME_WORD) return false;
    if (!has_sound_rows(f)) return false;
    return payload(f) <= EPW_FRAME_PAYLOAD_MAX && ((has & HAS_SYNDROME) != 0) == (f->syndrome != 0);
}

bool epw_frame_is_request(const epw_frame *frame) {
    return !epw_frame_is_of_pairs(frame) && (parts_of[frame->kind] & HAS_FROM) != 0;
}

uint32_t epw_frame_payload(const epw_frame *frame) {
    return frame->kind == EPW_FRAME_READ ? 0 : (uint32_t)payload(frame);
}

bool epw_frame_extend(epw_frame *frame, const epw_frame *by) {
    uint64_t apart = by->offset - frame->offset, stride = frame->more > 0 ? frame->stride : apart;
    bool same = by->kind == EPW_FRAME_WRITE && by->pair == frame->pair && by->from == frame->from &&
                by->key == frame->key && by->bytes == frame->bytes;
    if (!same || frame->wants_ack || by->index != frame->index + frame->more + 1) return false;
    if (stride > UINT32_MAX || apart != (frame->more + UINT64_C(1)) * stride) return false;
    epw_frame both = *frame;
    both.wants_ack = by->wants_ack;
    both.stride = (uint32_t)stride;
    both.more++;
    if (!is_sound(&both)) return false;
    *frame = both;
    return true;
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
                       .from = (uint32_t)epw_take_little(bytes + 28, 4),
                       .stride = (uint32_t)epw_take_little(bytes + 32, 4),
                       .more = (uint32_t)epw_take_little(bytes + 36, 4)};
    return is_sound(out);
}
