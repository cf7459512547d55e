/* What travels over a wire between two soft NICs: frames of {header | bytes}, little-endian, in order.
 *
 * A WRITE carries the bytes of an entry to a queue pair of the other NIC; `index` counts the entries of its
 * queue. Successive entries whose places are equally far apart, as rows of a range are, share a frame: `more`
 * entries of the same size follow the first. If asked for, the responder answers by an ACK of the last one's
 * index once their bytes are placed; it acknowledges all earlier entries too. A READ asks for bytes, and a
 * FETCH_ADD carries what is to be added to an 8-byte word: each is answered by an ANSWER with the bytes, or
 * with the word's previous value, and nothing of the queue pair is sent before that has arrived. A NAK names
 * the first entry that was refused, and ends the queue pair. An ENDED says that the sender's end of a queue
 * pair has ended whose entries an adapter carries, because an adapter does not tell the other end. A
 * CONNECTED comes before all entries of a queue pair. It is answered by a HEARD if the other end takes them;
 * else it is refused as they would be or, between adapters, answered by an ENDED. */
#ifndef EPW_NIC_SOFT_FRAME_H
#define EPW_NIC_SOFT_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#define EPW_FRAME_BYTES 40u
#define EPW_FRAME_WORD  8u /* bytes of what a FETCH_ADD adds to */

/* The most bytes after a header: more than any entry of this library has. */
#define EPW_FRAME_PAYLOAD_MAX (UINT32_C(1) << 31)

enum {
    EPW_FRAME_WRITE = 1,
    EPW_FRAME_NOP = 2,
    EPW_FRAME_ACK = 3,
    EPW_FRAME_NAK = 4,
    EPW_FRAME_READ = 5,
    EPW_FRAME_FETCH_ADD = 6,
    EPW_FRAME_ANSWER = 7,
    EPW_FRAME_ENDED = 8,
    EPW_FRAME_CONNECTED = 9,
    EPW_FRAME_HEARD = 10
};

typedef struct epw_frame {
    uint8_t kind;
    bool wants_ack;   /* WRITE, NOP */
    uint8_t syndrome; /* NAK */
    uint32_t pair;    /* of the receiver */
    uint32_t from; /* requests, and frames about pairs: the sender's queue pair, to which the answer goes */
    uint32_t index;
    uint32_t key; /* WRITE, READ, FETCH_ADD: key of the region, and offset in it */
    uint64_t offset;
    uint32_t bytes;  /* of these three, and of an ANSWER; of a WRITE of several entries: of each */
    uint32_t stride; /* with more than one: from the place of one to the next, at least `bytes`; else 0 */
    uint32_t more;   /* and how many follow the first */
} epw_frame;

/* Whether the frame is a request, made from an entry, and not an answer to one. */
bool epw_frame_is_request(const epw_frame *frame);

/* Whether it is ENDED, CONNECTED or HEARD: it names two queue pairs, and nothing else. */
bool epw_frame_is_of_pairs(const epw_frame *frame);

/* Adds an entry to the previous WRITE. False: it needs a frame of its own. */
bool epw_frame_extend(epw_frame *frame, const epw_frame *by);

/* How many bytes follow. */
uint32_t epw_frame_payload(const epw_frame *frame);

void epw_frame_write(const epw_frame *frame, unsigned char out[EPW_FRAME_BYTES]);

/* False if it is not a frame: an unknown kind, a number of bytes that this kind cannot have, or reserved
 * bits. */
bool epw_frame_parse(const unsigned char bytes[EPW_FRAME_BYTES], epw_frame *out);

#endif
