/* A send queue from the side of those who post: threads of the host or of kernels, any number at a time.
 *
 *     try_reserve -> build the entries -> publish -> ring        is_done, fault: what has become of them
 *
 * Nobody waits for another poster. A reservation takes slots only where there is room. Who publishes marks
 * its slots; whoever rings, holding the doorbell, takes the marked slots in their order and tells the NIC how
 * far it may fetch. Who finds the doorbell held leaves: its holder looks again after it has let go. So a
 * poster that is stopped between its reservation and its marks holds up what is behind it, and nothing else.
 *
 * A slot is free again once the entry in it has completed, and a lap's marks differ from those of the lap
 * before. Completions come in one entry, collapsed, with the low 16 bits of the index of the last: depth is
 * at most half of what they tell apart. */
#ifndef EPW_NIC_QUEUE_H
#define EPW_NIC_QUEUE_H

#include "nic/entry.h"
#include "nic/order.h"

#define EPW_QUEUE_DEPTH_MIN 16u
#define EPW_QUEUE_DEPTH_MAX 32768u

typedef struct epw_queue {
    /* Fixed. */
    epw_entry_block *entries;   /* [depth] */
    uint32_t *marks;            /* [depth], zeroed: the lap in which a slot was last published, from 1 */
    uint32_t *record;           /* doorbell record: two words, the second is of the send queue */
    uint64_t *doorbell;         /* register */
    const uint32_t *completion; /* 64 bytes */
    uint32_t depth;             /* a power of two */
    uint32_t pair;              /* number of the queue pair */
    uint32_t batch;             /* entries that wait for a doorbell at most; 1: each post rings */

    /* Moving, each by its own writers. Indices count entries since the queue was made, and never wrap. */
    uint64_t reserved __attribute__((aligned(64)));
    uint64_t completed __attribute__((aligned(64)));
    uint64_t rung __attribute__((aligned(64))); /* by the doorbell's holder */
    uint32_t held;                              /* the doorbell is */
    uint32_t flush;                             /* somebody wants all that is published to be rung for */
    uint64_t error;                             /* the first that no other one has caused; 0: none */
} epw_queue;

/* What went wrong, of an entry that nothing before it has made fail. */
typedef struct epw_queue_fault {
    uint8_t syndrome, vendor;
    uint16_t index; /* of the entry, its low 16 bits */
} epw_queue_fault;

enum { EPW_COMPLETION_ERROR = 0xd, EPW_COMPLETION_OK = 0, EPW_SYNDROME_FLUSH = 0x05 };

/* ---- completions ---- */

EPW_INLINE void epw_queue_keep_error(epw_queue *q, uint32_t index) {
    /* Bytes 0x34 to 0x37: two that are not used, vendor, syndrome. Released by the last word. */
    uint32_t said = epw_swap_32(epw_load_acquire_32(q->completion + 13));
    uint64_t error = UINT64_C(1) << 63 | (uint64_t)(said & 0xffff) << 16 | (index & 0xffff);
    if (epw_compare_swap_64(&q->error, 0, error)) return;
    /* A look that came too late to see the cause has kept what followed from it. */
    uint64_t kept = epw_load_acquire_64(&q->error);
    bool flush = (kept >> 16 & 0xff) == EPW_SYNDROME_FLUSH;
    if (flush && (said & 0xff) != EPW_SYNDROME_FLUSH) epw_compare_swap_64(&q->error, kept, error);
}

/* Looks at the completion queue. Returns how many entries are done. Writer: the NIC, which releases the last
 * word. Reader: any poster; the swap publishes `completed` to those that reuse the slots. */
EPW_INLINE uint64_t epw_queue_look(epw_queue *q) {
    uint64_t done = epw_load_acquire_64(&q->completed);
    uint32_t last = epw_swap_32(epw_load_acquire_32(q->completion + 15));
    uint32_t opcode = last >> 4 & 0xf, index = last >> 16;
    if (opcode == EPW_COMPLETION_ERROR) epw_queue_keep_error(q, index);
    if (opcode != EPW_COMPLETION_OK) return done;
    /* More than a ring's worth ahead is behind: of a look that another one has overtaken. */
    uint32_t ahead = (index + 1 - (uint32_t)done) & 0xffff;
    if (ahead == 0 || ahead > q->depth) return done;
    if (epw_compare_swap_64(&q->completed, done, done + ahead)) return done + ahead;
    return epw_load_acquire_64(&q->completed);
}

/* Whether all entries below `index` are done. */
EPW_INLINE bool epw_queue_is_done(epw_queue *q, uint64_t index) {
    return epw_load_acquire_64(&q->completed) >= index || epw_queue_look(q) >= index;
}

/* Whether nothing completes any more, and why. */
EPW_INLINE bool epw_queue_failed(epw_queue *q, epw_queue_fault *fault) {
    epw_queue_look(q);
    uint64_t error = epw_load_acquire_64(&q->error);
    if (error == 0) return false;
    fault->syndrome = (uint8_t)(error >> 16);
    fault->vendor = (uint8_t)(error >> 24);
    fault->index = (uint16_t)error;
    return true;
}

/* ---- posting ---- */

/* Takes `count` slots, 1 to depth, if as many are free; never waits. *index: of the first. */
EPW_INLINE bool epw_queue_try_reserve(epw_queue *q, uint32_t count, uint64_t *index) {
    for (;;) { /* ends: a swap that fails is another one's success */
        uint64_t at = epw_load_acquire_64(&q->reserved);
        uint64_t needed = at + count <= q->depth ? 0 : at + count - q->depth;
        if (!epw_queue_is_done(q, needed)) return false;
        if (!epw_compare_swap_64(&q->reserved, at, at + count)) continue;
        *index = at;
        return true;
    }
}

/* Where the entry of this index is built. */
EPW_INLINE epw_entry_block *epw_queue_slot(epw_queue *q, uint64_t index) {
    return &q->entries[index & (q->depth - 1)];
}

EPW_INLINE uint32_t epw_queue_lap(const epw_queue *q, uint64_t index) {
    return (uint32_t)(index / q->depth) + 1;
}

/* The entries are built. Writer: who reserved them. Reader: whoever rings, which acquires each mark and so
 * has the entries, and what they point to, before its own release of record and doorbell. */
EPW_INLINE void epw_queue_publish(epw_queue *q, uint64_t index, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        epw_store_release_32(&q->marks[(index + i) & (q->depth - 1)], epw_queue_lap(q, index + i));
}

EPW_INLINE bool epw_queue_is_marked(const epw_queue *q, uint64_t index) {
    return epw_load_acquire_32(&q->marks[index & (q->depth - 1)]) == epw_queue_lap(q, index);
}

/* Rings for what is published, if that is a batch, or all of it if `flush` is set. True if it has rung: who
 * drives a NIC of its own tells it. */
EPW_INLINE bool epw_queue_ring(epw_queue *q, bool flush) {
    bool rang = false;
    if (flush) epw_exchange_32(&q->flush, 1);
    for (;;) { /* ends: each turn finds entries or a flush that came meanwhile */
        if (epw_exchange_32(&q->held, 1) != 0) return rang;
        bool all = epw_exchange_32(&q->flush, 0) != 0;
        uint64_t rung = epw_load_acquire_64(&q->rung), next = rung;
        while (next - rung < q->depth && epw_queue_is_marked(q, next)) next++;
        if (next != rung && (all || next - rung >= q->batch)) {
            /* Writer: this thread. Reader: the NIC, which loads the doorbell, then the record, then the
             * entries; each of these stores releases what was before. */
            epw_store_release_32(q->record + 1, epw_doorbell_record(next));
            epw_store_release_64(q->doorbell, epw_doorbell(q->pair, next));
            epw_store_release_64(&q->rung, next);
            rang = true;
        }
        epw_exchange_32(&q->held, 0);
        /* Observers: who has marked a slot or asked for a flush, and then found the doorbell held; and this
         * thread, which has let it go and looks. Exchanges and the ordered loads behind them have one order
         * for all, so one of the two sees the other. */
        bool again = epw_load_ordered_32(&q->flush) != 0;
        bool more = epw_load_ordered_32(&q->marks[next & (q->depth - 1)]) == epw_queue_lap(q, next);
        if (!again && !more) return rang;
    }
}

#endif
