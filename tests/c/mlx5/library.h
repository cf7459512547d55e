/* libibverbs and libmlx5 as the library under test finds them: dlopen and dlvsym of this program return
 * functions for libibverbs.so.1 and libmlx5.so.1, each in the only version that has its signature, and
 * forward everything else to the C library. Behind them are fake adapters (nic/fake.h), one for each context
 * that is opened, and cables between all of them. What a version with another signature gets is a function
 * that counts the call as a broken rule, as is whatever the libraries' documentation forbids.
 *
 * As with hardware, the adapters notice doorbells by themselves, and nobody reports the end of a queue pair
 * that was made by commands: libibverbs does not know it. */
#ifndef EPW_TESTS_MLX5_LIBRARY_H
#define EPW_TESTS_MLX5_LIBRARY_H

#include "nic/fake.h"
#include "nic/mlx5/abi.h"
#include "nic/mlx5/commands.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MLX_CONTEXTS = 4 };

/* A context of the adapter, and its place in mlx.contexts. */
typedef struct mlx_context {
    epw_abi_context abi;
    uint32_t place;
    epw_nic *nic;
    epw_fake *fake;
    void *device;
    int events;                   /* the end to which events are written */
    uint64_t links[MLX_CONTEXTS]; /* to the context in each place, its own too; 0: none */
} mlx_context;

typedef struct mlx_pd {
    mlx_context *context;
    void *domain;
    uint32_t number;
} mlx_pd;

typedef struct mlx_mr {
    epw_abi_mr abi;
    const epw_mlx5_calls *calls;
    void *region;
} mlx_mr;

typedef struct mlx_umem {
    epw_abi_umem abi;
    const epw_mlx5_calls *calls;
    void *umem;
} mlx_umem;

typedef struct mlx_uar {
    epw_abi_uar abi;
    const epw_mlx5_calls *calls;
    void *uar;
} mlx_uar;

typedef struct mlx_object {
    mlx_context *context;
    void *object;
} mlx_object;

static struct {
    pthread_mutex_t lock;
    mlx_context *contexts[MLX_CONTEXTS];
    epw_fake_options options;             /* of the adapters that are opened from now on */
    bool silent;                          /* calls that fail leave errno 0 */
    const char *no_library, *no_function; /* what is not found */
    uint32_t broken_rules;
    uint32_t left;   /* objects that an adapter still had when it was closed */
    uint32_t failed; /* calls that have failed in adapters that were closed */
} mlx = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define MLX_RULE(holds) mlx_rule((holds), __LINE__, #holds)

static bool mlx_rule(bool holds, int line, const char *rule) {
    if (holds) return true;
    __atomic_fetch_add(&mlx.broken_rules, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, line, rule);
    return false;
}

static const epw_where mlx_where = {"library", -1, -1};

static const epw_mlx5_calls *mlx_calls(const mlx_context *context) {
    return epw_fake_calls(context->fake);
}

/* NULL and errno, if `err` is not 0. */
static void *mlx_made(void *made, int err) {
    if (err == 0) return made;
    free(made);
    errno = mlx.silent ? 0 : err;
    return NULL;
}

static void *mlx_new(size_t bytes) {
    void *made = calloc(1, bytes);
    if (made == NULL) abort();
    return made;
}

/* ---- devices: one of another vendor, and one adapter ---- */

static epw_abi_device mlx_other_device, mlx_device;

static void **mlx_get_device_list(int *count) {
    void **list = mlx_new(3 * sizeof *list);
    list[0] = &mlx_other_device;
    list[1] = &mlx_device;
    if (count != NULL) *count = 2;
    return list;
}

static void mlx_free_device_list(void **list) {
    free(list);
}

static const char *mlx_get_device_name(void *device) {
    return device == &mlx_device ? "mlx5_0" : "other_0";
}

static bool mlx_is_supported(void *device) {
    return device == &mlx_device;
}

/* The library under test opens adapters for commands, not plainly. */
static void *mlx_open_plainly(void *device) {
    MLX_RULE(device == NULL);
    return mlx_made(NULL, EOPNOTSUPP);
}

/* ---- contexts ---- */

static void mlx_say(mlx_context *context, int type, int port) {
    epw_abi_event event = {.type = type, .element.port = port};
    MLX_RULE(write(context->events, &event, sizeof event) == sizeof event);
}

static void mlx_heard(void *context, const epw_mlx5_event *event) {
    if (event->kind == EPW_MLX5_EVENT_FATAL) mlx_say(context, EPW_ABI_DEVICE_FATAL, 0);
    if (event->kind == EPW_MLX5_EVENT_PORT_DOWN) mlx_say(context, EPW_ABI_PORT_ERR, (int)event->number);
    if (event->kind == EPW_MLX5_EVENT_GIDS)
        mlx_say(context, mlx.options.infiniband ? EPW_ABI_LID_CHANGE : EPW_ABI_GID_CHANGE,
                (int)event->number);
}

/* Lays a cable to another context, or from this one to itself. */
static bool mlx_join(mlx_context *a, mlx_context *b) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) return false;
    uint64_t back = 0;
    bool joined = epw_nic_add_link(a->nic, fds[0], b->place, mlx_where, &a->links[b->place]) == EPW_OK;
    joined &= epw_nic_add_link(b->nic, fds[1], a->place, mlx_where, &back) == EPW_OK;
    if (a != b) b->links[a->place] = back;
    return joined;
}

static int mlx_close_device(void *context) {
    mlx_context *c = context;
    pthread_mutex_lock(&mlx.lock);
    if (mlx.contexts[c->place] == c) mlx.contexts[c->place] = NULL;
    pthread_mutex_unlock(&mlx.lock);
    if (c->device != NULL) {
        mlx_calls(c)->on_event(c->device, NULL, NULL);
        int err = mlx_calls(c)->close(c->device);
        epw_fake_left left = epw_fake_count(c->fake);
        mlx.left += left.devices + left.domains + left.uars + left.umems + left.objects + left.regions;
        if (!MLX_RULE(err == 0)) return err;
    }
    if (c->fake != NULL) mlx.failed += epw_fake_failed(c->fake);
    epw_fake_close(c->fake);
    epw_nic_close(c->nic);
    if (c->events > 0) close(c->events);
    if (c->abi.async_fd > 0) close(c->abi.async_fd);
    free(c);
    return 0;
}

static int mlx_open_parts(mlx_context *c) {
    int ends[2];
    if (pipe(ends) != 0) return errno;
    c->abi.async_fd = ends[0];
    c->events = ends[1];
    epw_fake_options options = mlx.options;
    if (epw_nic_open(mlx_where, &c->nic) != EPW_OK) return EAGAIN;
    options.rank = c->place;
    options.nic = c->nic;
    if (epw_fake_open(&options, mlx_where, &c->fake) != EPW_OK) return ENOMEM;
    int err = mlx_calls(c)->open(mlx_calls(c)->library, "fake_0", &c->device);
    if (err != 0) {
        c->device = NULL;
        return err;
    }
    mlx_calls(c)->on_event(c->device, mlx_heard, c);
    return 0;
}

static void *mlx_open_device(void *device, epw_abi_context_attr *attr) {
    if (!MLX_RULE(device == &mlx_device && attr->flags == EPW_ABI_CONTEXT_DEVX && attr->comp_mask == 0))
        return mlx_made(NULL, EINVAL);
    mlx_context *made = mlx_new(sizeof *made);
    made->abi.device = device;
    pthread_mutex_lock(&mlx.lock);
    while (made->place < MLX_CONTEXTS && mlx.contexts[made->place] != NULL) made->place++;
    int err = made->place < MLX_CONTEXTS ? mlx_open_parts(made) : EMFILE;
    if (err == 0) mlx.contexts[made->place] = made;
    for (uint32_t i = 0; err == 0 && i < MLX_CONTEXTS; i++)
        if (mlx.contexts[i] != NULL) MLX_RULE(mlx_join(made, mlx.contexts[i]));
    pthread_mutex_unlock(&mlx.lock);
    if (err != 0) {
        mlx_close_device(made);
        return mlx_made(NULL, err);
    }
    return made;
}

static int mlx_query_port(void *context, uint8_t number, epw_abi_port *out) {
    const mlx_context *c = context;
    epw_mlx5_port port;
    int err = mlx_calls(c)->port(c->device, number, &port);
    if (err != 0) return err;
    *out = (epw_abi_port){.state = port.active ? EPW_ABI_PORT_ACTIVE : 1,
                          .max_mtu = 5,
                          .active_mtu = (int)port.mtu,
                          .gid_tbl_len = (int)port.gids,
                          .lid = (uint16_t)port.lid,
                          .link_layer = port.ethernet ? EPW_ABI_ETHERNET : 1};
    return 0;
}

static int mlx_query_gid(void *context, uint32_t port, uint32_t index, epw_abi_gid *out, uint32_t flags,
                         size_t size) {
    const mlx_context *c = context;
    epw_mlx5_gid gid;
    if (!MLX_RULE(flags == 0 && size == sizeof *out)) return EINVAL;
    int err = mlx_calls(c)->gid(c->device, port, index, &gid);
    if (err != 0) return err;
    *out = (epw_abi_gid){.index = index, .port = port, .type = (uint32_t)gid.type};
    memcpy(out->bytes, gid.bytes, sizeof out->bytes);
    return 0;
}

static int mlx_get_event(void *context, epw_abi_event *out) {
    return read(((mlx_context *)context)->abi.async_fd, out, sizeof *out) == sizeof *out ? 0 : -1;
}

static void mlx_ack_event(epw_abi_event *event) {
    (void)event;
}

/* ---- memory ---- */

static void *mlx_alloc_pd(void *context) {
    mlx_pd *made = mlx_new(sizeof *made);
    made->context = context;
    const mlx_context *c = made->context;
    return mlx_made(made, mlx_calls(c)->domain(c->device, &made->domain, &made->number));
}

static int mlx_dealloc_pd(void *pd) {
    mlx_pd *p = pd;
    int err = mlx_calls(p->context)->free_domain(p->domain);
    if (MLX_RULE(err == 0)) free(p);
    return err;
}

static epw_abi_mr *mlx_region(mlx_pd *pd, mlx_mr *made, int err, const epw_mlx5_region *region) {
    made->abi = (epw_abi_mr){.pd = pd, .lkey = region->lkey, .rkey = region->rkey};
    made->calls = mlx_calls(pd->context);
    made->region = region->handle;
    return mlx_made(made, err);
}

static epw_abi_mr *mlx_reg_mr(void *pd, void *address, size_t bytes, uint64_t first, unsigned access) {
    mlx_pd *p = pd;
    epw_mlx5_region region = {0};
    int err = mlx_calls(p->context)->register_memory(p->domain, address, bytes, first, access, &region);
    return mlx_region(p, mlx_new(sizeof(mlx_mr)), err, &region);
}

static epw_abi_mr *mlx_reg_dmabuf_mr(void *pd, uint64_t offset, size_t bytes, uint64_t first, int fd,
                                     int access) {
    mlx_pd *p = pd;
    epw_mlx5_region region = {0};
    int err = mlx_calls(p->context)
                  ->register_descriptor(p->domain, fd, offset, bytes, first, (uint32_t)access, &region);
    return mlx_region(p, mlx_new(sizeof(mlx_mr)), err, &region);
}

static int mlx_dereg_mr(epw_abi_mr *region) {
    mlx_mr *m = (mlx_mr *)(void *)region;
    int err = m->calls->deregister(m->region);
    if (MLX_RULE(err == 0)) free(m);
    return err;
}

static epw_abi_umem *mlx_umem_made(mlx_context *c, void *address, size_t bytes, int dmabuf) {
    mlx_umem *made = mlx_new(sizeof *made);
    epw_mlx5_umem umem = {0};
    int err = mlx_calls(c)->umem(c->device, address, bytes, dmabuf, &umem);
    *made = (mlx_umem){.abi.id = umem.id, .calls = mlx_calls(c), .umem = umem.handle};
    return mlx_made(made, err);
}

static epw_abi_umem *mlx_umem_reg(void *context, void *address, size_t bytes, uint32_t access) {
    MLX_RULE(access == EPW_ABI_LOCAL_WRITE);
    return mlx_umem_made(context, address, bytes, -1);
}

/* For memory of a descriptor: `address` is an offset within it. */
static epw_abi_umem *mlx_umem_reg_ex(void *context, epw_abi_umem_in *in) {
    MLX_RULE(in->access == EPW_ABI_LOCAL_WRITE && in->comp_mask == EPW_ABI_UMEM_DMABUF && in->dmabuf >= 0);
    MLX_RULE((in->page_sizes & 4096) != 0);
    return mlx_umem_made(context, in->address, in->size, in->dmabuf);
}

static int mlx_umem_dereg(epw_abi_umem *umem) {
    mlx_umem *u = (mlx_umem *)(void *)umem;
    int err = u->calls->free_umem(u->umem);
    if (MLX_RULE(err == 0)) free(u);
    return err;
}

static epw_abi_uar *mlx_alloc_uar(void *context, uint32_t flags) {
    const mlx_context *c = context;
    epw_mlx5_uar uar = {0};
    epw_mlx5_uar_kind kind = flags == EPW_ABI_UAR_OWN      ? EPW_MLX5_UAR_OWN
                             : flags == EPW_ABI_UAR_SHARED ? EPW_MLX5_UAR_SHARED
                                                           : EPW_MLX5_UAR_BF;
    MLX_RULE(kind != EPW_MLX5_UAR_BF || flags == EPW_ABI_UAR_BF);
    mlx_uar *made = mlx_new(sizeof *made);
    int err = mlx_calls(c)->uar(c->device, kind, &uar);
    *made = (mlx_uar){.abi = {.reg = uar.reg, .page = uar.page}, .calls = mlx_calls(c), .uar = uar.handle};
    return mlx_made(made, err);
}

static void mlx_free_uar(epw_abi_uar *uar) {
    mlx_uar *u = (mlx_uar *)(void *)uar;
    u->calls->free_uar(u->uar);
    free(u);
}

/* ---- addresses ---- */

typedef struct mlx_ah {
    epw_abi_av av;
} mlx_ah;

static void *mlx_create_ah(void *pd, epw_abi_ah_attr *attr) {
    mlx_pd *p = pd;
    mlx_ah *made = mlx_new(sizeof *made);
    MLX_RULE(attr->is_global == 1 && attr->hop_limit > 0);
    return mlx_made(
        made,
        mlx_calls(p->context)->resolve(p->domain, attr->port, attr->sgid_index, attr->dgid, made->av.mac));
}

static int mlx_destroy_ah(void *ah) {
    free(ah);
    return 0;
}

static int mlx_init_obj(epw_abi_objects *objects, uint64_t kinds) {
    if (!MLX_RULE(kinds == EPW_ABI_OBJECT_PD || kinds == EPW_ABI_OBJECT_AH)) return EINVAL;
    if (kinds == EPW_ABI_OBJECT_PD) {
        const mlx_pd *pd = objects->pd.in;
        ((epw_abi_pd *)objects->pd.out)->number = pd->number;
    } else {
        mlx_ah *ah = objects->ah.in;
        ((epw_abi_ah *)objects->ah.out)->av = &ah->av;
    }
    return 0;
}

/* ---- commands ---- */

static int mlx_general_cmd(void *context, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    const mlx_context *c = context;
    return mlx_calls(c)->general(c->device, in, in_bytes, out, out_bytes);
}

static int mlx_query_eqn(void *context, uint32_t vector, uint32_t *number) {
    const mlx_context *c = context;
    MLX_RULE(vector == 0);
    return mlx_calls(c)->event_queue(c->device, number);
}

static uint32_t mlx_opcode(const unsigned char *in) {
    return (uint32_t)in[0] << 8 | in[1];
}

static uint32_t mlx_number_at(const unsigned char *at) {
    return (uint32_t)at[0] << 16 | (uint32_t)at[1] << 8 | at[2];
}

static void *mlx_obj_create(void *context, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    mlx_context *c = context;
    mlx_object *made = mlx_new(sizeof *made);
    made->context = c;
    int err = mlx_calls(c)->create(c->device, in, in_bytes, out, out_bytes, &made->object);
    if (err == 0 && mlx_opcode(in) == EPW_MLX5_CREATE_QP) mlx_calls(c)->notice(made->object);
    return mlx_made(made, err);
}

/* In place of switches: finds the context with the address that INIT2RTR names. */
static void mlx_lay_route(const mlx_context *c, const unsigned char *in) {
    enum { CONTEXT = 0x18, PATH = CONTEXT + 0x18 };
    epw_fake_route route = {.remote = mlx_number_at(in + CONTEXT + 0x15)};
    memcpy(route.gid, in + PATH + 0x10, sizeof route.gid);
    route.lid = (uint32_t)in[PATH + 0x06] << 8 | in[PATH + 0x07];
    pthread_mutex_lock(&mlx.lock);
    for (uint32_t i = 0; i < MLX_CONTEXTS; i++) {
        const mlx_context *to = mlx.contexts[i];
        epw_mlx5_port port = {0};
        epw_mlx5_gid gid = {.type = EPW_MLX5_GID_IB};
        if (to == NULL || mlx_calls(to)->port(to->device, 1, &port) != 0) continue;
        bool here = !port.ethernet && port.lid == route.lid;
        for (uint32_t g = 0; port.ethernet && g < port.gids; g++)
            here |= mlx_calls(to)->gid(to->device, 1, g, &gid) == 0 && memcmp(gid.bytes, route.gid, 16) == 0;
        if (here) route.link = c->links[i];
    }
    pthread_mutex_unlock(&mlx.lock);
    epw_fake_add_route(c->fake, mlx_number_at(in + 9), &route);
}

static int mlx_obj_modify(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    const mlx_object *o = object;
    if (mlx_opcode(in) == EPW_MLX5_INIT2RTR) mlx_lay_route(o->context, in);
    return mlx_calls(o->context)->modify(o->object, in, in_bytes, out, out_bytes);
}

static int mlx_obj_query(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    const mlx_object *o = object;
    return mlx_calls(o->context)->query(o->object, in, in_bytes, out, out_bytes);
}

static int mlx_obj_destroy(void *object) {
    mlx_object *o = object;
    int err = mlx_calls(o->context)->destroy(o->object);
    if (MLX_RULE(err == 0)) free(o);
    return err;
}

/* ---- as they are found ---- */

/* In place of a version with another signature. */
static void *mlx_old(void) {
    mlx_rule(false, __LINE__, "this version is not called");
    return NULL;
}

#define MLX_FUNCTION(function) ((void (*)(void))(function))
static const struct {
    const char *name, *version;
    void (*function)(void);
} mlx_functions[] = {
    {"ibv_get_device_list", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_get_device_list", "IBVERBS_1.1", MLX_FUNCTION(mlx_get_device_list)},
    {"ibv_free_device_list", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_free_device_list", "IBVERBS_1.1", MLX_FUNCTION(mlx_free_device_list)},
    {"ibv_get_device_name", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_get_device_name", "IBVERBS_1.1", MLX_FUNCTION(mlx_get_device_name)},
    {"ibv_open_device", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_open_device", "IBVERBS_1.1", MLX_FUNCTION(mlx_open_plainly)},
    {"ibv_close_device", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_close_device", "IBVERBS_1.1", MLX_FUNCTION(mlx_close_device)},
    {"ibv_query_port", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_query_port", "IBVERBS_1.1", MLX_FUNCTION(mlx_query_port)},
    {"_ibv_query_gid_ex", "IBVERBS_1.11", MLX_FUNCTION(mlx_query_gid)},
    {"ibv_alloc_pd", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_alloc_pd", "IBVERBS_1.1", MLX_FUNCTION(mlx_alloc_pd)},
    {"ibv_dealloc_pd", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_dealloc_pd", "IBVERBS_1.1", MLX_FUNCTION(mlx_dealloc_pd)},
    {"ibv_reg_mr_iova2", "IBVERBS_1.8", MLX_FUNCTION(mlx_reg_mr)},
    {"ibv_reg_dmabuf_mr", "IBVERBS_1.12", MLX_FUNCTION(mlx_reg_dmabuf_mr)},
    {"ibv_dereg_mr", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_dereg_mr", "IBVERBS_1.1", MLX_FUNCTION(mlx_dereg_mr)},
    {"ibv_create_ah", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_create_ah", "IBVERBS_1.1", MLX_FUNCTION(mlx_create_ah)},
    {"ibv_destroy_ah", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_destroy_ah", "IBVERBS_1.1", MLX_FUNCTION(mlx_destroy_ah)},
    {"ibv_get_async_event", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_get_async_event", "IBVERBS_1.1", MLX_FUNCTION(mlx_get_event)},
    {"ibv_ack_async_event", "IBVERBS_1.0", MLX_FUNCTION(mlx_old)},
    {"ibv_ack_async_event", "IBVERBS_1.1", MLX_FUNCTION(mlx_ack_event)},
    {"mlx5dv_is_supported", "MLX5_1.8", MLX_FUNCTION(mlx_is_supported)},
    {"mlx5dv_open_device", "MLX5_1.7", MLX_FUNCTION(mlx_open_device)},
    {"mlx5dv_init_obj", "MLX5_1.0", MLX_FUNCTION(mlx_old)},
    {"mlx5dv_init_obj", "MLX5_1.2", MLX_FUNCTION(mlx_init_obj)},
    {"mlx5dv_devx_general_cmd", "MLX5_1.7", MLX_FUNCTION(mlx_general_cmd)},
    {"mlx5dv_devx_query_eqn", "MLX5_1.7", MLX_FUNCTION(mlx_query_eqn)},
    {"mlx5dv_devx_alloc_uar", "MLX5_1.7", MLX_FUNCTION(mlx_alloc_uar)},
    {"mlx5dv_devx_free_uar", "MLX5_1.7", MLX_FUNCTION(mlx_free_uar)},
    {"mlx5dv_devx_umem_reg", "MLX5_1.7", MLX_FUNCTION(mlx_umem_reg)},
    {"mlx5dv_devx_umem_reg_ex", "MLX5_1.19", MLX_FUNCTION(mlx_umem_reg_ex)},
    {"mlx5dv_devx_umem_dereg", "MLX5_1.7", MLX_FUNCTION(mlx_umem_dereg)},
    {"mlx5dv_devx_obj_create", "MLX5_1.7", MLX_FUNCTION(mlx_obj_create)},
    {"mlx5dv_devx_obj_modify", "MLX5_1.7", MLX_FUNCTION(mlx_obj_modify)},
    {"mlx5dv_devx_obj_query", "MLX5_1.7", MLX_FUNCTION(mlx_obj_query)},
    {"mlx5dv_devx_obj_destroy", "MLX5_1.7", MLX_FUNCTION(mlx_obj_destroy)},
};

enum { MLX_FUNCTIONS = sizeof mlx_functions / sizeof mlx_functions[0] };

static char mlx_libibverbs, mlx_libmlx5; /* only their addresses are used */

static bool mlx_is(const char *what, const char *name) {
    return what != NULL && strcmp(what, name) == 0;
}

void *dlopen(const char *name, int flags) {
    void *next = dlsym(RTLD_NEXT, "dlopen");
    void *(*real)(const char *, int);
    memcpy(&real, &next, sizeof real);
    bool verbs = name != NULL && strcmp(name, "libibverbs.so.1") == 0;
    bool mlx5 = name != NULL && strcmp(name, "libmlx5.so.1") == 0;
    if (!verbs && !mlx5) return real(name, flags);
    if (mlx_is(mlx.no_library, name)) return NULL;
    return verbs ? (void *)&mlx_libibverbs : (void *)&mlx_libmlx5;
}

void *dlvsym(void *restrict library, const char *restrict name, const char *restrict version) {
    void *next = dlsym(RTLD_NEXT, "dlvsym"), *found = NULL;
    void *(*real)(void *, const char *, const char *);
    memcpy(&real, &next, sizeof real);
    bool verbs = library == &mlx_libibverbs;
    if (!verbs && library != &mlx_libmlx5) return real(library, name, version);
    if (mlx_is(mlx.no_function, name)) return NULL;
    for (size_t i = 0; i < MLX_FUNCTIONS; i++) {
        bool here = verbs == (strncmp(mlx_functions[i].version, "IBVERBS", 7) == 0);
        if (here && strcmp(mlx_functions[i].name, name) == 0 &&
            strcmp(mlx_functions[i].version, version) == 0)
            memcpy(&found, &mlx_functions[i].function, sizeof found);
    }
    return found;
}

#endif
