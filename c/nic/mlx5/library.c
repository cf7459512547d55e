/* See library.h. */
#include "nic/mlx5/library.h"

#include "base/thread.h"
#include "nic/verbs/abi.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- functions ---- */

static struct {
    void **(*get_device_list)(int *count);
    void (*free_device_list)(void **list);
    const char *(*get_device_name)(void *device);
    void *(*open_plainly)(void *device);
    int (*close_device)(void *context);
    int (*query_port)(void *context, uint8_t port, epw_abi_port *out);
    int (*query_gid)(void *context, uint32_t port, uint32_t index, epw_abi_gid *out, uint32_t flags,
                     size_t size);
    void *(*alloc_pd)(void *context);
    int (*dealloc_pd)(void *pd);
    epw_abi_mr *(*reg_mr)(void *pd, void *address, size_t bytes, uint64_t iova, unsigned access);
    epw_abi_mr *(*reg_dmabuf_mr)(void *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                                 int access); /* may be NULL */
    int (*dereg_mr)(epw_abi_mr *mr);
    void *(*create_ah)(void *pd, epw_abi_ah_attr *attr);
    int (*destroy_ah)(void *ah);
    int (*get_event)(void *context, epw_abi_event *out);
    void (*ack_event)(epw_abi_event *event);

    bool (*is_supported)(void *device);
    void *(*open_device)(void *device, epw_abi_context_attr *attr);
    int (*init_obj)(epw_abi_objects *objects, uint64_t kinds);
    int (*general_cmd)(void *context, const void *in, size_t in_bytes, void *out, size_t out_bytes);
    int (*query_eqn)(void *context, uint32_t vector, uint32_t *eqn);
    epw_abi_uar *(*alloc_uar)(void *context, uint32_t flags);
    void (*free_uar)(epw_abi_uar *uar);
    epw_abi_umem *(*umem_reg)(void *context, void *address, size_t bytes, uint32_t access);
    epw_abi_umem *(*umem_reg_ex)(void *context, epw_abi_umem_in *in); /* may be NULL */
    int (*umem_dereg)(epw_abi_umem *umem);
    void *(*obj_create)(void *context, const void *in, size_t in_bytes, void *out, size_t out_bytes);
    int (*obj_modify)(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes);
    int (*obj_query)(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes);
    int (*obj_destroy)(void *object);
} f;

typedef enum library { VERBS, MLX5, LIBRARIES } library;

static const char *const names[LIBRARIES] = {"libibverbs.so.1", "libmlx5.so.1"};

/* The version of each function is the one whose signature the type above has. */
static const struct {
    library from;
    bool optional;
    const char *name, *version;
    void *place;
} functions[] = {
    {VERBS, false, "ibv_get_device_list", "IBVERBS_1.1", &f.get_device_list},
    {VERBS, false, "ibv_free_device_list", "IBVERBS_1.1", &f.free_device_list},
    {VERBS, false, "ibv_get_device_name", "IBVERBS_1.1", &f.get_device_name},
    {VERBS, false, "ibv_open_device", "IBVERBS_1.1", &f.open_plainly},
    {VERBS, false, "ibv_close_device", "IBVERBS_1.1", &f.close_device},
    {VERBS, false, "ibv_query_port", "IBVERBS_1.1", &f.query_port},
    {VERBS, false, "_ibv_query_gid_ex", "IBVERBS_1.11", &f.query_gid},
    {VERBS, false, "ibv_alloc_pd", "IBVERBS_1.1", &f.alloc_pd},
    {VERBS, false, "ibv_dealloc_pd", "IBVERBS_1.1", &f.dealloc_pd},
    {VERBS, false, "ibv_reg_mr_iova2", "IBVERBS_1.8", &f.reg_mr},
    {VERBS, true, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", &f.reg_dmabuf_mr},
    {VERBS, false, "ibv_dereg_mr", "IBVERBS_1.1", &f.dereg_mr},
    {VERBS, false, "ibv_create_ah", "IBVERBS_1.1", &f.create_ah},
    {VERBS, false, "ibv_destroy_ah", "IBVERBS_1.1", &f.destroy_ah},
    {VERBS, false, "ibv_get_async_event", "IBVERBS_1.1", &f.get_event},
    {VERBS, false, "ibv_ack_async_event", "IBVERBS_1.1", &f.ack_event},
    {MLX5, false, "mlx5dv_is_supported", "MLX5_1.8", &f.is_supported},
    {MLX5, false, "mlx5dv_open_device", "MLX5_1.7", &f.open_device},
    {MLX5, false, "mlx5dv_init_obj", "MLX5_1.2", &f.init_obj},
    {MLX5, false, "mlx5dv_devx_general_cmd", "MLX5_1.7", &f.general_cmd},
    {MLX5, false, "mlx5dv_devx_query_eqn", "MLX5_1.7", &f.query_eqn},
    {MLX5, false, "mlx5dv_devx_alloc_uar", "MLX5_1.7", &f.alloc_uar},
    {MLX5, false, "mlx5dv_devx_free_uar", "MLX5_1.7", &f.free_uar},
    {MLX5, false, "mlx5dv_devx_umem_reg", "MLX5_1.7", &f.umem_reg},
    {MLX5, true, "mlx5dv_devx_umem_reg_ex", "MLX5_1.19", &f.umem_reg_ex},
    {MLX5, false, "mlx5dv_devx_umem_dereg", "MLX5_1.7", &f.umem_dereg},
    {MLX5, false, "mlx5dv_devx_obj_create", "MLX5_1.7", &f.obj_create},
    {MLX5, false, "mlx5dv_devx_obj_modify", "MLX5_1.7", &f.obj_modify},
    {MLX5, false, "mlx5dv_devx_obj_query", "MLX5_1.7", &f.obj_query},
    {MLX5, false, "mlx5dv_devx_obj_destroy", "MLX5_1.7", &f.obj_destroy},
};

static void *handles[LIBRARIES]; /* NULL: not loaded */

/* The first function that a library lacks. */
static struct { const char *function, *version; } missing[LIBRARIES];

static void *find(void *library, const char *name, const char *version) {
#ifdef __GLIBC__
    return dlvsym(library, name, version);
#else
    (void)version; /* this system has no versions of symbols */
    return dlsym(library, name);
#endif
}

static void load(void) {
    for (int i = 0; i < LIBRARIES; i++) handles[i] = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        library from = functions[i].from;
        void *function =
            handles[from] != NULL ? find(handles[from], functions[i].name, functions[i].version) : NULL;
        memcpy(functions[i].place, &function, sizeof function);
        if (function != NULL || functions[i].optional || missing[from].function != NULL) continue;
        missing[from].function = functions[i].name;
        missing[from].version = functions[i].version;
    }
}

static epw_status open_library(library which, epw_where where) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (handles[which] == NULL)
        return epw_fail(EPW_ERR_NO_PATH, where,
                        "there is no %s: install rdma-core (libibverbs1, ibverbs-providers)", names[which]);
    if (missing[which].function != NULL)
        return epw_fail(EPW_ERR_NO_PATH, where, "%s has no %s of version %s: install rdma-core 44 or newer",
                        names[which], missing[which].function, missing[which].version);
    return EPW_OK;
}

/* ---- a device ---- */

typedef struct device {
    epw_abi_context *context;
    bool plain;       /* an adapter of any vendor, opened without DevX */
    pthread_t thread; /* listens to the device's events */
    bool listens;
    int wake;
    pthread_mutex_t lock; /* guards the callback */
    void (*event)(void *context, const epw_mlx5_event *event);
    void *event_context;
} device;

/* The library sets errno on most failures, but not on all. */
static int why(void) {
    return errno != 0 ? errno : EIO;
}

/* The first argument of the calls for adapters of any vendor. */
static char any_make;

static int list_devices(void *library, epw_mlx5_name out[EPW_MLX5_DEVICES_MAX], uint32_t *count) {
    *count = 0;
    errno = 0;
    void **list = f.get_device_list(NULL);
    if (list == NULL) return why() == ENOSYS ? 0 : why(); /* ENOSYS: no driver is loaded */
    for (void **at = list; *at != NULL && *count < EPW_MLX5_DEVICES_MAX; at++) {
        if (library != &any_make && !f.is_supported(*at)) continue;
        const char *name = f.get_device_name(*at);
        size_t length = strnlen(name, EPW_MLX5_NAME_BYTES - 1);
        memcpy(out[*count].text, name, length);
        out[*count].text[length] = 0;
        epw_bus_find_adapter("", out[*count].text, &out[*count].place);
        out[*count].unordered = ((const epw_abi_device *)*at)->transport != EPW_ABI_TRANSPORT_IB;
        (*count)++;
    }
    f.free_device_list(list);
    return 0;
}

static void hand_on(device *d, const epw_abi_event *event) {
    epw_mlx5_event said = {.number = (uint32_t)event->element.port};
    switch (event->type) {
    case EPW_ABI_QP_FATAL:
    case EPW_ABI_QP_REQUEST_ERR:
    case EPW_ABI_QP_ACCESS_ERR:
        said = (epw_mlx5_event){EPW_MLX5_EVENT_PAIR, ((const epw_abi_qp *)event->element.object)->number};
        break;
    case EPW_ABI_DEVICE_FATAL:
        said = (epw_mlx5_event){EPW_MLX5_EVENT_FATAL, 0};
        break;
    case EPW_ABI_PORT_ERR:
        said.kind = EPW_MLX5_EVENT_PORT_DOWN;
        break;
    case EPW_ABI_LID_CHANGE:
    case EPW_ABI_GID_CHANGE:
        said.kind = EPW_MLX5_EVENT_GIDS;
        break;
    default:
        return;
    }
    pthread_mutex_lock(&d->lock);
    if (d->event != NULL) d->event(d->event_context, &said);
    pthread_mutex_unlock(&d->lock);
}

/* False: there will be no more events, because the device has been removed. */
static bool take_event(device *d) {
    epw_abi_event event;
    errno = 0;
    if (f.get_event(d->context, &event) == 0) {
        hand_on(d, &event);
        f.ack_event(&event);
        return true;
    }
    if (errno == EAGAIN || errno == EINTR) return true;
    hand_on(d, &(epw_abi_event){.type = EPW_ABI_DEVICE_FATAL});
    return false;
}

static void *listen_main(void *argument) {
    epw_thread_name("epw-events");
    device *d = argument;
    int events = d->context->async_fd;
    for (;;) {
        struct pollfd polls[2] = {{.fd = events, .events = POLLIN}, {.fd = d->wake, .events = POLLIN}};
        if (poll(polls, 2, -1) < 0 && errno != EINTR) return NULL;
        if (polls[1].revents != 0) return NULL;
        if (polls[0].revents != 0 && !take_event(d)) events = -1; /* poll ignores it */
    }
}

static int close_device(void *opened) {
    device *d = opened;
    if (d->listens) {
        while (write(d->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0 && errno == EINTR) {
        }
        pthread_join(d->thread, NULL);
    }
    if (d->wake >= 0) close(d->wake);
    int err = d->context != NULL ? f.close_device(d->context) : 0;
    pthread_mutex_destroy(&d->lock);
    free(d);
    return err;
}

static int start_listening(device *d) {
    int flags = fcntl(d->context->async_fd, F_GETFL);
    if (flags < 0 || fcntl(d->context->async_fd, F_SETFL, flags | O_NONBLOCK) != 0) return errno;
    d->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->wake < 0) return errno;
    int err = epw_thread_start(listen_main, d, &d->thread);
    d->listens = err == 0;
    return err;
}

/* Demands DevX unless `plain`: if it were not demanded, the library would fall back to a context without
 * it. */
static epw_abi_context *open_context(const char *name, bool plain) {
    epw_abi_context_attr attr = {.flags = EPW_ABI_CONTEXT_DEVX};
    epw_abi_context *context = NULL;
    void **list = f.get_device_list(NULL);
    errno = ENODEV;
    for (void **at = list; list != NULL && *at != NULL; at++) {
        if (strcmp(f.get_device_name(*at), name) != 0) continue;
        errno = 0;
        context = plain ? f.open_plainly(*at) : f.open_device(*at, &attr);
        break;
    }
    int err = errno;
    if (list != NULL) f.free_device_list(list);
    errno = err;
    return context;
}

static int open_device(void *library, const char *name, void **out) {
    device *d = calloc(1, sizeof *d);
    if (d == NULL) return ENOMEM;
    d->wake = -1;
    pthread_mutex_init(&d->lock, NULL);
    d->plain = library == &any_make;
    d->context = open_context(name, d->plain);
    int err = d->context != NULL ? start_listening(d) : why();
    if (err != 0) {
        close_device(d);
        return err;
    }
    *out = d;
    return 0;
}

static void on_event(void *opened, void (*event)(void *, const epw_mlx5_event *), void *context) {
    device *d = opened;
    pthread_mutex_lock(&d->lock);
    d->event = event;
    d->event_context = context;
    pthread_mutex_unlock(&d->lock);
}

static int query_port(void *opened, uint32_t number, epw_mlx5_port *out) {
    epw_abi_port port = {.state = 0};
    int err = f.query_port(((device *)opened)->context, (uint8_t)number, &port);
    if (err != 0) return err > 0 ? err : EINVAL;
    *out = (epw_mlx5_port){.active = port.state == EPW_ABI_PORT_ACTIVE,
                           .ethernet = port.link_layer == EPW_ABI_ETHERNET,
                           .mtu = (uint32_t)port.active_mtu,
                           .lid = port.lid,
                           .gids = port.gid_tbl_len > 0 ? (uint32_t)port.gid_tbl_len : 0};
    return 0;
}

static int query_gid(void *opened, uint32_t port, uint32_t index, epw_mlx5_gid *out) {
    epw_abi_gid gid;
    int err = f.query_gid(((device *)opened)->context, port, index, &gid, 0, sizeof gid);
    if (err != 0) return err > 0 ? err : EINVAL;
    memcpy(out->bytes, gid.bytes, sizeof out->bytes);
    out->type = (epw_mlx5_gid_type)gid.type; /* the numbers are equal */
    return 0;
}

static int general(void *opened, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    return f.general_cmd(((device *)opened)->context, in, in_bytes, out, out_bytes);
}

static int event_queue(void *opened, uint32_t *number) {
    return f.query_eqn(((device *)opened)->context, 0, number);
}

/* The protection domain of a device, and its number. Regions of it do not need the context. */
static int domain(void *opened, void **pd, uint32_t *number) {
    epw_abi_pd said = {0};
    errno = 0;
    void *made = f.alloc_pd(((device *)opened)->context);
    if (made == NULL) return why();
    bool plain = ((device *)opened)->plain;
    int err = plain ? 0 : f.init_obj(&(epw_abi_objects){.pd = {made, &said}}, EPW_ABI_OBJECT_PD);
    if (err != 0) {
        f.dealloc_pd(made);
        return err;
    }
    *pd = made;
    *number = said.number;
    return 0;
}

static int free_domain(void *pd) {
    return f.dealloc_pd(pd);
}

/* ---- registers and memory ---- */

static int take_uar(void *opened, epw_mlx5_uar_kind kind, epw_mlx5_uar *out) {
    static const uint32_t flags[] = {[EPW_MLX5_UAR_OWN] = EPW_ABI_UAR_OWN,
                                     [EPW_MLX5_UAR_SHARED] = EPW_ABI_UAR_SHARED,
                                     [EPW_MLX5_UAR_BF] = EPW_ABI_UAR_BF};
    errno = 0;
    epw_abi_uar *uar = f.alloc_uar(((device *)opened)->context, flags[kind]);
    if (uar == NULL) return why();
    *out = (epw_mlx5_uar){.handle = uar, .reg = uar->reg, .page = uar->page};
    return 0;
}

static void free_uar(void *handle) {
    f.free_uar(handle);
}

static int take_umem(void *opened, void *address, size_t bytes, int dmabuf, epw_mlx5_umem *out) {
    void *context = ((device *)opened)->context;
    epw_abi_umem_in in = {.address = address,
                          .size = bytes,
                          .access = EPW_ABI_LOCAL_WRITE,
                          .page_sizes = ~UINT64_C(4095),
                          .comp_mask = EPW_ABI_UMEM_DMABUF,
                          .dmabuf = dmabuf};
    if (dmabuf >= 0 && f.umem_reg_ex == NULL) return EOPNOTSUPP;
    errno = 0;
    epw_abi_umem *umem =
        dmabuf >= 0 ? f.umem_reg_ex(context, &in) : f.umem_reg(context, address, bytes, EPW_ABI_LOCAL_WRITE);
    if (umem == NULL) return why();
    *out = (epw_mlx5_umem){.handle = umem, .id = umem->id};
    return 0;
}

static int free_umem(void *handle) {
    return f.umem_dereg(handle);
}

static int register_memory(void *pd, void *address, size_t bytes, uint64_t first, uint32_t rights,
                           epw_mlx5_region *out) {
    errno = 0;
    epw_abi_mr *mr = f.reg_mr(pd, address, bytes, first, rights); /* the bits are equal */
    if (mr == NULL) return why();
    *out = (epw_mlx5_region){.handle = mr, .lkey = mr->lkey, .rkey = mr->rkey};
    return 0;
}

static int register_descriptor(void *pd, int dmabuf, uint64_t at, size_t bytes, uint64_t first,
                               uint32_t rights, epw_mlx5_region *out) {
    if (f.reg_dmabuf_mr == NULL) return EOPNOTSUPP;
    errno = 0;
    epw_abi_mr *mr = f.reg_dmabuf_mr(pd, at, bytes, first, dmabuf, (int)rights);
    if (mr == NULL) return why();
    *out = (epw_mlx5_region){.handle = mr, .lkey = mr->lkey, .rkey = mr->rkey};
    return 0;
}

static int deregister(void *handle) {
    return f.dereg_mr(handle);
}

/* Creating an address handle resolves the path. The address is copied, and stays valid while the queue pair
 * exists. */
static int resolve(void *pd, uint32_t port, uint32_t gid_index, const unsigned char gid[16],
                   unsigned char mac[6]) {
    epw_abi_ah_attr attr = {
        .sgid_index = (uint8_t)gid_index, .hop_limit = 255, .is_global = 1, .port = (uint8_t)port};
    epw_abi_ah said = {0};
    memcpy(attr.dgid, gid, sizeof attr.dgid);
    errno = 0;
    void *ah = f.create_ah(pd, &attr);
    if (ah == NULL) return why();
    int err = f.init_obj(&(epw_abi_objects){.ah = {ah, &said}}, EPW_ABI_OBJECT_AH);
    if (err == 0) memcpy(mac, said.av->mac, 6);
    f.destroy_ah(ah);
    return err;
}

/* ---- objects ---- */

static int create(void *opened, const void *in, size_t in_bytes, void *out, size_t out_bytes, void **object) {
    errno = 0;
    void *made = f.obj_create(((device *)opened)->context, in, in_bytes, out, out_bytes);
    if (made == NULL) return why();
    *object = made;
    return 0;
}

static int modify(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    return f.obj_modify(object, in, in_bytes, out, out_bytes);
}

static int query(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    return f.obj_query(object, in, in_bytes, out, out_bytes);
}

static int destroy(void *object) {
    return f.obj_destroy(object);
}

static const epw_mlx5_calls calls = {.kind = "mlx5 adapter",
                                     .devices = list_devices,
                                     .open = open_device,
                                     .close = close_device,
                                     .port = query_port,
                                     .gid = query_gid,
                                     .general = general,
                                     .event_queue = event_queue,
                                     .domain = domain,
                                     .free_domain = free_domain,
                                     .on_event = on_event,
                                     .uar = take_uar,
                                     .free_uar = free_uar,
                                     .umem = take_umem,
                                     .free_umem = free_umem,
                                     .create = create,
                                     .modify = modify,
                                     .query = query,
                                     .destroy = destroy,
                                     .register_memory = register_memory,
                                     .register_descriptor = register_descriptor,
                                     .deregister = deregister,
                                     .resolve = resolve};

/* The calls for adapters of any vendor: those that take no commands. */
static const epw_mlx5_calls plain_calls = {.library = &any_make,
                                           .kind = "RDMA adapter",
                                           .devices = list_devices,
                                           .open = open_device,
                                           .close = close_device,
                                           .port = query_port,
                                           .gid = query_gid,
                                           .domain = domain,
                                           .free_domain = free_domain,
                                           .on_event = on_event,
                                           .register_memory = register_memory,
                                           .register_descriptor = register_descriptor,
                                           .deregister = deregister};

epw_status epw_mlx5_library(epw_where where, const epw_mlx5_calls **out) {
    epw_status status = open_library(VERBS, where);
    if (status == EPW_OK) status = open_library(MLX5, where);
    if (status == EPW_OK) *out = &calls;
    return status;
}

epw_status epw_verbs_library(epw_where where, const epw_mlx5_calls **out) {
    epw_status status = open_library(VERBS, where);
    if (status == EPW_OK) *out = &plain_calls;
    return status;
}

void *epw_verbs_function(const char *name, const char *version) {
    return find(handles[VERBS], name, version);
}

epw_abi_context *epw_verbs_context(void *opened) {
    return ((device *)opened)->context;
}
