/* The completion queue of a send queue: one entry, overwritten each time. It holds the low 16 bits of the
 * index of the last entry that is done; all entries before that are done too.
 *
 * Any number of threads may look. Each loads the bound, which is what others have found so far, before it
 * loads the entry: so the entry is never behind the bound, and its distance from the bound modulo 2^16 is
 * never too large, however long a look takes. The results of all looks are therefore combined by their
 * maximum. */
#ifndef EPW_NIC_COMPLETION_H
#define EPW_NIC_COMPLETION_H

#include "nic/entry.h"
#include "nic/order.h"
#include "nic/syndrome.h"

typedef struct epw_completions {
    const uint32_t *entry;                      /* 64 bytes, of ones until the first completion */
    uint64_t done __attribute__((aligned(64))); /* the number of entries done since the queue was created */
    uint64_t error;                             /* the first error that was not caused by another one; 0:
                                                   none */
} epw_completions;

/* Why an entry failed that failed by itself, not because of an earlier one. */
typedef struct epw_queue_fault {
    uint32_t pair;            /* number of the queue pair */
    uint8_t syndrome, vendor; /* see syndrome.h; the meaning of the second is defined by the adapter's
                                 vendor */
    uint16_t index;           /* of the entry, its low 16 bits */
} epw_queue_fault;

enum { EPW_COMPLETION_OK = 0, EPW_COMPLETION_ERROR = 0xd };

/* The parts of the entry's last word; the syndrome is two words before it. */
EPW_INLINE uint32_t epw_completion_opcode(uint32_t last) {
    return last >> 4 & 0xf;
}
EPW_INLINE uint32_t epw_completion_index(uint32_t last) {
    return last >> 16;
}

EPW_INLINE void epw_completions_keep_error(epw_completions *c, uint32_t index) {
    /* Bytes 0x34 to 0x37: two that are not used, vendor, syndrome. Released by the last word. */
    uint32_t said = epw_swap_32(epw_load_acquire_32(c->entry + 13));
    uint64_t error = UINT64_C(1) << 63 | (uint64_t)(said & 0xffff) << 16 | index;
    if (epw_compare_swap_64(&c->error, 0, error)) return;
    /* A look that came too late to see the cause has stored an error that followed from it. */
    uint64_t kept = epw_load_acquire_64(&c->error);
    bool flushed = (kept >> 16 & 0xff) == EPW_SYNDROME_FLUSHED;
    if (flushed && (said & 0xff) != EPW_SYNDROME_FLUSHED) epw_compare_swap_64(&c->error, kept, error);
}

/* Takes in the last word of a completion entry, loaded after the bound. Returns how many entries are done.
 * The atomic maximum publishes that to threads that reuse the slots. */
EPW_INLINE uint64_t epw_completions_follow(epw_completions *c, uint64_t bound, uint32_t last) {
    uint32_t index = epw_completion_index(last);
    if (epw_completion_opcode(last) == EPW_COMPLETION_ERROR) epw_completions_keep_error(c, index);
    if (epw_completion_opcode(last) != EPW_COMPLETION_OK) return bound;
    uint64_t seen = bound + ((index + 1 - bound) & 0xffff);
    if (seen == bound) return bound;
    uint64_t was = epw_max_64(&c->done, seen);
    return was > seen ? was : seen;
}

/* Looks at the entry. Writer: the NIC, which releases the last word after the rest. Reader: any poster. */
EPW_INLINE uint64_t epw_completions_look(epw_completions *c) {
    uint64_t bound = epw_load_acquire_64(&c->done);
    return epw_completions_follow(c, bound, epw_swap_32(epw_load_acquire_32(c->entry + 15)));
}

/* Whether all entries below `index` are done. */
EPW_INLINE bool epw_completions_reach(epw_completions *c, uint64_t index) {
    return epw_load_acquire_64(&c->done) >= index || epw_completions_look(c) >= index;
}

/* Whether nothing completes any more, and why; the caller fills in which pair it is. */
EPW_INLINE bool epw_completions_failed(epw_completions *c, epw_queue_fault *fault) {
    epw_completions_look(c);
    uint64_t error = epw_load_acquire_64(&c->error);
    if (error == 0) return false;
    fault->syndrome = (uint8_t)(error >> 16);
    fault->vendor = (uint8_t)(error >> 24);
    fault->index = (uint16_t)error;
    return true;
}

#endif
