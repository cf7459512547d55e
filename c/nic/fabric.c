/* See fabric.h. Its thread drives the links (link.h): a caller that wants a connection requests a dial and
 * waits for its end; connections that others have dialed go to the NIC, which learns from their frames what
 * they are for. */
#include "nic/fabric.h"

#include "base/condition.h"
#include "base/log.h"
#include "base/little_endian.h"
#include "base/thread.h"
#include "device/gpus.h"
#include "nic/choice.h"
#include "nic/link.h"
#include "nic/mlx5/library.h"
#include "nic/queue.h"
#include "nic/verbs.h"
#include "nic/soft/ring.h"
#include "nic/soft/strict.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* How long after its deadline the end of a dial may be reported: its thread may have to wait for a core. */
#define TOLD_WITHIN_NS UINT64_C(1000000000)

/* The longest delay after a doorbell, at a strict NIC. */
#define STRICT_DELAY_US 100

/* Of the fake adapter. */
#define FAKE_DEVICES 2

/* A dial, on the stack of the thread that waits for it. */
typedef struct waiter {
    struct waiter *next;
    uint32_t number;
    bool done;
    epw_status status;
    uint64_t link;
    char reason[sizeof((epw_link_event *)0)->reason];
} waiter;

struct epw_fabric {
    uint32_t rank, wires;
    uint32_t ring_bytes; /* for connections within the host that this end dials */
    uint32_t doorbells;  /* EPW_DOORBELLS_* */
    uint32_t rings;      /* EPW_RINGS_* */
    uint32_t queue_depth, doorbell_batch;
    atomic_uint holders;     /* see epw_fabric_hold */
    atomic_uint fallen_back; /* 1 << EPW_FALLBACK_*: has been logged */
    bool strict;
    bool holds_words;    /* EPW_WIRE_VERBS: until what is before them is done */
    bool tcp;            /* it listens and dials by TCP */
    uint32_t generation; /* of the process that made it */
    epw_nic *nic;
    epw_fake *fake;                       /* EPW_NIC_FAKE */
    epw_mlx5 *adapters[EPW_ADAPTERS_MAX]; /* NULL: the soft NIC has the queue pairs */
    uint32_t adapter_count;
    epw_mlx5 *carrier; /* EPW_WIRE_VERBS */
    epw_nonce name;
    epw_identity self;
    int wake;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t told;
    bool ending;
    epw_links *links;
    uint32_t dials; /* so far: their numbers */
    waiter *waiters;
};

void epw_fabric_hold(epw_fabric *fabric) {
    if (fabric != NULL) atomic_fetch_add_explicit(&fabric->holders, 1, memory_order_relaxed);
}

void epw_fabric_let_go(epw_fabric *fabric) {
    if (fabric != NULL) atomic_fetch_sub_explicit(&fabric->holders, 1, memory_order_release);
}

epw_nic *epw_fabric_nic(const epw_fabric *fabric) {
    return fabric->nic;
}

epw_mlx5 *epw_fabric_adapter(const epw_fabric *fabric, uint32_t number) {
    return fabric->adapters[number];
}

uint32_t epw_fabric_places(const epw_fabric *fabric) {
    return fabric->adapter_count > 0 ? fabric->adapter_count : 1;
}

epw_mlx5 *epw_fabric_carrier(const epw_fabric *fabric) {
    return fabric->carrier;
}

bool epw_fabric_pins(const epw_fabric *fabric) {
    return fabric->adapter_count > 0 || fabric->carrier != NULL;
}

bool epw_fabric_is_of_adapters(const epw_fabric *fabric) {
    return fabric->adapter_count > 0 || fabric->wires == EPW_WIRE_VERBS;
}

epw_fake *epw_fabric_fake(const epw_fabric *fabric) {
    return fabric->fake;
}

uint32_t epw_fabric_doorbells(const epw_fabric *fabric) {
    return fabric->doorbells;
}

uint32_t epw_fabric_rings(const epw_fabric *fabric) {
    return fabric != NULL ? fabric->rings : EPW_RINGS_HOST;
}

uint32_t epw_fabric_rank(const epw_fabric *fabric) {
    return fabric->rank;
}

uint32_t epw_fabric_queue_depth(const epw_fabric *fabric) {
    return fabric != NULL ? fabric->queue_depth : 0;
}

uint32_t epw_fabric_doorbell_batch(const epw_fabric *fabric) {
    return fabric->doorbell_batch;
}

void epw_fabric_fall_back(epw_fabric *fabric, epw_fallback what) {
    static const char *const texts[] = {
        [EPW_FALLBACK_RINGS] = "kernels post to host memory, not to the GPU's",
        [EPW_FALLBACK_ROWS] = "kernels send rows from host memory, not from the GPU's",
        [EPW_FALLBACK_ARRIVALS] = "peers write to host memory, not to the GPU's",
        [EPW_FALLBACK_DOORBELLS] = "a thread of the host rings for kernels"};
    unsigned bit = 1u << what;
    epw_error_detail detail = EPW_ERROR_DETAIL_INIT;
    if (atomic_fetch_or_explicit(&fabric->fallen_back, bit, memory_order_relaxed) & bit) return;
    epw_last_error_detail(&detail);
    epw_log(EPW_LOG_NIC, EPW_LOG_WARN, (epw_where){"fabric", (int)fabric->rank, -1}, "%s: %s", texts[what],
            detail.text);
}

const char *epw_fabric_describe(const epw_fabric *fabric, char *text) {
    char adapter[EPW_MLX5_TEXT];
    size_t length = 0;
    int n =
        snprintf(text, EPW_FABRIC_TEXT, "%s", fabric->strict ? "a strict software NIC" : "a software NIC");
    if (fabric->carrier != NULL)
        snprintf(text + n, EPW_FABRIC_TEXT - (size_t)n, ", verbs by %s%s",
                 epw_mlx5_describe(fabric->carrier, adapter),
                 fabric->holds_words ? ", words held back until rows are done" : "");
    for (uint32_t i = 0; i < fabric->adapter_count; i++)
        length += (size_t)snprintf(text + length, EPW_FABRIC_TEXT - length, "%s%s", i > 0 ? "; " : "",
                                   epw_mlx5_describe(fabric->adapters[i], adapter));
    return text;
}

bool epw_fabric_inherited(const epw_fabric *fabric) {
    return fabric->generation != epw_process_generation();
}

/* ---- addresses ---- */

epw_fabric_address epw_fabric_address_of(const epw_fabric *fabric) {
    epw_fabric_address address = {.boot_id = fabric->self.boot_id,
                                  .network_namespace = fabric->self.network_namespace,
                                  .name = fabric->name,
                                  .wires = (uint8_t)fabric->wires};
    address.tcp_length = (uint8_t)epw_links_addresses(fabric->links, address.tcp);
    return address;
}

void epw_fabric_address_write(const epw_fabric_address *address, unsigned char *bytes) {
    memcpy(bytes, address->boot_id.bytes, 16);
    epw_put_little(bytes + 16, address->network_namespace, 8);
    memcpy(bytes + 24, address->name.bytes, 16);
    bytes[40] = address->wires;
    bytes[41] = address->tcp_length;
    memcpy(bytes + 42, address->tcp, sizeof address->tcp);
}

void epw_fabric_address_read(const unsigned char *bytes, epw_fabric_address *out) {
    memcpy(out->boot_id.bytes, bytes, 16);
    out->network_namespace = epw_take_little(bytes + 16, 8);
    memcpy(out->name.bytes, bytes + 24, 16);
    out->wires = bytes[40];
    out->tcp_length = bytes[41] <= sizeof out->tcp ? bytes[41] : 0;
    memcpy(out->tcp, bytes + 42, sizeof out->tcp);
}

static bool is_of_this_host(const epw_fabric *fabric, const epw_fabric_address *address) {
    return epw_nonce_equal(&fabric->self.boot_id, &address->boot_id) &&
           fabric->self.network_namespace == address->network_namespace;
}

/* Whether it is dialed within the host: a fabric that has the verbs wire listens there as well, and by TCP if
 * it has a key. */
static bool is_called_locally(const epw_fabric *fabric, const epw_fabric_address *address) {
    const uint32_t listens = EPW_WIRE_LOCAL | EPW_WIRE_VERBS;
    return (fabric->wires & listens) && (address->wires & listens) && is_of_this_host(fabric, address);
}

static bool is_called_by_tcp(const epw_fabric *fabric, const epw_fabric_address *address) {
    return fabric->tcp && address->tcp_length > 0;
}

uint32_t epw_fabric_wire(const epw_fabric *fabric, const epw_fabric_address *address) {
    uint32_t both = fabric->wires & address->wires;
    bool locally = is_called_locally(fabric, address), tcp = is_called_by_tcp(fabric, address);
    if ((both & EPW_WIRE_LOCAL) && locally) return EPW_WIRE_LOCAL;
    if ((both & EPW_WIRE_VERBS) && (locally || tcp)) return EPW_WIRE_VERBS;
    return tcp ? both & EPW_WIRE_TCP : 0;
}

/* To other ranks a strict NIC is a soft one. */
enum { SAYS_SOFT = 1, SAYS_ADAPTER = 2, SAYS_FAKE = 3 };

static unsigned char says(const epw_fabric *fabric) {
    if (fabric->fake != NULL) return SAYS_FAKE;
    return fabric->adapter_count > 0 ? SAYS_ADAPTER : SAYS_SOFT;
}

static size_t address_offset(uint32_t lane) {
    return 1 + (size_t)(lane % EPW_ADAPTERS_MAX) * EPW_MLX5_ADDRESS_BYTES;
}

void epw_fabric_nic_write(const epw_fabric *fabric, unsigned char bytes[EPW_FABRIC_NIC_BYTES]) {
    memset(bytes, 0, EPW_FABRIC_NIC_BYTES);
    bytes[0] = says(fabric);
    if (fabric->carrier != NULL) {
        epw_mlx5_address address = epw_mlx5_address_of(fabric->carrier);
        epw_mlx5_address_write(&address, bytes + address_offset(0));
    }
    for (uint32_t lane = 0; fabric->adapter_count > 0 && lane < EPW_ADAPTERS_MAX; lane++) {
        epw_mlx5_address address = epw_mlx5_address_of(fabric->adapters[lane % fabric->adapter_count]);
        epw_mlx5_address_write(&address, bytes + address_offset(lane));
    }
}

epw_status epw_fabric_nic_read(const unsigned char bytes[EPW_FABRIC_NIC_BYTES], uint32_t lane,
                               epw_where where, epw_mlx5_address *out) {
    return epw_mlx5_address_read(bytes + address_offset(lane), where, out);
}

static const char *kind_of_nic(unsigned char said) {
    static const char *const names[] = {[SAYS_SOFT] = "a software NIC",
                                        [SAYS_ADAPTER] = "an mlx5 adapter",
                                        [SAYS_FAKE] = "a fake mlx5 adapter"};
    return said >= SAYS_SOFT && said <= SAYS_FAKE ? names[said] : "a NIC of a kind that is not known here";
}

epw_status epw_fabric_nic_check(const epw_fabric *fabric, const unsigned char bytes[EPW_FABRIC_NIC_BYTES],
                                epw_where where) {
    if (bytes[0] == says(fabric)) return EPW_OK;
    return epw_fail(EPW_ERR_NO_PATH, where,
                    "the peer has %s, this rank %s: give all ranks the same options.nic",
                    kind_of_nic(bytes[0]), kind_of_nic(says(fabric)));
}

static const char *why_unreached(const epw_fabric *fabric, const epw_fabric_address *address) {
    if ((fabric->wires ^ address->wires) & EPW_WIRE_VERBS)
        return fabric->carrier != NULL ? "its fabric has no verbs wire: give all ranks the same wires"
                                       : "its fabric has the verbs wire, this rank's has not: give all ranks "
                                         "the same wires";
    if (!fabric->tcp)
        return is_of_this_host(fabric, address)
                   ? "the two fabrics have no wire in common"
                   : "it is on another host, or in another network namespace, and this rank's fabric has no "
                     "TCP: give its options a key and EPW_WIRE_TCP";
    return "its fabric has no TCP: give its options a key and EPW_WIRE_TCP";
}

/* ---- the thread ---- */

/* The dial of this number, if somebody still waits for it. */
static waiter *waits_for(const epw_fabric *fabric, uint32_t number) {
    waiter *w = fabric->waiters;
    while (w != NULL && w->number != number) w = w->next;
    return w;
}

static bool is_local(int fd) {
    int domain = 0;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &(socklen_t){sizeof domain}) == 0 &&
           domain == AF_UNIX;
}

/* Handles the end of a dial, or a link that another rank has dialed. Called with the lock held. */
static void take(epw_fabric *fabric, const epw_link_event *event) {
    epw_status status = event->status;
    const char *reason = event->reason;
    uint64_t link = 0;
    waiter *w = event->dialed ? waits_for(fabric, event->link) : NULL;
    if (event->dialed && w == NULL) { /* its caller has left, and nobody else would end the link */
        if (event->kind == EPW_LINK_UP) epw_fd_release(event->fd);
        return;
    }
    if (event->kind == EPW_LINK_UP) {
        epw_where where = {"connect", (int)fabric->rank, (int)event->peer};
        status = is_local(event->fd)
                     ? epw_nic_add_ring_link(fabric->nic, event->fd, event->peer,
                                             event->dialed ? fabric->ring_bytes : 0, where, &link)
                     : epw_nic_add_link(fabric->nic, event->fd, event->peer, where, &link);
        reason = status == EPW_OK ? "" : epw_last_error();
    }
    if (w == NULL) return;
    w->done = true;
    w->status = status;
    w->link = link;
    snprintf(w->reason, sizeof w->reason, "%s", reason);
    pthread_cond_broadcast(&fabric->told);
}

static void *drive(void *argument) {
    epw_thread_name("epw-fabric");
    epw_fabric *fabric = argument;
    epw_link_event event;
    for (bool ending = false; !ending;) {
        struct pollfd polls[2] = {{.fd = epw_links_fd(fabric->links), .events = POLLIN},
                                  {.fd = fabric->wake, .events = POLLIN}};
        poll(polls, 2, -1);
        pthread_mutex_lock(&fabric->lock);
        while (epw_links_poll(fabric->links, epw_now_ns(), &event)) take(fabric, &event);
        ending = fabric->ending;
        pthread_mutex_unlock(&fabric->lock);
    }
    return NULL;
}

/* ---- dialing ---- */

/* Called with the lock held; waits for the thread. */
static epw_status dial(epw_fabric *fabric, const epw_dial_order *order, waiter *w) {
    uint64_t now = epw_now_ns();
    uint64_t until = order->deadline_ns < UINT64_MAX - TOLD_WITHIN_NS ? order->deadline_ns + TOLD_WITHIN_NS
                                                                      : UINT64_MAX / 2;
    epw_status status = epw_links_dial(fabric->links, order, now);
    if (status != EPW_OK) return status;
    w->next = fabric->waiters;
    fabric->waiters = w;
    struct timespec at = epw_until(until, 0);
    int err = 0;
    while (!w->done && err == 0) err = pthread_cond_timedwait(&fabric->told, &fabric->lock, &at);
    waiter **from = &fabric->waiters;
    while (*from != w) from = &(*from)->next;
    *from = w->next;
    return EPW_OK;
}

epw_status epw_fabric_link(epw_fabric *fabric, uint32_t peer, const epw_fabric_address *address,
                           uint64_t deadline_ns, epw_where where, uint64_t *link) {
    uint32_t wire = epw_fabric_wire(fabric, address);
    if (wire == 0)
        return epw_fail(EPW_ERR_NO_PATH, where, "no queue leads to the peer: %s",
                        why_unreached(fabric, address));
    uint64_t now = epw_now_ns();
    epw_dial_order order = {.peer = peer,
                            .fabric = address->name,
                            .addresses = is_called_locally(fabric, address) ? NULL : address->tcp,
                            .length = address->tcp_length,
                            .deadline_ns = deadline_ns < UINT64_MAX - now ? now + deadline_ns : UINT64_MAX};
    waiter w = {.status = EPW_ERR_TIMEOUT, .reason = "the fabric's thread has not run"};
    pthread_mutex_lock(&fabric->lock);
    order.link = w.number = ++fabric->dials;
    epw_status status = dial(fabric, &order, &w);
    pthread_mutex_unlock(&fabric->lock);
    if (status != EPW_OK) return status;
    *link = w.link;
    if (w.status == EPW_ERR_TIMEOUT)
        return epw_fail(EPW_ERR_TIMEOUT, where, "the peer's fabric has not answered within %llu ms: %s",
                        (unsigned long long)(deadline_ns / 1000000u), w.reason);
    if (w.status != EPW_OK)
        return epw_fail(w.status, where, "the peer's fabric is gone, or refuses this rank: %s", w.reason);
    return EPW_OK;
}

/* ---- life ---- */

/* Checks the options that concern only adapters. */
static epw_status check_adapters(const epw_fabric_options *options, epw_where where) {
    static const char *const fields[] = {"adapter_count", "service_level", "traffic_class", "hop_limit"};
    const uint32_t values[] = {options->adapter_count, options->service_level, options->traffic_class,
                               options->hop_limit};
    const uint32_t most[] = {EPW_ADAPTERS_MAX, 15, 255, 255};
    for (int i = 0; i < 4; i++)
        if (values[i] > most[i])
            return epw_fail(EPW_ERR_INVALID, where, "options.%s is %u, must be at most %u", fields[i],
                            values[i], most[i]);
    if (options->rings > EPW_RINGS_AUTO)
        return epw_fail(EPW_ERR_INVALID, where,
                        "options.rings is %u, must be EPW_RINGS_HOST, EPW_RINGS_GPU or EPW_RINGS_AUTO",
                        options->rings);
    if (options->rings == EPW_RINGS_GPU && options->nic < EPW_NIC_FAKE && options->wires != EPW_WIRE_VERBS)
        return epw_fail(EPW_ERR_INVALID, where,
                        "options.rings is EPW_RINGS_GPU, but a software NIC reads and writes no GPU memory: "
                        "use an adapter, or no other wire than EPW_WIRE_VERBS");
    if (options->order > EPW_ORDER_NONE)
        return epw_fail(EPW_ERR_INVALID, where,
                        "options.order is %u, must be EPW_ORDER_AUTO or EPW_ORDER_NONE", options->order);
    if (options->order == EPW_ORDER_NONE && options->nic >= EPW_NIC_FAKE)
        return epw_fail(
            EPW_ERR_INVALID, where,
            "options.order is EPW_ORDER_NONE (EPWIRE_ORDER=none), but nobody holds back what is posted "
            "to the queues of an mlx5 adapter: use a software NIC, and EPW_WIRE_VERBS");
    if (options->device < EPW_DEVICE_HOST)
        return epw_fail(EPW_ERR_INVALID, where, "options.device is %d, must be EPW_DEVICE_HOST or an ordinal",
                        options->device);
    return epw_adapter_filter_check(options->adapters, "options.adapters (EPWIRE_HCA)", where);
}

static epw_status check(const epw_fabric_options *options, epw_fabric *const *out) {
    epw_where where = {"fabric", -1, -1};
    if (out == NULL || options == NULL)
        return epw_fail(EPW_ERR_INVALID, where, "%s is NULL", out == NULL ? "out" : "options");
    if (options->size != sizeof *options)
        return epw_fail(EPW_ERR_INVALID, where,
                        "options.size is %u, this library's is %zu: use EPW_FABRIC_OPTIONS_INIT",
                        options->size, sizeof *options);
    if (options->rank >= EPW_MAX_RANKS)
        return epw_fail(EPW_ERR_INVALID, where, "options.rank is %u, must be below %u", options->rank,
                        EPW_MAX_RANKS);
    where.rank = (int)options->rank;
    if (options->wires == 0 || (options->wires & ~(EPW_WIRE_LOCAL | EPW_WIRE_TCP | EPW_WIRE_VERBS)) != 0)
        return epw_fail(
            EPW_ERR_INVALID, where,
            "options.wires is %#x, must be some of EPW_WIRE_LOCAL, EPW_WIRE_TCP and EPW_WIRE_VERBS",
            options->wires);
    if (options->nic < EPW_NIC_SOFT || options->nic > EPW_NIC_MLX5)
        return epw_fail(
            EPW_ERR_INVALID, where,
            "options.nic is %u, must be EPW_NIC_SOFT, EPW_NIC_STRICT, EPW_NIC_FAKE or EPW_NIC_MLX5",
            options->nic);
    if ((options->wires & EPW_WIRE_VERBS) && options->nic != EPW_NIC_SOFT && options->nic != EPW_NIC_STRICT)
        return epw_fail(EPW_ERR_INVALID, where,
                        "options.wires has EPW_WIRE_VERBS, which carries what a software NIC fetches: "
                        "options.nic is %u, must be EPW_NIC_SOFT or EPW_NIC_STRICT",
                        options->nic);
    if (options->doorbells > EPW_DOORBELLS_HOST)
        return epw_fail(EPW_ERR_INVALID, where,
                        "options.doorbells is %u, must be EPW_DOORBELLS_AUTO, EPW_DOORBELLS_GPU or "
                        "EPW_DOORBELLS_HOST",
                        options->doorbells);
    epw_status status = check_adapters(options, where);
    if (status != EPW_OK) return status;
    uint32_t ring = options->ring_bytes;
    if (ring != 0 && (ring < EPW_RING_BYTES_MIN || ring > EPW_RING_BYTES_MAX || (ring & (ring - 1)) != 0))
        return epw_fail(EPW_ERR_INVALID, where,
                        "options.ring_bytes is %u, must be 0 or a power of two from %u to %u", ring,
                        EPW_RING_BYTES_MIN, EPW_RING_BYTES_MAX);
    uint32_t depth = options->queue_depth;
    if (depth != 0 &&
        (depth < EPW_QUEUE_DEPTH_MIN || depth > EPW_QUEUE_DEPTH_MAX || (depth & (depth - 1)) != 0))
        return epw_fail(EPW_ERR_INVALID, where,
                        "options.queue_depth is %u, must be 0 or a power of two from %u to %u", depth,
                        EPW_QUEUE_DEPTH_MIN, EPW_QUEUE_DEPTH_MAX);
    if (options->doorbell_batch > EPW_QUEUE_DEPTH_MAX)
        return epw_fail(EPW_ERR_INVALID, where, "options.doorbell_batch is %u, must be at most %u",
                        options->doorbell_batch, EPW_QUEUE_DEPTH_MAX);
    if ((options->wires & EPW_WIRE_TCP) && options->key == NULL)
        return epw_fail(EPW_ERR_INVALID, where,
                        "options.key is NULL: connections by TCP need one, the same on all ranks");
    return EPW_OK;
}

static epw_status open_links(epw_fabric *fabric, const epw_fabric_options *options) {
    epw_links_options links = {.rank = options->rank,
                               .fabric = fabric->name,
                               .wires = options->wires & (EPW_WIRE_LOCAL | EPW_WIRE_TCP),
                               .first_port = options->first_port,
                               .last_port = options->last_port,
                               .interfaces = options->interfaces};
    if (options->wires & EPW_WIRE_VERBS) links.wires |= EPW_WIRE_LOCAL | (fabric->tcp ? EPW_WIRE_TCP : 0);
    /* Within the host the name is the secret, and the kernel reports the user of the process. */
    if (options->key != NULL) memcpy(links.key, options->key, sizeof links.key);
    epw_status status = epw_links_open(&links, &fabric->links);
    explicit_bzero(links.key, sizeof links.key);
    return status;
}

/* The GPU to which the adapters should be near, and this rank's turn among equally near ones. */
static epw_status find_gpu(const epw_fabric_options *options, epw_where where, epw_bus_place *place,
                           epw_mlx5_options *out) {
    char bus[EPW_GPU_BUS_BYTES];
    out->turn = options->rank;
    if (options->device == EPW_DEVICE_HOST) return EPW_OK;
    epw_status status = epw_gpu_bus((uint32_t)options->device, where, bus);
    if (status != EPW_OK) return status;
    epw_bus_find_function("", bus, place);
    out->gpu = place;
    out->turn = epw_bus_turn_of_gpu("", bus);
    return EPW_OK;
}

static epw_status open_adapters(epw_fabric *fabric, const epw_fabric_options *options, epw_where where) {
    const epw_mlx5_calls *calls = NULL;
    epw_status status = EPW_OK;
    uint32_t count = options->adapter_count > 0 ? options->adapter_count : 1;
    if (options->nic == EPW_NIC_FAKE) {
        epw_fake_options fake = {.rank = options->rank, .nic = fabric->nic, .devices = FAKE_DEVICES};
        status = epw_fake_open(&fake, where, &fabric->fake);
        if (status == EPW_OK) calls = epw_fake_calls(fabric->fake);
    } else if (options->nic == EPW_NIC_MLX5) {
        status = epw_mlx5_library(where, &calls);
    }
    if (status != EPW_OK || calls == NULL) return status;
    epw_bus_place gpu;
    epw_mlx5_options asked = {.filter = options->adapters,
                              .service_level = options->service_level,
                              .traffic_class = options->traffic_class,
                              .hop_limit = options->hop_limit};
    status = find_gpu(options, where, &gpu, &asked);
    for (uint32_t i = 0; status == EPW_OK && i < count; i++) {
        asked.beside = i > 0 ? fabric->adapters[i - 1] : NULL;
        status = epw_mlx5_open(calls, &asked, where, &fabric->adapters[i]);
        if (status == EPW_OK) fabric->adapter_count++;
    }
    /* With two adapters, lanes of all ranks begin with the one that is first in order, and alternate. If
     * hosts have the same adapters, each lane so stays on one rail. */
    epw_mlx5 *first = fabric->adapters[0], *second = fabric->adapters[1];
    if (status == EPW_OK && second != NULL &&
        epw_adapter_compare(epw_mlx5_device(second).name, epw_mlx5_device(first).name) < 0) {
        fabric->adapters[0] = second;
        fabric->adapters[1] = first;
    }
    return status;
}

static epw_status open_carrier(epw_fabric *fabric, const epw_fabric_options *options, epw_where where) {
    const epw_mlx5_calls *calls = NULL;
    if (!(options->wires & EPW_WIRE_VERBS)) return EPW_OK;
    epw_status status = epw_verbs_library(where, &calls);
    epw_bus_place gpu;
    epw_mlx5_options asked = {.filter = options->adapters,
                              .service_level = options->service_level,
                              .traffic_class = options->traffic_class,
                              .hop_limit = options->hop_limit};
    if (status == EPW_OK) status = find_gpu(options, where, &gpu, &asked);
    if (status == EPW_OK) status = epw_mlx5_open(calls, &asked, where, &fabric->carrier);
    if (status == EPW_OK)
        status = epw_nic_carry_by(fabric->nic, epw_verbs_calls_of_library(), fabric->carrier, where);
    if (status != EPW_OK) return status;
    /* A strict NIC takes no order for granted. */
    fabric->holds_words =
        fabric->strict || options->order == EPW_ORDER_NONE || epw_mlx5_is_unordered(fabric->carrier);
    if (fabric->holds_words) epw_nic_be_unordered(fabric->nic);
    return EPW_OK;
}

/* ---- what peers report of adapters' pairs ---- */

static epw_mlx5 *adapter_of(const epw_fabric *fabric, uint32_t name) {
    uint32_t lane = name >> 24;
    return fabric->adapters[epw_fabric_place(fabric, lane)];
}

static uint32_t number_of(uint32_t name) {
    return name & 0xffffff;
}

static void hear_ended(void *fabric, uint32_t peer, uint32_t pair, uint32_t from) {
    epw_mlx5_peer_ended(adapter_of(fabric, pair), peer, number_of(pair), number_of(from));
}

static bool hear_connected(void *fabric, uint32_t peer, uint32_t pair, uint32_t from) {
    return epw_mlx5_peer_connected(adapter_of(fabric, pair), peer, number_of(pair), number_of(from));
}

static void hear_heard(void *fabric, uint32_t peer, uint32_t pair, uint32_t from) {
    epw_mlx5_peer_heard(adapter_of(fabric, pair), peer, number_of(pair), number_of(from));
}

static void hear_reports(epw_fabric *fabric) {
    epw_nic_owner owner = {
        .ended = hear_ended, .connected = hear_connected, .heard = hear_heard, .context = fabric};
    epw_nic_set_owner(fabric->nic, &owner);
}

/* ---- life ---- */

static epw_status start(epw_fabric *fabric, epw_where where) {
    fabric->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fabric->wake < 0) return epw_fail_errno(errno, where, "eventfd");
    int err = epw_thread_start(drive, fabric, &fabric->thread);
    if (err != 0) return epw_fail_errno(err, where, "cannot start the thread that makes connections");
    fabric->started = true;
    return EPW_OK;
}

static void make_locks(epw_fabric *fabric) {
    pthread_mutex_init(&fabric->lock, NULL);
    epw_condition_init(&fabric->told);
}

static const char *nic_text(uint32_t nic) {
    switch (nic) {
    case EPW_NIC_SOFT:
        return "a software NIC";
    case EPW_NIC_STRICT:
        return "a strict software NIC";
    case EPW_NIC_MLX5:
        return "mlx5 adapters";
    default:
        return "adapters in software";
    }
}

epw_status epw_fabric_create(const epw_fabric_options *options, epw_fabric **out) {
    epw_status status = check(options, out);
    if (status != EPW_OK) return status;
    epw_where where = {"fabric", (int)options->rank, -1};
    epw_fabric *fabric = calloc(1, sizeof *fabric);
    if (fabric == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a fabric");
    fabric->rank = options->rank;
    fabric->wires = options->wires;
    fabric->ring_bytes = options->ring_bytes > 0 ? options->ring_bytes : EPW_RING_BYTES;
    fabric->doorbells = options->doorbells;
    fabric->rings = options->rings;
    fabric->queue_depth = options->queue_depth;
    fabric->doorbell_batch = options->doorbell_batch > 0 ? options->doorbell_batch : EPW_QUEUE_DEPTH_MAX;
    fabric->strict = options->nic == EPW_NIC_STRICT;
    fabric->tcp = options->key != NULL && (options->wires & (EPW_WIRE_TCP | EPW_WIRE_VERBS));
    fabric->wake = -1;
    make_locks(fabric);
    status = epw_log_open(where);
    if (status == EPW_OK) status = epw_process_ready(where);
    fabric->generation = epw_process_generation();
    if (status == EPW_OK) status = epw_identity_get(where, &fabric->self);
    if (status == EPW_OK) status = epw_nonce_make(where, &fabric->name);
    if (status == EPW_OK) status = epw_nic_open(where, &fabric->nic);
    if (status == EPW_OK && options->nic == EPW_NIC_STRICT)
        status = epw_nic_be_strict(fabric->nic, 1 + options->rank, STRICT_DELAY_US, where);
    if (status == EPW_OK) status = open_adapters(fabric, options, where);
    if (status == EPW_OK) status = open_carrier(fabric, options, where);
    if (status == EPW_OK && fabric->adapter_count > 0) hear_reports(fabric);
    if (status == EPW_OK) status = open_links(fabric, options);
    if (status == EPW_OK) status = start(fabric, where);
    if (status != EPW_OK) {
        epw_fabric_destroy(fabric);
        return status;
    }
    epw_log(EPW_LOG_NIC, EPW_LOG_INFO, (epw_where){"fabric", (int)options->rank, -1},
            "queues drained by %s%s%s%s%s", nic_text(options->nic),
            options->wires & EPW_WIRE_LOCAL ? ", a local socket" : "", fabric->tcp ? ", TCP" : "",
            options->wires & EPW_WIRE_VERBS ? ", verbs" : "",
            fabric->holds_words ? ", words held back until rows are done" : "");
    *out = fabric;
    return EPW_OK;
}

void epw_fabric_destroy(epw_fabric *fabric) {
    if (fabric == NULL || epw_fabric_inherited(fabric)) return;
    if (atomic_load_explicit(&fabric->holders, memory_order_acquire) > 0) return;
    if (fabric->started) {
        uint64_t one = 1;
        pthread_mutex_lock(&fabric->lock);
        fabric->ending = true;
        pthread_mutex_unlock(&fabric->lock);
        while (write(fabric->wake, &one, sizeof one) < 0 && errno == EINTR) {
        }
        pthread_join(fabric->thread, NULL);
    }
    epw_links_close(fabric->links);
    if (fabric->wake >= 0) close(fabric->wake);
    if (fabric->adapter_count > 0) epw_nic_set_owner(fabric->nic, &(epw_nic_owner){0});
    for (uint32_t i = 0; i < fabric->adapter_count; i++) epw_mlx5_close(fabric->adapters[i]);
    epw_fake_close(fabric->fake);
    epw_nic_close(fabric->nic);
    epw_mlx5_close(fabric->carrier);
    pthread_cond_destroy(&fabric->told);
    pthread_mutex_destroy(&fabric->lock);
    free(fabric);
}
