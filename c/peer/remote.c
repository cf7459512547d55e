/* See remote.h. */
#include "peer/remote.h"

#include "base/clock.h"
#include "base/little_endian.h"
#include "nic/end.h"
#include "nic/queue.h"
#include "nic/syndrome.h"
#include "peer/inbox.h"
#include "peer/remote_gpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    ALIGNMENT = 64,
    /* Where kernels post by the lanes' queues, the host has one of its own beside them, for words. */
    HOST_WAY = EPW_MAX_LANES,
    WAYS,
    HUGE_FROM_BYTES = 8 << 20
};

/* How long farewells may take to be placed, all that are sent at a time. What a socket has taken by then
 * still travels. */
#define FLUSH_NS UINT64_C(50000000)

/* One lane's way to the peer. */
typedef struct way {
    epw_end end;
    unsigned char *ring;      /* that kernels post to, in pinned memory; else NULL */
    epw_gpu_entries *entries; /* of which the entries are on the GPU; else NULL */
    uint64_t *doorbell;       /* where their GPU has mapped an adapter's register; else NULL */
    uint32_t *marks;          /* NULL there */
    epw_queue queue;
    epw_key its; /* what this rank may write in the peer's window, and what is sent from its own image */
    epw_key own;
    uint64_t flushed[EPW_AREAS]; /* one past the entry behind what was posted last of the area */
    /* What this rank writes in the peer's window, and where that lies in the image. */
    epw_stretch stretches[EPW_AREAS];
    uint64_t image[EPW_AREAS];
} way;

struct epw_remote {
    epw_peers *peers;
    uint32_t peer;
    epw_keys keys[EPW_ADAPTERS_MAX]; /* to what the peer may write in this rank's window */
    uint64_t link;                   /* 0: not connected */
    epw_nonce whose;                 /* with whom it is connected: the peer's window */
    epw_blob_queue offer;            /* and with what that has offered */
    bool served;                     /* a membership with it has begun */
    way ways[WAYS];
};

/* What a rank says of its queues: the addresses of its fabric and of its NIC; each way's key and the number
 * of its pair; and those of the verbs wire, whose ways have one key. */
enum {
    NIC_OFFSET = EPW_FABRIC_ADDRESS_BYTES,
    WAYS_OFFSET = NIC_OFFSET + EPW_FABRIC_NIC_BYTES,
    WAY_BYTES = 4 + 4,
    CARRIED_OFFSET = WAYS_OFFSET + WAY_BYTES * WAYS,
    OFFER_BYTES = CARRIED_OFFSET + 4 + 4 * WAYS
};
_Static_assert(OFFER_BYTES <= EPW_BLOB_QUEUE_MAX, "a blob has room for what is said of queues");

static size_t key_offset(uint32_t wire, uint32_t way) {
    return wire == EPW_WIRE_VERBS ? CARRIED_OFFSET : WAYS_OFFSET + (size_t)WAY_BYTES * way;
}

static size_t number_offset(uint32_t wire, uint32_t way) {
    return key_offset(wire, way) + 4 + (wire == EPW_WIRE_VERBS ? (size_t)4 * way : 0);
}

/* ---- ways ---- */

static bool has_way(const epw_peers *peers, uint32_t number) {
    return number < peers->lanes || (number == HOST_WAY && peers->gpu != NULL);
}

/* By which the host posts. */
static way *way_to(const epw_peers *peers, uint32_t lane, uint32_t peer) {
    return &peers->remotes[peer]->ways[peers->gpu != NULL ? HOST_WAY : lane];
}

/* A way's pair has broken. Writer: the NIC, once nothing that came by it is placed any more. */
static void broken(void *context) {
    const epw_remote *remote = context;
    if (remote->link != 0 && remote->peers->remotes[remote->peer] == remote)
        epw_remote_gpu_broken(remote->peers, remote->peer, true);
}

/* ---- what may be written ---- */

/* A word has come from the peer. Writer: the NIC, behind all that was posted before it. Reader: as of a word
 * that a mapped peer has stored. */
static void arrived(void *context, uint64_t offset, uint64_t value) {
    const epw_remote *remote = context;
    (void)value;
    epw_word_arrived(remote->peers, remote->peer, offset);
}

/* The peer's own parts of this rank's window, or inbox. */
static epw_region region_of(epw_remote *remote) {
    epw_peers *peers = remote->peers;
    epw_region region = {.base = epw_peers_inbox(peers),
                         .rights = EPW_REGION_WRITE,
                         .count = 1,
                         .stretches = {{epw_line_offset(remote->peer), sizeof(epw_line)}},
                         .arrived = arrived,
                         .context = remote};
    for (uint32_t lane = 0; lane < peers->lanes; lane++)
        for (uint32_t area = 0; area < EPW_AREAS; area++)
            region.stretches[region.count++] =
                peers->user->footprint(peers->user_context, remote->peer, lane, area);
    return region;
}

/* ---- the image ---- */

/* Where a lane's area of a peer lies in the image, and what it stands for. */
static uint64_t image_offset(const epw_peers *peers, uint32_t peer, uint32_t lane, uint32_t area,
                             epw_stretch *stretch) {
    uint64_t at = 0, here = 0;
    for (uint32_t l = 0; l < peers->lanes; l++) {
        for (uint32_t a = 0; a < EPW_AREAS; a++) {
            epw_stretch s = peers->user->footprint(peers->user_context, peers->rank, l, a);
            if (l == lane && a == area) {
                here = at;
                *stretch = s;
            }
            at += epw_align(s.bytes, EPW_IMAGE_ALIGN);
        }
    }
    return peer * at + here;
}

static uint64_t image_bytes(const epw_peers *peers) {
    epw_remote_shape shape = epw_peers_shape(peers);
    return epw_images_bytes(&shape);
}

/* One allocation for all peers. On the host pages are taken when they are written. */
static epw_status allocate_image(epw_peers *peers, uint64_t bytes, epw_where where, unsigned char **out) {
    if (peers->gpu != NULL) return epw_remote_gpu_image(peers, bytes, where, out);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for %llu bytes of images of peers behind queues",
                        (unsigned long long)bytes);
    /* A wish, where a peer's part is so large that it fills huge pages. */
    if (bytes / peers->ranks >= HUGE_FROM_BYTES) madvise(at, bytes, MADV_HUGEPAGE);
    *out = at;
    return EPW_OK;
}

static void free_image(epw_peers *peers, unsigned char *image, uint64_t bytes) {
    if (peers->gpu != NULL) {
        epw_remote_gpu_free_image(peers, image);
    } else {
        munmap(image, bytes);
    }
}

/* In the memory of the GPU whose kernels write it, which an adapter reads. */
static epw_status open_far_image(epw_peers *peers, uint64_t bytes, epw_where where) {
    epw_mlx5_far far;
    epw_status status = epw_remote_gpu_far_image(peers, bytes, where, &far);
    if (status != EPW_OK) return status;
    status = epw_end_register_far(peers->fabric, &far, bytes, where, peers->image_keys);
    if (status != EPW_OK) {
        epw_remote_gpu_free_image(peers, far.address);
        return status;
    }
    peers->image = far.address;
    return EPW_OK;
}

/* Whether what kernels write for an adapter is to be on their GPU, if that can be: see create_end. */
static bool wants_far(const epw_peers *peers) {
    return peers->gpu != NULL && epw_fabric_adapter(peers->fabric, 0) != NULL &&
           epw_fabric_rings(peers->fabric) != EPW_RINGS_HOST;
}

static epw_status open_image(epw_peers *peers, epw_where where) {
    if (peers->image != NULL) return EPW_OK;
    uint64_t bytes = image_bytes(peers);
    unsigned char *at;
    if (wants_far(peers)) {
        epw_status far = open_far_image(peers, bytes, where);
        if (far != EPW_ERR_NO_PATH || epw_fabric_rings(peers->fabric) == EPW_RINGS_GPU) return far;
    }
    epw_status status = allocate_image(peers, bytes, where, &at);
    if (status != EPW_OK) return status;
    epw_region region = {.base = at, .rights = EPW_REGION_READ, .count = 1, .stretches = {{0, bytes}}};
    status = epw_end_register_all(peers->fabric, &region, where, peers->image_keys);
    if (status != EPW_OK) {
        free_image(peers, at, bytes);
        return status;
    }
    peers->image = at;
    return EPW_OK;
}

/* ---- life of a remote ---- */

static void destroy(epw_remote *remote) {
    if (remote == NULL) return;
    for (uint32_t i = 0; i < WAYS; i++) {
        way *w = &remote->ways[i];
        bool gone = epw_end_destroy(&w->end);
        if (w->ring != NULL && gone) epw_remote_gpu_give_ring(remote->peers, w->ring);
        if (w->entries != NULL && gone) epw_remote_gpu_give_entries(remote->peers, w->entries);
        free(w->marks);
    }
    epw_nic_end_link(epw_fabric_nic(remote->peers->fabric), remote->link);
    epw_end_deregister_all(remote->peers->fabric, remote->keys);
    free(remote);
}

/* With its entries on the GPU where that is asked for; if it can be, where that is enough. */
static epw_status create_end(const epw_remote *remote, way *w, epw_end_options *options, epw_where where) {
    epw_peers *peers = remote->peers;
    uint32_t rings = epw_fabric_rings(peers->fabric);
    epw_status status = EPW_OK;
    options->ring = NULL;
    if (!wants_far(peers)) return epw_end_create(peers->fabric, options, where, &w->end);
    uint64_t bytes = (uint64_t)options->depth * EPW_ENTRY_BYTES;
    if (w->entries == NULL) status = epw_remote_gpu_take_entries(peers, bytes, where, &w->entries);
    if (status != EPW_OK) return status;
    options->ring = epw_remote_gpu_entries(w->entries);
    status = epw_end_create(peers->fabric, options, where, &w->end);
    if (status != EPW_ERR_NO_PATH || rings == EPW_RINGS_GPU) return status;
    options->ring = NULL;
    return epw_end_create(peers->fabric, options, where, &w->end);
}

/* Kernels post to memory that they reach, and ring by a register that their GPU has mapped, or, where
 * that cannot be or is not wanted, by a word that a thread of the host looks at. */
static epw_status open_end(epw_remote *remote, way *w, epw_end_options *options, epw_where where) {
    epw_peers *peers = remote->peers;
    uint64_t bytes = epw_end_memory_bytes(peers->fabric, options->depth);
    epw_status status = epw_remote_gpu_take_ring(peers, bytes, where, &w->ring);
    if (status != EPW_OK) return status;
    options->memory = w->ring;
    epw_mlx5 *adapter = epw_fabric_adapter(peers->fabric, epw_end_place(peers->fabric, options->lane));
    uint32_t doorbells = epw_fabric_doorbells(peers->fabric);
    bool mapped = doorbells != EPW_DOORBELLS_HOST;
    options->poster = mapped ? EPW_POSTER_KERNELS : EPW_POSTER_KERNELS_UNHEARD;
    status = create_end(remote, w, options, where);
    if (status != EPW_OK || adapter == NULL || !mapped) return status;
    bool in_memory = epw_mlx5_registers_in_memory(adapter);
    status =
        epw_remote_gpu_map_register(peers, epw_end_memory(&w->end)->doorbell, in_memory, where, &w->doorbell);
    if (status == EPW_OK || doorbells == EPW_DOORBELLS_GPU) return status;
    if (!epw_end_destroy(&w->end)) return status;
    options->poster = EPW_POSTER_KERNELS_UNHEARD;
    return create_end(remote, w, options, where);
}

static epw_status open_way(epw_remote *remote, uint32_t number, uint32_t depth, epw_where where) {
    epw_peers *peers = remote->peers;
    way *w = &remote->ways[number];
    uint32_t place = epw_end_place(peers->fabric, number);
    epw_end_options options = {
        .peer = remote->peer, .key = remote->keys[place].its, .lane = number, .depth = depth};
    bool by_kernels = peers->gpu != NULL && number != HOST_WAY;
    if (peers->gpu != NULL) {
        options.broken = broken;
        options.context = remote;
    }
    epw_status status = by_kernels ? open_end(remote, w, &options, where)
                                   : epw_end_create(peers->fabric, &options, where, &w->end);
    if (status != EPW_OK) return status;
    if (!by_kernels) w->marks = calloc(depth, sizeof w->marks[0]);
    if (!by_kernels && w->marks == NULL)
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a queue of %u", depth);
    const epw_pair_memory *memory = epw_end_memory(&w->end);
    w->queue = (epw_queue){.entries = (epw_entry_block *)memory->entries,
                           .marks = w->marks,
                           .record = memory->record,
                           .doorbell = w->doorbell != NULL ? w->doorbell : memory->doorbell,
                           .completions.entry = (const uint32_t *)memory->completion,
                           .depth = depth,
                           .pair = epw_end_number(&w->end),
                           .batch = epw_fabric_doorbell_batch(peers->fabric)};
    return EPW_OK;
}

static epw_status create(epw_peers *peers, uint32_t peer, epw_where where, epw_remote **out) {
    uint32_t depth = peers->depth;
    epw_remote *remote = aligned_alloc(ALIGNMENT, epw_align(sizeof *remote, ALIGNMENT));
    if (remote == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a peer behind a queue");
    *remote = (epw_remote){.peers = peers, .peer = peer};
    epw_region region = region_of(remote);
    epw_status status = EPW_OK;
    /* An adapter registers memory that is there. */
    if (peers->inbox != NULL && epw_fabric_pins(peers->fabric)) status = epw_inbox_pin(peers, peer, where);
    if (status == EPW_OK) status = epw_end_register_all(peers->fabric, &region, where, remote->keys);
    for (uint32_t i = 0; status == EPW_OK && i < WAYS; i++)
        if (has_way(peers, i)) status = open_way(remote, i, depth, where);
    if (status != EPW_OK) {
        destroy(remote);
        return status;
    }
    *out = remote;
    return EPW_OK;
}

/* ---- offer, connect, disconnect ---- */

/* Nobody new may write by it: a membership with the peer has begun that it does not belong to any more, or
 * was given up in, or a connection with who took it is gone. */
static bool is_spent(const epw_peers *peers, uint32_t peer, const epw_remote *remote) {
    epw_mask suspects = peers->user->suspects(peers->user_context, NULL);
    bool well = epw_mask_has(&peers->active, peer) && !epw_mask_has(&suspects, peer);
    bool gone = false;
    for (uint32_t i = 0; i < WAYS; i++) {
        const epw_end *end = &remote->ways[i].end;
        if (has_way(peers, i)) gone |= epw_end_is_closed(end) || epw_end_broken(end);
    }
    return gone || (remote->served && !well);
}

/* Whether it has posted something. */
static bool has_posted(epw_remote *remote) {
    bool posted = false;
    for (uint32_t i = 0; i < WAYS; i++)
        if (has_way(remote->peers, i)) posted |= epw_end_has_rung(&remote->ways[i].end);
    return posted;
}

/* Another incarnation is about to be let in: what the former one still sends is placed no more. */
static void fence(epw_remote *remote) {
    for (uint32_t i = 0; i < WAYS; i++)
        if (has_way(remote->peers, i)) epw_end_close(&remote->ways[i].end);
}

/* Locked. What there is to be connected. */
static epw_status ensure(epw_peers *peers, uint32_t peer, epw_where where) {
    if (peers->offered[peer] != NULL) return EPW_OK;
    return create(peers, peer, where, &peers->offered[peer]);
}

void epw_remotes_serve(epw_peers *peers, const epw_mask *active) {
    EPW_MASK_FOR(peer, active, peers->ranks) {
        if (peers->remotes[peer] != NULL) peers->remotes[peer]->served = true;
    }
}

epw_status epw_remote_offer(epw_peers *peers, uint32_t peer, epw_blob_queue *out, epw_where where) {
    out->length = 0;
    if (!epw_peers_has_queues(peers)) return EPW_OK;
    epw_nic_look(epw_fabric_nic(peers->fabric)); /* a former connection may have ended */
    if (peers->offered[peer] != NULL && is_spent(peers, peer, peers->offered[peer])) {
        destroy(peers->offered[peer]);
        peers->offered[peer] = NULL;
    }
    /* Who asks again is shown the same, also what this rank has connected meanwhile. */
    epw_remote *of = peers->offered[peer] != NULL ? peers->offered[peer] : peers->remotes[peer];
    if (of == NULL || is_spent(peers, peer, of)) {
        if (of != NULL) fence(of);
        epw_status status = ensure(peers, peer, where);
        if (status != EPW_OK) return status;
        of = peers->offered[peer];
    }
    epw_fabric_address address = epw_fabric_address_of(peers->fabric);
    epw_fabric_address_write(&address, out->bytes);
    epw_fabric_nic_write(peers->fabric, out->bytes + NIC_OFFSET);
    epw_put_little(out->bytes + key_offset(EPW_WIRE_VERBS, 0), of->keys[0].carried, 4);
    for (uint32_t i = 0; i < WAYS; i++) {
        const epw_end *end = &of->ways[i].end;
        uint32_t number = has_way(peers, i) ? epw_end_number(end) : 0;
        uint32_t carried = has_way(peers, i) ? epw_end_carried_number(end) : 0;
        epw_put_little(out->bytes + key_offset(0, i), of->keys[epw_end_place(peers->fabric, i)].its, 4);
        epw_put_little(out->bytes + number_offset(0, i), number, 4);
        epw_put_little(out->bytes + number_offset(EPW_WIRE_VERBS, i), carried, 4);
    }
    out->length = OFFER_BYTES;
    return EPW_OK;
}

static bool is_same_offer(const epw_blob_queue *a, const epw_blob_queue *b) {
    return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

bool epw_remote_is_connected_to(const epw_peers *peers, uint32_t peer, const epw_blob *blob) {
    const epw_remote *remote = peers->remotes != NULL ? peers->remotes[peer] : NULL;
    return remote != NULL && epw_nonce_equal(&remote->whose, &blob->window) &&
           is_same_offer(&remote->offer, &blob->queue) && !is_spent(peers, peer, remote);
}

epw_status epw_remote_connect(epw_peers *peers, uint32_t peer, const epw_nonce *whose,
                              const epw_blob_queue *offer, uint64_t deadline_ns, epw_where where,
                              epw_route *route) {
    if (offer->length != OFFER_BYTES)
        return epw_fail(EPW_ERR_MISMATCH, where, "the peer says %u bytes of its queues, here %d are said",
                        (unsigned)offer->length, OFFER_BYTES);
    epw_fabric_address address;
    epw_fabric_address_read(offer->bytes, &address);
    uint64_t link = 0;
    pthread_mutex_lock(&peers->lock);
    epw_status status = ensure(peers, peer, where);
    if (status == EPW_OK) status = open_image(peers, where);
    if (status == EPW_OK && peers->inbox != NULL) status = epw_inbox_pin(peers, peer, where);
    pthread_mutex_unlock(&peers->lock);
    if (status == EPW_OK) status = epw_fabric_link(peers->fabric, peer, &address, deadline_ns, where, &link);
    if (status != EPW_OK) return status;
    pthread_mutex_lock(&peers->lock);
    epw_remote *remote = peers->offered[peer];
    peers->offered[peer] = NULL;
    peers->remotes[peer] = remote;
    atomic_fetch_add_explicit(&peers->remote_count, 1, memory_order_relaxed);
    pthread_mutex_unlock(&peers->lock);
    bool by_adapter =
        epw_fabric_adapter(peers->fabric, 0) != NULL; /* not by what leads to the peer's fabric */
    route->wire = by_adapter ? 0 : epw_fabric_wire(peers->fabric, &address);
    uint64_t former = remote->link; /* of one that was kept */
    remote->link = link;
    remote->whose = *whose;
    remote->offer = *offer;
    for (uint32_t i = 0; i < WAYS; i++) {
        uint32_t place = epw_end_place(peers->fabric, i);
        size_t key = key_offset(route->wire, i);
        remote->ways[i].its = epw_key_of((uint32_t)epw_take_little(offer->bytes + key, 4));
        remote->ways[i].own = epw_key_of(peers->image_keys[place].own);
    }
    for (uint32_t lane = 0; lane < peers->lanes; lane++) {
        way *w = &remote->ways[lane];
        uint64_t areas[EPW_AREAS];
        for (uint32_t area = 0; area < EPW_AREAS; area++) {
            w->image[area] = image_offset(peers, peer, lane, area, &w->stretches[area]);
            areas[area] = (uint64_t)(uintptr_t)peers->image + w->image[area] - w->stretches[area].offset;
        }
        route->lanes[lane] = (epw_areas){areas[0], areas[1], areas[2]};
    }
    if (peers->gpu != NULL) epw_remote_gpu_broken(peers, peer, false);
    for (uint32_t i = 0; status == EPW_OK && i < WAYS; i++) {
        size_t number = number_offset(route->wire, i);
        epw_end_peer end = {.wire = route->wire,
                            .link = link,
                            .number = (uint32_t)epw_take_little(offer->bytes + number, 4),
                            .lane = i,
                            .nic = offer->bytes + NIC_OFFSET,
                            .deadline_ns = deadline_ns};
        if (has_way(peers, i)) status = epw_end_connect(peers->fabric, &remote->ways[i].end, &end, where);
    }
    epw_nic_end_link(epw_fabric_nic(peers->fabric), former);
    if (status != EPW_OK) epw_remote_disconnect(peers, peer);
    return status;
}

/* Until the last word is with the peer, or cannot be. */
static void flush(epw_remote *remote, uint64_t until) {
    for (uint32_t i = 0; i < WAYS; i++) {
        if (!has_way(remote->peers, i)) continue;
        while (!epw_end_idle(&remote->ways[i].end) && epw_now_ns() < until) {
            epw_remotes_poll(remote->peers);
            nanosleep(&(struct timespec){0, 50000}, NULL);
        }
    }
}

void epw_remote_disconnect(epw_peers *peers, uint32_t peer) {
    pthread_mutex_lock(&peers->lock);
    epw_remote *remote = peers->remotes[peer];
    peers->remotes[peer] = NULL;
    pthread_mutex_unlock(&peers->lock);
    if (remote == NULL) return;
    atomic_fetch_sub_explicit(&peers->remote_count, 1, memory_order_relaxed);
    flush(remote, epw_now_ns() + FLUSH_NS);
    destroy(remote);
}

/* What it has been shown may lead the peer here by now, or soon: of two that connect each other at a time
 * each would take from the other what that has just connected. */
void epw_remote_let_go(epw_peers *peers, uint32_t peer, const epw_nonce *whose) {
    pthread_mutex_lock(&peers->lock);
    epw_remote *remote = peers->remotes[peer];
    bool keep = remote != NULL && peers->offered[peer] == NULL && epw_nonce_equal(&remote->whose, whose) &&
                !has_posted(remote) && !is_spent(peers, peer, remote);
    if (keep) {
        peers->offered[peer] = remote;
        peers->remotes[peer] = NULL;
    }
    pthread_mutex_unlock(&peers->lock);
    if (!keep) epw_remote_disconnect(peers, peer);
}

void epw_remotes_close(epw_peers *peers) {
    uint64_t until = epw_now_ns() + FLUSH_NS;
    bool inherited = peers->fabric != NULL && epw_fabric_inherited(peers->fabric);
    for (uint32_t peer = 0; peers->remotes != NULL && peer < peers->ranks && !inherited; peer++) {
        if (peers->remotes[peer] != NULL) flush(peers->remotes[peer], until);
        destroy(peers->remotes[peer]);
        destroy(peers->offered[peer]);
    }
    if (peers->image != NULL && !inherited) {
        epw_end_deregister_all(peers->fabric, peers->image_keys);
        free_image(peers, peers->image, image_bytes(peers));
    }
    peers->image = NULL;
    free(peers->remotes);
    free(peers->offered);
    peers->remotes = peers->offered = NULL;
}

/* ---- posting ---- */

/* The entries of a range: one, where its bytes fill the stride. */
static uint32_t entries_of(const epw_range *range) {
    if (range->bytes == 0 || range->count == 0) return 0;
    bool whole = range->count == 1 || range->bytes == range->stride;
    return whole && range->lent == NULL ? 1 : range->count;
}

/* In which area `offset` of the peer's window is; EPW_AREAS: in none that this rank writes. */
static uint32_t area_of(const way *w, uint64_t offset) {
    uint32_t area = 0;
    while (area < EPW_AREAS && (offset < w->stretches[area].offset ||
                                offset - w->stretches[area].offset >= w->stretches[area].bytes))
        area++;
    return area;
}

/* Where the bytes for `offset` of the peer's window lie in the image. */
static uint64_t image_of(const way *w, uint64_t offset) {
    uint32_t area = area_of(w, offset);
    if (area == EPW_AREAS) return UINT64_MAX; /* no key opens that: the NIC refuses it */
    return w->image[area] + (offset - w->stretches[area].offset);
}

/* The entries of a signal, of which those below `published` may be rung for. */
typedef struct posting {
    way *w;
    uint64_t next, published;
} posting;

static void publish(posting *p, bool flush) {
    epw_queue_publish(&p->w->queue, p->published, (uint32_t)(p->next - p->published));
    p->published = p->next;
    if (epw_queue_ring(&p->w->queue, flush)) epw_end_ring(&p->w->end);
}

/* Where the next entry is built, and its index. Of what is built the NIC hears a batch at a time. */
static epw_entry_block *next_entry(posting *p, uint64_t *index) {
    if (p->next - p->published >= p->w->queue.batch) publish(p, false);
    *index = p->next++;
    return epw_queue_slot(&p->w->queue, *index);
}

static void post_lent_rows(posting *p, const epw_range *range) {
    const epw_lent_rows *lent = range->lent;
    way *w = p->w;
    uint64_t from = image_of(w, range->offset), index;
    epw_key rows = epw_key_of(lent->key);
    for (uint32_t i = 0; i < range->count; i++) {
        epw_entry_block *entry = next_entry(p, &index);
        epw_entry_write_both(entry, w->queue.pair, index,
                             (epw_place_of){range->offset + i * range->stride, w->its},
                             (epw_place_of){from + i * range->stride, w->own}, lent->head_bytes,
                             (epw_place_of){lent->numbers[i] * lent->stride, rows},
                             (uint32_t)range->bytes - lent->head_bytes, EPW_SIGNAL_ERRORS);
    }
}

static void post_range(posting *p, const epw_range *range) {
    uint32_t entries = entries_of(range);
    way *w = p->w;
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

/* An 8-byte write, over every wire: a word has one writer and absolute values, so that its order behind the
 * rows is all that matters. `local`, `tcp` and an adapter's reliable connections keep that within a queue
 * pair; where a NIC's carrier does not, the NIC holds the word back until the rows have completed
 * (nic/soft/carry.c). So no wire needs words by fetch-add, which would need a shadow of each word and a look
 * at what came back. */
static void post_word(posting *p, uint64_t offset, uint64_t value) {
    uint64_t index;
    epw_entry_block *entry = next_entry(p, &index);
    epw_entry_write_word(entry, p->w->queue.pair, index, (epw_place_of){offset, p->w->its}, value,
                         EPW_SIGNAL_ALWAYS);
}

void epw_remote_signal(const epw_peers *peers, uint32_t lane, uint32_t peer, uint64_t offset, uint64_t value,
                       const epw_range *ranges, uint32_t count) {
    way *w = way_to(peers, lane, peer);
    uint32_t entries = 1;
    uint64_t index;
    for (uint32_t i = 0; i < count; i++) entries += entries_of(&ranges[i]);
    if (!epw_queue_try_reserve(&w->queue, entries, &index)) {
        epw_end_break(&w->end);
        return;
    }
    posting p = {w, index, index};
    for (uint32_t i = 0; i < count; i++) post_range(&p, &ranges[i]);
    post_word(&p, offset, value);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t area = area_of(w, ranges[i].offset);
        if (entries_of(&ranges[i]) > 0 && area < EPW_AREAS) epw_store_release_64(&w->flushed[area], p.next);
    }
    publish(&p, true);
}

bool epw_remote_is_flushed(const epw_peers *peers, uint32_t lane, uint32_t peer, uint32_t areas) {
    way *w = way_to(peers, lane, peer);
    uint64_t last = 0;
    for (uint32_t area = 0; area < EPW_AREAS; area++) {
        uint64_t flushed = epw_load_acquire_64(&w->flushed[area]);
        if ((areas >> area & 1) && flushed > last) last = flushed;
    }
    return epw_queue_is_done(&w->queue, last);
}

uint32_t epw_remotes_lend(const epw_peers *peers, uint32_t lane, const void *rows, uint64_t bytes) {
    epw_region region = {.base = (unsigned char *)(uintptr_t)rows,
                         .rights = EPW_REGION_READ,
                         .count = 1,
                         .stretches = {{0, bytes}}};
    epw_keys keys;
    epw_where where = {"lend", (int)peers->rank, -1};
    uint32_t place = epw_end_place(peers->fabric, lane);
    return epw_end_register(peers->fabric, place, &region, where, &keys) == EPW_OK ? keys.own : 0;
}

/* Whether nothing that was posted on the lane is still to be read. */
static bool await_flushed(const epw_peers *peers, uint32_t lane, uint32_t peer, uint64_t until) {
    uint64_t began = epw_now_ns(), now = began;
    while (!epw_remote_is_flushed(peers, lane, peer, UINT32_MAX) &&
           !epw_remote_is_broken(peers, lane, peer)) {
        if (now >= until) return false;
        if (now - began < peers->yield_ns) {
            epw_remotes_drive(peers, now);
            sched_yield();
        } else {
            epw_remotes_rest(peers);
            nanosleep(&(struct timespec){0, 50000}, NULL);
        }
        now = epw_now_ns();
    }
    return true;
}

void epw_remotes_take_back(const epw_peers *peers, uint32_t lane, uint32_t key, uint64_t until_ns) {
    epw_nic *nic = epw_fabric_nic(peers->fabric);
    uint64_t soon = epw_now_ns() + FLUSH_NS;
    for (uint32_t peer = 0; peer < peers->ranks; peer++) {
        if (peers->remotes[peer] == NULL) continue;
        bool given_up = epw_peers_suspected(peers, peer) && soon < until_ns;
        if (!await_flushed(peers, lane, peer, given_up ? soon : until_ns))
            epw_nic_end_link(nic, peers->remotes[peer]->link);
    }
    epw_end_deregister(peers->fabric, epw_end_place(peers->fabric, lane), key);
}

bool epw_remote_is_broken(const epw_peers *peers, uint32_t lane, uint32_t peer) {
    return epw_end_broken(&way_to(peers, lane, peer)->end);
}

/* What has broken the way, as far as its own end tells. False: it has not broken, or only its connection has.
 */
static bool tell_reason(way *w, char *text) {
    char event[EPW_MLX5_TEXT];
    epw_queue_fault fault;
    if (!epw_end_broken(&w->end)) return false;
    if (*epw_end_trouble(&w->end, event) != '\0') {
        snprintf(text, EPW_TROUBLE_TEXT, "%s", event);
        return true;
    }
    if (!epw_end_failed(&w->end, &w->queue, &fault)) return false;
    snprintf(text, EPW_TROUBLE_TEXT, "an entry for it failed: %s (syndrome 0x%02x, vendor 0x%02x)%s",
             epw_syndrome_text(fault.syndrome), fault.syndrome, fault.vendor,
             epw_syndrome_remedy(fault.syndrome));
    return true;
}

/* Of the ways to a peer that break together one may know why. */
const char *epw_remote_trouble(epw_peers *peers, uint32_t peer, char *text) {
    bool told = false, broken = false;
    *text = '\0';
    pthread_mutex_lock(&peers->lock);
    epw_remote *remote = peers->remotes != NULL ? peers->remotes[peer] : NULL;
    for (uint32_t i = 0; remote != NULL && !told && i < WAYS; i++) {
        if (!has_way(peers, i)) continue;
        broken |= epw_end_broken(&remote->ways[i].end);
        told = tell_reason(&remote->ways[i], text);
    }
    pthread_mutex_unlock(&peers->lock);
    if (broken && !told)
        snprintf(
            text, EPW_TROUBLE_TEXT,
            "the connection to its NIC is gone, or it took nothing for so long that its queue was full: see "
            "that its process lives, and the network between the hosts");
    return text;
}

void epw_remotes_poll(const epw_peers *peers) {
    if (peers->fabric != NULL) epw_nic_poll(epw_fabric_nic(peers->fabric));
}

bool epw_remotes_any(const epw_peers *peers) {
    return atomic_load_explicit(&peers->remote_count, memory_order_relaxed) > 0;
}

void epw_remotes_drive(const epw_peers *peers, uint64_t now_ns) {
    if (epw_remotes_any(peers)) epw_nic_drive(epw_fabric_nic(peers->fabric), now_ns);
}

void epw_remotes_rest(const epw_peers *peers) {
    if (epw_remotes_any(peers)) epw_nic_rest(epw_fabric_nic(peers->fabric));
}

/* ---- of a GPU ---- */

void epw_remote_say_farewell(epw_peers *peers, uint32_t peer, uint64_t value) {
    flush(peers->remotes[peer], epw_now_ns() + FLUSH_NS); /* behind what kernels have posted */
    for (uint32_t lane = 0; lane < peers->lanes; lane++) {
        uint64_t offset = epw_word_offset(peers->rank, lane, EPW_WORD_DROPPED);
        epw_remote_signal(peers, lane, peer, offset, value, NULL, 0);
    }
}

#ifdef EPW_CUDA
void epw_remote_ways(const epw_peers *peers, uint32_t peer, epw_gpu_way *out) {
    const epw_remote *remote = peers->remotes[peer];
    for (uint32_t lane = 0; lane < peers->lanes; lane++) {
        out[lane] = (epw_gpu_way){.queue = remote->ways[lane].queue,
                                  .its = remote->ways[lane].its,
                                  .own = remote->ways[lane].own,
                                  .image = (uint64_t)(uintptr_t)peers->image};
    }
}
#endif
