/* See mlx5.h: which adapter, port and address, and what it can do. */
#include "nic/mlx5/parts.h"

#include "base/little_endian.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORTS = 2, CQE_VERSION = 1, MTU_MAX = 5 };

/* Why devices cannot be used, one behind the other. */
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

/* ---- addresses ---- */

static bool starts_with(const unsigned char gid[16], const unsigned char *bytes, size_t count) {
    return memcmp(gid, bytes, count) == 0;
}

/* How well others reach it: IPv4 best, then routed IPv6; 0: not at all. */
static int worth_of(const epw_mlx5_gid *gid) {
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    static const unsigned char nothing[16];
    bool link_local = gid->bytes[0] == 0xfe && (gid->bytes[1] & 0xc0) == 0x80;
    if (gid->type != EPW_MLX5_GID_ROCE_V2 || link_local || starts_with(gid->bytes, nothing, 16)) return 0;
    return starts_with(gid->bytes, mapped, sizeof mapped) ? 2 : 1;
}

/* By type and worth: its index is another one on each host, and after each change of an address. */
static bool choose_gid(epw_mlx5 *a) {
    int best = 0;
    for (uint32_t i = 0; i < a->port.gids; i++) {
        epw_mlx5_gid gid;
        if (a->calls->gid(a->device, a->port_number, i, &gid) != 0 || worth_of(&gid) <= best) continue;
        best = worth_of(&gid);
        a->gid = gid;
        a->gid_index = i;
    }
    return best > 0;
}

/* Why the port cannot be used, NULL if it can. */
static const char *choose_port(epw_mlx5 *a) {
    const char *why = "it has no port that can be asked for";
    for (a->port_number = 1; a->port_number <= PORTS; a->port_number++) {
        if (a->calls->port(a->device, a->port_number, &a->port) != 0) continue;
        if (!a->port.active) {
            why = "no port is active: see ibv_devinfo, and the cable or the interface";
        } else if (!a->port.ethernet && a->port.lid == 0) {
            why = "its port has no LID: no subnet manager has been there";
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
    return epw_fail(EPW_ERR_INVALID, where, "what the peer says of its adapter is no address: %u, MTU %u",
                    bytes[0], out->mtu);
}

/* ---- what it can do ---- */

static epw_status ask_caps(epw_mlx5 *a, epw_where where) {
    unsigned char in[EPW_MLX5_SHORT_BYTES], *out = calloc(1, EPW_MLX5_QUERY_CAP_BYTES);
    if (out == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for what an adapter can do");
    epw_mlx5_build_query_cap(in, EPW_MLX5_CAP_GENERAL);
    int err = a->calls->general(a->device, in, sizeof in, out, EPW_MLX5_QUERY_CAP_BYTES);
    epw_status status = epw_mlx5_judge(a, EPW_MLX5_QUERY_HCA_CAP, err, out, where);
    if (status == EPW_OK) a->caps = epw_mlx5_read_caps(out);
    free(out);
    return status;
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
    return EPW_OK;
}

/* ---- life ---- */

static int open_parts(epw_mlx5 *a) {
    int err = a->calls->domain(a->device, &a->pd, &a->pd_number);
    return err != 0 ? err : a->calls->event_queue(a->device, &a->event_queue);
}

static void close_device(epw_mlx5 *a) {
    if (a->pd != NULL) a->calls->free_domain(a->pd);
    if (a->device != NULL) a->calls->close(a->device);
    a->pd = a->device = NULL;
}

static const char *why_closed(int err) {
    if (err == EOPNOTSUPP || err == EINVAL)
        return "it has no DevX, which needs its firmware's user contexts (log_max_uctx)";
    if (err == EPERM || err == EACCES)
        return "this process may not open it: see /dev/infiniband, and in a container --device";
    return strerror(err);
}

/* EPW_ERR_NO_PATH and a reason: another one may do. */
static epw_status try_device(epw_mlx5 *a, const epw_mlx5_name *name, reasons *r, epw_where where) {
    a->name = *name;
    int err = a->calls->open(a->calls->library, name->text, &a->device);
    if (err != 0) {
        a->device = NULL;
        add_reason(r, name->text, why_closed(err));
        return EPW_ERR_NO_PATH;
    }
    const char *why = choose_port(a);
    if (why != NULL) {
        add_reason(r, name->text, why);
        close_device(a);
        return EPW_ERR_NO_PATH;
    }
    epw_status status = check_caps(a, where);
    if (status == EPW_OK && (err = open_parts(a)) != 0)
        status = epw_fail_errno(err, where, "%s gives no protection domain or event queue", name->text);
    if (status != EPW_OK) close_device(a);
    return status;
}

static epw_status choose_device(epw_mlx5 *a, epw_where where) {
    static const char remedy[] = "; without one choose another NIC";
    epw_mlx5_name names[EPW_MLX5_DEVICES_MAX];
    uint32_t count = 0;
    reasons r = {.length = 0};
    int err = a->calls->devices(a->calls->library, names, &count);
    if (err != 0) return epw_fail_errno(err, where, "cannot list adapters");
    for (uint32_t i = 0; i < count; i++) {
        const char *wanted = a->options.device;
        if (wanted != NULL && strcmp(wanted, names[i].text) != 0) continue;
        epw_status status = try_device(a, &names[i], &r, where);
        if (status != EPW_ERR_NO_PATH || r.length == 0) return status;
    }
    if (r.length > 0) return epw_fail(EPW_ERR_NO_PATH, where, "no mlx5 adapter can be used: %s", r.text);
    if (count > 0)
        return epw_fail(EPW_ERR_NO_PATH, where, "none of %u mlx5 adapters is called %s; the first is %s",
                        count, a->options.device, names[0].text);
    return epw_fail(EPW_ERR_NO_PATH, where, "there is no mlx5 adapter: see /sys/class/infiniband%s", remedy);
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
    unsigned kind = atomic_load_explicit(&a->worst_uar, memory_order_relaxed);
    snprintf(text, EPW_MLX5_TEXT, "%s port %u, %s, MTU %u%s%s%s", a->name.text, a->port_number, address,
             128u << a->port.mtu, a->caps.atomic ? "" : ", no atomics", doorbells[kind],
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
    pthread_mutex_init(&a->pairs_lock, NULL);
    epw_mlx5_attendant_init(&a->attendant);
    epw_status status = choose_device(a, where);
    if (status == EPW_OK) status = epw_mlx5_start_watch(a, where);
    if (status != EPW_OK) {
        epw_mlx5_close(a);
        return status;
    }
    a->options.device = NULL; /* the caller's */
    calls->on_event(a->device, epw_mlx5_heed, a);
    *out = a;
    return EPW_OK;
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
