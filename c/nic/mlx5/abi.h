/* The structures of libibverbs and libmlx5, as their binary interface lays them out, so that the build needs
 * neither. Fields that are not used are bytes. tests/c/mlx5_library.c compares sizes and offsets with the
 * libraries' own headers, where those are installed. */
#ifndef EPW_NIC_MLX5_ABI_H
#define EPW_NIC_MLX5_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct epw_abi_context {
    void *device;
    unsigned char others[256];
    int cmd_fd, async_fd;
} epw_abi_context;

/* The leading fields of a device. */
typedef struct epw_abi_device {
    void *operations[2];
    int node, transport;
} epw_abi_device;

typedef struct epw_abi_port {
    int state, max_mtu, active_mtu, gid_tbl_len;
    unsigned char others[18];
    uint16_t lid;
    unsigned char more[10];
    uint8_t link_layer;
    unsigned char rest[81]; /* room for fields that later versions may add */
} epw_abi_port;

typedef struct epw_abi_gid {
    unsigned char bytes[16];
    uint32_t index, port, type, interface;
} epw_abi_gid;

typedef struct epw_abi_mr {
    void *context, *pd, *address;
    size_t length;
    uint32_t handle, lkey, rkey;
} epw_abi_mr;

typedef struct epw_abi_ah_attr {
    _Alignas(8) unsigned char dgid[16]; /* a union with integers in the library's header */
    uint32_t flow_label;
    uint8_t sgid_index, hop_limit, traffic_class;
    uint16_t dlid;
    uint8_t sl, src_path_bits, static_rate, is_global, port;
} epw_abi_ah_attr;

typedef struct epw_abi_event {
    union {
        void *object;
        int port;
    } element;
    int type;
} epw_abi_event;

typedef struct epw_abi_context_attr {
    uint32_t flags;
    uint64_t comp_mask;
} epw_abi_context_attr;

typedef struct epw_abi_uar {
    void *reg, *base;
    uint32_t page;
    off_t mmap_offset;
    uint64_t comp_mask;
} epw_abi_uar;

typedef struct epw_abi_umem {
    uint32_t id;
} epw_abi_umem;

typedef struct epw_abi_umem_in {
    void *address;
    size_t size;
    uint32_t access;
    uint64_t page_sizes, comp_mask;
    int dmabuf;
} epw_abi_umem_in;

typedef struct epw_abi_pd {
    uint32_t number;
    uint64_t comp_mask;
} epw_abi_pd;

/* The leading fields of the address of a handle; the rest is not read. */
typedef struct epw_abi_av {
    unsigned char others[20];
    unsigned char mac[6];
} epw_abi_av;

typedef struct epw_abi_ah {
    epw_abi_av *av;
    uint64_t comp_mask;
} epw_abi_ah;

typedef struct epw_abi_object {
    void *in, *out;
} epw_abi_object;

typedef struct epw_abi_objects {
    epw_abi_object qp, cq, srq, rwq, dm, ah, pd;
} epw_abi_objects;

enum {
    EPW_ABI_OBJECT_AH = 1 << 5,
    EPW_ABI_OBJECT_PD = 1 << 6,
    EPW_ABI_CONTEXT_DEVX = 1,
    EPW_ABI_UMEM_DMABUF = 1,
    EPW_ABI_PORT_ACTIVE = 4,
    EPW_ABI_ETHERNET = 2,
    EPW_ABI_TRANSPORT_IB = 0, /* InfiniBand and RoCE */
    EPW_ABI_LOCAL_WRITE = 1,
    EPW_ABI_QP_FATAL = 1,
    EPW_ABI_QP_REQUEST_ERR = 2,
    EPW_ABI_QP_ACCESS_ERR = 3,
    EPW_ABI_DEVICE_FATAL = 8,
    EPW_ABI_PORT_ERR = 10,
    EPW_ABI_LID_CHANGE = 11,
    EPW_ABI_GID_CHANGE = 18
};

/* Kinds of registers, as they are requested. */
#define EPW_ABI_UAR_BF     UINT32_C(0)
#define EPW_ABI_UAR_SHARED UINT32_C(1)
#define EPW_ABI_UAR_OWN    (UINT32_C(1) << 31)

#endif
