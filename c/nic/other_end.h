/* What a queue pair that an adapter carries knows of the other end by its reports, which come over the
 * connection of the two fabrics: an adapter reports neither, nor does it show from whom it has taken entries.
 *
 * A connected end takes one pair of the peer, and that pair only once: the first report from the number to
 * which it is connected. If another pair connects to it, or one that has been given the same number, the peer
 * has replaced its end, and the report that the former one has ended is yet to arrive. An end that is not
 * connected has taken nothing, and takes whoever reports last. */
#ifndef EPW_NIC_OTHER_END_H
#define EPW_NIC_OTHER_END_H

#include <stdbool.h>
#include <stdint.h>

typedef struct epw_other_end {
    uint32_t connected; /* the peer's pair that has reported that it is connected to this one; 0: none */
    uint32_t ended;     /* the one that has ended before this one was connected to it; 0: none */
} epw_other_end;

/* Pair `from` of the peer reports that it is connected to this one, which is connected to `remote` (0: not
 * connected). Returns whether this one takes its entries. */
static inline bool epw_other_end_connects(epw_other_end *other, uint32_t remote, uint32_t from) {
    if (remote != 0 && (remote != from || other->connected == from)) return false;
    other->connected = from;
    if (other->ended == from) other->ended = 0;
    return true;
}

/* Pair `from` reports that it has ended. Returns whether this one ends with it. */
static inline bool epw_other_end_ends(epw_other_end *other, uint32_t remote, uint32_t from) {
    if (remote == 0) other->ended = from;
    return remote != 0 && remote == from;
}

/* This one has been connected to `remote`. Returns whether that has ended already. */
static inline bool epw_other_end_is_met(epw_other_end *other, uint32_t remote) {
    bool ended = remote != 0 && other->ended == remote;
    if (other->connected != remote) other->connected = 0;
    other->ended = 0;
    return ended;
}

#endif
