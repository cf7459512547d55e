/* Posting to peers behind queues, see remote.h: entries for ranges and for the word after them, and when the
 * memory of the ranges may be written again. */
#include "peer/remote.h"
#include "peer/remote_part.h"

#include "base/clock.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

/* The number of entries of a range: one if its bytes fill the stride, and an entry can carry them all. */
static uint32_t entries_of(const epw_range *range) {
    if (range->bytes == 0 || range->count == 0) return 0;
    bool whole = range->count == 1 ||
                 (range->bytes == range->stride && range->bytes * range->count <= EPW_ENTRY_BYTES_MAX);
    return whole && range->lent == NULL ? 1 : range->count;
}

/* The area in which `offset` of the peer's window lies; EPW_AREAS: none that this rank writes. */
static uint32_t area_of(const epw_way *w, uint64_t offset) {
    uint32_t area = 0;
    while (area < EPW_AREAS && (offset < w->stretches[area].offset ||
                                offset - w->stretches[area].offset >= w->stretches[area].bytes))
        area++;
    return area;
}

/* Where the bytes for `offset` of the peer's window lie in the image. */
static uint64_t image_of(const epw_way *w, uint64_t offset) {
    uint32_t area = area_of(w, offset);
    if (area == EPW_AREAS) return UINT64_MAX; /* no key covers this, so the NIC refuses it */
    return w->image[area] + (offset - w->stretches[area].offset);
}

/* The entries of a signal; the doorbell may be rung for those below `told`. */
typedef struct posting {
    epw_way *w;
    epw_queue_post post;
    uint64_t next, told;
} posting;

/* Where the next entry is built, and its index. The doorbell is rung for one batch of entries at a time. */
static epw_entry_block *next_entry(posting *p, uint64_t *index) {
    epw_queue *q = &p->w->queue;
    if (p->next - p->told >= q->batch) {
        if (epw_queue_finish_part(q, &p->post, p->next)) epw_end_ring(&p->w->end);
        p->told = p->next;
    }
    *index = p->next++;
    return epw_queue_slot(q, *index);
}

static void post_lent_rows(posting *p, const epw_range *range) {
    const epw_lent_rows *lent = range->lent;
    epw_way *w = p->w;
    uint64_t from = image_of(w, range->offset), index;
    epw_key rows = epw_key_of(lent->key);
    for (uint32_t i = 0; i < range->count; i++) {
        epw_entry_block *entry = next_entry(p, &index);
        epw_entry_write_both(entry, w->queue.pair, index,
                             (epw_place_of){range->offset + i * range->stride, w->its},
                             (epw_place_of){from + i * range->stride, w->own}, lent->head_bytes,
                             (epw_place_of){lent->first + lent->numbers[i] * lent->stride, rows},
                             (uint32_t)range->bytes - lent->head_bytes, EPW_SIGNAL_ERRORS);
    }
}

static void post_range(posting *p, const epw_range *range) {
    uint32_t entries = entries_of(range);
    epw_way *w = p->w;
    if (entries == 0) return;
    if (range->lent != NULL) {
        post_lent_rows(p, range);
        return;
    }
    uint64_t from = image_of(w, range->offset), index;
    uint64_t bytes = entries == 1 ? range->bytes * range->count : range->bytes;
    for (uint32_t i = 0; i < entries; i++) {
        epw_entry_block *entry = next_entry(p, &index);
        epw_entry_write(entry, w->queue.pair, index,
                        (epw_place_of){range->offset + i * range->stride, w->its},
                        (epw_place_of){from + i * range->stride, w->own}, (uint32_t)bytes, EPW_SIGNAL_ERRORS);
    }
}

/* An 8-byte write, over every wire: a word has one writer and absolute values, so it only has to arrive after
 * the rows. `local`, `tcp` and an adapter's reliable connections keep this order within a queue pair; if a
 * NIC's carrier does not, the NIC holds the word back until the rows have completed (nic/soft/carry.c). So no
 * wire needs words by fetch-add, which would need a shadow of each word and a check of what came back. */
static void post_word(posting *p, epw_key its, uint64_t offset, uint64_t value) {
    uint64_t index;
    epw_entry_block *entry = next_entry(p, &index);
    epw_entry_write_word(entry, p->w->queue.pair, index, (epw_place_of){offset, its}, value,
                         EPW_SIGNAL_ALWAYS);
}

/* Room for these entries; false: the queue is full, and now broken. */
static bool begin(epw_way *w, uint32_t entries, posting *out) {
    epw_queue_post post = epw_queue_post_to(&w->queue);
    if (!epw_queue_try_begin(&w->queue, entries, w->queue.depth, &post)) {
        epw_end_break(&w->end);
        return false;
    }
    *out = (posting){w, post, post.index, post.index};
    return true;
}

static void finish(const posting *p) {
    if (epw_queue_finish(&p->w->queue, &p->post)) epw_end_ring(&p->w->end);
}

void epw_remote_signal(const epw_peers *peers, uint32_t lane, uint32_t peer, uint64_t offset, uint64_t value,
                       const epw_range *ranges, uint32_t count) {
    epw_way *w = epw_way_to(peers, lane, peer);
    uint32_t entries = 1;
    posting p;
    for (uint32_t i = 0; i < count; i++) entries += entries_of(&ranges[i]);
    if (!begin(w, entries, &p)) return;
    for (uint32_t i = 0; i < count; i++) post_range(&p, &ranges[i]);
    post_word(&p, w->its, offset, value);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t area = area_of(w, ranges[i].offset);
        if (entries_of(&ranges[i]) > 0 && area < EPW_AREAS) epw_store_release_64(&w->flushed[area], p.next);
    }
    finish(&p);
}

/* A key opens memory to the queue pairs of one adapter: the host's way shares its adapter with lane 0. */
_Static_assert(EPW_HOST_WAY % EPW_ADAPTERS_MAX == 0, "the host's way and lane 0 have the same place");
void epw_remote_tell_kernels(const epw_peers *peers, uint32_t peer, uint64_t offset, uint64_t value) {
    epw_way *w = epw_way_to(peers, 0, peer);
    posting p;
    if (!begin(w, 1, &p)) return;
    post_word(&p, peers->remotes[peer]->ways[0].its, offset, value);
    finish(&p);
}

bool epw_remote_is_flushed(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t areas) {
    epw_way *w = epw_way_to(peers, lane, peer);
    uint64_t last = 0;
    for (uint32_t area = 0; area < EPW_AREAS; area++) {
        uint64_t flushed = epw_load_acquire_64(&w->flushed[area]);
        if ((areas >> area & 1) && flushed > last) last = flushed;
    }
    return epw_queue_is_done(&w->queue, last);
}

uint32_t epw_remotes_lend(const epw_peers *peers, uint32_t lane, const void *rows, uint64_t bytes,
                          uint64_t *first) {
    /* Adapters register memory from the beginning of a page on. */
    *first = (uintptr_t)rows % (uintptr_t)sysconf(_SC_PAGESIZE);
    epw_region region = {.base = (unsigned char *)((uintptr_t)rows - *first),
                         .rights = EPW_REGION_READ,
                         .count = 1,
                         .stretches = {{*first, bytes}}};
    epw_keys keys;
    epw_where where = {"lend", (int)peers->rank, -1};
    uint32_t place = epw_fabric_place(peers->fabric, lane);
    return epw_end_register(peers->fabric, place, &region, where, &keys) == EPW_OK ? keys.own : 0;
}

/* Whether the rank is a member behind a queue, which stays connected as long as the lane is locked; other
 * ranks may be disconnected at any time. */
static bool is_queued_member(const epw_peers *peers, uint32_t peer) {
    return epw_mask_has(&peers->active, peer) && epw_is_queued(peers, peer);
}
/* Whether some of what was posted on the lane has not been sent, or not as far as is known. */
static bool has_unsent(const epw_peers *peers, uint32_t lane, uint32_t peer) {
    return is_queued_member(peers, peer) && !epw_remote_is_flushed(peers, lane, peer, UINT32_MAX);
}

/* Whether it may still receive some of that. */
static bool is_behind(const epw_peers *peers, uint32_t lane, uint32_t peer) {
    return has_unsent(peers, lane, peer) && !epw_remote_is_broken(peers, lane, peer);
}

uint32_t epw_remotes_behind(const epw_peers *peers, uint32_t lane, uint64_t waited_ns) {
    bool patient = waited_ns < EPW_FLUSH_NS;
    uint32_t peer = 0;
    while (peer < peers->ranks &&
           !(is_behind(peers, lane, peer) &&
             (patient || !(epw_peers_suspected(peers, peer) || epw_peers_revoked(peers, peer)))))
        peer++;
    return peer;
}

void epw_remotes_pause(const epw_peers *peers, uint64_t began, uint64_t now) {
    if (now - began < peers->yield_ns) {
        epw_remotes_drive(peers, now);
        sched_yield();
    } else {
        epw_remotes_rest(peers);
        nanosleep(&(struct timespec){0, 50000}, NULL);
    }
}

/* An adapter notices the end of the connection later, and until then finds an entry for memory that is not
 * its own any more: an error of this rank's own making. So its queue is ended first. */
void epw_remotes_take_back(const epw_peers *peers, uint32_t lane, uint32_t key) {
    epw_nic *nic = epw_fabric_nic(peers->fabric);
    for (uint32_t peer = 0; peer < peers->ranks; peer++) {
        if (!has_unsent(peers, lane, peer)) continue;
        bool behind = is_behind(peers, lane, peer);
        epw_end_break(&epw_way_to(peers, lane, peer)->end);
        if (behind) epw_nic_end_link(nic, peers->remotes[peer]->link);
    }
    epw_end_deregister(peers->fabric, epw_fabric_place(peers->fabric, lane), key);
}
