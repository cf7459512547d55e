/* The calls of libibverbs and libmlx5, as one table: of the libraries themselves (library.h), or of a device
 * in software that takes the same commands (nic/fake/). Of an adapter of another make, whose queue pairs
 * libibverbs makes (nic/verbs/), nothing is asked that takes commands: `general` is NULL. Functions return 0
 * or an errno; what they fill in is theirs only where they return 0. */
#ifndef EPW_NIC_MLX5_CALLS_H
#define EPW_NIC_MLX5_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nic/bus.h"

enum { EPW_MLX5_NAME_BYTES = 64, EPW_MLX5_DEVICES_MAX = 64 };

typedef struct epw_mlx5_name {
    char text[EPW_MLX5_NAME_BYTES];
    epw_bus_place place;
} epw_mlx5_name;

typedef struct epw_mlx5_port {
    bool active, ethernet;
    uint32_t mtu; /* that is active: 1: 256 bytes ... 5: 4096 */
    uint32_t lid; /* InfiniBand */
    uint32_t gids;
} epw_mlx5_port;

typedef enum epw_mlx5_gid_type {
    EPW_MLX5_GID_IB,
    EPW_MLX5_GID_ROCE_V1,
    EPW_MLX5_GID_ROCE_V2
} epw_mlx5_gid_type;

typedef struct epw_mlx5_gid {
    unsigned char bytes[16];
    epw_mlx5_gid_type type;
} epw_mlx5_gid;

/* Kinds of doorbell registers, the best first. */
typedef enum epw_mlx5_uar_kind {
    EPW_MLX5_UAR_OWN,    /* not cached, of one queue pair */
    EPW_MLX5_UAR_SHARED, /* not cached, of the whole process */
    EPW_MLX5_UAR_BF,     /* gathers writes; two of them share a page */
    EPW_MLX5_UAR_KINDS
} epw_mlx5_uar_kind;

typedef struct epw_mlx5_uar {
    void *handle;
    void *reg; /* the register, of 8 bytes */
    uint32_t page;
} epw_mlx5_uar;

/* Memory that the adapter reads and writes by number. */
typedef struct epw_mlx5_umem {
    void *handle;
    uint32_t id;
} epw_mlx5_umem;

typedef struct epw_mlx5_region {
    void *handle;
    uint32_t lkey, rkey;
} epw_mlx5_region;

/* Rights of a region. */
enum {
    EPW_MLX5_LOCAL_WRITE = 1,
    EPW_MLX5_REMOTE_WRITE = 2,
    EPW_MLX5_REMOTE_READ = 4,
    EPW_MLX5_REMOTE_ATOMIC = 8,
    EPW_MLX5_RELAXED_ORDERING = 1 << 20 /* its writes may pass each other: never where words lie */
};

/* Something has happened that no call of this process has caused. */
typedef enum epw_mlx5_event_kind {
    EPW_MLX5_EVENT_PAIR,      /* queue pair `number` no longer works */
    EPW_MLX5_EVENT_PORT_DOWN, /* port `number` */
    EPW_MLX5_EVENT_GIDS,      /* port `number` has other addresses */
    EPW_MLX5_EVENT_FATAL      /* the device */
} epw_mlx5_event_kind;

typedef struct epw_mlx5_event {
    epw_mlx5_event_kind kind;
    uint32_t number;
} epw_mlx5_event;

typedef struct epw_mlx5_calls {
    void *library;    /* the first argument of the first two */
    const char *kind; /* for messages: "mlx5 adapter" */
    int (*devices)(void *library, epw_mlx5_name names[EPW_MLX5_DEVICES_MAX], uint32_t *count);
    int (*open)(void *library, const char *name, void **device);
    int (*close)(void *device);

    int (*port)(void *device, uint32_t port, epw_mlx5_port *out);
    int (*gid)(void *device, uint32_t port, uint32_t index, epw_mlx5_gid *out); /* ENODATA: it has none */
    int (*general)(void *device, const void *in, size_t in_bytes, void *out, size_t out_bytes);
    int (*event_queue)(void *device, uint32_t *number);
    int (*domain)(void *device, void **pd, uint32_t *number);
    int (*free_domain)(void *pd);

    /* Calls back, from any thread, until the device is closed or another one is to be called; NULL: nobody.
     */
    void (*on_event)(void *device, void (*event)(void *context, const epw_mlx5_event *event), void *context);

    int (*uar)(void *device, epw_mlx5_uar_kind kind, epw_mlx5_uar *out);
    void (*free_uar)(void *handle);

    /* Memory of this process at `address`; `dmabuf` at least 0: at that offset of the descriptor's. */
    int (*umem)(void *device, void *address, size_t bytes, int dmabuf, epw_mlx5_umem *out);
    int (*free_umem)(void *handle);

    /* EREMOTEIO: `out` has the firmware's status and syndrome. */
    int (*create)(void *device, const void *in, size_t in_bytes, void *out, size_t out_bytes, void **object);
    int (*modify)(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes);
    int (*query)(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes);
    int (*destroy)(void *object);

    /* Offset `first` of the region is at `address`. */
    int (*register_memory)(void *pd, void *address, size_t bytes, uint64_t first, uint32_t rights,
                           epw_mlx5_region *out);
    /* The same of a descriptor's bytes from its beginning on. */
    int (*register_descriptor)(void *pd, int dmabuf, size_t bytes, uint64_t first, uint32_t rights,
                               epw_mlx5_region *out);
    int (*deregister)(void *handle);

    /* Ethernet: which address packets for a GID go to first. */
    int (*resolve)(void *pd, uint32_t port, uint32_t gid_index, const unsigned char gid[16],
                   unsigned char mac[6]);

    /* A queue pair's register has been written; it will be by kernels, who cannot say so. NULL: a device that
     * notices by itself. */
    void (*rung)(void *object);
    void (*notice)(void *object);

    /* Registers are ordinary memory. */
    bool registers_in_memory;
} epw_mlx5_calls;

#endif
