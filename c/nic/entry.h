/* Entries of a send queue as an mlx5 adapter reads them, each in one basic block of 64 bytes: a control
 * segment, the remote address, then the data or its address. All numbers are big-endian, except inline bytes.
 * Both host threads and kernels build entries with these functions. */
#ifndef EPW_NIC_ENTRY_H
#define EPW_NIC_ENTRY_H

#include "base/inline.h"

#include <stdbool.h>
#include <stdint.h>

enum { EPW_ENTRY_BYTES = 64, EPW_ENTRY_WORDS = 16 };

/* Words of 32 bits in the order of memory, so that no store needs more than their alignment. */
typedef struct epw_entry_block {
    uint32_t words[EPW_ENTRY_WORDS];
} epw_entry_block;

/* A memory key in the form that entries use: swapped once, when the memory is registered. */
typedef struct epw_key {
    uint32_t big_endian;
} epw_key;

/* Bytes of this rank or of the peer, by address, or by offset where a key's region begins at 0. */
typedef struct epw_place_of {
    uint64_t address;
    epw_key key;
} epw_place_of;

EPW_INLINE uint32_t epw_swap_32(uint32_t value) {
    return value >> 24 | (value >> 8 & 0xff00) | (value << 8 & 0xff0000) | value << 24;
}

EPW_INLINE epw_key epw_key_of(uint32_t key) {
    epw_key swapped = {epw_swap_32(key)};
    return swapped;
}

enum { EPW_WQE_NOP = 0x00, EPW_WQE_RDMA_WRITE = 0x08, EPW_WQE_RDMA_READ = 0x10, EPW_WQE_FETCH_ADD = 0x12 };

/* Who is notified when the entry is done. */
enum {
    EPW_SIGNAL_ERRORS = 0, /* nobody, unless it fails */
    EPW_SIGNAL_ALWAYS = 8  /* the completion queue */
};

/* The control segment; `units`: the entry's units of 16 bytes, this one included. Unused words at the end are
 * zero. */
EPW_INLINE void epw_entry_begin(epw_entry_block *e, uint32_t opcode, uint32_t pair, uint64_t index,
                                uint32_t units, uint32_t signal) {
    for (int i = 0; i < EPW_ENTRY_WORDS; i++) e->words[i] = 0;
    e->words[0] = epw_swap_32((uint32_t)(index & 0xffff) << 8 | opcode);
    e->words[1] = epw_swap_32(pair << 8 | units);
    e->words[2] = epw_swap_32(signal);
}

EPW_INLINE void epw_entry_remote(epw_entry_block *e, epw_place_of remote) {
    e->words[4] = epw_swap_32((uint32_t)(remote.address >> 32));
    e->words[5] = epw_swap_32((uint32_t)remote.address);
    e->words[6] = remote.key.big_endian;
}

EPW_INLINE void epw_entry_local(epw_entry_block *e, int word, epw_place_of local, uint32_t bytes) {
    e->words[word] = epw_swap_32(bytes);
    e->words[word + 1] = local.key.big_endian;
    e->words[word + 2] = epw_swap_32((uint32_t)(local.address >> 32));
    e->words[word + 3] = epw_swap_32((uint32_t)local.address);
}

/* The most bytes that an entry should carry: the queue pairs of adapters are made for messages of this size
 * (mlx5/commands.h), and from 2^31 on a length would be read as something else. */
#define EPW_ENTRY_BYTES_MAX (UINT64_C(1) << 30)

/* Bytes between this rank and the peer. For 0 bytes the entry has no address segment, because an adapter
 * reads a length of 0 there as 2^31. */
EPW_INLINE void epw_entry_transfer(epw_entry_block *e, uint32_t opcode, uint32_t pair, uint64_t index,
                                   epw_place_of remote, epw_place_of local, uint32_t bytes, uint32_t signal) {
    epw_entry_begin(e, opcode, pair, index, bytes > 0 ? 3 : 2, signal);
    epw_entry_remote(e, remote);
    if (bytes > 0) epw_entry_local(e, 8, local, bytes);
}

/* Writes `bytes` bytes of this rank at the peer, below 2^31. */
EPW_INLINE void epw_entry_write(epw_entry_block *e, uint32_t pair, uint64_t index, epw_place_of remote,
                                epw_place_of local, uint32_t bytes, uint32_t signal) {
    epw_entry_transfer(e, EPW_WQE_RDMA_WRITE, pair, index, remote, local, bytes, signal);
}

/* Writes bytes from two places of this rank at the peer, one after the other: at least one byte from each,
 * together below 2^31. */
EPW_INLINE void epw_entry_write_both(epw_entry_block *e, uint32_t pair, uint64_t index, epw_place_of remote,
                                     epw_place_of first, uint32_t first_bytes, epw_place_of second,
                                     uint32_t second_bytes, uint32_t signal) {
    epw_entry_begin(e, EPW_WQE_RDMA_WRITE, pair, index, 4, signal);
    epw_entry_remote(e, remote);
    epw_entry_local(e, 8, first, first_bytes);
    epw_entry_local(e, 12, second, second_bytes);
}

/* Reads `bytes` bytes of the peer to this rank's memory, below 2^31. */
EPW_INLINE void epw_entry_read(epw_entry_block *e, uint32_t pair, uint64_t index, epw_place_of remote,
                               epw_place_of local, uint32_t bytes, uint32_t signal) {
    epw_entry_transfer(e, EPW_WQE_RDMA_READ, pair, index, remote, local, bytes, signal);
}

/* Writes a word of 8 bytes that the entry carries, as it lies in this rank's memory. */
EPW_INLINE void epw_entry_write_word(epw_entry_block *e, uint32_t pair, uint64_t index, epw_place_of remote,
                                     uint64_t value, uint32_t signal) {
    epw_entry_begin(e, EPW_WQE_RDMA_WRITE, pair, index, 3, signal);
    epw_entry_remote(e, remote);
    e->words[8] = epw_swap_32(UINT32_C(0x80000000) | (uint32_t)sizeof value);
    e->words[9] = (uint32_t)value;
    e->words[10] = (uint32_t)(value >> 32);
}

/* Adds to a word of the peer; its previous value is written to `local`. */
EPW_INLINE void epw_entry_fetch_add(epw_entry_block *e, uint32_t pair, uint64_t index, epw_place_of remote,
                                    uint64_t addend, epw_place_of local, uint32_t signal) {
    epw_entry_begin(e, EPW_WQE_FETCH_ADD, pair, index, 4, signal);
    epw_entry_remote(e, remote);
    e->words[8] = epw_swap_32((uint32_t)(addend >> 32));
    e->words[9] = epw_swap_32((uint32_t)addend);
    epw_entry_local(e, 12, local, (uint32_t)sizeof addend);
}

EPW_INLINE void epw_entry_nop(epw_entry_block *e, uint32_t pair, uint64_t index, uint32_t signal) {
    epw_entry_begin(e, EPW_WQE_NOP, pair, index, 1, signal);
}

/* The value of the doorbell record when all entries below `index` may be fetched, and the value that rings.
 */
EPW_INLINE uint32_t epw_doorbell_record(uint64_t index) {
    return epw_swap_32((uint32_t)(index & 0xffff));
}
EPW_INLINE uint64_t epw_doorbell(uint32_t pair, uint64_t index) {
    return (uint64_t)epw_swap_32(pair << 8) << 32 | epw_swap_32((uint32_t)(index & 0xffff) << 8);
}

#endif
