/* A send queue as its posters see it: threads of the host or of kernels, any number at a time.
 *
 *     try_begin -> build the entries -> finish                   is_done, failed: what has become of them
 *     try_reserve -> build the entries -> publish -> ring        await, quiet
 *     reserve
 *
 * No poster waits for another one, except in the three functions that take a time limit: reserve, await and
 * quiet. A reservation takes slots only if there is room. Publishing marks the slots; the thread that holds
 * the doorbell takes marked slots in order and tells the NIC how far it may fetch. A thread that finds the
 * doorbell held leaves its request there. So a poster that is stopped between its reservation and its marks
 * delays only the entries after its own.
 *
 * If the NIC was told of everything before a post when that began, its thread tells of it without marks and
 * without the doorbell, since nobody else can. This is the short way: between the poster and the NIC
 * there are one swap, of `reserved`, and the fences of record and doorbell.
 *
 * A slot is free again once its entry has completed; the mark of an earlier one that is left there is another
 * number. Completions hold 16 bits of an index, so the depth is at most half of what these can
 * distinguish. */
#ifndef EPW_NIC_QUEUE_H
#define EPW_NIC_QUEUE_H

#include "nic/completion.h"
#include "nic/doorbell.h"
#include "nic/entry.h"
#include "nic/order.h"

/* As in epwire.h: the compiler reports a difference to files that include both. */
#define EPW_QUEUE_DEPTH_MIN 16u
#define EPW_QUEUE_DEPTH_MAX 32768u

typedef struct epw_queue {
    /* Fixed. */
    epw_entry_block *entries; /* [depth] */
    uint64_t *marks;          /* [depth], zeroed: 1 more than the index of the last entry published there */
    uint32_t *record;         /* doorbell record: two words, of which the second belongs to the send queue;
                                 see give_up */
    uint64_t *doorbell;       /* register */
    uint32_t depth;           /* a power of two */
    uint32_t pair;            /* number of the queue pair */
    uint32_t batch;           /* the most entries that wait for a doorbell; 1: each post rings */

    /* Moving indices, each with its own writers. They count entries since the queue was created, and never
     * wrap. */
    epw_completions completions;
    uint64_t reserved __attribute__((aligned(64)));
    uint64_t bell __attribute__((aligned(64))); /* see doorbell.h */
} epw_queue;

/* ---- completions ---- */

/* Whether all entries below `index` are done. For entries that do not signal this is known only with a later
 * one. */
EPW_INLINE bool epw_queue_is_done(epw_queue *q, uint64_t index) {
    return epw_completions_reach(&q->completions, index);
}

/* Whether nothing completes any more, and why. */
EPW_INLINE bool epw_queue_failed(epw_queue *q, epw_queue_fault *fault) {
    fault->pair = q->pair;
    return epw_completions_failed(&q->completions, fault);
}

/* ---- posting ---- */

/* Takes `count` slots, 1 to depth, if that many are free; never waits. *index: that of the first.
 *
 * The swap only decides who owns the slots. That their previous entries are done is acquired from the
 * completions. */
EPW_INLINE bool epw_queue_try_reserve(epw_queue *q, uint32_t count, uint64_t *index) {
    for (;;) { /* terminates: a swap fails only where another one has succeeded */
        uint64_t at = epw_load_relaxed_64(&q->reserved);
        uint64_t needed = at + count <= q->depth ? 0 : at + count - q->depth;
        if (!epw_queue_is_done(q, needed)) return false;
        if (!epw_compare_swap_relaxed_64(&q->reserved, at, at + count)) continue;
        *index = at;
        return true;
    }
}

/* Where the entry of this index is built. */
EPW_INLINE epw_entry_block *epw_queue_slot(epw_queue *q, uint64_t index) {
    return &q->entries[index & (q->depth - 1)];
}

/* The entries are built. Writer: the thread that reserved them. Reader: whoever rings, which acquires each
 * mark, and so the entries and what they point to, before its own release of record and doorbell. */
EPW_INLINE void epw_queue_publish(epw_queue *q, uint64_t index, uint32_t count) {
    epw_before_marks();
    for (uint64_t i = index; i < index + count; i++) epw_mark(&q->marks[i & (q->depth - 1)], i + 1);
}

EPW_INLINE bool epw_queue_is_marked(const epw_queue *q, uint64_t index) {
    return epw_load_acquire_64(&q->marks[index & (q->depth - 1)]) == index + 1;
}

/* The entries below `index` may be fetched. Writer: the holder of the bell, or the poster of the first
 * entries of which the NIC was not told yet, which it does not mark. Reader: the NIC, which loads the
 * doorbell, then the record, then the entries; each of these stores comes after all earlier ones. */
EPW_INLINE void epw_queue_tell(epw_queue *q, uint64_t index) {
    epw_store_record(q->record + 1, epw_doorbell_record(index));
    epw_store_doorbell(q->doorbell, epw_doorbell(q->pair, index));
}

/* Rings for what is published if that fills a batch, or, if `flush` is set, for all that was posted,
 * including what another poster publishes later before it. True if it has rung: a caller that drives its own
 * NIC then notifies it. The caller has just published the `count` entries from `own` on itself: their marks,
 * each of which takes a load, are not read again. */
EPW_INLINE bool epw_queue_ring_for(epw_queue *q, bool flush, uint64_t own, uint32_t count) {
    epw_bell bell;
    bool rang = false;
    if (!epw_bell_take(&q->bell, flush, &bell)) return false;
    for (;;) { /* ends: each iteration serves a request that has arrived meanwhile */
        uint64_t before = bell.rung, next = before;
        bool others = false;
        for (;;) {
            if (next == own && count > 0) next += count;
            if (next - before >= q->depth || !epw_queue_is_marked(q, next)) break;
            next++;
            others = true;
        }
        if (others && epw_bell_is_given_up(&q->bell)) return rang;
        if (next != before && (bell.flush || next - before >= q->batch)) {
            epw_queue_tell(q, next);
            bell.rung = next;
            rang = true;
        }
        if (bell.flush) bell.flush = next < epw_load_acquire_64(&q->reserved);
        if (epw_bell_let_go(&q->bell, before, &bell)) return rang;
    }
}
EPW_INLINE bool epw_queue_ring(epw_queue *q, bool flush) {
    return epw_queue_ring_for(q, flush, 0, 0);
}

/* ---- posting at once ---- */

typedef struct epw_queue_post {
    /* Of the queue, loaded beside the index: a kernel's acquires empty the cache, and behind them each of
     * these would take as long as that. */
    epw_entry_block *entries;
    uint32_t *record;
    uint32_t depth, pair;

    uint32_t count;
    bool next;      /* the NIC was told of all entries before it */
    uint64_t index; /* of its first entry */
} epw_queue_post;

EPW_INLINE epw_queue_post epw_queue_post_to(const epw_queue *q) {
    epw_queue_post post = {q->entries, q->record, q->depth, q->pair, 0, false, 0};
    return post;
}

/* As try_reserve, if then at most `room` entries are not done, 1 to depth. The loads do not wait for each
 * other, so that they take a kernel the time of one. */
EPW_INLINE bool epw_queue_try_begin(epw_queue *q, uint32_t count, uint32_t room, epw_queue_post *post) {
    for (;;) { /* terminates: each time around, another post has begun or more entries are done */
        uint64_t index = epw_load_relaxed_64(&q->reserved);
        bool next = epw_bell_has_reached(&q->bell, index);
        uint64_t end = index + count, needed = end <= room ? 0 : end - room;
        if (!epw_queue_is_done(q, needed)) return false;
        if (!epw_compare_swap_relaxed_64(&q->reserved, index, end)) continue;
        *post = epw_queue_post_to(q);
        post->count = count;
        post->index = index;
        post->next = next;
        return true;
    }
}

/* Where the post's entry of this index is built. */
EPW_INLINE epw_entry_block *epw_queue_post_slot(const epw_queue_post *post, uint64_t index) {
    return &post->entries[index & (post->depth - 1)];
}

/* As epw_queue_tell. */
EPW_INLINE void epw_queue_post_tell(epw_queue *q, const epw_queue_post *post, uint64_t index) {
    epw_store_record(post->record + 1, epw_doorbell_record(index));
    epw_store_doorbell(q->doorbell, epw_doorbell(q->pair, index));
}

/* The entries of the post below `end` are built: rings for those already, or publishes them, so that they are
 * rung for if they fill a batch. True if it has rung, as ring. */
EPW_INLINE bool epw_queue_finish_part(epw_queue *q, epw_queue_post *post, uint64_t end) {
    if (post->next) {
        epw_queue_post_tell(q, post, end);
        return true;
    }
    uint32_t count = (uint32_t)(end - post->index);
    epw_queue_publish(q, post->index, count);
    post->index = end;
    post->count -= count;
    return epw_queue_ring(q, false);
}

/* The entries are built: rings for all that was posted, and publishes them if others must ring first.
 * Writer: the calling thread, and those that it has synchronized with after they built entries. True if it
 * has rung, see ring.
 *
 * On the short way what another poster has published behind the post is rung for by that poster, which finds
 * the bell where this one has left it; or, if it had looked before, by this one, whose swap then acquires its
 * marks; or by the holder of the bell, who finds the count moved when it lets go. */
EPW_INLINE bool epw_queue_finish(epw_queue *q, const epw_queue_post *post) {
    uint64_t end = post->index + post->count;
    bool told = post->next;
    if (told) {
        epw_queue_post_tell(q, post, end);
        epw_bell_pass(&q->bell, post->index, end);
        if (!epw_queue_is_marked(q, end)) return true;
    } else {
        epw_queue_publish(q, post->index, post->count);
    }
    return epw_queue_ring_for(q, !told, post->index, told ? 0 : post->count) || told;
}

/* ---- giving up ---- */

/* A post has failed for lack of room, and later posts must not pass for everything that was sent: the queue
 * is given up. Nobody rings for it any more. The first word of its record (which belongs to the receive queue
 * that these pairs do not have) tells a soft NIC, or the thread that attends an adapter's queues
 * (nic/mlx5/attend.c), to break it, so that waits for the peer end with EPW_CAUSE_LINK. Writer: a poster. */
EPW_INLINE void epw_queue_give_up(epw_queue *q) {
    epw_bell_give_up(&q->bell);
    epw_store_release_32(q->record, 1);
}
EPW_INLINE bool epw_record_is_given_up(const uint32_t *record) {
    return epw_load_acquire_32(record) != 0;
}

/* ---- waiting ---- */

/* How a thread waits. */
typedef struct epw_queue_wait {
    /* Yields to other threads for a short while; drives the NIC if the poster has to. `rang`: the doorbell
     * has been rung since the last call. Returns the time. */
    uint64_t (*idle)(void *context, bool rang);
    void *context;
    uint64_t until; /* a time of the same clock */
} epw_queue_wait;

typedef enum epw_queue_end {
    EPW_QUEUE_DONE,
    EPW_QUEUE_LATE,  /* the time is over */
    EPW_QUEUE_FAILED /* nothing completes any more: *fault says why */
} epw_queue_end;

/* As try_reserve, but waits for room. Rings for what was posted, because that may be what takes up the room.
 */
EPW_INLINE epw_queue_end epw_queue_reserve(epw_queue *q, uint32_t count, const epw_queue_wait *wait,
                                           uint64_t *index, epw_queue_fault *fault) {
    for (bool late = false;;) {
        if (epw_queue_failed(q, fault)) return EPW_QUEUE_FAILED;
        if (epw_queue_try_reserve(q, count, index)) return EPW_QUEUE_DONE;
        if (late) return EPW_QUEUE_LATE;
        late = wait->idle(wait->context, epw_queue_ring(q, true)) >= wait->until;
    }
}

/* Waits until all entries below `index` are done, of which the last signals; rings for them. */
EPW_INLINE epw_queue_end epw_queue_await(epw_queue *q, uint64_t index, const epw_queue_wait *wait,
                                         epw_queue_fault *fault) {
    for (bool late = false;;) {
        if (epw_queue_is_done(q, index)) return EPW_QUEUE_DONE;
        if (epw_queue_failed(q, fault)) return EPW_QUEUE_FAILED;
        if (late) return EPW_QUEUE_LATE;
        late = wait->idle(wait->context, epw_queue_ring(q, true)) >= wait->until;
    }
}

/* The same for everything that any thread has reserved so far. */
EPW_INLINE epw_queue_end epw_queue_quiet(epw_queue *q, const epw_queue_wait *wait, epw_queue_fault *fault) {
    return epw_queue_await(q, epw_load_acquire_64(&q->reserved), wait, fault);
}

#endif
