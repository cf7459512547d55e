/* See mlx5.h: chooses the adapter, the port and the address, and reads the capabilities. */
#include "nic/mlx5/parts.h"

#include "base/little_endian.h"
#include "base/log.h"
#include "nic/choice.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CQE_VERSION = 1, MTU_MAX = 5, PRIORITIES = 8, HOP_LIMIT = 255 };

/* Why devices cannot be used, as a list of reasons. */
typedef struct reasons {
    char text[400];
    size_t length;
} reasons;

static void add_reason(reasons *r, const char *device, const char *why) {
    if (r->length >= sizeof r->text - 1) return;
    int n = snprintf(r->text + r->length, sizeof r->text - r->length, "%s%s: %s", r->length > 0 ? "; " : "",
                     device, why);
    r->length += n > 0 ? (size_t)n : 0;
}

/* The text of the error, which begins with the device's name behind the place. */
static void add_last_error(reasons *r, const char *device) {
    const char *text = strstr(epw_last_error(), device);
    add_reason(r, device, text != NULL ? text + strlen(device) + 1 : epw_last_error());
}

/* ---- addresses ---- */

/* Chooses by type and reach, not by index: indices differ between hosts, and after each change of an
 * address. */
static bool choose_gid(epw_mlx5 *a) {
    uint32_t best = 0;
    for (uint32_t i = 0; i < a->port.gids; i++) {
        epw_mlx5_gid gid;
        if (a->calls->gid(a->device, a->port_number, i, &gid) != 0) continue;
        uint32_t worth = epw_gid_worth(gid.bytes, gid.type == EPW_MLX5_GID_ROCE_V2);
        if (worth <= best) continue;
        best = worth;
        a->gid = gid;
        a->gid_index = i;
    }
    return best > 0;
}

/* The reason why the port cannot be used, NULL if it can. */
static const char *choose_port(epw_mlx5 *a) {
    const char *why = "none of its ports can be queried";
    for (a->port_number = 1; a->port_number <= EPW_ADAPTER_PORTS; a->port_number++) {
        if (!epw_adapter_wanted(a->options.filter, a->name.text, a->port_number)) continue;
        if (a->calls->port(a->device, a->port_number, &a->port) != 0) continue;
        if (!a->port.active) {
            why = "no port is active: see ibv_devinfo, and the cable or the interface";
        } else if (!a->port.ethernet && a->port.lid == 0) {
            why = "its port has no LID: no subnet manager has given it one";
        } else if (a->port.ethernet && !choose_gid(a)) {
            why = "its port has no RoCEv2 GID that others can reach: give its network interface an IPv4 "
                  "address, or an IPv6 one that is routed";
        } else {
            return NULL;
        }
    }
    return why;
}

epw_mlx5_address epw_mlx5_address_of(const epw_mlx5 *a) {
    epw_mlx5_address address = {
        .ethernet = a->port.ethernet, .mtu = (uint8_t)a->port.mtu, .lid = (uint16_t)a->port.lid};
    if (address.ethernet) memcpy(address.gid, a->gid.bytes, sizeof address.gid);
    return address;
}

void epw_mlx5_address_write(const epw_mlx5_address *address, unsigned char bytes[EPW_MLX5_ADDRESS_BYTES]) {
    bytes[0] = address->ethernet;
    bytes[1] = address->mtu;
    epw_put_little(bytes + 2, address->lid, 2);
    memcpy(bytes + 4, address->gid, sizeof address->gid);
}

epw_status epw_mlx5_address_read(const unsigned char bytes[EPW_MLX5_ADDRESS_BYTES], epw_where where,
                                 epw_mlx5_address *out) {
    *out = (epw_mlx5_address){
        .ethernet = bytes[0] == 1, .mtu = bytes[1], .lid = (uint16_t)epw_take_little(bytes + 2, 2)};
    memcpy(out->gid, bytes + 4, sizeof out->gid);
    if (bytes[0] <= 1 && out->mtu >= 1 && out->mtu <= MTU_MAX) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, where, "the peer gave no valid address of its adapter: %u, MTU %u",
                    bytes[0], out->mtu);
}

/* ---- what it can do ---- */

static epw_status ask(const epw_mlx5 *a, uint32_t kind, unsigned char *out, epw_where where) {
    unsigned char in[EPW_MLX5_SHORT_BYTES];
    epw_mlx5_build_query_cap(in, kind);
    int err = a->calls->general(a->device, in, sizeof in, out, EPW_MLX5_QUERY_CAP_BYTES);
    return epw_mlx5_judge(a, EPW_MLX5_QUERY_HCA_CAP, err, out, where);
}

static epw_status ask_caps(epw_mlx5 *a, epw_where where) {
    unsigned char *out = calloc(1, EPW_MLX5_QUERY_CAP_BYTES);
    if (out == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for what an adapter can do");
    epw_status status = ask(a, EPW_MLX5_CAP_GENERAL, out, where);
    if (status == EPW_OK) a->caps = epw_mlx5_read_caps(out);
    if (status == EPW_OK && a->caps.roce) {
        status = ask(a, EPW_MLX5_CAP_ROCE, out, where);
        if (status == EPW_OK) epw_mlx5_read_roce_caps(out, &a->caps);
    }
    if (status == EPW_OK && a->caps.general_2) {
        status = ask(a, EPW_MLX5_CAP_GENERAL_2, out, where);
        if (status == EPW_OK) epw_mlx5_read_caps_2(out, &a->caps);
    }
    free(out);
    return status;
}

/* What the administrator has set is not to be seen: only that it may matter. */
static void tell_order(const epw_mlx5 *a, epw_where where) {
    if (!a->caps.reorders || a->caps.keeps_order) return;
    epw_log(
        EPW_LOG_NIC, EPW_LOG_WARN, (epw_where){where.op, where.rank, -1},
        "%s can place writes in another order than that of posting, and no queue pair can forbid it "
        "(dp_ordering_force): see that adaptive routing is not forced on it (mlxreg, ROCE_ACCL), or update "
        "its firmware",
        a->name.text);
}

static epw_status check_caps(epw_mlx5 *a, epw_where where) {
    epw_status status = ask_caps(a, where);
    if (status != EPW_OK) return status;
    if (a->caps.cqe_version != CQE_VERSION)
        return epw_fail(
            EPW_ERR_NO_PATH, where,
            "%s writes completions of version %u, this library reads version %d: update its firmware",
            a->name.text, a->caps.cqe_version, CQE_VERSION);
    if (!a->caps.cq_overrun_ignored)
        return epw_fail(EPW_ERR_NO_PATH, where,
                        "%s has no completion queues that ignore an overrun (cq_oi): update its firmware",
                        a->name.text);
    if (a->caps.log_message < EPW_MLX5_LOG_MESSAGE)
        return epw_fail(EPW_ERR_NO_PATH, where,
                        "%s sends 2^%u bytes at a time at most (log_max_msg), queue pairs are made for 2^%d: "
                        "update its firmware",
                        a->name.text, a->caps.log_message, EPW_MLX5_LOG_MESSAGE);
    return EPW_OK;
}

/* ---- life ---- */

static int open_parts(epw_mlx5 *a) {
    int err = a->calls->domain(a->device, &a->pd, &a->pd_number);
    if (err != 0 || a->calls->event_queue == NULL) return err;
    return a->calls->event_queue(a->device, &a->event_queue);
}

static void close_device(epw_mlx5 *a) {
    int err = a->pd != NULL ? a->calls->free_domain(a->pd) : 0;
    if (err != 0) epw_mlx5_tell_kept(a, -1, err, "protection domain %u", a->pd_number);
    err = a->device != NULL ? a->calls->close(a->device) : 0;
    if (err != 0) epw_mlx5_tell_kept(a, -1, err, "its device");
    a->pd = a->device = NULL;
}

const char *epw_mlx5_why_closed(const epw_mlx5_calls *calls, int err) {
    if (calls->general != NULL && (err == EOPNOTSUPP || err == EINVAL))
        return "it has no DevX, which needs its firmware's user contexts (log_max_uctx)";
    if (err == EPERM || err == EACCES)
        return "this process may not open it: see /dev/infiniband, and in a container --device";
    return strerror(err);
}

/* Checks options that depend on the kind of link. */
static epw_status check_options(const epw_mlx5 *a, epw_where where) {
    if (!a->port.ethernet && a->options.traffic_class != 0)
        return epw_fail(EPW_ERR_INVALID, where,
                        "options.traffic_class (EPWIRE_TC) is %u, but the port of %s is InfiniBand, which "
                        "has none within "
                        "a subnet: use options.service_level",
                        a->options.traffic_class, a->name.text);
    if (a->port.ethernet && a->options.service_level >= PRIORITIES)
        return epw_fail(
            EPW_ERR_INVALID, where,
            "options.service_level (EPWIRE_SL) is %u, but the port of %s is Ethernet, whose priorities are "
            "below %d",
            a->options.service_level, a->name.text, PRIORITIES);
    return EPW_OK;
}

/* EPW_ERR_NO_PATH and a reason: another device may work. */
static epw_status try_device(epw_mlx5 *a, const epw_mlx5_name *name, reasons *r, epw_where where) {
    a->name = *name;
    int err = a->calls->open(a->calls->library, name->text, &a->device);
    if (err != 0) {
        a->device = NULL;
        add_reason(r, name->text, epw_mlx5_why_closed(a->calls, err));
        return EPW_ERR_NO_PATH;
    }
    const char *why = choose_port(a);
    if (why != NULL) {
        add_reason(r, name->text, why);
        close_device(a);
        return EPW_ERR_NO_PATH;
    }
    bool plain = a->calls->general == NULL; /* queue pairs are made without commands */
    a->caps.atomic |= plain;
    epw_status status = check_options(a, where);
    if (status == EPW_OK && !plain) status = check_caps(a, where);
    if (status == EPW_OK) tell_order(a, where);
    if (status == EPW_OK && (err = open_parts(a)) != 0)
        status = epw_fail_errno(err, where, "%s gives no protection domain or event queue", name->text);
    if (status != EPW_OK) close_device(a);
    return status;
}

/* The permitted devices, in the order in which to try them. */
static uint32_t order_devices(const epw_mlx5_options *options, const epw_mlx5_name *names, uint32_t count,
                              const epw_mlx5_name **out) {
    epw_adapter_listed all[EPW_MLX5_DEVICES_MAX] = {{NULL, NULL}};
    uint32_t order[EPW_MLX5_DEVICES_MAX];
    epw_adapter_wish wish = {.filter = options->filter,
                             .except = options->beside != NULL ? options->beside->name.text : NULL,
                             .gpu = options->gpu,
                             .turn = options->turn};
    for (uint32_t i = 0; i < count; i++) all[i] = (epw_adapter_listed){names[i].text, &names[i].place};
    uint32_t found = epw_adapters_order(all, count, &wish, order);
    for (uint32_t i = 0; i < found; i++) out[i] = &names[order[i]];
    return found;
}

static epw_status none_is_wanted(const epw_mlx5 *a, const epw_mlx5_name *names, uint32_t count,
                                 epw_where where) {
    const epw_mlx5_options *options = &a->options;
    const char *kind = a->calls->kind;
    if (count == 0)
        return epw_fail(EPW_ERR_NO_PATH, where,
                        "there is no %s: see /sys/class/infiniband; without one choose another NIC or wire",
                        kind);
    if (options->beside != NULL)
        return epw_fail(EPW_ERR_NO_PATH, where,
                        "there is no second %s beside %s: set options.adapter_count (EPWIRE_ADAPTERS) to 1, "
                        "or let options.adapters match another one",
                        kind, options->beside->name.text);
    return epw_fail(EPW_ERR_NO_PATH, where,
                    "options.adapters (EPWIRE_HCA), \"%s\", matches none of %u %ss; the first is %s",
                    options->filter, count, kind, names[0].text);
}

static epw_status choose_device(epw_mlx5 *a, const epw_mlx5_name *names, uint32_t count, epw_where where) {
    const epw_mlx5_name *ordered[EPW_MLX5_DEVICES_MAX];
    const epw_mlx5_options *options = &a->options;
    uint32_t found = order_devices(options, names, count, ordered);
    reasons r = {.length = 0};
    if (found == 0) return none_is_wanted(a, names, count, where);
    for (uint32_t i = 0; i < found; i++) {
        size_t before = r.length;
        epw_status status = try_device(a, ordered[i], &r, where);
        if (status == EPW_OK && options->gpu != NULL)
            a->near = epw_bus_distance_name(epw_bus_distance_of(options->gpu, &a->name.place));
        bool named = r.length > before;
        if (status != EPW_ERR_NO_PATH || (found == 1 && !named)) return status;
        if (!named) add_last_error(&r, ordered[i]->text);
    }
    return epw_fail(EPW_ERR_NO_PATH, where, "no %s can be used: %s", a->calls->kind, r.text);
}

static epw_status list_and_choose(epw_mlx5 *a, epw_where where) {
    uint32_t count = 0;
    epw_mlx5_name *names = calloc(EPW_MLX5_DEVICES_MAX, sizeof *names);
    if (names == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a list of adapters");
    int err = a->calls->devices(a->calls->library, names, &count);
    epw_status status =
        err == 0 ? choose_device(a, names, count, where) : epw_fail_errno(err, where, "cannot list adapters");
    free(names);
    return status;
}

void epw_mlx5_tell_by_address(epw_mlx5 *a, int by_descriptor, epw_where where) {
    if (atomic_exchange_explicit(&a->told_way, true, memory_order_relaxed)) return;
    epw_log(EPW_LOG_NIC, EPW_LOG_INFO, (epw_where){where.op, where.rank, -1},
            "%s reaches the GPU's memory by its address (nvidia_peermem), not by dma-buf (errno %d)",
            a->name.text, by_descriptor);
}

bool epw_mlx5_is_unordered(const epw_mlx5 *a) {
    return a->name.unordered;
}

const char *epw_mlx5_describe(const epw_mlx5 *a, char text[EPW_MLX5_TEXT]) {
    char address[64];
    const unsigned char *g = a->gid.bytes;
    if (a->port.ethernet) {
        snprintf(address, sizeof address, "RoCEv2, GID %u ending in %u.%u.%u.%u", a->gid_index, g[12], g[13],
                 g[14], g[15]);
    } else {
        snprintf(address, sizeof address, "InfiniBand, LID %u", a->port.lid);
    }
    static const char *const doorbells[] = {[EPW_MLX5_UAR_OWN] = "",
                                            [EPW_MLX5_UAR_SHARED] = ", doorbells in one register",
                                            [EPW_MLX5_UAR_BF] = ", doorbells that gather writes"};
    static const char *const rings[] = {[EPW_MLX5_REACH_UNASKED] = "",
                                        [EPW_MLX5_REACH_DMABUF] = ", rings in GPU memory by dma-buf",
                                        [EPW_MLX5_REACH_PEERMEM] = ", rings in GPU memory by nvidia_peermem",
                                        [EPW_MLX5_REACH_NONE] =
                                            ", rings in host memory because it does not reach the GPU's"};
    static const char *const arrivals[] = {
        [EPW_MLX5_REACH_UNASKED] = "",
        [EPW_MLX5_REACH_DMABUF] = ", peers write to GPU memory by dma-buf",
        [EPW_MLX5_REACH_PEERMEM] = ", peers write to GPU memory by nvidia_peermem",
        [EPW_MLX5_REACH_NONE] = ", peers write to host memory because it does not reach the GPU's",
        [EPW_MLX5_REACH_UNORDERED] = ", peers write to host memory because the GPU's keeps no order"};
    unsigned reach = atomic_load_explicit(&a->ring_reach, memory_order_relaxed);
    unsigned peers = atomic_load_explicit(&a->peer_reach, memory_order_relaxed);
    unsigned kind = atomic_load_explicit(&a->worst_uar, memory_order_relaxed);
    snprintf(text, EPW_MLX5_TEXT, "%s port %u, %s, MTU %u%s%s%s%s%s%s%s%s", a->name.text, a->port_number,
             address, 128u << a->port.mtu, a->near != NULL ? ", " : "", a->near != NULL ? a->near : "",
             a->caps.atomic ? "" : ", no atomics", doorbells[kind], rings[reach],
             atomic_load_explicit(&a->no_far_rows, memory_order_relaxed)
                 ? ", rows in host memory because it sends none from the GPU's"
                 : "",
             arrivals[peers],
             atomic_load_explicit(&a->rings_for_kernels, memory_order_relaxed)
                 ? ", a thread of the host rings for kernels"
                 : "");
    return text;
}

epw_status epw_mlx5_open(const epw_mlx5_calls *calls, const epw_mlx5_options *options, epw_where where,
                         epw_mlx5 **out) {
    epw_mlx5 *a = calloc(1, sizeof *a);
    if (a == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for an adapter");
    a->calls = calls;
    a->options = *options;
    a->rank = where.rank;
    pthread_mutex_init(&a->pairs_lock, NULL);
    epw_mlx5_attendant_init(&a->attendant);
    if (a->options.hop_limit == 0) a->options.hop_limit = HOP_LIMIT;
    epw_status status = list_and_choose(a, where);
    if (status == EPW_OK) status = epw_mlx5_start_watch(a, where);
    if (status != EPW_OK) {
        epw_mlx5_close(a);
        return status;
    }
    a->options.filter = NULL; /* owned by the caller, as the next two */
    a->options.gpu = NULL;
    a->options.beside = NULL;
    calls->on_event(a->device, epw_mlx5_heed, a);
    *out = a;
    return EPW_OK;
}

epw_adapter_device epw_mlx5_device(const epw_mlx5 *a) {
    return (epw_adapter_device){.device = a->device,
                                .pd = a->pd,
                                .name = a->name.text,
                                .path = {.ethernet = a->port.ethernet,
                                         .port = a->port_number,
                                         .mtu = a->port.mtu,
                                         .gid_index = a->gid_index,
                                         .hop_limit = a->options.hop_limit,
                                         .traffic_class = a->options.traffic_class,
                                         .service_level = a->options.service_level}};
}

void epw_mlx5_hear(epw_mlx5 *a, void (*event)(void *context, const epw_mlx5_event *event), void *context) {
    a->calls->on_event(a->device, event, context);
}

void epw_mlx5_close(epw_mlx5 *a) {
    if (a == NULL) return;
    if (a->device != NULL) a->calls->on_event(a->device, NULL, NULL);
    epw_mlx5_attendant_end(&a->attendant);
    epw_mlx5_end_watch(a);
    epw_mlx5_free_registers(a);
    close_device(a);
    pthread_mutex_destroy(&a->pairs_lock);
    free(a);
}
