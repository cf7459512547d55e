/* See end.h. */
#include "nic/end.h"

#include "nic/fake.h"
#include "nic/verbs.h"

#include <string.h>

uint64_t epw_end_memory_bytes(const epw_fabric *fabric, uint32_t depth) {
    return epw_fabric_adapter(fabric, 0) != NULL ? epw_mlx5_pair_memory_bytes(depth)
                                                 : epw_pair_memory_bytes(depth);
}

static epw_status create_of_adapter(epw_mlx5 *adapter, const epw_end_options *options, epw_where where,
                                    epw_end *out) {
    static const epw_mlx5_poster posters[] = {[EPW_POSTER_HOST] = EPW_MLX5_HOST,
                                              [EPW_POSTER_KERNELS] = EPW_MLX5_KERNELS,
                                              [EPW_POSTER_KERNELS_UNHEARD] = EPW_MLX5_KERNELS_UNHEARD};
    epw_mlx5_pair_options asked = {.peer = options->peer,
                                   .depth = options->depth,
                                   .poster = posters[options->poster],
                                   .memory = options->memory,
                                   .ring = options->ring,
                                   .broken = options->broken,
                                   .context = options->context,
                                   .kept = &out->kept};
    return epw_mlx5_pair_create(adapter, &asked, where, &out->adapter);
}

epw_status epw_end_create(epw_fabric *fabric, const epw_end_options *options, epw_where where, epw_end *out) {
    epw_mlx5 *adapter = epw_fabric_adapter(fabric, epw_fabric_place(fabric, options->lane));
    *out = (epw_end){.lane = options->lane};
    if (adapter != NULL) return create_of_adapter(adapter, options, where, out);
    epw_pair_options asked = {.peer = options->peer,
                              .key = options->key,
                              .depth = options->depth,
                              .memory = options->memory,
                              .polled = options->poster != EPW_POSTER_HOST,
                              .broken = options->broken,
                              .context = options->context};
    return epw_pair_create(epw_fabric_nic(fabric), &asked, where, &out->soft);
}

static uint32_t own_name(const epw_end *end) {
    return epw_fabric_pair_name(end->lane, epw_mlx5_pair_number(end->adapter));
}

/* The connection to the peer's fabric. Writer: the thread that connects the end, first the link, then the NIC
 * with release. Reader: any thread that asks whether the end is broken, which acquires the NIC: so it sees
 * the link of any NIC that it sees, and takes no connection that is just being made for one that is gone. */
static void set_connection(epw_end *end, epw_nic *nic, uint64_t link) {
    atomic_store_explicit(&end->link, link, memory_order_relaxed);
    atomic_store_explicit(&end->nic, nic, memory_order_release);
}

static epw_nic *nic_of(const epw_end *end) {
    return atomic_load_explicit(&end->nic, memory_order_acquire);
}

/* Valid if nic_of has returned a NIC before. */
static uint64_t link_of(const epw_end *end) {
    return atomic_load_explicit(&end->link, memory_order_relaxed);
}

/* An adapter tells nobody that its end of a queue pair is closed: the peer learns this by the connection. */
static void tell_peer(const epw_end *end) {
    epw_nic *nic = nic_of(end);
    if (nic == NULL) return;
    epw_nic_end_pair(nic, link_of(end), epw_fabric_pair_name(end->lane, epw_mlx5_pair_remote(end->adapter)),
                     own_name(end));
}

bool epw_end_destroy(epw_end *end) {
    tell_peer(end);
    epw_pair_destroy(end->soft);
    bool gone = epw_mlx5_pair_destroy(end->adapter) && !end->kept;
    *end = (epw_end){.kept = !gone};
    return gone;
}

uint32_t epw_end_number(const epw_end *end) {
    return end->adapter != NULL ? epw_mlx5_pair_number(end->adapter) : epw_pair_number(end->soft);
}

uint32_t epw_end_carried_number(const epw_end *end) {
    return end->soft != NULL ? epw_pair_carried_number(end->soft) : 0;
}

const epw_pair_memory *epw_end_memory(const epw_end *end) {
    return end->adapter != NULL ? epw_mlx5_pair_memory(end->adapter) : epw_pair_memory_of(end->soft);
}

/* For the adapter that carries what the soft NIC fetches. */
static epw_status carry(epw_fabric *fabric, epw_end *end, const epw_end_peer *peer, epw_where where) {
    epw_mlx5_address address;
    epw_mlx5_path path = epw_mlx5_device(epw_fabric_carrier(fabric)).path;
    epw_status status = epw_fabric_nic_read(peer->nic, 0, where, &address);
    if (status == EPW_OK && address.ethernet != path.ethernet)
        status =
            epw_fail(EPW_ERR_NO_PATH, where, "the peer's adapter is on %s, this rank's on %s",
                     address.ethernet ? "Ethernet" : "InfiniBand", path.ethernet ? "Ethernet" : "InfiniBand");
    if (status != EPW_OK) return status;
    path.remote = peer->carried;
    path.lid = address.lid;
    if (address.mtu < path.mtu) path.mtu = address.mtu;
    memcpy(path.gid, address.gid, sizeof path.gid);
    epw_mlx5_choose_retries(peer->deadline_ns, &path);
    return epw_pair_carry(end->soft, peer->link, peer->number, &path, where);
}

/* In place of cables. */
static void lay_cable(epw_fake *fake, const epw_end *end, const epw_end_peer *peer,
                      const epw_mlx5_address *address) {
    epw_fake_route route = {.remote = peer->number, .link = peer->link};
    if (address->ethernet) {
        memcpy(route.gid, address->gid, sizeof route.gid);
    } else {
        route.lid = address->lid;
    }
    epw_fake_add_route(fake, epw_mlx5_pair_number(end->adapter), &route);
}

static epw_status connect_adapter(epw_fabric *fabric, epw_end *end, const epw_end_peer *peer,
                                  epw_where where) {
    epw_mlx5_address address;
    epw_status status = epw_fabric_nic_read(peer->nic, peer->lane, where, &address);
    if (status != EPW_OK) return status;
    if (epw_fabric_fake(fabric) != NULL) lay_cable(epw_fabric_fake(fabric), end, peer, &address);
    set_connection(end, epw_fabric_nic(fabric), peer->link);
    return epw_mlx5_pair_connect(end->adapter, peer->number, &address, peer->deadline_ns, where);
}

/* One that was connected in the same way before has been heard, and is heard only once. */
static void announce(const epw_end *end, const epw_end_peer *peer) {
    if (epw_end_is_heard(end)) return;
    if (end->adapter != NULL) {
        epw_nic_announce_pair(nic_of(end), link_of(end), epw_fabric_pair_name(end->lane, peer->number),
                              own_name(end));
    } else {
        epw_pair_announce(end->soft);
    }
}

epw_status epw_end_connect(epw_fabric *fabric, epw_end *end, const epw_end_peer *peer, epw_where where) {
    epw_status status = epw_fabric_nic_check(fabric, peer->nic, where);
    if (status == EPW_OK && peer->wire == EPW_WIRE_VERBS) {
        status = carry(fabric, end, peer, where);
    } else if (status == EPW_OK && end->adapter != NULL) {
        status = connect_adapter(fabric, end, peer, where);
    } else if (status == EPW_OK) {
        epw_pair_connect(end->soft, peer->link, peer->number);
    }
    if (status == EPW_OK) announce(end, peer);
    return status;
}

bool epw_end_is_heard(const epw_end *end) {
    return end->adapter != NULL ? epw_mlx5_pair_is_heard(end->adapter) : epw_pair_is_heard(end->soft);
}

void epw_end_ring(const epw_end *end) {
    if (end->adapter != NULL) {
        epw_mlx5_pair_ring(end->adapter);
    } else {
        epw_pair_ring(end->soft);
    }
}

bool epw_end_has_rung(const epw_end *end) {
    return end->adapter != NULL ? epw_mlx5_pair_has_rung(end->adapter) : epw_pair_rung_for(end->soft) > 0;
}

bool epw_end_idle(const epw_end *end) {
    if (end->adapter == NULL) return epw_pair_idle(end->soft);
    return epw_end_broken(end) || epw_mlx5_pair_idle(end->adapter);
}

void epw_end_break(const epw_end *end) {
    if (end->adapter != NULL) {
        epw_mlx5_pair_break(end->adapter);
    } else {
        epw_pair_break(end->soft);
    }
}

bool epw_end_close(const epw_end *end) {
    return end->adapter != NULL ? epw_mlx5_pair_close(end->adapter) : epw_pair_close(end->soft);
}

bool epw_end_is_closed(const epw_end *end) {
    if (end->adapter == NULL) return epw_pair_is_closed(end->soft);
    return epw_mlx5_pair_is_closed(end->adapter) || epw_end_broken(end);
}

bool epw_end_broken(const epw_end *end) {
    if (end->adapter == NULL) return epw_pair_broken(end->soft);
    if (epw_mlx5_pair_broken(end->adapter)) {
        tell_peer(end);
        return true;
    }
    epw_nic *nic = nic_of(end);
    if (nic == NULL || epw_nic_link_alive(nic, link_of(end))) return false;
    epw_mlx5_pair_break(end->adapter);
    return true;
}

bool epw_end_is_of_adapter(const epw_end *end) {
    return end->adapter != NULL || epw_pair_is_carried(end->soft);
}

bool epw_end_failed(const epw_end *end, epw_queue *queue, epw_queue_fault *fault) {
    if (epw_queue_failed(queue, fault) && fault->syndrome != EPW_SYNDROME_FLUSHED) return true;
    if (end->soft == NULL || !epw_pair_broken(end->soft)) return false;
    epw_pair_cause cause = epw_pair_cause_of(end->soft);
    *fault = (epw_queue_fault){.pair = epw_pair_number(end->soft),
                               .syndrome = cause.syndrome,
                               .vendor = cause.vendor,
                               .index = (uint16_t)cause.index};
    return cause.syndrome != EPW_SYNDROME_NONE;
}

const char *epw_end_trouble(const epw_end *end, char text[EPW_MLX5_TEXT]) {
    return end->adapter != NULL ? epw_mlx5_pair_trouble(end->adapter, text)
                                : epw_pair_carried_trouble(end->soft, text);
}

/* ---- memory ---- */

/* Tells the soft NIC of a region, which its carrier, if there is one, has registered. */
static epw_status let_know(epw_fabric *fabric, const epw_region *region, epw_keys carried, epw_where where,
                           epw_keys *out) {
    epw_mlx5 *carrier = epw_fabric_carrier(fabric);
    epw_region known = *region;
    known.carried_key = carried.own;
    uint32_t key = epw_nic_register(epw_fabric_nic(fabric), &known);
    *out = (epw_keys){.own = key, .its = key, .carried = carried.its};
    if (key != 0) return EPW_OK;
    if (carrier != NULL) epw_mlx5_deregister(carrier, carried.own);
    return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory to register memory");
}

epw_status epw_end_register(epw_fabric *fabric, uint32_t place, const epw_region *region, epw_where where,
                            epw_keys *out) {
    epw_mlx5 *adapter = epw_fabric_adapter(fabric, place);
    if (adapter != NULL) return epw_mlx5_register(adapter, region, where, out);
    epw_mlx5 *carrier = epw_fabric_carrier(fabric);
    epw_keys carried = {0};
    epw_status status = carrier != NULL ? epw_mlx5_register(carrier, region, where, &carried) : EPW_OK;
    return status == EPW_OK ? let_know(fabric, region, carried, where, out) : status;
}

static epw_status register_far(epw_fabric *fabric, uint32_t place, const epw_mlx5_far *far,
                               const epw_region *region, epw_where where, epw_keys *out) {
    epw_mlx5 *adapter = epw_fabric_adapter(fabric, place);
    if (adapter != NULL) return epw_mlx5_register_far(adapter, far, region, where, out);
    epw_region closed = *region; /* to frames: a key without stretches opens nothing */
    closed.count = 0;
    epw_keys carried;
    epw_status status = epw_mlx5_register_far(epw_fabric_carrier(fabric), far, region, where, &carried);
    return status == EPW_OK ? let_know(fabric, &closed, carried, where, out) : status;
}

void epw_end_deregister(epw_fabric *fabric, uint32_t place, uint32_t own) {
    epw_mlx5 *adapter = epw_fabric_adapter(fabric, place);
    if (own == 0) return;
    if (adapter != NULL) {
        epw_mlx5_deregister(adapter, own);
    } else {
        epw_mlx5 *carrier = epw_fabric_carrier(fabric);
        uint32_t carried = epw_nic_carried_key(epw_fabric_nic(fabric), own);
        epw_nic_deregister(epw_fabric_nic(fabric), own);
        if (carrier != NULL) epw_mlx5_deregister(carrier, carried);
    }
}

epw_status epw_end_register_all(epw_fabric *fabric, const epw_region *region, epw_where where,
                                epw_keys out[EPW_ADAPTERS_MAX]) {
    epw_region at = *region;
    memset(out, 0, EPW_ADAPTERS_MAX * sizeof out[0]);
    for (uint32_t place = 0; place < epw_fabric_places(fabric); place++) {
        epw_status status = epw_end_register(fabric, place, &at, where, &out[place]);
        if (status != EPW_OK) {
            epw_end_deregister_all(fabric, out);
            return status;
        }
        at.arrived = NULL; /* one polling thread sees the words of all places */
    }
    return EPW_OK;
}

epw_status epw_end_register_far(epw_fabric *fabric, const epw_mlx5_far *far, const epw_region *region,
                                epw_where where, epw_keys out[EPW_ADAPTERS_MAX]) {
    memset(out, 0, EPW_ADAPTERS_MAX * sizeof out[0]);
    for (uint32_t place = 0; place < epw_fabric_places(fabric); place++) {
        epw_status status = register_far(fabric, place, far, region, where, &out[place]);
        if (status != EPW_OK) {
            epw_end_deregister_all(fabric, out);
            return status;
        }
    }
    return EPW_OK;
}

void epw_end_deregister_all(epw_fabric *fabric, const epw_keys keys[EPW_ADAPTERS_MAX]) {
    for (uint32_t place = 0; place < epw_fabric_places(fabric); place++)
        epw_end_deregister(fabric, place, keys[place].own);
}
