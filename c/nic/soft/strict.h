/* Strict mode of a soft NIC, for tests: it detects mistakes that an adapter would not forgive, and causes
 * faults on request.
 *
 * An entry that is done is overwritten before its completion is visible, so that a doorbell that is rung
 * before the next entry is written finds no plausible one. Entries, and the bytes that they send, are hashed
 * at the doorbell: an entry that has changed when it is fetched, or bytes that have changed when it
 * completes, end the queue pair with a vendor code of this file. Fetches are delayed at random, to leave time
 * for such mistakes.
 *
 * A fault is planned for one entry of one queue pair, and happens once everything before it is done, so the
 * outcome follows from the plan. No fault reorders entries of one queue pair: sockets and rings keep their
 * order, and a receiver closes the pair of a sender that repeats an index (incoming.c). The only wire that
 * may reorder is an adapter, which plans do not control; a strict NIC assumes that it does (verbs.h), and
 * words wait. When strict mode is off, all of this costs one comparison with NULL. */
#ifndef EPW_NIC_SOFT_STRICT_H
#define EPW_NIC_SOFT_STRICT_H

#include "nic/soft.h"

/* Vendor codes of error completions. */
enum {
    EPW_VENDOR_CHANGED = 0xe1,   /* the entry changed after its doorbell */
    EPW_VENDOR_OVERRUN = 0xe2,   /* more entries than slots */
    EPW_VENDOR_REWRITTEN = 0xe3, /* the bytes that it sends changed before it was done */
    EPW_VENDOR_PLANNED = 0xe4
};

typedef enum epw_fault_kind {
    EPW_FAULT_NONE,
    EPW_FAULT_DROP,          /* the connection ends before it */
    EPW_FAULT_FREEZE,        /* the connection stays, and carries nothing any more */
    EPW_FAULT_DELAY,         /* it waits for some milliseconds */
    EPW_FAULT_LOSE_DOORBELL, /* the one that it was rung for by */
    EPW_FAULT_REORDER,       /* from then on the pair that was added last to a connection sends first */
    EPW_FAULT_ERROR,         /* it fails */
    EPW_FAULT_DUPLICATE,     /* its frame is sent twice */
    EPW_FAULT_TEAR,          /* its frame is cut, and the connection ends */
    EPW_FAULT_KINDS
} epw_fault_kind;

typedef struct epw_fault {
    epw_fault_kind kind;
    uint32_t pair, index; /* of the entry */
    uint8_t syndrome;     /* ERROR: its syndrome */
    uint32_t bytes;       /* TEAR: this many of the frame are sent, fewer than its header has */
} epw_fault;

/* Call it before the NIC has queue pairs. Fetches wait up to delay_us after their doorbells. */
epw_status epw_nic_be_strict(epw_nic *nic, uint64_t seed, uint32_t delay_us, epw_where where);

/* Call it at a strict NIC, before the entry is posted. */
void epw_nic_plan_fault(epw_nic *nic, const epw_fault *fault);

#endif
