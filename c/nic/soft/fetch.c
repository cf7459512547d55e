/* See fetch.h. Offsets are those of the adapter's manual: control 0, remote address 16, data 32. */
#include "nic/soft/fetch.h"

#include "base/little_endian.h"

#include <string.h>

static uint32_t big32(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint64_t big64(const unsigned char *at) {
    return (uint64_t)big32(at) << 32 | big32(at + 4);
}

enum {
    SIGNALLED = 0x08,   /* of byte 11: a completion for this entry */
    FLAGS_KNOWN = 0x08, /* without fence, event, or completion only after errors */
    UNIT_BYTES = 16,
    FETCH_ADD_BYTES = 8
};

/* Of the length. */
#define INLINE_BIT     (UINT32_C(1) << 31)
#define LENGTH_OF_ZERO (UINT32_C(1) << 31)

/* A segment with the address of bytes. */
static void read_segment(const unsigned char *at, epw_fetched *out) {
    uint32_t length = big32(at);
    if (length == 0) length = LENGTH_OF_ZERO;
    out->local[out->local_count++] =
        (epw_segment){.offset = big64(at + 8), .key = big32(at + 4), .bytes = length};
    out->bytes += length;
}

/* One such segment, or for a WRITE two, which together have no more bytes than one may have. */
static uint8_t read_segments(const unsigned char *at, uint32_t units, epw_fetched *out) {
    read_segment(at, out);
    if (units == 3) return EPW_SYNDROME_NONE;
    uint32_t second = big32(at + UNIT_BYTES);
    bool sound = units == 4 && out->opcode == EPW_OPCODE_WRITE && !(second & INLINE_BIT) && second != 0 &&
                 out->bytes < LENGTH_OF_ZERO - second;
    if (!sound) return EPW_SYNDROME_OPERATION;
    read_segment(at + UNIT_BYTES, out);
    return EPW_SYNDROME_NONE;
}

/* The data of a WRITE or READ, after the control segment and the remote address. */
static uint8_t read_data(const unsigned char *at, uint32_t units, epw_fetched *out) {
    uint32_t length = units == 2 ? INLINE_BIT : big32(at); /* without a segment there are no bytes */
    out->is_inline = (length & INLINE_BIT) != 0;
    if (!out->is_inline) return read_segments(at, units, out);
    out->bytes = length & ~INLINE_BIT;
    if (out->bytes > EPW_FETCH_INLINE) return EPW_SYNDROME_OPERATION;
    if (units == 2) return EPW_SYNDROME_NONE;
    if (units != 2 + (4 + out->bytes + UNIT_BYTES - 1) / UNIT_BYTES) return EPW_SYNDROME_OPERATION;
    memcpy(out->inlined, at + 4, out->bytes);
    return EPW_SYNDROME_NONE;
}

/* The operands, then the data segment. */
static uint8_t read_fetch_add(const unsigned char *at, uint32_t units, epw_fetched *out) {
    if (units != 4 || big32(at + 16) != FETCH_ADD_BYTES) return EPW_SYNDROME_OPERATION;
    out->is_inline = true;
    read_segment(at + UNIT_BYTES, out);
    epw_put_little(out->inlined, big64(at), FETCH_ADD_BYTES);
    return EPW_SYNDROME_NONE;
}

static uint8_t read_operands(const unsigned char *entry, uint32_t units, epw_fetched *out) {
    if (out->opcode == EPW_OPCODE_NOP) return units == 1 ? EPW_SYNDROME_NONE : EPW_SYNDROME_OPERATION;
    out->remote = big64(entry + 16);
    out->remote_key = big32(entry + 24);
    uint8_t wrong = EPW_SYNDROME_OPERATION;
    if (out->opcode == EPW_OPCODE_FETCH_ADD) return read_fetch_add(entry + 32, units, out);
    if (out->opcode == EPW_OPCODE_WRITE || out->opcode == EPW_OPCODE_READ)
        wrong = read_data(entry + 32, units, out);
    /* Bytes that are received cannot be placed in an entry. */
    bool backwards = out->opcode == EPW_OPCODE_READ && out->is_inline && units > 2;
    return backwards ? EPW_SYNDROME_OPERATION : wrong;
}

uint8_t epw_fetch(const unsigned char entry[EPW_FETCH_BYTES], uint32_t number, uint16_t index,
                  epw_fetched *out) {
    uint32_t first = big32(entry), second = big32(entry + 4), units = second & 0x3f;
    *out = (epw_fetched){.opcode = (uint8_t)first, .signalled = (entry[11] & SIGNALLED) != 0};
    bool mine = (uint16_t)(first >> 8) == index && second >> 8 == number;
    bool plain = first >> 24 == 0 && (second & 0xc0) == 0 && (entry[11] & ~FLAGS_KNOWN) == 0;
    if (!mine || !plain) return EPW_SYNDROME_OPERATION;
    return read_operands(entry, units, out);
}

uint16_t epw_fetch_record(const void *record) {
    /* Writer: the thread that rings, after the entries. Reader: the NIC. */
    uint32_t word = __atomic_load_n((const uint32_t *)record + 1, __ATOMIC_ACQUIRE);
    unsigned char bytes[4];
    memcpy(bytes, &word, sizeof bytes);
    return (uint16_t)big32(bytes);
}
