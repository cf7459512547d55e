/* Carries a connection's bytes through memory that both NICs map: a ring for each direction, in one memfd
 * whose size is sealed. The socket of the connection stays open: it passes the memory when the connection is
 * made, wakes the other end when it sleeps, and shows that the other end is gone.
 *
 *     page 0   the cursors of both rings, and who is to be woken
 *     then     the bytes of requests, from who has dialed
 *     then     the bytes of answers, back to it
 *
 * Cursors count bytes since the beginning. Each end keeps its own cursor and only publishes it; the other
 * end's cursor is checked, and an impossible one ends the connection. */
#ifndef EPW_NIC_SOFT_RING_H
#define EPW_NIC_SOFT_RING_H

#include "epwire.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define EPW_RING_BYTES   (UINT32_C(1) << 22) /* size of the ring of requests, unless options say otherwise */
#define EPW_RING_ANSWERS (UINT32_C(1) << 16)

/* The part of a ring that both ends see. */
typedef struct epw_ring_cursors {
    _Alignas(64) _Atomic uint64_t written; /* by the writer */
    _Alignas(64) _Atomic uint64_t read;    /* by the reader */
    /* Whoever sleeps sets its own, and whoever wakes it clears it. */
    _Alignas(64) _Atomic uint32_t reader_sleeps;
    _Alignas(64) _Atomic uint32_t writer_sleeps; /* until a quarter is free */
} epw_ring_cursors;

/* One end of a ring. */
typedef struct epw_ring {
    epw_ring_cursors *cursors;
    unsigned char *bytes;
    uint64_t size, at; /* this end's cursor */
} epw_ring;

typedef struct epw_rings {
    void *memory; /* NULL: not mapped */
    uint64_t mapped;
    epw_ring out, in;
} epw_rings;

/* Makes the memory of rings, and passes it over the socket; called by the end that has dialed. Returns 0 or
 * an errno value. */
int epw_rings_offer(epw_rings *rings, int fd, uint32_t bytes);

/* Takes what the other end has passed. Returns 0, EAGAIN as long as it has not passed it, or another errno
 * value. */
int epw_rings_take(epw_rings *rings, int fd);

void epw_rings_unmap(epw_rings *rings);

/* Takes wake-ups off the socket. False: the other end is gone. What it wrote before is in the ring. */
bool epw_rings_hear(int fd);

/* As sendmsg: returns how many bytes it took; -1: EAGAIN, there is no room, or EPROTO, an impossible cursor.
 */
ssize_t epw_ring_write(epw_ring *ring, int fd, const struct iovec *from, size_t count);

/* How many bytes are available. More than the ring's size: an impossible cursor. */
uint64_t epw_ring_filled(const epw_ring *ring);

/* Copies available bytes, also across the ring's end. */
void epw_ring_copy(const epw_ring *ring, unsigned char *to, uint64_t bytes);

/* Frees this many of them. */
void epw_ring_advance(epw_ring *ring, int fd, uint64_t bytes);

/* Whether a quarter of it is free, or a cursor is impossible, which the next write finds. */
bool epw_ring_has_room(const epw_ring *ring);

/* The caller is about to sleep until this many bytes are available, or a quarter is free. False: this is so
 * already. Anything written earlier than that wakes it too. */
bool epw_ring_await_bytes(epw_ring *ring, uint32_t bytes);
bool epw_ring_await_room(epw_ring *ring);

#endif
