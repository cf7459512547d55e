/* The structures of libibverbs that posting and polling need, as its binary interface lays them out;
 * nic/mlx5/abi.h has the others. tests/c/verbs_library.c compares them with the library's own header. */
#ifndef EPW_NIC_VERBS_ABI_H
#define EPW_NIC_VERBS_ABI_H

#include "nic/mlx5/abi.h"

typedef struct epw_abi_channel {
    void *context;
    int fd, references;
} epw_abi_channel;

/* The leading fields of completion queues and queue pairs; the rest is not read. */
typedef struct epw_abi_cq {
    void *context, *channel, *name;
} epw_abi_cq;

typedef struct epw_abi_qp {
    void *context, *name, *pd, *send_cq, *receive_cq, *srq;
    uint32_t handle, number;
} epw_abi_qp;

typedef struct epw_abi_limits {
    uint32_t sends, receives, send_pieces, receive_pieces, inline_bytes;
} epw_abi_limits;

typedef struct epw_abi_qp_init {
    void *name, *send_cq, *receive_cq, *srq;
    epw_abi_limits limits;
    int type, signals_all;
} epw_abi_qp_init;

typedef struct epw_abi_qp_attr {
    int state, current_state, mtu, migration;
    uint32_t qkey, receive_psn, send_psn, remote;
    unsigned access;
    epw_abi_limits limits;
    epw_abi_ah_attr to, otherwise;
    uint16_t pkey_index, other_pkey_index;
    uint8_t drains_notified, draining, reads, reads_of_peer, receiver_timer, port, timeout, retries,
        receiver_retries, other_port, other_timeout;
    uint32_t rate_limit;
} epw_abi_qp_attr;

typedef struct epw_abi_piece {
    uint64_t address;
    uint32_t bytes, key;
} epw_abi_piece;

typedef struct epw_abi_send {
    uint64_t name;
    struct epw_abi_send *next;
    epw_abi_piece *pieces;
    int count, opcode;
    unsigned flags;
    uint32_t immediate;
    union {
        struct {
            uint64_t address;
            uint32_t key;
        } rdma;
        struct {
            uint64_t address, add, swap;
            uint32_t key;
        } atomic;
    } remote;
    unsigned char others[56];
} epw_abi_send;

typedef struct epw_abi_completion {
    uint64_t name;
    int status, opcode;
    uint32_t vendor, bytes, immediate, number, source;
    unsigned flags;
    uint16_t pkey_index, lid;
    uint8_t service_level, path_bits;
} epw_abi_completion;

/* The three functions that the library's header calls through the context. */
typedef struct epw_abi_functions {
    void *device;
    void *before[11];
    int (*poll)(void *cq, int count, epw_abi_completion *out);
    int (*notify)(void *cq, int solicited);
    void *between[12];
    int (*post)(void *qp, epw_abi_send *first, epw_abi_send **bad);
} epw_abi_functions;

enum {
    EPW_ABI_RC = 2,
    EPW_ABI_STATE_RESET = 0,
    EPW_ABI_STATE_INIT = 1,
    EPW_ABI_STATE_RTR = 2,
    EPW_ABI_STATE_RTS = 3,
    EPW_ABI_STATE_ERR = 6,

    EPW_ABI_SETS_STATE = 1 << 0,
    EPW_ABI_SETS_ACCESS = 1 << 3,
    EPW_ABI_SETS_PKEY = 1 << 4,
    EPW_ABI_SETS_PORT = 1 << 5,
    EPW_ABI_SETS_PATH = 1 << 7,
    EPW_ABI_SETS_MTU = 1 << 8,
    EPW_ABI_SETS_TIMEOUT = 1 << 9,
    EPW_ABI_SETS_RETRIES = 1 << 10,
    EPW_ABI_SETS_RECEIVER_RETRIES = 1 << 11,
    EPW_ABI_SETS_RECEIVE_PSN = 1 << 12,
    EPW_ABI_SETS_READS = 1 << 13,
    EPW_ABI_SETS_RECEIVER_TIMER = 1 << 15,
    EPW_ABI_SETS_SEND_PSN = 1 << 16,
    EPW_ABI_SETS_READS_OF_PEER = 1 << 17,
    EPW_ABI_SETS_REMOTE = 1 << 20,

    EPW_ABI_SEND_WRITE = 0,
    EPW_ABI_SEND_READ = 4,
    EPW_ABI_SEND_FETCH_ADD = 6,
    EPW_ABI_SIGNALLED = 2,
    EPW_ABI_INLINE = 8
};

#endif
