/* What travels over a wire between two soft NICs: frames of {header | bytes}, little-endian, in order.
 *
 * A WRITE carries the bytes of an entry to a queue pair of the other NIC; `index` counts the entries of its
 * queue. Entries in a row whose places are equally far apart, rows of a range, share one: `more` of as many
 * bytes each follow the first. The responder answers those that want it by an ACK of the last one's index,
 * once their bytes are placed: it acknowledges all before it too. A READ asks for bytes, and a FETCH_ADD
 * carries what is to be added to a word of 8 bytes: each is answered by an ANSWER with the bytes, or what the
 * word was, and nothing of its queue pair travels before that has come. A NAK names the first that was
 * refused, and ends the queue pair. An ENDED says that the sender's end of a queue pair is over whose entries
 * go by an adapter, which does not tell the other end.
 */
#ifndef EPW_NIC_SOFT_FRAME_H
#define EPW_NIC_SOFT_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#define EPW_FRAME_BYTES 40u
#define EPW_FRAME_WORD  8u /* bytes of what a FETCH_ADD adds to */

/* The most bytes behind a header: more than any entry of this library has. */
#define EPW_FRAME_PAYLOAD_MAX (UINT32_C(1) << 31)

enum {
    EPW_FRAME_WRITE = 1,
    EPW_FRAME_NOP = 2,
    EPW_FRAME_ACK = 3,
    EPW_FRAME_NAK = 4,
    EPW_FRAME_READ = 5,
    EPW_FRAME_FETCH_ADD = 6,
    EPW_FRAME_ANSWER = 7,
    EPW_FRAME_ENDED = 8
};

typedef struct epw_frame {
    uint8_t kind;
    bool wants_ack;   /* WRITE, NOP */
    uint8_t syndrome; /* NAK */
    uint32_t pair;    /* of the receiver */
    uint32_t from;    /* of requests, and ENDED: of the sender, where the answer goes */
    uint32_t index;
    uint32_t key; /* WRITE, READ, FETCH_ADD: of the region, and where in it */
    uint64_t offset;
    uint32_t bytes;  /* of these three, and of an ANSWER; of a WRITE of several entries: of each */
    uint32_t stride; /* then: from the place of one to the next, no less than `bytes`; else 0 */
    uint32_t more;   /* and how many there are behind the first */
} epw_frame;

/* Whether an entry makes such a frame, and not the answer to one. */
bool epw_frame_is_request(const epw_frame *frame);

/* From its first place to the end of the last one. */
uint64_t epw_frame_span(const epw_frame *frame);

/* Adds an entry to a WRITE before it. False: it needs a frame of its own. */
bool epw_frame_extend(epw_frame *frame, const epw_frame *by);

/* How many bytes follow. */
uint32_t epw_frame_payload(const epw_frame *frame);

void epw_frame_write(const epw_frame *frame, unsigned char out[EPW_FRAME_BYTES]);

/* False where it is no frame: another kind, bytes that none of that kind has, or reserved bits. */
bool epw_frame_parse(const unsigned char bytes[EPW_FRAME_BYTES], epw_frame *out);

#endif
