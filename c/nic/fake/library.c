/* See fake.h: the calls of libibverbs and libmlx5, answered by the fake adapter. */
#include "nic/fake/parts.h"
#include "nic/mlx5/commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static const char prefix[] = "fake_";

/* 0, or the errno with which this call is to fail. */
static int failing(epw_fake *fake, epw_fake_call call) {
    if (!epw_fake_fails(fake, call)) return 0;
    return fake->options.failing_errno != 0 ? fake->options.failing_errno : EREMOTEIO;
}

/* ---- the device ---- */

static int list(void *library, epw_mlx5_name names[EPW_MLX5_DEVICES_MAX], uint32_t *count) {
    epw_fake *fake = library;
    int err = failing(fake, EPW_FAKE_CALL_DEVICES);
    *count = err != 0 || epw_fake_lacks(fake, EPW_FAKE_NO_DEVICE) ? 0 : fake->options.devices;
    for (uint32_t i = 0; i < *count; i++) {
        snprintf(names[i].text, sizeof names[i].text, "%s%u", prefix, i);
        names[i].place = fake->options.places[i];
    }
    return err;
}

static int open_device(void *library, const char *name, void **device) {
    epw_fake *fake = library;
    int err = failing(fake, EPW_FAKE_CALL_OPEN);
    size_t length = strlen(prefix);
    uint32_t number = strncmp(name, prefix, length) == 0 ? (uint32_t)(name[length] - '0') : UINT32_MAX;
    if (err == 0 && (number >= fake->options.devices || name[length + 1] != '\0')) err = ENODEV;
    if (err == 0 && epw_fake_lacks(fake, EPW_FAKE_NO_DEVX)) err = EOPNOTSUPP;
    if (err == 0 && (*device = epw_fake_add(fake, EPW_FAKE_DEVICE, number, 0)) == NULL) err = ENOMEM;
    return err;
}

static epw_fake *fake_of(void *item) {
    return ((epw_fake_item *)item)->fake;
}

static uint32_t number_of(void *item) {
    return ((epw_fake_item *)item)->device;
}

static int port(void *device, uint32_t number, epw_mlx5_port *out) {
    epw_fake *fake = fake_of(device);
    int err = failing(fake, EPW_FAKE_CALL_PORT);
    if (err != 0) return err;
    if (number != EPW_FAKE_PORT) return EINVAL;
    *out = (epw_mlx5_port){.active = !epw_fake_lacks(fake, EPW_FAKE_NO_PORT),
                           .ethernet = !fake->options.infiniband,
                           .mtu = epw_fake_mtu(fake),
                           .lid = epw_fake_lid(fake, number_of(device)),
                           .gids = epw_fake_gids(fake)};
    return 0;
}

static int gid(void *device, uint32_t number, uint32_t index, epw_mlx5_gid *out) {
    int err = failing(fake_of(device), EPW_FAKE_CALL_GID);
    if (err == 0 && number != EPW_FAKE_PORT) err = EINVAL;
    return err != 0 ? err : epw_fake_gid(fake_of(device), number_of(device), index, out);
}

static int general(void *device, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    return epw_fake_command(device, EPW_FAKE_CALL_GENERAL, in, in_bytes, out, out_bytes, NULL);
}

static int event_queue(void *device, uint32_t *number) {
    *number = EPW_FAKE_EQ;
    return failing(fake_of(device), EPW_FAKE_CALL_EQ);
}

static int domain(void *device, void **pd, uint32_t *number) {
    int err = failing(fake_of(device), EPW_FAKE_CALL_DOMAIN);
    if (err != 0) return err;
    epw_fake_item *item = epw_fake_add(fake_of(device), EPW_FAKE_DOMAIN, number_of(device), 0);
    if (item == NULL) return ENOMEM;
    epw_fake_use(item, device);
    *pd = item;
    *number = item->id;
    return 0;
}

static int free_domain(void *pd) {
    int err = failing(fake_of(pd), EPW_FAKE_CALL_FREE_DOMAIN);
    return err != 0 ? err : epw_fake_drop(pd);
}

static int close_device(void *device) {
    int err = failing(fake_of(device), EPW_FAKE_CALL_CLOSE);
    return err != 0 ? err : epw_fake_drop(device);
}

static void on_event(void *device, void (*event)(void *, const epw_mlx5_event *), void *context) {
    epw_fake *fake = fake_of(device);
    pthread_mutex_lock(&fake->event_lock);
    fake->listeners[number_of(device)].event = event;
    fake->listeners[number_of(device)].context = context;
    pthread_mutex_unlock(&fake->event_lock);
}

void epw_fake_raise(epw_fake *fake, uint32_t device, const epw_mlx5_event *event) {
    pthread_mutex_lock(&fake->event_lock);
    if (fake->listeners[device].event != NULL)
        fake->listeners[device].event(fake->listeners[device].context, event);
    pthread_mutex_unlock(&fake->event_lock);
}

/* ---- registers and memory ---- */

static bool has_uar(const epw_fake *fake, epw_mlx5_uar_kind kind) {
    if (epw_fake_lacks(fake, EPW_FAKE_NO_UAR)) return false;
    if (epw_fake_lacks(fake, EPW_FAKE_BF_UAR_ALONE)) return kind == EPW_MLX5_UAR_BF;
    return kind != EPW_MLX5_UAR_OWN || !epw_fake_lacks(fake, EPW_FAKE_NO_OWN_UAR);
}

/* Offsets of registers in their page. */
enum { FIRST_REGISTER = 0x800, SECOND_REGISTER = 0xa00 };

static unsigned char *page_of(unsigned char *reg) {
    return reg - (uintptr_t)reg % EPW_FAKE_PAGE;
}

/* The place beside this register in its page. */
static unsigned char *beside(unsigned char *reg) {
    bool first = (uintptr_t)reg % EPW_FAKE_PAGE == FIRST_REGISTER;
    return page_of(reg) + (first ? SECOND_REGISTER : FIRST_REGISTER);
}

/* A place for a register, in a page that has one already if they share pages; NULL: no memory. */
static unsigned char *take_place(epw_fake *fake, uint32_t device) {
    const bool shares = epw_fake_lacks(fake, EPW_FAKE_NO_OWN_PAGE);
    pthread_mutex_lock(&fake->lock);
    epw_fake_item *item = shares ? fake->items : NULL;
    for (; item != NULL; item = item->next) {
        if (item->kind != EPW_FAKE_UAR || item->device != device) continue;
        const epw_fake_item *other = fake->items;
        while (other != NULL && other->address != beside(item->address)) other = other->next;
        if (other == NULL) break;
    }
    pthread_mutex_unlock(&fake->lock);
    if (item != NULL) return beside(item->address);
    unsigned char *page = aligned_alloc(EPW_FAKE_PAGE, EPW_FAKE_PAGE);
    return page != NULL ? page + FIRST_REGISTER : NULL;
}

/* The kinds differ only in hardware. Unlike there, registers of one page have different numbers: the number
 * tells the soft NIC where a queue pair's doorbell is. */
static int uar(void *device, epw_mlx5_uar_kind kind, epw_mlx5_uar *out) {
    epw_fake *fake = fake_of(device);
    int err = failing(fake, EPW_FAKE_CALL_UAR);
    if (err != 0) return err;
    if (!has_uar(fake, kind)) return EOPNOTSUPP;
    pthread_mutex_lock(&fake->uar_lock);
    unsigned char *place = take_place(fake, number_of(device));
    epw_fake_item *item = place != NULL ? epw_fake_add(fake, EPW_FAKE_UAR, number_of(device), 0) : NULL;
    if (item != NULL) {
        item->address = memset(place, 0, SECOND_REGISTER - FIRST_REGISTER);
    } else if (place != NULL && epw_fake_find_uar(fake, beside(place)) == NULL) {
        free(page_of(place));
    }
    pthread_mutex_unlock(&fake->uar_lock);
    if (item == NULL) return ENOMEM;
    epw_fake_use(item, device);
    *out = (epw_mlx5_uar){.handle = item, .reg = item->address, .page = item->id};
    return 0;
}

static void free_uar(void *handle) {
    epw_fake_item *item = handle;
    epw_fake *fake = item->fake;
    unsigned char *place = item->address;
    if (failing(fake, EPW_FAKE_CALL_FREE_UAR) != 0) return;
    pthread_mutex_lock(&fake->uar_lock);
    if (epw_fake_drop(item) == 0 && epw_fake_find_uar(fake, beside(place)) == NULL) free(page_of(place));
    pthread_mutex_unlock(&fake->uar_lock);
}

/* Whether this process can read the byte, according to the kernel. */
static bool is_there(void *address) {
    char byte;
    struct iovec here = {&byte, 1}, there = {address, 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

/* Maps memory by its descriptor, which may be any that can be mapped, not only one of GPU memory. An old
 * kernel would take the offset for an address, and fails. */
static int map_descriptor(const epw_fake *fake, int dmabuf, uint64_t offset, size_t bytes, void **out) {
    if (epw_fake_lacks(fake, EPW_FAKE_NO_DMABUF)) return EFAULT;
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf, (off_t)offset);
    return *out != MAP_FAILED ? 0 : errno;
}

static int umem(void *device, void *address, size_t bytes, int dmabuf, epw_mlx5_umem *out) {
    epw_fake *fake = fake_of(device);
    unsigned char *last = (unsigned char *)address + bytes - 1;
    int err = failing(fake, EPW_FAKE_CALL_UMEM);
    if (err == 0 && ((uintptr_t)address % EPW_FAKE_PAGE != 0 || bytes == 0)) err = EINVAL;
    if (err == 0 && dmabuf >= 0) err = map_descriptor(fake, dmabuf, (uintptr_t)address, bytes, &address);
    if (err == 0 && dmabuf < 0 && !(is_there(address) && is_there(last))) err = EFAULT;
    if (err != 0) return err;
    epw_fake_item *item = epw_fake_add(fake, EPW_FAKE_UMEM, number_of(device), 0);
    if (item == NULL) {
        if (dmabuf >= 0) munmap(address, bytes);
        return ENOMEM;
    }
    epw_fake_use(item, device);
    item->address = address;
    item->bytes = bytes;
    item->mapped = dmabuf >= 0;
    *out = (epw_mlx5_umem){.handle = item, .id = item->id};
    return 0;
}

static int free_umem(void *handle) {
    epw_fake_item *item = handle;
    unsigned char *mapped = item->mapped ? item->address : NULL;
    size_t bytes = item->bytes;
    int err = failing(item->fake, EPW_FAKE_CALL_FREE_UMEM);
    if (err == 0) err = epw_fake_drop(item);
    if (err == 0 && mapped != NULL) munmap(mapped, bytes);
    return err;
}

static uint32_t rights_of(uint32_t rights) {
    uint32_t soft = 0;
    if (rights & EPW_MLX5_REMOTE_WRITE) soft |= EPW_REGION_WRITE;
    if (rights & EPW_MLX5_REMOTE_ATOMIC) soft |= EPW_REGION_ATOMIC;
    return soft | (soft == 0 || (rights & EPW_MLX5_REMOTE_READ) ? EPW_REGION_READ : 0);
}

/* `mapped`: unmap the memory when the region is deregistered. */
static int add_region(void *pd, void *address, size_t bytes, uint64_t first, uint32_t rights, bool mapped,
                      epw_mlx5_region *out) {
    epw_fake *fake = fake_of(pd);
    int err = failing(fake, EPW_FAKE_CALL_REGISTER);
    uint32_t remote = EPW_MLX5_REMOTE_WRITE | EPW_MLX5_REMOTE_ATOMIC;
    /* As the kernel refuses it: pages of a region are pages of memory. */
    if (err == 0 && (bytes == 0 || (uintptr_t)address % EPW_FAKE_PAGE != first % EPW_FAKE_PAGE)) err = EINVAL;
    if (err == 0 && (rights & remote) && !(rights & EPW_MLX5_LOCAL_WRITE)) err = EINVAL;
    /* Hardware accepts it, but a signal word might then become visible before the rows that it announces. */
    if (err == 0 && (rights & remote) && (rights & EPW_MLX5_RELAXED_ORDERING)) err = EINVAL;
    if (err == 0 && !is_there(address)) err = EFAULT;
    if (err != 0) return err;
    epw_region region = {.base = (unsigned char *)((uintptr_t)address - first),
                         .rights = rights_of(rights),
                         .domain = ((epw_fake_item *)pd)->id,
                         .count = 1,
                         .stretches = {{first, bytes}}};
    uint32_t key = fake->options.nic != NULL ? epw_nic_register(fake->options.nic, &region) : 1;
    if (key == 0) return ENOMEM;
    epw_fake_item *item = epw_fake_add(fake, EPW_FAKE_REGION, number_of(pd), key);
    if (item == NULL) {
        if (fake->options.nic != NULL) epw_nic_deregister(fake->options.nic, key);
        return ENOMEM;
    }
    epw_fake_use(item, pd);
    item->address = address;
    item->bytes = bytes;
    item->mapped = mapped;
    *out = (epw_mlx5_region){.handle = item, .lkey = key, .rkey = key};
    return 0;
}

static int register_memory(void *pd, void *address, size_t bytes, uint64_t first, uint32_t rights,
                           epw_mlx5_region *out) {
    return add_region(pd, address, bytes, first, rights, false, out);
}

static int register_descriptor(void *pd, int dmabuf, uint64_t at, size_t bytes, uint64_t first,
                               uint32_t rights, epw_mlx5_region *out) {
    void *mapped;
    uint64_t within = at % EPW_FAKE_PAGE;
    if (first % EPW_FAKE_PAGE != within) return EINVAL; /* as the kernel says */
    int err = map_descriptor(fake_of(pd), dmabuf, at - within, bytes + within, &mapped);
    if (err != 0) return err;
    err = add_region(pd, (unsigned char *)mapped + within, bytes, first, rights, true, out);
    if (err != 0) munmap(mapped, bytes + within);
    return err;
}

static int deregister(void *handle) {
    epw_fake_item *item = handle;
    uint64_t within = (uintptr_t)item->address % EPW_FAKE_PAGE;
    unsigned char *mapped = item->mapped ? item->address - within : NULL;
    size_t bytes = item->bytes + within;
    int err = failing(item->fake, EPW_FAKE_CALL_DEREGISTER);
    if (err != 0) return err;
    if (item->fake->options.nic != NULL) epw_nic_deregister(item->fake->options.nic, item->id);
    err = epw_fake_drop(item);
    if (err == 0 && mapped != NULL) munmap(mapped, bytes);
    return err;
}

static int resolve(void *pd, uint32_t number, uint32_t index, const unsigned char to[16],
                   unsigned char mac[6]) {
    epw_fake *fake = fake_of(pd);
    epw_mlx5_gid own;
    int err = failing(fake, EPW_FAKE_CALL_RESOLVE);
    if (err == 0 && number != EPW_FAKE_PORT) err = EINVAL;
    if (err == 0 && epw_fake_lacks(fake, EPW_FAKE_NO_NEIGHBOUR)) err = ETIMEDOUT;
    if (err == 0 && epw_fake_gid(fake, number_of(pd), index, &own) != 0) err = EINVAL;
    if (err == 0) epw_fake_mac(to, mac);
    return err;
}

/* ---- objects ---- */

static int create(void *device, const void *in, size_t in_bytes, void *out, size_t out_bytes, void **object) {
    epw_fake_item *made = NULL;
    int err = epw_fake_command(device, EPW_FAKE_CALL_CREATE, in, in_bytes, out, out_bytes, &made);
    if (err == 0) *object = made;
    return err;
}

static int modify(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    return epw_fake_command(object, EPW_FAKE_CALL_MODIFY, in, in_bytes, out, out_bytes, NULL);
}

static int query(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    return epw_fake_command(object, EPW_FAKE_CALL_QUERY, in, in_bytes, out, out_bytes, NULL);
}

static int destroy(void *object) {
    epw_fake_item *item = object;
    int err = failing(item->fake, EPW_FAKE_CALL_DESTROY);
    if (err != 0) return err;
    if (item->users > 0) return EBUSY;
    epw_pair_destroy(item->pair); /* after this the soft NIC reads and writes nothing for the pair */
    return epw_fake_drop(item);
}

static bool hears(const epw_fake_item *qp) {
    return qp->pair != NULL && !epw_fake_lacks(qp->fake, EPW_FAKE_NO_DOORBELLS);
}

static void rung(void *object) {
    const epw_fake_item *qp = object;
    if (!hears(qp)) return;
    if (qp->astray) {
        epw_pair_connect(qp->pair, 0, qp->reached.remote);
    } else {
        epw_pair_ring(qp->pair);
    }
}

static void notice(void *object) {
    const epw_fake_item *qp = object;
    if (hears(qp)) epw_pair_poll(qp->pair);
}

void epw_fake_add_route(epw_fake *fake, uint32_t number, const epw_fake_route *route) {
    epw_fake_item *qp = epw_fake_find(fake, EPW_FAKE_QP, number);
    if (qp == NULL) return;
    qp->route = *route;
    if (qp->state == EPW_MLX5_STATE_RTS) epw_fake_reach(qp);
}

void epw_fake_move(epw_fake *fake) {
    atomic_store_explicit(&fake->moved, true, memory_order_relaxed);
}

/* ---- life ---- */

void epw_fake_set_tap(epw_fake *fake, const epw_fake_tap *tap) {
    pthread_mutex_lock(&fake->lock);
    fake->tap = tap != NULL ? *tap : (epw_fake_tap){0};
    pthread_mutex_unlock(&fake->lock);
}

const epw_mlx5_calls *epw_fake_calls(const epw_fake *fake) {
    return &fake->calls;
}

epw_status epw_fake_open(const epw_fake_options *options, epw_where where, epw_fake **out) {
    epw_fake *fake = calloc(1, sizeof *fake);
    if (fake == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a fake adapter");
    fake->options = *options;
    if (options->devices == 0) fake->options.devices = 1;
    fake->calls = (epw_mlx5_calls){.library = fake,
                                   .kind = "mlx5 adapter",
                                   .devices = list,
                                   .open = open_device,
                                   .close = close_device,
                                   .port = port,
                                   .gid = gid,
                                   .general = general,
                                   .event_queue = event_queue,
                                   .domain = domain,
                                   .free_domain = free_domain,
                                   .on_event = on_event,
                                   .uar = uar,
                                   .free_uar = free_uar,
                                   .umem = umem,
                                   .free_umem = free_umem,
                                   .create = create,
                                   .modify = modify,
                                   .query = query,
                                   .destroy = destroy,
                                   .register_memory = register_memory,
                                   .register_descriptor = register_descriptor,
                                   .deregister = deregister,
                                   .resolve = resolve,
                                   .rung = rung,
                                   .notice = notice,
                                   .registers_in_memory = true};
    pthread_mutex_init(&fake->lock, NULL);
    pthread_mutex_init(&fake->uar_lock, NULL);
    pthread_mutex_init(&fake->event_lock, NULL);
    *out = fake;
    return EPW_OK;
}

static void free_item(epw_fake_item *item) {
    switch (item->kind) {
    case EPW_FAKE_UAR:
        free_uar(item);
        break;
    case EPW_FAKE_UMEM:
        free_umem(item);
        break;
    case EPW_FAKE_REGION:
        deregister(item);
        break;
    case EPW_FAKE_CQ:
    case EPW_FAKE_QP:
        destroy(item);
        break;
    default:
        epw_fake_drop(item);
    }
}

void epw_fake_close(epw_fake *fake) {
    if (fake == NULL) return;
    epw_fake_fail(fake, EPW_FAKE_CALL_NONE, 0, 0, false);
    while (fake->items != NULL) {
        epw_fake_item *item = fake->items;
        while (item->users > 0) item = item->next; /* some item is used by none */
        free_item(item);
    }
    pthread_mutex_destroy(&fake->event_lock);
    pthread_mutex_destroy(&fake->uar_lock);
    pthread_mutex_destroy(&fake->lock);
    free(fake);
}
