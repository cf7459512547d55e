/* The calls of libibverbs and libmlx5, as one table: the libraries themselves (library.h), or an adapter in
 * software that takes the same commands (nic/fake/). For an adapter of another vendor, whose queue pairs
 * libibverbs makes (nic/verbs/), the calls that take commands are NULL, `general` among them. Functions
 * return 0 or an errno, and fill in their results only if they return 0. */
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
    bool unordered; /* its transport does not promise to place writes in the order of posting */
} epw_mlx5_name;

typedef struct epw_mlx5_port {
    bool active, ethernet;
    uint32_t mtu; /* the active one, 1 for 256 bytes ... 5 for 4096 */
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

/* Kinds of doorbell registers, best first. */
typedef enum epw_mlx5_uar_kind {
    EPW_MLX5_UAR_OWN,    /* not cached, for one queue pair */
    EPW_MLX5_UAR_SHARED, /* not cached, for the whole process */
    EPW_MLX5_UAR_BF,     /* write-combining; two of them share a page */
    EPW_MLX5_UAR_KINDS
} epw_mlx5_uar_kind;

typedef struct epw_mlx5_uar {
    void *handle;
    void *reg; /* the register, 8 bytes */
    uint32_t page;
} epw_mlx5_uar;

/* Memory that the adapter reads and writes, and that commands name by its number. */
typedef struct epw_mlx5_umem {
    void *handle;
    uint32_t id;
} epw_mlx5_umem;

typedef struct epw_mlx5_region {
    void *handle;
    uint32_t lkey, rkey;
} epw_mlx5_region;

/* Rights to a region. */
enum {
    EPW_MLX5_LOCAL_WRITE = 1,
    EPW_MLX5_REMOTE_WRITE = 2,
    EPW_MLX5_REMOTE_READ = 4,
    EPW_MLX5_REMOTE_ATOMIC = 8,
    EPW_MLX5_RELAXED_ORDERING =
        1 << 20 /* writes may pass each other: never for a region that holds signal words */
};

/* A change that no call of this process has caused. */
typedef enum epw_mlx5_event_kind {
    EPW_MLX5_EVENT_PAIR,      /* queue pair `number` has stopped working */
    EPW_MLX5_EVENT_PORT_DOWN, /* port `number` is down */
    EPW_MLX5_EVENT_GIDS,      /* the addresses of port `number` have changed */
    EPW_MLX5_EVENT_FATAL      /* the device has failed */
} epw_mlx5_event_kind;

typedef struct epw_mlx5_event {
    epw_mlx5_event_kind kind;
    uint32_t number;
} epw_mlx5_event;

typedef struct epw_mlx5_calls {
    void *library;    /* the first argument of `devices` and `open` */
    const char *kind; /* for messages: "mlx5 adapter" */
    int (*devices)(void *library, epw_mlx5_name names[EPW_MLX5_DEVICES_MAX], uint32_t *count);
    int (*open)(void *library, const char *name, void **device);
    int (*close)(void *device);

    int (*port)(void *device, uint32_t port, epw_mlx5_port *out);
    int (*gid)(void *device, uint32_t port, uint32_t index,
               epw_mlx5_gid *out); /* ENODATA: the entry is empty */
    int (*general)(void *device, const void *in, size_t in_bytes, void *out, size_t out_bytes);
    int (*event_queue)(void *device, uint32_t *number);
    int (*domain)(void *device, void **pd, uint32_t *number);
    int (*free_domain)(void *pd);

    /* Sets the function that is called, from any thread, for each event until the device is closed or another
     * function is set; NULL: none. */
    void (*on_event)(void *device, void (*event)(void *context, const epw_mlx5_event *event), void *context);

    int (*uar)(void *device, epw_mlx5_uar_kind kind, epw_mlx5_uar *out);
    void (*free_uar)(void *handle); /* libmlx5 does not say whether it succeeds */

    /* Registers memory of this process at `address`, or, if `dmabuf` is at least 0, memory of that descriptor
     * at offset `address`. */
    int (*umem)(void *device, void *address, size_t bytes, int dmabuf, epw_mlx5_umem *out);
    int (*free_umem)(void *handle);

    /* After EREMOTEIO `out` holds the firmware's status and syndrome. */
    int (*create)(void *device, const void *in, size_t in_bytes, void *out, size_t out_bytes, void **object);
    int (*modify)(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes);
    int (*query)(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes);
    int (*destroy)(void *object);

    /* Registers memory at `address`, which is at offset `first` of the region. */
    int (*register_memory)(void *pd, void *address, size_t bytes, uint64_t first, uint32_t rights,
                           epw_mlx5_region *out);
    /* The same for memory of a descriptor, at offset `at` of it. NULL: there is no such call. */
    int (*register_descriptor)(void *pd, int dmabuf, uint64_t at, size_t bytes, uint64_t first,
                               uint32_t rights, epw_mlx5_region *out);
    int (*deregister)(void *handle);

    /* Ethernet: the MAC address of the first hop to a GID. */
    int (*resolve)(void *pd, uint32_t port, uint32_t gid_index, const unsigned char gid[16],
                   unsigned char mac[6]);

    /* `rung`: a queue pair's register has been written. `notice`: kernels, which cannot call, will write it.
     * NULL: the device notices by itself. */
    void (*rung)(void *object);
    void (*notice)(void *object);

    /* The registers are ordinary memory. */
    bool registers_in_memory;
} epw_mlx5_calls;

#endif
