/* See remote.h: offering, connecting, disconnecting, and why a peer is not reached any more. */
#include "peer/remote.h"

#include "base/clock.h"
#include "base/little_endian.h"
#include "nic/syndrome.h"
#include "peer/direct.h"
#include "peer/image.h"
#include "peer/inbox.h"
#include "peer/remote_part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALIGNMENT = 64 };

/* What a blob says about queues: the addresses of the rank's fabric and of its NIC; the key of each way and
 * the number of its queue pair; and the same for the verbs wire. */
enum {
    NIC_OFFSET = EPW_FABRIC_ADDRESS_BYTES,
    WAYS_OFFSET = NIC_OFFSET + EPW_FABRIC_NIC_BYTES,
    WAY_BYTES = 4 + 4,
    CARRIED_OFFSET = WAYS_OFFSET + WAY_BYTES * EPW_WAYS,
    OFFER_BYTES = CARRIED_OFFSET + WAY_BYTES * EPW_WAYS
};
_Static_assert(OFFER_BYTES <= EPW_BLOB_QUEUE_MAX, "a blob has room for what is said of queues");

static size_t key_offset(uint32_t wire, uint32_t way) {
    return (wire == EPW_WIRE_VERBS ? CARRIED_OFFSET : WAYS_OFFSET) + (size_t)WAY_BYTES * way;
}

static size_t number_offset(uint32_t wire, uint32_t way) {
    return key_offset(wire, way) + 4;
}

/* ---- ways ---- */

/* The queue pair of a way has broken. Writer: the NIC, once nothing more that came by it is placed. */
static void broken(void *context) {
    const epw_remote *remote = context;
    if (remote->link != 0 && remote->peers->remotes[remote->peer] == remote)
        epw_remote_gpu_broken(remote->peers, remote->peer, true);
}

/* ---- what may be written ---- */

/* A word has arrived from the peer. Writer: the NIC, after everything that was posted before it. Reader: the
 * same as for a word that a mapped peer has stored. */
static void arrived(void *context, uint64_t offset, uint64_t value) {
    const epw_remote *remote = context;
    (void)value;
    epw_word_arrived(remote->peers, remote->peer, offset);
}

/* The peer's words for the host. */
static epw_region words_of(epw_remote *remote) {
    return (epw_region){.base = remote->peers->lines,
                        .rights = EPW_REGION_WRITE,
                        .count = 1,
                        .stretches = {{epw_line_offset(remote->peer), sizeof(epw_line)}},
                        .arrived = arrived,
                        .context = remote};
}

/* The peer's parts of this rank's window or inbox, its words among them. */
static epw_region region_of(epw_remote *remote) {
    epw_peers *peers = remote->peers;
    epw_region region = words_of(remote);
    region.base = epw_peers_inbox(peers);
    for (uint32_t lane = 0; lane < peers->lanes; lane++)
        for (uint32_t area = 0; area < EPW_AREAS; area++)
            region.stretches[region.count++] =
                peers->user->footprint(peers->user_context, remote->peer, lane, area);
    return region;
}

static epw_status register_all(epw_remote *remote, epw_where where) {
    epw_peers *peers = remote->peers;
    epw_region region = region_of(remote), words = words_of(remote);
    epw_status status = EPW_OK;
    /* An adapter can register only resident memory. */
    if (peers->inbox != NULL && epw_fabric_pins(peers->fabric))
        status = epw_inbox_pin(peers, remote->peer, where);
    if (status != EPW_OK) return status;
    if (peers->direct == NULL) return epw_end_register_all(peers->fabric, &region, where, remote->keys);
    status = epw_end_register_far(peers->fabric, &peers->direct->window, &region, where, remote->keys);
    uint32_t place = epw_fabric_place(peers->fabric, EPW_HOST_WAY);
    return status == EPW_OK ? epw_end_register(peers->fabric, place, &words, where, &remote->words) : status;
}

static epw_keys keys_of(const epw_remote *remote, uint32_t way) {
    if (way == EPW_HOST_WAY && remote->words.own != 0) return remote->words;
    return remote->keys[epw_fabric_place(remote->peers->fabric, way)];
}

/* ---- life of a remote ---- */

static void destroy(epw_remote *remote) {
    if (remote == NULL) return;
    for (uint32_t i = 0; i < EPW_WAYS; i++) {
        epw_way *w = &remote->ways[i];
        bool gone = epw_end_destroy(&w->end);
        if (w->ring != NULL && gone) epw_remote_gpu_give_ring(remote->peers, w->ring);
        if (w->entries != NULL && gone) epw_remote_gpu_give_entries(remote->peers, w->entries);
        free(w->marks);
    }
    epw_nic_end_link(epw_fabric_nic(remote->peers->fabric), remote->link);
    epw_fabric *fabric = remote->peers->fabric;
    epw_end_deregister(fabric, epw_fabric_place(fabric, EPW_HOST_WAY), remote->words.own);
    epw_end_deregister_all(fabric, remote->keys);
    free(remote);
}

/* With its entries on the GPU if that is asked for; with EPW_RINGS_AUTO only if that is possible. */
static epw_status create_end(const epw_remote *remote, epw_way *w, epw_end_options *options,
                             epw_where where) {
    epw_peers *peers = remote->peers;
    uint32_t rings = epw_fabric_rings(peers->fabric);
    epw_status status = EPW_OK;
    options->ring = NULL;
    if (!epw_image_wants_far(peers)) return epw_end_create(peers->fabric, options, where, &w->end);
    uint64_t bytes = (uint64_t)options->depth * EPW_ENTRY_BYTES;
    if (w->entries == NULL) status = epw_remote_gpu_take_entries(peers, bytes, where, &w->entries);
    if (status != EPW_OK) return status;
    options->ring = epw_remote_gpu_entries(w->entries);
    status = epw_end_create(peers->fabric, options, where, &w->end);
    if (status != EPW_ERR_NO_PATH || rings == EPW_RINGS_GPU || !epw_end_destroy(&w->end)) return status;
    epw_fabric_fall_back(peers->fabric, EPW_FALLBACK_RINGS);
    options->ring = NULL;
    return epw_end_create(peers->fabric, options, where, &w->end);
}

/* Kernels post to memory that they can access. They ring by a register that their GPU has mapped or, if that
 * is impossible or not wanted, by a word that a thread of the host polls. */
static epw_status open_end(epw_remote *remote, epw_way *w, epw_end_options *options, epw_where where) {
    epw_peers *peers = remote->peers;
    uint64_t bytes = epw_end_memory_bytes(peers->fabric, options->depth);
    epw_status status = epw_remote_gpu_take_ring(peers, bytes, where, &w->ring);
    if (status != EPW_OK) return status;
    options->memory = w->ring;
    epw_mlx5 *adapter = epw_fabric_adapter(peers->fabric, epw_fabric_place(peers->fabric, options->lane));
    uint32_t doorbells = epw_fabric_doorbells(peers->fabric);
    bool mapped = doorbells != EPW_DOORBELLS_HOST;
    options->poster = mapped ? EPW_POSTER_KERNELS : EPW_POSTER_KERNELS_UNHEARD;
    status = create_end(remote, w, options, where);
    if (status != EPW_OK || adapter == NULL || !mapped) return status;
    bool in_memory = epw_mlx5_registers_in_memory(adapter);
    status =
        epw_remote_gpu_map_register(peers, epw_end_memory(&w->end)->doorbell, in_memory, where, &w->doorbell);
    if (status == EPW_OK || doorbells == EPW_DOORBELLS_GPU) return status;
    epw_fabric_fall_back(peers->fabric, EPW_FALLBACK_DOORBELLS);
    if (!epw_end_destroy(&w->end)) return status;
    options->poster = EPW_POSTER_KERNELS_UNHEARD;
    return create_end(remote, w, options, where);
}

static epw_status open_way(epw_remote *remote, uint32_t number, uint32_t depth, epw_where where) {
    epw_peers *peers = remote->peers;
    epw_way *w = &remote->ways[number];
    epw_end_options options = {
        .peer = remote->peer, .key = keys_of(remote, number).its, .lane = number, .depth = depth};
    bool by_kernels = peers->gpu != NULL && number != EPW_HOST_WAY;
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
    epw_status status = register_all(remote, where);
    for (uint32_t i = 0; status == EPW_OK && i < EPW_WAYS; i++)
        if (epw_has_way(peers, i)) status = open_way(remote, i, depth, where);
    if (status != EPW_OK) {
        destroy(remote);
        return status;
    }
    *out = remote;
    return EPW_OK;
}

/* ---- offer, connect, disconnect ---- */

/* Whether no new incarnation may write by this offer: a membership with the peer began, to which it no longer
 * belongs or in which it was given up, or the connection to the incarnation that used the offer is gone. */
static bool is_spent(const epw_peers *peers, uint32_t peer, const epw_remote *remote) {
    epw_mask suspects = peers->user->suspects(peers->user_context, NULL);
    bool well = epw_mask_has(&peers->active, peer) && !epw_mask_has(&suspects, peer);
    bool gone = false;
    for (uint32_t i = 0; i < EPW_WAYS; i++) {
        const epw_end *end = &remote->ways[i].end;
        if (epw_has_way(peers, i)) gone |= epw_end_is_closed(end) || epw_end_broken(end);
    }
    return gone || (remote->served && !well);
}

/* Whether it has posted something. */
static bool has_posted(epw_remote *remote) {
    bool posted = false;
    for (uint32_t i = 0; i < EPW_WAYS; i++)
        if (epw_has_way(remote->peers, i)) posted |= epw_end_has_rung(&remote->ways[i].end);
    return posted;
}

/* Another incarnation is about to be admitted: nothing that the former one still sends is placed any more.
 * False: an adapter does not destroy a queue pair. */
static bool fence(epw_remote *remote) {
    bool shut = true;
    for (uint32_t i = 0; i < EPW_WAYS; i++)
        if (epw_has_way(remote->peers, i)) shut &= epw_end_close(&remote->ways[i].end);
    return shut;
}

static void drop_spent_offer(epw_peers *peers, uint32_t peer) {
    if (peers->offered[peer] == NULL || !is_spent(peers, peer, peers->offered[peer])) return;
    destroy(peers->offered[peer]);
    peers->offered[peer] = NULL;
}

/* Called with the floor locked. What is to be connected. */
static epw_status ensure(epw_peers *peers, uint32_t peer, epw_where where) {
    drop_spent_offer(peers, peer);
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
    /* A former connection may have ended. If its end arrives later, queues may be offered that serve it: then
     * connecting to them fails and breaks them (await_heard), and the next offer is of others. */
    epw_nic_look(epw_fabric_nic(peers->fabric));
    drop_spent_offer(peers, peer);
    /* A peer that asks again is shown the same offer, also if this rank has connected it meanwhile. */
    epw_remote *of = peers->offered[peer] != NULL ? peers->offered[peer] : peers->remotes[peer];
    if (of == NULL || is_spent(peers, peer, of)) {
        if (of != NULL && !fence(of))
            return epw_fail(EPW_ERR_FENCED, where,
                            "the adapter does not end a queue pair by which the peer's former process may "
                            "still write: see dmesg, and create the buffer again");
        epw_status status = ensure(peers, peer, where);
        if (status != EPW_OK) return status;
        of = peers->offered[peer];
    }
    epw_fabric_address address = epw_fabric_address_of(peers->fabric);
    epw_fabric_address_write(&address, out->bytes);
    epw_fabric_nic_write(peers->fabric, out->bytes + NIC_OFFSET);
    for (uint32_t i = 0; i < EPW_WAYS; i++) {
        const epw_end *end = &of->ways[i].end;
        uint32_t number = epw_has_way(peers, i) ? epw_end_number(end) : 0;
        uint32_t carried = epw_has_way(peers, i) ? epw_end_carried_number(end) : 0;
        epw_put_little(out->bytes + key_offset(0, i), keys_of(of, i).its, 4);
        epw_put_little(out->bytes + number_offset(0, i), number, 4);
        epw_put_little(out->bytes + key_offset(EPW_WIRE_VERBS, i), keys_of(of, i).carried, 4);
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

/* Waits until the peer's ends take what this rank will send. They refuse it if they serve a former connection
 * of this rank, whose end the peer's NIC has not noticed yet. An end that was kept has been heard, but may
 * have broken since it was looked at. */
static epw_status await_heard(epw_remote *remote, uint64_t until, epw_where where) {
    for (uint32_t i = 0; i < EPW_WAYS; i++) {
        const epw_end *end = &remote->ways[i].end;
        while (epw_has_way(remote->peers, i)) {
            if (epw_end_broken(end))
                return epw_fail(
                    EPW_ERR_PEER, where,
                    "the queues that the peer has exported serve a former connection of this rank, or "
                    "are gone: let the peer export again");
            if (epw_end_is_heard(end)) break;
            if (epw_now_ns() >= until)
                return epw_fail(EPW_ERR_TIMEOUT, where,
                                "the peer's NIC has not answered within the deadline");
            epw_remotes_poll(remote->peers);
            nanosleep(&(struct timespec){0, 50000}, NULL);
        }
    }
    return EPW_OK;
}

epw_status epw_remote_connect(epw_peers *peers, uint32_t peer, const epw_nonce *whose,
                              const epw_blob_queue *offer, uint64_t deadline_ns, epw_where where,
                              epw_route *route) {
    if (offer->length != OFFER_BYTES)
        return epw_fail(EPW_ERR_MISMATCH, where,
                        "the peer's blob has %u bytes about its queues, this library expects %d: use the "
                        "same epwire version on all ranks",
                        (unsigned)offer->length, OFFER_BYTES);
    epw_fabric_address address;
    epw_fabric_address_read(offer->bytes, &address);
    uint64_t link = 0, now = epw_now_ns(),
             until = deadline_ns < UINT64_MAX - now ? now + deadline_ns : UINT64_MAX;
    pthread_mutex_lock(&peers->lock);
    epw_status status = ensure(peers, peer, where);
    if (status == EPW_OK) status = epw_image_open(peers, where);
    if (status == EPW_OK && peers->inbox != NULL) status = epw_inbox_pin(peers, peer, where);
    pthread_mutex_unlock(&peers->lock);
    if (status == EPW_OK) status = epw_fabric_link(peers->fabric, peer, &address, deadline_ns, where, &link);
    if (status != EPW_OK) return status;
    pthread_mutex_lock(&peers->lock);
    /* An export that failed meanwhile may have left nothing that is offered. */
    if (peers->offered[peer] == NULL) status = ensure(peers, peer, where);
    if (status != EPW_OK) {
        pthread_mutex_unlock(&peers->lock);
        epw_nic_end_link(epw_fabric_nic(peers->fabric), link);
        return status;
    }
    epw_remote *remote = peers->offered[peer];
    peers->offered[peer] = NULL;
    peers->remotes[peer] = remote;
    atomic_fetch_add_explicit(&peers->remote_count, 1, memory_order_relaxed);
    pthread_mutex_unlock(&peers->lock);
    bool by_adapter = epw_fabric_adapter(peers->fabric, 0) != NULL; /* this does not depend on the way to the
                                                                       peer's fabric */
    route->wire = by_adapter ? 0 : epw_fabric_wire(peers->fabric, &address);
    uint64_t former = remote->link; /* of one that was kept */
    remote->link = link;
    remote->whose = *whose;
    remote->offer = *offer;
    for (uint32_t i = 0; i < EPW_WAYS; i++) {
        uint32_t place = epw_fabric_place(peers->fabric, i);
        size_t key = key_offset(route->wire, i);
        remote->ways[i].its = epw_key_of((uint32_t)epw_take_little(offer->bytes + key, 4));
        remote->ways[i].own = epw_key_of(peers->image_keys[place].own);
    }
    for (uint32_t lane = 0; lane < peers->lanes; lane++) {
        epw_way *w = &remote->ways[lane];
        uint64_t areas[EPW_AREAS];
        for (uint32_t area = 0; area < EPW_AREAS; area++) {
            w->image[area] = epw_image_offset(peers, peer, lane, area, &w->stretches[area]);
            areas[area] = (uint64_t)(uintptr_t)peers->image + w->image[area] - w->stretches[area].offset;
        }
        route->lanes[lane] = (epw_areas){areas[0], areas[1], areas[2]};
    }
    if (peers->gpu != NULL) epw_remote_gpu_broken(peers, peer, false);
    for (uint32_t i = 0; status == EPW_OK && i < EPW_WAYS; i++) {
        epw_end_peer end = {.wire = route->wire,
                            .link = link,
                            .number = (uint32_t)epw_take_little(offer->bytes + number_offset(0, i), 4),
                            .carried =
                                (uint32_t)epw_take_little(offer->bytes + number_offset(EPW_WIRE_VERBS, i), 4),
                            .lane = i,
                            .nic = offer->bytes + NIC_OFFSET,
                            .deadline_ns = peers->deadline_ns};
        if (epw_has_way(peers, i)) status = epw_end_connect(peers->fabric, &remote->ways[i].end, &end, where);
    }
    epw_nic_end_link(epw_fabric_nic(peers->fabric), former);
    if (status == EPW_OK) status = await_heard(remote, until, where);
    if (status != EPW_OK) epw_remote_disconnect(peers, peer);
    return status;
}

/* Waits until the peer has received the last word, or cannot receive it any more. */
static void flush(epw_remote *remote, uint64_t until) {
    for (uint32_t i = 0; i < EPW_WAYS; i++) {
        if (!epw_has_way(remote->peers, i)) continue;
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
    flush(remote, epw_now_ns() + EPW_FLUSH_NS);
    destroy(remote);
}

/* The peer may be using what it was offered already, or soon: if two ranks connect to each other at the same
 * time, each would take away what the other has just connected. */
void epw_remote_let_go(epw_peers *peers, uint32_t peer, const epw_nonce *whose) {
    pthread_mutex_lock(&peers->lock);
    epw_remote *remote = peers->remotes[peer];
    bool keep = remote != NULL && peers->offered[peer] == NULL && epw_nonce_equal(&remote->whose, whose) &&
                !has_posted(remote) && !is_spent(peers, peer, remote);
    if (keep) {
        peers->offered[peer] = remote;
        peers->remotes[peer] = NULL;
        atomic_fetch_sub_explicit(&peers->remote_count, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&peers->lock);
    if (!keep) epw_remote_disconnect(peers, peer);
}

void epw_remotes_close(epw_peers *peers) {
    uint64_t until = epw_now_ns() + EPW_FLUSH_NS;
    bool inherited = peers->fabric != NULL && epw_fabric_inherited(peers->fabric);
    bool made = peers->remotes != NULL && peers->offered != NULL; /* both, or the peers are not */
    for (uint32_t peer = 0; made && !inherited && peer < peers->ranks; peer++) {
        if (peers->remotes[peer] != NULL) flush(peers->remotes[peer], until);
        destroy(peers->remotes[peer]);
        destroy(peers->offered[peer]);
    }
    if (!inherited) epw_image_close(peers);
    peers->image = NULL;
    free(peers->remotes);
    free(peers->offered);
    peers->remotes = peers->offered = NULL;
}

bool epw_remote_is_broken(const epw_peers *peers, uint32_t lane, uint32_t peer) {
    return epw_end_broken(&epw_way_to(peers, lane, peer)->end);
}

/* What has broken the way, as far as its own queue pair reports it. False: it is not broken, or only its
 * connection is. */
static bool tell_reason(epw_way *w, char *text) {
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
             epw_syndrome_remedy(fault.syndrome, epw_end_is_of_adapter(&w->end)));
    return true;
}

/* If the ways to a peer break together, one of them may know why. */
static void find_trouble(epw_peers *peers, uint32_t peer, char *text) {
    bool told = false, broken = false;
    epw_remote *remote = peers->remotes != NULL ? peers->remotes[peer] : NULL;
    for (uint32_t i = 0; remote != NULL && !told && i < EPW_WAYS; i++) {
        if (!epw_has_way(peers, i)) continue;
        broken |= epw_end_broken(&remote->ways[i].end);
        told = tell_reason(&remote->ways[i], text);
    }
    if (broken && !told)
        snprintf(
            text, EPW_TROUBLE_TEXT,
            "the connection to its NIC is gone, or it took nothing for so long that its queue was full: see "
            "that its process lives, and the network between the hosts");
}

const char *epw_remote_trouble(epw_peers *peers, uint32_t peer, char *text) {
    *text = '\0';
    pthread_mutex_lock(&peers->lock);
    find_trouble(peers, peer, text);
    pthread_mutex_unlock(&peers->lock);
    return text;
}

const char *epw_remote_try_trouble(epw_peers *peers, uint32_t peer, char *text) {
    *text = '\0';
    if (pthread_mutex_trylock(&peers->lock) != 0) return text;
    find_trouble(peers, peer, text);
    pthread_mutex_unlock(&peers->lock);
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

void epw_remote_say_farewell(epw_peers *peers, uint32_t peer, uint64_t value, uint64_t until_ns) {
    flush(peers->remotes[peer], until_ns); /* after what kernels have posted */
    for (uint32_t lane = 0; lane < peers->lanes; lane++) {
        uint64_t offset = epw_word_offset(peers->rank, lane, EPW_WORD_DROPPED);
        epw_remote_tell_kernels(peers, peer, offset, value);
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
