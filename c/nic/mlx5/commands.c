/* See commands.h. A field is {byte offset of its word, highest bit, lowest bit}; bit 0 is the least
 * significant. */
#include "nic/mlx5/commands.h"

#include <string.h>

typedef struct field {
    uint16_t word;
    uint8_t high, low;
} field;

/* Byte offsets: of contexts in a command, and of the address path in a queue pair's context. */
enum { CQC = 0x10, QPC = 0x18, PATH = 0x18, CAPS = 0x10 };

#define CQC_FIELD(word, high, low)  ((field){CQC + (word), high, low})
#define QPC_FIELD(word, high, low)  ((field){QPC + (word), high, low})
#define PATH_FIELD(word, high, low) ((field){QPC + PATH + (word), high, low})

/* ---- any command ---- */

#define OPCODE   ((field){0x00, 31, 16})
#define OP_MOD   ((field){0x04, 15, 0})
#define NUMBER   ((field){0x08, 23, 0})
#define OPT_MASK ((field){0x10, 31, 0})

/* ---- CREATE_CQ ---- */

#define CQ_RECORD_UMEM_VALID CQC_FIELD(0x00, 25, 25)
#define CQ_COLLAPSED         CQC_FIELD(0x00, 20, 20)
#define CQ_IGNORE_OVERRUN    CQC_FIELD(0x00, 17, 17)
#define CQ_RECORD_UMEM       CQC_FIELD(0x04, 31, 0)
#define CQ_LOG_SIZE          CQC_FIELD(0x0c, 28, 24)
#define CQ_UAR               CQC_FIELD(0x0c, 23, 0)
#define CQ_EQ                CQC_FIELD(0x14, 7, 0)
#define CQ_RECORD            CQC_FIELD(0x3c, 31, 0) /* the lower half */
#define CQ_UMEM              ((field){0x58, 31, 0})
#define CQ_UMEM_VALID        ((field){0x5c, 31, 31})

/* ---- a queue pair's context ---- */

#define QP_MIGRATION         QPC_FIELD(0x00, 12, 11)
#define QP_ORDER_FORCED      QPC_FIELD(0x04, 24, 24)
#define QP_PD                QPC_FIELD(0x04, 23, 0)
#define QP_MTU               QPC_FIELD(0x08, 31, 29)
#define QP_LOG_MESSAGE       QPC_FIELD(0x08, 28, 24)
#define QP_LOG_SEND          QPC_FIELD(0x08, 14, 11)
#define QP_TIME_FORMAT       QPC_FIELD(0x08, 7, 6)
#define QP_UAR               QPC_FIELD(0x0c, 23, 0)
#define QP_REMOTE            QPC_FIELD(0x14, 23, 0)
#define QP_LOG_READS_OUT     QPC_FIELD(0x70, 23, 21)
#define QP_RETRIES           QPC_FIELD(0x70, 18, 16)
#define QP_RECEIVER_RETRIES  QPC_FIELD(0x70, 15, 13)
#define QP_PSN_OUT           QPC_FIELD(0x78, 23, 0)
#define QP_CQ_SEND           QPC_FIELD(0x7c, 23, 0)
#define QP_LOG_READS_IN      QPC_FIELD(0x90, 23, 21)
#define QP_ATOMIC_MODE       QPC_FIELD(0x90, 19, 16)
#define QP_MAY_READ          QPC_FIELD(0x90, 15, 15)
#define QP_MAY_WRITE         QPC_FIELD(0x90, 14, 14)
#define QP_MAY_ADD           QPC_FIELD(0x90, 13, 13)
#define QP_RECEIVER_TIMER    QPC_FIELD(0x94, 28, 24)
#define QP_PSN_IN            QPC_FIELD(0x94, 23, 0)
#define QP_CQ_RECEIVE        QPC_FIELD(0x9c, 23, 0)
#define QP_RECEIVE_TYPE      QPC_FIELD(0xac, 26, 24)
#define QP_RECORD_UMEM_VALID QPC_FIELD(0xd0, 28, 28)
#define QP_RECORD_UMEM       QPC_FIELD(0xe4, 31, 0)
#define QP_UMEM              ((field){0x108, 31, 0})
#define QP_UMEM_VALID        ((field){0x10c, 31, 31})

/* ---- its address path ---- */

#define PATH_LID           PATH_FIELD(0x04, 15, 0)
#define PATH_TIMEOUT       PATH_FIELD(0x08, 31, 27)
#define PATH_GID_INDEX     PATH_FIELD(0x08, 23, 16)
#define PATH_HOP_LIMIT     PATH_FIELD(0x08, 7, 0)
#define PATH_GID           0x10
#define PATH_DSCP          PATH_FIELD(0x20, 21, 16)
#define PATH_UDP_PORT      PATH_FIELD(0x20, 15, 0)
#define PATH_PRIORITY      PATH_FIELD(0x24, 30, 28)
#define PATH_SERVICE_LEVEL PATH_FIELD(0x24, 27, 24)
#define PATH_PORT          PATH_FIELD(0x24, 23, 16)
#define PATH_MAC           0x26

enum {
    MIGRATED = 3,
    RECEIVE_NONE = 3, /* there is no receive queue */
    TIME_DEFAULT = 1,
    ATOMIC_UP_TO_8 = 3,
    RETRY_ALWAYS =
        7, /* retry without end while the receiver is not ready; that does not happen without receives */
    RECEIVER_TIMER = 12, /* 0.64 ms */
    /* opt_param_mask: the rights of the peer that the command sets. */
    MASK_READ = 0x2,
    MASK_ADD = 0x4,
    MASK_WRITE = 0x8
};

static uint32_t big32(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint32_t mask_of(field f) {
    uint32_t bits = (uint32_t)f.high - f.low + 1;
    return (bits == 32 ? UINT32_MAX : (UINT32_C(1) << bits) - 1) << f.low;
}

static void set(unsigned char *in, field f, uint32_t value) {
    uint32_t word = (big32(in + f.word) & ~mask_of(f)) | (value << f.low & mask_of(f));
    for (int i = 0; i < 4; i++) in[f.word + i] = (unsigned char)(word >> (24 - 8 * i));
}

static uint32_t get(const unsigned char *out, field f) {
    return (big32(out + f.word) & mask_of(f)) >> f.low;
}

/* ---- building ---- */

static void begin(epw_mlx5_in in, uint32_t opcode, uint32_t number) {
    memset(in, 0, EPW_MLX5_IN_BYTES);
    set(in, OPCODE, opcode);
    set(in, NUMBER, number);
}

void epw_mlx5_build_create_cq(epw_mlx5_in in, const epw_mlx5_cq *cq) {
    begin(in, EPW_MLX5_CREATE_CQ, 0);
    set(in, CQ_COLLAPSED, 1);
    set(in, CQ_IGNORE_OVERRUN, 1); /* the adapter is never told how far the queue has been read */
    set(in, CQ_RECORD_UMEM_VALID, 1);
    set(in, CQ_RECORD_UMEM, cq->record_umem);
    set(in, CQ_RECORD, cq->record);
    set(in, CQ_LOG_SIZE, cq->log_entries);
    set(in, CQ_UAR, cq->uar);
    set(in, CQ_EQ, cq->eq);
    set(in, CQ_UMEM, cq->umem);
    set(in, CQ_UMEM_VALID, 1);
}

void epw_mlx5_build_create_qp(epw_mlx5_in in, const epw_mlx5_qp *qp) {
    begin(in, EPW_MLX5_CREATE_QP, 0);
    set(in, QP_MIGRATION, MIGRATED);
    set(in, QP_PD, qp->pd);
    set(in, QP_LOG_SEND, qp->log_entries);
    set(in, QP_TIME_FORMAT, qp->default_time ? TIME_DEFAULT : 0);
    set(in, QP_UAR, qp->uar);
    set(in, QP_CQ_SEND, qp->cq);
    set(in, QP_CQ_RECEIVE, qp->cq);
    set(in, QP_RECEIVE_TYPE, RECEIVE_NONE);
    set(in, QP_RECORD_UMEM_VALID, 1);
    set(in, QP_RECORD_UMEM, qp->record_umem);
    set(in, QP_UMEM, qp->umem);
    set(in, QP_UMEM_VALID, 1);
}

void epw_mlx5_build_rst2init(epw_mlx5_in in, uint32_t qpn, const epw_mlx5_path *path) {
    begin(in, EPW_MLX5_RST2INIT, qpn);
    set(in, QP_MIGRATION, MIGRATED);
    set(in, PATH_PORT, path->port);
}

void epw_mlx5_build_init2rtr(epw_mlx5_in in, uint32_t qpn, const epw_mlx5_path *path) {
    begin(in, EPW_MLX5_INIT2RTR, qpn);
    set(in, OPT_MASK, MASK_READ | MASK_WRITE | (path->atomics ? MASK_ADD : 0));
    set(in, QP_ORDER_FORCED, path->in_order); /* to what the two other bits say: 0, the order of posting */
    set(in, QP_MTU, path->mtu);
    set(in, QP_LOG_MESSAGE, EPW_MLX5_LOG_MESSAGE);
    set(in, QP_REMOTE, path->remote);
    set(in, QP_LOG_READS_IN, path->log_reads);
    set(in, QP_ATOMIC_MODE, path->atomics ? ATOMIC_UP_TO_8 : 0);
    set(in, QP_MAY_READ, 1);
    set(in, QP_MAY_WRITE, 1);
    set(in, QP_MAY_ADD, path->atomics);
    set(in, QP_RECEIVER_TIMER, RECEIVER_TIMER);
    set(in, QP_PSN_IN, epw_mlx5_first_psn(path->remote));
    set(in, PATH_PORT, path->port);
    if (path->ethernet) {
        set(in, PATH_GID_INDEX, path->gid_index);
        set(in, PATH_HOP_LIMIT, path->hop_limit);
        memcpy(in + QPC + PATH + PATH_GID, path->gid, sizeof path->gid);
        set(in, PATH_DSCP, path->traffic_class >> 2);
        set(in, PATH_UDP_PORT, path->udp_port);
        set(in, PATH_PRIORITY, path->service_level);
        memcpy(in + QPC + PATH + PATH_MAC, path->mac, sizeof path->mac);
    } else {
        /* No global route, hence no traffic class: firmware refuses one without the other. */
        set(in, PATH_LID, path->lid);
        set(in, PATH_SERVICE_LEVEL, path->service_level);
    }
}

void epw_mlx5_build_rtr2rts(epw_mlx5_in in, uint32_t qpn, const epw_mlx5_path *path) {
    begin(in, EPW_MLX5_RTR2RTS, qpn);
    set(in, QP_LOG_READS_OUT, path->log_reads);
    set(in, QP_RETRIES, path->retries);
    set(in, QP_RECEIVER_RETRIES, RETRY_ALWAYS);
    set(in, QP_PSN_OUT, epw_mlx5_first_psn(qpn));
    set(in, PATH_TIMEOUT, path->timeout);
}

void epw_mlx5_build_refuse(epw_mlx5_in in, uint32_t qpn) {
    begin(in, EPW_MLX5_RTS2RTS, qpn);
    set(in, OPT_MASK, MASK_READ | MASK_ADD | MASK_WRITE);
}

void epw_mlx5_build_short(unsigned char in[EPW_MLX5_SHORT_BYTES], uint32_t opcode, uint32_t number) {
    memset(in, 0, EPW_MLX5_SHORT_BYTES);
    set(in, OPCODE, opcode);
    set(in, NUMBER, number);
}

void epw_mlx5_build_query_cap(unsigned char in[EPW_MLX5_SHORT_BYTES], uint32_t kind) {
    memset(in, 0, EPW_MLX5_SHORT_BYTES);
    set(in, OPCODE, EPW_MLX5_QUERY_HCA_CAP);
    set(in, OP_MOD, kind << 1 | 1); /* the current values, not the greatest possible ones */
}

/* ---- answers ---- */

uint32_t epw_mlx5_status(const unsigned char *out) {
    return out[0];
}

uint32_t epw_mlx5_syndrome(const unsigned char *out) {
    return big32(out + 4);
}

uint32_t epw_mlx5_number(const unsigned char *out) {
    return get(out, NUMBER);
}

uint32_t epw_mlx5_state(const unsigned char out[EPW_MLX5_QUERY_QP_BYTES]) {
    return out[QPC] >> 4;
}

epw_mlx5_caps epw_mlx5_read_caps(const unsigned char out[EPW_MLX5_QUERY_CAP_BYTES]) {
    const unsigned char *caps = out + CAPS;
    return (epw_mlx5_caps){.cqe_version = caps[0x3f] & 0xf,
                           .log_qp_entries = caps[0x11],
                           .log_message = caps[0x38] & 0x1f,
                           .atomic = (caps[0x43] >> 1 & 1) != 0,
                           .cq_overrun_ignored = (caps[0x44] >> 7 & 1) != 0,
                           .roce = (caps[0x43] >> 2 & 1) != 0,
                           .general_2 = (caps[0x04] >> 7 & 1) != 0,
                           .chooses_time = (caps[0x88] >> 6 & 3) != 0,
                           .reorders = (caps[0x39] >> 5 & 1) != 0 || (caps[0x66] >> 3 & 1) != 0};
}

/* With RoCE these are the ones that count, as Linux and rdma-core have it. */
void epw_mlx5_read_roce_caps(const unsigned char out[EPW_MLX5_QUERY_CAP_BYTES], epw_mlx5_caps *caps) {
    caps->chooses_time = (out[CAPS + 0x03] & 3) != 0;
}

void epw_mlx5_read_caps_2(const unsigned char out[EPW_MLX5_QUERY_CAP_BYTES], epw_mlx5_caps *caps) {
    caps->keeps_order = (out[CAPS + 0x11] >> 7 & 1) != 0;
}

const char *epw_mlx5_status_name(uint32_t status) {
    switch (status) {
    case 0x00:
        return "OK";
    case 0x01:
        return "INTERNAL_ERR";
    case 0x02:
        return "BAD_OP";
    case 0x03:
        return "BAD_PARAM";
    case 0x04:
        return "BAD_SYS_STATE";
    case 0x05:
        return "BAD_RESOURCE";
    case 0x06:
        return "RESOURCE_BUSY";
    case 0x08:
        return "EXCEED_LIM";
    case 0x09:
        return "BAD_RES_STATE";
    case 0x0a:
        return "BAD_INDEX";
    case 0x0f:
        return "NO_RESOURCES";
    case 0x10:
        return "BAD_QP_STATE";
    case 0x50:
        return "BAD_INPUT_LEN";
    case 0x51:
        return "BAD_OUTPUT_LEN";
    default:
        return "a status that is not known here";
    }
}

const char *epw_mlx5_command_name(uint32_t opcode) {
    switch (opcode) {
    case EPW_MLX5_QUERY_HCA_CAP:
        return "QUERY_HCA_CAP";
    case EPW_MLX5_CREATE_CQ:
        return "CREATE_CQ";
    case EPW_MLX5_CREATE_QP:
        return "CREATE_QP";
    case EPW_MLX5_RST2INIT:
        return "RST2INIT_QP";
    case EPW_MLX5_INIT2RTR:
        return "INIT2RTR_QP";
    case EPW_MLX5_RTR2RTS:
        return "RTR2RTS_QP";
    case EPW_MLX5_RTS2RTS:
        return "RTS2RTS_QP";
    case EPW_MLX5_2ERR:
        return "2ERR_QP";
    case EPW_MLX5_2RST:
        return "2RST_QP";
    case EPW_MLX5_QUERY_QP:
        return "QUERY_QP";
    default:
        return "a command";
    }
}

uint32_t epw_mlx5_first_psn(uint32_t number) {
    return (number * UINT32_C(2654435761)) >> 8;
}

uint32_t epw_mlx5_udp_port(uint32_t own, uint32_t remote) {
    uint64_t both = ((uint64_t)own << 24 | remote) * UINT64_C(0x9e3779b97f4a7c15);
    return 0xc000 | (uint32_t)(both >> 50);
}

/* The smallest timeout with which so many tries take two deadlines; all of them then take less than four. */
static uint32_t timeout_for(uint32_t tries, uint64_t deadline_ns) {
    const uint32_t most = 31;
    uint32_t timeout = 1;
    while (timeout < most && (UINT64_C(4096) << timeout) * tries < 2 * deadline_ns) timeout++;
    return timeout;
}

void epw_mlx5_choose_retries(uint64_t deadline_ns, epw_mlx5_path *path) {
    /* As many tries as an adapter makes, since each may be lost. But if each waits less than 67 ms (14), a
     * busy fabric causes needless ones: then half as many, each of which waits for at least half a deadline.
     */
    const uint32_t most = 8, busy = 14;
    uint32_t tries = timeout_for(most, deadline_ns) >= busy ? most : most / 2;
    path->retries = tries - 1;
    path->timeout = timeout_for(tries, deadline_ns);
}
