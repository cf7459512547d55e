/* What a NIC reads from a send queue: entries as raw bytes, as an adapter reads them, and not through the
 * structs that build them, so that a wrong offset there is found here. */
#ifndef EPW_NIC_SOFT_FETCH_H
#define EPW_NIC_SOFT_FETCH_H

#include "nic/syndrome.h"

#include <stdbool.h>
#include <stdint.h>

#define EPW_FETCH_BYTES  64u
#define EPW_FETCH_INLINE 28u /* the most bytes that an entry carries inline */

enum { EPW_OPCODE_NOP = 0x00, EPW_OPCODE_WRITE = 0x08, EPW_OPCODE_READ = 0x10, EPW_OPCODE_FETCH_ADD = 0x12 };

/* Bytes of this rank, at an offset in the region of the key. */
typedef struct epw_segment {
    uint64_t offset;
    uint32_t key, bytes;
} epw_segment;

enum { EPW_FETCH_SEGMENTS = 2 };

/* An entry, checked except for its keys. */
typedef struct epw_fetched {
    uint8_t opcode;
    bool signalled; /* it wants a completion */
    bool is_inline; /* the bytes to send are in `inlined`, else in `local` */
    uint32_t bytes;
    uint64_t remote; /* offset in the region of the key */
    uint32_t remote_key;
    uint32_t local_count;
    epw_segment local[EPW_FETCH_SEGMENTS];   /* where a WRITE takes its bytes, in order, or where an answer
                                                goes */
    unsigned char inlined[EPW_FETCH_INLINE]; /* of a FETCH_ADD: the addend, little-endian */
} epw_fetched;

/* Reads entry `index` of queue pair `number`. EPW_SYNDROME_NONE, or what is wrong with it. */
uint8_t epw_fetch(const unsigned char entry[EPW_FETCH_BYTES], uint32_t number, uint16_t index,
                  epw_fetched *out);

/* The send counter in a doorbell record: one more than the last entry that may be fetched. */
uint16_t epw_fetch_record(const void *record);

#endif
